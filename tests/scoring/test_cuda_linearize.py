"""Derivatives from the GPU's text, on a CuPy played by the host and on a real GPU, against those of
the cpu backend, which come from other text by another method, and against differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import OK
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.cuda_tangents import Tangents
from channelfit.scoring.cuda_variants import Variant
from channelfit.scoring.kernels.cuda_pieces import UNRESOLVED
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import Linearization
from support.cuda_host import compile_with_nvrtc
from support.differences import by_differences, errors, on_the_grid, stairs
from support.schemes import (
    PROTOCOLS,
    SHIPPED,
    candidates,
    chain_of,
    from_yaml,
    held_and_moving,
    model_named,
    recording_of,
    scored,
)
from support.term_models import DOCUMENTS, model_of
from support.truths import slow_but

EVERY = [*SHIPPED, "cycle", "leak"]
#: Of them a scheme and gates; loops have a test of their own.
KINDS = ["model_b", "na_hh"]


@cache
def truth_of(name: str) -> tuple[Problem, np.ndarray, Linearization]:
    """All protocols at once, several weights, masks: by the cpu backend."""
    problem = scored(name)
    parameters = candidates(problem.model, 5, seed=1)
    return problem, parameters, on_the_grid(problem).linearize(parameters)


def problem_of(model: ChannelModel, *protocols: Protocol) -> Problem:
    return Problem(
        model, tuple(Experiment(p, recording_of(p, k), 1.0 + k) for k, p in enumerate(protocols))
    )


# --- every model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_but(KINDS, EVERY))
def test_derivatives_equal_those_of_the_cpu_backend(name: str, device: str) -> None:
    """However many derivatives a thread carries, into however many jobs a candidate is cut."""
    problem, parameters, truth = truth_of(name)
    test = CudaScorer(problem, "float32", path="stepping").linearize(parameters)
    assert max(errors(test, truth)) < 1e-8
    assert test.cost == pytest.approx(ReferenceScorer(problem).score(parameters).cost, rel=1e-9)
    fixed = [p.fixed for p in problem.model.parameters]
    assert (test.gradient[fixed] == 0).all()
    assert (test.hessian[fixed] == 0).all()
    assert (test.hessian[:, fixed] == 0).all()
    if name != "na_hh":
        return
    stepped = Variant(problem, {})
    for n_tangents, n_jobs in ((2, 3), (None, 64)):
        some = Tangents(problem, stepped.rows, lambda: stepped.targets, n_tangents, n_jobs)
        arrays = some.linearize(gpu.cupy().asarray(parameters))
        assert max(errors(Linearization(*(a.get() for a in arrays)), truth)) < 1e-8


@pytest.mark.parametrize("name", slow_but(["na_hh"], EVERY))
def test_a_preview_is_the_cost_of_the_linearization(name: str, device: str) -> None:
    """Without derivatives, whole or in jobs; and what fails fails alike."""
    problem, parameters, truth = truth_of(name)
    parameters = parameters.copy()
    parameters[0, 2] = np.nan
    ok = np.arange(parameters.shape[1]) != 2
    found = CudaScorer(problem, "float32", path="stepping").preview(parameters)
    previews = [(found.cost, found.status)]
    for n_jobs in (1, 7):
        way = Variant(problem, {}, n_jobs=n_jobs).values
        cost, status = way.score(gpu.cupy().asarray(parameters))
        previews.append((cost.get(), status.get()))
    for cost, status in previews:
        assert np.array_equal(status == OK, ok)
        assert np.isinf(cost[2])
        assert cost[ok] == pytest.approx(truth.cost[ok], rel=1e-9)


# --- runs of every length ------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_but(["model_b"], ["model_b", "na_hh", "cycle"]))
def test_every_length_of_a_run(name: str, device: str) -> None:
    """Points of a long run, what leads from one to the other, and from where the next begins."""
    lengths = [*range(1, 5), 60, 61, 62, 63, 64, 65, 127, 129, 500]
    problem = problem_of(model_named(name), stairs(lengths))
    parameters = candidates(problem.model, 2, seed=3)
    truth = on_the_grid(problem).linearize(parameters)
    test = CudaScorer(problem).linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-8
    assert test.cost == pytest.approx(ReferenceScorer(problem).score(parameters).cost, rel=1e-9)


def test_only_ends_of_runs_count(device: str) -> None:
    """Runs of no weight are walked through by powers of two, and a few samples behind looked at."""
    protocol = stairs([1, 2, 77, 300])
    recording = recording_of(protocol, 0)
    weight = np.zeros_like(recording.weight)
    for k in range(protocol.n_sweeps):
        weight[k, protocol.n_times(k) - 3 :] = recording.weight[k, protocol.n_times(k) - 3 :]
    masked = Recording(recording.time_ms, recording.current_pA, weight)
    problem = Problem(model_named("model_b"), (Experiment(protocol, masked),))
    parameters = candidates(problem.model, 3)
    test = CudaScorer(problem).linearize(parameters)
    # some parameters are nearly forgotten by then: what is left of their derivatives has few digits
    assert max(errors(test, on_the_grid(problem).linearize(parameters))) < 1e-6


# --- ramps in pieces -----------------------------------------------------------------------------

#: Held before, between and behind ramps; both sweeps have the first ramp in common, and jump.
RAMPS = from_yaml(
    segments=[
        {"hold": 1},
        {"ramp": [-60, -64], "for": 11},
        {"step": {"values": [20, -20]}, "for": 2},
        {"ramp": [0, -4], "for": 12},
        {"hold": 1},
    ]
)
ELEVEN = "eleven states"


def stiffening(name: str) -> tuple[Problem, np.ndarray]:
    """A problem with ramps, and candidates that ask for finer and finer pieces, some for steps."""
    if name in DOCUMENTS:
        model = model_of(name)
    else:
        model = chain_of(11) if name == ELEVEN else model_named(name)
    problem = problem_of(model, RAMPS, stairs([65]))
    return problem, np.ascontiguousarray(candidates(model, 200, seed=4)[:, [1, 6, 22]])


def with_finer_steps(problem: Problem, times: int = 4) -> Problem:
    """The same samples among others, which have no weight."""
    experiments = []
    for e in problem.experiments:
        protocol = replace(e.protocol, sampling_ms=e.protocol.sampling_ms / times)
        assert e.recording is not None
        old = e.recording.current_pA, e.recording.weight
        new = [np.zeros((protocol.n_sweeps, protocol.n_times_max)) for _ in old]
        for array, own in zip(new, old, strict=True):
            array[:, ::times] = own
        recording = Recording(protocol.times_ms, *new)
        experiments.append(replace(e, protocol=protocol, recording=recording))
    return Problem(problem.model, tuple(experiments))


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["scheme and leak"],
        [
            "model_b",
            "cycle",
            "herg_markov",
            ELEVEN,
            "scheme and leak",
            "scheme times gate",
            "calcium scheme",
        ],
    ),
)
def test_ramps_in_pieces(name: str, device: str) -> None:
    """As the cpu backend has them; coarse pieces, fine ones, and steps for what none follows."""
    problem, parameters = stiffening(name)
    scorer = CudaScorer(problem)
    test, preview = scorer.linearize(parameters), scorer.preview(parameters)
    truth = CpuScorer(problem).linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-8
    assert preview.cost == pytest.approx(test.cost, rel=1e-12)
    # which steps, of order four; its own steps leave the stiffest of these an error of 1e-6
    reference = ReferenceScorer(with_finer_steps(problem)).score(parameters).cost
    assert test.cost == pytest.approx(reference, rel=2e-7)
    assert max(errors(test, by_differences(problem, parameters), parameters)) < 1e-3
    assert scorer._variants.first.ramps
    if name != "model_b":
        return
    ways, there = [*scorer._variants], gpu.cupy().asarray(parameters)
    statuses = [[*way.linearize()[0](there)][1].get() == OK for way in ways]
    assert [ok.tolist() for ok in statuses] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    for n_jobs in (1, 2, 4):  # at last held runs side by side
        cost, status = Variant(problem, ways[0].ramps, n_jobs=n_jobs).values.score(there)
        assert status.get().tolist() == [OK, UNRESOLVED, UNRESOLVED]
        assert cost.get()[0] == pytest.approx(test.cost[0], rel=1e-12)


def test_recorded_commands_are_stepped(device: str) -> None:
    """As before: a wave that no polynomial follows leaves no ramp beside it in pieces."""
    problem = problem_of(model_named("model_b"), held_and_moving(), PROTOCOLS["ramp"])
    parameters = candidates(problem.model, 2, seed=4)
    scorer = CudaScorer(problem)
    test = scorer.linearize(parameters)
    assert max(errors(test, on_the_grid(problem).linearize(parameters))) < 1e-7
    assert scorer.preview(parameters).cost == pytest.approx(test.cost, rel=1e-12)
    assert not scorer._variants.first.ramps


# --- every function of the expressions -----------------------------------------------------------

#: In numbers of any number of digits, by which mpmath takes differences.
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "exp(a*b)": lambda a, b: mpmath.exp(a * b),
    "log(a*a + b*b + 1)": lambda a, b: mpmath.log(a * a + b * b + 1),
    "sqrt(a*a + 1)/(2 + b*b)": lambda a, b: mpmath.sqrt(a * a + 1) / (2 + b * b),
    "tanh(a - 3*b)": lambda a, b: mpmath.tanh(a - 3 * b),
    "(a*a + 1)**(b/2)": lambda a, b: (a * a + 1) ** (b / 2),
    "(a*a + 1)**2.5 - 2**b + b**3": lambda a, b: (a * a + 1) ** 2.5 - mpmath.mpf(2) ** b + b**3,
    "abs(a)*b": lambda a, b: abs(a) * b,
    "min(a, b, 2) + 3*max(a, b)": lambda a, b: min(a, b, 2) + 3 * max(a, b),
    "exprel(a - b)": lambda a, b: mpmath.expm1(a - b) / (a - b),
    "(a - b)/(exp(a - b) - 1)": lambda a, b: (a - b) / mpmath.expm1(a - b),
    "b + 1/(1 + exp(400*a))": lambda a, b: b + 1 / (1 + mpmath.exp(400 * a)),
}


def test_derivatives_of_every_function(device: str) -> None:
    """Also where a formula would be nothing over nothing, and near there.

    Of one open state the derivative of a current of 1 mV is that of the conductance, which is one
    function after the other: the sum of all, each with a weight that is 1 or 0.
    """
    weights = [f"w{k}" for k in range(len(FUNCTIONS))]
    total = " + ".join(f"{w}*({text})" for w, text in zip(weights, FUNCTIONS, strict=True))
    rows: dict[str, dict[str, Any]] = {name: {"range": [-9, 9], "value": 1} for name in "ab"}
    rows |= {w: {"range": [0, 1], "value": 0, "fixed": True} for w in weights}
    current = {"open": ["O"], "conductance": total, "reversal": "-1 mV"}
    model = build_model({"states": ["O"], "current": current, "parameters": rows}, None)
    protocol = from_yaml(holding="0 mV", segments=[{"hold": 0.1}])
    recording = Recording(protocol.times_ms, np.zeros((1, 1)), np.ones((1, 1)))
    tangents = Variant(Problem(model, (Experiment(protocol, recording),)), {}).tangents
    near = [[0.5 + s * 10.0**-k, 0.5] for k in range(1, 12) for s in (1, -1)]
    pairs = np.random.default_rng(0).uniform(-3, 3, (40, 2))
    pairs = np.concatenate([pairs, [[0.7, 0.7], [0.0, 0.3], [1.0, 0.0]], near])
    parameters = np.zeros((2 + len(weights), len(pairs)))
    parameters[:2] = pairs.T
    for k, (text, exact) in enumerate(FUNCTIONS.items()):
        parameters[2:] = np.arange(len(weights))[:, None] == k
        found, status = tangents.trace(gpu.cupy().asarray(parameters))
        assert (status.get() == OK).all()
        slopes = found.get().reshape(len(pairs), 3)[:, 1:]
        for (a, b), slope in zip(pairs, slopes, strict=True):
            if a != b or "min" not in text:  # where there is a derivative
                with mpmath.workdps(60):
                    ways = [mpmath.diff(exact, (a, b), n) for n in ((1, 0), (0, 1))]
                assert slope == pytest.approx([*map(float, ways)], rel=3e-13, abs=1e-13), (text, a)


def test_arrays_come_back_as_they_were_given_and_chunks_do_not_show(device: str) -> None:
    problem = scored("leak")
    parameters = candidates(problem.model, 11)
    there = CudaScorer(problem).linearize(gpu.cupy().asarray(parameters))
    assert all(isinstance(a, gpu.cupy().ndarray) for a in vars(there).values())
    for chunk in (None, 4):
        here = CudaScorer(problem, chunk=chunk).linearize(parameters)
        for a, b in zip(vars(here).values(), vars(there).values(), strict=True):
            assert type(a) is np.ndarray
            assert a == pytest.approx(b.get(), rel=1e-11)
    assert here.status.dtype == np.int8
    full = CudaScorer(problem)
    full._variants.first.tangents._resident = 1  # as if these candidates filled the GPU
    for a, b in zip(vars(full.linearize(parameters)).values(), vars(here).values(), strict=True):
        assert a == pytest.approx(b, rel=1e-11)
    in_chunks = CudaScorer(problem, chunk=4).linearize(gpu.cupy().asarray(parameters))
    assert in_chunks.hessian.get() == pytest.approx(here.hessian, rel=1e-12)
    scorer = CudaScorer(problem)
    for n in (0, 1):
        shapes = [a.shape for a in vars(scorer.linearize(parameters[:, :n])).values()]
        assert shapes == [(n,), (n,), (2, n), (2, 2, n)]
        assert scorer.preview(parameters[:, :n]).cost.shape == (n,)


@pytest.mark.parametrize("name", slow_but(["herg_markov"], EVERY))
def test_nvrtc_accepts_the_text(name: str) -> None:
    source = CudaTangentSource(model_named(name))
    log = compile_with_nvrtc(source.specialized(8, True), options=("-std=c++17", "-ftz=true"))
    assert "error" not in log


# --- the scorer ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", EVERY)
def test_thousands_at_once_on_a_gpu(name: str) -> None:
    """More threads than run at once; the first and the last as if they were alone."""
    if not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    problem = scored(name)
    parameters = candidates(problem.model, 4096, seed=5)
    test = CudaScorer(problem).linearize(parameters)
    some = [*range(20), *range(4076, 4096)]
    truth = on_the_grid(problem).linearize(np.ascontiguousarray(parameters[:, some]))
    few = Linearization(*(a[..., some] for a in vars(test).values()))
    # through a ramp, gates of 1e9 /ms leave both of them seven or eight digits
    assert max(errors(few, truth, parameters[:, some])) < 1e-7
