"""Measures k-means by its ways, and how often intervals of a population hold the truth.

    python benchmarks/kmeans.py [--parts cpu workers coverage groups] [--backend cuda] [--points N]

The points are those of the published distributed design: N points in d = 2 dimensions, K = 4
centers; here in overlapping clouds, so that centers move for long. Each way follows the same single
beginning for the same number of iterations, and must come to the same inertia.

* cpu: scikit-learn with all threads, and sums in this process; the seconds that pass, and those of
  all cores together.
* workers: sixteen times the points, in a file, of which 1 to 4 processes of a cluster on this
  machine compute sums of parts: parts are large, since each takes a message to a worker and back.
* coverage: simulated plates of 5 to 400 cells, and how often the 95 % intervals of mean and spread
  of two drawn parameters hold the truth. Errors of the wells are half of the spread.
* groups: how often 96 points are said to be as many groups as they are: one population, normal,
  correlated, with heavy tails (Student's t with 4 and 3 degrees of freedom) or skew (logarithms
  normal, of standard deviation 0.5), and two that are 2.7 times apart in two parameters, whose
  scatter is 12 %.
* with --backend cuda: the whole on a GPU, points sent there and sums back, beside scikit-learn in
  the same run; and the sums of an iteration alone, points there already, ten in a row.

An iteration on a GPU reads 8 D bytes a point where all count alike: 16 MB of a million points, for
which a memory of 4,800 GB/s takes 3.3 µs (a second-level cache that holds them is faster). With
K = 4 it computes some 32 products, sums and comparisons in float64 a point: 2 µs at 132 x 64 of
them a cycle of 1.7 GHz. Two launches take longer than either. The GB/s that are reported are these
bytes by the seconds of an iteration.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from report import Row, as_script, compared, finish

from channelfit.batch.mixed import Evidence, Level, Mixed
from channelfit.results.uncertainty.k_means import Clusters, initial_centers, k_means
from channelfit.results.uncertainty.k_means_cuda import PointsOnGpu
from channelfit.results.uncertainty.mixtures import choose_groups
from channelfit.scoring.machine import gpu
from channelfit.tasks.cluster import open_cluster

K, D, SEED, ITERATIONS, REPEATS, IN_A_ROW, TIMES = 4, 2, 20151226, 20, 3, 10, 16
WELLS, DIMENSIONS, POPULATIONS = 96, (4,), 200
PLATES = ((5, 600), (20, 400), (100, 200), (400, 60))


def clouds(n: int) -> np.ndarray:
    """Points (n, D) in K clouds that overlap."""
    random = np.random.default_rng(SEED)
    middles = 2.0 * random.normal(size=(K, D))
    return middles[random.integers(K, size=n)] + random.normal(size=(n, D))


def timed(
    function: Callable[[], Clusters], repeats: int = REPEATS
) -> tuple[float, float, Clusters]:
    """The medians of the seconds that pass and of those of all cores together, and the result."""
    seconds = []
    for _ in range(repeats):
        begin = np.array([time.perf_counter(), time.process_time()])
        found = function()
        seconds.append(np.array([time.perf_counter(), time.process_time()]) - begin)
    passed, worked = np.median(seconds, axis=0)
    return float(passed), float(worked), found


def of(points: np.ndarray | Path, way: str, executor: object = None) -> Callable[[], Clusters]:
    """A whole k-means from one beginning."""
    return lambda: k_means(
        points, K, seed=SEED, restarts=1, way=way, executor=executor, iterations=ITERATIONS
    )


def of_scikit_learn(points: np.ndarray) -> Callable[[], Clusters]:
    """The same from the same beginning by scikit-learn."""
    from sklearn.cluster import KMeans  # the other side

    def run() -> Clusters:
        start = initial_centers(points, None, K, SEED, 1)[0]
        make = KMeans(K, init=start, n_init=1, max_iter=ITERATIONS, tol=0.0, algorithm="lloyd")
        fit = make.fit(points)
        order = np.argsort(-np.bincount(fit.labels_))
        labels = np.argsort(order)[fit.labels_]
        return Clusters(fit.cluster_centers_[order], labels, fit.inertia_, fit.n_iter_, "")

    return run


def same(one: Clusters, other: Clusters) -> str:
    """Return whether two ways have the same result."""
    apart = abs(one.inertia / other.inertia - 1)
    moved = int((one.labels != other.labels).sum())
    return f"inertia differs by {apart:.1g}, {moved} labels differ"


def on_cpu(points: np.ndarray) -> list[Row]:
    """Sums beside scikit-learn."""
    theirs, all_theirs, want = timed(of_scikit_learn(points))
    ours, all_ours, got = timed(of(points, "sums"))
    name = f"sums, {len(points):,} points, {got.iterations} iterations"
    return [
        compared(name, ours, "s", theirs, same(got, want)),
        compared(f"{name}, all cores", all_ours, "s", all_theirs),
    ]


def by_workers(points: np.ndarray) -> list[Row]:
    """Sums of parts, by 1 to 4 processes, beside this process alone."""
    rows = []
    alone, _, want = timed(of(points, "sums"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "points.npy"
        np.save(file, points)
        for n in (1, 2, 3, 4):
            with open_cluster(f"local:{n}") as executor:
                of(file, "sums", executor)()  # processes begin, libraries load
                seconds, _, got = timed(of(file, "sums", executor), 1)
            name = f"{n} workers, {len(points):,} points"
            rows.append(compared(name, seconds, "s", alone, same(got, want)))
    return rows


def on_gpu(points: np.ndarray) -> list[Row]:
    """Sums on a GPU beside scikit-learn; and those of an iteration, the points there already."""
    theirs, _, want = timed(of_scikit_learn(points))
    ours, _, got = timed(of(points, "cuda"))
    there, starts = PointsOnGpu(points, None, K), initial_centers(points, None, K, SEED, 1)

    centers = gpu.cupy().asarray(starts)

    def in_a_row() -> None:
        for _ in range(IN_A_ROW):
            there.launch(centers)

    seconds = gpu.timed(in_a_row) / IN_A_ROW
    n_bytes = 8 * len(points) * D
    return [
        compared(f"cuda, {len(points):,} points", ours, "s", theirs, same(got, want)),
        Row("an iteration on the GPU", seconds, "s", note=f"{n_bytes / seconds / 1e9:,.0f} GB/s"),
    ]


def coverage(share: float) -> list[Row]:
    """Return how often intervals hold the truth, in percent."""
    rows = []
    spread, error, covariance = 0.1, 0.05, 0.01 * np.array([[1.0, 0.5], [0.5, 1.0]])
    for n, repeats in PLATES:
        random = np.random.default_rng([SEED, n])
        repeats = max(2, int(share * repeats))
        hits = np.zeros((repeats, 2, 2))
        for repeat in range(repeats):
            truth = random.multivariate_normal([0.5, 0.5], covariance, n)
            information = _information(random, n, error)
            noise = np.linalg.cholesky(np.linalg.inv(information)) @ random.normal(size=(n, 2, 1))
            weighted = np.einsum("wij,wj->wi", information, truth + noise[..., 0])
            evidence = Evidence.of(weighted, information)
            level = Level.of(Mixed(evidence, 2, n >= 6, np.zeros(2), np.zeros(2)))
            lower, upper = level.mean_interval()
            least, most = level.spread_interval()
            hits[repeat, 0] = (lower < 0.5) & (upper > 0.5)
            hits[repeat, 1] = (least <= spread) & (most > spread)
        for what, found in zip(("mean", "spread"), hits.mean(axis=(0, 2)), strict=True):
            chance = 100 * np.sqrt(0.95 * 0.05 / (2 * repeats))
            note = f"{repeats} plates, chance ± {chance:.1f}"
            rows.append(Row(f"{n} cells, {what}", 100 * float(found), "%", note=note))
    return rows


def one_population(kind: str, d: int, random: np.random.Generator) -> np.ndarray:
    """Points (WELLS, d) of a population of a kind."""
    points = random.normal(size=(WELLS, d))
    if kind.startswith("t with"):
        freedom = int(kind.split()[2])
        points /= np.sqrt(random.chisquare(freedom, size=(WELLS, 1)) / freedom)
    elif kind == "correlated":
        points = points @ random.normal(size=(d, d))
    elif kind == "skew":
        points = np.exp(0.5 * points)
    elif kind != "normal":
        points *= 0.12
        points[: int(kind.split()[0]), :2] += np.log(2.7)
    return np.asarray(points)


def chosen(share: float) -> list[Row]:
    """Return how often the number of groups is right, in percent."""
    rows = []
    repeats = max(2, int(share * POPULATIONS))
    one = ("normal", "correlated", "t with 4", "t with 3", "skew")
    for kind in (*one, "59 and 37", "8 and 88"):
        for d in DIMENSIONS:
            random = np.random.default_rng([SEED, d])
            found = [choose_groups(one_population(kind, d, random)) for _ in range(repeats)]
            right = np.mean([choice.k == (1 if kind in one else 2) for choice in found])
            unsure = sum(choice.is_ambiguous for choice in found)
            note = f"{repeats} populations, {unsure} ambiguous"
            rows.append(Row(f"{kind}, {d} parameters", 100 * float(right), "%", note=note))
    return rows


def _information(random: np.random.Generator, n: int, error: float) -> np.ndarray:
    """Information matrices (n, 2, 2) of wells that determine two parameters unequally well."""
    rows = random.normal(size=(n, 6, 2)) / np.sqrt(6)
    errors = error * np.exp(0.5 * random.normal(size=(n, 1, 1)))
    return np.swapaxes(rows, 1, 2) @ rows / errors**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["cpu", "workers", "coverage"])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the work")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    share = 0.01 if options.quick else 1.0
    n = max(1000, int(share * options.points))
    points = clouds(n)
    rows: list[Row] = []
    if options.backend == "cuda":
        rows += on_gpu(points)
    else:
        rows += on_cpu(points) if "cpu" in options.parts else []
        rows += by_workers(clouds(TIMES * n)) if "workers" in options.parts else []
    name = "kmeans_cuda" if options.backend == "cuda" else "kmeans"
    device = gpu.device().name if options.backend == "cuda" else ""
    if rows:
        finish(name, "k-means", rows, device, options.out)
    if options.backend == "cpu" and "coverage" in options.parts:
        title = "how often 95 % intervals hold the truth"
        finish("populations", title, coverage(share), "", options.out)
    if options.backend == "cpu" and "groups" in options.parts:
        title = "how often the number of groups is right"
        finish("groups", title, chosen(share), "", options.out)


if __name__ == "__main__":
    as_script(main)
