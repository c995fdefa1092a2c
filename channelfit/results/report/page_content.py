"""What a report says of a fit, collected before anything is drawn: traces, numbers and texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model
from channelfit.problem.clamp import words_of_clamps
from channelfit.results.report.traces import Page, Traces

if TYPE_CHECKING:
    from channelfit.search.loop import FitResult
    from channelfit.search.plan import FitPlan


@dataclass(frozen=True)
class Facts:
    """What a report says of a fit beside its traces, as it is sent to the process that writes it.

    Attributes:
        summary_json: what stands in ``summary.json``.
        model_json: the model's document and what it takes to build the model from it; empty for a
            fit of a function.
        reversals_mV: of each experiment, the reversal potential of a model whose current is one
            conductance times one driving force; None where it is not.
        history: (n_generations, 4): generation, candidates so far, seconds, lowest cost.
    """

    summary_json: str
    model_json: str
    reversals_mV: tuple[float | None, ...]
    history: np.ndarray


@dataclass(frozen=True, eq=False)
class Run:
    """One fit as a report tells of it.

    Attributes:
        label: what tells it from other fits in the same report.
        summary: as in ``summary.json``.
        panels: recording and fit of each experiment.
        model: what was fitted; None for a function.
    """

    label: str
    summary: Mapping[str, Any]
    panels: tuple[Traces, ...]
    model: ChannelModel | None
    reversals_mV: tuple[float | None, ...]
    history: np.ndarray

    @property
    def title(self) -> str:
        """The name of the fit, else of its model."""
        return str(self.summary.get("name") or self.summary.get("model") or self.label)


def facts_of(plan: FitPlan, result: FitResult, summary_json: str) -> Facts:
    """Collect what a report says of a fit.

    Arguments:
        summary_json: what stands in ``summary.json``.
    """
    history = _columns(result.history)
    if not plan.has_currents:
        return Facts(summary_json, "", (), history)
    celsius = (e.temperature_C for e in plan.problem.experiments)
    model = {
        "document": plan.document,
        "file": str(plan.model_file),
        "celsius": next((c for c in celsius if c is not None), None),
        "section": plan.section,
    }
    return Facts(
        summary_json, json.dumps(model, default=str), _reversals(plan, result.values), history
    )


def _columns(history: np.ndarray) -> np.ndarray:
    """The columns of a history that a report draws, (n_generations, 4)."""
    if not len(history):
        return np.empty((0, 4))
    if history.dtype.names:
        names = ("generation", "evaluations", "seconds", "best_cost")
        return np.column_stack([history[name].astype(float) for name in names])
    return np.asarray(history, dtype=float).reshape(len(history), -1)[:, :4]


def _reversals(plan: FitPlan, values: np.ndarray) -> tuple[float | None, ...]:
    """The reversal potential, mV, with which each experiment was simulated; see `Facts`."""
    problem = plan.problem
    found: list[float | None] = [None] * len(problem.experiments)
    ohmic = problem.model.ohmic
    if ohmic is None or ohmic.reversal is None:
        return tuple(found)
    for group in problem.groups:
        own = group.parameters(np.asarray(values, dtype=float)[:, None])[:, 0]
        names = dict(zip(group.problem.model.parameter_names, own.tolist(), strict=True))
        for place in group.places if group.clamp is None else ():
            found[place] = float(evaluate(ohmic.reversal, names))
    return tuple(found)


def run_of(label: str, page: Page | None, facts: Facts) -> Run:
    """Put together what a report says of one fit.

    Arguments:
        label: what tells it from others in the same report.
        page: its traces; None for a fit of a function, which has none.
    """
    summary = json.loads(facts.summary_json)
    model = None
    if facts.model_json:
        told = json.loads(facts.model_json)
        model = build_model(
            told["document"],
            Path(told["file"]),
            told["celsius"],
            words_of_clamps(told["section"]),
        )
    panels = () if page is None else page.panels
    return Run(label, summary, panels, model, facts.reversals_mV, facts.history)


def place_in_range(row: Mapping[str, Any], value: float) -> float:
    """Where a value lies in the range of a parameter, from 0 to 1; of the logarithm where the
    range was searched on a logarithmic scale.

    Arguments:
        row: of the parameter, as in ``summary.json``.
    """
    lower, upper = row["lower"], row["upper"]
    value = min(max(value, lower), upper)
    if "relative_error" in row and lower > 0:
        return math.log(value / lower) / math.log(upper / lower)
    return float((value - lower) / (upper - lower))


# --- several fits beside each other --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shown:
    """One recording, or protocol, with the fits of all runs that have it.

    Attributes:
        traces: the recording with the fit of the first of these runs; its rivals are the others.
        runs: which runs these are, counted from 0.
        places: which experiment it is in each of these runs, counted from 0.
    """

    traces: Traces
    runs: tuple[int, ...]
    places: tuple[int, ...]


def side_by_side(runs: Sequence[Run]) -> list[Shown]:
    """Lay the fits of several runs over the recordings that they share."""
    found: list[Shown] = []
    for number, run in enumerate(runs):
        for place, panel in enumerate(run.panels):
            for k, shown in enumerate(found):
                if number not in shown.runs and _same_data(shown.traces, panel):
                    found[k] = _joined(shown, panel, number, place)
                    break
            else:
                found.append(Shown(panel, (number,), (place,)))
    return found


def _same_data(a: Traces, b: Traces) -> bool:
    """Whether two experiments are of one command and one recording."""
    if a.protocol.sweeps != b.protocol.sweeps or a.result.shape != b.result.shape:
        return False
    if a.protocol.sampling_ms != b.protocol.sampling_ms or (a.data is None) != (b.data is None):
        return False
    return a.data is None or b.data is None or np.array_equal(a.data, b.data, equal_nan=True)


def _joined(shown: Shown, panel: Traces, number: int, place: int) -> Shown:
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
    return Shown(together, (*shown.runs, number), (*shown.places, place))
