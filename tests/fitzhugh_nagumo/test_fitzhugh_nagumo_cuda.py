"""The GPU's kernels, run on this machine's processor or, with `-m gpu`, on a GPU."""

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import (
    Cable,
    CrankNicolson,
    Equation,
    Explicit,
    Pulse,
    RungeKutta,
)
from channelfit.fitzhugh_nagumo.cuda import crank_nicolson as cuda_crank_nicolson
from channelfit.fitzhugh_nagumo.cuda.adaptive import adaptive_text
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import BlockShape, CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson_source import crank_nicolson_text
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda, RungeKuttaCuda, explicit_text
from channelfit.reading.errors import InputError
from support.cable_device import assert_same
from support.cable_truth import ENDS
from support.cuda_host import compile_with_nvrtc
from support.truths import slow_but


@dataclass(frozen=True)
class Case:
    """A scheme on a device, how it is laid out, and a cable and steps that it is tried with.

    Attributes:
        apart: constants of Crank-Nicolson's module that make a short cable go a long one's way.
    """

    make: Any
    nodes: int
    dt: float
    n_steps: int
    layout: dict[str, Any] = field(default_factory=dict)
    dx: float = 0.5
    n_cables: int = 1
    bound: float | None = None
    apart: dict[str, Any] = field(default_factory=dict)


EXACT, ROUGH = {"tolerance": 1e-15}, {"tolerance": 1e-6, "dtype": "float32"}
#: One block of 32 threads with 4 nodes: a short ring goes around several times in a tile.
ALONE = {"shape": BlockShape(4, 32, 1), **EXACT}
#: Parts of 64 nodes, of which the last may be one node; dt/dx^2 = 400: all feel each other.
PARTS = {"shape": BlockShape(4, 16, 1), "solver": "parts"}
#: By what a cable is solved in; small tiles, so that it has many. Of each two ends are tried,
#: the second as a slow test.
CASES = [
    *(Case(ExplicitCuda, n, 0.1, 45, {}, n_cables=7) for n in (3, 33, 64, 101, 401)),
    *(Case(RungeKuttaCuda, n, 0.15, 25, {}, n_cables=7) for n in (3, 33, 64, 101, 401)),
    *(
        Case(CrankNicolsonCuda, n, dt, 5, ALONE, n_cables=3, bound=1e-13)
        for n, dt in ((3, 0.3), (31, 4.0), (100, 0.1), (128, 1.0))
    ),
    *(
        Case(CrankNicolsonCuda, n, 1.0, 3, PARTS | EXACT, 0.05, 3, 2e-12, {"_JOINERS": 4})
        for n in (3, 63, 64, 65, 129, 131, 1000)
    ),
    Case(CrankNicolsonCuda, 1000, 1.0, 3, PARTS | ROUGH, 0.05, 3, 1e-4, {"_JOINERS": 4}),
    *(
        Case(kind, 1300, dt, 38, {"nodes": 5, "warps": 2, "steps": steps, "dtype": dtype})
        for kind, dt, steps in ((ExplicitCuda, 0.1, 11), (RungeKuttaCuda, 0.15, 7))
        for dtype in ("float64", "float32")
    ),
    *(
        Case(CrankNicolsonCuda, 1300, dt, 8, layout | EXACT | {"steps": 3}, bound=2e-13)
        for layout, dt in (
            ({"shape": BlockShape(8, 64, 1), "solver": "tiles"}, 0.1),
            ({"shape": BlockShape(4, 128, 1), "solver": "tiles"}, 0.5),
            ({"shape": BlockShape(8, 64, 1), "solver": "tiles"}, 0.02),
        )
    ),
    *(
        # dt/dx^2 = 100: the usual tile is too short; wider ones, or one system over memory
        Case(CrankNicolsonCuda, 3000, 1.0, 3, ALONE | {"solver": solver}, 0.1, 1, 1e-12, wide)
        for solver, wide in (("parts", {}), ("auto", {"_WIDE": BlockShape(8, 128, 1)}))
    ),
]


#: Every second case, and those of float32.
QUICK = [k for k, case in enumerate(CASES) if k % 2 == 0 or case.layout.get("dtype") == "float32"]


@pytest.mark.parametrize("number", slow_but(QUICK, range(2 * len(CASES))))
def test_a_device_steps_as_the_processor_does(device, monkeypatch, number):
    again, place = divmod(number, len(CASES))
    case, ends = CASES[place], ENDS[(place + again) % 4]
    for name, value in case.apart.items():
        monkeypatch.setattr(cuda_crank_nicolson, name, value)
    rng, n = np.random.default_rng(case.nodes), case.n_cables
    a, epsilon = (rng.uniform(0, most, n) if n > 1 else most for most in (0.3, 0.1))
    equation = Equation(a=a, gamma=1.7, epsilon=epsilon, diffusion=0.8)
    cable = Cable(case.nodes, case.dx, *ends, stimulus=(Pulse(0.3, case.dx, 20 * case.dx),))
    reference = {ExplicitCuda: Explicit, RungeKuttaCuda: RungeKutta}.get(case.make)
    if reference is None:
        reference = partial(CrankNicolson, solver="thomas", tolerance=1e-15)
    scheme = case.make(equation, cable, **case.layout, device=device)
    for driven in (False, True):
        same = reference(equation, cable), case.dt, case.n_steps, n, driven, case.bound
        assert_same(scheme, *same)


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


def test_a_newton_that_fails_is_told(device):
    cable = Cable(100, 0.5)
    for solver in ("tiles", "parts"):
        scheme = CrankNicolsonCuda(
            Equation(), cable, shape=BlockShape(4, 32), solver=solver, device=device
        )
        v = np.full((1, 100), 1e200)
        out = scheme.advance(scheme.put(v), scheme.put(0 * v), 5.0, 1)
        with pytest.raises(InputError, match="converge"):
            scheme.take(out[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_text_compiles_for_a_device_without_spilling_much(dtype):
    """A kernel that spills its state to memory would be right, and slow."""
    most = RungeKuttaCuda.most_nodes[dtype]  # the largest that a thread takes
    for text, bound in (
        (explicit_text(dtype), 0),
        (explicit_text(dtype, 13, 4, True, 401), 0),
        (crank_nicolson_text(dtype), 127),
        (crank_nicolson_text(dtype, 4, 128, 4, True), 127),
        (adaptive_text(dtype, driven=True), 127),
        (explicit_text(dtype, 8, 4, True, 0, "Runge-Kutta"), 0),
        (explicit_text(dtype, most, 4, True, 32 * most, "Runge-Kutta"), 0),
    ):
        log = compile_with_nvrtc(text, options=("-std=c++17", "--ptxas-options=-v"))
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
        assert spilled
        assert max(spilled) <= bound
