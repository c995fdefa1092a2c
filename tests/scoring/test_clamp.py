"""The clamp as a part of the model: against SciPy, NEURON, the ideal clamp, and differences."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy
from click.testing import CliRunner
from scipy import signal
from scipy.integrate import solve_ivp

import channelfit as cf
from channelfit import InputWarning
from channelfit.front.kinds import load_plan
from channelfit.front.main import main
from channelfit.model.channel import ChannelModel, Parameter
from channelfit.model.model_file import build_model
from channelfit.problem.clamp import Clamp, LowPass, read_clamp
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK, OUT_OF_CLAMP
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.scoring.clamp import ClampScorer
from channelfit.scoring.kernels.clamp_cuda import ClampCudaSource
from channelfit.scoring.layout.clamp_grid import LEVELS
from channelfit.scoring.layout.low_pass import N_POLY, bessel_poles, modes, step_tables
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.kernel_math import bernoulli, bernoulli_slope
from channelfit.scoring.membrane import membrane_potentials
from channelfit.scoring.neuron import mechanisms
from channelfit.scoring.reference_clamp import ClampReference
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import simulate_surrogate
from support.cuda_host import compile_with_nvrtc
from support.places import ROOT
from support.schemes import model_named
from support.truths import slow_but

STEP = Protocol.steps([-10], duration=1.2, holding=-100, sampling=0.02)
STEPS = Protocol.steps([-30, 10], duration=3, holding=-100, sampling=0.05)
#: Name, value and unit of every quantity of a clamp.
QUANTITIES = (
    ("series_resistance", 5.0, "MOhm"),
    ("membrane_capacitance", 20.0, "pF"),
    ("pipette_capacitance", 3.0, "pF"),
    ("fraction", 0.7, ""),
    ("prediction", 0.5, ""),
    ("lag", 0.01, "ms"),
    ("cancellation", 0.4, ""),
    ("leak_conductance", 1.0, "nS"),
    ("leak_reversal", -10.0, "mV"),
    ("offset", 2.0, "mV"),
    ("delay", 0.033, "ms"),
)
FULL = {name: sympy.Float(value) for name, value, _ in QUANTITIES}
PLAIN = {name: FULL[name] for name in ("series_resistance", "membrane_capacitance")}
#: That of most tests, which so have one kernel.
FOUR_POLES = LowPass(4, 5.0)


def clamped(
    model: ChannelModel, protocol: Protocol, low_pass: LowPass | None = None, **q: Any
) -> Problem:
    return Problem(model, (Experiment(protocol, clamp=Clamp(**q, low_pass=low_pass)),))


def fitted_clamp(model: ChannelModel, low_pass: LowPass | None) -> tuple[ChannelModel, Clamp]:
    """A model in which every quantity of the clamp is a parameter."""
    extra = [
        Parameter(name, unit, -abs(x) if name == "leak_reversal" else 0.0, 2 * abs(x), value=x)
        for name, x, unit in QUANTITIES
    ]
    names = {p.name: sympy.Symbol(p.name, real=True) for p in extra}
    whole = replace(model, parameters=(*model.parameters, *extra))
    return whole, Clamp(**names, low_pass=low_pass)


def with_all(
    channel: str | ChannelModel, protocol: Protocol, low_pass: LowPass | None = None
) -> Problem:
    """Surrogate data of a model with every quantity free."""
    own = model_named(channel) if isinstance(channel, str) else channel
    model, clamp = fitted_clamp(own, low_pass)
    problem = Problem(model, (Experiment(protocol, clamp=clamp),))
    return simulate_surrogate(problem, ClampScorer(problem), 20.0, 1)


def moving() -> Protocol:
    sines = {"offset": -40, "terms": [{"amplitude": 30, "frequency": "0.4 kHz"}]}
    segments = [
        {"hold": 0.5},
        {"ramp": [-90, 20], "for": 2},
        {"step": {"values": [0, -30]}, "for": 1},
        {"sines": sines, "for": 2},
    ]
    between = {"carry_over": True, "rest": "3 ms"}
    command = {"holding": -90, "sampling": 0.05, "between_sweeps": between, "segments": segments}
    return build_protocol(command, None)


# --- against other integrators -------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("name", "protocol", "quantities", "low_pass"),
    slow_but(
        [("na_hh", STEP, PLAIN, None)],
        [
            ("na_hh", STEP, PLAIN, None),
            ("na_hh", STEP, FULL, LowPass(2, 5.0)),
            ("na_hh", moving(), FULL, None),
            ("herg_markov", STEP, FULL, None),
            ("several terms", STEP, PLAIN, None),
        ],
    ),
)
def test_currents_are_those_of_the_whole_equations(
    name: str, protocol: Protocol, quantities: dict[str, Any], low_pass: LowPass | None
) -> None:
    problem = clamped(channel_named(name), protocol, low_pass, **quantities)
    values = problem.model.values()[:, None]
    scorers = [make_scorer(problem, backend) for backend in ("cpu", "reference")]
    ours, truth = (scorer.simulate(values)[0] for scorer in scorers)
    assert isinstance(scorers[1], ClampReference)
    assert abs(ours - truth).max() < 1e-4 * abs(truth).max()


@pytest.mark.parametrize(
    ("rest_ms", "at_mV", "ends_mV", "late"),
    [
        (200.0, -120.0, -100.0, 0.033),
        (200.0, -100.0, 0.0, 0.0),
        (20.0, -100.0, -100.0, 0.0),
        (0.0, -100.0, -100.0, 0.033),
    ],
)
def test_sweeps_that_carry_over_are_those_of_one_long_sweep(
    rest_ms: float, at_mV: float, ends_mV: float, late: float
) -> None:
    """Two sweeps with a rest between them beside the same command, all of it recorded. A sweep ends
    at the potential of the rest while its channels still close, which no jump tells the next."""
    begin, end = {"hold": 1.0}, {"hold": 2.0} if ends_mV == -100 else {"step": ends_mV, "for": 2.0}
    command = {"holding": -100.0, "sampling": 0.05}
    between: dict[str, Any] = {"carry_over": True}
    if rest_ms:
        between |= {"rest": rest_ms} | ({"at": at_mV} if at_mV != -100 else {})
    rows = [begin, {"step": {"values": [0.0, 20.0]}, "for": 3.0}, end]
    cut = build_protocol(command | {"between_sweeps": between, "segments": rows}, None)
    rest = [{"step": at_mV, "for": rest_ms}] if rest_ms else []
    one, two = ([begin, {"step": v, "for": 3.0}, end] for v in (0.0, 20.0))
    whole = build_protocol(command | {"segments": [*one, *rest, *two]}, None)
    model = model_named("na_hh")
    quantities = PLAIN | {"cancellation": sympy.Float(1.0), "delay": sympy.Float(late)}
    ours, truth = (
        ClampScorer(clamped(model, p, **quantities)).simulate(model.values()[:, None])[0][:, :, 0]
        for p in (cut, whole)
    )
    n = cut.n_times_max
    for sweep, first in enumerate((0, round(rest_ms / 0.05) + n)):
        apart = abs(ours[sweep, 1:] - truth[0, first + 1 : first + n])
        assert apart.max() < 1e-4 * abs(truth).max(), sweep


def test_a_finer_mesh_changes_little_and_with_the_order_of_the_method() -> None:
    at_once = FULL | {"delay": sympy.Integer(0)}  # of a delay errors depend on where it falls
    problem = clamped(model_named("na_hh"), moving(), **at_once)
    scorer, values = ClampScorer(problem), problem.model.values()[:, None]
    shown = [scorer._run(False, values, level, True)[2] for level in range(len(LEVELS))]
    steps = [abs(a - b).max() / abs(shown[-1]).max() for a, b in pairwise(shown)]
    assert 2e-4 > steps[0] > 20 * steps[1] > 20 * steps[2] > 100 * steps[3], steps
    assert scorer._first_level(False) == 1  # the coarsest mesh is known to be too coarse


def test_the_circuit_of_neuron() -> None:
    """Sodium of the squid axon in NEURON's own hh, under an SEClamp with a capacitance."""
    try:
        h = mechanisms.neuron_hoc()
    except mechanisms.NeuronUnavailable as error:
        pytest.skip(str(error))
    section = h.Section(name="cell")
    section.L = section.diam = (1000 / np.pi) ** 0.5  # 1000 um2
    section.cm, section.nseg = 2.0, 1  # 20 pF
    section.insert("hh")
    h.usetable_hh, h.celsius = 0, 6.3
    section.gnabar_hh, section.gkbar_hh, section.gl_hh, section.ena = 5e-3, 0.0, 0.0, 50.0
    clamp = h.SEClamp(section(0.5))
    clamp.rs, clamp.dur1, clamp.amp1, clamp.dur2, clamp.amp2 = 10.0, 200, -100, 10, -10
    solver = h.CVode()
    solver.active(1)
    solver.atol(1e-11)
    solver.rtol(1e-10)
    times, seen = STEP.times_ms[1:], []
    try:
        h.finitialize(-100)
        for t in times:
            solver.solve(200 + t)
            seen.append(1e3 * clamp.i)
    finally:
        solver.active(0)
        h.usetable_hh = 1
    problem = clamped(model_named("na_hh"), STEP, **PLAIN | {"series_resistance": sympy.Float(10)})
    ours = ClampScorer(problem).simulate(problem.model.values()[:, None])[0][0, 1:, 0]
    late = times > 0.3  # the peak of the channel, not that of the charging
    assert abs(ours - seen)[late].max() < 1e-4 * np.abs(seen)[late].max()
    assert abs(ours - seen).max() < 1e-4 * np.abs(seen).max()


