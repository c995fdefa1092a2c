"""A channel as CUDA that scores one candidate a thread by stepping through its occupancies.

A thread walks the visits of one job of `schedule.Schedule`. A visit builds what one voltage and
interval need, in registers where it fits, and serves all its runs:

* rows c P^j of j samples on, so that a sample costs n - 1 multiply-adds, one subtraction of the
  datum and one multiply-add for its square; conductance and driving force are in the rows,
* the step x <- x + F x + b of STRIDE samples, and those of 1, 2, 4 .. for what is left over.

Up to ten states every loop over a matrix is written out. In a loop that is not, the matrix lies in
local memory and each multiply-add waits for two loads, eight times what the arithmetic takes.

All threads of a block read the same data at the same time: sixteen bytes a load serve a warp.

What a sample of the two-gate hERG model costs where the voltage moves, in float32, counted in the
machine code for sm_90: about 115 instructions, 12 of them on the special-function units (8 rates,
an exponential and a reciprocal a gate); where any candidate of a warp is stiff, 75 more, 8 of them
such. They take a warp 8 cycles each, 96 to 160 in all, beside the 115 to 190 of the others.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from channelfit.model.channel import GREATEST_OCCUPANCY, RATE_FLOOR, Chain, ChannelModel
from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.cuda_common import CudaChannel, CudaWriter
from channelfit.scoring.kernels.fast_rates import CUDA as FAST_RATES
from channelfit.scoring.kernels.fast_rates import GREATEST_NORM

#: Names of the kernels.
SWEEP, ADD_JOBS, LISTED = "runSweep", "addJobs", "scoreListed"

_SINGLE_FLOOR = 1e-30  # 1/ms, of a speed in float32
_ROW_WORDS = 80  # 32-bit registers that the rows of a table may take
_MOST_IN_REGISTERS = 10  # states; larger tables live in local memory
#: States up to which the series of rates that are too fast is written out, and those up to which
#: rates and steady states are inlined. Of more, loops and calls spare the compiler a third.
_FEW, _MOST_INLINED = 5, 8
#: States of which four matrices fit, those of a dense Taylor polynomial.
_FOUR_FIT = {"float32": 5, "float64": 4}


class CudaSource:
    """The generated text of one model and one stepping precision.

    Arguments:
        dtype: ``float32`` or ``float64``, of tables and steps. Rates at held voltages and steady
            states are in float64 always.

    Attributes:
        text: the source; what is compiled is that of `specialized`.
        hash: 16 hexadecimal digits of its SHA-256.
        stride: runs of data must begin at multiples of it and fill them up.
        options: for the compiler.
    """

    def __init__(self, model: ChannelModel, dtype: str = "float64") -> None:
        self.model, self.dtype = model, dtype
        self.single = dtype == "float32"
        self.channel = CudaChannel(model)
        self.chains = [(k, c) for k, c in enumerate(model.chains) if len(c.states) > 1]
        n_row = sum(len(c.states) for _, c in self.chains)
        self.largest = max(len(c.states) for c in model.chains)
        self.channel.inlined = self.largest <= _MOST_INLINED
        self.stride = self._stride(n_row)
        self._steps = self._text()
        self.text = self._steps + _KERNELS
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        # Approximate division errs by two units in the last place.
        fast = ("--prec-div=false", "--prec-sqrt=false") if self.single else ()
        self.options = fast

    def specialized(
        self, n_slots: int, varying: bool, traced: bool | None = False, listed: bool = False
    ) -> str:
        """The text for one schedule.

        Arguments:
            n_slots: state slots, at least those of the schedule.
            varying: whether any of its runs is at varying voltage.
            traced: write currents instead of adding up squares; None: whichever a launch wants,
                so that both take one compilation.
            listed: with the kernel for a list of candidates instead of those for all.
        """
        lines = [f"#define N_SLOTS {n_slots}", f"#define VARYING {int(varying)}"]
        lines.append(f"#define TRACED {2 if traced is None else int(traced)}")
        text = self._steps + _LISTED if listed else self.text
        return "\n".join([*lines, text])

    def voltages(self, nodes_mV: np.ndarray) -> np.ndarray:
        """Voltages of one varying run as the text reads them.

        Arguments:
            nodes_mV: (n_steps, n_nodes) at `packing.NODES` of every step.

        Returns:
            Flat: for chains of two states the first start twice, then middle and end of each step;
            for schemes the start, the Gauss points, and a place left empty, of each step.
        """
        if self.model.relaxes:
            return np.concatenate([nodes_mV[0, [0, 0]], nodes_mV[:, 1:3].ravel()])
        return nodes_mV[:, [0, *range(3, nodes_mV.shape[1]), 0]].ravel()

    def _stride(self, n_row: int) -> int:
        if self.largest > _MOST_IN_REGISTERS:
            return 16
        stride, words = 16, 1 if self.single else 2
        while stride > 4 and stride * n_row * words > _ROW_WORDS:
            stride //= 2
        return stride

    # --- pieces of text

    def _text(self) -> str:
        w = CudaWriter()
        w(self.channel.title(f"stepping in {self.dtype}"), "")
        w("#ifndef N_SLOTS  // what the protocols decide: `CudaSource.specialized` defines it")
        w("#define N_SLOTS 16  // of states that runs start from", "#define VARYING 1")
        w("#define TRACED 0  // 1: currents instead of sums of squares; 2: where there is a trace")
        w("#define LISTED 0  // the kernel for a list of candidates", "#endif", "")
        w(f"typedef {'float' if self.single else 'double'} real;")
        # Where the voltage varies registers are better spent on more threads than on rows.
        shorter = min(self.stride, 8)
        for condition, stride in (("#if VARYING", shorter), ("#else", self.stride)):
            w(condition, f"constexpr int STRIDE = {stride};  // samples that one step takes")
            w(f"constexpr int POWERS = {stride.bit_length() - 1};  // 1, 2, 4 .. below STRIDE")
        w("#endif")
        w(f"constexpr int DEGREE = {8 if self.single else 12};  // of Taylor's polynomial")
        w("constexpr double TAYLOR_NORM = 1.0/3.0;  // where it is exact to rounding")
        w(f"constexpr double GREATEST_NORM = {GREATEST_NORM[self.dtype]!r};  // see fast_rates.py")
        w(f"constexpr int KEPT = {_MOST_IN_REGISTERS};  // states: loops written out, in registers")
        w(f"constexpr real OUTSIDE = {1e-3 if self.single else 1e-6!r};  // how far x may stray")
        self.channel.write(w)
        w(*_PROGRAM.splitlines())
        w(*_PROPAGATOR.splitlines(), *FAST_RATES.splitlines())
        w(*_SLOW_SERIES.splitlines())
        self._table(w)
        self._state(w)
        w(f"constexpr int LARGEST = {self.largest};  // states of a chain")
        w(*_HELD.splitlines())
        w("", "#if VARYING")
        self._moving_rates(w)
        if self.model.relaxes:
            w(*_RELAXATION.splitlines(), *(_RELAX if self.single else _RELAX_DOUBLE).splitlines())
        else:
            self._scheme(w)
            w(*_MAGNUS.splitlines())
        w(*(_REASONS if self.single else _NO_REASONS).splitlines(), *_VARYING.splitlines())
        w("#endif")
        w(*_WALK.splitlines())
        return w.text

    def _table(self, w: CudaWriter) -> None:
        """The table of all chains at one voltage, and how it is made."""
        sizes = [(k, len(c.states)) for k, c in self.chains]
        w("", "// A chain at one voltage: row[j][0] + sum row[j][i]*x[i - 1] is open j samples on;")
        w("// STRIDE samples on, it is in x + step[.][0] + sum step[.][i]*x[i - 1].")
        w("struct Table {", "    real scale;  // pA for each unit that the rows multiply up to")
        w(*(f"    real row{k}[STRIDE][{n}], step{k}[{n - 1}][{n}];" for k, n in sizes), "};")
        w("", "// Steps of 1, 2, 4 .. samples.", "struct Parts {")
        w(*(f"    real step{k}[POWERS][{n - 1}][{n}];" for k, n in sizes), "};")
        for k, n in sizes:
            if n > 2:
                self._propagator(w, k, n)
        with w.device(
            "void createTable(const double *q, const double h, real scale, const int n,\n"
            "                                            Table &t, Parts &parts)",
            "All chains, for runs of at most n samples, h ms apart.",
        ):
            folded = self._folded()
            if self._always_open() != 1:
                w(f"scale *= real({self._always_open()!r});")
            w(f"t.scale = {'scale' if folded is None else '1'};")
            for k, chain in self.chains:
                with w.block(""):
                    self._chain_table(w, k, chain, "scale" if k == folded else "1")

    def _always_open(self) -> float:
        """What chains of one state contribute to the open probability."""
        lone = [c for c in self.model.chains if len(c.states) == 1]
        return math.prod(c.conductances[0] ** c.power for c in lone)

    def _folded(self) -> int | None:
        """The chain whose rows can hold the scale: one that enters the current to the first."""
        return next((k for k, chain in self.chains if chain.power == 1), None)

    def _chain_table(self, w: CudaWriter, k: int, chain: Chain, scale: str) -> None:
        n, entries = len(chain.states), self.channel.entries(k)
        w(f"real p[{n}][{n}] = {{}};")
        if n == 2:
            up = next(row for source, _, row in entries if source == 0)
            down = next(row for source, _, row in entries if source == 1)
            w(f"createRelaxation(q[{up}], q[{down}], h, p);")
        else:
            self._leaving(w, k, "double", "q")
            first = self.channel.first_rate[k]
            w("const int levels = halvings(fmin(fastest*h, GREATEST_NORM));")
            with w.block("if (fastest*h > GREATEST_NORM)"):
                w(f"slowSeries{k}(q + {first}, h, p);")
            with w.block("else"):
                w("const double shrunk = h*__hiloint2double((1023 - levels) << 20, 0);")
                w(f"real r[{len(entries)}];", "#pragma unroll")
                w(f"for (int i = 0; i < {len(entries)}; ++i) r[i] = real(q[{first} + i]*shrunk);")
                w(f"createSeries{k}(r, p);")
            w("squareOften(levels, p);  // together, whichever way a thread has come")
        opened = ", ".join(
            "0" if c == 0 else scale if c == 1 else f"real({c!r})*{scale}"
            for c in chain.conductances
        )
        w(f"real c[{n}] = {{{opened}}};")
        w(f"fillTable(p, c, n, t.row{k}, t.step{k}, parts.step{k});")

    def _propagator(self, w: CudaWriter, k: int, n: int) -> None:
        """What makes a chain's propagator of its rates, but for the squarings."""
        first = self.channel.first_rate[k]
        entries = [(i, j, f"r[{row - first}]") for i, j, row in self.channel.entries(k)]
        self._slow_series(w, k, n)
        with w.device(
            f"void createSeries{k}(const real *r, real (&p)[{n}][{n}])",
            "exp(A), the rates r in the generator A, of a norm of TAYLOR_NORM at most.",
        ):
            if not _FOUR_FIT[self.dtype] < n <= _MOST_IN_REGISTERS:
                w(f"real a[{n}][{n}] = {{}};", *(f"a[{j}][{i}] = {r};" for i, j, r in entries))
                w("createSeries(a, p);")
                return
            w("// 1 + A/1 (1 + A/2 (..)): a generator is sparse, and p alone fits the registers")
            w(f"real out[{n}];", "unit(p);")
            for i in range(n):
                w(f"out[{i}] = {' + '.join(r for source, _, r in entries if source == i) or '0'};")
            w("#pragma unroll 1")
            with w.block("for (int k = DEGREE; k > 0; --k)"):
                w("const real share = real(1)/k;", "#pragma unroll")
                with w.block(f"for (int j = 0; j < {n}; ++j)"):
                    w(f"real y[{n}];")
                    for i in range(n):
                        terms = [f"{r}*p[{source}][j]" for source, j, r in entries if j == i]
                        w(f"y[{i}] = {' + '.join(terms) or '0'} - out[{i}]*p[{i}][j];")
                    w("#pragma unroll")
                    w(f"for (int i = 0; i < {n}; ++i) p[i][j] = share*y[i] + (i == j ? 1 : 0);")
            w("closeColumns(p);")

    def _slow_series(self, w: CudaWriter, k: int, n: int) -> None:
        """The same where rates are too fast for anything but their ratios, see `fast_rates`."""
        first = self.channel.first_rate[k]
        w("", "// exp(A h) before its squarings, where only ratios are left of the fastest rates.")
        with w.block(
            f"template <class Rate> __device__ __noinline__ void slowSeriesOf{k}(\n"
            f"    const Rate *q, const double h, real *p)"
        ):
            w("constexpr double per = 1.0/GREATEST_NORM;")
            w(f"double b[{n}][{n}] = {{}}, r[{n}][{n}];")
            for i, j, row in self.channel.entries(k):
                w(f"b[{j}][{i}] = double(q[{row - first}])*h*per;")
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
            kept = n * n if n <= _MOST_IN_REGISTERS else 1
            w(f"slowSeriesOf{k}(q, h, out);", f"#pragma unroll({kept})")
            w(f"for (int i = 0; i < {n * n}; ++i) p[i/{n}][i % {n}] = out[i];")

    def _leaving(self, w: CudaWriter, k: int, kind: str, q: str) -> None:
        """`fastest`, the largest rate of leaving any state of a chain."""
        leaving: dict[int, list[str]] = {}
        for source, _, row in self.channel.entries(k):
            leaving.setdefault(source, []).append(f"{q}[{row}]")
        first, *others = (" + ".join(rates) for rates in leaving.values())
        w(f"{kind} fastest = {first}, leaving;")
        for rates in others:
            w(f"leaving = {rates};", "fastest = leaving > fastest ? leaving : fastest;")

    def _state(self, w: CudaWriter) -> None:
        """What is read off the occupancies: currents, steps, whether they are probabilities."""
        with w.device(
            "real residual(const Table &t, const int j, const real *x, const real datum)",
            "Current j samples on, pA, less the datum.",
        ):
            folded = self._folded()
            if len(self.model.chains) == 1 and folded == 0:
                n = len(self.model.chains[0].states)
                terms = "".join(f" + t.row0[j][{i}]*x[{i - 1}]" for i in range(1, n))
                w(f"return (t.row0[j][0] - datum){terms};")
            else:
                factors = []
                for k, chain in self.chains:
                    first, n = self.channel.first_x[k], len(chain.states)
                    terms = "".join(f" + t.row{k}[j][{i}]*x[{first + i - 1}]" for i in range(1, n))
                    w(f"const real o{k} = t.row{k}[j][0]{terms};")
                    factors += [f"o{k}"] * chain.power
                factors += [] if folded is not None else ["t.scale"]
                w(f"return {'*'.join(factors)} - datum;")
        for name, of in (("advance", "Table &t"), ("advancePart", "Parts &t")):
            argument, index = (", const int p", "[p]") if name == "advancePart" else ("", "")
            with w.device(
                f"void {name}(const {of}{argument}, real *x)",
                "The state STRIDE samples on." if not index else "The state 1 << p samples on.",
            ):
                for k, _ in self.chains:
                    w(f"advanceChain(t.step{k}{index}, x + {self.channel.first_x[k]});")
        with w.device(
            "void arrive(const Parts &parts, real *x)", "Gates without a time constant, at once."
        ):
            w(
                *(
                    f"x[{self.channel.first_x[k]}] = parts.step{k}[0][0][0];"
                    for k, chain in self.chains
                    if chain.instant
                )
            )
        with w.device(
            "real openOf(const real *x)",
            "Open probability of the state x itself.",
        ):
            self._open(w)
        with w.device(
            "bool lost(const real *x)", "Whether occupancies, NaN included, left [0, 1]."
        ):
            tests = []
            for k, chain in self.chains:
                xs = [f"x[{self.channel.first_x[k] + i}]" for i in range(len(chain.states) - 1)]
                if chain.linear:
                    tests.append(f"fabs({xs[0]}) < {GREATEST_OCCUPANCY!r}")
                    continue
                tests += [f"{x} >= -OUTSIDE" for x in xs] + [f"{' + '.join(xs)} <= 1 + OUTSIDE"]
            w(f"return !({' && '.join(tests) or 'true'});")

    def _open(self, w: CudaWriter) -> None:
        factors = [f"real({self._always_open()!r})"] if self._always_open() != 1 else []
        for k, chain in self.chains:
            c, first = chain.conductances, self.channel.first_x[k]
            terms = [f"real({c[0]!r})"] if c[0] else []
            terms += [
                (f"real({c[i] - c[0]!r})*" if c[i] - c[0] != 1 else "") + f"x[{first + i - 1}]"
                for i in range(1, len(c))
                if c[i] != c[0]
            ]
            w(f"const real o{k} = {' + '.join(terms) or '0'};")
            factors += [f"o{k}"] * chain.power
        w(f"return {'*'.join(factors) or '1'};")

    def _moving_rates(self, w: CudaWriter) -> None:
        """createRates: what a step wants to know of one voltage."""
        if self.single:
            w(*_FAST_MATH.splitlines())
            self.channel.write_single_rates(w)
        create = "createQmatSingle" if self.single else "createQmat"
        w(
            "",
            "// Of rates: below 0 where one is negative (float32), or the status (float64).",
        )
        w(
            "typedef int Flag;",
            f"constexpr real FLOOR = {_SINGLE_FLOOR if self.single else RATE_FLOOR!r};",
        )
        if not self.model.relaxes:
            with w.device(
                "void createRates(const real v, const real *p, real *q, Flag &flag)",
                "Rates at v mV, 1/ms.",
            ):
                w(f"{create}(v, p, q, flag);")
            return
        w(f"constexpr int N_GATES = {len(self.chains)};")
        self.channel.write_kinds(w)
        with w.device(
            "void createRates(const real v, const real *p, real *up, real *speed, Flag &flag)",
            "Chains of two states at v mV: rate of opening; that and of closing, 1/ms.",
        ):
            w("real q[N_RATES];", f"{create}(v, p, q, flag);")
            for x, (k, _) in enumerate(self.chains):
                rows = {source: row for source, _, row in self.channel.entries(k)}
                w(f"up[{x}] = q[{rows[0]}];")
                speed = f"q[{rows[0]}] + q[{rows[1]}]"
                w(f"speed[{x}] = {f'most({speed}, FLOOR)' if self.single else speed};")

    def _scheme(self, w: CudaWriter) -> None:
        """What a scheme's exponential needs to know of its topology."""
        k, chain = 0, self.model.chains[0]
        n, entries = len(chain.states), self.channel.entries(k)
        w(f"constexpr int N = {n};")
        with w.device("real exitRate(const real *q)", "The largest rate of leaving a state."):
            self._leaving(w, k, "real", "q")
            w("return fastest;")
        with w.device(
            "void flow(const real *q, const real *x, real *dx)", "The generator times a state."
        ):
            w("real flux;", *(f"dx[{i}] = 0;" for i in range(n)))
            for i, j, row in entries:
                w(f"flux = q[{row}]*x[{i}];", f"dx[{i}] -= flux;", f"dx[{j}] += flux;")


