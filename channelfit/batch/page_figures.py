"""The figures of a plate's page at the size of print: its map by quality, a map of each parameter,
and the distributions of the parameters.

They are drawn as those of a fit's report (`results/report/print_figures.py`). Names of users are
drawn as they are: no dollar sign in them begins a formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from channelfit.batch.page_data import (
    PlateGrid,
    PlateTable,
    grids_of,
    is_logarithmic,
    plate_of,
    row_name,
)
from channelfit.batch.table import WellTable
from channelfit.results.report.picture_texts import brief, one_line
from channelfit.results.report.plots import COLORS, INK, MUTED, new_figure
from channelfit.results.report.print_figures import WIDE, print_style, save_named
from channelfit.results.report.trace_view import power_of_ten

#: Colors of the qualities, as on the page.
_OK, _CHECK, _FAILED, _NOTHING = "#9ad0bd", "#f0b53c", "#b3261e", "#eceef0"
#: By quality the mark of a well, its color, and its share of the well's side.
_MARKS = {"failed": ("x", _FAILED, 0.5), "check": ("^", INK, 0.28)}
#: Inches beside a map for the names of its rows, and above it for those of its columns.
_ROOM = 0.35
#: Maps, and distributions, beside each other.
_COLUMNS = 3
#: Share of the values at either end that the colors of a map do not tell apart.
_STEEP = 0.02
#: Parameters of one figure, at most; further ones are in further figures.
_MOST = 12


def plate_figures(table: WellTable, facts: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of a plate for print: maps by quality and by parameter, distributions.

    Arguments:
        facts: as for `page.plate_page`.
    """
    with print_style():
        return [figure for _, figure in _named(table, facts)]


def save_plate_figures(
    table: WellTable, facts: Mapping[str, Any], folder: Path, kinds: Sequence[str]
) -> list[Path]:
    """Write these figures into a folder in every requested kind of file; returns the files.

    Arguments:
        kinds: "pdf", "svg", "png".
    """
    with print_style():
        return save_named(_named(table, facts), folder, kinds)


