"""Scores by Chebyshev moments on the GPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.problem.experiment import Problem
from channelfit.scoring.choose_path import LEAST_SERVED
from channelfit.scoring.cuda_launch import Program
from channelfit.scoring.cuda_modes import HeldScorer
from channelfit.scoring.kernels.cuda_moments import (
    BOUND_SPEEDS,
    CHUNK,
    LEAST_COST,
    LEAST_COST_RESOLVENTS,
    TILE,
    TILES,
    CudaMomentSource,
)
from channelfit.scoring.kernels.detailed_balance import modes_are_real
from channelfit.scoring.kernels.resolvents import Elimination
from channelfit.scoring.layout.moment_tables import (
    Ladder,
    MomentRun,
    MomentTable,
    ladder,
    moment_table,
    moment_walk,
    speed_of,
)
from channelfit.scoring.layout.resolvent_tables import ResolventTable, resolvent_table
from channelfit.scoring.machine import gpu

#: The structures of the generated text.
RUN = np.dtype(
    [
        ("weight", "f8"),
        ("source", "i4"),
        ("target", "i4"),
        ("kind", "i4"),
        ("data", "i4"),
    ]
)
PART = np.dtype([("lengths", "i4", TILES), ("table", "i4")])
RUNG = np.dtype(
    [("part", PART), *((name, "i4") for name in ("degree", "ends", "parts", "others", "data"))]
)
_ROWS = TILES * TILE
#: Candidates of a launch from which on sorting them takes less time than it saves.
_SORTED_FROM = 1 << 14
#: Moments of a run beyond which those of resolvents are fewer.
_GREATEST_DEGREE = 150.0


class FragmentTables:
    """The tables of all kinds of runs, as the lanes of a warp read them.

    Arguments:
        highest: the highest rung of each kind: samples, and ms.
        lowest: the lowest rung of all.
        oscillating: see `moment_table`.
        resolves: whether there is but one rung, of resolvents.

    Attributes:
        kinds, tops: where the rungs of a kind begin, and its highest, by (samples, ms).
        tables: of each kind, from the lowest rung on.
        arrays: the bytes of all rungs (RUNG) and of parts behind the first of each (PART); tables;
            and coefficients of the states at ends. A table is (chunks, TILES, 32, 4): for each lane
            its elements of a tile, as the product of matrices takes them.
    """

    def __init__(
        self,
        highest: dict[tuple[int, float], int],
        lowest: int,
        oscillating: bool,
        resolves: bool = False,
    ) -> None:
        self.kinds: dict[tuple[int, float], int] = {}
        self.tops: dict[tuple[int, float], int] = {}
        self.tables: dict[tuple[int, float], list[MomentTable]] = {}
        self._rungs: list[tuple[Any, ...]] = []
        self._parts: list[tuple[tuple[int, ...], int]] = [((0,) * TILES, 0)]
        self._pieces: list[np.ndarray] = []
        self._ends: list[np.ndarray] = []
        self._n_pieces = self._n_ends = 0
        for (n, span), top in sorted(highest.items()):
            # a run that another job scores is of the same kind here: its end is the same
            self.kinds[n, span] = self.kinds[0, span] = len(self._rungs)
            self.tops[n, span] = self.tops[0, span] = top
            self.tables[n, span] = found = []
            n_data = 0
            for rung in (lowest,) if resolves else range(lowest, top + 1):
                table = moment_table(n, span, rung, oscillating)
                if resolves:
                    table = resolvent_table(n, span, oscillating)
                assert table is not None  # no kind goes beyond GREATEST_DECAY
                found.append(table)
                n_data += self._add(table, n_data)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        rungs = np.array(self._rungs, RUNG).view(np.uint8)
        parts = np.array(self._parts, PART).view(np.uint8)
        return rungs, parts, np.concatenate(self._pieces), np.concatenate(self._ends)

    def _add(self, table: MomentTable, n_data: int) -> int:
        """Add a rung whose data begin there; return how many they are."""
        n_parts = -(-len(table.rows) // _ROWS)
        parts = []
        for part in range(max(1, n_parts)):
            lengths, fragments = _fragments(table.rows[part * _ROWS : (part + 1) * _ROWS])
            parts.append((lengths, self._n_pieces))
            self._pieces.append(fragments.ravel())
            self._n_pieces += fragments.size
        degree = -(-len(table.end) // CHUNK) * CHUNK
        numbers = degree, self._n_ends, n_parts, len(self._parts) - 1, n_data
        self._rungs.append((parts[0], *numbers))
        self._parts += parts[1:]
        end = np.append(table.end, np.zeros(degree - len(table.end)))
        if isinstance(table, ResolventTable):
            end = np.concatenate([end, [len(table.poles), table.powers], table.poles])
        self._ends.append(end)
        self._n_ends += len(end)
        return 1 + n_parts * _ROWS

    def coordinates(self, run: MomentRun) -> np.ndarray:
        """Return, for each rung, the squares beside a run's directions, and its coordinates."""
        out = []
        for table in self.tables[run.n, run.span]:
            along, beside = table.project(run.inside)
            out += [np.array([beside]), along, np.zeros(-len(along) % _ROWS)]
        return np.concatenate(out)


