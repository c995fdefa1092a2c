"""Particle swarms: each of their rules, and that they find minima."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.reading.errors import InputError
from channelfit.search.swarm import Groups, Ring, Swarm, Whole
from support.landscapes import NumpyInDisguise, rastrigin, rosenbrock, run, sphere

# Every statistical test has a fixed seed; this is how unlikely a sound generator misses it.
LEVEL = 1e-3

TOPOLOGIES = [Whole(), Ring(), Ring(3), Groups(4, 3), Groups(7, 1)]


# Who leads


def python_leader(topology, cost, particle: int, iteration: int) -> float:
    """The best cost that a particle may follow, in plain Python."""
    n = len(cost)
    if isinstance(topology, Whole) or (
        isinstance(topology, Groups) and iteration % topology.exchange == 0
    ):
        near = range(n)
    elif isinstance(topology, Ring):
        k = topology.neighbors
        near = [i % n for i in range(particle - k, particle + k + 1)]
    else:
        first = particle - particle % topology.group
        near = range(first, min(first + topology.group, n))
    return min(cost[i] for i in near)


COSTS = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5, math.inf]), min_size=1, max_size=30)


@given(
    COSTS,
    st.one_of(
        st.just(Whole()),
        st.builds(Ring, st.integers(1, 20)),
        st.builds(Groups, st.integers(1, 12), st.integers(1, 5)),
    ),
    st.integers(1, 12),
)
def test_a_leader_is_the_best_of_those_a_particle_knows(cost, topology, iteration):
    leaders = topology.leaders(np.array(cost), iteration, np)
    assert leaders.shape == (len(cost),)
    for particle, leader in enumerate(leaders):
        assert cost[leader] == python_leader(topology, cost, particle, iteration)


def test_groups_exchange_seldom():
    cost = np.array([5.0, 4.0, 3.0, 2.0, 9.0])
    topology = Groups(2, 4)
    assert topology.leaders(cost, 4, np).tolist() == [3] * 5
    for iteration in (5, 6, 7):
        assert topology.leaders(cost, iteration, np).tolist() == [1, 1, 3, 3, 4]


def test_news_travels_one_neighbor_a_turn_round_the_ring():
    swarm = Swarm(1, 9, seed=1, topology=Ring(), inertia=0.0, cognitive=0.0)
    swarm.tell(swarm.ask(), np.where(np.arange(9) == 4, 0.0, 1.0))
    moved = swarm.ask() != swarm._position
    assert np.flatnonzero(moved[0]).tolist() == [3, 5]


# The flight


def test_a_move_is_the_published_formula():
    """Three turns again in plain NumPy, where no particle meets a face, from the swarm's draws."""
    swarm = Swarm(3, 6, seed=5, topology=Whole(), speed_limit=1e-3)
    swarm.tell(swarm.ask(), sphere(swarm.ask()))
    assert np.abs(swarm._velocity).max() == 1e-3
    own, own_cost = swarm._position.copy(), sphere(swarm._position)
    for _ in range(3):
        position, velocity = swarm._position.copy(), swarm._velocity.copy()
        one, two = swarm._draw(slice(0, 3))
        leader = own[:, [own_cost.argmin()]]
        velocity = (
            0.729844 * velocity
            + 1.49618 * one * (own - position)
            + 1.49618 * two * (leader - position)
        )
        position = position + np.clip(velocity, -1e-3, 1e-3)
        np.testing.assert_allclose(swarm.ask(), position, rtol=0, atol=1e-15)
        swarm.tell(swarm.ask(), sphere(swarm.ask()))
        better = sphere(position) < own_cost
        own, own_cost = (
            np.where(better, position, own),
            np.where(better, sphere(position), own_cost),
        )
    assert swarm.best_cost == pytest.approx(own_cost.min(), abs=1e-15)


