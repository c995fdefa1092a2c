"""`channelfit tune`: the fastest launches of a model's kernels on this GPU."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.front.commands.inputs import picture_file, prepare
from channelfit.front.progress import compilations_shown
from channelfit.reading.errors import InputError
from channelfit.reading.files import writing
from channelfit.reading.texts import printable
from channelfit.results.report import plots, result_tables, terminal
from channelfit.results.run_folder import file_name
from channelfit.scoring.grouped import of_first_group
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning
from channelfit.search.overrides import Changes


def tune(
    model: Path,
    population: int | None,
    dtype: str,
    path: str,
    out: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Times a model on this GPU, remembers the fastest launches, and draws them."""
    out = None if out is None else picture_file(out)
    device = gpu.device()
    changes = Changes(overrides, population=population)
    with terminal.SearchScreen(model.name) as screen, compilations_shown(screen):
        fit, scorer = prepare(model, changes, "cuda", dtype, path, screen)
        parameters = fit.space.to_physical(fit.make_optimizer().ask())
        scorer, parameters = of_first_group(scorer, parameters)
        if not isinstance(scorer, tuning.Tunable):
            raise InputError("only the kernels of channels without a clamp can be tuned", model)

        def say(row: tuning.Measured) -> None:
            screen.begin(f"{row.kernel}, {row.launch.threads} threads a block")

        rows = tuning.tune(scorer, gpu.cupy().asarray(parameters), device.name, say)
    n = parameters.shape[1]
    result_tables.print_launches(rows, n)
    click.echo(f"The fastest are remembered for {device.name}, and used from now on.")
    name = file_name(fit.name)
    out = out or Path(f"{name}-launches.png")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        title = f"{fit.name}, {dtype}, {n:,} candidates, {device.name}"
        plots.save(plots.launches_figure(rows, n, title), out)
    click.echo(printable(str(out)))
