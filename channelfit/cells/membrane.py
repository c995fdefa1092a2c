"""The membrane of one compartment: several channel models and a leak, joined to one model.

The joined model has the parameters, chains and currents of all channels, each under the name of its
channel, so that the kernels, the reference backend and the exports of one model serve a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sympy

from channelfit.model.channel import (
    CELSIUS,
    FARADAY,
    GAS_CONSTANT,
    ZERO_CELSIUS,
    Chain,
    ChannelModel,
    Parameter,
    Term,
)
from channelfit.model.terms import parts_of, product, symbol
from channelfit.reading.errors import InputError

#: The channel that a leak is.
LEAK = "leak"
#: The parameter of the joined model that holds the capacitance, pF.
CAPACITANCE = "capacitance"


@dataclass(frozen=True)
class CellChannel:
    """One kind of channel in a membrane.

    Attributes:
        name: by which the cell knows it.
        model: its model, with its values.
        scale: factor of its current.
        conductance: nS, in place of the model's; None to keep that.
        reversal: mV, in place of the model's; None to keep that.
        samples: (n_names, n_rows) other values of some of the model's parameters, base units.
        sampled: the names of these parameters.
    """

    name: str
    model: ChannelModel
    scale: float = 1.0
    conductance: float | None = None
    reversal: float | None = None
    sampled: tuple[str, ...] = ()
    samples: np.ndarray | None = None


@dataclass(frozen=True)
class Membrane:
    """A membrane as one model.

    Attributes:
        model: the joined model; its terms are in the order of the channels.
        channels: by name, the terms of each.
        channel_models: the channels that it was made of, without the leak.
    """

    model: ChannelModel
    channels: Mapping[str, tuple[int, ...]]
    channel_models: tuple[CellChannel, ...]

    def row(self, parameter: str) -> int:
        """Return the row of a parameter of the joined model, such as ``na_scale``."""
        return self.model.parameter_names.index(parameter)

    def values(self) -> np.ndarray:
        """Return all parameters, (n_parameters,), base units."""
        return self.model.values()

    def population(self, n: int, seed: int) -> np.ndarray:
        """Return n parameter sets, (n_parameters, n): rows of the channels' samples.

        Each channel's rows are drawn for themselves, without repetition as far as there are enough.
        """
        out = np.tile(self.values()[:, None], n)
        random = np.random.default_rng(seed)
        for channel in self.channel_models:
            if channel.samples is not None:
                n_rows = channel.samples.shape[1]
                turns = [random.permutation(n_rows) for _ in range(-(-n // n_rows))]
                drawn = channel.samples[:, np.concatenate(turns)[:n]]
                for name, row in zip(channel.sampled, drawn, strict=True):
                    out[self.row(f"{channel.name}_{name}")] = row
        return out

    def scaled(self, parameters: np.ndarray, scales: Mapping[str, float]) -> np.ndarray:
        """Return parameter sets in which the currents of some channels are multiplied by factors.

        Raises: InputError for a channel that the cell does not have.
        """
        out = parameters.copy()
        for name, factor in scales.items():
            if name not in self.channels:
                known = ", ".join(self.channels)
                raise InputError(f'the cell has no channel "{name}"; it has {known}')
            out[self.row(f"{name}_scale")] *= factor
        return out


def joined(
    name: str,
    channels: Sequence[CellChannel],
    capacitance: float,
    leak: tuple[float, float] | None,
) -> Membrane:
    """Return the membrane of some channels, pF of capacitance and a leak of (nS, mV)."""
    parameters = [_fixed(CAPACITANCE, "pF", capacitance)]
    definitions: list[tuple[str, sympy.Expr]] = []
    chains: list[Chain] = []
    terms: list[Term] = []
    places: dict[str, tuple[int, ...]] = {}
    for channel in channels:
        own = _of_cell(channel)
        rename = _renamer(own, channel.name)
        first = len(chains)
        for p in own.parameters:
            parameters.append(replace(p, name=f"{channel.name}_{p.name}", input=""))
        definitions += [(f"{channel.name}_{d}", rename(e)) for d, e in own.definitions]
        chains += [_renamed_chain(chain, channel.name, rename) for chain in own.chains]
        flowing = [_renamed_term(t, channel.name, first, rename) for t in own.terms if t.chains]
        places[channel.name] = tuple(range(len(terms), len(terms) + len(flowing)))
        terms += flowing
    if leak is not None:
        parameters += [
            _fixed(f"{LEAK}_scale", "", 1.0),
            _fixed(f"{LEAK}_conductance", "nS", leak[0]),
            _fixed(f"{LEAK}_reversal", "mV", leak[1]),
        ]
        size = product(symbol(f"{LEAK}_scale"), symbol(f"{LEAK}_conductance"))
        places[LEAK] = (len(terms),)
        terms.append(Term(LEAK, (), size, symbol(f"{LEAK}_reversal")))
    model = ChannelModel(
        name, "", "", tuple(parameters), tuple(definitions), tuple(chains), tuple(terms)
    )
    return Membrane(model, places, tuple(channels))


def _fixed(name: str, unit: str, value: float) -> Parameter:
    return Parameter(name, unit, value, value, value=value, fixed=True)


def _of_cell(channel: CellChannel) -> ChannelModel:
    """Return a channel's model with the scale, the conductance and the reversal of the cell."""
    model, more, terms = channel.model, [_fixed("scale", "", channel.scale)], []
    for term in model.terms:
        if channel.conductance is not None and term.chains:
            term = replace(term, conductance=symbol("cell_conductance"))
        if channel.reversal is not None and term.chains:
            term = replace(term, reversal=symbol("cell_reversal"))
        if term.permeability is not None:
            term = replace(term, permeability=product(symbol("scale"), term.permeability))
            if term.ion is not None and term.ion.thermal is None:
                # written out, so that each channel keeps a temperature of its own
                below = symbol(CELSIUS) + sympy.Float(ZERO_CELSIUS, 17)
                thermal = product(sympy.Float(1e3 * GAS_CONSTANT / FARADAY, 17), below)
                term = replace(term, ion=replace(term.ion, thermal=thermal))
        else:
            term = replace(term, conductance=product(symbol("scale"), term.size))
        terms.append(term)
    if channel.conductance is not None:
        more.append(_fixed("cell_conductance", "nS", channel.conductance))
    if channel.reversal is not None:
        more.append(_fixed("cell_reversal", "mV", channel.reversal))
    return replace(model, parameters=(*model.parameters, *more), terms=tuple(terms))


