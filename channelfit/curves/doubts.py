"""The quality of fits in words: their flags, too many terms, outliers; intervals of parameters."""

from __future__ import annotations

import math

import numpy as np

from channelfit.curves import flags
from channelfit.curves.fitting import CurveProblem, Fits, index_ranges
from channelfit.curves.lane_math import LEAST_COUNT
from channelfit.curves.weights import costs_of_points, sigma_of
from channelfit.reading.errors import InputError
from channelfit.tasks.records import DAMAGED

#: BIC must be lower by so much before a curve counts as better than one of fewer terms.
_BETTER = 10.0
#: A term whose size is known to a share worse than this: its errors are no longer those of a
#: parabola.
_WELL_KNOWN = 0.3
#: How often noise alone makes an outlier of a data set.
_CHANCE = 1e-5
#: Residuals below this share of the data are rounding.
_ROUNDING = 1e-9
LEVEL = 0.95
#: Points that are looked at together, and data sets of which: those whose least count is below.
_AT_ONCE, _FEW_COUNTS = 1_000_000, 10
_REASONS = (
    (flags.CONSTANT, "all points are equal"),
    (flags.NEGATIVE, "a count is below zero"),
    (flags.NOT_FINITE, "the curve is not finite where the descent would begin"),
    (flags.NOT_CONVERGED, "the descent did not come to rest"),
    (flags.UNSETTLED, "the search ended farther from the minimum than noise moves it"),
    (flags.UNDETERMINED, "the data do not determine all parameters"),
    (flags.DISORDERED, "parameters are not in their order"),
)


def no_better_than_fewer_terms(problem: CurveProblem, fits: Fits) -> np.ndarray:
    """Return (n_sets,) whether the curve without its last ordered term does as well, by BIC."""
    if problem.simpler is None or fits.simpler is None:
        return np.zeros(len(fits.flags), bool)
    with np.errstate(all="ignore"):
        if problem.curve.likelihood == "poisson":
            gain = fits.simpler - fits.cost
        else:
            gain = fits.counted * np.log(fits.simpler / fits.cost)
        more = len(problem.lower) - len(problem.simpler.lower)
        found: np.ndarray = gain < more * np.log(np.maximum(fits.counted, 1)) + _BETTER
    return found


def terms_hardly_known(problem: CurveProblem, fits: Fits) -> np.ndarray:
    """Return (n_sets,) whether the size of a term that is ordered is known badly."""
    if problem.simpler is None:
        return np.zeros(len(fits.flags), bool)
    sizes = list(problem.curve.sizes)
    with np.errstate(all="ignore"):
        found: np.ndarray = (fits.errors > _WELL_KNOWN * np.abs(fits.values))[:, sizes].any(axis=1)
    return found


