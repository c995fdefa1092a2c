"""YAML and JSON from users: read as plain data, or refused with one clear message."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from channelfit.reading.errors import InputError, did_you_mean, shown
from channelfit.reading.keys.shapes import (
    Choice,
    Flag,
    Integer,
    Key,
    Keys,
    Quantity,
    Shape,
    Text,
    UnitText,
    Within,
)
from channelfit.reading.texts import decoded, file_size, refuse_foreign
from channelfit.reading.units import Membrane, parse_quantity
from channelfit.reading.yaml_faults import find_fault

_MAX_BYTES, _MAX_JSON_BYTES = 1_000_000, 500_000_000
#: Stands for the default in the table of keys, and for that a key without one is required.
_TABLED: Any = object()


_Kind = TypeVar("_Kind", bound=Shape)


class _Loader(yaml.SafeLoader):
    """PyYAML's SafeLoader with the scalars of YAML 1.2: ``no`` is a word and ``1e-3`` a number.

    It refuses aliases, which could make a small file huge, and keys that are given twice.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise InputError("YAML aliases (*name) are not accepted", key=f"line {mark.line + 1}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise _at_line(node, "a mapping (key: value) was expected")
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            line = f"line {key_node.start_mark.line + 1}"
            if not isinstance(key, (str, int, float)):
                raise InputError(f"a key must be a word, not {key!r}", key=line)
            if key in seen:
                raise InputError(f'"{key}" is given twice', key=line)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node; one with a tag that its text does not fit is refused."""
        if node.tag not in _ACCEPTED:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise _at_line(node, f"the YAML tag {shown(tag)} is not accepted; leave it out")
        try:
            value = super().construct_object(node, deep)  # type: ignore[no-untyped-call]
        except InputError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            message = "a whole number of too many digits" if "digits" in str(error) else ""
            message = message or f"{shown(node.value)} is no value of the YAML tag !!{kind}"
            raise _at_line(node, message) from None
        if isinstance(value, str) and _SURROGATE.search(value):
            raise _at_line(node, f"{shown(value)} holds half of a surrogate pair, which is no text")
        return value


_ACCEPTED = {
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


def _at_line(node: yaml.Node, message: str) -> InputError:
    return InputError(message, key=f"line {node.start_mark.line + 1}")


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in rules if tag in ("tag:yaml.org,2002:null",)]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(  # type: ignore[no-untyped-call]
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises InputError: missing, unreadable, too large, not YAML, or not a mapping; with the line.
    """
    return parse_yaml(read_text(path), path)


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file. Raises InputError where it is missing, too large, or not text."""
    if file_size(path) > _MAX_BYTES:
        raise InputError(f"larger than {_MAX_BYTES:,} bytes; is this the right file?", path)
    try:
        return decoded(Path(path).read_bytes(), path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path) from None


@lru_cache(maxsize=16)
def _loaded(text: str) -> Any:
    """Return a YAML text as plain data; a command asks several times for the same small files."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader, narrowed further


def parse_yaml(text: str, file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML text.

    Arguments:
        file: where the text comes from, for messages.

    Raises InputError: not YAML, or not a mapping; with the line.
    """
    try:
        data = copy.deepcopy(_loaded(text))
    except InputError as error:
        raise error.at(file) from None
    except yaml.MarkedYAMLError as error:
        refuse_foreign(text, file)
        line, problem = find_fault(error, text)
        where = None if line is None else f"line {line}"
        raise InputError(f"not valid YAML: {problem}", file, where) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}"[:300], file) from None
    except RecursionError:
        raise InputError("nested too deeply", file) from None
    if not isinstance(data, dict):
        refuse_foreign(text, file)
        raise InputError("a mapping (lines of `key: value`) was expected", file)
    return data


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the object in a JSON file, of finite numbers.

    Raises InputError: missing, unreadable, too large, not JSON, or not an object; with the line.
    """
    path = Path(path)
    try:
        if file_size(path) > _MAX_JSON_BYTES:
            raise InputError(f"larger than {_MAX_JSON_BYTES:,} bytes; is this the right file?")
        text = path.read_text(encoding="utf-8")
        data = json.loads(text, parse_constant=_no_constant)
        if _ESCAPED.search(text) and _SURROGATE.search(json.dumps(data, ensure_ascii=False)):
            raise InputError("holds half of a surrogate pair, which is no text")
    except InputError as error:
        raise error.at(path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path) from None
    except RecursionError:
        raise InputError("nested too deeply", path) from None
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", path, f"line {error.lineno}") from None
    except ValueError as error:  # not UTF-8, or a whole number of thousands of digits
        raise InputError(f"not valid JSON: {error}", path) from None
    if not isinstance(data, dict):
        raise InputError("an object of JSON ({..}) was expected", path)
    return data


def _no_constant(word: str) -> float:
    raise InputError(f"{word} is not a number in JSON")


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back: text that it would take for a number is quoted."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Return text in double quotes where separators of lines would not survive otherwise."""
    style = '"' if any(c in text for c in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(data: Mapping[str, Any], in_braces: bool = False) -> str:
    """Return plain data as YAML text, keys in their order, which `parse_yaml` gives back.

    Arguments:
        in_braces: whether all of it stands in one line.
    """
    return yaml.dump(
        dict(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10_000 if in_braces else 100,
        default_flow_style=in_braces or None,
    )


class Section:
    """A mapping in a user's file, read key by key.

    `expect` says which keys are accepted and refuses all others, and `finish` refuses those that
    were accepted and never read. Dimensions, words, bounds and defaults are those of the table that
    was announced. Where a method takes a default, it goes before the table's; ``...`` says that the
    key is required here. Every method raises InputError with file and dotted key, and LookupError,
    which is a defect of the program, where the table does not have the key or has another shape.

    Arguments:
        data: what should be a mapping.
        file: the file that it stands in; None where it comes from Python.
        key: the dotted key under which it stands there.
    """

    def __init__(self, data: object, file: str | os.PathLike[str] | None, key: str = "") -> None:
        self.file, self.key = file, key
        if not isinstance(data, Mapping):
            raise self.error(f"a mapping (key: value) was expected, not {shown(data)}")
        self._data = {str(k): v for k, v in data.items()}
        self._keys: Mapping[str, Key] = {}
        self._sections: tuple[str, ...] = ()
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def given(self) -> list[str]:
        """Return the keys that the user has given."""
        return list(self._data)

    def path(self, key: str | None) -> str:
        """Return the dotted key of an entry, for messages."""
        return ".".join(part for part in (self.key, key) if part)

    def error(self, message: str, key: str | None = None) -> InputError:
        """Return an InputError at this place, or at one of its keys."""
        return InputError(message, self.file, self.path(key) or None)

    def take(self, key: str, default: Any = _TABLED) -> Any:
        """Return the value of a key as it was given, or the default."""
        row = self._row(key)
        self._taken.add(key)
        if key in self._data:
            return self._data[key]
        if default is ... or (default is _TABLED and row.required):
            raise self.error(f'"{key}" is missing')
        return row.default if default is _TABLED else default

    def _row(self, key: str) -> Key:
        """Return the row of a key in the table. Raises LookupError where there is none."""
        if key not in self._keys:
            raise LookupError(f"{self.path(key)} is read, but not announced as accepted")
        return self._keys[key]

    def shape(self, key: str, *kinds: type[_Kind]) -> _Kind:
        """Return the shape of a key in the table, or its first part of one of the kinds."""
        shape = self._row(key).shape
        for part in shape.parts():
            if isinstance(part, kinds):
                return part
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise LookupError(f"{self.path(key)} is read as {expected}, but announced as {shape}")

    def _read(self, key: str, default: Any) -> tuple[Any, bool]:
        """Return the value of a key, and whether the user gave it; null may count as absence."""
        value, row = self.take(key, default), self._row(key)
        if value is None and row.null and default is not ...:
            return row.default if default is _TABLED else default, False
        return value, key in self._data

    def text(self, key: str, default: Any = _TABLED) -> Any:
        """Return a text; a number is accepted as its text."""
        value, is_set = self._read(key, default)
        self.shape(key, Text, UnitText, Choice)
        if not is_set:
            return value
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise self.error(f"text was expected, not {shown(value)}", key)
        return str(value).strip()

    def quantity(self, key: str, *, default: Any = _TABLED) -> Any:
        """Return a number, or text with a unit, in the base unit of its dimension."""
        value, is_set = self._read(key, default)
        self.shape(key, Quantity)
        return self.measured(key, value) if is_set else value

    def measured(self, key: str, value: object) -> float:
        """Return one of the quantities under a key, in the base unit of its dimension.

        Arguments:
            value: as the user wrote it.
        """
        try:
            return parse_quantity(value, self.shape(key, Quantity).dimension)
        except InputError as error:
            raise error.at(self.file, self.path(key)) from None

    def number(self, key: str, default: Any = _TABLED) -> Any:
        """Return a plain finite number."""
        if self.shape(key, Quantity).dimension != "none":
            raise LookupError(f"{self.path(key)} is read as a number, but announced with a unit")
        return self.quantity(key, default=default)

    def integer(self, key: str, default: Any = _TABLED) -> Any:
        """Return a whole number within the bounds in the table."""
        (value, is_set), shape = self._read(key, default), self.shape(key, Integer)
        if not is_set:
            return value
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < shape.least or (shape.most is not None and value > shape.most):
            least, most = shape.least, shape.most
            span = f"{least} or more" if most is None else f"from {least} to {most}"
            raise self.error(f"a whole number, {span}, was expected, not {shown(value)}", key)
        return value

    def flag(self, key: str) -> Any:
        """Return the value of a key that is true or false."""
        value, is_set = self._read(key, _TABLED)
        self.shape(key, Flag)
        if is_set and not isinstance(value, bool):
            raise self.error(f"true or false was expected, not {shown(value)}", key)
        return value

    def choice(self, key: str, *, default: Any = _TABLED) -> Any:
        """Return one of a few words."""
        (value, is_set), words = self._read(key, default), self.shape(key, Choice).words
        if is_set and value not in words:
            raise self.error(f"{shown(value)} is not one of {', '.join(words)}", key)
        return value

    def items(self, key: str, default: Any = _TABLED) -> list[Any]:
        """Return a list; a single value counts as a list of one."""
        value = self.take(key, default)
        if isinstance(value, Mapping) or not isinstance(value, (list, tuple)):
            value = [] if value is None else [value]
        return list(value)

    def section(self, key: str, default: Any = _TABLED) -> Section:
        """Return a mapping inside this one, with the keys of the section that the table names."""
        inner = Section(self.take(key, default), self.file, self.path(key))
        shapes = self._row(key).shape.parts()
        inner._sections = tuple(shape.section for shape in shapes if isinstance(shape, Within))
        return inner

    def rows(self, key: str, default: Any = _TABLED) -> Iterator[tuple[str, Any]]:
        """Return the keys and values of a mapping inside this one, in the order of the file."""
        inner = Section(self.take(key, default), self.file, self.path(key))
        return iter(inner._data.items())

    def resolve(self, name: str, key: str) -> Path:
        """Return the path that a text names, relative to this file and with ${NAME} replaced.

        Arguments:
            name: the text, in which ``${NAME}`` stands for the environment variable NAME.
            key: where it stands.
        """

        def variable(match: re.Match[str]) -> str:
            value = os.environ.get(match[1])
            if not value:
                raise self.error(
                    f'"{name}" needs the environment variable {match[1]}, which is not set; '
                    f"set it to the folder that holds these files",
                    key,
                )
            return value

        if "\0" in name:
            raise self.error("a file name cannot hold a NUL character", key)
        path = Path(re.sub(r"\$\{(\w+)\}", variable, name))
        try:
            return (Path(self.file).parent if self.file else Path()) / path.expanduser()
        except RuntimeError:  # ~somebody, whom the system does not know
            raise self.error(f"{shown(name)} begins with no known user's home", key) from None

    def existing(self, name: str, key: str) -> Path:
        """Return the path of an existing file that a text names; see `resolve`.

        Raises InputError: it is not there, or no file; with this file, the key and the path.
        """
        path = self.resolve(name, key)
        try:
            file_size(path)
        except InputError as error:
            raise self.error(str(error), key) from None
        return path

    def expect(self, keys: Mapping[str, Key]) -> None:
        """Announce the keys that are read here, and refuse every other key.

        This comes first, so that the message names a misspelled key, and not the missing right one.
        """
        if self._sections and isinstance(keys, Keys) and keys.name not in self._sections:
            raise LookupError(f"{self.key} is announced as {self._sections}, read as {keys.name}")
        self._keys = keys
        for key in self._data:
            if key not in keys:
                hint, known = did_you_mean(key, keys), ", ".join(keys)
                raise self.error(f'unknown key "{key[:40]}"{hint} Known: {known}')

    def finish(self) -> None:
        """Refuse keys that were not read, since others beside them leave them without a meaning."""
        for key in self._data:
            if key not in self._taken:
                beside = [k for k in self._data if k in self._taken]
                place = f" beside {', '.join(beside)}" if beside else ""
                raise self.error(f'"{key}" has no meaning{place}; remove it', key)


def read_membrane(section: Section) -> Membrane:
    """Return the size of the membrane, from ``area`` and ``capacitance`` of a section."""
    sizes = {key: section.quantity(key) for key in ("area", "capacitance")}
    for key, size in sizes.items():
        if size is not None and size <= 0:
            raise section.error(f"a size above 0 was expected, not {size:g}", key)
    return Membrane(**sizes, place=section.key)


def check_membrane(section: Section, membrane: Membrane, quantities: str) -> None:
    """Raise InputError for a size of the membrane that no unit needs.

    Arguments:
        quantities: those that might need it, in words.
    """
    for key, size in (("area", membrane.area), ("capacitance", membrane.capacitance)):
        if size is not None and key not in membrane.used:
            raise section.error(f"is not used, since {quantities} not per {key}; leave it out", key)
