"""A comparison of candidate schemes on the same data: cost, information criteria, predictions.

    AIC = n ln(cost) + 2 k,     BIC = n ln(cost) + k ln(n)

for n samples of independent Gaussian noise of unknown variance and k free parameters, the variance
among them (Akaike 1974; Schwarz 1978). A fit with observations gives all variances beforehand, by
standard errors and, of recordings beside them, by the noise s of a sample; then

    AIC = n cost/s^2 + 2 k,     BIC = n cost/s^2 + k ln(n)

without the variance among k. Only differences between schemes have a meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.problem.experiment import Experiment, n_scored
from channelfit.reading.errors import InputError
from channelfit.reading.units import STANDARD_ERRORS
from channelfit.results.files import FIT
from channelfit.results.quality import SUFFIXES, Quality
from channelfit.results.report.traces import Traces
from channelfit.results.run_summary import Winner, rescore
from channelfit.results.uncertainty.assessment import brought_to_minimum
from channelfit.results.uncertainty.noise_spectrum import correlation_time
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import FitPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Differences of BIC up to which schemes are near each other; beyond it the evidence is strong
#: (Kass and Raftery 1995).
NEAR_BIC = 6.0
#: A prediction is worse than another if its residual is larger by this factor.
_WORSE = 1.1
#: Mean squares, in squared standard errors, that are more than chance leaves of some ten numbers.
_BEYOND = 2.0


@dataclass(frozen=True, eq=False)
class ComparedFit:
    """One scheme with its fitted values and the quality of its fit.

    Attributes:
        label: a name that no other scheme of the comparison has.
        fit: the plan of the fit.
        values: (n_parameters,), base units.
        winner: the traces of these values and their quality, in float64.
        n_parameters: how many are free.
        n_samples: how many samples have a weight.
        correlation_time: of the residuals, in samples.
        fitted, predicted: the RMS by protocol with its unit, of experiments with a weight, and of
            those with weight 0, which were held out.
    """

    label: str
    fit: FitPlan
    values: np.ndarray
    winner: Winner
    n_parameters: int
    n_samples: int
    correlation_time: float
    fitted: dict[str, tuple[float, str]]
    predicted: dict[str, tuple[float, str]]

    @property
    def cost(self) -> float:
        """The mean square of the residuals, pA^2 or squared standard errors."""
        return self.winner.cost

    @property
    def aic(self) -> float:
        """Akaike's information criterion; -inf for a perfect fit."""
        return self._criteria[0]

    @property
    def bic(self) -> float:
        """Schwarz's information criterion; -inf for a perfect fit."""
        return self._criteria[1]

    @property
    def _criteria(self) -> tuple[float, float]:
        noise = self.fit.problem.known_noise_pA
        return criteria(self.cost, self.n_parameters, self.n_samples, noise)


def criteria(
    cost: float, n_parameters: int, n_samples: float, noise_pA: float | None = None
) -> tuple[float, float]:
    """Return AIC and BIC of a fit; -inf for a perfect one if the noise is not known.

    Arguments:
        cost: the mean square of the residuals, pA^2.
        n_parameters: how many are free.
        n_samples: how many samples have a weight.
        noise_pA: the standard deviation of a residual where that is known beforehand.
    """
    if noise_pA is not None:
        misfit, n_unknown = n_samples * cost / noise_pA**2, n_parameters
    else:
        misfit = n_samples * math.log(cost) if cost > 0 else -math.inf
        n_unknown = n_parameters + 1
    return misfit + 2 * n_unknown, misfit + n_unknown * math.log(n_samples)


