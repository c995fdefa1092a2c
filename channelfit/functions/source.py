"""Source text of a function's cost: a kernel for the CPU, CUDA C++ for a GPU.

Sums and products stay loops. On the CPU each statement works on a block of candidates side by side;
in CUDA a candidate belongs to LANES threads of a warp, which share its outermost loops, or, where
there are data, its rows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import sympy

from channelfit.functions.function import Data, Definition, FunctionModel, FunctionProblem
from channelfit.functions.indexed_expressions import whole_text
from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.lanes import Writer
from channelfit.scoring.kernels.printer import PYTHON, Dialect, ScalarPrinter

_NAMES = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "exprel": "exprel",
    "sin": "sin",
    "cos": "cos",
}
_CPU = Dialect({**_NAMES, "Abs": "abs"}, PYTHON.choose, PYTHON.power)
_CUDA = Dialect(
    {**_NAMES, "Abs": "fabs"},
    lambda condition, yes, no: f"({condition} ? {yes} : {no})",
    lambda base, exponent: f"pow({base}, {exponent})",
    ("&&", "||", "!", "true", "false"),
)


class FunctionSource:
    """Generated text of one function in one precision; `text` is what a backend compiles."""

    def __init__(self, problem: FunctionProblem, dtype: str, target: str) -> None:
        self.problem, self.dtype = problem, dtype
        self.lanes = 16 if dtype == "float32" else 8
        self.n_scratch = 0  # numbers that `costOfLanes` wants room for
        self.text = _cpu_text(self) if target == "cpu" else _cuda_text(self)

    @cached_property
    def hash(self) -> str:
        """The first 16 digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


class _Printer(ScalarPrinter, ABC):
    """Prints expressions; what needs statements first is written before, by subclasses."""

    def __init__(self, dialect: Dialect, problem: FunctionProblem, real: str) -> None:
        super().__init__(dialect, {})
        self.model, self.data, self.real = problem.model, problem.data, real
        self.place = problem.place
        self.w = Writer()
        self.indices: dict[str, str] = {}  # index -> what it is called
        self.known: dict[sympy.Basic, str] = {}  # what was computed in this block
        self.n_folds = self.n_constants = 0
        self.arrays = {a.name: a for a in problem.model.arrays}
        self.local = {d.name: d for d in problem.model.definitions}
        self.offsets: dict[str, int] = {}

    # what differs between targets

    @abstractmethod
    def parameter(self, row: str) -> str: ...

    @abstractmethod
    def cell(self, column: str) -> str: ...

    @abstractmethod
    def definition(self, name: str, place: str) -> str: ...

    @abstractmethod
    def constant(self, node: sympy.Expr) -> str: ...

    @abstractmethod
    def fold(self, node: sympy.Basic, start: str, join: str) -> str: ...

    # names

    def at(self, name: str, place: str) -> str:
        """Element `place`, counted from 0, of a parameter, an input or a definition."""
        if name in self.local:
            return self.definition(name, place)
        if name in self.arrays:
            return self.parameter(_added(place, self.arrays[name].first))
        return self.cell(_added(place, self.place[f"in {name}"]))

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.local:
            return self.local[name].shape
        if name in self.arrays:
            return self.arrays[name].shape
        assert self.data is not None
        values = self.data.inputs[name]
        return (len(values),) if values.ndim > 1 else ()

    def flat(self, indices: tuple[sympy.Expr, ...], shape: tuple[int, ...]) -> str:
        """The place, counted from 0, of an element in an array laid out last index first."""
        place: sympy.Expr = sympy.Integer(0)
        for index, size in zip(indices, shape, strict=True):
            place = place * size + index - 1
        return whole_text(sympy.expand(place), self.indices)

    def _print_Symbol(self, node: sympy.Symbol) -> str:
        if node.name in self.indices:
            return f"{self.real}({self.indices[node.name]})"
        return self.at(node.name, "0")

    def _print_element(self, node: Any) -> str:
        return self.at(node.array, self.flat(node.indices, self.shape(node.array)))

    def _print_total(self, node: sympy.Basic) -> str:
        return self.folded(node, 0.0, "+=")

    def _print_product(self, node: sympy.Basic) -> str:
        return self.folded(node, 1.0, "*=")

    def folded(self, node: sympy.Basic, start: float, join: str) -> str:
        if node not in self.known:
            self.known[node] = self.fold(node, self.number(start), join)
        return self.known[node]

    def _print_Pow(self, node: sympy.Pow, rational: bool = False) -> str:
        if self.is_shared(node):
            if node not in self.known:
                self.known[node] = self.constant(node)
            return self.known[node]
        return self.plain_power(node)

    def is_shared(self, node: sympy.Expr) -> bool:
        """A power of indices and numbers alone: the same for all candidates."""
        names = {s.name for s in node.free_symbols}
        return bool(names) and names <= set(self.indices)

    def plain_power(self, node: sympy.Expr) -> str:
        base, exponent = node.as_base_exp()
        if exponent.is_Integer and exponent < 0:  # 1.0 would widen a float32
            return f"({self.number(1.0)}/{super()._print_Pow(sympy.Pow(base, -exponent))})"
        return super()._print_Pow(node)

    def number(self, value: float) -> str:
        return repr(value)

    def _print_Float(self, node: sympy.Float) -> str:
        return self.number(float(node))

    _print_Integer = _print_Rational = _print_NumberSymbol = _print_Float
    _print_Exp1 = _print_Pi = _print_Float

    def _print_One(self, node: sympy.Expr) -> str:
        return self.number(1.0)

    def _print_Zero(self, node: sympy.Expr) -> str:
        return self.number(0.0)

    @contextmanager
    def loop(self, head: str, name: str, called: str) -> Iterator[None]:
        """A loop over an index; what is computed inside is not known after it."""
        known = self.known
        self.known = dict(known)
        self.indices[name] = called
        with self.w.block(head):
            yield
        del self.indices[name]
        self.known = known

    @contextmanager
    def over(self, definition: Definition, loop: Callable[[str, int], str]) -> Iterator[str]:
        """Loops over all elements of a definition; gives the place of each."""
        loops = []
        for name, size in zip(definition.indices, definition.shape, strict=True):
            loops.append(self.loop(loop(f"i_{name}", size), name, f"i_{name}"))
        for one in loops:
            one.__enter__()
        symbols = tuple(sympy.Symbol(name, real=True) for name in definition.indices)
        yield self.flat(symbols, definition.shape)
        for one in reversed(loops):
            one.__exit__(None, None, None)


