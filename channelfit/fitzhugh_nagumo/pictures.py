"""Pictures of a run: frames, space against time, an animation."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.fitzhugh_nagumo.simulation import Run, arrival_times
from channelfit.reading.files import write_bytes
from channelfit.results.report.plots import COLORS, INK, MUTED, new_figure, save, styled

VOLTAGE, RECOVERY = COLORS[:2]
#: The most frames and nodes that a picture of space and time shows.
_ROWS, _COLUMNS = 600, 1200
#: The most frames that a picture of frames shows, and how many of them stand side by side.
_FRAMES, _SIDE_BY_SIDE = 6, 3
_FRAMES_PER_SECOND = 20

__all__ = ["animate", "frames_figure", "save", "space_time_figure"]


def frames_figure(run: Run) -> Figure:
    """Draw v and w along the first cable of a run at up to six times, evenly chosen."""
    chosen = np.unique(np.linspace(0, len(run.times) - 1, _FRAMES).round().astype(int))
    columns = min(_SIDE_BY_SIDE, len(chosen))
    rows = -(-len(chosen) // columns)
    with styled():
        figure = new_figure(3.1 * columns + 0.4, 1.9 * rows + 0.5)
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in axes.flat[len(chosen) :]:
            axis.set_visible(False)
        for axis, k in zip(axes.flat, chosen, strict=False):
            _curves(axis, run.x, run.v[k, 0], run.w[k, 0])
            axis.set_title(f"t = {run.times[k]:.6g}", fontsize=9, color=INK, loc="left")
        axes[0, 0].set_ylim(*_limits(run))
        for axis in axes[-1]:
            axis.set_xlabel("x")
        axes[0, 0].legend(loc="upper right", ncols=2, fontsize=8)
    return figure


def space_time_figure(run: Run, threshold: float = 0.5) -> Figure:
    """Draw v of the first cable as a color over place and time, with the line of first arrival.

    Arguments:
        threshold: the v at which a wave has arrived.
    """
    with styled():
        figure = new_figure(6.4, 4.4)
        axis = figure.subplots()
        rows = np.unique(np.linspace(0, len(run.times) - 1, _ROWS).round().astype(int))
        nodes = np.unique(np.linspace(0, len(run.x) - 1, _COLUMNS).round().astype(int))
        low, high = _limits(run)
        mesh = axis.pcolormesh(
            run.x[nodes],
            run.times[rows],
            run.v[:, 0][np.ix_(rows, nodes)],
            cmap="viridis",
            vmin=low,
            vmax=high,
            shading="nearest",
            rasterized=True,
        )
        figure.colorbar(mesh, ax=axis, label="v", pad=0.02)
        arrived = arrival_times(run, threshold)
        if np.isfinite(arrived).any():
            axis.plot(run.x, arrived, color="white", lw=1, ls="--")
            axis.set_title(
                f"dashed: v first reaches {threshold:g}", fontsize=9, color=MUTED, loc="left"
            )
        axis.set_xlabel("x")
        axis.set_ylabel("t")
    return figure


def animate(run: Run, file: Path) -> None:
    """Write v and w of the first cable at all frames of a run as an animated .gif."""
    with styled():
        figure = new_figure(6.4, 2.8)
        axis = figure.subplots()
        v, w = _curves(axis, run.x, run.v[0, 0], run.w[0, 0])
        axis.set_ylim(*_limits(run))
        axis.set_xlabel("x")
        axis.legend(loc="upper right", ncols=2)
        label = axis.set_title("", fontsize=9, loc="left")
        writer = PillowWriter(fps=_FRAMES_PER_SECOND)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "animation.gif"  # it is not written to an open file
            with writer.saving(figure, str(made), dpi=90):
                for k, t in enumerate(run.times):
                    v.set_ydata(run.v[k, 0])
                    w.set_ydata(run.w[k, 0])
                    label.set_text(f"t = {t:.6g}")
                    writer.grab_frame()
            write_bytes(file, made.read_bytes())


def _curves(axis: Axes, x: Array, v: Array, w: Array) -> Sequence[mpl.lines.Line2D]:
    return [
        axis.plot(x, v, color=VOLTAGE, lw=1.4, label="v")[0],
        axis.plot(x, w, color=RECOVERY, lw=1.1, label="w")[0],
    ]


def _limits(run: Run) -> tuple[float, float]:
    v, w = run.v[:, 0], run.w[:, 0]
    low, high = min(float(v.min()), float(w.min())), max(float(v.max()), float(w.max()))
    margin = 0.05 * max(high - low, 1e-3)
    return low - margin, high + margin
