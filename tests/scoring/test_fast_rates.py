"""Rates of any size: steady states and steps against arithmetic of many digits.

The truth is mpmath with 60 digits and more: the generator's null vector by elimination, its
exponential by Taylor's series and squaring. It bounds no rate and knows no trick.
"""

from __future__ import annotations

import sys
from functools import cache

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import HostCupy
from support.truths import slow_but

HOLDING, STEP = -80.0, 40.0
N = 16  # candidates side by side


@cache
def complete(n: int) -> ChannelModel:
    """n states, each with a rate to every other; candidates leave out what they do not have."""
    ways = [(i, j) for i in range(n) for j in range(n) if i != j]
    is_open = {"S0": 0.25, f"S{n - 1}": 1.0}
    parameters = {f"a{i}_{j}": {"range": [0, 1e30], "value": 1} for i, j in ways}
    parameters |= {f"b{i}_{j}": {"range": [-1, 1], "value": 0} for i, j in ways}
    document = {
        "name": f"complete_{n}",
        "states": [f"S{i}" for i in range(n)],
        "rates": {f"S{i} -> S{j}": f"a{i}_{j}*exp(b{i}_{j}*v)" for i, j in ways},
        "current": {"open": is_open, "conductance": 1.0, "reversal": -100},
        "parameters": parameters,
    }
    return build_model(document, None)


def protocol() -> Protocol:
    segments = [{"hold": 0.2}, {"step": STEP, "for": 2}, {"hold": 1}]
    return build_protocol({"holding": HOLDING, "sampling": 0.05, "segments": segments}, None)


def random_schemes(n: int, seed: int, fastest: float) -> np.ndarray:
    """Parameters (n_parameters, N): rates at both voltages over 10^-9 .. fastest, some left out.

    A ring of transitions always stays, so that every state can be reached.
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, np.ndarray] = {}
    for i in range(n):
        for j in range(n):
            if i != j:
                there = (rng.random(N) < 0.6) | ((i + 1) % n == j)
                low, high = 10 ** rng.uniform(-9, np.log10(fastest), (2, N))
                slope = np.log(high / low) / (STEP - HOLDING)
                rows[f"a{i}_{j}"] = np.where(there, high * np.exp(-slope * STEP), 0.0)
                rows[f"b{i}_{j}"] = np.where(there, slope, 0.0)
    return np.array([rows[name] for name in complete(n).parameter_names])


def generator(n: int, theta: np.ndarray, v: float) -> mpmath.matrix:
    at = dict(zip(complete(n).parameter_names, theta, strict=True))
    a = mpmath.matrix(n, n)
    for i in range(n):
        for j in range(n):
            if i != j:
                rate = mpmath.mpf(at[f"a{i}_{j}"]) * mpmath.exp(mpmath.mpf(at[f"b{i}_{j}"]) * v)
                a[j, i] += rate
                a[i, i] -= rate
    return a


def at_rest(a: mpmath.matrix) -> mpmath.matrix:
    n = a.rows
    system = a.copy()
    for i in range(n):
        system[n - 1, i] = 1
    return mpmath.lu_solve(system, mpmath.matrix([0] * (n - 1) + [1]))


def exponential(a: mpmath.matrix) -> mpmath.matrix:
    levels = max(0, int(mpmath.ceil(mpmath.log(mpmath.mnorm(a, 1) + 1, 2)))) + 4
    small, power = a / mpmath.mpf(2) ** levels, mpmath.eye(a.rows)
    total = mpmath.eye(a.rows)
    for k in range(1, 30):
        power = power * small / k
        total += power
    for _ in range(levels):
        total = total * total
    return total


def true_currents(n: int, parameters: np.ndarray, p: Protocol) -> np.ndarray:
    """(n_times, n_candidates) pA: the model's conductance is 1 nS."""
    out = np.empty((p.n_times(0), parameters.shape[1]))
    with mpmath.workdps(70):
        for c in range(parameters.shape[1]):
            generators = {v: generator(n, parameters[:, c], v) for v in (HOLDING, STEP)}
            steps = {v: exponential(a * mpmath.mpf(p.sampling_ms)) for v, a in generators.items()}
            x = at_rest(generators[HOLDING])
            for k, v in enumerate(p.command()[0]):
                is_open = x[0] / 4 + x[n - 1]
                out[k, c] = float(is_open * (v + 100))
                x = steps[float(v)] * x
    return out


def worst(test: np.ndarray, truth: np.ndarray, least: float = 1e-6) -> float:
    """Largest error over the peak of each trace, or a small part of the open channel's current."""
    peak = np.maximum(np.abs(truth).max(axis=0), 140 * least)
    return float(np.max(np.abs(test - truth).max(axis=0) / peak))


@pytest.mark.parametrize("n", slow_but([3], [2, 3, 5]))
@settings(max_examples=2, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), fastest=st.sampled_from([1e9, 1e14, 1e22]))
def test_steps_and_steady_states(n: int, seed: int, fastest: float) -> None:
    """reference, cpu and the CUDA text; up to 1e9 /ms to 1e-9, and beyond."""
    p, parameters = protocol(), random_schemes(n, seed, fastest)
    truth = true_currents(n, parameters, p)
    problem = Problem(complete(n), (Experiment(p),))
    for backend in ("reference", "cpu"):
        (test,) = make_scorer(problem, backend=backend).simulate(parameters)
        assert worst(test[0], truth) < 1e-9, backend
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", HostCupy())
        (test,) = make_scorer(problem, "cuda").simulate(parameters)
        assert worst(test[0], truth) < 1e-9
        (test,) = make_scorer(problem, "cuda", "float32").simulate(parameters)
        assert worst(test[0], truth, least=1e-3) < 1e-3
