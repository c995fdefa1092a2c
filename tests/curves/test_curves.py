"""Curves fitted to many data sets: against SciPy, mpmath, likelihoods, and with nasty data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import least_squares, minimize

from channelfit.curves import flags as bits
from channelfit.curves import swarm_lanes
from channelfit.curves.batch import CurveSettings
from channelfit.curves.builtin import BUILT_IN
from channelfit.curves.cpu import fit_on_cpu, fly_on_cpu
from channelfit.curves.cuda_source import cuda_text
from channelfit.curves.curve import load_curve
from channelfit.curves.curve_tasks import CurveTasks
from channelfit.curves.doubts import reasons_of
from channelfit.curves.fitting import CurveProblem, DataSets, Flight
from channelfit.curves.lane_math import poissonCost, poissonPull
from channelfit.curves.lanes import LANES
from channelfit.curves.source import cpu_text, n_sums
from channelfit.scoring.machine.machine_code import generated
from channelfit.search.philox import philox, uniform
from support.curve_sets import DEFINED, ONE_INPUT, images, noisy, on_cpu, points, twins
from support.truths import in_turns

pytestmark = pytest.mark.optimized

# --- the truth -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINED)
def test_definitions_change_no_text_of_a_fit(name: str) -> None:
    """And so no bit: not of derivatives, kernels and swarms, whatever computes them."""
    one, other = twins(name)
    assert (one.formula, one.slopes, one.linear) == (other.formula, other.slopes, other.linear)
    axes = tuple((i,) for i in one.inputs)
    assert cpu_text(one, axes) == cpu_text(other, axes)
    device = axes, (11,) * len(axes), "float32", "uint16", 0, 1
    assert cuda_text(one, *device) == cuda_text(other, *device)


@pytest.mark.parametrize("name", ONE_INPUT)
def test_least_squares_meet_scipy(name: str) -> None:
    curve, data = noisy(name, 40)
    found = on_cpu(curve, data, covariances=True)
    assert not found.flags.any()
    x, truth = ONE_INPUT[name]
    lower, upper = curve.bounds(data.coordinates)
    for k, z in enumerate(data.values):

        def residuals(p: np.ndarray, z: np.ndarray = z) -> Any:
            return curve.values({curve.inputs[0]: x}, p) - z

        best = least_squares(
            residuals, truth, bounds=(lower, upper), x_scale=np.abs(truth), xtol=1e-15,
            ftol=1e-15, gtol=1e-15, jac="3-point",
        )  # fmt: skip
        assert found.cost[k] <= 2 * best.cost * (1 + 1e-9)
        assert np.all(np.abs(found.values[k] - best.x) < 1e-4 * found.errors[k])
        covariance = np.linalg.inv(best.jac.T @ best.jac) * 2 * best.cost / (len(x) - len(truth))
        assert found.covariances is not None
        np.testing.assert_allclose(found.errors[k], np.sqrt(np.diag(covariance)), rtol=1e-3)
        scale = np.outer(found.errors[k], found.errors[k])
        np.testing.assert_allclose(
            found.covariances[k] / scale, covariance / scale, rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize(
    ("name", "loss"),
    [("exponential", "soft_l1"), ("double_exponential", "linear"), ("gaussian", "soft_l1")],
)
def test_weights_and_a_robust_loss_meet_scipy(name: str, loss: str) -> None:
    """With an outlier in each data set; errors against Huber's formula, written out here."""
    curve, data = noisy(name, 8)
    x, truth = ONE_INPUT[name]
    random = np.random.default_rng(5)
    sigma = 0.02 * np.exp(random.normal(0, 0.7, data.values.shape))
    clean = curve.values({curve.inputs[0]: x}, np.array(truth))
    values = clean + sigma * random.normal(size=sigma.shape)
    values[:, 7] += 15 * sigma[:, 7]
    curve = curve.fitted_by(loss=loss, f_scale=None if loss == "linear" else 0.7)
    c, n, p = curve.f_scale or 1.0, len(x), len(truth)
    data = replace(data, values=values, sigma=sigma)
    found = on_cpu(curve, data)
    assert not found.flags.any()
    work = CurveTasks(curve, [data], CurveSettings(backend="cpu"))
    (key,) = work.keys
    work.check_stored(key, work.compute(key))  # the costs are those of values and data
    lower, upper = curve.bounds(data.coordinates)
    for k, (z, s) in enumerate(zip(values, sigma, strict=True)):

        def residuals(p: np.ndarray, z: np.ndarray = z, s: np.ndarray = s) -> Any:
            return (curve.values({curve.inputs[0]: x}, p) - z) / s

        best = least_squares(
            residuals, truth, bounds=(lower, upper), x_scale=np.abs(truth), xtol=1e-15,
            ftol=1e-15, gtol=1e-15, jac="3-point", loss=loss, f_scale=c,
        )  # fmt: skip
        assert found.cost[k] == pytest.approx(2 * best.cost, rel=1e-9)
        off = np.abs(found.values[k] - best.x)
        assert np.all(
            off < (1e-6 * np.abs(best.x) if loss == "soft_l1" else 1e-4 * found.errors[k])
        )
        u = residuals(best.x) / c
        steps = 1e-6 * np.abs(best.x) * np.eye(p)
        j = np.array(
            [(residuals(best.x + h) - residuals(best.x - h)) / (2 * h.sum()) for h in steps]
        )
        pull, slope = c * u, np.ones(n)
        if loss == "soft_l1":
            pull, slope = c * u / np.sqrt(1 + u**2), (1 + u**2) ** -1.5
        more = 1 + p / n * slope.var() / slope.mean() ** 2
        variance = more * (pull @ pull) / (n - p) / slope.mean() * np.linalg.inv(j * slope @ j.T)
        np.testing.assert_allclose(found.errors[k], np.sqrt(np.diag(variance)), rtol=1e-4)


