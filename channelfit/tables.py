"""Columns of numbers from CSV (plain or gzip) and MATLAB files."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from channelfit.errors import InputError
from channelfit.units import shown

_MAX_BYTES = 2_000_000_000

#: Columns by name: (n_rows,), or (n_rows, n_columns) for a matrix.
Table = dict[str, np.ndarray]


def read_columns(path: Path, header: bool | None = None) -> Table:
    """Every column by name: CSV by its header (or ``1``, ``2``.. without one), MATLAB by variable.

    A first row with any text in it is a header. A first row of numbers alone is data unless
    `header` says otherwise (files that name each sweep by its voltage).

    A MATLAB matrix of several columns gives ``NAME.1``, ``NAME.2``.. beside ``NAME`` itself, which
    is then (n_rows, n_columns).

    Raises:
        InputError: missing file, another format, ragged rows, text among the numbers.
    """
    try:
        known = path.is_file()
        size = path.stat().st_size if known else 0
    except OSError as error:  # a name too long for the file system
        raise InputError(f"cannot be read: {error.strerror}", path) from None
    if not known:
        raise InputError("no such file", path)
    if size > _MAX_BYTES:
        raise InputError(f"larger than {_MAX_BYTES:,} bytes", path)
    suffixes = [s.lower() for s in path.suffixes[-2:]]
    reader = READERS.get("".join(suffixes)) or READERS.get("".join(suffixes[-1:]))
    if reader is None:
        raise InputError(f"not a format that can be read; accepted: {', '.join(READERS)}", path)
    return reader(path, header)


def column(table: Table, name: str, path: Path) -> np.ndarray:
    """One column (n_rows,). Raises InputError with the names that there are."""
    found = table.get(name)
    if found is None or found.ndim != 1:
        names = [n for n, c in table.items() if c.ndim == 1]
        listed = ", ".join(names[:12]) + (", .." if len(names) > 12 else "")
        raise InputError(f"no column {shown(name)}; there are: {listed}", path)
    return found


def _read_csv(path: Path, header: bool | None) -> Table:
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix.lower() == ".gz"
            else open(path, encoding="utf-8") as file
        ):
            text = file.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path) from None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise InputError("the file is empty", path)
    delimiter = next((d for d in ",;\t" if d in lines[0]), None)
    head = next(csv.reader([lines[0]], delimiter=delimiter or " ", skipinitialspace=True))
    head = [cell.strip() for cell in head if cell.strip() or delimiter]
    named = any(not _is_number(cell) for cell in head) if header is None else header
    rows = lines[1:] if named else lines
    if not rows:
        raise InputError("a header, but no rows", path)
    if delimiter:
        rows = [_fill_empty(row, delimiter) for row in rows]
    try:
        values = np.loadtxt(
            io.StringIO("\n".join(rows)), delimiter=delimiter, ndmin=2, comments=None
        )
    except ValueError as error:
        raise InputError(f"not a table of numbers: {error}"[:300], path) from None
    names = head if named else [str(k) for k in range(1, values.shape[1] + 1)]
    if values.size == 0 or len(names) != values.shape[1]:
        raise InputError(
            f"the header names {len(names)} columns, the rows hold {values.shape[1]}", path
        )
    if len(set(names)) < len(names):
        raise InputError("two columns have the same name", path)
    return {name: values[:, k] for k, name in enumerate(names)}


def _fill_empty(row: str, delimiter: str) -> str:
    """An empty cell is a missing number: tables of unequal sweeps have them."""
    return delimiter.join(cell if cell.strip() else "nan" for cell in row.split(delimiter))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_mat(path: Path, header: bool | None) -> Table:  # variables have names, never a header
    from scipy.io import loadmat

    try:
        raw = loadmat(path)
    except NotImplementedError:
        raise InputError(
            "a MATLAB 7.3 file (HDF5) cannot be read; save it with `save(..., '-v7')`", path
        ) from None
    except Exception as error:  # loadmat raises many kinds on a damaged file
        raise InputError(f"not a readable MATLAB file: {error}"[:200], path) from None
    table: Table = {}
    for name, value in raw.items():
        if name.startswith("__") or not np.issubdtype(getattr(value, "dtype", object), np.number):
            continue
        array = np.asarray(value, dtype=float)
        if array.ndim == 2 and 1 in array.shape:
            table[name] = array.ravel()
        elif array.ndim == 2:
            table[name] = array
            table |= {f"{name}.{k + 1}": array[:, k] for k in range(array.shape[1])}
    if not table:
        raise InputError("no numeric vector or matrix inside", path)
    return table


#: How a file is read, by its suffix; a further format is one function here.
READERS: dict[str, Callable[[Path, bool | None], Table]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".txt": _read_csv,
    ".txt.gz": _read_csv,
    ".mat": _read_mat,
}
