"""Steady states and propagators of the reference backend: NumPy in float64, checked by eye.

Rates are arrays (..., n, n) of which element [j, i] is the rate from state i to state j, 1/ms, or
that rate times a duration. No code is shared with the generated kernels.
"""

from __future__ import annotations

import math

import numpy as np

#: Numbers in matrices that are exponentiated together: they stay in a processor's cache.
_AT_ONCE = 16_384
#: Rate of leaving times duration, from which on only the ratios of rates are kept.
_FASTEST = 2.0**40


def steady_state(rates: np.ndarray) -> np.ndarray:
    """Solve A p = 0 with sum p = 1 for rates (..., n, n), [j, i] the rate i -> j: (..., n).

    States are eliminated one by one, the last first (Grassmann, Taksar and Heyman 1985). Nothing is
    subtracted, so every occupancy keeps its relative accuracy however stiff the rates are.
    """
    flow = np.array(rates)
    n = flow.shape[-1]
    if n == 2:  # the formula that a gate obeys where its inf exceeds 1
        up, down = flow[..., 1, 0], flow[..., 0, 1]
        return np.asarray(np.stack([down, up], axis=-1) / (up + down)[..., None])
    for k in range(n - 1, 0, -1):
        flow[..., k, :k] /= flow[..., :k, k].sum(axis=-1, keepdims=True)
        flow[..., :k, :k] += flow[..., :k, k, None] * flow[..., k, None, :k]
    p = np.ones(flow.shape[:-1])
    for k in range(1, n):
        p[..., k] = (flow[..., k, :k] * p[..., :k]).sum(axis=-1)
        p[..., : k + 1] /= p[..., : k + 1].sum(axis=-1, keepdims=True)
    return p


def held_propagator(rates: np.ndarray, h: float) -> np.ndarray:
    """Return exp(A h) of rates (..., n, n), 1/ms; of two states by the formula for a relaxation."""
    if rates.shape[-1] != 2:
        return propagator(rates * h)
    up, down = rates[..., 1, 0], rates[..., 0, 1]
    gone = -np.expm1(-(up + down) * h) / (up + down)
    rows = [[1 - up * gone, down * gone], [up * gone, 1 - down * gone]]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def propagator(rates_h: np.ndarray) -> np.ndarray:
    """Return exp(A h) for rates times duration (..., n, n), from i to j in [j, i].

    With a the largest rate of leaving, A h = B - a I where B >= 0 (uniformization), so the series
    of exp(B) exp(-a) adds positive terms only. It is summed for A h / 2^k, then squared k times;
    each time the diagonal is what the column still lacks to one. Small elements thereby keep their
    relative accuracy, which general-purpose matrix exponentials do not promise for stiff A.
    """
    shape, n = rates_h.shape, rates_h.shape[-1]
    b = _slowed(rates_h.reshape(-1, n, n) * (1 - np.eye(n)))
    leaving = b.sum(axis=1)
    fastest = leaving.max(axis=1)
    levels = np.maximum(0, np.ceil(np.log2(np.maximum(fastest, 1e-300))) + 1).astype(int)
    b[:, np.arange(n), np.arange(n)] = fastest[:, None] - leaving
    # Matrices of like levels together, a few at a time and their index last: what NumPy is fast at.
    order = np.argsort(levels, kind="stable")
    out = np.empty_like(b)
    at_once = max(1, _AT_ONCE // n**2)
    for first in range(0, len(b), at_once):
        some = order[first : first + at_once]
        matrices = np.ascontiguousarray(np.moveaxis(b[some], 0, -1))
        p = _exponential(matrices, fastest[some], levels[some])
        out[some] = np.moveaxis(p, -1, 0)
    return out.reshape(shape)


def _exponential(b: np.ndarray, fastest: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return exp(B - a I) of matrices (n, n, m); a (m,) and the levels k (m,) ascend."""
    scale = np.exp2(-levels)
    b, one = b * scale, np.eye(len(b))[..., None]
    square = _product(b, b)
    powers = [one, b, square, _product(square, b)]
    fourth = _product(square, square)
    p = np.zeros_like(b)
    for first in (12, 8, 4, 0):  # b^k/k! for k up to 15, four at a time
        terms = (power / math.factorial(first + k) for k, power in enumerate(powers))
        p = sum(terms, _product(fourth, p) if first < 12 else p)
    p = _closed(p * np.exp(-fastest * scale))
    for level in range(levels[-1]):
        todo = p[..., np.searchsorted(levels, level, side="right") :]
        todo[...] = _closed(_product(todo, todo))
    return p


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a b of matrices (n, n, m)."""
    return np.asarray(np.einsum("ikm,kjm->ijm", a, b))


def _slowed(rates_h: np.ndarray) -> np.ndarray:
    """Return rates times duration (m, n, n), diagonal zero, of which no state is left too fast.

    Where one is, A h becomes N ((1 - A h/N)^-1 - 1), a generator with the same steady state, whose
    eigenvalues -l are -l/(1 + l/N): with N = _FASTEST a trace errs by 5e-13 of its size at most.
    Column j of the inverse tells where a channel from j is after an exponential time of mean 1/N,
    found by passing what enters a state on at once to where that state leads: no
    subtraction.
    """
    fast = np.flatnonzero(rates_h.sum(axis=1).max(axis=1, initial=0.0) > _FASTEST)
    if not fast.size:
        return rates_h
    n = rates_h.shape[-1]
    # rows: the states, and then where the exponential time ended
    leads = np.concatenate(
        [rates_h[fast] / _FASTEST, np.tile(np.eye(n), (len(fast), 1, 1))], axis=1
    )
    for k in range(n):
        way = leads[:, :, k].copy()
        way[:, k] = 0.0
        way /= way.sum(axis=1, keepdims=True)
        leads += way[:, :, None] * leads[:, k, None, :]
        leads[:, k, :] = 0.0
        leads[:, :, k] = way
        leads[:, np.arange(n), np.arange(n)] = 0.0
    slowed = rates_h.copy()
    slowed[fast] = _FASTEST * leads[:, n:, :] * (1 - np.eye(n))
    return slowed


def _closed(p: np.ndarray) -> np.ndarray:
    """Set the diagonal so that columns, probabilities of where a state goes, sum to one."""
    diagonal = np.arange(len(p))
    p[diagonal, diagonal] = 0.0
    p[diagonal, diagonal] = np.maximum(0.0, 1.0 - p.sum(axis=0))
    return p
