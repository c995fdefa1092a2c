# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Chains of two states (or one) and their currents, with derivatives; see `scheme_kernels`.

All candidates of a thread are one call, `relaxNormals`: threads that came back to Python between
its parts would wait for each other longer than they work.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import GREATEST_GAIN
from channelfit.scoring.kernels.integration import moments, relaxations, slopes_by_speeds, within
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

#: Columns of the table of gates (n_chains, 8 + 3 n_own), chains of two states or one. UP and DOWN
#: are rates, or -1 in a chain of one state; LINEAR and INSTANT as in `model.Chain`. From OWN on,
#: for each of a gate's own directions: its rows of slopes of opening and closing, -1 for none, and
#: its number.
UP, DOWN, TIMES_UP, TIMES_DOWN, POWER, N_DIRECTIONS, LINEAR, INSTANT, OWN = range(9)

# Numbers of a gate have its own derivatives behind them: speed (1 + n_own, n) at n voltages.


def _limits(gate, rate, slope, n, speed, limit):
    """Store speed and limit of a gate, (1 + n_own, n), at n voltages."""
    up, down = gate[UP], gate[DOWN]
    for v in range(n):
        opening, closing = gate[TIMES_UP] * rate[up, v], gate[TIMES_DOWN] * rate[down, v]
        speed[0, v] = opening + closing
        limit[0, v] = opening / speed[0, v]
    for j in range(gate[N_DIRECTIONS]):
        first, second = gate[OWN + 3 * j], gate[OWN + 3 * j + 1]
        for v in range(n):
            a = slope[first, v] if first >= 0 else 0.0
            b = slope[second, v] if second >= 0 else 0.0
            opening, closing = limit[0, v], gate[TIMES_DOWN] * rate[down, v] / speed[0, v]
            speed[1 + j, v] = speed[0, v] * (opening * a + closing * b)
            limit[1 + j, v] = opening * closing * (a - b)


def _currents(gates, is_open, gain, n, voltage, out, place, stride):
    """Store n currents and derivatives from the open shares (n_chains, 1 + n_own, n) of gates."""
    n_directions = gain.shape[1] - 1
    for k in range(n):
        drive = voltage[k] - gain[1, 0]
        s, whole = gain[0, 0] * drive, 1.0
        for c in range(gates.shape[0]):
            for _ in range(gates[c, POWER]):
                whole *= is_open[c, 0, k]
        out[place] = s * whole
        for d in range(n_directions):
            ds = driveSlope(gain, drive, d)
            out[place + 1 + d] = ds * whole
        for c in range(gates.shape[0]):
            if gates[c, N_DIRECTIONS] == 0:
                continue
            partial = s * gates[c, POWER]
            for other in range(gates.shape[0]):
                power = gates[other, POWER] - (1 if other == c else 0)
                for _ in range(power):
                    partial *= is_open[other, 0, k]
            for j in range(gates[c, N_DIRECTIONS]):
                out[place + 1 + gates[c, OWN + 3 * j + 2]] += partial * is_open[c, 1 + j, k]
        place += stride


def _held(run, times, gates, conductances, speed, limit, states, is_open, scratch):
    """Store the open shares at the points of a held run, and the states at its end.

    times (n_points + 1,): of the points and of the end, ms; speed, limit (n_chains, 1 + n_own,
    n_v); scratch (2, n_points).
    """
    v, n_points, last = run[VOLTAGE], run[N_POINTS], times[run[N_POINTS]]
    gone, left = scratch[0], scratch[1]
    for c in range(gates.shape[0]):
        closed, opened = conductances[c, 0], conductances[c, 1]
        if gates[c, UP] < 0:
            for k in range(n_points):
                is_open[c, 0, k] = closed
            continue
        start, end = states[run[SOURCE], c], states[run[TARGET], c]
        instant = gates[c, INSTANT] != 0
        fast, x = speed[c, 0, v], start[0]
        x = limit[c, 0, v] if instant else x
        away = limit[c, 0, v] - x
        for k in range(n_points):
            gone[k], left[k] = decay(fast * times[k]), exp(-fast * times[k])
            is_open[c, 0, k] = closed + (opened - closed) * (x + away * gone[k])
        for j in range(gates[c, N_DIRECTIONS]):
            ds, dl = speed[c, 1 + j, v], limit[c, 1 + j, v]
            dx = dl if instant else start[1 + j]
            for k in range(n_points):
                bent = dx * left[k] + dl * gone[k] + away * (times[k] * ds * left[k])
                is_open[c, 1 + j, k] = (opened - closed) * bent
        x = start[0]
        away, now, rest = limit[c, 0, v] - x, decay(fast * last), exp(-fast * last)
        for j in range(gates[c, N_DIRECTIONS]):
            bent = start[1 + j] * rest + limit[c, 1 + j, v] * now
            end[1 + j] = bent + away * (last * speed[c, 1 + j, v] * rest)
        end[0] = x + away * now


