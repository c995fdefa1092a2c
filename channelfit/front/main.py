"""The command line: verbs that parse, call and print. Everything heavy is imported when it is used,
so that ``--help`` answers at once."""

from __future__ import annotations

from typing import Any

import click

from channelfit import __version__
from channelfit.fitzhugh_nagumo.command import fhn
from channelfit.front.commands.optimize import INTERRUPTED, optimize
from channelfit.front.commands.show import show
from channelfit.front.commands.simulate import simulate
from channelfit.front.commands.studies import compare, uncertainty
from channelfit.front.commands.tune import tune
from channelfit.front.commands.validate import validate
from channelfit.reading.errors import InputError

BAD_INPUT = 2


class _Commands(click.Group):
    """Turns a mistake of the user's into one message and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(str(error), err=True)
            ctx.exit(BAD_INPUT)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="channelfit")
def main() -> None:
    """Fit kinetic models of ion channels to voltage-clamp recordings.

    A model is one YAML file: states, rates as plain expressions, parameters with ranges, and a
    `fit` section that says which recordings (or simulated data) to fit it to.

    \b
    Begin with
      channelfit show models/model_b.yaml          what a model file says
      channelfit optimize models/model_b.yaml      fit it
      channelfit doctor                            what this machine can do

    \b
    Exit codes
      0    done
      1    a defect of channelfit (a traceback follows; please report it), or
           `validate` found an error above its tolerance
      2    the input cannot be used; one message says what and where
      130  interrupted; `optimize` has saved the best so far
    """


@main.command(short_help="What is installed and what each backend can do.")
def doctor() -> None:
    """What is installed here, what each backend can do, and how to get what is missing.

    \b
    Example
      channelfit doctor
    """
    from channelfit.front.doctor import report

    report()


for command in (optimize, simulate, uncertainty, compare, show, validate, tune, fhn):
    main.add_command(command)
