"""The classical Runge-Kutta scheme of order four on the CPU, in the tiles of forward Euler.

The rates k of a step of h are taken at four states: v itself and

    v_2 = v + h k(v) / 2        v_3 = v + h k(v_2) / 2        v_4 = v + h k(v_3)

These states are kept and not their rates, since the new one follows from them,

    v' = (v_2 - v + 2 v_3 + v_4) / 3 + h k(v_4) / 6

so that every stage is one pass over eight rows that stay in the cache. A step is stable up to 2.785
over the fastest rate of decay, forward Euler's up to 2, and costs more than four of these: where
that limit and not the error decides, `chebyshev` or `crank_nicolson` are cheaper.

An error at the cut ends of a tile moves by four nodes in each step.

Source: W. Kutta, Z. Math. Phys. 46 (1901) 435.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.explicit import Explicit, copy_in, row_length, tile_bounds
from channelfit.scoring.machine.kernel_math import apart
from channelfit.scoring.machine.machine_code import kernel

#: A step depends on so many nodes on either side.
REACH = 4
#: The limits of stability along the negative real axis, of this scheme and of forward Euler.
STABLE, EULER_STABLE = 2.785293563405282, 2.0


def _ends(v: Array, n: int, ring: bool, holds_left: bool, holds_right: bool, held: Array) -> None:
    """Set the held ends of v to their values, and the places beyond both ends."""
    if holds_left:
        v[1] = held[1]
    if holds_right:
        v[n] = held[n]
    v[0] = v[n] if ring else v[2]
    v[n + 1] = v[1] if ring else v[n - 1]


@apart
def _stage(
    rows: Array, n: int, start: int, now: int, to: int, q: Array, ahead: float, driven: bool
) -> None:
    """Write state `start`, moved along the rates of state `now`, to state `to`.

    Arguments:
        rows: (9, n + 2 or more) v of four states, w of the four, and the stimulus.
        q: a, gamma, epsilon and diffusion/dx^2. ahead: the time of the move.
    """
    a, gain, r = q[0], ahead * q[2], ahead * q[3]
    left, here, right = rows[now, :n], rows[now, 1 : n + 1], rows[now, 2 : n + 2]
    base, out, push = rows[start, 1 : n + 1], rows[to, 1 : n + 1], rows[8]
    w, w_now, w_out = rows[start + 4, :n], rows[now + 4, :n], rows[to + 4, :n]
    linear, square, loss = -2 * r - ahead * a, ahead * (1 + a), gain * q[1]
    for i in range(n):
        x = here[i]
        known = r * (left[i] + right[i]) - ahead * w_now[i]
        out[i] = (base[i] + x * (linear + x * (square - ahead * x))) + known
        w_out[i] = w[i] + (gain * x - loss * w_now[i])
    if driven:
        for i in range(n):
            out[i] += ahead * push[i]


def _close(rows: Array, n: int, start: int, to: int, q: Array, ahead: float, driven: bool) -> None:
    """Write the state after the step in place of v_2, which is state `to`.

    Arguments:
        rows: as `_stage` takes them; states 2 and 3 are v_3 and v_4.
        start: the state v at the beginning. ahead: a sixth of the step.
    """
    a, gain, r, third = q[0], ahead * q[2], ahead * q[3], 1.0 / 3.0
    left, here, right = rows[3, :n], rows[3, 1 : n + 1], rows[3, 2 : n + 2]
    base, out, middle = rows[start, 1 : n + 1], rows[to, 1 : n + 1], rows[2, 1 : n + 1]
    w, w_out, w_three, w_four = rows[start + 4, :n], rows[to + 4, :n], rows[6, :n], rows[7, :n]
    linear, square, loss = third - 2 * r - ahead * a, ahead * (1 + a), gain * q[1]
    push = rows[8]
    for i in range(n):
        x = here[i]
        known = third * ((out[i] - base[i]) + 2 * middle[i])
        known += r * (left[i] + right[i]) - ahead * w_four[i]
        out[i] = known + x * (linear + x * (square - ahead * x))
        w_known = third * ((w_out[i] - w[i]) + (2 * w_three[i] + w_four[i]))
        w_out[i] = w_known + (gain * x - loss * w_four[i])
    if driven:
        for i in range(n):
            out[i] += ahead * push[i]


@kernel
def _tiles(
    first: int,
    last: int,
    tile: int,
    v: Array,
    w: Array,
    drive: Array,
    v_new: Array,
    w_new: Array,
    table: Array,
    dt: float,
    kinds: Array,
    n_steps: int,
) -> None:
    """Advance the jobs first .. last-1, each of which is a tile of one of the cables."""
    size, driven, reach = v.shape[1], len(drive) > 0, REACH * n_steps
    rows = np.zeros((9, row_length(min(size, tile + 2 * reach) + 2, 9)))
    for job in range(first, last):
        cable, begin, end, low, high = tile_bounds(job, tile, reach, size, kinds[0] == 2)
        n, q = high - low, table[cable]
        ring = kinds[0] == 2 and n == size
        left, right = kinds[0] == 1 and low == 0, kinds[1] == 1 and high == size
        one, two = 0, 1
        copy_in(v[cable], w[cable], drive, low, rows[one], rows[one + 4, :n], rows[8])
        _ends(rows[one], n, ring, left, right, rows[one])
        for _ in range(n_steps):
            _stage(rows, n, one, one, two, q, dt / 2, driven)
            _ends(rows[two], n, ring, left, right, rows[one])
            _stage(rows, n, one, two, 2, q, dt / 2, driven)
            _ends(rows[2], n, ring, left, right, rows[one])
            _stage(rows, n, one, 2, 3, q, dt, driven)
            _ends(rows[3], n, ring, left, right, rows[one])
            _close(rows, n, one, two, q, dt / 6, driven)
            _ends(rows[two], n, ring, left, right, rows[one])
            one, two = two, one
        for g in range(begin, end):
            v_new[cable, g], w_new[cable, g] = rows[one, g - low + 1], rows[one + 4, g - low]


class RungeKutta(Explicit):
    """Runge-Kutta of order four for one cable, or for many of the same grid.

    Steps end where a stimulus begins or ends, so that the order is four there, too.

    Arguments:
        n_threads: how many threads share tiles and cables.
    """

    name = "Runge-Kutta"
    _steps_a_pass = 32

    def __init__(self, equation: Equation, cable: Cable, n_threads: int = 1) -> None:
        super().__init__(equation, cable, n_threads=n_threads)

    def largest_step(self, v: Array) -> float:
        """Return the longest stable step; see `Scheme.largest_step`."""
        return super().largest_step(v) * STABLE / EULER_STABLE

    def _pass(
        self, table: Array, dt: float, n_steps: int
    ) -> tuple[Callable[..., None], tuple[Any, ...]]:
        table = table.copy()
        table[:, 3] /= self.cable.dx**2
        return _tiles, (table, dt, self.kinds, n_steps)
