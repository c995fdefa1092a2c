"""The proof for a model of Myokit: its own expressions, evaluated by Myokit, beside the import."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.model.imports.document import Imported, imported
from channelfit.model.imports.equations import Equations
from channelfit.model.imports.myokit_model import equations, read_myokit
from channelfit.model.imports.trial import jumps
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing import (
    TOLERANCE,
    Proof,
    Simulate,
    apart,
    computed_in_process,
    plain_protocol,
    step_families,
)

Array = npt.NDArray[np.float64]
_CLAMPED = "channelfit.scoring.neuron.clamped_myokit:simulated"
_TRUTH = "the file's own expressions, evaluated by Myokit"
#: mV on both sides of a jump; mV by which ramps lie beside round voltages.
_ACROSS, _BESIDE = 1e-5, 0.0371


@dataclass(frozen=True)
class MyokitModel:
    """A current of a model of Myokit that was translated.

    Attributes:
        path: the model's file.
        imported: the model file that says the same.
        found: its equations.
        current: the full name of the current.
        states: the full names of the states that move.
        still: those of states that never leave their steady state.
    """

    path: Path
    imported: Imported
    found: Equations
    current: str
    states: tuple[str, ...]
    still: tuple[str, ...] = ()


def read_myokit_model(
    path: Path,
    source: str,
    current: str | None,
    fit: Collection[str] = (),
    hold: Collection[str] = (),
) -> MyokitModel:
    """Translate a .mmt or .cellml file.

    Arguments:
        path: the file.
        source: a sentence that says which file it is.
        current: the variable that is the channel's current.
        fit: the parameters to be searched.
        hold: states to be held at their initial values beside those that are no gates.

    Raises InputError: what cannot be translated, with the variable's name.
    """
    try:
        return translated(read_myokit(path), path, source, current, fit, hold)
    except InputError as error:
        raise error.at(path) from None
    except RecursionError:
        raise InputError("expressions are nested too deeply", path) from None


def translated(
    plain: dict[str, Any],
    path: Path,
    source: str,
    current: str | None,
    fit: Collection[str] = (),
    hold: Collection[str] = (),
) -> MyokitModel:
    """Translate a current of a model that `read_myokit` has read, as `read_myokit_model` does."""
    found = equations(plain, current, hold)
    made = imported(found, str(plain["name"]), source, fit)
    short = {key.rpartition(".")[2]: key for key in plain["variables"]}
    short |= {key.replace(".", "_"): key for key in plain["variables"]}
    (chosen,) = found.currents
    states = tuple(short[state] for state in found.states)
    still = tuple(short[state] for state in found.still)
    return MyokitModel(path, made, found, short[chosen], states, still)


def prove_myokit(model: MyokitModel, simulate: Simulate) -> Proof:
    """Evaluate the original by Myokit and the model here, and compare their currents.

    Raises InputError: Myokit cannot evaluate it, or its states do not follow linear equations.
    """
    protocols = [*step_families(), ramp(jumps(model.found))]
    runs, notes = _runs(model, protocols, simulate)
    if not runs[-1][1] <= TOLERANCE:
        # Our own steps through a ramp have an error, which shorter ones show to be theirs.
        finer, _ = _runs(model, [ramp(jumps(model.found), 0.025)], simulate)
        notes.append(f"{runs[-1][0]}: error {runs[-1][1]:.1e}, of our own steps if finer ones help")
        runs = [*runs[:-1], *finer]
    error = max(error for _, error in runs)
    return Proof(error, tuple(runs), notes=tuple(notes), truth=_TRUTH)


def _runs(
    model: MyokitModel, protocols: list[Protocol], simulate: Simulate
) -> tuple[list[tuple[str, float]], list[str]]:
    """Return the runs and their errors, and notes on the file."""
    theirs = _theirs(model, protocols)
    runs, notes = [], []
    for k, protocol in enumerate(protocols):
        ours = simulate(model.imported.model, protocol)
        error = apart(ours, theirs[str(k)] * model.found.per_pA)
        runs.append((f"{protocol.name}, the file's values", error))
    if theirs["singular"].size:
        where = ", ".join(f"{v:g}" for v in theirs["singular"])
        notes.append(f"the file itself is 0/0 at {where} mV, where its limit was taken")
    return runs, notes


def ramp(jumps_mV: Collection[float] = (), sampling_ms: float = 0.5) -> Protocol:
    """Return a ramp up from -120 to +60 mV in 0.36 s, down in half the time, and back to -80 mV.

    No sample is at a round voltage, where a file may have a value of its own.

    Arguments:
        jumps_mV: where rates jump: a piece so short that it does not matter goes across each,
            since a step across a jump is not exact.
        sampling_ms: between two samples.
    """
    low, high = -120 + _BESIDE, 60 + _BESIDE
    at = [v for v in jumps_mV if low + 0.01 < v < high - 0.01]
    inner = sorted({v + beside for v in at for beside in (-_ACROSS, _ACROSS)})
    corners = [low, *inner, high, *reversed(inner), low]
    segments = [Segment(0.0, 1.0, Constant(-80.0))]
    for before, after in pairwise(corners):
        start = segments[-1].end_ms
        end = start + (2.0 if after > before else 1.0) * abs(after - before)
        segments.append(Segment(start, end, Ramp(before, after)))
    end = segments[-1].end_ms
    segments.append(Segment(end, end + 10.0, Constant(-80.0)))
    name = f"ramps over 0.54 s, sampled every {sampling_ms:g} ms"
    return Protocol(name, -80.0, sampling_ms, (tuple(segments),))


def _theirs(model: MyokitModel, protocols: Collection[Protocol]) -> dict[str, Array]:
    """Return the currents of protocols in the unit of the file, by number; and `singular`, mV."""
    job = {
        "path": str(model.path.absolute()),
        "current": model.current,
        "states": list(model.states),
        "still": list(model.still),
        "protocols": [plain_protocol(protocol) for protocol in protocols],
    }
    with tempfile.TemporaryDirectory() as folder:
        found = computed_in_process(_CLAMPED, job, "a model", Path(folder))
    return {key: np.asarray(value, dtype=float) for key, value in found.items()}
