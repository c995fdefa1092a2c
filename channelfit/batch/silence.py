"""A test for wells without channels: does a fit follow more than a leak alone would?"""

from __future__ import annotations

import math

import numpy as np

from channelfit.batch.families import ScoredSamples
from channelfit.problem.experiment import Problem, total_weight
from channelfit.results.uncertainty.estimate import Estimate

#: The reason to check a well that shows no channel, by whether the model has a leak.
SILENT = {
    False: "no current: the fit explains the recording no better than zero does",
    True: "no current: the fit explains the recording no better than a leak alone does",
}


class WithoutChannels:
    """Costs of wells without any channel, of their best leaks alone or of no current.

    A leak is a straight line of the command.

    Arguments:
        problem: of one of the wells; its protocols, weights and mask are those of all.

    Attributes:
        has_leak: whether the model, or a clamp of the fit, has a leak.
    """

    def __init__(self, problem: Problem) -> None:
        self._counted = ScoredSamples(problem)
        self._weight, self._total = self._counted.weights, total_weight(problem)
        of_model = any(not term.chains for term in problem.model.terms)
        clamps = [e.clamp for e in problem.experiments if e.clamp is not None]
        self.has_leak = of_model or any(clamp.leak_conductance != 0 for clamp in clamps)
        volts = self._counted.row([e.protocol.command() for e in problem.fitted if e.recording])
        self._volts = volts - np.average(volts, weights=self._weight)
        self._spread = float(self._weight @ self._volts**2)

    def cost(self, problem: Problem) -> float:
        """Return the cost of a well without channels, pA^2."""
        data = self._counted.data(problem)
        if self.has_leak:
            data = data - np.average(data, weights=self._weight)
            slope = float(self._weight @ (self._volts * data))
            slope = slope / self._spread if self._spread > 0 else 0.0
            data = data - max(slope, 0.0) * self._volts
        return float(self._weight @ data**2) / self._total


def is_silent(sure: Estimate, cost: float, noise_pA: float, without: float) -> bool:
    """Return whether a fit gains no more on its recording without channels than on noise alone.

    There the gain in chi square is about as large as the number of parameters; four standard
    deviations more are required. A misfit makes residuals slow and that gain small however large
    the current is: a well in which the channels move the recording by more than its noise has one.

    Arguments:
        cost: of the fit, pA^2. noise_pA: of a sample.
        without: the cost without channels, as `WithoutChannels` gives it.
    """
    if cost <= 0 or without <= 0:
        return False
    gain = sure.n_samples / sure.correlation_time * math.log(without / cost)
    n = len(sure.names)
    return gain < n + 4 * math.sqrt(2 * n) and without - cost < noise_pA**2
