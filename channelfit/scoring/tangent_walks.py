"""Candidates through all runs: the currents of a linearization on the CPU, with derivatives.

A walk fills a flat array with the currents of a plan (`tangent_plan`) and their
derivatives, and makes residuals and their products of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from channelfit.model.channel import GREATEST_GAIN, Chain
from channelfit.model.graphs import narrow_order
from channelfit.problem.run_tree import SOURCE, TARGET
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.scoring.kernels import ramp_kernels, relaxation_kernels, scheme_kernels
from channelfit.scoring.kernels.integration import STIFF
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.kernels.tangent_tables import (
    GAINS,
    RATES,
    RATES_WITH_LIGANDS,
    boundRates,
    project,
)
from channelfit.scoring.layout import ramp_collocation as collocation
from channelfit.scoring.machine.machine_code import Callback, generated
from channelfit.scoring.tangent_plan import PiecewiseRamp, Plan, Stretch, VaryingRun, joined

#: The status of a candidate that needs finer pieces of a ramp; the next plan decides.
UNRESOLVED = -1
#: Steps of varying voltage taken together, powers of two: their rates and derivatives stay in the
#: cache.
_STEPS = {"relax": 512, "scheme": 64}


class Walk(ABC):
    """One candidate after the other through all runs; holds the scratch arrays of one thread."""

    def __init__(self, source: TangentSource, plan: Plan) -> None:
        self.source, self.plan = source, plan
        self.create_gains = generated(source.text, "createGains")
        self.create_rates = generated(source.text, "createRates")
        self.tree, self.flat = plan.tree, np.zeros(plan.n_flat)
        self.predicted = self.flat[plan.n_compressed :]
        self.residuals = self.predicted.reshape(plan.n_residuals, plan.width)
        self.model = source.model
        self.partials = np.array(source.partials, np.int64).reshape(-1, 2)
        self.least = np.array(source.least)
        self.gain = np.empty((2, plan.width))
        self.flags = np.zeros(2, np.int64)

    def normals(
        self, thetas: np.ndarray, targets: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return status (n,) and products (n, width, width) of candidates (n, n_parameters).

        Residuals are left as the last one has them, where it is good.

        Arguments:
            targets: (n, n_residuals), the data that each candidate is compared with; None for
                the plan's own.
        """
        plan, status = self.plan, np.zeros(len(thetas), np.int64)
        products = np.zeros((len(thetas), plan.width, plan.width))
        for c, theta in enumerate(thetas):
            status[c] = self.fill(theta)
            if status[c] == OK:
                project(
                    self.flat,
                    plan.matrices,
                    plan.group_table,
                    plan.target if targets is None else targets[c],
                    plan.scale,
                    self.predicted,
                    self.residuals,
                    products[c],
                )
        return status, products

    @abstractmethod
    def fill(self, theta: np.ndarray) -> int:
        """Fill the flat array with the currents of one candidate; return its status."""

    def projected(self, theta: np.ndarray) -> int:
        """Fill in the residuals of one candidate; return its status."""
        return int(self.normals(theta[None])[0][0])

    def _room(self, n_voltages: int) -> tuple[np.ndarray, np.ndarray]:
        """Return arrays that `createRates` fills: rates and slopes at so many voltages."""
        return (
            np.empty((len(self.source.rates), n_voltages)),
            np.empty((len(self.partials), n_voltages)),
        )


