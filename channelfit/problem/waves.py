"""The command within one segment of a sweep: a voltage, or a concentration.

The waves of a ligand's command are these too, in mM where they say mV.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

#: Two times closer than this fraction of the sampling interval are the same time.
TIME_TOLERANCE = 1e-6
#: The largest number of samples of a jump in a recorded command, and the share by which intervals
#: may differ.
_JUMP_SAMPLES = 3
_UNEVEN = 1e-3
#: Digits after the point, mV, that a shift of the voltage keeps.
_VOLTAGE_DIGITS = 9
#: Steps of an integrator in one time constant of an exchange of solutions.
_STEPS_AN_EXCHANGE = 16
#: Numbers that are held at once while sines are summed.
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Constant:
    """A voltage that is held."""

    v_mV: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """Return the voltage at times t_ms in the sweep, mV."""
        return np.full(np.shape(t_ms), self.v_mV)


@dataclass(frozen=True)
class Ramp:
    """A voltage that runs in a straight line from the segment's start to its end."""

    v_start_mV: float
    v_end_mV: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """Return the voltage at times t_ms in the sweep, mV."""
        part = (np.asarray(t_ms) - start_ms) / (end_ms - start_ms)
        return np.asarray(self.v_start_mV + (self.v_end_mV - self.v_start_mV) * part)


