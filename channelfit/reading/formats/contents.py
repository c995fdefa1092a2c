"""The contents of a recording file: signals in base units, nominal protocol, amplifier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.second_process import read_in_process
from channelfit.reading.units import unit_factor


@dataclass(frozen=True)
class Signal:
    """One quantity that was recorded or commanded, in all sweeps of a file.

    Attributes:
        name: as the file calls it, such as ``IN 0``.
        unit: as the file says, such as ``nA``; empty where it says none.
        kind: "current", "voltage" or "other"; by its name where the file says no unit.
        values: (n_sweeps, n_samples), in pA for a current and in mV for a voltage whose unit is
            known, else as stored. NaN where a sweep has ended or is not recorded.
        factor: what the stored unit was multiplied by to become pA or mV; 1 for other kinds.
    """

    name: str
    unit: str
    kind: str
    values: np.ndarray
    factor: float = 1.0


@dataclass(frozen=True)
class Epoch:
    """One piece of a nominal protocol in one sweep.

    Attributes:
        kind: "step", "ramp" or "other" (a train or a shape that the two voltages do not describe).
        start_mV: the voltage at its start.
        end_mV: the voltage that it reaches; that of its start for a step.
        duration_ms: how long it lasts.
    """

    kind: str
    start_mV: float
    end_mV: float
    duration_ms: float


@dataclass(frozen=True)
class Contents:
    """The contents of a recording file, converted once to base units.

    Attributes:
        file: where it was read.
        format: in words, such as ``ABF 2``.
        sampling_ms: from one sample to the next; NaN where the file does not say.
        signals: what was recorded and commanded; all have the same number of sweeps and samples.
        start_ms: (n_sweeps,) when each sweep began, in the time of the recording; None where the
            file does not say.
        epochs: for each sweep the pieces of its nominal protocol; empty where it is not known.
        holding_mV: the voltage between sweeps; None where the file does not say.
        clamp: what the file says of the amplifier and the cell, one number or one for each sweep:
            ``membrane_capacitance_pF``, ``pipette_capacitance_pF``, ``series_resistance_MOhm``,
            ``seal_resistance_MOhm``, ``compensation`` (0 to 1), ``prediction`` (0 to 1),
            ``temperature_C``, ``junction_potential_mV``, ``lowpass_kHz`` (of the current).
        labels: what the file calls each sweep, such as the voltage that heads its column; empty
            where sweeps have no names.
        notes: remarks for the user, in sentences.
    """

    file: Path
    format: str
    sampling_ms: float
    signals: tuple[Signal, ...]
    start_ms: np.ndarray | None = None
    epochs: tuple[tuple[Epoch, ...], ...] = ()
    holding_mV: float | None = None
    clamp: Mapping[str, np.ndarray | float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def n_sweeps(self) -> int:
        """The number of sweeps."""
        return len(self.signals[0].values) if self.signals else len(self.epochs)

    @property
    def n_samples(self) -> int:
        """The number of samples in the longest sweep."""
        return self.signals[0].values.shape[1] if self.signals else 0


# --- how readers make them ------------------------------------------------------------------------

#: The command that installs these packages, for messages.
INSTALL = 'python -m pip install "channelfit[rig]"'
#: Names of units in full, as NWB writes them, and in the spelling of `units`.
_IN_FULL = {"amperes": "A", "ampere": "A", "amps": "A", "volts": "V", "volt": "V"}
_KINDS = ("current", "voltage")
#: The tolerance, mV, of a recorded command about the nominal one, and the share of samples in it.
_NEAR_MV, _SHARE = 2.0, 0.95


def missing(package: str, formats: str) -> InputError:
    """Return the error of a file whose optional package is not installed."""
    return InputError(f"{formats} needs the package {package}: {INSTALL}")


def signal(name: str, unit: str, values: np.ndarray, kind: str = "other") -> Signal:
    """Return a signal in base units.

    Arguments:
        name, unit: as the file says.
        values: (n_sweeps, n_samples) as stored.
        kind: where the file names no unit: "current" or "voltage" if its name says so. The values
            then stay as they are stored.
    """
    found, factor = kind_and_factor(unit)
    if unit or kind not in _KINDS:
        kind = found
    if factor != 1.0:
        with np.errstate(over="ignore"):  # infinite values are refused later
            values = values * factor
    return Signal(name, unit, kind, np.asarray(values, dtype=float), factor)


def kind_and_factor(unit: str) -> tuple[str, float]:
    """Return "current", "voltage" or "other" for a unit, and its factor to pA or mV."""
    for kind in _KINDS:
        try:
            return kind, unit_factor(_IN_FULL.get(unit.strip().lower(), unit), kind)[0]
        except InputError:  # another quantity, or none that is known
            continue
    return "other", 1.0


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of signals, each once: a second ``Im`` becomes ``Im 2``, no name ``2``."""
    found = list[str]()
    for place, name in enumerate(names, 1):
        base = name or str(place)
        number, unique = 2, base
        while unique in found:
            unique, number = f"{base} {number}", number + 1
        found.append(unique)
    return found


