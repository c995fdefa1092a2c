"""Islands: the same search whoever computes their epochs, and what migrates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from channelfit.model.channel import Parameter
from channelfit.scoring.scorer import Score, Scorer
from channelfit.search.choose import make_optimizer
from channelfit.search.islands import advance
from channelfit.search.loop import FitResult, StopRules, optimize
from channelfit.search.objective import Objective
from channelfit.search.space import SearchSpace
from support.others import outcome

SPACE = SearchSpace(tuple(Parameter(f"x{k}", "", -5.0, 5.0) for k in range(3)))
NAMES = ["genetic", "swarm", "ring", "groups"]


class Hills(Scorer):
    """Rastrigin's function, of which a corner cannot be scored."""

    def score(self, x: np.ndarray) -> Score:
        cost = 10 * len(x) + (x**2 - 10 * np.cos(2 * np.pi * x)).sum(axis=0)
        bad = x.sum(axis=0) > 9
        return Score(np.where(bad, np.inf, cost), bad.astype(np.int8))


def islands(name: str, **more: Any) -> Any:
    settings = {"population": 30, "islands": 4, "migrate_every": 5, "migrants": 3, **more}
    return make_optimizer(name, settings, 3, seed=7)


def run(optimizer: Any, generations: int = 23) -> FitResult:
    return optimize(optimizer, Objective(SPACE, Hills()), StopRules(generations=generations))


def apart(optimizer: Any, name: str, order: int = 1, **more: Any) -> Any:
    """Lets others compute the epochs: islands made anew for each, in another order."""

    def epoch(number: int, states: Any, generations: int) -> Any:
        found = {}
        for k in range(len(states))[::order]:
            island = islands(name, **more).islands[k]
            island.restore(states[k])
            found[k] = advance(island, Objective(SPACE, Hills()), generations)
        return [found[k] for k in range(len(states))]

    optimizer.epoch = epoch
    return optimizer


@pytest.mark.parametrize("name", NAMES)
def test_who_computes_the_epochs_does_not_matter(name: str) -> None:
    here, there = run(islands(name)), run(apart(islands(name), name, -1))
    assert outcome(here) == outcome(there)
    assert here.failures  # the corner was visited, so that failures are compared as well


@pytest.mark.parametrize("name", NAMES)
def test_an_island_is_restored_to_the_bit(name: str) -> None:
    objective = Objective(SPACE, Hills())
    one, other = islands(name).islands[1], islands(name).islands[1]
    advance(one, objective, 6)
    other.restore(one.state())
    first, second = advance(one, objective, 6), advance(other, objective, 6)
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_best_of_an_island_come_to_the_next_one(name: str) -> None:
    optimizer, objective = islands(name), Objective(SPACE, Hills())
    for _ in range(4):
        candidates = optimizer.ask()
        optimizer.tell(candidates, objective.score(candidates).cost)
    before = [island.best_of(30) for island in optimizer.islands]
    optimizer._migrate()
    for k, island in enumerate(optimizer.islands):
        points, cost = island.best_of(30)
        arrived = np.sort(np.concatenate([before[k][1][:27], before[k - 1][1][:3]]))
        np.testing.assert_array_equal(np.sort(cost), arrived)
        np.testing.assert_array_equal(Objective(SPACE, Hills()).score(points).cost, cost)
        assert island.best_cost == cost.min()


def test_islands_are_searches_of_their_own() -> None:
    asked = islands("genetic").ask().reshape(3, 4, 30)
    for k in range(4):
        for other in range(k):
            assert not np.isin(asked[:, k], asked[:, other]).any()
    alone = make_optimizer("genetic", {"population": 30}, 3, seed=7).ask()
    np.testing.assert_array_equal(asked[:, 0], alone)
