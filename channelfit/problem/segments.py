"""The rows of `segments` in a protocol file: read into sweeps, and written from them.

A row is one wave and one duration for all sweeps, or a family of either: a value for each sweep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.problem.file_signals import (
    read_choices,
    read_signal,
    refuse_columns_of_signals,
)
from channelfit.problem.waves import TIME_TOLERANCE, Constant, Ramp, Samples, Segment, Sines, Wave
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.shapes import UnitText, Within
from channelfit.reading.sample_times import advice_on_times
from channelfit.reading.tables import Columns, column, read_columns
from channelfit.reading.units import unit_factor

_MAX_SWEEPS = 10_000
_MAX_SINES = 1000
_MAX_SAMPLES = 20_000_000
#: Of all sweeps together; a segment takes some 300 bytes.
_MAX_SEGMENTS = 1_000_000
#: mV, far beyond any clamp: more is a slip of the unit, and would be sub-stepped without end.
_MAX_MV = 1000.0
#: The kinds of segments that commands of voltages and of concentrations have.
_KINDS = {
    "segment": ("hold", "step", "ramp", "sines", "recorded"),
    "ligand segment": ("hold", "step", "ramp"),
}
_LEVELS = {"segment": "voltages", "ligand segment": "concentrations"}
#: Digits after the point to which ends of segments are rounded, ms: sums of durations stay even.
_DIGITS = 9

Sweep = tuple[Segment, ...]
#: A function that puts the commands of one row (one for all sweeps, or one for each) into a table
#: beside the file, and returns the keys of `recorded` that name it.
Tabled = Callable[[Sequence[Samples]], dict[str, Any]]


# --- reading -----------------------------------------------------------------------------------


def read_sweeps(root: Section, holding_mV: float, keys: str = "segment") -> tuple[Sweep, ...]:
    """Return the sweeps that the rows of `segments` describe.

    Arguments:
        root: the protocol, or one of its ligands, of which `segments` is read.
        holding_mV: the voltage, or the concentration in mM, of rows that hold.
        keys: those of a row, of KEYS.

    Raises InputError: no rows, a row that cannot be used, or families of different lengths.
    """
    rows = root.items("segments")
    if not rows:
        raise root.error("at least one segment is needed", "segments")
    read_rows = [
        _SegmentRow(Section(row, root.file, root.path(f"segments[{i}]")), holding_mV, keys)
        for i, row in enumerate(rows, 1)
    ]
    counts = {row.count for row in read_rows if row.count > 1}
    if len(counts) > 1:
        raise root.error(
            f"families of {', '.join(map(str, sorted(counts)))} values; families in one protocol "
            "vary together and need equal lengths",
            "segments",
        )
    n_sweeps = max(counts, default=1)
    if len(rows) * n_sweeps > _MAX_SEGMENTS:
        raise root.error(
            f"{len(rows):,} segments x {n_sweeps:,} sweeps exceed {_MAX_SEGMENTS:,}; for these "
            f"sweeps {_MAX_SEGMENTS // n_sweeps:,} segments are accepted",
            "segments",
        )
    sweeps = [_sweep(read_rows, sweep) for sweep in range(n_sweeps)]
    for k, sweep in enumerate(sweeps):
        if not sweep:
            raise root.error(f"sweep {k + 1} has no duration", "segments")
    return tuple(sweeps)


class _SegmentRow:
    """One row of `segments`: a wave and a duration for every sweep, or one for all."""

    def __init__(self, row: Section, holding_mV: float, keys: str) -> None:
        row.expect(KEYS[keys])
        kinds = [k for k in _KINDS[keys] if k in row]
        if len(kinds) != 1:
            raise row.error(f"one of {', '.join(_KINDS[keys])} was expected in each segment")
        kind = kinds[0]
        self.waves, self.durations = _read_waves(row, kind, holding_mV, keys)
        if not self.durations:
            self.durations = family(row, "for")
        row.finish()
        shortest = min(self.durations)
        if shortest < 0 or (shortest == 0 and kind not in ("step", "hold")):
            raise row.error(f"a duration above 0 was expected, not {shortest:g} ms")
        if 1 < len(self.waves) != len(self.durations) > 1:
            raise row.error(
                f"{len(self.waves)} {_LEVELS[keys]} but {len(self.durations)} durations; "
                "families in one protocol vary together and need equal lengths"
            )
        self.count = max(len(self.waves), len(self.durations))

    def at(self, sweep: int) -> tuple[Wave, float]:
        """Return the wave and the duration, ms, of this row in a sweep."""
        return (
            self.waves[sweep if len(self.waves) > 1 else 0],
            self.durations[sweep if len(self.durations) > 1 else 0],
        )


def _read_waves(
    row: Section, kind: str, holding_mV: float, keys: str
) -> tuple[Sequence[Wave], list[float]]:
    """Return the waves of a row, and its durations where `for` does not give them."""
    if kind == "hold":
        return [Constant(holding_mV)], family(row, "hold")
    if kind == "step":
        return [Constant(v) for v in family(row, "step")], []
    if kind == "ramp":
        return _ramps(row, keys), []
    if kind == "sines":
        return [_sines(row)], []
    waves = _recorded(row)
    return waves, [] if "for" in row else [float(waves[0].times_ms[-1])]


def _sweep(rows: Sequence[_SegmentRow], sweep: int) -> Sweep:
    """Return one sweep: the rows one after the other, those of no duration left out."""
    start, segments = 0.0, list[Segment]()
    for wave, duration in (row.at(sweep) for row in rows):
        end = round(start + duration, _DIGITS)
        if isinstance(wave, Sines) and math.isnan(wave.origin_ms):  # the row gives no origin
            wave = replace(wave, origin_ms=start)
        if end > start:
            segments.append(Segment(start, end, wave))
        start = end
    return tuple(segments)


def family(row: Section, key: str) -> list[float]:
    """Return the values under a key of a row; see `members`."""
    return members(row, row.take(key, ...), key)


def members(row: Section, raw: object, key: str) -> list[float]:
    """Return the values of an entry: a single one, or a family of one for each sweep.

    A family is a list under `values`, or evenly spaced values by `from`, `to` and `by`.
    """
    if not isinstance(raw, Mapping):
        return [row.measured(key, raw)]
    inner = Section(raw, row.file, row.path(key))
    inner.expect(KEYS[row.shape(key, Within).section])
    if "values" in inner:
        values = [inner.measured("values", x) for x in inner.items("values")]
        inner.finish()
    else:
        start, stop, by = (inner.quantity(k, default=...) for k in ("from", "to", "by"))
        inner.finish()
        if by == 0 or (stop - start) / by < 0:
            raise inner.error(f"steps of {by:g} do not lead from {start:g} to {stop:g}", "by")
        if (stop - start) / by >= _MAX_SWEEPS:
            raise inner.error(f"more than {_MAX_SWEEPS} sweeps", "by")
        values = _stepped(start, stop, by)
    if not 1 <= len(values) <= _MAX_SWEEPS:
        raise inner.error(f"1 to {_MAX_SWEEPS} values are accepted", "values")
    return values


def _stepped(start: float, stop: float, by: float) -> list[float]:
    """Return the values from start to stop, both included where `by` leads there."""
    count = int((stop - start) / by + 1e-9) + 1  # 0.1 + 0.2 is not quite 0.3
    return [round(start + i * by, _DIGITS) for i in range(count)]


def _ramps(row: Section, keys: str) -> list[Wave]:
    """Return the ramps of a row: one, or one for each sweep where an end of it is a family."""
    ends = row.items("ramp")
    if len(ends) != 2:
        raise row.error(f"a ramp is [start, end], not {shown(ends)}", "ramp")
    starts, stops = (members(row, end, "ramp") for end in ends)
    count = max(len(starts), len(stops))
    if {len(starts), len(stops)} - {1, count}:
        raise row.error(
            f"{len(starts)} {_LEVELS[keys]} to start from but {len(stops)} to reach; families in "
            "one protocol vary together and need equal lengths",
            "ramp",
        )
    starts, stops = (v * count if len(v) == 1 else v for v in (starts, stops))
    return [Ramp(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _sines(row: Section) -> Sines:
    """Return the sum of sines of a row; its origin is NaN where the row gives none."""
    inner = row.section("sines")
    inner.expect(KEYS["sines"])
    offset = inner.quantity("offset")
    origin = inner.quantity("origin", default=math.nan)
    rows = inner.items("terms")
    if len(rows) > _MAX_SINES:
        raise inner.error(f"{len(rows):,} sines; a sum has at most {_MAX_SINES:,}", "terms")
    terms = []
    for i, raw in enumerate(rows, 1):
        term = Section(raw, row.file, inner.path(f"terms[{i}]"))
        term.expect(KEYS["sine"])
        amplitude = term.quantity("amplitude")
        if "frequency" in term:
            omega = 2 * math.pi * term.quantity("frequency")
        else:
            omega = term.quantity("omega", default=...)
        terms.append((amplitude, omega, term.number("phase")))
        term.finish()
    inner.finish()
    if not terms:
        raise inner.error("at least one term is needed", "terms")
    amplitudes, omegas, phases = zip(*terms, strict=True)
    return Sines(offset, amplitudes, omegas, phases, origin)


def _recorded(row: Section) -> list[Samples]:
    """Return the commands in the columns of a table: one for all sweeps, or one for each sweep."""
    inner = row.section("recorded")
    inner.expect(KEYS["recorded"])
    path = inner.existing(inner.text("file"), "file")
    if "signal" in inner:
        return _signal(inner, path)
    refuse_columns_of_signals(inner, path)
    table = read_columns(path, **read_choices(inner))
    clock, factor = "", 0.0
    if "time" in inner:
        time = inner.section("time")
        time.expect(KEYS["recorded time"])
        clock, factor = time.text("column"), _factor(time)
        time.finish()
    to_mV = _factor(inner)
    commands = [column(table, name, path) * to_mV for name in _column_names(inner, table, clock)]
    if clock:
        stamps = column(table, clock, path)
        times = (stamps - stamps[0]) * factor
    else:
        step = inner.quantity("sampling", default=...)
        if step <= 0:
            raise inner.error(f"a sampling interval above 0 was expected, not {step:g}", "sampling")
        times = np.arange(len(commands[0])) * step
    inner.finish()
    for command in commands:
        if fault := unusable_command(times, command, table):
            raise InputError(f"not a usable command voltage: {fault}", path)
    return [Samples(times, command) for command in commands]


def _signal(inner: Section, path: Path) -> list[Samples]:
    """Return the sweeps of a command that the file of an amplifier holds."""
    signal = read_signal(inner, inner, path, "voltage")
    inner.finish()
    commands = list[Samples]()
    for name, row in zip(signal.places, signal.values, strict=True):
        n = len(row) - int(np.argmax(np.isfinite(row[::-1])))  # a shorter sweep ends with NaN
        times = np.arange(n) * signal.sampling_ms
        if fault := unusable_command(times, row[:n], Columns()):
            raise InputError(f"not a usable command voltage: {fault}", path, name)
        commands.append(Samples(times, row[:n]))
    return commands


def _column_names(inner: Section, table: Columns, clock: str) -> list[str]:
    """Return the columns of a recorded command: one, or those of a family of sweeps."""
    if "columns" not in inner:
        return [inner.text("column", ...)]
    if "column" in inner:
        raise inner.error("either column or columns was expected, not both")
    if inner.take("columns") == "all":
        names = [name for name, values in table.items() if values.ndim == 1 and name != clock]
    else:
        names = [str(name) for name in inner.items("columns")]
    if not 1 <= len(names) <= _MAX_SWEEPS:
        raise inner.error(f"1 to {_MAX_SWEEPS} columns are accepted", "columns")
    return names


def _factor(section: Section) -> float:
    """Return the factor from the section's `unit` to the base unit."""
    try:
        return unit_factor(section.text("unit"), *section.shape("unit", UnitText).dimensions)[0]
    except InputError as error:
        raise error.at(section.file, section.path("unit")) from None


