"""Readers of the program's own files, as strict as those of users' files.

Whatever lay on a disk may be cut off, damaged, edited or forged.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError, shown


@dataclass(frozen=True)
class Each:
    """The shape of every value of a mapping, whatever its keys."""

    of: Any


@dataclass(frozen=True)
class Listed:
    """The shape of every entry of a list, and how many there are; None for any number."""

    of: Any
    count: int | None = None


#: Shapes of single values.
NUMBER, WHOLE, TEXT, FLAG = "a number", "a whole number", "a text", "true or false"
#: A text, a number, true or false.
PLAIN = "a plain value"
_TYPES: dict[str, tuple[type, ...]] = {
    NUMBER: (int, float),
    WHOLE: (int,),
    TEXT: (str,),
    FLAG: (bool,),
    PLAIN: (str, int, float, bool),
}


def check_shape(value: Any, shape: Any, file: Path | None, key: str = "") -> None:
    """Refuse data from JSON that are of another shape than was written.

    Null may stand for any value that is not required; keys that no shape names are left alone.

    Arguments:
        shape: a text above, `Each`, `Listed`, or a mapping of shapes by key. A key that ends in
            ``!`` is required, and one that ends in ``?`` must be there, if only with null.

    Raises InputError: with the dotted key.
    """
    if value is None:
        return
    if isinstance(shape, Mapping | Each):
        if not isinstance(value, Mapping):
            raise _other(value, "a mapping", file, key)
        shapes = shape if isinstance(shape, Mapping) else dict.fromkeys(value, shape.of)
        _check_mapping(value, shapes, file, key)
    elif isinstance(shape, Listed):
        n = len(value) if isinstance(value, list) else -1
        if n < 0 or n != (n if shape.count is None else shape.count):
            raise _other(value, f"a list{f' of {shape.count}' if shape.count else ''}", file, key)
        for k, one in enumerate(value, 1):
            check_shape(one, shape.of, file, f"{key}[{k}]")
    elif not _is_of(value, shape):
        raise _other(value, shape, file, key)


def _is_of(value: Any, shape: str) -> bool:
    """Return whether a single value is of a shape; true and false are no numbers."""
    if isinstance(value, bool):
        return shape in (FLAG, PLAIN)
    if isinstance(value, int) and abs(value) > memory.MOST:
        return False
    return isinstance(value, _TYPES[shape])


def _check_mapping(
    value: Mapping[str, Any], shapes: Mapping[str, Any], file: Path | None, at: str
) -> None:
    for name, inner in shapes.items():
        own = name if name in value else name.rstrip("!?")
        if (own not in value and own != name) or (value.get(own) is None and name == f"{own}!"):
            raise InputError(f"is damaged: it holds no {own}", file, at or None)
        check_shape(value.get(own), inner, file, f"{at}.{own}" if at else own)


def _other(value: Any, expected: str, file: Path | None, key: str) -> InputError:
    return InputError(f"is damaged: {expected} was expected, not {shown(value)}", file, key)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz file.

    Raises InputError: it is missing or damaged, holds anything but plain numbers, or unpacks to
    more than fits into memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
        memory.check(n_bytes, 1, "bytes of unpacked arrays", path)
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path) from None
    except (
        *(ValueError, LookupError, EOFError, SyntaxError, RuntimeError, TypeError, OverflowError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        message = " ".join(str(error).split())[:200]
        raise InputError(f"is damaged, and no file of arrays: {message}", path) from None
