"""Crank-Nicolson and Chebyshev against the same cable in NEURON, grids refined on both sides."""

import numpy as np
import pytest
from fhn_neuron import MECHANISM, fitzhugh_nagumo_cable
from scipy.interpolate import CubicSpline

from channelfit.fitzhugh_nagumo import (
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Pulse,
    Run,
    arrival_times,
    simulate,
)
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism

pytestmark = pytest.mark.integration


LENGTH, TIMES = 60.0, np.arange(0, 70.5, 0.5)


@pytest.fixture(scope="module")
def neuron():
    try:
        return compile_mechanism(MECHANISM)
    except NeuronUnavailable as error:
        pytest.skip(str(error))


def both(n_segments, case, scheme):
    """The cable in NEURON and here, both at the middles of NEURON's segments."""
    middles = (np.arange(n_segments) + 0.5) * LENGTH / n_segments
    equation = Equation(0.05, 2.0, 0.01, 1.3)
    pulse, held = Pulse(0.2, 10, 25), 1.0 if case == "held" else None
    cable = Cable(
        2 * n_segments + 1,
        LENGTH / n_segments / 2,
        "no_flux" if held is None else held,
        stimulus=(pulse,) if case == "stimulus" else (),
    )
    start = (lambda x: eq.gaussian(x, 20)) if case == "impulse" else eq.rest
    edges = np.clip([middles - LENGTH / n_segments / 2, middles + LENGTH / n_segments / 2], 10, 25)
    drive = 0.2 * np.diff(edges, axis=0)[0] * n_segments / LENGTH if case == "stimulus" else 0.0
    v, _ = fitzhugh_nagumo_cable(
        start(middles), 0 * middles, TIMES, LENGTH, (0.05, 2.0, 0.01, 1.3), drive, held
    )
    control = {"dt": 0.02} if scheme is CrankNicolson else {"tolerance": 1e-5}
    run = simulate(scheme(equation, cable), start(cable.x), 0, TIMES, **control)
    ours = CubicSpline(run.x, run.v[:, 0], axis=1)(middles)
    arrived = [arrival_times(Run(middles, TIMES, a[:, None], a[:, None])) for a in (ours, v)]
    return ours, v, arrived


@pytest.mark.parametrize("scheme", [CrankNicolson, Chebyshev])
@pytest.mark.parametrize("case", ["impulse", "held", "stimulus"])
def test_neuron_and_we_meet_as_the_grids_are_refined(neuron, case, scheme):
    apart = []
    for n_segments in (120, 240, 480):
        ours, v, arrived = both(n_segments, case, scheme)
        apart.append(np.abs(ours - v)[1:].max() / np.ptp(v))
    assert apart[0] > 2.5 * apart[1] > 6 * apart[2]
    assert apart[2] < 1e-3
    late = np.arange(2 * n_segments // 4, 2 * n_segments // 3)
    assert np.isfinite(arrived[1][late]).all()
    np.testing.assert_allclose(arrived[0][late], arrived[1][late], 1e-3)
