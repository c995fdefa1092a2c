"""A fit with channel noise from file to report, and what its fluctuations are said to tell."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import channelfit as cf
from channelfit.front.kinds import load_plan
from channelfit.front.main import main
from channelfit.problem.recording import Recording
from channelfit.reading.errors import InputError
from channelfit.results.fluctuations import fluctuations
from channelfit.scoring.channel_noise import NoiseScorer
from channelfit.scoring.stochastic import simulate_channels

_MODEL = """
name: two states
states: [C, O]
rates: {C -> O: a*exp(v/30), O -> C: b}
current: {open: [O], conductance: N*gamma, reversal: -100 mV}
parameters:
  a: {range: [0.01, 1], unit: 1/ms, scale: log, value: 0.1}
  b: {range: [0.02, 2], unit: 1/ms, scale: log, value: 0.2}
  N: {range: [20, 20000], scale: log, value: 400}
  gamma: {range: [1, 100], unit: pS, scale: log, value: 10}
  sigma: {range: [0.1, 100], unit: pA, scale: log, value: 1.5}
fit:
  protocols: [steps.yaml]
  noise: {channels: N, instrument: sigma}
  surrogate: {seed: 5}
  optimizer: {starts: 2, scan: 32, patience: 1, agree: 1}
"""
_STEPS = """
name: steps
holding: -60
sampling: 0.5
segments: [{hold: 10}, {step: {values: [-10, 30]}, for: 60}, {hold: 20}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fluctuations")
    (place / "model.yaml").write_text(_MODEL)
    (place / "steps.yaml").write_text(_STEPS)
    return place


@pytest.mark.integration
def test_a_fit_finds_the_channels_and_says_so(folder):
    run = folder / "run"
    done = CliRunner().invoke(main, ["optimize", str(folder / "model.yaml"), "--out", str(run)])
    assert done.exit_code == 0, done.output
    summary = json.loads((run / "summary.json").read_text())
    rows = summary["parameters"]
    for name, row in rows.items():
        assert row["interval"][0] / 1.5 < row["true_value"] < 1.5 * row["interval"][1], name
    assert summary["minimized"] == "likelihood of channel noise"
    (unitary,) = summary["channel_noise"]["unitary"]
    gamma = rows["gamma"]
    assert unitary["voltage_mV"] == 30
    assert unitary["current_pA"] == pytest.approx(130 * gamma["value"])
    assert unitary["standard_error"] == pytest.approx(130 * gamma["standard_error"], rel=1e-3)
    assert "the current of one open channel is" in done.output
    # the same current by a cost of its own: log likelihoods compare
    assert summary["cost"] < summary["rms_pA"] ** 2
    header = (run / "traces.csv").read_text().splitlines()[0]
    assert "sweep 1 spread (pA)" in header
    assert "Münch" in (run / "report.html").read_text("utf-8")
    again = load_plan(run / "fit.yaml")
    cost = NoiseScorer(again.problem).score(again.problem.values()[:, None]).cost[0]
    assert cost == pytest.approx(summary["cost"], rel=1e-9)


def test_a_short_fit_has_the_current_of_one_channel(folder):
    brief = {"starts": 1, "scan": 8, "patience": 1, "agree": 1}
    fit = cf.fit(folder / "model.yaml", optimizer=brief, progress=False)
    (unitary,) = fit.summary["channel_noise"]["unitary"]
    gamma = fit.summary["parameters"]["gamma"]
    assert unitary["current_pA"] == pytest.approx(130 * gamma["value"])
    assert unitary["standard_error"] == pytest.approx(130 * gamma["standard_error"], rel=1e-3)
    assert gamma["interval"][0] < 0.01 < gamma["interval"][1]
    assert fit.summary["cost"] == pytest.approx(fit.summary["search_cost"], rel=1e-12)


@pytest.fixture(scope="module")
def plan(folder):
    return load_plan(folder / "model.yaml")


def _of(plan, currents, every=1):
    (e,) = plan.problem.experiments
    weight = np.zeros_like(currents)
    weight[:, ::every] = 1.0
    own = replace(e, recording=Recording(e.protocol.times_ms, currents, weight))
    problem = replace(plan.problem, experiments=(own,))
    return fluctuations(problem, NoiseScorer(problem), problem.values(), None)


def test_fluctuations_of_the_right_model_leave_white_noise(plan):
    found = _of(plan, plan.problem.experiments[0].recording.current_pA)
    assert not found.remarks
    assert abs(found.mean_square - 1) < 0.3
    assert 0.5 < found.of_channels < 1
    assert 0.3 < found.predictable / found.of_channels < 1


def test_data_that_are_too_coarse_are_named(plan):
    values, draw = plan.problem.values(), np.random.default_rng(1)
    (e,) = plan.problem.experiments
    y = e.recording.current_pA
    assert "record or write more digits" in _of(plan, y.round(-1)).remarks[0]
    assert "samples 20 ms apart are too coarse" in _of(plan, y, every=40).remarks[0]
    filtered = np.apply_along_axis(lambda row: np.convolve(row, np.ones(4) / 4, "same"), 1, y)
    assert "the recording was filtered" in _of(plan, filtered).remarks[-1]
    loud = values.copy()
    loud[4] = 95.0
    noisy = replace(plan, problem=plan.problem.with_values(loud))
    drowned = simulate_channels(plan.problem.model, e.protocol, values, 400, draw, 95.0)[..., 0]
    assert "the fluctuations tell little" in _of(noisy, drowned).remarks[0]


def test_a_conductance_has_that_of_one_channel_tied_to_it(folder):
    (folder / "whole.yaml").write_text(
        _MODEL.replace("N*gamma", "g").replace(
            "gamma: {range: [1, 100], unit: pS, scale: log, value: 10}",
            "g: {range: [1, 100], unit: nS, scale: log, value: 4}",
        )
    )
    problem = load_plan(folder / "whole.yaml").problem
    (tie,) = problem.ties
    assert (tie.name, tie.unit) == ("unitary_conductance", "nS")
    assert problem.tied_values(problem.values())[tie.name] == pytest.approx(0.01)


def test_channels_are_drawn_by_a_seed(folder):
    steps, model = folder / "steps.yaml", folder / "model.yaml"
    one, same, other = (cf.simulate(model, steps, channels=30, seed=s) for s in (1, 1, 2))
    assert np.array_equal(one.current, same.current)
    assert not np.array_equal(one.current, other.current)
    each = 4.0 / 30 * (one.voltage + 100)
    counts = one.current / each
    assert np.abs(counts - counts.round()).max() < 1e-9
    loud = cf.simulate(model, steps, channels=30, seed=1, noise=5.0, open_noise=2.0)
    assert 4 < np.std(loud.current - one.current) < 5 * math.sqrt(1 + 4 * 30 / 25)
    for given, message in (
        ({"seed": 1}, "the mean current has none"),
        ({"channels": 0}, "1 to"),
        ({"channels": 5, "noise": -1.0}, "0 or more"),
    ):
        with pytest.raises(InputError, match=message):
            cf.simulate(model, steps, **given)


def test_an_unused_parameter_is_refused_from_python_too(folder):
    experiment = cf.Experiment(folder / "steps.yaml", np.ones((2, 180)))
    with pytest.raises(InputError, match="sigma changes nothing"):
        cf.fit(folder / "model.yaml", experiment, progress=False)
