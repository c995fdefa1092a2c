"""Elementary functions that LLVM can run on several candidates at once.

A call into the C library stops the vectorizer, so the functions that rates are made of are written
out here as straight-line arithmetic. Accuracy: 1 ulp (exp), 3 ulp (exprel, tanh), and of scores by
modes 2 ulp (decay).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import factorial, sqrt
from typing import Any, TypeVar

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts, so that n * high is exact
_LN2_LOW = 1.90821492927058770002e-10
_EXP = tuple(1.0 / factorial(k) for k in range(14))
_EXPREL = tuple(1.0 / factorial(k + 1) for k in range(14))
#: The series of the slope of exprel, from the constant up.
EXPREL_SLOPE = tuple(1.0 / (factorial(k) * (k + 2)) for k in range(20))
#: The even part of x/(e**x - 1), the odd one being -x/2: a series of x**2, from the constant up.
BERNOULLI = (1.0, 1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
_BEYOND = 709.9  # a little more than the log of the largest number: 709.78
_ROUNDED = 1.5 * 2.0**52
_POSITIVE = 2**63 - 1
_ALL_BITS = 2**64 - 1
_WORD = 2**32 - 1
#: Cells to a doubling of y, of which `cell` finds the one of a number: 2**CELL_BITS.
CELL_BITS = 4
_CELL_SHIFT = 52 - CELL_BITS  # bits of a double behind those that name its cell
_FIRST_CELL = 1023 << CELL_BITS
_CELL_BITS_OF_Y = -(1 << _CELL_SHIFT)
_HALF_A_CELL = 1 << (_CELL_SHIFT - 1)
_Function = TypeVar("_Function", bound=Callable[..., Any])


# --- single instructions of machine code: see `lowering.PRIMITIVES` ---------------------------


def bits_of(x: float) -> int:
    """Return the bits of a double as a whole number."""
    return int(struct.unpack("<q", struct.pack("<d", x))[0])


def from_bits(word: int) -> float:
    """Return the double that has these bits.

    Bits beyond the lowest 64 are lost, as they are in a register.
    """
    return float(struct.unpack("<d", struct.pack("<Q", word & _ALL_BITS))[0])


def upper_product(a: int, b: int) -> int:
    """Return the upper 32 bits of the product of two numbers that are below 2**32."""
    return a * b >> 32


def lower_product(a: int, b: int) -> int:
    """Return the lower 32 bits of the product of two numbers that are below 2**32."""
    return a * b & 0xFFFFFFFF


def inline(function: _Function) -> _Function:
    """Mark a function to be written out wherever it is called."""
    return function


def apart(function: _Function) -> _Function:
    """Mark a function to be compiled once: where it is called in many places and runs long."""
    return function


#: The range of a loop between constants that is written out, turn by turn.
unrolled = range


# --- functions ------------------------------------------------------------------------------------


@inline
def exp(x: float) -> float:
    """Return e**x: 0 below -708, inf above 709.78, NaN stays NaN (Cody and Waite's reduction)."""
    y = min(max(x, -708.0), _BEYOND)
    # Adding 1.5 * 2**52 rounds to a whole number that stands in the last bits: converting it any
    # other way would need instructions that not every processor has for vectors.
    shifted = y * _LOG2E + _ROUNDED
    n = shifted - _ROUNDED
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = _EXP[13]
    for k in unrolled(12, -1, -1):
        p = p * r + _EXP[k]
    half = from_bits((bits_of(shifted) + 1022) << 52)  # 2**1024 itself is no number
    return 0.0 if x < -708.0 else p * half * 2.0


@inline
def exprel(x: float) -> float:
    """Return (e**x - 1) / x, 1 at 0: Taylor series below 0.5, where the difference cancels."""
    p = _EXPREL[13]
    for k in unrolled(12, -1, -1):
        p = p * x + _EXPREL[k]
    return p if abs(x) < 0.5 else (exp(x) - 1.0) / x


@inline
def exprel_slope(x: float) -> float:
    """Return d exprel/dx, 1/2 at 0: by its series where the closed form would cancel."""
    p = EXPREL_SLOPE[19]
    for k in unrolled(18, -1, -1):
        p = p * x + EXPREL_SLOPE[k]
    # e**x overflows late, e**x/x does not for the x that rates see; 1/x/x never does
    return p if abs(x) < 1.0 else (1.0 - 1.0 / x) * (exp(x) / x) + 1.0 / x / x


@inline
def bernoulli(x: float) -> float:
    """Return x/(e**x - 1), 1 at 0, the inverse of exprel: by its series where it would cancel."""
    u = x * x
    p = BERNOULLI[6]
    for k in unrolled(5, -1, -1):
        p = p * u + BERNOULLI[k]
    away = min(x, 700.0) if abs(x) >= 0.5 else 1.0
    return p - 0.5 * x if abs(x) < 0.5 else x * (1.0 / (exp(away) - 1.0))


@inline
def bernoulli_slope(x: float) -> float:
    """Return d bernoulli/dx, -1/2 at 0."""
    u = x * x
    p = 12.0 * BERNOULLI[6]
    for k in unrolled(5, 0, -1):
        p = p * u + 2.0 * k * BERNOULLI[k]
    away = min(x, 700.0) if abs(x) >= 0.5 else 1.0
    per = 1.0 / (exp(away) - 1.0)
    return x * p - 0.5 if abs(x) < 0.5 else per * (1.0 - x * (1.0 + per))


@inline
def tanh(x: float) -> float:
    """Return the hyperbolic tangent, from e**2x - 1 = 2x exprel(2x)."""
    y = min(max(x, -20.0), 20.0)
    rise = 2.0 * y * exprel(2.0 * y)
    t = rise / (rise + 2.0)
    return t if x == x else x


@inline
def decay(x: float) -> float:
    """Return 1 - e**-x for x >= 0 to 2 ulp, small x without cancellation; from 64 on it is 1."""
    y = min(x, 64.0)
    shifted = _ROUNDED - y * _LOG2E
    n = shifted - _ROUNDED
    r = (-y - n * _LN2_HIGH) - n * _LN2_LOW
    p = _EXPREL[12]
    for k in unrolled(11, -1, -1):
        p = p * r + _EXPREL[k]
    scale = from_bits((bits_of(shifted) + 1023) << 52)
    return (1.0 - scale) - scale * (p * r)


@inline
def reciprocal(x: float) -> float:
    """Return 1/x."""
    return 1.0 / x


@inline
def rootReciprocal(x: float) -> float:
    """Return 1/sqrt(x)."""
    return 1.0 / sqrt(x)


@inline
def cellOf(y: float, last: int) -> int:
    """Return the cell of y = 1 + l n h >= 1, by its leading bits; see `exponential_tables`."""
    cell = ((bits_of(y) & _POSITIVE) >> _CELL_SHIFT) - _FIRST_CELL
    return min(max(cell, 0), last)


@inline
def offsetInCell(y: float) -> float:
    """Return how far y lies from the middle of its cell."""
    return y - from_bits((bits_of(y) & _CELL_BITS_OF_Y) | _HALF_A_CELL)


@inline
def philox(x0: int, x1: int, x2: int, x3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Return four random words of 32 bits for a counter x and a key k; see `search.philox`."""
    for _ in range(10):
        high0, low0 = upper_product(3528531795, x0), lower_product(3528531795, x0)
        high2, low2 = upper_product(3449720151, x2), lower_product(3449720151, x2)
        x0, x1, x2, x3 = high2 ^ x1 ^ k0, low2, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + 2654435769) & _WORD, (k1 + 3144134277) & _WORD
    return x0, x1, x2, x3
