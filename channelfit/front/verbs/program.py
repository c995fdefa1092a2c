"""Verbs of the program itself: what is installed, shipped, and may be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from channelfit.reading.shipped import copy_examples


@click.command()
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


@click.command()
def doctor() -> None:
    """Print which packages and backends can be used here, and how to get those that are missing.

    \b
    Example
      channelfit doctor
    """

    from channelfit.front.commands.doctor import report

    report()


PROGRAM = "channelfit"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete the commands, options and files of channelfit.

    \b
    To switch it on for good, add one line to the file that the shell reads at its start
      bash   ~/.bashrc   eval "$(channelfit completion bash)"
      zsh    ~/.zshrc    eval "$(channelfit completion zsh)"
      fish   ~/.config/fish/config.fish   channelfit completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # the variable is the one that click looks for when the program is called
    script = kind(ctx.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    click.echo(script)


@click.command()
@click.argument("kind", required=False, metavar="[KIND]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write there instead of printing; of all kinds of files where none is named.",
)
@click.option(
    "--to",
    type=click.Choice(["json", "markdown"]),
    default="json",
    show_default=True,
    help="A JSON Schema, or the reference of all keys as a page.",
)
def schema(**given: Any) -> None:
    """Write the keys of files: JSON Schemas by which editors complete and check YAML, or a page.

    KIND is a kind of file, model, protocol, fit, function or curve, or one section, such as clamp.
    The schemas are made from the tables that the readers of these files use.

    \b
    In VS Code, with the extension redhat.vscode-yaml:
      channelfit schema --out schemas
    and, as the first line of a fit file beside that folder,
      # yaml-language-server: $schema=schemas/channelfit-fit.schema.json
    or for whole folders, in .vscode/settings.json,
      {"yaml.schemas": {"schemas/channelfit-protocol.schema.json": "protocols/*.yaml"}}

    \b
    Examples
      channelfit schema fit > fit.schema.json
      channelfit schema clamp --to markdown
      channelfit schema --to markdown > reference.md
    """
    from channelfit.front.commands import schema as work

    work.schema(**given)