@pytest.mark.parametrize(
    ("name", "least"),
    slow_but([("na_hh", 0.0)], [("na_hh", 0.0), ("several terms", 1e-5)]),
)
def test_a_clamp_without_resistance_is_the_ideal_one(name: str, least: float) -> None:
    """Apart from samples at a jump, which show what was before it."""
    model = channel_named(name)
    values = model.values()[:, None]
    ideal = make_scorer(Problem(model, (Experiment(STEPS),)), "cpu").simulate(values)[0][:, 1:]
    off = []
    for resistance in (1e-1, 1e-2, 1e-4, least):
        quantities = {"series_resistance": sympy.Float(resistance)}
        if resistance:
            quantities |= {"membrane_capacitance": sympy.Float(20), "cancellation": sympy.Float(1)}
        problem = clamped(model, STEPS, **quantities)
        off.append(abs(ClampScorer(problem).simulate(values)[0][:, 1:] - ideal).max())
    assert off[0] > 5 * off[1] > 20 * off[2]
    assert max(off[2:]) < 1e-4 * abs(ideal).max()


def of_a_fast_gate() -> ChannelModel:
    """Rates that change by a factor of 245 over a jump of 110 mV; `off` is for an offset, mV."""
    gate = {"power": 1, "alpha": "exp((v + 40)/20)", "beta": "k*exp(-(v + 40)/20)"}
    document = {
        "name": "fast",
        "temperature": "25 degC",
        "currents": {"i": {"gates": {"m": gate}, "conductance": "10 nS", "reversal": "-80 mV"}},
        "parameters": {
            "k": {"range": [0.1, 10], "unit": "1/ms", "value": 1},
            "off": {"range": [-10, 10], "unit": "mV", "value": 2},
        },
    }
    return build_model(document, None, used_elsewhere=["off"])


