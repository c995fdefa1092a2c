"""Fits of `LANES` data sets side by side on a processor: start, descent, curvature.

Every data set is fitted as if it were alone: what its neighbors do changes no bit of its result.

Arrays end in the lane. `LANES` is the length of the innermost loops, so that LLVM turns each of
them into vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.scoring.machine.kernel_text import Type
from channelfit.scoring.machine.machine_code import kernel

Array = np.ndarray
LANES = 8
#: Rows of the scan that are multiplied with the data at once.
ROWS = 8
#: z, w, inputs, lengths, p, sums: of `evaluate` and `value` in `source`.
EVALUATE = (
    Type("f64", 2),
    Type("f64", 2),
    Type("f64", 1),
    Type("i64", 1),
    Type("f64", 2),
    Type("f64", 2),
)

# --- what there is to say of a data set, each a bit of its flags ----------------------------------

#: A parameter ended at a bound.
AT_BOUND = 1
#: The data do not determine all parameters.
UNDETERMINED = 2
#: The descent did not come to rest.
NOT_CONVERGED = 4
#: Fewer points than free parameters.
TOO_FEW = 8
#: All points are equal.
CONSTANT = 16
#: The curve, or its derivative, is not finite wherever the descent could begin.
NOT_FINITE = 32
#: Counts below zero.
NEGATIVE = 64
#: Some points are not numbers, and were left out.
MISSING = 128

_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-3, 1e-12, 1e12
_INFINITE = float("inf")
#: A pivot below this share of its diagonal element: the parameters before it explain it.
_SINGULAR = 1e-13


def load(data: Array, first: int, z: Array, w: Array, facts: Array, flags: Array) -> None:
    """Spread `LANES` data sets from row `first` on over lanes; beyond the end the last is repeated.

    data: (n_sets, n_points). z, w: (n_points, LANES); a point that is no number is 0 of weight 0.
    facts: (3, LANES): points that count, sum of squares, first point that counts.
    """
    n = z.shape[0]
    for l in range(LANES):
        s = min(first + l, data.shape[0] - 1)
        low, high, count, squares, start, missing = _INFINITE, -_INFINITE, 0.0, 0.0, 0.0, 0
        for i in range(n):
            x = data[s, i]
            good = abs(x) < _INFINITE
            z[i, l] = x if good else 0.0
            w[i, l] = 1.0 if good else 0.0
            if good:
                start = x if count == 0.0 else start
                low, high = min(low, x), max(high, x)
                count += 1.0
                squares += x * x
            else:
                missing = MISSING
        facts[0, l], facts[1, l], facts[2, l] = count, squares, start
        flags[l] = missing + (CONSTANT if low >= high else 0) + (NEGATIVE if low < 0.0 else 0)


def scan(
    z: Array,
    w: Array,
    facts: Array,
    points: Array,
    rows: Array,
    norms: Array,
    offset: int,
    filled: Array,
    score: Array,
) -> None:
    """Score every point of the scan by the squares that are left after a linear fit.

    A point that is no number has the value of the one before it here: this is a start only.

    points: (n_scan,) which points of a data set take part. rows: see
    `starts.Scan`, `ROWS` of them side by side. norms: (n_scan, n_rows). score: (n_scan, LANES).
    """
    n = points.shape[0]
    for l in range(LANES):
        filled[0, l] = facts[2, l]
    for k in range(n):
        for l in range(LANES):
            last = filled[max(k - 1, 0), l]
            filled[k, l] = z[points[k], l] if w[points[k], l] > 0.0 else last
    dots = np.empty((ROWS, LANES))
    n_rows = norms.shape[1]
    for g in range(rows.shape[0]):
        for r in range(ROWS):
            for l in range(LANES):
                dots[r, l] = 0.0
        for k in range(n):
            for l in range(LANES):
                x = filled[k, l]
                dots[0, l] += rows[g, k, 0] * x
                dots[1, l] += rows[g, k, 1] * x
                dots[2, l] += rows[g, k, 2] * x
                dots[3, l] += rows[g, k, 3] * x
                dots[4, l] += rows[g, k, 4] * x
                dots[5, l] += rows[g, k, 5] * x
                dots[6, l] += rows[g, k, 6] * x
                dots[7, l] += rows[g, k, 7] * x
        for r in range(ROWS):
            row = g * ROWS + r
            c, q = row // n_rows, row % n_rows
            if c < score.shape[0]:
                for l in range(LANES):
                    d = dots[r, l] - norms[c, q]
                    own = offset == 1 and q == 0
                    term = norms[c, 0] - 2.0 * dots[r, l] if own else -d * d
                    score[c, l] = term if q == 0 else score[c, l] + term


def choose(score: Array, places: Array, chosen: Array) -> None:
    """Take the best point of the scan in each lane, and leave it and its neighbors out from now on.

    places: (n_scan, n_nonlinear) where each point lies in the grid.
    """
    for l in range(LANES):
        best, at = _INFINITE, 0
        for c in range(score.shape[0]):
            better = score[c, l] < best
            best = score[c, l] if better else best
            at = c if better else at
        chosen[l] = at
        for c in range(score.shape[0]):
            far = 0
            for k in range(places.shape[1]):
                far = max(far, abs(places[c, k] - places[at, k]))
            if far <= 1:
                score[c, l] = _INFINITE


def begin(
    chosen: Array,
    filled: Array,
    rows: Array,
    norms: Array,
    offset: int,
    back: Array,
    linear: Array,
    starts: Array,
    lower: Array,
    upper: Array,
    p: Array,
) -> None:
    """Write the parameters at the chosen points of the scan, linear ones fitted, within bounds."""
    n_linear = linear.shape[0]
    for l in range(LANES):
        c = chosen[l]
        for j in range(p.shape[0]):
            p[j, l] = starts[c, j]
        for q in range(n_linear):
            row = c * norms.shape[1] + q + offset
            dot = -norms[c, q + offset]
            for k in range(filled.shape[0]):
                dot += rows[row // ROWS, k, row % ROWS] * filled[k, l]
            for j in range(n_linear):
                p[linear[j], l] += back[c, j, q] * dot
        for j in range(p.shape[0]):
            p[j, l] = min(max(p[j, l], lower[j]), upper[j])


def step(
    p: Array,
    sums: Array,
    damping: Array,
    lower: Array,
    upper: Array,
    m: Array,
    d: Array,
    held: Array,
    trial: Array,
    gain: Array,
) -> None:
    """Write the parameters after a damped step, and the gain that a linear model promises.

    A parameter is held at a bound that it would leave, and where it has no effect.

    m: (n*n, LANES), d, held: (n, LANES), scratch. gain: (LANES,), -1 where there is no step.
    """
    n = p.shape[0]
    for j in range(n):
        diagonal = 1 + n + j * (j + 1) // 2 + j
        for l in range(LANES):
            g = sums[1 + j, l]
            out = (p[j, l] <= lower[j] and g < 0.0) or (p[j, l] >= upper[j] and g > 0.0)
            held[j, l] = 1.0 if out or not sums[diagonal, l] > 0.0 else 0.0
            d[j, l] = 0.0 if held[j, l] > 0.0 else g
    for l in range(LANES):
        gain[l] = 0.0
    for j in range(n):
        for i in range(j + 1):
            at = 1 + n + j * (j + 1) // 2 + i
            for l in range(LANES):
                free = held[j, l] + held[i, l] == 0.0
                x = sums[at, l] * (1.0 + damping[l] if i == j else 1.0)
                m[j * n + i, l] = x if free else (1.0 if i == j else 0.0)
    factor(m, gain, n)
    for j in range(n):
        for k in range(j):
            for l in range(LANES):
                d[j, l] -= m[j * n + k, l] * d[k, l]
    for j in range(n):
        for l in range(LANES):
            d[j, l] /= m[j * n + j, l]
    for back in range(n):
        j = n - 1 - back
        for k in range(j + 1, n):
            for l in range(LANES):
                d[j, l] -= m[k * n + j, l] * d[k, l]
    for j in range(n):
        for l in range(LANES):
            to = min(max(p[j, l] + d[j, l], lower[j]), upper[j])
            trial[j, l] = to
            gain[l] += sums[1 + j, l] * (to - p[j, l]) if held[j, l] == 0.0 else 0.0
    for l in range(LANES):
        gain[l] = gain[l] if abs(gain[l]) < _INFINITE else -1.0


def factor(m: Array, fault: Array, n: int) -> None:
    """Write m = L D L' over itself, L below the diagonal; fault becomes -inf where m is singular.

    m: (n*n, LANES), of which the lower triangle is used.
    """
    for j in range(n):
        for i in range(j):
            for k in range(i):
                for l in range(LANES):
                    m[j * n + i, l] -= m[j * n + k, l] * m[i * n + k, l] * m[k * n + k, l]
            for l in range(LANES):
                m[j * n + i, l] /= m[i * n + i, l]
        for l in range(LANES):
            whole = m[j * n + j, l]
            left = whole
            for k in range(j):
                left -= m[j * n + k, l] * m[j * n + k, l] * m[k * n + k, l]
            good = left > _SINGULAR * whole
            m[j * n + j, l] = left if good else 1.0
            fault[l] = fault[l] if good else -_INFINITE


def descend(
    evaluate: Any,
    z: Array,
    w: Array,
    inputs: Array,
    lengths: Array,
    noise: Array,
    lower: Array,
    upper: Array,
    most: int,
    tolerance: float,
    p: Array,
    sums: Array,
    trial: Array,
    trial_sums: Array,
    m: Array,
    d: Array,
    held: Array,
    damping: Array,
    gain: Array,
    running: Array,
    iterations: Array,
) -> None:
    """Descend from p by Levenberg and Marquardt's steps until a further one would gain nothing.

    noise: (LANES,) what a gain is compared with, beside the cost. running: (LANES,) afterwards 0
    where the descent came to rest, 1 where it did not, 2 where it could not begin.
    """
    n = p.shape[0]
    evaluate(z, w, inputs, lengths, p, sums)
    for l in range(LANES):
        damping[l] = _FIRST_DAMPING
        running[l] = 1 if abs(sums[0, l]) < _INFINITE else 2
        iterations[l] = 0
    left = LANES
    for _ in range(most):
        step(p, sums, damping, lower, upper, m, d, held, trial, gain)
        left = 0
        for l in range(LANES):
            if running[l] == 1:
                small = tolerance * (sums[0, l] + noise[l])
                if gain[l] >= 0.0 and gain[l] <= small:
                    running[l] = 0
                elif damping[l] > _MOST_DAMPING:
                    running[l] = 3
                else:
                    left += 1
                    iterations[l] += 1
        if left == 0:
            break
        evaluate(z, w, inputs, lengths, trial, trial_sums)
        for l in range(LANES):
            held[0, l] = 0.0
            if running[l] == 1:
                if gain[l] > 0.0 and trial_sums[0, l] < sums[0, l]:
                    held[0, l] = 1.0
                    damping[l] = max(0.1 * damping[l], _LEAST_DAMPING)
                else:
                    damping[l] *= 8.0
        for j in range(n):
            for l in range(LANES):
                p[j, l] = trial[j, l] if held[0, l] > 0.0 else p[j, l]
        for j in range(sums.shape[0]):
            for l in range(LANES):
                sums[j, l] = trial_sums[j, l] if held[0, l] > 0.0 else sums[j, l]
    for l in range(LANES):
        running[l] = 1 if running[l] == 3 else running[l]


def invert(
    p: Array, sums: Array, lower: Array, upper: Array, m: Array, d: Array, held: Array, gain: Array
) -> None:
    """Write the inverse of the curvature, with rows of NaN for parameters at bounds, over m.

    gain: (LANES,), -inf where the curvature is singular.
    """
    n = p.shape[0]
    for j in range(n):
        for l in range(LANES):
            held[j, l] = 1.0 if p[j, l] <= lower[j] or p[j, l] >= upper[j] else 0.0
    for l in range(LANES):
        gain[l] = 0.0
    for j in range(n):
        for i in range(j + 1):
            at = 1 + n + j * (j + 1) // 2 + i
            for l in range(LANES):
                free = held[j, l] + held[i, l] == 0.0
                m[j * n + i, l] = sums[at, l] if free else (1.0 if i == j else 0.0)
    factor(m, gain, n)
    for c in range(n):  # column c of the inverse goes to the upper triangle, behind it to d
        for j in range(n):
            for l in range(LANES):
                d[c * n + j, l] = 1.0 if j == c else 0.0
            for k in range(j):
                for l in range(LANES):
                    d[c * n + j, l] -= m[j * n + k, l] * d[c * n + k, l]
        for j in range(n):
            for l in range(LANES):
                d[c * n + j, l] /= m[j * n + j, l]
        for back in range(n):
            j = n - 1 - back
            for k in range(j + 1, n):
                for l in range(LANES):
                    d[c * n + j, l] -= m[k * n + j, l] * d[c * n + k, l]
    for c in range(n):
        for j in range(n):
            for l in range(LANES):
                free = held[j, l] + held[c, l] == 0.0
                m[c * n + j, l] = d[c * n + j, l] if free else float("nan")


@kernel
def fit(
    evaluate: Any,
    data: Array,
    first: int,
    last: int,
    inputs: Array,
    lengths: Array,
    points: Array,
    rows: Array,
    norms: Array,
    offset: int,
    back: Array,
    linear: Array,
    starts: Array,
    places: Array,
    lower: Array,
    upper: Array,
    n_starts: int,
    most: int,
    tolerance: float,
    counts: int,
    values: Array,
    errors: Array,
    covariances: Array,
    numbers: Array,
    flags: Array,
) -> None:
    """Fit the data sets of some blocks of lanes.

    Arguments:
        evaluate: of `source`. data: (n_sets, n_points). first, last: blocks.
        inputs, lengths: the values of all inputs, one after the other, and the length of each axis.
        points .. places: of the scan, see `scan`, `choose` and `begin`.
        lower, upper: (n,) bounds. n_starts: minima of the scan that are refined.
        most: steps of a descent. tolerance: of its end. counts: 1 for Poisson's likelihood.
        values, errors: (n_sets, n). covariances: (n_sets, n*n), or (0, 0) where not wanted.
        numbers: (n_sets, 3): cost, points that count, steps. flags: (n_sets,).
    """
    n_points, n = data.shape[1], lower.shape[0]
    n_sums = 1 + n + n * (n + 1) // 2
    z, w = np.empty((n_points, LANES)), np.empty((n_points, LANES))
    facts, noise = np.empty((3, LANES)), np.empty(LANES)
    filled = np.empty((points.shape[0], LANES))
    score = np.empty((norms.shape[0], LANES))
    p, trial, kept = np.empty((n, LANES)), np.empty((n, LANES)), np.empty((n, LANES))
    sums, trial_sums = np.empty((n_sums, LANES)), np.empty((n_sums, LANES))
    kept_sums = np.empty((n_sums, LANES))
    m, d, held = np.empty((n * n, LANES)), np.empty((n * n, LANES)), np.empty((n, LANES))
    damping, gain = np.empty(LANES), np.empty(LANES)
    chosen, running = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    iterations, steps = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    ended, found = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    n_sets = data.shape[0]
    for block in range(first, last):
        load(data, block * LANES, z, w, facts, found)
        for l in range(LANES):
            noise[l] = facts[0, l] if counts == 1 else 1e-16 * facts[1, l]
        scan(z, w, facts, points, rows, norms, offset, filled, score)
        for s in range(n_starts):
            choose(score, places, chosen)
            begin(chosen, filled, rows, norms, offset, back, linear, starts, lower, upper, p)
            descend(
                evaluate, z, w, inputs, lengths, noise, lower, upper, most, tolerance,
                p, sums, trial, trial_sums, m, d, held, damping, gain, running, iterations,
            )  # fmt: skip
            for l in range(LANES):
                better = s == 0 or ended[l] == 2 or sums[0, l] < kept_sums[0, l]
                better = better and (s == 0 or running[l] < 2)
                held[0, l] = 1.0 if better else 0.0
                ended[l] = running[l] if better else ended[l]
                steps[l] = iterations[l] if s == 0 else steps[l] + iterations[l]
            for j in range(n):
                for l in range(LANES):
                    kept[j, l] = p[j, l] if held[0, l] > 0.0 else kept[j, l]
            for j in range(n_sums):
                for l in range(LANES):
                    kept_sums[j, l] = sums[j, l] if held[0, l] > 0.0 else kept_sums[j, l]
        for j in range(n):
            for l in range(LANES):
                p[j, l] = kept[j, l]
        invert(p, kept_sums, lower, upper, m, d, held, gain)
        for l in range(LANES):
            s = block * LANES + l
            if s < n_sets:
                flag = found[l]
                flag = flag if counts == 1 else flag & (255 - NEGATIVE)
                flag = flag & (255 - CONSTANT) if linear.shape[0] == n else flag
                flag |= NOT_FINITE if ended[l] == 2 else 0
                flag |= NOT_CONVERGED if ended[l] == 1 else 0
                flag |= TOO_FEW if facts[0, l] < n else 0
                n_free = 0.0
                for j in range(n):
                    n_free += 1.0 - held[j, l]
                flag |= AT_BOUND if n_free < n else 0
                flag |= UNDETERMINED if gain[l] < 0.0 else 0
                none = flag & (TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE) != 0
                cost = kept_sums[0, l]
                spare = facts[0, l] - n_free
                scale = 1.0 if counts == 1 else (cost / spare if spare > 0.0 else float("nan"))
                scale = float("nan") if flag & UNDETERMINED != 0 or none else scale
                for j in range(n):
                    values[s, j] = float("nan") if none else p[j, l]
                    errors[s, j] = np.sqrt(scale * m[j * n + j, l])
                for j in range(covariances.shape[1]):
                    covariances[s, j] = scale * m[j, l]
                numbers[s, 0] = float("nan") if none else cost
                numbers[s, 1], numbers[s, 2] = facts[0, l], float(steps[l])
                flags[s] = flag
