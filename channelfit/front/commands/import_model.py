"""`channelfit import`: a model of another program, translated, proven and written."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.imports.document import Imported
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError
from channelfit.reading.files import writing
from channelfit.reading.plain import write_text
from channelfit.reading.texts import file_size, printable
from channelfit.scoring.neuron.importing import TOLERANCE, Proof, prove, read_mechanism
from channelfit.scoring.neuron.importing_myokit import prove_myokit, read_myokit_model
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable
from channelfit.scoring.scorer import make_scorer

#: Bytes of a file that is read.
_LARGEST = 20_000_000
_UNPROVEN = 1


def import_model(
    file: Path, fit: str | None, current: str | None, out: Path | None, unproven: bool
) -> None:
    """Translates a file, proves the translation and writes it."""
    if file_size(file) > _LARGEST:
        raise InputError(f"more than {_LARGEST} bytes; no model is as long", file)
    out = _out(file, out)
    chosen = [name.strip() for name in (fit or "").split(",") if name.strip()]
    source = f"imported from {file.name}, SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
    kind = file.suffix.lower()
    if kind == ".mod":
        if current is not None:
            raise InputError("--current chooses in a Myokit model; all currents of a .mod are read")
        mechanism = read_mechanism(file, source, chosen)
        made = mechanism.imported
        proof, why = _proof(file, unproven, lambda: prove(mechanism, _simulated))
    elif kind in (".mmt", ".cellml"):
        original = read_myokit_model(file, source, current, tuple(chosen))
        made = original.imported
        proof, why = _proof(file, unproven, lambda: prove_myokit(original, _simulated))
    else:
        raise InputError("a .mod, .mmt or .cellml file was expected", file)
    _tell(made, proof, why)
    failed = proof is not None and not proof.error <= TOLERANCE
    if failed and not unproven:
        click.echo(
            f"not written: the error is above {TOLERANCE:g}; --unproven writes it nevertheless",
            err=True,
        )
        sys.exit(_UNPROVEN)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(_with_proof(made.text, proof, why), out)
    click.echo(printable(str(out)))


def _proof(file: Path, unproven: bool, prove: Callable[[], Proof]) -> tuple[Proof | None, str]:
    """The proof; or None and why there is none, where that is no reason to stop."""
    try:
        return prove(), ""
    except NeuronUnavailable as error:
        return None, str(error)
    except InputError as error:
        if unproven:
            return None, str(error)
        raise InputError(
            f"translated, but not proven: {error}; --unproven writes it nevertheless", file
        ) from None


def _simulated(model: ChannelModel, protocol: Protocol) -> np.ndarray:
    """The current of a model's values (n_sweeps, n_times_max), pA."""
    scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
    return np.asarray(scorer.simulate(model.values()[:, None])[0][:, :, 0])


def _out(file: Path, out: Path | None) -> Path:
    out = Path(f"{file.stem}.yaml") if out is None else out
    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError("a YAML file is written; give for example --out channel.yaml", out)
    if out.exists():
        raise InputError("is there already; give another name with --out, or remove it", out)
    return out


def _tell(made: Imported, proof: Proof | None, why: str) -> None:
    """What was found, and how far it is from the original."""
    model = made.model
    free = [p.name for p in model.parameters if not p.fixed]
    told = f"{model.name}: {len(model.parameters)} parameters, free: {', '.join(free)}"
    click.echo(printable(told))
    if proof is None:
        click.echo(printable(f"warning: not proven: {why}"), err=True)
        return
    for told, error in proof.runs:
        click.echo(f"  {told}: largest error {error:.1e} of the peak")
    if proof.note:
        click.echo(printable(f"  note: {proof.note}"))
    verdict = "agrees with" if proof.error <= TOLERANCE else "DIFFERS from"
    click.echo(f"{verdict} the original: largest error {proof.error:.1e} of the peak")
    if proof.table is not None:
        click.echo(f"  with the file's own TABLE: {proof.table:.1e}, which is the table's error")


def _with_proof(text: str, proof: Proof | None, why: str) -> str:
    """The model file, whose head says how it was proven."""
    if proof is None:
        told = f"# Not proven: {' '.join(printable(why).split())}"[:300]
    else:
        told = f"# Compared with the original under voltage steps: {proof.error:.1e} of the peak."
    return f"{told}\n{text}"
