"""A plate as plain data for the scripts of its page: columns, places on the plate, traces.

Numbers are base64 of little-endian arrays. Texts are made printable here, so that nothing in them
steers a screen, and the scripts show them as text alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.batch.checks import RESIDUAL_MEASURES
from channelfit.batch.table import WellTable
from channelfit.reading.errors import printable
from channelfit.results.report.page_figures import packed
from channelfit.results.report.trace_view import current_unit, extreme_places, largest, time_unit

#: Rows and columns of the plates that laboratories use.
SIZES = ((8, 12), (16, 24), (32, 48))
#: Samples of all wells that a page holds; of each well no fewer than so many, while there are more.
MOST_SAMPLES, FEWEST_POINTS = 600_000, 200
#: Characters of the longest text that is shown.
_LONGEST = 400
_PLACE = re.compile(r"([A-Za-z]{1,2})[-_ ]?0*([1-9]\d?)")
#: The columns of measures, in the order of the page's lists.
MEASURES = (
    *("cost", "rms", "noise", "seal", "leak", "run_down"),
    *("clamp_resistance", "clamp_capacitance", "clamp_lost"),
    *RESIDUAL_MEASURES,
    *("starts", "agreed"),
)
_KNOWN = {*MEASURES, "well", "file", "row", "column", "quality", "reason"}
_SUFFIXES = ("_error", "_lower", "_upper")
#: A column is drawn on a logarithmic scale where its values span at least this factor.
_DECADES = 8.0
#: The value of a sample that is missing, and the largest of one that is not.
_MISSING, _TOP = 65535, 65534


@dataclass(frozen=True, eq=False)
class PlateTable:
    """A table of wells, and the roles of its columns.

    Attributes:
        labels: the names of the wells. quality, reason: of each well.
        parameters: names of the columns that hold fitted values.
        metadata: names of the user's own columns; those before the first parameter by
            default.
        misfit: (n_wells,), residual over noise; NaN where either is unknown.
    """

    table: WellTable
    labels: list[str]
    quality: list[str]
    reason: list[str]
    parameters: list[str]
    metadata: list[str]
    misfit: np.ndarray

    @property
    def n_wells(self) -> int:
        return len(self.labels)

    def number(self, name: str) -> np.ndarray:
        """Return a column of numbers; NaN where it is missing."""
        column = self.table.columns.get(name)
        if column is None or not is_number(column):
            return np.full(self.n_wells, np.nan)
        return np.asarray(column, dtype=float)

    def unit(self, name: str) -> str:
        """Return the unit of a column; empty for a pure number."""
        units = (self.table.about[n].unit for n in (name, _stem(name)) if n in self.table.about)
        unit = next((unit for unit in units if unit), "")
        return "" if unit == "1" else shown_text(unit).replace("^2", "²")

    def meaning(self, name: str) -> str:
        """Return the meaning of a column; empty where it is not described."""
        about = self.table.about
        return shown_text(about[name].meaning) if name in about else ""

    def values(self) -> np.ndarray:
        """Return the fitted values, (n_wells, n_parameters)."""
        rows = [self.number(name) for name in self.parameters]
        return np.array(rows).T if rows else np.empty((self.n_wells, 0))


def plate_of(table: WellTable, facts: Mapping[str, Any]) -> PlateTable:
    """Find the role of each column of a table, by its name and the facts on the batch."""
    columns = table.columns
    n = len(table)
    numbers = [name for name, column in columns.items() if is_number(column)]
    fitted = [n for n in numbers if f"{n}_lower" in columns and f"{n}_upper" in columns]
    parameters = [name for name in facts.get("parameters") or fitted if name in numbers]
    parts = {f"{name}{suffix}" for name in parameters for suffix in _SUFFIXES}
    names = list(columns)
    before = names[: names.index(parameters[0])] if parameters else names
    others = [name for name in before if name not in {*_KNOWN, *parts}]
    metadata = [name for name in facts.get("metadata") or others if name in columns]
    labels = texts(columns["well"]) if "well" in columns else [str(k + 1) for k in range(n)]
    empty = [""] * n
    plate = PlateTable(
        table,
        labels,
        texts(columns["quality"]) if "quality" in columns else empty,
        texts(columns["reason"], whole=True) if "reason" in columns else empty,
        parameters,
        metadata,
        np.empty(0),
    )
    rms, noise = plate.number("rms"), plate.number("noise")
    known = np.isfinite(rms) & np.isfinite(noise) & (noise > 0)
    misfit = np.divide(rms, noise, out=np.full(n, np.nan), where=known)
    return PlateTable(**{**vars(plate), "misfit": misfit})


def is_number(column: np.ndarray) -> bool:
    """Return whether a column holds numbers."""
    return np.asarray(column).dtype.kind in "biuf"


def shown_text(value: object, whole: bool = False) -> str:
    """Return a text of a table as a page shows it: printable, in one line, and not endless.

    Arguments:
        whole: whether it is shown however long it is.
    """
    text = "" if value is None else printable(str(value))
    text = " ".join(text.split())
    return text if whole or len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def texts(column: np.ndarray, whole: bool = False) -> list[str]:
    """Return a column as texts; `whole` as of `shown_text`."""
    if is_number(column):
        return [f"{value:g}" if value == value else "" for value in np.asarray(column, float)]
    return [shown_text(value, whole) for value in column]


def _stem(name: str) -> str:
    return next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)


# --- columns -------------------------------------------------------------------------------------


def columns_of(
    plate: PlateTable, more: Mapping[str, tuple[np.ndarray, str]]
) -> list[dict[str, Any]]:
    """Return every column of the table, and more that were computed: name, unit, meaning and
    values.

    Arguments:
        more: by key the values of a computed column, and what it means.
    """
    found = []
    for name, column in plate.table.columns.items():
        row: dict[str, Any] = {
            "key": name,
            "name": shown_text(name),
            "unit": plate.unit(name),
            "meaning": plate.meaning(name),
        }
        # a reason that is cut would be counted as another than that of the table
        found.append(row | _values(column, whole=name == "reason"))
    for key, (column, meaning) in more.items():
        row = {"key": f"page {key}", "name": key, "unit": "", "meaning": meaning}
        found.append(row | _values(column))
    return found


def _values(column: np.ndarray, whole: bool = False) -> dict[str, Any]:
    if is_number(column):
        numbers = np.asarray(column, dtype=float)
        return {"numbers": packed(numbers, "<f8"), "log": is_logarithmic(numbers)}
    words = texts(column, whole)
    different = list(dict.fromkeys(words))
    if len(different) > max(1, len(words) // 2):
        return {"words": words}
    place = {word: k for k, word in enumerate(different)}
    return {"words": different, "at": packed(np.array([place[word] for word in words]), "<u4")}


def is_logarithmic(values: np.ndarray) -> bool:
    """Return whether values are better seen on a logarithmic scale: positive, and over a wide
    range.
    """
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() > 0 and known.max() > _DECADES * known.min())


# --- places --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlateGrid:
    """A plate, or the wells without a place in rows like those of one.

    Attributes:
        name: empty where there is nothing to tell it from.
        wells: row, column and number of each well.
        loose: whether the wells have no place.
    """

    name: str
    rows: int
    columns: int
    wells: list[tuple[int, int, int]]
    loose: bool = False


def grids_of(plate: PlateTable) -> tuple[list[PlateGrid], int]:
    """Find where on which plate each well lies.

    Returns: the plates, then a grid of the wells that have no place; and how many of these have a
        place that another well has, too.
    """
    columns = plate.table.columns
    of_plates = texts(columns["plate"]) if "plate" in columns else [""] * plate.n_wells
    rows = texts(columns["row"]) if "row" in columns else [""] * plate.n_wells
    across = texts(columns["column"]) if "column" in columns else [""] * plate.n_wells
    taken: dict[str, dict[tuple[int, int], int]] = {}
    loose, shared = [], 0
    for k, name in enumerate(of_plates):
        place = place_of(f"{rows[k]}{across[k]}") or place_of(plate.labels[k])
        own = taken.setdefault(name, {})
        if place is None or place in own:
            shared += place is not None
            loose.append(k)
        else:
            own[place] = k
    grids = []
    for name, own in taken.items():
        if own:
            wells = [(row, column, k) for (row, column), k in sorted(own.items())]
            grids.append(PlateGrid(name, *_size(own), wells))
    return [*grids, *([_loose_grid(loose, bool(grids))] if loose else [])], shared


def _loose_grid(wells: Sequence[int], beside_others: bool) -> PlateGrid:
    """Return wells without a place in rows of a length that keeps the picture compact."""
    n = len(wells)
    across = 12 if n <= 24 else 24 if n <= 400 else min(100, 10 * math.ceil(math.sqrt(n) / 10))
    placed = [(at // across, at % across, k) for at, k in enumerate(wells)]
    name = "Without a place of their own" if beside_others else "All wells, in their order"
    return PlateGrid(name, math.ceil(n / across), across, placed, loose=True)


def place_of(label: str) -> tuple[int, int] | None:
    """Return the row and column, from 0, of a label such as `A01`, `P24` or `AF48`; None for any
    other.
    """
    found = _PLACE.fullmatch(label.strip())
    if not found:
        return None
    letters = found[1].upper()
    row = ord(letters[-1]) - ord("A") + 26 * (ord(letters[0]) - ord("A") + 1) * (len(letters) - 1)
    column = int(found[2]) - 1
    rows, columns = SIZES[-1]
    return (row, column) if row < rows and column < columns else None


def row_name(row: int) -> str:
    """Return the letters of a row of a plate, from 0: A to Z, then AA and so on."""
    return chr(ord("A") + row) if row < 26 else f"A{chr(ord('A') + row - 26)}"


def _size(places: Mapping[tuple[int, int], int]) -> tuple[int, int]:
    """Return rows and columns of the smallest usual plate that has all of these places."""
    row, column = (max(place[k] for place in places) for k in (0, 1))
    return next(size for size in SIZES if row < size[0] and column < size[1])


# --- traces --------------------------------------------------------------------------------------


def traces_of(
    traces: Mapping[str, np.ndarray], n_wells: int, order: Sequence[int] | np.ndarray
) -> dict[str, Any]:
    """Return the traces that a page holds, those of the wells that come first in an order.

    Each well has its data, its fit and what the fit leaves, as 16 bits of the range of each. Of
    more samples than a page can hold, each well keeps fewer points, extremes of short stretches; of
    still more, the last wells in the order keep none.

    Returns: `wells` with traces; `time` and its `time_unit`; the `unit` of the current, and how
        many of it are a pA (`per_pA`); `data`, `fit` and `residual`, with the range of each well in
        `data_span` and so on; `thinned` from how many points; `without`, how many wells of the
        table have no traces here although they have some in their file.
    """
    if not traces or not len(traces.get("data", ())):
        return {"wells": "", "without": 0, "thinned": 0, "unit": "pA", "time_unit": "ms"}
    data = np.asarray(traces["data"], float)
    rows = np.full(n_wells, -1)
    known = np.asarray(traces["well"], int) if "well" in traces else np.arange(len(data))
    some = np.isfinite(data).any(axis=1)
    rows[known[some]] = np.flatnonzero(some)
    wells = np.array([k for k in order if rows[k] >= 0], dtype=int)
    points = data.shape[1]
    kept = min(points, max(FEWEST_POINTS, MOST_SAMPLES // max(len(wells), 1)))
    here = wells[: max(1, MOST_SAMPLES // max(kept, 1))]
    own = {name: np.asarray(traces[name], float)[rows[here]] for name in ("data", "fit")}
    if "residual" in traces:
        own["residual"] = np.asarray(traces["residual"], float)[rows[here]]
    else:
        own["residual"] = own["fit"] - own["data"]
    time = np.asarray(traces["time_ms"], float)
    time_factor, time_name = time_unit(float(time[-1]) if time.size else 0.0)
    time = time * time_factor
    if kept < points:
        own = {name: _thinned(values, kept) for name, values in own.items()}
        time = _thinned_time(time, kept)
    factor, unit = current_unit(largest(own["data"]))
    return {
        "wells": packed(here, "<u4"),
        "time": packed(time, "<f4"),
        "time_unit": time_name,
        "unit": unit,
        "per_pA": factor,
        **{name: _bits(values) for name, values in own.items()},
        **{f"{n}_span": packed(_spans(values) * factor, "<f4") for n, values in own.items()},
        "thinned": points if kept < points else 0,
        "without": len(wells) - len(here),
    }


def _thinned(rows: np.ndarray, kept: int) -> np.ndarray:
    """Return the least and the largest of each stretch of a row, in their order; at most `kept`.

    The stretches are the same for all rows, which share their times.
    """
    size = _stretch(rows.shape[1], kept)
    missing = -rows.shape[1] % size
    blocks = np.pad(rows, ((0, 0), (0, missing)), constant_values=np.nan)
    blocks = blocks.reshape(len(rows), -1, size)
    return np.take_along_axis(blocks, extreme_places(blocks), axis=2).reshape(len(rows), -1)


def _thinned_time(time: np.ndarray, kept: int) -> np.ndarray:
    """Return the times at which these values are shown: a quarter into each half of their
    stretches.
    """
    size = _stretch(len(time), kept)
    places = np.arange(0, len(time), size)[:, None] + (size - 1) * np.array([0.25, 0.75])
    found: np.ndarray = np.interp(places.ravel(), np.arange(len(time)), time)
    return found


def _stretch(points: int, kept: int) -> int:
    """Return how many points there are to each two that are kept."""
    return -(-points // (kept // 2))


def _spans(rows: np.ndarray) -> np.ndarray:
    """Return the least and the largest value of each row, (n_rows, 2); zeros without any."""
    finite = np.isfinite(rows)
    some = finite.any(axis=1)
    low = np.where(finite, rows, np.inf).min(axis=1)
    high = np.where(finite, rows, -np.inf).max(axis=1)
    return np.where(some[:, None], np.stack([low, high], axis=1), 0.0)


def _bits(rows: np.ndarray) -> str:
    """Return rows as 16 bits of the range of each."""
    low, high = _spans(rows).T
    width = np.where(high > low, high - low, 1.0)
    finite = np.isfinite(rows)
    share = np.where(finite, rows - low[:, None], 0.0) / width[:, None]
    codes = np.where(finite, np.rint(share * _TOP), _MISSING)
    return packed(codes, "<u2")
