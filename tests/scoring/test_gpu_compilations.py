"""The programs that a GPU compiles before the first score: none that is not run."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import Problem
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.kernels.cuda_walk import LISTED
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import DeviceArray, HostCupy
from support.places import ROOT


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HostCupy:
    """A GPU with an empty cache."""
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    played = HostCupy()
    monkeypatch.setitem(sys.modules, "cupy", played)
    return played


@pytest.fixture
def idle(device: HostCupy, monkeypatch: pytest.MonkeyPatch) -> HostCupy:
    """A compiler that counts its calls; it compiles nothing, and its kernels do nothing."""

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


def finished() -> None:
    """Waits for what is compiled ahead."""
    for thread in threading.enumerate():
        if thread.name.startswith("NVRTC"):
            thread.join()


def shipped(name: str) -> Problem:
    return load_plan(ROOT / "models" / f"{name}.yaml", backend="reference").problem


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # kernels that do nothing
@pytest.mark.parametrize(
    ("name", "path", "programs"),
    [("herg_markov", "stepping", 1), ("model_b", "closed-form", 3)],
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
    finished()
    assert len(idle.cuda.nvrtc.texts) == programs
    again = make_scorer(problem, "cuda")
    again.simulate(values)
    again.score(values)
    assert len(idle.cuda.nvrtc.texts) == programs


def test_only_a_doubted_candidate_waits_for_the_kernel_that_it_needs(
    device: HostCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that meets the data but for rounding is doubted: stepping scores it."""
    problem = shipped("model_a")
    exact = problem.model.values()[:, None]
    asked, go_on = [], threading.Event()
    get, compiled = DeviceArray.get, device.cuda.nvrtc.compileProgram

    def counted(array: DeviceArray, *more: Any, **others: Any) -> np.ndarray:
        asked.append(array.dtype)
        return get(array, *more, **others)

    def held_up(program: int, options: tuple[str, ...]) -> None:
        assert LISTED not in device.cuda.nvrtc.texts[program] or go_on.wait(120)
        compiled(program, options)

    monkeypatch.setattr(DeviceArray, "get", counted)
    monkeypatch.setattr(device.cuda.nvrtc, "compileProgram", held_up)
    scorer = make_scorer(problem, "cuda", path="closed-form")
    apart = exact * np.array([[1.3, 0.7, 1.1]])
    truth = ReferenceScorer(problem)
    for _ in range(2):
        assert scorer.score(apart).cost == pytest.approx(truth.score(apart).cost, rel=1e-9)
    assert asked.count(np.dtype(np.int32)) == 2
    go_on.set()
    mixed = np.concatenate([apart, exact], axis=1)
    for _ in range(2):  # the list's number is zero again
        cost = scorer.score(mixed).cost
        assert cost[:3] == pytest.approx(truth.score(apart).cost, rel=1e-9)
        assert 0 <= cost[3] < 1e-18 * cost[:3].min()
    asked.clear()
    again = make_scorer(problem, "cuda", path="closed-form")  # finds the kernel in the cache
    for one in (scorer, again):
        assert np.array_equal(one.score(mixed).cost, cost)
    assert np.dtype(np.int32) not in asked


def test_what_is_being_compiled_is_not_compiled_twice(
    idle: HostCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many families of wells ask for the same kernels at once."""
    go_on = threading.Event()
    monkeypatch.setattr(idle.cuda.nvrtc, "compileProgram", lambda *_: go_on.wait(60))
    ahead = [gpu.compile_ahead("the same text") for _ in range(5)]
    go_on.set()
    modules = [one.module() for one in ahead]
    assert {module.text for module in modules} == {"the same text"}
    finished()
    assert idle.cuda.nvrtc.texts == ["the same text"]
    assert gpu.compile_ahead("the same text").done