def unusable_command(times_ms: np.ndarray, v_mV: np.ndarray, table: Columns) -> str:
    """Return why a recorded command (n,) mV at times (n,) ms cannot be used; empty where it can.

    Arguments:
        table: names the places of samples in messages.
    """
    bad = np.flatnonzero(~np.isfinite(v_mV) | ~np.isfinite(times_ms))
    if bad.size:
        return f"{table.place(bad[0])} is not finite"
    if len(v_mV) < 2:
        return "two rows are the least"
    late = np.flatnonzero(np.diff(times_ms) <= 0)
    if not late.size:
        return ""
    k = int(late[0])
    return (
        f"its times must increase, but in {table.place(k + 1)} {times_ms[k + 1]:g} ms follows "
        f"{times_ms[k]:g} ms; {advice_on_times(times_ms, k)}"
    )


def check_sweeps(
    root: Section, sweeps: Sequence[Sweep], sampling_ms: float, *held_mV: float
) -> None:
    """Refuse lengths and voltages that are so large that a unit must be wrong.

    Arguments:
        held_mV: further voltages that are checked, such as the holding voltage.

    Raises InputError: such a value, with its key.
    """
    longest = max(sweep[-1].end_ms for sweep in sweeps) / sampling_ms
    if not longest * len(sweeps) <= _MAX_SAMPLES:  # as well for NaN
        raise root.error(
            f"{longest:.3g} samples x {len(sweeps)} sweeps exceed {_MAX_SAMPLES:,}; "
            "is the sampling in ms?",
            "sampling",
        )
    shortest = min(sweep[-1].end_ms for sweep in sweeps)
    if shortest <= TIME_TOLERANCE * sampling_ms:
        raise root.error(f"a sweep of {shortest:g} ms holds no sample", "segments")
    for k, sweep in enumerate(sweeps):
        for segment in sweep:
            _check_voltage(root, segment, sampling_ms, k)
    for v in held_mV:
        _check_voltage(root, Segment(0.0, sampling_ms, Constant(v)), sampling_ms, 0)


