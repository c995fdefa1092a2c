"""CMA-ES: what this package adds to pycma, and that it finds minima."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channelfit.reading.errors import InputError
from channelfit.search.cma_es import CmaEs, _ranked
from support.landscapes import NumpyInDisguise, rastrigin, rosenbrock, run, sphere

cma = pytest.importorskip("cma")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("function", "at", "n_parameters", "generations"),
    [(sphere, [0.3, 0.4, 0.5, 0.6], 4, 80), (rosenbrock, 0.75, 5, 300), (sphere, 0.3, 1, 60)],
)
def test_it_finds_the_lowest_point(function, at, n_parameters, generations, seed):
    search = CmaEs(n_parameters, 16, seed)
    costs = run(search, function, generations)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 1e-8
    np.testing.assert_allclose(search.best, at, atol=1e-4)


def test_it_is_pycma_until_the_first_descent_ends():
    """The same strategy driven by hand, with the same draws, to the last bit."""
    random = np.random.Generator(np.random.Philox(key=5))
    options = {
        "bounds": [0.0, 1.0],
        "popsize": 12,
        "seed": np.nan,
        "verbose": -9,
        "randn": lambda *shape: random.standard_normal(shape),
    }
    by_hand, search = cma.CMAEvolutionStrategy([0.5] * 3, 0.3, options), CmaEs(3, 12, 5)
    for _ in range(20):
        points = by_hand.ask()
        candidates = search.ask()
        np.testing.assert_array_equal(candidates, np.array(points).T)
        by_hand.tell(points, rosenbrock(candidates).tolist())
        search.tell(candidates, rosenbrock(candidates))
    assert search.descents == 1
    assert search.best_cost == by_hand.best.f


def test_restarts_pass_over_other_minima_with_larger_and_smaller_populations():
    search = CmaEs(4, 8, seed=3)
    sizes = set()
    for _ in range(900):
        candidates = search.ask()
        sizes.add(candidates.shape[1])
        search.tell(candidates, rastrigin(candidates))
    assert search.descents > 3
    assert {8, 16} < sizes
    np.testing.assert_allclose(search.best, 0.4, atol=1e-4)


def test_small_descents_have_their_share_of_candidates():
    search = CmaEs(2, 6, seed=1)
    run(search, sphere, 600)
    large, small = search._scored[False], search._scored[True]
    assert search.descents > 5
    assert 0.3 < small / large < 2
    assert search._growth > 2


@settings(max_examples=25, deadline=None)
@given(
    n_parameters=st.integers(1, 4),
    population=st.integers(4, 12),
    seed=st.integers(0, 2**64 - 1),
    step=st.floats(0.01, 0.33),
    failing=st.floats(0, 1),
)
def test_bounds_hold_and_only_what_was_told_and_finite_becomes_a_best(
    n_parameters, population, seed, step, failing
):
    search = CmaEs(n_parameters, population, seed, step)
    random = np.random.default_rng(1)
    best = math.inf
    for _ in range(12):
        candidates = search.ask()
        np.testing.assert_array_equal(candidates, search.ask())
        assert candidates.shape[0] == n_parameters
        assert ((candidates >= 0) & (candidates <= 1)).all()
        cost = sphere(candidates)
        fails = random.random(cost.size) < failing
        cost[fails] = random.choice([np.nan, np.inf, -np.inf], fails.sum())
        search.tell(candidates, cost)
        best = min([best, *cost[np.isfinite(cost)]])
        assert search.best_cost == best
    assert (search.best is None) == (best == math.inf)
    if search.best is not None:
        assert sphere(search.best[:, None])[0] == best


@example([1.0, 100.0, math.nan])
@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=20))
def test_what_failed_ranks_last_and_all_is_finite(costs):
    cost = np.array(costs)
    finite = np.isfinite(cost) & (np.abs(cost) < 1e300)
    if not finite.any():
        return
    ranked = _ranked(cost, finite)
    assert np.isfinite(ranked).all()
    np.testing.assert_array_equal(ranked[finite], cost[finite])
    if not finite.all():
        assert ranked[~finite].min() > ranked[finite].max() or ranked[finite].max() > 1e15


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_any_cost_it_starts_elsewhere_until_it_has_one_and_then_searches(bad):
    search = CmaEs(3, 10, seed=2)
    for descents in (1, 2, 3):
        candidates = search.ask()
        assert search.descents == descents
        search.tell(candidates, np.full(10, bad))
        assert search.best is None
        assert not np.isin(search.ask(), candidates).any()
    assert run(search, sphere, 80)[-1] < 1e-6


def test_it_searches_where_much_fails():
    def corner(candidates: np.ndarray) -> np.ndarray:
        return np.where((candidates < 0.65).all(0), sphere(candidates), np.nan)

    assert run(CmaEs(4, 16, seed=3), corner, 80)[-1] < 1e-6


@pytest.mark.parametrize("corner", [0.0, 1.0])
def test_it_finds_a_minimum_on_a_face(corner):
    search = CmaEs(3, 16, 1)
    run(search, lambda x: np.abs(x - corner).sum(0), 150)
    np.testing.assert_allclose(search.best, corner, atol=1e-6)


def test_starting_points_are_scored_first():
    points = np.array([[0.1, 0.2], [0.3, 0.4], [0.05, 0.95]])
    search = CmaEs(3, 9, seed=1, initial=points)
    first = search.ask()
    np.testing.assert_allclose(first[:, :2], points, rtol=0, atol=1e-12)
    assert first.shape == (3, 9)
    assert run(search, sphere, 80)[-1] < 1e-6


def test_the_seed_decides_and_nothing_else_does():
    def searched(seed, xp=np, noise=0):
        search = CmaEs(3, 8, seed, xp=xp)
        for _ in range(40):
            np.random.seed(noise)
            candidates = search.ask()
            search.tell(candidates, sphere(candidates))
        return search.ask()

    np.testing.assert_array_equal(searched(7), searched(7, noise=5))
    np.testing.assert_array_equal(searched(7), searched(7, NumpyInDisguise()))
    assert not np.isin(searched(7), searched(8)).any()
    assert not np.isin(searched(7), searched(7 + 2**32)).any()


def test_the_global_generator_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    run(CmaEs(2, 6, 1), sphere, 60)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_it_leaves_no_files_and_reads_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cma_signals.in").write_text("{'maxiter': 1}")
    search = CmaEs(2, 8, 1)
    run(search, sphere, 20)
    assert search.descents == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cma_signals.in"]


def test_one_flat_cost_everywhere_is_no_trouble(recwarn):
    search = CmaEs(2, 8, seed=1)
    assert run(search, lambda x: np.ones(x.shape[1]), 60) == [1.0] * 60
    assert search.descents > 1
    assert not recwarn.list


def test_without_pycma_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(InputError, match=r'cma is not installed.*pip install "channelfit\[cma\]"'):
        CmaEs(2, 8, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": 3}, "population"),
        ({"n_parameters": 0}, "free parameter"),
        ({"seed": -1}, "seed"),
        ({"step": 0.0}, "step"),
        ({"step": 0.4}, "step"),
        ({"step": math.nan}, "step"),
        ({"initial": np.full((2, 1), 1.1)}, "inside the bounds"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        CmaEs(**{"n_parameters": 2, "population": 10, "seed": 1, **arguments})


@pytest.mark.parametrize(("shape", "n_costs"), [((2, 10), 9), ((3, 10), 10), ((2, 9), 9)])
def test_what_was_not_asked_for_is_refused(shape, n_costs):
    with pytest.raises(ValueError, match="not those asked for"):
        CmaEs(2, 10, seed=1).tell(np.zeros(shape), np.zeros(n_costs))
