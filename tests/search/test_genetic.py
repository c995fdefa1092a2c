"""The genetic algorithm: its random numbers, each of its operators, and that it finds minima."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.reading.errors import InputError
from channelfit.search.genetic import Genetic, default_crossover_rate
from channelfit.search.philox import below, philox, uniform

# Every statistical test below has a fixed seed; the level says how unlikely a sound generator
# is to miss it for the seed that happened to be chosen.
LEVEL = 1e-3


def binomial_is_plausible(hits: int, draws: int, probability: float) -> bool:
    return stats.binomtest(int(hits), draws, probability).pvalue > LEVEL


def started(cost, population=1000, n_parameters=4, **more) -> Genetic:
    """A search whose first generation has been told `cost` (n_candidates,)."""
    genetic = Genetic(n_parameters, population, seed=more.pop("seed", 1), **more)
    genetic.tell(genetic.ask(), cost)
    return genetic


def labelled(population: int, n_parameters: int, cost=None, **more) -> Genetic:
    """A search told a population where each value names its candidate: value = index / 2**20."""
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
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
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


def python_philox(counter, key):
    """The cipher once more in whole numbers of Python, straight from the paper."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (
            (p1 >> 32) ^ x1 ^ k0,
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ x3 ^ k1,
            p0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [x0, x1, x2, x3]


WORD = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=5), WORD, WORD)
def test_philox_agrees_with_whole_number_arithmetic(counters, k0, k1):
    columns = [np.array(column, dtype=np.uint64) for column in zip(*counters, strict=True)]
    expected = [python_philox(counter, (k0, k1)) for counter in counters]
    assert philox(columns, (k0, k1)).tolist() == expected


def test_philox_does_not_depend_on_how_many_counters_are_asked_for():
    whole = philox((np.arange(20001, dtype=np.uint64), 5, 6, 7), (8, 9))
    for start in (0, 8191, 8192, 20000):
        part = philox((np.arange(start, 20001, dtype=np.uint64), 5, 6, 7), (8, 9))
        np.testing.assert_array_equal(part, whole[start:])


def test_uniform_draws_stay_below_one():
    last = np.array([0, 0xFFFFFFFF], dtype=np.uint32)
    assert uniform(last, last).tolist() == [0.0, 1 - 2.0**-53]


def test_integers_below_n_cover_their_range_evenly():
    words = philox((np.arange(25_000, dtype=np.uint64), 0, 0, 0), (1, 2)).reshape(-1)
    counts = np.bincount(below(words, 7), minlength=7)
    assert counts.size == 7
    assert stats.chisquare(counts).pvalue > LEVEL
    assert below(np.array([0xFFFFFFFF], dtype=np.uint32), 2**20).tolist() == [2**20 - 1]


# The first generation


def test_the_first_generation_is_uniform_and_independent():
    candidates = Genetic(4, 20_001, seed=3).ask()
    assert candidates.shape == (4, 20_001)
    assert candidates.min() >= 0
    assert candidates.max() <= 1
    for row in candidates:
        assert stats.kstest(row, "uniform").pvalue > LEVEL
    correlation = np.corrcoef(candidates)[np.triu_indices(4, 1)]
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in candidates]
    assert np.abs([*correlation, *neighbours]).max() < 4 / math.sqrt(20_001)


def test_a_candidate_is_drawn_alike_in_a_population_of_any_size():
    small, large = Genetic(3, 11, seed=5).ask(), Genetic(3, 400, seed=5).ask()
    np.testing.assert_array_equal(small, large[:, :11])


def test_the_seed_decides_and_asking_twice_changes_nothing():
    one, again, other, high = (Genetic(3, 50, seed=s) for s in (7, 7, 8, 7 + 2**32))
    np.testing.assert_array_equal(one.ask(), again.ask())
    np.testing.assert_array_equal(one.ask(), one.ask())
    assert not np.isin(one.ask(), other.ask()).any()
    assert not np.isin(one.ask(), high.ask()).any()


