"""Measures of action potentials: threshold, peak, width, rate, and others, of every trace."""

from __future__ import annotations

import numpy as np

#: mV/ms: an action potential begins where the voltage rises faster than this.
THRESHOLD_SLOPE = 10.0
#: mV that a peak stands above its threshold at least.
LEAST_HEIGHT = 20.0
#: The names of the measures, with their units.
MEASURES = {
    "rest_mV": "the voltage at time 0",
    "spikes": "how many action potentials there are",
    "latency_ms": "the time of the first peak",
    "threshold_mV": "the voltage at which the first one rises faster than 10 mV/ms",
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


def velocities(voltage: np.ndarray, sampling_ms: float, distances_um: np.ndarray) -> np.ndarray:
    """Return the conduction velocity at each place of a cable from the one before, m/s.

    It is negative where the action potential comes from the other side, and NaN at the first place,
    where none comes, and where it is at both places at once.

    Arguments:
        voltage: (n_traces, n_times, n_sets), all places of a sweep, then the next sweep.
        distances_um: from each place to the next one, (n_places - 1,).

    Returns: (n_traces, n_sets).
    """
    times = np.apply_along_axis(_passing, 1, voltage)
    sweeps = times.reshape(-1, len(distances_um) + 1, times.shape[-1])
    out = np.full(sweeps.shape, np.nan)
    delays = np.diff(sweeps, axis=1)
    delays[np.abs(delays) < _AT_ONCE] = np.nan
    out[:, 1:] = 1e-3 * distances_um[:, None] / (delays * sampling_ms)
    return out.reshape(times.shape)


def _passing(v: np.ndarray) -> float:
    """Return when the voltage first rises through `_PASSING`, in samples, by a cubic; or NaN."""
    above = v >= _PASSING
    rises = np.flatnonzero(above[1:] & ~above[:-1])
    if not len(rises) or not np.isfinite(v).all() or len(v) < 4:
        return float("nan")
    k = int(rises[0])
    first = min(max(k - 1, 0), len(v) - 4)
    cubic = np.polynomial.Polynomial.fit(range(4), v[first : first + 4], 3) - _PASSING
    roots = cubic.roots()
    real = roots.real[np.abs(roots.imag) < 1e-9] + first
    return float(real[np.argmin(np.abs(real - k - 0.5))])


def measures(voltage: np.ndarray, sampling_ms: float) -> dict[str, np.ndarray]:
    """Return the measures of traces (n_sweeps, n_times, n_sets), each (n_sweeps, n_sets).

    NaN where there is no action potential, or the trace failed.
    """
    n_sweeps, _, n_sets = voltage.shape
    out = {name: np.full((n_sweeps, n_sets), np.nan) for name in MEASURES}
    for sweep in range(n_sweeps):
        for k in range(n_sets):
            trace = np.ascontiguousarray(voltage[sweep, :, k])
            if np.isfinite(trace).all():
                for name, value in _of_trace(trace, sampling_ms).items():
                    out[name][sweep, k] = value
    return out


def _of_trace(v: np.ndarray, h: float) -> dict[str, float]:
    """Return the measures of one trace (n_times,), those of the first spike where there is one."""
    found = {"rest_mV": float(v[0]), "spikes": 0.0, "rate_Hz": 0.0}
    spikes = list(_spikes(v, h))
    if not spikes:
        return found
    peaks = [_peak(v, top, h) for _, top in spikes]
    begin, top = spikes[0]
    after = spikes[1][0] if len(spikes) > 1 else len(v)
    rise = np.gradient(v[begin : top + 1], h)
    found |= {
        "spikes": float(len(spikes)),
        "latency_ms": peaks[0][0],
        "threshold_mV": _threshold(v, begin, h),
        "peak_mV": peaks[0][1],
        "slope_mV_per_ms": float(rise.max()),
        "trough_mV": float(v[top:after].min()),
    }
    half = 0.5 * (found["threshold_mV"] + found["peak_mV"])
    found["width_ms"] = _width(v, begin, top, half, h)
    if len(peaks) > 1:
        found["rate_Hz"] = 1e3 * (len(peaks) - 1) / (peaks[-1][0] - peaks[0][0])
    return found


def _spikes(v: np.ndarray, h: float) -> list[tuple[int, int]]:
    """Return where each spike begins, the sample before the slope is reached, and its top."""
    fast = np.diff(v) > THRESHOLD_SLOPE * h
    begins = np.flatnonzero(fast & ~np.append(False, fast[:-1]))
    tops = np.flatnonzero((v[1:-1] >= v[:-2]) & (v[1:-1] > v[2:])) + 1
    found: list[tuple[int, int]] = []
    for begin in begins:
        k = np.searchsorted(tops, begin, "right")
        if k < len(tops) and v[tops[k]] - v[begin] >= LEAST_HEIGHT:
            if not found or begin > found[-1][1]:
                found.append((int(begin), int(tops[k])))
            elif begin < found[-1][1]:  # a stimulus that rose as fast, before the spike did
                found[-1] = (int(begin), int(tops[k]))
    return found


def _peak(v: np.ndarray, top: int, h: float) -> tuple[float, float]:
    """Return time and voltage of a peak, by the parabola through three samples."""
    left, mid, right = v[top - 1 : top + 2]
    bend = left - 2 * mid + right
    shift = 0.5 * (left - right) / bend if bend else 0.0
    return float((top + shift) * h), float(mid - 0.25 * (left - right) * shift)


def _threshold(v: np.ndarray, begin: int, h: float) -> float:
    """Return the voltage at which the slope is reached, between two differences."""
    if begin == 0:
        return float(v[0])
    before, after = (v[begin] - v[begin - 1]) / h, (v[begin + 1] - v[begin]) / h
    share = (THRESHOLD_SLOPE - before) / (after - before)
    middles = 0.5 * (v[begin - 1] + v[begin]), 0.5 * (v[begin] + v[begin + 1])
    return float(middles[0] + share * (middles[1] - middles[0]))


def _width(v: np.ndarray, begin: int, top: int, half: float, h: float) -> float:
    """Return the time above half the height; NaN where the trace ends before."""
    up = begin + int(np.argmax(v[begin : top + 1] >= half))
    below = np.flatnonzero(v[top:] < half)
    if not len(below) or up == 0:
        return float("nan")
    down = top + int(below[0])
    rose = up - 1 + (half - v[up - 1]) / (v[up] - v[up - 1])
    fell = down - 1 + (v[down - 1] - half) / (v[down - 1] - v[down])
    return float((fell - rose) * h)
