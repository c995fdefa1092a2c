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
from channelfit.fitzhugh_nagumo.explicit import (
    Explicit,
    copy_in,
    row_length,
    set_ghosts,
    tile_bounds,
)
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
    set_ghosts(v, n, ring)


@apart
def _stage(
    start: Array, now: Array, to: Array, push: Array, n: int, q: Array, ahead: float, driven: bool
) -> None:
    """Write the state `start`, moved along the rates of the state `now`, to the state `to`.

    Arguments:
        start, now, to: (2, n + 2 or more) v and w; of v the nodes are at the places 1 .. n.
        push: (n,) the stimulus, used where `driven`. ahead: the time of the move.
        q: a, gamma, epsilon and diffusion/dx^2.
    """
    a, gain, r = q[0], ahead * q[2], ahead * q[3]
    left, here, right = now[0, :n], now[0, 1 : n + 1], now[0, 2 : n + 2]
    base, out = start[0, 1 : n + 1], to[0, 1 : n + 1]
    w, w_now, w_out = start[1, :n], now[1, :n], to[1, :n]
    linear, square, loss = -2 * r - ahead * a, ahead * (1 + a), gain * q[1]
    for i in range(n):
        x = here[i]
        known = r * (left[i] + right[i]) - ahead * w_now[i]
        out[i] = (base[i] + x * (linear + x * (square - ahead * x))) + known
        w_out[i] = w[i] + (gain * x - loss * w_now[i])
    if driven:
        for i in range(n):
            out[i] += ahead * push[i]


def _close(
    start: Array, two: Array, more: Array, push: Array, n: int, q: Array, ahead: float, driven: bool
) -> None:
    """Write the state after the step in place of the state `two`.

    Arguments:
        start, two: as `_stage` takes them. more: (4, n + 2 or more) the states three and four.
        ahead: a sixth of the step.
    """
    a, gain, r, third = q[0], ahead * q[2], ahead * q[3], 1.0 / 3.0
    left, here, right = more[2, :n], more[2, 1 : n + 1], more[2, 2 : n + 2]
    base, out, middle = start[0, 1 : n + 1], two[0, 1 : n + 1], more[0, 1 : n + 1]
    w, w_out, w_three, w_four = start[1, :n], two[1, :n], more[1, :n], more[3, :n]
    linear, square, loss = third - 2 * r - ahead * a, ahead * (1 + a), gain * q[1]
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
        one, two, three, four = rows[0:2], rows[2:4], rows[4:6], rows[6:8]
        push = rows[8, :n]
        copy_in(v[cable], w[cable], drive, low, one[0], one[1, :n], push)
        _ends(one[0], n, ring, left, right, one[0])
        for _ in range(n_steps):
            _stage(one, one, two, push, n, q, dt / 2, driven)
            _ends(two[0], n, ring, left, right, one[0])
            _stage(one, two, three, push, n, q, dt / 2, driven)
            _ends(three[0], n, ring, left, right, one[0])
            _stage(one, three, four, push, n, q, dt, driven)
            _ends(four[0], n, ring, left, right, one[0])
            _close(one, two, rows[4:8], push, n, q, dt / 6, driven)
            _ends(two[0], n, ring, left, right, one[0])
            one, two = two, one
        for g in range(begin, end):
            v_new[cable, g], w_new[cable, g] = one[0, g - low + 1], one[1, g - low]


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
