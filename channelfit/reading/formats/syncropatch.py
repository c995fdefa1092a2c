"""Nanion's SyncroPatch: the protocol and the quality measures beside a table of currents.

DataControl writes protocols as ``.eph`` (text) and, with the measures of every well, as ``.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.documents import read_json, read_text
from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats.contents import Contents, Epoch
from channelfit.reading.texts import file_size

_SUFFIXES = (".eph", ".json")
_FIRST_LINE = "Ephys Protocol"
_WELL = re.compile(r"(?<![A-Za-z0-9])([A-P])(\d{1,2})(?![A-Za-z0-9])")
#: The largest number of protocols beside a table that are tried, and their largest size.
_MAX_CANDIDATES, _MAX_BYTES = 50, 50_000_000
_MAX_NUMBER = 1e12
_MAX_SWEEPS, _MAX_SEGMENTS, _MAX_MV = 10_000, 100_000, 1000.0
#: Key of `Contents.clamp`: the name of a quality measure, and the factor from SI.
_MEASURES = {
    "seal_resistance_MOhm": ("RSeal", 1e-6),
    "membrane_capacitance_pF": ("Capacitance", 1e12),
    "series_resistance_MOhm": ("Rseries", 1e-6),
}


def read(path: Path) -> Contents:
    """Return a protocol alone: the command and its sampling, without currents.

    Raises:
        InputError: not a protocol of a SyncroPatch, or one with times and voltages that cannot be.
    """
    return _from_eph(path) if path.suffix.lower() == ".eph" else _from_json(path)


def with_protocol(contents: Contents, protocol: Path | None = None) -> Contents:
    """Return a table of currents with the protocol that ran, if there is one.

    Arguments:
        contents: the table.
        protocol: its protocol; without it that which lies beside the table and has as many
            samples, where it is the only one and the table has no times of its own.

    Raises InputError: the protocol that was named does not fit the table.
    """
    if protocol is not None:
        return _joined(contents, read(protocol))
    if math.isfinite(contents.sampling_ms) or not contents.signals:
        return contents
    fitting = list[Contents]()
    beside = (p for p in contents.file.parent.iterdir() if p.suffix.lower() in _SUFFIXES)
    for path in sorted(beside)[:_MAX_CANDIDATES]:
        try:
            if file_size(path) > _MAX_BYTES:
                continue
            candidate = read(path)
        except InputError:  # another program's file
            continue
        if _n_samples(candidate) == contents.n_samples:
            fitting.append(candidate)
    if len(fitting) != 1:
        return contents
    note = f"Its protocol was taken from {fitting[0].file.name}, which has as many samples."
    joined = _joined(contents, fitting[0])
    return replace(joined, notes=(*joined.notes, note))


def measured_in(table: Path, row: str, column: int) -> dict[str, float]:
    """Return the instrument's own measurements of a well, the medians over the sweeps.

    Arguments:
        table: of currents, beside which the instrument's ``.json`` lies.
        row, column: of the well, such as "A" and 1.

    Returns: the measurements of the only such file there, by the keys of `Contents.clamp`.
    """
    known: dict[str, float] = {}
    for key, (name, factor) in _MEASURES.items():
        found = []
        for _, sweeps_of in _measures_in(table.parent):
            values = [v for v in _of_well(sweeps_of.get(name), row, column) if v > 0]
            if values:
                found.append(float(np.median(values)) * factor)
        if len(found) == 1:
            known[key] = found[0]
    return known


def _of_well(sweeps: Any, row: str, column: int) -> list[float]:
    """Return the finite values of a well in all sweeps; none where it was not measured."""
    try:
        values = [float(sweep[column - 1][ord(row) - ord("A")]) for sweep in sweeps]
    except (TypeError, ValueError, IndexError, KeyError):  # not measured in this well
        return []
    return [value for value in values if math.isfinite(value)]


def files_of_measures(table: Path) -> list[Path]:
    """Return the files from which `measured_in` reads."""
    return [path for path, _ in _measures_in(table.parent)]


def _measures_in(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return each .json of a SyncroPatch with its measures, by sweep, column and row."""
    beside = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".json")
    places = [(path, path.stat().st_mtime_ns) for path in beside[:_MAX_CANDIDATES]]
    return [(path, known) for path, at in places if (known := _measures_of(path, at))]


@lru_cache(maxsize=_MAX_CANDIDATES)
def _measures_of(path: Path, changed: int) -> dict[str, Any]:
    """Return the measures in a file by their names; none where it is another program's.

    Arguments:
        changed: when it was written.
    """
    try:
        if file_size(path) > _MAX_BYTES:
            return {}
        document = read_json(path)
    except InputError:
        return {}
    names = [name for name, _ in _MEASURES.values()]
    found = {name: _inside(document, "QCData", name) for name in names}
    return {name: sweeps for name, sweeps in found.items() if isinstance(sweeps, list)}


