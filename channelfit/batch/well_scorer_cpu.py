"""Many wells scored on the cores: candidates are simulated once, whichever well they are for.

Data enter through the targets of compressed residuals alone: ``residual = scale (current -
target)``, see `scoring.tangent_plan`. So candidates of many wells are linearized in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from channelfit.batch.families import Family, ScoredSamples
from channelfit.batch.well_scorer import CrossProducts, WellScorer, attainable
from channelfit.problem.experiment import n_scored
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.scoring.scorer import Linearization, Scorer, make_scorer
from channelfit.scoring.tangent_plan import Plan

#: Wells that one matrix product compares with candidates. The product always has this number of
#: columns, so that the result of one well does not depend on the others.
_COLUMNS = 8
#: Recordings that a thread compresses at a time.
_COMPARED = 8
#: Numbers in the weighted currents of candidates, and in recordings, that are held at once.
_AT_ONCE = 1 << 23


class CpuWellScorer(WellScorer):
    """Generated code on all cores; one simulation of a candidate serves every well."""

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
            together = max(1, min(_COMPARED, _AT_ONCE // (1 + len(tree.data_pA))))
            while block := list(islice(recordings, together * usable_cores())):
                self._compare(block, done, plans, together)
                done += len(block)
        sizes = n_scored(group.problem), plans[0].n_residuals
        self.attainable = attainable(self._constants[0], self.total_weight, *sizes)

    def _compare(
        self,
        recordings: Sequence[tuple[np.ndarray, float]],
        first: int,
        plans: Sequence[Plan],
        together: int,
    ) -> None:
        """Compute the targets of the wells from this number on, so many in the same products."""

        def some(begin: int, end: int) -> None:
            begin, end = begin * together, min(end * together, len(recordings))
            data, merged = zip(*recordings[begin:end], strict=True)
            wells, rows = slice(first + begin, first + end), np.stack(data)
            known: dict[Any, Any] = {}  # plans differ in their ramps alone
            for k, plan in enumerate(plans):
                found = plan.targets(rows, np.array(merged), known)
                self._targets[k][wells], self._constants[k, wells] = found
            weighted = plans[-1].scale * self._targets[-1][wells]
            self.squares[wells] = np.sum(weighted**2, axis=1) + self._constants[-1, wells]

        side_by_side(some, -(-len(recordings) // together), 1, usable_cores())

    def _linearized(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Return cost, gradient and Hessian; see `WellScorer.linearize`."""
        out = Linearization.empty(*parameters.shape)

        def recorded(number: int, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            own = well[which]
            return self._targets[number][own], self._constants[number, own]

        arrays = out.cost, out.status, out.gradient, out.hessian

        def some(first: int, last: int) -> None:
            self._linearizer.linearize(parameters, first, last, *arrays, recorded)

        self._shared(some, parameters.shape[1])
        return out

    def cross_products(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> CrossProducts:
        """Return the inner products; see `WellScorer.cross_products`."""
        linearizer, n = self._open(tuple(rows)), parameters.shape[1]
        order = [0, *(1 + int(np.flatnonzero(linearizer.free == row)[0]) for row in rows)]
        status = np.zeros(n, np.int8)
        products = np.full((n, len(order), len(order)), np.nan)
        with_data = np.full((n, len(order), self.n_wells), np.nan)
        plans = list(linearizer.plans())
        data = [p.scale * t for p, t in zip(plans, self._targets, strict=True)]

        def some(first: int, last: int) -> None:
            currents = linearizer.predicted(parameters[:, first:last])
            for c, (number, weighted) in zip(range(first, last), currents, strict=True):
                if number < 0:
                    status[c] = -number
                    continue
                columns = np.ascontiguousarray(weighted[:, order].T)
                products[c] = columns @ columns.T
                with_data[c] = in_blocks(columns, data[number])

        self._shared(some, n)
        bad = ~(np.isfinite(products).all(axis=(1, 2))) & (status == OK)
        status[bad] = NOT_FINITE
        return CrossProducts(status, products, with_data)

    def _open(self, rows: tuple[int, ...]) -> Linearizer:
        """Return a linearizer of the same problem with derivatives by some parameters alone."""
        if rows not in self._others:
            problem = self._linearizer.problem
            parameters = tuple(
                replace(p, fixed=p.fixed or k not in rows)
                for k, p in enumerate(problem.model.parameters)
            )
            held = replace(problem.model, parameters=parameters)
            self._others[rows] = Linearizer(replace(problem, model=held))
        return self._others[rows]

    @staticmethod
    def _shared(some: Callable[[int, int], None], n: int) -> None:
        with single_threaded_blas():
            side_by_side(some, n, 1, usable_cores())


class OneByOne(WellScorer):
    """A scorer of its own for every well, where a candidate must be simulated for each of them.

    This serves wells under a clamp, models that depend on the temperature, and the reference
    backend. It is slower, and as exact. In `cross_products` one simulation still serves all wells.
    """

    at_once = 32

    def __init__(self, family: Family, backend: str) -> None:
        self.problem, self.n_wells = family.problem, len(family.wells)
        self._family, self._name, self.solves = family, backend, False
        self._scorers: dict[int, Scorer] = {}
        self._first = make_scorer(family.problem, backend)
        self.backend = self._first.backend
        self.total_weight = np.full(self.n_wells, family.total_weight)
        self._counted = counted = ScoredSamples(family.problem)
        self._roots = np.sqrt(counted.weights)
        wells = family.wells.tolist()
        self._data = np.array([self._roots * counted.data(family.problems[k]) for k in wells])
        self.squares = np.array([d @ d for d in self._data])
        self.attainable = np.zeros((2, self.n_wells))

    def _linearized(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Return cost, gradient and Hessian; see `WellScorer.linearize`."""
        out = Linearization.empty(*parameters.shape)
        for scorer, mine in self._by_well(well):
            found = scorer.linearize(np.ascontiguousarray(parameters[:, mine]))
            for name, whole in vars(out).items():
                whole[..., mine] = to_host(getattr(found, name))
        return out

    def cross_products(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> CrossProducts:
        """Return the inner products of whole traces; see `WellScorer.cross_products`."""
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
            weighted = (self._roots[:, None] * self._counted.row(of_data)).T
            for k, one in enumerate(np.ascontiguousarray(weighted), first):
                products[k] = one @ one
                with_data[k] = in_blocks(one[None], self._data)
        status = np.where(np.isfinite(products[:, 0, 0]), OK, NOT_FINITE).astype(np.int8)
        return CrossProducts(status, products, with_data)

    def _by_well(self, well: np.ndarray) -> Iterator[tuple[Scorer, np.ndarray]]:
        for w in np.unique(well).tolist():
            if w not in self._scorers:
                problem = self._family.problems[int(self._family.wells[w])]
                self._scorers[w] = make_scorer(problem, self._name)
            yield self._scorers[w], np.flatnonzero(well == w)


class Unscored(WellScorer):
    """Wells of which no sample counts: every candidate fails."""

    def __init__(self, family: Family) -> None:
        self.problem, self.n_wells = family.problem, len(family.wells)
        self.total_weight, self.squares = np.zeros(self.n_wells), np.zeros(self.n_wells)
        self.attainable = np.zeros((2, self.n_wells))

    def _linearized(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Return failures, with derivatives of 0."""
        out = Linearization.empty(*parameters.shape)
        out.status[:] = NOT_FINITE
        return out

    def cross_products(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> CrossProducts:
        """Return failures."""
        n, width = parameters.shape[1], 1 + len(rows)
        nothing = np.full((n, width, width), np.nan), np.full((n, width, self.n_wells), np.nan)
        return CrossProducts(np.full(n, NOT_FINITE, np.int8), *nothing)


def in_blocks(columns: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Multiply columns (n_columns, n_rows) with the data (n_wells, n_rows) of wells.

    It takes the same number of wells at a time whichever wells there are, so that rounding is the
    same.

    Returns: (n_columns, n_wells).
    """
    n_wells = len(data)
    out = np.empty((len(columns), n_wells))
    for first in range(0, n_wells, _COLUMNS):
        block = data[first : first + _COLUMNS]
        if len(block) < _COLUMNS:
            block = np.concatenate([block, np.zeros((_COLUMNS - len(block), data.shape[1]))])
        out[:, first : first + _COLUMNS] = (columns @ block.T)[:, : n_wells - first]
    return out
