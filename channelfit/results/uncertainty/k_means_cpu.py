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

#: Points side by side, and points of a block, which one thread adds.
LANES, BLOCK = 8, 8192
_INFINITE = float("inf")


def _load(points, weights, first, last, x, w):
    """Spread up to LANES rows, from `first` to before `last`, over lanes.

    x: (coordinates, LANES), where coordinates beyond those of the points are left as they are.
    w: (LANES,), the weights; lanes behind the last row repeat it with weight 0.
    """
    for lane in range(LANES):
        point = points[min(first + lane, last - 1)]
        for j in range(points.shape[1]):
            x[j, lane] = point[j]
    for lane in range(LANES):
        w[lane] = 1.0 if first + lane < last else 0.0
    if weights.shape[0] > 0:
        for lane in range(LANES):
            w[lane] *= weights[min(first + lane, last - 1)]


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
    """Add points to their centers, sums (k, coordinates + 2, LANES).

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
def assignBlocks(points, weights, centers, first, last, found, labels, distances):
    """Assign the points of blocks to their nearest centers, from block `first` to before `last`.

    points: (n, d). weights: (n,), or empty for equal weights. centers: (n_sets, k, coordinates),
    where coordinates are d, made even by zeros. Results, each of which may be empty: found
    (n_blocks, n_sets, k, coordinates + 2), the weighted sum of the points nearest to each center,
    their weight, and their weighted squared distance; labels and distances (n,), the nearest center
    of the last set, and the squared distance to it.
    """
    n_sets, k, wide = centers.shape
    x, w, own = np.zeros((wide, LANES)), np.empty(LANES), np.empty(LANES)
    rest, best, label = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    sums = np.empty((n_sets, k, wide + 2, LANES))
    for block in range(first, last):
        sums[:] = 0.0
        end = min(points.shape[0], (block + 1) * BLOCK)
        for start in range(block * BLOCK, end, LANES):
            _load(points, weights, start, end, x, w)
            for s in range(n_sets):
                _choose(x, centers[s], rest, best, label)
                if found.size > 0:
                    _add(x, w, best, label, sums[s], own)
            for row in range(start, min(end, start + LANES, labels.size)):
                labels[row] = int(label[row - start])
                distances[row] = best[row - start]
        for s in range(n_sets if found.size > 0 else 0):
            for c in range(k):
                for j in range(wide + 2):
                    found[block, s, c, j] = 0.0
                    for lane in range(LANES):
                        found[block, s, c, j] += sums[s, c, j, lane]


# A product and a sum in one instruction would be rounded once, where a processor has it. Unrolled,
# the loops over lanes would leave only those over coordinates to be made vector instructions.
assignBlocks.contract = assignBlocks.unrolled = False


def partial_sums(points: np.ndarray, weights: np.ndarray | None, centers: np.ndarray) -> np.ndarray:
    """Return the sums of the points (n, d) that are nearest to each center.

    Arguments:
        points: of finite numbers.
        weights: (n,); None for equal weights.
        centers: (n_sets, k, d).

    Returns: (n_sets, k, d + 2): the weighted sum of the points, their weight, and their weighted
    squared distance. It does not depend on the number of threads.
    """
    n, d = points.shape
    blocks = np.empty((-(-n // BLOCK), *centers.shape[:2], d + d % 2 + 2))
    _assign(points, weights, centers, blocks, np.empty(0, np.int64), np.empty(0))
    whole = reduce(np.add, blocks, np.zeros(blocks.shape[1:]))
    return np.delete(whole, d, axis=-1) if d % 2 else whole


def nearest(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (n,) int64 of the nearest of centers (k, d), and squared distances (n,).

    Arguments:
        points: (n, d) of finite numbers.
    """
    labels, distances = np.empty(len(points), np.int64), np.empty(len(points))
    _assign(points, None, centers[None], np.empty((0, 0, 0, 0)), labels, distances)
    return labels, distances


def _assign(
    points: np.ndarray, weights: np.ndarray | None, centers: np.ndarray, *results: np.ndarray
) -> None:
    """Run `assignBlocks` on all blocks, which threads share."""
    points = np.ascontiguousarray(points, np.float64)
    counts = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    n_sets, k, d = centers.shape
    even = np.zeros((n_sets, k, d + d % 2))
    even[..., :d] = centers

    def assign(first: int, last: int) -> None:
        assignBlocks(points, counts, even, first, last, *results)

    side_by_side(assign, len(points), BLOCK, usable_cores())
