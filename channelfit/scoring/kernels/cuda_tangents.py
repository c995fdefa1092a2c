"""A channel as CUDA that writes residuals and their derivatives: stepping in dual numbers.

A dual number is a float64 with its derivatives by a few parameters (Wengert 1964): an operation on
it applies the rule of differentiation beside itself, so derivatives are exact, of the very
algorithm that computes the currents. Rates, gains and steady states are the text of the other
kernels with another type; propagators, Magnus steps and relaxations are written here once more,
since they may be longer and slower: all in float64, no tables of rows.

A thread walks a candidate through one job with TANGENTS of its directions; neighbouring threads
have the other directions of the same candidate. Currents are wanted at some samples only, whose
distances are powers of two, so a visit to a voltage squares its propagator again and again, and
serves all its runs at each power: only one propagator is kept.

Samples at varying voltage come one after the other, and a few candidates would leave the GPU
empty. So their runs are cut into segments: threads of their own find what each segment makes of
any state (`composeTangents`), the walk goes from end to end, and threads of their own again step
through each segment from the state that it starts with (`replayTangents`). Without derivatives the
same text is the fastest way to the costs of a few candidates at varying voltage.
"""

from __future__ import annotations

import hashlib

import numpy as np

from channelfit.model.channel import GREATEST_OCCUPANCY, RATE_FLOOR, ChannelModel
from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.cuda_common import CudaChannel, CudaWriter
from channelfit.scoring.kernels.cuda_math import cuda_math

#: Names of the kernels: the walk, what is before and behind it where runs are cut, and what becomes
#: of the residuals.
TRACE_TANGENTS = "traceTangents"
COMPOSE_TANGENTS, REPLAY_TANGENTS = "composeTangents", "replayTangents"
MULTIPLY_TANGENTS, CONCLUDE_TANGENTS = "multiplyTangents", "concludeTangents"
#: Threads of a block of the last two, and rows of residuals that a block goes through.
ALGEBRA_THREADS, ALGEBRA_ROWS = 128, 1024

#: Derivatives that a thread carries. What one number costs is shared by more of them; but a scheme
#: of many states fills the registers with its propagator.
_TANGENTS_BY_STATES = {1: 4, 2: 4, 3: 2}


