"""The best candidate of a search, scored once more, and the summary of a run as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.documents import read_json
from channelfit.reading.errors import Caution, InputError
from channelfit.reading.saved import FLAG, NUMBER, PLAIN, TEXT, WHOLE, Each, Listed, check_shape
from channelfit.results.files import SUMMARY, file_beside
from channelfit.results.identity import file_hashes
from channelfit.results.mistiming import mistimed
from channelfit.results.quality import FIGURES, Quality, pooled, quality
from channelfit.results.report.observed_curves import curves_of
from channelfit.results.run_state import moment, parameter_row
from channelfit.results.uncertainty import assessment
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import machine, versions
from channelfit.scoring.scorer import make_scorer

if TYPE_CHECKING:
    from channelfit.problem.experiment import Experiment
    from channelfit.scoring.scorer import ChannelScorer, Scorer
    from channelfit.search.loop import FitResult
    from channelfit.search.plan import FitPlan


#: What is minimized with channel noise, in ``summary.json``.
LIKELIHOOD = "likelihood of channel noise"


@dataclass(frozen=True, eq=False)
class Winner:
    """The best candidate of a search, scored once more in float64 from its traces.

    Attributes:
        values: (n_parameters,), base units.
        traces: per experiment (n_sweeps, n_times) pA.
        parts: the quality of the fit of each experiment, None where it has no recording.
        quality: the same of all recordings with a weight together, or of all observations where
            no recording has one.
        mean_square: the same of recordings and observations, pA^2 or squared standard errors.
        deviation_pA: the largest difference between these traces and those in the precision of the
            search; 0 when that was float64.
        likelihood_cost: pA^2, the cost where it is the likelihood of channel noise; else None.
        spreads: per experiment (n_sweeps, n_times) pA, the standard deviation with which a current
            of channels is expected; else none.
    """

    values: np.ndarray
    traces: list[np.ndarray]
    parts: list[Quality | None]
    quality: Quality
    mean_square: float
    deviation_pA: float
    likelihood_cost: float | None = None
    spreads: tuple[np.ndarray, ...] = ()

    @property
    def cost(self) -> float:
        """The mean square of the residuals, pA^2, or the cost of the likelihood."""
        likelihood = self.likelihood_cost
        return self.mean_square if likelihood is None else likelihood

    @property
    def rms(self) -> float:
        """The root mean square of the residuals, pA or standard errors."""
        return self.quality.rms_pA


def rescore(fit: FitPlan, scorer: ChannelScorer, values: np.ndarray) -> Winner:
    """Return traces and cost of one candidate (n_parameters,) in float64."""
    column = np.asarray(values, dtype=float)[:, None]
    traces = [c[:, :, 0] for c in scorer.simulate(column)]
    deviation = 0.0
    if scorer.dtype != "float64":
        exact = make_scorer(fit.problem, scorer.backend, "float64")
        exact_traces = [c[:, :, 0] for c in exact.simulate(column)]
        pairs = zip(traces, exact_traces, strict=True)
        deviation = max(float(np.nanmax(np.abs(a - b))) for a, b in pairs)
        traces = exact_traces
    parts = [
        None if e.recording is None else quality(t, e.recording.current_pA, e.recording.weight)
        for e, t in zip(fit.problem.experiments, traces, strict=True)
    ]
    rows = list(zip(fit.problem.experiments, parts, strict=True))
    everything = pooled((p, e.weight) for e, p in rows if p is not None)
    whole = everything
    if fit.problem.has_recordings:  # peaks and variance are those of currents
        whole = pooled((p, e.weight) for e, p in rows if p is not None and not e.observations)
    found = Winner(column[:, 0], traces, parts, whole, everything.mean_square, deviation)
    if fit.problem.noise is None:
        return found
    from channelfit.scoring.channel_noise import NoiseScorer  # loads SymPy

    assert isinstance(scorer, NoiseScorer)
    cost = float(scorer.score(column).cost[0])
    spreads = tuple(one[..., 1] for one in scorer.predicted(column[:, 0]))
    return replace(found, likelihood_cost=cost, spreads=spreads)


def summarize(
    fit: FitPlan, result: FitResult, scorer: ChannelScorer, winner: Winner
) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    if scorer.dtype == "float64":
        exact = scorer
    else:
        exact = make_scorer(fit.problem, scorer.backend, "float64")
    uncertainty, errors, noise = _uncertainty(fit, exact, winner)
    cautions = (*fit.cautions, *mistimed(fit, exact, winner.values, winner.traces))
    rows = parameter_rows(fit, result) | _ties(fit, result.values)
    return {
        **titles(fit),
        "model": fit.problem.model.name,
        "file": str(fit.file),
        "cost": winner.cost,
        **(winner.quality.as_plain() if fit.problem.has_recordings else {}),
        "parameters": {name: row | errors.get(name, {}) for name, row in rows.items()},
        "uncertainty": uncertainty,
        **noise,
        "experiments": [
            {
                "protocol": e.protocol.name,
                **(_observed(e, trace) or (part or Quality()).as_plain()),
                "weight": e.weight,
                **_sources(e),
            }
            for e, trace, part in zip(
                fit.problem.experiments, winner.traces, winner.parts, strict=True
            )
        ],
        "membrane": _membrane(fit.document),
        "surrogate": {"noise_pA": fit.noise_pA} if fit.surrogate else None,
        **({"minimized": fit.cost.name} if fit.cost else {}),
        **({"minimized": LIKELIHOOD} if fit.problem.noise else {}),
        "warnings": [asdict(caution) for caution in cautions],
        "agreement": result.agreement,
        "failing_examples": fit.failing_examples() if result.failures else [],
        "strange_rates": fit.strange_rates(
            result.values, scorer.dtype if scorer.backend == "cuda" else "float64"
        ),
        "largest_deviation_from_float64_pA": winner.deviation_pA,
        **provenance(fit, result, scorer),
    }


def found_with_result(plan: Any, summary: Mapping[str, Any]) -> list[Caution]:
    """Return the cautions of a summary that were not known before the search.

    Arguments:
        plan: of any kind of fit.
    """
    rows = [Caution(**row) for row in summary.get("warnings", ())]
    return [caution for caution in rows if caution not in plan.cautions]


def titles(fit: Any) -> dict[str, str]:
    """Return the name of a fit of any kind, and its description and source where it has them."""
    texts = {"name": fit.name, "description": fit.description, "source": fit.source}
    return {key: text for key, text in texts.items() if text}


def _membrane(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the size of the cell by which a model file multiplies densities; None without one.

    A saved fit has the product of both.
    """
    current = document.get("current")
    section = current if isinstance(current, Mapping) else {}
    return {key: section[key] for key in ("area", "capacitance") if section.get(key)} or None