_PROGRAM = f"""
{cuda_names()}

// --- what a thread walks through: see Schedule ---------------------------------------------------

struct Visit {{
    double v, dt;        // mV and ms between samples; not used where the voltage varies
    int first, last;     // runs
    int longest, kind;   // samples of the longest run; 0 held, 1 varying
}};

struct Run {{
    double weight, dt;   // of a sample; ms a sub-step (varying)
    int n, data;         // samples, and where their data (or traces) begin
    int source, target;  // state slots; target -1 where nobody needs the end
    int n_sub, nodes;    // varying: sub-steps a sample; where its voltages begin
    int sampled, unused; // 0 where it is only walked through
}};

struct alignas(16) Samples {{ real datum[16/sizeof(real)]; }};
constexpr int LOADED = 16/sizeof(real);  // samples that one load brings

// The data, or where the currents go to; and what they add up to.
struct Tally {{
    const real *data;
    real *trace;
    long long stride;
    double cost;
    int status;
}};

__device__ __forceinline__ bool tracing(const Tally &tally) {{
    return TRACED == 2 ? tally.trace != nullptr : TRACED == 1;
}}

__device__ __forceinline__ void loadParameters(const double *parameters, const long long stride,
                                               double *p) {{
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameters[k*stride];
}}

__device__ __forceinline__ void check(const bool lost, int &status) {{
    if (lost && status == OK) status = OCCUPANCY_LOST;
}}"""