class CudaTangentSource:
    """The generated text of one model.

    Arguments:
        tangents: derivatives that a thread carries, 0 for values alone; None for what suits the
            model.

    Attributes:
        text: the source; what is compiled is that of `specialized`.
        hash: 16 hexadecimal digits of its SHA-256.
        state_size, composite_size: numbers in a state, and in what a segment makes of any state.
    """

    def __init__(self, model: ChannelModel, tangents: int | None = None) -> None:
        assert model.relaxes or len(model.chains) == 1  # what varying voltages are written for
        self.model = model
        self.channel = CudaChannel(model, dual=True)
        self.chains = [(k, c) for k, c in enumerate(model.chains) if len(c.states) > 1]
        self.largest = max(len(c.states) for c in model.chains)
        suitable = _TANGENTS_BY_STATES.get(self.largest, 1)
        self.tangents = suitable if tangents is None else tangents
        numbers = 1 + self.tangents
        n_x = max(1, self.channel.n_x)
        self.state_size = n_x * numbers
        self.composite_size = (2 * n_x if model.relaxes else self.largest**2) * numbers
        self.text = self._text(cut=True)
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def specialized(self, n_slots: int, varying: bool, cut: bool = False) -> str:
        """The text for one walk: state slots, whether voltages vary, and whether those are cut."""
        text = self.text if cut else self._text(cut=False)
        return f"#define N_SLOTS {n_slots}\n#define VARYING {int(varying)}\n{text}"

    def voltages(self, nodes_mV: np.ndarray) -> np.ndarray:
        """Voltages of one varying run as the text reads them.

        Arguments:
            nodes_mV: (n_steps, n_nodes) at `packing.NODES` of every step.

        Returns:
            Flat: start, middle and end of each step for chains of two states; for schemes the
            start, the Gauss points and those of the quarters.
        """
        columns = [0, 1, 2] if self.model.relaxes else [0, *range(3, nodes_mV.shape[1])]
        return nodes_mV[:, columns].ravel()

    # --- pieces of text

    def _text(self, cut: bool) -> str:
        w = CudaWriter()
        w(self.channel.title("residuals and their derivatives"), "")
        w("#ifndef N_SLOTS  // what the protocols decide: `specialized` defines it")
        w("#define N_SLOTS 16  // of states between runs", "#define VARYING 1", "#endif", "")
        w(f"constexpr int TANGENTS = {self.tangents};  // derivatives that a thread carries")
        w(f"constexpr int N_PARAMETERS = {max(1, len(self.model.parameters))};")
        w(f"constexpr int N_RATES = {max(1, self.channel.n_rates)};")
        w(f"constexpr int N_X = {max(1, self.channel.n_x)};  // occupancies: all but each first")
        w(f"constexpr double FLOOR = {RATE_FLOOR!r};  // of a rate, 1/ms")
        w("", *cuda_math().splitlines(), *_DUAL.splitlines())
        self.channel.write_functions(w)
        w(*_PROPAGATOR.splitlines())
        self._chains(w)
        w(*_PROGRAM.splitlines())
        w("", "#if VARYING")
        if self.model.relaxes:
            self._gates(w)
            w(*_RELAXATION.splitlines())
        else:
            self._scheme(w)
            w(*_MAGNUS.splitlines())
        w(*_SAMPLES.splitlines(), *(() if cut else _MOVE.splitlines()), "#endif")
        w(*_SEEDED.splitlines(), *(_CUT.splitlines() if cut else ()), *_KERNEL.splitlines())
        w(*_ALGEBRA.splitlines())
        return w.text

    def _chains(self, w: CudaWriter) -> None:
        """Propagators of all chains, what they do to a state, and what is read off it."""
        w("", "struct Propagators {")
        w(*(f"    Propagator<{len(c.states)}> chain{k};" for k, c in self.chains), "};")
        with w.device(
            "void createPropagators(const Dual *q, const double h, Propagators &p)",
            "Of all chains over h ms at the rates q.",
        ):
            for k, chain in self.chains:
                n = len(chain.states)
                with w.block(""):
                    w(f"Dual a[{n}][{n}] = {{}};")
                    w(*(f"a[{j}][{i}] = q[{row}]*h;" for i, j, row in self.channel.entries(k)))
                    w(f"createPropagator(a, p.chain{k});")
        with w.device("void square(Propagators &p)", "To those of twice the time."):
            w(*(f"square(p.chain{k});" for k, _ in self.chains))
        with w.device("void advance(const Propagators &p, Dual *x)", "A state, in place."):
            for k, _ in self.chains:
                w(f"advance(p.chain{k}, x + {self.channel.first_x[k]});")
        with w.device(
            "void arrive(const Propagators &p, Dual *x)", "Gates without a time constant, at once."
        ):
            w(
                *(
                    f"x[{self.channel.first_x[k]}] = p.chain{k}.gained;"
                    for k, chain in self.chains
                    if chain.instant
                )
            )
        with w.device("Dual openOf(const Dual *x)", "Open probability."):
            factors = []
            for k, chain in enumerate(self.model.chains):
                c, first = chain.conductances, self.channel.first_x[k]
                terms = [repr(float(c[0]))] if c[0] or len(c) == 1 else []
                terms += [
                    f"{c[i] - c[0]!r}*x[{first + i - 1}]" for i in range(1, len(c)) if c[i] != c[0]
                ]
                w(f"const Dual o{k} = {' + '.join(terms) or '0.0'};")
                factors += [f"o{k}"] * chain.power
            w(f"return {'*'.join(factors)};")
        with w.device(
            "bool lost(const Dual *x)", "Whether occupancies, NaN included, left [0, 1]."
        ):
            tests = []
            for k, chain in self.chains:
                xs = [f"x[{self.channel.first_x[k] + i}].v" for i in range(len(chain.states) - 1)]
                if chain.linear:
                    tests.append(f"fabs({xs[0]}) < {GREATEST_OCCUPANCY!r}")
                    continue
                tests += [f"{x} >= -1e-6" for x in xs] + [f"{' + '.join(xs)} <= 1.000001"]
            w(f"return !({' && '.join(tests) or 'true'});")

    def _gates(self, w: CudaWriter) -> None:
        w("", f"constexpr int N_GATES = {len(self.chains)};")
        self.channel.write_kinds(w)
        with w.device(
            "void createGates(const double v, const Dual *p, Dual *limit, Dual *speed,\n"
            "                                            int &status)",
            "Chains of two states at v mV: where they relax to, and how fast, 1/ms.",
        ):
            w("Dual q[N_RATES];", "createQmat(v, p, q, status);")
            for x, (k, _) in enumerate(self.chains):
                rows = {source: row for source, _, row in self.channel.entries(k)}
                w(f"speed[{x}] = q[{rows[0]}] + q[{rows[1]}];")
                w(f"limit[{x}] = q[{rows[0]}]*reciprocal(speed[{x}]);")

    def _scheme(self, w: CudaWriter) -> None:
        (k, chain), *_ = self.chains
        n, entries = len(chain.states), self.channel.entries(k)
        w("", f"constexpr int N = {n};")
        with w.device("double exitRate(const Dual *q)", "The largest rate of leaving a state."):
            leaving: dict[int, list[str]] = {}
            for source, _, row in entries:
                leaving.setdefault(source, []).append(f"q[{row}].v")
            w("double fastest = 0.0;")
            w(*(f"fastest = fmax(fastest, {' + '.join(rates)});" for rates in leaving.values()))
            w("return fastest;")
        with w.device("void fillGenerator(const Dual *q, Dual (&a)[N][N])", "Off its diagonal."):
            w(*(f"a[{j}][{i}] = q[{row}];" for i, j, row in entries))
        with w.device(
            "void flow(const Dual *q, const Dual *x, Dual *dx)", "The generator times a state."
        ):
            w("Dual flux;", *(f"dx[{i}] = 0.0;" for i in range(n)))
            for i, j, row in entries:
                w(f"flux = q[{row}]*x[{i}];", f"dx[{i}] -= flux;", f"dx[{j}] += flux;")


