"""What looks wrong and is used nevertheless: told before the work, and kept with its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Caution:
    """Something of the user's that can be used but is probably not what was meant.

    place: file and key, or what of the data. value: what was found there. advice: what would be
    right, or what to look at.
    """

    place: str
    value: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.value}; {self.advice}"


def each_once(cautions: Iterable[Caution]) -> tuple[Caution, ...]:
    """The same in their order, none twice."""
    return tuple(dict.fromkeys(cautions))
