"""Kernels, written in a small typed part of Python, as text of LLVM's intermediate representation.

A kernel is a function of arrays and numbers made of loops and arithmetic; the same text runs as
plain Python. Types are not written down: those of the function that is asked for are given, those
of what it calls follow from the calls, and every name keeps the type of what is assigned to it.

What the language has:

* numbers: float64, float32, int64 and bool. A whole number assigned to a name that elsewhere holds
  a float makes it one; float32 with float64 gives float64, as in NumPy.
* arrays of float64, float32, int64, int32, int8 and bool, in rows, of any number of dimensions.
  `a[i, j]`, `a[i]` and `a[first:last]` (views), `a[:] = 0.0`, `a.shape`, `a.size`, `len(a)`;
  `np.empty` and `np.zeros`, outside loops. An array cannot be returned.
* `for .. in range(..)`, `while`, `if`, `break`, `continue`, `return` of numbers, tuples of numbers;
  `x if c else y`; comparisons, `and`, `or`, `not`, `& | >> <<`.
* `abs min max int float len`, and of `math` and NumPy what `_MATH` lists; constants of modules:
  numbers, and tuples of numbers; functions of kernel modules; kernels as arguments.

What differs from Python, for speed: an index is never negative and is not checked (`checked=True`
makes a kernel that does check). Both sides of `and`, `or` and `x if c else y` may be computed,
except where one contains a call or an index made of a name that the condition asks about.

Anything else raises a LoweringError that names the line.
"""

from __future__ import annotations

import ast
import importlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

#: Scratch arrays of constant size up to this many bytes live on the stack; others on the heap.
_STACK = 1024
_ALIGNMENT = 64  # bytes, of scratch: a whole vector never straddles two lines of the cache
_MATH = {"log": 1, "pow": 2, "sin": 1, "cos": 1, "sqrt": 1, "floor": 1, "ceil": 1}
#: Functions of `kernel_math` that are one instruction each.
PRIMITIVES = ("bits_of", "from_bits", "power_of_two", "upper_product", "lower_product")
_LLVM = {"f64": "double", "f32": "float", "i64": "i64", "i32": "i32", "i8": "i8", "b1": "i1"}
_BYTES = {"f64": 8, "f32": 4, "i64": 8, "i32": 4, "i8": 1, "b1": 1}
_FLOATS = ("f64", "f32")
_DTYPES = {"float64": "f64", "float32": "f32", "int64": "i64", "int32": "i32", "int8": "i8",
           "bool_": "b1", "float": "f64", "int": "i64", "bool": "b1"}  # fmt: skip
_FLOAT_OPS: dict[type, str] = {
    ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv",
}  # fmt: skip
_WHOLE_OPS: dict[type, str] = {
    ast.Add: "add nsw", ast.Sub: "sub nsw", ast.Mult: "mul nsw", ast.RShift: "ashr",
    ast.LShift: "shl", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
_FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
}  # fmt: skip
_RELATIONS: dict[type, tuple[str, str]] = {
    ast.Lt: ("olt", "slt"), ast.Gt: ("ogt", "sgt"), ast.LtE: ("ole", "sle"),
    ast.GtE: ("oge", "sge"), ast.Eq: ("oeq", "eq"), ast.NotEq: ("une", "ne"),
}  # fmt: skip


class LoweringError(Exception):
    """A text that is not of the language: what, where (name and line), and the line itself."""


@dataclass(frozen=True)
class Type:
    """A number (ndim 0), an array in rows, or a kernel (element "kernel").

    Attributes:
        element: f64, f32, i64, i32, i8 or b1; of an array, what it holds.
        ndim: dimensions.
        prototype: of a kernel, the types of its arguments.
    """

    element: str
    ndim: int = 0
    prototype: tuple[Type, ...] = ()

    def __str__(self) -> str:
        if self.prototype:
            return f"kernel({', '.join(map(str, self.prototype))})"
        return self.element + (f"[{', '.join(':' * self.ndim)}]" if self.ndim else "")


F64, F32, I64, B1 = Type("f64"), Type("f32"), Type("i64"), Type("b1")
#: Of a name or a constant integer: the text of an operand, or the number itself.
_Ref = str | int


@dataclass
class _Value:
    """A number (`ref`), or an array (`ref` points to its first element)."""

    type: Type
    ref: _Ref
    shape: tuple[_Ref, ...] = ()
    strides: tuple[_Ref, ...] = ()  # in elements, of all dimensions but the last


class Source:
    """One text of kernels: its functions, and what the names in it stand for.

    Arguments:
        text: of a module.
        name: what messages call it.
        module: the module itself, where the text is one that Python has imported.
    """

    def __init__(self, text: str, name: str, module: ModuleType | None = None) -> None:
        self.text, self.name, self.module = text, name, module
        self.lines = text.splitlines()
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        self.constants: dict[str, Any] = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Assign) and module is None:
                self._constant(node)

    def _constant(self, node: ast.Assign) -> None:
        """A number, or a list of numbers in `np.array(..)`, by literals alone."""
        value: Any = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "np.array":
            value = value.args[0]
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.constants[target.id] = ast.literal_eval(value)

    def find(self, name: str) -> tuple[str, Any]:
        """("function", (source, node)), ("constant", value), ("math", name) or ("", None)."""
        if name in PRIMITIVES:
            return "math", name
        if name in self.functions:
            return "function", (self, self.functions[name])
        known = self.constants.get(name, getattr(self.module, name, None))
        if isinstance(known, int | float | tuple | list):
            return "constant", known
        if name in self.imported:
            module, original = self.imported[name]
            if module == "math":
                return "math", original
            if module.startswith("channelfit."):
                return source_of(module).find(original)
        return "", None


@cache
def source_of(module: str) -> Source:
    """The text of an imported module."""
    loaded = importlib.import_module(module)
    return Source(Path(str(loaded.__file__)).read_text(encoding="utf-8"), module, loaded)


@dataclass
class _Instance:
    """A function lowered for one set of argument types."""

    symbol: str
    types: tuple[Type, ...]
    result: tuple[Type, ...] = ()


