"""Runge-Kutta-Chebyshev on the CPU: explicit, of order three in time, and stable for long steps.

A step of s stages is stable up to 0.6 (s^2 - 1) over the largest rate at which anything decays,
where s steps of forward Euler come to 2 s. The stages follow the three-term recurrence of the
Chebyshev polynomials, so that three states are kept, however many stages there are; they are as
many as the step needs at the spectral radius of the state. The formula is of order two
(Sommeijer, Shampine and Verwer, J. Comput. Appl. Math. 88 (1998) 315). Every step is made at once
and in two halves: what these differ by says how long the next step may be, and takes the leading
error away,

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

from channelfit.fitzhugh_nagumo.crank_nicolson import end_kinds
from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation, largest_explicit_step
from channelfit.fitzhugh_nagumo.explicit import row_length
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


@kernel
def stages_for(h: float, radius: float) -> int:
    """Return how many stages a step of h needs to be stable where
    nothing decays faster than `radius`.
    """
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


def _ghosts(v: Array, n: int, ring: bool) -> None:
    v[0] = v[n] if ring else v[2]
    v[n + 1] = v[1] if ring else v[n - 1]


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
    v: Array,
    w: Array,
    force: Array,
    one: Array,
    w_one: Array,
    then: Array,
    w_then: Array,
    q: Array,
    h: float,
    weight: float,
) -> None:
    """Make the first stage, and copies the state to the rows of the second stage."""
    n, ahead, slow, gamma = len(w), weight * h, weight * h * q[2], q[1]
    here, out, kept = v[1 : n + 1], one[1 : n + 1], then[1 : n + 1]
    for i in range(n):
        kept[i] = here[i]
        out[i] = here[i] + ahead * force[i]
    for i in range(n):
        w_then[i] = w[i]
        w_one[i] = w[i] + slow * (here[i] - gamma * w[i])


@apart
def _stage(
    v: Array,
    w: Array,
    force: Array,
    now: Array,
    w_now: Array,
    then: Array,
    w_then: Array,
    push: Array,
    q: Array,
    h: float,
    k: Array,
) -> None:
    """Make a stage from the last one (now), in place of the one before it (then)."""
    a, gamma, epsilon, r = q[0], q[1], q[2], k[2] * h * q[3]
    n, rest, mu, nu, ahead, back = len(w), 1 - k[0] - k[1], k[0], k[1], k[2] * h, k[3] * h
    left, here, right = now[:n], now[1 : n + 1], now[2:]
    out, start = then[1 : n + 1], v[1 : n + 1]
    middle = mu - 2 * r
    for i in range(n):
        x = here[i]
        known = rest * start[i] + back * force[i] + nu * out[i] + ahead * (push[i] - w_now[i])
        out[i] = known + r * (left[i] + right[i]) + x * (middle + ahead * (1 - x) * (x - a))
    slow, slow_back = ahead * epsilon, back * epsilon
    kept, kept_now = rest - slow_back * gamma, mu - slow * gamma
    for i in range(n):
        known = slow * here[i] + slow_back * start[i]
        w_then[i] = kept * w[i] + kept_now * w_now[i] + nu * w_then[i] + known


def _chain(
    room: Array,
    start: int,
    end: int,
    n: int,
    q: Array,
    h: float,
    s: int,
    table: Array,
    ring: bool,
    holds_left: bool,
    holds_right: bool,
) -> None:
    """Make a step of s stages from the rows start (v) and start + 1 (w) to end and end + 1."""
    v, w, push, force = room[start, : n + 2], room[start + 1, :n], room[4, :n], room[5, :n]
    now, then = room[end, : n + 2], room[6, : n + 2]
    w_now, w_then = room[end + 1, :n], room[7, :n]
    if s % 2 == 0:
        now, then, w_now, w_then = then, now, w_then, w_now
    _first(v, w, force, now, w_now, then, w_then, q, h, table[1, 2])
    for j in range(2, s + 1):
        _ghosts(now, n, ring)
        _stage(v, w, force, now, w_now, then, w_then, push, q, h, table[j])
        if holds_left:
            then[1] = v[1]
        if holds_right:
            then[n] = v[n]
        now, then, w_now, w_then = then, now, w_then, w_now


def _start(
    room: Array, start: int, n: int, q: Array, ring: bool, holds_left: bool, holds_right: bool
) -> None:
    """Write the rate of v at the rows start and start + 1 to row 5; at a held end it is 0."""
    _ghosts(room[start, : n + 2], n, ring)
    _force(room[start, : n + 2], room[start + 1, :n], room[4, :n], q, room[5, :n])
    if holds_left:
        room[5, 0] = 0.0
    if holds_right:
        room[5, n - 1] = 0.0


@apart
def _combine(whole: Array, halves: Array, out: Array, error: Array) -> None:
    """Compute the extrapolated state, and the error of the two half steps."""
    for i in range(len(whole)):
        third = (halves[i] - whole[i]) * (1.0 / 3.0)
        out[i] = halves[i] + third
        error[i] = abs(third)


def _attempt(
    room: Array,
    n: int,
    keep: int,
    kept: int,
    q: Array,
    h: float,
    s: int,
    table: Array,
    ring: bool,
    holds_left: bool,
    holds_right: bool,
) -> float:
    """Make one step of n nodes.

    Arguments:
        room: (12, n + 2 or more) the rows v, w, the new v, the new w and the stimulus, and room to
            work in. A row of v has its nodes from place 1 on, the others from place 0.

    Returns: the largest error of the nodes keep .. keep + kept - 1.
    """
    _start(room, 0, n, q, ring, holds_left, holds_right)
    _chain(room, 0, 8, n, q, h, s, table, ring, holds_left, holds_right)
    _chain(room, 0, 2, n, q, h / 2, s, table, ring, holds_left, holds_right)
    _start(room, 2, n, q, ring, holds_left, holds_right)
    _chain(room, 2, 10, n, q, h / 2, s, table, ring, holds_left, holds_right)
    error, w_error = room[6, :n], room[7, :n]
    _combine(room[8, 1 : n + 1], room[10, 1 : n + 1], room[2, 1 : n + 1], error)
    _combine(room[9, :n], room[11, :n], room[3, :n], w_error)
    return max(_largest(error[keep : keep + kept]), _largest(w_error[keep : keep + kept]))


@kernel
def _radius(v: Array, scratch: Array, q: Array) -> float:
    """Return the largest rate at which anything decays; f' is a parabola in v around (1 + a)/3."""
    top = (1 + q[0]) / 3
    for i in range(len(v)):
        scratch[i] = abs(v[i] - top)
    far = _largest(scratch[: len(v)])
    rate = 4 * q[3] + 3 * far * far - (top * (1 + q[0]) - q[0])
    return float(_MARGIN * (max(rate, q[1] * q[2]) + np.sqrt(q[2])))


