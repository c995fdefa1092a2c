"""Results of pieces in a file, each as soon as it is there, so that a run can go on."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.pieces.records import DAMAGED, Records, packed, unpacked
from channelfit.reading.errors import InputError

Key = tuple[str | int, ...]
#: Arrays by name, of up to four dimensions; text as its UTF-8 bytes, uint8.
Arrays = dict[str, np.ndarray]

#: How the file begins: what it is, and in which form.
_BEGINS = b"channelfit pieces 1\n"
#: Of a record: the length of its heading, JSON with the key and the names of the arrays.
_LENGTH = struct.Struct("<I")


class Kept:
    """The results of pieces in a file that is only ever added to.

    Results of an earlier run are read when they are asked for, so they may be larger than memory.

    Arguments:
        path: the file; it is made where there is none, and what is not whole at its end is cut off.

    Attributes:
        fault: why a result could not be kept; None while all are.

    Raises:
        InputError: the file cannot be read or written, is something else, or is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: InputError | None = None
        self._records: Records | None = Records(path, _BEGINS, "file of results")
        self._places: dict[Key, int] = {}
        for place, payload in self._records.read():
            self._places[_heading(payload, path)[0]] = place

    @property
    def keys(self) -> AbstractSet[Key]:
        """The pieces whose results are kept."""
        return frozenset(self._places)

    def get(self, key: Key) -> Arrays:
        """The result of a piece.

        Raises:
            KeyError: it is not kept. InputError: its record is damaged.
        """
        assert self._records is not None
        payload = self._records.at(self._places[key])
        _, names, place = _heading(payload, self.path)
        try:
            return dict(zip(names, unpacked(payload, place, len(names)), strict=True))
        except InputError as error:
            raise error.at(self.path) from None

    def put(self, key: Key, arrays: Arrays) -> None:
        """Keeps a result; a second one of the same piece is not kept."""
        if self._records is None or key in self._places:
            return
        heading = json.dumps([list(key), list(arrays)]).encode()
        place = self._records.place
        try:
            payload = _LENGTH.pack(len(heading)) + heading + packed(list(arrays.values()))
            self._records.add([payload])
        except InputError as fault:
            self.fault = fault
        else:
            self._places[key] = place
            self.fault = None

    def close(self, keep: bool) -> None:
        """Ends the use of the file; if it is not to be kept, it goes."""
        if self._records is not None:
            self._records.close(keep)
            self._records = None


def _heading(payload: bytes, path: Path) -> tuple[Key, list[str], int]:
    """The key, the names of the arrays, and where they begin."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        begins = _LENGTH.size + length
        key, names = json.loads(payload[_LENGTH.size : begins])
        good = all(isinstance(part, str | int) for part in key)
        if good and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return tuple(key), names, begins
    except (struct.error, ValueError, TypeError, RecursionError):
        pass  # told below
    raise InputError("this is no file of results of this version", path)


def expect(found: Arrays, shapes: Mapping[str, tuple[str, tuple[int | None, ...]]]) -> None:
    """Refuses a kept result whose arrays are not of the kinds and shapes that were written.

    Arguments:
        shapes: by name the kinds of numbers, such as "f" or "iu", and the shape, in which None
            stands for any length.

    Raises:
        InputError: an array is missing, or another one.
    """
    for name, (kinds, shape) in shapes.items():
        array = found.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim != len(shape):
            raise InputError(DAMAGED, None, name)
        if any(n is not None and n != own for n, own in zip(shape, array.shape, strict=True)):
            raise InputError(DAMAGED, None, name)


def told_in(found: Arrays, name: str) -> Any:
    """What an array of a kept result says in JSON. Raises InputError where it is none."""
    expect(found, {name: ("u", (None,))})
    try:
        return json.loads(found[name].tobytes())
    except (ValueError, RecursionError):
        raise InputError(DAMAGED, None, name) from None
