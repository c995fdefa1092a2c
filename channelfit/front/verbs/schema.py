"""`channelfit schema`: its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(short_help="What files may hold, for editors and readers.")
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
