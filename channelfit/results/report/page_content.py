"""The traces, numbers and texts of a report, collected before anything is drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.results.report.traces import TracePicture, Traces

if TYPE_CHECKING:
    from channelfit.results.report.observed_curves import ObservedCurve


@dataclass(frozen=True)
class SchemeStep:
    """One transition.

    Attributes:
        source, target: states.
        multiplicity: by which the rate is multiplied.
        rate: as an expression; math_text: the same as Matplotlib sets it.
    """

    source: str
    target: str
    multiplicity: int
    rate: str
    math_text: str


@dataclass(frozen=True)
class SchemeChain:
    """One chain of states.

    Attributes:
        is_gate: whether it is a gate, of which `power` are alike.
        states: in the author's order. conducting: which of them let current through.
        transitions: between them.
    """

    name: str
    is_gate: bool
    power: int
    states: tuple[str, ...]
    conducting: tuple[bool, ...]
    transitions: tuple[SchemeStep, ...]


@dataclass(frozen=True)
class ModelScheme:
    """The model of a fit as drawings and reports describe it.

    Attributes:
        source: where the model is from.
        definitions: `name = expression` each, as Matplotlib sets it.
    """

    name: str
    source: str
    chains: tuple[SchemeChain, ...]
    definitions: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """The facts of a fit besides its traces, as the process that writes the report receives them.

    Attributes:
        summary_json: the text of ``summary.json``.
        scheme: of the model; None for a fit of a function.
        reversals_mV: of each experiment, the reversal potential of the current, where that is one
            conductance times one driving force; else the reason why there is none, in words.
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
        curves: what was observed, with the fit.
    """

    label: str
    summary: Mapping[str, Any]
    panels: tuple[Traces, ...]
    scheme: ModelScheme | None
    reversals_mV: tuple[float | str, ...]
    history: np.ndarray
    curves: tuple[ObservedCurve, ...] = ()

    @property
    def recorded(self) -> list[Mapping[str, Any]]:
        """The experiments of the summary that are recordings, one for each panel."""
        return [row for row in self.summary.get("experiments", ()) if "observations" not in row]

    @property
    def title(self) -> str:
        """The name of the fit, else of its model."""
        return str(self.summary.get("name") or self.summary.get("model") or self.label)


def reported_fit(label: str, picture: TracePicture | None, facts: Facts) -> ReportedFit:
    """Put traces and facts of a fit together for its report.

    Arguments:
        label: its name among the fits of the same report.
        picture: its traces; None for a fit of a function, which has none.
    """
    summary = json.loads(facts.summary_json)
    panels = () if picture is None else picture.panels
    curves = () if picture is None else picture.curves
    known = facts.scheme, facts.reversals_mV, facts.history, curves
    return ReportedFit(label, summary, panels, *known)


# --- several fits beside each other --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SharedRecording:
    """One recording, or protocol, with the fits of all runs that have it.

    Attributes:
        traces: the recording with the fit of the first of these runs; its rivals are the others.
        runs: which runs these are, counted from 0.
        places: which experiment it is in each of these runs, counted from 0.
        reversal_mV: the reversal potential in the first of these runs; see `Facts`.
    """

    traces: Traces
    runs: tuple[int, ...]
    places: tuple[int, ...]
    reversal_mV: float | str


def side_by_side(runs: Sequence[ReportedFit]) -> list[SharedRecording]:
    """Join the fits of several runs that share a recording."""
    found: list[SharedRecording] = []
    for number, run in enumerate(runs):
        for place, panel in enumerate(run.panels):
            for k, shared in enumerate(found):
                if number not in shared.runs and _same_data(shared.traces, panel):
                    rivals = (*shared.traces.rivals, panel.result)
                    found[k] = replace(
                        shared,
                        traces=replace(shared.traces, rivals=rivals, membrane=None),
                        runs=(*shared.runs, number),
                        places=(*shared.places, place),
                    )
                    break
            else:
                reversal = run.reversals_mV[place]
                found.append(SharedRecording(panel, (number,), (place,), reversal))
    return found


def _same_data(a: Traces, b: Traces) -> bool:
    """Return whether two experiments are of one command and one recording."""
    if a.protocol.sweeps != b.protocol.sweeps or a.result.shape != b.result.shape:
        return False
    if a.protocol.sampling_ms != b.protocol.sampling_ms or (a.data is None) != (b.data is None):
        return False
    return a.data is None or b.data is None or np.array_equal(a.data, b.data, equal_nan=True)


# --- where values lie in their ranges -------------------------------------------------------------


@dataclass(frozen=True)
class InRange:
    """One parameter in its range.

    Attributes:
        name: of the parameter.
        at: where its value lies, from 0 to 1.
        ends: where its interval begins and ends; None where none is known.
    """

    name: str
    at: float
    ends: tuple[float, float] | None


def position(value: float, lower: float, upper: float, logarithmic: bool) -> float:
    """Return where a value lies between two bounds, from 0 to 1.

    Arguments:
        logarithmic: whether the position of the logarithm is meant, where that exists.
    """
    value = min(max(value, lower), upper)
    if logarithmic and lower > 0:
        return math.log(value / lower) / math.log(upper / lower)
    return float((value - lower) / (upper - lower))


def in_range(name: str, row: Mapping[str, Any]) -> InRange | None:
    """Return where a parameter lies; None for one that is fixed or has no range.

    Arguments:
        row: of the parameter, as in ``summary.json``.
    """
    lower, upper = row["lower"], row["upper"]
    if lower is None or not lower < upper or row.get("note") == "fixed":
        return None
    logarithmic = "relative_error" in row
    at = position(row["value"], lower, upper, logarithmic)
    interval = row.get("interval")
    if not interval or None in interval:
        return InRange(name, at, None)
    low, high = (position(end, lower, upper, logarithmic) for end in interval)
    return InRange(name, at, (low, high))
