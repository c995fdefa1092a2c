"""Every backend against the reference, and both against what is known exactly."""

from __future__ import annotations

from functools import partial

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR, ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.reading.errors import InputError
from channelfit.scoring import cpu
from channelfit.scoring.kernels.cpu_source import CpuSource
from channelfit.scoring.kernels.lanes import LOOPED_STATES
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.reference_matrices import propagator, steady_state
from channelfit.scoring.scorer import PATHS, make_scorer
from support.schemes import (
    N_CANDIDATES,
    PROTOCOLS,
    SHIPPED,
    any_scheme,
    candidates,
    from_yaml,
    largest_error,
    model_named,
    recording_of,
    scored,
    simulated,
    truth_of,
)
from support.truths import slow_but

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


#: A scheme and gates by each backend, a single state; float32 differs by one word of the text.
QUICK = [
    *(("cpu", name, "float64") for name in ("model_b", "na_hh", "leak")),
    *(("cpu", name, "float32") for name in ("model_a", "herg_beattie")),
    *(("played", name, "float64") for name in ("model_b", "k_hh_gate")),
    *(("played", name, "float32") for name in ("model_a", "na_hh")),
]


EVERY = [
    (kind, name, dtype)
    for kind in ("cpu", "played")
    for name in [*SHIPPED, "cycle", "leak"]
    for dtype in ("float64", "float32")
]


ON_A_GPU = [
    pytest.param("real", *case[1:], marks=pytest.mark.gpu) for case in EVERY if case[0] == "cpu"
]


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("backend", "name", "dtype"), [*slow_but(QUICK, EVERY), *ON_A_GPU], indirect=["backend"]
)
def test_currents_and_costs_equal_the_reference(backend: str, name: str, dtype: str) -> None:
    problem, (cost, status, by_currents, *truth) = scored(name), truth_of(name)
    parameters = candidates(problem.model, N_CANDIDATES, seed=1)
    scorer = make_scorer(problem, backend, dtype)
    assert scorer.path == "stepping"
    least = 1e-6 if dtype == "float64" else 1e-3
    pairs = zip(PROTOCOLS, scorer.simulate(parameters), truth, strict=True)
    errors = {key: largest_error(a, b, least) for key, a, b in pairs}
    assert max(errors.values()) < TOLERANCE[dtype], errors
    score = scorer.score(parameters)
    assert (score.status == OK).all()
    assert np.array_equal(status, score.status)
    assert score.cost == pytest.approx(by_currents, rel=TOLERANCE[dtype])
    assert cost == pytest.approx(by_currents, rel=1e-12)
    assert scorer.rescore(parameters).cost == pytest.approx(cost, rel=1e-9)


KINDS = ["cpu", "played", pytest.param("real", marks=pytest.mark.gpu)]
GENERATED = [
    *(("cpu", "float64"), ("played", "float64")),
    pytest.param("played", "float32", marks=pytest.mark.slow),
    pytest.param("real", "float64", marks=pytest.mark.gpu),
    pytest.param("real", "float32", marks=pytest.mark.gpu),
]

# --- generated code against the reference --------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", *KINDS], indirect=True)
def test_any_number_of_candidates(backend: str) -> None:
    problem = scored("model_a")
    scorer = make_scorer(problem, backend)
    parameters = candidates(problem.model, 17)
    all_costs = scorer.score(parameters).cost
    for n in (0, 1, 2, 16):
        score = scorer.score(parameters[:, :n])
        assert score.cost.shape == score.status.shape == (n,)
        assert score.status.dtype == np.int8
        assert score.cost == pytest.approx(all_costs[:n], rel=1e-12 if backend == "cuda" else 0)
        shapes = [out.shape for out in scorer.simulate(parameters[:, :n])]
        assert shapes == [(p.n_sweeps, p.n_times_max, n) for p in PROTOCOLS.values()]


