"""A file that is only ever added to, so that a kill or a full disk costs at most its last record.

Each record stands with its length and its checksum. What is not whole at the end, as a process
leaves it that was killed while it wrote, is cut off when the file is opened again. While a process
has the file no other one can have it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from channelfit.reading.errors import InputError, NotWritten
from channelfit.reading.files import opened

#: Before each record: the length of what follows, and its checksum.
_HEAD = struct.Struct("<II")
#: An array: its type and its number of dimensions, and up to four of them.
_ARRAY = struct.Struct("<B4I")
_TYPES = tuple(np.dtype(name) for name in ("<f8", "<f4", "|i1", "<i4", "<i8", "|b1", "|u1"))
#: What is wrong with a record that is whole and cannot be what was written.
DAMAGED = "is damaged, or was changed: a record in it is not what was written; begin anew"
#: A byte beyond every file of records, which is locked where only bytes can be.
_LOCKED_AT = 1 << 40


class Records:
    """The records of a file: first those that it has are read, then others are added.

    Arguments:
        path: the file; it is made where there is none.
        begins: how the file begins: what it is, and in which form.
        what: the same in words, for messages.

    Raises:
        InputError: the file cannot be read or written, is something else, or is in use.
    """

    def __init__(self, path: Path, begins: bytes, what: str) -> None:
        self.path = path
        try:
            # nothing is cut off before the lock: another process may have made the file just now
            self._file: IO[bytes] = os.fdopen(opened(path), "r+b")
            try:
                lock(self._file, path)
                self.is_new = self._begin(begins, what)
            except (OSError, InputError):
                with contextlib.suppress(OSError):  # again of what the buffer holds
                    self._file.close()
                raise
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror or error}", path) from None

    def _begin(self, begins: bytes, what: str) -> bool:
        """Writes how a new file begins; returns whether it is new. Another file is refused."""
        found = self._file.read(len(begins))
        if found == begins:
            return False
        if not begins.startswith(found):
            raise InputError(f"this is no {what} of this version", self.path)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(begins)
        self._file.flush()  # a full disk is told of here, with the name of the file
        return True

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Each whole record with its place, from here to the end; what follows them is cut off."""
        end = os.fstat(self._file.fileno()).st_size
        while True:
            place = self._file.tell()
            head = self._file.read(_HEAD.size)
            length, check = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            whole = 0 < length <= end - place - _HEAD.size
            payload = self._file.read(length) if whole else b""
            if not whole or zlib.crc32(payload) != check:
                self._file.seek(place)
                self._file.truncate()
                return
            yield place, payload

    def at(self, place: int) -> bytes:
        """The record at a place that `read` or `add` has told."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(place)
        length, _ = _HEAD.unpack(self._file.read(_HEAD.size))
        payload = self._file.read(length)
        self._file.seek(end)
        return payload

    @property
    def place(self) -> int:
        """Where the next record would begin, bytes from the beginning of the file."""
        return self._file.tell()

    def add(self, payloads: Sequence[bytes]) -> None:
        """Writes records to the disk, at the end of what was read.

        What was written of them is cut off again where there is no room for all.

        Raises:
            InputError: they cannot be written.
        """
        place = self.place
        parts: list[bytes] = []
        for payload in payloads:
            parts += [_HEAD.pack(len(payload), zlib.crc32(payload)), payload]
        try:
            self._file.write(b"".join(parts))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._forget_after(place)
            raise NotWritten(f"cannot be written: {error.strerror or error}", self.path) from None

    def _forget_after(self, place: int) -> None:
        """Goes back to a place after a failure; what is left in the buffer must not follow."""
        descriptor = os.dup(self._file.fileno())
        with contextlib.suppress(OSError):  # of the buffer, for the same reason as before
            self._file.close()
        self._file = os.fdopen(descriptor, "r+b")
        self._file.seek(place)
        self._file.truncate()

    def close(self, keep: bool) -> None:
        """Ends the use of the file; if it is not to be kept, it goes."""
        self._file.close()
        if not keep:
            self.path.unlink(missing_ok=True)


def packed(arrays: Sequence[np.ndarray]) -> bytes:
    """Arrays of up to four dimensions as bytes."""
    parts = []
    for array in arrays:
        shape = array.shape + (0,) * (4 - array.ndim)
        parts.append(_ARRAY.pack(_TYPES.index(array.dtype) | array.ndim << 4, *shape))
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def unpacked(payload: bytes, place: int, count: int) -> list[np.ndarray]:
    """So many arrays from a place on; copies, which may be changed.

    Raises:
        InputError: these bytes hold something else.
    """
    found = []
    for _ in range(count):
        code, *shape = _ARRAY.unpack_from(payload, place) if _left(payload, place) else (255,)
        place += _ARRAY.size
        if code & 15 >= len(_TYPES) or code >> 4 > len(shape):
            raise InputError(DAMAGED)
        dtype, shape = _TYPES[code & 15], shape[: code >> 4]
        n = math.prod(shape)
        if n * dtype.itemsize > len(payload) - place:
            raise InputError(DAMAGED)
        found.append(np.frombuffer(payload, dtype, n, place).reshape(shape).copy())
        place += n * dtype.itemsize
    if place != len(payload):
        raise InputError(DAMAGED)
    return found


def _left(payload: bytes, place: int) -> bool:
    return len(payload) - place >= _ARRAY.size


def lock(file: IO[bytes], path: Path) -> None:
    """Keeps a file for this process alone, until it is closed or the process ends.

    Raises:
        InputError: another process has it.
    """
    try:
        if sys.platform == "win32":
            import msvcrt  # there on Windows only

            file.seek(_LOCKED_AT)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            file.seek(0)
        else:
            import fcntl  # there on all but Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            raise InputError("another process is using it", path) from None
        raise
