"""Observed curves with the fit: figures in the shape of a paper's, x against y with error bars.

The numbers are in the units of the observations; a problem holds them in standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.csv_tables import csv_table
from channelfit.reading.files import write_text
from channelfit.results.report.picture_texts import briefs, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from channelfit.problem.experiment import Experiment
    from channelfit.results.report.curve_figures import CurveFigure

#: Of the table of all curves.
TABLE, PICTURE = "curves.csv", "curves.png"
_COLUMNS = 3


@dataclass(frozen=True, eq=False)
class ObservedCurve:
    """An observation as it is drawn, in the order of x.

    Attributes:
        title: of the experiment and the observation.
        x_label, y_label: of the axes.
        x, value, error: (n_sweeps,) what was observed; NaN where nothing was.
        n: (n_sweeps,) cells; NaN where that is not known.
        result: (n_sweeps,) predicted; rivals are those of other fits.
        held_out: whether it does not count in the fit.
    """

    title: str
    x_label: str
    y_label: str
    x: np.ndarray
    value: np.ndarray
    error: np.ndarray
    n: np.ndarray
    result: np.ndarray
    held_out: bool = False
    rivals: tuple[np.ndarray, ...] = ()

    @property
    def apart(self) -> np.ndarray:
        """(n_sweeps,) fit less observed, in standard errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = (self.result - self.value) / self.error
        return np.where(np.isfinite(apart), apart, np.nan)

    @property
    def rms(self) -> float:
        """Root mean square of fit less observed, in standard errors; NaN where nothing counts."""
        known = self.apart[np.isfinite(self.apart)]
        return float(np.sqrt(np.mean(known**2))) if known.size else math.nan

    def as_plain(self) -> dict[str, Any]:
        """Return it as it stands in ``summary.json``."""
        numbers = {
            name: [None if v != v else float(v) for v in getattr(self, name)]
            for name in ("x", "value", "error", "n", "result")
        }
        return {
            "name": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "rms_in_errors": None if math.isnan(self.rms) else self.rms,
            **numbers,
        }

    def figure(self, runs: Sequence[int] = (0,)) -> CurveFigure:
        """Describe its figure: points with error bars, and each fit as a line.

        Arguments:
            runs: the numbers of the fits, from which their colors follow.
        """
        # a summary needs no figures, whose modules load slowly
        from channelfit.results.report.curve_figures import CurveFigure, Series

        results = zip(runs, (self.result, *self.rivals), strict=True)
        lines = [Series(self.x, result, f"run{run}", line="solid") for run, result in results]
        points = Series(self.x, self.value, "data", "circle", line="", error=self.error)
        labels = (one_line(self.x_label), one_line(self.y_label))
        return CurveFigure("curve", *labels, (*lines, points), title=self.title)


def curves_of(experiment: Experiment, result: np.ndarray) -> list[ObservedCurve]:
    """Return the observations of an experiment with predicted numbers (n_curves, n_sweeps).

    There are none of a recording.
    """
    found = []
    for observation, row in zip(experiment.observations, result, strict=False):
        order = np.argsort(observation.x, kind="stable")
        order = order[np.isfinite(observation.x[order])]
        n = np.full(len(row), np.nan) if observation.n is None else observation.n
        x, value, error, n, fit = (
            one[order]
            for one in (
                *(observation.x, observation.value, observation.error, n),
                row / observation.scale,
            )
        )
        title, held_out = f"{experiment.title}: {observation.name}", experiment.weight == 0
        labels = observation.x_label, observation.label
        found.append(ObservedCurve(title, *labels, x, value, error, n, fit, held_out))
    return found


