"""Particle swarms: each of their rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from channelfit.search.swarm import (
    GroupTopology,
    RingTopology,
    Swarm,
    SwarmCoefficients,
    WholeTopology,
)
from support.landscapes import run, sphere

# Every statistical test has a fixed seed; this is how unlikely a sound generator misses it.
LEVEL = 1e-3

# Leaders


def python_leader(topology, cost, particle: int, iteration: int) -> float:
    """The best cost that a particle may follow, in plain Python."""
    n = len(cost)
    if isinstance(topology, WholeTopology) or (
        isinstance(topology, GroupTopology) and iteration % topology.exchange == 0
    ):
        near = range(n)
    elif isinstance(topology, RingTopology):
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
        st.just(WholeTopology()),
        st.builds(RingTopology, st.integers(1, 20)),
        st.builds(GroupTopology, st.integers(1, 12), st.integers(1, 5)),
    ),
    st.integers(1, 12),
)
def test_a_leader_is_the_best_of_those_a_particle_knows(cost, topology, iteration):
    leaders = topology.leaders(np.array(cost), iteration, np)
    assert leaders.shape == (len(cost),)
    for particle, leader in enumerate(leaders):
        assert cost[leader] == python_leader(topology, cost, particle, iteration)


# The flight


def test_a_move_is_the_published_formula():
    """Three turns again in plain NumPy, where no particle meets a face, from the swarm's draws."""
    swarm = Swarm(
        3, 6, seed=5, topology=WholeTopology(), coefficients=SwarmCoefficients(speed_limit=1e-3)
    )
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


def test_faces_are_mirrors():
    position, velocity = Swarm(1, 5, seed=1)._reflected(
        np.array([-0.25, 0.0, 0.5, 1.0, 1.75]), np.array([-1.0, -1.0, 1.0, 1.0, 1.0])
    )
    assert position.tolist() == [0.25, 0.0, 0.5, 1.0, 0.25]
    assert velocity.tolist() == [1.0, -1.0, 1.0, 1.0, -1.0]


def test_fewer_at_a_time_are_every_other_one_and_know_what_the_others_found():
    swarm = Swarm(2, 7, seed=4, topology=RingTopology(), batch=4)
    whole = Swarm(2, 7, seed=4, topology=RingTopology())
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


# Searching


def test_a_run_repeats_for_ever():
    """Golden values: a change here changes every run that someone has published."""
    swarm = Swarm(2, 3, seed=2011, topology=RingTopology())
    run(swarm, sphere, 4)
    np.testing.assert_array_equal(swarm.ask(), GOLDEN)


GOLDEN = [
    [0.43349594013960224, 0.18670325040714944, 0.06611137391642051],
    [0.36127592657219043, 0.43792695591218467, 0.11218013780416669],
]
