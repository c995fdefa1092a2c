"""A page of fits: the worst, those in the middle and the best, data and curve."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from channelfit.curves.data_files import labels_of
from channelfit.curves.table import DrawnSets, FitTable
from channelfit.curves.weights import sigma_of
from channelfit.results.report.picture_texts import brief, finish_layout
from channelfit.results.report.plots import INK, MUTED, SINGLE, new_figure, styled

_COLUMNS = 4
_POINTS = 400  # of a curve that is drawn


def fits_figure(table: FitTable, title: str) -> Figure | None:
    """Draw data and curve of some data sets, the worst first; None where no fit succeeded.

    Of a list of points of several inputs, data are drawn against the fit.
    """
    ranked = {name: pairs for name, pairs in table.ranked(_COLUMNS).items() if pairs}
    if not ranked:
        return None
    with styled():
        figure = new_figure(2.3 * _COLUMNS + 0.4, 2.1 * len(ranked) + 0.5, title)
        grid = figure.subplots(len(ranked), _COLUMNS, squeeze=False)
        for row, (name, pairs) in zip(grid, ranked.items(), strict=True):
            for axes in row[len(pairs) :]:
                axes.set_axis_off()
            for axes, (shown, k) in zip(row, pairs, strict=False):
                _draw(axes, shown, k, name)
        finish_layout(figure)
    return figure


def _draw(axes: Axes, shown: DrawnSets, k: int, name: str) -> None:
    data, curve = shown.problem.data, shown.problem.curve
    z = np.asarray(data.values[shown.first + k], float)
    sigma = None
    if data.sigma is not None:
        sigma = sigma_of(data, shown.first + k, shown.first + k + 1)[0]
    free = shown.values[k].astype(float)
    label = brief(labels_of(data, shown.first + k, shown.first + k + 1)[0])
    axes.set_title(f"{name}: {label}", fontsize=8, color=INK, parse_math=False)
    if len(data.axes) == 2:
        _image(axes, shown, z, free)
        return
    if len(curve.inputs) == 1:
        x = data.coordinates[curve.inputs[0]]
        fine = np.linspace(x.min(), x.max(), _POINTS)
        _points(axes, x, z, sigma, MUTED)
        axes.plot(fine, curve.values({curve.inputs[0]: fine}, free), color=SINGLE, lw=1.3)
        axes.set_xlabel(curve.inputs[0])
        return
    fitted = curve.values(data.at_points, free)
    _points(axes, fitted, z, sigma, SINGLE)
    ends = [np.nanmin([fitted, z]), np.nanmax([fitted, z])]
    axes.plot(ends, ends, color=MUTED, lw=0.7)
    axes.set(xlabel="fit", ylabel="data")


def _points(axes: Axes, x: np.ndarray, z: np.ndarray, sigma: np.ndarray | None, color: str) -> None:
    """Draw data, with bars of their standard errors, which leave the scale to the data."""
    axes.plot(x, z, "o", ms=2.6, color=color)
    if sigma is not None:
        ends = np.stack([np.stack([x, z - sigma], 1), np.stack([x, z + sigma], 1)], 1)
        axes.add_collection(LineCollection(list(ends), colors=color, linewidths=0.7), autolim=False)


def _image(axes: Axes, shown: DrawnSets, z: np.ndarray, free: np.ndarray) -> None:
    """Draw an image, and lines of equal height of its fit at a quarter, a half and three
    quarters.
    """
    data, curve = shown.problem.data, shown.problem.curve
    x, y = (data.coordinates[names[0]] for names in data.axes)
    axes.pcolormesh(x, y, z.reshape(len(y), len(x)), cmap="Greys", shading="nearest")
    fine = [np.linspace(c.min(), c.max(), 60) for c in (x, y)]
    at = dict(zip(curve.inputs, (fine[0][None, :], fine[1][:, None]), strict=True))
    f = np.broadcast_to(curve.values(at, free), (60, 60))
    low, high = float(f.min()), float(f.max())
    if np.isfinite([low, high]).all() and high > low:
        levels = [low + share * (high - low) for share in (0.25, 0.5, 0.75)]
        axes.contour(fine[0], fine[1], f, levels=levels, colors=SINGLE, linewidths=1.0)
    axes.set_aspect("equal")
    axes.set(xlabel=curve.inputs[0], ylabel=curve.inputs[1])
