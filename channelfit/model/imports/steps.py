"""The exact step of a gate, m = m + (1 - exp(-dt/tau))*(inf - m), as a derivative."""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.model.imports.equations import Equations
from channelfit.model.imports.nodes import (
    ONE,
    Node,
    NotPolynomial,
    computed,
    factors,
    joined,
    make,
    name,
    number,
    parts,
    polynomial,
    replaced,
)
from channelfit.model.imports.trial import VOLTAGES, values_of

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
