"""The tables that a thread of `cuda_tangents` works through: samples, steps, and slots of states.

All of them are made on the host, once for a problem and a number of jobs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np

from channelfit.problem.run_tree import HELD, KIND, N_SAMPLES, N_SUB, RunTree
from channelfit.scoring.cuda_launch import with_level
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.layout.held_compression import Compression, compression
from channelfit.scoring.layout.visit_order import Schedule
from channelfit.scoring.machine.threads import single_threaded_blas, usable_cores
from channelfit.scoring.tangent_plan import (
    PiecewiseRamp,
    RampPiece,
    RowBlock,
    compressible,
    nodes_of,
    sampled_pieces,
    samples_of,
)

Array: TypeAlias = np.ndarray
#: mV, or with ligands mV and their mM.
_Level: TypeAlias = float | tuple[float, ...]

#: The structures Visit, Step, Move, Held, Segment and Run of the generated text; Visit and Held
#: behind their levels.
VISIT = (
    *(("dt", "f8"), ("kind", "i4"), ("first", "i4")),
    *(("last", "i4"), ("unused", "i4")),
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
        ("left", "i4"),
        ("unused", "i4"),
    ]
)
HELD_COMPOSITE = (("dt", "f8"), ("n", "i4"), ("unused", "i4"))
SEGMENT = np.dtype(
    [
        ("dt", "f8"),
        ("n", "i4"),
        ("n_sub", "i4"),
        ("nodes", "i4"),
        ("run", "i4"),
        ("point", "i4"),
        ("matrix", "i4"),
    ]
)
RUN = np.dtype(
    [("root", "f8"), ("before", "i4"), ("rows", "i4"), ("first", "i4"), ("stride", "i4")]
)
_REST, _HELD, _VARYING = range(3)  # kinds of visits

_SHORTEST = 8  # samples of a segment
_RECORDINGS = 8  # recordings that are compressed at once


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Runs with rows side by side: those of equally many samples, or all that are kept whole.

    The pieces of ramps make groups too, those of equally many rows.

    Attributes:
        runs: the numbers of its runs in the tree; of a piece that of its run.
        matrix: (rank, n_points) from points to residuals, None for the identity.
        n_rows: the points of all its runs. Where they are interleaved, row k*n_runs + r is point k
            of run r, else a run's rows follow each other.
        pieces: those of ramps, of which rows are kept compressed; else empty.
    """

    runs: tuple[int, ...]
    matrix: np.ndarray | None
    n_rows: int
    pieces: tuple[RampPiece, ...] = ()

    @property
    def n_compressed(self) -> int:
        """The number of rows that the matrix leaves of `n_rows`."""
        return self.n_rows if self.matrix is None else len(self.matrix) * len(self.runs)

    @property
    def is_interleaved(self) -> bool:
        """True where the first rows of all runs stand before their second ones."""
        return self.matrix is not None or bool(self.pieces)


