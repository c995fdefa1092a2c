"""Propagators in CUDA C++: the effect of a generator on occupancies within a time at one voltage.

The text is a template over the number type, for the programs that compute currents and for the one
that computes derivatives. The text before it must define

* `real`: the type of constants,
* DEGREE and TAYLOR_NORM: of Taylor's polynomial, and the norm up to which it is exact to rounding;
  derivatives want a smaller norm,
* KEPT: states up to which loops over a matrix are written out,
* SERIES_KEPT: states up to which the terms of Taylor's polynomial are.
"""

from __future__ import annotations

from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.fast_rates import CUDA as FAST_RATES
from channelfit.scoring.kernels.writers import CudaWriter

#: States up to which the series of rates that are too fast is written out. Of more, loops spare the
#: compiler a third of its time.
_FEW = 5


def write_propagators(
    w: CudaWriter,
    channel: CudaChannel,
    sparse: range = range(0),
    fast_rates: bool = False,
    inlined: bool = True,
) -> None:
    """Write the templates, and exitRate and createPropagator of chains of three states and more.

    Arguments:
        sparse: numbers of states of which the generator is multiplied transition by transition:
            the matrices of a dense polynomial would not fit the registers.
        fast_rates: whether rates of which only the ratios matter are cut as far as
            `fast_rates.GREATEST_NORM` demands. Without it the propagator is squared more often.
        inlined: whether createPropagator is written out wherever it is called.
    """
    w(*_PROPAGATORS.splitlines())
    if fast_rates:
        w(*FAST_RATES.splitlines(), *_SERIES_IN_MEMORY.splitlines())
    for k, chain in channel.chains:
        if len(chain.states) > 2:
            _exit_rate(w, channel, k)
            _series(w, channel, k, len(chain.states) in sparse)
            if fast_rates:
                _slow_series(w, channel, k)
            _propagator(w, channel, k, fast_rates, inlined)


def _exit_rate(w: CudaWriter, channel: CudaChannel, k: int) -> None:
    leaving: dict[int, list[str]] = {}
    for source, _, row in channel.entries(k, first=0):
        leaving.setdefault(source, []).append(f"valueOf(q[{row}])")
    first, *others = (" + ".join(rates) for rates in leaving.values())
    with w.template(
        f"auto exitRate{k}(const Number *q)",
        "The largest rate of leaving a state, of the chain's own rates.",
    ):
        w(f"auto fastest = {first};", "decltype(fastest) leaving;")
        for rates in others:
            w(f"leaving = {rates};", "fastest = leaving > fastest ? leaving : fastest;")
        w("return fastest;")


def _series(w: CudaWriter, channel: CudaChannel, k: int, sparse: bool) -> None:
    n = len(channel.model.chains[k].states)
    entries = [(i, j, f"r[{row}]") for i, j, row in channel.entries(k, first=0)]
    with w.template(
        f"void createSeries{k}(const Number *r, Number (&p)[{n}][{n}])",
        "exp(A), the rates r in the generator A, of a norm of TAYLOR_NORM at most.",
    ):
        if not sparse:
            w(f"Number a[{n}][{n}] = {{}};", *(f"a[{j}][{i}] = {r};" for i, j, r in entries))
            w("createSeries(a, p);")
            return
        w("// 1 + A/1 (1 + A/2 (..)): a generator is sparse, and p alone fits the registers")
        w(f"Number out[{n}];", "unit(p);")
        for i in range(n):
            w(f"out[{i}] = {' + '.join(r for source, _, r in entries if source == i) or '0'};")
        w("#pragma unroll 1")
        with w.block("for (int k = DEGREE; k > 0; --k)"):
            w("const real share = real(1)/k;", "#pragma unroll")
            with w.block(f"for (int j = 0; j < {n}; ++j)"):
                w(f"Number y[{n}];")
                for i in range(n):
                    terms = [f"{r}*p[{source}][j]" for source, j, r in entries if j == i]
                    w(f"y[{i}] = {' + '.join(terms) or '0'} - out[{i}]*p[{i}][j];")
                w("#pragma unroll")
                w(f"for (int i = 0; i < {n}; ++i) p[i][j] = share*y[i] + (i == j ? 1 : 0);")
        w("closeColumns(p);")


