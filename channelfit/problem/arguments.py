"""Arguments from Python, checked by name: quantities, families of them, and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from channelfit.problem.waves import TIME_TOLERANCE
from channelfit.reading.errors import InputError
from channelfit.reading.plain import plain
from channelfit.reading.tables import Columns
from channelfit.reading.units import parse_quantity

#: Times may differ by this share of a sampling interval: columns of times are rounded when printed.
TIME_SLACK = 0.1


def quantities(argument: Any, name: str, dimension: str) -> list[float]:
    """Return one or more quantities in base units. Raises InputError with the argument's name."""
    values = plain(argument, name)
    values = values if isinstance(values, list) else [values]
    try:
        found = [parse_quantity(value, dimension) for value in values]
    except InputError as error:
        raise error.at(key=name) from None
    if not found:
        raise InputError("at least one value is needed", None, name)
    return found


def durations(argument: Any, name: str) -> list[float]:
    """Return one or more times of 0 ms or more. Raises InputError with the argument's name."""
    found = quantities(argument, name, "time")
    if min(found) < 0:
        raise InputError(f"a duration of 0 or more was expected, not {min(found):g} ms", None, name)
    return found


def check_lengths(lists: Mapping[str, Sequence[float]]) -> None:
    """Raise InputError for lists of different lengths, by the names of the arguments."""
    counts = {key: len(values) for key, values in lists.items() if len(values) > 1}
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{key} has {count} values" for key, count in counts.items())
        raise InputError(f"{lengths}; lists vary together, sweep by sweep, and need equal lengths")


def numbers(values: Any, name: str) -> np.ndarray:
    """Return a new array of floats from lists, arrays or pandas; missing values are NaN.

    The columns of a pandas frame are sweeps, and become the rows of the array.

    Raises InputError: something that is not an array of real numbers, with the argument's name.
    """
    try:
        if np.ma.isMaskedArray(values):
            values = np.ma.filled(values.astype(float), np.nan)
        found = np.asarray(values)
        if found.dtype == object and hasattr(values, "to_numpy"):  # numbers of pandas beside NA
            found = np.asarray(values.to_numpy(dtype=float, na_value=np.nan))
        found = found.T if hasattr(values, "columns") else found
        if found.dtype.kind not in "fiub":
            raise ValueError(f"it holds {found.dtype}")
    except (TypeError, ValueError) as error:
        raise InputError(f"an array of numbers was expected: {error}", None, name) from None
    return np.array(found, dtype=float)


class CountedSamples(Columns):
    """Counts samples of arrays from 0, as Python does."""

    def place(self, row: int) -> str:
        return f"sample {row} (counted from 0)"


def even_step(times_ms: np.ndarray) -> float:
    """Return the interval of evenly spaced times (n,), ms, free of rounding. Raises InputError."""
    intervals = len(times_ms) - 1
    step = float(times_ms[-1]) / intervals
    stray = np.abs(times_ms - step * np.arange(intervals + 1))
    if stray.max() > TIME_SLACK * step:
        k = int(stray.argmax())
        raise InputError(
            f"the times are not evenly spaced (sample {k}, counted from 0, is {stray[k]:g} ms off "
            f"{step:g} ms a sample); say at which interval the protocol is to be sampled: "
            "sampling=...",
            None,
            "time",
        )
    short = round(step, 9)
    return short if abs(short - step) * intervals < TIME_TOLERANCE * step else step
