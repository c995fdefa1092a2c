"""`channelfit cell`: action potentials of a cell with fitted channels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import click

from channelfit.cells.cell_file import load_cell
from channelfit.cells.results import BAND, CellResult, simulate_cell
from channelfit.front.interrupts import all_is_done
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.cell import CellOptions
from channelfit.problem.statuses import OK
from channelfit.reading.errors import InputError, printable, shown
from channelfit.reading.files import write_text, writing
from channelfit.results.report import terminal
from channelfit.results.run_folder import file_name


def cell(options: CellOptions) -> None:
    """Simulate a cell, print its measures and write its files."""
    scales = _scales(options.knock_out, options.scale)
    read = load_cell(options.file, options.overrides)
    with terminal.SearchScreen(read.name) as screen, compilations_shown(screen):
        screen.warn(read.cautions)
        screen.begin(f"simulating {read.n_sets:,} parameter sets")
        found = simulate_cell(read, scales, options.currents)
    _print(found)
    prefix = options.out or Path(".")
    if prefix.is_dir():
        prefix /= file_name(read.name)
    for file in _write(found, prefix):
        click.echo(printable(str(file)))


def _scales(knock_out: Iterable[str], scale: Iterable[str]) -> dict[str, float]:
    """Return the factors of channels by name. Raises InputError for what is no factor."""
    found = dict.fromkeys(knock_out, 0.0)
    for text in scale:
        name, equals, number = text.partition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not equals or not 0 <= factor < math.inf or name in found:
            raise InputError(
                f"{shown(text)}: NAME=FACTOR was expected, each name once", key="--scale"
            )
        found[name] = factor
    return found


def _print(found: CellResult) -> None:
    """Print median and range of every measure, and how exact the step is."""
    cell, rows = found.cell, []
    several = cell.stimulus.n_sweeps > 1
    for sweep, name, ranges in found.summary():
        cells = [_range(values, cell.n_sets) for values in ranges.values()]
        rows.append([f"{sweep + 1}: {name}" if several else name, *cells])
        heads = ["sweep: measure" if several else "measure", *ranges]
    failed = sum(int((run.status != OK).sum()) for run in found.runs.values())
    lines = [f"step {cell.step_ms:g} ms: {found.step_error:.2g} mV from half of it, at most"]
    if cell.n_sets > 1:
        lines.append(f"{cell.n_sets:,} sets: median, and {BAND[0]:g} to {BAND[-1]:g} % in brackets")
    if failed:
        lines.append(f"{failed:,} simulations failed and are left out")
    terminal.show("", terminal.table(heads, rows), *lines)


def _range(values: Iterable[float], n_sets: int) -> str:
    low, middle, high = values
    if middle != middle:
        return ""
    return f"{middle:.4g}" + (f" [{low:.3g}, {high:.3g}]" if n_sets > 1 else "")


def _write(found: CellResult, prefix: Path) -> list[Path]:
    from channelfit.cells.picture import cell_figure  # loads Matplotlib
    from channelfit.results.report.plots import save

    endings = (".csv", "-measures.csv", ".png")
    files = [prefix.with_name(prefix.name + ending) for ending in endings]
    with writing(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        write_text(files[0], found.trace_table())
        write_text(files[1], found.measure_table())
        save(cell_figure(found), files[2])
    all_is_done()
    return files
