"""The base of all searches by populations: checked settings, starting points, random words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import to_host
from channelfit.search import philox
from channelfit.search.optimizer import Optimizer
from channelfit.tasks.result_store import Arrays


class PopulationSearch(Optimizer):
    """A search that is written once over an array module: NumPy on the host, CuPy on a GPU.

    Every random word is a pure function of the seed and of its purpose, generation, candidate and
    parameter, so a run is the same bit for bit on both. Asking again before telling gives the same
    candidates. A cost that is not finite counts as inf.

    Arguments:
        n_parameters: free parameters, 1 or more.
        population: candidates of a generation, `least_population` or more.
        seed: 0 .. 2**64-1; with the generation, the candidate and the parameter it decides every
            draw.
        xp: numpy or cupy, the array module of the population.
        initial: (n_parameters, n_points) points of the unit cube that take the first places of the
            first generation, the rest is drawn uniformly; None for none.

    Raises: InputError for a setting out of its range.
    """

    least_population: ClassVar[int] = 1
    #: Its settings besides the population: names of attributes.
    own_settings: ClassVar[tuple[str, ...]] = ()
    #: The arrays that make up its state, besides the generation; a number is one of no dimension.
    _state: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, n_parameters: int, population: int, seed: int, xp: Any, initial: Any
    ) -> None:
        check_size(n_parameters, population, seed, self.least_population)
        self.n_parameters = n_parameters
        self.population_size = population
        self.seed = seed
        self.xp = xp
        self.generation = 0
        self._initial = starting_points(initial, n_parameters, population)
        self._key = philox.split_seed(seed)

    @property
    def settings(self) -> dict[str, float]:
        """The settings in force, by the names that a user writes."""
        own = {name: getattr(self, name) for name in self.own_settings}
        return {"population": self.population_size, **own}

    @property
    @abstractmethod
    def _known(self) -> tuple[Any, Any]:
        """The points (n_parameters, n) from which the search goes on, and their costs (n,)."""

    @property
    def best_cost(self) -> float:
        """The lowest finite cost so far, inf before there is one."""
        return float(self._known[1].min())

    @property
    def best(self) -> Any:
        """The candidate (n_parameters,) of `best_cost`; None before there is one."""
        points, cost = self._known
        return points[:, int(cost.argmin())].copy() if self.best_cost < np.inf else None

    def best_of(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the n best known points (n_parameters, n) and their costs (n,), on the host."""
        points, cost = self._known
        places = self._best_places(cost, n)
        return to_host(points[:, places]), to_host(cost[places])

    def receive(self, points: np.ndarray, cost: np.ndarray) -> None:
        """Put points (n_parameters, n) of costs (n,) in the places of the worst known ones."""
        known, known_cost = self._known
        places = self._best_places(known_cost, len(cost), worst=True)
        known[:, places], known_cost[places] = self.xp.asarray(points), self.xp.asarray(cost)

    def state(self) -> Arrays:
        """Return the state of this search between two generations, on the host.

        Arrays that have no value yet are left out.
        """
        found = {name.strip("_"): getattr(self, name) for name in self._state}
        arrays = {k: np.array(to_host(v)) for k, v in found.items() if v is not None}
        return {"generation": np.array(self.generation, np.int64), **arrays}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over a `state` of a search with the same settings."""
        self.generation = int(state["generation"])
        for name in self._state:
            value = state.get(name.strip("_"))
            before = getattr(self, name)
            if isinstance(before, float) and value is not None:
                setattr(self, name, float(value))
            else:
                setattr(self, name, None if value is None else self.xp.asarray(value))

    def _best_places(self, cost: Any, n: int, worst: bool = False) -> Any:
        """Return the places of the n lowest, or highest, costs; of equal ones the first."""
        order = np.argsort(to_host(cost), kind="stable")
        return order[::-1][:n].copy() if worst else order[:n]

    def _words(self, first: Any, second: Any, purpose: int) -> Any:
        """Return random words (n, 4) of this generation at counters (first, second)."""
        return philox.philox((first, second, self.generation, purpose), self._key, self.xp)

    def _count(self, n: int) -> Any:
        """Return 0 .. n-1, as counters of random words."""
        return self.xp.arange(n, dtype=np.uint64)

    def _checked(
        self, candidates: Any, cost: Any, shape: tuple[int, ...] | None = None
    ) -> tuple[Any, Any]:
        """Return candidates and costs as arrays of this module, costs that are not finite as inf.

        Raises: ValueError, see `check_costs`.
        """
        xp = self.xp
        candidates, cost = xp.asarray(candidates, dtype=np.float64), xp.asarray(cost)
        check_costs(candidates, cost, self.n_parameters, shape)
        return candidates, xp.where(xp.isfinite(cost), cost, np.inf)


def bytes_a_candidate(n_parameters: int) -> int:
    """Return the bytes that one candidate of a population takes: old and new values, costs, words.

    Measured with the genetic algorithm on the CPU, where the values of three populations are held
    at once.
    """
    return 8 * (3 * n_parameters + 6)


def check_size(n_parameters: int, population: int, seed: int, least_population: int = 1) -> None:
    """Raise InputError for sizes and seeds that no search can have."""
    if n_parameters < 1:
        raise InputError(f"there must be at least one free parameter, not {n_parameters}")
    if population < least_population:
        raise InputError(f"population must be {least_population} or more, not {population:,}")
    if population >= 2**32:
        raise InputError(f"population must be below {2**32:,}, not {population:,}")
    if not 0 <= seed < 2**64:
        raise InputError(f"seed must be a whole number from 0 to 2**64-1, not {seed}")


def check_costs(
    candidates: Any, cost: Any, n_parameters: int, shape: tuple[int, ...] | None = None
) -> None:
    """Raise ValueError unless every candidate has a cost and was proposed by `ask`.

    Arguments:
        candidates: (n_parameters, n_candidates) array.
        cost: (n_candidates,) array.
        shape: of the candidates that `ask` proposed; None if any number of them may come back.
    """
    n = candidates.shape[-1]
    if shape is None:
        if candidates.shape != (n_parameters, n) or cost.shape != (n,) or not n:
            raise ValueError(
                f"candidates {candidates.shape} and cost {cost.shape} do not fit together for "
                f"{n_parameters} parameters"
            )
    elif candidates.shape != shape or cost.shape != shape[1:]:
        raise ValueError(
            f"candidates {candidates.shape} and cost {cost.shape} are not those asked for, {shape}"
        )


def starting_points(initial: Any, n_parameters: int, population: int) -> np.ndarray | None:
    """Return a checked copy (n_parameters, n_points) of starting points, or None.

    Arguments:
        initial: (n_parameters, n_points), or (n_parameters,) for a single point, in the unit cube;
            None for a search that begins anywhere.

    Raises: InputError for points outside the unit cube, of another dimension, or more of them than
    the population has candidates.
    """
    if initial is None:
        return None
    points = to_host(initial).astype(np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.shape[0] != n_parameters:
        raise InputError(
            f"starting points must have {n_parameters} values each, not shape {points.shape}"
        )
    if points.shape[1] > population:
        raise InputError(
            f"{points.shape[1]} starting points do not fit into a population of {population}"
        )
    if not ((points >= 0) & (points <= 1)).all():
        raise InputError("starting points must lie inside the bounds of their parameters")
    return points
