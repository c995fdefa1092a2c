"""Means of recordings, fits and derivatives over short stretches, for `checks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from channelfit.batch.checks import ResidualFaults, Stretches, find_faults
from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Problem
from channelfit.problem.protocol import Protocol
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.scoring.scorer import ChannelScorer
from channelfit.search.plan import FitPlan

#: ms of a stretch, and its share of a sweep, at most; samples in it, at least.
_STRETCH_MS, _OF_A_SWEEP, _SAMPLES = 5.0, 0.01, 4
#: mV by which the command may move within a stretch: the response to a step is partly the clamp's.
_MOVES_MV = 4.0
#: mV, for the derivative of a driving force.
_STEP_MV = 0.1
#: mV: nearer to where nothing drives it, a current does not say how many channels are open.
_NO_DRIVE_MV = 2.0
#: The step of the unit cube for derivatives by parameters.
_STEP = 1e-5
#: Numbers in the traces that are held at once.
_HELD = 1 << 25


def check_residuals(
    plan: FitPlan, scorer: ChannelScorer, problems: Sequence[Problem], unit: np.ndarray
) -> list[ResidualFaults]:
    """Judge the residuals of fitted wells.

    Arguments:
        plan: of the fits.
        scorer: simulates them.
        problems: of the wells, (n,), which have the same protocols.
        unit: (n, n_free), their optima in the unit cube with nothing solved; NaN without a fit.
    """
    space = replace(plan, solved=()).space
    parts = [_Part(e.protocol) for e in problems[0].experiments]
    n_free, n_each = unit.shape[1], unit.shape[1] + 1
    at_once = max(1, _HELD // max(1, n_each * sum(part.n_samples for part in parts)))
    found = [ResidualFaults()] * len(problems)
    rows = np.flatnonzero(np.isfinite(unit).all(axis=1)).tolist()

    def check(
        some: list[int], physical: np.ndarray, traces: list[np.ndarray], steps: np.ndarray
    ) -> None:
        def of_some(begin: int, end: int) -> None:
            for k in range(begin, end):
                own = slice(k * n_each, (k + 1) * n_each)
                candidates = [trace[:, :, own] for trace in traces]
                values, problem = physical[:, own.start : own.start + 1], problems[some[k]]
                made = _stretches(problem, parts, values, candidates, steps[k])
                found[some[k]] = find_faults(made, is_clamped(problem))

        with single_threaded_blas():
            side_by_side(of_some, len(some), 1, usable_cores())

    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        steps = np.where(unit[some] > 0.5, -_STEP, _STEP)
        points = np.repeat(unit[some][:, None], n_each, axis=1)
        moved = np.arange(n_free)
        points[:, moved + 1, moved] += steps
        flat = np.ascontiguousarray(points.reshape(-1, n_free).T)
        physical = space.to_physical(flat)
        check(some, physical, scorer.simulate(physical), steps)
    return found


def is_clamped(problem: Problem) -> bool:
    """Return whether the fit has a series resistance."""
    clamps = [e.clamp for e in problem.experiments if e.clamp is not None]
    return any(clamp.series_resistance != 0 for clamp in clamps)


class _Part:
    """The stretches of a protocol.

    Attributes:
        size: samples in a stretch. volts: (n_sweeps, n) their command, mV; NaN where it moves.
        time: (n_sweeps, n) ms from the first sample of the first sweep.
        lasts_ms: all sweeps together. n_samples: in all sweeps.
    """

    def __init__(self, protocol: Protocol) -> None:
        h, command = protocol.sampling_ms, protocol.command()
        longest = min(_STRETCH_MS, _OF_A_SWEEP * h * command.shape[1])
        self.size = max(_SAMPLES, round(longest / h))
        volts = self.cut(command)
        low, high = volts.min(axis=2), volts.max(axis=2)  # NaN after the end of a sweep
        self.volts = np.where(high - low <= _MOVES_MV, volts.mean(axis=2), np.nan)
        lengths = [h * protocol.n_times(k) for k in range(protocol.n_sweeps)]
        begins = np.cumsum([0.0, *lengths])
        middles = h * self.size * (np.arange(volts.shape[1]) + 0.5)
        self.time, self.lasts_ms = begins[:-1, None] + middles, float(begins[-1])
        self.n_samples = command.size

    def cut(self, values: np.ndarray) -> np.ndarray:
        """Return values (n_sweeps, n_times, ..) as stretches, (n_sweeps, n, size, ..)."""
        n = values.shape[1] // self.size
        shape = (len(values), n, self.size, *values.shape[2:])
        return values[:, : n * self.size].reshape(shape)


def _stretches(
    problem: Problem,
    parts: Sequence[_Part],
    physical: np.ndarray,
    traces: Sequence[np.ndarray],
    steps: np.ndarray,
) -> Stretches:
    """Return the means of a well.

    Arguments:
        physical: (n_parameters, 1) of its fit.
        traces: by experiment (n_sweeps, n_times, 1 + n_free), of the fit and of the fit with one
            parameter moved by its step (n_free,).
    """
    rows: list[dict[str, np.ndarray]] = []
    began, n_sweeps = 0.0, 0
    groups = {place: group for group in problem.groups for place in group.places}
    for k, (experiment, part) in enumerate(zip(problem.experiments, parts, strict=True)):
        if experiment.recording is None or not experiment.weight > 0:
            continue
        group, recording = groups[k], experiment.recording
        values = dict(
            zip(group.problem.model.parameter_names, group.parameters(physical)[:, 0], strict=True)
        )
        row = _means(part, traces[k], recording.current_pA, experiment.weight * recording.weight)
        row["time"] += began
        row["block"] += n_sweeps
        row |= _opened(group.problem.model, experiment.clamp, values, row)
        rows.append(row)
        began, n_sweeps = began + part.lasts_ms, n_sweeps + len(part.volts)
    whole = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    whole["slopes"] /= steps
    whole["time"] /= began
    return Stretches(**whole)


def _means(
    part: _Part, trace: np.ndarray, data: np.ndarray, weight: np.ndarray
) -> dict[str, np.ndarray]:
    """Return means over the stretches of an experiment in which enough samples count."""
    counts = np.where(np.isfinite(data), weight, 0.0)
    cut = part.cut(counts)
    enough = (cut > 0).sum(axis=2) >= max(_SAMPLES, part.size // 2)
    kept = np.isfinite(part.volts) & enough
    weights = cut[kept]
    total = weights.sum(axis=1)

    def mean(values: np.ndarray) -> np.ndarray:
        some = part.cut(values)[kept]
        sums = np.asarray(np.einsum("ns...,ns->n...", some, weights))
        return np.asarray((sums.T / total).T)

    means = mean(trace)
    fit = means[:, 0].copy()
    return {
        "residual": mean(np.where(counts > 0, data, 0.0)) - fit,
        "fit": fit,
        "volts": part.volts[kept],
        "time": part.time[kept],
        "root": np.sqrt(total),
        "block": np.nonzero(kept)[0],
        "slopes": means[:, 1:] - means[:, :1],
    }


def _opened(
    model: ChannelModel, clamp: Clamp | None, values: dict[str, float], row: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the current of the channels in a fit, and the slope of all current with the voltage.

    The latter is NaN where several drives leave open which of them the current has.
    """
    volts, fit = row["volts"], row["fit"]
    leak, drive = _flows(model, clamp, values, volts)
    leak_on, drive_on = _flows(model, clamp, values, volts + _STEP_MV)
    channel = fit - leak
    if not model.one_product:
        return {"channel": channel, "slope": np.full_like(fit, np.nan)}
    grows = (drive_on - drive) / _STEP_MV
    driven = np.abs(drive) > _NO_DRIVE_MV * np.abs(grows)
    opened = np.where(driven, channel / np.where(driven, drive, 1.0), 0.0)
    return {"channel": channel, "slope": opened * grows + (leak_on - leak) / _STEP_MV}


def _flows(
    model: ChannelModel, clamp: Clamp | None, values: dict[str, float], volts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the current of all leaks and the drive of the channels, (n,) pA at voltages (n,)."""
    scope: dict[str, Any] = {**values, "v": volts, **dict.fromkeys(model.ligands, 0.0)}
    for name, expression in model.definitions:
        scope[name] = evaluate(expression, scope)
    value = partial(evaluate, values=scope)
    leak, drive = np.zeros_like(volts), np.zeros_like(volts)
    for term in model.terms:
        flows = value(term.drive) + np.zeros_like(volts)
        leak, drive = (leak, drive + flows) if term.chains else (leak + flows, drive)
    if clamp is not None:
        leak = leak + value(clamp.leak_conductance) * (volts - value(clamp.leak_reversal))
    return leak, drive
