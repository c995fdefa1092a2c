"""The body of one function in LLVM's representation: instructions, names, numbers and mathematics.

`lowering_expressions` builds on it, `lowering_calls` on that, and `lowering` on all.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from channelfit.scoring.machine.kernel_text import B1, F32, F64, FLOATS, I64, LLVM, Source, Type

#: Functions of mathematics that a kernel may call, and how many arguments each takes.
MATH = {"log": 1, "pow": 2, "sin": 1, "cos": 1, "sqrt": 1, "floor": 1, "ceil": 1}
#: An operand: its text, or the number itself where it is a constant integer.
Ref = str | int


@dataclass
class Value:
    """A number or an array.

    Attributes:
        type: of the number, or of the array.
        ref: the number itself or the name of an operand; of an array, a pointer to its first
            element.
        shape: of an array.
        strides: in elements, of all dimensions of an array but the last.
    """

    type: Type
    ref: Ref
    shape: tuple[Ref, ...] = ()
    strides: tuple[Ref, ...] = ()  # in elements, of all dimensions but the last


class Widened(Exception):
    """A name has to hold a wider type of numbers than it was made for; lowering begins again."""

    def __init__(self, name: str, type_: Type) -> None:
        super().__init__(name)
        self.name, self.type = name, type_


def returned(types: Sequence[Type]) -> str:
    """Return LLVM's name for the type of a function's results."""
    kinds = [LLVM[t.element] for t in types]
    return "void" if not kinds else kinds[0] if len(kinds) == 1 else "{" + ", ".join(kinds) + "}"


def literal(value: Any, element: str) -> str:
    """Write a number as LLVM does; a float with all its bits."""
    if element not in FLOATS:
        return str(int(value))
    if element == "f32":  # LLVM writes a float with the digits of the double that it equals
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"


def wider(a: Type, b: Type) -> Type:
    """Return the type that an operation of two numbers gives."""
    if a == b:
        return a
    if F64 in (a, b) or (F32 in (a, b) and I64 in (a, b)):
        return F64
    return F32 if F32 in (a, b) else I64


@dataclass
class Instance:
    """A function that is lowered for one set of argument types."""

    symbol: str
    types: tuple[Type, ...]
    result: tuple[Type, ...] = ()


class Unit(Protocol):
    """The program that a function is part of; see `lowering.KernelProgram`."""

    contract: bool
    checked: bool
    plainly: bool
    declared: set[str]

    def instance(
        self,
        source: Source,
        node: ast.FunctionDef,
        types: tuple[Type, ...],
        outermost: bool = False,
    ) -> Instance:
        """Return a function for these types."""

    def table(self, numbers: Sequence[Any], element: str) -> str:
        """Return the symbol of a constant array."""


class FunctionBody:
    """The instructions of a function, and the values of its names."""

    def __init__(
        self,
        program: Unit,
        source: Source,
        node: ast.FunctionDef,
        made: Instance,
        promoted: dict[str, Type],
        outermost: bool,
    ) -> None:
        self.program, self.source, self.node, self.made = program, source, node, made
        self.promoted, self.outermost = promoted, outermost
        self.contract = "contract " if program.contract else ""
        self.slots: dict[str, Value] = {}  # of each name; ref, shape and strides are stack slots
        self.body: list[str] = []
        self.allocas: list[str] = []
        self.heap: list[str] = []  # slots of pointers to be freed
        self.exits: list[tuple[str, str]] = []  # labels of (break, continue)
        self.count = 0
        self.at: ast.AST = node
        self.results: tuple[Type, ...] = ()

    # --- text

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that names this place in the text."""
        raise self.source.error(self.node, self.at, what)

    def name(self) -> str:
        """Return a new name for LLVM."""
        self.count += 1
        return f"%t{self.count}"

    def label(self) -> str:
        """Return a new label of a block."""
        self.count += 1
        return f"b{self.count}"

    def put(self, text: str) -> None:
        """Add an instruction."""
        self.body.append("  " + text)

    def let(self, text: str) -> str:
        """Add an instruction that has a result, and return the result's name."""
        name = self.name()
        self.body.append(f"  {name} = {text}")
        return name

    def start(self, label: str) -> None:
        """Begin a block."""
        self.body.append(f"{label}:")

    def goto(self, label: str) -> None:
        """End a block with a jump."""
        self.put(f"br label %{label}")

    def slot(self, kind: str) -> str:
        """Reserve a place on the stack, which LLVM turns into a register."""
        self.count += 1
        self.allocas.append(f"  %s{self.count} = alloca {kind}")
        return f"%s{self.count}"

    # --- names

    def assign(self, name: str, value: Value) -> None:
        """Give a name a value; the name keeps the type of its first value, or that of the widest
        number.
        """
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
            both = wider(kept.type, value.type)
            if both != kept.type:
                raise Widened(name, both)
            value = self.to(value, kept.type)
        kind = "ptr" if kept.type.ndim or kept.type.element == "kernel" else LLVM[kept.type.element]
        self.put(f"store {kind} {value.ref}, ptr {kept.ref}")
        for slot, ref in zip(kept.shape + kept.strides, value.shape + value.strides, strict=True):
            self.put(f"store i64 {ref}, ptr {slot}")

    def _slots_for(self, type_: Type) -> Value:
        if not type_.ndim:
            kind = "ptr" if type_.element == "kernel" else LLVM[type_.element]
            return Value(type_, self.slot(kind))
        shape = tuple(self.slot("i64") for _ in range(type_.ndim))
        strides = tuple(self.slot("i64") for _ in range(type_.ndim - 1))
        return Value(type_, self.slot("ptr"), shape, strides)

    def known(self, name: str) -> Value:
        """Load the present value of a name."""
        kept = self.slots[name]
        pointer = kept.type.ndim or kept.type.element == "kernel"
        kind = "ptr" if pointer else LLVM[kept.type.element]
        return Value(
            kept.type,
            self.let(f"load {kind}, ptr {kept.ref}"),
            tuple(self.let(f"load i64, ptr {slot}") for slot in kept.shape),
            tuple(self.let(f"load i64, ptr {slot}") for slot in kept.strides),
        )

    # --- numbers

    def to(self, value: Value, type_: Type) -> Value:
        """Convert a number to another type."""
        have, want = value.type.element, type_.element
        if value.type.ndim or type_.ndim or "kernel" in (have, want):
            self.refuse(f"{value.type} where {type_} is expected")
        if have == want:
            return value
        kind, ref = f"{LLVM[have]} {value.ref}", value.ref
        if want in FLOATS:
            if have == "i64" and isinstance(ref, int):
                return Value(type_, literal(ref, want))
            how = {"f64": "fptrunc", "f32": "fpext", "i64": "sitofp", "b1": "uitofp"}[have]
        elif want == "i64":
            how = "zext" if have == "b1" else "fptosi"
        elif want == "b1" and have in FLOATS:
            return Value(type_, self.let(f"fcmp une {kind}, {literal(0.0, have)}"))
        elif want == "b1":
            return Value(type_, self.let(f"icmp ne {kind}, 0"))
        else:
            self.refuse(f"{value.type} where {type_} is expected")
        return Value(type_, self.let(f"{how} {kind} to {LLVM[want]}"))

    def whole(self, value: Value) -> Ref:
        """Return a whole number: an index, a bound of a loop, a size. Refuses any other value."""
        if value.type not in (I64, B1):
            self.refuse(f"a whole number is expected here, not {value.type}")
        return self.to(value, I64).ref

    def times(self, a: Ref, b: Ref) -> Ref:
        """Multiply whole numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return a if b == 1 else b if a == 1 else self.let(f"mul nsw i64 {a}, {b}")

    def plus(self, a: Ref, b: Ref) -> Ref:
        """Add whole numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else b if a == 0 else self.let(f"add nsw i64 {a}, {b}")

    def number(self, value: Any) -> Value:
        """Return a constant of Python as a value."""
        if isinstance(value, bool):
            return Value(B1, int(value))
        if isinstance(value, int):
            return Value(I64, value)
        if isinstance(value, float):
            return Value(F64, literal(value, "f64"))
        self.refuse(f"a constant {type(value).__name__} is not part of the language")

    def packed(self, shape: Sequence[Ref]) -> list[Ref]:
        """Return the strides of an array without gaps between its rows."""
        strides: list[Ref] = []
        for size in reversed(shape[1:]):
            strides.insert(0, self.times(size, strides[0]) if strides else size)
        return strides

    # --- mathematics

    def intrinsic(self, name: str, values: Sequence[Value]) -> Value:
        """Call an operation that LLVM has for numbers of any type, such as `llvm.sqrt`."""
        type_ = values[0].type
        kind, symbol = LLVM[type_.element], f"@llvm.{name}.{type_.element}"
        self.program.declared.add(f"declare {kind} {symbol}({', '.join([kind] * len(values))})")
        given = ", ".join(f"{kind} {v.ref}" for v in values)
        return Value(type_, self.let(f"call {kind} {symbol}({given})"))

    def called(self, name: str, values: list[Value]) -> Value:
        """Call a function of the C library, or write the instruction that it is."""
        if name == "bits_of":
            return Value(I64, self.let(f"bitcast double {self.to(values[0], F64).ref} to i64"))
        if name == "from_bits":
            return Value(F64, self.let(f"bitcast i64 {self.whole(values[0])} to double"))
        if name in ("upper_product", "lower_product"):
            product = self.let(f"mul i64 {self.whole(values[0])}, {self.whole(values[1])}")
            half = f"lshr i64 {product}, 32" if name[0] == "u" else f"and i64 {product}, 4294967295"
            return Value(I64, self.let(half))
        if name not in MATH or len(values) != MATH[name]:
            self.refuse(f"{name} of {len(values)} is not part of the language")
        values = [v if v.type == F32 and name == "sqrt" else self.to(v, F64) for v in values]
        if name in ("sqrt", "floor", "ceil"):
            return self.intrinsic(name, values)
        kinds = ", ".join(["double"] * len(values))
        # Where LLVM knows that they do nothing else, sine and cosine of one angle become one call.
        pure = " nounwind willreturn memory(none)" if name in ("sin", "cos") else ""
        self.program.declared.add(f"declare double @{name}({kinds}){pure}")
        given = ", ".join(f"double {v.ref}" for v in values)
        return Value(F64, self.let(f"call double @{name}({given})"))