def _joined(contents: Contents, protocol: Contents) -> Contents:
    expected = _n_samples(protocol)
    if expected != contents.n_samples:
        raise InputError(
            f"{contents.n_samples:,} samples, but the protocol {protocol.file.name} "
            f"has {expected:,}",
            contents.file,
        )
    epochs = protocol.epochs
    n = contents.n_sweeps
    epochs = epochs[:n] if len(epochs) >= n else epochs * n if len(epochs) == 1 else ()
    well = _WELL.search(contents.file.name)
    clamp: Mapping[str, np.ndarray | float] = {}
    if well and protocol.file.suffix.lower() == ".json":
        clamp = _measures(read_json(protocol.file), well[1], int(well[2]), n)
    return replace(
        contents,
        format=f"SyncroPatch ({contents.format}, {protocol.file.suffix[1:]})",
        sampling_ms=protocol.sampling_ms,
        start_ms=protocol.start_ms[:n] if protocol.start_ms is not None else None,
        epochs=epochs,
        holding_mV=protocol.holding_mV,
        clamp={**contents.clamp, **clamp},
        notes=(*contents.notes, *protocol.notes),
    )


def _n_samples(protocol: Contents) -> int:
    """Return how many samples a sweep of a protocol has; 0 where it has no sweep."""
    if not protocol.epochs:
        return 0
    return round(sum(e.duration_ms for e in protocol.epochs[0]) / protocol.sampling_ms)


# --- .eph -----------------------------------------------------------------------------------------


def _from_eph(path: Path) -> Contents:
    lines = read_text(path).splitlines()
    if not lines or _FIRST_LINE not in lines[0]:
        raise InputError(f'not a protocol of a SyncroPatch: no "{_FIRST_LINE}" in line 1', path)
    holding = _setting(lines, "V Membrane [mV]", path)
    sampling = _setting(lines, "Sample Period [us]", path) / 1e3
    n_sweeps = int(_setting(lines, "# of Sweeps", path))
    if not sampling > 0 or not 1 <= n_sweeps <= _MAX_SWEEPS:
        raise InputError(f"{n_sweeps} sweeps sampled every {sampling:g} ms", path)
    begin = next((k for k, line in enumerate(lines) if line.startswith("Type\tVmemb")), None)
    if begin is None:
        raise InputError("no table of segments (Type, Vmemb, Voltage, Duration)", path)
    rows = []
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) < 6:
            break
        rows.append((number, cells))
    notes = list[str]()
    if any(cells[5] == "F" for _, cells in rows):
        notes.append("Parts of the protocol were not recorded; the samples are only of the rest.")
    sweeps = tuple(_eph_sweep(rows, k, holding, path) for k in range(n_sweeps))
    _check_whole(lines, sum(epoch.duration_ms for epoch in sweeps[0]) / sampling, notes, path)
    if all(sweep == sweeps[0] for sweep in sweeps):
        sweeps = sweeps[:1]
    return Contents(
        path, "SyncroPatch protocol", sampling, (), None, sweeps, holding, notes=tuple(notes)
    )


def _check_whole(lines: Sequence[str], samples: float, notes: list[str], path: Path) -> None:
    """Refuse a table of segments with fewer samples than the file says, as one that is cut off."""
    name = "# of Samples"
    stated = _setting(lines, name, path) if any(x.startswith(name) for x in lines) else 1.0
    if round(samples) < (1 if notes else stated):
        raise InputError(
            f"its segments have {round(samples):,} samples, and it says {stated:,.0f}; is the file "
            "cut off?",
            path,
        )


def _setting(lines: Sequence[str], name: str, path: Path) -> float:
    """Return the number behind the name of a setting."""
    text = next((line[len(name) :].strip() for line in lines if line.startswith(name)), None)
    if text is None:
        raise InputError(f'no line "{name}"', path)
    return _finite(text, path, name)


