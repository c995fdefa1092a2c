"""Where fitted values and their intervals lie in the ranges of their parameters, from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class InRange:
    """One parameter in its range.

    Attributes:
        name: of the parameter.
        at: where its value lies, from 0 to 1.
        ends: where its interval begins and ends; None where none is known.
    """

    name: str
    at: float
    ends: tuple[float, float] | None


def position(value: float, lower: float, upper: float, logarithmic: bool) -> float:
    """Return where a value lies between two bounds, from 0 to 1.

    Arguments:
        logarithmic: whether the position of the logarithm is meant, where that exists.
    """
    value = min(max(value, lower), upper)
    if logarithmic and lower > 0:
        return math.log(value / lower) / math.log(upper / lower)
    return float((value - lower) / (upper - lower))


def in_range(name: str, row: Mapping[str, Any]) -> InRange | None:
    """Return where a parameter lies; None for one that is fixed or has no range.

    Arguments:
        row: of the parameter, as in ``summary.json``.
    """
    lower, upper = row["lower"], row["upper"]
    if lower is None or not lower < upper or row.get("note") == "fixed":
        return None
    logarithmic = "relative_error" in row
    at = position(row["value"], lower, upper, logarithmic)
    interval = row.get("interval")
    if not interval or None in interval:
        return InRange(name, at, None)
    low, high = (position(end, lower, upper, logarithmic) for end in interval)
    return InRange(name, at, (low, high))
