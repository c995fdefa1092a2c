"""What is doubtful of a fit beside its flags: terms too many, outliers; and intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from channelfit.curves.weights import sigma_of

if TYPE_CHECKING:
    from channelfit.curves.fitting import Fits, Task

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


def no_better_than_fewer_terms(task: Task, fits: Fits) -> np.ndarray:
    """Return (n_sets,) whether the curve without its last ordered term does as well, by BIC."""
    if task.simpler is None or fits.simpler is None:
        return np.zeros(len(fits.flags), bool)
    with np.errstate(all="ignore"):
        if task.curve.likelihood == "poisson":
            gain = fits.simpler - fits.cost
        else:
            gain = fits.counted * np.log(fits.simpler / fits.cost)
        more = len(task.lower) - len(task.simpler.lower)
        found: np.ndarray = gain < more * np.log(np.maximum(fits.counted, 1)) + _BETTER
    return found


def terms_hardly_known(task: Task, fits: Fits) -> np.ndarray:
    """Return (n_sets,) whether the size of a term that is ordered is known badly."""
    if task.simpler is None:
        return np.zeros(len(fits.flags), bool)
    sizes = list(task.curve.sizes)
    with np.errstate(all="ignore"):
        found: np.ndarray = (fits.errors > _WELL_KNOWN * np.abs(fits.values))[:, sizes].any(axis=1)
    return found


def with_outliers(task: Task, fits: Fits, first: int, at_once: int) -> np.ndarray:
    """Return (n_sets,) whether one point lies farther off the curve than the others explain.

    It is compared with the scatter of the others (its externally studentized residual, of the mean
    leverage), with a limit for the largest of so many points. Least squares only: under a robust
    loss an outlier does not matter.

    Arguments:
        first: place of the first data set. at_once: points that are looked at together.
    """
    from scipy import special  # loaded only where it is needed

    n_sets, n = len(fits.flags), len(task.lower)
    found = np.zeros(n_sets, bool)
    if task.curve.likelihood == "poisson" or task.curve.loss != "linear":
        return found
    at = {name: values[None] for name, values in task.data.at_points.items()}
    step = max(1, at_once // task.data.values.shape[1])
    for a in range(0, n_sets, step):
        b = min(a + step, n_sets)
        z = np.asarray(task.data.values[first + a : first + b], float)
        seen = np.isfinite(z)
        free = fits.counted[a:b] - n - 1
        with np.errstate(all="ignore"):
            f = task.curve.values(at, np.asarray(fits.values[a:b], float).T[:, :, None])
            if task.data.sigma is not None:
                sigma = sigma_of(task.data, first + a, first + b)
                f, z = f / sigma, z / sigma
            far = np.max((f - z) ** 2, axis=1, where=seen, initial=0.0)
            far = far / (1 - n / fits.counted[a:b])
            others = (fits.cost[a:b] - far) / free
            limit = special.stdtrit(np.maximum(free, 1), 1 - _CHANCE / 2 / fits.counted[a:b])
            size = np.max(np.abs(z), axis=1, where=seen, initial=0.0)
            real = far > (_ROUNDING * size) ** 2
            found[a:b] = real & (free >= 3) & (far > limit**2 * np.maximum(others, 0.0))
    return found


def reach_of(task: Task, fits: Fits) -> np.ndarray:
    """Return (n_sets,) standard errors from a value to an end of its interval."""
    from scipy import special  # loaded only where it is needed

    tail = 0.5 + LEVEL / 2
    if task.curve.likelihood == "poisson":
        return np.full(len(fits.flags), special.ndtri(tail))
    return np.asarray(special.stdtrit(np.maximum(fits.counted - len(task.lower), 1), tail))


def intervals(task: Task, fits: Fits) -> np.ndarray:
    """Return (n_sets, n_free, 2) both ends of 95 % intervals; NaN where there is no error.

    They use Student's t with the degrees of freedom that are left, for counts the normal
    distribution, and are even in the logarithm of a parameter of that scale.
    """
    values, wide = fits.values, reach_of(task, fits)[:, None] * fits.errors
    logarithmic = np.array([p.scale == "log" for p in task.curve.free], bool)
    with np.errstate(all="ignore"):
        factor = np.exp(np.minimum(wide / np.abs(values), 700.0))
        low = np.where(logarithmic, values / factor, values - wide)
        high = np.where(logarithmic, values * factor, values + wide)
    return np.stack([low, high], axis=2)
