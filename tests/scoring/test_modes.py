"""Scores from modes, on the CPU and as generated CUDA on the CuPy that the host plays (and on a
real GPU), and the transforms and spectra behind them."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.cuda_spectral import CudaSpectralSource
from channelfit.scoring.kernels.detailed_balance import (
    keeps_detailed_balance,
    reason_without_modes,
)
from channelfit.scoring.kernels.spectral import LEAST_COST
from channelfit.scoring.layout.exponential_tables import (
    DEGREE,
    transform_table,
)
from channelfit.scoring.machine.kernel_math import CELL_BITS, decay
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import HostCupy, compile_with_nvrtc
from support.schemes import HELD, SHIPPED, candidates, from_yaml, held, model_named, recording_of
from support.truths import shared, slow_but

N_CANDIDATES = 21


def interpolated(table: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The table read by arithmetic instead of by bits."""
    octave = np.floor(np.log2(y))
    place = np.floor((y / 2**octave - 1) * 2**CELL_BITS)
    cell = np.minimum(octave * 2**CELL_BITS + place, len(table) - 1).astype(int)
    d = y - 2**octave * (1 + (place + 0.5) / 2**CELL_BITS)
    return sum(table[cell, k] * d**k for k in range(DEGREE + 1))


@given(st.integers(2, 3000), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_transforms_are_sums_of_exponentials(n, seed):
    random = np.random.default_rng(seed)
    data = random.normal(size=n) + random.normal()
    decay = np.concatenate([[0.0, 1e-300], np.exp(random.uniform(-20, 6, 60))])
    exact = np.exp(-decay[:, None] * np.arange(n)) @ data
    found = interpolated(transform_table(data), 1 + decay * n)
    assert np.abs(found - exact).max() < 1e-11 * np.abs(data).sum()


#: A scheme and gates by each backend.
QUICK = [
    *(("cpu", name) for name in ("model_c", "na_hh", "cycle")),
    *(("played", name) for name in ("model_b", "na_hh")),
]


EVERY = [(backend, name) for backend in ("cpu", "played") for name in [*SHIPPED, "cycle"]]


ON_A_GPU = [
    pytest.param("real", *case[1:], marks=pytest.mark.gpu) for case in EVERY if case[0] == "cpu"
]


@pytest.mark.parametrize(
    ("backend", "name"), [*slow_but(QUICK, EVERY), *ON_A_GPU], indirect=["backend"]
)
def test_costs_equal_the_reference_over_the_full_ranges(backend, name):
    """And what fails fails alike: a parameter that is NaN, and a rate below 0."""
    problem = held(name)
    exact, status = true_costs_held(name)
    values = candidates(problem.model, N_CANDIDATES)
    scorer = make_scorer(problem, backend, path="closed-form")
    score = scorer.score(values)
    assert np.array_equal(score.status, status)
    assert np.abs(score.cost / exact - 1).max() < 1e-9
    if name == "cycle":
        values[problem.model.parameter_names.index("k4"), 1:3] = np.nan, -1.0
        score = scorer.score(values)
        assert score.status[:4].tolist() == [OK, NOT_FINITE, NEGATIVE_RATE, OK]
        assert np.isinf(score.cost[1:3]).all()


@shared
def true_costs_held(name: str) -> list[np.ndarray]:
    """Cost and status by the reference."""
    problem = held(name)
    score = ReferenceScorer(problem).score(candidates(problem.model, N_CANDIDATES))
    return [score.cost, score.status]


@pytest.mark.parametrize("name", slow_but(["model_c"], ["model_c", "herg_markov"]))
def test_what_is_not_doubted_is_right(name):
    """Of thousands over the full ranges, whose rates lie up to ninety decades apart."""
    problem = held(name)
    values = candidates(problem.model, 2000, seed=11)
    exact = make_scorer(problem, "cpu", path="stepping").score(values).cost
    cost = make_scorer(problem, "cpu", path="closed-form").score(values).cost
    assert np.abs(cost / exact - 1).max() < 1e-9


def test_cpu_and_gpu_doubt_the_same_and_agree(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    problem = held("model_b")
    values = candidates(problem.model, N_CANDIDATES, seed=5)
    cpu, cuda = (make_scorer(problem, b, path="closed-form") for b in ("cpu", "cuda"))
    assert np.abs(cpu.score(values).cost / cuda.score(values).cost - 1).max() < 1e-10
    assert n_listed(cpu, values) == n_listed(cuda, values)


def test_order_threads_and_neighbors_do_not_change_a_bit_on_the_cpu():
    problem = held("herg_markov")
    scorer = make_scorer(problem, "cpu", path="closed-form")
    values = candidates(problem.model, 75, seed=3)
    cost = scorer.score(values).cost
    order = np.random.default_rng(0).permutation(75)
    for scorer.n_threads in (1, 2, 5):
        assert np.array_equal(scorer.score(values[:, order]).cost, cost[order])
    for n in (0, 1, 16, 17):
        score = scorer.score(values[:, :n])
        assert score.status.shape == (n,)
        assert np.array_equal(score.cost, cost[:n])
    assert scorer.score(values[:, 74:]).cost[0] == cost[74]
    values[0, 3] = np.nan
    others = np.arange(75) != 3
    assert np.array_equal(scorer.score(values).cost[others], cost[others])


def test_the_cpu_chooses_modes_where_it_can():
    assert make_scorer(held("model_b"), "cpu").path == "closed-form"
    assert make_scorer(held("na_markov"), "cpu").path == "stepping"
    bare = Problem(model_named("model_b"), tuple(Experiment(p) for p in HELD.values()))
    assert make_scorer(bare, "cpu").path == "stepping"


@given(st.floats(0, 1e300))
def test_decay_keeps_its_digits(x):
    assert decay(x) == pytest.approx(-np.expm1(-x), rel=1e-15, abs=0)


def test_any_number_of_jobs(device):
    problem = held("model_b")
    values = candidates(problem.model, N_CANDIDATES)
    scorer = make_scorer(problem, "cuda", path="closed-form")
    costs = []
    for scorer.scoring.n_jobs in (1, 5, 64):
        costs.append(scorer.score(values).cost)
    assert np.abs(np.array(costs) / costs[0] - 1).max() < 1e-11


def n_listed(scorer: Any, values: np.ndarray) -> int:
    """The number of candidates that a scorer does not trust its modes with."""
    if scorer.backend == "cpu":
        return len(scorer.scoring.score(values, 1)[1])
    listed = Listed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scorer.scoring, "_exact", listed)
        scorer.score(values)
    return listed.number


class Listed:
    """Counts what is listed for stepping on a GPU, and scores nothing."""

    number, listed = -1, types.SimpleNamespace(done=True)

    def score_listed(self, parameters, cost, status, listed, n_listed, n_next) -> None:
        self.number = int(n_listed[0])


#: Three states whose two speeds meet, where v is high and d is 0.
MEETING = {
    "name": "meeting",
    "states": ["A", "B", "C"],
    "rates": {
        "A -> B": "k",
        "B -> A": "k*exp(-(v + 60)/2)",
        "B -> C": "k*(1 + d)",
        "C -> B": "k*exp(-(v + 60)/2)",
    },
    "current": {"open": ["C"], "conductance": "1 nS", "reversal": "-90 mV"},
    "parameters": {"k": {"range": [0.1, 1], "unit": "1/ms"}, "d": {"range": [-1, 1]}},
}


def test_speeds_that_agree_are_stepped(backend):
    """Three states whose two speeds meet: the formula divides by their difference."""
    problem = Problem(build_model(MEETING, None), held("model_a").experiments)
    values = np.array([[0.3] * 5, [0.0, 1e-12, 1e-7, 1e-2, 0.5]])
    scorer = make_scorer(problem, backend, path="closed-form")
    exact = ReferenceScorer(problem).score(values)
    assert np.abs(scorer.score(values).cost / exact.cost - 1).max() < 1e-9
    assert n_listed(scorer, values) == 3


@pytest.mark.parametrize("back", ["0.1*k*exp(-v/50)", ""])
def test_three_states_that_oscillate_are_stepped(backend, back):
    """A cycle without detailed balance, with rates both ways or one way round alone."""
    ways = ("A -> B", "B -> C", "C -> A")
    document = {
        **MEETING,
        "rates": {way: f"k{n}*exp(v/{40 + 10 * n})" for n, way in enumerate(ways)}
        | ({f"{way[-1]} -> {way[0]}": back for way in ways} if back else {}),
        "parameters": {
            name: {"range": [1e-4, 10], "unit": "1/ms", "scale": "log", "value": 0.1}
            for name in (*(["k"] if back else []), "k0", "k1", "k2")
        },
    }
    problem = Problem(build_model(document, None), held("model_a").experiments)
    values = candidates(problem.model, 200, seed=3)
    scorer = make_scorer(problem, backend, path="closed-form")
    exact = ReferenceScorer(problem).score(values)
    assert np.abs(scorer.score(values).cost / exact.cost - 1).max() < 1e-9
    assert 20 < n_listed(scorer, values) < 180


def test_how_much_cancels_is_measured_in_the_weights_of_the_cost(backend):
    """Speeds that nearly meet: weights of a billionth or a billion doubt the same candidates."""
    model, few = build_model(MEETING, None), held("model_a").experiments
    values = np.array([[0.3] * 9, 10.0 ** -np.arange(1.0, 10.0)])
    problems = (
        Problem(model, tuple(replace(e, weight=factor * e.weight) for e in few))
        for factor in (1.0, 1e-9, 1e9)
    )
    listed = [n_listed(make_scorer(p, backend, path="closed-form"), values) for p in problems]
    assert listed[0] == listed[1] == listed[2]
    assert 0 < listed[0] < 9


def test_speeds_that_are_alike_and_gone_at_once(backend):
    """Two pairs of states at equilibrium within a sample, and what is slow between them."""
    document = {
        "name": "pairs",
        "states": ["A", "B", "C", "D"],
        "rates": {
            "A -> B": "k*exp(v/50)",
            "B -> A": "k",
            "C -> D": "k*exp(v/50)",
            "D -> C": "k",
            "B -> C": "0.02",
            "C -> B": "0.03*exp(-v/70)",
        },
        "current": {"open": {"B": 1.0, "D": 0.4}, "conductance": "1 nS", "reversal": "-90 mV"},
        "parameters": {"k": {"range": [1, 1e12], "unit": "1/ms", "scale": "log"}},
    }
    problem = Problem(build_model(document, None), held("model_a").experiments)
    values = np.logspace(0, 12, 25)[None]
    exact = ReferenceScorer(problem).score(values)
    score = make_scorer(problem, backend, path="closed-form").score(values)
    assert np.abs(score.cost / exact.cost - 1).max() < 1e-9


def test_a_cost_of_nothing_is_stepped(backend):
    """The sum is rounding alone if the model meets the data exactly."""
    bare = held("model_b")
    values = bare.model.values()[:, None]
    currents = ReferenceScorer(bare).simulate(values)
    experiments = []
    for e, current in zip(bare.experiments, currents, strict=True):
        there = np.isfinite(current[..., 0]).astype(float)
        recording = Recording(e.protocol.times_ms, current[..., 0], there)
        experiments.append(Experiment(e.protocol, recording))
    problem = Problem(bare.model, tuple(experiments))
    scorer = make_scorer(problem, backend, path="closed-form")
    cost = scorer.score(np.column_stack([values, values * 1.5])).cost
    power = np.mean([np.nanmean(c**2) for c in currents])
    assert 0 <= cost[0] < 1e-20 * power
    assert cost[1] > LEAST_COST * power


def test_moving_voltage_and_models_without_modes_say_why(backend):
    ramp = from_yaml(segments=[{"hold": 1}, {"ramp": [-120, 60], "for": 4}])
    moving = Problem(model_named("model_a"), (Experiment(ramp, recording_of(ramp, 0)),))
    with pytest.raises(InputError, match="--path closed-form: the command voltage varies"):
        make_scorer(moving, backend, path="closed-form")
    assert make_scorer(moving, backend).path == "stepping"
    circle = Problem(turning(), held("model_a").experiments)
    with pytest.raises(InputError, match="do not keep detailed balance"):
        make_scorer(circle, backend, path="closed-form")
    offered = 'path "samples" is not one of auto, stepping, closed-form, moments'
    with pytest.raises(InputError, match=offered):
        make_scorer(circle, backend, path="samples")


TURNING = {
    "name": "turning",
    "states": ["A", "B", "C", "D"],
    "rates": {
        **dict.fromkeys(("A -> B", "B -> C", "C -> D", "D -> A"), "2*k"),
        **dict.fromkeys(("B -> A", "C -> B", "D -> C", "A -> D"), "k"),
    },
    "current": {"open": ["D"], "conductance": "1 nS", "reversal": "-90 mV"},
    "parameters": {"k": {"range": [0.1, 1], "unit": "1/ms", "value": 0.5}},
}


def turning(**rates: str) -> ChannelModel:
    named = {f"{way[0]} -> {way[1]}": rate for way, rate in rates.items()}
    return build_model({**TURNING, "rates": {**TURNING["rates"], **named}}, None)


def test_detailed_balance():
    assert all(reason_without_modes(model_named(name)) is None for name in SHIPPED)
    for rates, kept in (({}, False), ({"DA": "k/4"}, False), ({"DA": "k/8"}, True)):
        model = turning(**rates)
        assert keeps_detailed_balance(model, model.chains[0]) == kept


def test_a_circle_whose_rates_are_cut_at_their_bounds_is_stepped(backend):
    """Rates in detailed balance lose it where one of them is cut at a bound."""
    model = turning(DA="k/8", CD="2*k*exp(v/50)", DC="k*exp(v/50)")
    problem = Problem(model, held("model_a").experiments)
    values = np.array([[0.5, 0.7e100, 7e100, 1e-100]])
    exact = ReferenceScorer(problem).score(values)
    scorer = make_scorer(problem, backend, path="closed-form")
    assert np.abs(scorer.score(values).cost / exact.cost - 1).max() < 1e-9
    assert n_listed(scorer, values) == 3


@pytest.mark.parametrize(
    ("n", "closed"),
    slow_but([(4, True)], [(4, True), (6, False), (7, False), (7, True)]),
)
def test_schemes_whose_rates_are_all_the_same(device, n, closed):
    """Columns as long as each other, and in a circle every speed but one or two occurs twice."""
    states = [f"S{i}" for i in range(n)]
    pairs = list(zip(states, [*states[1:], states[0]], strict=True))[: n if closed else n - 1]
    is_open = {"S1": 1.0, states[-1]: 0.4}
    document = {
        "states": states,
        "rates": {f"{a} -> {b}": "k" for pair in pairs for a, b in (pair, pair[::-1])},
        "current": {"open": is_open, "conductance": "1 nS", "reversal": "-90 mV"},
        "parameters": {"k": {"range": [0.001, 100], "scale": "log", "value": 1}},
    }
    problem = Problem(build_model(document, None), held("model_a").experiments)
    values = np.array([[1e-3, 0.02, 0.5, 1.0, 7.0, 100.0]])
    exact = ReferenceScorer(problem).score(values)
    score = make_scorer(problem, "cuda", path="closed-form").score(values)
    assert np.array_equal(score.status, exact.status)
    assert score.cost == pytest.approx(exact.cost, rel=1e-9)


def test_the_text_compiles_for_a_device():
    for name in ("herg_markov", "na_hh"):
        compile_with_nvrtc(CudaSpectralSource(model_named(name)).specialized(4))


def test_an_interrupt_between_two_launches_spoils_nothing(monkeypatch):
    """The earlier list is forgotten; the next score is whole."""
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    problem = held("na_markov")
    values = candidates(problem.model, 9)
    scorer = make_scorer(problem, "cuda", path="closed-form")
    truth = scorer.score(values).cost

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scorer.scoring._exact, "score_listed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scorer.score(values)
    assert np.array_equal(scorer.score(values).cost, truth)
    assert np.array_equal(scorer.score(values).cost, truth)