_DUAL = """
// --- dual numbers --------------------------------------------------------------------------------

#define EACH_TANGENT _Pragma("unroll") for (int t = 0; t < TANGENTS; ++t)
#define INLINE __device__ __forceinline__

// None take no room.
template <int N> struct Derivatives { double d[N]; };
template <> struct Derivatives<0> { static constexpr double *d = nullptr; };

// A value and its derivatives.
struct Dual : Derivatives<TANGENTS> {
    double v;

    Dual() = default;
    INLINE Dual(const double value) : v(value) { EACH_TANGENT d[t] = 0.0; }
};

INLINE Dual operator-(const Dual &a) {
    Dual y;
    y.v = -a.v;
    EACH_TANGENT y.d[t] = -a.d[t];
    return y;
}

INLINE Dual operator+(const Dual &a, const Dual &b) {
    Dual y;
    y.v = a.v + b.v;
    EACH_TANGENT y.d[t] = a.d[t] + b.d[t];
    return y;
}

INLINE Dual operator+(Dual a, const double b) { a.v += b; return a; }
INLINE Dual operator+(const double a, const Dual &b) { return b + a; }

INLINE Dual operator-(const Dual &a, const Dual &b) {
    Dual y;
    y.v = a.v - b.v;
    EACH_TANGENT y.d[t] = a.d[t] - b.d[t];
    return y;
}

INLINE Dual operator-(Dual a, const double b) { a.v -= b; return a; }
INLINE Dual operator-(const double a, const Dual &b) { return -b + a; }

INLINE Dual operator*(const Dual &a, const Dual &b) {
    Dual y;
    y.v = a.v*b.v;
    EACH_TANGENT y.d[t] = a.v*b.d[t] + a.d[t]*b.v;
    return y;
}

INLINE Dual operator*(const Dual &a, const double b) {
    Dual y;
    y.v = a.v*b;
    EACH_TANGENT y.d[t] = a.d[t]*b;
    return y;
}

INLINE Dual operator*(const double a, const Dual &b) { return b*a; }

INLINE Dual operator/(const Dual &a, const Dual &b) {
    const double per = 1.0/b.v;
    Dual y;
    y.v = a.v/b.v;
    EACH_TANGENT y.d[t] = (a.d[t] - y.v*b.d[t])*per;
    return y;
}

INLINE Dual operator/(const Dual &a, const double b) {
    Dual y;
    y.v = a.v/b;
    EACH_TANGENT y.d[t] = a.d[t]/b;
    return y;
}

INLINE Dual operator/(const double a, const Dual &b) { return Dual(a)/b; }

INLINE Dual &operator+=(Dual &a, const Dual &b) { return a = a + b; }
INLINE Dual &operator-=(Dual &a, const Dual &b) { return a = a - b; }
INLINE Dual &operator*=(Dual &a, const Dual &b) { return a = a*b; }

INLINE double valueOf(const Dual &a) { return a.v; }
INLINE double valueOf(const double a) { return a; }

#define COMPARISON(sign)                                                                \\
    INLINE bool operator sign(const Dual &a, const Dual &b) { return a.v sign b.v; }    \\
    INLINE bool operator sign(const Dual &a, const double b) { return a.v sign b; }     \\
    INLINE bool operator sign(const double a, const Dual &b) { return a sign b.v; }
COMPARISON(<)
COMPARISON(<=)
COMPARISON(>)
COMPARISON(>=)
COMPARISON(==)
COMPARISON(!=)

// y = f(x) with its slope there. What x does not depend on, y does not, however steep f is.
INLINE Dual composed(const Dual &x, const double value, const double slope) {
    Dual y;
    y.v = value;
    EACH_TANGENT y.d[t] = x.d[t] == 0.0 ? 0.0 : slope*x.d[t];
    return y;
}

// Slopes end here, so that a saturated 1/(1 + exp(x)) has the slope 0 and not infinity over itself.
constexpr double STEEPEST = 1e300;

INLINE Dual exponential(const Dual &x) {
    const double y = exponential(x.v);
    return composed(x, y, y < STEEPEST ? y : STEEPEST);
}

// (exp(x) - 1)/x, 1 at 0
INLINE double exprel(const double x) {
    return fabs(x) < 1e-5 ? 1.0 + x*(0.5 + x*(1.0/6.0)) : expm1(x)/x;
}

// Its slope: a series where the closed forms would lose digits.
INLINE double exprelSlope(const double x) {
    if (fabs(x) < 1.0) {
        double sum = 0.0;
#pragma unroll
        for (int k = 18; k >= 0; --k) sum = sum*x*(1.0/(k + 2)) + (k + 1.0)/(k + 2.0);
        return sum;
    }
    const double slope = (exponential(x)*(1.0 - 1.0/x) + 1.0/x)/x;
    return slope < STEEPEST ? slope : STEEPEST;
}

INLINE Dual exprel(const Dual &x) { return composed(x, exprel(x.v), exprelSlope(x.v)); }
INLINE Dual log(const Dual &x) { return composed(x, log(x.v), 1.0/x.v); }
INLINE Dual fabs(const Dual &x) {
    return composed(x, fabs(x.v), x.v > 0.0 ? 1.0 : x.v < 0.0 ? -1.0 : 0.0);
}

INLINE Dual sqrt(const Dual &x) {
    const double y = sqrt(x.v);
    return composed(x, y, 0.5/y);
}

INLINE Dual tanh(const Dual &x) {
    const double y = tanh(x.v), e = exponential(-2.0*fabs(x.v)), s = 1.0/(1.0 + e);
    return composed(x, y, 4.0*e*s*s);
}

INLINE Dual pow(const Dual &a, const double b) {
    return composed(a, pow(a.v, b), b == 0.0 ? 0.0 : b*pow(a.v, b - 1.0));
}
INLINE Dual pow(const double a, const Dual &b) {
    const double y = pow(a, b.v);
    return composed(b, y, a == 0.0 ? 0.0 : y*log(a));
}
INLINE Dual pow(const Dual &a, const Dual &b) {
    Dual y = pow(a, b.v);
    const Dual by_exponent = pow(a.v, b);
    EACH_TANGENT y.d[t] += by_exponent.d[t];
    return y;
}

INLINE Dual reciprocal(const Dual &x) {
    Dual y;
    y.v = reciprocal(x.v);
    EACH_TANGENT y.d[t] = -(y.v*(y.v*x.d[t]));
    return y;
}

// A rate within its bounds: constant outside; a slope that is no number (0 times infinity where a
// term is saturated, the root of nothing) counts as none.
INLINE Dual between(const Dual &x, const double least, const double most) {
    Dual y;
    const bool inside = x.v > least && x.v < most;
    y.v = x.v > least ? x.v : least;
    y.v = y.v < most ? y.v : most;
    EACH_TANGENT y.d[t] = inside && fabs(x.d[t]) < 1e306 ? x.d[t] : 0.0;
    return y;
}

INLINE Dual smaller(const Dual &a, const Dual &b) { return b.v < a.v ? b : a; }
INLINE Dual larger(const Dual &a, const Dual &b) { return b.v > a.v ? b : a; }"""

