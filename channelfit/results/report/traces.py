"""The traces of an experiment with its fit, collected before anything is drawn, and as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.files import write_text
from channelfit.results.quality import Quality, explained, quality

if TYPE_CHECKING:
    from channelfit.problem.experiment import Experiment
    from channelfit.results.report.observed_curves import ObservedCurve


@dataclass(frozen=True)
class Traces:
    """One experiment as it is drawn.

    Attributes:
        protocol: gives the times and the command voltage.
        result: (n_sweeps, n_times) pA, the predicted current, drawn in color.
        data: (n_sweeps, n_times) pA, the recording, drawn dark; None where there is none.
        weight: (n_sweeps, n_times); residuals are drawn, and axes scaled, where it is above 0.
        title, subtitle: stand above the panel.
        rivals: other results of the same shape. With them all sweeps of one result have one color.
        membrane: (n_sweeps, n_times) mV, the potential of the membrane in `result`; None where it
            is the command.
        spread: (n_sweeps, n_times) pA, the standard deviation with which `result` is expected, of
            which a band of two to either side is drawn; None for a mean current.
    """

    protocol: Protocol
    result: np.ndarray
    data: np.ndarray | None = None
    weight: np.ndarray | None = None
    title: str = ""
    subtitle: tuple[str, ...] = ()
    rivals: tuple[np.ndarray, ...] = ()
    membrane: np.ndarray | None = None
    spread: np.ndarray | None = None

    @property
    def band(self) -> tuple[np.ndarray, ...]:
        """The lower and the upper edge of the band, (n_sweeps, n_times) pA; none without spread."""
        return () if self.spread is None else tuple(self.result + k * self.spread for k in (-2, 2))

    @property
    def results(self) -> tuple[np.ndarray, ...]:
        """All results, `result` first, each (n_sweeps, n_times) pA."""
        return (self.result, *self.rivals)

    @property
    def counts(self) -> np.ndarray:
        """The samples that count, (n_sweeps, n_times) bool: those with a weight, and with data."""
        counts = np.ones(self.result.shape, bool) if self.weight is None else self.weight > 0
        return counts if self.data is None else counts & np.isfinite(self.data)


@dataclass(frozen=True)
class TracePicture:
    """A picture of traces: a panel for each recording, under a title and a subtitle.

    Observed curves stand in a picture of their own.
    """

    panels: tuple[Traces, ...]
    title: str = ""
    subtitle: str = ""
    curves: tuple[ObservedCurve, ...] = ()


def fitted(
    experiment: Experiment,
    result: np.ndarray,
    membrane: np.ndarray | None = None,
    spread: np.ndarray | None = None,
) -> Traces:
    """Return recording and fit of one experiment, titled with its name and with how good the fit
    is.

    Arguments:
        result: (n_sweeps, n_times) pA, the fit.
        membrane: (n_sweeps, n_times) mV, the potential of its membrane; None for the command.
        spread: as of `Traces`.
    """
    protocol, recording = experiment.protocol, experiment.recording
    if recording is None:
        return Traces(protocol, result, title=experiment.title, membrane=membrane, spread=spread)
    found = quality(result, recording.current_pA, recording.weight)
    return Traces(
        protocol,
        result,
        recording.current_pA,
        recording.weight,
        experiment.title,
        _in_words(found),
        membrane=membrane,
        spread=spread,
    )


def _in_words(found: Quality) -> tuple[str, ...]:
    """Describe how good a fit is in two short parts; an empty tuple where nothing counts."""
    if not math.isfinite(found.rms_pA):
        return ()
    share = found.rms_relative_to_peak
    of_peak = "" if share is None else f", {100 * share:.2g} % of the peak"
    rest = [f"peaks off by {found.peak_error_pA:.3g} pA"]
    if found.variance_explained is not None:
        rest.insert(0, f"variance explained {explained(found.variance_explained)}")
    return f"RMS {found.rms_pA:.3g} pA{of_peak}", ", ".join(rest)


# --- as tables ----------------------------------------------------------------------------------


def table_names(n_experiments: int) -> list[str]:
    """Return the names of the files: a number for each experiment, where there are several."""
    if n_experiments <= 1:
        return ["traces.csv"]
    return [f"traces_{k + 1}.csv" for k in range(n_experiments)]


def save_tables(panels: Sequence[Traces], folder: Path) -> list[Path]:
    """Write a table of each experiment into a folder; none of them is ever seen half written."""
    files = []
    for name, panel in zip(table_names(len(panels)), panels, strict=False):
        file = folder / name
        write_text(file, table_text(panel))
        files.append(file)
    return files


def table_text(traces: Traces) -> str:
    """Return one experiment as CSV: a row a sample, nine digits, empty cells where nothing is
    known.

    Columns: time (ms), and for each sweep its command (mV), the membrane's potential (mV) where it
    is another, data (pA) and weight where there is a recording, fit (pA) and, of single channels,
    the standard deviation (pA) with which it is expected.
    """
    protocol = traces.protocol
    command = protocol.command()
    columns = [("time (ms)", protocol.times_ms.round(9))]
    for k in range(protocol.n_sweeps):
        columns.append((f"sweep {k + 1} command (mV)", command[k]))
        over = np.isnan(command[k])  # the sweep has ended
        if traces.membrane is not None:
            potential = np.where(over, np.nan, traces.membrane[k])
            columns.append((f"sweep {k + 1} membrane (mV)", potential))
        if traces.data is not None:
            weight = np.ones_like(traces.result) if traces.weight is None else traces.weight
            columns.append((f"sweep {k + 1} data (pA)", traces.data[k]))
            columns.append((f"sweep {k + 1} weight", np.where(over, np.nan, weight[k])))
        columns.append((f"sweep {k + 1} fit (pA)", np.where(over, np.nan, traces.result[k])))
        if traces.spread is not None:
            columns.append((f"sweep {k + 1} spread (pA)", traces.spread[k]))
    return csv_table(columns, digits=9)
