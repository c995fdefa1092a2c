"""`channelfit discover`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    backend_option,
    beside_resume,
    cluster_option,
    command,
    integer,
    json_option,
    option,
    path_argument,
    quiet_option,
    results_option,
    resume_option,
    set_option,
)
from channelfit.front.resumed import arguments_again


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions:
    """Fit all schemes of a size to the data of FIT, and rank them.

    FIT is a fit file. Its data, protocols, masks, clamp and bounds on rates stay, and of its model
    all but states and rates. Every connected scheme takes their place, each once whatever the
    order of its states; `discover` in the fit section says which and with what rates.

    Each scheme is scanned and refined a little, the best of each size more, and the best of all
    until independent starts agree. Those whose BIC is within 6 of the best are fitted to the
    currents of each other, which tells whether any such recording could separate them.

    \b
    The results' folder
      discover.html  the whole result on one page
      schemes.csv    a row a scheme: cost, parameters, AIC, BIC, held-out error, agreement
      schemes/       a model file of each of the best, for compare, simulate, export
      summary.json   numbers, seed, versions, machine

    \b
    Examples
      channelfit discover my_cell.yaml --states 2..4
      channelfit discover my_cell.yaml --states 3..5 --open 1..2 --set fit.discover.cycles=1
      channelfit discover my_cell.yaml --cluster local --out runs/schemes
      channelfit discover --resume runs/schemes
    """

    model: Path | None = path_argument("model", required=False, metavar="[FIT]")
    states: str | None = option(
        "--states",
        metavar="N|N..M",
        help="How many states the schemes have, such as 3..5. [default: the file's, or 2..4]",
        key="fit.discover.states",
    )
    open: str | None = option(
        "--open",
        metavar="N|N..M",
        help="How many of them are open. [default: the file's, or 1]",
        key="fit.discover.open",
    )
    resume: Path | None = resume_option(
        "RUN", "result that it would have had. FIT and options are those of that run."
    )
    out: Path | None = results_option()
    seed: int | None = integer(
        "--seed",
        "Seed of the search: the same seed gives the same result. [default: the file's, or 0]",
        least=0,
        key="fit.seed",
    )
    backend: str = backend_option()
    cluster: str | None = cluster_option()
    overrides: tuple[str, ...] = set_option()
    quiet: bool = quiet_option("the results' folder")
    as_json: bool = json_option()


def _before(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, or the arguments of the run that goes on."""
    if given["resume"] is not None:
        return arguments_again(context, given, given["resume"], beside_resume(DiscoverOptions))
    if given["model"] is None:
        raise click.MissingParameter(ctx=context, param=discover.params[0])
    return given


discover = command(DiscoverOptions, "discover", before=_before)
