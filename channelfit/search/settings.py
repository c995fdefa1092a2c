"""Checks of the settings that a user writes for a search; each names the key in its message."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError, did_you_mean


def unknown(kind: str, name: object, known: Collection[str]) -> str:
    """Return the message about an unknown name: the closest known one, and all that are known."""
    hint = did_you_mean(str(name), known)
    return f'unknown {kind} "{name}"{hint} Known: {", ".join(known)}'


def whole(value: Any, key: str, least: int) -> int:
    """Return a whole number. Raises InputError for anything else, or less than `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"must be a whole number, {least} or more, not {value!r}", key=key)
    return int(value)


def number(value: Any, key: str) -> float:
    """Return a finite number. Raises InputError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise InputError(f"must be a number, not {value!r}", key=key)
    if not math.isfinite(value):
        raise InputError(f"must be finite, not {value}", key=key)
    return float(value)


def share(value: Any, key: str, most: float = 1.0, zero: bool = True) -> float:
    """Return a number from 0 to `most`; `zero` says whether 0 itself is allowed.

    Raises: InputError for anything else.
    """
    found = number(value, key)
    if not 0 <= found <= most or (found == 0 and not zero):
        span = "between 0 and" if zero else "above 0 and up to"
        raise InputError(f"must lie {span} {most:g}, not {found:g}", key=key)
    return found
