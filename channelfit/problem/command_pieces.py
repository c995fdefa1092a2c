"""The command of one sweep, cut into lines and sums of sines, each in round numbers.

The samples are cut at jumps first. What lies between two jumps becomes straight lines where few of
them describe it, else a sum of sines, else more lines; the rest stays as its
samples. How closely they must describe it follows from the noise and the digits of the record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.problem.sweep_families import EXACT, joined, rounded
from channelfit.problem.waves import Constant, Ramp, Samples, Segment, Sines, Wave

#: Second differences up to this size, mV, can be those of neighboring values of a converter.
_LARGEST_QUANTUM = 0.2
#: Where more than this share of the second differences is zero, no noise was recorded.
_COMPUTED = 0.3
#: mV to which the levels of a noisy or coarsely digitized record are rounded at least.
SENSIBLE = 0.1
#: mV: smaller jumps are found by cutting lines instead.
_LEAST_JUMP = 1.0
#: The most samples over which a filter may spread the edge of a jump. The line that the command
#: follows after the edge is fitted to twice as many.
_MOST_EDGE_SAMPLES = 4
#: The most straight lines between two jumps that are tried before sines, and after sines.
_FEW_LINES, _MOST_LINES = 4, 16
_MOST_SINES = 5
#: A further sine must leave at most this share of the squares; otherwise the wave stays samples.
_GAIN = 0.8
#: Fewer samples are no wave.
_SHORTEST_WAVE = 40
#: The standard deviations of the noise by which the most distant of all samples may stray.
_FAR = 6.0


# --- how exact a record is -----------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """The precision of a record: the standard deviation of its noise, and its least step, mV."""

    noise: float
    quantum: float

    @property
    def measured(self) -> bool:
        """True if the command went through a converter, rather than being computed."""
        return self.noise > EXACT or self.quantum > EXACT

    @property
    def most(self) -> float:
        """The largest distance of a single sample from a curve that describes it, mV."""
        sensible = SENSIBLE / 2 if self.measured else 0.0
        return _FAR * self.noise + 1.05 * self.quantum + sensible + EXACT

    def level(self, n: int) -> float:
        """Return the uncertainty of the mean of n samples, mV."""
        sure = max(4 * self.noise / math.sqrt(n), 0.6 * self.quantum, EXACT)
        return max(sure, SENSIBLE) if self.measured else sure


def precision_of(rows: Sequence[np.ndarray]) -> Precision:
    """Return noise and least step of all sweeps together."""
    # fifth differences hardly see ramps and waves, and a median does not see jumps
    fifth = np.concatenate([np.diff(row, 5) for row in rows if len(row) > 12] or [np.zeros(1)])
    noise = 1.4826 * float(np.median(np.abs(fifth))) / math.sqrt(252)
    second = np.abs(np.concatenate([np.diff(row, 2) for row in rows] or [np.zeros(1)]))
    if np.mean(second <= EXACT) > _COMPUTED:
        noise = 0.0
    quantum = _quantum(second[(second > EXACT) & (second <= _LARGEST_QUANTUM)], second.size)
    if noise <= EXACT and quantum > 0:
        noise = math.sqrt(float(np.mean(np.minimum(second, 3 * quantum) ** 2)) / 6)
        noise = min(noise, quantum)
    return Precision(noise if noise > EXACT else 0.0, quantum)


def _quantum(small: np.ndarray, of_all: int) -> float:
    """Return the step of a converter, mV, of which small differences are multiples; 0 without one.

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


