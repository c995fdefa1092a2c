"""The Chebyshev scheme: its polynomials and its steps."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev as polynomials

from channelfit.fitzhugh_nagumo import Cable, Chebyshev, Equation, Pulse, simulate
from channelfit.fitzhugh_nagumo import chebyshev as ch
from channelfit.reading.errors import InputError
from support.cable_truth import ENDS, some_state, truth
from support.truths import in_turns


def closed_form(z, s, damping):
    """The stability polynomial a + b T_s(w0 + w1 z), of order two at z = 0."""
    series = np.eye(s + 1)[s]
    w0 = 1 + damping / s**2
    t, d, dd = (
        polynomials.chebval(w0, polynomials.chebder(series, k) if k else series) for k in (0, 1, 2)
    )
    b = dd / d**2
    return 1 - b * t + b * polynomials.chebval(w0 + d / dd * z, series)


def extrapolated(z, damping=0.5):
    """The factor that a whole step gives to a wave that decays by z, with the scheme's stages."""
    s = ch.stages_for(1.0, -z.min())
    return (4 * closed_form(z / 2, s, damping) ** 2 - closed_form(z, s, damping)) / 3


@settings(max_examples=20)
@given(st.floats(0.01, 2e4))
def test_no_wave_grows(radius):
    z = -np.linspace(0, radius, 2000)
    assert np.abs(extrapolated(z)).max() <= 1 + 1e-9


@pytest.mark.parametrize(("mode", "dt"), in_turns(7, [0, 1, 40, 90, 100], [0.05, 1.0, 7.0]))
def test_a_wave_decays_by_the_closed_form(mode, dt):
    """Cosines are what a cable without flux at its ends decays in, where v is small."""
    cable, equation = Cable(101, 0.1), Equation(a=0.3, epsilon=0.0)
    wave = np.cos(np.pi * mode * np.arange(101) / 100)
    rate = -4 / 0.01 * math.sin(np.pi * mode / 200) ** 2 - 0.3
    v = (1e-9 * wave)[None]
    found = Chebyshev(equation, cable).advance(v, 0 * v, dt, 1)[0] * 1e9
    # The stages follow the state's spectral radius, here of the wave that decays fastest.
    radius = ch._radius(v[0], np.empty(101), np.array([0.3, 2.0, 0.0, 100.0]))
    s, z = ch.stages_for(dt, radius), np.array(rate * dt)
    factor = 4 * closed_form(z / 2, s, 0.5) ** 2 - closed_form(z, s, 0.5)
    np.testing.assert_allclose(found[0], factor / 3 * wave, 0, 2e-8)


@pytest.mark.parametrize(("ends", "n_nodes"), in_turns(8, ENDS, [3, 4, 384, 385, 2001]))
def test_tiles_change_nothing(monkeypatch, ends, n_nodes):
    cable = Cable(n_nodes, 0.2, *ends, stimulus=(Pulse(0.3, 0.4, 20),))
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    v, w = (a[None] for a in some_state(cable))
    drive = next(cable.spans(0, 0.1, 1))[1]
    results = []
    for whole in (10_000, 2):
        monkeypatch.setattr(ch, "_LONGEST_WHOLE", whole)
        scheme = Chebyshev(equation, cable, n_threads=2)
        results.append(scheme.span(v, w, np.array([0.01]), 2.0, 1e-5, drive))
        results.append(scheme.advance(v, w, 0.7, 3, drive))
    for a, b in zip(results[0] + results[1], results[2] + results[3], strict=True):
        np.testing.assert_allclose(a, b, 1e-9, 1e-12)


@pytest.mark.parametrize(("ends", "n_nodes"), in_turns(4, ENDS, [3, 101, 2003]))
def test_steps_lead_to_the_truth(ends, n_nodes):
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 0.4, 20),))
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    v, w = some_state(cable)
    drive = next(cable.spans(0, 0.1, 1))[1]
    exact = truth(equation, cable, v, w, 3.0, drive)
    run = simulate(Chebyshev(equation, cable, 2), v, w, [1.1, 3.0], tolerance=1e-8)
    np.testing.assert_allclose(run.v[-1, 0], exact[0], 0, 2e-8)
    np.testing.assert_allclose(run.w[-1, 0], exact[1], 0, 2e-8)


def test_recovery_goes_through_more_than_two_stages():
    """With two stages the first is a whole step; where w hardly moves, more are not seen."""
    cable, equation = Cable(51, 0.2), Equation(epsilon=0.5)
    v = np.exp(-((cable.x - 5) ** 2) / 4)
    exact = truth(equation, cable, v, 0 * v, 2.0)
    run = simulate(Chebyshev(equation, cable), v, 0, [2.0], dt=0.1)
    assert run.facts["mean_stages"] > 2.5
    np.testing.assert_allclose([run.v[0, 0], run.w[0, 0]], exact, 0, 2e-5)


def test_what_cannot_be_solved_is_said():
    cable = Cable(101, 0.5)
    with pytest.raises(InputError, match=r"no step is short enough for a tolerance of 1e-20"):
        simulate(Chebyshev(Equation(), cable), 0.5 + 0.1 * np.sin(cable.x), 0, [1], tolerance=1e-20)
    with pytest.raises(InputError, match="no step is short enough"):
        simulate(Chebyshev(Equation(), cable), np.full(101, 1e200), 0, [1], tolerance=1e-3)
    with pytest.raises(InputError, match="largest allowed"):
        simulate(Chebyshev(Equation(), cable), 0, 0, [1e6], dt=1e5)
    with pytest.raises(InputError, match="tolerance must be positive"):
        simulate(Chebyshev(Equation(), cable), 0, 0, [1], tolerance=-1)