@pytest.mark.parametrize("expected", [-0.004, 0.002, 0.009, 0.0101, 2.0])
@pytest.mark.parametrize("count", [0.0, 1.0, 5.0])
def test_the_pull_of_a_count_is_the_derivative_of_its_cost(count: float, expected: float) -> None:
    """Also where so few are expected that the cost goes on as a parabola."""
    h = 1e-4 * abs(expected)
    low, high = (poissonCost(count, expected + k * h) for k in (-1, 1))
    pull = poissonPull(count, expected)
    assert (low - high) / (4 * h) == pytest.approx(pull, rel=1e-5, abs=1e-7)


def test_counts_meet_the_likelihood_of_poisson() -> None:
    curve = replace(load_curve("gaussian_2d"), likelihood="poisson")
    truth, data = images(12, seed=4)
    found = on_cpu(curve, data)
    at = data.at_points
    for k, z in enumerate(np.asarray(data.values, float)):

        def deviance(p: np.ndarray, z: np.ndarray = z) -> float:
            f = np.maximum(curve.values(at, p), 1e-12)
            logs = np.where(z > 0, z * np.log(np.where(z > 0, z, 1) / f), 0.0)
            return float(2 * np.sum(f - z + logs))

        best = minimize(
            deviance, truth[k], method="Nelder-Mead",
            options={"maxfev": 20000, "maxiter": 20000, "xatol": 1e-8, "fatol": 1e-10,
                     "adaptive": True},
        )  # fmt: skip
        assert found.cost[k] == pytest.approx(deviance(found.values[k]), rel=1e-12)
        assert found.cost[k] <= best.fun + 1e-7
        f = curve.values(at, found.values[k])
        steps = 1e-6 * np.abs(found.values[k]) * np.eye(6)
        slopes = np.array([(curve.values(at, found.values[k] + h) - f) / h.sum() for h in steps])
        fisher = (slopes / f) @ slopes.T
        errors = np.sqrt(np.diag(np.linalg.inv(fisher)))
        np.testing.assert_allclose(found.errors[k], errors, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "likelihood"), in_turns(len(BUILT_IN), [*BUILT_IN], ["gaussian", "poisson", "poisson"])
)
def test_gradient_and_curvature_meet_mpmath(name: str, likelihood: str) -> None:
    curve = replace(load_curve(name), likelihood=likelihood)
    random = np.random.default_rng(3)
    axes: tuple[tuple[str, ...], ...]
    if name == "gaussian_2d":
        data = images(1)[1]
        axes, truth = data.axes, [3.0, 40.0, 1.4, 1.9, 5.2, 4.4]
        inputs, lengths = data.flat, data.lengths
        at = data.at_points
    else:
        x, truth = ONE_INPUT[name]
        axes, inputs, lengths = (curve.inputs,), x, np.array([len(x)], np.int64)
        at = {curve.inputs[0]: x}
    n, n_points = len(truth), int(np.prod(lengths))
    z = random.uniform(1, 3, (n_points, LANES))
    w = np.ones((n_points, LANES))
    w[1] = 0.0
    p = np.array(truth)[:, None] * random.uniform(0.9, 1.1, (n, LANES)) + 1e-3
    sums = np.empty((n_sums(curve), LANES))
    generated(cpu_text(curve, axes), "evaluate")(z, w, inputs, lengths, p, sums)
    alone = np.empty((1, LANES))
    generated(cpu_text(curve, axes), "value")(z, w, inputs, lengths, p, alone)
    np.testing.assert_allclose(alone[0], sums[0], rtol=1e-12)
    names = [q.name for q in curve.free]

    def cost(values: list[Any], lane: int) -> Any:
        total = mpmath.mpf(0)
        for i in range(n_points):
            scope = dict(zip(names, values, strict=True))
            scope |= {k: mpmath.mpf(float(v[i])) for k, v in at.items()}
            f = lambdified(*[scope[k] for k in (*curve.inputs, *names)])
            observed = mpmath.mpf(z[i, lane])
            if likelihood == "poisson":
                term = 2 * (f - observed - observed * mpmath.log(f / observed))
            else:
                term = (observed - f) ** 2
            total += w[i, lane] * term
        return total

    import sympy

    lambdified = sympy.lambdify([*curve.inputs, *names], curve.reduced, "mpmath")
    with mpmath.workdps(30):
        here = [mpmath.mpf(float(v)) for v in p[:, 2]]
        assert sums[0, 2] == pytest.approx(float(cost(here, 2)), rel=1e-11)
        for j in range(n):
            step = mpmath.mpf(10) ** -10 * (1 + abs(here[j]))
            up, down = list(here), list(here)
            up[j] += step
            down[j] -= step
            slope = (cost(up, 2) - cost(down, 2)) / (2 * step)
            assert sums[1 + j, 2] == pytest.approx(float(-slope / 2), rel=1e-8, abs=1e-9)