def test_starting_points_take_the_first_slots_once():
    points = np.array([[0.1, 0.2], [0.3, 0.4], [0.0, 1.0]])
    genetic, bare = Genetic(3, 9, seed=1, initial=points), Genetic(3, 9, seed=1)
    np.testing.assert_array_equal(genetic.ask()[:, :2], points)
    np.testing.assert_array_equal(genetic.ask()[:, 2:], bare.ask()[:, 2:])
    genetic.tell(genetic.ask(), np.full(9, np.inf))
    assert not np.isin(points, genetic.ask()).any()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros((2, 1)), "3 values each"),
        (np.zeros((3, 6)), "6 starting points do not fit"),
        (np.array([0.0, 1.1, 0.0]), "inside the bounds"),
        (np.array([0.0, np.nan, 0.0]), "inside the bounds"),
    ],
)
def test_bad_starting_points_are_refused(points, message):
    with pytest.raises(InputError, match=message):
        Genetic(3, 5, seed=1, initial=points)


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


def test_the_two_parents_of_a_pair_are_drawn_independently():
    first, second = labelled(4, 1, seed=2)._select(20_000)
    table = np.zeros((4, 4))
    np.add.at(table, (first, second), 1)
    assert stats.chi2_contingency(table).pvalue > LEVEL


def test_candidates_without_a_cost_win_against_their_like_only():
    cost = np.arange(10, dtype=float)
    cost[5:] = [np.nan, np.inf, np.nan, -np.inf, np.inf]
    first, second = labelled(10, 1, cost, seed=4)._select(20_000)
    for parents in (first, second):
        assert binomial_is_plausible((parents >= 5).sum(), parents.size, 0.25)


# Crossover


@pytest.mark.parametrize(("rate", "n_parameters"), [(0.1, 9), (0.8, 9), (1.0, 2), (0.37, 31)])
def test_crossover_has_its_rate_and_its_point_is_uniform(rate, n_parameters):
    n_pairs = 40_000
    points = started(np.arange(1000.0), n_parameters=n_parameters, crossover_rate=rate)
    points = points._crossover_points(n_pairs)
    crossed = points[points < n_parameters]
    if rate == 1:
        assert crossed.size == n_pairs
    else:
        assert binomial_is_plausible(crossed.size, n_pairs, rate)
    counts = np.bincount(crossed, minlength=n_parameters)
    assert counts[0] == 0
    if n_parameters > 2:
        assert stats.chisquare(counts[1:]).pvalue > LEVEL


