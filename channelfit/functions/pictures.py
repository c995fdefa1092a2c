"""Pictures of fitted functions: cost against candidates, and outputs against their targets."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from channelfit.functions.function import FunctionProblem
from channelfit.results.report.picture_texts import finish_layout
from channelfit.results.report.plots import COLORS, MUTED, SINGLE, new_figure, styled
from channelfit.search.loop import FitResult


def convergence_figure(problem: FunctionProblem, result: FitResult) -> Figure:
    """Draw best and median cost of every generation; beside it outputs against targets."""
    n = 2 if problem.data is not None else 1
    with styled():
        title = f"{problem.model.name}: cost {result.cost:.4g}"
        title = f"{title} after {result.evaluations:,} candidates"
        figure = new_figure(4.4 * n + 0.6, 3.6, title)
        axes = figure.subplots(1, n, squeeze=False)[0]
        _convergence(axes[0], result)
        if problem.data is not None:
            _outputs(axes[1], problem, result.values)
        finish_layout(figure)
    return figure


def _convergence(axes: Axes, result: FitResult) -> None:
    history = result.history
    at = history["evaluations"]
    for name, color, width in (("median", MUTED, 0.8), ("best", SINGLE, 1.4)):
        cost = history[f"{name}_cost"]
        axes.plot(at, np.where(np.isfinite(cost), cost, np.nan), color=color, lw=width, label=name)
    finite = history["best_cost"][np.isfinite(history["best_cost"])]
    if finite.size and (finite > 0).all():
        axes.set_yscale("log")
    axes.set(xlabel="candidates", ylabel="cost")
    axes.legend()


def _outputs(axes: Axes, problem: FunctionProblem, values: np.ndarray) -> None:
    assert problem.data is not None
    ends, k = [], 0
    for name, outputs in problem.outputs(np.asarray(values)[:, None]).items():
        targets = problem.data.targets[name]
        for j, (output, target) in enumerate(zip(outputs[:, :, 0], targets, strict=True), 1):
            label = name if len(targets) == 1 else f"{name}[{j}]"
            axes.plot(target, output, ".", ms=4, color=COLORS[k % len(COLORS)], label=label)
            ends += [target.min(), target.max()]
            k += 1
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=MUTED, lw=0.7, zorder=0)
    axes.set(xlabel="target", ylabel="output")
    if k <= 8:
        axes.legend()