_SLOW_SERIES = """
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

_PROPAGATOR = """
// --- propagators ---------------------------------------------------------------------------------

// How often a norm must be halved until it is at most TAYLOR_NORM, read off its exponent.
__device__ __forceinline__ int halvings(const double norm) {
    const int exponent = (__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1022;
    return exponent > 0 ? exponent : 0;
}

template <int N>
__device__ __forceinline__ void multiply(const real (&a)[N][N], const real (&b)[N][N],
                                         real (&out)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll(N <= KEPT ? N : 1)
        for (int j = 0; j < N; ++j) {
            real sum = a[i][0]*b[0][j];
#pragma unroll
            for (int k = 1; k < N; ++k) sum += a[i][k]*b[k][j];
            out[i][j] = sum;
        }
    }
}

// One instruction for float32; for float64 fmax would take eight.
__device__ __forceinline__ float notNegative(float x) { return fmaxf(x, 0.0f); }
__device__ __forceinline__ double notNegative(double x) { return x > 0.0 ? x : 0.0; }

// The diagonal is what is left of one: columns sum to one and nothing is negative.
template <int N> __device__ __forceinline__ void closeColumns(real (&p)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int j = 0; j < N; ++j) {
        real rest = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) rest += i != j ? p[i][j] : real(0);
        p[j][j] = notNegative(1 - rest);
    }
}

