"""The proof for a model of Myokit: its own expressions, evaluated by Myokit, beside the import.

While the voltage is held, the derivatives of a channel's states are linear in them. So Myokit is
asked for the derivatives at a few points of each voltage, SciPy's matrix exponential follows the
states from sample to sample, and Myokit computes the current.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import expm

from channelfit.model.imports.document import Imported, imported
from channelfit.model.imports.equations import Equations
from channelfit.model.imports.myokit_model import equations, load, read_myokit, voltage_of
from channelfit.problem.protocol import Protocol
from channelfit.reading.apart import read_apart
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing import Proof, Simulate, apart, step_families

Array = npt.NDArray[np.float64]
_SECONDS = 300.0
#: How far derivatives may be from linear, relative to the largest of them.
_LINEAR = 1e-9


@dataclass(frozen=True)
class MyokitModel:
    """A model of Myokit that was translated: its file, the model file, and its equations."""

    path: Path
    imported: Imported
    found: Equations
    current: str
    states: tuple[str, ...]


def read_myokit_model(
    path: Path, source: str, current: str | None, fit: tuple[str, ...] = ()
) -> MyokitModel:
    """Translate a .mmt or .cellml file.

    Arguments:
        path: the file.
        source: a sentence that says which file it is.
        current: the variable that is the channel's current.
        fit: the parameters to be searched.

    Raises:
        InputError: what cannot be translated, with the variable's name.
    """
    try:
        plain = read_myokit(path)
        found = equations(plain, current)
        made = imported(found, str(plain["name"]), source, fit)
    except InputError as error:
        raise error.at(path) from None
    except RecursionError:
        raise InputError("expressions are nested too deeply", path) from None
    short = {key.rpartition(".")[2]: key for key in plain["variables"]}
    short |= {key.replace(".", "_"): key for key in plain["variables"]}
    (chosen,) = found.currents
    states = tuple(short[state] for state in found.states)
    return MyokitModel(path, made, found, short[chosen], states)


def prove_myokit(model: MyokitModel, simulate: Simulate) -> Proof:
    """Evaluate the original by Myokit and the model here, and compare their currents.

    Raises:
        InputError: Myokit cannot evaluate it, or its states do not follow linear equations.
    """
    runs = []
    for protocol in step_families():
        theirs = _theirs(model, protocol)
        ours = simulate(model.imported.model, protocol)
        runs.append((f"{protocol.name}, the file's values", apart(ours, theirs)))
    return Proof(max(error for _, error in runs), tuple(runs))


def _theirs(model: MyokitModel, protocol: Protocol) -> Array:
    job = {
        "path": str(model.path.absolute()),
        "current": model.current,
        "states": list(model.states),
        "holding": protocol.holding_mV,
        "sampling": protocol.sampling_ms,
        "sweeps": [
            [[s.start_ms, s.end_ms, float(s.voltage(np.array(s.start_ms)))] for s in sweep]
            for sweep in protocol.sweeps
        ],
        "ranges": [list(map(list, protocol.sample_ranges(k))) for k in range(protocol.n_sweeps)],
        "samples": protocol.n_times_max,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        try:
            found = read_apart(f"{__name__}:simulated", path, "a model", _SECONDS)
        except InputError as error:
            raise InputError(error.message) from None
    return np.asarray(found["current"], dtype=float) * model.found.per_pA


# --- in the other process ------------------------------------------------------------------------


def simulated(path: Path) -> dict[str, Array]:
    """The current of a job that `prove_myokit` has written, in the unit of the file."""
    job = json.loads(path.read_text(encoding="utf-8"))
    return {"current": _Clamped(job).run()}


class _Clamped:
    """A model of Myokit whose voltage is held."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        model = load(Path(job["path"]))
        self.v = voltage_of(model)
        self.per_mv = 1e-3 if str(self.v.unit()) == "[V]" else 1.0
        time = model.time()
        self.per_ms = 1e-3 if time is not None and str(time.unit()) == "[s]" else 1.0
        if self.v.is_state():
            self.v.demote()
        if self.v.binding() is not None:
            self.v.set_binding(None)
        self.model = model
        every = [state.qname() for state in model.states()]
        self.places = [every.index(state) for state in job["states"]]
        self.rest = np.array(model.initial_values(as_floats=True))
        self.known: dict[float, tuple[Array, Array]] = {}

    def linear(self, v: float) -> tuple[Array, Array]:
        """The matrix and the constant of the derivatives of the channel's states, 1/ms."""
        if v not in self.known:
            self.v.set_rhs(v * self.per_mv)
            n = len(self.places)
            constant = self._derivatives(np.zeros(n))
            columns = [self._derivatives(row) - constant for row in np.eye(n)]
            matrix = np.array(columns).T.reshape(n, n)
            trial = np.linspace(0.1, 0.3, n)
            found, wanted = matrix @ trial + constant, self._derivatives(trial)
            if n and np.abs(found - wanted).max() > _LINEAR * max(np.abs(wanted).max(), 1e-3):
                raise InputError("the derivatives are not linear in the states of the channel")
            self.known[v] = matrix, constant
        return self.known[v]

    def _derivatives(self, states: Array) -> Array:
        whole = self.rest.copy()
        whole[self.places] = states
        found = self.model.evaluate_derivatives(whole.tolist())
        return np.array([found[k] for k in self.places]) * self.per_ms

    def current(self, v: float, states: Array) -> Array:
        """The current at states (n_times, n_states)."""
        self.v.set_rhs(v * self.per_mv)
        variable, order = self.model.get(self.job["current"]), self.job["states"]
        try:
            function, names = variable.pyfunc(arguments=True)
        except SyntaxError:  # a name that is a word of Python's
            import myokit  # optional, and loaded by now

            lhs = [myokit.Name(self.model.get(state)) for state in order]
            rows = [dict(zip(lhs, row, strict=True)) for row in states.tolist()]
            return np.array([variable.rhs().eval(subst=row) for row in rows])
        args = [states[:, order.index(one.var().qname())] for one in names]
        return np.broadcast_to(np.asarray(function(*args), dtype=float), len(states))

    def run(self) -> Array:
        """(n_sweeps, n_times_max) the current."""
        job = self.job
        out = np.full((len(job["sweeps"]), job["samples"]), np.nan)
        for sweep, row in zip(range(len(out)), out, strict=True):
            matrix, constant = self.linear(job["holding"])
            now = _steady(matrix, constant)
            pieces = zip(job["sweeps"][sweep], job["ranges"][sweep], strict=True)
            for (start, end, v), (first, last) in pieces:
                matrix, constant = self.linear(v)
                moves: dict[float, Array] = {}
                t, seen = start, []
                for k in range(first, last + 1):
                    later = k * job["sampling"] if k < last else end
                    pause = round(later - t, 9)
                    if pause not in moves:
                        moves[pause] = expm(_augmented(matrix, constant) * pause)
                    now = (moves[pause] @ np.append(now, 1.0))[:-1]
                    t = later
                    if k < last:
                        seen.append(now)
                if seen:
                    row[first:last] = self.current(v, np.array(seen))
        return out


