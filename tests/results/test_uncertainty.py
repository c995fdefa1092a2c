"""Standard errors against closed forms and repeated experiments; words against constructions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import signal, stats
from scipy.optimize import least_squares

from channelfit.front.kinds import load_plan
from channelfit.model.channel import Parameter
from channelfit.problem.experiment import Problem
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.assessment import parameter_rows
from channelfit.results.uncertainty.estimate import estimate, quantile, undetermined
from channelfit.results.uncertainty.noise_spectrum import (
    NoiseSpectrum,
    bands_of,
    correlation_time,
    spectrum_at,
    spectrum_of,
)
from channelfit.scoring.scorer import make_scorer
from channelfit.search.objective import Objective
from support.places import ROOT
from support.uncertain import MODEL, Differences, curve_objective, loaded


def straight_line(n: int = 200, noise: float = 0.3, seed: int = 0):
    """Data of 2 + 3 t, the design matrix and the least-squares answer."""
    t = np.linspace(0, 1, n)
    design = np.stack([np.ones(n), t], axis=1)
    data = design @ [2.0, 3.0] + noise * np.random.default_rng(seed).standard_normal(n)
    best, squares = np.linalg.lstsq(design, data, rcond=None)[:2]
    parameters = [Parameter("offset", "pA", -10, 10), Parameter("slope", "pA", 0, 50)]
    objective = curve_objective(lambda p: design @ p, data, parameters)
    return objective, design, best, float(squares[0])


def at(objective: Objective, *values: float) -> np.ndarray:
    return objective.space.to_unit(np.array(values)[:, None])[:, 0]


def test_a_straight_line_has_the_errors_of_linear_regression():
    objective, design, best, squares = straight_line()
    found = estimate(objective, at(objective, *best), 200)
    covariance = squares / 198 * np.linalg.inv(design.T @ design)
    errors = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.physical_errors, errors, rtol=1e-7)
    np.testing.assert_allclose(
        found.correlations[0, 1], covariance[0, 1] / errors.prod(), rtol=1e-7
    )
    lower, upper = found.interval(0.95)
    reach = stats.t.ppf(0.975, 198) * errors
    np.testing.assert_allclose(lower, best - reach, rtol=1e-7)
    np.testing.assert_allclose(upper, best + reach, rtol=1e-7)
    assert found.sigma_pA == pytest.approx(math.sqrt(squares / 198), rel=1e-9)
    assert found.distance < 1e-5
    assert undetermined(found) == []
    # the distance to the minimum is in standard errors
    error = found.physical_errors[0] * math.sqrt(1 - found.correlations[0, 1] ** 2)
    unit = at(objective, best[0] + 3 * error, best[1])
    assert estimate(objective, unit, 200, None, found.sigma_pA).distance == pytest.approx(3, 1e-6)
    objective, _, best, _ = straight_line(n=12)
    found = estimate(objective, at(objective, *best), 12)
    assert found.threshold(0.9) == pytest.approx(stats.t.ppf(0.95, 10) ** 2)
    with pytest.raises(InputError, match="2 samples cannot say how sure 2"):
        estimate(objective, at(objective, *best), 2)


def test_given_noise_and_correlations_scale_the_errors():
    objective, design, best, _ = straight_line()
    unit = at(objective, *best)
    exact = np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    found = estimate(objective, unit, 200, sigma_pA=0.7)
    np.testing.assert_allclose(found.physical_errors, 0.7 * exact, rtol=1e-7)
    one = np.zeros(1)
    four_times = NoiseSpectrum(one + 4, np.eye(1), np.zeros((1, 0, 0)), 0.6, one, one[:0])
    wide = estimate(objective, unit, 200, four_times, 0.7)
    np.testing.assert_allclose(wide.physical_errors, 2 * found.physical_errors, rtol=1e-12)
    assert wide.chi_square(wide.cost + 1) == pytest.approx(found.chi_square(found.cost + 1) / 4)


def test_quantiles_of_students_distribution_are_those_of_scipy():
    freedoms = np.concatenate([np.arange(1.0, 50.0), np.geomspace(1.01, 1e5, 200), [np.inf]])
    for level in (0.5, 0.68, 0.95, 0.99):
        truth = stats.t.ppf(0.5 + level / 2, freedoms)
        np.testing.assert_allclose(quantile(level, freedoms), truth, rtol=1e-12)
    assert quantile(0.95, np.inf) == pytest.approx(stats.norm.ppf(0.975), rel=1e-14)


def test_a_log_scale_gives_a_factor():
    t = np.linspace(0, 3, 400)
    data = np.exp(-0.8 * t) + 0.05 * np.random.default_rng(2).standard_normal(400)
    linear = curve_objective(
        lambda p: np.exp(-p[0] * t[:, None]), data, [Parameter("k", "1/ms", 0, 9)]
    )
    log = curve_objective(
        lambda p: np.exp(-p[0] * t[:, None]), data, [Parameter("k", "1/ms", 1e-3, 9, "log")]
    )
    k = least_squares(lambda p: np.exp(-p[0] * t) - data, [1.0], xtol=1e-14, ftol=1e-14).x[0]
    plain, factor = (estimate(o, at(o, k), 400) for o in (linear, log))
    np.testing.assert_allclose(plain.physical_errors, factor.physical_errors, rtol=1e-6)
    lower, upper = (end[0] for end in factor.interval())
    assert upper / k == pytest.approx(k / lower, rel=1e-9)
    reach = stats.t.ppf(0.975, 399) * plain.physical_errors[0] / k
    assert upper / k == pytest.approx(math.exp(reach), rel=1e-6)


def test_weights_count_as_inverse_variances(tmp_path):
    """Twice the noise at a quarter of the weight: the error of the combined mean."""
    parameters = {
        k: v | ({} if k == "g" else {"fixed": True}) for k, v in MODEL["parameters"].items()
    }
    fit = loaded(tmp_path, parameters=parameters)
    experiment = fit.problem.experiments[0]
    weight = np.where(np.arange(3)[:, None] == 1, 0.25, 1.0) * np.ones_like(
        experiment.recording.current_pA
    )
    recording = replace(experiment.recording, weight=7 * weight)
    problem = Problem(fit.problem.model, (replace(experiment, recording=recording, weight=3.0),))
    scorer = Differences(problem)
    values = problem.model.values()
    shape = scorer.simulate(values[:, None])[0][:, :, 0] / 10.0
    data = recording.current_pA
    values[-1] = best = np.sum(weight * shape * data) / np.sum(weight * shape**2)
    variance = np.sum(weight * (best * shape - data) ** 2) / (data.size - 1)
    objective = fit.objective(scorer)
    found = estimate(objective, at(objective, *values), data.size)
    error = math.sqrt(variance / np.sum(weight * shape**2))
    assert found.physical_errors[-1] == pytest.approx(error, rel=1e-7)


def test_200_repeated_experiments_spread_as_the_standard_errors_say(tmp_path):
    """All fitted side by side, by Gauss-Newton steps of the currents themselves."""
    fit = loaded(tmp_path, noise=0.0)
    scorer, space = Differences(fit.problem), fit.space
    truth = at(fit.objective(scorer), *fit.problem.model.values())

    def currents(unit: np.ndarray) -> np.ndarray:
        current = scorer.simulate(space.to_physical(unit))[0]
        return current.reshape(-1, current.shape[2])

    random, noise, step = np.random.default_rng(5), 20.0, 1e-5
    clean = currents(truth[:, None])
    data = clean + noise * random.standard_normal((len(clean), 200))
    units = np.repeat(truth[:, None], 200, axis=1)
    for _ in range(4):
        slopes = np.stack(
            [
                (currents(units + e) - currents(units - e)) / (2 * step)
                for e in step * np.eye(4)[:, :, None]
            ]
        )
        apart = data - currents(units)
        for k in range(200):
            units[:, k] += np.linalg.lstsq(slopes[:, :, k].T, apart[:, k])[0]
    recording = replace(fit.problem.experiments[0].recording, current_pA=data[:, 0].reshape(3, -1))
    problem = Problem(
        fit.problem.model, (replace(fit.problem.experiments[0], recording=recording),)
    )
    claim = estimate(fit.objective(Differences(problem)), units[:, 0], len(clean))
    assert claim.distance < 1e-2
    # a standard deviation of 200 is known to 5 %
    np.testing.assert_allclose(np.std(units, axis=1, ddof=1), claim.errors, rtol=0.15)
    correlations = np.corrcoef(units)
    np.testing.assert_allclose(correlations, claim.correlations, atol=0.15)
    inside = np.mean(np.abs(units - truth[:, None]) < 1.96 * claim.errors[:, None], axis=1)
    assert ((inside > 0.9) & (inside < 0.99)).all()


def with_residuals(fit, residuals: np.ndarray, weight: np.ndarray | None = None):
    """The problem whose recording is off from 0 by residuals (n_sweeps, n_times)."""
    experiment = fit.problem.experiments[0]
    weight = np.ones_like(residuals) if weight is None else weight
    recording = replace(
        experiment.recording,
        time_ms=np.arange(residuals.shape[1]) * 0.5,
        current_pA=-residuals,
        weight=weight,
    )
    return Problem(fit.problem.model, (replace(experiment, recording=recording),))


@pytest.fixture(scope="module")
def little(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("little"))


@pytest.mark.parametrize("phi", [0.5, 0.98])
def test_the_correlation_time_is_that_of_an_autoregression(little, phi):
    random = np.random.default_rng(1)
    noise = random.standard_normal((3, 15000))
    for k in range(1, noise.shape[1]):
        noise[:, k] += phi * noise[:, k - 1]
    time = correlation_time(with_residuals(little, noise), [np.zeros_like(noise)])
    assert time == pytest.approx((1 + phi) / (1 - phi), rel=0.2)


def test_where_residuals_do_not_correlate_and_where_a_misfit_does(little):
    """Independent ones, masked ones, few or none; and a wave."""
    random = np.random.default_rng(3)
    masked = random.standard_normal((2, 4000))
    weight = (np.arange(4000) % 100 < 80) * np.ones((2, 1))
    masked[weight == 0] = 1e6
    cases = [(random.standard_normal((3, 700)), None) for _ in range(5)]
    cases += [(masked, weight), (np.zeros((1, 1)), None), (np.zeros((2, 50)), None)]
    for residuals, w in cases:
        problem = with_residuals(little, residuals, w)
        assert correlation_time(problem, [np.zeros_like(residuals)]) == 1
    wave = np.sin(np.arange(2000) / 60)[None] + 0.01 * random.random((1, 2000))
    assert correlation_time(with_residuals(little, wave), [np.zeros_like(wave)]) > 20


def filtered(n: int, *poles: complex, seed: int = 0, rows: int = 1) -> np.ndarray:
    """White noise (rows, n) through a filter with these poles."""
    white = np.random.default_rng(seed).standard_normal((rows, n + 500))
    return signal.lfilter([1.0], np.poly(poles).real, white, axis=1)[:, 500:]


def true_variance(design: np.ndarray, poles: tuple[complex, ...]) -> np.ndarray:
    """The variances of least squares under such noise, from the answer of its filter."""
    answer = signal.lfilter([1.0], np.poly(poles).real, np.eye(1, 400)[0])
    seen = np.stack([np.convolve(column, answer[::-1]) for column in design.T])
    inverse = np.linalg.inv(design.T @ design)
    return np.diag(inverse @ (seen @ seen.T) @ inverse)


LOBES = (0.85 * np.exp(0.6j), 0.85 * np.exp(-0.6j))


@pytest.mark.parametrize("poles", [(0.8,), LOBES])
def test_errors_under_correlated_noise_follow_its_spectrum(poles):
    """A slow and a fast parameter; the noise of two poles has lobes, and a peak at the fast one."""
    n = 2000
    t = np.arange(n)
    design = np.stack([np.sin(0.05 * t), np.cos(0.6 * t)], axis=1)
    found = []
    for row in filtered(n, *poles, rows=12):
        best = np.linalg.lstsq(design, row, rcond=None)[0]
        apart = (row - design @ best)[None]
        derivatives = [18 * design[None]]  # of unit coordinates: both ranges are 18 wide
        spectrum = spectrum_of([apart], [np.ones((1, n), bool)], derivatives, n)
        parameters = [Parameter(name, "pA", -9, 9) for name in ("slow", "fast")]
        objective = curve_objective(lambda p: design @ p, row, parameters)
        found.append(estimate(objective, at(objective, *best), n, spectrum).physical_errors ** 2)
    np.testing.assert_allclose(np.mean(found, axis=0), true_variance(design, poles), rtol=0.25)


def test_intervals_hold_under_one_over_f_noise():
    """Those of independent residuals would hold every third time."""
    n, random = 1000, np.random.default_rng(4)
    t = np.arange(n)
    design = np.stack([t >= 500, np.exp(-t / 100)], axis=1).astype(float)
    shape = np.r_[0.0, np.arange(1, 8 * n + 1) ** -0.5]
    inverse = np.linalg.inv(design.T @ design)
    held = []
    for _ in range(60):
        noise = np.fft.irfft(shape * (random.standard_normal((2, len(shape))).T @ [1, 1j]))[:n]
        best = inverse @ design.T @ noise
        apart = (noise - design @ best)[None]
        found = spectrum_of([apart], [np.ones((1, n), bool)], [design[None]], n)
        curvature = 2 * design.T @ design / n
        root = np.linalg.cholesky(np.linalg.inv(curvature))
        covariance = 2 * (apart**2).mean() / n * root @ found.factors(root) @ root.T
        freedom = [found.freedom(row) for row in np.linalg.inv(curvature)]
        reach = stats.t.ppf(0.975, freedom) * np.sqrt(np.diag(covariance))
        held.append(np.abs(best) < reach)
    assert 0.9 < np.mean(held) < 0.99


def test_the_autocorrelation_is_that_of_a_filter_and_a_line():
    poles, lags = (0.9, 0.5), np.arange(60)
    answer = signal.lfilter([1.0], np.poly(poles), np.eye(1, 400)[0])
    row = filtered(100_000, *poles) + 2 * np.cos(2 * np.pi * 0.01 * np.arange(100_000))
    found = spectrum_of([row], [np.ones(row.shape, bool)])
    assert len(found.line_part) == 1
    exact = np.correlate(answer, answer, "full")[399:459] + 2 * np.cos(2 * np.pi * 0.01 * lags)
    assert np.abs(found.autocorrelation(60) - exact / exact[0]).max() < 0.03


def test_a_line_is_as_strong_where_samples_beside_it_are_left_out():
    seen = np.random.default_rng(2).standard_normal((1, 4000))
    seen += 1.5 * np.sin(2 * np.pi * np.arange(4000) * 0.05)
    counts = np.arange(8000)[None] < 4000
    whole = bands_of([seen], [counts[:, :4000]])
    half = bands_of([np.pad(seen, ((0, 0), (0, 4000)))], [counts])
    assert half.lines.max() == pytest.approx(whole.lines.max(), rel=1e-12)
    found = spectrum_of([seen], [counts[:, :4000]])  # of whose smooth part the line is none
    assert found.ratio.max() > 500
    assert np.median(found.ratio) == pytest.approx(1 / (1 + 1.5**2 / 2), rel=0.2)


def words(function, parameters, values, n=300, sigma=0.01, **more):
    t = np.linspace(0, 3, n)[:, None]
    data = function(t, np.array(values)[:, None])[:, 0]
    objective = curve_objective(lambda p: function(t, p), data, parameters)
    return undetermined(estimate(objective, at(objective, *values), n, sigma_pA=sigma, **more))


LOG = [Parameter(name, "1/ms", 1e-4, 1e3, "log") for name in ("a", "b", "c")]
LINEAR = [Parameter(name, "1/ms", 0, 10) for name in ("a", "b", "c")]


def exponential(t, p):
    return p[2] * np.exp(-p[0] * t) + p[1]


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_what_the_data_do_not_determine_is_named(scale):
    rows = LOG if scale == "log" else LINEAR
    (found,) = words(lambda t, p: p[2] * np.exp(-p[0] * p[1] * t), rows, [0.5, 2.0, 3.0])
    assert (found.names, found.n_open) == (("a", "b"), 1)
    assert "a and b are determined only through their product" in found.text
    assert "a up by 10 %, b down by 10 %" in found.text or "b up by 10 %" in found.text
    (found,) = words(lambda t, p: np.exp(-p[0] / p[2] * t) * p[1], rows, [0.5, 2.0, 0.7])
    assert found.names == ("a", "c")
    assert "only through their ratio" in found.text
    (found,) = words(lambda t, p: p[0] * np.exp(-p[2] * t) + 0 * p[1], LOG, [0.5, 2.0, 0.7])
    assert found == type(found)(("b",), 1, "b is not determined: the current hardly depends on it")
    (found,) = words(lambda t, p: (p[0] + p[1]) * np.exp(-p[2] * t), LINEAR, [1.0, 4.0, 0.7])
    assert found.names == ("a", "b")
    assert "only through one combination" in found.text
    assert "a up by 10 %, b down by 2.5 %" in found.text
    (found,) = words(lambda t, p: np.exp(-p[0] * p[1] * p[2] * t), LOG, [0.5, 2.0, 0.7])
    assert (found.names, found.n_open) == (("a", "b", "c"), 2)
    assert "only through one combination" in found.text
    parameters = [Parameter("left", "mV", -50, 50), Parameter("right", "mV", -50, 50)]
    (found,) = words(lambda t, p: (p[0] - p[1]) * t, parameters, [0.0, 5.0])
    assert "mV" in found.text  # values around zero have no ratio
    assert not {"product", "ratio"} & set(found.text.split())
    assert words(exponential, LOG, [0.5, 2.0, 3.0]) == []
    assert words(exponential, LOG, [0.5, 2.0, 3.0], sigma=30.0) != []  # noise decides


def test_a_parameter_pushed_against_its_bound_has_no_error_of_its_own():
    objective, design, best, _ = straight_line()
    tight = [Parameter("offset", "pA", -10, 10), Parameter("slope", "pA", 0, best[1] - 0.5)]
    tight = curve_objective(objective.scorer.function, objective.scorer.data, tight)
    offset = np.mean(objective.scorer.data - design[:, 1] * (best[1] - 0.5))
    found = estimate(tight, at(tight, offset, best[1] - 0.5), 200)
    assert found.pushed.tolist() == [0, 1]
    assert np.isnan(found.physical_errors[1])
    assert np.isnan(found.interval()[0][1])
    assert found.physical_errors[0] == pytest.approx(found.sigma_pA / math.sqrt(200), rel=1e-6)
    assert found.distance < 1e-5


def test_intervals_end_at_the_range_and_a_point_without_a_cost_is_refused():
    t = np.linspace(0, 1, 50)[:, None]
    slope = [Parameter("slope", "pA", 0, 1e-3)]
    found = estimate(
        curve_objective(lambda p: p[0] * t, np.zeros(50), slope), np.array([0.5]), 50, sigma_pA=1.0
    )
    np.testing.assert_allclose(np.ravel(found.interval()), [0, 1e-3], atol=1e-15)
    nowhere = curve_objective(lambda p: np.full((50, p.shape[1]), np.nan), np.zeros(50), slope)
    with pytest.raises(InputError, match="cannot be scored"):
        estimate(nowhere, np.array([0.5]), 50)


def test_a_tied_parameter_has_the_error_of_what_it_follows_from(tmp_path):
    """b = 0.5 a has half the error of a, and 'a' the interval of its logarithm."""
    parameters = MODEL["parameters"] | {"b": {"tie": "0.5*a", "unit": "1/ms"}}
    fit = loaded(tmp_path, parameters=parameters)
    objective = fit.objective(Differences(fit.problem))
    found = estimate(objective, at(objective, *fit.problem.model.values()), 252)
    rows = parameter_rows(found, fit.problem.model)
    assert set(rows) == {"a", "z", "g", "b"}
    assert rows["b"]["standard_error"] == pytest.approx(0.5 * rows["a"]["standard_error"], rel=1e-6)
    low, high = rows["b"]["interval"]
    assert (low + high) / 2 == pytest.approx(0.05)
    assert rows["a"]["relative_error"] == pytest.approx(rows["a"]["standard_error"] / 0.1, rel=1e-6)


def test_the_spectrum_of_a_sodium_current_is_finite():
    """Its masks leave few samples of some bands, and 12 parameters follow nearly all of them."""
    plan = load_plan(ROOT / "models" / "fits" / "nav_iv_80cp.yaml", backend="cpu")
    unit = np.array(
        [0.631, 0.536, 0.0781, 0.429, 1.0, 0.498, 1.0, 0.558, 0.69, 0.272, 0.709, 0.355]
    )
    scorer = make_scorer(plan.problem, "cpu")

    def currents(points):
        return scorer.simulate(np.ascontiguousarray(plan.space.to_physical(points)))

    traces = [trace[:, :, 0] for trace in currents(unit[:, None])]
    with np.errstate(over="raise", invalid="raise"):
        found = spectrum_at(plan.problem, traces, unit, currents)
        assert np.isfinite(found.ratio).all()
        assert np.isfinite(found.spread).all()
        assert np.isfinite(found.factors(np.eye(12))).all()
