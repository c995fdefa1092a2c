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

By default the cable is cut into 16 pieces that are solved side by side in the lanes of vector
registers (`crank_nicolson_lanes`); short cables are solved row by row (`row_by_row`). Long cables
are advanced tile by tile inside the cache, several steps a pass, with overlaps beyond which the cut
ends of a tile have no influence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from channelfit.fitzhugh_nagumo.crank_nicolson_controlled import control
from channelfit.fitzhugh_nagumo.crank_nicolson_lanes import (
    LANES,
    advance_cables,
    advance_tiles,
    newton_bend,
    row_coefficients,
    row_dominance,
    step_coefficients,
)
from channelfit.fitzhugh_nagumo.equation import (
    Array,
    Cable,
    Equation,
    NotConverged,
    largest_implicit_step,
)
from channelfit.fitzhugh_nagumo.row_by_row import MOST_ITERATIONS, advance_alone
from channelfit.fitzhugh_nagumo.scheme import Scheme, Workers
from channelfit.reading.errors import InputError

Solver = Literal["lanes", "thomas", "cyclic_reduction"]

#: The error of v that Newton's method may leave.
TOLERANCE = 1e-12
#: The error, of values of the order of one, below which an influence is neglected.
NEGLIGIBLE = 1e-18
_TILE = 4096
_STEPS_A_PASS = (64, 32, 16, 8, 4, 2, 1)
_FEWEST_ROWS = 4
#: The node-steps of one call of the step control, which take about a tenth of a second.
_NODES_A_CALL = 2**25


@dataclass(frozen=True)
class StepCoefficients:
    """The coefficients of a step of length dt, (n_cables,) each; the module defines them."""

    a: Array
    r: Array
    half: Array
    kw: Array
    kv: Array

    @classmethod
    def of(cls, equation: Equation, n_cables: int, dx: float, dt: float) -> StepCoefficients:
        """Return the coefficients of a step."""
        a, gamma, epsilon, diffusion = equation.table(n_cables).T
        r, half, kw, kv = step_coefficients(gamma, epsilon, diffusion, dx, dt)
        return cls(a.copy(), r, np.full(n_cables, half), kw, kv)

    def rows(self) -> Array:
        """Return the coefficients for `row_by_row`: a, r, h, kw, kv and bend, (6, n_cables)."""
        return np.array([self.a, self.r, self.half, self.kw, self.kv, self.bend()])

    def scaled(self) -> Array:
        """Return the coefficients for `crank_nicolson_lanes`, (9, n_cables).

        They are those of `row_coefficients`, with bend before the last.
        """
        *first, last = row_coefficients(self.a, self.r, self.half, self.kw, self.kv)
        return np.array([*first, self.bend(), last])

    def dominance(self) -> Array:
        """Return the least excess of a diagonal entry over the others of its row, (n_cables,)."""
        return np.asarray(row_dominance(self.a, self.half, self.kv), float)

    def bend(self) -> Array:
        """Return the error that a correction leaves, over its square, (n_cables,)."""
        return np.asarray(newton_bend(self.half, np.maximum(self.dominance(), 1e-300)), float)

    def decay(self) -> float:
        """Return the largest factor by which the influence of a node decays from node to node."""
        d = self.dominance() + 2 * self.r
        root = np.sqrt(np.maximum(d * d - 4 * self.r**2, 0.0))
        return float(np.max(2 * self.r / (d + root)))


