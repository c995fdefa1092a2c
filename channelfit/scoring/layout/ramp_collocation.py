"""Ramps in a few pieces: occupancies as polynomials in time, exact at Radau's points.

Where the voltage is smooth (ramps, sines), occupancies solve x' = A(t) x with A as smooth as the
rates. On a piece [a, b) of the ramp they are a polynomial of degree 12 that fulfils the equation
at the zeros of P_12 - P_11 (Radau IIA: stiff modes are damped, order 23 at the end of a piece;
Hairer and Wanner 1996, IV.5). A transient at the start of a ramp is gone after a few times its own
time constant, so pieces may grow as the time since the start does, until the voltage bounds them.
Samples lie on the polynomial, hence squares against a recording follow from its points, as in
`held_compression`:

    sum (y - d)^2  =  |R c - Q^T d|^2 + |d - Q Q^T d|^2,    y = Q R c,  c the points of a piece.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre

from channelfit.scoring.layout.orthogonal import solved
from channelfit.scoring.machine.arrays import product

#: Points a piece, its start not counted.
DEGREE = 12
#: Of coarse and of fine pieces: the first, ms; by what factor they grow; mV that one may span.
#: Fast relaxations and steep rates, which they cannot follow, appear in the polynomial's tail.
GRADES = ((0.01, 1.8, 6.0), (1e-4, 1.5, 2.0))
#: The largest part of an occupancy in the last two Chebyshev polynomials of a piece. Errors stay
#: an order of magnitude below; a candidate with more takes finer pieces, or every sample.
TAIL = 4e-9
#: Steps that must fall on a piece for pieces to cost less. A step of more than so many ms counts as
#: several: rates of 1/ms and more take it in quarters, and need exponentials of large matrices.
STEPS_A_PIECE, LONG_STEP = 3, 0.5
#: mV by which the voltage may differ from a polynomial over a piece.
STRAIGHT_MV = 1e-9
#: mV that the largest concentration of a run counts for.
LARGEST_MV = 100.0


def pieces(
    h: float, v: np.ndarray, parts: np.ndarray, grade: int = 0
) -> tuple[np.ndarray, np.ndarray] | None:
    """Cut a run of varying voltage into pieces.

    Arguments:
        h: ms between steps; v: (n_steps, n_parts) mV, at these parts of every step, or with ligands
            (n_steps, n_parts, 1 + n_ligands) mV and mM.
        grade: a row of GRADES.

    Returns:
        edges (n + 1,), ms, and the same (n, DEGREE + 1), mV, at the points of each piece. None
        where the voltage is no polynomial in time over pieces of some steps, or where stepping
        costs less.
    """
    first, growth, most = GRADES[grade]
    n, order = len(v), np.argsort(parts)
    scale: np.ndarray | float = 1.0
    if v.ndim > 2:  # a concentration counts by its share of the largest
        scale = np.append(1.0, np.abs(v[..., 1:]).max(axis=(0, 1)) / LARGEST_MV)
        scale[scale == 0] = 1.0
        v = v / scale
    moved = np.abs(np.diff(v[:, order], axis=1)).reshape(n, len(parts) - 1, -1).sum(axis=(1, 2))
    travel = np.append(0.0, np.cumsum(moved))
    edges, voltages = [0.0], []
    while edges[-1] < n * h * (1 - 1e-12):
        begin = edges[-1]
        gone = np.interp(begin / h, np.arange(n + 1), travel)
        far = h * np.searchsorted(travel, gone + most * (1 + 1e-9), side="right") - h
        end = min(max(growth * begin, first), max(far, begin + h), n * h)
        on_points = None
        while on_points is None:
            on_points = _on_points(h, v, parts, begin, end)
            if on_points is None:
                if end - begin < 2 * h:
                    return None
                end = begin + (end - begin) / 2
        edges.append(end)
        voltages.append(on_points)
        if STEPS_A_PIECE * len(voltages) > n * max(1.0, h / LONG_STEP):
            return None
    return np.array(edges), np.array(voltages) * scale


def _on_points(
    h: float, v: np.ndarray, parts: np.ndarray, begin: float, end: float
) -> np.ndarray | None:
    """Return the voltage at the points of a piece, by a polynomial through the steps it touches."""
    tiny = 1e-9
    first, last = math.floor(begin / h + tiny), min(math.ceil(end / h - tiny), len(v))
    every = max(1, (last - first) // 16)
    steps = np.unique(np.append(np.arange(first, last, every), last - 1))
    t = (steps[:, None] + parts).ravel()
    x = (2 * t - (first + last)) / (last - first)
    basis = np.polynomial.chebyshev.chebvander(x, min(DEGREE, len(parts) - 1) - 2)
    known = v[steps].reshape(len(t), -1)
    c = solved(basis, known)
    if not np.abs(product(basis, c) - known).max() <= STRAIGHT_MV:
        return None
    x = (2 * (begin + (end - begin) * points()) / h - (first + last)) / (last - first)
    values = np.asarray(np.polynomial.chebyshev.chebval(x, c)).T
    if v.ndim == 2:
        return values[:, 0]
    values[:, 1:] = np.maximum(values[:, 1:], 0.0)  # a polynomial may be 1e-9 below
    return values


@lru_cache(maxsize=1)
def points() -> np.ndarray:
    """Return (DEGREE + 1,) parts of a piece: its start, and Radau's points, the last its end."""
    series = np.zeros(DEGREE + 1)
    series[DEGREE - 1 :] = -1.0, 1.0
    # a digit that depends on the computer is cut off; points may lie anywhere near
    inner = np.sort(legendre.legroots(series).real)[:-1].round(13)
    return np.concatenate(([0.0], (inner + 1.0) / 2.0, [1.0]))


@lru_cache(maxsize=1)
def slopes() -> np.ndarray:
    """Return (DEGREE, DEGREE + 1): the slope at Radau's points by the values at all points."""
    x, w = points(), _weights()
    d = w / w[:, None] / (x[:, None] - x + np.eye(len(x)))
    np.fill_diagonal(d, 0.0)
    np.fill_diagonal(d, -d.sum(axis=1))
    return np.ascontiguousarray(d[1:])


@lru_cache(maxsize=1)
def tails() -> np.ndarray:
    """Return (2, DEGREE + 1): the last two Chebyshev coefficients by the values at all points."""
    matrix = np.polynomial.chebyshev.chebvander(2.0 * points() - 1.0, DEGREE)
    return np.ascontiguousarray(solved(matrix, np.eye(len(matrix)))[-2:])


def between(parts: np.ndarray) -> np.ndarray:
    """Return (n, DEGREE + 1): values at n parts of a piece by those at its points (barycentric)."""
    away = np.asarray(parts)[:, None] - points()
    met = np.abs(away) < 1e-14
    share = _weights() / np.where(met, 1.0, away)
    share[met.any(axis=1)] = 0.0
    share[met] = 1.0
    return np.asarray(share / share.sum(axis=1, keepdims=True))


def _weights() -> np.ndarray:
    x = points()
    return np.array([1.0 / np.prod(x[i] - np.delete(x, i)) for i in range(len(x))])
