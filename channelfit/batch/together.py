"""Candidates of many wells, scored and linearized in the same calls.

A *well* is one recording that is fitted on its own; a *family* is the wells that differ in nothing
but the data (`families`). What a candidate shows is computed once, whichever well it is for, and
compared with the data of that well. Data enter through the targets of compressed residuals alone:
``residual = scale (shown - target)``, see `scoring.tangent_plan`.

`together` gives each family what scores it. `Together` is what every backend offers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from channelfit.batch.families import Family, families
from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.scoring.scorer import Linearization, Score, Scorer, chosen_backend, make_scorer
from channelfit.scoring.tangent_plan import Plan

#: Wells that one matrix product compares with candidates. It has always as many columns, so that
#: what comes of one well does not depend on which others there are.
_COLUMNS = 8
#: Numbers in the weighted currents of candidates that are held at once.
_AT_ONCE = 1 << 23


@dataclass(frozen=True, eq=False)
class Across:
    """Candidates compared with all wells of a family, some parameters left open.

    The weighted current of a candidate is b_0, and b_k is its derivative by the k-th open
    parameter. Where the current is a straight line in these together, a change x of them costs

        (|b_0 + sum x_k b_k|^2 - 2 sum_k (1, x)_k b_k . data + |data|^2) / total weight

    Attributes:
        status: (n,) int8, as in a score.
        products: (n, 1 + n_open, 1 + n_open), of the b with each other; NaN where one failed.
        with_data: (n, 1 + n_open, n_wells), of the b with the weighted data of every well.
    """

    status: np.ndarray
    products: np.ndarray
    with_data: np.ndarray


class Together(ABC):
    """What scores the wells of one family; parameters are (n_parameters, n) in base units.

    Every candidate has the number of its well within the family, `well` (n,) int64. What is
    computed of a candidate depends on its parameters and the data of its well, to the last bit,
    and neither on the other candidates of the call nor on how many threads there are.

    Attributes:
        problem: of the first well: its model, protocols and mask are those of all.
        n_wells: how many there are.
        total_weight: (n_wells,), of all samples of a well; 0 where none counts.
        squares: (n_wells,), the weighted sum of the squares of the data, pA^2.
        backend: "cpu" or "cuda".
        solves: whether `across` can leave parameters open.
        at_once: wells whose candidates come best in the same calls.
    """

    problem: Problem
    n_wells: int
    total_weight: np.ndarray
    squares: np.ndarray
    backend: str = "cpu"
    solves: bool = True
    at_once: int = 1 << 14

    @abstractmethod
    def linearize(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Cost, gradient and curvature of every candidate against the data of its well."""

    @abstractmethod
    def score(self, parameters: np.ndarray, well: np.ndarray) -> Score:
        """The same costs and statuses, to the last digits, without derivatives."""

    @abstractmethod
    def across(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> Across:
        """Every candidate against every well.

        Arguments:
            rows: of the open parameters. The derivatives by these are those at `parameters`.
        """


def together(
    problems: Sequence[Problem], backend: str = "auto"
) -> list[tuple[np.ndarray, Together]]:
    """What scores all wells, family by family.

    Arguments:
        problems: of the wells, in their order: the same model and as many experiments each.
        backend: auto, cpu, cuda, or reference, as for `make_scorer`.

    Returns: for each family the indices of its wells among the problems, and what scores them.

    Raises: InputError for a backend that cannot be used here, or wells with different parameters.
    """
    chosen = chosen_backend(backend, "float64")
    return [(family.wells, _together(family, chosen)) for family in families(problems)]


def with_own_masks(problems: Sequence[Problem], backend: str = "auto") -> Together | None:
    """What linearizes wells with masks of their own in the same calls; it tries no points on all.

    Arguments:
        problems: of wells that differ in their data and masks alone.

    Returns: None where every family of them is best served by a scorer of its own.
    """
    if chosen_backend(backend, "float64") != "cuda":
        return None
    if not all(family.walks_alone and family.total_weight > 0 for family in families(problems)):
        return None
    from channelfit.batch.masks_cuda import CudaOwnMasks  # which imports this file

    return CudaOwnMasks(problems)


def _together(family: Family, backend: str) -> Together:
    if family.total_weight <= 0:
        return Nothing(family)
    if backend == "cpu" and family.walks_alone:
        return CpuTogether(family)
    if backend == "cuda" and family.walks_alone:
        from channelfit.batch.together_cuda import CudaTogether  # which imports this file

        return CudaTogether(family)
    return OneByOne(family, backend)


class CpuTogether(Together):
    """Generated code on all cores; one walk through the states serves every well."""

    at_once = 32

    def __init__(self, family: Family) -> None:
        group = family.problem.groups[0]
        self.problem, self.n_wells = family.problem, len(family.wells)
        self._linearizer = Linearizer(group.problem)
        self._others: dict[tuple[int, ...], Linearizer] = {}
        plans = list(self._linearizer.plans())
        tree = group.problem.scored
        self._targets = [np.empty((self.n_wells, plan.n_residuals)) for plan in plans]
        self._constants = np.empty((len(plans), self.n_wells))
        self.total_weight = np.full(self.n_wells, tree.total_weight)
        self.squares = np.empty(self.n_wells)
        with single_threaded_blas():
            recordings, done = family.data(), 0
            while block := list(islice(recordings, 2 * usable_cores())):
                self._compare(block, done, plans)
                done += len(block)

    def _compare(
        self, recordings: Sequence[tuple[np.ndarray, float]], first: int, plans: Sequence[Plan]
    ) -> None:
        """Take what is compared with the wells from this number on from their recordings."""

        def some(begin: int, end: int) -> None:
            for w, (data, constant) in enumerate(recordings[begin:end], first + begin):
                for k, plan in enumerate(plans):
                    self._targets[k][w], self._constants[k, w] = plan.targets(data, constant)
                shown = plans[-1].scale * self._targets[-1][w]
                self.squares[w] = shown @ shown + self._constants[-1, w]

        side_by_side(some, len(recordings), 1, usable_cores())

    def linearize(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Cost, gradient and curvature; see `Together.linearize`."""
        n_parameters, n = parameters.shape
        out = Linearization(
            np.empty(n),
            np.zeros(n, np.int8),
            np.zeros((n_parameters, n)),
            np.zeros((n_parameters, n_parameters, n)),
        )
        free = self._linearizer.free

        def some(first: int, last: int) -> None:
            piece = slice(first, last)
            normals = self._into(self._linearizer, parameters, well, piece, out.cost, out.status)
            normals[out.status[piece] != OK] = 0.0
            out.gradient[free, piece] = 2.0 * normals[:, 0, 1:].T
            out.curvature[free[:, None], free, piece] = 2.0 * normals[:, 1:, 1:].transpose(1, 2, 0)

        self._shared(some, n)
        return out

    def score(self, parameters: np.ndarray, well: np.ndarray) -> Score:
        """Cost and status; see `Together.score`."""
        n = parameters.shape[1]
        out = Score(np.empty(n), np.zeros(n, np.int8))
        linearizer = self._open(())

        def some(first: int, last: int) -> None:
            piece = slice(first, last)
            self._into(linearizer, parameters, well, piece, out.cost, out.status)

        self._shared(some, n)
        return out

    def across(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> Across:
        """Every candidate against every well; see `Together.across`."""
        linearizer, n = self._open(tuple(rows)), parameters.shape[1]
        order = [0, *(1 + int(np.flatnonzero(linearizer.free == row)[0]) for row in rows)]
        status = np.zeros(n, np.int8)
        products = np.full((n, len(order), len(order)), np.nan)
        with_data = np.full((n, len(order), self.n_wells), np.nan)
        plans = list(linearizer.plans())
        data = [p.scale * t for p, t in zip(plans, self._targets, strict=True)]

        def some(first: int, last: int) -> None:
            for c, (number, shown) in zip(
                range(first, last), linearizer.shown(parameters[:, first:last]), strict=True
            ):
                if number < 0:
                    status[c] = -number
                    continue
                columns = np.ascontiguousarray(shown[:, order].T)
                products[c] = columns @ columns.T
                with_data[c] = in_blocks(columns, data[number])

        self._shared(some, n)
        bad = ~(np.isfinite(products).all(axis=(1, 2))) & (status == OK)
        status[bad] = NOT_FINITE
        return Across(status, products, with_data)

    def _open(self, rows: tuple[int, ...]) -> Linearizer:
        """A linearizer of the same problem with derivatives by some parameters alone."""
        if rows not in self._others:
            problem = self._linearizer.problem
            parameters = tuple(
                replace(p, fixed=p.fixed or k not in rows)
                for k, p in enumerate(problem.model.parameters)
            )
            held = replace(problem.model, parameters=parameters)
            self._others[rows] = Linearizer(replace(problem, model=held))
        return self._others[rows]

    def _into(
        self,
        linearizer: Linearizer,
        parameters: np.ndarray,
        well: np.ndarray,
        piece: slice,
        cost: np.ndarray,
        status: np.ndarray,
    ) -> np.ndarray:
        """Fills in cost and status of some candidates; returns products by total weight."""
        wells = well[piece]

        def recorded(number: int, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            own = wells[which]
            return self._targets[number][own], self._constants[number, own]

        status[piece], normals = linearizer.normals(parameters[:, piece], recorded)
        normals *= 1.0 / self._linearizer.problem.scored.total_weight
        cost[piece] = normals[:, 0, 0]
        return normals

    @staticmethod
    def _shared(some: Callable[[int, int], None], n: int) -> None:
        with single_threaded_blas():
            side_by_side(some, n, 1, usable_cores())


class OneByOne(Together):
    """Every well by a scorer of its own, where data decide more than targets do.

    A clamp, temperatures that the model is told, and backends without a walk for all wells come
    here: slower, and as right. What all wells share is the simulation in `across`.
    """

    at_once = 32

    def __init__(self, family: Family, backend: str) -> None:
        self.problem, self.n_wells = family.problem, len(family.wells)
        self._family, self._name, self.solves = family, backend, False
        self._scorers: dict[int, Scorer] = {}
        self._first = make_scorer(family.problem, backend)
        self.backend = self._first.backend
        self.total_weight = np.full(self.n_wells, family.total_weight)
        weights = [e.weight * e.recording.weight for e in family.problem.fitted if e.recording]
        self._counts = [weight > 0 for weight in weights]
        self._roots = np.concatenate(
            [np.sqrt(weight[some]) for weight, some in zip(weights, self._counts, strict=True)]
        )
        data = []
        for well in family.wells.tolist():
            fitted = family.problems[well].fitted
            currents = [e.recording.current_pA for e in fitted if e.recording]
            kept = [c[some] for c, some in zip(currents, self._counts, strict=True)]
            data.append(self._roots * np.concatenate(kept))
        self._data = np.array(data)
        self.squares = np.array([d @ d for d in data])

    def linearize(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Cost, gradient and curvature; see `Together.linearize`."""
        n_parameters, n = parameters.shape
        out = Linearization(
            np.full(n, np.inf),
            np.zeros(n, np.int8),
            np.zeros((n_parameters, n)),
            np.zeros((n_parameters, n_parameters, n)),
        )
        for scorer, mine in self._by_well(well):
            found = scorer.linearize(np.ascontiguousarray(parameters[:, mine]))
            for name, whole in vars(out).items():
                whole[..., mine] = to_host(getattr(found, name))
        return out

    def score(self, parameters: np.ndarray, well: np.ndarray) -> Score:
        """Cost and status; see `Together.score`."""
        n = parameters.shape[1]
        out = Score(np.full(n, np.inf), np.zeros(n, np.int8))
        for scorer, mine in self._by_well(well):
            found = scorer.preview(np.ascontiguousarray(parameters[:, mine]))
            out.cost[mine], out.status[mine] = to_host(found.cost), to_host(found.status)
        return out

    def across(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> Across:
        """Every candidate against every well, from whole traces; see `Together.across`."""
        if rows:
            raise ValueError("no parameter is left open where wells are scored one by one")
        n = parameters.shape[1]
        products, with_data = np.empty((n, 1, 1)), np.empty((n, 1, self.n_wells))
        step = max(1, _AT_ONCE // max(1, self._data.shape[1]))
        fitted = [e.recording is not None and e.weight > 0 for e in self.problem.experiments]
        for first in range(0, n, step):
            piece = slice(first, first + step)
            traces = self._first.simulate(np.ascontiguousarray(parameters[:, piece]))
            of_data = [trace for trace, some in zip(traces, fitted, strict=True) if some]
            kept = [t[some] for t, some in zip(of_data, self._counts, strict=True)]
            shown = (self._roots[:, None] * np.concatenate(kept)).T
            for k, one in enumerate(np.ascontiguousarray(shown), first):
                products[k] = one @ one
                with_data[k] = in_blocks(one[None], self._data)
        status = np.where(np.isfinite(products[:, 0, 0]), OK, NOT_FINITE).astype(np.int8)
        return Across(status, products, with_data)

    def _by_well(self, well: np.ndarray) -> Iterator[tuple[Scorer, np.ndarray]]:
        for w in np.unique(well).tolist():
            if w not in self._scorers:
                problem = self._family.problems[int(self._family.wells[w])]
                self._scorers[w] = make_scorer(problem, self._name)
            yield self._scorers[w], np.flatnonzero(well == w)


class Nothing(Together):
    """Wells of which no sample counts: every candidate fails."""

    def __init__(self, family: Family) -> None:
        self.problem, self.n_wells = family.problem, len(family.wells)
        self.total_weight, self.squares = np.zeros(self.n_wells), np.zeros(self.n_wells)

    def linearize(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Failures, with derivatives of 0."""
        n_parameters, n = parameters.shape
        gradient, curvature = np.zeros((n_parameters, n)), np.zeros((n_parameters, n_parameters, n))
        return Linearization(np.full(n, np.inf), self._failed(n), gradient, curvature)

    def score(self, parameters: np.ndarray, well: np.ndarray) -> Score:
        """Failures."""
        return Score(np.full(parameters.shape[1], np.inf), self._failed(parameters.shape[1]))

    def across(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> Across:
        """Failures."""
        n, width = parameters.shape[1], 1 + len(rows)
        nothing = np.full((n, width, width), np.nan), np.full((n, width, self.n_wells), np.nan)
        return Across(self._failed(n), *nothing)

    @staticmethod
    def _failed(n: int) -> np.ndarray:
        return np.full(n, NOT_FINITE, np.int8)


def in_blocks(columns: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Products (n_columns, n_wells) of columns (n_columns, n_rows) with data (n_wells, n_rows).

    Some wells at a time, always as many, so that rounding is the same whichever wells there are.
    """
    n_wells = len(data)
    out = np.empty((len(columns), n_wells))
    for first in range(0, n_wells, _COLUMNS):
        block = data[first : first + _COLUMNS]
        if len(block) < _COLUMNS:
            block = np.concatenate([block, np.zeros((_COLUMNS - len(block), data.shape[1]))])
        out[:, first : first + _COLUMNS] = (columns @ block.T)[:, : n_wells - first]
    return out