def _added(place: str, first: int) -> str:
    return place if not first else f"{place} + {first}" if place != "0" else str(first)


def _by_rows(problem: FunctionProblem) -> tuple[list[Definition], list[Definition]]:
    """Definitions that need no data, and those that do: one value a row."""
    in_rows = set() if problem.data is None else set(problem.data.inputs)
    once, each = [], []
    for definition in problem.model.definitions:
        if _named(definition.value) & in_rows:
            in_rows.add(definition.name)
            each.append(definition)
        else:
            once.append(definition)
    return once, each


def _named(expression: sympy.Expr) -> set[str]:
    return {s.name for s in expression.free_symbols}


def _scales(data: Data, model: FunctionModel) -> list[tuple[Definition, str, list[float]]]:
    """Every output, its table's name, and one over its scales."""
    return [(o, f"out {o.name}", (1 / data.scales[o.name]).tolist()) for o in model.outputs]


# --- CPU -----------------------------------------------------------------------------------------

_CPU_HEAD = '''\
"""Generated by channelfit: the cost of {name}, {lanes} candidates side by side."""

from math import cos, log, sin, sqrt

import numpy as np
from numpy import float32, float64

from channelfit.scoring.machine.kernel_math import exp, exprel, tanh

{tables}

'''
_CPU_TAIL = '''

def score(parameters, first, last, data, cost):
    """Costs of blocks first .. last - 1 of the candidates (n_parameters, n_candidates)."""
    n = parameters.shape[1]
    p, s = np.empty({room}, np.{dtype}), np.empty({scratch}, np.{dtype})
    out = np.empty({lanes}, np.{dtype})
    for block in range(first, last):
        begin = block*{lanes}
        for k in range({n_parameters}):
            for l in range({lanes}):
                p[k*{lanes} + l] = parameters[k, min(begin + l, n - 1)]
        costOfLanes(p, data, s, out)
        for l in range(min({lanes}, n - begin)):
            cost[begin + l] = out[l]
'''


