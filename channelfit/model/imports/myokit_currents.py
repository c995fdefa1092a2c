"""The ion currents of a Myokit model: the terms in the derivative of its voltage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: An expression as nested lists: its kind, then its operands.
Tree = Any
_SUMS = ("Plus", "Minus", "PrefixPlus", "PrefixMinus")


def mentioned(tree: Tree) -> set[str]:
    """Return the variables in an expression; none where there is no expression."""
    found: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            if node and node[0] == "Name":
                found.add(node[1])
            else:
                stack += node[1:]
    return found


def through_definitions(variables: dict[str, dict[str, Any]], tree: Tree) -> set[str]:
    """Return the variables on which an expression depends at a moment."""
    found: set[str] = set()
    stack = list(mentioned(tree))
    while stack:
        key = stack.pop()
        if key not in found:
            found.add(key)
            if not variables[key]["state"]:
                stack += mentioned(variables[key]["rhs"])
    return found


def ion_currents(plain: dict[str, Any]) -> list[str]:
    """Return the names of the currents that flow through the membrane,
    in the order of their sum.

    A sum of other currents is taken apart. What depends on an input of the model, such as a
    stimulus, is no ion current; nor is the current to other cells, which a lone cell has as a 0.
    """
    variables = plain["variables"]
    tree = variables[plain["voltage"]]["rhs"]
    if not variables[plain["voltage"]]["state"] or tree is None:
        return []
    return list(dict.fromkeys(_added(plain, tree)))


def _added(plain: dict[str, Any], tree: Tree) -> Iterable[str]:
    """Yield the ion currents in a sum that may be multiplied by, or divided by, constants."""
    variables = plain["variables"]
    kind, *rest = tree
    if kind in _SUMS:
        for part in rest:
            yield from _added(plain, part)
    elif kind in ("Multiply", "Divide"):
        moving = [part for part in rest if _moves(plain, part)]
        if len(moving) == 1 and (kind == "Multiply" or moving[0] is rest[0]):
            yield from _added(plain, moving[0])
    elif kind == "Name":
        row = variables[rest[0]]
        inner = None if row["state"] else _of_currents(plain, row)
        if inner is not None:
            yield from _added(plain, inner)
        elif _moves(plain, tree) and not _from_outside(plain, tree):
            yield rest[0]


def _of_currents(plain: dict[str, Any], row: dict[str, Any]) -> Tree | None:
    """Return the expression of a variable if it is another current, or a sum of some; else None."""
    variables, tree = plain["variables"], row["rhs"]
    parts = _terms(tree)
    for part in parts:
        if part[0] != "Name" or variables[part[1]]["unit"] != row["unit"]:
            return None
        if variables[part[1]]["state"] or part[1] == plain["voltage"]:
            return None
    return tree if any(_moves(plain, part) for part in parts) else None


def _terms(tree: Tree) -> list[Tree]:
    """Return the terms of a sum without their signs and numbers in front."""
    kind, *rest = tree
    if kind in _SUMS:
        return [term for part in rest for term in _terms(part)]
    if kind == "Multiply":
        moving = [part for part in rest if part[0] != "Number"]
        return _terms(moving[0]) if len(moving) == 1 else [tree]
    return [tree]


def _moves(plain: dict[str, Any], tree: Tree) -> bool:
    """Return whether an expression changes while the model runs."""
    variables = plain["variables"]
    used = through_definitions(variables, tree)
    return any(
        key == plain["voltage"] or variables[key]["state"] or variables[key]["binding"]
        for key in used
    )


def _from_outside(plain: dict[str, Any], tree: Tree) -> bool:
    """Return whether an expression depends on an input of the model or on the time."""
    variables = plain["variables"]
    used = through_definitions(variables, tree)
    return plain["time"] in used or any(variables[key]["binding"] for key in used)