# --- repeatable, whatever the neighbors ----------------------------------------------------------


def test_same_bits_for_any_number_of_threads_and_any_neighbors() -> None:
    curve = replace(load_curve("gaussian_2d"), likelihood="poisson")
    _, data = images(700, seed=9)
    problem = CurveProblem.of(curve, data)
    one = fit_on_cpu(problem, 0, 700, n_threads=1)
    for n_threads in (2, 3, 7):
        more = fit_on_cpu(problem, 0, 700, n_threads=n_threads)
        assert one.values.tobytes() == more.values.tobytes()
        assert one.errors.tobytes() == more.errors.tobytes()
    for k in (0, 13, 699):
        alone = fit_on_cpu(problem, k, k + 1)
        assert alone.values.tobytes() == one.values[k].tobytes()


def test_swarms_repeat_for_any_number_of_threads_and_come_close() -> None:
    curve = load_curve("gaussian")
    _, data = noisy("gaussian", 40)
    problem, flight = CurveProblem.of(curve, data), Flight(128, 40, 3)
    one = fly_on_cpu(problem, 0, 40, flight, n_threads=1)
    for n_threads in (2, 5):
        more = fly_on_cpu(problem, 0, 40, flight, n_threads=n_threads)
        assert one.values.tobytes() == more.values.tobytes()
        assert one.spread is not None
        assert more.spread is not None
        assert one.spread.tobytes() == more.spread.tobytes()
    part = fly_on_cpu(problem, 11, 14, flight)
    assert part.values.tobytes() == one.values[11:14].tobytes()
    best = fit_on_cpu(problem, 0, 40)
    assert np.all(one.cost >= best.cost * (1 - 1e-9))
    assert np.median(one.cost / one.squares) < 0.1
    few = fly_on_cpu(problem, 0, 40, Flight(128, 5, 3))
    assert np.median(few.cost) > np.median(one.cost)


