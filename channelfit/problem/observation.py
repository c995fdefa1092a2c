"""Observations: numbers that were taken from currents and published in place of them.

An observation is a curve with one number for each sweep of a protocol, such as the peak conductance
against the voltage. A problem holds them in units of their standard errors, so that each counts
once; `Observation.scale` leads there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.waves import TIME_TOLERANCE
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.tables import Columns, column
from channelfit.reading.units import unit_factor

#: Samples that a polynomial between them needs.
LEAST_SAMPLES = 5
#: Measures that are times, and those that may look at any samples of a sweep.
TIMES = ("time to peak", "rise", "fall", "tau")
_ANYWHERE = ("mean", "last")
#: mV between command and reversal potential below which a conductance says nothing.
_LEAST_DRIVE = 1.0
#: The largest number that a normalized one is likely to be, and the intervals between samples in a
#: time that these resolve.
_LARGEST_SHARE, _FINE = 5.0, 4


@dataclass(frozen=True)
class Window:
    """A part of each sweep; times of 0 or less count from the end, but for a beginning of 0.

    Attributes:
        segment: counted from 1; None for the whole sweep.
        from_ms, to_ms: beginning and end, from those of the segment or sweep.
    """

    segment: int | None = None
    from_ms: float = 0.0
    to_ms: float = 0.0

    def ends_ms(self, protocol: Protocol, sweep: int) -> tuple[float, float]:
        """Return the times of a sweep (from 0) at which it begins and ends.

        Raises: InputError where the sweep has no such part.
        """
        segments = protocol.sweeps[sweep]
        if self.segment is not None and self.segment > len(segments):
            raise InputError(f"sweep {sweep + 1} has {len(segments)} segments", key="segment")
        one = segments if self.segment is None else segments[self.segment - 1 : self.segment]
        begin, end = one[0].start_ms, one[-1].end_ms
        first = (begin if self.from_ms >= 0 else end) + self.from_ms
        last = (begin if self.to_ms > 0 else end) + self.to_ms
        tiny = TIME_TOLERANCE * protocol.sampling_ms
        if not begin - tiny <= first < last <= end + tiny:
            raise InputError(
                f"from {first:g} to {last:g} ms is no part of the time from {begin:g} to {end:g} "
                f"ms of sweep {sweep + 1}"
            )
        return first, last

    def samples(self, protocol: Protocol, sweep: int) -> tuple[int, int]:
        """Return the first sample in it, and the one after its last."""
        first, last = (
            math.ceil(t / protocol.sampling_ms - TIME_TOLERANCE)
            for t in self.ends_ms(protocol, sweep)
        )
        return first, last


@dataclass(frozen=True)
class Measure:
    """What is taken from the samples of a window; see the keys of an observation."""

    kind: str = "peak"
    window: Window = Window()
    fractions: tuple[float, ...] = ()
    exponentials: int = 1
    component: int = 1

    def samples(self, protocol: Protocol, sweep: int) -> tuple[int, int]:
        """Return the first sample of a sweep (from 0) that it looks at, and the one behind."""
        first, last = self.window.samples(protocol, sweep)
        return (last - 1 if self.kind == "last" else first), last


@dataclass(frozen=True, eq=False)
class Observation:
    """A curve of numbers, one for each sweep of a protocol; NaN where nothing was observed.

    Attributes:
        measure: what was taken from each sweep.
        x, value, error: (n_sweeps,); values and standard errors in the base unit.
        name, x_label, unit, source: for pictures and messages.
        n: (n_sweeps,) cells; None where that is not known.
        relative_to: another measure, by which it is divided.
        reversal_mV: that of the conductance that is taken in place of the current; None for the
            current.
        normalize: the sweep, from 0, by whose number all are divided; -1 for the largest; None.
        noise_pA: what a standard error counts as.
    """

    measure: Measure
    x: np.ndarray
    value: np.ndarray
    error: np.ndarray
    name: str = ""
    x_label: str = ""
    unit: str = ""
    source: str = ""
    n: np.ndarray | None = None
    relative_to: Measure | None = None
    reversal_mV: float | None = None
    normalize: int | None = None
    noise_pA: float = 1.0

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Its measure, and the one by which it is divided."""
        return (self.measure,) if self.relative_to is None else (self.measure, self.relative_to)

    @property
    def taken_as(self) -> tuple[Any, ...]:
        """All that says how a current becomes these numbers, and what an error counts as."""
        return self.measures, self.reversal_mV, self.normalize, self.noise_pA

    @property
    def scale(self) -> np.ndarray:
        """(n_sweeps,) by which its numbers are multiplied in a problem.

        Numbers that do not count have the scale of the others.
        """
        known = self.counts
        usual = float(np.median(self.error[known])) if known.any() else 1.0
        return np.asarray(self.noise_pA / np.where(known, self.error, usual))

    @property
    def counts(self) -> np.ndarray:
        """(n_sweeps,) True where there is a number with an error."""
        return np.asarray(np.isfinite(self.value) & (self.error > 0))

    @property
    def label(self) -> str:
        """What its numbers are, with the unit, for an axis."""
        what = self.measure.kind
        if self.relative_to is not None or self.normalize is not None:
            what = f"relative {what}"
        return f"{what} ({self.unit})" if self.unit else what


