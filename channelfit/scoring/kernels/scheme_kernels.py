# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""States and currents of one scheme with their derivatives: the kernels of its linearization.

Written by hand, loops over states and directions, compiled once and cached. Chains of two states
have `relaxation_kernels`, smooth varying voltage has `ramp_kernels`.

Names: a *rate* is a distinct rate expression u, a *direction* d a parameter that is not fixed.
Matrices are differentiated by the logarithm of each rate (`matrix_kernels`), states (`x`, with
`dx`) by direction; `slope[v, u, d]`, d log rate / d direction, leads from one to the other.

Each kernel is compiled when it is first called.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import RATE_FLOOR
from channelfit.scoring.kernels.integration import LESS, MORE
from channelfit.scoring.kernels.matrix_kernels import closeColumns, product, propagator, steadyState
from channelfit.scoring.kernels.tangent_tables import (
    N_POINTS,
    OUT,
    POINTS,
    SOURCE,
    STRIDE,
    TABLE,
    TARGET,
    VOLTAGE,
    N,
    driveSlope,
    showCurrent,
)
from channelfit.scoring.machine.kernel_math import exp
from channelfit.scoring.machine.machine_code import plain_kernel


@plain_kernel
def schemeTables(
    rate,
    slope,
    start_voltage,
    table_voltage,
    table_dt,
    levels,
    transitions,
    powers,
    dpowers,
    states,
    dstates,
    m,
    dm,
):
    """Store propagators of 2^0 .. 2^(levels - 1) samples, and states at rest in the first slots.

    rate (n_voltages, n_rates); powers (n_tables, n_levels, n, n); states (n_slots, n), dstates
    (n_slots, n, n_directions).
    """
    n, n_rates, n_directions = states.shape[1], dm.shape[3], dstates.shape[2]
    depth = np.empty(rate.shape[1])
    for k in range(table_dt.shape[0]):
        v = table_voltage[k]
        for u in range(rate.shape[1]):
            depth[u] = rate[v, u] * table_dt[k]
        propagator(depth, transitions, powers[k, 0], dpowers[k, 0], m, dm)
        for level in range(1, levels[k]):
            p, dp = powers[k, level - 1], dpowers[k, level - 1]
            product(p, dp, p, dp, powers[k, level], dpowers[k, level])
            closeColumns(powers[k, level], dpowers[k, level])
    by_rate = np.empty((n, n_rates))
    for k in range(start_voltage.shape[0]):
        v = start_voltage[k]
        steadyState(rate[v], transitions, states[k], by_rate, m[0], dm[0])
        for i in range(n):
            for d in range(n_directions):
                total = 0.0
                for u in range(n_rates):
                    total += by_rate[i, u] * slope[v, u, d]
                dstates[k, i, d] = total


def _stepped(x, z, x2, z2, p, dp, row, scratch):
    """Advance x <- p x, z <- p z + dp x, row <- row p; x2, z2 are scratch."""
    n, n_rates = p.shape[0], z.shape[1]
    for i in range(n):
        x2[i] = 0.0
        for u in range(n_rates):
            z2[i, u] = 0.0
        for j in range(n):
            there, here = p[i, j], x[j]
            x2[i] += there * here
            for u in range(n_rates):
                z2[i, u] += there * z[j, u] + dp[i, j, u] * here
    for j in range(n):
        total = 0.0
        for i in range(n):
            total += row[i] * p[i, j]
        scratch[0, j] = total
    for i in range(n):
        x[i] = x2[i]
        row[i] = scratch[0, i]
        for u in range(n_rates):
            z[i, u] = z2[i, u]


def _passed(n_samples, x, z, x2, z2, powers, dpowers, row, scratch):
    """Advance x, z and row by some samples, by the propagators of 1, 2, 4 .. samples."""
    level = 0
    while n_samples > 0:
        if n_samples & 1:
            _stepped(x, z, x2, z2, powers[level], dpowers[level], row, scratch)
        n_samples >>= 1
        level += 1


