"""The GPU's kernels, run on this machine's processor or, with `-m gpu`, on a GPU."""

import importlib
import re
import sys

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, Explicit, Pulse, simulate
from channelfit.fitzhugh_nagumo.crank_nicolson import Coefficients
from channelfit.fitzhugh_nagumo.cuda import crank_nicolson as cuda_crank_nicolson
from channelfit.fitzhugh_nagumo.cuda.adaptive import adaptive_text
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson_source import crank_nicolson_text
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda, explicit_text
from channelfit.reading.errors import InputError
from support.cable_device import assert_same
from support.cable_truth import ENDS
from support.cuda_host import compile_with_nvrtc
from support.truths import in_turns


@pytest.mark.parametrize(("ends", "dtype"), in_turns(5, ENDS, ["float64"] * 4 + ["float32"]))
def test_explicit_tiles(device, ends, dtype):
    """Small tiles, so that the cable has many: 5 nodes a thread, 11 steps a pass."""
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(1300, 0.5, *ends, stimulus=(Pulse(0.3, 3, 20),))
    scheme = ExplicitCuda(equation, cable, dtype, nodes=5, warps=2, steps=11, device=device)
    for driven in (False, True):
        assert_same(scheme, Explicit(equation, cable), 0.1, 38, driven=driven)


@pytest.mark.parametrize(("ends", "n_nodes"), in_turns(6, ENDS, [3, 33, 64, 101, 401]))
def test_explicit_whole_cables(device, ends, n_nodes):
    rng = np.random.default_rng(n_nodes)
    equation = Equation(a=rng.uniform(0, 0.3, 7), epsilon=rng.uniform(0, 0.1, 7))
    cable = Cable(n_nodes, 0.5, *ends)
    scheme = ExplicitCuda(equation, cable, device=device)
    assert_same(scheme, Explicit(equation, cable), 0.1, 45, 7)


@pytest.mark.parametrize(
    ("ends", "n_nodes", "dt"), in_turns(9, ENDS, [3, 31, 100, 128, 3], [0.3, 4.0, 0.1])
)
def test_crank_nicolson_whole_cables(device, ends, n_nodes, dt):
    """In one block of 32 threads with 4 nodes; a short ring goes around several times in a tile."""
    rng = np.random.default_rng(n_nodes)
    equation = Equation(a=rng.uniform(0, 0.3, 3), epsilon=rng.uniform(0, 0.1, 3))
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 1, 9),))
    scheme = CrankNicolsonCuda(
        equation, cable, nodes=4, threads=32, blocks=1, tolerance=1e-15, device=device
    )
    reference = CrankNicolson(equation, cable, "thomas", tolerance=1e-15)
    for driven in (False, True):
        assert_same(scheme, reference, dt, 5, 3, driven, bound=1e-13)


