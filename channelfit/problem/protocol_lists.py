"""Protocols of other programs, by the keys of a protocol file: Nanion's ``.eph``, lists of steps.

Both are read into the plain data that a protocol file in YAML holds, so that whatever is checked in
such a file is checked here as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.documents import read_text
from channelfit.reading.errors import InputError
from channelfit.reading.tables import Table, read_columns
from channelfit.reading.units import shown, unit_factor

#: What the head of a column of a list of steps says that it holds.
_HEADS = {
    "voltage": re.compile(r"volt|level|potential|command|^v\b|_mv$|\(mv\)", re.IGNORECASE),
    "start": re.compile(r"start|begin|onset|^t\b|^time", re.IGNORECASE),
    "duration": re.compile(r"duration|length|width|^for\b", re.IGNORECASE),
}
_UNIT = re.compile(r"[\[(_ /]\s*(mV|V|uV|ms|s|us)\s*[\])]?\s*$")
#: The head of a column in a line of a comment: words, and a unit in brackets.
_COMMENTED = re.compile(r"[^\s()\[\],;]+(?:\s*[(\[][^)\]]*[)\]])?")
#: ms by which the start of a step may stray from the end of the one before it, as rounding does.
_GAP = 1e-3
_EPH_HEAD = "Nanion SyncroPatch Ephys Protocol"
_EPH_COLUMNS = ("Type", "Vmemb", "Voltage", "Duration", "Vincrease", "RecordData")


# --- Nanion's .eph -------------------------------------------------------------------------------


def eph_document(path: Path) -> dict[str, Any]:
    """The protocol in a ``.eph`` file of Nanion's SyncroPatch, by the keys of a protocol file.

    ``Set`` is a step and ``Ramp`` a ramp from the voltage before it; a row that says T under
    ``Vmemb`` is at the membrane voltage of the general settings, whatever its own voltage says.

    Raises:
        InputError: another file, a row that cannot be used, or one that is not recorded.
    """
    text = read_text(path)
    lines = text.splitlines()
    title = lines[0].strip() if lines else ""
    if not title.startswith(_EPH_HEAD):
        raise InputError(f'its first line is not "{_EPH_HEAD} ..": another format', path)
    settings = dict(_settings(lines))
    holding = _eph_setting(settings, "V Membrane [mV]", path)
    sampling = _eph_setting(settings, "Sample Period [us]", path) / 1000
    n_sweeps = max(1, round(_eph_setting(settings, "# of Sweeps", path)))
    rows, before = list[dict[str, Any]](), holding
    for number, cells in _eph_rows(lines, path):
        row, before = _eph_row(cells, holding, before, n_sweeps, path, number)
        rows.append(row)
    if not rows:
        raise InputError("no rows of segments below `Ephys Settings`", path)
    alike = not any(isinstance(row.get("step"), Mapping) for row in rows)
    sweeps = f"{n_sweeps} sweeps" + (", all alike" if alike and n_sweeps > 1 else "")
    return {
        "name": title.removeprefix(_EPH_HEAD).strip() or path.stem,
        "description": f"{sweeps}, from {path.name}",
        "holding": f"{holding:g} mV",
        "sampling": f"{sampling:g} ms",
        "segments": rows,
    }


def _settings(lines: Sequence[str]) -> list[tuple[str, str]]:
    """The names and values that stand before the rows of segments."""
    pairs = (line.strip().rpartition("  ") for line in lines if "\t" not in line)
    return [(name.strip(), value.strip()) for name, _, value in pairs if name]


def _eph_setting(settings: Mapping[str, str], name: str, path: Path) -> float:
    if name not in settings:
        raise InputError(f'"{name}" is missing among the general settings', path)
    return _finite(settings[name], path, name)


def _finite(text: str, path: Path, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"a number was expected, not {shown(text)}", path, place)
    return value


def _eph_rows(lines: Sequence[str], path: Path) -> list[tuple[int, list[str]]]:
    """The rows of segments, and the line in which each stands."""
    found, inside = list[tuple[int, list[str]]](), False
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) >= len(_EPH_COLUMNS) and cells[0] == "Type" and not inside:
            fits = zip(cells, _EPH_COLUMNS, strict=False)
            if not all(cell.startswith(name) for cell, name in fits):
                raise InputError(
                    f"columns {', '.join(_EPH_COLUMNS)} were expected, in this order",
                    path,
                    f"line {number}",
                )
            inside = True
        elif inside and not line.strip():
            break
        elif inside:
            found.append((number, cells))
    return found


def _eph_row(
    cells: Sequence[str],
    holding: float,
    before: float,
    n_sweeps: int,
    path: Path,
    number: int,
) -> tuple[dict[str, Any], float]:
    """One row of segments by the keys of a protocol file, and the voltage that it ends at."""
    place = f"line {number}"
    if len(cells) < len(_EPH_COLUMNS):
        raise InputError(f"{len(cells)} cells where {len(_EPH_COLUMNS)} were expected", path, place)
    kind, at_rest, level, lasts, by, recorded = cells[: len(_EPH_COLUMNS)]
    if kind not in ("Set", "Ramp"):
        raise InputError(f"{shown(kind)} is not one of Set, Ramp", path, place)
    if recorded != "T":
        raise InputError(
            "a segment that is not recorded (RecordData F) cannot be used: the samples of a sweep "
            "follow each other without a gap",
            path,
            place,
        )
    voltage = holding if at_rest == "T" else _finite(level, path, place)
    increase = _finite(by, path, place)
    time = f"{_finite(lasts, path, place):.9g} ms"
    if kind == "Ramp" and increase:
        raise InputError("a ramp that changes from sweep to sweep cannot be used", path, place)
    if kind == "Ramp":
        return {"ramp": [f"{before:.9g} mV", f"{voltage:.9g} mV"], "for": time}, voltage
    if increase and n_sweeps > 1:
        values = [f"{voltage + k * increase:.9g} mV" for k in range(n_sweeps)]
        return {"step": {"values": values}, "for": time}, voltage
    if voltage == holding:
        return {"hold": time}, voltage
    return {"step": f"{voltage:.9g} mV", "for": time}, voltage


# --- lists of steps ------------------------------------------------------------------------------


def steps_document(
    path: Path, sampling_ms: float, holding_mV: float | None = None
) -> dict[str, Any]:
    """The protocol in a list of steps (CSV or TXT), by the keys of a protocol file.

    Each row is a voltage and a duration, and may say when it starts. The heads of the columns, or
    a comment above them, say which is which and in what unit: mV and ms where nothing is said.

    Arguments:
        sampling_ms: which such a list does not say.
        holding_mV: without it, the voltage of the first step.

    Raises:
        InputError: a table without these columns, or whose steps leave gaps.
    """
    table = read_columns(path)
    columns = _list_columns(table, path)
    voltages = columns["voltage"]
    durations, note = _durations(columns, table, path)
    holding = float(voltages[0]) if holding_mV is None else holding_mV
    rows = [
        {"hold": f"{time:.9g} ms"}
        if voltage == holding
        else {"step": f"{voltage:.9g} mV", "for": f"{time:.9g} ms"}
        for voltage, time in zip(voltages.tolist(), durations.tolist(), strict=True)
    ]
    return {
        "name": path.name.split(".")[0],
        "description": f"from the list of steps in {path.name}{'; ' * bool(note)}{note}",
        "holding": f"{holding:.9g} mV",
        "sampling": f"{sampling_ms:.9g} ms",
        "segments": rows,
    }


def is_step_list(table: Table, path: Path) -> bool:
    """Whether a table of text is a list of steps rather than a recording."""
    try:
        found = _list_columns(table, path)
    except InputError:
        return False
    return len(table) == len(found)


def _list_columns(table: Table, path: Path) -> dict[str, np.ndarray]:
    """The voltages (mV) and durations (ms) of a list of steps, and the starts where it has them."""
    names = list(table)
    heads = names
    if all(name.isdigit() for name in names):
        heads = _commented_heads(path, len(names)) or names
    found: dict[str, np.ndarray] = {}
    for name, head in zip(names, heads, strict=True):
        what = next((w for w in ("start", "duration", "voltage") if _HEADS[w].search(head)), "")
        if not what or what in found:
            continue
        unit = _UNIT.search(head)
        dimension = "voltage" if what == "voltage" else "time"
        default = "mV" if what == "voltage" else "ms"
        factor = unit_factor(unit[1] if unit else default, dimension)[0]
        found[what] = table[name] * factor
    if not {"voltage", "duration"} <= set(found):
        raise InputError(
            "not a list of steps: columns headed voltage and duration (or level and length) were "
            f"expected, not {', '.join(shown(head) for head in heads[:6])}",
            path,
        )
    if not all(np.isfinite(values).all() for values in found.values()):
        raise InputError("a list of steps needs a number in every cell", path)
    return found


def _commented_heads(path: Path, count: int) -> list[str]:
    """The heads of columns in the first comment of a table without heads; empty without one."""
    if path.suffix.lower() == ".gz":
        return []
    lines = (line.strip() for line in read_text(path).splitlines())
    first = next((line for line in lines if line), "")
    heads = _COMMENTED.findall(first.lstrip("#")) if first.startswith("#") else []
    return heads if len(heads) == count else []


def _durations(
    columns: Mapping[str, np.ndarray], table: Table, path: Path
) -> tuple[np.ndarray, str]:
    """How long each step lasts, ms, and a note on steps that the next one cuts short.

    Raises:
        InputError: a negative duration, or a step that starts later than the one before it ends.
    """
    durations = columns["duration"]
    bad = np.flatnonzero(~(durations >= 0))
    if bad.size:
        raise InputError(f"a duration of {durations[bad[0]]:g} ms", path, table.place(bad[0]))
    if "start" not in columns:
        return durations, ""
    until = columns["start"][1:] - columns["start"][:-1]
    late = np.flatnonzero((until > durations[:-1] + _GAP) | (until < 0))
    if late.size:
        row = int(late[0]) + 1
        raise InputError(
            f"this step starts at {columns['start'][row]:g} ms, but the one before it ends at "
            f"{columns['start'][row - 1] + durations[row - 1]:g} ms; correct one of them",
            path,
            table.place(row),
        )
    short = np.flatnonzero(until < durations[:-1] - _GAP)
    note = ""
    if short.size:
        row = int(short[0])
        note = (
            f"the step in {table.place(row)} would last {durations[row]:g} ms, but the next one "
            f"starts after {until[row]:g} ms, which ends it"
        )
    return np.append(np.minimum(until, durations[:-1]), durations[-1]), note