def test_the_first_swarm_is_uniform_and_its_velocities_are_half_ways_to_anywhere():
    swarm = Swarm(4, 20_001, seed=3)
    position, velocity = swarm._fly()
    for row, speed in zip(position, velocity, strict=True):
        assert stats.kstest(row, "uniform").pvalue > LEVEL
        assert stats.kstest(row + 2 * speed, "uniform").pvalue > LEVEL
        assert abs(np.corrcoef(row, row + 2 * speed)[0, 1]) < 4 / math.sqrt(20_001)
    correlation = np.corrcoef(position)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() < 4 / math.sqrt(20_001)


def test_draws_of_different_turns_have_nothing_in_common():
    swarm = Swarm(3, 500, seed=3)
    seen = []
    for turn in range(3):
        swarm.generation = turn
        seen += list(swarm._draw(slice(0, 3)))
    everything = np.concatenate([draw.ravel() for draw in seen])
    assert np.unique(everything).size == everything.size
    assert stats.kstest(everything, "uniform").pvalue > LEVEL


def test_faces_are_mirrors():
    position, velocity = Swarm(1, 5, seed=1)._reflected(
        np.array([-0.25, 0.0, 0.5, 1.0, 1.75]), np.array([-1.0, -1.0, 1.0, 1.0, 1.0])
    )
    assert position.tolist() == [0.25, 0.0, 0.5, 1.0, 0.25]
    assert velocity.tolist() == [1.0, -1.0, 1.0, 1.0, -1.0]


def test_fewer_at_a_time_are_every_other_one_and_know_what_the_others_found():
    swarm = Swarm(2, 7, seed=4, topology=Ring(), batch=4)
    whole = Swarm(2, 7, seed=4, topology=Ring())
    first = swarm.ask()
    np.testing.assert_array_equal(first, whole.ask()[:, ::2])
    swarm.tell(first, sphere(first))
    second = swarm.ask()
    assert second.shape == (2, 3)
    swarm.tell(second, sphere(second))
    assert swarm.iteration == 1
    np.testing.assert_array_equal(swarm._position[:, ::2], first)
    np.testing.assert_array_equal(swarm._position[:, 1::2], second)
    candidates = swarm.ask()
    swarm.tell(candidates, np.array([9.0, -1.0, 9.0, 9.0]))  # particle 2
    assert swarm.topology.leaders(swarm._own_cost, 1, np)[[1, 3]].tolist() == [2, 2]


# Rules that always hold


