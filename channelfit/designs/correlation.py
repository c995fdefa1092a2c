"""Noise whose samples are correlated: the covariance of the gradient of least squares.

With F = J^T J / s^2, the information of independent samples of variance s^2, and derivatives J of
the current, least squares has the covariance

    F^-1 G F^-1,     G = J^T R J / s^2,

where R is the autocorrelation r of the noise, which `noise_spectrum` estimates. G is a sum over
pairs of samples. For a search J is constant in cells, between edges e, and d is its change there;
summing over two cells by parts gives

    G = -sum over edges of d(e) c(|e - e'|) d(e')^T / s^2,

with c the sum of r over the lag, taken twice: no sample is visited, and derivatives by the edges
are those of c. Sweeps are independent of each other.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.linalg import matmul_toeplitz

Array = np.ndarray


class Correlation:
    """The autocorrelation of a noise.

    Arguments:
        lags: (n,) the autocorrelation at lags of 0 to n - 1 samples.
        sampling: ms between samples.
    """

    def __init__(self, lags: Array, sampling: float) -> None:
        once = np.cumsum(lags) - lags[0] / 2
        twice = np.concatenate([[0.0], np.cumsum(once)])
        self.sums = CubicSpline(np.arange(len(twice)) * sampling, twice * sampling)

    def products(self, y: Array, widths: Array, begins: Array) -> Products:
        """Return the sums of products of derivatives that are constant in cells.

        Arguments:
            y: (n_free, n_cells, n_members) derivatives, 0 where samples do not count.
            widths: (n_cells,) ms; begins: (n_sweeps,) the first cells of sweeps.
        """
        return Products(self.sums, y, widths, begins)


class Products:
    """Sums over pairs of samples, with the way back.

    Attributes:
        total: (n_members, n_free, n_free) ms, the sum times the sampling interval.
    """

    def __init__(self, sums: CubicSpline, y: Array, widths: Array, begins: Array) -> None:
        self.sums, self.shape, ends = sums, y.shape, [*begins, len(widths)]
        self.sweeps = list[tuple[slice, Array, Array, Array]]()
        self.total = np.zeros((y.shape[2], y.shape[0], y.shape[0]))
        for part in (slice(*pair) for pair in pairwise(ends)):
            edges = np.concatenate([[0.0], np.cumsum(widths[part])])
            jumps = np.diff(y[:, part], axis=1, prepend=0.0, append=0.0)
            seen = -np.tensordot(sums(np.abs(edges[:, None] - edges)), jumps, (1, 1))
            self.sweeps.append((part, edges, jumps, seen))
            self.total += np.einsum("iem,ejm->mij", jumps, seen, optimize=True)

    def backward(self, slope: Array) -> tuple[Array, Array]:
        """Return derivatives by the derivatives in cells and by the widths of cells.

        Arguments:
            slope: by `total`, symmetric.
        """
        by_y, by_widths = np.zeros(self.shape), np.zeros(self.shape[1])
        for part, edges, jumps, seen in self.sweeps:
            by_y[:, part] = -2 * np.diff(np.einsum("mij,ejm->iem", slope, seen), axis=1)
            lags = edges[:, None] - edges
            moved = np.tensordot(np.sign(lags) * self.sums(np.abs(lags), 1), jumps, (1, 1))
            by_edge = -2 * np.einsum("mij,iem,ejm->e", slope, jumps, moved, optimize=True)
            by_widths[part] = np.cumsum(by_edge[:0:-1])[::-1]
        return by_y, by_widths


def sums_of_samples(lags: Array, y: Array) -> Array:
    """Return the sums (n_free, n_free) over pairs of samples, one by one.

    Arguments:
        lags: (n_times,) the autocorrelation; y: (n_sweeps, n_times, n_free).
    """
    found: Array = np.sum([sweep.T @ matmul_toeplitz(lags, sweep) for sweep in y], axis=0)
    return found
