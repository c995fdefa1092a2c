"""What a picture of traces shows: numbers and words, gathered before anything is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.results.report.quality import Quality, explained, quality

if TYPE_CHECKING:
    from channelfit.problem.experiment import Experiment


@dataclass(frozen=True)
class Traces:
    """One experiment as it is drawn.

    result: (n_sweeps, n_times) pA, colored. data: the same shape, drawn dark, or None. weight: the
    same shape; residuals are drawn, and axes scaled, where it is above 0. rivals: other results of
    the same shape; all sweeps of a result are then in one color, `result` first.
    """

    protocol: Protocol
    result: np.ndarray
    data: np.ndarray | None = None
    weight: np.ndarray | None = None
    title: str = ""
    subtitle: tuple[str, ...] = ()
    rivals: tuple[np.ndarray, ...] = ()

    @property
    def results(self) -> tuple[np.ndarray, ...]:
        """All results, each (n_sweeps, n_times) pA."""
        return (self.result, *self.rivals)


@dataclass(frozen=True)
class Page:
    """A picture of traces: a panel an experiment, under a title and what is said beside it."""

    panels: tuple[Traces, ...]
    title: str = ""
    subtitle: str = ""


def fitted(experiment: Experiment, result: np.ndarray) -> Traces:
    """Recording and fit of one experiment, titled with its name and how good the fit is."""
    protocol, recording = experiment.protocol, experiment.recording
    if recording is None:
        return Traces(protocol, result, title=protocol.name)
    found = quality(result, recording.current_pA, recording.weight)
    return Traces(
        protocol, result, recording.current_pA, recording.weight, protocol.name, _in_words(found)
    )


def _in_words(found: Quality) -> tuple[str, ...]:
    """The figures of a fit, in two short parts."""
    if not math.isfinite(found.rms_pA):
        return ()
    share = found.rms_relative_to_peak
    of_peak = "" if share is None else f", {100 * share:.2g} % of the peak"
    rest = [f"peaks off by {found.peak_error_pA:.3g} pA"]
    if found.variance_explained is not None:
        rest.insert(0, f"variance explained {explained(found.variance_explained)}")
    return f"RMS {found.rms_pA:.3g} pA{of_peak}", ", ".join(rest)
