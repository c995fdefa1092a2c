"""The likelihood of currents that channels carry one by one, by a Kalman filter.

With y the samples, e what is left of each after its mean given all samples before it, and S the
variance of that, twice the negative logarithm of the likelihood is ``sum log S + e^2/S`` and a
constant. Searches need a cost in pA^2 that is not negative, so that of a candidate is

    exp(x - 1) with x = 1/n sum (log S + e^2/S)

the variance of white noise under which n samples would be as likely: for white noise of unknown
variance, and no channel noise, it is the mean square of the residuals. Where it exceeds the mean
square of the data it goes on as a straight line in x, so that no candidate costs too much for a
number. Standard errors, which compare a cost with its second derivative, are those of the
information in the samples, ``sum de de^T/S + dS dS^T/(2 S^2)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import sympy

from channelfit.model.graphs import narrow_order
from channelfit.problem.channel_noise import leak_of, one_scheme
from channelfit.problem.experiment import Group, Problem, mean_square, n_scored
from channelfit.problem.run_tree import Level, courses
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.kalman import filterTables, kalmanFilter, quantityTables
from channelfit.scoring.kernels.scheme_kernels import byVoltage
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.kernels.tangent_tables import boundRates
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.machine.threads import side_by_side, usable_cores
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score, make_scorer
from channelfit.scoring.tangent_terms import driven

#: Directions are padded to a multiple of this, so that loops over them are those of whole vectors.
_LANES = 4


class NoiseScorer(ChannelScorer):
    """Scores candidates by the likelihood of the current of single channels, on the CPU.

    Arguments:
        problem: a model and its experiments at held voltages, with `noise`.
        dtype: ``float64``.
        path: ``stepping``: a filter looks at each sample.

    Raises InputError: another precision.
    """

    backend, paths, path = "cpu", ("stepping",), "stepping"

    def __init__(self, problem: Problem, dtype: str = "float64", path: str = "auto") -> None:
        if dtype != "float64":
            raise InputError("the likelihood of channel noise is computed in float64 only")
        assert problem.noise is not None
        self.problem, self.dtype = problem, dtype
        self.parts = [_Part(group, problem) for group in problem.groups]
        self.source_text = self.parts[0].source.text
        self.source_hash = hashlib.sha256(self.source_text.encode()).hexdigest()[:16]

    @property
    def n_parameters(self) -> int:
        """The number of parameters of the whole problem, with those of each cell."""
        return len(self.problem.parameters)

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        """Return the mean currents, which those of many channels come close to."""
        return self._means.simulate(parameters)

    @cached_property
    def _means(self) -> ChannelScorer:
        return make_scorer(replace(self.problem, noise=None), "cpu")

    def score(self, parameters: np.ndarray) -> Score:
        found = self._filtered(parameters, False)
        return Score(found.cost, found.status)

    def linearize(self, parameters: np.ndarray) -> Linearization:
        return self._filtered(parameters, True)

    def predicted(self, values: np.ndarray, given_past: bool = False) -> list[np.ndarray]:
        """Return mean and standard deviation with which samples are expected at some values.

        Arguments:
            values: (n_parameters,), base units.
            given_past: whether each sample is expected knowing those before it that count; else
                knowing none.

        Returns: for each experiment (n_sweeps, n_times_max, 2) pA; NaN after the end of a sweep,
            and everywhere for values that fail.
        """
        out: dict[int, np.ndarray] = {}
        for part in self.parts:
            own = np.ascontiguousarray(part.group.parameters(values[:, None])[:, 0])
            out |= zip(part.group.places, part.predicted(own, given_past), strict=True)
        return [out[k] for k in range(len(out))]

    def _filtered(self, parameters: np.ndarray, differentiated: bool) -> Linearization:
        parameters = self._scorable(parameters)
        n_parameters, n = parameters.shape
        out = Linearization.empty(n_parameters, n)
        groups = [part.group.parameters(parameters) for part in self.parts]

        def some(first: int, last: int) -> None:
            for c in range(first, last):
                self._fill(c, [own[:, c].copy() for own in groups], out, differentiated)

        side_by_side(some, n, 1, usable_cores())
        return out

    def _fill(
        self, c: int, thetas: list[np.ndarray], out: Linearization, differentiated: bool
    ) -> None:
        """Fill in cost, status and derivatives of one candidate."""
        total = 0.0
        for part, theta in zip(self.parts, thetas, strict=True):
            with part.walk(differentiated) as walk:
                status = walk.filter(theta)
                if status != OK:
                    out.gradient[:, c], out.hessian[:, :, c] = 0.0, 0.0
                    out.status[c] = status
                    return
                total += walk.sums[0]
                if differentiated:
                    own, rows = part.free, part.rows
                    out.gradient[rows, c] += walk.gradient[own]
                    out.hessian[rows[:, None], rows, c] += walk.hessian[np.ix_(own, own)]
        # log of the cost in units of the mean square of the data
        x = total / self._n - 1.0 - np.log(self._scale)
        cost = self._scale * (np.exp(x) if x < 0 else 1.0 + x)
        slope = self._scale * np.exp(min(x, 0.0)) / self._n
        out.cost[c] = cost
        out.gradient[:, c] *= slope
        out.hessian[:, :, c] *= slope

    @cached_property
    def _n(self) -> int:
        return n_scored(self.problem)

    @cached_property
    def _scale(self) -> float:
        return max(mean_square(self.problem), 1e-300)


@dataclass(frozen=True, eq=False)
class _Layout:
    """The samples of some experiments in the order of the filter; see `kalman`.

    Attributes:
        levels: (n_voltages,) mV, or with ligands (n_voltages, 1 + n_ligands) mV and mM.
        tables: which of them each start has (n_starts,), and each propagator (n_tables,); and the
            time of each propagator (n_tables,) ms.
        courses, moves, data: as the filter takes them.
        places: for each experiment (n_sweeps, n_times_max), where its samples are; -1 for none.
    """

    levels: np.ndarray
    tables: tuple[np.ndarray, np.ndarray, np.ndarray]
    courses: np.ndarray
    moves: np.ndarray
    data: np.ndarray
    places: tuple[np.ndarray, ...]


def _layout(problem: Problem, whole: bool) -> _Layout:
    """Lay out the samples of experiments: those of weight 0 are passed, and do not count.

    Arguments:
        whole: whether all samples have a place; else a stretch of those that do not count is one
            move, and what follows the last that counts is left out.
    """
    ligands = problem.model.ligands
    levels: dict[Level, int] = {}
    tables: dict[tuple[int, float], int] = {}
    starts: dict[int, int] = {}
    ranges: list[tuple[int, int, int]] = []
    moves: list[np.ndarray] = []
    data: list[np.ndarray] = [np.empty(0)]
    places: list[np.ndarray] = []
    n_moves = n_data = 0
    for e in problem.experiments:
        recording = e.recording if e.weight > 0 else None
        place = np.full((e.protocol.n_sweeps, e.protocol.n_times_max), -1, np.int64)
        for start, course in courses(e.protocol, None, ligands=ligands):
            holding = levels.setdefault(start, len(levels))
            begin, first = n_moves, len(moves)
            for sweep, run in course:
                at = levels.setdefault(run.level, len(levels))
                counts, y = np.zeros(run.n, bool), np.zeros(run.n)
                here = slice(run.samples.start, run.samples.stop)
                if run.samples and recording is not None:
                    counts = recording.weight[sweep, here] > 0
                    y[counts] = recording.current_pA[sweep, here][counts]
                kept = np.arange(run.n)
                if not whole:  # the first sample, those that count, and those behind them
                    kept = np.flatnonzero(counts | np.append(True, counts[:-1]))
                steps = np.diff(kept, append=run.n)
                rows = np.full((len(kept), 4), -1, np.int64)
                for n_steps in np.unique(steps):
                    key = (at, round(float(n_steps) * run.dt, 9))
                    rows[steps == n_steps, 0] = tables.setdefault(key, len(tables))
                rows[:, 1], rows[:, 3] = at, counts[kept]
                if run.samples and (whole or counts.any()):
                    rows[:, 2] = n_data + np.arange(len(kept))
                    place[sweep, here][kept] = rows[:, 2]
                    n_data += len(kept)
                    data.append(y[kept])
                moves.append(rows)
                n_moves += len(kept)
            counted = np.flatnonzero(np.concatenate(moves[first:])[:, 3])
            last = n_moves if whole else begin + 1 + int(counted.max(initial=-1))
            ranges.append((begin, last, starts.setdefault(holding, len(starts))))
        places.append(place)
    pairs = np.array(list(tables), float).reshape(-1, 2)
    return _Layout(
        np.array(list(levels))[:, slice(None) if ligands else 0],
        (np.array(list(starts), np.int64), pairs[:, 0].astype(np.int64), pairs[:, 1].copy()),
        np.array(ranges, np.int64).reshape(-1, 3),
        np.concatenate(moves),
        np.concatenate(data),
        tuple(places),
    )


class _Part:
    """The experiments of one group, and walks through their samples.

    Attributes:
        source: the generated rates and quantities; free: which directions are parameters of the
            whole problem that are searched, and rows: their places there.
    """

    def __init__(self, group: Group, whole: Problem) -> None:
        self.group = group
        model, term = one_scheme(group.problem.model)
        noise = group.problem.noise
        assert noise is not None
        self.quantities: list[sympy.Expr] = [
            *(term.drive, leak_of(model)),
            *(noise.channels, noise.instrument, noise.open),
        ]
        self.model, (self.chain,) = model, model.chains
        rates = [t.rate for t in self.chain.transitions]
        self.source = TangentSource(driven(model), [*rates, *self.quantities])
        self.n_rates = len(dict.fromkeys(rates))
        rows = [(d, group.rows[k]) for d, k in enumerate(self.source.free)]
        searched = [(d, r) for d, r in rows if r is not None and not whole.parameters[r].fixed]
        self.free, self.rows = np.array(searched, np.int64).reshape(-1, 2).T
        self._idle: dict[bool, list[_Walk]] = {True: [], False: []}

    @cached_property
    def scored(self) -> _Layout:
        """The samples that count, as the filter passes them."""
        return _layout(self.group.problem, whole=False)

    @contextmanager
    def walk(self, differentiated: bool) -> Iterator[_Walk]:
        """Lend a walk with scratch arrays that no other thread uses meanwhile."""
        idle = self._idle[differentiated]
        try:
            walk = idle.pop()
        except IndexError:
            walk = _Walk(self, self.scored, differentiated)
        try:
            yield walk
        finally:
            idle.append(walk)

    def predicted(self, theta: np.ndarray, given_past: bool) -> list[np.ndarray]:
        """Return `NoiseScorer.predicted` of these experiments."""
        layout = _layout(self.group.problem, whole=True)
        out = np.full((len(layout.data), 2), np.nan)
        if _Walk(self, layout, False).filter(theta, out, given_past) != OK:
            out[:] = np.nan
        out[:, 1] = np.sqrt(out[:, 1])
        return [np.where(at[..., None] >= 0, out[at], np.nan) for at in layout.places]


class _Walk:
    """One candidate after the other through all samples; holds the scratch arrays of one thread."""

    def __init__(self, part: _Part, layout: _Layout, differentiated: bool) -> None:
        self.layout, source = layout, part.source
        n, n_rates, n_voltages = len(part.chain.states), part.n_rates, len(layout.levels)
        n_starts, n_tables = len(layout.tables[0]), len(layout.tables[1])
        self.create_rates = generated(source.text, "createRates")
        self.partials = np.array(source.partials, np.int64).reshape(-1, 2)
        self.n_partials = int((self.partials[:, 0] < n_rates).sum())
        self.least = np.array(source.least[:n_rates])
        self.quantity_rows = np.array([source.rates.index(e) for e in part.quantities], np.int64)
        transitions = np.array(source.transitions(part.chain), np.int64)
        linked = np.zeros((n, n), bool)
        linked[transitions[:, 0], transitions[:, 1]] = True
        order = narrow_order(linked | linked.T)
        transitions[:, :2] = np.argsort(order)[transitions[:, :2]]
        self.transitions = transitions
        self.conductances = np.array(part.chain.conductances, float)[order]
        width = -(-len(source.free) // _LANES) * _LANES if differentiated else 0
        n_slopes = n_rates if width and self.n_partials else 0
        self.rate = np.empty((len(source.rates), n_voltages))
        self.slope = np.empty((len(self.partials), n_voltages))
        self.quantities = np.empty((len(self.quantity_rows), n_voltages, 1 + width))
        self.by_voltage = np.empty((n_voltages, n_rates))
        self.slopes = np.empty((n_voltages, n_rates, max(width, len(source.free))))
        sizes = (n_starts, n), (n_starts, n, width), (n_tables, n, n), (n_tables, n, n, width)
        self.states = [np.empty(size) for size in sizes]
        self.scratch = np.empty((8, n, n)), np.empty((8, n, n, n_slopes))
        self.sums, self.gradient = np.zeros(1), np.zeros(width)
        self.hessian = np.zeros((width, width))

    def filter(
        self, theta: np.ndarray, predicted: np.ndarray | None = None, given_past: bool = True
    ) -> int:
        """Filter the samples at values (n_model_parameters,); return the status.

        Arguments:
            predicted, given_past: what `kalmanFilter` fills, and as of `NoiseScorer.predicted`.
        """
        layout, flags = self.layout, np.zeros(2, np.int64)
        self.create_rates(layout.levels, theta, self.rate, self.slope)
        quantityTables(self.quantity_rows, self.rate, self.slope, self.partials, self.quantities)
        n_rates, n_partials = len(self.least), self.n_partials
        kinetic = self.rate[:n_rates], self.slope[:n_partials], self.partials[:n_partials]
        boundRates(*kinetic, self.least, len(layout.levels), flags)
        good = bool(np.isfinite(self.quantities).all()) and self.quantities[2, 0, 0] > 0
        if flags[0] or not good:
            return NOT_FINITE
        if flags[1]:
            return NEGATIVE_RATE
        byVoltage(*kinetic, len(layout.levels), self.by_voltage, self.slopes)
        by_voltage = self.by_voltage, self.slopes
        filterTables(*by_voltage, *layout.tables, self.transitions, *self.states, *self.scratch)
        moves = layout.moves if given_past else layout.moves * [1, 1, 1, 0]  # none counts
        seen = layout.courses, moves, layout.data, self.conductances
        room = np.empty((0, 2)) if predicted is None else predicted
        results = self.sums, self.gradient, self.hessian
        finite = kalmanFilter(*seen, *self.states, self.quantities, room, *results)
        return OK if finite and np.isfinite(self.sums[0]) else NOT_FINITE
