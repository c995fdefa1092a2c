"""Epochs, profiles and chains by somebody else: the same to the bit as in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front import kinds
from channelfit.front.studies import Elsewhere, Wanted, study
from channelfit.pieces.kept import Arrays, Kept, Key
from channelfit.pieces.work import Work
from channelfit.reading.errors import InputError
from channelfit.results.resuming import identity
from channelfit.results.uncertainty.assessment import assess
from channelfit.results.uncertainty.profiles import profiles
from channelfit.results.uncertainty.study_work import profiles_by
from channelfit.scoring.scorer import make_scorer
from channelfit.search.loop import FitResult, StopRules, optimize
from channelfit.search.plan import FitPlan
from channelfit.search.plan_work import EpochWork, PlanWork, epochs_by
from support.places import MODELS

MODEL = MODELS / "model_b.yaml"


@pytest.fixture(scope="module")
def plan() -> FitPlan:
    return kinds.load_plan(MODEL)


def work_on(plan: FitPlan) -> PlanWork:
    return PlanWork(
        plan, "cpu", "float64", "auto", identity(plan, make_scorer(plan.problem, "cpu"))
    )


class Others:
    """Does the pieces from the last to the first, with a copy that went through a pickle.

    Attributes:
        done: the keys of the pieces. works: the different pickles of the works that came.
    """

    def __init__(self, dies_after: int = 10**9) -> None:
        self.done: list[Key] = []
        self.works: set[bytes] = set()
        self.dies_after = dies_after

    def __call__(self, work: Work, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        sent = pickle.dumps(work)
        self.works.add(sent)
        copy: Any = pickle.loads(sent)
        for key in list(keys)[::-1]:
            if len(self.done) >= self.dies_after:
                raise KeyboardInterrupt
            self.done.append(key)
            told = (work.told(key),) if isinstance(work, EpochWork) else ()
            yield key, copy.do(key, *pickle.loads(pickle.dumps(told)))


def searched(plan: FitPlan, doer: Others | None, kept: Kept | None = None) -> FitResult:
    scorer = make_scorer(plan.problem, "cpu")
    optimizer = plan.make_optimizer()
    if doer is not None:
        optimizer.epoch = epochs_by(doer, work_on(plan), kept)
    return optimize(optimizer, plan.objective(scorer), StopRules(generations=11))


def told(result: FitResult) -> tuple[object, ...]:
    names = [name for name in result.history.dtype.names or () if name != "seconds"]
    return result.cost, result.values.tolist(), result.history[names].tolist()


@pytest.fixture(scope="module")
def islands(plan: FitPlan) -> FitPlan:
    settings = {"population": 24, "islands": 3, "migrate_every": 4}
    return replace(plan, optimizer="genetic", settings=settings)


def test_epochs_elsewhere_are_those_of_this_process(islands: FitPlan) -> None:
    others = Others()
    assert told(searched(islands, others)) == told(searched(islands, None))
    assert len(others.done) == 3 * 3


def test_the_plan_travels_once_for_all_epochs_of_a_length(islands: FitPlan) -> None:
    """Nothing that is found on the way, in a cache or by a search, changes the pickle of a work."""
    others = Others()
    searched(islands, others)
    assert len(others.works) == 2  # epochs of 4 generations, and the last one of 3


def test_epochs_that_were_kept_are_not_computed_again(islands: FitPlan, tmp_path: Path) -> None:
    whole = told(searched(islands, None))
    kept = Kept(tmp_path / "pieces.bin")
    assert searched(islands, Others(dies_after=5), kept).stop_reason == "interrupted"
    kept.close(keep=True)
    kept, others = Kept(tmp_path / "pieces.bin"), Others()
    assert told(searched(islands, others, kept)) == whole
    assert len(others.done) == 9 - 5
    kept.close(keep=False)


def test_a_search_without_islands_has_no_epochs(plan: FitPlan) -> None:
    work = work_on(plan)
    with pytest.raises(InputError, match="has no islands"):
        epochs_by(Others(), work)(0, [{}], 1)


@pytest.fixture(scope="module")
def studied(plan: FitPlan) -> dict[bool, dict]:
    pytest.importorskip("emcee")
    wanted = Wanted(("gmax", "a12"), 0, 30, None, 5, ensembles=2)
    found, others = {}, Others()
    for away in (False, True):
        scorer = make_scorer(plan.problem, "cpu")
        elsewhere = Elsewhere(others, work_on(plan)) if away else None
        values = plan.problem.values() * 1.01
        found[away] = study(plan, scorer, values, wanted, elsewhere=elsewhere).summary
    assert {key[0] for key in others.done} == {"profile", "chains"}
    return found


def test_a_study_elsewhere_is_that_of_this_process(studied: dict[bool, dict]) -> None:
    assert studied[True] == studied[False]
    assert studied[True]["posterior"]["walkers"] == 2 * 36


@pytest.mark.slow
def test_a_better_fit_found_by_a_profile_begins_all_profiles_again(plan: FitPlan) -> None:
    """The estimate is moved off its minimum, so that a profile finds something better."""
    scorer = make_scorer(plan.problem, "cpu")
    values = plan.problem.values()
    judged = assess(plan, scorer, values, finish=True).estimate
    unit = np.clip(judged.unit + 2e-2, 0, 1)
    cost = float(judged.objective.score(unit[:, None]).cost[0])
    off = replace(judged, unit=unit, cost=cost)
    others = Others()
    here, there = (
        profiles(off, [0, 1]),
        profiles(off, [0, 1], each=profiles_by(others, work_on(plan), None, lambda name: None)),
    )
    np.testing.assert_array_equal(here[0].unit, there[0].unit)
    for one, other in zip(here[1], there[1], strict=True):
        np.testing.assert_array_equal(one.chi_square, other.chi_square)
        assert (one.name, one.lower, one.upper, one.open_below, one.open_above) == (
            other.name,
            other.lower,
            other.upper,
            other.open_below,
            other.open_above,
        )
    assert {key[1] for key in others.done} > {1}
