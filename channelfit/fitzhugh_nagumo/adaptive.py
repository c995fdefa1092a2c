"""The explicit scheme on a grid that follows the wave.

All nodes belong to the uniform grid of the cable; where little happens only every second, fourth or
eighth of them is used. Second derivatives are those of the parabola through three neighbors, which
are of order one where the spacing changes. Between the nodes in use v and w are interpolated. One
of two monitors chooses the spacing:

``indicators``  the published heuristic: a coarse grid, twice as fine where |v_x|, four times where
                |v_t| exceeds a threshold, and finest around inflection points of v, chosen anew
                in every step; linear interpolation.
``curvature``   the spacing h at which linear interpolation errs by a tolerance, h^2 |v_xx| / 8 =
                tolerance, growing by at most a quarter of a node from node to node, chosen anew
                every few steps with a margin for the wave's way until then; cubic interpolation.

Neither sees a stimulus before it has acted, so the grid is fine around every place where the
stimulus changes from node to node, from the step on in which it begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.machine_code import kernel

Monitor = Literal["indicators", "curvature"]

SLOPE, RATE = 0.005, 0.002  # thresholds of |v_x| and |v_t|
RADIUS = 4  # finest nodes on either side of an inflection point
GROWTH = 0.25  # of the spacing from node to node, in nodes


@kernel
def _weights(at: Any, n: int, left: Array, right: Array, drive: Array, push: Array) -> None:
    """Compute the weights of both neighbors in half the second derivative.

    at: (n,) places in nodes of the uniform grid. push: takes the stimulus at these places.
    """
    for i in range(1, n - 1):
        before, after = at[i] - at[i - 1], at[i + 1] - at[i]
        left[i] = 1.0 / (before * (before + after))
        right[i] = 1.0 / (after * (before + after))
    left[0] = right[n - 1] = 0.0
    right[0] = 1.0 / ((at[1] - at[0]) * (at[1] - at[0]))
    left[n - 1] = 1.0 / ((at[n - 1] - at[n - 2]) * (at[n - 1] - at[n - 2]))
    for i in range(n):
        push[i] = drive[at[i]] if len(drive) else 0.0


@kernel
def _step(
    v: Array, w: Array, v_new: Array, left: Array, right: Array, push: Array, n: int, q: Array
) -> None:
    """Make one step of n nodes, which stand at the places 1 .. n of v."""
    a, gamma, epsilon, diffusion, dx, dt = q[0], q[1], q[2], q[3], q[4], q[5]
    scale = 2 * diffusion / (dx * dx)
    before, here, after, out = v[:n], v[1 : n + 1], v[2 : n + 2], v_new[1 : n + 1]
    for i in range(n):
        x = here[i]
        bend = right[i] * (after[i] - x) - left[i] * (x - before[i])
        out[i] = x + dt * (scale * bend + x * (1 - x) * (x - a) - w[i] + push[i])
        w[i] += dt * epsilon * (x - gamma * w[i])


def _choose_spacing(
    at: Any, v: Array, v_old: Array, n: int, q: Array, rules: Any, drive: Array, spacing: Array
) -> None:
    """Write the largest spacing allowed at every node of the uniform grid, in nodes.

    Arguments:
        at: (n,) the nodes in use. v, v_old: (n,) at their places, after the step and before it.
        q, rules: as `_steps` takes them. spacing: (n_nodes,) takes the result.
    """
    dx, dt, tolerance, size = q[4], q[5], q[6], len(spacing)
    monitor, coarsest, margin = rules[0], rules[1], rules[2] // 4 + 1
    for g in range(size):
        spacing[g] = coarsest
    before = 0.0
    for i in range(1, n - 1):
        left, right = at[i] - at[i - 1], at[i + 1] - at[i]
        bend = 2 * ((v[i + 1] - v[i]) / right - (v[i] - v[i - 1]) / left) / (left + right)
        bend /= dx * dx
        slope = abs(v[i + 1] - v[i - 1]) / ((left + right) * dx)
        low, high, h = at[i - 1], at[i + 1], float(coarsest)
        if monitor == 0:
            if slope > SLOPE:
                h = coarsest / 2
            if abs(v[i] - v_old[i]) > RATE * dt:
                h = coarsest / 4
            if before * bend < 0 and slope > SLOPE:
                h, low, high = 1.0, at[i] - RADIUS - left, at[i] + RADIUS
            before = bend
        else:
            h = np.sqrt(8 * tolerance / max(abs(bend), 1e-300)) / dx
            low, high = low - margin, high + margin
        h = max(1.0, min(h, float(coarsest)))
        for g in range(max(low, 0), min(high + 1, size)):
            spacing[g] = min(spacing[g], h)
    _refine_at_stimulus(drive, rules[2], spacing)
    if monitor == 1:
        for g in range(1, size):
            spacing[g] = min(spacing[g], spacing[g - 1] + GROWTH)
        for k in range(1, size):
            g = size - 1 - k
            spacing[g] = min(spacing[g], spacing[g + 1] + GROWTH)


@kernel
def _spacing_in_use(at: Any, n: int, spacing: Array) -> None:
    """Write the spacing of the n nodes in use, from which `_place` finds the same nodes again."""
    spacing[0] = 1.0
    for i in range(n - 1):
        gap = at[i + 1] - at[i]
        spacing[at[i]] = max(spacing[at[i]], gap * 1.0)
        spacing[at[i] + 1 : at[i + 1] + 1] = gap


def _refine_at_stimulus(drive: Array, every: int, spacing: Array) -> None:
    """Set the finest spacing around the places where a stimulus changes."""
    margin = max(every // 4 + 1, RADIUS)
    for g in range(1, len(drive)):
        if drive[g] != drive[g - 1]:
            spacing[max(g - 1 - margin, 0) : g + 1 + margin] = 1.0


@kernel
def _place(spacing: Array, coarsest: int, at: Any) -> int:
    """Place nodes at multiples of their spacing, a power of two; return the number of nodes."""
    at[0] = 0
    n, g, size = 1, 0, len(spacing)
    while g < size - 1:
        gap = coarsest
        while gap > 1:
            if g % gap == 0 and g + gap < size:
                least = coarsest * 1.0
                for k in range(g, g + gap + 1):
                    least = min(least, spacing[k])
                if least >= gap:
                    break
            gap //= 2
        g += gap
        at[n] = g
        n += 1
    return n


def _interpolate(at: Any, values: Array, n: int, cubic: bool, to: Any, m: int, out: Array) -> None:
    """Interpolate values, given at the places at (n,), at the increasing places to (m,)."""
    i = 0
    for k in range(m):
        g = to[k]
        while i < n - 2 and at[i + 1] <= g:
            i += 1
        if at[i] == g:
            out[k] = values[i]
        elif at[i + 1] == g:
            out[k] = values[i + 1]
        elif cubic and 0 < i < n - 2:
            total = 0.0
            for p in range(i - 1, i + 3):
                above, below = values[p], 1.0
                for r in range(i - 1, i + 3):
                    if r != p:
                        above *= g - at[r]
                        below *= at[p] - at[r]
                total += above / below
            out[k] = total
        else:
            share = (g - at[i]) / (at[i + 1] - at[i])
            out[k] = values[i] + share * (values[i + 1] - values[i])


@kernel
def _steps(
    v_full: Array,
    w_full: Array,
    at: Any,
    n: int,
    drive: Array,
    q: Array,
    rules: Any,
    kinds: Any,
    n_steps: int,
) -> tuple[int, int]:
    """Advance one cable in place.

    Arguments:
        v_full, w_full: (n_nodes,) on the uniform grid.
        at: (n_nodes,) the first n are the nodes in use, which are replaced.
        q: a, gamma, epsilon, diffusion, dx, dt, and the tolerance of the monitor.
        rules: the monitor (1 for "curvature"), the largest spacing, and the number of steps between
            two choices of a grid.
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held.

    Returns: the number of nodes in use at the end, and its sum over the steps.
    """
    size, coarsest, every, cubic = len(v_full), rules[1], rules[2], rules[0] == 1
    # v begins and ends with a place that no node has, so that the step needs no special nodes.
    v, v_new, w, spare = np.zeros(size + 2), np.zeros(size + 2), np.empty(size), np.empty(size)
    left, right, push = np.empty(size), np.empty(size), np.empty(size)
    spacing, new_at, everywhere = np.empty(size), np.empty(size, np.int64), np.empty(size, np.int64)
    for g in range(size):
        everywhere[g] = g
    if len(drive):
        _spacing_in_use(at, n, spacing)
        _refine_at_stimulus(drive, every, spacing)
        n = _place(spacing, coarsest, at)
    for i in range(n):
        v[i + 1], w[i] = v_full[at[i]], w_full[at[i]]
    _weights(at, n, left, right, drive, push)
    done = 0
    for step in range(n_steps):
        _step(v, w, v_new, left, right, push, n, q)
        if kinds[0] == 1:
            v_new[1] = v[1]
        if kinds[1] == 1:
            v_new[n] = v[n]
        done += n
        if (step + 1) % every == 0 or step + 1 == n_steps:
            new, old = v_new[1:], v[1:]
            _choose_spacing(at, new, old, n, q, rules, drive, spacing)
            m = _place(spacing, coarsest, new_at)
            if step + 1 == n_steps:
                _interpolate(at, new, n, cubic, everywhere, size, v_full)
                _interpolate(at, w, n, cubic, everywhere, size, w_full)
            _interpolate(at, new, n, cubic, new_at, m, old)
            _interpolate(at, w, n, cubic, new_at, m, spare)
            w, spare = spare, w
            n = m
            for i in range(m):
                at[i] = new_at[i]
            _weights(at, n, left, right, drive, push)
        else:
            v, v_new = v_new, v
    return n, done


def check_places(places: Array, n_nodes: int) -> None:
    """Check that these are indices of nodes, in order; kernels write there unchecked.

    Raises:
        ValueError: they are not.
    """
    inside = len(places) and places[0] >= 0 and places[-1] < n_nodes
    if places.dtype.kind != "i" or not inside or np.any(np.diff(places) < 1):
        raise ValueError("no places of nodes")


class Adaptive(Scheme):
    """The explicit scheme on a grid that follows the wave.

    Arguments:
        monitor: "indicators" (the published heuristic) or "curvature", which the module explains.
        coarsest: the largest spacing in nodes, a power of two of at least 4.
        tolerance: the error that linear interpolation may make, for "curvature".
        every: how many steps are made between two choices of a grid; by default 1 for the
            indicators and 80 for "curvature".

    Raises:
        InputError: a ring, or an argument that cannot be used.
    """

    name = "adaptive"

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        monitor: Monitor = "curvature",
        coarsest: int = 8,
        tolerance: float = 1e-4,
        every: int | None = None,
    ) -> None:
        if cable.periodic:
            raise InputError("the adaptive scheme cannot solve rings", key="left, right")
        if monitor not in ("indicators", "curvature"):
            raise InputError(f'"{monitor}" is neither indicators nor curvature', key="monitor")
        if coarsest < 4 or coarsest & (coarsest - 1):
            raise InputError(
                f"a power of two of at least 4 was expected, not {coarsest}", key="coarsest"
            )
        if not tolerance > 0:
            raise InputError(f"a tolerance must be positive, not {tolerance}", key="tolerance")
        self.equation, self.cable, self.monitor = equation, cable, monitor
        self.coarsest, self.tolerance = coarsest, tolerance
        self.every = every or (1 if monitor == "indicators" else 80)
        self.steps_at_once = self.every * math.ceil(8192 / self.every)
        self._kinds = cable.end_kinds
        self._grids: list[Any] = []
        self._nodes_steps = self._steps = 0

    def restart(self) -> None:
        """Put all nodes in use again."""
        self._grids = []
        self._nodes_steps = self._steps = 0

    def internal_state(self) -> dict[str, Array]:
        """Return the nodes in use, one cable after the other, and the sums for `facts`."""
        places = [np.zeros(0, np.int64), *self._grids]
        return {
            "places": np.concatenate(places),
            "lengths": np.array([len(grid) for grid in self._grids], np.int64),
            "counts": np.array([self._nodes_steps, self._steps]),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Set the internal state to an earlier one."""
        lengths, places = state["lengths"], state["places"]
        if lengths.sum() != len(places) or np.any(lengths < 0):
            raise ValueError("places of other nodes")
        self._grids = np.split(places, np.cumsum(lengths)[:-1]) if len(lengths) else []
        for grid in self._grids:
            check_places(grid, self.cable.n_nodes)
        self._nodes_steps, self._steps = state["counts"].tolist()

    def nodes(self, cable: int = 0) -> Any:
        """Return the indices, on the uniform grid, of the nodes in use for a cable, (n,)."""
        return self._grids[cable].copy()

    def facts(self) -> dict[str, float]:
        """Return the number of nodes in use, averaged over the steps and the cables."""
        return {"mean_nodes": self._nodes_steps / max(self._steps, 1)}

    def advance(
        self, v: Array, w: Array, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Array, Array]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`."""
        v, w = v.copy(), w.copy()
        size = v.shape[1]
        if len(self._grids) != len(v):
            self._grids = [np.arange(size) for _ in v]
        stimulus = np.empty(0) if drive is None else drive
        table = self.equation.table(len(v))
        rules = np.array([int(self.monitor == "curvature"), self.coarsest, self.every])
        for k in range(len(v)):
            q = np.array([*table[k], self.cable.dx, dt, self.tolerance])
            at, n = np.empty(size, np.int64), len(self._grids[k])
            at[:n] = self._grids[k]
            n, done = _steps(v[k], w[k], at, n, stimulus, q, rules, self._kinds, n_steps)
            self._grids[k] = at[:n].copy()
            self._nodes_steps += done
            self._steps += n_steps
        return v, w
