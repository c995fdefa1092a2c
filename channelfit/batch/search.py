"""Many wells searched together: one scan for all, many descents side by side, solutions exchanged.

1. *Scan.* Points spread over the search space are simulated once for a whole family and compared
   with the data of every well by matrix products; parameters in which the current is a straight
   line are solved for each well. The points of a scan depend on the plan and the seed alone.
2. *Descents.* The best points of each well are refined by least squares, those of all wells in the
   same calls. A descent ends by itself, or where it falls hopelessly behind the best of its well.
   A well of which too few descents arrived at the same lowest cost gets the next points of its
   scan, round after round. What comes of a well so far depends on the plan, the seed and the data
   of this well, and on nothing else.
3. *Exchange.* The solutions of all wells are tried on each other, and those that fit a well best
   are refined in it: plates hold one kind of cell, so what one well has found by luck serves all.
   This is repeated until no well gains. A result may therefore depend on which wells are fitted
   together, where a well alone would have missed the best solution; on their order it does not
   depend, but for wells that fit equally well.

All random numbers come from the seed. Nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.batch.together import Across, Together
from channelfit.model.terms import linear_in, symbol
from channelfit.problem.experiment import Problem, n_scored, rounding_floor
from channelfit.problem.statuses import OK, OUTSIDE_BOUNDS
from channelfit.search.agreement import SAME
from channelfit.search.least_squares import FIRST, LEAST, MOST, Starts, damped_steps
from channelfit.search.objective import Local, Objective
from channelfit.search.plan import FitPlan
from channelfit.search.sampling import allowed
from channelfit.search.space import SearchSpace, middle

#: Points of a scan for each free parameter, and descents of each well in a round.
_POINTS, _STARTS = 256, 4
#: The same where a score steps through whole traces, well by well.
_FEW_POINTS = 64
#: Rounds of descents, and independent descents that must arrive at a well's lowest cost.
_ROUNDS, _AGREE = 5, 2
#: Iterations of a descent, and those over which its pace is measured.
_ITERATIONS, _MEMORY = 150, 8
#: A descent is over when its parabola promises less than this share of its cost: on the way, and
#: for the solutions of the wells.
_ROUGH, _FINE = 1e-6, 1e-11
#: Rounds of exchange, and solutions of others that a well tries in each.
_EXCHANGES, _OTHERS = 6, 2
#: A well gains by an exchange where its cost falls by more than this share.
_GAIN = 1e-6
#: Dampings of which a step is computed: a start's own, and next to none, whose promise tells
#: whether anything is left to gain.
_TRIALS = np.array([1.0, 1e-6])
#: Sweeps over solved parameters of which some are cut off by their ranges; and halvings of a step
#: that leaves the bounds on rates.
_SWEEPS, _HALVINGS = 6, 40
#: Candidates that are compared with all wells at once, in numbers that are held.
_HELD = 1 << 22
#: Starts are kept to so many steps of the unit cube: what rounding does to matrix products, which
#: may depend on the machine, does not reach the descents.
_STEPS = 2.0**24


@dataclass(frozen=True)
class Settings:
    """How wells are searched.

    Attributes:
        starts: descents of each well in a round; 0 for a number that suits.
        scan: points of the scan; 0 for a number that suits the parameters.
        seed: of all random numbers.
        backend: auto, cpu, cuda or reference.
        intervals: whether to compute what tells standard errors and intervals.
        exchange: whether wells try each other's solutions.
    """

    starts: int = 0
    scan: int = 0
    seed: int = 0
    backend: str = "auto"
    intervals: bool = True
    exchange: bool = True


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        stage: "scanning", "refining", "exchanging" or "judging".
        done: wells that are through with this stage.
        wells: how many wells there are.
    """

    stage: str
    done: int
    wells: int


OnProgress = Callable[[Progress], None]


def nothing(progress: Progress) -> None:
    """Take no notice of progress."""


