"""Profiles against parabolas and against intervals from a direct search; ends that stay open."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from channelfit.model.channel import Parameter
from channelfit.results.uncertainty.estimate import estimate
from channelfit.results.uncertainty.profiles import profile, profiles
from channelfit.search.least_squares import refine
from support.uncertain import curve_objective


def line(n: int = 40):
    t = np.linspace(0, 1, n)
    design = np.stack([np.ones(n), t, t**2], axis=1)
    data = design @ [2.0, 3.0, 1.0] + 0.3 * np.random.default_rng(0).standard_normal(n)
    best = np.linalg.lstsq(design, data)[0]
    parameters = [Parameter(name, "pA", -50, 50) for name in "abc"]
    objective = curve_objective(lambda p: design @ p, data, parameters)
    return estimate(objective, objective.space.to_unit(best[:, None])[:, 0], n)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_profile_of_a_quadratic_is_a_parabola(place):
    found = line()
    one = profile(found, place)
    assert len(one.values) == 21
    center, error = one.values[10], found.physical_errors[place]
    np.testing.assert_allclose(one.chi_square, ((one.values - center) / error) ** 2, atol=1e-6)
    lower, upper = found.interval()
    assert one.lower == pytest.approx(lower[place], rel=1e-6)
    assert one.upper == pytest.approx(upper[place], rel=1e-6)
    assert not one.open_below
    assert not one.open_above
    names: list[str] = []
    same, some = profiles(found, [place], on_profile=names.append)
    assert same is found
    assert names == [p.name for p in some] == ["abc"[place]]


def exponential(upper: float = 50.0):
    """Few, noisy samples of an exponential: the rate's likelihood is lopsided."""
    t = np.linspace(0.1, 2, 12)
    data = 3 * np.exp(-4 * t) + 0.15 * np.random.default_rng(3).standard_normal(12)
    objective = curve_objective(
        lambda p: p[0] * np.exp(-p[1] * t[:, None]),
        data,
        [Parameter("size", "pA", 0, 100), Parameter("rate", "1/ms", 0.01, upper)],
    )
    start = objective.space.to_unit(np.array([[3.0], [4.0]]))
    found = estimate(objective, refine(objective, start, tolerance=1e-14).unit[:, 0], 12)
    return found, t, data


def test_a_lopsided_interval_is_that_of_a_direct_search():
    """The amplitude solved in closed form, the crossing found by Brent's method."""
    found, t, data = exponential()
    one = profile(found, 1)

    def squares(rate: float) -> float:
        shape = np.exp(-rate * t)
        size = max(shape @ data / (shape @ shape), 0.0)
        return float(np.sum((size * shape - data) ** 2))

    least = minimize(lambda k: squares(k[0]), [4.0], tol=1e-12)
    limit = least.fun * (1 + one.threshold / 10)
    rate = float(least.x[0])
    lower = brentq(lambda k: squares(k) - limit, 0.01, rate)
    upper = brentq(lambda k: squares(k) - limit, rate, 49)
    assert one.lower == pytest.approx(lower, rel=0.01)
    assert one.upper == pytest.approx(upper, rel=0.01)
    # and it is lopsided: no parabola
    assert upper - rate > 1.2 * (rate - lower)
    one = profile(exponential(upper=5.0)[0], 1)  # whose range cuts an end off
    assert (one.open_below, one.open_above, one.upper) == (False, True, 5.0)


def test_a_product_has_flat_profiles():
    t = np.linspace(0, 3, 50)[:, None]
    data = np.exp(-t[:, 0]) + 0.01 * np.random.default_rng(0).standard_normal(50)
    parameters = [Parameter(name, "1/ms", 0.01, 100, "log") for name in "ab"]
    objective = curve_objective(lambda p: np.exp(-p[0] * p[1] * t), data, parameters)
    start = objective.space.to_unit(np.array([[0.5], [2.0]]))
    found = estimate(objective, refine(objective, start, tolerance=1e-14).unit[:, 0], 50)
    one = profile(found, 0)
    assert (one.open_below, one.open_above) == (True, True)
    assert (one.lower, one.upper) == (0.01, 100)
    assert np.abs(one.chi_square).max() < 0.05


def test_a_profile_leads_to_a_better_fit_and_starts_again_there():
    """From a point that is no minimum, as an interrupted search leaves it."""
    best = line()
    off = best.unit + np.array([0.01, -0.02, 0.01])
    found = estimate(best.objective, off, best.n_samples)
    assert found.distance > 3
    moved, (one,) = profiles(found, [0])
    np.testing.assert_allclose(moved.unit, best.unit, atol=1e-8)
    assert one.lower == pytest.approx(best.interval()[0][0], rel=1e-6)
    assert one.chi_square.min() >= -1e-9
