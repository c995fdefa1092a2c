"""The `if` around a removable singularity, which a model file does without.

Published files guard x/(exp(x) - 1) by ``if (fabs(x) < 1e-6) ... else ...``. Where such an
expression is 0/0, its limit is taken here anyway: the guard is left out if it says the same.
"""

from __future__ import annotations

import math

import numpy as np

from channelfit.model.imports.equations import Equations, Fault
from channelfit.model.imports.nodes import Node, computed, make, replaced
from channelfit.model.imports.trial import limit, values_of
from channelfit.reading.errors import InputError

#: The widest guard, in whatever it compares; how far apart both ways may be where they meet.
_WIDEST, _SAME = 1e-3, 1e-9
#: mV: a guard that is no wider holds at one voltage for all that can be measured.
_NARROW = 0.01
#: Parts of an expression that is put together to be compared.
_LARGEST = 200


def unguarded(
    found: Equations, condition: Node, near: Node, far: Node, line: int = 0
) -> Node | None:
    """Return the branch beside a guard, so that its singularity can be seen;
    None without a guard.

    Arguments:
        found: the definitions so far.
        condition: such as ``abs(x) < 1e-6`` or ``x == 0``.
        near: what holds where the condition does.
        far: what holds else.
        line: its line, for a note on one that holds something else than the limit.
    """
    if _keeps_away(condition):
        opposite = {">": "<=", ">=": "<", "!=": "=="}[condition.op]
        return unguarded(found, make(opposite, *condition.args), far, near, line)
    distance = _distance(condition)
    if distance is None:
        return None
    try:
        distance, near, far = (_whole(found, node) for node in (distance, near, far))
    except InputError:
        return None
    if "v" not in distance.names:
        return None
    given = values_of(found, {})
    try:
        at = [limit(distance, {**given, "v": v}) for v in (0.0, 1.0)]
    except KeyError:  # it depends on a state or on a variable's value before
        return None
    if not math.isfinite(at[0]) or at[0] == at[1]:
        return None
    v = -at[0] / (at[1] - at[0])
    narrow = _half_width(condition) <= _NARROW * abs(at[1] - at[0])
    for zero in ({**given, "v": v}, {**given, "v": round(v, 9)}):
        # Only where it is exactly 0/0 is it seen whether the limit is taken.
        if limit(distance, zero) == 0 and far.names <= zero.keys():
            here, there = limit(near, zero), limit(far, zero)
            if math.isfinite(there) and math.isclose(here, there, rel_tol=_SAME, abs_tol=1e-300):
                found.zeros.append(zero["v"])
                return far
            plain = narrow and math.isfinite(here) and bool(np.isfinite(computed(far, zero)))
            if plain:  # around no singularity at all
                fault = Fault(zero["v"] + 0.0, here, there, line)  # no -0
                found.zeros.append(fault.voltage)
                found.faults.append(fault)
                found.notes.append(
                    f"line {line}: an `if` gives {here:.5g} at {fault.voltage:g} mV alone, and "
                    f"{there:.5g} holds beside it; that fault of the file is left out"
                )
                return far
    return None


def _keeps_away(condition: Node) -> bool:
    """Return whether a condition holds everywhere but near 0, as in ``abs(x) > 1e-6``."""
    if condition.op == "!=":
        return True
    return condition.op in (">", ">=") and condition.args[0].op == "abs"


def _half_width(condition: Node) -> float:
    """Return how far from 0 the compared value of a guard may be."""
    if condition.op in (">", ">="):
        return _half_width(make("<", *reversed(condition.args)))
    return condition.args[1].value if condition.op in ("<", "<=") else 0.0


def _distance(condition: Node) -> Node | None:
    """Return the quantity that is near 0 where a guard holds; None for another condition."""
    if condition.op == "==":
        left, right = condition.args
        return make("-", left, right) if not left.is_number or not right.is_number else None
    if condition.op in ("<", "<=") and condition.args[0].op == "abs":
        eps = condition.args[1]
        return condition.args[0].args[0] if eps.is_number and 0 < eps.value <= _WIDEST else None
    if condition.op in (">", ">="):
        mirrored = {">": "<", ">=": "<="}[condition.op]
        return _distance(make(mirrored, *reversed(condition.args)))
    return None


def _whole(found: Equations, node: Node) -> Node:
    """Return an expression with definitions written out. Raises InputError for a long one."""
    while node.names & found.definitions.keys():
        node = replaced(
            node, {k: found.definitions[k] for k in node.names & found.definitions.keys()}
        )
        if node.size > _LARGEST:
            raise InputError("too long to be compared")
    return node
