# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""k-means on the processor: compiled sums of blocks of points, shared among its cores.

Points are taken `LANES` at a time, side by side: LLVM makes vector instructions of the loops over
them. Coordinates are taken two at a time, an odd last one together with zeros. The points of a
block are added lane by lane, then the lanes, then the blocks, always in the same order; products
and sums are rounded one by one. So the sums depend neither on the number of threads nor on the
instructions of the processor.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from channelfit.scoring.machine.machine_code import kernel
from channelfit.scoring.machine.threads import side_by_side, usable_cores

#: Points side by side; points that lie in the first cache at once; points of a block, which one
#: thread adds.
LANES, _TILE, BLOCK = 8, 64, 8192
_INFINITE = float("inf")


def _load(points, weights, first, last, x, w):
    """Spread rows from `first` to before `last` over groups of lanes; return the number of groups.

    x: (groups, coordinates, LANES), where coordinates beyond those of the points are left as they
    are. w: (groups, LANES), the weights; rows behind the last one repeat it with weight 0.
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
    """Find the nearest of the centers (k, coordinates), the first of equally near ones.

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


def _add(x, w, best, label, sums, own):
    """Add a group of points to its centers, sums (k, coordinates + 2, LANES).

    Each center takes all lanes, those of other centers with weight 0.
    """
    wide = x.shape[0]
    for c in range(sums.shape[0]):
        number, mine = float(c), sums[c]
        for lane in range(LANES):
            own[lane] = w[lane] if label[lane] == number else 0.0
            mine[wide, lane] += own[lane]
            mine[wide + 1, lane] += own[lane] * best[lane]
        for j in range(0, wide, 2):
            for lane in range(LANES):
                mine[j, lane] += own[lane] * x[j, lane]
                mine[j + 1, lane] += own[lane] * x[j + 1, lane]


@kernel
def addBlocks(points, weights, centers, first, last, found):
    """Compute the sums of blocks of points, from block `first` to before `last`.

    points: (n, d). weights: (n,), or empty for equal weights. centers: (n_sets, k, coordinates),
    where coordinates are d, made even by zeros. found: (n_blocks, n_sets, k, coordinates + 2), the
    weighted sum of the points nearest to each center, their weight, and their weighted squared
    distance.
    """
    n_sets, k, wide = centers.shape
    x, w = np.zeros((_TILE // LANES, wide, LANES)), np.empty((_TILE // LANES, LANES))
    sums, own = np.empty((n_sets, k, wide + 2, LANES)), np.empty(LANES)
    rest, best, label = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for block in range(first, last):
        sums[:] = 0.0
        end = min(points.shape[0], (block + 1) * BLOCK)
        for start in range(block * BLOCK, end, _TILE):
            n_groups = _load(points, weights, start, min(end, start + _TILE), x, w)
            for s in range(n_sets):
                for g in range(n_groups):
                    _choose(x[g], centers[s], rest, best, label)
                    _add(x[g], w[g], best, label, sums[s], own)
        for s in range(n_sets):
            for c in range(k):
                for j in range(wide + 2):
                    found[block, s, c, j] = 0.0
                    for lane in range(LANES):
                        found[block, s, c, j] += sums[s, c, j, lane]


@kernel
def labelBlocks(points, centers, first, last, labels, distances):
    """Find the nearest of centers (k, coordinates) to points of blocks, and squared distances."""
    x, w = np.zeros((1, centers.shape[1], LANES)), np.empty((1, LANES))
    rest, best, label = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for start in range(first * BLOCK, min(points.shape[0], last * BLOCK), LANES):
        stop = min(points.shape[0], start + LANES)
        _load(points, distances[:0], start, stop, x, w)
        _choose(x[0], centers, rest, best, label)
        for row in range(start, stop):
            labels[row] = int(label[row - start])
            distances[row] = best[row - start]


# A product and a sum in one instruction would be rounded once, where a processor has it. Unrolled,
# the loops over lanes would leave only those over coordinates to be made vector instructions.
for _kernel in (addBlocks, labelBlocks):
    _kernel.contract = _kernel.unrolled = False


def partial_sums(points: np.ndarray, weights: np.ndarray | None, centers: np.ndarray) -> np.ndarray:
    """Return the sums of the points (n, d) that are nearest to each center.

    Arguments:
        points: of finite numbers.
        weights: (n,); None for equal weights.
        centers: (n_sets, k, d).

    Returns: (n_sets, k, d + 2): the weighted sum of the points, their weight, and their weighted
    squared distance. It does not depend on the number of threads.
    """
    points, even = np.ascontiguousarray(points, np.float64), _even(centers)
    counts = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    d, (n_sets, k, wide) = points.shape[1], even.shape
    blocks = np.empty((-(-len(points) // BLOCK), n_sets, k, wide + 2))

    def add(first: int, last: int) -> None:
        addBlocks(points, counts, even, first, last, blocks)

    side_by_side(add, len(points), BLOCK, usable_cores())
    whole = reduce(np.add, blocks, np.zeros((n_sets, k, wide + 2)))
    return np.delete(whole, d, axis=-1) if wide > d else whole


def nearest(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (n,) int64 of the nearest of centers (k, d), and squared distances (n,).

    Arguments:
        points: (n, d) of finite numbers.
    """
    points, even = np.ascontiguousarray(points, np.float64), _even(centers)
    labels, distances = np.empty(len(points), np.int64), np.empty(len(points))

    def label(first: int, last: int) -> None:
        labelBlocks(points, even, first, last, labels, distances)

    side_by_side(label, len(points), BLOCK, usable_cores())
    return labels, distances


def _even(centers: np.ndarray) -> np.ndarray:
    """Return centers with an even number of coordinates: a zero is appended to an odd one."""
    odd = [(0, 0)] * (centers.ndim - 1) + [(0, centers.shape[-1] % 2)]
    return np.ascontiguousarray(np.pad(centers, odd), np.float64)