def _slow_series(w: CudaWriter, channel: CudaChannel, k: int) -> None:
    n = len(channel.model.chains[k].states)
    w("", "// exp(A h) before its squarings, where only ratios are left of the fastest rates.")
    with w.block(
        f"template <class Rate> __device__ __noinline__ void slowSeriesOf{k}(\n"
        f"    const Rate *q, const double h, real *p)"
    ):
        w("constexpr double per = 1.0/GREATEST_NORM;")
        w(f"double b[{n}][{n}] = {{}}, r[{n}][{n}];")
        for i, j, row in channel.entries(k, first=0):
            w(f"b[{j}][{i}] = double(q[{row}])*h*per;")
        w("resolvent(b, r);", "const int levels = halvings(GREATEST_NORM);")
        w("const double scale = GREATEST_NORM*__hiloint2double((1023 - levels) << 20, 0);")
        if n > _FEW:
            w("seriesInMemory(r, scale, p);")
        else:
            w(f"real a[{n}][{n}], out[{n}][{n}];")
            w(f"for (int i = 0; i < {n}; ++i)")
            w(f"    for (int j = 0; j < {n}; ++j)")
            w("        a[i][j] = i == j ? real(0) : real(r[i][j]*scale);")
            w("createSeries(a, out);")
            w(f"for (int i = 0; i < {n}; ++i)")
            w(f"    for (int j = 0; j < {n}; ++j) p[i*{n} + j] = out[i][j];")
    w("", "template <class Rate>")
    with w.block(
        f"__device__ __forceinline__ void slowSeries{k}(const Rate *q, const double h,"
        f" real (&p)[{n}][{n}])"
    ):
        w("// through a copy, or p could not stay in registers", f"real out[{n * n}];")
        w(f"slowSeriesOf{k}(q, h, out);", f"#pragma unroll({n} <= KEPT ? {n * n} : 1)")
        w(f"for (int i = 0; i < {n * n}; ++i) p[i/{n}][i % {n}] = out[i];")


def _propagator(
    w: CudaWriter, channel: CudaChannel, k: int, fast_rates: bool, inlined: bool
) -> None:
    chain = channel.model.chains[k]
    n, n_rates = len(chain.states), len(chain.transitions)
    with w.device(
        f"void createPropagator{k}(const Rate *q, const double h, Number (&p)[{n}][{n}])",
        "exp(A h) at the chain's own rates q: a series of A h, halved until it is small, squared.",
        inlined,
        "class Number, class Rate",
    ):
        w(f"const double norm = exitRate{k}(q)*h;")
        largest = "least(norm, GREATEST_NORM)" if fast_rates else "norm"
        w(f"const int levels = halvings({largest});")
        if fast_rates:
            w(f"if (norm > GREATEST_NORM) {{ slowSeries{k}(q, h, p); }} else {{")
        w("const double shrunk = h*__hiloint2double((1023 - levels) << 20, 0);")
        w(f"Number r[{n_rates}];", "#pragma unroll")
        w(f"for (int i = 0; i < {n_rates}; ++i)")
        w("    r[i] = Number(q[i]*decltype(valueOf(q[0]))(shrunk));")
        w(f"createSeries{k}(r, p);", *("}",) * fast_rates)
        w("squareOften(levels, p);  // together, whichever way a thread has come")


