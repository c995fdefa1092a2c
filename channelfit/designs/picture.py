"""The picture of a design: command, currents, and what each segment tells of each parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.results.report.plots import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Members whose currents are drawn, at most.
MOST_DRAWN = 20


def design_figure(
    protocol: Protocol,
    currents: np.ndarray,
    edges: np.ndarray,
    shares: np.ndarray,
    names: list[str],
    title: str,
) -> Figure:
    """Draw a designed protocol.

    Arguments:
        currents: (n_times, n_members) pA.
        edges: (n_segments + 1,) ms, where segments begin and end.
        shares: (n_segments, n_free) of the information about a parameter, each column 1 in sum.
        names: of the parameters.
        title: stands above all.
    """
    with styled():
        figure = new_figure(9.0, 4.2 + 0.22 * len(names), title)
        heights = [1.0, 1.2, 0.25 + 0.14 * len(names)]
        axes = figure.subplots(3, 1, sharex=True, height_ratios=heights)
        seconds = protocol.times_ms / 1e3
        axes[0].plot(seconds, protocol.voltage()[0], color="#444444", linewidth=0.9)
        axes[0].set_ylabel("command (mV)")
        some = currents[:, :MOST_DRAWN]
        axes[1].plot(seconds, some[:, 1:], color="#9bb8d3", linewidth=0.5)
        axes[1].plot(seconds, some[:, 0], color="#1f5a99", linewidth=0.9)
        axes[1].set_ylabel("current (pA)")
        grid = np.arange(len(names) + 1) - 0.5
        mesh = axes[2].pcolormesh(edges / 1e3, grid, 100 * shares.T, cmap="Blues", vmin=0)
        axes[2].set_yticks(range(len(names)), names)
        axes[2].invert_yaxis()
        axes[2].set_xlabel("time (s)")
        bar = figure.colorbar(mesh, ax=axes[2], pad=0.01)
        bar.set_label("% of its information")
        return figure
