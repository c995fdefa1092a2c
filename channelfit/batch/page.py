"""The page of a batch: its plate as a map, every well, distributions, a table; one HTML file.

It needs nothing else, and asks nobody for anything (`results/report/page_shell.py`). What is chosen
in one of its parts is chosen in all of them. Names and texts of users come into it as escaped text
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
    Plate,
    Wells,
    columns_of,
    is_logarithmic,
    places_of,
    plate_of,
    row_name,
    shown_text,
    texts,
    traces_of,
)
from channelfit.batch.page_order import RULE, Apart, stand_apart
from channelfit.batch.page_plots import draw_pairs, draw_spreads, draw_well
from channelfit.results.report.page_figures import Figures, packed
from channelfit.results.report.page_shell import TEMPLATES, page_text, short

_OWN = Path(__file__).parent / "templates"
#: Colors of the map from the least to the largest value.
_STOPS = 33
#: A column of texts divides the wells into groups if it has no more different texts than this.
_MOST_GROUPS = 12
#: Parameters of which a page draws the distribution.
_MOST_SPREADS = 24


def plate_page(table: Wells, traces: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> str:
    """The page of a batch as the text of an HTML file.

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
            `Groups.summary` tell.
    """
    plate = plate_of(table, facts)
    shown = _Shown.of(plate, traces)
    return page_text(
        "plate.html",
        _context(shown, facts),
        _figures(shown).as_plain() | {"plate": _told(shown)},
        [TEMPLATES / "page.css", _OWN / "plate.css"],
        [
            TEMPLATES / "page_common.js",
            *(_OWN / f"plate{part}.js" for part in ("", "_figures", "_spreads", "_map")),
        ],
    )


@dataclass(frozen=True, eq=False)
class _Shown:
    """What several parts of the page show.

    Attributes:
        apart: how far each well stands apart from the others.
        places: of the wells on plates, as `places_of` finds them.
        reasons: why wells failed or are to be checked, as `reasons_of` counts them.
        drawn: names of the parameters of which a distribution is drawn.
        traces: those that the page keeps.
    """

    plate: Plate
    apart: Apart
    places: dict[str, Any]
    reasons: list[dict[str, Any]]
    drawn: list[str]
    traces: dict[str, Any]

    @classmethod
    def of(cls, plate: Plate, traces: Mapping[str, np.ndarray]) -> _Shown:
        """What the page of a plate shows."""
        apart = stand_apart(plate.values(), _misfit(plate))
        known = [name for name in plate.parameters if np.isfinite(plate.number(name)).any()]
        kept = traces_of(traces, plate.n_wells, apart.order)
        reasons = page_words.reasons_of(plate)
        return cls(plate, apart, places_of(plate), reasons, known[:_MOST_SPREADS], kept)


def _figures(shown: _Shown) -> Figures:
    """The figures of Bokeh: a well, the distributions, and pairs of parameters."""
    figures, plate = Figures(), shown.plate
    draw_well(figures, shown.traces["unit"], shown.traces["time_unit"])
    draw_spreads(figures, [is_logarithmic(plate.number(name)) for name in shown.drawn])
    if shown.drawn:
        draw_pairs(figures)
    return figures


def _told(shown: _Shown) -> dict[str, Any]:
    """What the script of the page is told, as plain data."""
    plate, apart = shown.plate, shown.apart
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
        "spreads": shown.drawn,
        "pair": _pair(plate, apart),
        "groups": _groupings(plate),
        "qualities": [name for name, _ in page_words.quality_counts(plate)],
        "order": packed(apart.order, "<u4"),
        "on_plate": packed(_plate_order(plate, shown.places), "<u4"),
        "places": shown.places,
        "rows": [row_name(k) for k in range(32)],
        "traces": shown.traces,
        "reasons": [row["wells"] for row in shown.reasons],
        "ramp": [to_hex(color) for color in mpl.colormaps["viridis"](np.linspace(0, 1, _STOPS))],
    }


def _context(shown: _Shown, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the template of the page is filled with."""
    plate = shown.plate
    return {
        "title": shown_text(facts.get("title") or facts.get("model") or "A plate"),
        "description": facts.get("description"),
        "version": page_words.version_of(facts),
        "n_wells": plate.n_wells,
        "verdict": _verdict(plate),
        "wrong": page_words.what_looked_wrong(plate, facts),
        "reasons": shown.reasons,
        "spreads": [(name, plate.unit(name)) for name in shown.drawn],
        "left_undrawn": len(plate.parameters) - len(shown.drawn),
        "shared": shown.places["shared"],
        "rule": RULE,
        "traces": shown.traces,
        "population": _population(facts),
        "groups": _groups(facts),
        "provenance": page_words.provenance(facts),
        "files": list(facts.get("files") or ()),
        "methods": page_words.methods(plate, facts),
        "citation": page_words.citation(facts),
    }