def _relaxations(n, n_own, h, speed, limit, middle_speed, middle_limit, kept, gained):
    """Store n steps x -> kept x + gained of one gate; see `cpu_varying.RelaxationSteps`.

    speed, limit: at the n + 1 edges of the steps, middle_..: between them.
    """
    for i in range(n):
        s0, s1, s2 = speed[0, i], middle_speed[0, i], speed[0, i + 1]
        x0, x1, x2 = limit[0, i], middle_limit[0, i], limit[0, i + 1]
        whole, later = relaxations(s0, s1, s2, h)
        half = within(whole, later)
        left, square = exp(-whole), whole * whole
        j0, j1, j2 = moments(whole, left)
        rest = whole - half
        slope = (x1 - x2) / half
        bend = ((x0 - x2) / whole - slope) / rest
        curved = j2 - half * j1
        kept[0, i] = left
        gained[0, i] = x2 * j0 + slope * j1 + bend * curved
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
        for j in range(1, 1 + n_own):
            d0, d1, d2 = speed[j, i], middle_speed[j, i], speed[j, i + 1]
            kept[j, i] = -left * (h / 6.0) * (d0 + 4.0 * d1 + d2)
            by_limits = by0 * limit[j, i] + by1 * middle_limit[j, i] + by2 * limit[j, i + 1]
            gained[j, i] = for_s0 * d0 + for_s1 * d1 + for_s2 * d2 + by_limits


def _varying(n_steps, n_sub, h, rate, slope, gates, conductances, states, is_open):
    """Take states (n_chains, 1 + n_own) through steps of h ms; store open shares at each n_sub-th.

    rate, slope: at the n_steps + 1 edges of the steps, and between them.
    """
    n, edges = states.shape[1], n_steps + 1
    speed, limit = np.empty((n, edges)), np.empty((n, edges))
    middle_speed, middle_limit = np.empty((n, n_steps)), np.empty((n, n_steps))
    kept, gained = np.empty((n, n_steps)), np.empty((n, n_steps))
    for c in range(gates.shape[0]):
        closed, opened = conductances[c, 0], conductances[c, 1]
        if gates[c, UP] < 0:
            is_open[c, 0] = closed
            continue
        n_own, x = gates[c, N_DIRECTIONS], states[c]
        _limits(gates[c], rate[0], slope[0], n_steps + 1, speed, limit)
        _limits(gates[c], rate[1], slope[1], n_steps, middle_speed, middle_limit)
        _relaxations(n_steps, n_own, h, speed, limit, middle_speed, middle_limit, kept, gained)
        here = x[0]
        if gates[c, INSTANT]:
            here = limit[0, 0]
            for j in range(1, 1 + n_own):
                x[j] = limit[j, 0]
        sample = 0
        for i in range(n_steps):
            if i == sample * n_sub:
                is_open[c, 0, sample] = closed + (opened - closed) * here
                for j in range(1, 1 + n_own):
                    is_open[c, j, sample] = (opened - closed) * x[j]
                sample += 1
            new = here * kept[0, i] + gained[0, i]
            for j in range(1, 1 + n_own):
                x[j] = kept[0, i] * x[j] + (kept[j, i] * here + gained[j, i])
            here = new if gates[c, LINEAR] else min(max(new, 0.0), 1.0)
            if here != new:
                for j in range(1, 1 + n_own):
                    x[j] = 0.0
        x[0] = here


