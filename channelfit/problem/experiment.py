"""A model and its experiments: what a scorer scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.problem.clamp import Clamp
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.run_tree import RunTree, run_tree

#: The share of the data's root mean square that is left at the exact minimum of data without noise.
#: It is 3e-13 to 7e-12 in the shipped models; most of it comes from compression when linearizing.
_ROUNDING = {"float64": 3e-11, "float32": 1e-5}


@dataclass(frozen=True)
class Experiment:
    """A protocol and what was recorded under it.

    Attributes:
        protocol: the command.
        recording: the currents; None where they are only to be simulated.
        weight: the factor by which its samples count in the cost; 0 holds them out of the fit.
        clamp: what the amplifier did; None for an ideal clamp.
    """

    protocol: Protocol
    recording: Recording | None = None
    weight: float = 1.0
    clamp: Clamp | None = None


@dataclass(frozen=True)
class Problem:
    """A model and its experiments.

    The cost of a candidate is ``sum w (I - d)^2 / sum w`` over all samples, pA^2, with the weights
    w, the simulated current I and the data d.
    """

    model: ChannelModel
    experiments: tuple[Experiment, ...]

    @property
    def fitted(self) -> list[Experiment]:
        """The experiments that a score looks at: those with data and a weight above 0."""
        return [e for e in self.experiments if e.recording is not None and e.weight > 0]

    @cached_property
    def scored(self) -> RunTree:
        """All samples with a weight above 0, laid out for scoring."""
        with_data = self.fitted
        return run_tree(
            [e.protocol for e in with_data],
            [e.recording.current_pA for e in with_data if e.recording],
            [e.weight * e.recording.weight for e in with_data if e.recording],
        )

    @cached_property
    def simulated(self) -> RunTree:
        """All samples of all protocols, laid out for simulation."""
        none = [None] * len(self.experiments)
        return run_tree([e.protocol for e in self.experiments], none, none)


def mean_square(problem: Problem) -> float:
    """The cost of no current at all, pA^2: the weighted mean square of the data."""
    squares = total = 0.0
    for weight, data in _weighted(problem):
        squares += float((weight * data**2).sum())
        total += float(weight.sum())
    return squares / total


def rounding_floor(problem: Problem, dtype: str) -> float:
    """The cost, pA^2, below which candidates differ by rounding and not by how well they fit.

    Arguments:
        dtype: the scorer's precision, "float64" or "float32".
    """
    return _ROUNDING[dtype] ** 2 * mean_square(problem) if problem.scored.total_weight > 0 else 0.0


def n_scored(problem: Problem) -> int:
    """How many samples have a weight above 0."""
    return sum(weight.size for weight, _ in _weighted(problem))


def _weighted(problem: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """The weights and the data of the samples that count, for each experiment."""
    pairs = []
    for experiment in problem.experiments:
        if experiment.recording is not None:
            weight = experiment.weight * experiment.recording.weight
            counts = weight > 0
            pairs.append((weight[counts], experiment.recording.current_pA[counts]))
    return pairs
