"""The adaptive grid."""

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, Equation, Explicit, Pulse, simulate
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.adaptive import Adaptive
from channelfit.fitzhugh_nagumo.cuda.adaptive import AdaptiveCuda
from support.cable_truth import ENDS
from support.truths import in_turns


@pytest.mark.parametrize("ends", ENDS[:3])
def test_a_tolerance_of_nothing_is_the_uniform_grid(ends):
    cable = Cable(301, 0.5, *ends, stimulus=(Pulse(0.2, 5, 20, 1, 3),))
    v = eq.gaussian(cable.x, 60)
    ours = simulate(Adaptive(Equation(), cable, tolerance=1e-300), v, 0, [4, 10], dt=0.1)
    uniform = simulate(Explicit(Equation(), cable), v, 0, [4, 10], dt=0.1)
    np.testing.assert_allclose(ours.v, uniform.v, 0, 1e-13)
    assert ours.facts["mean_nodes"] == 301


def test_curvature_needs_fewer_nodes_for_the_same_wave():
    """The error that the grid adds is far below the uniform grid's own."""
    cable = Cable(801, 0.25)
    v = eq.gaussian(cable.x, 100)
    dense = Cable(3201, 0.0625)
    fine = simulate(Explicit(Equation(), dense), eq.gaussian(dense.x, 100), 0, [60], dt=0.0018)
    fine = fine.v[0, 0][::4]
    uniform = simulate(Explicit(Equation(), cable), v, 0, [60], dt=0.025).v[0, 0]
    run = simulate(Adaptive(Equation(), cable), v, 0, [60], dt=0.025)
    assert run.facts["mean_nodes"] < 801 / 2
    assert np.abs(run.v[0, 0] - uniform).max() < 0.1 * np.abs(uniform - fine).max()
    published = simulate(Adaptive(Equation(), cable, "indicators"), v, 0, [60], dt=0.025)
    assert published.facts["mean_nodes"] < 801 / 2
    assert np.abs(published.v[0, 0] - uniform).max() < 0.2


@pytest.mark.parametrize(("ends", "monitor"), in_turns(4, ENDS[:3], ["curvature", "indicators"]))
def test_adaptive_on_the_device(device, monitor, ends):
    """The same grids, the same values, for cables that differ."""
    equation = Equation(a=np.array([0.01, 0.1, 0.2]), epsilon=np.array([0.01, 0.02, 0.005]))
    cable = Cable(301, 0.5, *ends, stimulus=(Pulse(0.3, 5, 20, 0.5, 3),))
    v = eq.gaussian(cable.x, 60)
    runs = [
        simulate(scheme, v, 0, [4, 15], dt=0.1)
        for scheme in (
            AdaptiveCuda(equation, cable, monitor, threads=64, device=device),
            Adaptive(equation, cable, monitor),
        )
    ]
    assert runs[0].facts["mean_nodes"] == runs[1].facts["mean_nodes"]
    np.testing.assert_allclose(runs[0].v, runs[1].v, 0, 1e-12)
    np.testing.assert_allclose(runs[0].w, runs[1].w, 0, 1e-12)
