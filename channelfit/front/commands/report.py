"""`channelfit report`: the page of a run, or of several side by side, and figures for print."""

from __future__ import annotations

import click

from channelfit.front.progress import compilations_shown
from channelfit.front.reports import figure_kinds, is_batch, save_plate_report, save_report
from channelfit.front.result import read_fit
from channelfit.front.verbs.fits import ReportOptions
from channelfit.reading.errors import InputError, printable
from channelfit.results.report import terminal


def report(options: ReportOptions) -> None:
    """Make the page and the requested figures, and print what was written."""
    runs, kinds = options.runs, figure_kinds(options.figures)
    plates = [run for run in runs if is_batch(run)]
    if plates and len(runs) > 1:
        raise InputError("this is a batch, which has a page of its own; give it alone", plates[0])
    with terminal.SearchScreen("report") as screen, compilations_shown(screen):
        fits = []
        for run in runs if not plates else ():
            screen.begin(f"reading {run} and its data")
            fits.append(read_fit(run, options.backend))
        screen.begin("drawing")
        if plates:
            files = save_plate_report(plates[0], options.out, kinds)
        else:
            files = save_report(fits, runs, options.out, kinds)
    for file in files:
        click.echo(printable(str(file)))
