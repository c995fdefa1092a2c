"""Figures of traces: command voltage, current and residual, one column an experiment. And of
launches of kernels.

Drawn with Matplotlib's object interface alone, so that nothing depends on a display or on the
state of `pyplot`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator, MultipleLocator

from channelfit.problem import Experiment
from channelfit.protocol import Protocol
from channelfit.tuning import Measured

DPI = 120
INK, MUTED, DATA = "#222222", "#666666", "#b4b4b4"
MASKED, MASK = "#d9d9d9", "#f2f2f2"  # data that do not count, and the ground behind them
SINGLE = "#0072b2"  # of Okabe and Ito's palette, told apart with any color vision
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
#: Samples of a trace are joined to this many pairs of a least and a largest value, at most.
_BINS = 1500
_COLUMNS = 3


@dataclass(frozen=True)
class Traces:
    """One experiment as it is drawn.

    result: (n_sweeps, n_times) pA, colored. data: the same shape, drawn grey beneath it, or None.
    weight: the same shape; residuals are drawn, and axes scaled, where it is above 0.
    """

    protocol: Protocol
    result: np.ndarray
    data: np.ndarray | None = None
    weight: np.ndarray | None = None
    title: str = ""
    subtitle: str = ""


def fitted(experiment: Experiment, result: np.ndarray) -> Traces:
    """Recording and fit of one experiment, titled with its name and RMS."""
    protocol, recording = experiment.protocol, experiment.recording
    if recording is None:
        return Traces(protocol, result, title=protocol.name)
    traces = Traces(protocol, result, recording.current_pA, recording.weight, title=protocol.name)
    rms = root_mean_square(traces)
    peak = _largest(_where_weighted(traces, recording.current_pA))
    share = f", {100 * rms / peak:.2g} % of the peak" if peak > 0 and math.isfinite(rms) else ""
    return Traces(
        protocol, result, recording.current_pA, recording.weight, protocol.name,
        f"RMS {rms:.3g} pA{share}",
    )  # fmt: skip


def root_mean_square(traces: Traces) -> float:
    """The weighted root mean square of result - data, pA; NaN without data or weight."""
    if traces.data is None:
        return math.nan
    weight = np.ones_like(traces.data) if traces.weight is None else traces.weight
    use = (weight > 0) & np.isfinite(traces.data)
    total = weight[use].sum()
    if not total > 0:
        return math.nan
    apart = traces.result[use] - traces.data[use]
    return float(np.sqrt(np.sum(weight[use] * apart**2) / total))


def traces_figure(
    panels: Sequence[Traces],
    title: str = "",
    subtitle: str = "",
    names: tuple[str, str, str] = ("data", "fit", "fit − data"),
) -> Figure:
    """Command voltage, current and (where there are data) residual of every experiment.

    Arguments:
        names: what the grey lines, the colored lines and their difference are called.
    """
    with mpl.rc_context(STYLE):
        columns = min(len(panels), _COLUMNS)
        rows = math.ceil(len(panels) / columns)
        residual = any(p.data is not None for p in panels)
        width = 8.2 if columns == 1 else min(4.6 * columns, 12.4)
        height = (5.6 if residual else 4.2) * (1 if rows == 1 else 0.9 * rows)
        engine = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.04, hspace=0.0, wspace=0.0)
        figure = Figure(figsize=(width, height + 0.35), dpi=DPI, layout=engine)
        FigureCanvasAgg(figure)
        grid = figure.subfigures(rows, columns, squeeze=False)
        for k, cell in enumerate(grid.flat):
            if k < len(panels):
                _draw(cell, panels[k], residual, k % columns == 0, names[2])
        _head(figure, title, subtitle, names, residual)
    return figure


def launches_figure(rows: Sequence[Measured], n_candidates: int, title: str) -> Figure:
    """Occupancy, and time a candidate, against threads a block, one column a kernel.

    As figure 4 of Ben-Shalom et al. 2012. Where a kernel may be split into jobs, a line each; the
    fastest launch has a ring.
    """
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    told = any(math.isfinite(row.occupancy) for row in rows)
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(max(4.6 * len(kernels), 5.2), 5.2 if told else 3.4), dpi=DPI,
            layout="constrained",
        )  # fmt: skip
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.012, ha="left", fontsize=10.5, fontweight="bold", color=INK,
                        parse_math=False)  # fmt: skip
        grid = figure.subplots(2 if told else 1, len(kernels), squeeze=False, sharex="col")
        for column, kernel in enumerate(kernels):
            own = [row for row in rows if row.kernel == kernel and math.isfinite(row.seconds)]
            _draw_launches(list(grid[:, column]), own, n_candidates, column == 0)
            grid[0, column].set_title(kernel, loc="left", fontsize=9.5, color=INK, parse_math=False)
        figure.align_ylabels()
    return figure


def _draw_launches(
    axes: Sequence[Axes], rows: Sequence[Measured], n_candidates: int, first: bool
) -> None:
    jobs = list(dict.fromkeys(row.launch.jobs for row in rows))
    lines = [[row for row in rows if row.launch.jobs == one] for one in jobs]
    for line, color in zip(lines, _sweep_colors(len(lines)), strict=True):
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
        [best.launch.threads], [1e9 * best.seconds / n_candidates],
        "o", markersize=10, markerfacecolor="none", markeredgecolor=INK,
    )  # fmt: skip
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


def save(figure: Figure, path: Path) -> None:
    """Write a figure; a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.partial.png")
    figure.savefig(partial, format="png", dpi=DPI, facecolor="white")
    partial.replace(path)


