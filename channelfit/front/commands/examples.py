"""`channelfit examples`: copies of the shipped files, and what was written."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.reading.shipped import copy_examples


def examples(folder: Path) -> None:
    """Copy the shipped files, and print each file that it wrote, and how many were there."""
    written, kept = copy_examples(folder)
    for place in written:
        click.echo(str(place))
    counts = f"{len(written)} files written"
    if kept:
        counts += f"; {len(kept)} were there already with the same content"
    click.echo(f"{counts}. Try: channelfit optimize {folder / 'models' / 'model_b.yaml'}", err=True)
