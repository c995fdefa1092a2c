"""Command voltages by numbers: steps, ramps and sums of sines whose voltages and times are free.

All numbers of a waveform are one vector. Durations are shares of the whole length: the logits of a
softmax, so that their sum stays and none gets shorter than allowed. Under a limit of the slew a
jump to the next segment is a ramp of that slew, for which the time is taken from all durations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from channelfit.designs.derivatives import STEP
from channelfit.designs.information import Pieces, Slopes
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE, Constant, Ramp, Segment, Sines, Wave

Array: TypeAlias = Any  # of floats

#: Pieces of a ramp, of one that is a jump, and of sines, of which each period has at least twelve.
_RAMP, _JUMP, _SINES, _A_PERIOD = 96, 16, 384, 12
_TERMS = 3  # sines of a sum
_TURNS = 2 * np.pi * _SINES / _A_PERIOD  # of the fastest sine, radians
_LOGIT = 5.0  # logits lie between this and its negative
#: The kinds of segments, and how many numbers besides the duration each has.
KINDS = {"step": 1, "ramp": 2, "sines": 1 + 2 * _TERMS}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the amplifier and of the experimenter.

    Attributes:
        lowest, highest: mV, of the command voltage.
        holding: mV, before each sweep; where the two differ, the ends of its range.
        length: ms, of each sweep.
        shortest: ms, the least duration of a segment.
        mask: ms after a jump of the voltage whose samples do not count.
        sampling: ms between samples.
        slew: mV/ms, the greatest change of the command; inf for jumps.
        sweeps: their number.
    """

    lowest: float
    highest: float
    holding: tuple[float, float]
    length: float
    shortest: float
    sampling: float
    mask: float = 0.0
    slew: float = math.inf
    sweeps: int = 1

    @property
    def jump(self) -> int:
        """How many samples the widest jump takes; 0 without a limit of the slew."""
        return self.jumping(self.highest - self.lowest)

    def jumping(self, size: float) -> int:
        """Return how many samples a jump of some mV takes."""
        if math.isinf(self.slew):
            return 0
        return max(1, math.ceil(abs(size) / self.slew / self.sampling - TIME_TOLERANCE))

    def least(self, kind: str) -> int:
        """Return how many samples a segment has at least; a ramp is slower than a jump."""
        shortest = math.ceil(self.shortest / self.sampling - TIME_TOLERANCE)
        return shortest if kind == "step" else max(shortest, self.jump + 1)

    def masked_ms(self, protocol: Protocol, sweep: int) -> Iterator[tuple[float, float]]:
        """Yield from when to when samples do not count, after jumps and ramps as fast as these."""
        if self.mask > 0:
            for begin in protocol.step_times_ms(sweep):
                yield begin, begin + self.mask
            for s in protocol.sweeps[sweep]:
                longest = (self.jump + 0.5) * self.sampling
                if self.jump and isinstance(s.wave, Ramp) and s.end_ms - s.start_ms < longest:
                    yield s.start_ms, s.end_ms + self.mask


