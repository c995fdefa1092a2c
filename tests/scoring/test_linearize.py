"""Costs with exact derivatives, and the compression of recordings behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, least_squares

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import parse_expression
from channelfit.model.model_file import build_model
from channelfit.model.singularities import remove_singularities
from channelfit.model.terms import symbol
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.kernels.derivatives import derivative
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import Linearization, make_scorer
from support.differences import errors, on_the_grid
from support.schemes import (
    CYCLE,
    PROTOCOLS,
    SHIPPED,
    candidates,
    from_yaml,
    model_named,
    recording_of,
)
from support.truths import slow_but

N = 3
#: Of those that others are like (in states or gates) only the others are quick.
MODELS = slow_but(["model_b", "na_hh", "leak"], [*SHIPPED, "cycle", "leak"])


#: Ramps and sines long enough to be taken in pieces.
TERMS = [{"amplitude": 20, "omega": 0.2}, {"amplitude": 9, "omega": 0.011}]
LONG = from_yaml(
    segments=[
        {"hold": "3 ms"},
        {"step": {"values": [-110, -50, 30]}, "for": "61.7 ms"},
        {"step": -70, "for": 20},
    ]
)
RAMPS = from_yaml(
    segments=[
        {"hold": "5 ms"},
        {"step": 30, "for": "20 ms"},
        {"ramp": [-110, -60], "for": "60 ms"},
        {"step": -20, "for": "9 ms"},
        {"ramp": [-20, 20], "for": "40.07 ms"},
        {"sines": {"offset": -40, "terms": TERMS}, "for": 77},
    ]
)


def problem_of(model: ChannelModel, *protocols: Protocol) -> Problem:
    """Each protocol with arbitrary currents, a weight of its own, and a mask on every third."""
    kinds = ("plain", "masked", "plain")
    rows = ((p, recording_of(p, k, kinds[k % 3]), 1.0 + 0.7 * k) for k, p in enumerate(protocols))
    return Problem(model, tuple(Experiment(*row) for row in rows))


# --- the cpu backend against the reference --------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("name", MODELS)
def test_cost_and_derivatives_are_those_of_the_reference(name: str) -> None:
    names = ("steps", "off the grid", "recorded", "carry over", "one sample")
    model = model_named(name)
    problem = problem_of(model, LONG, *(PROTOCOLS[key] for key in names))
    parameters = candidates(model, 2 if len(model.parameters) > 7 else N, seed=6)
    test = on_the_grid(problem).linearize(parameters)
    truth = make_scorer(problem, "reference").linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-7
    # where the voltage moves, pieces do not share the error of the grid
    for dtype in ("float64", "float32"):  # which linearizes in float64
        cost = make_scorer(problem, "cpu", dtype).linearize(parameters).cost
        assert cost == pytest.approx(truth.cost, rel=1e-6)


@pytest.mark.parametrize(
    "name", slow_but(["model_a", "herg_beattie"], ["model_a", "herg_beattie", "model_b"])
)
def test_moving_voltage(name: str) -> None:
    model = model_named(name)
    problem = problem_of(model, PROTOCOLS["sines"], PROTOCOLS["short segments"], PROTOCOLS["ramp"])
    parameters = candidates(model, 2, seed=8)
    test = on_the_grid(problem).linearize(parameters)
    truth = make_scorer(problem, "reference").linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-7


def tame(model: ChannelModel) -> np.ndarray:
    """The model's values (n_parameters, 1), rates of the cycle e-fold in 40 mV instead of one."""
    values = model.values()[:, None].copy()
    if model.name == "cycle":
        values[model.parameter_names.index("z")] = 0.025
    return values


