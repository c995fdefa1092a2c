# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Costs of one scheme at held voltages with their derivatives, from Chebyshev moments.

See `layout.moment_tables` for the moments. The vectors T_k(X) p0 and their derivatives by the
logarithm of a rate follow one recurrence, with twice X = 2 I + 4 A/rho and its derivative S_k:

    y_(k + 1) = 2X y_k + S_k - y_(k - 1),    S_k = d(2X) T_k(X) p0.

rho is that of a rung, and does not move with a parameter. The columns of y are those of the
identity, which carry what the start has of derivatives, and one for each rate: T_k(X) p0 itself is
their sum weighted with p0. Along each direction of a run's table, and at its end, one sum over k
is left.

Multiplications of one run of 500 samples at a voltage of its own, of a chain of n states with all
rates free, 60 moments and 28 directions:

    states   dual numbers   columns   transposed, and its end
         8        330,000    56,000      51,000    24,000
        12      1,560,000   117,000      84,000    56,000
        16      4,680,000   198,000     121,000   102,000

Dual numbers are those of `scheme_kernels`: each product of 15 of n^3, and of 60 points of n^2, once
for the value and twice for each rate. Transposed would be one recurrence of the transpose for each
direction, half of whose table is zeros, with T_k(X) p0 for derivatives; a run that another begins
from needs n more of these. The columns take some more, but are vectors without a remainder, and the
same ones for points and ends.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from channelfit.model.channel import GREATEST_GAIN
from channelfit.scoring.kernels.cpu_moments import AT_ONCE, MOMENT_ERROR, TOGETHER
from channelfit.scoring.kernels.matrix_kernels import steadyState
from channelfit.scoring.kernels.tangent_tables import boundRates, driveSlope
from channelfit.scoring.machine.kernel_math import unrolled
from channelfit.scoring.machine.machine_code import plain_kernel

#: Numbers that are computed together, and how many of these a block of columns has.
WIDE, PARTS = 8, 2
BLOCK = WIDE * PARTS
#: The parts of all residuals, and of a derivative by a parameter over all samples, that rounding
#: may spoil by its bound; what it does spoil is a fiftieth of the one, a thousandth of the other.
GREATEST_RESIDUAL_ERROR, GREATEST_SLOPE_ERROR = 2e-8, 3e-7
#: The part of the largest derivative that counts as the size of a smaller one.
NEXT_TO_NOTHING = 1e-6
#: What becomes of a candidate: done, in doubt, or to be computed again with tables not yet made.
DONE, DOUBTED, UNFINISHED = 0, 1, 2


def _bound(rate, v, transitions, back, out):
    """Return a bound of the fastest speed of any mode, 1/ms, by Gershgorin's circles.

    back (n_transitions,): the transition the other way, where the generator is similar to a
    symmetric matrix, or -1. out (2, n): scratch.
    """
    out[:] = 0.0
    for t in range(transitions.shape[0]):
        i, flow = transitions[t, 0], transitions[t, 3] * rate[transitions[t, 2], v]
        out[0, i] += flow
        if back[t] < 0:
            out[1, i] += flow
        else:
            other = transitions[back[t], 3] * rate[transitions[back[t], 2], v]
            out[1, i] += sqrt(flow * other)
    most = 0.0
    for i in range(out.shape[1]):
        most = max(most, out[0, i] + out[1, i])
    return most


def _twice(rate, v, scale, transitions, flow, diagonal, moves):
    """Store 2X = 2 I + scale A: beside its diagonal by transitions, and its diagonal; and moves."""
    moves[:] = 0.0
    for i in range(diagonal.shape[0]):
        diagonal[i] = 2.0
    for t in range(transitions.shape[0]):
        i, j, own, layer = (
            transitions[t, 0],
            transitions[t, 1],
            transitions[t, 4],
            transitions[t, 5],
        )
        flow[t] = scale * transitions[t, 3] * rate[transitions[t, 2], v]
        diagonal[i] -= flow[t]
        if own >= 0:
            moves[layer, i, own] = -flow[t]
            moves[layer, j, own] = flow[t]


