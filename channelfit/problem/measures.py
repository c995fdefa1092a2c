"""Measures of cell and clamp in a recording, before any model: noise, leak, transients, peak.

All of these are estimates for a first look. None of them enters a fit by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Ramp

#: The number of sweeps, evenly chosen, from which the noise is estimated.
_SWEEPS = 200
#: mV: channels that open on depolarization are closed below; there the current is mostly leak.
_CLOSED = -60.0
#: mV: hardly any channel opens below.
_SURELY_CLOSED = -75.0
#: mV: steps and ramps over less say nothing about a leak or a transient.
_LEAST_STEP = 5.0
#: ms after a step in which a capacitive transient is looked for, and the share of its height at
#: which it is over.
_LONGEST, _OVER = 5.0, 0.01
#: Samples on either side of a smoothed peak among which the true one is.
_REACH = 2
#: The least size of a transient, in standard deviations of the noise.
_SEEN = 6.0


def noise_pA(current: np.ndarray) -> float:
    """Estimate the standard deviation of the noise between neighboring samples, pA.

    It comes from third differences, which hardly see a current that changes over several samples,
    and from their median, which does not see jumps; the result is the median over the sweeps.
    Filtered noise is underestimated.

    Arguments:
        current: (n_sweeps, n_times) pA; NaN is left out.
    """
    found = []
    chosen = np.linspace(0, len(current) - 1, min(len(current), _SWEEPS)).round().astype(int)
    for row in current[np.unique(chosen)]:
        known = row[np.isfinite(row)]
        if known.size >= 8:
            # third differences of independent noise have 1 + 9 + 9 + 1 times its variance
            found.append(float(np.median(np.abs(np.diff(known, 3)))) * 1.4826 / np.sqrt(20))
    return float(np.median(found)) if found else 0.0


@dataclass(frozen=True)
class Leak:
    """The line through the currents at voltages where channels are mostly closed.

    Attributes:
        conductance_nS: its slope: the leak at most, since open channels would add to it.
        reversal_mV: where it meets zero current.
        source: the voltages that it comes from, in words.
    """

    conductance_nS: float
    reversal_mV: float
    source: str

    @property
    def seal_MOhm(self) -> float:
        """The resistance that would leak so much; infinite where nothing leaks."""
        return 1e3 / self.conductance_nS if self.conductance_nS > 0 else math.inf


def leak(current: np.ndarray, protocol: Protocol, blank_ms: float) -> Leak | None:
    """Return the largest possible leak, from steps and ramps before the command exceeds -60 mV.

    Arguments:
        current: (n_sweeps, n_times) pA.
        blank_ms: the duration of the capacitive transient after a step.

    Returns: None where the protocol has no such steps or ramps.
    """
    for highest in (_SURELY_CLOSED, _CLOSED):
        if found := _leak_below(max(highest, protocol.holding_mV), current, protocol, blank_ms):
            return found
    return None


def _leak_below(
    highest_mV: float, current: np.ndarray, protocol: Protocol, blank_ms: float
) -> Leak | None:
    """Return the leak before the command first exceeds a voltage, or None."""
    early, late = list[tuple[float, ...]](), list[tuple[float, ...]]()
    skip = math.ceil(blank_ms / protocol.sampling_ms)
    command = protocol.command()
    for k, sweep in enumerate(protocol.sweeps):
        for segment, (a, b) in zip(sweep, protocol.sample_ranges(k), strict=True):
            volts, known = command[k, a:b], np.isfinite(current[k, a:b])
            if not volts.size or volts.max() > highest_mV:
                break
            inner = slice(skip if a else 0, None)
            v, i = volts[inner][known[inner]], current[k, a:b][inner][known[inner]]
            if v.size < 4:
                continue
            if isinstance(segment.wave, Ramp) and np.ptp(v) >= _LEAST_STEP:
                return _leak(*_line(v, i), f"the ramp {v[0]:.4g} to {v[-1]:.4g} mV")
            if segment.is_constant:
                n = max(4, v.size // 8)
                early.append((float(v[0]), float(i[:n].mean())))
                late.append((float(v[0]), float(i[-n:].mean())))
    points = [np.array(each).T for each in (early, late) if each]
    points = [each for each in points if np.ptp(each[0]) >= _LEAST_STEP]
    if not points:
        return None
    v = points[0][0]
    line = min(_line(*each) for each in points)
    return _leak(*line, f"steps between {v.min():.4g} and {v.max():.4g} mV")


def _leak(slope: float, offset: float, source: str) -> Leak:
    """Return the leak of a line: its slope, nS, and its current at 0 mV, pA."""
    return Leak(max(slope, 0.0), -offset / slope if slope else math.nan, source)


def _line(v: np.ndarray, i: np.ndarray) -> tuple[float, float]:
    """Return slope, nS, and current at 0 mV, pA, of the least-squares line."""
    middle = v.mean()
    slope = float((v - middle) @ (i - i.mean()) / ((v - middle) @ (v - middle)))
    return slope, float(i.mean() - slope * middle)


def transient_ms(current: np.ndarray, protocol: Protocol, noise: float) -> float:
    """Return how long the capacitive transients after steps last, ms; 0 where none are seen.

    A transient is the part of the current after a step that is proportional to the step, in all
    steps of the recording together, and that is over within 5 ms.

    Arguments:
        current: (n_sweeps, n_times) pA.
        noise: standard deviation of a sample, pA.
    """
    h = protocol.sampling_ms
    size = max(8, math.ceil(_LONGEST / h))
    steps, highest, courses = _after_steps(current, protocol, size)
    if not steps.size:
        return 0.0
    # where channels are closed a current that follows a step is the clamp's alone
    for limit in (_SURELY_CLOSED, _CLOSED, math.inf):
        closed = highest <= limit
        if closed.any():
            break
    steps, courses = steps[closed], courses[closed]
    weight = np.where(np.isfinite(courses), steps[:, None], 0.0)
    squares = (weight**2).sum(axis=0)
    seen = squares > 0.3 * squares.max()
    response = np.nan_to_num(courses * weight).sum(axis=0)[seen] / squares[seen]
    if response.size < 6:
        return 0.0
    apart = np.abs(response - np.median(response[-response.size // 3 :]))
    top = int(apart[: max(3, response.size // 2)].argmax())
    if apart[top] * np.abs(steps).max() < _SEEN * noise:
        return 0.0
    small = max(_OVER * apart[top], 3 * noise / math.sqrt(float(squares.max())))
    over = np.flatnonzero(apart[top:] <= small)
    lasts = (top + int(over[0]) if over.size else response.size) * h
    grid = 0.1 if lasts < 1 else 0.5
    return min(round(math.ceil(lasts / grid - 1e-6) * grid, 9), _LONGEST)


def _after_steps(
    current: np.ndarray, protocol: Protocol, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps of all sweeps and the current after them.

    Returns:
        The sizes of the steps and the higher of their voltages, (n_steps,) mV; and the current
        after each, less that before it, (n_steps, size) pA, NaN from the next step on.
    """
    command = protocol.command()
    places = [
        (k, at, end)
        for k in range(protocol.n_sweeps)
        for at, end in pairwise([*_step_samples(protocol, k), protocol.n_times(k)])
        if at >= 2 and end - at >= 4
    ]
    k, at, end = np.array(places, dtype=int).reshape(-1, 3).T
    steps = command[k, at] - command[k, at - 1]
    before = _from_to(current, k, np.maximum(0, at - 5), at - 1, 4)
    good = (np.abs(steps) >= _LEAST_STEP) & np.isfinite(before).any(axis=1)
    k, at, end, before = k[good], at[good], end[good], before[good]
    known = ~np.isnan(before)
    mean = np.where(known, before, 0.0).sum(axis=1) / known.sum(axis=1)
    courses = _from_to(current, k, at, end, size) - mean[:, None]
    return steps[good], np.maximum(command[k, at - 1], command[k, at]), courses


