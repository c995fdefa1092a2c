"""Units that a user may write, and the base units that everything inside is kept in.

Base units: ms, mV, nS, pA, 1/ms, 1/mV, 1/(ms mV), pF, MOhm, degC. They are chosen so that
nS x mV = pA and no conversion factor hides in a kernel.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

from channelfit.errors import InputError

#: dimension -> {unit: factor to the base unit}; the base unit is the one with factor 1.
_UNITS: dict[str, dict[str, float]] = {
    "time": {"ms": 1.0, "s": 1e3, "us": 1e-3, "min": 6e4},
    "voltage": {"mV": 1.0, "V": 1e3, "uV": 1e-3},
    "current": {"pA": 1.0, "nA": 1e3, "uA": 1e6, "fA": 1e-3, "A": 1e12},
    "conductance": {"nS": 1.0, "pS": 1e-3, "uS": 1e3, "mS": 1e6, "S": 1e9},
    "rate": {"1/ms": 1.0, "1/s": 1e-3, "kHz": 1.0, "Hz": 1e-3},
    "per voltage": {"1/mV": 1.0, "1/V": 1e-3},
    "rate per voltage": {"1/(ms mV)": 1.0, "1/(s mV)": 1e-3, "1/(ms V)": 1e-3, "1/(s V)": 1e-6},
    "temperature": {"degC": 1.0},
    "capacitance": {"pF": 1.0, "nF": 1e3, "fF": 1e-3},
    "resistance": {"MOhm": 1.0, "kOhm": 1e-3, "GOhm": 1e3, "Ohm": 1e-6},
    "none": {"": 1.0, "1": 1.0, "dimensionless": 1.0},
}
_SPELLINGS = {
    "per ms": "1/ms", "ms^-1": "1/ms", "ms-1": "1/ms", "/ms": "1/ms",
    "per s": "1/s", "s^-1": "1/s", "s-1": "1/s", "/s": "1/s",
    "per mV": "1/mV", "mV^-1": "1/mV", "mV-1": "1/mV", "/mV": "1/mV",
    "per V": "1/V", "V^-1": "1/V", "V-1": "1/V", "/V": "1/V",
    "1/(mV ms)": "1/(ms mV)", "1/(ms*mV)": "1/(ms mV)", "1/(mV*ms)": "1/(ms mV)",
    "1/ms/mV": "1/(ms mV)", "1/s/mV": "1/(s mV)", "1/ms/V": "1/(ms V)", "1/s/V": "1/(s V)",
    "1/mV/ms": "1/(ms mV)", "1/mV/s": "1/(s mV)", "1/V/ms": "1/(ms V)", "1/V/s": "1/(s V)",
    "C": "degC", "°C": "degC", "celsius": "degC",
    "µs": "us", "μs": "us", "µV": "uV", "μV": "uV", "µA": "uA", "μA": "uA", "µS": "uS", "μS": "uS",
    "Mohm": "MOhm", "MΩ": "MOhm", "kΩ": "kOhm", "GΩ": "GOhm", "Ω": "Ohm",
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def base_unit(dimension: str) -> str:
    """The unit in which values of this dimension are kept, e.g. ``mV`` for ``voltage``."""
    return next(unit for unit, factor in _UNITS[dimension].items() if factor == 1.0)


def known_units(dimensions: Iterable[str]) -> str:
    """The accepted units of these dimensions, for error messages."""
    return ", ".join(unit for d in dimensions for unit in _UNITS[d] if unit)


def unit_factor(unit: str, *dimensions: str) -> tuple[float, str]:
    """Factor to the base unit, and the base unit's name.

    Arguments:
        unit: as the user wrote it, e.g. ``1/s``.
        dimensions: those that make sense here; none means any.

    Raises:
        InputError: the unit is unknown, or of another dimension.
    """
    allowed = dimensions or tuple(_UNITS)
    spelled = _SPELLINGS.get(unit.strip(), unit.strip())
    for dimension in allowed:
        if spelled in _UNITS[dimension]:
            return _UNITS[dimension][spelled], base_unit(dimension)
    for dimension, units in _UNITS.items():
        if spelled in units:
            raise InputError(
                f'unit "{unit}" is a {dimension}; wanted one of {known_units(allowed)}'
            )
    every = [name for d in allowed for name in _UNITS[d] if name]
    close = difflib.get_close_matches(spelled, every, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else ";"
    raise InputError(f'unknown unit "{unit}"{hint} Known: {", ".join(every)}')


def parse_quantity(value: object, dimension: str) -> float:
    """A finite number in base units from ``-100 mV``, ``0.2 s`` or a bare number (base unit).

    Raises:
        InputError: not a number, not finite, or a unit that does not fit the dimension.
    """
    example = {"time": "5 ms", "voltage": "-80 mV", "current": "20 pA", "conductance": "5 nS"}
    wanted = example.get(dimension, f"1 {base_unit(dimension)}".strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number, unit = _as_float(value), ""
    elif isinstance(value, str) and (match := _QUANTITY.fullmatch(value[:200])):
        number, unit = float(match[1]), match[2]
    else:
        raise InputError(f"{shown(value)} is not a quantity; write for example {wanted}")
    if unit:
        number *= unit_factor(unit, dimension)[0]
    if not math.isfinite(number):
        raise InputError(f"{shown(value)} is not finite; write for example {wanted}")
    return number


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def shown(value: object) -> str:
    """A user's value as it stands in an error message: quoted, and cut when long."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else " " for c in text[:100])
    return text if len(text) <= 60 else text[:57] + "..."