class Rows:
    """The samples of a recording that are computed, and the places of their currents.

    Arguments:
        ramps: by the number of a varying run, the pieces in which it is taken; others are taken
            from sample to sample.

    Attributes:
        points: run -> indices of its samples (n_points,).
        place: run -> its place in `runs`; (run, piece) -> that of a piece in which samples lie.
        runs: records of RUN, of pieces as of runs.
        matrices: (n_pieces, DEGREE + 1, DEGREE + 1), from the points of each piece to its rows,
            filled up with zeros.
        ranks: place of a piece -> how many rows it has, and where its matrix begins.
        groups: the groups in the order of their rows.
        n_rows: the rows of all groups, and n_compressed: those that their matrices leave.
    """

    def __init__(
        self, packed: RunTree, oscillating: bool, ramps: Mapping[int, PiecewiseRamp] | None = None
    ) -> None:
        self.packed, self.oscillating, self.ramps = packed, oscillating, ramps or {}
        self.points: dict[int, np.ndarray] = {}
        self.place: dict[int | tuple[int, int], int] = {}
        self.ranks: dict[int, tuple[int, int]] = {}
        self.groups: list[RowGroup] = []
        self.n_rows = 0
        self._records: list[tuple[Any, ...]] = []
        self._matrices: list[np.ndarray] = []
        by_length, whole = compressible(packed, oscillating, self.ramps)
        for run in whole:
            self.points[run] = np.arange(packed.runs[run, N_SAMPLES])
        self._add_runs(0, whole)
        for n, some in by_length.items():
            self.points |= dict.fromkeys(some, compression(n, oscillating).points)
            self._add_runs(n, some)
        of_rank: dict[int, list[tuple[int, RampPiece]]] = {}  # rows -> pieces of runs
        for run in np.flatnonzero(packed.run_weight > 0).tolist():
            if run in self.ramps:
                for piece in sampled_pieces(packed, run, self.ramps[run]):
                    of_rank.setdefault(len(piece.matrix), []).append((run, piece))
        for pieces in of_rank.values():
            self._add_pieces(pieces)
        self.n_compressed = sum(group.n_compressed for group in self.groups)
        self.runs = np.array(self._records, dtype=RUN)
        self.matrices = np.array(self._matrices or [np.zeros((1, 1))])

    def _add_runs(self, n: int, some: list[int]) -> None:
        """Add a group of runs of n samples, or where n is 0 that of all which are kept whole."""
        first, rows = 0, sum(len(self.points[run]) for run in some)
        for k, run in enumerate(some):
            self._add(run, run, rows, (k, len(some)) if n else (first, 1))
            first += len(self.points[run])
        if some:
            matrix = compression(n, self.oscillating).matrix if n else None
            self.groups.append(RowGroup(tuple(some), matrix, rows))
        self.n_rows += rows

    def _add_pieces(self, some: list[tuple[int, RampPiece]]) -> None:
        """Add a group of pieces with equally many rows."""
        rows = sum(len(piece.matrix) for _, piece in some)
        for k, (run, piece) in enumerate(some):
            self._add((run, piece.number), run, rows, (k, len(some)))
            rank, n_points = piece.matrix.shape
            self.ranks[self.place[run, piece.number]] = rank, len(self._matrices) * n_points**2
            self._matrices.append(np.pad(piece.matrix, ((0, n_points - rank), (0, 0))))
        runs, pieces = zip(*some, strict=True)
        self.groups.append(RowGroup(runs, None, rows, pieces))
        self.n_rows += rows

    def _add(self, key: int | tuple[int, int], run: int, rows: int, where: tuple[int, int]) -> None:
        """Add the record of a run or piece: the rows of its group, its first row and step."""
        self.place[key] = len(self._records)
        root = np.sqrt(self.packed.run_weight[run])
        self._records.append((root, self.n_rows, rows, *where))

    @property
    def compressed(self) -> Rows:
        """The same with compressed rows in place of those that a matrix makes them of."""
        found = copy(self)
        found.groups, found.runs, found.n_rows = [], self.runs.copy(), 0
        for group in self.groups:
            n_rows, own = group.n_compressed, [self.place[run] for run in group.runs]
            found.groups.append(replace(group, matrix=None, n_rows=n_rows))
            found.runs["before"][own], found.runs["rows"][own] = found.n_rows, n_rows
            found.n_rows += n_rows
        return found

    @cached_property
    def blocks(self) -> list[RowBlock]:
        """The compressed rows from which the currents in all samples follow."""
        found, first, tree = list[RowBlock](), 0, self.packed
        for group in self.groups:
            if group.pieces:
                for k, (run, piece) in enumerate(zip(group.runs, group.pieces, strict=True)):
                    block = RowBlock.of_piece(tree, run, first + k, len(group.runs), piece)
                    found.append(block)
            elif group.matrix is not None:
                basis = self.compression(group.runs[0]).basis
                found.append(RowBlock.of(tree, group.runs, first, basis))
            else:
                for run, n in ((run, len(self.points[run])) for run in group.runs):
                    found.append(RowBlock.of(tree, [run], first, None))
                    first += n
                continue
            first += group.n_compressed
        return found

    def targets(self, recordings: Iterable[tuple[Array, float]]) -> tuple[Array, Array]:
        """Return several recordings as targets in the compressed rows of all groups.

        The recordings are taken in blocks of one size, filled up with zeros, so that the targets
        of a recording do not depend on how many others there are.

        Arguments:
            recordings: `data_pA` and `constant` of trees with the same runs and weights.

        Returns:
            Targets (n_recordings, n_compressed), pA times the root of a weight, and the part of
            each sum of squares that no candidate can change, (n_recordings,) pA^2.
        """
        targets, constants = [np.empty((0, self.n_compressed))], [np.empty(0)]
        pending = deque[tuple[list[float], Future[tuple[Array, Array]]]]()

        def take() -> None:
            merged, found = pending.popleft()
            block, rest = found.result()
            targets.append(block[: len(merged)])
            constants.append(rest[: len(merged)] + merged)

        with single_threaded_blas(), ThreadPoolExecutor(usable_cores()) as threads:
            for block in _blocks(recordings):  # the next ones are read while these are compressed
                merged = [squares for _, squares in block]
                pending.append((merged, threads.submit(self._block, block)))
                if len(pending) > 2 * usable_cores():  # few, as recordings are large
                    take()
            while pending:
                take()
        return np.concatenate(targets), np.concatenate(constants)

    def _block(self, recordings: list[tuple[Array, float]]) -> tuple[Array, Array]:
        """Return targets, and squares outside, of a block of recordings and zeros."""
        weight, rest = self.packed.run_weight, np.zeros(_RECORDINGS)
        whole = np.zeros((_RECORDINGS, len(self.packed.data_pA)))
        whole[: len(recordings)] = [data for data, _ in recordings]
        parts = []
        for group in self.groups:
            runs = group.runs
            some = [piece.samples for piece in group.pieces] or [self.samples(r) for r in runs]
            rows = [whole[:, own] for own in some]
            if group.is_interleaved:
                if group.pieces:
                    pairs = zip(group.pieces, rows, strict=True)
                    projected = [piece.project_all(own) for piece, own in pairs]
                else:  # runs of one length, together
                    compressed = self.compression(runs[0]).project_all(np.stack(rows))
                    projected = list(zip(*compressed, strict=True))
                for run, (_, outside) in zip(runs, projected, strict=True):
                    rest += weight[run] * outside
                rows = [own for own, _ in projected]
            rows = [np.sqrt(weight[run]) * own for run, own in zip(runs, rows, strict=True)]
            if group.is_interleaved:
                parts.append(np.stack(rows, axis=-1).reshape(_RECORDINGS, -1))
            else:
                parts += rows
        return np.concatenate(parts, axis=1), rest

    def samples(self, run: int) -> slice:
        """Return the samples of a run among all data."""
        return samples_of(self.packed, run)

    def compression(self, run: int) -> Compression:
        """Return the compression of a held run."""
        return compression(int(self.packed.runs[run, N_SAMPLES]), self.oscillating)


