"""Options that several verbs of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change one entry of the file for this call, e.g. parameters.gmax.value=3 or "
    "fit.optimizer.mutation_rate=0.02. May be given several times.",
)
model_argument = click.argument("model", type=click.Path(path_type=Path))
backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "reference", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What computes the currents.",
)
path_option = click.option(
    "--path",
    type=click.Choice(["auto", "stepping", "modal", "closed-form"]),
    default="auto",
    show_default=True,
    help="How: sample by sample; in a scheme's modes; or without samples, from sums over the "
    "recording. A backend may have one only.",
)
cluster_option = click.option(
    "--cluster",
    metavar="WHERE",
    help="Spread the work over local, local:N processes, the workers of tcp://HOST:PORT, or the "
    "jobs that FILE.yaml describes.",
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="For scripts: standard output is one JSON object a line, for progress, warnings, failures "
    "and, as the last one, the results and their files.",
)


min_ok_option = click.option(
    "--min-ok",
    type=click.IntRange(0),
    metavar="N",
    help="End with exit code 3 where fewer than N fits are ok, so that nothing begins that waits "
    "for them. [default: where all failed]",
)


def dtype_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of a precision, with what it is the precision of."""
    return click.option(
        "--dtype",
        type=click.Choice(["float64", "float32"]),
        default="float64",
        show_default=True,
        help=what,
    )


def told_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options by which a user tells of a recording what its file does not say."""
    options = (
        click.option(
            "--command",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="What was commanded, where the recording does not say it: a protocol (YAML), "
            ".eph, a list of steps, or a record of the command.",
        ),
        click.option("--signal", metavar="NAME", help="The current, by its name or number."),
        click.option("--unit", metavar="UNIT", help="Unit of the current, such as nA."),
        click.option("--sampling", metavar="TIME", help="Sampling interval, such as 0.1ms."),
        click.option("--layout", metavar="WORDS", help="How a matrix lies: see the guide."),
        click.option(
            "--decimal", type=click.Choice(["comma", "point"]), help="Of the numbers in a table."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