@settings(max_examples=80, deadline=None)
@given(
    n_parameters=st.integers(1, 5),
    population=st.integers(1, 30),
    topology=st.sampled_from(TOPOLOGIES),
    seed=st.integers(0, 2**64 - 1),
    inertia=st.floats(0, 1),
    pull=st.floats(0, 10),
    speed_limit=st.floats(1e-6, 1),
    share=st.floats(0.01, 1),
    failing=st.floats(0, 1),
    dtype=st.sampled_from(["float64", "float32"]),
)
def test_bounds_hold_and_only_what_was_told_and_finite_becomes_a_best(
    n_parameters, population, topology, seed, inertia, pull, speed_limit, share, failing, dtype
):
    batch = max(1, round(share * population))
    swarm = Swarm(
        n_parameters,
        population,
        seed,
        topology,
        inertia,
        pull,
        pull,
        speed_limit,
        batch,
        dtype=dtype,
    )
    random = np.random.default_rng(1)
    best = math.inf
    for _ in range(12):
        candidates = swarm.ask()
        np.testing.assert_array_equal(candidates, swarm.ask())
        assert candidates.dtype == dtype
        assert ((candidates >= 0) & (candidates <= 1)).all()
        cost = sphere(candidates.astype(float))
        fails = random.random(cost.size) < failing
        cost[fails] = random.choice([np.nan, np.inf, -np.inf], fails.sum())
        before = swarm._own_cost.copy()
        swarm.tell(candidates, cost)
        best = min([best, *cost[np.isfinite(cost)]])
        assert swarm.best_cost == best
        assert (swarm._own_cost <= before).all()
        assert not np.isnan(swarm._own_cost).any()
        assert np.abs(swarm._velocity).max() <= np.float32(speed_limit) * (1 + 1e-6)
    proven = np.isfinite(swarm._own_cost)
    found = sphere(swarm._own.astype(float))[proven]
    np.testing.assert_allclose(swarm._own_cost[proven], found, rtol=0, atol=1e-12)
    assert (swarm.best is None) == (best == math.inf)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_bests_start_from_the_first_population(topology):
    swarm = Swarm(3, 20, seed=2, topology=topology)
    first = swarm.ask()
    cost = sphere(first)
    swarm.tell(first, cost)
    np.testing.assert_array_equal(swarm._own, first)
    np.testing.assert_array_equal(swarm._own_cost, cost)
    np.testing.assert_array_equal(swarm.best, first[:, cost.argmin()])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_swarm_without_any_cost_is_drawn_afresh_until_it_has_one_and_then_searches(topology, bad):
    swarm = Swarm(3, 40, seed=2, topology=topology)
    before = swarm.ask()
    for _ in range(3):
        candidates = swarm.ask()
        swarm.tell(candidates, np.full(40, bad))
        assert swarm.best is None
        assert swarm.best_cost == math.inf
        assert not np.isin(swarm.ask(), before).any()
        before = swarm.ask()
    assert stats.kstest(before.ravel(), "uniform").pvalue > LEVEL
    assert run(swarm, sphere, 80)[-1] < 1e-3


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_particles_without_a_cost_follow_one_that_has_one(topology):
    """Only a corner has costs: the swarm gathers there."""

    def corner(candidates: np.ndarray) -> np.ndarray:
        return np.where((candidates < 0.6).all(0), sphere(candidates), np.nan)

    swarm = Swarm(3, 60, seed=3, topology=topology)
    run(swarm, corner, 300)
    assert np.isfinite(corner(swarm._position)).mean() > 0.9


def test_of_equal_costs_the_older_best_stays():
    swarm = Swarm(2, 6, seed=1)
    first = swarm.ask()
    for _ in range(3):
        swarm.tell(swarm.ask(), np.ones(6))
    np.testing.assert_array_equal(swarm._own, first)


def test_a_best_outlives_the_array_it_was_told_in():
    swarm = Swarm(3, 5, seed=1)
    candidates = swarm.ask()
    best = candidates[:, 2].copy()
    swarm.tell(candidates, np.array([3.0, 4.0, 1.0, 2.0, 5.0]))
    candidates[:] = 0.5
    np.testing.assert_array_equal(swarm.best, best)


@pytest.mark.parametrize("batch", [None, 3])
def test_starting_points_are_where_the_first_particles_start(batch):
    points = np.array([[0.1, 0.2], [0.3, 0.4], [0.0, 1.0]])
    swarm = Swarm(3, 7, seed=1, initial=points, batch=batch)
    bare = Swarm(3, 7, seed=1, batch=batch)
    while swarm.iteration == 0:
        for one in (swarm, bare):
            one.tell(one.ask(), np.full(one.ask().shape[1], np.inf))
    np.testing.assert_array_equal(swarm._position[:, :2], points)
    np.testing.assert_array_equal(swarm._position[:, 2:], bare._position[:, 2:])
    assert np.abs(swarm._velocity).max() <= 0.5
    assert not np.isin(points, swarm.ask()).any()