@pytest.mark.parametrize(
    ("ends", "n_nodes", "dtype"),
    in_turns(14, ENDS, [3, 63, 64, 65, 129, 131, 1000], ["float64", "float64", "float32"]),
)
def test_crank_nicolson_in_parts(device, monkeypatch, ends, n_nodes, dtype):
    """Parts of 64 nodes, of which the last may be one node; dt/dx^2 = 400: all feel each other."""
    monkeypatch.setattr(cuda_crank_nicolson, "_JOINERS", 4)
    equation = Equation(a=np.array([0.13, 0.02, 0.2]), gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(n_nodes, 0.05, *ends, stimulus=(Pulse(0.3, 1, 9),))
    scheme = CrankNicolsonCuda(
        equation,
        cable,
        dtype,
        nodes=4,
        threads=16,
        blocks=1,
        solver="parts",
        device=device,
        tolerance=1e-15 if dtype == "float64" else 1e-6,
    )
    reference = CrankNicolson(equation, cable, "thomas", tolerance=1e-15)
    for driven in (False, True):
        assert_same(
            scheme, reference, 1.0, 3, 3, driven, bound=2e-12 if dtype == "float64" else 1e-4
        )


@pytest.mark.parametrize(
    ("ends", "shape"), in_turns(5, ENDS, [(8, 64, 0.1), (4, 128, 0.5), (8, 64, 0.02)])
)
def test_crank_nicolson_tiles(device, ends, shape):
    nodes, threads, dt = shape
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(1300, 0.5, *ends, stimulus=(Pulse(0.3, 3, 20),))
    scheme = CrankNicolsonCuda(
        equation,
        cable,
        nodes=nodes,
        threads=threads,
        blocks=1,
        steps=3,
        solver="tiles",
        tolerance=1e-15,
        device=device,
    )
    reference = CrankNicolson(equation, cable, "thomas", tolerance=1e-15)
    for driven in (False, True):
        assert_same(scheme, reference, dt, 8, driven=driven, bound=2e-13)


@pytest.mark.parametrize(("ends", "solver"), in_turns(5, ENDS, ["parts", "auto"] * 2 + ["auto"]))
def test_crank_nicolson_of_ends_felt_from_afar(device, monkeypatch, ends, solver):
    """dt/dx^2 = 100: the usual tile is too short; wider ones, or one system over memory."""
    monkeypatch.setattr(cuda_crank_nicolson, "_WIDE", (8, 128, 1))
    cable = Cable(3000, 0.1, *ends)
    scheme = CrankNicolsonCuda(
        Equation(),
        cable,
        nodes=4,
        threads=32,
        blocks=1,
        tolerance=1e-15,
        solver=solver,
        device=device,
    )
    reference = CrankNicolson(Equation(), cable, "thomas", tolerance=1e-15)
    assert_same(scheme, reference, 1.0, 3, bound=1e-12)


def test_wide_tiles_are_taken_where_they_must_be(device):
    """By dt/dx^2: the usual tiles, wide ones, none."""
    chosen = []
    for coupling in (0.4, 1000.0, 1e6):
        dx = (0.1 / coupling) ** 0.5
        scheme = CrankNicolsonCuda(Equation(), Cable(10**6, dx), device=device)
        step = Coefficients.of(Equation(), 1, dx, 0.1)
        tiles = scheme._tiles(10**6, step.decay(), 8)
        chosen.append(tiles and (tiles.shape, tiles.steps))
    assert chosen[0] == ((scheme.nodes, scheme.threads, scheme.blocks), 4)
    assert chosen[1] == (cuda_crank_nicolson._WIDE, 4)
    assert chosen[2] is None


@pytest.mark.parametrize(
    ("coupling", "dtype"), [(1e3, "float32"), (1e5, "float64"), (1e5, "float32")]
)
def test_strong_coupling_as_it_is_shipped(device, coupling, dtype):
    """Wide tiles and parts of the real sizes; float32 loses digits as dt/dx^2 grows."""
    cable = Cable(9001, (0.1 / coupling) ** 0.5, "no_flux", 0.3)
    x = np.arange(9001) * 60 / 9000
    v = (0.3 + 0.5 * np.exp(-((x - 20) ** 2) / 30) * (1 - x / 60))[None]
    scheme = CrankNicolsonCuda(Equation(), cable, dtype, device=device)
    theirs = CrankNicolson(Equation(), cable, tolerance=1e-15).advance(v, 0.1 * v, 0.1, 5)
    ours = scheme.advance(scheme.put(v), scheme.put(0.1 * v), 0.1, 5)
    assert ("parts" in scheme.way) == (coupling > 1e4)
    bound = 1e-10 if dtype == "float64" else min(1e-6 * coupling, 1e-2)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(scheme.take(a), b, 0, bound)


@pytest.mark.parametrize("make", [ExplicitCuda, CrankNicolsonCuda])
def test_runs_of_both_backends_agree(device, make):
    cable = Cable(201, 0.5, stimulus=(Pulse(0.5, 0, 5, 1, 3),))
    reference = {ExplicitCuda: Explicit, CrankNicolsonCuda: CrankNicolson}[make]
    runs = [
        simulate(scheme, 0, 0, [2, 6], dt=0.1)
        for scheme in (make(Equation(), cable, device=device), reference(Equation(), cable))
    ]
    np.testing.assert_allclose(runs[0].v, runs[1].v, 0, 1e-11)


def test_a_newton_that_fails_is_told(device):
    cable = Cable(100, 0.5)
    for solver in ("tiles", "parts"):
        scheme = CrankNicolsonCuda(
            Equation(), cable, nodes=4, threads=32, solver=solver, device=device
        )
        v = np.full((1, 100), 1e200)
        out = scheme.advance(scheme.put(v), scheme.put(0 * v), 5.0, 1)
        with pytest.raises(InputError, match="converge"):
            scheme.take(out[0])


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_text_compiles_for_a_device_without_spilling_much(dtype):
    """A kernel that spills its state to memory would be right, and slow."""
    texts = [
        explicit_text(dtype),
        explicit_text(dtype, 13, 4, True, 401),
        crank_nicolson_text(dtype),
        crank_nicolson_text(dtype, 4, 128, 4, True),
        adaptive_text(dtype, driven=True),
    ]
    for text in texts:
        log = compile_with_nvrtc(text, options=("-std=c++17", "--ptxas-options=-v"))
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
        assert spilled
        assert max(spilled) < 128


@pytest.mark.integration
def test_the_benchmark_runs_from_end_to_end(device, monkeypatch):
    """At sizes that mean nothing, with cuSPARSE left out."""
    benchmark = importlib.import_module("fhn_gpu")
    small = {
        "BIG": 900,
        "OTHERS": (300, 700),
        "GROWTH": (500,),
        "CABLES": 2,
        "CABLE_NODES": 20,
        "COUPLED": (300,),
    }
    for name, value in {**small, "CHECKED": 801, "CHECKED_STEPS": 3}.items():
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setattr(benchmark, "cusparse", lambda *_: 1.0)
    monkeypatch.setattr(
        benchmark, "rate", lambda scheme, v, w, *_: float(scheme.advance(v, w, 0.1, 2)[0].size)
    )
    kept = []
    monkeypatch.setattr(benchmark, "finish", lambda *arguments: kept.extend(arguments[2]))
    monkeypatch.setattr(sys, "argv", ["fhn_gpu.py", "--quick"])
    benchmark.main()
    rows = {row.name: row for row in kept}
    apart = [row.value for name, row in rows.items() if "difference" in name]
    assert len(apart) == 6
    assert len([name for name in rows if name.startswith("Runge-Kutta")]) == 10
    assert max(apart) < 1e-4
    assert len([name for name in rows if "against one cuSPARSE solve" in name]) == 6
