"""k-means: points in so many groups that squared distances to the groups' centers are least.

An iteration gives every point to its nearest center and moves each center to the mean of its points
(Lloyd 1982, IEEE Trans Inf Theory 28:129). What a part of the points adds is its *partial sums*:
for every center the weight and the sum of the points nearest to it. These are added up, so points
may lie in parts, with whoever computes (Li and Fang 1989, Parallel Comput 11:275). Three ways lead
to the same groups, up to rounding, because they begin with the same centers:

* scikit-learn, on the processor,
* partial sums in this process, on the processor (`k_means_sums`) or on a GPU (`k_means_cuda`): they
  are added in an order that the number of points alone decides, so that they are the same each time
* partial sums of parts that others compute, as `pieces`. A part whose worker is lost is computed
  again by another one. (Published designs drop it, and go on with the points that are left.)

Centers begin at points drawn with chances that grow with the squared distance to the centers before
(Arthur and Vassilvitskii 2007, SODA 07:1027), not evenly among all points; several such beginnings
are followed at once, and the best is taken. A center that has lost all of its points goes to the
point that is farthest from its own center. It ends when no center moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.pieces.kept import Arrays, Key
from channelfit.pieces.work import Doer, pieces_done
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.k_means_cuda import OnGpu
from channelfit.results.uncertainty.k_means_sums import (
    Sums,
    added,
    nearest,
    next_centers,
    partial_sums,
)
from channelfit.scoring.machine import gpu

WAYS = ("auto", "scikit-learn", "sums", "cuda", "pieces")
RESTARTS, ITERATIONS = 10, 300
#: Points among which beginnings are drawn, and points from which on a GPU pays.
_DRAWN_FROM, _FOR_GPU = 100_000, 50_000
#: Numbers in a part, 64 MB: fewer are added sooner than a worker is asked for them.
_PART = 1 << 23
#: Rows among which different ones are looked for first.
_FIRST_ROWS = 1000
#: Inertias that differ by less than this share are the same; the first of them is taken.
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Clusters:
    """Points in groups, the largest group first.

    Attributes:
        centers: (k, d).
        labels: (n,) int64, 0 to k - 1; -1 for a point with NaN in it.
        inertia: the sum of the weighted squared distances of the points to their centers.
        iterations: of the beginning that was taken.
        way: how it was computed, one of WAYS.
    """

    centers: np.ndarray
    labels: np.ndarray
    inertia: float
    iterations: int
    way: str

    @property
    def sizes(self) -> np.ndarray:
        """How many points each group has, (k,)."""
        found: np.ndarray = np.bincount(self.labels[self.labels >= 0], minlength=len(self.centers))
        return found


@dataclass(frozen=True)
class Part:
    """Partial sums as a work for others: its keys are ("rows", first, last).

    Attributes:
        points: (n, d), or a file of NumPy (.npy) with such an array, which every worker can read.
        weights: (n,); None where all points count alike.
        centers: (n_sets, k, d), told with each piece.
        labels: whether numbers of the nearest centers of the first set are wanted instead of sums.
    """

    points: np.ndarray | str
    weights: np.ndarray | None
    centers: np.ndarray
    labels: bool = False

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that the sums depend on, by name, so that kept sums are known again."""
        return {
            "work": "partial sums of k-means",
            "points": _named(self.points),
            "weights": "" if self.weights is None else _named(self.weights),
            "centers": _named(self.centers),
            "labels": self.labels,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "centers"}

    def told(self, key: Key) -> Arrays:
        """What a piece needs besides its key: the centers (k, d)."""
        return {"centers": self.centers}

    def do(self, key: Key, told: Arrays | None = None) -> Arrays:
        """The sums, or the labels, of the points from `first` to before `last`."""
        _, first, last = key
        centers = (self.told(key) if told is None else told)["centers"]
        rows = slice(int(first), int(last))
        points = _read(self.points, rows)
        weights = None if self.weights is None else self.weights[rows]
        good = _finite_rows(points)
        if self.labels:
            # of the smallest type that holds -1 and all numbers of centers, since they travel
            found = np.full(len(points), -1, np.min_scalar_type(-centers.shape[1]))
            found[good] = nearest(_chosen_rows(points, good), centers[0])[0]
            return {"labels": found}
        kept = None if weights is None else _chosen_rows(weights, good)
        return dict(vars(partial_sums(_chosen_rows(points, good), kept, centers)))


