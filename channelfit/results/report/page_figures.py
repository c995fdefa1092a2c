"""The figures of a report as documents of Bokeh, and the samples that its page draws in them.

The samples of traces are not in Bokeh's documents: they stand in the page once, as base64 of
float32, and the page's own script hands Bokeh what the part of the time that is shown needs. So a
recording of a hundred thousand samples is quick to load and to zoom, and nothing is there twice.

No text of a user comes into these documents: Bokeh would read a formula in ``$$``.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
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
    Plot,
    Range1d,
    Scatter,
)
from bokeh.models.annotations import Span
from bokeh.models.axes import Axis
from bokeh.models.grids import Grid
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.tickers import BasicTicker

from channelfit.results.report.events import eventful
from channelfit.results.report.page_content import Shown
from channelfit.results.report.plots import current_unit, is_noisy
from channelfit.results.report.step_families import Curve
from channelfit.results.report.traces import Traces

#: Samples of all sweeps of a page that are kept one by one; of more, the extremes of short
#: stretches are kept.
MOST_SAMPLES = 250_000
#: A command with so many corners or fewer is kept as a line, and drawn with all of them.
MOST_CORNERS = 2000
#: Residuals below this share of the largest current are kept beside data and fit.
_SMALL = 1e-3
#: Time from which on an axis is in seconds, ms.
_LONG_MS = 2000.0
#: Pixels.
_COMMAND, _CURRENT, _RESIDUAL, _CURVE = 110, 320, 150, 260


@dataclass
class Figures:
    """The figures of one page.

    Attributes:
        plots: of Bokeh.
        places: the id of the element that holds each of them.
        samples: of each experiment, what the page's script draws; plain data.
    """

    plots: list[Plot] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, place: str, plot: Plot) -> str:
        """Puts a figure into the page; returns the id of its element."""
        self.plots.append(plot)
        self.places.append(place)
        return place

    def as_plain(self) -> dict[str, Any]:
        """What the page's script embeds: Bokeh's documents and where each figure goes."""
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


# --- traces --------------------------------------------------------------------------------------


def draw_traces(figures: Figures, number: int, shown: Shown, budget: int) -> dict[str, str]:
    """Draw command, current and residual of an experiment, empty until the script fills them.

    Arguments:
        number: of the experiment, from 0.
        budget: samples of all sweeps that are kept one by one.

    Returns: the ids of the elements, by what they show.
    """
    traces = shown.traces
    samples = packed_samples(traces, budget) | {"runs": list(shown.runs)}
    figures.samples.append(samples)
    across = Range1d(start=samples["span"][0], end=samples["span"][1])
    name = f"e{number}"
    has_data, noisy = traces.data is not None, is_noisy(traces)
    command = _over_time(across, _COMMAND)
    _lines(command, f"{name}-command", 1.2)
    if traces.membrane is not None:
        _lines(command, f"{name}-membrane", 1.2)
    current = _over_time(across, _CURRENT)
    fits = [(f"{name}-fit{k}", 1.4 if noisy or not has_data else 3.2) for k in _places(traces)]
    data = [(f"{name}-hidden", 0.8), (f"{name}-data", 0.9)] if has_data else []
    # what is wider lies beneath: a broad line under the data, or a thin one over their noise
    for line in (*data, *fits) if noisy else (*fits, *data):
        _lines(current, *line)
    add_axes(command, "", "voltage (mV)", ticks=3)
    add_axes(current, "" if has_data else _time_label(samples), f"current ({samples['unit']})")
    roots = {"command": command, "current": current}
    if has_data:
        residual = _over_time(across, _RESIDUAL)
        residual.add_layout(Span(location=0, dimension="width", line_width=0.7, tags=["zero"]))
        for k in _places(traces):
            _lines(residual, f"{name}-apart{k}", 0.9)
        label = f"fit − data ({samples['apart_unit']})"
        add_axes(residual, _time_label(samples), label, ticks=3)
        roots["residual"] = residual
    return {what: figures.add(f"{name}-{what}-plot", plot) for what, plot in roots.items()}


def _places(traces: Traces) -> range:
    return range(len(traces.results))


def packed_samples(traces: Traces, budget: int) -> dict[str, Any]:
    """The samples of an experiment as plain data for the page's script.

    Arguments:
        budget: samples of all sweeps that are kept one by one; of more, the extremes.

    Returns: time scale and units, and for each sweep its command (as the corners of a line),
        recording and fits, and which stretches count. Arrays are base64 of float32 or uint32.
    """
    protocol = traces.protocol
    counts = _within(traces)
    seen = [np.where(counts, c, np.nan) for c in (*traces.results, *_maybe(traces.data))]
    largest = _largest(seen)
    factor, unit = current_unit(largest)
    apart = [] if traces.data is None else [result - traces.data for result in traces.results]
    left = _largest([np.where(counts, c, np.nan) for c in apart])
    apart_factor, apart_unit = current_unit(left)
    seconds = float(protocol.times_ms[-1]) >= _LONG_MS
    scale = 1e-3 if seconds else 1.0
    total = sum(protocol.n_times(k) for k in range(protocol.n_sweeps))
    size = 2 * math.ceil(total / max(budget, 1)) if total > budget else 1
    # the difference of two rounded numbers would be rounding, where it is small
    differences = [c * apart_factor for c in apart] if left < _SMALL * largest else None
    h = protocol.sampling_ms * scale
    zooms = _zooms(traces, seen)
    return {
        "step": h,
        "span": _span(traces, counts, h),
        "time": "s" if seconds else "ms",
        "unit": unit,
        "apart_unit": apart_unit,
        "apart_scale": apart_factor / factor,
        "thinned": size > 1,
        "total": total,
        "zooms": [[round(a * scale, 9), round(b * scale, 9)] for a, b in zooms],
        "sweeps": _packed_sweeps(traces, counts, size, factor, differences),
    }


def _packed_sweeps(
    traces: Traces,
    counts: np.ndarray,
    size: int,
    factor: float,
    differences: Sequence[np.ndarray] | None,
) -> list[dict[str, Any]]:
    """The sweeps of an experiment for the page's script.

    Arguments:
        counts: (n_sweeps, n_times), whether a sample counts.
        size: of how many samples only the extremes are kept; 1 for all samples.
        factor: by which currents are multiplied.
        differences: of fits and recording, (n_sweeps, n_times) each; None for those that the script
            computes itself.
    """
    found = []
    for k, command in enumerate(traces.protocol.command()):
        n = traces.protocol.n_times(k)
        shown = (*_maybe(traces.data), *traces.results, *_maybe(traces.membrane))
        rows = [c[k, :n] for c in shown]
        picks = np.arange(n) if size == 1 else _extremes(rows, size)
        corners = _corners(command[:n])
        if len(corners) > MOST_CORNERS:  # it is no line with corners: sample by sample
            corners = np.arange(n) if size == 1 else _extremes([command[:n]], size)
        kept = {
            "at": "" if size == 1 else packed(picks, "<u4"),
            "corners": "" if len(corners) == n else packed(corners, "<u4"),
            "command": packed(command[corners], "<f4"),
            "data": "" if traces.data is None else packed(rows[0][picks] * factor, "<f4"),
            "fits": [packed(c[k, picks] * factor, "<f4") for c in traces.results],
            "within": _stretches(counts[k, picks]),
        }
        if traces.membrane is not None:
            kept["membrane"] = packed(rows[-1][picks], "<f4")
        if differences is not None:
            kept["apart"] = [packed(c[k, picks], "<f4") for c in differences]
        found.append(kept)
    return found


def _largest(currents: Sequence[np.ndarray]) -> float:
    """The largest current in size; NaN does not count."""
    return max((float(np.nanmax(np.abs(c), initial=0.0)) for c in currents), default=0.0)


def _maybe(data: np.ndarray | None) -> list[np.ndarray]:
    return [] if data is None else [data]


def _within(traces: Traces) -> np.ndarray:
    """Where a recording counts, and between samples of which every second or so counts.

    Returns: (n_sweeps, n_times) bool; all of it without weights.
    """
    if traces.weight is None or traces.data is None:
        return np.asarray(np.isfinite(traces.result))
    counted = (traces.weight > 0) & np.isfinite(traces.data)
    out = np.zeros_like(counted)
    for row, use in zip(out, counted, strict=True):
        at = np.flatnonzero(use)
        if not at.size:
            continue
        gaps = np.diff(at)
        usual = int(np.median(gaps)) if gaps.size else 1
        cuts = np.flatnonzero(gaps > usual)
        starts = at[np.concatenate([[0], cuts + 1])]
        stops = at[np.concatenate([cuts, [len(at) - 1]])] + 1
        for a, b in zip(starts, stops, strict=True):
            row[a:b] = True
    return np.asarray(out & np.isfinite(traces.data))


def _stretches(within: np.ndarray) -> list[list[int]]:
    """The half-open stretches of samples that count."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], within, [False]]).astype(np.int8)))
    return [[int(a), int(b)] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _corners(command: np.ndarray) -> np.ndarray:
    """The samples between which the command is a straight line; its first and last are among
    them.
    """
    if command.size < 3:
        return np.arange(command.size)
    bends = np.abs(np.diff(command, 2)) > 1e-6
    return np.concatenate([[0], np.flatnonzero(bends) + 1, [command.size - 1]])


def _extremes(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The samples at which one of several rows is least or largest in a stretch of `size`."""
    picks = [np.array([0, len(rows[0]) - 1])]
    whole = len(rows[0]) // size * size
    for row in rows:
        block = row[:whole].reshape(-1, size)
        start = np.arange(len(block)) * size
        finite = np.isfinite(block)
        picks.append(start + np.where(finite, block, np.inf).argmin(axis=1))
        picks.append(start + np.where(finite, block, -np.inf).argmax(axis=1))
    return np.unique(np.concatenate(picks))


def _span(traces: Traces, counts: np.ndarray, h: float) -> list[float]:
    """The part of the time that is shown first: all, less long ends that no sweep counts."""
    at = np.flatnonzero(counts.any(axis=0))
    end = h * traces.protocol.n_times_max
    if not at.size:
        return [0.0, end]
    first, last = float(at[0]) * h, float(at[-1]) * h
    room = 0.08 * (last - first) or end
    return [max(0.0, first - room), min(end, last + room)]


def _zooms(traces: Traces, seen: Sequence[np.ndarray]) -> list[tuple[float, float]]:
    """The parts of a sweep that are worth a closer look, ms."""
    protocol = traces.protocol
    jumps = [protocol.step_times_ms(k) for k in range(protocol.n_sweeps)]
    return eventful(protocol.times_ms, seen, jumps)


def packed(values: np.ndarray, kind: str) -> str:
    """Numbers of a NumPy kind such as "<f4" as base64, which `page_common.js` unpacks."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def _time_label(samples: Mapping[str, Any]) -> str:
    return f"time ({samples['time']})"


# --- curves --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Series:
    """One line or row of points of a figure of curves.

    Attributes:
        x, y: (n,)
        tag: "data", "run0", "run1", .. or "muted": what its color stands for.
        points: the marker of Bokeh of its points; empty for none.
        line: the dashes of its line; empty for none.
    """

    x: np.ndarray
    y: np.ndarray
    tag: str
    points: str = ""
    line: str = "solid"


def draw_curves(
    figures: Figures,
    place: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    log: tuple[bool, bool] = (False, False),
    zero: bool = False,
    height: int = _CURVE,
) -> str:
    """Draw a few lines and rows of points; returns the id of the figure's element.

    Arguments:
        log: whether the axes of x and of y are logarithmic.
        zero: whether a line marks zero.
    """
    plot = empty_plot(DataRange1d(range_padding=0.05), DataRange1d(range_padding=0.08), height, log)
    for one in series:
        known = np.isfinite(one.x) & np.isfinite(one.y)
        for is_log, values in zip(log, (one.x, one.y), strict=True):
            known &= (values > 0) | (not is_log)
        source = ColumnDataSource({"x": one.x[known].astype("f4"), "y": one.y[known].astype("f4")})
        if one.line and known.any():
            width = 2.0 if one.line == "solid" else 1.2
            glyph = Line(x="x", y="y", line_width=width, line_dash=one.line, line_join="round")
            add_glyph(plot, source, glyph, [one.tag])
        if one.points and known.any():
            marker = Scatter(x="x", y="y", marker=one.points, size=6, line_width=1.3)
            add_glyph(plot, source, marker, [one.tag])
    if zero:
        plot.add_layout(Span(location=0, dimension="width", line_width=0.7, tags=["zero"]))
    add_axes(plot, x_label, y_label, ticks=5, log=log)
    return figures.add(place, plot)


def curve_series(curve: Curve, runs: Sequence[int], second: bool) -> Iterator[Series]:
    """The fits of a curve as lines and its data as points.

    Arguments:
        second: whether another curve stands in the same figure, from which this is to be told.
    """
    for run, result in zip(runs, curve.results, strict=True):
        yield Series(curve.x, result, f"run{run}", line="dashed" if second else "solid")
    if curve.data is not None:
        yield Series(curve.x, curve.data, "data", "square" if second else "circle", "")


# --- pieces --------------------------------------------------------------------------------------


def empty_plot(
    x_range: Any, y_range: Any, height: int, log: tuple[bool, bool] = (False, False)
) -> Plot:
    """An empty figure as wide as its element, without tools and without Bokeh's sign."""
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


def _over_time(across: Range1d, height: int) -> Plot:
    """A figure in which a stretch of time is enlarged by dragging over it.

    What its vertical axis holds is up to the script.
    """
    plot = empty_plot(across, Range1d(start=-1, end=1), height)
    zoom = BoxZoomTool(dimensions="width")
    plot.add_tools(zoom)
    plot.toolbar.active_drag = zoom
    return plot


def _lines(plot: Plot, name: str, width: float) -> GlyphRenderer[Any]:
    """The lines of all sweeps, which the page's script fills: `xs`, `ys` and `color`."""
    source = ColumnDataSource({"xs": [], "ys": [], "color": []}, name=name)
    glyph = MultiLine(
        xs="xs", ys="ys", line_color="color", line_width=width, line_join="round", line_cap="butt"
    )
    return add_glyph(plot, source, glyph, [])


def add_glyph(
    plot: Plot, source: ColumnDataSource, glyph: Any, tags: list[str]
) -> GlyphRenderer[Any]:
    """Puts glyphs into a figure; the first tag says what their color stands for."""
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
    """Axes below and to the left, with small plain labels; without a label only ticks below.

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
    below = kinds[0](axis_label=x_label or None, **style)
    if not x_label:
        below.major_label_text_font_size = "0px"
    plot.add_layout(below, "below")
    if y_label is None:
        return
    beside = kinds[1](axis_label=y_label, **style)
    if not log[1]:
        beside.ticker = BasicTicker(desired_num_ticks=ticks)
    plot.add_layout(beside, "left")
    plot.add_layout(Grid(axis=beside, dimension=1))
