"""Readers of the currents in a model file: `current` and `leak`, or several `currents`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from channelfit.model.chains import Balance, read_gates, read_scheme
from channelfit.model.channel import Chain, Ion, Term
from channelfit.model.gating import gating_chains, gating_terms
from channelfit.model.scope import Scope, check_word
from channelfit.model.terms import V, moving, parts_of
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.models import MAX_STATES, MOST_CHARGES
from channelfit.reading.keys.shapes import ConstantQuantity
from channelfit.reading.units import Membrane, is_expression, parse_quantity

Definitions = tuple[tuple[str, sympy.Expr], ...]

#: The most symbols, and the most operations inside each other, that a conductance or a reversal
#: potential may have when definitions are put into it.
_LONGEST, _DEEPEST = 1000, 150


@dataclass(frozen=True)
class GatedCurrent:
    """One current of a model file: where its keys stand, and the chains that open it.

    Attributes:
        name: "current", or that under which `currents` has it.
        section: the keys of the current.
        chains: a scheme, gates, or a scheme and the gates by which it is multiplied.
        balance: the cycles still to be checked where rates follow from microscopic reversibility.
        gating: by state the chain of its share of the gating current.
    """

    name: str
    section: Section
    chains: tuple[Chain, ...]
    balance: Balance | None
    gating: Mapping[str, Chain] = field(default_factory=dict)

    @property
    def flows(self) -> bool:
        """True if a current flows through open channels."""
        return not self.gating or bool({"conductance", "permeability"} & set(self.section.given()))

    @property
    def every_chain(self) -> tuple[Chain, ...]:
        """The chains that open it, and those of the gating current; the first is the scheme."""
        gating = list(self.gating.values())
        if gating and not self.flows:
            gating[0] = replace(self.chains[0], conductances=gating[0].conductances)
        return (*(self.chains if self.flows else ()), *gating)


def read_gated_currents(root: Section, scope: Scope, current: Section) -> tuple[GatedCurrent, ...]:
    """Return the currents of a model file, each with the chains that open it.

    Arguments:
        root: the model file.
        scope: its names; those of rates are added to them.
        current: its section `current`, which may be empty beside `currents`.
    """
    if "currents" not in root:
        chains, balance = _chains(root, scope, current)
        if "gating" not in current:
            return (GatedCurrent("current", current, chains, balance),)
        if len(chains) > 1 or chains[0].is_gate:
            raise current.error("is that of a scheme; write gates as states and rates", "gating")
        gating = current.section("gating")
        gating.expect(KEYS["gating"])
        return (GatedCurrent("current", current, chains, balance, gating_chains(gating, *chains)),)
    for key in ("states", "rates", "gates"):
        if key in root:
            raise root.error("each of `currents` has its own; move it into one of them", key)
    sized = {"area", "capacitance"}
    for key in current.given():
        if key not in sized:
            raise current.error("each of `currents` has its own; move it into one of them", key)
    found: list[GatedCurrent] = []
    for name, row in root.rows("currents"):
        check_word(root, name, f"currents.{name}")
        one = Section(row, root.file, root.path(f"currents.{name}"))
        one.expect(KEYS["one current"])
        chains, balance = _chains(one, scope, one)
        found.append(GatedCurrent(name, one, tuple(_renamed(c, name) for c in chains), balance))
    if not found:
        raise root.error("at least one current is needed", "currents")
    names = [state for gated in found for chain in gated.chains for state in chain.states]
    for state in names:
        if names.count(state) > 1:
            raise root.error(f"two currents would both have a state {state}", "currents")
    return tuple(found)


def _chains(
    place: Section, scope: Scope, current: Section
) -> tuple[tuple[Chain, ...], Balance | None]:
    """Return the chains of a scheme, of gates, or of a scheme times gates."""
    if "gates" not in place:
        chain, balance = read_scheme(place, scope, current)
        return (chain,), balance
    if "states" not in place and "rates" not in place:
        if "open" in current:
            raise current.error("gates conduct when all are open; leave `open` out", "open")
        return read_gates(place, scope), None
    scheme, balance = read_scheme(place, scope, current)
    gates = read_gates(place, scope)
    for gate in gates:
        if gate.name in scheme.states:
            raise place.error("a state has this name", f"gates.{gate.name}")
        if gate.instant:
            raise place.error(
                "a gate beside a scheme needs a time constant; write a factor that follows "
                "the voltage at once as `rectification` of the current",
                f"gates.{gate.name}.tau",
            )
    n = len(scheme.states) * math.prod(gate.power + 1 for gate in gates)
    if n > MAX_STATES:
        raise place.error(
            f"the equivalent scheme has {n} states, and {MAX_STATES} are the most", "gates"
        )
    return (scheme, *map(_bounded, gates)), balance


def _bounded(gate: Chain) -> Chain:
    """Return a gate whose occupancy stays in [0, 1]: with an inf above 1 it fails."""
    steps = tuple(replace(t, signed=False) for t in gate.transitions)
    return replace(gate, transitions=steps)


def _renamed(chain: Chain, current: str) -> Chain:
    """Return a chain under names that no other current has: state O of the current ito is ito_O."""
    steps = tuple(
        replace(t, source=f"{current}_{t.source}", target=f"{current}_{t.target}")
        for t in chain.transitions
    )
    name = current if chain.name == "scheme" else f"{current}_{chain.name}"
    states = tuple(f"{current}_{state}" for state in chain.states)
    return replace(chain, name=name, states=states, transitions=steps)


# --- terms of the current ------------------------------------------------------------------------


@dataclass(frozen=True)
class TermReader:
    """A reader of the terms of the current, with what those of one model file share.

    Arguments:
        root: the model file.
        scope: its names, all definitions read.
        definitions: names and expressions, each after those that it uses.
        membrane: its size, for conductances and permeabilities per area or capacitance.
        celsius: the temperature, degC; None where the model has none.
    """

    root: Section
    scope: Scope
    definitions: Definitions
    membrane: Membrane
    celsius: float | None

    def terms(self, gated: Sequence[GatedCurrent]) -> tuple[Term, ...]:
        """Return a term for each of these currents, and one for the leak."""
        found, first = [], 0
        for one in gated:
            n = len(one.chains) * one.flows
            if one.flows:
                found.append(self._term(one.name, one.section, tuple(range(first, first + n))))
            first += n
            if one.gating:
                found += self._gating(one, {s: first + k for k, s in enumerate(one.gating)})
            first += len(one.gating)
        if "leak" in self.root:
            if any(term.name == "leak" for term in found):
                raise self.root.error("one of `currents` has this name", "leak")
            leak = self.root.section("leak")
            leak.expect(KEYS["leak"])
            found.append(self._ohmic("leak", leak, ()))
        return tuple(found)

    def _gating(self, one: GatedCurrent, chains: Mapping[str, int]) -> list[Term]:
        gating = one.section.section("gating")
        gating.expect(KEYS["gating"])
        hidden = moving(self.definitions, self.scope.commanded)

        def charge(key: str, text: object) -> sympy.Expr:
            written = self.scope.parse(gating, f"charges.{key}", text, unmentioned=hidden)
            return self._in_parameters(gating, "charges", written)

        (scheme,), channels = one.chains, self._constant(gating, "channels")
        found = gating_terms(gating, scheme, chains, channels, charge)
        dissolved = moving(self.definitions, self.scope.ligands)
        if any(dissolved & {s.name for s in term.shape.free_symbols} for term in found):
            raise gating.error(
                "the rate of a transition that moves a charge depends on a concentration; a "
                "concentration changes rates alone",
                "charges",
            )
        return found

    def _term(self, name: str, section: Section, chains: tuple[int, ...]) -> Term:
        if "permeability" in section:
            for key in ("conductance", "reversal"):
                if key in section:
                    raise section.error("has no meaning beside a permeability; remove it", key)
            term = self._goldman(name, section, chains)
        elif "ion" in section:
            raise section.error("an ion belongs to a permeability, which is missing", "ion")
        else:
            term = self._ohmic(name, section, chains)
        if "rectification" in section:
            text = section.take("rectification")
            factor = self.scope.parse(section, "rectification", text)
            dissolved = moving(self.definitions, self.scope.ligands)
            if names := sorted(dissolved & {s.name for s in factor.free_symbols}):
                raise section.error(
                    f"depends on {', '.join(names)}; a concentration changes rates alone",
                    "rectification",
                )
            term = replace(term, rectification=factor)
        return term

    def _ohmic(self, name: str, section: Section, chains: tuple[int, ...]) -> Term:
        conductance = self._constant(section, "conductance")
        return Term(name, chains, conductance, self._constant(section, "reversal"))

    def _goldman(self, name: str, section: Section, chains: tuple[int, ...]) -> Term:
        ion = section.section("ion", ...)
        ion.expect(KEYS["ion"])
        if self.celsius is None and "thermal" not in ion:
            raise section.error(
                "a current after Goldman, Hodgkin and Katz depends on the temperature; add it at "
                "the top of the file, as in `temperature: 22 degC`",
                "permeability",
            )
        valence = ion.take("valence")
        whole = isinstance(valence, int) and not isinstance(valence, bool)
        if not whole or not 0 < abs(valence) <= MOST_CHARGES:
            raise ion.error(
                f"a whole number of charges such as 1, 2 or -1 was expected, not {shown(valence)}",
                "valence",
            )
        inside, outside = (self._constant(ion, key) for key in ("inside", "outside"))
        for key, expression in (("inside", inside), ("outside", outside)):
            if expression.is_number and not expression >= 0:
                raise ion.error(f"{float(expression):g} mM is below 0", key)
        thermal = self._constant(ion, "thermal") if "thermal" in ion else None
        if thermal is not None and thermal.is_number and not thermal > 0:
            raise ion.error(f"{float(thermal):g} mV is not above 0", "thermal")
        permeability = self._constant(section, "permeability")
        return Term(
            name, chains, permeability=permeability, ion=Ion(valence, inside, outside, thermal)
        )

    def _constant(self, section: Section, key: str) -> sympy.Expr:
        """Return a quantity (``-100 mV``), or an expression without v."""
        raw, dimension = section.take(key, ...), section.shape(key, ConstantQuantity).dimension
        try:
            return sympy.Float(parse_quantity(raw, dimension, self.membrane), 17)
        except InputError as error:
            if not is_expression(raw):
                raise error.at(section.file, section.path(key)) from None
        # Names that depend on the voltage are refused later, and so not offered here.
        hidden = moving(self.definitions, self.scope.commanded)
        written = self.scope.parse(section, key, raw, unmentioned=hidden)
        return self._in_parameters(section, key, written)

    def _in_parameters(self, section: Section, key: str, expression: sympy.Expr) -> sympy.Expr:
        """Return a conductance or another constant with the definitions put into it.

        Raises InputError: it depends on the voltage, or grows too long.
        """
        known = dict(self.definitions)
        size: dict[str, int] = {}
        depth: dict[str, int] = {}
        for name, by in self.definitions:
            depth[name] = _depth(by, depth)
            size[name] = sum(
                size.get(node.name, 1) if node.is_Symbol else 1
                for node in sympy.preorder_traversal(by)
            )
        longest = any(size.get(s.name, 0) > _LONGEST for s in expression.free_symbols)
        if longest or _depth(expression, depth) > _DEEPEST:
            raise section.error("the definitions behind it grow too long when put together", key)
        by_name = {name: moving(self.definitions, (name,)) for name in self.scope.commanded}
        direct = {s.name for s in expression.free_symbols}
        while used := [s for s in expression.free_symbols if s.name in known]:
            expression = expression.xreplace({s: known[s.name] for s in used})
        left = {s.name for s in expression.free_symbols}
        for name in (name for name in self.scope.commanded if name in left):
            through = sorted(direct & by_name[name] - {name})
            by = f" through {', '.join(through)}" if through else ""
            text = shown(section.take(key))
            advice = (
                "; a factor that follows the voltage at once is written as `rectification`"
                if key in ("conductance", "permeability")
                and section.key != "leak"
                and name == V.name
                else ""
            )
            raise section.error(
                f"{text} depends on {name}{by}; the {key} does not change with it{advice}", key
            )
        return expression


def _depth(expression: sympy.Expr, of_names: Mapping[str, int]) -> int:
    """Return how many operations deep an expression is, where names have given depths."""
    found: dict[sympy.Basic, int] = {}
    for part in parts_of(expression):
        inner = max((found[argument] for argument in part.args), default=0)
        found[part] = of_names.get(part.name, 1) if isinstance(part, sympy.Symbol) else inner + 1
    return found[expression]
