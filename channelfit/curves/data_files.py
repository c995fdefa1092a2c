"""Data sets from files: wide and long tables of text, and arrays of NumPy.

A wide table has a column for every input and one for each data set. A long one has a column named
``set``, one for every input, and one of values. An array (``.npy``) has shape (n_sets, n) or, on a
grid of two inputs x and y, (n_sets, n_y, n_x); it is mapped into memory, not read.

Standard errors of the values stand in a column, which a wide table may have for each data set, or
in an array of the same shape or of that of one data set.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.curves.fitting import DataSets
from channelfit.curves.weights import bad_sigma
from channelfit.reading.csv_tables import delimiter_of, first_cells
from channelfit.reading.errors import InputError, shown
from channelfit.reading.tables import is_missing, read_columns
from channelfit.reading.texts import decoded, file_size

_SET = "set"
_MAX_TEXT = 1_000_000_000


def read_data(
    path: Path, curve: Curve, inputs: Mapping[str, Path] | None = None, sigma: str | None = None
) -> list[DataSets]:
    """Return the data sets in a file, those with the same inputs together.

    Arguments:
        inputs: for an array, files of the values of inputs; 0, 1, 2 .. for others.
        sigma: the column of standard errors; for an array, their file.

    Raises: InputError for a file that cannot be used, with what would be right.
    """
    for name in inputs or {}:
        if name not in curve.inputs:
            raise InputError(
                f"the curve {curve.name} has no input {shown(name)}, only {', '.join(curve.inputs)}"
            )
    if path.suffix.lower() == ".npy":
        return [_with_sigma(_read_array(path, curve, inputs or {}), sigma)]
    if inputs:
        raise InputError("a table holds its inputs; leave --input out", path)
    file_size(path)
    in_text = path.suffix.lower() in (".csv", ".tsv", ".txt")
    if in_text and _SET in map(str.lower, first_cells(path)):
        return _read_long(path, curve, sigma)
    return [_read_wide(path, curve, sigma)]


# --- arrays --------------------------------------------------------------------------------------


def _mapped(path: Path) -> np.ndarray:
    """Return an array of plain numbers in a file, mapped into memory."""
    file_size(path)
    try:
        values: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(
            f"not an array of NumPy: {' '.join(str(error).split())[:200]}", path
        ) from None
    if values.dtype.kind not in "fiub" or values.dtype.itemsize > 8:
        raise InputError(f"holds {values.dtype}; plain numbers were expected", path)
    if not values.flags.c_contiguous:
        raise InputError("is stored column by column; save it with order C", path)
    return values


def _with_sigma(data: DataSets, sigma: str | None) -> DataSets:
    """Return the data sets with standard errors from the file of an array."""
    if sigma is None:
        return data
    path = Path(sigma)
    if path.suffix.lower() != ".npy":
        raise InputError(
            f"standard errors of an array are an array (.npy) as well, not {shown(sigma)}"
        )
    return with_sigma(data, _mapped(path), path)


def with_sigma(data: DataSets, sigma: np.ndarray, file: Path | None = None) -> DataSets:
    """Return data sets with standard errors of all of their values, or the same for each set.

    Raises: InputError for another shape, and for one that is no finite number above 0.
    """
    whole = (len(data.values), *data.shape)
    if sigma.dtype.kind not in "fiu" or sigma.shape not in (whole, data.shape):
        raise InputError(
            f"sigma: numbers of shape {whole} or {data.shape} were expected, not {sigma.dtype} of "
            f"shape {sigma.shape}",
            file,
        )
    flat = sigma.reshape(-1, data.values.shape[1])
    if bad := bad_sigma(flat, data.values):
        s, i, message = bad
        raise InputError(message, file, f"data set {s + 1}, point {i + 1}")
    return replace(data, sigma=flat)


def _read_array(path: Path, curve: Curve, inputs: Mapping[str, Path]) -> DataSets:
    values = _mapped(path)
    n_inputs = len(curve.inputs)
    if values.ndim != 1 + n_inputs:
        grid = ", ".join(f"n_{name}" for name in reversed(curve.inputs))
        raise InputError(
            f"has the shape {values.shape}; the curve {curve.name} wants (n_sets, {grid})", path
        )
    if 0 in values.shape:
        raise InputError(f"has the shape {values.shape}: there is nothing to fit", path)
    coordinates = {}
    for k, name in enumerate(curve.inputs):
        length = values.shape[-1 - k]
        coordinates[name] = (
            _read_input(inputs[name], name, length) if name in inputs else np.arange(float(length))
        )
    axes = tuple((name,) for name in curve.inputs)
    shape = values.shape[1:]
    whole = DataSets(axes, coordinates, values.reshape(len(values), -1), shape)
    if n_inputs <= 2:
        return whole
    return DataSets((curve.inputs,), whole.at_points, whole.values, shape)


def _read_input(path: Path, name: str, length: int) -> np.ndarray:
    """Return the values of an input: an array of one dimension, or a column of a table.

    The column has the name of the input, or it is the only one.
    """
    if path.suffix.lower() == ".npy":
        file_size(path)
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError, SyntaxError) as error:
            raise InputError(f"not an array of NumPy: {error}"[:300], path) from None
    else:
        table = read_columns(path)
        if name not in table and len(table) > 1:
            raise InputError(
                f"has no column {shown(name)}, but several others: {', '.join(table)[:200]}", path
            )
        values = table.get(name, next(iter(table.values())))
    if values.ndim != 1 or values.dtype.kind not in "fiu" or len(values) != length:
        raise InputError(
            f"{length} numbers were expected, one for each place of the axis, not an array of "
            f"shape {values.shape}",
            path,
        )
    return _finite(values.astype(float), path, path.stem)


# --- tables --------------------------------------------------------------------------------------


def _read_wide(path: Path, curve: Curve, sigma: str | None) -> DataSets:
    table = read_columns(path)
    names = [name for name, values in table.items() if values.ndim == 1]
    if any(name.strip().lower() == _SET for name in names):
        raise InputError(
            "a long table, which has a column `set`, is read from .csv, .tsv and .txt alone; "
            "unpack it, or write it as one of these",
            path,
        )
    of_sigma = [name for name in names if sigma and (name == sigma or name.endswith(f"_{sigma}"))]
    names = [name for name in names if name not in of_sigma]
    known = _has_inputs(names, curve, path)
    of_inputs = list(curve.inputs) if known else names[: len(curve.inputs)]
    labels = [name for name in names if name not in of_inputs]
    if not labels:
        raise InputError(
            f"a column for each of the inputs {', '.join(curve.inputs)} and at least one of data "
            f"were expected, not {len(names)} columns",
            path,
        )
    coordinates = {
        name: _finite(table[column], path, column)
        for name, column in zip(curve.inputs, of_inputs, strict=True)
    }
    values = np.array([table[name] for name in labels])
    errors = None
    if sigma is not None:
        sources = [sigma if sigma in of_sigma else f"{name}_{sigma}" for name in labels]
        for column in [*sources, *of_sigma]:
            if column not in of_sigma or column not in sources:
                raise InputError(
                    f"standard errors stand in one column {shown(sigma)}, or in one behind each "
                    f"data set, such as {shown(f'{labels[0]}_{sigma}')}; "
                    + ("there is no " if column not in of_sigma else "there is also ")
                    + shown(column),
                    path,
                )
        errors = np.array([table[name] for name in dict.fromkeys(sources)])
        if bad := bad_sigma(errors, values):
            s, i, message = bad
            raise InputError(message, path, f"{table.place(i)}: column {sources[s]}")
    return DataSets(
        (curve.inputs,),
        coordinates,
        values,
        values.shape[1:],
        labels,
        columns=tuple(of_inputs),
        sigma=errors,
    )


def _has_inputs(columns: Sequence[str], curve: Curve, path: Path) -> bool:
    """Return whether each input has a column of its name; where none has, the first are taken.

    Raises: InputError where some inputs are there and some are not.
    """
    missing = [name for name in curve.inputs if name not in columns]
    if missing and len(missing) < len(curve.inputs):
        raise InputError(
            f"there is no column {shown(missing[0])}, though other inputs have one; there are "
            f"{', '.join(columns)}"[:300],
            path,
        )
    return not missing


def _read_long(path: Path, curve: Curve, sigma: str | None) -> list[DataSets]:
    head, rows, lines = _long_rows(path)
    which = next(k for k, cell in enumerate(head) if cell.lower() == _SET)
    if sigma is not None and sigma not in head:
        raise InputError(f"there is no column {shown(sigma)}; there are {', '.join(head)}", path)
    of_sigma = [head.index(sigma)] if sigma is not None else []
    others = [k for k in range(len(head)) if k not in (which, *of_sigma)]
    known = _has_inputs(head, curve, path)
    of_inputs = [head.index(name) for name in curve.inputs] if known else others[:-1]
    of_values = [k for k in others if k not in of_inputs]
    if len(of_inputs) != len(curve.inputs) or len(of_values) != 1:
        expected = ", ".join((_SET, *curve.inputs))
        raise InputError(
            f"the columns {expected} and one of values were expected, not {', '.join(head)}", path
        )
    sets: dict[str, list[int]] = {}
    for k, row in enumerate(rows):
        sets.setdefault(row[which], []).append(k)
    numbers = np.array(
        [
            [_number(row[k], path, line, head[k]) for k in (*of_inputs, *of_values, *of_sigma)]
            for row, line in zip(rows, lines, strict=True)
        ]
    )
    n = len(of_inputs)
    if of_sigma and (bad := bad_sigma(numbers[:, n + 1 :], numbers[:, n : n + 1])):
        raise InputError(bad[2], path, f"line {lines[bad[0]]}: column {sigma}")
    groups: dict[bytes, list[int]] = {}
    labels = list(sets)
    for place, label in enumerate(labels):
        at = np.ascontiguousarray(numbers[sets[label], :n])
        groups.setdefault(at.tobytes(), []).append(place)
    out = []
    for places in groups.values():
        at = numbers[sets[labels[places[0]]], :n]
        coordinates = {
            name: _finite(at[:, k].copy(), path, name) for k, name in enumerate(curve.inputs)
        }
        values, errors = (
            np.array([numbers[sets[labels[p]], k] for p in places])
            for k in (n, numbers.shape[1] - 1)
        )
        own = [labels[p] for p in places]
        out.append(
            DataSets(
                (curve.inputs,),
                coordinates,
                values,
                values.shape[1:],
                own,
                np.array(places),
                tuple(head[k] for k in of_inputs),
                errors if of_sigma else None,
            )
        )
    return out


def _long_rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Return heading, rows and their lines. Raises: InputError for rows of another length."""
    if file_size(path) > _MAX_TEXT:
        raise InputError(f"larger than {_MAX_TEXT:,} bytes", path)
    try:
        text = decoded(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path) from None
    kept = [line for line in text.splitlines() if not line.startswith("#")]
    first = next(line for line in kept if line.strip())
    reader = csv.reader(io.StringIO(text), delimiter=delimiter_of(first))
    head: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            row = [cell.strip() for cell in row]
            if row[0].startswith("#"):
                if _is_named_with_hash(row, head):
                    raise InputError(
                        f"{shown(row[0])} may be the name of a set or the begin of a comment; give "
                        "the set another name, or remove the line",
                        path,
                        f"line {reader.line_num}",
                    )
                continue
            if not head:
                head = row
                continue
            if len(row) != len(head):
                raise InputError(
                    f"{len(row)} cells, where the header has {len(head)}",
                    path,
                    f"line {reader.line_num}",
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"not a table: {error}", path, f"line {reader.line_num}") from None
    if not rows:
        raise InputError("a header, but no rows", path)
    return head, rows, lines


def _is_named_with_hash(row: Sequence[str], head: Sequence[str]) -> bool:
    """Return whether a line that begins with # looks like a row of a table, after its set."""
    if not head or head[0].lower() != _SET or len(row) != len(head):
        return False
    try:
        return bool([float(cell) for cell in row[1:] if cell])
    except ValueError:
        return False


def _number(text: str, path: Path, line: int, column: str) -> float:
    """Return a number; NaN for an empty cell and for one that says that there is none."""
    if not text or is_missing(text):
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"a number was expected, not {shown(text)}", path, f"line {line}: column {column}"
        ) from None


def _finite(values: np.ndarray, path: Path, name: str) -> np.ndarray:
    """Return values of an input. Raises: InputError where one is not finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"value {bad[0] + 1} of an input is {values[bad[0]]}; inputs are finite numbers",
            path,
            f"column {name}",
        )
    return np.ascontiguousarray(values, float)


def labels_of(data: DataSets, first: int, last: int) -> Sequence[str]:
    """Return names of the data sets from `first` to before `last`."""
    if data.labels is None:
        return [str(k + 1) for k in range(first, last)]
    return data.labels[first:last]
