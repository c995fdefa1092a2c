"""`channelfit watch`: serve a page that shows running fits, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from pathlib import Path
from threading import Thread

import click

from channelfit.front import interrupts
from channelfit.front.watching.answers import Watched
from channelfit.front.watching.server import Server
from channelfit.reading.errors import printable


def watch(place: Path, port: int, no_browser: bool) -> None:
    """Serve the page of a run or of a folder of runs until it is interrupted."""
    watched = Watched(place)
    try:
        with interrupts.held():
            asyncio.run(_served(watched, port, no_browser))
    except KeyboardInterrupt:
        if interrupts.exit_code() != interrupts.INTERRUPTED:  # another program ended it, by SIGTERM
            raise
    click.echo("Ended.", err=True)


async def _served(watched: Watched, port: int, no_browser: bool) -> None:
    server = Server(watched, port)
    what = "the run" if watched.alone else "the runs in"
    click.echo(f"Watching {what} {printable(str(watched.place))}; Ctrl-C ends it.", err=True)
    if not watched.alone and not watched.queue()["rows"]:
        click.echo("No run is there yet; one will be shown as soon as it begins.", err=True)
    click.echo(server.address)
    sys.stdout.flush()
    if not no_browser and _has_desktop():
        Thread(target=webbrowser.open, args=(server.address_once,), daemon=True).start()
    await server.serve(interrupts.have_come)


def _has_desktop() -> bool:
    """Return whether a browser would open a window, and not take over this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
