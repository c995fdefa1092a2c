"""Rules of every optimizer: bounds, seeds, its best, failures, starting points; that it finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.reading.errors import InputError
from channelfit.search.cma_es import CmaEs
from channelfit.search.differential import Differential
from channelfit.search.genetic import Genetic
from channelfit.search.swarm import (
    GroupTopology,
    RingTopology,
    Swarm,
    SwarmCoefficients,
    WholeTopology,
)
from support.landscapes import NumpyInDisguise, rastrigin, rosenbrock, run, sphere

MAKERS: dict[str, Any] = {
    "genetic": Genetic,
    "whole": lambda *a, **k: Swarm(*a, topology=WholeTopology(), **k),
    "ring": lambda *a, **k: Swarm(*a, topology=RingTopology(), **k),
    "ring of 3": lambda *a, **k: Swarm(*a, topology=RingTopology(3), **k),
    "groups": lambda *a, **k: Swarm(*a, topology=GroupTopology(4, 3), **k),
    "differential": Differential,
    "cma": CmaEs,
}
DRAWN = [name for name in MAKERS if name != "cma"]  # those whose draws are words of Philox
every = pytest.mark.parametrize("name", MAKERS)
every_drawn = pytest.mark.parametrize("name", DRAWN)


@pytest.fixture(autouse=True)
def with_pycma(request: pytest.FixtureRequest) -> None:
    if "cma" in request.node.name:
        pytest.importorskip("cma")


def corner(candidates: np.ndarray) -> np.ndarray:
    """Only a corner has costs."""
    return np.where((candidates < 0.65).all(0), sphere(candidates), np.nan)


def some_settings(name: str, draw: Any) -> dict[str, Any]:
    """Settings of an optimizer anywhere in their ranges."""
    if name == "genetic":
        rates = st.floats(0, 1)
        return {"crossover_rate": draw(rates), "mutation_rate": draw(rates)}
    if name == "differential":
        return {"elite": draw(st.floats(0.01, 1))}
    if name == "cma":
        return {"step": draw(st.floats(0.01, 0.33))}
    pull, speed = draw(st.floats(0, 10)), draw(st.floats(1e-6, 1))
    flight = {"cognitive": pull, "social": pull, "speed_limit": speed}
    return {"coefficients": SwarmCoefficients(draw(st.floats(0, 1)), **flight)}


@every
@settings(max_examples=20)
@given(data=st.data())
def test_bounds_hold_and_only_what_was_told_and_finite_becomes_the_best(name: str, data: Any):
    n, seed = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 2**64 - 1))
    population = data.draw(st.integers(4 if name in ("differential", "cma") else 1, 30))
    failing, more = data.draw(st.floats(0, 1)), some_settings(name, data.draw)
    if name in ("whole", "ring", "ring of 3", "groups"):
        more["batch"] = data.draw(st.integers(1, population))
    search, random = MAKERS[name](n, population, seed, **more), np.random.default_rng(1)
    best, place = math.inf, None
    for _ in range(10):
        candidates = search.ask()
        np.testing.assert_array_equal(candidates, search.ask())
        assert len(candidates) == n
        assert candidates.dtype == np.float64
        assert ((candidates >= 0) & (candidates <= 1)).all()
        if name == "genetic" and place is not None:
            assert candidates[:, 0].tobytes() == place.tobytes()
        cost = sphere(candidates.astype(float))
        # the same candidates fail whenever they are asked for, as a real model's would
        fails = (candidates[0] * 1e4) % 1 < failing
        cost[fails] = random.choice([np.nan, np.inf, -np.inf], fails.sum())
        search.tell(candidates, cost)
        if np.isfinite(cost).any() and np.nanmin(np.where(np.isfinite(cost), cost, np.nan)) < best:
            lowest = int(np.where(np.isfinite(cost), cost, np.inf).argmin())
            best, place = cost[lowest], candidates[:, lowest].copy()
        candidates[:] = 0.5  # a best outlives the array in which it came
        assert search.best_cost == best
        assert (search.best is None) == (place is None)
        if place is not None:
            assert sphere(search.best[:, None].astype(float))[0] == best


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_any_cost_it_is_drawn_afresh_until_it_has_one_and_then_searches(name, bad):
    search = MAKERS[name](3, 60, 2)
    before = search.ask()
    for _ in range(3):
        search.tell(search.ask(), np.full(60, bad))
        assert search.best is None
        assert search.best_cost == math.inf
        assert not np.isin(search.ask(), before).any()
        before = search.ask()
    if name in DRAWN:
        assert stats.kstest(before.ravel(), "uniform").pvalue > 1e-3
    assert run(search, sphere, 80)[-1] < (2e-2 if name == "genetic" else 1e-3)


@pytest.mark.parametrize(
    ("name", "function", "n", "population", "turns", "bound"),
    [
        ("genetic", sphere, 6, 500, 80, 0.02),
        ("genetic", rastrigin, 3, 500, 80, 1.0),
        *((name, sphere, 4, 40, 150, 1e-6) for name in ("whole", "ring", "ring of 3", "groups")),
        *((name, rosenbrock, 2, 40, 500, 1e-6) for name in ("ring", "groups")),
        *((name, rastrigin, 4, 120, 400, 1e-4) for name in ("whole", "ring of 3", "groups")),
        ("differential", sphere, 4, 50, 150, 1e-8),
        ("differential", rosenbrock, 5, 50, 600, 1e-8),
        ("differential", rastrigin, 5, 50, 500, 1e-8),
        ("cma", sphere, 1, 16, 60, 1e-8),
        ("cma", sphere, 4, 16, 80, 1e-8),
        ("cma", rosenbrock, 5, 16, 300, 1e-8),
    ],
)
def test_it_finds_the_lowest_point(name, function, n, population, turns, bound):
    costs = run(MAKERS[name](n, population, 1), function, turns)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < bound


@every
def test_it_finds_a_minimum_on_a_face_and_where_much_fails(name):
    atol = 1e-2 if name == "genetic" else 1e-6
    for face in (0.0, 1.0):
        search = MAKERS[name](3, 40 if name != "genetic" else 400, 1)
        run(search, lambda x, face=face: np.abs(x - face).sum(0), 300 if name != "cma" else 120)
        np.testing.assert_allclose(search.best, face, atol=atol)
    search = MAKERS[name](3, 60, 3)
    assert run(search, corner, 150)[-1] < 1e-2
    if name in DRAWN:
        assert np.isfinite(corner(search.ask())).mean() > 0.5


@every
def test_the_seed_decides_whatever_the_array_module(name):
    def searched(seed, n, population, **more):
        search = MAKERS[name](n, population, seed, **more)
        run(search, sphere, 9)
        return search.ask()

    for n, population in ((1, 4), (2, 5), (5, 31)):
        one = searched(7, n, population)
        np.testing.assert_array_equal(one, searched(7, n, population))
        np.testing.assert_array_equal(one, searched(7, n, population, xp=NumpyInDisguise()))
        for other in (8, 7 + 2**32):
            found = searched(other, n, population)
            assert found.shape != one.shape or not (found == one).all()


@every_drawn
def test_the_first_generation_is_uniform_and_of_its_seed_alone(name):
    make = MAKERS[name]
    candidates = make(4, 10_001, 3).ask()
    for row in candidates:
        assert stats.kstest(row, "uniform").pvalue > 1e-3
    correlation = np.corrcoef(candidates)[np.triu_indices(4, 1)]
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in candidates]
    assert np.abs([*correlation, *neighbours]).max() < 4 / math.sqrt(10_001)
    np.testing.assert_array_equal(make(4, 11, 3).ask(), candidates[:, :11])
    for seed in (8, 3 + 2**32):
        assert not np.isin(make(4, 50, seed).ask(), candidates).any()


@every
def test_starting_points_take_the_first_places_once(name):
    points = np.array([[0.1, 0.2], [0.3, 0.4], [0.05, 0.95]])
    search, bare = MAKERS[name](3, 9, 1, initial=points), MAKERS[name](3, 9, 1)
    np.testing.assert_allclose(search.ask()[:, :2], points, rtol=0, atol=1e-12)
    assert search.ask().shape == (3, 9)
    if name in DRAWN:
        np.testing.assert_array_equal(search.ask()[:, 2:], bare.ask()[:, 2:])
    search.tell(search.ask(), np.full(9, np.inf))
    assert not np.isin(points, search.ask()).any()


@every
def test_one_flat_cost_everywhere_is_no_trouble_and_the_first_stays_the_best(name, recwarn):
    search = MAKERS[name](2, 10, 1)
    first = search.ask().copy()
    assert run(search, lambda x: np.ones(x.shape[1]), 40) == [1.0] * 40
    if name != "differential":  # which follows a plain
        np.testing.assert_array_equal(search.best, first[:, 0])
    assert not recwarn.list


@pytest.mark.gpu
@every_drawn
def test_a_device_searches_as_the_host_does(name):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    host, device = MAKERS[name](5, 1001, 3), MAKERS[name](5, 1001, 3, xp=cupy)
    for _ in range(6):
        candidates, other = host.ask(), device.ask()
        assert isinstance(other, cupy.ndarray)
        # rounding of a fused multiply and add may differ
        bound = 0 if name == "genetic" else 1e-9 if name == "differential" else 1e-12
        np.testing.assert_allclose(other.get(), candidates, rtol=0, atol=bound)
        cost = sphere(candidates)
        host.tell(candidates, cost)
        device.tell(cupy.asarray(candidates), cupy.asarray(cost))
    assert device.best_cost == host.best_cost


# --- mistakes


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        *((name, {"n_parameters": 0}, "free parameter") for name in ("genetic", "cma")),
        *((name, {"seed": -1}, "seed") for name in MAKERS),
        *((name, {"population": 0}, "population") for name in ("genetic", "ring")),
        *((name, {"population": 3}, "population") for name in ("differential", "cma")),
        *((name, {"initial": np.full((2, 1), 1.1)}, "inside the bounds") for name in MAKERS),
        ("genetic", {"seed": 2**64}, "seed"),
        ("genetic", {"crossover_rate": 1.1}, "crossover_rate"),
        ("genetic", {"initial": np.zeros((3, 1))}, "2 values each"),
        ("genetic", {"initial": np.zeros((2, 11))}, "11 starting points do not fit"),
        ("genetic", {"initial": np.full(2, np.nan)}, "inside the bounds"),
        ("ring", {"batch": 11}, "batch"),
        ("differential", {"elite": 1.1}, "elite"),
        ("cma", {"step": 0.4}, "step"),
    ],
)
def test_settings_out_of_range_are_refused(name, arguments, message):
    with pytest.raises(InputError, match=message):
        MAKERS[name](**{"n_parameters": 2, "population": 10, "seed": 1, **arguments})


@pytest.mark.parametrize(
    "numbers", [{"inertia": 1.1}, {"social": -0.1}, {"speed_limit": 1.5}, {"speed_limit": 0.0}]
)
def test_coefficients_out_of_range_are_refused(numbers):
    with pytest.raises(InputError, match=next(iter(numbers))):
        SwarmCoefficients(**numbers)


@every
def test_what_was_not_asked_for_is_refused(name):
    for shape, n_costs in (((2, 10), 9), ((3, 10), 10), ((2, 0), 0)):
        with pytest.raises(ValueError, match=r"not those asked for|do not fit together"):
            MAKERS[name](2, 10, seed=1).tell(np.zeros(shape), np.zeros(n_costs))
