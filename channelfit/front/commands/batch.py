"""`channelfit batch`: one model, fitted to many recordings, each on its own."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from channelfit.batch import run as batches
from channelfit.batch.recordings import wells_named
from channelfit.batch.run import BatchRequest
from channelfit.batch.search import SearchSettings
from channelfit.batch.table import WellTable, kinds_of_reasons
from channelfit.batch.where import chosen
from channelfit.front.batches import BatchScreen, names_of, parameters_of
from channelfit.front.fitting import workers
from channelfit.front.interrupts import held
from channelfit.front.json_lines import JsonLines
from channelfit.front.options import kept_options
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.batch import BatchOptions
from channelfit.reading.errors import Caution, printable
from channelfit.reading.memory import nothing_collected
from channelfit.results.checkpoint import arguments_of, check_stopped
from channelfit.results.quality import TOO_FEW, too_few
from channelfit.results.report import terminal
from channelfit.results.run_folder import RunFolder

#: Characters of the longest line that is written into a file.
_WIDE = 10_000


def batch(options: BatchOptions) -> int:
    """Fit all wells, write the folder and print the results; return the exit code.

    With `--show` only print the rows of a finished table that are chosen.
    """
    if options.show is not None:
        _show(options.as_json, options.show, options.where, options.only)
        return 0
    with JsonLines("batch", options.as_json) as lines:
        table, summary, folder, least = _fit(lines, options)
        files = sorted(path for path in folder.iterdir() if path.name[0] != ".")
        lacking = too_few(summary["quality"], least, "wells")
        lines.result(folder, files, summary, failed=(TOO_FEW, lacking) if lacking else None)
    if options.quiet and not options.as_json:
        click.echo(printable(str(folder)))
    elif not options.as_json:
        _print_summary(table, summary, folder)
    if lacking:
        click.echo(f"Error: {lacking}", err=True)
    return TOO_FEW if lacking else 0


def _fit(
    lines: JsonLines, options: BatchOptions
) -> tuple[WellTable, dict[str, Any], Path, int | None]:
    """Return the table, the summary and the folder of a batch, and how many wells must be ok."""
    resume, cluster, kept = options.resume, options.cluster, kept_options(options)
    request = request_of(kept) if resume is None else _resumed_request(resume)
    with RunFolder(held) as folder:
        folder.open(options.out, resume)
        title = (request.file or request.rerun or request.together or Path()).name
        with lines.screen(title, options.quiet) as shown:
            screen = BatchScreen(shown, lines)
            with compilations_shown(shown), nothing_collected():
                made = batches.ready(request, screen)
                lines.folder(folder.claim_default(made.name).path)
                n = len(made.work.recordings)
                shown.say(f"{made.name}: {n:,} wells, seed {made.work.settings.seed}")
                if cluster is not None and len(made.work.keys) == 1 < n:
                    what, then = (
                        f"has one task, of {n:,} wells",
                        "--chunk makes them smaller",
                    )
                    screen.warn([Caution("--cluster", what, then)])
                with workers(cluster, shown) as executor:
                    words = ["channelfit", *sys.argv[1:]]
                    table, summary = batches.run(made, folder, screen, executor, kept, words)
    return table, summary, folder.path, request.min_ok


def request_of(arguments: dict[str, Any], directory: Path | None = None) -> BatchRequest:
    """Return the request that arguments of the command make.

    Arguments:
        directory: from which paths start; None for the current one.
    """

    def path(key: str) -> Path | None:
        return None if arguments.get(key) is None else (directory or Path()) / str(arguments[key])

    starts, backend = int(arguments.get("starts") or 0), str(arguments.get("backend") or "auto")
    return BatchRequest(
        path("fit"),
        tuple(map(str, arguments.get("recordings") or ())),
        tuple(map(str, arguments.get("overrides") or ())),
        str(arguments.get("where") or ""),
        names_of(str(arguments.get("only") or "")),
        path("rerun"),
        path("together"),
        population=names_of(str(arguments.get("population") or "")),
        shared=names_of(str(arguments.get("shared") or "")),
        groups=str(arguments.get("groups") or ""),
        settings=SearchSettings(starts=starts, backend=backend),
        seed=arguments.get("seed"),
        size=arguments.get("chunk"),
        min_ok=arguments.get("min_ok"),
    )


def _resumed_request(run: Path) -> BatchRequest:
    """Return the request of a run that is resumed. Raises InputError where it cannot be."""
    check_stopped(run, claimed=False)
    arguments, directory = arguments_of(run, "batch")
    return replace(request_of(arguments, directory), listed=run)


def _print_summary(table: WellTable, summary: dict[str, Any], folder: Path) -> None:
    """Print the summary: how many are good, why others are not, and where values lie."""
    counts = Counter(map(str, table["quality"]))
    words = ", ".join(f"{counts[q]:,} {q}" for q in ("ok", "check", "failed") if counts[q])
    reasons = Counter(kind for text in table["reason"] for kind in kinds_of_reasons(str(text)))
    parts: list[Any] = [f"{len(table):,} wells: {words}"]
    parts += terminal.reason_lines(reasons.most_common())
    good = table.select(np.array([q == "ok" for q in table["quality"]], dtype=bool))
    parts += ["", _spreads(good)] if len(good) else []
    for key in ("population", "groups"):
        parts += [summary[key]["text"], ""] if key in summary else []
    terminal.show(*parts, f"results    {folder}")


def _spreads(good: WellTable) -> Any:
    """Return a table of the parameters of good wells: the median and the middle 90 %."""
    rows = []
    for name in parameters_of(good):
        values, errors = good[name], good[f"{name}_error"]
        low, middle, high = np.nanquantile(values, (0.05, 0.5, 0.95)).tolist()
        known = errors[np.isfinite(errors)]
        error = f"{np.median(known):.3g}" if known.size else ""
        cells = [name, *(f"{x:.5g}" for x in (middle, low, high)), error, good.about[name].unit]
        rows.append(cells)
    heads = ["parameter", "median", "5 %", "95 %", "median ±", "unit"]
    return terminal.table(heads, rows, left=(0, 5))


def _show(as_json: bool, run: Path, where: str, only: str) -> None:
    """Print the rows of a finished table that are chosen."""
    with JsonLines("batch", as_json) as lines:
        table, found = _rows(run, where, only)
        for row in found.rows():
            lines.done(str(row["well"]), True, row)
        lines.result(run)
    if not as_json:
        _print(table, found)


def _rows(run: Path, where: str, only: str) -> tuple[WellTable, WellTable]:
    """Return the table of a run, and the rows of it that are chosen."""
    table = WellTable.read(run)
    mask = chosen(where, table) if where else np.ones(len(table), dtype=bool)
    names = names_of(only)
    wells = [str(well) for well in table["well"]]
    if names:
        named = wells_named(wells, names)
        mask &= np.array([well in named for well in wells], dtype=bool)
    return table, table.select(mask)


def _print(table: WellTable, found: WellTable) -> None:
    console = terminal.PlainConsole(highlight=False)
    if not console.is_terminal:  # a program that parses the lines needs one for each well
        console.width = _WIDE
    rows = []
    for row in found.rows():
        cells = [str(row["well"])]
        for name in parameters_of(table):
            value, error = row[name], row[f"{name}_error"]
            plus = f" ± {error:.2g}" if error is not None else ""
            cells.append("" if value is None else f"{value:.5g}{plus}")
        rms = row.get("rms")
        cells += ["" if rms is None else f"{rms:.4g}", str(row["quality"]), str(row["reason"])]
        rows.append(cells)
    heads = [
        "well",
        *(f"{n} {table.about[n].unit}".strip() for n in parameters_of(table)),
        "rms pA",
        "quality",
        "reason",
    ]
    last = len(heads) - 1
    if rows:
        console.print(terminal.table(heads, rows, left=(0, last - 1, last)))
    console.print(f"{len(found):,} of {len(table):,} wells", markup=False)
