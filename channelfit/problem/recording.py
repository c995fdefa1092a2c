"""Recordings: currents, times and weights, checked against a protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.problem.arguments import TIME_SLACK, numbers
from channelfit.problem.clamp import LowPass
from channelfit.problem.conditioning import conditioned, within
from channelfit.problem.file_signals import (
    read_choices,
    read_signal,
    refuse_columns_of_signals,
)
from channelfit.problem.placement import common_start_ms, laid_out
from channelfit.problem.protocol import Protocol
from channelfit.problem.sweep_labels import contradiction
from channelfit.reading.documents import Section, check_membrane, read_membrane
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.sample_times import advice_on_times, hint_at_times
from channelfit.reading.tables import Columns, column, read_columns
from channelfit.reading.units import Membrane, unit_factor, unit_that_fits

#: pA: larger currents, far beyond any amplifier, are refused.
_MAX_PA = 1e15
#: Keys of a clamp, which do not belong to a recording.
_OF_THE_CLAMP = ("capacitance", "series_resistance")


@dataclass(frozen=True)
class Recording:
    """Currents that were recorded under a protocol, and the weight of every sample.

    Make one with `Recording.from_arrays`. A weight of 0 leaves a sample out of the cost; where no
    current is known it is NaN and its weight is 0.

    Attributes:
        time_ms: (n_times,) ms from the start of a sweep.
        current_pA: (n_sweeps, n_times) pA, outward positive.
        weight: (n_sweeps, n_times), 0 or more.
        source: its name in messages and plots.
        cautions: doubts about it.
        raw_pA: (n_sweeps, n_times) pA, as they were before conditioning; None where nothing was
            done to them.
        conditioning: the findings of each step of conditioning, in words.
        low_pass: the filter by which conditioning smoothed it, and by which the model's current is
            smoothed as well; None without one.
        every: one of this number of samples is fitted, since such a filter leaves no changes
            between them.

    Example:
        >>> import channelfit as cf
        >>> protocol = cf.Protocol.steps([0, 20], duration=1.5, holding=-80, sampling=0.5)
        >>> recording = cf.Recording.from_arrays(protocol, [[0.0, 1.5, 2.0], [0.0, 3.0, 4.0]])
        >>> recording.current_pA.shape
        (2, 3)
    """

    time_ms: np.ndarray
    current_pA: np.ndarray
    weight: np.ndarray
    source: str = ""
    cautions: tuple[Caution, ...] = ()
    raw_pA: np.ndarray | None = None
    conditioning: tuple[str, ...] = ()
    low_pass: LowPass | None = None
    every: int = 1

    @classmethod
    def from_arrays(
        cls,
        protocol: Protocol,
        current: Any,
        *,
        time: Any = None,
        weight: Any = None,
        source: str = "arrays",
    ) -> Recording:
        """Return a recording from arrays, checked against its protocol.

        Arguments:
            protocol: the command during the recording.
            current: pA, outward positive: (n_sweeps, n_times), a row for each sweep, or a pandas
                frame with a column for each sweep. A single sweep may be (n_times,). Sweeps of
                different lengths may be a list of rows, each as long as its sweep; in an array,
                values after the end of a shorter sweep are ignored.
            time: (n_times,) ms from the start of a sweep, to be compared with the protocol's
                `times_ms`; without it the samples are taken to be at those times.
            weight: of every sample, in the shape of the current, or (n_times,) for all sweeps.
                A weight of 0 leaves a sample out, and its current may then be NaN. Without it every
                sample counts once.
            source: its name in messages and plots.

        Raises:
            InputError: arrays of another shape than the protocol's, turned, or not of numbers; NaN
                or infinite currents of weight above 0; a negative, infinite or NaN weight, or none
                above 0; times that are not the protocol's, such as seconds.

        Example:
            >>> import channelfit as cf
            >>> import numpy as np
            >>> protocol = cf.Protocol.steps(20, duration=1.5, holding=-80, sampling=0.5)
            >>> current = np.array([np.nan, 1.5, 2.0])
            >>> recording = cf.Recording.from_arrays(
            ...     protocol, current, time=[0, 0.5, 1], weight=np.isfinite(current)
            ... )
            >>> recording.weight
            array([[0., 1., 1.]])
        """
        shape = (protocol.n_sweeps, protocol.n_times_max)
        if time is not None:
            _check_given_times(numbers(time, "time"), protocol)
        traces = _in_sweeps(numbers(_filled_up(current, protocol), "current"), "current", protocol)
        weights = np.ones(shape)
        if weight is not None:
            stated = numbers(_filled_up(weight, protocol), "weight")
            whole = np.broadcast_to(stated, shape) if stated.shape == shape[1:] else stated
            weights = _in_sweeps(whole, "weight", protocol).copy()
        lengths = np.array([protocol.n_times(k) for k in range(shape[0])])
        inside = np.arange(shape[1]) < lengths[:, None]
        weights[~inside] = 0.0
        bad = np.argwhere(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise InputError(
                f"the weight of {_sample(bad[0])} is {weights[tuple(bad[0])]:g}; "
                "weights are 0 or more, and finite",
                source,
            )
        if not weights.any():
            raise InputError("every weight is 0, so that nothing would be compared", source)
        bad = np.argwhere((weights > 0) & ~np.isfinite(traces))
        if len(bad):
            raise InputError(
                f"the current of {_sample(bad[0])} is {traces[tuple(bad[0])]:g}"
                f"{_and_more(len(bad))}; give samples without a current the weight 0, for example "
                "numpy.isfinite(current) as the weights",
                source,
            )
        traces = np.where(inside & np.isfinite(traces), traces, np.nan)
        names = [str(name) for name in getattr(current, "columns", ())]
        contradicting = contradiction(names, range(len(names)), protocol)
        cautions = () if contradicting is None else (Caution(source, *contradicting),)
        return cls(protocol.times_ms, traces, weights, source, cautions)


def _filled_up(rows: Any, protocol: Protocol) -> Any:
    """Return a list of sweeps of different lengths as rows that end in NaN."""
    if not isinstance(rows, (list, tuple)) or len(rows) != protocol.n_sweeps:
        return rows
    lengths = [len(row) if hasattr(row, "__len__") else 0 for row in rows]
    expected = [protocol.n_times(k) for k in range(protocol.n_sweeps)]
    if lengths != expected or len(set(expected)) == 1:
        return rows
    filled = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
    for k, row in enumerate(rows):
        filled[k, : expected[k]] = numbers(row, f"sweep {k} (counted from 0)")
    return filled


def _in_sweeps(values: np.ndarray, name: str, protocol: Protocol) -> np.ndarray:
    """Return an array (n_sweeps, n_times); that of a single sweep may be (n_times,).

    Raises:
        InputError: another shape, with the argument's name; it says so where the array is turned.
    """
    shape = (protocol.n_sweeps, protocol.n_times_max)
    values = values[None] if values.ndim == 1 and shape[0] == 1 else values
    if values.shape == shape:
        return values
    turned = f": it is turned, give {name}.T" if values.shape == shape[::-1] else ""
    sweeps = f"{shape[0]} sweep{'s' * (shape[0] > 1)}"
    raise InputError(
        f"its shape is {values.shape}, but {protocol.name or 'the protocol'} has {sweeps} of "
        f"{shape[1]} samples, {shape}{turned}",
        None,
        name,
    )


def _check_given_times(time: np.ndarray, protocol: Protocol) -> None:
    """Raise InputError for times that are not the protocol's, and say whether they are in s."""
    expected, slack = protocol.times_ms, TIME_SLACK * protocol.sampling_ms
    if time.shape != expected.shape:
        raise InputError(
            f"its shape is {time.shape}, but a sweep has {len(expected)} samples, {expected.shape}",
            None,
            "time",
        )
    stray = np.flatnonzero(~(np.abs(time - expected) <= slack))
    if stray.size:
        k, seconds = int(stray[0]), np.allclose(1e3 * time, expected, rtol=0, atol=slack)
        advice = (
            "these are seconds: give 1000*time" if seconds else "correct times, or the protocol"
        )
        raise InputError(
            f"sample {k} (counted from 0) is at {time[k]:g} ms where the protocol has "
            f"{expected[k]:g} ms{_and_more(stray.size)}; {advice}",
            None,
            "time",
        )


