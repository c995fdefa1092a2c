"""Tables of Chebyshev moments as the CPU's kernel reads them, made when candidates need them."""

from __future__ import annotations

import itertools

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.kernels.cpu_moments import AT_ONCE, TOGETHER
from channelfit.scoring.kernels.detailed_balance import modes_are_real
from channelfit.scoring.layout.moment_tables import (
    GREATEST_DECAY,
    MomentTable,
    moment_table,
    moment_walk,
    rung_of,
    speed_of,
)
from channelfit.scoring.layout.resolvent_tables import ResolventTable, resolvent_table

#: Numbers in the tables and targets of a problem at most, 64 MB; what needs more is stepped.
_MOST_NUMBERS = 1 << 23
#: rho times the time of a run beyond which moments of resolvents are cheaper.
_GREATEST_DECAY = 512.0


class CpuMomentTables:
    """The arrays that `runMoments` reads.

    A kind of run is all runs of equally many samples, and as long.

    Attributes:
        visits, visit_v, start_v, n_slots: see `moment_tables.MomentWalk`.
        visit_top: (n_visits,) the greatest rho that a visit's tables have, 1/ms.
        ladder: (n_rungs,) rho on each rung, 1/ms; inf on the last, of resolvents.
        places: (n_runs, 3) int32: source and target slot (-1: none), kind.
        values: (n_runs, 2): weight, samples.
        table_of: (n_kinds, n_rungs) int32, the row of `shapes`; -1 where there is none yet.
        shapes: (n_tables, 8) int32: moments for the current, and for the end; first group, the one
            after the last; where the weights of the end begin in `tables`; of resolvents where the
            poles begin there, their number (else 0) and the moments of each.
        groups: (n_groups, 2) int32, TOGETHER directions each: moments, and where in `tables`.
        target_of: (n_runs, n_rungs) int32, where in `targets` the squares left beside all
            directions are, pA^2; the recording along each direction follows, pA.
        outside: see `moment_tables.MomentWalk`.

    Arguments:
        resolves: whether there is a rung of resolvents.
        slopes: see `moment_table`.
    """

    def __init__(self, problem: Problem, resolves: bool, slopes: bool = False) -> None:
        self._oscillating, self._slopes = not modes_are_real(problem.model), slopes
        walk = moment_walk(problem.scored, oscillating=self._oscillating)
        self.visits, self.visit_v, self.start_v = walk.visits, walk.visit_v, walk.start_v
        self.n_slots, self.outside = walk.n_slots, walk.outside
        self._runs = walk.runs
        self._kinds = list(dict.fromkeys((run.n, run.span) for run in walk.runs))
        kinds = [self._kinds.index((run.n, run.span)) for run in walk.runs]
        slots = [(run.source, run.target) for run in walk.runs]
        self.places = np.column_stack([slots, kinds]).astype(np.int32)
        self.values = np.array([(run.weight, run.n) for run in walk.runs], dtype=float)
        greatest = _GREATEST_DECAY if resolves else GREATEST_DECAY
        tops = [
            rung_of(greatest / max(run.span for run in walk.runs[first:last])) - 1
            for first, last in itertools.pairwise(walk.visits)
        ]
        step = 2 if slopes else 1  # fewer tables, since linearizations are few
        tops = [walk.lowest + (top - walk.lowest) // step * step for top in tops]
        self._rungs = range(walk.lowest, max(tops) + 1, step)
        self.ladder = np.array([*(speed_of(rung) for rung in self._rungs), np.inf])
        self.visit_top = np.array([speed_of(rung) for rung in tops])
        self.table_of = np.full((len(self._kinds), len(self.ladder)), -1, np.int32)
        self.target_of = np.zeros((len(self._runs), len(self.ladder)), np.int32)
        self.shapes, self.groups = np.empty((0, 8), np.int32), np.empty((0, 2), np.int32)
        self.tables, self.targets = np.empty(0), np.empty(0)

    def add(self, missing: np.ndarray) -> bool:
        """Add tables (n_kinds, n_rungs) that are missing; return whether there was room for any."""
        if self.tables.size + self.targets.size > _MOST_NUMBERS:
            return False
        new = _Parts(len(self.shapes), len(self.groups), self.tables.size, self.targets.size)
        for kind, rung in np.argwhere(missing):
            table = self._table(int(kind), int(rung))
            self.table_of[kind, rung] = new.add(table)
            for k in np.flatnonzero((self.places[:, 2] == kind) & (self.values[:, 0] > 0)):
                self.target_of[k, rung] = new.add_target(table, self._runs[k].inside)
        self.shapes = np.concatenate([self.shapes, np.array(new.shapes, np.int32).reshape(-1, 8)])
        self.groups = np.concatenate([self.groups, np.array(new.groups, np.int32).reshape(-1, 2)])
        self.tables = np.concatenate([self.tables, *new.tables])
        self.targets = np.concatenate([self.targets, *new.targets])
        return True

    def _table(self, kind: int, rung: int) -> MomentTable:
        n, span = self._kinds[kind]
        if rung == len(self._rungs):
            return resolvent_table(n, span, self._oscillating)
        table = moment_table(n, span, self._rungs[rung], self._oscillating, self._slopes)
        assert table is not None  # no visit goes beyond its top
        return table


class _Parts:
    """New parts of the arrays, behind the elements that are there already."""

    def __init__(self, n_shapes: int, n_groups: int, n_tables: int, n_targets: int) -> None:
        self.n_shapes, self.n_groups = n_shapes, n_groups
        self.n_tables, self.n_targets = n_tables, n_targets
        self.shapes: list[tuple[int, ...]] = []
        self.groups: list[tuple[int, int]] = []
        self.tables: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []

    def add(self, table: MomentTable) -> int:
        """Add a table; return its row of `shapes`."""
        first = self.n_groups + len(self.groups)
        degree = int(table.lengths.max(initial=0))
        for r in range(0, len(table.rows), TOGETHER):
            length = _up(int(table.lengths[r]), AT_ONCE)
            part = np.zeros((TOGETHER, length))
            some = table.rows[r : r + TOGETHER, :length]
            part[: len(some), : some.shape[1]] = some
            blocks = part.reshape(TOGETHER, -1, AT_ONCE).transpose(1, 0, 2)
            self.groups.append((length, self._table(blocks.ravel())))
        end = np.zeros(_up(max(degree, len(table.end)), 4))
        end[: len(table.end)] = table.end
        last = self.n_groups + len(self.groups)
        shape = (_up(degree, 4), len(end), first, last, self._table(end))
        resolvent = (0, 0, 0)
        if isinstance(table, ResolventTable):
            resolvent = (self._table(table.poles), len(table.poles), table.powers)
        self.shapes.append((*shape, *resolvent))
        return self.n_shapes + len(self.shapes) - 1

    def _table(self, numbers: np.ndarray) -> int:
        self.tables.append(numbers)
        self.n_tables += numbers.size
        return self.n_tables - numbers.size

    def add_target(self, table: MomentTable, inside: np.ndarray) -> int:
        """Add a recording along the directions of a table; return its place in `targets`."""
        along, beside = table.project(inside)
        target = np.zeros(1 + _up(len(along), TOGETHER))
        target[0], target[1 : 1 + len(along)] = beside, along
        self.targets.append(target)
        self.n_targets += target.size
        return self.n_targets - target.size


def _up(number: int, multiple: int) -> int:
    """Return the next multiple that is not below a number."""
    return -(-number // multiple) * multiple
