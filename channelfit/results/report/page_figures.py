"""The figures of a report as documents of Bokeh, and the samples that its page draws in them.

The samples of traces are not in Bokeh's documents: they stand in the page once, as base64 of
float32, and the page's own script hands Bokeh those of the part of the time that is visible. So a
recording of a hundred thousand samples is quick to load and to zoom, and no sample is there twice.

No text of a user comes into these documents: Bokeh would read a formula in ``$$``.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.embed.util import standalone_docs_json_and_render_items
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    DataRange1d,
    Line,
    LinearAxis,
    LogAxis,
    LogScale,
    MultiLine,
    PlainText,
    Plot,
    Range1d,
    Scatter,
    Segment,
)
from bokeh.models.annotations import Span
from bokeh.models.axes import Axis
from bokeh.models.grids import Grid
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.tickers import BasicTicker

from channelfit.results.report.curve_figures import CurveFigure
from channelfit.results.report.page_content import SharedRecording
from channelfit.results.report.trace_view import TraceView, extreme_samples, largest, stretches
from channelfit.results.report.traces import Traces

#: Samples of all sweeps of a page that are kept one by one; of more, the extremes of short
#: stretches are kept.
MOST_SAMPLES = 250_000
#: A command with so many corners or fewer is kept as a line, and drawn with all of them.
MOST_CORNERS = 2000
#: Residuals below this share of the largest current are kept beside data and fit.
_SMALL = 1e-3
#: Pixels.
_COMMAND, _CURRENT, _RESIDUAL, _CURVE = 110, 320, 150, 260


@dataclass
class Figures:
    """The figures of one page.

    Attributes:
        plots: of Bokeh.
        places: the id of the element that holds each of them.
        samples: of each experiment, as plain data that the page's script draws.
    """

    plots: list[Plot] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, place: str, plot: Plot) -> str:
        """Put a figure into the page; returns the id of its element."""
        self.plots.append(plot)
        self.places.append(place)
        return place

    def as_plain(self) -> dict[str, Any]:
        """Return Bokeh's documents and where each figure goes, as the page's script embeds them."""
        if not self.places:
            return {"docs": {}, "items": [], "experiments": []}
        document = Document()
        with document.models.freeze():  # else all models are collected again with each figure
            for plot in self.plots:
                document.add_root(plot)
        docs, (item,) = standalone_docs_json_and_render_items(list(self.plots))
        row = item.to_json()
        row["roots"] = dict(zip([plot.id for plot in self.plots], self.places, strict=True))
        return {
            "docs": docs,
            "items": [row],
            "experiments": self.samples,
            "most_corners": MOST_CORNERS,
        }


# --- traces ---------------------------------------------------------------------------------------


def draw_traces(
    figures: Figures, number: int, shared: SharedRecording, budget: int
) -> dict[str, str]:
    """Add command, current and residual of an experiment, empty until the script fills them.

    Arguments:
        number: of the experiment, from 0.
        budget: samples of all sweeps that are kept one by one.

    Returns: the ids of the elements, by the quantity in them.
    """
    view = TraceView(shared.traces)
    samples = packed_samples(view, budget) | {"runs": list(shared.runs)}
    figures.samples.append(samples)
    across = Range1d(start=samples["span"][0], end=samples["span"][1])
    name, runs = f"e{number}", range(len(shared.runs))
    has_data = shared.traces.data is not None
    command = over_time(across, _COMMAND)
    _lines(command, f"{name}-command", 1.2)
    if shared.traces.membrane is not None:
        _lines(command, f"{name}-membrane", 1.2)
    current = over_time(across, _CURRENT)
    fits = [(f"{name}-fit{k}", 1.4 if view.is_noisy or not has_data else 3.2) for k in runs]
    fits += [(f"{name}-edge{k}", 0.7) for k in range(len(shared.traces.band))]
    data = [(f"{name}-hidden", 0.8), (f"{name}-data", 0.9)] if has_data else []
    # the wider line lies beneath: a broad fit under the data, or a thin one over their noise
    for line in (*data, *fits) if view.is_noisy else (*fits, *data):
        _lines(current, *line)
    time = f"time ({view.time_unit})"
    add_axes(command, "", "voltage (mV)", ticks=3)
    add_axes(current, "" if has_data else time, f"current ({view.current_unit})")
    roots = {"command": command, "current": current}
    if has_data:
        residual = over_time(across, _RESIDUAL)
        residual.add_layout(zero_line())
        for k in runs:
            _lines(residual, f"{name}-residual{k}", 0.9)
        add_axes(residual, time, f"fit − data ({view.residual_unit})", ticks=3)
        roots["residual"] = residual
    return {key: figures.add(f"{name}-{key}-plot", plot) for key, plot in roots.items()}


def packed_samples(view: TraceView, budget: int) -> dict[str, Any]:
    """Return the samples of an experiment as plain data for the page's script.

    Arguments:
        budget: samples of all sweeps that are kept one by one; of more, the extremes.

    Returns: time scale and units, and for each sweep its command (as the corners of a line),
        recording and fits, and which stretches count. Arrays are base64 of float32 or uint32.
    """
    traces, protocol = view.traces, view.traces.protocol
    total = sum(protocol.n_times(k) for k in range(protocol.n_sweeps))
    size = 2 * math.ceil(total / max(budget, 1)) if total > budget else 1
    # the difference of two rounded numbers would be rounding, where it is small
    small = largest(view.residuals) < _SMALL * largest(view.in_view)
    return {
        "step": protocol.sampling_ms * view.time_factor,
        "span": [round(end, 9) for end in view.span()],
        "time": view.time_unit,
        "residual_scale": view.residual_factor / view.current_factor,
        "thinned": size > 1,
        "total": total,
        "zooms": [[round(ms * view.time_factor, 9) for ms in ends] for ends in view.zooms_ms()],
        "sweeps": _packed_sweeps(view, _within(traces), size, small),
    }


def _packed_sweeps(
    view: TraceView, counts: np.ndarray, size: int, with_residuals: bool
) -> list[dict[str, Any]]:
    """Return the sweeps of an experiment for the page's script.

    Arguments:
        counts: (n_sweeps, n_times), whether a sample counts.
        size: of how many samples only the extremes are kept; 1 for all samples.
        with_residuals: whether these are kept, too; else the script computes them itself.
    """
    found, traces, factor = [], view.traces, view.current_factor
    for k, command in enumerate(traces.protocol.command()):
        n = traces.protocol.n_times(k)
        currents = (*_maybe(traces.data), *traces.results, *_maybe(traces.membrane))
        rows = [c[k, :n] for c in currents]
        picks = np.arange(n) if size == 1 else extreme_samples(rows, size)
        corners = _corners(command[:n])
        if len(corners) > MOST_CORNERS:  # it is no line with corners: sample by sample
            corners = np.arange(n) if size == 1 else extreme_samples([command[:n]], size)
        kept = {
            "at": "" if size == 1 else packed(picks, "<u4"),
            "corners": "" if len(corners) == n else packed(corners, "<u4"),
            "command": packed(command[corners], "<f4"),
            "data": "" if traces.data is None else packed(rows[0][picks] * factor, "<f4"),
            "fits": [packed(c[k, picks] * factor, "<f4") for c in traces.results],
            "edges": [packed(c[k, picks] * factor, "<f4") for c in traces.band],
            "within": stretches(np.flatnonzero(counts[k, picks])),
        }
        if traces.membrane is not None:
            kept["membrane"] = packed(rows[-1][picks], "<f4")
        if traces.data is not None and with_residuals:
            residuals = [
                (c[k, picks] - rows[0][picks]) * view.residual_factor for c in traces.results
            ]
            kept["residuals"] = [packed(row, "<f4") for row in residuals]
        found.append(kept)
    return found


def _maybe(data: np.ndarray | None) -> list[np.ndarray]:
    return [] if data is None else [data]


def _within(traces: Traces) -> np.ndarray:
    """Find where a recording counts, and between samples of which every second or so counts.

    Returns: (n_sweeps, n_times) bool; all of it without weights.
    """
    if traces.weight is None or traces.data is None:
        return np.asarray(np.isfinite(traces.result))
    out = np.zeros_like(traces.counts)
    for row, counts in zip(out, traces.counts, strict=True):
        at = np.flatnonzero(counts)
        usual = int(np.median(np.diff(at))) if at.size > 1 else 1
        for a, b in stretches(at, usual):
            row[a:b] = True
    return np.asarray(out & np.isfinite(traces.data))


def _corners(command: np.ndarray) -> np.ndarray:
    """Return the samples between which the command is a straight line; its first and last are among
    them.
    """
    if command.size < 3:
        return np.arange(command.size)
    bends = np.abs(np.diff(command, 2)) > 1e-6
    return np.concatenate([[0], np.flatnonzero(bends) + 1, [command.size - 1]])


def packed(values: np.ndarray, kind: str) -> str:
    """Return numbers of a NumPy kind such as "<f4" as base64, which `page_common.js` unpacks."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


