"""k-means on the processor, on a played GPU and by workers: each the groups of scikit-learn."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.batch.groups import groups
from channelfit.model.channel import Parameter
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty import k_means as module
from channelfit.results.uncertainty import k_means_cpu, k_means_cuda
from channelfit.results.uncertainty.k_means import (
    RESTARTS,
    Clusters,
    PartialSums,
    initial_centers,
    k_means,
    lloyd,
    next_centers,
)
from channelfit.results.uncertainty.k_means_cpu import BLOCK, nearest, partial_sums
from channelfit.results.uncertainty.k_means_cuda import TILE, PointsOnGpu, cuda_text
from channelfit.results.uncertainty.mixtures import choose_groups
from channelfit.scoring.machine import gpu
from channelfit.tasks.executor import TaskSet, TaskSetWithArguments
from channelfit.tasks.result_store import Arrays, Key
from support.cuda_host import HostCupy, compile_with_nvrtc
from support.plates import Fits, fits_of

cluster = pytest.importorskip("sklearn.cluster")
WAYS = ("sums", "cuda")


def clouds(n: int = 300, k: int = 4, d: int = 3, seed: int = 0, apart: float = 6.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    middles = apart * random.normal(size=(k, d))
    return middles[random.integers(k, size=n)] + random.normal(size=(n, d))


def same(one: Clusters, other: Clusters) -> None:
    assert other.inertia == pytest.approx(one.inertia, rel=1e-9)
    assert other.centers == pytest.approx(one.centers, rel=1e-9, abs=1e-9)
    np.testing.assert_array_equal(other.labels, one.labels)


def by_scikit_learn(
    points: np.ndarray, starts: np.ndarray, weights: np.ndarray | None = None
) -> Clusters:
    """Return the best of the groups that scikit-learn comes to, the largest group first."""
    make = partial(cluster.KMeans, n_init=1, max_iter=300, tol=0.0, algorithm="lloyd")
    fits = [make(len(s), init=s).fit(points, sample_weight=weights) for s in starts]
    best = min(fits, key=lambda fit: fit.inertia_)
    order = np.argsort(-np.bincount(best.labels_))
    labels = np.argsort(order)[best.labels_]
    return Clusters(best.cluster_centers_[order], labels, best.inertia_, best.n_iter_, "")


@pytest.fixture(params=["played", pytest.param("real", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU: played by the host, or real."""
    if request.param == "played":
        monkeypatch.setitem(sys.modules, "cupy", HostCupy())
        monkeypatch.setattr(gpu, "_working", None)
    elif not gpu.is_available():
        pytest.skip("no GPU")


def test_all_ways_agree(device: None) -> None:
    points = clouds(apart=0.5) + 50.0  # far from the origin, where squares lose digits
    weights = np.random.default_rng(1).uniform(0.1, 3, len(points))
    want = by_scikit_learn(points, initial_centers(points, weights, 5, 3, RESTARTS), weights)
    for way in WAYS:
        found = k_means(points, 5, weights, way=way, seed=3)
        assert found.way == way
        same(want, found)


def test_the_best_division_of_few_points_is_found() -> None:
    """Every division of seven points in two or three groups, tried out."""
    points = np.random.default_rng(7).normal(size=(7, 2))
    for k in (2, 3):
        least = np.inf
        for code in range(k**7):
            labels = code // k ** np.arange(7) % k
            if len(np.unique(labels)) < k:
                continue
            cost = sum(
                float(((points[labels == g] - points[labels == g].mean(axis=0)) ** 2).sum())
                for g in range(k)
            )
            least = min(least, cost)
        assert k_means(points, k, restarts=30).inertia == pytest.approx(least)


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=40),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_duplicates_and_ties_end_in_a_division_that_no_move_betters(rows, k, seed):
    points = np.array(rows, float)
    different = len(np.unique(points, axis=0))
    if different < k:
        with pytest.raises(InputError, match="points"):
            k_means(points, k, seed=seed)
        return
    found = k_means(points, k, seed=seed)
    assert found.sizes.sum() == len(points)
    distance = ((points[:, None] - found.centers) ** 2).sum(axis=2)
    own = distance[np.arange(len(points)), found.labels]
    assert (own <= distance.min(axis=1) + 1e-9).all()
    assert found.inertia == pytest.approx(own.sum(), abs=1e-9)
    for g in np.unique(found.labels):
        assert found.centers[g] == pytest.approx(points[found.labels == g].mean(axis=0), abs=1e-9)