@pytest.mark.parametrize("name", slow_but(["cycle"], ["model_b", "herg_markov", "cycle"]))
def test_ramps_in_pieces(name: str) -> None:
    """Against the reference with steps an eighth as long: on the usual grid it errs by 1e-7."""
    problem = problem_of(model_named(name), RAMPS)
    values = tame(problem.model)
    parameters = values * np.random.default_rng(4).uniform(0.7, 1.4, (len(values), 2))
    scorer = CpuScorer(problem)
    linear = scorer._tangents
    coarse, fine_pieces, _ = linear.plans()
    assert coarse.ramps
    with linear._walk(fine_pieces) as walk:
        assert [walk.projected(theta) for theta in parameters.T.copy()] == [OK] * 2
    local = scorer.linearize(parameters)
    fine = ReferenceScorer(problem, refine=8)
    assert local.cost == pytest.approx(fine.score(parameters).cost, rel=1e-9)
    few = parameters[:, :1]
    assert max(errors(scorer.linearize(few), fine.linearize(few), few)) < 1e-7


def test_a_ramp_of_few_long_steps_is_taken_in_pieces() -> None:
    problem = problem_of(
        model_named("cycle"),
        from_yaml(
            sampling="2 ms",
            segments=[{"hold": 10}, {"step": 30, "for": 20}, {"ramp": [-70, -110], "for": 100}],
        ),
    )
    scorer, values = CpuScorer(problem), tame(problem.model)
    assert len(next(scorer._tangents.plans()).ramps) == 1
    fine = ReferenceScorer(problem, refine=8)
    assert max(errors(scorer.linearize(values), fine.linearize(values), values)) < 1e-7


def test_what_pieces_cannot_follow_is_stepped() -> None:
    """Rates of 1e5 per ms and more on a ramp that starts far from rest."""
    problem = problem_of(build_model(CYCLE, None), RAMPS)
    names = list(problem.model.parameter_names)
    parameters = np.tile(tame(problem.model), 2)
    parameters[[names.index("k1"), names.index("k4")], 1] *= 1e5
    scorer = CpuScorer(problem)
    linear = scorer._tangents
    for plan in list(linear.plans())[:-1]:
        with linear._walk(plan) as walk:
            first, second = (walk.projected(theta) for theta in parameters.T.copy())
        assert first == OK
        assert second != OK
    local = scorer.linearize(parameters)
    assert (local.status == OK).all()
    truth = make_scorer(problem, "reference").score(parameters)
    assert local.cost[1] == pytest.approx(truth.cost[1], rel=1e-9)


def test_where_alpha_is_zero_over_zero(backend: str) -> None:
    """k_hh at exactly v = a2 - 65, and a hair beside it."""
    model = model_named("k_hh")
    names = [p.name for p in model.parameters]
    parameters = np.tile(model.values()[:, None], 3)
    held = parameters[names.index("a2"), 0] - 65.0
    problem = problem_of(model, from_yaml(segments=[{"hold": 1}, {"step": held, "for": "9 ms"}]))
    parameters[names.index("a2")] += [0.0, 1e-9, 1e-3]
    test = make_scorer(problem, backend).linearize(parameters)
    truth = make_scorer(problem, "reference").linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-7
    assert np.isfinite(test.gradient).all()


BRIEF = from_yaml(
    segments=[{"hold": 0.2}, {"step": 20, "for": 0.5}, {"ramp": [20, -60], "for": 0.3}]
)


#: Each backend, of which the one that the host plays compiles for long.
SELDOM_PLAYED = pytest.mark.parametrize(
    "backend",
    [
        "cpu",
        pytest.param("played", marks=pytest.mark.slow),
        pytest.param("real", marks=pytest.mark.gpu),
    ],
    indirect=True,
)


@SELDOM_PLAYED
def test_a_bounded_rate_has_no_slope(backend: str) -> None:
    problem = problem_of(model_named("cycle"), BRIEF)
    names = problem.model.parameter_names
    parameters = np.repeat(problem.model.values()[:, None], 5, axis=1)
    parameters[names.index("z")] = [5.0, -5.0, 0.0, 0.0, 800.0]
    parameters[:6, 2], parameters[:6, 3] = 1e120, 0.0  # all at the ceiling, all at the floor
    test = make_scorer(problem, backend).linearize(parameters)
    assert (test.status == OK).all()
    truth = make_scorer(problem, "reference").score(parameters)
    assert test.cost == pytest.approx(truth.cost, rel=1e-9)
    assert np.isfinite(test.gradient).all()
    assert np.isfinite(test.hessian).all()
    assert (test.gradient[:7, 2:4] == 0).all()
    assert (test.hessian[:7, :, 2:4] == 0).all()
    assert (test.gradient[7] != 0).all()


