"""Curves on a GPU: generated CUDA, run by the shim of the host and compiled by NVRTC."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from channelfit.curves import cuda
from channelfit.curves import flags as bits
from channelfit.curves.builtin import BUILT_IN
from channelfit.curves.cpu import fit_on_cpu, fly_on_cpu
from channelfit.curves.cuda_source import cuda_text
from channelfit.curves.curve import build_curve, load_curve
from channelfit.curves.doubts import reasons_of
from channelfit.curves.fitting import CurveProblem, Fits, Flight
from channelfit.curves.swarm_text import swarm_text
from support.cuda_host import HostCupy, compile_with_nvrtc
from support.curve_sets import images, noisy, points
from support.truths import slow_but


@pytest.fixture(autouse=True)
def host_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())


def fit_on_gpu(
    problem: CurveProblem, first: int, last: int, dtype: str = "float64", **settings: Any
) -> Fits:
    """Fits of data sets on all GPUs."""
    return cuda.Gpus(partial(cuda.CudaFits, problem, dtype, **settings)).fit(first, last)


def same(one: Fits, other: Fits, rtol: float) -> None:
    """Two backends found the same, within a share of the standard errors."""
    np.testing.assert_array_equal(one.flags, other.flags)
    np.testing.assert_array_equal(one.counted, other.counted)
    np.testing.assert_allclose(one.cost, other.cost, rtol=rtol)
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-5)
    np.testing.assert_allclose(one.errors, other.errors, rtol=30 * rtol)
    off = np.abs(one.values - other.values) / other.errors
    assert np.nanmax(off, initial=0.0) < 30 * rtol


@pytest.mark.parametrize(
    ("name", "likelihood"),
    slow_but(
        [("boltzmann", "gaussian"), ("gaussian", "poisson")],
        [
            ("boltzmann", "gaussian"),
            ("exponential", "poisson"),
            ("double_exponential", "gaussian"),
            ("hill", "gaussian"),
            ("gaussian", "poisson"),
        ],
    ),
)
def test_both_backends_find_the_same(name: str, likelihood: str) -> None:
    curve, data = noisy(name, 6)
    curve = replace(curve, likelihood=likelihood)
    if likelihood == "poisson":
        counts = np.random.default_rng(3).poisson(np.maximum(100 * data.values, 0))
        data = replace(data, values=counts.astype(float))
    problem = CurveProblem.of(curve, data)
    ours = fit_on_cpu(problem, 0, 6, covariances=True)
    found = fit_on_gpu(problem, 0, 6, covariances=True)
    same(found, ours, 1e-6)
    assert found.covariances is not None
    np.testing.assert_allclose(found.covariances, ours.covariances, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(("loss", "dtype"), [("soft_l1", "float64"), ("linear", "float32")])
def test_weights_and_losses(loss: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_CHUNK", 128)
    curve, data = noisy("gaussian", 200)
    random = np.random.default_rng(5)
    sigma = 0.02 * np.exp(random.normal(0, 0.7, data.values.shape))
    values = data.values + sigma * random.normal(size=sigma.shape)
    values[:, 20] += 1.0
    values[3, 5] = np.nan
    problem = CurveProblem.of(curve.fitted_by(loss=loss), replace(data, values=values, sigma=sigma))
    ours = fit_on_cpu(problem, 2, 200)
    found = fit_on_gpu(problem, 2, 200, dtype)
    same(found, ours, 1e-6 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize(("dtype", "raw"), [("float64", np.uint16), ("float32", np.float32)])
def test_images_in_chunks(dtype: str, raw: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """More chunks than lanes, the last one not full; a part of a piece only."""
    monkeypatch.setattr(cuda, "_CHUNK", 128)
    curve = replace(load_curve("gaussian_2d"), likelihood="poisson")
    _, data = images(500, seed=7)
    problem = CurveProblem.of(curve, replace(data, values=data.values.astype(raw)))
    ours = fit_on_cpu(problem, 0, 500)
    found = fit_on_gpu(problem, 3, 490, dtype)
    part = Fits(*(None if a is None else a[3:490] for a in vars(ours).values()))  # type: ignore[arg-type]
    same(found, part, 1e-6 if dtype == "float64" else 1e-3)


def test_nasty_data_are_flagged_alike() -> None:
    curve, data = noisy("boltzmann", 8)
    values = data.values.copy()
    values[0, [0, 3]] = np.nan, np.inf
    values[1] = 0.0
    values[2] = np.nan
    values[3, 2:] = np.nan
    values[4] = 1e30 * values[4]
    values[5] = np.where(np.arange(15) > 6, 1.0, 0.0)
    values[6] = -values[6]
    problem = CurveProblem.of(curve, replace(data, values=values))
    ours, found = fit_on_cpu(problem, 0, 8), fit_on_gpu(problem, 0, 8)
    np.testing.assert_array_equal(found.flags, ours.flags)
    assert reasons_of(problem, found) == reasons_of(problem, ours)
    np.testing.assert_allclose(found.values[[0, 4, 6, 7]], ours.values[[0, 4, 6, 7]], rtol=1e-6)
    counts = replace(curve, likelihood="poisson")
    problem = CurveProblem.of(counts, replace(data, values=values))
    assert fit_on_gpu(problem, 6, 7).flags[0] & bits.NEGATIVE


def test_doubtful_fits_are_flagged_alike() -> None:
    """Amplitudes that cancel, offsets of 1e9, and swarms that are far from their minimum."""
    curve = load_curve("double_exponential")
    t = np.linspace(0, 100, 200)
    z = np.exp(-t / 10) + np.random.default_rng(2).normal(0, 0.02, (24, 200))
    problem = CurveProblem.of(curve, points(curve, t, z))
    ours, found = fit_on_cpu(problem, 0, 24), fit_on_gpu(problem, 0, 24)
    assert (ours.flags & bits.UNDETERMINED).any()
    assert np.mean(found.flags == ours.flags) > 0.8  # what is not determined may end elsewhere
    curve, data = noisy("gaussian", 6)
    problem = CurveProblem.of(curve, replace(data, values=data.values + 1e9))
    ours, found = fit_on_cpu(problem, 0, 6), fit_on_gpu(problem, 0, 6)
    np.testing.assert_allclose(found.squares, ours.squares, rtol=1e-6)
    assert not found.flags.any()
    flight = Flight(particles=24, iterations=1, seed=5)
    ours, found = fly_on_cpu(problem, 0, 6, flight), fit_on_gpu(problem, 0, 6, flight=flight)
    assert (ours.flags & bits.UNSETTLED).all()
    np.testing.assert_array_equal(found.flags, ours.flags)


def test_an_offset_in_the_scan_and_several_starts() -> None:
    document = {
        "inputs": "t",
        "parameters": {"tau": {"range": [0.1, 100], "scale": "log"}, "a": {}},
        "curve": "exp(-t/tau) + a*t",
        "starts": 3,
    }
    curve = build_curve(document, None)
    t = np.linspace(0, 20, 50)
    truth = np.array([[4.0, 0.3], [0.5, -0.2]])
    z = curve.values({"t": t[None]}, truth.T[:, :, None])
    problem = CurveProblem.of(curve, points(curve, t, z))
    np.testing.assert_allclose(fit_on_gpu(problem, 0, 2).values, truth, rtol=1e-6)
    z += np.random.default_rng(1).normal(0, 0.01, z.shape)
    problem = CurveProblem.of(curve, points(curve, t, z))
    ours, found = fit_on_cpu(problem, 0, 2), fit_on_gpu(problem, 0, 2)
    same(found, ours, 1e-6)
    assert (found.steps == ours.steps).all()


def test_several_gpus_share_the_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    curve, data = noisy("exponential", 300)
    problem = CurveProblem.of(curve, data)
    one = fit_on_gpu(problem, 0, 300)
    cp = HostCupy()
    used = []

    @contextmanager
    def device(k: int) -> Iterator[None]:
        used.append(k)
        yield

    cp.cuda.Device = device
    cp.cuda.runtime.getDeviceCount = lambda: 3
    monkeypatch.setitem(sys.modules, "cupy", cp)
    three = fit_on_gpu(problem, 0, 300)
    assert set(used) == {0, 1, 2}
    assert one.values.tobytes() == three.values.tobytes()
    assert one.flags.tolist() == three.flags.tolist()


def test_swarms_fly_alike_on_both_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_CHUNK", 128)
    curve, data = noisy("gaussian", 140)
    problem = CurveProblem.of(curve, data)
    flight = Flight(particles=24, iterations=6, seed=5)
    ours = fly_on_cpu(problem, 0, 140, flight, covariances=True)
    found = fit_on_gpu(problem, 0, 140, covariances=True, flight=flight)
    np.testing.assert_allclose(found.values, ours.values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.cost, ours.cost, rtol=1e-9)
    np.testing.assert_array_equal(found.flags, ours.flags)
    assert found.spread is not None
    np.testing.assert_allclose(found.spread, ours.spread, rtol=1e-6, atol=1e-12)
    later = fit_on_gpu(problem, 130, 140, flight=flight)
    np.testing.assert_array_equal(later.values, found.values[130:])


@pytest.mark.parametrize("name", slow_but(["boltzmann"], BUILT_IN))
def test_nvrtc_compiles_every_built_in_curve(name: str) -> None:
    curve, swarm = load_curve(name), swarm_text(256)
    axes = tuple((i,) for i in curve.inputs)
    first = (axes, (11,) * len(axes), "float32", "uint16", 0, 1)
    for text in (
        cuda_text(curve, *first),
        cuda_text(curve.fitted_by(loss="soft_l1"), *first, weighted=True),
        cuda_text(replace(curve, likelihood="poisson"), *first, swarm),
    ):
        assert "error" not in compile_with_nvrtc(text)