def with_outliers(problem: CurveProblem, fits: Fits, first: int, at_once: int) -> np.ndarray:
    """Return (n_sets,) whether one point lies farther off the curve than the others explain.

    It is compared with the scatter of the others (its externally studentized residual, of the mean
    leverage), with a limit for the largest of so many points. Least squares only: under a robust
    loss an outlier does not matter.

    Arguments:
        first: place of the first data set. at_once: points that are looked at together.
    """
    from scipy import special  # loaded only where it is needed

    n_sets, n = len(fits.flags), len(problem.lower)
    found = np.zeros(n_sets, bool)
    if problem.curve.likelihood == "poisson" or problem.curve.loss != "linear":
        return found
    at = {name: values[None] for name, values in problem.data.at_points.items()}
    step = max(1, at_once // problem.data.values.shape[1])
    for a in range(0, n_sets, step):
        b = min(a + step, n_sets)
        z = np.asarray(problem.data.values[first + a : first + b], float)
        seen = np.isfinite(z)
        free = fits.counted[a:b] - n - 1
        with np.errstate(all="ignore"):
            f = problem.curve.values(at, np.asarray(fits.values[a:b], float).T[:, :, None])
            if problem.data.sigma is not None:
                sigma = sigma_of(problem.data, first + a, first + b)
                f, z = f / sigma, z / sigma
            far = np.max((f - z) ** 2, axis=1, where=seen, initial=0.0)
            far = far / (1 - n / fits.counted[a:b])
            others = (fits.cost[a:b] - far) / free
            limit = special.stdtrit(np.maximum(free, 1), 1 - _CHANCE / 2 / fits.counted[a:b])
            size = np.max(np.abs(z), axis=1, where=seen, initial=0.0)
            real = far > (_ROUNDING * size) ** 2
            found[a:b] = real & (free >= 3) & (far > limit**2 * np.maximum(others, 0.0))
    return found


def reach_of(problem: CurveProblem, fits: Fits) -> np.ndarray:
    """Return (n_sets,) standard errors from a value to an end of its interval."""
    from scipy import special  # loaded only where it is needed

    tail = 0.5 + LEVEL / 2
    if problem.curve.likelihood == "poisson":
        return np.full(len(fits.flags), special.ndtri(tail))
    return np.asarray(special.stdtrit(np.maximum(fits.counted - len(problem.lower), 1), tail))


def intervals(problem: CurveProblem, fits: Fits) -> np.ndarray:
    """Return (n_sets, n_free, 2) both ends of 95 % intervals; NaN where there is no error.

    They use Student's t with the degrees of freedom that are left, for counts the normal
    distribution, and are even in the logarithm of a parameter of that scale.
    """
    values, wide = fits.values, reach_of(problem, fits)[:, None] * fits.errors
    logarithmic = np.array([p.scale == "log" for p in problem.curve.free], bool)
    with np.errstate(all="ignore"):
        factor = np.exp(np.minimum(wide / np.abs(values), 700.0))
        low = np.where(logarithmic, values / factor, values - wide)
        high = np.where(logarithmic, values * factor, values + wide)
    return np.stack([low, high], axis=2)


def reasons_of(problem: CurveProblem, fits: Fits, first: int = 0) -> list[tuple[str, str]]:
    """Return quality ("ok", "check" or "failed") and reason in words of every data set.

    Arguments:
        fits: of data sets that follow each other. first: the place of the first of them.
    """
    n_points = problem.data.values.shape[1]
    doubts = _doubts(problem, fits, first)
    doubtful = np.any([where for where, _ in doubts], axis=0).tolist()
    found: list[tuple[str, str]] = []
    for s, flag in enumerate(fits.flags.tolist()):
        if problem.impossible and not flag & flags.TOO_FEW:
            found.append(("failed", problem.impossible))
            continue
        if not flag and not doubtful[s]:
            found.append(("ok", ""))
            continue
        if flag & flags.FAILED:
            flag &= flags.FAILED
        words = [reason for bit, reason in _REASONS if flag & bit]
        if flag & flags.AT_BOUND:
            words += _bounds_met(problem, fits.values[s])
        if not flag & flags.FAILED:
            words += [reason for where, reason in doubts if where[s]]
        if flag & flags.TOO_FEW:
            counted = int(fits.counted[s])
            words.append(f"{counted} points for {len(problem.lower)} parameters")
        elif flag & flags.MISSING:
            left_out = n_points - int(fits.counted[s])
            words.append(f"{left_out} of {n_points} points are not numbers and were left out")
        found.append(("failed" if flag & flags.FAILED else "check", "; ".join(words)))
    return found


def _doubts(problem: CurveProblem, fits: Fits, first: int) -> list[tuple[np.ndarray, str]]:
    """Return doubts beside the flags of fits: (n_sets,) where, and the reason in words."""
    n = len(problem.lower)
    counts = problem.curve.likelihood == "poisson"
    without = np.isnan(fits.errors).all(1) & (fits.counted <= n) & (not counts)
    more = np.zeros((2, len(fits.flags)), bool)
    if counts:
        for a, b in index_ranges(len(fits.flags), max(1, _AT_ONCE // problem.data.values.shape[1])):
            z = np.asarray(problem.data.values[first + a : first + b], float)
            more[:, a:b] = _doubts_of_counts(problem, fits, a, z)
    else:
        with np.errstate(all="ignore"):
            gain = fits.counted * np.log(fits.squares / fits.cost)
        more[0] = gain < (n - 1) * np.log(np.maximum(fits.counted, 1))
    if len(problem.curve.linear) == n:
        more[0] = False
    return [
        (without, "as many points as parameters, which leaves none for errors"),
        (more[0], "the curve follows the data no better than a constant"),
        (
            no_better_than_fewer_terms(problem, fits),
            "a curve with one term less follows the data as well",
        ),
        (
            terms_hardly_known(problem, fits),
            "the size of a term is known so badly that its errors may not hold",
        ),
        (
            with_outliers(problem, fits, first, _AT_ONCE),
            "an outlier: one point lies farther off the curve than the others explain",
        ),
        (more[1], "the curve falls to zero counts or below, where the errors do not hold"),
    ]


def _doubts_of_counts(problem: CurveProblem, fits: Fits, first: int, z: np.ndarray) -> np.ndarray:
    """Return (2, n) of data sets from `first` on, whose points are z (n, n_points).

    Whether a constant does as well, by the criterion of Schwarz, and whether the curve is so
    low that a substitute took the place of Poisson's likelihood (`lane_math.poissonCost`).
    """
    these = slice(first, first + len(z))
    seen = np.isfinite(z)
    low = np.zeros(len(z), bool)
    some = np.flatnonzero(z.min(axis=1, where=seen, initial=np.inf) < _FEW_COUNTS)
    with np.errstate(all="ignore"):
        mean = z.sum(axis=1, where=seen) / fits.counted[these]
        gain = fits.squares[these] / mean - fits.cost[these]
        if some.size:
            at = {name: values[None] for name, values in problem.data.at_points.items()}
            f = problem.curve.values(at, fits.values[these][some].T[:, :, None])
            wrong = (f < 0) | ((f < LEAST_COUNT) & (z[some] > 0))
            low[some] = (wrong & seen[some]).any(1)
        flat = gain < (len(problem.lower) - 1) * np.log(np.maximum(fits.counted[these], 1))
    return np.array([flat, low])


def _bounds_met(problem: CurveProblem, values: np.ndarray) -> list[str]:
    at_bounds = []
    ends = (("lower", problem.lower), ("upper", problem.upper))
    for side, bounds in ends:
        for parameter, bound, value in zip(problem.curve.free, bounds, values, strict=True):
            if math.isclose(value, bound, rel_tol=1e-6):  # a GPU may round to float32
                at_bounds.append(f"{parameter.name} at its {side} bound {bound:g}")
    return at_bounds


def check_costs(problem: CurveProblem, fits: Fits, first: int, rounding: float) -> None:
    """Refuse fits whose costs are not those of their values and of the data.

    Poisson's deviance is compared where no substitute takes its place.

    Arguments:
        fits: of data sets from `first` on. rounding: see `curve_tasks._ROUNDING`.

    Raises:
        InputError: with the data set.
    """
    at = {name: values[None] for name, values in problem.data.at_points.items()}
    poisson = problem.curve.likelihood == "poisson"
    for a, b in index_ranges(len(fits.flags), max(1, _AT_ONCE // problem.data.values.shape[1])):
        z = np.asarray(problem.data.values[first + a : first + b], float)
        seen = np.isfinite(z)
        with np.errstate(all="ignore"):
            free = np.asarray(fits.values[a:b], float).T[:, :, None]
            f = np.broadcast_to(problem.curve.values(at, free), z.shape)
            sigma = sigma_of(problem.data, first + a, first + b)
            parts = costs_of_points(problem.curve, f, z, sigma)
            cost = parts.sum(axis=1, where=seen)
            size = (z if poisson else (z / sigma) ** 2).sum(axis=1, where=seen)
            apart = np.abs(cost - fits.cost[a:b]) > 1e3 * rounding * cost + rounding * size
            if poisson:
                apart &= (f >= LEAST_COUNT).all(axis=1, where=seen)
        wrong = apart & (fits.flags[a:b] & flags.FAILED == 0) | (seen.sum(1) != fits.counted[a:b])
        if wrong.any():
            k = first + a + int(wrong.argmax()) + 1
            raise InputError(f"{DAMAGED}: the cost of data set {k:,} is not that of its values")
