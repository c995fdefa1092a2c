"""Protocols that tell schemes apart: distances, refits and the search against other ways."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import least_squares

from channelfit.designs.plan import Subject
from channelfit.designs.separation import Rival, SeparationPlan
from channelfit.designs.waveform import Limits
from channelfit.front.designing import Design
from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model, load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.rate_bounds import read_rate_bounds
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.scoring.scorer import make_scorer
from designs.test_design import colored, held, two_states
from support.json_output import run

LIMITS = Limits(
    lowest=-120.0, highest=60.0, holding=(-80.0, -80.0), length=30.0, shortest=5.0, sampling=0.05
)


def plan_of(*models: ChannelModel, kinds: tuple[str, ...] = ("step",) * 3) -> SeparationPlan:
    """A plan for schemes at their own values."""
    subjects = tuple(Subject(model, model.values()[:, None]) for model in models)
    return SeparationPlan(subjects=subjects, kinds=kinds, limits=LIMITS, noise=5.0)


def at_own_values(plan: SeparationPlan) -> list[Rival]:
    """Each scheme at its own values as the rival of each other one."""
    pairs = permutations(range(len(plan.subjects)), 2)
    return [Rival(j, i, 0, plan.subjects[j].members) for i, j in pairs]


def known_conductance(rate: str) -> ChannelModel:
    """Two states of which only the rates are to be fitted: one step does not determine all."""
    model = two_states(rate)
    return replace(
        model, parameters=tuple(replace(p, fixed=p.name == "g") for p in model.parameters)
    )


def permeable() -> ChannelModel:
    """Two states with a definition, a rectification and the constant-field current."""
    return build_model(
        {
            "name": "permeable",
            "temperature": "22 degC",
            "definitions": {"u": "v/25", "warm": "celsius/20"},
            "states": ["C", "O"],
            "rates": {"C -> O": "k*warm*exp(u)", "O -> C": "b"},
            "current": {
                "open": "O",
                "permeability": "p",
                "ion": {"valence": 2, "inside": "1e-4 mM", "outside": "2 mM"},
            },
            "parameters": {
                "k": {"range": [0.01, 10], "unit": "1/ms", "scale": "log", "value": 0.3},
                "b": {"range": [0.01, 10], "unit": "1/ms", "scale": "log", "value": 0.2},
                "p": {"range": [0.01, 10], "unit": "um3/ms", "value": 0.4},
            },
        },
        None,
    )


def test_the_distance_is_that_of_simulated_currents():
    """Of gates, a scheme and a permeability with definitions, against sums over fine samples."""
    models = (
        load_model("models/herg_beattie.yaml"),
        load_model("models/herg_markov.yaml"),
        permeable(),
    )
    plan = plan_of(*models)
    x = plan.waveform.random(np.random.default_rng(1))
    fine = replace(plan.protocol(x, "x"), sampling_ms=2e-3)
    volts = [float(s.voltage(np.array([s.start_ms]))[0]) for s in fine.sweeps[0]]
    lengths = [s.end_ms - s.start_ms for s in fine.sweeps[0]]
    currents = [
        make_scorer(Problem(one, (Experiment(fine),)), "reference").simulate(one.values()[:, None])
        for one in models
    ]
    for rival in at_own_values(plan):
        apart = currents[rival.truth][0] - currents[rival.scheme][0]
        exact = (apart**2).sum() * 2e-3 / LIMITS.sampling / plan.noise**2
        ((informed, _),) = plan.parts([rival])
        found = informed.matrices(held(volts, lengths))[0][0, 0, 0]
        assert found == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("rho", [None, 0.99])
def test_gradients_are_those_of_differences(rho):
    """Of the distance that is left by fits which follow, of two fits of each scheme."""
    plan = plan_of(two_states(), two_states("k*exp(v/20)"), kinds=("step", "ramp"))
    plan = replace(plan, spectrum=rho and colored(rho))
    known = at_own_values(plan)
    known += [replace(rival, known=rival.known * 1.2) for rival in known]
    x = plan.waveform.random(np.random.default_rng(1))
    for part in plan.parts(known):
        _, gradient = plan.criterion_at(x, *part)
        for direction in np.random.default_rng(2).standard_normal((2, len(x))):
            step = 1e-4 * direction * (plan.waveform.bounds[:, 1] - plan.waveform.bounds[:, 0])
            values = [plan.criterion_at(x + k * step, *part)[0] for k in (-1, -0.5, 0.5, 1)]
            difference = (8 * (values[2] - values[1]) - (values[3] - values[0])) / 6
            assert gradient @ step == pytest.approx(difference, rel=1e-5)


def current(t: np.ndarray, volts: float, k: float, b: float, slope: float) -> np.ndarray:
    """The current of `known_conductance("k*exp(v/slope)")` in a step from -80 mV, pA."""
    before, now = (k * np.exp(v / slope) for v in (-80.0, volts))
    start, limit = before / (before + b), now / (now + b)
    return np.asarray(2.0 * (volts + 90) * (limit + (start - limit) * np.exp(-(now + b) * t)))


def left_by_scipy(true: float, rival: float, volts: float, n: int) -> float:
    """The sum of squares that the best fit of one exponential to another leaves, pA^2.

    Both are currents of two states in a step from -80 mV, with slopes of the opening rate of
    exp(v/true) and exp(v/rival).
    """
    times = np.arange(n) * LIMITS.sampling
    truth = current(times, volts, 0.7, 0.2, true)
    bounds = np.log([0.01, 0.01]), np.log([10.0, 10.0])
    ends = [
        least_squares(
            lambda p: current(times, volts, *np.exp(p), rival) - truth, np.log(start), bounds=bounds
        )
        for start in ([0.7, 0.2], [0.05, 2.0], [5.0, 0.05])
    ]
    return 2 * min(end.cost for end in ends)


def test_a_refit_and_the_best_protocol_are_those_of_a_grid():
    """One step, whose voltage alone is free, against SciPy's fits to closed forms on a grid."""
    plan = plan_of(
        known_conductance("k*exp(v/30)"), known_conductance("k*exp(v/20)"), kinds=("step",)
    )
    n = round(LIMITS.length / LIMITS.sampling)
    least = {
        v: min(left_by_scipy(30, 20, v, n), left_by_scipy(20, 30, v, n)) / plan.noise**2
        for v in range(-120, 61, 4)
    }
    for volts in (-40, 20):
        protocol = plan.protocol(np.array([float(volts), 0.0]), "x")
        found = min(rival.distance for rival in plan.refitted(protocol, plan.first))
        assert found == pytest.approx(least[volts], rel=1e-5)
    starts = [plan.search(np.array([v, 0.0])) for v in (-100.0, 0.0, 40.0)]
    x, criterion = min(starts, key=lambda end: end[1])
    assert np.exp(-2 * criterion) > 0.98 * max(least.values())
    best = min(r.distance for r in plan.refitted(plan.protocol(x, "x"), plan.first))
    assert np.exp(-2 * criterion) == pytest.approx(best, rel=1e-9)


