"""Verbs of many runs: a night of jobs, and the page that shows runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    command,
    file_path,
    json_option,
    option,
    path_argument,
    quiet_option,
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Do the jobs in NIGHT, a YAML file, each after those that it waits for.

    A job is a command of channelfit with its arguments by name, and may use the results of others.
    All of them are looked at before the first one begins. Each is a process of its own, writes
    into the folder DIR/JOB and prints into DIR/JOB.log. If one fails, those that wait for it are
    skipped, and all others are done.

    \b
    A night
      side_by_side: 2
      jobs:
        three: {optimize: {model: three_states.yaml}}
        four:  {optimize: {model: four_states.yaml, seed: 3}}
        which: {compare: {fits: [{run: three}, {run: four}]}}
        sure:  {uncertainty: {fit: {run: four}, profiles: all}, after: which}

    After Ctrl-C, a kill or a power cut, --resume or the same call with the same --out goes on:
    what has finished is not done again, and what was under way goes on where it was.

    \b
    Writes
      JOB/            the results of each job
      JOB.log         what it printed
      night.json      how every job is, while the night goes on and after it
      summary.json    the same at the end, with times, reasons and where results are
      night.html      the same as a page

    \b
    Exit codes
      0   all jobs have finished
      2   the file, or what it names, cannot be used; no job was begun
      3   some jobs failed or were skipped

    \b
    Examples
      channelfit run night.yaml
      channelfit run night.yaml --check
      channelfit run night.yaml --out nights/monday
      channelfit run --resume nights/monday
    """

    night: Path | None = path_argument("night", required=False)
    resume: Path | None = file_path(
        "--resume",
        "FOLDER",
        "Go on with a night that was interrupted or killed, or do again what failed in it.",
    )
    out: Path | None = file_path(
        "--out",
        "DIR",
        "Folder for the results: a new one, or that of this night, which then goes on. "
        "[default: runs/NAME-DATE-TIME]",
    )
    check: bool = option("--check", is_flag=True, help="Look at every job, and begin none.")
    cluster: tuple[str, ...] = option(
        "--cluster",
        multiple=True,
        metavar="WHERE",
        help="With --resume: a cluster that jobs name and may use again; processes of this "
        "computer need not be named.",
    )
    quiet: bool = quiet_option("the results' folder")
    as_json: bool = json_option()


def _before_run(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, if it goes together."""
    if (given["night"] is None) == (given["resume"] is None):
        raise click.UsageError("give either NIGHT or --resume FOLDER", context)
    if given["resume"] is not None and given["out"] is not None:
        raise click.UsageError("--out cannot stand beside --resume", context)
    if given["cluster"] and given["resume"] is None:
        raise click.UsageError("--cluster goes with --resume; jobs name their own", context)
    return given


run = command(RunOptions, "run", before=_before_run)


@click.command()
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
