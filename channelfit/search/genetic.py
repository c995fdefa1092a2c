"""The genetic algorithm: tournaments, one-point crossover, uniform mutation, one elite.

Every pair of parents comes from two tournaments of two; both children of a pair enter the next
generation; the best individual passes unchanged.

Source: R. Ben-Shalom, A. Aviv, B. Razon, A. Korngreen, "Optimizing ion channel models using a
parallel genetic algorithm on graphical processors", J Neurosci Methods 206 (2012) 183-194,
section 2.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.search import philox
from channelfit.search.population import PopulationSearch
from channelfit.search.settings import share

LARGE_POPULATION = 5000

# The purpose of a draw: the last word of its counter.
_INITIAL, _TOURNAMENT, _CROSSOVER, _MUTATION, _REPLACEMENT = range(5)


def default_crossover_rate(population: int) -> float:
    """Return the paper's crossover rate: 0.1, and 0.8 for large populations (figure 6: 112,
    11,200).
    """
    return 0.8 if population >= LARGE_POPULATION else 0.1


class Genetic(PopulationSearch):
    """The genetic algorithm by ask and tell, the same bit for bit on the host and on a GPU.

    Arguments, besides those of `PopulationSearch`:
        population: the elite alone cannot improve, so 2 or more are useful.
        crossover_rate: probability that a pair of parents is crossed; None for the paper's choice
            by population size.
        mutation_rate: probability that a value is replaced by a uniform draw over its range.

    Raises: InputError for a setting out of its range.
    """

    name = "genetic"
    own_settings = ("crossover_rate", "mutation_rate")
    _state = ("_population", "_cost", "_elite", "_elite_cost")

    def __init__(
        self,
        n_parameters: int,
        population: int,
        seed: int,
        crossover_rate: float | None = None,
        mutation_rate: float = 0.01,
        xp: Any = np,
        initial: Any = None,
    ) -> None:
        if crossover_rate is None:
            crossover_rate = default_crossover_rate(population)
        super().__init__(n_parameters, population, seed, xp, initial)
        self.crossover_rate = share(crossover_rate, "optimizer.crossover_rate")
        self.mutation_rate = share(mutation_rate, "optimizer.mutation_rate")
        self._population: Any = None
        self._cost: Any = None
        self._elite: Any = None
        self._elite_cost = float("inf")

    @property
    def best_cost(self) -> float:
        """The cost of the elite, inf before there is one."""
        return self._elite_cost

    @property
    def best(self) -> Any:
        """The elite (n_parameters,); None before there is one."""
        return self._elite

    @property
    def _known(self) -> tuple[Any, Any]:
        return self._population, self._cost

    def ask(self) -> Any:
        """Return the next candidates, the elite first; see `Optimizer.ask`.

        As long as no cost was finite there is nothing to breed from, and every generation is drawn
        afresh.
        """
        if self._elite is None:
            return self._draw()
        children = self.xp.empty((self.n_parameters, self.population_size))
        children[:, 0] = self._elite
        self._breed(children[:, 1:])
        self._mutate(children)
        return children

    def tell(self, candidates: Any, cost: Any) -> None:
        """See `Optimizer.tell`; the candidates are kept, not copied.

        Of equal costs the first candidate is the better one, and the old elite before all.
        """
        candidates, cost = self._checked(candidates, cost)
        first = int(cost.argmin())
        lowest = float(cost[first])
        if lowest < self._elite_cost:
            self._elite, self._elite_cost = candidates[:, first].copy(), lowest
        self._population, self._cost = candidates, cost
        self.generation += 1

    def receive(self, points: np.ndarray, cost: np.ndarray) -> None:
        """See `PopulationSearch.receive`."""
        self._population, self._cost = self._population.copy(), self._cost.copy()
        super().receive(points, cost)
        first = int(cost.argmin())
        if cost[first] < self._elite_cost:
            self._elite, self._elite_cost = self.xp.asarray(points[:, first]), float(cost[first])

    def _draw(self) -> Any:
        """Draw a whole population, uniform in the unit cube; given points take the first places."""
        population = self.xp.empty((self.n_parameters, self.population_size))
        n_blocks = -(-self.population_size // 2)  # a block of four words serves two candidates
        for parameter in range(self.n_parameters):
            words = self._words(self._count(n_blocks), parameter, _INITIAL).reshape(-1, 2)
            words = words[: self.population_size]
            population[parameter] = philox.uniform(words[:, 0], words[:, 1])
        if self._initial is not None and self.generation == 0:
            population[:, : self._initial.shape[1]] = self.xp.asarray(self._initial)
        return population

    def _select(self, n_pairs: int) -> tuple[Any, Any]:
        """Select parents (n_pairs,) and (n_pairs,): each the better of two drawn at random.

        They are drawn with replacement; of equal costs the one drawn first wins.
        """
        words = self._words(self._count(n_pairs), 0, _TOURNAMENT)
        drawn = philox.below(words, self._population.shape[1])
        cost = self._cost[drawn]
        first = self.xp.where(cost[:, 1] < cost[:, 0], drawn[:, 1], drawn[:, 0])
        second = self.xp.where(cost[:, 3] < cost[:, 2], drawn[:, 3], drawn[:, 2])
        return first, second

    def _crossover_points(self, n_pairs: int) -> Any:
        """Return from which parameter on a pair (n_pairs,) exchanges its values; n_parameters for
        never.

        One word decides twice for a pair: below the threshold it means "cross", and there it is
        itself uniform over 0 .. threshold-1, so its place in that interval is the point.
        """
        n = self.n_parameters
        threshold = round(self.crossover_rate * 2**32)
        if n == 1 or threshold == 0:
            return self.xp.full(n_pairs, n, dtype=np.int64)
        blocks = self._count(-(-n_pairs // 4))
        words = self._words(blocks, 0, _CROSSOVER).reshape(-1)[:n_pairs].astype(np.uint64)
        points = words * np.uint64(n - 1) // np.uint64(threshold) + np.uint64(1)
        return self.xp.where(words < np.uint64(threshold), points, np.uint64(n)).astype(np.int64)

    def _breed(self, children: Any) -> None:
        """Fill children (n_parameters, n_children): first ones of all pairs, then the second."""
        n_children = children.shape[1]
        n_pairs = -(-n_children // 2)
        if n_pairs == 0:
            return
        first, second = self._select(n_pairs)
        points = self._crossover_points(n_pairs)
        n_seconds = n_children - n_pairs
        parameters = self.xp.arange(self.n_parameters)[:, None]
        # on the host a row at a time stays nearer to the cache; a device wants few launches
        step = 1 if self.xp is np else self.n_parameters
        for start in range(0, self.n_parameters, step):
            rows = slice(start, start + step)
            own = self.xp.take(self._population[rows], first, axis=1)
            other = self.xp.take(self._population[rows], second, axis=1)
            exchanged = points <= parameters[rows]
            children[rows, :n_pairs] = self.xp.where(exchanged, other, own)
            seconds = self.xp.where(exchanged, own, other)
            children[rows, n_pairs:] = seconds[:, :n_seconds]

    def _mutate(self, children: Any) -> None:
        """Replace values of all but the elite in slot 0 by uniform draws, in place.

        Whether a value mutates is decided by 40 random bits, but the first eight settle it
        nearly always: sixteen values share a block of words, and only a value with a byte at or
        under the threshold's first byte gets a block of its own, which holds the other 32 bits
        and the replacement.
        """
        threshold = round(self.mutation_rate * 2**40)
        n_parameters, n_candidates = children.shape
        if threshold == 0 or n_candidates == 1:
            return
        whole, rest = threshold >> 32, threshold & 0xFFFFFFFF
        n_blocks = -(-n_candidates // 16)
        blocks = self.xp.tile(self._count(n_blocks), n_parameters)
        rows = self.xp.repeat(self._count(n_parameters), n_blocks)
        coarse = philox.as_bytes(self._words(blocks, rows, _MUTATION)).reshape(n_parameters, -1)
        coarse = coarse[:, 1:n_candidates]
        hits = self.xp.flatnonzero(coarse <= min(whole, 255))
        parameter, candidate = hits // (n_candidates - 1), hits % (n_candidates - 1)
        byte = coarse[parameter, candidate].astype(np.uint32)
        candidate = candidate + 1
        words = self._words(candidate.astype(np.uint64), parameter.astype(np.uint64), _REPLACEMENT)
        chosen = (byte < whole) | (words[:, 0] < rest)
        parameter, candidate, words = parameter[chosen], candidate[chosen], words[chosen]
        children[parameter, candidate] = philox.uniform(words[:, 1], words[:, 2])