class _CpuPrinter(_Printer):
    def __init__(self, source: FunctionSource) -> None:
        super().__init__(_CPU, source.problem, source.dtype)
        self.lanes, self.dtype = source.lanes, source.dtype
        self.n_scratch = 0

    def number(self, value: float) -> str:
        return repr(value) if self.dtype == "float64" else f"float32({value!r})"

    def parameter(self, row: str) -> str:
        return self.in_lane("p", row)

    def cell(self, column: str) -> str:
        return f"data[{column}, row]"

    def definition(self, name: str, place: str) -> str:
        return self.in_lane("s", _added(place, self.offsets[name]))

    def in_lane(self, name: str, place: str) -> str:
        return f"{name}[({place})*{self.lanes} + l]"

    def room(self, size: int) -> int:
        """Rows of the scratch."""
        self.n_scratch += size
        return self.n_scratch - size

    def constant(self, node: sympy.Expr) -> str:
        name, self.n_constants = f"c{self.n_constants}", self.n_constants + 1
        self.w(f"{name} = {self.plain_power(node)}")
        return name

    def set_lanes(self, target: str, join: str, text: str) -> None:
        with self.w.block(f"for l in range({self.lanes}):"):
            self.w(f"{target} {join} {text}")

    def fold(self, node: sympy.Basic, start: str, join: str) -> str:
        term, index, first, last = node.args
        own = self.in_lane("s", str(self.room(1)))
        self.set_lanes(own, "=", start)
        begin, end = (whole_text(x, self.indices) for x in (first, last))
        with self.loop(
            f"for i_{index.name} in range({begin}, {end} + 1):", index.name, f"i_{index.name}"
        ):
            self.set_lanes(own, join, self.text(term))
        return own

    def define(self, definition: Definition) -> None:
        self.offsets[definition.name] = self.room(definition.size)
        with self.over(definition, lambda i, size: f"for {i} in range(1, {size} + 1):") as place:
            text = self.text(definition.value)
            self.set_lanes(self.definition(definition.name, place), "=", text)


def _cpu_text(source: FunctionSource) -> str:
    problem, model = source.problem, source.problem.model
    printer, tables = _CpuPrinter(source), []
    w = printer.w
    once, each = _by_rows(problem)
    with w.block("def costOfLanes(p, data, s, out):"):
        for definition in once:
            printer.define(definition)
        if model.cost is not None:
            printer.set_lanes("out[l]", "=", printer.text(model.cost))
        else:
            assert problem.data is not None
            printer.set_lanes("out[l]", "=", printer.number(0.0))
            known = printer.known
            with w.block(f"for row in range({problem.data.n_rows}):"):
                printer.known = dict(known)
                for definition in each:
                    printer.define(definition)
                for k, (output, table, scales) in enumerate(_scales(problem.data, model)):
                    tables.append(f"SCALE_{k} = np.array({scales}, np.{source.dtype})")
                    with printer.over(output, lambda i, n: f"for {i} in range(1, {n} + 1):") as at:
                        value = printer.text(output.value)
                        target = printer.cell(_added(at, printer.place[table]))
                        with w.block(f"for l in range({source.lanes}):"):
                            w(f"e = ({value} - {target})*SCALE_{k}[{at}]", "out[l] += e*e")
            count = sum(t.size for t in problem.data.targets.values())
            printer.set_lanes("out[l]", "*=", printer.number(1.0 / count))
    head = _CPU_HEAD.format(
        name=_safe(model.name), lanes=source.lanes, dtype=source.dtype, tables="\n".join(tables)
    )
    n = len(model.parameters)
    source.n_scratch = max(1, printer.n_scratch) * source.lanes
    tail = _CPU_TAIL.format(
        lanes=source.lanes,
        n_parameters=n,
        room=n * source.lanes,
        scratch=source.n_scratch,
        dtype=source.dtype,
    )
    return head + "\n".join(w.lines) + "\n" + tail


def _safe(name: str) -> str:
    """A user's name inside a comment."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)[:60]


# --- CUDA ----------------------------------------------------------------------------------------

_CUDA_HEAD = """\
// Generated by channelfit: the cost of %(name)s.
typedef %(real)s real;
#define N_PARAMETERS %(n_parameters)d
#define N_ROWS %(n_rows)d

__device__ __forceinline__ real exprel(real x) { return x == 0 ? real(1) : expm1(x)/x; }

// Over the LANES threads of a candidate, all of which get the result; LANES is a power of two.
template<int LANES>
__device__ __forceinline__ real addUp(real x, unsigned mask)
{
    for (int k = LANES/2; k > 0; k /= 2) x += __shfl_xor_sync(mask, x, k, LANES);
    return x;
}

template<int LANES>
__device__ __forceinline__ real multiplyUp(real x, unsigned mask)
{
    for (int k = LANES/2; k > 0; k /= 2) x *= __shfl_xor_sync(mask, x, k, LANES);
    return x;
}

// theta[row*stride]: a parameter; data (n_columns, N_ROWS); lane: 0 .. LANES - 1 among the threads
// in mask, all of which call this with the same theta.
"""
_CUDA_TAIL = f"""

{cuda_names()}
"""
_CUDA_TAIL += """
__device__ __forceinline__ void conclude(double found, int i, double* cost, signed char* status)
{
    const bool good = fabs(found) < __longlong_as_double(0x7ff0000000000000ll);
    cost[i] = good ? found : __longlong_as_double(0x7ff0000000000000ll);
    status[i] = good ? OK : NOT_FINITE;
}

