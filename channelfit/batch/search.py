"""Many wells searched together: one scan for all, many descents side by side, solutions exchanged.

1. *Scan.* Points spread over the search space are simulated once for all wells of a protocol and
   compared with the data of every well by matrix products (over the samples that count in all of
   them, where wells have masks of their own); parameters in which the current is a straight
   line are solved for each well. The points of a scan depend on the plan and the seed alone. An
   eighth of them comes first, and is all where descents from there are as low as noise allows.
2. *Descents.* The best points of a well are refined by least squares, those of many wells in the
   same calls. A descent ends by itself, or where it falls hopelessly behind the best of its well. A
   well is settled when two descents have arrived at the same lowest cost, or when its cost is as
   low as noise allows (`well_scorer.attainable`); one that is not gets the next points of its scan,
   round after round. First come a few pilots, the wells that tell the points of the scan apart
   best; one that has reached its noise helps the others of them. Each other well begins with the
   solution of a pilot that fits it best: plates hold one kind of cell, so a good solution of one
   well serves all, and it takes a fifth of the steps that a point of the scan takes.
3. *Exchange.* The solutions of all wells are tried on each other, and refined where a well may gain
   by them: where it is not settled, or the solution fits better than its own. This is repeated
   until no well gains.

A result may therefore depend on which wells are fitted together, where a well alone would have
missed the best solution, or has several as good ones. It does not depend on their order, except
among wells that fit equally well. Without exchange the solution of a well depends on the plan, the
seed, the backend and the recording of this well, and on nothing else; where masks differ from well
to well, also on the samples that count in all. The first exchange among n wells compares n x n
pairs in blocks that fit into memory: for 10,000 wells it takes seconds on a GPU with 16 cores, and
a small share of the time of the descents anywhere. Later ones try only the solutions of wells that
have gained.

All random numbers come from the seed. Nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

import numpy as np

from channelfit.batch.costs import WellCosts
from channelfit.batch.limits import LIMITS
from channelfit.batch.lowest import Lowest
from channelfit.scoring.scorer import Linearization
from channelfit.search.agreement import SAME
from channelfit.search.least_squares import Starts, begin, step
from channelfit.search.objective import Local

#: Points of a scan for each free parameter; descents of each well in a round on cores, and on a
#: GPU, where many take as long as a few.
_POINTS, _STARTS, _STARTS_ON_GPU = 256, 1, 8
#: The same where a score steps through whole traces, well by well.
_FEW_POINTS = 64
#: The share of these points with which a search begins; the others wait until a well needs them.
_FIRST = 1 / 8
#: The most descents of a well from its scan, and how many must arrive at its lowest cost.
_MOST, _AGREE = 20, 2
#: Wells that are searched before the others: so many, and one more for so many wells.
_PILOTS, _WELLS_A_PILOT = 4, 32
#: Iterations of a descent, and the number of them over which its pace is measured.
_ITERATIONS, _MEMORY = 150, 8
#: A descent begins with this damping; it is over when its parabola promised its last step less than
#: this share of its cost: on the way, and for the solutions of the wells.
_DAMPING, _ROUGH, _FINE = 1e-3, 1e-6, 1e-10
#: Rounds of exchange, and solutions of others that a well tries in each.
_EXCHANGES, _OTHERS = 6, 2
#: A well gains by an exchange where its cost falls by more than this share.
_GAIN = 1e-6


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search of wells.

    Attributes:
        starts: descents of each well in a round; 0 for a number that suits the backend.
        scan: points of the scan; 0 for a number that suits the parameters.
        seed: of all random numbers.
        backend: auto, cpu, cuda or reference.
        intervals: whether to compute standard errors and intervals.
        exchange: whether wells try each other's solutions.
        misfit: the multiple of the noise beyond which a misfit is reported as large; 0 for never.
    """

    starts: int = 0
    scan: int = 0
    seed: int = 0
    backend: str = "auto"
    intervals: bool = True
    exchange: bool = True
    misfit: float = LIMITS["rms/noise"].value


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        stage: "scanning", "refining", "exchanging" or "judging".
        done: wells that have finished this stage.
        wells: how many wells there are.
    """

    stage: str
    done: int
    wells: int


OnProgress = Callable[[SearchProgress], None]


def ignore_progress(progress: SearchProgress) -> None:
    """Ignore progress."""


@dataclass(frozen=True, eq=False)
class Solutions:
    """The solutions of wells; arrays end in the well's number among those searched together.

    Attributes:
        unit: (n_free, n_wells), in the unit cube; NaN where no start worked.
        cost, gradient, hessian: with priors, as a `Local` has them; the cost is inf where no start
            worked.
        starts, agreed: (n_wells,) int64, the descents of a well, including those from solutions of
            other wells, and how many of them reached its lowest cost.
    """

    unit: np.ndarray
    cost: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    starts: np.ndarray
    agreed: np.ndarray

    def take(self, wells: np.ndarray) -> Solutions:
        """Return the solutions of some wells."""
        return Solutions(*(array[..., wells] for array in vars(self).values()))


def search(
    wells: WellCosts, settings: SearchSettings, on_progress: OnProgress = ignore_progress
) -> Solutions:
    """Search the best parameters of all wells; see the module."""
    n_wells, n_free = wells.n_wells, wells.space.n_free
    found = _Best(n_free, n_wells)

    def report(stage: str, done: int) -> None:
        on_progress(SearchProgress(stage, done, n_wells))

    report("scanning", 0)
    scans = first, others = _scans(wells, settings)
    together = settings.exchange and n_wells > 1
    pilots = first.clearest(_PILOTS + n_wells // _WELLS_A_PILOT if together else 0)
    report("scanning", n_wells)
    everyone = np.arange(n_wells)
    left = np.setdiff1d(everyone, pilots)
    exchange = partial(_exchange, wells, found, partial(report, "exchanging"))
    settle = partial(_settle, wells, found, report=partial(report, "refining"))
    if together:
        settle([first], pilots)
        exchange(pilots[found.at_noise(wells)[pilots]], pilots, _OTHERS)
        settle([others], pilots)
        exchange(pilots, pilots, _OTHERS)
        exchange(pilots, left, 1)
    settle(scans, left)
    if together:
        fresh = everyone
        for _ in range(_EXCHANGES):
            fresh = exchange(fresh, everyone, _OTHERS)
    for some in _blocks(wells, np.flatnonzero(np.isfinite(found.cost))):
        found.finish(wells, some)
    return found.solutions()


def _blocks(wells: WellCosts, some: np.ndarray) -> list[np.ndarray]:
    """Split some wells into blocks of the size that suits their scorer."""
    step = wells.scorer.at_once
    return [some[first : first + step] for first in range(0, len(some), step)]


class _Scan:
    """Points tried on all wells, when the first well needs them, and the best of them for each.

    Arguments:
        unit: (n_free, n_points), of all points.
        starts: how many points of a well are used in a round.
        rounds: how many rounds there are, besides those of a start.
        start: (n_free, 1), a point that comes before all others; None for none.
    """

    def __init__(
        self,
        wells: WellCosts,
        unit: np.ndarray,
        starts: int,
        rounds: int,
        start: np.ndarray | None = None,
    ) -> None:
        self.wells, self.starts, self.start = wells, starts, start
        self.unit = unit if start is None else np.concatenate([unit, start], axis=1)
        ahead = 0 if start is None else 1
        self.rounds = -(-(starts * rounds + ahead) // starts) if unit.shape[1] + ahead else 0

    @cached_property
    def _lowest(self) -> Lowest:
        some = self.unit if self.start is None else self.unit[:, :-1]
        return self.wells.lowest(some, max(_MOST, self.starts))

    @cached_property
    def _best(self) -> Lowest:
        """The points of each well, in the order in which they are used."""
        if self.start is None:
            return self._lowest
        own = self.start[self.wells.open.coordinates][None].repeat(self.wells.n_wells, axis=2)
        place = np.full((1, self.wells.n_wells), self.unit.shape[1] - 1)
        return Lowest(np.zeros((1, self.wells.n_wells)), place, own).joined(self._lowest)

    def clearest(self, n: int) -> np.ndarray:
        """Return the n wells (n,) that tell the points of the scan apart best."""
        with np.errstate(invalid="ignore"):
            clearness = self._lowest.cost[0] / self._lowest.cost[-1]
        return np.sort(np.argsort(clearness, kind="stable")[:n])

    def points(self, some: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the points (n_free, n) of some wells for a round, and the well of each (n,)."""
        rows = slice(number * self.starts, (number + 1) * self.starts)
        cost, which = self._best.cost[rows][:, some], self._best.which[rows][:, some]
        solved = self._best.solved[rows][:, :, some]
        k, w = np.nonzero(np.isfinite(cost))
        return self.wells.placed(self.unit[:, which[k, w]], solved[k, :, w].T), some[w]


