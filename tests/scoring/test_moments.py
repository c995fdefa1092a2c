"""Scores from Chebyshev moments: their tables against exponentials, costs against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import ive

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.statuses import OK
from channelfit.reading.errors import InputError
from channelfit.scoring import cpu_moments, cuda_moments
from channelfit.scoring.choose_path import choose_path
from channelfit.scoring.kernels.cuda_moments import CudaMomentSource
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.layout.moment_tables import (
    GREATEST_DECAY,
    GREATEST_DEGREE,
    TRUNCATION,
    ladder,
    moment_table,
    rung_of,
    speed_of,
    typical_speeds,
    weights,
)
from channelfit.scoring.layout.resolvent_tables import resolvent_table
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import compile_with_nvrtc
from support.schemes import PROTOCOLS, candidates, held, recording_of
from support.truths import slow_but

N_CANDIDATES = 21
REAL = pytest.param("real", marks=pytest.mark.gpu)
MOMENT_MODELS = ["herg_markov", "k_hh", "model_a", "model_b", "model_c", "na_markov", "cycle"]


@pytest.mark.parametrize("x", [0.0, 1e-300, 1e-6, 0.1, 1.0, 30.0, 400.0, 5e3, 3e4])
def test_weights_are_bessel_functions(x):
    found = weights(np.array([0.0, x / 7, x]))
    k = np.arange(found.shape[1])
    exact = ive(k, np.array([0.0, x / 7, x])[:, None] / 2) * np.where(k, 2, 1)
    assert np.abs(found - exact).max() < 5e-16
    assert np.abs(found.sum(axis=1) - 1).max() < 1.1 * TRUNCATION


def test_rungs_lie_above_what_is_asked_for():
    for rho in (1e-9, 0.99, 1.0, 1.01, 3e7):
        assert speed_of(rung_of(rho) - 1) < rho <= speed_of(rung_of(rho)) * (1 + 1e-12)


def random_generator(n: int, rng: np.random.Generator) -> np.ndarray:
    """A generator of a chain of states, of rates within three decades, as fast as 1/ms."""
    a = np.diag(10 ** rng.uniform(-3, 0, n - 1), 1) + np.diag(10 ** rng.uniform(-3, 0, n - 1), -1)
    a /= 2 * a.sum(axis=0).max()
    return a - np.diag(a.sum(axis=0))


@pytest.mark.parametrize("n", [1, 2, 400, 3000])
@pytest.mark.parametrize("decay", [1e-3, 7.0, 300.0, 3000.0])
def test_tables_hold_traces_residuals_and_ends(n, decay):
    """Of random chains of seven states, in all samples, against matrix exponentials."""
    rng = np.random.default_rng([n, int(decay)])
    a, p0, open_ = random_generator(7, rng), rng.dirichlet(np.ones(7)), rng.uniform(size=7)
    span, rung = decay, rung_of(1.0)
    table, run = moment_table(n, span, rung), compression(n)
    x = np.eye(7) + 2 * a / speed_of(rung)
    chebyshev = [p0, x @ p0]
    while len(chebyshev) < max(table.rows.shape[1], len(table.end)):
        chebyshev.append(2 * x @ chebyshev[-1] - chebyshev[-2])
    moments = np.array([open_ @ p for p in chebyshev[: table.rows.shape[1]]])
    step = expm(a * span / n)
    states = [p0]
    for _ in range(n):
        states.append(step @ states[-1])
    trace = np.array([open_ @ p for p in states[:-1]])
    basis = np.eye(n) if run.is_whole else run.basis
    assert np.abs(basis @ table.directions.T @ table.rows @ moments - trace).max() < 2e-10
    assert np.abs(table.end @ chebyshev[: len(table.end)] - states[-1]).max() < 1e-11
    data = rng.normal(size=n)
    inside, outside = run.project(data)
    along, beside = table.project(inside)
    squares = ((table.rows @ moments - along) ** 2).sum() + beside + outside
    assert squares == pytest.approx(((trace - data) ** 2).sum(), rel=1e-10)
    for row, length in zip(table.rows, table.lengths, strict=True):
        assert not row[length:].any()


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 400, 3000])
def test_resolvents_hold_traces_and_ends_whatever_the_rates(n, one_way):
    """Of chains, and of a way around four states, from 1e-3 to 300 /ms, in all samples."""
    rng = np.random.default_rng([n, one_way])
    for speed in (1e-3, 1.0, 300.0):  # SciPy loses digits of faster ones
        a = random_generator(7, rng) * speed
        if one_way:
            a[:4, :4] = speed * (np.roll(np.eye(4), 1, axis=0) - np.eye(4))
            a[:4, 4:], a[4:, :4] = 0.0, 0.0
            a[np.diag_indices(7)] -= a.sum(axis=0)
        p0, open_ = rng.dirichlet(np.ones(7)), rng.uniform(size=7)
        table = resolvent_table(n, 50.0, one_way)
        states = []
        for pole in table.poles:
            states.append(pole * np.linalg.solve(pole * np.eye(7) - a, p0))
            for _ in range(table.powers - 1):
                solved = pole * np.linalg.solve(pole * np.eye(7) - a, states[-1])
                states.append(2 * solved - states[-1])
        states = np.array([*states, p0])
        step = expm(a * 50.0 / max(n, 1))
        trace = [p0]
        for _ in range(max(n, 1)):
            trace.append(step @ trace[-1])
        assert np.abs(table.end @ states - trace[-1]).max() < 2e-11
        if n:
            run = compression(n, one_way)
            basis = np.eye(n) if run.is_whole else run.basis
            found = basis @ table.directions.T @ table.rows @ (states @ open_)
            assert np.sqrt(np.mean((found - np.array(trace[:-1]) @ open_) ** 2)) < 3e-11


def test_stiff_runs_have_no_table():
    assert moment_table(10, 1.0, rung_of(1e300)) is None
    assert moment_table(0, 1.0, rung_of(GREATEST_DECAY) + 1) is None
    degree = len(moment_table(0, 1.0, rung_of(GREATEST_DECAY)).end)
    assert 0.9 * GREATEST_DEGREE < degree <= GREATEST_DEGREE


def chain(n: int, low: float = 0.1, high: float = 1.0, **changed: str) -> ChannelModel:
    """A line of n states, every second one open a little, the last one whole; one rate k."""
    rates = {}
    for i in range(1, n):
        rates[f"S{i} -> S{i + 1}"] = f"{1 + i % 3}*k*exp(v/60)"
        rates[f"S{i + 1} -> S{i}"] = f"{1 + i % 2}*k*exp(-v/70)"
    rates |= changed
    document = {
        "name": f"chain_{n}",
        "states": [f"S{i}" for i in range(1, n + 1)],
        "rates": {edge: rate for edge, rate in rates.items() if rate},
        "current": {
            "open": {f"S{i}": 0.1 for i in range(2, n, 2)} | {f"S{n}": 1.0},
            "conductance": "1 nS",
            "reversal": "-90 mV",
        },
        "parameters": {"k": {"range": [low, high], "unit": "1/ms", "scale": "log"}},
    }
    return build_model(document, None)


SCHEMES = {
    **{f"{n} states": chain(n) for n in (2, 6, 12, 13, 20, 64)},
    "cycle": chain(5, **{"S5 -> S1": "0.3*k", "S1 -> S5": "0.02*k*exp(v/30)"}),
    "one way around": chain(
        4, **{f"S{i + 1} -> S{i}": "" for i in range(1, 4)}, **{"S4 -> S1": "k"}
    ),
    "absorbing": chain(4, **{"S4 -> S3": "1e-12*k*exp(-v/4)"}),
    "any rate": chain(7, 1e-9, 1e9),
}


QUICK = ["6 states", "13 states", "any rate"]


def compared(problem: Problem, values: np.ndarray, backend: str = "cpu") -> np.ndarray:
    """Relative errors of the costs by moments; statuses agree."""
    exact = ReferenceScorer(problem).score(values)
    score = make_scorer(problem, backend, path="moments").score(values)
    assert np.array_equal(score.status, exact.status)
    good = exact.status == OK
    return np.abs(score.cost[good] / exact.cost[good] - 1)


def by_backend(quick: list[str], played: list[str], every: Iterable[str]) -> list[Any]:
    """Cases of both backends: some quick, all of them slow, and all of them on a GPU."""
    # 64 states take the host minutes, and more than its stack
    cases = [("cpu", name) for name in every]
    cases += [("played", name) for name in every if name != "64 states"]
    some = [*(("cpu", name) for name in quick), *(("played", name) for name in played)]
    on_a_gpu = [pytest.param("real", name, marks=pytest.mark.gpu) for name in every]
    return [*slow_but(some, cases), *on_a_gpu]


@pytest.mark.parametrize(
    ("backend", "name"),
    by_backend(QUICK, ["any rate"], SCHEMES),
    indirect=["backend"],
)
def test_costs_equal_the_reference_for_any_scheme(backend, name):
    """Lines of any length, cycles, states that keep all, rates over eighteen decades."""
    model = SCHEMES[name]
    problem = Problem(model, held("model_a").experiments)
    values = np.geomspace(model.parameters[0].lower, model.parameters[0].upper, 19)[None]
    assert compared(problem, values, backend).max() < 1e-9


@pytest.mark.parametrize(("name", "low", "high"), [("6 states", 0.1, 1), ("any rate", 1e-9, 1e9)])
def test_chains_are_not_doubted(name, low, high):
    """Slow ones have Chebyshev's moments, those of any speed moments of resolvents."""
    problem = Problem(SCHEMES[name], held("model_a").experiments)
    scorer = make_scorer(problem, "cpu", path="moments")
    assert not len(scorer.scoring.score(np.geomspace(low, high, 19)[None], 1)[1])


