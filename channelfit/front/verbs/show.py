"""`channelfit show`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import dtype_option, model_argument, set_option


@click.command(short_help="Scheme, rates, generator matrix and parameters.")
@model_argument
@click.option(
    "--source",
    type=click.Choice(["cpu", "cuda", "nmodl"]),
    help="Print the generated code instead: of the cpu backend, of the cuda "
    "backend, or a mechanism for NEURON.",
)
@dtype_option("Precision of the generated code.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw the scheme into this file as well.",
)
@set_option
def show(**given: Any) -> None:
    """Print what MODEL says: its scheme, rates, generator matrix and parameters.

    \b
    Examples
      channelfit show models/model_b.yaml
      channelfit show models/na_markov.yaml --out na_markov.png
      channelfit show models/model_b.yaml --source cuda --dtype float32 > model_b.cu
      channelfit show models/na_hh.yaml --source nmodl > na_hh.mod
    """
    from channelfit.front.commands import show as work

    work.show(**given)
