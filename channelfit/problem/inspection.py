"""The inspection of a recording file: its current, its protocol, and doubts about both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from channelfit.problem.command_segments import (
    FoundCommand,
    cut_into_sweeps,
    find_segments,
    protocol_of_epochs,
)
from channelfit.problem.measures import (
    Leak,
    Peak,
    find_peak,
    holding_pA,
    leak,
    noise_pA,
    run_down,
    transient_ms,
)
from channelfit.problem.plausibility import CheckedRecording, protocol_cautions, recording_cautions
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.sweep_labels import contradiction
from channelfit.reading import memory
from channelfit.reading.errors import Caution, InputError, each_once, shown
from channelfit.reading.formats import Contents, Signal, read
from channelfit.reading.texts import stem_of
from channelfit.reading.units import unit_factor

_YAML = (".yaml", ".yml")
#: The memory of a sample during an inspection, bytes: 3.7 GB were measured for 19 million.
_BYTES_A_SAMPLE = 200
#: Noise below it, in the unit of the file, is that of a current in nA where no unit is stated.
_NOISE_OF_NA = 0.2
#: pA: more is no current of a cell, but a signal whose unit is wrong.
_MOST_PA = 1e8
#: A signal whose noise is this share of its range is a command, when its range is one of voltages.
_QUIET, _COMMAND_RANGE_MV = 1e-4, (10.0, 400.0)
#: mV that a recorded command may stray from its protocol without a caution.
_STRAYS_MV = 5.0
#: ms, for lists of steps, which do not state it.
_USUAL_SAMPLING_MS = 0.1
#: MOhm: a leak of a lower resistance has a caution.
_POOR_SEAL = 300.0
#: mV: where the series resistance loses more, the membrane cannot be taken to be at the command.
LOST_MV = 5.0
#: pA: a larger current loses `LOST_MV` in 1 MOhm.
_LARGE_PA = 1e3 * LOST_MV
#: The change of peaks, or of the current at rest, over the sweeps without a caution, a share.
_DRIFT = 0.2


@dataclass(frozen=True)
class FileOptions:
    """The options of a user about a file, for what it does not state or states wrongly.

    Attributes:
        signal: the name or the number (from 1) of the current.
        unit: of the current.
        sampling_ms: from one sample to the next.
        command: a file with the protocol that ran, or with the command as it was recorded.
        layout, decimal, series: passed on to the reader of the format.
    """

    signal: str | None = None
    unit: str | None = None
    sampling_ms: float | None = None
    command: Path | None = None
    layout: str | None = None
    decimal: str | None = None
    series: str | None = None

    @property
    def choices(self) -> dict[str, str | None]:
        """Arguments for the reader of the format, by the names of a recording's keys."""
        return {"layout": self.layout, "decimal": self.decimal, "series": self.series}


@dataclass(frozen=True)
class Inspection:
    """The findings about a file.

    Attributes:
        contents: what the file holds.
        current: the signal that is taken for the membrane current; None where there is none.
        current_pA: (n_sweeps, n_samples), NaN where nothing was recorded.
        unit: in which the file stores that current; `unit_is_guessed` where it does not say so.
        sampling_ms: NaN where it is not known.
        protocol: the command; None where it is not known.
        protocol_from: where the protocol comes from, in words.
        command: how far a recorded command is from that protocol; None for a nominal one.
        noise_pA: standard deviation of a sample.
        held_pA: (n_sweeps,) the current at the holding potential, of each sweep.
        leak: the largest leak that is possible; None where the protocol does not show it.
        transient_ms: the duration of capacitive transients.
        peak: the largest current outside of them.
        run_down: the share by which the peaks of equal sweeps change; None where sweeps differ.
        cautions: what looks wrong.
        signal_was_chosen: whether the user said which signal is the current.
        subtracted: the file of the recording that was subtracted from it; None for none.
    """

    contents: Contents
    current: Signal | None
    current_pA: np.ndarray
    unit: str
    unit_is_guessed: bool
    sampling_ms: float
    protocol: Protocol | None
    protocol_from: str
    command: FoundCommand | None = None
    noise_pA: float = 0.0
    held_pA: np.ndarray = field(default_factory=lambda: np.empty(0))
    leak: Leak | None = None
    transient_ms: float = 0.0
    peak: Peak | None = None
    run_down: float | None = None
    cautions: tuple[Caution, ...] = ()
    signal_was_chosen: bool = False
    subtracted: Path | None = None

    @property
    def file(self) -> Path:
        """The file that was looked at."""
        return self.contents.file

    def of_the_clamp(self, name: str) -> float | None:
        """Return a property of amplifier or cell in the file, the median over the sweeps.

        Arguments:
            name: a key of `Contents.clamp`, such as ``series_resistance_MOhm``.

        Returns: the value in the unit that the name ends with; None where the file does not say it.
        """
        value = self.contents.clamp.get(name)
        return None if value is None else float(np.median(np.asarray(value)))

    @property
    def lost_mV(self) -> float:
        """The distance of the membrane from the command at the largest current, mV.

        That is the largest current times the part of the series resistance that is not compensated;
        0 where the file says no resistance, or no current is known.
        """
        if self.peak is None:
            return 0.0
        left = 1.0 - (self.of_the_clamp("compensation") or 0.0)
        resistance = self.of_the_clamp("series_resistance_MOhm") or 0.0
        return abs(self.peak.raw_pA) * resistance * left / 1e3


