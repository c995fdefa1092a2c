"""A cost of the user's own, which a fit minimizes in place of the weighted mean square."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module, to_host
from channelfit.scoring.scorer import ChannelScorer, Score, Scorer

#: Bytes of the currents that are held at once while candidates are scored.
_AT_ONCE = 256 << 20


class Cost(ABC):
    """A cost that a fit minimizes in place of the weighted mean square of the residuals.

    Derive a class that can be called, and give an object of it to ``fit(cost=..)``. The costs of
    the experiments are added. A cost of your own has no derivatives, so the search is by
    ``differential`` where none is named, the fit has no standard errors, and a score takes longer,
    since all currents are simulated.

    Example:
        >>> import channelfit as cf
        >>> class MeanAbsolute(cf.Cost):
        ...     "The weighted mean of the absolute residuals, pA, which outliers pull little."
        ...     def __call__(self, predicted, recorded, weights):
        ...         apart = weights * abs(predicted - recorded)
        ...         return apart.sum(axis=(0, 1)) / weights.sum()
        >>> fit = cf.fit("models/model_b.yaml", cost=MeanAbsolute(), stop={"generations": 3},
        ...              progress=False)
        >>> fit.summary["minimized"], fit.summary["search_cost"] > 0
        ('MeanAbsolute', True)
    """

    @property
    def name(self) -> str:
        """The name of the cost, in summaries: that of the class."""
        return type(self).__name__

    @abstractmethod
    def __call__(
        self, predicted: np.ndarray, recorded: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """Return the costs of candidates for one experiment, (n_candidates,).

        A cost that is not finite is that of a candidate that has failed. Where the weight is 0, as
        after the end of a shorter sweep, all currents are 0.

        Arguments:
            predicted: (n_sweeps, n_times, n_candidates) pA, the simulated currents.
            recorded: (n_sweeps, n_times, 1) pA.
            weights: (n_sweeps, n_times, 1), that of the experiment included.
        """


class CostScorer(Scorer):
    """A scorer by a cost of the user's own, from the currents that another scorer simulates.

    Arguments:
        scorer: simulates.
        cost: compares currents with the recorded ones.
        problem: the model and its experiments.
    """

    def __init__(self, scorer: ChannelScorer, cost: Cost, problem: Problem) -> None:
        self.scorer, self.cost, self.problem = scorer, cost, problem
        self.backend, self.dtype, self.path = scorer.backend, scorer.dtype, scorer.path
        self.source_text, self.source_hash = scorer.source_text, scorer.source_hash
        self.xp = scorer.xp

    def score(self, parameters: Any) -> Score:
        """Return costs and statuses (n_candidates,) of parameters (n_parameters, n_candidates)."""
        xp, physical = array_module(parameters), to_host(parameters)
        n = physical.shape[1]
        protocols = [e.protocol for e in self.problem.experiments]
        samples = sum(one.n_sweeps * one.n_times_max for one in protocols)
        step = max(1, _AT_ONCE // (24 * max(samples, 1)))
        parts = [self._costs(physical[:, k : k + step]) for k in range(0, n, step)]
        cost = np.concatenate(parts)
        failed = ~np.isfinite(cost)
        cost[failed] = np.inf
        status = np.where(failed, NOT_FINITE, OK).astype(np.int8)
        return Score(xp.asarray(cost), xp.asarray(status))

    def _costs(self, parameters: np.ndarray) -> np.ndarray:
        """Return the sums over experiments, (n_candidates,); NaN where a current is not finite."""
        n = parameters.shape[1]
        total = np.zeros(n)
        for experiment, current in zip(
            self.problem.experiments, self.scorer.simulate(parameters), strict=True
        ):
            recording = experiment.recording
            if recording is None or experiment.weight == 0:
                continue
            weights = (experiment.weight * recording.weight)[:, :, None]
            counts = weights > 0
            predicted = np.where(counts, current, 0.0)
            recorded = np.where(counts, recording.current_pA[:, :, None], 0.0)
            with np.errstate(all="ignore"):
                found = np.asarray(self.cost(predicted, recorded, weights), dtype=float)
            if found.shape != (n,):
                raise InputError(
                    f"the cost {self.cost.name} must return {n} costs, one for each candidate, "
                    f"not an array of shape {found.shape}"
                )
            total += np.where(np.isfinite(predicted).all(axis=(0, 1)), found, np.nan)
        return total
