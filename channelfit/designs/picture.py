"""The picture of a design: command, currents, and each segment's information on each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from channelfit.designs.information import Pieces
from channelfit.problem.protocol import Protocol
from channelfit.results.report.plots import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Members whose currents are drawn, at most.
MOST_DRAWN = 20


def design_figure(
    protocol: Protocol,
    traces: Mapping[str, np.ndarray],
    pieces: Pieces,
    each: np.ndarray,
    names: list[str],
    title: str,
) -> Figure:
    """Draw a designed protocol.

    Arguments:
        traces: by title, (n_sweeps, n_times, n) pA, of which the first column is in front; sweeps
            are drawn one after the other.
        pieces: of the command.
        each: (n_pieces, n_rows) the information of each about a row.
        names: of the rows.
        title: stands above all.
    """
    n = int(pieces.segment[-1]) + 1
    edges = np.append(0.0, np.cumsum(np.bincount(pieces.segment, pieces.lengths, n)))
    shares = np.zeros((n, len(names)))
    np.add.at(shares, pieces.segment, each)
    shares /= np.maximum(shares.sum(axis=0), 1e-300)
    with styled():
        figure = new_figure(9.0, 2.2 + 2.0 * len(traces) + 0.22 * len(names), title)
        heights = [1.0, *(1.2 for _ in traces), 0.25 + 0.14 * len(names)]
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        command = protocol.voltage()
        seconds = np.arange(command.size) * protocol.sampling_ms / 1e3
        axes[0].plot(seconds, command.ravel(), color="#444444", linewidth=0.9)
        axes[0].set_ylabel("command (mV)")
        for axis, (label, trace) in zip(axes[1:], traces.items(), strict=False):
            trace = trace.reshape(command.size, -1)
            axis.plot(seconds, trace[:, 1:MOST_DRAWN], color="#9bb8d3", linewidth=0.5)
            axis.plot(seconds, trace[:, 0], color="#1f5a99", linewidth=0.9)
            axis.set_ylabel(label)
        grid = np.arange(len(names) + 1) - 0.5
        mesh = axes[-1].pcolormesh(edges / 1e3, grid, 100 * shares.T, cmap="Blues", vmin=0)
        axes[-1].set_yticks(range(len(names)), names)
        axes[-1].invert_yaxis()
        axes[-1].set_xlabel("time (s)")
        bar = figure.colorbar(mesh, ax=axes[-1], pad=0.01)
        bar.set_label("% of its information")
        return figure