template <int N> __device__ __forceinline__ void square(real (&p)[N][N]) {
    real out[N][N];
    multiply(p, p, out);
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) p[i][j] = out[i][j];
    }
    closeColumns(p);
}

template <int N> __device__ __forceinline__ void squareOften(const int levels, real (&p)[N][N]) {
#pragma unroll 1
    for (int level = 0; level < levels; ++level) square(p);
}

template <int N> __device__ __forceinline__ void unit(real (&p)[N][N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) p[i][j] = i == j ? 1 : 0;
    }
}

// Two terms: p = 1 + a/(k + 1) + b/((k + 1)(k + 2)).
template <int N>
__device__ __forceinline__ void taylor(const int k, const real (&a)[N][N], const real (&b)[N][N],
                                       real (&p)[N][N]) {
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
template <int N>
__device__ __forceinline__ void createSeries(real (&a)[N][N], real (&p)[N][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int j = 0; j < N; ++j) {
        real out = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) out += i != j ? a[i][j] : real(0);
        a[j][j] = -out;
    }
    real a2[N][N], next[N][N];
    multiply(a, a, a2);
    taylor(DEGREE - 2, a, a2, p);
#pragma unroll(N <= 3 ? DEGREE/2 : 1)
    for (int k = DEGREE - 4; k >= 0; k -= 2) {
        multiply(a2, p, next);
        taylor(k, a, next, p);
    }
    closeColumns(p);
}

// A propagator of two states, which relax: 1 - exp(-(up + down) h) of the way to the limit.
__device__ __forceinline__ void createRelaxation(const double up, const double down,
                                                 const double h, real (&p)[2][2]) {
    const double gone = decay((up + down)*h)*reciprocal(up + down);
    p[1][0] = real(up*gone);
    p[0][1] = real(down*gone);
    closeColumns(p);
}

// F and b of x <- x + F x + b: b_i = P_i0 and F_ij = P_ij - P_i0 - (i == j).
template <int N>
__device__ __forceinline__ void createStep(const real (&p)[N][N], real (&step)[N - 1][N]) {
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 1; i < N; ++i) {
        real out = 0;  // P_ii - 1 without cancellation
#pragma unroll
        for (int k = 0; k < N; ++k) out -= k != i ? p[k][i] : real(0);
        step[i - 1][0] = p[i][0];
#pragma unroll
        for (int j = 1; j < N; ++j) step[i - 1][j] = (i == j ? out : p[i][j]) - p[i][0];
    }
}

template <int N>
__device__ __forceinline__ void multiplyRow(real (&c)[N], const real (&p)[N][N]) {
    real next[N];
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N; ++i) {
        next[i] = c[0]*p[0][i];
#pragma unroll
        for (int k = 1; k < N; ++k) next[i] += c[k]*p[k][i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) c[i] = next[i];
}

// Rows c P^j and steps of 1, 2, 4 .. samples; p ends as the propagator of STRIDE samples.
template <int N>
__device__ __forceinline__ void fillTable(real (&p)[N][N], real (&c)[N], const int n,
                                          real (&row)[STRIDE][N], real (&step)[N - 1][N],
                                          real (&part)[POWERS][N - 1][N]) {
#pragma unroll(N <= KEPT ? STRIDE : 1)
    for (int j = 0; j < STRIDE; ++j) {
        row[j][0] = c[0];
#pragma unroll
        for (int i = 1; i < N; ++i) row[j][i] = c[i] - c[0];
        if (N <= KEPT || n > 1) multiplyRow(c, p);
    }
#pragma unroll 1
    for (int power = 0; power < POWERS; ++power) {
        createStep(p, part[power]);
        if (n == 1) return;
        square(p);
    }
    createStep(p, step);
}