def score_fits(
    fits: Iterable[FitPlan],
    labels: Sequence[str],
    backend: str = "auto",
    as_is: bool = False,
    on_fit: Callable[[str], object] | None = None,
) -> list[ComparedFit]:
    """Score fits of several schemes to the same data.

    Arguments:
        fits: with values, such as those in `fit.yaml` of run folders; two or more.
        labels: a name for each.
        as_is: take the values as they are; else they are refined by least squares first, where the
            backend has derivatives, so that no scheme suffers from an unfinished search.
        on_fit: called with each label before its turn.

    Returns: in the order of the fits.

    Raises: InputError for a fit that cannot be used, and when the data are not the same.
    """
    if len(labels) < 2:
        raise InputError("two or more fits are needed for a comparison")
    compared: list[ComparedFit] = []
    for fit, label in zip(fits, labels, strict=True):
        if on_fit is not None:
            on_fit(label)
        if compared:
            check_same_data(compared[0].fit, fit)
        compared.append(scored_fit(fit, label, backend, as_is))
    return compared


def weights(values: Sequence[float]) -> list[float]:
    """Return how likely each scheme is the best, by AIC or BIC (Burnham and Anderson 2002)."""
    least = min(values)
    if math.isinf(least):
        perfect = [math.isinf(v) for v in values]
        return [one / sum(perfect) for one in perfect]
    shares = [math.exp(-0.5 * (v - least)) for v in values]
    return [share / sum(shares) for share in shares]


def as_plain(compared: Sequence[ComparedFit]) -> list[dict[str, Any]]:
    """Return a comparison as plain data."""
    aic, bic = [c.aic for c in compared], [c.bic for c in compared]
    return [
        {
            "label": c.label,
            "file": str(c.fit.file),
            "model": c.fit.problem.model.name,
            "cost": c.cost,
            **_figures(c),
            "free_parameters": c.n_parameters,
            "samples": c.n_samples,
            "aic_difference": _difference(c.aic, aic),
            "aic_weight": weights(aic)[k],
            "bic_difference": _difference(c.bic, bic),
            "bic_weight": weights(bic)[k],
            **{
                f"{kind}_rms_{suffix}": {n: rms for n, (rms, of) in rows.items() if of == unit}
                for kind, rows in (("fitted", c.fitted), ("predicted", c.predicted))
                for unit, suffix in SUFFIXES.items()
            },
            "experiments": [
                {
                    "protocol": e.protocol.name,
                    **({} if e.observations else (part or Quality()).as_plain()),
                    "weight": e.weight,
                }
                for e, part in zip(c.fit.problem.experiments, c.winner.parts, strict=True)
            ],
            "correlation_time_samples": c.correlation_time,
            "parameters": {
                p.name: {"value": float(v), "unit": p.unit, "fixed": p.fixed}
                for p, v in zip(c.fit.problem.parameters, c.values, strict=True)
            },
        }
        for k, c in enumerate(compared)
    ]


def _figures(one: ComparedFit) -> dict[str, Any]:
    """Return how well a scheme fits: figures of its recordings, or the RMS of observations."""
    if one.fit.problem.has_recordings:
        return one.winner.quality.as_plain()
    return {f"rms_{SUFFIXES[STANDARD_ERRORS]}": one.winner.rms}


def remarks(compared: Sequence[ComparedFit]) -> list[str]:
    """Return sentences on the assumptions of the criteria, and on predictions that refute them."""
    best = min(compared, key=lambda c: c.cost)
    time = best.correlation_time
    found = _refuted(compared)
    if (noise := best.fit.problem.known_noise_pA) is not None:
        return [*_of_known_errors(best, noise), *found]
    if time <= 1:
        words = "AIC and BIC take residuals for independent, and those of the best fit look so"
        return [words, *found]
    return [
        "AIC and BIC take residuals for independent; those of the best fit are correlated, up to "
        f"{_samples(time, best)} that say the same, so differences between schemes that fit nearly "
        "alike may be up to that many times too large",
        *found,
    ]


