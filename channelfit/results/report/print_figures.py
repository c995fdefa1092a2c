"""The figures of a report at the size of print: columns of 85 mm and 175 mm, letters of 8 points.

In PDF and SVG letters stay letters, which a drawing program can edit. Names of users are drawn as
they are: no dollar sign in them begins a formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from channelfit.reading.files import whole
from channelfit.results.report import sweeps
from channelfit.results.report.page_content import Run, Shown, place_in_range, side_by_side
from channelfit.results.report.plots import (
    COLORS,
    DATA,
    INK,
    MUTED,
    current_unit,
    draw_potentials,
    draw_trace,
    fit_axis,
    is_noisy,
    styled,
)
from channelfit.results.report.residuals import autocorrelation
from channelfit.results.report.scheme import scheme_figure
from channelfit.results.report.step_families import Family, measured, parts_of
from channelfit.results.report.texts import brief, briefs
from channelfit.results.report.traces import Traces

#: Inches: one column, two columns.
NARROW, WIDE = 85 / 25.4, 175 / 25.4
POINTS = 8.0
_DPI = 600
#: The size of letters in a drawn scheme, before it is brought to that of print.
_OF_SCHEME = 10.0
#: Fonts of journals, and those that take their place.
_FONTS = ("Arial", "Helvetica", "Liberation Sans", "Nimbus Sans", "DejaVu Sans")
_STYLE: dict[Any, Any] = {
    "font.size": POINTS,
    "axes.labelsize": POINTS,
    "axes.titlesize": POINTS,
    "xtick.labelsize": POINTS,
    "ytick.labelsize": POINTS,
    "legend.fontsize": POINTS,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "channelfit",
}


def save_figures(runs: Sequence[Run], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Write every figure of a report in every wanted kind of file; returns the files.

    Arguments:
        kinds: "pdf", "svg", "png".
    """
    with print_style():
        return save_named(figures_of(runs), folder, kinds)


def save_named(
    figures: Iterable[tuple[str, Figure]], folder: Path, kinds: Sequence[str]
) -> list[Path]:
    """Write figures, each with the name of its file, in every wanted kind; returns the files.

    A file is never seen half written. It is to be called in the style of print.
    """
    files = []
    for name, figure in figures:
        for kind in kinds:
            file = folder / f"{name}.{kind}"
            metadata = {"Date" if kind == "svg" else "CreationDate": None}
            with whole(file) as picture:
                figure.savefig(
                    picture,
                    format=kind,
                    dpi=_DPI,
                    metadata=None if kind == "png" else metadata,
                )
            files.append(file)
    return files


def print_style() -> AbstractContextManager[None]:
    """The style of figures for print, for as long as a block lasts."""
    there = {font.name for font in fontManager.ttflist}
    fonts = [name for name in _FONTS if name in there]
    return styled({**_STYLE, "font.family": "sans-serif", "font.sans-serif": fonts})


