"""Runge-Kutta-Chebyshev on the CPU: explicit, of order three in time, and stable for long steps.

A step of s stages is stable up to 0.6 (s^2 - 1) over the largest rate at which anything decays,
where s steps of forward Euler come to 2 s. The stages follow the three-term recurrence of the
Chebyshev polynomials, so that three states are kept, however many stages there are; they are as
many as the step needs at the spectral radius of the state. The formula is of order two
(Sommeijer, Shampine and Verwer, J. Comput. Appl. Math. 88 (1998) 315). Every step is made at once
and in two halves: the difference of the two gives the length of the next step, and removes the
leading error,

    error = |halves - whole| / 3        y' = (4 halves - whole) / 3

which is of order three because all of them have the same number of stages, on which the leading
error depends. For that to stay stable the damping is stronger than the authors' 2/13: with theirs
the combination exceeds one for some waves, with a half it stays below.

A long cable is advanced tile by tile inside the cache, all stages of a step and its error at once.
The error at the cut ends of a tile moves one node a stage and never reaches the nodes that it
keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation, largest_explicit_step
from channelfit.fitzhugh_nagumo.explicit import copy_in, row_length, set_ghosts
from channelfit.fitzhugh_nagumo.scheme import Scheme, Workers
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.kernel_math import apart, bits_of, from_bits
from channelfit.scoring.machine.machine_code import kernel

MOST_STAGES = 200
_DAMPING = 0.5
_TILE = 384  # twelve rows of it stay in the first cache, or nearly
_LONGEST_WHOLE = 4096
_SHORTEST = 1e-10
#: A factor on the spectral radius, because v changes during a step.
_MARGIN = 1.05
#: Rows of the scratch memory: the stimulus, the rate of v, and the spare state.
_STIMULUS, _RATE, _SPARE = 4, 5, 6


@kernel
def stages_for(h: float, radius: float) -> int:
    """Return the number of stages with which a step of h is stable for a spectral radius."""
    return max(2, int(np.ceil(np.sqrt(1.0 + 1.7 * h * radius))))


def weights(s: int, out: Array) -> None:
    """Write mu, nu, mu~ and gamma~ of the stages 1 .. s to the rows of out, (s + 1, 4).

    The article that the module names defines them.
    """
    w0 = 1.0 + _DAMPING / (s * s)
    # Values and two derivatives of the polynomials at w0.
    t, d, dd = np.empty(s + 1), np.empty(s + 1), np.empty(s + 1)
    t[0], t[1], d[0], d[1], dd[0], dd[1] = 1.0, w0, 0.0, 1.0, 0.0, 0.0
    for j in range(2, s + 1):
        t[j] = 2 * w0 * t[j - 1] - t[j - 2]
        d[j] = 2 * t[j - 1] + 2 * w0 * d[j - 1] - d[j - 2]
        dd[j] = 4 * d[j - 1] + 2 * w0 * dd[j - 1] - dd[j - 2]
    w1 = d[s] / dd[s]
    b = np.empty(s + 1)
    for j in range(2, s + 1):
        b[j] = dd[j] / (d[j] * d[j])
    b[0], b[1] = b[2], 1.0 / w0
    out[1, 0], out[1, 1], out[1, 2], out[1, 3] = 0.0, 0.0, b[1] * w1, 0.0
    for j in range(2, s + 1):
        out[j, 0] = 2 * b[j] * w0 / b[j - 1]
        out[j, 1] = -b[j] / b[j - 2]
        out[j, 2] = 2 * b[j] * w1 / b[j - 1]
        out[j, 3] = -(1.0 - b[j - 1] * t[j - 1]) * out[j, 2]


@apart
def _largest(x: Array) -> float:
    """Return the largest of values that are not negative, or NaN if one of them is NaN.

    The values are compared as integers, which have the same order with NaN above all, because
    compilers find the largest of integers in vectors.
    """
    top = bits_of(x[0])
    for i in range(len(x)):
        top = max(top, bits_of(x[i]))
    return from_bits(top)


@apart
def _force(v: Array, w: Array, push: Array, q: Array, out: Array) -> None:
    """Write the rate of v to out; v has one more place at each end."""
    a, r, n = q[0], q[3], len(w)
    left, here, right = v[:n], v[1 : n + 1], v[2:]
    for i in range(n):
        x = here[i]
        out[i] = r * (left[i] + right[i] - 2 * x) + (x * (1 - x) * (x - a) - w[i] + push[i])


@apart
def _first(
    start: Array, now: Array, then: Array, force: Array, n: int, q: Array, h: float, weight: float
) -> None:
    """Make the first stage from the state `start` to `now`, and copy `start` to `then`."""
    ahead, slow, gamma = weight * h, weight * h * q[2], q[1]
    here, out, kept = start[0, 1 : n + 1], now[0, 1 : n + 1], then[0, 1 : n + 1]
    w, w_out, w_kept = start[1, :n], now[1, :n], then[1, :n]
    for i in range(n):
        kept[i] = here[i]
        out[i] = here[i] + ahead * force[i]
    for i in range(n):
        w_kept[i] = w[i]
        w_out[i] = w[i] + slow * (here[i] - gamma * w[i])


@apart
def _stage(
    start: Array, now: Array, then: Array, rates: Array, n: int, q: Array, h: float, k: Array
) -> None:
    """Make a stage from the last one (now), in place of the one before it (then).

    Arguments:
        start, now, then: (2, n + 2 or more) v and w; of v the nodes are at the places 1 .. n.
        rates: (2, n or more) the stimulus, and the rate of v in the state `start`.
        k: (4,) mu, nu, mu~ and gamma~ of the stage.
    """
    a, gamma, epsilon, r = q[0], q[1], q[2], k[2] * h * q[3]
    rest, mu, nu, ahead, back = 1 - k[0] - k[1], k[0], k[1], k[2] * h, k[3] * h
    left, here, right = now[0, :n], now[0, 1 : n + 1], now[0, 2 : n + 2]
    out, base = then[0, 1 : n + 1], start[0, 1 : n + 1]
    w, w_now, w_then, push, force = start[1, :n], now[1, :n], then[1, :n], rates[0], rates[1]
    middle = mu - 2 * r
    for i in range(n):
        x = here[i]
        known = rest * base[i] + back * force[i] + nu * out[i] + ahead * (push[i] - w_now[i])
        out[i] = known + r * (left[i] + right[i]) + x * (middle + ahead * (1 - x) * (x - a))
    slow, slow_back = ahead * epsilon, back * epsilon
    kept, kept_now = rest - slow_back * gamma, mu - slow * gamma
    for i in range(n):
        known = slow * here[i] + slow_back * base[i]
        w_then[i] = kept * w[i] + kept_now * w_now[i] + nu * w_then[i] + known


def _chain(
    rows: Array,
    n: int,
    start: int,
    end: int,
    q: Array,
    h: float,
    s: int,
    table: Array,
    kinds: Any,
) -> None:
    """Make a step of s stages from the state in the rows `start` to that in the rows `end`."""
    state, now, then = rows[start : start + 2], rows[end : end + 2], rows[_SPARE : _SPARE + 2]
    if s % 2 == 0:
        now, then = then, now
    _first(state, now, then, rows[_RATE, :n], n, q, h, table[1, 2])
    for j in range(2, s + 1):
        set_ghosts(now[0], n, kinds[0] == 2)
        _stage(state, now, then, rows[_STIMULUS : _RATE + 1], n, q, h, table[j])
        if kinds[0] == 1:
            then[0, 1] = state[0, 1]
        if kinds[1] == 1:
            then[0, n] = state[0, n]
        now, then = then, now


def _start(rows: Array, n: int, start: int, q: Array, kinds: Any) -> None:
    """Write the rate of v in the state in the rows `start`; at a held end it is 0."""
    set_ghosts(rows[start], n, kinds[0] == 2)
    _force(rows[start, : n + 2], rows[start + 1, :n], rows[_STIMULUS], q, rows[_RATE])
    if kinds[0] == 1:
        rows[_RATE, 0] = 0.0
    if kinds[1] == 1:
        rows[_RATE, n - 1] = 0.0


@apart
def _combine(whole: Array, halves: Array, out: Array, error: Array) -> None:
    """Compute the extrapolated state, and the error of the two half steps."""
    for i in range(len(whole)):
        third = (halves[i] - whole[i]) * (1.0 / 3.0)
        out[i] = halves[i] + third
        error[i] = abs(third)


def _attempt(
    rows: Array,
    n: int,
    keep: int,
    kept: int,
    q: Array,
    h: float,
    s: int,
    table: Array,
    kinds: Any,
) -> float:
    """Make one step of h, of s stages, from the rows 0 and 1 to the rows 2 and 3.

    Arguments:
        rows: (12, n + 2 or more) states in pairs of rows, v and w, of which v has its nodes from
            place 1 on; a row for the stimulus, and one for the rate of v.
        keep, kept: the first node of which the error counts, and the number of these nodes.
        q: a, gamma, epsilon and diffusion/dx^2. table: the weights of the stages.
        kinds: (2,) the ends of these nodes: 0 for no flux, 1 for held, 2 for periodic.

    Returns: the largest error.
    """
    whole, halves = 8, 10
    _start(rows, n, 0, q, kinds)
    _chain(rows, n, 0, whole, q, h, s, table, kinds)
    _chain(rows, n, 0, 2, q, h / 2, s, table, kinds)
    _start(rows, n, 2, q, kinds)
    _chain(rows, n, 2, halves, q, h / 2, s, table, kinds)
    error, w_error = rows[_SPARE, :n], rows[_SPARE + 1, :n]
    _combine(rows[whole, 1 : n + 1], rows[halves, 1 : n + 1], rows[2, 1 : n + 1], error)
    _combine(rows[whole + 1, :n], rows[halves + 1, :n], rows[3, :n], w_error)
    return max(_largest(error[keep : keep + kept]), _largest(w_error[keep : keep + kept]))


@kernel
def _radius(v: Array, scratch: Array, q: Array) -> float:
    """Return a bound of the spectral radius: the largest rate at which anything decays.

    The slope of the reaction is a parabola in v around (1 + a)/3.
    """
    top = (1 + q[0]) / 3
    for i in range(len(v)):
        scratch[i] = abs(v[i] - top)
    far = _largest(scratch[: len(v)])
    rate = 4 * q[3] + 3 * far * far - (top * (1 + q[0]) - q[0])
    return float(_MARGIN * (max(rate, q[1] * q[2]) + np.sqrt(q[2])))


def _first_try(planned: float, left: float, radius: float) -> float:
    """Return the step to try: stable, at most `planned`, and with no tiny rest of the span left."""
    h = min(planned, (MOST_STAGES * MOST_STAGES - 1) / (1.7 * radius))
    return float(left if h > (1 - 1e-9) * left else min(h, left / 2))


def _judged(planned: float, h: float, error: float, tolerance: float) -> tuple[bool, float]:
    """Return whether a step of h is accepted with its error, and the length of the next step."""
    if tolerance == np.inf:
        return True, planned
    if not error < np.inf:
        return False, 0.1 * h
    factor = min(max(0.8 * (tolerance / max(error, 1e-300)) ** (1 / 3), 0.1), 5.0)
    if not error <= tolerance:
        return False, h * min(factor, 0.9)
    # A step cut short by the end of a span says little about the next.
    return True, max(planned, h * factor) if h < planned and factor > 1 else h * factor


@kernel
def _prepared(planned: float, left: float, radius: float, table: Array) -> tuple[float, int]:
    """Return the step to try and the number of its stages; their weights go to the table."""
    h = _first_try(planned, left, radius)
    s = stages_for(h, radius)
    weights(s, table)
    return h, s


@kernel
def _counted(
    facts: Array, h: float, s: int, planned: float, error: float, tolerance: float
) -> tuple[bool, float]:
    """Judge a step as `_judged` does, and add it to the counts."""
    passed, after = _judged(planned, h, error, tolerance)
    facts[2] += s
    if passed:
        facts[0], facts[3], facts[4] = facts[0] + 1, min(facts[3], h), max(facts[4], h)
    else:
        facts[1] += 1
    return passed, after


@kernel
def _cables(
    first: int,
    last: int,
    v: Array,
    w: Array,
    drive: Array,
    coefficients: Array,
    kinds: Any,
    steps: Array,
    span: float,
    tolerance: float,
    facts: Array,
) -> bool:
    """Advance the cables first .. last-1 by a span of time, in place, each with its own steps.

    Arguments:
        coefficients: (n_cables, 4) a, gamma, epsilon and diffusion/dx^2.
        steps: (n_cables,) the step to try first; at the end, the one to try next.
        tolerance: of the local error; infinite for steps that do not change.
        facts: (n_cables, 5) counts steps, refused steps and stages, and keeps the shortest and the
            longest step.

    Returns: whether every cable met the tolerance.
    """
    n = v.shape[1]
    rows, table, s_known = np.zeros((12, row_length(n + 2, 12))), np.empty((MOST_STAGES + 1, 4)), 0
    for cable in range(first, last):
        q, left, planned = coefficients[cable], span, steps[cable]
        rows[0, 1 : n + 1], rows[1, :n] = v[cable], w[cable]
        if len(drive):
            rows[_STIMULUS, :n] = drive
        radius = _radius(rows[0, 1 : n + 1], rows[_SPARE], q)
        while left > 1e-14 * span:
            h = _first_try(planned, left, radius)
            s = stages_for(h, radius)
            if s != s_known:
                weights(s, table)
                s_known = s
            error = _attempt(rows, n, 0, n, q, h, s, table, kinds)
            passed, planned = _counted(facts[cable], h, s, planned, error, tolerance)
            if passed:
                rows[0, 1 : n + 1], rows[1, :n] = rows[2, 1 : n + 1], rows[3, :n]
                radius = _radius(rows[0, 1 : n + 1], rows[_SPARE], q)
                left -= h
            elif planned < _SHORTEST:
                return False
        steps[cable] = planned
        v[cable], w[cable] = rows[0, 1 : n + 1], rows[1, :n]
    return True


@kernel
def _tiles(
    first: int,
    last: int,
    v: Array,
    w: Array,
    v_new: Array,
    w_new: Array,
    drive: Array,
    q: Array,
    kinds: Any,
    h: float,
    s: int,
    table: Array,
) -> Any:
    """Make a step of the tiles first .. last-1 of one long cable.

    Returns: the largest error, and the spectral radius at the new state.
    """
    size, halo = len(v), 2 * s
    rows, ends = np.zeros((12, row_length(_TILE + 2 * halo + 2, 12))), np.zeros(2, np.int64)
    worst, radius = 0.0, 0.0
    for k in range(first, last):
        begin, end = k * _TILE, min((k + 1) * _TILE, size)
        low, high = begin - halo, end + halo
        if kinds[0] != 2:
            low, high = max(low, 0), min(high, size)
        n, kept, keep = high - low, end - begin, begin - low
        if low >= 0 and high <= size:
            rows[0, 1 : n + 1], rows[1, :n] = v[low:high], w[low:high]
            if len(drive):
                rows[_STIMULUS, :n] = drive[low:high]
        else:
            copy_in(v, w, drive, low + size, rows[0], rows[1, :n], rows[_STIMULUS])
        ends[0] = 1 if kinds[0] == 1 and low == 0 else 0
        ends[1] = 1 if kinds[1] == 1 and high == size else 0
        error = _attempt(rows, n, keep, kept, q, h, s, table, ends)
        if not error <= worst:
            worst = error
        v_new[begin:end] = rows[2, keep + 1 : keep + 1 + kept]
        w_new[begin:end] = rows[3, keep : keep + kept]
        radius = max(radius, _radius(v_new[begin:end], rows[_SPARE], q))
    return worst, radius


class Chebyshev(Scheme):
    """Runge-Kutta-Chebyshev for one cable, or for many of the same grid.

    Arguments:
        n_threads: how many threads share tiles and cables.
    """

    name = "Chebyshev"

    def __init__(self, equation: Equation, cable: Cable, n_threads: int = 1) -> None:
        self.equation, self.cable = equation, cable
        self.kinds = cable.end_kinds
        self._facts = _no_facts(1)
        self._workers = Workers(n_threads)

    def restart(self) -> None:
        """Begin to count steps and stages anew."""
        self._facts = _no_facts(1)

    def internal_state(self) -> dict[str, Array]:
        """Return the counts of steps and stages."""
        return {"counts": self._facts.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Set the internal state to an earlier one."""
        self._facts = state["counts"].copy()

    def largest_step(self, v: Array) -> float:
        """Return the step that needs the largest number of stages that is allowed."""
        euler = largest_explicit_step(
            self.equation, self.cable.dx, float(np.min(v)), float(np.max(v))
        )
        return 0.29 * MOST_STAGES**2 * euler

    def facts(self) -> dict[str, float]:
        """Return the most steps that a cable took, and lengths and stages over all cables."""
        steps, refused, stages, shortest, longest = self._facts.T
        return {
            "steps": int(steps.max()),
            "steps_refused": int(refused.max()),
            "mean_stages": float(stages.sum() / max((steps + refused).sum(), 1)),
            "shortest_step": float(shortest.min()),
            "longest_step": float(longest.max()),
        }

    def advance(
        self, v: Array, w: Array, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Array, Array]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`."""
        v, w, _ = self.span(v, w, np.full(len(v), dt), n_steps * dt, math.inf, drive)
        return v, w

    def span(
        self,
        v: Array,
        w: Array,
        steps: Array,
        span: float,
        tolerance: float,
        drive: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """Advance by a span of time under one stimulus.

        Arguments:
            v, w: (n_cables, n_nodes). steps: (n_cables,) the steps to try first.
            span: the time. tolerance: the largest local error that a step may make; infinite for
                steps that do not change.

        Returns: the new v and w, and the steps to try next.

        Raises:
            InputError: no step meets the tolerance.
        """
        stimulus = np.empty(0) if drive is None else drive
        rows = self.equation.table(len(v))
        rows[:, 3] /= self.cable.dx**2
        if len(self._facts) != len(v):
            self._facts = _no_facts(len(v))
        steps = steps.copy()
        if v.shape[1] > _LONGEST_WHOLE:
            states = [
                self._in_tiles(v[k], w[k], k, rows[k], steps, span, tolerance, stimulus)
                for k in range(len(v))
            ]
            return np.array([x[0] for x in states]), np.array([x[1] for x in states]), steps
        v, w = v.copy(), w.copy()
        arguments = v, w, stimulus, rows, self.kinds, steps, span, tolerance, self._facts
        if not all(self._workers.share(_cables, len(v), *arguments)):
            raise _no_step(tolerance)
        return v, w, steps

    def _in_tiles(
        self,
        v: Array,
        w: Array,
        k: int,
        q: Array,
        steps: Array,
        span: float,
        tolerance: float,
        drive: Array,
    ) -> tuple[Array, Array]:
        """Advance cable k, a long one, as `_cables` does; return its v and w."""
        left, planned, table = span, float(steps[k]), np.empty((MOST_STAGES + 1, 4))
        radius = _radius(v, np.empty_like(v), q)
        while left > 1e-14 * span:
            h, s = _prepared(planned, left, radius, table)
            new = np.empty_like(v), np.empty_like(w)
            arguments = v, w, *new, drive, q, self.kinds, h, s, table
            found = np.array(self._workers.share(_tiles, -(-len(v) // _TILE), *arguments))
            error = float(np.max(found[:, 0]))
            passed, planned = _counted(self._facts[k], h, s, planned, error, tolerance)
            if passed:
                (v, w), radius, left = new, float(np.max(found[:, 1])), left - h
            elif planned < _SHORTEST:
                raise _no_step(tolerance)
        steps[k] = planned
        return v, w


def _no_facts(n_cables: int) -> Array:
    return np.tile([0.0, 0.0, 0.0, math.inf, 0.0], (n_cables, 1))


def _no_step(tolerance: float) -> InputError:
    return InputError(f"no step is short enough for a tolerance of {tolerance:g}", key="tolerance")
