"""The parts of stepping through a varying voltage that float32 has for itself.

There the rates are computed at every sample, in float32 and on the special-function units of the
GPU: their exponentials are powers of two, with the base folded into the constants. Rounding
matters: a slow gate moves by less than the last bit of its occupancy in a step, so that
its step is another rule, which keeps the cut-off part.
"""

from __future__ import annotations

import math

import sympy

from channelfit.model.channel import SINGLE_CEILING
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.printer import CUDA, Dialect, ScalarPrinter, assignments, harmless
from channelfit.scoring.kernels.writers import CudaWriter

#: Rates in the functions of `SINGLE`.
_DIALECT = Dialect(
    {
        "exp": "power2",
        "log": "logf",
        "sqrt": "sqrtf",
        "Abs": "fabsf",
        "tanh": "tanhf",
        "exprel": "exprel",
    },
    CUDA.choose,
    lambda base, exponent: f"powf({base}, {exponent})",
    CUDA.words,
)


class _SinglePrinter(ScalarPrinter):
    """A printer of float32: literals end in f, exponentials are powers of two."""

    decades = 30

    def _print_Float(self, node: sympy.Float) -> str:
        return f"{float(node)!r}f"

    _print_Integer = _print_Rational = _print_NumberSymbol = _print_Float
    _print_Exp1 = _print_Pi = _print_NumberSymbol

    def _print_exp(self, node: sympy.exp) -> str:
        return f"power2({self._print(sympy.Float(math.log2(math.e)) * node.args[0])})"


def write_single_rates(w: CudaWriter, channel: CudaChannel) -> None:
    """Write createQmat in float32, for kernels that need rates at every sample.

    A NaN stays one. The sign of a negative rate ends up in `signs`; it is not bounded, nor is one
    below the floor. Float32 ends where `SINGLE_CEILING` has room for sums and products.
    """
    transitions = channel.transitions
    steps, rates = assignments(channel.model.definitions, [t.rate for t in transitions])
    printer = _SinglePrinter(_DIALECT, channel.names())
    with w.device(
        "void createQmat(const LevelOf<float> v, const float *p, float *q, int &signs)",
        "Rates of all transitions at v mV, 1/ms, in float32.",
    ):
        for name, expression in steps:
            w(f"const float {printer.names.get(name, name)} = {printer.text(expression)};")
        if transitions:
            w("float r;")
        for row, (t, rate) in enumerate(zip(transitions, rates, strict=True)):
            w(f"r = {printer.text(rate)};  // {harmless(t.source)} -> {harmless(t.target)}")
            if not t.signed:
                w("signs |= __float_as_int(r);")
            times = f"{float(t.multiplicity)!r}f*" if t.multiplicity != 1 else ""
            w(f"q[{row}] = {times}least(r, {SINGLE_CEILING!r}f);")


#: The functions of float32 by the names that the templates call, and those of its rates.
SINGLE = """
// --- float32 through the special-function units; relative errors of 2e-7 to 4e-7 -----------------

#ifdef __CUDACC__
// The smaller and the larger of two; NaN where one is.
__device__ __forceinline__ float least(float a, float b) {
    float c;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

__device__ __forceinline__ float most(float a, float b) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float approximatePower2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
static float least(float a, float b) { return a < b || isnan(a) ? a : b; }
static float most(float a, float b) { return a > b || isnan(a) ? a : b; }
static float reciprocal(float x) { return 1.0f/x; }
static float approximatePower2(float x) { return exp2f(x); }
#endif

__device__ __forceinline__ float valueOf(float x) { return x; }
__device__ __forceinline__ float notNegative(float x) { return fmaxf(x, 0.0f); }

// exp(x), which may be infinite
__device__ __forceinline__ float exponential(float x) {
    return approximatePower2(1.44269504f*x);
}

// 2^x, never infinite, so that nothing times it is a number.
__device__ __forceinline__ float power2(float x) { return approximatePower2(least(x, 126.0f)); }

__device__ __forceinline__ float exprel(float x) {
    const float series = 1.0f + x*(0.5f + x*(0.16666667f + x*(0.041666668f + x*(0.0083333338f
        + x*(0.0013888889f + x*0.00019841270f)))));
    return fabsf(x) < 0.5f ? series : (power2(1.44269504f*x) - 1.0f)*reciprocal(x);
}
"""

