"""The best fit so far over its data, computed from what a run has saved, beside the run itself.

The fit that goes on is not disturbed: `fit.yaml` is read by a process of its own
(`reading.second_process`), which computes the currents once more, with low priority.
The figures are Bokeh's; later data the pages put into those of traces themselves. Texts of a user
are given to Bokeh as labels of axes alone, never as formulas; colors are set by the page, since
they depend on whether the user prefers a dark one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Line, Plot, Scatter

from channelfit.front import kinds
from channelfit.problem.experiment import Experiment
from channelfit.reading.errors import InputError
from channelfit.reading.second_process import read_in_process
from channelfit.results.report.observed_curves import ObservedCurve, curves_of
from channelfit.results.report.page_figures import add_axes, add_glyph, curve_plot, zoomed_plot
from channelfit.results.report.trace_view import extreme_samples
from channelfit.scoring.scorer import make_scorer

#: Seconds that computing the traces may take.
_SECONDS = 300.0
#: Numbers that a page can show at a time, shared by all sweeps of all experiments, and how many
#: samples are shown of a sweep at least.
_MOST, _LEAST = 200_000, 200
#: The numbers of a curve of observations.
_OF_CURVE = ("x", "value", "error", "fit")
#: How much the process that computes gives way to others.
_NICE = 10


def traces_so_far(file: Path) -> list[dict[str, Any]]:
    """Return data and fit of each experiment of a saved fit, as few samples as a picture needs.

    Each curve of observations stands for itself.

    Arguments:
        file: `fit.yaml` of a run folder.

    Returns: for each recording its `title`, and `time` (ms), `data` and `fit` (pA), lists of the
        same length in which sweeps follow each other, apart by a None. Samples without a weight
        are missing from the data. For each curve of observations `title`, `x_label`, `y_label`,
        and in the unit of the observations `x`, `value`, `error` and `fit`, in the order of x.

    Raises InputError: the fit cannot be read, has no currents, or takes too long.
    """
    found = read_in_process(f"{__name__}:compute", file, "a fit", _SECONDS)
    rows: list[dict[str, Any]] = []
    while (title := found.get(f"{len(rows)} title")) is not None:
        row: dict[str, Any] = {"title": str(title)}
        of_curve = f"{len(rows)} x" in found
        if of_curve:
            row |= {name: str(found[f"{len(rows)} {name}"]) for name in ("x_label", "y_label")}
        for name in _OF_CURVE if of_curve else ("time", "data", "fit"):
            values = np.asarray(found[f"{len(rows)} {name}"], dtype=float).tolist()
            row[name] = [None if x != x else x for x in values]
        rows.append(row)
    return rows


def compute(file: Path) -> dict[str, np.ndarray | str]:
    """Return the traces as arrays, by the number of the experiment and a name."""
    if hasattr(os, "nice") and os.nice(0) < _NICE:
        os.nice(_NICE - os.nice(0))
    plan = kinds.with_currents(kinds.load_plan(file), "so there are no traces to show")
    try:
        values = plan.problem.values()
    except InputError as error:
        raise error.at(file) from None
    scorer = make_scorer(plan.problem, "cpu")  # a GPU belongs to the search
    simulated = scorer.simulate(values[:, None])
    pairs = [
        (e, trace[:, :, 0]) for e, trace in zip(plan.problem.experiments, simulated, strict=True)
    ]
    recorded = [(e, fit) for e, fit in pairs if not e.observations]
    n_sweeps = sum(len(fit) for _, fit in recorded)
    room = max(_LEAST, _MOST // (3 * max(1, n_sweeps)))
    found: dict[str, np.ndarray | str] = {}
    curves = [curve for e, fit in pairs for curve in curves_of(e, fit)]
    for k, curve in enumerate(curves, len(recorded)):
        own = (curve.x, curve.value, curve.error, curve.result)
        found |= {f"{k} {name}": row for name, row in zip(_OF_CURVE, own, strict=True)}
        texts = {"title": curve.title, "x_label": curve.x_label, "y_label": curve.y_label}
        found |= {f"{k} {name}": text for name, text in texts.items()}
    for k, (experiment, fit) in enumerate(recorded):
        found[f"{k} title"] = experiment.title
        rows = [
            np.pad(_thinned(sweep, room), ((0, 0), (0, 1)), constant_values=np.nan)
            for sweep in _sweeps(experiment, fit)
        ]
        for name, row in zip(("time", "data", "fit"), np.concatenate(rows, axis=1), strict=True):
            found[f"{k} {name}"] = row
    return found


def _sweeps(experiment: Experiment, fit: np.ndarray) -> Iterator[np.ndarray]:
    """Yield time, data where they count, and fit of each sweep, (3, n_times)."""
    recording, time = experiment.recording, experiment.protocol.times_ms
    data = np.full(fit.shape, np.nan)
    if recording is not None:
        data = np.where(recording.weight > 0, recording.current_pA, np.nan)
    for sweep in zip(data, fit, strict=True):
        yield np.stack([time, *sweep])


def _thinned(sweep: np.ndarray, room: int) -> np.ndarray:
    """Return time, data and fit (3, n) of a sweep: of each stretch the extremes of data and of fit.

    Arguments:
        sweep: (3, n_times); NaN where a sweep has ended or a sample is missing.
        room: about how many samples are kept at most; all, where there are no more.
    """
    rows = sweep[:, np.isfinite(sweep[1:]).any(axis=0)]
    size = -(-4 * rows.shape[1] // room)
    if size <= 4:
        return rows
    return np.asarray(np.take(rows, extreme_samples(list(rows[1:]), size), axis=1))


_HEIGHT = 300


def cost_figure(history: Mapping[str, Any]) -> Any:
    """Return a figure of best and median cost by generation, as Bokeh's JSON.

    Arguments:
        history: `generation`, `best` and `median`, in which None is missing, and the `scale` of
            the costs, "log" or "linear".
    """
    log = (False, history["scale"] == "log")
    plot = _figure("generation", "cost", log)
    source = _source(x=history["generation"], best=history["best"], median=history["median"])
    add_glyph(plot, source, Line(x="x", y="median", line_width=1.5), ["muted"])
    best = add_glyph(plot, source, Line(x="x", y="best", line_width=2.5), ["run0"])
    add_glyph(plot, source, Scatter(x="x", y="best", size=4), ["run0"]).name = "marks"
    tips = [("generation", "@x"), ("best", "@best{0.0000e+0}"), ("median", "@median{0.0000e+0}")]
    plot.add_tools(HoverTool(renderers=[best], tooltips=tips, mode="vline"))
    return json_item(plot)


def traces_figure(experiment: Mapping[str, Any]) -> Any:
    """Return a figure of data and fit by time, as Bokeh's JSON.

    Arguments:
        experiment: `time` (ms), `data` and `fit` (pA), in which None is missing.
    """
    plot = _figure("time (ms)", "current (pA)")
    source = _source(x=experiment["time"], data=experiment["data"], fit=experiment["fit"])
    # broad under thin: a good fit must not hide the data
    add_glyph(plot, source, Line(x="x", y="data", line_width=4, line_alpha=0.6), ["muted"])
    add_glyph(plot, source, Line(x="x", y="fit", line_width=1.5), ["run0"])
    return json_item(plot)


def observed_figure(curve: Mapping[str, Any]) -> Any:
    """Return a figure of observed numbers with their errors and the fit, as Bokeh's JSON.

    Arguments:
        curve: `x_label`, `y_label`, and `x`, `value`, `error` and `fit`, in which None is missing.
    """
    x, value, error, fit = (np.array(curve[name], dtype=float) for name in _OF_CURVE)
    title, x_label, y_label = (str(curve[name]) for name in ("title", "x_label", "y_label"))
    n = np.full(len(x), np.nan)
    drawn = ObservedCurve(title, x_label, y_label, x, value, error, n, fit)
    return json_item(curve_plot(drawn.figure(), _HEIGHT))


def _source(**columns: Sequence[float | None]) -> ColumnDataSource:
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}
    return ColumnDataSource(arrays)


def _figure(x: str, y: str, log: tuple[bool, bool] = (False, False)) -> Plot:
    plot = zoomed_plot(DataRange1d(), DataRange1d(), _HEIGHT, log)
    add_axes(plot, x, y, log=log)
    return plot
