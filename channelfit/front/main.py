"""The command line: its verbs and its exit codes.

The options and the help of a verb stand in `verbs`, and what it does in `commands`. Both are
imported when the verb is called: so ``--help`` answers at once, and a command loads no library that
it does not use.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from channelfit import __version__
from channelfit.front import interrupts
from channelfit.reading import memory
from channelfit.reading.errors import InputError, printable

BAD_INPUT = 2
#: 128 and the number of SIGPIPE, which Windows does not have.
CLOSED_PIPE = 141
#: The verbs: the file of each in `verbs`, and what the list of verbs says of it.
_VERBS = {
    "optimize": ("fits", "Fit the parameters of a model to its data."),
    "run": ("runs", "Many fits and what follows from them, in a night."),
    "watch": ("runs", "Show running fits, and the queue in a folder, on a page."),
    "simulate": ("models", "Currents of a model under a protocol."),
    "cell": ("cell", "Action potentials of a cell with fitted channels."),
    "uncertainty": ("fits", "Uncertainty of a fit, and parameters that are not identifiable."),
    "design": ("models", "A protocol that determines the parameters of a model."),
    "compare": ("fits", "Candidate schemes fitted to the same data."),
    "report": ("fits", "A page that tells all of a fit, and its figures for print."),
    "discover": ("discover", "Which scheme: all of a size, fitted to the same data."),
    "batch": ("batch", "Fit a model to many recordings, each on its own."),
    "curves": ("curves", "Fit a formula to many data sets, each on its own."),
    "inspect": ("recordings", "What is in a recording, or what a fit sees of it."),
    "init": ("recordings", "Write a starter fit for recordings."),
    "export": ("fits", "A fitted channel for NEURON, Myokit, Python, LaTeX."),
    "import": ("models", "A model of NEURON or Myokit as a model file."),
    "show": ("models", "Scheme, rates, generator matrix and parameters."),
    "validate": ("models", "Compare a model's currents with NEURON's."),
    "tune": ("models", "Find the fastest threads a block on this GPU."),
    "examples": ("program", "Copy the shipped models, protocols and recordings."),
    "doctor": ("program", "What is installed and what each backend can do."),
    "completion": ("program", "Print the script that lets a shell complete commands."),
    "schema": ("program", "What files may hold, for editors and readers."),
    "fhn": ("fhn", "Solve the FitzHugh-Nagumo equation on a cable."),
}


def _end_of_closed_pipe() -> int:
    """Return the exit code after `| head` has closed the pipe: that of a program ended by SIGPIPE.

    What is left in the buffers goes nowhere, or Python would complain of it when it ends.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # this one; or it was closed from the start
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return CLOSED_PIPE


class _Verbs(Mapping[str, click.Command]):
    """The verbs by name, each of which is imported when it is looked up."""

    def __getitem__(self, verb: str) -> click.Command:
        file, short_help = _VERBS[verb]
        name = "import_model" if verb == "import" else verb  # a word of Python names nothing
        command: click.Command = getattr(import_module(f"channelfit.front.verbs.{file}"), name)
        command.short_help = short_help
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_VERBS)

    def __len__(self) -> int:
        return len(_VERBS)


class _Commands(click.Group):
    """The verbs: a mistake in the user's input becomes one message and exit code 2."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a verb; a file that cannot be read or written is reported like a bad input."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # what ASCII lacks is shown by code
        try:
            try:
                return super().main(*args, **settings)
            except SystemExit:
                # click's way with a closed pipe; importing the class warns that it is to move
                if type(sys.stdout).__name__.lstrip("_") == "PacifyFlushWrapper":
                    sys.exit(_end_of_closed_pipe())
                raise
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            if error.errno == errno.EPIPE:
                sys.exit(_end_of_closed_pipe())
            place = error.filename or "standard output, or a file of results"
            text = f"{place}: cannot be read or written: {error.strerror or error}"
            click.echo(f"Error: {printable(text)}", err=True)
            sys.exit(BAD_INPUT)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, _VERBS[verb][1]) for verb in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that is called; an option that it takes once may not be given twice."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_repeated(click.Context(command, info_name=name, parent=ctx), rest)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts.acted_upon():
                memory.check_address_space()
                return super().invoke(ctx)
        except InputError as error:
            click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(printable(str(error)), err=True)
            ctx.exit(BAD_INPUT)
        except KeyboardInterrupt:
            self._interrupted(ctx)
        except BrokenPipeError:
            ctx.exit(_end_of_closed_pipe())
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            raise
        except Exception as error:
            if text := memory.ran_out(error):
                text = f"more memory is needed than there is: {text}"
                click.echo(f"Error: {printable(text)}", err=True)
                ctx.exit(BAD_INPUT)
            if not interrupts.have_come():
                raise
            self._interrupted(ctx)  # it came out of a library as an error of its own

    def _interrupted(self, ctx: click.Context) -> None:
        interrupts.all_is_done()
        click.echo("Interrupted.", err=True)
        ctx.exit(interrupts.exit_code())


def _refuse_repeated(ctx: click.Context, args: list[str]) -> None:
    """Raise UsageError for an option with one value that is given twice: one would be ignored."""
    try:
        _, _, order = ctx.command.make_parser(ctx).parse_args(list(args))
    except click.UsageError:
        return  # which the verb itself says
    once = [p for p in order if isinstance(p, click.Option) and not (p.multiple or p.count)]
    for option in once:
        given = sum(other is option for other in once)
        if given > 1 and not option.is_flag:
            raise click.UsageError(
                f"{option.opts[0]} takes one value, and is given {given} times", ctx
            )


@click.group(
    cls=_Commands,
    commands=_Verbs(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="channelfit")
def main() -> None:
    """Fit kinetic models of ion channels to voltage-clamp recordings.

    A model is one YAML file: states, rates as plain expressions, parameters with ranges, and a
    `fit` section that says which recordings (or simulated data) to fit it to.

    \b
    Begin with
      channelfit examples .                        copy the shipped models here
      channelfit inspect cell_3.abf                what a recording holds
      channelfit init cell_3.abf                   write a first fit for it
      channelfit show models/model_b.yaml          what a model file says
      channelfit optimize models/model_b.yaml      fit it
      channelfit doctor                            what this machine can do

    \b
    Exit codes
      0    done
      1    a defect of channelfit (a traceback follows; please report it), or
           `validate` found an error above its tolerance
      2    the input cannot be used, or memory or disk do not suffice; one
           message says what and where
      3    `run` has ended, and not all of its jobs could be done
      130  interrupted; `optimize` has saved the best so far
      141  whatever read the output has closed it, such as `| head`
      143  ended by SIGTERM, in the same way
    """