FAST_STEP = Protocol.steps([10], duration=1.0, holding=-100, sampling=0.01)


def fast_truth(k: Any, off: Any) -> np.ndarray:
    """pA at all samples behind the jump: exponentials, of complex parameters if need be."""
    at = [(np.exp((v + 40) / 20), k * np.exp(-(v + 40) / 20)) for v in (-100 + off, 10 + off)]
    before, after = (a / (a + b) for a, b in at)
    gate = after + (before - after) * np.exp(-sum(at[1]) * FAST_STEP.times_ms[1:])
    return np.asarray(10 * gate * (90 + off))


def test_a_membrane_that_follows_at_once_has_rates_from_behind_the_jump(backend: str) -> None:
    """Currents, and the gradient by a rate and by the offset, beside those of exponentials."""
    model = of_a_fast_gate()
    problem = clamped(model, FAST_STEP, offset=sympy.Symbol("off", real=True))
    truth = fast_truth(1.0, 2.0)
    data = np.append(0.0, truth + 50 * np.sin(np.arange(len(truth))))
    weight = np.append(0.0, np.ones(len(truth)))
    recording = Recording.from_arrays(FAST_STEP, data[None], weight=weight[None])
    problem = replace(problem, experiments=(replace(problem.experiments[0], recording=recording),))
    scorer = make_scorer(problem, backend)
    values = np.array([[1.0], [2.0]])
    shown = to_host(scorer.simulate(values)[0])[0, 1:, 0]
    assert abs(shown - truth).max() < 2e-6 * abs(truth).max()
    slopes = [fast_truth(1 + 1e-20j, 2.0).imag, fast_truth(1.0, 2 + 1e-20j).imag]
    left = truth - data[1:]
    wanted, scale = (
        np.array([2e20 * product(slope) / len(truth) for slope in slopes])
        for product in (left.dot, lambda s: np.linalg.norm(s) * np.linalg.norm(left))
    )
    found = to_host(scorer.linearize(values).gradient)[:, 0]
    assert (abs(found - wanted) / scale).max() < 1e-5


@pytest.mark.parametrize("lag", slow_but([2e-10, 2e-7], [2e-10, 2e-8, 2e-7, 2e-6]))
def test_what_happens_within_nanoseconds_of_a_jump_is_not_lost(lag: float) -> None:
    """The membrane follows with the lag; 1.6e-3 off, or "out of clamp", with steps from 2 ns on."""
    problem = clamped(of_a_fast_gate(), FAST_STEP, lag=sympy.Float(lag))

    def slope(t: float, m: np.ndarray) -> np.ndarray:
        drive = (50 - 110 * np.exp(-t / lag)) / 20
        return np.asarray(np.exp(drive) * (1 - m) - np.exp(-drive) * m)

    rest = 1 / (1 + np.exp(6))
    options: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-13, "first_step": 0.1 * lag}
    times = FAST_STEP.times_ms
    solved = solve_ivp(slope, (0, times[-1]), [rest], "LSODA", times[1:], **options)
    ours = ClampScorer(problem).simulate(np.array([[1.0], [2.0]]))[0][0, 1:, 0]
    assert abs(ours - 900 * solved.y[0]).max() < 1e-5 * abs(ours).max()


# --- derivatives ---------------------------------------------------------------------------------