# --- pieces ------------------------------------------------------------------------------------


def _head(
    figure: Figure, title: str, subtitle: str, names: tuple[str, str, str], residual: bool
) -> None:
    width, height = figure.get_size_inches()
    y = 1 - 0.07 / height
    style: dict[str, Any] = {"fontsize": 10.5, "ha": "left", "va": "top", "parse_math": False}
    if title:
        figure.suptitle(title, x=0.012, y=y, fontweight="bold", color=INK, **style)
    if subtitle:
        x = 0.012 + (_bold_width(title) + 0.2) / width
        figure.text(x, y, subtitle, color=INK, **style)
    if residual:
        handles = [
            Line2D([], [], color=DATA, linewidth=2.4, label=names[0]),
            Line2D([], [], color=SINGLE, linewidth=1.4, label=names[1]),
        ]
        figure.legend(
            handles=handles, loc="outside upper right", ncols=2, fontsize=9, labelcolor=INK,
            handlelength=1.6, columnspacing=1.4, borderaxespad=0.4,
        )  # fmt: skip


def _bold_width(text: str) -> float:
    """Inches of a title."""
    if not text:
        return 0.0
    font = FontProperties(weight="bold")
    return float(TextPath((0, 0), text.replace("$", "S"), 10.5, prop=font).get_extents().width) / 72


def _draw(cell: SubFigure, traces: Traces, residual: bool, first: bool, difference: str) -> None:
    ratios = [1.0, 2.6, 0.9] if residual else [1.0, 2.6]
    axes = list(np.atleast_1d(cell.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)))
    protocol = traces.protocol
    t, time_unit = _time(protocol)
    factor, unit = _current(traces)
    colors = _sweep_colors(protocol.n_sweeps)
    command = protocol.command()
    for k, color in enumerate(colors):
        _line(axes[0], t, command[k], color, 1.0)
    for k, color in enumerate(colors):
        if traces.data is not None:
            seen = _where_weighted(traces, traces.data)[k] * factor
            _line(axes[1], t, seen, DATA, _data_width(traces), zorder=1.5)
            if not np.array_equal(seen, traces.data[k] * factor, equal_nan=True):
                hidden = np.where(np.isnan(seen), traces.data[k] * factor, np.nan)
                _line(axes[1], t, hidden, MASKED, 0.8, zorder=1.2)
        _line(axes[1], t, traces.result[k] * factor, color, 1.1, zorder=2.5)
    _scale(axes[1], _shown(traces) * factor)
    if traces.data is not None:
        apart = _where_weighted(traces, traces.result - traces.data) * factor
        axes[2].axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        for row, color in zip(apart, colors, strict=True):
            _line(axes[2], t, row, color, 0.7, alpha=1 if len(colors) == 1 else 0.8)
        _scale(axes[2], apart)
    elif residual:
        axes[2].set_visible(False)
    _shade(axes, traces, t)
    plain: dict[str, Any] = {"pad": 6, "parse_math": False}
    axes[0].set_title(traces.title, loc="left", fontsize=9.5, fontweight="bold", color=INK, **plain)
    axes[0].set_title(traces.subtitle, loc="right", fontsize=8.5, color=MUTED, **plain)
    if first:
        axes[0].set_ylabel("voltage (mV)")
    axes[1].set_ylabel(f"current ({unit})")
    if residual and first:
        axes[2].set_ylabel(f"{difference} ({unit})")
    axes[-1].set_xlabel(f"time ({time_unit})")
    axes[0].set_xlim(*_span(traces, t))
    for axis, ticks in zip(axes, (4, 6, 4), strict=False):
        axis.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], min_n_ticks=2))
        axis.tick_params(axis="x", length=3 if axis is axes[-1] else 0)
        axis.spines["bottom"].set_visible(axis is axes[-1])
    cell.align_ylabels(axes)


