"""The figures of the pages of runs, made by Bokeh; later data the pages put into them themselves.

No text of a user is ever given to Bokeh, which would read some of it as formulas; colors are set by
the page, since they depend on whether the user prefers a dark one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Line, Plot, Scatter

from channelfit.results.report.page_figures import add_axes, add_glyph, zoomed_plot

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


def _source(**columns: Sequence[float | None]) -> ColumnDataSource:
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}
    return ColumnDataSource(arrays)


def _figure(x: str, y: str, log: tuple[bool, bool] = (False, False)) -> Plot:
    plot = zoomed_plot(DataRange1d(), DataRange1d(), _HEIGHT, log)
    add_axes(plot, x, y, log=log)
    return plot
