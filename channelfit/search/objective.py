"""The objective that an optimizer minimizes: a cost over the unit cube, with derivatives.

Optimizers and the loop see this and nothing of models, parameters or recordings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.problem.statuses import N_STATUSES, OUTSIDE_BOUNDS
from channelfit.scoring.machine.arrays import array_module, to_host
from channelfit.scoring.scorer import Linearization, Score, Scorer
from channelfit.search.projection import BestValues, Linear, eliminated, solve
from channelfit.search.sampling import Constraint, allowed, sample_allowed
from channelfit.search.space import SearchSpace

if TYPE_CHECKING:
    from channelfit.model.channel import Prior


@dataclass(frozen=True, eq=False)
class Local:
    """The cost and its derivatives at some points of the unit cube, arrays of the scorer's module.

    Attributes:
        cost, status: (n_points,).
        gradient: (n_free, n_points), by unit coordinates.
        hessian: (n_free, n_free, n_points), the Gauss-Newton approximation of the second
            derivative, positive semidefinite.
    """

    cost: Any
    status: Any
    gradient: Any
    hessian: Any


@dataclass(frozen=True, eq=False)
class Generation:
    """A summary of the scores of some candidates.

    Attributes:
        n_candidates: the number of candidates scored; a derivative counts as several.
        median: of the finite costs, NaN without one.
        best: the lowest cost, or the lowest so far.
        values: (n_parameters,) of the candidate of this cost, base units.
        failures: (n_status,) the candidates that failed, by status.
        stage: the stage of a search of several stages; empty where there is one.
    """

    n_candidates: int
    median: float
    best: float
    values: np.ndarray
    failures: np.ndarray = field(default_factory=lambda: np.zeros(N_STATUSES, np.int64))
    stage: str = ""

    @property
    def failed(self) -> float:
        """The share of the candidates that failed; 0 of none.

        A stage scores nothing if the constraints allow none of its points.
        """
        return int(self.failures.sum()) / max(1, self.n_candidates)


@dataclass
class Objective:
    """The cost of points of the unit cube, and its derivatives.

    Attributes:
        space: maps the unit cube to physical parameters.
        scorer: scores physical parameters (n_parameters, n_candidates).
        constraints: a candidate that one of them does not allow fails with OUTSIDE_BOUNDS and is
            not scored.
        linear: the parameter that is solved, and so is no dimension of the cube, or one such
            parameter for each cell; empty for none.
        prior_weight: pA^2 that are added to the cost for every squared standard deviation of a
            parameter from the middle of its prior.
        evaluations: candidates scored so far; a derivative counts as many as it has columns.
        previews: whether costs come from the scorer's `preview`. A search needs that if it
            compares costs with those of `linearize`.
        at_once: whether least squares computes derivatives with every trial step, and tries one
            damping where it would score several: where derivatives cost no more than a few scores.
        floor: costs up to it are nothing but the scorer's rounding.
        groups: (n_free,) the number of a group for each coordinate, from 0 on, if some of them mean
            something only together; None where each stands for itself.
    """

    space: SearchSpace
    scorer: Scorer
    constraints: tuple[Constraint, ...] = ()
    linear: tuple[Linear, ...] = ()
    prior_weight: float = 0.0
    evaluations: int = 0
    previews: bool = False
    at_once: bool = False
    floor: float = 0.0
    groups: np.ndarray | None = None

    @property
    def n_free(self) -> int:
        """Dimensions of the unit cube."""
        return self.space.n_free

    @property
    def is_plain(self) -> bool:
        """True if the cost of a point is that of its parameters by the scorer, and no more."""
        return not (self.constraints or self.linear or self.prior_weight)

    @property
    def on_gpu(self) -> bool:
        """True if candidates are scored on a GPU, where a few take as long as many."""
        return self.scorer.backend == "cuda"

    @property
    def steps(self) -> bool:
        """True if a score steps through every sample, which is the slowest way to it."""
        return self.scorer.path == "stepping"

    def score(self, unit: Any) -> Score:
        """Score points of the unit cube.

        Arguments:
            unit: (n_free, n_points).

        Returns: cost (n_points,) pA^2, inf for a failed point, and status (n_points,).
        """
        physical = self.space.to_physical(unit)
        xp, n = array_module(physical), physical.shape[1]
        inside = self._inside(physical)
        if inside is None:
            return self._best(physical)
        cost, status = xp.full(n, np.inf), xp.full(n, OUTSIDE_BOUNDS, dtype=np.int8)
        if inside.size:
            score = self._best(xp.ascontiguousarray(physical[:, inside]))
            cost[inside], status[inside] = score.cost, score.status
        return Score(cost, status)

    def linearize(self, unit: Any, well: np.ndarray | None = None) -> Local:
        """Return cost, gradient and Hessian at points (n_free, n_points), by unit coordinates.

        With a parameter solved they are those of the cost of its best value.

        Arguments:
            well: (n_points,) the number of the recording that each point is compared with, for a
                scorer of many wells; None for a scorer of one recording.
        """
        physical = self.space.to_physical(unit)
        slope = self.space.slope(physical)
        xp, n = array_module(physical), physical.shape[1]
        inside = self._inside(physical)
        if inside is None:
            return self._linearized(physical, slope, well)
        cost, status = xp.full(n, np.inf), xp.full(n, OUTSIDE_BOUNDS, dtype=np.int8)
        gradient, hessian = xp.zeros((self.n_free, n)), xp.zeros((self.n_free, self.n_free, n))
        if inside.size:
            own = None if well is None else well[inside]
            some = xp.ascontiguousarray(physical[:, inside])
            local = self._linearized(some, slope[:, inside], own)
            cost[inside], status[inside] = local.cost, local.status
            gradient[:, inside], hessian[:, :, inside] = local.gradient, local.hessian
        return Local(cost, status, gradient, hessian)

    def _inside(self, physical: Any) -> Any:
        """Return which candidates (n_parameters, n) the constraints allow; None for all."""
        if not self.constraints:
            return None
        xp = array_module(physical)
        inside = xp.flatnonzero(allowed(self.constraints, physical, xp))
        return None if inside.size == physical.shape[1] else inside

    def allowed(self, unit: np.ndarray) -> np.ndarray:
        """Return whether the constraints allow points (n_free, n_points): (n_points,) bool."""
        if not self.constraints:
            return np.ones(unit.shape[1], bool)
        inside: np.ndarray = allowed(self.constraints, self.space.to_physical(unit))
        return inside

    @property
    def bounded(self) -> list[int]:
        """The rows of the unit cube on which the constraints depend."""
        places = {place for constraint in self.constraints for place in constraint.places}
        return [row for row, place in enumerate(self.space.free) if place in places]

    def physical(self, unit: Any) -> np.ndarray:
        """Return the parameters (n_parameters, n_points) of points, base units, solved ones too,
        on the host.
        """
        return to_host(self._solved(self.space.to_physical(unit)))

    def sample(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Draw points (n_free, n), evenly over the part of the cube that the constraints allow.

        Raises: InputError when no point is found that is allowed.
        """
        return sample_allowed(self.space, self.constraints, n, random)

    def penalty(self, physical: Any) -> Any:
        """Return the penalties (n,) pA^2 of the priors at parameters (n_parameters, n)."""
        return self._penalties(physical, self._priors)

    def _penalties(self, physical: Any, priors: Sequence[tuple[int, Prior]]) -> Any:
        """Return the penalties of some priors, each with the row of its parameter."""
        total = 0.0
        for place, prior in priors:
            total = total + self.prior_weight * prior.deviation(physical[place]) ** 2
        return total

    def rescore(self, values: np.ndarray) -> float:
        """Return the cost of parameters (n_parameters,), base units, by the scorer's `rescore`."""
        column = values[:, None]
        return float(np.ravel(self.scorer.rescore(column).cost + self.penalty(column))[0])

    @property
    def _priors(self) -> list[tuple[int, Prior]]:
        parameters = enumerate(self.space.parameters)
        return [(k, p.prior) for k, p in parameters if p.prior] if self.prior_weight else []

    def _scored(self, physical: Any) -> Score:
        """Score physical parameters, priors included."""
        self.evaluations += physical.shape[1]
        score = self._by_scorer(physical)
        if self.prior_weight:
            return Score(score.cost + self.penalty(physical), score.status)
        return score

    def _by_scorer(self, physical: Any, cell: str = "") -> Score:
        """Score physical parameters without priors; for a cell, by its experiments alone."""
        if cell:
            return self.scorer.score_cell(physical, cell, self.previews)
        return self.scorer.preview(physical) if self.previews else self.scorer.score(physical)

    def _solution(self, physical: Any, linear: Linear, exact: bool = True) -> BestValues:
        """Find the best value of a solved parameter, and its cost; of the priors only its own."""
        own = [pair for pair in self._priors if pair[0] == linear.place]

        def score(probe: Any) -> Score:
            # the cells share the work of a score
            self.evaluations += probe.shape[1] if linear is self.linear[0] else 0
            found = self._by_scorer(probe, linear.cell)
            return Score(found.cost + self._penalties(probe, own), found.status) if own else found

        return solve(score, physical, linear, exact)

    def _best(self, physical: Any) -> Score:
        """Score physical parameters with each solved parameter at its best value."""
        if not self.linear:
            return self._scored(physical)
        cost: Any = 0.0
        status: Any = None
        for linear in self.linear:
            found = self._solution(physical, linear)
            cost = cost + found.cost
            status = found.status if status is None else status + (status == 0) * found.status
        solved = {linear.place for linear in self.linear}
        others = [pair for pair in self._priors if pair[0] not in solved]
        return Score(cost + self._penalties(physical, others) if others else cost, status)

    def _solved(self, physical: Any) -> Any:
        """Set the solved parameters of physical parameters to their best values."""
        for linear in self.linear:
            physical[linear.place] = self._solution(physical, linear, exact=False).value
        return physical

    def _derivatives(self, physical: Any, well: np.ndarray | None) -> Linearization:
        """Linearize physical parameters by the scorer, which is of one recording here."""
        return self.scorer.linearize(physical)

    def _linearized(self, physical: Any, slope: Any, well: np.ndarray | None) -> Local:
        physical = self._solved(physical)
        free = list(self.space.free)
        self.evaluations += (1 + len(free)) * physical.shape[1]
        local = self._derivatives(physical, well)
        cost, gradient, hessian = local.cost, local.gradient, local.hessian
        if self.prior_weight:
            good = array_module(cost).isfinite(cost)
            cost, gradient, hessian = (
                cost + self.penalty(physical),
                gradient.copy(),
                hessian.copy(),
            )
            for place, prior in self._priors:
                off, change = prior.deviation(physical[place]), prior.slope(physical[place])
                gradient[place] += 2 * self.prior_weight * good * off * change
                hessian[place, place] += 2 * self.prior_weight * good * change**2
        values = [(one, physical[one.place]) for one in self.linear]
        inside = [(one.place, (x > one.lower) & (x < one.upper)) for one, x in values]
        gradient, hessian = eliminated(gradient, hessian, inside, free)
        return Local(
            cost, local.status, gradient * slope, hessian * slope[:, None] * slope[None, :]
        )