def level_of(scorer: ClampScorer, values: np.ndarray) -> int:
    """The mesh on which a candidate is taken."""
    levels = count(scorer._first_level(True))
    return next(k for k in levels if scorer._run(False, values, k, False)[1] < LEVELS[k].tolerance)


@pytest.mark.parametrize(
    ("name", "protocol", "low_pass"),
    slow_but(
        [("na_hh", STEPS, FOUR_POLES), ("several terms", STEP, None)],
        [
            ("na_hh", STEPS, FOUR_POLES),
            ("herg_markov", moving(), None),
            ("several terms", STEP, None),
        ],
    ),
)
def test_derivatives_are_those_of_the_discrete_steps(
    name: str, protocol: Protocol, low_pass: LowPass | None
) -> None:
    """On the mesh that is taken, and on the first whose steps do not rest on past states."""
    problem = with_all(channel_named(name), protocol, low_pass)
    scorer, values = ClampScorer(problem), 1.03 * problem.model.values()
    local, score = scorer.linearize(values[:, None]), scorer.score(values[:, None])
    assert local.status[0] == OK
    assert local.cost[0] == pytest.approx(score.cost[0], rel=1e-12)
    one_step = next(k for k, fineness in enumerate(LEVELS) if not fineness.rests)
    for level in {level_of(scorer, values[:, None]), one_step}:
        local = scorer._run(True, values[:, None], level, False)[0]
        length = np.sqrt(2 * local.cost[0] * np.diag(local.hessian[..., 0]))
        errors = []
        for step in (1e-3, 1e-4, 1e-5):
            ahead, behind = (values[:, None] + np.diag(s * step * np.abs(values)) for s in (1, -1))
            both = np.concatenate([ahead, behind], axis=1)
            cost = scorer._run(False, both, level, False)[0].cost
            slope = (cost[: len(values)] - cost[len(values) :]) / (2 * step * np.abs(values))
            errors.append(np.abs(slope - local.gradient[:, 0]) / length)
        worst = dict(zip(problem.model.parameter_names, np.min(errors, axis=0), strict=True))
        assert max(worst.values()) < 3e-6, worst  # of that, rounding errors of the costs are 1e-6


def of_several_terms() -> ChannelModel:
    """A current after Goldman, Hodgkin and Katz, a rectified one, and a leak, in one model."""
    gate = {"alpha": "exp((v + 40)/20)", "beta": "exp(-(v + 40)/20)"}
    h = {"alpha": "0.1*exp(-v/30)", "beta": "bh/(1 + exp(-(v + 20)/15))"}
    inward = {"gates": {"m": {"power": 3, **gate}, "h": h}, "permeability": "p"}
    outward = {"gates": {"n": {"power": 1, **gate}}, "conductance": "g", "rectification": "bend"}
    document = {
        "name": "several",
        "temperature": "25 degC",
        "definitions": {"bend": "1/(1 + exp((v - mid)/17))"},
        "currents": {
            "inward": inward | {"ion": {"valence": 1, "inside": "nai", "outside": "140 mM"}},
            "outward": outward | {"reversal": "-80 mV"},
        },
        "leak": {"conductance": "gl", "reversal": "-10 mV"},
        "parameters": {
            "mid": {"range": [0, 30], "unit": "mV", "value": 15},
            "bh": {"range": [0.5, 10], "unit": "1/ms", "value": 3},
            "p": {"range": [0.1, 10], "unit": "um3/ms", "value": 1},
            "nai": {"range": [1, 50], "unit": "mM", "value": 10},
            "g": {"range": [1, 50], "unit": "nS", "value": 10},
            "gl": {"range": [0.1, 5], "unit": "nS", "value": 1},
        },
    }
    return build_model(document, None)


def channel_named(name: str) -> ChannelModel:
    return of_several_terms() if name == "several terms" else model_named(name)


@pytest.mark.parametrize("late", [0.0, 0.033, 30.0])
def test_a_score_is_the_sum_of_squares_beside_the_trace(backend: str, late: float) -> None:
    """Of samples that come in rows, many of one step in few, with weights and some left out."""
    clamp = Clamp(**FULL | {"delay": sympy.Float(late)}, low_pass=None)
    problem = Problem(model_named("na_hh"), (Experiment(moving(), clamp=clamp),))
    problem = simulate_surrogate(problem, ClampScorer(problem), 20.0, 1)
    (experiment,) = problem.experiments
    assert experiment.recording is not None
    weight = np.random.default_rng(2).uniform(-0.2, 1, experiment.recording.weight.shape).clip(0)
    recording = replace(experiment.recording, weight=weight)
    problem = replace(problem, experiments=(replace(experiment, recording=recording),))
    scorer = make_scorer(problem, backend)
    parameters = problem.model.values()[:, None] * np.linspace(0.97, 1.03, 5)
    trace = to_host(scorer.simulate(parameters)[0])
    squares = weight[..., None] * (trace - recording.current_pA[..., None]) ** 2
    wanted = squares.sum(axis=(0, 1)) / weight.sum()
    np.testing.assert_allclose(to_host(scorer.score(parameters).cost), wanted, rtol=1e-9)
    np.testing.assert_allclose(to_host(scorer.linearize(parameters).cost), wanted, rtol=1e-9)