def _of_known_errors(best: ComparedFit, noise_pA: float) -> Iterator[str]:
    """Yield what criteria assume that rest on standard errors."""
    mixed = best.fit.problem.has_recordings
    among = f", and the noise of a sample for {noise_pA:.3g} pA, as the fit file says" * mixed
    yield (
        "AIC and BIC take observed numbers for independent of each other"
        f"{', as well as the samples of recordings' * mixed}, and their standard errors for known"
        f"{among}"
    )
    squares = best.cost / noise_pA**2
    if squares > _BEYOND:
        yield (
            f"even the best fit misses the data by {math.sqrt(squares):.3g} standard errors (root "
            "mean square), where about 1 is expected of a right scheme: errors are larger than "
            "they are said to be, or no scheme is right, and differences of AIC and BIC are up to "
            f"{squares:.3g} times too large"
        )


def _samples(count: float, best: ComparedFit) -> str:
    """Return a number of samples in words, with their duration where all are sampled alike."""
    words = f"{count:,.0f} samples" if count >= 10 else f"{count:.2g} samples"
    spacings = {e.protocol.sampling_ms for e in best.fit.problem.fitted}
    return f"{words} ({count * spacings.pop():.3g} ms)" if len(spacings) == 1 else words


def _refuted(compared: Sequence[ComparedFit]) -> list[str]:
    """Return sentences on held-out recordings that another scheme predicts better."""
    preferred = min(compared, key=lambda c: c.bic)
    weight = weights([c.bic for c in compared])[compared.index(preferred)]
    found = []
    for name, (off, unit) in preferred.predicted.items():
        rivals = [c for c in compared if name in c.predicted]
        better = min(rivals, key=lambda c: c.predicted[name])
        least, _ = better.predicted[name]
        if off > _WORSE * least:
            found.append(
                f"{name}, which was held out, speaks against {preferred.label}, which has "
                f"{100 * weight:.0f} % of the weight by BIC: it predicts it with {off:.3g} {unit}, "
                f"{better.label} with {least:.3g} {unit} (root mean square)"
            )
    return found


def _difference(value: float, values: Sequence[float]) -> float:
    least = min(values)
    return 0.0 if value == least else value - least


def file_names(files: Sequence[Path]) -> list[str]:
    """Return a name for each file: that of its folder where the file is a run's `fit.yaml`."""
    return [f.resolve().parent.name if f.name == FIT else f.stem for f in files]


def distinct_labels(names: Sequence[str]) -> list[str]:
    """Return the names, with a number behind those that come more than once."""
    return [name if names.count(name) == 1 else f"{name} ({k})" for k, name in enumerate(names, 1)]


def scored_fit(fit: FitPlan, label: str, backend: str, as_is: bool) -> ComparedFit:
    """Return a scheme with its values, refined unless they are to be taken as they are."""
    try:
        values = fit.problem.values()
        scorer = make_scorer(fit.problem, backend)
        objective = replace(fit, solved=(), cost=None).objective(scorer)
        unit = objective.space.to_unit(values[:, None])
    except InputError as error:
        raise error.at(fit.file) from None
    if not as_is:
        values = objective.physical(brought_to_minimum(objective, unit, n_scored(fit.problem)))[
            :, 0
        ]
    winner = rescore(fit, scorer, values)
    if not math.isfinite(winner.cost):
        raise InputError("the values in this file give no finite cost", fit.file)
    fitted: dict[str, tuple[float, str]] = {}
    predicted: dict[str, tuple[float, str]] = {}
    for k, (e, part) in enumerate(zip(fit.problem.experiments, winner.parts, strict=True), 1):
        name = e.title
        name = f"{name} ({k})" if name in fitted or name in predicted else name
        rms = (part or Quality()).rms_pA / e.noise_pA
        (fitted if e.weight > 0 else predicted)[name] = rms, e.unit
    return ComparedFit(
        label,
        fit,
        values,
        winner,
        objective.n_free,
        n_scored(fit.problem),
        # a likelihood of correlated currents counts what they say once
        1.0 if fit.problem.noise else correlation_time(fit.problem, winner.traces),
        fitted,
        predicted,
    )