def save_curves(curves: Sequence[ObservedCurve], folder: Path) -> list[Path]:
    """Write a table of all curves into a folder, a row for each number; return the files."""
    if not curves:
        return []
    names = [curve.title for curve in curves for _ in curve.x]
    columns: list[tuple[str, Any]] = [("curve", names)]
    for heading, name in (
        *(("x", "x"), ("observed", "value"), ("standard error", "error"), ("n", "n")),
        *(("fit", "result"), ("fit - observed (standard errors)", "apart")),
    ):
        columns.append((heading, np.concatenate([getattr(curve, name) for curve in curves])))
    write_text(folder / TABLE, csv_table(columns, digits=9))
    return [folder / TABLE]


def curve_table(curve: ObservedCurve) -> tuple[list[str], list[list[float]]]:
    """Return the head and the rows of a table of one curve."""
    results = (curve.result, *curve.rivals)
    fits = ["fit"] if len(results) == 1 else [f"fit {k}" for k in range(1, len(results) + 1)]
    head = [one_line(curve.x_label), f"observed {one_line(curve.y_label)}", "standard error", "n"]
    columns = (curve.x, curve.value, curve.error, curve.n, *results)
    return [*head, *fits], [list(map(float, row)) for row in zip(*columns, strict=True)]


def observed_figure(
    curves: Sequence[ObservedCurve],
    title: str = "",
    subtitle: str = "",
    names: Sequence[str] = (),
) -> Figure:
    """Draw all curves beside each other, each in a panel.

    Arguments:
        names: of the fits, for a legend; none where there is one fit.
    """
    from channelfit.results.report.plots import COLORS, INK, new_figure, styled  # Matplotlib

    columns = min(len(curves), _COLUMNS)
    rows = math.ceil(len(curves) / columns)
    with styled({}):
        figure = new_figure(3.6 * columns, 2.9 * rows + 0.4)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis in axes[len(curves) :]:
            axis.set_axis_off()
        for axis, curve in zip(axes, curves, strict=False):
            for k, result in enumerate((curve.result, *curve.rivals)):
                axis.plot(curve.x, result, color=COLORS[k % len(COLORS)], linewidth=1.6)
            if axis is axes[0] and names:
                texts = briefs(names)
                figure.legend(axis.lines, texts, loc="outside lower center", ncols=len(texts))
            bars: dict[str, Any] = {"fmt": "o", "ms": 4, "mfc": "none", "capsize": 2}
            axis.errorbar(curve.x, curve.value, np.nan_to_num(curve.error), color=INK, **bars)
            axis.set_xlabel(one_line(curve.x_label), parse_math=False)
            axis.set_ylabel(one_line(curve.y_label), parse_math=False)
            axis.set_title(one_line(curve.title), fontsize="small", parse_math=False)
        both = ": ".join(filter(None, (one_line(title), subtitle)))
        if both:
            figure.suptitle(both, parse_math=False)
    return figure


def side_by_side_curves(runs: Sequence[Any]) -> list[tuple[ObservedCurve, tuple[int, ...]]]:
    """Join the curves of several runs that share what was observed, with the numbers of the runs.

    Arguments:
        runs: fits as a report describes them (`page_content.ReportedFit`).
    """
    found: list[tuple[ObservedCurve, tuple[int, ...]]] = []
    for number, run in enumerate(runs):
        for curve in run.curves:
            for k, (one, numbers) in enumerate(found):
                if number not in numbers and _same(one, curve):
                    joined = replace(one, rivals=(*one.rivals, curve.result))
                    found[k] = joined, (*numbers, number)
                    break
            else:
                found.append((curve, (number,)))
    return found


def _same(one: ObservedCurve, other: ObservedCurve) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("x", "value", "error"))
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    return same and (one.title, one.y_label) == (other.title, other.y_label)


def curve_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe in a line each how far the fit is from observed curves.

    Arguments:
        rows: the experiments of a summary.
    """
    lines, head = [], "curves"
    for row in rows:
        for one in row.get("observations", ()):
            rms, n = one["rms_in_errors"], sum(e is not None for e in one["value"])
            far = "nothing counts" if rms is None else f"RMS {rms:.3g} standard errors"
            lines.append(f"{head:<10} {one['name']}: {far} of {n} numbers")
            head = ""
    return lines