def _proposed(wanted: float, left: float, radius: float) -> float:
    """Return the next step: stable, at most what is wanted,
    and never leaving a tiny rest of the span.
    """
    h = min(wanted, (MOST_STAGES * MOST_STAGES - 1) / (1.7 * radius))
    return float(left if h > (1 - 1e-9) * left else min(h, left / 2))


def _wanted(wanted: float, h: float, error: float, tolerance: float) -> tuple[bool, float]:
    """Return whether the error of a step of h is accepted, and how long the next step should be."""
    if tolerance == np.inf:
        return True, wanted
    if not error < np.inf:
        return False, 0.1 * h
    factor = min(max(0.8 * (tolerance / max(error, 1e-300)) ** (1 / 3), 0.1), 5.0)
    if not error <= tolerance:
        return False, h * min(factor, 0.9)
    # A step cut short by the end of a span says little about the next.
    return True, max(wanted, h * factor) if h < wanted and factor > 1 else h * factor


def _count(facts: Array, h: float, s: int, passed: bool) -> None:
    facts[2] += s
    if not passed:
        facts[1] += 1
        return
    facts[0], facts[3], facts[4] = facts[0] + 1, min(facts[3], h), max(facts[4], h)


@kernel
def _planned(wanted: float, left: float, radius: float, table: Array) -> tuple[float, int]:
    """Return the next step and the number of its stages, whose weights are written to the table."""
    h = _proposed(wanted, left, radius)
    s = stages_for(h, radius)
    weights(s, table)
    return h, s


@kernel
def _judged(
    facts: Array, h: float, s: int, wanted: float, error: float, tolerance: float
) -> tuple[bool, float]:
    """The same as `_wanted`, and counts the step."""
    passed, after = _wanted(wanted, h, error, tolerance)
    _count(facts, h, s, passed)
    return passed, after


