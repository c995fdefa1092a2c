"""`import_model`: channels of NEURON, Myokit and CellML, compared with the originals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from channelfit.front.progress import screen_for
from channelfit.model.channel import ChannelModel
from channelfit.model.imports.document import Imported
from channelfit.model.model import Model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError, printable
from channelfit.reading.texts import file_size
from channelfit.scoring.neuron.importing import TOLERANCE, Proof, prove, read_mechanism
from channelfit.scoring.neuron.importing_myokit import prove_myokit, read_myokit_model
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable
from channelfit.scoring.scorer import make_scorer

#: Bytes of a file that is read.
_LARGEST = 20_000_000


@dataclass(frozen=True)
class Translation:
    """A channel of another program as a model file, and how it compares with the original.

    Attributes:
        made: the model file.
        proof: the comparison; None where there is none.
        why: the reason for that.
    """

    made: Imported
    proof: Proof | None
    why: str

    @property
    def differs(self) -> bool:
        """True if the currents are not those of the original."""
        return self.proof is not None and not self.proof.error <= TOLERANCE


def translate(
    file: Path,
    fit: Sequence[str],
    current: str | None,
    unproven: bool,
    hold: Sequence[str] = (),
    steady: bool = False,
) -> Translation:
    """Translate a file, and compare its currents with the original's.

    Arguments:
        fit: the parameters to be searched.
        current: which of a Myokit model is taken.
        unproven: whether a translation that cannot be compared is taken, too.
        hold: states of a Myokit model that are held at their initial values.
        steady: whether sweeps begin at the steady state wherever a .mod starts.

    Raises InputError: what cannot be translated or compared.
    """
    if file_size(file) > _LARGEST:
        raise InputError(f"more than {_LARGEST} bytes; no model is as long", file)
    source = f"imported from {file.name}, SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
    kind = file.suffix.lower()
    if kind == ".mod":
        if current is not None:
            raise InputError("--current chooses in a Myokit model; all currents of a .mod are read")
        if hold:
            raise InputError("--hold is for states of a Myokit model; those of a .mod all move")
        mechanism = read_mechanism(file, source, fit, steady)
        return _compared(mechanism.imported, file, unproven, lambda: prove(mechanism, _simulated))
    if kind in (".mmt", ".cellml"):
        original = read_myokit_model(file, source, current, tuple(fit), tuple(hold))
        made = original.imported
        return _compared(made, file, unproven, lambda: prove_myokit(original, _simulated))
    raise InputError("a .mod, .mmt or .cellml file was expected", file)


def _compared(
    made: Imported, file: Path, unproven: bool, prove: Callable[[], Proof]
) -> Translation:
    """Return the translation with its proof, or with the reason why there is none."""
    try:
        return Translation(made, prove(), "")
    except NeuronUnavailable as error:
        return Translation(made, None, str(error))
    except InputError as error:
        if unproven:
            return Translation(made, None, str(error))
        raise InputError(
            f"translated, but not proven: {error}; --unproven writes it nevertheless", file
        ) from None


def _simulated(model: ChannelModel, protocol: Protocol) -> np.ndarray:
    """Return the current of a model's values (n_sweeps, n_times_max), pA."""
    scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
    return np.asarray(scorer.simulate(model.values()[:, None])[0][:, :, 0])


def import_model(
    path: str | os.PathLike[str],
    *,
    fit: Sequence[str] = (),
    current: str | None = None,
    hold: Sequence[str] = (),
    unproven: bool = False,
    start: str = "file",
) -> Model:
    """Return the channel in a NEURON mechanism (.mod), a Myokit model (.mmt) or a CellML file.

    Its currents under voltage steps are compared with those of the original, which NEURON or
    Myokit computes.

    Arguments:
        path: the file.
        fit: names of the parameters that a fit shall search; all others are fixed.
        current: the current of a Myokit or CellML model.
        hold: states of such a model that are held at their initial values, beside concentrations.
        unproven: whether a model that differs from the original, or cannot be compared with it, is
            given nevertheless, with an `InputWarning`. Without NEURON or Myokit installed it always
            is.
        start: ``steady`` begins sweeps at the steady state where a mechanism starts elsewhere.

    Returns: a `Model`; ``model.save(file)`` writes it as a model file.

    Raises:
        InputError: what cannot be translated, with its line; a model that differs.

    Example:
        >>> import channelfit as cf
        >>> _ = cf.export("models/k_hh_gate.yaml", "k.mod", point_process=True)
        >>> cf.import_model("k.mod").name
        'k_hh_gate'
    """
    file = Path(path)
    if start not in ("file", "steady"):
        raise InputError(f'"file" or "steady" was expected, not {start!r}', key="start")
    found = translate(file, list(fit), current, unproven, list(hold), start == "steady")
    if found.differs and not unproven:
        assert found.proof is not None
        raise InputError(
            f"differs from the original by {found.proof.error:.1e} of the peak; give "
            "unproven=True to take it nevertheless",
            file,
        )
    with screen_for(found.made.model.name, False) as screen:
        if found.proof is None:
            screen.warn_of(f"{file}: not compared with the original: {printable(found.why)}")
        elif found.differs:
            screen.warn_of(f"{file}: differs from the original by {found.proof.error:.1e}")
    return Model.from_yaml(found.made.text)
