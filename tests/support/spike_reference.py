"""Measures of action potentials by a plain loop over traces and spikes, to compare with."""

from __future__ import annotations

import numpy as np

from channelfit.cells.spikes import LEAST_HEIGHT, THRESHOLD_SLOPE


def of_trace(v: np.ndarray, h: float) -> dict[str, float]:
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
