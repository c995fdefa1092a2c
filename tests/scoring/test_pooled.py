"""Calls of several threads made together, and scorers of which no digit depends on how many."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
import sympy

from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Problem
from channelfit.scoring import cuda
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.cuda_launch import Launched
from channelfit.scoring.pooled import Interrupted, Pool, PooledScorer
from channelfit.scoring.scorer import ChannelScorer, Score, make_scorer
from support.differences import errors
from support.schemes import any_scheme, candidates, held, model_named, scored
from support.truths import slow_but

# --- the pool -------------------------------------------------------------------------------------


class Doubles:
    """Doubles candidates; the first call waits until it may go on."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.began, self.may_go_on = Event(), Event()

    def score(self, parameters: np.ndarray) -> Score:
        self.calls.append(parameters.shape[1])
        if len(self.calls) == 1:
            self.began.set()
            assert self.may_go_on.wait(60)
        if (parameters < 0).any():
            raise ValueError("negative")
        return Score(2 * parameters[0], parameters[0].astype(np.int8))


def called(pool: Pool, own: Doubles, parts: list[list[float]], name: str = "") -> list[Any]:
    """The results or errors of one call, and of others made while it runs."""

    def call(part: list[float]) -> Any:
        try:
            return pool.call(name, own.score, np.array([part])).cost.tolist()
        except (ValueError, Interrupted) as error:
            return error

    with ThreadPoolExecutor(len(parts)) as threads:
        first = threads.submit(call, parts[0])
        assert own.began.wait(60)
        others = [threads.submit(call, part) for part in parts[1:]]
        while sum(map(len, pool._waiting.values())) < len(others):
            pass
        own.may_go_on.set()
        return [one.result(60) for one in (first, *others)]


def test_calls_that_come_while_one_runs_are_made_together() -> None:
    pool, own = Pool(), Doubles()
    parts: list[list[float]] = [[1.0], [2.0, 3.0], [], [4.0]]
    assert called(pool, own, parts) == [[2.0], [4.0, 6.0], [], [8.0]]
    assert own.calls == [1, 3]


def test_an_error_is_that_of_one_call_and_the_others_go_on() -> None:
    pool, own = Pool(), Doubles()
    first, second, wrong = called(pool, own, [[1.0], [2.0], [-1.0]])
    assert (first, second, str(wrong)) == ([2.0], [4.0], "negative")
    assert own.calls[:2] == [1, 2]
    assert pool.call("", own.score, np.array([[5.0]])).cost == 10.0


def test_a_closed_pool_interrupts_those_that_wait_and_all_that_follow() -> None:
    pool, own = Pool(), Doubles()
    closing = Thread(target=lambda: (own.began.wait(60), pool.close()))
    closing.start()

    def waits() -> None:
        assert own.began.wait(60)
        with pytest.raises(Interrupted):
            pool.call("", own.score, np.ones((1, 1)))

    other = Thread(target=waits)
    other.start()
    going_on = Thread(target=lambda: (other.join(60), own.may_go_on.set()))
    going_on.start()
    assert pool.call("", own.score, np.ones((1, 1))).cost == 2.0  # it ran already
    for thread in (closing, other, going_on):
        thread.join(60)
    with pytest.raises(Interrupted):
        pool.call("", own.score, np.ones((1, 1)))


def test_the_next_calls_go_on_after_one_was_interrupted() -> None:
    """By Ctrl-C in the main thread, which leads: those made with it end, too."""
    pool, own = Pool(), Doubles()

    def interrupted(parameters: np.ndarray) -> Score:
        raise KeyboardInterrupt

    with pool.turn():
        with pytest.raises(KeyboardInterrupt):
            pool.call("", interrupted, np.ones((1, 1)))
        own.may_go_on.set()
        assert pool.call("", own.score, np.array([[5.0]])).cost == 10.0


def test_threads_run_in_turns_but_their_calls_are_made_together() -> None:
    pool, own, running, most = Pool(), Doubles(), [0], [0]
    own.may_go_on.set()

    def slow(parameters: np.ndarray) -> Score:
        sleep(2e-3)
        return own.score(parameters)

    def one(k: int) -> list[float]:
        found = []
        with pool.turn():
            for _ in range(20):
                running[0] += 1
                most[0] = max(most[0], running[0])
                sleep(1e-4)
                running[0] -= 1
                found += pool.call("", slow, np.array([[float(k)]])).cost.tolist()
        return found

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(8))) == [[2.0 * k] * 20 for k in range(8)]
    assert most == [1]
    assert sum(own.calls) == 160 > len(own.calls)