def inspect_file(path: Path, options: FileOptions | None = None) -> Inspection:
    """Return the findings about a recording file or a protocol.

    Raises InputError: a file that cannot be read, or an option that does not fit it.
    """
    options = options or FileOptions()
    if path.suffix.lower() in _YAML:
        if options != FileOptions():
            raise InputError("a protocol, of which nothing else need be said; leave it out", path)
        made = load_protocol(path)
        contents = Contents(path, "protocol of channelfit", made.sampling_ms, ())
        none = np.empty((0, 0))
        return _measured(
            Inspection(contents, None, none, "", False, made.sampling_ms, made, "the file itself")
        )
    contents = _without_infinite(read(path, **options.choices))
    memory.check(contents.n_sweeps * contents.n_samples, _BYTES_A_SAMPLE, "samples", path)
    current = _current(contents, options)
    sampling, cautions = _sampling(contents, options), list[Caution]()
    if not contents.signals and not math.isfinite(sampling):
        sampling = _USUAL_SAMPLING_MS
        value = f"a list of steps does not say how to sample; {sampling:g} ms was taken"
        cautions.append(Caution(path.name, value, "say --sampling if it is another"))
    unit, guessed, factor = ("", False, 1.0) if current is None else _unit(current, options)
    values = np.empty((contents.n_sweeps, 0)) if current is None else current.values * factor
    protocol, source, command = _protocol(contents, current, sampling, options)
    if protocol is not None and not math.isfinite(sampling):
        sampling = protocol.sampling_ms
    if current is not None and protocol is not None:
        protocol = _for_sweeps(protocol, values, path)
    found = Inspection(
        contents,
        current,
        values,
        unit,
        guessed,
        sampling,
        protocol,
        source,
        command,
        cautions=tuple(cautions),
        signal_was_chosen=options.signal is not None,
    )
    return _measured(found)


def _without_infinite(contents: Contents) -> Contents:
    """Return the same contents, in which an infinite sample is one that is missing, as in a fit."""
    return replace(
        contents,
        signals=tuple(
            replace(one, values=np.where(np.isinf(one.values), np.nan, one.values))
            if np.isinf(one.values).any()
            else one
            for one in contents.signals
        ),
    )


def less(found: Inspection, other: Inspection) -> Inspection:
    """Return a recording less another under the same protocol, as before and after a blocker.

    Raises InputError: the other is of another size or sampling.
    """
    ours, theirs = found.current_pA.shape, other.current_pA.shape
    if ours != theirs or not math.isclose(found.sampling_ms, other.sampling_ms, rel_tol=1e-6):
        raise InputError(
            f"{theirs[0]} sweeps of {theirs[1]} samples every {other.sampling_ms:g} ms, but "
            f"{found.file.name} has {ours[0]} of {ours[1]} every {found.sampling_ms:g} ms; only a "
            "recording under the same protocol can be subtracted",
            other.file,
        )
    left = found.current_pA - other.current_pA
    return _measured(replace(found, current_pA=left, cautions=(), subtracted=other.file))


