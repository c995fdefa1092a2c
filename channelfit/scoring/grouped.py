"""The scorer of experiments that differ in more than the command: group by group.

Each group has a scorer of its own, independent of the others. The cost of all is
``sum_k W_k cost_k / sum_k W_k`` with the weights W_k of the samples of group k. A group has only
the parameters of its model, so derivatives by the parameters of a cell are computed from this
cell's experiments alone, and the Hessian between parameters of two cells is 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Group, Problem, total_weight
from channelfit.problem.statuses import OK
from channelfit.scoring.alike import Alike, alike
from channelfit.scoring.machine.arrays import array_module
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score, Scorer


@dataclass(frozen=True, eq=False)
class Part:
    """A group and its scorer.

    Attributes:
        share: of its samples' weights in those of all samples.
        free: the rows of its model's parameters that are searched, and in_whole: the same among
            the parameters of the whole problem.
    """

    group: Group
    scorer: ChannelScorer
    share: float
    free: list[int]
    in_whole: list[int]


class GroupedScorer(ChannelScorer):
    """Scores and simulates a problem of several groups.

    Arguments:
        scorers: one for each of the problem's groups, all of the same backend and precision.
    """

    def __init__(self, problem: Problem, scorers: Sequence[ChannelScorer]) -> None:
        self.problem, self.scorers = problem, tuple(scorers)
        first = self.scorers[0]
        self.backend, self.dtype, self.xp = first.backend, first.dtype, first.xp
        paths = [scorer.path for scorer in scorers]
        # a group that steps takes the longest, and so decides how the whole is treated
        self.path = "stepping" if "stepping" in paths else first.path
        self.source_text = "\n".join(dict.fromkeys(s.source_text for s in scorers))
        hashes = dict.fromkeys(scorer.source_hash for scorer in scorers)
        joined = "".join(hashes).encode()
        self.source_hash = next(iter(hashes))
        if len(hashes) > 1:
            self.source_hash = hashlib.sha256(joined).hexdigest()[:16]
        weights = [
            total_weight(g.problem) if g.is_observed else g.problem.scored.total_weight
            for g in problem.groups
        ]
        self.parts = [
            self._part(group, scorer, weight / sum(weights))
            for group, scorer, weight in zip(problem.groups, scorers, weights, strict=True)
            if weight > 0
        ]

    @property
    def n_parameters(self) -> int:
        """The number of parameters of the whole problem, with those of each cell."""
        return len(self.problem.parameters)

    @property
    def has_data(self) -> bool:
        """True where a recording has a sample that counts."""
        return bool(self.parts)

    def _part(self, group: Group, scorer: ChannelScorer, share: float) -> Part:
        pairs = [
            (own, row)
            for own, row in enumerate(group.rows)
            if row is not None and not self.problem.parameters[row].fixed
        ]
        return Part(group, scorer, share, [own for own, _ in pairs], [row for _, row in pairs])

    def score(self, parameters: Any) -> Score:
        return self._summed(parameters, self.parts, lambda scorer: scorer.score)

    def preview(self, parameters: Any) -> Score:
        return self._summed(parameters, self.parts, lambda scorer: scorer.preview)

    def rescore(self, parameters: Any) -> Score:
        return self._summed(parameters, self.parts, lambda scorer: scorer.rescore)

    def score_cell(self, parameters: Any, cell: str, preview: bool = False) -> Score:
        parts = [part for part in self.parts if part.group.cell == cell]
        return self._summed(parameters, parts, lambda s: s.preview if preview else s.score)

    def limit_launches(self, chunk: int) -> None:
        for scorer in self.scorers:
            scorer.limit_launches(chunk)

    def fix_jobs(self, n: int) -> bool:
        can = [scorer.fix_jobs(n) for scorer in self.scorers]
        return all(can)

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        parameters = self._checked(parameters)
        found: dict[int, np.ndarray] = {}
        for group, scorer in zip(self.problem.groups, self.scorers, strict=True):
            traces = scorer.simulate(group.parameters(parameters))
            found |= zip(group.places, traces, strict=True)
        return [found[k] for k in range(len(found))]

    def linearize(self, parameters: Any) -> Linearization:
        parameters = self._scorable(parameters)
        xp, (n_parameters, n) = array_module(parameters), parameters.shape
        cost, status = xp.zeros(n), xp.zeros(n, dtype=np.int8)
        gradient, hessian = xp.zeros((n_parameters, n)), xp.zeros((n_parameters, n_parameters, n))
        for part, own in self._linearized(parameters):
            cost += part.share * own.cost
            status = xp.where(status == OK, own.status, status)
            rows, free = (xp.asarray(k, dtype=np.int64) for k in (part.in_whole, part.free))
            gradient[rows] += part.share * own.gradient[free]
            hessian[rows[:, None], rows] += part.share * own.hessian[free][:, free]
        good = status == OK
        return Linearization(cost, status, gradient * good, hessian * good)

    def _linearized(self, parameters: Any) -> Iterator[tuple[Part, Linearization]]:
        """Yield the linearization of each part, by the parameters of its model."""
        parts = {id(part.group): part for part in self.parts}
        for family in self._alike:
            together = family.linearize(parameters)
            for (group, _), own in zip(family.members, together, strict=True):
                yield parts.pop(id(group)), own
        for part in parts.values():
            yield part, part.scorer.linearize(part.group.parameters(parameters))

    @cached_property
    def _alike(self) -> list[Alike]:
        """The cells that share a simulation with others."""
        return alike(self.problem, [(part.group, part.scorer) for part in self.parts])

    def _summed(
        self,
        parameters: Any,
        parts: Iterable[Part],
        method: Callable[[ChannelScorer], Callable[[Any], Score]],
    ) -> Score:
        """Add up the shares of some parts; a candidate fails as it does in the first of them."""
        parameters = self._scorable(parameters)
        xp, n = array_module(parameters), parameters.shape[1]
        cost, status = xp.zeros(n), xp.zeros(n, dtype=np.int8)
        for part in parts:
            own = method(part.scorer)(part.group.parameters(parameters))
            cost += part.share * own.cost
            status = xp.where(status == OK, own.status, status)
        return Score(cost, status)


def of_first_group(scorer: Scorer, parameters: np.ndarray) -> tuple[Scorer, np.ndarray]:
    """Return a scorer of one group, and its parameters: groups share their kernels.

    Arguments:
        parameters: (n_parameters, n_candidates), those of the whole problem.
    """
    if not isinstance(scorer, GroupedScorer):
        return scorer, parameters
    return scorer.scorers[0], scorer.problem.groups[0].parameters(parameters)
