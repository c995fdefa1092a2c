"""The distance of each well from its plate, and the order in which a page shows wells.

Two robust measures are taken together. The misfit of a well is the root mean square of its
residuals over its noise; its measure is the number of robust spreads by which the logarithm lies
above the plate's median. The measure of its parameters is a Mahalanobis distance from the plate's
median, of logarithms where all values are positive, with medians, median absolute deviations and
correlations of clipped values in place of means and covariances, divided by the root of the number
of parameters, so that it is about one for a usual well. The distance of a well is the root of the
sum of their squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: The same rule in words, for the page and for figures' captions.
RULE = (
    "Wells without a fit come first. The others follow by their distance from the plate, which is "
    "the root of a² + b². Here a says how much worse the well is fitted than the median well: the "
    "logarithm of its misfit (residual over noise) less the plate's median, in robust spreads "
    "(1.48 times the median absolute deviation), and 0 for wells that are fitted better. And b is "
    "the Mahalanobis distance of the logarithms of its parameters (of their values where some are "
    "not positive) from the plate's medians, with robust spreads and correlations, over the root "
    "of the number of parameters. It is about 1 for a usual well."
)
#: Spreads beyond which a value does not count any further in correlations.
_CLIP = 2.5
#: The median absolute deviation of a normal distribution is its standard deviation over this.
_NORMAL = 1.4826


@dataclass(frozen=True, eq=False)
class Apart:
    """The distances of wells from their plate.

    Attributes:
        distance: (n_wells,), NaN for a well without values.
        misfit, parameters: (n_wells,), the two parts of the distance.
        order: (n_wells,), the wells as a page shows them first.
        correlations: (n_parameters, n_parameters), robust ones of the plate.
    """

    distance: np.ndarray
    misfit: np.ndarray
    parameters: np.ndarray
    order: np.ndarray
    correlations: np.ndarray


def stand_apart(values: np.ndarray, misfit: np.ndarray) -> Apart:
    """Return how far each well stands apart.

    Arguments:
        values: (n_wells, n_parameters), NaN where there are none.
        misfit: (n_wells,), residual over noise, or another measure that is larger for a worse fit.
    """
    known = np.isfinite(values)
    scores = np.zeros(values.shape)
    for k, column in enumerate(values.T):
        use = known[:, k]
        logs = use.any() and bool((column[use] > 0).all())
        scores[use, k] = spreads(np.log(column[use]) if logs else column[use])
    n_wells, n = values.shape
    correlations = _correlations(scores[known.all(axis=1)], n)
    shrunk = correlations + (np.eye(n) - correlations) * (n + 1) / (n_wells + n + 1)
    solved = np.linalg.solve(shrunk, scores.T) if n else scores.T
    of_parameters = np.sqrt(np.maximum((scores.T * solved).sum(axis=0), 0.0) / max(n, 1))
    of_misfit = np.zeros(n_wells)
    positive = np.isfinite(misfit) & (misfit > 0)
    of_misfit[positive] = np.maximum(spreads(np.log(misfit[positive])), 0.0)
    fitted = known.any(axis=1) if n else positive
    distance = np.where(fitted, np.hypot(of_misfit, of_parameters), np.nan)
    order = np.argsort(-np.where(fitted, distance, np.inf), kind="stable")
    return Apart(distance, of_misfit, of_parameters, order, correlations)


def spreads(values: np.ndarray) -> np.ndarray:
    """Return how many robust spreads values lie from their median; zero where all are the same."""
    if not values.size:
        return values
    apart = values - np.median(values)
    spread = _NORMAL * float(np.median(np.abs(apart)))
    if spread <= 1e-12 * float(np.abs(values).max(initial=0.0)):  # more than half are the same
        spread = float(np.std(values))
    return apart / spread if spread > 0 else np.zeros_like(values)


def _correlations(scores: np.ndarray, n: int) -> np.ndarray:
    """Return correlations of clipped scores; none where there are too few wells to tell."""
    if len(scores) < 4 or n < 2:
        return np.eye(n)
    clipped = np.clip(scores, -_CLIP, _CLIP)
    moving = clipped.std(axis=0) > 0
    found = np.eye(n)
    found[np.ix_(moving, moving)] = np.corrcoef(clipped[:, moving], rowvar=False)
    return found
