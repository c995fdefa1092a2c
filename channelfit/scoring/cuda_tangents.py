"""Currents and their derivatives on the GPU, and from them gradients and Hessians.

A kernel writes dual numbers at the samples of a recording that matter. A matrix product takes these
points into the compressed space of their run (`held_compression`), where the recording is
subtracted. Another kernel adds up the inner products of all columns of a candidate, residuals and
derivatives alike, in an order that does not depend on how many candidates there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.cuda_algebra import Algebra, Targets
from channelfit.scoring.cuda_launch import Launched, Program
from channelfit.scoring.cuda_tangent_walk import Layout, Rows, TangentTables, as_bytes
from channelfit.scoring.kernels.cuda_algebra import (
    CONCLUDE_TANGENTS,
    MULTIPLY_TANGENTS,
    PROJECT_TANGENTS,
    WEIGH_TANGENTS,
)
from channelfit.scoring.kernels.cuda_pieces import (
    COMPOSE_HELD,
    COMPOSE_PIECES,
    PIECE_THREADS,
    REPLAY_PIECES,
    shared_bytes,
)
from channelfit.scoring.kernels.cuda_tangents import (
    COMPOSE_TANGENTS,
    REPLAY_TANGENTS,
    TRACE_TANGENTS,
    CudaTangentSource,
)
from channelfit.scoring.layout.exponential_tables import voltage_varies
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host

#: The jobs into which a candidate is cut that is compared with wells. As many as fill the GPU would
#: be more for few candidates than for many, which shows in the last digits.
ONE_JOB = 1
_TYPICAL_JOBS = 2  # where it is open how many they are
#: Jobs by which so few candidates would be cut that their held runs are taken side by side instead.
_BESIDE = 4
#: Kernels that make costs of currents, the same in every program.
ALGEBRA_KERNELS = PROJECT_TANGENTS, WEIGH_TANGENTS, MULTIPLY_TANGENTS, CONCLUDE_TANGENTS
_SEGMENTS_A_JOB = 4  # as they leave the walk little to do
_THREADS_CUT = 64  # of a block of segments


class Tangents(Launched):
    """The kernels of one problem and the algebra behind them, on arrays that lie on the GPU.

    Every candidate is compared with one of several wells, in the same launches.

    Arguments:
        rows: the samples of the problem that are computed. Where they have ramps in pieces no
            voltage is stepped through, and a candidate that these pieces do not follow has the
            status UNRESOLVED.
        targets: returns the recordings of all wells, in these rows; it is called when they are
            first needed.
        tangents: the derivatives that a thread carries. 0 gives values alone; with None the number
            is chosen by the states of the model.
        n_jobs: the jobs into which a candidate is cut; None for as many as fill the GPU, which
            shows in the last digits.
    """

    kernel_name, thread_choices = TRACE_TANGENTS, (128, 64, 96, 32)

    def __init__(
        self,
        problem: Problem,
        rows: Rows,
        targets: Callable[[], Targets],
        tangents: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.problem, self.rows, self.targets, self.ramps = problem, rows, targets, rows.ramps
        self.source: CudaTangentSource = CudaTangentSource(problem.model, tangents)
        free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
        self.free = free if self.source.tangents else []
        self.n_jobs = n_jobs
        self.algebra = Algebra(rows, 1 + len(self.free), lambda: self._any_kernels)
        pieces, segments = (COMPOSE_PIECES, REPLAY_PIECES), (COMPOSE_TANGENTS, REPLAY_TANGENTS)
        self._compose, self._replay = pieces if self.ramps else segments
        self.threads: int | None = None  # of a block; None for what fills the GPU best
        self._programs: dict[int, Program] = {}
        #: (whether the voltage varies, whether runs are cut) -> slots, and what is compiled
        self._modules: dict[tuple[bool, bool], tuple[int, gpu.CudaModule]] = {}
        self._made: dict[int, TangentTables] = {}
        self._compilations: dict[str, gpu.Compilation] = {}  # by its text

    @property
    def bytes_a_candidate(self) -> int:
        """Bytes of the GPU's memory that a candidate of `linearize` takes.

        These are all currents, those of the largest group three times over, and what pieces of
        ramps take. What other segments and held runs side by side take is counted where any number
        of candidates is cut alike: else these are few, and at most as many parts as fill the GPU.
        """
        largest = max(group.n_rows for group in self.rows.groups)
        numbers = (1 + len(self.free)) * (self.rows.n_rows + 3 * largest)
        if self.ramps:
            source, n_pieces = self.source, sum(len(ramp.lengths) for ramp in self.ramps.values())
            of_thread = source.composite_size + source.state_size + source.open_size
            numbers += n_pieces * (self._n_groups * of_thread + 2 * source.largest**2)
        if self.n_jobs is not None:
            source, tables = self.source, self._tables(self._jobs_of_program(self.n_jobs))
            n_cut, n_left = len(tables.segments), tables.n_left
            if self.ramps:
                n_cut, n_left = 0, n_left - n_cut
            composites = (n_cut + len(tables.held)) * source.composite_size
            numbers += self._n_groups * (composites + n_left * source.state_size)
        return 8 * numbers

    def linearize(self, parameters: Any, well: Any = gpu.NULL) -> Results:
        """Return cost, status, gradient and Hessian; see `scorer.Linearization`.

        Arguments:
            parameters: (n_parameters, n_candidates) float64, contiguous.
            well: (n_candidates,) int32, the number of the well that each is compared with.
        """
        results = Results.empty(parameters.shape[1], len(self.problem.model.parameters))
        cost, status, gradient, hessian = results
        self._conclude(parameters, well, cost, status, gradient, hessian)
        return results

    def score(self, parameters: Any, well: Any = gpu.NULL) -> Results:
        """Return cost and status alone; arguments as in `linearize`."""
        results = Results.empty(parameters.shape[1])
        cost, status = results
        self._conclude(parameters, well, cost, status, gpu.NULL, gpu.NULL)
        return results

    def predicted(self, parameters: Any) -> tuple[Any, Any]:
        """Return currents in the compressed rows that the targets of wells have.

        Arguments:
            parameters: as in `linearize`, of at least one candidate.

        Returns:
            Currents (n_candidates, n_compressed, 1 + n_free), pA times the root of a weight, each
            with its derivatives; and statuses (n_jobs, n_candidates).
        """
        xp, n = gpu.cupy(), parameters.shape[1]
        currents, statuses = self.trace(parameters)
        projected = self.algebra.projected(currents, n)
        return xp.concatenate([*self.algebra.groups_of(currents, projected, n)], axis=1), statuses

    def fills(self, n: int) -> bool:
        """Return whether n candidates fill the GPU without being cut into jobs."""
        return self.n_jobs is None and n >= self._resident

    def _conclude(
        self, parameters: Any, well: Any, cost: Any, status: Any, gradient: Any, hessian: Any
    ) -> None:
        """Fill in cost and status, and gradient and Hessian, zeros so far, if not null."""
        n = parameters.shape[1]
        if n:
            currents, statuses = self.trace(parameters)
            if self.n_jobs is None and self._jobs(n * self._n_groups) < _BESIDE:
                partial = self.algebra.products_by_cublas(currents, n, self.targets())
            else:
                partial = self.algebra.products(currents, n, self.targets(), well)
            self.algebra.conclude(
                partial,
                statuses,
                self._on_device.free,
                len(self.problem.model.parameters),
                self.targets(),
                well,
                (cost, status, gradient, hessian),
            )

    def trace(self, parameters: Any) -> tuple[Any, Any]:
        """Return weighted currents, each with its derivatives; and statuses.

        Returns:
            The currents as one flat array, in which the arrays (n_candidates, n_rows, 1 + n_free)
            of all groups follow each other; and the statuses (n, n_candidates) of every job and
            segment.
        """
        xp, n, n_free = gpu.cupy(), parameters.shape[1], len(self.free)
        n_groups = self._n_groups
        program, threads = self.program(self._jobs(n * n_groups)), self.threads or self._threads
        tables = program.tables
        n_walks, n_segments, n_held = tables.n_jobs, len(tables.segments), len(tables.held)
        n_jobs = n_walks + tables.n_replays
        currents = xp.empty(self.rows.n_rows * n * (1 + n_free))
        status = xp.empty((n_jobs + n_segments + n_held, n), dtype=np.int8)
        composites = xp.empty((n_segments + n_held) * n * n_groups * self.source.composite_size)
        states = xp.empty(tables.n_left * n * n_groups * self.source.state_size)
        device = self._on_device
        candidates = (parameters, np.int64(n), device.free, np.int32(n_free), np.int32(n_groups))
        kernels, (jobs, *walk, segments, held) = program.kernels, program.arrays
        cut = segments, walk[-1]
        status_of_held = status[n_jobs + n_segments :]
        blocks = -(-n * n_groups // threads), -(-n * n_groups // _THREADS_CUT)
        left: tuple[Any, ...] = ()  # by the first kernel for the last
        if self.ramps:
            largest = self.source.largest
            opened = xp.empty(n_segments * n * n_groups * self.source.open_size)
            tails = xp.empty(n_segments * n * 2 * largest**2)
            left = opened, tails, device.pieces
            room = shared_bytes(largest, self.source.channel.n_rates)
            results = (composites, opened, tails, status[n_jobs:])
            kernels[self._compose](
                (n, n_segments), (PIECE_THREADS,), (*candidates, *cut, *results), room
            )
        elif n_segments:
            kernels[self._compose](
                (blocks[1], n_segments),
                (_THREADS_CUT,),
                (*candidates, *cut, composites, status[n_jobs:]),
            )
        if n_held:
            kernels[COMPOSE_HELD](
                (blocks[1], n_held),
                (_THREADS_CUT,),
                (*candidates, held, np.int32(n_segments), composites, status_of_held),
            )
        walked = [(jobs, n_walks, status)]
        if n_held:
            walked.append((jobs[n_walks:], tables.n_replays, status[n_walks:]))
        for some, n_some, own in walked:
            kernels[TRACE_TANGENTS](
                (blocks[0], n_some),
                (threads,),
                (*candidates, some, *walk, device.runs, composites, states, currents, own),
            )
        if n_segments:
            end = (currents, status[n_jobs:]) if self.ramps else (currents,)
            kernels[self._replay](
                (blocks[1], n_segments),
                (_THREADS_CUT,),
                (*candidates, *cut, states, *left, device.runs, *end),
            )
        return currents, status

    @property
    def _n_groups(self) -> int:
        """The number of threads that take a candidate through a job."""
        return max(1, -(-len(self.free) // max(1, self.source.tangents)))

    def compile_ahead(self) -> None:
        """Begin to compile the kernels that the first call needs, in another thread."""
        n_jobs = self._jobs_of_program(self.n_jobs or _TYPICAL_JOBS)
        text = self._text(self._tables(n_jobs))
        with gpu.gpu_errors():
            self._compilations[text] = gpu.compile_ahead(text, (), self._title)

    def program(self, n_jobs: int) -> Program:
        """Return compiled kernels for so many jobs, or for as many as there are last runs.

        Where held runs may be side by side, many jobs make one program.
        """
        n_jobs = self._jobs_of_program(n_jobs)
        if n_jobs not in self._programs:
            tables, asarray = self._tables(n_jobs), gpu.cupy().asarray
            module, names = self._module(tables), [TRACE_TANGENTS, *ALGEBRA_KERNELS]
            names += [self._compose, self._replay] if len(tables.segments) else []
            names += [COMPOSE_HELD] if len(tables.held) else []
            kernels = {name: module.kernel(name) for name in names}
            if self.ramps:
                room = shared_bytes(self.source.largest, self.source.channel.n_rates)
                kernels[self._compose].allow_dynamic_shared(room)
            arrays = tuple(
                map(asarray, (*tables.arrays, *map(as_bytes, (tables.segments, tables.held))))
            )
            self._programs[n_jobs] = Program(tables, arrays, kernels)
        return self._programs[n_jobs]

    def _jobs_of_program(self, n_jobs: int) -> int:
        return _BESIDE if self._beside(n_jobs) else n_jobs

    def _beside(self, n_jobs: int) -> bool:
        return n_jobs >= _BESIDE and self._may_be_beside

    @cached_property
    def _may_be_beside(self) -> bool:
        """Whether held runs may be taken side by side: where ramps are in pieces.

        Where there are no ramps it takes kernels of its own, which pay if they serve all calls.
        """
        fixed = self.n_jobs is not None and self.source.takes_pieces
        return bool(self.ramps) or (fixed and not voltage_varies(self.problem.scored))

    def _tables(self, n_jobs: int) -> TangentTables:
        if n_jobs not in self._made:
            packed, beside = self.problem.scored, self._beside(n_jobs)
            order = schedule(packed, n_jobs)
            parts = _SEGMENTS_A_JOB * n_jobs if n_jobs > 1 else 1
            layout = Layout(self.source, packed, order, self.rows, parts, beside)
            self._made[n_jobs] = layout.tables()
        return self._made[n_jobs]

    def _module(self, tables: TangentTables) -> gpu.CudaModule:
        """Return a module compiled for these tables, or for others with as many slots."""
        key = tables.varying, len(tables.segments) > 0
        most, module = self._modules.get(key, (-1, None))
        if module is None or most < tables.n_slots:
            text = self._text(tables)
            ahead = self._compilations.pop(text, None)
            module = ahead.module() if ahead else gpu.compile_cuda(text, (), self._title)
            self._modules[key] = tables.n_slots, module
        return module

    def _text(self, tables: TangentTables) -> str:
        cut = len(tables.segments) > 0
        pieces = bool(self.ramps) or len(tables.held) > 0
        return self.source.specialized(tables.n_slots, tables.varying, cut, pieces)

    @property
    def _title(self) -> str:
        return f"{self.problem.model.name}.cu"

    @cached_property
    def _on_device(self) -> DeviceRows:
        xp, rows = gpu.cupy(), self.rows
        return DeviceRows(
            xp.asarray(np.array(self.free or [-1], dtype=np.int32)),
            xp.asarray(rows.runs.view(np.uint8)),
            xp.asarray(rows.matrices),
        )

    @property
    def _any_kernels(self) -> dict[str, gpu.CudaKernel]:
        """The kernels of any program; there is one once anything was traced."""
        return next(iter(self._programs.values())).kernels

    @cached_property
    def typical_kernel(self) -> gpu.CudaKernel:
        """The kernel by which the GPU is filled: that of several jobs.

        Most calls launch it, so that they need not wait for another to be compiled.
        """
        return self.program(self.n_jobs or _TYPICAL_JOBS).kernels[TRACE_TANGENTS]


@dataclass(frozen=True, eq=False)
class Results:
    """Cost (n,), status (n,), and maybe gradient and Hessian, as parts of one array.

    The host has them by one copy.

    Attributes:
        block: flat, float64.
        n: candidates.
        n_parameters: rows of the gradient; None without derivatives.
    """

    block: Any
    n: int
    n_parameters: int | None

    @classmethod
    def empty(cls, n: int, n_parameters: int | None = None) -> Results:
        """Return results on the GPU that are to be filled in."""
        numbers = n + -(-n // 8)
        if n_parameters is None:
            return cls(gpu.cupy().empty(numbers), n, None)
        return cls(
            gpu.cupy().zeros(numbers + n * n_parameters * (1 + n_parameters)), n, n_parameters
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the arrays."""
        n, rows, behind = self.n, self.n_parameters, self.n + -(-self.n // 8)
        yield self.block[:n]
        yield self.block[n:behind].view(np.int8)[:n]
        if rows is not None:
            yield self.block[behind : behind + n * rows].reshape(rows, n)
            yield self.block[behind + n * rows :].reshape(rows, rows, n)

    def on_host(self) -> Results:
        """Return a copy on the host."""
        return replace(self, block=to_host(self.block))


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """The arrays of `Rows` on the GPU, and `free`, (n_free,) int32 indices of parameters.

    `pieces` are the matrices of pieces.
    """

    free: Any
    runs: Any
    pieces: Any
