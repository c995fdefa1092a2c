"""A file of task results, each written as soon as it is there, so that a run can be resumed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.tasks.records import DAMAGED, Records, packed, unpacked

Key = tuple[str | int, ...]
#: Arrays by name, of up to four dimensions; text as its UTF-8 bytes, uint8.
Arrays = dict[str, np.ndarray]

#: The first bytes of the file: its kind and its version.
_BEGINS = b"channelfit pieces 1\n"
#: The length of the heading of a record: JSON with the key and the names of the arrays.
_LENGTH = struct.Struct("<I")


class ResultStore:
    """A file of task results, which is only ever appended to.

    Results of an earlier run are read one by one when needed, so all of them together may be larger
    than memory.

    Arguments:
        path: the file. It is made if there is none; an incomplete record at its end is cut off.

    Attributes:
        fault: why the last result could not be stored; None if it was.

    Raises InputError: the file cannot be read or written, is something else, or is in use.
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
        """The keys of the tasks that have a stored result."""
        return frozenset(self._places)

    def get(self, key: Key) -> Arrays:
        """Return the result of a task.

        Raises:
            KeyError: it is not stored. InputError: its record is damaged.
        """
        assert self._records is not None
        payload = self._records.at(self._places[key])
        _, names, place = _heading(payload, self.path)
        try:
            return dict(zip(names, unpacked(payload, place, len(names)), strict=True))
        except InputError as error:
            raise error.at(self.path) from None

    def put(self, key: Key, arrays: Arrays) -> None:
        """Store the result of a task; a second result of the same task is ignored."""
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
        """Close the file, and delete it unless it is to be kept."""
        if self._records is not None:
            self._records.close(keep)
            self._records = None


def _heading(payload: bytes, path: Path) -> tuple[Key, list[str], int]:
    """Return the key, the names of the arrays, and where they begin."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        begins = _LENGTH.size + length
        key, names = json.loads(payload[_LENGTH.size : begins])
        good = all(isinstance(part, str | int) for part in key)
        if good and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return tuple(key), names, begins
    except (struct.error, ValueError, TypeError, RecursionError):
        pass  # raised below
    raise InputError("this is no file of results of this version", path)


def expect(found: Arrays, shapes: Mapping[str, tuple[str, tuple[int | None, ...]]]) -> None:
    """Refuse a stored result if its arrays are not of the kinds and shapes that were written.

    Arguments:
        shapes: by name the kinds of numbers, such as "f" or "iu", and the shape, in which None
            stands for any length.

    Raises InputError: an array is missing, or another one.
    """
    for name, (kinds, shape) in shapes.items():
        array = found.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim != len(shape):
            raise InputError(DAMAGED, None, name)
        if any(n is not None and n != own for n, own in zip(shape, array.shape, strict=True)):
            raise InputError(DAMAGED, None, name)


def decoded_json(found: Arrays, name: str) -> Any:
    """Decode the JSON that an array of a stored result holds. Raises: InputError if it is none."""
    expect(found, {name: ("u", (None,))})
    try:
        return json.loads(found[name].tobytes())
    except (ValueError, RecursionError):
        raise InputError(DAMAGED, None, name) from None
