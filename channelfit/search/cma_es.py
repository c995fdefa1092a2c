"""CMA-ES on whole generations of scores: pycma's strategy, restarted again and again.

Sources: N. Hansen, who wrote pycma, "The CMA evolution strategy: a tutorial", arXiv:1604.00772;
restarts in two sizes: N. Hansen, "Benchmarking a BI-population CMA-ES on the
BBOB-2009 function testbed", GECCO (2009) 2389-2396.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.optimizer import Optimizer
from channelfit.search.population import check_costs, check_size, starting_points
from channelfit.search.settings import share

INSTALL = 'pip install "channelfit[cma]"'

_STEP = 0.3  # standard deviation of the first descent, as a share of every range
_MOST_STEP = 1 / 3  # beyond it pycma cuts steps by itself
_LEAST_DIMENSIONS = 2  # pycma fails on lines: a search of one parameter gets an idle second one
_MOST_STEPS_SHRUNK = 2.0  # powers of ten by which a small descent may start finer
_MOST_GROWTH = 2**10  # the largest population, as a multiple of the first


class CmaEs(Optimizer):
    """CMA-ES by ask and tell, one descent after the other.

    The first descent starts in the middle of the cube, or at the first starting point; later ones
    start anywhere. When one ends, by pycma's own rules, the next has twice the population of the
    largest so far, or a small one and a finer step: whichever kind has had fewer candidates.
    Bounds are kept by pycma's boundary handling. A cost that is not finite ranks after every
    finite one; a descent that finds no finite cost in a generation starts elsewhere.

    Arguments:
        n_parameters: free parameters, 1 or more.
        population: candidates of a generation in the first descent, 4 or more.
        seed: 0 .. 2**64-1; decides every draw. NumPy's global generator is not used.
        step: standard deviation of the first descent, as a share of every range, above 0 and up to
            a third.
        xp: numpy, or cupy where candidates go to a GPU; the strategy itself stays on the host.
        initial: (n_parameters, n_points) points of the unit cube, scored in the first generation.

    Raises: InputError for a setting out of its range, and where pycma is not installed.
    """

    name = "cma"
    least_population = 4

    def __init__(
        self,
        n_parameters: int,
        population: int,
        seed: int,
        step: float = _STEP,
        xp: Any = np,
        initial: Any = None,
    ) -> None:
        check_size(n_parameters, population, seed, self.least_population)
        self.n_parameters = n_parameters
        self.population_size = population
        self.seed = seed
        self.step = share(step, "optimizer.step", _MOST_STEP, zero=False)
        self.xp = xp
        self.descents = 0
        self._dimensions = max(n_parameters, _LEAST_DIMENSIONS)
        self._initial = starting_points(initial, n_parameters, population)
        self._cma = _pycma()
        self._random = np.random.Generator(np.random.Philox(key=seed))
        self._growth = 1
        self._small = False
        self._scored = {False: 0, True: 0}
        self._best: np.ndarray | None = None
        self._best_cost = math.inf
        self._points: np.ndarray | None = None  # (n_candidates, n_dimensions), as pycma gave them
        self._descent: Any = None

    @property
    def settings(self) -> dict[str, float]:
        """The settings in force, by the names that a user writes."""
        return {"population": self.population_size, "step": self.step}

    @property
    def best_cost(self) -> float:
        """The lowest finite cost so far, inf before there is one."""
        return self._best_cost

    @property
    def best(self) -> Any:
        """The candidate (n_parameters,) of `best_cost`; None before there is one."""
        return None if self._best is None else self.xp.asarray(self._best)

    def ask(self) -> Any:
        """See `Optimizer.ask`; the number of candidates changes from descent to descent.

        Asking again before telling gives the same candidates.
        """
        if self._points is None:
            if self._descent is None:
                self._descent = self._first()
            self._points = np.clip(np.array(self._descent.ask()), 0.0, 1.0)
        return self.xp.asarray(self._points.T[: self.n_parameters].copy())

    def tell(self, candidates: Any, cost: Any) -> None:
        """See `Optimizer.tell`; of equal costs the older best stays."""
        shape = self.ask().shape
        points: Any = self._points
        candidates, cost = to_host(candidates), to_host(cost).astype(np.float64)
        check_costs(candidates, cost, self.n_parameters, shape)
        self._points = None
        self._scored[self._small] += cost.size
        finite = np.isfinite(cost)
        if not finite.any():
            self._descent = self._restarted(self._descent.popsize, self._descent.sigma0)
            return
        place = int(np.where(finite, cost, np.inf).argmin())
        if cost[place] < self._best_cost:
            self._best, self._best_cost = candidates[:, place].copy(), float(cost[place])
        with _quiet():
            self._descent.tell(list(points), _ranked(cost, finite).tolist())
            ended = bool(self._descent.stop())
        if ended:
            self._descent = self._next()

    def _first(self) -> Any:
        points = np.full((1, self._dimensions), 0.5)
        if self._initial is not None:
            points = np.repeat(points, self._initial.shape[1], axis=0)
            points[:, : self.n_parameters] = self._initial.T
        descent = self._start(points[0], self.population_size, self.step)
        if self._initial is not None:
            descent.inject(list(points), force=True)
        return descent

    def _next(self) -> Any:
        """Start the descent after one that has ended: large or small, whichever kind had less."""
        self._small = self._growth > 1 and self._scored[True] < self._scored[False]
        if not self._small:
            self._growth = min(2 * self._growth, _MOST_GROWTH)
            return self._restarted(self._growth * self.population_size, self.step)
        larger, finer = self._random.random(2)
        population = self.population_size * (self._growth / 2) ** (larger**2)
        return self._restarted(int(population), self.step * 10 ** (-_MOST_STEPS_SHRUNK * finer))

    def _restarted(self, population: int, step: float) -> Any:
        return self._start(self._random.random(self._dimensions), population, step)

    def _start(self, mean: np.ndarray, population: int, step: float) -> Any:
        self.descents += 1
        options = {
            "bounds": [0.0, 1.0],
            "popsize": population,
            "randn": lambda *shape: self._random.standard_normal(shape),
            "seed": np.nan,
            "verbose": -9,
            "verb_log": 0,
            "signals_filename": "",
            "maxiter": np.inf,
        }
        with _quiet():
            return self._cma.CMAEvolutionStrategy(mean, step, options)


def _ranked(cost: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Return costs (n_candidates,) in which those that are not finite rank last, but are finite."""
    worst = cost[finite].max()
    return np.where(finite, cost, worst + abs(worst) + 1.0)


def _pycma() -> Any:
    try:
        import cma  # an optional package
    except ImportError:
        raise InputError(
            f"the package cma is not installed, and CMA-ES needs it: {INSTALL}",
            key="optimizer.name",
        ) from None
    return cma


def _quiet() -> Any:
    """Silence pycma's warnings of flat costs and hard bounds; both are met by a new descent."""
    return warnings.catch_warnings(action="ignore")