@kernel
def _cables(
    first: int,
    last: int,
    v: Array,
    w: Array,
    drive: Array,
    rows: Array,
    kinds: Any,
    steps: Array,
    span: float,
    tolerance: float,
    facts: Array,
) -> bool:
    """Advance the cables first .. last-1 by a span of time, in place, each with its own steps.

    Arguments:
        steps: (n_cables,) the step to try first; at the end, the one to try next.
        tolerance: of the local error; infinite for steps that do not change.
        facts: (n_cables, 5) counts steps, refused steps and stages, and keeps the shortest and the
            longest step.

    Returns: whether every cable met the tolerance.
    """
    n = v.shape[1]
    room, table, s_known = np.zeros((12, row_length(n + 2, 12))), np.empty((MOST_STAGES + 1, 4)), 0
    ring, holds_left, holds_right = kinds[0] == 2, kinds[0] == 1, kinds[1] == 1
    for cable in range(first, last):
        q, left, wanted = rows[cable], span, steps[cable]
        room[0, 1 : n + 1], room[1, :n] = v[cable], w[cable]
        if len(drive):
            room[4, :n] = drive
        radius = _radius(room[0, 1 : n + 1], room[6], q)
        while left > 1e-14 * span:
            h = _proposed(wanted, left, radius)
            s = stages_for(h, radius)
            if s != s_known:
                weights(s, table)
                s_known = s
            error = _attempt(room, n, 0, n, q, h, s, table, ring, holds_left, holds_right)
            passed, wanted = _judged(facts[cable], h, s, wanted, error, tolerance)
            if passed:
                room[0, 1 : n + 1], room[1, :n] = room[2, 1 : n + 1], room[3, :n]
                radius = _radius(room[0, 1 : n + 1], room[6], q)
                left -= h
            elif wanted < _SHORTEST:
                return False
        steps[cable] = wanted
        v[cable], w[cable] = room[0, 1 : n + 1], room[1, :n]
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
    room = np.zeros((12, row_length(_TILE + 2 * halo + 2, 12)))
    worst, radius = 0.0, 0.0
    for k in range(first, last):
        begin, end = k * _TILE, min((k + 1) * _TILE, size)
        low, high = begin - halo, end + halo
        if kinds[0] != 2:
            low, high = max(low, 0), min(high, size)
        n, kept, keep = high - low, end - begin, begin - low
        if low >= 0 and high <= size:
            room[0, 1 : n + 1], room[1, :n] = v[low:high], w[low:high]
            if len(drive):
                room[4, :n] = drive[low:high]
        else:
            for i in range(n):
                g = (low + i) % size
                room[0, i + 1], room[1, i] = v[g], w[g]
                if len(drive):
                    room[4, i] = drive[g]
        holds_left, holds_right = kinds[0] == 1 and low == 0, kinds[1] == 1 and high == size
        error = _attempt(room, n, keep, kept, q, h, s, table, False, holds_left, holds_right)
        if not error <= worst:
            worst = error
        v_new[begin:end] = room[2, keep + 1 : keep + 1 + kept]
        w_new[begin:end] = room[3, keep : keep + kept]
        radius = max(radius, _radius(v_new[begin:end], room[6], q))
    return worst, radius


class Chebyshev(Scheme):
    """Runge-Kutta-Chebyshev for one cable, or for many of the same grid.

    Arguments:
        n_threads: how many threads share tiles and cables.
    """

    name = "Chebyshev"

    def __init__(self, equation: Equation, cable: Cable, n_threads: int = 1) -> None:
        self.equation, self.cable = equation, cable
        self.kinds = end_kinds(cable)
        self._facts = _no_facts(1)
        self._workers = Workers(n_threads)

    def restart(self) -> None:
        """Begin to count steps and stages anew."""
        self._facts = _no_facts(1)

    def memory(self) -> dict[str, Array]:
        """Return the counts of steps and stages."""
        return {"counts": self._facts.copy()}

    def remember(self, memory: Mapping[str, Array]) -> None:
        """See `Scheme.remember`."""
        self._facts = memory["counts"].copy()

    def largest_step(self, v: Array) -> float:
        """Return the step that needs the largest number of stages that is allowed."""
        euler = largest_explicit_step(
            self.equation, self.cable.dx, float(np.min(v)), float(np.max(v))
        )
        return 0.29 * MOST_STAGES**2 * euler

    def facts(self) -> dict[str, float]:
        """Return the steps of the cable that took the most,
        and lengths and stages over all cables.
        """
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
        """The same as `_cables`, for one long cable; returns its v and w."""
        left, wanted, table = span, float(steps[k]), np.empty((MOST_STAGES + 1, 4))
        radius = _radius(v, np.empty_like(v), q)
        while left > 1e-14 * span:
            h, s = _planned(wanted, left, radius, table)
            new = np.empty_like(v), np.empty_like(w)
            arguments = v, w, *new, drive, q, self.kinds, h, s, table
            found = np.array(self._workers.share(_tiles, -(-len(v) // _TILE), *arguments))
            error = float(np.max(found[:, 0]))
            passed, wanted = _judged(self._facts[k], h, s, wanted, error, tolerance)
            if passed:
                (v, w), radius, left = new, float(np.max(found[:, 1])), left - h
            elif wanted < _SHORTEST:
                raise _no_step(tolerance)
        steps[k] = wanted
        return v, w


def _no_facts(n_cables: int) -> Array:
    return np.tile([0.0, 0.0, 0.0, math.inf, 0.0], (n_cables, 1))


def _no_step(tolerance: float) -> InputError:
    return InputError(f"no step is short enough for a tolerance of {tolerance:g}", key="tolerance")