def test_long_ways_around_are_refused():
    """They oscillate for longer than tables hold: with ten states a cost would be off by 2e-8."""
    experiments = held("model_a").experiments
    for n, taken in ((6, True), (10, False)):
        back = {f"S{i + 1} -> S{i}": "" for i in range(1, n)}
        problem = Problem(chain(n, **back, **{f"S{n} -> S1": "k"}), experiments)
        if taken:
            assert compared(problem, np.geomspace(1e-3, 1e3, 19)[None]).max() < 1e-9
            continue
        with pytest.raises(InputError, match="cycle of more than 6 states"):
            make_scorer(problem, "cpu", path="moments")


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("backend", "name"),
    by_backend(["na_markov"], [], MOMENT_MODELS),
    indirect=["backend"],
)
def test_costs_equal_the_reference_over_the_full_ranges(backend, name):
    problem = held(name)
    values = candidates(problem.model, N_CANDIDATES)
    values[0, 3] = np.nan
    assert compared(problem, values, backend).max() < 1e-9


@pytest.mark.parametrize(
    "backend",
    ["cpu", pytest.param("played", marks=pytest.mark.slow), REAL],
    indirect=True,
)
def test_leaks_and_several_open_states(backend):
    document = {
        "name": "leaky",
        "states": ["A", "B", "C"],
        "rates": {"A -> B": "k", "B -> A": "k*exp(-v/40)", "B -> C": "0.2*k", "C -> B": "0.1*k"},
        "current": {"open": {"B": 1.0, "C": 0.3}, "conductance": "2 nS", "reversal": "-90 mV"},
        "leak": {"conductance": "0.3 nS", "reversal": "-10 mV"},
        "parameters": {"k": {"range": [0.1, 10], "unit": "1/ms"}},
    }
    problem = Problem(build_model(document, None), held("model_a").experiments)
    assert compared(problem, np.linspace(0.1, 10.0, 19)[None], backend).max() < 1e-9


