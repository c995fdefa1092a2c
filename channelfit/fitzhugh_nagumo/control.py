"""The control of the steps of a run, for schemes that choose them to a tolerance."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
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
#: The tolerance by default: the local error that a step may make.
DEFAULT_TOLERANCE = 1e-6
#: The first step, and the longest after an edge of a stimulus.
_FIRST, _AFTER_EDGE = 1e-3, 1e-2
#: The most repetitions of a stimulus between two times that are listed one by one.
_MOST_PULSES = 1_000_000


class StepControl(ABC):
    """A choice of the steps of a run, which end at every edge of a stimulus.

    Arguments:
        scheme: of which the steps are controlled.
        tolerance: the local error that a step may make. largest: the longest step.
    """

    def __init__(self, scheme: Any, tolerance: float, largest: float) -> None:
        self.scheme, self.tolerance, self.largest = scheme, tolerance, min(largest, 1e3)

    def run(self, v: Array, w: Array, t: float, end: float, on_step: OnStep) -> tuple[Array, Array]:
        """Advance v and w from t to end.

        on_step: called between steps with the time and the state.
        """
        cable = self.scheme.cable
        for edge in [*pulse_edges(cable, t, end), end]:
            v, w = self._to_edge(v, w, t, edge, on_step)
            t = edge
            if pulse_edges(cable, edge - 1e-9, edge + 1e-9):
                self._after_edge()
            if t < end:
                on_step(t, (v, w))
        return v, w

    @abstractmethod
    def internal_state(self) -> Arrays:
        """Return the arrays that a later run needs to go on with the same steps, by name."""

    @abstractmethod
    def restore(self, state: Arrays) -> None:
        """Set the internal state to an earlier one."""

    def facts(self) -> dict[str, Any]:
        """Return the tolerance, and facts of the steps that the scheme does not report itself."""
        return {"tolerance": self.tolerance}

    @abstractmethod
    def _to_edge(
        self, v: Array, w: Array, t: float, edge: float, on_step: OnStep
    ) -> tuple[Array, Array]:
        """Advance v and w from t to the next edge of a stimulus."""

    def _after_edge(self) -> None:  # noqa: B027 - schemes without earlier states need none
        """Forget the earlier states, which say nothing about v and w behind an edge."""

    def _no_step(self, t: float) -> InputError:
        return InputError(
            f"at t = {t:g} no step is short enough for a tolerance of {self.tolerance:g}",
            key="tolerance",
        )


class _ControlInPython(StepControl):
    """The control of Crank-Nicolson's steps in `crank_nicolson_controlled`, written in Python.

    It is used where those kernels are not: on GPUs, for long cables and for very short ones.
    """

    def __init__(self, scheme: Scheme, tolerance: float, largest: float) -> None:
        super().__init__(scheme, tolerance, largest)
        self.h = min(_FIRST, self.largest)
        self.past: list[tuple[float, Array, Array]] = []
        self.steps = self.refused = 0
        self.shortest, self.longest = math.inf, 0.0

    def internal_state(self) -> Arrays:
        take = self.scheme.take
        found = {
            "steps": np.array([self.steps, self.refused]),
            "lengths": np.array([self.h, self.shortest, self.longest]),
            "times": np.array([t for t, _, _ in self.past], float),
        }
        for k, (_, v, w) in enumerate(self.past):
            found |= {f"v{k}": take(v).copy(), f"w{k}": take(w).copy()}
        return found

    def restore(self, state: Arrays) -> None:
        put = self.scheme.put
        self.steps, self.refused = state["steps"].tolist()
        self.h, self.shortest, self.longest = state["lengths"].tolist()
        self.past = [
            (t, put(state[f"v{k}"]), put(state[f"w{k}"]))
            for k, t in enumerate(state["times"].tolist())
        ]

    def _to_edge(
        self, v: Array, w: Array, t: float, edge: float, on_step: OnStep
    ) -> tuple[Array, Array]:
        while not reached(t, edge):
            (v, w), t = self._step(v, w, t, first_try(self.h, edge - t))
            if not reached(t, edge):
                on_step(t, (v, w))
        return v, w

    def _after_edge(self) -> None:
        self.past, self.h = [], min(self.h, _AFTER_EDGE)

    def _step(self, v: Array, w: Array, t: float, h: float) -> tuple[tuple[Array, Array], float]:
        """Make a step of length h, or a shorter one where that errs too much.

        Returns: the state after it, and its time.
        """
        while True:
            drive = next(self.scheme.cable.spans(t, h, 1))[1]
            new, error = self._try(v, w, t, h, drive)
            if error <= self.tolerance:
                break
            self.refused += 1
            h = shortened(h, error, self.tolerance)
            if h < SHORTEST:
                raise self._no_step(t)
        self.past = [*self.past[-2:], (t, v, w)]
        self.steps += 1
        self.shortest, self.longest = min(self.shortest, h), max(self.longest, h)
        self.h = planned(h, self.h, error, self.tolerance, self.largest)
        return new, t + h

    def _try(
        self, v: Array, w: Array, t: float, h: float, drive: Array | None
    ) -> tuple[tuple[Array, Array], float]:
        """Return the state after a step of length h, and its local error, infinite if it failed."""
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
        return {
            "steps": self.steps,
            "steps_refused": self.refused,
            "tolerance": self.tolerance,
            "shortest_step": self.shortest,
            "longest_step": self.longest,
        }


class _ControlInKernels(StepControl):
    """The control of Crank-Nicolson's steps by its kernels, of every cable or of 16 together."""

    def __init__(self, scheme: CrankNicolson, tolerance: float, largest: float) -> None:
        super().__init__(scheme, tolerance, largest)
        self._memory: Array = np.zeros((0, COLUMNS))
        self._past: Array = np.zeros((2, 2, 0, 0))

    def internal_state(self) -> Arrays:
        return {"memory": self._memory.copy(), "past": self._past.copy()}

    def restore(self, state: Arrays) -> None:
        n_cables, n_nodes = self.scheme.equation.n_cables, self.scheme.cable.n_nodes
        shapes = (self.scheme.n_controls(n_cables), COLUMNS), (2, 2, n_cables, n_nodes)
        found = state["memory"], state["past"]
        none = len(found[0]) == 0
        if not none and (found[0].shape != shapes[0] or found[1].shape != shapes[1]):
            raise ValueError("steps of other cables")  # kernels write there unchecked
        self._memory, self._past = (np.array(one, dtype=float) for one in found)

    def run(self, v: Array, w: Array, t: float, end: float, on_step: OnStep) -> tuple[Array, Array]:
        """Advance v and w from t to end; see `StepControl.run`.

        on_step: called about every tenth of a second, with the time that all cables have reached.
        """
        if not len(self._memory):
            self._memory = np.zeros((self.scheme.n_controls(len(v)), COLUMNS))
            self._memory[:, [AHEAD, SHORT]] = min(_FIRST, self.largest), math.inf
            self._past = np.zeros((2, 2, *v.shape))
        return super().run(v.copy(), w.copy(), t, end, on_step)

    def _to_edge(
        self, v: Array, w: Array, t: float, edge: float, on_step: OnStep
    ) -> tuple[Array, Array]:
        memory, scheme = self._memory, self.scheme
        np.maximum(memory[:, TIME], t, out=memory[:, TIME])
        drive = next(scheme.cable.spans(t, edge - t, 1))[1]
        while not reached(t, edge):
            state = v, w, self._past, memory
            if not scheme.controlled(*state, edge, self.tolerance, self.largest, drive):
                raise self._no_step(float(memory[:, TIME].min()))
            t = float(memory[:, TIME].min())
            if not reached(t, edge):
                on_step(t, (v, w))
        return v, w

    def _after_edge(self) -> None:
        self._memory[:, N_PAST] = 0
        np.minimum(self._memory[:, AHEAD], _AFTER_EDGE, out=self._memory[:, AHEAD])

    def facts(self) -> dict[str, Any]:
        """Return the most steps that a cable took, and the lengths of all."""
        memory = self._memory
        return {
            "steps": int(memory[:, STEPS].max(initial=0)),
            "steps_refused": int(memory[:, REFUSED].max(initial=0)),
            "tolerance": self.tolerance,
            "shortest_step": float(memory[:, SHORT].min(initial=math.inf)),
            "longest_step": float(memory[:, LONG].max(initial=0.0)),
        }