# Searching


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("batch", [None, 20, 5])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_it_finds_the_bottom_of_a_bowl(topology, batch, seed):
    swarm = Swarm(4, 40, seed, topology, batch=batch)
    costs = run(swarm, sphere, 6000 // swarm.batch)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 1e-6


def test_one_at_a_time_finds_it_too():
    swarm = Swarm(2, 12, 1, Ring(), batch=1)
    assert run(swarm, sphere, 1500)[-1] < 1e-6


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_it_follows_a_curved_valley(topology, seed):
    swarm = Swarm(2, 40, seed, topology)
    assert run(swarm, rosenbrock, 500)[-1] < 1e-6
    np.testing.assert_allclose(swarm.best, 0.75, atol=1e-3)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_it_passes_over_other_minima(topology, seed):
    swarm = Swarm(4, 120, seed, topology)
    run(swarm, rastrigin, 400)
    np.testing.assert_allclose(swarm.best, 0.4, atol=1e-3)


@pytest.mark.parametrize("corner", [0.0, 1.0])
def test_it_finds_a_minimum_on_a_face(corner):
    swarm = Swarm(3, 40, 1, Ring())
    run(swarm, lambda x: np.abs(x - corner).sum(0), 400)
    np.testing.assert_allclose(swarm.best, corner, atol=1e-6)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(("n_parameters", "population"), [(1, 1), (1, 2), (2, 3), (5, 31)])
def test_the_seed_decides_whatever_the_array_module(topology, n_parameters, population):
    def searched(seed, xp=np, batch=None):
        swarm = Swarm(n_parameters, population, seed, topology, batch=batch, xp=xp)
        run(swarm, sphere, 9)
        return swarm.ask()

    np.testing.assert_array_equal(searched(7), searched(7))
    np.testing.assert_array_equal(searched(7), searched(7, NumpyInDisguise()))
    half = -(-population // 2)
    np.testing.assert_array_equal(
        searched(7, batch=half), searched(7, NumpyInDisguise(), batch=half)
    )
    for other in (8, 7 + 2**32):
        assert not np.isin(searched(7), searched(other)).any()


def test_a_run_repeats_for_ever():
    """Golden values: a change here changes every run that someone has published."""
    swarm = Swarm(2, 3, seed=2011, topology=Ring())
    run(swarm, sphere, 4)
    np.testing.assert_array_equal(swarm.ask(), GOLDEN)


GOLDEN = [
    [0.43349594013960224, 0.18670325040714944, 0.06611137391642051],
    [0.36127592657219043, 0.43792695591218467, 0.11218013780416669],
]


@pytest.mark.gpu
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_device_flies_where_the_host_does(topology):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    for batch in (None, 400):
        host = Swarm(5, 1001, 3, topology, batch=batch)
        device = Swarm(5, 1001, 3, topology, batch=batch, xp=cupy)
        for _ in range(6):
            candidates, other = host.ask(), device.ask()
            assert isinstance(other, cupy.ndarray)
            # rounding of a fused multiply and add may differ
            np.testing.assert_allclose(other.get(), candidates, rtol=0, atol=1e-12)
            cost = sphere(candidates)
            host.tell(candidates, cost)
            device.tell(cupy.asarray(candidates), cupy.asarray(cost))
        assert device.best_cost == host.best_cost


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": 0}, "population"),
        ({"n_parameters": 0}, "free parameter"),
        ({"seed": -1}, "seed"),
        ({"inertia": 1.1}, "inertia"),
        ({"inertia": math.nan}, "inertia"),
        ({"cognitive": -0.1}, "cognitive"),
        ({"social": math.inf}, "social"),
        ({"speed_limit": 0.0}, "speed_limit"),
        ({"speed_limit": 1.5}, "speed_limit"),
        ({"batch": 0}, "batch"),
        ({"batch": 11}, "batch"),
        ({"initial": np.full((2, 1), 1.1)}, "inside the bounds"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Swarm(**{"n_parameters": 2, "population": 10, "seed": 1, **arguments})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ring(0), "neighbors"),
        (lambda: Groups(0), "group"),
        (lambda: Groups(4, 0), "exchange"),
    ],
)
def test_topologies_out_of_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(("shape", "n_costs"), [((2, 10), 9), ((3, 10), 10), ((2, 9), 9)])
def test_what_was_not_asked_for_is_refused(shape, n_costs):
    with pytest.raises(ValueError, match="not those asked for"):
        Swarm(2, 10, seed=1).tell(np.zeros(shape), np.zeros(n_costs))
