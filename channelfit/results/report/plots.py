"""Figures of traces, a panel for each experiment.

Drawn with Matplotlib's object interface alone, so that nothing depends on a display or on the
state of `pyplot`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine, PlaceHolderLayoutEngine
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from channelfit.problem.ligands import Ligand
from channelfit.reading.files import whole
from channelfit.results.report import sweeps
from channelfit.results.report.page_content import InRange
from channelfit.results.report.picture_texts import (
    brief,
    briefs,
    finish_layout,
    one_line,
    shorten,
    width,
)
from channelfit.results.report.trace_view import (
    TraceView,
    current_unit,
    extreme_samples,
    largest,
    stretches,
)
from channelfit.results.report.traces import Traces

DPI = 120
INK, MUTED, DATA = "#222222", "#666666", "#b4b4b4"
MASKED, MASK = "#d9d9d9", "#f2f2f2"  # data that do not count, and the ground behind them
SINGLE = sweeps.SINGLE
ZOOM = "#e8f1f8"  # the ground of an enlarged part, in both views
#: Units of concentrations, and how many of each are 1 mM.
_CONCENTRATIONS = (("mM", 1.0), ("uM", 1e3), ("nM", 1e6))
#: Residuals of several results are means of so long a part of a sweep, and of five samples or more.
_MEANS = 100
#: Okabe and Ito's palette, which can be distinguished with any color vision.
COLORS = (SINGLE, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}
#: A trace is drawn with at most so many pairs of a least and a largest value.
_BINS = 1500
#: Panels beside each other, at most.
_COLUMNS = 3
#: Widths of lines in points: of the data over a fit, and of the fit beneath them.
_THIN, _BROAD = 0.7, 2.4
#: Inches beside an axis for its labels.
_LABELS = 1.3
#: With more experiments than this a page would be too long for a second look at each.
_MOST_ENLARGED = 12


def traces_figure(
    panels: Sequence[Traces],
    title: str = "",
    subtitle: str = "",
    names: Sequence[str] = ("data", "fit", "fit − data"),
) -> Figure:
    """Draw command voltage, current and (where there are data) residual of every experiment.

    Where nearly all of a sweep happens in a small part of it, that part stands beside it,
    enlarged; a strip says which color belongs to which sweep.

    Arguments:
        panels: one for each experiment.
        title, subtitle: stand above all panels.
        names: of the data, of the result, of each rival in turn, and of the difference.
    """
    with styled():
        residual = any(p.data is not None for p in panels)
        views = [TraceView(p) for p in panels]
        zooms = [v.zooms_ms() if len(panels) <= _MOST_ENLARGED else [] for v in views]
        wide = (8.2 if len(panels) == 1 else 4.6) + 2.7 * max(map(len, zooms), default=0)
        columns = max(1, min(len(panels), _COLUMNS, int(14.0 / wide)))
        rows = math.ceil(len(panels) / columns)
        height = (5.6 if residual else 4.2) * (1 if rows == 1 else 0.9 * rows)
        engine = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.04, hspace=0.0, wspace=0.0)
        figure = new_figure(min(wide * columns, 13.8), height, layout=engine)
        grid = figure.subfigures(rows, columns, squeeze=False)
        for cell, view, enlarged in zip(grid.flat, views, zooms, strict=False):
            _draw_cell(cell, TracePanel(view), enlarged, residual, names[-1])
        legend, labels = _handles(views) if residual else [], [*names[:-1]] * residual
        if any(p.membrane is not None for p in panels):
            legend, labels = [*legend, *_potentials(panels)], [*labels, "command", "membrane"]
        used = _head(figure, title, subtitle, legend, labels)
        engine.set(rect=(0, 0, 1, 1 - used / float(figure.get_figheight())))
        finish_layout(figure)
    return figure


def new_figure(width: float, height: float, title: str = "", layout: Any = "constrained") -> Figure:
    """Return an empty figure that depends on no display.

    Arguments:
        width, height: in inches.
        title: above everything; a text of a user, which is drawn as it is.
        layout: how Matplotlib lays the figure out.
    """
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    if title:
        style: dict[str, Any] = {"ha": "left", "fontsize": 10.5, "fontweight": "bold"}
        figure.suptitle(one_line(title), x=0.012, color=INK, parse_math=False, **style)
    return figure


@contextmanager
def styled(more: dict[Any, Any] | None = None) -> Iterator[None]:
    """Apply the program's style while a figure is made, in place of the user's own settings.

    A letter that the font lacks is drawn as a box, without a warning for each.
    """
    with mpl.rc_context({**STYLE, **(more or {})}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file, which is never seen half written."""
    with whole(path) as file:
        write(figure, file)