def _check_voltage(root: Section, segment: Segment, sampling: float, sweep: int) -> None:
    """Raise InputError for a voltage beyond any clamp, and for sines too fast for the samples."""
    wave = segment.wave
    if isinstance(wave, Sines):
        top = abs(wave.offset_mV) + sum(abs(a) for a in wave.amplitudes_mV)
        fastest = max(abs(omega) for omega in wave.omegas_per_ms)
        if not fastest * sampling <= math.pi:
            raise root.error(
                f"a sine of omega {fastest:g} 1/ms has no two samples in a period; "
                f"sample at {math.pi / fastest:.3g} ms or less",
                "sampling",
            )
    elif isinstance(wave, Samples):
        top = float(np.abs(wave.v_mV).max())
    else:
        top = float(np.abs(segment.voltage(np.array([segment.start_ms, segment.end_ms]))).max())
    if not top <= _MAX_MV:
        raise root.error(
            f"{top:g} mV in sweep {sweep + 1} is more than {_MAX_MV:g} mV; is the unit right?",
            "segments",
        )


# --- writing -----------------------------------------------------------------------------------


def segment_rows(
    sweeps: Sequence[Sweep], holding: float | None, tabled: Tabled, unit: str = "mV"
) -> list[dict[str, Any]]:
    """Return the rows of `segments` that describe sweeps.

    Arguments:
        holding: segments at this voltage, or concentration, are written as `hold`.
        tabled: stores recorded commands, and returns the keys of `recorded` that name them.
        unit: of what is commanded.

    Raises InputError: sweeps that differ by more than voltages and durations of steps.
    """
    rows = _aligned(sweeps)
    starts = [0.0] * len(sweeps)
    written = []
    families = any(_varies(row) for row in rows)
    for place, row in enumerate(rows):
        durations = [_duration(start, s) for start, s in zip(starts, row, strict=True)]
        starts = [start if s is None else s.end_ms for start, s in zip(starts, row, strict=True)]
        # without any family, a list in the first row says how many sweeps there are
        force = place == 0 and not families and len(sweeps) > 1
        time = written_family(durations, "ms", force)
        written.append(_written_row(row, time, holding, tabled, unit))
    return written


