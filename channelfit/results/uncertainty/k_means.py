"""k-means: points in so many groups that squared distances to the groups' centers are least.

An iteration assigns every point to its nearest center, and moves each center to the mean of its
points (Lloyd 1982, IEEE Trans Inf Theory 28:129). For this it needs *sums* alone: for every center
the weight, the sum and the squared distances of the points nearest to it. Sums of parts of the
points can be computed anywhere, and are added (Li and Fang 1989, Parallel Comput 11:275). They come
from the processor (`k_means_cpu`), from a GPU (`k_means_cuda`), or from the tasks of an executor,
always in an order that follows from the number of points alone. A part that is lost with its
worker is computed again. (Published designs drop it, and go on with the points that are left.)
scikit-learn is another way to the same groups, up to rounding, because all ways start with the same
centers.

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

WAYS = ("auto", "scikit-learn", "sums", "cuda")
RESTARTS, ITERATIONS = 10, 300
INSTALL = 'python -m pip install "channelfit[sure]"'
_NEEDED = "this way to k-means needs"
#: Points among which initial centers are drawn, and points from which on a GPU is faster.
_DRAWN_FROM, _FOR_GPU = 100_000, 50_000
#: Numbers in a part, 64 MB: sums of fewer take less time than a worker takes to answer.
_PART = 1 << 23
#: Rows among which different ones are looked for first.
_FIRST_ROWS = 1000
#: Inertias that differ by less than this share are the same; the first of them is taken.
_SAME = 1e-9

#: Computes sums (n_sets, k, d + 2) for sets of centers (n_sets, k, d); see `partial_sums`.
Summing = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Points in groups, the largest group first.

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
        found: np.ndarray = np.bincount(self.labels[self.labels >= 0], minlength=len(self.centers))
        return found


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
        way: one of WAYS. "auto": sums if there is an executor, a GPU for very many points, else
            scikit-learn, or sums where that is not installed.
        executor: computes sums of parts of the points; None for this process.
        iterations: the most iterations.

    Raises: InputError for less different points than groups, weights that are not above 0, an
    unknown way, and a missing package or GPU.
    """
    if way not in WAYS:
        raise InputError(f'"{way}" is no way to k-means; there are {", ".join(WAYS)}')
    if k < 1:
        raise InputError(f"{k} groups cannot be made; at least 1")
    whole = _rows(str(points)) if isinstance(points, Path) else np.asarray(points, np.float64)
    good = _finite(whole)
    mine, counts = _chosen_rows(whole, good), None
    if weights is not None:
        counts = _chosen_rows(np.asarray(weights, np.float64), good)
        if not (counts > 0).all() or not np.isfinite(counts).all():
            raise InputError("weights of k-means must be numbers above 0")
    if len(mine) < k:
        raise InputError(f"{k} groups need as many points, and there are {len(mine)} without NaN")
    if way == "auto":
        way = _best_way(len(mine), executor)
    starts = initial_centers(mine, counts, k, seed, restarts)
    if way == "scikit-learn":
        return _ordered(*_by_scikit_learn(mine, counts, starts, iterations), good, way)
    sums: Summing
    if way == "cuda":
        sums = PointsOnGpu(mine, counts, k).sums
    elif isinstance(points, Path):
        sums = partial(_sums_by_tasks, str(points), weights, len(whole), executor)
    else:
        sums = partial(_sums_by_tasks, mine, counts, len(mine), executor)
    found = lloyd(mine, counts, starts, iterations, sums)
    return _ordered(*found, nearest(mine, found[0])[0], good, way)


def _rows(file: str, rows: slice = slice(None)) -> np.ndarray:
    """Return rows of the points in a file, which is not read whole for some of them.

    Raises: InputError for a file that cannot be read.
    """
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)[rows], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"points for k-means cannot be read: {error}", file) from None


def _finite(points: np.ndarray) -> np.ndarray:
    """Return which points (n, d) have neither NaN nor inf, (n,)."""
    finite, good = np.isfinite(points), np.ones(len(points), bool)
    return good if finite.all() else reduce(np.logical_and, finite.T, good)