def _steady(matrix: Array, constant: Array) -> Array:
    """(n_states,) the states that do not change; a sum that never changes is 1."""
    if not len(matrix):
        return constant
    scale = np.abs(matrix).max(axis=1, keepdims=True)
    rows, right = matrix / scale, -constant / scale[:, 0]
    left = _conserved(matrix)
    if left is not None:
        rows, right = np.vstack([rows, left]), np.append(right, 1.0)
    found: Array = np.linalg.lstsq(rows, right, rcond=None)[0]
    return found


def _conserved(matrix: Array) -> Array | None:
    """1 for the states whose sum stays as it is; None where no sum does."""
    n = len(matrix)
    if not n:
        return None
    scale = max(np.abs(matrix).max(), 1e-30)
    linked = [np.flatnonzero(np.abs(row) > 0).tolist() for row in matrix]
    group = {k: {k} for k in range(n)}
    for k, others in enumerate(linked):
        for other in others:
            merged = group[k] | group[other]
            for member in merged:
                group[member] = merged
    for members in group.values():
        row = np.array([float(k in members) for k in range(n)])
        if len(members) > 1 and np.abs(row @ matrix).max() < 1e-12 * scale:
            return row
    return None


def _augmented(matrix: Array, constant: Array) -> Array:
    """The matrix of an affine equation in one more state, which is 1."""
    n = len(matrix)
    whole = np.zeros((n + 1, n + 1))
    whole[:n, :n], whole[:n, n] = matrix, constant
    return whole