_Rename = Callable[[sympy.Expr], sympy.Expr]


def _renamer(model: ChannelModel, prefix: str) -> _Rename:
    """Return a function that puts a prefix before all names of a model, and leaves the form."""
    names = {*model.parameter_names, *(name for name, _ in model.definitions)}
    known: dict[sympy.Basic, sympy.Basic] = {symbol(n): symbol(f"{prefix}_{n}") for n in names}

    def rename(expression: sympy.Expr) -> sympy.Expr:
        for node in parts_of(expression):
            if node not in known:
                known[node] = _rebuilt(node, [known[a] for a in node.args])
        return known[expression]

    return rename


def _rebuilt(node: sympy.Basic, arguments: list[sympy.Basic]) -> sympy.Basic:
    """Return a node with other arguments, not evaluated: the arithmetic keeps its form."""
    if all(a is b for a, b in zip(arguments, node.args, strict=True)):
        return node
    if isinstance(node, sympy.functions.elementary.piecewise.ExprCondPair):
        return node.func(*arguments)
    return node.func(*arguments, evaluate=False)


def _renamed_chain(chain: Chain, prefix: str, rename: _Rename) -> Chain:
    return replace(
        chain,
        name=f"{prefix}_{chain.name}",
        states=tuple(f"{prefix}_{s}" for s in chain.states),
        transitions=tuple(
            replace(
                t,
                source=f"{prefix}_{t.source}",
                target=f"{prefix}_{t.target}",
                rate=rename(t.rate),
            )
            for t in chain.transitions
        ),
        limit=None if chain.limit is None else rename(chain.limit),
        tau=None if chain.tau is None else rename(chain.tau),
    )


def _renamed_term(term: Term, prefix: str, first: int, rename: _Rename) -> Term:
    def maybe(expression: sympy.Expr | None) -> sympy.Expr | None:
        return None if expression is None else rename(expression)

    ion = term.ion
    if ion is not None:
        ion = replace(
            ion,
            inside=rename(ion.inside),
            outside=rename(ion.outside),
            thermal=maybe(ion.thermal),
        )
    return replace(
        term,
        name=f"{prefix}_{term.name}",
        chains=tuple(first + k for k in term.chains),
        conductance=maybe(term.conductance),
        reversal=maybe(term.reversal),
        rectification=maybe(term.rectification),
        permeability=maybe(term.permeability),
        ion=ion,
    )
