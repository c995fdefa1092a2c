"""Epochs by somebody else: the same to the bit as in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from channelfit.front import kinds
from channelfit.results.identity import identity
from channelfit.scoring.scorer import make_scorer
from channelfit.search.fit_tasks import FitTasks, epochs_by
from channelfit.search.loop import FitResult, StopRules, optimize
from channelfit.search.plan import FitPlan
from channelfit.tasks.result_store import ResultStore
from support.others import Others, outcome
from support.places import MODELS

MODEL = MODELS / "model_b.yaml"


@pytest.fixture(scope="module")
def plan() -> FitPlan:
    return kinds.load_plan(MODEL)


def work_on(plan: FitPlan) -> FitTasks:
    return FitTasks(
        plan, "cpu", "float64", "auto", identity(plan, make_scorer(plan.problem, "cpu"))
    )


def searched(plan: FitPlan, executor: Others | None, kept: ResultStore | None = None) -> FitResult:
    scorer = make_scorer(plan.problem, "cpu")
    optimizer = plan.make_optimizer()
    if executor is not None:
        optimizer.epoch = epochs_by(executor, work_on(plan), kept)
    return optimize(optimizer, plan.objective(scorer), StopRules(generations=11))


@pytest.fixture(scope="module")
def islands(plan: FitPlan) -> FitPlan:
    settings = {"population": 24, "islands": 3, "migrate_every": 4}
    return replace(plan, optimizer="genetic", settings=settings)


def test_the_plan_travels_once_for_all_epochs_of_a_length(islands: FitPlan) -> None:
    """Nothing that is found on the way, in a cache or by a search, changes the pickle of a work."""
    others = Others()
    searched(islands, others)
    assert len(others.works) == 2  # epochs of 4 generations, and the last one of 3


def test_epochs_that_were_kept_are_not_computed_again(islands: FitPlan, tmp_path: Path) -> None:
    whole = outcome(searched(islands, None))
    kept = ResultStore(tmp_path / "pieces.bin")
    assert searched(islands, Others(dies_after=5), kept).stop_reason == "interrupted"
    kept.close(keep=True)
    kept, others = ResultStore(tmp_path / "pieces.bin"), Others()
    assert outcome(searched(islands, others, kept)) == whole
    assert len(others.done) == 9 - 5
    kept.close(keep=False)