def test_x_over_its_exponential_less_one_is_accurate_everywhere() -> None:
    """The rates of most gates, and their slopes, with 40 digits beside."""
    for x in (0.0, 1e-9, -1e-3, 0.49, -0.49, 0.51, -0.51, 3.0, -3.0, 40.0, -40.0, 600.0, -600.0):
        with mpmath.workdps(40):
            truth = x / mpmath.expm1(x) if x else mpmath.mpf(1)
            slope = (1 - truth * mpmath.exp(x)) / mpmath.expm1(x) if x else mpmath.mpf(-0.5)
        assert bernoulli(x) == pytest.approx(float(truth), rel=2e-15), x
        assert bernoulli_slope(x) == pytest.approx(float(slope), rel=4e-15), x


def test_curvature_is_that_of_the_currents() -> None:
    problem = with_all("na_hh", STEPS, FOUR_POLES)
    scorer, values = ClampScorer(problem), problem.model.values()
    n, steps = len(values), 1e-5 * np.abs(values)
    moved = np.concatenate([values[:, None] + np.diag(steps), values[:, None] - np.diag(steps)], 1)
    shown = scorer.simulate(moved)[0].reshape(-1, 2 * n)
    jacobian = (shown[:, :n] - shown[:, n:]) / (2 * steps)
    wanted = 2 * jacobian.T @ jacobian / len(shown)
    length = np.sqrt(np.diag(wanted))
    found = scorer.linearize(values[:, None]).hessian[..., 0]
    assert (abs(found - wanted) / np.outer(length, length)).max() < 1e-6


@pytest.mark.usefixtures("device")
def test_a_gpu_takes_the_same_steps() -> None:
    problem = with_all("na_hh", STEP, FOUR_POLES)
    parameters = problem.model.values()[:, None] * np.linspace(0.98, 1.02, 11)
    cpu, cuda = ClampScorer(problem), make_scorer(problem, "cuda")
    one, two = cpu.linearize(parameters), cuda.linearize(parameters)
    np.testing.assert_allclose(two.cost, one.cost, rtol=1e-10)
    np.testing.assert_array_equal(two.status, one.status)
    scale = abs(one.gradient).max(axis=1, keepdims=True)
    assert (abs(two.gradient - one.gradient) / scale).max() < 1e-9
    scale = np.sqrt(np.einsum("iic->ic", one.hessian))
    assert (abs(two.hessian - one.hessian) / (scale[:, None] * scale)).max() < 1e-9
    on_device = to_host(cuda.score(sys.modules["cupy"].asarray(parameters)).cost)
    np.testing.assert_allclose(on_device, one.cost, rtol=1e-10)
    np.testing.assert_allclose(cuda.score(parameters).cost, one.cost, rtol=1e-10)
    shown, truth = cuda.simulate(parameters)[0], cpu.simulate(parameters)[0]
    assert abs(shown - truth).max() < 1e-9 * abs(truth).max()


@pytest.mark.parametrize("derived", slow_but([False], [False, True]))
def test_a_device_would_compile_it(derived: bool) -> None:
    model, clamp = fitted_clamp(model_named("na_hh"), FOUR_POLES)
    free = tuple(range(len(model.parameters))) if derived else ()
    compile_with_nvrtc(ClampCudaSource(model, clamp, free, 2).text)


def test_a_score_depends_on_no_other_candidate() -> None:
    problem = with_all("na_hh", STEP, FOUR_POLES)
    factors = np.random.default_rng(3).uniform(0.5, 1.5, (1, 11))
    parameters = problem.model.values()[:, None] * factors
    scorer = ClampScorer(problem)
    together = scorer.score(parameters)
    for k in (0, 7):
        alone = scorer.score(parameters[:, k : k + 1])
        assert (alone.cost[0], alone.status[0]) == (together.cost[k], together.status[k])


def test_a_current_that_escapes_the_clamp_is_taken_on_a_finer_mesh() -> None:
    """20 MOhm and 500 nS: no mesh can know the time of the spike."""
    model = model_named("na_hh")
    values = model.values()[:, None].copy()
    values[model.parameter_names.index("gmax")] = 3000.0
    protocol = Protocol.steps([-55], duration=4, holding=-90, sampling=0.02)
    scorer = ClampScorer(
        clamped(model, protocol, **PLAIN | {"series_resistance": sympy.Float(20.0)})
    )
    errors = [scorer._run(False, values, level, True)[1][0] for level in range(3)]
    assert not errors[0] <= 2e-4
    assert np.isfinite(errors[2])
    finest = scorer._run(False, values, len(LEVELS) - 1, True)[2]
    shown = scorer.simulate(values)[0].ravel()
    assert abs(shown - finest[:, 0]).max() < 1e-3 * abs(finest).max()


