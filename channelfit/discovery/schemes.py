"""The schemes of a size: connected graphs of states, some of them open, each once.

Two graphs that differ in the order of their states alone are one scheme; open states stay open. A
connected graph of more than one state has at least two without which it is still connected (the
ends of a longest way), so all schemes of n states follow from those of n - 1 by adding one state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations, pairwise, permutations, product
from typing import Any

import numpy as np

from channelfit.reading.documents import Section
from channelfit.reading.errors import shown
from channelfit.reading.keys import KEYS

#: The most states of a scheme: there are 4,306 of seven, and 72,489 of eight, with one open state.
MOST = 7
Edge = tuple[int, int]


@dataclass(frozen=True)
class Scheme:
    """A graph of states, in an order that isomorphic graphs have in common.

    Attributes:
        n: the number of states.
        n_open: how many are open; they come first.
        edges: pairs of states with transitions both ways, (i, j) with i < j, in order.
        arm: states whose transitions are those of equal subunits, from all shut to open; or none.
    """

    n: int
    n_open: int
    edges: tuple[Edge, ...]
    arm: tuple[int, ...] = ()

    @property
    def code(self) -> int:
        """The edges as bits of a number, which no other scheme of so many states has."""
        pairs = enumerate(combinations(range(self.n), 2))
        return sum(1 << k for k, pair in pairs if pair in self.edges)

    @property
    def name(self) -> str:
        """The numbers of states and of open states, and the code, such as ``4-1-0b``."""
        return f"{self.n}-{self.n_open}-{self.code:02x}"

    @property
    def cycles(self) -> int:
        """How many independent cycles there are."""
        return len(self.edges) - self.n + 1

    @cached_property
    def joined(self) -> np.ndarray:
        """Which states are joined by an edge, (n, n) bool."""
        found = np.zeros((self.n, self.n), bool)
        for i, j in self.edges:
            found[i, j] = found[j, i] = True
        return found

    @cached_property
    def distance(self) -> np.ndarray:
        """How many transitions each state is away from an open one, (n,)."""
        found = np.where(np.arange(self.n) < self.n_open, 0, self.n)
        for _ in range(self.n):
            further = np.where(self.joined, found[:, None] + 1, self.n).min(axis=0)
            found = np.minimum(found, further)
        return found

    @cached_property
    def states(self) -> tuple[str, ...]:
        """The names of the states: O or O1, O2 ..; C1, C2 .. from those near an open state on."""
        shut = sorted(range(self.n_open, self.n), key=lambda k: (self.distance[k], k))
        names = {k: f"C{place}" for place, k in enumerate(shut, 1)}
        opened = ["O"] if self.n_open == 1 else [f"O{k + 1}" for k in range(self.n_open)]
        return (*opened, *(names[k] for k in range(self.n_open, self.n)))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The states as they are drawn: a longest way to an open state, then the others."""
        way = max(self._ways(), key=lambda w: (len(w), w))[::-1]
        return (*way, *(k for k in reversed(range(self.n)) if k not in way))

    def _ways(self) -> Iterator[tuple[int, ...]]:
        """Yield all ways from an open state on that pass no state twice."""
        pending: list[tuple[int, ...]] = [(k,) for k in range(self.n_open)]
        while pending:
            way = pending.pop()
            yield way
            nexts = np.flatnonzero(self.joined[way[-1]]).tolist()
            pending += [(*way, k) for k in nexts if k not in way]

    @property
    def text(self) -> str:
        """The scheme in a line, such as ``C2-C1-O, C3-O``, and the states of subunits behind it."""
        n_way = next((k for k, p in enumerate(pairwise(self.order), 1) if not self.joined[p]), None)
        way = self.order[:n_way]
        drawn = {frozenset(pair) for pair in pairwise(way)}
        rest = [(j, i) for i, j in self.edges if frozenset((i, j)) not in drawn]
        lines = ["-".join(self.states[k] for k in line) for line in (way, *rest)]
        arm = f" (subunits {'-'.join(self.states[k] for k in self.arm)})" if self.arm else ""
        return ", ".join(lines) + arm

    def without_state(self, state: int) -> tuple[Scheme, tuple[int, ...]] | None:
        """Return the scheme without a state, and which state of this one each of its states is.

        None where no open state would be left, or the others would not be connected.
        """
        n_open = self.n_open - (state < self.n_open)
        kept = [k for k in range(self.n) if k != state]
        inner = self.joined[np.ix_(kept, kept)]
        if not n_open or state in self.arm or not _connected(inner):
            return None
        return _of_matrix(inner, n_open, tuple(kept.index(k) for k in self.arm), kept)

    def without_edge(self, edge: Edge) -> tuple[Scheme, tuple[int, ...]] | None:
        """Return the scheme without an edge, as `without_state`."""
        inner = self.joined.copy()
        inner[edge] = inner[edge[::-1]] = False
        along = {frozenset(pair) for pair in pairwise(self.arm)}
        if frozenset(edge) in along or not _connected(inner):
            return None
        return _of_matrix(inner, self.n_open, self.arm, range(self.n))