def _scans(wells: WellCosts, settings: SearchSettings) -> tuple[_Scan, _Scan]:
    """Return a scan of the whole space by a few points, and one by all others."""
    usual = _STARTS_ON_GPU if wells.scorer.backend == "cuda" else _STARTS
    n_free, starts = wells.space.n_free, settings.starts or usual
    points = settings.scan or n_free * (_POINTS if wells.scorer.solves else _FEW_POINTS)
    random = np.random.Generator(np.random.Philox(settings.seed))
    unit, few = wells.sample(points, random), max(1, int(_FIRST * points))
    first = _Scan(wells, unit[:, :few], starts, 1, wells.plan.starting_point())
    return first, _Scan(wells, unit[:, few:], starts, -(-_MOST // starts))


class _Best:
    """The best point of every well so far, and the costs at which its descents ended."""

    def __init__(self, n_free: int, n_wells: int) -> None:
        nothing = np.full((n_free, n_wells), np.nan), Linearization.empty(n_free, n_wells)
        self._points = Starts(
            nothing[0], Local(**vars(nothing[1])), np.ones(n_wells), np.zeros(n_wells, bool)
        )
        self.tried = np.full(n_wells, np.inf)  # the lowest cost of another well's solution
        self._costs = np.empty((0, n_wells))  # of descents, NaN where a well had fewer
        self._n = np.zeros(n_wells, np.int64)  # descents of each well

    @property
    def unit(self) -> np.ndarray:
        """The best points (n_free, n_wells), NaN where there is none."""
        return self._points.unit

    @property
    def cost(self) -> np.ndarray:
        """Their costs (n_wells,), inf where there is none."""
        return self._points.cost

    def refine(self, wells: WellCosts, unit: np.ndarray, well: np.ndarray) -> np.ndarray:
        """Refine points (n_free, n) of wells (n,), and keep the best point of each well.

        Returns: the wells that gained.
        """
        before, starts = self.cost, begin(wells, unit, well)
        starts.damping[:] = _DAMPING
        ends = descend(wells, starts, well, before, _ROUGH)
        self._note(well, ends.cost)
        self._keep(ends, well)
        return np.flatnonzero(self.cost < before * (1 - _GAIN))

    def finish(self, wells: WellCosts, some: np.ndarray) -> None:
        """Go on from the best points of some wells (n,), with the derivatives that are known.

        So do the dampings, unless a descent was stuck.
        """
        points = self._points.take(some)
        damping = np.minimum(points.damping, _DAMPING)
        points = replace(points, damping=damping, done=np.zeros(len(some), bool))
        self._keep(descend(wells, points, some, self.cost, _FINE), some)

    def _keep(self, ends: Starts, well: np.ndarray) -> None:
        """Put ends of descents of wells (n,) in the place of best points that are no lower."""
        order = np.lexsort((ends.cost, well))  # the lowest of each well stands first
        lowest = order[np.unique(well[order], return_index=True)[1]]
        lowest = lowest[ends.cost[lowest] <= self.cost[well[lowest]]]
        self._points = self._points.put(well[lowest], ends.take(lowest))

    def _note(self, well: np.ndarray, cost: np.ndarray) -> None:
        """Record the costs (n,) at which descents of wells (n,) ended."""
        order = np.argsort(well, kind="stable")
        own = well[order]
        rows = self._n[own] + np.arange(len(own)) - np.searchsorted(own, own)
        missing = int(rows.max(initial=-1)) + 1 - len(self._costs)
        if missing > 0:
            more = np.full((missing, len(self.cost)), np.nan)
            self._costs = np.concatenate([self._costs, more])
        self._costs[rows, own] = cost[order]
        self._n += np.bincount(well, minlength=len(self._n))

    def solutions(self) -> Solutions:
        """Return the best points, and how many descents of each well did not fail, and agreed."""
        points, local = self._points, self._points.local
        agreed, ended = self.agreed(np.arange(len(self.cost))), np.isfinite(self._costs).sum(axis=0)
        return Solutions(points.unit, local.cost, local.gradient, local.hessian, ended, agreed)

    def settled(self, wells: WellCosts) -> np.ndarray:
        """Return (n_wells,) whether enough descents agree, or noise hides what a well may gain."""
        enough = self.agreed(np.arange(len(self.cost))) >= _AGREE
        return np.asarray(enough | self.at_noise(wells))

    def doubtful(self, wells: WellCosts) -> np.ndarray:
        """Return (n_wells,) whether a well that no descent has confirmed is high for its noise."""
        single = self.agreed(np.arange(len(self.cost))) < _AGREE
        return np.asarray(single & (self.cost > wells.attainable[0]))

    def at_noise(self, wells: WellCosts) -> np.ndarray:
        """Return (n_wells,) whether noise hides what a well may gain."""
        return np.asarray(self.cost <= wells.attainable[1])

    def agreed(self, some: np.ndarray) -> np.ndarray:
        """Return how many descents reached the lowest cost of their well, for some wells (n,)."""
        costs = self._costs[:, some]
        reached = (costs <= self.cost[some] * (1 + SAME)) & np.isfinite(costs)
        counts: np.ndarray = reached.sum(axis=0)
        return counts


def descend(
    wells: WellCosts, starts: Starts, well: np.ndarray, known: np.ndarray, tolerance: float
) -> Starts:
    """Refine points until each is done, or would not reach the best of its well.

    Arguments:
        well: (n,) of each point.
        known: (n_wells,) the lowest cost of each well so far.

    Returns: the ends, in the order of the starts.
    """
    now, n, best = starts, len(starts), known.copy()
    places, past = np.arange(n), np.full((_MEMORY, n), np.inf)  # of those under way
    ended, order = [], []
    for _ in range(_ITERATIONS):
        if now.done.any():
            left = np.flatnonzero(~now.done)
            ended.append(now.take(now.done))
            order.append(places[now.done])
            now, places, past = now.take(left), places[left], past[:, left]
        if not len(places):
            break
        own = well[places]
        past = np.concatenate([past[1:], now.cost[None]])
        now = step(wells, now, own, tolerance)
        np.minimum.at(best, own, now.cost)
        now.done[_hopeless(past[0], now.cost, best[own])] = True
    ends = reduce(Starts.joined, ended, now)
    return ends.take(np.argsort(np.concatenate([places, *order])))


def _hopeless(earlier: np.ndarray, cost: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Return which descents would not reach the best of their well at their present pace."""
    with np.errstate(all="ignore"):
        pace = np.log(earlier / cost) / _MEMORY
        left = np.log(cost / (best * (1 + SAME)))
        hopeless: np.ndarray = (cost > best * (1 + SAME)) & (left > 50 * pace)
    return hopeless


def _settle(
    wells: WellCosts,
    found: _Best,
    scans: Sequence[_Scan],
    among: np.ndarray,
    report: Callable[[int], None],
) -> None:
    """Refine points of scans for some wells, round after round, until each is settled."""
    rounds = [(scan, number) for scan in scans for number in range(scan.rounds)]
    for some in _blocks(wells, among):
        for scan, number in rounds:
            unsettled = some[~found.settled(wells)[some]]
            if not len(unsettled):
                break
            found.refine(wells, *scan.points(unsettled, number))
        report(int(some[-1]) + 1)


def _exchange(
    wells: WellCosts,
    found: _Best,
    report: Callable[[int], None],
    givers: np.ndarray,
    takers: np.ndarray,
    n: int,
) -> np.ndarray:
    """Refine the best n solutions of some wells in each of others that may gain by them.

    A well may gain that has tried none, that is not settled or doubtful, or that another's solution
    fits better as it is.

    Returns: the wells that gained.
    """
    givers = givers[np.isfinite(found.cost[givers])]
    if not len(givers):
        return givers
    own, gained = found.unit[:, givers], [np.empty(0, np.int64)]
    tried = wells.lowest(own, n, excluded=givers)
    # a point that was tried before and is no better now need not be refined again
    better = np.isfinite(tried.cost) & (tried.cost < found.tried * (1 - SAME))
    for k in range(len(better)):
        may_gain = ~found.settled(wells) | found.doubtful(wells) | np.isinf(found.tried)
        may_gain |= tried.cost[k] < found.cost
        for some in _blocks(wells, takers[(better[k] & may_gain)[takers]]):
            unit = wells.placed(own[:, tried.which[k, some]], tried.solved[k][:, some])
            gained.append(found.refine(wells, unit, some))
            found.tried[some] = np.minimum(found.tried[some], tried.cost[k, some])
            report(int(some[-1]) + 1)
    return np.unique(np.concatenate(gained))