def _sample(place: np.ndarray) -> str:
    return f"sample {int(place[1])} of sweep {int(place[0])} (counted from 0)"


def load_recording(
    section: Section, protocol: Protocol, read: Callable[..., Columns] = read_columns
) -> Recording:
    """Return the recording that a ``recording:`` mapping describes, in the protocol's sweeps.

    Arguments:
        section: the mapping, with the keys ``KEYS["recording"]``.
        protocol: the command; its sampling and its numbers of samples and sweeps must agree with
            the recording's.
        read: returns the columns of a file, as `read_columns` does; a caller that takes many
            recordings from one file can read it once.

    Returns: The currents after conditioning; weight 1 where there is a current, else 0.

    Raises InputError: a missing file or column, another unit, NaN or inf, times that are not evenly
    spaced, and whatever does not agree with the protocol.
    """
    section.expect(KEYS["recording"])
    _refuse_clamp(section)
    raw, rows, path, labels = _read_currents(section, protocol, read)
    known = np.isfinite(raw)

    def read_other(other: Section) -> np.ndarray:
        other.expect(KEYS["recording"])
        return _read_currents(other, protocol, read)[0]

    done = conditioned(section, raw, rows, protocol, read_other)
    known &= np.isfinite(done.current_pA)
    done.current_pA[~known] = np.nan
    source = section.text("source", path.name)
    return Recording(
        protocol.times_ms,
        done.current_pA,
        known.astype(float),
        source,
        raw_pA=raw if done.notes else None,
        conditioning=done.notes,
        low_pass=done.low_pass,
        every=done.every,
        cautions=(
            *_of_labels(section, labels, rows, protocol),
            *(Caution(f"{section.file}: {key}", *doubt) for key, *doubt in done.doubts),
        ),
    )