# --- which signal --------------------------------------------------------------------------------


def _current(contents: Contents, options: FileOptions) -> Signal | None:
    """Return the signal that is the membrane current; None where the file holds none."""
    if options.signal is not None:
        return _named(options.signal, contents)
    signals = contents.signals
    currents = [signal for signal in signals if signal.kind == "current"]
    sized = [s for s in currents if np.nanmax(np.abs(s.values), initial=0.0) < _MOST_PA]
    unknown = [s for s in signals if s.kind == "other" and not s.unit and not _is_command(s)]
    return next(iter(sized or currents or unknown), None)


def _named(name: str, contents: Contents) -> Signal:
    """Return the signal that a user names as the current, by its name or its number."""
    signals = contents.signals
    names = [signal.name for signal in signals]
    if name in names:
        found = signals[names.index(name)]
    elif name.isdecimal() and 1 <= int(name) <= len(signals):
        found = signals[int(name) - 1]
    else:
        listed = ", ".join(f"{k}: {each}" for k, each in enumerate(names[:12], 1)) or "none"
        raise InputError(f"no signal {shown(name)}; there are {listed}", contents.file)
    if found.unit and found.kind != "current":
        raise InputError(
            f"{shown(found.name)} is in {found.unit}, and a current in pA, nA or the like is "
            "needed",
            contents.file,
        )
    return found


def _is_command(signal: Signal) -> bool:
    """Return whether a signal without a unit looks like a command in mV: wide and quiet."""
    values = signal.values[np.isfinite(signal.values)]
    low, high = _COMMAND_RANGE_MV
    width = float(np.ptp(values)) if values.size else 0.0
    return low <= width <= high and noise_pA(signal.values) < _QUIET * width


def _unit(current: Signal, options: FileOptions) -> tuple[str, bool, float]:
    """Return the unit of a current, whether it is guessed, and the factor that is left to pA."""
    if options.unit is not None:
        factor = unit_factor(options.unit, "current")[0]
        if current.unit and current.kind == "current":
            if not math.isclose(factor, unit_factor(current.unit, "current")[0]):
                raise InputError(
                    f"{shown(options.unit)}, but the file says that {shown(current.name)} is in "
                    f"{current.unit}",
                    None,
                    "unit",
                )
            return current.unit, False, 1.0
        return options.unit, False, factor
    if current.unit:
        return current.unit, False, 1.0
    unit = "nA" if 0 < noise_pA(current.values) < _NOISE_OF_NA else "pA"
    return unit, True, unit_factor(unit, "current")[0]


def _sampling(contents: Contents, options: FileOptions) -> float:
    own, stated = contents.sampling_ms, options.sampling_ms
    if stated is not None and math.isfinite(own) and not math.isclose(own, stated, rel_tol=1e-6):
        raise InputError(
            f"{stated:g} ms, but the file is sampled every {own:g} ms", contents.file, "sampling"
        )
    return own if stated is None else stated


# --- which protocol ------------------------------------------------------------------------------


def _protocol(
    contents: Contents, current: Signal | None, sampling: float, options: FileOptions
) -> tuple[Protocol | None, str, FoundCommand | None]:
    """Return the protocol, its origin, and its distance from a recorded command."""
    if options.command is not None:
        return _protocol_in(options.command, contents, sampling)
    if not math.isfinite(sampling):
        return None, "", None
    name = stem_of(contents.file)
    if contents.epochs:
        first = contents.epochs[0][0].start_mV
        holding = first if contents.holding_mV is None else contents.holding_mV
        made = protocol_of_epochs(contents.epochs, sampling, holding, name)
        if made is not None:
            return made, "the epochs that the file describes", None
    voltages = [s for s in contents.signals if s is not current and s.kind == "voltage"]
    voltages += [s for s in contents.signals if s is not current and _is_command(s)]
    for signal in voltages:
        found = find_segments(signal.values, sampling, contents.holding_mV, name)
        return found.protocol, f'the recorded command "{signal.name}"', found
    return None, "", None


