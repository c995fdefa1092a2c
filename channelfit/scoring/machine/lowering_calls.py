"""Calls in kernels: functions of mathematics, functions of kernel texts, and scratch arrays."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from channelfit.scoring.machine.kernel_text import DTYPES, FLOATS, I64, LLVM, Source, Type
from channelfit.scoring.machine.lowering_body import MATH, Ref, Value, returned, wider
from channelfit.scoring.machine.lowering_expressions import Expressions

#: Scratch arrays of constant size up to this many bytes live on the stack; others on the heap.
_STACK = 1024
ALIGNMENT = 64  # bytes, of scratch: a whole vector never straddles two lines of the cache
_BYTES = {"f64": 8, "f32": 4, "i64": 8, "i32": 4, "i8": 1, "b1": 1}


class Calls(Expressions):
    """The lowering of calls, and of arrays that a kernel makes for itself."""

    def _of_Call(self, node: ast.Call) -> Value | list[Value]:
        if node.keywords:
            self.refuse("arguments are given by place")
        text = ast.unparse(node.func)
        if text in ("np.empty", "np.zeros"):
            return self._scratch(node, text == "np.zeros")
        name = text.removeprefix("np.") if text.startswith("np.") else text
        if name not in self.slots and name in (*DTYPES, "len", "abs", "min", "max"):
            return self._builtin(name, node)
        if text.startswith("np."):
            if name not in MATH:
                self.refuse(f"{text} is not part of the language")
            return self.called(name, [self.value(a) for a in node.args])
        if not isinstance(node.func, ast.Name):
            self.refuse(f"{text} is not part of the language")
        arguments = [self.value(a) for a in node.args]
        if name in self.slots:
            return self._through(self.known(name), arguments)
        kind, found = self.source.find(name)
        if kind == "math":
            return self.called(found, arguments)
        if kind != "function":
            self.refuse(f"{name} is not known here")
        return self._own(found[0], found[1], arguments)

    def _builtin(self, name: str, node: ast.Call) -> Value:
        if name == "float" and isinstance(node.args[0], ast.Constant):
            return self.number(float(str(node.args[0].value)))
        values = [self.value(a) for a in node.args]
        if name == "len":
            return Value(I64, values[0].shape[0])
        if name in DTYPES:
            element = DTYPES[name]
            return self.to(values[0], Type("i64" if element in ("i32", "i8") else element))
        if name == "abs":
            return self._absolute(values[0])
        result = values[0]
        for other in values[1:]:  # Python's: the first, unless the next one beats it
            type_ = wider(result.type, other.type)
            a, b = self.to(result, type_), self.to(other, type_)
            order = {"max": ("ogt", "sgt"), "min": ("olt", "slt")}[name]
            real = type_.element in FLOATS
            text = f"fcmp {order[0]}" if real else f"icmp {order[1]}"
            beats = self.let(f"{text} {LLVM[type_.element]} {b.ref}, {a.ref}")
            result = self._chosen(beats, b, a)
        return result

    def _absolute(self, value: Value) -> Value:
        if value.type.element in FLOATS:
            return self.intrinsic("fabs", [value])
        ref = self.whole(value)
        less = self.let(f"icmp slt i64 {ref}, 0")
        turned = self.let(f"sub nsw i64 0, {ref}")
        return Value(I64, self.let(f"select i1 {less}, i64 {turned}, i64 {ref}"))

    def _own(
        self, source: Source, node: ast.FunctionDef, values: list[Value]
    ) -> Value | list[Value]:
        """Call a function of the same or another text, lowered for these arguments."""
        if len(values) != len(node.args.args):
            self.refuse(f"{node.name} takes {len(node.args.args)} arguments, not {len(values)}")
        for k, argument in enumerate(node.args.args):
            annotation = ast.unparse(argument.annotation) if argument.annotation else ""
            if annotation in ("float", "int", "bool") and not values[k].type.ndim:
                values[k] = self.to(values[k], Type(DTYPES[annotation]))
        made = self.program.instance(source, node, tuple(v.type for v in values))
        given = []
        for v in values:
            kind = "ptr" if v.type.ndim or v.type.element == "kernel" else LLVM[v.type.element]
            given += [f"{kind} {v.ref}", *(f"i64 {ref}" for ref in v.shape + v.strides)]
        call = f"call {returned(made.result)} @{made.symbol}({', '.join(given)})"
        return self._results(call, made.result)

    def _results(self, call: str, types: Sequence[Type]) -> Value | list[Value]:
        if not types:
            self.put(call)
            return []
        got = self.let(call)
        if len(types) == 1:
            return Value(types[0], got)
        kind = returned(types)
        return [Value(t, self.let(f"extractvalue {kind} {got}, {k}")) for k, t in enumerate(types)]

    def _through(self, kernel: Value, values: list[Value]) -> list[Value]:
        """Call a kernel that was given as an argument: of arrays in rows, it returns nothing."""
        prototype = kernel.type.prototype
        if tuple(v.type for v in values) != prototype:
            self.refuse(f"the kernel takes {kernel.type}, not {[str(v.type) for v in values]}")
        given = []
        for v in values:
            kind = "ptr" if v.type.ndim else LLVM[v.type.element]
            given += [f"{kind} {v.ref}", *(f"i64 {ref}" for ref in v.shape)]
        self.put(f"call void {kernel.ref}({', '.join(given)})")
        return []

    def _scratch(self, node: ast.Call, zeros: bool) -> Value:
        """Make an array that lives as long as this call of the kernel."""
        if self.exits:
            self.refuse("scratch is made outside loops")
        element = "f64"
        if len(node.args) > 1:
            named = ast.unparse(node.args[1]).removeprefix("np.")
            if named not in DTYPES:
                self.refuse(f"{named} is not a type of numbers")
            element = DTYPES[named]
        sizes = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
        shape = tuple(self.whole(self.value(s)) for s in sizes)
        count: Ref = 1
        for size in shape:
            count = self.times(count, size)
        strides = tuple(self.packed(shape))
        pointer = self._room(count, element)
        array = Value(Type(element, len(shape)), pointer, shape, strides)
        if zeros:
            flat = Value(Type(element, 1), pointer, (count,), ())
            self.fill(flat, self.number(0.0 if element in FLOATS else 0))
        return array

    def _room(self, count: Ref, element: str) -> str:
        """Reserve aligned memory: on the stack where it is little, else freed at the end."""
        size = _BYTES[element]
        if isinstance(count, int) and count * size <= _STACK:
            self.count += 1
            kind = f"[{max(1, count * size)} x i8]"
            self.allocas.append(f"  %s{self.count} = alloca {kind}, align {ALIGNMENT}")
            return f"%s{self.count}"
        n_bytes = self.plus(self.times(count, size), ALIGNMENT)
        taken = self.let(f"call noalias ptr @malloc(i64 {n_bytes})")
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
        past = self.let(f"and i64 {self.let(f'sub i64 0, {address}')}, {ALIGNMENT - 1}")
        return self.let(f"getelementptr i8, ptr {taken}, i64 {past}")
