"""Numerical trials of imported expressions, for questions that algebra does not answer easily."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import parse_expression
from channelfit.model.imports.equations import Equations
from channelfit.model.imports.nodes import COMPARISONS, Node, computed, parts, written
from channelfit.model.singularities import remove_singularities
from channelfit.reading.errors import InputError

Array = npt.NDArray[np.float64]
#: Voltages, mV, at which expressions are compared: none of them is a number that a file would name.
VOLTAGES = np.linspace(-137.231, 97.417, 401)
#: Voltages, mV, far below and far above those at which conditions of files change.
_FAR_MV = np.array([-201.0, -200.0, 200.0, 201.0])


def values_of(found: Equations, at: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of parameters and of all definitions that have one.

    Arguments:
        found: the equations.
        at: of the voltage, the states and whatever else has no value of its own.
    """
    values: dict[str, Any] = {key: given.value for key, given in found.parameters.items()}
    values["celsius"] = 20.0 if found.celsius is None else found.celsius
    values |= at
    for key, node in found.definitions.items():
        if node.names <= values.keys():
            values[key] = computed(node, values)
    return values


def never_seen(found: Equations, key: str, used: Iterable[Node]) -> bool:
    """Return whether a name in conditions changes no value at any of `VOLTAGES`."""
    states = {state: np.full(VOLTAGES.size, 0.5) for state in found.states}
    results = []
    for value in (0.25, 0.75):
        values = values_of(found, {"v": VOLTAGES, **states, key: value})
        known = [computed(node, values) for node in used if node.names <= values.keys()]
        results.append(known)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*results, strict=True))


def limit(node: Node, values: Mapping[str, Any]) -> float:
    """Return the value of an expression, or its limit at 0/0; NaN where there is none."""
    try:
        expression = remove_singularities(parse_expression(written(node), node.names))
    except InputError:
        return float("nan")
    return float(np.asarray(evaluate(expression, values)))


def same_values(found: Equations, left: Node, right: Node) -> bool:
    """Return whether two expressions of v and parameters agree to 1e-9 at all of `VOLTAGES`."""
    values = values_of(found, {"v": VOLTAGES})
    a, b = (np.broadcast_to(computed(node, values), VOLTAGES.shape) for node in (left, right))
    return bool(
        np.allclose(a, b, rtol=1e-9, atol=1e-12 * float(np.nanmax(np.abs(b), initial=1e-3)))
    )


def jumps(found: Equations) -> list[float]:
    """Return voltages, mV, at which a condition of some expression changes, in their order.

    Both sides of a condition are continued as straight lines from far below and from far above, so
    that of ``abs(v + 47) > 0.001`` both ends are found.
    """
    nodes = [*found.definitions.values(), *found.rhs.values(), *found.currents.values()]
    nodes += [rate for r in found.reactions for rate in (r.forth, r.back)]
    conditions = dict.fromkeys(
        part for node in nodes for part in parts(node) if part.op in COMPARISONS
    )
    result: set[float] = set()
    for condition in conditions:
        left, right = (_far_off(found, arg) for arg in condition.args)
        if left is not None and right is not None:
            for v, (here, next_to) in zip(_FAR_MV[::2], (left - right).reshape(2, 2), strict=True):
                if here != next_to:
                    result.add(round(float(v + here / (here - next_to)), 9))
    return sorted(v for v in result if math.isfinite(v))


def _far_off(found: Equations, node: Node) -> Array | None:
    """Return an expression at far voltages; None where it depends on more than v and parameters."""
    values = values_of(found, {"v": _FAR_MV})
    if not node.names <= values.keys():
        return None
    return np.broadcast_to(np.asarray(computed(node, values), dtype=float), _FAR_MV.size)
