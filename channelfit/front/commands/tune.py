"""`channelfit tune`: the fastest launches of a model's kernels on this GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from channelfit.front.commands.inputs import changes_of, picture_file, prepare, save_picture
from channelfit.front.progress import compilations_shown
from channelfit.reading.errors import InputError
from channelfit.results.report import launches, terminal
from channelfit.results.run_folder import file_name
from channelfit.scoring.grouped import of_first_group
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning

if TYPE_CHECKING:
    from channelfit.front.verbs.models import TuneOptions


def tune(options: TuneOptions) -> None:
    """Time a model on this GPU, remember the fastest launches, and draw them."""
    model, dtype = options.model, options.dtype
    out = None if options.out is None else picture_file(options.out)
    device = gpu.device()
    with terminal.SearchScreen(model.name) as screen, compilations_shown(screen):
        fit, scorer = prepare(model, changes_of(options), "cuda", dtype, options.path, screen)
        parameters = fit.space.to_physical(fit.make_optimizer().ask())
        scorer, parameters = of_first_group(scorer, parameters)
        if not isinstance(scorer, tuning.Tunable):
            raise InputError("only the kernels of channels without a clamp can be tuned", model)

        def say(row: tuning.Measured) -> None:
            screen.begin(f"{row.kernel}, {row.launch.threads} threads a block")

        rows = tuning.tune(scorer, gpu.cupy().asarray(parameters), device.name, say)
    n = parameters.shape[1]
    launches.print_launches(rows, n)
    click.echo(f"The fastest are remembered for {device.name}, and used from now on.")
    name = file_name(fit.name)
    out = out or Path(f"{name}-launches.png")
    title = f"{fit.name}, {dtype}, {n:,} candidates, {device.name}"
    save_picture(launches.launches_figure(rows, n, title), out)
