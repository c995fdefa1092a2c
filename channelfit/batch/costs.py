"""The costs of many wells over the unit cube, and points tried on all wells at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.batch.lowest import Lowest, keep_lowest
from channelfit.batch.well_scorer import CrossProducts, WellScorer
from channelfit.model.terms import linear_in, symbol
from channelfit.problem.experiment import Problem, n_scored, rounding_floor
from channelfit.problem.statuses import OK
from channelfit.scoring.machine.threads import side_by_side, usable_cores
from channelfit.scoring.scorer import Linearization
from channelfit.search.objective import Local, Objective
from channelfit.search.plan import FitPlan
from channelfit.search.space import SearchSpace, middle, share_of_range

#: Numbers that are held at once in comparisons of candidates with all wells.
_HELD = 1 << 25
#: Wells for which a thread looks for the lowest points at a time.
_BLOCK = 16
#: Starts are kept to so many steps of the unit cube: what rounding does to matrix products, which
#: may depend on the machine, does not reach the descents.
_STEPS = 2.0**24


class WellCosts(Objective):
    """The costs of many wells over the unit cube of all free parameters.

    Nothing is solved here: a parameter that a plan solves is one more coordinate, at which least
    squares arrives as fast. A point is compared with the recording of one well, by the well's
    number; see `Objective.linearize`.

    Attributes:
        plan: the plan of the fits, with nothing solved.
        scorer: of the wells.
        n_samples: how many samples of a well count.
    """

    scorer: WellScorer

    def __init__(self, plan: FitPlan, scorer: WellScorer) -> None:
        self.plan, problem = replace(plan, solved=()), scorer.problem
        counts = bool((scorer.total_weight > 0).any())
        self.n_samples = n_scored(problem) if counts else 0
        space = self.plan.space
        has_priors = any(p.prior for p in space.parameters) and counts
        prior_weight = plan.prior_noise_pA**2 / self.n_samples if has_priors else 0.0
        floor = rounding_floor(problem, "float64") if counts else 0.0
        constraints = self.plan.constraints
        super().__init__(space, scorer, constraints, prior_weight=prior_weight, floor=floor)

    @property
    def n_wells(self) -> int:
        """The number of wells."""
        return self.scorer.n_wells

    def _derivatives(self, physical: np.ndarray, well: np.ndarray | None) -> Linearization:
        return self.scorer.linearize(physical, well)

    @cached_property
    def attainable(self) -> np.ndarray:
        """The costs (2, n_wells) below which noise hides any gain; 0 where that is not known."""
        nothing = np.zeros((2, self.n_wells))
        return nothing if self.prior_weight else self.scorer.attainable

    @cached_property
    def open(self) -> OpenParameters:
        """The parameters that are solved for each well when candidates are tried on all."""
        return OpenParameters(self.plan.problem, self.space, self.constraints, self.scorer)

    def lowest(self, unit: np.ndarray, n: int, excluded: np.ndarray | None = None) -> Lowest:
        """Find the n of some points (n_free, n_points) that fit each well best.

        They are compared with all wells, in blocks that fit into memory. The open parameters are
        solved for each well; priors do not count.

        Arguments:
            excluded: (n_points,) the well for which each point does not count; None for none.

        Returns: the points with the coordinates of the open parameters; among equal costs those
        that stand first.
        """
        n_points, n_open = unit.shape[1], len(self.open.rows)
        excluded = np.full(n_points, -1) if excluded is None else excluded
        step = max(1, _HELD // max(1, self.n_wells * (1 + n_open)))
        best = Lowest.none(n, n_open, self.n_wells)
        for first in range(0, n_points, step):
            some = slice(first, first + step)
            physical = self.open.at_reference(self.space.to_physical(unit[:, some]))
            crossed = self.scorer.cross_products(physical, self.open.rows)
            self.open.keep(best, crossed, physical, first, excluded[some])
        return replace(best, solved=self.open.shares_of_ranges(best.solved))

    def placed(self, unit: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """Return points (n_free, n) with the open parameters' coordinates (n_open, n) put in."""
        whole = unit.copy()
        whole[self.open.coordinates] = np.round(solved * _STEPS) / _STEPS
        return whole


