"""Profile likelihoods: how good the fit can still be with one parameter held at a value.

While `estimate` approximates the cost by a parabola, a profile follows the cost itself. The
parameter is held at values away from the fit, all others are refined again, and the interval ends
where the cost has risen too far. All values of a side are refined together, and then again from the
results of their neighbors until none improves (Raue et al. 2009, Bioinformatics 25:1923).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.results.uncertainty.assessment import brought_to_minimum
from channelfit.results.uncertainty.estimate import LEVEL, Estimate, estimate, quantile
from channelfit.search.least_squares import refine
from channelfit.search.objective import Local, Objective

#: Points on either side of the fit.
_POINTS = 10
#: The most changes of the length of a side, and the most restarts of points from their neighbors.
_ROUNDS, _PASSES = 8, 4
#: A decrease of chi square that is worth another restart from the neighbors.
_GAIN = 1e-2
#: If a profile finds a chi square lower by this much, the fit was not at the minimum: all profiles
#: are then computed again from there, at most so many times.
_BETTER, _RESTARTS = 0.1, 50


@dataclass(frozen=True, eq=False)
class Profile:
    """The lowest cost that is possible for each value of one parameter.

    Attributes:
        name: of the parameter.
        place: of the parameter among the free ones.
        values: (n_points,), base units, ascending, the fit among them.
        chi_square: (n_points,), above that of the fit.
        unit: (n_free, n_points), the refined points in the unit cube.
        threshold: the chi square at which the interval ends.
        lower, upper: the interval, base units.
        open_below, open_above: whether the interval is open, because the range of the parameter
            ends before the cost has risen enough; it then ends with the range.
    """

    name: str
    place: int
    values: np.ndarray
    chi_square: np.ndarray
    unit: np.ndarray
    threshold: float
    lower: float
    upper: float
    open_below: bool
    open_above: bool


@dataclass
class _Held:
    """An objective with one coordinate held: its derivatives are 0."""

    whole: Objective
    place: int

    @property
    def floor(self) -> float:
        """See `Objective.floor`."""
        return self.whole.floor

    @property
    def at_once(self) -> bool:
        """See `Objective.at_once`."""
        return self.whole.at_once

    def score(self, unit: Any) -> Any:
        """See `Objective.score`."""
        return self.whole.score(unit)

    def linearize(self, unit: Any) -> Local:
        """See `Objective.linearize`."""
        local = self.whole.linearize(unit)
        gradient, hessian = local.gradient.copy(), local.hessian.copy()
        gradient[self.place] = 0.0
        hessian[self.place] = 0.0
        hessian[:, self.place] = 0.0
        return Local(local.cost, local.status, gradient, hessian)


def profiles(
    found: Estimate,
    places: Iterable[int] | None = None,
    on_profile: Callable[[str], object] | None = None,
    profiler: Profiler | None = None,
) -> tuple[Estimate, list[Profile]]:
    """Compute the profiles of some of the free parameters.

    Arguments:
        places: of the parameters among the free ones; None for all.
        on_profile: called with the name of each parameter before its profile is computed.
        profiler: computes the profiles of an estimate; None to compute one after the other here.

    Returns: the estimate, and the profiles. If a profile led to a better fit, the estimate is that
    of the better fit, and all profiles were computed again from there.
    """
    chosen = list(range(len(found.unit)) if places is None else places)
    compute = profiler or (lambda found, places: (profile(found, place) for place in places))
    for _ in range(_RESTARTS):
        done: list[Profile] = []
        coming = compute(found, chosen)
        for place in chosen:
            if on_profile is not None:
                on_profile(found.names[place])
            done.append(next(coming))
            k = int(done[-1].chi_square.argmin())
            if done[-1].chi_square[k] < -_BETTER:
                found = _moved(found, done[-1].unit[:, k])
                break
        else:
            return found, done
    return found, list(compute(found, chosen))


#: Yields the profiles of the free parameters at these places, in their order.
Profiler = Callable[[Estimate, Sequence[int]], Iterator[Profile]]


def profile(found: Estimate, place: int) -> Profile:
    """Compute the profile of one free parameter, given by its place among them."""
    limit = found.threshold(place=place)
    sides = [_side(found, place, sign, limit) for sign in (-1.0, 1.0)]
    below, above = sides
    unit = np.concatenate([below[0][:, ::-1], found.unit[:, None], above[0]], axis=1)
    chi_square = np.concatenate([below[1][::-1], [0.0], above[1]])
    ends, opens = [], []
    for sign, side in zip((-1, 1), sides, strict=True):
        end, is_open = _end(found, place, sign, *side, limit)
        ends.append(end)
        opens.append(is_open)
    corner = np.repeat(found.unit[:, None], 2, axis=1)
    corner[place] = ends
    row = found.objective.space.free[place]
    lower, upper = found.objective.physical(corner)[row]
    return Profile(
        found.names[place],
        place,
        found.objective.physical(unit)[row],
        chi_square,
        unit,
        limit,
        float(lower),
        float(upper),
        *opens,
    )


def _side(found: Estimate, place: int, sign: float, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Refine points outward from the fit; return them (n_free, n) and their chi square (n,).

    The reach is stretched, or shortened, until the limit is crossed after several points.
    """
    start = found.unit[place]
    room = float(1 - start if sign > 0 else start)
    if room <= 0:
        return np.empty((len(found.unit), 0)), np.empty(0)
    error = found.errors[place]
    error = error if math.isfinite(error) and error > 0 else 0.1
    reach = min(1.3 * quantile(LEVEL, found.freedoms[place]) * error, room)
    unit, chi_square = np.empty((len(found.unit), 0)), np.empty(0)
    for _ in range(_ROUNDS):
        offsets = reach * np.arange(1, _POINTS + 1) / _POINTS
        held = np.clip(start + sign * offsets, 0.0, 1.0)
        if reach >= room:
            held[-1] = 1.0 if sign > 0 else 0.0
        unit, chi_square = _refined(found, place, held)
        over = np.flatnonzero(chi_square > limit)
        if over.size and over[0] >= _POINTS // 3:
            break
        if over.size:
            reach = min(offsets[over[0]] * 1.3, 0.9 * reach)
        elif reach >= room:
            break
        else:
            reach = min(3 * reach, room)
    return unit, chi_square