def write(figure: Figure, file: Path | IO[bytes]) -> None:
    """Write a figure as PNG to a file or into memory."""
    with styled():
        if isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
            # its layout is finished; `savefig` would draw it once more for that
            figure.set_facecolor("white")
            canvas: Any = FigureCanvasAgg(figure)
            canvas.print_png(file)
        else:
            figure.savefig(file, format="png", dpi=DPI, facecolor="white")


# --- parts of figures -----------------------------------------------------------------------------


def _head(
    figure: Figure, title: str, subtitle: str, handles: Sequence[Any], labels: Sequence[str]
) -> float:
    """Put title, subtitle and legend in a strip above the cells, for which the figure grows.

    Returns: inches that the strip takes.
    """
    line, gap, edge = 0.3, 0.2 * DPI, 0.012
    style: dict[str, Any] = {
        "fontsize": 10.5,
        "ha": "left",
        "va": "top",
        "parse_math": False,
        "color": INK,
    }
    room = (1 - 2 * edge) * figure.bbox.width
    first = figure.text(edge, 1, one_line(title), fontweight="bold", **style)
    second = figure.text(edge, 1, one_line(subtitle), **style)
    texts = width(first) + (gap + width(second) if subtitle else 0)
    lines, legend = int(bool(title or subtitle)), None
    if handles:
        legend = _legend(figure, handles, labels, room)
        beside = legend.get_window_extent().width + gap
        if texts + beside <= room:
            room -= beside
            lines = 1
        else:
            rows = math.ceil(len(handles) / legend._ncols)
            lines += rows
    shorten(second, max(room / 2, room - gap - width(first)))
    shorten(first, room - (width(second) + gap if subtitle else 0))
    used = line * lines + (0.08 if lines else 0.0)
    height = float(figure.get_figheight()) + used
    figure.set_size_inches(figure.get_figwidth(), height)
    for text in (first, second):
        text.set_y(1 - 0.07 / height)
    second.set_x(edge + (width(first) + gap * bool(title)) / figure.bbox.width)
    if legend is not None:
        below = 0.02 if lines == 1 else 0.02 + line
        legend.set_bbox_to_anchor((1 - edge, 1 - below / height))
    return used


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], room: float) -> Any:
    """Place a legend in as few rows as fit a width in pixels."""
    short = [brief(label, 40) for label in labels]
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles,
            short,
            loc="upper right",
            ncols=columns,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.8,
            columnspacing=1.4,
            borderaxespad=0.0,
            handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
        )
        legend.set_in_layout(False)
        for text, label in zip(legend.get_texts(), short, strict=True):
            text.set_parse_math(False)
            text.set_text(label)  # one that begins with "_" as well
        if columns == 1 or legend.get_window_extent().width <= room:
            break
        legend.remove()
    return legend


def _handles(views: Sequence[TraceView]) -> list[Any]:
    """Return lines for a legend, drawn as the data and the results are."""
    panels = [view.traces for view in views]
    beneath = [view.is_noisy for view in views if view.traces.data is not None]
    data = [Line2D([], [], color=INK, linewidth=_THIN)] * (not all(beneath))
    data += [Line2D([], [], color=DATA, linewidth=3.0)] * any(beneath)
    broad = _BROAD if not all(beneath) else 1.4
    if any(p.rivals for p in panels):
        n = max(len(p.results) for p in panels)
        rest: list[Any] = [Line2D([], [], linewidth=broad, **rival_style(k)) for k in range(n)]
    else:
        n = 3 if any(p.protocol.n_sweeps > 1 for p in panels) else 1
        rest = [tuple(Line2D([], [], color=c, linewidth=broad) for c in sweeps.ramp(n))]
    return [tuple(data), *rest]


def _potentials(panels: Sequence[Traces]) -> list[Any]:
    """Return lines for a legend, drawn as commands and membrane potentials are."""
    n = 3 if any(p.protocol.n_sweeps > 1 for p in panels) else 1
    colored = tuple(Line2D([], [], color=c, linewidth=1.0) for c in sweeps.ramp(n))
    return [Line2D([], [], color=MUTED, linewidth=1.0), colored]


def rival_style(k: int) -> dict[str, Any]:
    """Return color and line style of a whole result; lines beneath show through the gaps."""
    style = ("-", "--", "-.", ":")[k % 4]
    return {"color": COLORS[k % len(COLORS)], "linestyle": style}


