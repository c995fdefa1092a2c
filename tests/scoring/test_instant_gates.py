"""Gates without a time constant, and gates whose inf exceeds 1, in every backend and path."""

from __future__ import annotations

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
from channelfit.scoring.scorer import make_scorer
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
    rows = (
        (p, recording_of(p, k, "changing" if k else "plain"), 1.0 + k)
        for k, p in enumerate(protocols)
    )
    return Problem(of or model(), tuple(Experiment(*row) for row in rows))


def candidates(n: int, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out = np.array([rng.uniform(p.lower, p.upper, n) for p in model().parameters])
    out[:, 0] = model().values()
    return out


def true_current(p: Protocol, theta: np.ndarray) -> np.ndarray:
    """(n_sweeps, n_times) pA: r at its limit in each sample, the rest by SciPy's Radau."""
    vr, kr, top, tm, bh, g, erev = theta

    def limits_and_speeds(v):
        alpha, beta = 0.07 * np.exp(-(v + 60) / 20), bh / (1 + np.exp(-(v + 30) / 10))
        m = top / (1 + np.exp(-(v + 20) / 9))
        speeds = np.array([1 / (tm + 0.5 * np.exp(-v / 30)), alpha + beta])
        return np.array([m, alpha / (alpha + beta)]), speeds

    def slopes(t, x, command):
        limits, speeds = limits_and_speeds(float(command(np.array([t]))[0]))
        return (limits - x) * speeds

    out, times = np.empty((p.n_sweeps, p.n_times_max)), p.times_ms
    for k, sweep in enumerate(p.sweeps):
        x = limits_and_speeds(p.holding_mV)[0]
        for segment in sweep:
            inside = (times > segment.start_ms - 1e-9) & (times < segment.end_ms - 1e-9)
            ends, voltage = (segment.start_ms, segment.end_ms), segment.voltage
            how = {"args": (voltage,), "rtol": 1e-10, "atol": 1e-12, "dense_output": True}
            found = solve_ivp(slopes, ends, x, "Radau", **how)
            v, (m, h) = voltage(times[inside]), found.sol(times[inside])
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


def test_costs_from_modes(backend) -> None:
    posed, theta = problem(STEPS), candidates(17)
    truth = make_scorer(posed, "reference").score(theta).cost
    score = make_scorer(posed, backend, path="closed-form").score(theta)
    assert (score.status == OK).all()
    assert score.cost == pytest.approx(truth, rel=1e-9)


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


def with_gates(**gates: dict[str, object]) -> ChannelModel:
    document = {
        "gates": gates,
        "current": {"conductance": 1, "reversal": 0},
        "parameters": {p: {"range": [-40, 2], "value": 0.5, "fixed": True} for p in "abcd"},
    }
    return build_model(document, None)


def test_a_tiny_tau_is_a_fast_gate(backend) -> None:
    """Not inf = 0.5, as two rates at one ceiling would have it."""
    posed = problem(STEPS, of=with_gates(n={"inf": "0.1*b + 0.2", "tau": "10**a"}))
    theta = np.array([[-6.0, -9.0, -30.0], *[[0.5] * 3] * 3])
    found = make_scorer(posed, backend).simulate(theta)[0]
    assert found == pytest.approx(0.25 * STEPS.command()[..., None] * np.ones(3), rel=1e-12)


@pytest.mark.parametrize("backend", ["reference", "cpu", "played"], indirect=True)
def test_what_is_no_gate_is_told(backend) -> None:
    """inf below 0 and tau below 0 have a status; inf above 1 has not."""
    gates = {
        "slow": {"inf": "a", "tau": 2},
        "instant": {"inf": "b", "tau": 0},
        "timed": {"inf": 0.5, "tau": "c"},
        "root": {"inf": "sqrt(d)", "tau": 1},
    }
    theta = np.full((4, 6), 0.5)
    theta[range(4), range(1, 5)] = -0.5
    theta[:, 5] = 1.7
    scorer = make_scorer(problem(STEPS, of=with_gates(**gates)), backend)
    wanted = [OK, NEGATIVE_RATE, NEGATIVE_RATE, NEGATIVE_RATE, NOT_FINITE, OK]
    assert list(scorer.score(theta).status) == wanted
    assert list(scorer.linearize(theta).status) == wanted


def test_a_negative_tau_and_the_scheme_of_an_instant_gate_are_refused() -> None:
    with pytest.raises(InputError, match=r"gates\.n\.tau: a time of 0 or more was expected, not"):
        with_gates(n={"inf": "a", "tau": "-1"})
    with pytest.raises(InputError, match="the gate r has no time constant"):
        model().expanded()
