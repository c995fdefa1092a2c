"""Wells compared on a GPU, all in the same launches, on a CuPy played by the host and on a real
one, against scorers that have one well each."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.batch.families import families
from channelfit.batch.fits import fit_wells
from channelfit.batch.masks_cuda import CudaOwnMasks
from channelfit.batch.search import SearchSettings
from channelfit.batch.well_scorer_cpu import CpuWellScorer
from channelfit.batch.well_scorer_cuda import CudaWellScorer
from channelfit.model.model_file import build_model
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Experiment, Problem, square_sum, total_weight
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.cuda_variants import ramps_of
from channelfit.scoring.kernels.cuda_pieces import MOST_STATES
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import Linearization
from channelfit.search.plan import FitPlan
from support.cuda_host import HostCupy, compile_with_nvrtc
from support.differences import errors, on_the_grid, stairs
from support.little import LITTLE
from support.schemes import (
    PROTOCOLS,
    candidates,
    chain_of,
    from_yaml,
    model_named,
    recording_of,
    scored,
)
from support.truths import slow_but

N_WELLS = 5
OPTIONS = ("-std=c++17", "-ftz=true")  # of NVRTC


def with_data(problem: Problem, seed: int) -> Problem:
    """The same protocols, masks and weights with other currents."""
    rng = np.random.default_rng(seed)
    experiments = []
    for experiment in problem.experiments:
        recording = experiment.recording
        if recording is not None:
            other = recording.current_pA + rng.normal(0, 100, recording.current_pA.shape)
            recording = dataclasses.replace(recording, current_pA=other)
        experiments.append(dataclasses.replace(experiment, recording=recording))
    return Problem(problem.model, tuple(experiments))


def together_of(problems: list[Problem], chunk: int | None = None) -> CudaWellScorer:
    """Problems that are one family."""
    (family,) = families(problems)
    return CudaWellScorer(family, chunk)


def wells_of(problem: Problem, n: int = N_WELLS) -> list[Problem]:
    return [problem, *(with_data(problem, seed) for seed in range(1, n))]


def of(name: str, *protocols: Protocol, weights: str = "plain") -> Problem:
    recordings = (recording_of(p, k, weights) for k, p in enumerate(protocols))
    pairs = zip(protocols, recordings, strict=True)
    return Problem(model_named(name), tuple(Experiment(p, r) for p, r in pairs))


#: Held voltages long enough to be compressed, with a ramp; a family with masks of its own; all
#: protocols and weights at once.
FAMILIES: dict[str, Callable[[], Problem]] = {
    "model_b, stairs and a ramp": lambda: of("model_b", stairs([77]), PROTOCOLS["ramp"]),
    "na_hh, masked": lambda: of("na_hh", PROTOCOLS["steps"], stairs([130]), weights="masked"),
    "cycle, everything": lambda: scored("cycle"),
    "leak, everything": lambda: scored("leak"),
    "herg_markov, everything": lambda: scored("herg_markov"),
    "na_hh, everything": lambda: scored("na_hh"),
}
QUICK = list(FAMILIES)[:2]
#: All are compared on a real GPU; a played one takes minutes for those of everything.
EVERYWHERE = [
    (QUICK[1], "played"),
    *(
        pytest.param(name, "played", marks=pytest.mark.slow)
        for name in (QUICK[0], "leak, everything")
    ),
    *(pytest.param(name, "real", marks=pytest.mark.gpu) for name in FAMILIES),
]


@cache
def plate(name: str) -> tuple[list[Problem], np.ndarray, np.ndarray]:
    """Problems of wells, candidates (n_parameters, n), and the well of each."""
    problems = wells_of(FAMILIES[name]())
    parameters = candidates(problems[0].model, 11, seed=1)
    return problems, parameters, np.random.default_rng(0).integers(0, N_WELLS, 11)


@cache
def alone(name: str) -> Linearization:
    """Each candidate by a scorer of its own well on the CPU."""
    problems, parameters, well = plate(name)
    parts = [on_the_grid(problems[w]).linearize(parameters[:, [k]]) for k, w in enumerate(well)]
    return Linearization(
        *(np.concatenate(arrays, axis=-1) for arrays in zip(*map(_arrays, parts), strict=True))
    )


def _arrays(found: Any) -> list[np.ndarray]:
    return [getattr(found, field.name) for field in dataclasses.fields(found)]


@pytest.mark.parametrize(("name", "device"), EVERYWHERE, indirect=["device"])
def test_candidates_are_compared_with_their_own_wells(name: str, device: str) -> None:
    problems, parameters, well = plate(name)
    plated = together_of(problems)
    test, truth = plated.linearize(parameters, well), alone(name)
    assert max(errors(test, truth)) < 1e-8
    for w, problem in enumerate(problems):
        some = parameters[:, well == w]
        reference = ReferenceScorer(problem).score(some)
        assert test.cost[well == w] == pytest.approx(reference.cost, rel=1e-9)
        if w < 2:
            own = CudaScorer(problem, path="stepping").linearize(some)
            mine = Linearization(*(a[..., well == w] for a in _arrays(test)))
            assert max(errors(own, mine)) < 1e-9
    assert np.array_equal(test.status, truth.status)


@pytest.mark.parametrize(("name", "device"), EVERYWHERE, indirect=["device"])
def test_every_candidate_against_every_well(name: str, device: str) -> None:
    """Products with data give the costs of all pairs, and the same as on the CPU."""
    problems, parameters, _ = plate(name)
    (family,) = families(problems)
    parameters = parameters.copy()
    parameters[0, 4] = np.nan
    linear = [problems[0].model.parameter_names.index(p) for p in problems[0].linear_parameters()]
    for rows in ((), tuple(linear)):
        test = CudaWellScorer(family).cross_products(parameters, rows)
        truth = CpuWellScorer(family).cross_products(parameters, rows)
        assert np.array_equal(test.status, truth.status)
        ok = test.status == OK
        assert not ok[4]
        assert np.isnan(test.products[4]).all()
        length = np.sqrt(np.einsum("nii->ni", truth.products[ok]))
        error = np.abs(test.products - truth.products)[ok] / (length[:, :, None] * length[:, None])
        assert error.max() < 1e-6
        of_data = np.sqrt(CpuWellScorer(family).squares)
        error = np.abs(test.with_data - truth.with_data)[ok] / (length[:, :, None] * of_data)
        assert error.max() < 1e-6
    plated, across = CudaWellScorer(family), CudaWellScorer(family).cross_products(parameters)
    assert plated.squares == pytest.approx(CpuWellScorer(family).squares, rel=1e-12)
    assert np.array_equal(plated.total_weight, CpuWellScorer(family).total_weight)
    for w in range(N_WELLS):
        shown, data = across.products[:, 0, 0], across.with_data[:, 0, w]
        cost = (shown - 2 * data + plated.squares[w]) / plated.total_weight[w]
        truth = plated.linearize(parameters, np.full(11, w))
        assert cost[ok] == pytest.approx(truth.cost[ok], rel=1e-9)


RAMPS = from_yaml(
    segments=[
        {"hold": 1},
        {"ramp": [-120, -85], "for": 40},
        {"step": 20, "for": 5},
        {"ramp": [-60, -100], "for": 60},
        {"hold": 2},
    ]
)


@pytest.mark.slow
def test_ramps_in_pieces(device: str) -> None:
    """The costs of the reference, which steps, and the derivatives of threads that step."""
    problems = wells_of(of("model_b", RAMPS), 2)
    plated, well = together_of(problems), np.arange(6) % 2
    parameters = candidates(problems[0].model, 6, seed=4)
    test = plated.linearize(parameters, well)
    assert plated.variants.first.ramps
    for w, problem in enumerate(problems):
        mine = well == w
        reference = ReferenceScorer(problem).score(parameters[:, mine])
        assert test.cost[mine] == pytest.approx(reference.cost, rel=1e-8)
        stepped = CudaScorer(problem, path="stepping").linearize(parameters[:, mine])
        own = Linearization(*(a[..., mine] for a in _arrays(test)))
        assert max(errors(own, stepped, parameters[:, mine])) < 1e-4  # steps are of order four
    same_bits(test, together_of(problems, 2).linearize(parameters, well))
    same_bits(test, plated.linearize(parameters[:, [4]], well[[4]]), [4])


@pytest.mark.slow
@pytest.mark.parametrize("states", [3, MOST_STATES])
def test_nvrtc_accepts_the_text(states: int) -> None:
    """Also the pieces of the largest scheme that a block has room for."""
    source = CudaTangentSource(chain_of(states))
    assert source.takes_pieces
    for architecture, more in (("sm_70", ()), ("sm_90", (True, True))):
        log = compile_with_nvrtc(source.specialized(8, True, *more), architecture, OPTIONS)
        assert "error" not in log
    assert not CudaTangentSource(chain_of(MOST_STATES + 1)).takes_pieces


def test_pieces_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose blocks have too little memory for a piece steps through ramps."""
    cupy = HostCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    problem = of("herg_markov", RAMPS)
    assert ramps_of(problem, 0)
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    own = properties | {"sharedMemPerBlockOptin": 40 << 10}
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda _: own)
    assert not ramps_of(problem, 0)
    assert ramps_of(of("model_b", RAMPS), 0)


