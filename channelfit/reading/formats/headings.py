"""Quantities and units in names of columns and variables: ``I (nA)``, ``time/ms``, ``current_pA``.

A missing unit is not guessed, except that the spacing of times shows whether they are in s or ms.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import kind_and_factor
from channelfit.reading.units import is_unit, unit_factor

_WITH_UNIT = (
    re.compile(r"(?P<name>.*?)\s*[(\[]\s*(?P<unit>[^()\[\]]+?)\s*[)\]]"),
    re.compile(r"(?P<name>.*?)\s*[/,]\s*(?P<unit>[^\s/,]+)"),
    re.compile(r"(?P<name>.*?)[_ ](?P<unit>[^\s_]+)"),
)
_TIMES = re.compile(r"(t|time|times|zeit)[ _.]?\d*", re.IGNORECASE)
_CURRENTS = re.compile(r"(i|im|i_?m(emb)?|i_\w+|current|currents|strom)[ _.]?\d*", re.IGNORECASE)
_VOLTAGES = re.compile(
    r"(v|vm|vc|v_?m(emb)?|v_?cmd|voltage|voltages|command|vp|spannung)[ _.]?\d*", re.IGNORECASE
)
_NUMBERED = re.compile(r"[ _.#-]*\d+$")
#: A time of this many ms from one sample to the next or less, without a unit, is one in s.
_SURELY_SECONDS = 1e-3


@dataclass(frozen=True)
class Heading:
    """A name, its unit, and its quantity: "current", "voltage", "time" or "other"."""

    name: str
    unit: str
    kind: str

    @property
    def stem(self) -> str:
        """The name without a number at its end, which sweeps of one quantity share."""
        return _NUMBERED.sub("", self.name)


def read_heading(text: str) -> Heading:
    """Return the name, quantity and unit that the heading of a column states."""
    for place, pattern in enumerate(_WITH_UNIT):
        found = pattern.fullmatch(text.strip())
        if not found or not is_unit(found["unit"]):
            continue
        kind = _kind_of_name(found["name"])
        if place < 2 or kind != "other":  # `trace_A` may be the first trace
            kind = "time" if _is_time_unit(found["unit"]) else kind_and_factor(found["unit"])[0]
            return Heading(found["name"], found["unit"], kind)
    return Heading(text.strip(), "", _kind_of_name(text.strip()))


def sampling_of(times: np.ndarray, unit: str) -> tuple[float, list[str]]:
    """Return the interval of times, ms, NaN if they are not even, and remarks for the user.

    Arguments:
        times: (n,) as they are stored.
        unit: of them; empty where it is not known.
    """
    steps = np.diff(times)
    step = float(times[-1] - times[0]) / len(steps) if len(steps) else math.nan
    if not step > 0 or not np.all(
        np.abs(times - times[0] - step * np.arange(len(times))) < 0.5 * step
    ):
        return math.nan, ["The times are not evenly spaced, so that the sampling is not known."]
    step = float(f"{step:.9g}")  # sums of decimals, such as 0.1, are never quite even
    if unit:
        return step * unit_factor(unit, "time")[0], []
    seconds = step < _SURELY_SECONDS
    assumed = "s" if seconds else "ms"
    note = f"No unit of the times is stated; {step:g} from one to the next was taken for {assumed}."
    return step * (1e3 if seconds else 1.0), [note]


def _kind_of_name(name: str) -> str:
    for kind, pattern in (("time", _TIMES), ("current", _CURRENTS), ("voltage", _VOLTAGES)):
        if pattern.fullmatch(name.strip()):
            return kind
    return "other"


def _is_time_unit(unit: str) -> bool:
    try:
        unit_factor(unit, "time")
    except InputError:
        return False
    return True
