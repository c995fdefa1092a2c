"""The parts that only generated CUDA has, run on the host; and the scorer around it."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from support.cuda_host import DeviceArray, HostCupy, compile_with_nvrtc
from support.schemes import (
    N_CANDIDATES,
    PROTOCOLS,
    SHIPPED,
    candidates,
    from_yaml,
    largest_error,
    model_named,
    random_scheme,
    recording_of,
    scored,
    truth_of,
)
from support.truths import slow_but

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


def agree(problem: Problem, parameters: np.ndarray, dtype: str = "float64") -> None:
    """Currents and costs of the kernels are those of the reference."""
    least = 1e-6 if dtype == "float64" else 1e-3
    scorer, reference = CudaScorer(problem, dtype, path="stepping"), ReferenceScorer(problem)
    scorer.stepping.both = True  # one program for both
    test, truth = scorer.score(parameters), reference.score(parameters)
    assert np.array_equal(test.status, truth.status)
    assert test.cost == pytest.approx(truth.cost, rel=TOLERANCE[dtype])
    for a, b in zip(scorer.simulate(parameters), reference.simulate(parameters), strict=True):
        assert largest_error(a, b, least) < TOLERANCE[dtype]


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that the host plays."""
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_jobs_add_up_and_alike_every_time(dtype: str) -> None:
    problem = scored("na_hh")
    parameters = candidates(problem.model, N_CANDIDATES, seed=1)
    scorer, (truth, *_) = CudaScorer(problem, dtype), truth_of("na_hh")
    for scorer.stepping.n_jobs in (1, 7):
        cost = scorer.score(parameters).cost
        assert cost == pytest.approx(truth, rel=TOLERANCE[dtype])
        assert np.array_equal(cost, scorer.score(parameters).cost)
        there = scorer.score(gpu.cupy().asarray(parameters)).cost  # comes back as it was given
        assert type(there) is DeviceArray
        assert np.array_equal(there, cost)
        company = scorer.score(np.repeat(parameters[:, [0]], 9, axis=1)).cost
        assert (company == cost[0]).all()


# --- nasty ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "dtype"),
    slow_but(
        [(5, "float64"), (10, "float64")],
        [(n, dtype) for n in (5, 6, 9, 10, 11, 16) for dtype in ("float64", "float32")],
    ),
)
def test_many_states_with_loops(n: int, dtype: str) -> None:
    """Every way to a propagator: of few states, in registers, and of more than fit."""
    keys = ("steps", "ramp", "off the grid")
    experiments = [Experiment(PROTOCOLS[k], recording_of(PROTOCOLS[k], 3)) for k in keys]
    agree(Problem(random_scheme(n, n), tuple(experiments)), np.array([[1.0, 0.1, 10.0]]), dtype)


def test_every_length_of_a_run() -> None:
    """Strides, remainders and both, and where the next run takes over."""
    sweeps = tuple(
        (Segment(0.0, n * 0.1, Constant(10.0)), Segment(n * 0.1, n * 0.1 + 0.3, Constant(-40.0)))
        for n in range(1, 36)
    )
    protocol = Protocol("lengths", -80.0, 0.1, sweeps)
    for name, dtype in (("model_b", "float32"), ("na_hh", "float64")):
        model = model_named(name)
        problem = Problem(model, (Experiment(protocol, recording_of(protocol, 0)),))
        agree(problem, candidates(model, 2), dtype)


#: Up and down from -40 mV, and flat at the end: nothing but ramps visits what lies between.
RAMPS = from_yaml(
    holding=-40,
    segments=[
        {"ramp": [-40, 40], "for": 4},
        {"ramp": [40, -80], "for": 4},
        {"ramp": [-80, -40], "for": 1},
        {"hold": 1},
    ],
)


def status_on_ramps(
    rates: tuple[str, str], gates: bool, dtype: str, parameters: np.ndarray, n_states: int = 3
) -> list[int]:
    """Of a gate, or a scheme of two or three states, with these rates there and back."""
    there, back = rates
    names = {name: {"range": [-1e3, 1e3], "value": 1} for name in "abc"[3 - len(parameters) :]}
    current: dict[str, Any] = {"conductance": "1 nS", "reversal": "-90 mV"}
    document: dict[str, Any] = {"parameters": names, "current": current}
    if gates:
        document["gates"] = {"m": {"power": 1, "alpha": there, "beta": back}}
    else:
        current["open"] = ["B"]
        document["states"] = ["A", "B", "C"][:n_states]
        document["rates"] = {"A -> B": there, "B -> A": back}
        document["rates"] |= {"B -> C": "0.1", "C -> B": "0.2"} if n_states == 3 else {}
    experiment = Experiment(RAMPS, recording_of(RAMPS, 0))
    score = CudaScorer(Problem(build_model(document, None), (experiment,)), dtype).score(parameters)
    assert np.array_equal(np.isfinite(score.cost), score.status == OK)
    return score.status.tolist()


