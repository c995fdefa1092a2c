"""The starter fit that `channelfit init` writes: a model chosen by what the current looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.problem.inspection import Inspection
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError
from channelfit.reading.shipped import shipped_folder
from channelfit.results.report.terminal import short_number

#: Shares of the peak: less is left at the end of a step of an inactivating current, and a tail that
#: needs so many times the conductance of the step before it says that the step inactivated it.
_LEFT, _HOOK = 0.6, 1.5
#: Samples at rest before the first step that give a baseline.
_LEAST_REST = 5
#: A leak below this share of the channel's conductance needs no term.
_LITTLE = 0.003
#: mV: nearer to the reversal potential a current says little about the conductance.
_DRIVE = 15.0
#: Where the reversal potential is looked for, mV, if the peaks do not show it.
_OUTWARD, _INWARD, _MIXED = (-110.0, -60.0), (20.0, 90.0), (-60.0, 10.0)
_AROUND = 30.0


@dataclass(frozen=True)
class CurrentKind:
    """The kind of current in a recording, from which a starter model follows.

    Attributes:
        inactivating: whether it decays although the voltage stays, or recovers when it leaves.
        opens_down: whether hyperpolarization opens the channel.
        inward: whether its largest current is inward.
        reversal_mV: the range in which the reversal potential is looked for.
        conductance_nS: the least conductance that carries the largest current.
        leak_nS: the leak at most; None where the recording does not show it.
        leak_reversal_mV: where the leak carries no current once the baseline is subtracted; None
            where no baseline is.
        reason: all of this in words.
    """

    inactivating: bool
    opens_down: bool
    inward: bool
    reversal_mV: tuple[float, float]
    conductance_nS: float
    leak_nS: float | None
    leak_reversal_mV: float | None
    reason: str


def current_kind(found: Inspection) -> CurrentKind:
    """Return what kind of current an inspected recording shows.

    Raises:
        InputError: the current or the protocol is not known, or they do not fit each other.
    """
    protocol, peak = found.protocol, found.peak
    if found.current is None or protocol is None or peak is None:
        what = "current" if found.current is None else "protocol"
        text = f"no {what} is known of it, which a fit needs"
        if found.current is not None and protocol is not None:
            text = "its samples are not those of its protocol"
        raise InputError(f"{text}; look at it with `channelfit inspect`", found.file)
    held, v = protocol.holding_mV, peak.voltage_mV
    segment, before = _segment_at(protocol, peak.sweep, peak.time_ms)
    is_tail = before - v > _DRIVE and before > held + _DRIVE
    opens_down = v < held - _DRIVE and not is_tail
    inward = peak.current_pA < 0
    way = "inward" if inward else "outward"
    words = [f"the largest current is {way}, {short_number(peak.raw_pA)} pA at {v:.4g} mV"]
    if is_tail:
        step = _step_before(found, segment[0])
        reversal = _INWARD if _inward_before(found, segment[0]) else _OUTWARD
        hook = abs(peak.current_pA) / _drive(v, reversal) > _HOOK * step / _drive(before, reversal)
        words.append(f"it is a tail after {before:.4g} mV")
        inactivating = hook
        if hook:
            words.append("it needs more open channels than the step before it had")
    else:
        reversal = _reversal(found, opens_down, inward)
        left = _share_left(found, segment[1])
        words.append(f"{100 * max(left, 0.0):.0f} % of it is left at the end of its step")
        inactivating = left < _LEFT and segment[1] - peak.time_ms > 2 * found.sampling_ms
    if opens_down:
        words.append("hyperpolarization opens the channel")
    conductance = abs(peak.current_pA) / _drive(v, reversal)
    return CurrentKind(
        inactivating,
        opens_down,
        inward,
        reversal,
        conductance,
        None if found.leak is None else found.leak.conductance_nS,
        held if rest_ms(found) else None,
        "; ".join(words),
    )


def rest_ms(found: Inspection) -> float:
    """Return how long, ms, every sweep rests at the holding potential first; 0 if too short."""
    protocol = found.protocol
    assert protocol is not None
    command = protocol.command()
    away = np.abs(command - protocol.holding_mV) > 1.0
    samples = [int(row.argmax()) for row in away if row.any()]
    rest = min(samples, default=0) * protocol.sampling_ms
    return rest if min(samples, default=0) >= _LEAST_REST else 0.0


def _segment_at(protocol: Protocol, sweep: int, time: float) -> tuple[tuple[float, float], float]:
    """Return start and end, ms, of the segment at a time, and the voltage just before it, mV."""
    before = protocol.holding_mV
    for s in protocol.sweeps[sweep]:
        if s.start_ms <= time < s.end_ms or s is protocol.sweeps[sweep][-1]:
            return (s.start_ms, s.end_ms), before
        before = float(s.voltage(np.array([s.end_ms]))[0])
    raise AssertionError("a sweep without segments")


def _mean_current(found: Inspection, start: float, end: float) -> float:
    """Return the mean current of the peak's sweep between two times, less that at rest, pA."""
    assert found.peak is not None
    sweep, h = found.peak.sweep, found.sampling_ms
    first, last = math.ceil(start / h - 1e-6), math.ceil(end / h - 1e-6)
    values = found.current_pA[sweep, first : max(last, first + 1)]
    return float(np.nanmean(values) - np.nan_to_num(found.held_pA[sweep]))