def summarized(
    objective: Objective,
    unit: Any,
    score: Score,
    stage: str = "",
    n_candidates: int | None = None,
) -> Generation:
    """Summarize the scores of points.

    Arguments:
        unit: (n_free, n_points), in the unit cube.
        score: cost and status (n_points,), of the same array module.
        stage: the stage of the search, for displays of its progress.
        n_candidates: the number of candidates scored; None for one each point.
    """
    xp = array_module(score.cost)
    finite = xp.isfinite(score.cost)
    costs = score.cost[finite].astype(np.float64)
    place = int(xp.where(finite, score.cost, np.inf).argmin())
    return Generation(
        n_candidates=int(score.cost.size) if n_candidates is None else n_candidates,
        median=float(xp.median(costs)) if costs.size else math.nan,
        best=float(score.cost[place]) if costs.size else math.inf,
        values=objective.physical(unit[:, place : place + 1])[:, 0],
        failures=count_failures(score.status, finite, xp),
        stage=stage,
    )


def count_failures(status: Any, finite: Any, xp: Any) -> np.ndarray:
    """Count the candidates that failed, by status: (n_status,).

    A cost that is not finite though its status is good counts as "not finite".

    Arguments:
        status: (n_candidates,).
        finite: (n_candidates,) bool, whether the cost is finite.
        xp: the array module of both.
    """
    n = N_STATUSES
    codes = xp.clip(xp.asarray(status)[~finite].astype(np.int64), 0, n - 1)
    codes[codes == 0] = 1
    return to_host(xp.bincount(codes, minlength=n))
