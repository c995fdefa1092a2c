"""Designed protocols: information and gradients against independent truths, limits, the command."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

import channelfit as cf
from channelfit.designs.criteria import KINDS, Criterion
from channelfit.designs.information import Informed, Pieces, _dual_exponential
from channelfit.designs.plan import DesignTasks, ParameterPlan, simulated
from channelfit.designs.waveform import Limits, Waveform
from channelfit.front.designing import design_plan, designed, segments_of
from channelfit.front.progress import screen_for
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model, load_model
from channelfit.reading.errors import InputError
from channelfit.reading.formats.syncropatch import eph_text
from support.json_output import run
from support.truths import in_turns

LIMITS = Limits(-120.0, 60.0, -80.0, 400.0, 10.0, 0.0, 0.05)


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


def informed(model: ChannelModel, n: int = 1, noise: float = 5.0) -> Informed:
    """Information about the logarithms of all parameters, of an ensemble about the values."""
    factors = np.exp(0.1 * np.random.default_rng(0).standard_normal((len(model.parameters), n)))
    members = model.values()[:, None] * factors
    places = [k for k, p in enumerate(model.parameters) if not p.fixed]
    names = [model.parameters[k].name for k in places]
    return Informed(model, names, members, members[places], noise, LIMITS.sampling)


def held(volts: list[float], lengths: list[float]) -> Pieces:
    """Long pieces that count."""
    true = np.ones(len(volts), bool)
    return Pieces(np.array(volts), np.array(lengths), true, true, -80.0)


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
    values = found.derivatives.members[:, 0]
    slopes = []
    for k in range(3):
        step = np.where(np.arange(3) == k, 1e-5, 0.0)
        slopes.append((current(values * (1 + step)) - current(values * (1 - step))) / 2e-5)
    exact = np.array(slopes) @ np.array(slopes).T * dt * found.per_ms
    matrix = found.matrices(held(volts, lengths))[0]
    assert np.abs(matrix / exact - 1).max() < 5e-5


@pytest.mark.parametrize("name", ["herg_beattie", "herg_markov", "na_hh", "model_b"])
def test_information_is_that_of_the_derivatives_of_fits(name):
    """Of gates with powers and of schemes: integrals against sums over fine samples."""
    plan = design_plan(load_model(f"models/{name}.yaml"), **ARGUMENTS | {"sampling": 0.01})
    x = plan.waveform.random(np.random.default_rng(3))
    protocol = plan.protocol(x, "x")
    fine = plan.information(protocol, "reference")[0]
    volts, lengths = zip(*((v, t) for v, _, t in plan.waveform.epochs(x)), strict=True)
    found = plan.informed.matrices(held(list(volts), list(lengths)))[0]
    scale = np.sqrt(np.diag(fine))
    assert np.abs((found - fine) / np.multiply.outer(scale, scale)).max() < 5e-3


ARGUMENTS = {
    "values": None,
    "separate": [],
    "length": "60 ms",
    "segments": "3 step",
    "noise": "10 pA",
    "holding": "-80 mV",
    "lowest": "-120 mV",
    "highest": "60 mV",
    "shortest": "5 ms",
    "sampling": "0.05 ms",
    "mask": 0,
    "criterion": "log",
    "parameters": [],
    "predict": [],
    "members": 1,
    "spread": 0.1,
    "worst": False,
    "iterations": 5,
    "seed": 0,
}


@pytest.mark.parametrize(
    ("kind", "name"), in_turns(len(KINDS), list(KINDS), ["herg_beattie", "model_b"])
)
def test_gradients_are_those_of_differences(kind, name):
    """Of steps, ramps and sines along random directions, with a mask; mean and worst member."""
    model = load_model(f"models/{name}.yaml")
    found = informed(model, 2)
    wave = Waveform(["step", "ramp", "sines", "step"], replace(LIMITS, mask=1.0))
    prior = np.full((found.n_free, 2), 0.1)
    root = np.random.default_rng(4).standard_normal((2, found.n_free, found.n_free))
    predicted = root @ root.swapaxes(1, 2) if kind == "V" else None
    judge = Criterion(kind, prior, np.arange(found.n_free), kind == "A", predicted)
    x = wave.random(np.random.default_rng(1))
    _, by_volts, by_lengths = found.with_gradient(wave.pieces(x), judge)
    gradient = wave.gradient(x, by_volts, by_lengths)

    def value(y: np.ndarray) -> float:
        return judge(found.matrices(wave.pieces(y)))[0]

    for direction in np.random.default_rng(2).standard_normal((2, len(x))):
        step = 1e-4 * direction * (wave.bounds[:, 1] - wave.bounds[:, 0]) / 10
        far = (value(x + step) - value(x - step)) / 2
        near = value(x + step / 2) - value(x - step / 2)
        assert gradient @ step == pytest.approx((4 * near - far) / 3, rel=1e-5, abs=1e-11)


@pytest.mark.parametrize("rate", [1e25, 1e6, 1.0, 1e-9])
def test_stiff_and_slow_rates_are_followed(rate):
    """Against the closed form, by adaptive quadrature over decades of time."""
    model = two_states().with_values(np.array([rate, 0.2, 2.0]))
    found = Informed(model, ["b"], model.values()[:, None], np.ones((1, 1)), 1.0, 1.0)
    matrix = found.matrices(held([0.0], [50.0]))

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


def test_vectors_stay_within_limits_and_are_rounded():
    wave = Waveform(segments_of("3 step, ramp, 2 step"), LIMITS)
    x = wave.random(np.random.default_rng(0))
    durations = wave.durations(x)
    assert durations.sum() == pytest.approx(LIMITS.length)
    assert durations.min() >= LIMITS.shortest
    protocol = cf.Protocol.from_segments(
        wave.documents(x), holding=-80, sampling=LIMITS.sampling, name="x"
    )
    volts = protocol.voltage()[0]
    assert len(volts) == round(LIMITS.length / LIMITS.sampling)
    assert LIMITS.lower <= volts.min()
    assert volts.max() <= LIMITS.upper


def test_a_syncropatch_file_reads_back(tmp_path):
    wave = Waveform(segments_of("2 step, ramp, step"), LIMITS)
    x = wave.random(np.random.default_rng(2))
    protocol = cf.Protocol.from_segments(
        wave.documents(x), holding=-80, sampling=LIMITS.sampling, name="x"
    )
    (tmp_path / "x.eph").write_text(eph_text("x", -80.0, LIMITS.sampling, wave.epochs(x)))
    read = cf.Protocol.load(tmp_path / "x.eph")
    assert np.allclose(read.voltage(), protocol.voltage(), atol=1e-9)
    assert read.holding_mV == -80


def test_a_start_ends_better_than_it_begins_and_the_same_each_time():
    plan = design_plan(two_states(), **ARGUMENTS)
    tasks = DesignTasks(plan, {})
    found, again = tasks.compute(("start", 1)), tasks.compute(("start", 1))
    begin = plan.waveform.random(np.random.default_rng([0, 1]))
    assert found["criterion"] < plan.criterion_at(begin, plan.informed, plan.judge)[0]
    assert np.array_equal(found["vector"], again["vector"])
    tasks.check_stored(("start", 1), found)
    assert design_plan(two_states(), **ARGUMENTS | {"noise": 3}).noise == 3


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
        ({"spread": float("nan")}, "spread: 1 or more members"),
        ({"members": 0}, "spread: 1 or more members"),
        ({"separate": [None], "worst": True}, "separate: of schemes .* the least distance counts"),
        ({"shortest": 0.01}, "shortest: 0.01 ms is less than a sampling interval"),
    ],
)
def test_what_cannot_be_is_refused(changed, message):
    with pytest.raises(InputError, match=message):
        design_plan(two_states(), **ARGUMENTS | changed)


def test_predictions_scatter_as_parameters_that_are_drawn():
    """The error of a predicted current against currents of parameters from the covariance."""
    predict = cf.Protocol.from_segments(
        [{"step": -20, "for": 10}, {"step": 30, "for": 20}], holding=-80, sampling=0.1, name="p"
    )
    plan = design_plan(two_states(), **ARGUMENTS | {"criterion": "V", "predict": [predict]})
    protocol = plan.protocol(plan.waveform.random(np.random.default_rng(1)), "x")
    row = plan.judged(protocol)[-1]
    covariance = plan.judge.covariance(plan.information(protocol))[0]
    drawn = np.random.default_rng(0).multivariate_normal(np.zeros(3), covariance * 1e-4, 4000)
    members = plan.members * np.exp(drawn.T)
    currents = simulated(plan.model, predict, np.concatenate([plan.members, members], axis=1))[0]
    rms = np.sqrt(np.mean((currents[:, 1:] - currents[:, :1]) ** 2)) * 1e2
    assert row.columns["error, %"] * row.facts["value"] == pytest.approx(100 * rms, rel=0.03)
    end, value = plan.search(plan.waveform.random(np.random.default_rng(1)))
    better = plan.judged(plan.protocol(end, "y"))[-1]
    assert better.columns["error, %"] < row.columns["error, %"]
    assert np.exp(value) == pytest.approx(
        better.columns["error, %"] * row.facts["value"] / 100, rel=0.02
    )


def test_a_design_without_a_finite_current_is_refused(monkeypatch):
    plan = design_plan(two_states(), **ARGUMENTS)
    nothing = lambda _, x, *parts: (np.nan, np.zeros_like(x))
    monkeypatch.setattr(ParameterPlan, "criterion_at", nothing)
    with pytest.raises(InputError, match="no start led to a protocol"):
        designed(plan, 2, [], screen_for("x", False))


def test_the_command_writes_what_it_says(tmp_path):
    out = tmp_path / "d"
    options = ["--length", "100 ms", "--segments", "2 step, ramp", "--starts", "2"]
    options += [
        "--iterations",
        "3",
        "--sampling",
        "0.1 ms",
        "--compare",
        "protocols/activation.yaml",
    ]
    done = run("design", "models/model_b.yaml", *options, "--out", str(out))
    assert done.exit_code == 0, done.output
    names = {path.name for path in out.iterdir()}
    assert names == {"protocol.yaml", "protocol.eph", "stimulus.csv", "design.json", "design.png"}
    yaml, eph = (cf.Protocol.load(out / f"protocol.{kind}") for kind in ("yaml", "eph"))
    assert np.allclose(yaml.voltage(), eph.voltage())
    assert "activation" in done.output
    again = run("design", "models/model_b.yaml", *options, "--out", str(out))
    assert again.exit_code == 2
    assert "not empty" in again.output


def test_a_clamp_is_left_out_with_a_warning(tmp_path):
    options = ["--length", "10 ms", "--segments", "step", "--shortest", "1 ms", "--starts", "1"]
    options += ["--iterations", "1", "--predict", "protocols/ramp.yaml", "--out", tmp_path / "d"]
    text = Path("models/model_b.yaml").read_text()
    (tmp_path / "m.yaml").write_text(
        text.replace("fit:\n", "fit:\n  clamp: {series_resistance: 5 MOhm}\n")
    )
    done = run("design", tmp_path / "m.yaml", *options)
    assert done.exit_code == 0, done.output
    assert "the clamp of this fit is left out" in done.output
    assert "current under ramp" in done.output