def _rest(v, rate, slope, partials, transitions, state, m, dm):
    """Store the steady state at a voltage with its derivatives, without errors; m, dm: scratch."""
    n_states, n_rates = dm.shape[0], dm.shape[2]
    here, rest, by_rate = np.empty(n_rates), np.empty(n_states), np.empty((n_states, n_rates))
    for u in range(n_rates):
        here[u] = rate[u, v]
    steadyState(here, transitions, rest, by_rate, m, dm)
    state[:] = 0.0
    for i in range(n_states):
        state[i, 0] = rest[i]
        for p in range(partials.shape[0]):
            state[i, 1 + partials[p, 1]] += by_rate[i, partials[p, 0]] * slope[p, v]


def _states(x, state, transitions, entries, flow, diagonal, left):
    """Store T_k(X) p0 in the rows of x (n, n_states); return the largest number in them.

    p0 is the first column of the state. left (n, n_layers, n_columns), see `_advance`.
    """
    most = 0.0
    for i in range(x.shape[1]):
        x[0, i] = state[i, 0]
    for k in range(x.shape[0] - 1):
        here, old, new = x[k], x[max(k, 1) - 1], x[k + 1]
        half, keep = (0.5, 0.0) if k == 0 else (1.0, 1.0)
        for i in range(x.shape[1]):
            total = diagonal[i] * here[i]
            for t in range(entries[i], entries[i + 1]):
                total += flow[t] * here[transitions[t, 0]]
            new[i] = half * total - keep * old[i]
            most = max(most, abs(new[i]))
    for t in range(transitions.shape[0]):
        i, own, layer = transitions[t, 0], transitions[t, 4], transitions[t, 5]
        for k in range(x.shape[0] if own >= 0 else 0):
            left[k, layer, own] = x[k, i]
    return most


def _advance(now, other, left, moves, transitions, entries, flow, diagonal, first, half, keep):
    """Replace other (n_states, BLOCK) by half (2X now + S_k) - keep other.

    left (n_layers, n_columns), T_k(X) p0 where transitions start, and moves (n_layers, n_states,
    n_columns) make S_k; first: the first column.
    """
    total = np.empty((PARTS, WIDE))
    for i in range(diagonal.shape[0]):
        here, new, d = now[i], other[i], half * diagonal[i]
        for part in unrolled(PARTS):
            for lane in range(WIDE):
                k = part * WIDE + lane
                total[part, lane] = d * here[k] - keep * new[k]
        for layer in range(left.shape[0]):
            there, move = left[layer], moves[layer, i]
            for part in unrolled(PARTS):
                for lane in range(WIDE):
                    k = first + part * WIDE + lane
                    total[part, lane] += move[k] * (half * there[k])
        for t in range(entries[i], entries[i + 1]):
            f, source = half * flow[t], now[transitions[t, 0]]
            for part in unrolled(PARTS):
                for lane in range(WIDE):
                    total[part, lane] += f * source[part * WIDE + lane]
        for part in unrolled(PARTS):
            for lane in range(WIDE):
                new[part * WIDE + lane] = total[part, lane]