# --- one sweep -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FittedPiece:
    """Samples [first, last) of a sweep and the curve that describes them.

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
        """Return the voltage of a line at a sample, which may lie between two."""
        return self.line[0] + self.line[1] * (sample - self.first)


class SweepPieces:
    """The command of one sweep, cut into pieces.

    Attributes:
        on_edge: (n_samples,) bool, the samples within the edge of a step.
        edge_lengths: over how many samples each of these edges is spread.

    Both are filled while `segments` is read to its end.
    """

    def __init__(self, v: np.ndarray, sampling_ms: float, precision: Precision) -> None:
        self.v, self.h, self.precision = v, sampling_ms, precision
        self.on_edge = np.zeros(len(v), dtype=bool)
        self.edge_lengths: list[int] = []

    @cached_property
    def _sums(self) -> np.ndarray:
        """Running sums of 1, k, k^2, v, k v and v^2 over the samples, (6, n_samples + 1)."""
        k = np.arange(len(self.v)) - len(self.v) / 2
        v = self.v - self.v.mean()
        columns = np.array([np.ones(len(v)), k, k * k, v, k * v, v * v])
        return np.concatenate([np.zeros((6, 1)), np.cumsum(columns, axis=1)], axis=1)

    def segments(self) -> Iterator[Segment]:
        """Yield the segments of the sweep, without a gap from 0 to its end."""
        pieces = [piece for a, b in self._stretches() for piece in self._described(a, b)]
        starts = [self._start(before, piece) for before, piece in pairwise(pieces)]
        times = [0.0, *starts, round(len(self.v) * self.h, 9)]
        segments = [
            self._segment(p, a, b) for p, (a, b) in zip(pieces, pairwise(times), strict=True)
        ]
        for i, (before, after) in enumerate(pairwise(segments)):
            segments[i], segments[i + 1] = self._touching(before, after)
        yield from joined([segment for segment in segments if segment.end_ms > segment.start_ms])

    def _touching(self, before: Segment, after: Segment) -> tuple[Segment, Segment]:
        """Return two neighbors, a ramp beside a held level that meets it."""
        near = 3 * self.precision.level(1) if self.precision.measured else EXACT
        held, ramp = before.wave, after.wave
        if isinstance(held, Constant) and isinstance(ramp, Ramp):
            close = abs(held.v_mV - ramp.v_start_mV) <= near
            after = replace(after, wave=replace(ramp, v_start_mV=held.v_mV)) if close else after
        ramp, held = before.wave, after.wave
        if isinstance(ramp, Ramp) and isinstance(held, Constant):
            close = abs(held.v_mV - ramp.v_end_mV) <= near
            before = replace(before, wave=replace(ramp, v_end_mV=held.v_mV)) if close else before
        return before, after

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the samples between two jumps; those within the edge of a step belong to none."""
        n, precision = len(self.v), self.precision
        least = max(_LEAST_JUMP, 2 * _FAR * precision.noise + 2 * precision.quantum)
        record = Samples(np.arange(n) * self.h, self.v)
        times = record.jump_times_ms(self.h, least) if n > 1 else np.zeros(0)
        cuts = sorted({0, *(round(t / self.h) for t in times)})
        for first, last in pairwise([*cuts, n]):
            length = self._edge_length(first, last) if first else 0
            self.on_edge[first : first + length] = True
            if length:
                self.edge_lengths.append(length)
            yield first + length, last

    def _edge_length(self, first: int, last: int) -> int:
        """Return over how many samples a filter has spread the edge of the jump at `first`.

        A line is fitted to the samples behind the longest edge possible; the edge ends with the
        last sample before them that is off this line by more than the precision of the record. 0
        for a computed command.

        Arguments:
            first, last: the samples [first, last) from this jump to the next.
        """
        longest = min(_MOST_EDGE_SAMPLES, (last - first) // 4)
        if longest < 1 or not self.precision.measured:
            return 0
        settled = first + longest
        start, slope = self._line(settled, min(last, settled + 2 * longest))
        predicted = start + slope * (np.arange(first, settled) - settled)
        off = np.abs(self.v[first:settled] - predicted) > self.precision.most
        return int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0

    # --- lines -------------------------------------------------------------------------------

    def _line(self, a: int, b: int) -> tuple[float, float]:
        """Return the least-squares line through samples [a, b): its voltage at a, and its slope."""
        n, k = b - a, np.arange(b - a)
        mean = float(self.v[a:b].mean())
        middle = (n - 1) / 2
        slope = float((k - middle) @ (self.v[a:b] - mean)) * 12 / (n * (n * n - 1)) if n > 1 else 0
        drift = max(5 * self.precision.noise * math.sqrt(12 / n), self.precision.quantum, EXACT)
        drift = max(drift, SENSIBLE / 2) if self.precision.measured else drift
        if abs(slope) * (n - 1) <= drift:
            return mean, 0.0
        return mean - slope * middle, slope

    def _strays(self, a: int, b: int) -> float:
        """Return how far the samples [a, b) stray from their line, mV."""
        start, slope = self._line(a, b)
        return float(np.abs(self.v[a:b] - start - slope * np.arange(b - a)).max())

    def _squares(self, a: Any, b: Any) -> np.ndarray:
        """Return the sum of squares about the least-squares line of samples [a, b), indices."""
        first, last = np.broadcast_arrays(a, b)
        n, k, kk, v, kv, vv = self._sums[:, last] - self._sums[:, first]
        n = np.maximum(n, 1)
        bend = np.maximum(kk - k * k / n, 1e-12)
        slope = (kv - k * v / n) ** 2 / bend
        return np.asarray(np.maximum(vv - v * v / n - slope, 0.0))

    def _knot(self, a: int, b: int) -> int:
        """Return where two lines instead of one describe the samples [a, b) best."""
        knots = np.arange(a + 1, b)
        return int(knots[np.argmin(self._squares(a, knots) + self._squares(knots, b))])

    def _lines(self, a: int, b: int, most: int) -> list[int] | None:
        """Return the ends of at most so many lines that describe samples [a, b), or None."""
        ends = [a, b]
        while True:
            strays = [self._strays(*piece) for piece in pairwise(ends)]
            worst = int(np.argmax(strays))
            if strays[worst] <= self.precision.most:
                break
            if len(ends) > most:
                return None
            ends.insert(worst + 1, self._knot(ends[worst], ends[worst + 1]))
            for i in [*range(1, len(ends) - 1)] * 2 if len(ends) <= _FEW_LINES + 1 else []:
                ends[i] = self._knot(ends[i - 1], ends[i + 1])
        for i in range(len(ends) - 2, 0, -1):
            if self._strays(ends[i - 1], ends[i + 1]) <= self.precision.most:
                del ends[i]
        return ends

    # --- curves that describe a stretch ------------------------------------------------------

    def _described(self, a: int, b: int) -> Iterator[_FittedPiece]:
        """Yield the pieces of the samples [a, b) between two jumps."""
        ends = self._lines(a, b, _FEW_LINES)
        wave: Wave | None = None
        if ends is None and b - a >= _SHORTEST_WAVE:
            wave = self._sines(a, b)
        if ends is None and wave is None:
            ends = self._lines(a, b, _MOST_LINES)
        if ends is None:
            if wave is None:
                wave = Samples(np.arange(b - a) * self.h, self.v[a:b])
            yield _FittedPiece(a, b, wave=wave)
            return
        for i, (first, last) in enumerate(pairwise(ends)):
            yield _FittedPiece(first, last, self._line(first, last), jumps=i == 0)

    def _start(self, before: _FittedPiece, piece: _FittedPiece) -> float:
        """Return the time, ms, at which a piece begins: a sample, or where two lines meet."""
        if before.wave is not None or piece.wave is not None or piece.jumps:
            return round(self._edge(before, piece) * self.h, 9)
        bend = piece.line[1] - before.line[1]
        gap = before.at(piece.first) - piece.at(piece.first)
        if bend == 0 or abs(gap) <= EXACT:
            return round(piece.first * self.h, 9)
        n, noise, late = min(piece.last - piece.first, before.last - before.first), 0.0, gap / bend
        if self.precision.measured:
            noise = self.precision.noise
            apart = max(24 * noise / math.sqrt(n), 4 * noise, 3 * self.precision.quantum)
            meets = abs(gap) <= apart + 2 * abs(bend)
        else:  # the lines meet between the last sample of one and the first of the other
            meets = -1 - 1e-6 <= late <= 1e-6
        if not meets:  # a small jump
            return round(piece.first * self.h, 9)
        meet = min(max(piece.first + late, before.first), piece.last)
        unsure = max(8 * noise / math.sqrt(n), self.precision.quantum, EXACT)
        return rounded(meet * self.h, min(unsure / abs(bend), n / 4) * self.h)

    def _edge(self, before: _FittedPiece, piece: _FittedPiece) -> int:
        """Return the first sample of an edge that has made half of its way."""
        if before.last == piece.first:
            return piece.first
        low, high = self.v[before.last - 1], self.v[piece.first]
        way = np.abs(self.v[before.last : piece.first + 1] - low) >= 0.5 * abs(high - low)
        return before.last + int(np.flatnonzero(way)[0])

    def _segment(self, piece: _FittedPiece, start_ms: float, end_ms: float) -> Segment:
        n = piece.last - piece.first
        if piece.wave is None and piece.line[1] == 0:
            return Segment(
                start_ms, end_ms, Constant(rounded(piece.line[0], self.precision.level(n)))
            )
        if piece.wave is None:
            unsure = self.precision.level(max(1, n // 4))
            ends = (rounded(piece.at(t / self.h), unsure) for t in (start_ms, end_ms))
            return Segment(start_ms, end_ms, Ramp(*ends))
        if isinstance(piece.wave, Sines):
            wave, late = piece.wave, piece.first * self.h - start_ms
            turned = zip(wave.phases, wave.omegas_per_ms, strict=True)
            if late > 1e-6 * self.h:
                wave = replace(wave, phases=tuple(p - late * omega for p, omega in turned))
            return Segment(start_ms, end_ms, replace(wave, origin_ms=start_ms))
        first, last = round(start_ms / self.h), round(end_ms / self.h)
        return Segment(start_ms, end_ms, sampled(self.v[first:last], self.h))

    # --- sines -------------------------------------------------------------------------------

    def _sines(self, a: int, b: int) -> Sines | None:
        """Return the sum of few sines that describes the samples [a, b), or None."""
        v, k = self.v[a:b], np.arange(b - a, dtype=float)
        omegas, rest = np.zeros(0), v - v.mean()
        for _ in range(_MOST_SINES):
            before = float(rest @ rest)
            omegas = np.append(omegas, _strongest(rest))
            fitted = _fit_sines(v, k, omegas)
            if fitted is None:
                return None
            omegas, linear, rest = fitted
            if np.abs(rest).max() <= self.precision.most:
                return self._rounded_sines(v, k, omegas, linear)
            if float(rest @ rest) > _GAIN * before:
                return None
        return None

    def _rounded_sines(
        self, v: np.ndarray, k: np.ndarray, omegas: np.ndarray, linear: np.ndarray
    ) -> Sines:
        """Return the sines in round numbers, where these describe the samples as well."""
        order = np.argsort(omegas)
        cosine, sine = linear[1::2][order], linear[2::2][order]
        exact = Sines(
            float(linear[0]),
            tuple(np.hypot(cosine, sine).tolist()),
            tuple((omegas[order] / self.h).tolist()),
            tuple((np.arctan2(cosine, sine) % (2 * math.pi)).tolist()),
            0.0,
        )
        unsure = self.precision.level(len(v))
        turn = unsure / max(exact.amplitudes_mV)
        slow = 2 * turn / (len(v) * self.h)
        short = Sines(
            rounded(exact.offset_mV, unsure),
            tuple(rounded(x, unsure) for x in exact.amplitudes_mV),
            tuple(rounded(x, slow) for x in exact.omegas_per_ms),
            tuple(rounded(x, turn) for x in exact.phases),
            0.0,
        )
        apart = short.voltage(k * self.h, 0.0, 0.0) - v
        return short if np.abs(apart).max() <= self.precision.most + 2 * unsure else exact


def _strongest(rest: np.ndarray) -> float:
    """Return the angular frequency, per sample, of the strongest sine in the residuals."""
    n = 4 * len(rest)
    power = np.abs(np.fft.rfft(rest * np.hanning(len(rest)), n))
    return 2 * math.pi * max(int(power.argmax()), 1) / n


def _fit_sines(
    v: np.ndarray, k: np.ndarray, omegas: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Fit sines of about these frequencies to samples (n,) by the method of Gauss and Newton.

    Returns:
        The angular frequencies per sample; the offset, then cosine and sine of each; the residuals.
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


def sampled(v: np.ndarray, sampling_ms: float) -> Samples:
    """Return a command (n,) mV that is kept sample by sample."""
    return Samples(np.arange(len(v)) * sampling_ms, v)