class SharedProtocolCosts(WellCosts):
    """Costs of wells that share protocols and differ in which of their samples count.

    Points are tried on all wells with the mask that these have in common, so one scan serves all.
    What is refined has the mask of its own well, and the cost of that.

    Arguments:
        common: scores the wells with their common mask.
        families: for each family the numbers of its wells, and their costs.
        joint: linearizes all wells with masks of their own; None where families do it one by one.
    """

    def __init__(
        self,
        plan: FitPlan,
        common: WellScorer,
        families: Sequence[tuple[np.ndarray, WellCosts]],
        joint: WellScorer | None = None,
    ) -> None:
        super().__init__(plan, common)
        self.families = families
        # what a prior weighs depends on how many samples count in a well
        self.joint = None if joint is None or self.prior_weight else WellCosts(plan, joint)
        self.family = np.empty(self.n_wells, np.int64)  # of each well, and its place in there
        self.place = np.empty(self.n_wells, np.int64)
        for k, (own, _) in enumerate(families):
            self.family[own], self.place[own] = k, np.arange(len(own))

    @cached_property
    def attainable(self) -> np.ndarray:
        """The costs (2, n_wells) of all families; see `WellCosts.attainable`."""
        found = np.empty((2, self.n_wells))
        for own, wells in self.families:
            found[:, own] = wells.attainable
        return found

    def linearize(self, unit: np.ndarray, well: np.ndarray | None = None) -> Local:
        """Return cost and derivatives at points (n_free, n), each of the well of its number."""
        assert well is not None
        if self.joint is not None:
            return self.joint.linearize(unit, well)
        out = Local(**vars(Linearization.empty(*unit.shape)))
        families = self.family[well]
        for k in np.unique(families).tolist():
            mine = np.flatnonzero(families == k)
            own = np.ascontiguousarray(unit[:, mine])
            local = self.families[k][1].linearize(own, self.place[well[mine]])
            for name, whole in vars(out).items():
                whole[..., mine] = getattr(local, name)
        return out


class OpenParameters:
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
        self, problem: Problem, space: SearchSpace, constraints: Any, scorer: WellScorer
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
        with np.errstate(divide="ignore"):
            self.of_wells = np.stack([scorer.squares, 1.0 / scorer.total_weight])

    def at_reference(self, physical: np.ndarray) -> np.ndarray:
        """Set the open parameters of parameters (n_parameters, n) to a value in their range."""
        for row, p in zip(self.rows, self.parameters, strict=True):
            physical[row] = middle(p) or max(p.lower, p.upper, key=abs)
        return physical

    def keep(
        self,
        best: Lowest,
        crossed: CrossProducts,
        physical: np.ndarray,
        number: int,
        excluded: np.ndarray,
    ) -> None:
        """Put points where they belong among the lowest of all wells, with their solved values.

        Arguments:
            crossed: of the points with all wells.
            physical: (n_parameters, n), of the points.
            number: of the first of the points.
            excluded: (n,) the well for which each point does not count, or -1.
        """
        inner, (_, n_wells) = crossed.products[:, 1:, 1:], self.of_wells.shape
        good = np.isfinite(inner).all(axis=(1, 2)) & (crossed.status == OK)
        points = np.stack([np.where(good, number + np.arange(len(good)), -1), excluded], axis=1)
        arrays = (crossed.products, crossed.with_data, points, physical[self.rows].T, self.of_wells)
        compared = [np.ascontiguousarray(array) for array in arrays]
        pairs = np.array(self.pairs, np.int64)
        ranges = np.array([(p.lower, p.upper) for p in self.parameters], float).reshape(-1, 2)
        ranges = np.ascontiguousarray(ranges.T)

        def some(first: int, last: int) -> None:
            wells = first * _BLOCK, min(last * _BLOCK, n_wells)
            kept = (best.cost, best.which, best.solved)
            keep_lowest(*compared, pairs, ranges, *wells, *kept)

        side_by_side(some, n_wells, _BLOCK, usable_cores())

    def shares_of_ranges(self, values: np.ndarray) -> np.ndarray:
        """Return the coordinates in the unit cube of solved values (n, n_open, n_wells)."""
        pairs = zip(self.parameters, np.moveaxis(values, 1, 0), strict=True)
        return np.stack([share_of_range(x, p) for p, x in pairs], axis=1) if self.rows else values


def _lines(problem: Problem, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Find the parameters in all of which together the current is a straight line.

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
