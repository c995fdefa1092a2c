"""The rows of `parameters` in a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from channelfit.model.channel import Parameter, Prior, Tie
from channelfit.model.ions import ion_variable
from channelfit.model.scope import Scope, check_cell, check_word
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.units import Membrane, parse_quantity, unit_factor

#: Keys that may be mappings by cell where a parameter is per cell, and the word in such a mapping
#: that stands for the cells which it does not name.
BY_CELL, OTHERS = ("range", "value", "fixed"), "others"
#: The largest number of a parameter in its base unit; the product of two such numbers is finite.
LARGEST = 1e150


def is_tie(row: object) -> bool:
    """Return whether a row says that its parameter follows from others."""
    return isinstance(row, Mapping) and row.get("tie") is not None


def read_parameter(root: Section, membrane: Membrane, name: str, row: object) -> Parameter:
    """Return a parameter of its own, in base units. Raises InputError."""
    key = f"parameters.{name}"
    check_word(root, name, key)
    section = Section(row, root.file, root.path(key))
    section.expect(KEYS["parameter"])
    assert isinstance(row, Mapping)
    by_cell = {
        entry: {str(cell): value for cell, value in section.take(entry).items()}
        for entry in BY_CELL
        if isinstance(section.take(entry), Mapping)
    }
    if section.take("per") is None:
        for entry in by_cell:
            raise section.error("only a parameter with `per: cell` has one for each cell", entry)
        return _read_one(section, membrane, name)
    section.choice("per")
    shared = {k: v for k, v in row.items() if str(k) not in ("per", *by_cell)}
    return _read_per_cell(section, membrane, name, shared, by_cell)


def _read_per_cell(
    section: Section,
    membrane: Membrane,
    name: str,
    shared: Mapping[str, object],
    by_cell: Mapping[str, Mapping[str, object]],
) -> Parameter:
    """Return a parameter of which every cell has a value of its own.

    Arguments:
        section: its whole row.
        shared: the settings of all cells.
        by_cell: by key the values of each cell, with those of all others under `OTHERS`.
    """

    def of(cell: str) -> Section:
        """Return the row of the parameter with the values that hold for a cell."""
        own = {k: values.get(cell, values.get(OTHERS)) for k, values in by_cell.items()}
        stated = {k: value for k, value in own.items() if value is not None}
        row = Section({**shared, **stated}, section.file, section.key)
        row.expect(KEYS["parameter"])
        return row

    found = []
    for cell in dict.fromkeys(cell for values in by_cell.values() for cell in values):
        if cell == OTHERS:
            continue
        check_cell(section, cell, next(key for key in by_cell if cell in by_cell[key]))
        try:
            found.append((cell, _read_one(of(cell), membrane, name)))
        except InputError as error:
            raise InputError(f"{cell}: {error.message}", error.file, error.key) from None
    rest = of(OTHERS)
    needed = "value" if "fixed" in rest and rest.flag("fixed") else "range"
    if found and needed not in rest:  # every cell has to be named
        lower, upper = min(p.lower for _, p in found), max(p.upper for _, p in found)
        hull = replace(found[0][1], lower=lower, upper=upper, value=None, fixed=False)
        return replace(hull, per_cell=True, cells=tuple(found), covers=False)
    return replace(_read_one(rest, membrane, name), per_cell=True, cells=tuple(found))


def _read_one(section: Section, membrane: Membrane, name: str) -> Parameter:
    """Return a parameter that has one range and one value for all cells."""
    section.take("per")
    section.take("tie")
    own = _input(section)
    factor, unit = _unit(section, membrane)
    value = section.number("value")
    value = None if value is None else _in_base_unit(section, factor, value, "value")
    fixed = section.flag("fixed")
    if fixed and value is None:
        raise section.error("a fixed parameter needs a value", "value")
    lower = upper = value or 0.0
    if "range" in section or not fixed:
        lower, upper = _range(section, factor)
    scale = section.choice("scale")
    parameter = Parameter(name, unit, lower, upper, scale, value, fixed, input=own)
    prior = _prior(section, parameter, factor)
    section.finish()
    _check_parameter(section, parameter)
    return replace(parameter, prior=prior)


def _input(section: Section) -> str:
    """Return NEURON's name of a quantity that the cell decides; empty where there is none."""
    own = section.text("input") if section.take("input") is not None else ""
    if own and ion_variable(own) is None:
        raise section.error(
            f"{shown(own)} is no variable of an ion in NEURON; write for example ek for a "
            "reversal potential, cai or cao for a concentration",
            "input",
        )
    return own


