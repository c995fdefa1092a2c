"""A fit file and the model file that it names, read once and joined to one document.

A fit file goes before the model's file, key by key: in the parameters, the temperature, the current
and the fit section. All else is the model's.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.model.printed_form import is_printed_form, read_model_document
from channelfit.model.scope import checked_name
from channelfit.problem.clamp import words_of_clamps
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS, is_function
from channelfit.search.overrides import Changes

_TITLES = ("name", "description", "source")


@dataclass(frozen=True)
class FitFile:
    """A model file or a fit file as it was read, once.

    Attributes:
        document: the model by the keys of a model file, with the fit section, if there is one,
            under `fit`; the changes of a fit file are made.
        file: where the fit section stands, from which its relative paths start.
        model_file: where the model stands; the same file where it has both.
        own, models: the documents of the two files before they were joined; empty for one file.
    """

    document: dict[str, Any]
    file: Path
    model_file: Path
    own: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_function(self) -> bool:
        """True if the file describes a function, and no channel."""
        return is_function(self.document)

    @property
    def model_document(self) -> dict[str, Any]:
        """The document without its fit section."""
        return {key: value for key, value in self.document.items() if key != "fit"}

    @property
    def inherited(self) -> tuple[str, ...]:
        """Keys of the fit section that only the model's file gives."""
        given = {*self.own, *(self.own.get("fit") or {})}
        models = self.models.get("fit") or {}
        return tuple(
            key for key in self.document.get("fit") or {} if key not in given and key in models
        )

    @property
    def temperature_stated(self) -> bool:
        """True if the model's temperature was given for the fit; see `FitPlan`."""
        if self.file == self.model_file or self.own.get("temperature") is not None:
            return True
        return self.document.get("temperature") != self.models.get("temperature")

    def build_model(self, celsius_of_one: float | None = None) -> ChannelModel:
        """Build the model; an error in what the fit file has changed names the fit file.

        Arguments:
            celsius_of_one: as `model_file.build_model` takes it.
        """
        clamps = words_of_clamps(self.document.get("fit"))
        try:
            return build_model(self.document, self.model_file, celsius_of_one, clamps)
        except InputError as error:
            if self.file == self.model_file or error.key is None or error.file == str(self.file):
                raise
            keys: list[str] = [key for key in ("temperature", "leak") if key in self.own]
            keys += [f"current.{key}" for key in self.own.get("current") or {}]
            keys += [
                f"parameters.{name}.{key}"
                for name, row in (self.own.get("parameters") or {}).items()
                for key in row
            ]
            if any(f"{error.key}.".startswith(f"{key}.") for key in keys):
                raise InputError(error.message, self.file, error.key) from None
            raise


def read_fit_file(file: Path, changes: Changes | Sequence[str] = ()) -> FitFile:
    """Read a model file or a fit file, and the model file that a fit file names.

    Arguments:
        changes: of the document; a sequence of overrides, ``dotted.key=value`` each, will do.

    Raises: InputError for files and changes that cannot be used.
    """
    if not isinstance(changes, Changes):
        changes = Changes(tuple(changes))
    found = _read(file, changes.model)
    changes.make(found.document, file)
    return found


def _read(file: Path, model: str | None) -> FitFile:
    """Read and join the files.

    Arguments:
        model: a path, relative to a fit file, of a model in place of the one that it names.
    """
    document = read_model_document(file)
    if not isinstance(document.get("model"), str):
        if model is not None:
            raise InputError("this is no fit file, so that no other model can be named", file)
        return FitFile(document, file, file)
    own = copy.deepcopy(document)
    if model is not None:
        document["model"] = model
    root = Section(document, file)
    root.expect(KEYS["fit file"])
    model_file = root.existing(root.text("model"), "model")
    changes = [
        (name, Section(row, file, f"parameters.{name}"))
        for name, row in root.rows("parameters", {})
    ]
    model_document = read_model_document(model_file)
    if isinstance(model_document.get("model"), str):
        raise root.error(f"{model_file} is a fit file itself; name the model's own file", "model")
    models = copy.deepcopy(model_document)
    model_document["fit"] = _joined_fit(root, model_document.get("fit"), model_file)
    _change_current(root, model_document)
    for name, row in changes:
        if not _add_parameter_of_current(root, model_document, name, row):
            _change_parameter(model_document, name, row, model_file)
    if model_document["fit"] is None:
        del model_document["fit"]
    return FitFile(model_document, file, model_file, own, models)