def _protocol_in(
    path: Path, contents: Contents, sampling: float
) -> tuple[Protocol | None, str, FoundCommand | None]:
    """Return the protocol in a file of its own: a protocol, a list of steps or a record."""
    source = f"the file {path.name}"
    if path.suffix.lower() in (*_YAML, ".eph"):
        made = load_protocol(path)
        if math.isfinite(sampling):  # a command is the same, however it is sampled
            made = replace(made, sampling_ms=sampling)
        return made, source, None
    if not math.isfinite(sampling):
        raise InputError("the sampling of the recording is not known; give it", contents.file)
    recorded = replace(read(path), sampling_ms=sampling)
    protocol, _, command = _protocol(recorded, None, sampling, FileOptions())
    if protocol is None:
        raise InputError(
            "no protocol in it: a protocol file (YAML), .eph, a list of steps, or a record of the "
            "command was expected",
            path,
        )
    return protocol, source, command


def _for_sweeps(protocol: Protocol, values: np.ndarray, path: Path) -> Protocol:
    """Return the protocol for the recorded sweeps: repeated, or a long one cut into them.

    Raises InputError: it has another number of sweeps.
    """
    n_sweeps, n_samples = values.shape
    if protocol.n_sweeps == n_sweeps:
        return protocol
    if protocol.n_sweeps == 1 and protocol.n_times_max <= n_samples:
        return replace(protocol, sweeps=protocol.sweeps * n_sweeps)
    lasts = round(n_samples * protocol.sampling_ms, 9)
    cut = cut_into_sweeps(protocol, n_sweeps, lasts)
    if cut is None:
        raise InputError(
            f"{n_sweeps} sweeps of {n_samples} samples, but {protocol.name} has "
            f"{protocol.n_sweeps} of {protocol.n_times_max}",
            path,
        )
    return cut


# --- measures ------------------------------------------------------------------------------------


def _measured(found: Inspection) -> Inspection:
    """Return the inspection with measures of the current, and with cautions."""
    place, protocol = found.file.name, found.protocol
    cautions = list(found.cautions)
    cautions += protocol_cautions(protocol, place) if protocol is not None else []
    if found.current is None:
        return replace(found, cautions=tuple(cautions))
    values = found.current_pA
    noise = noise_pA(values)
    same = protocol is not None and protocol.n_times_max == values.shape[1]
    held = holding_pA(values, protocol if same else None)
    found = replace(found, noise_pA=noise, held_pA=held)
    if protocol is not None and same:
        seen = CheckedRecording(place, protocol, values, np.isfinite(values).astype(float))
        blank = transient_ms(values, protocol, noise)
        peak = find_peak(seen.smooth_pA, held, protocol, blank, values)
        found = replace(
            found,
            leak=leak(values, protocol, blank),
            transient_ms=blank,
            peak=peak,
            run_down=None if peak is None else run_down(peak.by_sweep_pA, protocol),
        )
        cautions += recording_cautions(seen, True)
    cautions += _cautions(found, same)
    return replace(found, cautions=each_once(cautions))


def _cautions(found: Inspection, same: bool) -> list[Caution]:
    """Return doubts about an inspection; same: whether a sweep is as long as its protocol."""
    doubts = (*_of_the_signals(found), *_of_the_samples(found, same), *_of_the_cell(found))
    return [Caution(found.file.name, value, advice) for value, advice in doubts]


#: A value that looks wrong, and advice about it.
_Doubt = tuple[str, str]


def _of_the_signals(found: Inspection) -> Iterator[_Doubt]:
    """Yield doubts about the choice of command and current, and about the unit."""
    if found.command is not None and found.command.residual_mV > _STRAYS_MV:
        (sweep, time), lost = found.command.residual_at, found.command.residual_mV
        yield (
            f"the recorded command is up to {lost:.3g} mV from its protocol, at {time:g} ms of "
            f"sweep {sweep + 1}",
            "is it a command, and in mV? Else name the protocol with --command",
        )
    rivals = [
        s.name
        for s in found.contents.signals
        if found.current is not None
        and s.name != found.current.name
        and s.kind == found.current.kind
        and not (s.kind == "other" and (s.unit or _is_command(s)))
    ]
    if rivals and found.current is not None and not found.signal_was_chosen:
        yield (
            f"{len(rivals) + 1} signals may be the current; {shown(found.current.name)} was taken",
            f"say --signal for another: {', '.join(map(shown, rivals[:6]))}",
        )
    if found.unit_is_guessed:
        yield (
            f"no unit of the current is stated; {found.unit} was taken, since its noise is then "
            f"{found.noise_pA:.2g} pA",
            "say --unit if it is another",
        )


