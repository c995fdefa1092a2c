"""Crank-Nicolson on the CPU: second order in time and space, and stable at any spacing.

Both equations take the trapezoidal rule. Recovery is linear, so its new value

    w' = kw w + kv (v + v')
    g = epsilon dt/2,  kw = (1 - gamma g)/(1 + gamma g),  kv = g/(1 + gamma g)

goes into the equation of v', which Newton's method solves with one tridiagonal system an
iteration; no earlier step is needed, so the first is like the rest. With r = D dt/(2 dx^2) and
h = dt/2 an inner row of Newton's system for the new iterate u' from the iterate u is

    (1 + 2r + h kv - h f'(u)) u'[i] - r (u'[i-1] + u'[i+1]) = R[i] + h (f(u) - u f'(u))[i]
    R = v + r (second difference of v) + h f(v) - h (w + kw w + kv v) + dt I

Newton's error after an iteration is at most ``bend`` times the square of the last correction, with
bend = h max|f''| / 2 over the least dominance of the matrix; it stops when that is below the
tolerance, without an iteration to confirm.

The solver that is used by default cuts the cable into 16 pieces that lie side by side in the
lanes of vector registers. Elimination down the pieces leaves every row as

    u[i] = y[i] + c[i] u[i+1] + p[i] (last node of the piece before)

and the first row of each piece, accumulated on the way, closes a cyclic system of the 16 last
nodes. What a piece's far end feels, p, decays by the factor `decay` a node, so after `reach`
nodes it is below the smallest digit and is left away; where it does not decay it is kept to the
end, and the solution is exact either way. Long cables are advanced tile by tile inside the cache,
several steps a pass, with overlaps after which a tile's invented ends are no longer felt.
"""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from channelfit.fitzhugh_nagumo.equation import (
    Array,
    Cable,
    Equation,
    NotConverged,
    largest_implicit_step,
)
from channelfit.fitzhugh_nagumo.row_by_row import MOST_ITERATIONS, advance_alone, iterate
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.kernel_math import apart
from channelfit.scoring.machine.machine_code import kernel

Solver = Literal["lanes", "thomas", "cyclic_reduction"]

#: Newton's error in v that is let pass.
TOLERANCE = 1e-12
#: What a value of the order of one may lose by an overlap, or by a spike that is cut off.
NEGLIGIBLE = 1e-18
# Where a loop over the lanes is short the compiler must not see that they are 16, or it unrolls the
# loop to scalars before it could become vectors; so an argument says how many there are. A row of
# 8 x 16 holds v, w, iterate, c, y, p, stimulus and what a step knows beforehand.
LANES = 16
_TILE = 4096
_STEPS_A_PASS = (64, 32, 16, 8, 4, 2, 1)
_FEWEST_ROWS = 4
#: |f''| = |2(1 + a) - 6v| for -0.5 <= v <= 1.5 and 0 <= a <= 1.
_BEND = 7.0


@dataclass(frozen=True)
class Coefficients:
    """What a step of length dt takes from the equation, (n_cables,) each."""

    a: Array
    r: Array
    half: Array
    kw: Array
    kv: Array

    @classmethod
    def of(cls, equation: Equation, n_cables: int, dx: float, dt: float) -> Coefficients:
        """The coefficients of a step."""
        a, gamma, epsilon, diffusion = equation.table(n_cables).T
        g = epsilon * dt / 2
        return cls(
            a.copy(),
            diffusion * dt / (2 * dx * dx),
            np.full(n_cables, dt / 2),
            (1 - gamma * g) / (1 + gamma * g),
            g / (1 + gamma * g),
        )

    def rows(self) -> Array:
        """(6, n_cables) as the kernels take them: a, r, h, kw, kv, bend."""
        return np.array([self.a, self.r, self.half, self.kw, self.kv, self.bend()])

    def scaled(self) -> Array:
        """(9, n_cables) as lanes take them: rows divided by r, so that -1 stands off the diagonal.

        1 + a; h; the constant of the diagonal; that of v on the known side; the factor of w there;
        kw; kv; bend; the factor of the stimulus.
        """
        r = np.maximum(self.r, 1e-300)
        h, slow = self.half / r, self.half * (self.kv + self.a)
        return np.array(
            [
                1 + self.a,
                h,
                (1 + 2 * self.r + slow) / r,
                (1 - 2 * self.r - slow) / r,
                -h * (1 + self.kw),
                self.kw,
                self.kv,
                self.bend(),
                2 * h,
            ]
        )

    def dominance(self) -> Array:
        """(n_cables,) by which a diagonal exceeds its row's other entries, at least."""
        slope = (1 + self.a) ** 2 / 3 - self.a
        return 1 + self.half * (self.kv - slope)

    def bend(self) -> Array:
        """(n_cables,) factor between a correction's square and the error that it leaves."""
        return self.half * _BEND / 2 / np.maximum(self.dominance(), 1e-300)

    def decay(self) -> float:
        """The factor by which what is felt of a distant node falls from node to node, at most."""
        d = self.dominance() + 2 * self.r
        root = np.sqrt(np.maximum(d * d - 4 * self.r**2, 0.0))
        return float(np.max(2 * self.r / (d + root)))


