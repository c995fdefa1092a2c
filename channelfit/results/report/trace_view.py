"""The view of one experiment that all its pictures share: units, spans, residuals, enlarged parts.

Pages draw it with Bokeh, images and figures for print with Matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from channelfit.problem.measures import noise_pA
from channelfit.problem.protocol import Protocol
from channelfit.results.report.traces import Traces

#: Time from which on an axis is in seconds, ms.
_LONG_MS = 2000.0
#: Noise above this share of the axis makes a band that is broader than a fit's line.
_BAND = 0.0025
#: Up to so many samples are seen one by one.
_FEW = 10
#: The busiest bins that hold this share of all that the currents move are looked at.
_MOVEMENT = 0.9
#: They are worth enlarging when they lie in so many places or fewer, in this share of the time or
#: less: else the whole picture shows them as well.
_PLACES, _TIME = 2, 0.12
_BINS = 400
#: Busy bins closer than this share of the time are one place.
_TOGETHER = 0.04
#: A place with less than this share of the movement is none; the others must hold that much.
_LEAST, _ENOUGH = 0.1, 0.8
#: A place is shown with these shares of its length before and after it.
_BEFORE, _AFTER = 0.2, 0.5
#: Fewer samples than this are a jump: they show no more when they are spread.
_FEWEST = 8
#: Sweeps that are looked at, evenly chosen.
_SWEEPS = 200
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def time_unit(lasts_ms: float) -> tuple[float, str]:
    """Return the factor from ms, and the unit of a time axis of this length."""
    return (1e-3, "s") if lasts_ms >= _LONG_MS else (1.0, "ms")


def current_unit(largest_pA: float) -> tuple[float, str]:
    """Return the factor from pA, and a unit in which the labels of ticks are short."""
    if largest_pA >= 5000:
        return 1e-3, "nA"
    if largest_pA >= 0.05 or largest_pA == 0:
        return 1.0, "pA"
    if largest_pA >= 5e-5:
        return 1e3, "fA"
    power = 3 * math.floor(math.log10(largest_pA) / 3)
    return 10.0**-power, f"{power_of_ten(power)} pA"


def power_of_ten(power: int) -> str:
    """Return a power of ten with its exponent raised, such as 10⁻⁶."""
    return f"10{str(power).translate(_RAISED)}"


def largest(values: np.ndarray) -> float:
    """Return the largest finite value in size; 0 where there is none."""
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def extreme_places(blocks: np.ndarray) -> np.ndarray:
    """Return where the least and the largest finite values of blocks (..., size) are.

    Returns: (..., 2) places within the blocks, in increasing order; 0 where no value is finite.
    """
    finite = np.isfinite(blocks)
    low = np.where(finite, blocks, np.inf).argmin(axis=-1)
    high = np.where(finite, blocks, -np.inf).argmax(axis=-1)
    return np.sort(np.stack([low, high], axis=-1), axis=-1)


def extreme_samples(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Find the samples at which one of several rows is least or largest in a stretch of `size`.

    Arguments:
        rows: each (n_times,); NaN is passed over where a stretch has other values.

    Returns: indices in increasing order; the first and the last sample are among them.
    """
    n = len(rows[0])
    starts = np.arange(0, n, size)
    picks = [np.array([0, n - 1])]
    for row in rows:
        block = np.pad(row, (0, len(starts) * size - n), constant_values=np.nan).reshape(-1, size)
        picks.append((starts[:, None] + extreme_places(block)).ravel())
    return np.unique(np.concatenate(picks))


