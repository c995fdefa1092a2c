"""Figures of traces, a panel for each experiment, and of measured launches of GPU kernels.

Drawn with Matplotlib's object interface alone, so that nothing depends on a display or on the
state of `pyplot`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, MultipleLocator

from channelfit.problem.measures import noise_pA
from channelfit.problem.protocol import Protocol
from channelfit.reading.files import whole
from channelfit.results.report import sweeps
from channelfit.results.report.events import eventful
from channelfit.results.report.texts import brief, one_line, settle, shorten, width
from channelfit.results.report.traces import Traces as Traces
from channelfit.results.report.traces import fitted as fitted

if TYPE_CHECKING:
    from channelfit.scoring.machine.launch_tuning import Measured

DPI = 120
INK, MUTED, DATA = "#222222", "#666666", "#b4b4b4"
MASKED, MASK = "#d9d9d9", "#f2f2f2"  # data that do not count, and the ground behind them
SINGLE = sweeps.SINGLE
ZOOM = "#e8f1f8"  # the ground of what is enlarged, and of where it is from
#: Okabe and Ito's palette, told apart with any color vision.
#: Residuals of several results are means of so long a part of a sweep, and of five samples or more.
_MEANS = 100
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
#: Noise above this share of the axis makes a band that is broader than a fit's line.
_BAND = 0.0025
#: Inches beside an axis for its labels.
_LABELS = 1.3
#: With more experiments than this a page would be too long for a second look at each.
_MOST_ENLARGED = 12
#: Up to so many samples are seen one by one.
_FEW = 10
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
        names: what the data, the result, each rival in turn, and the difference are called.
    """
    with styled():
        residual = any(p.data is not None for p in panels)
        zooms = [_enlarged(p) if len(panels) <= _MOST_ENLARGED else [] for p in panels]
        wide = (8.2 if len(panels) == 1 else 4.6) + 2.7 * max(map(len, zooms), default=0)
        columns = max(1, min(len(panels), _COLUMNS, int(14.0 / wide)))
        rows = math.ceil(len(panels) / columns)
        height = (5.6 if residual else 4.2) * (1 if rows == 1 else 0.9 * rows)
        engine = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.04, hspace=0.0, wspace=0.0)
        figure = Figure(figsize=(min(wide * columns, 13.8), height), dpi=DPI, layout=engine)
        FigureCanvasAgg(figure)
        grid = figure.subfigures(rows, columns, squeeze=False)
        for k, cell in enumerate(grid.flat):
            if k < len(panels):
                _Cell(panels[k], zooms[k]).draw(cell, residual, names[-1])
        legend, labels = _handles(panels) if residual else [], [*names[:-1]] * residual
        if any(p.membrane is not None for p in panels):
            legend, labels = [*legend, *_potentials(panels)], [*labels, "command", "membrane"]
        used = _head(figure, title, subtitle, legend, labels)
        engine.set(rect=(0, 0, 1, 1 - used / float(figure.get_figheight())))
        settle(figure)
    return figure


def launches_figure(rows: Sequence[Measured], n_candidates: int, title: str) -> Figure:
    """Draw occupancy, and time per candidate, against threads per block, one column for each
    kernel.

    As figure 4 of Ben-Shalom et al. 2012. Where a kernel can be split into jobs, each number of
    jobs has a line of its own; the fastest launch has a ring.

    Arguments:
        rows: the launches that were measured.
        n_candidates: how many candidates each of them scored.
    """
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    told = any(math.isfinite(row.occupancy) for row in rows)
    with styled():
        figure = Figure(
            figsize=(max(4.6 * len(kernels), 5.2), 5.2 if told else 3.4),
            dpi=DPI,
            layout="constrained",
        )
        FigureCanvasAgg(figure)
        figure.suptitle(
            one_line(title),
            x=0.012,
            ha="left",
            fontsize=10.5,
            fontweight="bold",
            color=INK,
            parse_math=False,
        )
        grid = figure.subplots(2 if told else 1, len(kernels), squeeze=False, sharex="col")
        for column, kernel in enumerate(kernels):
            own = [row for row in rows if row.kernel == kernel and math.isfinite(row.seconds)]
            _draw_launches(list(grid[:, column]), own, n_candidates, column == 0)
            grid[0, column].set_title(kernel, loc="left", fontsize=9.5, color=INK, parse_math=False)
        figure.align_ylabels()
        settle(figure)
    return figure


