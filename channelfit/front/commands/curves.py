"""`channelfit curves`: one formula, fitted to many data sets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np

from channelfit.curves.batch import CurveSettings, FittedSets
from channelfit.curves.curve import Curve, load_curve
from channelfit.curves.curve_tasks import CurveFitStore, CurveTasks
from channelfit.curves.data_files import read_data
from channelfit.curves.fitting import cautions
from channelfit.curves.pictures import fits_figure
from channelfit.curves.table import CovarianceFile, FitTable
from channelfit.front.interrupts import all_is_done
from channelfit.front.json_lines import JsonLines
from channelfit.front.options import kept_options, prefix_of, unfinished_folder
from channelfit.front.progress import WorkProgress, compilations_shown
from channelfit.front.unfinished import UnfinishedRun
from channelfit.front.verbs.curves import CurvesOptions
from channelfit.reading.errors import InputError, printable, shown
from channelfit.reading.files import whole, writing
from channelfit.reading.texts import pairs_in
from channelfit.reading.units import parse_quantity
from channelfit.results.quality import TOO_FEW, too_few
from channelfit.results.report import plots, terminal
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import file_name
from channelfit.tasks.cluster import open_cluster
from channelfit.tasks.executor import Executor, SerialExecutor, task_results
from channelfit.tasks.result_store import ResultStore

#: The most failures of a task that are shown one by one.
_BY_NAME = 5


def curves(options: CurvesOptions) -> int:
    """Fit a curve to all data sets of a file; write the table and the picture of fits.

    Returns: the exit code.
    """
    with JsonLines("curves", options.as_json) as lines:
        lacking = _fit(lines, options)
    if lacking:
        click.echo(f"Error: {lacking}", err=True)
    return TOO_FEW if lacking else 0


def _fit(lines: JsonLines, options: CurvesOptions) -> str:
    """Fit the curve and write the results; return why too few fits are ok, or an empty text."""
    data, sigma = options.data, options.sigma
    formula, files = formula_and_inputs(options)
    if sigma is not None and data.suffix.lower() == ".npy":
        sigma = str(Path(sigma).absolute())
    settings = CurveSettings(
        options.backend,
        options.dtype,
        options.method,
        options.covariance,
        options.seed,
        options.particles,
        options.iterations,
    )
    chosen = settings.chosen_backend()
    out = options.out or Path(".")
    out = out / file_name(f"{data.stem}-{formula.name}") if out.is_dir() else out
    folder = unfinished_folder(options.resume or out)
    prefix = prefix_of(folder)
    read = [Path(options.curve), data, *files.values(), *([Path(sigma)] if sigma else [])]
    _refuse_to_replace(prefix, read)
    began = time.perf_counter()
    with (
        lines.screen(formula.name, options.quiet) as screen,
        compilations_shown(screen),
        writing(prefix),
    ):
        lines.folder(folder)
        with UnfinishedRun("curves", screen.say) as run:
            (run.claim if options.resume is None else run.resume)(folder)
            run.report(name=formula.name, file=str(data))
            groups = read_data(data, formula, files, sigma)
            screen.warn(cautions(formula, groups, str(data)))
            screen.begin(f"fitting on {chosen}")
            work = CurveTasks(formula, groups, settings)
            run.checkpoint.begin(work.identity, _arguments(options, files, sigma, chosen), "curves")
            kept = run.checkpoint.open_results(CurveFitStore)
            with open_cluster(options.cluster, screen.say) as executor:
                if options.cluster is None:  # a GPU leaves the processor free to write
                    executor = SerialExecutor(ahead=chosen == "cuda")
                profiles = options.intervals == "profile"
                table = _tabled(work, executor, kept, run, screen, prefix, data, profiles)
            seconds = time.perf_counter() - began
            n_sets = sum(len(group.values) for group in groups)
            figure = fits_figure(table, f"{formula.name}, {n_sets:,} data sets of {data.name}")
            if figure is not None:
                plots.save(figure, _result_file(prefix, ".png"))
            all_is_done()
            run.discard()
    endings = [".csv", *["-covariance.npy"] * options.covariance, *[".png"] * (figure is not None)]
    summary = _summary(formula, table, n_sets, seconds, chosen)
    summary |= {"inputs": dict(zip(formula.inputs, groups[0].columns, strict=False))}
    return _reported(lines, options, formula, summary, [_result_file(prefix, e) for e in endings])


def _reported(
    lines: JsonLines,
    options: CurvesOptions,
    formula: Curve,
    summary: dict[str, Any],
    written: Sequence[Path],
) -> str:
    """Print the summary and the files; return why too few fits are ok, or an empty text."""
    counts = {quality: summary[quality] for quality in ("ok", "check", "failed")}
    lacking = too_few(counts, options.min_ok, "data sets")
    failed = (TOO_FEW, lacking) if lacking else None
    lines.result(written[0].parent, written, summary, failed=failed)
    if lines.enabled:
        return lacking
    if not options.quiet:
        _print_summary(formula, summary)
    for file in written[:1] if options.quiet else written:
        click.echo(printable(str(file)))
    return lacking


def _arguments(
    options: CurvesOptions, files: Mapping[str, Path], sigma: str | None, backend: str
) -> dict[str, Any]:
    """Return the arguments with which the run is resumed, with whole paths."""
    curve = Path(options.curve)
    return kept_options(options) | {
        "curve": str(curve.absolute()) if curve.is_file() else options.curve,
        "data": str(options.data.absolute()),
        "sigma": sigma,
        "inputs": [f"{name}={file.absolute()}" for name, file in files.items()],
        "backend": backend,
    }


def formula_and_inputs(options: CurvesOptions) -> tuple[Curve, dict[str, Path]]:
    """Return the curve as options change it, and the files of its inputs by name."""
    formula = load_curve(options.curve)
    formula = formula.fitted_by(options.likelihood, options.loss, options.f_scale)
    held = {name: _number(name, value) for name, value in pairs_in(options.fixed, "--fix")}
    files = {name: Path(file) for name, file in pairs_in(options.inputs, "--input")}
    return formula.with_fixed(held), files


def _result_file(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _refuse_to_replace(prefix: Path, given: Sequence[Path]) -> None:
    """Raise InputError where results would be written over what they are computed from."""
    for file in (_result_file(prefix, ending) for ending in (".csv", ".png", "-covariance.npy")):
        for source in given:
            if file.exists() and source.exists() and file.samefile(source):
                raise InputError("the results would replace this file; choose another --out", file)


def _tabled(
    work: CurveTasks,
    executor: Executor,
    kept: ResultStore,
    run: UnfinishedRun,
    screen: SearchScreen,
    prefix: Path,
    data: Path,
    profiles: bool,
) -> FitTable:
    """Return the table of all fits, and the covariances if requested, written in order."""
    groups, settings, earlier = work.groups, work.settings, kept.keys
    progress = WorkProgress(screen, sum(len(group.values) for group in groups), "data sets")
    swarm, several = settings.method == "swarm", len(groups) > 1
    with ExitStack() as files:
        file = files.enter_context(whole(_result_file(prefix, ".csv"), run.path))
        table = FitTable(file, work.curve, swarm, several, profiles)
        covariances = None
        if settings.covariances:
            file = files.enter_context(whole(_result_file(prefix, "-covariance.npy"), run.path))
            covariances = CovarianceFile(file, groups)
        for key, found in task_results(work, work.keys, executor, kept):
            if key in earlier or not isinstance(executor, SerialExecutor):
                work.check(key, found, data)
            piece = work.piece(key, found)
            _count(progress, piece, table.add(piece), key in earlier)
            if covariances is not None and piece.fits.covariances is not None:
                covariances.add(piece.fits.covariances)
            run.progress(progress.counted, screen)
        table.finish()
        if covariances is not None:
            covariances.finish()
    return table


def _count(
    progress: WorkProgress, task: FittedSets, failed: list[tuple[str, str]], kept: bool
) -> None:
    """Count a task that is done, and show its failures, by name where they are few."""
    n_sets = task.last - task.first
    if len(failed) <= _BY_NAME:
        for label, reason in failed:
            progress.done(label, reason=reason, kept=kept)
        progress.done(count=n_sets - len(failed), kept=kept)
        return
    reasons = Counter(reason for _, reason in failed).most_common(terminal.REASONS)
    listed = ", ".join(f"{reason} ({count:,})" for reason, count in reasons)
    name = f"data sets {task.first + 1:,} to {task.last:,}"
    progress.done(name, n_sets, kept=kept, failed=len(failed), reason=listed)


def _summary(
    curve: Curve, table: FitTable, n_sets: int, seconds: float, backend: str
) -> dict[str, Any]:
    """Return the summary as plain data; medians and quantiles are those of good fits."""
    found: dict[str, Any] = {
        "curve": curve.name,
        "data_sets": n_sets,
        "backend": backend,
        "seconds": seconds,
        **{quality: table.counts[quality] for quality in ("ok", "check", "failed")},
        "reasons": dict(table.reasons.most_common()),
        "parameters": {},
    }
    if len(table.values):
        quantiles = np.quantile(table.values, (0.5, 0.05, 0.95), axis=0).T
        errors = np.median(table.errors, axis=0)
        found["parameters"] = {
            p.name: {
                "unit": p.unit, "median": row[0], "percentile_5": row[1],
                "percentile_95": row[2], "median_error": error,
            }
            for p, row, error in zip(curve.free, quantiles.tolist(), errors.tolist(), strict=True)
        }  # fmt: skip
    return found


def _number(name: str, value: str) -> float:
    """Return the value of --fix. Raises: InputError for a text that is no number."""
    try:
        return float(parse_quantity(value, "none"))
    except InputError as error:
        raise error.at(None, f"--fix {name}") from None


def _print_summary(curve: Curve, summary: dict[str, Any]) -> None:
    """Print the summary: how many are good, why others are not, and where values lie."""
    words = ". ".join(filter(None, (curve.description, curve.source)))
    counts = ", ".join(f"{summary[q]:,} {q}" for q in ("ok", "check", "failed"))
    n_sets, seconds = summary["data_sets"], summary["seconds"]
    rate = f"{n_sets / seconds:,.0f} a second" if seconds > 0.5 else f"{seconds:.2f} s"
    renamed = [(name, column) for name, column in summary["inputs"].items() if name != column]
    terminal.show(
        f"{curve.name}{f': {words}' if words else ''}",
        f"{n_sets:,} data sets on {summary['backend']}: {counts} ({rate})",
        *(f"  {name} is the column {shown(column)}" for name, column in renamed),
        *terminal.reason_lines(list(summary["reasons"].items())),
    )
    if not summary["parameters"]:
        return
    keys = ("median", "percentile_5", "percentile_95")
    rows = [
        [name, *(f"{row[key]:.6g}" for key in keys), f"{row['median_error']:.3g}", row["unit"]]
        for name, row in summary["parameters"].items()
    ]
    heads = ["parameter", "median", "5 %", "95 %", "median ±", "unit"]
    terminal.PlainConsole(highlight=False).print(terminal.table(heads, rows, left=(0, 5)))
