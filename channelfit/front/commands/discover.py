"""`channelfit discover`: all schemes of a size, fitted to the same data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from channelfit.discovery import run as discoveries
from channelfit.front.commands.inputs import changes_of
from channelfit.front.discoveries import DiscoverScreen, read
from channelfit.front.fitting import workers
from channelfit.front.interrupts import held
from channelfit.front.json_lines import JsonLines
from channelfit.front.options import kept_options
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.discover import DiscoverOptions
from channelfit.reading.errors import printable
from channelfit.reading.memory import nothing_collected
from channelfit.results.report import terminal
from channelfit.results.run_folder import RunFolder

#: Schemes that are listed on the screen; all stand in the results' folder.
_LISTED = 12


def discover(options: DiscoverOptions) -> None:
    """Fit all schemes, write the folder and print the best ones."""
    with JsonLines("discover", options.as_json) as lines:
        folder, summary = _found(lines, options)
        lines.result(folder, sorted(p for p in folder.rglob("*") if p.is_file()), summary)
    if options.quiet and not options.as_json:
        click.echo(printable(str(folder)))
    elif not options.as_json:
        _print(summary, folder)


def _found(lines: JsonLines, options: DiscoverOptions) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a run and its summary."""
    assert options.model is not None  # the verb has looked
    file, arguments = options.model, kept_options(options)
    with RunFolder(held) as folder:
        folder.open(options.out, options.resume)
        with lines.screen(file.name, options.quiet) as screen:
            with compilations_shown(screen), nothing_collected():
                screen.begin(f"reading {file.name} and its data")
                plan, section = read(file, changes_of(options), options.backend)
                screen.warn(discoveries.cautions_of(plan))
                tasks = discoveries.ready(plan, section, None, options.backend)
                screen.say(f"{plan.name}: {len(tasks.schemes):,} schemes, seed {tasks.seed}")
                lines.folder(folder.claim_default(plan.name).path)
                with workers(options.cluster, screen) as executor:
                    listener = DiscoverScreen(screen, lines)
                    words = ["channelfit", *sys.argv[1:]]
                    _, summary = discoveries.run(
                        tasks, folder, listener, executor, arguments, words
                    )
    return folder.path, summary


def _print(summary: dict[str, Any], folder: Path) -> None:
    """Print the best schemes and what was found."""
    names = [name for name in summary["table"][0] if name.startswith(("rms_", "held_out_"))]
    numbers = (names[0], "aic_difference", "bic_difference", *names[1:])
    heads = [name.replace("_", " ") for name in (names[0], "dAIC", "dBIC", *names[1:])]
    heads = ["scheme", "graph", "parameters", *heads, "agreed"]
    rows = []
    for row in summary["table"][:_LISTED]:
        cells = ["" if row[name] is None else f"{row[name]:.5g}" for name in numbers]
        agreed = "" if row["starts"] is None else f"{row['starts_agreed']} of {row['starts']}"
        rows.append([row["scheme"], row["graph"], str(row["parameters"] or ""), *cells, agreed])
    lines = [f"- {text}" for text in summary["conclusions"]]
    terminal.show("", terminal.table(heads, rows, left=(0, 1)), *lines, f"results    {folder}")
