"""k-means: points in so many groups that squared distances to the groups' centers are least.

An iteration assigns every point to its nearest center, and moves each center to the mean of its
points (Lloyd 1982, IEEE Trans Inf Theory 28:129). For this it needs *sums* alone: for every center
the weight, the sum and the squared distances of the points nearest to it. Sums of parts of the
points can be computed anywhere, and are added (Li and Fang 1989, Parallel Comput 11:275). They come
from the processor (`k_means_cpu`), from a GPU (`k_means_cuda`), or from the tasks of an executor,
always in an order that follows from the number of points alone. A part that is lost with its
worker is computed again. (Published designs drop it, and go on with the points that are left.)

Initial centers are points drawn with chances that grow with the squared distance to the centers
before (Arthur and Vassilvitskii 2007, SODA 07:1027), not evenly among all points; several starts
are followed at once, and the best is taken. A center that has lost all of its points moves to the
point that is farthest from its own center. The iteration ends when no center moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.k_means_cpu import nearest, partial_sums
from channelfit.results.uncertainty.k_means_cuda import PointsOnGpu
from channelfit.scoring.machine import gpu
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.result_store import Arrays, Key

WAYS = ("auto", "sums", "cuda")
RESTARTS, ITERATIONS = 10, 300
#: Points among which initial centers are drawn, and points from which on a GPU is faster.
_DRAWN_FROM, _FOR_GPU = 100_000, 50_000
#: Numbers in a part, 64 MB: sums of fewer take less time than a worker takes to answer.
_PART = 1 << 23
#: Rows among which different ones are looked for first.
_FIRST_ROWS = 1000
#: Inertias that differ by less than this share are the same; the first of them is taken.
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Clusters:
    """Points in groups, the largest group first; groups of one size by their first coordinates.

    Attributes:
        centers: (k, d).
        labels: (n,) int64, 0 to k - 1; -1 for a point with NaN in it.
        inertia: the sum of the weighted squared distances of the points to their centers.
        iterations: of the start that was taken.
        way: how it was computed, one of WAYS.
    """

    centers: np.ndarray
    labels: np.ndarray
    inertia: float
    iterations: int
    way: str

    @property
    def sizes(self) -> np.ndarray:
        """The number of points in each group, (k,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.centers))


def k_means(
    points: np.ndarray | Path,
    k: int,
    weights: np.ndarray | None = None,
    *,
    seed: int = 0,
    restarts: int = RESTARTS,
    way: str = "auto",
    executor: Executor | None = None,
    iterations: int = ITERATIONS,
) -> Clusters:
    """Sort points into k groups.

    Arguments:
        points: (n, d); those with NaN or inf are left out. Or a file of NumPy (.npy) with them,
            from which the workers of an executor read their rows.
        weights: (n,) above 0; None for equal weights.
        seed: of the initial centers; the same seed gives the same groups in every way.
        restarts: the number of starts.
        way: one of WAYS. "auto": a GPU for very many points where there is no executor, else sums.
        executor: computes sums of parts of the points; None for this process.
        iterations: the most iterations.

    Raises: InputError for less different points than groups, weights that are not above 0, an
    unknown way, and a missing GPU.
    """
    if way not in WAYS:
        raise InputError(f'"{way}" is no way to k-means; there are {", ".join(WAYS)}')
    if k < 1:
        raise InputError(f"{k} groups cannot be made; at least 1")
    whole = _rows(str(points)) if isinstance(points, Path) else np.asarray(points, np.float64)
    given = None if weights is None else np.asarray(weights, np.float64)
    mine, counts, good = _finite(whole, given)
    if counts is not None and not ((counts > 0) & (counts < np.inf)).all():
        raise InputError("weights of k-means must be numbers above 0")
    if len(mine) < k:
        raise InputError(f"{k} groups need as many points, and there are {len(mine)} without NaN")
    if way == "auto":
        for_gpu = executor is None and len(mine) >= _FOR_GPU
        way = "cuda" if for_gpu and gpu.is_available() else "sums"
    if way == "cuda":
        sums_of = PointsOnGpu(mine, counts, k).sums
    elif isinstance(points, Path):
        sums_of = partial(_sums_by_tasks, str(points), given, len(whole), executor)
    else:
        sums_of = partial(_sums_by_tasks, mine, counts, len(mine), executor)
    starts = initial_centers(mine, counts, k, seed, restarts)
    centers, inertia, taken = lloyd(mine, counts, starts, iterations, sums_of)
    found = nearest(mine, centers)[0]
    order = np.lexsort((*np.round(centers.T[::-1], 9), -np.bincount(found, minlength=k)))
    labels = np.full(len(whole), -1, np.int64)
    labels[good] = np.argsort(order)[found]
    return Clusters(centers[order], labels, inertia, taken, way)


def _rows(file: str, rows: slice = slice(None)) -> np.ndarray:
    """Return rows of the points in a file, which is not read whole for some of them.

    Raises: InputError for a file that cannot be read.
    """
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)[rows], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"points for k-means cannot be read: {error}", file) from None


