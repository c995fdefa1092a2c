"""Batches of damped systems on a GPU (played by the host, and real) against dense solutions."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from cuda_host import HostCupy, compile_with_nvrtc
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit import gpu
from channelfit.optimizers.least_squares_cuda import MOST_UNKNOWNS, solve_damped, source


@pytest.fixture(params=["played", pytest.param("real", marks=pytest.mark.gpu)])
def cp(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy: played by the host, or real."""
    if request.param == "played":
        monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    elif not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return gpu.cupy()


def systems(k: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Curvatures of parameters whose scales lie ten decades apart, gradients, dampings."""
    rng = np.random.default_rng(seed)
    jacobian = rng.normal(size=(n, k + 3, k)) * 10.0 ** rng.uniform(-5, 5, (n, 1, k))
    curvature = np.moveaxis(jacobian.swapaxes(1, 2) @ jacobian, 0, -1)
    gradient = rng.normal(size=(k, n)) * np.sqrt(curvature[np.arange(k), np.arange(k)])
    return curvature, gradient, 10.0 ** rng.uniform(-8, 4, n)


def solved(
    cp: Any, curvature: np.ndarray, gradient: np.ndarray, damping: np.ndarray, *scale: np.ndarray
) -> np.ndarray:
    given = (cp.array(a) for a in (curvature, gradient, damping, *scale))
    return np.asarray(solve_damped(*given).get())


def scaled_residuals(
    step: np.ndarray, curvature: np.ndarray, gradient: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """What is left of each equation, over the root of its diagonal; weights (k, n) of damping."""
    diagonal = np.arange(len(gradient))
    damped = curvature.copy()
    damped[diagonal, diagonal] += weights
    root = np.sqrt(damped[diagonal, diagonal])
    return np.asarray((np.einsum("ijn,jn->in", damped, step) + gradient) / root)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (2, 5), (9, 33), (25, 7), (32, 3)])
def test_steps_solve_their_systems(cp: Any, k: int, n: int) -> None:
    curvature, gradient, damping = systems(k, n)
    diagonal = curvature[np.arange(k), np.arange(k)]
    step = solved(cp, curvature, gradient, damping)
    left = scaled_residuals(step, curvature, gradient, damping * diagonal)
    assert np.abs(left).max() < 1e-9
    scale = np.random.default_rng(1).uniform(0.5, 2.0, (k, n)) * diagonal
    step = solved(cp, curvature, gradient, damping, scale)
    assert np.abs(scaled_residuals(step, curvature, gradient, damping * scale)).max() < 1e-9


def test_against_dense_solutions(cp: Any) -> None:
    curvature, gradient, damping = systems(6, 40, seed=2)
    step = solved(cp, curvature, gradient, damping)
    for s in range(40):
        damped = curvature[:, :, s] + damping[s] * np.diag(np.diag(curvature[:, :, s]))
        root = np.sqrt(np.diag(damped))
        truth = -np.linalg.solve(damped / np.outer(root, root), gradient[:, s] / root) / root
        assert step[:, s] * root == pytest.approx(truth * root, rel=1e-7, abs=1e-9)


def test_what_is_not_positive_definite_is_nan_and_alone(cp: Any) -> None:
    curvature, gradient, damping = systems(4, 9, seed=3)
    clean = solved(cp, curvature, gradient, damping)
    bad = curvature.copy()
    bad[..., 1] = -bad[..., 1]
    bad[2, 1, 3] = np.nan
    bad[3, 3, 5] = np.inf
    bad[..., 7] = np.outer([1, 2, 3, 4], [1, 2, 3, 4])  # of rank one
    damping[7] = 0.0
    step = solved(cp, bad, gradient, damping)
    failed = [1, 3, 5, 7]
    assert np.isnan(step[:, failed]).all()
    others = [0, 2, 4, 6, 8]
    assert np.array_equal(step[:, others], clean[:, others])


def test_a_coordinate_without_curvature_stays(cp: Any) -> None:
    curvature, gradient, damping = systems(5, 6, seed=4)
    inner = [0, 1, 3, 4]
    alone = solved(cp, curvature[np.ix_(inner, inner)], gradient[inner], damping)
    curvature[2], curvature[:, 2] = 0.0, 0.0
    step = solved(cp, curvature, gradient, damping)
    assert (step[2] == 0).all()
    assert step[inner] == pytest.approx(alone, rel=1e-12)


def test_only_lower_triangles_are_read(cp: Any) -> None:
    curvature, gradient, damping = systems(3, 4)
    clean = solved(cp, curvature, gradient, damping)
    curvature[np.triu_indices(3, 1)] = np.nan
    assert np.array_equal(solved(cp, curvature, gradient, damping), clean)


def test_none_and_too_many(cp: Any) -> None:
    assert solved(cp, np.zeros((3, 3, 0)), np.zeros((3, 0)), np.zeros(0)).shape == (3, 0)
    assert solved(cp, np.zeros((0, 0, 2)), np.zeros((0, 2)), np.zeros(2)).shape == (0, 2)
    k = MOST_UNKNOWNS + 1
    with pytest.raises(ValueError, match="at most 32"):
        solved(cp, np.zeros((k, k, 1)), np.zeros((k, 1)), np.zeros(1))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.floats(-3, 3), st.integers(0, 10**6))
def test_damping_shortens_and_turns_toward_descent(k: int, power: float, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", HostCupy())
        curvature, gradient, _ = systems(k, 2, seed)
        root = np.sqrt(curvature[np.arange(k), np.arange(k)])
        lengths = []
        for factor in (1.0, 10.0):
            damping = np.full(2, factor * 10.0**power)
            step = solved(gpu.cupy(), curvature, gradient, damping)
            assert ((step * gradient).sum(axis=0) < 0).all()
            lengths.append(np.linalg.norm(step * root, axis=0))
        assert (lengths[1] < lengths[0]).all()


@pytest.mark.parametrize("k", [1, 25, 32])
def test_nvrtc_accepts_the_text(k: int) -> None:
    assert "error" not in compile_with_nvrtc(source(k))