class TracePanel:
    """The command, currents and residuals of one experiment, below each other, as Matplotlib draws
    them in images and for print.

    Arguments:
        view: the experiment.
        styles: the color and the dashes of each whole result; None where a color stands for a
            sweep, which is so unless there are rivals.
        thickness: factor of the widths of all lines.
    """

    def __init__(
        self,
        view: TraceView,
        styles: Sequence[dict[str, Any]] | None = None,
        thickness: float = 1.0,
    ) -> None:
        traces = view.traces
        self.view, self.traces, self.thickness = view, traces, thickness
        self.t = traces.protocol.times_ms * view.time_factor
        self.key = sweeps.key_of(traces.protocol)
        self.colors = sweeps.colors(self.key)
        if styles is None and traces.rivals:
            styles = [rival_style(k) for k in range(len(traces.results))]
        self.styles = styles
        self.residuals, self.residual_factor = view.residuals, view.residual_factor
        self.residual_unit, self.smoothed = view.residual_unit, False
        if traces.rivals and view.is_noisy:  # the noise of one would hide the misfits of the others
            self.smoothed = True
            self.residuals = _running_mean(self.residuals, max(5, len(self.t) // _MEANS))
            self.residual_factor, self.residual_unit = current_unit(largest(self.residuals))

    def draw(self, axes: Sequence[Axes], part: slice = slice(None)) -> None:
        """Draw into two axes, or three where there are data.

        Arguments:
            part: the samples that are drawn.
        """
        traces, t, view = self.traces, self.t[part], self.view
        self._draw_potentials(axes[0], part)
        # The wider line lies beneath: a broad fit under the data, or a thin one over their noise.
        n, zorder = len(traces.results), 2.5 if view.is_noisy else 2.2
        if traces.band:
            for low, high, color in zip(*traces.band, self.colors, strict=True):
                ends = low[part] * view.current_factor, high[part] * view.current_factor
                axes[1].fill_between(t, *ends, color=color, alpha=0.18, linewidth=0, zorder=1.1)
        thin = view.is_noisy or traces.data is None
        for k, result in enumerate(traces.results):
            broad = (1.1 + 0.5 * (n - 1 - k)) if thin else (_BROAD + 1.1 * (n - 1 - k))
            for row, style in zip(result, self._sweep_styles(k), strict=True):
                y = row[part] * view.current_factor
                draw_trace(axes[1], t, y, linewidth=self.thickness * broad, zorder=zorder, **style)
        if traces.data is not None:
            self._draw_data(axes[1], traces.data, part)
            self._draw_residuals(axes[2], part)
        shade_masked(axes, traces, self.t)

    def fit_axes(self, axes: Sequence[Axes]) -> None:
        """Set the vertical axes to hold the currents and residuals, with a few ticks."""
        fit_axis(axes[1], self.view.in_view * self.view.current_factor)
        if self.traces.data is not None:
            fit_axis(axes[2], self.residuals * self.residual_factor)
        for axis, ticks in zip(axes, (4, 6, 4), strict=False):
            axis.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], min_n_ticks=2))

    def _sweep_styles(self, k: int) -> list[dict[str, Any]]:
        """Return the style of every sweep of the k-th result."""
        if self.styles is not None:
            return [self.styles[k]] * len(self.colors)
        return [{"color": color} for color in self.colors]

    def _draw_potentials(self, axis: Axes, part: slice) -> None:
        """Draw the commands of all sweeps and, where the membrane is elsewhere, its potentials."""
        t, membrane = self.t[part], self.traces.membrane
        grey = self.styles is not None or membrane is not None
        for row, color in zip(self.traces.protocol.command(), self.colors, strict=True):
            draw_trace(axis, t, row[part], MUTED if grey else color, self.thickness)
        if membrane is not None:
            for row, color in zip(membrane, self.colors, strict=True):
                draw_trace(axis, t, row[part], color, self.thickness, zorder=2.1)
        for ligand in self.traces.protocol.ligands:
            self._draw_concentration(axis.twinx(), ligand, part)

    def _draw_concentration(self, axis: Axes, ligand: Ligand, part: slice) -> None:
        """Draw a concentration, dotted, beside the voltage with an axis of its own."""
        unit, per_mM = next(
            (pair for pair in _CONCENTRATIONS if ligand.largest_mM * pair[1] >= 1),
            _CONCENTRATIONS[-1],
        )
        rows = self.traces.protocol.concentration(ligand.name)
        for row, color in zip(rows, self.colors, strict=True):
            draw_trace(axis, self.t[part], row[part] * per_mM, color, self.thickness, linestyle=":")
        axis.set_ylim(bottom=0)
        axis.set_ylabel(f"{ligand.name} ({unit})")
        axis.yaxis.set_major_locator(MaxNLocator(2, min_n_ticks=2))

    def _draw_data(self, axis: Axes, data: np.ndarray, part: slice) -> None:
        view, t = self.view, self.t[part]
        style: dict[str, Any] = {"color": INK, "linewidth": self.thickness * _THIN, "zorder": 3}
        if view.is_noisy:
            style = {"color": DATA, "linewidth": self.thickness * 0.9, "zorder": 1.5}
        for counted, every in zip(view.counted(data), data, strict=True):
            draw_trace(axis, t, counted[part] * view.current_factor, **style)
            if not np.array_equal(counted, every, equal_nan=True):
                hidden = np.where(np.isnan(counted), every, np.nan)[part] * view.current_factor
                draw_trace(axis, t, hidden, MASKED, self.thickness * 0.8, zorder=1.2)

    def _draw_residuals(self, axis: Axes, part: slice) -> None:
        axis.axhline(0, color=MUTED, linewidth=self.thickness * 0.6, zorder=1)
        n = len(self.residuals)
        alpha = 1.0 if n * len(self.colors) == 1 else 0.8
        for k, residual in enumerate(self.residuals):
            fine = self.thickness * (0.7 + 0.6 * (n - 1 - k))
            for row, style in zip(residual, self._sweep_styles(k), strict=True):
                y = row[part] * self.residual_factor
                draw_trace(axis, self.t[part], y, linewidth=fine, alpha=alpha, **style)