class GateWalk(Walk):
    """The walk of models of chains with two states, or one."""

    def __init__(self, source: TangentSource, plan: Plan) -> None:
        super().__init__(source, plan)
        types = RATES_WITH_LIGANDS if self.model.ligands else RATES
        self.functions = Callback(self.create_gains, GAINS), Callback(self.create_rates, types)
        row_of = {pair: k for k, pair in enumerate(source.partials)}
        own: list[list[int]] = []
        gates: list[list[int]] = []
        for chain in self.model.chains:
            pair = _opening_and_closing(chain, source)
            up, down = (u for u, _ in pair)
            own.append(sorted({d for u, d in source.partials if u in (up, down)}))
            times_up, times_down = (times for _, times in pair)
            gates.append([up, down, times_up, times_down, chain.power, len(own[-1])])
            gates[-1] += [chain.linear, chain.instant]
            for d in own[-1]:
                gates[-1] += [*(row_of.get((u, d), -1) for u in (up, down)), d]
        widest = max(map(len, gates))
        self.gates = np.array([row + [0] * (widest - len(row)) for row in gates], np.int64)
        self.conductances = np.array([(*c.conductances, 0.0)[:2] for c in self.model.chains])
        self.states = np.zeros((self.tree.n_slots, len(own), 1 + max(1, *map(len, own))))
        self.at_held = self._room(len(self.tree.voltages))
        both = [[room, room] for room in self._room(_STEPS["relax"] + 1)]
        self.at_nodes = tuple(np.array(rooms) for rooms in both)  # at edges of steps, and between
        moving = [stretch for stretch in plan.stretches if stretch.varies]
        none = [self.tree.levels[:0]]  # of the same shape where nothing varies
        self.edges = joined(none + [stretch.nodes[0] for stretch in moving])
        self.middles = joined(none + [stretch.nodes[1] for stretch in moving])
        self.stretches = np.array(list(self._rows()), np.int64).reshape(-1, 8)

    def _rows(self) -> Iterator[tuple[int, ...]]:
        """Yield the rows of the table of stretches that `relaxNormals` reads."""
        edges = middles = 0
        for stretch in self.plan.stretches:
            if not stretch.varies:
                yield stretch.first, stretch.last, -1, 0, 0, 0, 0, 0
                continue
            run = VaryingRun(self.plan, stretch.first)
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

    def normals(
        self, thetas: np.ndarray, targets: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        plan = self.plan
        if targets is None:
            projections = plan.group_table, plan.target, plan.scale, self.residuals
            return self._normals(thetas, *projections)
        pairs = [
            self._normals(theta[None], plan.group_table, target, plan.scale, self.residuals)
            for theta, target in zip(thetas, targets, strict=True)
        ]
        status, products = zip(*pairs, strict=True) if pairs else ((), ())
        return joined(list(status), np.int64), joined(list(products)).reshape(
            len(thetas), plan.width, plan.width
        )

    def fill(self, theta: np.ndarray) -> int:
        """Fills the flat array with the currents of one candidate; returns its status."""
        nothing = self.plan.group_table[:0], self.plan.target[:0], self.plan.scale[:0]
        return int(self._normals(theta[None], *nothing, self.residuals[:0])[0][0])

    def _normals(
        self,
        thetas: np.ndarray,
        groups: np.ndarray,
        target: np.ndarray,
        scale: np.ndarray,
        residuals: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        plan, tree, n = self.plan, self.tree, len(thetas)
        flags, products = np.zeros((n, 2), np.int64), np.zeros((n, plan.width, plan.width))
        relaxation_kernels.relaxNormals(
            *self.functions,
            thetas,
            tree.voltages,
            tree.levels,
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
            self.gates,
            self.conductances,
            self.gain,
            *self.at_held,
            *self.at_nodes,
            self.states,
            self.flat,
            plan.matrices,
            groups,
            target,
            scale,
            self.predicted,
            residuals,
            flags,
            products,
        )
        return np.where(flags[:, 0], NOT_FINITE, np.where(flags[:, 1], NEGATIVE_RATE, OK)), products


class SchemeWalk(Walk):
    """The walk of models that are one scheme of three states or more."""

    def __init__(self, source: TangentSource, plan: Plan) -> None:
        super().__init__(source, plan)
        (chain,) = self.model.chains
        self.transitions = np.array(source.transitions(chain), np.int64)
        order = _narrow(self.transitions, len(chain.states))
        self.transitions[:, :2] = np.argsort(order)[self.transitions[:, :2]]
        self.reach = int(np.abs(self.transitions[:, 0] - self.transitions[:, 1]).max())
        n, width = len(chain.states), source.width
        self.conductances = np.array(chain.conductances)[order]
        tree, n_tables = self.tree, len(self.tree.table_dt)
        n_levels = int(plan.levels.max(initial=1))
        self.states = np.zeros((tree.n_slots, n))
        self.dstates = np.zeros((tree.n_slots, n, width))
        self.powers = np.empty((n_tables, n_levels, n, n))
        # derivatives by other rates are of no use
        n_slopes = 1 + max((u for u, _ in source.partials), default=-1)
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

    def fill(self, theta: np.ndarray) -> int:
        """Fill the flat array with currents and derivatives; return a status."""
        flat = self.flat
        self.flags[:], self.tail = 0, 0.0
        self.create_gains(theta, self.gain)
        self._start(theta)
        for stretch in self.plan.stretches:
            if stretch.varies:
                self._varying(theta, stretch, flat)
            else:
                self._held(stretch, flat)
        if self.flags[0] or not (np.abs(self.gain) < GREATEST_GAIN).all():
            return NOT_FINITE
        if self.flags[1]:
            return NEGATIVE_RATE
        return OK if self.tail <= collocation.TAIL else UNRESOLVED

    def _rates(self, theta: np.ndarray, v: np.ndarray, room: tuple[np.ndarray, np.ndarray]) -> None:
        self.create_rates(v, theta, *room)
        boundRates(*room, self.partials, self.least, len(v), self.flags)

    def _start(self, theta: np.ndarray) -> None:
        tree = self.tree
        self._rates(theta, tree.levels, self.at_held)
        scheme_kernels.byVoltage(*self.at_held, self.partials, len(tree.voltages), *self.by_held)
        scheme_kernels.schemeTables(
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

    def _held(self, stretch: Stretch, flat: np.ndarray) -> None:
        scheme_kernels.schemeHeld(
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

    def _varying(self, theta: np.ndarray, stretch: Stretch, flat: np.ndarray) -> None:
        if stretch.ramp is not None:
            self._ramp(theta, stretch.first, stretch.ramp, flat)
        else:
            self._stepped(theta, stretch, flat)

    def _stepped(self, theta: np.ndarray, stretch: Stretch, flat: np.ndarray) -> None:
        run = VaryingRun(self.plan, stretch.first)
        x, dx = self.states[run.target], self.dstates[run.target]
        x[:], dx[:] = self.states[run.source], self.dstates[run.source]
        points, quarters = stretch.nodes
        depth = np.empty(_STEPS["scheme"])
        for begin, end in run.blocks(_STEPS["scheme"]):
            n = end - begin
            self._at_nodes(theta, points[2 * begin : 2 * end], 0)
            scheme_kernels.stiffness(run.h, self.by_nodes[0][: 2 * n], self.transitions, depth[:n])
            stiff = np.flatnonzero(depth[:n] > STIFF)
            places = np.full(n, -1)
            if len(stiff):
                places[stiff] = 2 * n + 8 * np.arange(len(stiff))
                each = quarters.reshape(-1, 8, *quarters.shape[1:])[begin:end][stiff]
                self._at_nodes(theta, each.reshape(-1, *quarters.shape[1:]), 2 * n)
            scheme_kernels.schemeVarying(
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

    def _ramp(self, theta: np.ndarray, r: int, ramp: PiecewiseRamp, flat: np.ndarray) -> None:
        source, target = self.tree.runs[r, [SOURCE, TARGET]]
        x, dx = self.states[target], self.dstates[target]
        x[:], dx[:] = self.states[source], self.dstates[source]
        v = ramp.levels[:, 1:].reshape(-1, *ramp.levels.shape[2:])
        self._rates(theta, v, self.at_points)
        scheme_kernels.byVoltage(*self.at_points, self.partials, len(v), *self.by_points)
        tail = ramp_kernels.schemeRamp(
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
        """Compute rates and slopes at these voltages, into the rows from `row` on."""
        self._rates(theta, v, self.at_nodes)
        rate, slope = self.by_nodes
        scheme_kernels.byVoltage(*self.at_nodes, self.partials, len(v), rate[row:], slope[row:])


def walk_of(source: TangentSource, plan: Plan) -> Walk:
    """Make the walk of a model with one ohmic term: of gates, or of one scheme."""
    return (GateWalk if source.model.relaxes else SchemeWalk)(source, plan)


def _opening_and_closing(chain: Chain, source: TangentSource) -> list[tuple[int, int]]:
    """Return (rate, multiplicity) of opening and closing of two states; (-1, 1) of one state."""
    pair = [(-1, 1), (-1, 1)]
    for t in chain.transitions:
        pair[chain.states.index(t.source)] = (source.rates.index(t.rate), t.multiplicity)
    return pair


def _narrow(transitions: np.ndarray, n: int) -> np.ndarray:
    """Return an order of the states in which those with a transition stand near each other."""
    joined = np.zeros((n, n), bool)
    joined[transitions[:, 0], transitions[:, 1]] = True
    return narrow_order(joined | joined.T)
