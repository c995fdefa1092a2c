"""The likelihood of channel noise and the currents of single channels, against closed forms."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import binom, kstest, norm

from channelfit.front.kinds import load_plan, make_scorer
from channelfit.reading.errors import InputError
from channelfit.scoring.channel_noise import NoiseScorer
from channelfit.scoring.reference import Population
from channelfit.scoring.stochastic import simulate_channels

_MODEL = """
name: opening in two steps
states: [C1, C2, O]
rates: {C1 -> C2: 2*a*exp(z*v), C2 -> C1: b*exp(-z*v), C2 -> O: c, O -> C2: d}
current: {open: {O: 1, C2: 0.3}, conductance: N*gamma, reversal: -80 mV}
leak: {conductance: gl, reversal: -10 mV}
parameters:
  a: {range: [0.001, 10], unit: 1/ms, scale: log, value: 0.1}
  z: {range: [0, 0.1], unit: 1/mV, value: 0.02}
  b: {range: [0.001, 10], unit: 1/ms, scale: log, value: 0.05}
  c: {range: [0.001, 10], unit: 1/ms, scale: log, value: 0.3}
  d: {range: [0.001, 10], unit: 1/ms, scale: log, value: 0.2}
  N: {range: [1, 1.0e+13], scale: log, value: 500}
  gamma: {range: [1.0e-12, 100], unit: pS, scale: log, value: 20}
  gl: {range: [0, 10], unit: nS, value: 0.5}
  sigma: {range: [0.1, 100], unit: pA, scale: log, value: 2}
  flicker: {range: [0, 2], unit: pA, value: 0.3}
fit:
  protocols: [steps.yaml]
  noise: {channels: N, instrument: sigma, open: flicker}
