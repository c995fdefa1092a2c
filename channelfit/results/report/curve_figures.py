"""The curves of a report, each figure described once: residuals, families of steps, the search.

A page draws them with Bokeh (`page_figures.draw_curves`), print with Matplotlib
(`print_figures.print_curves`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.results.report.page_content import ReportedFit, SharedRecording
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
        error: (n,) the standard errors of y, drawn as bars; None for none.
    """

    x: np.ndarray
    y: np.ndarray
    role: str
    points: str = ""
    line: str = "solid"
    error: np.ndarray | None = None


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


#: Lags that are drawn: a share of the longest sweep, and that many at most.
_SHARE, _MOST = 0.25, 400
#: The autocorrelation is drawn until well behind the lag at which it has first been as small as
#: noise for this many lags.
_QUIET, _BEYOND = 3, 4
#: Residuals below this share of the largest are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Autocorrelation:
    """The correlation of residuals with those a lag later, 1 at lag 0.

    Attributes:
        lags_ms: (n_lags,) from 0.
        values: (n_lags,)
        band: within this on either side of 0 lie 95 % of the values of independent noise.
    """

    lags_ms: np.ndarray
    values: np.ndarray
    band: float

    @property
    def table_lags_ms(self) -> np.ndarray:
        """A few of the lags, (8,) or fewer, for a table."""
        n = len(self.lags_ms)
        picks = np.unique(np.geomspace(1, max(n - 1, 1), 8).round().astype(int))
        return np.asarray(self.lags_ms[picks[picks < n]])

    def at(self, lag_ms: float) -> float:
        """Return the autocorrelation at the lag that is nearest to lag_ms."""
        return float(self.values[np.argmin(np.abs(self.lags_ms - lag_ms))])


def autocorrelation(
    apart: np.ndarray, weight: np.ndarray | None, sampling_ms: float
) -> Autocorrelation | str:
    """Return the autocorrelation of the residuals of one experiment.

    Only pairs of samples that both count are compared, within a sweep; each residual is weighed by
    the root of its weight, as in the cost.

    Arguments:
        apart: (n_sweeps, n_times) pA, fit less data.
        weight: the same shape; None for 1 everywhere.

    Returns: the reason in words, where there is none.
    """
    weight = np.ones_like(apart) if weight is None else weight
    counts = (weight > 0) & np.isfinite(apart)
    if counts.sum() < 16:
        return "too few samples count"
    rows = np.where(counts, np.sqrt(weight) * np.nan_to_num(apart), 0.0)
    size = float(np.abs(rows).max())
    if size == 0:
        return "the fit and the recording are the same"
    products = lagged_products(list(rows / size))
    pairs = lagged_products(list(counts.astype(float)))
    some = pairs > 0.5
    power = products[0] / pairs[0]
    lags = np.flatnonzero(some)
    lags = lags[lags <= max(8, round(_SHARE * apart.shape[1]))]
    values = products[lags] / np.round(pairs[lags]) / power
    band = 1.96 / math.sqrt(float(pairs[0]))
    last = _last(values, max(2 * band, 0.05))
    return Autocorrelation(lags[:last] * sampling_ms, values[:last], band)


def _last(values: np.ndarray, small: float) -> int:
    """Return how many lags are drawn: until well behind the first that are all small."""
    quiet = np.abs(values) < small
    for k in range(1, len(values) - _QUIET):
        if quiet[k : k + _QUIET].all():
            return min(len(values), max(_BEYOND * k, 24), _MOST)
    return min(len(values), _MOST)


def lagged_products(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Sum products of samples that are k apart, over all rows, for k = 0, 1, ..

    Computed by the Fourier transform. Returns: (n_times of the longest row,).
    """
    longest = max(len(row) for row in rows)
    total = np.zeros(longest)
    for row in rows:
        size = _fast_length(2 * len(row))
        power = np.abs(np.fft.rfft(row, size)) ** 2
        total[: len(row)] += np.fft.irfft(power, size)[: len(row)]
    return total


def _fast_length(n: int) -> int:
    """Return the least length from n on that is a product of 2, 3 and 5, which transforms fast."""
    while not _is_product(n):
        n += 1
    return n


def _is_product(n: int) -> bool:
    for factor in (2, 3, 5):
        while n % factor == 0:
            n //= factor
    return n == 1
