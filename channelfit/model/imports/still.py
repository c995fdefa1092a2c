"""States of a foreign model that do not move while the voltage does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from channelfit.model.imports.equations import Equations
from channelfit.model.imports.gating import gate_of
from channelfit.model.imports.nodes import (
    ZERO,
    Node,
    NotPolynomial,
    computed,
    factors,
    name,
    polynomial,
    replaced,
)
from channelfit.model.imports.trial import VOLTAGES, values_of
from channelfit.reading.errors import InputError

Array = npt.NDArray[np.float64]


def without_voltage(found: Equations) -> list[str]:
    """Return states that do not follow the voltage,
    and are no gates of the current by themselves.

    A gate with constant rates that stands alone may stay: it is at its steady state.
    """
    states = frozenset(found.states)
    rhs = {state: found.expanded(node, states | {"v"}) for state, node in found.rhs.items()}
    moved = {state for state, node in rhs.items() if "v" in node.names}
    while more := {s for s, node in rhs.items() if s not in moved and node.names & moved}:
        moved |= more
    used = {other for state, node in rhs.items() for other in node.names & states - {state}}
    return [s for s in rhs if s not in moved and (s in used or not _is_gate(found, s, rhs[s]))]


def keep_still(found: Equations) -> None:
    """Put its steady state in place of each state that never leaves it.

    Published gates of calcium move at a rate that depends on the state itself, as in
    ``if(inf > f and V > -60, 0, (inf - f)/tau)``. No gate of a model file does; but where its limit
    does not depend on the voltage, a gate that begins there stays there.
    """
    states = frozenset(found.states)
    for state in [s for s in found.states if s in found.rhs]:
        rhs = found.expanded(found.rhs[state], states)
        if _is_linear(state, rhs):
            continue
        limit = _common_limit(state, rhs)
        if limit is None or found.expanded(limit, states | {"v"}).names & (states | {"v"}):
            continue
        del found.states[state], found.rhs[state]
        found.steady.discard(state)
        found.definitions = _before_use(found, state, limit)
        found.still.append(state)
        found.notes.append(
            f"{state} stays at its steady state, which does not depend on the voltage"
        )


def leave_out_empty(found: Equations, initial: Mapping[str, float]) -> None:
    """Leave out states that are empty and stay so, since the rates to them are 0 in the file.

    Published schemes have states in which a drug is bound, beside a concentration of 0. Where the
    rates from them are 0 as well, no steady state says how many channels are in them.
    """
    if not found.states:
        return
    nothing = dict.fromkeys(found.states, 0.0)
    at_nothing = _rates(found, nothing)
    full = {s for s in found.states if initial.get(s, 1.0) != 0 or np.any(at_nothing[s] != 0)}
    ways = {}
    for source in found.states:
        rates = _rates(found, {**nothing, source: 1.0})
        ways[source] = {s for s in found.states if np.any(rates[s] != at_nothing[s])}
    while more := {s for source in full for s in ways[source]} - full:
        full |= more
    empty = [s for s in found.states if s not in full and s in found.rhs]
    for state in empty:
        del found.states[state], found.rhs[state]
        found.steady.discard(state)
    if empty:
        by = dict.fromkeys(empty, ZERO)
        for nodes in (found.definitions, found.rhs, found.currents):
            for key, node in list(nodes.items()):
                nodes[key] = replaced(node, by)
                if nodes is found.definitions and nodes[key] == ZERO:
                    by[key] = ZERO
        found.notes.append(
            f"left out, since no rate of the file's values leads to them: {', '.join(empty)}"
        )


def _rates(found: Equations, states: Mapping[str, float]) -> dict[str, Array]:
    """Return the derivatives of states at `VOLTAGES`."""
    values = values_of(found, {"v": VOLTAGES, **states})
    return {s: np.asarray(computed(node, values)) for s, node in found.rhs.items()}


def _is_gate(found: Equations, state: str, rhs: Node) -> bool:
    try:
        gate_of(found, state, rhs)
    except InputError:
        return False
    return not rhs.names & (found.states.keys() - {state})


def _is_linear(state: str, rhs: Node) -> bool:
    try:
        return polynomial(rhs, frozenset((state,))).keys() <= {(), ((state, 1),)}
    except NotPolynomial:
        return False


def _common_limit(state: str, rhs: Node) -> Node | None:
    """Return the value at which a derivative is 0 whatever else holds; None where none is seen."""
    limits: list[Node] = []
    for branch in _branches(rhs):
        inner = [node for node, under in factors(branch) if not under and node.op == "-"]
        for node in inner:
            left, right = node.args
            if right == name(state) and state not in left.names:
                limits.append(left)
                break
            if left == name(state) and state not in right.names:
                limits.append(right)
                break
        else:
            return None
    return limits[0] if limits and all(limit == limits[0] for limit in limits) else None


def _branches(node: Node) -> list[Node]:
    """Return the expression in each of its cases, without cases in which it is 0."""
    if node.op == "if":
        return [branch for arg in node.args[1:] for branch in _branches(arg)]
    return [] if node.is_number and node.value == 0 else [node]


def _before_use(found: Equations, state: str, limit: Node) -> dict[str, Node]:
    """Return the definitions with one more, which stands behind those on which it depends."""
    needed = set(found.used([limit]))
    first = {key: node for key, node in found.definitions.items() if key in needed}
    rest = {key: node for key, node in found.definitions.items() if key not in needed}
    return {**first, state: limit, **rest}
