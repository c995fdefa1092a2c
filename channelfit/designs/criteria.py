"""What a protocol is to determine: criteria of the Fisher information, with their derivatives.

A criterion takes the information of an ensemble of parameter vectors and returns a number, the
smaller the better, with its derivative by each element. Before it is inverted the weak knowledge of
the ranges is added, so that a parameter that a protocol does not determine counts as little known
and not as infinitely so. D, A and E as in Atkinson and Donev (1992).

Where the samples of the noise are correlated, the covariance of least squares is M K M: M is the
inverse of that information, as of independent samples, and K the covariance of the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray

KINDS = ("log", "D", "A", "E", "V")
#: How much the worst member of an ensemble counts: exponents of a smooth maximum.
_SHARPNESS = 20.0


@dataclass(frozen=True, eq=False)
class Criterion:
    """A number to make small.

    Attributes:
        kind: "log" for the mean logarithm of the standard errors, "D" for the volume of the
            ellipsoid of confidence (its logarithm a parameter), "A" for the mean variance and "E"
            for the largest variance of any combination (their logarithms), "V" for that of the mean
            variance of predicted currents.
        prior: (n_free, n_members) the precision, one over variance, that is known beforehand.
        places: (n,) the places of the parameters that count for "log" and "A".
        worst: whether the worst member counts, and not the mean over all.
        predicted: (n_members, n_free, n_free) mean products of the derivatives of predicted
            currents, for "V".
    """

    kind: str
    prior: Array
    places: Array
    worst: bool = False
    predicted: Array | None = None

    def covariance(self, information: Array, spread: Array | None = None) -> Array:
        """Return covariances (n_members, n_free, n_free).

        Arguments:
            spread: likewise, the covariance of the gradient; None where it is the information.
        """
        return self._covariance(self._inverse(information), spread)

    def __call__(
        self, information: Array, spread: Array | None = None
    ) -> tuple[float, Array, Array]:
        """Return the criterion, and its derivatives by the information and by the spread."""
        inverse = self._inverse(information)
        c = self._covariance(inverse, spread)
        values, slopes = self._of_members(c)
        shares = np.full(len(values), 1.0 / len(values))
        value = float(values.mean())
        if self.worst:
            value, shares = worst_of(values)
        slopes = shares[:, None, None] * slopes
        # d(inverse of F) is -M dF M
        half = inverse @ slopes @ c
        return value, -half - half.swapaxes(1, 2), inverse @ slopes @ inverse

    def _covariance(self, inverse: Array, spread: Array | None) -> Array:
        return inverse if spread is None else inverse @ self._known(spread) @ inverse

    def _known(self, found: Array) -> Array:
        known: Array = found + np.einsum("im,ij->mij", self.prior, np.eye(len(self.prior)))
        return known

    def _inverse(self, information: Array) -> Array:
        known = self._known(information)
        root = np.sqrt(np.diagonal(known, axis1=1, axis2=2))
        scale = root[:, :, None] * root[:, None, :]
        inverse: Array = np.linalg.inv(known / scale) / scale
        return inverse

    def _of_members(self, c: Array) -> tuple[Array, Array]:
        """Return the criterion of each member, and its derivative by the covariance."""
        n, counting = c.shape[1], np.isin(np.arange(c.shape[1]), self.places)
        if self.kind == "D":
            return np.linalg.slogdet(c)[1] / (2 * n), np.linalg.inv(c) / (2 * n)
        if self.kind == "E":
            values, vectors = np.linalg.eigh(c)
            largest = vectors[:, :, -1]
            slopes = np.einsum("mi,mj->mij", largest, largest) / (2 * values[:, -1, None, None])
            return 0.5 * np.log(values[:, -1]), slopes
        if self.kind == "log":
            shares = counting / counting.sum()
            variances = np.diagonal(c, axis1=1, axis2=2)
            slopes = np.einsum("mi,ij->mij", 0.5 * shares / variances, np.eye(n))
            return 0.5 * np.log(variances) @ shares, slopes
        weights = np.diag(counting / counting.sum()) if self.predicted is None else self.predicted
        total = (c * weights).sum(axis=(1, 2))
        return 0.5 * np.log(total), 0.5 * np.broadcast_to(weights, c.shape) / total[:, None, None]


def worst_of(values: Array) -> tuple[float, Array]:
    """Return a smooth maximum of values (n,), and its derivatives by them."""
    parts = np.exp(_SHARPNESS * (values - values.max()))
    return float(values.max() + np.log(parts.mean()) / _SHARPNESS), parts / parts.sum()
