"""Expressions of kernels in LLVM's representation: operations, elements of arrays, and views.

`lowering_calls` adds the calls.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from channelfit.scoring.machine.kernel_text import B1, DTYPES, F32, F64, FLOATS, I64, LLVM, Type
from channelfit.scoring.machine.lowering_body import FunctionBody, Ref, Value, wider

_FLOAT_OPS: dict[type, str] = {
    ast.Add: "fadd",
    ast.Sub: "fsub",
    ast.Mult: "fmul",
    ast.Div: "fdiv",
}
_WHOLE_OPS: dict[type, str] = {
    ast.Add: "add nsw",
    ast.Sub: "sub nsw",
    ast.Mult: "mul nsw",
    ast.RShift: "ashr",
    ast.LShift: "shl",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}
_RELATIONS: dict[type, tuple[str, str]] = {
    ast.Lt: ("olt", "slt"),
    ast.Gt: ("ogt", "sgt"),
    ast.LtE: ("ole", "sle"),
    ast.GtE: ("oge", "sge"),
    ast.Eq: ("oeq", "eq"),
    ast.NotEq: ("une", "ne"),
}


class Expressions(FunctionBody):
    """The lowering of expressions to values."""

    def condition(self, node: ast.expr) -> Ref:
        """Return an expression as a bool."""
        return self.to(self.value(node), B1).ref

    def value(self, node: ast.expr) -> Value:
        """Return an expression as one number or array."""
        values = self.values(node)
        if len(values) != 1:
            self.refuse(f"{len(values)} values where one is expected")
        return values[0]

    def values(self, node: ast.expr) -> list[Value]:
        """Return an expression as a list of values, more than one for a tuple."""
        kind = type(node).__name__
        method = getattr(self, f"_of_{kind}", None)
        if method is None:
            self.refuse(f"{kind} is not part of the language")
        found: Value | list[Value] = method(node)
        return found if isinstance(found, list) else [found]

    def _of_Tuple(self, node: ast.Tuple) -> list[Value]:
        return [self.value(one) for one in node.elts]

    def _of_Constant(self, node: ast.Constant) -> Value:
        return self.number(node.value)

    def _of_Name(self, node: ast.Name) -> Value:
        if node.id in self.slots:
            return self.known(node.id)
        kind, found = self.source.find(node.id)
        if kind != "constant":
            self.refuse(f"{node.id} is not known here")
        if isinstance(found, tuple | list):
            return self._table(list(found), self.source.elements.get(node.id, ""))
        return self.number(found)

    def _table(self, numbers: list[Any], element: str) -> Value:
        """Return a constant tuple as an array; one of tuples as a matrix."""
        shape: tuple[Ref, ...] = (len(numbers),)
        if numbers and isinstance(numbers[0], tuple | list):
            shape, numbers = (len(numbers), len(numbers[0])), [x for row in numbers for x in row]
        if not numbers or not all(isinstance(x, int | float) for x in numbers):
            self.refuse("a constant tuple holds numbers")
        element = element or ("i64" if all(isinstance(x, int) for x in numbers) else "f64")
        symbol = self.program.table(numbers, element)
        return Value(Type(element, len(shape)), symbol, shape, shape[1:])

    def _of_Attribute(self, node: ast.Attribute) -> Value | list[Value]:
        text = ast.unparse(node)
        if text in ("np.inf", "math.inf"):
            return self.number(float("inf"))
        if text in ("np.pi", "math.pi"):
            return self.number(3.141592653589793)
        array = self.value(node.value)
        if node.attr == "shape":
            return [Value(I64, size) for size in array.shape]
        if node.attr == "size" and array.type.ndim:
            size: Ref = 1
            for one in array.shape:
                size = self.times(size, one)
            return Value(I64, size)
        self.refuse(f".{node.attr} is not part of the language")

    def _of_Subscript(self, node: ast.Subscript) -> Value | list[Value]:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            sizes = self.values(node.value)
            if not (isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)):
                self.refuse("a dimension is named by a constant")
            return sizes[node.slice.value]
        if isinstance(node.value, ast.Name) and node.value.id not in self.slots:
            kind, found = self.source.find(node.value.id)
            plain = node.value.id not in self.source.elements
            if kind == "constant" and isinstance(node.slice, ast.Constant) and plain:
                return self.number(found[node.slice.value])
        place = self.place(node)
        if place.type.ndim == 0:
            return self._read(place)
        rows = isinstance(node.value, ast.Name) and node.value.id not in self.slots
        if rows and isinstance(place.shape[0], int):  # a row of a constant tuple of tuples
            return [self._read(self._dropped(place, k)) for k in range(place.shape[0])]
        return place

    def place(self, node: ast.Subscript) -> Value:
        """Return a view, or an element, to which `ref` points."""
        array = self.value(node.value)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) > array.type.ndim:
            self.refuse(f"{len(indices)} indices of {array.type}")
        offset: Ref = 0
        shape: list[Ref] = []
        strides: list[Ref] = []
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
        ref: Ref = array.ref
        if offset != 0:
            stored = "i8" if kind == "b1" else LLVM[kind]
            ref = self.let(f"getelementptr inbounds {stored}, ptr {ref}, i64 {offset}")
        return Value(Type(kind, len(shape)), ref, tuple(shape), tuple(strides[:-1]))

    def _range(self, index: ast.Slice, size: Ref) -> tuple[Ref, Ref]:
        """Return first and last index of a slice, which ends where the array does."""
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

    def _difference(self, a: Ref, b: Ref) -> Ref:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.let(f"sub nsw i64 {a}, {b}")

    def _inside(self, at: Ref, size: Ref) -> Ref:
        """Return an index that lies in its array; for one that does not, remember the line."""
        good = self.let(f"icmp ult i64 {at}, {size}")
        stray, fine = self.label(), self.label()
        self.put(f"br i1 {good}, label %{fine}, label %{stray}")
        self.start(stray)
        self.put(f"store i64 {1 + getattr(self.at, 'lineno', 0)}, ptr @strayed")
        self.goto(fine)
        self.start(fine)
        return self.let(f"select i1 {good}, i64 {at}, i64 0")

    def _dropped(self, array: Value, i: Ref) -> Value:
        """Return array[i]."""
        step = array.strides[0] if array.strides else 1
        kind = "i8" if array.type.element == "b1" else LLVM[array.type.element]
        ref = self.let(f"getelementptr inbounds {kind}, ptr {array.ref}, i64 {self.times(i, step)}")
        type_ = Type(array.type.element, array.type.ndim - 1)
        return Value(type_, ref, array.shape[1:], array.strides[1:])

    def _read(self, place: Value) -> Value:
        """Load the element to which `place` points."""
        element = place.type.element
        if element == "b1":
            return Value(B1, self.let(f"icmp ne i8 {self.let(f'load i8, ptr {place.ref}')}, 0"))
        read = self.let(f"load {LLVM[element]}, ptr {place.ref}")
        if element in ("i32", "i8"):
            return Value(I64, self.let(f"sext {LLVM[element]} {read} to i64"))
        return Value(Type(element), read)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(B1, self.let(f"xor i1 {self.condition(node.operand)}, 1"))
        if not isinstance(node.op, ast.USub):
            self.refuse(f"{type(node.op).__name__} is not part of the language")
        if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, int | float):
            return self.number(-node.operand.value)
        value = self.value(node.operand)
        if value.type.element in FLOATS:
            return Value(value.type, self.let(f"fneg {LLVM[value.type.element]} {value.ref}"))
        ref = self.whole(value)
        return Value(I64, -ref if isinstance(ref, int) else self.let(f"sub nsw i64 0, {ref}"))

    def _of_BinOp(self, node: ast.BinOp) -> Value:
        a, b = self.value(node.left), self.value(node.right)
        if a.type.ndim or b.type.ndim:
            self.refuse("arithmetic is of numbers; write a loop over the elements")
        op = type(node.op)
        if a.type == b.type == B1 and op in (ast.BitAnd, ast.BitOr, ast.BitXor):
            return Value(B1, self.let(f"{_WHOLE_OPS[op]} i1 {a.ref}, {b.ref}"))
        if op is ast.Pow:
            return self._power(a, b)
        if op in _WHOLE_OPS and not {a.type, b.type} & {F64, F32}:
            return self._whole_operation(op, self.to(a, I64).ref, self.to(b, I64).ref)
        if op in (ast.FloorDiv, ast.Mod):
            return self._divided(op, self.whole(a), self.whole(b))
        if op not in _FLOAT_OPS:
            self.refuse(f"{op.__name__} of {a.type} and {b.type} is not part of the language")
        type_ = wider(a.type, b.type)
        type_ = F64 if type_ not in (F64, F32) else type_
        left, right = self.to(a, type_).ref, self.to(b, type_).ref
        kind = LLVM[type_.element]
        return Value(type_, self.let(f"{_FLOAT_OPS[op]} {self.contract}{kind} {left}, {right}"))

    def _whole_operation(self, op: type, a: Ref, b: Ref) -> Value:
        if isinstance(a, int) and isinstance(b, int) and op in _FOLDED:
            return Value(I64, _FOLDED[op](a, b))
        return Value(I64, self.let(f"{_WHOLE_OPS[op]} i64 {a}, {b}"))

    def _divided(self, op: type, a: Ref, b: Ref) -> Value:
        """Return quotient or remainder, rounded towards minus infinity as Python does."""
        whole = op is ast.FloorDiv
        if isinstance(a, int) and isinstance(b, int) and b:
            return Value(I64, a // b if whole else a % b)
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            text = f"ashr i64 {a}, {b.bit_length() - 1}" if whole else f"and i64 {a}, {b - 1}"
            return Value(I64, self.let(text))
        rest = self.let(f"srem i64 {a}, {b}")
        apart = self.let(f"icmp slt i64 {self.let(f'xor i64 {rest}, {b}')}, 0")
        off = self.let(f"and i1 {apart}, {self.let(f'icmp ne i64 {rest}, 0')}")
        if not whole:
            more = self.let(f"select i1 {off}, i64 {b}, i64 0")
            return Value(I64, self.let(f"add i64 {rest}, {more}"))
        down = self.let(f"sext i1 {off} to i64")
        return Value(I64, self.let(f"add i64 {self.let(f'sdiv i64 {a}, {b}')}, {down}"))

    def _power(self, a: Value, b: Value) -> Value:
        base = self.to(a, F64)
        if b.type == I64 and isinstance(b.ref, int) and 0 < b.ref <= 8:
            ref = base.ref
            for _ in range(b.ref - 1):
                ref = self.let(f"fmul {self.contract}double {ref}, {base.ref}")
            return Value(F64, ref)
        return self.called("pow", [base, self.to(b, F64)])

    def _of_BoolOp(self, node: ast.BoolOp) -> Value:
        both = isinstance(node.op, ast.And)
        result = self.condition(node.values[0])
        for k, operand in enumerate(node.values[1:], 1):
            if self._guarded(operand, node.values[:k]):
                result = self._branched(result, both, operand)
            else:
                word = "and" if both else "or"
                result = self.let(f"{word} i1 {result}, {self.condition(operand)}")
        return Value(B1, result)

    def _branched(self, known: Ref, both: bool, operand: ast.expr) -> str:
        """Lower `and` or `or` so that its right side is computed only where it is needed."""
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
        """Return whether a part may be computed only where the conditions allow it."""
        named: set[str] = set()
        sized: set[str] = set()
        for condition in conditions:
            named |= _names(condition, inside_indices=False)
            sized |= _sized(condition)
        for node in ast.walk(part):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) in sized:
                return True
            if isinstance(node, ast.Call) and not self._harmless(node):
                return True
            if isinstance(node, ast.Subscript) and named & _names(node.slice, inside_indices=True):
                return True
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                return True
        return False

    def _harmless(self, node: ast.Call) -> bool:
        """Return whether a call computes a number from numbers, which does no harm unneeded."""
        if not isinstance(node.func, ast.Name):
            return ast.unparse(node.func).split(".")[0] == "np"
        if node.func.id in ("abs", "min", "max", "int", "float", "len", *DTYPES):
            return True
        kind, found = self.source.find(node.func.id)
        return kind == "math" or (kind == "function" and marked(found[1], "inline"))

    def _of_Compare(self, node: ast.Compare) -> Value:
        left, result = self.value(node.left), ""
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _RELATIONS:
                self.refuse(f"{type(op).__name__} is not part of the language")
            right = self.value(right_node)
            ordered, signed = _RELATIONS[type(op)]
            type_ = wider(left.type, right.type)
            type_ = I64 if type_ == B1 else type_
            a, b, kind = self.to(left, type_).ref, self.to(right, type_).ref, LLVM[type_.element]
            text = f"fcmp {ordered}" if type_.element in FLOATS else f"icmp {signed}"
            found = self.let(f"{text} {kind} {a}, {b}")
            result = self.let(f"and i1 {result}, {found}") if result else found
            left = right
        return Value(B1, result)

    def _of_IfExp(self, node: ast.IfExp) -> list[Value]:
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
        types = [wider(a.type, b.type) for a, b in zip(found[0][0], found[1][0], strict=True)]
        slots = [self.slot(LLVM[t.element]) for t in types]
        for values, place in reversed(found):  # before the jump at the end of each side
            tail, self.body = self.body[place:], self.body[:place]
            for value, type_, slot in zip(values, types, slots, strict=True):
                self.put(f"store {LLVM[type_.element]} {self.to(value, type_).ref}, ptr {slot}")
            self.body += tail
        self.start(done)
        return [
            Value(t, self.let(f"load {LLVM[t.element]}, ptr {slot}"))
            for t, slot in zip(types, slots, strict=True)
        ]

    def _chosen(self, test: Ref, a: Value, b: Value) -> Value:
        type_ = wider(a.type, b.type)
        kind, yes, no = LLVM[type_.element], self.to(a, type_).ref, self.to(b, type_).ref
        return Value(type_, self.let(f"select i1 {test}, {kind} {yes}, {kind} {no}"))

    # --- elements and loops

    def write(self, place: Value, value: Value) -> None:
        """Store a value in the element to which `place.ref` points."""
        element = place.type.element
        if value.type.ndim:
            self.refuse("an array cannot be stored in an element")
        if element in FLOATS:
            value = self.to(value, Type(element))
        elif element in ("i32", "i8"):
            whole = self.to(value, I64)
            value = Value(place.type, self.let(f"trunc i64 {whole.ref} to {LLVM[element]}"))
        elif element == "b1":
            bit = self.to(value, B1)
            self.put(f"store i8 {self.let(f'zext i1 {bit.ref} to i8')}, ptr {place.ref}")
            return
        else:
            value = self.to(value, I64)
        self.put(f"store {LLVM[element]} {value.ref}, ptr {place.ref}")

    def fill(self, place: Value, value: Value) -> None:
        """Store a value in every element of a view."""
        if value.type.ndim not in (0, place.type.ndim):
            self.refuse(f"{value.type} does not fit {place.type}")
        if place.type.ndim == 0:
            self.write(place, value)
            return

        def one(i: str) -> None:
            inner = self._dropped(place, i)
            if value.type.ndim:
                other = self._dropped(value, i)
                self.fill(inner, other if other.type.ndim else self._read(other))
            else:
                self.fill(inner, value)

        self.loop(0, place.shape[0], 1, one)

    def loop(self, first: Ref, last: Ref, step: Ref, once: Callable[[str], None]) -> None:
        """Run `once` with the name of a counter that goes from first to last, without last, by
        step.
        """
        counter = self.slot("i64")
        head, body, next_, done = (self.label() for _ in range(4))
        # a step that is only known when it runs is positive
        relation = "sgt" if isinstance(step, int) and step < 0 else "slt"
        self.put(f"store i64 {first}, ptr {counter}")
        self.goto(head)
        self.start(head)
        i = self.let(f"load i64, ptr {counter}")
        more = self.let(f"icmp {relation} i64 {i}, {last}")
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


def marked(node: ast.FunctionDef, decorator: str) -> bool:
    """Return whether a function has this decorator; see `kernel_math`."""
    return any(ast.unparse(d) == decorator for d in node.decorator_list)


def _sized(condition: ast.expr) -> set[str]:
    """Return the arrays of which a condition asks the size."""
    found = set()
    for node in ast.walk(condition):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "len":
            found.add(ast.unparse(node.args[0]))
        elif isinstance(node, ast.Attribute) and node.attr in ("size", "shape"):
            found.add(ast.unparse(node.value))
    return found


def _names(node: ast.AST, inside_indices: bool) -> set[str]:
    """Return the names in an expression, without those that only say which element is meant."""
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