def _fragments(rows: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the moments that count for each tile of some rows, and the rows as lanes read them."""
    degree = -(-max(1, rows.shape[1]) // CHUNK) * CHUNK
    padded = np.zeros((_ROWS, degree))
    padded[: len(rows), : rows.shape[1]] = rows
    used = (padded.reshape(TILES, TILE, -1) != 0).any(axis=1)
    lengths = tuple(int(np.flatnonzero(u).max(initial=-1)) + 1 for u in used)
    # tile, upper or lower half, row; chunk, left or right half, column
    split = padded.reshape(TILES, 2, 8, -1, 2, 4).transpose(3, 0, 2, 5, 4, 1)
    table = split.reshape(-1, TILES, 32, 4)[: -(-max(1, *lengths) // CHUNK)]
    return lengths, np.ascontiguousarray(table)


@dataclass(frozen=True, eq=False)
class PackedWalk:
    """A walk as the kernel reads it, with coordinates of recordings; see `moment_walk`."""

    arrays: tuple[np.ndarray, ...]
    coordinates: np.ndarray
    n_jobs: int
    n_slots: int


def prefers_resolvents(model: ChannelModel, found: Ladder) -> bool:
    """Return whether moments of resolvents are expected to be faster than Chebyshev's.

    These are few for slow candidates; others would be stepped, one as slowly as many.
    """
    chain = model.chains[0]
    index = {state: i for i, state in enumerate(chain.states)}
    entries = [(index[t.source], index[t.target], 0) for t in chain.transitions]
    if not Elimination(len(chain.states), entries).pays:
        return False
    return found.served < LEAST_SERVED["cuda"] or found.degree > _GREATEST_DEGREE


class CudaMoments(HeldScorer):
    """The kernels that score by moments: of Chebyshev, or of resolvents where those would be many.

    Arguments:
        exact: as in `HeldScorer`.
    """

    kernel_names = (*HeldScorer.kernel_names, BOUND_SPEEDS)

    def __init__(self, problem: Problem, exact: Any) -> None:
        self.ladder = ladder(problem, not modes_are_real(problem.model))
        source = CudaMomentSource(problem.model, prefers_resolvents(problem.model, self.ladder))
        super().__init__(problem, source, exact)

    def program(self, n_jobs: int) -> Program:
        if n_jobs not in self._programs:
            xp, walk = gpu.cupy(), self.walk(n_jobs)
            walked = [xp.asarray(np.ascontiguousarray(array)) for array in walk.arrays]
            arrays = (
                *walked,
                np.int32(len(walk.arrays[-1])),
                np.int32(self.ladder.lowest),
                *self._on_device,
                xp.asarray(walk.coordinates),
            )
            self._programs[n_jobs] = Program(walk, arrays, self._compiled(walk.n_slots))
        return self._programs[n_jobs]

    def _arranged(self, parameters: Any, first: int, n: int) -> tuple[Any, ...]:
        """Return the first arguments of the kernel: candidates, in an order if they are many.

        The fastest come first, because the last of a launch should not take longest. Neighbors of
        one speed share a lower rung, which saves 15 % of the moments.
        """
        given = super()._arranged(parameters, first, n)
        if n < _SORTED_FROM or self.source.resolves:
            return *given, gpu.NULL
        xp = gpu.cupy()
        speeds = xp.empty(n, dtype=np.float32)
        level = xp.asarray(np.atleast_1d(self.ladder.costliest))
        self._compiled(0)[BOUND_SPEEDS]((-(-n // 256),), (256,), (*given, level, speeds))
        order = xp.argsort(-speeds)
        arranged = xp.ascontiguousarray(parameters[:, first + order])
        return arranged, np.int64(n), np.int32(first), np.int32(n), order

    @cached_property
    def tables(self) -> FragmentTables:
        """The tables of all kinds of runs of the problem."""
        found = self.ladder
        source = self.source
        return FragmentTables(found.highest, found.lowest, source.oscillating, source.resolves)

    @cached_property
    def _on_device(self) -> tuple[Any, ...]:
        return tuple(gpu.cupy().asarray(array) for array in self.tables.arrays)

    def walk(self, n_jobs: int) -> PackedWalk:
        """Return the walk of a schedule of so many jobs, or as many as there are last runs."""
        walk = moment_walk(self.problem.scored, n_jobs, self.source.oscillating)
        runs = np.zeros(len(walk.runs) + 1, RUN)  # one behind the last is read ahead
        parts: list[np.ndarray] = []
        place = 0
        for row, run in zip(runs, walk.runs, strict=False):
            row["weight"], row["source"], row["target"] = run.weight, run.source, run.target
            row["kind"] = self.tables.kinds[run.n, run.span]
            if run.weight > 0:
                parts.append(self.tables.coordinates(run))
                row["data"] = place
                place += len(parts[-1])
        tops = [
            min(self.tables.tops[run.n, run.span] for run in walk.runs[first:last])
            for first, last in itertools.pairwise(walk.visits)
        ]
        limits = [speed_of(top) for top in tops]
        arrays = walk.jobs, walk.visits, walk.visit_v, np.array(limits) * (1 - 1e-5)
        return PackedWalk(
            (*arrays, runs.view(np.uint8), walk.start_v),
            np.concatenate(parts),
            len(walk.jobs) - 1,
            walk.n_slots,
        )

    def _constants(self, program: Program) -> tuple[float, float]:
        walk = self.ladder.walk
        squares = walk.outside + sum(
            run.weight * float((run.inside**2).sum()) for run in walk.runs if run.weight > 0
        )
        least = LEAST_COST_RESOLVENTS if self.source.resolves else LEAST_COST
        return self.problem.scored.constant + walk.outside, least * squares
