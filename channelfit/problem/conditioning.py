"""The conditioning of recorded currents before a fit, in the order of the file.

The entries of ``condition:`` are applied one after another, each to the result of the one before:

    condition:
      - baseline: {from: 0 ms, to: 200 ms}
      - leak: {from: 250 ms, to: 700 ms}
      - subtract: {file: after.csv, scale: fit, over: {from: 0 ms, to: 250 ms}}
      - run_down: {from: 20 ms, to: 40 ms}

Each describes its result in words (`Conditioned.notes`), so that a user notices a conductance of
20 nS taken for leak. Nothing is random: the same file gives the same currents to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from channelfit.problem.clamp import LowPass, read_low_pass
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE
from channelfit.reading.documents import Section
from channelfit.reading.errors import shown
from channelfit.reading.keys import KEYS

#: mV that the command must vary by, so that a line through current against voltage means something.
LEAST_SPAN_MV = 5.0
#: Residuals beyond this many standard deviations are transients, and are not used for a line.
_OUTLIER = 4.0
_ROUNDS = 10
#: A fitted scale below this subtracts almost nothing, or adds.
_LEAST_SCALE = 0.1
#: Sweeps whose amplitude fell below this part of the first one's are noise, not current run down.
_LEAST_LEFT = 0.1
#: Keys that a subtracted recording takes from the one it is subtracted from, unless it has them.
_INHERITED = (
    "header",
    "decimal",
    "layout",
    "series",
    "starts",
    "time",
    "sampling",
    "current",
    "sweeps",
    "missing",
)


@dataclass(frozen=True)
class Conditioned:
    """Currents after conditioning.

    Attributes:
        current_pA: (n_sweeps, n_times) pA; NaN where the recording has none.
        notes: the result of each step in words, in order.
        doubts: of each step that looks wrong its key, the finding, and advice.
        low_pass: the filter that was applied to them, and has to be applied to the model's current
            too; None for none.
        every: one of this number of samples is to be fitted, since the filter leaves no changes
            between them.
    """

    current_pA: np.ndarray
    notes: tuple[str, ...] = ()
    low_pass: LowPass | None = None
    every: int = 1
    doubts: tuple[tuple[str, str, str], ...] = ()


@dataclass
class _Currents:
    """Currents on their way through the steps, changed in place.

    Attributes:
        current: (n_sweeps, n_times) pA, NaN where nothing was recorded.
        rows: the sweeps, counted from 0, that were recorded.
        protocol: the command.
        notes, doubts, low_pass, every: as in `Conditioned`.
        name: a prefix of the notes; empty for the main recording.
    """

    current: np.ndarray
    rows: list[int]
    protocol: Protocol
    notes: list[str]
    name: str = ""
    low_pass: LowPass | None = None
    every: int = 1
    doubts: list[tuple[str, str, str]] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.name}: {text}" if self.name else text)


def conditioned(
    section: Section,
    current: np.ndarray,
    rows: list[int],
    protocol: Protocol,
    read_other: Callable[[Section], np.ndarray],
) -> Conditioned:
    """Return currents after the steps that a ``recording:`` mapping names.

    Arguments:
        section: the mapping; its keys ``baseline`` and ``condition`` are read here.
        current: (n_sweeps, n_times) pA, NaN where nothing was recorded; it is not changed.
        rows: the sweeps, counted from 0, that were recorded.
        protocol: what was commanded.
        read_other: the currents (n_sweeps, n_times), pA, of another recording under the same
            protocol, which a step ``subtract`` names, from its mapping.

    Raises InputError: a step that is not known, holds no samples, or finds nothing that it can use;
    with file and key.
    """
    data = _Currents(current.copy(), rows, protocol, [])
    if "baseline" in section:
        _baseline(section.section("baseline"), data)
    steps = _steps(section)
    for k, (name, inner) in enumerate(steps):
        if name == "subtract":
            other = _Currents(read_other(_other(section, inner)), rows, protocol, [], "subtracted")
            if "baseline" in section:
                _baseline(section.section("baseline"), other)
            for before, step in steps[:k]:
                if before != "subtract":
                    _STEPS[before](step, other)
            data.notes += other.notes
            _subtract(inner, data, other.current)
        else:
            _STEPS[name](inner, data)
    return Conditioned(
        data.current, tuple(data.notes), data.low_pass, data.every, tuple(data.doubts)
    )


def _steps(section: Section) -> list[tuple[str, Section]]:
    """Return the steps in their order: the name of each and its mapping."""
    found = []
    for k, entry in enumerate(section.items("condition"), 1):
        step = Section(entry, section.file, section.path(f"condition[{k}]"))
        step.expect(KEYS["condition"])
        if len(step.given()) != 1:
            raise step.error(f"one step was expected, not {len(step.given())}; begin each with -")
        name = step.given()[0]
        found.append((name, step.section(name)))
    return found


def _other(section: Section, inner: Section) -> Section:
    """Return the mapping of a recording to subtract, completed from the main one."""
    inner.expect(KEYS["condition subtract"])
    own = {key: inner.take(key) for key in inner.given() if key in KEYS["recording"]}
    taken = {key: section.take(key) for key in _INHERITED if key in section}
    for one, other in (("time", "sampling"), ("sampling", "time")):
        if one in own:
            taken.pop(other, None)
    return Section({**taken, **own}, inner.file, inner.key)


def within(t: np.ndarray, start: float, end: float, protocol: Protocol) -> np.ndarray:
    """Return which times lie in [start, end), up to rounding."""
    tiny = TIME_TOLERANCE * protocol.sampling_ms
    inside: np.ndarray = (t >= start - tiny) & (t < end - tiny)
    return inside


def _window(section: Section, data: _Currents) -> np.ndarray:
    """Return which samples (n_sweeps, n_times) lie in ``from`` .. ``to`` and were recorded."""
    start, end = section.quantity("from", default=...), section.quantity("to", default=...)
    if start >= end:
        raise section.error(f"from {start:g} ms to {end:g} ms holds no time", "to")
    inside = within(data.protocol.times_ms, start, end, data.protocol)
    found: np.ndarray = inside & np.isfinite(data.current)
    for k in data.rows:
        if not found[k].any():
            lasts = data.protocol.n_times(k) * data.protocol.sampling_ms
            raise section.error(
                f"no sample of sweep {k + 1} lies from {start:g} ms to {end:g} ms; "
                f"it lasts {lasts:g} ms"
            )
    return found


# --- the steps ------------------------------------------------------------------------------------


def _baseline(section: Section, data: _Currents) -> None:
    """Subtract from every sweep its mean over a window."""
    section.expect(KEYS["baseline"])
    window = _window(section, data)
    section.finish()
    _doubt_voltage(section, data, window)
    means = [float(data.current[k, window[k]].mean()) for k in data.rows]
    for k, mean in zip(data.rows, means, strict=True):
        data.current[k] -= mean
    data.note(f"baseline of {_spread(means)} pA subtracted")


def _doubt_voltage(section: Section, data: _Currents, window: np.ndarray) -> None:
    """Doubt a baseline away from the holding potential, where channels may be open."""
    holding = data.protocol.holding_mV
    voltages = data.protocol.command()[data.rows][window[data.rows]]
    farthest = float(voltages[np.argmax(np.abs(voltages - holding))])
    if abs(farthest - holding) > LEAST_SPAN_MV:
        data.doubts.append(
            (
                section.key,
                f"the baseline is taken at {farthest:.4g} mV, away from the holding potential of "
                f"{holding:.4g} mV",
                "current through channels that are open there is subtracted from all samples",
            )
        )


def _leak(section: Section, data: _Currents) -> None:
    """Subtract a current that is a straight line in the command voltage.

    The line is given, or goes through current against command in a window in which the channel is
    closed: a ramp, or a step and what stands before it. Each sweep has its own line where the
    command varies in its window; where it does so only from sweep to sweep, all have one together.
    """
    section.expect(KEYS["condition leak"])
    if data.low_pass is not None:  # the line would jump with the command, and the current does not
        raise section.error("a leak is subtracted before the low-pass filter; put it first")
    command = data.protocol.command()
    reversal = section.quantity("reversal")
    if "conductance" in section:
        g = section.quantity("conductance", default=...)
        if reversal is None:
            raise section.error("a conductance needs its reversal potential beside it", "reversal")
        section.finish()
        lines = dict.fromkeys(data.rows, (g, reversal))
    else:
        window = _window(section, data)
        section.finish()
        lines = _leak_lines(section, data, command, window, reversal)
    for k, (g, e) in lines.items():
        data.current[k] -= g * (command[k] - e)
    sizes, ends = zip(*lines.values(), strict=True)
    data.note(f"leak of {_spread(sizes)} nS that reverses at {_spread(ends)} mV subtracted")


def _leak_lines(
    section: Section,
    data: _Currents,
    command: np.ndarray,
    window: np.ndarray,
    reversal: float | None,
) -> dict[int, tuple[float, float]]:
    """Return conductance, nS, and reversal potential, mV, of the leak of every recorded sweep."""
    spans = {k: float(np.ptp(command[k, window[k]])) for k in data.rows}
    alone = reversal is not None or min(spans.values()) >= LEAST_SPAN_MV
    groups = [[k] for k in data.rows] if alone else [data.rows]
    lines = {}
    for group in groups:
        v = np.concatenate([command[k, window[k]] for k in group])
        i = np.concatenate([data.current[k, window[k]] for k in group])
        if reversal is None and np.ptp(v) < LEAST_SPAN_MV:
            raise section.error(
                f"the command varies by {np.ptp(v):.3g} mV in this window, which gives no line "
                f"of current against voltage; choose a ramp, or a step and what is before it, or "
                "give the leak's reversal potential"
            )
        lines.update(dict.fromkeys(group, _line(section, v, i, reversal)))
    return lines


def _line(
    section: Section, v: np.ndarray, i: np.ndarray, reversal: float | None
) -> tuple[float, float]:
    """Return slope, nS, and zero, mV, of the line through currents at voltages.

    Least squares are repeated without the samples far from the previous line: transients do not
    count.
    """
    kept = np.ones(len(v), dtype=bool)
    slope = offset = 0.0
    for _ in range(_ROUNDS):
        if reversal is not None:
            x = v[kept] - reversal
            if not np.any(np.abs(x) >= LEAST_SPAN_MV):
                raise section.error(f"the command is at the reversal potential {reversal:g} mV")
            slope, offset = float(x @ i[kept] / (x @ x)), 0.0
            offset = -slope * reversal
        else:
            middle = v[kept].mean()
            x = v[kept] - middle
            slope = float(x @ i[kept] / (x @ x))
            offset = float(i[kept].mean()) - slope * middle
        away = np.abs(i - slope * v - offset)
        near = away <= _OUTLIER * 1.4826 * np.median(away[kept]) + 1e-12 * np.abs(i).max()
        usable = near.sum() > len(v) / 2 and (
            reversal is not None or np.ptp(v[near]) >= LEAST_SPAN_MV
        )
        if not usable or (near == kept).all():
            break
        kept = near
    if slope == 0.0:
        return 0.0, reversal if reversal is not None else 0.0
    return slope, -offset / slope


def _subtract(section: Section, data: _Currents, other: np.ndarray) -> None:
    """Subtract another recording under the same command: after a blocker, or scaled subpulses."""
    choice = section.take("scale")
    drift = section.choice("drift")
    scale = None if choice == "fit" else section.number("scale")
    fitted = scale is None or drift != "none"
    windows = _windows(section, data, other) if fitted else None
    if not fitted and "over" in section:
        raise section.error('"over" has no meaning without scale: fit or drift', "over")
    t = data.protocol.times_ms
    scales, moved = [], []
    for k in data.rows:
        columns = [other[k]] if scale is None else []
        columns += [np.ones(len(t))] * (drift != "none") + [t] * (drift == "line")
        rest = data.current[k] - (0.0 if scale is None else scale * other[k])
        found = np.zeros(len(columns))
        if windows is not None:
            inside = windows[k]
            matrix = np.stack(columns, axis=1)[inside]
            size = np.abs(matrix).max(axis=0)
            found, _, rank, _ = np.linalg.lstsq(matrix / size, rest[inside], rcond=1e-12)
            if rank < len(columns) or not size.all():
                raise section.error(
                    f"sweep {k + 1} of the subtracted recording does not vary enough there to "
                    "say its scale and drift",
                    "over",
                )
            found = found / size
        for column, factor in zip(columns, found, strict=True):
            rest = rest - factor * column
        scales.append(float(found[0]) if scale is None else scale)
        own = found[1:] if scale is None else found
        moved.append(float(own[0]) if len(own) else 0.0)
        data.current[k] = rest
    name = Path(section.text("file")).name
    if choice == "fit" and min(scales) < _LEAST_SCALE:
        amount = "with the other sign" if min(scales) < 0 else "hardly at all"
        data.doubts.append(
            (
                section.key,
                f"the scale of the subtraction comes out as {_spread(scales)}: {name} is "
                f"subtracted {amount}",
                "do both recordings hold the same current over this window? Else give the scale",
            )
        )
    note = f"{_spread(scales)} times {name} subtracted"
    data.note(note + (f", and a drift from {_spread(moved)} pA" if drift != "none" else ""))


def _windows(section: Section, data: _Currents, other: np.ndarray) -> np.ndarray:
    """Return which samples lie in the windows ``over`` and are known in both recordings."""
    entries = section.take("over")
    entries = [entries] if isinstance(entries, Mapping) else entries
    if not isinstance(entries, list) or not entries:
        raise section.error(
            "scale: fit and drift need over: {from, to}, where both recordings hold the same "
            f"current but for these; not {shown(entries)}",
            "over",
        )
    found = np.zeros_like(data.current, dtype=bool)
    for k, entry in enumerate(entries, 1):
        inner = Section(entry, section.file, section.path(f"over[{k}]"))
        inner.expect(KEYS["baseline"])
        found |= _window(inner, data)
    both: np.ndarray = found & np.isfinite(other)
    return both


def _run_down(section: Section, data: _Currents) -> None:
    """Scale every sweep to the first one by the mean current in a window with one command."""
    section.expect(KEYS["condition run_down"])
    window = _window(section, data)
    trend = section.choice("trend")
    section.finish()
    command = data.protocol.command()
    first, reference = data.rows[0], command[data.rows[0]]
    for k in data.rows:
        both = window[k] & window[first]
        if not np.allclose(command[k, both], reference[both], atol=1.0, rtol=0):
            raise section.error(
                f"the command of sweep {k + 1} differs there from that of sweep {first + 1}; "
                "run-down is seen only where all sweeps have the same command"
            )
    sizes = np.array([data.current[k, window[k]].mean() for k in data.rows])
    sizes = _trend(section, sizes, trend)
    left = sizes / sizes[0]
    if not (left > _LEAST_LEFT).all():
        k = int(np.argmin(left))
        raise section.error(
            f"the current of sweep {data.rows[k] + 1} is {left[k]:.3g} of the first one's; that "
            f"is no run-down that a factor can mend (less than {_LEAST_LEFT:g} is left)"
        )
    for k, factor in zip(data.rows, left, strict=True):
        data.current[k] /= factor
    data.note(f"run-down to {100 * left[-1]:.4g} % in the last sweep divided out")


def _trend(section: Section, sizes: np.ndarray, trend: str) -> np.ndarray:
    """Return amplitudes (n_sweeps,) as a trend over the sweeps has them."""
    if trend == "each" or len(sizes) == 1:
        return sizes
    x = np.arange(len(sizes))
    if trend == "line":
        return np.polyval(np.polyfit(x, sizes, 1), x)
    if not (sizes / sizes[0] > 0).all():
        raise section.error(
            f"the mean current changes its sign between sweeps ({_spread(list(sizes))} pA), so "
            "that no exponential goes through it; is the window where the current is large?"
        )
    fitted: np.ndarray = np.exp(np.polyval(np.polyfit(x, np.log(np.abs(sizes)), 1), x))
    return fitted if sizes[0] > 0 else -fitted


def _lowpass(section: Section, data: _Currents) -> None:
    """Filter every sweep as an amplifier would have, and leave samples out as `every` says."""
    section.expect(KEYS["condition lowpass"])
    if data.low_pass is not None:
        raise section.error("one low-pass filter was expected, and this is the second")
    data.low_pass = read_low_pass(section)
    data.every = section.integer("every")
    h = data.protocol.sampling_ms
    for key, cutoff, sampled in (("cutoff", 1.0, h), ("every", 0.8, h * data.every)):
        # attenuation is weak until far above the cutoff, so that it must stay below half the rate
        if data.low_pass.cutoff_kHz * sampled > cutoff / 2:
            raise section.error(
                f"{data.low_pass.cutoff_kHz:g} kHz does not fit to a sample every {sampled:g} ms; "
                f"{cutoff / (2 * sampled):.4g} kHz or less was expected, or else faster changes "
                "would come back as slow ones",
                key,
            )
    for k in data.rows:
        n = data.protocol.n_times(k)
        trace = data.current[k, :n]
        if not np.isfinite(trace).all():
            raise section.error(
                f"sweep {k + 1} has samples without a current, which no filter can bridge; "
                "record them, or leave the filter out"
            )
        steps = data.protocol.step_times_ms(k)
        quiet = max(1, int((steps[0] if len(steps) else n * h) / h))
        data.current[k, :n] = filtered(trace, h, data.low_pass, float(trace[:quiet].mean()))
    data.note(f"low-pass filter of {data.low_pass.poles} poles at {data.low_pass.cutoff_kHz:g} kHz")


def filtered(trace: np.ndarray, sampling_ms: float, low_pass: LowPass, before: float) -> np.ndarray:
    """Return samples (n_times,), joined by straight lines, after a Bessel filter.

    This is exact at the samples: each pole relaxes on its own, and its equation has a solution in
    closed form where its input is a straight line.

    Arguments:
        sampling_ms: between two samples.
        before: the constant input of the filter before the first sample.
    """
    from scipy.signal import bessel, lfilter  # loads SciPy, which other steps do not need

    omega = 2.0 * np.pi * low_pass.cutoff_kHz
    _, poles, gain = bessel(low_pass.poles, omega, analog=True, output="zpk", norm="mag")
    total = np.zeros(len(trace))
    for k, pole in enumerate(poles):
        residue = gain / np.prod(pole - np.delete(poles, k))
        z = pole * sampling_ms
        first, second = np.expm1(z) / z, (np.expm1(z) - z) / z**2
        old, new = residue * sampling_ms * (first - second), residue * sampling_ms * second
        rest = -residue * before / pole
        memory = np.array([np.exp(z) * rest + old * before])
        total += lfilter([new, old], [1.0, -np.exp(z)], trace, zi=memory)[0].real
    return total


_STEPS: dict[str, Callable[[Section, _Currents], None]] = {
    "baseline": _baseline,
    "leak": _leak,
    "run_down": _run_down,
    "lowpass": _lowpass,
}


def _spread(values: list[float] | tuple[float, ...]) -> str:
    """Return numbers in a few words: one, or from the smallest to the largest."""
    low, high = min(values), max(values)
    one, other = f"{low:.4g}", f"{high:.4g}"
    return one if one == other else f"{one} to {other}"
