"""JSON Schemas of the files that users write, made from the table of keys that the readers use.

Editors complete and check YAML by them. They are of draft 07, which all editors understand. What a
schema refuses the reader refuses, too; the reader alone sees what takes more than the shape of a
file, such as a parameter that no expression uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from channelfit.reading.keys import KEYS, OPTIMIZER, SETTINGS, STOP, is_function, shapes
from channelfit.reading.keys.shapes import NAME, Key, Keys, Shape, either
from channelfit.reading.units import NUMBER, WITH_UNIT, known_units, unit_pattern
from channelfit.reading.units import dimensions as all_dimensions

Schema = dict[str, Any]

#: The kinds of files, and the section that the whole file is.
FILES = {
    "model": "model",
    "protocol": "protocol",
    "fit": "fit file",
    "function": "function",
    "cell": "cell",
    "curve": "curve",
    "cluster": "cluster",
    "night": "night",
}
#: All sections by name: those that `Section` reads, and those that a search reads.
SECTIONS: dict[str, Keys] = {**KEYS, "stop": STOP, "optimizer": OPTIMIZER}
#: The beginning of the title of every schema.
TITLE = "channelfit: "
_DRAFT = "http://json-schema.org/draft-07/schema#"
_TEXT = ("string", "number")


def kind_of(document: Mapping[str, Any]) -> str:
    """Return the kind of file, a key of `FILES`, that a document is, as readers decide."""
    if isinstance(document.get("model"), str):
        return "fit"
    if is_function(document):
        return "function"
    if "membrane" in document or "channels" in document:
        return "cell"
    if "curve" in document:
        return "curve"
    if any(key in document for key in ("local", "scheduler", "class")):
        return "cluster"
    if "jobs" in document:  # those of a cluster are a number
        return "night"
    return "protocol" if "segments" in document else "model"


def file_schema(kind: str) -> Schema:
    """Return the schema of a whole file of a kind, a key of `FILES`."""
    writer = _SchemaWriter()
    root = writer.section(FILES[kind])
    if kind == "model":  # or in the form of 2012
        printed = {"required": ["model"], "properties": {"model": {"type": "object"}}}
        root = {"if": printed, "then": writer.section("printed file"), "else": root}
    return writer.whole(f"{TITLE}a {kind} file", root)


def section_schema(name: str) -> Schema:
    """Return the schema of one section, a key of `SECTIONS`, by itself."""
    writer = _SchemaWriter()
    return writer.whole(f"{TITLE}{name}", writer.section(name))


class _SchemaWriter:
    """Writes the definitions to which a schema refers, each once."""

    def __init__(self) -> None:
        self.definitions: Schema = {}

    def whole(self, title: str, root: Schema) -> Schema:
        """Return a schema with all definitions to which it refers."""
        found = dict(sorted(self.definitions.items()))
        root = {"allOf": [root]} if "$ref" in root else root
        return {"$schema": _DRAFT, "title": title, **root, "definitions": found}

    def _defined(self, name: str, schema: Schema) -> Schema:
        self.definitions.setdefault(name, schema)
        return {"$ref": f"#/definitions/{name}"}

    # sections

    def section(self, name: str) -> Schema:
        """Return a reference to the schema of a section."""
        word = name.replace(" ", "-")
        if word not in self.definitions:
            self.definitions[word] = {}  # so that a section may hold itself
            self.definitions[word] = self._keys(SECTIONS[name])
        return {"$ref": f"#/definitions/{word}"}

    def _keys(self, keys: Keys) -> Schema:
        rows = {name: key for name, key in keys.items() if not key.elsewhere}
        if keys is OPTIMIZER:
            rows |= {k: v for own in reversed(SETTINGS.values()) for k, v in own.items()}
        found = _mapping(keys.meaning, self._properties(rows, keys.null))
        if needed := [name for name, key in rows.items() if key.required]:
            found["required"] = needed
        rules = [*_rules(keys), *(_of_each_optimizer() if keys is OPTIMIZER else [])]
        if rules:
            found["allOf"] = rules
        if keys.rules.needs:
            found["dependencies"] = {key: list(others) for key, others in keys.rules.needs.items()}
        return found

    def _properties(self, keys: Mapping[str, Key], null: bool) -> Schema:
        return {name: self._property(key, null or key.null) for name, key in keys.items()}

    def _property(self, key: Key, null: bool) -> Schema:
        found = self._joined(key.shape, null)
        found = {"allOf": [found]} if "$ref" in found else found
        found = {"description": key.meaning, **found}
        if key.default not in (None, "", {}) and not key.otherwise:
            found["default"] = key.default
        if key.example is not None:
            found["examples"] = [key.example]
        return found

    # shapes

    def _joined(self, shape: Shape, null: bool = False) -> Schema:
        """Return the schema of a shape by type, so that editors mark mistakes in the right part."""
        kinds = self._kinds(shape)
        if null:  # naming the other types, too, tells a reader of the editor's message all of them
            others = ["null", *kinds] if "scalar" not in kinds else "null"
            kinds.setdefault("scalar", []).append({"type": others})
        parts = {kind: _any_of(kinds[kind]) for kind in ("object", "array") if kind in kinds}
        found = _any_of(kinds["scalar"]) if "scalar" in kinds else None
        for kind, part in reversed(parts.items()):
            found = part if found is None else {"if": {"type": kind}, "then": part, "else": found}
        assert found is not None
        return found

    def _kinds(self, shape: Shape) -> dict[str, list[Schema]]:
        """Return the schemas of a shape for mappings, for lists and for all else."""
        found: dict[str, list[Schema]] = {}
        if isinstance(shape, shapes.Either):
            for one in shape.shapes:
                for kind, schemas in self._kinds(one).items():
                    found.setdefault(kind, []).extend(schemas)
        elif isinstance(shape, shapes.List):
            found = self._kinds(shape.of) if shape.least <= 1 else {}
            found["array"] = [*found.get("array", []), self._list(shape)]
        else:
            mapping = isinstance(shape, shapes.Within | shapes.Named | shapes.PartialSections)
            found["object" if mapping else "scalar"] = [self.of(shape)]
        return found

    def _list(self, shape: shapes.List) -> Schema:
        found: Schema = {"type": "array", "items": self._joined(shape.of)}
        if shape.least:
            found["minItems"] = shape.least
        if shape.most is not None:
            found["maxItems"] = shape.most
        return found

    def of(self, shape: Shape) -> Schema:
        """Return the schema of a shape that is no list and no choice of shapes."""
        match shape:
            case shapes.Text():
                return {"type": "string" if shape.strict else list(_TEXT)}
            case shapes.Name():
                return {
                    "type": "string",
                    "pattern": f"^{NAME}$",
                    "patternErrorMessage": "a letter, then letters, digits or _ were expected",
                }
            case shapes.Quantity():
                return self._quantity(shape)
            case shapes.UnitText():
                return self._unit(shape)
            case shapes.Number() | shapes.Integer():
                found = {"minimum": shape.least, "maximum": shape.most}
                bounds = {key: bound for key, bound in found.items() if bound is not None}
                whole = isinstance(shape, shapes.Integer)
                return {"type": "integer" if whole else "number"} | bounds
            case shapes.Flag():
                return {"type": "boolean"}
            case shapes.Choice():
                return {"enum": list(shape.words)}
            case shapes.Expression():
                return {"type": list(_TEXT)}
            case shapes.NestedNumbers():
                numbers = {"type": ["number", "array"], "items": {"$ref": "#/definitions/numbers"}}
                return self._defined("numbers", numbers)
            case shapes.Named():
                return self._named(shape)
            case shapes.Within():
                return self.section(shape.section)
            case shapes.PartialSections():
                return self._changes(shape)
        raise LookupError(f"no schema for {shape}")

    def _quantity(self, shape: shapes.Quantity) -> Schema:
        units = _units((shape.dimension,), shape.sized)
        # in a batch a concentration may be a name in braces, which stands for that of a well
        number = rf"(?:{NUMBER}|\{{\w+\}})" if shape.dimension == "concentration" else NUMBER
        quantity = rf"\s*{number}\s*{unit_pattern([shape.dimension], shape.sized)}?\s*"
        name = f"quantity of {shape.dimension}{' or density' * shape.sized}"
        message = f"a number was expected{f', with or without a unit: {units}' if units else ''}"
        if isinstance(shape, shapes.ConstantQuantity):
            quantity = rf"(?:{quantity}|(?!{WITH_UNIT}$)[\s\S]*)"
            message += "; or an expression of parameters"
            name += " or expression"
        schema = {
            "type": list(_TEXT),
            "pattern": f"^{quantity}$",
            "patternErrorMessage": message,
        }
        return self._defined(name.replace(" ", "-"), schema)

    def _unit(self, shape: shapes.UnitText) -> Schema:
        dimensions = shape.dimensions or all_dimensions()
        pattern = unit_pattern(dimensions, shape.sized) + "?" * ("none" in dimensions)
        schema = {
            "type": list(_TEXT),
            "pattern": rf"^\s*{pattern}\s*$",
            "patternErrorMessage": f"a unit was expected: {_units(dimensions, shape.sized)}",
            "examples": _units(dimensions, False).split(", "),
        }
        of = dimensions[0] if len(dimensions) == 1 else "any"
        return self._defined(f"unit-of-{of}{'-or-density' * shape.sized}", schema)

    def _named(self, shape: shapes.Named) -> Schema:
        found: Schema = {"type": "object", "additionalProperties": self._joined(shape.of)}
        if shape.pattern:
            found["propertyNames"] = {
                "pattern": f"^(?:{shape.pattern})$",
                "patternErrorMessage": f"this cannot be the name of a {shape.what}",
            }
        if shape.least:
            found["minProperties"] = shape.least
        return found

    def _changes(self, shape: shapes.PartialSections) -> Schema:
        name = f"changed-{shape.sections[0]}"
        merged: dict[str, Key] = {}
        for section in reversed(shape.sections):
            for word, key in KEYS[section].items():
                other = merged.get(word, key)
                both = key.shape if other.shape == key.shape else either(key.shape, other.shape)
                merged[word] = Key(both, key.meaning, key.example)
        meaning = "Changes to what the model's file says; null takes a key away."
        return self._defined(name, _mapping(meaning, self._properties(merged, null=True)))


def _mapping(meaning: str, properties: Schema) -> Schema:
    return {
        "description": meaning,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _any_of(schemas: list[Schema]) -> Schema:
    """Return one of several schemas; types that nothing narrows are joined."""
    plain = [s["type"] for s in schemas if set(s) == {"type"}]
    types = dict.fromkeys(t for one in plain for t in ([one] if isinstance(one, str) else one))
    left = [s for s in schemas if set(s) != {"type"}]
    if types:
        left.append({"type": list(types) if len(types) > 1 else next(iter(types))})
    return left[0] if len(left) == 1 else {"anyOf": left}


def _units(dimensions: Iterable[str], sized: bool) -> str:
    """Return the units of some dimensions, in words."""
    known = known_units(d for d in dimensions if d != "none")
    return known + " and these per area or capacitance" * sized


def _rules(keys: Keys) -> list[Schema]:
    """Return which keys of a section go together."""
    found: list[Schema] = []
    for group in keys.rules.one:
        message = f"one of {', '.join(group)} was expected"
        found.append({"anyOf": [{"required": [key]} for key in group], "errorMessage": message})
    for group in (*keys.rules.one, *keys.rules.apart):
        for k, one in enumerate(group[:-1]):
            found.append(_without_others(keys, one, group[k + 1 :]))
    return found


def _without_others(keys: Keys, one: str, others: Iterable[str]) -> Schema:
    """Return a key beside which others must not be given; a null without meaning may stand."""
    empty = {key: keys.null or keys[key].null for key in (one, *others)}
    present: Schema = {"required": [one]}
    if empty[one]:
        present["properties"] = {one: {"not": {"type": "null"}}}
    refused = {key: {"type": "null"} if empty[key] else False for key in others}
    return {"if": present, "then": {"properties": refused}}


def _of_each_optimizer() -> list[Schema]:
    """Return which settings each optimizer has; without a name it is one of two."""
    known = dict.fromkeys(setting for own in SETTINGS.values() for setting in own)
    unnamed = SETTINGS["hybrid"] | SETTINGS["genetic"]
    found: list[Schema] = [
        {"if": {"not": {"required": ["name"]}}, "then": _without(known, unnamed)}
    ]
    for name, own in SETTINGS.items():
        named = {"required": ["name"], "properties": {"name": {"const": name}}}
        found.append({"if": named, "then": _without(known, own)})
    return found


def _without(known: Iterable[str], own: Mapping[str, Key]) -> Schema:
    return {"properties": {setting: False for setting in known if setting not in own}}