@dataclass(frozen=True, eq=False)
class Found:
    """What the search of a family came to; arrays end in the well's number within the family.

    Attributes:
        unit: (n_free, n_wells), in the unit cube; NaN where no start worked.
        cost: (n_wells,) with priors, inf where no start worked.
        starts, agreed: (n_wells,) int64, the descents of a well, those from solutions of others
            among them, and how many of them came to its lowest cost.
    """

    unit: np.ndarray
    cost: np.ndarray
    starts: np.ndarray
    agreed: np.ndarray


class Wells:
    """The costs of the wells of a family over the unit cube of all free parameters.

    Nothing is solved here: a parameter that a plan solves is one more coordinate, at which least
    squares arrives as fast.
    """

    def __init__(self, plan: FitPlan, scorer: Together) -> None:
        self.plan, self.scorer = replace(plan, solved=()), scorer
        self.space: SearchSpace = self.plan.space
        self.constraints = self.plan.constraints
        problem = scorer.problem
        counts = bool((scorer.total_weight > 0).any())
        self.n_samples = n_scored(problem) if counts else 0
        has_priors = any(p.prior for p in self.space.parameters) and counts
        self.prior_weight = plan.prior_noise_pA**2 / self.n_samples if has_priors else 0.0
        self.floor = rounding_floor(problem, "float64") if counts else 0.0

    @property
    def n_wells(self) -> int:
        """How many wells there are."""
        return self.scorer.n_wells

    def objective(self, well: np.ndarray | int) -> Objective:
        """The objective of one well, or of candidates that are each of another well.

        Arguments:
            well: a number, or (n,) for calls with n points; those may have no constraints.
        """
        constraints = self.constraints if isinstance(well, int) else ()
        return Objective(
            self.space,
            _OfWells(self.scorer, well),
            constraints,
            prior_weight=self.prior_weight,
            floor=self.floor,
            previews=True,
        )

    def linearize(self, unit: np.ndarray, well: np.ndarray) -> Local:
        """Cost and derivatives at points (n_free, n), each of the well of its number (n,)."""
        n_free, n = unit.shape
        inside = np.flatnonzero(self.allowed(unit))
        if len(inside) == n:
            return self.objective(well).linearize(unit)
        out = Local(
            np.full(n, np.inf),
            np.full(n, OUTSIDE_BOUNDS, np.int8),
            np.zeros((n_free, n)),
            np.zeros((n_free, n_free, n)),
        )
        if len(inside):
            local = self.objective(well[inside]).linearize(np.ascontiguousarray(unit[:, inside]))
            for name, whole in vars(out).items():
                whole[..., inside] = getattr(local, name)
        return out

    def allowed(self, unit: np.ndarray) -> np.ndarray:
        """Whether the constraints allow points (n_free, n): (n,) bool."""
        if not self.constraints:
            return np.ones(unit.shape[1], bool)
        inside: np.ndarray = allowed(self.constraints, self.space.to_physical(unit))
        return inside

    @cached_property
    def bounded(self) -> list[int]:
        """The coordinates on which constraints depend."""
        places = {place for c in self.constraints for place in c.places}
        return [row for row, place in enumerate(self.space.free) if place in places]

    @cached_property
    def open(self) -> Open:
        """The parameters that are solved for each well when candidates are tried on all."""
        return Open(self.plan.problem, self.space, self.constraints, self.scorer)

    def tried(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Try points (n_free, n) on every well, with the open parameters solved for each.

        Returns: cost (n, n_wells) without priors, inf where a point fails, and the open parameters'
        coordinates (n, n_open, n_wells).
        """
        n, open_ = unit.shape[1], self.open
        cost = np.full((n, self.n_wells), np.inf)
        solved = np.zeros((n, len(open_.rows), self.n_wells))
        step = max(1, _HELD // max(1, self.n_wells * (1 + len(open_.rows))))
        for first in range(0, n, step):
            piece = slice(first, min(first + step, n))
            physical = open_.at_reference(self.space.to_physical(unit[:, piece]))
            across = self.scorer.across(physical, open_.rows)
            cost[piece], solved[piece] = open_.solved(across, physical)
        return cost, solved

    def placed(self, unit: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """Points (n_free, n) with the open parameters' coordinates (n_open, n) put in."""
        whole = unit.copy()
        whole[self.open.coordinates] = np.round(solved * _STEPS) / _STEPS
        return whole


class _OfWells:
    """A scorer of candidates that are each compared with the data of a well of their own."""

    dtype = "float64"

    def __init__(self, scorer: Together, well: np.ndarray | int) -> None:
        self.scorer, self.well, self.backend = scorer, well, scorer.backend

    def score(self, parameters: np.ndarray) -> Any:
        """Cost and status of candidates (n_parameters, n)."""
        return self.scorer.score(parameters, self._wells(parameters))

    def preview(self, parameters: np.ndarray) -> Any:
        """The same: these costs compare with those of `linearize`."""
        return self.score(parameters)

    def linearize(self, parameters: np.ndarray) -> Any:
        """Cost and derivatives of candidates (n_parameters, n)."""
        return self.scorer.linearize(parameters, self._wells(parameters))

    def _wells(self, parameters: np.ndarray) -> np.ndarray:
        if isinstance(self.well, int):
            return np.full(parameters.shape[1], self.well, np.int64)
        return self.well


class Open:
    """Parameters solved for each well when points are tried on all wells: conductances, leaks.

    The current is a straight line in `lines` together. Where a reversal potential is free besides
    the conductance in front of it, g (v - E), it is solved too: the current is a straight line in
    g and g E. Solved values are clipped to their ranges; priors do not count here, and constraints
    do not depend on these parameters.

    Attributes:
        rows: of these parameters, among all.
        coordinates: the same among those of the unit cube.
        pairs: for each of `rows` the place, among them, of the conductance before a reversal
            potential; -1 for those that are lines themselves.
    """

    def __init__(
        self, problem: Problem, space: SearchSpace, constraints: Any, scorer: Together
    ) -> None:
        bounded = {place for c in constraints for place in c.places}
        row_of = {p.name: row for row, p in enumerate(problem.parameters)}
        names = {}
        if scorer.solves:
            for name in problem.linear_parameters():
                own = [row_of[p.name] for p in problem.of_model(name).values()]
                if len(own) == 1 and own[0] in space.free and own[0] not in bounded:
                    names[name] = own[0]
        lines, pairs = _lines(problem, list(names))
        self.rows = [names[name] for name in (*lines, *pairs)]
        self.pairs = [-1] * len(lines) + [lines.index(one) for one in pairs.values()]
        self.coordinates = [space.free.index(row) for row in self.rows]
        self.parameters = [space.parameters[row] for row in self.rows]
        self.space, self.squares = space, scorer.squares
        with np.errstate(divide="ignore"):
            self.shares = 1.0 / scorer.total_weight

    def at_reference(self, physical: np.ndarray) -> np.ndarray:
        """Parameters (n_parameters, n) with those that are solved at a value in their range."""
        for row, p in zip(self.rows, self.parameters, strict=True):
            physical[row] = middle(p) or max(p.lower, p.upper, key=abs)
        return physical

    def solved(self, across: Across, physical: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Costs (n, n_wells), and the solved coordinates (n, n_open, n_wells) of the unit cube."""
        inner = across.products[:, 1:, 1:]
        n, n_open, n_wells = len(inner), len(self.rows), across.with_data.shape[2]
        good = np.isfinite(inner).all(axis=(1, 2)) & (across.status == OK)
        pull = across.with_data[:, 1:] - across.products[:, 1:, :1]  # (n, n_open, n_wells)
        diagonal = np.einsum("nkk->nk", inner)
        scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        unit = np.where(good[:, None, None], inner * scale[:, :, None] * scale[:, None], 0.0)
        unit[:, np.arange(n_open), np.arange(n_open)] += 1e-12 + (diagonal <= 0)
        with np.errstate(all="ignore"):
            change = scale[:, :, None] * np.linalg.solve(unit, scale[:, :, None] * pull)
            values, change = self._within(change, inner, pull, physical)
            fit = across.products[:, 0, 0, None] - 2 * across.with_data[:, 0] + self.squares
            bent = (change * np.matmul(inner, change)).sum(axis=1)
            cost = (fit + bent - 2 * (change * pull).sum(axis=1)) * self.shares
        cost = np.where(good[:, None] & np.isfinite(cost), np.maximum(cost, 0.0), np.inf)
        coordinates = np.zeros((n, n_open, n_wells))
        for k, (p, x) in enumerate(zip(self.parameters, np.moveaxis(values, 1, 0), strict=True)):
            coordinates[:, k] = _share(np.where(np.isfinite(x), x, middle(p)), p)
        return cost, coordinates

    def _within(
        self, change: np.ndarray, inner: np.ndarray, pull: np.ndarray, physical: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values in their ranges, and the changes of lines that these mean: (n, n_open, n_wells).

        What the ranges cut off is made up for by the lines, one after the other.
        """
        values, change = np.empty_like(change), change.copy()
        at = [physical[row, :, None] for row in self.rows]
        cut = np.zeros(change.shape[::2], bool)
        for sweep in range(_SWEEPS):
            for k, (p, pair) in enumerate(zip(self.parameters, self.pairs, strict=True)):
                if sweep:  # with a conductance goes a reversal potential that stays
                    way = np.zeros_like(change)
                    way[:, k] = 1.0
                    for other in np.flatnonzero(np.array(self.pairs) == k).tolist():
                        way[:, other] = (values[:, other] - at[other]) / at[k]
                    bent = np.matmul(inner, way)
                    left = (way * pull - bent * change).sum(axis=1)
                    bend = (way * bent).sum(axis=1)
                    gain = left / np.where(bend > 0, bend, 1.0)
                    change = np.where(cut[:, None], change + way * gain[:, None], change)
                if pair < 0:
                    free = at[k] + change[:, k]
                    values[:, k] = np.clip(free, p.lower, p.upper)
                    change[:, k] = values[:, k] - at[k]
                    for other in np.flatnonzero(np.array(self.pairs) == k).tolist():
                        if sweep:
                            moved = values[:, other] - at[other]
                            change[:, other] = values[:, k] * moved / at[k]
                else:  # of g (v - E): the change of g E, in units of the reference of g
                    g, before = values[:, pair], at[pair]
                    free = at[k] + before * change[:, k] / np.where(g == 0, 1.0, g)
                    values[:, k] = np.clip(free, p.lower, p.upper)
                    change[:, k] = g * (values[:, k] - at[k]) / before
                if not sweep:
                    cut |= values[:, k] != free
            if not cut.any():
                break
        return values, change


def _share(values: np.ndarray, parameter: Any) -> np.ndarray:
    """The place, 0 .. 1, of values of any shape within a parameter's range."""
    low, high = parameter.lower, parameter.upper
    if low == high:
        return np.zeros_like(values)
    if parameter.scale == "log":
        values, low, high = np.log(values), np.log(low), np.log(high)
    share: np.ndarray = np.clip((values - low) / (high - low), 0.0, 1.0)
    return share


def _lines(problem: Problem, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Which parameters the current is a straight line in, all together.

    Arguments:
        names: those in each of which it is one.

    Returns: the names of these, and the names of reversal potentials, each with the conductance
    that stands before it.
    """
    drives: dict[str, list[Any]] = {name: [] for name in names}
    terms = problem.model.terms
    for term in terms:
        for name in names:
            drives[name].append(linear_in(term.drive, symbol(name)))
    # what is a factor of its term goes before what stands beside the voltage in it
    ahead = [n for n in names if all(d is not None and (d[0] == 0 or d[1] == 0) for d in drives[n])]
    lines: list[str] = []
    for name in [*ahead, *(n for n in names if n not in ahead)]:
        slopes = [d[0] for d in drives[name] if d is not None]
        if not any(slope.has(symbol(other)) for slope in slopes for other in lines):
            lines.append(name)
    pairs: dict[str, str] = {}
    for name in names:
        if name in lines:
            continue
        own = [t for t in terms if t.drive.has(symbol(name))]
        if len(own) == 1 and own[0].reversal == symbol(name):
            front = str(own[0].size)
            used = [t for t in terms if t.drive.has(symbol(front))]
            if front in lines and len(used) == 1 and front not in pairs.values():
                pairs[name] = front
    return lines, pairs


# --- the search -----------------------------------------------------------------------------------


def search(wells: Wells, settings: Settings, on_progress: OnProgress = nothing) -> Found:
    """Search all wells of a family; see the module."""
    n_wells, n_free = wells.n_wells, wells.space.n_free
    found = _Best(n_free, n_wells)

    def telling(stage: str) -> Callable[[int], None]:
        return lambda done: on_progress(Progress(stage, done, n_wells))

    pool = _scanned(wells, settings, on_progress)
    for first in range(0, n_wells, wells.scorer.at_once):
        wanted = np.arange(first, min(first + wells.scorer.at_once, n_wells))
        for number in range(_ROUNDS):
            found.refine(wells, *pool.points(wanted, number), _ROUGH)
            wanted = wanted[found.agreed()[wanted] < _AGREE]
        telling("refining")(min(first + wells.scorer.at_once, n_wells))
    if settings.exchange and n_wells > 1:
        _exchange(wells, found, telling("exchanging"))
    good = np.flatnonzero(np.isfinite(found.cost))
    for some in _blocks(wells, good):
        found.refine(wells, found.unit[:, some], some, _FINE)
    return Found(found.unit, found.cost, found.ended(), found.agreed())


def _blocks(wells: Wells, some: np.ndarray) -> list[np.ndarray]:
    """Some wells, as many at a time as their scorer likes."""
    step = wells.scorer.at_once
    return [some[first : first + step] for first in range(0, len(some), step)]


class _Pool:
    """The points of a scan, for each well in the order of their costs.

    Arguments:
        unit: (n_free, n_points).
        order: (n_kept, n_wells) of the points, from the lowest cost on; -1 for none.
        solved: (n_kept, n_open, n_wells), the open parameters' coordinates.
        starts: how many are taken at a time.
    """

    def __init__(
        self, wells: Wells, unit: np.ndarray, order: np.ndarray, solved: np.ndarray, starts: int
    ) -> None:
        self.wells, self.unit, self.order, self.solved = wells, unit, order, solved
        self.starts = starts

    def points(self, wanted: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The points (n_free, n) of some wells for a round, and the well of each (n,)."""
        rows = slice(number * self.starts, (number + 1) * self.starts)
        order, solved = self.order[rows][:, wanted], self.solved[rows][:, :, wanted]
        k, w = np.nonzero(order >= 0)
        return self.wells.placed(self.unit[:, order[k, w]], solved[k, :, w].T), wanted[w]


def _scanned(wells: Wells, settings: Settings, on_progress: OnProgress) -> _Pool:
    """Scan the space for all wells."""
    n_free, starts = wells.space.n_free, settings.starts or _STARTS
    points = _POINTS if wells.scorer.solves else _FEW_POINTS
    random = np.random.Generator(np.random.Philox(settings.seed))
    unit = wells.objective(0).sample(settings.scan or points * n_free, random)
    begin = wells.plan.starting_point()
    on_progress(Progress("scanning", 0, wells.n_wells))
    kept = min(starts * _ROUNDS, unit.shape[1])
    cost, solved = wells.tried(unit)
    order = np.argsort(cost, axis=0, kind="stable")[:kept]
    lowest = np.take_along_axis(cost, order, axis=0)
    chosen = np.take_along_axis(solved, order[:, None], axis=0)
    order = np.where(np.isfinite(lowest), order, -1)
    if begin is not None:  # the plan's values first, as they are
        unit = np.concatenate([unit, begin], axis=1)
        order = np.concatenate([np.full((1, wells.n_wells), unit.shape[1] - 1), order[:-1]])
        own = begin[wells.open.coordinates][None].repeat(wells.n_wells, axis=2)
        chosen = np.concatenate([own, chosen[:-1]])
    on_progress(Progress("scanning", wells.n_wells, wells.n_wells))
    return _Pool(wells, unit, order, chosen, starts)


class _Best:
    """The best that is known of every well, and what its descents came to."""

    def __init__(self, n_free: int, n_wells: int) -> None:
        self.unit = np.full((n_free, n_wells), np.nan)
        self.cost = np.full(n_wells, np.inf)
        self._costs: list[np.ndarray] = []  # of descents, each with its well
        self._wells: list[np.ndarray] = []

    def refine(
        self,
        wells: Wells,
        unit: np.ndarray,
        well: np.ndarray,
        tolerance: float,
    ) -> np.ndarray:
        """Refine points (n_free, n) of wells (n,), and keep what is best of each well.

        Returns: the wells that gained.
        """
        before = self.cost.copy()
        starts = _descended(wells, unit, well, self.cost, tolerance)
        order = np.argsort(-starts.cost, kind="stable")  # the lowest is written last
        order = order[starts.cost[order] < self.cost[well[order]]]
        self.unit[:, well[order]] = starts.unit[:, order]
        self.cost[well[order]] = starts.cost[order]
        if tolerance > _FINE:
            self._costs.append(starts.cost)
            self._wells.append(well)
        return np.flatnonzero(self.cost < before * (1 - _GAIN))

    def ended(self) -> np.ndarray:
        """How many descents of each well did not fail (n_wells,)."""
        return self._count(lambda cost, best: np.isfinite(cost))

    def agreed(self) -> np.ndarray:
        """How many of them came to the lowest cost of the well (n_wells,)."""
        return self._count(lambda cost, best: cost <= best * (1 + SAME))

    def _count(self, which: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        total = np.zeros(len(self.cost), np.int64)
        for cost, well in zip(self._costs, self._wells, strict=True):
            best = self.cost[well]
            total += np.bincount(well[which(cost, best) & np.isfinite(cost)], minlength=len(total))
        return total


def _descended(
    wells: Wells,
    unit: np.ndarray,
    well: np.ndarray,
    known: np.ndarray,
    tolerance: float,
) -> Starts:
    """Refine points until each is done, or would not reach the best of its well.

    Arguments:
        known: (n_wells,) the lowest cost of each well so far.
    """
    local = wells.linearize(unit, well)
    n = unit.shape[1]
    starts = Starts(unit.copy(), local, np.full(n, FIRST), ~np.isfinite(local.cost))
    past = np.full((_MEMORY, n), np.inf)
    for _ in range(_ITERATIONS):
        active = np.flatnonzero(~starts.done)
        if not len(active):
            break
        past[:, active] = np.concatenate([past[1:, active], starts.cost[None, active]])
        starts = starts.put(active, _stepped(wells, starts.take(active), well[active], tolerance))
        best = known.copy()
        np.minimum.at(best, well, starts.cost)
        behind = _hopeless(past[0], starts.cost, best[well])
        starts.done[behind] = True
    return starts


def _stepped(wells: Wells, old: Starts, well: np.ndarray, tolerance: float) -> Starts:
    """Take one step of each start, as far as it leads down, and set the damping of the next."""
    steps, promises = damped_steps(old, _TRIALS)
    promise = promises[0]
    unit = np.clip(old.unit + np.where(np.isfinite(promise), steps[:, 0], 0.0), 0.0, 1.0)
    outside = np.flatnonzero(~wells.allowed(unit))
    if len(outside):
        unit[:, outside], promise[outside] = _brought_back(
            wells, old.take(outside), unit[:, outside]
        )
        promises[:, outside] = promise[outside]
    local = wells.linearize(unit, well)
    gained = old.cost - local.cost
    better = gained > 0
    with np.errstate(all="ignore"):
        ratio = gained / promise
    easier = np.where(ratio > 0.75, 1 / 9.0, np.where(ratio > 0.25, 1.0, 3.0))
    damping = np.clip(old.damping * np.where(better, easier, 10.0), LEAST, MOST)
    floor = tolerance * np.abs(old.cost)
    most = np.where(np.isfinite(promises), promises, 0.0).max(axis=0)
    still = np.where(better, gained <= floor, old.damping >= MOST / 1e4)
    done = (most <= floor) | (still & (promise <= 10 * floor)) | (~better & (old.damping > 1e8))
    kept = Local(
        *(
            np.where(better, new, was)
            for new, was in zip(*map(_values, (local, old.local)), strict=True)
        )
    )
    return Starts(np.where(better, unit, old.unit), kept, damping, done)


def _brought_back(wells: Wells, old: Starts, trial: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring steps that leave the bounds on rates back to them, each in the way that promises most.

    A step may be cut short; or each coordinate on which the bounds depend goes as far as it can,
    one after the other; or the step is taken in full but for one of these, which gives way as far
    as it must: so a start can slide along a bound.

    Arguments:
        trial: (n_free, n), where the steps lead.

    Returns: the points (n_free, n), and what the parabola promises of each (n,).
    """
    n_free, n = trial.shape
    rows, ends, aims = wells.bounded, [old.unit], [trial]
    for order in (rows, rows[::-1]):
        one = trial.copy()
        one[rows] = old.unit[rows]
        for row in order:
            further = one.copy()
            further[row] = trial[row]
            one = _farthest(wells, one, further)
        ends.append(one)
        aims.append(one)
    for row in rows:
        for end in (0.0, 1.0):
            ends.append(trial.copy())
            ends[-1][row] = end
            aims.append(trial)
    inside, aim = np.concatenate(ends, axis=1), np.concatenate(aims, axis=1)
    usable = wells.allowed(inside)
    inside = _farthest(wells, inside, aim)
    step = (inside - np.tile(old.unit, len(ends))).reshape(n_free, len(ends), n)
    bent = np.einsum("ijn,jvn->ivn", old.local.curvature, step)
    gradient = old.local.gradient[:, None]
    promise = -(gradient * step).sum(axis=0) - 0.5 * (step * bent).sum(axis=0)
    promise = np.where(usable.reshape(len(ends), n), promise, -np.inf)
    best, places = promise.argmax(axis=0), np.arange(n)
    return inside.reshape(n_free, len(ends), n)[:, best, places], promise[best, places]


def _farthest(wells: Wells, inside: np.ndarray, aim: np.ndarray) -> np.ndarray:
    """How far one can go from points (n_free, n) within the bounds on rates towards others."""
    reached = np.where(wells.allowed(aim), aim, inside)
    outside = aim
    for _ in range(_HALVINGS):
        between = 0.5 * (reached + outside)
        good = wells.allowed(between)
        reached = np.where(good, between, reached)
        outside = np.where(good, outside, between)
    return reached


def _values(local: Local) -> list[Any]:
    return list(vars(local).values())


def _hopeless(earlier: np.ndarray, cost: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Which descents would not reach the best of their well at the pace of their last steps."""
    with np.errstate(all="ignore"):
        pace = np.log(earlier / cost) / _MEMORY
        left = np.log(cost / (best * (1 + SAME)))
        hopeless: np.ndarray = (cost > best * (1 + SAME)) & (left > 50 * pace)
    return hopeless


def _exchange(wells: Wells, found: _Best, told: Callable[[int], None]) -> None:
    """Try the wells' solutions on each other until no well gains."""
    fresh = np.isfinite(found.cost)  # whose solutions are new to the others
    best = np.full(wells.n_wells, np.inf)
    for _ in range(_EXCHANGES):
        givers = np.flatnonzero(fresh & np.isfinite(found.cost))
        if not len(givers):
            break
        cost, solved = wells.tried(found.unit[:, givers])
        cost[np.arange(len(givers)), givers] = np.inf
        order = np.argsort(cost, axis=0, kind="stable")[:_OTHERS]
        lowest = np.take_along_axis(cost, order, axis=0)
        # what was tried before and is no better now need not be refined again
        wanted = np.isfinite(lowest) & np.isfinite(found.cost) & (lowest < best * (1 - SAME))
        best = np.minimum(best, lowest[0])
        k, w = np.nonzero(wanted)
        chosen = order[k, w]
        unit = wells.placed(found.unit[:, givers[chosen]], solved[chosen, :, w].T)
        gained = []
        for some in _blocks(wells, np.unique(w)):
            mine = np.isin(w, some)
            gained.append(found.refine(wells, unit[:, mine], w[mine], _ROUGH))
            told(int(some[-1]) + 1)
        fresh = np.zeros(wells.n_wells, bool)
        fresh[np.concatenate([*gained, np.empty(0, np.int64)])] = True