def _of_the_samples(found: Inspection, same: bool) -> Iterator[_Doubt]:
    """Yield doubts about sampling and protocol, and about samples that are missing."""
    if not math.isfinite(found.sampling_ms):
        yield "how it was sampled is not stated", "say for example --sampling 0.1ms"
    elif found.protocol is None:
        yield "the command is not in the file", "give --command FILE with the protocol"
    elif not same:
        n, expected = found.current_pA.shape[1], found.protocol.n_times_max
        yield (
            f"{n} samples a sweep, but its protocol has {expected} ({found.protocol.sampling_ms:g} "
            "ms from one to the next)",
            "is it the protocol that ran, and the sampling right?",
        )
    elif contradicting := contradiction(
        found.contents.labels, range(len(found.held_pA)), found.protocol
    ):
        yield contradicting
    missing = ~np.isfinite(found.current_pA)
    if missing.any():
        yield (
            f"{missing.sum()} of {missing.size} samples are missing",
            "a fit needs `missing: mask` where they are not the ends of shorter sweeps",
        )


def _of_the_cell(found: Inspection) -> Iterator[_Doubt]:
    """Yield doubts about seal, series resistance, noise and stability."""
    if found.leak is not None and found.leak.seal_MOhm < _POOR_SEAL:
        yield (
            f"the leak is up to {found.leak.conductance_nS:.3g} nS "
            f"({found.leak.seal_MOhm:.3g} MOhm), from {found.leak.source}",
            "was it subtracted, or are channels open there? A fit without a leak term takes "
            "it for the channel's",
        )
    if found.peak is not None:
        yield from _of_the_peak(found, abs(found.peak.raw_pA))
    if found.run_down is not None and abs(found.run_down) > _DRIFT:
        yield (
            f"the peak changes by {100 * found.run_down:+.0f} % from the first sweep to the last",
            "equal sweeps should give equal currents: run-down",
        )


def _of_the_peak(found: Inspection, size_pA: float) -> Iterator[_Doubt]:
    """Yield doubts about other properties beside a largest current of this size."""
    if found.lost_mV > LOST_MV:
        resistance = found.of_the_clamp("series_resistance_MOhm")
        fraction = found.of_the_clamp("compensation")
        known = "with a compensation that the file does not say"
        known = known if fraction is None else f"{100 * fraction:.0f} % compensated"
        yield (
            f"{size_pA / 1e3:.3g} nA through {resistance:.3g} MOhm, {known}, lose up to "
            f"{found.lost_mV:.2g} mV",
            "the membrane is not at the command then",
        )
    if found.of_the_clamp("series_resistance_MOhm") is None and size_pA > _LARGE_PA:
        yield (
            f"{size_pA / 1e3:.3g} nA flow, and the file does not say the series resistance: each "
            f"MOhm that is not compensated loses {size_pA / 1e3:.3g} mV",
            "a section `clamp:` takes it into account (docs/clamp.md)",
        )
    if 0 < size_pA < 5 * found.noise_pA:
        yield (
            f"the largest current, {size_pA:.3g} pA, is hardly above the noise of "
            f"{found.noise_pA:.3g} pA",
            "is there a channel in it?",
        )
    drift = np.ptp(found.held_pA) if len(found.held_pA) > 1 else 0.0
    if drift > max(_DRIFT * size_pA, 6 * found.noise_pA) and _held_alike(found.protocol):
        yield (
            f"the current at the holding potential goes from {found.held_pA[0]:.3g} to "
            f"{found.held_pA[-1]:.3g} pA over the sweeps",
            "the seal or the cell changed",
        )


def _held_alike(protocol: Protocol | None) -> bool:
    """Return whether all sweeps begin at the holding potential."""
    if protocol is None:
        return True
    return bool(np.all(np.abs(protocol.command()[:, 0] - protocol.holding_mV) < 1.0))