"""
#: The second step ends between two samples.
_STEPS = """
name: steps
holding: -100
sampling: 0.5
segments: [{hold: 2}, {step: {values: [-40, 40]}, for: 9.3}, {step: -60, for: 6}]
"""


def _plan(folder, model=_MODEL, protocol=_STEPS, changes=()):
    (folder / "model.yaml").write_text(model)
    (folder / "steps.yaml").write_text(protocol)
    return load_plan(folder / "model.yaml", changes)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """Currents of 500 channels; ten samples of the second sweep do not count."""
    found = _plan(tmp_path_factory.mktemp("noise")).problem
    (e,) = found.experiments
    weight = e.recording.weight.copy()
    weight[1, 8:18] = 0.0
    return replace(found, experiments=(replace(e, recording=replace(e.recording, weight=weight)),))


class _Scheme:
    """Generators, conductances and currents of a model at some values, by other means."""

    def __init__(self, problem, values):
        self.at = dict(zip((p.name for p in problem.parameters), values, strict=True))
        self.problem, self.model = problem, problem.model
        self.population = Population(self.model, values[:, None])
        self.c = np.array(self.model.chains[0].conductances)

    def generator(self, v):
        rates = self.population.rates(self.model.chains[0], np.array([v]))[0, 0]
        return rates - np.diag(rates.sum(axis=0))

    def rest(self, v):
        a = np.vstack([self.generator(v), np.ones(len(self.c))])
        return np.linalg.lstsq(a, np.append(np.zeros(len(self.c)), 1.0), rcond=None)[0]

    def sweeps(self):
        """Yield the samples of each sweep: command, what follows it, data, weight."""
        (e,) = self.problem.experiments
        for k, sweep in enumerate(e.protocol.sweeps):
            edges = [s.end_ms for s in sweep[:-1]]
            times, rows = e.protocol.times_ms[: e.protocol.n_times(k)], []
            for i, t in enumerate(times):
                v = float(e.protocol.command()[k, i])
                until = [t, *(x for x in edges if t + 1e-9 < x < t + 0.5 - 1e-9), t + 0.5]
                steps = []
                for begin, end in pairwise(until):
                    at = next((s for s in sweep if s.end_ms > begin + 1e-9), sweep[-1])
                    u = float(at.voltage(np.array([at.start_ms]))[0])
                    steps.append(expm(self.generator(u) * (end - begin)))
                drive = self.at["N"] * self.at["gamma"] * (v + 80)
                leak = self.at["gl"] * (v + 10)
                data, weight = e.recording.current_pA[k, i], e.recording.weight[k, i]
                rows.append((drive, leak, steps, data, weight))
            yield k, self.rest(e.protocol.holding_mV), rows


def _filtered(problem, values):
    """Mean and variance of each sample given those before it, and the sum of the likelihood."""
    scheme, total = _Scheme(problem, values), 0.0
    n, sigma, flicker = (scheme.at[name] for name in ("N", "sigma", "flicker"))
    out = np.full((*problem.experiments[0].recording.current_pA.shape, 2), np.nan)
    for k, p, rows in scheme.sweeps():
        counts, covariance = n * p, n * (np.diag(p) - np.outer(p, p))
        for i, (drive, leak, steps, data, weight) in enumerate(rows):
            h = drive / n * scheme.c
            loud = max(scheme.c**2 @ counts, 0.0)
            s = h @ covariance @ h + sigma**2 + flicker**2 * loud
            mean = h @ counts + leak
            out[k, i] = mean, math.sqrt(s)
            if weight:
                total += math.log(s) + (data - mean) ** 2 / s
                gain = covariance @ h / s
                counts = counts + gain * (data - mean)
                covariance = covariance - np.outer(gain, gain) * s
            for step in steps:
                covariance = step @ covariance @ step.T + sum(
                    max(counts[j], 0.0) * (np.diag(step[:, j]) - np.outer(step[:, j], step[:, j]))
                    for j in range(len(p))
                )
                counts = step @ counts
    return out, total


def test_the_filter_is_that_of_the_counts_written_out(problem):
    values = problem.values()
    scorer = NoiseScorer(problem)
    expected, total = _filtered(problem, values)
    (found,) = scorer.predicted(values, given_past=True)
    off = np.abs(found - expected) / np.nanmax(np.abs(expected), axis=(0, 1))
    assert np.nanmax(off) < 1e-11
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    n = int(problem.experiments[0].recording.weight.sum())
    cost = scorer.score(values[:, None]).cost[0]
    assert cost == pytest.approx(math.exp(total / n - 1), rel=1e-11)


def _product(steps):
    return steps[0] if len(steps) == 1 else steps[1] @ steps[0]


def _whole(problem, values):
    """Mean (n,) and covariance (n, n) of the samples of each sweep, without any filter."""
    scheme = _Scheme(problem, values)
    n, sigma, flicker = (scheme.at[name] for name in ("N", "sigma", "flicker"))
    for _, p, rows in scheme.sweeps():
        size, states, mean = len(rows), [p], np.empty(len(rows))
        for row in rows:
            states.append(_product(row[2]) @ states[-1])
        covariance = np.empty((size, size))
        for i, (drive, leak, *_) in enumerate(rows):
            h = drive / n * scheme.c
            mean[i] = n * h @ states[i] + leak
            moved = n * (np.diag(states[i]) - np.outer(states[i], states[i])) @ h
            for j in range(i, size):
                covariance[i, j] = covariance[j, i] = rows[j][0] / n * scheme.c @ moved
                moved = _product(rows[j][2]) @ moved
            covariance[i, i] += sigma**2 + flicker**2 * n * scheme.c**2 @ states[i]
        data, weight = (np.array([row[k] for row in rows]) for k in (3, 4))
        yield mean, covariance, data, weight > 0


@pytest.mark.parametrize(("channels", "apart"), [(1e6, 3e-4), (1e10, 3e-6)])
def test_many_channels_have_the_gaussian_likelihood_of_the_whole_trace(problem, channels, apart):
    """With many channels what a sample changes in the noise of the next ones is nothing."""
    values = problem.values()
    rows = {p.name: k for k, p in enumerate(problem.parameters)}
    values[rows["N"]], values[rows["gamma"]] = channels, 20e-3 * math.sqrt(500 / channels)
    values[rows["flicker"]] = 0.3 * math.sqrt(500 / channels)
    draw, (e,) = np.random.default_rng(3), problem.experiments
    data, total = np.full_like(e.recording.current_pA, np.nan), 0.0
    for k, (mean, covariance, _, counts) in enumerate(_whole(problem, values)):
        y = draw.multivariate_normal(mean, covariance)
        data[k, : len(y)] = y
        off, own = (y - mean)[counts], covariance[np.ix_(counts, counts)]
        total += np.linalg.slogdet(own)[1] + off @ np.linalg.solve(own, off)
    drawn = replace(e, recording=replace(e.recording, current_pA=data))
    scorer = NoiseScorer(replace(problem, experiments=(drawn,)))
    n = int(e.recording.weight.sum())
    found = n * (1 + math.log(scorer.score(values[:, None]).cost[0]))
    assert abs(found - total) < apart * n
    (alone,) = scorer.predicted(values)
    for k, (mean, covariance, *_) in enumerate(_whole(problem, values)):
        assert np.abs(alone[k, : len(mean), 0] - mean).max() < 1e-11 * np.abs(mean).max()
        spread = np.sqrt(np.diag(covariance))
        assert np.abs(alone[k, : len(mean), 1] / spread - 1).max() < 1e-8


_TWO = """
name: two states
states: [C, O]
rates: {C -> O: a*exp(v/30), O -> C: b}
current: {open: [O], conductance: N*gamma, reversal: -100 mV}
parameters:
  a: {range: [0.001, 10], unit: 1/ms, scale: log, value: 0.1}
  b: {range: [0.001, 10], unit: 1/ms, scale: log, value: 0.2}
  N: {range: [1, 100000], scale: log, value: 4}
  gamma: {range: [1, 100], unit: pS, scale: log, value: 10}
  sigma: {range: [0.1, 100], unit: pA, scale: log, value: 1.5}
