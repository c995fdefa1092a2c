"""The injected current: its mean over every step of the integration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Pulse:
    """A train of equal pulses, of which a single pulse is the shortest.

    Attributes:
        amplitudes: pA, one a sweep; or one for all sweeps.
        start_ms, length_ms: of the first pulse.
        every_ms, count: from one pulse to the next, and how many there are.
    """

    amplitudes: tuple[float, ...]
    start_ms: float
    length_ms: float
    every_ms: float = 0.0
    count: int = 1

    def charge(self, times_ms: np.ndarray) -> np.ndarray:
        """Return the charge until each time, per unit of current: ms."""
        starts = self.start_ms + self.every_ms * np.arange(self.count)
        total = np.zeros(len(times_ms))
        for start in starts:
            total += np.clip(times_ms - start, 0.0, self.length_ms)
        return total


@dataclass(frozen=True)
class Stimulus:
    """The injected current of all sweeps, depolarizing where it is positive.

    Attributes:
        pulses: which add up.
        times_ms, current_pA: a current that is a straight line between these points, and 0 outside
            of them; empty for none.
    """

    pulses: tuple[Pulse, ...] = ()
    times_ms: np.ndarray = field(default_factory=lambda: np.empty(0))
    current_pA: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def n_sweeps(self) -> int:
        """The number of sweeps: that of the amplitudes."""
        return max([len(pulse.amplitudes) for pulse in self.pulses], default=1)

    def means(self, edges_ms: np.ndarray) -> np.ndarray:
        """Return the mean current between each two times, (n_sweeps, n_times - 1) pA.

        The mean is exact, so that a pulse may begin and end within a step.
        """
        out = np.zeros((self.n_sweeps, len(edges_ms)))
        for pulse in self.pulses:
            amplitudes = np.resize(pulse.amplitudes, self.n_sweeps)
            out += amplitudes[:, None] * pulse.charge(edges_ms)
        if len(self.times_ms):
            out += self._recorded_charge(edges_ms)
        return np.diff(out, axis=1) / np.diff(edges_ms)

    def ahead(self, edges_ms: np.ndarray) -> np.ndarray:
        """Return the current at the end of each step, (n_sweeps, n_times - 1) pA.

        Steps end at all `jumps`; what jumps there counts from the next step on.
        """
        out = replace(self, times_ms=np.empty(0)).means(edges_ms)
        if len(self.times_ms):
            ends = edges_ms[1:]
            inside = (ends > self.times_ms[0]) & (ends <= self.times_ms[-1])
            out += np.where(inside, np.interp(ends, self.times_ms, self.current_pA), 0.0)
        return out

    def _recorded_charge(self, edges_ms: np.ndarray) -> np.ndarray:
        t, i = self.times_ms, self.current_pA
        until = np.append(0.0, np.cumsum(0.5 * (i[1:] + i[:-1]) * np.diff(t)))
        inside = np.clip(edges_ms, t[0], t[-1])
        k = np.clip(np.searchsorted(t, inside, "right") - 1, 0, len(t) - 2)
        x = inside - t[k]
        slope = (i[k + 1] - i[k]) / (t[k + 1] - t[k])
        return np.asarray(until[k] + x * (i[k] + 0.5 * slope * x))

    def corners(self) -> np.ndarray:
        """Return the times, ms, at which the current jumps or has a corner."""
        return np.unique(np.append(self.jumps(), self.times_ms))

    def jumps(self) -> np.ndarray:
        """Return the times, ms, at which a pulse, or the recorded current, begins or ends."""
        found = [self.times_ms[[0, -1]]] if len(self.times_ms) else [np.empty(0)]
        for pulse in self.pulses:
            starts = pulse.start_ms + pulse.every_ms * np.arange(pulse.count)
            found += [starts, starts + pulse.length_ms]
        return np.unique(np.concatenate(found))
