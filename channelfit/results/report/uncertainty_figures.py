"""Figures of the uncertainty of a fit: intervals, correlations, profiles, families, posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from channelfit.reading.errors import InputError
from channelfit.results.report.fit_words import interval_text
from channelfit.results.report.page_content import InRange
from channelfit.results.report.picture_texts import brief, briefs, finish_layout, one_line
from channelfit.results.report.plots import (
    COLORS,
    DATA,
    INK,
    MUTED,
    SINGLE,
    ZOOM,
    draw_ranges,
    new_figure,
    styled,
)
from channelfit.results.uncertainty.estimate import LEVEL, Estimate, quantile
from channelfit.results.uncertainty.families import FitFamily
from channelfit.results.uncertainty.posterior import INSTALL, Posterior
from channelfit.results.uncertainty.profiles import Profile

if TYPE_CHECKING:
    from channelfit.model.channel import Parameter

_COLUMNS = 4
_UPRIGHT = 8  # characters of a name that stand beside each other where there are 0.75 inches
_ONE_PLACE = 0.01  # of the range: points closer than this look like one
_WRITTEN = 12  # parameters up to which a matrix has its numbers written into it


def intervals_figure(found: Estimate, title: str) -> Figure:
    """Draw every parameter's interval within its range, and the matrix of correlations."""
    n = len(found.names)
    side = max(2.4, 0.36 * n)
    with styled():
        below = 0.07 * max(map(len, briefs(found.names)))  # names that stand upright there
        figure = new_figure(6.4 + side + 1.2 + below, side + 1.0 + below, title)
        left, right = figure.subplots(1, 2, width_ratios=[6.4, side + 1.2])
        _draw_intervals(left, found)
        _draw_correlations(right, found)
        finish_layout(figure)
    return figure


def profiles_figure(found: Estimate, profiles: Sequence[Profile], title: str) -> Figure:
    """Draw chi square against each parameter: the profile, its interval, and the curvature's
    parabola.
    """
    columns = min(len(profiles), _COLUMNS)
    rows = math.ceil(len(profiles) / columns)
    with styled():
        # half a label of one picture and half of its neighbor's meet between them
        engine = ConstrainedLayoutEngine(w_pad=0.12)
        figure = new_figure(max(2.9 * columns, 5.8), 2.2 * rows + 0.5, title, engine)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for k, axis in enumerate(grid.flat):
            if k >= len(profiles):
                axis.set_visible(False)
                continue
            _draw_profile(axis, found, profiles[k])
            if k % columns == 0:
                axis.set_ylabel("χ² above the fit")
        handles = [
            Line2D([], [], color=SINGLE, marker="o", markersize=2.6, label="profile"),
            Line2D([], [], color=MUTED, linestyle="--", linewidth=0.9, label="from the curvature"),
            Line2D([], [], color=MUTED, linestyle=":", linewidth=0.8, label="limit"),
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=8)
        finish_layout(figure)
    return figure


def families_figure(found: Estimate, families: Sequence[FitFamily], title: str) -> Figure:
    """Draw where all good fits lie in the ranges of the parameters, one color for each family.

    The fits of a family are lines across the parameters and its medoid a bold one. Where there is
    one family alone they are points, since there is nothing to tell apart by following lines.
    """
    n = len(found.names)
    space = found.objective.space
    with styled():
        figure = new_figure(max(1.2 + 0.75 * n, 4.8), 4.0, title)
        axis = figure.subplots()
        for place in range(n):
            axis.axvline(place, color=DATA, linewidth=0.7, zorder=1)
        alone = len(families) == 1
        for k, family in reversed(list(enumerate(families))):
            color = COLORS[k % len(COLORS)]
            fits = (
                {"marker": "o", "markersize": 3, "linestyle": ""} if alone else {"linewidth": 0.7}
            )
            axis.plot(family.unit, color=color, alpha=0.4, zorder=2, **fits)
            axis.plot(
                family.unit[:, family.medoid],
                "o" if alone else "o-",
                color=color,
                linewidth=1.8,
                markersize=6 if alone else 4,
                zorder=3,
                label=_family_label(family),
            )
        axis.set_xlim(-0.3, n - 0.7)
        axis.set_ylim(-0.03, 1.03)
        names = briefs(found.names)
        upright = max(map(len, names)) > _UPRIGHT
        axis.set_xticks(range(n), names, rotation=90 if upright else 0, parse_math=False)
        axis.set_ylabel("position within the range")
        free = [space.parameters[i] for i in space.free]
        if any(p.scale == "log" for p in free):
            axis.set_xlabel("in a range of log scale, the position of the logarithm")
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(
            handles[::-1][:8],
            labels[::-1][:8],
            loc="lower right" if alone else "upper left",
            bbox_to_anchor=(1, 1),
            fontsize=8,
        )
        finish_layout(figure)
    return figure


