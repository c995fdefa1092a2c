"""Rate expressions: text from a user's file to SymPy, made safe at removable singularities.

The text is read by Python's parser and then walked through a whitelist. Nothing is ever evaluated
as Python, and SymPy sees only operations whose cost is bounded. Constants are folded here, in
Python floats, so that ``9**9**9`` overflows at once instead of asking for a billion digits.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from os import PathLike
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import sympy
from sympy.core.add import _unevaluated_Add
from sympy.core.mul import _unevaluated_Mul
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import Boolean

from channelfit.reading.errors import InputError

#: The membrane voltage (mV) in every expression.
V = sympy.Symbol("v", real=True)

MAX_LENGTH = 2000
MAX_DEPTH = 100
MAX_BRACKETS = 50
MAX_NODES = 500
MAX_ARGUMENTS = 8
MAX_EXPONENT = 1000
#: Whole numbers up to here stay integers; larger ones become floats.
_MAX_INTEGER = 2**31

Array = npt.NDArray[np.float64]
_Constant: TypeAlias = int | float
_Value: TypeAlias = int | float | sympy.Expr
_Condition: TypeAlias = bool | Boolean


class ExpressionError(InputError):
    """An expression that cannot be used; ``column`` counts from 1, None where it has no place."""

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
        """The same mistake, told with the place where it was found; keeps the column."""
        moved = super().at(file, key)
        if isinstance(moved, ExpressionError):
            moved.column = self.column
        return moved


def symbol(name: str) -> sympy.Symbol:
    """The symbol that stands for a parameter, a definition or the voltage in every expression."""
    return sympy.Symbol(name, real=True)


# Functions that SymPy lacks


class exprel(sympy.Function):  # type: ignore[misc]
    """(exp(x) - 1)/x, and 1 at x = 0: smooth and positive everywhere."""

    nargs = 1
    is_real = True
    is_positive = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        return sympy.Integer(1) if _is_zero(x) else None

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        """The derivative, by a function of its own because (exp(x) - exprel(x))/x is 0/0 at 0."""
        return exprel_slope(self.args[0])

    def _eval_evalf(self, prec: int) -> sympy.Expr | None:
        return _evalf(self.args[0], prec, lambda mp, x: mp.expm1(x) / x if x else mp.one)


class exprel_slope(sympy.Function):  # type: ignore[misc]
    """d exprel(x)/dx = (1 + (x - 1) exp(x))/x^2, and 1/2 at x = 0: smooth and positive."""

    nargs = 1
    is_real = True
    is_positive = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        return sympy.Rational(1, 2) if _is_zero(x) else None

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        """(exp(x) - 2 exprel_slope(x))/x; exact at 0 itself, loses digits within 1e-3 of it."""
        x = self.args[0]
        away = (sympy.exp(x) - 2 * self) / x
        return sympy.Piecewise((sympy.Rational(1, 3), sympy.Eq(x, 0)), (away, True))

    def _eval_evalf(self, prec: int) -> sympy.Expr | None:
        def slope(mp: Any, x: Any) -> Any:
            return mp.hyp1f1(2, 3, x) / 2

        return _evalf(self.args[0], prec, slope)


def _evalf(x: sympy.Expr, prec: int, function: Callable[[Any, Any], Any]) -> sympy.Expr | None:
    import mpmath  # SymPy has loaded it already

    value = x._evalf(prec + 10)
    if not value.is_Float and not value.is_Integer:
        return None
    with mpmath.workprec(prec + 20):
        result = function(mpmath.mp, value._to_mpmath(prec + 20))
    return sympy.Float._new(result._mpf_, prec)


# Text to SymPy

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


def _exp(x: sympy.Expr) -> sympy.Expr:
    # Evaluated, exp(v/18 + 2.25) would become 9.49*exp(v/18) and lose where exp(u) = 1 exactly.
    return sympy.exp(x, evaluate=False)


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
    "exp": (1, math.exp, _exp),
    "log": (1, math.log, sympy.log),
    "sqrt": (1, math.sqrt, sympy.sqrt),
    "abs": (1, abs, _absolute),
    "tanh": (1, math.tanh, sympy.tanh),
    "min": (None, lambda *args: min(args), _smallest),
    "max": (None, lambda *args: max(args), _largest),
    "exprel": (1, _exprel_number, exprel),
}
FUNCTIONS = tuple(_FUNCTIONS)

#: What to write instead of names known from elsewhere.
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
        ExpressionError: says which of these it is.
    """
    shown = f'name "{_printable(name[:40])}"'
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or len(name) > 100:
        raise ExpressionError(
            f"{shown} must be a letter followed by at most 99 letters, digits or underscores"
        )
    if keyword.iskeyword(name):
        raise ExpressionError(f"{shown} is a word of the expression language; choose another")
    if name == V.name or name in _FUNCTIONS:
        raise ExpressionError(f"{shown} already has a meaning in expressions; choose another")


