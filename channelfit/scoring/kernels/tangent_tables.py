# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Kernels and tables that linearizations of gates and of schemes have in common."""

from __future__ import annotations

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR
from channelfit.scoring.kernels.integration import bounded
from channelfit.scoring.machine.kernel_math import inline
from channelfit.scoring.machine.kernel_text import Type
from channelfit.scoring.machine.machine_code import kernel

#: Columns of the table of runs. OUT and STRIDE are the place of a run's first point in the flat
#: output and the distance to the next; POINTS and N_POINTS a part of the array of points.
VOLTAGE, TABLE, N, SOURCE, TARGET, OUT, STRIDE, POINTS, N_POINTS = range(9)
N_COLUMNS = 9

#: Slopes of rates from here on, 1/ms, count as none.
STEEPEST = 1e306

#: Arguments of the functions generated for a model, which kernels for all models call.
GAINS = (Type("f64", 1), Type("f64", 2))
RATES = (Type("f64", 1), Type("f64", 1), Type("f64", 2), Type("f64", 2))
RATES_WITH_LIGANDS = (Type("f64", 2), *RATES[1:])


@kernel
def project(flat, matrices, groups, target, scale, flat_residuals, residuals, normal):
    """Store residuals (n_residuals, width) of the currents `flat`, and their products `normal`.

    groups (n_groups, 6): rank, n_points, where its matrix begins, its points, their end, its first
    residual in `flat_residuals`, which is `residuals` as one row; those without a matrix are there
    already.
    """
    for g in range(groups.shape[0]):
        rank, n_points, first = groups[g, 0], groups[g, 1], groups[g, 2]
        begin, end, place = groups[g, 3], groups[g, 4], groups[g, 5]
        n = (end - begin) // n_points
        multiply(matrices[first:], flat[begin:end], flat_residuals[place:], rank, n_points, n)
    for i in range(residuals.shape[0]):
        residuals[i, 0] -= target[i]
        for d in range(residuals.shape[1]):
            residuals[i, d] *= scale[i]
    squares(residuals, normal)


def multiply(a, b, c, n_rows, n_inner, n):
    """Store a b in c, of flat arrays: a (n_rows, n_inner), b (n_inner, n), c (n_rows, n).

    Two rows of c and four of b at a time, so that loaded numbers are used more than once.
    """
    for k in range(n_rows * n):
        c[k] = 0.0
    whole = n_inner - n_inner % 4
    for i in range(0, n_rows, 2):
        # the last row of an odd number is its own partner, and is written twice
        other = min(i + 1, n_rows - 1)
        top, low = c[i * n : i * n + n], c[other * n : other * n + n]
        for p in range(0, whole, 4):
            b0, b1 = b[p * n : p * n + n], b[(p + 1) * n : (p + 1) * n + n]
            b2, b3 = b[(p + 2) * n : (p + 2) * n + n], b[(p + 3) * n : (p + 3) * n + n]
            left, right = a[i * n_inner + p :], a[other * n_inner + p :]
            l0, l1, l2, l3 = left[0], left[1], left[2], left[3]
            r0, r1, r2, r3 = right[0], right[1], right[2], right[3]
            for j in range(n):
                upper = top[j] + (l0 * b0[j] + l1 * b1[j] + l2 * b2[j] + l3 * b3[j])
                lower = low[j] + (r0 * b0[j] + r1 * b1[j] + r2 * b2[j] + r3 * b3[j])
                top[j] = upper
                low[j] = lower
        for p in range(whole, n_inner):
            one, two = a[i * n_inner + p], a[other * n_inner + p]
            row = b[p * n : p * n + n]
            for j in range(n):
                upper, lower = top[j] + one * row[j], low[j] + two * row[j]
                top[j] = upper
                low[j] = lower


def squares(x, out):
    """Store x^T x of x (n, width) in out, four rows at a time; the last rows one by one."""
    n, width = x.shape
    out[:] = 0.0
    whole = n - n % 4
    for i in range(0, whole, 4):
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        for j in range(width):
            a, b, c, d = x0[j], x1[j], x2[j], x3[j]
            row = out[j]
            for k in range(width):
                row[k] += a * x0[k] + b * x1[k] + c * x2[k] + d * x3[k]
    for i in range(whole, n):
        last = x[i]
        for j in range(width):
            a, row = last[j], out[j]
            for k in range(width):
                row[k] += a * last[k]


@kernel
def boundRates(rate, slope, partials, least, n, flags):
    """Bound rates at n voltages; d rate becomes d log rate, 0 outside of the bounds.

    A slope that is no number counts as none: of 1/(1 + exp(u)), say, where exp(u) overflows and
    the rate no longer changes. So it does in CUDA (`cuda_dual`).

    rate (n_rates, at least n), slope (n_partials, ..); partials (n_partials, 2): rate, direction.
    least (n_rates,): the lower bound of each, below 0 where a rate may be negative.
    flags (2,): set to 1 where a rate is NaN, where one is negative that may not.
    """
    for k in range(partials.shape[0]):
        u = partials[k, 0]
        for v in range(n):
            r, s = rate[u, v], slope[k, v]
            inside = abs(r) > RATE_FLOOR and abs(r) < RATE_CEILING
            slope[k, v] = s / r if inside and abs(s) < STEEPEST else 0.0
    nan, negative = 0, 0
    for u in range(rate.shape[0]):
        for v in range(n):
            r = rate[u, v]
            nan |= r != r
            negative |= r < 0.0 and least[u] > 0.0
            rate[u, v] = bounded(r, least[u])
    flags[0] |= nan
    flags[1] |= negative


# --- currents -------------------------------------------------------------------------------------


@inline
def driveSlope(gain, drive, d):
    """Return the derivative of conductance times driving force by a direction.

    gain (2, 1 + n_directions): conductance and reversal potential, each with its derivatives.
    """
    return gain[0, 1 + d] * drive - gain[0, 0] * gain[1, 1 + d]


def showCurrent(conductances, x, dx, gain, voltage, out, place):
    """Write a current and its derivatives, from the state x and its derivatives dx, to a place."""
    drive = voltage - gain[1, 0]
    s, is_open = gain[0, 0] * drive, 0.0
    for i in range(x.shape[0]):
        is_open += conductances[i] * x[i]
    out[place] = s * is_open
    for d in range(gain.shape[1] - 1):
        bent = 0.0
        for i in range(x.shape[0]):
            bent += conductances[i] * dx[i, d]
        ds = driveSlope(gain, drive, d)
        out[place + 1 + d] = s * bent + ds * is_open


@kernel
def addTerm(drive, slope, partials, own, rows, at, is_open, table):
    """Add a term, its drive times its open probability, to currents and their derivatives.

    drive (n_voltages,); slope (n_partials, n_voltages) and partials (n_partials, 2) of all drives,
    of which the term's has the number own. rows (n,): of the table (.., width), which currents are;
    at (n,): their voltages. is_open: the open probability with its derivatives, in places like the
    table's; empty for a term that is always open.
    """
    width, opens = table.shape[1], is_open.shape[0] > 0
    for p in range(rows.shape[0]):
        current, v = table[rows[p]], at[p]
        whole = 1.0
        if opens:
            begin = rows[p] * width
            opened = is_open[begin : begin + width]
            whole = opened[0]
            for d in range(width):
                current[d] += drive[v] * opened[d]
        else:
            current[0] += drive[v]
        for k in range(partials.shape[0]):
            if partials[k, 0] == own:
                current[1 + partials[k, 1]] += slope[k, v] * whole
