"""The Chebyshev scheme: its polynomials, its steps, their order and control."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev as polynomials

from channelfit.fitzhugh_nagumo import Cable, Chebyshev, Equation, Pulse, simulate, wave_speed
from channelfit.fitzhugh_nagumo import chebyshev as ch
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.reading.errors import InputError
from support.cable_truth import ENDS, order, pulsed, some_state, truth


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


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 2e4))
def test_no_wave_grows(radius):
    z = -np.linspace(0, radius, 2000)
    assert np.abs(extrapolated(z)).max() <= 1 + 1e-9


def test_the_authors_damping_would_not_do():
    """What the module says of it."""
    assert np.abs(extrapolated(-np.linspace(0, 300.0, 5000), 2 / 13)).max() > 1.05


@pytest.mark.parametrize("mode", [0, 1, 40, 90, 100])
@pytest.mark.parametrize("dt", [0.05, 1.0, 7.0])
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


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("n_nodes", [3, 4, 384, 385, 2001])
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


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("n_nodes", [3, 101, 5003])
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


def test_order_in_time():
    cable = Cable(101, 0.5)
    v = np.exp(-((cable.x - 25) ** 2) / 10)
    exact = truth(Equation(), cable, v, 0 * v, 8.0)[0]
    steps = np.array([0.05, 0.025, 0.0125])  # the same stages in all of them
    errors = [
        abs(simulate(Chebyshev(Equation(), cable), v, 0, [8.0], dt=h).v[0, 0] - exact).max()
        for h in steps
    ]
    assert order(steps, errors) == pytest.approx(3, abs=0.1)


def test_controlled_steps_meet_their_tolerance():
    cable, v = pulsed()
    tolerances, errors = [1e-4, 1e-5, 1e-6, 1e-7], []
    for tolerance in tolerances:
        run = simulate(Chebyshev(Equation(), cable), 0, 0, [3, 30], tolerance=tolerance)
        errors.append(np.abs(run.v[-1, 0] - v).max())
    assert errors[-1] < 1e-6
    assert order(tolerances, errors) > 0.8
    assert run.facts["longest_step"] > 5 * run.facts["shortest_step"]


@pytest.mark.parametrize(("a", "diffusion"), [(0.01, 1.0), (0.25, 0.5)])
def test_front_keeps_its_shape_and_speed(a, diffusion):
    """On a grid where forward Euler needs ten thousand steps: dt/dx^2 up to hundreds."""
    cable, equation = Cable(2501, 0.02), Equation(a=a, epsilon=0.0, diffusion=diffusion)
    v = eq.front(cable.x, 18, diffusion)
    run = simulate(Chebyshev(equation, cable), v, 0, np.arange(0, 10.1, 0.5), tolerance=1e-6)
    speed = eq.front_speed(a, diffusion)
    assert wave_speed(run, 20, 21) == pytest.approx(speed, rel=1e-4)
    exact = eq.front(cable.x, 18 + speed * 10, diffusion)
    inner = (cable.x > 8) & (cable.x < 42)
    np.testing.assert_allclose(run.v[-1, 0][inner], exact[inner], 0, 1e-4)
    assert run.facts["steps"] < 500
    assert run.facts["mean_stages"] > 20


def test_every_cable_has_its_own_steps():
    values = {"a": np.linspace(0, 0.3, 7), "epsilon": np.geomspace(1e-3, 0.5, 7)}
    cable = Cable(101, 0.5, "no_flux", 0.2, (Pulse(0.2, 5, 9, 0, 3),))
    v = some_state(cable)[0]
    together = simulate(Chebyshev(Equation(**values), cable, 2), v, 0, [5], tolerance=1e-5)
    for k in range(7):
        one = Equation(**{name: float(row[k]) for name, row in values.items()})
        alone = simulate(Chebyshev(one, cable), v, 0, [5], tolerance=1e-5)
        np.testing.assert_array_equal(together.v[0, k], alone.v[0, 0])
        np.testing.assert_array_equal(together.w[0, k], alone.w[0, 0])


def test_long_steps_stay_bounded():
    """dt/dx^2 = 400 from a step function."""
    cable = Cable(401, 0.05)
    run = simulate(Chebyshev(Equation(), cable), eq.step(cable.x, 10), 0, [20, 40], dt=1.0)
    assert np.abs(run.v).max() < 1.5


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