template <int N>
__device__ __forceinline__ void advanceChain(const real (&step)[N - 1][N], real *x) {
    real next[N - 1];
#pragma unroll(N <= KEPT ? N : 1)
    for (int i = 0; i < N - 1; ++i) {
        real change = step[i][0];
#pragma unroll
        for (int j = 1; j < N; ++j) change += step[i][j]*x[j - 1];
        next[i] = x[i] + change;
    }
#pragma unroll
    for (int i = 0; i < N - 1; ++i) x[i] = next[i];
}
"""

_HELD = """
// --- runs at a held voltage ----------------------------------------------------------------------

// Sum of squares of the next STRIDE samples.
__device__ __forceinline__ real squares(const Table &t, const real *x, const Samples *data) {
    real even = 0, odd = 0;
#pragma unroll(LARGEST <= KEPT ? STRIDE : 1)
    for (int k = 0; k < STRIDE/LOADED; ++k) {
        const Samples some = data[k];
#pragma unroll
        for (int j = 0; j < LOADED; ++j) {
            const real r = residual(t, k*LOADED + j, x, some.datum[j]);
            if (j % 2) odd += r*r; else even += r*r;
        }
    }
    return even + odd;
}

// n samples: adds to the cost, or writes the currents. Together, the lanes of a warp share them:
// all go through all strides, and each scores those whose turn is its own.
__device__ __forceinline__ void runHeld(const Run &run, const Table &t, const Parts &parts,
                                        const bool together, real *x, Tally &tally) {
    const int lane = threadIdx.x % 32;
    const int strides = run.n/STRIDE, left = run.n - strides*STRIDE;
    const bool sampled = run.sampled != 0, traces = tracing(tally);
    const Samples *data = (const Samples *)(tally.data + run.data);
    double sum = 0.0;
    if (together) {
#pragma unroll 1
        for (int first = 0; first < strides; first += 32) {
            real own[N_X];
#pragma unroll 1
            for (int k = first; k < strides && k < first + 32; ++k) {
#pragma unroll
                for (int i = 0; i < N_X; ++i) if (k == first + lane) own[i] = x[i];
                advance(t, x);
            }
            if (sampled && first + lane < strides)
                sum += squares(t, own, data + (first + lane)*(STRIDE/LOADED));
        }
    }
#pragma unroll 1
    for (int k = 0; k < strides && !together; ++k, data += STRIDE/LOADED) {
        if (traces && sampled) {
            real *trace = tally.trace + (run.data + k*STRIDE)*tally.stride;
#pragma unroll(LARGEST <= KEPT ? STRIDE : 1)
            for (int j = 0; j < STRIDE; ++j) trace[j*tally.stride] = residual(t, j, x, 0);
        } else if (sampled) {
            sum += squares(t, x, data);
        }
        advance(t, x);
    }
    if (sampled && left && (!together || lane == 0)) {
        const real *last = tally.data + run.data + strides*STRIDE;
        real *trace = tally.trace + (run.data + strides*STRIDE)*tally.stride;
        real rest = 0;
#pragma unroll(LARGEST <= KEPT ? STRIDE : 1)
        for (int j = 0; j < STRIDE; ++j) {
            if (j >= left) continue;
            const real r = residual(t, j, x, traces ? real(0) : last[j]);
            if (traces) trace[j*tally.stride] = r; else rest += r*r;
        }
        sum += rest;
    }
    tally.cost += run.weight*sum;
#pragma unroll 1
    for (int p = 0; p < POWERS && run.target >= 0; ++p)
        if (left >> p & 1) advancePart(parts, p, x);
    check(lost(x), tally.status);
}"""

_FAST_MATH = """
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

// 2^x, never infinite, so that nothing times it is a number.
__device__ __forceinline__ float power2(float x) { return approximatePower2(least(x, 126.0f)); }

__device__ __forceinline__ float exprel(float x) {
    const float series = 1.0f + x*(0.5f + x*(0.16666667f + x*(0.041666668f + x*(0.0083333338f
        + x*(0.0013888889f + x*0.00019841270f)))));
    return fabsf(x) < 0.5f ? series : (power2(1.44269504f*x) - 1.0f)*reciprocal(x);
}"""

_RELAXATION = """
// --- voltage that varies: chains of two states ---------------------------------------------------

constexpr int N_NODES = 2, BEFORE = 2;  // voltages of a step: middle and end; before the first step
constexpr int TOGETHER = sizeof(real) == 4 ? 2 : 1;  // steps: spares moving the end to the start

// What is known at the beginning of a step; `low` (float32) is what x is too coarse to hold.
struct Moving {
    real x[N_X], up[N_X], limit[N_X], speed[N_X], low[N_X], v;
};

struct alignas(2*sizeof(real)) Nodes { real middle, end; };

__device__ __forceinline__ real voltage(const Moving &m, const real *) { return m.v; }

// How often a gate relaxes in a step, from its speed at start, middle and end (Simpson); and how
// often from the middle on: the integral of the same parabola.
__device__ __forceinline__ real relaxations(const real s0, const real sm, const real s1,
                                            const real h) {
    return h*real(1.0/6.0)*(s0 + s1 + 4*sm);
}

__device__ __forceinline__ real relaxationsLate(const real s0, const real sm, const real s1,
                                                const real h) {
    return h*real(1.0/24.0)*(8*sm + 5*s1 - s0);
}
"""

_RELAX_DOUBLE = """
constexpr double DEEP = 1e90;  // relaxations in a step: more make no difference, and overflow

// x' = speed (limit - x). With u the integral of the speed from a time to the end of the step, x is
// exp(-L) x plus the integral of exp(-u) limit over u from 0 to L. The limit is the parabola in u
// through start, middle and end: order four where the gate is slow, and no lag where it is fast.
__device__ __forceinline__ double relaxed(const double x, const double whole, double half,
                                          const double x0, const double xm, const double x1) {
    half = fmin(fmax(half, 0.05*whole), 0.95*whole);
    const double left = exponential(-whole), square = whole*whole;
    // The integrals of exp(-u), u exp(-u), u^2 exp(-u): from the first up where that loses no
    // digits, from the last (a series) down where it would.
    double j0, j1, j2;
    if (whole < 0.5) {
        double series = 0.0, factor = 1.0;
#pragma unroll
        for (int k = 0; k < 14; ++k) {
            series += factor*(1.0/(k + 3));
            factor *= -whole*(1.0/(k + 1));
        }
        j2 = square*whole*series;
        j1 = 0.5*(j2 + square*left);
        j0 = j1 + whole*left;
    } else {
        j0 = 1.0 - left;
        j1 = j0 - whole*left;
        j2 = 2.0*j1 - square*left;
    }
    const double rest = whole - half, inverse = reciprocal(half*whole*rest);
    const double slope = (xm - x1)*(inverse*whole*rest);
    const double bend = ((x0 - x1)*(inverse*half*rest) - slope)*(inverse*half*whole);
    return x*left + x1*j0 + slope*j1 + bend*(j2 - half*j1);
}

