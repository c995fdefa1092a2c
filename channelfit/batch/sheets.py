"""Tables of text that people keep of their recordings: CSV, TSV, and workbooks of Excel (.xlsx)."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from channelfit.reading.csv_tables import delimiter_of
from channelfit.reading.errors import InputError
from channelfit.reading.texts import decoded, file_size

#: The suffixes of files with such a table.
SUFFIXES = (".csv", ".tsv", ".txt", ".xlsx")
#: Bytes of a table, and of a part of a workbook when it is unpacked; rows; columns.
_MAX_BYTES, _MAX_ROWS, _MAX_COLUMNS = 50_000_000, 200_000, 2000
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def read_sheet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read the heading of a table, and its rows, each with its line; empty rows are left out.

    Every row is as long as the heading.

    Raises InputError: no such table, without a heading or with two equal ones, or longer rows.
    """
    if file_size(path) > _MAX_BYTES:
        raise InputError(f"larger than {_MAX_BYTES:,} bytes; is this a table of recordings?", path)
    rows = _of_workbook(path) if path.suffix.lower() == ".xlsx" else _of_text(path)
    head: list[str] = []
    found: list[tuple[int, list[str]]] = []
    for line, row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells) or (not head and cells[0].startswith("#")):
            continue
        if not head:
            while cells and not cells[-1]:
                cells.pop()
            head = cells
            continue
        if any(cells[len(head) :]):
            raise InputError(
                f"{len(cells)} cells, where the header has {len(head)}", path, f"line {line}"
            )
        found.append((line, (cells + [""] * len(head))[: len(head)]))
        if len(found) > _MAX_ROWS:
            raise InputError(f"more than {_MAX_ROWS:,} rows", path)
    if not head or not found:
        raise InputError("a header, but no rows" if head else "the table is empty", path)
    for k, name in enumerate(head):
        if not name:
            raise InputError(f"column {k + 1} has no name", path)
        if name in head[:k]:
            raise InputError(f'two columns are called "{name[:60]}"', path)
    return head, found


def _of_text(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path) from None
    try:
        text = decoded(data, path)
    except InputError:
        if b"\0" in data:
            raise
        text = data.decode("cp1252", "replace")  # as Excel saves CSV in western Europe
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(first))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"not a table: {error}", path, f"line {reader.line_num}") from None


# --- workbooks of Excel --------------------------------------------------------------------------


def _of_workbook(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of the first sheet: a workbook is an archive of XML."""
    try:
        with zipfile.ZipFile(path) as archive:
            shared = []
            if "xl/sharedStrings.xml" in archive.namelist():
                strings = _xml(archive, "xl/sharedStrings.xml", path)
                shared = [_text(item) for item in strings.iter(f"{_MAIN}si")]
            sheet = _xml(archive, _first_sheet(archive, path), path)
    except (zipfile.BadZipFile, KeyError, OSError, RuntimeError, NotImplementedError) as error:
        raise InputError(f"not a workbook of Excel: {error}"[:200], path) from None
    for number, row in enumerate(sheet.iter(f"{_MAIN}row"), 1):
        cells: dict[int, str] = {}
        for place, cell in enumerate(row.iter(f"{_MAIN}c")):
            name = re.match(r"[A-Z]{1,3}(?=\d)", cell.get("r", ""))
            column = place if name is None else _column(name[0])
            if column >= _MAX_COLUMNS:
                raise InputError(f"more than {_MAX_COLUMNS} columns", path)
            cells[column] = _content(cell, shared, path)
        line = row.get("r", "")
        yield (
            int(line) if line.isdecimal() else number,
            [cells.get(k, "") for k in range(max(cells, default=-1) + 1)],
        )


def _first_sheet(archive: zipfile.ZipFile, path: Path) -> str:
    """Return the name in the archive of the first sheet of a workbook."""
    first = next(_xml(archive, "xl/workbook.xml", path).iter(f"{_MAIN}sheet"), None)
    links = _xml(archive, "xl/_rels/workbook.xml.rels", path)
    sheet = None if first is None else first.get(_LINK)
    for link in links:
        if link.get("Id") == sheet:
            target = link.get("Target", "")
            return target[1:] if target.startswith("/") else f"xl/{target}"
    raise InputError("a workbook without a sheet", path)


def _xml(archive: zipfile.ZipFile, name: str, path: Path) -> Any:
    """Parse a part of a workbook. Raises InputError for one that is huge or defines entities."""
    if archive.getinfo(name).file_size > _MAX_BYTES:
        raise InputError(f"{name} is larger than {_MAX_BYTES:,} bytes", path)
    data = archive.read(name)
    if b"<!" in data.replace(b"<![CDATA[", b"").replace(b"<!--", b"") or b"\0" in data:
        raise InputError(f"{name} defines entities, which no workbook needs", path)
    try:
        return ElementTree.fromstring(data)  # noqa: S314 - without entities
    except ElementTree.ParseError as error:
        raise InputError(f"{name} is not XML: {error}", path) from None


def _content(cell: Any, shared: list[str], path: Path) -> str:
    """Return the text of a cell as it is stored: a number in full, a date as a number of days."""
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        return _text(cell)
    value = cell.find(f"{_MAIN}v")
    text = "" if value is None or value.text is None else value.text
    if kind == "s":
        if not text.isdecimal() or int(text) >= len(shared):
            raise InputError(f"cell {cell.get('r', '')} names a text that is not there", path)
        return shared[int(text)]
    return text


def _text(item: Any) -> str:
    """Return the text of a cell in pieces of several fonts, without phonetic hints."""
    parts = [*item.findall(f"{_MAIN}t"), *item.findall(f"{_MAIN}r/{_MAIN}t")]
    parts += item.findall(f"{_MAIN}is/{_MAIN}t") + item.findall(f"{_MAIN}is/{_MAIN}r/{_MAIN}t")
    return "".join(part.text or "" for part in parts)


def _column(letters: str) -> int:
    """Return the number of a column, from 0."""
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
