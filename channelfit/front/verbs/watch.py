"""`channelfit watch`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(short_help="Show running fits, and the queue in a folder, on a page.")
@click.argument("place", type=click.Path(path_type=Path), metavar="RUN|DIR")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port to listen on. [default: one that is free]",
)
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
def watch(**given: Any) -> None:
    """Show on a page how the fit in the run folder RUN goes on, or all runs in the folder DIR.

    Of a run: its cost by generation, the time left, the parameters and the fit over the data so
    far, and what looked wrong. Of a folder: a row for each run in it, with its state (running,
    finished, interrupted, failed, or killed), which leads to its page and its report.

    The page is served to this computer alone, at an address that holds a secret; whoever has the
    address can read the page. Nothing is written, and no fit is disturbed. Ctrl-C ends it, with
    exit code 0.

    \b
    Examples
      channelfit watch runs
      channelfit watch runs/cell7
      channelfit watch runs --port 8600 --no-browser
    """
    from channelfit.front.commands import watch as work

    work.watch(**given)
