"""Swarms in kernels: the rules of `swarm.Swarm`, draw for draw, and what asynchrony must keep."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from device_swarms import LocalGroups, SynchronousRing

from channelfit.functions.function import build_function
from channelfit.functions.scorers import FunctionCuda
from channelfit.functions.swarm_cuda import AsynchronousRing, swarm_text
from channelfit.search.space import SearchSpace
from channelfit.search.swarm import GroupTopology, RingTopology, Swarm
from support import cuda_host
from support.truths import slow_but

COSTS = {
    "sphere": ("sum(x[i]**2, i, 1, n)", [-100, 100]),
    "rosenbrock": ("sum(100*(x[i + 1] - x[i]**2)**2 + (x[i] - 1)**2, i, 1, n - 1)", [-30, 30]),
    "griewank": ("1 + sum(x[i]**2, i, 1, n)/4000 - prod(cos(x[i]/sqrt(i)), i, 1, n)", [-600, 600]),
}
DTYPES = ("float64", "float32")
#: Not a number where x[1] lies in the upper half of its range, or anywhere.
HALF = ("sum(x[i]**2, i, 1, n) + log(-x[1])", [-2, 2])


@pytest.fixture(autouse=True)
def played_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cuda_host.HostCupy())


def function(cost, n, limits, **more):
    parameters = {"x": {"size": "n", "range": limits, **more}}
    return build_function({"sizes": {"n": n}, "parameters": parameters, "cost": cost}, None)


def scorer(name, n, dtype="float64"):
    cost, limits = COSTS[name]
    return FunctionCuda(function(cost, n, limits), dtype)


def bests_by_numpy(problem, population, seed, topology, iterations):
    """Own best costs and positions by `swarm.Swarm`, costs by walking the expressions."""
    space = SearchSpace(problem.model.parameters)
    swarm = Swarm(space.n_free, population, seed, topology)
    for _ in range(iterations):
        unit = swarm.ask()
        swarm.tell(unit, problem.cost(space.to_physical(unit)))
    return swarm._own_cost, space.to_physical(swarm._own)


@pytest.mark.parametrize(
    ("name", "n", "population"), [("sphere", 1, 2), ("rosenbrock", 5, 7), ("griewank", 33, 1)]
)
def test_the_synchronous_ring_flies_as_the_swarm_on_the_host(name, n, population):
    on = scorer(name, n)
    ring = SynchronousRing(on, population, seed=3)
    ring.fly(4)
    ring.fly(5)
    cost, best = bests_by_numpy(on.problem, population, 3, RingTopology(), 9)
    np.testing.assert_allclose(ring.costs[0], cost, rtol=1e-9)
    np.testing.assert_allclose(ring.bests[0].T, best, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("group", "lanes"), [(4, 8), (3, 1), (12, 2)])
def test_groups_fly_as_the_swarm_on_the_host(group, lanes):
    on = scorer("rosenbrock", 5)
    swarm = LocalGroups(on, 12, seed=9, group=group, exchange=3, lanes=lanes)
    swarm.fly(11)
    cost, best = bests_by_numpy(on.problem, 12, 9, GroupTopology(group, 3), 11)
    np.testing.assert_allclose(swarm.costs[0], cost, rtol=1e-8)
    np.testing.assert_allclose(swarm.bests[0].T, best, rtol=1e-8, atol=1e-8)


def all_swarms(on, population=6, seed=5):
    yield AsynchronousRing(on, population, seed)
    yield SynchronousRing(on, population, seed)
    yield LocalGroups(on, population, seed, group=3, exchange=4, lanes=4)


@pytest.mark.parametrize("dtype", slow_but(DTYPES[:1], DTYPES))
def test_a_best_is_what_its_position_costs(dtype):
    on = scorer("griewank", 40, dtype)
    for swarm in all_swarms(on):
        swarm.fly(12)
        again = on.problem.cost(swarm.bests[0].T)
        np.testing.assert_allclose(swarm.costs[0], again, rtol=1e-9 if dtype == "float64" else 2e-4)


def test_what_is_not_a_number_never_becomes_a_best():
    on = FunctionCuda(function(HALF[0], 3, HALF[1]))
    for swarm in all_swarms(on, population=9):
        for _ in range(6):
            swarm.fly(3)
            costs, bests = swarm.costs, swarm.bests
            assert not np.isnan(costs).any()
            found = np.isfinite(costs)
            assert (bests[found][:, 0] < 0).all()
        assert found.all()


@pytest.mark.parametrize(("dtype", "scale"), [("float64", "log"), ("float32", "linear")])
def test_bounds_hold(dtype, scale):
    """A cost that pulls every particle out of its range, bounds that float32 cannot hold."""
    lower, upper = 0.1, 0.7
    problem = function("sum(x[i], i, 1, 2) - x[3]", 3, [lower, upper], scale=scale)
    on = FunctionCuda(problem, dtype)
    for swarm in all_swarms(on):
        for _ in range(5):
            swarm.fly(4)
            for place in (swarm.positions, swarm.bests):
                assert (place >= lower).all()
                assert (place <= upper).all()
        best = swarm.bests[0, int(swarm.costs[0].argmin())]
        np.testing.assert_allclose(best, [lower, lower, upper], atol=0.05)


def test_swarms_side_by_side_are_swarms_of_the_seeds_that_follow():
    on = scorer("rosenbrock", 4)
    together = SynchronousRing(on, 5, seed=20, swarms=3)
    together.fly(7)
    for k in range(3):
        alone = SynchronousRing(on, 5, seed=20 + k)
        alone.fly(7)
        np.testing.assert_array_equal(together.bests[k], alone.bests[0])


def test_a_torn_record_is_not_followed():
    """A neighbour stopped in the middle of writing: its version is odd, its cost a lie."""
    on = scorer("sphere", 3)
    ring = AsynchronousRing(on, 2, seed=4)
    ring.fly(5)
    alone = np.array(ring._flight)
    for version, followed in ((1, False), (2, True)):
        ring._flight[...] = alone
        ring._version[0, 1], ring._cost[0, 1], ring._best[0, 1] = version, 1e-9, 77.0
        ring._cost[0, 0], ring._best[0, 0] = 1e6, alone[0, 0, 0]
        ring.iteration = 5
        before = ring.positions[0, 0]
        ring.fly(1)
        moved = np.abs(ring.positions[0, 0] - before).max()
        velocity = np.abs(alone[0, 0, 1]).max()
        assert (moved > velocity) == followed


@pytest.mark.parametrize(
    ("kind", "dtype"),
    slow_but(
        [(AsynchronousRing, "float64")],
        [(k, d) for k in (AsynchronousRing, SynchronousRing, LocalGroups) for d in DTYPES],
    ),
)
def test_the_text_compiles_for_a_device(kind, dtype):
    group, lanes = (32, 4) if kind is LocalGroups else (1, 32)
    on = scorer("griewank", 128, dtype)
    cuda_host.compile_with_nvrtc(swarm_text(on.source.text, kind.kind, lanes, group))