def _joined_fit(root: Section, models: object, model_file: Path) -> Any:
    """Join the fit section of a fit file with those keys of the model's own that it does not have.

    A fit file without a fit section borrows none. A key that is null in the fit file takes the
    model's away. Recordings stand in place of the model's simulated data, and the other way round.
    The name, description and source of the file are those of its fit.
    """
    own = root.take("fit")
    titles = {key: root.take(key) for key in ("name", "description", "source") if key in root}
    if models is not None:
        Section(models, model_file, "fit")
    if not isinstance(own, dict | None) or not isinstance(models, dict | None):
        return own
    twice = next((key for key in titles if key in (own or {})), None)
    if twice:
        raise root.error(f"{twice} is given here and under fit; keep one", twice)
    if own is None:  # the data to fit to are not borrowed
        return titles or None
    kept = _with_rebased_paths(
        {k: v for k, v in (models or {}).items() if k not in _TITLES},
        model_file,
        Path(root.file or "").parent,
    )
    joined = titles | own
    for given, replaced in (
        ("experiments", ("protocols", "surrogate")),
        ("protocols", ("experiments",)),
    ):
        if joined.get(given) is not None:
            kept = {key: value for key, value in kept.items() if key not in replaced}
    return {key: value for key, value in (kept | joined).items() if value is not None}


def _with_rebased_paths(section: dict[str, Any], file: Path, folder: Path) -> dict[str, Any]:
    """Return a copy of a fit section of `file`, whose paths start from `folder` instead."""
    section = copy.deepcopy(section)

    def rebase(row: Any, key: str) -> None:
        if isinstance(row, dict) and isinstance(row.get(key), str):
            row[key] = rebased_path(row[key], file, folder)

    if "protocols" in section:
        names = section["protocols"]
        section["protocols"] = [
            rebased_path(name, file, folder) if isinstance(name, str) else name
            for name in (names if isinstance(names, list) else [names])
        ]
    rows = section.get("experiments")
    for row in rows if isinstance(rows, list) else [rows]:
        rebase(row, "protocol")
        if isinstance(row, dict):
            observed = row.get("observe")
            rebase(row.get("recording"), "file")
            for one in observed if isinstance(observed, list) else [observed]:
                rebase(one, "file")
    return section


def read_titles(section: Section, model_name: str) -> dict[str, Any]:
    """Read name, description and source of a fit from its section."""
    if "name" in section:
        model_name = checked_name(section, section.text("name"), "a fit's name")
    return {"name": model_name} | {key: section.text(key) for key in _TITLES[1:]}


def _change_current(root: Section, document: dict[str, Any]) -> None:
    """Put the temperature, current and leak of a fit file in place of the model's.

    A null takes away the model's.
    """
    changed = [key for key in ("temperature", "current", "leak") if key in root]
    if changed and (is_function(document) or is_printed_form(document)):
        kind = "a function" if is_function(document) else "a model in the printed form"
        raise root.error(f"{kind} has no such key that a fit file could change", changed[0])
    if "temperature" in root:
        document["temperature"] = root.take("temperature")
    if "leak" in root:
        document["leak"] = root.take("leak")
        if document["leak"] is None:
            del document["leak"]
    if "current" in root:
        row = root.section("current")
        row.expect(KEYS["current"])
        known = document.get("current")
        joined = (known if isinstance(known, dict) else {}) | dict(root.rows("current"))
        document["current"] = {key: value for key, value in joined.items() if value is not None}


