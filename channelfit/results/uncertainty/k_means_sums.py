"""Partial sums of k-means: what points add to the next centers, on the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce

import numpy as np

from channelfit.results.uncertainty.k_means_kernels import BLOCK, addBlocks, labelBlocks
from channelfit.scoring.machine.threads import Team, usable_cores

#: Shares of the blocks for each core, so that no core waits long for another one.
_SHARES = 4


@dataclass(frozen=True, eq=False)
class Sums:
    """What some points add to the next centers, for each of several sets of centers.

    Attributes:
        weight: (n_sets, k), of the points nearest to each center.
        total: (n_sets, k, d), their weighted sum.
        inertia: (n_sets,).
        far: (n_sets, k, d + 3), points that are farthest from their centers, the farthest first,
            each after its squared distance, its weight and the number of its center; NaN where
            there are less. They serve only where a center has no point, and are NaN elsewhere.
    """

    weight: np.ndarray
    total: np.ndarray
    inertia: np.ndarray
    far: np.ndarray


def partial_sums(points: np.ndarray, weights: np.ndarray | None, centers: np.ndarray) -> Sums:
    """What points (n, d) of finite numbers add to the next centers.

    The sums do not depend on the number of threads.

    Arguments:
        weights: (n,); None where all points count alike.
        centers: (n_sets, k, d).
    """
    points = np.ascontiguousarray(points, np.float64)
    given = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
    even = _even(centers)
    n_sets, k, wide = even.shape
    d, n_blocks = points.shape[1], -(-len(points) // BLOCK)
    blocks, inertia = np.empty((n_blocks, n_sets, k, wide + 1)), np.empty((n_blocks, n_sets))

    def some(first: int, last: int) -> None:
        addBlocks(points, given, even, first, last, blocks, inertia)

    _share(some, n_blocks)
    whole = reduce(np.add, blocks, np.zeros((n_sets, k, wide + 1)))
    weight, total = whole[..., wide], whole[..., :d]
    far = np.full((n_sets, k, d + 3), np.nan)
    for s in np.flatnonzero((weight == 0).any(axis=1)) if len(points) else ():
        labels, distances = nearest(points, centers[s])
        last = np.argsort(-distances, kind="stable")[:k]
        counts = np.ones(len(last)) if weights is None else given[last]
        far[s, : len(last)] = described(distances[last], counts, labels[last], points[last])
    return Sums(weight, total, reduce(np.add, inertia, np.zeros(n_sets)), far)


def nearest(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centers (k, d) that are nearest to points (n, d) of finite numbers.

    Returns: their numbers (n,) int64, and the squared distances (n,).
    """
    points, even = np.ascontiguousarray(points, np.float64), _even(centers)
    labels, distances = np.empty(len(points), np.int64), np.empty(len(points))

    def some(first: int, last: int) -> None:
        labelBlocks(points, even, first, last, labels, distances)

    _share(some, -(-len(points) // BLOCK))
    return labels, distances


def _even(centers: np.ndarray) -> np.ndarray:
    """Centers with an even number of coordinates, as the kernels take them: an odd one gets 0."""
    odd = [(0, 0)] * (centers.ndim - 1) + [(0, centers.shape[-1] % 2)]
    return np.ascontiguousarray(np.pad(centers, odd), np.float64)


def _share(some: Callable[[int, int], None], n_blocks: int) -> None:
    """Call some(first, last) for pieces of the blocks, by all cores."""
    cores = usable_cores()
    step = max(1, -(-n_blocks // (_SHARES * cores)))
    parts = [(first, min(first + step, n_blocks)) for first in range(0, n_blocks, step)]
    _team(cores - 1).share(some, parts)


@cache
def _team(n_helpers: int) -> Team:
    return Team(n_helpers)


def described(
    distances: np.ndarray, weights: np.ndarray, labels: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Points as rows of `Sums.far`."""
    return np.column_stack([distances, weights, labels.astype(np.float64), points])


def next_centers(sums: Sums) -> np.ndarray:
    """The means of the points of every center (n_sets, k, d).

    A center without points gets the farthest point, which its own center then does without.
    """
    total, weight = sums.total.copy(), sums.weight.copy()
    for s in range(len(total)):
        far = sums.far[s]
        far = far[np.isfinite(far[:, 0]) & (far[:, 0] > 0)]
        for k, (_, w, old, *point) in zip(np.flatnonzero(weight[s] == 0), far, strict=False):
            moved = w * np.array(point)
            total[s, int(old)] -= moved
            weight[s, int(old)] -= w
            total[s, k], weight[s, k] = moved, w
    kept = weight > 0
    found: np.ndarray = np.where(
        kept[..., None], total / np.where(kept, weight, 1.0)[..., None], np.nan
    )
    # a center that can have no point lies with another one, where it stays without
    largest = np.take_along_axis(found, weight.argmax(axis=1)[:, None, None], axis=1)
    return np.asarray(np.where(kept[..., None], found, largest))


def added(parts: Sequence[Sums]) -> Sums:
    """The sums of all points from those of their parts, added in the order of the parts."""
    first = parts[0]
    weight, total, inertia = (
        np.add.reduce([getattr(part, name) for part in parts])
        for name in ("weight", "total", "inertia")
    )
    far = np.concatenate([part.far for part in parts], axis=1)
    order = np.argsort(-far[:, :, 0], axis=1, kind="stable")[:, : first.far.shape[1]]
    return Sums(weight, total, inertia, np.take_along_axis(far, order[:, :, None], axis=1))
