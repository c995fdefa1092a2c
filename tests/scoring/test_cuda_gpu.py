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
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer
from support.cuda_schemes import random_scheme
from support.places import ROOT
from support.schemes import (
    PROTOCOLS,
    SHIPPED,
    candidates,
    largest_error,
    model_named,
    recording_of,
    scored,
    simulated,
)

pytestmark = pytest.mark.gpu

EVERY = [(name, dtype) for name in [*SHIPPED, "cycle", "leak"] for dtype in ("float64", "float32")]
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


@pytest.fixture(scope="module", autouse=True)
def cp() -> Any:
    if not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return gpu.cupy()


def many(problem: Problem, n: int, seed: int = 0) -> np.ndarray:
    return candidates(problem.model, n, seed)


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_costs_equal_the_reference(name: str, dtype: str, cp: Any) -> None:
    problem = scored(name)
    parameters = many(problem, 301, seed=1)
    truth = ReferenceScorer(problem).score(parameters)
    scorer = CudaScorer(problem, dtype, path="stepping")
    for n_jobs in (None, 1, 5):
        scorer.stepping.n_jobs = n_jobs
        for given in (parameters, cp.asarray(parameters)):
            score = scorer.score(given)
            assert cp.asnumpy(score.cost) == pytest.approx(truth.cost, rel=TOLERANCE[dtype])
            assert np.array_equal(cp.asnumpy(score.status), truth.status)
    assert scorer.rescore(parameters).cost == pytest.approx(truth.cost, rel=1e-9)


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_currents_equal_the_reference(name: str, dtype: str) -> None:
    problem = simulated(name, *PROTOCOLS.values())
    parameters = many(problem, 101)
    truth = ReferenceScorer(problem).simulate(parameters)
    test = CudaScorer(problem, dtype, path="stepping").simulate(parameters)
    least = 1e-6 if dtype == "float64" else 1e-3
    pairs = zip(PROTOCOLS, test, truth, strict=True)
    errors = {key: largest_error(a, b, least) for key, a, b in pairs}
    assert max(errors.values()) < TOLERANCE[dtype], errors


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sixteen_states_with_loops(dtype: str) -> None:
    keys = ("steps", "ramp", "off the grid")
    experiments = tuple(Experiment(PROTOCOLS[k], recording_of(PROTOCOLS[k], 3)) for k in keys)
    problem = Problem(random_scheme(16, 16), experiments)
    parameters = np.array([np.geomspace(0.1, 10, 40)])
    truth = ReferenceScorer(problem).score(parameters).cost
    score = CudaScorer(problem, dtype, path="stepping").score(parameters)
    assert score.cost == pytest.approx(truth, rel=TOLERANCE[dtype])


def test_a_bad_candidate_leaves_its_neighbors_alone() -> None:
    problem = scored("cycle")
    good = many(problem, 64, seed=2)
    bad, names = good.copy(), problem.model.parameter_names
    for name, candidate, value in (
        ("k3", 3, -1.0),
        ("k4", 5, -1.0),
        ("k1", 8, np.nan),
        ("g", 9, np.nan),
        ("g", 40, np.inf),
    ):
        bad[names.index(name), candidate] = value
    failed = {3: NOT_FINITE, 5: NEGATIVE_RATE, 8: NOT_FINITE, 9: NOT_FINITE, 40: NOT_FINITE}
    for dtype in ("float64", "float32"):
        scorer = CudaScorer(problem, dtype, path="stepping")
        clean, mixed = scorer.score(good), scorer.score(bad)
        assert {k: s for k, s in enumerate(mixed.status) if s != OK} == failed
        assert np.isinf(mixed.cost[list(failed)]).all()
        others = [k for k in range(64) if k not in failed]
        assert np.array_equal(mixed.cost[others], clean.cost[others])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_order_company_and_repetition_do_not_change_a_bit(dtype: str) -> None:
    problem = scored("herg_beattie")
    parameters = many(problem, 3000, seed=3)
    scorer = CudaScorer(problem, dtype, path="stepping")
    scorer.stepping.n_jobs = 4
    cost = scorer.score(parameters).cost
    order = np.random.default_rng(0).permutation(3000)
    assert np.array_equal(scorer.score(parameters).cost, cost)
    assert np.array_equal(scorer.score(parameters[:, order]).cost, cost[order])
    assert scorer.score(parameters[:, 2999:]).cost[0] == cost[2999]
    for threads in (32, 64, 256):
        scorer.threads = threads
        assert np.array_equal(scorer.score(parameters).cost, cost)


def test_chunks_do_not_show(cp: Any) -> None:
    problem = scored("na_hh")
    parameters = many(problem, 1000)
    whole, parts = (CudaScorer(problem, "float32", path="stepping") for _ in range(2))
    parts.chunk = 77
    whole.stepping.n_jobs = parts.stepping.n_jobs = 2
    cost = whole.score(parameters).cost
    assert np.array_equal(parts.score(parameters).cost, cost)
    assert np.array_equal(parts.score(cp.asarray(parameters)).cost.get(), cost)
    for a, b in zip(parts.simulate(parameters), whole.simulate(parameters), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def test_a_score_does_not_wait_for_the_device(cp: Any) -> None:
    """What was asked for after a long kernel is not done when the call returns."""
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


def test_a_list_on_the_device(cp: Any) -> None:
    problem = scored("model_b")
    parameters = many(problem, 5000)
    scorer = CudaScorer(problem, "float32", path="stepping")
    truth = scorer.rescore(parameters).cost
    listed = np.random.default_rng(1).permutation(5000).astype(np.int32)
    on_device, stepping = cp.asarray(parameters), CudaScorer(problem, path="stepping").stepping
    for count in (0, 1, 33, 5000):
        cost, status = cp.full(5000, -1.0), cp.full(5000, 7, dtype=np.int8)
        n_listed = cp.asarray([count], dtype=np.int32)
        following = cp.asarray([3], dtype=np.int32)
        stepping.score_listed(on_device, cost, status, cp.asarray(listed), n_listed, following)
        assert following.get().tolist() == [0]
        some, others = listed[:count], listed[count:]
        assert cost.get()[some] == pytest.approx(truth[some], rel=1e-12)
        assert (cost.get()[others] == -1).all()
        assert (status.get()[others] == 7).all()


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


def test_one_candidate_and_none(cp: Any) -> None:
    problem = scored("model_a")
    scorer = CudaScorer(problem, path="stepping")
    parameters = many(problem, 33)
    cost = scorer.score(parameters).cost
    for n in (0, 1, 31, 33):
        for given in (parameters[:, :n], cp.asarray(parameters[:, :n])):
            assert cp.asnumpy(scorer.score(given).cost) == pytest.approx(cost[:n], rel=1e-12)
        assert scorer.simulate(parameters[:, :n])[0].shape[-1] == n


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


def test_auto_takes_the_gpu() -> None:
    assert make_scorer(Problem(model_named("leak"), scored("leak").experiments)).backend == "cuda"
