"""The figures of a plate's page as documents of Bokeh, empty until the page's script fills them.

No text of a user comes into these documents: Bokeh would read a formula in ``$$``. What an axis
shows stands beside it as text of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import (
    BoxSelectTool,
    ColumnDataSource,
    FixedTicker,
    Line,
    Plot,
    Quad,
    Range1d,
    Scatter,
    Segment,
    TapTool,
)

from channelfit.results.report.page_figures import (
    Figures,
    add_axes,
    add_glyph,
    empty_plot,
    over_time,
    zero_line,
)

#: Pixels of height.
_CURRENT, _RESIDUAL, _SPREAD, _PAIR = 300, 140, 240, 420
#: The scales that the two axes of a figure of pairs may have; whether each is logarithmic.
PAIRS = ((False, False), (True, False), (False, True), (True, True))


def draw_well(figures: Figures, unit: str, time: str) -> None:
    """Draw the current of one well and what its fit leaves, in the elements `well-current` and
    `well-residual`.

    Data lie under the fit where their noise is broader than its line, and else over it.

    Arguments:
        unit: of the current. time: the unit of time.
    """
    across = Range1d(start=0, end=1)
    current, residual = over_time(across, _CURRENT), over_time(across, _RESIDUAL)
    for plot, name, width in (
        (current, "under", 0.9),
        (current, "fit", 2.2),
        (current, "over", 0.9),
        (residual, "left", 0.9),
    ):
        source = ColumnDataSource({"x": [], "y": []}, name=f"well-{name}")
        tag = "data" if name in ("under", "over") else "run0"
        add_glyph(plot, source, Line(x="x", y="y", line_width=width, line_join="round"), [tag])
    residual.add_layout(zero_line())
    add_axes(current, "", f"current ({unit})")
    add_axes(residual, f"time ({time})", f"fit − data ({unit})", ticks=4)
    figures.add("well-current", current)
    figures.add("well-residual", residual)


def draw_spreads(figures: Figures, logarithmic: Sequence[bool]) -> None:
    """Draw a histogram over all wells' values and intervals of each parameter: `spread-0` ..."""
    for k, log in enumerate(logarithmic):
        plot = _plot(_SPREAD, (log, False))
        bars = Quad(
            left="left", right="right", top="top", bottom="bottom", fill_color="color", line_width=0
        )
        bars.fill_alpha = 0.6
        _source(plot, f"spread-{k}-bars", bars, ["left", "right", "top", "bottom", "color"])
        segment = Segment(
            x0="x0", x1="x1", y0="y", y1="y", line_color="color", line_alpha=0.22, line_width=1
        )
        _source(plot, f"spread-{k}-intervals", segment, ["x0", "x1", "y", "color"])
        _points(plot, f"spread-{k}", size=2.5)
        add_axes(plot, " ", None, log=(log, False))
        _own_ticks(plot.below[0])
        plot.min_border_left = 16
        figures.add(f"spread-{k}-plot", plot)


def draw_pairs(figures: Figures) -> None:
    """Draw one figure for each pair of scales, all of the same points, in `pairs-0` ..."""
    shared: dict[str, ColumnDataSource] = {}
    for k, log in enumerate(PAIRS):
        plot = _plot(_PAIR, log)
        for name, ends in (("across", "x"), ("along", "y")):
            other = "y" if ends == "x" else "x"
            places: Any = {f"{ends}0": "a", f"{ends}1": "b", f"{other}0": "c", f"{other}1": "c"}
            segment = Segment(line_color="color", line_width=1, **places)
            _source(plot, f"pairs-{name}", segment, ["a", "b", "c", "color"], shared)
        _points(plot, "pairs", 6.5, shared)
        add_axes(plot, " ", " ", log=log)
        _own_ticks(plot.below[0])
        _own_ticks(plot.left[0])
        plot.min_border_left = 56
        figures.add(f"pairs-{k}-plot", plot)


def _own_ticks(axis: Any) -> None:
    """Leave the ticks of an axis to the page's script, and its name to the text of the page."""
    axis.ticker = FixedTicker(ticks=[])
    axis.axis_label = None


def _plot(height: int, log: tuple[bool, bool]) -> Plot:
    """Return a figure whose points are chosen by a click, or by dragging a box around them."""
    plot = empty_plot(Range1d(start=1, end=2), Range1d(start=1, end=2), height, log)
    box = BoxSelectTool()
    plot.add_tools(TapTool(), box)
    plot.toolbar.active_drag = box
    return plot


def _points(
    plot: Plot, name: str, size: float, shared: dict[str, ColumnDataSource] | None = None
) -> None:
    """Add the points of wells, and rings around those that are chosen."""
    columns = ["x", "y", "color", "marker", "well"]
    dots = Scatter(x="x", y="y", marker="marker", size=size, line_width=1, line_color="color")
    dots.fill_color, dots.fill_alpha = "color", 0.55
    _source(plot, f"{name}-points", dots, columns, shared)
    rings = Scatter(x="x", y="y", marker="circle", size=size + 6, line_width=2, fill_alpha=0.0)
    rings.line_color = "color"
    _source(plot, f"{name}-rings", rings, ["x", "y", "color"], shared)


def _source(
    plot: Plot,
    name: str,
    glyph: Any,
    columns: Sequence[str],
    shared: dict[str, ColumnDataSource] | None = None,
) -> None:
    """Add a glyph whose columns the page's script fills; figures may share their sources."""
    known = {} if shared is None else shared
    if name not in known:
        known[name] = ColumnDataSource({column: [] for column in columns}, name=name)
    renderer = add_glyph(plot, known[name], glyph, [])
    renderer.nonselection_glyph = renderer.selection_glyph = None
