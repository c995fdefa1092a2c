"""`channelfit tune`: the fastest launches of a model's kernels on this GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from channelfit.front.commands.inputs import changes_of, picture_file, prepare, save_picture
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.models import TuneOptions
from channelfit.reading.errors import InputError
from channelfit.results.report import sweeps
from channelfit.results.report.picture_texts import finish_layout
from channelfit.results.report.plots import INK, new_figure, styled
from channelfit.results.report.terminal import PlainConsole, SearchScreen, table
from channelfit.results.run_folder import file_name
from channelfit.scoring.grouped import of_first_group
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning
from channelfit.scoring.machine.launch_tuning import Measured, fastest


def tune(options: TuneOptions) -> None:
    """Time a model on this GPU, remember the fastest launches, and draw them."""
    model, dtype = options.model, options.dtype
    out = None if options.out is None else picture_file(options.out)
    device = gpu.device()
    with SearchScreen(model.name) as screen, compilations_shown(screen):
        fit, scorer = prepare(model, changes_of(options), "cuda", dtype, options.path, screen)
        parameters = fit.space.to_physical(fit.make_optimizer().ask())
        scorer, parameters = of_first_group(scorer, parameters)
        if not isinstance(scorer, tuning.Tunable):
            raise InputError("only the kernels of channels without a clamp can be tuned", model)

        def say(row: tuning.Measured) -> None:
            screen.begin(f"{row.kernel}, {row.launch.threads} threads a block")

        rows = tuning.tune(scorer, gpu.cupy().asarray(parameters), device.name, say)
    n = parameters.shape[1]
    print_launches(rows, n)
    click.echo(f"The fastest are remembered for {device.name}, and used from now on.")
    name = file_name(fit.name)
    out = out or Path(f"{name}-launches.png")
    title = f"{fit.name}, {dtype}, {n:,} candidates, {device.name}"
    save_picture(launches_figure(rows, n, title), out)


def print_launches(rows: Sequence[Measured], n_candidates: int) -> None:
    """Print every launch that was measured; the fastest of each kernel is marked.

    Arguments:
        n_candidates: how many candidates each of them scored.
    """
    best = {row.kernel: fastest(rows, row.kernel) for row in rows}
    headings = ("kernel", "threads", "jobs", "time", "candidates/s", "occupancy", "")
    cells = []
    for row in rows:
        runs = math.isfinite(row.seconds)
        cells.append(
            [
                row.kernel,
                str(row.launch.threads),
                "" if row.launch.jobs is None else str(row.launch.jobs),
                f"{1e3 * row.seconds:.4g} ms" if runs else "refused",
                f"{n_candidates / row.seconds:,.0f}" if runs else "",
                f"{100 * row.occupancy:.0f} %" if math.isfinite(row.occupancy) else "",
                "fastest" if row is best[row.kernel] else "",
            ]
        )
    PlainConsole(highlight=False).print(table(headings, cells, left=(0, 6)))


def launches_figure(rows: Sequence[Measured], n_candidates: int, title: str) -> Figure:
    """Draw occupancy, and time per candidate, against threads per block, one column for each
    kernel.

    As figure 4 of Ben-Shalom et al. 2012. Where a kernel can be split into jobs, each number of
    jobs has a line of its own; the fastest launch has a ring.

    Arguments:
        rows: the launches that were measured.
        n_candidates: how many candidates each of them scored.
    """
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    measured = any(math.isfinite(row.occupancy) for row in rows)
    with styled():
        figure = new_figure(max(4.6 * len(kernels), 5.2), 5.2 if measured else 3.4, title)
        grid = figure.subplots(2 if measured else 1, len(kernels), squeeze=False, sharex="col")
        for column, kernel in enumerate(kernels):
            own = [row for row in rows if row.kernel == kernel and math.isfinite(row.seconds)]
            _draw_launches(list(grid[:, column]), own, n_candidates, column == 0)
            grid[0, column].set_title(kernel, loc="left", fontsize=9.5, color=INK, parse_math=False)
        figure.align_ylabels()
        finish_layout(figure)
    return figure


def _draw_launches(
    axes: Sequence[Axes], rows: Sequence[Measured], n_candidates: int, first: bool
) -> None:
    jobs = list(dict.fromkeys(row.launch.jobs for row in rows))
    lines = [[row for row in rows if row.launch.jobs == one] for one in jobs]
    for line, color in zip(lines, sweeps.ramp(len(lines)), strict=True):
        threads = [row.launch.threads for row in line]
        style: dict[str, Any] = {"color": color, "marker": "o", "markersize": 4, "linewidth": 1.2}
        share = [100 * row.occupancy for row in line]
        if len(axes) > 1:
            axes[0].plot(threads, share, **style)
        split = line[0].launch.jobs
        label = "jobs as by default" if split is None else f"{split} job{'s' * (split > 1)}"
        time = [1e9 * row.seconds / n_candidates for row in line]
        axes[-1].plot(threads, time, label=label, **style)
    best = min(rows, key=lambda row: row.seconds)
    axes[-1].plot(
        [best.launch.threads],
        [1e9 * best.seconds / n_candidates],
        "o",
        markersize=10,
        markerfacecolor="none",
        markeredgecolor=INK,
    )
    if len(axes) > 1:
        axes[0].set_ylim(0, 105)
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_xlabel("threads a block")
    axes[-1].xaxis.set_major_locator(MultipleLocator(128))
    if first:
        axes[-1].set_ylabel("time a candidate (ns)")
        if len(axes) > 1:
            axes[0].set_ylabel("occupancy (%)")
    if jobs != [None]:
        axes[-1].legend(fontsize=8)
