"""Steps through a voltage that varies, in CUDA C++: gates that relax, and schemes by Magnus.

The text is a template over the number type, for the programs that compute currents and for the one
that computes derivatives. The text before it must define, beside the names that `cuda_propagator`
lists,

* DEEP: relaxations in a step beyond which more of them make no difference,
* SMALL_STEPS: whether a step may hold less than half a relaxation, where the integrals of a decay
  need a series; float32 takes another rule there (`cuda_single`),
* FLOOR: the least rate, 1/ms,
* RATES_AT_ONCE: of the two voltages of a step, how many have their rates written out side by side:
  2 where they are short, 1 where a loop keeps the program small.
"""

from __future__ import annotations

from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.writers import CudaWriter


def write_gates(w: CudaWriter, channel: CudaChannel, floored: bool = False) -> None:
    """Write steps of the chains of two states, which come first.

    Arguments:
        floored: the rates are not bounded from below by themselves, and a speed of 0 would make the
            limit 0/0.
    """
    gates = [k for k, chain in channel.chains if len(chain.states) == 2]
    w(f"constexpr int N_GATES = {len(gates)};")
    channel.write_kinds(w)
    with w.template(
        "void createRates(const LevelOf<real> v, const Number *p, Number *up, Number *speed,\n"
        "                                            int &flag)",
        "Chains of two states at v mV: rate of opening; that and of closing, 1/ms.",
    ):
        w("Number q[N_RATES];", "createQmat(v, p, q, flag);")
        for x, k in enumerate(gates):
            up, down = (f"q[{row}]" for row in channel.opening_and_closing(k))
            w(f"up[{x}] = {up};")
            w(f"speed[{x}] = {f'most({up} + {down}, FLOOR)' if floored else f'{up} + {down}'};")
    w(*_GATES.splitlines())


def write_scheme(
    w: CudaWriter, channel: CudaChannel, inlined: bool = True, k: int | None = None
) -> None:
    """Write steps of one chain of any number of states.

    Arguments:
        inlined: whether rates and their weights are written out wherever steps are.
        k: which of several chains it is, if it is not the only one.
    """
    n = len(channel.model.chains[k or 0].states)
    w(f"constexpr int N = {n};")
    with w.template(
        "void flow(const Number *q, const Number *x, Number *dx)", "The generator times a state."
    ):
        w("Number flux;", *(f"dx[{i}] = 0;" for i in range(n)))
        for i, j, row in channel.entries(k or 0, first=0):
            w(f"flux = q[{row}]*x[{i}];", f"dx[{i}] -= flux;", f"dx[{j}] += flux;")
    text = _SCHEME % ("__forceinline__" if inlined else "__noinline__")
    if k is not None:  # q has the rates of all chains
        for q in ("q[0]", "q[1]"):
            for call in (f"exponentialOf({q}", f"exitRate0({q}"):
                text = text.replace(call, f"{call} + {channel.first_rate[k]}")
        text = own_names(text, k)
    w(*text.splitlines())


def own_names(text: str, k: int) -> str:
    """Return a text of the only chain, with the functions of chain k."""
    for name in ("exitRate", "createPropagator"):
        text = text.replace(f"{name}0(", f"{name}{k}(")
    return text


_GATES = """
// --- voltage that varies: chains of two states ---------------------------------------------------

// The gates at the beginning of a step.
template <class Number> struct Gates { Number limit[N_X], speed[N_X]; };

// The relaxations of a gate in a step, from its speed at start, middle and end (Simpson); and those
// from the middle on: the integral of the same parabola.
template <class Number>
__device__ __forceinline__ Number relaxations(const Number &s0, const Number &sm, const Number &s1,
                                              const real h) {
    return h*real(1.0/6.0)*(s0 + s1 + 4*sm);
}

template <class Number>
__device__ __forceinline__ Number relaxationsLate(const Number &s0, const Number &sm,
                                                  const Number &s1, const real h) {
    return h*real(1.0/24.0)*(8*sm + 5*s1 - s0);
}

// x' = speed (limit - x). With u the integral of the speed from a time to the end of the step, x is
// exp(-L) x plus the integral of exp(-u) limit over u from 0 to L, the whole of the relaxations; of
// these `late` come after the middle. The limit is the parabola in u through start, middle and end:
// order four where the gate is slow, and no lag where it is fast.
template <class Number>
__device__ __forceinline__ Relaxation<Number> relaxation(const Number &whole, const Number &late,
                                                         const Number &x0, const Number &xm,
                                                         const Number &x1) {
    const Number half = least(most(late, real(0.05)*whole), real(0.95)*whole);
    const Number left = exponential(-whole), some = whole*left;
    // The integrals of exp(-u), u exp(-u), u^2 exp(-u): from the first up where that loses no
    // digits, from the last (a series) down where it would.
    Number j0, j1, j2;
    if (SMALL_STEPS && whole < real(0.5)) {
        Number series = real(1.0/16.0);
#pragma unroll
        for (int k = 12; k >= 0; --k)
            series = series*(whole*real(-1.0/(k + 1))) + real(1.0/(k + 3));
        j2 = whole*whole*whole*series;
        j1 = real(0.5)*(j2 + whole*some);
        j0 = j1 + some;
    } else {
        j0 = 1 - left;
        j1 = j0 - some;
        j2 = 2*j1 - whole*some;
    }
    const Number rest = whole - half, both = half*whole, inverse = reciprocal(both*rest);
    const Number slope = (xm - x1)*(inverse*rest*whole);
    const Number bend = ((x0 - x1)*(inverse*rest*half) - slope)*(inverse*both);
    return {x1*j0 + slope*j1 + bend*(j2 - half*j1), left};
}

// Gate k after a relaxation, bounded to 0 .. 1 if it is a probability.
template <class Number>
__device__ __forceinline__ Number followed(const Relaxation<Number> &r, const int k,
                                           const Number &x) {
    const Number next = r.of(x);
    return isLinear(k) ? next : least(most(next, Number(0)), Number(1));
}

template <class Number>
__device__ __forceinline__ void follow(const Relaxation<Number> &r, const int k, Number *x) {
    x[k] = followed(r, k, x[k]);
}

// Gates at v mV, and their rates of opening.
template <class Number>
__device__ __forceinline__ void begin(Gates<Number> &g, Number *up, const LevelOf<real> v,
                                      const Number *p, int &flag) {
    createRates(v, p, up, g.speed, flag);
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) g.limit[k] = up[k]*reciprocal(g.speed[k]);
}

// Gates without a time constant are where they relax to at once.
template <class Number>
__device__ __forceinline__ void arrive(const Gates<Number> &g, Number *x) {
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) if (isInstant(k)) x[k] = g.limit[k];
}
"""

