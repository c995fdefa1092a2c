"""Figures of recordings before any fit: as they are in a file, and as a fit takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from channelfit.problem.inspection import Inspection
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.results.report import sweeps
from channelfit.results.report.picture_texts import finish_layout, one_line
from channelfit.results.report.plots import (
    INK,
    MASK,
    MASKED,
    MUTED,
    SINGLE,
    draw_trace,
    fit_axis,
    new_figure,
    shade_masked,
    styled,
)
from channelfit.results.report.trace_view import current_unit, largest, time_unit
from channelfit.results.report.traces import Traces

_FEWEST_SWEEPS = 3


def inspection_figure(found: Inspection) -> Figure:
    """Draw command and current of a recording and, where there are several sweeps, their course.

    The ground is grey where capacitive transients were seen. Beside the traces stand the peaks of
    the sweeps, and the current at the holding potential, against the number that differs between
    the sweeps.
    """
    several = found.peak is not None and len(found.peak.by_sweep_pA) >= _FEWEST_SWEEPS
    with styled():
        heading = f"{found.file.name}  ({found.contents.format})"
        figure = new_figure(11.0 if several else 8.2, 5.4, heading)
        grid = figure.subplots(
            2,
            2 if several else 1,
            squeeze=False,
            sharex="col",
            height_ratios=[1.0, 2.2],
            width_ratios=[2.4, 1.0] if several else None,
        )
        _draw_traces(list(grid[:, 0]), found)
        if several:
            _draw_sweeps(list(grid[:, 1]), found)
        figure.align_ylabels(grid[:, 0])
        finish_layout(figure)
    return figure


def _draw_traces(axes: Sequence[Axes], found: Inspection) -> None:
    """Draw command and current of all sweeps below each other."""
    protocol, current = found.protocol, found.current_pA
    n_samples = current.shape[1] or (0 if protocol is None else protocol.n_times_max)
    n_samples = n_samples or found.contents.n_samples or 1
    h = found.sampling_ms if protocol is None else protocol.sampling_ms
    scale, unit = (1.0, "samples") if not math.isfinite(h) else time_unit(n_samples * h)
    h = h if math.isfinite(h) else 1.0
    key = None if protocol is None else sweeps.key_of(protocol)
    colors = sweeps.ramp(len(current)) if key is None else sweeps.colors(key)
    if protocol is not None:
        for row, color in zip(protocol.command(), colors, strict=True):
            draw_trace(axes[0], protocol.times_ms * scale, row, color)
        axes[0].set_ylabel("voltage (mV)")
    else:
        _say(axes[0], "the command is not known")
    if found.current is None:
        _say(axes[1], "no current in this file")
    else:
        t = np.arange(current.shape[1], dtype=float) * h * scale
        axis_pA = _seen(found)
        factor, name = current_unit(largest(axis_pA))
        for row, color in zip(current, colors, strict=True):
            draw_trace(axes[1], t, row * factor, color, 0.8)
        fit_axis(axes[1], axis_pA * factor)
        axes[1].set_ylabel(f"current ({name})")
    if protocol is not None and found.transient_ms > 0:
        for step in np.unique([t for k in range(len(colors)) for t in protocol.step_times_ms(k)]):
            for axis in axes:
                end = step + found.transient_ms
                axis.axvspan(step * scale, end * scale, color=MASK, linewidth=0, zorder=0)
    axes[1].set_xlabel(f"time ({unit})" if unit != "samples" else unit)
    axes[1].set_xlim(0, n_samples * h * scale)
    if key is not None and len(key.values) > 1:
        sweeps.draw_key(axes[1], key)
    axes[0].tick_params(axis="x", length=0)
    axes[0].spines["bottom"].set_visible(False)


def _seen(found: Inspection) -> np.ndarray:
    """Return the current that its axis must hold, pA: all but the transients, which may be cut
    off.
    """
    current = found.current_pA
    if found.protocol is None or found.protocol.n_times_max != current.shape[1]:
        return current
    visible, t = current.copy(), found.protocol.times_ms
    for k, row in enumerate(visible):
        for step in found.protocol.step_times_ms(k):
            row[(t >= step) & (t < step + found.transient_ms)] = np.nan
    return visible if np.isfinite(visible).any() else current


def _draw_sweeps(axes: Sequence[Axes], found: Inspection) -> None:
    """Draw peak and holding current of the sweeps against the number that differs between them."""
    assert found.peak is not None
    assert found.protocol is not None
    key = sweeps.key_of(found.protocol)
    order = np.argsort(key.values, kind="stable")
    for axis, values, label in (
        (axes[0], found.held_pA, "at rest"),
        (axes[1], found.peak.by_sweep_pA, "peak, median of 5"),
    ):
        factor, name = current_unit(largest(values))
        axis.plot(key.values[order], values[order] * factor, "o-", color=SINGLE, markersize=3.5)
        axis.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
        axis.set_ylabel(f"{label} ({name})")
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], min_n_ticks=2))
    axes[1].set_xlabel(key.label)


def _say(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", color=MUTED)
    axis.set_yticks([])


# --- as a fit takes them --------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A recording before and after it was prepared for a fit.

    Attributes:
        title: the experiment, in words.
        protocol: the command, as the fit takes it.
        before: (n_sweeps, n_times) pA, as it was recorded; None where it was not recorded at the
            times of the protocol.
        after: the recording that is scored, with its weights.
    """

    title: str
    protocol: Protocol
    before: np.ndarray | None
    after: Recording


