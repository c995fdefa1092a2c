"""The schemes of a size: each once, and no other; against enumerations of labelled graphs."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from channelfit.discovery.schemes import Scheme, Space, read_space
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError

#: Connected graphs of 2 to 7 nodes with one marked, up to isomorphism: OEIS A126100.
ROOTED = {2: 1, 3: 3, 4: 11, 5: 58, 6: 407, 7: 4306}


def connected(n: int, edges: frozenset[frozenset[int]]) -> bool:
    reached, pending = {0}, [0]
    while pending:
        here = pending.pop()
        for edge in edges:
            if here in edge and not edge <= reached:
                (other,) = edge - {here}
                reached.add(other)
                pending.append(other)
    return len(reached) == n


def classes(n: int, n_open: int) -> set[frozenset[frozenset[frozenset[int]]]]:
    """All connected labelled graphs of n nodes, as sets of those that are the same scheme."""
    pairs = [frozenset(pair) for pair in combinations(range(n), 2)]
    orders = [
        (*first, *(k + n_open for k in rest))
        for first in permutations(range(n_open))
        for rest in permutations(range(n - n_open))
    ]
    found, seen = set(), set[frozenset[frozenset[int]]]()
    for size in range(n - 1, len(pairs) + 1):
        for edges in map(frozenset, combinations(pairs, size)):
            if edges in seen or not connected(n, edges):
                continue
            alike = frozenset(frozenset(frozenset(o[k] for k in e) for e in edges) for o in orders)
            seen |= alike
            found.add(alike)
    return found


def edges_of(scheme: Scheme) -> frozenset[frozenset[int]]:
    return frozenset(frozenset(edge) for edge in scheme.edges)


@pytest.mark.parametrize(("n", "n_open"), [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3), (5, 1)])
def test_every_scheme_is_there_once(n: int, n_open: int) -> None:
    """Open states are the first nodes of a labelled graph."""
    schemes, expected = Space((n, n), (n_open, n_open)).schemes, classes(n, n_open)
    met = [next(alike for alike in expected if edges_of(s) in alike) for s in schemes]
    assert len(met) == len(set(met)) == len(expected)
    assert n_open > 1 or len(schemes) == ROOTED[n]
    assert len({scheme.name for scheme in schemes}) == len(schemes)


def test_six_states() -> None:
    assert len(Space((6, 6)).schemes) == ROOTED[6]


@pytest.mark.slow
def test_seven_states() -> None:
    assert len(Space((7, 7)).schemes) == ROOTED[7]


def test_restrictions_leave_the_schemes_that_keep_them() -> None:
    """Counted from all schemes, by their matrices alone."""
    everything = Space((2, 5)).schemes

    def far(scheme: Scheme) -> int:
        """The least power of the matrix with loops by which all states lead to the open one."""
        matrix, power, steps = scheme.joined | np.eye(scheme.n, dtype=bool), np.eye(scheme.n), 0
        while not (power[0] > 0).all():
            power, steps = power @ matrix, steps + 1
        return steps

    for space, keeps in (
        (Space((2, 5), degree=2), lambda s: s.joined.sum(axis=0).max() <= 2),
        (Space((2, 5), cycles=1), lambda s: len(s.edges) <= s.n),
        (Space((2, 5), distance=2), lambda s: far(s) <= 2),
        (Space((2, 5), degree=3, cycles=2, distance=1), lambda s: s.joined[0, 1:].all()
         and s.joined.sum(axis=0).max() <= 3 and len(s.edges) <= s.n + 1),
    ):  # fmt: skip
        assert space.schemes == [scheme for scheme in everything if keeps(scheme)]


def test_a_backbone_is_there_and_subunits_have_it_in_each_place() -> None:
    chain = (("C2", "C1"), ("C1", "O"))
    found = {scheme.text for scheme in Space((4, 4), cycles=0, backbone=chain).schemes}
    assert found == {"C3-C1-O-C2", "C3-C1-O, C2-C1", "C3-C2-C1-O"}
    placed = Space((4, 4), cycles=0, backbone=chain, arm=("C2", "C1", "O")).schemes
    ends = [(s.text, [s.states[k] for k in s.arm]) for s in placed]
    assert sorted(ends) == [
        ("C3-C1-O, C2-C1 (subunits C2-C1-O)", ["C2", "C1", "O"]),
        ("C3-C1-O-C2 (subunits C3-C1-O)", ["C3", "C1", "O"]),
        ("C3-C2-C1-O (subunits C2-C1-O)", ["C2", "C1", "O"]),
    ]
    # with two ends of one kind there are two places for the arm in a chain to either side
    both = (("C1", "O"),)
    assert len(Space((4, 4), cycles=0, backbone=both, arm=("C1", "O")).schemes) == 5


def test_a_scheme_without_a_part_is_one_of_the_smaller_schemes() -> None:
    smaller = set(Space((3, 4), (1, 2)).schemes)
    n_found = 0
    for scheme in Space((4, 5), (1, 2), cycles=2).schemes:
        parts = [scheme.without_state(k) for k in range(scheme.n)]
        parts += [scheme.without_edge(edge) for edge in scheme.edges]
        for one in filter(None, parts):
            parent, states = one
            n_found += 1
            assert parent in smaller or (parent.n == 5 and parent.cycles == scheme.cycles - 1)
            for i, j in parent.edges:
                assert scheme.joined[states[i], states[j]]
            assert [k < scheme.n_open for k in states] == [
                k < parent.n_open for k in range(parent.n)
            ]
    assert n_found > 200


BAD = {
    "states": [1, 8, "3..", "a", [3, 2], [2, 3, 4], True, None, "4..3", {"a": 1}, 2.5],
    "open": [0, "0..2", [1, 9], "x", -1],
    "degree": [0, "two", 1.5],
    "cycles": [-1, "none"],
    "distance": [0, None],
    "backbone": ["C1", "C1 - C1", ["C1 -> O"], ["X - O"], [3], {"C1": "O"}, "C" * 10000],
    "subunits": [True, "yes"],  # without a backbone
}


def test_what_cannot_be_used_is_refused_with_its_key() -> None:
    for key, values in BAD.items():
        for value in values:
            section = Section({key: value}, "fit.yaml", "fit.discover")
            with pytest.raises(InputError) as refused:
                read_space(section)
            assert (refused.value.key or "").startswith(f"fit.discover.{key}"), (key, value)
            assert len(str(refused.value)) < 400
    for broken in (["C2 - C1", "C3 - C1", "C1 - O"], ["O1 - C1", "C1 - O2"], ["C1 - C2"]):
        given = {"states": 5, "open": [1, 2], "backbone": broken, "subunits": True}
        with pytest.raises(InputError, match="needs a backbone that is one way"):
            read_space(Section(given, None, "discover"))
    with pytest.raises(InputError, match="no scheme has all of these"):
        read_space(Section({"states": 5, "degree": 1}, None, "discover"))
