"""`channelfit compare`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import backend_option


@click.command(short_help="Candidate schemes fitted to the same data.")
@click.argument("fits", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("comparison"),
    show_default=True,
    help="Folder for comparison.json and comparison.png.",
)
@click.option(
    "--as-is", is_flag=True, help="Take the values as they are; else least squares refines them."
)
@backend_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print the content of comparison.json and nothing else."
)
def compare(**given: Any) -> None:
    """Compare FITS of different schemes to the same data, such as fit.yaml of several run folders.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best of them. Experiments with weight 0 were held out of the
    fits, and are predicted here.

    \b
    Examples
      channelfit compare runs/three_states/fit.yaml runs/four_states/fit.yaml
      channelfit compare runs/*/fit.yaml --out which_scheme
    """
    from channelfit.front.commands import studies as work

    work.compare(**given)
