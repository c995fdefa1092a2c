"""Figures as Python users get them: Matplotlib's, shown by a notebook without further words."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

from channelfit.results.report.observed_curves import observed_figure
from channelfit.results.report.plots import traces_figure, write
from channelfit.results.report.traces import TracePicture


def traces_picture(page: TracePicture) -> Figure:
    """Return command voltage, current, data and residuals of the panels of a page."""
    if not page.panels:
        return shown_in_notebooks(observed_figure(page.curves, page.title, page.subtitle))
    return shown_in_notebooks(traces_figure(page.panels, page.title, page.subtitle))


def shown_in_notebooks(figure: Figure) -> Figure:
    """Return the same figure, which a notebook shows though `pyplot` does not know of it."""
    shown: Any = figure

    def png() -> bytes:
        buffer = io.BytesIO()
        write(figure, buffer)
        return buffer.getvalue()

    shown._repr_png_ = png
    return figure