def _chosen_rows(array: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the chosen rows; the array itself if these are all."""
    return array if chosen.all() else array[chosen]


def _best_way(n: int, executor: Executor | None) -> str:
    if executor is None and n >= _FOR_GPU and gpu.is_available():
        return "cuda"
    try:
        scikit_learn(_NEEDED)
    except InputError:
        return "sums"
    return "sums" if executor is not None else "scikit-learn"


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
            chance = distance if weights is None else weights * distance
            total = chance.sum()
            if not total > 0:
                raise InputError(
                    f"{k} groups were asked for, and only {place} points are different"
                )
            at = int(np.searchsorted(np.cumsum(chance), random.random() * total, side="right"))
            if at == len(points):  # by rounding
                at = int(np.flatnonzero(chance)[-1])
            centers[place] = points[at]
            away = nearest(points, points[at : at + 1])[1]
            distance = np.minimum(distance, away) if place else away
    return found


def _differ(points: np.ndarray, k: int) -> bool:
    """Return whether at least k points differ; mostly the first rows do."""
    return any(len(np.unique(some, axis=0)) >= k for some in (points[:_FIRST_ROWS], points))


# --- iterations by sums ---------------------------------------------------------------------------


def lloyd(
    points: np.ndarray,
    weights: np.ndarray | None,
    starts: np.ndarray,
    iterations: int,
    sums_of: Summing,
) -> tuple[np.ndarray, float, int]:
    """Move the centers of all starts (n_sets, k, d) until none moves.

    Returns: centers (k, d) of the best start, its inertia, and its iterations.
    """
    centers = starts.copy()
    inertia, counts = np.full(len(starts), np.inf), np.zeros(len(starts), int)
    moving = np.arange(len(starts))
    for iteration in range(1, iterations + 1):
        sums = sums_of(centers[moving])
        fresh = next_centers(points, weights, centers[moving], sums)
        inertia[moving], counts[moving] = sums[..., -1].sum(axis=1), iteration
        still = (fresh == centers[moving]).all(axis=(1, 2))
        centers[moving] = fresh
        moving = moving[~still]
        if not len(moving):
            break
    if len(moving):
        inertia[moving] = sums_of(centers[moving])[..., -1].sum(axis=1)
    best = _best(inertia)
    return centers[best], float(inertia[best]), int(counts[best])


def _best(inertia: np.ndarray) -> int:
    return int(np.flatnonzero(inertia <= inertia.min() * (1 + _SAME))[0])


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
    kept = weight > 0
    found: np.ndarray = np.where(
        kept[..., None], total / np.where(kept, weight, 1.0)[..., None], np.nan
    )
    # a center that can have no point lies with another one, where it stays without
    largest = np.take_along_axis(found, weight.argmax(axis=1)[:, None, None], axis=1)
    return np.asarray(np.where(kept[..., None], found, largest))


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
        centers = (self.arguments(key) if arguments is None else arguments)["centers"]
        if not isinstance(self.points, str):
            return {"sums": partial_sums(self.points[rows], weights, centers)}
        points = _rows(self.points, rows)
        good = _finite(points)
        weights = None if weights is None else _chosen_rows(weights, good)
        return {"sums": partial_sums(_chosen_rows(points, good), weights, centers)}


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
    parts = [found["sums"] for _, found in task_results(tasks, keys, executor)]
    return reduce(np.add, parts)


# --- scikit-learn, and the result -----------------------------------------------------------------


def scikit_learn(needed: str) -> Any:
    """Return the module of clusters of scikit-learn, an optional package.

    Arguments:
        needed: the beginning of the message if it is not installed, such as "families need".

    Raises: InputError if it is not installed.
    """
    try:
        import sklearn.cluster
    except ImportError:
        raise InputError(f"{needed} scikit-learn; {INSTALL} installs it") from None
    return sklearn.cluster


def _by_scikit_learn(
    points: np.ndarray, weights: np.ndarray | None, starts: np.ndarray, iterations: int
) -> tuple[np.ndarray, float, int, np.ndarray]:
    """Return centers, inertia and iterations as `lloyd` does, and the labels (n,)."""
    make, k = scikit_learn(_NEEDED).KMeans, starts.shape[1]
    fits = [
        make(k, init=start, n_init=1, max_iter=iterations, tol=0.0, algorithm="lloyd").fit(
            points, sample_weight=weights
        )
        for start in starts
    ]
    best = fits[_best(np.array([fit.inertia_ for fit in fits]))]
    return best.cluster_centers_, float(best.inertia_), int(best.n_iter_), best.labels_


def _ordered(
    centers: np.ndarray,
    inertia: float,
    iterations: int,
    labels: np.ndarray,
    good: np.ndarray,
    way: str,
) -> Clusters:
    """Return the groups, the largest first; groups of one size by their first coordinates."""
    sizes = np.bincount(labels, minlength=len(centers))
    order = np.lexsort((*np.round(centers.T[::-1], 9), -sizes))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    whole = np.full(len(good), -1, np.int64)
    whole[good] = rank[labels]
    return Clusters(centers[order], whole, inertia, iterations, way)