def parse_expression(
    text: str | float, names: Collection[str], unmentioned: Collection[str] = ()
) -> sympy.Expr:
    """A SymPy expression of ``v`` and ``names`` from the text in a user's file.

    Arguments:
        text: e.g. ``a12*exp(z12*v)``, or a number. Accepted: numbers, names, ``+ - * / **``,
            the functions in ``FUNCTIONS``, and ``a if v < -40 else b`` with chained comparisons,
            ``and``, ``or``, ``not`` in the condition.
        names: the parameters and definitions that it may use, besides ``v``.
        unmentioned: names that a refusal does not offer, since the caller refuses them himself.

    Returns:
        The expression as written: neither expanded nor simplified, constants folded in float64.

    Raises:
        ExpressionError: says what is wrong, at which column, and what would be accepted.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not math.isfinite(_as_float(text)):
            raise ExpressionError(f"{_shortened(str(_as_float(text)), 40)} is not a finite number")
        return _expression(text if abs(text) <= _MAX_INTEGER else float(text))
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ExpressionError(f'an expression must be text such as "a*exp(z*v)", not a {kind}')
    reader = Reader(text, names)
    reader.unmentioned = frozenset(unmentioned)
    return reader.read()


class Reader:
    """One text on its way to SymPy; every refusal passes through ``refuse``.

    functions, characters: what the language has; `indexed.py` has one with more.
    """

    functions = _FUNCTIONS
    characters = _CHARACTERS
    #: Names that are understood but not offered.
    unmentioned: frozenset[str] = frozenset()

    def __init__(self, text: str, names: Collection[str]) -> None:
        self.names = frozenset(names) | {V.name}
        self.text = text
        self.indent = len(text) - len(text.lstrip())

    def read(self) -> sympy.Expr:
        self.check_text()
        tree = self.parse()
        self.check_size(tree)
        try:
            value = _expression(self.number(tree))
        except (RecursionError, MemoryError, OverflowError):
            self.refuse("too complicated", None)
        self.check_numbers(value)
        return value

    # refusals

    def refuse(self, problem: str, place: ast.AST | int | None, advice: str = "") -> NoReturn:
        """Raise, with the place (a node, or an index into the text) and what would be accepted."""
        index = place
        if isinstance(place, ast.AST):
            index = self.indent + getattr(place, "col_offset", 0)
        assert index is None or isinstance(index, int)
        where = "in" if index is None else f"at column {index + 1} of"
        shown = f'{where} "{_excerpt(self.text, index or 0)}"'
        column = None if index is None else index + 1
        raise ExpressionError(
            f"{problem} {shown}" + (f"; {advice}" if advice else ""), column=column
        ) from None

    def refuse_name(self, name: str, node: ast.AST, kind: str, known: Collection[str]) -> NoReturn:
        shown = f'unknown {kind} "{_shortened(name, 40)}"'
        known = set(known) - self.unmentioned
        ordered = [*sorted(set(known) - {V.name}), *({V.name} & set(known))]
        folded = {other.lower(): other for other in reversed(ordered)}
        close = difflib.get_close_matches(name[:40].lower(), folded, n=2, cutoff=0.6)
        advice = f"{_INSTEAD[name]}. " if name in _INSTEAD else ""
        if close and not advice:
            advice = f"did you mean {' or '.join(folded[match] for match in close)}? "
        listed = ", ".join(_shortened(other, 40) for other in ordered[-25:])
        more = f" and {len(ordered) - 25} more" if len(ordered) > 25 else ""
        self.refuse(shown, node, f"{advice}Known: {listed}{more}")

    # before and after the walk

    def check_text(self) -> None:
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
                told = f" ({name})" if ord(character) > 126 or ord(character) < 32 else ""
                problem = f'unexpected character "{_printable(character)}"{told}'
                self.refuse(problem, index, _CHARACTER_HINTS.get(character, ""))
            depth += (character == "(") - (character == ")")
            if depth > MAX_BRACKETS:
                self.refuse(f"more than {MAX_BRACKETS} nested brackets", index)

    def parse(self) -> ast.expr:
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
        for part in sympy.preorder_traversal(expression):
            if part is sympy.I:
                self.refuse("not a real number", None)
            if part.is_Number and not math.isfinite(_as_float(part)):
                self.refuse("a number overflows", None)

    # the walk

    def number(self, node: ast.expr) -> _Value:
        """The value of a node: a Python number as long as it is constant."""
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
            self.refuse("a condition where a number is wanted", node, 'use "a if v < b else c"')
        self.refuse(
            f"{_kind(node)} cannot be used", node, f"functions: {', '.join(self.functions)}"
        )

    def literal(self, node: ast.Constant) -> _Constant:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if isinstance(value, bool) or value is None:
                self.refuse_name(str(value), node, "name", self.names)
            self.refuse(f"{_kind(node)} cannot be used", node, "numbers are real")
        if not math.isfinite(_as_float(value)):
            self.refuse("a number overflows", node, "the largest is 1.8e308")
        return value if isinstance(value, int) and value <= _MAX_INTEGER else float(value)

    def name(self, node: ast.Name) -> sympy.Expr:
        if node.id in self.names:
            return symbol(node.id)
        if node.id in self.functions:
            self.refuse(
                f'"{node.id}" is a function and wants arguments', node, f"write {node.id}(v)"
            )
        self.refuse_name(node.id, node, "name", self.names)

    def unary(self, node: ast.UnaryOp) -> _Value:
        if isinstance(node.op, ast.Not):
            self.refuse("a condition where a number is wanted", node, 'use "a if v < b else c"')
        if not isinstance(node.op, (ast.USub, ast.UAdd)):
            self.refuse(f"{_kind(node)} cannot be used", node)
        value = self.number(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        return (
            -value
            if isinstance(value, (int, float))
            else self.checked(_product(sympy.Integer(-1), value), node)
        )

    def binary(self, node: ast.BinOp) -> _Value:
        function = _BINARY.get(type(node.op))
        if function is None:
            self.refuse(f"{_kind(node)} cannot be used", node, "operators: + - * / **")
        left, right = self.number(node.left), self.number(node.right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return self.folded(node, function, left, right)
        if isinstance(node.op, ast.Pow):
            return self.power(node, left, right)
        a, b = _expression(left), _expression(right)
        if isinstance(node.op, ast.Div):
            if _is_zero(b):
                self.refuse("division by zero", node)
            return self.checked(_product(a, _power(b, sympy.Integer(-1))), node)
        if isinstance(node.op, ast.Mult):
            return self.checked(_product(a, b), node)
        b = _product(sympy.Integer(-1), b) if isinstance(node.op, ast.Sub) else b
        return self.checked(_sum(a, b), node)

    def power(self, node: ast.BinOp, left: _Value, right: _Value) -> _Value:
        limit = f"exponents are at most {MAX_EXPONENT}"
        if isinstance(right, (int, float)) and abs(right) > MAX_EXPONENT:
            self.refuse("an exponent is too large", node, limit)
        result = self.checked(_power(_expression(left), _expression(right)), node)
        if isinstance(result, sympy.Expr):
            for factor in sympy.Mul.make_args(result):
                exponent = factor.as_base_exp()[1]
                if exponent.is_Number and abs(exponent) > MAX_EXPONENT:
                    self.refuse("an exponent is too large", node, limit)
        return result

    def call(self, node: ast.Call) -> _Value:
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
        wanted, on_floats, on_symbols = self.functions[name]
        count = len(node.args)
        if count != wanted if wanted else not 1 <= count <= MAX_ARGUMENTS:
            takes = "1 argument" if wanted else f"1 to {MAX_ARGUMENTS} arguments"
            self.refuse(f"{name}() takes {takes}, not {count},", node)
        values = [self.number(argument) for argument in node.args]
        constants = [value for value in values if isinstance(value, (int, float))]
        if len(constants) == count:
            return self.folded(node, on_floats, *constants)
        return self.checked(on_symbols(*map(_expression, values)), node)

    def conditional(self, node: ast.IfExp) -> _Value:
        condition = self.condition(node.test)
        chosen, other = self.number(node.body), self.number(node.orelse)
        if isinstance(condition, bool):
            return chosen if condition else other
        pairs = ((_expression(chosen), condition), (_expression(other), True))
        return sympy.Piecewise(*pairs, evaluate=False)

    def condition(self, node: ast.expr) -> _Condition:
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            return _all(parts) if isinstance(node.op, ast.And) else _any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.condition(node.operand)
            return not inner if isinstance(inner, bool) else sympy.Not(inner)
        self.refuse("a condition is wanted", node, "for example v < -40")

    def comparison(self, node: ast.Compare) -> _Condition:
        values = [self.number(operand) for operand in (node.left, *node.comparators)]
        parts: list[_Condition] = []
        for kind, left, right in zip(node.ops, values, values[1:], strict=False):
            if type(kind) not in _COMPARISONS:
                self.refuse(f"{_kind(kind)} cannot be used", node, "use < <= > >= == !=")
            on_floats, on_symbols = _COMPARISONS[type(kind)]
            if isinstance(left, (int, float)) and isinstance(right, (int, float)):
                parts.append(on_floats(left, right))
            else:
                parts.append(on_symbols(_expression(left), _expression(right), evaluate=False))
        return _all(parts)

    def folded(self, node: ast.expr, function: Callable[..., Any], *values: _Constant) -> _Constant:
        """A function of constants, in float64; whole if the operands and the result are whole."""
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
        whole = all(isinstance(value, int) for value in values)
        if whole and result.is_integer() and abs(result) <= _MAX_INTEGER:
            return int(result)
        return float(result)

    def checked(self, value: sympy.Expr, node: ast.expr) -> _Value:
        """SymPy's result: finite, its integers small, and a Python number again if constant."""
        if value in (sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
            self.refuse("not finite (a division by zero?)", node)
        if value.is_Number or not value.free_symbols:
            if value.is_real is False:
                self.refuse("not a real number", node)
            number = _as_float(value)
            if not math.isfinite(number):
                self.refuse("a number overflows", node, "the largest is 1.8e308")
            small = value.is_Integer and abs(number) <= _MAX_INTEGER
            return int(number) if small else number
        return _with_plain_numbers(value)


def _expression(value: _Value) -> sympy.Expr:
    if isinstance(value, int):
        return sympy.Integer(value)
    return sympy.Float(float(value), precision=53) if isinstance(value, float) else value


def _is_zero(value: sympy.Expr) -> bool:
    # Never the property is_zero: on an expression it starts a search that may not end.
    return bool(value.is_Number) and _as_float(value) == 0


# Whenever SymPy builds a product or a sum, it multiplies out 0.1*(v + 40) inside, and takes
# exp((v + 40.5)/18) apart into 9.49*exp(v/18). Then v + 40 could no longer be recognized as what
# vanishes where exp(u) = 1. So exponentials, and a number times a sum, are placed unevaluated.
# (SymPy's own switch, ``distribute(False)``, sends its assumptions into endless recursion.)


def _product(*terms: sympy.Expr) -> sympy.Expr:
    """The product, with exponentials and number*(sum) as they are."""
    factors = [factor for term in terms for factor in sympy.Mul.make_args(term)]
    kept = [factor for factor in factors if isinstance(factor, sympy.exp)]
    numbers = [factor for factor in factors if factor.is_Number]
    others = [f for f in factors if not f.is_Number and not isinstance(f, sympy.exp)]
    more, rest = sympy.Mul(*others).as_coeff_Mul()
    number = sympy.Mul(*numbers, more)
    if _is_zero(number) or not (kept or rest.is_Add or rest.is_Mul or rest.is_Pow):
        return number * rest
    return _unevaluated_Mul(number, rest, *kept)


def quotient(over: Iterable[sympy.Expr], under: Iterable[sympy.Expr]) -> sympy.Expr:
    """One product over another, neither multiplied out."""
    return _product(*over, *(_power(term, sympy.Integer(-1)) for term in under))


def _sum(*terms: sympy.Expr) -> sympy.Expr:
    """The sum, with terms that hold an exponential as they are."""
    flat = [part for term in terms for part in sympy.Add.make_args(term)]
    kept = [part for part in flat if _has_exponential(part)]
    rest = sympy.Add(*(part for part in flat if not _has_exponential(part)))
    return _unevaluated_Add(rest, *kept) if kept else rest


def _has_exponential(term: sympy.Expr) -> bool:
    return any(isinstance(factor, sympy.exp) for factor in sympy.Mul.make_args(term))


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """The power, with exp(u)**n as exp(n*u) and n*u as it is."""
    if isinstance(base, sympy.exp):
        return _exp(_product(exponent, base.exp))
    if isinstance(base, sympy.Mul) and exponent.is_Integer:
        return _product(*(_power(factor, exponent) for factor in base.args))
    return base**exponent


def _with_plain_numbers(value: sympy.Expr) -> sympy.Expr:
    """The same with 3*sqrt(2)*x as 4.24*x, and with no large whole number.

    Otherwise ((1000*v)**1000)**1000 would carry 1000**1000000 along, digit by digit.
    """
    if value.is_Add:
        terms = [_with_plain_numbers(term) for term in value.args]
        return _sum(*terms) if any(map(operator.is_not, terms, value.args)) else value
    factors = sympy.Mul.make_args(value)
    numbers = [factor for factor in factors if factor.is_number]
    coefficient = numbers[0] if len(numbers) == 1 else sympy.Mul(*numbers)
    if not coefficient.is_real or coefficient.is_Float:
        return value
    if coefficient.is_Rational and max(abs(coefficient.p), coefficient.q) <= _MAX_INTEGER:
        return value
    rest = (factor for factor in factors if not factor.is_number)
    return _product(sympy.Float(_as_float(coefficient), precision=53), *rest)


def _all(parts: list[_Condition]) -> _Condition:
    open_parts = [part for part in parts if not isinstance(part, bool)]
    if False in [part for part in parts if isinstance(part, bool)]:
        return False
    if len(open_parts) < 2:
        return open_parts[0] if open_parts else True
    return sympy.And(*open_parts, evaluate=False)


def _any(parts: list[_Condition]) -> _Condition:
    open_parts = [part for part in parts if not isinstance(part, bool)]
    if True in [part for part in parts if isinstance(part, bool)]:
        return True
    if len(open_parts) < 2:
        return open_parts[0] if open_parts else False
    return sympy.Or(*open_parts, evaluate=False)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, TypeError):
        return math.inf