def _of_labels(
    section: Section, labels: Sequence[str], rows: Sequence[int], protocol: Protocol
) -> Iterator[Caution]:
    """Yield a caution where voltages that head the columns are not the protocol's."""
    if contradicting := contradiction(labels, rows, protocol):
        yield Caution(f"{section.file}: {section.key}", *contradicting)


def _read_currents(
    section: Section, protocol: Protocol, read: Callable[..., Columns]
) -> tuple[np.ndarray, list[int], Path, Sequence[str]]:
    """Return the currents of a file as the protocol's sweeps, as they were recorded.

    Returns:
        The currents (n_sweeps, n_times), pA, NaN where there is none; the sweeps that were
        recorded, counted from 0; the file; what it calls each of these sweeps.
    """
    name = section.text("file")
    path = section.existing(name, "file")
    if isinstance(section.take("current"), Mapping) and "signal" in section.section("current"):
        table, names, current, labels = _signal(section, protocol, path)
    else:
        refuse_columns_of_signals(section, path)
        table = read(path, **read_choices(section))
        time_column = _check_times(section, protocol, table, path)
        names, current = _currents(section, table, time_column, protocol, path)
        labels = names
    rows = _sweep_numbers(section, len(names), protocol, path)
    out, recorded, firsts = laid_out(section, current, rows, bool(table.first), protocol, path)
    masked = section.choice("missing") == "mask"
    known = np.isfinite(out)
    _refuse_absurd(out[known], path)
    if not masked:
        _refuse_missing(recorded & ~known, rows, firsts, names, table, protocol, path)
    out[~known] = np.nan
    return out, rows, path, labels


def _refuse_clamp(section: Section) -> None:
    """Raise InputError for keys that describe the clamp, with the place where they belong."""
    for key in _OF_THE_CLAMP:
        if key in section:
            raise section.error(
                "the amplifier stands beside the recording: `clamp: "
                "{series_resistance: 5 MOhm, membrane_capacitance: 20 pF}` (the size of a cell "
                "that currents are divided by belongs under `current`)",
                key,
            )


