"""Linearizations of currents that are more than one conductance times a driving force.

A current is a sum of terms, each a drive D(v) times an open probability o. The open probability,
with its derivatives, comes from the same walks as a current of one conductance, with a drive of
1 pA at every voltage. The drives come from kernels of their own, at the voltages of the samples
that a plan has; then I = sum D o and dI = sum (D do + dD o).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import sympy

from channelfit.model.channel import GREATEST_GAIN, ChannelModel, Term
from channelfit.problem.run_tree import DATA, KIND, N_SAMPLES, VARYING, RunTree
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.kernels import tangent_tables as columns
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.layout import ramp_collocation as collocation
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.tangent_plan import Plan, joined
from channelfit.scoring.tangent_walks import UNRESOLVED, Walk, walk_of

#: A conductance and a reversal potential so far away that the drive is 1 pA, to the last bit, at
#: every voltage: v + 2**100 is 2**100.
_UNIT = sympy.Float(2.0**-100, 17), sympy.Float(-(2.0**100), 17)


class TermPlans:
    """The plans and sources of all terms of one problem.

    Arguments:
        model: its model.
        plan: where currents go; the terms share its places.
        oscillating, grade: as for the plan.

    Attributes:
        model, plan: the same.
        drives: the source of the drives.
        parts: index, source and plan of each term that opens and closes; the source is of the model
            with that term alone, driven by 1 pA.
        rows: (n_points,) which rows of the flat array, as long as the plan is wide, are currents.
        voltage: (n_voltages,) mV, at which these are, each voltage once.
        at: (n_points,) which of these voltages.
        pieces: (n_pieces, n_points of a piece) which of the points those of pieces of ramps are.
    """

    def __init__(
        self, model: ChannelModel, plan: Plan, oscillating: bool, grade: int | None
    ) -> None:
        self.model, self.plan = model, plan
        self.drives = TangentSource(driven(model), [term.drive for term in model.terms])
        self.parts = []
        for k, term in enumerate(model.terms):
            if not term.chains:
                continue
            alone = driven(model.alone(term))
            alone = alone if alone.relaxes else alone.expanded()
            part = Plan(plan.tree, plan.width, oscillating, alone.relaxes, grade)
            assert part.n_flat == plan.n_flat
            assert np.array_equal(part.runs, plan.runs)
            self.parts.append((k, TangentSource(alone), part))
        (rows, v), (ramp_rows, ramp_v) = _places(plan), _places_of_pieces(plan)
        self.rows = np.concatenate([rows, ramp_rows.ravel()])
        self.voltage, self.at = np.unique(np.append(v, ramp_v), return_inverse=True)
        self.pieces = len(rows) + np.arange(ramp_rows.size).reshape(ramp_rows.shape)

    def walks(self) -> list[tuple[int, Walk]]:
        """Return a walk of each part, with its own scratch arrays, behind the index of its term."""
        return [(k, walk_of(source, plan)) for k, source, plan in self.parts]


def driven(model: ChannelModel) -> ChannelModel:
    """Return the model with one term of all its chains, driven by 1 pA."""
    conductance, reversal = _UNIT
    term = Term("unit", tuple(range(len(model.chains))), conductance, reversal)
    return replace(model, terms=(term,))


def _places(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of the flat array that hold currents in samples, and the voltage of each, mV."""
    tree: RunTree = plan.tree
    rows, voltages = [], []
    for r in np.flatnonzero(tree.run_weight > 0).tolist():
        if r in plan.ramps:
            continue
        out, stride = plan.runs[r, [columns.OUT, columns.STRIDE]]
        if tree.runs[r, KIND] == VARYING:
            first, n = tree.runs[r, [DATA, N_SAMPLES]]
            v = tree.sample_mV[first : first + n]
        else:
            n = plan.runs[r, columns.N_POINTS]
            v = np.full(n, tree.voltages[plan.runs[r, columns.VOLTAGE]])
        rows.append((out + stride * np.arange(n)) // plan.width)
        voltages.append(v)
    return joined(rows, np.int64), joined(voltages)


def _places_of_pieces(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of pieces with samples, (n_pieces, n_points), and their voltages, mV."""
    n = collocation.DEGREE + 1
    rows, voltages = [np.empty((0, n), np.int64)], [np.empty((0, n))]
    for ramp in plan.ramps.values():
        sampled = ramp.places >= 0
        rows.append(ramp.places[sampled, None] // plan.width + np.arange(n))
        voltages.append(ramp.voltage[sampled])
    return np.concatenate(rows), np.concatenate(voltages)


class TermsWalk(Walk):
    """The walk of models with several terms, or with one that is not ohmic."""

    def __init__(self, plans: TermPlans) -> None:
        super().__init__(plans.drives, plans.plan)
        self.plans, self.parts = plans, plans.walks()
        self.create_drives = generated(plans.drives.text, "createRates")
        self.room = self._room(len(plans.voltage))
        self.table = self.flat.reshape(-1, self.plan.width)
        rates = plans.drives.rates
        self.drive_of_term = [rates.index(term.drive) for term in plans.model.terms]

    def fill(self, theta: np.ndarray) -> int:
        """Fill the flat array with currents and derivatives; return a status."""
        plans, (value, partial) = self.plans, self.room
        self.create_drives(plans.voltage, theta, value, partial)
        if not (np.abs(value) < GREATEST_GAIN).all() or not np.isfinite(partial).all():
            return NOT_FINITE
        self.table[:] = 0.0
        opening = dict(self.parts)
        for k, drive in enumerate(self.drive_of_term):
            if k in opening and (status := opening[k].fill(theta)) != OK:
                return status
            is_open = opening[k].flat if k in opening else np.empty(0)
            at = plans.rows, plans.at
            columns.addTerm(value[drive], partial, self.partials, drive, *at, is_open, self.table)
        if len(plans.pieces):
            tails = collocation.tails() @ self.table[plans.rows[plans.pieces], 0].T
            largest = np.abs(value[self.drive_of_term]).max(axis=1).sum()
            return OK if (np.abs(tails) <= collocation.TAIL * largest).all() else UNRESOLVED
        return OK
