"""`channelfit tune`: the fastest launches of a model's kernels on this GPU."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.front.options import (
    as_overrides,
    dtype_option,
    model_argument,
    path_option,
    prepare,
    set_option,
    writing,
)


@click.command(short_help="Find the fastest threads a block on this GPU.")
@model_argument
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates to score each time. [default: the file's]",
)
@dtype_option("Precision of the search to be tuned.")
@path_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Where to draw time and occupancy. [default: MODEL-launches.png here]",
)
@set_option
def tune(
    model: Path,
    population: int | None,
    dtype: str,
    path: str,
    out: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Measure how fast MODEL is scored on this GPU with every number of threads a block.

    The fastest is remembered in the cache folder, for this model and this GPU, and every later
    `optimize` uses it. Prints a table, and draws time and occupancy against threads a block. The
    cpu backend has nothing to tune.

    \b
    Examples
      channelfit tune models/model_b.yaml --population 1000000
      channelfit tune models/herg_markov.yaml --dtype float32 --out launches.png
    """
    from channelfit.front.progress import compilations_shown
    from channelfit.results.report import plots, terminal
    from channelfit.results.run_folder import file_name
    from channelfit.scoring.machine import gpu
    from channelfit.scoring.machine import launch_tuning as tuning

    device = gpu.device()
    options = as_overrides(model, overrides, None, population, None, None)
    with terminal.SearchScreen(model.name) as screen, compilations_shown(screen):
        fit, scorer = prepare(model, options, "cuda", dtype, path, screen)
        parameters = fit.space.to_physical(fit.make_optimizer().ask())

        def say(row: tuning.Measured) -> None:
            screen.begin(f"{row.kernel}, {row.launch.threads} threads a block")

        rows = tuning.tune(scorer, gpu.cupy().asarray(parameters), device.name, say)  # type: ignore[arg-type]
    n = parameters.shape[1]
    terminal.print_launches(rows, n)
    click.echo(f"The fastest are remembered for {device.name}, and used from now on.")
    name = file_name(fit.name)
    out = out or Path(f"{name}-launches.png")
    out = out if out.suffix.lower() == ".png" else out.with_name(out.name + ".png")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        title = f"{fit.name}, {dtype}, {n:,} candidates, {device.name}"
        plots.save(plots.launches_figure(rows, n, title), out)
    click.echo(str(out))
