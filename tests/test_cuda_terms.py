"""Currents of any terms on the GPU: generated CUDA, run by the host, against the other backends."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from cuda_host import HostCupy, compile_with_nvrtc
from term_models import DOCUMENTS, candidates, model_of, moving, problem_of, steps
from truths import slow_but

from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_spectral import CudaSpectralSource
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
ON_CPU_ALONE = "sum of all"
EVERY = [
    (name, kind)
    for name in DOCUMENTS
    for kind in ("steps", "moving")
    if (name, kind) != (ON_CPU_ALONE, "moving")
]
QUICK = [("rectified scheme", "moving"), ("sum of gates", "moving"), (ON_CPU_ALONE, "steps")]
PROTOCOLS = {"steps": steps, "moving": moving}


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that the host plays."""
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "kind"), slow_but(QUICK, EVERY))
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


@pytest.mark.parametrize("path", ["modal", "closed-form"])
@pytest.mark.parametrize(
    "name", slow_but(["calcium scheme"], ["rectified scheme", "calcium", "calcium scheme"])
)
def test_modes_agree_with_the_reference(name: str, path: str) -> None:
    problem = problem_of(name, steps())
    parameters = candidates(problem.model, 5)
    wanted = ReferenceScorer(problem).score(parameters)
    found = make_scorer(problem, "cuda", path=path).score(parameters)
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-8)


def test_what_no_gpu_steps_yet_is_refused() -> None:
    problem = problem_of(ON_CPU_ALONE, moving())
    parameters = candidates(problem.model, 2)
    with pytest.raises(InputError, match="several currents can be computed if all are of gates"):
        make_scorer(problem, "cuda").score(parameters)
    with pytest.raises(InputError, match="several currents can be computed if all are of gates"):
        make_scorer(problem, "cuda").linearize(parameters)


@pytest.mark.parametrize("name", slow_but(["sum of gates", "calcium scheme"], DOCUMENTS))
def test_a_device_compiler_takes_the_text(name: str) -> None:
    model = model_of(name)
    varying = name != ON_CPU_ALONE
    for dtype in ("float64", "float32"):
        source = CudaSource(model, dtype)
        compile_with_nvrtc(source.specialized(16, varying))
        compile_with_nvrtc(source.specialized(16, varying, listed=True))
    tangents = CudaTangentSource(model)
    compile_with_nvrtc(tangents.specialized(16, varying, cut=False))
    compile_with_nvrtc(tangents.specialized(16, varying, cut=True))
    if model.one_product:
        compile_with_nvrtc(CudaSpectralSource(model).specialized(16))
