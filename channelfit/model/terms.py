"""SymPy terms as a model file has them: symbols, own functions, arithmetic that keeps the form.

Whenever SymPy builds a product or a sum, it multiplies out 0.1*(v + 40) inside, and takes
exp((v + 40.5)/18) apart into 9.49*exp(v/18). Then v + 40 could no longer be recognized as what
vanishes where exp(u) = 1. So exponentials, and a number times a sum, are placed unevaluated here.
(SymPy's own switch, ``distribute(False)``, sends its assumptions into endless recursion.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import mpmath
import sympy
from sympy.core.add import _unevaluated_Add
from sympy.core.mul import _unevaluated_Mul

#: Whole numbers up to here stay integers; larger ones become floats.
LARGEST_INTEGER = 2**31
#: Bits in the significand of a double.
_DOUBLE_BITS = 53


def symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a parameter, a definition or the voltage in every expression."""
    return sympy.Symbol(name, real=True)


#: The membrane voltage (mV) in every expression.
V = symbol("v")


class exprel(sympy.Function):  # type: ignore[misc]
    """(exp(x) - 1)/x, and 1 at x = 0: smooth and positive everywhere."""

    nargs = 1
    is_real = True
    is_positive = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        return sympy.Integer(1) if is_zero(x) else None

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        """Return the derivative, as a function, since (exp(x) - exprel(x))/x is 0/0 at 0."""
        return exprel_slope(self.args[0])

    def _eval_evalf(self, prec: int) -> sympy.Expr | None:
        return _evaluated(self.args[0], prec, lambda mp, x: mp.expm1(x) / x if x else mp.one)


class exprel_slope(sympy.Function):  # type: ignore[misc]
    """d exprel(x)/dx = (1 + (x - 1) exp(x))/x^2, and 1/2 at x = 0: smooth and positive."""

    nargs = 1
    is_real = True
    is_positive = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        return sympy.Rational(1, 2) if is_zero(x) else None

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        """Return (exp(x) - 2 exprel_slope(x))/x; exact at 0, loses digits within 1e-3 of it."""
        x = self.args[0]
        away = (sympy.exp(x) - 2 * self) / x
        return sympy.Piecewise((sympy.Rational(1, 3), sympy.Eq(x, 0)), (away, True))

    def _eval_evalf(self, prec: int) -> sympy.Expr | None:
        def slope(mp: Any, x: Any) -> Any:
            return mp.hyp1f1(2, 3, x) / 2

        return _evaluated(self.args[0], prec, slope)


def _evaluated(x: sympy.Expr, prec: int, function: Callable[[Any, Any], Any]) -> sympy.Expr | None:
    """Return a function's value at an argument, in so many bits; None where it is not a number."""
    value = x._evalf(prec + 10)
    if not value.is_Float and not value.is_Integer:
        return None
    with mpmath.workprec(prec + 20):
        result = function(mpmath.mp, value._to_mpmath(prec + 20))
    return sympy.Float._new(result._mpf_, prec)


def as_float(value: Any) -> float:
    """Return a number as a float; infinite where it is too large for one, or no real number."""
    try:
        return float(value)
    except (OverflowError, TypeError):
        return math.inf


def as_expression(value: int | float | sympy.Expr) -> sympy.Expr:
    """Return a number as SymPy's, in double precision; an expression as it is."""
    if isinstance(value, int):
        return sympy.Integer(value)
    return sympy.Float(float(value), precision=_DOUBLE_BITS) if isinstance(value, float) else value


def is_zero(value: sympy.Expr) -> bool:
    """Return whether an expression is the number 0, and not merely equal to it.

    SymPy's own property of this name starts a search on an expression, which may not end.
    """
    return bool(value.is_Number) and as_float(value) == 0


def may_be_real(value: sympy.Expr) -> bool:
    """Return whether an expression may be real, as far as SymPy knows.

    It returns False for the logarithm of -exp(v), for example. SymPy raises an error where it
    builds a comparison, a minimum or a maximum of such expressions anew.
    """
    return value.is_extended_real is not False


def exponential(x: sympy.Expr) -> sympy.Expr:
    """Return exp(x) as it is written.

    Evaluated, exp(v/18 + 2.25) would become 9.49*exp(v/18), and where exp(u) = 1 would be lost.
    """
    return sympy.exp(x, evaluate=False)