def test_order_and_neighbors_change_no_more_than_the_last_digits():
    """Candidates side by side share the rung of the fastest."""
    problem = Problem(SCHEMES["any rate"], held("model_a").experiments)
    values = np.geomspace(1e-9, 1e9, 37)[None]
    scorer = make_scorer(problem, "cpu", path="moments")
    cost = scorer.score(values).cost
    order = np.random.default_rng(0).permutation(37)
    assert np.abs(scorer.score(values[:, order]).cost / cost[order] - 1).max() < 1e-10
    for n in (0, 1, 16, 17):
        assert np.abs(scorer.score(values[:, :n]).cost / cost[:n] - 1).max(initial=0) < 1e-10
    scorer.n_threads = 1
    assert np.array_equal(scorer.score(values).cost, cost)


def test_what_does_not_fit_in_memory_is_stepped(monkeypatch):
    monkeypatch.setattr(cpu_moments, "_MOST_NUMBERS", -1)
    problem = Problem(SCHEMES["6 states"], held("model_a").experiments)
    values = np.geomspace(0.1, 1.0, 5)[None]
    scorer = make_scorer(problem, "cpu", path="moments")
    assert len(scorer.scoring.score(values, 1)[1]) == 5
    stepped = make_scorer(problem, "cpu", path="stepping").score(values)
    assert np.array_equal(scorer.score(values).cost, stepped.cost)


def test_gates_and_moving_voltages_say_why():
    with pytest.raises(InputError, match="--path moments: the open probability is a product"):
        make_scorer(held("na_hh"), "cpu", path="moments")
    with pytest.raises(InputError, match="--path moments: a channel of one state does not relax"):
        make_scorer(held("leak"), "cpu", path="moments")
    ramp = PROTOCOLS["ramp"]
    moving = Problem(SCHEMES["6 states"], (Experiment(ramp, recording_of(ramp, 0)),))
    with pytest.raises(InputError, match="--path moments: the command voltage varies"):
        make_scorer(moving, "cpu", path="moments")


