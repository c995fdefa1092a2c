"""A channel as CUDA that scores one candidate a thread by stepping through its occupancies.

A thread walks the visits of one job of `visit_order.Schedule`. A visit builds the tables of one
voltage and sampling interval, in registers where it fits, and serves all its runs:

* the rows c P^j that give the open probability j samples on, so that a sample costs n - 1
  multiply-adds, one subtraction of the datum and one multiply-add for its square; conductance and
  driving force are in the rows,
* the step x <- x + F x + b of STRIDE samples, and those of 1, 2, 4 .. for the remaining ones.

The formulas themselves are templates that derivatives use as well: rates and steady states stand in
`cuda_common`, propagators in `cuda_propagator`, steps at a varying voltage in `cuda_moving`. What
stands here makes tables of them, which only values need; the loops of a thread are in `cuda_walk`.

Up to ten states every loop over a matrix is written out. In a loop that is not, the matrix lies in
local memory and each multiply-add waits for two loads, eight times as long as the arithmetic takes.

The cost of a sample of the two-gate hERG model where the voltage moves, in float32, counted in
the machine code for sm_90: about 115 instructions, 12 of them on the special-function units (8
rates, an exponential and a reciprocal a gate); where any candidate of a warp is stiff, 78 more, 6
of them such. They take a warp 8 cycles each, 96 to 144 in all, beside the 115 to 193 of the others.
"""

from __future__ import annotations

import hashlib

import numpy as np

from channelfit.model.channel import RATE_FLOOR, Chain, ChannelModel
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels import cuda_walk
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.cuda_drives import with_drives
from channelfit.scoring.kernels.cuda_mixed import is_mixed, steppable, stepping, write_mixed
from channelfit.scoring.kernels.cuda_moving import GATE_STEP, write_gates, write_scheme
from channelfit.scoring.kernels.cuda_propagator import write_propagators
from channelfit.scoring.kernels.cuda_single import (
    SINGLE,
    SINGLE_GATE_STEP,
    SINGLE_REASONS,
    write_single_rates,
)
from channelfit.scoring.kernels.fast_rates import DEEP, GREATEST_NORM
from channelfit.scoring.kernels.writers import CudaWriter

_SINGLE_FLOOR = 1e-30  # 1/ms, of a speed in float32
_SINGLE_DEEP = 1e6  # relaxations in a step, `fast_rates.DEEP` of float32
_ROW_WORDS = 80  # 32-bit registers that the rows of a table may take
_MOST_IN_REGISTERS = 10  # states; larger tables live in local memory
#: States up to which rates and steady states are inlined. Of more, calls spare the compiler a third
#: of its time.
_MOST_INLINED = 8
#: States of which four matrices fit, those of a dense Taylor polynomial.
_FOUR_FIT = {"float32": 5, "float64": 4}


