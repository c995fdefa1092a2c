"""Axon Binary Format, ABF 1 and 2, by pyABF: sweeps, and the protocol of the header's epochs.

The header's protocol is believed only where it can be the one that ran. Where the command was
recorded and differs, or a user list changes the epochs, the recorded command counts.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import (
    Contents,
    Epoch,
    Signal,
    agree,
    distinct,
    kind_and_factor,
    missing,
    packed,
    read_contents,
    signal,
    stacked,
)

_EPISODIC_WITH_LENGTHS, _GAP_FREE = 1, 3
#: Bytes of the header that hold sizes, of a block and of a tag; which section holds the samples.
_HEAD, _BLOCK, _TAG, _DATA_SECTION = 512, 512, 64, 10
_KINDS = {"Step": "step", "Ramp": "ramp"}
#: Beyond any clamp: levels that a damaged or foreign header holds.
_MAX_MV = 1000.0
#: Values of an amplifier: the header's name, ours, the factor, and an upper limit. A
#: filter of 100 kHz is the amplifier's word for none.
_TELEGRAPHED = (
    ("fTelegraphMembraneCap", "membrane_capacitance_pF", 1.0, 10_000.0),
    ("fTelegraphFilter", "lowpass_kHz", 1e-3, 100.0),
)


def read(path: Path) -> Contents:
    """Return the contents of an ABF file.

    Raises InputError: damaged, truncated, or without pyABF.
    """
    return read_contents(f"{__name__}:packed_contents", path, "an ABF file")


def packed_contents(path: Path) -> dict[str, np.ndarray | str]:
    """Return the contents of an ABF file, packed for another process (`second_process`)."""
    try:
        import pyabf  # optional
    except ImportError:
        raise missing("pyabf", "an ABF file") from None
    try:
        return packed(_contents(pyabf, path))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # pyABF raises many kinds on a damaged file
        raise InputError(f"not a readable ABF file: {error}"[:200], path) from None


def _contents(pyabf: Any, path: Path) -> Contents:
    _check_size(path)
    abf = pyabf.ABF(str(path))
    header = abf._headerV1 if abf.abfVersion["major"] == 1 else abf._protocolSection
    notes = list[str]()
    traces = _sweeps(abf)
    names = distinct([_text(name) for name in abf.adcNames])
    signals = tuple(
        signal(name, "" if unit == "?" else _text(unit), values)
        for name, unit, values in zip(names, abf.adcUnits, traces, strict=True)
    )
    sampling = _sampling_us(abf) / 1e3
    if not 0 < sampling < math.inf:
        raise InputError(f"sampled every {sampling:g} ms, as its header says", path)
    recorded = [s.values for s in signals if s.kind == "voltage"]
    currents = any(s.kind == "current" for s in signals)
    _refuse_current_clamp(abf, signals, path)
    dac = _waveform_output(abf, notes)
    holding, epochs = None, tuple[tuple[Epoch, ...], ...]()
    if currents and dac is None:
        notes.append("The header has no output in mV or V; the command is not known.")
    if currents and dac is not None:
        factor = kind_and_factor(_text(abf.dacUnits[dac]))[1]
        held = abf.holdingCommand[dac] * factor
        holding = float(held) if abs(held) <= _MAX_MV else None
        if header.nOperationMode != _EPISODIC_WITH_LENGTHS:
            epochs = _epochs(pyabf, abf, dac, factor, sampling, notes)
        if epochs and recorded and not agree(epochs, recorded[0], sampling):
            epochs = ()
            notes.append(
                "The recorded command differs from the nominal one of the header, so it counts."
            )
    start = None
    if abf.abfVersion["major"] == 2 and header.nOperationMode != _GAP_FREE:
        start = np.arange(abf.sweepCount) * abf.sweepIntervalSec * 1e3
    return Contents(
        path,
        f"ABF {abf.abfVersion['major']}",
        sampling,
        signals,
        start,
        epochs,
        holding,
        _telegraphed(abf, [s.kind for s in signals]),
        notes=tuple(notes),
    )


def _check_size(path: Path) -> None:
    """Raise InputError where the header announces more than the file has, or no samples."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if head[:4] not in (b"ABF ", b"ABF2") or len(head) < _HEAD:
        raise InputError("not an ABF file: it does not begin as one", path)
    if head[:4] == b"ABF2":
        sections = list(struct.Struct("<IIq").iter_unpack(head[76 : 76 + 18 * 16]))
        n_samples = sections[_DATA_SECTION][2]
        (n_sweeps,) = struct.unpack_from("<I", head, 12)
    else:
        n_samples, n_sweeps = (struct.unpack_from("<i", head, place)[0] for place in (10, 16))
        block, tags, n_tags = (struct.unpack_from("<i", head, place)[0] for place in (40, 44, 48))
        (floats,) = struct.unpack_from("<h", head, 100)
        sections = [(block, 4 if floats else 2, n_samples), (tags, _TAG, n_tags)]
    # one byte at least, or an entry without length could be repeated any number of times
    ends = [block * _BLOCK + max(1, length) * count for block, length, count in sections]
    sound = all(block >= 0 and count >= 0 for block, _, count in sections)
    if n_samples < 1 or not sound or not 0 <= n_sweeps <= n_samples:
        raise InputError("holds no samples; was the recording stopped at once?", path)
    if max(ends) > size:
        raise InputError(
            f"the header announces {n_samples:,} samples and {max(ends):,} bytes, but the file "
            f"has {size:,}; it is cut off, or was copied before it was complete",
            path,
        )


