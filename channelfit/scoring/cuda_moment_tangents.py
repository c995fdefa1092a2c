"""Linearizations on the GPU from Chebyshev moments; see `kernels.cuda_moment_tangents`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.choose_path import (
    LEAST_SERVED,
    MOST_MOMENT_STATES,
    reason_against_moments,
)
from channelfit.scoring.cuda_algebra import Algebra, Targets
from channelfit.scoring.cuda_launch import Launched, Program, rounded
from channelfit.scoring.cuda_tangent_walk import Rows
from channelfit.scoring.cuda_tangents import ALGEBRA_KERNELS, Results
from channelfit.scoring.kernels.cuda_moment_tangents import (
    CHUNK,
    COLUMNS,
    JUDGE_MOMENTS,
    MULTIPLY_COLUMNS,
    TILE,
    TRACE_MOMENTS,
    CudaMomentTangentSource,
    column_threads,
)
from channelfit.scoring.kernels.detailed_balance import modes_are_real
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.layout.moment_tables import (
    SLOPE_TRUNCATION,
    Ladder,
    ladder,
    moment_walk,
    speed_of,
    weights,
)
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import product

#: The structures Run and Rung of the generated text.
RUN = np.dtype(
    [
        ("root", "f8"),
        *((name, "i4") for name in ("source", "target", "kind", "n", "n_rows")),
        *((name, "i4") for name in ("before", "rows", "first", "stride")),
        ("unused", "i4"),
    ]
)
RUNG = np.dtype([(name, "i4") for name in ("degree", "table", "end")])
#: Of fewer states propagators stay in registers, and a thread has several derivatives.
_LEAST_STATES = 6
#: The operations that moments must spare, as a multiple of their own.
_LEAST_GAIN = 1.5
#: Tables that these are worth, of some tenths of a millisecond each.
_MOST_TABLES = 500
#: Columns for which blocks that multiply them have shared memory.
_MOST_PARAMETERS = 256
_THREADS_JUDGING = 128


class MomentTangents(Launched):
    """The kernels that linearize one problem of held voltages by moments.

    Arguments:
        rows, targets, n_jobs: as of `Tangents`.
        found: the rungs of the problem.
    """

    kernel_name, thread_choices = TRACE_MOMENTS, (CudaMomentTangentSource.threads,)

    def __init__(
        self,
        problem: Problem,
        rows: Rows,
        targets: Callable[[], Targets],
        n_jobs: int | None,
        found: Ladder,
    ) -> None:
        self.problem, self.targets, self.n_jobs, self.ladder = problem, targets, n_jobs, found
        self.rows = rows.compressed
        self.source = CudaMomentTangentSource(problem.model)
        self.free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
        multiply = MULTIPLY_COLUMNS, column_threads
        self.algebra = Algebra(self.rows, 1 + len(self.free), lambda: self._kernels, multiply)
        self._n_columns = -(-(1 + len(self.free)) // COLUMNS) * COLUMNS
        self._programs: dict[int, Program] = {}

    @property
    def bytes_a_candidate(self) -> int:
        """Bytes of the GPU's memory that a candidate takes."""
        return 8 * self.rows.n_rows * (1 + len(self.free))

    def linearize(self, parameters: Any, well: Any = gpu.NULL) -> Results:
        """Return what `Tangents.linearize` does; candidates in doubt have the status UNRESOLVED."""
        n, n_parameters = parameters.shape[1], len(self.problem.model.parameters)
        results = Results.empty(n, n_parameters)
        if not n:
            return results
        cost, status, _, hessian = results
        currents, statuses, lost = self._trace(parameters)
        targets = self.targets()
        partial = self.algebra.products(currents, n, targets, well)
        own = self._free, n_parameters, targets, well
        self.algebra.conclude(partial, statuses, *own, tuple(results))
        n_free, n_jobs = np.int32(len(self.free)), np.int32(len(statuses))
        self._kernels[JUDGE_MOMENTS](
            (n,),
            (_THREADS_JUDGING,),
            (
                *(parameters, self._free, n_free, np.int32(n_parameters)),
                *(lost, statuses, n_jobs, targets.total_weight, well, cost, hessian, status),
            ),
        )
        return results

    def _trace(self, parameters: Any) -> tuple[Any, Any, Any]:
        """Return compressed currents with derivatives, as `Algebra.products` takes them; statuses
        (n_jobs, n), and squares that rounding may spoil (n_jobs, n, 1 + n_free).
        """
        xp, n, width = gpu.cupy(), parameters.shape[1], 1 + len(self.free)
        n_threads = n * self._n_columns
        program, threads = self.program(self._jobs(n_threads)), self._threads
        n_jobs = program.tables
        currents = xp.empty(self.rows.n_rows * n * width)
        lost, status = xp.empty((n_jobs, n, width)), xp.empty((n_jobs, n), dtype=np.int8)
        program.kernels[TRACE_MOMENTS](
            (-(-n_threads // threads), n_jobs),
            (threads,),
            (
                *(parameters, np.int64(n), self._free, np.int32(width - 1)),
                *(np.int32(self._n_columns), *program.arrays, *self._tables[1]),
                *(currents, lost, status),
            ),
        )
        return currents, status, lost

    def compile_ahead(self) -> None:
        """Begin to compile the kernels, in another thread."""
        _ = self._compilation

    def program(self, n_jobs: int) -> Program:
        """Return kernels and a walk for so many jobs, or for as many as there are last runs."""
        if n_jobs not in self._programs:
            walk = moment_walk(self.problem.scored, n_jobs, self.rows.oscillating)
            runs, kinds = np.zeros(len(walk.runs), RUN), self._tables[0]
            for row, run in zip(runs, walk.runs, strict=True):
                row["source"], row["target"], row["n"] = run.source, run.target, run.n
                row["kind"] = kinds[run.n, run.span]
                if run.weight > 0:
                    place = self.rows.place[run.number]
                    for name in ("root", "before", "rows", "first", "stride"):
                        row[name] = self.rows.runs[name][place]
                    row["n_rows"] = len(self.rows.compression(run.number).matrix)
            tops = [
                min(self._top(run.n, run.span) for run in walk.runs[first:last])
                for first, last in itertools.pairwise(walk.visits)
            ]
            most = np.array([speed_of(top) for top in tops]) * (1 - 1e-5)
            walked = walk.jobs, walk.visits, walk.visit_v, most, runs.view(np.uint8), walk.start_v
            arrays = [gpu.cupy().asarray(np.ascontiguousarray(array)) for array in walked]
            numbers = np.int32(len(walk.start_v)), np.int32(self.ladder.lowest)
            self._programs[n_jobs] = Program(len(walk.jobs) - 1, (*arrays, *numbers), self._kernels)
        return self._programs[n_jobs]

    def _top(self, n: int, span: float) -> int:
        """Return the highest rung of a kind of runs."""
        return min(top for kind, top in self.ladder.highest.items() if kind[1] == span)

    @cached_property
    def _tables(self) -> tuple[dict[tuple[int, float], int], tuple[Any, Any]]:
        """Where the rungs of each kind begin; and on the GPU the rungs and their tables."""
        kinds: dict[tuple[int, float], int] = {}
        rungs, parts, size = list[tuple[int, int, int]](), list[np.ndarray](), 0
        for (n, span), top in self.ladder.highest.items():
            kinds[n, span] = kinds[0, span] = len(rungs)
            some = range(self.ladder.lowest, int(top) + 1)
            for table, end in tables_of(n, span, some, self.rows.oscillating):
                rungs.append((end.size, size, size + table.size))
                parts += [table, end]
                size += table.size + end.size
        on_device = gpu.cupy().asarray
        records = np.array(rungs, RUNG).view(np.uint8)
        return kinds, (on_device(records), on_device(np.concatenate(parts)))

    @cached_property
    def _free(self) -> Any:
        return gpu.cupy().asarray(np.array(self.free or [-1], dtype=np.int32))

    @cached_property
    def _compilation(self) -> gpu.Compilation:
        """The program; a single job takes the most slots."""
        order = schedule(self.problem.scored, single_samples_anywhere=True)
        text = self.source.specialized(rounded(order.n_slots))
        with gpu.gpu_errors():
            return gpu.compile_ahead(text, (), f"{self.problem.model.name}.cu")

    @cached_property
    def _kernels(self) -> dict[str, gpu.CudaKernel]:
        module = self._compilation.module()
        names = TRACE_MOMENTS, JUDGE_MOMENTS, MULTIPLY_COLUMNS, *ALGEBRA_KERNELS
        return {name: module.kernel(name) for name in names}

    @property
    def typical_kernel(self) -> gpu.CudaKernel:
        """The kernel by which the GPU is filled."""
        return self._kernels[TRACE_MOMENTS]


@lru_cache(maxsize=64)
def tables_of(
    n: int, span: float, rungs: range, oscillating: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the tables of n samples in span ms on some rungs: from moments to compressed rows, as
    the lanes of a warp read it, (tiles, chunks, 32, 4) in one row; and of the end, (degree,).
    """
    matrix, times = np.zeros((0, 0)), np.ones(1)
    if n:
        run = compression(n, oscillating)
        matrix, times = run.matrix, np.append(run.points / n, 1.0)
    decays = span * np.array([speed_of(rung) for rung in rungs])
    shares = weights(np.outer(decays, times).ravel(), SLOPE_TRUNCATION)
    shares = shares.reshape(len(decays), len(times), -1)
    further = np.cumsum(shares[..., ::-1], axis=-1)[..., ::-1].max(axis=1)
    out = []
    for some, degree in zip(shares, (further > SLOPE_TRUNCATION).sum(axis=1), strict=True):
        padded = np.zeros((-(-len(matrix) // TILE) * TILE, -(-degree // CHUNK) * CHUNK))
        padded[: len(matrix), :degree] = product(matrix, some[:-1, :degree])
        # tile, upper or lower half, row; chunk, left or right half, column
        split = padded.reshape(-1, 2, 8, padded.shape[1] // CHUNK, 2, 4)
        end = np.zeros(padded.shape[1])
        end[:degree] = some[-1, :degree]
        out.append((split.transpose(0, 3, 2, 5, 4, 1).ravel(), end))
    return out


def serves(problem: Problem, always: bool = False) -> Ladder | None:
    """Return the rungs of a problem whose derivatives are faster by moments; None of others.

    Nearly all candidates must be slow enough: a GPU takes a few others the older way as slowly as
    many.

    Arguments:
        always: whether moments need not be faster.
    """
    if problem.scored.total_weight <= 0 or reason_against_moments(problem) is not None:
        return None
    states, n_parameters = len(problem.model.chains[0].states), len(problem.model.parameters)
    if not 2 <= states <= MOST_MOMENT_STATES or n_parameters > _MOST_PARAMETERS:
        return None
    if states < _LEAST_STATES and not always:
        return None
    found = ladder(problem, not modes_are_real(problem.model))
    if always:
        return found
    n_tables = sum(top - found.lowest + 1 for top in found.highest.values())
    few = n_tables <= _MOST_TABLES and found.served >= LEAST_SERVED["cuda"]
    return found if few and expected_gain(states, found.degree) >= _LEAST_GAIN else None


def expected_gain(states: int, degree: float) -> float:
    """Return the operations of propagators over those of so many moments, of a run of a chain.

    Propagators: at some 53 points a product of dual numbers with a state, and for each voltage of
    two or three runs 14 products of matrices. Moments: three recurrences, and three tiles of rows.
    """
    propagators = 3.0 * states**2 * (53.0 + 5.5 * states)
    return propagators / (degree * (3.0 * (3.0 * states - 2.0) + 32.0))
