"""Linearizations from Chebyshev moments, against the reference and against propagators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.scoring import cpu_moments
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.cpu_moment_tangents import MomentTangents, serves
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.scorer import Linearization, make_scorer
from support.differences import errors, stairs
from support.schemes import (
    PROTOCOLS,
    candidates,
    from_yaml,
    held,
    model_named,
    random_scheme,
    recording_of,
)
from support.truths import slow_but

#: Families that share a beginning, long and short runs, runs that are scored and lead to others.
LONG = from_yaml(
    segments=[
        {"hold": "3 ms"},
        {"step": {"values": [-110, -50, 30]}, "for": "61.7 ms"},
        {"step": -70, "for": 20},
    ]
)


def problem_of(model: ChannelModel, *protocols) -> Problem:
    pairs = enumerate(protocols or (LONG, PROTOCOLS["steps"]))
    rows = ((p, recording_of(p, k, "masked" if k else "plain"), 1.0 + 0.7 * k) for k, p in pairs)
    return Problem(model, tuple(Experiment(*row) for row in rows))


def line(n: int, fastest: float = 1.0, **changed: str) -> ChannelModel:
    """A line of n states of which every rate has two parameters, the last two states open."""
    rates, parameters = {}, {"g": {"range": [0.1, 10], "value": 2}}
    for i in range(1, n):
        for source, target, sign in ((i, i + 1, ""), (i + 1, i, "-")):
            a, z = f"a{source}_{target}", f"z{source}_{target}"
            rates[f"S{source} -> S{target}"] = f"{a}*exp({sign}{z}*v)"
            parameters[a] = {"range": [fastest * 1e-2, fastest], "value": fastest / 2}
            parameters[z] = {"range": [0.001, 0.03], "value": 0.02}
    document = {
        "name": f"line_{n}",
        "states": [f"S{i}" for i in range(1, n + 1)],
        "rates": rates | changed,
        "current": {
            "open": {f"S{n}": 1.0, f"S{n - 1}": 0.3},
            "conductance": "g",
            "reversal": "-90 mV",
        },
        "parameters": parameters,
    }
    return build_model(document, None)


def by_moments(problem: Problem) -> MomentTangents:
    return MomentTangents(problem, TangentSource(problem.model))


def by_propagators(problem: Problem) -> Linearizer:
    return CpuScorer(problem, path="stepping")._tangents


def linearized(problem: Problem, normals: tuple[np.ndarray, np.ndarray]) -> Linearization:
    """What `Linearizer.linearize` makes of statuses and products."""
    status, products = normals
    free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
    out = Linearization.empty(len(problem.model.parameters), len(status))
    out.status[:] = status
    products = products / problem.scored.total_weight
    out.cost[:] = products[:, 0, 0]
    out.gradient[free] = 2 * products[:, 0, 1:].T
    out.hessian[np.ix_(free, free)] = 2 * products[:, 1:, 1:].transpose(1, 2, 0)
    return out


def compared(problem: Problem, parameters: np.ndarray) -> tuple[float, float]:
    """The largest error of candidates beside propagators, and the share that is in doubt."""
    status, products, doubted = by_moments(problem).normals(np.ascontiguousarray(parameters.T))
    truth = by_propagators(problem).normals(parameters)
    assert np.array_equal(status, truth[0])
    sure = (status == OK) & ~doubted
    if not sure.any():
        return 0.0, 1.0
    pair = [linearized(problem, (s[sure], n[sure])) for s, n in ((status, products), truth)]
    return max(errors(*pair, parameters[:, sure])), float(doubted.mean())


@pytest.mark.parametrize("n", slow_but([6], [6, 9]))
def test_cost_and_derivatives_are_those_of_the_reference(n):
    problem = problem_of(line(n))
    parameters = candidates(problem.model, 3, seed=6)
    assert serves(problem)
    test = CpuScorer(problem).linearize(parameters)
    truth = make_scorer(problem, "reference").linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-9
    assert not by_moments(problem).normals(np.ascontiguousarray(parameters.T))[2].any()


@pytest.mark.parametrize("name", ["herg_markov", "na_markov"])
def test_shipped_schemes_over_their_full_ranges(name):
    """Those too fast for any table are left to propagators."""
    problem = held(name)
    error, doubted = compared(problem, candidates(problem.model, 100, seed=3))
    assert error < 1e-9
    assert doubted < 0.9


def test_many_states():
    """The reference itself errs by 2e-9 here."""
    problem = problem_of(line(16))
    error, doubted = compared(problem, candidates(problem.model, 5, seed=6))
    assert error < 1e-9
    assert doubted < 0.5


@pytest.mark.parametrize("samples", [1, 2, 59, 700])
def test_runs_of_any_length(samples):
    """Also of one sample, and of more than are kept whole."""
    problem = problem_of(line(7), stairs([samples, samples + 3]))
    error, doubted = compared(problem, candidates(problem.model, 5, seed=samples))
    assert error < 1e-9
    assert doubted < 1


@settings(max_examples=15)
@given(st.lists(st.floats(-4, 2), min_size=8, max_size=8), st.floats(-4, 0))
def test_any_rates_by_moments_and_by_propagators(decades, slope):
    """Of a line of five states, over six decades."""
    values = [2.0, *(x for decade in decades for x in (10**decade, 0.03 * 10**slope))]
    error, _ = compared(ANY_RATES, np.array(values)[:, None])
    assert error < 1e-9


@pytest.mark.parametrize("seed", slow_but([1], range(12)))
def test_any_scheme_by_moments_and_by_propagators(seed):
    """Rings with chords, some of them one way, where occupancies may oscillate."""
    problem = problem_of(random_scheme(3 + seed % 7, seed))
    error, doubted = compared(problem, np.geomspace(1e-3, 0.1, 7)[None])
    assert error < 1e-9
    assert doubted < 1


ANY_RATES = problem_of(line(5))
NASTY = {
    "a state that keeps all": line(6, **{"S6 -> S5": "1e-12*a6_5*exp(-z6_5*v)"}),
    "never open": line(6, **{"S3 -> S4": "1e-60*a3_4*exp(z3_4*v)"}),
    "a cycle": line(6, **{"S6 -> S1": "0.3*a1_2"}),
    "far too fast": line(6, 1e9),
    "far too slow": line(6, 1e-9),
}


@pytest.mark.parametrize("name", NASTY)
def test_nasty_schemes(name):
    problem = problem_of(NASTY[name])
    parameters = candidates(problem.model, 6, seed=2)
    error, doubted = compared(problem, parameters)
    assert error < 1e-9
    assert (doubted == 1) == (name in ("far too fast", "never open"))
    found = CpuScorer(problem).linearize(parameters)  # those in doubt go by propagators
    truth = linearized(problem, by_propagators(problem).normals(parameters))
    assert max(errors(found, truth, parameters)) < 1e-9


def test_no_result_depends_on_its_company():
    """Fast, slow and impossible candidates in one call and alone, to the bit."""
    problem = problem_of(line(6))
    parameters = candidates(problem.model, 7, seed=5)
    parameters[1, 1:3] *= 1e5, -1.0
    parameters[2, 3] = np.nan
    scorer = CpuScorer(problem)
    together = scorer.linearize(parameters)
    assert {NOT_FINITE, NEGATIVE_RATE, OK} == set(together.status.tolist())
    for k in range(7):
        fresh = CpuScorer(problem).linearize(parameters[:, k : k + 1])
        for one, all_ in zip(vars(fresh).values(), vars(together).values(), strict=True):
            assert np.array_equal(one[..., 0], all_[..., k])


def test_fixed_parameters_have_no_column():
    model = line(6)
    fixed = {"a1_2", "z1_2", "a4_5", "g"}
    changed = tuple(
        replace(p, fixed=True, value=p.upper) if p.name in fixed else p for p in model.parameters
    )
    problem = problem_of(replace(model, parameters=changed))
    error, doubted = compared(problem, candidates(problem.model, 3, seed=1))
    assert error < 1e-9
    assert doubted == 0


def test_what_does_not_fit_in_memory_goes_by_propagators(monkeypatch):
    monkeypatch.setattr(cpu_moments, "_MOST_NUMBERS", -1)
    problem = problem_of(line(6))
    parameters = candidates(problem.model, 2, seed=1)
    expected = Linearization.empty(*parameters.shape)
    by_propagators(problem).linearize(parameters, 0, 2, *vars(expected).values())
    assert np.array_equal(CpuScorer(problem).linearize(parameters).hessian, expected.hessian)


def test_what_moments_do_not_serve():
    """Few states, ramps, products of gates, and currents that are not ohmic."""
    ramp = PROTOCOLS["ramp"]
    assert not serves(problem_of(model_named("model_c")))
    assert not serves(problem_of(line(6), ramp))
    assert not serves(problem_of(model_named("na_hh")))
    assert not serves(problem_of(model_named("k_hh_gate")))
