"""`channelfit optimize`: fit the parameters of a model to its data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from channelfit.front.options import (
    as_overrides,
    backend_option,
    dtype_option,
    model_argument,
    path_option,
    prepare,
    set_option,
)
from channelfit.reading.errors import InputError

if TYPE_CHECKING:
    from channelfit.results.report.terminal import SearchScreen
    from channelfit.scoring.scorer import Scorer
    from channelfit.search.plan import FitPlan

#: The exit code of a search that was interrupted.
INTERRUPTED = 130
#: More parameters than this are not listed on the screen; they stand in the results' folder.
_MOST_ROWS = 64


@click.command(short_help="Fit the parameters of a model to its data.")
@model_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results; must be new or empty. [default: runs/NAME-DATE-TIME]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of the search: the same seed gives the same result. [default: the file's, or 0]",
)
@backend_option
@dtype_option("Precision of the search; the result is scored in float64 either way.")
@path_option
@click.option(
    "--chunk",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates in one launch on a GPU, where it must be fewer than the population.",
)
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates a generation. [default: the file's]",
)
@click.option(
    "--generations",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after so many generations. [default: the file's]",
)
@click.option(
    "--optimizer",
    metavar="NAME",
    help="Search method: hybrid, genetic, swarm, ring, groups, differential, cma, or "
    "asynchronous_ring for functions on a GPU. Another than the file's starts from its own "
    "settings, not from the file's. [default: the file's]",
)
@set_option
@click.option("--quiet", is_flag=True, help="Print the results' folder and nothing else.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the content of summary.json on standard output and nothing else there.",
)
def optimize(
    model: Path,
    out: Path | None,
    seed: int | None,
    backend: str,
    dtype: str,
    path: str,
    chunk: int | None,
    population: int | None,
    generations: int | None,
    optimizer: str | None,
    overrides: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Fit the parameters of MODEL to its data.

    MODEL is a model file with a `fit` section, or a fit file that names its model. Progress is
    shown on standard error; Ctrl-C ends the search and keeps the best so far (exit code 130).

    \b
    The results' folder
      fit.yaml      the model with the fitted values; can be simulated, and fitted again
      traces.png    data, fit, residual and command voltage
      history.csv   best and median cost of every generation
      summary.json  numbers, parameters, seed, versions, machine, why it stopped
      source.py     the code that was generated for this model (source.cu with a GPU)

    \b
    Examples
      channelfit optimize models/model_b.yaml
      channelfit optimize models/model_b.yaml --population 1120 --generations 50 --seed 3
      channelfit optimize my_cell.yaml --out runs/cell7 --set fit.stop.seconds=60
      channelfit optimize models/k_hh.yaml --json --quiet > summary.json
    """
    from channelfit.results.report.artist import hired

    with hired() as artist:  # who gets ready while everything else is imported
        from channelfit.front import kinds
        from channelfit.front.fitting import run
        from channelfit.front.progress import compilations_shown, nothing_collected
        from channelfit.results import run_folder as runs
        from channelfit.results.report import terminal

        if out is not None:
            runs.check_folder(out)
        options = as_overrides(model, overrides, seed, population, generations, optimizer)
        with terminal.SearchScreen(model.name, quiet) as screen:
            with compilations_shown(screen), nothing_collected():
                fit, scorer = prepare(model, options, backend, dtype, path, screen)
                _set_chunk(scorer, chunk)
                _score_one(fit, scorer, screen)
            folder = kinds.open_folder(out or runs.default_folder(fit.name), fit, artist)
            summary = run(fit, scorer, folder, screen).summary
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
    elif quiet:
        click.echo(str(folder.path))
    else:
        _print_result(summary, folder.path)
    if summary["stop_reason"] == "interrupted":
        sys.exit(INTERRUPTED)


def _set_chunk(scorer: Scorer, chunk: int | None) -> None:
    if chunk is None:
        return
    if not hasattr(scorer, "chunk"):
        raise InputError(f"--chunk is for GPUs; backend {scorer.backend} does without")
    scorer.chunk = chunk


def _score_one(fit: FitPlan, scorer: Scorer, screen: SearchScreen) -> None:
    """Which compiles."""
    import numpy as np

    screen.begin("scoring the first candidate")
    scorer.score(fit.space.to_physical(np.full((fit.space.n_free, 1), 0.5)))


def _print_result(summary: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    from channelfit.results.report import terminal

    console = Console(highlight=False)
    console.print()
    if len(summary["parameters"]) <= _MOST_ROWS:
        console.print(terminal.result_table(summary["parameters"]))
        console.print()
    for line in terminal.result_lines(summary):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"results    {folder}", soft_wrap=True, markup=False)