def _aligned(sweeps: Sequence[Sweep]) -> list[tuple[Segment | None, ...]]:
    """Return segments of all sweeps in rows; None where one has fewer held segments."""
    stages = [list(_stages(sweep)) for sweep in sweeps]
    if len({len(each) for each in stages}) > 1:
        raise _different("numbers of ramps, sines or recorded commands")
    rows: list[tuple[Segment | None, ...]] = []
    for stage in zip(*stages, strict=True):
        rows += zip_longest(*(held for held, _ in stage))
        if stage[0][1] is not None:
            rows.append(tuple(varying for _, varying in stage))
    return rows


def _stages(sweep: Sweep) -> Iterator[tuple[list[Segment], Segment | None]]:
    """Yield held segments with the varying one after them; None after those at the end."""
    held: list[Segment] = []
    for segment in sweep:
        if segment.is_constant:
            held.append(segment)
        else:
            yield held, segment
            held = []
    yield held, None


def _varies(row: Sequence[Segment | None]) -> bool:
    """Return whether the sweeps differ in a row, which is then written as a family."""
    first = row[0]
    if first is None or None in row:
        return True
    return any(
        s is not None
        and (s.wave != first.wave or s.end_ms - s.start_ms != first.end_ms - first.start_ms)
        for s in row
    )


def _duration(start: float, segment: Segment | None) -> float:
    """Return the shortest number, ms, that leads from here to the end of a segment."""
    if segment is None:
        return 0.0
    short = round(segment.end_ms - start, _DIGITS)
    exact = round(start + short, _DIGITS) == segment.end_ms
    return short if exact else segment.end_ms - start


