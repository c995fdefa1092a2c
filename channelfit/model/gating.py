"""The current of the charges of a channel itself, which move as it changes its state.

A transition from i to j that moves the charge z_ij outward carries e0 z_ij (p_i k_ij - p_j k_ji) of
each channel (Sigworth 1994, Q Rev Biophys 27:1-40). Summed up over transitions this is a current
of each state in proportion to its occupancy, `Term.displacement` of the voltage at that moment:

    e0 (sum over j of z_ij k_ij - z_ji k_ij).

A term of the current has chains of its own, so that the scheme stands there once for each state
that a charge leaves or enters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sympy

from channelfit.model.chains import ends_of
from channelfit.model.channel import Chain, Term
from channelfit.model.terms import product, sum_of
from channelfit.reading.documents import Section

#: pA of one elementary charge for each channel and ms.
ELEMENTARY_PA_MS = 1.602176634e-4

Way = tuple[str, str]


def gating_chains(gating: Section, scheme: Chain) -> dict[str, Chain]:
    """Return by state the scheme as it stands for that state's share of the gating current.

    Raises InputError: a charge of a transition that the scheme does not have, or has twice.
    """
    ways = {end for way in _ways(gating, scheme).values() for end in (way, way[::-1])}
    charged = {t.source for t in scheme.transitions if (t.source, t.target) in ways}
    return {
        state: replace(
            scheme,
            name=f"gating_{state}",
            states=tuple(f"{other}_{state}" for other in scheme.states),
            transitions=tuple(
                replace(t, source=f"{t.source}_{state}", target=f"{t.target}_{state}")
                for t in scheme.transitions
            ),
            conductances=tuple(float(other == state) for other in scheme.states),
        )
        for state in scheme.states
        if state in charged
    }


def gating_terms(
    gating: Section,
    scheme: Chain,
    chains: Mapping[str, int],
    channels: sympy.Expr,
    charge: Callable[[str, object], sympy.Expr],
) -> list[Term]:
    """Return the terms of the gating current.

    Arguments:
        chains: by state the index of its chain, see `gating_chains`.
        channels: how many there are.
        charge: returns the charge that a text under a key stands for.
    """
    texts, ways = dict(gating.rows("charges")), _ways(gating, scheme)
    charges = {ways[key]: charge(key, text) for key, text in texts.items()}
    found = []
    for state, k in chains.items():
        parts = []
        for t in (t for t in scheme.transitions if t.source == state):
            out, back = charges.get((t.source, t.target)), charges.get((t.target, t.source))
            z = out if back is None else product(sympy.Integer(-1), back)
            if z is not None:
                parts.append(product(sympy.Float(ELEMENTARY_PA_MS * t.multiplicity, 17), z, t.rate))
        displacement = sum_of(*parts)
        found.append(Term(f"gating_{state}", (k,), channels=channels, displacement=displacement))
    return found


def _ways(gating: Section, scheme: Chain) -> dict[str, Way]:
    """Return the ends of the transitions that have charges, by their keys."""
    there: Sequence[Way] = [(t.source, t.target) for t in scheme.transitions]
    found: dict[str, Way] = {}
    for key, _ in gating.rows("charges"):
        way = ends_of(gating, key, list(scheme.states), "charges")
        if way not in there and way[::-1] not in there:
            raise gating.error(f"the scheme has no transition {key}", f"charges.{key}")
        if way in found.values() or way[::-1] in found.values():
            raise gating.error(
                "the charge of this transition is given twice; the way back moves as much inward",
                f"charges.{key}",
            )
        found[key] = way
    if not found:
        raise gating.error("the charge of at least one transition is needed", "charges")
    return found
