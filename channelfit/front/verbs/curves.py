"""`channelfit curves`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    argument,
    beside_resume,
    choice,
    cluster_option,
    command,
    dtype_option,
    file_path,
    integer,
    json_option,
    min_ok_option,
    option,
    path_argument,
    prefix_of,
    quiet_option,
    resume_option,
    unfinished_folder,
)
from channelfit.front.resumed import arguments_again, end_if_finished


@dataclass(frozen=True, kw_only=True)
class CurvesOptions:
    """Fit CURVE to every data set in DATA, each on its own, without guesses.

    \b
    An activation curve, one line
      channelfit curves boltzmann activation.csv

    CURVE is a file (inputs, parameters with ranges, and the formula as `curve`), or built in:
    boltzmann, exponential, double_exponential, hill, gaussian, gaussian_2d.

    \b
    DATA is one of
      .csv, wide    a column of the input, then a column for each data set
      .csv, long    columns `set`, the inputs, and the value
      .npy          (n_sets, n), or images (n_sets, n_y, n_x) for inputs x and y;
                    may be larger than memory

    \b
    Results, replacing what is there
      PREFIX.csv    a row for each data set: parameters, standard errors, cost, quality
                    (ok, check, failed) and the reason
      PREFIX.png    the worst, the middle and the best fits
    Where all data sets fail, or fewer than --min-ok are ok, the exit code is 3.
    Until they are whole, the folder PREFIX-unfinished holds what is done, for --resume.

    \b
    Examples
      channelfit curves boltzmann activation.csv --fix low=0
      channelfit curves double_exponential tails.csv --intervals profile --out fits/tails
      channelfit curves gaussian_2d spots.npy --likelihood poisson
      channelfit curves my_curve.yaml plate.csv --covariance
      channelfit curves boltzmann activation.csv --sigma sem --loss soft_l1
      channelfit curves --resume fits/tails
      channelfit curves gaussian_2d spots.npy --cluster local
    """

    curve: str = argument("curve", required=False)
    data: Path = path_argument("data", required=False)
    resume: Path | None = resume_option(
        "PREFIX",
        "results that it would have had. PREFIX is that of its results; all else is that of the "
        "run.",
        python=None,
    )
    out: Path | None = file_path(
        "--out",
        "PREFIX",
        "Path of the results, without .csv and .png. [default: DATA-CURVE here]",
        python=None,
        kept=False,
    )
    backend: str = choice(
        "--backend", ["auto", "cpu", "cuda"], "What computes the fits.", default="auto"
    )
    dtype: str = dtype_option("Precision on a GPU.")
    likelihood: str | None = choice(
        "--likelihood",
        ["gaussian", "poisson"],
        "Least squares, or maximum likelihood of counts. [default: the curve's]",
    )
    sigma: str | None = option(
        "--sigma",
        metavar="COLUMN",
        help="Standard errors of the values: a column, in a wide table also one a data set "
        "(cell_sigma for the column cell and --sigma sigma); of an array a file (.npy).",
    )
    loss: str | None = choice(
        "--loss",
        ["linear", "soft_l1"],
        "Least squares, or a loss under which outliers pull little. [default: the curve's]",
    )
    f_scale: float | None = option(
        "--f-scale",
        type=float,
        metavar="NUMBER",
        help="The residual beyond which a point counts as far off for soft_l1: about the noise of "
        "the data, in their unit. [default: the curve's; with --sigma 1 standard error]",
    )
    fixed: tuple[str, ...] = option(
        "--fix",
        "fixed",
        metavar="NAME=VALUE",
        multiple=True,
        help="Hold a parameter at a value. May be given several times.",
        python="fix",
    )
    inputs: tuple[str, ...] = option(
        "--input",
        "inputs",
        metavar="NAME=FILE",
        multiple=True,
        help="Values of an input along its axis of an array (.npy or .csv). [default: 0, 1, 2 ..]",
    )
    method: str = choice(
        "--method",
        ["least-squares", "swarm"],
        "Levenberg and Marquardt's steps, or one particle swarm for each data set.",
        default="least-squares",
    )
    particles: int = integer(
        "--particles", "Particles of a swarm.", least=2, most=1024, default=256, python=None
    )
    iterations: int = integer("--iterations", "Moves of a swarm.", default=30, python=None)
    seed: int = integer("--seed", "Seed of the swarms.", least=0, most=2**63 - 1, default=0)
    covariance: bool = option(
        "--covariance",
        is_flag=True,
        help="Also write PREFIX-covariance.npy (n_sets, n, n), parameters in the table's order.",
        python="covariances",
    )
    intervals: str = choice(
        "--intervals",
        ["t", "profile"],
        "95 % intervals by Student's t, or for data sets to be checked by the profile "
        "likelihood, which takes longer (some tenths of a second each).",
        default="t",
    )
    min_ok: int | None = min_ok_option()
    cluster: str | None = cluster_option()
    quiet: bool = quiet_option("the table's path")
    as_json: bool = json_option()


def _before(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, or the arguments of the run that goes on."""
    if given["resume"] is not None:
        folder = unfinished_folder(given["resume"])
        prefix = prefix_of(folder)
        table = prefix.with_name(prefix.name + ".csv")
        end_if_finished(context, folder, given["as_json"], table)
        given = arguments_again(context, given, folder, beside_resume(CurvesOptions))
    for parameter in context.command.params[:2]:
        if given[str(parameter.name)] is None:
            raise click.MissingParameter(ctx=context, param=parameter)
    return given


curves = command(CurvesOptions, "curves", before=_before)