def figures_of(runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
    """Every figure of a report with the name of its file; to be drawn in the style of print."""
    several = len(runs) > 1
    for k, run in enumerate(runs, 1):
        if run.scheme is not None:
            yield f"scheme_{k}" if several else "scheme", _scheme(run)
    shown = side_by_side(runs)
    for k, one in enumerate(shown, 1):
        number = f"_{k}" if len(shown) > 1 else ""
        labels = [runs[run].label for run in one.runs] if several else []
        yield f"traces{number}", _traces(one, labels)
        if (figure := _autocorrelation(one, labels)) is not None:
            yield f"residuals{number}", figure
        reversal = runs[one.runs[0]].reversals_mV[one.places[0]]
        family = measured(one.traces, reversal)
        if isinstance(family, Family):
            for name, figure in _family(family, one, labels):
                yield f"{name}{number}", figure
    for k, run in enumerate(runs, 1):
        yield f"parameters_{k}" if several else "parameters", _parameters(run)
    if any(len(run.history) for run in runs):
        yield "convergence", _convergence(runs)


def print_figure(width: float, height: float) -> Figure:
    """An empty figure of a width and a height in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _scheme(run: Run) -> Figure:
    """The scheme with letters of 8 points, or smaller ones where it would be too wide."""
    assert run.scheme is not None
    figure = scheme_figure(run.scheme)
    width, height = figure.get_size_inches()
    scale = min(POINTS / _OF_SCHEME, WIDE / float(width))
    figure.set_size_inches(scale * width, scale * height)
    for text in figure.findobj(Text):
        text.set_fontsize(scale * float(text.get_fontsize()))
    for arrow in figure.findobj(FancyArrowPatch):
        arrow.shrinkA, arrow.shrinkB = scale * arrow.shrinkA, scale * arrow.shrinkB
        arrow.set_mutation_scale(scale)
    return figure


def _traces(shown: Shown, labels: Sequence[str]) -> Figure:
    """Command, current and residual of one experiment, two columns wide."""
    traces = shown.traces
    has_data = traces.data is not None
    figure = print_figure(WIDE, 3.5 if has_data else 2.7)
    ratios = [0.7, 2.4, 0.8] if has_data else [0.7, 2.4]
    axes = list(figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios))
    t, key = traces.protocol.times_ms, sweeps.key_of(traces.protocol)
    seconds = float(t[-1]) >= 2000
    t = t * (1e-3 if seconds else 1.0)
    shades: list[Any] = list(sweeps.colors(key))
    draw_potentials(axes[0], traces, t, shades, 0.8, muted=bool(labels))
    axes[0].set_ylabel("voltage\n(mV)")
    colors = [COLORS[run % len(COLORS)] for run in shown.runs]
    lines = (
        [[color] * len(shades) for color in colors] if labels else [shades] * len(traces.results)
    )
    _currents(axes[1], traces, t, lines)
    if has_data:
        _residuals(axes[2], traces, t, lines)
    axes[-1].set_xlabel(f"time ({'s' if seconds else 'ms'})")
    axes[-1].set_xlim(0, float(t[-1]))
    for axis, ticks in zip(axes, (3, 5, 3), strict=False):
        axis.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], min_n_ticks=2))
    figure.align_ylabels()
    if labels:
        _legend(axes[1], colors, labels)
    elif len(key.values) > 1:
        sweeps.draw_key(axes[1], key, 0.015)
    return figure


def _counted(traces: Traces, current: np.ndarray) -> np.ndarray:
    """A current (n_sweeps, n_times) with NaN where its samples do not count."""
    return current if traces.weight is None else np.where(traces.weight > 0, current, np.nan)


def _currents(axis: Axes, traces: Traces, t: np.ndarray, lines: Sequence[Sequence[Any]]) -> None:
    """Draws the fits and what of the recording counts; lines: the color of each fit and sweep."""
    noisy = is_noisy(traces)
    data = [] if traces.data is None else [_counted(traces, traces.data)]
    seen = [*(_counted(traces, result) for result in traces.results), *data]
    factor, unit = current_unit(_largest(seen))
    for result, colors in zip(traces.results, lines, strict=True):
        for row, color in zip(result, colors, strict=True):
            draw_trace(axis, t, row * factor, color, 1.0 if noisy else 1.8, zorder=2.2)
    style, zorder = (DATA, 1.5) if noisy else (INK, 3.0)
    for current in data:
        for row in current:
            draw_trace(axis, t, row * factor, style, 0.5, zorder=zorder)
    fit_axis(axis, np.concatenate(seen) * factor)
    axis.set_ylabel(f"current ({unit})")


def _residuals(axis: Axes, traces: Traces, t: np.ndarray, lines: Sequence[Sequence[Any]]) -> None:
    """Draws what the fits differ from the recording by, where its samples count."""
    residuals = [_counted(traces, result - traces.data) for result in traces.results]
    factor, unit = current_unit(_largest(residuals))
    for apart, colors in zip(residuals, lines, strict=True):
        for row, color in zip(apart, colors, strict=True):
            draw_trace(axis, t, row * factor, color, 0.6)
    axis.axhline(0, color=MUTED, linewidth=0.5, zorder=1)
    axis.set_ylabel(f"fit − data\n({unit})")
    fit_axis(axis, np.concatenate(residuals) * factor)


def _largest(currents: Sequence[np.ndarray]) -> float:
    """The largest current in size; NaN does not count."""
    return max((float(np.nanmax(np.abs(c), initial=0.0)) for c in currents), default=0.0)


def _legend(axis: Axes, colors: Sequence[Any], labels: Sequence[str]) -> None:
    handles = [axis.plot([], [], color=color, linewidth=1.5)[0] for color in colors]
    legend = axis.legend(handles, [brief(label, 30) for label in labels], loc="best")
    for text in legend.get_texts():
        text.set_parse_math(False)


def _autocorrelation(shown: Shown, labels: Sequence[str]) -> Figure | None:
    traces = shown.traces
    if traces.data is None:
        return None
    figure = print_figure(NARROW, 2.1)
    axis = figure.subplots()
    for run, result in zip(shown.runs, traces.results, strict=True):
        found = autocorrelation(result - traces.data, traces.weight, traces.protocol.sampling_ms)
        if isinstance(found, str):
            return None
        axis.plot(found.lags_ms, found.values, color=COLORS[run % len(COLORS)], linewidth=1.2)
        for side in (-found.band, found.band):
            axis.axhline(side, color=MUTED, linewidth=0.6, linestyle="--", zorder=1)
    axis.axhline(0, color=MUTED, linewidth=0.5, zorder=1)
    axis.set_xlabel("lag (ms)")
    axis.set_ylabel("autocorrelation")
    if labels:
        _legend(axis, [COLORS[run % len(COLORS)] for run in shown.runs], labels)
    return figure


def _family(family: Family, shown: Shown, labels: Sequence[str]) -> Iterator[tuple[str, Figure]]:
    """One figure for each part of a family of steps, one column wide."""
    for part in parts_of(family):
        figure = print_figure(NARROW, 2.4)
        axis = figure.subplots()
        for place, curve in enumerate(part.curves):
            for run, result in zip(shown.runs, curve.results, strict=True):
                style = "--" if place else "-"
                color = COLORS[run % len(COLORS)]
                axis.plot(curve.x, result, style, color=color, linewidth=1.2)
            if curve.data is not None:
                marker = "s" if place else "o"
                axis.plot(curve.x, curve.data, marker, color=INK, ms=3, mfc="none", mew=0.7)
        if part.unit == "pA":
            axis.axhline(0, color=MUTED, linewidth=0.5, zorder=1)
        axis.set_xlabel(f"{family.x_name} ({family.x_unit})")
        axis.set_ylabel(part.label)
        if labels:
            _legend(axis, [COLORS[run % len(COLORS)] for run in shown.runs], labels)
        yield part.file, figure


def _parameters(run: Run) -> Figure:
    """Each parameter with its interval, within its range."""
    rows = [
        (name, row)
        for name, row in run.summary["parameters"].items()
        if row["lower"] is not None and row["lower"] < row["upper"] and row.get("note") != "fixed"
    ]
    figure = print_figure(NARROW, 0.55 + 0.19 * max(len(rows), 1))
    axis = figure.subplots()
    for k, (_, row) in enumerate(rows):
        axis.plot([0, 1], [k, k], color=DATA, linewidth=0.6, zorder=1)
        ends = row.get("interval")
        if ends and None not in ends:
            low, high = (place_in_range(row, end) for end in ends)
            axis.plot([low, high], [k, k], color=COLORS[0], linewidth=3)
        axis.plot([place_in_range(row, row["value"])], [k], "|", color=INK, markersize=7, zorder=3)
    axis.set_yticks(range(len(rows)), briefs([name for name, _ in rows]), parse_math=False)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks([0, 1], ["lower bound", "upper bound"])
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return figure


def _convergence(runs: Sequence[Run]) -> Figure:
    figure = print_figure(NARROW, 2.1)
    axis = figure.subplots()
    of_currents = all(run.summary.get("rms_pA") is not None for run in runs)
    for k, run in enumerate(runs):
        if len(run.history):
            best = np.sqrt(run.history[:, 3]) if of_currents else run.history[:, 3]
            axis.plot(run.history[:, 1], best, color=COLORS[k % len(COLORS)], linewidth=1.2)
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()]
    axis.set_xscale("log")
    if all((values[np.isfinite(values)] > 0).all() for values in drawn):
        axis.set_yscale("log")
    axis.set_xlabel("candidates scored")
    axis.set_ylabel("lowest RMS so far (pA)" if of_currents else "lowest cost so far")
    if len(runs) > 1:
        colors = [COLORS[k % len(COLORS)] for k in range(len(runs))]
        _legend(axis, colors, [run.label for run in runs])
    return figure
