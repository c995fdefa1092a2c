"""Ions that carry the currents of an exported channel, and factors that a density takes in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import sympy

from channelfit.model.channel import CELSIUS, ChannelModel, Term
from channelfit.model.ions import VALENCES, IonVariable, ion_variable
from channelfit.model.terms import product
from channelfit.reading.errors import InputError, shown

#: mV: no current of a cell reverses there.
_NO_CELL = 500.0


def ions_of(channel: ChannelModel, ions: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return the ion of each current that has one, by the name of the term."""
    terms = {term.name: term for term in channel.terms if term.chains}
    every = {term.name: term for term in channel.terms}
    found: dict[str, str] = {}
    for text in ions:
        name, equals, ion = text.rpartition("=")
        if not equals:
            if len(terms) != 1:
                raise InputError(
                    f"the model has several currents ({', '.join(every)}); say which is the ion's, "
                    f"as in --ion {next(iter(terms), 'current')}={ion}",
                    file,
                )
            name = next(iter(terms))
        if name not in every:
            raise InputError(
                f"the model has no current {shown(name)}. Known: {', '.join(every)}",
                file,
            )
        if not re.fullmatch(r"[a-z][a-z0-9]{0,9}", ion):
            raise InputError(f"{shown(ion)} is no name of an ion; write for example --ion na")
        _check_valence(every[name], ion, file)
        if name in found:
            raise InputError(f"the current {name} is given two ions, {found[name]} and {ion}")
        found[name] = ion
    return found


def _check_valence(term: Term, ion: str, file: Path | None) -> None:
    """Raise InputError for an ion of unknown charge, or of another than the model's."""
    known = VALENCES.get(ion)
    if term.ion is None:
        if known is None:
            raise InputError(
                f"the charge of the ion {ion} is not known; NEURON needs it. Known: "
                f"{', '.join(VALENCES)}"
            )
    elif known is not None and known != term.ion.valence:
        raise InputError(
            f"the ion {ion} has a charge of {known}, that of the model {term.ion.valence}",
            file,
        )


def check_apart(channel: ChannelModel, term: Term, ion: str, file: Path | None) -> None:
    """Raise InputError where what the ion decides also decides on rates, or is another ion's."""
    if term.ion is None:
        assert term.reversal is not None
        own, what = term.reversal.free_symbols, f"reversal potential (e{ion})"
    else:
        own = term.ion.inside.free_symbols | term.ion.outside.free_symbols
        what = f"concentrations ({ion}i, {ion}o)"
    names = {s.name for s in own}
    _check_inputs(channel, names, term.name, ion, file)
    if keeps_reversal(channel, term) and ion not in _followed(channel, term):
        raise InputError(
            f"the current {term.name} has no reversal potential that the cell's e{ion} could take "
            "the place of: its voltage dependence is written as a rectification. Leave --ion out",
            file,
        )
    others = _elsewhere(channel, ends=False) | _names([term.size])
    shared = names & others - {CELSIUS} - inputs(channel).keys()
    if shared:
        raise InputError(
            f"the rates, too, depend on {', '.join(sorted(shared))}, from which the {what} of the "
            f"current follow; the cell's {ion} would contradict them. Leave --ion out",
            file,
        )


def inputs(channel: ChannelModel) -> dict[str, IonVariable]:
    """Return the parameters that the cell around the channel decides on, each with what it is
    there.
    """
    found = {p.name: ion_variable(p.input) for p in channel.parameters if p.input}
    return {name: variable for name, variable in found.items() if variable is not None}


def keeps_reversal(channel: ChannelModel, term: Term) -> bool:
    """Return whether no reversal potential of a cell can take the place of a current's own.

    So it is where the current reverses at no voltage of a cell, or where its rectification follows
    concentrations: then it is the rectification that says where the current reverses.
    """
    if term.reversal is None:
        return False
    if term.reversal.is_number and abs(float(term.reversal)) >= _NO_CELL:
        return True
    found = inputs(channel)
    if any(found[name].kind == "reversal" for name in _names([term.reversal]) & found.keys()):
        return False
    return bool(_followed(channel, term))


def _followed(channel: ChannelModel, term: Term) -> set[str]:
    """Return the ions on whose concentrations, as the cell has them, a rectification depends."""
    found = inputs(channel)
    parts = [term.rectification] if term.rectification is not None else []
    behind = {name for one in _names(parts) for name in channel.names_behind(one)}
    return {found[n].ion for n in behind & found.keys() if found[n].kind != "reversal"}


def _names(expressions: Sequence[sympy.Expr]) -> set[str]:
    return {s.name for expression in expressions for s in expression.free_symbols}


def _check_inputs(
    channel: ChannelModel, names: set[str], current: str, ion: str, file: Path | None
) -> None:
    """Raise InputError where what drives a current is said to be another ion's."""
    for name, variable in inputs(channel).items():
        if name in names and variable.ion != ion:
            own = next(p.input for p in channel.parameters if p.name == name)
            raise InputError(
                f"the current {current} is driven by {own}, which is of the ion {variable.ion}, "
                f"not of {ion}",
                file,
            )


def _elsewhere(channel: ChannelModel, ends: bool = True) -> set[str]:
    """Return the parameters on which something else than the size of a current depends.

    Arguments:
        ends: whether reversal potentials and concentrations count.
    """
    expressions = [t.rate for chain in channel.chains for t in chain.transitions]
    for term in channel.terms:
        expressions += [term.rectification] if term.rectification is not None else []
        if ends:
            expressions += [term.reversal] if term.reversal is not None else []
            expressions += [term.ion.inside, term.ion.outside] if term.ion else []
    found: set[str] = set()
    for name in {s.name for e in expressions for s in e.free_symbols}:
        found |= channel.names_behind(name)
    return found


def _parts(channel: ChannelModel, term: Term) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Return the factors of a size that a density takes in, and those that stay expressions.

    A factor stays where it follows the temperature, or a parameter that something else uses too.
    """
    elsewhere = _elsewhere(channel) | {CELSIUS} | inputs(channel).keys()
    taken = list(sympy.Mul.make_args(term.size))
    live: list[sympy.Expr] = []
    while moved := [factor for factor in taken if _names([factor]) & elsewhere]:
        live += moved
        taken = [factor for factor in taken if factor not in moved]
        elsewhere |= _names(moved)  # a parameter is in the density or in an expression, not in both
    return taken, live


def exclusive_part(channel: ChannelModel, term: Term) -> sympy.Expr:
    """Return the part of a size that a density takes in."""
    return product(*_parts(channel, term)[0])


def live_factors(channel: ChannelModel, term: Term) -> list[sympy.Expr]:
    """Return the factors of a size that stay expressions."""
    return _parts(channel, term)[1]
