"""Differential evolution with two settings that adapt to the trials that succeeded.

    trial = x + F (one of the best - x) + F (another - yet another),

of which each parameter is taken with probability C, else kept; the trial replaces x if it is no
worse. Every candidate draws its F and C around means of those that lately brought gains.

Sources: J. Zhang, A. C. Sanderson, "JADE: adaptive differential evolution with optional external
archive", IEEE Trans Evol Comput 13 (2009) 945-958 (the trial); R. Tanabe, A. Fukunaga,
"Success-history based parameter adaptation for differential evolution", CEC (2013) 71-78 (the
means); both without their archive.

Written once over the array module of the population: NumPy on the host, CuPy on a device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from channelfit.search import philox
from channelfit.search.population import PopulationSearch
from channelfit.search.settings import share

# The purpose of a draw: the last word of its counter. Swarms have 5, the genetic algorithm 0 to 4.
_INITIAL, _PARTNERS, _SETTINGS, _CROSSOVER = range(6, 10)

_MEMORIES = 6  # means that are remembered, the oldest replaced
_FIRST_WEIGHT, _FIRST_CROSSOVER = 0.5, 0.9  # rates of a channel belong together: cross most
_LEAST_WEIGHT, _SPREAD = 0.05, 0.1


class Differential(PopulationSearch):
    """Differential evolution by ask and tell.

    A trial that leaves the cube goes half way to the face instead. As long as no cost was finite
    every generation is drawn afresh.

    Arguments, besides those of `PopulationSearch`:
        elite: the share of the population, above 0 and up to 1, that counts as the best.

    Raises: InputError for a setting out of its range.
    """

    name = "differential"
    least_population = 4
    own_settings = ("elite",)

    def __init__(
        self,
        n_parameters: int,
        population: int,
        seed: int,
        elite: float = 0.1,
        xp: Any = np,
        initial: Any = None,
    ) -> None:
        super().__init__(n_parameters, population, seed, xp, initial)
        self.elite = share(elite, "optimizer.elite", zero=False)
        self._population: Any = None
        self._cost = xp.full(population, np.inf)
        self._weights = xp.full(_MEMORIES, _FIRST_WEIGHT)
        self._crossovers = xp.full(_MEMORIES, _FIRST_CROSSOVER)
        self._learned = 0

    @property
    def _known(self) -> tuple[Any, Any]:
        return self._population, self._cost

    def ask(self) -> Any:
        """See `Optimizer.ask`."""
        if self.best_cost == np.inf:
            return self._draw()
        weight, crossover, forced = self._settings_drawn()
        best, one, other = self._partners()
        trial = self.xp.empty_like(self._population)
        for parameter, row in enumerate(self._population):
            moved = row + weight * (row[best] - row) + weight * (row[one] - row[other])
            moved = self.xp.where(moved > 1, (1 + row) / 2, moved)
            moved = self.xp.where(moved < 0, row / 2, moved)
            taken = (self._chances(parameter) < crossover) | (forced == parameter)
            trial[parameter] = self.xp.where(taken, moved, row)
        return trial

    def tell(self, candidates: Any, cost: Any) -> None:
        """See `Optimizer.tell`."""
        xp = self.xp
        shape = (self.n_parameters, self.population_size)
        candidates, cost = self._checked(candidates, cost, shape)
        if self.best_cost == np.inf:
            self._population, self._cost = candidates.copy(), cost.astype(np.float64)
        else:
            self._remember(cost)
            better = cost <= self._cost
            self._population = xp.where(better, candidates, self._population)
            self._cost = xp.where(better, cost, self._cost)
        self.generation += 1

    def _remember(self, cost: Any) -> None:
        """Remember means of the settings that brought gains, weighted by the gains."""
        xp = self.xp
        gained = (cost < self._cost) & xp.isfinite(self._cost)
        before, after = xp.where(gained, self._cost, 0.0), xp.where(gained, cost, 0.0)
        gain = before - after
        largest = float(gain.max())
        if not 0 < largest < np.inf:
            return
        gain = gain / largest
        weight, crossover, _ = self._settings_drawn()
        for memory, used in ((self._weights, weight), (self._crossovers, crossover)):
            # Lehmer's mean leans to the larger
            first, second = float((gain * used).sum()), float((gain * used * used).sum())
            memory[self._learned % _MEMORIES] = second / first if first > 0 else 0.0
        self._learned += 1

    def _draw(self) -> Any:
        """Draw a whole population, uniform in the unit cube; given points take the first places."""
        population = self.xp.empty((self.n_parameters, self.population_size))
        for parameter in range(self.n_parameters):
            words = self._words(self._count(self.population_size), parameter, _INITIAL)
            population[parameter] = philox.uniform(words[:, 0], words[:, 1])
        if self._initial is not None and self.generation == 0:
            population[:, : self._initial.shape[1]] = self.xp.asarray(self._initial)
        return population

    def _settings_drawn(self) -> tuple[Any, Any, Any]:
        """Draw F, C and the parameter that is taken in any case, each (n_candidates,)."""
        xp, n = self.xp, self.population_size
        slot = philox.below(self._words(self._count(n), 0, _PARTNERS)[:, 3], _MEMORIES)
        words = self._words(self._count(n), 0, _SETTINGS)
        one, two, three = ((words[:, i] + 0.5) * 2.0**-32 for i in range(3))
        cauchy = xp.tan(math.pi * (one - 0.5))
        normal = xp.sqrt(-2 * xp.log(two)) * xp.cos(2 * math.pi * three)
        weight = xp.clip(self._weights[slot] + _SPREAD * cauchy, _LEAST_WEIGHT, 1.0)
        crossover = xp.clip(self._crossovers[slot] + _SPREAD * normal, 0.0, 1.0)
        return weight, crossover, philox.below(words[:, 3], self.n_parameters)

    def _partners(self) -> tuple[Any, Any, Any]:
        """Draw for each candidate one of the best, another one, and yet another, each
        (n_candidates,).
        """
        n = self.population_size
        words = self._words(self._count(n), 0, _PARTNERS)
        n_best = max(2, round(self.elite * n))
        best = self.xp.argsort(self._cost, kind="stable")[:n_best][
            philox.below(words[:, 0], n_best)
        ]
        one = (self.xp.arange(n) + 1 + philox.below(words[:, 1], n - 1)) % n
        other = (one + 1 + philox.below(words[:, 2], n - 1)) % n
        return best, one, other

    def _chances(self, parameter: int) -> Any:
        """Draw uniform numbers (n_candidates,) for one parameter."""
        n_blocks = -(-self.population_size // 4)
        words = self._words(self._count(n_blocks), parameter, _CROSSOVER).reshape(-1)
        return words[: self.population_size] * 2.0**-32
