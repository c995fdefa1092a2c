"""All keys that a file may hold, by section, each with its shape, meaning and default.

A reader says which of these sections it reads (`documents.Section.expect`) and can then ask for no
other key, so that these keys and no others are accepted; from here it takes dimensions, words and
defaults. `tests/reading/test_keys.py` has a proof for each key that it changes something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channelfit.reading.keys import (
    cells,
    clusters,
    curves,
    discover,
    fits,
    functions,
    models,
    nights,
    observations,
    protocols,
    recordings,
)
from channelfit.reading.keys.searches import OPTIMIZER, SETTINGS, STOP
from channelfit.reading.keys.shapes import Keys

#: By the name of the section.
KEYS: dict[str, Keys] = {
    keys.name: keys
    for sections in (
        *(models, fits, discover, recordings, observations, protocols, functions),
        *(cells, curves, clusters, nights),
    )
    for keys in sections.SECTIONS
}

__all__ = ["KEYS", "OPTIMIZER", "SETTINGS", "STOP", "is_function"]


def is_function(document: Mapping[str, Any]) -> bool:
    """Return whether a document describes a function rather than a channel."""
    return any(key in document for key in ("cost", "outputs")) and "states" not in document
