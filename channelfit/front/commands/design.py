"""`channelfit design`: a protocol that determines the parameters of a model."""

from __future__ import annotations

from dataclasses import fields

import click

from channelfit.designs.plan import DesignTasks
from channelfit.front.commands.inputs import warn
from channelfit.front.designing import design_plan, designed, loaded, read_scheme
from channelfit.front.fitting import workers
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.models import DesignOptions
from channelfit.reading.errors import printable
from channelfit.reading.texts import names_in
from channelfit.results.checkpoint import StudyCheckpoint
from channelfit.results.report import terminal
from channelfit.results.run_folder import check_folder
from channelfit.tasks.worker import software


def design(options: DesignOptions) -> None:
    """Design a protocol, write it and print what it is expected to determine."""
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    given |= {"parameters": names_in(options.parameters), "predict": loaded(options.predict)}
    schemes = [read_scheme(options.model, options.overrides), *map(read_scheme, options.separate)]
    plan, cautions = design_plan(schemes, **given)
    warn(cautions)
    compared = loaded(options.compare)
    if not options.resume:
        check_folder(options.out)
    identity = {**DesignTasks(plan, software(False)).identity, "starts": options.starts}
    checkpoint = StudyCheckpoint(options.out, identity, options.resume, "design-")
    worth = True
    try:
        with (
            terminal.SearchScreen(plan.title) as screen,
            compilations_shown(screen),
            workers(options.cluster, screen) as executor,
        ):
            store = checkpoint.open_results()
            found = designed(plan, options.starts, compared, screen, executor, store)
            screen.begin("drawing")
            files = found.save(options.out)
            all_is_done()
            worth = False
    finally:
        with held():
            checkpoint.close(keep=worth)
    rows = [
        [name, *(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values())]
        for name, row in found.rows.items()
    ]
    headers = ["", *next(iter(found.rows.values()))]
    terminal.show(terminal.table(headers, rows), *found.remarks)
    for file in files:
        click.echo(printable(str(file)))
