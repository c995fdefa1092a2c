"""Exact derivatives of rate expressions, as expressions.

SymPy's own `diff` gives derivatives of real parts and Heaviside functions where an
expression has abs, min or max; here every kink has the slope of the branch that is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from sympy.core.relational import Relational

Definitions = tuple[tuple[str, sympy.Expr], ...]


def derivative(expression: sympy.Expr, by: sympy.Symbol) -> sympy.Expr:
    """Return d expression / d by, of anything that `expressions` gives;
    0 where `by` is not in it.

    Raises:
        TypeError: a function without a known derivative.
    """
    return _derivative(expression, by, {})


def _derivative(
    node: sympy.Expr, by: sympy.Symbol, done: dict[sympy.Expr, sympy.Expr]
) -> sympy.Expr:
    if node == by:
        return sympy.Integer(1)
    if not node.has(by):
        return sympy.Integer(0)
    if node not in done:
        done[node] = _anew(node, by, done)
    return done[node]


def _anew(node: sympy.Expr, by: sympy.Symbol, done: dict[sympy.Expr, sympy.Expr]) -> sympy.Expr:
    def of(part: sympy.Expr) -> sympy.Expr:
        return _derivative(part, by, done)

    if isinstance(node, sympy.Add):
        return sympy.Add(*(of(term) for term in node.args))
    if isinstance(node, sympy.Mul):
        return sympy.Add(
            *(
                sympy.Mul(of(factor), *node.args[:k], *node.args[k + 1 :])
                for k, factor in enumerate(node.args)
                if factor.has(by)
            )
        )
    if isinstance(node, sympy.Pow):
        base, power = node.args
        steep = power * base ** (power - 1) * of(base) if base.has(by) else sympy.Integer(0)
        return steep + (node * sympy.log(base) * of(power) if power.has(by) else 0)
    if isinstance(node, (sympy.Min, sympy.Max)):
        return _of_extreme(node, by, done)
    if isinstance(node, sympy.Piecewise):
        pairs = [(of(branch.expr), branch.cond) for branch in node.args]
        return sympy.Piecewise(*pairs, evaluate=False)
    if isinstance(node, sympy.Abs):
        (inner,) = node.args
        slope = of(inner)
        return sympy.Piecewise((-slope, inner < 0), (slope, True), evaluate=False)
    if isinstance(node, sympy.Function) and not isinstance(node, Relational):
        return sympy.Add(
            *(node.fdiff(k + 1) * of(inner) for k, inner in enumerate(node.args) if inner.has(by))
        )
    raise TypeError(f"no derivative of {type(node).__name__}")


def _of_extreme(
    node: sympy.Expr, by: sympy.Symbol, done: dict[sympy.Expr, sympy.Expr]
) -> sympy.Expr:
    """Return the derivative of the argument that is chosen; of the first of equals."""
    best, slope = node.args[0], _derivative(node.args[0], by, done)
    for other in node.args[1:]:
        wins = other < best if isinstance(node, sympy.Min) else other > best
        slope = sympy.Piecewise((_derivative(other, by, done), wins), (slope, True), evaluate=False)
        best = node.func(best, other, evaluate=False)
    return slope


def derivatives(
    definitions: Definitions, expressions: Sequence[sympy.Expr], by: Sequence[str]
) -> tuple[Definitions, list[dict[int, sympy.Expr]]]:
    """Differentiate expressions in which named definitions occur, which stay named.

    Arguments:
        definitions: in dependency order.
        by: names of the parameters.

    Returns:
        The definitions, each followed by its own derivatives under names of the form
        ``d(definition)/d(parameter)``; and for each expression {index into `by`: derivative}, of
        those parameters only on which it depends.
    """
    grown: list[tuple[str, sympy.Expr]] = []
    known: dict[tuple[str, str], sympy.Symbol] = {}

    def total(expression: sympy.Expr, parameter: str) -> sympy.Expr:
        slope = sympy.Integer(0)
        names = sorted(s.name for s in expression.free_symbols)
        if parameter in names:  # of hundreds of rates, most know few of hundreds of parameters
            slope = derivative(expression, sympy.Symbol(parameter, real=True))
        for name in names:
            if (name, parameter) in known:
                direct = derivative(expression, sympy.Symbol(name, real=True))
                slope += direct * known[name, parameter]
        return slope

    for name, expression in definitions:
        grown.append((name, expression))
        for parameter in by:
            slope = total(expression, parameter)
            if slope != 0:
                inner = f"d({name})/d({parameter})"
                known[name, parameter] = sympy.Symbol(inner, real=True)
                grown.append((inner, slope))
    slopes = [{k: total(e, parameter) for k, parameter in enumerate(by)} for e in expressions]
    return tuple(grown), [{k: s for k, s in row.items() if s != 0} for row in slopes]
