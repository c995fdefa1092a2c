"""Checks that the units that a model states agree with what its expressions do with them.

Every expression is visited once, and each part of it is given a dimension: exponents of time,
voltage, current and so on. Published models write plain numbers for voltages and rates, as in
``0.1*(v + 40)``; so a number, or a parameter without a unit, takes the dimension that its place
requires. There is a mistake only where two stated units contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import sympy
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import BooleanFunction

from channelfit.model.terms import V
from channelfit.reading.errors import Caution, InputError, each_once

#: A dimension: the exponents of time, voltage, current, temperature, concentration and length.
Exponents: TypeAlias = tuple[Fraction, ...]
_SYMBOLS = ("ms", "mV", "pA", "degC", "mM", "um")
#: Whole factors up to here are taken for counts, such as that of particles that may move.
_LARGEST_COUNT = 8
#: A dimension with an exponent beyond this, by squares of squares, is no longer followed.
_LARGEST_EXPONENT = 10**6
#: The largest number of names that are tried as the cause of a contradiction.
_MOST_NAMES = 12


def _exponents(*powers: int) -> Exponents:
    return tuple(Fraction(p) for p in (*powers, *[0] * (len(_SYMBOLS) - len(powers))))


PURE = _exponents()
TIME, VOLTAGE, CONDUCTANCE = _exponents(1), _exponents(0, 1), _exponents(0, -1, 1)
RATE, RATE_PER_VOLTAGE = _exponents(-1), _exponents(-1, -1)
CONCENTRATION, PERMEABILITY = _exponents(0, 0, 0, 0, 1), _exponents(-1, 0, 0, 0, 0, 3)
#: The dimension of ``a*(v - b)`` where a is given in 1/ms and meant per mV.
_VOLTAGE_RATE = _exponents(-1, 1)

#: Dimensions by base unit; a unit that is not here takes whatever dimension is required.
_OF_UNIT: dict[str, Exponents] = {
    "1": PURE,
    "ms": TIME,
    "mV": VOLTAGE,
    "pA": _exponents(0, 0, 1),
    "nS": CONDUCTANCE,
    "1/ms": RATE,
    "1/mV": _exponents(0, -1),
    "1/(ms mV)": RATE_PER_VOLTAGE,
    "degC": _exponents(0, 0, 0, 1),
    "pF": _exponents(1, -1, 1),
    "MOhm": _exponents(0, 1, -1),
    "mM": CONCENTRATION,
    "um3/ms": PERMEABILITY,
}
#: Units that a parameter may have been meant to be in, in the order in which they are tried.
_REMEDIES = ("1/mV", "mV", "1/ms", "ms", "1/(ms mV)", "nS", "1")
#: Dimensions that places in a file require, by the last part of their key.
_OF_PLACE = {
    "alpha": RATE,
    "beta": RATE,
    "tau": TIME,
    "inf": PURE,
    "conductance": CONDUCTANCE,
    "reversal": VOLTAGE,
    "rectification": PURE,
    "permeability": PERMEABILITY,
    "inside": CONCENTRATION,
    "outside": CONCENTRATION,
    "thermal": VOLTAGE,
}
_WORDS = {
    PURE: "a pure number",
    TIME: "a time (ms)",
    VOLTAGE: "a voltage (mV)",
    CONDUCTANCE: "a conductance (nS)",
    RATE: "a rate (1/ms)",
    CONCENTRATION: "a concentration (mM)",
    PERMEABILITY: "a permeability (um3/ms)",
}


class StatedUnit(NamedTuple):
    """A unit that a model states: as it is written, and its base unit ("1" for a pure number)."""

    written: str
    base: str


@dataclass(frozen=True)
class Use:
    """An expression of the model, and the dimension that it must have.

    Attributes:
        key: where it stands.
        text: as the user wrote it.
        expression: as it was read.
        required: the dimension that its place requires; None where it may have any.
        name: of the definition that it gives, if any.
    """

    key: str
    text: str
    expression: sympy.Expr
    required: Exponents | None = None
    name: str = ""


@dataclass(frozen=True)
class _Dimension:
    """The dimension of a part of an expression.

    Attributes:
        exponents: the dimension; None where the part takes whatever is required.
        firm: whether a stated unit says so. The voltage alone does not, nor does an exponential,
            beside which a factor of 1 with a unit may have been left out.
    """

    exponents: Exponents | None = None
    firm: bool = False

    @property
    def binds(self) -> bool:
        """True if a sum, or a place in the file, cannot take it for anything else."""
        return self.exponents is not None and (self.firm or self.exponents != PURE)


@dataclass(frozen=True)
class _Complaint:
    """Something about the units of one expression: a mistake, or (not `wrong`) a caution."""

    key: str
    text: str
    problem: str
    wrong: bool = True
    advice: str = ""


@dataclass
class _DimensionCheck:
    """One pass over all expressions, with given dimensions of names."""

    known: dict[str, _Dimension]
    key: str = ""
    text: str = ""
    complaints: list[_Complaint] = field(default_factory=list)
    done: dict[sympy.Basic, _Dimension] = field(default_factory=dict)

    def run(self, uses: list[Use]) -> list[_Complaint]:
        """Return the complaints in the order of the expressions, definitions first."""
        for use in uses:
            self.key, self.text = use.key, use.text
            found = self.settled(self.of(use.expression), use.required)
            if use.required is not None:
                self.check_use(found, use.required)
                found = _Dimension(use.required, True) if use.name else found
            if use.name:
                self.known[use.name] = found
                self.done.clear()
        return self.complaints

    def complain(self, problem: str, wrong: bool = True, advice: str = "") -> None:
        self.complaints.append(_Complaint(self.key, self.text, problem, wrong, advice))

    def check_use(self, found: _Dimension, required: Exponents) -> None:
        """Complain where an expression as a whole has not the dimension that its place requires."""
        if found.exponents == required or not found.binds or not found.firm:
            return
        self.complain(
            f"{_in_words(required)} is expected, but this is {_in_words(found.exponents)}"
        )

    def settled(self, found: _Dimension, required: Exponents | None = RATE) -> _Dimension:
        """Complain of a missing "per mV" in a factor, and return the rate or time without it."""
        for rate, per_mv in ((RATE, _VOLTAGE_RATE), (TIME, _power(_VOLTAGE_RATE, -1))):
            if found.exponents == per_mv and found.firm and required in (None, rate):
                self.complain(
                    f"in {_unit(per_mv)}, so a factor that is given in 1/ms is per mV",
                    wrong=False,
                    advice='write its unit as "1/(ms mV)"',
                )
                return _Dimension(rate, True)
        return found

    # dimensions of parts

    def of(self, node: Any) -> _Dimension:
        """Return the dimension of a part; each is worked out once."""
        if node not in self.done:
            found = self.found(node)
            absurd = found.exponents and max(map(abs, found.exponents)) > _LARGEST_EXPONENT
            self.done[node] = _Dimension() if absurd else found
        return self.done[node]

    def found(self, node: Any) -> _Dimension:
        if node.is_Symbol:
            return self.known.get(node.name, _Dimension())
        if node.is_Number or not node.free_symbols:
            return _Dimension()
        if isinstance(node, sympy.Mul):
            return self.product(node)
        if isinstance(node, sympy.Pow):
            return self.power(node)
        if isinstance(node, (sympy.Add, sympy.Min, sympy.Max, Relational)):
            return self.alike(node, node.args)
        if isinstance(node, sympy.Piecewise):
            pairs = [pair for pair in node.args if isinstance(pair, ExprCondPair)]
            for pair in pairs:
                self.of(pair.cond)
            return self.alike(node, [pair.expr for pair in pairs])
        if isinstance(node, sympy.Abs):
            return self.of(node.args[0])
        if isinstance(node, BooleanFunction):
            for part in node.args:
                self.of(part)
            return _Dimension()
        for argument in node.args:
            self.check_pure(argument, f"the argument of {_name(node)}")
        return _Dimension(PURE)

    def product(self, node: sympy.Mul) -> _Dimension:
        numbers = [f for f in node.args if not f.free_symbols and f != -1]
        parts = [(f, self.of(f)) for f in node.args if f.free_symbols]
        total, firm, firmly_pure = PURE, False, False
        for _, part in parts:
            if part.exponents is None:
                return _Dimension()
            total = _times(total, part.exponents)
            firm |= part.firm
            firmly_pure |= part.firm and part.exponents == PURE
        above = any(p.exponents != PURE and not _is_below(f) for f, p in parts)
        if numbers and not (total != PURE and above and all(map(_is_count, numbers))):
            return _Dimension()  # in 5/x the 5 has a unit of its own
        return _Dimension(total, firmly_pure if total == PURE else firm)

    def power(self, node: sympy.Pow) -> _Dimension:
        base, exponent = self.of(node.base), node.exp
        if exponent.free_symbols:
            self.check_pure(node.base, "the base of a power that varies")
            self.check_pure(exponent, "an exponent")
            return _Dimension(PURE)
        if base.exponents is None:
            return base
        share = Fraction(float(exponent)).limit_denominator(1000)
        return _Dimension(_power(base.exponents, share), base.firm)

    def alike(self, node: Any, parts: Any) -> _Dimension:
        """Return the dimension that terms of a sum, or sides of a comparison, have in common."""
        found = [(part, self.of(part)) for part in parts]
        rates = any(f.exponents == RATE and f.firm for _, f in found)
        if rates:
            found = [(part, self.settled(f)) for part, f in found]
        binding = [(part, f) for part, f in found if f.binds]
        firm = any(f.firm for _, f in binding)
        if not binding:
            pure = all(f.exponents == PURE or _is_count(part) for part, f in found)
            return _Dimension(PURE) if pure else _Dimension()  # 1 + exp(x), but not 0.05 + exp(x)
        first, shared = binding[0]
        for part, other in binding[1:]:
            if other.exponents != shared.exponents and firm:
                relation = (
                    "these are compared" if isinstance(node, Relational) else "in one sum stand"
                )
                if isinstance(node, (sympy.Min, sympy.Max, sympy.Piecewise)):
                    relation = "one result is chosen from"
                self.complain(
                    f"{relation} {_excerpt(first)}, {_in_words(shared.exponents)}, "
                    f"and {_excerpt(part)}, {_in_words(other.exponents)}"
                )
                break
            if other.exponents != shared.exponents:
                return _Dimension()
        return _Dimension(shared.exponents, firm)

    def check_pure(self, part: Any, place: str) -> None:
        """Complain where a part that must be a pure number has a dimension."""
        found = self.of(part)
        if found.exponents in (None, PURE):
            return
        if found.firm:
            self.complain(
                f"{place}, {_excerpt(part)}, is {_in_words(found.exponents)}, not a pure number"
            )
        elif found.exponents == VOLTAGE:
            self.complain(
                f"{place}, {_excerpt(part)}, is {_in_words(found.exponents)}, so the slope is "
                "1/mV, 25 elementary charges",
                wrong=False,
                advice="divide the voltage by a slope, as in exp(v/10) or exp(z*v)",
            )


def uses_of(
    read: Mapping[str, tuple[str, sympy.Expr]],
    names: Mapping[str, str],
    units: Mapping[str, StatedUnit],
) -> list[Use]:
    """Return the expressions of a model file, each with the dimension that its place requires.

    Arguments:
        read: text and expression by dotted key, such as ``gates.m.tau``.
        names: the keys of definitions by their names, each after those that it uses.
        units: those that are stated, of parameters and ties, by name.
    """
    uses = []
    for name, key in names.items():
        required = _OF_UNIT.get(units[name].base) if name in units else _required(key)
        uses.append(Use(key, *read[key], required, name))
    others = [key for key in read if key not in names.values()]
    return uses + [Use(key, *read[key], _required(key)) for key in others]


def _required(key: str) -> Exponents | None:
    parts, last = key.split("."), key.rpartition(".")[2]
    block = parts[0]
    if block == "currents":  # currents.NAME.conductance, but currents.NAME.rates.C -> O
        block = parts[2] if parts[2] == "rates" else "current"
    if block in ("gates", "current", "leak"):
        return _OF_PLACE.get(last)
    return RATE if block == "rates" else None


def check_units(
    uses: list[Use],
    units: Mapping[str, StatedUnit],
    refuse: Callable[[str, str], InputError],
    place: Callable[[str], str],
) -> tuple[Caution, ...]:
    """Return cautions about the units of a model.

    Arguments:
        uses: all expressions, definitions before those that use them.
        units: those that are stated, by name.
        refuse: makes the error of a message and a key.
        place: gives file and key in words, for a caution.

    Raises:
        What `refuse` makes, where two stated units contradict each other.
    """
    complaints = _complaints(uses, units)
    wrong = next((c for c in complaints if c.wrong), None)
    if wrong is not None:
        used = _units_used(wrong.key, uses, units)
        raise refuse(
            f'"{wrong.text}": {wrong.problem}'
            + (f" ({used})" if used else "")
            + _remedy(wrong, uses, units),
            wrong.key,
        )
    return each_once(
        Caution(place(c.key), f'"{c.text}": {c.problem}', c.advice) for c in complaints
    )


def _complaints(uses: list[Use], units: Mapping[str, StatedUnit]) -> list[_Complaint]:
    stated = {name: _OF_UNIT.get(unit.base) for name, unit in units.items()}
    known = {name: _Dimension(found, True) for name, found in stated.items() if found is not None}
    return _DimensionCheck(known | {V.name: _Dimension(VOLTAGE)}).run(uses)


def _remedy(wrong: _Complaint, uses: list[Use], units: Mapping[str, StatedUnit]) -> str:
    """Return as advice the one unit that would make all dimensions agree, if there is one."""
    for name in islice(_names_behind(wrong.key, uses), _MOST_NAMES):
        for unit in _REMEDIES if name in units and name != "celsius" else ():
            changed = _complaints(uses, {**units, name: StatedUnit(unit, unit)})
            if not any(c.wrong for c in changed) and len(changed) <= 1:
                written = "no unit" if unit == "1" else f'unit "{unit}"'
                return f"; {name} with {written} would be right"
    return "; correct a unit, or leave out units that are not sure"


def _units_used(key: str, uses: list[Use], units: Mapping[str, StatedUnit]) -> str:
    named = [
        f"{name} in {units[name].written}" for name in _names_behind(key, uses) if name in units
    ]
    return ", ".join(named[:6])


def _names_behind(key: str, uses: list[Use]) -> Iterator[str]:
    """Yield the names that an expression uses: its own first, then those of its definitions."""
    by_name = {use.name: use for use in uses if use.name}
    pending, seen = [use for use in uses if use.key == key], set[str]()
    while pending:
        for name in sorted(s.name for s in pending.pop(0).expression.free_symbols):
            if name not in seen:
                seen.add(name)
                yield name
                pending += [by_name[name]] if name in by_name else []


def _times(a: Exponents, b: Exponents) -> Exponents:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _power(a: Exponents, power: Fraction | int) -> Exponents:
    return tuple(x * power for x in a)


def _is_count(number: Any) -> bool:
    return bool(number.is_number) and float(number) == int(number) and abs(number) <= _LARGEST_COUNT


def _is_below(factor: Any) -> bool:
    """Return whether a factor stands in the denominator."""
    return bool(isinstance(factor, sympy.Pow) and factor.exp.is_negative)


def _in_words(exponents: Exponents | None) -> str:
    assert exponents is not None
    return _WORDS.get(exponents) or f"in {_unit(exponents)}"


def _unit(exponents: Exponents) -> str:
    """Return a dimension as a unit, such as ``mV/ms``."""
    known = next((unit for unit, found in _OF_UNIT.items() if found == exponents), None)
    if known:
        return known
    pairs = list(zip(_SYMBOLS[::-1], exponents[::-1], strict=True))
    above = [_with_power(s, p) for s, p in pairs if p > 0]
    below = [_with_power(s, -p) for s, p in pairs if p < 0]
    under = f"({' '.join(below)})" if len(below) > 1 else "".join(below)
    return (" ".join(above) or "1") + (f"/{under}" if under else "")


def _with_power(symbol: str, power: Fraction) -> str:
    return symbol if power == 1 else f"{symbol}^{power}"


def _name(node: Any) -> str:
    return type(node).__name__.lower()


def _excerpt(part: Any) -> str:
    text = str(part)
    return text if len(text) <= 60 else text[:57] + "..."