@plain_kernel
def schemeHeld(
    runs,
    first,
    last,
    voltages,
    points,
    conductances,
    slope,
    powers,
    dpowers,
    gain,
    states,
    dstates,
    out,
):
    """Take the held runs first .. last - 1: currents and derivatives at their points."""
    n, n_directions = states.shape[1], gain.shape[1] - 1
    n_rates = dpowers.shape[4]
    x, x2, row = np.empty(n), np.empty(n), np.empty(n)
    z, z2, scratch = np.empty((n, n_rates)), np.empty((n, n_rates)), np.empty((1, n))
    open_by_rate = np.empty(n_rates)
    width = dstates.shape[2]
    moved, moved2, open_by = np.empty((n, width)), np.empty((n, width)), np.empty(width)
    for r in range(first, last):
        source, target = runs[r, SOURCE], runs[r, TARGET]
        table, v = runs[r, TABLE], runs[r, VOLTAGE]
        n_samples = runs[r, N]
        for i in range(n):
            x[i] = states[source, i]
            row[i] = conductances[i]
            for u in range(n_rates):
                z[i, u] = 0.0
        drive = voltages[v] - gain[1, 0]
        s = gain[0, 0] * drive
        place, done = runs[r, OUT], 0
        for k in range(runs[r, N_POINTS]):
            here = points[runs[r, POINTS] + k]
            _passed(here - done, x, z, x2, z2, powers[table], dpowers[table], row, scratch)
            done = here
            is_open = 0.0
            for u in range(n_rates):
                open_by_rate[u] = 0.0
            for d in range(width):
                open_by[d] = 0.0
            for i in range(n):
                is_open += conductances[i] * x[i]
                if conductances[i] != 0.0:
                    for u in range(n_rates):
                        open_by_rate[u] += conductances[i] * z[i, u]
                for d in range(width):
                    open_by[d] += row[i] * dstates[source, i, d]
            for u in range(n_rates):
                for d in range(width):
                    open_by[d] += open_by_rate[u] * slope[v, u, d]
            out[place] = s * is_open
            for d in range(n_directions):
                ds = driveSlope(gain, drive, d)
                out[place + 1 + d] = s * open_by[d] + ds * is_open
            place += runs[r, STRIDE]
        _passed(n_samples - done, x, z, x2, z2, powers[table], dpowers[table], row, scratch)
        for i in range(n):
            for d in range(width):
                moved[i, d] = dstates[source, i, d]
        gap, level = n_samples, 0
        while gap > 0:
            if gap & 1:
                p = powers[table, level]
                for i in range(n):
                    for d in range(width):
                        moved2[i, d] = 0.0
                    for j in range(n):
                        there = p[i, j]
                        for d in range(width):
                            moved2[i, d] += there * moved[j, d]
                moved, moved2 = moved2, moved
            gap >>= 1
            level += 1
        for i in range(n):
            states[target, i] = x[i]
            for d in range(width):
                dstates[target, i, d] = moved[i, d]
            for u in range(n_rates):
                for d in range(width):
                    dstates[target, i, d] += z[i, u] * slope[v, u, d]


@plain_kernel
def byVoltage(rate, slope, partials, n_voltages, rate_v, slope_v):
    """Copy rates (n_rates, n_voltages) and slopes (n_partials, n_voltages) with voltage first.

    Derivatives that are 0 for certain are filled in.
    """
    slope_v[:n_voltages] = 0.0
    for v in range(n_voltages):
        for u in range(rate.shape[0]):
            rate_v[v, u] = rate[u, v]
        for k in range(partials.shape[0]):
            slope_v[v, partials[k, 0], partials[k, 1]] = slope[k, v]


@plain_kernel
def stiffness(h, rate, transitions, out):
    """Store, in out (n_steps,), the largest exit rate times step of both halves, added.

    rate (2 n_steps, n_rates): at the Gauss points.
    """
    more, less = MORE * h, LESS * h
    n = 0
    for t in range(transitions.shape[0]):
        n = max(n, transitions[t, 0] + 1)
    first, second = np.empty(n), np.empty(n)
    for step in range(out.shape[0]):
        one, two = rate[2 * step], rate[2 * step + 1]
        first[:] = 0.0
        second[:] = 0.0
        for t in range(transitions.shape[0]):
            i, u, times = transitions[t, 0], transitions[t, 2], transitions[t, 3]
            first[i] += times * max(more * one[u] + less * two[u], RATE_FLOOR)
            second[i] += times * max(less * one[u] + more * two[u], RATE_FLOOR)
        fastest, last = 0.0, 0.0
        for i in range(n):
            fastest, last = max(fastest, first[i]), max(last, second[i])
        out[step] = fastest + last


#: The series of an exponential is cut into parts of this depth (exit rate times time) ..
_PART = 8.0
#: .. and from this depth on the propagator with all its derivatives costs less.
_MOST_IN_SERIES = 24.0


