"""A model and its experiments: what a scorer scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.run_tree import RunTree, run_tree

#: Of the data's root mean square, what the search is left with at the exact minimum of data without
#: noise: 3e-13 to 7e-12 in the shipped models by linearizing, whose compression leaves most of it.
_ROUNDING = {"float64": 3e-11, "float32": 1e-5}


@dataclass(frozen=True)
class Experiment:
    """A protocol, what was recorded under it (None: simulate only), and its share of the cost."""

    protocol: Protocol
    recording: Recording | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Problem:
    """The cost of a candidate is ``sum w (I - d)^2 / sum w`` over all samples, pA^2."""

    model: ChannelModel
    experiments: tuple[Experiment, ...]

    @property
    def fitted(self) -> list[Experiment]:
        """Those that a score looks at; not those without data, nor those held out by weight 0."""
        return [e for e in self.experiments if e.recording is not None and e.weight > 0]

    @cached_property
    def scored(self) -> RunTree:
        """Everything with a weight, packed for scoring."""
        with_data = self.fitted
        return run_tree(
            [e.protocol for e in with_data],
            [e.recording.current_pA for e in with_data if e.recording],
            [e.weight * e.recording.weight for e in with_data if e.recording],
        )

    @cached_property
    def simulated(self) -> RunTree:
        """Every sample of every protocol, packed for simulation."""
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
    """pA^2: costs up to this differ by the rounding of a scorer of that precision, not by fit.

    By as much of the data as rounding moves a trace: `_ROUNDING`, of their root mean square.
    """
    return _ROUNDING[dtype] ** 2 * mean_square(problem) if problem.scored.total_weight > 0 else 0.0


def n_scored(problem: Problem) -> int:
    """Samples of a weight above 0."""
    return sum(weight.size for weight, _ in _weighted(problem))


def _weighted(problem: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and data of the samples that count, an experiment each."""
    pairs = []
    for experiment in problem.experiments:
        if experiment.recording is not None:
            weight = experiment.weight * experiment.recording.weight
            counts = weight > 0
            pairs.append((weight[counts], experiment.recording.current_pA[counts]))
    return pairs
