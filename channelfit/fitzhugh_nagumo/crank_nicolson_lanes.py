"""Crank-Nicolson's kernels that work on 16 pieces of a cable, or 16 cables, side by side.

The pieces lie in the lanes of vector registers. Elimination down the pieces leaves every row as

    u[i] = y[i] + c[i] u[i+1] + p[i] (last node of the piece before)

and the first row of each piece, accumulated on the way, closes a cyclic system of the 16 last
nodes. The factor p, the influence of the far end of a piece on a node, decays from node to node.
Beyond as many nodes as `crank_nicolson.reach` returns it is below the smallest digit and is left
out; where it does not decay it is kept to the end. The solution is exact either way.

A block of m rows is one array s, 128 numbers a row: 8 fields of 16 lanes, which are v, w, the
iterate u, c, y, p, the stimulus, and the known side of the equation. The coefficients q are those
of `crank_nicolson.StepCoefficients.scaled`, each number sixteen times. The conditions at the ends
of the lanes, `ends` (112,), are 7 fields: the factors of the neighbors before and after the first
row and the last one, whether v is held in the first and in the last row, and whether the first row
is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.fitzhugh_nagumo.row_by_row import MOST_ITERATIONS
from channelfit.scoring.machine.kernel_math import apart
from channelfit.scoring.machine.machine_code import kernel

# In short loops over the lanes the compiler must not know that there are 16, since it would unroll
# the loop to scalars before it could make vectors of it; so the number is an argument.
LANES = 16


#: |f''| = |2(1 + a) - 6v| for -0.5 <= v <= 1.5 and 0 <= a <= 1.
BEND = 7.0


# Coefficients of a step, as numbers or arrays (n_cables,) alike; `crank_nicolson` defines them.


def step_coefficients(gamma: Any, epsilon: Any, diffusion: Any, dx: float, dt: float) -> Any:
    """Return r, h, kw and kv of a step of dt."""
    g = epsilon * dt / 2
    r = diffusion * dt / (2 * dx * dx)
    return r, dt / 2, (1 - gamma * g) / (1 + gamma * g), g / (1 + gamma * g)


def row_coefficients(a: Any, r: Any, half: Any, kw: Any, kv: Any) -> Any:
    """Return the coefficients of rows divided by r, so that -1 stands beside the diagonal.

    These are 1 + a; h; the constant of the diagonal; that of v on the known side; the factor of w
    there; kw; kv; the factor of the stimulus.
    """
    r = r + 1e-300
    h, slow = half / r, half * (kv + a)
    above, below = (1 + 2 * r + slow) / r, (1 - 2 * r - slow) / r
    return 1 + a, h, above, below, -h * (1 + kw), kw, kv, 2 * h


def row_dominance(a: Any, half: Any, kv: Any) -> Any:
    """Return by how much each diagonal entry at least exceeds the others of its row."""
    slope = (1 + a) ** 2 / 3 - a
    return 1 + half * (kv - slope)


def newton_bend(half: Any, dominance: Any) -> Any:
    """Return the factor between a squared correction and the error that it leaves."""
    return half * BEND / 2 / dominance


# The solution of a step.


def _known(s: Array, m: int, q: Array, ends: Array, near: Array, lanes: int) -> None:
    """Compute the known side of the equations of all rows.

    near: (32,) takes v beside the first row and the last.
    """
    for end in range(2):
        i = 0 if end == 0 else m - 1
        inner = 1 if end == 0 else m - 2
        for l in range(lanes):  # noqa: E741
            near[16 * (1 - end) + l] = s[inner * 128 + l]
            after = (l + 1) % 16
            if end == 0:
                near[l] = s[(m - 1) * 128 + (l + 15) % 16]
            else:
                near[16 + l] = s[128 + after] if ends[96 + after] != 0.0 else s[after]
        row, weight = s[i * 128 : (i + 1) * 128], ends[32 * end : 32 * end + 32]
        for l in range(lanes):  # noqa: E741
            v = row[l]
            beside = weight[l] * near[l] + weight[16 + l] * near[16 + l]
            push = q[64 + l] * row[16 + l] + q[128 + l] * row[96 + l]
            row[112 + l] = v * (q[48 + l] + q[16 + l] * v * (q[l] - v)) + (beside + push)
    for i in range(1, m - 1):
        row = s[(i - 1) * 128 : (i + 2) * 128]
        for l in range(lanes):  # noqa: E741
            v = row[128 + l]
            beside = row[l] + row[256 + l]
            push = q[64 + l] * row[144 + l] + q[128 + l] * row[224 + l]
            row[240 + l] = v * (q[48 + l] + q[16 + l] * v * (q[l] - v)) + (beside + push)


@apart
def _first_rows(s: Array, q: Array, ends: Array, acc: Array) -> None:
    for l in range(16):  # noqa: E741
        u, held, none = s[32 + l], ends[64 + l], ends[96 + l]  # 1.0 or 0.0
        hu = q[16 + l] * u
        d = hu * (3 * u - 2 * q[l]) + q[32 + l]
        known = hu * u * (2 * u - q[l]) + s[112 + l]
        inverse = (1 - held) * (1 - none) / d
        c, p, y = ends[16 + l] * inverse, ends[l] * inverse, known * inverse + held * s[l]
        # Where there is no node, the one before is repeated.
        s[48 + l], s[64 + l], s[80 + l] = c, y, p + none
        acc[l], acc[16 + l], acc[32 + l] = y, p, c + none


def _down(s: Array, first: int, last: int, q: Array, acc: Array, spikes: bool, lanes: int) -> None:
    """Eliminate the rows first .. last-1, each of which is a vector of lanes."""
    for i in range(first, last):
        row = s[(i - 1) * 128 : (i + 1) * 128]
        for l in range(lanes):  # noqa: E741
            u = row[160 + l]
            hu = q[16 + l] * u
            d = hu * (3 * u - 2 * q[l]) + q[32 + l]
            known = hu * u * (2 * u - q[l]) + row[240 + l]
            inverse = 1.0 / (d - row[48 + l])
            y = (known + row[64 + l]) * inverse
            row[176 + l] = inverse
            row[192 + l] = y
            if spikes:
                p = row[80 + l] * inverse
                row[208 + l] = p
                c = acc[32 + l]
                acc[l] += c * y
                acc[16 + l] += c * p
                acc[32 + l] = c * inverse


@apart
def _last_rows(s: Array, m: int, q: Array, ends: Array, acc: Array, system: Array) -> None:
    """Write the system of the 16 last nodes: below, on and above the diagonal, and right side."""
    above, row = s[(m - 2) * 128 : (m - 1) * 128], s[(m - 1) * 128 : m * 128]
    for l in range(16):  # noqa: E741
        after = (l + 1) % 16
        system[l], system[16 + l], system[32 + l] = acc[after], acc[16 + after], acc[32 + after]
    for l in range(16):  # noqa: E741
        u = row[32 + l]
        hu = q[16 + l] * u
        d = hu * (3 * u - 2 * q[l]) + q[32 + l]
        known = hu * u * (2 * u - q[l]) + row[112 + l]
        lo, up, free = ends[32 + l], ends[48 + l], 1 - ends[80 + l]
        y, p, c = system[l], system[16 + l], system[32 + l]
        system[l] = -lo * above[80 + l] * free
        system[16 + l] = (d - lo * above[48 + l] - up * p) * free + (1 - free)
        system[32 + l] = -up * c * free
        known += lo * above[64 + l] + up * y
        system[48 + l] = known * free + row[l] * (1 - free)


@apart
def _close(system: Array, separate: bool, z: Array) -> None:
    """Solve the cyclic system of 16 nodes; directly where they do not influence each other."""
    if separate:
        for l in range(16):  # noqa: E741
            z[l] = system[48 + l] / system[16 + l]
        return
    # z[l] = y[l] + c[l] z[l+1] + e[l] z[15]
    c, y, e = 0.0, 0.0, 1.0
    for l in range(15):  # noqa: E741
        low = system[l]
        inverse = 1.0 / (system[16 + l] + low * c)
        y = (system[48 + l] - low * y) * inverse
        e = -low * e * inverse
        c = -system[32 + l] * inverse
        z[16 + l], z[32 + l], z[48 + l] = c, y, e
    c0, y0, e0 = 0.0, 0.0, 1.0  # z[0] of z[15], by substitution from behind
    for k in range(15):
        l = 14 - k  # noqa: E741
        y0 = z[32 + l] + z[16 + l] * y0
        e0 = z[48 + l] + z[16 + l] * e0
        if k == 0:
            c0, y14, e14 = 0.0, y0, e0
    low, up = system[15], system[47]
    z[15] = (system[63] - low * y14 - up * y0) / (system[31] + low * e14 + up * e0 + c0)
    for k in range(15):
        l = 14 - k  # noqa: E741
        z[l] = z[32 + l] + z[16 + l] * z[l + 1] + z[48 + l] * z[15]


def _up(s: Array, m: int, n_spikes: int, z: Array, moved: Array, lanes: int) -> None:
    """Substitute from the last rows to the first, and add up the squares of the corrections."""
    end = s[(m - 1) * 128 : m * 128]
    for l in range(lanes):  # noqa: E741
        change = z[l] - end[32 + l]
        moved[l] = change * change
        end[32 + l] = z[l]
    for j in range(m - 1):
        i = m - 2 - j
        row = s[i * 128 : (i + 2) * 128]
        if i < n_spikes:
            for l in range(lanes):  # noqa: E741
                row[64 + l] += row[80 + l] * z[(l + 15) % 16]
        for l in range(lanes):  # noqa: E741
            u = row[64 + l] + row[48 + l] * row[160 + l]
            change = u - row[32 + l]
            moved[l] += change * change
            row[32 + l] = u


def finish(s: Array, m: int, q: Array, lanes: int) -> None:
    """Replace v by the iterate, compute the new w, and extrapolate v as the next first iterate."""
    for i in range(m):
        row = s[i * 128 : (i + 1) * 128]
        for l in range(lanes):  # noqa: E741
            v, u = row[l], row[32 + l]
            row[16 + l] = q[80 + l] * row[16 + l] + q[96 + l] * (v + u)
            row[l] = u
            row[32 + l] = 2 * u - v


def newton(
    s: Array,
    m: int,
    q: Array,
    ends: Array,
    n_spikes: int,
    tolerance: float,
    scratch: Array,
    lanes: int,
) -> int:
    """Solve for the v at the end of a step, from the iterate that the block holds.

    Returns: how many iterations it took, or -1 if it did not converge.
    """
    acc, system, z = scratch[:48], scratch[48:112], scratch[112:176]
    moved, near = scratch[176:192], scratch[192:224]
    _known(s, m, q, ends, near, lanes)
    for k in range(MOST_ITERATIONS):
        _first_rows(s, q, ends, acc)
        _down(s, 1, n_spikes, q, acc, True, lanes)
        _down(s, n_spikes, m - 1, q, acc, False, lanes)
        _last_rows(s, m, q, ends, acc, system)
        _close(system, n_spikes < m - 1, z)
        _up(s, m, n_spikes, z, moved, lanes)
        left = 0.0
        for l in range(16):  # noqa: E741
            left += q[112 + l] * moved[l]
        if left <= tolerance:
            return k + 1
    return -1


def _steps(
    s: Array,
    m: int,
    q: Array,
    ends: Array,
    n_spikes: int,
    n_steps: int,
    tolerance: float,
    scratch: Array,
    lanes: int,
) -> int:
    """Advance a block of lanes.

    Returns: how many iterations Newton's method took, or -1 if it did not converge.
    """
    taken = 0
    for _ in range(n_steps):
        more = newton(s, m, q, ends, n_spikes, tolerance, scratch, lanes)
        if more < 0:
            return -1
        taken += more
        finish(s, m, q, lanes)
    return taken


@apart
def to_lanes(s: Array, m: int, field: int, values: Array, first: int, n: int) -> None:
    """Copy the nodes first .. first+n-1 of a cable, which may be a ring, to 16 lanes of pieces.

    It copies eight rows at a time, because these and the nodes of their lanes fit into the first
    cache.
    """
    pads = 16 * m - n  # the last lanes begin with none: there they repeat the one before
    size = len(values)
    for top in range(0, m, 8):
        for lane in range(16):
            begin = first + lane * m - max(0, lane - (15 - pads))
            for i in range(top, min(top + 8, m)):
                g = begin + i
                g = g + size if g < 0 else (g - size if g >= size else g)
                s[(i * 8 + field) * 16 + lane] = values[g]


@apart
def from_lanes(s: Array, m: int, field: int, n: int, out: Array, skipped: int, kept: Array) -> None:
    """Copy the n nodes of a tile from 16 lanes to out, and those of its own part to kept."""
    pads = 16 * m - n
    for top in range(0, m, 8):
        for lane in range(16):
            begin = lane * m - max(0, lane - (15 - pads))
            missing = 1 if lane >= 16 - pads else 0
            for i in range(max(top, missing), min(top + 8, m)):
                out[begin + i] = s[(i * 8 + field) * 16 + lane]
    for k in range(len(kept)):
        kept[k] = out[skipped + k]


def tile_ends(
    ends: Array, pads: int, kinds: Array, at_left: bool, at_right: bool, whole: bool
) -> None:
    """Write the conditions at the ends of a tile in 16 lanes,
    the last `pads` of which lack a row.

    Arguments:
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held, 2 for periodic.
        at_left, at_right, whole: whether the tile has that end of the cable, and all of it.
    """
    for lane in range(16):
        for row in range(4):
            ends[row * 16 + lane] = 1.0
        ends[64 + lane] = ends[80 + lane] = 0.0
        ends[96 + lane] = 1.0 if lane >= 16 - pads else 0.0
    if not (whole and kinds[0] == 2):
        left_end, right_end = at_left and kinds[0] != 2, at_right and kinds[0] != 2
        ends[0], ends[16] = 0.0, 2.0
        ends[47], ends[63] = 2.0, 0.0
        ends[64] = 1.0 if not left_end or kinds[0] == 1 else 0.0
        ends[95] = 1.0 if not right_end or kinds[1] == 1 else 0.0


def cable_ends(ends: Array, kinds: Array) -> None:
    """Write the same conditions for a whole cable in each lane; ends begins with zeros."""
    for lane in range(16):
        ends[16 + lane] = ends[32 + lane] = 2.0
        ends[64 + lane] = 1.0 if kinds[0] == 1 else 0.0
        ends[80 + lane] = 1.0 if kinds[1] == 1 else 0.0


def cables_in(s: Array, m: int, field: int, values: Array, block: int) -> None:
    """Copy the cables of a block to the lanes; beyond the last it is repeated."""
    n_cables = len(values)
    for top in range(0, m, 8):  # as in to_lanes
        for lane in range(16):
            cable = min(block * 16 + lane, n_cables - 1)
            for i in range(top, min(top + 8, m)):
                s[(i * 8 + field) * 16 + lane] = values[cable, i]


def cables_out(s: Array, m: int, field: int, values: Array, block: int) -> None:
    """Copy the lanes to the cables of a block."""
    for top in range(0, m, 8):
        for lane in range(min(16, len(values) - block * 16)):
            for i in range(top, min(top + 8, m)):
                values[block * 16 + lane, i] = s[(i * 8 + field) * 16 + lane]


def drive_in(s: Array, m: int, drive: Array) -> None:
    """Copy the stimulus, if there is one, to all lanes."""
    if len(drive):
        for i in range(m):
            for lane in range(16):
                s[i * 128 + 96 + lane] = drive[i]


@kernel
def advance_tiles(
    first: int,
    last: int,
    tile: int,
    overlap: int,
    v: Array,
    w: Array,
    drive: Array,
    v_new: Array,
    w_new: Array,
    q: Array,
    kinds: Array,
    n_steps: int,
    n_spikes: int,
    tolerance: float,
    lanes: int,
) -> int:
    """Advance the tiles first .. last-1 of one cable, each with the nodes that it overlaps.

    Arguments:
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held, 2 for periodic.

    Returns: the most iterations of Newton's method, or -1 if it did not converge.
    """
    size = len(v)
    most = -(-min(size, tile + 2 * overlap + 2) // 16)
    s = np.zeros(most * 128)
    scratch, ends, out = np.zeros(224), np.zeros(112), np.zeros(most * 16)
    taken = 0
    for k in range(first, last):
        begin, end = k * tile, min((k + 1) * tile, size)
        low, high = begin - overlap - 1, end + overlap + 1
        whole = high - low >= size
        if whole:
            low, high = 0, size
        elif kinds[0] != 2:
            low, high = max(low, 0), min(high, size)
        n = high - low
        m = -(-n // 16)
        tile_ends(ends, 16 * m - n, kinds, low == 0, high == size, whole)
        to_lanes(s, m, 0, v, low, n)
        to_lanes(s, m, 1, w, low, n)
        to_lanes(s, m, 2, v, low, n)
        if len(drive):
            to_lanes(s, m, 6, drive, low, n)
        done = _steps(s, m, q, ends, min(n_spikes, m - 1), n_steps, tolerance, scratch, lanes)
        if done < 0:
            return -1
        taken = max(taken, done)
        from_lanes(s, m, 0, n, out, begin - low, v_new[begin:end])
        from_lanes(s, m, 1, n, out, begin - low, w_new[begin:end])
    return taken


@kernel
def advance_cables(
    first: int,
    last: int,
    v: Array,
    w: Array,
    drive: Array,
    rows: Array,
    kinds: Array,
    n_steps: int,
    tolerance: float,
    lanes: int,
) -> int:
    """Advance the blocks first .. last-1, each of 16 whole cables side by side, in place.

    Returns: the most iterations of Newton's method, or -1 if it did not converge.
    """
    n_cables, m = v.shape
    s = np.zeros(m * 128)
    scratch, ends, q = np.zeros(224), np.zeros(112), np.zeros(144)
    taken = 0
    for block in range(first, last):
        for lane in range(16):
            cable = min(block * 16 + lane, n_cables - 1)
            for k in range(9):
                q[k * 16 + lane] = rows[k, cable]
        cable_ends(ends, kinds)
        cables_in(s, m, 0, v, block)
        cables_in(s, m, 1, w, block)
        cables_in(s, m, 2, v, block)
        drive_in(s, m, drive)
        done = _steps(s, m, q, ends, 1, n_steps, tolerance, scratch, lanes)
        if done < 0:
            return -1
        taken = max(taken, done)
        cables_out(s, m, 0, v, block)
        cables_out(s, m, 1, w, block)
    return taken
