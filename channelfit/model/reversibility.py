"""Microscopic reversibility: rates that follow from the others around a cycle.

At equilibrium there is no net flow around a cycle of states: the product of the rates one way
round equals that of the rates the other way round (Kolmogorov 1936; for channels Colquhoun et al.
2004, Biophys J 86:3510). A rate that is written `balance` is the one that makes them equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sympy

from channelfit.model.terms import quotient

#: Source and target of a transition.
Way = tuple[str, str]


@dataclass(frozen=True)
class Cycle:
    """A cycle of states.

    Attributes:
        states: in order, the first again at the end.
        decides: the transition for which the cycle decides the rate.
    """

    states: tuple[str, ...]
    decides: Way

    @property
    def ways(self) -> list[Way]:
        """The transitions of one way round."""
        return _edges(self.states)

    def __str__(self) -> str:
        return " -> ".join(self.states)


def balanced_rates(
    rates: Mapping[Way, sympy.Expr],
    balanced: Sequence[Way],
    refuse: Callable[[Way, str], Exception],
) -> tuple[dict[Way, sympy.Expr], list[Cycle]]:
    """Return the rates that follow from the others, so that every cycle balances.

    Arguments:
        rates: of all transitions; those that follow are symbols.
        balanced: the transitions whose rates are to follow.
        refuse: returns the error for a transition with a message.

    Returns:
        These rates in terms of the others, and the cycles that must balance by themselves for
        these to be the only answer.

    Raises:
        The error that `refuse` returns, for a rate that no cycle decides.
    """
    for a, b in balanced:
        if (b, a) in balanced or (b, a) not in rates:
            why = "is to balance as well" if (b, a) in rates else "is missing"
            raise refuse(
                (a, b), f"balance needs a rate for the way back, but that of {b} -> {a} {why}"
            )
    known = {way: rate for way, rate in rates.items() if way not in balanced}
    found: dict[Way, sympy.Expr] = {}
    while len(found) < len(balanced):
        paths = {w: _path(_both_ways(known), *w) for w in balanced if w not in found}
        solved = [way for way, path in paths.items() if path]
        if not solved:
            raise refuse(next(iter(paths)), _why_undecided(rates, paths))
        way = min(solved, key=lambda w: len(paths[w]))
        steps = _edges(paths[way])
        there = [rates[way[::-1]], *(rates[step] for step in steps)]
        found[way] = quotient(there, [rates[step[::-1]] for step in steps])
        known[way] = rates[way]
    return found, [cycle for way in balanced for cycle in _connected_cycles(_both_ways(known), way)]


def _both_ways(rates: Iterable[Way]) -> dict[str, list[str]]:
    """Return the neighbors of each state to which transitions lead both there and back."""
    known, neighbors = set(rates), dict[str, list[str]]()
    for a, b in rates:
        if (b, a) in known:
            neighbors.setdefault(a, []).append(b)
    return neighbors


def _tree(neighbors: Mapping[str, list[str]], root: str) -> dict[str, str]:
    """Return every state that a root reaches, and the one before it on a shortest way."""
    parents, queue = {root: root}, deque([root])
    while queue:
        here = queue.popleft()
        for there in neighbors.get(here, []):
            if there not in parents:
                parents[there] = here
                queue.append(there)
    return parents


def _path(neighbors: Mapping[str, list[str]], start: str, end: str) -> list[str]:
    """Return the states on a shortest way; empty where there is none."""
    parents = _tree(neighbors, start)
    if end not in parents:
        return []
    path = [end]
    while path[-1] != start:
        path.append(parents[path[-1]])
    return path[::-1]


def _connected_cycles(neighbors: Mapping[str, list[str]], way: Way) -> list[Cycle]:
    """Return a basis of the cycles that are connected with those through a transition.

    Each transition outside a spanning tree closes one cycle. Those cycles that share transitions,
    directly or through others, belong to one two-connected part of the graph, and only they can
    contradict the rate of the transition.
    """
    parents = _tree(neighbors, way[0])
    cycles = []
    for a in neighbors:
        for b in neighbors[a]:
            if a in parents and a < b and parents[a] != b and parents[b] != a:
                cycles.append(_closed(parents, a, b))
    reached, part = {frozenset(way)}, list[list[str]]()
    while True:
        more = [c for c in cycles if c not in part and reached & {frozenset(p) for p in _edges(c)}]
        if not more:
            return [Cycle(tuple(c), way) for c in part]
        part += more
        reached |= {frozenset(pair) for c in more for pair in _edges(c)}


def _edges(states: Sequence[str]) -> list[Way]:
    return list(pairwise(states))


def _closed(parents: Mapping[str, str], a: str, b: str) -> list[str]:
    """Return the cycle that a transition between a and b closes in a tree."""
    ways = []
    for state in (a, b):
        way = [state]
        while parents[way[-1]] != way[-1]:
            way.append(parents[way[-1]])
        ways.append(way)
    meet = next(state for state in ways[0] if state in ways[1])
    up, down = ways[0][: ways[0].index(meet) + 1], ways[1][: ways[1].index(meet)]
    return [*up, *reversed(down), a]


def _why_undecided(rates: Iterable[Way], paths: Mapping[Way, list[str]]) -> str:
    """Return why no cycle decides the first of the rates that are still unknown, in words."""
    way = next(iter(paths))
    others = [other for other in paths if other != way]
    everywhere = _both_ways([w for w in rates if w not in (way, way[::-1])])
    if others and _path(everywhere, *way):
        listed = ", ".join(f"{a} -> {b}" for a, b in others)
        return f"every cycle that it closes holds another rate that is to balance: {listed}"
    return (
        "it closes no cycle of transitions that lead both ways, so nothing decides what would "
        "balance; write its rate"
    )