def provenance(fit: FitPlan, result: FitResult, scorer: Scorer) -> dict[str, Any]:
    """Return how a search went and the software and machine that ran it, for any kind of fit."""
    on_gpu = scorer.backend == "cuda"
    return {
        "stop_reason": result.stop_reason,
        "generations": result.generations,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "candidates_per_second": result.evaluations / max(result.seconds, 1e-9),
        "failed_candidates": dict(result.failures),
        "optimizer": result.optimizer,
        "settings": dict(result.settings),
        "stop": dict(fit.stop),
        "seed": result.seed,
        "backend": scorer.backend,
        "dtype": scorer.dtype,
        "source_hash": result.source_hash,
        "files": file_hashes(fit),
        "search_cost": result.cost,
        "versions": versions(on_gpu),
        "machine": machine() | ({"gpu": gpu.device().name} if on_gpu else {}),
        "finished": moment("seconds"),
    }


def _sources(experiment: Experiment) -> dict[str, Any]:
    """Return the texts of an experiment's files, and how its recording was conditioned."""
    protocol, recording = experiment.protocol, experiment.recording
    texts = {
        "protocol_description": protocol.description,
        "protocol_source": protocol.source,
        "recording": recording.source if recording else "",
        "conditioning": list(recording.conditioning) if recording else [],
        "cell": experiment.cell,
        "temperature": experiment.temperature,
    }
    return {key: text for key, text in texts.items() if text}


def _observed(experiment: Experiment, trace: np.ndarray) -> dict[str, Any]:
    """Return what was observed in an experiment, with the fit; empty for a recording."""
    if not experiment.observations:
        return {}
    return {"observations": [one.as_plain() for one in curves_of(experiment, trace)]}