def test_a_family_alone_and_in_company_gives_the_same_currents() -> None:
    """Common beginnings are simulated once; that must not show."""
    parameters = candidates(model_named("cycle"), 5)
    together = make_scorer(simulated("cycle", *PROTOCOLS.values()), "cpu").simulate(parameters)
    for protocol, current in zip(PROTOCOLS.values(), together, strict=True):
        if protocol.carry_over:
            continue
        for k, sweep in enumerate(protocol.sweeps):
            lone = Protocol("one", protocol.holding_mV, protocol.sampling_ms, (sweep,))
            alone = make_scorer(simulated("cycle", lone), "cpu").simulate(parameters)[0][0]
            n = protocol.n_times(k)
            assert alone == pytest.approx(current[k, :n], rel=1e-12, abs=1e-12)


# --- schemes of many states, whose kernels are loops ----------------------------------------------

#: No multiple of what loops take at once: rows of three states, the last open, times a gate.
MANY = 21


def ladder(inactivates: bool, many: int = MANY) -> ChannelModel:
    """Rows of three states; `leap` is a rate of which only its ratio to others is seen."""
    rates = {}
    for k in range(many - 1):
        if k % 3 < 2:
            rates[f"S{k} -> S{k + 1}"] = f"a*exp(z*v)*{1 + k % 5}"
            rates[f"S{k + 1} -> S{k}"] = f"b*exp(-z*v)*{1 + k % 4}"
        if k < many - 3:
            rates[f"S{k} -> S{k + 3}"] = "leap" if k == 7 else f"c*{1 + k % 3}"
            rates[f"S{k + 3} -> S{k}"] = "0.3*leap" if k == 7 else f"c*exp(-z*v/{2 + k % 3})"
    ranges = {"a": (0.3, 3), "b": (0.1, 1), "c": (0.3, 3), "z": (0.01, 0.05), "leap": (1, 1e13)}
    document = {
        "name": "ladder",
        "states": [f"S{k}" for k in range(many)],
        "rates": rates,
        "current": {
            "open": {"S8": 0.25, f"S{many - 1}": 1.0},
            "conductance": "100",
            "reversal": "-90 mV",
        },
        "parameters": {
            key: {"range": list(ends), "scale": "log", "value": ends[0]}
            for key, ends in ranges.items()
        },
    }
    gate = {"h": {"inf": "1/(1 + exp((v + 40)/7))", "tau": "20"}}
    return build_model({**document, **({"gates": gate} if inactivates else {})}, None)


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("inactivates", "dtype"),
    slow_but([(True, "float64")], [(True, "float64"), (False, "float32")]),
)
def test_many_states_equal_the_reference(
    inactivates: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held and moving, at rates from slow to unseen; and no index of the loops strays."""
    protocols = [PROTOCOLS[key] for key in ("steps", "short segments")]
    recorded = tuple(Experiment(p, recording_of(p, k)) for k, p in enumerate(protocols))
    problem = Problem(ladder(inactivates), recorded)
    parameters = candidates(problem.model, 5, seed=4)
    scorer = make_scorer(problem, "cpu", dtype)
    truth = ReferenceScorer(problem).simulate(parameters)
    for test, true in zip(scorer.simulate(parameters), truth, strict=True):
        assert largest_error(test, true) < TOLERANCE[dtype]
    assert MANY >= LOOPED_STATES
    monkeypatch.setattr(cpu, "generated", partial(generated, checked=True))
    squares = weight = 0.0
    for experiment, true in zip(recorded, truth, strict=True):
        r = true - experiment.recording.current_pA[..., None]
        squares += np.nansum(experiment.recording.weight[..., None] * r**2, axis=(0, 1))
        weight += experiment.recording.weight.sum()
    cost = scorer.score(parameters).cost
    assert cost == pytest.approx(squares / weight, rel=TOLERANCE[dtype])


@pytest.mark.integration
@pytest.mark.parametrize("n", range(2, 8))
def test_any_scheme_has_the_costs_of_the_reference_on_every_path(n: int) -> None:
    """Also where occupancies oscillate, and where rates lie eight decades apart."""
    protocol, checked = PROTOCOLS["steps"], 0
    for seed in range(6):
        try:
            model = any_scheme(n, 100 * n + seed)
        except InputError:  # a state that is never left or reached
            continue
        problem = Problem(model, (Experiment(protocol, recording_of(protocol, seed)),))
        values = candidates(model, 16, seed=seed)
        true = ReferenceScorer(problem).score(values)
        for path in PATHS:
            try:
                scorer = make_scorer(problem, "cpu", path=path)
            except InputError:  # this scheme cannot be scored so
                continue
            checked += 1
            for way in (scorer.score, scorer.preview, scorer.rescore, scorer.linearize):
                found = way(values)
                assert np.array_equal(found.status, true.status)
                np.testing.assert_allclose(found.cost, true.cost, rtol=1e-8)
    assert checked > 5


def test_text_grows_with_the_transitions_alone() -> None:
    """Rows written out for 60 states would be four times those for 30, and compile for a minute."""
    small, large = (len(CpuSource(ladder(False, many)).text) for many in (30, 60))
    assert large < 2.2 * small


#: Rates that overflow on their way to a value that is finite, or to a slope of 0.
SATURATED = [
    "1/(1 + exp(u))",
    "2 + tanh(u)",
    "(1 + exp(u))**-0.3",
    "0.1 + 1/exprel(abs(u))",
    "0.1 + 1/(exp(u) + exp(-u))",
    "0.1 + exp(-exp(u))",
    "0.1 + 1/(1 + exp(u))**2",
    "0.1 + 2**-abs(u)",
    "0.1 + log(1 + exp(-abs(u)))",
]


@pytest.mark.parametrize("backend", KINDS, indirect=True)
def test_what_overflows_within_a_rate_is_the_references(backend: str) -> None:
    """Scores and gradients of a star of states; and exp(u)/(1 + exp(u)) overflows in all alike."""
    rates = {f"C -> S{k}": text for k, text in enumerate(SATURATED)}
    rates |= {f"S{k} -> C": "0.3" for k in range(len(SATURATED))}
    document = {
        "name": "star",
        "states": ["C", *(f"S{k}" for k in range(len(SATURATED)))],
        "rates": rates,
        "current": {
            "open": {f"S{k}": 1 / (2 + k) for k in range(len(SATURATED))},
            "conductance": "100",
            "reversal": "-90 mV",
        },
        "parameters": {"u": {"range": [-1e5, 1e5], "value": 1}},
    }
    protocol = from_yaml(segments=[{"step": 20, "for": 3}])
    experiment = Experiment(protocol, recording_of(protocol, 0))
    u = np.array([0.5, 20, 300, 340, 360, 700, 708.5, 709.4, 710, 745, 1e3, 1e4])
    parameters = np.concatenate([u, -u])[None]
    of_model = Problem(build_model(document, None), (experiment,))
    truth, test = (make_scorer(of_model, name) for name in ("reference", backend))
    cost = truth.score(parameters).cost
    assert np.isfinite(cost).all()
    assert test.score(parameters).cost == pytest.approx(cost, rel=1e-9)
    slopes, expected = test.linearize(parameters), truth.linearize(parameters)
    assert slopes.cost == pytest.approx(cost, rel=1e-9)
    assert slopes.gradient[0] == pytest.approx(expected.gradient[0], rel=1e-5, abs=1e-7)
    both = build_model({**document, "rates": {**rates, "C -> S0": "exp(u)/(1 + exp(u))"}}, None)
    for scorer in (
        make_scorer(Problem(both, (experiment,)), name) for name in ("reference", backend)
    ):
        assert (
            scorer.score(parameters).status == np.where(parameters[0] > 709.5, NOT_FINITE, OK)
        ).all()


@pytest.mark.parametrize("backend", KINDS, indirect=True)
def test_rates_that_switch_within_a_millivolt_are_the_references(backend: str) -> None:
    """SymPy writes exp(-(v + 40)/0.024) as a product of which one number is below all floats."""
    document = {
        "name": "switch",
        "states": ["C", "O"],
        "rates": {"C -> O": "1/(1 + exp(-(v + 40)/a))", "O -> C": "0.1 + exp(40*v - 900)"},
        "definitions": {"a": "0.024"},
        "current": {"open": "O", "conductance": "g", "reversal": "-90 mV"},
        "parameters": {"g": {"range": [1, 1e3], "value": 10}},
    }
    protocol = from_yaml(segments=[{"step": v, "for": 3} for v in (-60, -40.01, -39.97, 0, 20, 25)])
    problem = Problem(build_model(document, None), (Experiment(protocol),))
    truth, test = (make_scorer(problem, name) for name in ("reference", backend))
    currents = truth.simulate(np.array([[10.0]]))[0]
    assert np.isfinite(currents).all()
    assert test.simulate(np.array([[10.0]]))[0] == pytest.approx(currents, rel=1e-9, abs=1e-9)


# --- independence of candidates ------------------------------------------------------------------

#: One thing wrong with a candidate, and what it is; at the ceiling a rate is an ordinary one.
SPOILED = {
    1: ("k3", -1.0, NOT_FINITE),  # sqrt of it is NaN
    2: ("k4", -1.0, NEGATIVE_RATE),
    4: ("k1", np.nan, NOT_FINITE),
    6: ("g", np.nan, NOT_FINITE),
    7: ("g", np.inf, NOT_FINITE),
    9: ("k2", np.inf, OK),
}


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("reference", "float64"), *GENERATED],
    indirect=["backend"],
)
def test_a_bad_candidate_leaves_its_neighbors_alone(backend: str, dtype: str) -> None:
    problem = scored("cycle")
    if backend == "reference":
        problem = Problem(problem.model, problem.experiments[:3])
    scorer = make_scorer(problem, backend, dtype)
    good = candidates(problem.model, 11, seed=2)
    bad = good.copy()
    for k, (name, value, _) in SPOILED.items():
        bad[problem.model.parameter_names.index(name), k] = value
    failed = {k: status for k, (_, _, status) in SPOILED.items() if status != OK}
    clean, mixed = scorer.score(good), scorer.score(bad)
    assert {k: s for k, s in enumerate(mixed.status) if s != OK} == failed
    assert np.isinf(mixed.cost[list(failed)]).all()
    assert np.isfinite(mixed.cost[9])
    others = [k for k in range(11) if k not in SPOILED]
    assert np.array_equal(mixed.cost[others], clean.cost[others])
    for a, b in zip(scorer.simulate(good), scorer.simulate(bad), strict=True):
        assert np.array_equal(a[..., others], b[..., others], equal_nan=True)
        assert np.isnan(b[..., list(failed)]).all()


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_but(
        [("cycle", "float64"), ("na_hh", "float32")],
        [("cycle", "float64"), ("na_hh", "float32"), ("na_markov", "float64")],
    ),
)
def test_order_and_threads_do_not_change_a_bit(name: str, dtype: str) -> None:
    problem, n = scored(name), 50
    scorer = make_scorer(problem, "cpu", dtype)
    parameters = candidates(problem.model, n, seed=3)
    cost = scorer.score(parameters).cost
    order = np.random.default_rng(0).permutation(n)
    assert np.array_equal(scorer.score(parameters[:, order]).cost, cost[order])
    assert scorer.score(parameters[:, -1:]).cost[0] == cost[-1]
    for n_threads in (1, 2, 5):
        scorer.n_threads = n_threads  # type: ignore[attr-defined]
        assert np.array_equal(scorer.score(parameters).cost, cost)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    GENERATED,
    indirect=["backend"],
)
@pytest.mark.parametrize("name", ["cycle", "herg_beattie"])
def test_absurd_rates_are_bounded_alike(backend: str, dtype: str, name: str) -> None:
    problem = scored(name)
    parameters = np.repeat(problem.model.values()[:, None], 5, axis=1)
    tolerance = TOLERANCE[dtype]
    if name == "cycle":
        names = problem.model.parameter_names
        parameters[names.index("z")] = [5.0, -5.0, 0.0, 0.0, 3.0]  # exp(+-400) at -80 mV
        parameters[:6, 2], parameters[:6, 3] = 1e120, 0.0  # all at the ceiling, all at the floor
        parameters[names.index("k1"), 4] = 0.0  # nothing, times what float32 cannot hold
    else:  # gates follow or stand still
        parameters[[0, 2, 4, 6], :2] = [1e30, 1e-40]
        parameters[[1, 3, 5, 7], 2:4] = 4.0, -4.0
        # Rates that change fifty-fold in a step leave the quadrature nothing but its sense.
        tolerance = max(1e-4, tolerance)
    truth = make_scorer(problem, "reference").score(parameters)
    test = make_scorer(problem, backend, dtype).score(parameters)
    assert (test.status == OK).all()
    assert (truth.status == OK).all()
    assert test.cost == pytest.approx(truth.cost, rel=tolerance)


# --- exact solutions -----------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("backend", ["reference", "cpu"])


@BOTH
def test_two_states_relax_exponentially(backend: str) -> None:
    model = model_named("model_a")
    protocol = from_yaml(segments=[{"hold": 0.5}, {"step": 20, "for": 30}])
    a, z, b, y, g = 0.05, 0.05, 0.04, 0.03, 5.0
    parameters = np.array([[a], [z], [b], [y], [g]])
    current = make_scorer(simulated("model_a", protocol), backend).simulate(parameters)[0][0, :, 0]

    def limit_and_rate(v: float) -> tuple[float, float]:
        up, down = a * np.exp(z * v), b * np.exp(-y * v)
        return up / (up + down), up + down

    (start, _), (end, rate) = limit_and_rate(-80.0), limit_and_rate(20.0)
    t = protocol.times_ms
    is_open = np.where(t < 0.5, start, end + (start - end) * np.exp(-rate * (t - 0.5)))
    volts = np.where(t < 0.5, -80.0, 20.0)
    assert model.parameter_names == ("a12", "z12", "a21", "z21", "gmax")
    assert current == pytest.approx(g * is_open * (volts + 100), rel=1e-12)


def rates_at(model: ChannelModel, values: np.ndarray, v: float) -> list[np.ndarray]:
    """Generator of every chain at one voltage, put together without any backend."""
    scope: dict[str, object] = {**dict(zip(model.parameter_names, values, strict=True)), "v": v}
    for name, expression in model.definitions:
        scope[name] = evaluate(expression, scope)  # type: ignore[arg-type]
    out = []
    for chain in model.chains:
        a = np.zeros((len(chain.states),) * 2)
        for t in chain.transitions:
            i, j = chain.states.index(t.source), chain.states.index(t.target)
            rate = float(np.clip(evaluate(t.rate, scope), RATE_FLOOR, RATE_CEILING))  # type: ignore[arg-type]
            a[j, i] += t.multiplicity * rate
            a[i, i] -= t.multiplicity * rate
        out.append(a)
    return out


def solved(model: ChannelModel, values: np.ndarray, protocol: Protocol) -> np.ndarray:
    """(n_times,) pA of a first sweep by a general solver, rtol 1e-11, segment by segment."""
    sizes = [len(c.states) for c in model.chains]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    y = np.concatenate([null_vector(a) for a in rates_at(model, values, protocol.holding_mV)])
    t_all, volts, opened = protocol.times_ms, protocol.command()[0], np.empty(protocol.n_times(0))
    for segment, (a, b) in zip(protocol.sweeps[0], protocol.sample_ranges(0), strict=True):

        def slope(t: float, y: np.ndarray, segment: Segment = segment) -> np.ndarray:
            generators = rates_at(model, values, float(segment.voltage(np.array([t]))[0]))
            return np.concatenate([g @ y[p] for g, p in zip(generators, parts, strict=True)])

        ends = (segment.start_ms, segment.end_ms)
        at = np.append(np.clip(t_all[a:b], *ends), segment.end_ms)
        ys = solve_ivp(slope, ends, y, "LSODA", at, rtol=1e-11, atol=1e-14, max_step=1.0).y
        y, opened[a:b] = ys[:, -1], 1.0
        for chain, part in zip(model.chains, parts, strict=True):
            opened[a:b] *= (np.array(chain.conductances) @ ys[part, :-1]) ** chain.power
    scope = dict(zip(model.parameter_names, values, strict=True))
    g, e = float(evaluate(model.conductance, scope)), float(evaluate(model.reversal, scope))
    return np.asarray(g * opened * (volts - e))


def null_vector(a: np.ndarray) -> np.ndarray:
    """Steady state by a least-squares solution of A p = 0, sum p = 1."""
    stacked = np.vstack([a / np.abs(a).max(), np.ones(len(a))])
    right = np.append(np.zeros(len(a)), 1.0)
    return np.asarray(np.linalg.lstsq(stacked, right, rcond=None)[0])


@BOTH
def test_an_irreversible_cycle_against_a_general_solver(backend: str) -> None:
    model = model_named("cycle")
    values = np.array([0.8, 1.7, 0.9, 1e-12, 1e-12, 1e-12, 0.01, 3.0])
    protocol = from_yaml(
        segments=[{"hold": 1}, {"step": 30, "for": 8.03}, {"ramp": [30, -60], "for": 4}]
    )
    truth = solved(model, values, protocol)
    current = make_scorer(simulated("cycle", protocol), backend).simulate(values[:, None])[0]
    assert np.abs(current[0, :, 0] - truth).max() / np.abs(truth).max() < 1e-8


def test_steady_state_against_many_digits() -> None:
    """Relative accuracy of every occupancy, rates over 34 decades."""
    rng = np.random.default_rng(5)
    with mpmath.workdps(300):
        for n in (1, 2, 3, 5, 9):
            rates = 10.0 ** rng.uniform(-30, 4, (n, n)) * (1 - np.eye(n))
            a = mpmath.matrix(rates.tolist())
            for k in range(n):
                a[k, k] = -mpmath.fsum(a[j, k] for j in range(n) if j != k)
            a[n - 1, :] = mpmath.ones(1, n)  # in place of one row: occupancies add up to 1
            exact = mpmath.lu_solve(a, mpmath.matrix([0] * (n - 1) + [1]))
            assert steady_state(rates) == pytest.approx([float(x) for x in exact], rel=1e-14, abs=0)


def test_propagator_against_forty_digits() -> None:
    """500 samples of 0.1 ms with rates up to the ceiling: the truth is true to 1e-13."""
    rng = np.random.default_rng(6)
    with mpmath.workdps(40):
        for n in (2, 3, 5, 6):
            rates = 10.0 ** rng.uniform(-6, 4, (n, n)) * (1 - np.eye(n))
            if n == 5:  # a chain of states, with rates down to the floor
                near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) == 1
                rates = 10.0 ** rng.uniform(-30, 4, (n, n)) * near
            a = mpmath.matrix(rates.tolist())
            for k in range(n):
                a[k, k] = -mpmath.fsum(a[j, k] for j in range(n) if j != k)
            exact = mpmath.expm(a * mpmath.mpf(0.1) / 2**14, method="taylor")
            for _ in range(14):
                exact = exact * exact
            p, x = mpmath.matrix([1] + [0] * (n - 1)), np.eye(n)[0]
            own = propagator(0.1 * rates[None])[0]
            for _ in range(500):
                p, x = exact * p, own @ x
                assert np.abs(x - np.array([float(v) for v in p])).max() < 1e-13


# --- moving voltage ------------------------------------------------------------------------------

#: Rates of the circle from 0.001 to 0.01 /ms on a ramp from -60 to -30 mV: no state empties in a
#: step of 16 ms, so no candidate is stiff and every step is a single one.
GENTLE = np.array(
    [0.003 * np.exp(2.25), 0.002, 0.003, 0.001, 0.002 * np.exp(-2.25), 0.001, 0.05, 1]
)


def sampled_ramp(h: float) -> Protocol:
    """One step a sample (1 mV or less), so a finer sampling is a finer step; same ramp."""
    ramp = (Segment(0.0, 480.0, Ramp(-60.0, -30.0)), Segment(480.0, 496.0, Constant(-30.0)))
    return Protocol("ramp", -60.0, h, (ramp,))


def slow_gate() -> np.ndarray:
    """k_hh_gate, thirty times slower, so that a step of 16 ms resolves it."""
    model = model_named("k_hh_gate")
    values = model.values()
    for name in ("a1", "b1"):
        values[model.parameter_names.index(name)] /= 30
    return values


@BOTH
@pytest.mark.parametrize("name", ["cycle", "k_hh_gate"])
def test_the_integrator_is_of_order_four(name: str, backend: str) -> None:
    parameters = (GENTLE if name == "cycle" else slow_gate())[:, None]
    currents = []
    for h in (16.0, 8.0, 4.0, 2.0, 0.5):
        problem = simulated(name, sampled_ramp(h))
        current = make_scorer(problem, backend).simulate(parameters)[0][0, :, 0]
        currents.append(current[:: round(16 / h)][:31])
    errors = [np.abs(c - currents[-1]).max() for c in currents[:-1]]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 4) < 0.2), orders


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["na_hh", "herg_markov"],
        ["herg_beattie", "herg_markov", "k_hh", "na_hh", "na_nav15", "na_markov"],
    ),
)
def test_discretization_of_a_sine_wave(name: str) -> None:
    """The hERG sine wave's voltage, 0.1 ms a sample, against a general solver."""
    terms = [{"amplitude": a, "omega": w} for a, w in ((54, 0.007), (26, 0.037), (10, 0.19))]
    sines = {"offset": -30, "terms": terms, "origin": -475}
    steps = [{"step": 40, "for": 5}, {"step": -80, "for": 20}]
    protocol = from_yaml(segments=[*steps, {"sines": sines, "for": 100}])
    model = model_named(name)
    truth = solved(model, model.values(), protocol)
    current = make_scorer(simulated(name, protocol), "cpu").simulate(model.values()[:, None])[0]
    assert np.abs(current[0, :, 0] - truth).max() / np.abs(truth).max() < 1e-6


# --- gates and schemes ---------------------------------------------------------------------------


#: Held voltage is exact, so gates and scheme agree to rounding. Where the voltage moves they are
#: integrated by different methods of order four and agree as far as each is accurate.
HELD, MOVING = ("steps", "unequal sweeps", "carry over"), ("off the grid", "ramp", "sines")
GATES_AND_SCHEME = {True: (HELD, 1e-12), False: (MOVING, 1e-3)}


@pytest.mark.parametrize(
    ("name", "held"),
    slow_but(
        [("na_hh", True), ("herg_beattie", True), ("k_hh_gate", False)],
        [(n, held) for n in ("na_hh", "k_hh_gate", "herg_beattie") for held in (True, False)],
    ),
)
def test_gates_equal_their_expanded_scheme(name: str, held: bool) -> None:
    kinds, tolerance = GATES_AND_SCHEME[held]
    protocols = [PROTOCOLS[k] for k in kinds]
    model = model_named(name)
    parameters = candidates(model, 8, seed=4)
    parameters[model.parameter_names.index(str(model.conductance))] = 1.0
    # Rates of herg_beattie change e-fold in 2.5 mV: both methods need fine steps on these commands.
    gates = ReferenceScorer(simulated(name, *protocols), refine=8).simulate(parameters)
    scheme = Problem(model.expanded(), tuple(Experiment(p) for p in protocols))
    for a, b in zip(gates, ReferenceScorer(scheme, refine=8).simulate(parameters), strict=True):
        assert np.nanmax(np.abs(a - b)) < tolerance * 100  # open probability times 100 mV


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "dtype", "message"),
    [
        ("reference", "float32", "float64 only, not float32"),
        ("gpu", "float64", 'backend "gpu" is not one of auto, reference, cpu'),
        ("cpu", "float16", 'dtype "float16" is not one of float64, float32'),
    ],
)
def test_backends_and_dtypes_that_are_refused(backend: str, dtype: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_scorer(simulated("leak", PROTOCOLS["steps"]), backend, dtype)


@pytest.mark.parametrize("backend", ["reference", *KINDS], indirect=True)
def test_what_cannot_be_scored_is_refused(backend: str) -> None:
    scorer = make_scorer(simulated("leak", PROTOCOLS["steps"]), backend)
    for call in (scorer.score, scorer.linearize):
        with pytest.raises(InputError, match="nothing to score"):
            call(np.ones((2, 1)))
    for shape in ((3, 1), (2,), (1, 2)):
        with pytest.raises(ValueError, match="parameters must be"):
            scorer.simulate(np.ones(shape))