def _columns(
    first,
    left,
    moves,
    transitions,
    entries,
    flow,
    diagonal,
    conductances,
    end,
    y,
    m,
    growth,
    at_end,
):
    """Take a block of columns through all moments; left (n, n_layers, n_columns), see `_advance`.

    end (n_end,): a_k at the end of the run. y (2, n_states, BLOCK): scratch. m (n, BLOCK): what
    each vector opens; growth (n_columns,): the largest numbers; at_end (n_states, n_columns): sums
    at the end.
    """
    n, n_states = m.shape[0], diagonal.shape[0]
    total = np.empty((PARTS, WIDE))
    y[:] = 0.0
    for lane in range(BLOCK):
        growth[first + lane] = 0.0
        if first + lane < n_states:
            y[0, first + lane, lane] = 1.0
        for i in range(n_states):
            at_end[i, first + lane] = 0.0
    # T_1 is T_(-1) as well
    _advance(y[0], y[1], left[0], moves, transitions, entries, flow, diagonal, first, 0.5, 0.0)
    for k in range(n):
        now, row = y[k & 1], m[k]
        for part in unrolled(PARTS):
            for lane in range(WIDE):
                total[part, lane] = 0.0
        for i in range(n_states):
            c, here = conductances[i], now[i]
            if c != 0.0:
                for part in unrolled(PARTS):
                    for lane in range(WIDE):
                        total[part, lane] += c * here[part * WIDE + lane]
        for part in unrolled(PARTS):
            for lane in range(WIDE):
                row[part * WIDE + lane] = total[part, lane]
        if k < end.shape[0]:
            for i in range(n_states):
                here, sums = now[i], at_end[i]
                for part in unrolled(PARTS):
                    for lane in range(WIDE):
                        at = first + part * WIDE + lane
                        total[part, lane] = sums[at] + end[k] * here[part * WIDE + lane]
                for part in unrolled(PARTS):
                    for lane in range(WIDE):
                        sums[first + part * WIDE + lane] = total[part, lane]
        if k & 7 == 7:
            for part in unrolled(PARTS):
                for lane in range(WIDE):
                    total[part, lane] = growth[first + part * WIDE + lane]
            for i in range(n_states):
                here = now[i]
                for part in unrolled(PARTS):
                    for lane in range(WIDE):
                        total[part, lane] = max(total[part, lane], abs(here[part * WIDE + lane]))
            for part in unrolled(PARTS):
                for lane in range(WIDE):
                    growth[first + part * WIDE + lane] = total[part, lane]
        if k + 1 < n:
            other = y[1 - (k & 1)]
            _advance(
                now, other, left[k], moves, transitions, entries, flow, diagonal, first, 1.0, 1.0
            )