_PROPAGATOR = """
// --- propagators ---------------------------------------------------------------------------------

constexpr int DEGREE = 12;  // of Taylor's polynomial
constexpr double TAYLOR_NORM = 1.0/6.0;  // where it is exact to rounding
constexpr int UNROLLED = 5;  // states: loops written out

template <int N> struct Propagator { Dual p[N][N]; };

// Two states relax: x <- gained + kept x.
template <> struct Propagator<2> { Dual gained, kept; };

// How often a norm must be halved until it is at most TAYLOR_NORM.
INLINE int halvings(const double norm) {
    const int exponent = (__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1022;
    return exponent > 0 ? exponent : 0;
}

// The diagonal is what is left of one: columns sum to one and nothing is negative; the columns of
// derivatives sum to zero.
template <int N> INLINE void closeColumns(Dual (&p)[N][N]) {
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int j = 0; j < N; ++j) {
        Dual rest = 1.0;
#pragma unroll
        for (int i = 0; i < N; ++i) if (i != j) rest -= p[i][j];
        rest.v = rest.v > 0.0 ? rest.v : 0.0;
        p[j][j] = rest;
    }
}

template <int N>
INLINE void multiply(const Dual (&a)[N][N], const Dual (&b)[N][N], Dual (&out)[N][N]) {
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int i = 0; i < N; ++i) {
        Dual row[N] = {};
#pragma unroll(N <= UNROLLED ? N : 1)
        for (int k = 0; k < N; ++k) {
            const Dual some = a[i][k];
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const Dual other = b[k][j];
                row[j].v += some.v*other.v;
                EACH_TANGENT row[j].d[t] += some.v*other.d[t] + some.d[t]*other.v;
            }
        }
#pragma unroll
        for (int j = 0; j < N; ++j) out[i][j] = row[j];
    }
}

template <int N> INLINE void square(Propagator<N> &p) {
    Dual out[N][N];
    multiply(p.p, p.p, out);
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) p.p[i][j] = out[i][j];
    }
    closeColumns(p.p);
}

INLINE void square(Propagator<2> &p) {
    p.gained += p.gained*p.kept;
    p.kept *= p.kept;
}

// Two terms: p = 1 + a/(k + 1) + b/((k + 1)(k + 2)).
template <int N>
INLINE void taylor(const int k, const Dual (&a)[N][N], const Dual (&b)[N][N], Dual (&p)[N][N]) {
    const double first = 1.0/(k + 1), second = 1.0/((k + 1)*(k + 2));
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            p[i][j] = second*b[i][j] + first*a[i][j];
            if (i == j) p[i][j].v += 1.0;
        }
    }
}

// exp(a), of a only what is off the diagonal: Taylor, two degrees a product, then squared. Products
// of non-negative matrices cancel nothing and the diagonal closes each column, so slow rates keep
// their digits through any number of squarings (after Xue and Ye 2013).
template <int N> __device__ __noinline__ void createPropagator(Dual (&a)[N][N], Propagator<N> &p) {
    double fastest = 0.0;
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int j = 0; j < N; ++j) {
        double out = 0.0;
#pragma unroll
        for (int i = 0; i < N; ++i) if (i != j) out += a[i][j].v;
        fastest = fmax(fastest, out);
    }
    const int levels = halvings(fastest);
    const double scale = __hiloint2double((1023 - levels) << 20, 0);
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int j = 0; j < N; ++j) {
        Dual out = 0.0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (i == j) continue;
            a[i][j] = a[i][j]*scale;
            out -= a[i][j];
        }
        a[j][j] = out;
    }
    Dual a2[N][N], next[N][N];
    multiply(a, a, a2);
    taylor(DEGREE - 2, a, a2, p.p);
#pragma unroll 1
    for (int k = DEGREE - 4; k >= 0; k -= 2) {
        multiply(a2, p.p, next);
        taylor(k, a, next, p.p);
    }
    closeColumns(p.p);
#pragma unroll 1
    for (int level = 0; level < levels; ++level) square(p);
}

INLINE void createPropagator(Dual (&a)[2][2], Propagator<2> &p) {
    const Dual whole = a[1][0] + a[0][1];
    p.kept = exponential(-whole);
    const double gone = decay(whole.v);
    p.gained = a[1][0]*reciprocal(whole)*composed(whole, gone, p.kept.v);
}

template <int N> INLINE void advance(const Propagator<N> &p, Dual *x) {
    Dual next[N - 1], first = 1.0;
#pragma unroll
    for (int j = 0; j < N - 1; ++j) first -= x[j];
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int i = 1; i < N; ++i) {
        Dual sum = p.p[i][0]*first;
#pragma unroll
        for (int j = 1; j < N; ++j) sum += p.p[i][j]*x[j - 1];
        next[i - 1] = sum;
    }
#pragma unroll
    for (int j = 0; j < N - 1; ++j) x[j] = next[j];
}

INLINE void advance(const Propagator<2> &p, Dual *x) { x[0] = p.gained + p.kept*x[0]; }
"""

