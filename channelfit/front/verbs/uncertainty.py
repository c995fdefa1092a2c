"""`channelfit uncertainty`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    argument,
    backend_option,
    cluster_option,
    declared,
    json_option,
    option,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class UncertaintyOptions:
    """The options of `channelfit uncertainty`; in Python those of `channelfit.uncertainty`."""

    fit: Path = argument("fit", type=click.Path(path_type=Path))
    profiles: str = option(
        "--profiles",
        metavar="NAMES",
        default="",
        help="Profile likelihoods of these parameters, separated by commas, or all.",
    )
    families: int | None = option(
        "--families",
        type=click.IntRange(1),
        metavar="N",
        is_flag=False,
        flag_value=64,
        help="Look for other fits as good as this one, from N starts. [64 without a number]",
    )
    posterior: int | None = option(
        "--posterior",
        type=click.IntRange(4),
        metavar="STEPS",
        is_flag=False,
        flag_value=2000,
        help="Sample the posterior, so many steps of every walker. [2000 without a number]",
    )
    walkers: int | None = option(
        "--walkers",
        type=click.IntRange(4),
        metavar="N",
        help="Walkers of the posterior. [default: four a parameter, 32 or more]",
    )
    ensembles: int = option(
        "--ensembles",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="N",
        help="So many ensembles of walkers, which know nothing of each other, for the posterior.",
    )
    seed: int = option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of starts and walkers.",
    )
    out: Path | None = option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder for the results. [default: the run folder FIT stands in, else uncertainty/ "
        "here]",
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
    cluster: str | None = cluster_option.field(python=None)
    backend: str = backend_option.field(python=None)
    overrides: tuple[str, ...] = set_option.field()
    as_json: bool = json_option.field()


@click.command(short_help="Uncertainty of a fit, and parameters that are not identifiable.")
@declared(UncertaintyOptions)
def uncertainty(**given: Any) -> None:
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
    from channelfit.front.commands import studies as work

    work.uncertainty(UncertaintyOptions(**given))