def _finite(
    points: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the points (n, d) without NaN or inf, their weights, and which these are, (n,)."""
    finite = np.isfinite(points)
    if finite.all():
        return points, weights, np.ones(len(points), bool)
    good = reduce(np.logical_and, finite.T)
    return points[good], None if weights is None else weights[good], good


def initial_centers(
    points: np.ndarray, weights: np.ndarray | None, k: int, seed: int, restarts: int
) -> np.ndarray:
    """Draw initial centers (restarts, k, d): points, far from each other rather than near.

    Raises: InputError if fewer than k points differ.
    """
    random = np.random.Generator(np.random.Philox(seed))
    if len(points) > _DRAWN_FROM:
        some = np.sort(random.choice(len(points), _DRAWN_FROM, replace=False))
        if _differ(points[some], k):
            points, weights = points[some], None if weights is None else weights[some]
    found = np.empty((restarts, k, points.shape[1]))
    for centers in found:
        distance = np.ones(len(points))
        for place in range(k):
            chances = np.cumsum(distance if weights is None else weights * distance)
            if not chances[-1] > 0:
                raise InputError(
                    f"{k} groups were asked for, and only {place} points are different"
                )
            at = np.searchsorted(chances, random.random() * chances[-1], side="right")
            centers[place] = points[at]
            away = nearest(points, centers[place : place + 1])[1]
            distance = np.minimum(distance, away) if place else away
    return found


def _differ(points: np.ndarray, k: int) -> bool:
    """Return whether at least k points differ; mostly the first rows do."""
    return any(len(np.unique(some, axis=0)) >= k for some in (points[:_FIRST_ROWS], points))


def lloyd(
    points: np.ndarray,
    weights: np.ndarray | None,
    starts: np.ndarray,
    iterations: int,
    sums_of: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, float, int]:
    """Move the centers of all starts (n_sets, k, d) until none moves.

    Arguments:
        sums_of: computes sums (n_sets, k, d + 2) for sets of centers; see `partial_sums`.

    Returns: centers (k, d) of the best start, its inertia, and its iterations.
    """
    centers, inertia = starts.copy(), np.full(len(starts), np.inf)
    counts, moving = np.zeros(len(starts), int), np.arange(len(starts))
    iteration = 0
    while len(moving):
        before = centers[moving]
        sums = sums_of(before)
        inertia[moving] = sums[..., -1].sum(axis=1)
        if iteration == iterations:
            break
        iteration += 1
        counts[moving] = iteration
        centers[moving] = next_centers(points, weights, before, sums)
        moving = moving[(centers[moving] != before).any(axis=(1, 2))]
    best = int(np.flatnonzero(inertia <= inertia.min() * (1 + _SAME))[0])
    return centers[best], float(inertia[best]), int(counts[best])


def next_centers(
    points: np.ndarray, weights: np.ndarray | None, centers: np.ndarray, sums: np.ndarray
) -> np.ndarray:
    """Return the means (n_sets, k, d) of the points of every center.

    A center without points gets the farthest point, which its own center then does without.

    Arguments:
        points, weights: of finite numbers; see `partial_sums`.
        centers: (n_sets, k, d). sums: (n_sets, k, d + 2), for these.
    """
    total, weight = sums[..., :-2].copy(), sums[..., -2].copy()
    for s in np.flatnonzero((weight == 0).any(axis=1)):
        labels, distances = nearest(points, centers[s])
        far = np.argsort(-distances, kind="stable")[: len(centers[s])]
        empty = np.flatnonzero(weight[s] == 0)
        for k, i in zip(empty, far[distances[far] > 0], strict=False):
            w = 1.0 if weights is None else weights[i]
            total[s, labels[i]] -= w * points[i]
            weight[s, labels[i]] -= w
            total[s, k], weight[s, k] = w * points[i], w
    # a center that can have no point lies with the largest one, where it stays without
    own = np.arange(weight.shape[1])
    place = np.where(weight > 0, own, weight.argmax(axis=1, keepdims=True))
    total = np.take_along_axis(total, place[..., None], axis=1)
    return np.asarray(total / np.take_along_axis(weight, place, axis=1)[..., None])


@dataclass(frozen=True)
class PartialSums:
    """Sums of parts of points as tasks: the key is ("rows", first, last).

    Attributes:
        points: (n, d) finite, or a file of NumPy (.npy), which every worker can read.
        weights: (n,); None for equal weights.
        centers: (n_sets, k, d), the argument of each task.
    """

    points: np.ndarray | str
    weights: np.ndarray | None
    centers: np.ndarray

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `TaskSet`; these results are not stored."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "centers": None}

    def arguments(self, key: Key) -> Arrays:
        """Return the centers."""
        return {"centers": self.centers}

    def compute(self, key: Key, arguments: Arrays | None = None) -> Arrays:
        """Return the sums of the points from `first` to before `last`; see `partial_sums`."""
        rows = slice(int(key[1]), int(key[2]))
        weights = None if self.weights is None else self.weights[rows]
        if isinstance(self.points, str):
            points, weights, _ = _finite(_rows(self.points, rows), weights)
        else:
            points = self.points[rows]
        centers = self.centers if arguments is None else arguments["centers"]
        return {"sums": partial_sums(points, weights, centers)}


def _sums_by_tasks(
    points: np.ndarray | str,
    weights: np.ndarray | None,
    n: int,
    executor: Executor | None,
    centers: np.ndarray,
) -> np.ndarray:
    """Add the sums of all parts, in the order of the parts."""
    step = max(1, _PART // centers.shape[2])
    keys: list[Key] = [("rows", first, min(first + step, n)) for first in range(0, n, step)]
    tasks = PartialSums(points, weights, centers)
    return reduce(np.add, (found["sums"] for _, found in task_results(tasks, keys, executor)))