class Waveform:
    """Sweeps of segments with free numbers.

    Arguments:
        kinds: of the segments of each sweep, of `KINDS`.
        limits: of voltages and times.

    Attributes:
        bounds: (n_numbers, 2) of the vector: of each segment, sweep by sweep, voltages, mV, then of
            sines the offset, mV, shares of the room beside it, and frequencies as shares of the
            fastest; the holding potential where it is free; then logits of durations.
    """

    def __init__(self, kinds: Sequence[str], limits: Limits) -> None:
        self.kinds, self.limits = list(kinds), limits
        volts = [limits.lowest, limits.highest]
        shapes = {"step": [volts], "ramp": [volts] * 2, "sines": [volts]}
        shapes["sines"] = [volts, *[[-1 / _TERMS, 1 / _TERMS]] * _TERMS, *[[0.05, 1.0]] * _TERMS]
        bounds = [row for kind in self.kinds * limits.sweeps for row in shapes[kind]]
        self._whole_mV = [kind != "sines" for kind in self.kinds for _ in shapes[kind]]
        if limits.holding[0] < limits.holding[1]:
            bounds.append(list(limits.holding))
        self.n_levels, n = len(bounds), len(kinds) * limits.sweeps
        self.bounds = np.array(bounds + [[-_LOGIT, _LOGIT]] * n)
        self.least = np.array([limits.least(kind) for kind in kinds]) * limits.sampling

    def random(self, random: np.random.Generator) -> Array:
        """Return a random vector."""
        x = random.uniform(self.bounds[:, 0], self.bounds[:, 1])
        x[self.n_levels :] = random.normal(0.0, 1.0, len(x) - self.n_levels)
        return x

    def holding(self, x: Array) -> Array:
        """Return the holding potential of a vector, mV."""
        low, high = self.limits.holding
        return x[self.n_levels - 1] if low < high else low + 0.0 * x[0]

    def numbers(self, x: Array) -> list[list[Array]]:
        """Return the numbers of each segment of each sweep, without durations."""
        edges = np.cumsum([0, *(KINDS[kind] for kind in self.kinds * self.limits.sweeps)])
        own, n = [x[a:b] for a, b in pairwise(edges)], len(self.kinds)
        return [own[k : k + n] for k in range(0, len(own), n)]

    def rounded(self, x: Array) -> Array:
        """Return a vector with whole mV in steps, ramps and the holding potential."""
        whole = np.array(self._whole_mV * self.limits.sweeps + [True])[: self.n_levels]
        found = np.array(x)
        found[: self.n_levels] = np.where(whole, np.round(x[: self.n_levels]), x[: self.n_levels])
        return found

    def pieces(self, x: Array) -> Pieces:
        """Return the pieces of a vector (n,), or of complex vectors (n, k) at once."""
        limits, rows, long, segment = self.limits, list[list[Array]](), list[bool](), list[int]()

        def add(volts: Array, lengths: Array, counted: Array, is_long: bool = False) -> None:
            shape = (len(volts), *x.shape[1:])
            rows.append([np.broadcast_to(one, shape) for one in (volts, lengths, counted)])
            long.extend([is_long] * len(volts))
            segment.extend([place] * len(volts))

        for sweep, own in enumerate(self.numbers(x)):
            jumps, durations = self._times(x, sweep, own)
            before = self.holding(x)
            for k, (kind, some, duration) in enumerate(
                zip(self.kinds, own, durations, strict=True)
            ):
                place = sweep * len(self.kinds) + k
                if limits.jump:
                    length = jumps[k] / _JUMP
                    volts = before + np.multiply.outer(_middles(_JUMP), some[0] - before)
                    add(volts, length, 0.0 * length if limits.mask else length)
                if kind == "step":
                    if limits.mask:
                        add(some[:1], limits.mask, 0.0)
                    add(some[:1], duration - limits.mask, duration - limits.mask, True)
                else:
                    n = _RAMP if kind == "ramp" else _SINES
                    after = np.multiply.outer(np.arange(1, n + 1) / n, duration) - limits.mask
                    counted = _lesser(np.where(after.real > 0, after, 0.0), duration / n)
                    add(self._voltage(kind, some, duration, _middles(n)), duration / n, counted)
                before = self._voltage(kind, some, duration, np.ones(1))[0]
        volts, lengths, counted = (np.concatenate(column) for column in zip(*rows, strict=True))
        sweeps = np.array(segment) // len(self.kinds)
        return Pieces(
            np.concatenate([volts, [self.holding(x)]]),
            lengths,
            counted,
            np.array(long),
            np.diff(sweeps, prepend=-1) > 0,
            np.array(segment),
        )

    def gradient(self, x: Array, slopes: Slopes) -> Array:
        """Return the derivative of a criterion by the vector, from those by its `pieces`."""
        moved = self.pieces(x[:, None] + 1j * STEP * np.eye(len(x)))
        parts = moved.volts, moved.lengths, moved.counted
        return sum(by @ part.imag for by, part in zip(slopes, parts, strict=True)) / STEP

    def protocol(self, x: Array, name: str, description: str = "") -> Protocol:
        """Return the protocol of a vector, with whole mV and whole samples."""
        x, limits, sweeps = self.rounded(x), self.limits, list[tuple[Segment, ...]]()
        holding = float(self.holding(x))
        for sweep, own in enumerate(self.numbers(x)):
            segments, at, before = list[Segment](), 0.0, holding
            times = self._times(x, sweep, own, whole=True)
            for kind, some, jump, duration in zip(self.kinds, own, *times, strict=True):
                start, end = round(at + jump, 9), round(at + jump + duration, 9)
                wave = self._wave(kind, some, duration, start)
                if jump:
                    first = float(wave.voltage(np.full(1, start), start, end)[0])
                    segments.append(Segment(at, start, Ramp(before, first)))
                segments.append(Segment(start, end, wave))
                at = end
                before = float(segments[-1].voltage(np.array([segments[-1].end_ms]))[0])
            sweeps.append(tuple(segments))
        return Protocol(name, holding, limits.sampling, tuple(sweeps), description=description)

    def _wave(self, kind: str, own: Array, duration: float, start: float) -> Wave:
        if kind == "step":
            return Constant(float(own[0]))
        if kind == "ramp":
            return Ramp(float(own[0]), float(own[1]))
        omegas = own[1 + _TERMS :] * _TURNS / duration
        sizes = self._amplitudes(own, duration)
        offset, *terms = (float(f"{one:.6g}") for one in (own[0], *sizes, *omegas))
        return Sines(offset, tuple(terms[:_TERMS]), tuple(terms[_TERMS:]), (0.0,) * _TERMS, start)

    # --- times and voltages of a sweep, real or complex

    def _times(
        self, x: Array, sweep: int, own: Sequence[Array], whole: bool = False
    ) -> tuple[Array, Array]:
        """Return how long the jumps before segments last, and the segments, ms.

        Arguments:
            whole: return whole samples, of which no segment has fewer than allowed.
        """
        limits, n, dt, jumps = self.limits, len(self.kinds), self.limits.sampling, list[Array]()
        before, widest = self.holding(x), limits.highest - limits.lowest
        for kind, some in zip(self.kinds, own, strict=True):
            # where sines end follows from their duration: after them there is time for any jump
            size = widest + 0.0 * some[0] if before is None else some[0] - before
            jumps.append(
                limits.jumping(size) * dt if whole else size * np.sign(size.real) / limits.slew
            )
            before = some[-1] if kind != "sines" else None
        parts = np.exp(x[self.n_levels + sweep * n : self.n_levels + (sweep + 1) * n])
        free = limits.length - self.least.sum() - sum(jumps)
        added = free * parts / parts.sum(axis=0)
        if whole:
            added = np.diff(np.round(np.cumsum(added) / dt), prepend=0.0) * dt
        return np.array(jumps), (self.least + added.T).T

    def _voltage(self, kind: str, own: Array, duration: Array, t: Array) -> Array:
        """Return the voltage of a segment at parts t of its duration."""
        if kind == "sines":
            turns = zip(self._amplitudes(own, duration), own[1 + _TERMS :], strict=True)
            return own[0] + sum(a * np.sin(np.multiply.outer(_TURNS * t, w)) for a, w in turns)
        return own[0] + np.multiply.outer(t, own[-1] - own[0])

    def _amplitudes(self, own: Array, duration: Array) -> Array:
        """Return the amplitudes of sines, mV, within voltages and slew."""
        limits = self.limits
        room = _lesser(own[0] - limits.lowest, limits.highest - own[0])
        if not math.isinf(limits.slew):
            room = _lesser(room, limits.slew * duration / (_TURNS * own[1 + _TERMS :]))
        return own[1 : 1 + _TERMS] * room


def _middles(n: int) -> Array:
    return (np.arange(n) + 0.5) / n


def _lesser(a: Array, b: Array) -> Array:
    """Return the lesser of numbers, by their real parts."""
    return np.where(np.real(a) < np.real(b), a, b)
