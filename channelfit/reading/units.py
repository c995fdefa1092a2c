"""The units that a user may write, and the base units in which all values are kept.

Base units are ms, mV, mV/ms, nS, pA, 1/ms, 1/mV, 1/(ms mV), pF, MOhm, Ohm cm, um, um2,
um3/ms, mM and degC. They are chosen so that nS x mV = pA and kernels need no conversion factors. A
conductance, a permeability or a current per area or capacitance is converted to that of the whole
membrane, whose size must be known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from channelfit.reading.errors import InputError, did_you_mean, shown

#: The unit of the residuals of published numbers, which are divided by their standard errors.
STANDARD_ERRORS = "standard errors"
#: dimension -> {unit: factor to the base unit}; the base unit is the one with the factor 1
_UNITS: dict[str, dict[str, float]] = {
    "time": {"ms": 1.0, "s": 1e3, "us": 1e-3, "min": 6e4},
    "voltage": {"mV": 1.0, "V": 1e3, "uV": 1e-3},
    "slew": {"mV/ms": 1.0, "V/s": 1.0},
    "current": {"pA": 1.0, "nA": 1e3, "uA": 1e6, "fA": 1e-3, "A": 1e12},
    "conductance": {"nS": 1.0, "pS": 1e-3, "uS": 1e3, "mS": 1e6, "S": 1e9},
    "rate": {"1/ms": 1.0, "1/s": 1e-3, "kHz": 1.0, "Hz": 1e-3},
    "per voltage": {"1/mV": 1.0, "1/V": 1e-3},
    "rate per voltage": {"1/(ms mV)": 1.0, "1/(s mV)": 1e-3, "1/(ms V)": 1e-3, "1/(s V)": 1e-6},
    "temperature": {"degC": 1.0},
    "capacitance": {"pF": 1.0, "nF": 1e3, "fF": 1e-3},
    "resistance": {"MOhm": 1.0, "kOhm": 1e-3, "GOhm": 1e3, "Ohm": 1e-6},
    "resistivity": {"Ohm cm": 1.0, "kOhm cm": 1e3, "Ohm m": 100.0},
    "length": {"um": 1.0, "mm": 1e3, "cm": 1e4},
    "area": {"um2": 1.0, "mm2": 1e6, "cm2": 1e8},
    "concentration": {"mM": 1.0, "M": 1e3, "uM": 1e-3, "nM": 1e-6, "pM": 1e-9},
    "rate per concentration": {
        "1/mM/ms": 1.0,
        "1/mM/s": 1e-3,
        "1/uM/ms": 1e3,
        "1/uM/s": 1.0,
        "1/M/s": 1e-6,
        "1/nM/s": 1e3,
    },
    "permeability": {"um3/ms": 1.0, "um3/s": 1e-3, "mm3/s": 1e6, "cm3/s": 1e9},
    "none": {"": 1.0, "1": 1.0, "dimensionless": 1.0},
}
#: dimension -> the unit that it is divided by -> {unit: factor to the base unit per um2 or per pF}
_DENSITIES: dict[str, dict[str, dict[str, float]]] = {
    "conductance": {
        "area": {
            "S/cm2": 10.0,
            "mS/cm2": 1e-2,
            "uS/cm2": 1e-5,
            "nS/um2": 1.0,
            "pS/um2": 1e-3,
            "S/m2": 1e-3,
        },
        "capacitance": {
            "mS/uF": 1.0,
            "nS/pF": 1.0,
            "S/F": 1e-3,
            "uS/uF": 1e-3,
            "pS/pF": 1e-3,
            "S/uF": 1e3,
        },
    },
    "current": {
        "area": {
            "uA/cm2": 1e-2,
            "mA/cm2": 10.0,
            "nA/cm2": 1e-5,
            "A/cm2": 1e4,
            "pA/um2": 1.0,
            "A/m2": 1.0,
        },
        "capacitance": {"A/F": 1.0, "pA/pF": 1.0, "uA/uF": 1.0, "nA/nF": 1.0, "nA/pF": 1e3},
    },
    "permeability": {
        "area": {"cm/s": 10.0, "mm/s": 1.0, "um/s": 1e-3, "um/ms": 1.0, "m/s": 1e3},
    },
}
_SIZES = {"area": ("an area", "1500 um2"), "capacitance": ("a capacitance", "20 pF")}
_SPELLINGS = {
    "per ms": "1/ms",
    "ms^-1": "1/ms",
    "ms-1": "1/ms",
    "/ms": "1/ms",
    "per s": "1/s",
    "s^-1": "1/s",
    "s-1": "1/s",
    "/s": "1/s",
    "per mV": "1/mV",
    "mV^-1": "1/mV",
    "mV-1": "1/mV",
    "/mV": "1/mV",
    "per V": "1/V",
    "V^-1": "1/V",
    "V-1": "1/V",
    "/V": "1/V",
    "1/(mV ms)": "1/(ms mV)",
    "1/(ms*mV)": "1/(ms mV)",
    "1/(mV*ms)": "1/(ms mV)",
    "1/ms/mV": "1/(ms mV)",
    "1/s/mV": "1/(s mV)",
    "1/ms/V": "1/(ms V)",
    "1/s/V": "1/(s V)",
    "1/mV/ms": "1/(ms mV)",
    "1/mV/s": "1/(s mV)",
    "1/V/ms": "1/(ms V)",
    "1/V/s": "1/(s V)",
    "C": "degC",
    "°C": "degC",
    "celsius": "degC",
    "µs": "us",
    "μs": "us",
    "µV": "uV",
    "μV": "uV",
    "µA": "uA",
    "μA": "uA",
    "µS": "uS",
    "μS": "uS",
    "Mohm": "MOhm",
    "MΩ": "MOhm",
    "kΩ": "kOhm",
    "GΩ": "GOhm",
    "Ω": "Ohm",
    "ohm": "Ohm",
    "ohm cm": "Ohm cm",
    "ohm*cm": "Ohm cm",
    "Ohm*cm": "Ohm cm",
    "Ω cm": "Ohm cm",
    "Ωcm": "Ohm cm",
    "ohm m": "Ohm m",
    "ohm*m": "Ohm m",
    "Ohm*m": "Ohm m",
    "Ω m": "Ohm m",
    "mmol/l": "mM",
    "umol/l": "uM",
    "mol/l": "M",
    "1/ms/mM": "1/mM/ms",
    "1/s/mM": "1/mM/s",
    "1/ms/uM": "1/uM/ms",
    "1/s/uM": "1/uM/s",
    "1/s/M": "1/M/s",
    "1/s/nM": "1/nM/s",
}
#: Characters of a quantity, and of a unit, beyond which a text is neither.
_LONGEST, _LONGEST_UNIT = 200, 40
#: Powers and products as they are written elsewhere: ``S cm^-2``, ``S/cm²``, ``/mM/ms``, ``µM``.
_REWRITTEN = (
    (re.compile("[µμ]"), "u"),
    (re.compile("²"), "2"),
    (re.compile(r"\^(?=-?\d)"), ""),
    (re.compile(r"\s*[ .*·]\s*([A-Za-z]+)-([12])"), r"/\1\2"),
    (re.compile(r"(/[A-Za-z]+)1(?![\dA-Za-z])"), r"\1"),
    (re.compile(r"^([a-zA-Z]+)-1/"), r"1/\1/"),
    (re.compile(r"^/"), "1/"),
    (re.compile(r"^1/\((\w+)[ *·](\w+)\)$"), r"1/\1/\2"),
)
#: A number as text, in which each digit can be read in one way only.
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
#: A number and perhaps a unit, which no expression looks like.
WITH_UNIT = rf"\s*{NUMBER}\s*(?![eE][-+]?\d)[^\W\d_][^*+()]*"
_QUANTITY = re.compile(rf"\s*({NUMBER})\s*(.*?)\s*")


@dataclass
class Membrane:
    """The size of the membrane, by which densities are multiplied.

    Attributes:
        area: um2; None where it is not known.
        capacitance: pF; None where it is not known.
        place: the key under which a user gives them, for messages.
        used: which of the two a unit needs.
    """

    area: float | None = None
    capacitance: float | None = None
    place: str = ""
    used: set[str] = field(default_factory=set)

    def whole(self, unit: str, dimension: str, divisor: str, factor: float) -> float:
        """Return the factor from a unit per area or capacitance to the base unit of a dimension.

        Raises InputError: the size is not known; it says how to give it.
        """
        self.used.add(divisor)
        size = self.area if divisor == "area" else self.capacitance
        if size is None:
            article, example = _SIZES[divisor]
            where = (
                f"`{self.place}: {{{divisor}: {example}}}`" if self.place else "where it has one"
            )
            raise InputError(
                f'"{unit}" is a {dimension} per {divisor} and needs {article} to become one of the '
                f"whole cell; add it, {where}, or use one of {known_units([dimension])}"
            )
        return factor * size


def base_unit(dimension: str) -> str:
    """Return the unit in which values of a dimension are kept, such as ``mV`` for ``voltage``."""
    return next(unit for unit, factor in _UNITS[dimension].items() if factor == 1.0)


def known_units(dimensions: Iterable[str]) -> str:
    """Return the accepted units of these dimensions, for error messages."""
    return ", ".join(unit for d in dimensions for unit in _UNITS[d] if unit)


def unit_factor(unit: str, *dimensions: str, membrane: Membrane | None = None) -> tuple[float, str]:
    """Return the factor from a unit to its base unit, and the name of the latter.

    Arguments:
        unit: as the user wrote it, such as ``1/s``.
        dimensions: those that make sense here; any where none is named.
        membrane: whose size turns densities into conductances and currents.

    Raises InputError: the unit is unknown, of another dimension, or of a membrane of unknown size.
    """
    allowed = dimensions or tuple(_UNITS)
    spelled = _spelled(unit)
    for dimension in allowed:
        if spelled in _UNITS[dimension]:
            return _UNITS[dimension][spelled], base_unit(dimension)
        for divisor, units in _DENSITIES.get(dimension, {}).items():
            if spelled in units:
                known = membrane or Membrane()
                return known.whole(unit, dimension, divisor, units[spelled]), base_unit(dimension)
    for dimension, units in _UNITS.items():
        divided = {
            name for densities in _DENSITIES.get(dimension, {}).values() for name in densities
        }
        if spelled in units or spelled in divided:
            raise InputError(
                f'unit "{unit}" is a {dimension}; expected one of {known_units(allowed)}'
            )
    every = [name for d in allowed for name in _UNITS[d] if name]
    hint = did_you_mean(spelled, every, cutoff=0.5)
    raise InputError(f'unknown unit "{unit}"{hint} Known: {", ".join(every)}')


def unit_that_fits(factor: float, dimension: str) -> str | None:
    """Return the unit with a given factor to the base unit, to 0.1 %; None without one."""
    for unit, known in _UNITS[dimension].items():
        if abs(factor / known - 1) < 1e-3:
            return unit
    return None


def is_unit(text: str) -> bool:
    """Return whether a text is a unit and nothing else, as the last cell of ``current, nA`` is."""
    spelled = _spelled(text)
    return any(spelled in units for dimension, units in _UNITS.items() if dimension != "none")


#: Characters that have a meaning in patterns.
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


def dimensions() -> tuple[str, ...]:
    """Return the names of all dimensions."""
    return tuple(_UNITS)


def unit_pattern(dimensions: Iterable[str], sized: bool = False) -> str:
    """Return a regular expression, of Python as of JavaScript, for all spellings of some units.

    Arguments:
        dimensions: of which units are accepted.
        sized: whether units per area and per capacitance are accepted as well.
    """
    names = [name for d in dimensions for name in _UNITS[d] if name]
    if sized:
        names += [name for d in dimensions for by in _DENSITIES.get(d, {}).values() for name in by]
    others = [other for other, name in _SPELLINGS.items() if name in names]
    found = dict.fromkeys(p for name in [*names, *others] for p in _patterns(name))
    return f"(?:{'|'.join(found)})"


def _patterns(unit: str) -> list[str]:
    """Return patterns of all texts that `_REWRITTEN` turns into a unit."""
    parts = re.fullmatch(r"([A-Za-z]+3?|1)((?:/[A-Za-z]+2?)+)", unit)
    if not parts:
        return [_characters(unit)]
    head, below = parts[1], re.findall(r"/([A-Za-z]+)(2?)", parts[2])
    factors = "".join(_divided(*factor) for factor in below)
    if head != "1":
        return [_characters(head) + factors]
    found = [rf"(?:{_characters('1')})?{factors}"]
    if len(below) > 1 and not any(power for _, power in below):
        first, *others = (_characters(name) for name, _ in below)
        rest = "".join(_divided(*factor) for factor in below[1:])
        found += [
            rf"(?:{_characters('1')})?/\({first}[ *·]{others[0]}\)",
            rf"{first}{_characters('-1')}{rest}",
        ]
    return found


def _characters(text: str) -> str:
    """Return a pattern for texts that stand for these characters, perhaps with carets."""
    known = {"u": "[uµμ]", "2": r"\^?[2²]"}
    found = [known.get(c, rf"\^?{c}" if c.isdigit() else _SPECIAL.sub(r"\\\g<0>", c)) for c in text]
    return re.sub(r"-(?=\\\^)", r"\\^?-", "".join(found))


def _divided(name: str, power: str) -> str:
    """Return a pattern for ``/cm2``, and ``cm-2`` behind a blank or a multiplication sign."""
    above, below = ("2", "-2") if power else ("1", "-1")
    optional = _characters(above) if power else f"(?:{_characters(above)})?"
    letters = _characters(name)
    return rf"(?:/{letters}{optional}|\s*[ .*·]\s*{letters}{_characters(below)})"


def _spelled(unit: str) -> str:
    """Return a unit in the spelling of the tables above, where it is known in another one."""
    spelled = unit.strip()
    if len(spelled) > _LONGEST_UNIT:  # no unit is; the patterns below would take long
        return spelled
    if spelled in _SPELLINGS:
        return _SPELLINGS[spelled]
    for pattern, ours in _REWRITTEN:
        spelled = pattern.sub(ours, spelled)
    return _SPELLINGS.get(spelled, spelled)


def parse_quantity(value: object, dimension: str, membrane: Membrane | None = None) -> float:
    """Return a finite number in the base unit, from text such as ``-100 mV`` or a number.

    Raises InputError: not a number, not finite, or a unit that does not fit the dimension.
    """
    example = {"time": "5 ms", "voltage": "-80 mV", "current": "20 pA", "conductance": "5 nS"}
    suggestion = example.get(dimension, f"1 {base_unit(dimension)}".strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number, unit = _as_float(value), ""
    elif (
        isinstance(value, str) and len(value) <= _LONGEST and (match := _QUANTITY.fullmatch(value))
    ):
        number, unit = float(match[1]), match[2]
    else:
        raise InputError(f"{shown(value)} is not a quantity; write for example {suggestion}")
    if unit:
        number *= unit_factor(unit, dimension, membrane=membrane)[0]
    if not math.isfinite(number):
        raise InputError(f"{shown(value)} is not finite; write for example {suggestion}")
    return number


def is_expression(value: object) -> bool:
    """Return whether a value that is no quantity is meant as an expression, as ``rs/2`` is."""
    return isinstance(value, str) and not re.fullmatch(WITH_UNIT, value)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
