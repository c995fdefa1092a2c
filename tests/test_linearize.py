"""Costs with exact derivatives, against the reference and against differences."""

from __future__ import annotations

import numpy as np
import pytest
from test_backends import SHIPPED, candidates, scored

from channelfit.backends import OK, make_scorer

N = 5


@pytest.mark.parametrize("name", SHIPPED)
def test_cost_is_the_score_of_the_reference(name: str) -> None:
    problem = scored(name)
    parameters = candidates(problem.model, N, seed=3)
    local = make_scorer(problem, "cpu").linearize(parameters)
    assert (local.status == OK).all()
    assert local.cost == pytest.approx(
        make_scorer(problem, "reference").score(parameters).cost, rel=1e-9
    )


@pytest.mark.parametrize("name", ["model_b", "herg_beattie", "herg_markov"])
def test_gradient_is_the_slope_of_the_cost(name: str) -> None:
    problem = scored(name)
    here = problem.model.values()
    scorer = make_scorer(problem, "cpu", path="stepping")
    local = scorer.linearize(here[:, None])
    for k in range(len(here)):
        step = 1e-3 * here[k] * np.array([1.0, -1.0, 0.5, -0.5])
        around = np.tile(here[:, None], 4)
        around[k] += step
        cost = scorer.score(around).cost
        coarse, fine = (cost[0] - cost[1]) / (2 * step[0]), (cost[2] - cost[3]) / (2 * step[2])
        scale = np.abs(local.gradient[:, 0] * here).max() / abs(here[k])
        assert abs((4 * fine - coarse) / 3 - local.gradient[k, 0]) < 1e-6 * scale
