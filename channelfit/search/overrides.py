"""Changes of a fit file for one call: ``dotted.key=value``, the value in YAML, and options.

A list's entries count from 1: ``fit.experiments[1].weight=2``. Of a parameter per cell one cell's
entry is changed by its name: ``parameters.gmax[cell 1].value=4``. In a fit file ``model=PATH``
names another model, relative to that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from channelfit.model.parameters import BY_CELL, OTHERS
from channelfit.reading.documents import Section, parse_yaml
from channelfit.reading.errors import InputError, did_you_mean, shown
from channelfit.search.choose import default_optimizer

#: What one cell has of a parameter, by the name that it has in tables.
_OF_CELL = re.compile(
    rf"parameters\.(?P<name>\w+)\[(?P<cell>[^\[\]]+)\]\.(?P<key>{'|'.join(BY_CELL)})"
)
#: Digits of the largest place in a list: Python reads no number of thousands of them.
_MOST_DIGITS = 12
#: Mappings that an override may begin where the file has none.
_MAY_BEGIN = {
    ("fit",),
    ("fit", "optimizer"),
    ("fit", "stop"),
    ("fit", "surrogate"),
    ("fit", "discover"),
}


@dataclass(frozen=True)
class Changes:
    """The changes of a fit file for one call.

    Attributes:
        overrides: ``dotted.key=value`` each, in the order in which they are made.
        options: of a command, by the key of the file that each sets, such as ``fit.seed``; they are
            made after the overrides.
        section: entries of the fit section that go before the file's.
    """

    overrides: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    section: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str | None:
        """The path of the model that an override names in place of the file's; None without one."""
        named = [text for text in self.overrides if _names_model(text)]
        return _model_path(named[-1]) if named else None

    def make(self, document: dict[str, Any], file: Path) -> None:
        """Change a document, a model with its fit section under `fit`, in place.

        Raises: InputError for an override of another form, or a place that the document lacks.
        """
        for text in list(self._texts(document)):
            override(document, text, file)
        if document.get("fit") is not None:
            Section(document["fit"], file, "fit")  # raises unless it is a mapping
        if self.section:
            document["fit"] = {**(document.get("fit") or {}), **self.section}

    def _texts(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Yield every change but those of `section` as an override."""
        fit = document.get("fit")
        section = fit if isinstance(fit, dict) else {}
        settings, stop = section.get("optimizer"), section.get("stop")
        optimizer = self.options.get("fit.optimizer.name")
        if optimizer is not None and isinstance(settings, dict):
            named = str(settings.get("name", default_optimizer(settings)))
            # the settings of another optimizer mean nothing to this one
            yield from ("fit.optimizer={}",) if named != optimizer else ()
        yield from (text for text in self.overrides if not _names_model(text))
        options = dict(self.options)
        generations = options.get("fit.optimizer.generations")
        if generations is not None and isinstance(stop, dict) and "generations" in stop:
            options["fit.stop.generations"] = generations  # where both stand, they must agree
        yield from (f"{key}={value}" for key, value in options.items())


def _names_model(text: str) -> bool:
    return text.partition("=")[0].strip() == "model"


def override(document: dict[str, Any], text: str, file: Path) -> None:
    """Apply one ``dotted.key=value`` to a document, in place.

    Raises: InputError for a text of another form, or a place that the document does not have.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if equals and _put_of_cell(document, key, value):
        return
    parts = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    joined = "".join(p if p.startswith("[") or not k else f".{p}" for k, p in enumerate(parts))
    if not equals or not parts or joined != key or "\n" in text or "\r" in text:
        raise InputError(
            f"{shown(text)} is not of the form key=value; write for example "
            "fit.optimizer.population=1000"
        )
    place: Any = document
    for k, part in enumerate(parts[:-1]):
        place = _within(place, tuple(parts[:k]), part, key, file)
    _put(place, tuple(parts[:-1]), parts[-1], _value(value, key), key, file)


def _model_path(text: str) -> str:
    """Return the path in ``model=PATH``. Raises InputError where it is no text."""
    value = _value(text.partition("=")[2], "model")
    if not isinstance(value, str):
        raise InputError(f"the path of a model file was expected, not {shown(value)}", key="model")
    return value


def _put_of_cell(document: dict[str, Any], key: str, value: str) -> bool:
    """Apply ``parameters.gmax[cell 1].value`` if gmax is per cell, and return whether it was so.

    The value of all cells so far remains that of the others.
    """
    rows, found = document.get("parameters"), _OF_CELL.fullmatch(key)
    row = rows.get(found["name"]) if found and isinstance(rows, dict) else None
    if not found or not isinstance(row, dict) or row.get("per") is None:
        return False
    known = row.get(found["key"])
    by_cell = known if isinstance(known, dict) else {} if known is None else {OTHERS: known}
    row[found["key"]] = by_cell | {found["cell"]: _value(value, key)}
    return True


def _value(text: str, key: str) -> Any:
    """Parse a scalar, a list or a mapping in YAML."""
    try:
        return parse_yaml(f"value: {text}")["value"]
    except InputError as error:
        raise InputError(f"{shown(text.strip())}: {error.message}", key=key) from None


def _within(place: Any, path: tuple[str, ...], part: str, key: str, file: Path) -> Any:
    """Return the mapping or list that `part` names within the one at `path`."""
    if part.startswith("["):
        return _slot(place, path, part, key, file)[0]
    _check_mapping(place, path, key, file)
    if place.get(part) is None:
        if (*path, part) not in _MAY_BEGIN:
            raise _no_such(place, path, part, key, file)
        place[part] = {}
    return place[part]


def _put(place: Any, path: tuple[str, ...], part: str, value: Any, key: str, file: Path) -> None:
    if part.startswith("["):
        entries = _slot(place, path, part, key, file)[1]
        entries[int(part[1:-1]) - 1] = value
        return
    _check_mapping(place, path, key, file)
    # a key that the readers would never ask for is refused here where it has no place at all
    if not path and part not in place and part != "fit":
        raise _no_such(place, path, part, key, file)
    place[part] = value


def _slot(
    place: Any, path: tuple[str, ...], part: str, key: str, file: Path
) -> tuple[Any, list[Any]]:
    """Return entry [n], counted from 1, of the list at `path`, and the list."""
    if not isinstance(place, list):
        raise InputError(f"{_joined(path)} is not a list", file, key)
    digits = part[1:-1].lstrip("0")
    n = int(digits) if 0 < len(digits) <= _MOST_DIGITS else 0
    if not 1 <= n <= len(place):
        message = f"{_joined(path)} has entries 1 to {len(place)}, not {digits[:_MOST_DIGITS] or 0}"
        raise InputError(message, file, shown(key))
    return place[n - 1], place


def _check_mapping(place: Any, path: tuple[str, ...], key: str, file: Path) -> None:
    if not isinstance(place, dict):
        raise InputError(f"{_joined(path)} is {shown(place)}, it has no keys", file, key)


def _no_such(
    place: Mapping[str, Any], path: tuple[str, ...], part: str, key: str, file: Path
) -> InputError:
    known = [str(k) for k in place] + ([] if path or "fit" in place else ["fit"])
    hint = did_you_mean(part, known)
    where = f" in {_joined(path)}" if path else ""
    return InputError(f'no "{part[:40]}"{where}{hint} There is: {", ".join(known)}', file, key)


def _joined(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[", "[") or "the file"
