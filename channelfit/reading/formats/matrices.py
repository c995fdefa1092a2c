"""Arrays with names (MATLAB, HDF5) as the signals of a recording: which axis is time, what a sweep.

Arrays that do not belong to the recording are left out and named in the notes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import Contents, distinct, signal
from channelfit.reading.formats.headings import is_time, read_heading, sampling_of
from channelfit.reading.tables import LAYOUTS
from channelfit.reading.units import shown

#: How many times as long as the other the axis of time must be to be known without being told.
_LONGER = 4


@dataclass(frozen=True)
class Array:
    """Numbers of a file with their name and unit; empty where the file says no unit."""

    name: str
    unit: str
    values: np.ndarray


def check_layout(layout: str | None, path: Path) -> None:
    """Raises InputError for a layout that is none of `LAYOUTS`."""
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"{shown(layout)} is not one of {', '.join(LAYOUTS)}", path, "layout")


def contents_of(
    path: Path, kind: str, arrays: Sequence[Array], layout: str | None, refused: Sequence[str] = ()
) -> Contents:
    """The recording in a file of arrays.

    Arguments:
        kind: the format in words.
        arrays: of one or two dimensions, real numbers.
        layout: of the matrices, one of `LAYOUTS`; None to find it out.
        refused: what else the file holds and why it cannot be used, for the notes.

    Raises:
        InputError: no vector or matrix, or matrices whose axis of time cannot be told.
    """
    check_layout(layout, path)
    long = [_squeezed(array) for array in arrays if array.values.size > 1]
    if not long:
        why = "".join(f"; {reason}" for reason in refused)
        raise InputError(f"no vector or matrix of real numbers inside{why}"[:300], path)
    notes, sampling, clock = list(refused), math.nan, None
    for array in long:
        heading = read_heading(array.name.rsplit("/", 1)[-1])
        if array.values.ndim == 1 and is_time(heading):
            found, told = sampling_of(array.values, array.unit or heading.unit)
            if math.isfinite(found):
                sampling, clock = found, array
                notes += told
                break
    others = [array for array in long if array is not clock]
    n = _samples(path, others, clock, layout)
    signals, left_out = (
        list[tuple[Array, np.ndarray]](),
        [a.name for a in arrays if a.values.size <= 1],
    )
    for array in others:
        turned = _in_sweeps(array, n, layout)
        if turned is None:
            left_out.append(array.name)
        else:
            signals.append((array, turned))
    if not signals:
        raise InputError(f"no vector or matrix has {n} samples, as its times have", path)
    n_sweeps = max(len(values) for _, values in signals)
    kept = [(a, v) for a, v in signals if len(v) in (1, n_sweeps)]
    left_out += [a.name for a, v in signals if len(v) not in (1, n_sweeps)]
    if left_out:
        notes.append(f"Not part of the recording: {', '.join(left_out[:12])}.")
    names = distinct([a.name for a, _ in kept])
    made = []
    for name, (array, values) in zip(names, kept, strict=True):
        heading = read_heading(name.rsplit("/", 1)[-1])
        whole = np.broadcast_to(values, (n_sweeps, n))  # one command for all sweeps
        made.append(signal(name, array.unit or heading.unit, whole, kind=heading.kind))
    return Contents(path, kind, sampling, tuple(made), notes=tuple(notes))


def _squeezed(array: Array) -> Array:
    values = array.values
    return replace(array, values=values.ravel()) if 1 in values.shape else array


def _samples(path: Path, arrays: Sequence[Array], clock: Array | None, layout: str | None) -> int:
    """How many samples a sweep has."""
    if clock is not None:
        return len(clock.values)
    vectors = [len(a.values) for a in arrays if a.values.ndim == 1]
    matrices = [a.values.shape for a in arrays if a.values.ndim == 2]
    if layout is not None and matrices:
        return int(max(shape[1 - LAYOUTS.index(layout)] for shape in matrices))
    for shape in matrices:
        short, long = sorted(shape)
        if long < _LONGER * short and not (set(shape) & set(vectors) and short != long):
            raise InputError(
                f"a matrix of {shape[0]} x {shape[1]} may be turned either way; say which with "
                f"`layout: {LAYOUTS[0]}` or `layout: {LAYOUTS[1]}`",
                path,
            )
    common = [n for shape in matrices for n in shape if n in vectors]
    return int(max(common or [max(shape) for shape in matrices] or vectors))


def _in_sweeps(array: Array, n: int, layout: str | None) -> np.ndarray | None:
    """An array as (n_sweeps, n); None where it has no axis of n samples."""
    values = array.values
    if values.ndim == 1:
        return values[None] if len(values) == n else None
    if layout is not None:
        values = values if layout == LAYOUTS[0] else values.T
    elif values.shape[1] != n:
        values = values.T
    elif values.shape[0] == n:
        raise InputError(
            f"a matrix of {n} x {n} may be turned either way; say which with "
            f"`layout: {LAYOUTS[0]}` or `layout: {LAYOUTS[1]}`",
            None,
            array.name,
        )
    return values if values.shape[1] == n else None
