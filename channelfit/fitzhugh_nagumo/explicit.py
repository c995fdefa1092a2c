"""The explicit scheme on the CPU: forward Euler in time, centered differences in space.

A pass over memory makes many steps. A tile of the cable, with as many nodes on either side as there
are steps, is copied into the cache and advanced there. The error at the cut ends moves by one node
in each step and never reaches the tile itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.noise import add_noise
from channelfit.fitzhugh_nagumo.scheme import Scheme, Workers
from channelfit.scoring.machine.machine_code import kernel

_TILE = 2048  # with both variables of both times it fits the first or second cache
_STEPS_A_PASS = 64


def _step(
    old: Array, new: Array, w: Array, drive: Array, q: Array, r: float, dt: float, driven: bool
) -> None:
    """Make one step of the nodes at the places 1 .. n of old, (n + 2,).

    Arguments:
        new: (n + 2,) takes v after the step. w: (n,) recovery, which is replaced.
        drive: (n,) the stimulus, used where `driven`. q: a, gamma and epsilon.
        r: diffusion dt / dx^2.
    """
    n, a, gamma, epsilon = len(w), q[0], q[1], q[2]
    left, middle, right, out = old[:n], old[1 : n + 1], old[2:], new[1 : n + 1]
    linear, square, slow = 1 - 2 * r - dt * a, dt * (1 + a), dt * epsilon
    forget = 1 - slow * gamma
    for i in range(n):
        v = middle[i]
        change = v * (linear + v * (square - dt * v)) + (r * (left[i] + right[i]) - dt * w[i])
        w[i] = forget * w[i] + slow * v
        out[i] = change
    if driven:
        for i in range(n):
            out[i] += dt * drive[i]


def row_length(places: int, n_rows: int) -> int:
    """Return the length of rows for at least so many places, in an array of n_rows such rows.

    With it each row begins elsewhere in its page of 512 numbers. Where the last twelve bits of two
    addresses agree, a processor lets a load from one wait for a store to the other.
    """
    return -(-places // 512) * 512 + 512 // n_rows // 8 * 8


def tile_bounds(job: int, tile: int, reach: int, size: int, ring: bool) -> Any:
    """Return the cable of a job, and first and last + 1 of the nodes of its tile.

    Then follow first and last + 1 of the nodes that the tile depends on: `reach` more on either
    side, or the whole cable.
    """
    tiles = -(-size // tile)
    begin = (job % tiles) * tile
    end = min(begin + tile, size)
    low, high = begin - reach, end + reach
    if high - low >= size:
        low, high = 0, size
    elif not ring:
        low, high = max(low, 0), min(high, size)
    return job // tiles, begin, end, low, high


def copy_in(
    v: Array, w: Array, drive: Array, low: int, here: Array, slow: Array, push: Array
) -> None:
    """Copy the nodes of a cable from low on, around a ring if necessary.

    Arguments:
        v, w, drive: (n_nodes,) the state and the stimulus, which may have no element.
        here, slow, push: take v, w and the stimulus; here has one more place at each end.
    """
    size = len(v)
    for i in range(len(slow)):
        g = (low + i) % size
        here[i + 1], slow[i] = v[g], w[g]
        if len(drive):
            push[i] = drive[g]


def set_ghosts(v: Array, n: int, ring: bool) -> None:
    """Set the places beyond the nodes, 0 and n + 1, to the nodes that they stand for."""
    v[0] = v[n] if ring else v[2]
    v[n + 1] = v[1] if ring else v[n - 1]


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
    dx: float,
    dt: float,
    kinds: Array,
    n_steps: int,
    sigma: float,
    seed: int,
    first_step: int,
) -> None:
    """Advance the jobs first .. last-1, each of which is a tile of one of the cables."""
    size, driven, amplitude = v.shape[1], len(drive) > 0, sigma * np.sqrt(dt / dx)
    scratch = np.zeros((4, row_length(min(size, tile + 2 * n_steps) + 2, 4)))
    for job in range(first, last):
        cable, begin, end, low, high = tile_bounds(job, tile, n_steps, size, kinds[0] == 2)
        n, q = high - low, table[cable]
        ring, r = kinds[0] == 2 and n == size, q[3] * dt / (dx * dx)
        one, two, recovery, stimulus = scratch[0], scratch[1], scratch[2, :n], scratch[3, :n]
        copy_in(v[cable], w[cable], drive, low, one, recovery, stimulus)
        for k in range(n_steps):
            set_ghosts(one, n, ring)
            _step(one[: n + 2], two[: n + 2], recovery, stimulus, q, r, dt, driven)
            if sigma > 0:
                inner, step = two[1 : n + 1], first_step + k
                add_noise(inner, low + size, size, kinds, amplitude, seed, cable, step)
            if kinds[0] == 1 and low == 0:
                two[1] = one[1]
            if kinds[1] == 1 and high == size:
                two[n] = one[n]
            one, two = two, one
        for g in range(begin, end):
            v_new[cable, g], w_new[cable, g] = one[g - low + 1], recovery[g - low]


class Explicit(Scheme):
    """Forward Euler for one cable, or for many of the same grid.

    Arguments:
        noise: the factor sigma of the module `noise`. seed: of its random numbers.
        n_threads: how many threads share tiles and cables.
    """

    name = "explicit"
    _tile, _steps_a_pass = _TILE, _STEPS_A_PASS
    steps_at_once = 8192.0

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        noise: float = 0.0,
        seed: int = 0,
        n_threads: int = 1,
    ) -> None:
        self.equation, self.cable = equation, cable
        self.noise, self.seed, self.steps_done = noise, seed, 0
        self.kinds = cable.end_kinds
        self._workers = Workers(n_threads)

    def restart(self) -> None:
        """Let the noise begin with its first step again."""
        self.steps_done = 0

    def internal_state(self) -> dict[str, Array]:
        """Return the number of the next step, by which the noise is drawn."""
        return {"steps_done": np.array([self.steps_done])}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Set the internal state to an earlier one."""
        self.steps_done = int(state["steps_done"][0])

    def advance(
        self, v: Array, w: Array, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Array, Array]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`."""
        table = self.equation.table(len(v))
        stimulus = np.empty(0) if drive is None else drive
        size = v.shape[1]
        tile, a_pass = self._tile, self._steps_a_pass
        if size <= 4 * _TILE:
            tile, a_pass = size, n_steps
        n_jobs = len(v) * -(-size // tile)
        while n_steps > 0:
            count = min(a_pass, n_steps)
            v_new, w_new = np.empty_like(v), np.empty_like(w)
            kernel, more = self._pass(table, dt, count)
            self._workers.share(kernel, n_jobs, tile, v, w, stimulus, v_new, w_new, *more)
            v, w, n_steps = v_new, w_new, n_steps - count
            self.steps_done += count
        return v, w

    def _pass(
        self, table: Array, dt: float, n_steps: int
    ) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Return the kernel of a pass of n_steps steps, and its arguments after the states."""
        noise = self.noise, self.seed, self.steps_done
        return _tiles, (table, self.cable.dx, dt, self.kinds, n_steps, *noise)
