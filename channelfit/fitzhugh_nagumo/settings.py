"""The settings of a run, which are written to its summary.json and read back to repeat it.

``channelfit fhn RUN/summary.json`` uses them for options that are not on the command line. A state
from a file is kept in the summary itself, on the nodes where it was used; a file that a summary
names is never opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from channelfit import __version__
from channelfit.reading.errors import InputError, printable

#: Options on the place of results and on printing, which are not part of a run's settings.
_NO_SETTINGS = ("out", "quiet", "json", "help", "resume")
_PLAIN_TYPES = {"text": str, "filename": str, "choice": str, "boolean": bool}


def of(command: click.Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run as plain data, by their names, without those that are not set.

    Arguments:
        values: of all options, by the names of the parameters.
    """
    kept = {}
    for name, option in _options(command).items():
        value = values[str(option.name)]
        if value is not None:
            kept[name] = list(value) if isinstance(value, tuple) else value
    return kept


def use(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    """Make a summary's settings the defaults of the options.

    Raises:
        InputError: the file cannot be read, or holds an unknown option or a value of another kind.
    """
    if file is None:
        return
    # these load NumPy and YAML, which --help does not need
    from channelfit.fitzhugh_nagumo.equation import NAMED_STATES
    from channelfit.reading.documents import read_json

    data = read_json(file)
    options, saved = _options(context.command), data.get("settings")
    if not isinstance(saved, dict):
        raise InputError("holds no settings of a run of channelfit fhn", file, "settings")
    defaults = {}
    for key, value in saved.items():
        if key not in options:
            known = ", ".join(options)
            raise InputError(f"not an option of fhn. Known: {known}", file, f"settings.{key[:40]}")
        try:
            defaults[str(options[key].name)] = _checked(context, options[key], value)
        except InputError as error:
            raise error.at(file, f"settings.{key}") from None
    if "initial_state" in data:
        defaults["initial"] = str(file)
    elif str(defaults.get("initial", "rest")).partition(":")[0] not in NAMED_STATES:
        raise InputError(
            "the run began with a state from a file, but the summary holds no initial_state",
            file,
            "settings.initial",
        )
    written = str(data.get("channelfit"))[:40]
    if written != __version__:
        click.secho("Warning: ", fg="yellow", bold=True, nl=False, err=True)
        versions = f"{file}: written by channelfit {written}, this is {__version__}"
        click.echo(printable(f"{versions}: results may differ"), err=True)
    context.default_map = {**(context.default_map or {}), **defaults}


def _options(command: click.Command) -> Mapping[str, click.Option]:
    options = (p for p in command.params if isinstance(p, click.Option))
    named = {max(p.opts, key=len).lstrip("-"): p for p in options}
    return {name: p for name, p in named.items() if name not in _NO_SETTINGS}


def _checked(context: click.Context, option: click.Option, value: Any) -> Any:
    """Return the value, if the option would accept it on the command line.

    Raises:
        InputError: a value of another kind, or one outside the bounds of the option.
    """
    values = value if option.multiple else [value]
    kind = _PLAIN_TYPES.get(option.type.name)
    if not isinstance(values, list):
        raise InputError(f"a list was expected, not {_shown(value)}")
    for one in values:
        wrong = not isinstance(one, kind) if kind else isinstance(one, bool | str)
        if wrong or not isinstance(one, str | int | float):
            expected = "text" if kind is str else "true or false" if kind is bool else "a number"
            raise InputError(f"{expected} was expected, not {_shown(one)}")
        if "integer" in option.type.name and not isinstance(one, int):
            raise InputError(f"a whole number was expected, not {_shown(one)}")
    try:
        option.type_cast_value(context, value)
    except (click.BadParameter, OverflowError) as error:
        raise InputError(getattr(error, "message", None) or "is too large") from None
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
