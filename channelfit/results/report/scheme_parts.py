"""The states and transitions of a scheme as plain data (`scheme_words.scheme_of` makes it)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchemeStep:
    """One transition.

    Attributes:
        source, target: states.
        multiplicity: by which the rate is multiplied.
        rate: as an expression; math_text: the same as Matplotlib sets it.
    """

    source: str
    target: str
    multiplicity: int
    rate: str
    math_text: str


@dataclass(frozen=True)
class SchemeChain:
    """One chain of states.

    Attributes:
        is_gate: whether it is a gate, of which `power` are alike.
        states: in the author's order. conducting: which of them let current through.
        transitions: between them.
    """

    name: str
    is_gate: bool
    power: int
    states: tuple[str, ...]
    conducting: tuple[bool, ...]
    transitions: tuple[SchemeStep, ...]


@dataclass(frozen=True)
class ModelScheme:
    """All that a drawing and a report tell of a model.

    Attributes:
        source: where the model is from.
        definitions: `name = expression` each, as Matplotlib sets it.
    """

    name: str
    source: str
    chains: tuple[SchemeChain, ...]
    definitions: tuple[str, ...]
