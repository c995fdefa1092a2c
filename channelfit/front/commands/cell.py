"""`channelfit cell`: action potentials of a cell with fitted channels."""

from __future__ import annotations

from typing import Any

import click

from channelfit.cells.cell_file import Cell, load_cell
from channelfit.cells.results import check_changes
from channelfit.front.cells import factors, simulated
from channelfit.front.interrupts import all_is_done
from channelfit.front.json_lines import JsonLines
from channelfit.front.verbs.cell import CellOptions
from channelfit.reading.errors import InputError, printable
from channelfit.reading.texts import pairs_in
from channelfit.reading.units import parse_quantity
from channelfit.results.report import terminal


def cell(options: CellOptions) -> None:
    """Simulate a cell, print its measures and write its files."""
    with JsonLines("cell", options.as_json) as lines:
        read, scales = prepare(options)
        with lines.screen(read.name, options.quiet) as screen:
            found = simulated(read, scales, options.currents, options.backend, screen)
        files = found.save(options.out or ".")
        all_is_done()
        lines.result(files[0].parent, files, found.summary)
    if lines.enabled:
        return
    if not options.quiet:
        _print(found.summary)
    for file in files:
        click.echo(printable(str(file)))


def prepare(options: CellOptions) -> tuple[Cell, dict[str, float]]:
    """Return the cell and the factors of its channels. Raises InputError: what cannot be used."""
    scales = factors(options.knock_out, dict(map(_scale, pairs_in(options.scale, "--scale"))))
    read = load_cell(options.cell, options.overrides)
    check_changes(read, scales, options.currents)
    return read, scales


def _scale(pair: tuple[str, str]) -> tuple[str, float]:
    try:
        return pair[0], parse_quantity(pair[1], "none")
    except InputError as error:
        raise error.at(None, f"--scale {pair[0]}") from None


def _print(summary: dict[str, Any]) -> None:
    """Print median and range of every measure, and how exact the step is."""
    n_sets, rows = summary["sets"], []
    for name, row in summary["measures"].items():
        heads = [run for run in ("control", "changed", "change") if run in row]
        rows.append([name, *(_range(row, run) for run in heads)])
    error = summary["step_error_mV"]
    lines = [f"step {summary['step_ms']:g} ms: {error:.2g} mV from half of it, at most"]
    if "segment_error_mV" in summary:
        error = summary["segment_error_mV"]
        lines.append(f"segments: {error:.2g} mV from three times as many, at most")
    if n_sets > 1:
        low, high = summary["band_percent"]
        lines.append(f"{n_sets:,} sets: median, and {low:g} to {high:g} % in brackets")
    if summary["failed"]:
        lines.append(f"{summary['failed']:,} simulations failed and are left out")
    terminal.show("", terminal.table(["measure", *heads], rows), *lines)


def _range(row: dict[str, float | None], run: str) -> str:
    """Return the median of a run, and its band where there is one."""
    if row[run] is None:
        return ""
    band = f" [{row[run + '_low']:.3g}, {row[run + '_high']:.3g}]" if run + "_low" in row else ""
    return f"{row[run]:.4g}{band}"
