"""The wells of a family scored on a GPU, candidates of all wells in the same launches.

The simulation does not depend on data: `Tangents` simulates the candidates of all wells together,
projects their currents onto the compressed space of the runs, and subtracts there the target of
each candidate's own well. The result of a candidate depends neither on the other candidates, nor on
how many of them the memory takes at once, nor on the other wells.

One object uses one GPU, the current one. Several GPUs are used by several processes, each of which
sees one of them (CUDA_VISIBLE_DEVICES). Wells are fitted independently of each other, so processes
need no messages in between; the search between two launches is Python on the host, for which
threads of one process would have to take turns; and the same workers serve a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from channelfit.batch.families import Family
from channelfit.batch.well_scorer import CrossProducts, WellScorer, attainable
from channelfit.problem.experiment import Problem, n_scored
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda_algebra import Targets
from channelfit.scoring.cuda_tangent_walk import Rows
from channelfit.scoring.cuda_tangents import ONE_JOB
from channelfit.scoring.cuda_variants import MOST, Call, Variant, Variants
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import Linearization


class CudaWellScorer(WellScorer):
    """The wells of a family on the current GPU; see `well_scorer.WellScorer`.

    Parameters and results are arrays of the host.

    Arguments:
        family: wells that one simulation serves (`Family.is_simulated_once`).
        chunk: candidates in one launch. With None it is as many as memory allows.

    Raises InputError: there is no GPU that can be used, nothing to score, or a family whose wells
    one simulation does not serve.
    """

    backend = "cuda"
    at_once = MOST

    def __init__(self, family: Family, chunk: int | None = None) -> None:
        if not family.is_simulated_once:
            raise InputError(
                "on a GPU only wells under an ideal clamp, of one cell and one temperature each, "
                "are fitted together; --backend cpu takes others one by one"
            )
        if family.total_weight <= 0:
            raise InputError("nothing to score: no recording has a sample of weight above 0")
        self.n_wells, self._family = len(family.wells), family
        self._begin(family.problem, chunk)

    def _begin(self, problem: Problem, chunk: int | None) -> None:
        """Prepare the kernels for a problem, and the targets of its wells."""
        self.xp, self.problem = gpu.cupy(), problem
        self._simulated = problem.groups[0].problem
        self.variants = Variants(self._simulated, self._targets_of, ONE_JOB, chunk)
        found = self.variants.first.host_targets
        self.total_weight = found.total_weight
        self.squares = np.sum(found.targets**2, axis=1) + found.constant
        sizes = n_scored(problem), found.targets.shape[1]
        self.attainable = attainable(found.constant, self.total_weight, *sizes)

    def _targets_of(self, rows: Rows) -> Targets:
        """Return the targets of the wells in some rows, as arrays of the host."""
        targets, constant = rows.targets(self._family.data())
        total_weight = np.full(self.n_wells, self._family.total_weight)
        return Targets(targets, constant, total_weight)

    def _linearized(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Return cost, gradient and Hessian; see `WellScorer.linearize`."""
        parameters = self._checked(parameters)
        own = self._checked_wells(well, parameters.shape[1])
        return Linearization(*self.variants.results(Variant.linearize, parameters, own))

    def cross_products(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> CrossProducts:
        """Return the inner products; see `WellScorer.cross_products`.

        Derivatives are differences of currents over a long step. They are exact where the current
        is a straight line in the parameter; elsewhere cross-products are of no use.
        """
        rows = tuple(rows)

        def one(variant: Variant) -> tuple[Call, int]:
            products = 8 * (4 * variant.values.rows.n_compressed + 2 * self.n_wells)
            size = (1 + len(rows)) * (variant.values.bytes_a_candidate + products)
            return partial(self._cross_products, variant=variant, rows=rows), size

        parameters = self._checked(parameters)
        return CrossProducts(*self.variants.results(one, parameters, axis=0, status=0))

    def _cross_products(
        self, parameters: Any, variant: Variant, rows: tuple[int, ...]
    ) -> tuple[Any, ...]:
        """Return the arrays of `CrossProducts` of some candidates."""
        xp, values, n, width = self.xp, variant.values, parameters.shape[1], 1 + len(rows)
        if not n:
            nothing = xp.empty((0, width, width)), xp.empty((0, width, self.n_wells))
            return xp.empty(0, dtype=np.int8), *nothing
        points = xp.repeat(parameters[:, :, None], width, axis=2)
        for k, row in enumerate(rows, 1):
            points[row, :, k] += xp.maximum(xp.abs(parameters[row]), 1.0)
        currents, statuses = variant.predicted(points.reshape(len(points), n * width))
        columns, failed = currents.reshape(n, width, -1), statuses.reshape(n, width)
        for k, row in enumerate(rows, 1):
            step = points[row, :, k] - parameters[row]
            columns[:, k] = (columns[:, k] - columns[:, 0]) / step[:, None]
        status = failed[:, 0]
        for k in range(1, width):
            status = xp.where(status == OK, failed[:, k], status)
        squares = values.algebra.squares(xp.ascontiguousarray(columns.transpose(0, 2, 1)))
        i, j = np.indices((width, width))
        entries = np.maximum(i, j) * (np.maximum(i, j) + 1) // 2 + np.minimum(i, j)
        products = squares[:, xp.asarray(entries.ravel())].reshape(n, width, width)
        with_data = values.algebra.times(columns.reshape(n * width, -1), variant.data)
        with_data = with_data.reshape(n, width, self.n_wells)
        lost = (status == OK) & ~xp.isfinite(products).all(axis=(1, 2))
        status = xp.where(lost, np.int8(NOT_FINITE), status)
        good = (status == OK)[:, None, None]
        return status, xp.where(good, products, np.nan), with_data

    def _checked(self, parameters: np.ndarray) -> np.ndarray:
        """Return the parameters as float64; a row of zeros where there is none.

        Raises:
            ValueError: parameters of another shape than (n_parameters, n).
        """
        parameters = np.asarray(parameters, dtype=np.float64)
        n_parameters = len(self.problem.parameters)
        if parameters.ndim != 2 or parameters.shape[0] != n_parameters:
            raise ValueError(f"parameters must be ({n_parameters}, n), not {parameters.shape}")
        return parameters if n_parameters else np.zeros((1, parameters.shape[1]))

    def _checked_wells(self, well: np.ndarray, n: int) -> np.ndarray:
        """Return the numbers of wells as int32.

        Raises:
            ValueError: another shape than (n,), or a number that no well has.
        """
        well = np.asarray(well)
        if well.shape != (n,):
            raise ValueError(f"well must be ({n},), not {well.shape}")
        if n and (well.min() < 0 or well.max() >= self.n_wells):
            raise ValueError(f"well must be in 0 .. {self.n_wells - 1}")
        return np.ascontiguousarray(well, dtype=np.int32)
