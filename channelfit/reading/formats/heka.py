"""HEKA PatchMaster bundles (.dat): one series of sweeps, its stimulus, and the amplifier.

A bundle holds samples and three trees of records: what was recorded, what was commanded, and the
amplifiers. It is read here by the published description of the format (PatchMaster 2.74 to 2.90),
every length held against the size of the file, in either byte order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats.contents import (
    Contents,
    Epoch,
    Signal,
    agree,
    distinct,
    signal,
    stacked,
)

_HEADER, _ITEMS, _ITEM = 256, 12, 16
_NUMBERS = ("i2", "i4", "f4", "f8")
_BYTES_A_NUMBER = 16
#: Beyond any clamp: levels that a damaged or foreign file holds.
_MAX_MV = 1000.0
#: Bits of a trace's kind, modes of recording, bits of a stimulus, classes and increments.
_LITTLE_ENDIAN, _CURRENT_CLAMP, _STANDARD, _RELATIVE = 1, 4, 1, 2
_CONSTANT, _RAMP, _INCREASING, _DECREASING = 0, 1, 0, 1
#: Where the amplifier's state lies in a series, and in a record of the amplifiers' tree.
_OF_SERIES, _OF_AMPLIFIERS = 472, 112
#: The series that a message lists.
_LISTED = 40


def read(path: Path, series: str | None = None) -> Contents:
    """Return one series of a bundle.

    Arguments:
        series: ``GROUP/SERIES``, each by its number, from 1, or its label; may be left out of a
            file with one series.

    Raises InputError: no bundle, damaged, of several series none of which is chosen, recorded under
    current clamp, or with samples of several traces between each other.
    """
    data = path.read_bytes()
    trees = _trees(data, path)
    number, chosen = _chosen(trees[".pul"], series, path)
    return _Series(data, path, chosen, trees).contents(number)


@dataclass(frozen=True)
class _Record:
    """A record of a tree.

    Attributes:
        stored: its bytes; an older program's are fewer, and what they lack counts as 0.
        order: of the bytes, for `struct`.
        children: the records below it.
    """

    stored: bytes
    order: str
    children: list[_Record] = field(default_factory=list)

    def get(self, code: str, offset: int) -> Any:
        """Return the number at an offset."""
        end = offset + struct.calcsize(code)
        whole = self.stored[offset:end].ljust(end - offset, b"\0")
        return struct.unpack(self.order + code, whole)[0]

    def text(self, offset: int, length: int) -> str:
        """Return the text at an offset."""
        found = self.stored[offset : offset + length].split(b"\0", 1)[0].decode("latin-1")
        return "".join(c for c in found if c.isprintable()).strip()


def _trees(data: bytes, path: Path) -> dict[str, _Record]:
    """Return the roots of the trees of a bundle, by the ending of the file that each would be."""
    if data[:4] == b"DAT1" or data[:4] == b"DATA":
        raise InputError(
            "a HEKA file of which the parts lie in files of their own (.pul, .pgf), or of an old "
            "version of PatchMaster; open it in PatchMaster and save it as a bundle",
            path,
        )
    if data[:4] != b"DAT2":
        raise InputError(
            "a .dat file of an unknown program (it does not begin as HEKA's bundles do); export "
            "its traces as text (.csv), ABF, MATLAB or NWB",
            path,
        )
    if len(data) < _HEADER:
        raise InputError(f"ends after {len(data)} bytes, within the header", path)
    order = "<" if data[52] else ">"
    found = {}
    for k in range(_ITEMS):
        start, length, ending = struct.unpack_from(f"{order}ii8s", data, 64 + _ITEM * k)
        if length and (start < 0 or length < 0 or start + length > len(data)):
            raise InputError(
                f"the header announces {start + length:,} bytes, but the file has {len(data):,}; "
                "it is cut off",
                path,
            )
        name = ending.split(b"\0", 1)[0].decode("latin-1")
        if length and name in (".pul", ".pgf", ".amp"):
            found[name] = _tree(data[start : start + length], path)
    if lacking := {".pul", ".pgf"} - set(found):
        raise InputError(f"a bundle without its part {min(lacking)}", path)
    return found


def _tree(data: bytes, path: Path) -> _Record:
    """Return the root of a tree of records, each followed by the number of its children."""
    damaged = InputError("a damaged HEKA file: a tree of records ends before its end", path)
    order = {b"eerT": "<", b"Tree": ">"}.get(data[:4])
    if order is None or len(data) < 8:
        raise damaged
    (levels,) = struct.unpack_from(f"{order}i", data, 4)
    if not 1 <= levels <= 10 or len(data) < 8 + 4 * levels:
        raise damaged
    sizes = struct.unpack_from(f"{order}{levels}i", data, 8)
    if min(sizes) < 1:
        raise damaged
    place = 8 + 4 * levels

    def one(level: int) -> _Record:
        nonlocal place
        end = place + sizes[level]
        if end + 4 > len(data):
            raise damaged
        record = _Record(data[place:end], order)
        (count,) = struct.unpack_from(f"{order}i", data, end)
        place = end + 4
        if count < 0 or (count and level + 1 == levels):
            raise damaged
        for _ in range(count):
            record.children.append(one(level + 1))
        return record

    return one(0)


def _chosen(root: _Record, series: str | None, path: Path) -> tuple[str, _Record]:
    """Return the number and the record of the series that is meant."""
    rows = list(_rows(root))
    if not rows:
        raise InputError("holds no series with sweeps", path)
    fitting = [row for row in rows if series is None or series in row[1]]
    if len(fitting) == 1:
        return fitting[0][0], fitting[0][2]
    lines = [
        f"{number} ({names[-1]}, {len(record.children)} sweeps)" for number, names, record in rows
    ]
    more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    what = f"holds {len(rows)} series"
    if series is not None:
        what = f"{shown(series)} names {len(fitting) or 'none'} of its {len(rows)} series"
    raise InputError(
        f'{what}; choose one, as in `series: "{rows[0][0]}"`: {", ".join(lines[:_LISTED])}{more}',
        path,
        None if series is None else "series",
    )


def _rows(root: _Record) -> Iterator[tuple[str, list[str], _Record]]:
    """Yield each series that has traces: its number, all its names, its record."""
    for g, group in enumerate(root.children, 1):
        for s, record in enumerate(group.children, 1):
            if record.children and record.children[0].children:
                labels = group.text(4, 32), record.text(4, 32)
                groups, own = (str(g), labels[0]), (str(s), labels[1])
                names = [f"{a}/{b}" for a in groups for b in own]
                yield f"{g}/{s}", names, record


@dataclass(frozen=True)
class _Series:
    """A series of a bundle."""

    data: bytes
    path: Path
    record: _Record
    trees: dict[str, _Record]

    def contents(self, number: str) -> Contents:
        """Return what was recorded and commanded; `number` is that of the series."""
        sweeps = self.record.children
        traces = sweeps[0].children
        names = [t.text(4, 32) for t in traces]
        for k, sweep in enumerate(sweeps, 1):
            if [t.text(4, 32) for t in sweep.children] != names:
                raise InputError(f"sweep {k} has other traces than the first", self.path)
        every = [t for sweep in sweeps for t in sweep.children]
        sampling = self._sampling(every)
        signals = self._signals(names)
        self._refuse_current_clamp(signals)
        notes = [f"Series {number}: {self.record.text(4, 32)}."]
        planned = self.record.get("i", 120)
        if planned > len(sweeps):
            notes.append(f"{len(sweeps)} of {planned} sweeps were recorded.")
        holding, epochs = self._command(notes)
        recorded = [s.values for s in signals if s.kind == "voltage"]
        epochs = self._fitting(epochs, signals, sampling, notes)
        if epochs and recorded and not agree(epochs, recorded[0], sampling):
            epochs = ()
            notes.append("The recorded command differs from the stimulus, so it counts.")
        clamp = self._clamp([s.kind for s in signals], notes)
        starts = np.array([sweep.get("d", 48) for sweep in sweeps])
        start = (starts - starts[0]) * 1e3
        sound = bool(np.isfinite(start).all() and (np.diff(start) > 0).all())
        return Contents(
            self.path,
            "HEKA PatchMaster",
            sampling,
            signals,
            start if sound else None,
            epochs,
            holding,
            clamp,
            notes=tuple(notes),
        )

    def _sampling(self, traces: Sequence[_Record]) -> float:
        steps = {t.get("d", 104) for t in traces}
        units = {t.text(120, 8) for t in traces}
        if len(steps) > 1 or not units <= {"s", ""}:
            raise InputError(
                "the traces of this series are sampled at different intervals, or not along time",
                self.path,
            )
        step = 1e3 * float(steps.pop())
        if not 0 < step < math.inf:
            raise InputError(f"sampled every {step:g} ms, as its header says", self.path)
        return float(f"{step:.12g}")

    def _signals(self, names: Sequence[str]) -> tuple[Signal, ...]:
        found = []
        for k, name in enumerate(distinct(names)):
            traces = [sweep.children[k] for sweep in self.record.children]
            units = {t.text(96, 8) for t in traces}
            if len(units) > 1:
                raise InputError("a trace changes its unit between sweeps", self.path, name)
            found.append(signal(name, units.pop(), stacked([self._samples(t) for t in traces])))
        return tuple(found)

    def _samples(self, trace: _Record) -> np.ndarray:
        place, count = trace.get("i", 40), trace.get("i", 44)
        kind, size = trace.get("B", 70), trace.get("i", 292)
        if size and trace.get("i", 296):
            raise InputError(
                "its traces are interleaved, as PatchMaster stores long continuous recordings; "
                "such files are not read: export the series as MATLAB or ASCII",
                self.path,
            )
        if kind >= len(_NUMBERS):
            raise InputError(f"samples of an unknown kind ({kind})", self.path)
        little = trace.get("H", 64) & _LITTLE_ENDIAN
        stored = np.dtype(("<" if little else ">") + _NUMBERS[kind])
        if place < 0 or count < 1 or place + count * stored.itemsize > len(self.data):
            raise InputError(
                f"a trace of {count:,} samples from byte {place:,}, but the file has "
                f"{len(self.data):,} bytes; it is cut off",
                self.path,
            )
        memory.check(count, _BYTES_A_NUMBER, "numbers", self.path)
        scale = float(trace.get("d", 72))
        if trace.get("d", 136) or (stored.kind == "f" and scale != 1):
            raise InputError(
                "a trace with an offset of its own, or with numbers in floating point that have a "
                "scale besides, of which readers of such files disagree what it means; export the "
                "series as ABF, MATLAB or NWB",
                self.path,
            )
        return np.frombuffer(self.data, stored, count, place).astype(float) * scale

    def _refuse_current_clamp(self, signals: Sequence[Signal]) -> None:
        """Raise InputError where all traces were recorded under current clamp."""
        modes = {t.get("B", 68) for t in self.record.children[0].children}
        if modes == {_CURRENT_CLAMP} or not any(s.kind == "current" for s in signals):
            raise InputError(
                "recorded under current clamp, or without a current; currents recorded under "
                "voltage clamp are fitted",
                self.path,
            )

    # --- what was commanded

    def _command(self, notes: list[str]) -> tuple[float | None, tuple[tuple[Epoch, ...], ...]]:
        """Return the holding potential, mV, and the pieces of the stimulus in each sweep."""
        place = self.record.children[0].get("i", 40) - 1
        stimuli = self.trees[".pgf"].children
        if not 0 <= place < len(stimuli):
            notes.append("The stimulus is not in the file.")
            return None, ()
        stimulus = stimuli[place]
        # in volts, also where the unit that was shown is mV; what is not is beyond any clamp
        channel = next((c for c in stimulus.children if c.text(40, 8) in ("V", "mV")), None)
        if channel is None:
            notes.append("The stimulus has no output in V; the command is not known.")
            return None, ()
        held = 1e3 * channel.get("d", 48)
        holding = held if abs(held) <= _MAX_MV else None
        count = max(len(self.record.children), stimulus.get("i", 144))
        try:
            rows = _pieces(stimulus, channel, count)
        except _UnknownStimulus as unknown:
            notes.append(f"The stimulus {unknown}; the command is not known from the file.")
            return holding, ()
        return holding, tuple(rows[: len(self.record.children)])

    def _fitting(
        self,
        epochs: tuple[tuple[Epoch, ...], ...],
        signals: Sequence[Signal],
        sampling: float,
        notes: list[str],
    ) -> tuple[tuple[Epoch, ...], ...]:
        """Return the epochs, if they are as long as the samples and begin with them."""
        offsets = {t.get("d", 80) + t.get("d", 112) for t in self.record.children[0].children}
        lengths = [np.isfinite(row).sum() for row in signals[0].values]
        expected = [round(sum(e.duration_ms for e in sweep) / sampling) for sweep in epochs]
        if epochs and (lengths != expected or any(abs(t) > 1e-9 for t in offsets)):
            notes.append("The stimulus is not as long as the samples, so that it is left out.")
            return ()
        return epochs

    # --- the amplifier

    def _clamp(self, kinds: Sequence[str], notes: list[str]) -> dict[str, np.ndarray | float]:
        """Return what the traces of the first current, and the amplifier, say."""
        k = list(kinds).index("current")
        traces = [sweep.children[k] for sweep in self.record.children]

        def of(offset: int, factor: float) -> np.ndarray | float | None:
            values = factor * np.array([t.get("d", offset) for t in traces])
            if not (np.isfinite(values).all() and (values > 0).all()):
                return None
            return float(values[0]) if (values == values[0]).all() else values

        conductance = of(184, 1e6)
        found = {
            "membrane_capacitance_pF": of(176, 1e12),
            "series_resistance_MOhm": None if conductance is None else 1 / conductance,
            "seal_resistance_MOhm": of(168, 1e-6),
            "lowpass_kHz": of(144, 1e-3),
        }
        state = self._state(traces[0])
        if state is not None and state.get("B", 240):
            found["compensation"] = min(max(state.get("d", 40), 0.0), 1.0)
        junction = 0.0 if state is None else 1e3 * state.get("d", 136)
        if junction and abs(junction) <= _MAX_MV:
            notes.append(
                f"PatchMaster has corrected the command for a junction potential of {junction:.3g} "
                "mV; it is not corrected again."
            )
        return {key: value for key, value in found.items() if value is not None}

    def _state(self, trace: _Record) -> _Record | None:
        """Return the state of the amplifier, from the series or from the amplifiers' tree."""
        if self.record.get("i", 124) == _OF_SERIES:
            return _Record(self.record.stored[_OF_SERIES:], self.record.order)
        rows = self.trees[".amp"].children if ".amp" in self.trees else []
        place, which = self.record.get("i", 128) - 1, max(trace.get("b", 69) - 1, 0)
        if 0 <= place < len(rows) and which < len(rows[place].children):
            found = rows[place].children[which]
            return _Record(found.stored[_OF_AMPLIFIERS:], found.order)
        return None


