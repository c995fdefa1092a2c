"""Crank-Nicolson's steps of one cable, with Newton's systems written down row by row and solved.

The argument q of all functions has the coefficients of `crank_nicolson.StepCoefficients.rows`, each
number sixteen times.
"""

from __future__ import annotations

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.fitzhugh_nagumo.tridiagonal import solve
from channelfit.scoring.machine.machine_code import kernel

MOST_ITERATIONS = 30


@kernel
def advance_alone(
    v: Array,
    w: Array,
    drive: Array,
    q: Array,
    kinds: Array,
    n_steps: int,
    tolerance: float,
    reduction: bool,
) -> int:
    """Advance a cable in place.

    Returns: how many iterations Newton's method took, or -1 if it did not converge.
    """
    n, taken = len(v), 0
    guess, u, system, scratch = np.empty(n), np.empty(n), np.empty((6, n)), np.empty(8 * n)
    guess[:] = v
    for _ in range(n_steps):
        left = 1.0
        for _ in range(MOST_ITERATIONS):
            taken += 1
            left = iterate(v, w, guess, drive, q, kinds, reduction, system, scratch, u)
            guess, u = u, guess
            if left <= tolerance:
                break
        if not left <= tolerance:
            return -1
        for i in range(n):
            new = guess[i]
            w[i] = q[48] * w[i] + q[64] * (v[i] + new)
            guess[i] = 2 * new - v[i]
            v[i] = new
    return taken


@kernel
def iterate(
    v: Array,
    w: Array,
    u: Array,
    drive: Array,
    q: Array,
    kinds: Array,
    reduction: bool,
    system: Array,
    scratch: Array,
    out: Array,
) -> float:
    """Make one iteration of Newton's method from u to out, (n,) each.

    Arguments:
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held, 2 for periodic.
        system, scratch: (6, n) and (8 n,) memory to work in.

    Returns: a bound of the error that is left.
    """
    n, total = len(v), 0.0
    _assemble(v, w, u, drive, q, kinds, system)
    if kinds[0] == 2:
        _solve_ring(reduction, system, scratch, out)
    else:
        solve(reduction, system, system[3], scratch, out)
    for i in range(n):
        change = out[i] - u[i]
        total += change * change
    return float(q[80] * total)


def _assemble(
    v: Array, w: Array, u: Array, drive: Array, q: Array, kinds: Array, system: Array
) -> None:
    """Write Newton's system of one cable row by row, with its corners if the cable is a ring.

    Arguments:
        system: its first rows take lower, diagonal, upper and the right side.
    """
    n, lower, diagonal, upper, right = len(v), system[0], system[1], system[2], system[3]
    a, r, h, kw, kv = q[0], q[16], q[32], q[48], q[64]
    for i in range(n):
        before = v[i - 1] if i > 0 else v[n - 1 if kinds[0] == 2 else 1]
        after = v[i + 1] if i < n - 1 else v[0 if kinds[0] == 2 else n - 2]
        x, known = u[i], v[i] + r * (before + after - 2 * v[i])
        known += h * (v[i] * (v[i] * (1 + a - v[i]) - a)) - h * (w[i] + kw * w[i] + kv * v[i])
        if len(drive):
            known += 2 * h * drive[i]
        lower[i] = upper[i] = -r
        diagonal[i] = 1 + 2 * r + h * kv - h * (x * (2 * (1 + a) - 3 * x) - a)
        right[i] = known + h * x * x * (2 * x - 1 - a)
    for k in range(2):
        i = 0 if k == 0 else n - 1
        if kinds[k] == 0:
            lower[i], upper[i] = (0.0, -2 * r) if k == 0 else (-2 * r, 0.0)
        elif kinds[k] == 1:
            lower[i], diagonal[i], upper[i], right[i] = 0.0, 1.0, 0.0, v[i]


def _solve_ring(reduction: bool, system: Array, scratch: Array, x: Array) -> None:
    """Solve a cyclic system by the Sherman-Morrison formula, from two systems without corners.

    Arguments:
        system: (6, n) lower, diagonal, upper, the right side, and two rows to work in.
    """
    n, lower, diagonal, upper, column, z = (
        len(x),
        system[0],
        system[1],
        system[2],
        system[4],
        system[5],
    )
    corner, opposite, pivot = lower[0], upper[n - 1], -diagonal[0]
    diagonal[0] -= pivot
    diagonal[n - 1] -= corner * opposite / pivot
    column[:] = 0.0
    column[0], column[n - 1] = pivot, opposite
    solve(reduction, system, system[3], scratch, x)
    solve(reduction, system, column, scratch, z)
    ratio = corner / pivot
    share = (x[0] + ratio * x[n - 1]) / (1 + z[0] + ratio * z[n - 1])
    for i in range(n):
        x[i] -= share * z[i]
