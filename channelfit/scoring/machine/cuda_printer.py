"""Functions of kernels as CUDA C++: the second target of the language that `lowering` describes.

On a processor a function works on candidates side by side: the last index of its arrays is the
lane, and its innermost loops run over lanes. On a GPU a thread has one candidate. A loop over lanes
becomes its body there, `p[j, lane]` becomes `p[j]`, and an array that has no other index becomes a
number. A `Card` says how arguments and constants are called in C.

Differences from the processor:

* Numbers have the card's type, such as `real`; an element of another type is converted when it is
  read. Whole numbers have 32 bits; those that are divided must not be negative.
* `min` and `max` are `fmin` and `fmax`, which prefer a number to NaN.
* `a, b = f(x)` calls a function of C that writes into references behind its arguments.
"""

from __future__ import annotations

import ast
import copy
import math
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from channelfit.scoring.machine.kernel_text import DTYPES, FLOATS, Source

#: The text that must precede printed functions.
CUDA_HEAD = """
#define INFINITE __longlong_as_double(0x7ff0000000000000ll)
#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000ll)
"""
_WIDTH = 100
_BINARY: dict[type, tuple[str, int]] = {
    ast.BitOr: (" | ", 3),
    ast.BitXor: (" ^ ", 4),
    ast.BitAnd: (" & ", 5),
    ast.LShift: (" << ", 8),
    ast.RShift: (" >> ", 8),
    ast.Add: (" + ", 9),
    ast.Sub: (" - ", 9),
    ast.Mult: ("*", 10),
    ast.Div: ("/", 10),
    ast.FloorDiv: ("/", 10),
    ast.Mod: ("%", 10),
}
_RELATIONS: dict[type, tuple[str, int]] = {
    ast.Eq: (" == ", 6),
    ast.NotEq: (" != ", 6),
    ast.Lt: (" < ", 7),
    ast.LtE: (" <= ", 7),
    ast.Gt: (" > ", 7),
    ast.GtE: (" >= ", 7),
}
_UNARY, _ATOM = 11, 12
#: Kinds of values, the widest last.
_KINDS = ("bool", "int", "real")
_ARGUMENT = re.compile(r"(restrict )?([\w ]+?)(&|(?:\[[^]]*\])+)?(?:\*(\w+))?")


@dataclass(frozen=True)
class Card:
    """The spelling of a function in CUDA.

    Attributes:
        number: the type that it computes with.
        arguments: the C types of arguments, and of arrays their dimensions except that of the lane:
            "real[N]"; "real&" has the lane alone, and "real[N]*stride" has `stride` elements from
            one to the next. "restrict real[N]" promises that nothing else points there. An argument
            that is left out has the type of its annotation.
        spelled: {expression of the text: C}. An argument that is spelled is no argument in C.
        records: arguments that are structures: `facts[COUNT, lane]` is `facts.count`.
        rolled: the counters of loops that are not unrolled; "*" stands for all.
        template: parameters of a template.
        lane: the name of the lane in the text.
    """

    number: str = "real"
    arguments: Mapping[str, str] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)
    records: Collection[str] = ()
    rolled: Collection[str] = ()
    template: str = ""
    lane: str = "lane"


@dataclass(frozen=True)
class _Array:
    """An array in C: the type of its elements, and dimensions without that of the lane."""

    element: str
    dimensions: tuple[str, ...] = ()
    stride: str = ""
    by_reference: bool = False
    restrict: bool = False


def cuda_function(source: Source, name: str, card: Card) -> str:
    """Return a function of a text as CUDA C++. Raises: LoweringError."""
    return _CudaPrinter(source, source.functions[name], card).function()


def cuda_tables(source: Source, number: str) -> str:
    """Return the constant arrays of a generated text as CUDA C++."""
    lines = []
    for name in source.elements:
        items = ", ".join(f"{number}({x!r})" for x in source.constants[name])
        lines.append(f"__constant__ {number} {name}[{len(source.constants[name])}] = {{{items}}};")
    return "\n".join(lines)


