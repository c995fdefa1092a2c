"""Stimuli arrive: where and when they act, with their whole charge, in every scheme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Explicit,
    Pulse,
    simulate,
)
from channelfit.fitzhugh_nagumo.control import pulse_edges
from channelfit.fitzhugh_nagumo.cuda.adaptive import AdaptiveCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda
from channelfit.reading.errors import InputError
from support.cable_truth import order, truth
from support.truths import in_turns

SCHEMES = {
    "explicit": lambda e, c, d: Explicit(e, c),
    "adaptive": lambda e, c, d: Adaptive(e, c),
    "Chebyshev": lambda e, c, d: Chebyshev(e, c),
    "lanes": lambda e, c, d: CrankNicolson(e, c),
    "thomas": lambda e, c, d: CrankNicolson(e, c, "thomas"),
    "explicit, CUDA": lambda e, c, d: ExplicitCuda(e, c, device=d),
    "Crank-Nicolson, CUDA": lambda e, c, d: CrankNicolsonCuda(e, c, device=d),
    "parts, CUDA": lambda e, c, d: CrankNicolsonCuda(e, c, solver="parts", device=d),
    "adaptive, CUDA": lambda e, c, d: AdaptiveCuda(e, c, device=d),
}
#: Adaptive grids on which nothing is left away.
EXACT_GRIDS = {
    "adaptive": lambda e, c, d: Adaptive(e, c, tolerance=1e-300),
    "adaptive, CUDA": lambda e, c, d: AdaptiveCuda(e, c, tolerance=1e-20, device=d),
}


# --- where and when


@pytest.mark.parametrize(
    ("place", "monitor"),
    in_turns(3, [(101, 103), (0, 2), (77.3, 77.4)], ["curvature", "indicators"]),
)
def test_a_resting_grid_has_nodes_where_a_stimulus_begins(device, monitor, place):
    """Long after the grid has coarsened; the uniform grid is the truth."""
    cable = Cable(stimulus=(Pulse(2.0 / min(1, place[1] - place[0]), *place, 20, 25),))
    times = np.arange(0, 41.0)
    uniform = simulate(Explicit(Equation(), cable), 0, 0, times, dt=0.1).v
    assert uniform.max() > 1
    runs = [
        simulate(scheme, 0, 0, times, dt=0.1)
        for scheme in (
            Adaptive(Equation(), cable, monitor),
            AdaptiveCuda(Equation(), cable, monitor, device=device),
        )
    ]
    for run in runs:
        bound = 1e-4 if monitor == "curvature" else 0.05
        np.testing.assert_allclose(run.v, uniform, 0, bound)
        assert run.facts["mean_nodes"] < 401 / 2
    assert runs[0].facts["mean_nodes"] == runs[1].facts["mean_nodes"]
    np.testing.assert_allclose(runs[1].v, runs[0].v, 0, 1e-12)


@pytest.mark.parametrize("make", [Adaptive, Explicit, CrankNicolson, Chebyshev])
def test_no_step_passes_over_an_edge_in_time(make):
    """Edges between frames and between steps; every stretch without one gets equal steps."""
    cable = Cable(101, stimulus=(Pulse(0.5, 20, 30, 0.333, 1.271, 3.1),))
    reached, stimulated = [0.0], []

    class Watched(make):
        def advance(self, v, w, dt, n_steps, drive=None):
            reached.append(reached[-1] + dt * n_steps)
            stimulated.append(0.0 if drive is None else drive.max())
            return super().advance(v, w, dt, n_steps, drive)

    simulate(Watched(Equation(), cable), 0, 0, [2, 8], dt=0.1)
    for edge in pulse_edges(cable, 0, 8):
        assert np.abs(np.array(reached) - edge).min() < 1e-9
    assert set(np.round(stimulated, 12)) == {0.0, 0.5}


def test_pulses_denser_than_steps_act_by_their_mean():
    cable = Cable(101, stimulus=(Pulse(0.2, 20, 30, 0, 0.0005, 0.001),))
    mean = Cable(101, stimulus=(Pulse(0.1, 20, 30),))
    runs = [simulate(Explicit(Equation(), c), 0, 0, [5], dt=0.1) for c in (cable, mean)]
    assert runs[0].facts["steps"] == 50
    np.testing.assert_allclose(runs[0].v, runs[1].v, 0, 1e-12)
    with pytest.raises(InputError, match="one by one"):
        pulse_edges(Cable(stimulus=(Pulse(1, start=0, end=1e-9, period=1e-9),)), 0, 5)


# --- how much


@settings(max_examples=60)
@given(
    st.integers(3, 60), st.floats(0.01, 3), st.floats(-9, 40), st.floats(1e-3, 90), st.floats(-5, 5)
)
def test_the_charge_is_exact_wherever_the_edges_fall(n, dx, begin, width, start):
    """Of the part that lies on the cable; around a ring all of it counts, but no place twice."""
    last = start + dx * (n - 1)
    low, high = max(begin, start), min(begin + width, last)
    pulse = Pulse(1.0, begin, begin + width)
    if high > low:
        cable = Cable(n, dx, stimulus=(pulse,), x_start=start)
        shares = cable.shares(pulse)
        assert np.sum(shares * cable.cells) == pytest.approx(high - low, abs=1e-11)
        assert np.sum(shares * cable.cells * cable.x) == pytest.approx(
            (high**2 - low**2) / 2, abs=1e-9
        )
        assert shares.min() >= 0
    ring = Cable(n, dx, "periodic", "periodic", x_start=start)
    shares = ring.shares(pulse)
    assert np.sum(shares * ring.cells) == pytest.approx(min(width, n * dx), abs=1e-10)
    assert shares.max() < 1 + 1e-12


@pytest.mark.parametrize(("name", "place"), in_turns(9, [*SCHEMES], [(0, 5), (17, 25), (3.3, 3.4)]))
def test_every_scheme_delivers_the_charge(device, name, place):
    """Of a stimulus so weak that nothing but diffusion acts on it, and diffusion conserves."""
    ends = ("periodic", "periodic")
    for kinds in [("no_flux", "no_flux")] + ([] if "adaptive" in name else [ends]):
        cable = Cable(41, 0.5, *kinds, stimulus=(Pulse(1e-12, *place, 1, 3.5),))
        scheme = SCHEMES[name](Equation(a=0.0, epsilon=0.0), cable, device)
        v = simulate(scheme, 0, 0, [10], dt=0.1).v[0, 0]
        end = place[1] if cable.periodic else min(place[1], 20)
        bound = 1e-4 if "adaptive" in name else 1e-9  # what is no node is interpolated
        assert np.sum(v * cable.cells) == pytest.approx(2.5e-12 * (end - place[0]), rel=bound)


@pytest.mark.parametrize(
    ("name", "place"), in_turns(9, [*SCHEMES], [(0, 5), (15, 20), (-3, 4.1), (7.1, 9.63)])
)
def test_order_in_space_under_a_stimulus(device, name, place):
    """At an end, past one, and with edges between nodes; the same steps on every grid."""
    length, t = 20.0, 0.5 if "CUDA" in name else 2.0

    def solved(n):
        cable = Cable(n + 1, length / n, stimulus=(Pulse(0.5, *place),))
        make = {**SCHEMES, **EXACT_GRIDS}[name]
        scheme = make(Equation(), cable, device)
        euler = scheme.name in ("explicit", "adaptive")
        return simulate(scheme, 0, 0, [t], dt=2e-3 if euler else 0.02).v[0, 0]

    fine = solved(256)
    intervals = [16, 32, 64]
    errors = [np.sqrt(np.mean((solved(n) - fine[:: 256 // n]) ** 2)) for n in intervals]
    # the finest is no more than its own error away from the limit, which raises the slope a little
    errors = [e * 1 / (1 - (n / 256) ** 2) for e, n in zip(errors, intervals, strict=True)]
    assert abs(order(1 / np.array(intervals), errors) - 2) < 0.2


def test_a_stimulus_at_an_end_against_scipy():
    """Written down once more: half a cell at the end, half of the stimulus at its edge."""
    cable = Cable(161, 0.125, stimulus=(Pulse(0.5, 0, 5, 1, 4),))
    drive = np.where(cable.x < 5, 0.5, 0.0)
    drive[40] = 0.25
    v = w = np.zeros(161)
    for length, push in ((3, drive), (4, 0.0)):
        v, w = truth(Equation(), cable, v, w, length, push)
    for make in (CrankNicolson, Chebyshev):
        run = simulate(make(Equation(), cable), 0, 0, [8], tolerance=1e-9)
        np.testing.assert_allclose(run.v[0, 0], v, 0, 2e-6)
