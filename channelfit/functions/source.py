"""Source text of a function's cost: a kernel for the CPU, CUDA C++ for a GPU.

Sums and products stay loops. On the CPU each statement works on a block of candidates side by side;
in CUDA a candidate belongs to LANES threads of a warp, which share its outermost loops, or, where
there are data, its rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import sympy

from channelfit.functions.function import Data, Definition, FunctionModel, FunctionProblem
from channelfit.functions.indexed_expressions import whole_text
from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.printer import PYTHON, Dialect, ScalarPrinter
from channelfit.scoring.kernels.writers import Writer
from channelfit.scoring.machine.cuda_printer import Card, cuda_function, cuda_tables
from channelfit.scoring.machine.kernel_text import Source

_KERNEL = Dialect(
    {name: name for name in ("exp", "log", "sqrt", "tanh", "exprel", "sin", "cos")}
    | {"Abs": "abs"},
    PYTHON.choose,
    PYTHON.power,
)


class FunctionSource:
    """Generated text of one function in one precision; `text` is what a backend compiles."""

    def __init__(self, problem: FunctionProblem, dtype: str, target: str) -> None:
        self.problem, self.dtype = problem, dtype
        self.lanes = 16 if dtype == "float32" else 8
        self.text = _cpu_text(self) if target == "cpu" else _cuda_text(self)

    @cached_property
    def hash(self) -> str:
        """Return the first 16 digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


class _CostPrinter(ScalarPrinter):
    """Writes a function's cost in the kernels' language, candidates side by side.

    Arguments:
        shares: whether the outermost loops are shared by `LANES` threads; see the module.
    """

    def __init__(self, source: FunctionSource, target: str) -> None:
        super().__init__(_KERNEL, {})
        problem = source.problem
        self.model, self.data, self.place = problem.model, problem.data, problem.place
        self.lanes, self.real, self.on_cpu = source.lanes, source.dtype, target == "cpu"
        self.shares = not self.on_cpu and problem.data is None
        self.w = Writer()
        self.arrays_made: list[str] = []  # statements for the head of the function
        self.indices: dict[str, str] = {}  # index -> its name in the text
        self.known: dict[sympy.Basic, str] = {}  # expression -> its value in this block
        self.n_folds = self.n_constants = 0
        self.arrays = {a.name: a for a in problem.model.arrays}
        self.local = {d.name: d for d in problem.model.definitions}

    # statements

    def allocate(self, name: str, *size: int) -> None:
        """Make an array of the whole function."""
        self.arrays_made.append(f"{name} = np.empty({(*size, self.lanes)}, np.{self.real})")

    def set_lanes(self, target: str, join: str, text: str) -> None:
        """Write an assignment to all lanes."""
        with self.w.block(f"for l in range({self.lanes}):"):
            self.w(f"{target} {join} {text}")

    def constant(self, node: sympy.Expr) -> str:
        """Write a value that all candidates share, and return its name."""
        name, self.n_constants = f"c{self.n_constants}", self.n_constants + 1
        self.w(f"{name} = {self.plain_power(node)}")
        return name

    def fold(self, node: sympy.Basic, start: str, join: str) -> str:
        """Write the loop of a sum or product, and return the name of its value."""
        term, index, first, last = node.args
        own, called = f"s{self.n_folds}[l]", f"i_{index.name}"
        self.allocate(f"s{self.n_folds}")
        self.n_folds += 1
        self.set_lanes(own, "=", start)
        begin, end = (whole_text(x, self.indices) for x in (first, last))
        shared = self.shares and not self.indices
        bounds = f"{begin} + lane, {end} + 1, LANES" if shared else f"{begin}, {end} + 1"
        with self.loop(f"for {called} in range({bounds}):", index.name, called):
            self.set_lanes(own, join, self.text(term))
        if shared:
            whole = "addUp" if join == "+=" else "multiplyUp"
            self.set_lanes(own, "=", f"{whole}({own}, mask)")
        return own

    def define(self, definition: Definition) -> None:
        """Write the loops that compute all elements of a definition."""
        self.allocate(f"d_{definition.name}", definition.size)
        with self.over(definition) as place:
            text = self.text(definition.value)
            self.set_lanes(f"d_{definition.name}[{place}, l]", "=", text)

    # names

    def at(self, name: str, place: str) -> str:
        """Return element `place`, counted from 0, of a parameter, an input or a definition."""
        if name in self.local:
            return f"d_{name}[{place}, l]"
        if name in self.arrays:
            return f"p[{_added(place, self.arrays[name].first)}, l]"
        return f"data[{_added(place, self.place[f'in {name}'])}, row]"

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.local:
            return self.local[name].shape
        if name in self.arrays:
            return self.arrays[name].shape
        assert self.data is not None
        values = self.data.inputs[name]
        return (len(values),) if values.ndim > 1 else ()

    def flat(self, indices: tuple[sympy.Expr, ...], shape: tuple[int, ...]) -> str:
        """Return the place, counted from 0, of an element in an array laid out last index first."""
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
        """Return whether a power consists of indices and numbers: the same for all candidates."""
        names = {s.name for s in node.free_symbols}
        return bool(names) and names <= set(self.indices)

    def plain_power(self, node: sympy.Expr) -> str:
        base, exponent = node.as_base_exp()
        if exponent.is_Integer and exponent < 0:  # 1.0 would widen a float32
            return f"({self.number(1.0)}/{super()._print_Pow(sympy.Pow(base, -exponent))})"
        return super()._print_Pow(node)

    def number(self, value: float) -> str:
        """Return a number that does not widen a float32 that it meets."""
        return f"float32({value!r})" if self.on_cpu and self.real == "float32" else repr(value)

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
        """Write a loop over an index; values computed inside it are not known after it."""
        known = self.known
        self.known = dict(known)
        self.indices[name] = called
        with self.w.block(head):
            yield
        del self.indices[name]
        self.known = known

    @contextmanager
    def over(self, definition: Definition) -> Iterator[str]:
        """Write loops over all elements of a definition, and yield the place of each."""
        with ExitStack() as loops:
            for name, size in zip(definition.indices, definition.shape, strict=True):
                head = f"for i_{name} in range(1, {size} + 1):"
                loops.enter_context(self.loop(head, name, f"i_{name}"))
            symbols = tuple(sympy.Symbol(name, real=True) for name in definition.indices)
            yield self.flat(symbols, definition.shape)

    def write(self) -> list[str]:
        """Write the body of the function, and return the lines of its tables."""
        w, model, tables = self.w, self.model, []
        once, each = _by_rows(model, self.data)
        for definition in once:
            self.define(definition)
        if self.data is None:
            cost = self.text(model.cost)
        else:
            self.allocate("total")
            self.set_lanes("total[l]", "=", self.number(0.0))
            rows = str(self.data.n_rows)
            known = self.known
            with w.block(f"for row in range({rows if self.on_cpu else f'lane, {rows}, LANES'}):"):
                self.known = dict(known)
                for definition in each:
                    self.define(definition)
                for k, (output, table, scales) in enumerate(_scales(self.data, model)):
                    tables.append(f"SCALE_{k} = np.array({scales}, np.{self.real})")
                    self.add_squares(output, f"SCALE_{k}", self.place[table])
            count = sum(t.size for t in self.data.targets.values())
            whole = "total[l]" if self.on_cpu else "addUp(total[l], mask)"
            cost = f"{whole}*{self.number(1.0 / count)}"
        if self.on_cpu:
            self.set_lanes("out[l]", "=", cost)
        else:
            w(f"return {cost}")
        return tables

    def add_squares(self, output: Definition, scale: str, first: int) -> None:
        """Write the loops that add an output's squared errors in a row of the data."""
        with self.over(output) as at:
            value, target = self.text(output.value), f"data[{_added(at, first)}, row]"
            with self.w.block(f"for l in range({self.lanes}):"):
                self.w(f"e = ({value} - {target})*{scale}[{at}]", "total[l] += e*e")


