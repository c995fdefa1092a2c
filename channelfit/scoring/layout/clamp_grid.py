"""The steps in which a clamp is integrated, the same for all candidates.

A jump of the command is first leapt over: potentials that follow it at once, such as that of the
membrane where there is no resistance, do so before rates are evaluated. From there the steps grow
with the time since the jump, h = t/q. Such a mesh resolves a relaxation of any time constant alike,
be it the lag of the amplifier, the charging of the membrane or the gating of the channel, because
where a relaxation of time constant tau happens, near t = tau, the steps are tau/q. So the mesh need
not know the candidate, and a candidate's score cannot depend on which others stand beside it. Kinks
of the command restart the mesh as finely as their size asks; a moving command bounds the steps
besides.
Steps do not end at samples: these are read off a polynomial through the ends of a step.

A mesh cannot foresee a current that escapes from the clamp long after the jump, and the first of
`LEVELS` begins at 0.1 us, later than some amplifiers settle. Every candidate therefore carries an
estimate of its error, and is taken again on the next mesh, from the second on with steps from 1 ps,
where that is too large.

Since all candidates have the same steps, so have the factors of a method that rests on several past
states: they are columns of the mesh. The first steps behind a jump or a kink are of one state each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant, Samples, Segment, Sines
from channelfit.scoring.layout.clamp_scheme import GAMMA, NODES, ORDER, multistep


class Fineness(NamedTuple):
    """How fine a mesh is.

    Attributes:
        per_age: steps per time since the jump.
        first, shortest: ms, the first step after a jump, and that up to which steps grow by
            _GROWTH times the time since the jump. An event that is faster than the second leaves
            an error through its effect on occupancies alone, which is smaller the shorter it lasts.
        tolerance: the largest error of an occupancy in one step (of 100 mV, of the membrane
            potential) with which a candidate is not taken again on the next mesh.
        rests: whether steady steps rest on several past states. That is faster, but not stable
            where a large current drives the membrane's potential away from the command.
    """

    per_age: int
    first: float
    shortest: float
    tolerance: float
    rests: bool = False

    @property
    def finer(self) -> float:
        """How many times more steps a moving command needs than on the meshes of few steps."""
        return max(1.0, self.per_age / _PER_AGE)


_PER_AGE, _FIRST_STEP, _SHORTEST = 12, 1e-9, 3e-6
#: Coarse to fine. The first resolves no more than most amplifiers and channels do, the second those
#: that oscillate or lag little, too, those behind it any time constant alike; currents within the
#: tolerances are right to 1e-4 of their peak, where this is not far below what is charged and
#: cancelled.
LEVELS = (
    Fineness(_PER_AGE, 1e-4, 2e-3, 5e-5, rests=True),
    Fineness(20, 1e-9, 5e-4, 5e-5, rests=True),
    *(Fineness(_PER_AGE * n, _FIRST_STEP / n, _SHORTEST / n, 1e-4) for n in (2, 4, 8)),
)
_GROWTH = 9.0
#: ms by which a sample may lie behind the end of a step and still be read in it.
AT_ONCE = 1e-7
#: By how much steps may grow from one to the next where they rest on several past states.
_STEADY = 1.5
#: How many times its own error a step of the multistep method counts: errors of one sign add up.
_ADDING_UP = 5.0
#: ms: the length of a leap, in which potentials of shorter time constants follow a jump.
_AT_ONCE = 1e-10
#: mV that the command may move in one step, and radians of its fastest sine, where none is finer.
_MOST_MV, _MOST_RADIANS = 2.0, 0.25
#: Steps of the voltage, mV, and of its slope, mV/ms, up to this count as none.
_NO_JUMP, _NO_KINK = 1e-9, 1e-9
#: Columns of `ClampGrid.steps`: ms from the start of the sweep, ms, the command at the NODES of the
#: step, how far it would rise in the step at the slope of its beginning, mV, the length of the step
#: before relative to it, r, and 1/(r (1 + r))^2; both are 0 where the current is not smooth so far.
#: Then the factor of the masses in its matrix, 1/ms, and of MULTISTEP the part of the correction
#: that its error is, and the factors of past states in the prediction and in what they add to a
#: derivative; the first of its NODES is then its end, and it has no RISE.
BEGIN, LENGTH, COMMAND, RISE = 0, 1, 2, 2 + len(NODES)
PAST, PER_PAST, PER_STEP, SHARE = RISE + 1, RISE + 2, RISE + 3, RISE + 4
AHEAD, PUSH, WIDTH = SHARE + 1, SHARE + 1 + ORDER, SHARE + 1 + 2 * ORDER
#: Columns of `ClampGrid.sweeps`: its holding voltage, -1 to go on from the sweep before; its first
#: step and how many; its first sample and how many.
REST, FIRST_STEP, N_STEPS, FIRST_SAMPLE, N_SAMPLES = range(5)
#: Values of `ClampGrid.kinds`: a step from one state, that behind a jump of the command, the leap
#: over the jump, and a step from several past states.
ONE_STEP, BEHIND, LEAP, MULTISTEP = range(4)


@dataclass(frozen=True)
class ClampGrid:
    """All sweeps as flat arrays that kernels read.

    Attributes:
        holding: (n_rests,) mV, the distinct voltages at which sweeps rest.
        sweeps: (n_sweeps, 5) int64, columns REST .. N_SAMPLES.
        steps: (n_steps, WIDTH), columns BEGIN .. PUSH.
        kinds: (n_steps,) int64, ONE_STEP .. MULTISTEP; a LEAP has no length.
        times, data, weight: (n_samples,) ms from the start of the sweep, pA, and weights.
        outputs: for each experiment (n_sweeps, n_times_max), the place of each sample in `times`,
            -1 where it is not among them.
    """

    holding: np.ndarray
    sweeps: np.ndarray
    steps: np.ndarray
    kinds: np.ndarray
    times: np.ndarray
    data: np.ndarray
    weight: np.ndarray
    outputs: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Piece:
    """A part of a sweep in which the command is smooth."""

    segment: Segment
    begin: float
    end: float

    def voltage(self, t: np.ndarray | float) -> np.ndarray:
        """Return mV at times, also at the end, where the next piece begins."""
        segment, wave = self.segment, self.segment.wave
        if isinstance(wave, Samples):  # a straight line: this piece lies between two samples
            ends = segment.voltage(np.array([self.begin, self.end]))
            return np.asarray(
                ends[0]
                + (ends[1] - ends[0]) * (np.asarray(t) - self.begin) / (self.end - self.begin)
            )
        return wave.voltage(np.asarray(t, float), segment.start_ms, segment.end_ms)

    def slope(self, t: float) -> float:
        """Return mV/ms at a time."""
        wave = self.segment.wave
        if isinstance(wave, Constant):
            return 0.0
        if isinstance(wave, Sines):
            omegas = np.asarray(wave.omegas_per_ms)
            angles = omegas * (t - wave.origin_ms) + np.asarray(wave.phases)
            return float((np.asarray(wave.amplitudes_mV) * omegas * np.cos(angles)).sum())
        ends = self.voltage(np.array([self.begin, self.end]))
        return float(ends[1] - ends[0]) / (self.end - self.begin)

    @property
    def fastest(self) -> float:
        """Radians in a ms of its fastest sine; 0 where there is none."""
        wave = self.segment.wave
        return max(map(abs, wave.omegas_per_ms), default=0.0) if isinstance(wave, Sines) else 0.0


def grid(
    protocols: Sequence[Protocol],
    currents: Sequence[np.ndarray | None],
    weights: Sequence[np.ndarray | None],
    level: int,
) -> ClampGrid:
    """Return the steps and samples of some experiments.

    Arguments:
        currents, weights: (n_sweeps, n_times_max) each, and then only samples with a weight above 0
            are kept; or None for every sample.
        level: index into LEVELS.
    """
    holding: list[float] = []
    sweeps: list[tuple[int, ...]] = []
    steps: list[np.ndarray] = []
    kinds: list[np.ndarray] = []
    samples: list[np.ndarray] = []
    outputs = []
    n_samples = n_steps = 0
    for protocol, current, weight in zip(protocols, currents, weights, strict=True):
        place = np.full((protocol.n_sweeps, protocol.n_times_max), -1, np.int64)
        if protocol.holding_mV not in holding:
            holding.append(protocol.holding_mV)
        rest = holding.index(protocol.holding_mV)
        for k, (rows, their_kinds) in enumerate(_meshes(protocol, level)):
            kept, last = _needed(protocol, k, weight)
            if not len(kept) and not protocol.carry_over:
                continue
            n_needed = int(np.searchsorted(rows[:, BEGIN], last, side="right"))
            steps.append(rows[:n_needed])
            kinds.append(their_kinds[:n_needed])
            place[k, kept] = n_samples + np.arange(len(kept))
            start = -1 if protocol.carry_over and k > 0 else rest
            sweeps.append((start, n_steps, n_needed, n_samples, len(kept)))
            n_samples += len(kept)
            n_steps += n_needed
            columns = [protocol.times_ms[kept]]
            columns.append(np.zeros(len(kept)) if current is None else current[k, kept])
            columns.append(np.zeros(len(kept)) if weight is None else weight[k, kept])
            samples.append(np.array(columns))
        outputs.append(place)
    table = np.concatenate(samples, axis=1) if samples else np.empty((3, 0))
    return ClampGrid(
        np.array(holding),
        np.array(sweeps, np.int64).reshape(-1, 5),
        np.concatenate(steps) if steps else np.empty((0, WIDTH)),
        np.concatenate(kinds) if kinds else np.empty(0, np.int64),
        np.ascontiguousarray(table[0]),
        np.ascontiguousarray(table[1]),
        np.ascontiguousarray(table[2]),
        tuple(outputs),
    )


@lru_cache(maxsize=8)
def _meshes(protocol: Protocol, level: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return the rows of `ClampGrid.steps` of each whole sweep, and the values of their kinds.

    They are kept: scores and traces of several scorers take the same.
    """
    mesh, sweeps = _Mesh(protocol.holding_mV, level), []
    for k in range(protocol.n_sweeps):
        if not protocol.carry_over:
            mesh = _Mesh(protocol.holding_mV, level)
        rows, kinds = zip(*mesh.steps(_pieces(protocol, k)), strict=True)
        sweeps.append((np.array(rows), np.array(kinds, np.int64)))
    return tuple(sweeps)


