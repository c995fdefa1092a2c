"""The reference of every key of every file, as a page in Markdown, from the readers' own table."""

from __future__ import annotations

import json
from collections.abc import Iterable

from channelfit.reading.documents import dump_yaml
from channelfit.reading.keys import OPTIMIZER, SETTINGS, shapes
from channelfit.reading.keys.shapes import Key, Keys, Shape
from channelfit.reading.schema import FILES, SECTIONS
from channelfit.reading.units import base_unit, known_units

#: The beginning of the page.
OPENING = """# Every key of every file

This page is made from the table by which the readers check a file, so that what stands here is
what is accepted. A key that is not known, or that would change nothing, is refused with the file,
the key and what would be right. `channelfit schema` gives the same as JSON Schemas, by which an
editor completes and checks these files.

A quantity is a number with a unit, such as `-80 mV`, or a number alone, which then is in the unit
that is named first. Voltages are those of the inside of the membrane against the outside, and
currents are positive outward. A list of one entry may be written without brackets. The guide to
models explains expressions.
"""


def reference() -> str:
    """Return the whole page: every section of every kind of file, each once."""
    parts, done = [OPENING], set[str]()
    for kind, root in FILES.items():
        roots = [root, "printed file"] if kind == "model" else [root]
        for name in [name for one in roots for name in _reachable(one)]:
            if name not in done:
                done.add(name)
                parts.append(section_reference(name))
    return "\n".join(parts)


def section_reference(name: str) -> str:
    """Return the part of the page about one section, a key of `schema.SECTIONS`."""
    keys = SECTIONS[name]
    level = "##" if name in FILES.values() else "###"
    lines = [f"{level} {_title(name)}", "", keys.meaning, ""]
    if places := _places(name):
        lines += [f"It stands in {places}.", ""]
    if rules := _rules(keys):
        lines += [*(f"- {rule}" for rule in rules), ""]
    lines += _table(keys)
    if keys is OPTIMIZER:
        for optimizer, own in SETTINGS.items():
            lines += ["", f"Settings of **`{optimizer}`**: {own.meaning}.", "", *_table(own)]
    return "\n".join([*lines, ""])


def _reachable(root: str) -> Iterable[str]:
    """Return the sections that stand in one, itself first, each after the one around it."""
    found, left = dict[str, None](), [root]
    while left:
        name = left.pop(0)
        if name in found:
            continue
        found[name] = None
        inner = [
            section
            for key in SECTIONS[name].values()
            for part in key.shape.parts()
            for section in _sections(part)
        ]
        left = inner + left
    return found


def _places(name: str) -> str:
    """Return the keys under which a section stands, with links to their sections."""
    places = [
        f"`{key}` of [{_named(place)}](#{_anchor(place)})"
        for place, keys in SECTIONS.items()
        for key, row in keys.items()
        if any(
            isinstance(part, shapes.Within) and part.section == name for part in row.shape.parts()
        )
    ]
    return " and in ".join(places)


def _named(section: str) -> str:
    """Return the name of a section within a sentence."""
    return _title(section).replace("`", "").replace("A ", "a ")


def _sections(shape: Shape) -> tuple[str, ...]:
    if isinstance(shape, shapes.PartialSections):
        return shape.sections
    return (shape.section,) if isinstance(shape, shapes.Within) else ()


def _rules(keys: Keys) -> list[str]:
    """Return which keys of a section go together, in sentences."""
    rules = keys.rules
    found = [f"Exactly one of {_words(group)} must be given." for group in rules.one]
    for group in rules.apart:
        if len(group) == 2:
            found.append(f"Either `{group[0]}` or `{group[1]}` may be given, not both.")
        else:
            found.append(f"At most one of {_words(group)} may be given.")
    return found + [f"`{key}` needs {_words(other)}." for key, other in rules.needs.items()]


