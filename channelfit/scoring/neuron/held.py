"""A stranger's mechanism at voltages that are held, in a process of its own: the truths of a proof.

There are two. CVODE integrates the file as it would in a cell. And since the equations of a channel
are linear in its states while the voltage stands still, NEURON's own derivatives at a few points
give their matrix, and its exponentials the states from sample to sample, exactly, however stiff
the file is. At a voltage where the file itself is 0/0, or jumps, matrix and current are the limits
of those beside it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.problem.waves import TIME_TOLERANCE
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.mechanisms import compile_mechanism, neuron_hoc

Array = npt.NDArray[np.float64]
#: Absolute tolerance of an occupancy in CVODE, where the file allows it.
_EXACT = 1e-13
#: mV beside a voltage from which limits are taken, and how far derivatives may be from linear.
_BESIDE, _LINEAR = 0.05, 1e-9
#: A sum of states whose change is below this share of their rates is constant.
_CONSERVED = 1e-9
#: ms: steps after which a gate is where it ends, and where it was.
_LONG, _SHORT = 1e9, 1e-10
#: A share of the largest rate that is rounding alone.
_ROUNDING = 1e-15


def simulated(path: Path) -> dict[str, Array | str]:
    """Return the results of all jobs of a file that `importing.prove` has written,
    by "NAME JOB".
    """
    whole = json.loads(path.read_text(encoding="utf-8"))
    name = compile_mechanism(whole["text"], path.parent / "compiled")
    found: dict[str, Array | str] = {}
    for k, job in enumerate(whole["jobs"]):
        found |= {f"{what} {k}": value for what, value in _Place(name, whole, job).run().items()}
    return found


class _Place:
    """A compiled mechanism on a membrane that is held at any voltage.

    The capacitance is so large that no current moves the voltage by a rounding.
    """

    def __init__(self, name: str, whole: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        self.name, self.whole, self.job = name, whole, job
        self.h = neuron_hoc()
        self.h.celsius = job["celsius"]
        self.section = self.h.Section(name="imported")
        self.section.L = self.section.diam = 10.0
        self.section.cm = 1e20
        self.place = self.section(0.5)
        if whole["point"]:
            self.mechanism = getattr(self.h, name)(self.place)
        else:
            self.section.insert(name)
            self.mechanism = getattr(self.place, name)

    def run(self) -> dict[str, Array | str]:
        """Return currents by CVODE and exactly, voltages of limits, and the cell's values.

        A text in place of an array says why there is none; NaN is where CVODE gave up.
        """
        h, job = self.h, self.job
        solver = h.CVode()
        solver.active(not self.whole["stepped"])
        solver.atol(_EXACT)
        solver.rtol(0)
        if hasattr(h, f"usetable_{self.name}"):
            setattr(h, f"usetable_{self.name}", int(job["table"]))
        if job["ions"]:
            for ion in self.whole["ions"]:
                h.ion_style(f"{ion}_ion", 1, 1, 0, 0, 0, sec=self.section)
        for kind, key, value in job["settings"]:
            if job["ions"] or not kind:
                self._set(kind, key, value)
        found: dict[str, Array | str] = {}
        exact = _Exact(self)
        if not job["table"]:
            try:
                found["exact"] = exact.run()
            except InputError as error:
                found["exact"] = error.message
        found["limits"] = np.array(sorted(exact.limits), dtype=float)
        found["cvode"], found["why"] = self._integrated(exact)
        names = [(kind, key) for kind, key, _ in job["settings"]]
        found["cell"] = np.array([self._get(*one) for one in names])
        return found

    # --- what is set and read

    def _set(self, kind: str, key: str, value: float) -> None:
        if kind:
            setattr(self.place, key, value)
        elif key in self.job["range"]:
            setattr(self.mechanism, key, value)
        else:
            setattr(self.h, f"{key}_{self.name}", value)

    def _get(self, kind: str, key: str) -> float:
        if kind:
            return float(getattr(self.place, key))
        if key in self.job["range"]:
            return float(getattr(self.mechanism, key))
        return float(getattr(self.h, f"{key}_{self.name}"))

    def current(self) -> float:
        """Return the current, pA, for the area that the model file names."""
        total = 0.0
        for key in self.whole["currents"]:
            of_ion = hasattr(self.place, key)
            value = float(getattr(self.place if of_ion else self.mechanism, key))
            if self.whole["point"] and of_ion:
                value *= self.place.area() * 1e-2  # mA/cm2 to nA
            total += value
        return total * float(self.whole["per_pA"]) * float(self.whole["area"] or 1.0)

    # --- by NEURON's integrator

    def _integrated(self, exact: _Exact) -> tuple[Array, str]:
        """Return the currents by CVODE, and why it gave up where it did."""
        job, why = self.job, ""
        out = np.full((len(job["sweeps"]), job["samples"]), np.nan)
        for sweep, row in zip(range(len(out)), out, strict=True):
            try:
                self._begin(exact)
                self._sweep(sweep, row)
            except RuntimeError as error:
                row[:] = np.nan
                why = why or f"at {self.place.v:g} mV: {error}"
            except InputError as error:
                row[:] = np.nan
                why = why or error.message
        return out, why

    def _begin(self, exact: _Exact, beside: float = 0.0) -> None:
        holding = self.job["holding"]
        self.h.finitialize(holding + beside)
        if self.whole["settle"] and self.whole["stepped"]:
            self.h.dt = _LONG
            for _ in range(3):  # the first may use what was computed before it
                self.h.fadvance()
        elif self.whole["settle"]:
            states = exact.start(holding)
            self.h.CVode().yscatter(self.h.Vector([holding, *states.tolist()]))

    def stepped(self, exact: _Exact) -> Array:
        """Return the currents by the file's own exact steps, or limits from both sides."""
        job = self.job
        out = np.full((len(job["sweeps"]), job["samples"]), np.nan)
        for sweep, row in zip(range(len(out)), out, strict=True):
            last = job["ranges"][sweep][-1][1]
            voltages = {float(v) for _, _, v, _ in job["sweeps"][sweep]} | {float(job["holding"])}
            faults = {v for v in voltages if any(abs(v - f) < 1e-9 for f in job["faults"])}
            self._begin(exact)
            self._sweep(sweep, row)
            if np.isfinite(row[:last]).all() and not faults:
                continue
            exact.limits |= faults or {float(job["sweeps"][sweep][1][2])}
            near, far = (self._beside(exact, sweep, k * _BESIDE) for k in (1, 2))
            row[:] = (4 * near - far) / 3
        return out

    def _beside(self, exact: _Exact, sweep: int, by: float) -> Array:
        """Return the mean of the currents at voltages higher, and lower, by so much."""
        rows = np.full((2, self.job["samples"]), np.nan)
        for row, sign in zip(rows, (1, -1), strict=True):
            self._begin(exact, sign * by)
            self._sweep(sweep, row, sign * by)
        return np.asarray(rows.mean(axis=0))

    def _sweep(self, sweep: int, row: Array, beside: float = 0.0) -> None:
        h, period = self.h, self.job["sampling"]
        ranges = self.job["ranges"][sweep]
        segments = zip(self.job["sweeps"][sweep], ranges, strict=True)
        for (start, end, v, _), (first, last) in segments:
            # NEURON's clock starts anew, so that the first steps are not lost beside a late t
            h.t, self.place.v = 0.0, v + beside
            if self.whole["stepped"]:  # what the current has of the voltage follows with a step
                self._advance(_SHORT)
                h.t = 0.0
            else:
                h.CVode().re_init()
            for k in range(first, last):
                self._advance(k * period - start)
                h.fcurrent()
                row[k] = self.current()
            self._advance(end - start)

    def _advance(self, until_ms: float) -> None:
        pause = until_ms - self.h.t
        if pause <= TIME_TOLERANCE * 1e-3 and pause != _SHORT:
            return
        if self.whole["stepped"]:  # a step of the file's own, which is exact at any length
            self.h.dt = pause
            self.h.fadvance()
            self.h.t = until_ms
        else:
            self.h.CVode().solve(until_ms)


