"""Voltage-clamp protocols: sweeps of half-open segments [start, end).

Sample k of a sweep is at ``k * sampling_ms`` and belongs to the segment that holds that time.
Segment boundaries need not fall on samples; they are honored exactly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.reading.columns import advice_on_times
from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.tables import Table, column, read_columns
from channelfit.reading.units import parse_quantity, shown, unit_factor

_MAX_SAMPLES = 20_000_000
_MAX_SWEEPS = 10_000
#: mV, far beyond any clamp: more is a slip of the unit, and would be sub-stepped without end.
_MAX_MV = 1000.0
#: Samples that a jump in a recorded command may take, and how far these may stray from even.
_JUMP_SAMPLES = 3
_UNEVEN = 1e-3
#: Two times closer than this fraction of the sampling interval are the same time.
TIME_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Constant:
    """A held voltage."""

    v_mV: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """mV at sweep times t_ms."""
        return np.full(np.shape(t_ms), self.v_mV)


@dataclass(frozen=True)
class Ramp:
    """A straight line from the segment's start to its end."""

    v_start_mV: float
    v_end_mV: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """mV at sweep times t_ms."""
        part = (np.asarray(t_ms) - start_ms) / (end_ms - start_ms)
        return np.asarray(self.v_start_mV + (self.v_end_mV - self.v_start_mV) * part)


@dataclass(frozen=True)
class Sines:
    """``offset + sum amplitude * sin(omega * (t - origin) + phase)``, t the time in the sweep."""

    offset_mV: float
    amplitudes_mV: tuple[float, ...]
    omegas_per_ms: tuple[float, ...]
    phases: tuple[float, ...]
    origin_ms: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """mV at sweep times t_ms."""
        t = np.asarray(t_ms)[..., None] - self.origin_ms
        waves = np.asarray(self.amplitudes_mV) * np.sin(
            np.asarray(self.omegas_per_ms) * t + np.asarray(self.phases)
        )
        return np.asarray(self.offset_mV + waves.sum(axis=-1))


@dataclass(frozen=True, eq=False)
class Samples:
    """A recorded command, read as straight lines between its samples; times from segment start."""

    times_ms: np.ndarray
    v_mV: np.ndarray

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """mV at sweep times t_ms; held at the last sample after it."""
        return np.asarray(np.interp(np.asarray(t_ms) - start_ms, self.times_ms, self.v_mV))

    def jump_times_ms(self, sampling_ms: float, least_mV: float) -> np.ndarray:
        """When the command jumps: at the first sample that shows it, from the segment's start.

        A jump takes one to three samples, filtered as it may be, is larger than `least_mV` and than
        the noise of the command, and four times as steep as what lies before and after it: the
        upstroke of an action potential is none.
        """
        dt, dv = np.diff(self.times_ms), np.diff(self.v_mV)
        slope = np.abs(dv / dt)
        even = np.ptp(dt) < _UNEVEN * dt.min()
        longest = _JUMP_SAMPLES * max(sampling_ms, float(dt[0]) if even else 0.0)
        noise = 8 * 1.4826 * float(np.median(np.abs(dv - np.median(dv))))
        padded = np.concatenate([[0.0, 0.0], slope, [0.0, 0.0]])
        found, free = list[float](), 0
        for k in map(int, np.flatnonzero(slope * longest > least_mV)):
            for width in range(1, min(_JUMP_SAMPLES, len(dv) - k) + 1):
                span = float(self.times_ms[k + width] - self.times_ms[k])
                total = abs(float(self.v_mV[k + width] - self.v_mV[k]))
                around = max(*padded[k : k + 2], *padded[k + width + 2 : k + width + 4])
                if (
                    k >= free
                    and span <= longest * (1 + _UNEVEN)
                    and abs(dv[k]) > 0.1 * total
                    and total > max(least_mV, noise)
                    and total > 4 * around * span
                ):
                    late = dt[k] <= sampling_ms * (1 + _UNEVEN)
                    found.append(float(self.times_ms[k + 1 if late else k]))
                    free = k + width
        return np.array(found)


Wave = Constant | Ramp | Sines | Samples


@dataclass(frozen=True)
class Segment:
    """A stretch [start_ms, end_ms) of one sweep and the voltage in it."""

    start_ms: float
    end_ms: float
    wave: Wave

    @property
    def is_constant(self) -> bool:
        """True where the voltage is held."""
        return isinstance(self.wave, Constant)

    def voltage(self, t_ms: np.ndarray) -> np.ndarray:
        """mV at sweep times t_ms (any shape)."""
        return self.wave.voltage(t_ms, self.start_ms, self.end_ms)


