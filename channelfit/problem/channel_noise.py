"""The fluctuations of a current that channels carry one by one, read from a mapping ``noise:``.

Each of N channels is in one state at a time, so the current of all of them fluctuates about its
mean, slowly where the channels are slow. A channel that is open adds noise of its own, and the
amplifier adds noise to each sample (Münch et al. 2022, eLife 11:e62714).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import sympy

from channelfit.model.channel import ChannelModel, Term, Tie
from channelfit.model.evaluation import evaluate
from channelfit.model.terms import power, product, sum_of
from channelfit.problem.clamp import QuantityReader
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS

if TYPE_CHECKING:
    from channelfit.problem.experiment import Experiment, Problem

#: The name of the conductance of one channel, where it follows from other parameters.
UNITARY = "unitary_conductance"
_LARGEST: Mapping[str, float | None] = {"channels": None, "instrument": None, "open": None}


@dataclass(frozen=True)
class ChannelNoise:
    """The number of channels and what else makes a current fluctuate.

    Every quantity is an expression of the model's parameters alone, in base units.

    Attributes:
        channels: how many channels carry the current of the model.
        instrument: pA, the standard deviation that the amplifier adds to each sample.
        open: pA, the standard deviation that each open channel adds to each sample, independent of
            the others'; of a state that conducts less, less in proportion.
    """

    channels: sympy.Expr
    instrument: sympy.Expr
    open: sympy.Expr

    def used_names(self) -> set[str]:
        """Return the parameters on which a quantity depends."""
        return {s.name for e in vars(self).values() for s in e.free_symbols}

    def at(self, model: ChannelModel, values: np.ndarray) -> dict[str, float]:
        """Return the quantities by name at values (n_parameters,) of the model's parameters."""
        scope = dict(zip(model.parameter_names, values, strict=True))
        return {name: float(evaluate(e, scope)) for name, e in vars(self).items()}


def read_channel_noise(section: Section, model: ChannelModel) -> ChannelNoise | None:
    """Return the noise that a mapping ``noise:`` of a fit section describes; None without one.

    Raises InputError: a quantity that is no number with a unit and no expression of the parameters,
    or a model whose channels cannot be counted.
    """
    if not isinstance(section.take("noise"), Mapping):
        return None
    inner = section.section("noise")
    inner.expect(KEYS["channel noise"])
    for p in model.parameters:
        if p.prior:
            raise section.error(
                f"{p.name} has a prior, which is not weighed against this likelihood yet; "
                "leave it out",
                "noise",
            )
    try:
        one_scheme(model)
    except InputError as error:
        raise section.error(f"its channels cannot be counted: {error.message}", "noise") from None
    for key in ("channels", "instrument"):
        inner.take(key)  # refused where it is missing
    reader = QuantityReader(model, _LARGEST)
    return ChannelNoise(**{key: reader.quantity(inner, key, key) for key in KEYS["channel noise"]})


def one_scheme(model: ChannelModel) -> tuple[ChannelModel, Term]:
    """Return the model as one scheme of states, and the term of the current that opens and closes.

    Raises InputError: several currents open independently, or a gate has no time constant.
    """
    scheme = model.expanded()
    opening = [term for term in scheme.terms if term.chains]
    if len(opening) != 1:
        raise InputError("no current opens and closes")
    return scheme, opening[0]


def leak_of(model: ChannelModel) -> sympy.Expr:
    """Return the current, pA, that does not open and close."""
    return sum_of(*(term.drive for term in model.terms if not term.chains))


def with_unitary(model: ChannelModel, noise: ChannelNoise) -> ChannelModel:
    """Return the model with the conductance of one channel as a tied parameter.

    It is left out where it is a parameter itself, as gamma is where the conductance is N*gamma;
    and where the current is no conductance times a driving force.
    """
    size = one_scheme(model)[1].conductance
    if size is None or UNITARY in {*model.parameter_names, *dict(model.definitions)}:
        return model
    unitary = product(size, power(noise.channels, sympy.Integer(-1)))
    if unitary.is_Symbol:
        return model
    return replace(
        model,
        definitions=(*model.definitions, (UNITARY, unitary)),
        ties=(*model.ties, Tie(UNITARY, "nS")),
    )


def refuse_noise(problem: Problem, file: object) -> None:
    """Raise InputError for channel noise where only mean currents are fitted."""
    if problem.noise is not None:
        raise InputError(
            "the likelihood of channel noise is that of a fit of one scheme by `optimize`; leave "
            "it out here (--set fit.noise=null)",
            str(file),
            "fit.noise",
        )


def fault_of(e: Experiment) -> str:
    """Return why the fluctuations of an experiment are not those of channels; empty if they are."""
    if e.clamp is not None:
        return (
            "a clamp, a delay or a filter changes fluctuations in a way that this likelihood does "
            "not know; leave it out"
        )
    if not e.protocol.in_steps:
        return (
            "the likelihood of channel noise is that of held voltages and concentrations, and the "
            "protocol has ramps, sines, a recorded command or an exchange of solutions; fit steps "
            "alone"
        )
    weights = np.ones(1) if e.recording is None else np.unique(e.recording.weight * e.weight)
    other = weights[~np.isin(weights, (0.0, 1.0))]
    if other.size:
        return (
            "the variance of each sample follows from the noise, so weights are 1, or 0 to leave "
            f"samples out, not {other[0]:g}"
        )
    return ""
