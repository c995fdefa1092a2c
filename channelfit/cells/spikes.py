"""Measures of action potentials: threshold, peak, width, rate, and others, of every trace."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from channelfit.scoring.machine.threads import usable_cores

#: mV/ms: an action potential begins where the voltage rises faster than this.
THRESHOLD_SLOPE = 10.0
#: mV that a peak stands above its threshold at least.
LEAST_HEIGHT = 20.0
#: The names of the measures, with their units.
MEASURES = {
    "rest_mV": "the voltage at time 0",
    "spikes": "how many action potentials there are",
    "latency_ms": "the time of the first peak",
    "threshold_mV": "where the first one rises faster than 10 mV/ms, unless the stimulus does so",
    "peak_mV": "the voltage of the first peak",
    "width_ms": "of the first one at half its height above the threshold",
    "slope_mV_per_ms": "the fastest rise of the first one",
    "trough_mV": "the lowest voltage after the first peak, until the next one begins",
    "rate_Hz": "the inverse of the mean interval of peaks; 0 with fewer than two",
}

#: The measure of a trace of a cable that compares it with the one at the place before.
VELOCITY = "velocity_m_per_s"
#: mV: an action potential is at a place when the voltage first rises through this.
_PASSING = -20.0
#: Samples: what is less cannot be seen between them.
_AT_ONCE = 1e-3
#: Halvings of a sample, until nothing changes.
_HALVINGS = 52
#: Numbers that are looked at together, and samples that are turned together: caches hold them.
_BLOCK, _PIECE = 1 << 21, 256


def velocities(voltage: np.ndarray, sampling_ms: float, distances_um: np.ndarray) -> np.ndarray:
    """Return the conduction velocity at each place of a cable from the one before, m/s.

    It is negative where the action potential comes from the other side, and NaN at the first place,
    where none comes, and where it is at both places at once.

    Arguments:
        voltage: (n_traces, n_times, n_sets), all places of a sweep, then the next sweep.
        distances_um: from each place to the next one, (n_places - 1,).

    Returns: (n_traces, n_sets).
    """
    times = np.array([_passing(trace) for trace in voltage])
    sweeps = times.reshape(-1, len(distances_um) + 1, times.shape[-1])
    out = np.full(sweeps.shape, np.nan)
    delays = np.diff(sweeps, axis=1)
    delays[np.abs(delays) < _AT_ONCE] = np.nan
    out[:, 1:] = 1e-3 * distances_um[:, None] / (delays * sampling_ms)
    return out.reshape(times.shape)


def _passing(v: np.ndarray) -> np.ndarray:
    """Return when voltages (n_times, n) first rise through `_PASSING`, in samples, or NaN.

    A cubic through four samples says when.
    """
    n_times, n = v.shape
    out = np.full(n, np.nan)
    if n_times < 4:
        return out
    above = v >= _PASSING
    rises = above[1:] & ~above[:-1]
    k = rises.argmax(axis=0)
    some = np.flatnonzero(rises.any(axis=0) & np.isfinite(v).all(axis=0))
    k = k[some]
    first = np.clip(k - 1, 0, n_times - 4)
    a, b, c, d = (v[first + j, some] - _PASSING for j in range(4))
    low, high = (k - first).astype(float), (k - first + 1).astype(float)
    for _ in range(_HALVINGS):  # the cubic is below 0 at the sample k, and above at the next
        x = 0.5 * (low + high)
        below = (
            -a * (x - 1) * (x - 2) * (x - 3) / 6
            + b * x * (x - 2) * (x - 3) / 2
            - c * x * (x - 1) * (x - 3) / 2
            + d * x * (x - 1) * (x - 2) / 6
        ) < 0
        low, high = np.where(below, x, low), np.where(below, high, x)
    out[some] = first + 0.5 * (low + high)
    return out


def measures(
    voltage: np.ndarray, sampling_ms: float, jumps_ms: Sequence[np.ndarray] = ()
) -> dict[str, np.ndarray]:
    """Return the measures of traces (n_sweeps, n_times, n_sets), each (n_sweeps, n_sets).

    NaN where there is no action potential, or the trace failed.

    Arguments:
        jumps_ms: of each sweep, times at which the stimulus jumps. Where one of them begins the
            rise itself, the threshold cannot be seen, and is NaN.
    """
    n_sweeps, n_times, n_sets = voltage.shape
    out = {name: np.full((n_sweeps, n_sets), np.nan) for name in MEASURES}
    jumps = [np.floor(x / sampling_ms + 1e-6) for x in jumps_ms] or [np.empty(0)] * n_sweeps
    size = max(8, _BLOCK // n_times)  # sets: of these a line of the cache has eight
    blocks = [
        (sweep, slice(k, k + size)) for sweep in range(n_sweeps) for k in range(0, n_sets, size)
    ]

    def measure(block: tuple[int, slice]) -> None:
        sweep, some = block
        for name, values in _of_block(voltage[sweep, :, some], sampling_ms, jumps[sweep]).items():
            out[name][block] = values

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(measure, blocks))
    return out


def _of_block(voltage: np.ndarray, h: float, jumps: np.ndarray) -> dict[str, np.ndarray]:
    """Return the measures of traces (n_times, n), those of the first spike where there is one.

    Arguments:
        jumps: the samples behind which the stimulus jumps.
    """
    n_times, n = voltage.shape
    flat = np.full(n * n_times + 1, np.nan)  # the sample t of trace k is at k n_times + t
    v = flat[:-1].reshape(n, n_times)
    for at in range(0, n_times, _PIECE):
        v[:, at : at + _PIECE] = voltage[at : at + _PIECE].T
    out = {name: np.full(n, np.nan) for name in MEASURES}
    out |= {"rest_mV": v[:, 0].copy(), "spikes": np.zeros(n), "rate_Hz": np.zeros(n)}
    begins, tops = _spikes(flat, n_times, h)
    k, first, counts = np.unique(begins // n_times, return_index=True, return_counts=True)
    if len(k):
        begin, top, several = begins[first], tops[first], counts > 1
        times, peaks = _peaks(flat, tops, n_times, h)
        threshold = _thresholds(flat, begin, n_times, h)
        half = np.full(n, np.nan)
        half[k] = 0.5 * (threshold + peaks[first])
        by_jump = np.isin(begin % n_times, [jumps, jumps + 1])
        # until the next spike begins, or the trace ends
        after = np.where(several, np.append(begins, 0)[first + 1], (k + 1) * n_times)
        intervals = times[first + counts - 1] - times[first]
        out["spikes"][k] = counts
        out["latency_ms"][k] = times[first]
        out["threshold_mV"][k] = np.where(by_jump, np.nan, threshold)
        out["peak_mV"][k] = peaks[first]
        out["trough_mV"][k] = np.minimum.reduceat(flat, np.stack([top, after], 1).ravel())[::2]
        out["rate_Hz"][k[several]] = 1e3 * (counts - 1)[several] / intervals[several]
        out["slope_mV_per_ms"][k], risen = _rises(flat, begin, top, half[k], n_times, h)
        out["width_ms"][k] = (_fallen(v, k, top, half) - risen) * h
        out["width_ms"][k[risen < 0]] = np.nan  # it is above from the first sample on
    failed = ~np.isfinite(v).all(axis=1)
    for values in out.values():
        values[failed] = np.nan
    return out


def _spikes(flat: np.ndarray, n_times: int, h: float) -> tuple[np.ndarray, np.ndarray]:
    """Return where spikes begin, at the sample before the slope is reached, and their tops.

    Both are places in the flat traces, rising.
    """
    with np.errstate(invalid="ignore"):
        steps = flat[1:] - flat[:-1]
    steps[n_times - 1 :: n_times] = np.nan  # to the next trace
    fast = np.append(False, steps > THRESHOLD_SLOPE * h)
    begins = np.flatnonzero(fast[1:] > fast[:-1])
    rises, falls = steps >= 0, steps < 0
    tops = np.flatnonzero(rises[:-1] & falls[1:]) + 1
    next_top = np.searchsorted(tops, begins, "right")
    begins, next_top = begins[next_top < len(tops)], next_top[next_top < len(tops)]
    top = tops[next_top]
    own = (top // n_times == begins // n_times) & (flat[top] - flat[begins] >= LEAST_HEIGHT)
    begins, top = begins[own], top[own]
    # of two with one top, the earlier was a stimulus that rose as fast, before the spike did
    last = np.append(np.diff(top) > 0, np.ones(min(len(top), 1), bool))
    return begins[last], top[last]


def _peaks(
    flat: np.ndarray, tops: np.ndarray, n_times: int, h: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return times and voltages of peaks, by the parabola through three samples."""
    left, mid, right = (flat[tops + j] for j in (-1, 0, 1))
    shift = 0.5 * (left - right) / (left - 2 * mid + right)  # mid > right: it bends
    return (tops % n_times + shift) * h, mid - 0.25 * (left - right) * shift


