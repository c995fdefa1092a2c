"""Crank-Nicolson's steps of controlled length, in the lanes of `crank_nicolson_lanes`.

The trapezoidal rule errs by h^3/12 v_ttt in a step. The third derivative is estimated by divided
differences of the last three states and the new one. Unlike a comparison with an explicit formula,
this does not amplify what alternates from node to node. After a start or an edge of a stimulus
there are not yet so many states, and two half steps are compared with the whole one.

A block of lanes is one cable in 16 pieces, or 16 cables, whose steps are the same. What it
remembers from call to call is its row of `memory`: the time; the next step; how many earlier states
there are (at most two) and their times; the numbers of steps and of those refused; the shortest and
the longest step.
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
from channelfit.fitzhugh_nagumo.step_numbers import (
    bend_of,
    dominance_of,
    numbers_of_rows,
    numbers_of_step,
)
from channelfit.scoring.machine.machine_code import kernel

#: The columns of `memory`.
TIME, AHEAD, N_PAST, OLDER, NEWER, STEPS, REFUSED, SHORT, LONG = 0, 1, 2, 3, 4, 5, 6, 7, 8
COLUMNS = 9
_FAILED = 1e308


def _set_step(q: Array, rows: Array, dx: float, h: float) -> float:
    """Write the numbers of a step of h to q; returns how far a node's
    influence decays to the next, at most.
    """
    decay = 0.0
    for l in range(16):  # noqa: E741
        a = rows[l]
        r, half, kw, kv = numbers_of_step(rows[16 + l], rows[32 + l], rows[48 + l], dx, h)
        n0, n1, n2, n3, n4, n5, n6, n8 = numbers_of_rows(a, r, half, kw, kv)
        q[l], q[16 + l], q[32 + l], q[48 + l] = n0, n1, n2, n3
        q[64 + l], q[80 + l], q[96 + l], q[128 + l] = n4, n5, n6, n8
        dominance = dominance_of(a, half, kv)
        q[112 + l] = bend_of(half, max(dominance, 1e-300))
        d = dominance + 2 * r
        decay = max(decay, 2 * r / (d + sqrt(max(d * d - 4 * r * r, 0.0))))
    return decay


def _spikes(decay: float, m: int) -> int:
    """Return the number of rows after which the far end of a piece is no longer felt,
    at most m - 1.
    """
    if decay >= 0.9999:
        return m - 1
    rows = 10 + ceil(log(1e-20) / log(max(decay, 1e-30)))
    return int(min(rows, m - 1))


def _guess(s: Array, m: int, before: Array, ratio: float, lanes: int) -> None:
    """Extrapolates v along the line from the state before as the first iterate."""
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
    s: Array,
    m: int,
    q: Array,
    rows: Array,
    ends: Array,
    kept: Array,
    dx: float,
    h: float,
    tolerance: float,
    pieces: bool,
    scratch: Array,
    lanes: int,
) -> float:
    """Compares the step of h, which the block has just made, with two of half the length.

    kept: (4, 16 m) has v and w at the beginning in its last rows. The block is left with what the
    half steps came to.

    Returns: the error of the half steps.
    """
    _copy(s, m, 0, kept[0], False)
    _copy(s, m, 1, kept[1], False)
    _copy(s, m, 0, kept[2], True)
    _copy(s, m, 1, kept[3], True)
    _guess(s, m, kept[0], -0.5, lanes)  # half of the way to the end of the whole step
    decay = _set_step(q, rows, dx, h / 2)
    n_spikes = _spikes(decay, m) if pieces else 1
    for _ in range(2):
        if newton(s, m, q, ends, n_spikes, tolerance, scratch, lanes) < 0:
            return _FAILED
        finish(s, m, q, lanes)
    most = 0.0
    for i in range(m):
        for k in range(2):
            here, there = s[i * 128 + 16 * k : i * 128 + 16 * k + 16], kept[k, 16 * i : 16 * i + 16]
            for l in range(16):  # noqa: E741
                most = max(most, abs(here[l] - there[l]))
    return most / 3


def _advance(
    s: Array,
    m: int,
    rows: Array,
    ends: Array,
    past: Array,
    memory: Array,
    dx: float,
    edge: float,
    limits: Array,
    most: int,
    pieces: bool,
    room: Array,
    kept: Array,
    lanes: int,
) -> bool:
    """Advance a block to the time `edge`, or by `most` steps.

    Arguments:
        rows: (64,) a, gamma, epsilon and diffusion of each lane.
        past: (2, 2, 16 m) v and w of the older and the newer state before this one.
        limits: the largest local error, the longest step, and Newton's tolerance.
        room, kept: (372,) and (4, 16 m) memory to work in.

    Returns: whether every step was short enough for the tolerance.
    """
    q, scratch, worst, t = room[:144], room[144:368], room[144:160], room[368:372]
    tolerance, largest = limits[0], limits[1]
    new, done = 1, 0  # which of `past` is the newer
    while done < most and not reached(memory[TIME], edge):
        now, ahead = memory[TIME], memory[AHEAD]
        h = first_try(ahead, edge - now)
        known = memory[N_PAST]
        tried = False
        while True:
            decay = _set_step(q, rows, dx, h)
            ratio = h / (now - memory[NEWER]) if known > 0 else 0.0
            _guess(s, m, past[new, 0], ratio, lanes)
            n_spikes = _spikes(decay, m) if pieces else 1
            error = _FAILED
            if newton(s, m, q, ends, n_spikes, limits[2], scratch, lanes) >= 0:
                if known < 2:
                    tried = True
                    _copy(s, m, 0, kept[2], False)
                    _copy(s, m, 1, kept[3], False)
                    finish(s, m, q, lanes)
                    error = _halves(
                        s, m, q, rows, ends, kept, dx, h, limits[2], pieces, scratch, lanes
                    )
                else:
                    t[0], t[1], t[2], t[3] = memory[OLDER], memory[NEWER], now, now + h
                    found = _third_difference(s, m, q, past[1 - new], past[new], t, worst, lanes)
                    error = found * h * h * h / 2
            if error <= tolerance:
                break
            memory[REFUSED] += 1
            if tried:
                _copy(s, m, 0, kept[2], True)
                _copy(s, m, 1, kept[3], True)
            h = shortened(h, error, tolerance)
            if h < SHORTEST:
                return False
        new = 1 - new
        if known < 2:
            past[new, 0], past[new, 1] = kept[2], kept[3]
        else:
            _copy(s, m, 0, past[new, 0], False)
            _copy(s, m, 1, past[new, 1], False)
            finish(s, m, q, lanes)
        memory[OLDER], memory[NEWER], memory[N_PAST] = memory[NEWER], now, min(known + 1, 2.0)
        memory[STEPS] += 1
        memory[SHORT], memory[LONG] = min(memory[SHORT], h), max(memory[LONG], h)
        memory[AHEAD] = planned(h, ahead, error, tolerance, largest)
        memory[TIME] = now + h
        done += 1
    if new == 0:  # the newer one comes last
        for k in range(2):
            kept[0], kept[1] = past[0, k], past[1, k]
            past[0, k], past[1, k] = kept[1], kept[0]
    if reached(memory[TIME], edge):
        memory[TIME] = edge
    return True


@kernel
def control_pieces(
    first: int,
    last: int,
    v: Array,
    w: Array,
    past: Array,
    memory: Array,
    drive: Array,
    table: Array,
    kinds: Array,
    dx: float,
    edge: float,
    limits: Array,
    most: int,
    lanes: int,
) -> bool:
    """Advance the cables first .. last-1 in place, each of them cut into 16 pieces.

    Arguments:
        v, w: (n_cables, n_nodes). past: (2, 2, n_cables, n_nodes). memory: (n_cables, COLUMNS).
        table: (n_cables, 4) a, gamma, epsilon, diffusion.
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held, 2 for periodic.
        edge, limits, most: as `_advance` takes them.
    """
    n = v.shape[1]
    m = -(-n // 16)
    s, out, ends, rows = np.zeros(m * 128), np.zeros(m * 16), np.zeros(112), np.zeros(64)
    before, room, kept = np.zeros((2, 2, 16 * m)), np.zeros(372), np.zeros((4, 16 * m))
    tile_ends(ends, 16 * m - n, kinds, True, True, True)
    if len(drive):
        to_lanes(s, m, 6, drive, 0, n)
    for cable in range(first, last):
        for k in range(64):
            rows[k] = table[cable, k // 16]
        for old in range(2):
            for k in range(2):
                to_lanes(s, m, k, past[old, k, cable], 0, n)
                _copy(s, m, k, before[old, k], False)
        to_lanes(s, m, 0, v[cable], 0, n)
        to_lanes(s, m, 1, w[cable], 0, n)
        fine = _advance(
            s,
            m,
            rows,
            ends,
            before,
            memory[cable],
            dx,
            edge,
            limits,
            most,
            True,
            room,
            kept,
            lanes,
        )
        if not fine:
            return False
        from_lanes(s, m, 0, n, out, 0, v[cable])
        from_lanes(s, m, 1, n, out, 0, w[cable])
        for old in range(2):
            for k in range(2):
                _copy(s, m, k, before[old, k], True)
                from_lanes(s, m, k, n, out, 0, past[old, k, cable])
    return True


@kernel
def control_cables(
    first: int,
    last: int,
    v: Array,
    w: Array,
    past: Array,
    memory: Array,
    drive: Array,
    table: Array,
    kinds: Array,
    dx: float,
    edge: float,
    limits: Array,
    most: int,
    lanes: int,
) -> bool:
    """Advance the blocks first .. last-1 in place, each of 16 whole cables side by side.

    The arguments are those of `control_pieces`, but that a block has one row of `memory`.
    """
    n_cables, m = v.shape
    s, ends, rows = np.zeros(m * 128), np.zeros(112), np.zeros(64)
    before, room, kept = np.zeros((2, 2, 16 * m)), np.zeros(372), np.zeros((4, 16 * m))
    cable_ends(ends, kinds)
    drive_in(s, m, drive)
    for block in range(first, last):
        for k in range(64):
            rows[k] = table[min(block * 16 + k % 16, n_cables - 1), k // 16]
        for old in range(2):
            for k in range(2):
                cables_in(s, m, k, past[old, k], block)
                _copy(s, m, k, before[old, k], False)
        cables_in(s, m, 0, v, block)
        cables_in(s, m, 1, w, block)
        fine = _advance(
            s,
            m,
            rows,
            ends,
            before,
            memory[block],
            dx,
            edge,
            limits,
            most,
            False,
            room,
            kept,
            lanes,
        )
        if not fine:
            return False
        cables_out(s, m, 0, v, block)
        cables_out(s, m, 1, w, block)
        for old in range(2):
            for k in range(2):
                _copy(s, m, k, before[old, k], True)
                cables_out(s, m, k, past[old, k], block)
    return True
