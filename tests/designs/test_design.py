"""Designed protocols: information and gradients against independent truths, limits, the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.integrate import quad

import channelfit as cf
from channelfit.designs.correlation import summed_twice
from channelfit.designs.criteria import KINDS, Criterion
from channelfit.designs.information import Informed, Pieces, Source, _dual_exponential
from channelfit.designs.plan import DesignTasks, ParameterPlan
from channelfit.designs.waveform import Limits, Waveform
from channelfit.front.designing import design_plan, designed, grouped, segments_of
from channelfit.front.kinds import channel_document
from channelfit.front.progress import screen_for
from channelfit.model.channel import ChannelModel, Prior
from channelfit.model.model_file import build_model, load_model
from channelfit.problem.protocol import build_protocol
from channelfit.problem.waves import Ramp
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.noise_spectrum import NoiseSpectrum
from support.json_output import run
from support.truths import in_turns

LIMITS = Limits(
    lowest=-120.0, highest=60.0, holding=(-80.0, -80.0), length=400.0, shortest=10.0, sampling=0.05
)


def two_states(rate: str = "k*exp(v/30)") -> ChannelModel:
    """A channel with one gate's worth of kinetics, whose currents are known in closed form."""
    return build_model(
        {
            "name": "two",
            "states": ["C", "O"],
            "rates": {"C -> O": rate, "O -> C": "b"},
            "current": {"open": "O", "conductance": "g", "reversal": "-90 mV"},
            "parameters": {
                "k": {"range": [0.01, 10], "unit": "1/ms", "scale": "log", "value": 0.7},
                "b": {"range": [0.01, 10], "unit": "1/ms", "scale": "log", "value": 0.2},
                "g": {"range": [0.1, 10], "unit": "nS", "value": 2.0},
            },
        },
        None,
    )


def step_current(t: np.ndarray, v: float, k: Any, b: Any, g: Any) -> np.ndarray:
    """The current of these two states after a step from -80 mV, in closed form."""
    before, now = k * np.exp(-80 / 30), k * np.exp(v / 30)
    start, limit = before / (before + b), now / (now + b)
    return np.asarray(g * (v + 90) * (limit + (start - limit) * np.exp(-(now + b) * t)))


def informed(model: ChannelModel, n: int = 1, noise: float = 5.0, **more: Any) -> Informed:
    """Information about the logarithms of all parameters, of an ensemble about the values."""
    factors = np.exp(0.1 * np.random.default_rng(0).standard_normal((len(model.parameters), n)))
    members = model.values()[:, None] * factors
    places = [k for k, p in enumerate(model.parameters) if not p.fixed]
    names = [model.parameters[k].name for k in places]
    return Informed(
        [Source(model, members, names)], members[places], noise, LIMITS.sampling, **more
    )


def held(volts: list[float], lengths: list[float]) -> Pieces:
    """Long pieces that count."""
    place, times = np.arange(len(volts)), np.array(lengths)
    return Pieces(np.array([*volts, -80.0]), times, times, place >= 0, place == 0, place)


def test_information_is_that_of_exponentials():
    """Of two states, by central differences of the closed form in fine samples."""
    model = two_states()
    volts, lengths, dt = [20.0, -40.0], [8.0, 15.0], 1e-3

    def current(values: np.ndarray) -> np.ndarray:
        k, b, g = values
        x, out = k * np.exp(-80 / 30) / (k * np.exp(-80 / 30) + b), []
        for v, t in zip(volts, lengths, strict=True):
            a = k * np.exp(v / 30)
            times = (np.arange(round(t / dt)) + 0.5) * dt
            limit = a / (a + b)
            out.append(g * (v + 90) * (limit + (x - limit) * np.exp(-(a + b) * times)))
            x = limit + (x - limit) * np.exp(-(a + b) * t)
        return np.concatenate(out)

    found = informed(model)
    values = found.sources[0].members[:, 0]
    slopes = []
    for k in range(3):
        step = np.where(np.arange(3) == k, 1e-5, 0.0)
        slopes.append((current(values * (1 + step)) - current(values * (1 - step))) / 2e-5)
    exact = np.array(slopes) @ np.array(slopes).T * dt * found.per_ms
    matrix = found.matrices(held(volts, lengths))[0][0]
    assert np.abs(matrix / exact - 1).max() < 5e-5