def _exponential(depth, bend, x, dx, columns, transitions, m, dm):
    """Advance x and dx by exp(A); depth (n_rates,): rates times time; bend: slopes of their logs.

    The series acts on the columns of y (n, n + 1 + n_rates, padded): those of the identity, then x,
    then its derivatives by the logarithm of each rate, which start at zero and are fed by x in
    every term. The product of the identity then carries the derivatives that x had before.
    A = B - a with B >= 0 and a the fastest exit, so that the series adds without cancellation.
    columns (3, ..) is scratch: y, a term of the series, and the next one.
    """
    y, term, fresh = columns[0], columns[1], columns[2]
    n, lanes, n_rates, width = x.shape[0], y.shape[1], dm.shape[3], bend.shape[1]
    leaving, flow = np.zeros(n), np.empty(transitions.shape[0])
    for t in range(transitions.shape[0]):
        flow[t] = transitions[t, 3] * depth[transitions[t, 2]]
        leaving[transitions[t, 0]] += flow[t]
    fastest = 0.0
    for i in range(n):
        fastest = max(fastest, leaving[i])
        for k in range(lanes):
            y[i, k] = 0.0
    if fastest > _MOST_IN_SERIES:
        propagator(depth, transitions, m[7], dm[7], m, dm)
        for i in range(n):
            for j in range(n):
                y[i, j] = m[7, i, j]
                y[i, n] += m[7, i, j] * x[j]
                for u in range(n_rates):
                    y[i, n + 1 + u] += dm[7, i, j, u] * x[j]
    else:
        for i in range(n):
            y[i, i] = 1.0
            y[i, n] = x[i]
        parts = 1 + int(fastest / _PART)
        shift = fastest / parts
        left, enough = exp(-shift), 1e-18 * exp(shift)
        for _ in range(parts):
            for i in range(n):
                for k in range(lanes):
                    term[i, k] = y[i, k]
            size, degree = 1.0, 0.0
            # the terms of the derivatives are those of the value, one degree later
            while degree < 4.0 or size > enough:
                degree += 1.0
                size *= shift / degree
                share = 1.0 / (degree * parts)
                for i in range(n):
                    stay = (fastest - leaving[i]) * share
                    for k in range(lanes):
                        fresh[i, k] = stay * term[i, k]
                for t in range(transitions.shape[0]):
                    i, j, u = transitions[t, 0], transitions[t, 1], transitions[t, 2]
                    r = flow[t] * share
                    for k in range(lanes):
                        fresh[j, k] += r * term[i, k]
                    if u < n_rates:
                        fresh[i, n + 1 + u] -= r * term[i, n]
                        fresh[j, n + 1 + u] += r * term[i, n]
                for i in range(n):
                    for k in range(lanes):
                        y[i, k] += fresh[i, k]
                term, fresh = fresh, term
            for i in range(n):
                for k in range(lanes):
                    y[i, k] *= left
    for i in range(n):
        x[i] = y[i, n]
        for d in range(width):
            term[i, d] = 0.0
        for j in range(n):
            p = y[i, j]
            for d in range(width):
                term[i, d] += p * dx[j, d]
        for u in range(n_rates):
            z = y[i, n + 1 + u]
            for d in range(width):
                term[i, d] += z * bend[u, d]
    for i in range(n):
        for d in range(width):
            dx[i, d] = term[i, d]


def _combined(half, h, rate, slope, depth, bend):
    """Store rates times ms and slopes of a half of a step of h ms (Blanes and Moan 2006).

    rate, slope: first at the two Gauss points of the step.
    """
    one, two = (MORE * h, LESS * h) if half == 0 else (LESS * h, MORE * h)
    for u in range(rate.shape[1]):
        first, second = one * rate[0, u], two * rate[1, u]
        both = first + second
        depth[u] = max(both, RATE_FLOOR)
        scale = 1.0 / both if both > RATE_FLOOR else 0.0
        first, second = first * scale, second * scale
        for d in range(slope.shape[2]):
            bend[u, d] = first * slope[0, u, d] + second * slope[1, u, d]


@plain_kernel
def schemeVarying(
    n_steps,
    n_sub,
    h,
    sampled,
    rate,
    slope,
    quarters,
    transitions,
    conductances,
    sample_voltage,
    gain,
    x,
    dx,
    out,
    place,
    m,
    dm,
):
    """Take x, dx through n_steps steps of h ms, a sample before each n_sub-th.

    rate, slope: first at the two Gauss points of each step. quarters (n_steps,): -1, or the first
    of eight rows further on: those of the quarters of a step.
    """
    n, n_rates, width = x.shape[0], rate.shape[1], dx.shape[1]
    lanes = 8 * ((max(n + 1 + n_rates, width) + 7) // 8)
    depth, bend = np.empty(n_rates), np.empty((n_rates, width))
    columns = np.zeros((3, n, lanes))
    for step in range(n_steps):
        if sampled and step % n_sub == 0:
            showCurrent(conductances, x, dx, gain, sample_voltage[step // n_sub], out, place)
            place += gain.shape[1]
        parts, node = (1, 2 * step) if quarters[step] < 0 else (4, quarters[step])
        for part in range(2 * parts):
            here = node + 2 * (part // 2)
            _combined(part % 2, h / parts, rate[here:], slope[here:], depth, bend)
            _exponential(depth, bend, x, dx, columns, transitions, m, dm)
