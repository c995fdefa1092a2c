"""Cells that differ in their conductance alone, linearized together on the CPU.

Under the same protocols the channels of such cells open alike, so one simulation serves them
all: the currents y of a cell, and their derivatives by what the cells share, are
proportional to its conductance g. Compressed residuals are ``s (y - t)``, with weights s and
targets t that come from the data; from those of one conductance G, r and J, follow those of g:

    r(g) = g/G (r + s t_G) - s t_g,    J(g) = g/G J, but for the column of g itself, which is J's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from channelfit.problem.experiment import Group, Problem
from channelfit.problem.run_tree import RunTree
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.scorer import Linearization

#: The fields of two trees of runs that may differ where one simulation serves both: the data.
_OF_DATA = ("data_pA", "constant", "outputs")
#: Numbers in the derivatives of all residuals of the candidates that are treated at once.
_AT_ONCE = 1 << 22
_NAMES = tuple(field.name for field in fields(Linearization))


@dataclass(frozen=True, eq=False)
class Alike:
    """Groups of experiments that differ in a parameter proportional to currents.

    Attributes:
        members: the groups, each with its scorer; a simulation of the first one serves all.
        row: of the parameter, in the model of each.
        reference: its value in that simulation, not 0.
    """

    members: tuple[tuple[Group, CpuScorer], ...]
    row: int
    reference: float

    def linearize(self, parameters: np.ndarray) -> list[Linearization]:
        """Linearize each member by the parameters of its model.

        Arguments:
            parameters: (n_parameters, n_candidates), those of the whole problem.
        """
        group, scorer = self.members[0]
        step = max(1, _AT_ONCE // max(1, scorer.compression.n_residuals * len(group.rows)))
        begins = range(0, max(1, parameters.shape[1]), step)
        parts = [list(self._some(parameters[:, k : k + step])) for k in begins]
        return [
            Linearization(
                *(np.concatenate([getattr(p[k], name) for p in parts], axis=-1) for name in _NAMES)
            )
            for k in range(len(self.members))
        ]

    def _some(self, parameters: np.ndarray) -> Iterator[Linearization]:
        """Linearize the members for as many candidates as fit into memory."""
        group, scorer = self.members[0]
        own = group.parameters(parameters)
        own[self.row] = self.reference
        residuals, jacobian, _ = scorer.residuals(own)
        first = scorer.compression
        predicted = residuals.T + first.scale * first.target
        columns = np.ascontiguousarray(np.moveaxis(jacobian, -1, 0))
        products = columns.transpose(0, 2, 1) @ columns
        for group, scorer in self.members:
            yield self._of(scorer, group.parameters(parameters), predicted, columns, products)

    def _of(
        self,
        scorer: CpuScorer,
        own: np.ndarray,
        predicted: np.ndarray,
        columns: np.ndarray,
        products: np.ndarray,
    ) -> Linearization:
        """Return the linearization of one member.

        Arguments:
            own: (n_model_parameters, n_candidates), the parameters of its model.
            predicted: (n_candidates, n_residuals), weighted currents at the reference.
            columns: (n_candidates, n_residuals, n_model_parameters), their derivatives.
            products: (n_candidates, n_model_parameters, n_model_parameters), of these columns.
        """
        plan, total = scorer.compression, scorer.problem.scored.total_weight
        share = own[self.row] / self.reference
        residuals = share[:, None] * predicted - plan.scale * plan.target
        by = np.repeat(share[None], len(own), axis=0)
        by[self.row] = 1.0
        with np.errstate(all="ignore"):  # of candidates that fail
            slope = (residuals[:, None] @ columns)[:, 0].T
            cost = ((residuals**2).sum(axis=1) + plan.constant) / total
            gradient = 2.0 / total * by * slope
            hessian = 2.0 / total * by[:, None] * by * np.moveaxis(products, 0, -1)
        found = Linearization(cost, np.zeros(len(cost), np.int8), gradient, hessian)
        failed = np.flatnonzero(~np.isfinite(cost))
        if len(failed):  # a simulation of its own tells why
            alone = scorer.linearize(own[:, failed])
            for name in _NAMES:
                getattr(found, name)[..., failed] = getattr(alone, name)
        return found


def alike(problem: Problem, members: Sequence[tuple[Group, object]]) -> list[Alike]:
    """Find the groups that can be linearized together: equal temperature, protocols and masks.

    Arguments:
        members: groups that are scored, each with its scorer.
    """
    proportional = [name for name, alone in problem.linear_parameters().items() if alone]
    per_cell = [p.name for p in problem.model.parameters if p.per_cell]
    if len(per_cell) != 1 or per_cell[0] not in proportional:
        return []
    row = problem.model.parameter_names.index(per_cell[0])
    parameter = problem.model.parameters[row]
    reference = max(parameter.lower, parameter.upper, key=abs)
    families: list[list[tuple[Group, CpuScorer]]] = []
    for group, scorer in members:
        if not isinstance(scorer, CpuScorer) or not scorer.has_one_plan:
            continue
        for family in families:
            other, first = family[0]
            same = group.temperature_C == other.temperature_C
            if same and _same_but_data(first.problem.scored, scorer.problem.scored):
                family.append((group, scorer))
                break
        else:
            families.append([(group, scorer)])
    return [Alike(tuple(family), row, reference) for family in families if len(family) > 1]


def _same_but_data(one: RunTree, other: RunTree) -> bool:
    """Return whether two trees of runs differ in their data alone."""
    names = [field.name for field in fields(RunTree) if field.name not in _OF_DATA]
    pairs = ((getattr(one, name), getattr(other, name)) for name in names)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
