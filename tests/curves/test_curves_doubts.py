"""Fits of curves that came out and are not to be trusted: each of them says why."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import least_squares

import channelfit as cf
from channelfit.curves.cpu import fit_on_cpu
from channelfit.curves.curve import Curve, build_curve, load_curve
from channelfit.curves.doubts import reasons_of
from channelfit.curves.fitting import CurveProblem, DataSets, Fits
from channelfit.reading.errors import InputError
from support.curve_sets import ONE_INPUT, activation, noisy, on_cpu, points

pytestmark = pytest.mark.optimized


def told_of(curve: Curve, data: DataSets, **settings: Any) -> tuple[Fits, list[tuple[str, str]]]:
    """Fits on a processor, and the quality and the reason of each."""
    found = on_cpu(curve, data, **settings)
    return found, reasons_of(CurveProblem.of(curve, data), found)


def test_as_many_points_as_parameters_leave_none_for_errors() -> None:
    curve, data = noisy("boltzmann", 2)
    values = np.full((2, 15), np.nan)
    kept = [[5, 6, 7, 10], [4, 6, 7, 8, 12]]
    for row, at in enumerate(kept):
        values[row, at] = data.values[row, at]
    found, told = told_of(curve, replace(data, values=values))
    assert np.isnan(found.errors[0]).all()
    assert np.isfinite(found.errors[1]).all()
    assert [quality for quality, _ in told] == ["check", "check"]
    assert "as many points as parameters" in told[0][1]
    assert "as many points as parameters" not in told[1][1]


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_a_curve_no_better_than_a_constant_is_not_ok(likelihood: str) -> None:
    """As of a cell that is dead: its activation curve is noise, and has a half all the same."""
    curve = replace(load_curve("boltzmann"), likelihood=likelihood)
    v = np.linspace(-100, 40, 60)
    random = np.random.default_rng(5)
    alive = 20 + 50 / (1 + np.exp((-30 - v) / 7))
    z = random.poisson(np.where(np.arange(60)[:, None] < 30, 40.0, alive)).astype(float)
    _, told = told_of(curve, points(curve, v, z))
    assert all(quality == "ok" for quality, _ in told[30:])
    dead = ["no better than a constant" in reason for _, reason in told[:30]]
    assert np.mean(dead) > 0.9


def test_amplitudes_that_cancel_are_not_determined() -> None:
    """Two exponentials fitted to one: where both come near each other, errors are without end."""
    curve = load_curve("double_exponential")
    t = np.linspace(0, 100, 200)
    z = np.exp(-t / 10) + np.random.default_rng(2).normal(0, 0.02, (60, 200))
    found, told = told_of(curve, points(curve, t, z))
    assert all("one term less follows the data as well" in reason for _, reason in told)
    good = np.array(["do not determine" not in reason for _, reason in told])
    assert good.any()
    tau = found.values[good][:, [2, 4], None]
    error = found.errors[good][:, [1, 3], None]
    moved = np.sqrt(np.mean((error * np.exp(-t / tau)) ** 2, axis=2))
    assert moved.max() <= np.ptp(z, axis=1).max()
    curve = build_curve({"inputs": "t", "parameters": {"a": {}, "b": {}}, "curve": "a + b*t"}, None)
    _, told = told_of(curve, points(curve, t + 1e6, z))
    assert {quality for quality, _ in told} == {"ok"}  # a straight line far from its origin


def test_a_swarm_that_is_far_from_its_minimum_is_not_ok() -> None:
    curve, data = noisy("boltzmann", 20)
    for iterations, least, most in ((1, 0.0, 0.0), (200, 0.9, 1.0)):
        found, told = told_of(curve, data, method="swarm", iterations=iterations)
        best = on_cpu(curve, data)
        good = np.array([quality == "ok" for quality, _ in told])
        assert least <= good.mean() <= most
        off = (found.cost - best.cost) / (best.cost / 11)
        assert np.all(off[good] < 8)
    assert not on_cpu(curve, noisy("boltzmann", 3, noise=0.0)[1]).flags.any()


def test_counts_that_end_at_zero_are_told() -> None:
    """There the likelihood has a substitute, whose errors are not those of the data."""
    curve = replace(load_curve("exponential"), likelihood="poisson")
    t = np.linspace(0, 100, 500)
    random = np.random.default_rng(4)
    for offset, quality in ((0.0, "check"), (2.0, "ok")):
        z = random.poisson(offset + 20 * np.exp(-t / 8), (8, 500)).astype(float)
        _, told = told_of(curve, points(curve, t, z))
        assert {q for q, _ in told} == {quality}
        assert all(("zero counts" in reason) == (offset == 0.0) for _, reason in told)
    part = CurveProblem.of(
        curve, points(curve, t, np.r_[z, random.poisson(20 * np.exp(-t / 8), (3, 500))])
    )
    assert [q for q, _ in reasons_of(part, fit_on_cpu(part, 7, 10), 7)] == ["ok", "check", "check"]


def test_a_fixed_parameter_keeps_its_place_in_the_order() -> None:
    curve = load_curve("double_exponential").with_fixed({"tau_slow": 5.0})
    t, truth = ONE_INPUT["double_exponential"]
    z = load_curve("double_exponential").values({"t": t}, np.array(truth))[None]
    found, told = told_of(curve, points(curve, t, z))
    assert found.values[0, 2] <= 5.0
    assert told[0][0] != "ok"
    with pytest.raises(InputError, match=r"tau_fast.range: its range .* is empty"):
        CurveProblem.of(curve.with_fixed({"tau_slow": 1e-3}), points(curve, t, z))


def test_what_python_hands_over_is_checked() -> None:
    table = activation(2)
    v, z = table[:, 0], table[:, 1:].T.copy()
    spoilt = z.copy()
    spoilt[0, 3] = 99.0
    masked = np.ma.masked_greater(spoilt, 50)
    spoilt[0, 3] = np.nan
    found = [cf.fit_curves("boltzmann", data, v, backend="cpu") for data in (masked, spoilt)]
    assert found[0].values.tobytes() == found[1].values.tobytes()
    assert found[0].quality == ("check", "ok")
    with pytest.warns(cf.InputWarning, match="not all values are whole numbers"):
        cf.fit_curves("boltzmann", z + 1, v, likelihood="poisson", backend="cpu")
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((z, np.ma.masked_less(v, -90)), {}, "15 finite numbers were expected"),
        ((z[0], v), {}, "of shape"),
        ((z, v, 1), {}, "only 1 inputs"),
        (([[1.0, 2.0], [3.0]],), {}, "rows of different lengths"),
        ((z, v), {"fix": {"low": math.nan}}, "low can be held at a finite number, not at nan"),
        ((z, v), {"fix": {"low": "x"}}, 'low can be held at a finite number, not at "x"'),
        ((z, v), {"fix": {"slope": 0}}, "is no finite number with slope = 0"),
        ((z, v), {"seed": -1}, "a seed is a whole number"),
        ((z, v), {"seed": 1.5}, "a seed is a whole number"),
        ((z, v), {"dtype": "float16"}, "not one of float64, float32"),
    ]
    for given, more, message in refused:
        with pytest.raises(InputError, match=message):
            cf.fit_curves("boltzmann", *given, **more)


@pytest.mark.parametrize("place", [3, 60, 150])
def test_an_outlier_is_told_and_noise_is_none(place: int) -> None:
    t = np.linspace(0, 50, 200)
    data = np.exp(-t / 10) + 0.02 * np.random.default_rng(2).standard_normal((300, len(t)))
    clean = cf.fit_curves("exponential", data, t)
    assert sum("outlier" in text for text in clean.reason) <= 2
    data[:, place] += 15 * 0.02
    fits = cf.fit_curves("exponential", data, t)
    assert all("an outlier: one point" in text for text in fits.reason)


def test_a_robust_loss_keeps_parameters_where_they_are() -> None:
    """An outlier of 15 deviations moves none by a standard error, as it does least squares."""
    t = np.linspace(0, 50, 200)
    clean = 0.2 + np.exp(-t / 10)
    data = clean + 0.02 * np.random.default_rng(2).standard_normal((200, len(t)))
    spoilt = data.copy()
    spoilt[np.arange(200), np.arange(200)] += 0.3
    moved = {}
    for loss, f_scale in (("linear", None), ("soft_l1", 0.02)):
        one, other = (
            cf.fit_curves("exponential", z, t, loss=loss, f_scale=f_scale) for z in (data, spoilt)
        )
        assert np.mean([quality == "ok" for quality in one.quality]) > 0.99
        moved[loss] = np.abs(other.values - one.values) / one.errors
    assert moved["soft_l1"].max() < 1 < 3 < moved["linear"].max()
    assert other.quality.count("ok") == 200


def test_doubts_know_of_weights() -> None:
    """What is far off, and how well a constant does, is counted in standard errors."""
    t = np.linspace(0, 50, 60)
    sigma = np.where(np.arange(60) % 20 == 7, 0.5, 0.02)
    random = np.random.default_rng(3)
    flat = random.standard_normal((100, 60)) * sigma
    plain = cf.fit_curves("exponential", flat + np.exp(-t / 10), t)
    assert sum("an outlier" in reason for reason in plain.reason) > 20
    fits = cf.fit_curves("exponential", flat + np.exp(-t / 10), t, sigma=sigma)
    assert fits.quality.count("ok") >= 99
    for loss in ("linear", "soft_l1"):
        dead = cf.fit_curves("exponential", flat, t, sigma=sigma, loss=loss)
        assert sum("no better than a constant" in reason for reason in dead.reason) > 80


@pytest.mark.parametrize("loss", ["linear", "soft_l1"])
def test_intervals_of_weighted_and_of_robust_fits_hold_the_truth(loss: str) -> None:
    """Ratios of standard errors count; with the loss one point in ten has ten times its own."""
    x = np.linspace(0, 30, 60)
    random = np.random.default_rng(8)
    sigma = 0.03 * np.exp(random.normal(0, 0.7, (1500, 60)))
    noise = sigma * random.standard_normal(sigma.shape)
    if loss == "soft_l1":
        noise *= np.where(random.random(noise.shape) < 0.1, 10.0, 1.0)
    data = 0.2 + np.exp(-x / 6) + noise
    f_scale = 1 / 7 if loss == "soft_l1" else None
    fits = cf.fit_curves("exponential", data, x, sigma=7 * sigma, loss=loss, f_scale=f_scale)
    assert fits.intervals is not None
    truth = np.array([0.2, 1.0, 6.0])
    held = ((fits.intervals[:, :, 0] < truth) & (fits.intervals[:, :, 1] > truth)).mean(axis=0)
    assert held == pytest.approx(0.95, abs=0.02 if loss == "linear" else 0.03)


def test_profile_intervals_hold_the_truth_and_meet_scipy() -> None:
    """Two exponentials that are hard to part; at an end the least cost has grown as it may."""
    random, n = np.random.default_rng(3), 80
    t, fast, ratio = np.linspace(0, 100, 120), random.uniform(5, 15, n), random.uniform(1.8, 3, n)
    truth = np.stack([np.zeros(n), np.full(n, 0.6), fast, np.full(n, 0.5), fast * ratio], axis=1)
    at = truth.T[:, :, None]
    clean = at[1] * np.exp(-t / at[2]) + at[3] * np.exp(-t / at[4])
    data = clean + 0.02 * random.standard_normal(clean.shape)
    held = {}
    for kind in ("t", "profile"):
        fits = cf.fit_curves("double_exponential", data, t, intervals=kind)
        assert fits.intervals is not None
        check = np.array(fits.quality) == "check"
        held[kind] = (fits.intervals[:, :, 0] <= truth) & (truth <= fits.intervals[:, :, 1])
    assert check.sum() > 50
    assert held["t"][check].mean() < 0.9 < held["profile"][check].mean()
    curve = load_curve("double_exponential")
    lower, upper = curve.bounds({curve.inputs[0]: t})
    allowed, compared = stats.t.ppf(0.975, 115) ** 2 / 115, 0
    for s in np.flatnonzero(check)[:3]:
        for j, side in ((1, 0), (2, 1), (4, 1)):
            end = fits.intervals[s, j, side]
            if end in (lower[j], upper[j]) or not np.isfinite(end):
                continue
            others = [k for k in range(5) if k != j]

            def residuals(q: np.ndarray, s: int = s, j: int = j, end: float = end) -> Any:
                return curve.values({curve.inputs[0]: t}, np.insert(q, j, end)) - data[s]

            low, high = lower[others], upper[others]
            if j in (2, 4):  # the other time constant stays on its side
                ends = high if j == 4 else low
                ends[others.index(6 - j)] = end
            starts = np.random.default_rng(s).uniform(0.7, 1.4, (8, 4)) * fits.values[s][others]
            least = min(
                least_squares(residuals, np.clip(q, low, high), bounds=(low, high)).cost
                for q in starts
            )
            assert 2 * least == pytest.approx(fits.cost[s] * (1 + allowed), rel=3e-4)
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize("kind", ["linear", "soft_l1", "poisson"])
def test_profiles_of_a_parabola_are_intervals_by_t(kind: str) -> None:
    """Of a straight line under all costs; a bound ends an interval, and so does no data."""
    x = np.arange(40.0)
    line = {"inputs": "x", "parameters": {"a": {"range": [0, 900]}, "b": {}}, "curve": "a + b*x"}
    random = np.random.default_rng(4)
    data = random.poisson(400 + 20 * x, (6, 40)).astype(float)
    given = {"poisson": {"likelihood": "poisson"}, "soft_l1": {"loss": "soft_l1", "f_scale": 60}}
    data[:, 5] = np.nan  # which makes them sets to be checked
    fits, other = (
        cf.fit_curves(line, data, x, intervals=kind_of, **given.get(kind, {}))
        for kind_of in ("t", "profile")
    )
    assert fits.intervals is not None
    assert other.intervals is not None
    np.testing.assert_allclose(
        (other.intervals - fits.values[:, :, None]) / (fits.intervals - fits.values[:, :, None]),
        1.0,
        rtol={"linear": 3e-3, "poisson": 0.02, "soft_l1": 0.12}[kind],
    )
    bounded = line | {"parameters": {"a": {"range": [0, 400.5]}, "b": {}}}
    fits = cf.fit_curves(bounded, data + 30, x, intervals="profile")
    assert fits.intervals is not None
    assert np.all(fits.intervals[:, 0, 1] == 400.5)


def test_intervals_of_few_points_hold_the_truth() -> None:
    """Of six points and two parameters: 1.96 standard errors would hold 88 %."""
    x = np.arange(6.0)
    data = 2 + 0.5 * x + np.random.default_rng(3).standard_normal((2000, 6))
    line = {"inputs": "x", "parameters": {"a": {}, "b": {}}, "curve": "a + b*x"}
    fits = cf.fit_curves(line, data, x)
    assert fits.intervals is not None
    low, high = fits.intervals[:, :, 0], fits.intervals[:, :, 1]
    held = ((low < [2, 0.5]) & (high > [2, 0.5])).mean(axis=0)
    assert held == pytest.approx(0.95, abs=0.02)