_PROGRAM = f"""
{cuda_names()}

// --- what a thread walks through -----------------------------------------------------------------

enum {{ REST, HELD, VARYING_VOLTAGE }};

struct Visit {{
    double v, dt;        // mV, and ms between samples
    int kind;            // REST: a steady state
    int first, last;     // steps; REST: first is its slot; varying: its move
    int unused;
}};

// At a held voltage: from the state in `source`, `steps` times 2^level samples on, to `target`. The
// current is wanted at the start (lead) and after each step: points `point` and on of a run, unless
// run < 0.
struct Step {{ int source, target, level, steps, run, point, lead, unused; }};

// A run at varying voltage: n samples of n_sub steps of dt ms.
struct Move {{
    double dt;
    int n, n_sub, nodes, source, target, run;
    int first, n_segments;  // its segments, where it is cut
}};

// What a run is compared with, and where the difference times `root` goes: point k to row first +
// k*stride of an array (candidates, rows, 1 + n_free), before which there are `before` rows of all
// candidates.
struct Run {{
    double root;
    int data, before, rows, first, stride, unused;
}};

// Where a thread's results go.
struct Trace {{
    const Run *runs;
    const double *data;
    double *residuals;
    long long n;              // candidates
    int candidate, n_free, first;  // its first direction
}};

// What threads of segments found, and what they will need, where runs are cut.
struct Scratch {{
    const double *composites;
    double *states;
    long long n_threads, thread;
}};

INLINE void write(const Trace &trace, const int r, const int point, const Dual &current) {{
    const Run run = trace.runs[r];
    const long long row = run.before*trace.n + (long long)run.rows*trace.candidate + run.first
        + point*run.stride;
    double *place = trace.residuals + row*(1 + trace.n_free);
    if (trace.first == 0) place[0] = run.root*(current.v - trace.data[run.data + point]);
    place += 1 + trace.first;
    EACH_TANGENT if (trace.first + t < trace.n_free) place[t] = run.root*current.d[t];
}}

INLINE void check(const Dual *x, int &status) {{
    if (lost(x) && status == OK) status = OCCUPANCY_LOST;
}}"""

_RELAXATION = """
// --- voltage that varies: chains of two states ---------------------------------------------------

constexpr int N_NODES = 3;  // voltages of a step: start, middle and end
constexpr double DEEP = 1e90;  // relaxations in a step: more make no difference, and overflow

struct Moving { Dual limit[N_X], speed[N_X]; };

// x' = speed (limit - x). With u the integral of the speed from a time to the end of the step, x is
// exp(-L) x plus the integral of exp(-u) limit over u from 0 to L. The limit is the parabola in u
// through start, middle and end: order four where the gate is slow, and no lag where it is fast.
INLINE Propagator<2> relaxation(const Dual &whole, const Dual &late, const Dual &x0,
                                const Dual &xm, const Dual &x1) {
    const Dual half = smaller(larger(late, 0.05*whole), 0.95*whole);
    const Dual left = exponential(-whole), square = whole*whole;
    // The integrals of exp(-u), u exp(-u), u^2 exp(-u): from the first up where that loses no
    // digits, from the last (a series) down where it would.
    Dual j0, j1, j2;
    if (whole.v < 0.5) {
        Dual series = 0.0;
#pragma unroll
        for (int k = 13; k >= 0; --k) {
            series *= whole*(-1.0/(k + 1));
            series.v += 1.0/(k + 3);
        }
        j2 = square*whole*series;
        j1 = 0.5*(j2 + square*left);
        j0 = j1 + whole*left;
    } else {
        j0 = 1.0 - left;
        j1 = j0 - whole*left;
        j2 = 2.0*j1 - square*left;
    }
    const Dual rest = whole - half, inverse = reciprocal(half*whole*rest);
    const Dual slope = (xm - x1)*(inverse*whole*rest);
    const Dual bend = ((x0 - x1)*(inverse*half*rest) - slope)*(inverse*half*whole);
    return {x1*j0 + slope*j1 + bend*(j2 - half*j1), left};
}

INLINE Dual confined(const Dual &x) { return smaller(larger(x, 0.0), 1.0); }

INLINE void follow(const Propagator<2> &p, const int k, Dual *x) {
    const Dual next = p.gained + p.kept*x[k];
    x[k] = isLinear(k) ? next : confined(next);
}

// What some steps make of any state.
struct Composite { Propagator<2> gate[N_X]; };

// Gates without a time constant, at once.
INLINE void arrive(const Moving &m, Dual *x) {
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) if (isInstant(k)) x[k] = m.limit[k];
}

INLINE void start(Composite &c) {
#pragma unroll
    for (int k = 0; k < N_X; ++k) c.gate[k] = {0.0, 1.0};
}

INLINE void follow(const Propagator<2> &p, const int k, Composite *c) {
    Propagator<2> &gate = c->gate[k];
    gate.gained = p.gained + p.kept*gate.gained;
    gate.kept *= p.kept;
}

INLINE void through(const Composite &c, Dual *x) {
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) follow(c.gate[k], k, x);
}

INLINE void begin(Moving &m, const double *nodes, const Dual *p, int &status) {
    createGates(nodes[0], p, m.limit, m.speed, status);
}

// Of a state, Dual[N_X], or of a Composite.
template <class State>
INLINE void step(Moving &m, const double *nodes, const double h, const Dual *p, State *x,
                 int &status) {
    Dual limit[2][N_X], speed[2][N_X];
#pragma unroll 1
    for (int k = 0; k < 2; ++k) createGates(nodes[1 + k], p, limit[k], speed[k], status);
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        const Dual &s0 = m.speed[k], &sm = speed[0][k], &s1 = speed[1][k];
        // Simpson's rule, and the same parabola from the middle on.
        const Dual whole = h*(1.0/6.0)*(s0 + s1 + 4.0*sm);
        const Dual late = h*(1.0/24.0)*(8.0*sm + 5.0*s1 - s0);
        follow(relaxation(smaller(whole, DEEP), late, m.limit[k], limit[0][k], limit[1][k]), k, x);
        m.limit[k] = limit[1][k];
        m.speed[k] = s1;
    }
}"""

