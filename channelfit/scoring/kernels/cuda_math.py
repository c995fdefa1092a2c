"""Elementary functions for float64 kernels that are bound by how many instructions they issue.

The compiler's own exp, expm1, division and rsqrt serve every argument there is; these serve the
arguments that occur, in half the instructions. Coefficients lie in constant memory, from where an
instruction takes them as an operand: written as literals, each would cost one or two moves.

Formulas that are templates over a number type call these functions by the same name for every
type: `cuda_single` has those of float32, `cuda_dual` those of values with derivatives.
"""

from __future__ import annotations

import math

import numpy as np

#: Degree of the polynomial of `expm1_coefficients`, which then has an error of 1e-15.
_DEGREE = 9


def expm1_coefficients() -> list[float]:
    """Return (exp(r) - 1)/r for |r| <= ln 2 / 2 as a polynomial, from the constant up."""
    half = np.longdouble(0.5 * math.log(2.0) * (1 + 1e-9))
    nodes = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    x = [half * np.longdouble(node) for node in nodes]
    values = [np.expm1(r) / r if r else np.longdouble(1) for r in x]
    # Newton's differences in extended precision; a linear solver would lose the last digits.
    for level in range(1, len(x)):
        for i in range(len(x) - 1, level - 1, -1):
            values[i] = (values[i] - values[i - 1]) / (x[i] - x[i - level])
    poly = [np.longdouble(0)] * len(x)
    for i in range(len(x) - 1, -1, -1):
        poly = [a - x[i] * b for a, b in zip([np.longdouble(0), *poly[:-1]], poly, strict=True)]
        poly[0] += values[i]
    return [float(value) for value in poly]


def cuda_math() -> str:
    """Return CUDA C++ of the float64 functions that every generated kernel may call."""
    coefficients = expm1_coefficients()
    chains = [
        "\n".join(f"    {name} = fma({name}, s, EXPM1[{i}]);" for i in range(top - 2, -1, -2))
        for name, top in (("even", _DEGREE - _DEGREE % 2), ("odd", _DEGREE - 1 + _DEGREE % 2))
    ]
    return _TEXT % {
        "n": len(coefficients),
        "values": ", ".join(map(repr, coefficients)),
        "last_even": _DEGREE - _DEGREE % 2,
        "last_odd": _DEGREE - 1 + _DEGREE % 2,
        "even": chains[0],
        "odd": chains[1],
    }


_TEXT = """\
// (exp(r) - 1)/r for |r| <= ln(2)/2; then log2(e) and ln(2) in two parts
__constant__ double EXPM1[%(n)d] = {%(values)s};
__constant__ double LOGS[3] = {1.4426950408889634, 6.93147180369123816490e-01,
                               1.90821492927058770002e-10};

// exp(r) - 1 on the reduced range
__device__ __forceinline__ double expm1Reduced(double r) {
    const double s = r*r;  // two chains of half the length: threads are few, latency counts
    double even = EXPM1[%(last_even)d], odd = EXPM1[%(last_odd)d];
%(even)s
%(odd)s
    return fma(odd, s, even*r);
}

// exp(x): 0 below -708, infinity where it belongs, NaN stays NaN
__device__ __forceinline__ double exponential(double x) {
    const int high = __double2hiint(x);  // no branch: it would split what runs side by side
    const int bounded = min(high & 0x7fffffff, 0x40a00000) | (high & 0x80000000);
    const double y = __hiloint2double(bounded, __double2loint(x));  // |y| <= 2048
    const double shifted = fma(y, LOGS[0], 6755399441055744.0);
    const double whole = shifted - 6755399441055744.0;
    const double p = expm1Reduced(fma(whole, -LOGS[2], fma(whole, -LOGS[1], y)));
    const int power = min(max(__double2loint(shifted), -1023), 1024);
    const double scale = __hiloint2double((power + 1023) << 20, 0);
    return x == x ? scale*(1.0 + p) : x;  // not fma: infinity less a part of it is NaN
}

// 1 - exp(-x) for x >= 0, small x without cancellation
__device__ __forceinline__ double decay(double x) {
    x = __hiloint2double(min(__double2hiint(x), 0x40500000), __double2loint(x));  // 64 is infinite
    const double shifted = fma(x, -LOGS[0], 6755399441055744.0);
    const double whole = shifted - 6755399441055744.0;
    const double p = expm1Reduced(fma(whole, -LOGS[2], fma(whole, -LOGS[1], -x)));
    const double scale = __hiloint2double((__double2loint(shifted) + 1023) << 20, 0);
    return fma(-scale, p, 1.0 - scale);
}

// (exp(x) - 1)/x, 1 at 0
__device__ __forceinline__ double exprel(double x) {
    return fabs(x) < 1e-5 ? 1.0 + x*(0.5 + x*(1.0/6.0)) : expm1(x)/x;
}

// 1/x for normal x and normal 1/x: an estimate of 20 bits, and a cubic step
__device__ __forceinline__ double reciprocal(double x) {
#ifdef __CUDACC__
    double y;
    asm("rcp.approx.ftz.f64 %%0, %%1;" : "=d"(y) : "d"(x));
    const double e = fma(-x, y, 1.0);
    return fma(y, fma(e, e, e), y);
#else
    return 1.0/x;
#endif
}

// 1/sqrt(x) for normal x > 0, likewise
__device__ __forceinline__ double rootReciprocal(double x) {
#ifdef __CUDACC__
    double y;
    asm("rsqrt.approx.ftz.f64 %%0, %%1;" : "=d"(y) : "d"(x));
    const double e = fma(-x*y, y, 1.0);
    return fma(y*e, fma(0.375, e, 0.5), y);
#else
    return 1.0/sqrt(x);
#endif
}

// The number that comparisons use: of a value with derivatives the value.
__device__ __forceinline__ double valueOf(double x) { return x; }

// The smaller and the larger of two, a where one is NaN. fmin and fmax of float64 would move NaNs
// about in six steps more.
__device__ __forceinline__ double least(double a, double b) { return b < a ? b : a; }
__device__ __forceinline__ double most(double a, double b) { return b > a ? b : a; }
__device__ __forceinline__ double notNegative(double x) { return x > 0.0 ? x : 0.0; }

// A rate within its bounds, the lower one for NaN.
__device__ __forceinline__ double between(double x, double lower, double upper) {
    const double y = x > lower ? x : lower;
    return y < upper ? y : upper;
}"""
