"""The traces, numbers and texts of a report, collected before anything is drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.results.report.scheme_parts import ModelScheme
from channelfit.results.report.traces import TracePicture, Traces


@dataclass(frozen=True)
class Facts:
    """The facts of a fit beside its traces, as they are sent to the process that writes its report.

    Attributes:
        summary_json: the text of ``summary.json``.
        scheme: of the model; None for a fit of a function.
        reversals_mV: of each experiment, the reversal potential of a model whose current is one
            conductance times one driving force; None where it is not.
        history: (n_generations, 4): generation, candidates so far, seconds, lowest cost.
    """

    summary_json: str
    scheme: ModelScheme | None
    reversals_mV: tuple[float | str, ...]
    history: np.ndarray


@dataclass(frozen=True, eq=False)
class ReportedFit:
    """One fit as a report describes it.

    Attributes:
        label: its name among the fits of the same report.
        summary: as in ``summary.json``.
        panels: recording and fit of each experiment.
        scheme: of the model that was fitted; None for a function.
    """

    label: str
    summary: Mapping[str, Any]
    panels: tuple[Traces, ...]
    scheme: ModelScheme | None
    reversals_mV: tuple[float | str, ...]
    history: np.ndarray

    @property
    def title(self) -> str:
        """The name of the fit, else of its model."""
        return str(self.summary.get("name") or self.summary.get("model") or self.label)


def reported_fit(label: str, page: TracePicture | None, facts: Facts) -> ReportedFit:
    """Put traces and facts of a fit together for its report.

    Arguments:
        label: its name among the fits of the same report.
        page: its traces; None for a fit of a function, which has none.
    """
    summary = json.loads(facts.summary_json)
    panels = () if page is None else page.panels
    return ReportedFit(label, summary, panels, facts.scheme, facts.reversals_mV, facts.history)


# --- several fits beside each other --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SharedRecording:
    """One recording, or protocol, with the fits of all runs that have it.

    Attributes:
        traces: the recording with the fit of the first of these runs; its rivals are the others.
        runs: which runs these are, counted from 0.
        places: which experiment it is in each of these runs, counted from 0.
    """

    traces: Traces
    runs: tuple[int, ...]
    places: tuple[int, ...]


def side_by_side(runs: Sequence[ReportedFit]) -> list[SharedRecording]:
    """Lay the fits of several runs over the recordings that they share."""
    found: list[SharedRecording] = []
    for number, run in enumerate(runs):
        for place, panel in enumerate(run.panels):
            for k, shown in enumerate(found):
                if number not in shown.runs and _same_data(shown.traces, panel):
                    found[k] = _joined(shown, panel, number, place)
                    break
            else:
                found.append(SharedRecording(panel, (number,), (place,)))
    return found


def _same_data(a: Traces, b: Traces) -> bool:
    """Return whether two experiments are of one command and one recording."""
    if a.protocol.sweeps != b.protocol.sweeps or a.result.shape != b.result.shape:
        return False
    if a.protocol.sampling_ms != b.protocol.sampling_ms or (a.data is None) != (b.data is None):
        return False
    return a.data is None or b.data is None or np.array_equal(a.data, b.data, equal_nan=True)


def _joined(shown: SharedRecording, panel: Traces, number: int, place: int) -> SharedRecording:
    first = shown.traces
    together = Traces(
        first.protocol,
        first.result,
        first.data,
        first.weight,
        first.title,
        first.subtitle,
        (*first.rivals, panel.result),
    )
    return SharedRecording(together, (*shown.runs, number), (*shown.places, place))