@given(st.integers(2, 60), st.integers(1, 8), st.floats(0, 1), st.integers(0, 2**64 - 1))
def test_children_are_one_point_mixtures_and_pairs_complete_each_other(
    population, n_parameters, rate, seed
):
    genetic = labelled(population, n_parameters, seed=seed, crossover_rate=rate, mutation_rate=0.0)
    first, second = genetic._select(population // 2)
    children = labels(genetic.ask())
    assert (children[:, 0] == 0).all()
    n_pairs = population // 2
    for pair in range(n_pairs):
        a, b = first[pair], second[pair]
        one = children[:, 1 + pair]
        ways = [[a] * p + [b] * (n_parameters - p) for p in range(1, n_parameters + 1)]
        assert one.tolist() in ways
        if 1 + n_pairs + pair < population:
            two = children[:, 1 + n_pairs + pair]
            np.testing.assert_array_equal(one + two, np.full(n_parameters, a + b))


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


def test_without_crossover_and_mutation_children_are_copies_of_parents():
    genetic = labelled(100, 5, seed=1, crossover_rate=0.0, mutation_rate=0.0)
    children = labels(genetic.ask())
    assert (children == children[0]).all()


def test_large_populations_cross_more():
    assert default_crossover_rate(112) == default_crossover_rate(4999) == 0.1
    assert default_crossover_rate(5000) == default_crossover_rate(11_200) == 0.8
    assert Genetic(2, 11_200, seed=0).crossover_rate == 0.8
    assert Genetic(2, 11_200, seed=0, crossover_rate=0.3).crossover_rate == 0.3


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


def test_mutations_of_one_candidate_are_independent():
    mutated = mutants(0.2, 40_001, 3)[:, 1:] < 2
    counts = np.bincount(mutated.sum(0), minlength=4)
    expected = stats.binom(3, 0.2).pmf(range(4)) * mutated.shape[1]
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_mutation_differs_from_generation_to_generation():
    genetic = Genetic(5, 4000, seed=6, mutation_rate=0.1)
    masks = []
    for _ in range(2):
        genetic.tell(np.full((5, 4000), 2.0), np.zeros(4000))
        masks.append(genetic.ask()[:, 1:] < 2)
    assert binomial_is_plausible((masks[0] & masks[1]).sum(), masks[0].size, 0.01)


def test_mutation_rates_of_zero_and_one():
    assert (mutants(0.0, 999, 3) == 2).all()
    children = mutants(1.0, 999, 3)
    assert (children[:, 1:] < 2).all()
    assert (children[:, 0] == 2).all()


# The elite


def sphere(candidates: np.ndarray) -> np.ndarray:
    return ((candidates - 0.7) ** 2).sum(0)


@settings(max_examples=60, deadline=None)
@given(
    population=st.integers(1, 40),
    n_parameters=st.integers(1, 6),
    seed=st.integers(0, 2**64 - 1),
    crossover_rate=st.floats(0, 1),
    mutation_rate=st.floats(0, 1),
    failing=st.floats(0, 1),
    dtype=st.sampled_from(["float64", "float32"]),
)
def test_the_best_is_never_lost_and_never_changed(
    population, n_parameters, seed, crossover_rate, mutation_rate, failing, dtype
):
    genetic = Genetic(n_parameters, population, seed, crossover_rate, mutation_rate, dtype=dtype)
    best, best_vector = math.inf, None
    for _ in range(8):
        candidates = genetic.ask()
        assert candidates.shape == (n_parameters, population)
        assert candidates.dtype == dtype
        assert ((candidates >= 0) & (candidates <= 1)).all()
        if best_vector is not None:
            assert candidates[:, 0].tobytes() == best_vector
        cost = sphere(candidates.astype(float))
        # the same candidates fail whenever they are asked for, as a real model's would
        cost[candidates[0] < failing / 2] = np.nan
        cost[candidates[0] > 1 - failing / 2] = -np.inf
        lowest = min((c for c in cost if np.isfinite(c)), default=math.inf)
        if lowest < best:
            place = int(np.flatnonzero(cost == lowest)[0])
            best, best_vector = lowest, candidates[:, place].tobytes()
        genetic.tell(candidates, cost)
        assert genetic.best_cost == best
    assert (genetic.best is None) == (best_vector is None)


def test_of_equal_costs_the_first_becomes_the_elite_and_stays():
    genetic = started(np.array([3.0, 1.0, 1.0, 2.0]), population=4)
    elite = genetic.best.copy()
    np.testing.assert_array_equal(elite, Genetic(4, 4, seed=1).ask()[:, 1])
    genetic.tell(genetic.ask(), np.ones(4))
    np.testing.assert_array_equal(genetic.best, elite)


def test_an_elite_that_is_told_a_worse_cost_is_kept():
    genetic = started(np.array([3.0, 1.0, 2.0]), population=3)
    elite = genetic.best.copy()
    for cost in (np.full(3, 9.0), np.full(3, np.nan), np.full(3, -np.inf)):
        genetic.tell(genetic.ask(), cost)
        assert genetic.best_cost == 1.0
        np.testing.assert_array_equal(genetic.ask()[:, 0], elite)


def test_the_elite_outlives_the_array_it_was_told_in():
    genetic = Genetic(3, 5, seed=1)
    candidates = genetic.ask()
    best = candidates[:, 2].copy()
    genetic.tell(candidates, np.array([3.0, 4.0, 1.0, 2.0, 5.0]))
    candidates[:] = 0.5
    np.testing.assert_array_equal(genetic.best, best)


def test_as_long_as_everything_fails_each_generation_is_drawn_afresh():
    genetic = Genetic(3, 500, seed=2)
    first = genetic.ask()
    genetic.tell(first, np.full(500, np.inf))
    second = genetic.ask()
    assert genetic.best is None
    assert genetic.best_cost == math.inf
    assert not np.isin(second, first).any()
    assert stats.kstest(second.ravel(), "uniform").pvalue > LEVEL


@pytest.mark.parametrize("population", [1, 2, 3])
@pytest.mark.parametrize("n_parameters", [1, 2])
def test_the_smallest_searches_run(population, n_parameters):
    genetic = Genetic(n_parameters, population, seed=1, crossover_rate=1.0, mutation_rate=0.5)
    costs = []
    for _ in range(200):
        candidates = genetic.ask()
        assert candidates.shape == (n_parameters, population)
        genetic.tell(candidates, sphere(candidates))
        costs.append(genetic.best_cost)
    assert costs == sorted(costs, reverse=True)
    if population == 1:
        assert len(set(costs)) == 1
    else:
        assert costs[-1] < 0.02


# Searching


def rastrigin(candidates: np.ndarray) -> np.ndarray:
    x = (candidates - 0.5) * 10.24
    return 10 * len(x) + (x**2 - 10 * np.cos(2 * np.pi * x)).sum(0)


def lowest(function, generations: int, population: int, n_parameters: int, seed: int) -> float:
    genetic = Genetic(n_parameters, population, seed)
    for _ in range(generations):
        candidates = genetic.ask()
        genetic.tell(candidates, function(candidates))
    return genetic.best_cost


@pytest.mark.parametrize("function", [sphere, rastrigin])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_beats_random_search_by_far(function, seed):
    found = lowest(function, 80, 500, 6, seed)
    scattered = function(Genetic(6, 80 * 500, seed).ask()).min()
    assert found < 0.2 * scattered


def test_a_run_repeats_for_ever():
    """Golden values: a change here changes every run that someone has published."""
    genetic = Genetic(2, 5, seed=2012, crossover_rate=0.8, mutation_rate=0.3)
    for _ in range(4):
        candidates = genetic.ask()
        genetic.tell(candidates, sphere(candidates))
    elite = [0.5907556618596125, 0.7831980167315665]
    expected = np.tile(np.array(elite)[:, None], 5)
    expected[:, 2] = [0.4496691520929359, 0.6962630547614753]
    expected[1, 3] = 0.18611367495501474
    np.testing.assert_array_equal(genetic.ask(), expected)


@pytest.mark.parametrize("population", [1, 2, 1001])
def test_a_device_breeds_the_same_bits(population):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    points = np.full((5, 1), 0.25)
    host = Genetic(5, population, 3, 0.8, 0.05, initial=points)
    device = Genetic(5, population, 3, 0.8, 0.05, xp=cupy, initial=points)
    for generation in range(6):
        candidates, other = host.ask(), device.ask()
        assert isinstance(other, cupy.ndarray)
        np.testing.assert_array_equal(other.get(), candidates)
        cost = sphere(candidates) if generation else np.full(population, np.nan)
        host.tell(candidates, cost)
        device.tell(other, cupy.asarray(cost))
    assert device.best_cost == host.best_cost


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": 0}, "population"),
        ({"n_parameters": 0}, "free parameter"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"crossover_rate": 1.1}, "crossover_rate"),
        ({"mutation_rate": -0.1}, "mutation_rate"),
        ({"mutation_rate": math.nan}, "mutation_rate"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Genetic(**{"n_parameters": 2, "population": 10, "seed": 1, **arguments})


@pytest.mark.parametrize(("shape", "n_costs"), [((2, 10), 9), ((3, 10), 10), ((2, 0), 0)])
def test_what_does_not_fit_together_is_refused(shape, n_costs):
    with pytest.raises(ValueError, match="do not fit together"):
        Genetic(2, 10, seed=1).tell(np.zeros(shape), np.zeros(n_costs))