class _ControlInScheme(StepControl):
    """The control of a scheme such as Chebyshev, which chooses the steps of every cable itself."""

    def __init__(self, scheme: Any, tolerance: float, largest: float) -> None:
        super().__init__(scheme, tolerance, largest)
        self.steps: Array = np.full(1, min(_FIRST, largest))

    def internal_state(self) -> Arrays:
        return {"steps": self.steps.copy()}

    def restore(self, state: Arrays) -> None:
        self.steps = state["steps"].copy()

    def _to_edge(
        self, v: Array, w: Array, t: float, edge: float, on_step: OnStep
    ) -> tuple[Array, Array]:
        self.steps = np.broadcast_to(self.steps, len(v)).copy()
        drive = next(self.scheme.cable.spans(t, edge - t, 1))[1]
        v, w, self.steps = self.scheme.span(v, w, self.steps, edge - t, self.tolerance, drive)
        return v, w


def control_of(
    scheme: Scheme, dt: float | None, tolerance: float | None, largest: float, n_cables: int
) -> StepControl | None:
    """Return the control of the steps of a scheme; None where all steps are equal.

    Raises:
        InputError: both a step and a tolerance, or a tolerance that cannot be.
    """
    if dt is not None and tolerance is not None:
        raise InputError("give a step or a tolerance, not both", key="dt, tolerance")
    controls = _control_class(scheme, n_cables)
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


def _control_class(
    scheme: Scheme, n_cables: int
) -> Callable[[Any, float, float], StepControl] | None:
    if scheme.name == "Chebyshev":
        return _ControlInScheme
    if isinstance(scheme, CrankNicolson) and scheme.n_controls(n_cables):
        return _ControlInKernels
    return _ControlInPython if scheme.name == "Crank-Nicolson" else None


def _apart(one: tuple[Array, Array], other: tuple[Array, Array]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True))


def pulse_edges(cable: Cable, begin: float, end: float) -> list[float]:
    """Return the times strictly between begin and end at which a stimulus begins or ends."""
    edges = set()
    for pulse in cable.stimulus:
        first = last = 0
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