def _connected(joined: np.ndarray) -> bool:
    reach = joined | np.eye(len(joined), dtype=bool)
    for _ in range(len(joined).bit_length()):
        reach = reach @ reach
    return bool(reach.all())


@cache
def _orders(n: int, n_open: int, kept: tuple[int, ...] = ()) -> np.ndarray:
    """Return all orders (n_orders, n) of states that keep open states first and some in place."""
    parts = []
    for group in (range(n_open), range(n_open, n)):
        free = [k for k in group if k not in kept]
        own = []
        for order in permutations(free):
            left = iter(order)
            own.append([k if k in kept else next(left) for k in group])
        parts.append(own)
    return np.array([a + b for a, b in product(*parts)], dtype=np.intp).reshape(-1, n)


def _of_matrix(
    joined: np.ndarray, n_open: int, arm: tuple[int, ...], labels: Sequence[int]
) -> tuple[Scheme, tuple[int, ...]]:
    """Return the scheme of a matrix (n, n), and the label of each of its states.

    The order is the one with the least code among those that keep open states first, and the
    states of the arm where they are.
    """
    n = len(joined)
    orders = _orders(n, n_open, arm)
    first, second = np.array(list(combinations(range(n), 2)), dtype=np.intp).reshape(-1, 2).T
    bits = joined[orders[:, first], orders[:, second]]
    codes = bits @ (1 << np.arange(len(first), dtype=np.int64))
    best = int(codes.argmin())
    edges = tuple(
        (int(i), int(j)) for i, j, there in zip(first, second, bits[best], strict=True) if there
    )
    return Scheme(n, n_open, edges, arm), tuple(labels[k] for k in orders[best].tolist())


@cache
def _all(n: int, n_open: int, degree: int, cycles: int) -> tuple[Scheme, ...]:
    """Return all schemes with so many states, each state with at most `degree` neighbors."""
    if n == 1:
        return (Scheme(1, 1, ()),) if n_open == 1 else ()
    found: dict[Scheme, None] = {}
    for opens in {n_open, n_open - 1}:
        if not 0 < opens < n:
            continue
        place = n - 1 if opens == n_open else n_open - 1
        others = [k for k in range(n) if k != place]
        for smaller in _all(n - 1, opens, degree, cycles):
            if (whole := smaller.joined.sum(axis=1)).max(initial=0) > degree:
                continue
            for size in range(1, min(degree, cycles - smaller.cycles + 1, n - 1) + 1):
                for neighbors in combinations(range(n - 1), size):
                    if whole[list(neighbors)].max() >= degree:
                        continue
                    joined = np.zeros((n, n), bool)
                    joined[np.ix_(others, others)] = smaller.joined
                    rows = [others[k] for k in neighbors]
                    joined[place, rows] = joined[rows, place] = True
                    found[_of_matrix(joined, n_open, (), range(n))[0]] = None
    return tuple(sorted(found, key=lambda s: (len(s.edges), s.code)))