def colored(rho: float) -> NoiseSpectrum:
    """The exact spectrum of noise of which each sample is rho times the one before, and new."""
    place = np.linspace(np.log(1e-6), np.log(0.5), 500)
    ratio = (1 - rho**2) / np.abs(1 - rho * np.exp(-2j * np.pi * np.exp(place))) ** 2
    return NoiseSpectrum(ratio, np.eye(500), np.zeros((500, 0, 0)), rho, place, np.zeros(0))


@pytest.mark.parametrize(
    ("name", "rho"), [("herg_markov", 0.999), ("na_hh", -0.5), ("model_b", 0.98)]
)
def test_information_is_that_of_the_derivatives_of_fits(name, rho):
    """Of gates with powers and of schemes: integrals against sums over fine samples.

    Likewise sums over pairs of cells against those over pairs of samples, under correlated noise.
    """
    limits = {"sweeps": 2, "holding": "-100 mV .. -60 mV", "slew": "90 V/s", "mask": 1}
    limits |= {"length": 12, "sampling": 0.002, "shortest": 3, "segments": "2 step"}
    plan = replace(plan_for(load_model(f"models/{name}.yaml"), **limits), spectrum=colored(rho))
    x = plan.waveform.rounded(plan.waveform.random(np.random.default_rng(3)))
    protocol = plan.protocol(x, "x")
    fine = plan.information(protocol, "reference"), plan.spread(protocol)
    found = plan.informed.matrices(plan.waveform.pieces(x))
    for (one,), (other,), most in zip(found, fine, (5e-3, 1e-2), strict=True):
        scale = np.sqrt(np.diag(other))
        assert np.abs((one - other) / np.multiply.outer(scale, scale)).max() < most


@pytest.mark.parametrize("rho", [0.97, -0.6])
def test_errors_under_correlated_noise_are_those_of_least_squares(rho):
    """One step of two states, masked: by complex steps of the closed form, and a dense matrix."""
    limits = {"segments": "1 step", "sampling": 0.1, "mask": 2}
    plan = replace(plan_for(two_states(), **limits), spectrum=colored(rho))
    protocol = plan.protocol(np.array([20.0, 0.0]), "x")
    t, steps = protocol.times_ms, two_states().values() * (1 + 1e-30j * np.eye(3))
    slopes = np.array([step_current(t, 20, *step).imag / 1e-30 for step in steps])[:, t >= 2]
    noise = 100 * rho ** np.abs(np.subtract.outer(*[np.arange(slopes.shape[1])] * 2))
    known = slopes @ slopes.T + 100 * np.diag(plan.judge.prior[:, 0])
    middle = slopes @ noise @ slopes.T + 1e4 * np.diag(plan.judge.prior[:, 0])
    exact = np.linalg.inv(known) @ middle @ np.linalg.inv(known)
    found = [row["error, %"] for row in plan.judged(protocol).rows.values()]
    np.testing.assert_allclose(found, 100 * np.sqrt(np.diag(exact)), rtol=1e-3)


ARGUMENTS = {
    **grouped("limits"),
    **grouped("ensemble"),
    "length": "60 ms",
    "segments": "3 step",
    "noise": "10 pA",
    "shortest": "5 ms",
    "sampling": "0.05 ms",
    "criterion": "log",
    "parameters": [],
    "predict": [],
    "iterations": 5,
    "seed": 0,
}


