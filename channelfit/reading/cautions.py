"""Cautions: input that looks wrong and is used, with a warning before the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Caution:
    """Input that can be used, but is probably a mistake.

    Attributes:
        place: the file and the key, or the part of the data.
        value: what was found there.
        advice: what would be right, or what to look at.
    """

    place: str
    value: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.value}; {self.advice}"


def each_once(cautions: Iterable[Caution]) -> tuple[Caution, ...]:
    """Return the cautions in their order, each only once."""
    return tuple(dict.fromkeys(cautions))
