"""Rate expressions: the text in a user's file, read into SymPy.

The text is read by Python's parser and then walked through a list of what is allowed. Nothing is
ever evaluated as Python, and SymPy sees only operations whose cost is bounded. Constants are folded
here, in Python floats, so that ``9**9**9`` overflows at once instead of filling the memory.
"""

from __future__ import annotations

import ast
import difflib
import graphlib
import keyword
import math
import operator
import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from os import PathLike
from typing import Any, NoReturn, TypeAlias

import sympy
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from channelfit.model.terms import (
    LARGEST_INTEGER,
    V,
    as_expression,
    as_float,
    exponential,
    exprel,
    is_zero,
    may_be_real,
    parts_of,
    power,
    product,
    sum_of,
    symbol,
    with_large_rationals_rounded,
    with_plain_numbers,
)
from channelfit.reading.errors import InputError

MAX_LENGTH = 2000
MAX_DEPTH = 100
MAX_BRACKETS = 50
MAX_NODES = 500
MAX_ARGUMENTS = 8
MAX_EXPONENT = 1000
#: Conditionals within one condition, which SymPy writes out in all their combinations.
MAX_CONDITIONALS = 4

_Constant: TypeAlias = int | float
_Value: TypeAlias = int | float | sympy.Expr
_Condition: TypeAlias = bool | Boolean

_BINARY: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], tuple[Callable[[Any, Any], bool], type[Relational]]] = {
    ast.Lt: (operator.lt, sympy.StrictLessThan),
    ast.LtE: (operator.le, sympy.LessThan),
    ast.Gt: (operator.gt, sympy.StrictGreaterThan),
    ast.GtE: (operator.ge, sympy.GreaterThan),
    ast.Eq: (operator.eq, sympy.Equality),
    ast.NotEq: (operator.ne, sympy.Unequality),
}


def _smallest(*args: sympy.Expr) -> sympy.Expr:
    # Evaluated, SymPy compares every pair of arguments by way of its assumptions.
    return sympy.Min(*args, evaluate=False)


def _largest(*args: sympy.Expr) -> sympy.Expr:
    return sympy.Max(*args, evaluate=False)


def _absolute(x: sympy.Expr) -> sympy.Expr:
    # Evaluated, nested sums take SymPy seconds: it looks for signs and conjugates.
    return sympy.Abs(x, evaluate=False)


def _exprel_number(x: float) -> float:
    return math.expm1(x) / x if x else 1.0


#: name -> (number of arguments, None for one or more; for floats; for SymPy)
_FUNCTIONS: dict[str, tuple[int | None, Callable[..., float], Callable[..., sympy.Expr]]] = {
    "exp": (1, math.exp, exponential),
    "log": (1, math.log, sympy.log),
    "sqrt": (1, math.sqrt, sympy.sqrt),
    "abs": (1, abs, _absolute),
    "tanh": (1, math.tanh, sympy.tanh),
    "min": (None, lambda *args: min(args), _smallest),
    "max": (None, lambda *args: max(args), _largest),
    "exprel": (1, _exprel_number, exprel),
}
FUNCTIONS = tuple(_FUNCTIONS)

#: Replacements for names known from other languages.
_INSTEAD = {
    "pi": "write 3.141592653589793",
    "e": "write exp(1)",
    "E": "write exp(1)",
    "ln": "write log",
    "log10": "write log(x)/log(10)",
    "pow": "write x**y",
    "fabs": "write abs",
    "nan": "numbers are finite",
    "inf": "numbers are finite",
    "True": "write a comparison",
    "False": "write a comparison",
}
_CHARACTERS = re.compile(r"[A-Za-z0-9_+\-*/().,<>=! \t\r\n]")
_CHARACTER_HINTS = {
    "^": 'use "**" for powers',
    "−": 'use "-"',
    "–": 'use "-"',
    "×": 'use "*"',
    "·": 'use "*"',
    "÷": 'use "/"',
    "²": 'use "**2"',
    "³": 'use "**3"',
    "≤": 'use "<="',
    "≥": 'use ">="',
    "[": "use round brackets",
    "{": "use round brackets",
    "&": 'use "and"',
    "|": 'use "or"',
}