def _is_measured(plate: Plate, name: str) -> bool:
    """Whether a column holds a measure of wells, and not a parameter of the same name."""
    return name not in plate.parameters and bool(np.isfinite(plate.number(name)).any())


def _others(plate: Plate) -> list[str]:
    """Further columns of numbers, such as what all wells together say of each."""
    names = list(plate.table.columns)
    after = names[names.index(plate.parameters[-1]) + 1 :] if plate.parameters else []
    known = {*plate.parameters, *plate.metadata, *MEASURES}
    ends = ("_error", "_lower", "_upper")
    found = [n for n in after if n not in known and not n.endswith(ends)]
    return [n for n in found if np.isfinite(plate.number(n)).any()]


def _misfit(plate: Plate) -> np.ndarray:
    """Residual over noise; where no well has its noise, the residual, or else the root of cost."""
    for values in (plate.misfit, plate.number("rms"), np.sqrt(np.abs(plate.number("cost")))):
        if np.isfinite(values).any():
            return values
    return plate.misfit


def _verdict(plate: Plate) -> list[tuple[str, str]]:
    """The few numbers that a reader looks for first, each with its name."""
    found = [("Wells", f"{plate.n_wells:,}")]
    words = {"ok": "Fitted without remarks", "check": "To be checked", "failed": "Failed"}
    for name, count in page_words.quality_counts(plate):
        found.append((words.get(name, name), f"{count:,}"))
    known = plate.misfit[np.isfinite(plate.misfit)]
    if known.size:
        found.append(("Residual over noise, median", short(float(np.median(known)), 3)))
    found.append(("Parameters of each well", str(len(plate.parameters))))
    return found


def _pair(plate: Plate, apart: Apart) -> list[str]:
    """The two parameters that go together most, to begin with."""
    n = len(plate.parameters)
    if n < 2:
        return plate.parameters * 2
    strength = np.abs(apart.correlations) - 2 * np.eye(n)
    one, other = divmod(int(np.argmax(strength)), n)
    return [plate.parameters[one], plate.parameters[other]]


def _groupings(plate: Plate) -> list[str]:
    """Names of the columns that divide the wells into a few groups."""
    found = []
    for name in ("quality", *plate.metadata, "group"):
        column = plate.table.columns.get(name)
        if column is None or name in found:
            continue
        different = set(texts(column)) - {""}
        if 1 < len(different) <= _MOST_GROUPS or name == "quality":
            found.append(name)
    return found


def _plate_order(plate: Plate, places: Mapping[str, Any]) -> np.ndarray:
    """The wells row by row of their plates, and then those without a place."""
    on = [k for one in places["plates"] for _, _, k in one["wells"]]
    return np.array([*on, *places["loose"]], dtype=int)


def _population(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The table of the population's means and spreads; None where none was fitted."""
    told = facts.get("population") or {}
    rows = []
    for row in told.get("rows") or ():
        log = row.get("scale") == "log"
        drawn = row.get("kind") != "shared"
        rows.append(
            {
                "name": row.get("name", ""),
                "kind": row.get("kind", ""),
                "mean": short(row.get("mean"), 4),
                "interval": _between(row.get("mean_lower"), row.get("mean_upper")),
                "unit": "" if row.get("unit") == "1" else row.get("unit", ""),
                "spread": _spread(row.get("spread"), log) if drawn else "",
                "spread_interval": _spread_interval(row, log) if drawn else "",
            }
        )
    return {"rows": rows, "remarks": told.get("remarks") or ()} if rows else None


def _spread(value: object, log: bool) -> str:
    """A spread; of logarithms, the factor by which wells usually differ from the mean."""
    return f"× or ÷ {short(_factor(value), 3)}" if log else f"± {short(value, 3)}"


def _spread_interval(row: Mapping[str, Any], log: bool) -> str:
    ends = [row.get(f"spread_{end}") for end in ("lower", "upper")]
    return _between(*(_factor(end) if log else end for end in ends))


def _factor(value: object) -> object:
    """The factor that a difference of logarithms is."""
    return math.exp(min(value, 700.0)) if isinstance(value, int | float) else value


def _between(low: object, high: object) -> str:
    """An interval as text, "open" for an end that is not known."""
    ends = [short(end, 3) for end in (low, high)]
    if ends == ["–", "–"]:
        return ""
    return " to ".join("open" if end == "–" else end for end in ends)


def _groups(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The table of groups of wells; None where none were sought."""
    told = facts.get("groups") or {}
    names, units = list(told.get("of") or ()), told.get("units") or {}
    rows = [
        {
            "group": row.get("group", ""),
            "wells": row.get("wells", ""),
            "center": [short((row.get("center") or {}).get(name), 4) for name in names],
        }
        for row in told.get("rows") or ()
    ]
    heads = [(name, "" if units.get(name) == "1" else units.get(name, "")) for name in names]
    return {"rows": rows, "heads": heads, "remarks": told.get("remarks") or ()} if rows else None
