"""`channelfit examples`: copies of the shipped files."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.reading.shipped import copy_examples


@click.command(short_help="Copy the shipped models, protocols and recordings.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def examples(folder: Path) -> None:
    """Copy the models, protocols and recordings that come with channelfit into DIR.

    DIR is made if it is not there. No file is replaced: a file that is there already with the same
    content is kept, and if one has another content, the command writes nothing and names it.

    \b
    Writes
      DIR/models       models, fits, and the recordings that they name
      DIR/protocols    the protocols of the models

    \b
    Examples
      channelfit examples .
      channelfit optimize models/model_b.yaml
    """
    written, kept = copy_examples(folder)
    for place in written:
        click.echo(str(place))
    counts = f"{len(written)} files written"
    if kept:
        counts += f"; {len(kept)} were there already with the same content"
    click.echo(f"{counts}. Try: channelfit optimize {folder / 'models' / 'model_b.yaml'}", err=True)
