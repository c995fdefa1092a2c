"""The compact form of a model that Ben-Shalom et al. 2012 printed, by the keys of a model file.

In it, states are numbers, rates are ``k12 = ...``, and the last parameter is the conductance. It
may be written in YAML, or as printed, in braces with ``//`` comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from channelfit.reading.documents import Section, parse_yaml, read_text
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS

#: A rate with a name of its own, such as ``k12 = a*exp(z*v)``.
NAMED_RATE = re.compile(r"\s*([A-Za-z]\w*)\s*=(?!=)\s*(.+)", re.DOTALL)
#: Blanks and comments, in which each character can be read in one way only: with a choice, a text
#: that does not match would be tried in all combinations.
_SPACE = r"(?:\s|//[^\n]*(?:\n|\Z))*"
_PRINTED = re.compile(rf"{_SPACE}model\s*[:=]{_SPACE}\{{")


def read_model_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a model file as plain data, also one in the printed form ``model: { ... };``.

    Raises InputError: the file cannot be read, or is neither; with the line.
    """
    text = read_text(path)
    try:
        return parse_yaml(text, path)
    except InputError:
        if not _PRINTED.match(text):
            raise
    return parse_yaml(_as_yaml(text), path)


def is_printed_form(document: Mapping[str, Any]) -> bool:
    """Return whether a document is in the compact form of 2012."""
    return isinstance(document.get("model"), Mapping)


def modern_form(
    document: Mapping[str, Any], file: str | os.PathLike[str] | None
) -> Mapping[str, Any]:
    """Return a document with the keys of a model file, translated from the compact form if needed.

    Raises InputError: a compact form that contradicts itself, with file and key.
    """
    if not is_printed_form(document):
        return document
    whole = Section(document, file)
    whole.expect(KEYS["printed file"])
    root = whole.section("model")
    root.expect(KEYS["printed model"])
    n_states = root.integer("nStates")
    parameters = _parameters(root)
    rates = _rates(root)
    states = [f"S{i}" for i in range(1, n_states + 1)]
    numbers = root.items("openStates")
    _check_count(root, "nOpenStates", len(numbers))
    if not all(isinstance(k, int) and 1 <= k <= n_states for k in numbers):
        raise root.error(f"{shown(numbers)} are not numbers from 1 to {n_states}", "openStates")
    reversal = root.quantity("eRev")
    if not parameters:
        raise root.error("at least the conductance is needed", "params")
    return {
        "name": Path(file).stem if file else "model",
        "states": states,
        "rates": rates,
        "parameters": parameters,
        "current": {
            "open": [states[k - 1] for k in numbers],
            "conductance": list(parameters)[-1],
            "reversal": reversal,
        },
    }


def _parameters(root: Section) -> dict[str, Any]:
    """Return the parameters by name; the last is the conductance."""
    rows = [
        Section(row, root.file, root.path(f"params[{i}]"))
        for i, row in enumerate(root.items("params"), 1)
    ]
    for row in rows:
        row.expect(KEYS["printed parameter"])
    _check_count(root, "nParams", len(rows))
    parameters = {}
    for row in rows:
        ends = [row.number("min"), row.number("max")]
        unit = "nS" if row is rows[-1] else ""
        parameters[row.text("name")] = {"range": ends, "value": row.number("val"), "unit": unit}
    return parameters


def _rates(root: Section) -> dict[str, str]:
    """Return the rates' expressions by ``k12``."""
    rates: dict[str, str] = {}
    for i, line in enumerate(root.items("rates"), 1):
        named = NAMED_RATE.fullmatch(line) if isinstance(line, str) else None
        if not named:
            raise root.error(f'{shown(line)} is not of the form "k12 = ..."', f"rates[{i}]")
        if named[1] in rates:
            raise root.error(f"{named[1]} is given twice", f"rates[{i}]")
        rates[named[1]] = named[2]
    return rates


def _check_count(root: Section, key: str, count: int) -> None:
    stated = root.integer(key, count)
    if stated != count:
        raise root.error(f"{stated} are announced but {count} are given", key)


def _as_yaml(text: str) -> str:
    """Turn ``name = "a12"; ( ... )`` with // comments, as printed, into YAML flow style."""
    parts = re.split(r'("[^"\n]*")', re.sub(r"//[^\n]*", "", text))
    swap = str.maketrans({"=": ":", ";": ",", "(": "[", ")": "]"})
    parts[::2] = [re.sub(r":(?=\S)", ": ", part.translate(swap)) for part in parts[::2]]
    # In braces, so that YAML does not ask for an indentation that the printed text lacks.
    return "{" + re.sub(r",\s*$", "", "".join(parts).rstrip()) + "}"
