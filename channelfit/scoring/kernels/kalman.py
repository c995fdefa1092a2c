# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The Kalman filter of a current that channels carry one by one, with derivatives: kernels.

The state is the share of the channels in each state. Given all samples so far it has the mean m
and the covariance V/N, where N is the number of channels. Channels that move by themselves, with
the propagator T, take it to the mean T m and the covariance of multinomial counts (Moffatt 2007,
Biophys J 93:74-91)

    T (V - diag m) T^T + diag(T m)

where a share that the samples have made negative, as they may where few channels are, spreads none:
m there is 0, or V would lose what makes it a covariance.

A sample y of the current D c.m + leak, where D is the current of N open channels and c the
conductance of each state in those of the open one, is expected with the variance

    S = D^2/N c^T V c + instrument^2 + N open^2 sum c^2 m

and changes mean and covariance as Kalman's filter does, with the noise of open channels at its
expected size (Münch et al. 2022, eLife 11:e62714). Everything is differentiated by *direction*, a
parameter that is not fixed; see `scheme_kernels` for rates, and their derivatives.
"""

from __future__ import annotations

import numpy as np

from channelfit.scoring.kernels.matrix_kernels import propagator, steadyState
from channelfit.scoring.machine.machine_code import kernel, plain_kernel

#: Columns of the moves of a filter: the propagator that follows, the voltage before it, the place
#: of the sample there (-1 for none), and whether the sample counts.
TABLE, VOLTAGE, PLACE, COUNTS = range(4)
#: Rows of the quantities of a model: of each voltage the current of all channels when open and
#: the leak, pA; then the number of channels, and the noise of amplifier and open channel, pA.
DRIVE, LEAKAGE, CHANNELS, INSTRUMENT, OPEN = range(5)


@plain_kernel
def quantityTables(rows, rate, slope, partials, out):
    """Copy the rows of `rate` (.., n_voltages) that are quantities to out, with derivatives.

    rows (n_quantities,): which of them. slope (n_partials, n_voltages); partials (n_partials, 2):
    row, direction. out (n_quantities, n_voltages, 1 + n_directions).
    """
    out[:] = 0.0
    for q in range(rows.shape[0]):
        for v in range(out.shape[1]):
            out[q, v, 0] = rate[rows[q], v]
        for k in range(partials.shape[0]):
            if partials[k, 0] == rows[q] and out.shape[2] > 1:
                for v in range(out.shape[1]):
                    out[q, v, 1 + partials[k, 1]] = slope[k, v]


@plain_kernel
def filterTables(
    rate,
    slope,
    start_voltage,
    table_voltage,
    table_dt,
    transitions,
    rest,
    drest,
    powers,
    dpowers,
    m,
    dm,
):
    """Store states at rest (n_starts, n) and propagators (n_tables, n, n), by direction.

    rate (n_voltages, n_rates); slope (n_voltages, n_rates, n_directions), d log rate / d direction.
    m (8, n, n), dm (8, n, n, n_rates): scratch; without rates in `dm` nothing is differentiated.
    """
    n, n_rates, width = rest.shape[1], dm.shape[3], drest.shape[2]
    depth, p = np.empty(rate.shape[1]), np.empty((n, n))
    x, dx = np.empty(n), np.empty((n, n_rates))
    drest[:] = 0.0
    dpowers[:] = 0.0
    for s in range(start_voltage.shape[0]):
        v = start_voltage[s]
        steadyState(rate[v], transitions, x, dx, m[0], dm[0])
        for i in range(n):
            rest[s, i] = x[i]
            for u in range(n_rates):
                for d in range(width):
                    drest[s, i, d] += dx[i, u] * slope[v, u, d]
    for t in range(table_voltage.shape[0]):
        v = table_voltage[t]
        for u in range(rate.shape[1]):
            depth[u] = rate[v, u] * table_dt[t]
        propagator(depth, transitions, p, dm[7], m, dm)
        for i in range(n):
            for j in range(n):
                powers[t, i, j] = p[i, j]
                for u in range(n_rates):
                    for d in range(width):
                        dpowers[t, i, j, d] += dm[7, i, j, u] * slope[v, u, d]


def predict(t, dt, x, dx, v, dv, scratch, dscratch):
    """Move the mean x and the covariance v of the shares, times N, and their derivatives."""
    n, width = x.shape[0], dx.shape[1]
    moved, spread, c = scratch[n], scratch[n + 1], scratch[:n]
    dmoved, dspread, dc = dscratch[n], dscratch[n + 1], dscratch[:n]
    for i in range(n):
        if x[i] > 0.0:
            v[i, i] -= x[i]
            for d in range(width):
                dv[i, i, d] -= dx[i, d]
    for i in range(n):
        moved[i] = 0.0
        spread[i] = 0.0
        for d in range(width):
            dmoved[i, d] = 0.0
            dspread[i, d] = 0.0
        for k in range(n):
            left, other = t[i, k], x[k]
            counts = 1.0 if other > 0.0 else 0.0
            moved[i] += left * other
            spread[i] += counts * left * other
            for d in range(width):
                change = left * dx[k, d] + dt[i, k, d] * other
                dmoved[i, d] += change
                dspread[i, d] += counts * change
        for j in range(n):
            c[i, j] = 0.0
            row = dc[i, j]
            for d in range(width):
                row[d] = 0.0
            for k in range(n):
                left, right = t[i, k], v[k, j]
                c[i, j] += left * right
                one, two = dv[k, j], dt[i, k]
                for d in range(width):
                    row[d] += left * one[d] + two[d] * right
    for i in range(n):
        x[i] = moved[i]
        for d in range(width):
            dx[i, d] = dmoved[i, d]
        for j in range(i + 1):
            v[i, j] = 0.0
            row = dv[i, j]
            for d in range(width):
                row[d] = 0.0
            for k in range(n):
                left, right = c[i, k], t[j, k]
                v[i, j] += left * right
                one, two = dt[j, k], dc[i, k]
                for d in range(width):
                    row[d] += left * one[d] + two[d] * right
            if i == j:
                v[i, i] += spread[i]
                for d in range(width):
                    row[d] += dspread[i, d]
            v[j, i] = v[i, j]
            for d in range(width):
                dv[j, i, d] = row[d]


@kernel
def kalmanFilter(
    courses,
    moves,
    data,
    conductances,
    rest,
    drest,
    powers,
    dpowers,
    quantities,
    predicted,
    sums,
    gradient,
    hessian,
):
    """Filter all samples; return whether all were expected with a variance above 0.

    courses (n_courses, 3): the first of its moves, behind the last, and the state at rest from
    which it begins. moves (n_moves, 4): TABLE .. COUNTS. data (n_samples,) pA.
    predicted (n_samples, 2): is filled with the mean and the variance with which each sample is
    expected, where it has room. sums (1,): twice the negative logarithm of the likelihood, but for
    the constant n log(2 pi); gradient (n_directions,), of it; hessian (n_directions, n_directions),
    the information in the samples, twice: sum of 2 de de^T/S + dS dS^T/S^2.
    """
    n, width = rest.shape[1], drest.shape[2]
    x, dx = np.empty(n), np.empty((n, width))
    v, dv = np.empty((n, n)), np.empty((n, n, width))
    w, dw = np.empty(n), np.empty((n, width))
    scratch, dscratch = np.empty((n + 2, n)), np.empty((n + 2, n, width))
    de, ds = np.empty(width), np.empty(width)
    d_gain, d_common = np.empty(width), np.empty(width)
    channels, instrument = quantities[CHANNELS, 0, 0], quantities[INSTRUMENT, 0, 0]
    noisy = quantities[OPEN, 0, 0]
    sums[0] = 0.0
    gradient[:] = 0.0
    hessian[:] = 0.0
    for course in range(courses.shape[0]):
        start = courses[course, 2]
        for i in range(n):
            x[i] = rest[start, i]
            for d in range(width):
                dx[i, d] = drest[start, i, d]
        for i in range(n):
            for j in range(n):
                v[i, j] = (x[i] if i == j else 0.0) - x[i] * x[j]
                for d in range(width):
                    same = dx[i, d] if i == j else 0.0
                    dv[i, j, d] = same - dx[i, d] * x[j] - x[i] * dx[j, d]
        for k in range(courses[course, 0], courses[course, 1]):
            place, at = moves[k, PLACE], moves[k, VOLTAGE]
            if place >= 0:
                drive, leak = quantities[DRIVE, at, 0], quantities[LEAKAGE, at, 0]
                is_open, spread, loud = 0.0, 0.0, 0.0
                for i in range(n):
                    w[i] = 0.0
                    for j in range(n):
                        w[i] += v[i, j] * conductances[j]
                    is_open += conductances[i] * x[i]
                    spread += conductances[i] * w[i]
                    loud += conductances[i] * conductances[i] * x[i]
                positive = 1.0 if loud > 0.0 else 0.0
                loud *= positive
                mean = drive * is_open + leak
                each = drive * drive / channels
                variance = each * spread + instrument * instrument + channels * noisy * noisy * loud
                if not variance > 0.0:
                    return False
                if predicted.shape[0]:
                    predicted[place, 0] = mean
                    predicted[place, 1] = variance
                if moves[k, COUNTS]:
                    error = data[place] - mean
                    sums[0] += np.log(variance) + error * error / variance
                    gain, common = drive / channels / variance, each / variance
                    for d in range(width):
                        de[d] = -quantities[DRIVE, at, 1 + d] * is_open
                        de[d] -= quantities[LEAKAGE, at, 1 + d]
                        d_each = 2.0 * drive * quantities[DRIVE, at, 1 + d] / channels
                        d_each -= each / channels * quantities[CHANNELS, 0, 1 + d]
                        ds[d] = d_each * spread
                        ds[d] += 2.0 * instrument * quantities[INSTRUMENT, 0, 1 + d]
                        ds[d] += noisy * noisy * loud * quantities[CHANNELS, 0, 1 + d]
                        ds[d] += 2.0 * channels * noisy * loud * quantities[OPEN, 0, 1 + d]
                    for i in range(n):
                        c = conductances[i]
                        for d in range(width):
                            dw[i, d] = 0.0
                        for j in range(n):
                            for d in range(width):
                                dw[i, d] += dv[i, j, d] * conductances[j]
                        more = channels * noisy * noisy * c * c * positive
                        for d in range(width):
                            de[d] -= drive * c * dx[i, d]
                            ds[d] += each * c * dw[i, d] + more * dx[i, d]
                    for a in range(width):
                        share, change = de[a] / variance, ds[a] / variance
                        gradient[a] += 2.0 * error * share
                        gradient[a] += change * (1.0 - error * error / variance)
                        for b in range(a + 1):
                            hessian[a, b] += 2.0 * share * de[b] + change * ds[b] / variance
                    for d in range(width):
                        relative = ds[d] / variance
                        of_channels = quantities[CHANNELS, 0, 1 + d] / channels
                        of_drive = quantities[DRIVE, at, 1 + d] / channels / variance
                        d_gain[d] = of_drive - gain * (of_channels + relative)
                        d_common[d] = 2.0 * of_drive * drive - common * (of_channels + relative)
                    for i in range(n):
                        x[i] += gain * w[i] * error
                        for d in range(width):
                            moved = d_gain[d] * error + gain * de[d]
                            dx[i, d] += moved * w[i] + gain * error * dw[i, d]
                        for j in range(n):
                            both = w[i] * w[j]
                            v[i, j] -= common * both
                            one, other = common * w[j], common * w[i]
                            for d in range(width):
                                lost = d_common[d] * both + one * dw[i, d] + other * dw[j, d]
                                dv[i, j, d] -= lost
            predict(
                powers[moves[k, TABLE]], dpowers[moves[k, TABLE]], x, dx, v, dv, scratch, dscratch
            )
    for a in range(width):
        for b in range(a):
            hessian[b, a] = hessian[a, b]
    return sums[0] == sums[0]
