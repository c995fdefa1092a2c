"""`channelfit import`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import choice, command, file_path, option, path_argument


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Translate FILE, a .mod of NEURON, or a .mmt or .cellml of Myokit, into a model file.

    The original is then run beside the translation under two families of voltage steps, and the
    largest error is printed. What cannot be translated is refused by name and line.

    \b
    Examples
      channelfit import na3.mod
      channelfit import na3.mod --fit tha,qa --out na3.yaml
      channelfit import beattie-2017.mmt --current ikr.IKr
      channelfit import ohara-2011.mmt --current ical.ICaLCa --hold ical.nca

    \b
    Exit codes
      0    translated, proven and written
      1    the proof found an error above its tolerance; nothing is written without --unproven
      2    FILE cannot be translated; one message says what and where
    """

    file: Path = path_argument("file", metavar="FILE")
    fit: str = option(
        "--fit",
        metavar="NAME,..",
        default="",
        help="Parameters that are to be searched, by their names in FILE, with commas between "
        "them. The largest conductance is one in any case; all others keep their values.",
    )
    current: str | None = option(
        "--current",
        metavar="NAME",
        help="Of a Myokit model: the variable that is the channel's current, such as ikr.IKr.",
    )
    hold: str = option(
        "--hold",
        metavar="NAME,..",
        default="",
        help="Of a Myokit model: states that are held at their initial values, such as ical.nca, "
        "with commas between them. Concentrations, and what only they change, are held in any "
        "case.",
    )
    start: str = choice(
        "--start",
        ["file", "steady"],
        "Where sweeps begin that the INITIAL of a .mod starts elsewhere: refused, or at the "
        "steady state of the holding potential.",
        default="file",
    )
    out: Path | None = file_path(
        "--out",
        "MODEL.yaml",
        "The model file to write; without it, the name of FILE with .yaml in this folder.",
    )
    unproven: bool = option(
        "--unproven",
        is_flag=True,
        help="Write the model file even where the proof fails or cannot be had.",
    )


import_model = command(
    ImportOptions,
    "import",
    "A model of NEURON or Myokit as a model file.",
    work="import_model:import_model",
)