def check_name(name: str) -> None:
    """Refuse a name that no expression could use: not ASCII, a keyword, a function, or ``v``.

    Raises:
        ExpressionError: the name is one of these; the message says which.
    """
    quoted = f'name "{_printable(name[:40])}"'
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or len(name) > 100:
        raise ExpressionError(
            f"{quoted} must be a letter followed by at most 99 letters, digits or underscores"
        )
    if keyword.iskeyword(name):
        raise ExpressionError(f"{quoted} is a word of the expression language; choose another")
    if name == V.name or name in _FUNCTIONS:
        raise ExpressionError(f"{quoted} already has a meaning in expressions; choose another")


def parse_expression(
    text: str | float, names: Collection[str], unmentioned: Collection[str] = ()
) -> sympy.Expr:
    """Return a SymPy expression of ``v`` and ``names`` from the text in a user's file.

    Arguments:
        text: e.g. ``a12*exp(z12*v)``, or a number. Accepted: numbers, names, ``+ - * / **``,
            the functions in ``FUNCTIONS``, and ``a if v < -40 else b`` with chained comparisons,
            ``and``, ``or``, ``not`` in the condition.
        names: the parameters and definitions that it may use, besides ``v``.
        unmentioned: names among these that an error does not suggest, since the caller refuses
            them.

    Returns:
        The expression as written: neither expanded nor simplified, constants folded in float64.

    Raises:
        ExpressionError: says what is wrong, at which column, and what would be accepted.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not math.isfinite(as_float(text)):
            raise ExpressionError(f"{as_float(text)} is not a finite number")
        return as_expression(text if abs(text) <= LARGEST_INTEGER else float(text))
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ExpressionError(f'an expression must be text such as "a*exp(z*v)", not a {kind}')
    return Reader(text, names, unmentioned).read()


class ExpressionError(InputError):
    """An expression that cannot be used.

    Attributes:
        column: where in the text the mistake is, counted from 1; None where no place can be named.
    """

    def __init__(
        self,
        message: str,
        file: str | PathLike[str] | None = None,
        key: str | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, file, key)
        self.column = column

    def at(self, file: str | PathLike[str] | None = None, key: str | None = None) -> InputError:
        """Return the same mistake and column, with the place where it was found."""
        moved = super().at(file, key)
        if isinstance(moved, ExpressionError):
            moved.column = self.column
        return moved


class Reader:
    """Reads one text into a SymPy expression; every refusal passes through ``refuse``.

    The language is in `functions` and `characters`; a subclass may have more of both.

    Arguments:
        text: the expression as the user wrote it.
        names: the names that it may use, besides ``v``.
        unmentioned: those of them that an error does not suggest.
    """

    functions = _FUNCTIONS
    characters = _CHARACTERS

    def __init__(
        self, text: str, names: Collection[str], unmentioned: Collection[str] = ()
    ) -> None:
        self.names = frozenset(names) | {V.name}
        self.unmentioned = frozenset(unmentioned)
        self.text = text
        self.indent = len(text) - len(text.lstrip())

    def read(self) -> sympy.Expr:
        """Return the expression. Raises ExpressionError for a text that cannot be used."""
        self.check_text()
        tree = self.parse()
        self.check_size(tree)
        try:
            value = as_expression(self.number(tree))
        except (RecursionError, MemoryError, OverflowError):
            self.refuse("too complicated", None)
        self.check_numbers(value)
        return with_large_rationals_rounded(value)

    # refusals

    def refuse(self, problem: str, place: ast.AST | int | None, advice: str = "") -> NoReturn:
        """Raise an ExpressionError.

        Arguments:
            problem: what is wrong.
            place: a node of the syntax tree, an index into the text, or None where it is all of it.
            advice: what would be accepted.
        """
        index = place
        if isinstance(place, ast.AST):
            index = self.indent + getattr(place, "col_offset", 0)
        assert index is None or isinstance(index, int)
        where = "in" if index is None else f"at column {index + 1} of"
        quoted = f'{where} "{_excerpt(self.text, index or 0)}"'
        column = None if index is None else index + 1
        raise ExpressionError(
            f"{problem} {quoted}" + (f"; {advice}" if advice else ""), column=column
        ) from None

    def refuse_name(self, name: str, node: ast.AST, kind: str, known: Collection[str]) -> NoReturn:
        """Refuse a name that is not among those known, and offer those that resemble it."""
        message = f'unknown {kind} "{_shortened(name, 40)}"'
        known = set(known) - self.unmentioned
        ordered = [*sorted(set(known) - {V.name}), *({V.name} & set(known))]
        folded = {other.lower(): other for other in reversed(ordered)}
        close = difflib.get_close_matches(name[:40].lower(), folded, n=2, cutoff=0.6)
        advice = f"{_INSTEAD[name]}. " if name in _INSTEAD else ""
        if close and not advice:
            advice = f"did you mean {' or '.join(folded[match] for match in close)}? "
        listed = ", ".join(_shortened(other, 40) for other in ordered[-25:])
        more = f" and {len(ordered) - 25} more" if len(ordered) > 25 else ""
        self.refuse(message, node, f"{advice}Known: {listed}{more}")

    # before and after the walk

    def check_text(self) -> None:
        """Refuse a text that is empty, too long, or holds characters without a meaning."""
        if len(self.text) > MAX_LENGTH:
            self.refuse(
                f"{len(self.text)} characters, more than {MAX_LENGTH},", None, "use definitions"
            )
        if not self.text.strip():
            raise ExpressionError('an expression is empty; write for example "a*exp(z*v)"')
        depth = 0
        for index, character in enumerate(self.text):
            if not self.characters.fullmatch(character):
                name = unicodedata.name(character, "unprintable")
                description = f" ({name})" if ord(character) > 126 or ord(character) < 32 else ""
                problem = f'unexpected character "{_printable(character)}"{description}'
                self.refuse(problem, index, _CHARACTER_HINTS.get(character, ""))
            depth += (character == "(") - (character == ")")
            if depth > MAX_BRACKETS:
                self.refuse(f"more than {MAX_BRACKETS} nested brackets", index)

    def parse(self) -> ast.expr:
        """Return the syntax tree of the text, by Python's own parser, which evaluates nothing."""
        # A folded YAML text may hold line breaks; one for one, so that columns stay true.
        line = re.sub(r"\s", " ", self.text).strip()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "1if v<0 else 2" is deprecated Python, no more
                return ast.parse(line, mode="eval").body
        except SyntaxError as error:
            # Offset 0 means that the text ended too early.
            column = min((error.offset or len(line)) - 1, len(line) - 1)
            advice = 'is a "*" missing?' if "decimal literal" in error.msg else ""
            self.refuse(f"cannot read ({error.msg.split('.')[0]})", self.indent + column, advice)
        except (ValueError, MemoryError, RecursionError):
            self.refuse("too deeply nested", None)

    def check_size(self, tree: ast.expr) -> None:
        """Refuse a tree that is too deep or too large to be worked on quickly."""
        stack: list[tuple[ast.AST, int]] = [(tree, 1)]
        count = 0
        while stack:
            node, depth = stack.pop()
            if not isinstance(node, ast.expr):
                continue
            count += 1
            if depth > MAX_DEPTH:
                self.refuse(
                    f"more than {MAX_DEPTH} operations deep", node, "use definitions or brackets"
                )
            stack.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
        if count > MAX_NODES:
            self.refuse(f"more than {MAX_NODES} names, numbers and operations", None)

    def check_numbers(self, expression: sympy.Expr) -> None:
        """Refuse a result with a number in it that is not real or not finite."""
        for part in parts_of(expression):
            if part in (sympy.I, sympy.zoo):
                reason = (
                    "not a real number" if part is sympy.I else "not finite (division by zero?)"
                )
                self.refuse(reason, None)
            if part.is_Number and not math.isfinite(as_float(part)):
                self.refuse("a number overflows", None)

    def number(self, node: ast.expr) -> _Value:
        """Return the value of a node: a Python number where it is constant, else an expression."""
        if isinstance(node, ast.Constant):
            return self.literal(node)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.UnaryOp):
            return self.unary(node)
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.IfExp):
            return self.conditional(node)
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            self.refuse("a condition where a number is expected", node, 'use "a if v < b else c"')
        self.refuse(
            f"{_kind(node)} cannot be used", node, f"functions: {', '.join(self.functions)}"
        )

    def literal(self, node: ast.Constant) -> _Constant:
        """Return a number that stands in the text."""
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if isinstance(value, bool) or value is None:
                self.refuse_name(str(value), node, "name", self.names)
            self.refuse(f"{_kind(node)} cannot be used", node, "numbers are real")
        if not math.isfinite(as_float(value)):
            self.refuse("a number overflows", node, "the largest is 1.8e308")
        return value if isinstance(value, int) and value <= LARGEST_INTEGER else float(value)

    def name(self, node: ast.Name) -> sympy.Expr:
        """Return the symbol of a name."""
        if node.id in self.names:
            return symbol(node.id)
        if node.id in self.functions:
            self.refuse(
                f'"{node.id}" is a function and needs arguments', node, f"write {node.id}(v)"
            )
        self.refuse_name(node.id, node, "name", self.names)

    def unary(self, node: ast.UnaryOp) -> _Value:
        """Return the value of an expression such as ``-x`` or ``+x``."""
        if isinstance(node.op, ast.Not):
            self.refuse("a condition where a number is expected", node, 'use "a if v < b else c"')
        if not isinstance(node.op, (ast.USub, ast.UAdd)):
            self.refuse(f"{_kind(node)} cannot be used", node)
        value = self.number(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        return (
            -value
            if isinstance(value, (int, float))
            else self.checked(product(sympy.Integer(-1), value), node)
        )

    def binary(self, node: ast.BinOp) -> _Value:
        """Return a sum, difference, product, quotient or power."""
        function = _BINARY.get(type(node.op))
        if function is None:
            self.refuse(f"{_kind(node)} cannot be used", node, "operators: + - * / **")
        left, right = self.number(node.left), self.number(node.right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return self.folded(node, function, left, right)
        if isinstance(node.op, ast.Pow):
            return self.power(node, left, right)
        a, b = as_expression(left), as_expression(right)
        if isinstance(node.op, ast.Div):
            if is_zero(b):
                self.refuse("division by zero", node)
            return self.checked(product(a, power(b, sympy.Integer(-1))), node)
        if isinstance(node.op, ast.Mult):
            return self.checked(product(a, b), node)
        b = product(sympy.Integer(-1), b) if isinstance(node.op, ast.Sub) else b
        return self.checked(sum_of(a, b), node)

    def power(self, node: ast.BinOp, left: _Value, right: _Value) -> _Value:
        """Return a power that is not constant; whole exponents, multiplied out, are limited."""
        limit = f"exponents are at most {MAX_EXPONENT}"
        if isinstance(right, (int, float)) and abs(right) > MAX_EXPONENT:
            self.refuse("an exponent is too large", node, limit)
        result = self.checked(power(as_expression(left), as_expression(right)), node)
        if isinstance(result, sympy.Expr):
            for factor in sympy.Mul.make_args(result):
                exponent = factor.as_base_exp()[1]
                if exponent.is_Number and abs(exponent) > MAX_EXPONENT:
                    self.refuse("an exponent is too large", node, limit)
        return result

    def call(self, node: ast.Call) -> _Value:
        """Return a function of the language, applied to its arguments."""
        if not isinstance(node.func, ast.Name):
            if isinstance(node.func, ast.Attribute):
                self.number(node.func)
            self.refuse("only a function can be called", node, 'is a "*" missing?')
        name = node.func.id
        if name not in self.functions:
            if name in self.names:
                self.refuse(f'"{name}" is not a function', node, 'is a "*" missing?')
            self.refuse_name(name, node, "function", self.functions)
        if node.keywords:
            self.refuse(f"{name}() takes no named arguments", node)
        n_arguments, on_floats, on_symbols = self.functions[name]
        count = len(node.args)
        if count != n_arguments if n_arguments else not 1 <= count <= MAX_ARGUMENTS:
            takes = "1 argument" if n_arguments else f"1 to {MAX_ARGUMENTS} arguments"
            self.refuse(f"{name}() takes {takes}, not {count},", node)
        values = [self.number(argument) for argument in node.args]
        constants = [value for value in values if isinstance(value, (int, float))]
        if len(constants) == count:
            return self.folded(node, on_floats, *constants)
        arguments = [as_expression(value) for value in values]
        if on_symbols in (_smallest, _largest) and not all(map(may_be_real, arguments)):
            self.refuse("a comparison of what is not a real number", node)
        return self.checked(on_symbols(*arguments), node)

    def conditional(self, node: ast.IfExp) -> _Value:
        """Return ``a if condition else b``; one of the two where the condition is constant."""
        if sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node.test)) > MAX_CONDITIONALS:
            message = f"more than {MAX_CONDITIONALS} conditionals in a condition"
            self.refuse(message, node.test, "use definitions")
        condition = self.condition(node.test)
        chosen, other = self.number(node.body), self.number(node.orelse)
        if isinstance(condition, bool):
            return chosen if condition else other
        pairs = ((as_expression(chosen), condition), (as_expression(other), True))
        try:
            return sympy.Piecewise(*pairs, evaluate=False)
        except TypeError:  # SymPy joins conditions, and meets the logarithm of a negative number
            self.refuse("a comparison of what is not a real number", node.test)

    def condition(self, node: ast.expr) -> _Condition:
        """Return the condition between ``if`` and ``else``; true or false where it is constant."""
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            return _all(parts) if isinstance(node.op, ast.And) else _any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.condition(node.operand)
            return not inner if isinstance(inner, bool) else sympy.Not(inner)
        self.refuse("a condition is expected", node, "for example v < -40")

    def comparison(self, node: ast.Compare) -> _Condition:
        """Return one or more comparisons in a row, such as ``-80 < v <= -40``."""
        values = [self.number(operand) for operand in (node.left, *node.comparators)]
        parts: list[_Condition] = []
        for kind, left, right in zip(node.ops, values, values[1:], strict=False):
            if type(kind) not in _COMPARISONS:
                self.refuse(f"{_kind(kind)} cannot be used", node, "use < <= > >= == !=")
            on_floats, on_symbols = _COMPARISONS[type(kind)]
            if isinstance(left, (int, float)) and isinstance(right, (int, float)):
                parts.append(on_floats(left, right))
            else:
                sides = as_expression(left), as_expression(right)
                if not all(map(may_be_real, sides)):
                    self.refuse("a comparison of what is not a real number", node)
                parts.append(on_symbols(*sides, evaluate=False))
        return _all(parts)

    def folded(self, node: ast.expr, function: Callable[..., Any], *values: _Constant) -> _Constant:
        """Return a function of constants, in float64, or whole if operands and result are."""
        try:
            result = function(*map(float, values))
        except OverflowError:
            self.refuse("a number overflows", node, "the largest is 1.8e308")
        except ZeroDivisionError:
            self.refuse("division by zero", node)
        except ValueError:
            self.refuse("a function is not defined for this number", node)
        if isinstance(result, complex):
            self.refuse("not a real number", node, "a negative number to a fractional power")
        if not math.isfinite(result):
            self.refuse("a number overflows", node, "the largest is 1.8e308")
        whole = all(isinstance(value, int) for value in values) and result.is_integer()
        return int(result) if whole and abs(result) <= LARGEST_INTEGER else float(result)

    def checked(self, value: sympy.Expr, node: ast.expr) -> _Value:
        """Return SymPy's result, a number if constant; refuse what is not finite and real."""
        if value in (sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
            self.refuse("not finite (a division by zero?)", node)
        if value.is_Number or not value.free_symbols:
            if value.is_real is False:
                self.refuse("not a real number", node)
            number = as_float(value)
            if not math.isfinite(number):
                self.refuse("a number overflows", node, "the largest is 1.8e308")
            small = value.is_Integer and abs(number) <= LARGEST_INTEGER
            return int(number) if small else number
        return with_plain_numbers(value)


def _all(parts: list[_Condition]) -> _Condition:
    """Return whether all conditions hold; constant ones are decided here."""
    if any(part is False for part in parts):
        return False
    open_parts = [part for part in parts if not isinstance(part, bool)]
    if len(open_parts) < 2:
        return open_parts[0] if open_parts else True
    return sympy.And(*open_parts, evaluate=False)


def _any(parts: list[_Condition]) -> _Condition:
    """Return whether any condition holds; constant ones are decided here."""
    if any(part is True for part in parts):
        return True
    open_parts = [part for part in parts if not isinstance(part, bool)]
    if len(open_parts) < 2:
        return open_parts[0] if open_parts else False
    return sympy.Or(*open_parts, evaluate=False)


def _kind(node: ast.AST) -> str:
    """Return a piece of Python syntax in words."""
    if isinstance(node, ast.Constant):
        return "a complex number" if isinstance(node.value, complex) else "this"
    if isinstance(node, ast.BinOp):
        spelled = {ast.FloorDiv: "//", ast.LShift: "<<", ast.RShift: ">>"}
        return f'operator "{spelled.get(type(node.op), "?")}"'
    if isinstance(node, ast.Attribute):
        return f'an attribute (".{_shortened(node.attr, 40)}")'
    words = re.sub(r"(?<!^)([A-Z])", r" \1", type(node).__name__).lower()
    return f"{words.removesuffix(' exp')!r}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str, length: int) -> str:
    return _printable(text if len(text) <= length else text[: length - 3] + "...")


def _excerpt(text: str, index: int) -> str:
    """Return up to 60 characters of the text around an index, on one line."""
    start = max(0, min(index - 20, len(text) - 60))
    excerpt = re.sub(r"\s", " ", text[start : start + 60])
    end = "..." if start + 60 < len(text) else ""
    return ("..." if start else "") + _printable(excerpt) + end


def definition_order(definitions: Mapping[str, sympy.Expr]) -> list[str]:
    """Return the names of definitions, each after all those that its expression uses.

    Raises:
        ExpressionError: definitions that use each other in a cycle; the message names it.
    """
    uses = {name: list(_uses(definitions[name], definitions)) for name in definitions}
    try:
        return list(graphlib.TopologicalSorter(uses).static_order())
    except graphlib.CycleError as error:
        cycle = " uses ".join(reversed(error.args[1]))
        raise ExpressionError(f"definitions go round in a circle: {cycle}") from None


def _uses(expression: sympy.Expr, definitions: Mapping[str, sympy.Expr]) -> Iterator[str]:
    # Sorted, because the order of a set of symbols changes from one run to the next.
    return (n for n in sorted(s.name for s in expression.free_symbols) if n in definitions)