def reach(decay: float, n_steps: int = 1, negligible: float = NEGLIGIBLE) -> float:
    """Nodes beyond which an end is felt less than `negligible` after `n_steps` implicit steps.

    A step spreads a disturbance by the kernel decay^|distance| (scaled to a sum of one) at most,
    and by the explicit half of it to one more node; the sum of the tail of the repeated
    convolution is bounded by Chernoff: min over s of exp(-s n) M(s)^n_steps, with M the kernel's
    moment generating function.
    """
    if decay <= 0:
        return 1.0 * n_steps
    if decay >= 1:
        return math.inf
    s = -math.log(decay) * np.linspace(0.02, 0.99, 98)
    moment = (
        (1 - decay)
        / (1 + decay)
        * (1 / (1 - decay * np.exp(s)) + decay * np.exp(-s) / (1 - decay * np.exp(-s)))
    )
    growth = np.exp(s)  # the explicit half
    nodes = (n_steps * np.log(2 * moment * growth) - math.log(negligible)) / s
    return float(math.ceil(nodes.min()))


# --- the kernels


def _known(s: Array, m: int, q: Array, ends: Array, near: Array, lanes: int) -> None:
    """What a step knows beforehand, of all rows; near: (32,) v beside the first and last ones."""
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
    """Elimination of rows first .. last-1, each a vector of lanes."""
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
    """The 16 last nodes' system: rows (below, diagonal, above, right side)."""
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
    """Solves the cyclic system of 16; at once where the nodes do not feel each other."""
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
    """Substitution from the last rows to the first; adds up the squares of the corrections."""
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


def _finish(s: Array, m: int, q: Array, lanes: int) -> None:
    """Recovery's step, the new v, and a straight line's guess of the next."""
    for i in range(m):
        row = s[i * 128 : (i + 1) * 128]
        for l in range(lanes):  # noqa: E741
            v, u = row[l], row[32 + l]
            row[16 + l] = q[80 + l] * row[16 + l] + q[96 + l] * (v + u)
            row[l] = u
            row[32 + l] = 2 * u - v


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
    """Advances a block of lanes; the iterations that Newton took, or -1 if it did not converge."""
    acc, system, z = scratch[:48], scratch[48:112], scratch[112:176]
    moved, near = scratch[176:192], scratch[192:224]
    taken = 0
    for _ in range(n_steps):
        left = 1.0
        _known(s, m, q, ends, near, lanes)
        for _ in range(MOST_ITERATIONS):
            taken += 1
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
                break
        if not left <= tolerance:
            return -1
        _finish(s, m, q, lanes)
    return taken


@apart
def _to_lanes(s: Array, m: int, field: int, values: Array, first: int, n: int) -> None:
    """Nodes first .. first+n-1 of a cable (a ring if need be) to 16 lanes of pieces.

    Eight rows at a time: what they and their lanes' nodes lie in stays in the first cache.
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
def _from_lanes(
    s: Array, m: int, field: int, n: int, out: Array, skipped: int, kept: Array
) -> None:
    """A tile's n nodes from 16 lanes of pieces to out, and without what it overlaps to kept."""
    pads = 16 * m - n
    for top in range(0, m, 8):
        for lane in range(16):
            begin = lane * m - max(0, lane - (15 - pads))
            missing = 1 if lane >= 16 - pads else 0
            for i in range(max(top, missing), min(top + 8, m)):
                out[begin + i] = s[(i * 8 + field) * 16 + lane]
    for k in range(len(kept)):
        kept[k] = out[skipped + k]


