"""`channelfit optimize`: its options and help."""

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
    dtype_option,
    integer,
    json_option,
    option,
    path_argument,
    path_option,
    quiet_option,
    results_option,
    resume_option,
    set_option,
)
from channelfit.front.resumed import arguments_again


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions:
    """Fit the parameters of MODEL to its data.

    MODEL is a model file with a `fit` section, or a fit file that names its model. Progress is
    shown on standard error; Ctrl-C ends the search and keeps the best so far (exit code 130).
    --resume continues a run that was interrupted or killed, or whose computer failed.

    \b
    The results' folder
      report.html   the whole result on one page, with figures to zoom, to send to others
      fit.yaml      the model with the fitted values; can be simulated, and fitted again
      traces.png    data, fit, residual and command voltage
      traces.csv    the same as a table (several experiments: traces_1.csv, traces_2.csv, ..)
      history.csv   best and median cost of every generation
      summary.json  numbers, parameters, seed, versions, machine, why it stopped
      source.py     the code that was generated for this model (source.cu with a GPU)

    \b
    Examples
      channelfit optimize models/model_b.yaml
      channelfit optimize models/model_b.yaml --population 1120 --generations 50 --seed 3
      channelfit optimize my_cell.yaml --out runs/cell7 --set fit.stop.seconds=60
      channelfit optimize models/k_hh.yaml --json --quiet | tail -n 1
      channelfit optimize --resume runs/cell7
      channelfit optimize my_cell.yaml --seeds 8 --cluster local
    """

    model: Path = path_argument("model", required=False)
    resume: Path | None = resume_option(
        "RUN", "result that it would have had. MODEL and options are those of that run."
    )
    out: Path | None = results_option()
    seed: int | None = integer(
        "--seed",
        "Seed of the search: the same seed gives the same result. [default: the file's, or 0]",
        least=0,
        key="fit.seed",
    )
    seeds: int | None = integer(
        "--seeds",
        "Number of independent searches, with seeds counted up from --seed. The best result is "
        "kept, and how many searches reached it. [default: the file's, or 1]",
        key="fit.seeds",
    )
    backend: str = backend_option()
    dtype: str = dtype_option(
        "Precision of the search; the result is scored in float64 either way."
    )
    path: str = path_option()
    cluster: str | None = cluster_option()
    chunk: int | None = integer(
        "--chunk",
        "Candidates in one launch on a GPU whose memory does not hold the whole population.",
        python=None,
    )
    population: int | None = integer(
        "--population",
        "Candidates in each generation. [default: the file's]",
        key="fit.optimizer.population",
        python="optimizer",
    )
    generations: int | None = integer(
        "--generations",
        "Stop after this number of generations. [default: the file's]",
        key="fit.optimizer.generations",
        python="stop",
    )
    optimizer: str | None = option(
        "--optimizer",
        metavar="NAME",
        help="Search method: hybrid, genetic, swarm, ring, groups, differential, cma, or "
        "asynchronous_ring for functions on a GPU. If the file names another method, the settings "
        "in the file are ignored. [default: the file's]",
        key="fit.optimizer.name",
    )
    overrides: tuple[str, ...] = set_option()
    quiet: bool = quiet_option("the results' folder")
    as_json: bool = json_option()


def _before(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, or the arguments of the run that goes on."""
    if given["resume"] is not None:
        return arguments_again(context, given, given["resume"], beside_resume(OptimizeOptions))
    if given["model"] is None:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    return given


optimize = command(
    OptimizeOptions,
    "optimize",
    "Fit the parameters of a model to its data.",
    before=_before,
    draws=True,
)