@pytest.mark.parametrize(("gates", "dtype"), [(True, "float32"), (False, "float64")])
def test_a_rate_that_fails_where_the_voltage_moves_only(gates: bool, dtype: str) -> None:
    parameters = np.array([[1.0, 0.1, 1.0], [0.01, 0.01, 0.01], [100.0, 100.0, 20.0]])
    status = status_on_ramps(("a + b*(v + 40)", "0.1*sqrt(c - v)"), gates, dtype, parameters)
    assert status == [OK, NEGATIVE_RATE, NOT_FINITE]


@pytest.mark.parametrize(("n_states", "dtype"), [(2, "float64"), (3, "float32")])
def test_a_rate_that_is_no_number_whatever_its_sign(n_states: int, dtype: str) -> None:
    """NaN without a sign, as a GPU makes it, passes for a rate where only signs are looked at."""
    rates, parameters = ("0.1*abs(log(c - v))", "0.3"), np.array([[100.0, 20.0]])
    assert status_on_ramps(rates, False, dtype, parameters, n_states) == [OK, NOT_FINITE]


def test_single_precision_does_not_lose_a_slow_gate() -> None:
    """Steps far below the last bit of an occupancy add up over 20,000 samples."""
    model = model_named("model_a")
    protocol = Protocol("ramp", -60.0, 0.1, ((Segment(0.0, 2000.0, Ramp(-60.0, 60.0)),),))
    parameters = model.values()[:, None].copy()
    parameters[[0, 2], 0] = 2e-7, 3e-7
    problem = Problem(model, (Experiment(protocol),))
    truth = ReferenceScorer(problem).simulate(parameters)[0]
    assert largest_error(CudaScorer(problem, "float32").simulate(parameters)[0], truth, 0) < 2e-6


# --- the text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_but(
        [("na_hh", "float32"), ("herg_markov", "float64")],
        [(name, "float32") for name in SHIPPED]
        + [(name, "float64") for name in ("model_b", "herg_markov", "cycle", "leak")],
    ),
)
def test_nvrtc_accepts_the_text(name: str, dtype: str) -> None:
    source = CudaSource(model_named(name), dtype)
    options = ("-std=c++17", "-ftz=true", *source.options)
    log = compile_with_nvrtc(source.specialized(8, varying=True), options=options)
    assert "error" not in log


def test_names_of_the_users_stay_what_they_are() -> None:
    """Words of the language, and of the generated code, as names of states and parameters."""
    document = {
        "name": "ß (double), run.walk",
        "states": ["int", "real"],
        "rates": {"int -> real": "return1*q*exp(v/x)", "real -> int": "d_x"},
        "definitions": {"q": "2*p", "d_x": "0.1*p"},
        "current": {"open": ["real"], "conductance": "1 nS", "reversal": "0 mV"},
        "parameters": {name: {"range": [0, 30], "value": 1} for name in ("return1", "p", "x")},
    }
    experiment = Experiment(RAMPS, recording_of(RAMPS, 0))
    problem = Problem(build_model(document, None), (experiment,))
    agree(problem, np.array([[0.5], [0.7], [25.0]]))


# --- the scorer ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "multiprocessors"),
    slow_but([(2, 1), (5, 8)], [(2, 1), (0, 8), (1, 8), (4, 8), (5, 8)]),
)
def test_a_list_of_the_scorer(
    monkeypatch: pytest.MonkeyPatch, count: int, multiprocessors: int
) -> None:
    """A job a lane, and a job a warp where there are warps enough: 16 a multiprocessor."""
    own = dataclasses.replace(gpu.device(), n_multiprocessors=multiprocessors)
    monkeypatch.setattr(gpu, "device", lambda: own)
    problem = scored("model_b")
    parameters = candidates(problem.model, 9)
    stepping, asarray = CudaScorer(problem).stepping, gpu.cupy().asarray
    order = np.random.default_rng(1).permutation(9).astype(np.int32)
    n_listed = asarray(np.array([count], np.int32))
    truth = ReferenceScorer(problem).score(parameters).cost
    following = asarray(np.array([5], np.int32))
    given, listed = asarray(parameters), asarray(order)
    for _ in range(2):  # the counters of arrivals are zero again
        cost, status = asarray(np.full(9, -1.0)), asarray(np.full(9, 7, np.int8))
        stepping.score_listed(given, cost, status, listed, n_listed, following)
        assert following.tolist() == [0]
        assert cost[order[:count]] == pytest.approx(truth[order[:count]], rel=1e-9)
        assert (status[order[:count]] == OK).all()
        assert (cost[order[count:]] == -1).all()
        assert (status[order[count:]] == 7).all()
    assert stepping.program(32, listed=True).tables.n_jobs == 32