fit:
  protocols: [steps.yaml]
  noise: {channels: N, instrument: sigma}
  surrogate: {seed: 5}
"""
_REST = "{name: rest, holding: 0, sampling: 1, segments: [{hold: 400}]}"


def test_a_few_channels_in_much_noise_have_nearly_the_exact_likelihood(tmp_path):
    """The forward algorithm over the number of open channels knows no Gaussian but the noise's."""
    found = _plan(tmp_path, _TWO, _REST).problem
    a, b, n, gamma, sigma = found.values()
    y = found.experiments[0].recording.current_pA[0]
    opened, kept = a / (a + b) * -math.expm1(-(a + b)), 1 - b / (a + b) * -math.expm1(-(a + b))
    counts = np.arange(int(n) + 1)
    step = np.zeros((len(counts),) * 2)
    for here, stay in product(counts, counts):
        if stay <= here:
            come = counts[: int(n) - here + 1]
            share = binom.pmf(stay, here, kept) * binom.pmf(come, n - here, opened)
            step[stay + come, here] += share
    p, exact = binom.pmf(counts, n, a / (a + b)), 0.0
    for sample in y:
        p = p * norm.pdf(sample, counts * gamma * 100, sigma)
        exact += math.log(p.sum())
        p = step @ (p / p.sum())
    cost = NoiseScorer(found).score(found.values()[:, None]).cost[0]
    filtered = -0.5 * len(y) * (1 + math.log(cost) + math.log(2 * math.pi))
    alone = norm.logpdf(y, y.mean(), y.std()).sum()
    assert exact - alone > 20  # the fluctuations tell a lot,
    assert abs(filtered - exact) < 0.05 * (exact - alone)  # of which the filter loses little


def test_few_channels_that_seem_fewer_than_none_keep_a_variance(problem):
    """Noise below the current of no open channel makes the mean of a count negative."""
    values = problem.values()
    (e,) = problem.experiments
    dip = e.recording.current_pA.copy()
    dip[:, 30:] = -60.0
    own = replace(e, recording=replace(e.recording, current_pA=dip))
    low = replace(problem, experiments=(own,))
    (expected, _), (found,) = (
        _filtered(low, values),
        NoiseScorer(low).predicted(values, given_past=True),
    )
    assert np.nanmax(np.abs(found - expected)) < 1e-9 * np.nanmax(np.abs(expected))
    sigma = values[[p.name for p in problem.parameters].index("sigma")]
    assert np.nanmin(found[..., 1]) >= sigma * (1 - 1e-9)
    _check_slopes(low, values, 1e-5)


