"""Fits of `LANES` data sets side by side on a processor: start, descent, errors.

Every data set is fitted as if it were alone: what its neighbors do changes no bit of its result.

Arrays end in the lane. `LANES` is the length of the innermost loops, so that LLVM turns each of
them into vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.curves.flags import (
    AT_BOUND,
    CONSTANT,
    DISORDERED,
    MISSING,
    NEGATIVE,
    NOT_CONVERGED,
    NOT_FINITE,
    TOO_FEW,
    UNDETERMINED,
    UNSETTLED,
)
from channelfit.curves.lane_math import log
from channelfit.scoring.machine.kernel_math import exp
from channelfit.scoring.machine.kernel_text import Type
from channelfit.scoring.machine.machine_code import kernel

Array = np.ndarray
#: Data sets side by side on a processor.
LANES = 8
#: Rows of the scan that are multiplied with the data at once.
ROWS = 8
_TABLE, _ROW, _LENGTHS = Type("f64", 2), Type("f64", 1), Type("i64", 1)
#: z, w, inputs, lengths, p, sums: of `evaluate` and `value` in `source`.
EVALUATE = (_TABLE, _TABLE, _ROW, _LENGTHS, _TABLE, _TABLE)

#: Starts beyond the requested ones, where a descent ended at a bound or not at rest.
MORE_STARTS = 2
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-3, 1e-12, 1e12
_INFINITE = float("inf")
#: What is summed: squares, the deviance of counts, or a robust loss, which has further sums.
SQUARES, COUNTS, ROBUST = 0, 1, 2
N_ROBUST = 3
#: Steps and tolerance of what counts and a robust loss begin with.
MOST_NEAR, NEAR = 40, 1e-4
#: A descent that was stopped is at rest nevertheless where a step would gain so many tolerances.
_AT_REST = 1e4
#: A pivot below this share of its diagonal element: the parameters before it explain it.
_SINGULAR = 1e-13
#: Share of the squares of the data below which a cost is rounding.
ROUNDING = 1e-16
#: Rows of `facts`; see `load`.
COUNT, SQUARED, START, TOTAL, LEAST, GREATEST, MOVED, AROUND, WEIGHT, USUAL = range(10)


def load(
    data: Array, weights: Array, first: int, z: Array, w: Array, facts: Array, flags: Array
) -> None:
    """Spread `LANES` data sets from row `first` on over lanes; beyond the end the last is repeated.

    data: (n_sets, n_points). weights: the same, or (0, 0) where all are 1. z, w: (n_points,
    LANES); a point that is no number is 0 of weight 0.
    facts: (10, LANES), rows from COUNT on: points that count, weighted sum of squares, first point
    that counts, sum, least and greatest point; weighted sum and sum of squares of the differences
    from the first; sum of weights, and their geometric mean's reciprocal.
    """
    n = z.shape[0]
    for lane in range(LANES):
        s = min(first + lane, data.shape[0] - 1)
        low, high, start, missing = _INFINITE, -_INFINITE, 0.0, 0
        count, total, squares, moved, around = 0.0, 0.0, 0.0, 0.0, 0.0
        whole, logs = 0.0, 0.0
        for i in range(n):
            x = data[s, i]
            good = abs(x) < _INFINITE
            own = 1.0
            if weights.shape[0] > 0:
                own = weights[s, i]
                logs += log(own) if good else 0.0
            z[i, lane] = x if good else 0.0
            w[i, lane] = own if good else 0.0
            if good:
                start = x if count == 0.0 else start
                low, high = min(low, x), max(high, x)
                count += 1.0
                total += x
                whole += own
                squares += (own * x) * x
                moved += own * (x - start)
                around += (own * (x - start)) * (x - start)
            else:
                missing = MISSING
        facts[COUNT, lane], facts[SQUARED, lane], facts[START, lane] = count, squares, start
        facts[TOTAL, lane], facts[LEAST, lane], facts[GREATEST, lane] = total, low, high
        facts[MOVED, lane], facts[AROUND, lane], facts[WEIGHT, lane] = moved, around, whole
        facts[USUAL, lane] = exp(-logs / max(count, 1.0))
        flags[lane] = missing + (CONSTANT if low >= high else 0) + (NEGATIVE if low < 0.0 else 0)


def scan(
    z: Array,
    w: Array,
    facts: Array,
    points: Array,
    rows: Array,
    norms: Array,
    offset: int,
    centered: int,
    scale: Array,
    filled: Array,
    score: Array,
) -> None:
    """Score every point of the scan by the squares that are left after a linear fit.

    This is a start only: a point that is no number has the value of the one before it here, one of
    less than the usual weight comes so much nearer to it, and float32 suffices for data that are
    shrunk to 1 and, where the curve can follow, moved to 0.

    points: (n_scan,) which points of a data set take part. rows: see `starts.Scan`, `ROWS` of them
    side by side. norms: (n_scan, n_rows). scale: (2, LANES) by how much data are moved, and
    multiplied then. score: (n_scan, LANES).
    """
    n = points.shape[0]
    for lane in range(LANES):
        shift = facts[START, lane] if centered == 1 else 0.0
        most = max(facts[GREATEST, lane] - shift, shift - facts[LEAST, lane])
        plain = offset == 1 or not (most > 0.0 and most < _INFINITE)
        scale[0, lane], scale[1, lane] = shift, 1.0 if plain else 1.0 / most
        filled[0, lane] = (facts[START, lane] - shift) * scale[1, lane]
    for k in range(n):
        for lane in range(LANES):
            last = filled[max(k - 1, 0), lane]
            seen = (z[points[k], lane] - scale[0, lane]) * scale[1, lane]
            share = w[points[k], lane] * facts[USUAL, lane]
            filled[k, lane] = seen if share >= 1.0 else last + share * (seen - last)
    dots = np.empty((ROWS, LANES), np.float32)
    n_rows = norms.shape[1]
    for g in range(rows.shape[0]):
        for r in range(ROWS):
            for lane in range(LANES):
                dots[r, lane] = 0.0
        for k in range(n):
            for lane in range(LANES):
                x = filled[k, lane]
                dots[0, lane] += rows[g, k, 0] * x
                dots[1, lane] += rows[g, k, 1] * x
                dots[2, lane] += rows[g, k, 2] * x
                dots[3, lane] += rows[g, k, 3] * x
                dots[4, lane] += rows[g, k, 4] * x
                dots[5, lane] += rows[g, k, 5] * x
                dots[6, lane] += rows[g, k, 6] * x
                dots[7, lane] += rows[g, k, 7] * x
        for r in range(ROWS):
            row = g * ROWS + r
            c, q = row // n_rows, row % n_rows
            if c < score.shape[0]:
                for lane in range(LANES):
                    d = dots[r, lane] - norms[c, q]
                    own = offset == 1 and q == 0
                    term = norms[c, 0] - 2.0 * dots[r, lane] if own else -d * d
                    score[c, lane] = term if q == 0 else score[c, lane] + term


def choose(score: Array, places: Array, chosen: Array) -> None:
    """Take the best point of the scan in each lane, and leave it and its neighbors out from now on.

    places: (n_scan, n_nonlinear) where each point lies in the grid.
    """
    for lane in range(LANES):
        best, at = _INFINITE, 0
        for c in range(score.shape[0]):
            better = score[c, lane] < best
            best = score[c, lane] if better else best
            at = c if better else at
        chosen[lane] = at
        for c in range(score.shape[0]):
            far = 0
            for k in range(places.shape[1]):
                far = max(far, abs(places[c, k] - places[at, k]))
            if far <= 1:
                score[c, lane] = _INFINITE


def begin(
    chosen: Array,
    scale: Array,
    filled: Array,
    rows: Array,
    norms: Array,
    ones: Array,
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
    for lane in range(LANES):
        c = chosen[lane]
        for j in range(p.shape[0]):
            p[j, lane] = starts[c, j]
        for q in range(n_linear):
            row = c * norms.shape[1] + q + offset
            dot = -norms[c, q + offset]
            for k in range(filled.shape[0]):
                dot += rows[row // ROWS, k, row % ROWS] * filled[k, lane]
            whole = dot / scale[1, lane] + scale[0, lane] * ones[c, q]
            for j in range(n_linear):
                p[linear[j], lane] += back[c, j, q] * whole
        for j in range(p.shape[0]):
            p[j, lane] = min(max(p[j, lane], lower[j]), upper[j])


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
        for lane in range(LANES):
            g = sums[1 + j, lane]
            out = (p[j, lane] <= lower[j] and g < 0.0) or (p[j, lane] >= upper[j] and g > 0.0)
            held[j, lane] = 1.0 if out or not sums[diagonal, lane] > 0.0 else 0.0
            d[j, lane] = 0.0 if held[j, lane] > 0.0 else g
    for lane in range(LANES):
        gain[lane] = 0.0
    for j in range(n):
        for i in range(j + 1):
            at = 1 + n + j * (j + 1) // 2 + i
            for lane in range(LANES):
                free = held[j, lane] + held[i, lane] == 0.0
                x = sums[at, lane] * (1.0 + damping[lane] if i == j else 1.0)
                m[j * n + i, lane] = x if free else (1.0 if i == j else 0.0)
    factor(m, gain, n)
    solve(m, d, n)
    for j in range(n):
        for lane in range(LANES):
            to = min(max(p[j, lane] + d[j, lane], lower[j]), upper[j])
            trial[j, lane] = to
            gain[lane] += sums[1 + j, lane] * (to - p[j, lane]) if held[j, lane] == 0.0 else 0.0
    for lane in range(LANES):
        gain[lane] = gain[lane] if abs(gain[lane]) < _INFINITE else -1.0


def factor(m: Array, fault: Array, n: int) -> None:
    """Write m = L D L' over itself, L below the diagonal; fault becomes -inf where m is singular.

    m: (n*n, LANES), of which the lower triangle is used.
    """
    for j in range(n):
        for i in range(j):
            for k in range(i):
                for lane in range(LANES):
                    m[j * n + i, lane] -= (
                        m[j * n + k, lane] * m[i * n + k, lane] * m[k * n + k, lane]
                    )
            for lane in range(LANES):
                m[j * n + i, lane] /= m[i * n + i, lane]
        for lane in range(LANES):
            whole = m[j * n + j, lane]
            left = whole
            for k in range(j):
                left -= m[j * n + k, lane] * m[j * n + k, lane] * m[k * n + k, lane]
            good = left > _SINGULAR * whole
            m[j * n + j, lane] = left if good else 1.0
            fault[lane] = fault[lane] if good else -_INFINITE


def solve(m: Array, d: Array, n: int) -> None:
    """Solve L D L' x = d, and write x over d; m is that of `factor`."""
    for j in range(n):
        for k in range(j):
            for lane in range(LANES):
                d[j, lane] -= m[j * n + k, lane] * d[k, lane]
    for j in range(n):
        for lane in range(LANES):
            d[j, lane] /= m[j * n + j, lane]
    for back in range(n):
        row = n - 1 - back
        for k in range(row + 1, n):
            for lane in range(LANES):
                d[row, lane] -= m[k * n + row, lane] * d[k, lane]


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
    growth: Array,
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
    for lane in range(LANES):
        damping[lane], growth[lane] = _FIRST_DAMPING, 4.0
        running[lane] = 1 if abs(sums[0, lane]) < _INFINITE else 2
        iterations[lane] = 0
    left = LANES
    for _ in range(most):
        step(p, sums, damping, lower, upper, m, d, held, trial, gain)
        left = 0
        for lane in range(LANES):
            if running[lane] == 1:
                small = tolerance * (sums[0, lane] + noise[lane])
                if gain[lane] >= 0.0 and gain[lane] <= small:
                    running[lane] = 0
                elif damping[lane] > _MOST_DAMPING:
                    running[lane] = 3
                else:
                    left += 1
                    iterations[lane] += 1
        if left == 0:
            break
        evaluate(z, w, inputs, lengths, trial, trial_sums)
        for lane in range(LANES):
            held[0, lane] = 0.0
            if running[lane] == 1:
                if gain[lane] > 0.0 and trial_sums[0, lane] < sums[0, lane]:
                    held[0, lane] = 1.0
                    ratio = (sums[0, lane] - trial_sums[0, lane]) / gain[lane]
                    bend = 2.0 * min(ratio, 1.0) - 1.0
                    less = max(0.1, 1.0 - bend * bend * bend)
                    damping[lane] = max(less * damping[lane], _LEAST_DAMPING)
                    growth[lane] = 4.0
                else:
                    damping[lane] *= growth[lane]
                    growth[lane] *= 2.0
        for j in range(n):
            for lane in range(LANES):
                p[j, lane] = trial[j, lane] if held[0, lane] > 0.0 else p[j, lane]
        for j in range(sums.shape[0]):
            for lane in range(LANES):
                sums[j, lane] = trial_sums[j, lane] if held[0, lane] > 0.0 else sums[j, lane]
    for lane in range(LANES):
        if running[lane] == 1 or running[lane] == 3:
            near = _AT_REST * tolerance * (sums[0, lane] + noise[lane])
            running[lane] = 0 if gain[lane] >= 0.0 and gain[lane] <= near else 1