@SELDOM_PLAYED
def test_fixed_parameters_have_zero_rows(backend: str) -> None:
    model, parameters = model_named("model_b"), candidates(model_named("model_b"), 3)
    fixed = 0, 1, 3, 8  # the first two are all parameters of one rate

    def linearized(backend: str, *fixed: int) -> Linearization:
        some = (replace(p, fixed=k in fixed) for k, p in enumerate(model.parameters))
        own = replace(model, parameters=tuple(some))
        return make_scorer(problem_of(own, LONG, RAMPS), backend).linearize(parameters)

    truth, test, still = (linearized(backend, *f) for f in ((), fixed, range(9)))
    free = [k for k in range(9) if k not in fixed]
    assert test.cost == pytest.approx(truth.cost, rel=1e-12)
    assert test.gradient[free] == pytest.approx(truth.gradient[free], rel=1e-9)
    some = np.ix_(free, free)
    assert test.hessian[some] == pytest.approx(truth.hessian[some], rel=1e-9)
    for of_fixed in (test.gradient[[*fixed]], test.hessian[[*fixed]], still.gradient):
        assert (of_fixed == 0).all()
    assert still.cost == pytest.approx(truth.cost, rel=1e-12)
    assert still.hessian.shape == (9, 9, 3)


@pytest.mark.parametrize(
    ("backend", "key"),
    [("cpu", "ramp"), ("reference", "carry over"), ("played", "steps")],
    indirect=["backend"],
)
def test_failed_candidates_cost_inf_and_leave_their_neighbors_alone(backend: str, key: str) -> None:
    problem = problem_of(build_model(CYCLE, None), PROTOCOLS[key])
    names = list(problem.model.parameter_names)
    parameters = np.tile(problem.model.values()[:, None], 5)
    parameters[names.index("k3"), 1] = -1.0  # a NaN
    parameters[names.index("k4"), 2] = -1.0
    parameters[names.index("g"), 3] = np.inf
    local = make_scorer(problem, backend).linearize(parameters)
    assert local.status.tolist() == [OK, NOT_FINITE, NEGATIVE_RATE, NOT_FINITE, OK]
    assert np.isinf(local.cost[1:4]).all()
    assert (local.gradient[:, 1:4] == 0).all()
    assert (local.hessian[..., 1:4] == 0).all()
    assert local.gradient[:, 0] == pytest.approx(local.gradient[:, 4], rel=1e-12)


# --- residuals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model_b", "herg_beattie"])
def test_the_jacobian_of_the_residuals(name: str) -> None:
    problem = problem_of(model_named(name), LONG, PROTOCOLS["steps"])
    scorer = CpuScorer(problem)
    here = problem.model.values()
    residuals, jacobian, constant = scorer.residuals(here[:, None])
    total = problem.scored.total_weight
    local = scorer.linearize(here[:, None])
    assert (np.sum(residuals**2) + constant) / total == pytest.approx(local.cost[0], rel=1e-12)
    gradient = 2 / total * jacobian[..., 0].T @ residuals[:, 0]
    assert gradient == pytest.approx(local.gradient[:, 0], rel=1e-9)

    def residual(x: np.ndarray) -> np.ndarray:
        return np.asarray(scorer.residuals((x * here)[:, None])[0][:, 0])

    one = np.ones(len(here))
    three_points = least_squares(residual, one, jac="3-point", max_nfev=1).jac
    exact = jacobian[..., 0] * here
    assert np.abs(three_points - exact).max() < 1e-7 * np.abs(exact).max()
    slope = approx_fprime(one, lambda x: float(np.sum(residual(x) ** 2)), 1e-7)
    assert slope == pytest.approx(
        2 * exact.T @ residuals[:, 0], rel=1e-3, abs=1e-4 * abs(slope).max()
    )


# --- derivatives of expressions -------------------------------------------------------------------

