"""SymPy expressions as scalar source text; dialects differ by a table of function names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import sympy
from sympy.core.mul import _unevaluated_Mul
from sympy.printing.codeprinter import CodePrinter

from channelfit.model.terms import exponential


@dataclass(frozen=True)
class Dialect:
    """The names and spellings of a target language.

    functions: SymPy function name -> name in the target.
    choose: text of a conditional value from (condition, if true, if false).
    power: text of a general power from (base, exponent).
    words: spelling of and, or, not, true, false.
    """

    functions: Mapping[str, str]
    choose: Callable[[str, str, str], str]
    power: Callable[[str, str], str]
    words: tuple[str, str, str, str, str] = ("and", "or", "not ", "True", "False")


PYTHON = Dialect(
    {
        "exp": "exp",
        "log": "log",
        "sqrt": "sqrt",
        "Abs": "abs",
        "tanh": "tanh",
        "exprel": "exprel",
        "exprel_slope": "exprel_slope",
        "bernoulli": "bernoulli",
        "bernoulli_slope": "bernoulli_slope",
    },
    lambda condition, yes, no: f"({yes} if {condition} else {no})",
    lambda base, exponent: f"({base})**({exponent})",
)
CUDA = Dialect(
    {
        "exp": "exponential",
        "log": "log",
        "sqrt": "sqrt",
        "Abs": "fabs",
        "tanh": "tanh",
        "exprel": "exprel",
        "exprel_slope": "exprelSlope",
        "bernoulli": "bernoulli",
        "bernoulli_slope": "bernoulliSlope",
    },
    lambda condition, yes, no: f"({condition} ? {yes} : {no})",
    lambda base, exponent: f"pow({base}, {exponent})",
    ("&&", "||", "!", "true", "false"),
)


class ScalarPrinter(CodePrinter):  # type: ignore[misc]
    """A printer of scalar expressions; `names` are those of symbols in the target."""

    language = "scalar"
    #: Powers of ten, up and down, that a number in the text may have.
    decades: ClassVar[int] = 280
    _default_settings: ClassVar[dict[str, Any]] = {
        **CodePrinter._default_settings,
        "order": None,
        "precision": 17,
    }

    def __init__(self, dialect: Dialect, names: Mapping[str, str]) -> None:
        super().__init__()
        self.dialect, self.names = dialect, names

    def text(self, expression: sympy.Basic) -> str:
        """Return the expression in the target language."""
        return str(self._print(expression))

    def assignment(self, name: str, expression: sympy.Basic) -> str:
        """Return the assignment of a definition or a shared part, without a type."""
        return f"{self.names.get(name, name)} = {self.text(expression)}"

    def _print_Symbol(self, node: sympy.Symbol) -> str:
        return self.names.get(node.name, node.name)

    def _print_Float(self, node: sympy.Float) -> str:
        return repr(float(node))

    def _print_Integer(self, node: sympy.Integer) -> str:
        return repr(float(node))

    def _print_Rational(self, node: sympy.Rational) -> str:
        return repr(float(node))

    def _print_NumberSymbol(self, node: sympy.Expr) -> str:
        return repr(float(node))

    _print_Exp1 = _print_Pi = _print_NumberSymbol

    def _print_Function(self, node: sympy.Function) -> str:
        name = self.dialect.functions.get(type(node).__name__)
        if name is None:
            raise TypeError(f"no text for {type(node).__name__}")
        return f"{name}({', '.join(self._print(a) for a in node.args)})"

    _print_Abs = _print_exp = _print_log = _print_tanh = _print_exprel = _print_Function

    def _print_ExpBase(self, node: sympy.Function) -> str:
        return self._print_Function(node)

    def _print_Mul(self, node: sympy.Mul) -> str:
        return str(super()._print_Mul(_with_own_exponent(node, self.decades)))

    def _print_Pow(self, node: sympy.Pow, rational: bool = False) -> str:
        base, exponent = node.as_base_exp()
        if exponent.is_Integer and 0 < abs(int(exponent)) <= 8:
            text: str = "*".join([f"({self._print(base)})"] * abs(int(exponent)))
            return f"({text})" if exponent > 0 else f"(1.0/({text}))"
        if exponent == sympy.S.Half:
            return f"{self.dialect.functions['sqrt']}({self._print(base)})"
        return self.dialect.power(self._print(base), self._print(exponent))

    def _fold(self, node: sympy.Expr, relation: str) -> str:
        text = str(self._print(node.args[0]))
        for arg in node.args[1:]:
            other = self._print(arg)
            # A NaN on either side survives: it is chosen whenever the comparison is not true.
            text = self.dialect.choose(f"{other} {relation} {text}", other, text)
        return text

    def _print_Min(self, node: sympy.Min) -> str:
        return self._fold(node, "<")

    def _print_Max(self, node: sympy.Max) -> str:
        return self._fold(node, ">")

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        text = str(self._print(node.args[-1].expr))
        for branch in reversed(node.args[:-1]):
            text = self.dialect.choose(self._print(branch.cond), self._print(branch.expr), text)
        return text

    def _print_Relational(self, node: sympy.Basic) -> str:
        return f"({self._print(node.lhs)} {node.rel_op} {self._print(node.rhs)})"

    def _print_And(self, node: sympy.Basic) -> str:
        return "(" + f" {self.dialect.words[0]} ".join(map(self._print, node.args)) + ")"

    def _print_Or(self, node: sympy.Basic) -> str:
        return "(" + f" {self.dialect.words[1]} ".join(map(self._print, node.args)) + ")"

    def _print_Not(self, node: sympy.Basic) -> str:
        return f"({self.dialect.words[2]}{self._print(node.args[0])})"

    def _print_BooleanTrue(self, node: sympy.Basic) -> str:
        return self.dialect.words[3]

    def _print_BooleanFalse(self, node: sympy.Basic) -> str:
        return self.dialect.words[4]


def _with_own_exponent(node: sympy.Mul, decades: int) -> sympy.Mul:
    """Return a product c*exp(u) as exp(u + log(c)) where no floating-point number is like c.

    SymPy writes exp(-(v + 40)/0.024) as 1e-724*exp(-v/0.024) where it builds an expression anew.
    """
    number, rest = node.as_coeff_Mul()
    factors = list(sympy.Mul.make_args(rest))
    at = next((k for k, factor in enumerate(factors) if isinstance(factor, sympy.exp)), None)
    if at is None or number == 0 or abs(sympy.log(abs(number), 10)) <= decades:
        return node
    shift = sympy.Float(sympy.log(abs(number)), precision=53)
    factors[at] = exponential(sympy.Add(factors[at].exp, shift, evaluate=False))
    return _unevaluated_Mul(sympy.sign(number), *factors)


def harmless(text: str) -> str:
    """Return a user's text without anything that could end a line, comment or docstring."""
    return re.sub(r"[^\w .+-]", "_", text)