__device__ __forceinline__ void begin(Moving &m, const real *nodes, const real *p, Flag &flag) {
    m.v = nodes[1];
    createRates(m.v, p, m.up, m.speed, flag);
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        m.limit[k] = m.up[k]*reciprocal(m.speed[k]);
        if (isInstant(k)) m.x[k] = m.limit[k];
    }
}

__device__ __forceinline__ void step(Moving &m, const real *nodes, const real h, const real *p,
                                     Flag &flag) {
    double up[N_X], speed[N_X], up1[N_X], speed1[N_X];
    createRates(nodes[0], p, up, speed, flag);
    createRates(nodes[1], p, up1, speed1, flag);
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        const double s0 = m.speed[k], sm = speed[k], s1 = speed1[k];
        const double limit = up1[k]*reciprocal(s1);
        const double x = relaxed(m.x[k], fmin(relaxations(s0, sm, s1, h), DEEP),
                                 relaxationsLate(s0, sm, s1, h), m.limit[k],
                                 up[k]*reciprocal(sm), limit);
        m.x[k] = isLinear(k) ? x : fmin(fmax(x, 0.0), 1.0);
        m.limit[k] = limit;
        m.speed[k] = s1;
    }
    m.v = nodes[1];
}"""

_RELAX = """
constexpr float DEEP = 1e6f;  // relaxations in a step: more make no difference, and overflow
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
    // A slow gate moves by less than the last bit of x: what is cut off is kept for the next step.
    const float change = gone*(x + sixth*up0) + (gain + low), sum = x + change;
    low = change - (sum - x);
    x = sum;
}

// The same where the step is stiff. With u from a time to the end, in relaxations, the new x is
// exp(-L) x plus the integral of exp(-u) limit over u from 0 to L, where the limit up/speed is the
// parabola in u through start, middle and end: a fast gate follows it without lag.
__device__ __forceinline__ float relaxStiff(const float x, const float whole, const float late,
                                            const float x0, const float xm, const float x1) {
    const float half = most(0.05f*whole, least(0.95f*whole, late));
    const float left = approximatePower2(-1.44269504f*whole), some = whole*left;
    const float j0 = 1.0f - left, j1 = j0 - some, j2 = 2.0f*j1 - whole*some;
    const float rest = whole - half, inverse = reciprocal(whole*rest);
    const float slope = (xm - x1)*reciprocal(half);
    const float bend = ((x0 - x1)*(inverse*rest) - slope)*(inverse*whole);
    return x*left + x1*j0 + slope*j1 + bend*(j2 - half*j1);
}

__device__ __forceinline__ void begin(Moving &m, const real *nodes, const real *p, Flag &flag) {
    m.v = nodes[1];
    createRates(m.v, p, m.up, m.speed, flag);
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        m.low[k] = 0.0f;
        m.limit[k] = m.up[k]*reciprocal(m.speed[k]);
        if (isInstant(k)) m.x[k] = m.limit[k];
    }
}

// All gates side by side. A thread's step depends on its own candidate only; a warp without a
// stiff one branches past the second half.
__device__ __forceinline__ void step(Moving &m, const real *nodes, const real h, const real *p,
                                     Flag &flag) {
    const Nodes at = *(const Nodes *)nodes;
    float up[N_X], speed[N_X], up1[N_X], speed1[N_X], limit1[N_X], old[N_X], whole[N_X], late[N_X];
    createRates(at.middle, p, up, speed, flag);
    createRates(at.end, p, up1, speed1, flag);
    bool stiff = false;
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        old[k] = m.x[k];
        whole[k] = least(relaxations(m.speed[k], speed[k], speed1[k], h), DEEP);
        late[k] = relaxationsLate(m.speed[k], speed[k], speed1[k], h);
        relaxSlow(m.x[k], m.low[k], whole[k], late[k], m.up[k], up[k], up1[k], h);
        stiff |= !(whole[k] < SLOW);
        limit1[k] = up1[k]*reciprocal(speed1[k]);  // even if not needed here: the next step may
    }
    if (stiff) {
#pragma unroll
        for (int k = 0; k < N_GATES; ++k) {
            const float x = relaxStiff(old[k], whole[k], late[k], m.limit[k],
                                       up[k]*reciprocal(speed[k]), limit1[k]);
            const bool fast = !(whole[k] < SLOW);
            m.x[k] = fast ? (isLinear(k) ? x : least(most(x, 0.0f), 1.0f)) : m.x[k];
            m.low[k] = fast ? 0.0f : m.low[k];
        }
    }
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) {
        m.up[k] = up1[k];
        m.limit[k] = limit1[k];
        m.speed[k] = speed1[k];
    }
    m.v = at.end;
}"""

_MAGNUS = """
// --- voltage that varies: schemes ----------------------------------------------------------------

// States move by little in a step: kept in float64, or single precision would lose it.
struct Moving {
    double x[N_X];
};

constexpr int TOGETHER = 1;
constexpr int N_NODES = 12, BEFORE = 0;  // voltages of a step: start, two Gauss points, of quarters

__device__ __forceinline__ void begin(Moving &, const real *, const real *, Flag &) {}

__device__ __forceinline__ real voltage(const Moving &, const real *nodes) { return nodes[0]; }

// x <- exp(A) x, A from rates times ms: Taylor on the vector where the norm allows, the full
// propagator elsewhere.
__device__ __noinline__ void exponentialOf(const real *q, double *x) {
    double y[N];
    y[0] = 1.0;
    for (int i = 1; i < N; ++i) {
        y[i] = x[i - 1];
        y[0] -= y[i];
    }
    const double norm = exitRate(q);
    if (norm > TAYLOR_NORM) {
        const int levels = halvings(fmin(norm, GREATEST_NORM));
        const double scale = __hiloint2double((1023 - levels) << 20, 0);
        real r[N_RATES], p[N][N];
        if (norm > GREATEST_NORM) {
            slowSeries0(q, 1.0, p);
        } else {
            for (int i = 0; i < N_RATES; ++i) r[i] = q[i]*real(scale);
            createSeries0(r, p);
        }
        squareOften(levels, p);
        for (int i = 1; i < N; ++i) {
            double sum = 0.0;
            for (int j = 0; j < N; ++j) sum += p[i][j]*y[j];
            x[i - 1] = sum;
        }
        return;
    }
    real term[N], total[N] = {}, change[N];
    for (int i = 0; i < N; ++i) term[i] = real(y[i]);
#pragma unroll 1
    for (int k = 1; k <= DEGREE; ++k) {
        flow(q, term, change);
        for (int i = 0; i < N; ++i) {
            term[i] = change[i]*(real(1)/k);
            total[i] += term[i];
        }
    }
    for (int i = 1; i < N; ++i) x[i - 1] += total[i];
}

