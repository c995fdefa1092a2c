"""Verbs of recordings before a fit: their options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import choice, command, file_path, option, path_argument


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """The options that say of a recording what its file does not."""

    command: Path | None = file_path(
        "--command",
        "FILE",
        "What was commanded, where the recording does not say it: a protocol (YAML), "
        ".eph, a list of steps, or a record of the command.",
    )
    signal: str | None = option(
        "--signal", metavar="NAME", help="The current, by its name or number."
    )
    unit: str | None = option("--unit", metavar="UNIT", help="Unit of the current, such as nA.")
    sampling: str | None = option(
        "--sampling", metavar="TIME", help="Sampling interval, such as 0.1ms."
    )
    layout: str | None = option(
        "--layout", metavar="WORDS", help="How a matrix lies: see the guide."
    )
    decimal: str | None = choice("--decimal", ["comma", "point"], "Of the numbers in a table.")
    series: str | None = option(
        "--series", metavar="GROUP/SERIES", help="Of a HEKA bundle, by numbers or labels."
    )


@dataclass(frozen=True, kw_only=True)
class InspectOptions(RecordingOptions):
    """Print what is in FILES from the rig: sweeps, units, protocol, noise, leak, what looks wrong.

    A file is a recording (ABF, NWB, Igor, WinWCP, HEKA, MATLAB, HDF5, CSV, SyncroPatch), a
    protocol, or a fit file, of which the data are shown as recorded and as the fit will see them.
    Everything that is found is printed and drawn; no file but the picture is replaced.

    \b
    Examples
      channelfit inspect cell_3.abf
      channelfit inspect cell_3.abf --protocol steps.yaml --csv cell_3.csv
      channelfit inspect well.csv --command staircase.eph --unit pA
      channelfit inspect my_cell.yaml
    """

    files: tuple[Path, ...] = path_argument("files", nargs=-1, required=True)
    protocol: Path | None = file_path(
        "--protocol", "OUT.yaml", "Write the protocol that was found."
    )
    csv: Path | None = file_path(
        "--csv", "OUT.csv", "Write the current: time in ms, then pA of every sweep."
    )
    out: Path | None = file_path(
        "--out", "FILE.png", "Where to draw it. [default: NAME-inspect.png here]"
    )


inspect = command(InspectOptions, "inspect")


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


init = command(InitOptions, "init")
