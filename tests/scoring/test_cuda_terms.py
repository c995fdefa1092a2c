"""Currents of any terms on the GPU: generated CUDA, run by the host, against the other backends."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda_tangents import Tangents
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_spectral import CudaSpectralSource
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import HostCupy, compile_with_nvrtc
from support.term_models import DOCUMENTS, candidates, document, model_of, moving, problem_of, steps
from support.truths import slow_but

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
MIXED = ("sum of all", "sum with background")
EVERY = [(name, kind) for name in DOCUMENTS for kind in ("steps", "moving")]
QUICK = [("rectified scheme", "moving"), ("sum of gates", "moving"), (MIXED[0], "moving")]
QUICK += [("sum with background", "moving")]
STEPPED, STEPPED_QUICKLY = (
    [
        (name, kind, dtype)
        for name, kind in cases
        for dtype in ("float64", "float32")
        if not (name in MIXED and (kind, dtype) == ("moving", "float32"))
    ]
    for cases in (EVERY, QUICK)
)
ONE_PRODUCT = [name for name in DOCUMENTS if not name.startswith("sum")]
PROTOCOLS = {"steps": steps, "moving": moving}


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that the host plays."""
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())


@pytest.mark.parametrize(("name", "kind", "dtype"), slow_but(STEPPED_QUICKLY, STEPPED))
def test_stepping_agrees_with_the_reference(name: str, kind: str, dtype: str) -> None:
    problem = problem_of(name, PROTOCOLS[kind]())
    parameters = candidates(problem.model, 5)
    reference = ReferenceScorer(problem)
    # a scheme times a gate is stepped as one scheme, which is as exact, but not the same
    moves = kind == "moving" and name == "scheme times gate"
    tolerance = max(TOLERANCE[dtype], 1e-4 if moves else 0)
    scorer = make_scorer(problem, "cuda", dtype, path="stepping")
    truth, current = reference.simulate(parameters)[0], scorer.simulate(parameters)[0]
    assert np.abs(current - truth).max() < tolerance * np.abs(truth).max()
    found, wanted = scorer.score(parameters), reference.score(parameters)
    assert (found.status == wanted.status).all()
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=10 * tolerance)


@pytest.mark.parametrize(("name", "kind"), slow_but(QUICK, EVERY))
def test_derivatives_agree_with_those_of_the_cpu(name: str, kind: str) -> None:
    problem = problem_of(name, PROTOCOLS[kind]())
    parameters = candidates(problem.model, 4)
    wanted = make_scorer(problem, "cpu").linearize(parameters)
    found = make_scorer(problem, "cuda").linearize(parameters)
    assert (found.status == wanted.status).all()
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-6)
    size = np.sqrt(np.einsum("iic->ic", wanted.curvature))
    scaled = size[:, None] * size[None]
    assert np.abs((found.curvature - wanted.curvature) / scaled).max() < 1e-6
    slope = (found.gradient - wanted.gradient) / (size * np.sqrt(wanted.cost))
    assert np.abs(slope).max() < 1e-6


def test_runs_in_segments_give_the_same_derivatives() -> None:
    """What steps make of any state, of gates and of both schemes, and the replay from it."""
    problem = problem_of(MIXED[0], moving())
    parameters = candidates(problem.model, 3)
    wanted = make_scorer(problem, "cpu").linearize(parameters)
    tangents = Tangents(problem, 2)
    tangents.n_jobs = 7
    arrays = tangents.linearize(gpu.cupy().asarray(parameters))
    cost, _, gradient, _ = (a.get() for a in arrays)
    assert any(program.compose is not None for program in tangents._programs.values())
    np.testing.assert_allclose(cost, wanted.cost, rtol=1e-6)
    size = np.sqrt(np.einsum("iic->ic", wanted.curvature))
    slope = (gradient - wanted.gradient) / (size * np.sqrt(wanted.cost))
    assert np.abs(slope).max() < 1e-6


@pytest.mark.parametrize("path", ["modal", "closed-form"])
@pytest.mark.parametrize("name", slow_but(["scheme and leak", "gates and leak"], ONE_PRODUCT))
def test_modes_agree_with_the_reference(name: str, path: str) -> None:
    problem = problem_of(name, steps())
    parameters = candidates(problem.model, 5)
    wanted = ReferenceScorer(problem).score(parameters)
    found = make_scorer(problem, "cuda", path=path).score(parameters)
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-8)


def test_float32_does_not_step_gates_beside_schemes() -> None:
    problem = problem_of(MIXED[0], moving())
    with pytest.raises(InputError, match="in float64 only; use --dtype float64"):
        make_scorer(problem, "cuda", "float32").score(candidates(problem.model, 2))


def test_a_candidate_whose_drive_is_not_finite_fails_alone() -> None:
    wild = document("gates and leak")
    wild["current"]["rectification"] = "1 + exp(1000*(g - 10)*exp(-v/40))"
    model = build_model(wild, None)
    recordings = problem_of("gates and leak", moving()).experiments
    problem = Problem(model, recordings)
    parameters = candidates(model, 2)
    row = model.parameter_names.index("g")
    parameters[row] = 2.0, 19.0
    for backend in ("reference", "cpu", "cuda"):
        scorer = make_scorer(problem, backend)
        assert scorer.score(parameters).status.tolist() == [OK, NOT_FINITE]
        assert scorer.linearize(parameters).status.tolist() == [OK, NOT_FINITE]


@pytest.mark.parametrize("name", slow_but(["sum of all", "calcium scheme"], DOCUMENTS))
def test_a_device_compiler_takes_the_text(name: str) -> None:
    model = model_of(name)
    for dtype in ("float64", "float32"):
        source = CudaSource(model, dtype)
        varying = not (name in MIXED and dtype == "float32")
        compile_with_nvrtc(source.specialized(16, varying))
        compile_with_nvrtc(source.specialized(16, varying, listed=True))
    tangents = CudaTangentSource(model)
    compile_with_nvrtc(tangents.specialized(16, True, cut=False))
    compile_with_nvrtc(tangents.specialized(16, True, cut=True))
    if model.one_product:
        compile_with_nvrtc(CudaSpectralSource(model).specialized(16))