_MAGNUS = """
// --- voltage that varies: schemes ----------------------------------------------------------------

constexpr int N_NODES = 11;  // voltages of a step: start, two Gauss points, those of its quarters

struct Moving {};

INLINE void begin(Moving &, const double *, const Dual *, int &) {}
INLINE void arrive(const Moving &, Dual *) {}

// How many terms of Taylor's series are exact to rounding.
INLINE int degree(const double norm) {
    return norm < 1e-6 ? 3 : norm < 1e-3 ? 5 : norm < 0.02 ? 8 : DEGREE;
}

// All terms of exp(A) of a vector but the first; the vector is used up.
INLINE void laterTerms(const Dual *q, const int last, Dual (&term)[N], Dual (&total)[N]) {
    Dual change[N];
#pragma unroll 1
    for (int k = 1; k <= last; ++k) {
        flow(q, term, change);
        const double share = 1.0/k;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            term[i] = change[i]*share;
            total[i] += term[i];
        }
    }
}

// x <- exp(A) x, A from rates times ms: Taylor on the vector where the norm allows, the full
// propagator elsewhere.
__device__ __noinline__ void exponentialOf(const Dual *q, Dual *x) {
    const double norm = exitRate(q);
    if (!(norm <= TAYLOR_NORM)) {
        Dual a[N][N] = {};
        Propagator<N> p;
        fillGenerator(q, a);
        createPropagator(a, p);
        advance(p, x);
        return;
    }
    Dual term[N], total[N] = {};
    term[0] = 1.0;
#pragma unroll
    for (int i = 1; i < N; ++i) {
        term[i] = x[i - 1];
        term[0] -= term[i];
    }
    laterTerms(q, degree(norm), term, total);
#pragma unroll
    for (int i = 1; i < N; ++i) x[i - 1] += total[i];
}

// What some steps make of any state.
struct Composite { Propagator<N> whole; };

INLINE void start(Composite &c) {
#pragma unroll(N <= UNROLLED ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) c.whole.p[i][j] = i == j ? 1.0 : 0.0;
    }
}

INLINE void through(const Composite &c, Dual *x) { advance(c.whole, x); }

// The same of every column.
__device__ __noinline__ void exponentialOf(const Dual *q, Composite *c) {
    const double norm = exitRate(q);
    if (!(norm <= TAYLOR_NORM)) {
        Dual a[N][N] = {};
        Propagator<N> p;
        fillGenerator(q, a);
        createPropagator(a, p);
        multiply(p.p, c->whole.p, a);
#pragma unroll(N <= UNROLLED ? N : 1)
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) c->whole.p[i][j] = a[i][j];
        }
    } else {
        const int last = degree(norm);
#pragma unroll 1
        for (int j = 0; j < N; ++j) {
            Dual term[N], total[N] = {};
#pragma unroll
            for (int i = 0; i < N; ++i) term[i] = c->whole.p[i][j];
            laterTerms(q, last, term, total);
#pragma unroll
            for (int i = 0; i < N; ++i) c->whole.p[i][j] += total[i];
        }
    }
    closeColumns(c->whole.p);
}

// Commutator-free Magnus of order four (Blanes and Moan 2006): two exponentials, from the rates at
// the two Gauss points. Where a rate changes more than 14-fold within a step a combination could
// turn negative; cut at the floor it stays a rate. Returns the largest exit rates times ms.
__device__ __noinline__ double combine(const double *nodes, const double h, const Dual *p,
                                       Dual (&q)[2][N_RATES], int &status) {
    const double more = (0.25 + 0.28867513459481287)*h, less = (0.25 - 0.28867513459481287)*h;
#pragma unroll 1
    for (int k = 0; k < 2; ++k) createQmat(nodes[k], p, q[k], status);
#pragma unroll(N_RATES <= 12 ? N_RATES : 1)
    for (int i = 0; i < N_RATES; ++i) {
        const Dual one = q[0][i], two = q[1][i];
        q[0][i] = larger(more*one + less*two, FLOOR);
        q[1][i] = larger(less*one + more*two, FLOOR);
    }
    return exitRate(q[0]) + exitRate(q[1]);
}

// Order four is lost where a rate is fast against the step: a candidate of which a state empties
// within it takes quarters instead.
// Of a state, Dual[N_X], or of a Composite.
template <class State>
INLINE void step(Moving &, const double *nodes, const double h, const Dual *p, State *x,
                 int &status) {
    Dual q[2][N_RATES];
    const bool stiff = !(combine(nodes + 1, h, p, q, status) <= 1.0);
#pragma unroll 1
    for (int k = 0; k < (stiff ? 4 : 1); ++k) {
        if (stiff) combine(nodes + 3 + 2*k, 0.25*h, p, q, status);
#pragma unroll 1
        for (int part = 0; part < 2; ++part) exponentialOf(q[part], x);
    }
}"""

_SAMPLES = """
// Samples and their steps, from nodes on. Those of a state are written from point on of a run.
INLINE void walkSamples(const double dt, const int n, const int n_sub, const int run,
                        const int point, const double *nodes, const Dual *p, const Dual &g,
                        const Dual &e, Dual *x, const Trace &trace, int &status) {
    Moving m;
    begin(m, nodes, p, status);
    arrive(m, x);
#pragma unroll 1
    for (int sample = 0; sample < n; ++sample) {
        if (run >= 0) write(trace, run, point + sample, g*(nodes[0] - e)*openOf(x));
#pragma unroll 1
        for (int k = 0; k < n_sub; ++k, nodes += N_NODES) step(m, nodes, dt, p, x, status);
    }
}"""

_MOVE = """
INLINE void walkMove(const Move &move, const double *nodes, const Dual *p, const Dual &g,
                     const Dual &e, const Scratch &, Dual *x, const Trace &trace, int &status) {
    walkSamples(move.dt, move.n, move.n_sub, move.run, 0, nodes + move.nodes, p, g, e, x, trace,
                status);
    check(x, status);
}"""

_SEEDED = """
// Parameters of a candidate, and which of them the directions `first` and on are.
INLINE void seed(const double *parameters, const long long n, const int candidate,
                 const int *free, const int n_free, const int first, Dual (&p)[N_PARAMETERS]) {
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameters[k*n + candidate];
    EACH_TANGENT {
        const int place = first + t < n_free ? free[first + t] : -1;
#pragma unroll
        for (int k = 0; k < N_PARAMETERS; ++k) p[k].d[t] = k == place ? 1.0 : 0.0;
    }
}"""