class CudaSource:
    """The generated text of one model and one stepping precision.

    Arguments:
        dtype: the precision of tables and steps, ``float32`` or ``float64``. Rates at held voltages
            and steady states are in float64 with both.

    Attributes:
        text: the source, for reading; `specialized` gives the text that is compiled.
        hash: 16 hexadecimal digits of the SHA-256 of `text`.
        stride: samples that a step takes. The data of a run must begin at a multiple of it, and be
            filled up to one.
        options: of the compiler.
    """

    def __init__(self, model: ChannelModel, dtype: str = "float64") -> None:
        model = steppable(model)
        self.model, self.dtype = model, dtype
        self.single = dtype == "float32"
        self.channel = CudaChannel(model)
        self.chains = self.channel.chains
        n_row = sum(len(c.states) for _, c in self.chains)
        self.largest = max(len(c.states) for c in model.chains)
        self.channel.inlined = self.largest <= _MOST_INLINED
        self.stride = self._stride(n_row)
        self._steps = self._text()
        self.text = self._steps + cuda_walk.KERNELS
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        # Approximate division errs by two units in the last place.
        self.options = ("--prec-div=false", "--prec-sqrt=false") if self.single else ()

    def specialized(
        self, n_slots: int, varying: bool, traced: bool | None = False, listed: bool = False
    ) -> str:
        """Return the text for one schedule.

        Arguments:
            n_slots: how many states are kept that runs start from, at least as many as the schedule
                needs.
            varying: whether the voltage varies in any run.
            traced: whether currents are written instead of squares added up. With None a launch
                decides, so that one compilation serves both.
            listed: whether the text has the kernel for a list of candidates instead of those for
                all candidates.

        Raises:
            InputError: the voltage varies, and there are several currents with a scheme, which
                float32 does not step.
        """
        if varying and self.single and is_mixed(self.model):
            raise InputError(
                "several currents, of which any is a scheme of three states or more, are stepped "
                "through a varying voltage in float64 only; use --dtype float64"
            )
        lines = [f"#define N_SLOTS {n_slots}", f"#define VARYING {int(varying)}"]
        lines.append(f"#define TRACED {2 if traced is None else int(traced)}")
        text = self._steps + cuda_walk.LISTED_KERNEL if listed else self.text
        return "\n".join([*lines, text])

    def levels(self, nodes: np.ndarray) -> np.ndarray:
        """Return what is commanded in one run that varies, in the order that the text reads.

        Arguments:
            nodes: (n_steps, n_nodes) mV, at `run_tree.NODES` of every step; with ligands
                (n_steps, n_nodes, 1 + n_ligands) mV and mM.

        Returns:
            (n,) mV, or (n, 1 + n_ligands). Chains of two states need the start of the first step
            twice, then middle and end of each step. Schemes need the start of each step, its Gauss
            points and those of its quarters, and a place that is left empty. Both together need
            all.
        """
        if is_mixed(self.model):
            return nodes.reshape(-1, *nodes.shape[2:])
        if self.model.relaxes:
            later = nodes[:, 1:3].reshape(-1, *nodes.shape[2:])
            return np.concatenate([nodes[0, [0, 0]], later])
        return nodes[:, [0, *range(3, nodes.shape[1]), 0]].reshape(-1, *nodes.shape[2:])

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
        w("#ifndef N_SLOTS  // depends on the protocols: `CudaSource.specialized` defines it")
        w("#define N_SLOTS 16  // of states that runs start from", "#define VARYING 1")
        w("#define TRACED 0  // 1: currents instead of sums of squares; 2: where there is a trace")
        w("#endif", "")
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
        w("constexpr int SERIES_KEPT = 3;  // states: the terms of a series written out too")
        w(f"constexpr real OUTSIDE = {1e-3 if self.single else 1e-6!r};  // how far x may stray")
        self.channel.write(w, SINGLE if self.single else "")
        self.channel.write_state(w)
        w(*cuda_walk.PROGRAM.splitlines())
        sparse = range(_FOUR_FIT[self.dtype] + 1, _MOST_IN_REGISTERS + 1)
        write_propagators(w, self.channel, sparse, fast_rates=True)
        w(*_TABLES.splitlines())
        self._table(w)
        self._state(w)
        w(f"constexpr int LARGEST = {self.largest};  // states of a chain")
        w(*cuda_walk.HELD.splitlines())
        varying, walk = cuda_walk.VARYING, cuda_walk.WALK
        if not self.channel.ohmic:
            varying, walk = with_drives(varying), with_drives(walk)
        w("", "#if VARYING")
        self._moving(w)
        w(*(SINGLE_REASONS if self.single else _REASONS).splitlines())
        w(*varying.splitlines(), "#endif")
        w(*walk.splitlines())
        return w.text

    def _moving(self, w: CudaWriter) -> None:
        """Write the steps through a varying voltage."""
        floor, deep = (_SINGLE_FLOOR, _SINGLE_DEEP) if self.single else (RATE_FLOOR, DEEP)
        w(f"constexpr real FLOOR = {floor!r};  // of a rate, 1/ms")
        w(f"constexpr real DEEP = {deep!r};  // relaxations in a step: more make no difference")
        w(f"constexpr bool SMALL_STEPS = {'false' if self.single else 'true'};")
        w("constexpr int RATES_AT_ONCE = 2;")
        if self.single:  # of rates: below 0 where one is negative; in float64 it is the status
            write_single_rates(w, self.channel)
        if self.model.relaxes:
            write_gates(w, self.channel, floored=self.single)
            w(*_GATES.splitlines())
            step = SINGLE_GATE_STEP if self.single else GATE_STEP + _GATE_STEP
            w(*step.splitlines())
        elif is_mixed(self.model):
            if not self.single:
                write_mixed(w, self.channel)
                w(*GATE_STEP.splitlines(), *stepping(self.channel).splitlines())
        else:
            write_scheme(w, self.channel)
            w(*_SCHEME.splitlines())

    def _table(self, w: CudaWriter) -> None:
        """Write the table of all chains at one voltage, and the function that fills it."""
        sizes = [(k, len(c.states)) for k, c in self.chains]
        w("", "// A chain at one voltage: row[j][0] + sum row[j][i]*x[i - 1] is open j samples on;")
        w("// STRIDE samples on, it is in x + step[.][0] + sum step[.][i]*x[i - 1].")
        scale = "scale" if self.channel.ohmic else "scale[N_TERMS]"
        w("struct Table {", f"    real {scale};  // pA for each unit that the rows multiply up to")
        w(*(f"    real row{k}[STRIDE][{n}], step{k}[{n - 1}][{n}];" for k, n in sizes), "};")
        w("", "// Steps of 1, 2, 4 .. samples.", "struct Parts {")
        w(*(f"    real step{k}[POWERS][{n - 1}][{n}];" for k, n in sizes), "};")
        scale = "real scale" if self.channel.ohmic else "const double *drive"
        with w.device(
            f"void createTable(const double *q, const double h, {scale}, const int n,\n"
            "                                            Table &t, Parts &parts)",
            "The table of all chains, for runs of at most n samples, h ms apart.",
        ):
            folded = self._folded()
            if not self.channel.ohmic:
                for row in range(len(self.model.terms)):
                    share = self.channel.lone_share(row)
                    w(f"t.scale[{row}] = real({f'{share!r}*' if share != 1 else ''}drive[{row}]);")
            elif self.channel.always_open != 1:
                w(f"scale *= real({self.channel.always_open!r});")
            if self.channel.ohmic:
                w(f"t.scale = {'scale' if folded is None else '1'};")
            for k, chain in self.chains:
                with w.block(""):
                    self._chain_table(w, k, chain, "scale" if k == folded else "1")

    def _folded(self) -> int | None:
        """Return a chain that can hold the scale, as it enters the current to the first power."""
        if not self.channel.ohmic:
            return None
        return next((k for k, chain in self.chains if chain.power == 1), None)

    def _chain_table(self, w: CudaWriter, k: int, chain: Chain, scale: str) -> None:
        n = len(chain.states)
        w(f"real p[{n}][{n}] = {{}};")
        if n == 2:
            up, down = (f"q[{row}]" for row in self.channel.opening_and_closing(k))
            w(f"createRelaxation({up}, {down}, h, p);")
        else:
            w(f"createPropagator{k}(q + {self.channel.first_rate[k]}, h, p);")
        opened = ", ".join(
            "0" if c == 0 else scale if c == 1 else f"real({c!r})*{scale}"
            for c in chain.conductances
        )
        w(f"real c[{n}] = {{{opened}}};")
        w(f"fillTable(p, c, n, t.row{k}, t.step{k}, parts.step{k});")

    def _state(self, w: CudaWriter) -> None:
        """Write the functions of a table: currents, and states some samples on."""
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
                total = "*".join(factors)
                if not self.channel.ohmic:
                    total = self.channel.sum_of_terms("t.scale", lone=False)
                w(f"return {total} - datum;")
        for name, of in (("advance", "Table &t"), ("advancePart", "Parts &t")):
            argument, index = (", const int p", "[p]") if name == "advancePart" else ("", "")
            with w.device(
                f"void {name}(const {of}{argument}, real *x)",
                "The state STRIDE samples on." if not index else "The state 1 << p samples on.",
            ):
                for k, _ in self.chains:
                    w(f"advanceChain(t.step{k}{index}, x + {self.channel.first_x[k]});")
        arguments, limit = "Parts &parts, real", "parts.step{}[0][0][0]"
        self.channel.write_arrive(w, arguments, limit.format)