def as_recording(observations: Sequence[Observation]) -> Recording:
    """Return observations as the recording of a problem, (n_curves, n_sweeps).

    Its numbers are in units of the standard errors, times the noise that these count as.
    """
    values = np.array([np.where(o.counts, o.value * o.scale, np.nan) for o in observations])
    sources = dict.fromkeys(o.source for o in observations)
    return Recording(
        np.arange(values.shape[1], dtype=float),
        values,
        np.isfinite(values).astype(float),
        ", ".join(sources),
    )


def window_weights(observations: Sequence[Observation], protocol: Protocol) -> np.ndarray:
    """Return 1 for each sample (n_sweeps, n_times) in a window of these, else 0."""
    weights = np.zeros((protocol.n_sweeps, protocol.n_times_max))
    for one in (measure for o in observations for measure in o.measures):
        for k in range(protocol.n_sweeps):
            first, last = one.samples(protocol, k)
            weights[k, first:last] = 1.0
    return weights


# --- reading -------------------------------------------------------------------------------------


def read_observation(
    section: Section, protocol: Protocol, read: Callable[..., Columns]
) -> tuple[Observation, list[Caution]]:
    """Return the observation that a section describes, and cautions about it.

    Arguments:
        protocol: the command under which it was made.
        read: returns the columns of a table, as `tables.read_columns` does.

    Raises: InputError for anything that cannot be used.
    """
    section.expect(KEYS["observation"])
    measure = _measure(section, protocol)
    relative = None
    if section.take("relative_to") is not None:
        inner = section.section("relative_to")
        inner.expect(KEYS["observation reference"])
        relative = _measure(inner, protocol)
        inner.finish()
    reversal, normalize = section.quantity("reversal"), _normalize(section, protocol)
    path = section.existing(section.text("file"), "file")
    table = read(path)
    rows = _rows(section, table, protocol, path)
    x = column(table, section.text("x"), path)
    value = column(table, section.text("value"), path)
    error, n = _errors(section, table, value, path)
    for k, number in enumerate(value):
        if np.isinf([number, x[k], error[k]]).any() or (math.isfinite(number) and x[k] != x[k]):
            raise InputError(f"{table.place(k)}: x, value and error are finite numbers", path)
        if math.isfinite(number) and not error[k] >= 0:
            raise InputError(f"{table.place(k)}: a standard error of 0 or more is needed", path)
    ratio = relative is not None or normalize is not None
    found = Observation(
        measure,
        _by_sweep(x, rows, protocol),
        _by_sweep(value, rows, protocol),
        _by_sweep(error, rows, protocol),
        name=section.text("name", path.stem),
        x_label=section.text("x"),
        source=path.name,
        n=None if n is None else _by_sweep(n, rows, protocol),
        relative_to=relative,
        reversal_mV=reversal,
        normalize=normalize,
    )
    unit, factor = _unit(section, found, ratio)
    found = replace(found, unit=unit, value=found.value * factor, error=found.error * factor)
    _check_windows(section, found, protocol)
    section.finish()
    return found, list(_cautions(section, found, protocol))


