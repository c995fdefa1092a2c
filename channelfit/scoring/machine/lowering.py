"""Kernels, written in a small typed part of Python, as text of LLVM's intermediate representation.

A kernel is a function of arrays and numbers made of loops and arithmetic; the same text runs as
plain Python. Types are not written down: those of a kernel follow from its arguments, those
of the functions that it calls from the calls, and every name keeps the type of its first value.

The language has:

* numbers: float64, float32, int64 and bool. A whole number assigned to a name that elsewhere holds
  a float makes it one; float32 with float64 gives float64, as in NumPy.
* arrays of float64, float32, int64, int32, int8 and bool, in rows, of any number of dimensions.
  `a[i, j]`, `a[i]` and `a[first:last]` (views), `a[:] = 0.0`, `a.shape`, `a.size`, `len(a)`;
  `np.empty` and `np.zeros`, outside loops. An array cannot be returned.
* `for .. in range(..)` (a step that is no constant is positive), `while`, `if`, `break`,
  `continue`, `return` of numbers and of tuples of numbers;
  `x if c else y`; comparisons, `and`, `or`, `not`, `& | >> <<`.
* `abs min max int float len`, and those of `lowering_body.MATH`, of `math` and NumPy;
  constants of modules: numbers, and tuples of numbers; functions of kernel modules;
  kernels as arguments.
* of `kernel_math` the functions that are one instruction each, and the marks `@inline` (written out
  wherever it is called) and `@apart` (compiled once, however often it is called); `unrolled` is
  the range of a loop between constants that is written out.

It differs from Python, for speed: an index is never negative and is not checked (`checked=True`
makes a kernel that does check). Both sides of `and`, `or` and `x if c else y` may be computed,
except where one contains a call, an index made of a name that the condition asks about, or an
element of an array of which it asks the size.

Anything else raises a LoweringError that names the line.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from channelfit.scoring.machine.kernel_text import B1, F32, I64, LLVM, LoweringError, Source, Type
from channelfit.scoring.machine.lowering_body import (
    Instance,
    Ref,
    Value,
    Widened,
    literal,
    returned,
    wider,
)
from channelfit.scoring.machine.lowering_calls import ALIGNMENT, Calls
from channelfit.scoring.machine.lowering_expressions import marked


@dataclass
class KernelProgram:
    """A kernel and all that it calls, for given types of its arguments.

    Arguments:
        source, name: the kernel.
        types: of its arguments.
        contract: whether a product and a sum may become one instruction with one rounding.
        checked: whether every index is compared with its bounds.
        plainly: whether functions stay functions instead of being written out by LLVM.
    """

    source: Source
    name: str
    types: tuple[Type, ...]
    contract: bool = True
    checked: bool = False
    plainly: bool = False
    instances: dict[tuple[str, str, tuple[Type, ...]], Instance] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    tables: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def lowered(self) -> Lowered:
        """Lower the kernel and all that it calls. Raises: LoweringError."""
        node = self.source.functions.get(self.name)
        if node is None:
            raise LoweringError(f"{self.source.name} has no function {self.name}")
        kernel = self.instance(self.source, node, self.types, outermost=True)
        self._entry(kernel)
        head = [
            "@exhausted = internal global i64 0",
            "@strayed = internal global i64 0",
            'declare noalias ptr @malloc(i64) allockind("alloc,uninitialized") allocsize(0)',
            'declare void @free(ptr allocptr nocapture) allockind("free")',
            *sorted(self.declared),
            *self.tables.values(),
        ]
        return Lowered("\n".join([*head, *self.text]) + "\n", kernel.symbol, kernel.result)

    def instance(
        self,
        source: Source,
        node: ast.FunctionDef,
        types: tuple[Type, ...],
        outermost: bool = False,
    ) -> Instance:
        """Return a function for these types, lowered at the first call."""
        key = (source.name, node.name, types)
        if key not in self.instances:
            symbol = node.name if outermost else f"{node.name}.{len(self.instances)}"
            made = self.instances[key] = Instance(symbol, types)
            promoted: dict[str, Type] = {}
            while True:
                function = _Function(self, source, node, made, promoted, outermost)
                try:
                    self.text.append(function.lowered())
                    break
                except Widened as wider:  # begun again, the name being wider from the start
                    promoted[wider.name] = wider.type
        return self.instances[key]

    def table(self, numbers: Sequence[Any], element: str) -> str:
        """Return the symbol of a constant array, defined at the first call."""
        key = (element, *numbers)
        if key not in self.tables:
            items = ", ".join(f"{LLVM[element]} {literal(x, element)}" for x in numbers)
            self.tables[key] = (
                f"@table.{len(self.tables)} = private unnamed_addr constant "
                f"[{len(numbers)} x {LLVM[element]}] [{items}], align {ALIGNMENT}"
            )
        return self.tables[key].split(" ")[0]

    def _entry(self, kernel: Instance) -> None:
        """Define the function that Python calls, with one pointer to words for every platform
        alike.

        A number is a word (a float its bits); an array is its address and its shape. Results
        follow the arguments. It returns 0, or 1 where memory ran out, or 1 + the line of a stray
        index.
        """
        lines, given, at = ["entry:"], [], 0

        def word(kind: str) -> str:
            nonlocal at
            lines.append(f"  %p{at} = getelementptr inbounds i64, ptr %words, i64 {at}")
            lines.append(f"  %w{at} = load {kind}, ptr %p{at}")
            at += 1
            return f"%w{at - 1}"

        for type_ in kernel.types:
            if type_.ndim or type_.prototype:
                given.append(f"ptr {word('ptr')}")
                given += [f"i64 {word('i64')}" for _ in range(type_.ndim)]
            elif type_ == B1:
                bit = word("i64")
                lines.append(f"  {bit}b = icmp ne i64 {bit}, 0")
                given.append(f"i1 {bit}b")
            else:
                kind = LLVM[type_.element]
                given.append(f"{kind} {word(kind)}")
        call = f"call {returned(kernel.result)} @{kernel.symbol}({', '.join(given)})"
        lines.append(f"  %result = {call}" if kernel.result else f"  {call}")
        for k, type_ in enumerate(kernel.result):
            kind, value = LLVM[type_.element], "%result"
            if len(kernel.result) > 1:
                value = f"%r{k}"
                lines.append(f"  {value} = extractvalue {returned(kernel.result)} %result, {k}")
            if type_ == B1:
                lines.append(f"  {value}w = zext i1 {value} to i64")
                kind, value = "i64", f"{value}w"
            elif type_ == F32:
                lines.append(f"  {value}w = fpext float {value} to double")
                kind, value = "double", f"{value}w"
            lines.append(f"  %o{k} = getelementptr inbounds i64, ptr %words, i64 {at + k}")
            lines.append(f"  store {kind} {value}, ptr %o{k}")
        lines += [
            "  %exhausted = load i64, ptr @exhausted",
            "  store i64 0, ptr @exhausted",
            "  %strayed = load i64, ptr @strayed",
            "  store i64 0, ptr @strayed",
            "  %failed = or i64 %exhausted, %strayed",
            "  ret i64 %failed",
        ]
        body = "\n".join(lines)
        self.text.append(f"define i64 @entry(ptr %words) nounwind {PROBE} {{\n{body}\n}}")


#: On Windows a large frame calls a helper of the C runtime, which is not there; ours are small.
PROBE = '"no-stack-arg-probe"'


@dataclass(frozen=True)
class Lowered:
    """Text of LLVM's intermediate representation.

    Attributes:
        text: Python calls `entry`, other kernels may call `symbol`.
        symbol: the kernel's own.
        result: types of the numbers that it returns.
    """

    text: str
    symbol: str
    result: tuple[Type, ...]


class _Function(Calls):
    """The lowering of one function; see `KernelProgram.instance`."""

    def lowered(self) -> str:
        """Return the whole text of the function."""
        names = [argument.arg for argument in self.node.args.args]
        if len(names) != len(self.made.types):
            self.refuse(f"{len(self.made.types)} arguments given, {len(names)} taken")
        head = []
        for name, type_ in zip(names, self.made.types, strict=True):
            if type_.ndim:
                shape = [f"%a.{name}.{k}" for k in range(type_.ndim)]
                steps = [f"%a.{name}.s{k}" for k in range(type_.ndim - 1)]
                # from outside arrays come in rows, which is all that need be known
                given = shape if self.outermost else [*shape, *steps]
                head += [f"ptr %a.{name}", *(f"i64 {x}" for x in given)]
                strides = self.packed(shape) if self.outermost else steps
                self.assign(name, Value(type_, f"%a.{name}", tuple(shape), tuple(strides)))
            else:
                kind = (
                    "ptr" if type_.prototype or type_.element == "kernel" else LLVM[type_.element]
                )
                head.append(f"{kind} %a.{name}")
                self.assign(name, Value(type_, f"%a.{name}"))
        self.block(self.node.body)
        if self.results and not isinstance(self.node.body[-1], ast.Return):
            self.refuse("a function that returns numbers ends with a return")
        self._leave(())
        if self.heap:
            self._give_up()
        self.made.result = self.results
        kind = returned(self.results)
        how = "" if self.outermost else "internal "
        # generated texts call each of their functions in many places
        apart = self.source.module is None or self.program.plainly or marked(self.node, "apart")
        hint = "" if self.outermost or not apart else "noinline "
        hint = "alwaysinline " if marked(self.node, "inline") else hint
        lines = [
            f"define {how}{kind} @{self.made.symbol}({', '.join(head)}) {hint}nounwind {PROBE} {{",
            "entry:",
            *self.allocas,
            *(f"  store ptr null, ptr {s}" for s in self.heap),
            *self.body,
            "}",
        ]
        return "\n".join(lines)

    def _leave(self, values: Sequence[Value]) -> None:
        """Free the memory that was taken, and return."""
        for slot in self.heap:
            self.put(f"call void @free(ptr {self.let(f'load ptr, ptr {slot}')})")
        # heap grows: a later allocation is null here, which may be freed
        if not values and self.results:
            self.put("unreachable")
        elif not values:
            self.put("ret void")
        elif len(values) == 1:
            self.put(f"ret {LLVM[values[0].type.element]} {values[0].ref}")
        else:
            kind, whole = returned(self.results), "undef"
            for k, v in enumerate(values):
                whole = self.let(f"insertvalue {kind} {whole}, {LLVM[v.type.element]} {v.ref}, {k}")
            self.put(f"ret {kind} {whole}")

    def _give_up(self) -> None:
        """Write the end where memory ran out: all that was taken is freed, and @exhausted
        is set for the caller.
        """
        self.start("exhausted")
        for slot in self.heap:
            self.put(f"call void @free(ptr {self.let(f'load ptr, ptr {slot}')})")
        kind = returned(self.results)
        self.put("ret void" if kind == "void" else f"ret {kind} zeroinitializer")

    # --- statements

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Lower statements one after the other."""
        for statement in statements:
            self.at = statement
            kind = type(statement).__name__
            method = getattr(self, f"_do_{kind}", None)
            if method is None:
                self.refuse(f"{kind} is not part of the language")
            method(statement)

    def _do_Pass(self, node: ast.Pass) -> None:
        """Write no instruction."""

    def _do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.values(node.value)

    def _do_Return(self, node: ast.Return) -> None:
        values = [] if node.value is None else self.values(node.value)
        types = tuple(v.type for v in values)
        if any(t.ndim for t in types):
            self.refuse("an array cannot be returned")
        results = tuple(self.promoted.get(f"return {k}", t) for k, t in enumerate(types))
        if self.results and len(self.results) == len(results):
            for k, (a, b) in enumerate(zip(self.results, results, strict=True)):
                if a != b:
                    raise Widened(f"return {k}", wider(a, b))
        elif self.results:
            self.refuse("returns not as many numbers as before")
        self.results = results
        self._leave([self.to(v, t) for v, t in zip(values, results, strict=True)])
        self.start(self.label())

    def _do_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                values = self.values(node.value)
                if len(values) != len(target.elts):
                    self.refuse(f"{len(values)} values for {len(target.elts)} names")
                for one, value in zip(target.elts, values, strict=True):
                    self._store(one, value)
            else:
                self._store(target, self.value(node.value))

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._store(node.target, self.value(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        load = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        self._store(node.target, self.value(load))

    def _store(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
            return
        if not isinstance(target, ast.Subscript):
            self.refuse("only names and elements of arrays can be assigned to")
        place = self.place(target)
        if place.type.ndim:
            self.fill(place, value)
        else:
            self.write(place, value)

    def _do_For(self, node: ast.For) -> None:
        call = node.iter
        kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if not isinstance(call, ast.Call) or kind not in ("range", "unrolled") or node.orelse:
            self.refuse("only `for .. in range(..)` is part of the language")
        if not isinstance(node.target, ast.Name):
            self.refuse("a loop counts with one name")
        name = node.target.id
        step: Ref = 1
        bounds = [self.whole(self.value(a)) for a in call.args]
        if len(bounds) == 3:
            step = bounds[2]
            if step == 0:
                self.refuse("the step of a loop is not 0")
        first, last = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]

        def once(i: Ref) -> None:
            self.assign(name, Value(I64, i))
            self.block(node.body)

        if kind == "range":
            self.loop(first, last, step, once)
            return
        constants = [bound for bound in (first, last, step) if isinstance(bound, int)]
        leaves = any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))
        if len(constants) < 3 or leaves:
            self.refuse("a loop that is written out has constant bounds, no break and no continue")
        for i in range(*constants):
            once(i)

    def _do_While(self, node: ast.While) -> None:
        head, body, done = (self.label() for _ in range(3))
        self.goto(head)
        self.start(head)
        self.put(f"br i1 {self.condition(node.test)}, label %{body}, label %{done}")
        self.start(body)
        self.exits.append((done, head))
        self.block(node.body)
        self.exits.pop()
        self.goto(head)
        self.start(done)

    def _do_If(self, node: ast.If) -> None:
        yes, no, done = (self.label() for _ in range(3))
        self.put(f"br i1 {self.condition(node.test)}, label %{yes}, label %{no}")
        for label, statements in ((yes, node.body), (no, node.orelse)):
            self.start(label)
            self.block(statements)
            self.goto(done)
        self.start(done)

    def _do_Break(self, node: ast.Break) -> None:
        self.goto(self.exits[-1][0])
        self.start(self.label())

    def _do_Continue(self, node: ast.Continue) -> None:
        self.goto(self.exits[-1][1])
        self.start(self.label())