def _named(array: np.ndarray | str) -> str:
    if isinstance(array, str):
        return array
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _read(array: np.ndarray | str, rows: slice) -> np.ndarray:
    """Some rows of an array or of a file, whose numbers are read where they are used.

    Raises: InputError for a file that cannot be read.
    """
    if isinstance(array, np.ndarray):
        return array[rows]
    try:
        return np.asarray(np.load(array, mmap_mode="r", allow_pickle=False)[rows], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"points for k-means cannot be read: {error}", array) from None


def _finite_rows(points: np.ndarray) -> np.ndarray:
    """Which points (n, d) have neither NaN nor inf, (n,)."""
    finite, good = np.isfinite(points), np.ones(len(points), bool)
    return good if finite.all() else reduce(np.logical_and, finite.T, good)


def _chosen_rows(array: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The rows that are chosen; the array itself where all are."""
    return array if chosen.all() else array[chosen]


# --- the whole -----------------------------------------------------------------------------------


def k_means(
    points: np.ndarray | Path,
    k: int,
    weights: np.ndarray | None = None,
    *,
    seed: int = 0,
    restarts: int = RESTARTS,
    way: str = "auto",
    doer: Doer | None = None,
    iterations: int = ITERATIONS,
) -> Clusters:
    """Sort points into k groups.

    Arguments:
        points: (n, d); those with NaN or inf are left out. Or a file of NumPy (.npy) with them,
            for `way` "pieces": workers then read their rows of it.
        weights: (n,) above 0, how much each point counts; alike without.
        seed: of the beginnings; the same seed gives the same groups in every way.
        restarts: beginnings.
        way: one of WAYS. "auto": by `doer` if there is one, on a GPU for very many points, else by
            scikit-learn, or by sums where that is not installed.
        doer: who computes the parts, for "pieces"; this process without.
        iterations: at most so many.

    Raises: InputError for less different points than groups, weights that are not above 0, an
    unknown way, and for what the way needs and is not there.
    """
    if way not in WAYS:
        raise InputError(f'"{way}" is no way to k-means; there are {", ".join(WAYS)}')
    if k < 1:
        raise InputError(f"{k} groups cannot be made; at least 1")
    source: np.ndarray | str
    if isinstance(points, Path):
        source, whole = str(points), _read(str(points), slice(None))
    else:
        source = whole = np.asarray(points, dtype=np.float64)
    good = _finite_rows(whole)
    mine, counts = _chosen_rows(whole, good), None
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        counts = _chosen_rows(weights, good)
        if not (counts > 0).all() or not np.isfinite(counts).all():
            raise InputError("weights of k-means must be numbers above 0")
    n = int(good.sum())
    if n < k:
        raise InputError(f"{k} groups need as many points, and there are {n} without NaN")
    if way == "auto":
        way = _chosen(n, doer)
    starts = beginnings(mine, counts, k, seed, restarts)
    if way == "scikit-learn":
        found = _by_scikit_learn(mine, counts, starts, iterations)
    elif way == "pieces":
        found = _by_pieces(source, weights, len(whole), starts, iterations, doer)
        found = (*found[:3], _chosen_rows(found[3], good))
    elif way == "cuda":
        found = _by_gpu(mine, counts, starts, iterations)
    else:
        sums_of = partial(partial_sums, mine, counts)
        centers, inertia, count = _followed(starts, iterations, sums_of)
        found = centers, inertia, count, nearest(mine, centers)[0]
    return _ordered(found, good, way)


def _chosen(n: int, doer: Doer | None) -> str:
    if doer is not None:
        return "pieces"
    if n >= _FOR_GPU and gpu.is_available():
        return "cuda"
    try:
        _scikit_learn()
    except InputError:
        return "sums"
    return "scikit-learn"


def beginnings(
    points: np.ndarray, weights: np.ndarray | None, k: int, seed: int, restarts: int
) -> np.ndarray:
    """Centers (restarts, k, d) to begin with: points, far from each other rather than near.

    Raises: InputError where fewer than k points differ.
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
    """Whether at least k points differ; the first rows mostly say so."""
    return any(len(np.unique(some, axis=0)) >= k for some in (points[:_FIRST_ROWS], points))


def _followed(starts: np.ndarray, iterations: int, sums_of: Any) -> tuple[np.ndarray, float, int]:
    """Follow all beginnings at once until no center moves.

    Arguments:
        sums_of: gives the `Sums` of all points for centers (n_sets, k, d).

    Returns: centers (k, d) of the best, its inertia, and its iterations.
    """
    centers = starts.copy()
    inertia, counts = np.full(len(starts), np.inf), np.zeros(len(starts), int)
    moving = np.arange(len(starts))
    for iteration in range(1, iterations + 1):
        sums = sums_of(centers[moving])
        fresh = next_centers(sums)
        inertia[moving], counts[moving] = sums.inertia, iteration
        still = (fresh == centers[moving]).all(axis=(1, 2))
        centers[moving] = fresh
        moving = moving[~still]
        if not len(moving):
            break
    if len(moving):
        inertia[moving] = sums_of(centers[moving]).inertia
    best = _best(inertia)
    return centers[best], float(inertia[best]), int(counts[best])


def _best(inertia: np.ndarray) -> int:
    return int(np.flatnonzero(inertia <= inertia.min() * (1 + _SAME))[0])


def _by_gpu(
    points: np.ndarray, weights: np.ndarray | None, starts: np.ndarray, iterations: int
) -> tuple[np.ndarray, float, int, np.ndarray]:
    there = OnGpu(points, weights, starts.shape[1])
    centers, inertia, counts = there.follow(starts, iterations)
    best = _best(inertia)
    labels = there.labels(centers[best])
    return centers[best], float(inertia[best]), int(counts[best]), labels


def _by_pieces(
    points: np.ndarray | str,
    weights: np.ndarray | None,
    n: int,
    starts: np.ndarray,
    iterations: int,
    doer: Doer | None,
) -> tuple[np.ndarray, float, int, np.ndarray]:
    """By partial sums of parts that others compute: the parts do not depend on who they are."""
    step = max(1, _PART // starts.shape[2])
    keys: list[Key] = [("rows", first, min(first + step, n)) for first in range(0, n, step)]

    def sums_of(centers: np.ndarray) -> Sums:
        work = Part(points, weights, centers)
        return added([Sums(**found) for _, found in pieces_done(work, keys, doer)])

    centers, inertia, count = _followed(starts, iterations, sums_of)
    work = Part(points, weights, centers[None], labels=True)
    labels = [found["labels"] for _, found in pieces_done(work, keys, doer)]
    return centers, inertia, count, np.concatenate(labels)


def _scikit_learn() -> Any:
    try:
        from sklearn.cluster import KMeans  # an optional package
    except ImportError:
        raise InputError(
            'this way to k-means needs scikit-learn; python -m pip install "channelfit[sure]" '
            "installs it"
        ) from None
    return KMeans


def _by_scikit_learn(
    points: np.ndarray, weights: np.ndarray | None, starts: np.ndarray, iterations: int
) -> tuple[np.ndarray, float, int, np.ndarray]:
    make, k = _scikit_learn(), starts.shape[1]
    fits = [
        make(k, init=start, n_init=1, max_iter=iterations, tol=0.0, algorithm="lloyd").fit(
            points, sample_weight=weights
        )
        for start in starts
    ]
    best = fits[_best(np.array([fit.inertia_ for fit in fits]))]
    return best.cluster_centers_, float(best.inertia_), int(best.n_iter_), best.labels_


def _ordered(
    found: tuple[np.ndarray, float, int, np.ndarray], good: np.ndarray, way: str
) -> Clusters:
    """The groups, the largest first; groups of one size by their first coordinates."""
    centers, inertia, count, labels = found
    sizes = np.bincount(labels, minlength=len(centers))
    order = np.lexsort((*np.round(centers.T[::-1], 9), -sizes))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    whole = rank[labels]
    if len(labels) < len(good):
        whole = np.full(len(good), -1, np.int64)
        whole[good] = rank[labels]
    return Clusters(centers[order], whole, inertia, count, way)