def _family_label(family: FitFamily) -> str:
    """Return how many fits are in a family, and how much worse its best one is than the best of
    all.
    """
    count, above = family.unit.shape[1], float(family.chi_square[family.best])
    fits = f"{count} fit{'s' * (count > 1)}"
    if count > 1 and np.ptp(family.unit, axis=1).max() < _ONE_PLACE:
        fits += " in one place"
    if above <= 0:
        return f"{fits}, the best among them" if count > 1 else "the best fit"
    return f"{fits}, χ² {above:.2g} above the best"


def posterior_figure(found: Estimate, posterior: Posterior, title: str) -> Figure:
    """Draw the posterior of every pair of parameters, with the fit in it.

    Raises: InputError when the package corner is missing.
    """
    try:
        import corner  # an optional package
    except ImportError:
        raise InputError(f"this picture needs corner; {INSTALL} installs it") from None
    samples, truths, labels = _coordinates(found, posterior)
    with styled({"font.size": 8, "lines.linewidth": 1.0}):
        size = max(1.25 * len(samples) + 0.8, 4.0)
        figure = new_figure(size, size, layout=None)
        corner.corner(
            samples.T,
            fig=figure,
            labels=[_plain(label) for label in labels],
            truths=truths,
            truth_color=COLORS[1],
            color=SINGLE,
            range=[_span(row) for row in samples],
            quantiles=(0.025, 0.975),
            plot_datapoints=False,
            fill_contours=True,
            smooth=1.0,
            levels=(0.39, 0.86),
            max_n_ticks=3,
            label_kwargs={"fontsize": 8},
            labelpad=0.12,
        )
        room = 0.95 / size
        figure.subplots_adjust(left=room, bottom=room, right=0.98, top=0.98)
        figure.suptitle(
            one_line(title),
            x=0.98,
            y=0.98,
            ha="right",
            va="top",
            fontsize=10.5,
            fontweight="bold",
            color=INK,
            parse_math=False,
        )
    return figure


def _coordinates(
    found: Estimate, posterior: Posterior
) -> tuple[np.ndarray, list[float], list[str]]:
    """Return the samples (n_free, n_samples), the fit, and a label of each; logarithms on a log
    scale.
    """
    space = found.objective.space
    free = [space.parameters[i] for i in space.free]
    values = found.objective.physical(found.unit[:, None])[list(space.free), 0]
    samples, truths, labels = [], [], []
    for parameter, row, value in zip(free, posterior.samples, values, strict=True):
        log = parameter.scale == "log"
        samples.append(np.log10(row) if log else row)
        truths.append(math.log10(value) if log else float(value))
        labels.append(_axis_label(parameter, log, 10))
    return np.array(samples), truths, labels


# --- parts of figures -----------------------------------------------------------------------------


def _draw_intervals(axis: Axes, found: Estimate) -> None:
    reach = quantile(LEVEL, found.freedoms) * found.errors
    rows = []
    for name, at, apart in zip(found.names, found.unit, reach, strict=True):
        ends = (max(at - apart, 0.0), min(at + apart, 1.0)) if math.isfinite(apart) else None
        rows.append(InRange(name, float(at), ends))
    draw_ranges(axis, rows)
    style: dict[str, Any] = {"ha": "left", "va": "center", "fontsize": 7.5, "color": INK}
    for k, text in enumerate(_interval_texts(found)):
        axis.text(1.05, k, text, parse_math=False, **style)
    axis.set_title("95 % intervals within the ranges", loc="left", fontsize=9, color=INK)