@dataclass(frozen=True)
class Sines:
    """A sum of sines: ``offset + sum amplitude * sin(omega * (t - origin) + phase)``.

    The time t and its origin count from the start of the sweep.
    """

    offset_mV: float
    amplitudes_mV: tuple[float, ...]
    omegas_per_ms: tuple[float, ...]
    phases: tuple[float, ...]
    origin_ms: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """Return the voltage at times t_ms in the sweep, mV."""
        t = np.asarray(t_ms, dtype=float)
        found, flat = np.empty(t.size), t.reshape(-1, 1)
        step = max(1, _AT_ONCE // len(self.phases))
        for k in range(0, t.size, step):
            waves = np.asarray(self.amplitudes_mV) * np.sin(
                np.asarray(self.omegas_per_ms) * (flat[k : k + step] - self.origin_ms)
                + np.asarray(self.phases)
            )
            found[k : k + step] = self.offset_mV + waves.sum(axis=-1)
        return found.reshape(t.shape)


@dataclass(frozen=True, eq=False)
class Samples:
    """A recorded command, a straight line from each sample to the next.

    Attributes:
        times_ms: (n,) from the start of the segment, increasing, the first of them 0.
        v_mV: (n,)
    """

    times_ms: np.ndarray
    v_mV: np.ndarray

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same samples at the same times."""
        if not isinstance(other, Samples):
            return NotImplemented
        pairs = ((self.times_ms, other.times_ms), (self.v_mV, other.v_mV))
        return all(np.array_equal(ours, theirs) for ours, theirs in pairs)

    def __hash__(self) -> int:
        return hash((self.times_ms.tobytes(), self.v_mV.tobytes()))

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """Return the voltage at times t_ms in the sweep, mV; after the last sample it is held."""
        return np.asarray(np.interp(np.asarray(t_ms) - start_ms, self.times_ms, self.v_mV))

    def jump_times_ms(self, sampling_ms: float, least_mV: float) -> np.ndarray:
        """Return the times at which the command jumps, ms from the segment's start.

        A jump takes one to three samples, since it may have been filtered; its time is that of the
        first sample that shows it. It is larger than `least_mV` and than the noise of the command,
        and four times as steep as the command before and after it, so that the upstroke of an
        action potential is no jump.
        """
        dt, dv = np.diff(self.times_ms), np.diff(self.v_mV)
        slope = np.abs(dv / dt)
        even = np.ptp(dt) < _UNEVEN * dt.min()
        longest = _JUMP_SAMPLES * max(sampling_ms, float(dt[0]) if even else 0.0)
        noise = 8 * 1.4826 * float(np.median(np.abs(dv - np.median(dv))))
        padded = np.concatenate([[0.0, 0.0], slope, [0.0, 0.0]])
        found, free = list[float](), 0
        for k in map(int, np.flatnonzero(slope * longest > least_mV)):
            for width in range(1, min(_JUMP_SAMPLES, len(dv) - k) + 1):
                span = float(self.times_ms[k + width] - self.times_ms[k])
                total = abs(float(self.v_mV[k + width] - self.v_mV[k]))
                around = max(*padded[k : k + 2], *padded[k + width + 2 : k + width + 4])
                if (
                    k >= free
                    and span <= longest * (1 + _UNEVEN)
                    and abs(dv[k]) > 0.1 * total
                    and total > max(least_mV, noise)
                    and total > 4 * around * span
                ):
                    late = dt[k] <= sampling_ms * (1 + _UNEVEN)
                    found.append(float(self.times_ms[k + 1 if late else k]))
                    free = k + width
        return np.array(found)


@dataclass(frozen=True)
class Exchange:
    """A concentration, mM, that follows its target with a time constant.

    It is ``offset + slope * (t - origin) + away * exp(-(t - origin)/tau)``; the time t and its
    origin count from the start of the sweep.
    """

    offset_mM: float
    slope_mM_per_ms: float
    away_mM: float
    tau_ms: float
    origin_ms: float

    def voltage(self, t_ms: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
        """Return the concentration at times t_ms in the sweep, mM, never below 0."""
        t = np.asarray(t_ms, dtype=float) - self.origin_ms
        follows = self.offset_mM + self.slope_mM_per_ms * t
        return np.maximum(follows + self.away_mM * np.exp(-t / self.tau_ms), 0.0)


Wave = Constant | Ramp | Sines | Samples | Exchange


def shifted(wave: Wave, by_mV: float) -> Wave:
    """Return a wave with `by_mV` added to its voltages.

    They are rounded to 1e-9 mV, so that a shift by the negative gives such voltages back.
    """
    if isinstance(wave, Constant):
        return Constant(round(wave.v_mV + by_mV, _VOLTAGE_DIGITS))
    if isinstance(wave, Ramp):
        ends = (wave.v_start_mV, wave.v_end_mV)
        return Ramp(*(round(v + by_mV, _VOLTAGE_DIGITS) for v in ends))
    if isinstance(wave, Sines):
        return replace(wave, offset_mV=round(wave.offset_mV + by_mV, _VOLTAGE_DIGITS))
    if isinstance(wave, Exchange):
        raise TypeError("a concentration is not shifted as a voltage is")
    return Samples(wave.times_ms, np.round(wave.v_mV + by_mV, _VOLTAGE_DIGITS))


@dataclass(frozen=True)
class Segment:
    """The part [start_ms, end_ms) of a sweep, and the voltage in it."""

    start_ms: float
    end_ms: float
    wave: Wave

    @property
    def is_constant(self) -> bool:
        """True if the voltage is held."""
        return isinstance(self.wave, Constant)

    def voltage(self, t_ms: np.ndarray) -> np.ndarray:
        """Return the voltage at times t_ms in the sweep, mV, an array of any shape."""
        return self.wave.voltage(t_ms, self.start_ms, self.end_ms)


@dataclass(frozen=True)
class Command:
    """The part [start_ms, end_ms) of a sweep in which nothing that is commanded jumps.

    Attributes:
        parts: the segments, each at least as long: of the voltage, and of each ligand of a model.
        finest: how far each moves in one step of an integrator at most, in its unit.
    """

    start_ms: float
    end_ms: float
    parts: tuple[Segment, ...]
    finest: tuple[float, ...]

    @property
    def is_constant(self) -> bool:
        """True if all is held."""
        return all(part.is_constant for part in self.parts)

    def levels(self, t_ms: np.ndarray) -> np.ndarray:
        """Return all levels at times t_ms in the sweep, (*t_ms.shape, n_parts); mV, then mM.

        Without ligands the voltages alone, (*t_ms.shape).
        """
        if len(self.parts) == 1:
            return self.parts[0].voltage(t_ms)
        return np.stack([part.voltage(t_ms) for part in self.parts], axis=-1)

    def steps_in(self, begins: np.ndarray, dt: float) -> np.ndarray:
        """Return the number of steps, a power of two, for each stretch of dt ms from `begins` (n,).

        In no step a voltage, or a concentration, moves further than `finest`; nor is one longer
        than a sixteenth of the time constant of an exchange.
        """
        fine = np.clip(begins[:, None] + dt * np.linspace(0, 1, 9), self.start_ms, self.end_ms)
        needed = np.ones(len(begins))
        for part, finest in zip(self.parts, self.finest, strict=True):
            if isinstance(part.wave, Exchange):
                needed = np.maximum(needed, _STEPS_AN_EXCHANGE * dt / part.wave.tau_ms)
            if not isinstance(part.wave, Exchange) or part.wave.slope_mM_per_ms:
                moved = np.abs(np.diff(part.voltage(fine), axis=1)).max(axis=1) * 8
                # Rounding must not double the steps of a ramp of exactly 1 mV a sample.
                needed = np.maximum(needed, moved / finest * (1 - 1e-9))
        return np.asarray(np.exp2(np.ceil(np.log2(needed))), dtype=np.int64)


def together(rows: Sequence[Sequence[Segment]], finest: Sequence[float]) -> Iterator[Command]:
    """Yield the commands of a sweep, cut wherever a segment of any row ends.

    Arguments:
        rows: segments without a gap, of the voltage and of each ligand, over the same time.
        finest: of each row, see `Command`.
    """
    if len(rows) == 1:
        for segment in rows[0]:
            yield Command(segment.start_ms, segment.end_ms, (segment,), tuple(finest))
        return
    ends = [np.array([segment.end_ms for segment in row]) for row in rows]
    edges = np.unique(np.concatenate([[rows[0][0].start_ms], *ends]))
    for start, end in pairwise(edges.tolist()):
        at = [min(int(np.searchsorted(e, start, side="right")), len(e) - 1) for e in ends]
        parts = tuple(row[k] for row, k in zip(rows, at, strict=True))
        yield Command(start, end, parts, tuple(finest))