def judge(
    first: int,
    n_sets: int,
    kind: int,
    all_linear: bool,
    found: Array,
    ended: Array,
    steps: Array,
    facts: Array,
    sums: Array,
    p: Array,
    lower: Array,
    upper: Array,
    width: Array,
    below: Array,
    m: Array,
    d: Array,
    held: Array,
    scale: Array,
    most: Array,
    values: Array,
    errors: Array,
    covariances: Array,
    numbers: Array,
    flags: Array,
) -> None:
    """Write the results for a block of lanes, the first of which is data set `first`.

    found: (LANES,) flags of `load`. ended: (LANES,) see `running` of `descend`. m, d, held: as of
    `step`. scale, most: (LANES,), scratch. The others are those of `fit`.

    The variance of a residual is the cost by the points that are left; that of counts is known.
    Under a robust loss it is the mean square of what a point pulls, by the mean of its derivative
    (Huber 1973, with his correction for few points); the Gauss-Newton Hessian is that of the loss
    itself.

    A linear parameter beside others is not determined where its error alone would move the curve by
    more than the range of the data, as a root mean square. The distance from the minimum is what a
    step of Newton would take from the cost.
    """
    n = p.shape[0]
    for j in range(n):
        for lane in range(LANES):
            held[j, lane] = 1.0 if p[j, lane] <= lower[j] or p[j, lane] >= upper[j] else 0.0
    for lane in range(LANES):
        scale[lane] = 0.0
    for j in range(n):
        for i in range(j + 1):
            for lane in range(LANES):
                free = held[j, lane] + held[i, lane] == 0.0
                x = sums[1 + n + j * (j + 1) // 2 + i, lane]
                m[j * n + i, lane] = x if free else (1.0 if i == j else 0.0)
    factor(m, scale, n)
    for j in range(n):
        for lane in range(LANES):
            d[j, lane] = sums[1 + j, lane] if held[j, lane] == 0.0 else 0.0
    solve(m, d, n)
    for lane in range(LANES):
        n_free, distance = 0.0, 0.0
        for j in range(n):
            n_free += 1.0 - held[j, lane]
            distance += d[j, lane] * sums[1 + j, lane] if held[j, lane] == 0.0 else 0.0
        flag = found[lane]
        flag &= 511 if kind == COUNTS else 511 - NEGATIVE
        flag &= 511 - CONSTANT if all_linear else 511
        flag |= NOT_FINITE if ended[lane] == 2 else 0
        flag |= NOT_CONVERGED if ended[lane] == 1 else 0
        flag |= TOO_FEW if facts[COUNT, lane] < n else 0
        flag |= AT_BOUND if n_free < n else 0
        flag |= UNDETERMINED if scale[lane] < 0.0 else 0
        none = flag & (TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE) != 0
        count, cost = max(facts[COUNT, lane], 1.0), sums[0, lane]
        spare = facts[COUNT, lane] - n_free
        scale[lane] = cost / spare if spare > 0.0 else float("nan")
        scale[lane] = 1.0 if kind == COUNTS else scale[lane]
        if kind == ROBUST and spare > 0.0:
            pulls = sums.shape[0] - N_ROBUST
            share = sums[pulls + 1, lane] / count
            varied = sums[pulls + 2, lane] / count - share * share
            more = 1.0 + n_free / count * varied / (share * share)
            scale[lane] = more * sums[pulls, lane] / spare / share
        scale[lane] = float("nan") if flag & UNDETERMINED != 0 or none else scale[lane]
        far = distance > n_free * scale[lane] + ROUNDING * facts[SQUARED, lane]
        flag |= UNSETTLED if far and not none else 0
        extent = facts[GREATEST, lane] - facts[LEAST, lane]
        usual = facts[TOTAL, lane] / count if kind == COUNTS else 1.0
        most[lane] = facts[WEIGHT, lane] * extent * extent / usual
        found[lane] = flag
    for c in range(n):  # column c of the inverse
        for j in range(n):
            for lane in range(LANES):
                d[j, lane] = 1.0 if j == c else 0.0
        solve(m, d, n)
        for lane in range(LANES):
            s = first + lane
            if s < n_sets:
                flag, at_bound = found[lane], False
                none = flag & (TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE) != 0
                for j in range(n):
                    at_bound = held[j, lane] > 0.0 if j == c else at_bound
                for j in range(n):
                    known = held[j, lane] == 0.0 and not at_bound
                    variance = scale[lane] * d[j, lane] if known else float("nan")
                    if covariances.shape[1] > 0:
                        covariances[s, c * n + j] = variance
                    if j == c:
                        error = np.sqrt(variance)
                        errors[s, j] = error
                        shift = error * error * sums[1 + n + j * (j + 3) // 2, lane]
                        wide = width[j] == _INFINITE and not all_linear and shift > most[lane]
                        wide = wide or error > width[j]
                        flag |= UNDETERMINED if wide and not none else 0
                found[lane] = flag
    for lane in range(LANES):
        s = first + lane
        if s < n_sets:
            flag = found[lane]
            none = flag & (TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE) != 0
            for j in range(n):
                values[s, j] = float("nan") if none else p[j, lane]
                for i in range(n):
                    if i == below[j] and not none and p[i, lane] >= p[j, lane]:
                        flag |= DISORDERED
            whole, moved = facts[WEIGHT, lane], facts[MOVED, lane]
            numbers[s, 0] = float("nan") if none else sums[0, lane]
            numbers[s, 1], numbers[s, 2] = facts[COUNT, lane], float(steps[lane])
            off = moved * moved / (whole if whole > 0.0 else 1.0)
            numbers[s, 3] = max(facts[AROUND, lane] - off, 0.0)
            flags[s] = flag


@kernel
def fit(
    evaluate: Any,
    approach: Any,
    data: Array,
    weights: Array,
    first: int,
    last: int,
    inputs: Array,
    lengths: Array,
    points: Array,
    rows: Array,
    norms: Array,
    ones: Array,
    offset: int,
    centered: int,
    back: Array,
    linear: Array,
    starts: Array,
    places: Array,
    lower: Array,
    upper: Array,
    width: Array,
    below: Array,
    n_starts: int,
    most: int,
    tolerance: float,
    kind: int,
    values: Array,
    errors: Array,
    covariances: Array,
    numbers: Array,
    flags: Array,
) -> None:
    """Fit the data sets of some blocks of lanes.

    Arguments:
        evaluate, approach: of `source`. data: (n_sets, n_points). weights: see `load`.
        first, last: blocks.
        inputs, lengths: the values of all inputs, one after the other, and the length of each axis.
        points .. places: of the scan, see `scan`, `choose` and `begin`.
        lower, upper: (n,) bounds. width: (n,) the largest error of a parameter that counts as
        determined. below: (n,) another parameter that has to be smaller, -1 where none has.
        n_starts: minima of the scan that are refined.
        most: steps of a descent. tolerance: of its end. kind: SQUARES, COUNTS or ROBUST.
        values, errors: (n_sets, n). covariances: (n_sets, n*n), or (0, 0) where not requested.
        numbers: (n_sets, 4): cost, points that count, steps, squares around the mean.
        flags: (n_sets,).
    """
    n_points, n = data.shape[1], lower.shape[0]
    n_sums = 1 + n + n * (n + 1) // 2 + (N_ROBUST if kind == ROBUST else 0)
    z, w = np.empty((n_points, LANES)), np.empty((n_points, LANES))
    facts, noise, scale = np.empty((10, LANES)), np.empty(LANES), np.empty((2, LANES))
    filled = np.empty((points.shape[0], LANES), np.float32)
    score = np.empty((norms.shape[0], LANES), np.float32)
    p, trial, kept = np.empty((n, LANES)), np.empty((n, LANES)), np.empty((n, LANES))
    sums, trial_sums = np.empty((n_sums, LANES)), np.empty((n_sums, LANES))
    kept_sums = np.empty((n_sums, LANES))
    m, d, held = np.empty((n * n, LANES)), np.empty((n, LANES)), np.empty((n, LANES))
    damping, growth, gain = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    chosen, running = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    iterations, steps = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    ended, found = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    again, before = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    n_sets = data.shape[0]
    for block in range(first, last):
        load(data, weights, block * LANES, z, w, facts, found)
        for lane in range(LANES):
            count, squares = facts[COUNT, lane], facts[SQUARED, lane]
            noise[lane] = count if kind == COUNTS else ROUNDING * squares
        scan(z, w, facts, points, rows, norms, offset, centered, scale, filled, score)
        for s in range(n_starts + MORE_STARTS):
            if s >= n_starts:
                open_ = 0
                for lane in range(LANES):
                    again[lane] = 1 if ended[lane] != 0 else 0
                    for j in range(n):
                        at_bound = kept[j, lane] <= lower[j] or kept[j, lane] >= upper[j]
                        again[lane] = 1 if at_bound else again[lane]
                    open_ += again[lane]
                if open_ == 0:
                    break
            choose(score, places, chosen)
            begin(
                chosen, scale, filled, rows, norms, ones, offset, back, linear, starts, lower,
                upper, p,
            )  # fmt: skip
            for lane in range(LANES):
                before[lane] = 0
            if kind != SQUARES:  # see `source.cpu_text`
                descend(
                    approach, z, w, inputs, lengths, noise, lower, upper, MOST_NEAR, NEAR,
                    p, sums, trial, trial_sums, m, d, held, damping, growth, gain, running, before,
                )  # fmt: skip
            descend(
                evaluate, z, w, inputs, lengths, noise, lower, upper, most, tolerance,
                p, sums, trial, trial_sums, m, d, held, damping, growth, gain, running, iterations,
            )  # fmt: skip
            for lane in range(LANES):
                better = s == 0 or ended[lane] == 2 or sums[0, lane] < kept_sums[0, lane]
                better = better and (s == 0 or running[lane] < 2)
                better = better and (s < n_starts or again[lane] == 1)
                held[0, lane] = 1.0 if better else 0.0
                ended[lane] = running[lane] if better else ended[lane]
                steps[lane] = 0 if s == 0 else steps[lane]
                more = iterations[lane] + before[lane]
                steps[lane] += more if s < n_starts or again[lane] == 1 else 0
            for j in range(n):
                for lane in range(LANES):
                    kept[j, lane] = p[j, lane] if held[0, lane] > 0.0 else kept[j, lane]
            for j in range(n_sums):
                for lane in range(LANES):
                    kept_sums[j, lane] = (
                        sums[j, lane] if held[0, lane] > 0.0 else kept_sums[j, lane]
                    )
        for j in range(n):
            for lane in range(LANES):
                p[j, lane] = kept[j, lane]
        judge(
            block * LANES, n_sets, kind, linear.shape[0] == n, found, ended, steps, facts,
            kept_sums, p, lower, upper, width, below, m, d, held, gain, growth, values, errors,
            covariances, numbers, flags,
        )  # fmt: skip
