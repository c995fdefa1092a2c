"""The classical Runge-Kutta scheme, on the processor and on a device."""

import re

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, Equation, Pulse, RungeKutta, simulate
from channelfit.fitzhugh_nagumo.cuda.explicit import RungeKuttaCuda, explicit_text
from support.cable_device import assert_same
from support.cable_truth import ENDS, order, pulsed, rates, some_state
from support.cuda_host import compile_with_nvrtc
from support.truths import in_turns


def by_the_book(equation, cable, v, w, dt, n_steps, drive=0.0):
    """The scheme once more, from its tableau and the independent rates of the other tests."""
    for _ in range(n_steps):
        ks, state = [], (v, w)
        for ahead in (0.5, 0.5, 1.0, 0.0):
            ks.append(rates(equation, cable, *state, drive))
            state = tuple(x + ahead * dt * k for x, k in zip((v, w), ks[-1], strict=True))
        sums = [(k1 + 2 * k2 + 2 * k3 + k4) / 6 for k1, k2, k3, k4 in zip(*ks, strict=True)]
        v, w = v + dt * sums[0], w + dt * sums[1]
    return v, w


@pytest.mark.parametrize(("ends", "n_nodes"), in_turns(10, ENDS, [3, 5, 401, 8193, 20003]))
def test_steps_are_those_of_the_tableau(ends, n_nodes):
    """Whole cables and tiles, with and without a stimulus; 37 steps are two passes."""
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 0.4, 20),))
    v, w = some_state(cable)
    profile = next(cable.spans(0, 0.1, 1))[1]
    for drive in (None, profile):
        exact = by_the_book(equation, cable, v, w, 0.15, 37, 0.0 if drive is None else drive)
        for n_threads in (1, 2):
            scheme = RungeKutta(equation, cable, n_threads=n_threads)
            ours = scheme.advance(v[None], w[None], 0.15, 37, drive)
            for a, b in zip(ours, exact, strict=True):
                np.testing.assert_allclose(a[0], b, 0, 2e-14)


# --- on a device


@pytest.mark.parametrize(
    ("ends", "dtype"), [*((ends, "float64") for ends in ENDS), (ENDS[3], "float32")]
)
def test_tiles_on_the_device(device, ends, dtype):
    """Small tiles, so that the cable has many: 5 nodes a thread, 7 steps a pass."""
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(1300, 0.5, *ends, stimulus=(Pulse(0.3, 3, 20),))
    scheme = RungeKuttaCuda(equation, cable, dtype, nodes=5, warps=2, steps=7, device=device)
    assert scheme.halo == 30
    for driven in (False, True):
        assert_same(scheme, RungeKutta(equation, cable), 0.15, 38, driven=driven)


@pytest.mark.parametrize(
    ("ends", "n_nodes", "dtype"),
    in_turns(7, ENDS, [3, 33, 64, 101, 401], ["float64", "float64", "float32"]),
)
def test_whole_cables_on_the_device(device, ends, n_nodes, dtype):
    rng = np.random.default_rng(n_nodes)
    equation = Equation(a=rng.uniform(0, 0.3, 7), epsilon=rng.uniform(0, 0.1, 7))
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 0, 9),))
    scheme = RungeKuttaCuda(equation, cable, dtype, device=device)
    for driven in (False, True):
        assert_same(scheme, RungeKutta(equation, cable), 0.15, 25, 7, driven)


def test_runs_of_both_backends_agree(device):
    """With steps that end at the stimulus's edges, and of order four on the device, too."""
    cable, exact = pulsed()
    steps, errors = [0.16, 0.08, 0.04], []
    for h in steps:
        ours, theirs = (
            simulate(scheme, 0, 0, [6.1, 30], dt=h)
            for scheme in (
                RungeKuttaCuda(Equation(), cable, device=device),
                RungeKutta(Equation(), cable),
            )
        )
        np.testing.assert_allclose(ours.v, theirs.v, 0, 1e-11)
        assert ours.facts["steps"] == theirs.facts["steps"]
        errors.append(np.abs(ours.v[-1, 0] - exact).max())
    assert abs(order(steps, errors) - 4) < 0.2


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_text_compiles_without_spilling(dtype):
    """At the sizes that are shipped, and at the largest that a thread takes."""
    most = RungeKuttaCuda.most_nodes[dtype]
    for nodes, driven, whole in ((8, False, 0), (8, True, 0), (most, True, 32 * most)):
        text = explicit_text(dtype, nodes, 4, driven, whole, "Runge-Kutta")
        log = compile_with_nvrtc(text, options=("-std=c++17", "--ptxas-options=-v"))
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
        assert spilled
        assert max(spilled) == 0
