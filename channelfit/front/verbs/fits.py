"""Verbs of fits: their options and help."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    backend_option,
    beside_resume,
    cluster_option,
    command,
    dtype_option,
    file_path,
    integer,
    json_option,
    option,
    path_argument,
    path_option,
    quiet_option,
    results_option,
    resume_option,
    set_option,
)
from channelfit.front.resumed import arguments_again


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions:
    """Fit the parameters of MODEL to its data.

    MODEL is a model file with a `fit` section, or a fit file that names its model. Progress is
    shown on standard error; Ctrl-C ends the search and keeps the best so far (exit code 130).
    --resume continues a run that was interrupted or killed, or whose computer failed.

    \b
    The results' folder
      report.html   the whole result on one page, with figures to zoom, to send to others
      fit.yaml      the model with the fitted values; can be simulated, and fitted again
      traces.png    data, fit, residual and command voltage
      traces.csv    the same as a table (several experiments: traces_1.csv, traces_2.csv, ..)
      history.csv   best and median cost of every generation
      summary.json  numbers, parameters, seed, versions, machine, why it stopped
      source.py     the code that was generated for this model (source.cu with a GPU)

    \b
    Examples
      channelfit optimize models/model_b.yaml
      channelfit optimize models/model_b.yaml --population 1120 --generations 50 --seed 3
      channelfit optimize my_cell.yaml --out runs/cell7 --set fit.stop.seconds=60
      channelfit optimize models/k_hh.yaml --json --quiet | tail -n 1
      channelfit optimize --resume runs/cell7
      channelfit optimize my_cell.yaml --seeds 8 --cluster local
    """

    model: Path = path_argument("model", required=False)
    resume: Path | None = resume_option(
        "RUN", "result that it would have had. MODEL and options are those of that run."
    )
    out: Path | None = results_option()
    seed: int | None = integer(
        "--seed",
        "Seed of the search: the same seed gives the same result. [default: the file's, or 0]",
        least=0,
        key="fit.seed",
    )
    seeds: int | None = integer(
        "--seeds",
        "Number of independent searches, with seeds counted up from --seed. The best result is "
        "kept, and how many searches reached it. [default: the file's, or 1]",
        key="fit.seeds",
    )
    backend: str = backend_option()
    dtype: str = dtype_option(
        "Precision of the search; the result is scored in float64 either way."
    )
    path: str = path_option()
    cluster: str | None = cluster_option()
    chunk: int | None = integer(
        "--chunk",
        "Candidates in one launch on a GPU whose memory does not hold the whole population.",
        python=None,
    )
    population: int | None = integer(
        "--population",
        "Candidates in each generation. [default: the file's]",
        key="fit.optimizer.population",
        python="optimizer",
    )
    generations: int | None = integer(
        "--generations",
        "Stop after this number of generations. [default: the file's]",
        key="fit.optimizer.generations",
        python="stop",
    )
    optimizer: str | None = option(
        "--optimizer",
        metavar="NAME",
        help="Search method: hybrid, genetic, swarm, ring, groups, differential, cma, or "
        "asynchronous_ring for functions on a GPU. If the file names another method, the settings "
        "in the file are ignored. [default: the file's]",
        key="fit.optimizer.name",
    )
    overrides: tuple[str, ...] = set_option()
    quiet: bool = quiet_option("the results' folder")
    as_json: bool = json_option()


def _before_optimize(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, or the arguments of the run that goes on."""
    if given["resume"] is not None:
        return arguments_again(context, given, given["resume"], beside_resume(OptimizeOptions))
    if given["model"] is None:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    return given


def _beside_optimize(given: dict[str, Any]) -> None:
    """Begin to load what reads the recording of a fit file, where it seems to be a foreign one."""
    file, text = Path(given["model"]), b""
    with suppress(OSError):  # which reading the file will say
        if file.is_file():  # a pipe can be read once only
            with file.open("rb") as opened:
                text = opened.read(_MOST_BYTES)
    library = next((name for ending, name in _READERS.items() if ending in text), None)
    if library is not None:
        from channelfit.reading.second_process import load  # loads NumPy

        load(library)


#: What reads recordings with these endings in the second process, and loads slowly.
_READERS = {b".mat": "scipy.io", b".nwb": "h5py"}
#: Of a fit file, in which the names of recordings are looked for.
_MOST_BYTES = 100_000

optimize = command(
    OptimizeOptions,
    "optimize",
    before=_before_optimize,
    beside=_beside_optimize,
    draws=True,
)