class _CudaPrinter:
    """The printer of one function."""

    def __init__(self, source: Source, node: ast.FunctionDef, card: Card) -> None:
        self.source, self.card = source, card
        self.at: ast.AST = node
        self.node = copy.deepcopy(node)
        self.node.body = self._without_lanes(self.node.body)
        self.arrays: dict[str, _Array] = {}
        self.kinds: dict[str, str] = {}
        self.parameters: list[str] = []
        self.result = ""
        self.lines: list[str] = []
        self.depth = 1
        for argument in node.args.args:
            self._argument(argument)
        self._infer()
        self.declared = _declarations(self.node.body)

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that names the present statement."""
        raise self.source.error(self.node, self.at, f"{what} in CUDA")

    # --- the head

    def function(self) -> str:
        """Return the whole text of the function."""
        written = _written(self.source, self.source.functions[self.node.name])
        arguments = []
        for argument in self.parameters:
            array = self.arrays.get(argument)
            if array is None:
                arguments.append(f"{self._type(argument)} {argument}")
                continue
            const = "" if argument in written else "const "
            kind = "&" if array.by_reference else "* __restrict__" if array.restrict else "*"
            arguments.append(f"{const}{array.element}{kind} {argument}")
        self.block(self.node.body)
        result = self._c(self.result) if self.result else "void"
        listed = textwrap.fill(
            ", ".join(arguments) + ")", _WIDTH, initial_indent="    ", subsequent_indent="    "
        )
        documented = (ast.get_docstring(self.node) or "").split("\n\n")[0]
        template = self.card.template or ("class T" if self.card.number == "T" else "")
        head = [f"// {line}" for line in documented.splitlines()]
        head += [f"template<{template}>"] if template else []
        head.append(f"__device__ __forceinline__ {result} {self.node.name}(")
        return "\n".join([*head, listed, "{", *self.lines, "}"]) + "\n"

    def _argument(self, argument: ast.arg) -> None:
        name = argument.arg
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        if name in self.card.spelled:
            self.kinds[name] = "real" if annotation == "float" else "int"
            return
        self.parameters.append(name)
        found = _ARGUMENT.fullmatch(self.card.arguments.get(name, ""))
        if name in self.card.records and found is not None:
            self.arrays[name] = _Array(found[2], by_reference=True)
        elif found is not None and found[3]:
            dimensions = tuple(re.findall(r"\[([^]]*)\]", found[3]))
            self.arrays[name] = _Array(
                found[2], dimensions, found[4] or "", found[3] == "&", bool(found[1])
            )
        elif found is not None:
            self.kinds[name] = self._kind_of_element(found[2])
        elif annotation in ("int", "bool", "float"):
            self.kinds[name] = "real" if annotation == "float" else annotation
        else:
            self.refuse(f"the argument {name} needs a type")

    def _type(self, name: str) -> str:
        return self.card.arguments.get(name) or self._c(self.kinds[name])

    def _c(self, kind: str) -> str:
        return self.card.number if kind == "real" else kind

    def _kind_of_element(self, element: str) -> str:
        if element == "bool":
            return "bool"
        known = ("double", "float", "real", "T", "Number", self.card.number)
        return "real" if element in known else "int"

    # --- kinds of names

    def _without_lanes(self, statements: Sequence[ast.stmt], last: bool = False) -> list[ast.stmt]:
        """Return statements with the bodies of loops over lanes in their places.

        last: whether the statements end the body of a loop, as `continue` needs.
        """
        out: list[ast.stmt] = []
        for k, statement in enumerate(statements):
            self.at, ends = statement, last and k == len(statements) - 1
            if isinstance(statement, ast.For) and _counter(statement) == self.card.lane:
                if _continues(statement.body) and not ends:
                    self.refuse("only a loop over lanes that ends a loop may continue")
                out += self._without_lanes(statement.body, ends)
                continue
            if isinstance(statement, ast.For):
                statement.body = self._without_lanes(statement.body, True)
            elif isinstance(statement, ast.If):
                statement.body = self._without_lanes(statement.body, ends)
                statement.orelse = self._without_lanes(statement.orelse, ends)
            out.append(statement)
        return out

    def _infer(self) -> None:
        """Find the kind of every name: the widest of its values."""
        before: dict[str, str] | None = None
        while before != self.kinds:
            before = dict(self.kinds)
            for node in ast.walk(self.node):
                if isinstance(node, ast.For):
                    self._widen(_counter(node), "int")
                elif isinstance(node, ast.Assign):
                    for target in node.targets:
                        for name, value in _pairs(target, node.value):
                            if isinstance(name, ast.Name):
                                self._holds(name.id, value)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    self._widen(node.target.id, self.kind(node.value))

    def _holds(self, name: str, value: ast.expr | None) -> None:
        if value is None:  # one of several results of a call
            self._widen(name, "real")
        elif _called(value) in ("np.empty", "np.zeros"):
            assert isinstance(value, ast.Call)
            element = "f64"
            if len(value.args) > 1:
                element = DTYPES[ast.unparse(value.args[1]).removeprefix("np.")]
            shape = value.args[0]
            sizes = shape.elts if isinstance(shape, ast.Tuple) else [shape]
            dimensions = tuple(self.text(size) for size in sizes[:-1])
            kind = self.card.number if element in FLOATS else "int"
            self.arrays[name] = _Array(kind, dimensions, by_reference=not dimensions)
        else:
            self._widen(name, self.kind(value))

    def _widen(self, name: str, kind: str) -> None:
        known = self.kinds.get(name, "bool")
        self.kinds[name] = max(known, kind, key=_KINDS.index)

    def kind(self, node: ast.expr) -> str:
        """Return the kind of an expression: "real", "int" or "bool"."""
        if isinstance(node, ast.Compare | ast.BoolOp):
            return "bool"
        if isinstance(node, ast.Constant):
            return self._kind_of_constant(node.value)
        if isinstance(node, ast.UnaryOp):
            return "bool" if isinstance(node.op, ast.Not) else self.kind(node.operand)
        if isinstance(node, ast.IfExp):
            return max(self.kind(node.body), self.kind(node.orelse), key=_KINDS.index)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Div | ast.Pow):
                return "real"
            return max(self.kind(node.left), self.kind(node.right), "int", key=_KINDS.index)
        if isinstance(node, ast.Name):
            if node.id in self.arrays:
                return self._kind_of_element(self.arrays[node.id].element)
            kind, found = self.source.find(node.id)
            known = self._kind_of_constant(found) if kind == "constant" else "int"
            return self.kinds.get(node.id, known)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Name) and node.value.id in self.card.records:
                return "real"
            whole = isinstance(node.value, ast.Attribute)  # a dimension
            return "int" if whole else self.kind(node.value)
        if isinstance(node, ast.Call):
            name = _called(node)
            if name in ("abs", "min", "max"):
                return max((self.kind(a) for a in node.args), key=_KINDS.index)
            return "int" if name == "int" else "real"
        self.refuse(f"{type(node).__name__} has no text")

    def _kind_of_constant(self, value: Any) -> str:
        return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "real"

    # --- statements

    def put(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.depth + text)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Print statements, with declarations of names that are first used in them."""
        for statement in statements:
            self.at = statement
            self._comment(statement)
            for name in self.declared.get(id(statement), ()):
                if name in self.arrays and not _assigns(statement, name):
                    self.refuse(f"{name} is made in a block of its own")
                if not _assigns(statement, name):
                    self.put(f"{self._c(self.kinds[name])} {name};")
            method = getattr(self, f"_do_{type(statement).__name__}", None)
            if method is None:
                self.refuse(f"{type(statement).__name__} has no text")
            method(statement)

    def _comment(self, statement: ast.stmt) -> None:
        above: list[str] = []
        for line in reversed(self.source.lines[: statement.lineno - 1]):
            if not line.strip().startswith("#"):
                break
            above.insert(0, line.strip()[1:].strip())
        for line in above:
            self.put(f"// {line}")

    def _inner(self, statements: Sequence[ast.stmt]) -> None:
        self.depth += 1
        self.block(statements)
        self.depth -= 1

    def _do_Pass(self, node: ast.Pass) -> None:
        """Print nothing."""

    def _do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.put(f"{self.text(node.value)};")

    def _do_Assign(self, node: ast.Assign) -> None:
        new = self.declared.get(id(node), {})
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Call):
            names = [self.text(t) for t in node.targets[0].elts]
            own = [name for name in names if name in new]
            if own:
                self.put(f"{self.card.number} {', '.join(own)};")
            given = [self.text(a) for a in node.value.args]
            self.put(f"{self._function(_called(node.value))}({', '.join(given + names)});")
            return
        for target in node.targets:
            pairs = _pairs(target, node.value)
            for k, (one, value) in enumerate(pairs):
                assert value is not None
                later = [v for _, v in pairs[k + 1 :]]
                if isinstance(one, ast.Name) and any(one.id in _names(v) for v in later if v):
                    self.refuse("names that are assigned together depend on each other")
                self._set(one, value, new)

    def _set(self, target: ast.expr, value: ast.expr, new: Mapping[str, bool]) -> None:
        name = target.id if isinstance(target, ast.Name) else ""
        if _called(value) in ("np.empty", "np.zeros"):
            array = self.arrays[name]
            sizes = "".join(f"[{size}]" for size in array.dimensions)
            start = " = {}" if _called(value) == "np.zeros" else ""
            self.put(f"{array.element} {name}{sizes}{start};")
            return
        text = self.text(value)
        if name in new:
            const = "const " if new[name] else ""
            text = f"{const}{self._c(self.kinds[name])} {name} = {text}"
        else:
            text = f"{self.text(target)} = {text}"
        self.put(f"{text};")

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        sign = _BINARY[type(node.op)][0].strip()
        self.put(f"{self.text(node.target)} {sign}= {self.text(node.value)};")

    def _do_For(self, node: ast.For) -> None:
        if _called(node.iter) != "range" or not isinstance(node.iter, ast.Call):
            self.refuse("only `for .. in range(..)` has a text")
        bounds = [self.text(a, 9) for a in node.iter.args]
        first, last = ("0", bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else "1"
        i, down = _counter(node), step.startswith("-")
        by = {"1": f"{i}++", "-1": f"{i}--"}.get(step, f"{i} += {step}")
        if not {i, "*"} & set(self.card.rolled):
            self.put("#pragma unroll")
        self.put(f"for (int {i} = {first}; {i} {'>' if down else '<'} {last}; {by}) {{")
        self._inner(node.body)
        self.put("}")

    def _do_If(self, node: ast.If) -> None:
        self.put(f"if ({self.text(node.test)}) {{")
        self._inner(node.body)
        if node.orelse:
            self.put("} else {")
            self._inner(node.orelse)
        self.put("}")

    def _do_Break(self, node: ast.Break) -> None:
        self.put("break;")

    def _do_Continue(self, node: ast.Continue) -> None:
        self.put("continue;")

    def _do_Return(self, node: ast.Return) -> None:
        if node.value is None or isinstance(node.value, ast.Tuple):
            self.refuse("only a return of one number has a text")
        kind = self.kind(node.value)
        if self.result not in ("", kind):
            self.refuse("every return gives a value of the same kind")
        self.result = kind
        self.put(f"return {self.text(node.value)};")

    # --- expressions

    def text(self, node: ast.expr, least: int = 0) -> str:
        """Return an expression in C, in parentheses where it binds less than `least`."""
        spelled = self.card.spelled.get(ast.unparse(node))
        if spelled is not None:
            return spelled
        method = getattr(self, f"_of_{type(node).__name__}", None)
        if method is None:
            self.refuse(f"{type(node).__name__} has no text")
        text, binds = method(node)
        return text if binds >= least else f"({text})"

    def _of_Constant(self, node: ast.Constant) -> tuple[str, int]:
        return self._number(node.value), _ATOM

    def _number(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if not isinstance(value, float):
            self.refuse(f"a {type(value).__name__} has no text")
        text = repr(abs(value))
        if not math.isfinite(value):
            text = "NOT_A_NUMBER" if math.isnan(value) else "INFINITE"
        sign = "-" if value < 0 else ""
        return sign + (text if self.card.number == "double" else f"{self.card.number}({text})")

    def _of_Name(self, node: ast.Name) -> tuple[str, int]:
        if node.id == self.card.lane:
            return "0", _ATOM
        if node.id in self.kinds or node.id in self.arrays or node.id in self.source.elements:
            return node.id, _ATOM
        kind, found = self.source.find(node.id)
        if kind != "constant":
            self.refuse(f"{node.id} is not known here")
        return self._number(found), _ATOM

    def _of_Subscript(self, node: ast.Subscript) -> tuple[str, int]:
        if not isinstance(node.value, ast.Name):
            self.refuse(f"{ast.unparse(node)} has to be spelled")
        name = node.value.id
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [i for i in indices if ast.unparse(i) != self.card.lane]
        if name in self.card.records:
            return f"{name}.{ast.unparse(indices[0]).lower()}", _ATOM
        array = self.arrays.get(name, _Array(self.card.number, ("",)))
        if len(indices) != len(array.dimensions):
            self.refuse(f"{name} has {len(array.dimensions)} indices beside the lane")
        if not indices:
            text = name
        else:
            place = self.text(indices[0], 9 if len(indices) == 1 and not array.stride else _ATOM)
            for index, size in zip(indices[1:], array.dimensions[1:], strict=True):
                place = f"{place}*{size} + {self.text(index, 9)}"
                place = place if index is indices[-1] and not array.stride else f"({place})"
            text = f"{name}[(size_t){place}*{array.stride}]" if array.stride else f"{name}[{place}]"
        kind = self._kind_of_element(array.element)
        if kind == "real" and array.element != self.card.number and self._reads(node):
            text = f"{self.card.number}({text})"
        return text, _ATOM

    def _reads(self, node: ast.Subscript) -> bool:
        return isinstance(node.ctx, ast.Load)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> tuple[str, int]:
        if isinstance(node.op, ast.Invert | ast.UAdd):
            self.refuse("only - and not have a text")
        sign = "!" if isinstance(node.op, ast.Not) else "-"
        if _called(node.operand) == "float" and sign == "-":
            return f"-{self.text(node.operand)}", _UNARY
        return f"{sign}{self.text(node.operand, _ATOM)}", _UNARY

    def _of_BinOp(self, node: ast.BinOp) -> tuple[str, int]:
        if isinstance(node.op, ast.Pow):
            return f"pow({self.text(node.left)}, {self.text(node.right)})", _ATOM
        if isinstance(node.right, ast.Name) and node.right.id == self.card.lane:
            return self.text(node.left), 0  # the lane is 0
        sign, binds = _BINARY[type(node.op)]
        left, right = self.text(node.left, binds), self.text(node.right, binds + 1)
        if isinstance(node.op, ast.Div) and "real" not in (
            self.kind(node.left),
            self.kind(node.right),
        ):
            left = f"{self.card.number}({left})"
        return f"{left}{sign}{right}", binds

    def _of_Compare(self, node: ast.Compare) -> tuple[str, int]:
        if len(node.ops) > 1:
            self.refuse("only two values are compared")
        sign, binds = _RELATIONS[type(node.ops[0])]
        right = self.text(node.comparators[0], binds + 1)
        return f"{self.text(node.left, binds + 1)}{sign}{right}", binds

    def _of_BoolOp(self, node: ast.BoolOp) -> tuple[str, int]:
        binds = 2 if isinstance(node.op, ast.And) else 1
        sign = " && " if binds == 2 else " || "
        return sign.join(self.text(value, binds + 1) for value in node.values), binds

    def _of_IfExp(self, node: ast.IfExp) -> tuple[str, int]:
        yes, no = self.text(node.body, 1), self.text(node.orelse)
        return f"{self.text(node.test, 1)} ? {yes} : {no}", 0

    def _of_Call(self, node: ast.Call) -> tuple[str, int]:
        name = _called(node)
        if name == "float" and isinstance(node.args[0], ast.Constant):
            return self._number(float(str(node.args[0].value))), _ATOM
        given = [self.text(a) for a in node.args]
        real = self.kind(node) == "real"
        if name in DTYPES:
            return f"{self._c('real' if real else 'int')}({given[0]})", _ATOM
        if name == "abs":
            return f"{'fabs' if real else 'abs'}({given[0]})", _ATOM
        if name in ("min", "max"):
            if real:
                given = [
                    g if self.kind(a) == "real" else f"{self.card.number}({g})"
                    for g, a in zip(given, node.args, strict=True)
                ]
            text = given[0]
            for other in given[1:]:
                text = f"{'f' if real else ''}{name}({text}, {other})"
            return text, _ATOM
        return f"{self._function(name)}({', '.join(given)})", _ATOM

    def _function(self, name: str) -> str:
        name = name.removeprefix("np.")
        return self.card.spelled.get(name, name)


def _called(node: ast.AST) -> str:
    """Return the name of the function that an expression calls, or nothing."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _counter(node: ast.For) -> str:
    """Return the name that counts a loop."""
    return ast.unparse(node.target)


def _continues(statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements continue the loop around them."""
    for statement in statements:
        if isinstance(statement, ast.Continue):
            return True
        if isinstance(statement, ast.If) and _continues([*statement.body, *statement.orelse]):
            return True
    return False


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return targets with the value of each; None where a call gives several values."""
    if not isinstance(target, ast.Tuple):
        return [(target, value)]
    if isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(one, None) for one in target.elts]


def _assigns(node: ast.AST, name: str) -> bool:
    """Return whether this statement itself gives a name its value."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    targets = node.targets if isinstance(node, ast.Assign) else []
    each = [one for t in targets for one in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return any(isinstance(one, ast.Name) and one.id == name for one in each)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _declarations(body: Sequence[ast.stmt]) -> dict[int, dict[str, bool]]:
    """Return, by the id of a statement, names that it declares, and whether they never change.

    A name is declared in the innermost blocks of which each gives it a value before it is used.
    """
    found: dict[int, dict[str, bool]] = {}
    for name in {n for s in body for n in _names(s)}:
        if any(_assigns(node, name) for s in body for node in ast.walk(s)):
            _declare(name, body, found)
    return found


def _declare(name: str, block: Sequence[ast.stmt], found: dict[int, dict[str, bool]]) -> None:
    users = [s for s in block if name in _names(s)]
    if all(_begins(name, user) for user in users):
        for user in users:
            for inner in _blocks(user):
                _declare(name, inner, found)
    elif users:
        values = sum(_assigns(node, name) for s in users for node in ast.walk(s))
        found.setdefault(id(users[0]), {})[name] = values == 1


def _begins(name: str, statement: ast.stmt) -> bool:
    """Return whether each block of a statement gives a name its value before it uses it."""
    blocks = list(_blocks(statement))
    if not blocks or any(name in _names(head) for head in _heads(statement)):
        return False
    for block in blocks:
        first = next((s for s in block if name in _names(s)), None)
        plain = isinstance(first, ast.Assign) and name not in _names(first.value)
        if first is not None and not (plain and _assigns(first, name)) and not _begins(name, first):
            return False
    return True


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Give the blocks inside a statement."""
    for key in ("body", "orelse"):
        if getattr(statement, key, None):
            yield getattr(statement, key)


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """Return the expressions of a statement that belong to none of its blocks."""
    return [
        getattr(statement, key) for key in ("test", "iter", "target") if hasattr(statement, key)
    ]


def _written(source: Source, node: ast.FunctionDef) -> set[str]:
    """Return the arguments of a function into which it, or a function that it calls, writes."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
            found |= _names(one.value)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name):
            kind, callee = source.find(one.func.id)
            if kind == "function":
                inner = _written(*callee)
                for argument, given in zip(callee[1].args.args, one.args, strict=True):
                    if argument.arg in inner:
                        found |= _names(given)
    return found