_CUT = f"""
#if VARYING
// --- runs at varying voltage, cut into segments --------------------------------------------------

// n samples of n_sub steps of dt ms; the first is point of a run (-1: not wanted).
struct Segment {{
    double dt;
    int n, n_sub, nodes, run, point, unused;
}};

// Numbers of any kind, those of neighboring threads side by side.
template <class T> INLINE void store(const T &value, double *place, const long long n_threads) {{
    const double *from = reinterpret_cast<const double *>(&value);
#pragma unroll
    for (int k = 0; k < int(sizeof(T)/sizeof(double)); ++k) place[k*n_threads] = from[k];
}}

template <class T> INLINE void load(const double *place, const long long n_threads, T &value) {{
    double *to = reinterpret_cast<double *>(&value);
#pragma unroll
    for (int k = 0; k < int(sizeof(T)/sizeof(double)); ++k) to[k] = place[k*n_threads];
}}

// Where thread i of n_threads keeps what a segment has of type T.
template <class T> INLINE long long placeOf(const int segment, const long long n_threads,
                                            const long long i) {{
    return segment*(long long)(sizeof(T)/sizeof(double))*n_threads + i;
}}

struct State {{ Dual x[N_X]; }};

// From end to end of the segments of a move; the states between them are left for the replay.
INLINE void walkMove(const Move &move, const double *, const Dual *, const Dual &, const Dual &,
                     const Scratch &scratch, Dual *x, const Trace &, int &status) {{
    const long long i = scratch.thread, n = scratch.n_threads;
#pragma unroll 1
    for (int s = move.first; s < move.first + move.n_segments; ++s) {{
        State state;
        Composite c;
        for (int k = 0; k < N_X; ++k) state.x[k] = x[k];
        store(state, scratch.states + placeOf<State>(s, n, i), n);
        load(scratch.composites + placeOf<Composite>(s, n, i), n, c);
        through(c, x);
        check(x, status);
    }}
}}

// What segment blockIdx.y makes of any state, for thread i as in the walk.
extern "C" __global__ void {COMPOSE_TANGENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Segment *__restrict__ segments,
    const double *__restrict__ nodes, double *__restrict__ composites,
    signed char *__restrict__ statuses) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n*n_groups) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Segment segment = segments[blockIdx.y];
    Dual p[N_PARAMETERS];
    seed(parameters, n, candidate, free, n_free, group*TANGENTS, p);
    int status = OK;
    Moving m;
    Composite c;
    start(c);
    const double *node = nodes + segment.nodes;
    begin(m, node, p, status);
#pragma unroll 1
    for (int k = 0; k < segment.n*segment.n_sub; ++k, node += N_NODES)
        step(m, node, segment.dt, p, &c, status);
    store(c, composites + placeOf<Composite>(blockIdx.y, n*n_groups, i), n*n_groups);
    if (group == 0) statuses[(long long)blockIdx.y*n + candidate] = (signed char)status;
}}

// The residuals of segment blockIdx.y from the state that the walk found.
extern "C" __global__ void {REPLAY_TANGENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Segment *__restrict__ segments,
    const double *__restrict__ nodes, const double *__restrict__ states,
    const Run *__restrict__ runs, const double *__restrict__ data,
    double *__restrict__ residuals) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    const Segment segment = segments[blockIdx.y];
    if (i >= n*n_groups || segment.run < 0) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Trace trace = {{runs, data, residuals, n, candidate, n_free, group*TANGENTS}};
    Dual p[N_PARAMETERS], g, e;
    seed(parameters, n, candidate, free, n_free, trace.first, p);
    int status = OK;
    createGains(p, g, e, status);
    State state;
    load(states + placeOf<State>(blockIdx.y, n*n_groups, i), n*n_groups, state);
    walkSamples(segment.dt, segment.n, segment.n_sub, segment.run, segment.point,
                nodes + segment.nodes, p, g, e, state.x, trace, status);
}}
#endif
"""

_KERNEL = f"""
// --- the kernel ----------------------------------------------------------------------------------

INLINE void copy(const Dual *from, Dual *to) {{
#pragma unroll
    for (int i = 0; i < N_X; ++i) to[i] = from[i];
}}

INLINE void walkHeld(const Visit &visit, const Step *steps, const Dual *q, const Dual &scale,
                     Dual (&slots)[N_SLOTS][N_X], const Trace &trace, int &status) {{
    Propagators first, p;
    createPropagators(q, visit.dt, first);
    int level = 0;
    p = first;
#pragma unroll 1
    for (int s = visit.first; s < visit.last; ++s) {{
        const Step step = steps[s];
        Dual x[N_X];
        if (step.level < level) {{
            level = 0;
            p = first;
        }}
#pragma unroll 1
        for (; level < step.level; ++level) square(p);
        copy(slots[step.source], x);
        arrive(first, x);
        int point = step.point;
        if (step.lead && step.run >= 0) write(trace, step.run, point++, scale*openOf(x));
#pragma unroll 1
        for (int k = 0; k < step.steps; ++k) {{
            advance(p, x);
            if (step.run >= 0) write(trace, step.run, point++, scale*openOf(x));
        }}
        copy(x, slots[step.target]);
        check(x, status);
    }}
}}

// The n candidates through job blockIdx.y: thread i has candidate i/n_groups and the directions
// (i % n_groups)*TANGENTS and on, by parameters free[]. Writes residuals, pA times the root of a
// weight, and behind each its derivatives; status (jobs, n).
extern "C" __global__ void {TRACE_TANGENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const int *__restrict__ jobs,
    const Visit *__restrict__ visits, const Step *__restrict__ steps,
    const Move *__restrict__ moves, const double *__restrict__ nodes,
    const Run *__restrict__ runs, const double *__restrict__ data,
    const double *__restrict__ composites, double *__restrict__ states,
    double *__restrict__ residuals, signed char *__restrict__ statuses) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n*n_groups) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Trace trace = {{runs, data, residuals, n, candidate, n_free, group*TANGENTS}};
    Dual p[N_PARAMETERS];
    seed(parameters, n, candidate, free, n_free, trace.first, p);
    Dual slots[N_SLOTS][N_X], g, e;
    int status = OK;
    createGains(p, g, e, status);
#pragma unroll 1
    for (int k = jobs[blockIdx.y]; k < jobs[blockIdx.y + 1]; ++k) {{
        const Visit visit = visits[k];
#if VARYING
        if (visit.kind == VARYING_VOLTAGE) {{
            const Move move = moves[visit.first];
            Dual x[N_X];
            copy(slots[move.source], x);
            const Scratch scratch = {{composites, states, n*n_groups, i}};
            walkMove(move, nodes, p, g, e, scratch, x, trace, status);
            copy(x, slots[move.target]);
            continue;
        }}
#endif
        Dual q[N_RATES];
        createQmat(visit.v, p, q, status);
        if (visit.kind == REST) {{
            Dual x[N_X] = {{}};
            initStateProbs(q, x);
            copy(x, slots[visit.first]);
        }} else {{
            walkHeld(visit, steps, q, g*(visit.v - e), slots, trace, status);
        }}
    }}
    if (group == 0) statuses[(long long)blockIdx.y*n + candidate] = (signed char)status;
}}
"""