def test_an_empty_group_gets_the_farthest_point_as_in_scikit_learn() -> None:
    """Starts with centers that no point is nearest to."""
    points, weights = clouds(n=80, k=2, d=2, seed=5), np.ones(80)
    start = np.array([points[0], points[0] + 1e3, points[0] - 1e3, points[1]])
    sums = partial_sums(points, weights, start[None])
    assert (sums[..., -2] == 0).sum() == 2
    moved = next_centers(points, weights, start[None], sums)[0]
    assert np.abs(moved).max() < 30
    theirs = by_scikit_learn(points, start[None])
    centers, inertia, _ = on_processor(points, weights, start, 300)
    assert inertia == pytest.approx(theirs.inertia)
    order, other = np.lexsort(centers.T), np.lexsort(theirs.centers.T)
    assert centers[order] == pytest.approx(theirs.centers[other])


def on_processor(
    points: np.ndarray, weights: np.ndarray | None, start: np.ndarray, iterations: int
) -> tuple[np.ndarray, float, int]:
    sums_of = partial(partial_sums, points, weights)
    return lloyd(points, weights, start[None], iterations, sums_of)


def test_points_with_nan_are_left_out(device: None) -> None:
    points = clouds(n=100)
    want = k_means(points[5:], 3)
    points[:5, 1] = [np.nan, np.inf, np.nan, -np.inf, np.nan]
    for way in WAYS:
        found = k_means(points, 3, way=way)
        assert (found.labels[:5] == -1).all()
        assert found.sizes.sum() == 95
        assert found.inertia == pytest.approx(want.inertia)


@pytest.mark.parametrize(
    ("k", "words"),
    [
        (11, "11 groups need as many points, and there are 10 without NaN"),
        (6, "6 groups were asked for, and only 5 points are different"),
    ],
)
def test_what_cannot_be_grouped_is_refused(k: int, words: str) -> None:
    points = np.repeat(clouds(n=5), 2, axis=0)
    with pytest.raises(InputError, match=words):
        k_means(points, k)
    with pytest.raises(InputError, match="weights of k-means must be numbers above 0"):
        k_means(points, 2, np.zeros(10))


