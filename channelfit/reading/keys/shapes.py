"""The description of a key in a user's file: its shape, its meaning and its default.

From these tables the readers take dimensions, words and defaults (`documents.Section`), the schemas
for editors are made (`reading.schema`) and the reference of all keys is written
(`reading.reference`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Groups = tuple[tuple[str, ...], ...]

#: A name that expressions can use.
NAME = r"[A-Za-z][A-Za-z0-9_]{0,39}"


@dataclass(frozen=True)
class Shape:
    """The form in which the value of a key is written."""

    def parts(self) -> Iterator[Shape]:
        """Yield this shape and all those inside of it."""
        yield self


@dataclass(frozen=True)
class Text(Shape):
    """Words; a number counts as its text.

    Attributes:
        what: the text says, such as "the path of a file", for the reference.
        strict: whether a number is refused.
    """

    what: str = "text"
    strict: bool = False


@dataclass(frozen=True)
class Name(Shape):
    """A name that expressions can use."""


@dataclass(frozen=True)
class Quantity(Shape):
    """A number, or text with a unit.

    Attributes:
        dimension: a key of the tables in `reading.units`; "none" for a pure number.
        sized: whether units per area or per capacitance are accepted, where the size of the
            membrane is known.
    """

    dimension: str
    sized: bool = False


@dataclass(frozen=True)
class ConstantQuantity(Quantity):
    """A quantity, or an expression of parameters that does not depend on the voltage."""


@dataclass(frozen=True)
class Number(Shape):
    """A finite number without a unit, which is not read from text.

    Attributes:
        least, most: within which it lies; None where it has no such bound.
    """

    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class UnitText(Shape):
    """A unit alone.

    Attributes:
        dimensions: of which it may be; of any where none is named.
        sized: whether units per area or per capacitance are accepted.
    """

    dimensions: tuple[str, ...] = ()
    sized: bool = False


@dataclass(frozen=True)
class Integer(Shape):
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Flag(Shape):
    """True or false."""


@dataclass(frozen=True)
class Choice(Shape):
    """One of a few words."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Expression(Shape):
    """Arithmetic of parameters and definitions; see the guide to expressions.

    Attributes:
        voltage: whether it may depend on v.
        gives: what it is, with its unit, such as "a rate, 1/ms".
    """

    gives: str
    voltage: bool = True


@dataclass(frozen=True)
class List(Shape):
    """A list, or a single entry in its place where one is enough.

    Attributes:
        of: the shape of an entry.
        least, most: how many entries there are; None for any number.
    """

    of: Shape
    least: int = 0
    most: int | None = None

    def parts(self) -> Iterator[Shape]:
        yield self
        yield from self.of.parts()


@dataclass(frozen=True)
class Named(Shape):
    """A mapping of names to entries.

    Attributes:
        of: the shape of an entry.
        what: a name stands for, such as "parameter".
        pattern: of the names; any where it is empty.
        least: how many entries there are at least.
    """

    of: Shape
    what: str
    pattern: str = NAME
    least: int = 0

    def parts(self) -> Iterator[Shape]:
        yield self
        yield from self.of.parts()


@dataclass(frozen=True)
class Within(Shape):
    """A mapping with the keys of the section of this name."""

    section: str


@dataclass(frozen=True)
class PartialSections(Shape):
    """A mapping with some keys of these sections, each of which may be null."""

    sections: tuple[str, ...]


@dataclass(frozen=True)
class NestedNumbers(Shape):
    """A number, or lists of numbers that may be nested."""


@dataclass(frozen=True)
class Either(Shape):
    """One of several shapes."""

    shapes: tuple[Shape, ...]

    def parts(self) -> Iterator[Shape]:
        yield self
        for shape in self.shapes:
            yield from shape.parts()


def either(*shapes: Shape) -> Either:
    """Return one of these shapes."""
    return Either(shapes)


@dataclass(frozen=True)
class Key:
    """One key of a section: its shape, meaning, example and default.

    Attributes:
        shape: how its value is written.
        meaning: sentences that are understood without the neighboring keys.
        example: a value that is accepted.
        default: what holds where the key is left out, in the base unit.
        required: whether it must be given.
        otherwise: what holds without it, in words, where that is no value.
        null: whether null is accepted, which counts as leaving the key out.
        elsewhere: whether the key is refused here with the words of its meaning.
    """

    shape: Shape
    meaning: str
    example: Any = None
    default: Any = None
    required: bool = False
    otherwise: str = ""
    null: bool = False
    elsewhere: bool = False


@dataclass(frozen=True)
class Rules:
    """Which keys of a section go together.

    Attributes:
        one: groups of keys of which exactly one must be given.
        apart: groups of keys of which at most one may be given.
        needs: keys that need others beside them.
    """

    one: Groups = ()
    apart: Groups = ()
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Keys(dict[str, Key]):
    """The keys of one section, in the order in which they are explained.

    Arguments:
        name: of the section.
        meaning: what the section is, in words.
        rules: which keys go together.
        null: whether each of its keys may be null, which takes away what the model's file says.
        keys: by name; ``from_`` stands for ``from``, which is a word of Python.
    """

    def __init__(
        self, name: str, meaning: str, rules: Rules = Rules(), null: bool = False, /, **keys: Key
    ) -> None:
        super().__init__({key.rstrip("_"): row for key, row in keys.items()})
        self.name, self.meaning, self.rules, self.null = name, meaning, rules, null
