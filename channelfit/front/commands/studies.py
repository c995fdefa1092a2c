"""`channelfit uncertainty` and `channelfit compare`: errors of values, and the best scheme."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from channelfit.front.fitting import workers
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.kinds import load_plan, with_currents
from channelfit.front.progress import compilations_shown
from channelfit.front.studies import Computation, StudyRequest, compare_plans, study
from channelfit.front.verbs.fits import CompareOptions, UncertaintyOptions
from channelfit.reading.errors import InputError, printable
from channelfit.reading.texts import names_in
from channelfit.results.checkpoint import StudyCheckpoint
from channelfit.results.comparison import distinct_labels, file_names
from channelfit.results.identity import identity
from channelfit.results.report import result_tables, terminal
from channelfit.results.run_state import json_text, plain
from channelfit.scoring.scorer import Scorer, make_scorer
from channelfit.search.fit_tasks import FitTasks
from channelfit.search.journal import JournaledChannel
from channelfit.search.plan import FitPlan

#: The files of a study beside `uncertainty.json`, each only if requested or needed.
_FILES = (
    "refined.yaml",
    "profiles.csv",
    "profiles.png",
    "families.png",
    "posterior.csv",
    "posterior.png",
)


def uncertainty(options: UncertaintyOptions) -> None:
    """Judge a fit, write the results, and print them."""
    with JsonLines("uncertainty", options.as_json) as lines:
        folder, files, summary = _studied(lines, options)
        lines.result(folder, files, summary)
        if options.as_json:
            return
        _print_uncertainty(summary)
        for file in files:
            click.echo(printable(str(file)))


def _studied(
    lines: JsonLines, options: UncertaintyOptions
) -> tuple[Path, list[Path], dict[str, Any]]:
    """Return the folder of a study, its files and its summary."""
    fit, backend = options.fit, options.backend
    with lines.screen(fit.stem) as screen, compilations_shown(screen):
        screen.begin(f"reading {fit.name} and its data")
        plan = load_plan(fit, options.overrides, backend)
        screen.warn(plan.cautions)
        scorer = make_scorer(with_currents(plan).problem, backend)
        request = study_request(options)
        folder = options.out or (
            fit.parent if (fit.parent / "summary.json").exists() else Path("uncertainty")
        )
        checkpoint = StudyCheckpoint(folder, _identity(plan, scorer, request), options.resume)
        worth, studied = True, None
        try:
            with workers(options.cluster, screen) as executor:
                computation = None
                if executor is not None or checkpoint.left_results:
                    path, found = scorer.path or "auto", identity(plan, scorer)
                    tasks = FitTasks(plan, scorer.backend, "float64", path, found)
                    computation = Computation(tasks, executor, checkpoint.open_results())
                assert checkpoint.journal is not None  # it is open from the beginning
                answers = JournaledChannel(scorer, checkpoint.journal)
                values = plan.problem.values()
                studied = study(plan, answers, values, request, screen, computation)
            screen.begin("drawing")
            files, summary = studied.save(folder), studied.summary
            all_is_done()
            worth = False
            older = [n for n in _FILES if folder / n not in files and (folder / n).exists()]
            if older:
                screen.warn_of(f"left in {folder} by an earlier study: {', '.join(older)}")
        except InputError:
            # a fit that cannot be judged cannot be resumed; one that found no room can
            worth = studied is not None or checkpoint.has_results
            raise
        finally:
            with held():
                checkpoint.close(keep=worth)
            if worth:
                screen.say(f"the same call with --resume goes on with what is kept in {folder}")
    return folder, files, summary


def study_request(options: UncertaintyOptions) -> StudyRequest:
    """Return the parts of a study that options name."""
    return StudyRequest(
        names_in(options.profiles),
        options.families or 0,
        options.posterior or 0,
        options.walkers,
        options.seed,
        options.ensembles,
    )


def _identity(plan: FitPlan, scorer: Scorer, request: StudyRequest) -> dict[str, Any]:
    """Return all that a study depends on: the fit, and the parts that are requested."""
    parts = {f"requested {name}": plain(value) for name, value in asdict(request).items()}
    values = {"values": [float(value) for value in plan.problem.values()]}
    return {**identity(plan, scorer), **parts, **values}


def _print_uncertainty(summary: dict[str, Any]) -> None:
    before, cost = summary["cost_before_refining"], summary["cost"]
    gained = f" (before refining {before:.6g})" if before > cost else ""
    unit = f" {summary['cost_unit']}".rstrip()
    cost_line = f"cost       {cost:.6g}{unit}{gained}"
    terminal.show(result_tables.result_table(summary["parameters"]), cost_line)
    if "profiles" in summary or "posterior" in summary:
        terminal.show(result_tables.profile_table(summary))
    lines = result_tables.uncertainty_lines(summary["uncertainty"])
    lines += result_tables.family_lines(summary["families"]) if "families" in summary else []
    lines += [
        f"posterior  {warning}" for warning in summary.get("posterior", {}).get("warnings", ())
    ]
    terminal.show(*lines)


def compare(options: CompareOptions) -> None:
    """Compare fits of several schemes, write the results, and print them."""
    fits, backend = options.fits, options.backend
    with terminal.SearchScreen("comparison") as screen, compilations_shown(screen):
        plans = (load_plan(file, (), backend) for file in fits)
        labels = distinct_labels(file_names(fits))
        found = compare_plans(plans, labels, backend, options.as_is, screen.begin)
        screen.begin("drawing")
        files, summary = found.save(options.out), found.summary
        all_is_done()
    if options.as_json:
        click.echo(json_text(summary), nl=False)
        return
    of_currents = "rms_pA" in summary["fits"][0]
    terminal.show(
        result_tables.comparison_table(summary["fits"]),
        *([result_tables.comparison_quality(summary["fits"])] if of_currents else []),
        result_tables.comparison_parameters(summary["fits"]),
        *summary["remarks"],
        *(f"Warning: {w}" for w in summary["warnings"]),
    )
    for file in files:
        click.echo(printable(str(file)))
