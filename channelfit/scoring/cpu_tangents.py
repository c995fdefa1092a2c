"""Linearizations on the CPU: costs with exact derivatives, from compressed recordings.

A plan is made once per problem: which samples of each run are needed, where each run's currents go,
and what the recordings look like in the space of all traces (`compression`, on ramps
`collocation`). For each candidate the kernels of `codegen.tangent_kernels` then fill a flat array
with currents and derivatives, and matrix products make residuals and their Jacobian of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from channelfit.model.channel import Chain
from channelfit.model.graphs import narrow_order
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import (
    DATA,
    END,
    GAUSS,
    KIND,
    MIDDLE,
    N_SAMPLES,
    N_SUB,
    NODES,
    QUARTERS,
    SOURCE,
    START,
    TABLE,
    TARGET,
    VARYING,
    RunTree,
)
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels import relaxation_kernels, tangent_kernels
from channelfit.scoring.kernels.integration import GREATEST_GAIN, STIFF
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.kernels.tangent_tables import GAINS, RATES, boundRates, project
from channelfit.scoring.layout import ramp_collocation as collocation
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.machine.machine_code import Callback, generated
from channelfit.scoring.machine.threads import single_threaded_blas

#: Of a candidate that needs every sample of a ramp; none of the statuses of `backends`.
_UNRESOLVED = -1
#: Steps of varying voltage taken together, powers of two: their rates and derivatives stay in the
#: cache.
_STEPS = {"relax": 512, "scheme": 64}


@dataclass(frozen=True, eq=False)
class _Group:
    """Held runs of equally many samples, or a piece of a ramp: one matrix product."""

    matrix: np.ndarray  # (rank, n_points)
    points: slice  # of the flat array, (n_points, n_runs, width)
    residuals: slice  # rows, (rank, n_runs)


@dataclass(frozen=True, eq=False)
class _Ramp:
    """A varying run in pieces: lengths (n,), ms; voltage (n, n_points), mV; places (n,) in the flat
    array, -1 where no sample lies in a piece."""

    edges: np.ndarray
    voltage: np.ndarray
    places: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.edges)


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Consecutive held runs, or one varying run with its voltages, or as a ramp."""

    first: int
    last: int
    nodes: tuple[np.ndarray, ...] = ()
    ramp: _Ramp | None = None

    @property
    def moves(self) -> bool:
        """Whether the voltage does."""
        return bool(self.nodes) or self.ramp is not None


