"""Residuals and their derivatives on the GPU, and from them gradients and curvatures.

A kernel writes dual numbers where the recording is looked at; a library takes the points into the
space of their run (`compression`); another kernel adds up the inner products of all columns of a
candidate, residuals and derivatives alike, in an order that does not depend on the company.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.model.channel import Chain
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import DATA, HELD, KIND, N_SAMPLES, N_SUB, NODES, TABLE, RunTree
from channelfit.scoring.cuda_modes import jobs_that_fill
from channelfit.scoring.kernels.cuda_algebra import (
    ALGEBRA_ROWS,
    ALGEBRA_THREADS,
    CONCLUDE_TANGENTS,
    MULTIPLY_TANGENTS,
)
from channelfit.scoring.kernels.cuda_tangents import (
    COMPOSE_TANGENTS,
    REPLAY_TANGENTS,
    TRACE_TANGENTS,
    CudaTangentSource,
)
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.layout.visit_order import Schedule, schedule
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning

#: struct Visit, Step, Move, Segment and Run of the generated text, and its kinds of visits.
VISIT = np.dtype(
    [("v", "f8"), ("dt", "f8"), ("kind", "i4"), ("first", "i4"), ("last", "i4"), ("unused", "i4")]
)
STEP = np.dtype(
    [
        (name, "i4")
        for name in ("source", "target", "level", "steps", "run", "point", "lead", "unused")
    ]
)
MOVE = np.dtype(
    [
        ("dt", "f8"),
        ("n", "i4"),
        ("n_sub", "i4"),
        ("nodes", "i4"),
        ("source", "i4"),
        ("target", "i4"),
        ("run", "i4"),
        ("first", "i4"),
        ("n_segments", "i4"),
    ]
)
SEGMENT = np.dtype(
    [
        ("dt", "f8"),
        ("n", "i4"),
        ("n_sub", "i4"),
        ("nodes", "i4"),
        ("run", "i4"),
        ("point", "i4"),
        ("unused", "i4"),
    ]
)
RUN = np.dtype(
    [
        ("root", "f8"),
        ("data", "i4"),
        ("before", "i4"),
        ("rows", "i4"),
        ("first", "i4"),
        ("stride", "i4"),
        ("unused", "i4"),
    ]
)
_REST, _HELD, _VARYING = range(3)

_SHORTEST = 8  # samples of a segment
_SEGMENTS_A_JOB = 4  # they leave the walk little to do
_THREADS = (128, 64, 96, 32)  # of a block, the first of the fullest
_THREADS_CUT = 64  # of a block of segments


@dataclass(frozen=True, eq=False)
class Group:
    """Runs whose rows lie side by side: of equally many samples, or all that are kept whole.

    matrix: (rank, n_points) from points to residuals, None for the identity.
    n_rows: points of all its runs; row k*n_runs + r is point k of run r where there is a matrix.
    """

    matrix: np.ndarray | None
    n_rows: int


class Rows:
    """Which samples of a recording are looked at, and where their residuals go.

    Attributes:
        points: run -> indices of its samples (n_points,).
        place: run -> its place in `runs`.
        runs: RUN, in which `data` holds currents, pA: at points, such that the matrix of the
            group makes of them what `compression` sees of the recording.
        groups: in the order of their rows; n_rows: of all.
        constant: squares that no channel can change, pA^2.
    """

    def __init__(self, packed: RunTree, oscillating: bool) -> None:
        self.points: dict[int, np.ndarray] = {}
        self.constant = packed.constant
        members: dict[int, list[int]] = {0: []}  # samples, 0 where all are kept -> runs
        for run in np.flatnonzero(packed.run_weight > 0).tolist():
            n = int(packed.runs[run, N_SAMPLES])
            held = packed.runs[run, KIND] == HELD
            few = compression(n, oscillating) if held else None
            if few is None or few.is_whole:
                members[0].append(run)
                self.points[run] = np.arange(n)
            else:
                members.setdefault(n, []).append(run)
                self.points[run] = few.points
        self.place: dict[int, int] = {}
        self.groups: list[Group] = []
        self.n_rows = 0
        records: list[tuple[Any, ...]] = []
        data = [np.zeros(0)]
        for n, some in members.items():
            rows = sum(len(self.points[run]) for run in some)
            matrix = compression(n, oscillating).matrix if n else None
            first = n_data = 0
            for k, run in enumerate(some):
                self.place[run] = len(records)
                n_data = sum(map(len, data))
                begin, weight = packed.runs[run, DATA], packed.run_weight[run]
                own = packed.data_pA[begin : begin + packed.runs[run, N_SAMPLES]]
                if matrix is not None:
                    target, rest = compression(n, oscillating).project(own)
                    self.constant += weight * rest
                    own = np.linalg.lstsq(matrix, target, rcond=None)[0]
                where = (k, len(some)) if n else (first, 1)
                records.append((np.sqrt(weight), n_data, self.n_rows, rows, *where, 0))
                data.append(own)
                first += len(own)
            if some:
                self.groups.append(Group(matrix, rows))
            self.n_rows += rows
        self.runs, self.data = np.array(records, dtype=RUN), np.concatenate(data)


@dataclass(frozen=True)
class Walk:
    """A schedule as the arrays that the kernel reads.

    jobs: (n_jobs + 1,) int32; visits, steps, moves: bytes of VISIT, STEP and MOVE; nodes: mV.
    segments: SEGMENT, none where no run is cut.
    n_slots: state slots; varying: whether any run is at varying voltage.
    """

    jobs: np.ndarray
    visits: np.ndarray
    steps: np.ndarray
    moves: np.ndarray
    nodes: np.ndarray
    segments: np.ndarray
    n_slots: int
    varying: bool

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """In the order of the kernel's parameters."""
        return self.jobs, self.visits, self.steps, self.moves, self.nodes


