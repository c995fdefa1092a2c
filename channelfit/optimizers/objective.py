"""What an optimizer minimizes: a function of the unit cube, with derivatives, that counts.

Optimizers and the loop see this and nothing of models, parameters or recordings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from channelfit.optimizers.space import SearchSpace, array_module

# Status codes of a score, in words.
FAILURES = {
    1: "not finite",
    2: "occupancy lost",
    3: "outside bounds",
    4: "negative rate",
}


class ScoreLike(Protocol):
    """cost (n_candidates,), inf where it failed, and status (n_candidates,), 0 where it is good."""

    @property
    def cost(self) -> Any: ...

    @property
    def status(self) -> Any: ...


class Scorer(Protocol):
    """Scores physical parameters (n_parameters, n_candidates)."""

    def score(self, parameters: Any) -> ScoreLike: ...


@dataclass(frozen=True, eq=False)
class Local:
    """An objective near some points of the unit cube, arrays of the scorer's module.

    cost, status (n_points,); gradient (n_free, n_points); curvature (n_free, n_free, n_points),
    the Gauss-Newton approximation of the second derivative, positive semidefinite.
    """

    cost: Any
    status: Any
    gradient: Any
    curvature: Any


@dataclass(frozen=True, eq=False)
class Generation:
    """What scoring some candidates brought.

    n_candidates: what it cost, in candidates; mean and median of the finite costs, NaN without
    one; best: the lowest cost, or the lowest so far, and values (n_parameters,) of that candidate
    in base units; failures (n_status,). stage: what a search of several stages is at.
    """

    n_candidates: int
    n_finite: int
    mean: float
    median: float
    best: float
    values: np.ndarray
    failures: np.ndarray = field(default_factory=lambda: np.zeros(max(FAILURES) + 1, np.int64))
    stage: str = ""


@dataclass
class Objective:
    """The cost of points of the unit cube.

    evaluations: candidates scored so far; a derivative costs as many as it has columns.
    """

    space: SearchSpace
    scorer: Any
    evaluations: int = 0

    @property
    def n_free(self) -> int:
        """Dimensions of the unit cube."""
        return self.space.n_free

    def score(self, unit: Any) -> ScoreLike:
        """Cost and status of points (n_free, n_points)."""
        self.evaluations += unit.shape[1]
        score: ScoreLike = self.scorer.score(self.space.to_physical(unit))
        return score

    def linearize(self, unit: Any) -> Local:
        """Cost, gradient and curvature at points (n_free, n_points), by unit coordinates."""
        self.evaluations += (1 + self.n_free) * unit.shape[1]
        local = self.scorer.linearize(self.space.to_physical(unit))
        slope, free = self.space.slope(unit), list(self.space.free)
        return Local(
            local.cost,
            local.status,
            local.gradient[free] * slope,
            local.curvature[free][:, free] * slope[:, None] * slope[None, :],
        )

    def physical(self, unit: Any) -> np.ndarray:
        """Parameters (n_parameters, n_points), base units, on the host."""
        return to_host(self.space.to_physical(unit))

    def sample(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Points (n_free, n), evenly over the part of the cube that is allowed."""
        return random.random((self.n_free, n))


def summarized(objective: Objective, unit: Any, score: ScoreLike, stage: str = "") -> Generation:
    """The generation of points (n_free, n_points) and their scores."""
    xp = array_module(score.cost)
    finite = xp.isfinite(score.cost)
    costs = score.cost[finite].astype(np.float64)
    place = int(xp.where(finite, score.cost, np.inf).argmin())
    return Generation(
        n_candidates=int(score.cost.size),
        n_finite=int(costs.size),
        mean=float(costs.mean()) if costs.size else math.nan,
        median=float(xp.median(costs)) if costs.size else math.nan,
        best=float(score.cost[place]) if costs.size else math.inf,
        values=objective.physical(unit[:, place : place + 1])[:, 0],
        failures=count_failures(score.status, finite, xp),
        stage=stage,
    )


def count_failures(status: Any, finite: Any, xp: Any) -> np.ndarray:
    """How many candidates (n_status,) failed in which way.

    A cost that is not finite though its status is good counts as "not finite".
    """
    n = max(FAILURES) + 1
    codes = xp.clip(xp.asarray(status)[~finite].astype(np.int64), 0, n - 1)
    codes[codes == 0] = 1
    return to_host(xp.bincount(codes, minlength=n))


def to_host(array: Any) -> np.ndarray:
    """A NumPy array of an array of any module."""
    return np.asarray(array.get() if hasattr(array, "get") else np.array(array))