class Plan:
    """Where everything of one problem goes.

    runs: (n_runs, 9) int64, columns of `tangent_tables`; stretches in order; n_flat numbers in the
    flat array, of which the last n_residuals * width are the residuals; target, scale
    (n_residuals,): residual = scale * (shown - target); matrices, group_table: of the groups, as
    `tangent_tables.project` wants them; constant: squares outside all residuals.
    ramps: by run, those taken in pieces of that grade; empty where grade is None.
    """

    def __init__(
        self, tree: RunTree, width: int, oscillating: bool, relaxes: bool, grade: int | None
    ) -> None:
        self.tree, self.width = tree, width
        runs = tree.runs
        n = len(runs)
        held = runs[:, KIND] != VARYING
        sampled = tree.run_weight > 0
        self.runs = np.zeros((n, 9), np.int64)
        self.runs[held, 0] = tree.table_voltage[runs[held, TABLE]]
        self.runs[held, 1] = runs[held, TABLE]
        self.runs[:, 2:5] = runs[:, [N_SAMPLES, SOURCE, TARGET]]
        self.run_dt = tree.run_dt.copy()
        self.run_dt[held] = tree.table_dt[runs[held, TABLE]]
        self.constant = tree.constant
        self.ramps: dict[int, _Ramp] = {}
        for r in np.flatnonzero(~held).tolist() if grade is not None else ():
            ramp = _ramp(tree, r, grade or 0)
            self.ramps |= {} if ramp is None else {r: ramp}
        self._place(tree, held, sampled, oscillating)
        self.levels = np.ones(len(tree.table_dt), np.int64)
        for r in np.flatnonzero(held).tolist():
            k = runs[r, TABLE]
            self.levels[k] = max(self.levels[k], int(runs[r, N_SAMPLES]).bit_length())
        self.stretches = list(self._stretches(tree, held, relaxes))

    def _place(
        self, tree: RunTree, held: np.ndarray, sampled: np.ndarray, oscillating: bool
    ) -> None:
        runs, width = tree.runs, self.width
        by_length: dict[int, list[int]] = {}
        whole: list[int] = []
        for r in np.flatnonzero(sampled).tolist():
            if r in self.ramps:
                continue
            few = held[r] and not compression(int(runs[r, N_SAMPLES]), oscillating).is_whole
            (by_length.setdefault(int(runs[r, N_SAMPLES]), []) if few else whole).append(r)
        short: dict[int, int] = {}  # all samples of held runs, as points
        points: list[np.ndarray] = []
        n_points = flat = rows = 0
        self.groups: list[_Group] = []
        target: list[np.ndarray] = []
        scale: list[np.ndarray] = []
        for length, members in by_length.items():
            kept = compression(length, oscillating)
            rank, n_kept = kept.matrix.shape
            stride = len(members) * width
            shown = np.empty((rank, len(members)))
            for k, r in enumerate(members):
                self.runs[r, 5:9] = flat + k * width, stride, n_points, n_kept
                shown[:, k], rest = kept.project(self._data(tree, r))
                self.constant += tree.run_weight[r] * rest
            self.groups.append(
                _Group(
                    kept.matrix,
                    slice(flat, flat + n_kept * stride),
                    slice(rows, rows + rank * len(members)),
                )
            )
            target.append(shown.ravel())
            scale.append(np.tile(np.sqrt(tree.run_weight[members]), rank))
            points.append(kept.points)
            n_points, flat = n_points + n_kept, flat + n_kept * stride
            rows += rank * len(members)
        for r in self.ramps:
            for group, shown, rest in self._pieces(tree, r, flat, rows) if sampled[r] else ():
                self.groups.append(group)
                self.constant += tree.run_weight[r] * rest
                target.append(shown)
                scale.append(np.full(len(shown), np.sqrt(tree.run_weight[r])))
                flat, rows = group.points.stop, group.residuals.stop
        self.n_compressed = flat
        for r in whole:
            length = int(runs[r, N_SAMPLES])
            self.runs[r, 5:7] = flat + rows * width, width
            if held[r]:
                if length not in short:
                    short[length] = n_points
                    points.append(np.arange(length))
                    n_points += length
                self.runs[r, 7:9] = short[length], length
            target.append(self._data(tree, r))
            scale.append(np.full(length, np.sqrt(tree.run_weight[r])))
            rows += length
        self.n_residuals, self.n_flat = rows, flat + rows * width
        self.points = _joined(points, np.int64)
        self.target, self.scale = _joined(target), _joined(scale)
        self.matrices = _joined([group.matrix.ravel() for group in self.groups])
        begins = np.cumsum([0, *(group.matrix.size for group in self.groups)])
        self.group_table = np.array(
            [
                (*g.matrix.shape, begin, g.points.start, g.points.stop, g.residuals.start * width)
                for g, begin in zip(self.groups, begins, strict=False)
            ],
            np.int64,
        ).reshape(-1, 6)

    def _pieces(
        self, tree: RunTree, r: int, flat: int, rows: int
    ) -> Iterator[tuple[_Group, np.ndarray, float]]:
        """Of every piece with samples: its group, its target, and the squares left outside."""
        ramp, n, step = self.ramps[r], int(tree.runs[r, N_SAMPLES]), int(tree.runs[r, N_SUB])
        t, data = np.arange(n) * (step * tree.run_dt[r]), self._data(tree, r)
        piece_of = np.searchsorted(ramp.edges[1:-1], t, side="right")
        for piece in np.unique(piece_of).tolist():
            begin, end = ramp.edges[piece : piece + 2]
            inside = piece_of == piece
            q, matrix = np.linalg.qr(collocation.between((t[inside] - begin) / (end - begin)))
            shown = q.T @ data[inside]
            rest = float(np.sum((data[inside] - q @ shown) ** 2))
            ramp.places[piece] = flat
            points = slice(flat, flat + matrix.shape[1] * self.width)
            group = _Group(matrix, points, slice(rows, rows + len(matrix)))
            flat, rows = points.stop, rows + len(matrix)
            yield group, shown, rest

    @staticmethod
    def _data(tree: RunTree, r: int) -> np.ndarray:
        begin = tree.runs[r, DATA]
        return tree.data_pA[begin : begin + tree.runs[r, N_SAMPLES]]

    def _stretches(self, tree: RunTree, held: np.ndarray, relaxes: bool) -> Any:
        r = 0
        while r < len(held):
            last = r + 1
            if held[r]:
                while last < len(held) and held[last]:
                    last += 1
                yield _Stretch(r, last)
            elif r in self.ramps:
                yield _Stretch(r, last, ramp=self.ramps[r])
            else:
                yield _Stretch(r, last, _nodes(tree, r, relaxes))
            r = last