@dataclass
class Program:
    """A kernel and all that it calls, for given types of its arguments.

    Arguments:
        source, name: the kernel.
        types: of its arguments.
        contract: whether a product and a sum may become one instruction with one rounding.
        checked: whether every index is compared with its bounds; see `Lowered`.
    """

    source: Source
    name: str
    types: tuple[Type, ...]
    contract: bool = True
    checked: bool = False
    instances: dict[tuple[str, str, tuple[Type, ...]], _Instance] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    tables: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def lowered(self) -> Lowered:
        """Raises: LoweringError."""
        node = self.source.functions.get(self.name)
        if node is None:
            raise LoweringError(f"{self.source.name} has no function {self.name}")
        kernel = self.instance(self.source, node, self.types, outermost=True)
        self._entry(kernel)
        head = [
            "@exhausted = internal global i64 0",
            "@strayed = internal global i64 0",
            "declare noalias ptr @malloc(i64) allockind(\"alloc,uninitialized\") allocsize(0)",
            "declare void @free(ptr allocptr nocapture) allockind(\"free\")",
            *sorted(self.declared),
            *self.tables.values(),
        ]  # fmt: skip
        return Lowered("\n".join([*head, *self.text]) + "\n", kernel.symbol, kernel.result)

    def instance(
        self, source: Source, node: ast.FunctionDef, types: tuple[Type, ...],
        outermost: bool = False,
    ) -> _Instance:  # fmt: skip
        """A function for these types, lowered when first asked for."""
        key = (source.name, node.name, types)
        if key not in self.instances:
            symbol = node.name if outermost else f"{node.name}.{len(self.instances)}"
            made = self.instances[key] = _Instance(symbol, types)
            promoted: dict[str, Type] = {}
            while True:
                function = _Function(self, source, node, made, promoted, outermost)
                try:
                    self.text.append(function.lowered())
                    break
                except _Widened as wider:  # begun again, the name being wider from the start
                    promoted[wider.name] = wider.type
        return self.instances[key]

    def table(self, numbers: Sequence[Any], element: str) -> str:
        """A constant array's symbol."""
        key = (element, *numbers)
        if key not in self.tables:
            items = ", ".join(f"{_LLVM[element]} {_literal(x, element)}" for x in numbers)
            self.tables[key] = (
                f"@table.{len(self.tables)} = private unnamed_addr constant "
                f"[{len(numbers)} x {_LLVM[element]}] [{items}], align {_ALIGNMENT}"
            )
        return self.tables[key].split(" ")[0]

    def _entry(self, kernel: _Instance) -> None:
        """What Python calls: one pointer to words, so that no platform's convention matters.

        A number is a word (a float its bits); an array its address and its shape. Results follow
        the arguments. Returns 0, or 1 where memory ran out, or 1 + the line of a stray index.
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
                kind = _LLVM[type_.element]
                given.append(f"{kind} {word(kind)}")
        call = f"call {_returned(kernel.result)} @{kernel.symbol}({', '.join(given)})"
        lines.append(f"  %result = {call}" if kernel.result else f"  {call}")
        for k, type_ in enumerate(kernel.result):
            kind, value = _LLVM[type_.element], "%result"
            if len(kernel.result) > 1:
                value = f"%r{k}"
                lines.append(f"  {value} = extractvalue {_returned(kernel.result)} %result, {k}")
            if type_ == B1:
                lines.append(f"  {value}w = zext i1 {value} to i64")
                kind, value = "i64", f"{value}w"
            lines.append(f"  %o{k} = getelementptr inbounds i64, ptr %words, i64 {at + k}")
            lines.append(f"  store {kind} {value}, ptr %o{k}")
        lines += [
            "  %exhausted = load i64, ptr @exhausted", "  store i64 0, ptr @exhausted",
            "  %strayed = load i64, ptr @strayed", "  store i64 0, ptr @strayed",
            "  %failed = or i64 %exhausted, %strayed", "  ret i64 %failed",
        ]  # fmt: skip
        body = "\n".join(lines)
        self.text.append(f"define i64 @entry(ptr %words) nounwind {_PROBE} {{\n{body}\n}}")


#: On Windows a large frame calls a helper of the C runtime, which is not there; ours are small.
_PROBE = '"no-stack-arg-probe"'


@dataclass(frozen=True)
class Lowered:
    """Text of LLVM's representation.

    Attributes:
        text: `entry` is what Python calls, `symbol` what other kernels may call.
        symbol: the kernel's own.
        result: types of the numbers that it returns.
    """

    text: str
    symbol: str
    result: tuple[Type, ...]


class _Widened(Exception):
    """A name has to hold more than it was made for."""

    def __init__(self, name: str, type_: Type) -> None:
        super().__init__(name)
        self.name, self.type = name, type_


def _returned(types: Sequence[Type]) -> str:
    kinds = [_LLVM[t.element] for t in types]
    return "void" if not kinds else kinds[0] if len(kinds) == 1 else "{" + ", ".join(kinds) + "}"


def _literal(value: Any, element: str) -> str:
    if element not in _FLOATS:
        return str(int(value))
    if element == "f32":  # LLVM writes a float with the digits of the double that it equals
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"


def _wider(a: Type, b: Type) -> Type:
    """What an operation of the two gives."""
    if a == b:
        return a
    if F64 in (a, b) or (F32 in (a, b) and I64 in (a, b)):
        return F64
    return F32 if F32 in (a, b) else I64


class _Function:
    """Lowers one function; see `Program.instance`."""

    def __init__(
        self, program: Program, source: Source, node: ast.FunctionDef, made: _Instance,
        promoted: dict[str, Type], outermost: bool,
    ) -> None:  # fmt: skip
        self.program, self.source, self.node, self.made = program, source, node, made
        self.promoted, self.outermost = promoted, outermost
        self.contract = "contract " if program.contract else ""
        self.slots: dict[str, _Value] = {}  # of each name; ref, shape and strides are stack slots
        self.body: list[str] = []
        self.allocas: list[str] = []
        self.heap: list[str] = []  # slots of pointers to be freed
        self.exits: list[tuple[str, str]] = []  # labels of (break, continue)
        self.count = 0
        self.at: ast.AST = node
        self.results: tuple[Type, ...] = ()

    # --- text

    def refuse(self, what: str) -> NoReturn:
        """Raises the error that names this place."""
        number = getattr(self.at, "lineno", self.node.lineno)
        line = self.source.lines[number - 1].strip()
        place = f"{self.source.name}, {self.node.name}, line {number}"
        raise LoweringError(f"{place}: {what}: {line}")

    def name(self) -> str:
        """A new name of LLVM's."""
        self.count += 1
        return f"%t{self.count}"

    def label(self) -> str:
        """A new label."""
        self.count += 1
        return f"b{self.count}"

    def put(self, text: str) -> None:
        """Adds an instruction."""
        self.body.append("  " + text)

    def let(self, text: str) -> str:
        """Adds an instruction that has a result, and names it."""
        name = self.name()
        self.body.append(f"  {name} = {text}")
        return name

    def start(self, label: str) -> None:
        """Begins a block."""
        self.body.append(f"{label}:")

    def goto(self, label: str) -> None:
        """Ends a block."""
        self.put(f"br label %{label}")

    def slot(self, kind: str) -> str:
        """A place on the stack, which LLVM turns into a register."""
        self.count += 1
        self.allocas.append(f"  %s{self.count} = alloca {kind}")
        return f"%s{self.count}"

    # --- the function

    def lowered(self) -> str:
        """The whole text."""
        names = [argument.arg for argument in self.node.args.args]
        if len(names) != len(self.made.types):
            self.refuse(f"{len(self.made.types)} arguments given, {len(names)} taken")
        head = []
        for name, type_ in zip(names, self.made.types, strict=True):
            if type_.ndim:
                shape = [f"%a.{name}.{k}" for k in range(type_.ndim)]
                strides = [] if self.outermost else [f"%a.{name}.s{k}" for k in range(type_.ndim - 1)]
                head += [f"ptr %a.{name}", *(f"i64 {x}" for x in [*shape, *strides])]
                if self.outermost:
                    strides = self._packed(shape)
                self.assign(name, _Value(type_, f"%a.{name}", tuple(shape), tuple(strides)))
            else:
                kind = "ptr" if type_.prototype or type_.element == "kernel" else _LLVM[type_.element]
                head.append(f"{kind} %a.{name}")
                self.assign(name, _Value(type_, f"%a.{name}"))
        self.block(self.node.body)
        if self.results and not isinstance(self.node.body[-1], ast.Return):
            self.refuse("a function that returns numbers ends with a return")
        self._leave(())
        if self.heap:
            self._give_up()
        self.made.result = self.results
        kind = _returned(self.results)
        inlined, apart = _inlined(self.node), _marked(self.node, "apart")
        how = "" if self.outermost else "internal "
        many = self.source.module is None and not inlined and not self.outermost
        hint = "alwaysinline " if inlined else "noinline " if many or apart else ""
        lines = [
            f"define {how}{kind} @{self.made.symbol}({', '.join(head)}) {hint}nounwind {_PROBE} {{",
            "entry:", *self.allocas, *(f"  store ptr null, ptr {s}" for s in self.heap),
            *self.body, "}",
        ]  # fmt: skip
        return "\n".join(lines)

    def _packed(self, shape: Sequence[_Ref]) -> list[_Ref]:
        """Strides of an array whose rows follow each other."""
        strides: list[_Ref] = []
        for size in reversed(shape[1:]):
            strides.insert(0, self.times(size, strides[0]) if strides else size)
        return strides

    def _leave(self, values: Sequence[_Value]) -> None:
        """Frees what was taken, and returns."""
        for slot in self.heap:
            self.put(f"call void @free(ptr {self.let(f'load ptr, ptr {slot}')})")
        # heap grows: what is allocated further down is null here, which may be freed
        if not values and self.results:
            self.put("unreachable")
        elif not values:
            self.put("ret void")
        elif len(values) == 1:
            self.put(f"ret {_LLVM[values[0].type.element]} {values[0].ref}")
        else:
            kind, whole = _returned(self.results), "undef"
            for k, v in enumerate(values):
                whole = self.let(
                    f"insertvalue {kind} {whole}, {_LLVM[v.type.element]} {v.ref}, {k}"
                )
            self.put(f"ret {kind} {whole}")

    def _give_up(self) -> None:
        """Where memory ran out: what was taken is freed, and whoever called finds @exhausted."""
        self.start("exhausted")
        for slot in self.heap:
            self.put(f"call void @free(ptr {self.let(f'load ptr, ptr {slot}')})")
        kind = _returned(self.results)
        self.put("ret void" if kind == "void" else f"ret {kind} zeroinitializer")

    # --- statements

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """One after the other."""
        for statement in statements:
            self.at = statement
            kind = type(statement).__name__
            method = getattr(self, f"_do_{kind}", None)
            if method is None:
                self.refuse(f"{kind} is not part of the language")
            method(statement)

    def _do_Pass(self, node: ast.Pass) -> None:
        """Nothing."""

    def _do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.values(node.value)

    def _do_Return(self, node: ast.Return) -> None:
        values = [] if node.value is None else self.values(node.value)
        types = tuple(v.type for v in values)
        if any(t.ndim for t in types):
            self.refuse("an array cannot be returned")
        wanted = tuple(self.promoted.get(f"return {k}", t) for k, t in enumerate(types))
        if self.results and len(self.results) == len(wanted):
            for k, (a, b) in enumerate(zip(self.results, wanted, strict=True)):
                if a != b:
                    raise _Widened(f"return {k}", _wider(a, b))
        elif self.results:
            self.refuse("returns not as many numbers as before")
        self.results = wanted
        self._leave([self.to(v, t) for v, t in zip(values, wanted, strict=True)])
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
        load = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
        self._store(node.target, self.value(load))

    def _store(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
            return
        if not isinstance(target, ast.Subscript):
            self.refuse("only names and elements of arrays can be assigned to")
        place = self._place(target)
        if place.type.ndim:
            self._fill(place, value)
        else:
            self._write(place, value)

    def _write(self, place: _Value, value: _Value) -> None:
        """An element; `place.ref` points to it."""
        element = place.type.element
        if value.type.ndim:
            self.refuse("an array cannot be stored in an element")
        if element in _FLOATS:
            value = self.to(value, Type(element))
        elif element in ("i32", "i8"):
            whole = self.to(value, I64)
            value = _Value(place.type, self.let(f"trunc i64 {whole.ref} to {_LLVM[element]}"))
        elif element == "b1":
            bit = self.to(value, B1)
            self.put(f"store i8 {self.let(f'zext i1 {bit.ref} to i8')}, ptr {place.ref}")
            return
        else:
            value = self.to(value, I64)
        self.put(f"store {_LLVM[element]} {value.ref}, ptr {place.ref}")

    def _fill(self, place: _Value, value: _Value) -> None:
        """Every element of a view."""
        if value.type.ndim not in (0, place.type.ndim):
            self.refuse(f"{value.type} does not fit {place.type}")
        if place.type.ndim == 0:
            self._write(place, value)
            return

        def one(i: str) -> None:
            inner = self._dropped(place, i)
            if value.type.ndim:
                other = self._dropped(value, i)
                self._fill(inner, other if other.type.ndim else self._read(other))
            else:
                self._fill(inner, value)

        self._loop(0, place.shape[0], 1, one)

    def _do_For(self, node: ast.For) -> None:
        call = node.iter
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "range") or node.orelse:
            self.refuse("only `for .. in range(..)` is part of the language")
        if not isinstance(node.target, ast.Name):
            self.refuse("a loop counts with one name")
        name, step = node.target.id, 1
        bounds = [self.whole(self.value(a)) for a in call.args]
        if len(bounds) == 3:
            if not isinstance(bounds[2], int) or bounds[2] == 0:
                self.refuse("the step of a loop is a constant that is not 0")
            step = bounds[2]
        first, last = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]

        def once(i: str) -> None:
            self.assign(name, _Value(I64, i))
            self.block(node.body)

        self._loop(first, last, step, once)

    def _loop(self, first: _Ref, last: _Ref, step: int, once: Callable[[str], None]) -> None:
        counter = self.slot("i64")
        head, body, next_, done = (self.label() for _ in range(4))
        self.put(f"store i64 {first}, ptr {counter}")
        self.goto(head)
        self.start(head)
        i = self.let(f"load i64, ptr {counter}")
        more = self.let(f"icmp {'slt' if step > 0 else 'sgt'} i64 {i}, {last}")
        self.put(f"br i1 {more}, label %{body}, label %{done}")
        self.start(body)
        self.exits.append((done, next_))
        once(i)
        self.exits.pop()
        self.goto(next_)
        self.start(next_)
        now = self.let(f"load i64, ptr {counter}")
        self.put(f"store i64 {self.let(f'add nsw i64 {now}, {step}')}, ptr {counter}")
        self.goto(head)
        self.start(done)

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

    # --- names

    def assign(self, name: str, value: _Value) -> None:
        """Gives a name a value; it keeps the type of its first, or the widest number's."""
        if name not in self.slots:
            type_ = value.type
            if not type_.ndim:
                type_ = self.promoted.get(name, type_)
            self.slots[name] = self._slots_for(type_)
        kept = self.slots[name]
        if kept.type != value.type:
            number = not (kept.type.ndim or value.type.ndim)
            if not number or "kernel" in (kept.type.element, value.type.element):
                self.refuse(f"{name} is {kept.type} elsewhere, and {value.type} here")
            wider = _wider(kept.type, value.type)
            if wider != kept.type:
                raise _Widened(name, wider)
            value = self.to(value, kept.type)
        kind = "ptr" if kept.type.ndim or kept.type.element == "kernel" else _LLVM[kept.type.element]
        self.put(f"store {kind} {value.ref}, ptr {kept.ref}")
        for slot, ref in zip(kept.shape + kept.strides, value.shape + value.strides, strict=True):
            self.put(f"store i64 {ref}, ptr {slot}")

    def _slots_for(self, type_: Type) -> _Value:
        if not type_.ndim:
            kind = "ptr" if type_.element == "kernel" else _LLVM[type_.element]
            return _Value(type_, self.slot(kind))
        shape = tuple(self.slot("i64") for _ in range(type_.ndim))
        strides = tuple(self.slot("i64") for _ in range(type_.ndim - 1))
        return _Value(type_, self.slot("ptr"), shape, strides)

    def _known(self, name: str) -> _Value:
        """What a name holds now."""
        kept = self.slots[name]
        pointer = kept.type.ndim or kept.type.element == "kernel"
        kind = "ptr" if pointer else _LLVM[kept.type.element]
        return _Value(
            kept.type, self.let(f"load {kind}, ptr {kept.ref}"),
            tuple(self.let(f"load i64, ptr {slot}") for slot in kept.shape),
            tuple(self.let(f"load i64, ptr {slot}") for slot in kept.strides),
        )  # fmt: skip

    # --- numbers

    def to(self, value: _Value, type_: Type) -> _Value:
        """A number as one of another type."""
        have, want = value.type.element, type_.element
        if value.type.ndim or type_.ndim or "kernel" in (have, want):
            self.refuse(f"{value.type} where {type_} is wanted")
        if have == want:
            return value
        kind, ref = f"{_LLVM[have]} {value.ref}", value.ref
        if want in _FLOATS:
            if have == "i64" and isinstance(ref, int):
                return _Value(type_, _literal(ref, want))
            how = {"f64": "fptrunc", "f32": "fpext", "i64": "sitofp", "b1": "uitofp"}[have]
        elif want == "i64":
            how = "zext" if have == "b1" else "fptosi"
        elif want == "b1" and have in _FLOATS:
            return _Value(type_, self.let(f"fcmp une {kind}, {_literal(0.0, have)}"))
        elif want == "b1":
            return _Value(type_, self.let(f"icmp ne {kind}, 0"))
        else:
            self.refuse(f"{value.type} where {type_} is wanted")
        return _Value(type_, self.let(f"{how} {kind} to {_LLVM[want]}"))

    def whole(self, value: _Value) -> _Ref:
        """A whole number: an index, a bound of a loop, a size."""
        if value.type not in (I64, B1):
            self.refuse(f"a whole number is wanted here, not {value.type}")
        return self.to(value, I64).ref

    def condition(self, node: ast.expr) -> _Ref:
        """A bool."""
        return self.to(self.value(node), B1).ref

    def times(self, a: _Ref, b: _Ref) -> _Ref:
        """A product of whole numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return a if b == 1 else b if a == 1 else self.let(f"mul nsw i64 {a}, {b}")

    def plus(self, a: _Ref, b: _Ref) -> _Ref:
        """A sum of whole numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else b if a == 0 else self.let(f"add nsw i64 {a}, {b}")

    # --- expressions

    def value(self, node: ast.expr) -> _Value:
        """A number or an array."""
        values = self.values(node)
        if len(values) != 1:
            self.refuse(f"{len(values)} values where one is wanted")
        return values[0]

    def values(self, node: ast.expr) -> list[_Value]:
        """The same, of a tuple each of its parts."""
        kind = type(node).__name__
        method = getattr(self, f"_of_{kind}", None)
        if method is None:
            self.refuse(f"{kind} is not part of the language")
        found: _Value | list[_Value] = method(node)
        return found if isinstance(found, list) else [found]

    def _of_Tuple(self, node: ast.Tuple) -> list[_Value]:
        return [self.value(one) for one in node.elts]

    def _of_Constant(self, node: ast.Constant) -> _Value:
        return self._number(node.value)

    def _number(self, value: Any) -> _Value:
        if isinstance(value, bool):
            return _Value(B1, int(value))
        if isinstance(value, int):
            return _Value(I64, value)
        if isinstance(value, float):
            return _Value(F64, _literal(value, "f64"))
        self.refuse(f"a constant {type(value).__name__} is not part of the language")

    def _of_Name(self, node: ast.Name) -> _Value:
        if node.id in self.slots:
            return self._known(node.id)
        kind, found = self.source.find(node.id)
        if kind != "constant":
            self.refuse(f"{node.id} is not known here")
        if isinstance(found, tuple | list):
            return self._table(list(found))
        return self._number(found)

    def _table(self, numbers: list[Any]) -> _Value:
        """A constant tuple as an array; one of tuples as a matrix."""
        shape: tuple[_Ref, ...] = (len(numbers),)
        if numbers and isinstance(numbers[0], tuple | list):
            shape, numbers = (len(numbers), len(numbers[0])), [x for row in numbers for x in row]
        if not numbers or not all(isinstance(x, int | float) for x in numbers):
            self.refuse("a constant tuple holds numbers")
        element = "i64" if all(isinstance(x, int) for x in numbers) else "f64"
        symbol = self.program.table(numbers, element)
        return _Value(Type(element, len(shape)), symbol, shape, shape[1:])

    def _of_Attribute(self, node: ast.Attribute) -> _Value | list[_Value]:
        text = ast.unparse(node)
        if text in ("np.inf", "math.inf"):
            return self._number(float("inf"))
        if text in ("np.pi", "math.pi"):
            return self._number(3.141592653589793)
        array = self.value(node.value)
        if node.attr == "shape":
            return [_Value(I64, size) for size in array.shape]
        if node.attr == "size" and array.type.ndim:
            size: _Ref = 1
            for one in array.shape:
                size = self.times(size, one)
            return _Value(I64, size)
        self.refuse(f".{node.attr} is not part of the language")

    def _of_Subscript(self, node: ast.Subscript) -> _Value | list[_Value]:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            sizes = self.values(node.value)
            if not isinstance(node.slice, ast.Constant):
                self.refuse("a dimension is named by a constant")
            return sizes[node.slice.value]
        if isinstance(node.value, ast.Name) and node.value.id not in self.slots:
            kind, found = self.source.find(node.value.id)
            if kind == "constant" and isinstance(node.slice, ast.Constant):
                return self._number(found[node.slice.value])
        place = self._place(node)
        if place.type.ndim == 0:
            return self._read(place)
        rows = isinstance(node.value, ast.Name) and node.value.id not in self.slots
        if rows and isinstance(place.shape[0], int):  # a row of a constant tuple of tuples
            return [self._read(self._dropped(place, k)) for k in range(place.shape[0])]
        return place

    def _place(self, node: ast.Subscript) -> _Value:
        """A view, or an element, to which `ref` points."""
        array = self.value(node.value)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) > array.type.ndim:
            self.refuse(f"{len(indices)} indices of {array.type}")
        offset: _Ref = 0
        shape: list[_Ref] = []
        strides: list[_Ref] = []
        steps = (*array.strides, 1) if array.type.ndim else ()
        for index, size, step in zip(indices, array.shape, steps, strict=False):
            if isinstance(index, ast.Slice):
                first, last = self._range(index, size)
                offset = self.plus(offset, self.times(first, step))
                shape.append(self._difference(last, first))
                strides.append(step)
            else:
                at = self.whole(self.value(index))
                if isinstance(at, int) and at < 0:
                    self.refuse("an index is not negative")
                if self.program.checked:
                    at = self._inside(at, size)
                offset = self.plus(offset, self.times(at, step))
        shape += array.shape[len(indices) :]
        strides += steps[len(indices) :]
        if strides and strides[-1] != 1:
            self.refuse("the last dimension of a view is whole, or a slice")
        kind = array.type.element
        ref: _Ref = array.ref
        if offset != 0:
            stored = "i8" if kind == "b1" else _LLVM[kind]
            ref = self.let(f"getelementptr inbounds {stored}, ptr {ref}, i64 {offset}")
        return _Value(Type(kind, len(shape)), ref, tuple(shape), tuple(strides[:-1]))

    def _range(self, index: ast.Slice, size: _Ref) -> tuple[_Ref, _Ref]:
        """First and last of a slice, which ends where the array does."""
        if index.step is not None:
            self.refuse("a slice has no step")
        first = self.whole(self.value(index.lower)) if index.lower else 0
        if index.upper is None:
            return first, size
        last = self.whole(self.value(index.upper))
        if isinstance(last, int) and isinstance(size, int):
            return first, min(last, size)
        less = self.let(f"icmp slt i64 {last}, {size}")
        return first, self.let(f"select i1 {less}, i64 {last}, i64 {size}")

    def _difference(self, a: _Ref, b: _Ref) -> _Ref:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.let(f"sub nsw i64 {a}, {b}")

    def _inside(self, at: _Ref, size: _Ref) -> _Ref:
        """An index that lies in its array; of one that does not the line is kept."""
        good = self.let(f"icmp ult i64 {at}, {size}")
        stray, fine = self.label(), self.label()
        self.put(f"br i1 {good}, label %{fine}, label %{stray}")
        self.start(stray)
        self.put(f"store i64 {1 + getattr(self.at, 'lineno', 0)}, ptr @strayed")
        self.goto(fine)
        self.start(fine)
        return self.let(f"select i1 {good}, i64 {at}, i64 0")

    def _dropped(self, array: _Value, i: _Ref) -> _Value:
        """array[i]."""
        step = array.strides[0] if array.strides else 1
        kind = "i8" if array.type.element == "b1" else _LLVM[array.type.element]
        ref = self.let(f"getelementptr inbounds {kind}, ptr {array.ref}, i64 {self.times(i, step)}")
        type_ = Type(array.type.element, array.type.ndim - 1)
        return _Value(type_, ref, array.shape[1:], array.strides[1:])

    def _read(self, place: _Value) -> _Value:
        """The element that `place` points to."""
        element = place.type.element
        if element == "b1":
            return _Value(
                B1, self.let(f"icmp ne i8 {self.let(f'load i8, ptr {place.ref}')}, 0")
            )
        read = self.let(f"load {_LLVM[element]}, ptr {place.ref}")
        if element in ("i32", "i8"):
            return _Value(I64, self.let(f"sext {_LLVM[element]} {read} to i64"))
        return _Value(Type(element), read)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> _Value:
        if isinstance(node.op, ast.Not):
            return _Value(B1, self.let(f"xor i1 {self.condition(node.operand)}, 1"))
        if not isinstance(node.op, ast.USub):
            self.refuse(f"{type(node.op).__name__} is not part of the language")
        if isinstance(node.operand, ast.Constant):
            return self._number(-node.operand.value)
        value = self.value(node.operand)
        if value.type.element in _FLOATS:
            return _Value(value.type, self.let(f"fneg {_LLVM[value.type.element]} {value.ref}"))
        ref = self.whole(value)
        return _Value(I64, -ref if isinstance(ref, int) else self.let(f"sub nsw i64 0, {ref}"))

    def _of_BinOp(self, node: ast.BinOp) -> _Value:
        a, b = self.value(node.left), self.value(node.right)
        if a.type.ndim or b.type.ndim:
            self.refuse("arithmetic is of numbers; write a loop over the elements")
        op = type(node.op)
        if a.type == b.type == B1 and op in (ast.BitAnd, ast.BitOr, ast.BitXor):
            return _Value(B1, self.let(f"{_WHOLE_OPS[op]} i1 {a.ref}, {b.ref}"))
        if op is ast.Pow:
            return self._power(a, b)
        if op in _WHOLE_OPS and not {a.type, b.type} & {F64, F32}:
            return self._whole_operation(op, self.to(a, I64).ref, self.to(b, I64).ref)
        if op in (ast.FloorDiv, ast.Mod):
            return self._divided(op, self.whole(a), self.whole(b))
        if op not in _FLOAT_OPS:
            self.refuse(f"{op.__name__} of {a.type} and {b.type} is not part of the language")
        type_ = _wider(a.type, b.type)
        type_ = F64 if type_ not in (F64, F32) else type_
        left, right = self.to(a, type_).ref, self.to(b, type_).ref
        kind = _LLVM[type_.element]
        return _Value(type_, self.let(f"{_FLOAT_OPS[op]} {self.contract}{kind} {left}, {right}"))

    def _whole_operation(self, op: type, a: _Ref, b: _Ref) -> _Value:
        if isinstance(a, int) and isinstance(b, int) and op in _FOLDED:
            return _Value(I64, _FOLDED[op](a, b))
        return _Value(I64, self.let(f"{_WHOLE_OPS[op]} i64 {a}, {b}"))

    def _divided(self, op: type, a: _Ref, b: _Ref) -> _Value:
        """Quotient or remainder as Python has them: towards minus infinity."""
        whole = op is ast.FloorDiv
        if isinstance(a, int) and isinstance(b, int) and b:
            return _Value(I64, a // b if whole else a % b)
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            text = f"ashr i64 {a}, {b.bit_length() - 1}" if whole else f"and i64 {a}, {b - 1}"
            return _Value(I64, self.let(text))
        rest = self.let(f"srem i64 {a}, {b}")
        apart = self.let(f"icmp slt i64 {self.let(f'xor i64 {rest}, {b}')}, 0")
        off = self.let(f"and i1 {apart}, {self.let(f'icmp ne i64 {rest}, 0')}")
        if not whole:
            more = self.let(f"select i1 {off}, i64 {b}, i64 0")
            return _Value(I64, self.let(f"add i64 {rest}, {more}"))
        down = self.let(f"sext i1 {off} to i64")
        return _Value(I64, self.let(f"add i64 {self.let(f'sdiv i64 {a}, {b}')}, {down}"))

    def _power(self, a: _Value, b: _Value) -> _Value:
        base = self.to(a, F64)
        if b.type == I64 and isinstance(b.ref, int) and 0 < b.ref <= 8:
            ref = base.ref
            for _ in range(b.ref - 1):
                ref = self.let(f"fmul {self.contract}double {ref}, {base.ref}")
            return _Value(F64, ref)
        return self._called("pow", [base, self.to(b, F64)])

    def _of_BoolOp(self, node: ast.BoolOp) -> _Value:
        both = isinstance(node.op, ast.And)
        result = self.condition(node.values[0])
        for k, operand in enumerate(node.values[1:], 1):
            if self._guarded(operand, node.values[:k]):
                result = self._branched(result, both, operand)
            else:
                word = "and" if both else "or"
                result = self.let(f"{word} i1 {result}, {self.condition(operand)}")
        return _Value(B1, result)

    def _branched(self, known: _Ref, both: bool, operand: ast.expr) -> str:
        """`and` or `or` whose right side is computed only where it is asked for."""
        kept, more, done = self.slot("i1"), self.label(), self.label()
        self.put(f"store i1 {known}, ptr {kept}")
        yes, no = (more, done) if both else (done, more)
        self.put(f"br i1 {known}, label %{yes}, label %{no}")
        self.start(more)
        self.put(f"store i1 {self.condition(operand)}, ptr {kept}")
        self.goto(done)
        self.start(done)
        return self.let(f"load i1, ptr {kept}")

    def _guarded(self, part: ast.expr, conditions: Sequence[ast.expr]) -> bool:
        """Whether a part may only be computed where the conditions allow."""
        asked: set[str] = set()
        for condition in conditions:
            asked |= _names(condition, inside_indices=False)
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and not self._harmless(node):
                return True
            if isinstance(node, ast.Subscript) and asked & _names(node.slice, inside_indices=True):
                return True
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                return True
        return False

    def _harmless(self, node: ast.Call) -> bool:
        """Whether a call computes a number of numbers, and can be made in vain."""
        if not isinstance(node.func, ast.Name):
            return ast.unparse(node.func).split(".")[0] == "np"
        if node.func.id in ("abs", "min", "max", "int", "float", "len", *_DTYPES):
            return True
        kind, found = self.source.find(node.func.id)
        return kind == "math" or (kind == "function" and _inlined(found[1]))

    def _of_Compare(self, node: ast.Compare) -> _Value:
        left, result = self.value(node.left), ""
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _RELATIONS:
                self.refuse(f"{type(op).__name__} is not part of the language")
            right = self.value(right_node)
            ordered, signed = _RELATIONS[type(op)]
            type_ = _wider(left.type, right.type)
            type_ = I64 if type_ == B1 else type_
            a, b, kind = self.to(left, type_).ref, self.to(right, type_).ref, _LLVM[type_.element]
            text = f"fcmp {ordered}" if type_.element in _FLOATS else f"icmp {signed}"
            found = self.let(f"{text} {kind} {a}, {b}")
            result = self.let(f"and i1 {result}, {found}") if result else found
            left = right
        return _Value(B1, result)

    def _of_IfExp(self, node: ast.IfExp) -> list[_Value]:
        test = self.condition(node.test)
        if not any(self._guarded(part, [node.test]) for part in (node.body, node.orelse)):
            yes, no = self.values(node.body), self.values(node.orelse)
            return [self._chosen(test, a, b) for a, b in zip(yes, no, strict=True)]
        labels = then, other, done = tuple(self.label() for _ in range(3))
        self.put(f"br i1 {test}, label %{then}, label %{other}")
        found = []
        for label, part in zip(labels[:2], (node.body, node.orelse), strict=True):
            self.start(label)
            found.append((self.values(part), len(self.body)))
            self.goto(done)
        types = [_wider(a.type, b.type) for a, b in zip(found[0][0], found[1][0], strict=True)]
        slots = [self.slot(_LLVM[t.element]) for t in types]
        for values, place in reversed(found):  # before the jump at the end of each side
            tail, self.body = self.body[place:], self.body[:place]
            for value, type_, slot in zip(values, types, slots, strict=True):
                self.put(f"store {_LLVM[type_.element]} {self.to(value, type_).ref}, ptr {slot}")
            self.body += tail
        self.start(done)
        return [
            _Value(t, self.let(f"load {_LLVM[t.element]}, ptr {slot}"))
            for t, slot in zip(types, slots, strict=True)
        ]

    def _chosen(self, test: _Ref, a: _Value, b: _Value) -> _Value:
        type_ = _wider(a.type, b.type)
        kind, yes, no = _LLVM[type_.element], self.to(a, type_).ref, self.to(b, type_).ref
        return _Value(type_, self.let(f"select i1 {test}, {kind} {yes}, {kind} {no}"))

    # --- calls

    def _of_Call(self, node: ast.Call) -> _Value | list[_Value]:
        if node.keywords:
            self.refuse("arguments are given by place")
        text = ast.unparse(node.func)
        if text in ("np.empty", "np.zeros"):
            return self._scratch(node, text == "np.zeros")
        name = text.removeprefix("np.") if text.startswith("np.") else text
        if name not in self.slots and name in (*_DTYPES, "len", "abs", "min", "max"):
            return self._builtin(name, node)
        if text.startswith("np."):
            if name not in _MATH:
                self.refuse(f"{text} is not part of the language")
            return self._called(name, [self.value(a) for a in node.args])
        if not isinstance(node.func, ast.Name):
            self.refuse(f"{text} is not part of the language")
        arguments = [self.value(a) for a in node.args]
        if name in self.slots:
            return self._through(self._known(name), arguments)
        kind, found = self.source.find(name)
        if kind == "math":
            return self._called(found, arguments)
        if kind != "function":
            self.refuse(f"{name} is not known here")
        return self._own(found[0], found[1], arguments)

    def _builtin(self, name: str, node: ast.Call) -> _Value:
        if name == "float" and isinstance(node.args[0], ast.Constant):
            return self._number(float(node.args[0].value))
        values = [self.value(a) for a in node.args]
        if name == "len":
            return _Value(I64, values[0].shape[0])
        if name in _DTYPES:
            element = _DTYPES[name]
            return self.to(values[0], Type("i64" if element in ("i32", "i8") else element))
        if name == "abs":
            return self._absolute(values[0])
        result = values[0]
        for other in values[1:]:  # Python's: the first, unless the next one beats it
            type_ = _wider(result.type, other.type)
            a, b = self.to(result, type_), self.to(other, type_)
            order = {"max": ("ogt", "sgt"), "min": ("olt", "slt")}[name]
            real = type_.element in _FLOATS
            text = f"fcmp {order[0]}" if real else f"icmp {order[1]}"
            beats = self.let(f"{text} {_LLVM[type_.element]} {b.ref}, {a.ref}")
            result = self._chosen(beats, b, a)
        return result

    def _absolute(self, value: _Value) -> _Value:
        if value.type.element in _FLOATS:
            return self._intrinsic("fabs", [value])
        ref = self.whole(value)
        less = self.let(f"icmp slt i64 {ref}, 0")
        turned = self.let(f"sub nsw i64 0, {ref}")
        return _Value(I64, self.let(f"select i1 {less}, i64 {turned}, i64 {ref}"))

    def _intrinsic(self, name: str, values: Sequence[_Value]) -> _Value:
        type_ = values[0].type
        kind, symbol = _LLVM[type_.element], f"@llvm.{name}.{type_.element}"
        self.program.declared.add(f"declare {kind} {symbol}({', '.join([kind] * len(values))})")
        given = ", ".join(f"{kind} {v.ref}" for v in values)
        return _Value(type_, self.let(f"call {kind} {symbol}({given})"))

    def _called(self, name: str, values: list[_Value]) -> _Value:
        """A function of the C library, or an instruction."""
        if name == "bits_of":
            return _Value(I64, self.let(f"bitcast double {self.to(values[0], F64).ref} to i64"))
        if name == "from_bits":
            return _Value(F64, self.let(f"bitcast i64 {self.whole(values[0])} to double"))
        if name == "power_of_two":
            n = self.let(f"fptosi double {self.to(values[0], F64).ref} to i64")
            bits = self.let(f"shl i64 {self.let(f'add i64 {n}, 1023')}, 52")
            return _Value(F64, self.let(f"bitcast i64 {bits} to double"))
        if name in ("upper_product", "lower_product"):
            product = self.let(f"mul i64 {self.whole(values[0])}, {self.whole(values[1])}")
            half = f"lshr i64 {product}, 32" if name[0] == "u" else f"and i64 {product}, 4294967295"
            return _Value(I64, self.let(half))
        if name not in _MATH or len(values) != _MATH[name]:
            self.refuse(f"{name} of {len(values)} is not part of the language")
        values = [v if v.type == F32 and name == "sqrt" else self.to(v, F64) for v in values]
        if name in ("sqrt", "floor", "ceil"):
            return self._intrinsic(name, values)
        kinds = ", ".join(["double"] * len(values))
        # Where LLVM knows that they do nothing else, sine and cosine of one angle become one call.
        pure = " nounwind willreturn memory(none)" if name in ("sin", "cos") else ""
        self.program.declared.add(f"declare double @{name}({kinds}){pure}")
        given = ", ".join(f"double {v.ref}" for v in values)
        return _Value(F64, self.let(f"call double @{name}({given})"))

    def _own(
        self, source: Source, node: ast.FunctionDef, values: list[_Value]
    ) -> _Value | list[_Value]:
        """A function of the same or another text, lowered for these arguments."""
        if len(values) != len(node.args.args):
            self.refuse(f"{node.name} takes {len(node.args.args)} arguments, not {len(values)}")
        for k, argument in enumerate(node.args.args):
            wanted = ast.unparse(argument.annotation) if argument.annotation else ""
            if wanted in ("float", "int", "bool") and not values[k].type.ndim:
                values[k] = self.to(values[k], Type(_DTYPES[wanted]))
        made = self.program.instance(source, node, tuple(v.type for v in values))
        given = []
        for v in values:
            kind = "ptr" if v.type.ndim or v.type.element == "kernel" else _LLVM[v.type.element]
            given += [f"{kind} {v.ref}", *(f"i64 {ref}" for ref in v.shape + v.strides)]
        call = f"call {_returned(made.result)} @{made.symbol}({', '.join(given)})"
        return self._results(call, made.result)

    def _results(self, call: str, types: Sequence[Type]) -> _Value | list[_Value]:
        if not types:
            self.put(call)
            return []
        got = self.let(call)
        if len(types) == 1:
            return _Value(types[0], got)
        kind = _returned(types)
        return [_Value(t, self.let(f"extractvalue {kind} {got}, {k}")) for k, t in enumerate(types)]

    def _through(self, kernel: _Value, values: list[_Value]) -> list[_Value]:
        """A kernel that was given as an argument: of arrays in rows, it returns nothing."""
        prototype = kernel.type.prototype
        if tuple(v.type for v in values) != prototype:
            self.refuse(f"the kernel takes {kernel.type}, not {[str(v.type) for v in values]}")
        given, kinds = [], []
        for v in values:
            kind = "ptr" if v.type.ndim else _LLVM[v.type.element]
            given += [f"{kind} {v.ref}", *(f"i64 {ref}" for ref in v.shape)]
            kinds += [kind, *("i64" for _ in v.shape)]
        self.put(f"call void {kernel.ref}({', '.join(given)})")
        return []

    def _scratch(self, node: ast.Call, zeros: bool) -> _Value:
        """An array of this call's own."""
        if self.exits:
            self.refuse("scratch is made outside loops")
        element = "f64"
        if len(node.args) > 1:
            named = ast.unparse(node.args[1]).removeprefix("np.")
            if named not in _DTYPES:
                self.refuse(f"{named} is not a type of numbers")
            element = _DTYPES[named]
        sizes = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
        shape = tuple(self.whole(self.value(s)) for s in sizes)
        count: _Ref = 1
        for size in shape:
            count = self.times(count, size)
        strides = tuple(self._packed(shape))
        pointer = self._room(count, element)
        array = _Value(Type(element, len(shape)), pointer, shape, strides)
        if zeros:
            flat = _Value(Type(element, 1), pointer, (count,), ())
            self._fill(flat, self._number(0.0 if element in _FLOATS else 0))
        return array

    def _room(self, count: _Ref, element: str) -> str:
        """Aligned memory: on the stack where it is little, else freed at the end."""
        size = _BYTES[element]
        if isinstance(count, int) and count * size <= _STACK:
            self.count += 1
            kind = f"[{max(1, count * size)} x i8]"
            self.allocas.append(f"  %s{self.count} = alloca {kind}, align {_ALIGNMENT}")
            return f"%s{self.count}"
        wanted = self.plus(self.times(count, size), _ALIGNMENT)
        taken = self.let(f"call noalias ptr @malloc(i64 {wanted})")
        self.heap.append(self.slot("ptr"))
        self.put(f"store ptr {taken}, ptr {self.heap[-1]}")
        missing, fine = self.label(), self.label()
        none = self.let(f"icmp eq ptr {taken}, null")
        self.put(f"br i1 {none}, label %{missing}, label %{fine}")
        self.start(missing)
        self.put("store i64 1, ptr @exhausted")
        self.put("br label %exhausted")
        self.start(fine)
        address = self.let(f"ptrtoint ptr {taken} to i64")
        past = self.let(f"and i64 {self.let(f'sub i64 0, {address}')}, {_ALIGNMENT - 1}")
        return self.let(f"getelementptr i8, ptr {taken}, i64 {past}")


def _loaded(node: ast.expr) -> ast.expr:
    """The same place, to be read."""
    return node  # the context of a node is not looked at


def _inlined(node: ast.FunctionDef) -> bool:
    return _marked(node, "inline")


def _marked(node: ast.FunctionDef, decorator: str) -> bool:
    return any(ast.unparse(d) == decorator for d in node.decorator_list)


def _names(node: ast.AST, inside_indices: bool) -> set[str]:
    """Names in an expression; without those that only say which element is meant."""
    if isinstance(node, ast.Name):
        return {node.id}
    found: set[str] = set()
    for key, child in ast.iter_fields(node):
        if isinstance(node, ast.Subscript) and key == "slice" and not inside_indices:
            continue
        for one in child if isinstance(child, list) else [child]:
            if isinstance(one, ast.AST):
                found |= _names(one, inside_indices)
    return found
