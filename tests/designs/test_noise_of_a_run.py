"""Designs under the noise of a run: what is read from its residuals, and the scatter of fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.signal import lfilter

import channelfit as cf
from channelfit.reading.errors import InputError
from designs.test_design import plan_for, step_current, two_states
from designs.test_separation import current, known_conductance
from support.json_output import run

TRUE, DT, FILTER = np.array([0.7, 0.2, 2.0]), 0.1, np.poly([0.97, 0.4])
MODEL = """
name: two
states: [C, O]
rates: {C -> O: k*exp(v/30), O -> C: b}
current: {open: O, conductance: g, reversal: -90 mV}
parameters:
  k: {range: [0.01, 10], unit: 1/ms, scale: log}
  b: {range: [0.01, 10], unit: 1/ms, scale: log}
  g: {range: [0.1, 10], unit: nS}
"""


def noise(n: int, rows: int, seed: int) -> np.ndarray:
    """Noise (rows, n) of 1 pA, each sample of which depends on the two before."""
    white = np.random.default_rng(seed).standard_normal((rows, n + 2000))
    answer = lfilter([1.0], FILTER, np.eye(1, 2000)[0])
    return lfilter([1.0], FILTER, white)[:, 2000:] / np.sqrt(np.sum(answer**2))


def fitted(length: float, apart: np.ndarray) -> cf.Fit:
    """The fit of two states to a step with some noise."""
    protocol = cf.Protocol.from_segments(
        [{"step": 20, "for": length}], holding=-80, sampling=DT, name="one"
    )
    current = step_current(protocol.times_ms, 20, *TRUE) + apart
    channel = cf.Model.from_yaml(MODEL)
    return cf.fit(channel, cf.Experiment(protocol, current[None]), seed=0, progress=False)


@pytest.fixture(scope="module")
def colored() -> cf.Fit:
    return fitted(400, noise(4000, 1, seed=1)[0])


def test_the_noise_of_a_run_is_read(colored, tmp_path):
    """By the command from its folder, and in Python; longer errors than those of white noise."""
    folder = colored.save(tmp_path / "run")
    options = ["--length", "60 ms", "--segments", "1 step", "--sampling", "0.1 ms", "--starts", "1"]
    options += ["--iterations", "3", "--noise", str(folder), "--out", str(tmp_path / "d")]
    done = run("design", str(folder), *options)
    assert done.exit_code == 0, done.output
    changes = {"segments": "1 step", "sampling": DT, "iterations": 3, "shortest": 20}
    plan = plan_for(two_states(), noise=colored, **changes)
    assert plan.noise == pytest.approx(1, rel=0.15)
    assert plan.contents != plan_for(two_states(), noise=plan.noise, **changes).contents
    exact = np.correlate(*[lfilter([1.0], FILTER, np.eye(1, 2000)[0])] * 2, "full")[1999:2030]
    assert np.abs(plan.spectrum.autocorrelation(31) - exact / exact[0]).max() < 0.1
    from_folder = plan_for(two_states(), noise=str(folder), **changes)
    assert from_folder.noise == pytest.approx(plan.noise, rel=1e-9)


def test_independent_residuals_are_white_noise():
    found = fitted(60, np.random.default_rng(0).standard_normal(600))
    plan = plan_for(two_states(), noise=found, sampling=DT)
    assert plan.spectrum is None
    assert plan.noise == pytest.approx(found.rms * np.sqrt(600 / 597), rel=1e-12)


def test_a_number_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "5 pA").mkdir()
    monkeypatch.chdir(tmp_path)
    assert plan_for(two_states(), noise="5 pA").noise == 5


def test_what_is_not_known_of_the_noise_is_refused(colored):
    with pytest.raises(InputError, match=r"sampling: .*each 0.1 ms, and the design each 0.05 ms"):
        plan_for(two_states(), noise=colored)
    with pytest.raises(InputError, match="noise: .*runs/none"):
        plan_for(two_states(), noise="runs/none")
    with pytest.raises(InputError, match="is no saved fit"):
        plan_for(two_states(), noise=Path("models/model_b.yaml"))
    with pytest.raises(InputError, match="the recording has no noise"):
        plan_for(two_states(), noise=fitted(60, np.zeros(600)), sampling=DT)
    plan = plan_for(two_states(), noise=colored, sampling=DT)
    coarse = cf.Protocol.steps([20], 60, holding=-80, sampling=0.2)
    both = plan_for(two_states(), two_states("k*exp(v/20)"), noise=colored, sampling=DT)
    for one in (plan, both):
        with pytest.raises(InputError, match="noise: .*a sample each 0.2 ms"):
            one.judged(coarse)


@pytest.mark.slow
def test_fits_scatter_as_expected_of_the_noise_of_a_run():
    """SciPy's fits to 300 simulated recordings, under the noise of the residuals of another one.

    Some errors are larger than those of white noise and some smaller, so that no factor would do.
    """
    found = fitted(6000, 0.1 * noise(60_000, 1, seed=2)[0])
    plan, white = (
        plan_for(two_states(), noise=of, sampling=DT, segments="1 step")
        for of in (found, found.rms)
    )
    protocol = plan.protocol(np.array([40.0, 0.0]), "x")
    t = protocol.times_ms

    def apart(p: np.ndarray, row: np.ndarray) -> np.ndarray:
        return step_current(t, 40, *np.exp(p)) - step_current(t, 40, *TRUE) - 0.1 * row

    rows = noise(len(t), 300, seed=3)
    ends = [least_squares(apart, np.log(TRUE), args=(row,)).x for row in rows]
    scatter = 100 * np.std(ends, axis=0, ddof=1)
    expected, of_white = (
        np.array([row["error, %"] for row in one.judged(protocol).rows.values()])
        for one in (plan, white)
    )
    np.testing.assert_allclose(scatter, expected, rtol=0.15)
    assert expected[0] > 2.5 * of_white[0]
    assert expected[1] < 0.95 * of_white[1]


@pytest.mark.slow
def test_schemes_differ_as_expected_under_the_noise_of_a_run():
    """SciPy's fits of two schemes to 300 simulated recordings: how far their sums of squares are
    apart on average, and how much that scatters.
    """
    found = fitted(6000, noise(60_000, 1, seed=2)[0])
    slow = np.array([0.07, 0.02, 2.0])
    schemes = [known_conductance(f"k*exp(v/{slope})").with_values(slow) for slope in (30, 20)]
    plan, white = (
        plan_for(*schemes, noise=of, sampling=DT, segments="1 step") for of in (found, found.rms)
    )
    protocol = plan.protocol(np.array([20.0, 0.0]), "x")
    rival, of_white = (
        next(r for r in one.refitted(protocol, one.first) if r.truth == 0) for one in (plan, white)
    )
    t = protocol.times_ms

    def left(p: np.ndarray, slope: float, row: np.ndarray) -> np.ndarray:
        return current(t, 20, *np.exp(p), slope) - row

    apart = []
    for row in noise(len(t), 300, seed=3) + current(t, 20, *slow[:2], 30):
        costs = [
            least_squares(left, np.log(start), args=(slope, row)).cost
            for slope, start in ((30, slow[:2]), (20, rival.known[:2, 0]))
        ]
        apart.append(2 * (costs[1] - costs[0]))
    size = len(t) * rival.rms**2
    assert np.mean(apart) == pytest.approx(size, rel=0.1)
    assert np.std(apart) == pytest.approx(2 * size / rival.distance**0.5, rel=0.15)
    assert of_white.distance > 10 * rival.distance
    ((informed, judge), *_) = plan.parts([rival])
    pieces = plan.waveform.pieces(np.array([20.0, 0.0]))
    variance = judge.covariance(*informed.matrices(pieces))[0, 0, 0]
    # an integral, where the distance is a sum over samples of which few are in the first ms
    assert 1 / variance == pytest.approx(rival.distance, rel=0.04)