def _kind(node: ast.AST) -> str:
    """What a user would call this piece of Python."""
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


def _excerpt(text: str, index: int, length: int = 60) -> str:
    """The text around an index, on one line."""
    start = max(0, min(index - length // 3, len(text) - length))
    shown = re.sub(r"\s", " ", text[start : start + length])
    end = "..." if start + length < len(text) else ""
    return ("..." if start else "") + _printable(shown) + end


# Removable singularities


def remove_singularities(expression: sympy.Expr) -> sympy.Expr:
    """The same function, with x/(exp(x) - 1) and its relatives written by exprel.

    Rewritten is every product of ``f**m`` and ``D**n`` (whole m and n of opposite sign) with
    ``D = c*(exp(u) - 1)``, in any of the forms ``c*exp(u) - c``, ``1 - exp(u)``,
    ``exp(u) - exp(w)`` (w free of v), ``2.718281828459045*exp(u) - 1``, and f = r*u linear in
    a symbol, r free of v. Then D = c*u*exprel(u), so that u cancels and f/D = r/(c*exprel(u)):
    exact at and around u = 0. A difference of two exponentials that both depend on v is left alone.
    """
    return _rewritten(expression, {})


def _rewritten(
    node: sympy.Basic, done: dict[sympy.Basic, sympy.Basic]
) -> Any:  # Expr to Expr, Boolean to Boolean
    if not node.args:
        return node
    if node not in done:
        args = [_rewritten(argument, done) for argument in node.args]
        changed = any(map(operator.is_not, args, node.args))
        rebuilt = _rebuilt(node, args) if changed else node
        done[node] = _paired(rebuilt) if isinstance(rebuilt, sympy.Mul) else rebuilt
    return done[node]


def _rebuilt(node: sympy.Basic, args: list[Any]) -> Any:
    unevaluated = (sympy.exp, sympy.Min, sympy.Max, sympy.Piecewise, Relational, sympy.And)
    if isinstance(node, (*unevaluated, sympy.Or)):
        return node.func(*args, evaluate=False)
    if isinstance(node, sympy.Mul):
        return _product(*args)
    if isinstance(node, sympy.Add):
        return _sum(*args)
    return node.func(*args)


def _paired(product: sympy.Mul) -> sympy.Expr:
    factors = [_base_and_power(factor) for factor in product.args]
    changed = False
    for i, (base, power) in enumerate(factors):
        difference = _exponential_difference(base)
        if difference is None:
            continue
        for j, (factor, exponent) in enumerate(factors):
            if exponent * power >= 0:
                continue
            ratio = _ratio(factor, difference[1])
            if ratio is None:
                continue
            scale, u, recovered = difference
            # A u that was recovered through a logarithm is rounded; the factor is as written.
            u = _product(factor, 1 / ratio) if recovered else u
            factors[i] = (exprel(u), power)
            factors[j] = (factor, exponent + power)
            factors.append((_product(scale, 1 / ratio), power))
            changed = True
            break
    if not changed:
        return product
    return _product(*(_power(base, sympy.Integer(power)) for base, power in factors))


def _base_and_power(factor: sympy.Expr) -> tuple[sympy.Expr, int]:
    """(base, power) with a whole power; anything else is its own base."""
    if isinstance(factor, sympy.Pow) and factor.exp.is_Integer:
        return factor.base, int(factor.exp)
    return factor, 1


def _exponential_difference(base: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, bool] | None:
    """(c, u, recovered) with base = c*(exp(u) - 1), or None."""
    if not isinstance(base, sympy.Add) or len(base.args) != 2:
        return None
    terms = [_coefficient_and_exponent(term) for term in base.args]
    # The second term is to be the one without a voltage; a plain constant is best.
    terms.sort(key=lambda term: (_is_zero(term[1]), not term[1].has(V)))
    (first, exponent), (second, offset) = terms
    if exponent == 0 or offset.has(V) or (offset != 0 and not exponent.has(V)):
        return None
    quotient = -second / first
    if not quotient.is_Number or not quotient.is_positive:
        return None
    recovered = abs(float(quotient) - 1) > 4e-16
    shift = sympy.Float(math.log(float(quotient))) if recovered else sympy.Integer(0)
    scale = -second if offset == 0 else _product(-second, _exp(offset))
    return scale, exponent - offset - shift, recovered


def _coefficient_and_exponent(term: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """(c, u) with term = c*exp(u); u = 0 without an exponential."""
    factors = sympy.Mul.make_args(term)
    exponents = [factor.exp for factor in factors if isinstance(factor, sympy.exp)]
    others = [factor for factor in factors if not isinstance(factor, sympy.exp)]
    return sympy.Mul(*others), sympy.Add(*exponents)


def _ratio(factor: sympy.Expr, u: sympy.Expr) -> sympy.Expr | None:
    """r with factor = r*u and r free of v, or None: both linear in a symbol, with one root."""
    shared = factor.free_symbols & u.free_symbols
    for name in sorted(shared, key=lambda s: (s != V, s.name)):
        of_factor, of_u = linear_in(factor, name), linear_in(u, name)
        if of_factor is None or of_u is None or _is_zero(of_factor[0]) or _is_zero(of_u[0]):
            continue
        ratio = of_factor[0] / of_u[0]
        if not ratio.has(V) and _equal(of_factor[0] * of_u[1], of_factor[1] * of_u[0]):
            return ratio
    return None


def linear_in(node: sympy.Expr, name: sympy.Symbol) -> tuple[sympy.Expr, sympy.Expr] | None:
    """(slope, intercept) of an expression that is visibly linear in a symbol, or None."""
    if not node.has(name):
        return sympy.Integer(0), node
    if node == name:
        return sympy.Integer(1), sympy.Integer(0)
    if isinstance(node, sympy.Add):
        parts = [linear_in(term, name) for term in node.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        slopes, intercepts = zip(*known, strict=True)
        return sympy.Add(*slopes), sympy.Add(*intercepts)
    if isinstance(node, sympy.Mul):
        inner = [factor for factor in node.args if factor.has(name)]
        part = linear_in(inner[0], name) if len(inner) == 1 else None
        if part is not None:
            rest = sympy.Mul(*(factor for factor in node.args if factor is not inner[0]))
            return rest * part[0], rest * part[1]
    return None


def _equal(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Equal term by term when multiplied out, up to rounding; False if that would be long."""
    if left == right:
        return True
    if _expanded_terms(left) > 100 or _expanded_terms(right) > 100:
        return False
    a = sympy.expand_mul(left, deep=False).as_coefficients_dict()
    b = sympy.expand_mul(right, deep=False).as_coefficients_dict()
    return all(math.isclose(_as_float(a[k]), _as_float(b[k]), rel_tol=1e-12) for k in {*a, *b})


def _expanded_terms(node: sympy.Expr) -> int:
    """How many terms multiplying out would give."""
    if isinstance(node, sympy.Add):
        return sum(map(_expanded_terms, node.args))
    if isinstance(node, sympy.Mul):
        return math.prod(map(_expanded_terms, node.args))
    if isinstance(node, sympy.Pow) and node.exp.is_Integer:
        return int(_expanded_terms(node.base) ** min(abs(int(node.exp)), 100))
    return 1


# Values


def moving(definitions: Iterable[tuple[str, sympy.Expr]]) -> set[str]:
    """Names that change with the voltage: v, and definitions, in order, that use such a name."""
    found = {V.name}
    for name, expression in definitions:
        if found & {s.name for s in expression.free_symbols}:
            found.add(name)
    return found


def evaluate(expression: sympy.Expr, values: Mapping[str, npt.ArrayLike], xp: Any = np) -> Array:
    """The value of an expression in float64, step by step with NumPy.

    Arguments:
        expression: anything ``parse_expression`` and ``remove_singularities`` give, and their
            derivatives.
        values: for each symbol's name a number or an array; they are broadcast together.
        xp: the array module of the values, numpy or cupy.

    Returns:
        float64, of the broadcast shape of the values that the expression uses. Overflow is inf and
        what is undefined is NaN; neither warns nor raises.

    Raises:
        KeyError: a symbol has no value.
        TypeError: a function that expressions do not have.
    """
    with np.errstate(all="ignore"):
        value: Array = xp.asarray(_steps_of(expression).run(values, xp), dtype=np.float64)
    return value


def exprel_values(x: Any, xp: Any = np) -> Array:
    """(exp(x) - 1)/x elementwise, 1 at 0, within two roundings everywhere."""
    x = xp.asarray(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        value: Array = xp.where(x == 0, 1.0, xp.where(x == np.inf, np.inf, xp.expm1(x) / x))
    return value


def exprel_slope_values(x: Any, xp: Any = np) -> Array:
    """d exprel/dx elementwise: by its series sum_k x^k/(k! (k + 2)) where |x| < 1."""
    x = xp.asarray(x, dtype=np.float64)
    near = xp.where(xp.abs(x) < 1, x, 0.0)
    series = xp.zeros_like(near)
    for k in range(19, -1, -1):
        series = series * near + 1 / (math.factorial(k) * (k + 2))
    with np.errstate(all="ignore"):
        far = (1 - 1 / x) * (xp.exp(x) / x) + 1 / x / x
    far = xp.where(xp.isinf(x), xp.where(x > 0, np.inf, 0.0), far)
    value: Array = xp.where(xp.abs(x) < 1, series, far)
    return value


#: By their names in an array module.
_ONE_ARGUMENT: dict[type[sympy.Basic], str] = {
    sympy.exp: "exp",
    sympy.log: "log",
    sympy.Abs: "abs",
    sympy.tanh: "tanh",
    sympy.cos: "cos",
    sympy.sin: "sin",
    sympy.sign: "sign",
    sympy.Not: "logical_not",
}
_OWN_FUNCTIONS: dict[type[sympy.Basic], Callable[..., Array]] = {
    exprel: exprel_values,
    exprel_slope: exprel_slope_values,
}
_TWO_ARGUMENTS: dict[type[sympy.Basic], str] = {
    sympy.Min: "minimum",
    sympy.Max: "maximum",
    sympy.Heaviside: "heaviside",
    sympy.And: "logical_and",
    sympy.Or: "logical_or",
    sympy.StrictLessThan: "less",
    sympy.LessThan: "less_equal",
    sympy.StrictGreaterThan: "greater",
    sympy.GreaterThan: "greater_equal",
    sympy.Equality: "equal",
    sympy.Unequality: "not_equal",
}


#: What comes of earlier results, the symbols' values and the array module.
_Step = Callable[[list[Any], Mapping[str, Any], Any], Any]


class _Steps:
    """An expression as steps, each with a result that later ones use; a part that occurs twice is
    one step. Walking the tree anew would take several times as long as the arithmetic."""

    def __init__(self, expression: sympy.Expr) -> None:
        self.steps: list[_Step] = []
        self.places: dict[Any, int] = {}
        self.result = self.of(expression)

    def run(self, values: Mapping[str, Any], xp: Any) -> Any:
        results: list[Any] = []
        for step in self.steps:
            results.append(step(results, values, xp))
        return results[self.result]

    def of(self, node: Any) -> int:
        """The step that a part's value comes from."""
        if node not in self.places:
            self.places[node] = self.added(self.step(node))
        return self.places[node]

    def added(self, step: _Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def step(self, node: Any) -> _Step:
        if hasattr(node, "evaluated"):  # of indexed.py: values change inside a sum
            return lambda _, values, xp: node.evaluated(values)
        if isinstance(node, sympy.Symbol):
            name = node.name
            return lambda _, values, xp: xp.asarray(values[name], dtype=np.float64)
        if node in (sympy.true, sympy.false):
            return _constant(bool(node))
        if node.is_number and not node.args:
            return _constant(np.float64(_as_float(node)))
        if isinstance(node, sympy.Mul):
            return self.product(node)
        if isinstance(node, sympy.Pow):
            return self.power(node.base, node.exp)
        if isinstance(node, sympy.Piecewise):
            return self.piecewise(node)
        places = [self.of(argument) for argument in node.args]
        if isinstance(node, sympy.Add):
            return lambda done, _, xp: sum((done[k] for k in places[1:]), done[places[0]])
        if type(node) in _ONE_ARGUMENT:
            name, only = _ONE_ARGUMENT[type(node)], places[0]
            return lambda done, _, xp: getattr(xp, name)(done[only])
        if type(node) in _OWN_FUNCTIONS:
            own, only = _OWN_FUNCTIONS[type(node)], places[0]
            return lambda done, _, xp: own(done[only], xp)
        if type(node) in _TWO_ARGUMENTS:
            name = _TWO_ARGUMENTS[type(node)]
            return lambda done, _, xp: reduce(getattr(xp, name), [done[k] for k in places])
        raise TypeError(f"no value for {type(node).__name__} in {_shortened(str(node), 60)}")

    def product(self, node: sympy.Mul) -> _Step:
        """A quotient of two products: v/10 is divided by 10, not multiplied by a rounded 0.1."""
        one = self.added(_constant(np.float64(1.0)))
        over, under = [one], [one]
        for factor in node.args:
            if isinstance(factor, sympy.Rational):
                over.append(self.added(_constant(np.float64(_as_float(factor.p)))))
                under.append(self.added(_constant(np.float64(_as_float(factor.q)))))
            elif isinstance(factor, sympy.Pow) and factor.exp.is_number and factor.exp.is_negative:
                under.append(self.added(self.power(factor.base, -factor.exp)))
            else:
                over.append(self.of(factor))
        return lambda done, _, xp: (
            math.prod([done[k] for k in over]) / math.prod([done[k] for k in under])
        )

    def power(self, base: Any, power: Any) -> _Step:
        of_base = self.of(base)
        if power == sympy.Rational(1, 2):
            return lambda done, _, xp: xp.sqrt(done[of_base])
        if power == -1:
            return lambda done, _, xp: 1 / done[of_base]
        of_power = self.of(power)
        return lambda done, _, xp: xp.power(done[of_base], done[of_power])

    def piecewise(self, node: sympy.Piecewise) -> _Step:
        pairs = []
        for pair in reversed(node.args):
            assert isinstance(pair, ExprCondPair)
            pairs.append((self.of(pair.cond), self.of(pair.expr)))

        def chosen(done: list[Any], _: Mapping[str, Any], xp: Any) -> Any:
            result: Any = np.float64(np.nan)
            for condition, value in pairs:
                result = xp.where(done[condition], done[value], result)
            return result

        return chosen


@lru_cache(maxsize=1024)
def _steps_of(expression: sympy.Expr) -> _Steps:
    return _Steps(expression)


def _constant(value: Any) -> _Step:
    return lambda _, values, xp: value


# Definitions


def definition_order(definitions: Mapping[str, sympy.Expr]) -> list[str]:
    """The names so that each comes after all those that its expression uses.

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
