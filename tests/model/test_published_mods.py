"""Published channels against their own .mod file in NEURON, and against rates written out again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import yaml
from scipy.linalg import expm, null_space

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism, neuron_hoc
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import HostCupy
from support.differences import by_differences, errors
from support.exports import published, simulated
from support.exports import steps as shorter
from support.places import ROOT
from support.schemes import recording_of
from support.truths import slow_but

CASES = {f"{case.model}-{case.kind}": case for case in published.CASES}
NEURONS_OWN = [case for case in published.CASES if not case.sha256]
BACKENDS = ("reference", "cpu")
CLOSE = 1e-9


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference over the largest current; no number is as far off as can be."""
    return float(np.nan_to_num(np.abs(a - b), nan=np.inf).max() / np.abs(b).max())


Gate = Callable[[float], tuple[float, float]]


def gated(
    gates: list[tuple[Gate, int]], current: Callable[[float], float], protocol: Protocol
) -> np.ndarray:
    """(n_sweeps, n_times) of current(v) times the gates; a gate gives inf and tau at a voltage."""
    rows = []
    for segments in protocol.sweeps:
        row: list[float] = []
        start = [gate(protocol.holding_mV)[0] for gate, _ in gates]
        ranges = protocol.sample_ranges(len(rows))
        for segment, (first, last) in zip(segments, ranges, strict=True):
            v = float(segment.voltage(np.array(segment.start_ms)))
            t = np.append(np.arange(first, last) * protocol.sampling_ms, segment.end_ms)
            product = np.full(t.size, current(v))
            for k, (gate, power) in enumerate(gates):
                inf, tau = gate(v)
                x = inf + (start[k] - inf) * np.exp(-(t - segment.start_ms) / tau)
                start[k] = x[-1]
                product *= x**power
            row += product[:-1].tolist()
        rows.append(row)
    return np.array(rows)


def schemed(
    rates: Callable[[float], dict[tuple[int, int], float]],
    weights: np.ndarray,
    drive: Callable[[float], float],
    protocol: Protocol,
) -> np.ndarray:
    """(n_sweeps, n_times) of drive(v) times the weighted occupancies, by matrix exponentials."""

    def generator(v: float) -> np.ndarray:
        a = np.zeros((weights.size, weights.size))
        for (i, j), rate in rates(v).items():
            a[j, i] += rate
            a[i, i] -= rate
        return a

    rest = null_space(generator(protocol.holding_mV) / 1e6, rcond=1e-14)[:, 0]
    rows = []
    for segments in protocol.sweeps:
        p, row = rest / rest.sum(), []
        for segment, (first, last) in zip(segments, protocol.sample_ranges(len(rows)), strict=True):
            v = float(segment.voltage(np.array(segment.start_ms)))
            a, now = generator(v), segment.start_ms
            moves: dict[float, np.ndarray] = {}
            for k in range(first, last + 1):
                later = k * protocol.sampling_ms if k < last else segment.end_ms
                pause = round(later - now, 9)
                if pause not in moves:
                    moves[pause] = expm(a * pause)
                p = moves[pause] @ p
                now = later
                if k < last:
                    row.append(drive(v) * float(weights @ p))
        rows.append(row)
    return np.array(rows)