def _blocks(recordings: Iterable[tuple[Array, float]]) -> Iterator[list[tuple[Array, float]]]:
    """Yield recordings, `_RECORDINGS` at a time."""
    ahead = iter(recordings)
    while block := list(islice(ahead, _RECORDINGS)):
        yield block


@dataclass(frozen=True)
class TangentTables:
    """A schedule as the arrays that the kernels with derivatives read.

    Attributes:
        jobs: (n_jobs + n_replays + 1,) int32, where the visits of each job begin.
        visits, steps, moves: bytes of VISIT, STEP and MOVE.
        nodes: (n,) mV, or with ligands (n, 1 + n_ligands) mV and mM.
        segments: records of SEGMENT; there are none where no run is cut.
        held: records of HELD_COMPOSITE, their composites behind those of the segments; there are
            none where held runs are walked through.
        n_left: the number of states that are left for replays.
        n_replays: the jobs at the end that go through a held run from a state that was left.
        n_slots: the number of states that are kept between runs.
        varying: whether the voltage varies in any run.
    """

    jobs: np.ndarray
    visits: np.ndarray
    steps: np.ndarray
    moves: np.ndarray
    nodes: np.ndarray
    segments: np.ndarray
    held: np.ndarray
    n_left: int
    n_replays: int
    n_slots: int
    varying: bool

    @property
    def n_jobs(self) -> int:
        """The jobs that walk from run to run."""
        return len(self.jobs) - 1 - self.n_replays

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays in the order of the kernel's parameters."""
        return self.jobs, self.visits, self.steps, self.moves, self.nodes