@plain_kernel
def relaxNormals(
    createGains,
    createRates,
    thetas,
    voltages,
    levels,
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
    gates,
    conductances,
    gain,
    rate,
    slope,
    node_rate,
    node_slope,
    states,
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

    levels, edges, middles: what rates depend on, of held runs and of varying ones, one after the
    other. From `gain` (2, width) to `out`
    scratch, states (n_slots, n_chains, 1 + n_own); a varying run is taken in parts as long as
    node_rate (2, n_rates, n_steps + 1), of edges and middles, has room for. flags (n, 2), 0 before:
    set to 1 where a rate or gain is not finite, where one is negative.
    """
    n, n_chains, n_rows = voltages.shape[0], gates.shape[0], states.shape[2]
    most = node_rate.shape[2] - 1
    n_samples = most
    for r in range(runs.shape[0]):
        n_samples = max(n_samples, runs[r, N_POINTS])
    speed, limit = np.empty((n_chains, n_rows, n)), np.empty((n_chains, n_rows, n))
    is_open, scratch = np.empty((n_chains, n_rows, n_samples)), np.empty((2, n_samples))
    times, held = np.empty(n_samples + 1), np.empty(n_samples)
    for candidate in range(thetas.shape[0]):
        theta, flag = thetas[candidate], flags[candidate]
        createGains(theta, gain)
        for k in range(2):
            for d in range(gain.shape[1]):
                if not abs(gain[k, d]) < GREATEST_GAIN:
                    flag[0] = 1
        createRates(levels, theta, rate, slope)
        boundRates(rate, slope, partials, least, n, flag)
        for c in range(n_chains):
            gate = gates[c]
            for v in range(n if gate[LINEAR] else 0):  # the sum, 1/tau, may not be negative
                flag[1] |= rate[gate[UP], v] + rate[gate[DOWN], v] <= 0.0
            if gate[UP] >= 0:
                _limits(gate, rate, slope, n, speed[c], limit[c])
                for k in range(start_voltage.shape[0]):
                    for j in range(1 + gate[N_DIRECTIONS]):
                        states[k, c, j] = limit[c, j, start_voltage[k]]
        for some in range(stretches.shape[0]):
            stretch = stretches[some]
            for r in range(stretch[FIRST], stretch[LAST] if stretch[STEPS] < 0 else 0):
                run, dt, n_points = runs[r], run_dt[r], runs[r, N_POINTS]
                for k in range(n_points):
                    times[k], held[k] = dt * points[run[POINTS] + k], voltages[run[VOLTAGE]]
                times[n_points] = dt * run[N]
                _held(run, times, gates, conductances, speed, limit, states, is_open, scratch)
                _currents(gates, is_open, gain, n_points, held, out, run[OUT], run[STRIDE])
            if stretch[STEPS] < 0:
                continue
            r, n_steps, n_sub = stretch[FIRST], stretch[STEPS], stretch[SUBSTEPS]
            end = states[runs[r, TARGET]]
            end[:] = states[runs[r, SOURCE]]
            for begin in range(0, n_steps, most):
                taken = min(most, n_steps - begin)
                first, sample = stretch[EDGES] + begin, begin // n_sub
                createRates(edges[first : first + taken + 1], theta, node_rate[0], node_slope[0])
                boundRates(node_rate[0], node_slope[0], partials, least, taken + 1, flag)
                first = stretch[MIDDLES] + begin
                createRates(middles[first : first + taken], theta, node_rate[1], node_slope[1])
                boundRates(node_rate[1], node_slope[1], partials, least, taken, flag)
                h = run_dt[r]
                _varying(taken, n_sub, h, node_rate, node_slope, gates, conductances, end, is_open)
                # most and n_sub are powers of two: a part begins with a sample, or has none
                if stretch[OUT_FIRST] >= 0 and begin % n_sub == 0:
                    _currents(
                        gates,
                        is_open,
                        gain,
                        (taken + n_sub - 1) // n_sub,
                        sample_voltage[stretch[SAMPLES] + sample :],
                        out,
                        stretch[OUT_FIRST] + sample * gain.shape[1],
                        gain.shape[1],
                    )
        if flag[0] == 0 and flag[1] == 0:
            project(
                out, matrices, groups, target, scale, flat_residuals, residuals, products[candidate]
            )