def _named(table: WellTable, facts: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    plate = plate_of(table, facts)
    if not plate.n_wells:
        return
    grids, _ = grids_of(plate)
    yield "plate", _by_quality(plate, grids)
    drawn = [name for name in plate.parameters if np.isfinite(plate.number(name)).any()]
    pages = [drawn[k : k + _MOST] for k in range(0, len(drawn), _MOST)]
    for k, names in enumerate(pages, 1):
        number = f"_{k}" if len(pages) > 1 else ""
        yield f"plate_parameters{number}", _by_parameter(plate, grids, names)
        yield f"distributions{number}", _distributions(plate, names)


# --- maps ----------------------------------------------------------------------------------------


def _by_quality(plate: PlateTable, grids: Sequence[PlateGrid]) -> Figure:
    width = WIDE - _ROOM
    heights = [_ROOM + grid.rows * width / grid.columns for grid in grids]
    figure = new_figure(WIDE, sum(heights) + _ROOM)
    axes = figure.subplots(len(grids), 1, squeeze=False, height_ratios=heights)[:, 0]
    shown = {"ok": _OK, "check": _CHECK}
    for axis, grid in zip(axes, grids, strict=True):
        colors = to_rgba_array([shown.get(quality, _NOTHING) for quality in plate.quality])
        _draw_map(axis, plate, grid, colors, width / grid.columns)
        if len(grids) > 1:
            axis.set_title(one_line(grid.name), loc="left", parse_math=False)
    _legend(figure, plate)
    return figure


def _legend(figure: Figure, plate: PlateTable) -> None:
    def square(color: str, label: str) -> Line2D:
        edge: Any = {"markeredgecolor": MUTED, "markeredgewidth": 0.4}
        return Line2D(
            [], [], marker="s", color="none", markerfacecolor=color, ms=6, label=label, **edge
        )

    counts = {name: plate.quality.count(name) for name in ("ok", "check", "failed")}
    handles = [square(_OK, f"ok ({counts['ok']:,})")]
    handles.append(square(_CHECK, f"to be checked ({counts['check']:,}), with a triangle"))
    style: Any = {"marker": "x", "color": "none", "markeredgecolor": _FAILED}
    handles.append(Line2D([], [], ms=6, label=f"failed ({counts['failed']:,})", **style))
    figure.legend(handles=handles, loc="outside lower left", ncols=3, handletextpad=0.2)


def _draw_map(
    axis: Axes, plate: PlateTable, grid: PlateGrid, colors: np.ndarray, inches: float
) -> None:
    """Draw the wells as squares, with the names of rows and columns.

    Wells that failed have a cross, and those to be checked a triangle.

    Arguments:
        colors: (n_wells, 4) RGBA. inches: the side of a well.
    """
    row, column, well = np.array(grid.wells).T
    picture = np.zeros((grid.rows, grid.columns, 4))
    picture[row, column] = colors[well]
    edges = [np.arange(n + 1) - 0.5 for n in (grid.columns, grid.rows)]
    width = min(1.0, 5 * inches)
    axis.pcolormesh(*edges, picture, edgecolors="white", linewidth=width, antialiased=True)
    for quality, (marker, color, share) in _MARKS.items():
        own = [plate.quality[k] == quality for k in well]
        size = 72 * share * inches
        style: Any = {"ms": size, "mew": min(1.2, 0.12 * size), "linestyle": "none"}
        axis.plot(column[own], row[own], marker, color=color, zorder=3, **style)
    axis.set_xlim(-0.5, grid.columns - 0.5)
    axis.set_ylim(grid.rows - 0.5, -0.5)
    axis.set_aspect("equal")
    axis.xaxis.tick_top()
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, pad=1)
    every = 1 if inches > 0.16 else 4 if inches > 0.05 else 10
    across, down = range(0, grid.columns, every), range(0, grid.rows, every)
    axis.set_xticks(across, [str(c + 1) for c in across])
    axis.set_yticks(down, [str(r * grid.columns + 1) if grid.loose else row_name(r) for r in down])


def _by_parameter(plate: PlateTable, grids: Sequence[PlateGrid], names: Sequence[str]) -> Figure:
    """Return a map of each parameter, beside it what its colors mean."""
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    width = WIDE / columns - 2 * _ROOM
    heights = [_ROOM + grid.rows * width / grid.columns for grid in grids]
    figure = new_figure(WIDE, rows * (sum(heights) + 0.2))
    shape = (rows * len(grids), columns)
    all_axes = figure.subplots(*shape, squeeze=False, height_ratios=heights * rows)
    cells = [
        all_axes[row : row + len(grids), column]
        for row in range(0, len(all_axes), len(grids))
        for column in range(columns)
    ]
    for axes, name in zip(cells, names, strict=False):
        values = plate.number(name)
        mapped = ScalarMappable(_scale(values), "viridis")
        colors = np.where(np.isfinite(values)[:, None], mapped.to_rgba(values), to_rgba(_NOTHING))
        for axis, grid in zip(axes, grids, strict=True):
            _draw_map(axis, plate, grid, colors, width / grid.columns)
        axes[0].set_title(_title(plate, name), loc="left", parse_math=False)
        bar = figure.colorbar(mapped, ax=list(axes), fraction=0.05, aspect=18, pad=0.02)
        _plain_ticks(bar.ax.yaxis)
        bar.outline.set_visible(False)
    for axes in cells[len(names) :]:
        for axis in axes:
            axis.set_axis_off()
    return figure


def _scale(values: np.ndarray) -> Normalize:
    """Return the scale of the colors of a map; lone values have the color of their end."""
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [_STEEP, 1 - _STEEP])
    if high <= low:
        low, high = low - 0.5 * abs(low) - 1e-12, high + 0.5 * abs(high) + 1e-12
    kind = LogNorm if is_logarithmic(known) and low > 0 else Normalize
    return kind(float(low), float(high), clip=True)


