"""The assessment of a fit at its minimum: standard errors, identifiability, remarks on both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.results.quality import SUFFIXES
from channelfit.results.uncertainty.estimate import (
    ASSUMED_NOISE,
    LEVEL,
    Combination,
    Estimate,
    estimate,
    peak_pA,
    quantile,
    undetermined,
)
from channelfit.results.uncertainty.noise_spectrum import spectrum_at
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.agreement import SAME
from channelfit.search.least_squares import refine
from channelfit.search.objective import Objective

if TYPE_CHECKING:
    from channelfit.problem.experiment import Problem
    from channelfit.scoring.scorer import ChannelScorer
    from channelfit.search.plan import FitPlan

#: Data with less noise than this share of their peak were simulated without noise.
NOISE_FREE = 1e-4
#: Degrees of freedom of a variance below which a remark says so: standard errors are then uncertain
#: by a sixth or more themselves.
FEW = 20.0
#: What the standard errors of a fit with channel noise rest on.
_OF_CHANNELS = (
    "the standard errors are those of the likelihood of a current that single channels of this "
    "scheme carry"
)
#: Standard errors from the minimum beyond which a fit counts as unfinished.
UNFINISHED = 0.3


@dataclass(frozen=True, eq=False)
class Assessment:
    """The uncertainty of a fit, assessed.

    Attributes:
        estimate: values, standard errors and correlations.
        open: the combinations of parameters that are not identifiable.
        remarks: sentences on the assumptions behind the numbers.
        refined_from: the cost before the fit was refined, pA^2; None if it was not.
    """

    estimate: Estimate
    open: tuple[Combination, ...]
    remarks: tuple[str, ...]
    refined_from: float | None = None


def assess(
    fit: FitPlan,
    scorer: ChannelScorer,
    values: np.ndarray,
    finish: bool = False,
    traces: Sequence[np.ndarray] | None = None,
) -> Assessment:
    """Assess fitted values.

    For data that were simulated without noise, noise of a hundredth of their peak is assumed, so
    that a rehearsal shows what its protocols determine.

    Arguments:
        values: (n_parameters,), base units.
        finish: whether to move the values to the minimum of the cost first; see `refinement`.
        traces: per experiment (n_sweeps, n_times) pA, the currents of these values; None to
            simulate them.

    Raises: InputError if the values cannot be scored, or there are too few samples.
    """
    from channelfit.problem.experiment import n_scored  # loads SymPy, which reports do without

    # parameters that the search solves are uncertain, too
    objective = replace(fit, solved=(), cost=None).objective(scorer)
    unit = objective.space.to_unit(np.asarray(values, dtype=float)[:, None])
    before = None
    n_samples, peak = n_scored(fit.problem), peak_pA(fit.problem)
    if finish:
        before = float(objective.linearize(unit).cost[0])
        unit, traces = brought_to_minimum(objective, unit, n_samples), None
    if traces is None:
        traces = [c[:, :, 0] for c in scorer.simulate(objective.physical(unit))]
    found = estimate(objective, unit[:, 0], n_samples)
    noise_free = fit.surrogate and fit.noise_pA == 0
    if fit.problem.noise is not None:
        return replace(judge(found, before), remarks=(_OF_CHANNELS, *_doubts(found, finish)))
    if noise_free or found.cost < (NOISE_FREE * peak) ** 2:
        noise = known if (known := fit.problem.known_noise_pA) else ASSUMED_NOISE * peak
        found = estimate(objective, unit[:, 0], n_samples, sigma_pA=noise)
    else:
        spectrum = spectrum_at(
            fit.problem, traces, unit[:, 0], lambda p: scorer.simulate(objective.physical(p))
        )
        found = estimate(objective, unit[:, 0], n_samples, spectrum)
    judged = judge(found, before)
    if fit.problem.known_noise_pA:
        remark = _observed(found, fit.problem.has_recordings)
        return replace(judged, remarks=(remark, *judged.remarks[1:]))
    return judged


def _observed(found: Estimate, mixed: bool) -> str:
    """Return a sentence on the errors of parameters that follow from those of observations.

    Arguments:
        mixed: whether recordings count beside them.
    """
    if found.assumed:
        return (
            "the data have no noise; the standard errors are those that the errors of the observed "
            "numbers would cause"
        )
    return (
        f"observed numbers{' and samples of recordings' * mixed} are taken to be independent of "
        f"each other, with {'noise and ' * mixed}standard errors that are "
        "known but for a common factor, which the residuals give"
    )


def judge(found: Estimate, refined_from: float | None = None) -> Assessment:
    """Return the assessment of an estimate.

    Arguments:
        refined_from: the cost before the fit was refined, pA^2; None if it was not.
    """
    remarks = _remarks(found, refined_from is not None)
    return Assessment(found, tuple(undetermined(found)), tuple(remarks), refined_from)


def _remarks(found: Estimate, refined: bool) -> list[str]:
    remarks = []
    if found.assumed:
        remarks.append(
            f"the data have no noise; the standard errors are those that noise of "
            f"{found.sigma_pA:.3g} pA in every sample, {100 * ASSUMED_NOISE:g} % of the largest "
            "current, would cause"
        )
    elif found.spectrum is not None:
        remarks.append(correlated(found))
    else:
        remarks.append(
            "the residuals look independent of each other, which is what the standard errors assume"
        )
    return remarks + _doubts(found, refined)


def _doubts(found: Estimate, refined: bool) -> list[str]:
    """Return sentences on a fit that is not at its minimum, or at a bound."""
    remarks = []
    if found.distance > UNFINISHED:
        remarks.append(_unfinished(found, refined))
    for name, side in zip(found.names, found.pushed, strict=True):
        if side:
            remarks.append(
                f"{name} is at its {'upper' if side > 0 else 'lower'} bound, beyond which the cost "
                "would be lower; it has no standard error, and those of the other parameters hold "
                "for this value of it"
            )
    return remarks


def correlated(found: Estimate) -> str:
    """Return a sentence on the effect of correlated residuals on the standard errors of a fit."""
    assert found.spectrum is not None
    wide = found.widened[found.pushed == 0]
    ends = (wide.min(initial=1.0), wide.max(initial=1.0))
    least, most = (f"{end:,.0f}" if end >= 10 else f"{end:.2g}" for end in ends)
    times = least if least == most else f"{least} to {most}"
    text = (
        f"the residuals are correlated ({found.spectrum.neighbors:.2f} from one sample to the "
        "next: the noise is filtered or slow, or the model cannot follow the data); the standard "
        f"errors follow from their spectrum and are {times} times those of independent residuals, "
        "but cannot tell whether the model is wrong"
    )
    if found.degrees_of_freedom < FEW:
        text += (
            f"; the slow noise that counts is known with {found.degrees_of_freedom:.2g} degrees of "
            "freedom only, which the intervals take into account"
        )
    return text


def _unfinished(found: Estimate, refined: bool) -> str:
    """Explain why a fit is not where the gradient of its cost vanishes, and how to get there."""
    if held := bounds_in_the_way(found):
        return (
            f"the bounds on the rates of {held} keep the fit about {found.distance:.2g} standard "
            "errors away from where the cost would be lowest without them; the standard errors "
            "do not take these bounds into account"
        )
    if refined:
        return (
            f"the slope of the cost points to a minimum {found.distance:.2g} standard errors away, "
            "but nothing lower was found there: over that distance the cost is not a parabola; "
            "profiles tell how far each parameter can go"
        )
    return (
        f"the search ended about {found.distance:.2g} standard errors away from the minimum of the "
        "cost; `channelfit uncertainty` refines the fit first"
    )


def parameter_rows(found: Estimate, problem: Problem) -> dict[str, dict[str, Any]]:
    """Return the uncertainty of each free and each tied parameter, as written to ``summary.json``.

    By parameter: standard_error in its unit; relative_error, of its logarithm, for a log scale;
    interval, both ends, which holds the true value with probability `LEVEL`. They are None for a
    parameter at a bound.
    """
    lower, upper = found.interval()
    space = found.objective.space
    rows: dict[str, dict[str, Any]] = {}
    for k, place in enumerate(space.free):
        parameter = space.parameters[place]
        if found.pushed[k]:
            rows[parameter.name] = {"standard_error": None, "interval": None}
            continue
        row: dict[str, Any] = {"standard_error": float(found.physical_errors[place])}
        if parameter.scale == "log":
            width = math.log(parameter.upper / parameter.lower)
            row["relative_error"] = float(found.errors[k]) * width
        rows[parameter.name] = row | {"interval": [float(lower[k]), float(upper[k])]}
    return rows | _ties(found, problem)


def _ties(found: Estimate, problem: Problem) -> dict[str, dict[str, Any]]:
    """Return errors of tied parameters, to first order in the parameters they depend on."""
    if not problem.ties:
        return {}
    center = problem.tied_values(found.objective.physical(found.unit[:, None])[:, 0])
    below, above, apart = found.around()
    sides = [
        [problem.tied_values(column) for column in found.objective.physical(side).T]
        for side in (below, above)
    ]
    rows = {}
    for name, value in center.items():
        slope = np.array([high[name] - low[name] for low, high in zip(*sides, strict=True)]) / apart
        error = math.sqrt(float(slope @ found.covariance @ slope))
        reach = quantile(LEVEL, found.freedom(slope)) * error
        rows[name] = {"standard_error": error, "interval": [value - reach, value + reach]}
    return rows


def as_plain(judged: Assessment, unit: str = "pA") -> dict[str, Any]:
    """Return an assessment as plain data, as written to ``summary.json``.

    Arguments:
        unit: of the residuals.
    """
    found = judged.estimate
    return {
        "level": LEVEL,
        f"noise_{SUFFIXES[unit]}": found.sigma_pA,
        "noise_assumed": found.assumed,
        "samples": found.n_samples,
        "correlation_time_samples": found.correlation_time,
        "correlation_of_neighbors": found.spectrum.neighbors if found.spectrum else 0.0,
        "times_as_wide": dict(zip(found.names, found.widened.tolist(), strict=True)),
        "standard_errors_from_minimum": found.distance,
        "undetermined": [
            {"parameters": list(c.names), "open_directions": c.n_open, "text": c.text}
            for c in judged.open
        ],
        "remarks": list(judged.remarks),
        "correlations": {"parameters": list(found.names), "matrix": found.correlations.tolist()},
    }


#: Distances at which points are tried to either side, in standard errors.
_REACHES = (0.3, 1.0, 3.0, 10.0)
#: How many of these points are refined, and the most rounds of this.
_REFINED, _ROUNDS = 8, 30
#: A smaller decrease of chi square does not count.
_GAIN = 0.01
#: Shares of the way to the minimum of the parabola at which bounds on rates are checked.
_ON_THE_WAY = (1e-3, 1e-2, 0.1, 0.3, 1.0)


def brought_to_minimum(objective: Objective, unit: np.ndarray, n_samples: int) -> np.ndarray:
    """Return the lowest point (n_free, 1) that least squares finds from a point and around it.

    Least squares ends when no step to the minimum of a local parabola lowers the cost. If the cost
    is no parabola (because of ripples, curved valleys, or bounds on rates) there may be a lower
    point within the standard errors of the fit, which a profile would find. So other points are
    tried as well: along the directions of largest variance, and along those in which the profile of
    each parameter begins. The best of them are refined, until none has a lower cost.

    If the scorer can, it computes costs as it computes derivatives (`preview`): the difference
    between two methods would hide small gains.

    Arguments:
        unit: (n_free, 1), in the unit cube.
        n_samples: samples that count in the cost, from which standard errors follow.
    """
    objective.previews = True
    unit, cost = _refined(objective, unit)
    for _ in range(_ROUNDS):
        if not math.isfinite(cost) or n_samples <= len(unit):
            return unit
        points = _around(estimate(objective, unit[:, 0], n_samples))
        tried = to_host(objective.score(points).cost)
        order = np.argsort(tried, kind="stable")[:_REFINED]
        lower, lower_cost = _refined(objective, points[:, order[np.isfinite(tried[order])]])
        if not lower_cost < cost * (1 - _GAIN / n_samples):
            return unit
        unit, cost = lower, lower_cost
    return unit


def bounds_in_the_way(found: Estimate) -> str | None:
    """Return the rates that have a bound between a fit and the minimum of its parabola, or None."""
    objective = found.objective
    local = objective.linearize(found.unit[:, None])
    step = -found.covariance @ to_host(local.gradient)[:, 0]  # its length does not matter
    longest = float(np.abs(step).max(initial=0.0))
    if not longest > 0:
        return None
    step *= min(1.0, found.distance * float(np.sqrt(np.diag(found.covariance)).max()) / longest)
    way = np.clip(found.unit[:, None] + step[:, None] * np.array(_ON_THE_WAY), 0.0, 1.0)
    physical = objective.space.to_physical(way)
    names = [c.name for c in objective.constraints if not c.allowed(physical).all()]
    return ", ".join(names) or None


def _refined(objective: Objective, unit: np.ndarray) -> tuple[np.ndarray, float]:
    """Refine some points; return the best (n_free, 1) and its cost, inf if there is none."""
    if not unit.shape[1]:
        return unit, math.inf
    starts = refine(objective, unit, iterations=300)
    best = int(np.where(np.isfinite(starts.cost), starts.cost, np.inf).argmin())
    return starts.unit[:, [best]], float(starts.cost[best])


def _around(found: Estimate) -> np.ndarray:
    """Return points (n_free, n) at several standard errors from a fit, inside the cube."""
    values, vectors = np.linalg.eigh(found.covariance)
    loose = vectors * np.sqrt(np.maximum(values, 0.0))
    own = np.sqrt(np.diag(found.covariance))
    responses = found.covariance[:, own > 0] / own[own > 0]
    ways = np.concatenate([loose[:, values > 0], responses], axis=1)
    # the standard error of a flat direction may exceed the cube by far
    ways *= np.minimum(1.0, 0.1 / np.maximum(np.abs(ways).max(axis=0), SAME))
    sides = [sign * reach * ways for reach in _REACHES for sign in (1.0, -1.0)]
    around: np.ndarray = np.clip(found.unit[:, None] + np.concatenate(sides, axis=1), 0.0, 1.0)
    return around
