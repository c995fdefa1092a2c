# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Chains of two states (or one) and their currents, with derivatives; see `scheme_kernels`.

All candidates of a thread are one call, `relaxNormals`: threads that came back to Python between
its parts would wait for each other longer than they work.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import GREATEST_GAIN
from channelfit.scoring.kernels.integration import (
    moments,
    relaxations,
    slopes_by_speeds,
    within,
)
from channelfit.scoring.kernels.tangent_tables import (
    N_POINTS,
    OUT,
    POINTS,
    SOURCE,
    STRIDE,
    TARGET,
    VOLTAGE,
    N,
    boundRates,
    driveSlope,
    project,
)
from channelfit.scoring.machine.kernel_math import decay, exp
from channelfit.scoring.machine.machine_code import plain_kernel

#: Columns of the table of stretches: held runs FIRST to LAST - 1 where STEPS is -1, else a varying
#: run and where its voltages begin, and the places of its samples (OUT_FIRST -1: none).
FIRST, LAST, STEPS, SUBSTEPS, EDGES, MIDDLES, SAMPLES, OUT_FIRST = range(8)

#: Columns of the table of chains; UP and DOWN are rates, or -1 in a chain of one state. LINEAR and
#: INSTANT as in `model.Chain`.
UP, DOWN, TIMES_UP, TIMES_DOWN, POWER, N_DIRECTIONS, LINEAR, INSTANT = range(8)


def _limits(chain, rows, rate, slope, n, speed, limit, dspeed, dlimit):
    """Store speed and limit of a chain at n voltages, and derivatives by its own directions.

    rows (n_own, 2): rows of `slope` for opening and closing, -1 where there is none.
    """
    up, down = chain[UP], chain[DOWN]
    for v in range(n):
        opening, closing = chain[TIMES_UP] * rate[up, v], chain[TIMES_DOWN] * rate[down, v]
        speed[v] = opening + closing
        limit[v] = opening / speed[v]
    for j in range(chain[N_DIRECTIONS]):
        first, second = rows[j, 0], rows[j, 1]
        for v in range(n):
            a = slope[first, v] if first >= 0 else 0.0
            b = slope[second, v] if second >= 0 else 0.0
            opening, closing = limit[v], chain[TIMES_DOWN] * rate[down, v] / speed[v]
            dspeed[j, v] = speed[v] * (opening * a + closing * b)
            dlimit[j, v] = opening * closing * (a - b)


def _currents(
    chains, directions, is_open, dopen, gain, n, first_voltage, voltage, out, place, stride
):
    """Store n currents from the open shares (n_chains, n) of every chain,
    dopen (n_chains, n_own, n).
    """
    n_directions = gain.shape[1] - 1
    for k in range(n):
        drive = voltage[first_voltage + k] - gain[1, 0]
        s, whole = gain[0, 0] * drive, 1.0
        for c in range(chains.shape[0]):
            for _ in range(chains[c, POWER]):
                whole *= is_open[c, k]
        out[place] = s * whole
        for d in range(n_directions):
            ds = driveSlope(gain, drive, d)
            out[place + 1 + d] = ds * whole
        for c in range(chains.shape[0]):
            if chains[c, N_DIRECTIONS] == 0:
                continue
            partial = s * chains[c, POWER]
            for other in range(chains.shape[0]):
                power = chains[other, POWER] - (1 if other == c else 0)
                for _ in range(power):
                    partial *= is_open[other, k]
            for j in range(chains[c, N_DIRECTIONS]):
                out[place + 1 + directions[c, j]] += partial * dopen[c, j, k]
        place += stride


def _rest(chains, rows, rate, slope, start_voltage, states, dstates):
    """Store states at rest in the first slots of states (n_slots, n_chains),
    dstates (.., n_own).
    """
    n_v, widest = rate.shape[1], dstates.shape[2]
    speed, limit = np.empty(n_v), np.empty(n_v)
    dspeed, dlimit = np.empty((widest, n_v)), np.empty((widest, n_v))
    for c in range(chains.shape[0]):
        if chains[c, UP] < 0:
            continue
        _limits(chains[c], rows[c], rate, slope, n_v, speed, limit, dspeed, dlimit)
        for k in range(start_voltage.shape[0]):
            states[k, c] = limit[start_voltage[k]]
            for j in range(chains[c, N_DIRECTIONS]):
                dstates[k, c, j] = dlimit[j, start_voltage[k]]


