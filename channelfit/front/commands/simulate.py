"""`channelfit simulate`: the current of a model under a protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from channelfit.front.commands.inputs import model_with_values
from channelfit.front.interrupts import all_is_done
from channelfit.front.progress import compilations_shown
from channelfit.front.simulation import draws_of, simulated
from channelfit.front.verbs.models import SimulateOptions
from channelfit.problem.protocol import load_protocol
from channelfit.reading.errors import printable
from channelfit.reading.files import writing
from channelfit.results.report import terminal
from channelfit.results.report.report_writer import ReportWriter
from channelfit.results.run_folder import file_name


def simulate(options: SimulateOptions, writer: ReportWriter) -> None:
    """Write the current of a model under a protocol as a table and a picture."""
    model, protocol = options.model, options.protocol
    channel, values, name = model_with_values(model, options.overrides, options.cell)
    command = load_protocol(protocol)
    prefix = options.out or Path(".")
    if prefix.is_dir():
        prefix /= file_name(f"{name}-{command.name}")
    with terminal.SearchScreen(name) as screen, compilations_shown(screen):
        found = simulated(
            channel,
            values,
            command,
            options.backend,
            options.dtype,
            options.path,
            screen,
            model,
            str(protocol),
            draws_of(options.channels, options.seed, options.noise, options.open_noise),
        )
    for remark in found.remarks:
        click.echo(printable(f"note: {remark}"), err=True)
    files = [prefix.with_name(prefix.name + suffix) for suffix in (".csv", ".png")]
    with writing(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        writer.begin(replace(found, model=name)._page, files[1])
        found.to_csv(files[0])
        writer.finish()
    all_is_done()
    for file in files:
        click.echo(printable(str(file)))