def _draw_cell(
    cell: SubFigure,
    panel: TracePanel,
    zooms: Sequence[tuple[float, float]],
    residual: bool,
    difference: str,
) -> None:
    """Draw a panel into a part of a figure, whole and enlarged, with its titles.

    Arguments:
        zooms: the parts of the time that are enlarged, ms.
        residual: whether room is left for residuals, which others may have where this has none.
        difference: the name of the residual.
    """
    traces, view = panel.traces, panel.view
    ratios = [1.0, 2.6, 0.9] if residual else [1.0, 2.6]
    grid = cell.subplots(
        len(ratios),
        1 + len(zooms),
        squeeze=False,
        sharex="col",
        sharey="row",
        height_ratios=ratios,
        width_ratios=[1.7, *([1.0] * len(zooms))],
    )
    panel.draw(list(grid[:, 0]))
    grid[0, 0].set_xlim(*view.span())
    grid[-1, 0].set_xlabel(f"time ({view.time_unit})")
    for axes, zoom in zip(grid.T[1:], zooms, strict=True):
        _enlarge(panel, grid[:, 0], axes, zoom)
    panel.fit_axes(list(grid[:, 0]))
    for axes in grid.T:
        for axis in axes:
            axis.tick_params(axis="x", length=3 if axis is axes[-1] else 0)
            axis.spines["bottom"].set_visible(axis is axes[-1])
    if traces.data is not None:
        mean = ",\nmean" * panel.smoothed
        grid[2, 0].set_ylabel(f"{difference}{mean} ({panel.residual_unit})")
    elif residual:
        for axis in grid[2]:
            axis.set_visible(False)
    plain: dict[str, Any] = {"ha": "left", "parse_math": False}
    if traces.title:
        title = one_line(traces.title)
        cell.suptitle(title, x=0, fontsize=9.5, fontweight="bold", color=INK, **plain)
    below = grid[0, 0].set_title(
        ", ".join(traces.subtitle), loc="left", pad=6, fontsize=8.5, color=MUTED, **plain
    )
    if width(below) > cell.bbox.width - _LABELS * DPI:
        below.set_text(",\n".join(traces.subtitle))
    grid[0, 0].set_ylabel("voltage (mV)")
    grid[1, 0].set_ylabel(f"current ({view.current_unit})")
    if traces.protocol.n_sweeps > 1 and not traces.rivals:
        sweeps.draw_key(grid[1, -1], panel.key)
    cell.align_ylabels(grid[:, 0])