def _check_slopes(problem, values, tolerance):
    """Compare exact derivatives with differences of the score; return the former."""
    scorer = NoiseScorer(problem)
    found = scorer.linearize(values[:, None])
    assert found.cost[0] == pytest.approx(scorer.score(values[:, None]).cost[0], rel=1e-13)
    step = 1e-4 * np.abs(values)
    sides = [values[:, None] + sign * np.diag(step) for sign in (1, -1, 2, -2)]
    near, far = (
        (scorer.score(up).cost - scorer.score(down).cost) / (2 * k * step)
        for k, (up, down) in enumerate((sides[:2], sides[2:]), 1)
    )
    slope = (4 * near - far) / 3
    assert np.abs(found.gradient[:, 0] / slope - 1).max() < tolerance
    return found


def test_derivatives_are_those_of_the_score(problem):
    found = _check_slopes(problem, problem.values(), 1e-7)
    hessian = found.hessian[:, :, 0]
    assert np.array_equal(hessian, hessian.T)
    assert np.linalg.eigvalsh(hessian / np.sqrt(np.outer(*[np.diag(hessian)] * 2))).min() > 0


def test_the_information_is_the_mean_curvature_of_the_cost(tmp_path):
    """Over many recordings the second derivative of the likelihood averages to the information."""
    pulses = "{name: pulses, holding: -60, sampling: 1, segments: [%s]}"
    steps = pulses % ", ".join(["{hold: 20}", "{step: 20, for: 40}"] * 4)
    found = _plan(tmp_path, _TWO, steps, ["parameters.N.value=300"]).problem
    values, draw = found.values(), np.random.default_rng(1)
    (e,) = found.experiments
    currents = simulate_channels(found.model, e.protocol, values, 300, draw, values[4], 0.0, 60)
    curvature, information = 0.0, 0.0
    step = 1e-4 * values
    for k in range(60):
        own = replace(e, recording=replace(e.recording, current_pA=currents[..., k]))
        scorer = NoiseScorer(replace(found, experiments=(own,)))
        n, around = currents.shape[1], [values + s * d for d in np.diag(step) for s in (1, -1)]
        at = scorer.linearize(np.array(around).T)
        slopes = (at.gradient / at.cost).T.reshape(5, 2, 5)
        curvature = curvature + n * (slopes[:, 0] - slopes[:, 1]) / (2 * step[:, None])
        here = scorer.linearize(values[:, None])
        information = information + n * here.hessian[:, :, 0] / here.cost[0]
    root = np.linalg.cholesky(np.linalg.inv(information))
    relative = root.T @ curvature @ root
    assert np.abs(relative - np.eye(5)).max() < 0.25


def test_currents_of_single_channels_have_the_moments_of_multinomial_counts(problem):
    values, draw = problem.values(), np.random.default_rng(7)
    (e,), n = problem.experiments, 3000
    found = simulate_channels(problem.model, e.protocol, values, 500, draw, 2.0, 0.3, n)
    for k, (mean, covariance, *_) in enumerate(_whole(problem, values)):
        y = found[k, : len(mean)]
        spread = np.sqrt(np.diag(covariance))
        assert np.abs((y.mean(axis=1) - mean) / spread).max() < 5 / math.sqrt(n)
        off = (np.cov(y) - covariance) / np.outer(spread, spread)
        assert np.abs(off).max() < 5 * math.sqrt(2 / n)
    again = simulate_channels(
        problem.model, e.protocol, values, 500, np.random.default_rng(7), 2.0, 0.3, n
    )
    assert np.array_equal(found, again, equal_nan=True)


