"""Gates without a time constant, and gates whose inf exceeds 1, in every backend and path."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import HostCupy
from support.differences import by_differences, errors
from support.schemes import from_yaml, recording_of

#: At once: `r`, squared. Published fits do such things: `m` passes 1 and ends at 1.09.
GATES = {
    "name": "gates",
    "gates": {
        "r": {"power": 2, "inf": "1/(1 + exp(-(v - vr)/kr))", "tau": 0},
        "m": {"power": 3, "inf": "top/(1 + exp(-(v + 20)/9))", "tau": "tm + 0.5*exp(-v/30)"},
        "h": {"alpha": "0.07*exp(-(v + 60)/20)", "beta": "bh/(1 + exp(-(v + 30)/10))"},
    },
    "current": {"conductance": "g", "reversal": "erev"},
    "parameters": {
        "vr": {"range": [-60, 20], "value": -30},
        "kr": {"range": [4, 30], "value": 11},
        "top": {"range": [0.5, 1.5], "value": 1.09},
        "tm": {"range": [0.1, 3], "value": 0.4},
        "bh": {"range": [0.01, 2], "value": 1},
        "g": {"range": [0, 10], "value": 5},
        "erev": {"range": [-90, 60], "value": 50},
    },
}
STEPS = from_yaml(
    segments=[
        {"hold": 1},
        {"step": {"from": -70, "to": 50, "by": 40}, "for": 6},
        {"step": -50, "for": 2.03},
    ]
)
MOVING = from_yaml(
    segments=[
        {"hold": 1},
        {"step": 20, "for": 2},
        {"ramp": [-100, 40], "for": 9},
        {"step": -40, "for": 2},
        {"sines": {"offset": -30, "terms": [{"amplitude": 30, "omega": 0.4}]}, "for": 8},
    ]
)


@cache
def model() -> ChannelModel:
    return build_model(GATES, None)


def problem(*protocols: Protocol, of: ChannelModel | None = None) -> Problem:
    return Problem(
        of or model(),
        tuple(
            Experiment(p, recording_of(p, k, "changing" if k else "plain"), 1.0 + k)
            for k, p in enumerate(protocols)
        ),
    )


def candidates(n: int, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out = np.array([rng.uniform(p.lower, p.upper, n) for p in model().parameters])
    out[:, 0] = model().values()
    return out


def true_current(p: Protocol, theta: np.ndarray) -> np.ndarray:
    """(n_sweeps, n_times) pA: r at its limit in each sample, the rest by SciPy's Radau."""
    vr, kr, top, tm, bh, g, erev = theta

    def m_inf(v):
        return top / (1 + np.exp(-(v + 20) / 9))

    def slopes(t, x, command):
        v = float(command(np.array([t]))[0])
        alpha, beta = 0.07 * np.exp(-(v + 60) / 20), bh / (1 + np.exp(-(v + 30) / 10))
        return [(m_inf(v) - x[0]) / (tm + 0.5 * np.exp(-v / 30)), alpha * (1 - x[1]) - beta * x[1]]

    out = np.empty((p.n_sweeps, p.n_times_max))
    for k, sweep in enumerate(p.sweeps):
        v = p.holding_mV
        alpha, beta = 0.07 * np.exp(-(v + 60) / 20), bh / (1 + np.exp(-(v + 30) / 10))
        x = [m_inf(v), alpha / (alpha + beta)]
        times = p.times_ms
        for segment in sweep:
            inside = (times > segment.start_ms - 1e-9) & (times < segment.end_ms - 1e-9)
            found = solve_ivp(
                slopes,
                (segment.start_ms, segment.end_ms),
                x,
                "Radau",
                args=(segment.voltage,),
                rtol=1e-10,
                atol=1e-12,
                dense_output=True,
            )
            v = segment.voltage(times[inside])
            m, h = found.sol(times[inside])
            r = 1 / (1 + np.exp(-(v - vr) / kr))
            out[k, inside] = g * r**2 * m**3 * h * (v - erev)
            x = found.y[:, -1]
    return out


