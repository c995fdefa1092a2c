"""The generated CUDA, run on the host, against the reference; and the scorer around it."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_walk import SWEEP
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning
from channelfit.scoring.reference import ReferenceScorer
from support.cuda_host import DeviceArray, HostCupy, HostProgram, compile_with_nvrtc
from support.cuda_schemes import Host, random_scheme
from support.schemes import (
    N_CANDIDATES,
    PROTOCOLS,
    SHIPPED,
    candidates,
    from_yaml,
    largest_error,
    model_named,
    recording_of,
    scored,
    simulated,
    true_costs,
    true_currents,
)
from support.truths import slow_but

EVERY = [(name, dtype) for name in [*SHIPPED, "cycle", "leak"] for dtype in ("float64", "float32")]
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
#: Single precision differs from double by one word of the text.
QUICK = [(n, "float64") for n in [*SHIPPED, "cycle", "leak"] if n not in ("k_hh", "na_nav15")]
QUICK += [(n, "float32") for n in ("model_b", "na_hh", "herg_markov")]


def agree(
    problem: Problem, parameters: np.ndarray, dtype: str = "float64", tolerance: float = 0.0
) -> None:
    """Currents and costs of the kernels are those of the reference."""
    tolerance = tolerance or TOLERANCE[dtype]
    least = 1e-6 if dtype == "float64" else 1e-3
    host, reference = Host(problem, dtype), ReferenceScorer(problem)
    if problem.scored.total_weight > 0:
        test, truth = host.score(parameters), reference.score(parameters)
        assert np.array_equal(test.status, truth.status)
        assert test.cost == pytest.approx(truth.cost, rel=tolerance)
    currents, status = host.simulate(parameters)
    ok = status == OK
    for test_current, true_current in zip(currents, reference.simulate(parameters), strict=True):
        assert largest_error(test_current[..., ok], true_current[..., ok], least) < tolerance


# --- every model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in ("model_b", "na_hh", "herg_beattie", "herg_markov", "cycle", "leak")
        for dtype in ("float64", "float32")
    ],
)
def test_costs_equal_the_reference(name: str, dtype: str) -> None:
    """In one job or several."""
    problem, (cost, status, _) = scored(name), true_costs(name)
    parameters = candidates(problem.model, N_CANDIDATES, seed=1)
    host = Host(problem, dtype)
    for n_jobs in (1, 3):
        score = host.score(parameters, n_jobs)
        assert np.array_equal(score.status, status)
        assert score.cost == pytest.approx(cost, rel=TOLERANCE[dtype])


@pytest.mark.parametrize(("name", "dtype"), slow_but(QUICK, EVERY))
def test_currents_equal_the_reference(name: str, dtype: str) -> None:
    problem, truth = simulated(name, *PROTOCOLS.values()), true_currents(name)
    parameters = candidates(problem.model, N_CANDIDATES)
    currents, status = Host(problem, dtype).simulate(parameters)
    assert (status == OK).all()
    least = 1e-6 if dtype == "float64" else 1e-3
    errors = {
        key: largest_error(a, b, least)
        for key, a, b in zip(PROTOCOLS, currents, truth, strict=True)
    }
    assert max(errors.values()) < TOLERANCE[dtype], errors


def test_jobs_add_up_alike_every_time() -> None:
    problem = scored("na_hh")
    parameters = candidates(problem.model, 5, seed=3)
    host = Host(problem, "float32")
    alone = host.score(parameters, 7)
    assert np.array_equal(alone.cost, host.score(parameters, 7).cost)
    together = host.score(candidates(problem.model, 5, seed=4)[:, [0]], 7)
    again = host.score(np.repeat(candidates(problem.model, 5, seed=4)[:, [0]], 9, axis=1), 7)
    assert (again.cost == together.cost[0]).all()


# --- nasty ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "dtype"),
    slow_but(
        [(5, "float64"), (6, "float32"), (10, "float64"), (11, "float32"), (16, "float64")],
        [(n, dtype) for n in (5, 6, 9, 10, 11, 16) for dtype in ("float64", "float32")],
    ),
)
def test_many_states_with_loops(n: int, dtype: str) -> None:
    """Every way to a propagator: of few states, in registers, and of more than fit."""
    keys = ("steps", "ramp", "off the grid")
    experiments = [Experiment(PROTOCOLS[k], recording_of(PROTOCOLS[k], 3)) for k in keys]
    agree(Problem(random_scheme(n, n), tuple(experiments)), np.array([[1.0, 0.1, 10.0]]), dtype)


def test_nothing_but_one_sample() -> None:
    """Alone in its sweep, before a step, and as all that has a weight."""
    one = Protocol("one", -80.0, 1.0, ((Segment(0.0, 0.5, Constant(10.0)),),))
    last = from_yaml(segments=[{"hold": 1}, {"step": 20, "for": 2}])
    recording = recording_of(last, 1)
    weight = np.zeros_like(recording.weight)
    weight[:, -1] = 2.0
    only = Recording(recording.time_ms, recording.current_pA, weight)
    model = model_named("model_b")
    for experiment in (Experiment(one, recording_of(one, 2)), Experiment(last, only)):
        agree(Problem(model, (experiment,)), candidates(model, 3))


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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_bad_candidate_leaves_its_neighbors_alone(dtype: str) -> None:
    problem = scored("cycle")
    good = candidates(problem.model, 12, seed=2)
    bad = good.copy()
    names = problem.model.parameter_names
    for name, candidate, value in (
        ("k3", 3, -1.0),
        ("k4", 5, -1.0),
        ("k1", 8, np.nan),
        ("g", 9, np.nan),
        ("g", 10, np.inf),
    ):
        bad[names.index(name), candidate] = value
    failed = {3: NOT_FINITE, 5: NEGATIVE_RATE, 8: NOT_FINITE, 9: NOT_FINITE, 10: NOT_FINITE}
    host = Host(problem, dtype)
    for n_jobs in (1, 4):
        clean, mixed = host.score(good, n_jobs), host.score(bad, n_jobs)
        assert {k: s for k, s in enumerate(mixed.status) if s != OK} == failed
        assert np.isinf(mixed.cost[list(failed)]).all()
        others = [k for k in range(12) if k not in failed]
        assert np.array_equal(mixed.cost[others], clean.cost[others])


def ramps() -> Protocol:
    """Up and down from -40 mV, and flat at the end: nothing but ramps visits what lies between."""
    return Protocol(
        "ramps",
        -40.0,
        0.1,
        (
            (
                Segment(0.0, 4.0, Ramp(-40.0, 40.0)),
                Segment(4.0, 8.0, Ramp(40.0, -80.0)),
                Segment(8.0, 9.0, Ramp(-80.0, -40.0)),
                Segment(9.0, 10.0, Constant(-40.0)),
            ),
        ),
    )


#: A rate that is negative, and one that is not a number, at voltages that only a ramp visits.
ONLY_BETWEEN = {
    "gates": {"m": {"power": 1, "alpha": "a + b*(v + 40)", "beta": "0.1*sqrt(c - v)"}},
    "current": {"conductance": "1 nS", "reversal": "-90 mV"},
    "parameters": {name: {"range": [-1e3, 1e3], "value": 1} for name in "abc"},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scheme", [False, True])
def test_a_rate_that_fails_where_the_voltage_moves_only(dtype: str, scheme: bool) -> None:
    model = build_model(ONLY_BETWEEN, None)
    if scheme:  # three states: the other integrator
        model = build_model(
            {
                **{k: v for k, v in ONLY_BETWEEN.items() if k != "gates"},
                "states": ["A", "B", "C"],
                "rates": {
                    "A -> B": "a + b*(v + 40)",
                    "B -> A": "0.1*sqrt(c - v)",
                    "B -> C": "0.1",
                    "C -> B": "0.2",
                },
                "current": {"open": ["C"], "conductance": "1 nS", "reversal": "-90 mV"},
            },
            None,
        )
    problem = Problem(model, (Experiment(ramps(), recording_of(ramps(), 0)),))
    parameters = np.array([[1.0, 0.1, 1.0], [0.01, 0.01, 0.01], [100.0, 100.0, 20.0]])
    score = Host(problem, dtype).score(parameters)
    assert score.status.tolist() == [OK, NEGATIVE_RATE, NOT_FINITE]
    assert np.isfinite(score.cost).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("states", [["A", "B"], ["A", "B", "C"]])
def test_a_rate_that_is_no_number_whatever_its_sign(dtype: str, states: list[str]) -> None:
    """NaN without a sign, as a GPU makes it, passes for a rate where only signs are looked at."""
    back = {"C -> B": "0.2", "B -> C": "0.1"} if len(states) == 3 else {}
    model = build_model(
        {
            "states": states,
            "rates": {"A -> B": "0.1*abs(log(c - v))", "B -> A": "0.3", **back},
            "current": {"open": ["B"], "conductance": "1 nS", "reversal": "-90 mV"},
            "parameters": {"c": {"range": [-1e3, 1e3], "value": 1}},
        },
        None,
    )
    problem = Problem(model, (Experiment(ramps(), recording_of(ramps(), 0)),))
    score = Host(problem, dtype).score(np.array([[100.0, 20.0]]))
    assert score.status.tolist() == [OK, NOT_FINITE]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_absurd_rates_are_bounded_alike(dtype: str) -> None:
    problem = scored("cycle")
    names = problem.model.parameter_names
    parameters = np.repeat(problem.model.values()[:, None], 5, axis=1)
    parameters[names.index("z")] = [5.0, -5.0, 0.0, 0.0, 3.0]  # exp(+-400) at -80 mV
    parameters[:6, 2], parameters[:6, 3] = 1e120, 0.0  # all at the ceiling, all at the floor
    parameters[names.index("k1"), 4] = 0.0  # nothing, times what float32 cannot hold
    truth = ReferenceScorer(problem).score(parameters)
    test = Host(problem, dtype).score(parameters)
    assert (test.status == OK).all()
    assert test.cost == pytest.approx(truth.cost, rel=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_absurd_gates_follow_or_stand_still(dtype: str) -> None:
    problem = scored("herg_beattie")
    parameters = np.repeat(problem.model.values()[:, None], 4, axis=1)
    parameters[[0, 2, 4, 6], :2] = [1e30, 1e-40]
    parameters[[1, 3, 5, 7], 2] = 4.0
    parameters[[1, 3, 5, 7], 3] = -4.0
    truth = ReferenceScorer(problem).score(parameters)
    test = Host(problem, dtype).score(parameters)
    assert (test.status == OK).all()
    # Rates that change fifty-fold in a step leave the quadrature nothing to agree on but its sense.
    assert test.cost == pytest.approx(truth.cost, rel=max(1e-4, TOLERANCE[dtype]))


def test_single_precision_does_not_lose_a_slow_gate() -> None:
    """Steps far below the last bit of an occupancy add up over 20,000 samples."""
    model = model_named("model_a")
    protocol = Protocol("ramp", -60.0, 0.1, ((Segment(0.0, 2000.0, Ramp(-60.0, 60.0)),),))
    parameters = model.values()[:, None].copy()
    parameters[[0, 2], 0] = 2e-7, 3e-7
    problem = Problem(model, (Experiment(protocol),))
    currents, _ = Host(problem, "float32").simulate(parameters)
    assert largest_error(currents[0], ReferenceScorer(problem).simulate(parameters)[0], 0) < 2e-6


# --- the text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_but(
        [
            ("model_b", "float32"),
            ("na_hh", "float32"),
            ("herg_markov", "float64"),
            ("cycle", "float64"),
            ("leak", "float64"),
        ],
        [(name, "float32") for name in SHIPPED]
        + [(name, "float64") for name in ("model_b", "na_hh", "herg_markov", "cycle", "leak")],
    ),
)
def test_nvrtc_accepts_the_text(name: str, dtype: str) -> None:
    source = CudaSource(model_named(name), dtype)
    options = ("-std=c++17", "-ftz=true", *source.options)
    log = compile_with_nvrtc(source.specialized(8, varying=True), options=options)
    assert "error" not in log


def test_the_text_as_it_is_shown_compiles_too() -> None:
    text = CudaSource(model_named("model_b"), "float32").text
    assert "error" not in compile_with_nvrtc(text)


def test_the_text_can_be_read_and_says_whose_it_is() -> None:
    text = CudaSource(model_named("model_b"), "float32").text
    for word in ("model_b", "createQmat", "initStateProbs", "runSweep", "C1 -> C2"):
        assert word in text
    assert text == CudaSource(model_named("model_b"), "float32").text
    hashes = {CudaSource(model_named("model_b"), dtype).hash for dtype in ("float32", "float64")}
    assert len(hashes) == 2


def test_names_of_the_users_stay_what_they_are() -> None:
    """Words of the language, and of the generated code, as names of states and parameters."""
    model = build_model(
        {
            "name": "ß (double), run.walk",
            "states": ["int", "real"],
            "rates": {"int -> real": "return1*q*exp(v/x)", "real -> int": "d_x"},
            "definitions": {"q": "2*p", "d_x": "0.1*p"},
            "current": {"open": ["real"], "conductance": "1 nS", "reversal": "0 mV"},
            "parameters": {name: {"range": [0, 30], "value": 1} for name in ("return1", "p", "x")},
        },
        None,
    )
    protocol = PROTOCOLS["ramp"]
    agree(
        Problem(model, (Experiment(protocol, recording_of(protocol, 0)),)),
        np.array([[0.5], [0.7], [25.0]]),
    )


# --- the scorer, its arrays on a device that is the host -----------------------------------------


def few(name: str) -> Problem:
    """Steps and a ramp, with recordings."""
    pairs = [(PROTOCOLS[key], recording_of(PROTOCOLS[key], 0)) for key in ("steps", "off the grid")]
    return Problem(model_named(name), tuple(Experiment(*pair) for pair in pairs))


class Device:
    """A CuPy played by the host, and what it was asked to run: (kernel, grid, block)."""

    def __init__(self) -> None:
        self.cupy = HostCupy()
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def asarray(self, array: np.ndarray) -> DeviceArray:
        return self.cupy.array(array)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    """Small: two blocks on one multiprocessor."""
    device, launch = Device(), HostProgram.launch

    def recorded(program: HostProgram, name: str, grid: Any, block: Any, *more: Any) -> None:
        device.launches.append((name, grid, block))
        launch(program, name, grid, block, *more)

    monkeypatch.setitem(sys.modules, "cupy", device.cupy)
    monkeypatch.setattr(HostProgram, "launch", recorded)
    for name in ("keep", "kept"):
        own = functools.partial(getattr(tuning, name), root=tmp_path)
        monkeypatch.setattr(tuning, name, own)
    monkeypatch.setattr(gpu, "occupancy", lambda kernel, threads: gpu.Occupancy(2, threads / 512))
    one = dataclasses.replace(gpu.device(), n_multiprocessors=1)
    monkeypatch.setattr(gpu, "device", lambda: one)
    return device


def test_arrays_come_back_as_they_were_given(device: Device) -> None:
    problem = few("model_b")
    parameters = candidates(problem.model, N_CANDIDATES)
    truth = ReferenceScorer(problem).score(parameters)
    scorer = CudaScorer(problem)
    assert (scorer.backend, scorer.dtype, scorer.source_hash) == (
        "cuda",
        "float64",
        scorer.source.hash,
    )
    host = scorer.score(parameters)
    assert type(host.cost) is type(host.status) is np.ndarray
    there = scorer.score(device.asarray(parameters))
    assert type(there.cost) is type(there.status) is DeviceArray
    for score in (host, there):
        assert np.asarray(score.cost) == pytest.approx(truth.cost, rel=1e-9)
        assert np.array_equal(score.status, truth.status)
        assert score.status.dtype == np.int8


def test_chunks_do_not_show(device: Device) -> None:
    problem = few("na_hh")
    parameters = candidates(problem.model, N_CANDIDATES)
    scorer, whole = CudaScorer(problem, "float32"), CudaScorer(problem, "float32")
    scorer.chunk = 16
    scorer.stepping.n_jobs = whole.stepping.n_jobs = 2
    costs = whole.score(parameters).cost
    device.launches.clear()
    assert np.array_equal(scorer.score(parameters).cost, costs)
    assert np.array_equal(scorer.score(device.asarray(parameters)).cost, costs)
    assert [name for name, _, _ in device.launches].count(SWEEP) == 6
    for a, b in zip(scorer.simulate(parameters), whole.simulate(parameters), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def test_currents_of_the_scorer(device: Device) -> None:
    problem = few("cycle")
    parameters = candidates(problem.model, 5)
    parameters[problem.model.parameter_names.index("k4"), 3] = -1.0
    truth = ReferenceScorer(problem).simulate(parameters)
    for a, b in zip(CudaScorer(problem).simulate(parameters), truth, strict=True):
        assert a.dtype == np.float64
        assert np.isnan(a[..., 3]).all()
        good = [0, 1, 2, 4]
        assert largest_error(a[..., good], b[..., good]) < 1e-9


def test_small_populations_become_many_jobs_and_large_ones_one(device: Device) -> None:
    problem = few("model_a")
    scorer = CudaScorer(problem, threads=32)
    jobs = {}
    for n in (1, 300, 1200):
        device.launches.clear()
        scorer.score(np.repeat(problem.model.values()[:, None], n, axis=1))
        jobs[n] = device.launches[0][1][1]
    assert jobs[1] > jobs[300] > jobs[1200] == 1
    assert device.launches[0][2] == (32,)


def test_rescoring_steps_in_float64(device: Device) -> None:
    problem = few("na_hh")
    parameters = candidates(problem.model, 4)
    truth = ReferenceScorer(problem).score(parameters).cost
    assert CudaScorer(problem, "float32").rescore(parameters).cost == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize(("count", "multiprocessors"), [(2, 1), (0, 8), (1, 8), (4, 8), (5, 8)])
def test_a_list_of_the_scorer(
    device: Device, monkeypatch: pytest.MonkeyPatch, count: int, multiprocessors: int
) -> None:
    """A job a lane, and a job a warp where there are warps enough: 16 a multiprocessor."""
    own = dataclasses.replace(gpu.device(), n_multiprocessors=multiprocessors)
    monkeypatch.setattr(gpu, "device", lambda: own)
    problem = scored("model_b")
    parameters = candidates(problem.model, 9)
    stepping = CudaScorer(problem).stepping
    order = np.random.default_rng(1).permutation(9).astype(np.int32)
    n_listed = device.asarray(np.array([count], np.int32))
    truth = ReferenceScorer(problem).score(parameters).cost
    cost, status = device.asarray(np.full(9, -1.0)), device.asarray(np.full(9, 7, np.int8))
    following = device.asarray(np.array([5], np.int32))
    for _ in range(2):  # the counters of arrivals are zero again
        stepping.score_listed(
            device.asarray(parameters), cost, status, device.asarray(order), n_listed, following
        )
        assert following.tolist() == [0]
        assert cost[order[:count]] == pytest.approx(truth[order[:count]], rel=1e-9)
        assert (status[order[:count]] == OK).all()
        assert (cost[order[count:]] == -1).all()
        assert (status[order[count:]] == 7).all()
        cost[:], status[:] = -1.0, 7
    assert stepping.program(32, listed=True).walk.n_jobs == 32


def test_what_can_be_tuned(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = CudaScorer(few("model_a"))
    [(kernel, threads)] = scorer.launch_choices()
    assert kernel == SWEEP
    assert max(threads) == 1024
    assert all(t % 32 == 0 for t in threads)
    monkeypatch.setattr(gpu, "timed", lambda call: (call(), 0.25)[1])
    device.launches.clear()
    parameters = candidates(scorer.problem.model, 3)
    assert scorer.timed_score(parameters, {SWEEP: 96}, {SWEEP: 2}) == 0.25
    assert device.launches[0] == (SWEEP, (1, 2), (96,))
    assert scorer.launch_occupancy(SWEEP, 256).fraction == 0.5
    tuning.remember(scorer.source_hash, gpu.device().name, SWEEP, tuning.Launch(64))
    again = CudaScorer(few("model_a"))
    device.launches.clear()
    again.score(parameters)
    assert device.launches[0][2] == (64,)


@pytest.mark.parametrize("n", [0, 1])
def test_few_or_no_candidates(device: Device, n: int) -> None:
    problem = few("leak")
    scorer = CudaScorer(problem)
    parameters = np.ones((2, n))
    for given in (parameters, device.asarray(parameters)):
        assert scorer.score(given).cost.shape == (n,)
    assert scorer.simulate(parameters)[0].shape[-1] == n


def test_what_the_scorer_refuses(device: Device) -> None:
    with pytest.raises(InputError, match="nothing to score"):
        CudaScorer(simulated("leak", PROTOCOLS["steps"])).score(np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"parameters must be \(2, n_candidates\)"):
        CudaScorer(few("leak")).score(np.ones((3, 1)))