def test_a_single_channel_dwells_as_long_as_its_rates_say(tmp_path):
    found = _plan(tmp_path, _TWO, _REST.replace("1, seg", "0.02, seg")).problem
    (e,) = found.experiments
    y = simulate_channels(
        found.model, e.protocol, found.values(), 1, np.random.default_rng(2), n_cells=20
    )[0]
    is_open = y > 0.5 * y.max()
    assert set(np.unique(y.round(9))) == {0.0, round(y.max(), 9)}
    for state, rate in ((True, 0.2), (False, 0.1)):
        times = []
        for row in is_open.T:
            edges = np.flatnonzero(np.diff(row)) + 1
            times += [0.02 * (b - a) for a, b in pairwise(edges) if row[a] == state]
        assert len(times) > 400
        assert kstest(times, "expon", args=(0, 1 / rate)).pvalue > 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("fit.noise={channels: N}", '"instrument" is missing'),
        ("fit.noise={channels: N, instrument: 1 mV}", "is a voltage"),
        ("fit.noise={channels: N*v, instrument: 1 pA}", "depends on v"),
        ("fit.noise={channels: -3, instrument: 1 pA}", "0 or more was expected"),
        ("fit.clamp={series_resistance: 5 MOhm}", "a clamp, a delay or a filter"),
        ("fit.solve=a", "is a parabola in no parameter"),
        ("parameters.a.prior={lognormal: [0.1, 2]}", "a has a prior"),
    ],
)
def test_what_the_likelihood_does_not_know_is_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        _plan(tmp_path, _TWO, _REST, ["parameters.sigma.fixed=true", change])


def test_other_backends_ramps_and_weights_are_refused(tmp_path):
    plan = _plan(tmp_path, _TWO, _REST)
    for backend, dtype in (("reference", "float64"), ("cpu", "float32")):
        with pytest.raises(InputError, match="the likelihood of channel noise is computed"):
            make_scorer(plan, backend, dtype)
    with pytest.raises(InputError, match="ramps, sines, a recorded command or an exchange"):
        _plan(tmp_path, _TWO, _REST.replace("{hold: 400}", "{ramp: [0, 50], for: 100}"))


def test_a_concentration_acts_as_a_rate_that_changes_at_the_same_times(tmp_path):
    """Once as a ligand, and once as a rate of the voltage with which it changes."""
    scheme = """
name: block
states: [C, O, B]
rates: {C -> O: a, O -> C: 0.2*exp(-0.01*v), O -> B: kon*DRUG, B -> O: 0.1}
current: {open: [O], conductance: N*gamma, reversal: -80 mV}
parameters:
  a: {range: [0.001, 10], unit: 1/ms, value: 0.4}
  kon: {range: [0.1, 100], value: 2}
  N: {range: [1, 1.0e+5], value: 500}
  gamma: {range: [1, 100], unit: pS, value: 20}
  sigma: {range: [0.1, 100], unit: pA, value: 2}
fit: {protocols: [steps.yaml], surrogate: {seed: 1}, noise: {channels: N, instrument: sigma}}
"""
    steps = """
name: steps
holding: -100
sampling: 0.5
segments: [{hold: 2}, {step: {values: [-40, 40]}, for: 9.3}, {step: -60, for: 6}]
"""
    dissolved = """
ligands:
  drug: {holding: 0.1 mM, segments: [{hold: 2}, {step: 0.5 mM, for: 9.3}, {hold: 6}]}
"""
    bound = scheme.replace("DRUG", "drug").replace("states", "ligands: [drug]\nstates")
    one = _plan(tmp_path, bound, steps + dissolved)
    other = _plan(tmp_path, scheme.replace("DRUG", "(0.5 if abs(v) == 40 else 0.1)"), steps)
    at = one.problem.model.values()[:, None] * np.array([1.0, 1.2, 0.8])
    data = one.problem.experiments[0].recording
    (e,) = other.problem.experiments
    same = replace(other.problem, experiments=(replace(e, recording=data),))
    found, truth = (NoiseScorer(p).linearize(at) for p in (one.problem, same))
    for name, values in vars(truth).items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-11)
    exchanged = dissolved.replace("holding", "exchange: 1 ms, holding")
    with pytest.raises(InputError, match="an exchange of solutions"):
        _plan(tmp_path, bound, steps + exchanged)
