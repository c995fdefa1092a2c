"""Logarithms, powers and Poisson's likelihood as arithmetic that LLVM runs in vectors."""

from __future__ import annotations

from channelfit.scoring.machine.kernel_math import bits_of, exp, from_bits, inline

_SQRT_2 = 1.4142135623730951
_LN2 = 0.6931471805599453
_MANTISSA = 2**52 - 1
_ONE = 1023 << 52
_MAGIC = 0x4330000000000000  # 2**52, whose last bits are a whole number
_BIG = 4503599627370496.0 + 1023.0
_THIRD, _FIFTH, _SEVENTH, _NINTH = 1 / 3, 1 / 5, 1 / 7, 1 / 9
_ELEVENTH, _13TH, _15TH, _17TH, _19TH = 1 / 11, 1 / 13, 1 / 15, 1 / 17, 1 / 19
#: A model's expected count below this is taken for it where counts were seen: see `poissonCost`.
LEAST_COUNT = 0.01
_WALL = 1.0 / (LEAST_COUNT * LEAST_COUNT)


@inline
def log(x: float) -> float:
    """Return the natural logarithm: -inf at 0, NaN below; accuracy 2 ulp for normal numbers."""
    bits = bits_of(x)
    m = from_bits((bits & _MANTISSA) | _ONE)
    e = from_bits((bits >> 52) | _MAGIC) - _BIG
    high = m > _SQRT_2
    m = 0.5 * m if high else m
    e = e + 1.0 if high else e
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    p = _19TH
    p = p * q + _17TH
    p = p * q + _15TH
    p = p * q + _13TH
    p = p * q + _ELEVENTH
    p = p * q + _NINTH
    p = p * q + _SEVENTH
    p = p * q + _FIFTH
    p = p * q + _THIRD
    found = e * _LN2 + (2.0 * s + 2.0 * s * q * p)
    found = -float("inf") if x == 0.0 else found
    found = float("inf") if x == float("inf") else found
    return found if x >= 0.0 else (x - x) / (x - x)


@inline
def power(base: float, exponent: float) -> float:
    """Return base**exponent of a base that is not negative; 1 where the exponent is 0."""
    found = exp(exponent * log(base))
    return 1.0 if exponent == 0.0 else found


@inline
def poissonCost(z: float, f: float) -> float:
    """Return the deviance of a count z where f are expected.

    Where fewer than `LEAST_COUNT` are expected and some were seen, and where fewer than none are
    expected, it goes on as a parabola, so that a step that leads there has a finite cost and a way
    back.
    """
    safe = max(f, LEAST_COUNT)
    q = f - safe
    below = min(f, 0.0)
    share = 1.0 / safe
    ratio = z * share
    seen = z * log(ratio if z > 0.0 else 1.0)
    bend = 0.5 * ratio * share * q * q + 0.5 * _WALL * below * below
    return 2.0 * (safe - z + seen + (1.0 - ratio) * q + bend)


@inline
def poissonPull(z: float, f: float) -> float:
    """Return half the negative derivative of `poissonCost` by f."""
    safe = max(f, LEAST_COUNT)
    share = 1.0 / safe
    ratio = z * share
    return ratio - 1.0 - ratio * share * (f - safe) - _WALL * min(f, 0.0)


@inline
def poissonWeight(z: float, f: float) -> float:
    """Return half the expected second derivative of `poissonCost`, or the true one below limits."""
    share = 1.0 / max(f, LEAST_COUNT)
    bend = z * share * share if f < LEAST_COUNT else 0.0
    return share + bend + (_WALL if f < 0.0 else 0.0)
