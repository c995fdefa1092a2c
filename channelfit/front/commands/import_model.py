"""`channelfit import`: a model of another program, translated, proven and written."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from channelfit.front.importing import translate
from channelfit.front.verbs.models import ImportOptions
from channelfit.model.imports.document import Imported
from channelfit.reading.errors import InputError, printable
from channelfit.reading.files import save_text, writing
from channelfit.reading.texts import names_in
from channelfit.scoring.neuron.importing import TOLERANCE, Proof

_UNPROVEN = 1


def import_model(options: ImportOptions) -> None:
    """Translate a file, prove the translation and write it."""
    out = _out(options.file, options.out)
    found = translate(
        options.file,
        names_in(options.fit),
        options.current,
        options.unproven,
        names_in(options.hold),
        options.start == "steady",
    )
    made, proof, why = found.made, found.proof, found.why
    _print_proof(made, proof, why)
    if found.differs and not options.unproven:
        click.echo(
            f"not written: the error is above {TOLERANCE:g}; --unproven writes it nevertheless",
            err=True,
        )
        sys.exit(_UNPROVEN)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        save_text(out, _with_proof(made.text, proof, why))
    click.echo(printable(str(out)))


def _out(file: Path, out: Path | None) -> Path:
    out = Path(f"{file.stem}.yaml") if out is None else out
    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError("a YAML file is written; give for example --out channel.yaml", out)
    if out.exists():
        raise InputError("is there already; give another name with --out, or remove it", out)
    return out


def _print_proof(made: Imported, proof: Proof | None, why: str) -> None:
    """Print the translation, and how far it is from the original."""
    for note in made.notes:
        click.echo(printable(f"note: {note}"))
    model = made.model
    free = [p.name for p in model.parameters if not p.fixed]
    count = len(model.parameters)
    click.echo(printable(f"{model.name}: {count} parameters, free: {', '.join(free)}"))
    if proof is None:
        click.echo(printable(f"warning: not proven: {why}"), err=True)
        return
    for family, error in proof.runs:
        click.echo(f"  {family}: largest error {error:.1e} of the peak")
    for note in proof.notes:
        click.echo(printable(f"  note: {note}"))
    verdict = "agrees with" if proof.error <= TOLERANCE else "DIFFERS from"
    click.echo(
        f"{verdict} the original: largest error {proof.error:.1e} of the peak, by {proof.truth}"
    )
    if proof.table is not None:
        click.echo(f"  with the file's own TABLE: {proof.table:.1e}, which is the table's error")


def _with_proof(text: str, proof: Proof | None, why: str) -> str:
    """Return the model file, whose head says how it was proven."""
    if proof is None:
        head = f"# Not proven: {' '.join(printable(why).split())}"[:300]
    else:
        head = (
            f"# Compared with the original under voltage steps: {proof.error:.1e} of the peak, by\n"
            f"# {proof.truth}."
        )
        head = "\n".join([head, *(f"# {printable(note)}" for note in proof.notes)])
    return f"{head}\n{text}"