def same_bits(one: Any, other: Any, which: Any = slice(None)) -> None:
    for a, b in zip(_arrays(one), _arrays(other), strict=True):
        assert np.array_equal(a[..., which], b, equal_nan=True)


def test_not_a_bit_depends_on_company(device: str) -> None:
    """Chunks, other candidates, other wells: a candidate's numbers stay what they are."""
    problems, parameters, well = plate(QUICK[1])
    whole = together_of(problems)
    truth = whole.linearize(parameters, well)
    across = whole.cross_products(parameters, (0,))
    for chunk in (1, 4):
        cut = together_of(problems, chunk)
        same_bits(truth, cut.linearize(parameters, well))
        for a, b in zip(
            _arrays(across), _arrays(cut.cross_products(parameters, (0,))), strict=True
        ):
            assert np.array_equal(a, b)
    backward = np.arange(11)[::-1]
    same_bits(truth, whole.linearize(parameters[:, backward], well[backward]), backward)
    same_bits(truth, whole.linearize(parameters[:, [7]], well[[7]]), [7])
    for w in (0, N_WELLS - 1):  # a well alone
        mine = np.flatnonzero(well == w)
        alone = together_of([problems[w]])
        same_bits(truth, alone.linearize(parameters[:, mine], np.zeros(len(mine), int)), mine)
        assert np.array_equal(
            alone.cross_products(parameters).with_data[..., 0], across.with_data[:, :1, w]
        )
        assert alone.squares[0] == whole.squares[w]