// One candidate a thread; parameters (N_PARAMETERS, n).
extern "C" __global__ void __launch_bounds__(128) scoreByThreads(
    const double* __restrict__ parameters, int n, const real* __restrict__ data, double* cost,
    signed char* status)
{
    const int i = blockIdx.x*128 + threadIdx.x;
    if (i < n) conclude(costOf<1>(parameters + i, (size_t)n, data, 0, 0u), i, cost, status);
}

// One candidate a warp.
extern "C" __global__ void __launch_bounds__(128) scoreByWarps(
    const double* __restrict__ parameters, int n, const real* __restrict__ data, double* cost,
    signed char* status)
{
    const int i = blockIdx.x*4 + threadIdx.x/32, lane = threadIdx.x%32;
    if (i >= n) return;
    const real found = costOf<32>(parameters + i, (size_t)n, data, lane, 0xffffffffu);
    if (lane == 0) conclude(found, i, cost, status);
}
"""


class _CudaPrinter(_Printer):
    def __init__(self, source: FunctionSource) -> None:
        super().__init__(_CUDA, source.problem, "real")
        self.single = source.dtype == "float32"
        # the outermost loops are shared, where no loop over rows is
        self.shares = source.problem.data is None

    def number(self, value: float) -> str:
        return f"{value!r}f" if self.single else repr(value)

    def parameter(self, row: str) -> str:
        return f"real(theta[({row})*stride])"

    def cell(self, column: str) -> str:
        return f"data[({column})*N_ROWS + row]"

    def definition(self, name: str, place: str) -> str:
        return f"d_{name}[{place}]"

    def constant(self, node: sympy.Expr) -> str:
        name, self.n_constants = f"c{self.n_constants}", self.n_constants + 1
        self.w(f"const real {name} = {self.plain_power(node)};")
        return name

    def fold(self, node: sympy.Basic, start: str, join: str) -> str:
        term, index, first, last = node.args
        own, called = f"s{self.n_folds}", f"i_{index.name}"
        self.n_folds += 1
        begin, end = (whole_text(x, self.indices) for x in (first, last))
        shared = self.shares and not self.indices
        self.w(f"real {own} = {start};")
        start_at, step = (f"{begin} + lane", "LANES") if shared else (begin, "1")
        with self.loop(
            f"for (int {called} = {start_at}; {called} <= {end}; {called} += {step}) {{",
            index.name,
            called,
        ):
            self.w(f"{own} {join} {self.text(term)};")
        self.w("}")
        if shared:
            self.w(f"{own} = {'addUp' if join == '+=' else 'multiplyUp'}<LANES>({own}, mask);")
        return own

    def define(self, definition: Definition) -> None:
        self.w(f"real d_{definition.name}[{definition.size}];")
        with self.over(definition, _cuda_loop) as place:
            self.w(f"d_{definition.name}[{place}] = {self.text(definition.value)};")
        self.w("}" * len(definition.indices))


def _cuda_loop(index: str, size: int) -> str:
    return f"for (int {index} = 1; {index} <= {size}; {index}++) {{"


def _cuda_text(source: FunctionSource) -> str:
    problem, model = source.problem, source.problem.model
    printer, tables = _CudaPrinter(source), []
    w = printer.w
    once, each = _by_rows(problem)
    w("template<int LANES, class Number>", "__device__ __forceinline__ real costOf(")
    w("    const Number* theta, size_t stride, const real* __restrict__ data, int lane,")
    with w.block("    unsigned mask)\n{"):
        for definition in once:
            printer.define(definition)
        if model.cost is not None:
            w(f"return {printer.text(model.cost)};")
        else:
            assert problem.data is not None
            known = printer.known
            w("real sum = 0;")
            with w.block("for (int row = lane; row < N_ROWS; row += LANES) {"):
                printer.known = dict(known)
                for definition in each:
                    printer.define(definition)
                for k, (output, table, scales) in enumerate(_scales(problem.data, model)):
                    listed = ", ".join(printer.number(x) for x in scales)
                    tables.append(f"__constant__ real SCALE_{k}[{len(scales)}] = {{{listed}}};")
                    with printer.over(output, _cuda_loop) as at:
                        value = printer.text(output.value)
                        target = printer.cell(_added(at, printer.place[table]))
                        w(f"const real e = ({value} - {target})*SCALE_{k}[{at}];", "sum += e*e;")
                    w("}" * len(output.indices))
            count = sum(t.size for t in problem.data.targets.values())
            w("}", f"return addUp<LANES>(sum, mask)*{printer.number(1.0 / count)};")
    w("}")
    head = _CUDA_HEAD % {
        "name": _safe(model.name),
        "real": "float" if printer.single else "double",
        "n_parameters": len(model.parameters),
        "n_rows": 0 if problem.data is None else problem.data.n_rows,
    }
    return head + "\n".join([*tables, *w.lines]) + "\n" + _CUDA_TAIL
