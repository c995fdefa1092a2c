"""Options of the command line: each is declared once, and all else is derived from that.

The options of a verb are a dataclass (`verbs.fits.OptimizeOptions`). Each field declares an
option by `option`, `argument` or one of the functions below: how it is typed, its help, the key of
the fit file that it overrides, and the argument of the Python function that means the same.
The docstring of the class is the help of the verb. `command` makes the verb of such a class,
`kept_options` lists those that a resumed run needs again, and `overrides_of` the values that they
set in the fit file. A test compares them with the arguments of the Python functions.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import click

from channelfit.reading.memory import nothing_collected

#: Takes the context of a verb and what was typed, by name; returns what its work is given.
Before: TypeAlias = Callable[[click.Context, dict[str, Any]], dict[str, Any]]
#: The ending of the folder of a run of `channelfit curves`, while it goes on.
UNFINISHED = "-unfinished"
#: The field of a dataclass under which `option` keeps its declaration.
_KEY = "option"
#: The type of a path, which need not exist.
_PATH = click.Path(path_type=Path)


@dataclasses.dataclass(frozen=True)
class Option:
    """The declaration of one option or argument of a verb.

    Attributes:
        parameter: the same for click.
        key: the key of the fit file that it overrides, such as ``fit.seed``; empty for none.
        python: the argument of the Python function that means the same; empty where it bears the
            same name, None where Python has none.
        kept: whether it says what is computed, so that a run that is resumed has to have it again;
            else it says where the work is done, or what is printed, and may stand beside
            ``--resume``.
    """

    parameter: click.Parameter
    key: str = ""
    python: str | None = ""
    kept: bool = True


def option(
    *names: str, key: str = "", python: str | None = "", kept: bool = True, **settings: Any
) -> Any:
    """Return an option as a field of the dataclass of a verb; its help shows its default.

    Arguments:
        names: as click takes them, such as ``--seed``; a name without dashes is that of the field.
        key, python, kept: see `Option`.
        settings: all else that ``click.option`` takes.
    """
    settings.setdefault("show_default", settings.get("default") not in (None, ""))
    own = Option(click.Option(names, **settings), key, python, kept)
    return dataclasses.field(metadata={_KEY: own})


def integer(
    name: str,
    what: str,
    *,
    least: int = 1,
    most: int | None = None,
    metavar: str = "N",
    **more: Any,
) -> Any:
    """Return an option whose value is a whole number; `what` is its help, `more` as of `option`."""
    return option(name, type=click.IntRange(least, most), metavar=metavar, help=what, **more)


def file_path(name: str, metavar: str, what: str, **more: Any) -> Any:
    """Return an option whose value is a path; `what` is its help, `more` as of `option`."""
    return option(name, type=_PATH, metavar=metavar, help=what, **more)


def choice(name: str, words: Sequence[str], what: str, **more: Any) -> Any:
    """Return an option whose value is a word; `what` is its help, `more` as of `option`."""
    return option(name, type=click.Choice(words), help=what, **more)


def argument(name: str, *, python: str | None = "", **settings: Any) -> Any:
    """Return an argument, which is typed without a name, as a field of the dataclass of a verb."""
    own = Option(click.Argument([name], **settings), "", python)
    return dataclasses.field(metadata={_KEY: own})


def path_argument(name: str, **settings: Any) -> Any:
    """Return an argument whose value is a path; `settings` as of `argument`."""
    return argument(name, type=_PATH, **settings)


# --- what is derived ------------------------------------------------------------------------------


def parameters(options: type) -> list[click.Parameter]:
    """Return all options of a dataclass for click, in the order of its fields."""
    return [one.parameter for _, one in _options(options)]


def command(
    options: type,
    verb: str,
    *,
    work: str = "",
    before: Before | None = None,
    beside: Callable[[dict[str, Any]], None] | None = None,
    draws: bool = False,
) -> click.Command:
    """Return the command of a verb, whose help is the docstring of its options.

    The work is imported when the verb is called, so that ``--help`` answers at once. Where it
    returns an exit code other than 0, the process ends with that.

    Arguments:
        verb: its name.
        work: takes an instance of `options`: MODULE:FUNCTION in `front.commands`, which are both
            called as the verb where nothing else is said.
        before: looks at what was typed, and may change it.
        beside: begins work, for what was typed, that goes on while this process imports the rest.
        draws: whether the work takes a `ReportWriter` besides, whose process starts while this one
            imports the rest.
    """

    def call(**given: Any) -> None:
        if before is not None:
            given = before(click.get_current_context(), given)
        module, _, function = (work or f"{verb}:{verb}").partition(":")
        with ExitStack() as ends:
            writers = []
            if draws:
                from channelfit.results.report.report_writer import started_writer  # loads slowly

                writers.append(ends.enter_context(started_writer()))
            if beside is not None:
                beside(given)
            with nothing_collected():
                do = getattr(import_module(f"channelfit.front.commands.{module}"), function)
            code = do(options(**given), *writers)
        if code:
            sys.exit(code)

    help_text = inspect.cleandoc(str(options.__doc__))
    return click.Command(verb, callback=call, params=parameters(options), help=help_text)


def beside_resume(options: type) -> tuple[str, ...]:
    """Return the names of options that may stand beside ``--resume``."""
    return tuple(name for name, one in _options(options) if not one.kept and name != "out")


def kept_options(options: Any) -> dict[str, Any]:
    """Return by name the options that a resumed run needs again; paths as texts."""
    named = {name: getattr(options, name) for name, one in _options(type(options)) if one.kept}
    return {name: str(v) if isinstance(v, Path) else v for name, v in named.items()}


def overrides_of(options: Any) -> dict[str, Any]:
    """Return by key of the fit file the values that options set there."""
    keys = {one.key: getattr(options, name) for name, one in _options(type(options)) if one.key}
    return {key: value for key, value in keys.items() if value is not None}


def _options(options: type) -> list[tuple[str, Option]]:
    """Return the options of a dataclass by field, its own ones before those of its base."""
    fields = dataclasses.fields(options)
    own = sorted(fields, key=lambda field: field.name not in options.__annotations__)
    return [(field.name, field.metadata[_KEY]) for field in own]


def unfinished_folder(prefix: Path) -> Path:
    """Return the folder of a run whose results will begin with a prefix, or with that folder."""
    if prefix.name.endswith(UNFINISHED):
        return prefix
    return prefix.with_name(prefix.name + UNFINISHED)


def prefix_of(folder: Path) -> Path:
    """Return the prefix of the results of a run that has this `unfinished_folder`."""
    return folder.with_name(folder.name.removesuffix(UNFINISHED))


# --- options of several verbs ---------------------------------------------------------------------


def resume_option(metavar: str, result: str, **more: Any) -> Any:
    """Return the option by which an interrupted run goes on.

    Arguments:
        result: the result of the run, and a sentence on its other options.
        more: as of `option`.
    """
    what = f"Go on with a run that was interrupted or killed, to the {result}"
    return file_path("--resume", metavar, what, kept=False, **more)


def results_option(name: str = "NAME", python: str | None = "folder") -> Any:
    """Return the option of the run folder, whose name begins with `name` by default."""
    what = f"Folder for the results; must be new or empty. [default: runs/{name}-DATE-TIME]"
    return file_path("--out", "DIR", what, python=python, kept=False)


def set_option() -> Any:
    """Return the option that changes entries of the file."""
    return option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Change one entry of the file for this call, e.g. parameters.gmax.value=3 or "
        "fit.optimizer.mutation_rate=0.02. May be given several times.",
        python=None,
    )


def backend_option(what: str = "What computes the currents.", **more: Any) -> Any:
    """Return the option that chooses the backend; `what` is its help, `more` as of `option`."""
    words = ["auto", "reference", "cpu", "cuda"]
    return choice("--backend", words, what, default="auto", **more)


def path_option() -> Any:
    """Return the option that chooses how a backend integrates."""
    return choice(
        "--path",
        ["auto", "stepping", "closed-form", "moments"],
        "How: sample by sample; or without samples, from sums over the recording. A backend may "
        "have one only.",
        default="auto",
    )


def cluster_option(**more: Any) -> Any:
    """Return the option that chooses a cluster; `more` as of `option`."""
    return option(
        "--cluster",
        metavar="WHERE",
        help="Spread the work over local, local:N processes, the workers of tcp://HOST:PORT, or "
        "the jobs that FILE.yaml describes.",
        kept=False,
        **more,
    )


def json_option() -> Any:
    """Return the option by which a command writes lines of JSON."""
    return option(
        "--json",
        "as_json",
        is_flag=True,
        help="For scripts: standard output is one JSON object a line, for progress, warnings, "
        "failures and, as the last one, the results and their files.",
        python=None,
        kept=False,
    )


def min_ok_option() -> Any:
    """Return the option that says how many fits must be good."""
    return integer(
        "--min-ok",
        "End with exit code 3 where fewer than N fits are ok, so that nothing begins that "
        "waits for them. [default: where all failed]",
        least=0,
        python=None,
    )


def quiet_option(what: str, python: str | None = "progress") -> Any:
    """Return the option that keeps a command from printing all but one thing, which is named."""
    help_text = f"Print {what} and nothing else."
    return option("--quiet", is_flag=True, help=help_text, python=python, kept=False)


def dtype_option(what: str) -> Any:
    """Return the option of a precision; `what` is its help."""
    return choice("--dtype", ["float64", "float32"], what, default="float64")