def _add_parameter_of_current(
    root: Section, document: dict[str, Any], name: str, row: Section
) -> bool:
    """Add a parameter if only the leak or current of a fit file uses it; return whether it does."""
    known = document.get("parameters")
    if name in (known or {}):
        return False
    given = [root.take(key) for key in ("leak", "current") if key in root]
    texts = [str(text) for one in given if isinstance(one, dict) for text in one.values()]
    if not any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts):
        return False
    document["parameters"] = (known or {}) | {name: _raw_values(row, "parameter")}
    return True


def _change_parameter(document: dict[str, Any], name: str, row: Section, model_file: Path) -> None:
    """Put the keys of a fit file for one of the model's parameters in place of the model's.

    A name that the model does not have may be one of the clamp, which then is given here alone.
    Its numbers are in its unit, those that the model alone gives in the model's. A value of the
    model's that a new range leaves out is no start for a fit to recordings; data cannot be
    simulated without one.
    """
    known = document.get("parameters")
    if (
        isinstance(known, dict)
        and name not in known
        and name in words_of_clamps(document.get("fit"))
    ):
        known[name] = _raw_values(row, "parameter")
        return
    if not isinstance(known, dict) or not isinstance(known.get(name), dict):
        listed = ", ".join(map(str, known)) if isinstance(known, dict) else "none that has a name"
        raise row.error(f"the model has no such parameter. Known: {listed}")
    given = _raw_values(row, "function parameter" if is_function(document) else "parameter")
    model = known[name]
    if "unit" in given and str(given["unit"]) != str(model.get("unit", "")):
        left = [key for key in ("range", "value", "prior") if key in model and key not in given]
        if left:
            raise row.error(
                f"{model_file.name} gives the {' and '.join(left)} of {name} in "
                f"{shown(model.get('unit', ''))}; keep that unit, or give {' and '.join(left)} "
                "here too (null for none)",
                "unit",
            )
    joined = {key: value for key, value in (model | given).items() if value is not None}
    if "range" in given and "value" not in given and not _value_in_range(joined):
        if "experiments" not in (document.get("fit") or {}):
            raise row.error(
                f"{shown(given['range'])} leaves out the value {joined['value']:g} in "
                f"{model_file.name}, from which data are simulated; give `value` here too",
                "range",
            )
        del joined["value"]
    known[name] = joined


def _raw_values(row: Section, table: str) -> dict[str, Any]:
    """Return the values of a row as they stand in the file, by key.

    Raises InputError: a key that the table of known keys does not have.
    """
    row.expect(KEYS[table])
    return {key: row.take(key) for key in row.given()}


def _value_in_range(row: Mapping[str, Any]) -> bool:
    """Return whether the value of a parameter's row lies in its range.

    True as well where that cannot be said: for a fixed parameter, and where the value or an end of
    the range is missing or no plain number.
    """
    span = row.get("range")
    numbers = [row.get("value"), *(span if isinstance(span, list) else [])]
    plain = [x for x in numbers if isinstance(x, (int, float)) and not isinstance(x, bool)]
    if len(plain) != 3 or len(numbers) != 3 or row.get("fixed"):
        return True
    value, lower, upper = plain
    return lower <= value <= upper


def rebased_path(path: str, file: Path, folder: str | os.PathLike[str]) -> str:
    """Rewrite a path that stands in one file for use in a file of another folder.

    Arguments:
        path: relative to the folder of `file`, or absolute: then it is returned unchanged.
        file: the file in which the path stands.
        folder: the folder from which the new path starts.

    Returns: The relative path with slashes; the absolute one if the two are on different drives.
    """
    if Section({}, None).resolve(path, "").is_absolute():  # with ~ and ${NAME} replaced
        return path
    target = os.path.join(os.path.realpath(file.parent), path)
    try:
        relative = os.path.relpath(target, os.path.realpath(folder))
    except ValueError:  # another drive of Windows
        return target
    return relative.replace(os.sep, "/")