def plan_for(*models: ChannelModel, fit: Mapping[str, Any] | None = None, **changed: Any) -> Any:
    """The plan for models with the arguments above, some changed; `fit` is of the first file."""
    schemes = [(model, (fit or {}) if k == 0 else {}, model.name) for k, model in enumerate(models)]
    return design_plan(schemes, **ARGUMENTS | changed)[0]


@pytest.mark.parametrize(
    ("kind", "name", "rho"),
    in_turns(len(KINDS), list(KINDS), ["herg_beattie", "model_b"], [0.99, None, -0.5]),
)
def test_gradients_are_those_of_differences(kind, name, rho):
    """Of steps, ramps and sines along random directions, with all limits; mean and worst member."""
    model = load_model(f"models/{name}.yaml")
    noise = rho and summed_twice(rho ** np.arange(8000.0), LIMITS.sampling)
    found = informed(model, 2, correlation=noise)
    n = len(found.scales)
    kinds = ["step", "ramp", "sines", "step"] if name == "model_b" else ["step", "ramp"]
    sweeps = 4 // len(kinds)
    limits = replace(LIMITS, mask=1.0, slew=20.0, sweeps=sweeps, holding=(-100.0, -60.0))
    wave = Waveform(kinds, limits)
    prior = np.full((n, 2), 0.1)
    root = np.random.default_rng(4).standard_normal((2, n, n))
    predicted = root @ root.swapaxes(1, 2) if kind == "V" else None
    judge = Criterion(kind, prior, np.arange(n), kind == "A", predicted)
    x = wave.random(np.random.default_rng(1))
    gradient = wave.gradient(x, found.with_gradient(wave.pieces(x), judge)[1])

    def value(y: np.ndarray) -> float:
        return judge(*found.matrices(wave.pieces(y)))[0]

    for direction in np.random.default_rng(2).standard_normal((2, len(x))):
        step = 1e-4 * direction * (wave.bounds[:, 1] - wave.bounds[:, 0]) / 10
        far = (value(x + step) - value(x - step)) / 2
        near = value(x + step / 2) - value(x - step / 2)
        assert gradient @ step == pytest.approx((4 * near - far) / 3, rel=1e-5, abs=1e-11)


@pytest.mark.parametrize("rate", [1e25, 1e6, 1.0, 1e-9])
def test_stiff_and_slow_rates_are_followed(rate):
    """Against the closed form, by adaptive quadrature over decades of time."""
    model = two_states().with_values(np.array([rate, 0.2, 2.0]))
    source = Source(model, model.values()[:, None], ["b"])
    found = Informed([source], np.ones((1, 1)), 1.0, 1.0)
    matrix = found.matrices(held([0.0], [50.0]))[0]

    def squared_slope(t: float) -> float:
        b = 0.2 + 1e-30j
        p0 = rate * np.exp(-80 / 30) / (rate * np.exp(-80 / 30) + b)
        limit = rate / (rate + b)
        current = 2.0 * 90.0 * (limit + (p0 - limit) * np.exp(-(rate + b) * t))
        return float(current.imag / 1e-30) ** 2

    edges = [0.0, *np.geomspace(1e-9, 50.0, 30)]
    exact = sum(quad(squared_slope, *ends)[0] for ends in pairwise(edges))
    assert matrix[0, 0, 0] == pytest.approx(exact, rel=2e-3)