def test_a_membrane_that_nothing_holds_has_failed() -> None:
    """1 mS behind 100 MOhm, of which no mesh makes anything that is right."""
    model = model_named("na_hh")
    values = model.values()[:, None].copy()
    values[model.parameter_names.index("gmax")] = 1e6
    protocol = Protocol.steps([-40], duration=4, holding=-90, sampling=0.02)
    problem = clamped(model, protocol, **PLAIN | {"series_resistance": sympy.Float(100.0)})
    recording = Recording.from_arrays(protocol, np.zeros((1, protocol.n_times_max)))
    problem = replace(problem, experiments=(replace(problem.experiments[0], recording=recording),))
    score = ClampScorer(problem).score(values)
    assert (score.status[0], score.cost[0]) == (OUT_OF_CLAMP, np.inf)


def test_a_saturated_rate_has_no_slope() -> None:
    """1/(1 + exp) is 0 where exp((v - vh)/k) overflows, by the membrane's potential, too."""
    document = {
        "name": "steep",
        "states": ["C", "O"],
        "rates": {"C -> O": "0.2 + 1/(1 + exp((v + 20)/k))", "O -> C": "0.3"},
        "current": {"open": ["O"], "conductance": "100", "reversal": "-90 mV"},
        "parameters": {"k": {"range": [-9, 9], "unit": "mV", "value": 5}},
    }
    problem = clamped(build_model(document, None), STEP, **PLAIN)
    problem = simulate_surrogate(problem, ClampScorer(problem), 1.0, 1)
    steep = np.array([[5.0, 0.05, 0.02, 1e-3, -1e-3]])
    scorer = ClampScorer(problem)
    slopes, score = scorer.linearize(steep), scorer.score(steep)
    assert (score.status == OK).all()
    assert slopes.cost == pytest.approx(score.cost, rel=1e-9)
    assert np.isfinite(slopes.gradient).all()
    # a jump of 1/ms, at whatever side of -20 mV
    assert score.cost[3] == pytest.approx(score.cost[2], rel=1e-3)


def test_candidates_without_a_current_have_failed_and_say_why() -> None:
    problem = with_all("na_hh", STEP, FOUR_POLES)
    parameters = np.repeat(problem.model.values()[:, None], 4, axis=1)
    names = problem.model.parameter_names
    parameters[names.index("gmax"), 0] = np.nan
    parameters[names.index("bm"), 1] = -1.0
    parameters[names.index("lag"), 2] = -0.01
    scorer = ClampScorer(problem)
    for found in (scorer.score(parameters), scorer.linearize(parameters)):
        assert list(found.status) == [NOT_FINITE, NEGATIVE_RATE, NOT_FINITE, OK]
        assert list(np.isinf(found.cost)) == [True, True, True, False]
    lost = np.isnan(scorer.simulate(parameters)[0]).all(axis=(0, 1))
    assert lost.tolist() == [True, True, True, False]


# --- mesh and filter -----------------------------------------------------------------------------


def test_the_poles_are_those_of_scipy() -> None:
    for n in range(1, 11):
        _, poles, _ = signal.bessel(n, 1.0, analog=True, norm="mag", output="zpk")
        ours = bessel_poles(n)
        assert max(abs(ours - p).min() for p in poles) < 1e-7, n


def test_a_filter_steps_exactly_over_a_polynomial() -> None:
    poles, residues = modes(LowPass(5, 3.0))
    assert np.real(-residues / poles).sum() == pytest.approx(1.0)
    start, current = np.array([0.3 + 0.1j]), np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.7])

    def rate(x: float, z: np.ndarray, pole: complex, h: float) -> np.ndarray:
        return h * (pole * z + np.polyval(current[::-1], x))

    for h in (1e-6, 0.01, 1.0, 30.0):
        table = step_tables(poles, np.array([h]))[0].reshape(len(poles), N_POLY + 1, 2) @ [1, 1j]
        for pole, row in zip(poles, table, strict=True):
            exact = solve_ivp(rate, (0, 1), start, "DOP853", args=(pole, h), rtol=1e-11, atol=1e-13)
            ours = row[0] * start[0] + (row[1:] * current).sum()
            assert ours == pytest.approx(exact.y[0, -1], rel=1e-7, abs=1e-12)


def test_a_step_of_current_is_recorded_as_the_step_response_of_the_filter() -> None:
    """A leak of 2 nS under an ideal clamp: the current steps with the command."""
    document = {
        "name": "leak",
        "states": ["O"],
        "current": {"open": ["O"], "conductance": "2 nS", "reversal": "10 mV"},
    }
    protocol = Protocol.steps([-20, 40], duration=1.5, holding=-100, sampling=0.02)
    problem = clamped(build_model(document, None), protocol, LowPass(4, 2.0))
    shown = ClampScorer(problem).simulate(np.empty((0, 1)))[0][:, :, 0]
    system = signal.bessel(4, 2 * np.pi * 2.0, analog=True, norm="mag", output="ba")
    _, rise = signal.step(system, T=protocol.times_ms)
    for row, v in zip(shown, (-20, 40), strict=True):
        wanted = 2.0 * (-100 - 10) + 2.0 * (v + 100) * rise
        assert abs(row - wanted).max() < 1e-4 * abs(wanted).max()


