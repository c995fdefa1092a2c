"""Linearizations on the CPU from Chebyshev moments; see `kernels.moment_tangents`."""

from __future__ import annotations

from threading import Lock

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.scoring.choose_path import reason_against_moments
from channelfit.scoring.cpu_moments import CpuMomentTables
from channelfit.scoring.kernels.detailed_balance import keeps_detailed_balance, modes_are_real
from channelfit.scoring.kernels.moment_tangents import DOUBTED, UNFINISHED, WIDE, momentNormals
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.kernels.tangent_tables import GAINS, RATES, RATES_WITH_LIGANDS
from channelfit.scoring.layout.moment_tables import ladder
from channelfit.scoring.machine.machine_code import Callback, generated

#: States from which a linearization gains more than the tables take.
_LEAST_STATES = 6
#: The share of random candidates that are slow enough, at least.
_LEAST_SERVED = 0.75
#: Attributes of `CpuMomentTables` in the order in which `momentNormals` takes them.
_TABLES = ("table_of", "shapes", "groups", "tables", "target_of", "targets")


class MomentTangents:
    """Inner products of residuals and their derivatives, of one scheme at held voltages.

    Arguments:
        problem: of which `serves` is true.
        source: the rates of its model, with their derivatives.
    """

    def __init__(self, problem: Problem, source: TangentSource) -> None:
        tree, model = problem.scored, problem.model
        (chain,) = model.chains
        self._tables = tables = CpuMomentTables(problem, resolves=False, slopes=True)
        self._squares = tree.constant + tables.outside
        self._n_rates, self._n_voltages = len(source.rates), len(tree.voltages)
        partials = np.array(source.partials, np.int64).reshape(-1, 2)
        self._n_partials, self._width = len(partials), WIDE * (-(-(1 + len(source.free)) // WIDE))
        self._n_free, self._n_states = len(source.free), len(chain.states)
        moves = np.array(source.transitions(chain), np.int64)
        moves = moves[np.argsort(moves[:, 1], kind="stable")]
        column, moving = np.full(self._n_rates, -1), np.unique(partials[:, 0])
        column[moving] = self._n_states + np.arange(len(moving))
        rates = moves[:, 2].tolist()
        layer = [rates[:t].count(u) for t, u in enumerate(rates)]
        moves = np.column_stack([moves, column[moves[:, 2]], layer])
        index = {level.tobytes(): k for k, level in enumerate(tree.levels)}
        self._problem = [
            tree.voltages,
            tree.levels,
            tree.start_voltage,
            np.column_stack([partials, column[partials[:, 0]]]),
            np.array(source.least),
            moves,
            _back(moves) if keeps_detailed_balance(model, chain) else np.full(len(moves), -1),
            np.searchsorted(moves[:, 1], np.arange(self._n_states + 1)),
            np.array(chain.conductances),
            tables.visits,
            np.array([index[level.tobytes()] for level in tables.visit_v], np.int64),
            tables.visit_top,
            tables.ladder,
            tables.places,
            tables.values,
        ]
        self._free = np.array(source.free, np.int64)
        self._lock, self._made = Lock(), self._taken()
        self._functions = [
            Callback(generated(source.text, "createGains"), GAINS),
            Callback(
                generated(source.text, "createRates"),
                RATES_WITH_LIGANDS if model.ligands else RATES,
            ),
        ]

    def normals(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what `Linearizer.normals` does, of candidates (n, n_parameters), and which of
        them are in doubt: another way has to compute these.
        """
        n, width = len(thetas), 1 + self._n_free
        status, doubtful = np.zeros(n, np.int64), np.zeros(n, bool)
        normals = np.zeros((n, width, width))
        left = np.arange(n)
        while len(left):
            made = self._made
            missing = np.zeros(made[0].shape, np.int8)
            status[left], outcome, normals[left] = self._some(thetas[left], made, missing)
            doubtful[left] = outcome == DOUBTED
            left = left[outcome == UNFINISHED]
            if len(left) and not self._add(missing):
                doubtful[left] = True
                break
        normals[:, 0, 0] += self._squares
        doubtful |= (status == OK) & ~np.isfinite(normals).all(axis=(1, 2))
        return status, normals, doubtful & (status == OK)

    def _some(
        self, thetas: np.ndarray, made: list[np.ndarray], missing: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return statuses, outcomes and products of candidates; fill in the tables not there."""
        n, width, flags = len(thetas), 1 + self._n_free, np.zeros((len(thetas), 2), np.int64)
        outcome, products = np.zeros(n, np.int64), np.zeros((n, width, width))
        momentNormals(
            *self._functions,
            np.ascontiguousarray(thetas),
            *self._problem,
            *made,
            self._squares,
            self._free,
            np.empty((2, width)),
            np.empty((self._n_rates, self._n_voltages)),
            np.empty((self._n_partials, self._n_voltages)),
            np.empty((self._tables.n_slots, 1 + self._n_states, self._width)),
            missing,
            flags,
            outcome,
            products,
        )
        status = np.where(flags[:, 0], NOT_FINITE, np.where(flags[:, 1], NEGATIVE_RATE, OK))
        return status, outcome, products

    def _taken(self) -> list[np.ndarray]:
        """Return the tables made so far; those of places are copies, since `add` writes in them."""
        made = (getattr(self._tables, name) for name in _TABLES)
        return [
            a.copy() if name.endswith("_of") else a for name, a in zip(_TABLES, made, strict=True)
        ]

    def _add(self, missing: np.ndarray) -> bool:
        """Add tables; return whether there was room. Threads may miss the same ones."""
        with self._lock:
            new = (missing != 0) & (self._tables.table_of < 0)
            room = not new.any() or self._tables.add(new)
            self._made = self._taken()
        return room


def serves(problem: Problem) -> bool:
    """Return whether moments are the fastest way to the derivatives of a problem.

    Measured by `benchmarks/derivatives.py`. Where many candidates are too fast for any table, those
    of the others take longer than they spare.
    """
    if reason_against_moments(problem) is not None or problem.model.ohmic is None:
        return False
    if len(problem.model.chains[0].states) < _LEAST_STATES:
        return False
    return ladder(problem, not modes_are_real(problem.model)).served >= _LEAST_SERVED


def _back(moves: np.ndarray) -> np.ndarray:
    """Return the transition the other way, of each."""
    place = {(i, j): t for t, (i, j) in enumerate(moves[:, :2].tolist())}
    return np.array([place[j, i] for i, j in moves[:, :2].tolist()], np.int64)