# --- curves ---------------------------------------------------------------------------------------


def draw_curves(figures: Figures, place: str, figure: CurveFigure, height: int = _CURVE) -> str:
    """Draw a few lines and rows of points; returns the id of the figure's element.

    Arguments:
        height: in pixels.
    """
    return figures.add(place, curve_plot(figure, height))


def curve_plot(figure: CurveFigure, height: int = _CURVE) -> Plot:
    """Return a figure of a few lines and rows of points, with bars for their errors.

    Arguments:
        height: in pixels.
    """
    across, up = DataRange1d(range_padding=0.05), DataRange1d(range_padding=0.08)
    plot = empty_plot(across, up, height, figure.log)
    for one in figure.series:
        known = np.isfinite(one.x) & np.isfinite(one.y)
        for is_log, values in zip(figure.log, (one.x, one.y), strict=True):
            known &= (values > 0) | (not is_log)
        source = ColumnDataSource({"x": one.x[known].astype("f4"), "y": one.y[known].astype("f4")})
        if one.line and known.any():
            width = 2.0 if one.line == "solid" else 1.2
            glyph = Line(x="x", y="y", line_width=width, line_dash=one.line, line_join="round")
            add_glyph(plot, source, glyph, [one.role])
        if one.error is not None and known.any():
            ends = [one.y[known] + sign * np.nan_to_num(one.error[known]) for sign in (-1, 1)]
            rows = {"x": one.x[known], "low": ends[0], "high": ends[1]}
            bars = ColumnDataSource({name: row.astype("f4") for name, row in rows.items()})
            add_glyph(plot, bars, Segment(x0="x", x1="x", y0="low", y1="high"), [one.role])
        if one.points and known.any():
            marker = Scatter(x="x", y="y", marker=one.points, size=6, line_width=1.3)
            add_glyph(plot, source, marker, [one.role])
    if figure.zero:
        plot.add_layout(zero_line())
    add_axes(plot, figure.x_label, figure.y_label, ticks=5, log=figure.log)
    return plot


