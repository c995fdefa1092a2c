"""Delimited text as a recording: columns of one quantity are its sweeps, or a list of steps.

The protocol of a SyncroPatch export is looked for beside it (`syncropatch`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.formats import syncropatch
from channelfit.reading.formats.contents import Contents, Epoch, Signal, distinct, signal
from channelfit.reading.formats.headings import Heading, read_heading, sampling_of
from channelfit.reading.tables import Columns, is_number, read_columns
from channelfit.reading.units import unit_factor

_LEVELS = re.compile(r"(level|voltage|v|potential)\b.*|level_.*|voltage_.*", re.IGNORECASE)
_LENGTHS = re.compile(r"(length|duration|dauer)\b.*|(length|duration)_.*", re.IGNORECASE)
_STARTS = re.compile(r"(start|begin|onset)\b.*|(start|begin|onset)_.*", re.IGNORECASE)
#: ms by which rounding may part the end of a step from the start of the next one.
_GAP_MS = 1e-3
#: More steps than this are samples.
_MAX_STEPS = 10_000
_BYTES_OF_HEAD = 2000
#: A row of numbers that are so many, evenly stepped by 1 mV or more, heads a family of sweeps.
_LEAST_FAMILY, _MAX_MV = 3, 1000.0


def read(
    path: Path,
    header: bool | None = None,
    decimal: str | None = None,
    protocol: Path | None = None,
) -> Contents:
    """Return the sweeps in the columns of a table, or the steps in its rows.

    Arguments:
        header: whether the first row names the columns; found out without it.
        decimal: "comma" or "point"; found out without it where that is certain.
        protocol: the .eph or .json file of a SyncroPatch that ran; looked for beside the table
            without it.

    Raises InputError: whatever `tables.read_columns` refuses, or a protocol that does not fit.
    """
    table = read_columns(path, header, decimal)
    headed = header is None and _headed_by_voltages(table)
    if headed:
        table = read_columns(path, True, decimal)
    columns = {name: values for name, values in table.items() if values.ndim == 1}
    steps, notes = _steps(path, columns)
    if steps:
        return Contents(path, "step list", math.nan, (), epochs=(steps,), notes=notes)
    contents = _with_metadata(_recording(path, columns))
    if headed:
        note = "The first row was taken for the voltages of the sweeps, since it is evenly stepped."
        contents = replace(contents, notes=(*contents.notes, note))
    return syncropatch.with_protocol(contents, protocol)


#: Headings of a table beside a recording, ``NAME_meta.csv``, and the properties of the clamp there.
_METADATA = (
    (r"(membrane_?)?(cap|capacitance|cm)", "membrane_capacitance", "pF", "capacitance"),
    (r"(rs|rseries|series_?resistance|ra)", "series_resistance", "MOhm", "resistance"),
    (r"(rseal|seal_?resistance|seal)", "seal_resistance", "MOhm", "resistance"),
)


def _with_metadata(contents: Contents) -> Contents:
    """Return the contents with the cell and amplifier of ``NAME_meta.csv`` beside ``NAME.csv``.

    A row of it is a sweep where there are as many; else the median of its rows counts.
    """
    path = contents.file
    beside = path.with_name(f"{path.name.split('.')[0]}_meta.csv")
    if path.suffix.lower() == ".eph" or beside == path or not beside.is_file():
        return contents
    found = dict(contents.clamp)
    for column, values in read_columns(beside).items():
        for pattern, key, base, dimension in _METADATA:
            heading = re.fullmatch(rf"{pattern}[ _(\[]+(?P<unit>\w+)[)\]]?", column, re.IGNORECASE)
            if heading is None or not np.all(np.isfinite(values) & (values > 0)):
                continue
            try:
                factor = unit_factor(_spelled(heading["unit"]), dimension)[0]
            except InputError:
                continue
            own = values * factor
            alike = len(own) == contents.n_sweeps and np.ptp(own) > 0
            found[f"{key}_{base}"] = own if alike else float(np.median(own))
    if found == dict(contents.clamp):
        return contents
    note = f"Resistances and capacitance are from {beside.name}."
    return replace(contents, clamp=found, notes=(*contents.notes, note))


def _spelled(unit: str) -> str:
    """Return a unit in the spelling of `units`, whatever the case of its letters."""
    known = {"mohm": "MOhm", "gohm": "GOhm", "kohm": "kOhm", "ohm": "Ohm", "pf": "pF", "nf": "nF"}
    return known.get(unit.lower(), unit)


def _recording(path: Path, columns: dict[str, np.ndarray]) -> Contents:
    headings = {name: read_heading(name) for name in columns}
    notes, sampling = list[str](), math.nan
    clock = next((name for name, h in headings.items() if h.kind == "time"), None)
    if clock is not None and len(columns) > 1 and len(columns[clock]) > 1:
        sampling, remarks = sampling_of(columns[clock], headings[clock].unit)
        notes += remarks
        if math.isfinite(sampling):
            del columns[clock], headings[clock]
    groups: dict[tuple[str, str, str], list[str]] = {}
    numeric = all(map(is_number, columns))
    for name, heading in headings.items():
        stem = "" if numeric else heading.stem
        groups.setdefault((heading.kind, heading.unit, stem), []).append(name)
    n_sweeps = max(map(len, groups.values()))
    if any(len(names) not in (1, n_sweeps) for names in groups.values()):
        groups = {(h.kind, h.unit, name): [name] for name, h in headings.items()}
        n_sweeps = 1
    names = distinct([_called(key, members) for key, members in groups.items()])
    signals = list[Signal]()
    for name, ((kind, unit, _), members) in zip(names, groups.items(), strict=True):
        values = np.array([columns[member] for member in members])
        values = np.broadcast_to(values, (n_sweeps, values.shape[1]))
        signals.append(signal(name, unit, values, kind=kind))
    labels = next((tuple(m) for m in groups.values() if len(m) == n_sweeps > 1), ())
    kind = "text, gzip" if path.suffix.lower() == ".gz" else "text"
    return Contents(path, kind, sampling, tuple(signals), labels=labels, notes=tuple(notes))


def _called(key: tuple[str, str, str], members: Sequence[str]) -> str:
    """Return the name of a signal: its column's, or the common part of its columns' names."""
    return read_heading(members[0]).name if len(members) == 1 else key[2] or "columns"


def _headed_by_voltages(table: Columns) -> bool:
    """Return whether a first row of numbers holds the voltages of a family."""
    if len(table.first) < _LEAST_FAMILY:
        return False
    row = np.array([float(cell) if is_number(cell) else math.nan for cell in table.first])
    steps = np.diff(row)
    same = np.all(np.abs(steps - steps[0]) < 1e-9 * abs(steps[0]))
    return bool(same and abs(steps[0]) >= 1 and np.abs(row).max() <= _MAX_MV)


# --- lists of steps -------------------------------------------------------------------------------


def _steps(path: Path, columns: dict[str, np.ndarray]) -> tuple[tuple[Epoch, ...], tuple[str, ...]]:
    """Return the steps and notes of a list of voltages and durations; none for other tables."""
    headings = {name: read_heading(name) for name in columns}
    if len(columns) == 2 and list(columns) == ["1", "2"]:
        headings = dict(zip(columns, _commented(path), strict=False))
    level = next((n for n, h in headings.items() if _LEVELS.fullmatch(h.name)), None)
    length = next((n for n, h in headings.items() if _LENGTHS.fullmatch(h.name)), None)
    start = next((n for n, h in headings.items() if _STARTS.fullmatch(h.name)), None)
    if level is None or length is None or len(columns[level]) > _MAX_STEPS:
        return (), ()
    try:
        to_mV = unit_factor(headings[level].unit or "mV", "voltage")[0]
        to_ms = unit_factor(headings[length].unit or "ms", "time")[0]
        from_start = unit_factor((headings[start].unit if start else "") or "ms", "time")[0]
    except InputError:
        return (), ()
    levels, lengths = columns[level] * to_mV, columns[length] * to_ms
    if not np.all(np.isfinite(levels) & np.isfinite(lengths) & (lengths >= 0)):
        return (), ()
    notes: tuple[str, ...] = ()
    if start is not None:
        lengths, notes = _until_next(columns[start] * from_start, lengths, path)
    pairs = zip(levels.tolist(), lengths.tolist(), strict=True)
    return tuple(Epoch("step", v, v, duration) for v, duration in pairs if duration > 0), notes


def _until_next(
    starts: np.ndarray, lengths: np.ndarray, path: Path
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return how long each step lasts, ms, in a list of their starts, and a note on overlaps.

    Raises InputError: a step that starts later than the one before it ends, or before it starts.
    """
    until, lasts = np.diff(starts), lengths[:-1]
    late = np.flatnonzero(~((until >= 0) & (until <= lasts + _GAP_MS)))
    if late.size:
        k = int(late[0])
        raise InputError(
            f"step {k + 2} starts at {starts[k + 1]:g} ms, but the one before it ends at "
            f"{starts[k] + lasts[k]:g} ms; correct one of them",
            path,
        )
    short = np.flatnonzero(until < lasts - _GAP_MS)
    notes = tuple(
        f"Step {k + 1} would last {lasts[k]:g} ms, but the next one starts after {until[k]:g} ms, "
        "which ends it."
        for k in short[:1]
    )
    return np.append(np.where(until < lasts - _GAP_MS, until, lasts), lengths[-1]), notes


def _commented(path: Path) -> list[Heading]:
    """Return the headings in a comment above the columns: ``# Voltage (mV) Duration (ms)``."""
    if path.suffix.lower() == ".gz":
        return []
    with open(path, "rb") as file:
        head = file.read(_BYTES_OF_HEAD).decode("utf-8", "replace").splitlines()
    comments = [line.lstrip("# \t") for line in head if line.startswith("#")]
    found = re.findall(r"(\w[\w ]*?)\s*[(\[]\s*(\w+)\s*[)\]]", comments[-1]) if comments else []
    return [read_heading(f"{name} ({unit})") for name, unit in found]