def test_a_plate_of_many_wells(device: str) -> None:
    """More wells than recordings are compressed at once, more than a block has threads."""
    protocol = stairs([65])
    problems = wells_of(of("leak", protocol), 133)
    model = problems[0].model
    parameters, well = candidates(model, 300, seed=2), np.arange(300) % 133
    test = together_of(problems, 128).linearize(parameters, well)
    for w in (0, 15, 16, 131, 132):
        truth = on_the_grid(problems[w]).linearize(parameters[:, well == w])
        assert test.cost[well == w] == pytest.approx(truth.cost, rel=1e-10)
        assert test.gradient[:, well == w] == pytest.approx(truth.gradient, rel=1e-8, abs=1e-8)
    across = together_of(problems).cross_products(parameters[:, :3])
    truth = CpuWellScorer(families(problems)[0]).cross_products(parameters[:, :3])
    assert across.with_data == pytest.approx(truth.with_data, rel=1e-9, abs=1e-6)


def with_own_masks(problem: Problem, n: int) -> list[Problem]:
    """Wells of which each leaves out other samples: some, most, the beginning of every step."""
    found = []
    for k, well in enumerate(wells_of(problem, n)):
        experiments = []
        for experiment in well.experiments:
            recording = experiment.recording
            assert recording is not None
            weight, rng = recording.weight.copy(), np.random.default_rng(k)
            if k == 1:
                weight[:, 5:9] = 0.0
            elif k == 2:
                weight *= rng.random(weight.shape) < 0.3
            elif k == 3:
                weight[:, : weight.shape[1] // 2] *= rng.choice([0.0, 0.5, 1.0])
                weight[:, 40:140] = 0.0
            current = np.where(weight > 0, recording.current_pA, np.nan)
            recording = dataclasses.replace(recording, weight=weight, current_pA=current)
            experiments.append(dataclasses.replace(experiment, recording=recording))
        found.append(Problem(well.model, tuple(experiments)))
    return found


def test_masks_of_their_own_share_launches(device: str) -> None:
    """Costs and derivatives are those of one scorer for each well, with its own samples."""
    problems = with_own_masks(of("na_hh", PROTOCOLS["steps"], stairs([130, 77])), 4)
    plated, well = CudaOwnMasks(problems), np.arange(12) % 4
    parameters = candidates(problems[0].model, 12, seed=5)
    test = plated.linearize(parameters, well)
    for w, problem in enumerate(problems):
        mine = well == w
        truth = on_the_grid(problem).linearize(parameters[:, mine])
        own = Linearization(*(a[..., mine] for a in _arrays(test)))
        # what few samples tell of a parameter leaves its derivatives few digits
        assert max(errors(own, truth, parameters[:, mine])) < 1e-7
        silent = ReferenceScorer(problem).score(parameters[:, mine]).cost
        assert own.cost == pytest.approx(silent, rel=1e-9)
        assert plated.squares[w] == pytest.approx(square_sum(problem), rel=1e-12)
        assert plated.total_weight[w] == pytest.approx(total_weight(problem), rel=1e-12)
    same_bits(test, CudaOwnMasks(problems, 5).linearize(parameters, well))
    with pytest.raises(ValueError, match="scanned with one that they share"):
        plated.cross_products(parameters)


def test_a_bad_candidate_leaves_its_neighbors_alone(device: str) -> None:
    problems = wells_of(of("cycle", PROTOCOLS["steps"]), 3)
    names, well = problems[0].model.parameter_names, np.arange(12) % 3
    good = candidates(problems[0].model, 12, seed=2)
    bad = good.copy()
    for name, candidate, value in (("k3", 3, -1.0), ("k4", 5, -1.0), ("g", 9, np.nan)):
        bad[names.index(name), candidate] = value
    failed = {3: NOT_FINITE, 5: NEGATIVE_RATE, 9: NOT_FINITE}
    others = [k for k in range(12) if k not in failed]
    plated = together_of(problems)
    clean, mixed = plated.linearize(good, well), plated.linearize(bad, well)
    assert {k: s for k, s in enumerate(mixed.status.tolist()) if s != OK} == failed
    assert np.isinf(mixed.cost[list(failed)]).all()
    assert (mixed.gradient[:, list(failed)] == 0).all()
    assert (mixed.hessian[..., list(failed)] == 0).all()
    for a, b in zip(_arrays(clean), _arrays(mixed), strict=True):
        assert np.array_equal(a[..., others], b[..., others])
    assert np.array_equal(plated.cross_products(bad).status, mixed.status)


def test_what_is_refused(device: str) -> None:
    experiment = of("leak", stairs([65])).experiments[0]
    silent = Problem(model_named("leak"), (dataclasses.replace(experiment, weight=0.0),))
    with pytest.raises(InputError, match="nothing to score"):
        together_of([silent])
    clamped = dataclasses.replace(experiment, clamp=Clamp())
    with pytest.raises(InputError, match="--backend cpu takes others"):
        together_of([Problem(model_named("leak"), (clamped,))])


def noisy_plate(n: int) -> tuple[FitPlan, list[Problem]]:
    """Wells of cells that differ by a fifth, with noise, and the plan by which they are fitted."""
    model, protocol = build_model(LITTLE, None), PROTOCOLS["steps"]
    rng = np.random.default_rng(3)
    silent = Problem(model, (Experiment(protocol),))
    truth = model.values()[:, None] * np.exp(0.2 * rng.normal(size=(4, n)))
    traces = ReferenceScorer(silent).simulate(truth)[0]
    problems = []
    for k in range(n):
        noisy = traces[..., k] + rng.normal(0, 20, traces.shape[:2])
        weight = np.isfinite(noisy).astype(float)
        recording = Recording(protocol.times_ms, noisy, weight)
        problems.append(Problem(model, (Experiment(protocol, recording),)))
    return FitPlan(problems[0], "least-squares", {}, {}, {}, Path()), problems


@pytest.mark.parametrize("masked", slow_but([False], [False, True]))
def test_a_plate_is_fitted_as_on_the_cpu(masked, device, monkeypatch):
    """Every well to the same values, errors and flags, from scan to intervals.

    All candidates come in the same launches, also those of wells with masks of their own.
    """
    plan, problems = noisy_plate(4)
    for k, problem in enumerate(problems if masked else ()):
        (experiment,) = problem.experiments
        recording = experiment.recording
        assert recording is not None
        weight = recording.weight.copy()
        weight[:, 10 * k + 5 : 10 * k + 9] = 0.0
        own = dataclasses.replace(recording, weight=weight)
        problems[k] = Problem(problem.model, (dataclasses.replace(experiment, recording=own),))
    launches: list[int] = []
    kind = CudaOwnMasks if masked else CudaWellScorer
    linearize = kind.linearize

    def seen(self: Any, given: np.ndarray, well: np.ndarray) -> Linearization:
        launches.append(len(np.unique(well)))
        return linearize(self, given, well)

    monkeypatch.setattr(kind, "linearize", seen)
    found = fit_wells(plan, problems, SearchSettings(backend="cuda", scan=64, starts=4))
    assert max(launches) == 4
    truths = fit_wells(plan, problems, SearchSettings(backend="cpu", scan=64, starts=4))
    assert found.cost == pytest.approx(truths.cost, rel=1e-9)
    assert np.abs((found.values - truths.values) / truths.errors).max() < 1e-3
    assert found.errors == pytest.approx(truths.errors, rel=1e-4)
    assert found.quality.tolist() == truths.quality.tolist()
