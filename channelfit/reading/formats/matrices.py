"""Arrays with names (MATLAB, HDF5) as the signals of a recording: which axis is time.

Arrays that do not belong to the recording are left out and named in the notes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats.contents import Contents, distinct, signal, stacked
from channelfit.reading.formats.headings import Heading, read_heading, sampling_of
from channelfit.reading.keys.protocols import LAYOUTS

#: The least ratio of the axes by which the longer one is taken for time.
_LONGER = 4
#: PatchMaster's name of an exported trace: by group, series, sweep and number of the trace.
_TRACE = re.compile(r"Trace_(\d+)_(\d+)_(\d+)_(\d+)")


@dataclass(frozen=True, eq=False)
class NamedArray:
    """Numbers of a file with their name and unit; empty where the file says no unit."""

    name: str
    unit: str
    values: np.ndarray


def contents_of(
    path: Path,
    kind: str,
    arrays: Sequence[NamedArray],
    layout: str | None,
    refused: Sequence[str] = (),
    chosen: str | None = None,
) -> Contents:
    """Return the recording in a file of arrays.

    Arguments:
        kind: the format in words.
        arrays: of one or two dimensions, real numbers.
        layout: of the matrices, one of `LAYOUTS`; None to find it out.
        refused: what else the file holds and why it cannot be used, for the notes.
        chosen: the array that is the recording, where a file holds several of different lengths;
            without it the largest is.

    Raises InputError: no vector or matrix, or matrices whose axis of time is not clear.
    """
    if layout not in (None, *LAYOUTS):
        raise InputError(f"{shown(layout)} is not one of {', '.join(LAYOUTS)}", path, "layout")
    long = [
        replace(array, values=array.values.ravel()) if 1 in array.values.shape else array
        for array in arrays
        if array.values.size > 1
    ]
    if not long:
        why = "".join(f"; {reason}" for reason in refused)
        raise InputError(f"no vector or matrix of real numbers inside{why}"[:300], path)
    long, notes = _traces(long, list(refused))
    times = [array for array in long if array.values.ndim == 1 and _heading(array).kind == "time"]
    recorded = [array for array in long if array not in times] or long
    largest = max(recorded, key=lambda array: array.values.size)
    main = next((array for array in long if array.name == chosen), largest)
    sampling, clock = math.nan, None
    for array in times:
        if array is main or len(array.values) not in main.values.shape:
            continue
        found, remarks = sampling_of(array.values, array.unit or _heading(array).unit)
        if math.isfinite(found):
            sampling, clock = found, array
            notes += remarks
            break
    others = [array for array in long if array is not clock]
    n = len(clock.values) if clock is not None else _samples(path, main, others, layout)
    signals = list[tuple[NamedArray, np.ndarray]]()
    left_out = [array.name for array in arrays if array.values.size <= 1]
    for array in others:
        turned = _in_sweeps(array, n, layout)
        if turned is None:
            left_out.append(array.name)
        else:
            signals.append((array, turned))
    n_sweeps = next((len(values) for array, values in signals if array is main), 0)
    if not n_sweeps:
        raise InputError(f"its sweeps do not have {n} samples, as its times have", path, main.name)
    kept = [(a, v) for a, v in signals if len(v) in (1, n_sweeps)]
    left_out += [a.name for a, v in signals if len(v) not in (1, n_sweeps)]
    if left_out:
        notes.append(f"Not part of the recording: {', '.join(left_out[:12])}.")
    names = distinct([a.name for a, _ in kept])
    made = []
    for name, (array, values) in zip(names, kept, strict=True):
        heading = _heading(array)
        whole = np.broadcast_to(values, (n_sweeps, n))  # one command for all sweeps
        made.append(signal(name, array.unit or heading.unit, whole, kind=heading.kind))
    return Contents(path, kind, sampling, tuple(made), notes=tuple(notes))


def _traces(arrays: list[NamedArray], notes: list[str]) -> tuple[list[NamedArray], list[str]]:
    """Return arrays, with the traces of PatchMaster's exports put together as sweeps of signals.

    A ``Trace_1_2_3_1`` is signal 1 in sweep 3 of series 2 of group 1, its times, s, beside it.
    """
    found: dict[str, list[tuple[int, NamedArray]]] = {}
    rest = list[NamedArray]()
    for array in arrays:
        name = _TRACE.fullmatch(array.name)
        if name and array.values.ndim == 2 and array.values.shape[1] == 2:
            key = f"Trace_{name[1]}_{name[2]}_*_{name[4]}"
            found.setdefault(key, []).append((int(name[3]), array))
        else:
            rest.append(array)
    for key, sweeps in found.items():
        ordered = [array.values for _, array in sorted(sweeps, key=lambda pair: pair[0])]
        rest.append(NamedArray(key, "", stacked([values[:, 1] for values in ordered])))
        if not any(_heading(array).kind == "time" for array in rest):
            rest.append(NamedArray("time", "s", max(ordered, key=len)[:, 0]))
            notes.append("Times are those of the longest sweep, in s, as PatchMaster writes them.")
    return rest, notes


def _heading(array: NamedArray) -> Heading:
    return read_heading(array.name.rsplit("/", 1)[-1])


def _samples(path: Path, main: NamedArray, others: Sequence[NamedArray], layout: str | None) -> int:
    """Return how many samples a sweep of the main array has."""
    shape = main.values.shape
    if len(shape) == 1:
        return int(shape[0])
    if layout is not None:
        return int(shape[1 - LAYOUTS.index(layout)])
    short, long = sorted(shape)
    if long >= _LONGER * short:
        return int(long)
    # a vector for all sweeps, such as a command, shows which axis is time
    common = {n for n in shape if any(a.values.shape == (n,) for a in others)}
    if len(common) != 1 or short == long:
        raise _either_way(path, main)
    return int(common.pop())


def _either_way(path: Path | None, array: NamedArray) -> InputError:
    rows, columns = array.values.shape
    return InputError(
        f"a matrix of {rows} x {columns} may be turned either way; say which with "
        f"`layout: {LAYOUTS[0]}` or `layout: {LAYOUTS[1]}`",
        path,
        array.name,
    )


def _in_sweeps(array: NamedArray, n: int, layout: str | None) -> np.ndarray | None:
    """Return an array as (n_sweeps, n); None where it has no axis of n samples."""
    values = array.values
    if values.ndim == 1:
        return values[None] if len(values) == n else None
    if layout is not None:
        values = values if layout == LAYOUTS[0] else values.T
    elif values.shape[1] != n:
        values = values.T
    elif values.shape[0] == n:
        raise _either_way(None, array)
    return values if values.shape[1] == n else None
