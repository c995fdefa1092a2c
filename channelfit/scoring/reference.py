"""The reference backend: NumPy in float64, written to be checked by eye rather than to be fast.

It shares no code with the generated kernels. Rates come from walking the expression trees, every
sweep is walked from its first sample to its last, and nothing is merged, reordered or unrolled.
It shares the definition of the numbers: rates beyond RATE_FLOOR and RATE_CEILING are
taken for these, held voltages are exact, and a moving voltage is integrated on the documented grid
of sub-steps (one step or a power of two of them a sample, so that the voltage moves at most 1 mV).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import sympy

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR, Chain, ChannelModel, Term
from channelfit.model.evaluation import evaluate
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.problem.waves import (
    TIME_TOLERANCE,
    Command,
    Constant,
    Exchange,
    Samples,
    Segment,
    together,
)
from channelfit.reading.errors import InputError
from channelfit.scoring import reference_matrices
from channelfit.scoring.reference_matrices import held_propagator, propagator, steady_state
from channelfit.scoring.scorer import (
    NOTHING_TO_SCORE,
    ChannelScorer,
    Linearization,
    Score,
    UseOfRows,
)
from channelfit.scoring.tangent_plan import RowBlock

#: mV that the voltage may move in one step of the integrator.
MAX_STEP_MV = 1.0
#: The share of the largest concentration that a ramp of one may move in a step, and the share of
#: the time constant of an exchange that a step may last.
MAX_STEP_SHARE, EXCHANGE_SHARE = 1 / 64, 1 / 16
#: A step in which some state would be left more often than this is taken in quarters.
STIFF = 1.0
#: A voltage, mV; with ligands (1 + n_ligands,), their concentrations, mM, behind it.
Level: TypeAlias = np.ndarray | float
#: Points of a sample interval at which the slope of the command is estimated.
_PROBES = 9
#: Numbers in one batch of propagators: bounds the memory.
_BATCH = 2_000_000
#: Drives at so many voltages are kept.
_KEPT_DRIVES = 1000
#: Relaxations in one step, beyond which more of them make no difference; their cube is a number.
_DEEP = 1e90
#: Steps of `linearize` as parts of a parameter, or of the range of one that is 0: each a third of
#: the one before. The last are small, because where the integrator changes from whole steps to
#: quarters currents have a jump of 1e-5, which a difference must not reach across.
_STEPS = 0.04 * 3.0 ** -np.arange(7)


class ReferenceScorer(ChannelScorer):
    """Scores and simulates in plain NumPy.

    Arguments:
        path: not read; the reference steps always.
        refine: multiplies the number of sub-steps where the voltage moves, for convergence studies.

    Raises:
        InputError: any dtype but float64; this backend exists to be accurate.
    """

    backend, paths = "reference", ("stepping",)

    def __init__(
        self, problem: Problem, dtype: str = "float64", refine: int = 1, path: str = "stepping"
    ) -> None:
        if dtype != "float64":
            raise InputError(
                f"the reference backend computes in float64 only, not {dtype}; "
                "leave --dtype out, or use --backend cpu"
            )
        if refine < 1:
            raise ValueError(f"refine must be 1 or more, not {refine}")
        self.problem, self.dtype, self.refine = problem, dtype, refine
        files = (__file__, reference_matrices.__file__)
        text = b"".join(Path(file).read_bytes() for file in files)
        self.source_hash = hashlib.sha256(text).hexdigest()[:16]

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        self.problem.check_memory(np.shape(parameters)[-1])
        return self._simulate(parameters, self.problem.experiments)[0]

    def score(self, parameters: np.ndarray) -> Score:
        experiments = self.problem.fitted
        self.problem.check_memory(parameters.shape[1])
        currents, status = self._simulate(parameters, experiments)
        cost, total = np.zeros(len(status)), 0.0
        for experiment, current in zip(experiments, currents, strict=True):
            recording = experiment.recording
            assert recording is not None
            for k in range(experiment.protocol.n_sweeps):
                for i in range(experiment.protocol.n_times(k)):
                    weight = experiment.weight * recording.weight[k, i]
                    if weight > 0:
                        with np.errstate(all="ignore"):
                            cost += weight * (current[k, i] - recording.current_pA[k, i]) ** 2
                        total += weight
        if total <= 0:
            raise InputError(NOTHING_TO_SCORE)
        cost /= total
        status[(status == OK) & ~np.isfinite(cost)] = NOT_FINITE
        cost[status != OK] = np.inf
        return Score(cost, status)

    def linearize(self, parameters: np.ndarray) -> Linearization:
        """Return cost, gradient and Hessian by differences of currents; slow, to ten digits.

        Central differences, extrapolated to step zero; each sample takes the entry of the scheme
        that agrees best with its neighbors (Ridders 1982).
        """
        score = self.score(parameters)
        parameters = np.asarray(parameters, dtype=float)
        n_parameters, n = parameters.shape
        gradient, hessian = np.zeros((n_parameters, n)), np.zeros((n_parameters,) * 2 + (n,))
        free = [k for k, p in enumerate(self.problem.model.parameters) if not p.fixed]
        columns = np.array(free, dtype=int)
        for c in np.flatnonzero(score.status == OK):
            residuals, jacobian = self._residuals(parameters[:, c], free)
            hessian[columns[:, None], columns, c] = 2.0 * jacobian.T @ jacobian
            gradient[columns, c] = 2.0 * jacobian.T @ residuals
        return Linearization(score.cost, score.status, gradient, hessian)

    def window_currents(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        currents, status = self._simulate(parameters, self.problem.experiments)
        out = np.empty((len(self.problem.simulated.sample_mV), len(status)))
        for places, current in zip(self.problem.simulated.outputs, currents, strict=True):
            out[places[places >= 0]] = current[places >= 0]
        return out, status

    def window_slopes(self, parameters: np.ndarray, use: UseOfRows) -> tuple[Any, Any, Any]:
        """By differences of currents, as `linearize`."""
        parameters = self._checked(parameters)
        _, status = self._simulate(parameters, self.problem.experiments)
        free = [k for k, p in enumerate(self.problem.model.parameters) if not p.fixed]
        outputs = [places[places >= 0] for places in self.problem.scored.outputs]
        samples, rows = np.unique(np.concatenate(outputs), return_index=True)
        block = RowBlock(rows[None], samples[None], np.ones(1), None)
        found = []
        for c, theta in enumerate(parameters.T):
            # the data are zeros
            residuals, jacobian = self._residuals(theta, free)
            root = np.sqrt(len(residuals))
            whole = root * np.hstack([residuals[:, None], jacobian])
            found.append(whole if status[c] == OK else np.full_like(whole, np.nan))
        return *use([block], np.array(found)), status

    def occupancies(self, values: np.ndarray) -> list[np.ndarray]:
        """Return occupancies at values (n_parameters,): (n_sweeps, n_times_max, n_states).

        The states of all chains follow each other. NaN after a shorter sweep's end, and everywhere
        for values that fail.
        """
        channel = Population(self.problem.model, np.asarray(values, dtype=float)[:, None])
        found = [
            Simulation(channel, e.protocol, self.refine).occupancies()
            for e in self.problem.experiments
        ]
        return found if channel.status()[0] == OK else [np.full_like(x, np.nan) for x in found]

    def _residuals(self, theta: np.ndarray, free: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return residuals (n_samples,), of squares that add to the cost, and their Jacobian."""
        around = [theta[:, None]]
        steps = []
        for k in free:
            p = self.problem.model.parameters[k]
            steps.append(_STEPS * (abs(theta[k]) or p.upper - p.lower or 1.0))
            for sign in (1.0, -1.0):
                moved = np.tile(theta[:, None], len(_STEPS))
                moved[k] += sign * steps[-1]
                around.append(moved)
        predicted, target, weight = self._samples(np.concatenate(around, axis=1))
        root = np.sqrt(weight / weight.sum())
        jacobian = np.empty((len(target), len(free)))
        for j, h in enumerate(steps):
            first = 1 + 2 * j * len(h)
            ahead = predicted[:, first : first + len(h)]
            behind = predicted[:, first + len(h) : first + 2 * len(h)]
            jacobian[:, j] = root * _extrapolated((ahead - behind) / (2 * h))
        return root * (predicted[:, 0] - target), jacobian

    def _samples(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return currents (n_samples, n_candidates), data and weights where these are above 0."""
        experiments = self.problem.fitted
        currents, _ = self._simulate(parameters, experiments)
        predicted, target, weights = [], [], []
        for e, current in zip(experiments, currents, strict=True):
            assert e.recording is not None
            weight = e.weight * e.recording.weight
            some = weight > 0
            predicted.append(current[some])
            target.append(e.recording.current_pA[some])
            weights.append(weight[some])
        return np.concatenate(predicted), np.concatenate(target), np.concatenate(weights)

    def _simulate(
        self, parameters: np.ndarray, experiments: list[Experiment] | tuple[Experiment, ...]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        parameters = self._checked(parameters)
        channel = Population(self.problem.model, parameters)
        currents = [Simulation(channel, e.protocol, self.refine).currents() for e in experiments]
        status = channel.status()
        for current in currents:
            current[..., status != OK] = np.nan
        return currents, status


class Population:
    """All candidates of one call: their rates, gains, and what went wrong.

    Occupancies are a list, one array (n_candidates, n_states) a chain.
    """

    def __init__(self, model: ChannelModel, parameters: np.ndarray) -> None:
        self.model, self.n = model, parameters.shape[1]
        self.values = dict(zip(model.parameter_names, parameters, strict=True))
        self.not_finite = np.zeros(self.n, dtype=bool)
        self.negative = np.zeros(self.n, dtype=bool)
        ohmic = [term for term in model.terms if term.ohmic]
        self.constants = {
            term.name: [self._constant(e) for e in (term.conductance, term.reversal)]
            for term in ohmic
        }
        self.propagators: dict[tuple[bytes, float], list[np.ndarray]] = {}
        self.drives: dict[tuple[str, float], np.ndarray] = {}

    def status(self) -> np.ndarray:
        """Return the status of everything evaluated so far, (n_candidates,) int8."""
        status = np.where(self.negative, NEGATIVE_RATE, OK)
        return np.where(self.not_finite, NOT_FINITE, status).astype(np.int8)

    def _constant(self, expression: sympy.Expr | None, v_mV: float = 0.0) -> np.ndarray:
        """Evaluate an expression of parameters, or of these and one voltage, (n_candidates,)."""
        assert expression is not None
        scope = self._scope({"v": np.array(v_mV)}, {s.name for s in expression.free_symbols})
        value = np.broadcast_to(evaluate(expression, scope), (self.n,)).copy()
        good = np.abs(value) < 1e300
        self.not_finite |= ~good
        value[~good] = 0.0
        return value

    def _scope(self, commanded: dict[str, np.ndarray], names: set[str]) -> dict[str, np.ndarray]:
        """Return the command, parameters and the definitions that `names` need, in order."""
        for name, expression in reversed(self.model.definitions):
            if name in names:
                names |= {s.name for s in expression.free_symbols}
        scope: dict[str, np.ndarray] = {**self.values, **commanded}
        for name, expression in self.model.definitions:
            if name in names:
                scope[name] = evaluate(expression, scope)
        return scope

    def rates(self, chain: Chain, levels: np.ndarray) -> np.ndarray:
        """Return rates, 1/ms: (n_levels, n_candidates, n_states, n_states).

        Element [j, i] is the rate i -> j; the diagonal is zero.

        Arguments:
            levels: (n_levels,) mV, or with ligands (n_levels, 1 + n_ligands) mV and mM.
        """
        n_levels, commanded = len(levels), levels.reshape(len(levels), -1).T[..., None]
        index = {s: i for i, s in enumerate(chain.states)}
        out = np.zeros((n_levels, self.n, len(index), len(index)))
        names = {s.name for t in chain.transitions for s in t.rate.free_symbols}
        scope = self._scope(dict(zip(self.model.commanded, commanded, strict=True)), names)
        for t in chain.transitions:
            rate = np.broadcast_to(evaluate(t.rate, scope), out.shape[:2])
            self.not_finite |= np.isnan(rate).any(axis=0)
            least = -RATE_CEILING if t.signed else RATE_FLOOR
            self.negative |= ((rate < 0) & (not t.signed)).any(axis=0)
            rate = np.clip(np.where(np.isnan(rate), RATE_FLOOR, rate), least, RATE_CEILING)
            out[..., index[t.target], index[t.source]] = t.multiplicity * rate
        if chain.linear:  # (1 - inf)/tau may be negative, 1/tau may not
            backward = (out[..., 1, 0] + out[..., 0, 1] <= 0).any(axis=0)
            self.negative |= backward
            out[:, backward] = 1.0
        return out

    def steady_state(self, level: Level) -> list[np.ndarray]:
        """Return the occupancies at rest at a voltage, and the concentrations there."""
        return [steady_state(self.rates(c, np.asarray(level)[None])[0]) for c in self.model.chains]

    def arrived(self, state: list[np.ndarray], level: Level) -> list[np.ndarray]:
        """Return the state as a voltage begins: gates of no time constant are at rest at once."""
        return [
            steady_state(self.rates(c, np.asarray(level)[None])[0]) if c.instant else x
            for c, x in zip(self.model.chains, state, strict=True)
        ]

    def hold(self, state: list[np.ndarray], level: Level, dt_ms: float) -> list[np.ndarray]:
        """Return the occupancies after dt_ms at a held voltage; exact."""
        key = (np.asarray(level).tobytes(), round(dt_ms, 9))
        if key not in self.propagators:
            self.propagators[key] = [
                held_propagator(self.rates(c, np.asarray(level)[None])[0], key[1])
                for c in self.model.chains
            ]
        return [self.applied(p, x) for p, x in zip(self.propagators[key], state, strict=True)]

    def applied(self, p: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Take one step of every candidate: (n, s, s) times (n, s), without leak of probability."""
        x = np.einsum("cij,cj->ci", p, x)
        return np.asarray(x / x.sum(axis=1, keepdims=True))

    def current(self, state: list[np.ndarray], v_mV: float) -> np.ndarray:
        """Return the current (n_candidates,) pA of occupancies, one array a chain, at a voltage."""
        total = np.zeros(self.n)
        for term in self.model.terms:
            is_open = np.ones(self.n)
            for k in term.chains:
                chain = self.model.chains[k]
                is_open *= (state[k] @ np.array(chain.conductances)) ** chain.power
            with np.errstate(all="ignore"):
                if term.ohmic:
                    conductance, reversal = self.constants[term.name]
                    total += conductance * is_open * (v_mV - reversal)
                else:
                    total += self._drive(term, v_mV) * is_open
        return total

    def _drive(self, term: Term, v_mV: float) -> np.ndarray:
        """Return the current (n_candidates,) pA that a term would carry if it were fully open."""
        if (term.name, v_mV) not in self.drives:
            if len(self.drives) > _KEPT_DRIVES:
                self.drives.clear()
            self.drives[term.name, v_mV] = self._constant(term.drive, v_mV)
        return self.drives[term.name, v_mV]


@dataclass(frozen=True)
class _Move:
    """From begin to end within one command; `sample` is read at the beginning."""

    begin_ms: float
    duration_ms: float
    sample: int | None = None


class Simulation:
    """One protocol, simulated sweep after sweep, sample after sample."""

    def __init__(self, channel: Population, protocol: Protocol, refine: int) -> None:
        self.channel, self.protocol, self.refine = channel, protocol, refine
        self._observed: Callable[[list[np.ndarray], float], np.ndarray] = channel.current

    def currents(self) -> np.ndarray:
        """Return currents (n_sweeps, n_times_max, n_candidates) pA, NaN after a sweep's end."""
        return self._swept(self.channel.n)

    def occupancies(self) -> np.ndarray:
        """Return occupancies (n_sweeps, n_times_max, n_states) of the first candidate."""
        self._observed = lambda state, _: np.concatenate([x[0] for x in state])
        return self._swept(sum(len(chain.states) for chain in self.channel.model.chains))

    def _swept(self, width: int) -> np.ndarray:
        """Return the observed quantity at each sample, (n_sweeps, n_times_max, width)."""
        p, channel = self.protocol, self.channel
        out = np.full((p.n_sweeps, p.n_times_max, width), np.nan)
        ligands = p.commanded(channel.model.ligands)
        courses = [one.course(p.carry_over, p.rest_ms) for one in ligands]
        finest = (MAX_STEP_MV, *(MAX_STEP_SHARE * one.largest_mM or 1.0 for one in ligands))
        at_rest: dict[bytes, list[np.ndarray]] = {}
        for k in range(p.n_sweeps):
            solutions = [course[k] for course in courses]
            if k == 0 or not p.carry_over:
                held = np.array([p.holding_mV, *(one.holding_mM[k] for one in ligands)])
                if held.tobytes() not in at_rest:
                    at_rest[held.tobytes()] = channel.steady_state(held if ligands else held[0])
                state = at_rest[held.tobytes()]
            elif p.rest_ms > 0:
                resting = [Segment(0.0, p.rest_ms, Constant(p.resting_mV))]
                for piece in together([resting, *(rest for rest, _ in solutions)], finest):
                    moves = [_Move(piece.start_ms, piece.end_ms - piece.start_ms)]
                    state = self._advanced(state, piece, moves, out[k])
            smooth = [piece for segment in p.sweeps[k] for piece in _smooth(segment)]
            for piece in together([smooth, *(sweep for _, sweep in solutions)], finest):
                state = self._advanced(state, piece, _moves_in(p, k, piece), out[k])
        return out

    def _advanced(
        self, state: list[np.ndarray], piece: Command, moves: list[_Move], out: np.ndarray
    ) -> list[np.ndarray]:
        return (self._held if piece.is_constant else self._moving)(state, piece, moves, out)

    def _held(
        self, state: list[np.ndarray], piece: Command, moves: list[_Move], out: np.ndarray
    ) -> list[np.ndarray]:
        level, v = piece.levels(np.array([piece.start_ms]))[0], _voltage(piece, piece.start_ms)
        state = self.channel.arrived(state, level)
        for move in moves:
            if move.sample is not None:
                out[move.sample] = self._observed(state, v)
            state = self.channel.hold(state, level, move.duration_ms)
        return state

    def _moving(
        self, state: list[np.ndarray], piece: Command, moves: list[_Move], out: np.ndarray
    ) -> list[np.ndarray]:
        """Follow a varying command: chains of two states relax, others take Magnus steps."""
        model = self.channel.model
        grids = [_step_ends(piece, move, self.refine) for move in moves]
        widest = max(len(c.states) for c in model.chains)
        batch = max(1, _BATCH // max(1, self.channel.n * widest**2))
        begins = np.concatenate([grid[:-1] for grid in grids])
        steps = np.concatenate([np.diff(grid) for grid in grids])
        first = np.cumsum([0, *(len(grid) - 1 for grid in grids)])
        sampled = {int(first[i]): move for i, move in enumerate(moves) if move.sample is not None}
        for a in range(0, len(begins), batch):
            some = slice(a, a + batch)
            maps = [
                (self._relaxation if len(c.states) <= 2 else self._magnus)(
                    c, piece, begins[some], steps[some]
                )
                for c in model.chains
            ]
            for i in range(len(begins[some])):
                move = sampled.get(a + i)
                if move is not None:
                    state = self.channel.arrived(state, piece.levels(np.array([move.begin_ms]))[0])
                    out[move.sample] = self._observed(state, _voltage(piece, move.begin_ms))
                state = [self.channel.applied(p[i], x) for p, x in zip(maps, state, strict=True)]
        return state

    def _relaxation(
        self, chain: Chain, piece: Command, begins: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """Return maps (n_steps, n_candidates, 2, 2) of x' = speed (limit - x) over each step.

        With u(t) the integral of the speed from t to the end, the new x is exp(-u(begin)) x plus
        the integral of exp(-u) limit du. The limit is the parabola in u through begin, middle and
        end of the step; u is Simpson's.
        """
        from scipy.special import gamma, gammainc  # loads slowly; few fits end in this backend

        if len(chain.states) == 1:
            return np.ones((len(begins), self.channel.n, 1, 1))
        times = begins[:, None] + steps[:, None] * np.array([0.0, 0.5, 1.0])
        rates = self.channel.rates(chain, piece.levels(times.ravel()))
        rates = rates.reshape(*times.shape, *rates.shape[1:])
        speed = rates[..., 1, 0] + rates[..., 0, 1]
        start, middle, end = np.moveaxis(rates[..., 1, 0] / speed, 1, 0)
        s0, s1, s2 = np.moveaxis(speed, 1, 0)
        h = steps[:, None]
        depth = h / 6 * (s0 + 4 * s1 + s2)
        half = np.clip(h / 24 * (8 * s1 + 5 * s2 - s0), 0.05 * depth, 0.95 * depth)
        depth, half = np.minimum(depth, _DEEP), np.minimum(half, _DEEP / 2)
        moments = [gamma(k + 1) * gammainc(k + 1, depth) for k in range(3)]
        slope = (middle - end) / half
        bend = ((start - end) / depth - slope) / (depth - half)
        gained = end * moments[0] + slope * moments[1] + bend * (moments[2] - half * moments[1])
        kept = np.exp(-depth)
        from_closed, from_open = gained, gained + kept
        if not chain.linear:
            # The new x lies between 0 and 1 whatever the old; rounding and parabolas may not.
            from_closed, from_open = np.clip(gained, 0, 1), np.clip(gained + kept, 0, 1)
        rows = [[1 - from_closed, 1 - from_open], [from_closed, from_open]]
        return np.moveaxis(np.array(rows), (0, 1), (-2, -1))

    def _magnus(
        self, chain: Chain, piece: Command, begins: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """Return maps (n_steps, n_candidates, s, s); stiff candidates take quarters of a step."""
        maps, exits = self._exponentials(chain, piece, begins, steps)
        stiff = exits > STIFF
        if stiff.any():
            fine, _ = self._exponentials(chain, piece, begins, steps / 4)
            for k in (1, 2, 3):
                quarter, _ = self._exponentials(chain, piece, begins + k * steps / 4, steps / 4)
                fine = quarter @ fine
            maps = np.where(stiff[..., None, None], fine, maps)
        return maps

    def _exponentials(
        self, chain: Chain, piece: Command, begins: np.ndarray, steps: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take commutator-free Magnus steps of order four (Blanes and Moan 2006).

        Where a rate changes more than 14-fold within a step one combination could turn negative;
        it is then cut at the floor and stays a rate.

        Returns:
            Maps (n_steps, n_candidates, s, s), and (n_steps, n_candidates) the largest exit rate
            times the step.
        """
        root = math.sqrt(3.0)
        nodes = [begins + steps * (0.5 + sign * root / 6) for sign in (-1, 1)]
        one, two = (self.channel.rates(chain, piece.levels(t)) for t in nodes)
        linked, h = one > 0, steps[:, None, None, None]
        more, less = (0.25 + root / 6) * h, (0.25 - root / 6) * h
        early = np.where(linked, np.maximum(more * one + less * two, RATE_FLOOR), 0.0)
        late = np.where(linked, np.maximum(less * one + more * two, RATE_FLOOR), 0.0)
        exits = early.sum(axis=2).max(axis=2) + late.sum(axis=2).max(axis=2)
        return propagator(late) @ propagator(early), exits


def _voltage(piece: Command, t_ms: float) -> float:
    return float(piece.parts[0].voltage(np.array([t_ms]))[0])


def _moves_in(protocol: Protocol, sweep: int, piece: Command) -> list[_Move]:
    """Return the moves between samples in a part of a sweep with one smooth command.

    A time within TIME_TOLERANCE sampling intervals of a sample is the time of that sample.
    """
    h, n = protocol.sampling_ms, protocol.n_times(sweep)
    first, last = _first_sample(piece.start_ms, h), _first_sample(piece.end_ms, h)
    return _moves(piece, range(first, min(n, last)), h)


def _first_sample(t_ms: float, h: float) -> int:
    """Return the first sample at or after a time."""
    return math.ceil(t_ms / h - TIME_TOLERANCE)


def _moves(piece: Command, samples: range, h: float) -> list[_Move]:
    """Return the moves from a piece's start over all its samples to its end."""
    tiny = TIME_TOLERANCE * h
    if not samples:
        return [_Move(piece.start_ms, piece.end_ms - piece.start_ms)]
    moves = []
    if samples[0] * h - piece.start_ms > tiny:
        moves.append(_Move(piece.start_ms, samples[0] * h - piece.start_ms))
    for k in samples:
        left = piece.end_ms - k * h
        whole = k != samples[-1] or abs(left - h) <= tiny
        moves.append(_Move(k * h, h if whole else left, k))
    return moves


def _smooth(segment: Segment) -> Iterator[Segment]:
    """Cut a recorded command where it begins or ceases to stand still; others stay whole."""
    wave = segment.wave
    if not isinstance(wave, Samples):
        yield segment
        return
    begin, was_still = segment.start_ms, bool(wave.v_mV[1] == wave.v_mV[0])
    knots = [
        (float(t) + segment.start_ms, bool(still))
        for t, still in zip(wave.times_ms[1:], [*(np.diff(wave.v_mV)[1:] == 0), True], strict=True)
    ]
    for t, still in [*knots, (math.inf, not knots[-1][1])]:
        end = min(t, segment.end_ms)
        if still != was_still and end > begin:
            v = segment.voltage(np.array([begin]))[0]
            shifted = Samples(wave.times_ms - (begin - segment.start_ms), wave.v_mV)
            yield Segment(begin, end, Constant(float(v)) if was_still else shifted)
            begin = end
        was_still = still


def _step_ends(piece: Command, move: _Move, refine: int) -> np.ndarray:
    """Return times (n_steps + 1,) of a move: a power of two of equal steps, and its end."""
    probes = move.begin_ms + move.duration_ms * np.linspace(0, 1, _PROBES)
    probes, least = np.clip(probes, piece.start_ms, piece.end_ms), 1.0
    for part, finest in zip(piece.parts, piece.finest, strict=True):
        wave = part.wave
        if isinstance(wave, Exchange):
            least = max(least, move.duration_ms / (EXCHANGE_SHARE * wave.tau_ms))
        if not isinstance(wave, Exchange) or wave.slope_mM_per_ms:
            moved = np.abs(np.diff(part.voltage(probes))).max() * (_PROBES - 1)
            # Rounding must not double the steps of a ramp of exactly 1 mV a sample.
            least = max(least, moved / finest * (1 - 1e-9))
    n = 2 ** math.ceil(math.log2(least)) * refine
    return np.asarray(move.begin_ms + move.duration_ms * np.arange(n + 1) / n)


def _extrapolated(differences: np.ndarray) -> np.ndarray:
    """Extrapolate central differences (n, n_steps), each step a third of the last, to (n,)."""
    best = differences[:, 0]
    least = np.full(len(best), np.inf)
    column = differences
    for order in range(1, differences.shape[1]):
        finer, coarser = column[:, 1:], column[:, :-1]
        new = finer + (finer - coarser) / (9.0**order - 1)
        error = np.maximum(np.abs(new - finer), np.abs(new - coarser))
        for k in range(new.shape[1]):
            better = error[:, k] < least
            best = np.where(better, new[:, k], best)
            least = np.where(better, error[:, k], least)
        column = new
    return best