def _words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(keys: Keys) -> list[str]:
    rows = ["| key | what it is | how it is written |", "|---|---|---|"]
    for name, key in keys.items():
        if key.elsewhere:
            continue
        meaning = [key.meaning, f"*Without it:* {without}." if (without := _without(key)) else ""]
        in_yaml = dump_yaml({name: key.example}, in_braces=True).strip()[1:-1]
        example = "" if key.example is None else f"`{in_yaml}`"
        how = [written(key.shape) + ", or null" * (keys.null or key.null), example]
        cells = (f"`{name}`", *("<br>".join(filter(None, cell)) for cell in (meaning, how)))
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return rows


def _without(key: Key) -> str:
    """Return in words what holds where a key is left out."""
    if key.required:
        return "it is needed"
    if key.otherwise:
        return key.otherwise
    if key.default in (None, "", {}):
        return ""
    if isinstance(key.default, bool):
        return f"`{json.dumps(key.default)}`"
    if isinstance(key.default, float):
        units = [p.dimension for p in key.shape.parts() if isinstance(p, shapes.Quantity)]
        unit = base_unit(units[0]) if units else ""
        return f"`{key.default:g}{f' {unit}' if unit else ''}`"
    return f"`{key.default}`"


def _title(name: str) -> str:
    files = {section: f"A {kind} file" for kind, section in FILES.items()}
    return files.get(name, f"`{name}`")


# --- shapes in words ------------------------------------------------------------------------------


def written(shape: Shape) -> str:
    """Return how a value is written, in words."""
    match shape:
        case shapes.Text():
            return shape.what
        case shapes.Name():
            return "a name"
        case shapes.ConstantQuantity():
            return f"{_quantity(shape)}, or an expression of parameters"
        case shapes.Quantity():
            return _quantity(shape)
        case shapes.Number():
            return f"a number{_span(shape.least, shape.most)}"
        case shapes.UnitText():
            return _with_units("a unit", shape.dimensions, shape.sized)
        case shapes.Integer():
            return f"a whole number{_span(shape.least or None, shape.most)}"
        case shapes.Flag():
            return "`true` or `false`"
        case shapes.Choice():
            return " or ".join(f"`{word}`" for word in shape.words)
        case shapes.Expression():
            of = "" if shape.voltage else " that does not depend on v"
            return f"an expression{of}; it gives {shape.gives}"
        case shapes.NestedNumbers():
            return "a number, or nested lists of numbers"
        case shapes.List(least=1, most=1):
            return written(shape.of)
        case shapes.List(least=2, most=2):
            return f"[first, second], each {written(shape.of)}"
        case shapes.List():
            return f"a list, each entry {written(shape.of)}"
        case shapes.Named():
            return f"a mapping by {shape.what}, each {written(shape.of)}"
        case shapes.Within():
            return f"a mapping: [{shape.section}](#{_anchor(shape.section)})"
        case shapes.PartialSections():
            links = (f"[{name}](#{_anchor(name)})" for name in shape.sections)
            return f"a mapping with keys of {' or '.join(links)}, or null for each"
        case shapes.Either():
            return ", or ".join(map(written, shape.shapes))
    raise LookupError(f"no words for {shape}")


def _quantity(shape: shapes.Quantity) -> str:
    if shape.dimension == "none":
        return "a number"
    article = "an" if shape.dimension[0] in "aeiou" else "a"
    return _with_units(f"{article} {shape.dimension}", (shape.dimension,), shape.sized)


def _with_units(what: str, dimensions: tuple[str, ...], sized: bool) -> str:
    if not dimensions:
        return what
    return f"{what} ({known_units(dimensions)}{'; per area or per capacitance too' * sized})"


def _anchor(name: str) -> str:
    """Return the anchor of a heading, as the builders of Markdown pages derive it."""
    return _title(name).lower().replace("`", "").replace(" ", "-")


def _span(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    return "" if least is None else f", {least:g} or more"