# --- parts of figures -----------------------------------------------------------------------------


def empty_plot(
    x_range: Any, y_range: Any, height: int, log: tuple[bool, bool] = (False, False)
) -> Plot:
    """Return an empty figure as wide as its element, without tools and without Bokeh's sign."""
    scales: dict[str, Any] = {}
    if log[0]:
        scales["x_scale"] = LogScale()
    if log[1]:
        scales["y_scale"] = LogScale()
    return Plot(
        x_range=x_range,
        y_range=y_range,
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=74,
        min_border_right=12,
        min_border_top=4,
        min_border_bottom=4,
        lod_threshold=None,
        **scales,
    )


def zero_line() -> Span:
    """Return a line across a figure at zero."""
    return Span(location=0, dimension="width", line_width=0.7, tags=["zero"])


def zoomed_plot(
    x_range: Any, y_range: Any, height: int, log: tuple[bool, bool] = (False, False)
) -> Plot:
    """Return an empty figure in which a stretch of x is enlarged by dragging over it."""
    plot = empty_plot(x_range, y_range, height, log)
    zoom = BoxZoomTool(dimensions="width")
    plot.add_tools(zoom)
    plot.toolbar.active_drag = zoom
    return plot


def over_time(across: Range1d, height: int) -> Plot:
    """Return an empty figure over a stretch of time; the page's script sets the vertical axis."""
    return zoomed_plot(across, Range1d(start=-1, end=1), height)


def _lines(plot: Plot, name: str, width: float) -> GlyphRenderer[Any]:
    """Return the lines of all sweeps, which the page's script fills: `xs`, `ys` and `color`."""
    source = ColumnDataSource({"xs": [], "ys": [], "color": []}, name=name)
    glyph = MultiLine(
        xs="xs", ys="ys", line_color="color", line_width=width, line_join="round", line_cap="butt"
    )
    return add_glyph(plot, source, glyph, [])


def add_glyph(
    plot: Plot, source: ColumnDataSource, glyph: Any, tags: list[str]
) -> GlyphRenderer[Any]:
    """Put glyphs into a figure; the first tag is the role from which their color follows."""
    renderer = plot.add_glyph(source, glyph)
    renderer.tags = tags
    return renderer


def add_axes(
    plot: Plot,
    x_label: str,
    y_label: str | None,
    ticks: int = 5,
    log: tuple[bool, bool] = (False, False),
) -> None:
    """Add axes below and to the left, with small plain labels; without a label only ticks below.

    Labels are never read as formulas, as Bokeh does with a text between two $$: names of columns
    are those of a user.

    Arguments:
        y_label: None where there is no axis to the left.
    """
    style: dict[str, Any] = {
        "axis_label_text_font_size": "13px",
        "axis_label_text_font_style": "normal",
        "axis_label_standoff": 6,
        "major_label_text_font_size": "12px",
        "minor_tick_line_color": None,
        "major_tick_in": 0,
        "major_tick_out": 4,
    }
    kinds: list[type[Axis]] = [LogAxis if one else LinearAxis for one in log]
    below = kinds[0](axis_label=PlainText(text=x_label) if x_label else None, **style)
    if not x_label:
        below.major_label_text_font_size = "0px"
    plot.add_layout(below, "below")
    if y_label is None:
        return
    beside = kinds[1](axis_label=PlainText(text=y_label), **style)
    if not log[1]:
        beside.ticker = BasicTicker(desired_num_ticks=ticks)
    plot.add_layout(beside, "left")
    plot.add_layout(Grid(axis=beside, dimension=1))
