"""Gating currents against an integrator, against the charge between two voltages, and NEURON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import simpson, solve_ivp

from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.comparison import compare
from channelfit.scoring.neuron.oracle import NeuronOracle
from channelfit.scoring.scorer import make_scorer

E0 = 1.602176634e-19
CHARGES = {"C1 -> C2": "2*z*25.4", "O -> C2": -0.6}
MODEL: dict[str, Any] = {
    "name": "gating",
    "states": ["C1", "C2", "O"],
    "rates": {
        "C1 -> C2": "2*a*exp(z*v)",
        "C2 -> C1": "0.05*exp(-z*v)",
        "C2 -> O": "0.3*exp(v/40)",
        "O -> C2": "0.2",
    },
    "current": {"gating": {"charges": CHARGES, "channels": "N"}},
    "parameters": {
        "a": {"range": [0.001, 10], "value": 0.1},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        "N": {"range": [1, 1e7], "value": 1e5},
    },
}
PULSE = [{"hold": 2}, {"step": 20, "for": 9}, {"ramp": [20, -60], "for": 6}, {"hold": 10}]
FLOWING = {"open": ["O"], "conductance": "3 nS", "reversal": "-50 mV"}


def commanded(rows: list[dict[str, Any]] = PULSE, sampling: float = 0.1) -> Protocol:
    return Protocol.from_segments(rows, holding=-80, sampling=sampling)


def simulated(document: dict[str, Any], protocol: Protocol, backend: str = "cpu") -> np.ndarray:
    model = build_model(document, None)
    problem = Problem(model, (Experiment(protocol),))
    return make_scorer(problem, backend).simulate(model.values()[:, None])[0][0, :, 0]


def rates(v: float) -> tuple[float, float, float, float]:
    return 0.2 * np.exp(0.02 * v), 0.05 * np.exp(-0.02 * v), 0.3 * np.exp(v / 40), 0.2


def at_rest(v: float) -> np.ndarray:
    up, down, opening, closing = rates(v)
    p = np.array([1, up / down, up / down * opening / closing])
    return p / p.sum()


def integrated(protocol: Protocol) -> tuple[np.ndarray, np.ndarray]:
    """Occupancies of O, and pA that flow as 1.016 and 0.6 charges move, by the net fluxes."""

    def fluxes(v: float, p: np.ndarray) -> np.ndarray:
        up, down, opening, closing = rates(v)
        return np.array([up * p[0] - down * p[1], opening * p[1] - closing * p[2]])

    p, times = at_rest(-80), protocol.times_ms
    pA, opened = np.empty(len(times)), np.empty(len(times))
    for segment in protocol.sweeps[0]:

        def change(t: float, x: np.ndarray, segment: Any = segment) -> np.ndarray:
            one, two = fluxes(float(segment.voltage(np.array(t))), x)
            return np.array([-one, one - two, two])

        inside = (times >= segment.start_ms - 1e-9) & (times < segment.end_ms - 1e-9)
        at = np.append(times[inside], segment.end_ms)
        ends = segment.start_ms, segment.end_ms
        found = solve_ivp(change, ends, p, "DOP853", t_eval=at, rtol=1e-11, atol=1e-14).y.T
        volts = segment.voltage(at)
        moved = [fluxes(v, x) @ [2 * 0.02 * 25.4, 0.6] for v, x in zip(volts, found, strict=True)]
        # of each channel, charges per ms; A to pA
        pA[inside] = (1e5 * E0 * 1e3 * 1e12 * np.array(moved))[:-1]
        opened[inside] = found[:-1, 2]
        p = found[-1]
    return opened, pA


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_gating_current_is_that_of_net_fluxes(backend):
    protocol = commanded()
    opened, truth = integrated(protocol)
    found = simulated(MODEL, protocol, backend)
    assert np.abs(found - truth).max() < 1e-7 * np.abs(truth).max()
    both = {**MODEL, "current": {**MODEL["current"], **FLOWING}}
    flowing = 3 * opened * (protocol.command()[0] + 50)
    found = simulated(both, protocol, backend)
    assert np.abs(found - flowing - truth).max() < 1e-7 * np.abs(flowing).max()


def test_the_charge_between_two_voltages_is_that_of_their_equilibria():
    """And it comes back: what a step moves outward its end moves inward."""
    steps = commanded([{"step": 20, "for": 60}, {"hold": 120}], sampling=0.005)
    found = simulated(MODEL, steps)
    n = round(60 / 0.005)
    charges = np.array([0, 2 * 0.02 * 25.4, 2 * 0.02 * 25.4 + 0.6])
    moved = charges @ (at_rest(20) - at_rest(-80)) * 1e5 * E0 * 1e15  # fC
    out, back = (simpson(part, dx=0.005) for part in (found[:n], found[n:]))
    # half of a sample is missing where the command jumps
    assert out == pytest.approx(moved, rel=2e-3)
    assert back == pytest.approx(-moved, rel=2e-3)


def test_derivatives_are_those_of_the_reference(device):
    model = build_model(MODEL, None)
    protocol = commanded()
    noisy = simulated(MODEL, protocol) + np.random.default_rng(1).normal(0, 1, protocol.n_times_max)
    data = Recording.from_arrays(protocol, noisy[None])
    problem = Problem(model, (Experiment(protocol, data),))
    at = model.values()[:, None] * np.array([1.0, 1.2])
    truth = make_scorer(problem, "reference").linearize(at)
    for backend in ("cpu", "cuda"):
        found = make_scorer(problem, backend).linearize(at)
        assert found.cost == pytest.approx(truth.cost, rel=1e-8)
        size = np.abs(truth.gradient).max(axis=1, keepdims=True)
        assert (np.abs(found.gradient - truth.gradient) < 1e-5 * size).all()


@pytest.mark.integration
def test_neuron_moves_the_same_charges():
    pytest.importorskip("neuron")
    model, protocol = build_model(MODEL, None), commanded()
    scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
    (case,) = compare(NeuronOracle(model), [protocol], scorer.simulate, model.values())
    assert case.relative_error < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"charges": {"C1 -> O": 1}}, "the scheme has no transition C1 -> O"),
        ({"charges": {"C1 -> X": 1}}, 'unknown state "X"'),
        ({"charges": {"C1 -> C2": 1, "C2 -> C1": -1}}, "given twice"),
        ({"charges": {"C1 -> C2": "v"}}, "depends on v"),
        ({"channels": "v"}, "depends on v"),
        ({"charges": {}}, "at least one transition"),
    ],
)
def test_what_cannot_be_used_is_refused(change, message):
    gating = {**MODEL["current"]["gating"], **change}
    with pytest.raises(InputError, match=message):
        build_model({**MODEL, "current": {"gating": gating}}, None)


def test_gates_and_open_states_without_a_conductance_are_refused():
    with pytest.raises(InputError, match="says nothing without a conductance"):
        build_model({**MODEL, "current": {**MODEL["current"], "open": ["O"]}}, None)
    gates = {k: x for k, x in MODEL.items() if k not in ("states", "rates")}
    gates["gates"] = {"m": {"alpha": "a*exp(z*v)", "beta": "0.1"}}
    with pytest.raises(InputError, match="write gates as states and rates"):
        build_model(gates, None)
