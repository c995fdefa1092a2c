"""The genetic algorithm: its random numbers and each of its operators."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from channelfit.search.genetic import Genetic
from channelfit.search.philox import philox

# Every statistical test below has a fixed seed; the level says how unlikely a sound generator
# is to miss it for the seed that happened to be chosen.
LEVEL = 1e-3


def binomial_is_plausible(hits: int, draws: int, probability: float) -> bool:
    return stats.binomtest(int(hits), draws, probability).pvalue > LEVEL


def labelled(population: int, n_parameters: int, cost=None, **more) -> Genetic:
    """A search with a population where each value names its candidate: value = index / 2**20."""
    candidates = np.tile(np.arange(population) / 2**20, (n_parameters, 1))
    genetic = Genetic(n_parameters, population, **more)
    genetic.tell(candidates, np.arange(population, dtype=float) if cost is None else cost)
    return genetic


def labels(children: np.ndarray) -> np.ndarray:
    return np.rint(children * 2**20).astype(int)


# The generator


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    """The known answers of Random123 1.14, philox4x32-10."""
    first, *rest = counter
    assert philox((np.array([first], dtype=np.uint64), *rest), key).tolist() == [list(expected)]


# Selection


@pytest.mark.parametrize("population", [2, 3, 10, 57])
def test_a_tournament_of_two_picks_ranks_with_the_published_pressure(population):
    """With replacement, rank r of N (0 is best) wins with 1-(1-1/N)^2 at r = 0, and so on."""
    n_pairs = 20_000
    genetic = labelled(population, 1, seed=11)
    rank = np.arange(population + 1)
    at_least = (1 - rank / population) ** 2  # both of a tournament drawn from rank r upward
    expected = at_least[:-1] - at_least[1:]
    assert expected[0] == pytest.approx(1 - (1 - 1 / population) ** 2)
    for parents in genetic._select(n_pairs):
        counts = np.bincount(parents, minlength=population)
        assert stats.chisquare(counts, expected * n_pairs).pvalue > LEVEL


def test_candidates_without_a_cost_win_against_their_like_only():
    cost = np.arange(10, dtype=float)
    cost[5:] = [np.nan, np.inf, np.nan, -np.inf, np.inf]
    first, second = labelled(10, 1, cost, seed=4)._select(20_000)
    for parents in (first, second):
        assert binomial_is_plausible((parents >= 5).sum(), parents.size, 0.25)


# Crossover


@pytest.mark.parametrize(("rate", "n_parameters"), [(0.1, 9), (0.8, 4), (1.0, 2)])
def test_children_change_parents_at_every_point_equally_often(rate, n_parameters):
    """Seen in the children themselves: in one bred of two different parents the label changes."""
    population = 20_001
    genetic = labelled(population, n_parameters, seed=8, crossover_rate=rate, mutation_rate=0.0)
    first, second = genetic._select(population // 2)
    children = labels(genetic.ask())[:, 1 : 1 + population // 2][:, first != second]
    changes = (np.diff(children, axis=0) != 0).sum(1)
    if rate < 1:
        assert binomial_is_plausible(changes.sum(), children.shape[1], rate)
    else:
        assert changes.sum() == children.shape[1]
    if n_parameters > 2:
        assert stats.chisquare(changes).pvalue > LEVEL


# Mutation


def mutants(rate: float, population: int, n_parameters: int, seed: int = 6) -> np.ndarray:
    """Children of a population that has only values of 2, those mutated thus in [0, 1)."""
    genetic = Genetic(n_parameters, population, seed=seed, mutation_rate=rate)
    genetic.tell(np.full((n_parameters, population), 2.0), np.zeros(population))
    return genetic.ask()


@pytest.mark.parametrize("rate", [1e-4, 0.01, 3 / 256, 0.1, 0.5, 0.999])
def test_mutation_has_its_rate_in_every_row_and_replaces_uniformly(rate):
    children = mutants(rate, 30_001, 5)
    mutated = children[:, 1:] < 2
    for row in mutated:
        assert binomial_is_plausible(row.sum(), row.size, rate)
    assert binomial_is_plausible(mutated.sum(), mutated.size, rate)
    values = children[:, 1:][mutated]
    assert values.min() >= 0
    assert stats.kstest(values, "uniform").pvalue > LEVEL


# A run of all of it


def test_a_run_repeats_for_ever():
    """Golden values: a change here changes every run that someone has published."""
    genetic = Genetic(2, 5, seed=2012, crossover_rate=0.8, mutation_rate=0.3)
    for _ in range(4):
        candidates = genetic.ask()
        genetic.tell(candidates, ((candidates - 0.7) ** 2).sum(0))
    elite = [0.5907556618596125, 0.7831980167315665]
    expected = np.tile(np.array(elite)[:, None], 5)
    expected[:, 2] = [0.4496691520929359, 0.6962630547614753]
    expected[1, 3] = 0.18611367495501474
    np.testing.assert_array_equal(genetic.ask(), expected)
