"""A fit is brought to its minimum before it is judged; where it cannot be, the words say why."""

from __future__ import annotations

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.model.channel import Parameter
from channelfit.results.uncertainty.assessment import assess, brought_to_minimum
from channelfit.results.uncertainty.estimate import estimate
from channelfit.results.uncertainty.profiles import profiles
from channelfit.scoring.scorer import Score, make_scorer
from support.uncertain import Differences, curve_objective, loaded, written

ADVICE = "refines the fit first"


class Coarse(Differences):
    """Scores by steps that are less exact than what derivatives are taken from, as on ramps."""

    def __init__(self, problem) -> None:
        super().__init__(problem)
        self.preview = self._reference.score
        self.score = lambda p: Score(1.02 * self.preview(p).cost, self.preview(p).status)


def test_a_score_that_differs_from_the_derivatives_does_not_stop_the_refinement(tmp_path):
    fit = loaded(tmp_path, noise=5.0)
    values = fit.problem.model.values() * np.array([1.02, 0.99, 1.02, 0.995])
    scorer = Coarse(fit.problem)
    before = assess(fit, scorer, values)
    assert any(ADVICE in remark for remark in before.remarks)
    after = assess(fit, scorer, values, finish=True)
    assert after.estimate.distance < 0.1
    assert after.estimate.cost < before.estimate.cost
    assert not any(ADVICE in remark for remark in after.remarks)


def rippled():
    """A line through data, and ripples that least squares is caught in."""
    t = np.linspace(0, 1, 40)[:, None]
    data = 2 + 3 * t[:, 0] + 0.5 * np.random.default_rng(2).standard_normal(40)

    def current(p: np.ndarray) -> np.ndarray:
        return p[0] + p[1] * t + 0.06 * np.cos(60 * p[0]) * np.sin(40 * t)

    parameters = [Parameter("offset", "pA", 0, 10), Parameter("slope", "pA", 0, 10)]
    return curve_objective(current, data, parameters)


@pytest.mark.parametrize("offset", [1.7, 2.3])
def test_it_ends_at_the_minimum_of_its_own_profiles(offset):
    objective = rippled()
    unit = brought_to_minimum(objective, objective.space.to_unit(np.array([[offset], [3.0]])), 40)
    found = estimate(objective, unit[:, 0], 40)
    same, all_of_them = profiles(found)
    assert same is found
    for one in all_of_them:
        assert one.chi_square.min() > -0.1
    # the truth by brute force, over five standard errors either way
    offsets = np.linspace(1.2, 2.8, 4001)
    grid = np.array([(o, s) for s in np.linspace(2, 4, 81) for o in offsets]).T
    lowest = min(
        float(objective.scorer.score(piece).cost.min())
        for piece in np.array_split(grid, 40, axis=1)
    )
    assert found.cost <= lowest * (1 + 1e-9)


def test_bounds_on_rates_that_hold_a_fit_back_are_named_and_refining_is_not_advised(tmp_path):
    fit = load_plan(written(tmp_path, noise=5.0), ["fit.rates_within=[1.0e-4 /ms, 0.28 /ms]"])
    scorer = make_scorer(fit.problem, "cpu")
    values = fit.problem.model.values()
    values[0] *= 0.8  # the true rate is 0.1*exp(0.03*40) = 0.33 at 40 mV
    for finish in (False, True):
        judged = assess(fit, scorer, values, finish=finish)
        text = " ".join(judged.remarks)
        assert "the bounds on the rates of C -> O keep the fit" in text
        assert ADVICE not in text
