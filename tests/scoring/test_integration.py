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


def test_their_derivatives_are_those_of_what_is_linear():
    h, by_whole, by_half = 0.3, 2.0, -0.7
    for k, slope in enumerate(slopes_by_speeds(by_whole, by_half, h)):
        whole, half = relaxations(*(float(k == j) for j in range(3)), h)
        assert slope == pytest.approx(by_whole * whole + by_half * half, rel=1e-14)


def test_relaxations_end_where_more_make_no_difference():
    assert relaxations(RATE_CEILING, RATE_CEILING, RATE_CEILING, 1.0)[0] == DEEP
    assert math.isfinite(DEEP**3)


@pytest.mark.parametrize(("half", "kept"), [(-1.0, 0.1), (0.5, 0.5), (9.0, 1.9)])
def test_both_halves_of_a_step_relax(half, kept):
    assert within(2.0, half) == pytest.approx(kept)


def test_the_exponentials_of_magnus_share_a_step_and_are_of_order_four():
    assert math.isclose(MORE + LESS, 0.5, rel_tol=1e-15)
    assert math.isclose(MORE - LESS, 1.0 / math.sqrt(3.0), rel_tol=1e-15)


def test_taylors_polynomial_is_exact_within_its_norm():
    for x in (-TAYLOR_NORM, 0.1, TAYLOR_NORM):
        assert np.polynomial.Polynomial(TAYLOR)(x) == pytest.approx(math.exp(x), rel=3e-16)


@pytest.mark.parametrize(
    ("rate", "least", "kept"),
    [
        (3.0, RATE_FLOOR, 3.0),
        (0.0, RATE_FLOOR, RATE_FLOOR),
        (math.inf, RATE_FLOOR, RATE_CEILING),
        (-3.0, -RATE_CEILING, -3.0),
        (math.nan, RATE_FLOOR, RATE_FLOOR),
    ],
)
def test_rates_are_bounded(rate, least, kept):
    assert bounded(rate, least) == kept
