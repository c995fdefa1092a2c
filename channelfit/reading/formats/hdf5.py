"""HDF5: datasets by path, for files of any program, and functions that NWB and MATLAB 7.3 share.

A small file of HDF5 can name others, announce sizes without end, or unpack to them. Links to other
files, storage in other files and virtual datasets are refused, and sizes are checked before numbers
are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats.contents import Contents, missing
from channelfit.reading.formats.matrices import NamedArray, contents_of
from channelfit.reading.second_process import read_in_process

#: As they are stored, unpacked, in float64, and sent to the other process.
_BYTES_A_NUMBER = 32
_MAX_NUMBERS = 50_000_000
_MAX_DATASETS, _MAX_DEPTH = 10_000, 20
#: Between the path of a dataset and the unit that it has, as they come from the other process.
_UNIT_OF = "unit of "


def read(path: Path, layout: str | None = None, signal: str | None = None) -> Contents:
    """Return the vectors and matrices of a file, by their paths.

    Arguments:
        layout: "sweeps x samples" or "samples x sweeps"; found out without it.
        signal: the name of the array that is the recording; the largest without it.

    Raises:
        InputError: damaged, too large, with links to other files, without h5py, or without numbers.
    """
    found = read_in_process(f"{__name__}:datasets", path, "an HDF5 file")
    arrays = [
        NamedArray(name, str(found.get(_UNIT_OF + name, "")), value)
        for name, value in found.items()
        if isinstance(value, np.ndarray)
    ]
    refused = [
        f"{name} {why}"
        for name, why in found.items()
        if isinstance(why, str) and not name.startswith(_UNIT_OF)
    ]
    return contents_of(path, "HDF5", arrays, layout, refused, signal)


def datasets(path: Path) -> dict[str, np.ndarray | str]:
    """Return arrays of real numbers with units, by path; a text says why one is unusable."""
    found: dict[str, np.ndarray | str] = {}
    with opened(path, "an HDF5 file") as file:
        total = 0
        for name, dataset in walked(file):
            if why := unusable(dataset):
                found[name] = why
                continue
            total += dataset.size
            found[name] = numbers(dataset, total)
            unit = next((dataset.attrs[k] for k in ("unit", "units") if k in dataset.attrs), "")
            if text := as_text(unit):
                found[_UNIT_OF + name] = text
    return found


@contextmanager
def opened(path: Path, format_name: str) -> Iterator[Any]:
    """Open an HDF5 file for reading; its faults become `InputError`.

    Arguments:
        format_name: such as "an NWB file", for messages.
    """
    try:
        import h5py  # optional
    except ImportError:
        raise missing("h5py", format_name) from None
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (InputError, MemoryError):
        raise
    except Exception as error:  # h5py raises many kinds on a damaged file
        raise InputError(f"not {format_name} that can be read: {error}"[:200], path) from None


def walked(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield all datasets of a group and of those inside it, by path; each once.

    Raises InputError: a link to another file, or more groups and datasets than a recording has.
    """
    seen, waiting = set[Any](), [("", group, 0)]
    while waiting:
        prefix, inner, depth = waiting.pop()
        for name in inner:
            path = f"{prefix}/{name}"
            child = member(inner, name)
            if child is None or child.id in seen:
                continue
            seen.add(child.id)
            if len(seen) > _MAX_DATASETS or depth > _MAX_DEPTH:
                raise InputError(f"holds more than {_MAX_DATASETS:,} datasets, or deeper nests")
            if hasattr(child, "keys"):
                waiting.append((path, child, depth + 1))
            elif hasattr(child, "dtype") and hasattr(child, "shape"):
                yield path.lstrip("/"), child


def member(group: Any, name: str) -> Any:
    """Return a member of a group; None where there is none, or a link leads nowhere.

    Raises InputError: a link to another file.
    """
    link = group.get(name, getlink=True)
    if type(link).__name__ == "ExternalLink":
        raise InputError(
            f"{shown(name)} is a link to another file ({shown(link.filename)}); copy what it "
            "links to into this file"
        )
    return group.get(name)


def unusable(dataset: Any) -> str:
    """Return why a dataset holds no real numbers that can be used; empty where it does."""
    if dataset.external:
        return "is stored in another file; store it in this one"
    if dataset.is_virtual:
        return "is assembled from other datasets; store its numbers themselves"
    if dataset.dtype.kind not in "iuf":
        return "holds no real numbers"
    if dataset.shape is None or len(dataset.shape) > 2:
        return "has more than two dimensions"
    return ""


def numbers(dataset: Any, total: int) -> np.ndarray:
    """Return the numbers of a dataset in float64.

    Arguments:
        total: how many numbers the file has up to this dataset.

    Raises InputError: more than a recording has, or than fit into memory.
    """
    if total > _MAX_NUMBERS:
        raise InputError(f"announces more than {_MAX_NUMBERS:,} numbers")
    memory.check(total, _BYTES_A_NUMBER, "numbers")
    return np.atleast_1d(np.asarray(dataset[()], dtype=float))


def as_text(value: Any) -> str:
    """Return the text of an attribute; empty where it is no text."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value.strip() if isinstance(value, str) else ""
