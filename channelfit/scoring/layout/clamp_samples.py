"""The samples of a clamp's recordings, as few rows as the polynomials of its steps ask for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from channelfit.scoring.layout.clamp_grid import AT_ONCE, BEGIN, LEAP, LENGTH, ClampGrid
from channelfit.scoring.layout.low_pass import N_POLY
from channelfit.scoring.layout.orthogonal import orthonormal
from channelfit.scoring.machine.arrays import product


class SampleRows(NamedTuple):
    """What samples ask of the polynomials of the current, in as few rows as do.

    The squares of a candidate's residuals are (rows[:, :-1] p - rows[:, -1])^2, p the polynomial of
    the step, and the constant. A step of more samples than coefficients has a row for each
    coefficient, by Gram and Schmidt.

    Attributes:
        rows: (n_rows, N_POLY + 1), times the roots of weights.
        ends: (n_steps,) int64, the row behind those of a step.
        heads: (n_sweeps, 2) int64, the first row of a sweep, and the one behind those before its
            first step.
        constant: pA^2 times weights.
    """

    rows: np.ndarray
    ends: np.ndarray
    heads: np.ndarray
    constant: float


def sample_rows(made: ClampGrid, late: float) -> SampleRows:
    """Return the rows of the samples of a mesh that are recorded so late, ms."""
    rows, constant, n_rows = [np.empty((0, N_POLY + 1))], 0.0, 0
    ends, heads = np.zeros(len(made.steps), np.int64), np.zeros((len(made.sweeps), 2), np.int64)
    for k, (_, first, n_steps, i, n_samples) in enumerate(made.sweeps):
        stop = i + n_samples
        times = made.times[i:stop] - late
        own = made.steps[first : first + n_steps]
        leaps = made.kinds[first : first + n_steps] == LEAP
        edges = own[:, BEGIN] + np.where(leaps, 0.0, own[:, LENGTH])
        edges = np.append(own[:1, BEGIN] if n_steps else np.inf, edges)
        last = np.searchsorted(times, edges + AT_ONCE, side="right")
        last[-1] = n_samples
        before = 0
        for n, upto in enumerate(last):
            some = slice(i + before, i + max(upto, before))
            x = np.zeros(some.stop - some.start)
            if n and len(x):
                x = (times[before:upto] - own[n - 1, BEGIN]) / own[n - 1, LENGTH]
            block, left = _compressed(np.clip(x, 0.0, 1.0), made.data[some], made.weight[some])
            if n == 0:
                heads[k] = n_rows, n_rows + len(block)
            else:
                ends[first + n - 1] = n_rows + len(block)
            rows.append(block)
            n_rows, constant, before = n_rows + len(block), constant + left, max(upto, before)
    return SampleRows(np.concatenate(rows), ends, heads, constant)


def _compressed(x: np.ndarray, data: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the rows of samples at parts x of a step, and what no polynomial explains."""
    root = np.sqrt(weight)
    rows = root[:, None] * np.column_stack([x[:, None] ** np.arange(N_POLY), data])
    if len(np.unique(x)) <= N_POLY:
        return rows, 0.0
    q, r = orthonormal(rows[:, :N_POLY])
    met = product(q.T, rows[:, N_POLY:])
    left = rows[:, N_POLY:] - product(q, met)
    return np.hstack([r, met]), float((left**2).sum())
