"""The benchmark's 2012 design, run on the processor, against the reference backend."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_host import compile_with_nvrtc, host_program
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.backends import NOT_FINITE, OK, make_scorer
from channelfit.errors import InputError
from channelfit.model import ChannelModel, build_model, load_model
from channelfit.problem import Experiment, Problem
from channelfit.protocol import Protocol, build_protocol
from channelfit.recording import Recording

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import baseline_2012  # noqa: E402
from baseline_2012 import Baseline2012, kernel_text, next_generation, strides  # noqa: E402
from chains import chain_model  # noqa: E402


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
    return build_protocol(
        {"holding": "-90 mV", "sampling": f"{sampling_ms} ms", "segments": [
            {"hold": "1 ms"}, {"step": {"values": [-30, 20]}, "for": "6 ms"},
            {"step": -70, "for": "3 ms"},
        ]}, None,
    )  # fmt: skip


def mild(model: ChannelModel, n: int, seed: int = 0) -> np.ndarray:
    """Rates of at most a few per ms, where forward Euler converges."""
    rng = np.random.default_rng(seed)
    rows = {"a": (0.05, 0.5), "z": (0.005, 0.02), "g": (1.0, 10.0)}
    return np.array([rng.uniform(*rows[name[0]], n) for name in model.parameter_names])


def recorded(protocol: Protocol, seed: int = 1) -> Recording:
    rng = np.random.default_rng(seed)
    shape = (protocol.n_sweeps, protocol.n_times_max)
    weight = rng.choice([0.0, 1.0, 2.5], shape)
    return Recording(protocol.times_ms, rng.normal(0, 300, shape), weight)


def both(model: ChannelModel, protocols: list[Protocol], **options: Any) -> tuple[Any, Any]:
    problem = Problem(model, tuple(Experiment(p, recorded(p), 0.5 + k)
                                   for k, p in enumerate(protocols)))  # fmt: skip
    return (Baseline2012(problem, compiled=OnHost, **options),
            make_scorer(problem, "reference"))  # fmt: skip


def largest_error(found: list[np.ndarray], truth: list[np.ndarray]) -> float:
    worst = max(float(np.nanmax(np.abs(f - t))) for f, t in zip(found, truth, strict=True))
    return worst / max(float(np.nanmax(np.abs(t))) for t in truth)


@pytest.mark.parametrize("name", ["model_a", "model_b", "model_c"])
def test_traces_and_scores_come_near_the_reference_at_a_fine_interval(name: str) -> None:
    model, drawn = shipped(name), mild(shipped(name), 37)
    design, reference = both(model, [steps(0.002), steps(0.005)])
    truth = reference.simulate(drawn)
    assert largest_error(design.simulate(drawn), truth) < 3e-3
    found, expected = design.score(drawn), reference.score(drawn)
    assert (found.status == OK).all()
    np.testing.assert_allclose(found.cost, expected.cost, rtol=1e-3)


def test_the_error_is_that_of_forward_euler() -> None:
    model = shipped("model_b")
    errors = []
    for sampling in (0.02, 0.01, 0.005):
        design, reference = both(model, [steps(sampling)])
        drawn = mild(model, 8)
        errors.append(largest_error(design.simulate(drawn), reference.simulate(drawn)))
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("padding", ["none", "matrix", "all"])
@pytest.mark.parametrize("threads", [32, 112])
def test_neither_padding_nor_block_changes_a_bit(padding: str, threads: int) -> None:
    model = shipped("model_c")  # four states: the one where padding matters
    drawn = mild(model, 50)
    plain, _ = both(model, [steps(0.05)], threads=64, padding="none")
    other, _ = both(model, [steps(0.05)], threads=threads, padding=padding)
    np.testing.assert_array_equal(other.score(drawn).cost, plain.score(drawn).cost)


def test_sweeps_longer_than_constant_memory_go_on_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, drawn = shipped("model_b"), mild(shipped("model_b"), 5)
    protocols = [steps(0.05), steps(0.04)]  # sweeps of 200 and 250 samples
    whole, _ = both(model, protocols)
    assert len(whole.loads) == 1
    monkeypatch.setattr(baseline_2012, "CAPACITY", 90)
    cut, _ = both(model, protocols)
    assert len(cut.loads) > 10
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


def test_gates_run_as_their_scheme() -> None:
    model = shipped("k_hh_gate")
    problem = Problem(model, (Experiment(steps(0.002), recorded(steps(0.002))),))
    values = model.values()[:, None]
    found = Baseline2012(problem, compiled=OnHost).simulate(values)
    assert largest_error(found, make_scorer(problem, "reference").simulate(values)) < 3e-3


def test_voltage_that_moves_is_followed_from_sample_to_sample() -> None:
    model = shipped("herg_beattie")
    waves = build_protocol(
        {"holding": "-80 mV", "sampling": "0.02 ms", "segments": [
            {"hold": 2}, {"ramp": [-80, 20], "for": 20},
            {"sines": {"offset": -30, "terms": [{"amplitude": 50, "omega": 0.3}]}, "for": 30},
        ]}, None,
    )  # fmt: skip
    design, reference = both(model, [waves])
    values = model.values()[:, None]
    assert largest_error(design.simulate(values), reference.simulate(values)) < 3e-3
    np.testing.assert_allclose(design.score(values).cost, reference.score(values).cost, rtol=2e-3)


@pytest.mark.parametrize("n_states", [2, 9])
def test_any_number_of_states(n_states: int) -> None:
    model = chain_model(n_states)
    design, reference = both(model, [steps(0.002)])
    values = model.values()[:, None]
    assert largest_error(design.simulate(values), reference.simulate(values)) < 1e-2


def test_shared_memory_is_what_the_paper_counts() -> None:
    design, _ = both(shipped("model_b"), [steps(0.1)])
    assert design.thread_bytes == 72  # section 3.3
    assert strides(4, "matrix") == (17, 4)
    nine, _ = both(chain_model(9), [steps(0.1)], threads=1024)
    assert nine.threads == 112  # 432 bytes each
    assert nine.shared_bytes <= baseline_2012.SHARED_BYTES


def test_what_the_design_cannot_score() -> None:
    partly = build_model(
        {"name": "partly", "states": ["A", "B"], "rates": {"A -> B": "k", "B -> A": "k"},
         "current": {"open": {"A": 0.5, "B": 1.0}, "conductance": "1 nS", "reversal": "0 mV"},
         "parameters": {"k": {"range": [0, 1], "value": 0.5}}}, None,
    )  # fmt: skip
    with pytest.raises(InputError, match="open and closed"):
        kernel_text(partly)
    carried = replace(steps(0.1), carry_over=True)
    with pytest.raises(InputError, match="starts every sweep from rest"):
        both(shipped("model_b"), [carried])


@pytest.mark.parametrize("name", ["model_b", "herg_markov", "na_hh", "na_markov"])
def test_nvrtc_takes_the_text(name: str) -> None:
    assert "error" not in compile_with_nvrtc(kernel_text(shipped(name)))


def test_single_precision_throughout() -> None:
    for name in ("model_b", "na_hh"):
        assert "double" not in kernel_text(shipped(name))


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_a_generation_keeps_the_best_and_stays_in_range(
    n: int, n_parameters: int, crossover: float, mutation: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lower, upper = np.arange(n_parameters) - 3.0, np.arange(n_parameters) + 1.0
    population = rng.uniform(lower, upper, (n, n_parameters))
    cost = rng.choice([1.0, 2.0, np.inf], n)
    children = next_generation(population, cost, lower, upper, rng, crossover, mutation)
    assert children.shape == population.shape
    np.testing.assert_array_equal(children[0], population[np.argmin(cost)])
    assert ((children >= lower) & (children <= upper)).all()
    if mutation == 0:  # every value comes from a parent, at its place
        assert all(np.isin(children[:, i], population[:, i]).all() for i in range(n_parameters))
    if mutation == crossover == 0:
        parents = {tuple(row) for row in population}
        assert {tuple(row) for row in children} <= parents


def test_the_whole_design_finds_its_own_data() -> None:
    """Scores and generations together: the best never gets worse, and comes near."""
    model = chain_model(2)
    bare = Problem(model, (Experiment(steps(0.1)),))
    currents = Baseline2012(bare, compiled=OnHost).simulate(model.values()[:, None])[0][..., 0]
    recording = Recording(steps(0.1).times_ms, currents, np.ones(currents.shape))
    design = Baseline2012(Problem(model, (Experiment(steps(0.1), recording),)), compiled=OnHost)
    assert design.score(model.values()[:, None]).cost[0] < 1e-6
    rng = np.random.default_rng(5)
    lower, upper = np.array([(p.lower, p.upper) for p in model.parameters]).T
    individuals = rng.uniform(lower, upper, (112, len(lower)))
    best = []
    for _ in range(60):
        cost = design.score(individuals.T).cost
        best.append(float(cost.min()))
        individuals = next_generation(individuals, cost, lower, upper, rng, 0.8)
    assert (np.diff(best) <= 0).all()
    assert best[-1] < 1e-3 * float(np.mean(currents**2))


class LikeCupy:
    """What `gpu.compile_cuda` gives, as far as the design asks, on this machine's processor."""

    def __init__(self, text: str, name: str) -> None:
        self.host, self.name, self.raw = OnHost(text), name, self

    def kernel(self, name: str) -> Any:
        def call(grid: Any, block: Any, args: Any, shared_mem: int) -> None:
            self.host.launch(name, grid[0], block[0], args, shared_mem)

        return call

    def get_global(self, name: str) -> Any:
        class Place:
            @staticmethod
            def copy_from_device_async(data: Any, n_bytes: int) -> None:
                values = np.frombuffer(data, dtype=np.float32)
                assert values.nbytes == n_bytes
                self.host.fill(name, values)

        return Place


def test_the_device_gets_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_2012.gpu, "cupy", lambda: np)
    monkeypatch.setattr(baseline_2012.gpu, "compile_cuda", LikeCupy)
    baseline_2012._on_device.cache_clear()
    model, drawn = shipped("model_b"), mild(shipped("model_b"), 300)
    on_host, _ = both(model, [steps(0.1)])
    on_device = Baseline2012(on_host.problem)
    np.testing.assert_array_equal(on_device.score(drawn).cost, on_host.score(drawn).cost)
    for found, expected in zip(on_device.simulate(drawn), on_host.simulate(drawn), strict=True):
        np.testing.assert_array_equal(found, expected)
    baseline_2012._on_device.cache_clear()
