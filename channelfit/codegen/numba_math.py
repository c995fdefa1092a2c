"""Elementary functions that LLVM can run on several candidates at once.

A call into the C library stops the vectorizer, so the functions that rates are made of are written
out here as straight-line arithmetic. Accuracy: 1 ulp (exp), 3 ulp (exprel, tanh).
"""

from __future__ import annotations

from math import factorial, floor
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts, so that n * high is exact
_LN2_LOW = 1.90821492927058770002e-10
_EXP = tuple(1.0 / factorial(k) for k in range(14))
_EXPREL = tuple(1.0 / factorial(k + 1) for k in range(14))
_OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract"}}


@intrinsic
def _power_of_two(typingctx: Any, exponent: Any) -> Any:
    """2**n for a whole double -1022 <= n <= 1023, put together from its bits."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        n = builder.fptosi(args[0], word)
        bits = builder.shl(builder.add(n, word(1023)), word(52))
        return builder.bitcast(bits, ir.DoubleType())

    return types.float64(types.float64), build


@njit(**_OPTIONS)
def exp(x):  # type: ignore[no-untyped-def]
    """e**x: 0 below -708, inf above 709.7, NaN stays NaN (Cody and Waite's reduction)."""
    y = min(max(x, -708.0), 709.0)
    n = floor(y * _LOG2E + 0.5)
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = _EXP[13]
    p = p * r + _EXP[12]
    p = p * r + _EXP[11]
    p = p * r + _EXP[10]
    p = p * r + _EXP[9]
    p = p * r + _EXP[8]
    p = p * r + _EXP[7]
    p = p * r + _EXP[6]
    p = p * r + _EXP[5]
    p = p * r + _EXP[4]
    p = p * r + _EXP[3]
    p = p * r + _EXP[2]
    p = p * r + 1.0
    p = p * r + 1.0
    e = p * _power_of_two(n)  # type: ignore[call-arg]
    e = 0.0 if x < -708.0 else e
    e = float("inf") if x > 709.0 else e
    return e if x == x else x


@njit(**_OPTIONS)
def exprel(x):  # type: ignore[no-untyped-def]
    """(e**x - 1) / x, 1 at 0: Taylor series below 0.5, where the difference would cancel."""
    p = _EXPREL[13]
    p = p * x + _EXPREL[12]
    p = p * x + _EXPREL[11]
    p = p * x + _EXPREL[10]
    p = p * x + _EXPREL[9]
    p = p * x + _EXPREL[8]
    p = p * x + _EXPREL[7]
    p = p * x + _EXPREL[6]
    p = p * x + _EXPREL[5]
    p = p * x + _EXPREL[4]
    p = p * x + _EXPREL[3]
    p = p * x + _EXPREL[2]
    p = p * x + _EXPREL[1]
    p = p * x + 1.0
    return p if abs(x) < 0.5 else (exp(x) - 1.0) / x


@njit(**_OPTIONS)
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent, from e**2x - 1 = 2x exprel(2x)."""
    y = min(max(x, -20.0), 20.0)
    rise = 2.0 * y * exprel(2.0 * y)
    t = rise / (rise + 2.0)
    return t if x == x else x