def _uncertainty(
    fit: FitPlan, scorer: ChannelScorer, winner: Winner
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the uncertainty of the winner, as a whole and by parameter, and its fluctuations."""
    if fit.cost is not None:
        remark = f"no standard errors: {fit.cost.name} was minimized, which has no derivatives"
        return {"remarks": [remark], "undetermined": []}, {}, {}
    try:
        judged = assessment.assess(fit, scorer, winner.values, traces=winner.traces)
    except InputError as error:  # too few samples: the fit itself stands
        return {"remarks": [str(error)], "undetermined": []}, {}, {}
    plain, rows = (
        assessment.as_plain(judged, fit.problem.unit),
        assessment.parameter_rows(judged.estimate, fit.problem),
    )
    if fit.problem.noise is None:
        return plain, rows, {}
    from channelfit.results.fluctuations import fluctuations  # load SymPy
    from channelfit.scoring.channel_noise import NoiseScorer

    assert isinstance(scorer, NoiseScorer)

    found = fluctuations(fit.problem, scorer, winner.values, judged.estimate)
    plain["remarks"] += found.remarks
    return plain, rows, {"channel_noise": found.as_plain()}


def parameter_rows(fit: FitPlan, result: FitResult) -> dict[str, dict[str, Any]]:
    """Return the rows of `summary.json` of all parameters but ties, by name."""
    rows = {}
    places = zip(fit.problem.parameters, result.values, result.notes, strict=True)
    for parameter, value, note in places:
        row = parameter_row(parameter, value, parameter.value if fit.surrogate else None)
        rows[parameter.name] = row | ({"note": note} if note else {})
    return rows


def _ties(fit: FitPlan, values: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return the rows of `summary.json` of ties, by name."""
    problem = fit.problem
    found = problem.tied_values(values)
    true = problem.tied_values(problem.values()) if fit.surrogate else {}
    return {
        tie.name: parameter_row(tie, found[tie.name], true.get(tie.name)) | {"note": "tied"}
        for tie in problem.ties
    }


_QUALITY = dict.fromkeys(FIGURES, NUMBER)
_PARAMETER = {
    **dict.fromkeys(("value!", "lower?", "upper?", "true_value", "standard_error"), NUMBER),
    "relative_error": NUMBER,
    "interval": Listed(NUMBER, 2),
    **dict.fromkeys(("unit!", "note"), TEXT),
}
_UNCERTAINTY = {
    **dict.fromkeys(("level", "correlation_time_samples"), NUMBER),
    **dict.fromkeys(("noise_pA", "noise_in_errors"), NUMBER),
    "standard_errors_from_minimum": NUMBER,
    "samples": WHOLE,
    "noise_assumed": FLAG,
    "undetermined!": Listed({"parameters": Listed(TEXT), "open_directions": WHOLE, "text!": TEXT}),
    "remarks!": Listed(TEXT),
    "correlations": {"parameters!": Listed(TEXT), "matrix!": Listed(Listed(NUMBER))},
}
_AGREEMENT = {
    **dict.fromkeys(("independent_starts!", "arrived!", "wanted!"), WHOLE),
    **dict.fromkeys(("agree!", "perfect"), FLAG),
    "lowest_costs!": Listed(NUMBER),
}
_OBSERVATION = {
    **dict.fromkeys(("name!", "x_label!", "y_label!"), TEXT),
    **dict.fromkeys(("x!", "value!", "error!", "n!", "result!"), Listed(NUMBER)),
    "rms_in_errors!": NUMBER,
}
_EXPERIMENT = {
    **_QUALITY,
    "weight": NUMBER,
    "conditioning": Listed(TEXT),
    "observations": Listed(_OBSERVATION),
    **dict.fromkeys(("protocol", "protocol_description", "protocol_source", "recording"), TEXT),
    **dict.fromkeys(("cell", "temperature"), PLAIN),
}
#: The shape of a summary, by key, as far as it is used.
_SUMMARY = {
    **_QUALITY,
    **dict.fromkeys(("cost!", "seconds!", "search_cost", "candidates_per_second"), NUMBER),
    **dict.fromkeys(("generations!", "evaluations!", "seed!"), WHOLE),
    **dict.fromkeys(("file!", "stop_reason!", "optimizer!", "backend!", "dtype!"), TEXT),
    **dict.fromkeys(("name", "description", "source", "model", "source_hash", "finished"), TEXT),
    "parameters!": Each(_PARAMETER),
    "uncertainty": _UNCERTAINTY,
    "agreement": _AGREEMENT,
    "channel_noise": {
        **dict.fromkeys(("of_channels!", "predictable!"), NUMBER),
        "unitary!": Listed({"voltage_mV!": NUMBER, "current_pA!": NUMBER, "name": TEXT}),
    },
    "experiments": Listed(_EXPERIMENT),
    "surrogate": {"noise_pA": NUMBER},
    "membrane": Each(PLAIN),
    "warnings": Listed(dict.fromkeys(("place", "value", "advice"), TEXT)),
    **dict.fromkeys(("failing_examples", "strange_rates"), Listed(TEXT)),
    "failed_candidates": Each(WHOLE),
    "largest_deviation_from_float64_pA": NUMBER,
    "versions!": Each(TEXT),
    "machine!": Each(PLAIN),
    "files": Listed(Each(TEXT)),
    "settings!": Each(PLAIN),
    "stop": Each(PLAIN),
}


def summary_beside(file: Path, whole: bool = True) -> dict[str, Any]:
    """Return the summary beside a fit file, as `read_summary` does; empty where there is none."""
    place = file_beside(file, SUMMARY)
    return {} if place is None else read_summary(place, whole)


def read_summary(file: Path, whole: bool = True) -> dict[str, Any]:
    """Return the summary of a run; an empty one where the file is that of no fit.

    Arguments:
        whole: whether all keys that a report needs must be there, or any of them may be missing.

    Raises InputError: it cannot be read, or holds values of another kind.
    """
    found = read_json(file)
    if "parameters" not in found:
        return {}
    needed = _SUMMARY if whole else {key.rstrip("!?"): of for key, of in _SUMMARY.items()}
    if whole and found.get("rms_pA") is not None:  # of currents, and not of a function
        needed = {**needed, **{f"{key}?": of for key, of in _QUALITY.items()}}
    check_shape(found, needed, file)
    return found
