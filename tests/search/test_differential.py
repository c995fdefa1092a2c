"""Differential evolution: each of its rules."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from channelfit.search.differential import Differential

LEVEL = 1e-3


def started(cost, n_parameters=3, **more) -> Differential:
    """A search that has learned the costs (n_candidates,) of its first generation."""
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