def empty_masks(entries: Sequence[Section], protocol: Protocol) -> Iterator[Caution]:
    """Yield cautions about entries of ``mask:``, already checked, that name no sample."""
    lasts = max(sweep[-1].end_ms for sweep in protocol.sweeps)
    whole = masks([], protocol).sum()
    for entry in entries:
        entry.expect(KEYS["mask"])
        keys = {key: entry.take(key) for key in entry.given()}
        probe = Section({**keys, "weight": 0}, entry.file, entry.key)
        if masks([probe], protocol).sum() == whole:
            stated = ", ".join(f"{key}: {value}" for key, value in keys.items())
            yield Caution(
                f"{entry.file}: {entry.key}",
                f"{{{stated}}} leaves out no sample of a protocol that lasts {lasts:g} ms",
                "is its time counted from the start of a sweep, and in ms?",
            )


def masks(entries: Sequence[Section], protocol: Protocol) -> np.ndarray:
    """Return the weights (n_sweeps, n_times_max) that a list of ``mask:`` entries leaves.

    Each entry names samples, by ``after_steps: 5 ms``, ``before_steps: 0.5 ms``, or ``from`` and
    ``to`` (either may be left out), and the factor ``weight`` by which they count, 0 without it;
    ``sweeps: [1, 3]`` limits it to some sweeps. Intervals are half open, [start, end). Where
    entries overlap their factors multiply, so that their order does not matter. Samples after the
    end of a shorter sweep weigh 0.

    Raises InputError: an entry that names no samples, or cannot be used, with file and key.
    """
    t = protocol.times_ms
    weight = np.zeros((protocol.n_sweeps, len(t)))
    for k, row in enumerate(weight):
        row[: protocol.n_times(k)] = 1.0
    for entry in entries:
        entry.expect(KEYS["mask"])
        kinds = [k for k in ("after_steps", "before_steps") if k in entry]
        window = "from" in entry or "to" in entry
        if len(kinds) + window != 1:
            raise entry.error("one of after_steps, before_steps, or from and to was expected")
        span = _span(entry, kinds[0]) if kinds else (0.0, 0.0)
        start, end = entry.quantity("from", default=-np.inf), entry.quantity("to", default=np.inf)
        if start >= end:
            raise entry.error(f"from {start:g} ms to {end:g} ms holds no time", "to")
        factor = entry.number("weight")
        if factor < 0:
            raise entry.error(f"a weight of 0 or more was expected, not {factor:g}", "weight")
        sweeps = _chosen(entry, protocol.n_sweeps)
        for k in sweeps:
            if window:
                weight[k, within(t, start, end, protocol)] *= factor
                continue
            inside = np.zeros(len(t), dtype=bool)
            for step in protocol.step_times_ms(k):
                inside |= within(t, step + span[0], step + span[1], protocol)
            weight[k, inside] *= factor
    return weight


def _span(entry: Section, kind: str) -> tuple[float, float]:
    """Return the interval around a step, ms from it, that an entry names."""
    width = entry.quantity(kind)
    if width <= 0:
        raise entry.error(f"a time above 0 was expected, not {width:g} ms", kind)
    return (0.0, width) if kind == "after_steps" else (-width, 0.0)


def _chosen(section: Section, n_sweeps: int) -> list[int]:
    """Return the sweeps, counted from 0, that ``sweeps: [1, 3]`` names, or all."""
    if "sweeps" not in section:
        return list(range(n_sweeps))
    numbers = section.items("sweeps")
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= n_sweeps:
            raise section.error(
                f"{shown(number)} is not the number of a sweep, 1 to {n_sweeps}", "sweeps"
            )
    if len(set(numbers)) < len(numbers) or not numbers:
        raise section.error("each sweep once, and at least one, was expected", "sweeps")
    return [number - 1 for number in numbers]


def _factor(section: Section, dimension: str, membrane: Membrane | None = None) -> float:
    try:
        return unit_factor(section.text("unit", ...), dimension, membrane=membrane)[0]
    except InputError as error:
        if error.file:
            raise
        raise error.at(section.file, section.path("unit")) from None


