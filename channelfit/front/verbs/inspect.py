"""`channelfit inspect`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import recording_options


@click.command(short_help="What is in a recording, or what a fit sees of it.")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--protocol",
    type=click.Path(path_type=Path),
    metavar="OUT.yaml",
    help="Write the protocol that was found.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path),
    metavar="OUT.csv",
    help="Write the current: time in ms, then pA of every sweep.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Where to draw it. [default: NAME-inspect.png here]",
)
@recording_options
def inspect(**given: Any) -> None:
    """Print what is in FILES from the rig: sweeps, units, protocol, noise, leak, what looks wrong.

    A file is a recording (ABF, NWB, Igor, WinWCP, MATLAB, HDF5, CSV, SyncroPatch), a protocol, or
    a fit file, of which the data are shown as they were recorded and as the fit will see them.
    Everything that is found is printed and drawn; no file but the picture is replaced.

    \b
    Examples
      channelfit inspect cell_3.abf
      channelfit inspect cell_3.abf --protocol steps.yaml --csv cell_3.csv
      channelfit inspect well.csv --command staircase.eph --unit pA
      channelfit inspect my_cell.yaml
    """
    from channelfit.front.commands import inspect as work

    work.inspect(**given)
