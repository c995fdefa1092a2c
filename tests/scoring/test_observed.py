"""What is observed in currents, and its derivatives, against fine traces by SciPy's expm."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import curve_fit

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem, n_scored, total_weight
from channelfit.problem.observation import Measure, Observation, Window, as_recording
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import OK
from channelfit.scoring.kernels.peak_kernels import found_crossings
from channelfit.scoring.observables import _COEFFICIENTS, Extremum, Samples, _ExponentialFit
from channelfit.scoring.scorer import make_scorer
from support.schemes import recording_of

STEPS = Protocol.from_segments(
    [
        {"hold": 2},
        {"step": {"values": [-30, 0, 30]}, "for": 14},
        {"hold": {"values": [1, 3, 7]}},
        {"step": 10, "for": 8},
        {"ramp": [10, -90], "for": 6},
    ],
    holding=-90,
    sampling=0.05,
    name="pairs of pulses",
)
SECOND, FOURTH = Window(2), Window(4)
MEASURES = {
    "peak": Measure("peak", SECOND),
    "trough": Measure("trough", SECOND),
    "mean": Measure("mean", Window(2, -5.0)),
    "last": Measure("last", SECOND),
    "time to peak": Measure("time to peak", SECOND),
    "rise": Measure("rise", SECOND, (0.1, 0.9)),
    "half": Measure("rise", SECOND, (0.5,)),
    "fall": Measure("fall", SECOND, (0.95, 0.75)),
    "half decay": Measure("fall", SECOND, (0.7,)),
    "never": Measure("fall", Window(2, 0.0, 3.0), (0.9, 0.05)),
    "tau": Measure("tau", Window(2, 6.0)),
    "fast": Measure("tau", SECOND, (), 2, 1),
    "slow": Measure("tau", SECOND, (), 2, 2),
    "amplitude": Measure("amplitude", Window(2, 6.0)),
    "ramp": Measure("peak", Window(5)),
}

#: In windows of 20, 60 and 140 samples, in which currents decay.
TAILS = Protocol.from_segments(
    [{"hold": 2}, {"step": 20, "for": 3}, {"step": -20, "for": {"values": [1, 3, 7]}}],
    holding=-90,
    sampling=0.05,
)
RAGGED = (
    Measure("peak", Window(3)),
    Measure("fall", Window(3), (0.9, 0.8)),
    Measure("fall", Window(3), (0.3,)),
    Measure("trough", Window(3)),
    Measure("mean", Window(3)),
)


@cache
def model() -> ChannelModel:
    """Three states, of which the open one inactivates."""
    rows = {"a": 0.8, "b": 0.15, "c": 0.35, "d": 0.003, "g": 20.0, "s": 18.0}
    return build_model(
        {
            "name": "inactivating",
            "states": ["C", "O", "I"],
            "rates": {
                "C -> O": "a*exp(v/s)",
                "O -> C": "b*exp(-v/s)",
                "O -> I": "c",
                "I -> C": "d*exp(-v/30)",
            },
            "current": {"open": ["O"], "conductance": "g", "reversal": "50 mV"},
            "parameters": {
                name: {"range": [0.3 * value, 3 * value], "value": value}
                for name, value in rows.items()
            }
            | {"b": {"range": [0.01, 1], "value": 0.15, "fixed": True}},
        },
        "model.yaml",
    )


def observation(measure: Measure, seed: int = 0, **more: Any) -> Observation:
    draw = np.random.default_rng(seed)
    value, error = draw.uniform(1, 2, 3), draw.uniform(0.5, 1, 3)
    return Observation(measure, np.arange(3.0), value, error, **more)


def experiment(*observations: Observation, **more: Any) -> Experiment:
    return Experiment(STEPS, as_recording(observations), observations=observations, **more)


def own(problem: Problem, predicted: list[np.ndarray]) -> np.ndarray:
    """Predicted numbers of the first candidate in the units of the observations."""
    scales = [o.scale for e in problem.experiments for o in e.observations]
    return np.concatenate([one[:, :, 0] for one in predicted]) / np.array(scales)


# --- the numbers ----------------------------------------------------------------------------------


@cache
def fine(sweep: int, segment: int, h: float = 0.001) -> tuple[np.ndarray, np.ndarray]:
    """Times from the begin of a held segment and currents there, by expm."""
    p = dict(zip(model().parameter_names, [q.value for q in model().parameters], strict=True))

    def generator(v: float) -> np.ndarray:
        a = np.zeros((3, 3))
        a[1, 0], a[0, 1] = p["a"] * np.exp(v / p["s"]), p["b"] * np.exp(-v / p["s"])
        a[2, 1], a[0, 2] = p["c"], p["d"] * np.exp(-v / 30)
        return a - np.diag(a.sum(axis=0))

    x = np.linalg.lstsq(
        np.vstack([generator(-90.0), np.ones(3)]), np.array([0, 0, 0, 1.0]), rcond=None
    )[0]
    for k, one in enumerate(STEPS.sweeps[sweep], 1):
        v, lasts = float(one.voltage(np.array([one.start_ms]))[0]), one.end_ms - one.start_ms
        if k == segment:
            step, course = expm(generator(v) * h), []
            for _ in range(round(lasts / h)):
                course.append(p["g"] * x[1] * (v - 50.0))
                x = step @ x
            return np.arange(len(course)) * h, np.array(course)
        x = expm(generator(v) * lasts) @ x
    raise AssertionError


def crossed(t: np.ndarray, y: np.ndarray, level: float, after: int, before: bool) -> float:
    """When a fine course comes to a level: last before its peak, or first after it."""
    size = np.abs(y)
    some = np.flatnonzero((size[:-1] < level) != (size[1:] < level))
    k = some[some < after][-1] if before else some[some >= after][0]
    return float(t[k] + (level - size[k]) / (size[k + 1] - size[k]) * (t[k + 1] - t[k]))


def truth(name: str, sweep: int) -> float:
    """The same number from a course fifty times as fine, by other means."""
    t, y = fine(sweep, 2)
    top = int(np.abs(y).argmax())
    peak, level = y[top], abs(y[top])
    if name in ("peak", "trough"):
        return float(peak if name == "peak" else y[np.abs(y).argmin()])
    if name == "time to peak":
        return float(t[top])
    if name == "last":
        return float(y[-50])
    if name == "mean":
        return float(y[-5000::50].mean())
    if name in ("rise", "fall"):
        a, b = MEASURES[name].fractions
        up = name == "rise"
        return crossed(t, y, b * level, top, up) - crossed(t, y, a * level, top, up)
    if name == "half":
        return crossed(t, y, 0.5 * level, top, True)
    if name == "half decay":
        return crossed(t, y, 0.7 * level, top, False) - float(t[top])
    first, k = (6000, 1) if name in ("tau", "amplitude") else (0, 2)
    y, n = y[first::50], len(y[first::50])
    every = -(-n // 64)
    y, t = y[::every], 0.05 * every * np.arange(len(y[::every]))

    def course(t: np.ndarray, c: float, *more: float) -> np.ndarray:
        rows = zip(more[::2], more[1::2], strict=True)
        return c + sum(a * np.exp(-t / tau) for a, tau in rows)

    guess = [0.0, y[0], 2.0] if k == 1 else [0.0, y[0] - peak, 0.3, peak, 3.0]
    found = curve_fit(course, t, y, guess, maxfev=20000, ftol=1e-14, xtol=1e-14, gtol=1e-14)[0]
    place = {"tau": 2, "amplitude": 1, "fast": 2, "slow": 4}[name]
    return float(found[place])


#: Errors of samples 0.05 ms apart, as shares; a peak of a course of 1e-3 ms is itself off by 1e-6.
CLOSE = {"time to peak": 5e-4, "rise": 1e-4, "half": 1e-4, "fall": 1e-4, "half decay": 1e-3}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_numbers_are_those_of_a_fine_course(backend: str) -> None:
    names = [name for name in MEASURES if name not in ("never", "ramp")]
    problem = Problem(model(), (experiment(*(observation(MEASURES[name]) for name in names)),))
    scorer = make_scorer(problem, backend)
    found = own(problem, scorer.simulate(problem.values()[:, None]))
    for name, row in zip(names, found, strict=True):
        expected = [truth(name, k) for k in range(3)]
        assert row == pytest.approx(expected, rel=CLOSE.get(name, 1e-6)), name


def test_ratios_conductances_and_normalized_curves() -> None:
    peak, second = MEASURES["peak"], Measure("peak", FOURTH)
    problem = Problem(
        model(),
        (
            experiment(
                observation(peak),
                observation(second, relative_to=peak),
                observation(peak, reversal_mV=48.0),
                observation(peak, reversal_mV=48.0, normalize=-1),
                observation(peak, normalize=0),
            ),
        ),
    )
    found = own(problem, make_scorer(problem, "cpu").simulate(problem.values()[:, None]))
    one = np.array([truth("peak", k) for k in range(3)])
    two = [fine(k, 4)[1][np.abs(fine(k, 4)[1]).argmax()] for k in range(3)]
    conductance = one / (np.array([-30, 0, 30]) - 48.0)
    for row, expected in zip(
        found,
        (one, np.divide(two, one), conductance, conductance / conductance.max(), one / one[0]),
        strict=True,
    ):
        assert row == pytest.approx(expected, rel=2e-6)


def test_windows_may_be_of_unequal_length() -> None:
    """Against the trace itself."""
    rows = tuple(map(observation, RAGGED))
    problem = Problem(model(), (Experiment(TAILS, as_recording(rows), observations=rows),))
    found = own(problem, make_scorer(problem, "cpu").simulate(problem.values()[:, None]))
    whole = Problem(model(), (Experiment(TAILS),))
    traces = make_scorer(whole, "cpu").simulate(problem.values()[:, None])[0][:, :, 0]
    for k, lasts in enumerate((1, 3, 7)):
        size = np.abs(traces[k, 100 : 100 + 20 * lasts])
        assert (np.diff(size) < 0).all()
        peak, fall, late, trough, mean = np.abs(found[:, k])
        assert (peak, trough) == (pytest.approx(size[0]), pytest.approx(size[-1]))
        assert mean == pytest.approx(size.mean())
        times = [np.interp(-f * size[0], -size, 0.05 * np.arange(20 * lasts)) for f in (0.9, 0.8)]
        assert fall == pytest.approx(times[1] - times[0], rel=1e-3)
        share = size[-1] / size[0]
        beyond = lasts * (1 + share - 0.3)
        at = np.interp(-0.3 * size[0], -size, 0.05 * np.arange(20 * lasts))
        assert late == pytest.approx(at if share < 0.3 else beyond, rel=1e-3)


# --- derivatives ----------------------------------------------------------------------------------


def whole_problem() -> Problem:
    """All measures, ratios, missing numbers and weights; two cells with a conductance each."""
    rows = [observation(m, seed) for seed, m in enumerate(MEASURES.values())]
    peak = MEASURES["peak"]
    rows += [
        observation(Measure("peak", FOURTH), 20, relative_to=peak),
        observation(peak, 21, reversal_mV=48.0, normalize=-1),
        observation(peak, 22, normalize=1),
    ]
    rows[0].value[1] = np.nan
    ragged = tuple(observation(m, 23 + k) for k, m in enumerate(RAGGED))
    third = Experiment(TAILS, as_recording(ragged), 0.5, observations=ragged)
    return Problem(model(), (experiment(*rows), experiment(rows[2], *rows[4:8], weight=0.5), third))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_linearization_is_that_of_the_score(backend: str) -> None:
    problem = whole_problem()
    if backend == "reference":  # which is slow
        problem = replace(problem, experiments=problem.experiments[1:])
    _compare(problem, backend, 1 if backend == "reference" else 4)


def _compare(problem: Problem, backend: str, n: int) -> None:
    """Compare gradients with central differences, and Hessians with those of the residuals."""
    scorer = make_scorer(problem, backend)
    draw = np.random.default_rng(1)
    points = problem.values()[:, None] * draw.uniform(0.9, 1.1, (len(problem.parameters), n))
    local, score = scorer.linearize(points), scorer.score(points)
    assert (local.status == OK).all()
    assert local.cost == pytest.approx(score.cost, rel=1e-7)
    free = [k for k, p in enumerate(problem.parameters) if not p.fixed]
    weights = np.concatenate([e.weight * e.recording.weight.ravel() for e in problem.experiments])

    def residuals(at: np.ndarray) -> np.ndarray:
        found = np.concatenate([one.reshape(-1, n) for one in scorer.simulate(at)])
        return np.where(weights[:, None] > 0, found, 0.0)

    slopes = []
    for k in free:
        step = 1e-4 * points[k]
        parts = []
        for times in (-2, -1, 1, 2):
            moved = points.copy()
            moved[k] += times * step
            parts.append(residuals(moved))
        slopes.append((8 * (parts[2] - parts[1]) - (parts[3] - parts[0])) / (12 * step))
    jacobian = np.array(slopes)
    data = np.concatenate(
        [np.nan_to_num(e.recording.current_pA).ravel() for e in problem.experiments]
    )
    apart = residuals(points) - np.where(weights > 0, data, 0.0)[:, None]
    total = weights.sum()
    assert local.cost == pytest.approx((weights[:, None] * apart**2).sum(axis=0) / total, rel=1e-7)
    gradient = 2 / total * np.einsum("krn,r,rn->kn", jacobian, weights, apart)
    hessian = 2 / total * np.einsum("krn,r,lrn->kln", jacobian, weights, jacobian)
    scale = np.sqrt(np.einsum("kkn->kn", hessian))
    np.testing.assert_allclose(
        local.gradient[free] / scale,
        gradient / scale,
        rtol=0,
        atol=2e-5 * np.abs(gradient / scale).max(),
    )
    both = scale[:, None] * scale[None]
    np.testing.assert_allclose(local.hessian[free][:, free] / both, hessian / both, atol=2e-5)
    fixed = [k for k, p in enumerate(problem.parameters) if p.fixed]
    assert (local.gradient[fixed] == 0).all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_candidates_that_all_fail_have_no_slope(backend: str) -> None:
    """A thread may get none but these, on a computer of many cores."""
    problem = whole_problem()
    points = np.full((len(problem.parameters), 1), np.nan)
    local = make_scorer(problem, backend).linearize(points)
    assert np.isinf(local.cost).all()
    assert (local.status != OK).all()
    assert (local.gradient == 0).all()
    assert (local.hessian == 0).all()


def test_gpus_and_processors_observe_the_same(device: str) -> None:
    """By the same arithmetic, from currents that other kernels compute."""
    problem = whole_problem()
    points = problem.values()[:, None] * np.random.default_rng(2).uniform(0.9, 1.1, (6, 3))
    points[0, 1] = np.nan
    gpu, cpu = make_scorer(problem, "cuda"), make_scorer(problem, "cpu")
    ok = np.array([True, False, True])
    for one, other in ((gpu.score(points), cpu.score(points)),):
        assert ((one.status == OK) == ok).all()
        assert one.cost[ok] == pytest.approx(other.cost[ok], rel=1e-8)
        assert np.isinf(one.cost[~ok]).all()
    mine, theirs = gpu.linearize(points), cpu.linearize(points)
    for name in ("gradient", "hessian"):
        one, other = getattr(mine, name)[..., ok], getattr(theirs, name)[..., ok]
        assert np.abs(one - other).max() < 1e-6 * np.abs(other).max()
        assert (getattr(mine, name)[..., ~ok] == 0).all()


def test_recordings_and_observations_share_a_cost() -> None:
    """Of two cells with a conductance each; a standard error counts as the noise."""
    parameters = tuple(
        replace(p, per_cell=True) if p.name == "g" else p for p in model().parameters
    )
    cells = replace(model(), parameters=parameters)
    noisy = observation(MEASURES["peak"], noise_pA=5.0)
    recorded = Experiment(STEPS, recording_of(STEPS, 1), 2.0, "b")
    both = Problem(cells, (experiment(noisy, cell="a"), recorded))
    values = both.values()[:, None]
    scorer = make_scorer(both, "cpu")
    one, two = scorer.simulate(values)
    assert one.shape == (1, 3, 1)
    assert two.shape == (*recorded.recording.current_pA.shape, 1)
    apart = one[0, :, 0] / noisy.scale - noisy.value
    squares = 25.0 * np.sum((apart / noisy.error) ** 2)
    weight = 2.0 * recorded.recording.weight
    squares += np.nansum(weight * (two[:, :, 0] - recorded.recording.current_pA) ** 2)
    assert scorer.score(values).cost[0] == pytest.approx(squares / (3 + weight.sum()), rel=1e-9)
    assert total_weight(both) == pytest.approx(3 + weight.sum())
    assert n_scored(both) == 3 + np.count_nonzero(weight)
    local = scorer.linearize(values)
    assert local.cost == pytest.approx(scorer.score(values).cost, rel=1e-7)
    rows = [k for k, p in enumerate(both.parameters) if p.name.startswith("g[")]
    assert local.hessian[rows[0], rows[1], 0] == 0
    assert (local.hessian[rows, rows, 0] > 0).all()


def test_only_windows_are_sampled_and_pauses_are_one_step() -> None:
    """A train of pulses is as long to compute as its windows are."""
    train = Protocol.from_segments(
        [{"hold": 500}, *[{"step": 0, "for": 10}, {"hold": 490}] * 20, {"step": 0, "for": 10}],
        holding=-90,
        sampling=0.1,
    )
    windows = [Measure("peak", Window(2)), Measure("peak", Window(42))]
    row = Observation(windows[1], np.zeros(1), np.ones(1), np.ones(1), relative_to=windows[0])
    problem = Problem(model(), (Experiment(train, as_recording([row]), observations=(row,)),))
    scorer = make_scorer(problem, "cpu")
    tree = scorer.windows.scored  # type: ignore[attr-defined]
    assert len(tree.sample_mV) == 200
    assert len(tree.runs) < 50
    found = scorer.simulate(problem.values()[:, None])[0][0, 0, 0]
    whole = Problem(model(), (Experiment(train),))
    traces = make_scorer(whole, "cpu").simulate(problem.values()[:, None])[0][0, :, 0]
    last, first = (np.abs(traces[k : k + 100]).max() for k in (len(traces) - 100, 5000))
    assert found == pytest.approx(last / first, rel=1e-3)


def test_peaks_are_those_of_arrays() -> None:
    """The kernels of processors against the arithmetic that GPUs do, of random smooth currents."""
    draw = np.random.default_rng(4)
    t = np.arange(90.0)
    rates = draw.uniform(0.02, 0.5, (2, 7, 6, 1))
    y = draw.normal(size=(7, 6, 1)) * np.exp(-rates[0] * t) - np.exp(-rates[1] * t)
    n = np.array([90, 5, 40, 90, 8, 60])
    y = np.where(np.arange(90) < n[:, None], y, 0.0)
    samples = Samples(y, n, np.zeros(6), 0.05 * n, np.full(6, 0.05))
    crossed = []
    for smallest in (False, True):
        one = Extremum.of(samples, smallest)
        other = Extremum.by_arrays(samples, one.k, smallest)
        for name in ("u", "value", "time", "at_edge"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-9)
        np.testing.assert_array_equal(one.local.first, other.local.first)
        if smallest:
            continue
        for fraction, before in (
            (0.9, True),
            (0.5, True),
            (0.9, False),
            (0.2, False),
            (0.01, False),
        ):
            crosses, local, u = one.crossing_by_arrays(fraction, before)
            given = (y, n, one.k, one.value, fraction, before, _COEFFICIENTS)
            found = found_crossings(*given)
            np.testing.assert_array_equal(found[0], crosses)
            np.testing.assert_array_equal(found[1][crosses], local.first[crosses])
            np.testing.assert_allclose(found[3][crosses], u[crosses], atol=1e-9)
            crossed.append(crosses.mean())
    assert 0.1 < np.mean(crossed) < 0.9


@pytest.mark.parametrize("k", [1, 2])
def test_exponentials_are_those_of_arrays(k: int) -> None:
    """The kernel of processors against the arithmetic that GPUs do, of noisy exponentials."""
    draw, t = np.random.default_rng(k), np.arange(50.0)
    taus = np.array([2.0, 15.0])[-k:] * draw.uniform(0.7, 1.4, (60, k))
    amplitudes = draw.uniform(0.5, 2, (60, k))
    y = (amplitudes[:, :, None] * np.exp(-t / taus[:, :, None])).sum(axis=1)
    y += draw.uniform(-1, 1, (60, 1)) + 1e-3 * draw.standard_normal((60, 50))
    y[0] = 0.0
    fit = _ExponentialFit(y, k)
    found = fit.q
    other = np.sort(fit.by_arrays(), axis=1)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[1:], other[1:], atol=1e-7)
    np.testing.assert_allclose(np.exp(found[1:]), np.sort(taus, axis=1)[1:], rtol=0.1)
