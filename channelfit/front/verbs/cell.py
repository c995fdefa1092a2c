"""`channelfit cell`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import (
    choice,
    command,
    file_path,
    json_option,
    option,
    path_argument,
    quiet_option,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """Simulate a cell with fitted channels: action potentials, and what a channel does to them.

    CELL is a cell file: a membrane, of one compartment or a cable, channels (model files, or the
    fit.yaml of runs) with their conductances, and a stimulus. Where channels have samples of
    their parameters, as of a posterior, every set is simulated, and results have a band that 95 %
    of the sets lie in.

    \b
    Writes
      PREFIX.csv           voltage, and with --currents the currents, with bands
      PREFIX-measures.csv  threshold, peak, width, rate of every sweep and set, and the
                           velocity along a cable
      PREFIX.png           stimulus and voltage

    \b
    Examples
      channelfit cell models/cells/squid.yaml
      channelfit cell models/cells/squid.yaml --scale k=0.5
      channelfit cell models/cells/squid_axon.yaml
      channelfit cell my_cell.yaml --knock-out na --currents --out figures/no_na
    """

    cell: Path = path_argument("cell")
    out: Path | None = file_path(
        "--out",
        "PREFIX",
        "Path of the files, without their endings. [default: the cell's name, here]",
        python=None,
    )
    knock_out: tuple[str, ...] = option(
        "--knock-out",
        multiple=True,
        metavar="NAME",
        help="Simulate the cell once more without this channel. Several may be given.",
    )
    scale: tuple[str, ...] = option(
        "--scale",
        multiple=True,
        metavar="NAME=FACTOR",
        help="Simulate the cell once more with the current of this channel times a factor, as "
        "with a drug that blocks a part of it. Several may be given.",
    )
    currents: bool = option(
        "--currents",
        is_flag=True,
        help="Keep the currents of all channels under the cell's own potential, which an "
        "action-potential clamp measures.",
    )
    backend: str = choice(
        "--backend", ["auto", "cpu", "cuda"], "What computes the voltages.", default="auto"
    )
    overrides: tuple[str, ...] = set_option()
    quiet: bool = quiet_option("the paths of the files")
    as_json: bool = json_option()


cell = command(CellOptions, "cell")