def _added(place: str, first: int) -> str:
    return place if not first else f"{place} + {first}" if place != "0" else str(first)


def _by_rows(model: FunctionModel, data: Data | None) -> tuple[list[Definition], list[Definition]]:
    """Return the definitions that need no data, and those that do: one value a row."""
    in_rows = set() if data is None else set(data.inputs)
    once, each = [], []
    for definition in model.definitions:
        if _named(definition.value) & in_rows:
            in_rows.add(definition.name)
            each.append(definition)
        else:
            once.append(definition)
    return once, each


def _named(expression: sympy.Expr) -> set[str]:
    return {s.name for s in expression.free_symbols}


def _scales(data: Data, model: FunctionModel) -> list[tuple[Definition, str, list[float]]]:
    """Return every output, its table's name, and one over its scales."""
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
    p, out = np.empty(({n_parameters}, {lanes}), np.{dtype}), np.empty({lanes}, np.{dtype})
    for block in range(first, last):
        begin = block*{lanes}
        for k in range({n_parameters}):
            for l in range({lanes}):
                p[k, l] = parameters[k, min(begin + l, n - 1)]
        costOfLanes(p, data, out)
        for l in range(min({lanes}, n - begin)):
            cost[begin + l] = out[l]
'''


def _cpu_text(source: FunctionSource) -> str:
    model, printer = source.problem.model, _CostPrinter(source, "cpu")
    tables = printer.write()
    head = _CPU_HEAD.format(
        name=_safe(model.name), lanes=source.lanes, dtype=source.dtype, tables="\n".join(tables)
    )
    tail = _CPU_TAIL.format(
        lanes=source.lanes, n_parameters=len(model.parameters), dtype=source.dtype
    )
    return head + _function("costOfLanes(p, data, out)", printer) + tail


def _function(head: str, printer: _CostPrinter) -> str:
    lines = [*printer.arrays_made, *printer.w.lines]
    return "\n".join([f"def {head}:", *(f"    {line}" for line in lines)]) + "\n"


def _safe(name: str) -> str:
    """Return a user's name for the inside of a comment."""
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

// p[row*stride]: a parameter; data (n_columns, N_ROWS); lane: 0 .. LANES - 1 among the threads in
// mask, all of which call this with the same p.
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


#: theta and stride: see the head of the text. The threads of a candidate share loops.
_CARD = Card(
    "real",
    {
        "p": "Number[]*stride",
        "stride": "size_t",
        "data": "restrict real[][N_ROWS]",
        "lane": "int",
        "mask": "unsigned",
    },
    {"LANES": "LANES", "addUp": "addUp<LANES>", "multiplyUp": "multiplyUp<LANES>"},
    rolled="*",
    template="int LANES, class Number",
    lane="l",
)


def _cuda_text(source: FunctionSource) -> str:
    problem, printer = source.problem, _CostPrinter(source, "cuda")
    tables = printer.write()
    function = _function("costOf(p, stride, data, lane, mask)", printer)
    text = Source("\n".join([*tables, function]), problem.model.name)
    head = _CUDA_HEAD % {
        "name": _safe(problem.model.name),
        "real": "float" if source.dtype == "float32" else "double",
        "n_parameters": len(problem.model.parameters),
        "n_rows": 0 if problem.data is None else problem.data.n_rows,
    }
    return head + cuda_tables(text, "real") + cuda_function(text, "costOf", _CARD) + _CUDA_TAIL
