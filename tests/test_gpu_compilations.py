"""How many programs a GPU has to compile before a user sees a score: none that is not run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_host import DeviceArray, HostCupy

from channelfit import load_fit, make_scorer
from channelfit.backends.cuda import CudaScorer
from channelfit.backends.reference import ReferenceScorer
from channelfit.codegen.cuda_source import LISTED
from channelfit.problem import Problem

ROOT = Path(__file__).parents[1]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HostCupy:
    """A GPU with an empty cache."""
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    played = HostCupy()
    monkeypatch.setitem(sys.modules, "cupy", played)
    return played


@pytest.fixture
def idle(device: HostCupy, monkeypatch: pytest.MonkeyPatch) -> HostCupy:
    """One that compiles nothing and whose kernels do nothing: what it is asked for is counted."""

    class Module:
        def load(self, code: bytes) -> None:
            pass

        def get_function(self, name: str) -> Any:
            return Function()

    class Function:
        ptr = 1

        def __call__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(device.cuda.nvrtc, "compileProgram", lambda *_: None)
    monkeypatch.setattr(device.cuda.function, "Module", Module)
    return device


def shipped(name: str) -> Problem:
    return load_fit(ROOT / "models" / f"{name}.yaml", backend="reference").problem


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # kernels that do nothing
@pytest.mark.parametrize(
    ("name", "path", "programs"),
    [("herg_markov", "stepping", 1), ("na_markov", "stepping", 1), ("model_b", "closed-form", 2)],
)
def test_simulations_and_scores_of_any_size_take_few_programs(
    idle: HostCupy, name: str, path: str, programs: int
) -> None:
    problem = shipped(name)
    values = problem.model.values()[:, None]
    scorer = make_scorer(problem, "cuda")
    assert isinstance(scorer, CudaScorer)
    assert scorer.path == path
    scorer.simulate(values)
    for n in (1, 300, 20_000, 300_000):
        scorer.score(np.repeat(values, n, axis=1))
    assert len(idle.cuda.nvrtc.texts) == programs
    assert not any(LISTED in text for text in idle.cuda.nvrtc.texts)
    again = make_scorer(problem, "cuda")
    again.simulate(values)
    again.score(values)
    assert len(idle.cuda.nvrtc.texts) == programs


@pytest.fixture
def held() -> tuple[Problem, np.ndarray]:
    """A problem, and a candidate that meets the data but for rounding: stepping scores it."""
    problem = shipped("model_a")
    return problem, problem.model.values()[:, None]


def test_the_kernel_for_doubted_candidates_waits_for_the_first(
    device: HostCupy, monkeypatch: pytest.MonkeyPatch, held: tuple[Problem, np.ndarray]
) -> None:
    problem, exact = held
    asked = []
    get = DeviceArray.get

    def counted(array: DeviceArray, *more: Any, **others: Any) -> np.ndarray:
        asked.append(array.dtype)
        return get(array, *more, **others)

    monkeypatch.setattr(DeviceArray, "get", counted)
    scorer = make_scorer(problem, "cuda", path="closed-form")
    apart = exact * np.array([[1.3, 0.7, 1.1]])
    truth = ReferenceScorer(problem)
    for _ in range(2):
        assert scorer.score(apart).cost == pytest.approx(truth.score(apart).cost, rel=1e-9)
    assert [LISTED in text for text in device.cuda.nvrtc.texts] == [False]
    for _ in range(2):  # the list's number is zero again
        mixed = np.concatenate([apart, exact], axis=1)
        cost = scorer.score(mixed).cost
        assert cost[:3] == pytest.approx(truth.score(apart).cost, rel=1e-9)
        assert 0 <= cost[3] < 1e-18 * cost[:3].min()
    assert sum(LISTED in text for text in device.cuda.nvrtc.texts) == 1
    assert asked.count(np.dtype(np.int32)) == 3
    asked.clear()
    again = make_scorer(problem, "cuda", path="closed-form")  # finds the kernel in the cache
    assert np.array_equal(again.score(mixed).cost, cost)
    assert np.dtype(np.int32) not in asked


def test_a_host_that_has_waited_for_long_waits_no_more(
    idle: HostCupy, monkeypatch: pytest.MonkeyPatch, held: tuple[Problem, np.ndarray]
) -> None:
    problem, exact = held
    monkeypatch.setattr("channelfit.backends.cuda_modes._MOST_WAITS", 3)
    scorer = make_scorer(problem, "cuda", path="closed-form")
    listing = []
    for _ in range(5):
        scorer.score(exact)
        listing.append(any(LISTED in text for text in idle.cuda.nvrtc.texts))
    assert listing == [False, False, False, True, True]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["herg_beattie", "model_c"])
def test_one_program_for_both_gives_the_bits_of_two(
    device: HostCupy, name: str, dtype: str
) -> None:
    problem = shipped(name)
    parameters = problem.model.values()[:, None] * np.array([[1.0, 0.8, 1.3]])
    both, apart = (CudaScorer(problem, dtype, path="stepping") for _ in range(2))
    apart.stepping.scores = False
    assert np.array_equal(both.score(parameters).cost, apart.score(parameters).cost)
    for a, b in zip(both.simulate(parameters), apart.simulate(parameters), strict=True):
        assert np.array_equal(a, b, equal_nan=True)
    texts = device.cuda.nvrtc.texts
    assert [text.count("#define TRACED 2\n") for text in texts] == [1, 0, 0]
