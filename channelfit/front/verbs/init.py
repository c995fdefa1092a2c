"""`channelfit init`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import command, file_path, option, path_argument
from channelfit.front.verbs.inspect import RecordingOptions


@dataclass(frozen=True, kw_only=True)
class InitOptions(RecordingOptions):
    """Write a commented starter fit for RECORDINGS, ready for `channelfit optimize`.

    Protocol, signals, units, masks of capacitive transients, baseline and ranges are filled in from
    what `channelfit inspect` finds. Without --model, a model with one or two gates is chosen by
    whether the current is inward and whether it inactivates; the file says why. Where a recording
    states its series resistance and capacitance, a `clamp` section accounts for them if the voltage
    error is more than 5 mV; otherwise the section is written as comments. No file is replaced.

    \b
    Writes
      NAME-fit.yaml         the fit
      NAME-protocol.yaml    what was commanded
      NAME-model.yaml       the model, unless --model names one

    \b
    Examples
      channelfit init cell_3.abf
      channelfit init cell_3.abf cell_3_tails.abf --model herg_beattie --out cell_3.yaml
      channelfit init before.csv --subtract after.csv --command staircase.eph
    """

    recordings: tuple[Path, ...] = path_argument("recordings", nargs=-1, required=True)
    model: str | None = option(
        "--model",
        metavar="NAME",
        help="A model file, or the name of a shipped model. [default: one chosen by the data]",
    )
    out: Path | None = file_path(
        "--out", "FIT.yaml", "The file to write. [default: NAME-fit.yaml here]"
    )
    clamp: bool | None = option(
        "--clamp/--no-clamp",
        default=None,
        help="Fit with the series resistance that the recording states, or assume an ideal clamp. "
        "[default: with it where the voltage error is more than 5 mV]",
    )
    subtract: Path | None = file_path(
        "--subtract",
        "FILE",
        "A recording under the same protocol that is subtracted, such as after a blocker.",
    )


init = command(InitOptions, "init", "Write a starter fit for recordings.")
