"""`channelfit report`: the page of a run, or of several side by side, and figures for print."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.front.progress import compilations_shown
from channelfit.front.reports import save_report
from channelfit.front.result import load
from channelfit.reading.texts import printable
from channelfit.results.report import terminal


def report(runs: tuple[Path, ...], out: Path | None, figures: str | None, backend: str) -> None:
    """Makes the page, and the figures that were asked for, and prints what was written."""
    kinds = tuple(kind.strip().lower() for kind in (figures or "").split(",") if kind.strip())
    with terminal.SearchScreen("report") as screen, compilations_shown(screen):
        fits = []
        for run in runs:
            screen.begin(f"reading {run} and its data")
            fits.append(load(run, backend))
        screen.begin("drawing")
        files = save_report(fits, runs, out, kinds)
    for file in files:
        click.echo(printable(str(file)))
