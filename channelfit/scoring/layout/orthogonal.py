"""Orthonormal bases with the same bits on every computer.

The last digits of LAPACK's results depend on the kind of processor, on its number of cores and on
the environment. If costs were made of them, the course of a search would depend on these, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from channelfit.scoring.machine.arrays import product


def orthonormal(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Q (n, m) with orthonormal columns and R (m, m), upper triangular: columns = Q R.

    Gram and Schmidt, twice, so that Q is orthonormal to the last digits.
    """
    n, m = columns.shape
    q, r = np.zeros((m, n)), np.zeros((m, m))
    for k in range(m):
        left = columns[:, k].astype(float)
        for _ in range(2):
            along = product(q[:k], left[:, None])[:, 0]
            left -= product(along[None], q[:k])[0]
            r[:k, k] += along
        r[k, k] = np.sqrt((left**2).sum())
        q[k] = left / r[k, k]
    return q.T.copy(), r


def spanned(columns: np.ndarray, tolerance: float) -> np.ndarray:
    """Return (n, rank): an orthonormal basis of columns, but for parts below the tolerance.

    The column that is left most of comes next.
    """
    left = columns.copy()
    norms = (left**2).sum(axis=0)
    least = tolerance**2 * norms.max()
    found: list[np.ndarray] = []
    while len(found) < min(left.shape) and norms.max() > least:
        one = left[:, int(np.argmax(norms))]
        for other in found:  # again: earlier subtractions had rounding errors
            one = one - other * (other * one).sum()
        one = one / np.sqrt((one**2).sum())
        found.append(one)
        left -= one[:, None] * product(one[None], left)
        norms = (left**2).sum(axis=0)
    return np.stack(found, axis=1)


def directions(blocks: Sequence[np.ndarray], least: float) -> np.ndarray:
    """Return orthonormal directions (n, size) that hold all columns up to remainders of a length.

    Arguments:
        blocks: (size, n_columns) each; the directions of earlier ones come first.
        least: the length of a remainder that is a new direction.
    """
    found = np.empty((0, len(blocks[0])))
    for columns in blocks:
        left = columns - product(found.T, product(found, columns))
        norms = (left**2).sum(axis=0)
        while norms.max() > least**2 and len(found) < len(columns):
            one = left[:, int(np.argmax(norms))]
            for _ in range(2):  # again: earlier subtractions had rounding errors
                one = one - product(product(found, one[:, None])[:, 0][None], found)[0]
            one = one / np.sqrt((one**2).sum())
            found = np.concatenate([found, one[None]])
            left -= one[:, None] * product(one[None], left)
            norms = (left**2).sum(axis=0)
    return found


def solved(columns: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the least-squares solution (m, k) of columns (n, m) for the right side (n, k)."""
    q, r = orthonormal(columns)
    found = product(q.T, right)
    for k in reversed(range(len(r))):
        found[k] = (found[k] - product(r[None, k, k + 1 :], found[k + 1 :])[0]) / r[k, k]
    return found
