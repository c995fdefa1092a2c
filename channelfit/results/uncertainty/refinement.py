"""The refinement of a fit to the minimum of its cost, and the bounds that may prevent it.

Least squares ends when no step to the minimum of a local parabola lowers the cost. If the cost is
no parabola (because of ripples, curved valleys, or bounds on rates) there may be a lower point
within the standard errors of the fit, which a profile would find. So other points are tried as
well: along the directions of largest variance, and along those in which the profile of each
parameter begins. The best of them are refined, until none has a lower cost.
"""

from __future__ import annotations

import math

import numpy as np

from channelfit.results.uncertainty.estimate import Estimate, estimate
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.agreement import SAME
from channelfit.search.least_squares import refine
from channelfit.search.objective import Objective

#: Distances at which points are tried to either side, in standard errors.
_REACHES = (0.3, 1.0, 3.0, 10.0)
#: How many of these points are refined, and the most rounds of this.
_REFINED, _ROUNDS = 8, 30
#: A smaller decrease of chi square does not count.
_GAIN = 0.01
#: Shares of the way to the minimum of the parabola at which bounds on rates are checked.
_ON_THE_WAY = (1e-3, 1e-2, 0.1, 0.3, 1.0)


def brought_to_minimum(objective: Objective, unit: np.ndarray, n_samples: int) -> np.ndarray:
    """Return the lowest point (n_free, 1) that least squares finds from a point and around it.

    If the scorer can, it computes costs as it computes derivatives (`preview`): the difference
    between two methods would hide small gains.

    Arguments:
        unit: (n_free, 1), in the unit cube.
        n_samples: samples that count in the cost, from which standard errors follow.
    """
    objective.previews = True
    unit, cost = _refined(objective, unit)
    for _ in range(_ROUNDS):
        if not math.isfinite(cost) or n_samples <= len(unit):
            return unit
        points = _around(estimate(objective, unit[:, 0], n_samples))
        tried = to_host(objective.score(points).cost)
        order = np.argsort(tried, kind="stable")[:_REFINED]
        lower, lower_cost = _refined(objective, points[:, order[np.isfinite(tried[order])]])
        if not lower_cost < cost * (1 - _GAIN / n_samples):
            return unit
        unit, cost = lower, lower_cost
    return unit


def bounds_in_the_way(found: Estimate) -> str | None:
    """Return the rates that have a bound between a fit and the minimum of its parabola, or None."""
    objective = found.objective
    local = objective.linearize(found.unit[:, None])
    step = -found.covariance @ to_host(local.gradient)[:, 0]  # its length does not matter
    longest = float(np.abs(step).max(initial=0.0))
    if not longest > 0:
        return None
    step *= min(1.0, found.distance * float(np.sqrt(np.diag(found.covariance)).max()) / longest)
    way = np.clip(found.unit[:, None] + step[:, None] * np.array(_ON_THE_WAY), 0.0, 1.0)
    physical = objective.space.to_physical(way)
    names = [c.name for c in objective.constraints if not c.allowed(physical).all()]
    return ", ".join(names) or None


def _refined(objective: Objective, unit: np.ndarray) -> tuple[np.ndarray, float]:
    """Refine some points; return the best (n_free, 1) and its cost, inf if there is none."""
    if not unit.shape[1]:
        return unit, math.inf
    starts = refine(objective, unit, iterations=300)
    best = int(np.where(np.isfinite(starts.cost), starts.cost, np.inf).argmin())
    return starts.unit[:, [best]], float(starts.cost[best])


def _around(found: Estimate) -> np.ndarray:
    """Return points (n_free, n) at several standard errors from a fit, inside the cube."""
    values, vectors = np.linalg.eigh(found.covariance)
    loose = vectors * np.sqrt(np.maximum(values, 0.0))
    own = np.sqrt(np.diag(found.covariance))
    responses = found.covariance[:, own > 0] / own[own > 0]
    ways = np.concatenate([loose[:, values > 0], responses], axis=1)
    # the standard error of a flat direction may exceed the cube by far
    ways *= np.minimum(1.0, 0.1 / np.maximum(np.abs(ways).max(axis=0), SAME))
    sides = [sign * reach * ways for reach in _REACHES for sign in (1.0, -1.0)]
    around: np.ndarray = np.clip(found.unit[:, None] + np.concatenate(sides, axis=1), 0.0, 1.0)
    return around