#: The step of gates.
SINGLE_GATE_STEP = """
constexpr float SLOW = 0.25f;  // relaxations a step below which relaxSlow is as good: 1.4e-6

// x' = up - speed x. With L the relaxations in the step and u those from the middle on,
//     x <- x exp(-L) + h/6 (up0 exp(-L) + 4 upm exp(-u) + up1):
// Simpson's rule, order four, no division. For constant rates it errs by L^4/2880 of the limit.
__device__ __forceinline__ void relaxSlow(float &x, float &low, const float whole,
                                          const float late, const float up0, const float upm,
                                          const float up1, const float h) {
    const float sixth = h*(1.0f/6.0f);
    // exp(-L) - 1, to the last digit however small L is
    const float gone = -whole*(1.0f - whole*(0.5f - whole*((1.0f/6.0f) - whole*((1.0f/24.0f)
        - whole*(1.0f/120.0f)))));
    const float gain = sixth*(up0 + up1 + 4.0f*upm*approximatePower2(-1.44269504f*late));
    // A slow gate moves by less than the last bit of x: the cut-off part is kept for the next step.
    const float change = gone*(x + sixth*up0) + (gain + low), sum = x + change;
    low = change - (sum - x);
    x = sum;
}

// A step of h ms, all gates side by side; where one is stiff, again by the rule of float64, which
// follows a fast gate without lag. A thread's step depends on its own candidate only; a warp
// without a stiff one branches past the second half.
__device__ __forceinline__ void step(Moving &m, const LevelOf<real> *nodes, const real h,
                                     const real *p, int &flag) {
    Gates<float> &g = m.gates;
    const Nodes at = *(const Nodes *)nodes;
    float up[N_X], speed[N_X], up1[N_X], speed1[N_X], limit1[N_X], old[N_X], whole[N_X], late[N_X];
    createRates(at.middle, p, up, speed, flag);
    createRates(at.end, p, up1, speed1, flag);
    bool stiff = false;
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        old[k] = m.x[k];
        whole[k] = least(relaxations(g.speed[k], speed[k], speed1[k], h), DEEP);
        late[k] = relaxationsLate(g.speed[k], speed[k], speed1[k], h);
        relaxSlow(m.x[k], m.low[k], whole[k], late[k], m.up[k], up[k], up1[k], h);
        stiff |= !(whole[k] < SLOW);
        limit1[k] = up1[k]*reciprocal(speed1[k]);  // even if not needed here: the next step may
    }
    if (stiff) {
#pragma unroll
        for (int k = 0; k < N_GATES; ++k) {
            const float x = followed(relaxation(whole[k], late[k], g.limit[k],
                                                up[k]*reciprocal(speed[k]), limit1[k]), k, old[k]);
            const bool fast = !(whole[k] < SLOW);
            m.x[k] = fast ? x : m.x[k];
            m.low[k] = fast ? 0.0f : m.low[k];
        }
    }
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        m.up[k] = up1[k];
        g.limit[k] = limit1[k];
        g.speed[k] = speed1[k];
    }
    m.v = at.end;
}
"""

#: Why a run failed: float32 tells little.
SINGLE_REASONS = """
// The status, where a run in float32 failed as float64 sees its rates at all its voltages.
__device__ __noinline__ int explained(int status, const int flag, const bool lost,
                                      const LevelOf<real> *nodes, const int n,
                                      const double *parameters, const long long stride) {
    if (flag >= 0 && !lost) return status;
    double p[N_PARAMETERS], q[N_RATES];
    loadParameters(parameters, stride, p);
    for (int k = 0; k < n; ++k) createQmat(nodes[k], p, q, status);
    return status;
}
"""
