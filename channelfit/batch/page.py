"""The page of a batch: its plate as a map, every well, distributions, a table; one HTML file.

It refers to no other file and to no server (`results/report/page_shell.py`). Wells that are chosen
in one of its parts are chosen in all of them. Names and texts of users come into it as escaped text
and as printable JSON that its script shows as text, and never into a figure of Bokeh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from channelfit.batch import page_words
from channelfit.batch.page_data import (
    MEASURES,
    PlateGrid,
    PlateTable,
    columns_of,
    grids_of,
    is_logarithmic,
    plate_of,
    row_name,
    shown_text,
    texts,
    traces_of,
)
from channelfit.batch.page_order import RULE, Apart, stand_apart
from channelfit.batch.page_plots import draw_pairs, draw_spreads, draw_well
from channelfit.batch.table import WellTable
from channelfit.results.report.page_figures import Figures, packed
from channelfit.results.report.page_shell import SCRIPT, page_text, short

_OWN = Path(__file__).parent / "templates"
#: Colors of the map from the least to the largest value.
_STOPS = 33
#: A column of texts divides the wells into groups if it has no more different texts than this.
_MOST_GROUPS = 12
#: Parameters of which a page draws the distribution.
_MOST_SPREADS = 24


def plate_page(table: WellTable, traces: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> str:
    """Return the page of a batch as the text of an HTML file.

    Arguments:
        table: one row a well.
        traces: `time_ms` (n_points,) in ms, `data` and `fit` (n_rows, n_points) in pA, `residual`
            where it is not the difference of these, and `well` (n_rows,), the rows of the table
            that they are of, where they are not of all. May be empty.
        facts: plain data on the batch; every key may be missing. Texts: `title`, `description`,
            `model`, `model_source`, `protocol`, `protocol_source`, `search`, `backend`, `dtype`,
            `finished` (ISO 8601), `command`, `file`. Numbers: `starts`, `seed`, `seconds`.
            `parameters` and `metadata` name columns of the table. `files` are mappings of `what`,
            `file` and `sha256`; `versions` and `machine` are mappings of texts; `warnings` are
            texts, or mappings of `place`, `value` and `advice`; `left_out` are mappings of
            `recording` and `reason`. `population` and `groups` are what `Population.summary` and
            `Groups.summary` hold.
    """
    plate = plate_of(table, facts)
    parts = _PageParts.of(plate, traces)
    return page_text(
        _OWN / "plate.html",
        _context(parts, facts),
        [_OWN / "plate.css"],
        [SCRIPT, *(_OWN / f"plate{part}.js" for part in ("", "_figures", "_spreads", "_map"))],
        _figures(parts).as_plain() | {"plate": _content(parts)},
    )


@dataclass(frozen=True, eq=False)
class _PageParts:
    """The values that several parts of the page show.

    Attributes:
        apart: how far each well stands apart from the others.
        grids: of plates, in which each well has its place; shared: how many wells have one that
            another has, too.
        reasons: why wells failed or are to be checked, as `reasons_of` counts them.
        drawn: names of the parameters of which a distribution is drawn.
        traces: those that the page keeps.
    """

    plate: PlateTable
    apart: Apart
    grids: list[PlateGrid]
    shared: int
    reasons: list[dict[str, Any]]
    drawn: list[str]
    traces: dict[str, Any]

    @classmethod
    def of(cls, plate: PlateTable, traces: Mapping[str, np.ndarray]) -> _PageParts:
        """Collect the values that the page of a plate shows."""
        apart = stand_apart(plate.values(), _misfit(plate))
        known = [name for name in plate.parameters if np.isfinite(plate.number(name)).any()]
        kept = traces_of(traces, plate.n_wells, apart.order)
        reasons = page_words.reasons_of(plate)
        return cls(plate, apart, *grids_of(plate), reasons, known[:_MOST_SPREADS], kept)


def _figures(parts: _PageParts) -> Figures:
    """Return the figures of Bokeh: a well, the distributions, and pairs of parameters."""
    figures, plate = Figures(), parts.plate
    draw_well(figures, parts.traces["unit"], parts.traces["time_unit"])
    draw_spreads(figures, [is_logarithmic(plate.number(name)) for name in parts.drawn])
    if parts.drawn:
        draw_pairs(figures)
    return figures


def _content(parts: _PageParts) -> dict[str, Any]:
    """Return the content that the scripts of the page show, as plain data."""
    plate, apart = parts.plate, parts.apart
    on_plate = np.array([k for grid in parts.grids for _, _, k in grid.wells], dtype=int)
    more = {
        "misfit": (plate.misfit, "root mean square of the residuals over the noise"),
        "distance": (apart.distance, "distance from the plate, see Every well"),
    }
    return {
        "n": plate.n_wells,
        "columns": columns_of(plate, more),
        "labels": plate.labels,
        "parameters": plate.parameters,
        "metadata": plate.metadata,
        "measures": [name for name in MEASURES if _is_measured(plate, name)],
        "others": _others(plate),
        "spreads": parts.drawn,
        "pair": _pair(plate, apart),
        "groups": _groupings(plate),
        "qualities": [name for name, _ in page_words.quality_counts(plate)],
        "order": packed(apart.order, "<u4"),
        "on_plate": packed(on_plate, "<u4"),
        "grids": [vars(grid) for grid in parts.grids],
        "rows": [row_name(k) for k in range(32)],
        "traces": parts.traces,
        "reasons": [row["wells"] for row in parts.reasons],
        "ramp": [to_hex(color) for color in mpl.colormaps["viridis"](np.linspace(0, 1, _STOPS))],
    }


def _context(parts: _PageParts, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that fill the template of the page."""
    plate = parts.plate
    return {
        "title": shown_text(facts.get("title") or facts.get("model") or "A plate"),
        "description": facts.get("description"),
        "version": page_words.version_of(facts),
        "n_wells": plate.n_wells,
        "verdict": _verdict(plate),
        "wrong": page_words.cautions(plate, facts),
        "reasons": parts.reasons,
        "spreads": [(name, plate.unit(name)) for name in parts.drawn],
        "left_undrawn": len(plate.parameters) - len(parts.drawn),
        "shared": parts.shared,
        "rule": RULE,
        "traces": parts.traces,
        "population": _population(facts),
        "groups": _groups(facts),
        "provenance": page_words.provenance(facts),
        "files": list(facts.get("files") or ()),
        "methods": page_words.methods(plate, facts),
        "citation": page_words.citation(facts),
    }