# --- the stimulus


class _UnknownStimulus(Exception):
    """A stimulus that its record does not describe in full; says why."""


def _pieces(stimulus: _Record, channel: _Record, count: int) -> list[tuple[Epoch, ...]]:
    """Return the pieces of each sweep. Raises _UnknownStimulus."""
    flags = channel.get("H", 76)
    if not flags & _STANDARD or flags & ~(_STANDARD | _RELATIVE):
        raise _UnknownStimulus("comes from a file of its own, or has an unusual output")
    if stimulus.get("i", 100) > 1 or stimulus.get("d", 104) > 0:
        raise _UnknownStimulus("is stored from within")
    holding = channel.get("d", 48)
    base = holding if flags & _RELATIVE else 0.0
    columns = []
    for segment in channel.children:
        if segment.get("i", 44):
            raise _UnknownStimulus("takes durations from parameters")
        durations = _along(segment, 36, 48, 56, 7, count)
        if segment.get("B", 5) != 1 and durations.any():
            raise _UnknownStimulus("has parts that are not stored")
        source = segment.get("i", 16)
        if source > 1:
            raise _UnknownStimulus("takes voltages from parameters")
        levels = np.full(count, holding) if source else base + _along(segment, 8, 20, 28, 6, count)
        if not (np.abs(1e3 * levels) <= _MAX_MV).all() or not (durations >= 0).all():
            raise _UnknownStimulus("is damaged: its levels or lengths cannot be")
        columns.append((segment.get("B", 4), 1e3 * levels, 1e3 * durations))
    sweeps = []
    for k in range(count):
        epochs, before = list[Epoch](), 1e3 * holding
        for kind, levels, durations in columns:
            v, length = (float(f"{x[k]:.12g}") for x in (levels, durations))
            if length > 0:
                name = {_CONSTANT: "step", _RAMP: "ramp"}.get(kind, "other")
                epochs.append(Epoch(name, before if name == "ramp" else v, v, length))
                before = v
        sweeps.append(tuple(epochs))
    return sweeps


def _along(
    segment: _Record, value: int, factor: int, increment: int, mode: int, count: int
) -> np.ndarray:
    """Return a voltage (V) or a duration (s) of a segment in each of `count` sweeps.

    The other arguments are the offsets of its first value, of factor, increment and mode.
    """
    first, times, step = (segment.get("d", offset) for offset in (value, factor, increment))
    way = segment.get("B", mode)
    if times not in (0.0, 1.0) or (step and way not in (_INCREASING, _DECREASING)):
        raise _UnknownStimulus("changes from sweep to sweep by a factor, or in a mixed order")
    found = first + step * np.arange(count)
    return np.asarray(found[::-1] if way == _DECREASING else found)