def reach(decay: float, n_steps: int = 1, negligible: float = NEGLIGIBLE) -> float:
    """Return the distance in nodes beyond which an end changes v by less than `negligible`.

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


class CrankNicolson(Scheme):
    """Crank-Nicolson for one cable, or for many of the same grid.

    Arguments:
        solver: "lanes" is the fastest; "thomas" and "cyclic_reduction" solve one system after the
            other.
        tolerance: the error of v that Newton's method may leave.
        n_threads: how many threads share tiles and cables.
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
            raise InputError(f"a tolerance must be positive, not {tolerance}", key="tolerance")
        self.equation, self.cable, self.solver = equation, cable, solver
        self.tolerance = tolerance
        self.kinds = cable.end_kinds
        self.iterations = 0  # of Newton's method in the last call, the most of any tile
        self._workers = Workers(n_threads)

    def largest_step(self, v: Array) -> float:
        """Return the longest step with a dominant Newton matrix; see `largest_implicit_step`."""
        return largest_implicit_step(self.equation)

    def advance(
        self, v: Array, w: Array, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Array, Array]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`.

        Raises:
            NotConverged: Newton's method does not converge, because the step is too long.
        """
        coefficients = StepCoefficients.of(self.equation, len(v), self.cable.dx, dt)
        stimulus = np.empty(0) if drive is None else drive
        layout = self._layout(len(v))
        if layout == "cables":
            return self._side_by_side(v, w, coefficients, n_steps, stimulus)
        advanced = self._one_by_one if layout == "rows" else self._in_tiles
        results = [advanced(v[k], w[k], coefficients, k, n_steps, stimulus) for k in range(len(v))]
        return np.array([r[0] for r in results]), np.array([r[1] for r in results])

    def _layout(self, n_cables: int) -> Literal["rows", "cables", "pieces"]:
        """Return the content of the lanes: whole cables, pieces of one; or rows, without lanes."""
        many = n_cables >= LANES and not self.cable.periodic
        if self.solver != "lanes" or (self.cable.n_nodes < LANES * _FEWEST_ROWS and not many):
            return "rows"
        return "cables" if many else "pieces"

    def n_controls(self, n_cables: int) -> int:
        """Return the number of step controls of `controlled`; 0 where it does not apply."""
        layout = self._layout(n_cables)
        if layout == "rows" or (layout == "pieces" and self.cable.n_nodes > 2 * _TILE):
            return 0
        return n_cables if layout == "pieces" else -(-n_cables // LANES)

    def controlled(
        self,
        v: Array,
        w: Array,
        past: Array,
        memory: Array,
        edge: float,
        tolerance: float,
        largest: float,
        drive: Array | None,
    ) -> bool:
        """Advance in place, by controlled steps, to the time `edge`, or for about 0.1 s.

        Arguments:
            v, w: (n_cables, n_nodes). drive: (n_nodes,) or None.
            past: (2, 2, n_cables, n_nodes) v and w of the two states before this one.
            memory: (n_controls, COLUMNS) that of `crank_nicolson_controlled`.
            tolerance: the largest local error. largest: the longest step.

        Returns: whether the steps met the tolerance.
        """
        limits = np.array([tolerance, largest, self.tolerance, self.cable.dx, edge])
        most = max(1, _NODES_A_CALL // self.cable.n_nodes)
        pieces = self._layout(len(v)) == "pieces"
        stimulus = np.empty(0) if drive is None else drive
        cables = stimulus, self.equation.table(len(v)), self.kinds
        state = v, w, past, memory
        found = self._workers.share(
            control, len(memory), *state, *cables, limits, most, pieces, LANES
        )
        return all(found)

    def _side_by_side(
        self, v: Array, w: Array, coefficients: StepCoefficients, n_steps: int, drive: Array
    ) -> tuple[Array, Array]:
        v, w, rows = v.copy(), w.copy(), coefficients.scaled()
        n_blocks = -(-len(v) // LANES)
        self.iterations = self._share(
            advance_cables, n_blocks, v, w, drive, rows, self.kinds, n_steps, self.tolerance, LANES
        )
        return v, w

    def _in_tiles(
        self, v: Array, w: Array, coefficients: StepCoefficients, k: int, n_steps: int, drive: Array
    ) -> tuple[Array, Array]:
        q = np.repeat(coefficients.scaled()[:, k], LANES)
        decay = coefficients.decay()
        n_spikes = int(min(reach(decay), len(v))) + 1
        a_pass, tile, overlap = n_steps, len(v), 0
        if len(v) > 2 * _TILE:
            for count in _STEPS_A_PASS:
                distance = reach(decay, min(n_steps, count))
                if distance <= _TILE / 16 or (count == 1 and distance < _TILE / 2):
                    a_pass, tile, overlap = min(n_steps, count), _TILE, int(distance)
                    break
        most, n_tiles = 0, -(-len(v) // tile)
        newton = n_spikes, self.tolerance, LANES
        while n_steps > 0:
            count = min(a_pass, n_steps)
            v_new, w_new = np.empty_like(v), np.empty_like(w)
            states = v, w, drive, v_new, w_new
            most += self._share(
                advance_tiles, n_tiles, tile, overlap, *states, q, self.kinds, count, *newton
            )
            v, w, n_steps = v_new, w_new, n_steps - count
        self.iterations = most
        return v, w

    def _share(self, kernel: Any, n_jobs: int, *arguments: Any) -> int:
        """Run a kernel in all threads; return the most iterations that any of them took."""
        taken = self._workers.share(kernel, n_jobs, *arguments)
        self._check(min(taken))
        return int(max(taken))

    def _check(self, taken: int) -> None:
        if taken < 0:
            raise NotConverged(
                f"Newton's method did not converge in {MOST_ITERATIONS} iterations; "
                "take a shorter step",
                key="dt",
            )

    def _one_by_one(
        self, v: Array, w: Array, coefficients: StepCoefficients, k: int, n_steps: int, drive: Array
    ) -> tuple[Array, Array]:
        v, w, q = v.copy(), w.copy(), np.repeat(coefficients.rows()[:, k], LANES)
        self.iterations = advance_alone(
            v, w, drive, q, self.kinds, n_steps, self.tolerance, self.solver == "cyclic_reduction"
        )
        self._check(self.iterations)
        return v, w
