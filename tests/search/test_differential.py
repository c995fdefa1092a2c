"""Differential evolution: each of its rules, and that it finds minima."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.reading.errors import InputError
from channelfit.search.differential import Differential
from support.landscapes import NumpyInDisguise, rastrigin, rosenbrock, run, sphere

LEVEL = 1e-3


def started(cost, n_parameters=3, **more) -> Differential:
    """A search whose first generation has been told `cost` (n_candidates,)."""
    search = Differential(n_parameters, len(cost), seed=more.pop("seed", 1), **more)
    search.tell(search.ask(), np.asarray(cost, dtype=float))
    return search


def test_a_trial_is_the_published_formula():
    search = started(np.arange(40.0), n_parameters=5)
    x = search._population
    weight, crossover, forced = search._settings_drawn()
    best, one, other = search._partners()
    trial = search.ask()
    kept = 0
    for i in range(40):
        moved = x[:, i] + weight[i] * (x[:, best[i]] - x[:, i] + x[:, one[i]] - x[:, other[i]])
        moved = np.where(moved > 1, (1 + x[:, i]) / 2, np.where(moved < 0, x[:, i] / 2, moved))
        same = trial[:, i] == x[:, i]
        np.testing.assert_allclose(trial[~same, i], moved[~same], rtol=0, atol=1e-15)
        chances = np.array([search._chances(p)[i] for p in range(5)])
        assert (
            same[chances >= crossover[i]] | (forced[i] == np.arange(5))[chances >= crossover[i]]
        ).all()
        assert not same[chances < crossover[i]].any()
        kept += same.sum()
    assert 0 < kept < 100


def test_partners_are_others_and_the_best_are_the_best():
    cost = np.random.default_rng(1).permutation(4000).astype(float)
    search = started(cost, elite=0.01)
    best, one, other = search._partners()
    assert set(cost[best]) == set(range(40))
    assert (one != np.arange(4000)).all()
    assert (one != other).all()
    for partner in (one, other):
        counts = np.histogram(partner, 20, (0, 4000))[0]
        assert stats.chisquare(counts).pvalue > LEVEL


def test_settings_are_drawn_around_their_means():
    search = started(np.arange(20_000.0), n_parameters=4)
    weight, crossover, forced = search._settings_drawn()
    inside = (weight > 0.05) & (weight < 1)
    expected = stats.cauchy(0.5, 0.1)
    share = expected.cdf(1) - expected.cdf(0.05)
    assert stats.binomtest(int(inside.sum()), 20_000, share).pvalue > LEVEL
    drawn = stats.kstest(weight[inside], lambda f: (expected.cdf(f) - expected.cdf(0.05)) / share)
    assert drawn.pvalue > LEVEL
    below = crossover[crossover < 1]
    normal = stats.norm(0.9, 0.1)
    assert stats.kstest(below, lambda c: normal.cdf(c) / normal.cdf(1)).pvalue > LEVEL
    assert stats.chisquare(np.bincount(forced, minlength=4)).pvalue > LEVEL


def test_means_move_to_what_brought_gains():
    search = started(np.full(60, 1e3))
    for _ in range(6):
        weight, crossover, _ = search._settings_drawn()
        search.tell(search.ask(), np.where(weight > 0.6, search._cost - 1, 2e3))
        assert weight.shape == crossover.shape
    assert (search._weights > 0.6).all()


def test_a_mean_is_lehmers_weighted_by_the_gains():
    search = started(np.full(30, 10.0))
    weight, crossover, _ = search._settings_drawn()
    cost = np.full(30, 11.0)
    cost[3], cost[8] = 9.0, 4.0
    search.tell(search.ask(), cost)
    for memory, used in ((search._weights, weight), (search._crossovers, crossover)):
        a, b = used[3], used[8]
        assert memory[0] == pytest.approx((a**2 + 6 * b**2) / (a + 6 * b))
    assert (search._weights[1:] == 0.5).all()


@settings(max_examples=60, deadline=None)
@given(
    n_parameters=st.integers(1, 5),
    population=st.integers(4, 30),
    seed=st.integers(0, 2**64 - 1),
    elite=st.floats(0.01, 1),
    failing=st.floats(0, 1),
    dtype=st.sampled_from(["float64", "float32"]),
)
def test_bounds_hold_and_only_what_was_told_and_finite_becomes_a_best(
    n_parameters, population, seed, elite, failing, dtype
):
    search = Differential(n_parameters, population, seed, elite, dtype=dtype)
    random = np.random.default_rng(1)
    best = math.inf
    for _ in range(12):
        candidates = search.ask()
        np.testing.assert_array_equal(candidates, search.ask())
        assert candidates.dtype == dtype
        assert ((candidates >= 0) & (candidates <= 1)).all()
        cost = sphere(candidates.astype(float))
        fails = random.random(cost.size) < failing
        cost[fails] = random.choice([np.nan, np.inf, -np.inf], fails.sum())
        before = search._cost.copy()
        search.tell(candidates, cost)
        best = min([best, *cost[np.isfinite(cost)]])
        assert search.best_cost == best
        assert (search._cost <= before).all()
        for memory in (search._weights, search._crossovers):
            assert ((memory >= 0) & (memory <= 1)).all()
    assert (search.best is None) == (best == math.inf)
    if search.best is not None:
        assert sphere(search.best[:, None].astype(float))[0] == pytest.approx(best)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_any_cost_it_draws_afresh_until_it_has_one_and_then_searches(bad):
    search = Differential(3, 100, seed=2)
    before = search.ask()
    for _ in range(3):
        search.tell(search.ask(), np.full(100, bad))
        assert search.best is None
        assert not np.isin(search.ask(), before).any()
        before = search.ask()
    assert stats.kstest(before.ravel(), "uniform").pvalue > LEVEL
    assert run(search, sphere, 80)[-1] < 1e-3


def test_candidates_without_a_cost_gather_where_there_are_costs():
    def corner(candidates: np.ndarray) -> np.ndarray:
        return np.where((candidates < 0.6).all(0), sphere(candidates), np.nan)

    search = Differential(3, 60, seed=3)
    run(search, corner, 100)
    assert np.isfinite(search._cost).all()


def test_starting_points_take_the_first_slots_once():
    points = np.array([[0.1, 0.2], [0.3, 0.4], [0.0, 1.0]])
    search = Differential(3, 9, seed=1, initial=points)
    np.testing.assert_array_equal(search.ask()[:, :2], points)
    np.testing.assert_array_equal(search.ask()[:, 2:], Differential(3, 9, seed=1).ask()[:, 2:])
    search.tell(search.ask(), np.full(9, np.inf))
    assert not np.isin(points, search.ask()).any()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("function", "at", "n_parameters", "generations"),
    [(sphere, [0.3, 0.4, 0.5, 0.6], 4, 150), (rosenbrock, 0.75, 5, 600), (rastrigin, 0.4, 5, 500)],
)
def test_it_finds_the_lowest_point(function, at, n_parameters, generations, seed):
    search = Differential(n_parameters, 50, seed)
    costs = run(search, function, generations)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 1e-8
    np.testing.assert_allclose(search.best, at, atol=1e-4)


@pytest.mark.parametrize("corner", [0.0, 1.0])
def test_it_finds_a_minimum_on_a_face(corner):
    search = Differential(3, 40, 1)
    run(search, lambda x: np.abs(x - corner).sum(0), 300)
    np.testing.assert_allclose(search.best, corner, atol=1e-6)


@pytest.mark.parametrize(("n_parameters", "population"), [(1, 4), (2, 5), (5, 31)])
def test_the_seed_decides_whatever_the_array_module(n_parameters, population):
    def searched(seed, xp=np):
        search = Differential(n_parameters, population, seed, xp=xp)
        run(search, sphere, 9)
        return search.ask()

    np.testing.assert_array_equal(searched(7), searched(7))
    np.testing.assert_array_equal(searched(7), searched(7, NumpyInDisguise()))
    for other in (8, 7 + 2**32):
        assert not np.isin(searched(7), searched(other)).any()


def test_one_flat_cost_everywhere_is_no_trouble():
    search = Differential(2, 10, seed=1)
    assert run(search, lambda x: np.ones(x.shape[1]), 5) == [1.0] * 5


@pytest.mark.gpu
def test_a_device_breeds_what_the_host_does():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    host, device = Differential(5, 1001, 3), Differential(5, 1001, 3, xp=cupy)
    for _ in range(6):
        candidates, other = host.ask(), device.ask()
        assert isinstance(other, cupy.ndarray)
        np.testing.assert_allclose(other.get(), candidates, rtol=0, atol=1e-9)
        cost = sphere(candidates)
        host.tell(candidates, cost)
        device.tell(cupy.asarray(candidates), cupy.asarray(cost))
    assert device.best_cost == host.best_cost


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": 3}, "population"),
        ({"n_parameters": 0}, "free parameter"),
        ({"seed": -1}, "seed"),
        ({"elite": 0.0}, "elite"),
        ({"elite": 1.1}, "elite"),
        ({"elite": math.nan}, "elite"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Differential(**{"n_parameters": 2, "population": 10, "seed": 1, **arguments})


@pytest.mark.parametrize(("shape", "n_costs"), [((2, 10), 9), ((3, 10), 10), ((2, 9), 9)])
def test_what_was_not_asked_for_is_refused(shape, n_costs):
    with pytest.raises(ValueError, match="not those asked for"):
        Differential(2, 10, seed=1).tell(np.zeros(shape), np.zeros(n_costs))
