"""`--resume`: the arguments of the command that began a run, as if they had been typed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from channelfit.reading.errors import InputError, printable

_NOTHING = "there is nothing to go on with"


def arguments_again(
    context: click.Context, given: Mapping[str, Any], run: Path, beside: Collection[str]
) -> dict[str, Any]:
    """Return the arguments of the run that is to go on, checked as if they had been typed again.

    Arguments:
        given: the arguments of this call.
        run: the folder of the run.
        beside: options that may stand beside `--resume`, since they do not change the result: they
            say what is printed and where the work is done.

    Raises:
        click.UsageError: another argument is given, too.
        InputError: the run cannot go on.
    """
    command = context.command
    end_if_finished(context, run, bool(given.get("as_json")))
    for parameter in command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in beside and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{parameter.get_error_hint(context)} cannot stand beside --resume: a run goes on "
                "with its own arguments, or its result would be another one.",
                context,
            )
    try:
        typed = words_of_the_run(run, command)
        try:
            again = command.make_context(str(command.name), typed, parent=context.parent)
        except click.UsageError as error:
            message = f"is damaged: {error.format_message()}"
            raise InputError(message, run / "resume.json") from None
    except InputError:
        from channelfit.front.json_lines import JsonLines  # loads NumPy

        with JsonLines(str(command.name), bool(given.get("as_json"))):
            raise
    return {**again.params, **{name: given[name] for name in beside}}


def end_if_finished(
    context: click.Context, run: Path, as_json: bool, results: Path | None = None
) -> None:
    """End the command with exit code 0 where the run has finished.

    Arguments:
        results: a file that is there once the run has finished and its folder has gone; None where
            the folder stays.
    """
    from channelfit.results.checkpoint import (
        has_finished,  # loads NumPy, which --help does not need
    )

    done = has_finished(run) if results is None else results.is_file() and not run.exists()
    if not done:
        return
    from channelfit.front.json_lines import JsonLines  # for the same reason

    with JsonLines(str(context.command.name), as_json) as lines:
        place = results or run
        lines.result(place if place.is_dir() else place.parent, [place] if place.is_file() else [])
        click.echo(f"{printable(str(place))}: this run has finished; {_NOTHING}", err=True)
    context.exit(0)


def words_of_the_run(run: Path, command: click.Command) -> list[str]:
    """Return the words of the command line that began a run, with paths from the current folder.

    Raises InputError: the run cannot go on.
    """
    # they load NumPy, which --help does not need
    from channelfit.results.checkpoint import arguments_of, check_stopped

    check_stopped(run, claimed=False)
    known, directory = arguments_of(run, str(command.name))
    words, names = [], []
    for parameter in command.params:
        value = known.get(parameter.name or "")
        if isinstance(parameter, click.Argument):
            if not parameter.expose_value:
                continue
            if value is None:
                raise InputError(f"is damaged: it holds no {parameter.name}", run)
            is_path = isinstance(parameter.type, click.Path)
            names.append(str(directory / str(value)) if is_path else str(value))
            continue
        for each in value if isinstance(value, list) else [value]:
            if each is not None and each is not False:
                words += [parameter.opts[0]] if each is True else [parameter.opts[0], str(each)]
    return [*words, "--", *names]