def stretches(places: np.ndarray, gap: float = 1) -> list[tuple[int, int]]:
    """Return the half-open stretches of indices in which neighbors are at most `gap` apart.

    Arguments:
        places: (n,) increasing, such as the samples at which a mask is true.
    """
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > gap)
    starts = places[np.concatenate([[0], cuts + 1])]
    stops = places[np.concatenate([cuts, [len(places) - 1]])] + 1
    return [(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


class TraceView:
    """One experiment as every picture shows it.

    Attributes:
        traces: recording and fits.
        time_factor, time_unit: from ms to the unit of the time axis.
        current_factor, current_unit: from pA to the unit of the currents.
        residuals: (n_results, n_sweeps, n_times) pA, fit less data, NaN where nothing counts; with
            n_results = 0 without a recording.
        residual_factor, residual_unit: from pA to the unit of the residuals.
        in_view: the currents that an axis must hold, pA: the fits, and the data where they count.
        is_noisy: whether the noise of the recording makes a band that is broader than the line of a
            fit, which is then drawn over the data and not beneath them.
    """

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self.time_factor, self.time_unit = time_unit(float(traces.protocol.times_ms[-1]))
        self.residuals = np.empty((0, 0, 0))
        self.in_view = np.concatenate(traces.results)
        if traces.data is not None:
            data = self.counted(traces.data)
            self.in_view = np.concatenate([self.in_view, data])
            self.residuals = np.array([self.counted(r - traces.data) for r in traces.results])
        self.current_factor, self.current_unit = current_unit(largest(self.in_view))
        self.residual_factor, self.residual_unit = current_unit(largest(self.residuals))
        finite = self.in_view[np.isfinite(self.in_view)]
        self.is_noisy = (
            traces.data is not None
            and finite.size > 0
            and noise_pA(data) > _BAND * float(np.ptp(finite))
        )

    def counted(self, values: np.ndarray) -> np.ndarray:
        """Return (n_sweeps, n_times) values with NaN where the weight is 0."""
        weight = self.traces.weight
        return values if weight is None else np.where(weight > 0, values, np.nan)

    def span(self) -> tuple[float, float]:
        """Return the limits of the time axis, in its unit: all, less long ends without a weight."""
        protocol, weight = self.traces.protocol, self.traces.weight
        t = protocol.times_ms * self.time_factor
        step = float(t[1] - t[0]) if len(t) > 1 else protocol.sampling_ms
        end = float(t[-1]) + step
        if len(t) < _FEW:  # its dots would lie on the edge
            return -step / 2, end
        if weight is None or not (weight > 0).any():
            return 0.0, end
        counted = np.flatnonzero((weight > 0).any(axis=0))
        first, last = float(t[counted[0]]), float(t[counted[-1]])
        room = 0.08 * (last - first) or 0.04 * end
        return max(0.0, first - room), min(end, last + room)

    def zooms_ms(self) -> list[tuple[float, float]]:
        """Find the parts of a sweep that are worth a second, enlarged look, ms."""
        protocol: Protocol = self.traces.protocol
        steps = [protocol.step_times_ms(k) for k in range(protocol.n_sweeps)]
        lasting = np.isfinite(protocol.command())
        currents = [np.where(lasting, result, np.nan) for result in self.traces.results]
        if self.traces.data is not None:
            currents = [self.counted(c) for c in (*currents, self.traces.data)]
        return eventful_stretches(protocol.times_ms, currents, steps)


# --- the parts of a sweep in which nearly everything happens --------------------------------------


def eventful_stretches(
    times: np.ndarray, currents: Sequence[np.ndarray], jumps: Sequence[np.ndarray]
) -> list[tuple[float, float]]:
    """Find the one or two short stretches that hold nearly all movement of the currents.

    Movement is the sum of the sizes of all changes of the current, over the sweeps, above what
    noise would give. A jump of the current together with a step of the command does not count: it
    has no course that could be enlarged.

    Arguments:
        times: (n_times,) ms, evenly spaced.
        currents: each (n_sweeps, n_times) pA, NaN where there is none.
        jumps: per sweep, times of the command's steps, ms.

    Returns: (start, end) of each stretch, ms, within the times where there are currents; an empty
    list where the movement is spread over the sweep.
    """
    seen = np.flatnonzero(np.any([np.isfinite(c).any(axis=0) for c in currents], axis=0))
    if seen.size < 4 * _FEWEST:
        return []
    first, last = float(times[seen[0]]), float(times[seen[-1]])
    step = (last - first) / (seen[-1] - seen[0])
    edges = np.linspace(first, last + step, min(_BINS, int(seen[-1] - seen[0]) + 1) + 1)
    moved = np.sum([_movement(times, current, jumps, edges) for current in currents], axis=0)
    places = _busy(moved, _FEWEST * (len(edges) - 1) / (seen[-1] - seen[0] + 1))
    share = sum(end - start for start, end in places) / (len(edges) - 1)
    if not places or len(places) > _PLACES or share > _TIME:
        return []
    room = [(_BEFORE * (edges[b] - edges[a]), _AFTER * (edges[b] - edges[a])) for a, b in places]
    return [
        (max(first, float(edges[a] - before)), min(last, float(edges[b] + after)))
        for (a, b), (before, after) in zip(places, room, strict=True)
    ]


def _movement(
    times: np.ndarray, current: np.ndarray, jumps: Sequence[np.ndarray], edges: np.ndarray
) -> np.ndarray:
    """Sum how much the current of all sweeps moves in each bin: (n_bins,) pA."""
    moved = np.zeros(len(edges) - 1)
    noise = noise_pA(current)
    tiny = 1e-6 * (times[1] - times[0])
    chosen = np.linspace(0, len(current) - 1, min(len(current), _SWEEPS))
    for k in np.unique(chosen.round().astype(int)):
        known = np.flatnonzero(np.isfinite(current[k]))
        t, y = times[known], current[k, known]
        cuts = np.searchsorted(t, np.asarray(jumps[k]) - tiny)
        for times_between, y_between in zip(np.split(t, cuts), np.split(y, cuts), strict=True):
            place = np.searchsorted(edges, times_between, side="right") - 1
            inside = (place >= 0) & (place < len(moved))
            count = np.bincount(place[inside], minlength=len(moved))
            total = np.bincount(place[inside], y_between[inside], minlength=len(moved))
            used = np.flatnonzero(count)
            if used.size < 2:
                continue
            n = count[used]
            unsure = 3 * noise * np.sqrt(1 / n[1:] + 1 / n[:-1])
            moved[used[1:]] += np.maximum(np.abs(np.diff(total[used] / n)) - unsure, 0)
    return moved


def _busy(moved: np.ndarray, shortest: float) -> list[tuple[int, int]]:
    """Find the places that hold nearly all of the movement, as half-open stretches of bins.

    Arguments:
        moved: (n_bins,) movement in each bin.
        shortest: the least number of bins of a place.
    """
    whole = float(moved.sum())
    if not whole > 0:
        return []
    order = np.argsort(-moved, kind="stable")
    enough = int(np.searchsorted(np.cumsum(moved[order]), _MOVEMENT * whole)) + 1
    bins = np.sort(order[:enough])
    places = stretches(bins, _TOGETHER * len(moved))
    places = [(a, b) for a, b in places if b - a >= shortest and moved[a:b].sum() >= _LEAST * whole]
    held = sum(float(moved[a:b].sum()) for a, b in places)
    return places if held >= _ENOUGH * whole else []