def _title(plate: PlateTable, name: str) -> str:
    unit = plate.unit(name)
    return brief(name, 30) + (f" ({one_line(unit)})" if unit else "")


def _plain_ticks(axis: Axis) -> None:
    """Set a few ticks, with numbers that need no factor at the end of the axis."""
    low, high = sorted(axis.get_view_interval())
    powers = range(math.floor(math.log10(low)), 1 + math.ceil(math.log10(high))) if low > 0 else ()
    ticks = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if axis.get_scale() != "log" or len(ticks) < 3:
        found = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
        ticks = [tick for tick in found if low <= tick <= high]
    ticks = ticks[:: -(-len(ticks) // 6)] if ticks else ticks
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, [_plain_number(tick) for tick in ticks], parse_math=False)


def _plain_number(value: float) -> str:
    """Return a number with three digits, such as 0.05, or 2×10⁻⁵."""
    head, _, power = f"{value:.3g}".partition("e")
    text = f"{head}×{power_of_ten(int(power))}" if power else head
    return text.replace("-", "−")


# --- distributions -------------------------------------------------------------------------------


def _distributions(plate: PlateTable, names: Sequence[str]) -> Figure:
    """Return a histogram of each parameter, and below it all wells in order, with intervals."""
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = new_figure(WIDE, 1.75 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, name in zip(axes, names, strict=False):
        _draw_distribution(axis, plate, name)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    return figure


def _draw_distribution(axis: Axes, plate: PlateTable, name: str) -> None:
    values = plate.number(name)
    log = is_logarithmic(values)
    wells = np.flatnonzero(np.isfinite(values))
    wells = wells[np.argsort(values[wells], kind="stable")]
    ordered = values[wells]
    low, high = _usual(np.log(ordered) if log else ordered)
    edges = np.linspace(low, high, 1 + int(np.clip(2 * len(wells) ** 0.4, 8, 40)))
    if log:
        low, high, edges = math.exp(low), math.exp(high), np.exp(edges)
        axis.set_xscale("log")
    heights, _ = np.histogram(ordered, edges)
    tall = heights / max(1, heights.max())
    axis.bar(edges[:-1], tall, np.diff(edges) * 0.94, align="edge", color=COLORS[0], alpha=0.55)
    place = -0.08 - 1.2 * (np.arange(len(wells)) + 0.5) / len(wells)
    ends = [plate.number(f"{name}_{side}")[wells] for side in ("lower", "upper")]
    known = np.isfinite(ends[0]) & np.isfinite(ends[1])
    lower, upper = (np.clip(end, low, high)[known] for end in ends)
    axis.hlines(place[known], lower, upper, color=COLORS[0], alpha=0.25, linewidth=0.6)
    axis.plot(ordered, place, ".", color=COLORS[0], ms=1.6, rasterized=len(wells) > 2000)
    beyond = int(np.count_nonzero((ordered < low) | (ordered > high)))
    if beyond:
        note = f"{beyond} beyond"
        axis.text(0.99, 0.97, note, ha="right", va="top", color=MUTED, transform=axis.transAxes)
    axis.set_xlim(low, high)
    axis.set_ylim(-1.35, 1.08)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    _plain_ticks(axis.xaxis)
    axis.set_xlabel(_title(plate, name), parse_math=False)


def _usual(ordered: np.ndarray) -> tuple[float, float]:
    """Return the part of an axis that holds nearly all values, as on the page."""
    a, b = np.quantile(ordered, [0.25, 0.75])
    room = 6 * (b - a) or 0.1 * abs(b) or 1.0
    low, high = max(ordered[0], a - room), min(ordered[-1], b + room)
    edge = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    return float(low - edge), float(high + edge)
