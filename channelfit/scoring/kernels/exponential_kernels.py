# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Least squares of a constant and one or two exponentials, one current after the other.

`observables` has the same as arithmetic of arrays, for GPUs. The constant and the amplitudes follow
from the time constants (variable projection); logarithms q of these, in samples, take damped
Gauss-Newton steps.
"""

from __future__ import annotations

import numpy as np

from channelfit.scoring.machine.kernel_math import exp
from channelfit.scoring.machine.machine_code import plain_kernel

#: Damped steps at most, and Newton's after them; a step that is close enough, and the damping from
#: which a current is given up; what is added to the diagonal of a normal matrix, for each sample.
IMPROVED, NEWTON, CLOSE, HOPELESS, RIDGE = 15, 4, 1e-7, 1e6, 1e-15
TINY, FAR = 1e-300, 1e300


def factored(a, n):
    """Replace a symmetric matrix a (n, n) by its factors L D L^T: D on the diagonal, L below it."""
    for j in range(n):
        for i in range(j):
            a[j, j] -= a[j, i] * a[j, i] * a[i, i]
        if a[j, j] == 0.0:
            a[j, j] = TINY
        for k in range(j + 1, n):
            for i in range(j):
                a[k, j] -= a[k, i] * a[j, i] * a[i, i]
            a[k, j] /= a[j, j]


def solve(a, n, x):
    """Replace x (n,) by the solution of a system with such factors."""
    for j in range(n):
        for i in range(j):
            x[j] -= a[j, i] * x[i]
    for j in range(n):
        x[j] /= a[j, j]
    for k in range(n):
        j = n - 1 - k
        for i in range(j + 1, n):
            x[j] -= a[i, j] * x[i]


def fitted(y, q, e, a, linear, residual):
    """Fit a constant and amplitudes `linear` to a current; return the sum of squares.

    e (1 + n_exponentials, n): 1 and the exponentials; a: the factors of their normal matrix.
    """
    n, n_linear = y.shape[0], e.shape[0]
    for i in range(n_linear):
        ratio, value = 1.0, 1.0
        if i > 0:
            ratio = exp(-exp(-q[i - 1]))
        for t in range(n):
            e[i, t] = value
            value *= ratio
    for i in range(n_linear):
        for j in range(i + 1):
            total = 0.0
            for t in range(n):
                total += e[i, t] * e[j, t]
            a[i, j] = total
        a[i, i] += RIDGE * n
        linear[i] = 0.0
        for t in range(n):
            linear[i] += e[i, t] * y[t]
    factored(a, n_linear)
    solve(a, n_linear, linear)
    squares = 0.0
    for t in range(n):
        apart = -y[t]
        for i in range(n_linear):
            apart += linear[i] * e[i, t]
        residual[t] = apart
        squares += apart * apart
    return squares


def stepOf(q, e, a, linear, residual, damping, whole, by, cross, bend, step):
    """Store a step of q, damped by a share of the diagonal.

    With `whole` the second derivatives of the model count, else those of Gauss and Newton alone. by
    (n_exponentials, n), cross (n_exponentials, 1 + n_exponentials), bend: scratch.
    """
    n, n_linear = residual.shape[0], e.shape[0]
    for j in range(n_linear - 1):
        rate, amplitude, slope, curved, mixed = exp(-q[j]), linear[1 + j], 0.0, 0.0, 0.0
        for t in range(n):
            part = rate * t
            once = e[1 + j, t] * part
            by[j, t] = amplitude * once
            slope += by[j, t] * residual[t]
            mixed += once * residual[t]
            curved += by[j, t] * (part - 1.0) * residual[t]
        step[j] = -slope
        for i in range(n_linear):
            total = 0.0
            for t in range(n):
                total += e[i, t] * by[j, t]
            cross[j, i] = total
        for i in range(j + 1):
            total = 0.0
            for t in range(n):
                total += by[i, t] * by[j, t]
            bend[j, i] = total
        if whole:
            cross[j, 1 + j] += mixed
            bend[j, j] += curved
    for j in range(n_linear - 1):
        # what the constant and the amplitudes take up
        for i in range(n_linear):
            linear[i] = cross[j, i]
        solve(a, n_linear, linear)
        for k in range(j, n_linear - 1):
            for i in range(n_linear):
                bend[k, j] -= cross[k, i] * linear[i]
    for j in range(n_linear - 1):
        bend[j, j] += damping * (abs(bend[j, j]) + TINY)
    factored(bend, n_linear - 1)
    solve(bend, n_linear - 1, step)
    for j in range(n_linear - 1):
        step[j] = min(max(step[j], -1.0), 1.0) if abs(step[j]) < FAR else 0.0


@plain_kernel
def fitExponentials(currents, tried, bases, low, high, found):
    """Store in found (n_currents, n_exponentials) the logarithms of the time constants, in samples.

    currents (n_currents, n). tried (n_tries, n_exponentials): where a fit may begin, with the
    orthonormal bases (n_tries, 1 + n_exponentials, n) of what it can follow; low, high: the ends.
    """
    n_currents, n, k = currents.shape[0], currents.shape[1], tried.shape[1]
    e, by, residual = np.empty((1 + k, n)), np.empty((k, n)), np.empty(n)
    a, linear, cross = np.empty((1 + k, 1 + k)), np.empty(1 + k), np.empty((k, 1 + k))
    bend, step, trial = np.empty((k, k)), np.empty(k), np.empty(k)
    for one in range(n_currents):
        y, q, most, best = currents[one], found[one], -1.0, 0
        for place in range(tried.shape[0]):
            follows = 0.0
            for i in range(1 + k):
                total = 0.0
                for t in range(n):
                    total += bases[place, i, t] * y[t]
                follows += total * total
            if follows > most:
                most, best = follows, place
        for j in range(k):
            q[j] = tried[best, j]
        squares, damping = fitted(y, q, e, a, linear, residual), 1e-3
        for _ in range(IMPROVED):
            stepOf(q, e, a, linear, residual, damping, False, by, cross, bend, step)
            moved = 0.0
            for j in range(k):
                moved = max(moved, abs(step[j]))
                trial[j] = min(max(q[j] + step[j], low), high)
            new = fitted(y, trial, e, a, linear, residual)
            if new < squares:
                squares = new
                for j in range(k):
                    q[j] = trial[j]
                damping /= 10.0
            else:
                damping *= 4.0
                fitted(y, q, e, a, linear, residual)
            if moved <= CLOSE or damping >= HOPELESS:
                break
        for _ in range(NEWTON):  # as sums of squares do not tell the last digits apart
            fitted(y, q, e, a, linear, residual)
            stepOf(q, e, a, linear, residual, 0.0, True, by, cross, bend, step)
            moved = 0.0
            for j in range(k):
                moved = max(moved, abs(step[j]))
            for j in range(k if moved < 1e-2 else 0):
                q[j] = min(max(q[j] + step[j], low), high)
