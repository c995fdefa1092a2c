"""Files of Neurodata Without Borders: voltage-clamp currents, their commands and the amplifier.

NWB is HDF5 with fixed names, so h5py reads it: PyNWB would first build classes from the
specifications inside the file, which takes seconds and trusts the file; it writes the files of the
tests. Links to other files are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats.contents import (
    Contents,
    Signal,
    kind_and_factor,
    packed,
    read_contents,
    stacked,
)
from channelfit.reading.formats.hdf5 import as_text, member, numbers, opened, unusable
from channelfit.reading.units import parse_quantity

_RESPONSE, _STIMULUS = "VoltageClampSeries", "VoltageClampStimulusSeries"
#: By key of `Contents.clamp`: the dataset in a series, and the factor from the unit that NWB
#: prescribes for it (F, Ohm, percent) to that of the key.
_CLAMP = {
    "pipette_capacitance_pF": ("capacitance_fast", 1e12),
    "membrane_capacitance_pF": ("whole_cell_capacitance_comp", 1e12),
    "series_resistance_MOhm": ("whole_cell_series_resistance_comp", 1e-6),
    "compensation": ("resistance_comp_correction", 1e-2),
    "prediction": ("resistance_comp_prediction", 1e-2),
}
_TABLE = "general/intracellular_ephys/intracellular_recordings"
#: The share of the sampling interval by which a time stamp may differ from even spacing.
_EVEN = 1e-2


@dataclass
class _Series:
    """One sweep of a file, of a current or of a command.

    Attributes:
        values: (n_samples,) in base units.
        unit: as the file writes it.
        factor: from a stored number to the base unit.
        start_s: when the sweep began, in the time of the recording.
        sweep: the sweep's number; None where the file has none.
        electrode: the name of the electrode that recorded it.
        clamp: settings of the amplifier, by key of `Contents.clamp`.
    """

    name: str
    values: np.ndarray
    unit: str
    factor: float
    rate_Hz: float
    start_s: float
    sweep: int | None
    electrode: str
    clamp: dict[str, float] = field(default_factory=dict)


def read(path: Path) -> Contents:
    """Return the voltage-clamp sweeps of an NWB file, with their commands where it has them.

    Raises InputError: damaged, without voltage-clamp series, with links to other files, or no h5py.
    """
    return read_contents(f"{__name__}:packed_contents", path, "an NWB file")


def packed_contents(path: Path) -> dict[str, np.ndarray | str]:
    """Return the contents of an NWB file, packed for another process (`second_process`)."""
    with opened(path, "an NWB file") as file:
        if not as_text(file.attrs.get("nwb_version", "")):
            raise InputError("an HDF5 file without an NWB version; is it NWB 2?", path)
        return packed(_contents(file, path))


def _contents(file: Any, path: Path) -> Contents:
    """Return the contents of an open file: the sweeps of each electrode with their commands.

    Start times, labels and the amplifier are those of the first electrode.
    """
    responses, others = _all_series(file, "acquisition", _RESPONSE)
    if not responses:
        there = f"; there are: {', '.join(sorted(others)[:6])}" if others else ""
        raise InputError(f"no {_RESPONSE} among its acquisitions{there}", path)
    stimuli, _ = _all_series(file, "stimulus/presentation", _STIMULUS)
    notes: list[str] = []
    responses, left_out = _of_one_rate(responses)
    if left_out:
        notes.append(f"Left out, since sampled at another rate: {', '.join(left_out)}.")
    responses.sort(key=lambda s: (s.start_s, -1 if s.sweep is None else s.sweep, _natural(s.name)))
    by_electrode: dict[str, list[_Series]] = {}
    for series in responses:
        by_electrode.setdefault(series.electrode, []).append(series)
    n_sweeps = max(map(len, by_electrode.values()))
    n_samples = max(len(series.values) for series in responses)
    commands = _commands(file, responses, stimuli, notes)
    signals = list[Signal]()
    for electrode, sweeps in by_electrode.items():
        suffix = f" {electrode}" if len(by_electrode) > 1 else ""
        signals.append(_signal(f"current{suffix}", "current", sweeps, n_sweeps, n_samples))
        matched = [commands.get(series.name) for series in sweeps]
        if any(matched):
            signals.append(_signal(f"command{suffix}", "voltage", matched, n_sweeps, n_samples))
        if len(sweeps) < n_sweeps:
            notes.append(f"{electrode} has {len(sweeps)} of {n_sweeps} sweeps.")
    first = next(iter(by_electrode.values()))
    clamp = {key: _one_or_all([s.clamp.get(key, math.nan) for s in first]) for key in _CLAMP}
    clamp |= _seal_and_filter(file, first[0].electrode, notes)
    return Contents(
        path,
        "NWB",
        sampling_ms=1e3 / responses[0].rate_Hz,
        signals=tuple(signals),
        start_ms=np.array([s.start_s for s in first]) * 1e3 if len(first) == n_sweeps else None,
        clamp={key: value for key, value in clamp.items() if np.all(np.isfinite(value))},
        labels=tuple(s.name for s in first) if len(first) == n_sweeps else (),
        notes=tuple(dict.fromkeys(notes)),
    )


def _all_series(file: Any, group: str, neurodata_type: str) -> tuple[list[_Series], set[str]]:
    """Return the series of one type in a group, and the types of its other members."""
    found, others, total = list[_Series](), set[str](), 0
    parent = _at(file, group)
    for name in parent if parent is not None else ():
        child = member(parent, name)
        kind = as_text(child.attrs.get("neurodata_type", "")) if child is not None else ""
        if kind != neurodata_type:
            others |= {kind} - {""}
            continue
        data = member(child, "data")
        if data is None or unusable(data) or len(data.shape) != 1 or not data.size:
            why = unusable(data) if data is not None else "has no data"
            raise InputError(why or "is not one row of samples", None, f"{group}/{name}")
        total += data.size
        found.append(_series(child, name, numbers(data, total), data.attrs))
    return found, others


def _series(group: Any, name: str, stored: np.ndarray, attributes: Any) -> _Series:
    """Return one sweep of a file in base units.

    Arguments:
        stored: (n_samples,) the numbers in the file.
        attributes: of the dataset that holds them: unit, conversion and offset.
    """
    unit = as_text(attributes.get("unit", ""))
    _, factor = kind_and_factor(unit)
    conversion = _number(attributes.get("conversion", 1.0), 1.0)
    offset = _number(attributes.get("offset", 0.0), 0.0)
    rate, start = _clock(group, len(stored), name)
    sweep = group.attrs.get("sweep_number")
    clamp = {}
    for key, (dataset, scale) in _CLAMP.items():
        value = _scalar(group, dataset) * scale
        if math.isfinite(value) and value > 0:  # 0: not compensated, or not known
            clamp[key] = value
    values = (stored * conversion + offset) * factor
    number = int(sweep) if isinstance(sweep, (int, np.integer)) else None
    # "electrode" is a link; the name of the electrode ends the path of its target
    electrode = str(getattr(group.get("electrode", getlink=True), "path", "")).rsplit("/", 1)[-1]
    return _Series(name, values, unit, conversion * factor, rate, start, number, electrode, clamp)


def _clock(group: Any, n: int, name: str) -> tuple[float, float]:
    """Return the rate, Hz, and the start, s, of a series, from its timestamps if need be."""
    start = member(group, "starting_time")
    if start is not None:
        rate = _number(start.attrs.get("rate"), math.nan)
        if not 0 < rate < math.inf:
            raise InputError(f"a rate of {rate:g} Hz", None, name)
        return rate, _number(start[()], 0.0)
    stamps = member(group, "timestamps")
    if stamps is None or unusable(stamps) or stamps.shape != (n,) or n < 2:
        raise InputError("has neither a rate nor a time for each sample", None, name)
    times = numbers(stamps, n)
    step = float(times[-1] - times[0]) / (n - 1)
    even = times[0] + step * np.arange(n)
    if not step > 0 or not np.all(np.abs(times - even) <= _EVEN * step):
        raise InputError("its timestamps are not evenly spaced", None, name)
    step = float(f"{step:.9g}")  # without the rounding of the time stamps
    return 1 / step, float(times[0])


def _of_one_rate(series: list[_Series]) -> tuple[list[_Series], list[str]]:
    """Return the series of the rate that most have, and the names of the others."""
    rates = [s.rate_Hz for s in series]
    usual = max(dict.fromkeys(rates), key=rates.count)
    return [s for s in series if s.rate_Hz == usual], [s.name for s in series if s.rate_Hz != usual]


def _commands(
    file: Any, responses: Sequence[_Series], stimuli: Sequence[_Series], notes: list[str]
) -> dict[str, _Series]:
    """Return the command of each response by name: by table, by sweep number, or in order."""
    by_name = {s.name: s for s in stimuli}
    pairs = _table_pairs(file)
    found = {
        response: by_name[stimulus] for response, stimulus in pairs.items() if stimulus in by_name
    }
    if not found:
        by_sweep = {(s.electrode, s.sweep): s for s in stimuli if s.sweep is not None}
        keys = {s.name: (s.electrode, s.sweep) for s in responses}
        found = {name: by_sweep[key] for name, key in keys.items() if key in by_sweep}
    if not found and stimuli and len(stimuli) == len(responses):
        ordered = sorted(stimuli, key=lambda s: (s.start_s, _natural(s.name)))
        found = {r.name: s for r, s in zip(responses, ordered, strict=True)}
        notes.append("Nothing says which command belongs to which sweep; both were put in order.")
    rate = responses[0].rate_Hz
    wrong = [s.name for s in found.values() if s.rate_Hz != rate]
    if wrong:
        notes.append(f"Commands at another rate than the current, left out: {', '.join(wrong)}.")
    return {name: s for name, s in found.items() if s.rate_Hz == rate}


def _table_pairs(file: Any) -> dict[str, str]:
    """Return names of stimuli by those of responses, from the table of intracellular recordings."""
    columns = []
    for table, column in (("responses", "response"), ("stimuli", "stimulus")):
        dataset = _at(file, f"{_TABLE}/{table}/{column}")
        if (
            dataset is None
            or dataset.dtype.names is None
            or "timeseries" not in dataset.dtype.names
        ):
            return {}
        columns.append([file[row["timeseries"]].name.rsplit("/", 1)[-1] for row in dataset[()]])
    return dict(zip(*columns, strict=False))


def _signal(
    name: str, kind: str, sweeps: Sequence[_Series | None], n_sweeps: int, n_samples: int
) -> Signal:
    """Return sweeps as one signal; NaN where one has no samples."""
    known = next(s for s in sweeps if s is not None)
    rows = [np.full(n_samples, np.nan) if s is None else s.values[:n_samples] for s in sweeps]
    values = np.full((n_sweeps, n_samples), np.nan)
    filled = stacked(rows)
    values[: len(rows), : filled.shape[1]] = filled
    found, _ = kind_and_factor(known.unit)
    if found != kind:
        raise InputError(f"in {shown(known.unit)}, which is no {kind}", None, known.name)
    return Signal(name, known.unit, kind, values, known.factor)


#: A frequency in a text such as "Bessel, 4 poles, 10 kHz".
_FREQUENCY = re.compile(r"(\d+\.?\d*)\s*(k?Hz)\b", re.IGNORECASE)


def _seal_and_filter(file: Any, name: str, notes: list[str]) -> dict[str, float]:
    """Return the seal, MOhm, and the cutoff of the filter, kHz, that the electrode's texts say."""
    group = _at(file, f"general/intracellular_ephys/{name}")
    found = {}
    if text := _words(group, "seal"):
        try:
            found["seal_resistance_MOhm"] = parse_quantity(text, "resistance")
        except InputError:
            notes.append(f"Of the seal the file says {shown(text)}.")
    if text := _words(group, "filtering"):
        cutoffs = [
            float(value) * (1.0 if unit.lower() == "khz" else 1e-3)
            for value, unit in _FREQUENCY.findall(text)
        ]
        if len(cutoffs) == 1 and cutoffs[0] > 0:
            found["lowpass_kHz"] = cutoffs[0]
        else:  # none, or those of several filters
            notes.append(f"Of the filter the file says {shown(text)}.")
    return found


def _words(group: Any, name: str) -> str:
    """Return a text in a group; empty where there is none."""
    found = member(group, name) if group is not None else None
    return as_text(found[()]) if found is not None and found.shape == () else ""


def _one_or_all(values: list[float]) -> np.ndarray | float:
    """Return the value that all sweeps have, or the values (n_sweeps,) where they differ."""
    return values[0] if len(set(values)) == 1 else np.array(values)


def _at(file: Any, path: str) -> Any:
    """Return the object at a path; None where there is none."""
    found = file
    for name in path.split("/"):
        found = member(found, name) if found is not None and hasattr(found, "keys") else None
    return found


def _number(value: Any, default: float) -> float:
    """Return a number from a file; the default for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def _scalar(group: Any, name: str) -> float:
    """Return the single number of a dataset; NaN where there is none."""
    dataset = member(group, name)
    return (
        _number(dataset[()], math.nan) if dataset is not None and dataset.shape == () else math.nan
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts sweep_2 before sweep_10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name) if p]