@dataclass(frozen=True)
class Space:
    """Which schemes are compared.

    Attributes:
        states, opens: the least and the most of all and of open states.
        degree, cycles, distance: the most neighbors of a state, independent cycles, and
            transitions from a state to an open one.
        backbone: edges that must be there, between names; those of open states begin with O.
        arm: names from the end of the backbone to an open state, if its rates are those of equal
            subunits.
    """

    states: tuple[int, int] = (2, 4)
    opens: tuple[int, int] = (1, 1)
    degree: int = MOST
    cycles: int = MOST**2
    distance: int = MOST
    backbone: tuple[tuple[str, str], ...] = ()
    arm: tuple[str, ...] = field(default=())

    @property
    def schemes(self) -> list[Scheme]:
        """All of them, smaller ones and those with fewer transitions first."""
        spans = [range(low, high + 1) for low, high in (self.states, self.opens)]
        found = [
            scheme
            for n, n_open in product(*spans)
            for plain in _all(n, n_open, min(self.degree, MOST), self.cycles)
            if plain.distance.max() <= self.distance
            for scheme in self._with_backbone(plain)
        ]
        return sorted(found, key=lambda s: (s.n, len(s.edges), s.n_open, s.code))

    def _with_backbone(self, scheme: Scheme) -> list[Scheme]:
        """Return the scheme if it has the backbone; with an arm, once for each place of it."""
        if not self.backbone:
            return [scheme]
        names = list(dict.fromkeys([*self.arm[::-1], *(s for pair in self.backbone for s in pair)]))
        opened = [name for name in names if name.startswith("O")]
        shut = [name for name in names if not name.startswith("O")]
        if len(opened) > scheme.n_open or len(shut) > scheme.n - scheme.n_open:
            return []
        place = {name: k for k, name in enumerate(opened)}
        place |= {name: scheme.n_open + k for k, name in enumerate(shut)}
        pairs = np.array([[place[a], place[b]] for a, b in self.backbone], dtype=np.intp)
        orders = _orders(scheme.n, scheme.n_open)
        ends = orders[:, pairs]
        there = orders[scheme.joined[ends[..., 0], ends[..., 1]].all(axis=1)]
        if not self.arm:
            return [scheme] if len(there) else []
        arm = tuple(place[name] for name in self.arm)
        found = (
            _of_matrix(scheme.joined[np.ix_(o, o)], scheme.n_open, arm, range(scheme.n))[0]
            for o in there
        )
        return list(dict.fromkeys(found))


def read_space(section: Section) -> Space:
    """Read which schemes are compared from the section `discover`.

    Raises InputError: anything that cannot be used, and a space without a scheme.
    """
    section.expect(KEYS["discover"])
    limits = {
        key: section.integer(key) for key in ("degree", "cycles", "distance") if key in section
    }
    backbone = tuple(_pair(section, k, text) for k, text in enumerate(section.items("backbone"), 1))
    arm = _arm(section, backbone) if section.flag("subunits") else ()
    spans = {key: _span(section, key) for key in ("states", "open")}
    space = Space(spans["states"], spans["open"], **limits, backbone=backbone, arm=arm)
    if not space.schemes:
        raise section.error("no scheme has all of these properties; loosen one of them")
    return space


def _span(section: Section, key: str) -> tuple[int, int]:
    """Read a whole number, or the least and the most of one: ``[3, 6]`` or ``3..6``."""
    given: Any = section.take(key)
    words = (
        re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*|\s*(\d+)\s*", given)
        if isinstance(given, str)
        else None
    )
    if words is not None:
        given = [int(word) for word in words.groups() if word is not None]
    ends = given if isinstance(given, list | tuple) else [given]
    least = 2 if key == "states" else 1
    whole = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
    if not whole or len(ends) not in (1, 2) or not least <= ends[0] <= ends[-1] <= MOST:
        expected = f"a whole number from {least} to {MOST}, or two such as 3..6, was expected"
        raise section.error(f"{expected}, not {shown(section.take(key))}", key)
    return ends[0], ends[-1]


def _pair(section: Section, number: int, given: object) -> tuple[str, str]:
    """Read one edge of the backbone."""
    words = re.fullmatch(r"\s*([CO]\w*)\s*-\s*([CO]\w*)\s*", str(given))
    if words is None or words[1] == words[2]:
        raise section.error(
            "two states were expected, such as C1 - O, whose names begin with O if they are open, "
            f"else with C; not {shown(given)}",
            f"backbone[{number}]",
        )
    return words[1], words[2]


def _arm(section: Section, backbone: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the backbone as the way from its closed end to its open state."""
    left, way = list(backbone), [name for pair in backbone for name in pair if name[0] == "O"][:1]
    while way and left:
        following = next((pair for pair in left if way[-1] in pair), None)
        if following is None:
            break
        left.remove(following)
        way.append(following[1] if following[0] == way[-1] else following[0])
    if left or len(way) < 2 or len(set(way)) < len(way) or any(n[0] == "O" for n in way[1:]):
        raise section.error(
            "needs a backbone that is one way from a closed state to an open one, such as "
            "[C2 - C1, C1 - O]",
            "subunits",
        )
    return tuple(way[::-1])