def read_tie(root: Section, scope: Scope, membrane: Membrane, name: str, row: object) -> Tie:
    """Return a parameter that follows from others by a definition of the scope."""
    key = f"parameters.{name}"
    section = Section(row, root.file, root.path(key))
    section.expect(KEYS["parameter"])
    for other in ("fixed", "prior", "per", "input"):
        if section.take(other):
            raise section.error(f"a tied parameter follows from others; leave {other} out", other)
    factor, unit = _unit(section, membrane)
    for unused in ("value", "scale"):  # they may stay from when the parameter was free
        section.take(unused)
    scope.announce(name, key)
    scope.texts[name] = (f"{key}.tie", section.take("tie"))
    if "range" not in section:
        return Tie(name, unit)
    lower, upper = _range(section, factor)
    if not lower < upper:
        raise section.error(f"{lower:g} is not below {upper:g}", "range")
    return Tie(name, unit, lower, upper)


def plain_number(section: Section, value: object, key: str) -> float:
    """Return a finite number without a unit. Raises InputError with its place."""
    try:
        return parse_quantity(value, "none")
    except InputError as error:
        raise error.at(section.file, section.path(key)) from None


def _unit(section: Section, membrane: Membrane) -> tuple[float, str]:
    """Return the factor from the parameter's unit to the base unit, and the name of the latter."""
    try:
        factor, unit = unit_factor(section.text("unit"), membrane=membrane)
    except InputError as error:
        raise error.at(section.file, section.path("unit")) from None
    return factor, "" if unit in ("1", "dimensionless") else unit


def _range(section: Section, factor: float) -> tuple[float, float]:
    span = section.items("range", ...)
    if len(span) != 2:
        raise section.error(f"a range is [lower, upper], not {shown(span)}", "range")
    ends = (plain_number(section, x, "range") for x in span)
    lower, upper = (_in_base_unit(section, factor, x, "range") for x in ends)
    return lower, upper


def _in_base_unit(section: Section, factor: float, number: float, key: str) -> float:
    """Return a number in the base unit. Raises InputError for one that would overflow."""
    if abs(factor * number) > LARGEST:
        raise section.error(f"{number:g} is beyond {LARGEST:g} in the base unit", key)
    return factor * number


def _prior(section: Section, parameter: Parameter, factor: float) -> Prior | None:
    """Read ``{normal: [mean, sd]}`` or ``{lognormal: [median, factor]}`` with its unit."""
    if section.take("prior") is None:
        return None
    if parameter.fixed:
        raise section.error("a fixed parameter has no prior", "prior")
    row = section.section("prior")
    row.expect(KEYS["prior"])
    if ("normal" in row) == ("lognormal" in row):
        raise row.error("either normal: [mean, sd] or lognormal: [median, factor] was expected")
    kind = "normal" if "normal" in row else "lognormal"
    pair = row.items(kind)
    if len(pair) != 2:
        raise row.error(f"two numbers were expected, not {shown(pair)}", kind)
    center, spread = (plain_number(row, x, kind) for x in pair)
    if kind == "normal":
        if spread <= 0:
            raise row.error(f"a standard deviation above 0 was expected, not {spread:g}", kind)
        return Prior(kind, factor * center, factor * spread)
    if center <= 0 or spread <= 1:
        raise row.error(
            f"a median above 0 and a factor above 1 were expected, not {center:g} and {spread:g}",
            kind,
        )
    if parameter.lower <= 0:
        raise row.error("a lognormal prior needs a range that starts above 0", kind)
    return Prior(kind, factor * center, spread)


def _check_parameter(section: Section, parameter: Parameter) -> None:
    """Raise InputError for an empty range, one that a log scale excludes, or a value outside."""
    lower, upper, value = parameter.lower, parameter.upper, parameter.value
    if parameter.fixed:
        return
    if not lower < upper:
        raise section.error(
            f"the lower end {lower:g} is not below the upper end {upper:g}; "
            f"to hold a parameter still write `fixed: true`",
            "range",
        )
    if parameter.scale == "log" and lower <= 0:
        raise section.error(
            f"a log scale needs a lower end above 0, not {lower:g}; try {upper * 1e-6:g}",
            "range",
        )
    if value is not None and not lower <= value <= upper:
        raise section.error(
            f"the value {value:g} lies outside the range [{lower:g}, {upper:g}]; change "
            "either, or leave the value out where no data are simulated from it",
        )
