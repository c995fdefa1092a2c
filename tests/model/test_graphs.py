"""Groups of states and orders of them, against SciPy."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from channelfit.model.graphs import components, narrow_order


def graphs() -> list[np.ndarray]:
    """Graphs (n, n) of all sorts, without loops of one."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(300):
        n = draw.integers(1, 14)
        leads = draw.random((n, n)) < draw.choice([0.1, 0.2, 0.4])
        np.fill_diagonal(leads, False)
        found.append(leads)
    return found


def width(joined: np.ndarray, order: np.ndarray) -> int:
    """How far apart neighbors stand at most."""
    place = np.argsort(order)
    return int(np.abs(np.subtract(*place[np.array(np.nonzero(joined))])).max(initial=0))


@pytest.mark.parametrize("strong", [True, False])
def test_groups_are_those_of_scipy(strong):
    for leads in graphs():
        leads = leads if strong else leads | leads.T
        _, expected = connected_components(leads, directed=strong, connection="strong")
        found = components(leads)
        assert np.array_equal(found[:, None] == found, expected[:, None] == expected)
        assert list(dict.fromkeys(found.tolist())) == list(range(found.max() + 1))


def test_neighbors_stand_as_near_as_in_the_order_of_scipy():
    ours = theirs = 0
    for leads in graphs():
        joined = leads | leads.T
        order = narrow_order(joined)
        assert sorted(order) == list(range(len(joined)))
        ours += width(joined, order)
        theirs += width(joined, reverse_cuthill_mckee(csr_array(joined * 1.0), True))
    assert ours <= 1.01 * theirs


def test_a_chain_whose_states_are_named_in_any_order_becomes_a_line():
    draw = np.random.default_rng(1)
    for n in (2, 5, 12):
        mixed = draw.permutation(n)
        joined = np.zeros((n, n), dtype=bool)
        joined[mixed[:-1], mixed[1:]] = joined[mixed[1:], mixed[:-1]] = True
        assert width(joined, narrow_order(joined)) == 1
