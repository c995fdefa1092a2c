"""Values from Python converted to the plain data that a YAML file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError, shown

_DEEPEST = 20
#: Kinds of NumPy's numbers, truth values and text; "O" may hold any of them, looked at one by one.
_KINDS = "fiubUO"


def plain(value: object, key: str = "", depth: int = 0) -> Any:
    """Return a copy made of texts, numbers, truth values, None, lists and mappings by text.

    NumPy's numbers become Python's; tuples, ranges, arrays and columns of pandas become lists.

    Arguments:
        value: what a caller gave.
        key: the argument that it was given as, for messages.

    Raises:
        InputError: anything else, such as a set or a function, with the dotted key where it stands.
    """
    if depth > _DEEPEST:
        raise InputError("nested too deeply", key=key or None)
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    if isinstance(value, Mapping):
        return _plain_mapping(value, key, depth)
    if hasattr(value, "__array__") and np.asarray(value).dtype.kind in _KINDS:
        value = np.asarray(value).tolist()
        return plain(value, key, depth + 1)
    if isinstance(value, (list, tuple, range)):
        return [plain(x, f"{key}[{k}]", depth + 1) for k, x in enumerate(value, 1)]
    raise InputError(
        f"{shown(value)} cannot be used; text, a number, true or false, a list or a mapping was "
        f"expected, not a {type(value).__name__}",
        key=key or None,
    )


def _plain_mapping(value: Mapping[Any, Any], key: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if not isinstance(name, (str, int, float)):
            raise InputError(f"a key must be a word, not {shown(name)}", key=key or None)
        word = str(plain(name))
        if word in found:
            raise InputError(f'"{word}" is given twice', key=key or None)
        found[word] = plain(inner, f"{key}.{word}" if key else word, depth + 1)
    return found