def _measure(section: Section, protocol: Protocol) -> Measure:
    """Read what is taken, and from where, of an observation or of what it is divided by."""
    kind = section.choice("measure")
    inner = section.section("window")
    inner.expect(KEYS["window"])
    segment = inner.integer("segment")
    window = Window(segment, inner.quantity("from"), inner.quantity("to"))
    inner.finish()
    fractions: list[float] = []
    if kind in ("rise", "fall"):
        fractions = section.items("fractions")
        plain = all(isinstance(f, (int, float)) and not isinstance(f, bool) for f in fractions)
        if not (plain and 1 <= len(fractions) <= 2 and all(0 < f < 1 for f in fractions)):
            raise section.error("one or two numbers between 0 and 1 were expected", "fractions")
        rising = fractions == sorted(set(fractions))
        falling = fractions == sorted(set(fractions), reverse=True)
        if not (rising if kind == "rise" else falling):
            order = "increase" if kind == "rise" else "decrease"
            raise section.error(f"the fractions of a {kind} {order}", "fractions")
    exponentials = component = 1
    if kind in ("tau", "amplitude"):
        exponentials, component = section.integer("exponentials"), section.integer("component")
        if component > exponentials:
            raise section.error(f"there are {exponentials} exponentials", "component")
    return Measure(kind, window, tuple(map(float, fractions)), exponentials, component)


def _check_windows(section: Section, found: Observation, protocol: Protocol) -> None:
    """Refuse windows outside of the protocol, across segments, or without a driving force."""
    places = [section.path("window"), section.path("relative_to.window")]
    for measure, place in zip(found.measures, places, strict=False):
        for k in range(protocol.n_sweeps):
            try:
                first, last = measure.window.samples(protocol, k)
            except InputError as error:
                raise error.at(section.file, place) from None
            least = 1 if measure.kind in _ANYWHERE else LEAST_SAMPLES
            if last - first < least:
                raise InputError(
                    f"{last - first} samples of sweep {k + 1} lie in it, and {measure.kind} "
                    f"needs {least}; give {protocol.name} a shorter sampling interval",
                    section.file,
                    place,
                )
            ranges = protocol.sample_ranges(k)
            if measure.kind not in _ANYWHERE and not any(
                a <= first and last <= b for a, b in ranges
            ):
                raise InputError(
                    f"{measure.kind} is taken from one segment, and from here on several lie in "
                    f"sweep {k + 1}; name the segment",
                    section.file,
                    place,
                )
            if found.reversal_mV is None:
                continue
            command = protocol.command()[k, first:last]
            if np.abs(command - found.reversal_mV).min() < _LEAST_DRIVE:
                raise section.error(
                    f"within {_LEAST_DRIVE:g} mV of the command of sweep {k + 1} there is no "
                    "conductance to be seen; leave this sweep out of the protocol",
                    "reversal",
                )


def _normalize(section: Section, protocol: Protocol) -> int | None:
    """Read by which sweep all are divided, from 0; -1 for that of the largest."""
    given = section.take("normalize")
    if given is None:
        return None
    if isinstance(given, str):
        section.choice("normalize")
        return -1
    number: int = section.integer("normalize")
    if number > protocol.n_sweeps:
        raise section.error(f"{protocol.name} has {protocol.n_sweeps} sweeps", "normalize")
    return number - 1


def _rows(section: Section, table: Columns, protocol: Protocol, path: object) -> list[int]:
    """Return the sweep, from 0, of each row of a table."""
    n_rows = len(next(iter(table.values())))
    given = section.items("sweeps")
    rows = given or list(range(1, n_rows + 1))
    n = protocol.n_sweeps
    if not all(isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= n for k in given):
        raise section.error(f"sweeps of {protocol.name} are counted from 1 to {n}", "sweeps")
    if len(set(rows)) < len(rows):
        raise section.error("a sweep is named twice", "sweeps")
    if len(rows) != n_rows or (not given and n_rows != n):
        raise section.error(
            f"{path} has {n_rows} rows, and {protocol.name} {n} sweeps; `sweeps: [1, 2, ..]` says "
            "to which of them each row belongs",
            "sweeps" if given else "file",
        )
    return [k - 1 for k in rows]


def _by_sweep(numbers: np.ndarray, rows: list[int], protocol: Protocol) -> np.ndarray:
    found = np.full(protocol.n_sweeps, np.nan)
    found[rows] = numbers
    return found