def _draw_launches(
    axes: Sequence[Axes], rows: Sequence[Measured], n_candidates: int, first: bool
) -> None:
    jobs = list(dict.fromkeys(row.launch.jobs for row in rows))
    lines = [[row for row in rows if row.launch.jobs == one] for one in jobs]
    for line, color in zip(lines, sweeps.ramp(len(lines)), strict=True):
        threads = [row.launch.threads for row in line]
        style: dict[str, Any] = {"color": color, "marker": "o", "markersize": 4, "linewidth": 1.2}
        share = [100 * row.occupancy for row in line]
        if len(axes) > 1:
            axes[0].plot(threads, share, **style)
        split = line[0].launch.jobs
        label = "jobs as by default" if split is None else f"{split} job{'s' * (split > 1)}"
        time = [1e9 * row.seconds / n_candidates for row in line]
        axes[-1].plot(threads, time, label=label, **style)
    best = min(rows, key=lambda row: row.seconds)
    axes[-1].plot(
        [best.launch.threads],
        [1e9 * best.seconds / n_candidates],
        "o",
        markersize=10,
        markerfacecolor="none",
        markeredgecolor=INK,
    )
    if len(axes) > 1:
        axes[0].set_ylim(0, 105)
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_xlabel("threads a block")
    axes[-1].xaxis.set_major_locator(MultipleLocator(128))
    if first:
        axes[-1].set_ylabel("time a candidate (ns)")
        if len(axes) > 1:
            axes[0].set_ylabel("occupancy (%)")
    if jobs != [None]:
        axes[-1].legend(fontsize=8)


@contextmanager
def styled(more: dict[Any, Any] | None = None) -> Iterator[None]:
    """Apply the program's style while a figure is made, whatever the user's own settings are.

    A letter that the font lacks is drawn as a box without a warning, since nobody could do more.
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
        figure.savefig(file, format="png", dpi=DPI, facecolor="white")


# --- pieces ------------------------------------------------------------------------------------


def _head(
    figure: Figure, title: str, subtitle: str, handles: Sequence[Any], labels: Sequence[str]
) -> float:
    """Title, subtitle and legend in a strip above the cells, for which the figure grows.

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


def _handles(panels: Sequence[Traces]) -> list[Any]:
    """Return lines for a legend, drawn as the data and the results are."""
    beneath = [is_noisy(p) for p in panels if p.data is not None]
    data = [Line2D([], [], color=INK, linewidth=_THIN)] * (not all(beneath))
    data += [Line2D([], [], color=DATA, linewidth=3.0)] * any(beneath)
    broad = _BROAD if not all(beneath) else 1.4
    if any(p.rivals for p in panels):
        n = max(len(p.results) for p in panels)
        rest: list[Any] = [Line2D([], [], linewidth=broad, **_rival(k)) for k in range(n)]
    else:
        n = 3 if any(p.protocol.n_sweeps > 1 for p in panels) else 1
        rest = [tuple(Line2D([], [], color=c, linewidth=broad) for c in sweeps.ramp(n))]
    return [tuple(data), *rest]


def _potentials(panels: Sequence[Traces]) -> list[Any]:
    """Return lines for a legend, drawn as commands and membrane potentials are."""
    n = 3 if any(p.protocol.n_sweeps > 1 for p in panels) else 1
    colored = tuple(Line2D([], [], color=c, linewidth=1.0) for c in sweeps.ramp(n))
    return [Line2D([], [], color=MUTED, linewidth=1.0), colored]