def _step_samples(protocol: Protocol, sweep: int) -> list[int]:
    """Return the samples at which the command of a sweep jumps."""
    return [round(float(t) / protocol.sampling_ms) for t in protocol.step_times_ms(sweep)]


def _from_to(
    current: np.ndarray, sweep: np.ndarray, first: np.ndarray, end: np.ndarray, size: int
) -> np.ndarray:
    """Return stretches of the current, (n, size) pA, which are NaN from their ends on.

    Arguments:
        sweep, first, end: (n,) of each stretch.
    """
    places = first[:, None] + np.arange(size)
    inside = places < end[:, None]
    found = current[sweep[:, None], np.where(inside, places, 0)]
    return np.where(inside, found, np.nan)


@dataclass(frozen=True)
class Peak:
    """The largest current outside of capacitive transients, less that at the holding potential.

    Attributes:
        current_pA: with its sign.
        sweep: counted from 0.
        time_ms: from the start of the sweep.
        voltage_mV: the command at that time.
        by_sweep_pA: (n_sweeps,) the largest of every sweep.
        raw_pA: the largest of this sweep within two samples of it, as it was recorded.
    """

    current_pA: float
    sweep: int
    time_ms: float
    voltage_mV: float
    by_sweep_pA: np.ndarray
    raw_pA: float


