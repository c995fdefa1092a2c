"""The figures of the page, made by Bokeh; later data the page puts into them itself.

No text of a user is ever given to Bokeh, which would read some of it as formulas; colors are set by
the page, since they depend on whether the user prefers a dark one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import BoxZoomTool, ColumnDataSource, HoverTool
from bokeh.plotting import figure

_HEIGHT = 300


def cost_figure(history: Mapping[str, Any]) -> Any:
    """Best and median cost by generation, as Bokeh's JSON.

    Arguments:
        history: `generation`, `best` and `median`, in which None is missing, and the `scale` of
            the costs, "log" or "linear".
    """
    plot = _figure("generation", "cost", y_axis_type=history["scale"])
    source = _source(x=history["generation"], best=history["best"], median=history["median"])
    plot.line("x", "median", source=source, name="second", line_width=1.5)
    best = plot.line("x", "best", source=source, name="first", line_width=2.5)
    plot.scatter("x", "best", source=source, name="marks", size=4)
    tips = [("generation", "@x"), ("best", "@best{0.0000e+0}"), ("median", "@median{0.0000e+0}")]
    plot.add_tools(HoverTool(renderers=[best], tooltips=tips, mode="vline"))
    return json_item(plot)


def traces_figure(experiment: Mapping[str, Any]) -> Any:
    """Data and fit by time, as Bokeh's JSON.

    Arguments:
        experiment: `time` (ms), `data` and `fit` (pA), in which None is missing.
    """
    plot = _figure("time (ms)", "current (pA)")
    source = _source(x=experiment["time"], data=experiment["data"], fit=experiment["fit"])
    # broad under thin: a good fit must not hide the data
    plot.line("x", "data", source=source, name="second", line_width=4, line_alpha=0.6)
    plot.line("x", "fit", source=source, name="first", line_width=1.5)
    return json_item(plot)


def _source(**columns: Sequence[float | None]) -> ColumnDataSource:
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}
    return ColumnDataSource(arrays)


def _figure(x: str, y: str, **settings: Any) -> Any:
    zoom = BoxZoomTool()
    plot = figure(
        height=_HEIGHT,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools=[zoom],
        active_drag=zoom,
        x_axis_label=x,
        y_axis_label=y,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        output_backend="canvas",
        **settings,
    )
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font_size = plot.axis.major_label_text_font_size = "12px"
    return plot