def _thresholds(flat: np.ndarray, begin: np.ndarray, n_times: int, h: float) -> np.ndarray:
    """Return voltages at which the slope is reached, between two differences."""
    out: np.ndarray = flat[begin]
    inside = begin % n_times > 0
    left, mid, right = (flat[begin[inside] + j] for j in (-1, 0, 1))
    before, after = (mid - left) / h, (right - mid) / h
    share = (THRESHOLD_SLOPE - before) / (after - before)
    out[inside] = 0.5 * (left + mid) + share * 0.5 * (right - left)
    return out


def _rises(
    flat: np.ndarray, begin: np.ndarray, top: np.ndarray, half: np.ndarray, n_times: int, h: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the fastest rise of each spike, mV/ms, and the sample at half its height."""
    lengths = top + 1 - begin
    starts = np.cumsum(lengths) - lengths
    each = np.arange(lengths.sum()) + (begin - starts).repeat(lengths)  # from begin to top
    left = np.maximum(each - 1, begin.repeat(lengths))
    right = np.minimum(each + 1, top.repeat(lengths))
    fastest = np.maximum.reduceat((flat[right] - flat[left]) / ((right - left) * h), starts)
    above = np.where(flat[each] >= half.repeat(lengths), each, top.repeat(lengths))
    up = np.minimum.reduceat(above, starts)
    return fastest, up % n_times - 1 + (half - flat[up - 1]) / (flat[up] - flat[up - 1])


def _fallen(v: np.ndarray, k: np.ndarray, top: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return the sample at which traces k fall to half the height; NaN where they end before."""
    n_times = v.shape[1]
    below = v < half[:, None]
    for trace, until in zip(k, top % n_times, strict=True):
        below[trace, :until] = False
    down = below.argmax(axis=1)[k]
    out = np.full(len(k), np.nan)
    found = below[k, down]
    k, down = k[found], down[found]
    before, after = v[k, down - 1], v[k, down]
    out[found] = down - 1 + (before - half[k]) / (before - after)
    return out
