"""`Experiment`: a protocol and what was recorded under it, as a Python user gives it to `fit`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.scope import check_cell
from channelfit.problem import experiment as problem
from channelfit.problem.clamp import read_clamp
from channelfit.problem.protocol import Protocol, with_ligands
from channelfit.problem.recording import Recording, load_recording
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS

#: The file in messages about a call from Python, which has none.
CALL = Path("fit()")


@dataclass(frozen=True, eq=False)
class Experiment:
    """A protocol and the currents that were recorded under it.

    Arguments:
        protocol: a `Protocol`, or a protocol file.
        current: pA, in order of the protocol's samples: an array (n_sweeps, n_times), of a single
            sweep also (n_times,), a column or a frame of pandas (a column a sweep), a `Recording`,
            or a mapping as under ``recording:`` in a fit file.
        time: (n_times,) ms, if known: it is compared with the times of the protocol.
        weights: (n_sweeps, n_times) or (n_times,): how much each sample counts, 0 for not at all;
            its current may then be NaN. By default each counts once.
        cell: the name of the cell that was recorded from, so that parameters with ``per: cell``
            have a value for each.
        temperature: degC or text such as ``"34 degC"``, where it is not the model's.
        clamp: what the amplifier did, a mapping as under ``clamp:`` in a fit file, such as
            ``{"series_resistance": "8 MOhm", "membrane_capacitance": "20 pF"}``; an ideal clamp
            without it. Expressions may use parameters of the model; one that only the clamp uses
            is declared in a model file.
        ligands: concentrations in place of the protocol's, by name, as under ``ligands:`` in a
            protocol file, such as ``{"drug": "30 nM"}``.
        filter: the low-pass filter through which the current was recorded, by which the predicted
            current is filtered as well, such as ``{"poles": 4, "cutoff": "5 kHz"}``.

    Everything is checked by `fit`, together with the model.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model.load("models/model_b.yaml")
        >>> recorded = []
        >>> for name in ("activation", "ramp"):  # in place of recordings
        ...     steps = cf.Protocol.load(f"protocols/{name}.yaml")
        ...     recorded.append(cf.Experiment(steps, cf.simulate(model, steps).current))
        >>> fit = cf.fit(model, recorded, seed=1, progress=False)
        >>> round(fit.values["gmax"], 3), len(fit.traces)
        (5.0, 2)
    """

    protocol: Protocol | str | os.PathLike[str]
    current: Any
    time: Any = None
    weights: Any = None
    cell: str | None = None
    temperature: float | str | None = None
    clamp: Mapping[str, Any] | None = None
    filter: Mapping[str, Any] | None = None
    ligands: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        named = self.protocol.name if isinstance(self.protocol, Protocol) else str(self.protocol)
        given = [f.name for f in fields(self)[2:] if getattr(self, f.name) is not None]
        return f"<Experiment under {named}{''.join(f', with {name}' for name in given)}>"


def listed(experiments: Any) -> list[Experiment]:
    """Return the experiments of a call, of which there may be one or several. Raises InputError."""
    several = experiments if isinstance(experiments, Sequence) else [experiments]
    for one in several:
        if not isinstance(one, Experiment):
            raise InputError(
                "experiments are channelfit.Experiment(protocol, current), one or a list of them, "
                f"not {shown(one)}",
                CALL,
            )
    if not several:
        raise InputError("at least one experiment is needed", CALL)
    return list(several)


def raw_clamp(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment's clamp as in a fit file, with the filter; empty for an ideal one.

    Raises: InputError where two filters are given.
    """
    clamp = dict(experiment.clamp or {})
    if experiment.filter is None:
        return clamp
    if clamp.get("lowpass") is not None:
        raise InputError("the clamp has a lowpass, too; give the filter once", CALL, "filter")
    return clamp | {"lowpass": dict(experiment.filter)}


def celsius(experiment: Experiment) -> float | None:
    """Return the temperature of an experiment, degC; None where it has none of its own."""
    row = _row({"temperature": experiment.temperature}, "")
    found: float | None = row.quantity("temperature")
    return found


def build_experiment(given: Experiment, model: ChannelModel, number: str) -> problem.Experiment:
    """Return an experiment as the problem has it, checked.

    Arguments:
        number: for messages, such as " 2"; empty for an only one.

    Raises InputError: anything that cannot be used, with the argument and what would be right.
    """
    keys: dict[str, Any] = {
        "cell": given.cell,
        "temperature": given.temperature,
        "clamp": raw_clamp(given) or None,
        "ligands": given.ligands,
    }
    row = _row(keys, number)
    if "cell" in row:
        check_cell(row, row.text("cell"), "cell")
    command, recording = _recorded(given, number, row)
    return problem.Experiment(
        command,
        recording,
        cell=row.text("cell"),
        temperature_C=row.quantity("temperature"),
        clamp=read_clamp(row.section("clamp"), model) if "clamp" in row else None,
    )


def _row(keys: Mapping[str, Any], number: str) -> Section:
    row = Section({k: v for k, v in keys.items() if v is not None}, f"{CALL}{number}")
    row.expect(KEYS["experiment"])
    return row


def _recorded(given: Experiment, number: str, row: Section) -> tuple[Protocol, Recording]:
    """Return a protocol and what was recorded under it."""
    protocol, current = given.protocol, given.current
    command = protocol if isinstance(protocol, Protocol) else Protocol.load(protocol)
    command = with_ligands(row, command)
    of_an_array = given.time is not None or given.weights is not None
    if isinstance(current, Recording | Mapping) and of_an_array:
        raise InputError("time and weights belong to arrays; a recording has its own", CALL)
    if isinstance(current, Recording):
        same = current.current_pA.shape == (command.n_sweeps, command.n_times_max)
        if not same or not np.allclose(current.time_ms, command.times_ms, rtol=0, atol=1e-9):
            raise InputError("this Recording was made for another protocol", CALL)
        return (command, current)
    if isinstance(current, str | os.PathLike):
        raise InputError(
            f"the columns of {os.fspath(current)} and their units are not known; give a mapping "
            'such as {"file": ..., "time": {"column": "t", "unit": "s"}, '
            '"current": {"columns": "all", "unit": "nA"}}',
            CALL,
            "current",
        )
    if isinstance(current, Mapping):
        recording = load_recording(Section(current, None, "current"), command)
        if recording.low_pass is not None:
            raise InputError(
                "a recording that is filtered here is thinned as well, which only a fit file can "
                "say; or filter and thin the array, and give the filter to the Experiment",
                CALL,
                "current.condition",
            )
        return (command, recording)
    try:
        recording = Recording.from_arrays(
            command, current, time=given.time, weight=given.weights, source=f"arrays{number}"
        )
    except InputError as error:
        raise InputError(error.message, f"{CALL}{number}", error.key) from None
    return (command, recording)