def product(*terms: sympy.Expr) -> sympy.Expr:
    """Return the product, in which exponentials and a number times a sum stay as they are."""
    factors = [factor for term in terms for factor in sympy.Mul.make_args(term)]
    kept = [factor for factor in factors if isinstance(factor, sympy.exp)]
    numbers = [factor for factor in factors if factor.is_Number]
    others = [f for f in factors if not f.is_Number and not isinstance(f, sympy.exp)]
    more, rest = sympy.Mul(*others).as_coeff_Mul()
    number = sympy.Mul(*numbers, more)
    if is_zero(number) or not (kept or rest.is_Add or rest.is_Mul or rest.is_Pow):
        return number * rest
    return _unevaluated_Mul(number, rest, *kept)


def quotient(over: Iterable[sympy.Expr], under: Iterable[sympy.Expr]) -> sympy.Expr:
    """Return one product divided by another, neither multiplied out."""
    return product(*over, *(power(term, sympy.Integer(-1)) for term in under))


def sum_of(*terms: sympy.Expr) -> sympy.Expr:
    """Return the sum, in which terms that hold an exponential stay as they are."""
    flat = [part for term in terms for part in sympy.Add.make_args(term)]
    kept = [part for part in flat if _has_exponential(part)]
    rest = sympy.Add(*(part for part in flat if not _has_exponential(part)))
    return _unevaluated_Add(rest, *kept) if kept else rest


def _has_exponential(term: sympy.Expr) -> bool:
    return any(isinstance(factor, sympy.exp) for factor in sympy.Mul.make_args(term))


def power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """Return the power; exp(u)**n becomes exp(n*u)."""
    if isinstance(base, sympy.exp):
        return exponential(product(exponent, base.exp))
    if isinstance(base, sympy.Mul) and exponent.is_Integer:
        return product(*(power(factor, exponent) for factor in base.args))
    return base**exponent


def with_plain_numbers(value: sympy.Expr) -> sympy.Expr:
    """Return an expression whose numeric factors are one small integer or fraction, or a double.

    3*sqrt(2)*x becomes 4.24*x; of a sum, each term is changed.

    Otherwise ((1000*v)**1000)**1000 would carry 1000**1000000 along, digit by digit.
    """
    if value.is_Add:
        terms = [with_plain_numbers(term) for term in value.args]
        return sum_of(*terms) if any(map(operator.is_not, terms, value.args)) else value
    factors = sympy.Mul.make_args(value)
    numbers = [factor for factor in factors if factor.is_number]
    coefficient = numbers[0] if len(numbers) == 1 else sympy.Mul(*numbers)
    if not coefficient.is_real or coefficient.is_Float:
        return value
    if coefficient.is_Rational and max(abs(coefficient.p), coefficient.q) <= LARGEST_INTEGER:
        return value
    rest = (factor for factor in factors if not factor.is_number)
    return product(sympy.Float(as_float(coefficient), precision=_DOUBLE_BITS), *rest)


def with_large_rationals_rounded(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression in which doubles stand for all integers and fractions with large terms.

    Every part is looked at; `with_plain_numbers` changes the factors of an expression alone. SymPy
    makes such numbers where it raises the values of a conditional to a power, for instance.
    """
    large = {
        part: sympy.Float(as_float(part), precision=_DOUBLE_BITS)
        for part in parts_of(expression)
        if part.is_Rational and max(abs(part.p), part.q) > LARGEST_INTEGER
    }
    return expression.xreplace(large) if large else expression


def parts_of(expression: sympy.Basic) -> list[sympy.Basic]:
    """Return every part of an expression once, each after its arguments, and itself last.

    A part that occurs many times is visited once only. The depth is not limited by Python's
    stack.
    """
    found: dict[sympy.Basic, None] = {}
    pending = [(expression, False)]
    while pending:
        node, entered = pending.pop()
        if entered:
            found[node] = None
        elif node not in found:
            pending.append((node, True))
            pending.extend((argument, False) for argument in reversed(node.args))
    return list(found)


def linear_in(node: sympy.Expr, name: sympy.Symbol) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Return the slope and the intercept of an expression that is visibly linear in a symbol.

    Returns:
        (slope, intercept), each free of the symbol; None where it is not linear, or not visibly so.
    """
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


def moving(
    definitions: Iterable[tuple[str, sympy.Expr]], commanded: Iterable[str] = (V.name,)
) -> set[str]:
    """Return the names that change with the command, and the definitions that depend on them.

    Arguments:
        definitions: names and expressions, each after those that it uses.
        commanded: the voltage, and any ligands.
    """
    found = set(commanded)
    for name, expression in definitions:
        if found & {s.name for s in expression.free_symbols}:
            found.add(name)
    return found