def _check_times(section: Section, protocol: Protocol, table: Columns, path: Path) -> str | None:
    """Raise InputError for times or a sampling that are not the protocol's.

    Returns: The name of the column of times; None where there is none.
    """
    if ("time" in section) == ("sampling" in section):
        raise section.error(
            "either time: {column, unit}, or sampling (where there is no column of times) "
            "was expected"
        )
    if "sampling" in section:
        sampling = section.quantity("sampling", default=...)
        _check_sampling(section, "sampling", sampling, protocol, protocol.n_times_max)
        return None
    inner = section.section("time")
    inner.expect(KEYS["recording time"])
    name: str = inner.text("column")
    factor = _factor(inner, "time")
    t = column(table, name, path) * factor
    start = inner.quantity("start")
    inner.finish()
    if len(t) < 2:
        raise InputError("a recording needs two samples or more", path, f"column {name}")
    _check_spacing(t, name, table, path, hint_at_times(table, name))
    sampling = float(t[-1] - t[0]) / (len(t) - 1)
    _check_sampling(inner, "column", sampling, protocol, len(t), factor)
    # times of a part of a sweep may count from its own beginning or from the sweep's
    begins = (start, start + common_start_ms(section))
    if all(abs(t[0] - begin) > TIME_SLACK * sampling for begin in begins):
        raise inner.error(
            f"the column begins at {t[0]:g} ms, the sweep at {start:g} ms; if the sweep begins "
            f"with the first row, write start: {t[0]:g} ms",
            "start",
        )
    return name


def _check_spacing(t: np.ndarray, name: str, table: Columns, path: Path, other: str) -> None:
    place = f"column {name}"
    bad = np.flatnonzero(~np.isfinite(t))
    if bad.size:
        raise InputError(
            f"{table.place(bad[0])} is {t[bad[0]]}: every sample needs a time", path, place
        )
    steps = np.diff(t)
    bad = np.flatnonzero(steps <= 0)
    if bad.size:
        k = bad[0]
        raise InputError(
            f"times must increase, but {t[k + 1]:g} ms in {table.place(k + 1)} follows {t[k]:g} ms"
            f"{_and_more(bad.size)}; {advice_on_times(t, int(k))}{other}",
            path,
            place,
        )
    sampling = (t[-1] - t[0]) / (len(t) - 1)
    stray = np.abs(t - t[0] - sampling * np.arange(len(t))) > TIME_SLACK * sampling
    if stray.any():
        usual = float(np.median(steps))
        odd = np.abs(steps - usual) > TIME_SLACK * usual
        bad = np.flatnonzero(odd if odd.any() else stray[1:])
        k = bad[0]
        raise InputError(
            f"times must be evenly spaced, but {steps[k]:g} ms lie before {table.place(k + 1)} "
            f"(at {t[k + 1]:g} ms) and {usual:g} ms before most{_and_more(bad.size)}; "
            f"{advice_on_times(t, int(k))}{other}",
            path,
            place,
        )


def _check_sampling(
    section: Section, key: str, sampling_ms: float, protocol: Protocol, n: int, factor: float = 0.0
) -> None:
    """Raise InputError where the clocks of recording and protocol drift apart over n samples.

    Arguments:
        sampling_ms: of the recording, stated under the key.
        factor: from the unit that the user gave to ms; 0 where it is not known.
    """
    expected = protocol.sampling_ms
    if not abs(sampling_ms - expected) * n <= max(TIME_SLACK, 1e-6 * n) * expected:
        ratio = expected / sampling_ms if sampling_ms > 0 else 0.0
        finer = round(ratio) > 1 and abs(ratio - round(ratio)) < TIME_SLACK / n
        hint = f"; to use one sample of {round(ratio)}, give the protocol the sampling of the "
        hint += f"recording and the experiment `every: {round(ratio)}`"
        hint = hint if finer else ""
        if any(abs(ratio / thousand - 1) < 1e-2 for thousand in (1e-6, 1e-3, 1e3, 1e6)):
            unit = unit_that_fits(factor * ratio, "time")
            hint = f"; are these times in {unit}? Then write the unit {unit}"
            hint = hint if unit else "; is the unit right?"
        raise section.error(
            f"sampled every {sampling_ms:g} ms, but {protocol.name} says {expected:g} ms{hint}", key
        )