EXPRESSIONS = [
    "a*exp(b*v/10)",
    "a/(1 + exp(-(v + b)/7))",
    "(v - b)/(1 - exp(-(v - b)/9))",
    "log(a + 3)*sqrt(b)",
    "abs(a*v + b)",
    "tanh(a*v/20)",
    "min(a, b*v, 3)",
    "max(a*a, b)",
    "a**b",
    "b**2.5/(a + 1)",
    "exprel(a*v/30)",
    "a if v > b else b*a",
]


@given(
    text=st.sampled_from(EXPRESSIONS),
    a=st.floats(0.1, 3),
    b=st.floats(0.1, 3),
    v=st.floats(-90, 60),
    name=st.sampled_from(["a", "b"]),
)
@settings(max_examples=200, deadline=None)
def test_derivatives_of_every_function(text: str, a: float, b: float, v: float, name: str) -> None:
    expression = remove_singularities(parse_expression(text, ["a", "b", "v"]))
    slope = derivative(expression, symbol(name))
    here = {"a": a, "b": b, "v": v}
    differences = []
    for h in (1e-4, 1e-5):
        two = [evaluate(expression, {**here, name: here[name] + s * h}) for s in (1.0, -1.0)]
        one_sided = [
            (two[0] - evaluate(expression, here)) / h,
            (evaluate(expression, here) - two[1]) / h,
        ]
        if abs(one_sided[0] - one_sided[1]) > 0.02 * (abs(one_sided[0]) + 1):
            return  # a kink within the step
        differences.append((two[0] - two[1]) / (2 * h))
    assert float(evaluate(slope, here)) == pytest.approx(float(differences[1]), rel=1e-4, abs=1e-5)


# --- compression ----------------------------------------------------------------------------------


LENGTHS = [1, 2, 60, 61, 100, 1000, 4097, 80_000]


@pytest.mark.parametrize("oscillating", [False, True])
@pytest.mark.parametrize("n", slow_but(LENGTHS[:-1], LENGTHS))
def test_squares_of_exponentials_from_few_samples(n: int, oscillating: bool) -> None:
    kept = compression(n, oscillating)
    random, t = np.random.default_rng(n), np.arange(n)
    rates = np.exp(random.uniform(np.log(1e-4 / n), np.log(50), 3))
    traces = [np.exp(-np.outer(rates, t)).sum(axis=0), rates[0] * t * np.exp(-rates[0] * t)]
    if oscillating:
        traces.append(np.exp(-rates[1] * t) * np.cos(0.6 * rates[1] * t + 1))
    data = random.normal(0, 1, n)
    z, rest = kept.project(data)
    for y in traces:
        compressed = np.sum((kept.matrix @ y[kept.points] - z) ** 2) + rest
        assert compressed == pytest.approx(np.sum((y - data) ** 2), rel=1e-9)
    assert len(kept.points) <= min(n, 200)
    gaps = np.diff(kept.points)
    assert (gaps & (gaps - 1) == 0).all()
    assert (gaps > 0).all()
    assert (kept.points[0], kept.points[-1]) == (0, n - 1)


@pytest.mark.parametrize("name", ["model_b", "herg_beattie"])
def test_a_preview_is_the_cost_of_the_linearization(name: str) -> None:
    problem = problem_of(model_named(name), RAMPS)
    values = problem.model.values()[:, None]
    parameters = values * np.random.default_rng(7).uniform(0.7, 1.4, (len(values), 4))
    parameters[0, 2] = np.nan
    scorer, ok = CpuScorer(problem), np.arange(4) != 2
    test, truth = scorer.preview(parameters), scorer.linearize(parameters)
    assert np.array_equal(test.status, truth.status)
    assert np.isinf(test.cost[2])
    exact = scorer.score(parameters).cost
    assert test.cost[ok] == pytest.approx(exact[ok], rel=1e-6)
    if problem.model.relaxes:  # nothing is cheaper than the score
        assert np.array_equal(test.cost[ok], exact[ok])
    else:
        assert test.cost[ok] == pytest.approx(truth.cost[ok], rel=1e-12)