@dataclass(frozen=True)
class _Op:
    """A step of the walk between states that are named, not yet given slots."""

    level: int
    source: int
    target: int
    steps: int = 0
    run: int = -1
    point: int = 0
    lead: bool = False


class _Layout:
    """Collects what a thread does, then gives out slots: a state lives from its first use on to
    its last.

    """

    def __init__(
        self, source: CudaTangentSource, packed: RunTree, order: Schedule, rows: Rows, parts: int
    ) -> None:
        self.source, self.packed, self.order, self.rows = source, packed, order, rows
        varying = packed.runs[packed.runs[:, KIND] != HELD, N_SAMPLES].sum()
        #: samples of a segment, 0 where none is cut
        self.segment = max(_SHORTEST, -(-int(varying) // parts)) if parts > 1 else 0
        self.segments = list[tuple[Any, ...]]()
        self._most_together = 2 if source.model.relaxes else 6
        self.n_states = 0
        self.jobs, self.visits = [0], list[tuple[float, float, int, int, int, int]]()
        self.steps, self.moves = list[_Op](), list[tuple[Any, ...]]()
        self.nodes, self.n_nodes = list[np.ndarray](), 0
        #: state -> first and last time at which it is used; the time counts everything done
        self.lives: dict[int, list[int]] = {}
        self.time = 0

    def walk(self) -> Walk:
        """The finished walk."""
        for a, b in pairwise(self.order.jobs):
            self._job(range(a, b))
        slots = self._slots()
        visits = np.array(self.visits, dtype=VISIT)
        rest = visits["kind"] == _REST
        visits["first"][rest] = [slots[k] for k in visits["first"][rest]]
        steps = [
            (slots[op.source], slots[op.target], op.level, op.steps, op.run, op.point, op.lead, 0)
            for op in self.steps
        ]
        moves = np.array(self.moves, dtype=MOVE)
        for name in ("source", "target"):
            moves[name] = [slots[k] for k in moves[name]]
        n_slots = 1 + max(slots.values(), default=0)
        nodes = np.concatenate([np.zeros(1), *self.nodes])
        return Walk(
            np.array(self.jobs, np.int32),
            _bytes(visits),
            _bytes(np.array(steps, dtype=STEP)),
            _bytes(moves),
            nodes,
            np.array(self.segments, dtype=SEGMENT),
            -(-n_slots // 4) * 4,
            bool(len(moves)),
        )

    def _new(self) -> int:
        self.n_states += 1
        return self.n_states - 1

    def _used(self, *states: int) -> None:
        for state in states:
            self.lives.setdefault(state, [self.time, self.time])[1] = self.time
        self.time += 1

    def _job(self, visits: range) -> None:
        """One job: steady states first, then its visits."""
        packed, order = self.packed, self.order
        now: dict[int, int] = {}  # slot of the schedule -> state
        needed = {int(s) for k in visits for s in self._of(order.source, k)}
        for slot, voltage in enumerate(packed.start_voltage):
            if slot in needed:
                now[slot] = self._new()
                self._used(now[slot])
                v = float(packed.voltages[voltage])
                self.visits.append((v, 0.0, _REST, now[slot], 0, 0))
        for k in visits:
            walks = range(order.visits[k], order.visits[k + 1])
            if order.voltage[k] < 0:
                for w in walks:
                    self._move(w, now)
                continue
            for some in self._rounds(walks):
                begin = len(self.steps)
                ops: list[_Op] = []
                ends = {}
                for w in some:
                    own, end = self._held(w, now)
                    ops += own
                    ends[int(order.target[w])] = end
                for op in sorted(ops, key=lambda op: op.level):
                    self._used(op.source, op.target)
                    self.steps.append(op)
                now |= {slot: state for slot, state in ends.items() if slot >= 0}
                v = float(packed.voltages[order.voltage[k]])
                place = begin, len(self.steps)
                if self.visits[-1][:3] == (v, order.dt[k], _HELD) and some[0] != walks[0]:
                    place = self.visits.pop()[3], place[1]
                self.visits.append((v, float(order.dt[k]), _HELD, *place, 0))
        self.jobs.append(len(self.visits))

    def _of(self, array: np.ndarray, visit: int) -> np.ndarray:
        return array[self.order.visits[visit] : self.order.visits[visit + 1]]

    def _rounds(self, walks: range) -> Iterator[list[int]]:
        """The runs of a visit, those that start where another of it ends in a later round.

        A few at a time: all their states have to be kept, while the powers of a gate cost nothing.
        """
        some: list[int] = []
        for w in walks:
            ended = {int(self.order.target[k]) for k in some} - {-1}
            slots = {int(self.order.source[w]), int(self.order.target[w])}
            if ended & slots or len(some) == self._most_together:
                yield some
                some = []
            some.append(w)
        yield some

    def _held(self, w: int, now: dict[int, int]) -> tuple[list[_Op], int]:
        """What serves one run, and the state at its end (-1 where nobody needs it).

        Points are reached one from the other as long as their distances grow. What lies behind
        branches off where that leaves the fewest powers of two to go: a power that has been left
        behind is not come back to.
        """
        run, start = int(self.order.run[w]), now[int(self.order.source[w])]
        n, place = int(self.packed.runs[run, N_SAMPLES]), self._place(w)
        goals: list[tuple[int, int]] = []  # sample, and which point it is
        ops: list[_Op] = []
        bases = [(0, 0, start)]  # level, sample, state: where one may branch off
        if place >= 0:
            points = self.rows.points[run]
            gaps = np.diff(points)
            growing = int(np.argmax(np.append(np.diff(gaps) < 0, True))) + 1 if len(gaps) else 0
            levels = np.log2(gaps[:growing]).astype(int)
            main, at = self._new(), 0
            ops.append(_Op(0, start, main, 0, place, 0, True))
            bases = []
            for level in range(int(levels.max(initial=0)) + 1):
                steps = int((levels == level).sum())
                if steps:
                    ops.append(_Op(level, main, main, steps, place, at + 1))
                    at += steps
                bases.append((level, int(points[at]), main))
            goals = [(int(points[k]), k) for k in range(at + 1, len(points))]
        if self.order.target[w] >= 0:
            goals.append((n, -1))
        state = -1
        for goal, point in goals:
            level, sample, base = min(
                (b for b in bases if goal >= b[1] and (goal - b[1]) % (1 << b[0]) == 0),
                key=lambda b: ((goal - b[1]).bit_count(), -b[0]),
            )
            state, left = self._new(), goal - sample
            bits = [b for b in range(left.bit_length()) if left >> b & 1]
            ops.append(_Op(level, base, state, int(bits[0] == level)))
            ops += [_Op(b, state, state, 1) for b in bits if b != level]
            if point >= 0:
                ops[-1] = replace(ops[-1], run=place, point=point)
        return ops, state if self.order.target[w] >= 0 else -1

    def _place(self, w: int) -> int:
        """Of the residuals of one run, -1 where it is only walked through."""
        return self.rows.place[int(self.order.run[w])] if self.order.weight[w] > 0 else -1

    def _move(self, w: int, now: dict[int, int]) -> None:
        run, start = int(self.order.run[w]), now[int(self.order.source[w])]
        row, end = self.packed.runs[run], self._new()
        self._used(start, end)
        n_steps = row[N_SAMPLES] * row[N_SUB]
        nodes = self.packed.nodes_mV[row[TABLE] : row[TABLE] + n_steps * len(NODES)]
        self.nodes.append(self.source.voltages(nodes.reshape(n_steps, len(NODES))))
        self.visits.append((0.0, 0.0, _VARYING, len(self.moves), 0, 0))
        n, n_sub, dt, place = row[N_SAMPLES], row[N_SUB], self.packed.run_dt[run], self._place(w)
        first, begin = len(self.segments), 1 + self.n_nodes
        for sample in range(0, n, self.segment) if self.segment else ():
            node = begin + sample * n_sub * (len(self.nodes[-1]) // n_steps)
            some = min(self.segment, n - sample)
            self.segments.append((dt, some, n_sub, node, place, sample, 0))
        self.moves.append(
            (dt, n, n_sub, begin, start, end, place, first, len(self.segments) - first)
        )
        self.n_nodes += len(self.nodes[-1])
        if self.order.target[w] >= 0:
            now[int(self.order.target[w])] = end

    def _slots(self) -> dict[int, int]:
        """state -> slot."""
        slots: dict[int, int] = {}
        free: list[int] = []
        dying = defaultdict[int, list[int]](list)
        for state, (_, last) in self.lives.items():
            dying[last].append(state)
        used = 0
        born = sorted(self.lives, key=lambda state: self.lives[state][0])
        begun = 0
        for time in range(self.time):
            while begun < len(born) and self.lives[born[begun]][0] == time:
                if free:
                    slots[born[begun]] = free.pop()
                else:
                    slots[born[begun]], used = used, used + 1
                begun += 1
            free += [slots[state] for state in dying.get(time, ())]
        return slots


def _bytes(array: np.ndarray) -> np.ndarray:
    """As bytes, one record at least: a kernel's array is never empty."""
    return (array if len(array) else np.zeros(1, array.dtype)).view(np.uint8)


def _has_cycles(chain: Chain) -> bool:
    """Whether the modes of a chain might oscillate: those of a tree do not."""
    pairs = {frozenset((t.source, t.target)) for t in chain.transitions}
    return len(pairs) >= len(chain.states) > 1


class Tangents:
    """The kernel of one problem and the algebra behind it, on arrays that lie on the GPU.

    Arguments:
        tangents: derivatives a thread carries, 0 for none at all; None for what suits the model.
    """

    def __init__(self, problem: Problem, tangents: int | None = None) -> None:
        self.problem = problem
        self.source = CudaTangentSource(problem.model, tangents)
        free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
        self.free = free if self.source.tangents else []
        self.n_jobs: int | None = None  # for every call, where it is given
        self.threads: int | None = None  # of a block, likewise
        self._programs: dict[int, Program] = {}
        #: of walks at varying voltage and cut into segments, or not: slots, and what is compiled
        self._modules: dict[tuple[bool, bool], tuple[int, gpu.CudaModule]] = {}

    @property
    def bytes_a_candidate(self) -> int:
        """What `linearize` needs of the GPU's memory: residuals, and a group's three times over.

        Where runs are cut there are few candidates, and segments at most as many as fill the GPU.
        """
        largest = max(group.n_rows for group in self.rows.groups)
        return 8 * (1 + len(self.free)) * (self.rows.n_rows + 3 * largest)

    def linearize(self, parameters: Any) -> tuple[Any, Any, Any, Any]:
        """Cost, status, gradient and curvature; see `backends.Linearization`.

        Arguments:
            parameters: (n_parameters, n_candidates) float64, contiguous.
        """
        xp, n_parameters, n = gpu.cupy(), len(self.problem.model.parameters), parameters.shape[1]
        gradient = xp.zeros((n_parameters, n))
        curvature = xp.zeros((n_parameters, n_parameters, n))
        return *self._concluded(parameters, gradient, curvature), gradient, curvature

    def score(self, parameters: Any) -> tuple[Any, Any]:
        """Cost and status alone, of parameters as above."""
        return self._concluded(parameters, gpu.NULL, gpu.NULL)

    def fills(self, n: int) -> bool:
        """Whether n candidates fill the GPU without being cut into jobs."""
        return n >= self._resident

    def _concluded(self, parameters: Any, gradient: Any, curvature: Any) -> tuple[Any, Any]:
        """Cost and status, and derivatives filled in."""
        xp, packed, n = gpu.cupy(), self.problem.scored, parameters.shape[1]
        cost, status = xp.empty(n), xp.empty(n, dtype=np.int8)
        if n:
            residuals, statuses = self.trace(parameters)
            partial = self._products(residuals, n)
            self._any_program.conclude(
                (n,),
                (ALGEBRA_THREADS,),
                (
                    partial,
                    np.int32(len(partial)),
                    np.int32(1 + len(self.free)),
                    statuses,
                    np.int32(len(statuses)),
                    self._on_device.free,
                    np.int32(len(self.problem.model.parameters)),
                    np.float64(self.rows.constant),
                    np.float64(packed.total_weight),
                    cost,
                    status,
                    gradient,
                    curvature,
                ),
            )
        return cost, status

    def trace(self, parameters: Any) -> tuple[Any, Any]:
        """Residuals, pA times the root of a weight, each with its derivatives; and statuses.

        Returns: flat, the arrays (n_candidates, n_rows, 1 + n_free) of all groups; of every job and
        segment (n, n_candidates).
        """
        xp, n, n_free = gpu.cupy(), parameters.shape[1], len(self.free)
        n_groups = max(1, -(-n_free // max(1, self.source.tangents)))
        program, threads = self.program(self._jobs(n * n_groups)), self.threads or self._threads
        n_jobs, n_segments = len(program.walk.jobs) - 1, len(program.walk.segments)
        residuals = xp.empty(self.rows.n_rows * n * (1 + n_free))
        status = xp.empty((n_jobs + n_segments, n), dtype=np.int8)
        composites = xp.empty(n_segments * n * n_groups * self.source.composite_size)
        states = xp.empty(n_segments * n * n_groups * self.source.state_size)
        who = (parameters, np.int64(n), self._on_device.free, np.int32(n_free), np.int32(n_groups))
        recorded = (self._on_device.runs, self._on_device.data)
        cut = (program.segments, program.arrays[-1])
        blocks = -(-n * n_groups // threads), -(-n * n_groups // _THREADS_CUT)
        if program.compose is not None:
            program.compose(
                (blocks[1], n_segments), (_THREADS_CUT,), (*who, *cut, composites, status[n_jobs:])
            )
        program.kernel(
            (blocks[0], n_jobs),
            (threads,),
            (*who, *program.arrays, *recorded, composites, states, residuals, status),
        )
        if program.replay is not None:
            program.replay(
                (blocks[1], n_segments), (_THREADS_CUT,), (*who, *cut, states, *recorded, residuals)
            )
        return residuals, status

    def _products(self, residuals: Any, n: int) -> Any:
        """(parts, n_candidates, entries): what, added up, are the products of residual and
        derivatives with each other, (i, j <= i) row after row."""
        xp, width, begin, n_parts = gpu.cupy(), 1 + len(self.free), 0, 0
        groups = list(zip(self.rows.groups, self._on_device.matrices, strict=True))
        heights = [
            group.n_rows if matrix is None else group.n_rows // matrix.shape[1] * matrix.shape[0]
            for group, matrix in groups
        ]
        parts = [-(-height // ALGEBRA_ROWS) for height in heights]
        products = xp.empty((sum(parts), n, width * (width + 1) // 2))
        for (group, matrix), height, own in zip(groups, heights, parts, strict=True):
            size = group.n_rows * n * width
            rows = residuals[begin : begin + size]
            begin += size
            if matrix is not None:
                rows = xp.matmul(matrix, rows.reshape(n, matrix.shape[1], -1))
            if own:
                self._any_program.multiply(
                    (n, own),
                    (ALGEBRA_THREADS,),
                    (rows, np.int32(height), np.int32(width), np.int32(n_parts), products),
                )
            n_parts += own
        return products

    def program(self, n_jobs: int) -> Program:
        """Compiled for a schedule of so many jobs (or fewer, if there are fewer ends of runs)."""
        if n_jobs not in self._programs:
            packed = self.problem.scored
            order = schedule(packed, n_jobs)
            parts = _SEGMENTS_A_JOB * n_jobs if n_jobs > 1 else 1
            walk = _Layout(self.source, packed, order, self.rows, parts).walk()
            cut = len(walk.segments) > 0
            module = self._module(walk, cut)
            arrays = tuple(gpu.cupy().asarray(array) for array in walk.arrays)
            self._programs[n_jobs] = Program(
                walk,
                arrays,
                gpu.cupy().asarray(_bytes(walk.segments)),
                module.kernel(TRACE_TANGENTS),
                module.kernel(COMPOSE_TANGENTS) if cut else None,
                module.kernel(REPLAY_TANGENTS) if cut else None,
                module.kernel(MULTIPLY_TANGENTS),
                module.kernel(CONCLUDE_TANGENTS),
            )
        return self._programs[n_jobs]

    def _module(self, walk: Walk, cut: bool) -> gpu.CudaModule:
        """Compiled for a walk, or for another with at least as many slots."""
        most, module = self._modules.get((walk.varying, cut), (-1, None))
        if module is None or most < walk.n_slots:
            text = self.source.specialized(walk.n_slots, walk.varying, cut)
            module = gpu.compile_cuda(text, (), f"{self.problem.model.name}.cu")
            self._modules[walk.varying, cut] = walk.n_slots, module
        return module

    @cached_property
    def rows(self) -> Rows:
        """What of the recordings is looked at."""
        oscillating = any(_has_cycles(chain) for chain in self.problem.model.chains)
        return Rows(self.problem.scored, oscillating)

    @cached_property
    def _on_device(self) -> OnDevice:
        xp, rows = gpu.cupy(), self.rows
        return OnDevice(
            xp.asarray(np.array(self.free or [-1], dtype=np.int32)),
            xp.asarray(rows.runs.view(np.uint8)),
            xp.asarray(rows.data),
            [
                None if g.matrix is None else xp.asarray(np.ascontiguousarray(g.matrix))
                for g in rows.groups
            ],
        )

    @cached_property
    def _threads(self) -> int:
        """What was found by tuning; else what fills the GPU best."""
        found = tuning.remembered(self.source.hash, gpu.device().name, TRACE_TANGENTS)
        if found is not None:
            return found.threads
        choices = [t for t in _THREADS if t <= int(self._typical.max_threads_per_block)]
        return max(choices, key=lambda t: gpu.occupancy(self._typical, t).fraction)

    @property
    def _any_program(self) -> Program:
        """Of those compiled; there is one once anything was traced."""
        return next(iter(self._programs.values()))

    @cached_property
    def _typical(self) -> Any:
        """The kernel that the GPU is filled with, of a walk in jobs: as most calls have it, so that
        they need not wait for another to be compiled."""
        return self.program(2).kernel

    @cached_property
    def _resident(self) -> int:
        """Threads that run at once."""
        blocks = gpu.occupancy(self._typical, self._threads).blocks
        return max(1, blocks) * self._threads * gpu.device().n_multiprocessors

    def _jobs(self, n_threads: int) -> int:
        """So many that the GPU is full."""
        if self.n_jobs is not None:
            return self.n_jobs
        return jobs_that_fill(self._resident, n_threads)


@dataclass(frozen=True, eq=False)
class OnDevice:
    """Arrays of `Rows` on the GPU; free: (n_free,) int32 indices of parameters."""

    free: Any
    runs: Any
    data: Any
    matrices: list[Any]


@dataclass(frozen=True, eq=False)
class Program:
    """A walk on the GPU and the kernels compiled for it; compose and replay where runs are cut,
    multiply and conclude, the same in each, for what the walk leaves."""

    walk: Walk
    arrays: tuple[Any, ...]
    segments: Any
    kernel: Any
    compose: Any
    replay: Any
    multiply: Any
    conclude: Any
