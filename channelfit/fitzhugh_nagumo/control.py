"""Chooses how long the steps of a run are, for schemes that control them to a tolerance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.crank_nicolson import CrankNicolson
from channelfit.fitzhugh_nagumo.crank_nicolson_controlled import (
    AHEAD,
    COLUMNS,
    LONG,
    N_PAST,
    REFUSED,
    SHORT,
    STEPS,
    TIME,
)
from channelfit.fitzhugh_nagumo.equation import Array, Cable, NotConverged
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.fitzhugh_nagumo.step_control import (
    SHORTEST,
    first_try,
    planned,
    reached,
    shortened,
)
from channelfit.reading.errors import InputError
from channelfit.tasks.result_store import Arrays

#: Called with the time and the state between two frames.
OnStep = Callable[[float, tuple[Any, Any]], object]
#: The local error that a step may make where no tolerance is given.
DEFAULT_TOLERANCE = 1e-6
#: The first step, and the longest after an edge of a stimulus.
_FIRST, _AFTER_EDGE = 1e-3, 1e-2
#: The most repetitions of a stimulus between two times that are listed one by one.
_MOST_PULSES = 1_000_000


class _Control:
    """Chooses the steps of Crank-Nicolson as `crank_nicolson_controlled` does, in Python.

    It serves what those kernels do not: GPUs, long cables in tiles, and very short ones.
    """

    def __init__(self, scheme: Scheme, tolerance: float, largest: float) -> None:
        self.scheme, self.tolerance, self.largest = scheme, tolerance, min(largest, 1e3)
        self.h = min(_FIRST, self.largest)
        self.past: list[tuple[float, Array, Array]] = []
        self.steps = self.refused = 0
        self.shortest, self.longest = math.inf, 0.0

    def memory(self) -> Arrays:
        """Return the next step, the states before the present one, and the counts."""
        take = self.scheme.take
        found = {
            "steps": np.array([self.steps, self.refused]),
            "lengths": np.array([self.h, self.shortest, self.longest]),
            "times": np.array([t for t, _, _ in self.past], float),
        }
        for k, (_, v, w) in enumerate(self.past):
            found |= {f"v{k}": take(v).copy(), f"w{k}": take(w).copy()}
        return found

    def remember(self, memory: Arrays) -> None:
        """Take in what `memory` has returned."""
        put = self.scheme.put
        self.steps, self.refused = memory["steps"].tolist()
        self.h, self.shortest, self.longest = memory["lengths"].tolist()
        self.past = [
            (t, put(memory[f"v{k}"]), put(memory[f"w{k}"]))
            for k, t in enumerate(memory["times"].tolist())
        ]

    def run(self, v: Array, w: Array, t: float, end: float, on_step: OnStep) -> tuple[Array, Array]:
        """Advance v and w from t to end, with steps that end at every edge of a stimulus.

        on_step: called after each step but those to an edge, with the time and the state.
        """
        cable = self.scheme.cable
        for edge in [*pulse_edges(cable, t, end), end]:
            while not reached(t, edge):
                (v, w), t = self._step(v, w, t, first_try(self.h, edge - t))
                if not reached(t, edge):
                    on_step(t, (v, w))
            t = edge
            if pulse_edges(cable, edge - 1e-9, edge + 1e-9):
                self.past, self.h = [], min(self.h, _AFTER_EDGE)
        return v, w

    def _step(self, v: Array, w: Array, t: float, h: float) -> tuple[tuple[Array, Array], float]:
        """Return a step of length h, or a shorter one where that errs too much;
        the state and its time.
        """
        while True:
            drive = next(self.scheme.cable.spans(t, h, 1))[1]
            new, error = self._try(v, w, t, h, drive)
            if error <= self.tolerance:
                break
            self.refused += 1
            h = shortened(h, error, self.tolerance)
            if h < SHORTEST:
                raise _no_step(t, self.tolerance)
        self.past = [*self.past[-2:], (t, v, w)]
        self.steps += 1
        self.shortest, self.longest = min(self.shortest, h), max(self.longest, h)
        self.h = planned(h, self.h, error, self.tolerance, self.largest)
        return new, t + h

    def _try(
        self, v: Array, w: Array, t: float, h: float, drive: Array | None
    ) -> tuple[tuple[Array, Array], float]:
        failed = self.scheme.failed  # on a device nothing is raised until the state comes back
        try:
            whole = self.scheme.advance(v, w, h, 1, drive)
            if len(self.past) < 2:
                halves = self.scheme.advance(v, w, h / 2, 2, drive)
                return halves, math.inf if failed() else _apart(whole, halves) / 3
        except NotConverged:
            return (v, w), math.inf
        if failed():
            return (v, w), math.inf
        points = [*self.past[-2:], (t, v, w), (t + h, *whole)]
        worst = 0.0
        for k in (1, 2):
            values = [point[k] for point in points]
            for gap in (1, 2, 3):
                values = [
                    (after - before) / (points[i + gap][0] - points[i][0])
                    for i, (before, after) in enumerate(itertools.pairwise(values))
                ]
            worst = max(worst, float(np.max(np.abs(values[0]))))
        return whole, worst * h**3 / 2

    def facts(self) -> dict[str, Any]:
        """Return the number of steps, their lengths, and how many were refused."""
        return {
            "steps": self.steps,
            "steps_refused": self.refused,
            "tolerance": self.tolerance,
            "shortest_step": self.shortest,
            "longest_step": self.longest,
        }


class _CompiledControl:
    """Lets the kernels of Crank-Nicolson choose the steps: of every cable, or of 16 together."""

    def __init__(self, scheme: CrankNicolson, tolerance: float, largest: float) -> None:
        self.scheme, self.tolerance, self.largest = scheme, tolerance, min(largest, 1e3)
        self._memory: Array = np.zeros((0, COLUMNS))
        self._past: Array = np.zeros((2, 2, 0, 0))

    def memory(self) -> Arrays:
        """What the kernels remember, and the states before the present one."""
        return {"memory": self._memory.copy(), "past": self._past.copy()}

    def remember(self, memory: Arrays) -> None:
        """Take in what `memory` has returned."""
        n_cables, n_nodes = self.scheme.equation.n_cables, self.scheme.cable.n_nodes
        shapes = (self.scheme.n_controls(n_cables), COLUMNS), (2, 2, n_cables, n_nodes)
        found = memory["memory"], memory["past"]
        none = len(found[0]) == 0
        if not none and (found[0].shape != shapes[0] or found[1].shape != shapes[1]):
            raise ValueError("steps of other cables")  # kernels write there without a look
        self._memory, self._past = (np.array(one, dtype=float) for one in found)

    def run(self, v: Array, w: Array, t: float, end: float, on_step: OnStep) -> tuple[Array, Array]:
        """Advance v and w from t to end, with steps that end at every edge of a stimulus.

        on_step: called every tenth of a second or so, with the time that all cables have reached.
        """
        cable, v, w = self.scheme.cable, v.copy(), w.copy()
        if not len(self._memory):
            self._memory = np.zeros((self.scheme.n_controls(len(v)), COLUMNS))
            self._memory[:, [AHEAD, SHORT]] = min(_FIRST, self.largest), math.inf
            self._past = np.zeros((2, 2, *v.shape))
        memory = self._memory
        np.maximum(memory[:, TIME], t, out=memory[:, TIME])
        for edge in [*pulse_edges(cable, t, end), end]:
            drive = next(cable.spans(t, edge - t, 1))[1]
            while not reached(t, edge):
                self._advance(v, w, edge, drive)
                t = float(memory[:, TIME].min())
                if not reached(t, edge):
                    on_step(t, (v, w))
            t = edge
            if pulse_edges(cable, edge - 1e-9, edge + 1e-9):
                memory[:, N_PAST] = 0
                np.minimum(memory[:, AHEAD], _AFTER_EDGE, out=memory[:, AHEAD])
        return v, w

    def _advance(self, v: Array, w: Array, edge: float, drive: Array | None) -> None:
        state = v, w, self._past, self._memory
        if not self.scheme.controlled(*state, edge, self.tolerance, self.largest, drive):
            raise _no_step(float(self._memory[:, TIME].min()), self.tolerance)

    def facts(self) -> dict[str, Any]:
        """Return the steps of the cable that took the most, and the lengths of all."""
        memory = self._memory
        return {
            "steps": int(memory[:, STEPS].max(initial=0)),
            "steps_refused": int(memory[:, REFUSED].max(initial=0)),
            "tolerance": self.tolerance,
            "shortest_step": float(memory[:, SHORT].min(initial=math.inf)),
            "longest_step": float(memory[:, LONG].max(initial=0.0)),
        }


def _no_step(t: float, tolerance: float) -> InputError:
    return InputError(
        f"at t = {t:g} no step is short enough for a tolerance of {tolerance:g}", key="tolerance"
    )


class _OwnControl:
    """For a scheme such as Chebyshev, which chooses the steps of every cable by itself."""

    def __init__(self, scheme: Any, tolerance: float, largest: float) -> None:
        self.scheme, self.tolerance = scheme, tolerance
        self.steps: Array = np.full(1, min(1e-3, largest))

    def memory(self) -> Arrays:
        """Return the steps to try next."""
        return {"steps": self.steps.copy()}

    def remember(self, memory: Arrays) -> None:
        """Take in what `memory` has returned."""
        self.steps = memory["steps"].copy()

    def run(self, v: Array, w: Array, t: float, end: float, on_step: OnStep) -> tuple[Array, Array]:
        """Advance v and w from t to end, in spans from one edge of a stimulus to the next.

        on_step: called at every edge, with the time and the state.
        """
        cable: Cable = self.scheme.cable
        self.steps = np.broadcast_to(self.steps, len(v)).copy()
        for edge in [*pulse_edges(cable, t, end), end]:
            drive = next(cable.spans(t, edge - t, 1))[1]
            v, w, self.steps = self.scheme.span(v, w, self.steps, edge - t, self.tolerance, drive)
            t = edge
            if t < end:
                on_step(t, (v, w))
        return v, w

    def facts(self) -> dict[str, Any]:
        """Return the tolerance; the scheme itself reports its steps."""
        return {"tolerance": self.tolerance}


#: Whatever chooses the steps of a scheme.
Control = _Control | _OwnControl | _CompiledControl


def control_of(
    scheme: Scheme, dt: float | None, tolerance: float | None, largest: float, n_cables: int
) -> Control | None:
    """What chooses the steps of a scheme; None where all steps are equal.

    Raises:
        InputError: both a step and a tolerance, or a tolerance that cannot be.
    """
    if dt is not None and tolerance is not None:
        raise InputError("give a step or a tolerance, not both", key="dt, tolerance")
    controls = _kind(scheme, n_cables)
    if dt is None and tolerance is None and controls is not None:
        tolerance = DEFAULT_TOLERANCE
    if tolerance is None:
        return None
    if controls is None:
        raise InputError(f"the {scheme.name} scheme has no step control", key="tolerance")
    if not 0 < tolerance < math.inf:
        raise InputError(
            f"a tolerance must be positive and finite, not {tolerance}", key="tolerance"
        )
    return controls(scheme, tolerance, largest)


def _kind(scheme: Scheme, n_cables: int) -> Callable[[Any, float, float], Control] | None:
    if scheme.name == "Chebyshev":
        return _OwnControl
    if isinstance(scheme, CrankNicolson) and scheme.n_controls(n_cables):
        return _CompiledControl
    return _Control if scheme.name == "Crank-Nicolson" else None


def _apart(one: tuple[Array, Array], other: tuple[Array, Array]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True))


def pulse_edges(cable: Cable, begin: float, end: float) -> list[float]:
    """Return the times strictly between begin and end at which a stimulus begins or ends."""
    edges = set()
    for pulse in cable.stimulus:
        first = 0
        last = 0
        if math.isfinite(pulse.period):
            first = max(0, math.floor((begin - pulse.end) / pulse.period))
            last = max(first, math.ceil((end - pulse.start) / pulse.period))
            if last - first > _MOST_PULSES:
                raise InputError(
                    f"a stimulus every {pulse.period:g} comes {last - first:,} times from t = "
                    f"{begin:g} to {end:g}; at most {_MOST_PULSES:,} can be taken one by one",
                    key="stimulus",
                )
        for k in range(first, last + 1):
            shift = k * pulse.period if k else 0.0
            edges |= {pulse.start + shift, pulse.end + shift}
    return sorted(t for t in edges if begin < t < end)
