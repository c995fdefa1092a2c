"""Igor binary waves (.ibw), version 2 and 5: one sweep, or a matrix of samples x sweeps.

A wave is a header of fixed length and its numbers, so that it is read here, each length held
against the size of the file. The package igor2 reads the same numbers (the tests compare them), but
believes the header: two kilobytes that announce a long note keep it busy for minutes.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import Contents, signal
from channelfit.reading.units import unit_factor

_COMPLEX, _UNSIGNED = 0x01, 0x40
_NUMBERS = {0x02: "f4", 0x04: "f8", 0x08: "i1", 0x10: "i2", 0x20: "i4"}
#: Where a wave begins and where its numbers do, bytes from the start of the file, by version.
_PLACES = {2: (16, 126), 5: (64, 384)}
_BYTES_A_NUMBER = 16


def read(path: Path) -> Contents:
    """Return the contents of a wave; its first dimension is time.

    Raises InputError: no wave, one of texts or complex numbers or three dimensions, or truncated.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(max(numbers for _, numbers in _PLACES.values()))
    order = "<" if head[:1] != b"\0" else ">"
    version = struct.unpack_from(f"{order}h", head)[0] if len(head) > 1 else 0
    if version not in _PLACES:
        raise InputError(
            "not an Igor binary wave of version 2 or 5 (of an experiment, .pxp, save the wave "
            "itself: Data > Save Waves > Save Igor Binary)",
            path,
        )
    begin, numbers = _PLACES[version]
    if size < numbers:
        raise InputError(f"ends after {size} bytes, within the header of the wave", path)
    kind, name, unit, axis, shape, step = _header(head, order, version, begin)
    stored = _stored(kind, order, path)
    if not shape or len(shape) > 2 or min(shape) < 1:
        without = ", one of them without samples" if shape and min(shape) < 1 else ""
        message = f"{len(shape)} dimensions{without}; time, or time x sweeps, was expected"
        raise InputError(message, path)
    count = math.prod(shape)
    if numbers + count * stored.itemsize > size:
        raise InputError(
            f"the header announces {count:,} numbers of {stored.itemsize} bytes, but the file has "
            f"{size:,} bytes; it is cut off",
            path,
        )
    memory.check(count, _BYTES_A_NUMBER, "numbers", path)
    values = np.fromfile(path, stored, count, offset=numbers).astype(float)
    sweeps = values.reshape(shape, order="F").T if len(shape) == 2 else values[None]
    if version == 5 and not (unit and axis):
        longer = _long_units(path, head, order, numbers + count * stored.itemsize)
        unit, axis = unit or longer[0], axis or longer[1]
    sampling, notes = _sampling(step, axis)
    return Contents(path, f"Igor {version}", sampling, (signal(name, unit, sweeps),), notes=notes)


def _stored(kind: int, order: str, path: Path) -> np.dtype[Any]:
    """Return how the numbers of a wave are stored; order is "<" or ">"."""
    if kind & _COMPLEX or kind & ~_UNSIGNED not in _NUMBERS:
        raise InputError(
            "a wave of text or of complex numbers; one of real numbers is needed", path
        )
    stored = np.dtype(order + _NUMBERS[kind & ~_UNSIGNED])
    if kind & _UNSIGNED and stored.kind == "i":
        return np.dtype(stored.str.replace("i", "u"))
    return stored


def _sampling(step: float, axis: str) -> tuple[float, tuple[str, ...]]:
    """Return the sampling interval, ms, NaN where it is not known, and notes on it.

    Arguments:
        step: of the first axis of the wave, in the unit `axis`.
    """
    try:
        sampling = step * unit_factor(axis, "time")[0]
    except InputError:
        unit = f'is in "{axis}", which is no time' if axis else "has no unit"
        note = f"The first axis of the wave {unit}, so that its sampling is not known."
        return math.nan, (note,)
    return (sampling if 0 < sampling < math.inf else math.nan), ()


def _header(
    data: bytes, order: str, version: int, begin: int
) -> tuple[int, str, str, str, tuple[int, ...], float]:
    """Return type, name, unit, unit of the first axis, shape, and step along the first axis."""

    def get(code: str, offset: int) -> tuple[int | float, ...]:
        return struct.unpack_from(order + code, data, begin + offset)

    def text(offset: int, length: int) -> str:
        return _text(data[begin + offset : begin + offset + length])

    if version == 2:
        count = int(get("i", 42)[0])
        return int(get("h", 0)[0]), text(6, 20), text(34, 4), text(38, 4), (count,), get("d", 48)[0]
    dimensions = [int(n) for n in get("4i", 68)]
    shape = tuple(dimensions[: dimensions.index(0)] if 0 in dimensions else dimensions)
    return int(get("h", 16)[0]), text(28, 32), text(148, 4), text(152, 4), shape, get("d", 84)[0]


def _long_units(path: Path, head: bytes, order: str, end: int) -> tuple[str, str]:
    """Return units of more than three letters, of the numbers and of the first axis.

    They stand behind the numbers, which end at byte `end`, the formula and the note.
    """
    formula, note, unit, axis = struct.unpack_from(order + "4i", head, 8)
    size, lengths = path.stat().st_size, (formula, note, unit, axis)
    if min(lengths) < 0 or end + sum(lengths) > size:
        raise InputError(
            f"the header announces a note and units that the file of {size:,} bytes does not have; "
            "it is cut off",
            path,
        )
    with open(path, "rb") as file:
        file.seek(end + formula + note)
        return _text(file.read(unit)), _text(file.read(axis))


def _text(stored: bytes) -> str:
    return stored.split(b"\0", 1)[0].decode("latin-1").strip()
