"""Command voltages by numbers: steps, ramps and sums of sines whose voltages and times are free.

All numbers of a waveform are one vector. Durations are shares of the whole length: the logits of a
softmax, so that their sum stays and none gets shorter than allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from channelfit.designs.information import Pieces

Array: TypeAlias = Any  # of floats

#: Pieces of a ramp, and of a segment of sines, of which each period has at least twelve.
_RAMP, _SINES, _A_PERIOD = 96, 384, 12
_TERMS = 3  # sines of a sum
_LOGIT = 5.0  # logits lie between this and its negative
KINDS = ("step", "ramp", "sines")


@dataclass(frozen=True)
class Limits:
    """The limits of the amplifier and of the experimenter.

    Attributes:
        lower, upper: mV, of the command voltage.
        holding: mV, before the protocol.
        length: ms, of the whole protocol.
        shortest: ms, the least duration of a segment.
        mask: ms after a jump of the voltage whose samples do not count.
        sampling: ms between samples.
    """

    lower: float
    upper: float
    holding: float
    length: float
    shortest: float
    mask: float
    sampling: float


@dataclass(frozen=True)
class _Segment:
    """A segment of a waveform: where its numbers begin, and how many pieces it has."""

    kind: str
    first: int

    @property
    def n_numbers(self) -> int:
        return {"step": 1, "ramp": 2, "sines": 1 + 2 * _TERMS}[self.kind]


class Waveform:
    """A sequence of segments with free numbers.

    Arguments:
        kinds: of each segment, one of `KINDS`.
        limits: of voltages and times.

    Attributes:
        bounds: (n_numbers, 2) of the vector: voltages, mV, then of sines the offset, mV, shares of
            the room beside it, and frequencies as shares of the fastest; then logits of durations.
    """

    def __init__(self, kinds: Sequence[str], limits: Limits) -> None:
        self.limits = limits
        self.segments: list[_Segment] = []
        n = 0
        for kind in kinds:
            self.segments.append(_Segment(kind, n))
            n += self.segments[-1].n_numbers
        self.n_levels = n
        volts = [limits.lower, limits.upper]
        bounds = []
        for segment in self.segments:
            bounds += [volts] * (2 if segment.kind == "ramp" else 1)
            if segment.kind == "sines":
                bounds += [[-1 / _TERMS, 1 / _TERMS]] * _TERMS + [[0.05, 1.0]] * _TERMS
        self.bounds = np.array(bounds + [[-_LOGIT, _LOGIT]] * len(kinds))

    @property
    def n_numbers(self) -> int:
        """The length of the vector."""
        return len(self.bounds)

    def random(self, random: np.random.Generator) -> Array:
        """Return a random vector."""
        x = random.uniform(self.bounds[:, 0], self.bounds[:, 1])
        x[self.n_levels :] = random.normal(0.0, 1.0, len(self.segments))
        return x

    def durations(self, x: Array) -> Array:
        """Return the durations of all segments, ms."""
        free = self.limits.length - len(self.segments) * self.limits.shortest
        return self.limits.shortest + free * _softmax(x[self.n_levels :])

    def pieces(self, x: Array) -> Pieces:
        """Return the pieces of a vector."""
        volts, lengths = list[Any](), list[Any]()
        long, counted = list[Any](), list[Any]()
        for segment, duration in zip(self.segments, self.durations(x), strict=True):
            if self.limits.mask > 0:
                volts.append([x[segment.first]])
                lengths.append([self.limits.mask])
                long.append([False])
                counted.append([False])
            own = self._volts(segment, x)
            volts.append(own)
            lengths.append(np.full(len(own), (duration - self.limits.mask) / len(own)))
            long.append([segment.kind == "step"] * len(own))
            counted.append([True] * len(own))
        each = [np.concatenate(part) for part in (volts, lengths, long, counted)]
        return Pieces(each[0], each[1], each[2], each[3], self.limits.holding)

    def gradient(self, x: Array, by_volts: Array, by_lengths: Array) -> Array:
        """Return the derivative of a criterion by the vector, from those by its `pieces`."""
        found, by_duration, first = np.zeros(len(x)), np.zeros(len(self.segments)), 0
        for k, segment in enumerate(self.segments):
            if self.limits.mask > 0:
                found[segment.first] += by_volts[first]
                first += 1
            own = self._slopes(segment, x)
            last = first + own.shape[1]
            found[segment.first : segment.first + segment.n_numbers] += own @ by_volts[first:last]
            by_duration[k] = by_lengths[first:last].mean()
            first = last
        share = _softmax(x[self.n_levels :])
        free = self.limits.length - len(self.segments) * self.limits.shortest
        found[self.n_levels :] = free * share * (by_duration - share @ by_duration)
        return found

    def rounded(self, x: Array) -> Array:
        """Return a vector with whole mV in steps and ramps."""
        found = np.array(x)
        for segment in self.segments:
            if segment.kind != "sines":
                places = slice(segment.first, segment.first + segment.n_numbers)
                found[places] = np.round(found[places])
        return found

    def documents(self, x: Array) -> list[dict[str, Any]]:
        """Return the segments as a protocol file has them, whole mV and whole samples."""
        found: list[dict[str, Any]] = []
        lengths, durations = self._whole(x), self.durations(x)
        for segment, length, duration in zip(self.segments, lengths, durations, strict=True):
            own = x[segment.first : segment.first + segment.n_numbers]
            lasts = {"for": f"{length:.10g} ms"}
            if segment.kind == "step":
                found.append({"step": f"{round(own[0])} mV"} | lasts)
            elif segment.kind == "ramp":
                found.append({"ramp": [f"{round(v)} mV" for v in own]} | lasts)
            else:
                omega = own[1 + _TERMS :] * self._fastest(duration)
                terms = [
                    {"amplitude": f"{a:.6g} mV", "omega": f"{w:.6g} 1/ms"}
                    for a, w in zip(own[1 : 1 + _TERMS] * self._room(own[0]), omega, strict=True)
                ]
                found.append({"sines": {"offset": f"{own[0]:.6g} mV", "terms": terms}} | lasts)
        return found

    def epochs(self, x: Array) -> list[tuple[float, float, float]]:
        """Return steps and ramps likewise: first and last voltage, mV, and duration, ms."""
        ends = [x[s.first : s.first + s.n_numbers] for s in self.segments]
        return [
            (float(round(v[0])), float(round(v[-1])), float(n))
            for v, n in zip(ends, self._whole(x), strict=True)
        ]

    def _whole(self, x: Array) -> Array:
        """Return the durations of all segments as whole samples, ms."""
        edges = np.round(np.cumsum(self.durations(x)) / self.limits.sampling)
        return np.diff(edges, prepend=0.0) * self.limits.sampling

    # --- voltages of a segment, and their derivatives by its numbers

    def _volts(self, segment: _Segment, x: Array) -> Array:
        own = x[segment.first : segment.first + segment.n_numbers]
        if segment.kind == "step":
            return own
        if segment.kind == "ramp":
            return own[0] + (own[1] - own[0]) * _middles(_RAMP)
        waves = np.sin(self._phases(own))
        return own[0] + self._room(own[0]) * (own[1 : 1 + _TERMS] @ waves)

    def _slopes(self, segment: _Segment, x: Array) -> Array:
        own = x[segment.first : segment.first + segment.n_numbers]
        if segment.kind == "step":
            return np.ones((1, 1))
        if segment.kind == "ramp":
            t = _middles(_RAMP)
            return np.array([1 - t, t])
        phases = self._phases(own)
        waves, shares, room = np.sin(phases), own[1 : 1 + _TERMS], self._room(own[0])
        nearer = 1.0 if own[0] - self.limits.lower < self.limits.upper - own[0] else -1.0
        speeds = own[1 + _TERMS :]
        by_speed = room * shares[:, None] * np.cos(phases) * phases / speeds[:, None]
        return np.concatenate([[1 + nearer * (shares @ waves)], room * waves, by_speed])

    def _room(self, offset: float) -> float:
        """Return how far sines may swing about an offset, mV."""
        return float(min(offset - self.limits.lower, self.limits.upper - offset))

    def _fastest(self, duration: float) -> float:
        """Return the greatest angular frequency in a segment of sines, 1/ms."""
        return 2 * np.pi * _SINES / _A_PERIOD / duration

    def _phases(self, own: Array) -> Array:
        """Return the phase of each sine in the middle of each piece."""
        turns = 2 * np.pi * _SINES / _A_PERIOD
        return turns * np.multiply.outer(own[1 + _TERMS :], _middles(_SINES))


def _middles(n: int) -> Array:
    return (np.arange(n) + 0.5) / n


def _softmax(logits: Array) -> Array:
    parts = np.exp(logits - logits.max())
    return parts / parts.sum()