def check_same_data(first: FitPlan, other: FitPlan) -> None:
    """Raise InputError unless two fits are of the same experiments in the same order."""
    first_file, file = first.file, other.file
    ours, theirs = first.problem.experiments, other.problem.experiments
    hint = "; compare fits of the same experiments in the same order" + (
        " (simulated data: the `fit.yaml` of run folders refer to the same files)"
        if first.surrogate or other.surrogate
        else ""
    )
    if len(ours) != len(theirs):
        raise InputError(
            f"{len(theirs)} experiments, but {first_file} has {len(ours)}{hint}", file, "fit"
        )
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        part = _different_part(a, b)
        if part == "protocol" and _delay(first, k) != _delay(other, k):
            part = f"delay ({_delay(other, k)}, not {_delay(first, k)})"
        if part:
            raise InputError(f"experiment {k} has another {part} than in {first_file}{hint}", file)


def _delay(fit: FitPlan, k: int) -> str:
    """Return the delay of the k-th experiment as it stands in the fit section."""
    rows = fit.section.get("experiments")
    row = (rows if isinstance(rows, list) else [rows])[k - 1] if rows else None
    return str((row or {}).get("delay") or "0 ms")


def _different_part(a: Experiment, b: Experiment) -> str:
    """Return which part of two experiments differs; an empty text where none does."""
    if bool(a.observations) != bool(b.observations):
        return f"kind of data ({'observations' if b.observations else 'a recording'})"
    if a.protocol.command().shape != b.protocol.command().shape or not np.allclose(
        a.protocol.command(), b.protocol.command(), rtol=0, atol=1e-9, equal_nan=True
    ):
        return "protocol"
    if not np.allclose(a.protocol.times_ms, b.protocol.times_ms, rtol=0, atol=1e-9):
        return "sampling"
    if None not in (a.temperature_C, b.temperature_C) and a.temperature_C != b.temperature_C:
        return "temperature"
    if a.recording is None or b.recording is None:
        return "" if a.recording is b.recording else "recording"
    if len(a.observations) != len(b.observations):
        return "number of observations"
    for one, other in zip(a.observations, b.observations, strict=True):
        if one.taken_as != other.taken_as:
            return f'observation "{one.name}" (it is taken from the current in another way)'
    if a.weight != b.weight or not np.array_equal(a.recording.weight, b.recording.weight):
        return "weight or mask"
    counts = a.recording.weight > 0
    same = np.array_equal(a.recording.current_pA[counts], b.recording.current_pA[counts])
    return "" if same else "recording"


def comparison_figures(compared: Sequence[ComparedFit], title: str) -> list[Figure]:
    """Draw one panel for each experiment: the recording, all fits over it, and their residuals.

    Observations are drawn in a figure of their own, behind that of recordings, if there are any.

    Arguments:
        compared: the schemes, all fitted to the same experiments, in the order of the legend.
        title: stands above the panels.
    """
    # these load Matplotlib
    from channelfit.results.report.observed_curves import curves_of, observed_figure
    from channelfit.results.report.plots import traces_figure

    panels, curves = [], []
    for k, experiment in enumerate(compared[0].fit.problem.experiments):
        if experiment.observations:
            fits = [curves_of(experiment, c.winner.traces[k]) for c in compared]
            for one, *others in zip(*fits, strict=True):
                curves.append(replace(one, rivals=tuple(other.result for other in others)))
            continue
        recording, first = experiment.recording, compared[0].winner.traces[k]
        panels.append(
            Traces(
                experiment.protocol,
                first,
                None if recording is None else recording.current_pA,
                None if recording is None else recording.weight,
                experiment.title + ("" if experiment.weight > 0 else ", held out"),
                rivals=tuple(c.winner.traces[k] for c in compared[1:]),
            )
        )
    labels = [c.label for c in compared]
    figures = []
    if panels or not curves:
        figures.append(traces_figure(panels, title, names=("data", *labels, "fit − data")))
    if curves:
        figures.append(observed_figure(curves, title, names=labels))
    return figures
