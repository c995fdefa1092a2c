"""A command voltage that was recorded, turned into a protocol: steps, ramps and sums of sines.

The samples of each sweep are cut at jumps. What lies between two jumps becomes straight lines,
where few of them describe it, or a sum of sines; what neither describes stays as its samples.
Voltages and times are rounded to the coarsest grid that the noise and the digits of the record
allow, since someone once typed them. What the protocol then says otherwise than the record is
told: the largest difference, and where it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.segments import segment_rows
from channelfit.problem.waves import Constant, Ramp, Samples, Segment, Sines, Wave
from channelfit.reading.errors import InputError
from channelfit.reading.formats import Epoch

#: Second differences up to this size, mV, can be those of neighboring values of a converter.
_LARGEST_QUANTUM = 0.5
#: mV: differences of a computed command below it are rounding, also in single precision.
_EXACT = 2e-5
#: mV to which the levels of a noisy or coarsely digitized record are rounded at least.
_SENSIBLE = 0.1
#: mV: smaller jumps are found by cutting lines instead.
_LEAST_JUMP = 1.0
#: Samples that a filter may spread an edge over, of those that are looked at one by one.
_LEAD = 4
#: So many straight lines between two jumps are tried before sines, and so many after them.
_FEW_LINES, _MOST_LINES = 4, 16
_MOST_SINES = 5
#: Each further sine leaves at most this share of the squares, or the wave is no sum of few sines.
_GAIN = 0.8
#: Fewer samples are no wave.
_SHORTEST_WAVE = 40
#: Standard deviations that the largest of all samples may stray.
_FAR = 6.0


@dataclass(frozen=True)
class FoundCommand:
    """A protocol that was found in a recorded command, and how far the record is from it.

    Attributes:
        protocol: the steps, ramps and sines; what they do not describe stays as samples.
        noise_mV: the standard deviation of the record's noise.
        residual_mV: the largest difference between protocol and record, outside of edges.
        residual_at: its sweep, counted from 0, and its time in the sweep, ms.
        edge_samples: over how many samples the slowest edge of a step is spread.
    """

    protocol: Protocol
    noise_mV: float
    residual_mV: float
    residual_at: tuple[int, float]
    edge_samples: int


def find_segments(
    command: np.ndarray,
    sampling_ms: float,
    holding_mV: float | None = None,
    name: str = "recorded command",
) -> FoundCommand:
    """The protocol that a recorded or computed command follows.

    Arguments:
        command: (n_sweeps, n_samples) mV; NaN after the end of a shorter sweep.
        sampling_ms: from one sample to the next.
        holding_mV: between the sweeps; without it, the voltage with which the first one begins.
        name: what the protocol is called.

    Raises:
        InputError: no sample, or one without a voltage before the end of its sweep.
    """
    rows = [_until_end(row, k) for k, row in enumerate(command)]
    grain = _grain(rows)
    found = [_Sweep(row, sampling_ms, grain) for row in rows]
    sweeps = _aligned([list(each.segments()) for each in found], sampling_ms, grain)
    first = sweeps[0][0]
    if holding_mV is None:
        holding_mV = float(first.voltage(np.array([first.start_ms]))[0])
        holding_mV = _rounded(holding_mV, grain.level(1))
    holding_mV = _rounded(holding_mV, _EXACT)
    protocol = Protocol(name, holding_mV, sampling_ms, tuple(map(tuple, sweeps)))
    if not _can_be_written(protocol):
        kept = [(_whole(row, sampling_ms),) for row in rows]
        protocol = replace(protocol, sweeps=tuple(kept))
    said = protocol.command()
    strayed = np.zeros(command.shape)
    for k, row in enumerate(rows):
        apart = np.abs(said[k, : len(row)] - row)
        strayed[k, : len(row)] = np.where(found[k].edges, 0.0, apart)
    sweep, sample = np.unravel_index(int(strayed.argmax()), strayed.shape)
    slowest = max((n for each in found for n in each.leads), default=0)
    at = (int(sweep), float(sample) * sampling_ms)
    return FoundCommand(protocol, grain.noise, float(strayed.max()), at, slowest)


def protocol_of_epochs(
    epochs: Sequence[Sequence[Epoch]],
    sampling_ms: float,
    holding_mV: float,
    name: str = "epochs of the file",
) -> Protocol | None:
    """The protocol that the header of a file describes; None where steps and ramps do not say it.

    Arguments:
        epochs: the pieces of each sweep.
        sampling_ms: from one sample to the next.
        holding_mV: between the sweeps.
        name: what the protocol is called.
    """
    sweeps = []
    for pieces in epochs:
        segments, start = list[Segment](), 0.0
        for piece in pieces:
            if piece.kind not in ("step", "ramp"):
                return None
            end = round(start + piece.duration_ms, 9)
            level, reached = (_rounded(v, _EXACT) for v in (piece.start_mV, piece.end_mV))
            wave = Constant(level) if level == reached else Ramp(level, reached)
            if end > start:
                segments.append(Segment(start, end, wave))
            start = end
        if not segments:
            return None
        sweeps.append(tuple(segments))
    if not sweeps:
        return None
    h = sampling_ms
    joined = [tuple(_joined(sweep)) for sweep in sweeps]
    whole = tuple(map(tuple, _aligned([list(s) for s in joined], h, _Grain(0.0, 0.0))))
    protocol = Protocol(name, _rounded(holding_mV, _EXACT), h, whole)
    return protocol if _can_be_written(protocol) else None


def _can_be_written(protocol: Protocol) -> bool:
    """Whether the sweeps have the shape that one protocol file can hold."""
    try:
        segment_rows(protocol.sweeps, protocol.holding_mV, lambda _: {})
    except InputError:
        return False
    return True


def _until_end(row: np.ndarray, sweep: int) -> np.ndarray:
    """The voltages of a sweep until its end."""
    known = np.flatnonzero(np.isfinite(row))
    if not known.size or known.size <= known[-1]:
        what = "no sample" if not known.size else "samples without a voltage before its end"
        raise InputError(f"the command of sweep {sweep + 1} has {what}, and gives no protocol")
    return np.asarray(row[: known[-1] + 1], dtype=float)


def cut_into_sweeps(protocol: Protocol, n_sweeps: int, sweep_ms: float) -> Protocol | None:
    """A command of one sweep that holds many, as lists of steps do, cut into them.

    All sweeps last equally long. Of each its first part was recorded; during the rest of it the
    command was at the holding potential, and the channel's state is carried over to the next.

    Arguments:
        protocol: the whole command, one sweep.
        n_sweeps: how many sweeps were recorded.
        sweep_ms: how long each of them was recorded.

    Returns: None where the command does not hold so many sweeps of this kind.
    """
    (whole,) = protocol.sweeps
    period = whole[-1].end_ms / n_sweeps
    slack = 1e-6 * protocol.sampling_ms
    if n_sweeps < 2 or period < sweep_ms - slack:
        return None
    sweeps = []
    for k in range(n_sweeps):
        start, end, until = k * period, k * period + sweep_ms, (k + 1) * period
        inside = [s for s in whole if s.start_ms < until - slack and s.end_ms > start + slack]
        if not all(s.is_constant for s in inside):
            return None
        late = [s.wave for s in inside if s.end_ms > end + slack]
        if any(wave != Constant(protocol.holding_mV) for wave in late):
            return None
        sweeps.append(
            [
                Segment(
                    round(max(s.start_ms - start, 0.0), 9),
                    round(min(s.end_ms - start, sweep_ms), 9),
                    s.wave,
                )
                for s in inside
                if s.start_ms < end - slack
            ]
        )
    h, rest = protocol.sampling_ms, round(period - sweep_ms, 9)
    cut = [list(_joined(sweep)) for sweep in sweeps]
    aligned = tuple(map(tuple, _aligned(cut, h, _Grain(0.0, 0.0))))
    rest = rest if rest > slack else 0.0
    return replace(protocol, sweeps=aligned, carry_over=True, rest_ms=rest)


# --- how exact a record is -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Grain:
    """How exact a record is: the standard deviation of its noise, and its least step, mV."""

    noise: float
    quantum: float

    @property
    def measured(self) -> bool:
        """Whether the command went through a converter, rather than being computed."""
        return self.noise > _EXACT or self.quantum > _EXACT

    @property
    def most(self) -> float:
        """How far a single sample may stray from what describes it, mV."""
        sensible = _SENSIBLE / 2 if self.measured else 0.0
        return _FAR * self.noise + 1.05 * self.quantum + sensible + _EXACT

    def level(self, n: int) -> float:
        """To how many mV the mean of n samples is known."""
        sure = max(4 * self.noise / math.sqrt(n), 0.6 * self.quantum, _EXACT)
        return max(sure, _SENSIBLE) if self.measured else sure


def _grain(rows: Sequence[np.ndarray]) -> _Grain:
    """Noise and least step of all sweeps together."""
    # third differences hardly see ramps and slow waves, and a median does not see jumps
    third = np.concatenate([np.diff(row, 3) for row in rows if len(row) > 8] or [np.zeros(1)])
    noise = 1.4826 * float(np.median(np.abs(third))) / math.sqrt(20)
    second = np.abs(np.concatenate([np.diff(row, 2) for row in rows] or [np.zeros(1)]))
    quantum = _quantum(second[(second > _EXACT) & (second <= _LARGEST_QUANTUM)], second.size)
    if noise <= _EXACT and quantum > 0:
        noise = math.sqrt(float(np.mean(np.minimum(second, 3 * quantum) ** 2)) / 6)
        noise = min(noise, quantum)
    return _Grain(noise if noise > _EXACT else 0.0, quantum)


def _quantum(small: np.ndarray, of_all: int) -> float:
    """The least step of a converter, mV, of which small differences are multiples; 0 without one.

    Arguments:
        small: (n,) mV, the second differences of the record that may be such multiples.
        of_all: how many second differences there are; a computed command has few small ones, at
            the ends of its ramps alone.
    """
    if small.size <= max(20, 2e-3 * of_all):
        return 0.0
    quantum = float(small.min())
    multiples = small / quantum
    odd = np.abs(multiples - np.round(multiples)) > 0.1
    return quantum if odd.mean() < 0.1 and np.median(multiples) < 50 else 0.0


def _rounded(value: float, unsure: float) -> float:
    """The value on the coarsest grid of ones and fives that is no farther than `unsure`."""
    for power in range(2, -10, -1):
        for step in (10.0**power, 5 * 10.0 ** (power - 1)):
            near = round(round(value / step) * step, 9)
            if abs(near - value) <= unsure:
                return near + 0.0  # no negative zero
    return round(value, 9)


# --- one sweep -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """Samples [first, last) of a sweep and what describes them.

    Attributes:
        line: voltage at sample `first`, and its change from sample to sample; for lines.
        wave: a sum of sines, or samples; None for a line.
        jumps: whether the piece begins with a jump.
    """

    first: int
    last: int
    line: tuple[float, float] = (0.0, 0.0)
    wave: Wave | None = None
    jumps: bool = True

    def at(self, sample: float) -> float:
        """The voltage of a line at a sample, which may lie between two."""
        return self.line[0] + self.line[1] * (sample - self.first)


class _Sweep:
    """The command of one sweep, cut into pieces.

    Attributes:
        edges: (n_samples,) which samples lie within the edge of a step.
        leads: over how many samples each of these edges is spread.
    """

    def __init__(self, v: np.ndarray, sampling_ms: float, grain: _Grain) -> None:
        self.v, self.h, self.grain = v, sampling_ms, grain
        self.edges = np.zeros(len(v), dtype=bool)
        self.leads: list[int] = []

    @cached_property
    def _sums(self) -> np.ndarray:
        """Running sums of 1, k, k^2, v, k v and v^2 over the samples, (6, n_samples + 1)."""
        k = np.arange(len(self.v)) - len(self.v) / 2
        v = self.v - self.v.mean()
        columns = np.array([np.ones(len(v)), k, k * k, v, k * v, v * v])
        return np.concatenate([np.zeros((6, 1)), np.cumsum(columns, axis=1)], axis=1)

    def segments(self) -> Iterator[Segment]:
        """The segments of the sweep, without a gap from 0 to its end."""
        pieces = [piece for a, b in self._stretches() for piece in self._described(a, b)]
        starts = [self._start(before, piece) for before, piece in pairwise(pieces)]
        times = [0.0, *starts, round(len(self.v) * self.h, 9)]
        shown = [self._segment(p, a, b) for p, (a, b) in zip(pieces, pairwise(times), strict=True)]
        yield from _joined([segment for segment in shown if segment.end_ms > segment.start_ms])

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """The samples between two jumps; those within the edge of a step belong to none."""
        n, grain = len(self.v), self.grain
        least = max(_LEAST_JUMP, 2 * _FAR * grain.noise + 2 * grain.quantum)
        record = Samples(np.arange(n) * self.h, self.v)
        times = record.jump_times_ms(self.h, least) if n > 1 else np.zeros(0)
        cuts = sorted({0, *(round(t / self.h) for t in times)})
        for first, last in pairwise([*cuts, n]):
            lead = self._lead(first, last) if first else 0
            self.edges[first : first + lead] = True
            self.leads += [lead] if lead else []
            yield first + lead, last

    def _lead(self, first: int, last: int) -> int:
        """How many samples after a jump belong to its edge, as a filter spreads it."""
        most = min(_LEAD, (last - first) // 4)
        if most < 1 or not self.grain.measured:
            return 0
        a, b = first + most, min(last, first + 3 * most)
        start, slope = self._line(a, b)
        told = start + slope * (np.arange(first, a) - a)
        off = np.abs(self.v[first:a] - told) > self.grain.most
        return int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0

    # --- lines -------------------------------------------------------------------------------

    def _line(self, a: int, b: int) -> tuple[float, float]:
        """The least-squares line through samples [a, b): its voltage at a, and its slope."""
        n, k = b - a, np.arange(b - a)
        mean = float(self.v[a:b].mean())
        middle = (n - 1) / 2
        slope = float((k - middle) @ (self.v[a:b] - mean)) * 12 / (n * (n * n - 1)) if n > 1 else 0
        drift = max(5 * self.grain.noise * math.sqrt(12 / n), self.grain.quantum, _EXACT)
        drift = max(drift, _SENSIBLE / 2) if self.grain.measured else drift
        if abs(slope) * (n - 1) <= drift:
            return mean, 0.0
        return mean - slope * middle, slope

    def _strays(self, a: int, b: int) -> float:
        """How far the samples [a, b) stray from their line, mV."""
        start, slope = self._line(a, b)
        return float(np.abs(self.v[a:b] - start - slope * np.arange(b - a)).max())

    def _squares(self, a: Any, b: Any) -> np.ndarray:
        """The sum of squares about the least-squares line of samples [a, b), arrays of indices."""
        first, last = np.broadcast_arrays(a, b)
        n, k, kk, v, kv, vv = self._sums[:, last] - self._sums[:, first]
        n = np.maximum(n, 1)
        bend = np.maximum(kk - k * k / n, 1e-12)
        slope = (kv - k * v / n) ** 2 / bend
        return np.asarray(np.maximum(vv - v * v / n - slope, 0.0))

    def _knot(self, a: int, b: int) -> int:
        """Where two lines instead of one describe the samples [a, b) best."""
        knots = np.arange(a + 1, b)
        return int(knots[np.argmin(self._squares(a, knots) + self._squares(knots, b))])

    def _lines(self, a: int, b: int, most: int) -> list[int] | None:
        """The ends of at most so many lines that describe the samples [a, b); None without any."""
        ends = [a, b]
        while True:
            strays = [self._strays(*piece) for piece in pairwise(ends)]
            worst = int(np.argmax(strays))
            if strays[worst] <= self.grain.most:
                break
            if len(ends) > most:
                return None
            ends.insert(worst + 1, self._knot(ends[worst], ends[worst + 1]))
            for i in [*range(1, len(ends) - 1)] * 2 if len(ends) <= _FEW_LINES + 1 else []:
                ends[i] = self._knot(ends[i - 1], ends[i + 1])
        for i in range(len(ends) - 2, 0, -1):
            if self._strays(ends[i - 1], ends[i + 1]) <= self.grain.most:
                del ends[i]
        return ends

    # --- what describes a stretch ------------------------------------------------------------

    def _described(self, a: int, b: int) -> Iterator[_Piece]:
        """The pieces of the samples [a, b) between two jumps."""
        ends = self._lines(a, b, _FEW_LINES)
        wave: Wave | None = None
        if ends is None and b - a >= _SHORTEST_WAVE:
            wave = self._sines(a, b)
        if ends is None and wave is None:
            ends = self._lines(a, b, _MOST_LINES)
        if ends is None:
            if wave is None:
                wave = Samples(np.arange(b - a) * self.h, self.v[a:b])
            yield _Piece(a, b, wave=wave)
            return
        for i, (first, last) in enumerate(pairwise(ends)):
            yield _Piece(first, last, self._line(first, last), jumps=i == 0)

    def _start(self, before: _Piece, piece: _Piece) -> float:
        """The time, ms, at which a piece begins: a sample, or where two lines meet."""
        if before.wave is not None or piece.wave is not None or piece.jumps:
            return round(self._edge(before, piece) * self.h, 9)
        bend = piece.line[1] - before.line[1]
        gap = before.at(piece.first) - piece.at(piece.first)
        unsure = self.grain.level(min(piece.last - piece.first, before.last - before.first))
        if bend == 0 or abs(gap / bend) > 1 + 3 * unsure / abs(bend):
            return round(piece.first * self.h, 9)
        meet = piece.first + gap / bend
        meet = min(max(meet, before.first), piece.last)
        return _rounded(
            meet * self.h,
            min(unsure / abs(bend), 0.5 * (piece.last - piece.first)) * self.h * 0.5 + 1e-9,
        )

    def _edge(self, before: _Piece, piece: _Piece) -> int:
        """The first sample of an edge that has made half of its way."""
        if before.last == piece.first:
            return piece.first
        low, high = self.v[before.last - 1], self.v[piece.first]
        way = np.abs(self.v[before.last : piece.first + 1] - low) >= 0.5 * abs(high - low)
        return before.last + int(np.flatnonzero(way)[0])

    def _segment(self, piece: _Piece, start_ms: float, end_ms: float) -> Segment:
        n = piece.last - piece.first
        if piece.wave is None and piece.line[1] == 0:
            return Segment(start_ms, end_ms, Constant(_rounded(piece.line[0], self.grain.level(n))))
        if piece.wave is None:
            unsure = self.grain.level(max(1, n // 4))
            ends = (_rounded(piece.at(t / self.h), unsure) for t in (start_ms, end_ms))
            return Segment(start_ms, end_ms, Ramp(*ends))
        if isinstance(piece.wave, Sines):
            wave, late = piece.wave, piece.first * self.h - start_ms
            turned = zip(wave.phases, wave.omegas_per_ms, strict=True)
            if late > 1e-6 * self.h:
                wave = replace(wave, phases=tuple(p - late * omega for p, omega in turned))
            return Segment(start_ms, end_ms, replace(wave, origin_ms=start_ms))
        first, last = round(start_ms / self.h), round(end_ms / self.h)
        return Segment(start_ms, end_ms, _samples(self.v[first:last], self.h))

    # --- sines -------------------------------------------------------------------------------

    def _sines(self, a: int, b: int) -> Sines | None:
        """The sum of few sines that describes the samples [a, b); None where there is none."""
        v, k = self.v[a:b], np.arange(b - a, dtype=float)
        omegas, rest = np.zeros(0), v - v.mean()
        for _ in range(_MOST_SINES):
            before = float(rest @ rest)
            omegas = np.append(omegas, _strongest(rest))
            fitted = _fit_sines(v, k, omegas)
            if fitted is None:
                return None
            omegas, linear, rest = fitted
            if np.abs(rest).max() <= self.grain.most:
                return self._rounded_sines(v, k, omegas, linear)
            if float(rest @ rest) > _GAIN * before:
                return None
        return None

    def _rounded_sines(
        self, v: np.ndarray, k: np.ndarray, omegas: np.ndarray, linear: np.ndarray
    ) -> Sines:
        """The sines in round numbers, where these describe the samples as well."""
        terms = []
        for i in np.argsort(omegas):
            c, s = linear[1 + 2 * i : 3 + 2 * i]
            terms.append((math.hypot(c, s), omegas[i] / self.h, math.atan2(c, s) % (2 * math.pi)))
        exact = Sines(float(linear[0]), *zip(*terms, strict=True), 0.0)
        unsure = self.grain.level(len(v))
        turn = unsure / max(exact.amplitudes_mV)
        slow = 2 * turn / (len(v) * self.h)
        short = Sines(
            _rounded(exact.offset_mV, unsure),
            tuple(_rounded(x, unsure) for x in exact.amplitudes_mV),
            tuple(_rounded(x, slow) for x in exact.omegas_per_ms),
            tuple(_rounded(x, turn) for x in exact.phases),
            0.0,
        )
        apart = short.voltage(k * self.h, 0.0, 0.0) - v
        return short if np.abs(apart).max() <= self.grain.most + 2 * unsure else exact


def _strongest(rest: np.ndarray) -> float:
    """The angular frequency, per sample, of the strongest sine in what is left."""
    n = 4 * len(rest)
    power = np.abs(np.fft.rfft(rest * np.hanning(len(rest)), n))
    return 2 * math.pi * max(int(power.argmax()), 1) / n


def _fit_sines(
    v: np.ndarray, k: np.ndarray, omegas: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Sines of about these frequencies fitted to samples (n,) by the method of Gauss and Newton.

    Returns:
        The angular frequencies per sample; the offset, then cosine and sine of each; what is left.
        None where they run away.
    """
    n = 1 + 2 * len(omegas)
    rows = np.ones((n + len(omegas), len(k)))
    for _ in range(30):
        turns = np.outer(omegas, k)
        rows[1:n:2], rows[2:n:2] = np.cos(turns), np.sin(turns)
        try:
            linear = np.linalg.solve(rows[:n] @ rows[:n].T, rows[:n] @ v)
            rest = v - linear @ rows[:n]
            rows[n:] = k * (linear[2::2, None] * rows[1:n:2] - linear[1::2, None] * rows[2:n:2])
            moved = np.linalg.solve(rows @ rows.T, rows @ rest)[n:]
        except np.linalg.LinAlgError:  # two of the frequencies have become one
            return None
        if not (np.abs(omegas + moved) < math.pi).all():
            return None
        if np.abs(moved).max() * len(k) < 1e-9:
            break
        omegas = omegas + moved
    return omegas, linear, rest


