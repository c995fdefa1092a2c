"""Global search and least squares together: scan, refine many starts, go on until they agree.

One round scores points spread over the whole space, takes the best that differ, and refines them
side by side. Those that fall behind are dropped on the way, and the last few still under way go on
together with the starts of the next round. From the second round on, half of the starts come from
known solutions: the best one with some coordinates from another one, or drawn anew.

On a GPU the rounds that are left to try before an end are made side by side.

The search ends when enough starts that knew nothing of each other have arrived at the same lowest
cost and a round of such relatives brought nothing better; or when several rounds in a row, and a
look around the best solution, brought nothing; and at once where the cost is nothing but the
scorer's rounding.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import Score
from channelfit.search.agreement import SAME, Agreement, agreement
from channelfit.search.least_squares import Starts, begin, improve
from channelfit.search.objective import Generation, Objective, summarized
from channelfit.search.optimizer import Search
from channelfit.search.points_around import points_around
from channelfit.search.population import starting_points

#: Points that are scored in one call.
_CHUNK = 4096
#: Iterations over which the pace of a start is measured, and the most that a round makes.
_MEMORY, _MOST_ITERATIONS = 10, 200
#: Points around the best that are refined, and the relative gain that makes the search go on.
_LOOKED_AT, _CLOSER = 8, 1e-4
#: Points of a scan for each parameter, where scores are slow and where they are fast.
_FEW_POINTS, _MANY_POINTS = 64, 512
#: Starts that are refined before all others in the first round.
_LEADERS = 4
_NONE = np.empty(0, dtype=np.intp)
#: Largest difference of a coordinate, in shares of its range, between points that are the same.
_NEAR = 0.02


@dataclass(frozen=True, eq=False)
class Refined:
    """Refined points.

    Attributes:
        unit: (n_free, n), in the unit cube.
        cost: (n,).
        fresh: (n,) bool, whether each began at a random point, knowing of no other solution.
    """

    unit: np.ndarray
    cost: np.ndarray
    fresh: np.ndarray

    def best(self) -> np.ndarray:
        """Return the point (n_free,) of lowest cost."""
        return self.unit[:, int(self.cost.argmin())]


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """Starts that are being refined.

    Attributes:
        starts: where they are now.
        fresh: (n,) bool, whether each began at a random point.
        past: (_MEMORY, n) costs of the iterations before; inf for those that a start does not have.
    """

    starts: Starts
    fresh: np.ndarray
    past: np.ndarray

    def take(self, which: np.ndarray) -> _UnderWay:
        """Return some of the starts, by index or mask."""
        return _UnderWay(self.starts.take(which), self.fresh[which], self.past[:, which])

    def found(self, which: np.ndarray) -> Refined:
        """Return some of the starts, by mask, as refined points."""
        starts = self.starts
        return Refined(starts.unit[:, which], starts.cost[which], self.fresh[which])

    def and_new(self, starts: Starts, fresh: np.ndarray) -> _UnderWay:
        """Return these starts followed by new ones, which have no past."""
        past = np.full((_MEMORY, len(fresh)), np.inf)
        return _UnderWay(
            self.starts.joined(starts),
            np.concatenate([self.fresh, fresh]),
            np.concatenate([self.past, past], axis=1),
        )

    def improved(self, objective: Objective, best: float, ahead: float) -> _UnderWay:
        """Do one more iteration of each, and drop those that would not reach the best so soon."""
        past = np.concatenate([self.past[1:], self.starts.cost[None]])
        starts = improve(objective, self.starts)
        least = min(best, float(starts.cost.min()))
        hopeless = _hopeless(past[0], starts.cost, least, ahead)
        return _UnderWay(replace(starts, done=starts.done | hopeless), self.fresh, past)


@dataclass
class Hybrid(Search):
    """Scans, refines and compares in rounds until independent starts agree; see the module.

    Arguments:
        n_parameters: free parameters.
        seed: of all random numbers.
        scan: points scored in a round; 0 for a number that suits the time of a score.
        starts: the number of them that are refined.
        agree: the number of independent starts that must arrive at the lowest cost.
        patience: rounds without a gain after which the search ends anyway.
        initial: (n_parameters, n_points) points of the unit cube that are refined first. They
            do not count as independent starts.
        ahead: a start is given up that would not reach the lowest cost at its pace in so many
            iterations.

    Attributes:
        found: all points at which starts have ended so far.
    """

    n_parameters: int
    seed: int
    scan: int = 0
    starts: int = 0
    agree: int = 3
    patience: int = 4
    initial: np.ndarray | None = None
    ahead: float = 150.0
    name = "hybrid"
    ends_by_itself = True
    ended: str = field(default="", init=False)
    agreement: Agreement | None = field(default=None, init=False)
    found: Refined | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.starts = self.starts or max(16, 2 * self.n_parameters)
        self.initial = starting_points(self.initial, self.n_parameters, self.starts)

    @property
    def settings(self) -> Mapping[str, float]:
        """The settings in force, by the names that a user writes."""
        return {
            "scan": self.scan,
            "starts": self.starts,
            "agree": self.agree,
            "patience": self.patience,
        }

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Search stage after stage until there is an end; see `Search.search`.

        Arguments:
            target: a cost above which no fit counts as perfect.
        """
        random = np.random.Generator(np.random.Philox(self.seed))
        objective.previews = True
        self.scan = self.scan or max(_points(objective) * self.n_parameters, self.starts)
        perfect = objective.floor if target is None else min(objective.floor, target)
        found: Refined | None = None
        under_way: _UnderWay | None = None
        idle = 0
        while idle < self.patience:
            # a GPU takes as long for a few starts as for many: it need not wait for each round
            beside = self.patience - idle if objective.on_gpu and found is not None else 1
            pool = yield from self._scan(objective, random, found, beside)
            before = _least(found)
            for wave in _waves(pool, found is None and not objective.on_gpu):
                under_way = yield from self._refine(
                    objective, wave, under_way, _least(found), perfect
                )
                found = _joined(found, under_way.found(under_way.starts.done))
                under_way = under_way.take(~under_way.starts.done)
                self._compare(found, objective.floor)
                if _least(found) <= perfect:
                    self.ended = "the fit is perfect: what is left of the cost is rounding"
                    return
            gained = _least(found) < before * (1 - SAME) and before > objective.floor
            idle = 0 if gained else idle + beside
            if found is None or under_way is None or not idle:
                continue
            explored = _explored(found, self.agree)
            if not explored and idle < self.patience:
                continue
            found = yield from _finished(objective, found, under_way)
            self._compare(found, objective.floor)
            if explored or (self.agreement is not None and self.agreement.agree):
                idle = 0 if explored else idle
                break
            # no other start arrives here: is it a minimum, or a ripple on the way to one?
            before, under_way = _least(found), under_way.take(_NONE)
            found = yield from _looked_around(objective, found)
            self._compare(found, objective.floor)
            idle = 0 if _least(found) < before * (1 - _CLOSER) else idle
        self.ended = self._conclusion(idle)

    def _compare(self, found: Refined, floor: float) -> None:
        """Keep the ends of starts so far, and compare the costs of independent ones."""
        self.found = found
        self.agreement = agreement(_least(found), found.cost[found.fresh], self.agree, floor)

    def _conclusion(self, idle: int) -> str:
        """Say why a search ended that found no perfect fit."""
        one = self.agreement
        if one is not None and one.agree and idle < self.patience:
            return f"{one.arrived} independent starts agree"
        doubt = "" if one is not None and one.agree else ", though independent starts do not agree"
        return f"{idle} round{'s' * (idle > 1)} without a gain{doubt}"

    def _scan(
        self, objective: Objective, random: np.random.Generator, found: Refined | None, beside: int
    ) -> Generator[Generation, None, Refined]:
        """Score the points of some rounds and choose the starts among them by cost."""
        parts, starts, scan = [], beside * self.starts, beside * self.scan
        if found is None and self.initial is not None:
            cost = yield from _scored(objective, self.initial, "known values")
            parts.append(_chosen(self.initial, cost, len(cost), fresh=False))
        n_fresh = starts if found is None else starts - beside * (self.starts // 2)
        unit = objective.sample(scan * n_fresh // starts, random)
        cost = yield from _scored(objective, unit, "scanning")
        parts.append(_chosen(unit, cost, n_fresh, fresh=True))
        n = starts - n_fresh
        if found is not None and n:  # a single start is always a fresh one
            unit = _children(objective, found, scan * n // starts, random)
            cost = yield from _scored(objective, unit, "crossing")
            # the lowest, but not all of them near the best; and the lowest of every few
            lowest = _distinct(unit, cost, n - n // 2, found.best())
            parts.append(Refined(unit[:, lowest], cost[lowest], np.zeros(len(lowest), bool)))
            for first in range(0, 8 * (n // 2), 8):
                few = slice(first, first + 8)
                parts.append(_chosen(unit[:, few], cost[few], 1, fresh=False))
        return _joined(*parts)

    def _refine(
        self,
        objective: Objective,
        pool: Refined,
        others: _UnderWay | None,
        best: float,
        perfect: float,
    ) -> Generator[Generation, None, _UnderWay]:
        """Refine until all are done, but for a few that are not about to become the best.

        Those few would take nearly as long as all: they go on with the starts of the next round.
        """
        before = objective.evaluations
        under_way = _begun(objective, pool, others)
        n = len(under_way.fresh)
        few = -(-min(n, self.starts) // 6) if n >= _LEADERS else 0
        for _ in range(_MOST_ITERATIONS):
            starts = under_way.starts
            yield _generation(objective, starts, objective.evaluations - before, "refining")
            before = objective.evaluations
            if starts.cost.min(initial=np.inf) <= perfect:
                # only the best goes on, as far down as rounding allows
                starts.done[np.arange(len(starts)) != starts.cost.argmin()] = True
            left = starts.cost[~starts.done]
            known = min(best, starts.cost[starts.done].min(initial=np.inf))
            if len(left) <= few and left.min(initial=np.inf) >= known * (1 - SAME):
                break
            under_way = under_way.improved(objective, best, self.ahead)
        return under_way


def _points(objective: Objective) -> int:
    """Return the number of points that a scan has for each parameter.

    They are few where a core steps through every sample, so that scanning costs less than refining.
    """
    return _FEW_POINTS if objective.steps and not objective.on_gpu else _MANY_POINTS


def _waves(pool: Refined, first_round: bool) -> list[Refined]:
    """Order the starts for refinement.

    In the first round a few go first, and tell which of the others fall behind. A GPU takes as
    long for a few as for all.
    """
    if not len(pool.cost):
        return []
    if not first_round or len(pool.cost) <= _LEADERS:
        return [pool]
    return [
        Refined(pool.unit[:, some], pool.cost[some], pool.fresh[some])
        for some in (slice(_LEADERS), slice(_LEADERS, None))
    ]


def _begun(objective: Objective, pool: Refined, others: _UnderWay | None) -> _UnderWay:
    """Return new starts beside those still under way."""
    starts = begin(objective, pool.unit)
    if others is None:
        others = _UnderWay(starts, pool.fresh, np.empty((_MEMORY, len(pool.fresh)))).take(_NONE)
    return others.and_new(starts, pool.fresh)


def _least(found: Refined | None) -> float:
    """Return the lowest cost so far, inf while there is none."""
    return math.inf if found is None else float(found.cost.min(initial=np.inf))


def _finished(
    objective: Objective, found: Refined, under_way: _UnderWay
) -> Generator[Generation, None, Refined]:
    """Refine to their end those still under way that are lower than the solutions found so far.

    The best of all may be among them if the rounds ended because it gained too little.
    """
    under_way = under_way.take(under_way.starts.cost < _least(found))
    starts = yield from _to_the_end(objective, under_way.starts, "refining")
    return _joined(found, Refined(starts.unit, starts.cost, under_way.fresh))


def _to_the_end(
    objective: Objective, starts: Starts, stage: str
) -> Generator[Generation, None, Starts]:
    """Refine starts until all are done."""
    for _ in range(_MOST_ITERATIONS):
        if starts.done.all():
            break
        before = objective.evaluations
        starts = improve(objective, starts)
        yield _generation(objective, starts, objective.evaluations - before, stage)
    return starts


def _looked_around(objective: Objective, found: Refined) -> Generator[Generation, None, Refined]:
    """Refine the best points around the best solution, and add the results."""
    if not math.isfinite(_least(found)):
        return found
    best = begin(objective, found.best()[:, None])
    if not np.isfinite(best.cost[0]):
        return found
    near = points_around(best.unit[:, 0], float(best.cost[0]), best.local.hessian[:, :, 0])
    cost = yield from _scored(objective, near, "looking around")
    some = _chosen(near, cost, _LOOKED_AT, fresh=False)
    if not len(some.cost):
        return found
    before = objective.evaluations
    starts = begin(objective, some.unit)
    yield _generation(objective, starts, objective.evaluations - before, "looking around")
    starts = yield from _to_the_end(objective, starts, "looking around")
    return _joined(found, Refined(starts.unit, starts.cost, some.fresh))


def _explored(found: Refined, agree: int) -> bool:
    """Return whether enough fresh starts agree, and few minima that could compete remain unseen.

    Of w distinct minima seen in n independent starts there are w (n - 1)/(n - w - 2) in all, as
    far as one can expect (Boender and Rinnooy Kan 1987, Math Program 37:59-80).
    """
    costs = np.sort(found.cost[found.fresh & np.isfinite(found.cost)])
    if not len(costs):
        return False
    n, rivals = len(costs), costs[costs < 4 * costs[0]]
    w = 1 + int((np.diff(rivals) > SAME * rivals[1:]).sum())
    arrived = int((costs <= _least(found) * (1 + SAME)).sum())
    return arrived >= agree and w * (n - 1) < (w + 0.5) * (n - w - 2)


def _hopeless(earlier: np.ndarray, cost: np.ndarray, best: float, ahead: float) -> np.ndarray:
    """Return (n,) whether starts would not reach the best in so many iterations at their pace."""
    with np.errstate(all="ignore"):
        pace = np.log(earlier / cost) / _MEMORY
        left = np.log(cost / (best * (1 + SAME)))
        hopeless: np.ndarray = (cost > best * (1 + SAME)) & (left > ahead * pace)
    return hopeless


def _scored(
    objective: Objective, unit: np.ndarray, stage: str
) -> Generator[Generation, None, np.ndarray]:
    """Score points in chunks, and return their costs (n_points,)."""
    costs = []
    for first in range(0, unit.shape[1], _CHUNK):
        part = unit[:, first : first + _CHUNK]
        score = objective.score(part)
        costs.append(to_host(score.cost))
        yield summarized(objective, part, Score(costs[-1], to_host(score.status)), stage)
    return np.concatenate(costs)


def _generation(objective: Objective, starts: Starts, n: int, stage: str) -> Generation:
    score = Score(starts.local.cost, starts.local.status)
    return summarized(objective, starts.unit, score, stage, n)


def _chosen(unit: np.ndarray, cost: np.ndarray, n: int, fresh: bool) -> Refined:
    """Return the n points of lowest cost."""
    order = np.argsort(cost, kind="stable")[:n]
    order = order[np.isfinite(cost[order])]
    return Refined(unit[:, order], cost[order], np.full(len(order), fresh))


def _distinct(unit: np.ndarray, cost: np.ndarray, n: int, known: np.ndarray) -> list[int]:
    """Choose the n points of lowest cost that are near neither each other nor a known one
    (n_free,).
    """
    taken: list[int] = []
    near = np.abs(unit - known[:, None]).max(axis=0) < _NEAR
    for k in np.argsort(np.where(near, np.inf, cost), kind="stable"):
        if len(taken) == n or near[k] or not np.isfinite(cost[k]):
            break
        if all(np.abs(unit[:, k] - unit[:, other]).max() > _NEAR for other in taken):
            taken.append(int(k))
    return taken


def _children(
    objective: Objective, found: Refined, n: int, random: np.random.Generator
) -> np.ndarray:
    """Draw points (n_free, n): the best, with coordinates of another solution or drawn anew."""
    order = np.argsort(found.cost, kind="stable")[: max(4, len(found.cost) // 2)]
    n_free = len(found.unit)
    one = found.unit[:, order[(len(order) * random.random(n) ** 2).astype(int)]]
    # relatives of the best have little that it does not have
    strangers = np.flatnonzero(found.fresh) if found.fresh.any() else order
    other = found.unit[:, strangers[random.integers(len(strangers), size=n)]]
    other = np.where(random.random(n) < 0.5, other, objective.sample(n, random))
    share = random.random(n) * 0.6
    groups = np.arange(n_free) if objective.groups is None else objective.groups
    n_groups = 1 + int(groups.max())
    taken = random.random((n_groups, n)) < share
    # at least one of them
    taken[random.integers(n_groups, size=n), np.arange(n)] = True
    return np.where(taken[groups], other, one)


def _joined(*parts: Refined | None) -> Refined:
    known = [part for part in parts if part is not None]
    return Refined(
        np.concatenate([p.unit for p in known], axis=1),
        np.concatenate([p.cost for p in known]),
        np.concatenate([p.fresh for p in known]),
    )
