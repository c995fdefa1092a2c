"""The numbers and functions of `integration`, against closed formulas and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gamma, gammainc

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR
from channelfit.scoring.kernels.fast_rates import DEEP
from channelfit.scoring.kernels.integration import (
    LESS,
    MORE,
    TAYLOR,
    TAYLOR_NORM,
    bounded,
    moments,
    relaxations,
    slopes_by_speeds,
    within,
)

SPEEDS = st.floats(1e-6, 1e6)


@given(st.floats(1e-12, 700.0))
def test_moments_are_incomplete_gamma_functions(whole):
    exact = [gamma(k + 1) * gammainc(k + 1, whole) for k in range(3)]
    assert moments(whole, math.exp(-whole)) == pytest.approx(exact, rel=1e-13)


@given(SPEEDS, SPEEDS, SPEEDS, st.floats(1e-3, 10.0))
def test_relaxations_integrate_the_parabola_through_three_speeds(s0, s1, s2, h):
    parabola = np.polynomial.Polynomial.fit([0.0, 0.5, 1.0], [s0, s1, s2], 2).integ()
    whole, half = relaxations(s0, s1, s2, h)
    size = h * (s0 + s1 + s2)
    assert whole == pytest.approx(h * (parabola(1.0) - parabola(0.0)), abs=1e-12 * size)
    assert half == pytest.approx(h * (parabola(1.0) - parabola(0.5)), abs=1e-12 * size)
    for k, slope in enumerate(slopes_by_speeds(2.0, -0.7, h)):  # of what is linear
        whole, half = relaxations(*(float(k == j) for j in range(3)), h)
        assert slope == pytest.approx(2.0 * whole - 0.7 * half, rel=1e-14, abs=1e-14)


def test_numbers_of_the_integrators():
    """Where relaxation ends, Magnus' of order four, Taylor's within its norm, bounds of rates."""
    assert relaxations(RATE_CEILING, RATE_CEILING, RATE_CEILING, 1.0)[0] == DEEP
    assert math.isfinite(DEEP**3)
    for half, kept in ((-1.0, 0.1), (0.5, 0.5), (9.0, 1.9)):  # both halves of a step relax
        assert within(2.0, half) == pytest.approx(kept)
    assert math.isclose(MORE + LESS, 0.5, rel_tol=1e-15)
    assert math.isclose(MORE - LESS, 1.0 / math.sqrt(3.0), rel_tol=1e-15)
    for x in (-TAYLOR_NORM, 0.1, TAYLOR_NORM):
        assert np.polynomial.Polynomial(TAYLOR)(x) == pytest.approx(math.exp(x), rel=3e-16)
    for rate, least, kept in (
        (3.0, RATE_FLOOR, 3.0),
        (0.0, RATE_FLOOR, RATE_FLOOR),
        (math.inf, RATE_FLOOR, RATE_CEILING),
        (-3.0, -RATE_CEILING, -3.0),
        (math.nan, RATE_FLOOR, RATE_FLOOR),
    ):
        assert bounded(rate, least) == kept
