"""`channelfit uncertainty`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import (
    backend_option,
    cluster_option,
    command,
    file_path,
    integer,
    json_option,
    option,
    path_argument,
    set_option,
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
    "Uncertainty of a fit, and parameters that are not identifiable.",
    work="studies:uncertainty",
)
