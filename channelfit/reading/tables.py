"""Columns of numbers from CSV (plain or gzip) and MATLAB files."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys.protocols import LAYOUTS
from channelfit.reading.second_process import read_in_process
from channelfit.reading.texts import decoded, file_size
from channelfit.reading.units import is_unit

_MAX_BYTES = 2_000_000_000
#: Of text, also when it is unpacked: a recording has 20 million samples at most
#: (`channelfit.problem.segments`), of 50 characters each.
_MAX_LINES, _MAX_TEXT = 20_000_000, 1_000_000_000
#: A table of text is read, unpacked and counted in pieces of this size.
_PIECE = 16_000_000
#: Bytes that a line of text takes while it becomes numbers, beside eight times its length.
_BYTES_A_LINE = 280
_MATLAB_READER = "channelfit.reading.formats.matlab:variables"
#: Characters beyond ASCII in the headings of tables in Windows' western encoding.
_FIRST_ROW = re.compile(rb'^\s*"?[-+]?[.,]?\d', re.MULTILINE)
_WESTERN = frozenset("µ°²³äöüÄÖÜßéèàçñ±·".encode("cp1252"))
#: The text of a cell whose number is missing.
_MISSING = frozenset(
    ("n/a", "na", "#n/a", "n.a.", "nan", "none", "null", "missing", "-", "--", ".", "?", "#num!")
)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
#: A number of text with commas, rightly written or not, and one whose comma may part thousands.
_NUMBER_WITH_COMMAS = re.compile(r"[+-]?[\d.]*,[\d.,]*([eE][+-]?\d+)?")
_MAYBE_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
#: One or several numbers with a decimal comma, and perhaps with points between thousands.
_MAYBE = r"[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+),\d+([eE][+-]?\d+)?"
_MAYBE_DECIMAL = re.compile(rf"\s*{_MAYBE}(,{_MAYBE})*\s*")
#: A time or another number without a comma, before one with thousands and a decimal comma.
_MAYBE_THOUSANDS = re.compile(r"\s*[+-]?[\d.]+,[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+\s*")
_AMBIGUOUS = (_MAYBE_DECIMAL, _MAYBE_THOUSANDS)


class Columns(dict[str, np.ndarray]):
    """Columns by name: (n_rows,), or (n_rows, n_columns) for a matrix.

    Attributes:
        lines: the line of each row in a text file, counted from 1 with headings, comments and
            empty lines; empty for other files.
        first: the cells of a first row of numbers alone, which was taken for data.
        refused: why the values of a name cannot be used, for names that no column has.
    """

    lines: Sequence[int] = ()
    first: Sequence[str] = ()

    def __init__(self, columns: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(columns or {})
        self.refused: dict[str, str] = {}

    def turn(self, name: str) -> None:
        """Make the rows of a matrix the columns ``NAME.1``, ``NAME.2``.. instead."""
        for k in range(self[name].shape[1]):
            del self[f"{name}.{k + 1}"]
        self[name] = self[name].T
        self.update({f"{name}.{k + 1}": row for k, row in enumerate(self[name].T)})

    def place(self, row: int) -> str:
        """Return where a row, counted from 0, stands in its file, in words."""
        return f"line {self.lines[row]}" if len(self.lines) else f"row {row + 1}"


def read_columns(
    path: Path,
    header: bool | None = None,
    decimal: str | None = None,
    layout: str | None = None,
) -> Columns:
    """Return all columns of a CSV file by its header, or of a MATLAB file by variable.

    Without a header the names are ``1``, ``2``.. .

    A MATLAB matrix of several columns gives ``NAME.1``, ``NAME.2``.. beside ``NAME`` itself, which
    is then (n_rows, n_columns).

    Arguments:
        path: a file whose suffix is in `READERS`.
        header: whether the first row names the columns. Without it, a first row with any text in
            it does, and one of numbers alone does not.
        decimal: "comma" or "point"; without it a decimal comma is understood where nothing else
            can be meant.
        layout: "sweeps x samples" of a table without names whose rows are sweeps, and of MATLAB
            matrices; "samples x sweeps", as without it, where columns are.

    Raises InputError: a missing file, another format, rows of different lengths, text among the
    numbers, decimal commas, or commas that might be decimal.
    """
    if file_size(path) > _MAX_BYTES:
        raise InputError(f"larger than {_MAX_BYTES:,} bytes", path)
    suffixes = [s.lower() for s in path.suffixes[-2:]]
    reader = READERS.get("".join(suffixes)) or READERS.get("".join(suffixes[-1:]))
    if reader is None:
        raise InputError(f"not a format that can be read; accepted: {', '.join(READERS)}", path)
    if reader is _read_mat:
        if header is not None:
            raise InputError("MATLAB variables have names; leave `header` out", path)
        if decimal is not None:
            raise InputError("MATLAB stores numbers, not text; leave `decimal` out", path)
        table = _read_mat(path)
    else:
        table = _read_csv(path, header, decimal)
    if layout not in (None, *LAYOUTS):
        raise InputError(f"{shown(layout)} is not one of {', '.join(LAYOUTS)}", path, "layout")
    return _turned(table, path) if layout == LAYOUTS[0] else table


def _turned(table: Columns, path: Path) -> Columns:
    """Return a table whose rows become its columns; of a MATLAB file, the same of its matrices."""
    matrices = [name for name, values in table.items() if values.ndim == 2]
    if not len(table.lines):
        for name in matrices:
            table.turn(name)
        return table
    if not all(name == str(k) for k, name in enumerate(table, 1)):
        raise InputError(
            "its columns have names, so that its rows are samples; leave `layout` out, or the "
            "names (`header: false`)",
            path,
            "layout",
        )
    rows = np.array(list(table.values())).T
    return Columns({str(k): row for k, row in enumerate(rows, 1)})


def column(table: Columns, name: str, path: Path) -> np.ndarray:
    """Return one column (n_rows,). Raises InputError, with all names, for an unknown name."""
    found = table.get(name)
    if name in table.refused:
        raise InputError(table.refused[name], path, name)
    if found is None or found.ndim != 1:
        names = [n for n, c in table.items() if c.ndim == 1]
        listed = ", ".join(names[:12]) + (", .." if len(names) > 12 else "")
        hint = "; if its first row names the columns, write `header: true`" * (name in table.first)
        raise InputError(f"no column {shown(name)}; there are: {listed}{hint}", path)
    return found


def _read_csv(path: Path, header: bool | None, decimal: str | None = None) -> Columns:
    places, lines = _numbered_lines(path)
    delimiter = _delimiter(lines, decimal)
    lines = _with_points(lines, places, delimiter, decimal, path)
    head = _cells(lines[0], delimiter)
    named = any(not is_number(cell) for cell in head) if header is None else header
    if named and header is None and all(is_number(c) or _is_decimal_comma(c) for c in head):
        raise InputError(_comma(next(filter(_is_decimal_comma, head))), path, f"line {places[0]}")
    skip = 1 if named else 0
    rows: Sequence[str] = lines[skip:]
    if not rows:
        raise InputError("a header, but no rows", path)
    spaced = header is None and ", " in lines[0] and is_unit(head[-1])  # current, nA
    nameless = header is None and "" in head  # current,
    if decimal is None and delimiter == "," and (spaced or nameless or not named):
        _refuse_ambiguous(rows, path, places[skip])
    values = _values(rows, places[skip:], delimiter, path)
    names = head if named else [str(k) for k in range(1, values.shape[1] + 1)]
    _check_names(names, values, delimiter, path)
    _refuse_too_large(values, rows, places[skip:], names, delimiter, path)
    if len(set(names)) < len(names):
        raise InputError("two columns have the same name", path)
    table = Columns({name: values[:, k] for k, name in enumerate(names)})
    table.lines = places[skip:]
    table.first = () if named or header is not None else tuple(head)
    return table


def _numbered_lines(path: Path) -> tuple[Sequence[int], Sequence[str]]:
    """Return the lines that are neither empty nor comments, after their numbers."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
            data = _within_memory(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", path) from None
    numbered = [
        (k, line)
        for k, line in enumerate(_text(data, path).splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not numbered:
        raise InputError("the file is empty", path)
    places, lines = zip(*numbered, strict=True)
    return places, lines


def _values(
    rows: Sequence[str], places: Sequence[int], delimiter: str | None, path: Path
) -> np.ndarray:
    """Return the numbers of the rows, (n_rows, n_columns), NaN for a missing number."""
    filled = rows
    if delimiter:  # unequal sweeps leave empty cells
        cells = (row.split(delimiter) for row in rows)
        filled = [delimiter.join(c if c.strip() else "nan" for c in row) for row in cells]
    try:
        return _numbers(filled, delimiter)
    except ValueError:
        filled = [_fill_missing(row, delimiter) for row in rows]
    try:
        return _numbers(filled, delimiter)
    except ValueError as error:
        where, problem = _first_fault(filled, places, delimiter)
        raise InputError(f"not a table of numbers: {problem or error}"[:300], path, where) from None


def _numbers(rows: Sequence[str], delimiter: str | None) -> np.ndarray:
    return np.loadtxt(io.StringIO("\n".join(rows)), delimiter=delimiter, ndmin=2, comments=None)


def _check_names(
    names: Sequence[str], values: np.ndarray, delimiter: str | None, path: Path
) -> None:
    """Raise InputError where a header does not name each column of values (n_rows, n_columns)."""
    if values.size == 0 or len(names) != values.shape[1]:
        commas = delimiter == "," and values.shape[1] > len(names)
        raise InputError(
            f"the header names {len(names)} columns, the rows hold {values.shape[1]}"
            + "; numbers with a decimal comma must be written with a point" * commas,
            path,
        )


def _refuse_too_large(
    values: np.ndarray,
    rows: Sequence[str],
    places: Sequence[int],
    names: Sequence[str],
    delimiter: str | None,
    path: Path,
) -> None:
    """Raise InputError for a number such as 1e400, which became infinite; `inf` says what it is.

    Arguments:
        values: (n_rows, n_columns) the numbers of the rows. places: the line of each row.
    """
    for row, k in np.argwhere(np.isinf(values)):
        cell = _cells(rows[row], delimiter)[k]
        if any(letter.isdigit() for letter in cell):
            raise InputError(
                f"{shown(cell)} is beyond the largest number, {np.finfo(float).max:.3g}",
                path,
                f"line {places[row]}: column {names[k]}",
            )


def _text(data: bytes, path: Path) -> str:
    """Return the text of a table; headings may be in Excel's western encoding."""
    try:
        return decoded(data, path)
    except InputError:
        rows = _FIRST_ROW.search(data)
        if rows is None or not data[rows.start() :].isascii():
            raise
        if not set(data.translate(None, bytes(range(1, 128)))) <= _WESTERN:
            raise
        return data.decode("cp1252")


def _within_memory(file: gzip.GzipFile | io.BufferedReader, path: Path) -> bytes:
    """Return all bytes of a table. Raises InputError before its rows take too much memory."""
    parts, n_bytes, n_lines = list[bytes](), 0, 1
    while part := file.read(_PIECE):
        parts.append(part)
        n_bytes += len(part)
        n_lines += part.count(b"\n")
        if n_bytes > _MAX_TEXT:
            raise InputError(f"holds more than {_MAX_TEXT:,} bytes of text", path)
        if n_lines > _MAX_LINES:
            raise InputError(f"holds more than {_MAX_LINES:,} lines", path)
        memory.check(n_lines, _BYTES_A_LINE + 8 * n_bytes // n_lines, "lines", path)
    return b"".join(parts)


def _delimiter(lines: Sequence[str], decimal: str | None) -> str | None:
    """Return the delimiter between the cells of a table; None for blanks.

    A comma is looked for last, since beside any other delimiter it can only be a decimal comma.
    """
    if found := next((d for d in ";\t" if d in lines[-1]), None):
        return found
    if decimal == "comma":
        return None
    blanks = re.search(r"[^,\s]\s+[^,\s]", lines[-1]) and len(lines) > 1
    return "," if not blanks and "," in lines[0] + lines[-1] else None


def _with_points(
    lines: Sequence[str],
    places: Sequence[int],
    delimiter: str | None,
    decimal: str | None,
    path: Path,
) -> Sequence[str]:
    """Return the lines with decimal points, where their numbers have decimal commas.

    Without `decimal`, that is certain where one of them cannot have a comma between thousands.

    Raises InputError: every comma may stand between thousands, or points and commas are mixed.
    """
    # without blanks or a delimiter, a comma may be the delimiter of rows that are not alike
    alone = delimiter is None and not any(" " in line.strip() for line in lines)
    if delimiter == "," or decimal == "point" or (alone and decimal is None):
        return lines
    commas = [(place, line) for place, line in zip(places, lines, strict=True) if "," in line]
    numbers = [
        (place, cell.strip(' "'))
        for place, line in commas
        for cell in _cells(line, delimiter)
        if "," in cell and _NUMBER_WITH_COMMAS.fullmatch(cell.strip(' "'))
    ]
    if not numbers:
        return lines
    wrong = next(((p, cell) for p, cell in numbers if not _is_decimal_comma(cell)), None)
    if wrong is not None:
        raise InputError(
            f"{shown(wrong[1])} has marks between thousands; write numbers without them",
            path,
            f"line {wrong[0]}",
        )
    certain = any(not _MAYBE_GROUPED.fullmatch(cell) for _, cell in numbers)
    if decimal is None and not certain:
        place, cell = numbers[0]
        raise InputError(
            f"{shown(cell)} may have a decimal comma or one between thousands; say which with "
            "`decimal: comma`, or write numbers without marks between thousands",
            path,
            f"line {place}",
        )
    cells = re.compile(r"(?<![\w.,])([+-]?\d+),(\d+(?:[eE][+-]?\d+)?)(?![\w.,])")
    return [cells.sub(r"\1.\2", line) for line in lines]


def _cells(line: str, delimiter: str | None) -> list[str]:
    try:
        found = next(csv.reader([line], delimiter=delimiter or " ", skipinitialspace=True))
    except csv.Error:  # longer than that module allows
        found = line.split(delimiter)
    return [cell.strip() for cell in found if cell.strip() or delimiter]


def _is_decimal_comma(cell: str) -> bool:
    return _DECIMAL_COMMA.fullmatch(cell.strip(' "')) is not None


def _comma(cell: str) -> str:
    return f"{shown(cell)} has a decimal comma; write numbers with a decimal point"


def _refuse_ambiguous(rows: Sequence[str], path: Path, line: int) -> None:
    """Raise InputError for a table of pairs of whole numbers, which may be decimal commas.

    So may be a number such as 1.234 before a whole one: 1.234,5 is 1234.5 in some countries. Empty
    cells, as spreadsheets leave them at the end of a row, say nothing against that.
    """
    filled = list(filter(None, (row.rstrip(", ") for row in rows)))
    if filled and any(all(map(maybe.fullmatch, filled)) for maybe in _AMBIGUOUS):
        two = "two whole numbers" if "." not in rows[0] else "several numbers"
        raise InputError(
            f"{shown(rows[0].strip())} may be {two} or one with a decimal comma; write "
            "numbers with a decimal point, or name the columns in a first row (`header: true`)",
            path,
            f"line {line}",
        )


def _first_fault(
    rows: Sequence[str], places: Sequence[int], delimiter: str | None
) -> tuple[str | None, str]:
    """Return the first line that is not a row of numbers, and why."""
    expected = len(_cells(rows[0], delimiter))
    for row, place in zip(rows, places, strict=True):
        cells = _cells(row, delimiter)
        for cell in cells:
            if _is_decimal_comma(cell):
                return f"line {place}", _comma(cell)
            if cell and not is_number(cell):
                return f"line {place}", f"{shown(cell)} is not a number"
        if len(cells) != expected:
            commas = delimiter == "," and _MAYBE_DECIMAL.fullmatch(rows[0]) is not None
            return f"line {place}", (
                f"{len(cells)} cells where line {places[0]} has {expected}"
                + "; numbers with a decimal comma must be written with a point" * commas
            )
    return None, ""


def _fill_missing(row: str, delimiter: str | None) -> str:
    """Return a row with NaN in its empty cells, and in those that say that there is no number."""
    cells = _cells(row, delimiter)
    if delimiter and any(delimiter in cell for cell in cells):
        return row  # quoted, as thousands are: it must stay one cell, and be refused
    filled = ["nan" if not cell or is_missing(cell) else cell for cell in cells]
    return (delimiter or " ").join(filled)


def is_missing(cell: str) -> bool:
    """Return whether a cell says that there is no number, as spreadsheets and programs do."""
    return cell.strip().lower() in _MISSING


def is_number(cell: str) -> bool:
    """Return whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_mat(path: Path) -> Columns:
    """Return the variables of a MATLAB file."""
    table = Columns()
    for name, value in read_in_process(_MATLAB_READER, path, "a MATLAB file").items():
        if isinstance(value, str):
            table.refused[name] = value
        elif value.ndim == 2 and 1 in value.shape:
            table[name] = value.ravel()
        elif value.ndim == 2:
            table[name] = value
            table.update({f"{name}.{k + 1}": value[:, k] for k in range(value.shape[1])})
    if not table:
        why = "".join(f"; {name}: {reason}" for name, reason in table.refused.items())
        raise InputError(f"no vector or matrix of real numbers inside{why}"[:300], path)
    return table


#: The reader of a file, by its suffix.
READERS: dict[str, Callable[..., Columns]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".tsv": _read_csv,
    ".tsv.gz": _read_csv,
    ".txt": _read_csv,
    ".txt.gz": _read_csv,
    ".mat": _read_mat,
}