def test_exponentials_of_stiff_generators_reach_their_steady_state():
    """Of four states with rates to 1e22/ms, against the null space and its differences."""
    random = np.random.default_rng(5)
    rates, change = 10.0 ** random.uniform(18, 22, (4, 4)), random.uniform(0.5, 2, (4, 4))

    def generator(k: np.ndarray) -> np.ndarray:
        return k - np.diag(k.sum(axis=0))

    def steady(k: np.ndarray) -> np.ndarray:
        system = generator(k)
        system[-1] = 1.0
        return np.linalg.solve(system, [0.0, 0.0, 0.0, 1.0])

    a, by = generator(rates), generator(rates * change)
    e, d = _dual_exponential(a[None, None], by[None, None, None], np.ones((1, 1)))
    slope = (steady(rates * (1 + 1e-5 * change)) - steady(rates * (1 - 1e-5 * change))) / 2e-5
    assert np.abs(e[0, 0, 0] - steady(rates)[:, None]).max() < 1e-12
    assert np.abs(d[0, 0, 0, 0] - slope[:, None]).max() < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_protocols_keep_all_limits(seed):
    """Voltages, slew, durations and lengths of two sweeps, of which one voltage is chosen."""
    limits = replace(LIMITS, slew=15.0, sweeps=2, holding=(-100.0, -60.0), shortest=10.01)
    wave = Waveform(segments_of("3 step, ramp, 2 step"), limits)
    protocol = wave.protocol(wave.random(np.random.default_rng(seed)), "x")
    volts = protocol.voltage()
    assert volts.shape == (2, round(LIMITS.length / LIMITS.sampling))
    assert LIMITS.lowest <= volts.min()
    assert volts.max() <= LIMITS.highest
    assert -100 <= protocol.holding_mV <= -60
    before = np.full((2, 1), protocol.holding_mV)
    assert np.abs(np.diff(np.hstack([before, volts]))).max() <= 15 * LIMITS.sampling + 1e-9
    for sweep in protocol.sweeps:
        assert sum(s.end_ms - s.start_ms >= 10.01 for s in sweep[1::2]) == 6
        assert all(isinstance(s.wave, Ramp) for s in sweep[::2])
    assert build_protocol(yaml.safe_load(protocol.to_yaml()), None).sweeps == protocol.sweeps


def test_sines_keep_the_slew():
    limits = replace(LIMITS, slew=5.0, sampling=0.005)
    wave = Waveform(segments_of("step, 2 sines"), limits)
    for seed in range(3):
        x = wave.random(np.random.default_rng(seed))
        x[x.size // 2 :] = wave.bounds[x.size // 2 :, 1]  # fast and large
        volts = wave.protocol(x, "x").voltage()
        assert np.abs(np.diff(volts)).max() <= 5 * limits.sampling * (1 + 1e-5)


def test_a_start_ends_better_than_it_begins_and_the_same_each_time():
    plan = plan_for(two_states())
    tasks = DesignTasks(plan, {})
    found, again = tasks.compute(("start", 1)), tasks.compute(("start", 1))
    begin = plan.waveform.random(np.random.default_rng([0, 1]))
    assert found["criterion"] < plan.criterion_at(begin, plan.informed, plan.judge)[0]
    assert np.array_equal(found["vector"], again["vector"])
    tasks.check_stored(("start", 1), found)
    assert plan_for(two_states(), noise=3).noise == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"segments": "3 jump"}, "segments: .3 jump. is no number and kind"),
        ({"length": "10 ms"}, "length: 10 ms has no room for 3 segments"),
        ({"lowest": 70}, "lowest: is 70 mV, which is not below highest"),
        ({"mask": "5 ms"}, "mask: 5 ms is not below the shortest segment"),
        ({"noise": 0}, "noise: 0 pA is not above 0"),
        ({"parameters": ["x"]}, "parameters: no free parameter"),
        ({"parameters": ["k"], "criterion": "D"}, "only the criteria log and A"),
        ({"criterion": "Z"}, "criterion: one of log, D, A, E, V"),
        ({"criterion": "V"}, "criterion: V needs the protocols"),
        ({"sampling": "1e-9 ms"}, "sampling: 1e-09 ms makes more than 10,000,000 samples"),
        ({"spread": float("nan")}, "spread: .*nan"),
        ({"spread": 11}, "spread: 11 is not within 0 and 10"),
        ({"members": 0}, "members: 1 or more"),
        ({"worst": "no"}, "worst: true or false was expected"),
        ({"seed": -1}, "seed: 0 or more was expected, not -1"),
        ({"segments": ["3 step"]}, "segments: a text such as"),
        ({"shortest": 0.01}, "shortest: 0.01 ms is less than a sampling interval"),
        ({"slew": "3 V/s"}, "length: 60 ms has no room for 3 segments of 5 ms and jumps of 60 ms"),
        ({"slew": "0 V/s"}, "slew: 0 mV/ms is not above 0"),
        ({"slew": "3 mV"}, "slew: .*mV/ms"),
        ({"sweeps": 0}, "sweeps: 1 or more"),
        ({"sweeps": 2, "segments": "2 sines"}, "sweeps: one protocol file cannot hold"),
        ({"sweeps": 2, "segments": "101 step"}, "segments: 202 segments are more than 200"),
        ({"holding": "-60 mV .. -100 mV"}, "holding: a voltage, or a range"),
        ({"holding": "-140 mV"}, "holding: -140 to -140 mV is not within lowest and highest"),
    ],
)
def test_what_cannot_be_is_refused(changed, message):
    with pytest.raises(InputError, match=message):
        plan_for(two_states(), **changed)


