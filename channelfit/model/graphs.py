"""Schemes as graphs: which states lead to each other, and an order that keeps neighbors near.

A scheme has a handful of states. What a library for large graphs would do here takes longer to
import than a fit takes to run.
"""

from __future__ import annotations

import numpy as np


def components(leads: np.ndarray) -> np.ndarray:
    """Numbers (n,) of groups of nodes that lead to each other both ways, in the order of the nodes.

    Arguments:
        leads: (n, n) bool, [i, j] whether an edge leads from i to j. Of a symmetric one the groups
            are those that hang together.
    """
    reach = leads | np.eye(len(leads), dtype=bool)
    while True:
        further = reach @ reach  # of bools: whether there is a way in twice as many edges
        if np.array_equal(further, reach):
            break
        reach = further
    first = (reach & reach.T).argmax(axis=1)
    numbers: np.ndarray = np.unique(first, return_inverse=True)[1]
    return numbers


def narrow_order(joined: np.ndarray) -> np.ndarray:
    """The nodes (n,) in an order in which those with an edge between them stand near each other.

    Outward from a node of few edges, neighbors of few edges first, and all of it backwards
    (Cuthill and McKee 1969, ACM Proc 24:157-172; George 1971).

    Arguments:
        joined: (n, n) bool, symmetric, False on the diagonal.
    """
    degree = joined.sum(axis=1)
    order: list[int] = []
    for seed in np.argsort(degree, kind="stable").tolist():
        place = len(order)
        if seed not in order:
            order.append(seed)
        while place < len(order):
            new = [j for j in np.flatnonzero(joined[order[place]]).tolist() if j not in order]
            order += sorted(new, key=degree.__getitem__)
            place += 1
    return np.array(order[::-1], np.int64)