_PROPAGATORS = """
// --- propagators ---------------------------------------------------------------------------------

// The halvings of a norm until it is at most TAYLOR_NORM, read off its exponent.
__device__ __forceinline__ int halvings(const double norm) {
    const int exponent = (__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1022;
    return exponent > 0 ? exponent : 0;
}

// Of few states, element by element; of many a row at a time, which loads b once for all its sums.
template <class Number, int N>
__device__ __forceinline__ void multiply(const Number (&a)[N][N], const Number (&b)[N][N],
                                         Number (&out)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
        Number row[N] = {};
#pragma unroll(N <= KEPT ? N : 1)
        for (int outer = 0; outer < N; ++outer) {
#pragma unroll
            for (int inner = 0; inner < N; ++inner) {
                const int j = N <= KEPT ? outer : inner, k = N <= KEPT ? inner : outer;
                row[j] += a[i][k]*b[k][j];
            }
        }
#pragma unroll
        for (int j = 0; j < N; ++j) out[i][j] = row[j];
    }
}

// The diagonal is the rest of one: columns sum to one, those of derivatives to zero, and
// nothing is negative.
template <class Number, int N>
__device__ __forceinline__ void closeColumns(Number (&p)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int j = 0; j < N; ++j) {
        Number rest = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) rest += i != j ? p[i][j] : Number(0);
        p[j][j] = notNegative(1 - rest);
    }
}

template <class Number, int N> __device__ __forceinline__ void square(Number (&p)[N][N]) {
    Number out[N][N];
    multiply(p, p, out);
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) p[i][j] = out[i][j];
    }
    closeColumns(p);
}

template <class Number, int N>
__device__ __forceinline__ void squareOften(const int levels, Number (&p)[N][N]) {
#pragma unroll 1
    for (int level = 0; level < levels; ++level) square(p);
}

template <class Number, int N> __device__ __forceinline__ void unit(Number (&p)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) p[i][j] = i == j ? 1 : 0;
    }
}

// Two terms: p = 1 + a/(k + 1) + b/((k + 1)(k + 2)).
template <class Number, int N>
__device__ __forceinline__ void taylor(const int k, const Number (&a)[N][N],
                                       const Number (&b)[N][N], Number (&p)[N][N]) {
    const real first = real(1)/(k + 1), second = real(1)/((k + 1)*(k + 2));
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j)
            p[i][j] = second*b[i][j] + first*a[i][j] + (i == j ? 1 : 0);
    }
}

// exp(a), a without its diagonal: Taylor, two degrees a product, to be squared. Products of
// non-negative matrices cancel nothing and the diagonal closes each column, so slow rates keep
// their digits through any number of squarings (after Xue and Ye 2013).
template <class Number, int N>
__device__ __forceinline__ void createSeries(Number (&a)[N][N], Number (&p)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int j = 0; j < N; ++j) {
        Number out = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) out += i != j ? a[i][j] : Number(0);
        a[j][j] = -out;
    }
    Number a2[N][N], next[N][N];
    multiply(a, a, a2);
    taylor(DEGREE - 2, a, a2, p);
#pragma unroll(N <= SERIES_KEPT ? DEGREE/2 : 1)
    for (int k = DEGREE - 4; k >= 0; k -= 2) {
        multiply(a2, p, next);
        taylor(k, a, next, p);
    }
    closeColumns(p);
}

// Of a chain of two states, which relax: the part of the way to the limit after h ms, over the
// sum of both rates. Times a rate it is the propagator's element.
template <class Number>
__device__ __forceinline__ Number goneOverRates(const Number &up, const Number &down,
                                                const double h) {
    return decay((up + down)*h)*reciprocal(up + down);
}

// The change of such a chain: x <- gained + kept*x.
template <class Number> struct Relaxation {
    Number gained, kept;

    __device__ __forceinline__ Number of(const Number &x) const { return gained + kept*x; }
};

// Occupancies but for the first, which is one minus the rest, behind a propagator.
template <class Number, class State, int N>
__device__ __forceinline__ void advance(const Number (&p)[N][N], State *x) {
    State next[N - 1], first = 1.0;
#pragma unroll
    for (int j = 0; j < N - 1; ++j) first -= x[j];
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 1; i < N; ++i) {
        State sum = p[i][0]*first;
#pragma unroll
        for (int j = 1; j < N; ++j) sum += p[i][j]*x[j - 1];
        next[i - 1] = sum;
    }
#pragma unroll
    for (int j = 0; j < N - 1; ++j) x[j] = next[j];
}
"""

_SERIES_IN_MEMORY = """
// exp(A), A = scale times r without its diagonal, a column at a time, for many states.
template <int N>
__device__ __forceinline__ void seriesInMemory(const double (&r)[N][N], const double scale,
                                               real *p) {
    real a[N][N], x[N], y[N];
#pragma unroll 1
    for (int j = 0; j < N; ++j) {
        real out = 0;
#pragma unroll 1
        for (int i = 0; i < N; ++i) {
            a[i][j] = i == j ? real(0) : real(r[i][j]*scale);
            out += a[i][j];
        }
        a[j][j] = -out;
    }
#pragma unroll 1
    for (int j = 0; j < N; ++j) {
#pragma unroll 1
        for (int i = 0; i < N; ++i) x[i] = i == j ? 1 : 0;
#pragma unroll 1
        for (int k = DEGREE; k > 0; --k) {
            const real share = real(1)/k;
#pragma unroll 1
            for (int i = 0; i < N; ++i) {
                real sum = 0;
#pragma unroll
                for (int l = 0; l < N; ++l) sum += a[i][l]*x[l];
                y[i] = share*sum + (i == j ? 1 : 0);
            }
#pragma unroll 1
            for (int i = 0; i < N; ++i) x[i] = y[i];
        }
        real rest = 0;
#pragma unroll 1
        for (int i = 0; i < N; ++i) rest += i != j ? x[i] : real(0);
        x[j] = notNegative(1 - rest);
#pragma unroll 1
        for (int i = 0; i < N; ++i) p[i*N + j] = x[i];
    }
}
"""