# --- reading -------------------------------------------------------------------------------------


def read(**keys: Any) -> Clamp:
    model, _ = fitted_clamp(model_named("na_hh"), None)
    return read_clamp(Section(keys, "fit.yaml", "clamp"), model)


def test_quantities_have_units_and_expressions_name_parameters() -> None:
    clamp = read(
        series_resistance="series_resistance/2",
        membrane_capacitance="0.02 nF",
        compensation={"fraction": 0.8, "prediction": "prediction/2", "lag": "10 us"},
        leak={"conductance": "500 pS", "reversal": "-5 mV"},
        offset="1 mV",
        delay="delay",
        cancellation=1,
        lowpass={"poles": 8, "cutoff": "5000 Hz"},
    )
    assert clamp.used_names() == {"series_resistance", "prediction", "delay"}
    assert float(clamp.membrane_capacitance) == pytest.approx(20.0)
    assert float(clamp.lag) == pytest.approx(0.01)
    assert float(clamp.leak_conductance) == pytest.approx(0.5)
    assert clamp.low_pass == LowPass(8, 5.0)
    assert float(read(series_resistance=5, compensation=0.8).fraction) == 0.8


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"series_resistance": -1}, "clamp.series_resistance: 0 or more was expected, not -1"),
        ({"series_resistance": "lag"}, "lag is in ms, but this is a resistance"),
        ({"series_resistance": 5, "compensation": 1.5}, "0 to 1 was expected, not 1.5"),
        ({"series_resistance": 5, "compensation": {"prediction": 1}}, "0 to 0.99 was expected"),
        ({"compensation": 0.5}, "changes nothing without a series_resistance"),
        ({"series_resistance": 5, "compensation": {"prediction": 0.5}}, "membrane_capacitance"),
        ({"membrane_capacitance": 20}, "charged by an infinite current"),
        (
            {"lowpass": {"poles": 11, "cutoff": 5}},
            "a whole number, from 1 to 10, was expected, not 11",
        ),
    ],
)
def test_what_no_amplifier_does_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        read(**keys)
    assert said in str(error.value)


FIT = """
model: {model}
parameters:
  rs: {{range: [1, 20], unit: MOhm, value: 8}}
  late: {{range: [0, 0.2], unit: ms, value: 0.05}}
  am: {{fixed: true}}
  vam: {{fixed: true}}
  kam: {{fixed: true}}
  bm: {{fixed: true}}
  kbm: {{fixed: true}}
  ah: {{fixed: true}}
  kah: {{fixed: true}}
  kbh: {{fixed: true}}
fit:
  protocols: [steps.yaml]
  surrogate: {{noise: 2 pA, seed: 1}}
  clamp:
    series_resistance: rs
    membrane_capacitance: 20 pF
    compensation: {{fraction: 0.7, lag: 10 us}}
    delay: late
  stop: {{seconds: 30}}
  {more}
"""


def written(folder: Path, more: str = "seed: 0") -> Path:
    STEPS.save(folder / "steps.yaml", overwrite=True)
    file = folder / "fit.yaml"
    file.write_text(FIT.format(model=ROOT / "models" / "na_hh.yaml", more=more))
    return file


@pytest.mark.integration
def test_resistance_and_delay_are_fitted_and_the_fit_saved(tmp_path: Path) -> None:
    file = written(tmp_path)
    run = CliRunner().invoke(
        main, ["optimize", str(file), "--out", str(tmp_path / "out"), "--backend", "cpu"]
    )
    assert run.exit_code == 0, run.output
    plan = load_plan(tmp_path / "out" / "fit.yaml", ())
    values = dict(zip(plan.problem.model.parameter_names, plan.problem.model.values(), strict=True))
    assert values["rs"] == pytest.approx(8.0, rel=1e-2)
    assert values["late"] == pytest.approx(0.05, abs=1e-3)
    assert plan.problem.experiments[0].clamp is not None
    found = cf.load(tmp_path / "out")
    assert "rs" in found.values
    assert "rs" not in found.model.channel.parameter_names
    for fitted in (found, file):
        with pytest.warns(InputWarning, match="under an ideal clamp"):
            cf.simulate(fitted, STEP)