_ALGEBRA = f"""
// --- from residuals to cost, gradient and curvature ----------------------------------------------

// Inner products of the columns of rows (n, n_rows, width), in parts of {ALGEBRA_ROWS} rows:
// entries (i, j <= i), row after row, to partial (parts, n, entries), from part `first` on.
extern "C" __global__ void {MULTIPLY_TANGENTS}(
    const double *__restrict__ rows, const int n_rows, const int width, const int first,
    double *__restrict__ partial) {{
    __shared__ double sums[{ALGEBRA_THREADS}];
    const int n_entries = width*(width + 1)/2, lane = threadIdx.x/n_entries;
    const int lanes = max(1, {ALGEBRA_THREADS}/n_entries), begin = blockIdx.y*{ALGEBRA_ROWS};
    const int end = min(n_rows, begin + {ALGEBRA_ROWS});
    rows += (long long)blockIdx.x*n_rows*width;
    partial += ((long long)(first + blockIdx.y)*gridDim.x + blockIdx.x)*n_entries;
    for (int base = 0; base < n_entries; base += {ALGEBRA_THREADS}) {{
        const int entry = base + threadIdx.x - lane*n_entries;
        const bool active = lane < lanes && entry < n_entries;
        int i = 0;
        while ((i + 1)*(i + 2)/2 <= entry) ++i;
        const int j = entry - i*(i + 1)/2;
        double sum = 0.0;
        if (active) {{
#pragma unroll 4
            for (int row = begin + lane; row < end; row += lanes)
                sum += rows[(long long)row*width + i]*rows[(long long)row*width + j];
        }}
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (active && lane == 0) {{
            for (int other = 1; other < lanes; ++other) sum += sums[threadIdx.x + other*n_entries];
            partial[entry] = sum;
        }}
        __syncthreads();
    }}
}}

// The parts added up in their order, the worst of a candidate's statuses (n_statuses, n), and where
// it is good the derivatives, by parameters, of what was 0: gradient (n_parameters, n), curvature
// (n_parameters, n_parameters, n).
extern "C" __global__ void {CONCLUDE_TANGENTS}(
    double *__restrict__ partial, const int n_parts, const int width,
    const signed char *__restrict__ statuses, const int n_statuses, const int *__restrict__ free,
    const int n_parameters, const double constant, const double total_weight,
    double *__restrict__ cost, signed char *__restrict__ status, double *__restrict__ gradient,
    double *__restrict__ curvature) {{
    __shared__ int worst;
    const long long n = gridDim.x, candidate = blockIdx.x;
    const int n_entries = width*(width + 1)/2;
    double *sums = partial + candidate*n_entries;
    if (threadIdx.x == 0) worst = OK;
    __syncthreads();
    int own = OK, infinite = 0;
    for (int entry = threadIdx.x; entry < n_entries; entry += blockDim.x) {{
        double sum = 0.0;
#pragma unroll 4
        for (int part = 0; part < n_parts; ++part) sum += sums[part*n*n_entries + entry];
        sums[entry] = sum = (entry ? sum : sum + constant)/total_weight;
        infinite |= !isfinite(sum);
    }}
    for (int k = threadIdx.x; k < n_statuses; k += blockDim.x) {{
        const int other = statuses[k*n + candidate];
        own = other == NOT_FINITE ? 127 : max(own, other);  // which outdoes any other
    }}
    atomicMax(&worst, own);
    const bool lost = __syncthreads_or(infinite);
    const int code = worst == 127 || (worst == OK && lost) ? NOT_FINITE : worst;
    if (threadIdx.x == 0) {{
        cost[candidate] = code == OK ? sums[0] : 1.0/0.0;
        status[candidate] = (signed char)code;
    }}
    if (code != OK) return;
    for (int i = 1 + threadIdx.x; i < width; i += blockDim.x) {{
        const long long p = free[i - 1];
        const double *row = sums + i*(i + 1)/2;
        gradient[p*n + candidate] = 2.0*row[0];
        for (int j = 1; j <= i; ++j) {{
            const long long q = free[j - 1];
            curvature[(p*n_parameters + q)*n + candidate] = 2.0*row[j];
            curvature[(q*n_parameters + p)*n + candidate] = 2.0*row[j];
        }}
    }}
}}
"""