def _finite(text: Any, path: Path, place: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not abs(value) <= _MAX_NUMBER:
        raise InputError(f"{shown(text)} is no number that can be used", path, place)
    return value


def _eph_sweep(
    rows: Sequence[tuple[int, list[str]]], sweep: int, holding: float, path: Path
) -> tuple[Epoch, ...]:
    """Return the recorded segments of a sweep; each sweep adds an increment to the voltages."""
    epochs, before = list[Epoch](), holding
    for number, (kind, membrane, level, duration, increment, recorded, *_) in rows:
        place = f"line {number}"
        if kind not in ("Set", "Ramp"):
            raise InputError(f"a segment {shown(kind)}; only Set and Ramp are known", path, place)
        v = _finite(level, path, place) + sweep * _finite(increment, path, place)
        v = holding if membrane == "T" else v
        length = _finite(duration, path, place)
        _check(v, length, path, place)
        if length > 0 and recorded != "F":
            ramp = kind == "Ramp"
            epochs.append(Epoch("ramp" if ramp else "step", before if ramp else v, v, length))
        before = v
    return tuple(epochs)


def _check(v: float, length: float, path: Path, place: str) -> None:
    if not 0 <= length < math.inf or not abs(v) <= _MAX_MV:
        raise InputError(f"a segment of {v:g} mV for {length:g} ms", path, place)


def eph_text(
    name: str, holding: float, sampling: float, rows: Sequence[tuple[float, float, float]]
) -> str:
    """Return a protocol of one sweep as the text of an ``.eph`` file.

    A ramp begins where the segment before it ended; where it does not, a segment of no length
    jumps there.

    Arguments:
        holding: mV; sampling: ms between samples.
        rows: of each segment the first and the last voltage, mV, and the duration, ms.
    """
    lines, before = [], holding
    for first, last, duration in rows:
        if first != last and first != before:
            lines.append(("Set", first, 0.0))
        lines.append(("Set" if first == last else "Ramp", last, duration))
        before = last
    samples = round(sum(duration for *_, duration in rows) / sampling)
    head = [
        f"{_FIRST_LINE}  {name}",
        "Vers. 1.3",
        "",
        f"V Membrane [mV]  {holding:g}",
        "# of Sweeps  1",
        f"Sample Period [us]  {sampling * 1e3:g}",
        f"# of Samples  {samples}",
        "",
        "Type\tVmemb T/F\tVoltage [mV]\tDuration [ms]\tVincrease [mV]\tRecordData T/F\tGroup\tRep",
    ]
    table = [f"{kind}\tF\t{v:.1f}\t{t:.10g}\t0.0\tT\t-1\t-1" for kind, v, t in lines]
    return "\n".join([*head, *table, "", ""])


# --- .json ----------------------------------------------------------------------------------------


def _from_json(path: Path) -> Contents:
    document = read_json(path)
    segments = _inside(document, "ExperimentConditions", "VoltageProtocol")
    clock = _inside(document, "TraceHeader", "TimeScaling")
    times = clock.get("TR_Time") if isinstance(clock, dict) else None
    if not isinstance(segments, list) or not isinstance(times, list) or len(times) < 2:
        raise InputError("no SyncroPatch's JSON: no voltage protocol, or no times of samples", path)
    if len(segments) > _MAX_SEGMENTS:
        raise InputError(f"more than {_MAX_SEGMENTS:,} segments", path)
    first, last = (_finite(times[k], path, "TR_Time") for k in (0, -1))
    sampling = (last - first) / (len(times) - 1) * 1e3
    if not sampling > 0:
        raise InputError(f"sampled every {sampling:g} ms", path, "TR_Time")
    epochs = list[Epoch]()
    for k, segment in enumerate(segments, 1):
        place = f"VoltageProtocol[{k}]"
        row = segment if isinstance(segment, dict) else {}
        start, end, length = (
            _finite(row.get(key), path, place)
            for key in ("VoltageStart", "VoltageEnd", "Duration ms")
        )
        _check(start, length, path, place)
        _check(end, length, path, place)
        if length > 0:
            epochs.append(Epoch("step" if start == end else "ramp", start, end, length))
    starts = clock.get("SweepTime") if isinstance(clock, dict) else None
    began = None
    if isinstance(starts, list) and starts and isinstance(starts[0], list):
        began = np.array([_finite(t, path, "SweepTime") for t in starts[0]]) * 1e3
    holding = epochs[0].start_mV if epochs else None
    return Contents(path, "SyncroPatch protocol", sampling, (), began, (tuple(epochs),), holding)


def _inside(document: Mapping[str, Any], outer: str, inner: str) -> Any:
    found = document.get(outer)
    return found.get(inner) if isinstance(found, dict) else None


def _measures(
    document: Mapping[str, Any], row: str, column: int, n_sweeps: int
) -> dict[str, np.ndarray | float]:
    """Return the quality measures of a well in each sweep, where there are as many as sweeps."""
    found: dict[str, np.ndarray | float] = {}
    for key, (name, factor) in _MEASURES.items():
        values = _of_well(_inside(document, "QCData", name), row, column)
        if values and len(values) == n_sweeps:
            found[key] = np.array(values) * factor
    return found
