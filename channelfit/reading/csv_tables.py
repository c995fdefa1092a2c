"""Tables as CSV, of which no text acts in a spreadsheet or on a terminal.

A spreadsheet takes a cell that begins with =, +, - or @ for a formula, which may start programs; an
apostrophe before it says that it is text. Characters that steer a terminal stand there by their
codes (``\\x1b``). Numbers stay numbers, and `bare` gives back the text that `cell` has written.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.texts import file_size

#: Characters of a line that are read, at most.
_LONGEST_LINE = 10_000_000
#: A cell that begins like this may be taken for a formula, also in full width; or for an apostrophe
#: that was written here.
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "'", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
#: The codes by which characters are written that steer a terminal or end lines, halves of surrogate
#: pairs, and a backslash where it would be taken for the beginning of such a code.
_CODE = (
    r"(?:x(?:0[0-8b-f]|1[0-9a-f]|5c|7f|[89][0-9a-f])"
    r"|u(?:20(?:2[89a-e]|6[6-9])|d[89a-f][0-9a-f]{2}))"
)
_WRITTEN = re.compile(rf"\\{_CODE}")
_HIDDEN = re.compile(
    rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\\(?={_CODE})"
)


def cell(text: str) -> str:
    """Return a text as one cell, quoted where it must be."""
    if text.isalnum():
        return text
    text = _HIDDEN.sub(_code, text)
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([text])
    return out.getvalue()[:-1] if text else ""


def bare(text: str) -> str:
    """Return the text of a cell that `cell` has written, after the quotes of CSV are gone."""
    if text.startswith("'") and text[1:].startswith((*_FORMULA, "\r")):
        text = text[1:]
    return _WRITTEN.sub(lambda found: chr(int(found[0][2:], 16)), text)


def csv_rows(rows: Iterable[Iterable[str | float | None]]) -> str:
    """Return rows of texts and numbers, written to the last bit; None is an empty cell."""
    cells = (
        [cell(x) if isinstance(x, str) else "" if x is None else str(x) for x in row]
        for row in rows
    )
    return "".join([f"{','.join(row)}\n" for row in cells])


def csv_table(
    columns: Iterable[tuple[str, np.ndarray | Sequence[str]]],
    digits: int | None = None,
    exact: Collection[str] = (),
) -> str:
    """Return a table with a line of names; NaN is an empty cell.

    Arguments:
        columns: names, and texts or numbers, as many in each column.
        digits: of the numbers; None for as many as give back every bit.
        exact: columns whose numbers are written so whatever the digits are.
    """
    names, cells = [], []
    for name, values in columns:
        names.append(name)
        if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            bits = digits is None or name in exact
            cells.append([number_text(x, None if bits else digits) for x in values.tolist()])
        else:
            cells.append([cell(text) for text in values])
    rows = map(",".join, zip(*cells, strict=True))
    return "\n".join([",".join(map(cell, names)), *rows, ""])


def delimiter_of(line: str) -> str:
    """Return the character that divides the cells of a line: a comma, a semicolon or a tab."""
    return max((",", ";", "\t"), key=line.count)


def first_cells(path: Path) -> list[str]:
    """Read the cells of the first line that is no comment, also of a compressed table.

    Raises: InputError where the file cannot be read.
    """
    file_size(path)
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rb") as file:
            for raw in iter(lambda: file.readline(_LONGEST_LINE), b""):
                if raw.strip() and not raw.startswith(b"#"):
                    line = raw.decode("utf-8-sig", "replace").strip("\r\n")
                    rows = csv.reader([line], delimiter=delimiter_of(line), skipinitialspace=True)
                    return [cell.strip() for cell in next(rows, [])]
    except (OSError, EOFError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", path) from None
    return []


def number_text(value: float, digits: int | None = None) -> str:
    """Return a number with so many digits, or as short as gives back every bit; empty for NaN."""
    if value != value:
        return ""
    if digits is not None:
        return f"{value:.{digits}g}"
    text = repr(value)
    return text.removesuffix(".0") if text != "-0.0" else text


def _code(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
