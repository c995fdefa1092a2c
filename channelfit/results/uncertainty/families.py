"""Families of equally good fits: which of many belong together, and which are truly different.

Two fits belong together if a path leads from one to the other on which the cost never rises beyond
what the noise allows. The distance of their parameters says nothing, since a valley may be long and
flat. So the distance between two fits is the height of the barrier between them, and single
linkage joins what lies below a limit: the disconnectivity graph of an energy landscape (Becker and
Karplus 1997, J Chem Phys 106:1495). The number of families is a result, not a setting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.estimate import Estimate
from channelfit.results.uncertainty.k_means import k_means
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.least_squares import refine

#: The number of nearest neighbors of each fit to which barriers are computed.
_NEIGHBORS = 6
#: Points on the straight line between two fits at which the cost is computed.
_LOOKS = 11
#: The most fits that are compared.
_MOST = 200
#: A path between two fits may have up to 2**_BENDS - 1 corners.
_BENDS = 3
#: The most representatives of a family.
_REPRESENTATIVES = 4
#: Digits of unit coordinates to which two fits are the same.
_PLACES = 4


@dataclass(frozen=True, eq=False)
class FitFamily:
    """Fits that belong together.

    Attributes:
        unit: (n_free, n_members), in the unit cube.
        chi_square: (n_members,), above that of the best fit of all.
        medoid: the member with the least summed distance to the others, in the unit cube.
        best: the member of least cost.
    """

    unit: np.ndarray
    chi_square: np.ndarray
    medoid: int
    best: int


def good_fits(
    found: Estimate, n_starts: int = 64, seed: int = 0, n_draws: int = 4096
) -> tuple[np.ndarray, np.ndarray]:
    """Refine points from all over the space.

    The best of many random points are refined, and the fit itself, which comes first.

    Arguments:
        n_starts: points that are refined.
        seed: of the random points.
        n_draws: random points of which the best are taken.

    Returns: refined points (n_free, n) of the unit cube and their cost (n,), pA^2.

    Raises: InputError if no point is found that the constraints allow.
    """
    random = np.random.Generator(np.random.Philox(seed))
    draws = found.objective.sample(max(n_draws, n_starts), random)
    cost = np.asarray(_cost(found, draws))
    chosen = np.argsort(cost, kind="stable")[:n_starts]
    chosen = chosen[np.isfinite(cost[chosen])]
    refined = refine(found.objective, np.hstack([found.unit[:, None], draws[:, chosen]]))
    good = np.isfinite(refined.cost)
    return refined.unit[:, good], refined.cost[good]


def families(found: Estimate, unit: np.ndarray, cost: np.ndarray) -> list[FitFamily]:
    """Sort fits into families, the largest first.

    Only fits in the joint confidence region of all parameters about the best fit are included. A
    barrier between two fits of a family may be twice as high as the limit of that region.

    Arguments:
        unit: (n_free, n) refined points.
        cost: (n,), pA^2.

    Raises: InputError if no fit is good enough.
    """
    tolerance = found.threshold(n=len(found.unit))
    chi_square = np.asarray(found.chi_square(cost))
    chi_square = chi_square - chi_square.min(initial=0.0)
    keep = np.flatnonzero(chi_square <= tolerance)
    if not keep.size:
        raise InputError("none of the fits has a finite cost, so there are no families of them")
    keep = keep[np.argsort(chi_square[keep], kind="stable")[:_MOST]]
    unit, chi_square = unit[:, keep], chi_square[keep]
    if unit.shape[1] == 1:
        return [FitFamily(unit, chi_square, 0, 0)]
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial.distance import pdist, squareform  # loads slowly, and reports do without

    limit = 2 * tolerance
    apart = squareform(pdist(unit.T))
    barriers, tree = _barriers(found, unit, chi_square, apart)
    for a, b in tree:
        if barriers[a, b] > limit:
            bent = _bent(found, unit[:, a], unit[:, b], limit, _BENDS)
            barriers[a, b] = barriers[b, a] = min(barriers[a, b], bent)
    n_families, labels = connected_components(barriers < limit, directed=False)
    groups = [np.flatnonzero(labels == k) for k in range(n_families)]
    groups.sort(key=lambda members: (-len(members), float(chi_square[members].min())))
    return [
        FitFamily(
            unit[:, members],
            chi_square[members],
            int(apart[np.ix_(members, members)].sum(axis=1).argmin()),
            int(chi_square[members].argmin()),
        )
        for members in groups
    ]


def representatives(family: FitFamily) -> list[tuple[int, int]]:
    """Pick up to four fits that represent a family: those nearest to the centers of k-means.

    They show a long valley of equally good fits at several places; the best fit and the medoid show
    one place each.

    Returns: members, each with the number of fits that it represents, the most first; fewer than
    four if fewer fits differ.
    """
    points = family.unit.T
    # refined fits that ended in the same place differ by rounding
    different = len(np.unique(np.round(points, _PLACES), axis=0))
    found = k_means(np.round(points, _PLACES), min(_REPRESENTATIVES, different))
    apart = ((points - found.centers[found.labels]) ** 2).sum(axis=1)
    nearest = [
        int(np.where(found.labels == k, apart, np.inf).argmin()) for k in range(len(found.centers))
    ]
    return list(zip(nearest, found.sizes.tolist(), strict=True))


def _cost(found: Estimate, unit: np.ndarray) -> np.ndarray:
    return to_host(found.objective.score(unit).cost)


def _barriers(
    found: Estimate, unit: np.ndarray, chi_square: np.ndarray, apart: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute barriers (n, n) on straight lines between neighbors, and the tree (n-1, 2) that
    joins all.
    """
    from scipy.sparse.csgraph import minimum_spanning_tree  # as above

    n = unit.shape[1]
    # 1 is added since a distance of 0 would count as no connection
    tree = np.argwhere(minimum_spanning_tree(1.0 + apart - np.eye(n)).toarray() > 0)
    near = np.argsort(apart, axis=1)[:, 1 : _NEIGHBORS + 1]
    rows = np.repeat(np.arange(n), near.shape[1])
    pairs = np.concatenate([tree, np.stack([rows, near.ravel()], axis=1)])
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    heights = _heights(found, unit[:, pairs[:, 0]], unit[:, pairs[:, 1]])
    barriers = np.full((n, n), np.inf)
    np.fill_diagonal(barriers, 0.0)
    heights = np.maximum(heights, np.maximum(chi_square[pairs[:, 0]], chi_square[pairs[:, 1]]))
    barriers[pairs[:, 0], pairs[:, 1]] = barriers[pairs[:, 1], pairs[:, 0]] = heights
    return barriers, tree


def _heights(found: Estimate, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the largest chi square (n,) on straight lines between points (n_free, n)."""
    shares = np.linspace(0, 1, _LOOKS + 2)[1:-1]
    points = start[:, None] + shares[:, None] * (end - start)[:, None]
    cost = _cost(found, points.reshape(len(start), -1)).reshape(_LOOKS, -1)
    return np.asarray(found.chi_square(cost).max(axis=0))


def _bent(found: Estimate, start: np.ndarray, end: np.ndarray, limit: float, bends: int) -> float:
    """Return the barrier on a path that follows a curved valley; its corners are refined midpoints.

    Between two valleys the refined midpoint lies in one of them, and the barrier remains.
    """
    straight = float(_heights(found, start[:, None], end[:, None])[0])
    if straight <= limit or not bends:
        return straight
    middle = refine(found.objective, ((start + end) / 2)[:, None])
    chi_square = float(found.chi_square(middle.cost[0]))
    if not math.isfinite(chi_square) or chi_square > limit:
        return straight
    corner = middle.unit[:, 0]
    first = _bent(found, start, corner, limit, bends - 1)
    if first > limit:
        return straight
    return min(straight, max(first, _bent(found, corner, end, limit, bends - 1)))