def _enlarge(
    panel: TracePanel, whole: np.ndarray, axes: np.ndarray, zoom: tuple[float, float]
) -> None:
    """Draw a part of the time once more; the ground of both views has one color."""
    first, last = np.searchsorted(panel.traces.protocol.times_ms, zoom)
    panel.draw(list(axes), slice(max(int(first) - 1, 0), int(last) + 2))
    start, end = (panel.view.time_factor * ms for ms in zoom)
    axes[0].set_xlim(start, end)
    axes[-1].set_xlabel(f"time ({panel.view.time_unit}), enlarged")
    for origin, axis in zip(whole, axes, strict=True):
        axis.set_facecolor(ZOOM)
        origin.axvspan(start, end, color=ZOOM, linewidth=0, zorder=0.1)


def _running_mean(values: np.ndarray, n: int) -> np.ndarray:
    """Return the mean of n neighboring samples of (n_results, n_sweeps, n_times), NaN left out."""
    known = np.isfinite(values)
    sums = np.cumsum(np.pad(np.where(known, values, 0.0), ((0, 0), (0, 0), (1, 0))), axis=-1)
    counts = np.cumsum(np.pad(known, ((0, 0), (0, 0), (1, 0))), axis=-1)
    place = np.arange(values.shape[-1])
    first, last = np.maximum(place - n // 2, 0), np.minimum(place + (n + 1) // 2, values.shape[-1])
    size = counts[..., last] - counts[..., first]
    mean = (sums[..., last] - sums[..., first]) / np.maximum(size, 1)
    return np.where(known, mean, np.nan)


def draw_trace(
    axis: Axes,
    t: np.ndarray,
    y: np.ndarray,
    color: Any = None,
    linewidth: float = 1.0,
    **style: Any,
) -> None:
    """Draw a trace; a sample with gaps on both sides is a dot, since no line leads to it."""
    known = np.isfinite(y)
    beside = np.zeros_like(known)
    beside[1:] |= known[:-1]
    beside[:-1] |= known[1:]
    alone = known & ~beside
    if alone.any():
        axis.plot(
            t[alone],
            y[alone],
            ".",
            markersize=2 + linewidth,
            color=color,
            zorder=style.get("zorder", 2),
        )
    x, y = decimated(t, y)
    axis.plot(x, y, color=color, linewidth=linewidth, **{"zorder": 2, **style})


def decimated(t: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a long trace to the least and the largest value of each stretch, in their order.

    Arguments:
        t, y: (n_times,). Traces of up to four samples a stretch stay as they are; NaN is a gap.
    """
    size = len(y) // _BINS
    if size <= 4:
        return t, y
    # A stretch with a gap in it shows one, so that no line crosses masked samples.
    missing = np.flatnonzero(~np.isfinite(y))
    _, first = np.unique(missing // size, return_index=True)
    picks = np.unique(np.concatenate([extreme_samples([y], size), missing[first]]))
    return t[picks], y[picks]


def draw_ranges(axis: Axes, rows: Sequence[InRange], thickness: float = 1.0) -> None:
    """Draw each parameter as a row: its range, the interval in it, and a mark at its value.

    Arguments:
        thickness: factor of the widths of all lines.
    """
    for k, row in enumerate(rows):
        axis.plot([0, 1], [k, k], color=DATA, linewidth=0.8 * thickness, zorder=1)
        if row.ends is not None:
            style: dict[str, Any] = {"linewidth": 4 * thickness, "solid_capstyle": "butt"}
            axis.plot(row.ends, [k, k], color=SINGLE, zorder=2, **style)
        axis.plot([row.at], [k], "|", color=INK, markersize=9 * thickness, zorder=3)
    axis.set_yticks(range(len(rows)), briefs([row.name for row in rows]), parse_math=False)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlim(-0.02, 1.02)
    axis.set_xticks([0, 1], ["lower bound", "upper bound"])
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)


def fit_axis(axis: Axes, values: np.ndarray) -> None:
    """Let a vertical axis hold these values, with a little room."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    low, high = float(finite.min()), float(finite.max())
    margin = 0.06 * (high - low) or max(abs(high) * 0.1, 1e-3)
    axis.set_ylim(low - margin, high + margin)


def shade_masked(axes: Sequence[Axes], traces: Traces, t: np.ndarray) -> None:
    """Shade the ground light grey where no sweep counts."""
    if traces.weight is None or traces.data is None:
        return
    lasting = np.isfinite(traces.protocol.command())
    masked = ~((traces.weight > 0) & lasting).any(axis=0)
    step = t[1] - t[0] if len(t) > 1 else 1.0
    for begin, end in stretches(np.flatnonzero(masked)):
        for axis in axes:
            stop = t[begin] + (end - begin) * step
            axis.axvspan(t[begin], stop, color=MASK, linewidth=0, zorder=0)
