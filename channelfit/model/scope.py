"""The names in a model file, and its expressions while they are read."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable

import sympy
from sympy.core.relational import Relational

from channelfit.model.channel import CELSIUS
from channelfit.model.expressions import (
    FUNCTIONS,
    ExpressionError,
    definition_order,
    parse_expression,
)
from channelfit.model.singularities import remove_singularities
from channelfit.model.terms import V, may_be_real, parts_of
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys.shapes import NAME

_NAME = re.compile(NAME)
_TITLE = re.compile(r"[^\W_][\w .,+()-]{0,79}")
_CELL = re.compile(r"[^\W_](?:[\w .+()-]{0,38}[\w.+()-])?")
#: Words that cannot name a state, a gate, a parameter or a definition.
RESERVED = {V.name, "t", CELSIUS, "balance", *FUNCTIONS, *keyword.kwlist}


def checked_name(root: Section, name: str, kind: str) -> str:
    """Return a name that can stand in titles, file names and generated code. Raises InputError."""
    if not _TITLE.fullmatch(name):
        raise root.error(
            f"{shown(name)} cannot be {kind}; use up to 80 letters, digits, spaces "
            "and . , + - _ ( )",
            "name",
        )
    return name


def check_cell(section: Section, name: str, key: str | None = None) -> str:
    """Return the name of a cell, which follows a parameter's in brackets, or refuse it."""
    if not _CELL.fullmatch(name) or name == "others":
        why = "stands for all cells not named" if name == "others" else "cannot name a cell"
        raise section.error(
            f"{shown(name)} {why}; use up to 40 letters, digits, spaces and . + - _ ( )", key
        )
    return name


def check_word(root: Section, name: str, key: str) -> None:
    """Raise InputError for a name that no expression, and no generated code, could use."""
    if not _NAME.fullmatch(name) or name in RESERVED:
        why = "is a reserved word" if name in RESERVED else "cannot be a name"
        raise root.error(
            f'"{name[:40]}" {why}; use a letter, then letters, digits or _, e.g. a12', key
        )


class Scope:
    """The names that an expression may use, and the definitions collected so far.

    Arguments:
        root: the model file.
        parameters: names of the parameters.
        celsius: the temperature, degC, where the model has one.
        ligands: names of concentrations that a protocol commands.

    Attributes:
        ligands: the same.
        names: all names that an expression may use.
        texts: the key and the text of each definition that is still to be read, by its name.
        definitions: the expressions of those that are read, by name.
        read: the text and the expression of all that was read, by dotted key, as it was written.
    """

    def __init__(
        self,
        root: Section,
        parameters: Iterable[str],
        celsius: float | None,
        ligands: Collection[str] = (),
    ) -> None:
        self.root = root
        self.names = [V.name, *parameters]
        self.ligands = tuple(ligands)
        for name in self.ligands:
            self.announce(name, "ligands")
        self.texts: dict[str, tuple[str, object]] = {}
        self.definitions: dict[str, sympy.Expr] = {}
        self.read: dict[str, tuple[str, sympy.Expr]] = {}
        if celsius is not None:
            self.names.append(CELSIUS)
            self.definitions[CELSIUS] = sympy.Float(celsius, 17)

    @property
    def commanded(self) -> tuple[str, ...]:
        """The names of the voltage and of the ligands."""
        return (V.name, *self.ligands)

    def announce(self, name: str, key: str) -> None:
        """Let every expression use a name. Raises InputError for one that is bad or taken."""
        check_word(self.root, name, key)
        if name in self.names:
            raise self.root.error(f'"{name}" already names something else', key)
        self.names.append(name)

    def define(self, name: str, text: object, key: str) -> None:
        """Announce a definition; its text is read once all names are known."""
        self.announce(name, key)
        self.texts[name] = (key, text)

    def parse(
        self, section: Section, key: str, text: object, unmentioned: Collection[str] = ()
    ) -> sympy.Expr:
        """Return the expression of a text, with removable singularities made exact.

        Arguments:
            section, key: where the text stands.
            unmentioned: names that an error does not suggest.

        Raises InputError: an expression that cannot be used, with its place.
        """
        if not isinstance(text, (str, int, float)) or isinstance(text, bool):
            raise section.error(f"an expression was expected, not {shown(text)}", key)
        try:
            written = parse_expression(text, self.names, unmentioned)
            self.read[section.path(key)] = str(text), written
            exact = remove_singularities(written)
            _check_comparisons(exact, str(text))
            return exact
        except InputError as error:
            raise error.at(section.file, section.path(key)) from None

    def finish(self) -> tuple[tuple[str, sympy.Expr], ...]:
        """Read all definitions; returns them with each after those that it uses."""
        for name, (key, text) in self.texts.items():
            self.definitions[name] = self.parse(self.root, key, text)
        try:
            order = definition_order(self.definitions)
        except InputError as error:
            raise error.at(self.root.file, self.root.path("definitions")) from None
        return tuple((name, self.definitions[name]) for name in order)


def _check_comparisons(expression: sympy.Expr, text: str) -> None:
    """Raise ExpressionError for a comparison that turns out to be of no real numbers.

    That log(-(exp(v) - 1)/v) is one of them is seen only once the quotient is written by exprel.
    """
    for part in parts_of(expression):
        compares = isinstance(part, (Relational, sympy.Min, sympy.Max))
        if compares and not all(map(may_be_real, part.args)):
            raise ExpressionError(f"a comparison of what is not a real number in {shown(text)}")