// Commutator-free Magnus of order four (Blanes and Moan 2006): two exponentials, from the rates at
// the two Gauss points. Where a rate changes more than 14-fold within a step a combination could
// turn negative; cut at the floor it stays a rate. Returns the largest exit rates times ms.
__device__ __forceinline__ real combine(const real *nodes, const real h, const real *p, Flag &flag,
                                        real *early, real *late) {
    const real more = real(0.25 + 0.28867513459481287)*h, less = real(0.25 - 0.28867513459481287)*h;
    createRates(nodes[0], p, early, flag);
    createRates(nodes[1], p, late, flag);
    for (int i = 0; i < N_RATES; ++i) {
        const real one = early[i], two = late[i];
        early[i] = fmax(more*one + less*two, FLOOR);
        late[i] = fmax(less*one + more*two, FLOOR);
    }
    return exitRate(early) + exitRate(late);
}

// Order four is lost where a rate is fast against the step: a candidate of which a state empties
// within it takes quarters instead.
__device__ __forceinline__ void step(Moving &m, const real *nodes, const real h, const real *p,
                                     Flag &flag) {
    real early[N_RATES], late[N_RATES];
#pragma unroll 1
    for (int quarter = -1; quarter < 4; ++quarter) {  // one call: the rates are long
        const bool whole = quarter < 0;
        const real norm = combine(nodes + 3 + 2*quarter, whole ? h : real(0.25)*h, p, flag, early,
                                  late);
        if (whole && norm > 1) continue;
        exponentialOf(early, m.x);
        exponentialOf(late, m.x);
        if (whole) break;
    }
}"""

_NO_REASONS = """
__device__ __forceinline__ int explained(const int status, const int flag, const bool,
                                         const real *, const int, const double *,
                                         const long long) {
    return flag && (status == OK || flag == NOT_FINITE) ? flag : status;
}
"""

_REASONS = """
// The status, where a run in float32 failed as float64 sees its rates at all its voltages.
__device__ __noinline__ int explained(int status, const int flag, const bool lost,
                                      const real *nodes, const int n, const double *parameters,
                                      const long long stride) {
    if (flag >= 0 && !lost) return status;
    double p[N_PARAMETERS], q[N_RATES];
    loadParameters(parameters, stride, p);
    for (int k = 0; k < n; ++k) createQmat(nodes[k], p, q, status);
    return status;
}
"""

_VARYING = """
// n samples while the voltage varies, n_sub (a power of two) steps of dt ms for each.
__device__ __forceinline__ void runVarying(const Run &run, const real *all_nodes,
                                           const double *parameters, const long long stride,
                                           const real g, const real e, real *x, Tally &tally) {
    const real *nodes = all_nodes + run.nodes, h = real(run.dt);
    const bool sampled = run.sampled != 0;
    real p[N_PARAMETERS];
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) {
        volatile real rounded = real(parameters[k*stride]);  // or it is rounded at every sample
        p[k] = rounded;
    }
    Flag flag = 0;
    Moving m;
#pragma unroll
    for (int i = 0; i < N_X; ++i) m.x[i] = x[i];
    begin(m, nodes, p, flag);
    nodes += BEFORE;
    double sum = 0.0;
    int sample = run.data;
    const int steps = run.n*run.n_sub;
#pragma unroll 1
    for (int first = 0; first < steps; first += 16) {
        const int last = min(first + 16, steps);
        real some = 0;
#pragma unroll(TOGETHER)
        for (int k = first; k < last; ++k, nodes += N_NODES) {
            if ((k & (run.n_sub - 1)) == 0) {
                if (sampled) {
#pragma unroll
                    for (int i = 0; i < N_X; ++i) x[i] = real(m.x[i]);
                    const real current = g*(voltage(m, nodes) - e)*openOf(x);
                    if (tracing(tally)) {
                        tally.trace[sample*tally.stride] = current;
                    } else {
                        const real r = current - tally.data[sample];
                        some += r*r;
                    }
                }
                ++sample;
            }
            step(m, nodes, h, p, flag);
        }
        sum += some;
    }
    tally.cost += run.weight*sum;
#pragma unroll
    for (int i = 0; i < N_X; ++i) x[i] = real(m.x[i]);
    tally.status = explained(tally.status, flag, lost(x), all_nodes + run.nodes,
                             BEFORE + steps*N_NODES, parameters, stride);
    check(lost(x), tally.status);
}"""

_WALK = """
// --- kernels -------------------------------------------------------------------------------------

// One candidate through one job.
__device__ __forceinline__ void walk(const bool together,
                                     const double *parameters, const long long stride,
                                     const double *starts, const int n_starts,
                                     const Visit *visits, const Visit *end, const Run *runs,
                                     const real *nodes, Tally &tally) {
    real slots[N_SLOTS][N_X], x[N_X];
    real gain, reversal;
    {
        double p[N_PARAMETERS], g, e;
        loadParameters(parameters, stride, p);
        createGains(p, g, e, tally.status);
        gain = real(g);
        reversal = real(e);
#pragma unroll 1
        for (int k = 0; k < n_starts; ++k) {
            double q[N_RATES], rest[N_X] = {};
            createQmat(starts[k], p, q, tally.status);
            initStateProbs(q, rest);
#pragma unroll
            for (int i = 0; i < N_X; ++i) slots[k][i] = real(rest[i]);
        }
    }
#pragma unroll 1
    for (; visits < end; ++visits) {
        const Visit visit = *visits;
#if VARYING
        if (visit.kind) {
            Run run = runs[visit.first];
            if (together && threadIdx.x % 32) run.sampled = 0;  // all lanes walk it, one scores
#pragma unroll
            for (int i = 0; i < N_X; ++i) x[i] = slots[run.source][i];
            runVarying(run, nodes, parameters, stride, gain, reversal, x, tally);
#pragma unroll
            for (int i = 0; i < N_X; ++i) if (run.target >= 0) slots[run.target][i] = x[i];
            continue;
        }
#endif
        Table t;
        Parts parts;
        double p[N_PARAMETERS], q[N_RATES];
        loadParameters(parameters, stride, p);
        createQmat(visit.v, p, q, tally.status);
        createTable(q, visit.dt, gain*(real(visit.v) - reversal), visit.longest, t, parts);
#pragma unroll 1
        for (int r = visit.first; r < visit.last; ++r) {
            const Run run = runs[r];
#pragma unroll
            for (int i = 0; i < N_X; ++i) x[i] = slots[run.source][i];
            arrive(parts, x);
            runHeld(run, t, parts, together, x, tally);
#pragma unroll
            for (int i = 0; i < N_X; ++i) if (run.target >= 0) slots[run.target][i] = x[i];
        }
    }
}