def test_options_without_an_effect_and_lengths_that_are_rounded_are_said():
    with pytest.warns(cf.InputWarning) as seen:
        cf.design(
            "models/model_b.yaml",
            length="100 ms",
            segments="2 step",
            limits={"sampling": "0.3 ms", "shortest": "5 ms"},
            ensemble={"spread": 0.5, "worst": True},
            compare="protocols/activation.yaml",
            starts=1,
            iterations=1,
        )
    said = " ".join(str(one.message) for one in seen)
    for words in ("0.5 has no effect", "True has no effect", "99.9 ms are designed"):
        assert words in said


def test_an_ensemble_comes_from_fits_tables_and_families(tmp_path):
    """Beside the model's own values; wells without a fit are left out, and others refused."""
    model, own = two_states(), two_states().values()
    names = model.parameter_names
    k = names.index("k")
    table, families = tmp_path / "wells.csv", tmp_path / "uncertainty.json"
    rows = "".join(f"A{n},{own[k] * (1 + 0.01 * n)},ok\n" for n in range(1, 31))
    table.write_text(f"well,k,quality\n{rows}B1,,failed\n")
    one = {"values": dict(zip(names, (own * 0.9).tolist(), strict=True))}
    families.write_text(json.dumps({"families": [{"representatives": [one]}]}))

    def members(*vectors, **given):
        return plan_for(model, vectors=vectors, **given).subjects[0].members

    found = members(table)
    assert found.shape == (len(own), 16)
    assert found[:, 0] == pytest.approx(own)
    assert found[k, [1, -1]] == pytest.approx(own[k] * np.array([1.01, 1.30]))
    assert np.delete(found, k, axis=0) == pytest.approx(np.delete(own, k)[:, None] * np.ones(16))
    assert members(table, members=3)[k] == pytest.approx(own[k] * np.array([1, 1.01, 1.30]))
    assert members(families) == pytest.approx(np.array([own, 0.9 * own]).T)
    known = replace(model.parameters[k], prior=Prior("lognormal", 1.0, 1.2))
    informed = replace(model, parameters=(*model.parameters[:k], known, *model.parameters[k + 1 :]))
    drawn = plan_for(informed, vectors="prior", members=4000).subjects[0].members[:, 1:]
    logs = np.log(drawn)
    assert logs[k].mean() == pytest.approx(0.0, abs=0.01)
    assert logs[k].std() == pytest.approx(np.log(1.2), rel=0.05)
    b = names.index("b")
    assert np.quantile(logs[b], [0.25, 0.75]) == pytest.approx(np.log([0.0562, 1.778]), abs=0.2)
    for text, words in (
        ("well\nA1\n", "has no parameter of two, such as k"),
        ("k\nx\n", "line 2: a number was expected"),
        (f"k\n{2 * model.parameters[k].upper}\n", "line 2: k: .* is not within its range"),
    ):
        table.write_text(text)
        with pytest.raises(InputError, match=words):
            members(table)
    with pytest.raises(InputError, match="vectors and worst are for the parameters of one"):
        plan_for(model, two_states(), vectors=(families,))
    for text, words in (
        ("{}", "families"),
        ('{"families": 3}', "families: .*a list"),
        ('{"families": [{"representatives": [{"values": {"k": "x"}}]}]}', "values.k: .*a number"),
        ('{"families": [{"representatives": [{"values": {"q": 1}}]}]}', "has no parameter of two"),
    ):
        families.write_text(text)
        with pytest.raises(InputError, match=words):
            members(families)


