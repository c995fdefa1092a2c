"""Which ion carries which current of an exported channel, and what a density takes in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import sympy

from channelfit.model.channel import CELSIUS, ChannelModel, Term
from channelfit.model.terms import product
from channelfit.reading.errors import InputError
from channelfit.reading.units import shown

#: Charges of the ions that NEURON's models name; of others NEURON wants to be told.
VALENCES = {"na": 1, "k": 1, "ca": 2, "cl": -1, "mg": 2, "li": 1, "cs": 1, "ba": 2, "h": 1}


def variables(ion: str) -> tuple[str, str, str, str]:
    """NEURON's names of an ion's current, reversal potential, and concentrations in and out."""
    return f"i{ion}", f"e{ion}", f"{ion}i", f"{ion}o"


def ions_of(channel: ChannelModel, told: Sequence[str], file: Path | None) -> dict[str, str]:
    """The ion of each current that has one, by the name of the term."""
    terms = {term.name: term for term in channel.terms if term.chains}
    every = {term.name: term for term in channel.terms}
    found: dict[str, str] = {}
    for text in told:
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
    """Raises InputError for an ion of unknown charge, or of another than the model's."""
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
    """Raises InputError where what the ion decides also decides on rates."""
    if term.ion is None:
        assert term.reversal is not None
        own, what = term.reversal.free_symbols, f"reversal potential (e{ion})"
    else:
        own = term.ion.inside.free_symbols | term.ion.outside.free_symbols
        what = f"concentrations ({ion}i, {ion}o)"
    shared = {s.name for s in own} & _elsewhere(channel, ends=False) - {CELSIUS}
    if shared:
        raise InputError(
            f"the rates, too, depend on {', '.join(sorted(shared))}, from which the {what} of the "
            f"current follow; the cell's {ion} would contradict them. Leave --ion out",
            file,
        )


def _elsewhere(channel: ChannelModel, ends: bool = True) -> set[str]:
    """The parameters on which something else than the size of a current depends.

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
    """The factors of a size that a density takes in, and those that stay expressions.

    A factor stays where it follows the temperature, or a parameter that something else uses too.
    """
    elsewhere = _elsewhere(channel) | {CELSIUS}
    taken: list[sympy.Expr] = []
    live: list[sympy.Expr] = []
    for factor in sympy.Mul.make_args(term.size):
        names = {s.name for s in factor.free_symbols}
        (live if names & elsewhere else taken).append(factor)
    return taken, live


def exclusive_part(channel: ChannelModel, term: Term) -> sympy.Expr:
    """What of a size a density takes in."""
    return product(*_parts(channel, term)[0])


def live_factors(channel: ChannelModel, term: Term) -> list[sympy.Expr]:
    """The factors of a size that stay expressions."""
    return _parts(channel, term)[1]