def _text(name: str) -> str:
    return "".join(c for c in name if c.isprintable()).strip()


def _sweeps(abf: Any) -> list[np.ndarray]:
    """Return the samples of each channel, (n_sweeps, n_samples)."""
    lengths = [abf.sweepPointCount] * abf.sweepCount
    if abf.sweepCount > 1 and hasattr(abf, "_synchArraySection"):
        lengths = [n // abf.channelCount for n in abf._synchArraySection.lLength]
    ends = np.cumsum(lengths)
    return [
        stacked([row[b - n : b] for n, b in zip(lengths, ends, strict=True)]) for row in abf.data
    ]


def _sampling_us(abf: Any) -> float:
    """Return the sampling interval of one channel, microseconds; pyABF rounds the rate to 1 Hz."""
    if abf.abfVersion["major"] == 1:
        return float(abf._headerV1.fADCSampleInterval) * int(abf.channelCount)
    return float(abf._protocolSection.fADCSequenceInterval)


def _outputs(abf: Any, key: str) -> list[int]:
    section = abf._headerV1 if abf.abfVersion["major"] == 1 else abf._dacSection
    return list(getattr(section, key))


def _waveform_output(abf: Any, notes: list[str]) -> int | None:
    """Return the number of the output that commands the voltage; None without one."""
    outputs = range(min(len(abf.holdingCommand), len(abf.dacUnits)))
    volts = [k for k in outputs if kind_and_factor(_text(abf.dacUnits[k]))[0] == "voltage"]
    enabled = _outputs(abf, "nWaveformEnable")
    active = [k for k in volts if k < len(enabled) and enabled[k] == 1]
    if len(active) > 1:
        names = ", ".join(_text(abf.dacNames[k]) for k in active)
        notes.append(f"Several outputs command a voltage ({names}); the protocol is the first's.")
    return active[0] if active else volts[0] if volts else None


def _refuse_current_clamp(abf: Any, signals: Sequence[Signal], path: Path) -> None:
    """Raise InputError where voltages answer a command that is a current."""
    enabled = _outputs(abf, "nWaveformEnable")
    commands = [
        _text(unit)
        for k, unit in enumerate(abf.dacUnits)
        if k < len(enabled) and enabled[k] == 1 and kind_and_factor(_text(unit))[0] == "current"
    ]
    if commands and not any(s.kind == "current" for s in signals):
        raise InputError(
            f"recorded under current clamp (the command is in {commands[0]}, and no signal is a "
            "current); currents recorded under voltage clamp are fitted",
            path,
        )


def _epochs(
    pyabf: Any, abf: Any, dac: int, factor: float, sampling_ms: float, notes: list[str]
) -> tuple[tuple[Epoch, ...], ...]:
    """Return the nominal protocol of each sweep; without one none, and a note why."""
    enabled, source = _outputs(abf, "nWaveformEnable"), _outputs(abf, "nWaveformSource")
    if dac >= len(enabled) or enabled[dac] != 1 or source[dac] == 0:
        notes.append("The header defines no waveform; the command is not in the file.")
        return ()
    if source[dac] != 1:
        notes.append("The command came from a file of its own, which is not read.")
        return ()
    lists = abf._headerV1 if abf.abfVersion["major"] == 1 else abf._userListSection
    if any(lists.nULEnable):
        notes.append(
            "A user list changes the protocol from sweep to sweep, so that the epochs of the "
            "header are not the protocol that ran; only a recorded command shows it."
        )
        return ()
    if any(_outputs(abf, "nLeakSubtractType")) if abf.abfVersion["major"] == 2 else False:
        notes.append("P/N leak subtraction was on during the recording.")
    table = pyabf.waveform.EpochTable(abf, dac).epochWaveformsBySweep
    sweeps = [_one_sweep(table[k], factor, sampling_ms, abf.sweepPointCount) for k in abf.sweepList]
    if None in sweeps:
        notes.append("The header's protocol is damaged: its levels or lengths cannot be.")
        return ()
    return tuple(sweep for sweep in sweeps if sweep is not None)


def _one_sweep(
    table: Any, factor: float, sampling_ms: float, n_samples: int
) -> tuple[Epoch, ...] | None:
    """Return the epochs of a sweep; None where they cannot have run."""
    epochs, before, position = list[Epoch](), table.levels[0] * factor, 0
    for first, last, level, kind in zip(
        table.p1s, table.p2s, table.levels, table.types, strict=True
    ):
        v = level * factor
        if first != position or not first <= last <= n_samples or not abs(v) <= _MAX_MV:
            return None
        if last > first:
            known = _KINDS.get(kind, "other")
            start = v if known == "step" else before
            epochs.append(Epoch(known, start, v, (last - first) * sampling_ms))
        position, before = last, v
    return tuple(epochs) if position == n_samples else None


def _telegraphed(abf: Any, kinds: Sequence[str]) -> dict[str, float]:
    """Return the telegraphed capacitance, pF, and filter, kHz, of the first current channel."""
    section = abf._headerV1 if abf.abfVersion["major"] == 1 else abf._adcSection
    on = list(getattr(section, "nTelegraphEnable", ()))
    channels = [k for k, kind in enumerate(kinds) if kind == "current"]
    found = dict[str, float]()
    for k in channels[:1]:
        for name, key, factor, most in _TELEGRAPHED:
            values = list(getattr(section, name, ()))
            if k < min(len(values), len(on)) and on[k] == 1 and 0 < values[k] * factor < most:
                found[key] = round(float(values[k]) * factor, 6)
    return found