"""

_KERNELS = f"""
// Candidates first .. first + n - 1 through job blockIdx.y. Sums of
// squares go to partial, (jobs, n); or the currents to trace, (samples, n).
extern "C" __global__ void {SWEEP}(
    const double *__restrict__ parameters, const long long n_candidates, const int first,
    const int n, const double *__restrict__ starts, const int n_starts,
    const int *__restrict__ jobs,
    const Visit *__restrict__ visits, const Run *__restrict__ runs,
    const real *__restrict__ data, const real *__restrict__ nodes,
    double *__restrict__ partial, signed char *__restrict__ partial_status,
    real *__restrict__ trace) {{
    const int job = blockIdx.y;
    for (int i = blockIdx.x*blockDim.x + threadIdx.x; i < n; i += gridDim.x*blockDim.x) {{
        const int candidate = first + i;
        Tally tally = {{data, TRACED && trace ? trace + i : nullptr, n, 0.0, OK}};
        walk(false, parameters + candidate, n_candidates, starts, n_starts, visits + jobs[job],
             visits + jobs[job + 1], runs, nodes, tally);
        if (!tracing(tally)) partial[(long long)job*n + i] = tally.cost;
        partial_status[(long long)job*n + i] = (signed char)tally.status;
    }}
}}

// The jobs of each candidate added up in their order: cost, pA^2, and status.
extern "C" __global__ void {ADD_JOBS}(
    const int first, const int n, const int n_jobs, const double constant,
    const double total_weight, const double *__restrict__ partial,
    const signed char *__restrict__ partial_status, double *__restrict__ cost,
    signed char *__restrict__ status) {{
    for (int i = blockIdx.x*blockDim.x + threadIdx.x; i < n; i += gridDim.x*blockDim.x) {{
        const int candidate = first + i;
        double sum = constant;
        int worst = OK;
        for (int job = 0; job < n_jobs; ++job) {{
            sum += partial[(long long)job*n + i];
            const int own = partial_status[(long long)job*n + i];
            worst = worst == NOT_FINITE || own == NOT_FINITE ? NOT_FINITE : max(worst, own);
        }}
        sum /= total_weight;
        if (worst == OK && !isfinite(sum)) worst = NOT_FINITE;
        cost[candidate] = worst == OK ? sum : 1.0/0.0;
        status[candidate] = (signed char)worst;
    }}
}}

"""

_LISTED = f"""
__device__ __forceinline__ void conclude(double sum, bool lost, int worst, const double constant,
                                         const double total_weight, double &cost,
                                         signed char &status) {{
    sum = (sum + constant)/total_weight;
    if (lost || (worst == OK && !isfinite(sum))) worst = NOT_FINITE;
    cost = worst == OK ? sum : 1.0/0.0;
    status = (signed char)worst;
}}

// The candidates that *n_listed says of those listed. Few of them get a warp for every job, whose
// lanes share the samples; the last job to arrive adds up. Many get a warp each, and every lane a
// job. sums, flags and arrived have room for every warp; arrived is zero. *n_next becomes zero.
extern "C" __global__ void {LISTED}(
    const double *__restrict__ parameters, const long long n_candidates,
    const int *__restrict__ listed, const int *__restrict__ n_listed,
    const double *__restrict__ starts, const int n_starts, const int *__restrict__ jobs,
    const int n_jobs, const Visit *__restrict__ visits, const Run *__restrict__ runs,
    const real *__restrict__ data, const real *__restrict__ nodes, const double constant,
    const double total_weight, double *__restrict__ cost, signed char *__restrict__ status,
    volatile double *sums, volatile int *flags, int *arrived, int *n_next) {{
    if (blockIdx.x == 0 && threadIdx.x == 0) *n_next = 0;
    const int count = *n_listed, lane = threadIdx.x % 32, n_warps = gridDim.x*(blockDim.x/32);
    const int warp = (blockIdx.x*blockDim.x + threadIdx.x)/32;
    const bool few = count <= n_warps/n_jobs;
    for (int i = few ? warp/n_jobs : warp; i < count; i += few ? count : n_warps) {{
        const int candidate = listed[i];
        Tally tally = {{data, nullptr, 0, 0.0, OK}};
        for (int job = few ? warp % n_jobs : lane; job < n_jobs; job += few ? n_jobs : 32)
            walk(few, parameters + candidate, n_candidates, starts, n_starts, visits + jobs[job],
                 visits + jobs[job + 1], runs, nodes, tally);
        double sum = tally.cost;
        int lost = tally.status == NOT_FINITE, worst = tally.status;
        for (int offset = 16; offset; offset /= 2) {{
            sum += __shfl_down_sync(0xffffffffu, sum, offset);
            lost |= __shfl_down_sync(0xffffffffu, lost, offset);
            worst = max(worst, __shfl_down_sync(0xffffffffu, worst, offset));
        }}
        if (lane) continue;
        if (!few) {{
            conclude(sum, lost, worst, constant, total_weight, cost[candidate],
                     status[candidate]);
            continue;
        }}
        sums[warp] = sum;
        flags[warp] = lost ? NOT_FINITE : worst;
        __threadfence();
        if (atomicAdd(arrived + i, 1) < n_jobs - 1) continue;
        arrived[i] = 0;
        __threadfence();
        sum = 0.0;
        for (int job = 0; job < n_jobs; ++job) {{
            const int flag = flags[i*n_jobs + job];
            sum += sums[i*n_jobs + job];
            lost |= flag == NOT_FINITE;
            worst = max(worst, flag);
        }}
        conclude(sum, lost, worst, constant, total_weight, cost[candidate], status[candidate]);
    }}
}}
"""
