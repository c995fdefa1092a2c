"""Islands: several populations of one search, which now and then send each other their best.

Each island is a search of its own with a seed of its own. After every so many generations the best
candidates of each go to the next one on a ring, where they take the places of the worst. The state
of an island between two generations is a few arrays (`state`), so an epoch, the generations
between two migrations, can be computed anywhere: the result is the same to the bit, whether one
process computes all islands in turn or several do, and however many of them there are.

Source of the model: E. Alba, M. Tomassini, "Parallelism and evolutionary algorithms", IEEE Trans
Evol Comput 6 (2002) 443-462, coarse-grained populations on a ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import Score
from channelfit.search.objective import Generation, Objective, count_failures
from channelfit.search.optimizer import Optimizer
from channelfit.search.population import PopulationSearch
from channelfit.tasks.result_store import Arrays

#: Islands' seeds lie far apart: multiples of 2**64 over the golden ratio.
_BETWEEN_SEEDS = 0x9E3779B97F4A7C15


#: Computes an epoch from its number, the states of all islands, and the number of generations. It
#: returns for each island its state afterwards, and of every generation costs and statuses
#: (n_generations, population) and the best parameters (n_generations, n_parameters).
Epoch = Callable[[int, Sequence[Arrays], int], Sequence[Arrays]]


class Islands(Optimizer):
    """A search of several islands.

    Arguments:
        make: makes the island of a seed, with starting points or None.
        seed: of the first island, 0 .. 2**64-1; those of the others follow from it.
        n_islands: 2 or more.
        migrate_every: generations between two migrations, 1 or more.
        migrants: the candidates that leave each island then, fewer than the population.
        initial: (n_parameters, n_points) starting points, dealt out in blocks of a population; None
            where there are none.
        population: candidates of an island.

    Attributes:
        epoch: computes an epoch elsewhere; None if this process computes it.
    """

    def __init__(
        self,
        make: Callable[[int, Any], PopulationSearch],
        seed: int,
        n_islands: int,
        migrate_every: int,
        migrants: int,
        initial: Any = None,
        population: int = 0,
    ) -> None:
        self.seed = seed
        self.migrate_every, self.migrants = migrate_every, migrants
        points = None if initial is None else to_host(initial)
        self.islands = [
            make(
                (seed + k * _BETWEEN_SEEDS) % 2**64,
                None if points is None else _block(points, k, population),
            )
            for k in range(n_islands)
        ]
        self.epoch: Epoch | None = None
        self._sizes: list[int] = []

    @property
    def name(self) -> str:
        """The name of the search on each island."""
        return self.islands[0].name

    @property
    def settings(self) -> dict[str, float]:
        """The settings in force; the population is that of an island."""
        return {
            **self.islands[0].settings,
            "islands": len(self.islands),
            "migrate_every": self.migrate_every,
            "migrants": self.migrants,
        }

    def ask(self) -> Any:
        """Return the candidates of all islands, one after the other."""
        parts = [island.ask() for island in self.islands]
        self._sizes = [part.shape[1] for part in parts]
        return self.islands[0].xp.concatenate(parts, axis=1)

    def tell(self, candidates: Any, cost: Any) -> None:
        """Pass its costs to each island; after an epoch the best migrate."""
        sizes = self._sizes or [island.ask().shape[1] for island in self.islands]
        begin = 0
        for island, size in zip(self.islands, sizes, strict=True):
            some = slice(begin, begin + size)
            island.tell(candidates[:, some], cost[some])
            begin += size
        self._sizes = []
        if self.islands[0].generation % self.migrate_every == 0:
            self._migrate()

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Compute generations of all islands here, or epochs of them elsewhere."""
        if self.epoch is None:
            yield from super().search(objective, target, most)
            return
        done, number = 0, 0
        while done < most:
            states = [island.state() for island in self.islands]
            length = int(min(self.migrate_every, most - done))
            found = self.epoch(number, states, length)
            for island, arrays in zip(self.islands, found, strict=True):
                island.restore({k: v for k, v in arrays.items() if k not in SCORED})
            done, number = done + length, number + 1
            if self.islands[0].generation % self.migrate_every == 0:
                self._migrate()
            for k in range(length):
                yield _generation(found, k)

    def _migrate(self) -> None:
        leaving = [island.best_of(self.migrants) for island in self.islands]
        for k, island in enumerate(self.islands):
            island.receive(*leaving[k - 1])


#: Names, in stored results, of the arrays of the generations of an epoch: costs, statuses, and best
#: parameters. The others are the state of the island.
COST, STATUS, VALUES = SCORED = ("told_cost", "told_status", "told_values")


def advance(island: PopulationSearch, objective: Objective, generations: int) -> Arrays:
    """Compute some generations of an island.

    Returns: its state afterwards, and costs, statuses and best parameters; see `Epoch`.
    """
    costs, statuses, values = [], [], []
    for _ in range(generations):
        candidates = island.ask()
        score = objective.score(candidates)
        island.tell(candidates, score.cost)
        cost = to_host(score.cost).astype(np.float64)
        best = int(np.where(np.isfinite(cost), cost, np.inf).argmin())
        costs.append(cost)
        statuses.append(to_host(score.status).astype(np.int8))
        values.append(objective.physical(candidates[:, best : best + 1])[:, 0])
    arrays = (np.array(costs), np.array(statuses), np.array(values))
    return {**island.state(), **dict(zip(SCORED, arrays, strict=True))}


def _generation(found: Sequence[Arrays], k: int) -> Generation:
    """Summarize generation k of an epoch, as `objective.summarized` does."""
    scored = Score(*(np.concatenate([one[name][k] for one in found]) for name in (COST, STATUS)))
    finite = np.isfinite(scored.cost)
    costs = scored.cost[finite]
    lowest = [np.where(np.isfinite(c), c, np.inf).min() for c in (f[COST][k] for f in found)]
    return Generation(
        n_candidates=scored.cost.size,
        median=float(np.median(costs)) if costs.size else math.nan,
        best=float(min(lowest)),
        values=found[int(np.argmin(lowest))][VALUES][k],
        failures=count_failures(scored.status, finite, np),
    )


def _block(points: np.ndarray, k: int, population: int) -> np.ndarray | None:
    """Return the starting points of island k; None where it has none."""
    own = points[:, k * population : (k + 1) * population]
    return own if own.shape[1] else None