# --- all sweeps together -------------------------------------------------------------------------


def _samples(v: np.ndarray, sampling_ms: float) -> Samples:
    return Samples(np.arange(len(v)) * sampling_ms, v)


def _whole(row: np.ndarray, sampling_ms: float) -> Segment:
    """A sweep as its samples."""
    return Segment(0.0, round(len(row) * sampling_ms, 9), _samples(row, sampling_ms))


def _joined(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Segments of which neighbors at the same voltage are one."""
    held: Segment | None = None
    for segment in segments:
        if held is not None and segment.is_constant and segment.wave == held.wave:
            held = replace(held, end_ms=segment.end_ms)
            continue
        if held is not None:
            yield held
        held = segment
    if held is not None:
        yield held


def _aligned(sweeps: list[list[Segment]], sampling_ms: float, grain: _Grain) -> list[list[Segment]]:
    """Sweeps of the same number of segments, where some have fewer since a step led nowhere.

    Such a sweep is cut where that makes it most like one of those that have all segments. Edges
    that the noise of the record has moved by one sample are moved to where most sweeps have them.
    """
    most = max(map(len, sweeps))
    whole = next(sweep for sweep in sweeps if len(sweep) == most)
    sweeps = [_cut_like(sweep, whole, sampling_ms) for sweep in sweeps]
    if grain.measured and all(len(sweep) == most for sweep in sweeps):
        for i in range(1, most):
            times = sorted(sweep[i].start_ms for sweep in sweeps)
            if times[-1] - times[0] <= 1.5 * sampling_ms:
                for sweep in sweeps:
                    _move_edge(sweep, i, times[len(times) // 2])
    return sweeps


def _cut_like(sweep: list[Segment], whole: list[Segment], sampling_ms: float) -> list[Segment]:
    """A sweep, of which held segments are cut in two until it has as many as another sweep."""
    while len(sweep) < len(whole):
        cuts = [
            [*sweep[:i], replace(s, end_ms=time), replace(s, start_ms=time), *sweep[i + 1 :]]
            for i, s in enumerate(sweep)
            if s.is_constant
            for time in (
                round(s.start_ms + _lasts(whole[i]), 9),
                round(s.end_ms - _lasts(whole[i + 1]), 9),
            )
            if s.start_ms < time < s.end_ms
        ]
        if not cuts:
            return sweep
        sweep = max(cuts, key=lambda cut: _likeness(cut, whole, sampling_ms))
    return sweep


def _lasts(segment: Segment) -> float:
    return segment.end_ms - segment.start_ms


def _likeness(sweep: Sequence[Segment], whole: Sequence[Segment], sampling_ms: float) -> int:
    """In how many waves and durations two sweeps agree, segment by segment."""
    return sum(
        2 * (type(a.wave) is type(b.wave))
        + (a.wave == b.wave)
        + 2 * (abs(_lasts(a) - _lasts(b)) < 1.5 * sampling_ms)
        for a, b in zip(sweep, whole, strict=False)
    )


def _move_edge(sweep: list[Segment], i: int, time: float) -> None:
    """Let segment i of a sweep begin at another time, in place."""
    before, after = sweep[i - 1], sweep[i]
    held = before.is_constant or isinstance(after.wave, (Constant, Ramp))
    if held and before.start_ms < time < after.end_ms:
        sweep[i - 1], sweep[i] = replace(before, end_ms=time), replace(after, start_ms=time)