#: The step of float64 and of derivatives; float32 has its own.
GATE_STEP = """
// A step of h ms, of which `nodes` has the voltages of middle and end: of a state, or of anything
// else that `follow` relaxes.
template <class Number, class State>
__device__ __forceinline__ void step(Gates<Number> &g, const LevelOf<real> *nodes, const real h,
                                     const Number *p, State *x, int &flag) {
    Gates<Number> at[2];
    Number up[N_X];
#pragma unroll(RATES_AT_ONCE)
    for (int k = 0; k < 2; ++k) begin(at[k], up, nodes[k], p, flag);
    const Gates<Number> &middle = at[0], &end = at[1];
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        const Number whole = relaxations(g.speed[k], middle.speed[k], end.speed[k], h);
        const Number late = relaxationsLate(g.speed[k], middle.speed[k], end.speed[k], h);
        follow(relaxation(least(whole, DEEP), late, g.limit[k], middle.limit[k], end.limit[k]), k,
               x);
    }
    g = end;
}
"""

_SCHEME = """
// --- voltage that varies: schemes ----------------------------------------------------------------

// The number of terms of Taylor's series that are exact to rounding.
__device__ __forceinline__ int terms(const double norm) {
    return min(norm < 1e-6 ? 3 : norm < 1e-3 ? 5 : norm < 0.02 ? 8 : DEGREE, DEGREE);
}

// All terms of exp(A) of a vector but the first, added to total; the vector is used up.
template <class Number>
__device__ __forceinline__ void laterTerms(const Number *q, const int last, Number (&term)[N],
                                           Number (&total)[N]) {
    Number change[N];
#pragma unroll 1
    for (int k = 1; k <= last; ++k) {
        flow(q, term, change);
        const real share = real(1)/k;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            term[i] = change[i]*share;
            total[i] += term[i];
        }
    }
}

// x <- exp(A) x, A from rates times ms: Taylor on the vector where the norm allows, the full
// propagator elsewhere. A state moves by little in a step: it may have more digits than the rates.
template <class Number, class State>
__device__ __noinline__ void exponentialOf(const Number *q, State *x) {
    const double norm = exitRate0(q);
    if (norm > TAYLOR_NORM) {
        Number p[N][N];
        createPropagator0(q, 1.0, p);
        advance(p, x);
        return;
    }
    State first = 1.0;
    Number term[N], total[N] = {};
#pragma unroll
    for (int i = 1; i < N; ++i) {
        term[i] = Number(x[i - 1]);
        first -= x[i - 1];
    }
    term[0] = Number(first);
    laterTerms(q, terms(norm), term, total);
#pragma unroll
    for (int i = 1; i < N; ++i) x[i - 1] += total[i];
}

// Commutator-free Magnus of order four (Blanes and Moan 2006): two exponentials, from the rates at
// the two Gauss points. Where a rate changes more than 14-fold within a step a combination could
// turn negative; cut at the floor it stays a rate. Returns the largest exit rates times ms.
template <class Number>
__device__ %s real combine(const LevelOf<real> *nodes, const real h, const Number *p, int &flag,
                                        Number (&q)[2][N_RATES]) {
    const real more = real(0.25 + 0.28867513459481287)*h, less = real(0.25 - 0.28867513459481287)*h;
#pragma unroll(RATES_AT_ONCE)
    for (int k = 0; k < 2; ++k) createQmat(nodes[k], p, q[k], flag);
    for (int i = 0; i < N_RATES; ++i) {
        const Number one = q[0][i], two = q[1][i];
        q[0][i] = most(more*one + less*two, FLOOR);
        q[1][i] = most(less*one + more*two, FLOOR);
    }
    return exitRate0(q[0]) + exitRate0(q[1]);
}

// A step of h ms, of which `nodes` has the voltages at the Gauss points and then those of its
// quarters: of a state, or of anything else that `exponentialOf` takes. Order four is lost where a
// rate is fast against the step: a candidate of which a state empties within it takes quarters
// instead.
template <class Number, class State>
__device__ __forceinline__ void step(const LevelOf<real> *nodes, const real h, const Number *p,
                                     State *x, int &flag) {
    Number q[2][N_RATES];
#pragma unroll 1
    for (int quarter = -1; quarter < 4; ++quarter) {  // one call: the rates are long
        const bool whole = quarter < 0;
        const real norm = combine(nodes + 2 + 2*quarter, whole ? h : real(0.25)*h, p, flag, q);
        if (whole && norm > 1) continue;
        exponentialOf(q[0], x);
        exponentialOf(q[1], x);
        if (whole) break;
    }
}
"""