def _span(traces: Traces, t: np.ndarray) -> tuple[float, float]:
    """All of the time, short of long stretches at either end that no sweep counts."""
    end = float(t[-1] + (t[1] - t[0] if len(t) > 1 else 1.0))
    if traces.weight is None or not (traces.weight > 0).any():
        return 0.0, end
    counted = np.flatnonzero((traces.weight > 0).any(axis=0))
    first, last = float(t[counted[0]]), float(t[counted[-1]])
    room = 0.08 * (last - first)
    return max(0.0, first - room), min(end, last + room)


def _data_width(traces: Traces) -> float:
    """A halo about a smooth fit; thin where the data are many noisy samples."""
    n_sweeps, n_times = traces.result.shape
    return 0.8 if n_times > 2000 else 2.6 if n_sweeps <= 15 else 2.0


def _time(protocol: Protocol) -> tuple[np.ndarray, str]:
    t = protocol.times_ms
    return (t / 1e3, "s") if t[-1] >= 2000 else (t, "ms")


def _current(traces: Traces) -> tuple[float, str]:
    """Factor from pA and the unit, so that ticks stay short."""
    largest = _largest(_shown(traces))
    if largest >= 5000:
        return 1e-3, "nA"
    return (1e3, "fA") if 0 < largest < 0.05 else (1.0, "pA")


def _shown(traces: Traces) -> np.ndarray:
    """What the axis must hold: the result, and the data where they count."""
    if traces.data is None:
        return traces.result
    return np.concatenate([traces.result, _where_weighted(traces, traces.data)])


def _where_weighted(traces: Traces, values: np.ndarray) -> np.ndarray:
    return values if traces.weight is None else np.where(traces.weight > 0, values, np.nan)


def _largest(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _sweep_colors(n: int) -> list[tuple[float, float, float]]:
    """Dark to light along one map, short of the yellow that is lost on white."""
    if n == 1:
        return [to_rgb(SINGLE)]
    return [tuple(c[:3]) for c in mpl.colormaps["viridis"](np.linspace(0.0, 0.86, n))]


def _line(
    axis: Axes, t: np.ndarray, y: np.ndarray, color: Any, width: float,
    zorder: float = 2, alpha: float = 1,
) -> None:  # fmt: skip
    x, y = decimated(t, y)
    axis.plot(x, y, color=color, linewidth=width, zorder=zorder, alpha=alpha)


def decimated(t: np.ndarray, y: np.ndarray, bins: int = _BINS) -> tuple[np.ndarray, np.ndarray]:
    """A long trace as the least and the largest value of each bin, in the order they come.

    Arguments:
        t, y: (n_times,). Traces of up to four samples a bin stay as they are; NaN is a gap.
    """
    size = len(y) // bins
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


def _scale(axis: Axes, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    low, high = float(finite.min()), float(finite.max())
    margin = 0.06 * (high - low) or max(abs(high) * 0.1, 1e-3)
    axis.set_ylim(low - margin, high + margin)


def _shade(axes: Sequence[Axes], traces: Traces, t: np.ndarray) -> None:
    """Light grey where no sweep counts."""
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
