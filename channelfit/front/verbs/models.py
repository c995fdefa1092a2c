"""Verbs of models: their options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from channelfit.front.options import (
    backend_option,
    choice,
    cluster_option,
    command,
    dtype_option,
    file_path,
    integer,
    option,
    path_argument,
    path_option,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Simulate the current of MODEL under PROTOCOL, at the values in the model file.

    Writes PREFIX.csv (time in ms, then current in pA and voltage in mV of every sweep) and
    PREFIX.png, replacing what is there. Cells after the end of a shorter sweep are empty. With
    --channels the channels open and close one by one, at random.

    \b
    Examples
      channelfit simulate models/model_b.yaml protocols/activation.yaml
      channelfit simulate models/model_b.yaml protocols/activation.yaml --channels 200 --seed 3
      channelfit simulate runs/cell7/fit.yaml protocols/staircase.yaml --out predictions/cell7
      channelfit simulate models/k_hh.yaml protocols/ramp.yaml --set parameters.gmax.value=3
    """

    model: Path = path_argument("model")
    protocol: Path = path_argument("protocol")
    out: Path | None = file_path(
        "--out",
        "PREFIX",
        "Path of the two files, without .csv and .png. [default: MODEL-PROTOCOL here]",
        python=None,
    )
    backend: str = backend_option()
    dtype: str = dtype_option("Precision of the currents.")
    path: str = path_option()
    overrides: tuple[str, ...] = set_option()
    cell: str | None = option("--cell", metavar="NAME", help="The cell whose own values are taken.")
    channels: int | None = integer(
        "--channels",
        "Draw so many channels, which together have the model's conductance.",
    )
    seed: int | None = integer("--seed", "The seed of the draws. [default: 0]", least=0)
    noise: float | None = option(
        "--noise",
        type=click.FloatRange(0),
        metavar="PA",
        help="The standard deviation that the amplifier adds to each sample of these, pA.",
    )
    open_noise: float | None = option(
        "--open-noise",
        type=click.FloatRange(0),
        metavar="PA",
        help="The standard deviation that each open channel adds to each sample, pA.",
    )


