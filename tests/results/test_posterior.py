"""Chains against the Gaussian they must sample, and against the edges of the cube."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from channelfit.model.channel import Parameter
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.estimate import Estimate, estimate
from channelfit.results.uncertainty.posterior import Posterior, log_posterior, split_r_hat
from channelfit.results.uncertainty.uncertainty_tasks import UncertaintyTasks, sample_posterior
from support.uncertain import curve_objective

pytest.importorskip("emcee")
N = 40
T = np.linspace(0, 1, N)


def line(lower: float = -50.0):
    design = np.stack([np.ones(N), T], axis=1)
    data = design @ [2.0, 3.0] + 0.3 * np.random.default_rng(0).standard_normal(N)
    best = np.linalg.lstsq(design, data)[0]
    parameters = [Parameter("a", "pA", lower, 50), Parameter("b", "pA", -50, 50)]
    objective = curve_objective(lambda p: design @ p, data, parameters)
    unit = objective.space.to_unit(np.clip(best, [lower, -50], 50)[:, None])[:, 0]
    return estimate(objective, unit, N, sigma_pA=0.3), best


def sampled_about(
    found: Estimate, steps: int, walkers: int | None = None, seed: int = 0
) -> Posterior:
    """Samples by an objective of this process, which needs no plan."""
    plan: Any = None
    tasks = UncertaintyTasks(
        plan, "", "", "", {}, found.objective, found=found, steps=steps, walkers=walkers, seed=seed
    )
    return sample_posterior(tasks)


def test_a_gaussian_is_sampled_with_the_covariance_of_the_estimate():
    found, best = line()
    sampled = sampled_about(found, 1500, seed=3)
    assert sampled.warnings == ()
    covariance = np.cov(sampled.samples)
    slopes = np.array([100.0, 100.0])
    wanted = found.covariance * np.outer(slopes, slopes)
    np.testing.assert_allclose(covariance, wanted, rtol=0.12)
    np.testing.assert_allclose(sampled.median, best, atol=0.1 * np.sqrt(wanted[0, 0]))
    for ours, theirs in zip(sampled.interval(), found.interval(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.2 * np.sqrt(wanted[0, 0]))
    assert (sampled.r_hat < 1.02).all()
    assert 0.2 < sampled.acceptance < 0.9


def test_the_prior_ends_at_the_range():
    """A range that begins at the best value leaves half a normal distribution."""
    _, best = line()
    found, _ = line(lower=float(best[0]))
    sampled = sampled_about(found, 1500, seed=1)
    assert sampled.samples[0].min() >= best[0]
    error = np.sqrt(0.09 * np.linalg.inv(np.array([[N, T.sum()], [T.sum(), T @ T]]))[0, 0])
    mean = sampled.samples[0].mean() - best[0]
    assert mean == pytest.approx(np.sqrt(2 / np.pi) * error, rel=0.1)


def test_the_same_seed_gives_the_same_chain():
    found, _ = line()
    one, same = (sampled_about(found, 30, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.samples, same.samples)
    assert any("too short" in warning for warning in one.warnings)
    sizes, score = [], found.objective.scorer.score
    found.objective.scorer.score = lambda p: (sizes.append(p.shape[1]), score(p))[1]
    other = sampled_about(found, 30, 32, seed=8)
    assert not np.array_equal(one.samples, other.samples)
    assert len(sizes) <= 2 * 30 + 6  # all walkers of a half are scored in one call
    assert max(sizes) == 32


def test_outside_the_cube_nothing_is_possible():
    found, _ = line()
    unit = np.stack([found.unit, [1.1, 0.5], [-0.1, 0.5], [np.nan, 0.5]], axis=1)
    np.testing.assert_array_equal(log_posterior(found, unit)[1:], -np.inf)
    assert log_posterior(found, unit)[0] == 0


def test_r_hat_sees_walkers_that_stay_apart():
    random = np.random.default_rng(0)
    together = random.standard_normal((400, 10, 1))
    assert split_r_hat(together)[0] == pytest.approx(1, abs=0.01)
    assert split_r_hat(together + 5 * np.arange(10)[:, None])[0] > 3


def test_walkers_must_be_enough_and_even_and_emcee_must_be_there(monkeypatch):
    found, _ = line()
    for walkers in (2, 33):
        with pytest.raises(InputError, match="cannot sample 2 parameters; an even number of 4"):
            sampled_about(found, 10, walkers)
    monkeypatch.setitem(sys.modules, "emcee", None)
    with pytest.raises(InputError, match=r'pip install "channelfit\[sure\]"'):
        sampled_about(found, 10)
