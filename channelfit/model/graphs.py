"""Schemes as graphs: which states lead to each other, and an order that keeps neighbors near.

A scheme has few states, and a library for large graphs takes longer to import than a fit to run.
"""

from __future__ import annotations

import numpy as np


def components(leads: np.ndarray) -> np.ndarray:
    """Return for each node the number of its group: nodes that can be reached from each other.

    Arguments:
        leads: (n, n) bool, [i, j] whether an edge leads from i to j.

    Returns: (n,) numbers of groups, counted from 0 in the order of the nodes.
    """
    reach = leads | np.eye(len(leads), dtype=bool)
    while True:
        further = reach @ reach  # of bools: whether there is a way of twice as many edges
        if np.array_equal(further, reach):
            break
        reach = further
    first = (reach & reach.T).argmax(axis=1)
    numbers: np.ndarray = np.unique(first, return_inverse=True)[1]
    return numbers


def narrow_order(joined: np.ndarray) -> np.ndarray:
    """Return the nodes in an order that puts those with an edge between them near each other.

    The order goes outward from a node with few edges, neighbors with few edges first, and is then
    reversed (Cuthill and McKee 1969, ACM Proc 24:157-172; George 1971).

    Arguments:
        joined: (n, n) bool, symmetric, False on the diagonal.

    Returns: (n,) the nodes.
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
