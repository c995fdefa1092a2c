"""The cuda backend on a real GPU: what test_cuda_source.py runs on the host, and what only a
device has: its own arithmetic, thousands of threads, memory, and time of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import load_protocol
from channelfit.problem.recording import Recording
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer
from support.places import ROOT
from support.schemes import (
    candidates,
    largest_error,
    scored,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def cp() -> Any:
    if not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return gpu.cupy()


def many(problem: Problem, n: int, seed: int = 0) -> np.ndarray:
    return candidates(problem.model, n, seed)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_order_company_chunks_and_repetition_do_not_change_a_bit(dtype: str, cp: Any) -> None:
    problem = scored("herg_beattie")
    parameters = many(problem, 3000, seed=3)
    scorer = CudaScorer(problem, dtype, path="stepping")
    scorer.stepping.n_jobs = 4
    cost = scorer.score(parameters).cost
    order = np.random.default_rng(0).permutation(3000)
    assert np.array_equal(scorer.score(parameters).cost, cost)
    assert np.array_equal(scorer.score(parameters[:, order]).cost, cost[order])
    assert scorer.score(parameters[:, 2999:]).cost[0] == cost[2999]
    for scorer.threads in (32, 64, 256):
        assert np.array_equal(scorer.score(parameters).cost, cost)
    scorer.chunk = 77
    assert np.array_equal(scorer.score(parameters).cost, cost)
    assert np.array_equal(scorer.score(cp.asarray(parameters)).cost.get(), cost)


def test_a_score_does_not_wait_for_the_device(cp: Any) -> None:
    """Work that follows a long kernel is not done when the call returns."""
    problem = scored("herg_markov")
    scorer = CudaScorer(problem, path="stepping")
    parameters = cp.asarray(many(problem, 1 << 16))
    scorer.score(parameters)  # compiles, and asks the device what it is
    cp.cuda.get_current_stream().synchronize()
    score, done = scorer.score(parameters), cp.cuda.Event()
    done.record()
    assert not done.done
    done.synchronize()
    assert np.isfinite(score.cost.get()).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-3)])
def test_the_whole_sine_wave(dtype: str, tolerance: float) -> None:
    """80,000 samples, 35,000 of them varying; the cpu backend as the truth."""
    model = load_model(ROOT / "models" / "herg_beattie.yaml")
    protocol = load_protocol(ROOT / "protocols" / "herg_sine_wave.yaml")
    shape = (1, protocol.n_times_max)
    recording = Recording(protocol.times_ms, np.zeros(shape), np.ones(shape))
    problem = Problem(model, (Experiment(protocol, recording),))
    parameters = candidates(model, 200)
    [truth] = make_scorer(problem, "cpu").simulate(parameters)
    scorer = CudaScorer(problem, dtype, path="stepping")
    [test] = scorer.simulate(parameters)
    assert largest_error(test, truth, 1e-6 if dtype == "float64" else 1e-3) < tolerance
    cost = make_scorer(problem, "cpu").score(parameters).cost
    assert scorer.score(parameters).cost == pytest.approx(cost, rel=tolerance)


def test_more_candidates_than_one_launch_takes(cp: Any) -> None:
    problem = scored("leak")
    n = (1 << 22) + 1000
    parameters = cp.ones((2, n))
    parameters[:, -1] = cp.asarray([2.0, 10.0])
    scorer = CudaScorer(problem, "float32", path="stepping")
    cost = scorer.score(parameters).cost
    expected = scorer.score(np.array([[1.0, 2.0], [1.0, 10.0]])).cost
    assert cost[:-1].min() == cost[:-1].max()
    assert cost[[0, -1]].get() == pytest.approx(expected, rel=1e-12)