def _needed(protocol: Protocol, k: int, weight: np.ndarray | None) -> tuple[np.ndarray, float]:
    """Return the kept samples (n,) of sweep k, and the time, ms, at which its last step begins.

    Arguments:
        weight: (n_sweeps, n_times_max); samples of weight 0 are not kept. None for all samples.
    """
    kept = np.arange(protocol.n_times(k))
    if weight is not None:
        kept = kept[weight[k, kept] > 0]
    if protocol.carry_over and k + 1 < protocol.n_sweeps:  # the next sweep begins with its end
        return kept, protocol.sweeps[k][-1].end_ms
    return kept, float(protocol.times_ms[kept[-1]]) if len(kept) else -np.inf


@dataclass
class _Mesh:
    """The steps of sweeps, each of which begins where the one before it ended, or at rest.

    Attributes:
        voltage: mV at the end of the steps so far; level: index into LEVELS.
        slope: mV/ms there.
        age, first, shortest: ms since the last jump, of the first step behind it, and from where
            on steps grow no faster than the age. A sweep that carries on goes on with them: what
            the last jump began may not be over.
    """

    voltage: float
    level: int
    slope: float = 0.0
    age: float = math.inf
    first: float = math.inf
    shortest: float = math.inf

    def steps(self, pieces: Sequence[_Piece]) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the rows of `ClampGrid.steps` of one sweep, and the values of `ClampGrid.kinds`.

        The next sweep goes on from here where all of them are taken.
        """
        level = LEVELS[self.level]
        for piece in pieces:
            t, kind, lengths = piece.begin, self._begin(piece), list[float]()
            while t < piece.end:
                steepest = max(abs(piece.slope(t)), 1e-300)
                h = min(
                    self._due(level),  # of the time since the jump
                    _MOST_MV / level.finer / steepest,
                    _MOST_RADIANS / level.finer / max(piece.fastest, 1e-300),
                )
                left = piece.end - t
                h = left if h > left * (1 - 1e-9) else min(h, 0.5 * left) if h > 0.6 * left else h
                at = np.minimum(t + h * np.asarray(NODES), piece.end)
                row = np.zeros(WIDTH)
                row[BEGIN], row[LENGTH], row[PER_STEP] = t, h, 1 / (h * GAMMA)
                row[COMMAND:RISE] = piece.voltage(at)
                if kind == BEHIND:
                    leap = row.copy()
                    leap[LENGTH], leap[PER_STEP] = _AT_ONCE, 1 / (_AT_ONCE * GAMMA)
                    leap[COMMAND:RISE] = row[COMMAND]
                    yield leap, LEAP
                row[RISE] = h * piece.slope(t)
                if len(lengths) >= 2:
                    past = lengths[-1] / h
                    row[PAST], row[PER_PAST] = past, 1 / (past * (1 + past)) ** 2
                recent = [*lengths[-ORDER:], h]
                steady = all(b < _STEADY * a for a, b in pairwise(recent))
                if level.rests and len(recent) > ORDER and steady:
                    row[PER_STEP:] = self._several(recent)
                    row[COMMAND], row[RISE], kind = row[RISE - 1], 0.0, MULTISTEP
                yield row, kind
                t, self.age, kind = (piece.end if h == left else t + h), self.age + h, ONE_STEP
                lengths.append(h)
            self.voltage = float(piece.voltage(piece.end))
            self.slope = piece.slope(piece.end)

    def _several(self, lengths: list[float]) -> np.ndarray:
        """Return the columns from PER_STEP on of a step behind others, of all these lengths, ms.

        Behind a jump the polynomials of the method are those of the logarithm of the time since:
        of it relaxations of any time constant are equally smooth.
        """
        ages, scale = np.cumsum(lengths[::-1]), 1.0
        age = self.age + lengths[-1] + self.shortest * LEVELS[self.level].per_age
        if math.isfinite(age):
            scale, ages = 1 / age, -np.log1p(-ages / age)
        g, ahead, slope, share = multistep(ages)
        return np.array([scale * g, _ADDING_UP * share, *ahead, *(-scale * slope)])

    def _due(self, level: Fineness) -> float:
        """Return the step, ms, that the time since the last jump or kink asks for."""
        growing = max(self.first, _GROWTH * self.age / level.finer)
        return max(min(self.shortest, growing), self.age / level.per_age)

    def _begin(self, piece: _Piece) -> int:
        """Return BEHIND where the command jumps as a piece begins;
        refine the mesh for a kink, too.
        """
        per_age, first, shortest, *_ = LEVELS[self.level]
        kink = abs(piece.slope(piece.begin) - self.slope)
        if abs(float(piece.voltage(piece.begin)) - self.voltage) > _NO_JUMP:
            self.age, self.first, self.shortest = 0.0, first, shortest
            return BEHIND
        if kink > _NO_KINK:
            least = max(_MOST_MV / kink / per_age, shortest)
            if least < max(self.shortest, self.age / per_age):
                self.age, self.first, self.shortest = 0.0, least, least
        return ONE_STEP


def _pieces(protocol: Protocol, k: int) -> list[_Piece]:
    """Return the smooth parts of a sweep, behind the rest that comes before it."""
    pieces = []
    if protocol.carry_over and k and protocol.rest_ms > 0:
        rest = Segment(-protocol.rest_ms, 0.0, Constant(protocol.resting_mV))
        pieces.append(_Piece(rest, -protocol.rest_ms, 0.0))
    for segment in protocol.sweeps[k]:
        wave = segment.wave
        if not isinstance(wave, Samples):
            pieces.append(_Piece(segment, segment.start_ms, segment.end_ms))
            continue
        knots = wave.times_ms[1:] + segment.start_ms
        turns = np.append(np.diff(np.diff(wave.v_mV) / np.diff(wave.times_ms)) != 0, True)
        begin = segment.start_ms
        for end in [*knots[turns & (knots < segment.end_ms)], segment.end_ms]:
            if end > begin:
                pieces.append(_Piece(segment, begin, float(end)))
            begin = float(end)
    return pieces