def _held(
    runs,
    run_dt,
    first,
    last,
    voltages,
    points,
    chains,
    rows,
    directions,
    conductances,
    rate,
    slope,
    gain,
    states,
    dstates,
    out,
):
    """Take the held runs first .. last - 1: currents and derivatives at their points."""
    n_v, n_chains, widest = rate.shape[1], chains.shape[0], dstates.shape[2]
    speed, limit = np.empty((n_chains, n_v)), np.empty((n_chains, n_v))
    dspeed = np.empty((n_chains, widest, n_v))
    dlimit = np.empty((n_chains, widest, n_v))
    for c in range(n_chains):
        if chains[c, UP] >= 0:
            _limits(chains[c], rows[c], rate, slope, n_v, speed[c], limit[c], dspeed[c], dlimit[c])
    most = 1
    for r in range(first, last):
        most = max(most, runs[r, N_POINTS])
    is_open, dopen = np.empty((n_chains, most)), np.empty((n_chains, widest, most))
    held, gone, left = np.empty(most), np.empty(most), np.empty(most)
    for r in range(first, last):
        source, target, v = runs[r, SOURCE], runs[r, TARGET], runs[r, VOLTAGE]
        n_points, begin, dt = runs[r, N_POINTS], runs[r, POINTS], run_dt[r]
        for c in range(n_chains):
            closed, opened = conductances[c, 0], conductances[c, 1]
            if chains[c, UP] < 0:
                for k in range(n_points):
                    is_open[c, k] = closed
                continue
            fast, x = speed[c, v], states[source, c]
            instant = chains[c, INSTANT] != 0
            x = limit[c, v] if instant else x
            away = limit[c, v] - x
            for k in range(n_points):
                t = dt * points[begin + k]
                gone[k], left[k] = decay(fast * t), exp(-fast * t)
                is_open[c, k] = closed + (opened - closed) * (x + away * gone[k])
            for j in range(chains[c, N_DIRECTIONS]):
                ds, dl = dspeed[c, j, v], dlimit[c, j, v]
                dx = dl if instant else dstates[source, c, j]
                for k in range(n_points):
                    t = dt * points[begin + k]
                    slope_x = dx * left[k] + dl * gone[k] + away * (t * ds * left[k])
                    dopen[c, j, k] = (opened - closed) * slope_x
        for k in range(n_points):
            held[k] = voltages[v]
        _currents(
            chains,
            directions,
            is_open,
            dopen,
            gain,
            n_points,
            0,
            held,
            out,
            runs[r, OUT],
            runs[r, STRIDE],
        )
        t = dt * runs[r, N]
        for c in range(n_chains):
            if chains[c, UP] < 0:
                continue
            fast, x = speed[c, v], states[source, c]
            away, now, rest = limit[c, v] - x, decay(fast * t), exp(-fast * t)
            for j in range(chains[c, N_DIRECTIONS]):
                bent = dstates[source, c, j] * rest + dlimit[c, j, v] * now
                dstates[target, c, j] = bent + away * (t * dspeed[c, j, v] * rest)
            states[target, c] = x + away * now


