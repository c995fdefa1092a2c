"""What the fluctuations of a current say after a fit with `noise:`, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.model.evaluation import evaluate
from channelfit.problem.channel_noise import one_scheme

if TYPE_CHECKING:
    from channelfit.problem.experiment import Group, Problem
    from channelfit.results.uncertainty.estimate import Estimate
    from channelfit.scoring.channel_noise import NoiseScorer

#: Below these shares the channels hardly add to the variance of a sample, and the samples before
#: one hardly tell the part of it that is the channels'.
_FAINT, _FORGOTTEN = 0.02, 0.02
#: Standard errors of a correlation, or of a mean square, beyond which it is not chance.
_CHANCE = 4.0
#: Steps between recorded currents, in standard deviations of a sample, that are no longer fine.
_STEP = 2.0


@dataclass(frozen=True)
class Fluctuations:
    """The fluctuations of the samples that count, as a fit explains them.

    Attributes:
        of_channels: the share of the variance of a sample that is not the amplifier's.
        predictable: the share of that variance that the samples before it tell.
        neighbors: the correlation of what is left of neighboring samples that count, in their
            standard deviations, after all samples before them; 0 where the model is right.
        mean_square: of the same; 1 where the model is right.
        n_samples: how many count.
        sampling_ms: the shortest interval between samples that count.
        step: between recorded currents, in standard deviations of a sample.
        unitary: of each group of experiments the current, pA, of one open channel at the voltage,
            mV, at which most flows, with its standard error.
    """

    of_channels: float
    predictable: float
    neighbors: float
    mean_square: float
    n_samples: int
    sampling_ms: float
    step: float
    unitary: tuple[dict[str, Any], ...] = ()

    @property
    def remarks(self) -> list[str]:
        """Sentences on why numbers and standard errors may say less than they seem to."""
        found = []
        if self.of_channels < _FAINT:
            found.append(
                f"the channels make {100 * self.of_channels:.2g} % of the variance of a sample, "
                "and the amplifier the rest: the fluctuations tell little about the channels"
            )
        elif self.predictable < _FORGOTTEN * self.of_channels:
            found.append(
                f"samples {self.sampling_ms:g} ms apart are too coarse for the fluctuations: the "
                "samples before one tell next to nothing of it, so that only the size of the "
                "fluctuations counts, and not how fast they are; sample faster"
            )
        if self.step > _STEP:
            found.append(
                f"recorded currents are {self.step:.2g} standard deviations of a sample apart: too "
                "coarse for the fluctuations; record or write more digits"
            )
        chance = _CHANCE / math.sqrt(self.n_samples)
        if abs(self.neighbors) > chance or abs(self.mean_square - 1) > math.sqrt(2) * chance:
            found.append(
                "what is left of a sample after those before it should be white noise, and its "
                f"neighbors are correlated ({self.neighbors:.2f}; mean square "
                f"{self.mean_square:.2f} of what was expected): the recording was filtered, or the "
                "scheme is another; the standard errors and the number of channels cannot be "
                "trusted then"
            )
        return found

    def as_plain(self) -> dict[str, Any]:
        """Return the numbers as they stand in ``summary.json``."""
        return {name: list(x) if name == "unitary" else x for name, x in vars(self).items()}


def fluctuations(
    problem: Problem, scorer: NoiseScorer, values: np.ndarray, found: Estimate | None
) -> Fluctuations:
    """Return the fluctuations at fitted values (n_parameters,), base units.

    Arguments:
        found: the uncertainty of the fit; None where it is not known.
    """
    informed, alone = scorer.predicted(values, given_past=True), scorer.predicted(values)
    left, pairs, variances, currents, apart = [], [], [], [], [math.inf]
    for e, after, before in zip(problem.experiments, informed, alone, strict=True):
        if e.recording is None or e.weight == 0:
            continue
        counts = (e.recording.weight > 0) & np.isfinite(after[..., 1])
        z = np.where(counts, (e.recording.current_pA - after[..., 0]) / after[..., 1], np.nan)
        left.append(z[counts])
        for row, seen in zip(z, counts, strict=True):
            pairs.append(row[seen][1:] * row[seen][:-1])
            apart += (e.protocol.sampling_ms * np.diff(np.flatnonzero(seen))).tolist()
        variances.append(np.stack([after[..., 1], before[..., 1]])[:, counts] ** 2)
        currents.append(e.recording.current_pA[counts])
    z, products = np.concatenate(left), np.concatenate(pairs)
    after, before = np.concatenate(variances, axis=1)
    square = float(np.mean(z**2))
    instrument = [_instrument(problem, values, k) for k in range(len(problem.experiments))]
    sizes = [
        (instrument[k] ** 2, float((e.recording.weight > 0).sum()))
        for k, e in enumerate(problem.experiments)
        if e.recording is not None and e.weight > 0
    ]
    amplifier = sum(v * n for v, n in sizes)
    return Fluctuations(
        1.0 - amplifier / float(before.sum()),
        1.0 - float(after.sum() / before.sum()),
        float(np.mean(products)) / square if products.size else 0.0,
        square,
        z.size,
        min(apart),
        _smallest_step(np.concatenate(currents)) / math.sqrt(float(np.median(after))),
        tuple(_unitary(problem, values, found)),
    )


def _instrument(problem: Problem, values: np.ndarray, experiment: int) -> float:
    """Return the noise of the amplifier, pA, in an experiment."""
    group = next(g for g in problem.groups if experiment in g.places)
    assert problem.noise is not None
    own = group.parameters(values[:, None])[:, 0]
    return problem.noise.at(group.problem.model, own)["instrument"]


def _smallest_step(currents: np.ndarray) -> float:
    """Return the least difference between two currents that differ, pA; 0 of less than two."""
    steps = np.diff(np.unique(currents))
    return float(steps.min(initial=math.inf)) if steps.size else 0.0


def _unitary(
    problem: Problem, values: np.ndarray, found: Estimate | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `Fluctuations.unitary`."""
    for group in problem.groups:
        voltages = np.concatenate([e.protocol.command().ravel() for e in group.problem.experiments])
        voltages = np.unique(voltages[np.isfinite(voltages)])
        currents = [_current(group, values, v) for v in voltages]
        place = int(np.abs(currents).argmax())
        v, error = float(voltages[place]), None
        if found is not None:
            *around, apart = found.around()
            physical = [found.objective.physical(side) for side in around]
            sides = [[_current(group, x, v) for x in side.T] for side in physical]
            slope = (np.array(sides[1]) - np.array(sides[0])) / apart
            error = math.sqrt(float(slope @ found.covariance @ slope))
        name = {"name": group.name} if group.name else {}
        yield {**name, "voltage_mV": v, "current_pA": currents[place], "standard_error": error}


def _current(group: Group, values: np.ndarray, v_mV: float) -> float:
    """Return the current, pA, of one open channel at a voltage."""
    own, model = group.parameters(values[:, None])[:, 0], group.problem.model
    scope: dict[str, Any] = dict(zip(model.parameter_names, own, strict=True)) | {"v": v_mV}
    for name, expression in model.definitions:
        scope[name] = evaluate(expression, scope)
    assert group.problem.noise is not None
    n = group.problem.noise.at(model, own)["channels"]
    return float(evaluate(one_scheme(model)[1].drive, scope)) / n
