"""`channelfit validate`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import model_argument, set_option


@click.command(short_help="Compare a model's currents with NEURON's.")
@model_argument
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Parameter sets to compare: the file's values and others drawn from the ranges.",
)
@click.option(
    "--protocol",
    "protocols",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Protocol to compare under, several allowed. [default: the fit's, else steps of 100 ms "
    "from -80 mV to -120 .. 60 mV]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "reference", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What is compared with NEURON.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the parameter sets.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for a figure of the worst case of each protocol.",
)
@set_option
def validate(**given: Any) -> None:
    """Compare the currents of MODEL with those that NEURON computes.

    NEURON gets the channel as NMODL and integrates it with CVODE to 1e-12. For every protocol the
    largest difference in any trace is given as a part of that trace's largest current. The
    tolerance is 1e-5 where the voltage is held in steps and 1e-4 where it varies; beyond it the
    exit code is 1. Needs NEURON and a C++ compiler; `channelfit doctor` tells.

    \b
    Examples
      channelfit validate models/model_b.yaml
      channelfit validate models/na_hh.yaml --candidates 50 --protocol protocols/na_iv.yaml
      channelfit validate models/herg_beattie.yaml --out validation
      channelfit validate models/published/kv34_khaliq.yaml
    """
    from channelfit.front.commands import validate as work

    work.validate(**given)
