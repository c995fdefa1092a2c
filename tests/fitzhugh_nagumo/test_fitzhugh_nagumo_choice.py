"""`--scheme auto`: which scheme it takes, and whether the error asked for is met."""

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, Chebyshev, CrankNicolson, Equation, RungeKutta, choice
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.explicit import RungeKuttaCuda
from channelfit.reading.errors import InputError
from support.cable_truth import pulsed, truth


def schemes(cable, equation=None):
    equation = equation or Equation()
    return [make(equation, cable) for make in (RungeKutta, Chebyshev, CrankNicolson)]


@pytest.mark.parametrize(
    ("dx", "error", "stiff"),
    [
        (1.0, 1e-3, False),
        (1.0, 1e-9, False),
        (0.5, 1e-7, False),
        (0.1, 1e-3, True),
        pytest.param(0.05, 1e-5, True, marks=pytest.mark.slow),
    ],
)
def test_the_error_is_met_by_a_scheme_that_suits_the_spacing(dx, error, stiff):
    """Against an eighth-order method to 1e-12, on a cable of 40 that an impulse crosses."""
    cable = Cable(round(40 / dx) + 1, dx)
    v = eq.gaussian(cable.x, 12)
    found = choice.solve(schemes(cable), v, 0, [5.0, 20.0], error)
    assert (found.facts["scheme"] != "Runge-Kutta") == stiff
    exact = truth(Equation(), cable, v, 0 * v, 20.0)
    apart = max(np.abs(found.v[-1, 0] - exact[0]).max(), np.abs(found.w[-1, 0] - exact[1]).max())
    assert apart <= found.facts["error_in_time"] <= error
    seconds = [way["estimated_seconds"] for way in found.facts["choice"]]
    assert seconds == sorted(seconds)
    assert found.facts["choice"][0]["scheme"] == found.facts["scheme"]
    assert len(seconds) == 3


@pytest.mark.parametrize("make", [RungeKutta, Chebyshev, CrankNicolson])
def test_every_scheme_meets_the_error_when_it_is_the_only_one(make, monkeypatch):
    """With a stimulus that begins and ends between frames."""
    for name in {"RungeKutta", "Chebyshev", "CrankNicolson"} - {make.__name__}:
        dear = choice.COSTS[name]
        monkeypatch.setitem(
            choice.COSTS,
            name,
            choice.StepCost(dear.key, dear.order, dear.power, dear.apart, 1e9, 1e9),
        )
    cable, exact = pulsed()
    for error in (1e-3, 1e-5):
        found = choice.solve(schemes(cable), 0, 0, [6.1, 30], error)
        assert found.facts["scheme"] == make.name
        assert np.abs(found.v[-1, 0] - exact).max() <= found.facts["error_in_time"] <= error


def test_frames_closer_than_the_longest_step_do_not_hide_the_error():
    """Every step of 0.05 would be the same whatever is asked; the runs must differ all the same."""
    cable = Cable(41, 1.0)
    v = eq.gaussian(cable.x, 12)
    found = choice.solve(schemes(cable), v, 0, np.arange(1, 101) * 0.05, 1e-9)
    exact = truth(Equation(), cable, v, 0 * v, 5.0)[0]
    assert 0 < np.abs(found.v[-1, 0] - exact).max() <= found.facts["error_in_time"] <= 1e-9


def test_the_error_is_that_of_the_worst_cable():
    equation = Equation(a=np.array([0.01, 0.1]), epsilon=np.array([0.01, 0.05]))
    cable = Cable(81, 0.5)
    v = eq.gaussian(cable.x, 12)
    found = choice.solve(schemes(cable, equation), v, 0, [20.0], 1e-5)
    for k in range(2):
        one = Equation(a=equation.a[k], epsilon=equation.epsilon[k])
        exact = truth(one, cable, v, 0 * v, 20.0)[0]
        assert np.abs(found.v[-1, k] - exact).max() <= 1e-5


def test_it_chooses_on_a_device_as_well(device):
    for dx, name in ((0.5, "Runge-Kutta"), (0.01, "Crank-Nicolson")):
        cable = Cable(101, dx)
        v = eq.gaussian(cable.x, cable.x[-1] / 2)
        pair = [
            make(Equation(), cable, device=device) for make in (RungeKuttaCuda, CrankNicolsonCuda)
        ]
        found = choice.solve(pair, v, 0, [0.5], 1e-3)
        assert found.facts["scheme"] == name
        exact = truth(Equation(), cable, v, 0 * v, 0.5)[0]
        assert np.abs(found.v[-1, 0] - exact).max() <= 1e-3


@pytest.mark.parametrize(
    ("error", "word"), [(0.0, "positive"), (np.nan, "positive"), (1e-15, "rounding")]
)
def test_an_error_that_cannot_be_met_is_refused(error, word):
    cable = Cable(41, 1.0)
    with pytest.raises(InputError, match=word):
        choice.solve(schemes(cable), eq.gaussian(cable.x, 12), 0, [20.0], error)
