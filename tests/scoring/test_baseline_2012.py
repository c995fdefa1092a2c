"""The benchmark's 2012 design, run on the processor: against Euler in NumPy and the reference."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

import baseline_2012
import numpy as np
import pytest
import sympy
from baseline_2012 import Baseline2012, kernel_text
from chains import chain_model, paper_protocols
from scipy.special import exprel

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.scorer import make_scorer
from scoring import candidates, problem
from support.cuda_host import HostCupy, compile_with_nvrtc, host_program
from support.places import ROOT
from support.schemes import SHIPPED
from support.truths import slow_but

pytestmark = pytest.mark.integration


class OnHost:
    """The kernel on this machine's processor, in place of a device."""

    xp = np

    def __init__(self, text: str) -> None:
        self.program = host_program(text)

    def fill(self, name: str, values: np.ndarray) -> None:
        self.program.variable(name, np.float32, values.shape)[...] = values

    def launch(self, name: str, blocks: int, threads: int, args: Any, shared_bytes: int) -> None:
        self.program.launch(name, blocks, threads, args, shared_bytes)


@cache
def shipped(name: str) -> ChannelModel:
    return load_model(ROOT / "models" / f"{name}.yaml")


def steps(sampling_ms: float) -> Protocol:
    segments = [
        {"hold": "1 ms"},
        {"step": {"values": [-30, 20]}, "for": "6 ms"},
        {"step": -70, "for": "3 ms"},
    ]
    command = {"holding": "-90 mV", "sampling": f"{sampling_ms} ms", "segments": segments}
    return build_protocol(command, None)


def mild(model: ChannelModel, n: int, seed: int = 0) -> np.ndarray:
    """Rates of at most a few per ms, where forward Euler converges."""
    rng = np.random.default_rng(seed)
    rows = {"a": (0.05, 0.5), "z": (0.005, 0.02), "g": (1.0, 10.0)}
    return np.array([rng.uniform(*rows[name[0]], n) for name in model.parameter_names])


def recorded(protocol: Protocol) -> Recording:
    rng = np.random.default_rng(1)
    shape = (protocol.n_sweeps, protocol.n_times_max)
    weight = rng.choice([0.0, 1.0, 2.5], shape)
    return Recording(protocol.times_ms, rng.normal(0, 300, shape), weight)


def both(model: ChannelModel, protocols: list[Protocol], **options: Any) -> tuple[Any, Any]:
    experiments = tuple(Experiment(p, recorded(p), 0.5 + k) for k, p in enumerate(protocols))
    problem = Problem(model, experiments)
    return Baseline2012(problem, compiled=OnHost, **options), make_scorer(problem, "reference")


def euler(problem: Problem, drawn: np.ndarray) -> np.ndarray:
    """Costs (n_candidates,) by forward Euler in float64, written for this test alone."""
    model, scheme = problem.model, problem.model.expanded()
    given = {p.name: row for p, row in zip(model.parameters, drawn, strict=True)}
    n, place = len(scheme.states), {state: i for i, state in enumerate(scheme.states)}

    def value(expression: sympy.Expr, scope: dict[str, Any]) -> Any:
        names = sorted(str(symbol) for symbol in expression.free_symbols)
        function = sympy.lambdify(names, expression, [{"exprel": exprel}, "numpy"])
        return function(*(scope[name] for name in names))

    def matrix(v: float) -> np.ndarray:
        q, scope = np.zeros((drawn.shape[1], n, n)), {**given, "v": v}
        for name, definition in scheme.definitions:
            scope[name] = value(definition, scope)
        for t in scheme.transitions:
            rate = float(t.multiplicity) * value(t.rate, scope)
            q[:, place[t.target], place[t.source]] += rate
            q[:, place[t.source], place[t.source]] -= rate
        return q

    matrices = cache(matrix)
    conductance, reversal = value(model.conductance, given), value(model.reversal, given)
    is_open = np.array([state in scheme.open_states for state in scheme.states], dtype=float)
    cost, weights = np.zeros(drawn.shape[1]), 0.0
    for experiment in problem.experiments:
        protocol, recording = experiment.protocol, experiment.recording
        assert recording is not None
        for sweep, command in enumerate(protocol.command()):
            at_rest = np.array(matrices(protocol.holding_mV))
            at_rest[:, -1] = 1.0  # in place of one row: occupancies add up to 1
            y = np.linalg.solve(at_rest, np.eye(n)[-1][:, None])
            for k in range(protocol.n_times(sweep)):
                v = float(command[k])
                current = conductance * (v - reversal) * (is_open @ y)[:, 0]
                weight = experiment.weight * recording.weight[sweep, k]
                if weight:
                    cost += weight * (current - recording.current_pA[sweep, k]) ** 2
                    weights += weight
                y = y + protocol.sampling_ms * (matrices(v) @ y)
    return np.asarray(cost / weights)