@dataclass(frozen=True)
class Protocol:
    """Sweeps, how they are sampled, and what lies between them.

    Each sweep starts from the steady state at `holding_mV`; with `carry_over` only the first does,
    and `rest_ms` at the holding potential lie between one sweep and the next.
    """

    name: str
    holding_mV: float
    sampling_ms: float
    sweeps: tuple[tuple[Segment, ...], ...]
    carry_over: bool = False
    rest_ms: float = 0.0
    description: str = ""
    source: str = ""

    @property
    def n_sweeps(self) -> int:
        """Number of sweeps."""
        return len(self.sweeps)

    def n_times(self, sweep: int) -> int:
        """Samples of one sweep: those at k * sampling_ms before its end."""
        return math.ceil(self.sweeps[sweep][-1].end_ms / self.sampling_ms - TIME_TOLERANCE)

    @property
    def n_times_max(self) -> int:
        """Samples of the longest sweep."""
        return max(self.n_times(k) for k in range(self.n_sweeps))

    @property
    def times_ms(self) -> np.ndarray:
        """(n_times_max,) sample times from the start of a sweep."""
        return np.arange(self.n_times_max) * self.sampling_ms

    def sample_ranges(self, sweep: int) -> list[tuple[int, int]]:
        """First and one-past-last sample of every segment of a sweep."""
        n, h = self.n_times(sweep), self.sampling_ms
        edges = [0]
        edges += [
            min(n, math.ceil(segment.end_ms / h - TIME_TOLERANCE)) for segment in self.sweeps[sweep]
        ]
        return list(pairwise(edges))

    def command(self) -> np.ndarray:
        """(n_sweeps, n_times_max) mV at the samples; NaN after the end of a shorter sweep."""
        t = self.times_ms
        out = np.full((self.n_sweeps, self.n_times_max), np.nan)
        for row, sweep, k in zip(out, self.sweeps, range(self.n_sweeps), strict=True):
            for segment, (a, b) in zip(sweep, self.sample_ranges(k), strict=True):
                row[a:b] = segment.voltage(np.maximum(t[a:b], segment.start_ms))
        return out

    def step_times_ms(self, sweep: int, least_mV: float = 1.0) -> np.ndarray:
        """Times at which the command jumps by more than `least_mV`, inside a recorded command too.

        The start of a sweep is among them when it leaves the holding potential, or the last
        voltage of the sweep before where that is carried over without a rest.
        """
        times, before = list[float](), self._voltage_before(sweep)
        for s in self.sweeps[sweep]:
            first, last = s.voltage(np.array([s.start_ms, s.end_ms]))
            if abs(first - before) > least_mV:
                times.append(s.start_ms)
            if isinstance(s.wave, Samples):
                inside = s.start_ms + s.wave.jump_times_ms(self.sampling_ms, least_mV)
                times += [float(t) for t in inside if t < s.end_ms]
            before = last
        return np.array(times)

    def _voltage_before(self, sweep: int) -> float:
        """mV at which the membrane was until a sweep began."""
        if sweep == 0 or not self.carry_over or self.rest_ms > 0:
            return self.holding_mV
        last = self.sweeps[sweep - 1][-1]
        return float(last.voltage(np.array([last.end_ms]))[0])


# --- from YAML ---------------------------------------------------------------------------------


def load_protocol(path: str | os.PathLike[str]) -> Protocol:
    """The protocol in a YAML file.

    Raises:
        InputError: anything that cannot be used, with file, key and what would be right.
    """
    return build_protocol(read_yaml(path), path)