def _share_left(found: Inspection, end: float) -> float:
    """Return which share of the peak is left at the end of its segment."""
    assert found.peak is not None
    room = max(0.1 * (end - found.peak.time_ms), 2 * found.sampling_ms)
    return _mean_current(found, end - room, end) / found.peak.current_pA


def _step_before(found: Inspection, start: float) -> float:
    """Return the size of the current just before a segment begins, pA."""
    room = max(5 * found.sampling_ms, 0.5)
    return abs(_mean_current(found, max(start - room, 0.0), start))


def _drive(v: float, reversal: tuple[float, float]) -> float:
    """Return the distance of a voltage from the middle of a range, mV, at least `_DRIVE`."""
    return max(abs(v - sum(reversal) / 2), _DRIVE)


def _inward_before(found: Inspection, start: float) -> bool:
    """Return whether the largest current of the segment that ends at a time, ms, is inward."""
    assert found.peak is not None
    assert found.protocol is not None
    sweep, h = found.peak.sweep, found.sampling_ms
    segment = next(s for s in found.protocol.sweeps[sweep] if abs(s.end_ms - start) < h)
    first, last = math.ceil((segment.start_ms + found.transient_ms) / h), math.ceil(start / h)
    values = found.current_pA[sweep, first:last] - np.nan_to_num(found.held_pA[sweep])
    if not np.isfinite(values).any():
        return False
    low, high = np.nanpercentile(values, [1, 99])
    return bool(-low > high)


def _reversal(found: Inspection, opens_down: bool, inward: bool) -> tuple[float, float]:
    """Return the range of the reversal potential, mV: about where the peaks change their sign."""
    assert found.peak is not None
    assert found.protocol is not None
    usual = _MIXED if opens_down else _INWARD if inward else _OUTWARD
    if opens_down or not inward:
        return usual
    level, values = _step_levels(found.protocol), found.peak.by_sweep_pA
    if level is None:
        return usual
    order = np.argsort(level)
    v, i = level[order], values[order]
    after = np.flatnonzero((i[:-1] < 0) & (i[1:] >= 0) & (v[:-1] > found.peak.voltage_mV))
    if not after.size:
        return usual
    k = int(after[0])
    crossing = 5 * round(float(v[k] - i[k] * (v[k + 1] - v[k]) / (i[k + 1] - i[k])) / 5)
    return crossing - _AROUND, crossing + _AROUND


def _step_levels(protocol: Protocol) -> np.ndarray | None:
    """Return the voltage of the step that varies between sweeps, (n_sweeps,) mV; None without."""
    command = protocol.command()
    spread = np.nan_to_num(np.ptp(command, axis=0))
    at = int(spread.argmax())
    return command[:, at] if protocol.n_sweeps > 2 and spread[at] > 0 else None


# --- the model -----------------------------------------------------------------------------------


def model_document(kind: CurrentKind, name: str) -> dict[str, Any]:
    """Return a model of one or two gates for such a current, by the keys of a model file."""
    sign = "-" if kind.opens_down else ""
    back = "" if kind.opens_down else "-"
    power = 1 if kind.opens_down else 3 if kind.inactivating and kind.inward else 2
    rate = {"range": [1e-06, 100], "unit": "1/ms", "scale": "log"}
    slope = {"range": [0, 0.2], "unit": "1/mV"}
    power = 1 if kind.inactivating and not kind.inward else power
    gates: dict[str, Any] = {
        "m": {
            "power": power,
            "alpha": f"am*exp({sign}zam*v)",
            "beta": f"bm*exp({back}zbm*v)",
        }
    }
    parameters: dict[str, Any] = {"am": rate, "zam": slope, "bm": rate, "zbm": slope}
    if kind.inactivating:
        gates["h"] = {
            "power": 1,
            "alpha": f"ah*exp({back}zah*v)",
            "beta": f"bh*exp({sign}zbh*v)",
        }
        parameters |= {"ah": rate, "zah": slope, "bh": rate, "zbh": slope}
    parameters["g"] = {"range": conductance_range(kind), "unit": "nS", "scale": "log"}
    parameters["erev"] = {"range": [float(x) for x in kind.reversal_mV], "unit": "mV"}
    current: dict[str, Any] = {"current": {"conductance": "g", "reversal": "erev"}}
    if kind.leak_nS is None or kind.leak_nS > _LITTLE * kind.conductance_nS:
        most = kind.conductance_nS if kind.leak_nS is None else 3 * kind.leak_nS
        current["leak"] = {"conductance": "gl", "reversal": "el"}
        parameters["gl"] = {"range": [0, float(f"{most:.2g}")], "unit": "nS"}
        if kind.leak_reversal_mV is None:
            parameters["el"] = {"range": [-120, 30], "unit": "mV"}
        else:
            current["leak"]["reversal"] = f"{kind.leak_reversal_mV:g} mV"
    return {"name": name, "gates": gates, **current, "parameters": parameters}


def conductance_range(kind: CurrentKind) -> list[float]:
    """Return a range from less than carries the largest current, all channels open, to 50 times."""
    return [float(f"{factor * kind.conductance_nS:.2g}") for factor in (0.5, 50.0)]


def shipped_models() -> dict[str, Path]:
    """Return the model files that are installed with the program, by name; there may be none."""
    folder = shipped_folder()
    if folder is None:
        return {}
    models = folder / "models"
    files = [*sorted(models.glob("*.yaml")), *sorted(models.glob("published/*.yaml"))]
    return {file.stem: file for file in files}
