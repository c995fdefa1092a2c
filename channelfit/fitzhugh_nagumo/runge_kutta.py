"""The classical Runge-Kutta scheme of order four on the CPU, in the tiles of forward Euler.

A step of h takes four rates, of v and of v ahead along the rate before: twice by half a step, once
by a whole one. The states ahead are kept, not the rates, for the new one follows from them,

    v' = (v_2 - v + 2 v_3 + v_4) / 3 + h k(v_4) / 6

so that every stage is one pass over eight rows that stay in the cache. A step is stable up to 2.785
over the fastest rate of decay, forward Euler's up to 2, and costs more than four of these: where
that limit and not the error decides, `chebyshev` or `crank_nicolson` are cheaper.

An error at the cut ends of a tile moves four nodes a step.

Source: W. Kutta, Z. Math. Phys. 46 (1901) 435.
"""

from __future__ import annotations

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.explicit import Explicit, copy_in, row_length, stretch
from channelfit.scoring.machine.kernel_math import apart
from channelfit.scoring.machine.machine_code import kernel

#: How many nodes on either side a step depends on.
REACH = 4
#: How far this scheme and forward Euler are stable along the negative real axis.
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
    now: Array,
    w_now: Array,
    v: Array,
    w: Array,
    out: Array,
    w_out: Array,
    push: Array,
    q: Array,
    ahead: float,
    driven: bool,
) -> None:
    """Write v and w, moved along the rates at the state now, to out and w_out."""
    n, a, gain, r = len(w), q[0], ahead * q[2], ahead * q[3]
    left, here, right, base, to = now[:n], now[1 : n + 1], now[2:], v[1 : n + 1], out[1 : n + 1]
    linear, square, loss = -2 * r - ahead * a, ahead * (1 + a), gain * q[1]
    for i in range(n):
        x = here[i]
        known = r * (left[i] + right[i]) - ahead * w_now[i]
        to[i] = (base[i] + x * (linear + x * (square - ahead * x))) + known
        w_out[i] = w[i] + (gain * x - loss * w_now[i])
    if driven:
        for i in range(n):
            to[i] += ahead * push[i]


def _close(
    v: Array,
    w: Array,
    out: Array,
    w_out: Array,
    three: Array,
    w_three: Array,
    four: Array,
    w_four: Array,
    push: Array,
    q: Array,
    ahead: float,
    driven: bool,
) -> None:
    """Write the new state in place of the second stage; ahead is a sixth of the step."""
    n, a, gain, r, third = len(w), q[0], ahead * q[2], ahead * q[3], 1.0 / 3.0
    left, here, right, base = four[:n], four[1 : n + 1], four[2:], v[1 : n + 1]
    to, middle = out[1 : n + 1], three[1 : n + 1]
    linear, square, loss = third - 2 * r - ahead * a, ahead * (1 + a), gain * q[1]
    for i in range(n):
        x = here[i]
        known = third * ((to[i] - base[i]) + 2 * middle[i])
        known += r * (left[i] + right[i]) - ahead * w_four[i]
        to[i] = known + x * (linear + x * (square - ahead * x))
        w_known = third * ((w_out[i] - w[i]) + (2 * w_three[i] + w_four[i]))
        w_out[i] = w_known + (gain * x - loss * w_four[i])
    if driven:
        for i in range(n):
            to[i] += ahead * push[i]


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
    rows: Array,
    dt: float,
    kinds: Array,
    n_steps: int,
) -> None:
    """Advance the jobs first .. last-1, each of which is a tile of one of the cables."""
    size, driven, reach = v.shape[1], len(drive) > 0, REACH * n_steps
    room = np.zeros((9, row_length(min(size, tile + 2 * reach) + 2, 9)))
    for job in range(first, last):
        cable, begin, end, low, high = stretch(job, tile, reach, size, kinds[0] == 2)
        n, q = high - low, rows[cable]
        ring = kinds[0] == 2 and n == size
        left, right = kinds[0] == 1 and low == 0, kinds[1] == 1 and high == size
        one, two, three, four = (
            room[0, : n + 2],
            room[1, : n + 2],
            room[2, : n + 2],
            room[3, : n + 2],
        )
        w_one, w_two, w_three, w_four = room[4, :n], room[5, :n], room[6, :n], room[7, :n]
        stimulus = room[8, :n]
        copy_in(v[cable], w[cable], drive, low, one, w_one, stimulus)
        _ends(one, n, ring, left, right, one)
        for _ in range(n_steps):
            _stage(one, w_one, one, w_one, two, w_two, stimulus, q, dt / 2, driven)
            _ends(two, n, ring, left, right, one)
            _stage(two, w_two, one, w_one, three, w_three, stimulus, q, dt / 2, driven)
            _ends(three, n, ring, left, right, one)
            _stage(three, w_three, one, w_one, four, w_four, stimulus, q, dt, driven)
            _ends(four, n, ring, left, right, one)
            _close(
                one, w_one, two, w_two, three, w_three, four, w_four, stimulus, q, dt / 6, driven
            )
            _ends(two, n, ring, left, right, one)
            one, two, w_one, w_two = two, one, w_two, w_one
        for g in range(begin, end):
            v_new[cable, g], w_new[cable, g] = one[g - low + 1], w_one[g - low]


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
        """Return the longest stable step for what v (n_cables,
        n_nodes) and the ends can take on.
        """
        return super().largest_step(v) * STABLE / EULER_STABLE

    def _pass(
        self,
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
        n_steps: int,
    ) -> None:
        rows = table.copy()
        rows[:, 3] /= self.cable.dx**2
        _tiles(first, last, tile, v, w, drive, v_new, w_new, rows, dt, self.kinds, n_steps)