class _Exact:
    """The states at held voltages from matrix exponentials of NEURON's derivatives.

    Attributes:
        limits: the voltages, mV, at which limits stand for what the file computes.
    """

    def __init__(self, place: _Place) -> None:
        self.place, self.h = place, place.h
        self.limits: set[float] = set()
        self.known: dict[float, tuple[Array, Array]] = {}

    def run(self) -> Array:
        """Return currents (n_sweeps, n_times_max) pA. Raises InputError if not linear."""
        from scipy.linalg import expm  # loads slowly

        job = self.place.job
        if self.place.whole["stepped"]:
            return self.place.stepped(self)
        out = np.full((len(job["sweeps"]), job["samples"]), np.nan)
        moves: dict[tuple[float, float], Array] = {}
        for sweep, row in zip(range(len(out)), out, strict=True):
            now = np.append(self.start(job["holding"]), 1.0)
            pieces = zip(job["sweeps"][sweep], job["ranges"][sweep], strict=True)
            for (start, end, v, _), (first, last) in pieces:
                t = start
                for k in range(first, last + 1):
                    later = k * job["sampling"] if k < last else end
                    key = v, round(later - t, 9)
                    if key not in moves:
                        moves[key] = expm(_augmented(*self._linear(v)) * key[1])
                    now, t = moves[key] @ now, later
                    if k < last:
                        row[k] = self._current(v, now[:-1])
        return out

    @cached_property
    def _size(self) -> int:
        found = self.h.Vector()
        self.h.finitialize(-65.0)
        self.h.CVode().states(found)
        return len(found)

    def start(self, v: float) -> Array:
        """Return the states at the start: the file's own, or the steady state if settled."""
        matrix, constant = self._linear(v)
        if self.place.whole["settle"]:
            return steady_state(matrix, constant)
        own = self._at(v, self._initial)
        steady = self.place.whole["steady"]
        return np.where(self._named(steady), steady_state(matrix, constant), own) if steady else own

    def _named(self, states: list[str]) -> npt.NDArray[np.bool_]:
        """Return which of NEURON's states have one of these names."""
        name, found = self.h.ref(""), []
        for k in range(1, self._size):
            self.h.CVode().statename(k, name)
            own = name[0].rpartition(".")[2] if "](" in name[0] else name[0].partition(".")[2]
            own = own.partition("(")[0].replace(f"_{self.place.name}", "")
            found.append(own in states)
        return np.array(found, dtype=bool)

    # --- what NEURON computes

    def _initial(self, v: float) -> Array:
        found = self.h.Vector()
        self.h.finitialize(v)
        self.h.CVode().states(found)
        return np.array(found)[1:]

    def _right_side(self, v: float, states: Array) -> Array:
        """Return NEURON's derivatives, 1/ms, and behind them the current, pA."""
        found, at = self.h.Vector(), self.h.Vector([v, *states])
        # twice, because a current may use what the equations of the call before have computed
        self.h.CVode().f(0.0, at, found)
        self.h.CVode().f(0.0, at, found)
        return np.append(np.array(found)[1:], self.place.current())

    def _at(self, v: float, ask: Callable[[float], Array]) -> Array:
        """Return the value of a function of voltage, or its limit there."""
        v = float(v)
        fault = any(abs(v - other) < 1e-9 for other in self.place.job["faults"])
        if not fault and v not in self.limits:
            with contextlib.suppress(RuntimeError):
                found = ask(v)
                if np.isfinite(found).all():
                    return found
        self.limits.add(v)
        near, far = ((ask(v + k * _BESIDE) + ask(v - k * _BESIDE)) / 2 for k in (1, 2))
        found = (4 * near - far) / 3
        if not np.isfinite(found).all():
            raise InputError(f"the file gives no finite number near {v:g} mV")
        return found

    def _current(self, v: float, states: Array) -> float:
        return float(self._at(v, lambda at: self._right_side(at, states))[-1])

    def _linear(self, v: float) -> tuple[Array, Array]:
        """Return the matrix and the constant of the derivatives, 1/ms."""
        if v not in self.known:
            n = self._size - 1

            def rate(states: Array) -> Array:
                return self._at(v, lambda at: self._right_side(at, states))[:-1]

            rate(np.zeros(n))
            constant = rate(np.zeros(n))  # once more, should the first have found a limit
            matrix = np.array([rate(row) - constant for row in np.eye(n)]).T.reshape(n, n)
            trial = np.linspace(0.1, 0.3, n)
            expected = rate(trial)
            largest = max(np.abs(expected).max(initial=0.0), 1e-3)
            if np.abs(matrix @ trial + constant - expected).max(initial=0.0) > _LINEAR * largest:
                raise InputError("the equations of the file are not linear in its states")
            self.known[v] = matrix, constant
        return self.known[v]