def khaliq(ha: float) -> list[tuple[Gate, int]]:
    def m(v: float) -> tuple[float, float]:
        u = v + 11
        slow = 3 * (3.4225e-5 + 0.00498 * np.exp(u / 28.29))
        quick = 0.00012851 + 1 / (np.exp((u + 100.7) / 12.9) + np.exp((u - 56) / -23.1))
        return 1 / (1 + np.exp(-(u + 24) / 15.4)), 1e3 * (slow if u < -35 else quick)

    def h(v: float) -> tuple[float, float]:
        u = v + 11
        above = 0.0012 + 0.0023 * np.exp(-0.141 * u)
        below = 1.2202e-05 + 0.012 * np.exp(-(((u + 56.3) / 49.6) ** 2))
        return 0.31 + ha / (1 + np.exp((u + 5.802) / 11.2)), 1e3 * (above if u > 0 else below)

    return [(m, 3), (h, 1)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ha", [0.69, 0.78])
def test_time_constants_in_pieces_and_an_inf_above_one(ha: float, backend: str) -> None:
    model, values = published.model_of(CASES["kv34_khaliq-gates, each tau in two pieces, q10"])
    values[model.parameter_names.index("ha")] = ha
    truth = gated(khaliq(ha), lambda v: 100 * (v + 88), shorter())
    assert khaliq(ha)[1][0](-120.0)[0] == pytest.approx(0.31 + ha, abs=1e-3)
    assert apart(simulated(model, values, shorter(), backend), truth) < CLOSE


def raman_bean(v: float) -> dict[tuple[int, int], float]:
    """C1 to C5 are 0 to 4, O is 5, B is 6, I1 to I6 are 7 to 12; at 34 degC."""
    q = 3**1.2
    a, b = 150**0.25, 0.01**0.25
    up, down = 150 * q * np.exp(v / 20), 3 * q * np.exp(-v / 20)
    rates = {
        (4, 5): 150 * q,
        (5, 4): 40 * q,
        (11, 12): 150 * q,
        (12, 11): 40 * q,
        (5, 6): 1.75 * q,
        (6, 5): 0.03 * q * np.exp(-v / 25),
        (5, 12): 0.75 * q,
        (12, 5): 0.005 * q,
    }
    for k in range(4):
        rates[k, k + 1], rates[k + 1, k] = (4 - k) * up, (k + 1) * down
        rates[k + 7, k + 8], rates[k + 8, k + 7] = (4 - k) * a * up, (k + 1) * b * down
    for k in range(5):
        rates[k, k + 7], rates[k + 7, k] = 0.005 * q * a**k, 0.5 * q * b**k
    return rates


@pytest.mark.parametrize("backend", BACKENDS)
def test_thirteen_states_with_rates_beyond_1e5(backend: str) -> None:
    case = next(case for case in published.CASES if case.model == "nav16_raman_bean")
    assert max(raman_bean(60.0).values()) > 1e5
    weights = (np.arange(13) == 5).astype(float)
    truth = schemed(raman_bean, weights, lambda v: 100 * (v - 60), shorter())
    assert apart(simulated(*published.model_of(case), shorter(), backend), truth) < CLOSE


def documented() -> dict[str, Any]:
    text = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    block = text.split("<!-- ghk -->\n```yaml\n")[1].split("```")[0]
    return dict(yaml.safe_load(block))


def constant_field(v: float, p: float, z: int, inside: float, outside: float) -> float:
    """pA for p um3/ms, concentrations in mM, at 34 degC: the formula of Goldman, Hodgkin, Katz."""
    with mpmath.workdps(40):
        f, r, t = mpmath.mpf("96485.33212"), mpmath.mpf("8.314462618"), mpmath.mpf("307.15")
        x = z * f * mpmath.mpf(v) / 1000 / (r * t)
        if x == 0:
            return float(mpmath.mpf("0.001") * p * z * f * (inside - outside))
        flux = (inside - outside * mpmath.exp(-x)) / (1 - mpmath.exp(-x))
        return float(mpmath.mpf("0.001") * p * z * f * x * flux)


def activation(v: float) -> tuple[float, float]:
    return 1 / (1 + np.exp(-(v + 30) / 6)), 1 + 4 / (1 + np.exp((v + 40) / 12))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_documents_example_carries_the_constant_field_current(backend: str) -> None:
    model = build_model(documented(), None)
    assert 0.0 in [sweep[1].wave.v_mV for sweep in shorter().sweeps]
    truth = gated([(activation, 2)], lambda v: constant_field(v, 10, 2, 1e-4, 2), shorter())
    assert apart(simulated(model, model.values(), shorter(), backend), truth) < CLOSE
    assert model.linear_parameters() == {"p": True}


def candidates_near(model: ChannelModel, n: int) -> np.ndarray:
    """(n_parameters, n): the published values, and others a tenth of the range about them."""
    draw = np.random.default_rng(7)
    values = np.tile(model.values()[:, None], n)
    for row, p in zip(values, model.parameters, strict=True):
        if not p.fixed:
            near = row[1:] * draw.uniform(0.9, 1.1, n - 1)
            row[1:] = np.clip(near, p.lower, p.upper)
    return values


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("name", slow_but(["hcn2_golgi"], ["cav31_anwar", "hcn2_golgi"]))
@pytest.mark.filterwarnings("error::RuntimeWarning")  # the share of a gate is 0 at some voltages
def test_costs_and_derivatives_through_pieces_and_gates_at_once(name, backend, monkeypatch):
    if backend == "cuda":
        monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    model = published.model_of(next(c for c in published.CASES if c.model == name))[0]
    protocol = replace(shorter(), sampling_ms=1.0)
    problem = Problem(model, (Experiment(protocol, recording_of(protocol, 1)),))
    candidates = candidates_near(model, 3)
    scorer, truth = make_scorer(problem, backend), make_scorer(problem, "reference")
    assert scorer.score(candidates).cost == pytest.approx(truth.score(candidates).cost, rel=CLOSE)
    found = scorer.linearize(candidates)
    assert max(errors(found, by_differences(problem, candidates))) < 1e-6


@pytest.fixture(scope="module")
def demonstration() -> list[Path]:
    """The folder of mechanisms that came with NEURON; skips without it or without a compiler."""
    try:
        neuron_hoc()
        folders = published.neurons_own()
        if not folders:
            pytest.skip("this NEURON came without its release demonstration")
        text = published.found(NEURONS_OWN[0], folders).read_text(encoding="latin-1")
        compile_mechanism(text)
    except NeuronUnavailable as error:
        pytest.skip(str(error))
    return folders  # type: ignore[no-any-return]


@pytest.mark.integration
@pytest.mark.parametrize("case", NEURONS_OWN, ids=lambda case: case.model)
def test_neurons_own_files_agree_once_they_compute_their_rates(case, demonstration):
    text = published.found(case, demonstration).read_text(encoding="latin-1")
    tabled = max(published.errors(case, text, False, shorter()).values())
    computed = max(published.errors(case, text, True, shorter()).values())
    assert published.BAR < tabled < 1e-3  # the table's, as the benchmark says
    assert computed < CLOSE