def _written_row(
    row: Sequence[Segment | None],
    time: Any,
    holding: float | None,
    tabled: Tabled,
    unit: str,
) -> dict[str, Any]:
    """Return the entries that describe one segment of all sweeps.

    Arguments:
        row: the segment of each sweep; None where a sweep lacks it.
        time: what stands under `for`.
    """
    segments = [segment for segment in row if segment is not None]
    waves = [segment.wave for segment in segments]
    first = waves[0]
    if isinstance(first, Constant):
        return _written_step(row, time, holding, unit)
    if isinstance(first, Samples):
        commands = [wave for wave in waves if isinstance(wave, Samples)]
        if len(commands) < len(waves):
            raise _different("kinds of segments")
        same = all(wave == first for wave in commands)
        return {"recorded": tabled(commands[:1] if same else commands), "for": time}
    ramps = [wave for wave in waves if isinstance(wave, Ramp)]
    if len(ramps) == len(waves):
        ends = [[r.v_start_mV for r in ramps], [r.v_end_mV for r in ramps]]
        return {"ramp": [written_family(values, unit) for values in ends], "for": time}
    if isinstance(first, Sines):
        alike = [isinstance(w, Sines) and replace(w, origin_ms=first.origin_ms) for w in waves]
        origins = {wave.origin_ms for wave in waves if isinstance(wave, Sines)}
        own_origin = all(
            isinstance(s.wave, Sines) and s.wave.origin_ms == s.start_ms for s in segments
        )
        if all(wave == first for wave in alike) and (own_origin or len(origins) == 1):
            return {"sines": _written_sines(first, own_origin), "for": time}
    raise _different("ramps or sines")


def _written_step(
    row: Sequence[Segment | None], time: Any, holding: float | None, unit: str
) -> dict[str, Any]:
    """Return the entries of a held segment; a sweep that lacks it takes the first one's voltage."""
    held = [s.wave.v_mV if s and isinstance(s.wave, Constant) else None for s in row]
    known = [v for v in held if v is not None]
    if all(v == holding for v in known):
        return {"hold": time}
    voltages = [known[0] if v is None else v for v in held]
    return {"step": written_family(voltages, unit), "for": time}


def _written_sines(wave: Sines, own_origin: bool) -> dict[str, Any]:
    """Return the entries of sines; without `origin` where that is the start of the segment."""
    terms = [
        {"amplitude": quantity_text(a, "mV"), "omega": quantity_text(w, "1/ms"), "phase": p}
        for a, w, p in zip(wave.amplitudes_mV, wave.omegas_per_ms, wave.phases, strict=True)
    ]
    origin = {} if own_origin else {"origin": quantity_text(wave.origin_ms, "ms")}
    return {"offset": quantity_text(wave.offset_mV, "mV"), "terms": terms, **origin}


def written_family(values: Sequence[float], unit: str, force: bool = False) -> Any:
    """Return values as one quantity if they are equal, else as from / to / by or as a list.

    Arguments:
        force: write a family in any case, since nothing else states the number of sweeps.
    """
    if len(set(values)) == 1 and not force:
        return quantity_text(values[0], unit)
    by = round(values[1] - values[0], _DIGITS)
    # the number first: where the first step is small and another is large there would be billions
    evenly = len(values) > 2 and by != 0
    evenly = evenly and abs((values[-1] - values[0]) / by - (len(values) - 1)) < 0.5
    if evenly and _stepped(values[0], values[-1], by) == list(values):
        ends = {"from": values[0], "to": values[-1], "by": by}
        return {key: quantity_text(value, unit) for key, value in ends.items()}
    return {"values": [quantity_text(value, unit) for value in values]}


def quantity_text(value: float, unit: str) -> str:
    """Return a quantity in the fewest digits that give it back."""
    short = f"{value:g}"
    return f"{short if float(short) == value else repr(value)} {unit}"


def _different(quantity: str) -> InputError:
    """Return the error for sweeps whose differences one protocol file cannot hold."""
    return InputError(
        f"the sweeps have different {quantity}, which one protocol file cannot hold; "
        "write a protocol for each sweep"
    )


# --- tables of recorded commands ------------------------------------------------------------------


def refuse_table(commands: Sequence[Samples]) -> dict[str, Any]:
    """Raise InputError: a text alone cannot hold recorded commands."""
    raise InputError(
        "a recorded command cannot stand in YAML; use save(path), which writes it as a table "
        "beside the protocol file"
    )


def command_table(commands: Sequence[Samples]) -> tuple[str, list[str]]:
    """Return recorded commands as a table in CSV, and the names of its columns of voltages.

    Raises InputError: commands with different times.
    """
    times = commands[0].times_ms
    if not all(np.array_equal(times, command.times_ms) for command in commands):
        raise InputError(
            "the recorded commands of the sweeps have different times, which one protocol file "
            "cannot hold; write a protocol for each sweep"
        )
    names = [f"sweep{k}" for k in range(1, len(commands) + 1)]
    columns = zip(names, (command.v_mV for command in commands), strict=True)
    return csv_table([("time", times), *columns]), names
