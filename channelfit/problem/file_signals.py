"""The signal of a laboratory's file that a recording or a recorded command names.

Files of amplifiers state quantity, unit and sampling themselves. What a fit file
says beside that must agree with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.documents import Section, check_membrane, read_membrane
from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats import READERS, Contents, Signal, choices_of, read, suffix_of
from channelfit.reading.formats.contents import kind_and_factor
from channelfit.reading.tables import READERS as TABLES
from channelfit.reading.units import Membrane, unit_factor

#: Two sampling intervals that differ by less than this share are the same.
_SAME = 1e-6


@dataclass(frozen=True)
class FileSignal:
    """Sweeps of one signal.

    Attributes:
        name: of the signal in the file.
        numbers: of the sweeps in the file, counted from 1.
        values: (n_sweeps, n_samples) pA or mV; NaN after the end of a shorter sweep.
        sampling_ms: from one sample to the next.
        labels: what the file calls each of them; empty where they have no names.
    """

    name: str
    numbers: list[int]
    values: np.ndarray
    sampling_ms: float
    labels: tuple[str, ...] = ()

    @property
    def places(self) -> list[str]:
        """The names of the sweeps in messages."""
        return [f"{self.name}, sweep {k}" for k in self.numbers]


def refuse_columns_of_signals(section: Section, path: Path) -> None:
    """Raise InputError where columns are named of a file that has signals, or a series of one that
    has columns.
    """
    suffix = suffix_of(path)
    if suffix in READERS and suffix not in TABLES:
        raise section.error(
            f"{suffix} files have signals, no columns; write `signal: NAME`, or `signal: 1` for "
            "the first"
        )
    if section.text("series", None) is not None:
        raise section.error(f"{suffix} files have columns and no series; leave it out", "series")


def read_signal(outer: Section, inner: Section, path: Path, dimension: str) -> FileSignal:
    """Return the signal that ``signal:`` names, by name or number, and its sweeps.

    Arguments:
        outer: has ``header``, ``decimal``, ``layout``, ``series`` and ``sampling``.
        inner: has ``signal``, ``sweeps``, ``unit`` and, of currents, the size of the membrane.
        path: the file.
        dimension: "current" or "voltage".

    Raises InputError: no such signal or sweep; one of another dimension; a unit or a sampling that
    the file contradicts, or that neither of both says.
    """
    chosen = inner.take("signal")
    named = {"signal": chosen} if isinstance(chosen, str) and "signal" in choices_of(path) else {}
    contents = read(path, series=outer.text("series", None), **read_choices(outer), **named)
    signal = _named(inner, contents)
    membrane = read_membrane(inner) if dimension == "current" else None
    factor = _factor(inner, signal, dimension, membrane)
    if membrane is not None:
        check_membrane(inner, membrane, "the unit of these currents is")
    numbers = _sweeps(inner, len(signal.values))
    with np.errstate(over="ignore"):  # infinite currents are refused later
        values = signal.values[[k - 1 for k in numbers]] * factor
    labels = tuple(contents.labels[k - 1] for k in numbers if contents.labels)
    return FileSignal(signal.name, numbers, values, _sampling(outer, contents), labels)


def read_choices(section: Section) -> dict[str, Any]:
    """Return the options of a section on how to read its file; None for those left out."""
    return {
        "header": section.flag("header"),
        "decimal": section.choice("decimal"),
        "layout": section.choice("layout"),
    }


def _named(inner: Section, contents: Contents) -> Signal:
    chosen = inner.take("signal")
    names = [signal.name for signal in contents.signals]
    if str(chosen) in names:
        return contents.signals[names.index(str(chosen))]
    if isinstance(chosen, int) and not isinstance(chosen, bool) and 1 <= chosen <= len(names):
        return contents.signals[chosen - 1]
    listed = ", ".join(f"{k}: {name}" for k, name in enumerate(names[:12], 1)) or "none"
    raise inner.error(f"no signal {shown(chosen)}; there are {listed}", "signal")


def _factor(inner: Section, signal: Signal, dimension: str, membrane: Membrane | None) -> float:
    """Return the factor from the values of a signal to the base unit."""
    unit = inner.text("unit", None)
    if signal.unit and signal.kind not in ("other", dimension):
        raise inner.error(
            f"{shown(signal.name)} is a {signal.kind}, in {signal.unit}; a {dimension} is needed",
            "signal",
        )
    if signal.unit and signal.kind == dimension:  # the values are in base units already
        stored, left = kind_and_factor(signal.unit)[1], 1.0
    elif signal.unit:  # per capacitance or area, or of nothing that can be used
        try:
            stored = left = _unit_factor(inner, signal.unit, dimension, membrane)
        except InputError as error:
            raise inner.error(
                f"the file says that {shown(signal.name)} is in {signal.unit}: {error.message}",
                "signal",
            ) from None
    elif unit is not None:
        return _unit_factor(inner, unit, dimension, membrane)
    else:
        raise inner.error(
            f"the file does not say in which unit {shown(signal.name)} is; add `unit`", "unit"
        )
    if unit is not None:
        factor = _unit_factor(inner, unit, dimension, membrane)
        if not math.isclose(factor, stored, rel_tol=1e-9):
            raise inner.error(
                f"{shown(unit)}, but the file says that {shown(signal.name)} is in "
                f"{signal.unit}; leave `unit` out",
                "unit",
            )
    return left


def _unit_factor(inner: Section, unit: str, dimension: str, membrane: Membrane | None) -> float:
    try:
        return unit_factor(unit, dimension, membrane=membrane)[0]
    except InputError as error:
        raise error.at(inner.file, inner.path("unit")) from None


def _sweeps(inner: Section, n_sweeps: int) -> list[int]:
    """Return the sweeps of the file that ``sweeps: [1, 3]`` names, in that order, or all."""
    if "sweeps" not in inner:
        return list(range(1, n_sweeps + 1))
    numbers = inner.items("sweeps")
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= n_sweeps:
            raise inner.error(
                f"{shown(number)} is not the number of a sweep of the file, 1 to {n_sweeps}",
                "sweeps",
            )
    if not numbers:
        raise inner.error("at least one sweep was expected", "sweeps")
    return numbers


def _sampling(outer: Section, contents: Contents) -> float:
    """Return the sampling interval, ms, of the file, or else of the section."""
    stated = outer.quantity("sampling")
    own = contents.sampling_ms
    if stated is None and not math.isfinite(own):
        raise outer.error(
            f"{contents.file.name} does not say how it was sampled; add for example "
            "`sampling: 0.1 ms`",
            "sampling",
        )
    if stated is not None and stated <= 0:
        raise outer.error(f"a sampling interval above 0 was expected, not {stated:g}", "sampling")
    if stated is not None and math.isfinite(own) and not math.isclose(stated, own, rel_tol=_SAME):
        raise outer.error(
            f"{stated:g} ms, but {contents.file.name} is sampled every {own:g} ms; "
            "leave `sampling` out",
            "sampling",
        )
    return float(own if stated is None else stated)