_TABLES = """
// --- tables of a held voltage --------------------------------------------------------------------

// A propagator of two states, which relax: 1 - exp(-(up + down) h) of the way to the limit.
__device__ __forceinline__ void createRelaxation(const double up, const double down,
                                                 const double h, real (&p)[2][2]) {
    const double gone = goneOverRates(up, down, h);
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

#: The text before the step of gates. It reads each voltage once, as start and end are the same.
_GATES = """
constexpr int N_NODES = 2, BEFORE = 2;  // voltages of a step: middle and end; before the first step
constexpr int TOGETHER = sizeof(real) == 4 ? 2 : 1;  // steps: spares moving the end to the start

// The beginning of a step; float32 needs rates of opening, and in `low` the digits that x is too
// coarse to hold.
struct Moving {
    Gates<real> gates;
    real x[N_X], up[N_X], low[N_X];
    LevelOf<real> v;
};

struct alignas(sizeof(LevelOf<real>) == sizeof(real) ? 2*sizeof(real) : sizeof(real)) Nodes {
    LevelOf<real> middle, end;
};

__device__ __forceinline__ LevelOf<real> level(const Moving &m, const LevelOf<real> *) {
    return m.v;
}

__device__ __forceinline__ void begin(Moving &m, const LevelOf<real> *nodes, const real *p,
                                      int &flag) {
    m.v = nodes[1];
    begin(m.gates, m.up, m.v, p, flag);
    arrive(m.gates, m.x);
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) m.low[k] = 0;
}
"""

#: The step of float64 gates, in place of that of `cuda_single`, behind `GATE_STEP`.
_GATE_STEP = """
__device__ __forceinline__ void step(Moving &m, const LevelOf<real> *nodes, const real h,
                                     const real *p, int &flag) {
    step(m.gates, nodes, h, p, m.x, flag);
    m.v = nodes[1];
}
"""

#: The text before the step of a scheme. Of its twelve places for voltages the last stays empty.
_SCHEME = """
// States move by little in a step: kept in float64, or single precision would lose it.
struct Moving {
    double x[N_X];
};

constexpr int TOGETHER = 1;
constexpr int N_NODES = 12, BEFORE = 0;  // voltages of a step: start, two Gauss points, of quarters

__device__ __forceinline__ void begin(Moving &, const LevelOf<real> *, const real *, int &) {}

__device__ __forceinline__ LevelOf<real> level(const Moving &, const LevelOf<real> *nodes) {
    return nodes[0];
}

__device__ __forceinline__ void step(Moving &m, const LevelOf<real> *nodes, const real h,
                                     const real *p, int &flag) {
    step(nodes + 1, h, p, m.x, flag);
}
"""

_REASONS = """
__device__ __forceinline__ int explained(const int status, const int flag, const bool,
                                         const LevelOf<real> *, const int, const double *,
                                         const long long) {
    return flag && (status == OK || flag == NOT_FINITE) ? flag : status;
}
"""
