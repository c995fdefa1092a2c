"""Whether a well shows any channel: whether its fit follows more than a leak alone would."""

from __future__ import annotations

import math

import numpy as np

from channelfit.problem.experiment import Problem, total_weight
from channelfit.results.uncertainty.curvature import Estimate

#: Why a well that shows no channel is to be looked at, without and with a leak in the model.
SILENT = {
    False: "no current: the fit explains the recording no better than zero does",
    True: "no current: the fit explains the recording no better than a leak alone does",
}


def has_leak(problem: Problem) -> bool:
    """Whether the model, or a clamp of the fit, has a leak."""
    of_model = any(not term.chains for term in problem.model.terms)
    clamps = [e.clamp for e in problem.experiments if e.clamp is not None]
    return of_model or any(clamp.leak_conductance != 0 for clamp in clamps)


def without_channels(problem: Problem) -> float:
    """The cost of a well without any channel, pA^2: of its best leak alone, or of no current.

    A leak is a straight line of the command.
    """
    rows = []
    for e in problem.fitted:
        assert e.recording is not None
        weight = e.weight * e.recording.weight
        counts = weight > 0
        command = e.protocol.command()
        rows.append((command[counts], e.recording.current_pA[counts], weight[counts]))
    volts, data, weight = (np.concatenate(each) for each in zip(*rows, strict=True))
    if has_leak(problem):
        middle, mean = np.average(volts, weights=weight), np.average(data, weights=weight)
        spread = float(weight @ (volts - middle) ** 2)
        slope = float(weight @ ((volts - middle) * (data - mean))) / spread if spread > 0 else 0.0
        data = data - mean - max(slope, 0.0) * (volts - middle)
    return float(weight @ data**2) / total_weight(problem)


def is_silent(sure: Estimate, cost: float, noise_pA: float, without: float) -> bool:
    """Whether a fit gains no more on its recording without channels than it would on noise alone.

    There the gain in chi square is about as large as the number of parameters; four standard
    deviations more are asked for. A misfit makes residuals slow and that gain small however large
    the current is: a well in which the channels move the recording by more than its noise has one.

    Arguments:
        cost: of the fit, pA^2. noise_pA: of a sample.
        without: the cost without channels, as `without_channels` gives it.
    """
    if cost <= 0 or without <= 0:
        return False
    gain = sure.n_samples / sure.correlation_time * math.log(without / cost)
    n = len(sure.names)
    return gain < n + 4 * math.sqrt(2 * n) and without - cost < noise_pA**2
