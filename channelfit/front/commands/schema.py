"""`channelfit schema`: JSON Schemas of files, and the reference of all keys."""

from __future__ import annotations

import json
from pathlib import Path

import click

from channelfit.reading.documents import read_json, read_text
from channelfit.reading.errors import InputError, did_you_mean
from channelfit.reading.files import save_text
from channelfit.reading.reference import OPENING, reference, section_reference
from channelfit.reading.schema import FILES, SECTIONS, TITLE, file_schema, section_schema

_PAGE = "channelfit-reference.md"
_USE = """
In VS Code, with the extension redhat.vscode-yaml, they are used by the files whose first line is,
with the path as it leads there from that file,

  # yaml-language-server: $schema={fit}

or by whole folders, with this in .vscode/settings.json:

  {{"yaml.schemas": {{
{rows}
  }}}}"""


def schema(kind: str | None, out: Path | None, to: str) -> None:
    """Print or write schemas, or the reference; see the verb."""
    names = list(FILES) if kind is None else [_known(kind)]
    if to == "markdown":
        text = reference() if kind is None else section_reference(FILES.get(names[0], names[0]))
        if out is None:
            click.echo(text, nl=False)
        else:
            _write(out / _PAGE, text)
    elif out is None:
        if kind is None:
            raise InputError(f"name one of {', '.join(FILES)}, a section, or a folder with --out")
        click.echo(_text(names[0]))
    else:
        words = {name: name.replace(" ", "-") for name in names}
        files = {name: out / f"channelfit-{word}.schema.json" for name, word in words.items()}
        for name, path in files.items():
            _write(path, _text(name) + "\n")
        if kind is None:
            click.echo(_how_to_use(files))


def _known(kind: str) -> str:
    """Return a kind of file, or the name of a section. Raises InputError for any other word."""
    name = kind.replace("-", " ")
    for known in (kind, name):
        if known in FILES or known in SECTIONS:
            return known
    hint = did_you_mean(kind, [*FILES, *SECTIONS])
    known_ones = f"{', '.join(FILES)}; sections: {', '.join(s for s in SECTIONS if s not in FILES)}"
    raise InputError(f'no kind of file and no section "{kind[:40]}"{hint} Known: {known_ones}')


def _text(name: str) -> str:
    """Return the schema of a kind of file or of a section as JSON."""
    found = file_schema(name) if name in FILES else section_schema(name)
    return json.dumps(found, indent=1)


def _write(path: Path, text: str) -> None:
    """Write a file, and replace one that an earlier call has written.

    Raises: InputError for a file that something else has written, and where nothing can be.
    """
    if path.exists() and not _ours(path):
        raise InputError("is no schema or page of channelfit's, and is not replaced", path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror or error}", path.parent) from None
    click.echo(f"Wrote {save_text(path, text, overwrite=True)}")


def _ours(path: Path) -> bool:
    """Return whether this command has written a file."""
    if path.name == _PAGE:
        return read_text(path).startswith(OPENING)
    try:
        return str(read_json(path).get("title", "")).startswith(TITLE)
    except InputError:
        return False


def _how_to_use(files: dict[str, Path]) -> str:
    globs = {"model": "models/*.yaml", "protocol": "protocols/*.yaml", "fit": "fits/*.yaml"}
    paths = {files[name].as_posix(): glob for name, glob in globs.items()}
    rows = json.dumps(paths, indent=4).strip("{}\n")
    return _USE.format(fit=files["fit"].as_posix(), rows=rows)
