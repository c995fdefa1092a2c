"""The integration in numbers: series, nodes, weights and bounds that all kernels of states share.

Constants are printed into generated text or imported by kernels written by hand; the functions are
called by both, and written out where they are called.
"""

from __future__ import annotations

from math import factorial, sqrt

from channelfit.model.channel import RATE_CEILING
from channelfit.scoring.kernels.fast_rates import DEEP
from channelfit.scoring.machine.kernel_math import inline, unrolled

# --- exponentials of generators -------------------------------------------------------------------

#: Coefficients of Taylor's polynomial of degree 12 ..
TAYLOR = tuple(1.0 / factorial(k) for k in range(13))
#: .. which is exact to 2e-16 where the norm is at most this.
TAYLOR_NORM = 1.0 / 3.0

# --- schemes on varying voltage -------------------------------------------------------------------

#: Commutator-free Magnus of order four (Blanes and Moan 2006): a step is two exponentials. The
#: first takes these shares of the step of the rates at the earlier and the later Gauss point, the
#: second takes them the other way around.
MORE, LESS = 0.25 + sqrt(3.0) / 6.0, 0.25 - sqrt(3.0) / 6.0
#: A step in which some state is left more often than this is taken in quarters.
STIFF = 1.0

# --- gates on varying voltage ---------------------------------------------------------------------

#: Of the integral of u^2 exp(-u) from 0 to L over L^3, a series in -L.
_MOMENT = tuple(1.0 / (factorial(k) * (k + 3)) for k in range(14))


@inline
def relaxations(s0: float, s1: float, s2: float, h: float) -> tuple[float, float]:
    """Return the relaxations of a gate in h ms, and in their later half.

    The integrals of the parabola through its speeds at start, middle and end (Simpson's rule).
    """
    return min(h / 6.0 * (s0 + 4.0 * s1 + s2), DEEP), h / 24.0 * (8.0 * s1 + 5.0 * s2 - s0)


@inline
def slopes_by_speeds(by_whole: float, by_half: float, h: float) -> tuple[float, float, float]:
    """Return derivatives by the three speeds, from those by the two results of `relaxations`."""
    return (
        h / 24.0 * (4.0 * by_whole - by_half),
        h / 24.0 * (16.0 * by_whole + 8.0 * by_half),
        h / 24.0 * (4.0 * by_whole + 5.0 * by_half),
    )


@inline
def within(whole: float, half: float) -> float:
    """Bound the relaxations in the later half by 5 and 95 % of the whole."""
    return min(max(half, 0.05 * whole), 0.95 * whole)


@inline
def moments(whole: float, left: float) -> tuple[float, float, float]:
    """Integrate exp(-u), u exp(-u) and u^2 exp(-u) from 0 to `whole`; left = exp(-whole).

    From the first up where that loses no digits, from the last (a series) down where it would.
    """
    series = _MOMENT[13]
    for k in unrolled(12, -1, -1):
        series = _MOMENT[k] - whole * series
    small = whole < 0.5
    square = whole * whole
    low2 = square * whole * series
    low1 = 0.5 * (low2 + square * left)
    low0 = low1 + whole * left
    high0 = 1.0 - left
    high1 = high0 - whole * left
    high2 = 2.0 * high1 - square * left
    return (
        low0 if small else high0,
        low1 if small else high1,
        low2 if small else high2,
    )


# --- rates and gains ------------------------------------------------------------------------------


@inline
def bounded(rate: float, least: float) -> float:
    """Return a rate within its bounds, 1/ms; NaN, which has a status, becomes the least."""
    r = rate if rate > least else least
    return r if r < RATE_CEILING else RATE_CEILING