def stacked(sweeps: Sequence[np.ndarray]) -> np.ndarray:
    """Return sweeps (n,) of any lengths as (n_sweeps, n_samples), filled up with NaN."""
    values = np.full((len(sweeps), max(map(len, sweeps))), np.nan)
    for row, sweep in zip(values, sweeps, strict=True):
        row[: len(sweep)] = sweep
    return values


def agree(epochs: Sequence[Sequence[Epoch]], recorded: np.ndarray, sampling_ms: float) -> bool:
    """Return whether recorded commands (n_sweeps, n_samples) mV are the nominal ones with noise."""
    near = list[np.ndarray]()
    for sweep, row in zip(epochs, recorded, strict=True):
        start = 0
        for epoch in sweep:
            end = start + round(epoch.duration_ms / sampling_ms)
            if epoch.kind != "other":
                nominal = np.linspace(epoch.start_mV, epoch.end_mV, end - start)
                near.append(np.abs(row[start:end] - nominal) < _NEAR_MV)
            start = end
    return not near or float(np.concatenate(near).mean()) >= _SHARE


# --- transfer from the second process -------------------------------------------------------------


def packed(contents: Contents) -> dict[str, np.ndarray | str]:
    """Return contents as arrays and one text of JSON, which `reading.second_process` can send."""
    found: dict[str, np.ndarray | str] = {
        f"values {k}": signal.values for k, signal in enumerate(contents.signals)
    }
    if contents.start_ms is not None:
        found["start"] = contents.start_ms
    header = {
        "format": contents.format,
        "sampling_ms": contents.sampling_ms,
        "signals": [[s.name, s.unit, s.kind, s.factor] for s in contents.signals],
        "epochs": [
            [[e.kind, e.start_mV, e.end_mV, e.duration_ms] for e in sweep]
            for sweep in contents.epochs
        ],
        "holding_mV": contents.holding_mV,
        "clamp": {key: np.asarray(value).tolist() for key, value in contents.clamp.items()},
        "labels": contents.labels,
        "notes": contents.notes,
    }
    return {**found, "header": json.dumps(header)}


def read_contents(reader: str, path: Path, format_name: str) -> Contents:
    """Return contents that a function ``module:function`` packs in the second process.

    Raises InputError: what that function raised, or that the process died or took too long.
    """
    found = read_in_process(reader, path, format_name)
    header = json.loads(str(found.pop("header")))
    arrays = {key: value for key, value in found.items() if isinstance(value, np.ndarray)}
    rows = enumerate(header["signals"])
    clamp = {
        key: np.array(value, dtype=float) if isinstance(value, list) else value
        for key, value in header["clamp"].items()
    }
    return Contents(
        path,
        header["format"],
        header["sampling_ms"],
        tuple(Signal(n, unit, kind, arrays[f"values {k}"], f) for k, (n, unit, kind, f) in rows),
        arrays.get("start"),
        tuple(tuple(Epoch(*epoch) for epoch in sweep) for sweep in header["epochs"]),
        header["holding_mV"],
        clamp,
        tuple(header["labels"]),
        tuple(header["notes"]),
    )