def prepared_figure(panels: Sequence[Prepared], title: str) -> Figure:
    """Draw each experiment in a column: its command, the current as recorded and as it is fitted.

    The ground is grey where no sweep counts, and samples that do not count are pale.
    """
    with styled():
        wide = 8.2 if len(panels) == 1 else 4.8 * min(len(panels), 3)
        rows = math.ceil(len(panels) / 3)
        figure = new_figure(wide, 6.0 * rows, title)
        cells = figure.subfigures(rows, min(len(panels), 3), squeeze=False)
        for cell, panel in zip(cells.flat, panels, strict=False):
            axes = cell.subplots(3, 1, sharex=True, height_ratios=[1.0, 1.6, 1.6])
            _draw_prepared(axes, panel)
            cell.align_ylabels(axes)
        finish_layout(figure)
    return figure


def _draw_prepared(axes: Sequence[Axes], panel: Prepared) -> None:
    protocol, after = panel.protocol, panel.after
    scale, unit = time_unit(float(protocol.times_ms[-1]))
    t, colors = protocol.times_ms * scale, sweeps.colors(sweeps.key_of(protocol))
    counted = np.where(after.weight > 0, after.current_pA, np.nan)
    factor, name = current_unit(largest(counted))
    for row, color in zip(protocol.command(), colors, strict=True):
        draw_trace(axes[0], t, row, color)
    for axis, values in zip(axes[1:], (panel.before, after.current_pA), strict=True):
        for k, color in enumerate(colors):
            if values is None:
                continue
            draw_trace(axis, t, values[k] * factor, MASKED if axis is axes[2] else color, 0.8)
            if axis is axes[2]:
                draw_trace(axis, t, counted[k] * factor, color, 0.8)
    if panel.before is None:
        _say(axes[1], "the samples were not recorded at these times")
    else:
        fit_axis(axes[1], np.where(after.weight > 0, panel.before, np.nan) * factor)
    fit_axis(axes[2], counted * factor)
    shade_masked(list(axes), Traces(protocol, after.current_pA, after.current_pA, after.weight), t)
    axes[0].set_title(one_line(panel.title), loc="left", fontsize=9.5, color=INK, parse_math=False)
    axes[0].set_ylabel("voltage (mV)")
    axes[1].set_ylabel(f"as recorded ({name})")
    axes[2].set_ylabel(f"as fitted ({name})")
    axes[2].set_xlabel(f"time ({unit})")
    axes[2].set_xlim(0, float(t[-1]) if len(t) > 1 else None)
    if protocol.n_sweeps > 1:
        sweeps.draw_key(axes[2], sweeps.key_of(protocol))
