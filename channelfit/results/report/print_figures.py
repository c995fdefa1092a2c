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
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text

from channelfit.reading.files import whole
from channelfit.results.report import sweeps
from channelfit.results.report.curve_figures import (
    CurveFigure,
    autocorrelation_figure,
    convergence_figure,
    family_figures,
)
from channelfit.results.report.observed_curves import side_by_side_curves
from channelfit.results.report.page_content import (
    ReportedFit,
    SharedRecording,
    in_range,
    side_by_side,
)
from channelfit.results.report.picture_texts import brief
from channelfit.results.report.plots import (
    COLORS,
    INK,
    MUTED,
    TracePanel,
    draw_ranges,
    new_figure,
    rival_style,
    styled,
)
from channelfit.results.report.scheme import scheme_figure
from channelfit.results.report.step_families import StepFamily, measured
from channelfit.results.report.trace_view import TraceView

#: Inches: one column, two columns.
NARROW, WIDE = 85 / 25.4, 175 / 25.4
POINTS = 8.0
_DPI = 600
#: The size of letters in a drawn scheme, before it is brought to that of print.
_OF_SCHEME = 10.0
#: Widths of lines in traces, as a share of those in images.
_THICKNESS = 0.75
_HEIGHT = 2.1
_MARKERS = {"circle": "o", "square": "s"}
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


def save_figures(runs: Sequence[ReportedFit], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Write every figure of a report in every requested kind of file; returns the files.

    Arguments:
        kinds: "pdf", "svg", "png".
    """
    with print_style():
        return save_named(figures_of(runs), folder, kinds)


def save_named(
    figures: Iterable[tuple[str, Figure]], folder: Path, kinds: Sequence[str]
) -> list[Path]:
    """Write figures, each with the name of its file, in every requested kind; returns the files.

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
    """Return the style of figures for print, for as long as a block lasts."""
    there = {font.name for font in fontManager.ttflist}
    fonts = [name for name in _FONTS if name in there]
    return styled({**_STYLE, "font.family": "sans-serif", "font.sans-serif": fonts})


def figures_of(runs: Sequence[ReportedFit]) -> Iterator[tuple[str, Figure]]:
    """Yield every figure of a report with the name of its file, in the style of print."""
    several = len(runs) > 1
    for k, run in enumerate(runs, 1):
        if run.scheme is not None:
            yield f"scheme_{k}" if several else "scheme", _scheme(run)
    recordings = side_by_side(runs)
    for k, one in enumerate(recordings, 1):
        number = f"_{k}" if len(recordings) > 1 else ""
        labels = [runs[run].label for run in one.runs] if several else []
        yield f"traces{number}", _traces(one, labels)
        described = autocorrelation_figure(one)
        if not isinstance(described, str):
            yield f"{described[0].file}{number}", print_curves(described[0], labels)
        family = measured(one.traces, one.reversal_mV)
        if isinstance(family, StepFamily):
            for figure in family_figures(family, one.runs):
                yield f"{figure.file}{number}", print_curves(figure, labels, 2.4)
    for k, (curve, numbers) in enumerate(side_by_side_curves(runs), 1):
        labels = [runs[run].label for run in numbers] if several else []
        drawn = curve.figure(numbers)
        yield f"{drawn.file}_{k}", print_curves(drawn, labels, 2.4)
    for k, run in enumerate(runs, 1):
        yield f"parameters_{k}" if several else "parameters", _parameters(run)
    convergence = convergence_figure(runs)
    if convergence is not None:
        yield convergence.file, print_curves(convergence, [run.label for run in runs] * several)


def _scheme(run: ReportedFit) -> Figure:
    """Return the scheme with letters of 8 points, or smaller ones where it would be too wide."""
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


def _traces(shared: SharedRecording, labels: Sequence[str]) -> Figure:
    """Return command, current and residual of one experiment, two columns wide."""
    has_data = shared.traces.data is not None
    view, styles = TraceView(shared.traces), [rival_style(run) for run in shared.runs]
    panel = TracePanel(view, styles if labels else None, _THICKNESS)
    figure = new_figure(WIDE, 3.5 if has_data else 2.7)
    ratios = [0.7, 2.4, 0.8] if has_data else [0.7, 2.4]
    axes = list(figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios))
    panel.draw(axes)
    panel.fit_axes(axes)
    axes[0].set_ylabel("voltage\n(mV)")
    axes[1].set_ylabel(f"current ({view.current_unit})")
    if has_data:
        mean = ", mean" * panel.smoothed
        axes[2].set_ylabel(f"fit − data{mean}\n({panel.residual_unit})")
    axes[-1].set_xlabel(f"time ({view.time_unit})")
    axes[-1].set_xlim(*view.span())
    figure.align_ylabels()
    if labels:
        _legend(axes[1], styles, labels)
    elif len(panel.key.values) > 1:
        sweeps.draw_key(axes[1], panel.key, 0.015)
    return figure


def _legend(axis: Axes, styles: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    handles = [axis.plot([], [], linewidth=1.5, **style)[0] for style in styles]
    legend = axis.legend(handles, [brief(label, 30) for label in labels], loc="best")
    for text in legend.get_texts():
        text.set_parse_math(False)


def print_curves(
    figure: CurveFigure, labels: Sequence[str] = (), height: float = _HEIGHT
) -> Figure:
    """Draw curves one column wide.

    Arguments:
        labels: of the runs in the figure, in their order; empty for no legend.
        height: in inches.
    """
    drawn = new_figure(NARROW, height)
    axis = drawn.subplots()
    for one in figure.series:
        color = {"data": INK, "muted": MUTED}.get(one.role) or _color(one.role)
        if one.line:
            style = "--" if one.line == "dashed" else "-"
            width = 0.6 if one.role == "muted" else 1.2
            axis.plot(one.x, one.y, style, color=color, linewidth=width)
        if one.error is not None:
            bars: dict[str, Any] = {"fmt": "none", "elinewidth": 0.7, "capsize": 1.5}
            axis.errorbar(one.x, one.y, np.nan_to_num(one.error), ecolor=color, **bars)
        if one.points:
            marker = _MARKERS[one.points]
            axis.plot(one.x, one.y, marker, color=color, ms=3, mfc="none", mew=0.7)
    for set_scale, is_log in zip((axis.set_xscale, axis.set_yscale), figure.log, strict=True):
        if is_log:
            set_scale("log")
    if figure.zero:
        axis.axhline(0, color=MUTED, linewidth=0.5, zorder=1)
    axis.set_xlabel(figure.x_label, parse_math=False)
    axis.set_ylabel(figure.y_label, parse_math=False)
    if labels:
        roles = dict.fromkeys(one.role for one in figure.series if one.role.startswith("run"))
        _legend(axis, [{"color": _color(role)} for role in roles], labels)
    return drawn


def _color(role: str) -> str:
    """Return the color of a run, such as "run0"."""
    return COLORS[int(role.removeprefix("run")) % len(COLORS)]


def _parameters(run: ReportedFit) -> Figure:
    """Return each parameter with its interval, within its range."""
    found = (in_range(name, row) for name, row in run.summary["parameters"].items())
    rows = [row for row in found if row is not None]
    figure = new_figure(NARROW, 0.55 + 0.19 * max(len(rows), 1))
    draw_ranges(figure.subplots(), rows, _THICKNESS)
    return figure
