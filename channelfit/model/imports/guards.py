"""The `if` around a removable singularity, which a model file does without.

Published files guard x/(exp(x) - 1) by ``if (fabs(x) < 1e-6) ... else ...``. Where such an
expression is 0/0, its limit is taken here anyway: the guard is left out if it says the same.
"""

from __future__ import annotations

import math

from channelfit.model.imports.equations import Equations
from channelfit.model.imports.nodes import Node, make, replaced
from channelfit.model.imports.trial import limit, values_of
from channelfit.reading.errors import InputError

#: The widest guard, in whatever it compares; how far apart both ways may be where they meet.
_WIDEST, _SAME = 1e-3, 1e-9
#: Parts of an expression that is put together to be compared.
_LARGEST = 200


def unguarded(found: Equations, condition: Node, near: Node, far: Node) -> Node | None:
    """What holds beside a guard, written so that its singularity can be seen; None if it is none.

    Arguments:
        found: the definitions so far.
        condition: such as ``abs(x) < 1e-6`` or ``x == 0``.
        near: what holds where the condition does.
        far: what holds else.
    """
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
    except KeyError:  # it depends on a state or on what a variable held before
        return None
    if not math.isfinite(at[0]) or at[0] == at[1]:
        return None
    v = -at[0] / (at[1] - at[0])
    for zero in ({**given, "v": v}, {**given, "v": round(v, 9)}):
        # Only where it is exactly 0/0 is it seen whether the limit is taken.
        if limit(distance, zero) == 0 and far.names <= zero.keys():
            here, there = limit(near, zero), limit(far, zero)
            if math.isfinite(there) and math.isclose(here, there, rel_tol=_SAME, abs_tol=1e-300):
                found.zeros.append(zero["v"])
                return far
    return None


def _distance(condition: Node) -> Node | None:
    """What is near 0 where a guard holds; None where a condition does not look like a guard."""
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
    """An expression with definitions written out. Raises InputError where it becomes long."""
    while node.names & found.definitions.keys():
        node = replaced(
            node, {k: found.definitions[k] for k in node.names & found.definitions.keys()}
        )
        if node.size > _LARGEST:
            raise InputError("too long to be compared")
    return node
