"""`channelfit uncertainty` and `channelfit compare`: how sure a fit is, which scheme is best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from channelfit.front.options import backend_option, set_option


@click.command(short_help="How sure a fit is, and what the data leave open.")
@click.argument("fit", type=click.Path(path_type=Path))
@click.option(
    "--profiles",
    metavar="NAMES",
    default="",
    help="Profile likelihoods of these parameters, separated by commas, or all.",
)
@click.option(
    "--families",
    type=click.IntRange(1),
    metavar="N",
    is_flag=False,
    flag_value=64,
    help="Look for other fits as good as this one, from N starts. [64 without a number]",
)
@click.option(
    "--posterior",
    type=click.IntRange(4),
    metavar="STEPS",
    is_flag=False,
    flag_value=2000,
    help="Sample the posterior, so many steps of every walker. [2000 without a number]",
)
@click.option(
    "--walkers",
    type=click.IntRange(4),
    metavar="N",
    help="Walkers of the posterior. [default: four a parameter, 32 or more]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of starts and walkers.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results. [default: the run folder FIT stands in, else uncertainty/ here]",
)
@backend_option
@set_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the content of uncertainty.json and nothing else.",
)
def uncertainty(
    fit: Path,
    profiles: str,
    families: int | None,
    posterior: int | None,
    walkers: int | None,
    seed: int,
    out: Path | None,
    backend: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """How sure the fitted values in FIT are, such as fit.yaml of a run folder.

    They are refined by least squares first. Standard errors and intervals come from the curvature
    of the cost and the noise in the residuals; what the data do not determine is told in words.
    Profiles follow the cost where it is no parabola; families are equally good fits that nothing
    connects; the posterior is a sample of all parameters that the data allow.

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
    from channelfit.front.kinds import load_plan, make_scorer, with_currents
    from channelfit.front.progress import compilations_shown
    from channelfit.front.studies import Wanted, study
    from channelfit.results import run_folder as runs
    from channelfit.results.report import terminal

    with terminal.SearchScreen(fit.stem) as screen, compilations_shown(screen):
        screen.begin(f"reading {fit.name} and its data")
        plan = load_plan(fit, overrides, backend)
        screen.warn(plan.cautions)
        scorer = make_scorer(with_currents(plan), backend)
        names = tuple(name.strip() for name in profiles.split(",") if name.strip())
        wanted = Wanted(names, families or 0, posterior or 0, walkers, seed)
        found = study(plan, scorer, plan.problem.model.values(), wanted, screen.begin)
        screen.begin("drawing")
        folder = out or (
            fit.parent if (fit.parent / "summary.json").exists() else Path("uncertainty")
        )
        files, summary = found.save(folder), found.summary
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
        return
    _print_uncertainty(summary)
    for file in files:
        click.echo(str(file))


def _print_uncertainty(summary: dict[str, Any]) -> None:
    from rich.console import Console

    from channelfit.results.report import terminal

    console = Console(highlight=False)
    console.print(terminal.result_table(summary["parameters"]))
    console.print()
    before, cost = summary["cost_before_refining"], summary["cost"]
    gained = f" (before refining {before:.6g})" if before > cost else ""
    console.print(f"cost       {cost:.6g} pA^2{gained}", soft_wrap=True)
    if "profiles" in summary or "posterior" in summary:
        console.print(terminal.profile_table(summary))
        console.print()
    lines = terminal.sure_lines(summary["uncertainty"])
    lines += terminal.family_lines(summary["families"]) if "families" in summary else []
    lines += [
        f"posterior  {warning}" for warning in summary.get("posterior", {}).get("warnings", ())
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


@click.command(short_help="Candidate schemes fitted to the same data.")
@click.argument("fits", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("comparison"),
    show_default=True,
    help="Folder for comparison.json and comparison.png.",
)
@click.option(
    "--as-is", is_flag=True, help="Take the values as they are; else least squares refines them."
)
@backend_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print the content of comparison.json and nothing else."
)
def compare(fits: tuple[Path, ...], out: Path, as_is: bool, backend: str, as_json: bool) -> None:
    """Compare FITS of different schemes to the same data, such as fit.yaml of several run folders.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best of them. Experiments with weight 0 were held out of the
    fits, and are predicted here.

    \b
    Examples
      channelfit compare runs/three_states/fit.yaml runs/four_states/fit.yaml
      channelfit compare runs/*/fit.yaml --out which_scheme
    """
    from rich.console import Console

    from channelfit.front.kinds import load_plan
    from channelfit.front.progress import compilations_shown
    from channelfit.front.studies import contended
    from channelfit.results import run_folder as runs
    from channelfit.results.comparison import file_names, told_apart
    from channelfit.results.report import terminal

    with terminal.SearchScreen("comparison") as screen, compilations_shown(screen):
        plans = (load_plan(file, (), backend) for file in fits)
        labels = told_apart(file_names(fits))
        found = contended(plans, labels, backend, as_is, screen.begin)
        screen.begin("drawing")
        files, summary = found.save(out), found.summary
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
        return
    console = Console(highlight=False)
    console.print(terminal.comparison_table(summary["fits"]))
    console.print()
    console.print(terminal.comparison_quality(summary["fits"]))
    console.print()
    console.print(terminal.comparison_parameters(summary["fits"]))
    console.print()
    for line in [*summary["remarks"], *(f"Warning: {w}" for w in summary["warnings"])]:
        console.print(line, soft_wrap=True, markup=False)
    for file in files:
        click.echo(str(file))
