"""The picture of a comparison: recordings, the fits of several schemes, and their residuals."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from channelfit.results.comparison import Contender
from channelfit.results.report.plots import traces_figure
from channelfit.results.report.traces import Traces


def comparison_figure(contenders: Sequence[Contender], title: str) -> Figure:
    """Draw one panel for each experiment: the recording, all fits over it, and their residuals.

    Arguments:
        contenders: the schemes, all fitted to the same experiments, in the order of the legend.
        title: stands above the panels.
    """
    panels = []
    for k, experiment in enumerate(contenders[0].fit.problem.experiments):
        recording, first = experiment.recording, contenders[0].winner.traces[k]
        panels.append(
            Traces(
                experiment.protocol,
                first,
                None if recording is None else recording.current_pA,
                None if recording is None else recording.weight,
                experiment.title + ("" if experiment.weight > 0 else ", held out"),
                rivals=tuple(c.winner.traces[k] for c in contenders[1:]),
            )
        )
    labels = [c.label for c in contenders]
    return traces_figure(panels, title, names=("data", *labels, "fit − data"))
