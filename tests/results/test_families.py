"""Families of landscapes whose valleys are known by construction."""

from __future__ import annotations

import numpy as np
import pytest

from channelfit.model.channel import Parameter
from channelfit.results.uncertainty.estimate import estimate
from channelfit.results.uncertainty.families import families, good_fits, representatives
from support.uncertain import curve_objective

N = 60
T = np.linspace(0, 3, N)[:, None]
NOISE = 0.05 * np.random.default_rng(0).standard_normal(N)


def landscape(function, parameters, values):
    values = np.array(values, dtype=float)[:, None]
    objective = curve_objective(function, function(values)[:, 0] + NOISE, parameters)
    unit = objective.space.to_unit(values)[:, 0]
    return estimate(objective, unit, N)


def found_in(found, n_starts=40):
    unit, cost = good_fits(found, n_starts, seed=1, n_draws=256)
    return families(found, unit, cost)


def test_one_bowl_is_one_family():
    found = landscape(
        lambda p: p[0] + p[1] * T, [Parameter(k, "", -9, 9) for k in "ab"], [1.0, 2.0]
    )
    (one,) = found_in(found)
    assert one.unit.shape == (2, 41)
    assert one.chi_square[one.best] == one.chi_square.min()
    np.testing.assert_allclose(np.ptp(one.unit, axis=1), 0, atol=1e-6)
    assert [n for _, n in representatives(one)] == [41]
    random = np.random.default_rng(0)
    for apart in (0.0, 1e-14, 1e-9):  # fits that coincide
        unit = found.unit[:, None] + apart * random.standard_normal((2, 30))
        (one,) = families(found, unit, found.objective.score(unit).cost)
        assert one.unit.shape[1] == 30


def test_a_long_flat_valley_is_one_family():
    """Only the product counts: a hyperbola through the whole space."""
    found = landscape(
        lambda p: np.exp(-p[0] * p[1] * T), [Parameter(k, "", 0.05, 20) for k in "ab"], [1.0, 1.0]
    )
    (one,) = found_in(found)
    assert one.unit.shape[1] > 20
    assert np.ptp(one.unit, axis=1).min() > 0.3
    few = representatives(one)
    assert len(few) == 4
    assert sum(n for _, n in few) == one.unit.shape[1]
    # they lie along the valley, and each fit is near to one of them
    picked = one.unit[:, [k for k, _ in few]]
    assert np.ptp(picked, axis=1).min() > 0.2
    apart = ((one.unit[:, :, None] - picked[:, None]) ** 2).sum(axis=0).min(axis=1)
    assert apart.mean() < one.unit.var(axis=1).sum() / 5


def test_two_fits_at_the_ends_of_a_curved_valley_are_one_family():
    """The straight line between them leaves the valley; a path by refined midpoints does not."""
    found = landscape(
        lambda p: np.exp(-p[0] * p[1] * T), [Parameter(k, "", 0.05, 20) for k in "ab"], [1.0, 1.0]
    )
    a, b = found.objective.physical(found.unit[:, None])[:, 0]
    ends = found.objective.space.to_unit(np.array([[a / 3, 3 * a], [3 * b, b / 3]]))
    middle = found.objective.score(ends.mean(axis=1)[:, None]).cost
    assert found.chi_square(middle)[0] > 2 * found.threshold(n=2)
    (one,) = families(found, ends, found.objective.score(ends).cost)
    assert one.unit.shape == (2, 2)


def test_two_exponentials_that_can_be_swapped_are_two_families():
    found = landscape(
        lambda p: np.exp(-p[0] * T) + np.exp(-p[1] * T),
        [Parameter(k, "", 0.05, 20, "log") for k in "ab"],
        [0.3, 4.0],
    )
    two = found_in(found)
    assert len(two) == 2
    best = [found.objective.physical(f.unit[:, [f.best]])[:, 0] for f in two]
    np.testing.assert_allclose(best[0], best[1][::-1], rtol=1e-3)


def test_close_but_separate_valleys_are_told_apart():
    """Two valleys a hundredth of the range from each other, with a wall between."""
    found = landscape(
        lambda p: 4e4 * (p[0] ** 2 - 0.02) ** 2 + p[1] * T,
        [Parameter("x", "", -7, 7), Parameter("y", "", -5, 5)],
        [np.sqrt(0.02), 1.0],
    )
    unit = found.objective.space.to_unit(np.array([[0.02**0.5, -(0.02**0.5)], [1.0, 1.0]]))
    cost = found.objective.score(unit).cost
    assert len(families(found, unit, cost)) == 2


def test_worse_fits_do_not_count_and_the_medoid_is_in_the_middle():
    found = landscape(lambda p: p[0] + 0 * T, [Parameter("a", "", -9, 9)], [1.0])
    error = found.errors[0]
    unit = found.unit[:, None] + error * np.array([[-1.5, 0.1, -0.2, 0.0, 1.5, 9.0]])
    (one,) = families(found, unit, found.objective.score(unit).cost)
    assert np.abs(one.unit - found.unit[0]).max() < 2 * error
    assert one.unit[0, one.medoid] == pytest.approx(found.unit[0], abs=0.11 * error)
