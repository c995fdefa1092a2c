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
from channelfit.front.commands.inputs import prepare, working
from channelfit.front.fitting import run
from channelfit.front.interrupts import held
from channelfit.front.json_lines import JsonLines
from channelfit.front.progress import compilations_shown, nothing_collected
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable
from channelfit.results.report import result_tables, terminal
from channelfit.results.report.artist import Artist
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import json_text
from channelfit.scoring.scorer import Scorer
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan

#: More parameters than this are not listed on the screen; they stand in the results' folder.
_MOST_ROWS = 64


def optimize(as_json: bool, quiet: bool, **given: Any) -> bool:
    """Fits a model to its data, and prints what came out; whether the search was interrupted."""
    with JsonLines("optimize", as_json) as lines:
        folder, summary = _fitted(lines, quiet=quiet, **given)
        interrupted = bool(summary["stop_reason"] == "interrupted")
        files = sorted(path for path in folder.iterdir() if path.is_file())
        lines.result(folder, files, summary, interrupted)
        if as_json:
            return interrupted
        if quiet:
            click.echo(printable(str(folder)))
        else:
            _print_result(summary, folder)
    return interrupted


def _fitted(
    lines: JsonLines,
    model: Path,
    resume: Path | None,
    out: Path | None,
    seed: int | None,
    seeds: int | None,
    backend: str,
    dtype: str,
    path: str,
    cluster: str | None,
    chunk: int | None,
    population: int | None,
    generations: int | None,
    optimizer: str | None,
    overrides: tuple[str, ...],
    quiet: bool,
    artist: Artist,
) -> tuple[Path, dict[str, Any]]:
    """The run folder of a fit, and its summary."""
    if chunk is not None and cluster is not None:
        raise InputError(
            "--chunk is for the GPU of this process, and does not reach the workers of --cluster; "
            "leave it out, they divide their launches by their own memory"
        )
    asked = {
        "model": str(model),
        "seed": seed,
        "seeds": seeds,
        "backend": backend,
        "dtype": dtype,
        "path": path,
        "chunk": chunk,
        "population": population,
        "generations": generations,
        "optimizer": optimizer,
        "overrides": overrides,
    }
    with RunFolder(held) as run_folder:
        run_folder.open(out, resume)
        changes = Changes(overrides, optimizer, seed, seeds, population, generations)
        with lines.screen(model.name, quiet) as screen:
            with compilations_shown(screen), nothing_collected():
                fit, scorer = prepare(model, changes, backend, dtype, path, screen)
                if chunk is not None:
                    scorer.limit_launches(chunk)
                _score_one(fit, scorer, screen)
            lines.folder(run_folder.claim_default(fit.name).path)
            folder = kinds.fit_folder(run_folder, fit, artist)
            with working(cluster, screen) as executor:
                summary = run(fit, scorer, folder, screen, asked, _command(), executor).summary
    return folder.path, json.loads(json_text(summary))


def _command() -> str:
    """The command line of this process, as a shell takes it."""
    return shlex.join(["channelfit", *sys.argv[1:]])


def _score_one(fit: FitPlan, scorer: Scorer, screen: SearchScreen) -> None:
    """Scores a candidate, so that the kernels are compiled before the search begins."""
    screen.begin("scoring the first candidate")
    scorer.score(fit.space.to_physical(np.full((fit.space.n_free, 1), 0.5)))


def _print_result(summary: dict[str, Any], folder: Path) -> None:
    console = terminal.PlainConsole(highlight=False)
    console.print()
    if len(summary["parameters"]) <= _MOST_ROWS:
        console.print(result_tables.result_table(summary["parameters"]))
        console.print()
    for line in result_tables.result_lines(summary):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"results    {folder}", soft_wrap=True, markup=False)
