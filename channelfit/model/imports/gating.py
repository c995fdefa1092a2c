"""The gates and schemes of an imported channel, from its derivatives, steps and reactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from channelfit.model.imports.equations import Equations, Reaction
from channelfit.model.imports.nodes import (
    ONE,
    ZERO,
    Node,
    NotPolynomial,
    Polynomial,
    add,
    computed,
    factors,
    joined,
    make,
    name,
    number,
    parts,
    polynomial,
    replaced,
    times,
)
from channelfit.model.imports.trial import VOLTAGES, same_values, values_of
from channelfit.reading.errors import InputError


@dataclass
class Gate:
    """A gate: `inf` and `tau`, or `alpha` and `beta`, by the keys of a model file."""

    keys: dict[str, Node]

    @property
    def limit(self) -> Node:
        """The steady state."""
        if "inf" in self.keys:
            return self.keys["inf"]
        alpha, beta = self.keys["alpha"], self.keys["beta"]
        return make("/", alpha, make("+", alpha, beta))

    def complement(self) -> Gate:
        """Return the gate that is open where this one is closed."""
        if "inf" in self.keys:
            return Gate({"inf": make("-", ONE, self.keys["inf"]), "tau": self.keys["tau"]})
        return Gate({"alpha": self.keys["beta"], "beta": self.keys["alpha"]})


@dataclass
class RateScheme:
    """States and the rates between them, 1/ms."""

    states: list[str]
    rates: dict[tuple[str, str], Node] = field(default_factory=dict)


@dataclass
class Gating:
    """All that opens, and which of it each state belongs to.

    Attributes:
        gates: by the name of their state.
        schemes: each with its states.
        dependent: a state that is 1 less the sum of others, by name, and that expression.
    """

    gates: dict[str, Gate] = field(default_factory=dict)
    schemes: list[RateScheme] = field(default_factory=list)
    dependent: dict[str, Node] = field(default_factory=dict)

    def scheme_of(self, state: str) -> RateScheme | None:
        """Return the scheme that a state belongs to; None for a gate."""
        return next((scheme for scheme in self.schemes if state in scheme.states), None)


def gating(found: Equations) -> Gating:
    """Return gates and schemes that equations describe.

    Raises InputError: equations that are not linear in their states, or none at all for a state.
    """
    states = frozenset(found.states)
    result = Gating()
    rhs = {key: found.expanded(node, states) for key, node in found.rhs.items()}
    for group in _groups(found, rhs):
        reactions = [r for r in found.reactions if r.source in group or r.target in group]
        if reactions and any(state in rhs for state in group):
            raise found.refusal(f"{group[0]} has a reaction and a derivative of its own", group[0])
        if reactions:
            result.schemes.append(_reacting(found, group, reactions))
        elif len(group) == 1:
            result.gates[group[0]] = gate_of(found, group[0], rhs[group[0]])
        else:
            result.schemes.append(_coupled(found, group, rhs, result))
    return result


def _groups(found: Equations, rhs: dict[str, Node]) -> list[list[str]]:
    """Return the states that depend on each other, in the order of the file."""
    linked: dict[str, set[str]] = {s: {s} for s in found.states}
    pairs = [(r.source, r.target) for r in found.reactions]
    pairs += [(s, other) for s, node in rhs.items() for other in node.names & found.states.keys()]
    for a, b in pairs:
        if linked[a] is not linked[b]:
            merged = linked[a] | linked[b]
            for state in merged:
                linked[state] = merged
    moved = {s for pair in pairs for s in pair} | rhs.keys()
    seen: set[str] = set()
    groups = []
    for state in found.states:
        if state in moved and state not in seen:
            groups.append([s for s in found.states if s in linked[state]])
            seen |= linked[state]
    return groups


def gate_of(found: Equations, state: str, rhs: Node) -> Gate:
    """Return the gate of a derivative: by inf and tau, or by rates, as the file writes it."""
    relaxing = _relaxing(state, rhs) or _by_rates(state, rhs)
    if relaxing is not None:
        return relaxing
    try:
        terms = polynomial(rhs, frozenset((state,)))
    except NotPolynomial:
        terms = {((state, 2),): ONE}
    if not terms.keys() <= {(), ((state, 1),)}:
        raise found.refusal(f"{state}' is not linear in {state}{found.advice}", state)
    slope = terms.get(((state, 1),), ZERO)
    if slope == ZERO:
        raise found.refusal(f"{state}' does not depend on {state}: it never settles", state)
    fall = make("neg", slope)
    return Gate({"inf": make("/", terms.get((), ZERO), fall), "tau": make("/", ONE, fall)})


def _relaxing(state: str, rhs: Node) -> Gate | None:
    """Return inf and tau of (inf - m)/tau, in whatever order its factors stand."""
    rows = factors(rhs)
    moving = [row for row in rows if state in row[0].names]
    if len(moving) != 1 or moving[0][1]:
        return None
    inner, rest = moving[0][0], [row for row in rows if row is not moving[0]]
    if inner.op != "-":
        return None
    left, right = inner.args
    if right == name(state) and state not in left.names:
        inf = left
    elif left == name(state) and state not in right.names:
        inf, rest = right, [*rest, (make("neg", ONE), False)]
    else:
        return None
    return Gate({"inf": inf, "tau": joined([(node, not under) for node, under in rest])})


def _by_rates(state: str, rhs: Node) -> Gate | None:
    """Return alpha and beta of alpha (1 - m) - beta m, in whatever order its terms stand."""
    alpha = beta = ZERO
    for term, negative in _terms(rhs):
        rows = factors(term)
        moving = [row for row in rows if state in row[0].names]
        if len(moving) != 1 or moving[0][1]:
            return None
        rest = joined([row for row in rows if row is not moving[0]])
        if moving[0][0] == make("-", ONE, name(state)) and not negative:
            alpha = add(alpha, rest)
        elif moving[0][0] == name(state) and negative:
            beta = add(beta, rest)
        else:
            return None
    return Gate({"alpha": alpha, "beta": beta})


def _terms(node: Node, negative: bool = False) -> list[tuple[Node, bool]]:
    """Return the terms of a sum, each with whether it is subtracted."""
    if node.op in ("+", "-"):
        left, right = node.args
        return _terms(left, negative) + _terms(right, negative ^ (node.op == "-"))
    if node.op == "neg":
        return _terms(node.args[0], not negative)
    return [(node, negative)]


def _collected(node: Node) -> Node:
    """Return a sum with terms joined that differ in a number alone, which may cancel."""
    sums: dict[Node, float] = {}
    for term, negative in _terms(node):
        rows = factors(term)
        rest = joined([row for row in rows if not row[0].is_number])
        share = joined([row for row in rows if row[0].is_number]).value
        sums[rest] = sums.get(rest, 0.0) + (-share if negative else share)
    result = ZERO
    for rest, share in sums.items():
        term = times(number(abs(share)), rest)
        result = add(result, make("neg", term) if share < 0 else term)
    return result


def _reacting(found: Equations, group: list[str], reactions: list[Reaction]) -> RateScheme:
    """Return the scheme of reactions; rates between the same two states add up."""
    scheme = RateScheme(group)
    moving = found.dependent(frozenset(found.states))
    for reaction in reactions:
        there, back = (reaction.source, reaction.target), (reaction.target, reaction.source)
        if there[0] == there[1]:
            raise found.refusal(f"a reaction of {there[0]} with itself", there[0])
        for way, rate in ((there, reaction.forth), (back, reaction.back)):
            if rate.names & moving:
                raise InputError(
                    f"the rate from {way[0]} to {way[1]} depends on a state",
                    None,
                    f"line {reaction.line}",
                )
            if rate != ZERO:
                scheme.rates[way] = add(scheme.rates[way], rate) if way in scheme.rates else rate
    return scheme


def _coupled(
    found: Equations, group: list[str], rhs: dict[str, Node], result: Gating
) -> RateScheme:
    """Return the scheme of derivatives that are linear in each other.

    What leaves a state and arrives at no other one of them goes to a state that has no derivative:
    1 less the sum of the others.
    """
    matrix = {}
    for state in group:
        try:
            terms = polynomial(rhs[state], frozenset(group))
        except (NotPolynomial, KeyError):
            terms = {((state, 2),): ONE}
        if any(sum(n for _, n in key) > 1 for key in terms):
            message = f"{state}' is not linear in {', '.join(group)}{found.advice}"
            raise found.refusal(message, state)
        matrix[state] = terms
    return _markov(found, group, matrix, result)


def _named_rest(found: Equations, group: list[str], rest: str) -> None:
    """Replace what the file computes as 1 less all other states by the state that is left."""
    target: Polynomial = {(): ONE, **{((state, 1),): make("neg", ONE) for state in group}}
    states = frozenset(group)
    for key in [key for key in found.definitions if key in found.dependent(states)]:
        try:
            same = polynomial(found.expanded(found.definitions[key], states), states) == target
        except NotPolynomial:
            continue
        if same:
            found.bases[rest] = found.bases.get(key, key)
            found.definitions[key] = name(rest)


def _markov(
    found: Equations,
    group: list[str],
    matrix: dict[str, dict[tuple[tuple[str, int], ...], Node]],
    result: Gating,
) -> RateScheme:
    constant = {state: terms.get((), ZERO) for state, terms in matrix.items()}
    closed = all(node == ZERO for node in constant.values())
    scheme = RateScheme(list(group))
    for target in group:
        for source in group:
            if source != target:
                rate = matrix[target].get(((source, 1),), ZERO)
                if not closed:
                    rate = _collected(add(rate, constant[target]))
                    rate = ZERO if same_values(found, rate, ZERO) else rate
                if rate != ZERO:
                    scheme.rates[source, target] = rate
    rest = None
    if not closed:
        rest = next(s for s in (f"rest{k or ''}" for k in range(99)) if s not in found.states)
        scheme.states.append(rest)
        _named_rest(found, group, rest)
        for target in group:
            if constant[target] != ZERO:
                scheme.rates[rest, target] = constant[target]
        total = ONE
        for state in group:
            total = make("-", total, name(state))
        result.dependent[rest] = total
    for source in group:
        staying = add(matrix[source].get(((source, 1),), ZERO), constant[source])
        leaving = _collected(make("neg", staying))
        there = ZERO
        for (a, _), rate in scheme.rates.items():
            if a == source:
                there = add(there, rate)
        if same_values(found, leaving, there):
            continue
        if rest is None:
            raise found.refusal(
                f"what leaves {source} is not what arrives at {', '.join(group)}", source
            )
        scheme.rates[source, rest] = _collected(make("-", leaving, there))
    return scheme


#: Steps, ms, at which expressions are compared, and how far apart they may be.
_STEPS, _SAME = (0.003, 0.006), 1e-9


def exact_step(found: Equations, state: str, step: Node, dt: str) -> Node | None:
    """Return the derivative of a gate of which a file gives the exact step;
    None where it is none.

    Arguments:
        found: the equations.
        state: the name of the gate.
        step: its value after a step, of the value before and of dt.
        dt: the name of the step.
    """
    whole = found.expanded(step, frozenset((state, dt)))
    try:
        terms = polynomial(whole, frozenset((state,)))
    except NotPolynomial:
        return None
    kept, gained = terms.get(((state, 1),)), terms.get(())
    if kept is None or gained is None or len(terms) != 2:
        return None
    limit = joined([row for row in factors(gained) if dt not in row[0].names])
    for part in parts(kept):
        if part.op != "exp" or dt not in part.names:
            continue
        decay = part.args[0]
        pairs = [(kept, part), (gained, make("*", make("-", ONE, part), limit))]
        if _proportional(found, decay, dt) and all(_same(found, *pair, dt) for pair in pairs):
            rate = joined(factors(replaced(decay, {dt: number(-1.0)})))
            return make("*", make("-", limit, name(state)), rate)
    return None


def _values(found: Equations, node: Node, dt: str, step_ms: float) -> Any:
    values = values_of(found, {"v": VOLTAGES, dt: step_ms})
    return np.broadcast_to(computed(node, values), VOLTAGES.shape)


def _proportional(found: Equations, node: Node, dt: str) -> bool:
    """Return whether an expression is proportional to the step."""
    try:
        short, long = (_values(found, node, dt, h) for h in _STEPS)
    except KeyError:
        return False
    return bool(np.allclose(long / short, _STEPS[1] / _STEPS[0], rtol=_SAME, equal_nan=True))


def _same(found: Equations, left: Node, right: Node, dt: str) -> bool:
    """Return whether two expressions have the same values at all of `VOLTAGES`."""
    try:
        pairs = [(_values(found, left, dt, h), _values(found, right, dt, h)) for h in _STEPS]
    except KeyError:
        return False
    return all(np.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True) for a, b in pairs)