def test_the_reference_is_right() -> None:
    """Also at the very sample at which the voltage jumps."""
    theta = candidates(3)
    for p in (STEPS, MOVING):
        found = make_scorer(problem(p), "reference").simulate(theta)[0]
        for c in range(theta.shape[1]):
            truth = true_current(p, theta[:, c])
            assert np.abs(found[..., c] - truth).max() < 2e-6 * np.abs(truth).max()


@pytest.fixture(params=["cpu", "played", pytest.param("real", marks=pytest.mark.gpu)])
def backend(request, monkeypatch):
    if request.param == "played":
        monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    elif request.param == "real" and not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return "cpu" if request.param == "cpu" else "cuda"


@pytest.mark.parametrize("path", ["stepping", "modal", "closed-form"])
def test_costs_and_traces(backend, path) -> None:
    posed, theta = problem(STEPS), candidates(23)
    truth = make_scorer(posed, "reference")
    scorer = make_scorer(posed, backend, path=path)
    cost = scorer.score(theta)
    assert (cost.status == OK).all()
    assert cost.cost == pytest.approx(truth.score(theta).cost, rel=1e-9)
    found, right = scorer.simulate(theta)[0], truth.simulate(theta)[0]
    assert np.abs(found - right).max() < 1e-9 * np.abs(right).max()


def test_moving_voltage(backend) -> None:
    posed, theta = problem(STEPS, MOVING), candidates(9)
    truth = make_scorer(posed, "reference")
    for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-3)):
        scorer = make_scorer(posed, backend, dtype)
        cost = scorer.score(theta)
        assert (cost.status == OK).all()
        assert cost.cost == pytest.approx(truth.score(theta).cost, rel=tolerance)
        for found, right in zip(scorer.simulate(theta), truth.simulate(theta), strict=True):
            ok = ~np.isnan(right)
            assert np.abs(found - right)[ok].max() < tolerance * np.abs(right[ok]).max()


def test_derivatives(backend) -> None:
    posed, theta = problem(STEPS, MOVING), candidates(4)
    found = make_scorer(posed, backend).linearize(theta)
    assert max(errors(found, by_differences(posed, theta))) < 1e-6


def gate(**keys: object) -> ChannelModel:
    return build_model(
        {
            "gates": {"n": keys},
            "current": {"conductance": 1, "reversal": 0},
            "parameters": {"p": {"range": [-2, 2], "value": 0.5}},
        },
        None,
    )


@pytest.mark.parametrize("tau", ["1e-6", "1e-9", "1e-30"])
def test_a_tiny_tau_is_a_fast_gate(tau, backend) -> None:
    """Not inf = 0.5, as two rates at one ceiling would have it."""
    posed = problem(STEPS, of=gate(inf="0.1*p + 0.2", tau=tau))
    found = make_scorer(posed, backend).simulate(np.array([[0.5]]))[0][..., 0]
    assert found == pytest.approx(0.25 * STEPS.command(), rel=1e-12)


def test_what_is_no_gate_is_told(backend) -> None:
    """inf below 0 and tau below 0 have a status; inf above 1 has not."""
    theta = np.array([[0.5, -0.5, 1.7]])
    for key, wanted in (
        ({"inf": "p", "tau": "2"}, [OK, NEGATIVE_RATE, OK]),
        ({"inf": "p", "tau": "0"}, [OK, NEGATIVE_RATE, OK]),
        ({"inf": "0.5", "tau": "p"}, [OK, NEGATIVE_RATE, OK]),
        ({"inf": "sqrt(p)", "tau": "1"}, [OK, NOT_FINITE, OK]),
    ):
        posed = problem(STEPS, of=gate(**key))
        for scorer in (make_scorer(posed, "reference"), make_scorer(posed, backend)):
            assert list(scorer.score(theta).status) == wanted, (key, scorer.backend)
            assert list(scorer.linearize(theta).status) == wanted, (key, scorer.backend)


def test_a_negative_tau_and_the_scheme_of_an_instant_gate_are_refused() -> None:
    with pytest.raises(InputError, match=r"gates\.n\.tau: a time of 0 or more was expected, not"):
        gate(inf="p", tau="-1")
    with pytest.raises(InputError, match="the gate r has no time constant"):
        model().expanded()
