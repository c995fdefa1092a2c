"""The loop: what stops it, what it records, and what it makes of settings and failures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import Score, make_scorer
from channelfit.search.choose import make_optimizer
from channelfit.search.genetic import Genetic
from channelfit.search.loop import StopRules, make_stop_rules, optimize
from channelfit.search.objective import Objective
from support.bowls import SPACE, Bowl
from support.places import MODELS


class Failing(Bowl):
    """As the bowl, but candidates with a > 5 fail: k < 1 lose occupancy, the rest give NaN."""

    def score(self, parameters: np.ndarray) -> Score:
        score = super().score(parameters)
        a, _, k = parameters
        score.cost[a > 5] = np.nan
        score.status[(a > 5) & (k < 1)] = 2
        score.cost[(a > 5) & (k < 1)] = np.inf
        return score


class Hopeless(Bowl):
    def score(self, parameters: np.ndarray) -> Score:
        self.calls += 1
        n = parameters.shape[1]
        status = np.array([1, 2, 2, 0, 4] * n, dtype=np.int8)[:n]
        return Score(np.full(n, np.inf), status)


def fit(stop: StopRules, scorer=None, on_generation=None, population: int = 50):
    optimizer = Genetic(2, population, 1)
    return optimize(optimizer, Objective(SPACE, scorer or Bowl()), stop, on_generation)


@pytest.mark.parametrize("name", ["hybrid", "genetic"])
def test_a_search_is_the_same_on_any_number_of_cores(name: str) -> None:
    fit = load_plan(
        MODELS / "model_a.yaml", [f"fit.optimizer={{name: {name}}}", "fit.stop={evaluations: 3000}"]
    )
    runs = []
    for threads in (1, 2, 5):
        scorer = make_scorer(fit.problem, "cpu")
        scorer.n_threads = threads  # type: ignore[attr-defined]
        runs.append(optimize(fit.make_optimizer(np), fit.objective(scorer), fit.stop_rules))
    first, *others = runs
    for other in others:
        assert other.values.tobytes() == first.values.tobytes()
        assert other.history["best_cost"].tobytes() == first.history["best_cost"].tobytes()


# Stopping


@pytest.mark.parametrize(
    ("rules", "generations", "reason"),
    [
        ({"generations": 7}, 7, "7 generations done"),
        ({"evaluations": 120}, 3, "150 candidates scored of 120 allowed"),
        ({"generations": 5, "evaluations": 10**6, "seconds": 3600}, 5, "5 generations done"),
        ({"generations": 5, "evaluations": 100}, 2, "100 candidates scored of 100 allowed"),
    ],
)
def test_the_first_rule_that_holds_ends_a_search(rules, generations, reason):
    scorer = Bowl()
    result = fit(StopRules(**rules), scorer)
    assert (result.generations, scorer.calls, result.stop_reason) == (
        generations,
        generations,
        reason,
    )
    assert result.evaluations == scorer.seen == 50 * generations
    again = fit(StopRules(**rules))
    assert again.values.tobytes() == result.values.tobytes()
    assert again.history["best_cost"].tobytes() == result.history["best_cost"].tobytes()


def test_stop_at_a_cost():
    result = fit(StopRules(generations=500, cost=0.05))
    assert result.cost <= 0.05
    assert result.generations < 500
    assert (result.history["best_cost"][:-1] > 0.05).all()
    assert result.stop_reason == f"cost {result.cost:.6g} reached the target 0.05"


def test_stop_after_seconds(monkeypatch):
    clock = iter(np.arange(0, 1000, 0.5))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    result = fit(StopRules(seconds=3))
    assert result.generations == 6
    assert result.stop_reason == "3 s passed of 3 s allowed"
    assert result.history["seconds"].tolist() == [0.5, 1, 1.5, 2, 2.5, 3]


class Scripted(Bowl):
    """The best cost of each generation is given; a step of the script is one generation."""

    def __init__(self, costs: list[float]) -> None:
        super().__init__()
        self.costs = costs

    def score(self, parameters: np.ndarray) -> Score:
        cost = np.full(parameters.shape[1], self.costs[min(self.calls, len(self.costs) - 1)])
        self.calls += 1
        return Score(cost, np.zeros(cost.size, dtype=np.int8))


@pytest.mark.parametrize(
    ("costs", "tolerance", "generations"),
    [
        ([10, 9, 8, 8, 8, 8, 1], 1e-6, 6),  # no gain in 3 after the third
        ([10, 9.99, 9.98, 9.97, 1], 0.01, 4),  # gains below 1 % do not count
        ([10, 9.96, 9.92, 9.88, 9.84, 9.8], 0.01, 7),  # but small ones add up, to 9.88
        ([math.inf, math.inf, 10, 10, 10, 10], 0.0, 6),  # the first finite cost is a gain
        ([-1, -2, -2, -2, -2], 0.1, 5),  # costs may be negative
        ([0, 0, 0, 0, 0], 1e-6, 4),
    ],
)
def test_stop_at_stagnation(costs, tolerance, generations):
    rules = StopRules(stagnation=3, tolerance=tolerance, generations=20)
    result = fit(rules, Scripted([float(c) for c in costs]))
    assert result.generations == generations
    assert result.stop_reason == f"no relative gain above {tolerance:g} in 3 generations"


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("generations", 0),
        ("generations", 2.5),
        ("seconds", "60 s"),
        ("cost", math.nan),
    ],
)
def test_bad_rules_are_refused_by_key(rule, value):
    with pytest.raises(InputError, match="stop: at least one rule"):
        fit(StopRules())
    with pytest.raises(InputError) as caught:
        StopRules(**{rule: value})
    assert caught.value.key == f"stop.{rule}"
    assert str(value).lstrip("-") in str(caught.value) or repr(value) in str(caught.value)


# Ctrl-C


def test_an_interrupt_ends_with_the_best_so_far():
    result = fit(StopRules(generations=100), Bowl(interrupt=4))
    whole = fit(StopRules(generations=3))
    assert result.stop_reason == "interrupted"
    assert (result.generations, result.evaluations) == (3, 150)
    assert result.cost == whole.cost
    assert result.values.tobytes() == whole.values.tobytes()
    with pytest.raises(KeyboardInterrupt):
        fit(StopRules(generations=100), Bowl(interrupt=1))


# Failed candidates


def test_failures_are_counted_and_never_win():
    result = fit(StopRules(generations=10), Failing(), population=200)
    assert math.isfinite(result.cost)
    assert result.parameters["a"] <= 5
    assert set(result.failures) == {"not finite", "occupancy lost"}
    share = result.history["failed"]
    assert 0.35 < share[0] < 0.65  # half of the range of a fails in a uniform draw
    assert sum(result.failures.values()) == round(share.sum() * 200)
    assert np.isfinite(result.history["median_cost"]).all()


def test_a_search_in_which_everything_fails_says_how():
    scorer = Hopeless()
    message = (
        "no candidate could be scored; of 100 candidates, "
        "40 not finite, 40 occupancy lost, 20 negative rate"
    )
    with pytest.raises(InputError, match=message):
        fit(StopRules(generations=2), scorer)
    assert scorer.calls == 2


# Progress and result


def test_progress_tells_each_generation():
    reports = []
    result = fit(StopRules(generations=12, seconds=1e6), on_generation=reports.append)
    assert [progress.generation for progress in reports] == list(range(1, 13))
    assert [progress.evaluations for progress in reports] == list(range(50, 601, 50))
    assert [progress.best_cost for progress in reports] == result.history["best_cost"].tolist()
    first = SPACE.to_physical(Genetic(2, 50, 1).ask())
    assert reports[-1].parameters.tobytes() == result.values.tobytes()
    history = result.history
    assert history["generation"].tolist() == list(range(1, 13))
    assert (np.diff(history["best_cost"]) <= 0).all()
    assert (np.diff(history["seconds"]) >= 0).all()
    assert (history["failed"] == 0).all()
    assert history["median_cost"][0] == np.median(Bowl().cost(first))
    for progress in reports:
        assert progress.best_cost == Bowl().cost(progress.parameters[:, None])[0]
        rate = progress.evaluations / progress.seconds
        assert progress.candidates_per_second == pytest.approx(rate)
        pace = progress.seconds / progress.generation
        assert progress.seconds_left == pytest.approx((12 - progress.generation) * pace)


# Settings


@pytest.mark.parametrize(
    ("name", "settings", "key", "message"),
    [
        ("genetics", {}, "optimizer.name", 'unknown optimizer "genetics"; did you mean genetic?'),
        ("genetic", {"popluation": 9}, "optimizer.popluation", "did you mean population?"),
        ("genetic", {"population": 2.5}, "optimizer.population", "whole number, 1 or more"),
        ("genetic", {"crossover_rate": 80}, "optimizer.crossover_rate", "between 0 and 1, not 80"),
        ("ring", {"population": 8, "batch": 9}, "optimizer.batch", "population of 8: 9"),
        ("swarm", {"population": 9, "islands": 2, "migrants": 9}, "optimizer.migrants", "of 9: 9"),
        ("genetic", {"migrate_every": 1.5}, "optimizer.migrate_every", "a whole number"),
        ("cma", {"islands": 2}, "optimizer.islands", "Known: population"),
    ],
)
def test_bad_settings_are_refused_with_what_is_known(name, settings, key, message):
    with pytest.raises(InputError) as caught:
        make_optimizer(name, settings, n_parameters=2, seed=1)
    assert caught.value.key == key
    assert message in str(caught.value)


def test_generations_may_stand_with_the_optimizer_or_with_the_rules():
    assert make_stop_rules() == StopRules(generations=300)
    assert make_stop_rules({}, {"generations": 50}) == StopRules(generations=50)
    assert make_stop_rules({"generations": 50}, {"generations": 50}) == StopRules(generations=50)
    rules = make_stop_rules({"cost": 0.1, "seconds": 60}, {"population": 9})
    assert rules == StopRules(generations=300, cost=0.1, seconds=60)
    with pytest.raises(
        InputError, match=r"stop\.generations: 40, but optimizer.generations says 50"
    ):
        make_stop_rules({"generations": 40}, {"generations": 50})
