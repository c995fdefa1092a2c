"""Several searches of one fit: in this process, as tasks, cut off and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channelfit.front import kinds
from channelfit.reading.errors import InputError
from channelfit.results.identity import identity
from channelfit.scoring.scorer import make_scorer
from channelfit.search.fit_tasks import FitTasks
from channelfit.search.loop import FitResult, Progress, optimize
from channelfit.search.plan import FitPlan
from channelfit.search.seeds import search_seeds
from channelfit.tasks.result_store import ResultStore
from support.others import Others, outcome
from support.places import MODELS

pytestmark = pytest.mark.usefixtures("undrawn")

MODEL = MODELS / "k_hh_gate.yaml"
SEARCH = {"optimizer": "genetic", "settings": {"population": 20}, "stop": {"generations": 6}}


@pytest.fixture(scope="module")
def plan() -> FitPlan:
    return replace(kinds.load_plan(MODEL, backend="cpu"), seed=3, seeds=4, **SEARCH)


def fit_of(plan: FitPlan) -> FitTasks:
    scorer = make_scorer(plan.problem, "cpu")
    return FitTasks(plan, "cpu", "float64", "auto", identity(plan, scorer), plan.objective(scorer))


def here(plan: FitPlan, **more: Any) -> FitResult:
    return search_seeds(fit_of(plan), **more)


def elsewhere(plan: FitPlan, executor: Others, store: ResultStore | None = None) -> FitResult:
    return search_seeds(replace(fit_of(plan), own_objective=None), executor, store)


def test_the_best_of_searches_that_are_those_of_single_seeds(plan: FitPlan) -> None:
    alone = []
    for seed in (3, 4, 5, 6):
        one = replace(plan, seed=seed, seeds=1)
        scorer = make_scorer(one.problem, "cpu")
        alone.append(optimize(one.make_optimizer(), one.objective(scorer), one.stop_rules))
    found = here(plan)
    best = min(alone, key=lambda one: one.cost)
    assert found.cost == best.cost
    assert found.values.tolist() == best.values.tolist()
    assert f"the best of 4 searches has seed {best.seed}: 6 generations done" == found.stop_reason
    assert (found.generations, found.evaluations) == (24, 480)
    assert found.history["generation"].tolist() == list(range(1, 25))
    assert found.history["evaluations"].tolist() == list(range(20, 481, 20))
    assert found.history["best_cost"][-1] == best.history["best_cost"][-1]
    assert (found.history["best_cost"][1:] <= found.history["best_cost"][:-1]).all()
    assert found.agreement is not None
    assert found.agreement["independent_starts"] == 4
    assert found.agreement["lowest_costs"][0] == best.cost
    assert found.settings["seeds"] == 4


def test_a_target_that_is_reached_ends_them_all(plan: FitPlan) -> None:
    first = here(replace(plan, seeds=1)).cost
    easy = replace(plan, stop={"generations": 6, "cost": first * 1.0001})
    found = here(easy)
    assert "best of 1 searches has seed 3" in found.stop_reason
    assert outcome(found) == outcome(elsewhere(easy, Others()))


def test_searches_that_were_stored_are_not_repeated(plan: FitPlan, tmp_path: Path) -> None:
    kept = ResultStore(tmp_path / "pieces.bin")
    partial = elsewhere(plan, Others(dies_after=2), kept)
    assert partial.stop_reason == "interrupted"
    assert partial.agreement["independent_starts"] == 2  # type: ignore[index]
    kept.close(keep=True)
    kept, rest = ResultStore(tmp_path / "pieces.bin"), Others()
    assert outcome(elsewhere(plan, rest, kept)) == outcome(here(plan))
    assert rest.done == [("seed", 4), ("seed", 3)]
    kept.close(keep=False)


def test_searches_without_a_score(plan: FitPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    import channelfit.search.seeds as seeds

    def failing(optimizer: Any, *more: Any) -> FitResult:
        if optimizer.seed in bad:
            raise InputError("no candidate could be scored")
        return optimize(optimizer, *more)

    monkeypatch.setattr(seeds, "optimize", failing)
    bad = {4}
    assert here(plan).agreement["independent_starts"] == 3  # type: ignore[index]
    assert outcome(here(plan)) == outcome(elsewhere(plan, Others()))
    bad = {3, 4, 5, 6}
    for search in (here, lambda plan: elsewhere(plan, Others())):
        with pytest.raises(InputError, match="no candidate could be scored"):
            search(plan)


def test_an_interrupt_leaves_the_best_so_far(plan: FitPlan, tmp_path: Path) -> None:
    """Also of the search that was interrupted, which is not stored."""
    seen = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 9:
            raise KeyboardInterrupt

    store = ResultStore(tmp_path / "pieces.bin")
    found = here(plan, store=store, on_generation=interrupt)
    assert (found.stop_reason, found.generations) == ("interrupted", 9)
    assert found.agreement["independent_starts"] == 2  # type: ignore[index]
    assert store.keys == {("seed", 3)}
    assert [p.generation for p in seen] == list(range(1, 10))
    assert "seed 2 of 4" in seen[-1].stage
    store.close(keep=False)