@dataclass(frozen=True)
class _Op:
    """A step between states that have numbers but no slots yet."""

    level: int
    source: int
    target: int
    steps: int = 0
    run: int = -1
    point: int = 0
    lead: bool = False


class Layout:
    """Collects the operations of all jobs, then assigns slots to states.

    A state needs its slot from its first use to its last.

    Arguments:
        rows: the samples that are computed.
        parts: the segments into which samples at varying voltages are cut; 1 cuts none.
        beside: whether held runs, too, are taken side by side; ramps are in pieces then.
    """

    def __init__(
        self,
        source: CudaTangentSource,
        packed: RunTree,
        order: Schedule,
        rows: Rows,
        parts: int,
        beside: bool = False,
    ) -> None:
        self.source, self.packed, self.order, self.rows = source, packed, order, rows
        varying = packed.runs[packed.runs[:, KIND] != HELD, N_SAMPLES].sum()
        #: samples of a segment, 0 where none is cut
        self.segment = max(_SHORTEST, -(-int(varying) // parts)) if parts > 1 else 0
        self.segments = list[tuple[Any, ...]]()
        self.first_piece: dict[int, int] = {}  # run -> its first segment
        self.beside = beside
        self.n_pieces = sum(len(ramp.lengths) for ramp in rows.ramps.values())
        #: level, ms and samples of held runs -> the number of their composite
        self.composites: dict[tuple[_Level, float, int], int] = {}
        self.left: dict[int, int] = {}  # held run -> the place of the state that is left for it
        self._most_together = 2 if source.model.relaxes else 6
        self.n_states = 0
        self.jobs, self.visits = [0], list[tuple[_Level, float, int, int, int, int]]()
        self.steps, self.moves = list[_Op](), list[tuple[Any, ...]]()
        self.nodes, self.n_nodes = list[np.ndarray](), 0
        #: state -> first and last time at which it is used; the time counts operations
        self.lives: dict[int, list[int]] = {}
        self.time = 0

    def tables(self) -> TangentTables:
        """Return the finished tables."""
        for a, b in pairwise(self.order.jobs):
            self._job(range(a, b))
        n_replays = self._replays() if self.beside else 0
        slots = self._slots()
        levels = self.packed.levels
        visits = np.array(self.visits, dtype=with_level(VISIT, levels))
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
        nodes = np.concatenate([np.zeros((1, *levels.shape[1:])), *self.nodes])
        return TangentTables(
            np.array(self.jobs, np.int32),
            as_bytes(visits),
            as_bytes(np.array(steps, dtype=STEP)),
            as_bytes(moves),
            nodes,
            np.array(self.segments, dtype=SEGMENT),
            np.array(
                [(*key, 0) for key in self.composites], dtype=with_level(HELD_COMPOSITE, levels)
            ),
            len(self.segments) + len(self.left),
            n_replays,
            -(-n_slots // 4) * 4,
            bool(len(moves)),
        )

    def _level(self, k: int) -> _Level:
        """Return a held level of the tree."""
        found = self.packed.levels[k].tolist()
        return tuple(found) if isinstance(found, list) else float(found)

    def _new(self) -> int:
        self.n_states += 1
        return self.n_states - 1

    def _used(self, *states: int) -> None:
        for state in states:
            self.lives.setdefault(state, [self.time, self.time])[1] = self.time
        self.time += 1

    def _job(self, visits: range) -> None:
        """Add one job: its steady states first, then its visits."""
        packed, order = self.packed, self.order
        now: dict[int, int] = {}  # slot of the schedule -> state
        needed = {int(s) for k in visits for s in self._of(order.source, k)}
        for slot, voltage in enumerate(packed.start_voltage):
            if slot in needed:
                now[slot] = self._new()
                self._used(now[slot])
                self.visits.append((self._level(voltage), 0.0, _REST, now[slot], 0, 0))
        for k in visits:
            walks = range(order.visits[k], order.visits[k + 1])
            if order.voltage[k] < 0:
                for w in walks:
                    self._move(w, now)
                continue
            v, dt = self._level(order.voltage[k]), float(order.dt[k])
            for some in [] if self.beside else self._rounds(walks):
                self._visit(v, dt, some, now, some[0] != walks[0])
            for w in walks if self.beside else ():
                self._move_held(v, dt, w, now)
        self.jobs.append(len(self.visits))

    def _visit(
        self,
        v: _Level,
        dt: float,
        some: list[int],
        now: dict[int, int],
        more: bool = False,
        ends: bool = True,
    ) -> None:
        """Add some runs at one level.

        Arguments:
            more: whether they may join the last visit.
            ends: whether states at the ends of runs may be needed.
        """
        begin, ops, at_ends = len(self.steps), list[_Op](), dict[int, int]()
        for w in some:
            own, end = self._held(w, now, ends and self.order.target[w] >= 0)
            ops += own
            at_ends[int(self.order.target[w])] = end
        for op in sorted(ops, key=lambda op: op.level):
            self._used(op.source, op.target)
            self.steps.append(op)
        now |= {slot: state for slot, state in at_ends.items() if slot >= 0}
        place = begin, len(self.steps)
        if more and self.visits[-1][:3] == (v, dt, _HELD):
            place = self.visits.pop()[3], place[1]
        self.visits.append((v, dt, _HELD, *place, 0))

    def _move_held(self, v: _Level, dt: float, w: int, now: dict[int, int]) -> None:
        """Add the step over a held run by its composite; the first job leaves its first state."""
        run, start, end = int(self.order.run[w]), now[int(self.order.source[w])], self._new()
        self._used(start, end)
        leaves = run not in self.left
        left = self.n_pieces + self.left.setdefault(run, len(self.left))
        key = v, dt, int(self.packed.runs[run, N_SAMPLES])
        composite = self.n_pieces + self.composites.setdefault(key, len(self.composites))
        self.visits.append((0.0, 0.0, _VARYING, len(self.moves), 0, 0))
        self.moves.append((0.0, int(leaves), 0, 0, start, end, -1, composite, 1, left, 0))
        if self.order.target[w] >= 0:
            now[int(self.order.target[w])] = end

    def _replays(self) -> int:
        """Add a job for each held run with samples, and return their number."""
        order, n = self.order, 0
        for k in np.flatnonzero(order.voltage >= 0):
            v, dt = self._level(order.voltage[k]), float(order.dt[k])
            for w in range(order.visits[k], order.visits[k + 1]):
                if self._place(w) < 0:
                    continue
                n, start = n + 1, self._new()
                self._used(start)
                self.visits.append((0.0, 0.0, _VARYING, len(self.moves), 0, 0))
                left = self.n_pieces + self.left[int(order.run[w])]
                self.moves.append((0.0, 0, 0, 0, start, start, -1, 0, 0, left, 0))
                self._visit(v, dt, [w], {int(order.source[w]): start}, ends=False)
                self.jobs.append(len(self.visits))
        return n

    def _of(self, array: np.ndarray, visit: int) -> np.ndarray:
        return array[self.order.visits[visit] : self.order.visits[visit + 1]]

    def _rounds(self, walks: range) -> Iterator[list[int]]:
        """Yield the runs of a visit in rounds; a run is in a later round than its source.

        A round has few runs: the states of all of them have to be kept at once, while computing the
        powers of a gate's propagator again costs nothing.
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

    def _held(self, w: int, now: dict[int, int], ends: bool) -> tuple[list[_Op], int]:
        """Return the operations of one run, and the state at its end (-1 unless it `ends`).

        Points are reached one from the other as long as their distances grow. Those that lie
        behind branch off where that leaves the fewest powers of two to go, since no thread
        comes back to a power that it has passed.
        """
        run, start = int(self.order.run[w]), now[int(self.order.source[w])]
        n, place = int(self.packed.runs[run, N_SAMPLES]), self._place(w)
        goals: list[tuple[int, int]] = []  # sample, and which point it is
        ops: list[_Op] = []
        bases = [(0, 0, start)]  # level, sample and state of each place to branch off
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
        if ends:
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
        return ops, state if ends else -1

    def _place(self, w: int) -> int:
        """Return the place of a run's currents in `Rows.runs`, -1 where it is not scored."""
        return self.rows.place[int(self.order.run[w])] if self.order.weight[w] > 0 else -1

    def _move(self, w: int, now: dict[int, int]) -> None:
        run, start = int(self.order.run[w]), now[int(self.order.source[w])]
        if run in self.rows.ramps:
            self._move_in_pieces(w, self.rows.ramps[run], now)
            return
        row, end = self.packed.runs[run], self._new()
        self._used(start, end)
        n_steps = row[N_SAMPLES] * row[N_SUB]
        self.nodes.append(self.source.levels(nodes_of(self.packed, run)))
        self.visits.append((0.0, 0.0, _VARYING, len(self.moves), 0, 0))
        n, n_sub, dt, place = row[N_SAMPLES], row[N_SUB], self.packed.run_dt[run], self._place(w)
        first, begin = len(self.segments), 1 + self.n_nodes
        for sample in range(0, n, self.segment) if self.segment else ():
            node = begin + sample * n_sub * (len(self.nodes[-1]) // n_steps)
            some = min(self.segment, n - sample)
            self.segments.append((dt, some, n_sub, node, place, sample, 0))
        n_segments = len(self.segments) - first
        self.moves.append((dt, n, n_sub, begin, start, end, place, first, n_segments, first, 0))
        self.n_nodes += len(self.nodes[-1])
        if self.order.target[w] >= 0:
            now[int(self.order.target[w])] = end

    def _move_in_pieces(self, w: int, ramp: PiecewiseRamp, now: dict[int, int]) -> None:
        """Add the walk over the pieces of a run, which all jobs share.

        The first job leaves the states in which they begin.
        """
        run, start, end = int(self.order.run[w]), now[int(self.order.source[w])], self._new()
        self._used(start, end)
        leaves = run not in self.first_piece
        first = self.first_piece.setdefault(run, len(self.segments))
        for k, (length, levels) in enumerate(zip(ramp.lengths, ramp.levels, strict=True)):
            if leaves:
                place = self.rows.place.get((run, k), -1)
                rank, matrix = self.rows.ranks.get(place, (0, 0))
                self.segments.append((length, rank, 0, 1 + self.n_nodes, place, 0, matrix))
                self.nodes.append(levels)
                self.n_nodes += len(levels)
        self.visits.append((0.0, 0.0, _VARYING, len(self.moves), 0, 0))
        n_pieces = len(ramp.lengths)
        self.moves.append((0.0, int(leaves), 0, 0, start, end, -1, first, n_pieces, first, 0))
        if self.order.target[w] >= 0:
            now[int(self.order.target[w])] = end

    def _slots(self) -> dict[int, int]:
        """Return the slot of every state."""
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


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return records as bytes; of none one of zeros, as a kernel's array is never empty."""
    return (array if len(array) else np.zeros(1, array.dtype)).view(np.uint8)