def _project(table, m, z):
    """Store, in z (TOGETHER, n_columns), the columns along some directions of a table.

    table (length * TOGETHER,): their rows, AT_ONCE numbers of each in turn. m (n_blocks, n, BLOCK).
    """
    total = np.empty((TOGETHER, WIDE))
    for first in range(0, z.shape[1], WIDE):
        some, begin = m[first // BLOCK], first % BLOCK
        for r in unrolled(TOGETHER):
            for lane in range(WIDE):
                total[r, lane] = 0.0
        for k in range(0, table.shape[0] // TOGETHER, AT_ONCE):
            for j in range(AT_ONCE):
                row = some[k + j]
                for r in unrolled(TOGETHER):
                    c = table[k * TOGETHER + r * AT_ONCE + j]
                    for lane in range(WIDE):
                        total[r, lane] += c * row[begin + lane]
        for r in unrolled(TOGETHER):
            for lane in range(WIDE):
                z[r, first + lane] = total[r, lane]


def _carry(z, state, partials, slope, v, out):
    """Store in out (width,) what columns (n_columns,) make of a state and its derivatives."""
    total = np.empty(WIDE)
    for first in range(0, out.shape[0], WIDE):
        for lane in range(WIDE):
            total[lane] = 0.0
        for i in range(state.shape[0]):
            c, here = z[i], state[i]
            for lane in range(WIDE):
                total[lane] += c * here[first + lane]
        for lane in range(WIDE):
            out[first + lane] = total[lane]
    for k in range(partials.shape[0]):
        out[1 + partials[k, 1]] += z[partials[k, 2]] * slope[k, v]


def _bound_of_errors(most, growth, state, partials, slope, v, before, out):
    """Store in out (width,) the errors that rounding leaves where a state has those `before`."""
    for d in range(out.shape[0]):
        out[d] = 0.0
    for i in range(state.shape[0]):
        for d in range(out.shape[0]):
            out[d] += growth[i] * abs(state[i, d])
    for k in range(partials.shape[0]):
        out[1 + partials[k, 1]] += growth[partials[k, 2]] * abs(slope[k, v])
    out[0] = most
    for d in range(out.shape[0]):
        out[d] = before[d] + MOMENT_ERROR * out[d]


def _add_squares(x, out):
    """Add x^T x of x (TOGETHER, width) to out, on and below the diagonal."""
    total = np.empty(WIDE)
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    for j in range(out.shape[0]):
        a, b, c, d, row = x0[j], x1[j], x2[j], x3[j], out[j]
        for first in range(0, j + 1, WIDE):
            for lane in range(WIDE):
                k = first + lane
                total[lane] = row[k] + (a * x0[k] + b * x1[k] + c * x2[k] + d * x3[k])
            for lane in range(WIDE):
                row[first + lane] = total[lane]


def _add_residuals(
    groups, tables, target, root, s, ds, state, partials, slope, v, m, z, jacobian, normal
):
    """Add the products of a run's residuals and of their derivatives to normal (width, width).

    groups: of its table. target: the recording along the directions, pA. root: of the weight. s,
    ds (width,): conductance times driving force, with derivatives. z, jacobian: scratch.
    """
    at = 0
    for group in range(groups.shape[0]):
        begin = groups[group, 1]
        _project(tables[begin : begin + groups[group, 0] * TOGETHER], m, z)
        for r in range(TOGETHER):
            row = jacobian[r]
            _carry(z[r], state, partials, slope, v, row)
            is_open = row[0]
            for d in range(row.shape[0]):
                row[d] = root * (s * row[d] + ds[d] * is_open)
            row[0] -= root * target[at]
            at += 1
        _add_squares(jacobian, normal)


def _judged(normal, lost, squares, theta, free):
    """Return whether rounding may have spoiled a residual or a derivative: DONE or DOUBTED.

    A derivative that is next to nothing beside the others counts as a part of them.

    lost (width,): the squares of what may be lost; squares: those beside all residuals, pA^2.
    """
    largest = 0.0
    for d in range(free.shape[0]):
        largest = max(largest, normal[1 + d, 1 + d] * (theta[free[d]] * theta[free[d]]))
    good = lost[0] <= GREATEST_RESIDUAL_ERROR**2 * (normal[0, 0] + squares)
    for d in range(free.shape[0]):
        size = max(abs(theta[free[d]]), 1e-150)
        length = max(normal[1 + d, 1 + d], NEXT_TO_NOTHING**2 * largest / (size * size))
        good = good and lost[1 + d] <= GREATEST_SLOPE_ERROR**2 * length
    return DONE if good else DOUBTED


@plain_kernel
def momentNormals(
    createGains,
    createRates,
    thetas,
    voltages,
    levels,
    start_voltage,
    partials,
    least,
    transitions,
    back,
    entries,
    conductances,
    visits,
    visit_voltage,
    visit_top,
    ladder,
    places,
    values,
    table_of,
    shapes,
    groups,
    tables,
    target_of,
    targets,
    squares,
    free,
    gain,
    rate,
    slope,
    states,
    missing,
    flags,
    outcome,
    products,
):
    """Store products (n, width, width) of candidates thetas (n, n_parameters); see `project`.

    voltages (n_v,): all held ones; levels: what rates depend on there; start_voltage,
    visit_voltage: indices. partials (n_partials, 3): rate, direction, column of the rate.
    transitions (n_transitions, 6), by target, those to state i
    from entries[i] on: source, target, rate, multiplicity, column of the rate (-1 for none), and
    how many before it have the same rate. back as for `_bound`. From visits to targets: see
    `cpu_moments`. squares: outside all residuals, pA^2. free (n_free,): rows of theta. From gain to
    states scratch, states (n_slots, n_states + 1, width in whole vectors): state by state occupancy
    and derivatives, and last their errors. missing (n_kinds, n_rungs): set to 1 where a table is
    not made yet. flags (n, 2), 0 before, as for `relaxNormals`; outcome (n,).
    """
    n_states, n_rates, width = conductances.shape[0], rate.shape[0], states.shape[2]
    n_columns, n_layers, longest = n_states, 1, AT_ONCE
    for t in range(len(back)):
        n_columns = max(n_columns, transitions[t, 4] + 1)
        n_layers = max(n_layers, transitions[t, 5] + 1)
    n_columns = (n_columns + BLOCK - 1) // BLOCK * BLOCK
    for k in range(shapes.shape[0]):
        longest = max(longest, AT_ONCE + max(shapes[k, 0], shapes[k, 1]))
    flow, diagonal, circles = np.empty(len(back)), np.empty(n_states), np.empty((2, n_states))
    x, left = np.empty((longest, n_states)), np.zeros((longest, n_layers, n_columns))
    moves = np.empty((n_layers, n_states, n_columns))
    m, y = np.empty((n_columns // BLOCK, longest, BLOCK)), np.empty((2, n_states, BLOCK))
    growth, at_end = np.empty(n_columns), np.empty((n_states, n_columns))
    z, jacobian = np.empty((TOGETHER, n_columns)), np.empty((TOGETHER, width))
    lost, lost_here = np.empty(width), np.empty(width)
    ds, fastest = np.zeros(width), np.empty(len(visits))
    normal, moved = np.empty((width, width)), np.empty((n_states + 1, width))
    full, dfull = np.empty((n_states, n_states)), np.empty((n_states, n_states, n_rates))
    for candidate in range(thetas.shape[0]):
        theta, flag = thetas[candidate], flags[candidate]
        createGains(theta, gain)
        createRates(levels, theta, rate, slope)
        boundRates(rate, slope, partials, least, len(voltages), flag)
        for k in range(2):
            for d in range(gain.shape[1]):
                if not abs(gain[k, d]) < GREATEST_GAIN:
                    flag[0] = 1
        slow = True
        for visit in range(len(visits) - 1):
            fastest[visit] = _bound(rate, visit_voltage[visit], transitions, back, circles)
            slow = slow and fastest[visit] <= visit_top[visit]
        outcome[candidate] = DONE if slow else DOUBTED
        if not slow or flag[0] != 0 or flag[1] != 0:
            continue
        for k in range(len(start_voltage)):
            _rest(start_voltage[k], rate, slope, partials, transitions, states[k], full, dfull)
        normal[:] = 0.0
        lost[:] = 0.0
        for visit in range(len(visits) - 1):
            v, rung = visit_voltage[visit], 0
            while ladder[rung] < fastest[visit]:
                rung += 1
            _twice(rate, v, 4.0 / ladder[rung], transitions, flow, diagonal, moves)
            drive = voltages[v] - gain[1, 0]
            s = gain[0, 0] * drive
            for d in range(gain.shape[1] - 1):
                ds[1 + d] = driveSlope(gain, drive, d)
            for run in range(visits[visit], visits[visit + 1]):
                table = table_of[places[run, 2], rung]
                if table < 0:
                    missing[places[run, 2], rung] = 1
                    outcome[candidate] = UNFINISHED
                if outcome[candidate] != DONE:
                    continue
                shape, state, target = shapes[table], states[places[run, 0]], places[run, 1]
                p0, n_end = state[:n_states], 0
                if target >= 0:
                    n_end = shape[1]
                n = (max(shape[0], n_end) + AT_ONCE - 1) // AT_ONCE * AT_ONCE
                end = tables[shape[4] : shape[4] + n_end]
                most = _states(x[:n], p0, transitions, entries, flow, diagonal, left)
                for first in range(0, n_columns, BLOCK):
                    some = m[first // BLOCK]
                    _columns(
                        first,
                        left,
                        moves,
                        transitions,
                        entries,
                        flow,
                        diagonal,
                        conductances,
                        end,
                        y,
                        some[:n],
                        growth,
                        at_end,
                    )
                before = state[n_states]
                _bound_of_errors(most, growth, p0, partials, slope, v, before, lost_here)
                weight = values[run, 0]
                if weight > 0.0:
                    for d in range(width):
                        error = s * lost_here[d]
                        lost[d] += weight * values[run, 1] * (error * error)
                    root, at = sqrt(weight), target_of[run, rung]
                    normal[0, 0] += weight * targets[at]
                    _add_residuals(
                        groups[shape[2] : shape[3]],
                        tables,
                        targets[at + 1 :],
                        root,
                        s,
                        ds,
                        p0,
                        partials,
                        slope,
                        v,
                        m,
                        z,
                        jacobian,
                        normal,
                    )
                if target >= 0:
                    for i in range(n_states):
                        _carry(at_end[i], p0, partials, slope, v, moved[i])
                    last, after = moved[n_states], states[target]  # maybe where the run began
                    last[:] = lost_here
                    after[:] = moved
        if outcome[candidate] == DONE:
            outcome[candidate] = _judged(normal, lost, squares, theta, free)
        product = products[candidate]
        for i in range(gain.shape[1]):
            for j in range(i + 1):
                product[i, j] = normal[i, j]
                product[j, i] = normal[i, j]
