"""The curves of a report, each figure described once: residuals, families of steps, the search.

A page draws them with Bokeh (`page_figures.draw_curves`), print with Matplotlib
(`print_figures.print_curves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.results.report.page_content import ReportedFit, SharedRecording
from channelfit.results.report.residuals import Autocorrelation, autocorrelation
from channelfit.results.report.step_families import StepCurve, StepFamily

#: The label of the vertical axis of a family's figure, by the unit of its curves.
_LABELS = {"pA": "current (pA)", "": "share of the greatest", "ms": "time (ms)"}


@dataclass(frozen=True, eq=False)
class Series:
    """One line or row of points.

    Attributes:
        x, y: (n,)
        role: "data", "run0", "run1", .. or "muted", from which its color follows.
        points: "circle" or "square", the marker of its points; empty for none.
        line: "solid" or "dashed"; empty for none.
    """

    x: np.ndarray
    y: np.ndarray
    role: str
    points: str = ""
    line: str = "solid"


@dataclass(frozen=True, eq=False)
class CurveFigure:
    """A figure of a few curves.

    Attributes:
        file: the name of its file in print, without the kind.
        x_label, y_label: of the axes; no texts of a user.
        log: whether the axes of x and of y are logarithmic.
        zero: whether a line marks zero.
        title: of the figure, in words; empty where its place in a page says it.
        notes: on the curves, in words.
    """

    file: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log: tuple[bool, bool] = (False, False)
    zero: bool = False
    title: str = ""
    notes: tuple[str, ...] = ()


def autocorrelation_figure(
    shared: SharedRecording,
) -> tuple[CurveFigure, list[Autocorrelation]] | str:
    """Describe the autocorrelation of the residuals of an experiment, under each fit.

    Returns: the figure, with the autocorrelation of each fit; or why there is none.
    """
    traces = shared.traces
    if traces.data is None:
        return "there is no recording to compare with"
    series, found = list[Series](), list[Autocorrelation]()
    for run, result in zip(shared.runs, traces.results, strict=True):
        one = autocorrelation(result - traces.data, traces.weight, traces.protocol.sampling_ms)
        if isinstance(one, str):
            return one
        series.append(Series(one.lags_ms, one.values, f"run{run}"))
        found.append(one)
    ends = np.array([0.0, float(series[0].x[-1])])
    for side in (-1, 1):
        level = np.full(2, side * max(one.band for one in found))
        series.append(Series(ends, level, "muted", line="dashed"))
    rows = tuple(series)
    return CurveFigure("residuals", "lag (ms)", "autocorrelation", rows, zero=True), found


def family_figures(family: StepFamily, runs: Sequence[int]) -> list[CurveFigure]:
    """Describe the figures of a family of steps: the fits as lines, the data as points.

    Largest current and current at the end stand in one figure.

    Arguments:
        runs: the numbers of the fits, from which their colors follow.
    """
    currents = [curve for curve in family.curves if curve.unit == "pA"]
    figures = []
    if currents:
        marks = ("", " (squares, dashed)")
        names = [curve.name + mark for curve, mark in zip(currents, marks, strict=False)]
        figures.append(_family_figure(family, runs, f"I–V: {' and '.join(names)}", currents))
    for curve in family.curves:
        if curve not in currents:
            title = curve.name[:1].upper() + curve.name[1:]
            figures.append(_family_figure(family, runs, title, [curve]))
    return figures


def _family_figure(
    family: StepFamily, runs: Sequence[int], title: str, curves: Sequence[StepCurve]
) -> CurveFigure:
    """Describe one figure of a family: a curve, or two of the same quantity."""
    series = []
    for place, curve in enumerate(curves):
        for run, result in zip(runs, curve.results, strict=True):
            line = "dashed" if place else "solid"
            series.append(Series(curve.x, result, f"run{run}", line=line))
        if curve.data is not None:
            marker = "square" if place else "circle"
            series.append(Series(curve.x, curve.data, "data", marker, line=""))
    notes = [f"data: {curve.data_fit}" for curve in curves if curve.data_fit]
    notes += [f"fit: {text}" for curve in curves for text in curve.result_fits if text]
    return CurveFigure(
        curves[0].file,
        f"{family.x_name} ({family.x_unit})",
        _LABELS[curves[0].unit],
        tuple(series),
        zero=curves[0].unit == "pA",
        title=title,
        notes=tuple(notes),
    )


def costs_of(runs: Sequence[ReportedFit]) -> tuple[list[np.ndarray], str]:
    """Return the lowest cost of each run after each generation, and the name of this quantity.

    Of currents it is the root of the cost, which is an RMS in pA.
    """
    of_currents = all(run.summary.get("rms_pA") is not None for run in runs)
    best = [run.history[:, 3] for run in runs]
    if of_currents:
        return [np.sqrt(cost) for cost in best], "lowest RMS so far (pA)"
    return best, "lowest cost so far"


def convergence_figure(runs: Sequence[ReportedFit]) -> CurveFigure | None:
    """Describe the lowest cost against the candidates scored so far; None where none is known."""
    costs, label = costs_of(runs)
    series = [
        Series(run.history[:, 1], best, f"run{k}")
        for k, (run, best) in enumerate(zip(runs, costs, strict=True))
        if np.isfinite(best).any()
    ]
    if not series:
        return None
    positive = all((one.y[np.isfinite(one.y)] > 0).all() for one in series)
    log = (True, positive)
    return CurveFigure("convergence", "candidates scored", label, tuple(series), log)
