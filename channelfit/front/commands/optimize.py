"""`channelfit optimize`: fit the parameters of a model to its data."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from channelfit.front import kinds
from channelfit.front.commands.inputs import changes_of, prepare
from channelfit.front.fitting import run, workers
from channelfit.front.interrupts import exit_code, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.options import kept_options
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.fits import OptimizeOptions
from channelfit.reading.errors import InputError, printable
from channelfit.reading.memory import nothing_collected
from channelfit.results.report import result_tables, terminal
from channelfit.results.report.report_writer import ReportWriter
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import json_text

#: More parameters than this are not listed on the screen; they stand in the results' folder.
_MOST_ROWS = 64


def optimize(options: OptimizeOptions, writer: ReportWriter) -> int:
    """Fit a model and print the result; return the exit code."""
    with JsonLines("optimize", options.as_json) as lines:
        folder, summary = _fitted(lines, options, writer)
        interrupted = bool(summary["stop_reason"] == "interrupted")
        files = sorted(path for path in folder.iterdir() if path.is_file())
        lines.result(folder, files, summary, interrupted)
        if options.quiet and not options.as_json:
            click.echo(printable(str(folder)))
        elif not options.as_json:
            _print_result(summary, folder)
    return exit_code() if interrupted else 0


def _fitted(
    lines: JsonLines, options: OptimizeOptions, writer: ReportWriter
) -> tuple[Path, dict[str, Any]]:
    """Return the run folder of a fit, and its summary."""
    model, chunk, arguments = options.model, options.chunk, kept_options(options)
    if chunk is not None and options.cluster is not None:
        raise InputError(
            "--chunk is for the GPU of this process, and does not reach the workers of --cluster; "
            "leave it out, they divide their launches by their own memory"
        )
    with RunFolder(held) as run_folder:
        run_folder.open(options.out, options.resume)
        changes = changes_of(options)
        with lines.screen(model.name, options.quiet) as screen:
            with compilations_shown(screen), nothing_collected():
                fit, scorer = prepare(
                    model, changes, options.backend, options.dtype, options.path, screen
                )
                if chunk is not None:
                    scorer.limit_launches(chunk)
                screen.begin("scoring the first candidate")  # which compiles the kernels
                scorer.score(fit.space.to_physical(np.full((fit.space.n_free, 1), 0.5)))
            lines.folder(run_folder.claim_default(fit.name).path)
            folder = kinds.fit_folder(run_folder, fit, writer)
            with workers(options.cluster, screen) as executor:
                command = shlex.join(["channelfit", *sys.argv[1:]])
                found = run(fit, scorer, folder, screen, arguments, command, executor)
    return folder.path, json.loads(json_text(found.summary))


def _print_result(summary: dict[str, Any], folder: Path) -> None:
    listed = len(summary["parameters"]) <= _MOST_ROWS
    tables = [result_tables.result_table(summary["parameters"])] if listed else []
    lines = result_tables.result_lines(summary)
    terminal.show("", *tables, *lines, f"results    {folder}")