def test_draws_of_swarms_are_those_of_philox() -> None:
    counters = np.arange(5, dtype=np.uint64)
    words = philox([counters, 3, 7, 123456789], (0xDEADBEEF, 42))
    for k in range(5):
        own = swarm_lanes.philox(k, 3, 7, 123456789, 0xDEADBEEF, 42)
        assert words[k].tolist() == list(own)
    high, low = words[:, 0], words[:, 1]
    expected = uniform(high, low)
    for k in range(5):
        assert swarm_lanes.uniform(int(high[k]), int(low[k])) == expected[k]


def test_an_ellipse_that_first_runs_to_a_bound_is_begun_again() -> None:
    """A broad dip beside the peak is a minimum too; further starts find the peak."""
    random = np.random.default_rng(0)
    axis = np.arange(11.0)
    y, x = np.mgrid[:11, :11]
    f = 9 + 213 * np.exp(-(((x - 3.92) / 2.19) ** 2 + ((y - 5.13) / 1.12) ** 2) / 2)
    counts = random.poisson(f, (20_000, 11, 11)).reshape(-1, 121)
    curve = replace(load_curve("gaussian_2d"), likelihood="poisson")
    data = DataSets((("x",), ("y",)), {"x": axis, "y": axis}, counts, (11, 11))
    found = on_cpu(curve, data)
    assert not found.flags.any()
    assert found.values[:, 1].min() > 0


# --- no guess ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["boltzmann", "exponential", "hill"])
def test_no_start_is_missed(name: str) -> None:
    """Random true parameters all over the ranges: the cost of every fit is at most the truth's."""
    curve = load_curve(name)
    x, truth = ONE_INPUT[name]
    random = np.random.default_rng(8)
    n = 2000
    lower, upper = curve.bounds({curve.inputs[0]: x})
    t = np.tile(np.array(truth)[:, None], n)
    for k, parameter in enumerate(curve.free):
        if k in curve.linear:
            t[k] = random.normal(0, 1, n)
            continue
        low, high = lower[k], upper[k]
        if parameter.scale == "log":
            middle = np.exp(random.uniform(np.log(low), np.log(high), n))
            t[k] = np.clip(middle, low * (high / low) ** 0.25, high / (high / low) ** 0.25)
        else:
            t[k] = random.uniform(low + 0.25 * (high - low), high - 0.25 * (high - low), n)
    clean = curve.values({curve.inputs[0]: x[None]}, t[:, :, None])
    z = clean + random.normal(0, 0.01, (n, len(x)))
    found = on_cpu(curve, points(curve, x, z))
    at_truth = ((z - clean) ** 2).sum(1)
    assert np.all(found.cost <= at_truth * (1 + 1e-9))
    assert np.mean(found.flags & bits.NOT_CONVERGED != 0) < (0.05 if name == "hill" else 0.006)


# --- nasty data ----------------------------------------------------------------------------------


def test_points_that_are_no_numbers_are_left_out_and_told() -> None:
    curve, data = noisy("boltzmann", 2)
    values = data.values.copy()
    values[0, [2, 9]] = np.nan, np.inf
    holed = replace(data, values=values)
    found = on_cpu(curve, holed)
    assert found.flags.tolist() == [bits.MISSING, 0]
    assert found.counted.tolist() == [13, 15]
    kept = np.isfinite(values[0])
    x = ONE_INPUT["boltzmann"][0][kept]
    bounds = CurveProblem.of(curve, data)
    alone = fit_on_cpu(
        replace(
            CurveProblem.of(curve, points(curve, x, values[:1, kept])),
            lower=bounds.lower,
            upper=bounds.upper,
        ),
        0,
        1,
    )
    np.testing.assert_allclose(found.values[0], alone.values[0], rtol=1e-6)
    np.testing.assert_allclose(found.errors[0], alone.errors[0], rtol=1e-6)
    told = reasons_of(CurveProblem.of(curve, holed), found)
    assert told[0] == ("check", "2 of 15 points are not numbers and were left out")
    assert told[1] == ("ok", "")