def _rival(k: int) -> dict[str, Any]:
    """Return color and line style of a whole result; what lies beneath shows through the gaps."""
    style = ("-", "--", "-.", ":")[k % 4]
    return {"color": COLORS[k % len(COLORS)], "linestyle": style}


def _enlarged(traces: Traces) -> list[tuple[float, float]]:
    """Find the parts of a sweep that are worth a second, enlarged look, ms."""
    command = traces.protocol
    jumps = [command.step_times_ms(k) for k in range(command.n_sweeps)]
    shown = [np.where(np.isfinite(command.command()), r, np.nan) for r in traces.results]
    if traces.data is not None:
        shown = [_where_weighted(traces, c) for c in (*shown, traces.data)]
    return eventful(command.times_ms, shown, jumps)


class _Cell:
    """One experiment: command, current and residual below each other, whole and enlarged."""

    def __init__(self, traces: Traces, zooms: Sequence[tuple[float, float]]) -> None:
        self.traces, self.zooms = traces, zooms
        self.scale, self.time_unit = _time(traces.protocol)
        self.t = traces.protocol.times_ms * self.scale
        self.key = sweeps.key_of(traces.protocol)
        self.colors = sweeps.colors(self.key)
        self.shown = _shown(traces)
        self.factor, self.unit = current_unit(_largest(self.shown))
        self.noisy = is_noisy(traces)
        #: Results less data, (n_results, n_sweeps, n_times) pA; NaN where nothing counts.
        self.apart = np.empty((0, 0, 0))
        if traces.data is not None:
            self.apart = np.array(
                [_where_weighted(traces, r - traces.data) for r in traces.results]
            )
        if traces.rivals and self.noisy:  # noise of one would hide what the others leave
            self.apart = _running_mean(self.apart, max(5, traces.result.shape[1] // _MEANS))
        self.apart_factor, self.apart_unit = current_unit(_largest(self.apart))

    def draw(self, cell: SubFigure, residual: bool, difference: str) -> None:
        """Draw into a part of a figure; others may have a residual where this one leaves room."""
        traces = self.traces
        ratios = [1.0, 2.6, 0.9] if residual else [1.0, 2.6]
        grid = cell.subplots(
            len(ratios),
            1 + len(self.zooms),
            squeeze=False,
            sharex="col",
            sharey="row",
            height_ratios=ratios,
            width_ratios=[1.7, *([1.0] * len(self.zooms))],
        )
        self._column(grid[:, 0], slice(None))
        grid[0, 0].set_xlim(*_span(traces, self.t))
        grid[-1, 0].set_xlabel(f"time ({self.time_unit})")
        for axes, zoom in zip(grid.T[1:], self.zooms, strict=True):
            self._enlarge(grid[:, 0], axes, zoom)
        fit_axis(grid[1, 0], self.shown * self.factor)
        if traces.data is not None:
            fit_axis(grid[2, 0], self.apart * self.apart_factor)
            smoothed = ",\nmean" * bool(traces.rivals and self.noisy)
            grid[2, 0].set_ylabel(f"{difference}{smoothed} ({self.apart_unit})")
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
        grid[1, 0].set_ylabel(f"current ({self.unit})")
        if traces.protocol.n_sweeps > 1 and not traces.rivals:
            sweeps.draw_key(grid[1, -1], self.key)
        for row, ticks in zip(grid, (4, 6, 4), strict=False):
            row[0].yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], min_n_ticks=2))
        cell.align_ylabels(grid[:, 0])

    def _enlarge(self, whole: np.ndarray, axes: np.ndarray, zoom: tuple[float, float]) -> None:
        """Draw a part of the time once more; the ground of both views has one color."""
        start, end = zoom
        first, last = np.searchsorted(self.traces.protocol.times_ms, zoom)
        self._column(axes, slice(max(int(first) - 1, 0), int(last) + 2))
        axes[0].set_xlim(start * self.scale, end * self.scale)
        axes[-1].set_xlabel(f"time ({self.time_unit}), enlarged")
        for origin, axis in zip(whole, axes, strict=True):
            axis.set_facecolor(ZOOM)
            origin.axvspan(
                start * self.scale, end * self.scale, color=ZOOM, linewidth=0, zorder=0.1
            )

    def _column(self, axes: np.ndarray, part: slice) -> None:
        """Draw command, current and residual of all sweeps, for a part of the samples."""
        traces, t = self.traces, self.t[part]
        draw_potentials(axes[0], traces, self.t, self.colors, 1.0, part, bool(traces.rivals))
        # What is wider lies beneath: a broad line under the data, or a thin one over their noise.
        n, zorder = len(traces.results), 2.5 if self.noisy else 2.2
        thin = self.noisy or traces.data is None
        for k, result in enumerate(traces.results):
            broad = (1.1 + 0.5 * (n - 1 - k)) if thin else (_BROAD + 1.1 * (n - 1 - k))
            for row, style in zip(result, self._styles(k), strict=True):
                draw_trace(
                    axes[1], t, row[part] * self.factor, linewidth=broad, zorder=zorder, **style
                )
        if traces.data is not None:
            self._data(axes[1], t, part)
            axes[2].axhline(0, color=MUTED, linewidth=0.6, zorder=1)
            alpha = 1.0 if n * len(self.colors) == 1 else 0.8
            for k in range(n):
                fine = 0.7 + 0.6 * (n - 1 - k)
                for row, style in zip(self.apart[k], self._styles(k), strict=True):
                    y = row[part] * self.apart_factor
                    draw_trace(axes[2], t, y, linewidth=fine, alpha=alpha, **style)
        shade_masked(list(axes), traces, self.t)
        for axis in axes:
            axis.tick_params(axis="x", length=3 if axis is axes[-1] else 0)
            axis.spines["bottom"].set_visible(axis is axes[-1])

    def _styles(self, k: int) -> list[dict[str, Any]]:
        """Return the style of every sweep of the k-th result."""
        if self.traces.rivals:
            return [_rival(k)] * len(self.colors)
        return [{"color": color} for color in self.colors]

    def _data(self, axis: Axes, t: np.ndarray, part: slice) -> None:
        data = self.traces.data
        assert data is not None
        style: dict[str, Any] = {"color": INK, "linewidth": _THIN, "zorder": 3}
        if self.noisy:
            style = {"color": DATA, "linewidth": 0.9, "zorder": 1.5}
        for counted, every in zip(_where_weighted(self.traces, data), data, strict=True):
            draw_trace(axis, t, counted[part] * self.factor, **style)
            if not np.array_equal(counted, every, equal_nan=True):
                hidden = np.where(np.isnan(counted), every, np.nan)
                draw_trace(axis, t, hidden[part] * self.factor, MASKED, 0.8, zorder=1.2)


