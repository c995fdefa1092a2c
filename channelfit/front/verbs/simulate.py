"""`channelfit simulate`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    backend_option,
    dtype_option,
    model_argument,
    path_option,
    set_option,
)


@click.command(short_help="Currents of a model under a protocol.")
@model_argument
@click.argument("protocol", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Path of the two files, without .csv and .png. [default: MODEL-PROTOCOL here]",
)
@backend_option
@dtype_option("Precision of the currents.")
@path_option
@set_option
@click.option("--cell", metavar="NAME", help="The cell whose own values are taken.")
def simulate(**given: Any) -> None:
    """Current of MODEL under PROTOCOL, at the values in the model file.

    Writes PREFIX.csv (time in ms, then current in pA and voltage in mV of every sweep) and
    PREFIX.png, replacing what is there. Cells after the end of a shorter sweep are empty.

    \b
    Examples
      channelfit simulate models/model_b.yaml protocols/activation.yaml
      channelfit simulate runs/cell7/fit.yaml protocols/staircase.yaml --out predictions/cell7
      channelfit simulate models/k_hh.yaml protocols/ramp.yaml --set parameters.gmax.value=3
    """
    from channelfit.results.report.artist import hired

    with hired() as artist:  # who gets ready while all else is imported
        from channelfit.front.commands import simulate as work

        work.simulate(**given, artist=artist)