def assignments(
    definitions: tuple[tuple[str, sympy.Expr], ...], rates: list[sympy.Expr]
) -> tuple[list[tuple[str, sympy.Expr]], list[sympy.Expr]]:
    """Return definitions and rates with shared subexpressions, in the order to compute them.

    Returns:
        [(name, expression)] for definitions and shared parts (names ``s0``, ``s1`` ..), and the
        rates in terms of them. Definitions that no rate uses are left out.
    """
    used: set[str] = set()
    for name, expression in [*((None, r) for r in rates), *reversed(definitions)]:
        if name is None or name in used:
            used |= {s.name for s in expression.free_symbols}
    kept = [(name, expression) for name, expression in definitions if name in used]
    symbols = (sympy.Symbol(f"s_{k}", real=True) for k in range(10**6))
    shared, reduced = sympy.cse([e for _, e in kept] + rates, symbols=symbols, order="none")
    known = {name for name, _ in kept}
    ordered: list[tuple[str, sympy.Expr]] = []
    waiting = [(s.name, e) for s, e in shared] + [
        (name, e) for (name, _), e in zip(kept, reduced[: len(kept)], strict=True)
    ]
    known |= {name for name, _ in waiting}
    done: set[str] = set()
    while waiting:  # a shared part may need a definition, and a definition a shared part
        ready = [
            (n, e) for n, e in waiting if not ({s.name for s in e.free_symbols} & known) - done
        ]
        ordered += ready
        done |= {n for n, _ in ready}
        waiting = [(n, e) for n, e in waiting if n not in done]
    return ordered, list(reduced[len(kept) :])
