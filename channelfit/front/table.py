"""Tables for people: pandas' where it is installed, else a plain one that reads alike."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from channelfit.reading.texts import in_columns


class Table:
    """Rows by name and columns by name, where pandas is not installed.

    ``table["value"]`` is a column as a dictionary, ``table.loc["gmax"]`` a row, and
    ``table.loc["gmax", "value"]`` one entry, as in a DataFrame of pandas.
    """

    def __init__(self, rows: Mapping[Any, Mapping[str, Any]], columns: Sequence[str]) -> None:
        self._rows = {name: {c: row.get(c) for c in columns} for name, row in rows.items()}
        self.columns = list(columns)
        self.loc = _RowsByName(self._rows)

    @property
    def index(self) -> list[Any]:
        """The names of the rows."""
        return list(self._rows)

    def __getitem__(self, column: str) -> dict[str, Any]:
        if column not in self.columns:
            raise KeyError(f"{column}; there is {', '.join(self.columns)}")
        return {name: row[column] for name, row in self._rows.items()}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def _texts(self) -> list[list[str]]:
        rows = [["", *self.columns]]
        rows += [
            [str(name), *(_text(row[c]) for c in self.columns)] for name, row in self._rows.items()
        ]
        return rows

    def __repr__(self) -> str:
        return "\n".join(in_columns(self._texts()))

    def _repr_html_(self) -> str:
        head, *body = self._texts()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        lines = [
            "<tr>"
            + f"<th>{html.escape(row[0])}</th>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in body
        ]
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


class _RowsByName:
    """The rows of a table, by name, and their entries, by name of row and column."""

    def __init__(self, rows: Mapping[Any, Mapping[str, Any]]) -> None:
        self._rows = rows

    def __getitem__(self, place: str | tuple[str, str]) -> Any:
        if isinstance(place, tuple):
            return self._rows[place[0]][place[1]]
        return dict(self._rows[place])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table_of(rows: Mapping[Any, Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a DataFrame of pandas where it is installed, else a `Table`.

    Arguments:
        rows: by name, each with its entries by column; one that is missing is None.
        columns: the order of the columns.
    """
    if importlib.util.find_spec("pandas") is None:
        return Table(rows, columns)
    import pandas  # an optional package, and slow to load

    named = {name: {c: row.get(c) for c in columns} for name, row in rows.items()}
    return pandas.DataFrame.from_dict(named, orient="index", columns=list(columns))
