"""Weights of points and the scale of a robust loss, as kernels take them; costs as users read them.

A point whose value has the standard error sigma weighs (u/sigma)**2 in a kernel. Least squares have
no scale, so that u is the smallest sigma of a data set: where all are alike every weight is 1, and
parameters and errors have the bits that they have without any. For a robust loss u is 1/f_scale,
which makes residuals multiples of that scale.
"""

from __future__ import annotations

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.curves.fitting import CurveProblem, DataSets, Fits
from channelfit.reading.errors import InputError

#: Data sets and their points that are looked at together.
_AT_ONCE = 1_000_000
#: Steps of the reweighted mean to which a curve is compared under a robust loss.
_MEANS = 60


def is_weighted(curve: Curve, data: DataSets) -> bool:
    """Return whether kernels take weights."""
    return data.sigma is not None or curve.loss != "linear"


def check_weighted(curve: Curve, data: DataSets, method: str) -> None:
    """Refuse weights and losses that do not suit the curve, the data or the method.

    Raises: InputError with what would be right.
    """
    if data.sigma is not None and curve.likelihood == "poisson":
        raise InputError(
            "standard errors belong to least squares; the likelihood of counts has its own: leave "
            "sigma or the likelihood out"
        )
    if is_weighted(curve, data) and method == "swarm":
        raise InputError("swarms take neither sigma nor a loss; use the method least-squares")
    if curve.loss != "linear" and curve.f_scale is None and data.sigma is None:
        raise InputError(
            "from which residual on does a point count as far off? Without standard errors of the "
            "points (sigma) a loss needs that, about the noise of the data, in their unit",
            key="f_scale",
        )


def sigma_of(data: DataSets, first: int, last: int) -> np.ndarray:
    """Return standard errors (n, n_points) of data sets that follow each other; 1 where none are
    given.
    """
    z = data.values[first:last]
    if data.sigma is None:
        return np.ones(z.shape)
    rows = data.sigma if len(data.sigma) == 1 else data.sigma[first:last]
    return np.where(np.isfinite(z), np.asarray(rows, float), 1.0)


def weights_of(curve: Curve, data: DataSets, first: int, last: int) -> np.ndarray:
    """Return weights (n, n_points) of these data sets in kernels; (0, 0) where they need none."""
    if not is_weighted(curve, data):
        return np.empty((0, 0))
    unit, sigma = _units(curve, data, first, last), sigma_of(data, first, last)
    return np.asarray((unit[:, None] / sigma) ** 2)


def _units(curve: Curve, data: DataSets, first: int, last: int) -> np.ndarray:
    """Return the unit (n,) of the sigmas of each data set."""
    if curve.loss != "linear":
        return np.full(last - first, 1.0 / (curve.f_scale or 1.0))
    seen = np.isfinite(data.values[first:last])
    least = np.min(sigma_of(data, first, last), axis=1, where=seen, initial=np.inf)
    return np.where(np.isfinite(least), least, 1.0)


def parts_of_cost(curve: Curve, f: np.ndarray, z: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return the share of each point in the cost, of squares or of the robust loss."""
    squares = ((z - f) / sigma) ** 2
    if curve.loss == "linear":
        return np.asarray(squares)
    scale = (curve.f_scale or 1.0) ** 2
    return np.asarray(2.0 * squares / (1.0 + np.sqrt(1.0 + squares / scale)))


def costs_of_points(curve: Curve, f: np.ndarray, z: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return the share of each point in the cost of a curve f."""
    return _deviance(f, z) if curve.likelihood == "poisson" else parts_of_cost(curve, f, z, sigma)


def _deviance(f: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the share of each count in Poisson's deviance."""
    parts: np.ndarray = 2 * (f - z + z * np.log(np.where(z > 0, z / f, 1.0)))
    return parts


def rescaled(problem: CurveProblem, first: int, fits: Fits) -> Fits:
    """Return the same fits, of data sets from `first` on, with costs in the unit that users know.

    That is the sum of ((z - f)/sigma)**2, and under a robust loss twice what SciPy's least_squares
    gives; `squares` becomes the same for a constant in the place of the curve.
    """
    curve, data = problem.curve, problem.data
    if not is_weighted(curve, data):
        return fits
    fits.cost, fits.squares = fits.cost.astype(float), fits.squares.astype(float)
    step = max(1, _AT_ONCE // data.values.shape[1])
    for a in range(0, len(fits.flags), step):
        b = min(a + step, len(fits.flags))
        factor = _units(curve, data, first + a, first + b) ** -2
        fits.cost[a:b] *= factor
        if curve.loss == "linear":
            fits.squares[a:b] *= factor
        else:
            fits.squares[a:b] = _cost_of_a_constant(curve, data, first + a, first + b)
    return fits


def _cost_of_a_constant(curve: Curve, data: DataSets, first: int, last: int) -> np.ndarray:
    """Return the robust cost (n,) of the best constant, by reweighted means from the median on."""
    z, sigma = np.asarray(data.values[first:last], float), sigma_of(data, first, last)
    seen = np.isfinite(z)
    scale = (curve.f_scale or 1.0) ** 2
    z = np.where(seen, z, np.nan)
    best = np.full(len(z), np.nan)
    some = seen.any(1)
    best[some] = np.nanmedian(z[some], axis=1)
    with np.errstate(all="ignore"):
        for _ in range(_MEANS):
            m = sigma**-2 / np.sqrt(1.0 + ((z - best[:, None]) / sigma) ** 2 / scale)
            best = (m * z).sum(axis=1, where=seen) / m.sum(axis=1, where=seen)
        found: np.ndarray = parts_of_cost(curve, best[:, None], z, sigma).sum(axis=1, where=seen)
    return found


def bad_sigma(sigma: np.ndarray, values: np.ndarray) -> tuple[int, int, str] | None:
    """Return the first value (n_sets, n_points) whose standard error is no finite number above 0.

    Arguments: sigma: as of `DataSets`. Points that are no numbers need none.

    Returns: data set, point and what is wrong; None where nothing is.
    """
    whole = np.broadcast_to(sigma, values.shape)
    step = max(1, _AT_ONCE // values.shape[1])
    for a in range(0, len(values), step):
        part = np.asarray(whole[a : a + step], float)
        bad = np.isfinite(values[a : a + step]) & ~((part > 0) & (part < np.inf))
        if bad.any():
            s, i = (int(k) for k in np.unravel_index(int(bad.argmax()), bad.shape))
            message = f"a standard error is a finite number above 0, not {part[s, i]:g}"
            return a + s, i, message
    return None