def _signal(
    section: Section, protocol: Protocol, path: Path
) -> tuple[Columns, list[str], np.ndarray, Sequence[str]]:
    """Return the sweeps of a signal that the section names.

    Returns:
        They as a table; their names in messages; the currents (n_sweeps, n_rows), pA; and their
        names in the file, empty where it has none.
    """
    if "time" in section:
        raise section.error("the times of a signal are the file's; leave `time` out", "time")
    inner = section.section("current")
    inner.expect(KEYS["recording current"])
    signal = read_signal(section, inner, path, "current")
    inner.finish()
    _check_sampling(section, "sampling", signal.sampling_ms, protocol, protocol.n_times_max)
    names = signal.places
    table = Columns(dict(zip(names, signal.values, strict=False)))
    return table, names, signal.values, signal.labels


def _currents(
    section: Section,
    table: Columns,
    time_column: str | None,
    protocol: Protocol,
    path: Path,
) -> tuple[list[str], np.ndarray]:
    """Return the names of the columns of currents, and these (n_columns, n_rows), pA."""
    inner = section.section("current")
    inner.expect(KEYS["recording current"])
    if ("column" in inner) == ("columns" in inner):
        raise inner.error("one of column, columns, signal was expected")
    membrane = read_membrane(inner)
    factor = _factor(inner, "current", membrane)
    check_membrane(inner, membrane, "the unit of these currents is")
    if "column" in inner:
        names = [inner.text("column")]
        matrix = table.get(names[0])
        if matrix is not None and matrix.ndim == 2:
            n_times = protocol.n_times_max
            if len(matrix) != n_times == matrix.shape[1] and "layout" not in section:
                table.turn(names[0])  # a row for each sweep
            names = [f"{names[0]}.{k + 1}" for k in range(table[names[0]].shape[1])]
    elif inner.take("columns") == "all":
        names = [name for name, c in table.items() if c.ndim == 1 and name != time_column]
    else:
        names = [str(name) for name in inner.items("columns")]  # voltages may head columns
    inner.finish()
    if not names:
        raise inner.error("at least one column of currents is needed", "columns")
    if len(set(names)) < len(names):
        raise inner.error("a column is named twice", "columns")
    found = [column(table, name, path) for name in names]
    lengths = {len(c) for c in found}
    if len(lengths) > 1:
        raise InputError(
            f"columns of {', '.join(map(str, sorted(lengths)))} rows; all must be equally long",
            path,
        )
    with np.errstate(over="ignore"):  # infinite currents are refused later
        return names, np.array(found) * factor


def _sweep_numbers(section: Section, n_columns: int, protocol: Protocol, path: Path) -> list[int]:
    """Return the sweep, counted from 0, that each column holds."""
    chosen = _chosen(section, protocol.n_sweeps)
    if len(chosen) == n_columns:
        return chosen
    columns = "1 column" if n_columns == 1 else f"{n_columns} columns"
    if "sweeps" in section:
        raise section.error(f"{len(chosen)} sweeps are named, but there are {columns}", "sweeps")
    raise InputError(
        f"{columns} of currents, but {protocol.name} has {protocol.n_sweeps} sweeps; name the "
        "columns, or say with `sweeps: [1, 2, ..]` which sweeps they are",
        path,
    )


def _refuse_missing(
    missing: np.ndarray,
    rows: list[int],
    firsts: list[int],
    names: list[str],
    table: Columns,
    protocol: Protocol,
    path: Path,
) -> None:
    """Raise InputError for a NaN or inf inside a recorded sweep; names the first of them."""
    count, first = 0, None
    for k, start, name in zip(rows, firsts, names, strict=True):
        bad = np.flatnonzero(missing[k])
        count += bad.size
        if first is None and bad.size:
            first = (name, int(bad[0]), start)
    if first is not None:
        name, sample, start = first
        raise InputError(
            f"{table.place(sample - start)} ({sample * protocol.sampling_ms:g} ms) is NaN or inf"
            f"{_and_more(count)}; `missing: mask` leaves such samples out",
            path,
            f"column {name}",
        )


def _refuse_absurd(current: np.ndarray, path: Path) -> None:
    """Raise InputError for currents so large that the sum of their squares would overflow."""
    top = float(np.abs(current).max(initial=0.0))
    if top > _MAX_PA:
        raise InputError(
            f"a current of {top:.3g} pA is more than {_MAX_PA:g} pA; is the unit right?", path
        )


def _and_more(count: int) -> str:
    return f", and so on at {count - 1} more" if count > 1 else ""