def is_noisy(traces: Traces) -> bool:
    """Whether the noise of a recording makes a band that is broader than the line of a fit."""
    if traces.data is None:
        return False
    seen = _where_weighted(traces, traces.data)
    finite = _shown(traces)[np.isfinite(_shown(traces))]
    return noise_pA(seen) > _BAND * float(np.ptp(finite)) if finite.size else False


def _span(traces: Traces, t: np.ndarray) -> tuple[float, float]:
    """Return the limits of the time axis: all, less long ends that no sweep counts."""
    step = float(t[1] - t[0]) if len(t) > 1 else traces.protocol.sampling_ms
    end = float(t[-1]) + step
    if len(t) < _FEW:  # whose dots would lie on the edge
        return -step / 2, end
    if traces.weight is None or not (traces.weight > 0).any():
        return 0.0, end
    counted = np.flatnonzero((traces.weight > 0).any(axis=0))
    first, last = float(t[counted[0]]), float(t[counted[-1]])
    room = 0.08 * (last - first) or 0.04 * end
    return max(0.0, first - room), min(end, last + room)


def _time(protocol: Protocol) -> tuple[float, str]:
    """Return the factor from ms, and the unit of the time axis."""
    return (1e-3, "s") if protocol.times_ms[-1] >= 2000 else (1.0, "ms")