def _errors(
    section: Section, table: Columns, value: np.ndarray, path: object
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the standard errors and the numbers of cells of all rows."""
    given = [key for key in ("error", "sd") if key in section]
    if len(given) != 1:
        raise section.error(
            "error or sd was expected: standard errors, or standard deviations beside n, of "
            "the numbers, from which their weights follow"
        )

    def numbers(key: str) -> np.ndarray:
        one = section.take(key)
        if isinstance(one, (int, float)) and not isinstance(one, bool):
            if not 0 < one < math.inf:
                raise section.error(f"a number above 0 was expected, not {shown(one)}", key)
            return np.where(np.isfinite(value), float(one), np.nan)
        return column(table, section.text(key), path)  # type: ignore[arg-type]

    error = numbers(given[0])
    n = numbers("n") if "n" in section else None
    if n is not None:
        for k in np.flatnonzero(np.isfinite(value) & ~(n >= 1)).tolist():
            raise InputError(f"{table.place(k)}: a number n of 1 or more is needed", str(path))
    if given == ["sd"]:
        if n is None:
            raise section.error("n is needed, by whose root standard deviations are divided", "sd")
        error = error / np.sqrt(n)
    return error, n


def _unit(section: Section, found: Observation, ratio: bool) -> tuple[str, float]:
    """Return the base unit of an observation, and the factor from the user's unit to it."""
    current = "current" if found.reversal_mV is None else "conductance"
    dimension = "time" if found.measure.kind in TIMES else current
    dimension = "none" if ratio else dimension
    base = {"time": "ms", "current": "pA", "conductance": "nS", "none": ""}[dimension]
    try:
        return base, unit_factor(section.text("unit", base), dimension)[0]
    except InputError as error:
        raise error.at(section.file, section.path("unit")) from None


def _cautions(section: Section, found: Observation, protocol: Protocol) -> list[Caution]:
    """Return doubts about an observation, before any work is done with it."""
    place, cautions = f"{section.file}: {section.key}", []
    zero = np.isfinite(found.value) & (found.error == 0)
    if zero.any():
        cautions.append(
            Caution(
                place,
                f"{zero.sum()} standard error(s) of 0, at {found.x_label} = {found.x[zero][0]:g}",
                "these numbers are left out of the fit",
            )
        )
    if found.normalize is not None and np.nanmax(np.abs(found.value)) > _LARGEST_SHARE:
        cautions.append(
            Caution(
                place,
                f"normalized numbers up to {np.nanmax(np.abs(found.value)):g}",
                "are they percent? Divide them by 100",
            )
        )
    times = found.value[found.counts]
    if found.measure.kind in TIMES and found.unit and times.size:
        least = float(times.min())
        if least < _FINE * protocol.sampling_ms:
            cautions.append(
                Caution(
                    place,
                    f"a time of {least:g} ms, and {protocol.name} is sampled every "
                    f"{protocol.sampling_ms:g} ms",
                    "give the protocol a shorter sampling interval",
                )
            )
    if not _varied(found.x[np.isfinite(found.x)], np.flatnonzero(np.isfinite(found.x)), protocol):
        cautions.append(
            Caution(
                place,
                f"{found.x_label} is neither a voltage nor a time that {protocol.name} varies from "
                "sweep to sweep",
                "is it the protocol that ran, and do the rows stand in its order?",
            )
        )
    return cautions


def _varied(x: np.ndarray, sweeps: np.ndarray, protocol: Protocol) -> bool:
    """Return whether x is what a protocol varies, within 2 % of its span; True for few sweeps."""
    if len(sweeps) < 3 or len({len(sweep) for sweep in protocol.sweeps}) > 1:
        return True
    for k in range(len(protocol.sweeps[0])):
        for of in (
            lambda s: float(s.voltage(np.array([s.start_ms]))[0]) + protocol.junction_potential_mV,
            lambda s: s.end_ms - s.start_ms,
            lambda s: s.start_ms,
            lambda s: s.end_ms,
        ):
            family = np.array([of(protocol.sweeps[sweep][k]) for sweep in sweeps])
            for unit in (1.0, 1e3):
                if np.allclose(unit * x, family, rtol=0, atol=0.02 * float(np.ptp(family)) + 1e-9):
                    return True
    return False
