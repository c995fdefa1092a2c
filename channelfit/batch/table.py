"""The table of a batch: a row for each well, columns of numbers and of text.

In a run folder it is ``wells.csv``, with ``wells-columns.json`` beside it, which gives the unit and
the meaning of each column, and ``wells.parquet`` where pyarrow is installed.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.csv_tables import bare, csv_table
from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_bytes
from channelfit.reading.texts import file_size
from channelfit.results.run_state import json_text

CSV, COLUMNS, PARQUET = "wells.csv", "wells-columns.json", "wells.parquet"
#: A label that can be read as a number, which would lose some of its characters.
_LABEL = re.compile(r"^\s*[-+]?(?:0\d|\d{16,}\s*$)|_")
#: Other names of columns.
ALSO = {"rundown": "run_down"}
#: Bytes of the largest table that is read.
_MAX_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Column:
    """The description of a column.

    Attributes:
        unit: of its numbers; empty where they have none, and for text.
        meaning: in a sentence.
        text: whether it holds text.
    """

    unit: str = ""
    meaning: str = ""
    text: bool = False


@dataclass(frozen=True, eq=False)
class WellTable:
    """Rows of wells.

    Attributes:
        columns: by name, float64 arrays, NaN where nothing is known, or object arrays of text; all
            of the same length.
        about: by the same names, what each column holds.
    """

    columns: dict[str, np.ndarray]
    about: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.columns.items():
            self.about.setdefault(name, Column(text=values.dtype == object))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def select(self, mask: np.ndarray) -> WellTable:
        """Return the rows of a mask (n_wells,) of booleans, or of an array of row numbers."""
        return WellTable({name: v[mask] for name, v in self.columns.items()}, dict(self.about))

    def row(self, k: int) -> dict[str, Any]:
        """Return one row as plain data: text, or numbers, None where nothing is known."""
        found = {name: values[k] for name, values in self.columns.items()}
        return {
            name: value if isinstance(value, str) else None if math.isnan(value) else float(value)
            for name, value in found.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows as `row` gives them."""
        return [self.row(k) for k in range(len(self))]

    # --- files -----------------------------------------------------------------------------------

    def write(self, folder: Path) -> list[str]:
        """Write the table into a folder, each file whole or not at all.

        Returns: sentences on files not written because an optional package is missing.

        Raises InputError: no permission, no space.
        """
        write_bytes(folder / COLUMNS, json_text(self._described()).encode())
        write_bytes(folder / CSV, self.csv_text().encode())
        if importlib.util.find_spec("pyarrow") is None:
            return [
                f"{PARQUET} was not written: it needs the package pyarrow: "
                'python -m pip install "channelfit[plate]"'
            ]
        write_bytes(folder / PARQUET, self._parquet())
        return []

    def _described(self) -> dict[str, dict[str, str]]:
        return {
            name: {
                "unit": about.unit,
                "kind": "text" if about.text else "number",
                "meaning": about.meaning,
            }
            for name, about in ((name, self.about[name]) for name in self.columns)
        }

    def csv_text(self) -> str:
        """Return the table as CSV; reading it gives back each bit of every number."""
        return csv_table(self.columns.items())

    def _parquet(self) -> bytes:
        import pyarrow  # an optional package, and slow to load
        import pyarrow.parquet

        fields, arrays = [], []
        for name, values in self.columns.items():
            about = self.about[name]
            kind = pyarrow.string() if about.text else pyarrow.float64()
            metadata = {"unit": about.unit, "meaning": about.meaning}
            fields.append(pyarrow.field(name, kind, metadata=metadata))
            known = values.tolist() if about.text else np.ma.masked_invalid(values)
            arrays.append(pyarrow.array(known, type=kind))
        table = pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))
        out = io.BytesIO()
        pyarrow.parquet.write_table(table, out)
        return out.getvalue()

    @classmethod
    def read(cls, folder: Path) -> WellTable:
        """Read the table of a run folder, from its ``wells.csv``.

        Raises InputError: it is not there, or not what `write` has written.
        """
        path = folder / CSV
        if not folder.is_dir() or not path.is_file():
            raise InputError(
                f"holds no table of wells: there is no {CSV}, as before a batch has finished",
                folder,
            )
        if file_size(path) > _MAX_BYTES:
            raise InputError(f"larger than {_MAX_BYTES:,} bytes", path)
        described = read_json(folder / COLUMNS) if (folder / COLUMNS).is_file() else {}
        try:
            text = path.read_text(encoding="utf-8")
            rows = list(csv.reader(io.StringIO(text, newline="")))
        except (OSError, ValueError, csv.Error) as error:
            raise InputError(f"cannot be read: {error}", path) from None
        if not rows or not rows[0]:
            raise InputError("is empty", path)
        names = [bare(name) for name in rows[0]]
        if len(set(names)) < len(names):
            raise InputError("two columns have the same name", path)
        for line, row in enumerate(rows[1:], 2):
            if len(row) != len(names):
                place = f"line {line}"
                raise InputError(
                    f"{len(row)} cells, where the header has {len(names)}", path, place
                )
        columns, about = dict[str, np.ndarray](), dict[str, Column]()
        for k, name in enumerate(names):
            cells = [bare(row[k]) for row in rows[1:]]
            entry = described.get(name)
            known: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
            as_text = {"text": True, "number": False}.get(str(known.get("kind")))
            columns[name] = values_of(cells, as_text, path, name)
            about[name] = Column(
                str(known.get("unit", "")),
                str(known.get("meaning", "")),
                columns[name].dtype == object,
            )
        return cls(columns, about)


def values_of(
    cells: Sequence[str], as_text: bool | None = None, path: Path | None = None, name: str = ""
) -> np.ndarray:
    """Return the cells of a column as float64, NaN for empty ones, or as an object array of text.

    Arguments:
        as_text: whether they are text; None where they are numbers if all that are not empty are,
            and no digit of them would be lost, as of the labels 007, 1_2 or 12345678901234567.
        path, name: where they stand, for messages.

    Raises InputError: a cell of a column of numbers that is none.
    """
    if as_text is not True and (as_text is False or any(cells)):
        if as_text is None and any(map(_LABEL.search, cells)):
            return texts(cells)
        try:
            return np.array([float(cell) if cell.strip() else math.nan for cell in cells])
        except ValueError as error:
            if as_text is False:
                raise InputError(str(error), path, f"column {name}") from None
    return texts(cells)


def texts(values: Iterable[str]) -> np.ndarray:
    """Return texts as an object array (n,)."""
    listed = list(values)
    found = np.empty(len(listed), dtype=object)
    found[:] = listed
    return found


#: A number in a reason, which differs from well to well; `k12` holds none.
_NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)")


def kinds_of_reasons(text: str) -> list[str]:
    """Return the reasons of a well, each once, with … for the numbers in it, for counting.

    Arguments:
        text: reasons with ";" between them.
    """
    parts = (_NUMBER.sub("…", part.strip()) for part in text.split(";"))
    return list(dict.fromkeys(part for part in parts if part))