def holding_pA(current: np.ndarray, protocol: Protocol | None) -> np.ndarray:
    """Return the mean current of each sweep at the holding potential, (n_sweeps,) pA.

    It is taken before the command first changes; without a protocol, or where a sweep begins with a
    step, it is the mean of the sweep's first twentieth.
    """
    found = np.empty(len(current))
    for k, row in enumerate(current):
        n = max(1, len(row) // 20)
        if protocol is not None:
            away = np.abs(protocol.command()[k] - protocol.holding_mV) > 1.0
            n = int(away.argmax()) if away.any() and away.argmax() > 0 else n
        known = row[:n][np.isfinite(row[:n])]
        found[k] = known.mean() if known.size else math.nan
    return found


def find_peak(
    smooth: np.ndarray,
    held: np.ndarray,
    protocol: Protocol,
    blank_ms: float,
    raw: np.ndarray | None = None,
) -> Peak | None:
    """Return the largest current that no transient explains; None where there is none.

    Arguments:
        smooth: (n_sweeps, n_times) pA, without spikes of single samples.
        raw: the same as it was recorded, from which the peak's true height is taken.
        held: (n_sweeps,) pA, the current at the holding potential.
        blank_ms: the duration of the transients after steps.
    """
    t, command = protocol.times_ms, protocol.command()
    apart = smooth - np.nan_to_num(held)[:, None]
    apart[~np.isfinite(command)] = np.nan
    for k in range(protocol.n_sweeps):
        for step in protocol.step_times_ms(k):
            apart[k, (t >= step - 1e-9) & (t < step + blank_ms)] = np.nan
    if not np.isfinite(apart).any():
        return None
    size = np.nan_to_num(np.abs(apart), nan=-1.0)
    each = size.argmax(axis=1)
    by_sweep = apart[np.arange(len(apart)), each]
    sweep = int(size.max(axis=1).argmax())
    at = int(each[sweep])
    peak = float(by_sweep[sweep])
    height = peak
    if raw is not None:
        near = np.where(np.isfinite(apart[sweep]), raw[sweep] - np.nan_to_num(held[sweep]), np.nan)
        near = near[max(0, at - _REACH) : at + _REACH + 1] * math.copysign(1.0, peak)
        height = float(np.nanmax(near)) * math.copysign(1.0, peak)
    return Peak(peak, sweep, float(t[at]), float(command[sweep, at]), by_sweep, height)


def run_down(by_sweep: np.ndarray, protocol: Protocol) -> float | None:
    """Return the relative change of the peaks from first to last sweep, along a straight line.

    Arguments:
        by_sweep: (n_sweeps,) the peak of every sweep, pA.

    Returns: None where the sweeps differ, or are fewer than three.
    """
    n = len(by_sweep)
    commanded = protocol.sweeps, *(x for c in protocol.ligands for x in (c.targets, c.holding_mM))
    alike = all(sweep == sweeps[0] for sweeps in commanded for sweep in sweeps)
    if n < 3 or not alike or not np.isfinite(by_sweep).all():
        return None
    slope, start = np.polyfit(np.arange(n), by_sweep, 1)
    return float(slope * (n - 1) / start) if start else None