def _is_measured(plate: PlateTable, name: str) -> bool:
    """Return whether a column holds a measure of wells, and not a parameter of the same name."""
    return name not in plate.parameters and bool(np.isfinite(plate.number(name)).any())


def _others(plate: PlateTable) -> list[str]:
    """Return further columns of numbers, such as what all wells together say of each."""
    names = list(plate.table.columns)
    after = names[names.index(plate.parameters[-1]) + 1 :] if plate.parameters else []
    known = {*plate.parameters, *plate.metadata, *MEASURES}
    ends = ("_error", "_lower", "_upper")
    found = [n for n in after if n not in known and not n.endswith(ends)]
    return [n for n in found if np.isfinite(plate.number(n)).any()]


def _misfit(plate: PlateTable) -> np.ndarray:
    """Return residual over noise; without any noise the residual, or else the root of cost."""
    for values in (plate.misfit, plate.number("rms"), np.sqrt(np.abs(plate.number("cost")))):
        if np.isfinite(values).any():
            return values
    return plate.misfit


def _verdict(plate: PlateTable) -> list[tuple[str, str]]:
    """Return the few numbers that a reader looks for first, each with its name."""
    found = [("Wells", f"{plate.n_wells:,}")]
    words = {"ok": "Fitted without remarks", "check": "To be checked", "failed": "Failed"}
    for name, count in page_words.quality_counts(plate):
        found.append((words.get(name, name), f"{count:,}"))
    known = plate.misfit[np.isfinite(plate.misfit)]
    if known.size:
        found.append(("Residual over noise, median", short(float(np.median(known)), 3)))
    found.append(("Parameters of each well", str(len(plate.parameters))))
    return found


def _pair(plate: PlateTable, apart: Apart) -> list[str]:
    """Return the two parameters that go together most, to begin with."""
    n = len(plate.parameters)
    if n < 2:
        return plate.parameters * 2
    strength = np.abs(apart.correlations) - 2 * np.eye(n)
    one, other = divmod(int(np.argmax(strength)), n)
    return [plate.parameters[one], plate.parameters[other]]


def _groupings(plate: PlateTable) -> list[str]:
    """Return names of the columns that divide the wells into a few groups."""
    found = []
    for name in ("quality", *plate.metadata, "group"):
        column = plate.table.columns.get(name)
        if column is None or name in found:
            continue
        different = set(texts(column)) - {""}
        if 1 < len(different) <= _MOST_GROUPS or name == "quality":
            found.append(name)
    return found


def _population(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the table of the population's means and spreads; None where none was fitted."""
    population = facts.get("population") or {}
    rows = []
    for row in population.get("rows") or ():
        log = row.get("scale") == "log"
        drawn = row.get("kind") != "shared"
        rows.append(
            [
                row.get("name", ""),
                row.get("kind", ""),
                short(row.get("mean"), 4),
                _between(row.get("mean_lower"), row.get("mean_upper")),
                "" if row.get("unit") == "1" else row.get("unit", ""),
                _spread(row.get("spread"), log) if drawn else "",
                _spread_interval(row, log) if drawn else "",
            ]
        )
    return {"rows": rows, "remarks": population.get("remarks") or ()} if rows else None


def _spread(value: object, log: bool) -> str:
    """Return a spread; of logarithms, the factor by which wells usually differ from the mean."""
    return f"× or ÷ {short(_factor(value), 3)}" if log else f"± {short(value, 3)}"


def _spread_interval(row: Mapping[str, Any], log: bool) -> str:
    ends = [row.get(f"spread_{end}") for end in ("lower", "upper")]
    return _between(*(_factor(end) if log else end for end in ends))


def _factor(value: object) -> object:
    """Return the factor that a difference of logarithms is."""
    return math.exp(min(value, 700.0)) if isinstance(value, int | float) else value


def _between(low: object, high: object) -> str:
    """Return an interval as text, "open" for an end that is not known."""
    ends = [short(end, 3) for end in (low, high)]
    if ends == ["–", "–"]:
        return ""
    return " to ".join("open" if end == "–" else end for end in ends)


def _groups(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the table of groups of wells; None where none were sought."""
    groups = facts.get("groups") or {}
    names, units = list(groups.get("of") or ()), groups.get("units") or {}
    rows = [
        [
            row.get("group", ""),
            row.get("wells", ""),
            *(short((row.get("center") or {}).get(name), 4) for name in names),
        ]
        for row in groups.get("rows") or ()
    ]
    shown = {name: "" if units.get(name) == "1" else units.get(name, "") for name in names}
    titles = [f"{name} ({unit})" if unit else name for name, unit in shown.items()]
    head = ["Group", "Wells", *titles]
    return {"rows": rows, "head": head, "remarks": groups.get("remarks") or ()} if rows else None
