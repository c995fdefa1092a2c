"""A well of `plate.py` as one models it without channelfit, for SciPy: compiled by Numba.

Five states under the staircase: each held voltage by the exponential of its matrix, ramps in
steps of 1 ms by an implicit method of order two. Recording and current are averaged over 2 ms,
which the exponentials do exactly, so that a current takes some 8,000 steps instead of 77,000.
Derivatives by the rates are differences; those by conductances and the leak's reversal potential
are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from channelfit.problem.experiment import Problem

#: Samples of a mean, and of a step on a ramp; the step of differences; the reversal potential, mV.
MEAN, RAMP, STEP, E_K = 10, 5, 1e-6, -99.5
#: Of the implicit method, which damps fast states.
GAMMA = 1 - 0.5**0.5


@njit(cache=True)
def rates_at(p: np.ndarray, v: float) -> tuple[np.ndarray, np.ndarray]:
    """Rates (4,) to the next of C1, C2, C3, O, I and back, 1/ms; p: a0 .. zbi."""
    up = np.array(
        [p[0] * np.exp(p[1] * v), p[4], p[6] * np.exp(p[7] * v), p[10] * np.exp(p[11] * v)]
    )
    down = np.array(
        [p[2] * np.exp(-p[3] * v), p[5], p[8] * np.exp(-p[9] * v), p[12] * np.exp(-p[13] * v)]
    )
    return up, down


@njit(cache=True)
def exponential(up: np.ndarray, down: np.ndarray, h: float) -> np.ndarray:
    """Propagator (5, 5) of h ms: a series, squared."""
    a = np.zeros((5, 5))
    for i in range(4):
        a[i + 1, i] += h * up[i]
        a[i, i] -= h * up[i]
        a[i, i + 1] += h * down[i]
        a[i + 1, i + 1] -= h * down[i]
    halvings = max(0, int(np.ceil(np.log2(2 * np.abs(a).max() + 1e-9))) + 2)
    a /= 2.0**halvings
    p = np.eye(5)
    for degree in range(10, 0, -1):
        p = np.eye(5) + a @ p / degree
    for _ in range(halvings):
        p = p @ p
    return p


@njit(cache=True)
def implicit(up: np.ndarray, down: np.ndarray, h: float, b: np.ndarray) -> None:
    """Solve (1 - h A) x = b of neighbors among states in place."""
    diagonal = np.empty(5)
    diagonal[0] = 1 + h * up[0]
    for i in range(1, 5):
        f = -h * up[i - 1] / diagonal[i - 1]
        diagonal[i] = 1 + h * ((up[i] if i < 4 else 0.0) + down[i - 1]) + f * h * down[i - 1]
        b[i] -= f * b[i - 1]
    b[4] /= diagonal[4]
    for i in range(3, -1, -1):
        b[i] = (b[i] + h * down[i] * b[i + 1]) / diagonal[i]


@njit(cache=True)
def opened(
    p: np.ndarray, v: np.ndarray, levels: np.ndarray, held: np.ndarray, h: float
) -> np.ndarray:
    """Mean open probability of each block; held (n_blocks,): at which level, -1 on a ramp."""
    powers, means = np.empty((len(levels), 5, 5)), np.zeros((len(levels), 5))
    for k in range(len(levels)):
        one, power = exponential(*rates_at(p, levels[k]), h), np.eye(5)
        for _ in range(MEAN):
            means[k] += power[3] / MEAN
            power = one @ power
        powers[k] = power
    up, down = rates_at(p, v[0])
    x = np.cumprod(np.append(1.0, up / down))
    x /= x.sum()
    out, fresh = np.zeros(len(held)), np.empty(5)
    for b in range(len(held)):
        k = held[b]
        if k >= 0:
            for i in range(5):
                out[b] += means[k, i] * x[i]
                total = 0.0
                for j in range(5):
                    total += powers[k, i, j] * x[j]
                fresh[i] = total
            x[:] = fresh
            continue
        for first in range(b * MEAN, b * MEAN + MEAN, RAMP):
            last, before = min(first + RAMP, len(v) - 1), x[3]
            up, down = rates_at(p, 0.5 * (v[first] + v[last]))
            fresh[:] = x
            implicit(up, down, GAMMA * RAMP * h, fresh)  # the first stage, then the second
            for i in range(5):
                x[i] += (1 - GAMMA) / GAMMA * (fresh[i] - x[i])
            implicit(up, down, GAMMA * RAMP * h, x)
            # samples lie at the begin of a step, and between
            out[b] += (before + 0.5 * (RAMP - 1) / RAMP * (x[3] - before)) * RAMP / MEAN
    return out


class Model:
    """The current of a well, averaged, and its derivatives by all 17 parameters."""

    def __init__(self, problem: Problem, to_physical: Callable[[Any], Any]) -> None:
        (experiment,) = problem.experiments
        protocol, self.to_physical = experiment.protocol, to_physical
        self.h, self.v = protocol.sampling_ms, np.ravel(protocol.command())
        blocks = self.v.reshape(-1, MEAN)
        self.levels, of_block = np.unique(blocks[:, 0], return_inverse=True)
        self.held = np.where(np.ptp(blocks, axis=1) == 0, of_block, -1)
        self.mean_v = blocks.mean(axis=1)
        used = np.unique(self.held[self.held >= 0])
        self.levels, self.held = (
            self.levels[used],
            np.where(self.held < 0, -1, np.searchsorted(used, self.held)),
        )
        assert experiment.recording is not None
        samples = experiment.recording.current_pA.reshape(-1, MEAN)
        self.data = samples.mean(axis=1)
        self.constant = float(((samples - self.data[:, None]) ** 2).sum())  # within means

    def open_probability(self, p: np.ndarray) -> np.ndarray:
        """Mean open probability (n_blocks,) of rates p (14,)."""
        return np.asarray(opened(p, self.v, self.levels, self.held, self.h))

    def both(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals (n_blocks,) and their derivatives (n_blocks, 17) by unit coordinates."""
        here = self.to_physical(unit[:, None])[:, 0]
        drive, (g, leak, reversal) = self.mean_v - E_K, here[14:]
        o = self.open_probability(here[:14])
        jacobian = np.empty((len(o), 17))
        steps = np.where(unit > 0.5, -STEP, STEP)
        there = self.to_physical(unit[:, None] + np.diag(steps))
        for k in range(14):
            moved = self.open_probability(np.ascontiguousarray(there[:14, k]))
            jacobian[:, k] = g * drive * (moved - o) / steps[k]
        slope = (np.diag(there)[14:] - here[14:]) / steps[14:]
        jacobian[:, 14], jacobian[:, 15] = drive * o, self.mean_v - reversal
        jacobian[:, 16] = -leak
        jacobian[:, 14:] *= slope
        return g * drive * o + leak * (self.mean_v - reversal) - self.data, jacobian