def test_what_only_ranges_say_is_not_determined():
    """Under noise in which no current is seen each parameter keeps the error of its range."""
    narrow = two_states()
    rows = [replace(p, lower=0.8 * p.value, upper=1.25 * p.value) for p in narrow.parameters]
    narrow = replace(narrow, parameters=tuple(rows))
    for noise, words in (
        (1e9, "Known from the range rather than by it: "),
        (1e-3, "determine all"),
    ):
        plan = plan_for(narrow, noise=noise)
        x = plan.waveform.random(np.random.default_rng(1))
        (remark,) = plan.judged(plan.protocol(x, "x")).remarks
        assert words in remark
        if noise > 1:
            assert all(p.name in remark for p in narrow.parameters)


def test_arguments_of_other_aims_and_unknown_limits_are_refused():
    with pytest.raises(InputError, match="separate: of schemes .* the least distance counts"):
        plan_for(two_states(), two_states(), worst=True)
    with pytest.raises(InputError, match="limits: .*low.* is none of sweeps, holding, lowest"):
        cf.design("models/model_b.yaml", limits={"low": 3})


def test_predictions_scatter_as_parameters_that_are_drawn():
    """The error of a predicted current against currents of parameters from the covariance."""
    predict = cf.Protocol.from_segments(
        [{"step": -20, "for": 10}, {"step": 30, "for": 20}], holding=-80, sampling=0.1, name="p"
    )
    plan = plan_for(two_states(), criterion="V", predict=[predict])
    protocol = plan.protocol(plan.waveform.random(np.random.default_rng(1)), "x")
    found = plan.judged(protocol)
    value, error = (table["current under p"] for table in (found.facts, found.rows))
    covariance = plan.judge.covariance(plan.information(protocol))[0]
    drawn = np.random.default_rng(0).multivariate_normal(np.zeros(3), covariance * 1e-4, 4000)
    values = plan.subject.members
    members = np.concatenate([values, values * np.exp(drawn.T)], axis=1)
    currents = plan.subject.simulated(predict, members)[0]
    rms = np.sqrt(np.mean((currents[:, 1:] - currents[:, :1]) ** 2)) * 1e2
    assert error["error, %"] * value["value"] == pytest.approx(100 * rms, rel=0.03)
    end, criterion = plan.search(plan.waveform.random(np.random.default_rng(1)))
    better = plan.judged(plan.protocol(end, "y")).rows["current under p"]["error, %"]
    assert better < error["error, %"]
    assert np.exp(criterion) == pytest.approx(better * value["value"] / 100, rel=0.02)


def test_a_design_without_a_finite_current_is_refused(monkeypatch):
    plan = plan_for(two_states())
    nothing = lambda _, x, *parts: (np.nan, np.zeros_like(x))
    monkeypatch.setattr(ParameterPlan, "criterion_at", nothing)
    with pytest.raises(InputError, match="no start led to a protocol"):
        designed(plan, 2, [], screen_for("x", False))


