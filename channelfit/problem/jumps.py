"""A check, before any model, that the jumps of a current follow those of a staircase.

When the voltage jumps, the current charges the membrane and flows through open channels: at once it
is a multiple of the jump. Where it is no multiple of the command's jumps, but of those of the same
voltages in another order, the recording was made under another protocol. That order is found by
dynamic programming over the voltages of the segments (Viterbi 1967, IEEE Trans Inf Theory 13:260).
Any jumps are explained in part by some order; the same jumps shuffled show how large that part is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from channelfit.problem.protocol import Protocol

#: ms and samples after a step in which the current at once is looked for, and samples before it.
_AT_ONCE_MS, _LEAST_SAMPLES, _MOST_SAMPLES, _BEFORE = 1.0, 4, 12, 10
#: Sweeps of fewer steps than this are not judged, nor, since it takes long, those of more steps
#: times their voltages squared.
_LEAST_STEPS, _MOST_WORK = 8, 20_000
#: The standard deviations of the noise that a jump must exceed, and the share of steps that have
#: one.
_SEEN, _SHARE = 5.0, 0.7
#: Jumps agree up to this share of the larger, and mV.
_TOLERANCE, _TOLERANCE_MV = 0.4, 1.0
#: The penalty of a voltage other than the protocol's, in steps that do not agree.
_ANOTHER = 0.1
#: The voltages, mV, that the median jump of the current may stand for, of either sign.
_WORTH_MV = np.geomspace(8.0, 120.0, 25)
#: The number of steps by which the other order must agree better; the share of all steps, and of
#: those left by an order of shuffled jumps, that it may leave; and how often jumps are shuffled.
_MORE, _LEFT, _OF_SHUFFLED, _SHUFFLES = 2.0, 0.1, 0.65, 20
#: The current must jump against the command at this share of the steps; at one, where the other
#: order has two voltages changed at most. Spikes and what flows through open channels may have
#: different signs, but they do not look like an order then.
_AGAINST, _TWO = 0.18, 2


@dataclass(frozen=True)
class OtherOrder:
    """An order of the voltages that explains the jumps of a current as the protocol's does not.

    Attributes:
        steps: the number of steps that were examined.
        astray, still_astray: the numbers of steps at which the current does not jump with the
            command, and with the other order.
        sweep, time_ms: the step at which the two differ most; the sweep counts from 0.
        jump_mV, like_mV: the jump of the command there, and that of the other order.
    """

    steps: int
    astray: int
    still_astray: int
    sweep: int
    time_ms: float
    jump_mV: float
    like_mV: float


def other_order(protocol: Protocol, current: np.ndarray) -> OtherOrder | None:
    """Look for another order of a staircase's voltages that explains the jumps of a current.

    Arguments:
        current: (n_sweeps, n_times) pA; NaN where it is not known.

    Returns: None where the protocol explains them, or where they do not suffice to judge.
    """
    steps = _SegmentJumps.of(protocol, current)
    if steps is None:
        return None
    seen = [jumps for jumps in steps.jumps_pA.T if steps.are_seen(jumps)]
    nominal = [steps.ordered(jumps, moved=False) for jumps in seen]
    own = min(nominal, key=lambda order: order.left, default=None)
    if own is None or own.left < _MORE:
        return None
    count = steps.known.sum()
    against = min(steps.against(jumps) for jumps in seen) / count
    if against == 0:  # before other orders are looked for, which takes long
        return None
    found = [steps.ordered(jumps) for jumps in seen]
    best = int(np.argmin([order.left for order in found]))
    other, jumps = found[best], seen[best]
    few = steps.moved(other) <= _TWO
    if other.left > min(own.left - _MORE, _LEFT * count) or not (few or against >= _AGAINST):
        return None
    random = np.random.Generator(np.random.Philox(0))
    for _ in range(_SHUFFLES):
        shuffled = jumps.copy()
        shuffled[steps.known] = random.permutation(jumps[steps.known])
        if other.left > _OF_SHUFFLED * steps.ordered(shuffled).left:
            return None
    return steps.compared(nominal[best], other)


@dataclass(frozen=True, eq=False)
class _Order:
    """Voltages of the segments, and the jumps of a current beside theirs.

    Attributes:
        left: the number of steps that do not agree, plus the penalty of other voltages.
        starts_mV, jumps_mV: (n,) the voltage at the beginning of each segment, and its jump there.
        astray: (n,) how far the current's jump is from that, 0 to 1.
    """

    left: float
    starts_mV: np.ndarray
    jumps_mV: np.ndarray
    astray: np.ndarray


@dataclass(frozen=True, eq=False)
class _SegmentJumps:
    """The segments of all sweeps in a row, and the jumps of the current where each begins.

    Attributes:
        sweep, start_ms: (n,) of each segment.
        first_mV, last_mV: (n,) the voltages at its ends.
        held: (n,) whether its voltage is constant.
        jumps_pA: (n, n_samples) the current after it begins, less that before; NaN where it begins
            a sweep, or is too short.
        noise_pA: the standard deviation of these.
    """

    sweep: np.ndarray
    start_ms: np.ndarray
    first_mV: np.ndarray
    last_mV: np.ndarray
    held: np.ndarray
    jumps_pA: np.ndarray
    noise_pA: float

    @classmethod
    def of(cls, protocol: Protocol, current: np.ndarray) -> _SegmentJumps | None:
        """Return the segments of a protocol; None where it is nothing like a staircase."""
        least = _LEAST_STEPS * protocol.n_sweeps
        if not least < sum(map(len, protocol.sweeps)) <= _MOST_WORK:
            return None
        size = round(_AT_ONCE_MS / protocol.sampling_ms)
        size = min(max(size, _LEAST_SAMPLES), _MOST_SAMPLES)
        rows, jumps, noise = list[tuple[float, ...]](), [], []
        for k, sweep in enumerate(protocol.sweeps):
            before = 0
            for s, (a, b) in zip(sweep, protocol.sample_ranges(k), strict=True):
                first, last = s.voltage(np.array([s.start_ms, s.end_ms]))
                rows.append((k, s.start_ms, first, last, s.is_constant))
                earlier = current[k, max(before, a - _BEFORE) : a]
                long = len(earlier) >= _LEAST_SAMPLES and b - a >= size
                jump = current[k, a : a + size] - earlier.mean() if long else np.nan
                jumps.append(np.broadcast_to(jump, size))
                noise.append(np.diff(earlier).std() / np.sqrt(2) if long else np.nan)
                before = a
        courses = np.array(jumps)
        known = np.isfinite(courses).all(axis=1)
        if known.sum() < least:
            return None
        courses[~known] = np.nan
        usual = float(np.median(np.array(noise)[known]))
        sweep_of, start, first, last, held = np.array(rows).T
        steps = cls(sweep_of, start, first, last, held > 0, courses, usual)
        n_levels = len(steps.levels)
        return steps if n_levels > 2 and len(known) * n_levels**2 <= _MOST_WORK else None

    @cached_property
    def known(self) -> np.ndarray:
        """(n,) whether the jump into each segment is known."""
        return np.asarray(np.isfinite(self.jumps_pA[:, 0]))

    @cached_property
    def levels(self) -> np.ndarray:
        """The voltages that are held, mV."""
        return np.unique(self.first_mV[self.held])

    def are_seen(self, jumps: np.ndarray) -> bool:
        """Return whether jumps (n,) pA stand out of the noise."""
        large = np.abs(jumps[self.known]) > _SEEN * self.noise_pA
        return bool(large.mean() >= _SHARE and np.median(np.abs(jumps[self.known])) > 0)

    def moved(self, order: _Order) -> int:
        """Return how many voltages of an order are not those of the protocol."""
        return int((np.abs(order.starts_mV - self.first_mV) > _TOLERANCE_MV).sum())

    def against(self, jumps: np.ndarray) -> int:
        """Return at how many steps jumps (n,) pA have the opposite of their usual sign.

        Large ones where the command does not jump are among them.
        """
        own, jumps = self._jumps(self.first_mV)[self.known], jumps[self.known]
        still = np.abs(own) <= _TOLERANCE_MV
        large = np.abs(jumps) > _TOLERANCE * np.median(np.abs(jumps))
        up, down = (sign * jumps * own > 0 for sign in (1, -1))
        return int((still & large).sum() + min((up & ~still).sum(), (down & ~still).sum()))

    def _jumps(self, starts: np.ndarray) -> np.ndarray:
        """Return the jumps (n,) mV of voltages (n,) with which the segments begin."""
        ends = np.where(self.held, starts, self.last_mV)
        return np.asarray(starts - np.append(0.0, ends[:-1]))

    def ordered(self, jumps: np.ndarray, moved: bool = True) -> _Order:
        """Return the order that explains jumps (n,) pA best; that of the protocol if not moved."""
        worths = _WORTH_MV / np.median(np.abs(jumps[self.known]))
        worths = np.concatenate([worths, -worths])
        left, ends = np.zeros((len(worths), 1)), np.zeros(1)
        voltages, origins = list[np.ndarray](), list[np.ndarray]()
        for k, own in enumerate(self.first_mV):
            begins = k == 0 or self.sweep[k] != self.sweep[k - 1]
            free = moved and self.held[k] and not begins
            starts = self.levels if free else np.array([own])
            paths = left[:, :, None] + _ANOTHER * (np.abs(starts - own) > _TOLERANCE_MV)
            if self.known[k]:
                paths = paths + self._astray(jumps[k], worths, starts - ends[:, None])
            origins.append(paths.argmin(axis=1))
            voltages.append(starts)
            left, ends = paths.min(axis=1), starts if self.held[k] else self.last_mV[k : k + 1]
        best = int(left.min(axis=1).argmin())
        at, found = int(left[best].argmin()), np.zeros(len(jumps))
        for k in reversed(range(len(jumps))):
            found[k], at = voltages[k][at], int(origins[k][best, at])
        steps, worth = self._jumps(found), worths[[best]]
        astray = [self._astray(j, worth, np.array(v))[0] for j, v in zip(jumps, steps, strict=True)]
        return _Order(float(left[best].min()), found, steps, np.where(self.known, astray, 0.0))

    def _astray(self, jump_pA: float, worths: np.ndarray, jumps_mV: np.ndarray) -> np.ndarray:
        """Return how far a jump is from those of a command, 0 to 1, (n_worths, *jumps_mV.shape)."""
        worths = worths.reshape(-1, *np.ones(jumps_mV.ndim, int))
        like = jump_pA * worths
        scale = _TOLERANCE * np.maximum(np.abs(like), np.abs(jumps_mV)) + _TOLERANCE_MV
        scale = scale + 3 * self.noise_pA * np.abs(worths)
        return np.asarray(np.minimum(1.0, ((like - jumps_mV) / scale) ** 4))

    def compared(self, own: _Order, other: _Order) -> OtherOrder:
        """Return how another order of the steps compares with the protocol's."""
        apart = np.abs(other.jumps_mV - own.jumps_mV) * (own.astray - other.astray)
        at = int(apart.argmax())
        return OtherOrder(
            int(self.known.sum()),
            int((own.astray > 0.5).sum()),
            int((other.astray > 0.5).sum()),
            int(self.sweep[at]),
            float(self.start_ms[at]),
            float(own.jumps_mV[at]),
            float(other.jumps_mV[at]),
        )