simulate = command(SimulateOptions, "simulate", draws=True)


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Print what MODEL says: its scheme, rates, generator matrix and parameters.

    \b
    Examples
      channelfit show models/model_b.yaml
      channelfit show models/na_markov.yaml --out na_markov.png
      channelfit show models/model_b.yaml --source cuda --dtype float32 > model_b.cu
      channelfit show models/na_hh.yaml --source nmodl > na_hh.mod
    """

    model: Path = path_argument("model")
    source: str | None = choice(
        "--source",
        ["cpu", "cuda", "nmodl"],
        "Print the generated code instead: of the cpu backend, of the cuda "
        "backend, or a mechanism for NEURON.",
    )
    dtype: str = dtype_option("Precision of the generated code.")
    out: Path | None = file_path("--out", "FILE.png", "Draw the scheme into this file as well.")
    overrides: tuple[str, ...] = set_option()


show = command(ShowOptions, "show")


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Compare the currents of MODEL with those that NEURON computes.

    NEURON gets the channel as NMODL and integrates it with CVODE to 1e-12. For every protocol the
    largest difference in any trace is given as a part of that trace's largest current. The
    tolerance is 1e-5 where voltage and concentrations are held in steps and 1e-4 where any varies;
    beyond it the exit code is 1. Needs NEURON and a C++ compiler; `channelfit doctor` tells.

    \b
    Examples
      channelfit validate models/model_b.yaml
      channelfit validate models/na_hh.yaml --candidates 50 --protocol protocols/na_iv.yaml
      channelfit validate models/herg_beattie.yaml --out validation
      channelfit validate models/published/kv34_khaliq.yaml
    """

    model: Path = path_argument("model")
    candidates: int = integer(
        "--candidates",
        "Parameter sets to compare: the file's values and others drawn from the ranges.",
        default=10,
    )
    protocols: tuple[Path, ...] = option(
        "--protocol",
        "protocols",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Protocol to compare under, several allowed. [default: the fit's, else steps of 100 "
        "ms from -80 mV to -120 .. 60 mV]",
    )
    backend: str = backend_option("What is compared with NEURON.")
    seed: int = integer("--seed", "Seed of the parameter sets.", least=0, default=0)
    out: Path | None = file_path(
        "--out", "DIR", "Folder for a figure of the worst case of each protocol."
    )
    overrides: tuple[str, ...] = set_option()


validate = command(ValidateOptions, "validate")


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Measure how fast MODEL is scored on this GPU with every number of threads a block.

    The fastest is remembered in the cache folder, for this model and this GPU, and every later
    `optimize` uses it. Prints a table, and draws time and occupancy against threads a block. The
    cpu backend has nothing to tune.

    \b
    Examples
      channelfit tune models/model_b.yaml --population 1000000
      channelfit tune models/herg_markov.yaml --dtype float32 --out launches.png
    """

    model: Path = path_argument("model")
    population: int | None = integer(
        "--population",
        "Candidates to score each time. [default: the file's]",
        key="fit.optimizer.population",
    )
    dtype: str = dtype_option("Precision of the search to be tuned.")
    path: str = path_option()
    out: Path | None = file_path(
        "--out", "FILE.png", "Where to draw time and occupancy. [default: MODEL-launches.png here]"
    )
    overrides: tuple[str, ...] = set_option()


tune = command(TuneOptions, "tune")


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
    work="import_model:import_model",
)


@dataclass(frozen=True, kw_only=True)
class DesignOptions:
    """Design a protocol that determines the parameters of MODEL, a model, a fit or a run folder.

    With --separate it tells MODEL from other schemes instead: the least distance between the
    current of one of them and the best fit of another becomes large.

    The criterion comes from the standard errors that the noise would leave to least squares. From
    random starts all voltages and durations are moved downhill by its exact derivatives. The best
    protocol is rounded to whole mV and samples, and judged again by the derivatives by which fits
    descend: through the `clamp` of a fit where it has one, and then changed further while that is a
    gain.

    \b
    Writes into DIR
      protocol.yaml  the protocol, for every verb; stimulus.csv has its samples
      protocol.eph   the same for a SyncroPatch, where it has steps and ramps alone
      design.png     command, currents, and what each segment tells of each parameter
      design.json    what is expected, also of the protocols of --compare

    \b
    Examples
      channelfit design models/herg_beattie.yaml --length "15 s" --noise "20 pA"
      channelfit design models/model_b.yaml --length "200 ms" --segments "6 step, ramp"
      channelfit design models/herg_markov.yaml --compare protocols/staircase.yaml
      channelfit design runs/one_scheme --separate runs/another --noise "20 pA"
    """

    model: Path = path_argument("model")
    separate: tuple[Path, ...] = file_path(
        "--separate",
        "MODEL",
        "Another scheme with values, which the protocol separates from MODEL; several allowed.",
        multiple=True,
    )
    length: str = option("--length", metavar="TIME", default="15 s", help="Of each sweep.")
    segments: str = option(
        "--segments",
        metavar="KINDS",
        default="20 step",
        help='How many of step, ramp and sines, one after the other: "10 step, 2 ramp, sines".',
    )
    noise: str = option(
        "--noise",
        metavar="NOISE",
        default="10 pA",
        help="Standard deviation of a sample, of white noise; or the folder of a finished fit: "
        "its residuals are taken as noise, with their correlation.",
    )
    sweeps: int = integer(
        "--sweeps",
        "Designed together, each of that length and segments.",
        default=1,
        python="limits",
    )
    holding: str = option(
        "--holding",
        metavar="VOLTAGE",
        default="-80 mV",
        help='Before each sweep; "-100 mV .. -60 mV" chooses it in that range.',
        python="limits",
    )
    lowest: str = option(
        "--lowest",
        metavar="VOLTAGE",
        default="-120 mV",
        help="Least command voltage.",
        python="limits",
    )
    highest: str = option(
        "--highest",
        metavar="VOLTAGE",
        default="60 mV",
        help="Greatest command voltage.",
        python="limits",
    )
    slew: str = option(
        "--slew",
        metavar="SLEW",
        default="",
        help='Greatest slew of the command, "20 V/s": jumps become ramps of it. [default: jumps]',
        python="limits",
    )
    shortest: str = option(
        "--shortest",
        metavar="TIME",
        default="20 ms",
        help="Least duration of a segment.",
        python="limits",
    )
    sampling: str = option(
        "--sampling",
        metavar="TIME",
        default="0.5 ms",
        help="From one sample to the next.",
        python="limits",
    )
    mask: str = option(
        "--mask",
        metavar="TIME",
        default="0 ms",
        help="After each jump of the voltage, how long samples do not count, for the charging of "
        "the capacitance.",
        python="limits",
    )
    criterion: str = choice(
        "--criterion",
        ["log", "D", "A", "E", "V"],
        "What is made small: the mean logarithm of the standard errors, the volume of their "
        "ellipsoid (D), the mean variance (A), the largest one (E), or that of the currents of "
        "--predict (V).",
        default="log",
    )
    parameters: str = option(
        "--parameters",
        metavar="NAMES",
        default="",
        help="Those that count, with commas between, for log and A. [default: all]",
    )
    predict: tuple[Path, ...] = file_path(
        "--predict",
        "FILE",
        "A protocol under which the current is predicted: its error is listed; V makes it "
        "small. Several allowed.",
        multiple=True,
    )
    members: int = integer(
        "--members",
        "Parameter vectors about the values, over which the criterion is averaged.",
        default=1,
        python="ensemble",
    )
    vectors: tuple[Path, ...] = file_path(
        "--vectors",
        "FILE",
        "Where these vectors are from: a fit of another cell, a table with a column for each "
        "parameter (posterior.csv, wells.csv), the families in an uncertainty.json, or prior: "
        "drawn from priors, or where there is none evenly from ranges. Several "
        "allowed; 16 vectors count, or as many as --members says.",
        multiple=True,
        python="ensemble",
    )
    spread: float = option(
        "--spread",
        type=click.FloatRange(0.0),
        metavar="X",
        default=0.2,
        help="Of these vectors: standard deviation of the logarithm of each parameter.",
        python="ensemble",
    )
    worst: bool = option(
        "--worst",
        is_flag=True,
        help="The worst of these vectors counts, and not the mean.",
        python="ensemble",
    )
    compare: tuple[Path, ...] = file_path(
        "--compare",
        "FILE",
        "A protocol whose expected errors stand beside the design's; several allowed.",
        multiple=True,
    )
    starts: int = integer("--starts", "Random starts.", default=8)
    iterations: int = integer("--iterations", "Of each start, at most.", default=100)
    seed: int = integer("--seed", "Of starts and parameter vectors.", least=0, default=0)
    out: Path = file_path(
        "--out",
        "DIR",
        "Folder for the results; must be new or empty.",
        default=Path("design"),
        python=None,
        kept=False,
    )
    resume: bool = option(
        "--resume",
        is_flag=True,
        help="Go on with an interrupted design in DIR, which was called in the same way.",
        python=None,
        kept=False,
    )
    cluster: str | None = cluster_option(python=None)
    overrides: tuple[str, ...] = set_option()


design = command(DesignOptions, "design")