@kernel
def _tiles(
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
    """Advances tiles first .. last-1 of one cable, each with what it overlaps.

    kinds: (2,) of the cable's ends: 0 no flux, 1 held, 2 periodic.
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
        pads = 16 * m - n
        for lane in range(16):
            for row in range(4):
                ends[row * 16 + lane] = 1.0
            ends[64 + lane] = ends[80 + lane] = 0.0
            ends[96 + lane] = 1.0 if lane >= 16 - pads else 0.0
        if not (whole and kinds[0] == 2):
            left_end, right_end = low == 0 and kinds[0] != 2, high == size and kinds[0] != 2
            ends[0], ends[16] = 0.0, 2.0
            ends[47], ends[63] = 2.0, 0.0
            ends[64] = 1.0 if not left_end or kinds[0] == 1 else 0.0
            ends[95] = 1.0 if not right_end or kinds[1] == 1 else 0.0
        _to_lanes(s, m, 0, v, low, n)
        _to_lanes(s, m, 1, w, low, n)
        _to_lanes(s, m, 2, v, low, n)
        if len(drive):
            _to_lanes(s, m, 6, drive, low, n)
        done = _steps(s, m, q, ends, min(n_spikes, m - 1), n_steps, tolerance, scratch, lanes)
        if done < 0:
            return -1
        taken = max(taken, done)
        _from_lanes(s, m, 0, n, out, begin - low, v_new[begin:end])
        _from_lanes(s, m, 1, n, out, begin - low, w_new[begin:end])
    return taken


@kernel
def _cables(
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
    """Advances blocks first .. last-1 of 16 whole cables side by side, in place."""
    n_cables, m = v.shape
    s = np.zeros(m * 128)
    scratch, ends, q = np.zeros(224), np.zeros(112), np.zeros(144)
    taken = 0
    for block in range(first, last):
        for lane in range(16):
            cable = min(block * 16 + lane, n_cables - 1)
            for k in range(9):
                q[k * 16 + lane] = rows[k, cable]
            ends[16 + lane] = ends[32 + lane] = 2.0
            ends[64 + lane] = 1.0 if kinds[0] == 1 else 0.0
            ends[80 + lane] = 1.0 if kinds[1] == 1 else 0.0
        for top in range(0, m, 8):  # as in _to_lanes
            for lane in range(16):
                cable = min(block * 16 + lane, n_cables - 1)
                for i in range(top, min(top + 8, m)):
                    at = i * 128 + lane
                    s[at] = s[at + 32] = v[cable, i]
                    s[at + 16] = w[cable, i]
                    if len(drive):
                        s[at + 96] = drive[i]
        done = _steps(s, m, q, ends, 1, n_steps, tolerance, scratch, lanes)
        if done < 0:
            return -1
        taken = max(taken, done)
        for top in range(0, m, 8):
            for lane in range(min(16, n_cables - block * 16)):
                cable = block * 16 + lane
                for i in range(top, min(top + 8, m)):
                    v[cable, i] = s[i * 128 + lane]
                    w[cable, i] = s[i * 128 + 16 + lane]
    return taken


# --- the scheme


class CrankNicolson:
    """Crank-Nicolson for one cable, or for many of the same grid.

    Arguments:
        solver: "lanes" (fastest), "thomas" or "cyclic_reduction", one system after the other.
        tolerance: of Newton's error in v.
        n_threads: threads that share tiles and cables.
    """

    name = "Crank-Nicolson"

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        solver: Solver = "lanes",
        tolerance: float = TOLERANCE,
        n_threads: int = 1,
    ) -> None:
        if solver not in ("lanes", "thomas", "cyclic_reduction"):
            raise InputError(
                f'"{solver}" is neither lanes, thomas nor cyclic_reduction', key="solver"
            )
        if not tolerance > 0:
            raise InputError(f"{tolerance} is no tolerance; it must be positive", key="tolerance")
        self.equation, self.cable, self.solver = equation, cable, solver
        self.tolerance, self.n_threads = tolerance, n_threads
        self.kinds = end_kinds(cable)
        self.iterations = 0  # Newton's, of the last call: the most of any tile
        self._pool = ThreadPoolExecutor(n_threads)

    def largest_step(self, v: Array) -> float:
        """Beyond it Newton's matrix need not be dominant; see `largest_implicit_step`."""
        return largest_implicit_step(self.equation)

    def advance(
        self, v: Array, w: Array, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Array, Array]:
        """n_steps steps of dt under one stimulus.

        Arguments:
            v, w: (n_cables, n_nodes). drive: (n_nodes,) the steps' mean stimulus.

        Returns: the new v and w.

        Raises:
            NotConverged: Newton's method does not; the step is too long.
        """
        coefficients = Coefficients.of(self.equation, len(v), self.cable.dx, dt)
        stimulus = np.empty(0) if drive is None else drive
        if self.solver != "lanes" or (
            v.shape[1] < LANES * _FEWEST_ROWS and (len(v) < LANES or self.cable.periodic)
        ):
            results = [
                self._one_by_one(v[k], w[k], coefficients, k, n_steps, stimulus)
                for k in range(len(v))
            ]
        elif len(v) >= LANES and not self.cable.periodic:
            return self._side_by_side(v, w, coefficients, n_steps, stimulus)
        else:
            results = [
                self._in_tiles(v[k], w[k], coefficients, k, n_steps, stimulus)
                for k in range(len(v))
            ]
        return np.array([r[0] for r in results]), np.array([r[1] for r in results])

    def _side_by_side(
        self, v: Array, w: Array, coefficients: Coefficients, n_steps: int, drive: Array
    ) -> tuple[Array, Array]:
        v, w, rows = v.copy(), w.copy(), coefficients.scaled()

        def run(first: int, last: int) -> Any:
            return _cables(
                first, last, v, w, drive, rows, self.kinds, n_steps, self.tolerance, LANES
            )

        self._share(run, -(-len(v) // LANES))
        return v, w

    def _in_tiles(
        self, v: Array, w: Array, coefficients: Coefficients, k: int, n_steps: int, drive: Array
    ) -> tuple[Array, Array]:
        q = np.repeat(coefficients.scaled()[:, k], LANES)
        decay = coefficients.decay()
        n_spikes = int(min(reach(decay), len(v))) + 1
        a_pass, tile, overlap = n_steps, len(v), 0
        if len(v) > 2 * _TILE:
            for count in _STEPS_A_PASS:
                felt = reach(decay, min(n_steps, count))
                if felt <= _TILE / 16 or (count == 1 and felt < _TILE / 2):
                    a_pass, tile, overlap = min(n_steps, count), _TILE, int(felt)
                    break
        most = 0
        while n_steps > 0:
            count = min(a_pass, n_steps)
            v_new, w_new = np.empty_like(v), np.empty_like(w)

            def run(
                first: int,
                last: int,
                old: tuple[Array, Array] = (v, w),
                new: tuple[Array, Array] = (v_new, w_new),
                count: int = count,
            ) -> Any:
                return _tiles(
                    first,
                    last,
                    tile,
                    overlap,
                    *old,
                    drive,
                    *new,
                    q,
                    self.kinds,
                    count,
                    n_spikes,
                    self.tolerance,
                    LANES,
                )

            self._share(run, -(-len(v) // tile))
            most += self.iterations
            v, w, n_steps = v_new, w_new, n_steps - count
        self.iterations = most
        return v, w

    def _share(self, run: Any, n_jobs: int) -> None:
        """Calls run(first, last) from threads that share the jobs."""
        parts = min(self.n_threads * 4, n_jobs) if self.n_threads > 1 else 1
        edges = np.linspace(0, n_jobs, parts + 1).astype(int).tolist()
        jobs = list(itertools.pairwise(edges))
        if len(jobs) == 1:
            taken = [run(*jobs[0])]
        else:
            taken = list(self._pool.map(lambda job: run(*job), jobs))
        self._check(min(taken))
        self.iterations = max(taken)

    def _check(self, taken: int) -> None:
        if taken < 0:
            raise NotConverged(
                f"Newton's method did not converge in {MOST_ITERATIONS} iterations; "
                "take a shorter step",
                key="dt",
            )

    def _one_by_one(
        self, v: Array, w: Array, coefficients: Coefficients, k: int, n_steps: int, drive: Array
    ) -> tuple[Array, Array]:
        v, w, q = v.copy(), w.copy(), np.repeat(coefficients.rows()[:, k], LANES)
        self.iterations = advance_alone(
            v, w, drive, q, self.kinds, n_steps, self.tolerance, self.solver == "cyclic_reduction"
        )
        self._check(self.iterations)
        return v, w

    def newton(self, v: Array, w: Array, guess: Array, q: Array, drive: Array) -> list[Array]:
        """The iterates of one step of one cable, the last of them converged."""
        n, reduction, iterates = len(v), self.solver == "cyclic_reduction", [guess]
        system, room = np.empty((6, n)), np.empty(8 * n)
        for _ in range(MOST_ITERATIONS):
            iterates.append(np.empty(n))
            left = iterate(
                v, w, iterates[-2], drive, q, self.kinds, reduction, system, room, iterates[-1]
            )
            if left <= self.tolerance:
                return iterates
        self._check(-1)
        return iterates


def end_kinds(cable: Cable) -> Any:
    """(2,) of the ends as the kernels know them: 0 no flux, 1 held, 2 periodic."""
    names = {"no_flux": 0, "periodic": 2}
    kinds = [names[e] if isinstance(e, str) else 1 for e in (cable.left, cable.right)]
    return np.array(kinds, dtype=np.int64)
