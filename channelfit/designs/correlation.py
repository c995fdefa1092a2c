"""Noise with correlated samples: the covariance of the gradient of least squares.

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

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.linalg import matmul_toeplitz

Array = np.ndarray


def summed_twice(lags: Array, sampling: float) -> CubicSpline:
    """Return the sum of an autocorrelation (n,) over the lag, taken twice, a function of ms."""
    twice = np.cumsum(np.append(0.0, np.cumsum(lags) - lags[0] / 2))
    return CubicSpline(np.arange(len(twice)) * sampling, twice * sampling)


def products(
    sums: CubicSpline, y: Array, widths: Array, begins: Array
) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    """Return sums of products over pairs of cells, and the way back.

    Arguments:
        sums: from `summed_twice`.
        y: (n_free, n_cells, n_members) derivatives in cells, 0 where samples do not count.
        widths: (n_cells,) ms; begins: (n_sweeps,) the first cells of sweeps.

    Returns: (n_members, n_free, n_free) ms, the sums times the sampling interval; and what returns
        derivatives by y and by widths, from symmetric ones by these sums.
    """
    sweeps, total = list[tuple[slice, Array, Array, Array]](), 0.0
    for part in (slice(*pair) for pair in pairwise([*begins, len(widths)])):
        edges = np.cumsum(np.append(0.0, widths[part]))
        lags, jumps = edges[:, None] - edges, np.diff(y[:, part], axis=1, prepend=0.0, append=0.0)
        seen = -np.tensordot(sums(np.abs(lags)), jumps, (1, 1))
        sweeps.append((part, lags, jumps, seen))
        total = total + np.einsum("iem,ejm->mij", jumps, seen, optimize=True)

    def backward(slope: Array) -> tuple[Array, Array]:
        by_y, by_widths = np.zeros(y.shape), np.zeros(len(widths))
        for part, lags, jumps, seen in sweeps:
            by_y[:, part] = -2 * np.diff(np.einsum("mij,ejm->iem", slope, seen), axis=1)
            moved = np.tensordot(np.sign(lags) * sums(np.abs(lags), 1), jumps, (1, 1))
            by_edge = -2 * np.einsum("mij,iem,ejm->e", slope, jumps, moved, optimize=True)
            by_widths[part] = np.cumsum(by_edge[:0:-1])[::-1]
        return by_y, by_widths

    return np.asarray(total), backward


def sums_of_samples(lags: Array, y: Array) -> Array:
    """Return the sums (n_free, n_free) over pairs of samples, one by one.

    Arguments:
        lags: (n_times,) the autocorrelation; y: (n_sweeps, n_times, n_free).
    """
    found: Array = np.sum([sweep.T @ matmul_toeplitz(lags, sweep) for sweep in y], axis=0)
    return found