def test_fits_of_rivals_keep_the_bounds_on_their_rates():
    """A rival whose rates must stay slow leaves more than a free one, and its rates are slow."""
    plan = plan_of(known_conductance("k*exp(v/30)"), known_conductance("k*exp(v/20)"))
    section = Section({"rates_within": ["1e-6 /ms", "2 /ms"]}, None, "fit")
    section.expect(KEYS["fit"])
    slow, free = plan.subjects[1], plan.protocol(np.array([40.0, -60.0, 20.0, 0, 0, 0]), "x")
    bounds = read_rate_bounds(section, slow.model, [free])
    within = replace(plan, subjects=(plan.subjects[0], replace(slow, bounds=bounds)))
    first, bound = (p.refitted(free, p.first)[0] for p in (plan, within))
    rate = slow.model.chains[0].transitions[0].rate
    fastest = [evaluate(rate, {"k": r.known[0, 0], "v": 40.0}) for r in (first, bound)]
    assert fastest[0] > 2 > 0.99 * fastest[1]
    assert bound.distance > 1.01 * first.distance


def test_a_scheme_that_contains_another_is_known_under_every_protocol():
    """At an end of a range, which fits to one of these protocols alone may miss."""
    limits = replace(LIMITS, length=100.0, shortest=2.0)
    plan = plan_of(*map(load_model, ("models/model_a.yaml", "models/model_b.yaml")))
    plan = replace(plan, limits=limits)
    for seed in range(3):
        x = plan.waveform.random(np.random.default_rng(seed))
        found = plan.judged(plan.protocol(x, "x"))
        assert found.remarks[0] == "model_a, fitted by model_b: the currents are equal."
        # the least distance is that of the other pair
        assert found.size == pytest.approx(found.fits[1].distance ** 0.5)


def test_schemes_with_equal_currents_are_named():
    """A scheme within another: one way the currents are equal, and the other way they are not."""
    plain, wider = known_conductance("k*exp(v/30)"), two_states("k*exp(v/30)")
    wider = wider.with_values(np.array([0.7, 0.2, 3.0]))
    plan = plan_of(plain, replace(wider, name="wider"), kinds=("step",) * 2)
    x, criterion = plan.search(plan.waveform.random(np.random.default_rng(0)))
    found = Design(plan, x, [criterion], [])
    assert found.remarks[0] == "two, fitted by wider: the currents are equal."
    equal, different = found.results["design"].values()
    n = round(LIMITS.length / LIMITS.sampling)
    assert equal["delta BIC"] == pytest.approx(np.log(n), rel=1e-6)
    rms = different["rms, pA"]
    assert different["delta BIC"] == pytest.approx(n * np.log1p(rms**2 / 25) - np.log(n))
    with pytest.raises(InputError, match="leave nothing of each other's currents"):
        plan_of(plain, replace(plain, name="same"), kinds=("step",) * 2).search(x)


def test_the_command_tells_schemes_apart(tmp_path):
    out = tmp_path / "d"
    options = ["--length", "40 ms", "--segments", "2 step", "--shortest", "5 ms", "--starts", "1"]
    options += ["--iterations", "8"]
    options += ["--separate", "models/model_b.yaml", "--compare", "protocols/activation.yaml"]
    done = run("design", "models/model_a.yaml", *options, "--out", out)
    assert done.exit_code == 0, done.output
    assert "delta BIC" in done.output
    assert "the least distance of its currents" in done.output
    assert (out / "design.png").is_file()