@pytest.mark.parametrize(
    ("values", "flag", "reason"),
    [
        (np.zeros(15), bits.CONSTANT, "all points are equal"),
        (np.full(15, 7e12), bits.CONSTANT, "all points are equal"),
        (np.full(15, np.nan), bits.TOO_FEW, "0 points for 4 parameters"),
        (np.r_[1.0, 2.0, np.full(13, np.nan)], bits.TOO_FEW, "2 points for 4 parameters"),
    ],
)
def test_data_without_a_result_are_failed(values: np.ndarray, flag: int, reason: str) -> None:
    curve, data = noisy("boltzmann", 1)
    data = replace(data, values=values[None])
    found = on_cpu(curve, data)
    assert found.flags[0] & flag
    assert np.isnan(found.values).all()
    assert np.isnan(found.errors).all()
    assert math.isnan(found.cost[0])
    quality, told = reasons_of(CurveProblem.of(curve, data), found)[0]
    assert quality == "failed"
    assert reason in told


def test_counts_below_zero_are_refused_by_poisson_alone() -> None:
    curve, data = noisy("gaussian", 1, noise=0.5)
    assert (data.values < 0).any()
    assert not on_cpu(curve, data).flags[0] & bits.NEGATIVE
    counts = replace(curve, likelihood="poisson")
    found = on_cpu(counts, data)
    assert found.flags[0] & bits.NEGATIVE
    assert reasons_of(CurveProblem.of(counts, data), found)[0] == (
        "failed",
        "a count is below zero",
    )


def test_all_zeros_but_one_and_huge_counts() -> None:
    curve = replace(load_curve("gaussian_2d"), likelihood="poisson")
    _, data = images(1)
    zeros = np.zeros((2, 121))
    zeros[1, 60] = 5.0
    found = on_cpu(curve, replace(data, values=zeros))
    told = reasons_of(CurveProblem.of(curve, replace(data, values=zeros)), found)
    assert told[0][0] == "failed"
    assert told[1][0] == "check"
    y, x = np.mgrid[:11, :11]
    f = 1e9 + 1e12 * np.exp(-(((x - 5.3) / 1.2) ** 2 + ((y - 4.6) / 1.7) ** 2) / 2)
    found = on_cpu(curve, replace(data, values=np.round(f).reshape(1, -1)))
    assert found.flags[0] == 0
    np.testing.assert_allclose(found.values[0], [1e9, 1e12, 1.2, 1.7, 5.3, 4.6], rtol=1e-6)
    assert found.errors[0, 4] == pytest.approx(
        1.2 / math.sqrt(2 * math.pi * 1e12 * 1.2 * 1.7), rel=0.1
    )


def test_a_parameter_at_a_bound_is_told_and_has_no_error() -> None:
    curve, data = noisy("boltzmann", 1)
    parameters = tuple(
        replace(p, lower=p.lower * 0 + 9) if p.name == "slope" else p for p in curve.parameters
    )
    found = on_cpu(replace(curve, parameters=parameters), data)
    assert found.flags[0] == bits.AT_BOUND
    assert found.values[0, 1] == 9.0
    assert math.isnan(found.errors[0, 1])
    assert np.isfinite(np.delete(found.errors[0], 1)).all()
    problem = CurveProblem.of(replace(curve, parameters=parameters), data)
    assert reasons_of(problem, found)[0] == ("check", "slope at its lower bound 9")
    fixed = on_cpu(curve.with_fixed({"slope": 9.0}), data)
    np.testing.assert_allclose(fixed.values[0], np.delete(found.values[0], 1), rtol=1e-5)
    assert fixed.cost[0] == pytest.approx(found.cost[0], rel=1e-9)


@pytest.mark.parametrize("name", ["exponential", "gaussian", "boltzmann"])
def test_a_small_signal_on_a_large_offset_is_found(name: str) -> None:
    """The scan in float32 takes off what the curve can follow."""
    curve, data = noisy(name, 20, noise=0.01)
    plain = on_cpu(curve, data)
    found = on_cpu(curve, replace(data, values=1e7 + data.values))
    names = [p.name for p in curve.free]
    k = names.index({"exponential": "tau", "gaussian": "center", "boltzmann": "half"}[name])
    np.testing.assert_allclose(found.values[:, k], plain.values[:, k], rtol=1e-4)
    assert (found.flags == plain.flags).all()
