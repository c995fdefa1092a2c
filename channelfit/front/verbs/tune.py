"""`channelfit tune`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import dtype_option, model_argument, path_option, set_option


@click.command(short_help="Find the fastest threads a block on this GPU.")
@model_argument
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates to score each time. [default: the file's]",
)
@dtype_option("Precision of the search to be tuned.")
@path_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Where to draw time and occupancy. [default: MODEL-launches.png here]",
)
@set_option
def tune(**given: Any) -> None:
    """Measure how fast MODEL is scored on this GPU with every number of threads a block.

    The fastest is remembered in the cache folder, for this model and this GPU, and every later
    `optimize` uses it. Prints a table, and draws time and occupancy against threads a block. The
    cpu backend has nothing to tune.

    \b
    Examples
      channelfit tune models/model_b.yaml --population 1000000
      channelfit tune models/herg_markov.yaml --dtype float32 --out launches.png
    """
    from channelfit.front.commands import tune as work

    work.tune(**given)
