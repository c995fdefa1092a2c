"""The currents of an imported channel, taken apart into the terms of a model file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from channelfit.model.imports.equations import Equations
from channelfit.model.imports.gating import Gate, Gating, RateScheme
from channelfit.model.imports.goldman import Goldman, goldman
from channelfit.model.imports.nodes import (
    ONE,
    ZERO,
    Monomial,
    Node,
    NotPolynomial,
    computed,
    factors,
    joined,
    make,
    name,
    number,
    polynomial,
    replaced,
    times,
)
from channelfit.model.imports.trial import values_of
from channelfit.reading.errors import InputError

#: mV: beyond any voltage, where a current that has no reversal potential is made to have one.
FAR = 1000.0
#: The least ratio to 1 mV beside it of a factor that is 1/0.
_GROWN = 1e6
#: The largest power of a state.
_LARGEST_POWER = 8
_V = frozenset(("v",))
#: mV, at which a file may be 0/0.
_WHOLE = np.arange(-150.0, 101.0)


@dataclass
class CurrentProduct:
    """One product of a current: gates and scheme, and the current of an open channel.

    Attributes:
        name: of the foreign current.
        gates: with their powers, by the name of their state.
        scheme: what is multiplied by them; None where there is none.
        weights: the relative conductance of each of its states that conducts.
        conductance: in the unit of the file; a current per mV.
        reversal: mV.
        rectification: what else the current has of the voltage.
        goldman: of a constant-field current, whose `conductance` is its permeability times z F.
    """

    name: str
    gates: dict[str, tuple[Gate, int]] = field(default_factory=dict)
    scheme: RateScheme | None = None
    weights: dict[str, float] = field(default_factory=dict)
    conductance: Node = ONE
    reversal: Node = ZERO
    rectification: Node | None = None
    goldman: Goldman | None = None

    @property
    def always_open(self) -> bool:
        """True where no gate and no scheme opens or closes the current."""
        return not self.gates and self.scheme is None


def flows(found: Equations, opening: Gating) -> list[CurrentProduct]:
    """Return all that flows, product by product.

    Raises InputError: a current that is no sum of products of gates and occupancies.
    """
    result: list[CurrentProduct] = []
    for current, node in found.currents.items():
        result += _of_one(found, opening, current, node)
    if not result:
        raise found.refusal("every current is 0", next(iter(found.currents)))
    return result


def _of_one(found: Equations, opening: Gating, current: str, node: Node) -> list[CurrentProduct]:
    states = frozenset((*found.states, *opening.dependent))
    node = replaced(found.expanded(node, states), {})
    node = _complemented(_counted(found, node, states), opening)
    known = states | opening.gates.keys()
    try:
        terms = polynomial(node, known)
    except NotPolynomial as error:
        raise found.refusal(
            f"{current} is no sum of products of its states (it has {error.args[0]!r} of them)",
            current,
        ) from None
    unmoved = known - opening.gates.keys() - {s for one in opening.schemes for s in one.states}
    for monomial in terms:
        for state, _ in monomial:
            if state in unmoved:
                raise found.refusal(f"{state} has no equation", state)
    _gates_of_two(opening, terms)
    place = {state: k for k, state in enumerate(found.states)}

    def order(power: tuple[str, int]) -> int:
        return place.get(power[0], len(place))

    grouped: dict[tuple[int, tuple[tuple[str, int], ...]], dict[str, Node]] = {}
    for monomial, coefficient in terms.items():
        if coefficient == ZERO:
            continue
        scheme_states = [(s, n) for s, n in monomial if s not in opening.gates]
        gates = tuple(sorted(((s, n) for s, n in monomial if s in opening.gates), key=order))
        if len(scheme_states) > 1 or any(n > 1 for _, n in scheme_states):
            product = "*".join(f"{s}^{n}" if n > 1 else s for s, n in scheme_states)
            raise found.refusal(f"{current} has the product {product} of occupancies", current)
        state = scheme_states[0][0] if scheme_states else ""
        scheme = opening.scheme_of(state) if state else None
        row = grouped.setdefault((id(scheme) if scheme else 0, gates), {})
        row[state] = coefficient
    result = []
    for (_, gates), row in grouped.items():
        result += _flowing(found, opening, current, gates, row)
    return result


def _counted(found: Equations, node: Node, states: frozenset[str]) -> Node:
    """Return a current with a number in place of a PARAMETER as the power of a state."""
    if node.is_atom or not node.names & states:
        return node
    args = tuple(_counted(found, arg, states) for arg in node.args)
    if node.op == "**" and not args[1].is_number and not args[1].names & states:
        values = values_of(found, {})
        power = float(computed(args[1], values)) if args[1].names <= values.keys() else 0.0
        if power.is_integer() and 0 < power <= _LARGEST_POWER:
            names = ", ".join(sorted(args[1].names))
            found.notes.append(f"the power {names} of a gate is the number {power:g}")
            args = (args[0], number(power))
    return make(node.op, *args)


def _complemented(node: Node, opening: Gating) -> Node:
    """Return a current in which 1 - m, of a gate m, is a gate of its own."""
    if node.is_atom:
        return node
    args = tuple(_complemented(arg, opening) for arg in node.args)
    if node.op == "-" and args[0] == ONE and args[1].op == "name":
        state = args[1].args[0]
        if state in opening.gates:
            shut = f"{state}_shut"
            opening.gates[shut] = opening.gates[state].complement()
            return name(shut)
    return make(node.op, *args)


def _gates_of_two(opening: Gating, terms: dict[Monomial, Node]) -> None:
    """Turn schemes of two states into gates where a current has more than their plain occupancy."""
    for scheme in [one for one in opening.schemes if len(one.states) == 2]:
        own = set(scheme.states)
        plain = all(
            len(monomial) == 1 and monomial[0][1] == 1
            for monomial in terms
            if own & {s for s, _ in monomial}
        )
        if plain:
            continue
        opening.schemes.remove(scheme)
        for state in scheme.states:
            other = next(s for s in scheme.states if s != state)
            opening.gates[state] = Gate(
                {
                    "alpha": scheme.rates.get((other, state), ZERO),
                    "beta": scheme.rates.get((state, other), ZERO),
                }
            )


def _flowing(
    found: Equations,
    opening: Gating,
    current: str,
    gates: tuple[tuple[str, int], ...],
    row: dict[str, Node],
) -> list[CurrentProduct]:
    """Return the terms with the same gates; states with the same drive share one."""
    shares: list[tuple[Node, dict[str, float]]] = []
    for state, coefficient in row.items():
        constant, rest = _share(coefficient)
        for drive, weights in shares:
            if drive == rest and constant * next(iter(weights.values())) > 0:
                weights[state] = constant
                break
        else:
            shares.append((rest, {state: constant}))
    result = []
    for rest, weights in shares:
        one = CurrentProduct(current, {s: (opening.gates[s], n) for s, n in gates})
        if next(iter(weights)):
            one.scheme = opening.scheme_of(next(iter(weights)))
            largest = max(weights.values(), key=abs)
            one.weights = {state: w / largest for state, w in weights.items()}
        else:
            largest = weights[""]
        _drive(found, one, times(number(largest), rest))
        result.append(one)
    return result


def _share(node: Node) -> tuple[float, Node]:
    """Return the number in a product, and the rest of it."""
    rows = factors(node)
    constant = joined([row for row in rows if row[0].is_number])
    return constant.value, joined([row for row in rows if not row[0].is_number])


# --- the drive -----------------------------------------------------------------------------------


def _drive(found: Equations, one: CurrentProduct, drive: Node) -> None:
    """Set conductance, reversal potential and rectification of the current of an open channel."""
    moving = found.dependent(_V)
    rows = factors(drive)
    still = [row for row in rows if not row[0].names & moving]
    other = [row for row in rows if row[0].names & moving]
    field = goldman(found, other)
    if field is not None:
        one.goldman = field
        one.conductance = joined([*still, *factors(field.size)])
        one.rectification = joined(field.rest) if field.rest else None
        return
    for k, (node, under) in enumerate(other):
        line = None if under else linear_in_v(found, node)
        if line is None or line[0] == ZERO:
            continue
        slope, reversal = line
        rest = other[:k] + other[k + 1 :]
        if _is_infinite(found, rest, reversal):
            break  # v/(exp(v) - 1) is to stay together, so that its limit is seen
        one.reversal = reversal
        one.conductance = joined([*still, *factors(slope)])
        one.rectification = joined(rest) if rest else None
        return
    line = linear_in_v(found, joined(other)) if other else None
    if line is not None and line[0] != ZERO:
        one.conductance, one.reversal = joined([*still, *factors(line[0])]), line[1]
        return
    # A current that is no straight line and no constant field: as if it reversed far away.
    if not _is_finite(found, other):
        other = _written_out(found, other)
    one.reversal = number(FAR)
    away = make("-", name("v"), number(FAR))
    one.conductance = joined(still)
    one.rectification = joined([*other, (away, True)])


def _is_finite(found: Equations, rows: list[tuple[Node, bool]]) -> bool:
    """Return whether a product has a value at every whole voltage."""
    values = values_of(found, {"v": _WHOLE})
    node = joined(rows)
    return node.names <= values.keys() and bool(np.isfinite(computed(node, values)).all())


def _written_out(found: Equations, rows: list[tuple[Node, bool]]) -> list[tuple[Node, bool]]:
    """Return factors without definitions that follow the voltage, if they stay short enough."""
    try:
        return factors(found.expanded(joined(rows), _V))
    except InputError:
        return rows


def _is_infinite(found: Equations, rest: list[tuple[Node, bool]], reversal: Node) -> bool:
    """Return whether the other factors of a drive grow without limit where it reverses."""
    values = values_of(found, {})
    if not rest or not reversal.names <= values.keys():
        return False
    v = float(computed(reversal, values)) + np.array([0.0, 1.0, -1.0])
    values = values_of(found, {"v": v})
    node = joined(rest)
    if not node.names <= values.keys():
        return False
    here, above, below = np.broadcast_to(computed(node, values), v.shape)
    return not abs(here) < _GROWN * (abs(above) + abs(below) + 1e-300)


def linear_in_v(found: Equations, node: Node) -> tuple[Node, Node] | None:
    """Return slope and root of a straight line in v; None for other expressions."""
    try:
        node = found.expanded(node, _V)
    except InputError:  # too long; what is no line that can be seen is a rectification
        return None
    if node.op == "-" and node.args[0] == name("v") and "v" not in node.args[1].names:
        return ONE, node.args[1]
    if node.op == "-" and node.args[1] == name("v") and "v" not in node.args[0].names:
        return number(-1.0), node.args[0]
    try:
        terms = polynomial(node, _V)
    except NotPolynomial:
        return None
    if not terms.keys() <= {(), (("v", 1),)}:
        return None
    slope = terms.get((("v", 1),), ZERO)
    if slope == ZERO:
        return slope, ZERO
    return slope, joined([(make("neg", terms.get((), ZERO)), False), (slope, True)])