def test_the_command_writes_what_it_says(tmp_path):
    out = tmp_path / "d"
    options = ["--length", "100 ms", "--segments", "2 step, ramp", "--starts", "2", "--sweeps", "2"]
    options += ["--iterations", "3", "--sampling", "0.1 ms", "--slew", "20 V/s"]
    options += ["--compare", "protocols/activation.yaml"]
    done = run("design", "models/model_b.yaml", *options, "--out", str(out))
    assert done.exit_code == 0, done.output
    names = {path.name for path in out.iterdir()}
    others = {"protocol.yaml", "stimulus.csv", "design.json", "design.png"}
    assert names == {"protocol_1.eph", "protocol_2.eph", *others}
    volts = cf.Protocol.load(out / "protocol.yaml").voltage()
    for k in (1, 2):
        read = cf.Protocol.load(out / f"protocol_{k}.eph")
        assert np.allclose(read.voltage(), volts[k - 1], atol=1e-9)
        assert read.holding_mV == -80
    table = np.genfromtxt(out / "stimulus.csv", delimiter=",", names=True)
    assert np.allclose(table["voltage_2_mV"], volts[1])
    assert "activation" in done.output
    again = run("design", "models/model_b.yaml", *options, "--out", str(out))
    assert again.exit_code == 2
    assert "not empty" in again.output


def clamped_plan(**changed: Any) -> Any:
    """The plan for two states behind 60 MOhm and a filter, of which the gain is wrong by that."""
    clamp = {"series_resistance": "60 MOhm", "membrane_capacitance": "20 pF"}
    fit = {"clamp": {**clamp, "lowpass": {"poles": 4, "cutoff": "2 kHz"}}}
    return plan_for(two_states(), fit=fit, length="30 ms", segments="2 step", **changed)


@pytest.mark.slow
def test_the_information_through_a_clamp_is_that_of_differences_of_its_currents():
    plan, ideal = clamped_plan(), plan_for(two_states(), length="30 ms", segments="2 step")
    x = plan.waveform.random(np.random.default_rng(1))
    protocol, values = plan.protocol(x, "x"), plan.subject.members
    steps = 1 + 1e-4 * np.array([[1, -1, 0, 0, 0, 0], [0, 0, 1, -1, 0, 0], [0, 0, 0, 0, 1, -1]])
    currents = plan.subject.simulated(protocol, values * steps)[0]
    slopes = (currents[:, ::2] - currents[:, 1::2]) / 2e-4
    exact = slopes.T @ slopes / plan.noise**2
    assert np.abs(plan.information(protocol)[0] / exact - 1).max() < 1e-5
    # far from that of an ideal clamp, so that this could be told
    assert np.abs(ideal.information(protocol)[0] / exact - 1).max() > 0.1


@pytest.mark.slow
def test_a_design_is_refined_through_its_clamp():
    plan = clamped_plan(iterations=12)
    x, found = plan.search(plan.waveform.random(np.random.default_rng(1)))
    assert found == plan.measured(x)
    assert plan.measured(plan.refined(x)) < found


def test_the_clamp_and_the_bounds_of_a_fit_are_read(tmp_path):
    text = Path("models/model_b.yaml").read_text()
    own = "fit:\n  clamp: {series_resistance: 5 MOhm}\n  rates_within: [1e-6 /ms, 500 /ms]\n"
    (tmp_path / "m.yaml").write_text(text.replace("fit:\n", own))
    channel, document = channel_document(tmp_path / "m.yaml")
    plan, _ = design_plan([(channel, document["fit"], "m.yaml")], **ARGUMENTS)
    clamp = plan.subject.clamp
    assert clamp is not None
    assert float(clamp.series_resistance) == 5
    assert {bounded.upper for bounded in plan.subject.bounds} == {500}
    assert max(plan.subject.bounds[0].voltages_mV) == 60
    other = [{"clamp": {"series_resistance": "9 MOhm"}}, {}]
    _, cautions = design_plan([(channel, {"experiments": other}, "m.yaml")], **ARGUMENTS)
    assert "the clamp of the first experiment is taken" in str(cautions)