@pytest.mark.parametrize(("n_states", "samples"), [(2, 500), (4, 500), (9, 500), (3, 5000)])
def test_costs_of_chains_are_those_of_euler_in_numpy(n_states: int, samples: int) -> None:
    """The very problem of benchmarks/states.py; of 5,000 samples a sweep memory is refilled."""
    model = chain_model(n_states)
    paper, drawn = problem(model, paper_protocols(samples)), candidates(model, 2)
    found = Baseline2012(paper, compiled=OnHost).score(drawn)
    assert (found.status == OK).all()
    np.testing.assert_allclose(found.cost, euler(paper, drawn), rtol=2e-5)


@pytest.mark.parametrize(
    "name", slow_but(["model_a", "na_hh", "herg_markov"], [n for n in SHIPPED if n != "na_nav15"])
)
def test_costs_of_shipped_schemes_are_those_of_euler_in_numpy(name: str) -> None:
    """Cycles, several open states, gates as their scheme; weights that differ by sample."""
    model = shipped(name)
    design, _ = both(model, [steps(0.002), steps(0.005)])
    assert "constantData[samples + 2*k + 1]" in design.text  # weighed
    drawn = model.values()[:, None] * np.linspace(0.9, 1.1, 5)
    truth = euler(design.problem, drawn)
    assert np.isfinite(truth).all()
    np.testing.assert_allclose(design.score(drawn).cost, truth, rtol=2e-5)


def test_sweeps_longer_than_constant_memory_go_on_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, drawn = shipped("model_b"), mild(shipped("model_b"), 5)
    protocols = [steps(0.05), steps(0.04)]  # sweeps of 200 and 250 samples
    whole, _ = both(model, protocols)
    assert len(whole.loads) == 1
    monkeypatch.setattr(baseline_2012, "CAPACITY", 90)
    cut, _ = both(model, protocols)
    assert sum(not part.begins for load in cut.loads for part in load.parts) > 10
    assert max(len(load.values) for load in cut.loads) <= 90
    for found, expected in zip(cut.simulate(drawn), whole.simulate(drawn), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(cut.score(drawn).cost, whole.score(drawn).cost, rtol=1e-6)


def test_stiff_candidates_cost_inf_and_leave_their_neighbors_alone() -> None:
    model, drawn = shipped("model_b"), mild(shipped("model_b"), 9)
    design, _ = both(model, [steps(0.1)])
    alone = design.score(drawn).cost
    drawn[1, [2, 5]] = 1.0  # z12 of 1 per mV: 1e8 per ms at +20 mV
    drawn[0, 7] = np.nan
    score = design.score(drawn)
    failed = np.isin(np.arange(9), [2, 5, 7])
    np.testing.assert_array_equal(score.status, np.where(failed, NOT_FINITE, OK))
    np.testing.assert_array_equal(score.cost, np.where(failed, np.inf, alone))


@pytest.mark.parametrize(
    ("n_states", "stored"), [(3, "shared"), (6, "registers"), (9, "shared"), (9, "registers")]
)
def test_no_chain_spills_registers(n_states: int, stored: str) -> None:
    log = compile_with_nvrtc(
        kernel_text(chain_model(n_states), stored), options=("-std=c++17", "--ptxas-options=-v")
    )
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    registers = int(re.search(r"Used (\d+) registers", log)[1])  # type: ignore[index]
    assert registers <= 65536 // 512  # blocks of 512 can be launched


@pytest.mark.parametrize("keep", ["score", "weighed", "trace"])
def test_nvrtc_takes_the_text(keep: str) -> None:
    text = kernel_text(shipped("na_hh"), keep=keep)
    assert "error" not in compile_with_nvrtc(text)
    assert "double" not in text


def test_the_device_gets_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    baseline_2012._on_device.cache_clear()
    model, drawn = shipped("model_b"), mild(shipped("model_b"), 300)
    on_host, _ = both(model, [steps(0.1)])
    on_device = Baseline2012(on_host.problem)
    np.testing.assert_array_equal(on_device.score(drawn).cost, on_host.score(drawn).cost)
    for found, expected in zip(on_device.simulate(drawn), on_host.simulate(drawn), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert 0 < on_device.occupancy() <= 1
    baseline_2012._on_device.cache_clear()
