"""Crank-Nicolson's steps of controlled length, in the lanes of `crank_nicolson_lanes`.

The trapezoidal rule errs by h^3/12 v_ttt in a step. The third derivative is estimated by divided
differences of the last three states and the new one. Unlike a comparison with an explicit formula,
this does not amplify waves that alternate from node to node. After a start or an edge of a stimulus
there are fewer than two earlier states, and two half steps are compared with the whole one.

A block of lanes is one cable in 16 pieces, or 16 cables, all of which make the same steps. A row of
`memory` for each block holds what the next call needs: the time; the next step; the number of
earlier states (at most two) and their times; the numbers of steps and of those refused; the
shortest and the longest step.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.crank_nicolson_lanes import (
    cable_ends,
    cables_in,
    cables_out,
    drive_in,
    finish,
    from_lanes,
    newton,
    newton_bend,
    row_coefficients,
    row_dominance,
    step_coefficients,
    tile_ends,
    to_lanes,
)
from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.fitzhugh_nagumo.step_control import (
    SHORTEST,
    first_try,
    planned,
    reached,
    shortened,
)
from channelfit.scoring.machine.machine_code import kernel

#: The columns of `memory`.
TIME, AHEAD, N_PAST, OLDER, NEWER, STEPS, REFUSED, SHORT, LONG = 0, 1, 2, 3, 4, 5, 6, 7, 8
COLUMNS = 9
#: The places of `limits`.
ERROR, LONGEST, NEWTON, DX, EDGE = 0, 1, 2, 3, 4
_FAILED = 1e308


def _set_step(q: Array, rows: Array, dx: float, h: float) -> float:
    """Write the coefficients of a step of h to q; return the largest decay from node to node."""
    decay = 0.0
    for l in range(16):  # noqa: E741
        a = rows[l]
        r, half, kw, kv = step_coefficients(rows[16 + l], rows[32 + l], rows[48 + l], dx, h)
        n0, n1, n2, n3, n4, n5, n6, n8 = row_coefficients(a, r, half, kw, kv)
        q[l], q[16 + l], q[32 + l], q[48 + l] = n0, n1, n2, n3
        q[64 + l], q[80 + l], q[96 + l], q[128 + l] = n4, n5, n6, n8
        dominance = row_dominance(a, half, kv)
        q[112 + l] = newton_bend(half, max(dominance, 1e-300))
        d = dominance + 2 * r
        decay = max(decay, 2 * r / (d + sqrt(max(d * d - 4 * r * r, 0.0))))
    return decay


def _spikes(decay: float, m: int) -> int:
    """Return the number of rows that the far end of a piece influences, at most m - 1."""
    if decay >= 0.9999:
        return m - 1
    rows = 10 + ceil(log(1e-20) / log(max(decay, 1e-30)))
    return int(min(rows, m - 1))


def _guess(s: Array, m: int, before: Array, ratio: float, lanes: int) -> None:
    """Set the first iterate of v, extrapolated along the line from the state before."""
    for i in range(m):
        row, old = s[i * 128 : (i + 1) * 128], before[16 * i : 16 * i + 16]
        for l in range(lanes):  # noqa: E741
            row[32 + l] = row[l] + ratio * (row[l] - old[l])


def _third_difference(
    s: Array,
    m: int,
    q: Array,
    older: Array,
    newer: Array,
    t: Any,
    worst: Array,
    lanes: int,
) -> float:
    """Return the largest third divided difference of v and w; t: (4,) times of the states."""
    g01, g12, g23 = 1 / (t[1] - t[0]), 1 / (t[2] - t[1]), 1 / (t[3] - t[2])
    g02, g13, g03 = 1 / (t[2] - t[0]), 1 / (t[3] - t[1]), 1 / (t[3] - t[0])
    for l in range(lanes):  # noqa: E741
        worst[l] = 0.0
    for i in range(m):
        row = s[i * 128 : (i + 1) * 128]
        v0, v1 = older[0, 16 * i : 16 * i + 16], newer[0, 16 * i : 16 * i + 16]
        w0, w1 = older[1, 16 * i : 16 * i + 16], newer[1, 16 * i : 16 * i + 16]
        for l in range(lanes):  # noqa: E741
            middle = (row[l] - v1[l]) * g12
            last = ((row[32 + l] - row[l]) * g23 - middle) * g13
            of_v = (last - (middle - (v1[l] - v0[l]) * g01) * g02) * g03
            new = q[80 + l] * row[16 + l] + q[96 + l] * (row[l] + row[32 + l])
            middle = (row[16 + l] - w1[l]) * g12
            last = ((new - row[16 + l]) * g23 - middle) * g13
            of_w = (last - (middle - (w1[l] - w0[l]) * g01) * g02) * g03
            worst[l] = max(worst[l], max(abs(of_v), abs(of_w)))
    most = 0.0
    for l in range(16):  # noqa: E741
        most = max(most, worst[l])
    return most


def _copy(s: Array, m: int, field: int, other: Array, back: bool) -> None:
    """Copy a field of the block to another array, or back."""
    for i in range(m):
        row = s[i * 128 + 16 * field : i * 128 + 16 * field + 16]
        kept = other[16 * i : 16 * i + 16]
        for l in range(16):  # noqa: E741
            if back:
                row[l] = kept[l]
            else:
                kept[l] = row[l]


def _halves(
    s: Array, work: Array, states: Array, h: float, limits: Array, pieces: bool, lanes: int
) -> float:
    """Compare the step of h, which the block has just made, with two of half the length.

    The block is left with the result of the half steps. The arguments are those of `_advance`; the
    step began with the last of `states`.

    Returns: the error of the half steps.
    """
    m, q, scratch, ends = len(s) // 128, work[:144], work[144:368], work[436:548]
    _copy(s, m, 0, states[2, 0], False)
    _copy(s, m, 1, states[2, 1], False)
    _copy(s, m, 0, states[3, 0], True)
    _copy(s, m, 1, states[3, 1], True)
    _guess(s, m, states[2, 0], -0.5, lanes)  # half of the way to the end of the whole step
    decay = _set_step(q, work[372:436], limits[DX], h / 2)
    n_spikes = _spikes(decay, m) if pieces else 1
    for _ in range(2):
        if newton(s, m, q, ends, n_spikes, limits[NEWTON], scratch, lanes) < 0:
            return _FAILED
        finish(s, m, q, lanes)
    most = 0.0
    for i in range(m):
        for k in range(2):
            here = s[i * 128 + 16 * k : i * 128 + 16 * k + 16]
            there = states[2, k, 16 * i : 16 * i + 16]
            for l in range(16):  # noqa: E741
                most = max(most, abs(here[l] - there[l]))
    return most / 3


def _advance(
    s: Array,
    work: Array,
    states: Array,
    memory: Array,
    limits: Array,
    most: int,
    pieces: bool,
    lanes: int,
) -> bool:
    """Advance a block to the time `limits[EDGE]`, or by `most` steps.

    Arguments:
        s: (128 m,) the block.
        work: (548,) coefficients of a step (144 numbers), scratch memory (224), times of states
            (4), a, gamma, epsilon and diffusion of each lane (64), and what holds at the ends of
            the lanes (112).
        states: (4, 2, 16 m) v and w: of the older and the newer state before this one; then of a
            whole step and of the state that it began with, for `_halves`.
        memory: (COLUMNS,) the block's row.
        limits: (5,) the largest local error, the longest step, Newton's tolerance, the spacing of
            the nodes, and the time to reach.
        pieces: whether the lanes are pieces of one cable.

    Returns: whether every step was short enough for the tolerance.
    """
    m, q, scratch, ends = len(s) // 128, work[:144], work[144:368], work[436:548]
    worst, t, tolerance, edge = work[144:160], work[368:372], limits[ERROR], limits[EDGE]
    new, done = 1, 0  # the newer of the two states before this one
    while done < most and not reached(memory[TIME], edge):
        now, ahead = memory[TIME], memory[AHEAD]
        h = first_try(ahead, edge - now)
        known = memory[N_PAST]
        tried = False
        while True:
            decay = _set_step(q, work[372:436], limits[DX], h)
            ratio = h / (now - memory[NEWER]) if known > 0 else 0.0
            _guess(s, m, states[new, 0], ratio, lanes)
            n_spikes = _spikes(decay, m) if pieces else 1
            error = _FAILED
            if newton(s, m, q, ends, n_spikes, limits[NEWTON], scratch, lanes) >= 0:
                if known < 2:
                    tried = True
                    _copy(s, m, 0, states[3, 0], False)
                    _copy(s, m, 1, states[3, 1], False)
                    finish(s, m, q, lanes)
                    error = _halves(s, work, states, h, limits, pieces, lanes)
                else:
                    t[0], t[1], t[2], t[3] = memory[OLDER], memory[NEWER], now, now + h
                    older, newer = states[1 - new], states[new]
                    found = _third_difference(s, m, q, older, newer, t, worst, lanes)
                    error = found * h * h * h / 2
            if error <= tolerance:
                break
            memory[REFUSED] += 1
            if tried:
                _copy(s, m, 0, states[3, 0], True)
                _copy(s, m, 1, states[3, 1], True)
            h = shortened(h, error, tolerance)
            if h < SHORTEST:
                return False
        new = 1 - new
        if known < 2:
            states[new, 0], states[new, 1] = states[3, 0], states[3, 1]
        else:
            _copy(s, m, 0, states[new, 0], False)
            _copy(s, m, 1, states[new, 1], False)
            finish(s, m, q, lanes)
        memory[OLDER], memory[NEWER], memory[N_PAST] = memory[NEWER], now, min(known + 1, 2.0)
        memory[STEPS] += 1
        memory[SHORT], memory[LONG] = min(memory[SHORT], h), max(memory[LONG], h)
        memory[AHEAD] = planned(h, ahead, error, tolerance, limits[LONGEST])
        memory[TIME] = now + h
        done += 1
    if new == 0:  # the newer one comes last
        for k in range(2):
            states[2, 0], states[2, 1] = states[0, k], states[1, k]
            states[0, k], states[1, k] = states[2, 1], states[2, 0]
    if reached(memory[TIME], edge):
        memory[TIME] = edge
    return True


def _load(s: Array, m: int, field: int, values: Array, block: int, pieces: bool) -> None:
    """Copy the cable or the cables of a block to its lanes."""
    if pieces:
        to_lanes(s, m, field, values[block], 0, values.shape[1])
    else:
        cables_in(s, m, field, values, block)


def _store(
    s: Array, m: int, field: int, values: Array, block: int, pieces: bool, scratch: Array
) -> None:
    """Copy the lanes of a block back to its cable or its cables; scratch: (16 m,)."""
    if pieces:
        from_lanes(s, m, field, values.shape[1], scratch, 0, values[block])
    else:
        cables_out(s, m, field, values, block)


@kernel
def control(
    first: int,
    last: int,
    v: Array,
    w: Array,
    past: Array,
    memory: Array,
    drive: Array,
    table: Array,
    kinds: Array,
    limits: Array,
    most: int,
    pieces: bool,
    lanes: int,
) -> bool:
    """Advance the blocks first .. last-1 in place.

    Arguments:
        v, w: (n_cables, n_nodes). past: (2, 2, n_cables, n_nodes). memory: (n_blocks, COLUMNS).
        table: (n_cables, 4) a, gamma, epsilon, diffusion.
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held, 2 for periodic.
        limits, most: as `_advance` takes them.
        pieces: whether a block is one cable in 16 pieces, or 16 whole cables side by side.
    """
    n_cables, n = v.shape
    m = -(-n // 16) if pieces else n
    s, scratch, work = np.zeros(m * 128), np.zeros(m * 16), np.zeros(548)
    states, equation = np.zeros((4, 2, 16 * m)), work[372:436]
    if pieces:
        tile_ends(work[436:548], 16 * m - n, kinds, True, True, True)
        if len(drive):
            to_lanes(s, m, 6, drive, 0, n)
    else:
        cable_ends(work[436:548], kinds)
        drive_in(s, m, drive)
    for block in range(first, last):
        for k in range(64):
            cable = block if pieces else min(block * 16 + k % 16, n_cables - 1)
            equation[k] = table[cable, k // 16]
        for old in range(2):
            for k in range(2):
                _load(s, m, k, past[old, k], block, pieces)
                _copy(s, m, k, states[old, k], False)
        _load(s, m, 0, v, block, pieces)
        _load(s, m, 1, w, block, pieces)
        if not _advance(s, work, states, memory[block], limits, most, pieces, lanes):
            return False
        _store(s, m, 0, v, block, pieces, scratch)
        _store(s, m, 1, w, block, pieces, scratch)
        for old in range(2):
            for k in range(2):
                _copy(s, m, k, states[old, k], True)
                _store(s, m, k, past[old, k], block, pieces, scratch)
    return True