def test_threads_get_what_each_would_get_alone() -> None:
    """All methods at once, of a scorer that threads share and that serves one call at a time."""
    problem = held("na_hh")
    alone, pool = CpuScorer(problem), Pool()
    shared = PooledScorer(CpuScorer(problem), pool, 8)
    parts = [candidates(problem.model, 2, seed) for seed in range(4)]
    methods: list[Callable[[ChannelScorer, np.ndarray], list[np.ndarray]]] = [
        lambda scorer, some: [*vars(scorer.score(some)).values()],
        lambda scorer, some: [*vars(scorer.preview(some)).values()],
        lambda scorer, some: [*vars(scorer.rescore(some)).values()],
        lambda scorer, some: [*vars(scorer.linearize(some)).values()],
        lambda scorer, some: scorer.simulate(some),
    ]
    jobs = [(method, part) for method in methods for part in parts]
    together = Barrier(len(jobs))

    def one(job: tuple[Any, np.ndarray]) -> list[np.ndarray]:
        together.wait(60)
        return job[0](shared, job[1])

    with ThreadPoolExecutor(len(jobs)) as threads:
        found = list(threads.map(one, jobs))
    for (method, part), mine in zip(jobs, found, strict=True):
        for own, true in zip(mine, method(alone, part), strict=True):
            np.testing.assert_array_equal(own, true)
    assert (shared.has_data, shared.n_parameters) == (True, len(problem.model.parameters))


# --- scorers --------------------------------------------------------------------------------------


PROBLEMS = ["model_b", "na_hh", "held model_b", "clamped", "3", "6"]
#: Of schemes with occupancies that may oscillate, by number of states.
SEEDS = {"3": 8, "6": 9}


def problem_named(name: str) -> Problem:
    """Held and moving; or held alone, also of schemes that may oscillate, or through a clamp."""
    if name == "clamped":
        clamp = Clamp(series_resistance=sympy.Float(8), membrane_capacitance=sympy.Float(20))
        clamped = (replace(e, clamp=clamp) for e in held("model_b").experiments[:1])
        return Problem(model_named("model_b"), tuple(clamped))
    if name.isdigit():
        return Problem(any_scheme(int(name), SEEDS[name]), held("model_b").experiments)
    return held(name.removeprefix("held ")) if name.startswith("held") else scored(name)


@pytest.mark.parametrize("name", slow_but(["na_hh", "held model_b", "3", "6"], PROBLEMS))
def test_with_fixed_jobs_no_digit_depends_on_how_many_candidates_there_are(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the derivatives are those of the cpu backend, held runs side by side among them.

    The GPU is so small here that six candidates fill it more than one.
    """
    monkeypatch.setattr(Launched, "_resident", 24)
    monkeypatch.setattr(cuda, "_LISTED_WARPS", 1)
    problem = problem_named(name)
    parameters = candidates(problem.model, 6, seed=2)
    parameters[:, 3] *= 1.7
    scorer = make_scorer(problem, "cuda")
    assert scorer.fix_jobs(8)
    truth = make_scorer(problem, "cpu").linearize(parameters)
    assert max(errors(scorer.linearize(parameters), truth, parameters)) < 1e-7
    for method in (scorer.score, scorer.preview, scorer.rescore, scorer.linearize):
        whole = vars(method(parameters))
        for k in (0, 3):
            alone = vars(method(np.ascontiguousarray(parameters[:, k : k + 1])))
            for key, array in whole.items():
                np.testing.assert_array_equal(alone[key][..., 0], array[..., k], err_msg=key)


def test_where_threads_share_numbers_calls_are_made_one_at_a_time(device: str) -> None:
    """By moments the fastest of a warp's candidates says by which table all are scored."""
    model = any_scheme(4, 2)
    slow = tuple(replace(p, lower=1e-3, upper=0.2) for p in model.parameters)
    problem = Problem(replace(model, parameters=slow), held("model_b").experiments)
    scorer = CudaScorer(problem, path="moments")
    assert not scorer.fix_jobs(8)
    shared = PooledScorer(scorer, Pool(), 8)
    some = candidates(problem.model, 3, seed=1)
    assert shared.score(some).cost.tolist() == scorer.score(some).cost.tolist()
    assert not shared._together


def test_nor_do_those_of_candidates_that_are_stepped_because_digits_were_lost(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred of them are many, and one is few."""
    monkeypatch.setattr(cuda, "_LISTED_WARPS", 1)
    scorer = CudaScorer(problem_named("3"), path="closed-form")
    scorer.fix_jobs(8)
    some = candidates(scorer.problem.model, 60, seed=2)
    alone = [np.ascontiguousarray(some[:, [k]]) for k in range(60)]
    lost = [one for one in alone if scorer.scoring.rerouted_share(scorer.xp.asarray(one))]
    assert len(lost) > 8
    together = scorer.score(np.tile(np.concatenate(lost, axis=1), 20)).cost
    assert together[: len(lost)].tolist() == [scorer.score(one).cost[0] for one in lost]
