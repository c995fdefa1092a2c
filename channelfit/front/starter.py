"""The starter fit that `channelfit init` writes: a model chosen by the current, and a clamp."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.problem.inspection import LOST_MV, Inspection
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

    Raises InputError: the current or the protocol is not known, or they do not fit each other.
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
        room = max(5 * found.sampling_ms, 0.5)
        step = abs(_mean_current(found, max(segment[0] - room, 0.0), segment[0]))
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


#: What a pipette's resistance, MOhm, and a cell's capacitance, pF, may be; outside of that the file
#: has another unit than its format wants.
_RESISTANCES, _CAPACITANCES = (0.1, 200.0), (0.5, 5000.0)
#: Poles of an amplifier's filter where a file says its cutoff alone.
_POLES = 4
#: The largest prediction that a clamp section takes.
_MOST_PREDICTION = 0.99
#: A compensation above 0 that is smaller was stored as a fraction instead of percent.
_LEAST_COMPENSATION = 0.0101


@dataclass(frozen=True)
class StarterClamp:
    """The clamp that a file describes, and whether the starter fit takes it into account.

    Attributes:
        resistance_MOhm: of pipette and access; None where the file says what cannot be.
        capacitance_pF: of the membrane; None where the file does not say it.
        fraction, prediction: of the compensation, 0 to 1.
        lost_mV: how far the membrane is from the command when the current is largest.
        active: whether the fit has the section; else it is written as comments.
        reason: why, in words that may follow "because".
    """

    resistance_MOhm: float | None
    capacitance_pF: float | None
    fraction: float
    prediction: float
    lost_mV: float
    active: bool
    reason: str

    def lines(self, found: Inspection) -> Iterator[str]:
        """Yield the section as lines of YAML, from `clamp:` on, without indentation.

        There are no lines where the file says what cannot be.
        """
        if self.resistance_MOhm is None:
            return
        yield "clamp:"
        spread = _spread(found, "series_resistance_MOhm", "MOhm")
        yield f"  series_resistance: {self.resistance_MOhm:.6g} MOhm{spread}"
        if self.capacitance_pF is not None:
            spread = _spread(found, "membrane_capacitance_pF", "pF")
            yield f"  membrane_capacitance: {self.capacitance_pF:.6g} pF{spread}"
        parts = {"fraction": self.fraction, "prediction": self.prediction}
        if self.capacitance_pF is None:  # there is nothing to predict then
            del parts["prediction"]
        given = ", ".join(f"{key}: {value:.6g}" for key, value in parts.items() if value > 0)
        if given:
            yield f"  compensation: {{{given}}}"
        if self.capacitance_pF is not None:
            yield "  cancellation: 1    # the amplifier subtracts what charges this capacitance"
        cutoff = found.of_the_clamp("lowpass_kHz")
        if cutoff is not None:
            yield f"  lowpass: {{poles: {_POLES}, cutoff: {cutoff:.6g} kHz}}    # as the file says"
        else:
            yield f"  # lowpass: {{poles: {_POLES}, cutoff: 10 kHz}}    # if it is known"


def starter_clamp(found: Inspection, use_clamp: bool | None) -> StarterClamp | None:
    """Return the clamp of a recording, as far as its file says it.

    A clamp makes scoring some seventy times slower. So it is active where resistance and
    capacitance are known and more than `LOST_MV` are lost when the current is largest, unless the
    user decides.

    Arguments:
        found: the recording, inspected.
        use_clamp: True to take the clamp into account, False to leave it out; None to decide by the
            voltage that is lost.

    Returns: None where the file does not say the series resistance.

    Raises InputError: `use_clamp` is true, and the file does not say the series resistance, or an
    impossible one.
    """
    resistance = found.of_the_clamp("series_resistance_MOhm")
    capacitance = found.of_the_clamp("membrane_capacitance_pF")
    fraction = found.of_the_clamp("compensation") or 0.0
    prediction = found.of_the_clamp("prediction") or 0.0
    if resistance is None:
        if use_clamp:
            raise InputError(
                "the file does not say the series resistance, so that no clamp can be written; "
                "leave --clamp out, and add a section `clamp:` to the fit (docs/clamp.md)",
                found.file,
            )
        return None
    if wrong := _wrong(resistance, capacitance, fraction, prediction):
        if use_clamp:
            raise InputError(
                f"{wrong} Leave --clamp out, and add a section `clamp:` to the fit (docs/clamp.md)",
                found.file,
            )
        return StarterClamp(None, None, 0.0, 0.0, 0.0, False, wrong)
    lost, bound = f"{found.lost_mV:.2g} mV are lost", f"{LOST_MV:g} mV"
    at_peak = f"up to {lost} when the current is largest"
    if use_clamp is not None:
        reason, active = f"you asked for it; {at_peak}", use_clamp
    elif found.lost_mV <= LOST_MV:
        reason, active = f"{at_peak}, no more than {bound}", False
    elif "compensation" not in found.contents.clamp:
        text = "the file does not say how much of the series resistance is compensated, although"
        reason, active = f"{text} without any {at_peak}", False
    elif capacitance is None:
        reason, active = f"the file does not say the capacitance, although {at_peak}", False
    else:
        reason, active = f"{at_peak}, more than {bound}", True
    return StarterClamp(
        resistance,
        capacitance,
        fraction,
        min(prediction, _MOST_PREDICTION),
        found.lost_mV,
        active,
        f"{reason}.",
    )


def _wrong(resistance: float, capacitance: float | None, fraction: float, prediction: float) -> str:
    """Return why the numbers of a file cannot be what its format says; empty where they can be."""
    for what, value, unit, (least, most) in (
        ("series resistance", resistance, "MOhm", _RESISTANCES),
        ("membrane capacitance", capacitance, "pF", _CAPACITANCES),
    ):
        if value is not None and not least <= value <= most:
            return f"the file says a {what} of {value:.3g} {unit}; was it stored in another unit?"
    for what, value in (("compensation", fraction), ("prediction", prediction)):
        if 0 < value < _LEAST_COMPENSATION:
            return f"the file says a {what} of {100 * value:.3g} %; was {1e4 * value:.3g} % meant?"
        if not 0 <= value <= 1:
            return f"the file says a {what} of {100 * value:.3g} %; was it stored in percent?"
    return ""


def _spread(found: Inspection, name: str, unit: str) -> str:
    """Return a comment on a quantity that changes over the sweeps, whose median is taken."""
    values = np.atleast_1d(np.asarray(found.contents.clamp[name], dtype=float))
    low, high = float(values.min()), float(values.max())
    if low == high:
        return ""
    return f"    # {low:.4g} to {high:.4g} {unit} over the sweeps; this is their median"