def current_unit(largest_pA: float) -> tuple[float, str]:
    """Return the factor from pA, and a unit in which the labels of ticks are short."""
    if largest_pA >= 5000:
        return 1e-3, "nA"
    if largest_pA >= 0.05 or largest_pA == 0:
        return 1.0, "pA"
    if largest_pA >= 5e-5:
        return 1e3, "fA"
    power = 3 * math.floor(math.log10(largest_pA) / 3)
    return 10.0**-power, f"10{str(power).translate(_RAISED)} pA"


def _shown(traces: Traces) -> np.ndarray:
    """Return what the axis must hold: the results, and the data where they count."""
    if traces.data is None:
        return np.concatenate(traces.results)
    return np.concatenate([*traces.results, _where_weighted(traces, traces.data)])


def _running_mean(values: np.ndarray, n: int) -> np.ndarray:
    """The mean of n neighboring samples of (n_results, n_sweeps, n_times), NaN left out."""
    known = np.isfinite(values)
    sums = np.cumsum(np.pad(np.where(known, values, 0.0), ((0, 0), (0, 0), (1, 0))), axis=-1)
    counts = np.cumsum(np.pad(known, ((0, 0), (0, 0), (1, 0))), axis=-1)
    place = np.arange(values.shape[-1])
    first, last = np.maximum(place - n // 2, 0), np.minimum(place + (n + 1) // 2, values.shape[-1])
    size = counts[..., last] - counts[..., first]
    mean = (sums[..., last] - sums[..., first]) / np.maximum(size, 1)
    return np.where(known, mean, np.nan)


def _where_weighted(traces: Traces, values: np.ndarray) -> np.ndarray:
    return values if traces.weight is None else np.where(traces.weight > 0, values, np.nan)


def _largest(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def draw_potentials(
    axis: Axes,
    traces: Traces,
    t: np.ndarray,
    colors: Sequence[Any],
    linewidth: float,
    part: slice = slice(None),
    muted: bool = False,
) -> None:
    """Draw the commands of all sweeps and, where the membrane is elsewhere, its potentials.

    Arguments:
        t: (n_times,), in the unit of the axis.
        colors: of the sweeps.
        part: the samples that are drawn.
        muted: whether no color stands for a sweep.
    """
    grey = muted or traces.membrane is not None
    for row, color in zip(traces.protocol.command(), colors, strict=True):
        draw_trace(axis, t[part], row[part], MUTED if grey else color, linewidth)
    if traces.membrane is not None:
        for row, color in zip(traces.membrane, colors, strict=True):
            draw_trace(axis, t[part], row[part], color, linewidth, zorder=2.1)


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
    """Reduce a long trace to the least and the largest value of each bin, in the order they come.

    Arguments:
        t, y: (n_times,). Traces of up to four samples a bin stay as they are; NaN is a gap.
    """
    size = len(y) // _BINS
    if size <= 4:
        return t, y
    whole = len(y) // size * size
    block = y[:whole].reshape(-1, size)
    finite = np.isfinite(block)
    low = np.where(finite, block, np.inf).argmin(axis=1)
    high = np.where(finite, block, -np.inf).argmax(axis=1)
    start = np.arange(len(block)) * size
    picks = np.sort(np.stack([start + low, start + high], axis=1), axis=1).ravel()
    # A bin with a gap in it shows one, so that no line leads across what is masked.
    gaps = start[~finite.all(axis=1)] + np.argmin(finite[~finite.all(axis=1)], axis=1)
    picks = np.unique(np.concatenate([picks, gaps, np.arange(whole, len(y))]))
    return t[picks], y[picks]


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
    edges = np.flatnonzero(np.diff(np.concatenate([[False], masked, [False]]).astype(int)))
    step = t[1] - t[0] if len(t) > 1 else 1.0
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        for axis in axes:
            stop = t[begin] + (end - begin) * step
            axis.axvspan(t[begin], stop, color=MASK, linewidth=0, zorder=0)