def _augmented(matrix: Array, constant: Array) -> Array:
    """Return the matrix of an affine equation in one more state, which is 1."""
    n = len(matrix)
    whole = np.zeros((n + 1, n + 1))
    whole[:n, :n], whole[:n, n] = matrix, constant
    return whole


def steady_state(matrix: Array, constant: Array) -> Array:
    """Return the states (n_states,) that do not change; states of constant sum add up to 1."""
    n = len(matrix)
    if not n:
        return np.zeros(0)
    scale = np.maximum(np.abs(matrix).max(axis=1, initial=0.0), 1e-300)
    rows, right = [matrix / scale[:, None]], [-constant / scale]
    for members in _linked(matrix):
        row = np.zeros(n)
        row[members] = 1.0
        largest = np.abs(matrix[members]).max(initial=0.0)
        still = np.abs(row @ matrix).max() <= _CONSERVED * largest
        if len(members) > 1 and still and abs(row @ constant) <= _CONSERVED * largest:
            rows.append(row[None])
            right.append(np.ones(1))
    found: Array = np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)[0]
    return found


def _linked(matrix: Array) -> list[list[int]]:
    """Return the states that depend on each other."""
    groups: list[set[int]] = []
    largest = np.abs(matrix).max(initial=0.0)
    for k, row in enumerate(matrix):
        merged = {k, *np.flatnonzero(np.abs(row) > _ROUNDING * largest).tolist()}
        for other in [group for group in groups if group & merged]:
            merged |= other
            groups.remove(other)
        groups.append(merged)
    return [sorted(group) for group in groups]