@dataclass(frozen=True, kw_only=True)
class UncertaintyOptions:
    """Estimate the uncertainty of the fitted values in FIT, such as fit.yaml of a run folder.

    They are refined by least squares first. Standard errors and intervals come from the Gauss-
    Newton Hessian of the cost and the noise in the residuals; a sentence names each parameter or
    combination that is not identifiable. Profiles follow the cost where it is no parabola;
    families are equally good fits that nothing connects; the posterior is a sample of all
    parameters that the data allow.

    \b
    Writes
      uncertainty.json, uncertainty.png            always
      refined.yaml                                 where refining made the fit better
      profiles.csv, profiles.png                   with --profiles
      families.png                                 with --families
      posterior.csv, posterior.png                 with --posterior

    \b
    Examples
      channelfit uncertainty runs/cell7/fit.yaml
      channelfit uncertainty runs/cell7/fit.yaml --profiles all --families
      channelfit uncertainty runs/cell7/fit.yaml --profiles a12,gmax --posterior 5000
    """

    fit: Path = path_argument("fit")
    profiles: str = option(
        "--profiles",
        metavar="NAMES",
        default="",
        help="Profile likelihoods of these parameters, separated by commas, or all.",
    )
    families: int | None = integer(
        "--families",
        "Look for other fits as good as this one, from N starts. [64 without a number]",
        is_flag=False,
        flag_value=64,
    )
    posterior: int | None = integer(
        "--posterior",
        "Sample the posterior, so many steps of every walker. [2000 without a number]",
        least=4,
        metavar="STEPS",
        is_flag=False,
        flag_value=2000,
    )
    walkers: int | None = integer(
        "--walkers", "Walkers of the posterior. [default: four a parameter, 32 or more]", least=4
    )
    ensembles: int = integer(
        "--ensembles",
        "So many ensembles of walkers, which know nothing of each other, for the posterior.",
        default=1,
    )
    seed: int = integer("--seed", "Seed of starts and walkers.", least=0, default=0)
    out: Path | None = file_path(
        "--out",
        "DIR",
        "Folder for the results. [default: the run folder FIT stands in, else uncertainty/ here]",
        python=None,
        kept=False,
    )
    resume: bool = option(
        "--resume",
        is_flag=True,
        help="Go on with what an interrupted or killed call with the same arguments has left in "
        "the folder of the results.",
        python=None,
        kept=False,
    )
    cluster: str | None = cluster_option(python=None)
    backend: str = backend_option(python=None)
    overrides: tuple[str, ...] = set_option()
    as_json: bool = json_option()


uncertainty = command(
    UncertaintyOptions,
    "uncertainty",
    work="studies:uncertainty",
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare FITS of different schemes to the same data, such as fit.yaml of several run folders.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best of them. Experiments with weight 0 were held out of the
    fits, and are predicted here.

    \b
    Examples
      channelfit compare runs/three_states/fit.yaml runs/four_states/fit.yaml
      channelfit compare runs/*/fit.yaml --out which_scheme
    """

    fits: tuple[Path, ...] = path_argument("fits", nargs=-1, required=True)
    out: Path = file_path(
        "--out",
        "DIR",
        "Folder for comparison.json and the pictures.",
        default=Path("comparison"),
        python=None,
        kept=False,
    )
    as_is: bool = option(
        "--as-is",
        is_flag=True,
        help="Take the values as they are; else least squares refines them.",
    )
    backend: str = backend_option()
    as_json: bool = option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the content of comparison.json and nothing else.",
        python=None,
        kept=False,
    )


compare = command(CompareOptions, "compare", work="studies:compare")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Make the report of RUN again: one page, complete in itself, that tells all of a fit.

    RUN is a folder that `optimize` wrote, or its fit.yaml. Of several, one page shows them side by
    side: recordings that they share are drawn once, with the fit of each.

    The page holds the scheme, fit and data with a choice of sweeps and of times, residuals, I-V,
    activation and time constants where the protocol is a family of steps, the parameters with
    their intervals, what is not determined, what looked wrong, how to repeat it, a paragraph of
    methods and what to cite. The traces are written as CSV beside it.

    RUN may also be the folder of a batch, whose page plate.html is there already: --figures draws
    the plate and the distributions of its parameters for print.

    \b
    Examples
      channelfit report runs/model_b-20260102-030405
      channelfit report runs/cell7 --figures pdf,svg
      channelfit report runs/three_states runs/four_states --out both.html
      channelfit report runs/plate7 --figures pdf
    """

    runs: tuple[Path, ...] = path_argument("runs", nargs=-1, required=True, metavar="RUN...")
    out: Path | None = file_path(
        "--out",
        "FILE.html",
        "The page. [default: report.html in the run's folder; reports.html here for several runs]",
    )
    figures: str = option(
        "--figures",
        metavar="KINDS",
        default="",
        help="Write the figures for print as well, into the folder figures/ beside the page: pdf, "
        "svg or png, or several of them with commas between.",
    )
    backend: str = backend_option()


report = command(ReportOptions, "report")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the channel of FIT for other programs: a run folder, its fit.yaml or a model file.

    The file's header says where model and values come from: source, data with their hashes,
    protocols, error, seed, versions. Parameters have units, and the fit's 95 % intervals.

    \b
    Writes
      nmodl     NAME.mod    a mechanism for NEURON
      neuroml   NAME.nml    channels, and a cell with them, in NeuroML 2
      myokit    NAME.mmt    a model for Myokit
      jaxley    NAME_jaxley.py   a channel for Jaxley, with gradients
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
        type=click.Choice(["nmodl", "neuroml", "myokit", "jaxley", "python", "latex", "json"]),
        help="The language. [default: by the ending of --out]",
        python=None,
    )
    ions: tuple[str, ...] = option(
        "--ion",
        "ions",
        metavar="ION",
        multiple=True,
        help="NMODL, NeuroML: the ion that carries the current, such as na, whose reversal "
        "potential is then the cell's. Of several currents NAME=na, which may be given several "
        "times.",
        python="ion",
    )
    suffix: str | None = option(
        "--suffix", metavar="NAME", help="Name of the mechanism. [default: the model's]"
    )
    capacitance: float | None = option(
        "--capacitance",
        type=float,
        metavar="PF",
        help="NMODL, NeuroML, Jaxley: of the cell (pF), from which the density in S/cm2 follows "
        "at 1 uF/cm2. "
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
        "The file to write, which must not exist. [default: NAME and the ending of the language, "
        "here]",
        python="path",
    )
    overrides: tuple[str, ...] = set_option()


export = command(ExportOptions, "export")