def _interval_texts(found: Estimate) -> list[str]:
    """Format value, interval and unit of every free parameter."""
    space = found.objective.space
    values = found.objective.physical(found.unit[:, None])[:, 0]
    texts = []
    for place, lower, upper in zip(space.free, *found.interval(), strict=True):
        unit = one_line(space.parameters[place].unit)
        text = interval_text(values[place], lower, upper)
        texts.append(text if unit == "1" else f"{text} {unit}")
    return texts


def _draw_correlations(axis: Axes, found: Estimate) -> None:
    names, n = briefs(found.names), len(found.names)
    matrix = found.correlations
    picture = axis.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set_xticks(
        range(n), names, rotation=90 if max(map(len, names)) > 4 else 0, parse_math=False
    )
    axis.set_yticks(range(n), names, parse_math=False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title("correlations", loc="left", fontsize=9, color=INK)
    if n <= _WRITTEN:
        for i in range(n):
            for j in range(n):
                if i != j and math.isfinite(matrix[i, j]):
                    color = "white" if abs(matrix[i, j]) > 0.6 else INK
                    text = f"{matrix[i, j]:.2f}".replace("0.", ".")
                    text = "0" if abs(matrix[i, j]) < 0.005 else text
                    axis.text(j, i, text, ha="center", va="center", fontsize=6.5, color=color)
    axis.figure.colorbar(picture, ax=axis, shrink=0.8, ticks=[-1, 0, 1])


def _draw_profile(axis: Axes, found: Estimate, profile: Profile) -> None:
    space = found.objective.space
    parameter = space.parameters[space.free[profile.place]]
    top = 2.2 * profile.threshold
    axis.axvspan(profile.lower, profile.upper, color=ZOOM, linewidth=0, zorder=0)
    axis.axhline(profile.threshold, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    error = found.errors[profile.place]
    if math.isfinite(error) and error > 0:
        line = np.linspace(profile.unit[profile.place, 0], profile.unit[profile.place, -1], 200)
        points = np.repeat(found.unit[:, None], len(line), axis=1)
        points[profile.place] = line
        values = found.objective.physical(points)[space.free[profile.place]]
        bowl = ((line - found.unit[profile.place]) / error) ** 2
        axis.plot(values, bowl, color=MUTED, linewidth=0.9, linestyle="--", zorder=2)
    seen = np.where(np.isfinite(profile.chi_square), profile.chi_square, np.nan)
    axis.plot(profile.values, seen, "o-", color=SINGLE, markersize=2.6, linewidth=1.3, zorder=3)
    axis.set_ylim(-0.04 * top, top)
    if parameter.scale == "log" and profile.values[-1] > 3 * profile.values[0]:
        axis.set_xscale("log")
        near = profile.values[-1] < 300 * profile.values[0]
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if near else (1,), numticks=5))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(3))
    axis.set_title(
        _axis_label(parameter, False), loc="left", fontsize=9, color=INK, parse_math=False
    )


def _axis_label(parameter: Parameter, log: bool, most: int = 24) -> str:
    unit = f" ({one_line(parameter.unit)})" if parameter.unit not in ("", "1") else ""
    return f"{'log10 ' if log else ''}{brief(parameter.name, most)}{unit}"


def _plain(text: str) -> str:
    """Escape a user's text where Matplotlib would read a formula."""
    return text.replace("$", r"\$")


def _span(row: np.ndarray) -> tuple[float, float]:
    """Return the range of an axis that shows samples of a parameter; it is never empty."""
    low, high = (float(x) for x in np.percentile(row, [0.05, 99.95]))
    room = 0.05 * (high - low) or 1e-9 + 1e-6 * abs(low)
    return low - room, high + room