def test_the_cpu_chooses_the_path_that_was_measured_to_be_fastest():
    """Moments for slow candidates or many states, modes for few, steps for few samples."""
    few, many = (problem_of(samples) for samples in (40, 4000))
    chosen = {
        "moments": (few(chain(9)), many(chain(6)), few(chain(9, 0.1, 1e9))),
        "closed-form": (few(chain(3)), many(chain(6, 0.1, 1e9))),
        "stepping": (few(chain(6, 0.1, 1e9)), many(chain(20))),
    }
    for path, problems in chosen.items():
        for problem in problems:
            assert choose_path(problem, "float64", "auto", "cpu") == path


def problem_of(samples: int) -> Callable[[ChannelModel], Problem]:
    """Problems of six sweeps of 10 ms, each of so many samples."""
    protocol = replace(PROTOCOLS["steps"], sampling_ms=10.0 / samples)
    return lambda model: Problem(model, (Experiment(protocol, recording_of(protocol, 0)),))


@pytest.mark.slow
def test_jobs_lists_and_blocks_on_a_gpu(device, monkeypatch):
    """Runs that jobs share, warps that are not full, candidates too stiff for the tables, sorted or
    in the order in which they are given.
    """
    monkeypatch.setitem(cuda_moments.LEAST_SERVED, "cuda", 0.0)
    monkeypatch.setattr(cuda_moments, "_GREATEST_DEGREE", np.inf)
    problem = Problem(chain(11, 1e-3, 1e4), held("model_a").experiments)
    values = np.geomspace(1e-3, 0.3, 35)[None]
    values[0, 7] = 1e4
    exact = ReferenceScorer(problem).score(values)
    scorer = make_scorer(problem, "cuda", path="moments")
    for n_jobs, sorted_from in ((1, 99), (1, 1), (3, 1)):
        monkeypatch.setattr(cuda_moments, "_SORTED_FROM", sorted_from)
        scorer.scoring.n_jobs = n_jobs
        found = scorer.score(values)
        assert np.abs(found.cost / exact.cost - 1).max() < 1e-9
        assert np.array_equal(found.status, exact.status)
    assert 0 < scorer.scoring.rerouted_share(scorer.xp.asarray(values)) < 0.2


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (chain(8), "moments"),
        (chain(7, 1e-3, 1e6), "stepping"),
        (chain(8, 1e-3, 1e6), "moments"),
        (chain(4), "closed-form"),
        (SCHEMES["one way around"], "moments"),
    ],
)
def test_a_gpu_takes_moments_where_they_are_fastest(model, path):
    """From six states on, or without modes; from eight on those of resolvents, for fast rates."""
    assert choose_path(problem_of(500)(model), "float64", "auto", "cuda") == path


def test_speeds_of_a_sample_are_those_of_generators():
    """Twice the fastest exit, at each voltage, over the whole range on its own scale."""
    volts = np.array([-60.0, 20.0])
    speeds = typical_speeds(SCHEMES["6 states"], volts)
    exits = [
        [
            (1 + i % 3) * np.exp(volts / 60) * (i < 6)
            + (1 + (i - 1) % 2) * np.exp(-volts / 70) * (i > 1)
        ]
        for i in range(1, 7)
    ]
    fastest = 2 * np.max(exits, axis=0)[0]
    k = speeds / fastest[:, None]
    assert np.allclose(k[0], k[1], rtol=1e-12)
    assert 0.1 <= k.min() < 0.11
    assert 0.9 < k.max() <= 1.0
    assert np.median(k) == pytest.approx(0.1**0.5, rel=0.15)


def test_there_are_tables_even_where_no_candidate_is_slow_enough():
    found = ladder(Problem(chain(6, 1e6, 1e7), held("model_a").experiments), False)
    assert found.served == 0
    for (n, span), top in found.highest.items():
        assert top >= found.lowest
        assert moment_table(n, span, top) is not None


@pytest.mark.parametrize("architecture", slow_but(["sm_90"], ["sm_75", "sm_80", "sm_90"]))
def test_the_text_compiles_for_a_device(architecture):
    """With matrix units for float64, with small ones alone, and with none."""
    compile_with_nvrtc(CudaMomentSource(SCHEMES["12 states"]).specialized(16), architecture)
