"""A model of Myokit with its voltage held or ramped, computed from Myokit's own expressions.

Under a voltage clamp the derivatives of a channel's states are linear in them. So Myokit's
derivatives are read off at a few points of each voltage; matrix exponentials follow the states
through steps, and an implicit method of ninth order through ramps. Nothing of the import is used
but the names of the current and of its states.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import expm
from scipy.optimize import root

from channelfit.model.imports.myokit_model import load, voltage_of
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.held import steady_state

Array = npt.NDArray[np.float64]
#: How far derivatives may be from linear, relative to the largest of them.
_LINEAR = 1e-9
#: mV beside a voltage from which a limit is taken; how far apart its sides may be.
_BESIDE, _SIDES = 0.01, 0.02
#: Stages of the method for ramps; the error of a step; halvings at a jump of a rate.
_STAGES, _STEP_ERROR, _HALVINGS = 5, 1e-11, 40
#: mV, ms: where it is looked whether a state stays where it is.
_GRID = np.linspace(-118.7, 61.3, 37)


def simulated(path: Path) -> dict[str, Array | str]:
    """Return the currents of a job, in the unit of the file; and voltages where it is 0/0."""
    job = json.loads(path.read_text(encoding="utf-8"))
    clamped = Clamped(Path(job["path"]), job["current"], job["states"], job["still"])
    found: dict[str, Array | str] = {
        str(k): clamped.run(protocol) for k, protocol in enumerate(job["protocols"])
    }
    found["singular"] = np.array(sorted(clamped.singular))
    return found


class Clamped:
    """The current of a model as a function of the voltage over time.

    Arguments:
        path: the model's file.
        current: the name of the variable.
        states: the states that move, in the order of the file.
        still: states that are said to stay at their steady state, which is looked up here.
    """

    def __init__(self, path: Path, current: str, states: list[str], still: list[str]) -> None:
        model = load(path)
        v = voltage_of(model)
        time = model.time()
        self.per_mv = 1e-3 if str(v.unit()) == "[V]" else 1.0
        self.per_ms = 1e-3 if time is not None and str(time.unit()) == "[s]" else 1.0
        if not v.is_state():
            v.set_binding(None)
            v.promote(-80 * self.per_mv)
        own = {key: model.get(key) for key in (*states, *still, current)}
        for variable in list(model.variables(deep=True)):
            if keyword.iskeyword(variable.name()):  # Myokit writes it as a name in Python
                variable.rename(f"{variable.name()}_of_the_file")
        values = model.initial_values(as_floats=True)
        self.rest = {s.qname(): np.float64(x) for s, x in zip(model.states(), values, strict=True)}
        self.voltage = v.qname()
        self.states = [own[key].qname() for key in states]
        self.rates = [self._function(own[key]) for key in states]
        self.flow = self._function(own[current])
        #: Voltages, mV, at which an expression of the file is no number, or far from its limit.
        self.singular: set[float] = set()
        for key in still:
            self._settle(own[key].qname(), self._function(own[key]))

    def _function(self, variable: Any) -> Callable[[dict[str, Any]], Array]:
        function, args = variable.pyfunc(use_numpy=True, arguments=True)
        names = [lhs.var().qname() for lhs in args]

        def of(values: dict[str, Any]) -> Array:
            try:
                return np.asarray(function(*(values[key] for key in names)), dtype=float)
            except ArithmeticError as error:  # of constants alone; of a voltage it is no number
                raise InputError(f"{variable.qname()} has no value: {error}") from None

        return of

    def _settle(self, state: str, rate: Callable[[dict[str, Any]], Array]) -> None:
        """Put a state where its derivative is 0, which has to be so at every voltage."""

        def of(x: float, v: Any) -> Array:
            return rate({**self.rest, self.voltage: v * self.per_mv, state: np.asarray(x)})

        def here(x: Array) -> Array:
            return of(float(x[0]), _GRID[5])

        where = root(here, [self.rest[state]], tol=1e-14)
        x = float(where.x[0])
        scale = np.abs(of(x + 0.1, _GRID)).max() + np.abs(of(x - 0.1, _GRID)).max()
        if not np.abs(of(x, _GRID)).max() <= _LINEAR * scale:
            raise InputError(f"{state} does not stay where it is at every voltage")
        self.rest[state] = np.float64(x)

    def _values(self, function: Callable[[dict[str, Any]], Array], v: Array, at: Array) -> Array:
        """Return the values of a function at voltages, or limits where they are no numbers.

        Arguments:
            function: of this model.
            v: (n,) mV.
            at: (n_states, n) the states.
        """

        def of(volts: Array, states: Array) -> Array:
            known = {**self.rest, self.voltage: volts * self.per_mv}
            known |= dict(zip(self.states, states, strict=True))
            return np.broadcast_to(function(known), volts.shape)

        found = of(v, at)
        bad = ~np.isfinite(found)
        if not bad.any():
            return found
        found = found.copy()
        volts, states = v[bad], at[:, bad]
        below, above = (of(volts + sign * _BESIDE, states) for sign in (-1, 1))
        far = of(volts - 2 * _BESIDE, states) + of(volts + 2 * _BESIDE, states)
        found[bad] = (4 * (below + above) - far) / 6
        apart = np.abs(above - below) > _SIDES * np.maximum(np.abs(above), np.abs(below))
        if not np.isfinite(found).all() or apart.any():
            raise InputError(f"the file divides by 0 at {volts[0]:g} mV, and has no limit there")
        self.singular |= set(volts.tolist())
        return found

    def linear(self, v: Array) -> Array:
        """Return the derivatives, 1/ms, (n, n_states + 1, n_states + 1); the last state is 1."""
        n = len(self.states)
        whole = np.zeros((len(v), n + 1, n + 1))
        trial = np.linspace(0.1, 0.3, n)
        for k, rate in enumerate(self.rates):
            constant = self._values(rate, v, np.zeros((n, len(v))))
            whole[:, k, n] = constant
            for j in range(n):
                at = np.zeros((n, len(v)))
                at[j] = 1.0
                whole[:, k, j] = self._values(rate, v, at) - constant
            expected = self._values(rate, v, np.repeat(trial[:, None], len(v), axis=1))
            error = np.abs(whole[:, k, :n] @ trial + constant - expected)
            if (error > _LINEAR * np.maximum(np.abs(whole[:, k]).max(axis=1), 1e-3)).any():
                raise InputError("the derivatives are not linear in the states of the channel")
        found: Array = whole * self.per_ms
        return found

    def current(self, v: Array, states: Array) -> Array:
        """Return the current (n,) at voltages (n,) and states (n_states, n)."""
        return self._values(self.flow, v, states)

    def run(self, protocol: dict[str, Any]) -> Array:
        """Return the current (n_sweeps, n_times_max); sweeps begin at the holding potential."""
        out = np.full((len(protocol["sweeps"]), protocol["samples"]), np.nan)
        volts = {protocol["holding"]}
        volts |= {v for sweep in protocol["sweeps"] for _, _, v, end in sweep if v == end}
        held = dict(zip(sorted(volts), self.linear(np.array(sorted(volts))), strict=True))
        start = _steady(held[protocol["holding"]])
        moves: dict[tuple[float, float], Array] = {}
        for sweep, row, ranges in zip(protocol["sweeps"], out, protocol["ranges"], strict=True):
            now = start
            for (begin, end, v, v_end), (first, last) in zip(sweep, ranges, strict=True):
                times = np.array([k * protocol["sampling"] for k in range(first, last)] + [end])
                pauses = np.diff(times, prepend=begin).round(9)
                if v == v_end:
                    for pause in set(pauses.tolist()) - {p for w, p in moves if w == v}:
                        moves[v, pause] = expm(held[v] * pause)
                    steps = [moves[v, pause] for pause in pauses.tolist()]
                else:
                    slope = (v_end - v) / (end - begin)
                    at = v + slope * (times - pauses - begin)
                    steps = list(self._ramp(at, slope, pauses, now))
                seen = []
                for step in steps:
                    now = step @ now
                    seen.append(now)
                if last > first:
                    at = v + (v_end - v) * (times[:-1] - begin) / (end - begin)
                    row[first:last] = self.current(at, np.array(seen[:-1]).T[:-1])
        return out

    def _ramp(self, v: Array, slope: float, pauses: Array, start: Array) -> Array:
        """Return the maps of the states over pauses of a ramp, (n, n_states + 1, n_states + 1).

        Arguments:
            v: (n,) mV at the beginning of each.
            slope: mV/ms.
            pauses: (n,) ms.
            start: (n_states + 1,) the states at the first beginning.
        """
        whole = self._stepped(v, slope, pauses)
        states = np.empty((len(v), len(start)))
        for k, step in enumerate(whole):
            states[k] = start
            start = step @ start
        return self._halved(v, slope, pauses, whole, states, 0)

    def _halved(
        self, v: Array, slope: float, pauses: Array, whole: Array, states: Array, depth: int
    ) -> Array:
        """Take each step of a ramp in halves until this no longer changes where states go."""
        half = pauses / 2
        first = self._stepped(v, slope, half)
        second = self._stepped(v + slope * half, slope, half)
        found: Array = second @ first
        between = first @ states[:, :, None]
        changed = second @ between - whole @ states[:, :, None]
        rough = np.abs(changed).max(axis=(1, 2)) > _STEP_ERROR
        if rough.any() and depth < _HALVINGS:
            at = np.concatenate([v[rough], (v + slope * half)[rough]])
            twice = np.concatenate([first[rough], second[rough]])
            states = np.concatenate([states[rough], between[rough, :, 0]])
            finer = self._halved(at, slope, np.tile(half[rough], 2), twice, states, depth + 1)
            left, right = np.split(finer, 2)
            found[rough] = right @ left
        return found

    def _stepped(self, v: Array, slope: float, pauses: Array) -> Array:
        """Return a step of Radau's method for each pause; exact for polynomial states."""
        nodes, weights = _RADAU
        n, m = len(v), len(self.states) + 1
        at = v[:, None] + slope * pauses[:, None] * nodes
        matrix = self.linear(at.ravel()).reshape(n, _STAGES, m, m)
        whole = -np.einsum("ij,njkl,n->nikjl", weights, matrix, pauses)
        whole = whole.reshape(n, _STAGES * m, _STAGES * m) + np.eye(_STAGES * m)
        right = np.broadcast_to(np.tile(np.eye(m), (_STAGES, 1)), (n, _STAGES * m, m))
        return np.asarray(np.linalg.solve(whole, right)[:, -m:])


def _radau() -> tuple[Array, Array]:
    """Return the nodes in (0, 1] of Radau's method IIA, and the weights of its stages."""
    legendre = np.polynomial.legendre.Legendre
    ends = legendre.basis(_STAGES) - legendre.basis(_STAGES - 1)
    nodes = np.sort(ends.roots().real / 2 + 0.5)
    nodes[-1] = 1.0
    powers = np.arange(_STAGES)
    values = nodes[:, None] ** powers
    integrals = nodes[:, None] ** (powers + 1) / (powers + 1)
    return nodes, integrals @ np.linalg.inv(values)


_RADAU = _radau()


def _steady(whole: Array) -> Array:
    """Return the states (n_states + 1,) that do not change; a sum that never changes is 1."""
    return np.append(steady_state(whole[:-1, :-1], whole[:-1, -1]), 1.0)