def _nodes(tree: RunTree, r: int, relaxes: bool) -> tuple[np.ndarray, ...]:
    """Voltages of a varying run: (edges, middles), or (Gauss points, those of the quarters)."""
    row = tree.runs[r]
    n = int(row[N_SAMPLES] * row[N_SUB])
    first = int(row[TABLE])
    nodes = tree.nodes_mV[first : first + n * len(NODES)].reshape(n, len(NODES))
    if relaxes:
        return np.append(nodes[:1, START], nodes[:, END]), nodes[:, MIDDLE].copy()
    return nodes[:, GAUSS:QUARTERS].ravel(), nodes[:, QUARTERS:].ravel()


def _ramp(tree: RunTree, r: int, grade: int) -> _Ramp | None:
    """A varying run in pieces, if its voltage is smooth and they cost less than steps."""
    row = tree.runs[r]
    n = int(row[N_SAMPLES] * row[N_SUB])
    nodes = tree.nodes_mV[row[TABLE] : row[TABLE] + n * len(NODES)].reshape(n, len(NODES))
    in_pieces = collocation.pieces(float(tree.run_dt[r]), nodes, NODES, grade)
    return None if in_pieces is None else _Ramp(*in_pieces, np.full(len(in_pieces[1]), -1))


class Linearizer:
    """Cost, gradient and curvature of the candidates of one problem."""

    def __init__(self, problem: Problem) -> None:
        model = problem.model
        if not model.relaxes and (len(model.chains) > 1 or model.chains[0].power != 1):
            raise InputError(
                "derivatives are for one scheme, or for gates of two states; write the product of "
                "several schemes as one scheme"
            )
        self.problem, self.source = problem, TangentSource(model)
        self.free = np.array(self.source.free, np.int64)
        moving = not model.relaxes and bool((problem.scored.runs[:, KIND] == VARYING).any())
        self._grades = (*(range(len(collocation.GRADES)) if moving else ()), None)
        self._made: list[Plan] = []
        self._idle: dict[int, list[_Walk]] = {}  # by the id of a plan, which lives as long
        self._lock = Lock()

    def plans(self) -> Iterator[Plan]:
        """From the fastest to the one that serves every candidate, each made when first needed."""
        model = self.problem.model
        oscillating = not all(_is_tree(chain) for chain in model.chains)
        width = 1 + len(self.free)
        for k, grade in enumerate(self._grades):
            with self._lock:
                if k == len(self._made):
                    with single_threaded_blas():
                        plan = Plan(self.problem.scored, width, oscillating, model.relaxes, grade)
                    self._made.append(plan)
            if grade is None or self._made[k].ramps:
                yield self._made[k]

    @property
    def has_pieces(self) -> bool:
        """Whether any run is taken in pieces rather than from sample to sample."""
        return self._grades[0] is not None and bool(next(iter(self.plans())).ramps)

    @property
    def plan(self) -> Plan:
        """The plan that serves every candidate."""
        *_, last = self.plans()
        return last

    def linearize(
        self,
        parameters: np.ndarray,
        first: int,
        last: int,
        cost: np.ndarray,
        status: np.ndarray,
        gradient: np.ndarray,
        curvature: np.ndarray,
    ) -> None:
        """Fills in the columns first .. last - 1 of a `Linearization`'s arrays."""
        free, some = self.free, slice(first, last)
        status[some], normals = self._normals(parameters[:, some])
        normals *= 1.0 / self.problem.scored.total_weight
        cost[some] = normals[:, 0, 0]
        normals[status[some] != OK] = 0.0
        gradient[free, some] = 2.0 * normals[:, 0, 1:].T
        curvature[free[:, None], free, some] = 2.0 * normals[:, 1:, 1:].transpose(1, 2, 0)

    def costs(
        self, parameters: np.ndarray, first: int, last: int, cost: np.ndarray, status: np.ndarray
    ) -> None:
        """The same of costs alone."""
        status[first:last], normals = self._normals(parameters[:, first:last])
        cost[first:last] = normals[:, 0, 0] / self.problem.scored.total_weight

    def _normals(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Status (n,) and products of residuals and derivatives with each other (n, width, width).

        Of one that failed the squares of the residuals are infinite.
        """
        thetas = np.ascontiguousarray(parameters.T)
        status, wanted = np.zeros(len(thetas), np.int64), np.arange(len(thetas))
        normals = np.zeros((len(thetas), 1 + len(self.free), 1 + len(self.free)))
        for plan in self.plans():
            with self._walk(plan) as walk:
                status[wanted], normals[wanted] = walk.normals(thetas[wanted])
            normals[wanted, 0, 0] += plan.constant
            wanted = np.flatnonzero(status == _UNRESOLVED)
            if not len(wanted):
                break
        status[(status == OK) & ~np.isfinite(normals).all(axis=(1, 2))] = NOT_FINITE
        normals[status != OK, 0, 0] = np.inf
        return status, normals

    def residuals(
        self,
        parameters: np.ndarray,
        first: int,
        last: int,
        residuals: np.ndarray,
        jacobian: np.ndarray,
    ) -> None:
        """Fills in the same columns of residuals and Jacobian, NaN where a candidate failed."""
        with self._walk(self.plan) as walk:
            for c in range(first, last):
                good = walk.projected(np.ascontiguousarray(parameters[:, c])) == OK
                residuals[:, c] = walk.residuals[:, 0] if good else np.nan
                jacobian[:, self.free, c] = walk.residuals[:, 1:] if good else np.nan

    @contextmanager
    def _walk(self, plan: Plan) -> Iterator[_Walk]:
        """A walk with scratch arrays that no other thread uses meanwhile. It is kept: a search asks
        for a few candidates many times a second."""
        idle = self._idle.setdefault(id(plan), [])
        try:
            walk = idle.pop()
        except IndexError:
            kind = _Relaxing if self.problem.model.relaxes else _Scheme
            walk = kind(self.source, plan)
        try:
            yield walk
        finally:
            idle.append(walk)


class _Walk(ABC):
    """One candidate after the other through all runs; holds the scratch arrays of one thread."""

    def __init__(self, source: TangentSource, plan: Plan) -> None:
        self.source, self.plan = source, plan
        self.create_gains = generated(source.text, "createGains")
        self.create_rates = generated(source.text, "createRates")
        self.tree, self.flat = plan.tree, np.zeros(plan.n_flat)
        self.shown = self.flat[plan.n_compressed :]
        self.residuals = self.shown.reshape(plan.n_residuals, plan.width)
        self.model = source.model
        self.partials = np.array(source.partials, np.int64).reshape(-1, 2)
        self.least = np.array(source.least)
        self.gain = np.empty((2, plan.width))
        self.flags = np.zeros(2, np.int64)

    @abstractmethod
    def normals(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Status (n,) and products (n, width, width) of candidates (n, n_parameters).

        Residuals are left as the last one has them, where it is good.
        """

    def projected(self, theta: np.ndarray) -> int:
        """Fills in the residuals of one candidate; returns its status."""
        return int(self.normals(theta[None])[0][0])

    def _room(self, n_voltages: int) -> tuple[np.ndarray, np.ndarray]:
        """Arrays that `createRates` fills: rates and slopes at so many voltages."""
        return (
            np.empty((len(self.source.rates), n_voltages)),
            np.empty((len(self.partials), n_voltages)),
        )


class _Relaxing(_Walk):
    """Chains of two states (or one)."""

    def __init__(self, source: TangentSource, plan: Plan) -> None:
        super().__init__(source, plan)
        self.functions = Callback(self.create_gains, GAINS), Callback(self.create_rates, RATES)
        row_of = {pair: k for k, pair in enumerate(source.partials)}
        own: list[list[int]] = []
        chains, rows = [], []
        for chain in self.model.chains:
            pair = _opening_and_closing(chain, source)
            up, down = (u for u, _ in pair)
            own.append(sorted({d for u, d in source.partials if u in (up, down)}))
            rows.append([[row_of.get((u, d), -1) for u in (up, down)] for d in own[-1]])
            chains.append(
                [
                    up,
                    down,
                    pair[0][1],
                    pair[1][1],
                    chain.power,
                    len(own[-1]),
                    chain.linear,
                    chain.instant,
                ]
            )
        widest = max(1, *map(len, own))
        self.chains = np.array(chains, np.int64)
        self.rows = np.full((len(own), widest, 2), -1, np.int64)
        self.directions = np.zeros((len(own), widest), np.int64)
        for c, some in enumerate(own):
            self.directions[c, : len(some)] = some
            self.rows[c, : len(some)] = np.reshape(rows[c], (-1, 2))
        self.conductances = np.array([(*c.conductances, 0.0)[:2] for c in self.model.chains])
        self.states = np.zeros((self.tree.n_slots, len(own)))
        self.dstates = np.zeros((self.tree.n_slots, len(own), widest))
        self.at_held = self._room(len(self.tree.voltages))
        self.at_edges = self._room(_STEPS["relax"] + 1)
        self.at_middles = self._room(_STEPS["relax"])
        moving = [stretch for stretch in plan.stretches if stretch.moves]
        self.edges = _joined([stretch.nodes[0] for stretch in moving])
        self.middles = _joined([stretch.nodes[1] for stretch in moving])
        self.stretches = np.array(list(self._rows()), np.int64).reshape(-1, 8)

    def _rows(self) -> Iterator[tuple[int, ...]]:
        """Of the table of stretches."""
        edges = middles = 0
        for stretch in self.plan.stretches:
            if not stretch.moves:
                yield stretch.first, stretch.last, -1, 0, 0, 0, 0, 0
                continue
            run = _VaryingRun(self.plan, stretch.first)
            place = run.place(0) if run.sampled else -1
            yield (
                stretch.first,
                stretch.last,
                run.n_steps,
                run.n_sub,
                edges,
                middles,
                run.first_sample,
                place,
            )
            edges, middles = edges + run.n_steps + 1, middles + run.n_steps

    def normals(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        plan, tree, n = self.plan, self.tree, len(thetas)
        flags, products = np.zeros((n, 2), np.int64), np.zeros((n, plan.width, plan.width))
        relaxation_kernels.relaxNormals(
            *self.functions,
            thetas,
            tree.voltages,
            tree.start_voltage,
            plan.runs,
            plan.run_dt,
            self.stretches,
            self.edges,
            self.middles,
            tree.sample_mV,
            plan.points,
            self.partials,
            self.least,
            self.chains,
            self.rows,
            self.directions,
            self.conductances,
            self.gain,
            *self.at_held,
            *self.at_edges,
            *self.at_middles,
            self.states,
            self.dstates,
            self.flat,
            plan.matrices,
            plan.group_table,
            plan.target,
            plan.scale,
            self.shown,
            self.residuals,
            flags,
            products,
        )
        return np.where(flags[:, 0], NOT_FINITE, np.where(flags[:, 1], NEGATIVE_RATE, OK)), products


class _Scheme(_Walk):
    """One scheme of three states or more."""

    def __init__(self, source: TangentSource, plan: Plan) -> None:
        super().__init__(source, plan)
        (chain,) = self.model.chains
        self.transitions = np.array(source.transitions(chain), np.int64)
        order = _narrow(self.transitions, len(chain.states))
        self.transitions[:, :2] = np.argsort(order)[self.transitions[:, :2]]
        self.reach = int(np.abs(self.transitions[:, 0] - self.transitions[:, 1]).max())
        n, n_rates, width = len(chain.states), len(source.rates), source.width
        self.conductances = np.array(chain.conductances)[order]
        tree, n_tables = self.tree, len(self.tree.table_dt)
        n_levels = int(plan.levels.max(initial=1))
        self.states = np.zeros((tree.n_slots, n))
        self.dstates = np.zeros((tree.n_slots, n, width))
        self.powers = np.empty((n_tables, n_levels, n, n))
        # without directions no derivative by a rate is of use
        n_slopes = n_rates if source.free else 0
        self.dpowers = np.empty((n_tables, n_levels, n, n, n_slopes))
        self.m, self.dm = np.empty((8, n, n)), np.empty((8, n, n, n_slopes))
        self.at_held = self._room(len(tree.voltages))
        self.by_held = self._by_voltage(len(tree.voltages))
        # of steps, then of quarters
        self.at_nodes = self._room(8 * _STEPS["scheme"])
        self.by_nodes = self._by_voltage(10 * _STEPS["scheme"])
        most = max([r.voltage[:, 1:].size for r in plan.ramps.values()], default=0)
        self.at_points, self.by_points = self._room(most), self._by_voltage(most)

    def _by_voltage(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        n_rates = len(self.source.rates)
        return np.empty((n, n_rates)), np.empty((n, n_rates, self.source.width))

    def normals(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        plan, status = self.plan, np.zeros(len(thetas), np.int64)
        products = np.zeros((len(thetas), plan.width, plan.width))
        for c, theta in enumerate(thetas):
            status[c] = self._shown(theta)
            if status[c] == OK:
                project(
                    self.flat,
                    plan.matrices,
                    plan.group_table,
                    plan.target,
                    plan.scale,
                    self.shown,
                    self.residuals,
                    products[c],
                )
        return status, products

    def _shown(self, theta: np.ndarray) -> int:
        """Fills the flat array with currents and derivatives; returns a status."""
        flat = self.flat
        self.flags[:], self.tail = 0, 0.0
        self.create_gains(theta, self.gain)
        self._start(theta)
        for stretch in self.plan.stretches:
            if stretch.moves:
                self._varying(theta, stretch, flat)
            else:
                self._held(stretch, flat)
        if self.flags[0] or not (np.abs(self.gain) < GREATEST_GAIN).all():
            return NOT_FINITE
        if self.flags[1]:
            return NEGATIVE_RATE
        return OK if self.tail <= collocation.TAIL else _UNRESOLVED

    def _rates(self, theta: np.ndarray, v: np.ndarray, room: tuple[np.ndarray, np.ndarray]) -> None:
        self.create_rates(v, theta, *room)
        boundRates(*room, self.partials, self.least, len(v), self.flags)

    def _start(self, theta: np.ndarray) -> None:
        tree = self.tree
        self._rates(theta, tree.voltages, self.at_held)
        tangent_kernels.byVoltage(*self.at_held, self.partials, len(tree.voltages), *self.by_held)
        tangent_kernels.schemeTables(
            *self.by_held,
            tree.start_voltage,
            tree.table_voltage,
            tree.table_dt,
            self.plan.levels,
            self.transitions,
            self.powers,
            self.dpowers,
            self.states,
            self.dstates,
            self.m,
            self.dm,
        )

    def _held(self, stretch: _Stretch, flat: np.ndarray) -> None:
        tangent_kernels.schemeHeld(
            self.plan.runs,
            stretch.first,
            stretch.last,
            self.tree.voltages,
            self.plan.points,
            self.conductances,
            self.by_held[1],
            self.powers,
            self.dpowers,
            self.gain,
            self.states,
            self.dstates,
            flat,
        )

    def _varying(self, theta: np.ndarray, stretch: _Stretch, flat: np.ndarray) -> None:
        if stretch.ramp is not None:
            self._ramp(theta, stretch.first, stretch.ramp, flat)
        else:
            self._stepped(theta, stretch, flat)

    def _stepped(self, theta: np.ndarray, stretch: _Stretch, flat: np.ndarray) -> None:
        run = _VaryingRun(self.plan, stretch.first)
        x, dx = self.states[run.target], self.dstates[run.target]
        x[:], dx[:] = self.states[run.source], self.dstates[run.source]
        points, quarters = stretch.nodes
        depth = np.empty(_STEPS["scheme"])
        for begin, end in run.blocks(_STEPS["scheme"]):
            n = end - begin
            self._at_nodes(theta, points[2 * begin : 2 * end], 0)
            tangent_kernels.stiffness(run.h, self.by_nodes[0][: 2 * n], self.transitions, depth[:n])
            stiff = np.flatnonzero(depth[:n] > STIFF)
            places = np.full(n, -1)
            if len(stiff):
                places[stiff] = 2 * n + 8 * np.arange(len(stiff))
                wanted = quarters.reshape(-1, 8)[begin:end][stiff].ravel()
                self._at_nodes(theta, wanted, 2 * n)
            tangent_kernels.schemeVarying(
                n,
                run.n_sub,
                run.h,
                run.samples(begin),
                *self.by_nodes,
                places,
                self.transitions,
                self.conductances,
                run.sample_voltage(begin),
                self.gain,
                x,
                dx,
                flat,
                run.place(begin),
                self.m,
                self.dm,
            )

    def _ramp(self, theta: np.ndarray, r: int, ramp: _Ramp, flat: np.ndarray) -> None:
        source, target = self.tree.runs[r, [SOURCE, TARGET]]
        x, dx = self.states[target], self.dstates[target]
        x[:], dx[:] = self.states[source], self.dstates[source]
        v = ramp.voltage[:, 1:].ravel()
        self._rates(theta, v, self.at_points)
        tangent_kernels.byVoltage(*self.at_points, self.partials, len(v), *self.by_points)
        tail = tangent_kernels.schemeRamp(
            ramp.lengths,
            collocation.slopes(),
            collocation.tails(),
            *self.by_points,
            self.transitions,
            self.reach,
            self.conductances,
            ramp.voltage,
            self.gain,
            x,
            dx,
            flat,
            ramp.places,
        )
        self.tail = tail if not tail <= self.tail else self.tail

    def _at_nodes(self, theta: np.ndarray, v: np.ndarray, row: int) -> None:
        """Rates and slopes at these voltages into the rows from `row` on."""
        self._rates(theta, v, self.at_nodes)
        rate, slope = self.by_nodes
        tangent_kernels.byVoltage(*self.at_nodes, self.partials, len(v), rate[row:], slope[row:])


class _VaryingRun:
    """One run of varying voltage: its numbers, and the parts in which it is taken."""

    def __init__(self, plan: Plan, r: int) -> None:
        row = plan.tree.runs[r]
        self.n_steps, self.n_sub = int(row[N_SAMPLES] * row[N_SUB]), int(row[N_SUB])
        self.source, self.target = int(row[SOURCE]), int(row[TARGET])
        self.h, self.sampled = float(plan.run_dt[r]), bool(plan.tree.run_weight[r] > 0)
        self.first_sample, self._voltage = int(row[DATA]), plan.tree.sample_mV
        self._out, self._stride = int(plan.runs[r, 5]), plan.width

    def blocks(self, most: int) -> Iterator[tuple[int, int]]:
        """[begin, end) of steps; `most` and n_sub are powers of two, so samples begin blocks."""
        for begin in range(0, self.n_steps, most):
            yield begin, min(begin + most, self.n_steps)

    def samples(self, step: int) -> bool:
        """Whether there is a sample to take in a block that begins with this step."""
        return self.sampled and step % self.n_sub == 0

    def sample_voltage(self, step: int) -> np.ndarray:
        """Voltages at the samples from a step on."""
        return self._voltage[self.first_sample + step // self.n_sub :]

    def place(self, step: int) -> int:
        """Where the first sample from a step on goes in the flat array."""
        return self._out + step // self.n_sub * self._stride


def _opening_and_closing(chain: Chain, source: TangentSource) -> list[tuple[int, int]]:
    """(rate, multiplicity) of opening and closing of a chain of two states; (-1, 1) of one."""
    pair = [(-1, 1), (-1, 1)]
    for t in chain.transitions:
        pair[chain.states.index(t.source)] = (source.rates.index(t.rate), t.multiplicity)
    return pair


def _narrow(transitions: np.ndarray, n: int) -> np.ndarray:
    """The order of the states in which those with a transition stand near each other."""
    joined = np.zeros((n, n), bool)
    joined[transitions[:, 0], transitions[:, 1]] = True
    return narrow_order(joined | joined.T)


def _is_tree(chain: Chain) -> bool:
    """Whether no cycle can make occupancies oscillate."""
    edges = {frozenset((t.source, t.target)) for t in chain.transitions}
    return len(edges) == len(chain.states) - 1


def _joined(parts: list[np.ndarray], dtype: Any = float) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)