def reference(points: np.ndarray, weights: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """The sums of one set of centers, by their definition."""
    square = ((points[:, None] - centers) ** 2).sum(axis=2)
    own = (square.argmin(axis=1)[:, None] == np.arange(len(centers))) * weights[:, None]
    return np.column_stack([own.T @ points, own.sum(axis=0), own.T @ square.min(axis=1)])


@pytest.mark.parametrize(("k", "d"), [(1, 1), (5, 2), (11, 5)])
def test_compiled_sums_are_those_of_the_definition(k: int, d: int) -> None:
    """Three blocks of points, the last one not full; more and fewer centers than lanes."""
    points = clouds(n=2 * BLOCK + 1003, k=k, d=d, apart=1.0) + 50.0
    weights = np.random.default_rng(1).uniform(0.1, 3, len(points))
    starts = initial_centers(points, weights, k, 0, 3)
    for counts in (weights, None):
        found = partial_sums(points, counts, starts)
        for own, centers in zip(found, starts, strict=True):
            want = reference(points, np.ones(len(points)) if counts is None else counts, centers)
            assert own == pytest.approx(want, rel=1e-12)
    labels, distances = nearest(points, starts[0])
    square = ((points[:, None] - starts[0]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, square.argmin(axis=1))
    assert distances == pytest.approx(square.min(axis=1), rel=1e-12)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    points = clouds(n=7 * BLOCK + 5, d=3, apart=1.0)
    weights = np.random.default_rng(1).uniform(0.1, 3, len(points))
    starts = initial_centers(points, weights, 4, 0, 2)

    def by(cores: int) -> bytes:
        monkeypatch.setattr(k_means_cpu, "usable_cores", lambda: cores)
        return partial_sums(points, weights, starts).tobytes()

    assert by(1) == by(2) == by(5)


@pytest.mark.parametrize(("k", "d", "weighted"), [(4, 2, False), (10, 5, True)])
def test_the_gpu_follows_as_the_processor_does(k, d, weighted, device, monkeypatch):
    """More tiles than blocks; one set of centers, and several."""
    monkeypatch.setattr(k_means_cuda, "_MOST_BLOCKS", 2)
    points = clouds(n=2 * TILE + 301, k=k, d=d, apart=1.0) + 50.0
    weights = np.random.default_rng(1).uniform(0.1, 3, len(points)) if weighted else None
    starts = initial_centers(points, weights, k, 0, 2)
    there = PointsOnGpu(points, weights, k)
    assert there.sums(starts) == pytest.approx(partial_sums(points, weights, starts), rel=1e-12)
    for iterations in (1, 3):
        for start in starts:
            found = lloyd(points, weights, start[None], iterations, there.sums)
            own = on_processor(points, weights, start, iterations)
            assert found[0] == pytest.approx(own[0], rel=1e-12)
            assert found[1] == pytest.approx(own[1], rel=1e-12)
            assert found[2] == own[2] == iterations


@pytest.mark.parametrize("weighted", [False, True])
def test_an_empty_group_is_filled_on_a_gpu_too(weighted: bool, device: None) -> None:
    points = clouds(n=80, k=2, d=2, seed=5)
    weights = np.random.default_rng(1).uniform(0.1, 3, 80) if weighted else None
    far = np.array([points[0], points[0] + 1e3, points[0] - 1e3, points[1]])
    doubled = np.repeat(points[:3], 4, axis=0)  # three different points for four centers
    for some, counts, start in ((points, weights, far), (doubled, None, doubled[[0, 0, 4, 8]])):
        found = lloyd(some, counts, start[None], 300, PointsOnGpu(some, counts, 4).sums)
        own = on_processor(some, counts, start, 300)
        assert found[0] == pytest.approx(own[0], rel=1e-12)
        assert found[1] == pytest.approx(own[1], rel=1e-12, abs=1e-12)
        assert found[2] == own[2]


def test_the_kernels_compile_without_spills() -> None:
    options = ("-std=c++17", "-ftz=true", "--ptxas-options=-v")
    log = compile_with_nvrtc(cuda_text(20, 30), options=options)
    assert log.count("0 bytes spill stores, 0 bytes spill loads") == 2


@dataclass
class Workers:
    """Workers that come and go: some lose a task, which another one then computes; any order."""

    seed: int
    lost: int = 0

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        random = np.random.default_rng(self.seed)
        waiting = list(keys)
        while waiting:
            key = waiting.pop(random.integers(len(waiting)))
            arguments = cast(TaskSetWithArguments, tasks).arguments(key)
            own, sent = pickle.loads(pickle.dumps((tasks, arguments)))
            if random.random() < 0.3:
                self.lost += 1
                waiting.append(key)
                continue
            yield key, own.compute(key, sent)


def test_workers_that_come_and_go_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 100)
    points = clouds(n=500, apart=1.0)
    alone = k_means(points, 4, way="sums", seed=1, restarts=4)
    workers = Workers(0)
    found = k_means(points, 4, executor=workers, seed=1, restarts=4)
    assert found.way == "sums"
    assert workers.lost > 5
    np.testing.assert_array_equal(found.labels, alone.labels)
    assert found.centers.tobytes() == alone.centers.tobytes()
    assert found.inertia == alone.inertia
    same(by_scikit_learn(points, initial_centers(points, None, 4, 1, 4)), alone)


def test_workers_read_their_rows_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 200)
    points = clouds(n=300)
    points[7] = np.nan
    np.save(tmp_path / "points.npy", points)
    found = k_means(tmp_path / "points.npy", 4, executor=Workers(0))
    same(k_means(points, 4), found)
    tasks = PartialSums(str(tmp_path / "points.npy"), None, found.centers[None])
    assert len(pickle.dumps(tasks)) < 1500  # the size of what is sent does not grow with the points
    with pytest.raises(InputError, match=r"gone.npy: points for k-means cannot be read"):
        k_means(tmp_path / "gone.npy", 4)
    objects = np.array([{}], dtype=object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        k_means(tmp_path / "objects.npy", 1)


def two_kinds(n: int, other: int, d: int, seed: int = 0) -> np.ndarray:
    """Logarithms of parameters that scatter by 12 %, two of them 2.7 times apart between kinds."""
    points = 0.12 * np.random.default_rng(seed).normal(size=(n + other, d))
    points[:n, :2] += np.log(2.7)
    return points


@pytest.mark.parametrize(("n", "other", "d"), [(59, 37, 9), (8, 88, 2)])
def test_wild_type_and_mutant_are_two_groups(n: int, other: int, d: int) -> None:
    choice = choose_groups(two_kinds(n, other, d))
    assert choice.k == 2
    assert sorted(np.bincount(choice.labels)) == sorted([n, other])
    assert "normal populations were compared with one population" in choice.sentence()


@pytest.mark.parametrize("kind", ["correlated", "heavy tails", "long", "skew"])
def test_one_population_is_one_group(kind: str) -> None:
    """How often over 200 populations of each kind: `benchmarks/kmeans.py --parts groups`."""
    wrong = 0
    for seed in range(2):
        random = np.random.default_rng(seed)
        points = random.normal(size=(96, 4))
        if kind == "long":
            points = points[:, :2] * [1.0, 15.0] @ [[0.6, 0.8], [-0.8, 0.6]]
        if kind == "heavy tails":
            points /= np.sqrt(random.chisquare(4, size=(96, 1)) / 4)
        if kind == "correlated":
            points = points @ random.normal(size=(4, 4))
        if kind == "skew":  # up in two parameters, and down in the others
            points = np.exp(0.5 * points) * [1, 1, -1, -1]
        wrong += choose_groups(points).k > 1
    assert wrong == 0


def test_the_likelihood_of_a_skewed_population_is_that_of_scipy() -> None:
    """Of one coordinate, up to how finely powers are tried."""
    values = np.random.default_rng(1).gamma(2.0, size=300)
    scaled = ((values - values.mean()) / values.std())[:, None]
    _, power = stats.yeojohnson(scaled[:, 0])
    best = stats.yeojohnson_llf(power, scaled[:, 0]) - 150 * (1 + np.log(2 * np.pi))
    assert choose_groups(values[:, None]).skewed == pytest.approx(
        -2 * best + 3 * np.log(300), abs=1
    )


RATE = Parameter("a", "1/ms", 0.01, 10.0, "log")
CHARGE = Parameter("z", "1/mV", 0.0, 0.2)
SIZE = Parameter("g", "nS", 0.0, 50.0)


def wells(n: int = 90, seed: int = 0, error: float = 0.01) -> tuple[Fits, np.ndarray]:
    """Two kinds of cells, of which the second has ten times the rate; conductances as they come."""
    random = np.random.default_rng(seed)
    kind = np.arange(n) % 3 == 0
    unit = np.stack(
        [
            np.where(kind, 2 / 3, 1 / 3) + 0.03 * random.normal(size=n),
            0.5 + 0.05 * random.normal(size=n),
            random.uniform(0, 1, n),
        ],
        axis=1,
    )
    information = np.tile(np.eye(3) / error**2, (n, 1, 1))
    return fits_of(("a", "z", "g"), unit, information), kind


def test_wells_of_two_kinds_are_two_groups_with_physical_centers() -> None:
    fits, kind = wells()
    found = groups(fits, parameters=[RATE, CHARGE, SIZE], names=["a", "z"])
    assert found.suggested == 2
    np.testing.assert_array_equal(found.numbers, np.where(kind, 2, 1))
    assert found.sizes.tolist() == [60, 30]
    assert found.centers[:, 0] == pytest.approx([0.1, 1.0], rel=0.1)
    assert found.centers[:, 1] == pytest.approx(0.1, rel=0.1)
    assert found.scatter[:, 0] == pytest.approx(0.03 * np.log(1000), rel=0.3)
    assert found.explained > 0.4
    assert not found.notes
    assert found.columns()["group"].tolist()[:4] == ["2", "1", "1", "2"]
    facts = found.summary()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    text = found.text().splitlines()
    assert text[0].split() == ["group", "wells", "a", "(1/ms)", "z", "(1/mV)"]
    assert text[1].split()[:2] == ["1", "60"]
    found = groups(fits, 3, parameters=[RATE, CHARGE, SIZE], names=["a", "z"])
    notes = [n for n in found.notes if "2 groups are better by" in n and "3 were asked for" in n]
    assert len(notes) == 1
    found = groups(fits, 3, parameters=[RATE, CHARGE, SIZE], names=["z"])
    assert found.suggested == 1
    assert len(found.centers) == 3
    assert "one group describes the wells as well" in " ".join(found.notes)
    assert "one group describes" in found.text()


def test_what_a_well_hardly_determines_does_not_sort_it() -> None:
    """A well with a wild value of huge error stays with the mean; as one with a small error not."""
    fits, _ = wells()
    fits.unit[4, 1] = 3.0
    alone = groups(fits, 3, parameters=[RATE, CHARGE, SIZE], names=["a", "z"])
    assert alone.sizes.tolist() == [59, 30, 1]
    assert any("group 3 is one well alone, 5" in note for note in alone.notes)
    fits.information[4, 1, 1] = 0.0
    found = groups(fits, 2, parameters=[RATE, CHARGE, SIZE], names=["a", "z"])
    assert found.sizes.tolist() == [60, 30]
    assert found.centers[:, 1] == pytest.approx(0.1, rel=0.1)