def _relaxations(
    n,
    h,
    speed,
    limit,
    dspeed,
    dlimit,
    middle_speed,
    middle_limit,
    middle_dspeed,
    middle_dlimit,
    n_own,
    kept,
    gained,
    dkept,
    dgained,
):
    """Store n steps x -> kept x + gained of one chain; see `cpu_varying.RelaxationSteps`.

    speed, limit (n + 1,) at the edges of the steps, middle_.. (n,) between them.
    """
    for i in range(n):
        s0, s1, s2 = speed[i], middle_speed[i], speed[i + 1]
        x0, x1, x2 = limit[i], middle_limit[i], limit[i + 1]
        whole, later = relaxations(s0, s1, s2, h)
        half = within(whole, later)
        left, square = exp(-whole), whole * whole
        j0, j1, j2 = moments(whole, left)
        rest = whole - half
        slope = (x1 - x2) / half
        bend = ((x0 - x2) / whole - slope) / rest
        curved = j2 - half * j1
        kept[i] = left
        gained[i] = x2 * j0 + slope * j1 + bend * curved
        # by the limits, and by the two depths
        by0 = curved / (whole * rest)
        by1 = j1 / half - curved / (half * rest)
        by2 = j0 - j1 / half + curved / rest * (1.0 / half - 1.0 / whole)
        by_half = -slope / half * j1 + (slope / half + bend) / rest * curved - bend * j1
        by_whole = left * (x2 + slope * whole + bend * (square - half * whole))
        by_whole -= ((x0 - x2) / square + bend) / rest * curved
        cut = half / whole
        free = 1.0 if half == later else 0.0
        by_whole += (1.0 - free) * cut * by_half
        by_half *= free
        for_s0, for_s1, for_s2 = slopes_by_speeds(by_whole, by_half, h)
        for j in range(n_own):
            d0, d1, d2 = dspeed[j, i], middle_dspeed[j, i], dspeed[j, i + 1]
            dkept[j, i] = -left * (h / 6.0) * (d0 + 4.0 * d1 + d2)
            by_limits = by0 * dlimit[j, i] + by1 * middle_dlimit[j, i] + by2 * dlimit[j, i + 1]
            dgained[j, i] = for_s0 * d0 + for_s1 * d1 + for_s2 * d2 + by_limits


def _varying(
    n_steps,
    n_sub,
    h,
    sampled,
    rate,
    slope,
    middle_rate,
    middle_slope,
    sample_voltage,
    chains,
    rows,
    directions,
    conductances,
    gain,
    x,
    dx,
    out,
    place,
):
    """Take x (n_chains,), dx (.., n_own) through n_steps of h ms, a sample before each n_sub-th.

    rate, slope: at the n_steps + 1 edges of the steps; middle_..: between them.
    """
    n_chains, widest = dx.shape
    n_samples = (n_steps + n_sub - 1) // n_sub
    speed, limit = np.empty(n_steps + 1), np.empty(n_steps + 1)
    dspeed, dlimit = np.empty((widest, n_steps + 1)), np.empty((widest, n_steps + 1))
    middle_speed, middle_limit = np.empty(n_steps), np.empty(n_steps)
    middle_dspeed, middle_dlimit = np.empty((widest, n_steps)), np.empty((widest, n_steps))
    kept, gained = np.empty(n_steps), np.empty(n_steps)
    dkept, dgained = np.empty((widest, n_steps)), np.empty((widest, n_steps))
    is_open, dopen = np.empty((n_chains, n_samples)), np.empty((n_chains, widest, n_samples))
    for c in range(n_chains):
        closed, opened = conductances[c, 0], conductances[c, 1]
        if chains[c, UP] < 0:
            is_open[c] = closed
            continue
        n_own = chains[c, N_DIRECTIONS]
        _limits(chains[c], rows[c], rate, slope, n_steps + 1, speed, limit, dspeed, dlimit)
        _limits(
            chains[c],
            rows[c],
            middle_rate,
            middle_slope,
            n_steps,
            middle_speed,
            middle_limit,
            middle_dspeed,
            middle_dlimit,
        )
        _relaxations(
            n_steps,
            h,
            speed,
            limit,
            dspeed,
            dlimit,
            middle_speed,
            middle_limit,
            middle_dspeed,
            middle_dlimit,
            n_own,
            kept,
            gained,
            dkept,
            dgained,
        )
        here = x[c]
        if chains[c, INSTANT]:
            here = limit[0]
            for j in range(n_own):
                dx[c, j] = dlimit[j, 0]
        sample = 0
        for i in range(n_steps):
            if i == sample * n_sub:
                is_open[c, sample] = closed + (opened - closed) * here
                for j in range(n_own):
                    dopen[c, j, sample] = (opened - closed) * dx[c, j]
                sample += 1
            new = here * kept[i] + gained[i]
            for j in range(n_own):
                dx[c, j] = kept[i] * dx[c, j] + (dkept[j, i] * here + dgained[j, i])
            here = new if chains[c, LINEAR] else min(max(new, 0.0), 1.0)
            if here != new:
                for j in range(n_own):
                    dx[c, j] = 0.0
        x[c] = here
    if sampled:
        stride = gain.shape[1]
        _currents(
            chains,
            directions,
            is_open,
            dopen,
            gain,
            n_samples,
            0,
            sample_voltage,
            out,
            place,
            stride,
        )