def _refined(found: Estimate, place: int, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best points with a coordinate at given values (n,), and their chi square (n,)."""
    n = len(held)
    response = found.covariance[:, place] / (found.covariance[place, place] or 1.0)
    linear = found.unit[:, None] + response[:, None] * (held - found.unit[place])
    plain = np.repeat(found.unit[:, None], n, axis=1)
    unit, chi_square = _refine(found, place, np.tile(held, 2), np.hstack([linear, plain]))
    first = chi_square[:n] <= chi_square[n:]
    best = np.where(first, np.arange(n), n + np.arange(n))
    unit, chi_square = unit[:, best], chi_square[best]
    for _ in range(_PASSES):
        near = np.hstack([unit[:, [0, *range(n - 1)]], unit[:, [*range(1, n), n - 1]]])
        tried, chi = _refine(found, place, np.tile(held, 2), near)
        pick = np.where(chi[:n] <= chi[n:], np.arange(n), n + np.arange(n))
        better = chi[pick] < chi_square - 1e-12
        gained = np.max(np.where(better, chi_square - chi[pick], 0.0))
        unit = np.where(better, tried[:, pick], unit)
        chi_square = np.where(better, chi[pick], chi_square)
        if not gained > _GAIN:
            break
    return unit, chi_square


def _refine(
    found: Estimate, place: int, held: np.ndarray, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Refine all coordinates but the held one, from points (n_free, n)."""
    starts = np.clip(unit, 0.0, 1.0)
    starts[place] = held
    objective: Any = _Held(found.objective, place)
    # a thousandth of a unit of chi square, as a share of the cost
    tolerance = 1e-3 * found.widened[place] ** 2 / found.n_samples
    refined = refine(objective, starts, tolerance=min(tolerance, 1e-4))
    cost = np.where(np.isfinite(refined.cost), refined.cost, np.inf)
    chi_square: np.ndarray = found.chi_square(cost, place)
    return refined.unit, chi_square


def _end(
    found: Estimate, place: int, sign: int, unit: np.ndarray, chi_square: np.ndarray, limit: float
) -> tuple[float, bool]:
    """Find where a side crosses the limit, in the unit coordinate, and whether it never does.

    It is interpolated in the root of chi square, which is straight where the cost is a parabola.
    """
    over = np.flatnonzero(chi_square > limit)
    if not over.size:
        return (1.0 if sign > 0 else 0.0), True
    k = int(over[0])
    here = unit[place, k]
    if not math.isfinite(chi_square[k]):  # nothing can be scored beyond it
        return float(here), False
    before = unit[place, k - 1] if k else found.unit[place]
    low = math.sqrt(max(chi_square[k - 1], 0.0)) if k else 0.0
    high, target = math.sqrt(chi_square[k]), math.sqrt(limit)
    return float(before + (here - before) * (target - low) / (high - low)), False


def _moved(found: Estimate, unit: np.ndarray) -> Estimate:
    """Refine a better point, and return the estimate there."""
    better = brought_to_minimum(found.objective, unit[:, None], found.n_samples)[:, 0]
    sigma = found.sigma_pA if found.assumed else None
    return estimate(found.objective, better, found.n_samples, found.spectrum, sigma)
