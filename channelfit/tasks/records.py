"""A file of records that is only ever appended to: a kill or a full disk costs at most the last.

Before each record stand its length and its checksum. A process that is killed while it writes
leaves an incomplete record, which is cut off when the file is opened again. The file is locked: one
process at a time can use it.
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

#: Before each record: its length and its checksum.
_HEAD = struct.Struct("<II")
#: Before each array: its type and number of dimensions in one byte, and up to four lengths.
_ARRAY = struct.Struct("<B4I")
_TYPES = tuple(np.dtype(name) for name in ("<f8", "<f4", "|i1", "<i4", "<i8", "|b1", "|u1"))
#: The message about a record that has a good checksum but cannot have been written here.
DAMAGED = "is damaged, or was changed: a record in it is not what was written; begin anew"
#: The byte that is locked on Windows, which locks bytes, not files; it is beyond every file.
_LOCKED_AT = 1 << 40


class Records:
    """The records of a file: the existing ones are read first, then others are appended.

    Arguments:
        path: the file; it is made if there is none.
        begins: the first bytes of the file: its kind and its version.
        kind: of the file, in words for messages.

    Raises InputError: the file cannot be read or written, is something else, or is in use.
    """

    def __init__(self, path: Path, begins: bytes, kind: str) -> None:
        self.path = path
        try:
            # nothing is cut off before the lock: another process may have made the file just now
            self._file: IO[bytes] = os.fdopen(opened(path), "r+b")
            try:
                lock(self._file, path)
                self.is_new = self._begin(begins, kind)
            except (OSError, InputError):
                with contextlib.suppress(OSError):  # it writes the buffer, which fails again
                    self._file.close()
                raise
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror or error}", path) from None

    def _begin(self, begins: bytes, kind: str) -> bool:
        """Write the first bytes of a new file, or check them; return whether the file is new."""
        found = self._file.read(len(begins))
        if found == begins:
            return False
        if not begins.startswith(found):
            raise InputError(f"this is no {kind} of this version", self.path)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(begins)
        self._file.flush()  # a full disk raises here, where the name of the file is known
        return True

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield each complete record with its place, from here on; the rest is cut off."""
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
        """Return the record at a place, as `read` yields it or `place` was before `add`."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(place)
        length, _ = _HEAD.unpack(self._file.read(_HEAD.size))
        payload = self._file.read(length)
        self._file.seek(end)
        return payload

    @property
    def place(self) -> int:
        """The place of the next record, bytes from the beginning of the file."""
        return self._file.tell()

    def add(self, payloads: Sequence[bytes]) -> None:
        """Append records, and wait until they are on the disk.

        If there is no room for all of them, none is left in the file.

        Raises InputError: they cannot be written.
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
        """Go back to a place after a failure, and drop the rest of the buffer."""
        descriptor = os.dup(self._file.fileno())
        with contextlib.suppress(OSError):  # it writes the buffer, which fails again
            self._file.close()
        self._file = os.fdopen(descriptor, "r+b")
        self._file.seek(place)
        self._file.truncate()

    def close(self, keep: bool) -> None:
        """Close the file, and delete it unless it is to be kept."""
        self._file.close()
        if not keep:
            self.path.unlink(missing_ok=True)


def packed(arrays: Sequence[np.ndarray]) -> bytes:
    """Return arrays of up to four dimensions as bytes."""
    parts = []
    for array in arrays:
        shape = array.shape + (0,) * (4 - array.ndim)
        parts.append(_ARRAY.pack(_TYPES.index(array.dtype) | array.ndim << 4, *shape))
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def unpacked(payload: bytes, place: int, count: int) -> list[np.ndarray]:
    """Return `count` arrays from a place on; they are copies, which may be changed.

    Raises InputError: these bytes hold something else.
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
    """Lock a file for this process, until it is closed or the process ends.

    Raises InputError: another process has it.
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
