"""The picture of a simulated cell: the stimulus, and the voltage with its band."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from channelfit.cells.results import CONTROL, CellResult
from channelfit.results.report.plots import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {CONTROL: "#1f5a99"}
_OTHER = "#c2571a"


def _unit(largest_pA: float) -> tuple[float, str]:
    """Return a factor, in pA, and its name, for currents up to some size."""
    units = {1e6: "µA", 1e3: "nA"}
    return next((one for one in units.items() if largest_pA >= one[0]), (1.0, "pA"))


def cell_figure(found: CellResult) -> Figure:
    """Draw the stimulus, the voltage of all sweeps and, where they were kept, the currents.

    Lines are those of one parameter set, with the band of all.
    """
    cell, times = found.cell, found.cell.times_ms
    rows = len(found.control.trace)
    names = ["voltage (mV)", *(f"{name} (pA)" for name in cell.membrane.channels)]
    with styled():
        figure = new_figure(8.0, 2.2 + 1.4 * rows, cell.name)
        heights = [0.4, 1.6, *(1.0 for _ in range(rows - 1))]
        axes = figure.subplots(rows + 1, 1, sharex=True, height_ratios=heights)
        injected = cell.stimulus.means(times)
        factor, unit = _unit(float(np.abs(injected).max()))
        for sweep in injected:
            axes[0].plot(times[:-1], sweep / factor, color="#444444", linewidth=0.9)
        axes[0].set_ylabel(unit)
        for key, run in found.runs.items():
            color = _COLORS.get(key, _OTHER)
            for axis, row in zip(axes[1:], range(rows), strict=True):
                one = run.trace[row][..., found.control.typical]
                for k, (low, _, high) in enumerate(run.band(row).transpose(1, 0, 2)):
                    axis.fill_between(times, low, high, color=color, alpha=0.2, linewidth=0)
                    label = key if k == 0 else None
                    axis.plot(times, one[k], color=color, linewidth=0.9, label=label)
                axis.set_ylabel(names[row])
        for (_, place), course in zip(cell.traces, found.control.trace[0], strict=True):
            if place is not None:
                v = course[:, found.control.typical]
                top = int(v.argmax())
                axes[1].text(times[top], v[top] + 3, f"{1e-3 * place:g} mm", ha="center", size=8)
        if found.changed is not None:
            axes[1].legend(loc="upper right")
        axes[-1].set_xlabel("time (ms)")
        return figure