def build_protocol(document: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Protocol:
    """A protocol from plain data; `file` names its origin in errors and anchors relative paths."""
    root = Section(document, file)
    root.expect(KEYS["protocol"])
    name = root.text("name", os.path.splitext(os.path.basename(file))[0] if file else "protocol")
    description, source = root.text("description", ""), root.text("source", "")
    holding = root.quantity("holding", "voltage")
    sampling = root.quantity("sampling", "time")
    if sampling <= 0:
        raise root.error(f"a sampling interval above 0 was expected, not {sampling:g}", "sampling")
    carry_over, rest = _between(root)
    rows = root.items("segments")
    root.finish()
    if not rows:
        raise root.error("at least one segment is needed", "segments")
    pieces = [
        _Piece(Section(row, file, f"segments[{i}]"), holding) for i, row in enumerate(rows, 1)
    ]
    sweeps = _lay_out(root, pieces)
    _check_size(root, sweeps, sampling)
    for k, sweep in enumerate(sweeps):
        for segment in sweep:
            _check_voltage(root, segment, sampling, k)
    _check_voltage(root, Segment(0.0, sampling, Constant(holding)), sampling, 0)
    return Protocol(name, holding, sampling, sweeps, carry_over, rest, description, source)


def _check_size(root: Section, sweeps: tuple[tuple[Segment, ...], ...], sampling: float) -> None:
    longest = max(sweep[-1].end_ms for sweep in sweeps) / sampling
    if not longest * len(sweeps) <= _MAX_SAMPLES:
        raise root.error(
            f"{longest:.3g} samples x {len(sweeps)} sweeps exceed {_MAX_SAMPLES:,}; "
            "is the sampling in ms?",
            "sampling",
        )
    shortest = min(sweep[-1].end_ms for sweep in sweeps)
    if shortest <= TIME_TOLERANCE * sampling:
        raise root.error(f"a sweep of {shortest:g} ms holds no sample", "segments")


def _check_voltage(root: Section, segment: Segment, sampling: float, sweep: int) -> None:
    """Refuse commands that are a slip of the unit, and sines too fast to be seen in the samples."""
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


def _between(root: Section) -> tuple[bool, float]:
    raw = root.take("between_sweeps", "steady state")
    if isinstance(raw, Mapping):
        inner = root.section("between_sweeps")
        inner.expect(KEYS["between_sweeps"])
        carry, rest = inner.flag("carry_over", True), inner.quantity("rest", "time", 0.0)
        inner.finish()
        if rest < 0:
            raise inner.error(f"a time of 0 or more was expected, not {rest:g}", "rest")
        if rest > 0 and not carry:
            raise inner.error("a rest between sweeps needs `carry_over: true`", "rest")
        return carry, rest
    if raw not in ("steady state", "carry over"):
        raise root.error(
            f'{shown(raw)} is not one of "steady state", "carry over"', "between_sweeps"
        )
    return raw == "carry over", 0.0


class _Piece:
    """One row of `segments`: a wave and a duration for every sweep, or one for all."""

    def __init__(self, row: Section, holding_mV: float) -> None:
        self.row = row
        row.expect(KEYS["segment"])
        kinds = [k for k in ("hold", "step", "ramp", "sines", "recorded") if k in row]
        if len(kinds) != 1:
            raise row.error("one of hold, step, ramp, sines, recorded was expected in each segment")
        kind = kinds[0]
        self.durations: list[float] = []
        if kind == "hold":
            self.waves: list[Any] = [Constant(holding_mV)]
            self.durations = _family(row, "hold", "time")
        elif kind == "step":
            self.waves = [Constant(v) for v in _family(row, "step", "voltage")]
        elif kind == "ramp":
            self.waves = [_ramp(row)]
        elif kind == "sines":
            self.waves = [_sines(row)]
        else:
            wave = _recorded(row)
            self.waves = [wave]
            if "for" not in row:
                self.durations = [float(wave.times_ms[-1])]
        if not self.durations:
            self.durations = _family(row, "for", "time")
        row.finish()
        if min(self.durations) < 0 or (kind != "step" and kind != "hold" and 0 in self.durations):
            raise row.error(f"a duration above 0 was expected, not {min(self.durations):g} ms")
        if 1 < len(self.waves) != len(self.durations) > 1:
            raise row.error(
                f"{len(self.waves)} voltages but {len(self.durations)} durations; "
                "families in one protocol vary together and need equal lengths"
            )
        self.count = max(len(self.waves), len(self.durations))

    def at(self, sweep: int) -> tuple[Any, float]:
        """Wave and duration of this piece in a sweep."""
        pick = [values[sweep if len(values) > 1 else 0] for values in (self.waves, self.durations)]
        return pick[0], pick[1]


def _lay_out(root: Section, pieces: list[_Piece]) -> tuple[tuple[Segment, ...], ...]:
    counts = {p.count for p in pieces if p.count > 1}
    if len(counts) > 1:
        raise root.error(
            f"families of {', '.join(map(str, sorted(counts)))} values; families in one protocol "
            "vary together and need equal lengths",
            "segments",
        )
    sweeps = []
    for k in range(max(counts, default=1)):
        t, row = 0.0, []
        for wave, duration in (p.at(k) for p in pieces):
            end = round(t + duration, 9)
            if isinstance(wave, Sines) and math.isnan(wave.origin_ms):
                wave = Sines(wave.offset_mV, wave.amplitudes_mV, wave.omegas_per_ms, wave.phases, t)
            if end > t:
                row.append(Segment(t, end, wave))
            t = end
        if not row:
            raise root.error(f"sweep {k + 1} has no duration", "segments")
        sweeps.append(tuple(row))
    return tuple(sweeps)


def _family(row: Section, key: str, dimension: str) -> list[float]:
    """One value, a list under `values`, or from / to / by."""
    raw = row.take(key)
    if not isinstance(raw, Mapping):
        return [row.quantity(key, dimension)]
    inner = row.section(key)
    inner.expect(KEYS["family"])
    if "values" in inner:
        values = [_quantity(inner, x, "values", dimension) for x in inner.items("values")]
        inner.finish()
    else:
        start, stop, by = (inner.quantity(k, dimension) for k in ("from", "to", "by"))
        inner.finish()
        if by == 0 or (stop - start) / by < 0:
            raise inner.error(f"steps of {by:g} do not lead from {start:g} to {stop:g}", "by")
        if (stop - start) / by >= _MAX_SWEEPS:
            raise inner.error(f"more than {_MAX_SWEEPS} sweeps", "by")
        values = [round(start + i * by, 9) for i in range(int((stop - start) / by + 1e-9) + 1)]
    if not 1 <= len(values) <= _MAX_SWEEPS:
        raise inner.error(f"1 to {_MAX_SWEEPS} values are accepted", "values")
    return values


def _quantity(section: Section, value: object, key: str, dimension: str) -> float:
    try:
        return parse_quantity(value, dimension)
    except InputError as error:
        raise error.at(section.file, section.path(key)) from None


def _ramp(row: Section) -> Ramp:
    ends = row.items("ramp")
    if len(ends) != 2:
        raise row.error(f"a ramp is [start, end], not {shown(ends)}", "ramp")
    start, end = (_quantity(row, v, "ramp", "voltage") for v in ends)
    return Ramp(start, end)


def _sines(row: Section) -> Sines:
    inner = row.section("sines")
    inner.expect(KEYS["sines"])
    offset = inner.quantity("offset", "voltage", 0.0)
    origin = inner.quantity("origin", "time", math.nan)
    terms = []
    for i, raw in enumerate(inner.items("terms"), 1):
        term = Section(raw, row.file, inner.path(f"terms[{i}]"))
        term.expect(KEYS["sine"])
        amplitude = term.quantity("amplitude", "voltage")
        if "frequency" in term:
            omega = 2 * math.pi * term.quantity("frequency", "rate")
        else:
            omega = term.quantity("omega", "rate")
        terms.append((amplitude, omega, term.number("phase", 0.0)))
        term.finish()
    inner.finish()
    if not terms:
        raise inner.error("at least one term is needed", "terms")
    amplitudes, omegas, phases = zip(*terms, strict=True)
    return Sines(offset, amplitudes, omegas, phases, origin)


def _out_of_order(times_ms: np.ndarray, table: Table) -> str:
    """Where times (n,) do not increase, and what to do about it."""
    k = int((np.diff(times_ms) <= 0).argmax())
    return (
        f"its times must increase, but in {table.place(k + 1)} {times_ms[k + 1]:g} ms follows "
        f"{times_ms[k]:g} ms; {advice_on_times(times_ms, k)}"
    )


def _recorded(row: Section) -> Samples:
    inner = row.section("recorded")
    inner.expect(KEYS["recorded"])
    name = inner.text("file")
    path = inner.resolve(name, "file")
    header = inner.flag("header", False) if "header" in inner else inner.take("header", None)
    table = read_columns(path, header)
    v = column(table, inner.text("column"), path)
    try:
        v = v * unit_factor(inner.text("unit", "mV"), "voltage")[0]
    except InputError as error:
        raise error.at(row.file, inner.path("unit")) from None
    if "time" in inner:
        time = inner.section("time")
        time.expect(KEYS["recorded time"])
        t = column(table, time.text("column"), path)
        try:
            t = (t - t[0]) * unit_factor(time.text("unit", "ms"), "time")[0]
        except InputError as error:
            raise error.at(row.file, time.path("unit")) from None
        time.finish()
    else:
        step = inner.quantity("sampling", "time")
        if step <= 0:
            raise inner.error(f"a sampling interval above 0 was expected, not {step:g}", "sampling")
        t = np.arange(len(v)) * step
    inner.finish()
    bad = np.flatnonzero(~np.isfinite(v) | ~np.isfinite(t))
    if len(v) < 2 or bad.size or not np.all(np.diff(t) > 0):
        where = "two rows are the least"
        if len(v) > 1 and not bad.size:
            where = _out_of_order(t, table)
        elif bad.size:
            where = f"{table.place(bad[0])} is not finite"
        raise InputError(f"not a usable command voltage: {where}", path)
    return Samples(t, v)
