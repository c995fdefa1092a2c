# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""k-means on the processor: compiled sums of blocks of points, shared among its cores.

Points are taken `LANES` at a time, side by side: LLVM makes vector instructions of the loops over
them. Coordinates are taken two at a time, an odd last one together with zeros. The points of a
block are added lane by lane, then the lanes, then the blocks, always in the same order; products
and sums are rounded one by one. So the sums depend neither on how many threads there are nor on
what instructions a processor has.
"""

from __future__ import annotations

import numpy as np

from channelfit.scoring.machine.machine_code import kernel

#: Points side by side; points that lie in the first cache at once; points whose sums are one block,
#: which one thread adds.
LANES, _TILE, BLOCK = 8, 64, 8192
_INFINITE = float("inf")


def _load(points, weights, first, last, x, w):
    """Spread rows from `first` to before `last` over groups of lanes.

    x: (groups, coordinates, LANES), of which a coordinate beyond those of the points stays as it
    is. w: (groups, LANES), the weights; rows behind the last one repeat it with weight 0.

    Returns: the number of groups that were filled.
    """
    n_groups = (last - first + LANES - 1) // LANES
    for g in range(n_groups):
        begin = first + g * LANES
        for lane in range(LANES):
            point = points[min(begin + lane, last - 1)]
            for j in range(points.shape[1]):
                x[g, j, lane] = point[j]
        for lane in range(LANES):
            w[g, lane] = 1.0 if begin + lane < last else 0.0
        if weights.shape[0] > 0:
            for lane in range(LANES):
                w[g, lane] *= weights[min(begin + lane, last - 1)]
    return n_groups


def _choose(x, centers, rest, best, label):
    """The nearest of the centers (k, coordinates), the first of equally near ones.

    x: (coordinates, LANES). best, label: (LANES,), its squared distance and its number.
    """
    for lane in range(LANES):
        best[lane] = _INFINITE
        label[lane] = 0.0
        rest[lane] = 0.0
    for c in range(centers.shape[0]):
        center, number = centers[c], float(c)
        if x.shape[0] > 2:
            for lane in range(LANES):
                rest[lane] = 0.0
            for j in range(2, x.shape[0], 2):
                for lane in range(LANES):
                    one, other = x[j, lane] - center[j], x[j + 1, lane] - center[j + 1]
                    rest[lane] += one * one + other * other
        for lane in range(LANES):
            one, other = x[0, lane] - center[0], x[1, lane] - center[1]
            distance = one * one + other * other + rest[lane]
            nearer = distance < best[lane]
            best[lane] = distance if nearer else best[lane]
            label[lane] = number if nearer else label[lane]


def _add_to_all(x, w, label, sums, own):
    """Add a group of points to its centers, sums (k, coordinates + 1, LANES).

    Each center takes all lanes, those of other centers with weight 0.
    """
    wide = x.shape[0]
    for c in range(sums.shape[0]):
        number, mine = float(c), sums[c]
        for lane in range(LANES):
            own[lane] = w[lane] if label[lane] == number else 0.0
            mine[wide, lane] += own[lane]
        for j in range(0, wide, 2):
            for lane in range(LANES):
                mine[j, lane] += own[lane] * x[j, lane]
                mine[j + 1, lane] += own[lane] * x[j + 1, lane]


def _add_to_own(x, w, label, sums):
    """Do the same lane by lane, which takes less time where there are more centers than lanes."""
    wide = x.shape[0]
    for lane in range(LANES):
        mine = sums[int(label[lane])]
        mine[wide, lane] += w[lane]
        for j in range(wide):
            mine[j, lane] += w[lane] * x[j, lane]


@kernel
def addBlocks(points, weights, centers, first, last, found, inertia):
    """The sums of blocks of points, from block `first` to before `last`.

    points: (n, d). weights: (n,), or empty where all points count alike. centers: (n_sets, k,
    coordinates), where coordinates are d, made even by zeros. found: (n_blocks, n_sets, k,
    coordinates + 1), the weighted sum of the points nearest to each center, and their weight.
    inertia: (n_blocks, n_sets).
    """
    n_sets, k, wide = centers.shape
    x, w = np.zeros((_TILE // LANES, wide, LANES)), np.empty((_TILE // LANES, LANES))
    sums, costs = np.empty((n_sets, k, wide + 1, LANES)), np.empty((n_sets, LANES))
    rest, best, label, own = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for block in range(first, last):
        sums[:] = 0.0
        costs[:] = 0.0
        end = min(points.shape[0], (block + 1) * BLOCK)
        for start in range(block * BLOCK, end, _TILE):
            n_groups = _load(points, weights, start, min(end, start + _TILE), x, w)
            for s in range(n_sets):
                cost = costs[s]
                for g in range(n_groups):
                    some, counts = x[g], w[g]
                    _choose(some, centers[s], rest, best, label)
                    for lane in range(LANES):
                        cost[lane] += counts[lane] * best[lane]
                    if k <= LANES:
                        _add_to_all(some, counts, label, sums[s], own)
                    else:
                        _add_to_own(some, counts, label, sums[s])
        for s in range(n_sets):
            inertia[block, s] = 0.0
            for lane in range(LANES):
                inertia[block, s] += costs[s, lane]
            for c in range(k):
                for j in range(wide + 1):
                    found[block, s, c, j] = 0.0
                    for lane in range(LANES):
                        found[block, s, c, j] += sums[s, c, j, lane]


@kernel
def labelBlocks(points, centers, first, last, labels, distances):
    """The nearest of centers (k, coordinates) to the points of blocks, and the squared distance."""
    wide = centers.shape[1]
    x, w = np.zeros((_TILE // LANES, wide, LANES)), np.empty((_TILE // LANES, LANES))
    rest, best, label = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    end = min(points.shape[0], last * BLOCK)
    for start in range(first * BLOCK, end, _TILE):
        stop = min(end, start + _TILE)
        n_groups = _load(points, distances[:0], start, stop, x, w)
        for g in range(n_groups):
            _choose(x[g], centers, rest, best, label)
            for lane in range(LANES):
                row = start + g * LANES + lane
                if row < stop:
                    labels[row] = int(label[lane])
                    distances[row] = best[lane]


# A product and a sum in one instruction would be rounded once, where a processor has it. Unrolled,
# the loops over lanes would leave only those over coordinates to be made vector instructions.
for _kernel in (addBlocks, labelBlocks):
    _kernel.contract = _kernel.unrolled = False
