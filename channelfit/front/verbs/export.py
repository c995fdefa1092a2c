"""`channelfit export`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from channelfit.front.options import command, file_path, option, path_argument, set_option


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the channel of FIT for other programs: a run folder, its fit.yaml or a model file.

    The file's header says where model and values come from: source, data with their hashes,
    protocols, error, seed, versions. Parameters have units, and the fit's 95 % intervals.

    \b
    Writes
      nmodl     NAME.mod    a mechanism for NEURON
      myokit    NAME.mmt    a model for Myokit
      python    NAME.py     functions that need nothing but Python
      latex     NAME.tex    the equations and a table of the parameters
      json      NAME.json   everything, for any program

    \b
    Examples
      channelfit export runs/cell_3 --to nmodl --ion na --capacitance 18
      channelfit export runs/cell_3 --to nmodl --point-process --out ina.mod
      channelfit export models/na_hh.yaml --to myokit
      channelfit export runs/cell_3 --out channel.tex
    """

    fit: Path = path_argument("fit", python="model")
    kind: str | None = option(
        "--to",
        "kind",
        type=click.Choice(["nmodl", "myokit", "python", "latex", "json"]),
        help="The language. [default: by the ending of --out]",
        python=None,
    )
    ions: tuple[str, ...] = option(
        "--ion",
        "ions",
        metavar="ION",
        multiple=True,
        help="NMODL: the ion that carries the current, such as na, whose reversal potential is "
        "then the cell's. Of several currents NAME=na, which may be given several times.",
        python="ion",
    )
    suffix: str | None = option(
        "--suffix", metavar="NAME", help="Name of the mechanism. [default: the model's]"
    )
    capacitance: float | None = option(
        "--capacitance",
        type=float,
        metavar="PF",
        help="NMODL: of the cell (pF), from which the density in S/cm2 follows at 1 uF/cm2. "
        "[default: what model, recording or clamp say]",
    )
    point_process: bool = option(
        "--point-process",
        is_flag=True,
        help="NMODL: all channels of the cell (nS) in place of a density.",
    )
    cell: str | None = option("--cell", metavar="NAME", help="The cell whose own values are taken.")
    out: Path | None = file_path(
        "--out",
        "FILE",
        "The file to write, which must not exist. [default: NAME.mod, .mmt, .py, .tex or "
        ".json here]",
        python="path",
    )
    overrides: tuple[str, ...] = set_option()


export = command(ExportOptions, "export", "A fitted channel for NEURON, Myokit, Python, LaTeX.")