def test_a_delay_of_an_experiment_may_be_a_parameter(tmp_path: Path) -> None:
    file = written(tmp_path)
    scorer = make_scorer(load_plan(file, ()).problem, "cpu")
    truth = scorer.problem.model.values()
    table = np.column_stack([STEPS.times_ms, scorer.simulate(truth[:, None])[0][:, :, 0].T])
    np.savetxt(tmp_path / "cell.csv", table, delimiter=",", header="t,a,b", comments="")
    text = file.read_text()
    common = text[text.index("  clamp:") : text.index("  stop:")].replace("    delay: late\n", "")
    recorded = f"""  experiments:
    - protocol: steps.yaml
      recording: {{file: cell.csv, sampling: 0.05 ms, current: {{columns: [a, b], unit: pA}}}}
      delay: late
    {common.replace(chr(10), chr(10) + "    ")}"""
    start, end = text.index("  protocols:"), text.index("  stop:")
    file.write_text(text[:start] + recorded.rstrip() + "\n" + text[end:])
    problem = load_plan(file, ()).problem
    clamp = problem.experiments[0].clamp
    assert clamp is not None
    assert clamp.used_names() == {"rs", "late"}
    late = problem.model.parameter_names.index("late")
    parameters = np.repeat(problem.model.values()[:, None], 2, axis=1)
    parameters[late, 1] += 0.02
    cost = make_scorer(problem, "cpu").score(parameters).cost
    assert cost[0] < 1e-6 * cost[1]
    file.write_text(file.read_text().replace("      delay: late", "      delay: lat"))
    with pytest.raises(InputError, match="parameters.late: the model has no such parameter"):
        load_plan(file, ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed: 0", "solve: gmax", "with a clamp no parameter can be solved"),
        ("delay: late", "delay: 0.05 ms", "late"),  # which only the clamp would use
    ],
)
def test_fits_with_a_clamp_that_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=said):
        load_plan(file, ())


def test_experiments_with_different_clamps_are_the_sum_of_their_groups(tmp_path: Path) -> None:
    """One through 70 % compensation, one clamped ideally."""
    plan = load_plan(written(tmp_path), ())
    one = plan.problem.experiments[0]
    some = tuple(replace(one, clamp=c, weight=w) for c, w in ((one.clamp, 1.0), (None, 2.0)))
    problem = replace(plan.problem, experiments=some)
    assert [group.clamp for group in problem.groups] == [one.clamp, None]
    values = problem.values()[:, None] * np.array([1.0, 1.01])
    found = make_scorer(problem, "cpu").linearize(values)
    first, second = (
        make_scorer(replace(problem, experiments=(e,)), "cpu").linearize(values) for e in some
    )
    assert found.cost == pytest.approx((first.cost + 2 * second.cost) / 3)
    wanted = (first.gradient + 2 * second.gradient) / 3
    np.testing.assert_allclose(found.gradient, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    assert abs(first.cost - second.cost).min() > 1e-3 * first.cost.min()


@pytest.mark.integration
def test_the_shipped_fit_of_two_clamps_explains_both_recordings() -> None:
    plan = load_plan(ROOT / "models" / "fits" / "nav_iv_two_clamps.yaml")
    values = np.array([p.value for p in plan.problem.parameters])
    names = [p.name for p in plan.problem.parameters]
    scorer = make_scorer(plan.problem, "cpu")
    assert np.sqrt(scorer.score(values[:, None]).cost[0]) < 90  # pA, of 15,500
    values[names.index("dv[0CP]")] = 0.0
    assert np.sqrt(scorer.score(values[:, None]).cost[0]) > 500


# --- the membrane's potential --------------------------------------------------------------------


def test_the_membrane_loses_what_the_current_takes_over_the_series_resistance() -> None:
    """At the end of a step that of Ohm's law, before it the charging of a circuit without one."""
    protocol = Protocol.steps([-30, 10], duration=30, holding=-100, sampling=0.05)
    for capacitance in (0.0, 20.0):
        own = {"series_resistance": 10, "membrane_capacitance": capacitance, "fraction": 0.4}
        own |= {"offset": 2, "delay": 0.3}
        quantities = {name: sympy.Float(x) for name, x in own.items()}
        problem = clamped(model_named("model_b"), protocol, LowPass(2, 5.0), **quantities)
        values = problem.model.values()
        (membrane,) = membrane_potentials(problem, values)
        assert membrane is not None
        lost = 0.6 * 10e-3 * ClampScorer(problem).simulate(values[:, None])[0][:, :, 0]
        assert abs(lost[1, -1]) > 1
        ends = [-28 - lost[0, -1], 12 - lost[1, -1]]
        assert membrane[:, -1] == pytest.approx(ends, abs=2e-2)
        values[problem.model.parameter_names.index("gmax")] = 0.0
        (alone,) = membrane_potentials(problem, values)
        assert alone is not None
        # without a compensation that lags, the circuit has a time constant of 0.6 Rs C
        tau, t = 0.6 * 10e-3 * capacitance, protocol.times_ms[1:]
        gone = np.exp(-t / tau) if tau else np.zeros_like(t)
        assert alone[1, 1:] == pytest.approx(12 - 110 * gone, abs=1e-2)
    leaky = {"leak_conductance": sympy.Float(1), "delay": sympy.Float(0.1)}
    ideal = clamped(model_named("model_b"), STEP, **leaky)  # there is none beside the command
    assert membrane_potentials(ideal, ideal.model.values()) == [None]