@plain_kernel
def relaxNormals(
    createGains,
    createRates,
    thetas,
    voltages,
    start_voltage,
    runs,
    run_dt,
    stretches,
    edges,
    middles,
    sample_voltage,
    points,
    partials,
    least,
    chains,
    rows,
    directions,
    conductances,
    gain,
    rate,
    slope,
    edge_rate,
    edge_slope,
    middle_rate,
    middle_slope,
    states,
    dstates,
    out,
    matrices,
    groups,
    target,
    scale,
    flat_residuals,
    residuals,
    flags,
    products,
):
    """Store products (n, width, width) of candidates thetas (n, n_parameters); see `project`.

    edges, middles: voltages of varying runs, one after the other. From `gain` (2, width) to `out`
    scratch; a varying run is taken in parts as long as `middle_rate` has room for. flags (n, 2),
    0 before: set to 1 where a rate or gain is not finite, where one is negative.
    """
    n, most = voltages.shape[0], middle_rate.shape[1]
    for c in range(thetas.shape[0]):
        theta, flag = thetas[c], flags[c]
        createGains(theta, gain)
        for k in range(2):
            for d in range(gain.shape[1]):
                if not abs(gain[k, d]) < GREATEST_GAIN:
                    flag[0] = 1
        createRates(voltages, theta, rate, slope)
        boundRates(rate, slope, partials, least, n, flag)
        for k in range(chains.shape[0]):  # of a linear gate the sum, 1/tau, may not be negative
            for v in range(n if chains[k, LINEAR] else 0):
                flag[1] |= rate[chains[k, UP], v] + rate[chains[k, DOWN], v] <= 0.0
        _rest(chains, rows, rate, slope, start_voltage, states, dstates)
        for some in range(stretches.shape[0]):
            stretch = stretches[some]
            if stretch[STEPS] < 0:
                _held(
                    runs,
                    run_dt,
                    stretch[FIRST],
                    stretch[LAST],
                    voltages,
                    points,
                    chains,
                    rows,
                    directions,
                    conductances,
                    rate,
                    slope,
                    gain,
                    states,
                    dstates,
                    out,
                )
                continue
            r, n_steps, n_sub = stretch[FIRST], stretch[STEPS], stretch[SUBSTEPS]
            here, end = runs[r, SOURCE], runs[r, TARGET]
            for k in range(states.shape[1]):
                states[end, k] = states[here, k]
                for j in range(dstates.shape[2]):
                    dstates[end, k, j] = dstates[here, k, j]
            for begin in range(0, n_steps, most):
                taken = min(most, n_steps - begin)
                first, sample = stretch[EDGES] + begin, begin // n_sub
                createRates(edges[first : first + taken + 1], theta, edge_rate, edge_slope)
                boundRates(edge_rate, edge_slope, partials, least, taken + 1, flag)
                first = stretch[MIDDLES] + begin
                createRates(middles[first : first + taken], theta, middle_rate, middle_slope)
                boundRates(middle_rate, middle_slope, partials, least, taken, flag)
                # most and n_sub are powers of two: a part begins with a sample, or has none
                _varying(
                    taken,
                    n_sub,
                    run_dt[r],
                    stretch[OUT_FIRST] >= 0 and begin % n_sub == 0,
                    edge_rate,
                    edge_slope,
                    middle_rate,
                    middle_slope,
                    sample_voltage[stretch[SAMPLES] + sample :],
                    chains,
                    rows,
                    directions,
                    conductances,
                    gain,
                    states[end],
                    dstates[end],
                    out,
                    stretch[OUT_FIRST] + sample * gain.shape[1],
                )
        if flag[0] == 0 and flag[1] == 0:
            project(out, matrices, groups, target, scale, flat_residuals, residuals, products[c])
