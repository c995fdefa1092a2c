"""A second oracle: the same scheme built with NEURON's Channel Builder, without any NMODL."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel, Transition
from channelfit.model.evaluation import evaluate
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.mechanisms import compile_mechanism, neuron_hoc
from channelfit.scoring.neuron.oracle import CLAMP, TOLERANCE, Array, NeuronOracle


class KSChanOracle(NeuronOracle):
    """A scheme built with NEURON's Channel Builder, which knows rates ``a exp(k v)``."""

    _tolerance = TOLERANCE  # for all, since its states take no scale: long sines may stall

    def __init__(self, model: ChannelModel, cache: Path | None = None) -> None:
        if len(model.chains) != 1 or model.chains[0].power != 1:
            raise InputError("a KSChan is made of one scheme, not of gates; use model.expanded()")
        self.model, self.method, self.initial = model, "cvode", "model"
        self.parameters = {}
        self.states = {(model.chains[0].name, s): s for s in model.states}
        self._clamp = compile_mechanism(CLAMP, cache)
        h = neuron_hoc()
        names = (f"channelfit_ks{k}" for k in itertools.count())  # a type can never be unmade
        self._mechanism = next(name for name in names if not hasattr(h, name))
        self._build(h)

    def _build(self, h: Any) -> None:
        channel = self._kschan = h.KSChan(True)
        channel.name(self._mechanism)
        channel.ion("NonSpecific")
        channel.iv_type(0)
        states: dict[str, Any] = {}
        for state in self.model.states:
            states[state] = channel.add_ksstate(channel.gate(0) if states else None, state)
            states[state].frac(self.model.open_states.get(state, 0.0))
        self._pairs: list[tuple[Any, Transition, Transition]] = []
        for t in self.model.transitions:
            backward = [
                b for b in self.model.transitions if (b.target, b.source) == (t.source, t.target)
            ]
            if len(backward) != 1:
                raise InputError(
                    f"a KSChan needs one way back for each transition, as {t.source} -> {t.target}"
                )
            if any(b is t for _, _, b in self._pairs):
                continue
            link = channel.add_transition(states[t.source], states[t.target])
            link.type(0)
            for direction in (0, 1):  # NEURON crashes on a transition without its functions
                link.set_f(direction, 2, h.Vector([1.0, 0.0, 0.0]))
            self._pairs.append((link, t, backward[0]))

    def set_parameters(self, channel: Any, values: Array) -> None:
        """Puts (n_parameters,) into the type's functions and the instance's gmax (uS) and e."""
        h = neuron_hoc()
        known = dict(zip(self.model.parameter_names, values, strict=True))
        for link, *directions in self._pairs:
            for direction, t in enumerate(directions):
                a, slope = _exponential(self.model, t, known)
                link.set_f(direction, 2, h.Vector([a, slope, 0.0]))
        channel.gmax = 1e-3 * float(evaluate(self.model.conductance, known))
        channel.e = float(evaluate(self.model.reversal, known))


def _exponential(
    model: ChannelModel, t: Transition, known: Mapping[str, Any]
) -> tuple[float, float]:
    """a and k of a rate a exp(k v)."""
    values: dict[str, Any] = {**known, "v": np.array([-50.0, 0.0, 50.0])}
    for name, expression in model.definitions:
        values[name] = evaluate(expression, values)
    rate = t.multiplicity * np.broadcast_to(evaluate(t.rate, values), (3,))
    slope = math.log(rate[2] / rate[0]) / 100
    if not math.isclose(rate[1] ** 2, rate[0] * rate[2], rel_tol=1e-9):
        raise InputError(f"the rate {t.source} -> {t.target} is not of the form a*exp(k*v)")
    return float(rate[1]), slope
