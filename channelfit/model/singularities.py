"""Removable singularities, such as that of x/(exp(x) - 1) at 0, made exact."""

from __future__ import annotations

import math
import operator
from typing import Any

import sympy
from sympy.core.relational import Relational

from channelfit.model.terms import (
    V,
    as_float,
    exponential,
    exprel,
    is_zero,
    linear_in,
    power,
    product,
    sum_of,
)

#: Sums that multiplying out would make longer than this are not compared term by term.
_MOST_TERMS = 100
#: A factor this near to 1 is 1, to the precision of float64.
_ROUNDING = 4e-16
#: Operations that SymPy would change while it builds them.
_UNEVALUATED = (
    sympy.exp,
    sympy.Min,
    sympy.Max,
    sympy.Piecewise,
    Relational,
    sympy.And,
    sympy.Or,
)


def remove_singularities(expression: sympy.Expr) -> sympy.Expr:
    """Return the same function, with x/(exp(x) - 1) and its relatives written by exprel.

    Rewritten is every product of ``f**m`` and ``D**n`` (whole m and n of opposite sign) with
    ``D = c*(exp(u) - 1)``, in any of the forms ``c*exp(u) - c``, ``1 - exp(u)``,
    ``exp(u) - exp(w)`` (w free of v), ``2.718281828459045*exp(u) - 1``, and f = r*u linear in
    a symbol, r free of v. Then D = c*u*exprel(u), so that u cancels and f/D = r/(c*exprel(u)):
    exact at and around u = 0. A difference of two exponentials that both depend on v is left alone.
    """
    return _rewritten(expression, {})


def _rewritten(node: sympy.Basic, done: dict[sympy.Basic, sympy.Basic]) -> Any:
    """Return a part of an expression, a number or a condition, without its singularities.

    Arguments:
        done: parts that were rewritten already, and their new forms.
    """
    if not node.args:
        return node
    if node not in done:
        args = [_rewritten(argument, done) for argument in node.args]
        changed = any(map(operator.is_not, args, node.args))
        rebuilt = _rebuilt(node, args) if changed else node
        done[node] = _without_quotients(rebuilt) if isinstance(rebuilt, sympy.Mul) else rebuilt
    return done[node]


def _rebuilt(node: sympy.Basic, args: list[Any]) -> Any:
    """Return a part of an expression with other arguments, as unevaluated as it was."""
    if isinstance(node, _UNEVALUATED):
        return node.func(*args, evaluate=False)
    if isinstance(node, sympy.Mul):
        return product(*args)
    if isinstance(node, sympy.Add):
        return sum_of(*args)
    return node.func(*args)


def _without_quotients(node: sympy.Mul) -> sympy.Expr:
    """Return a product in which no factor r*u is left beside an exp(u) - 1 on the other side."""
    factors = [_base_and_exponent(factor) for factor in node.args]
    changed = False
    for i, (base, exponent) in enumerate(factors):
        difference = _exponential_difference(base)
        if difference is None:
            continue
        for j, (other, others_exponent) in enumerate(factors):
            if others_exponent * exponent >= 0:
                continue
            ratio = _ratio(other, difference[1])
            if ratio is None:
                continue
            scale, u, recovered = difference
            # A u that was recovered through a logarithm is rounded; the factor is as written.
            u = product(other, 1 / ratio) if recovered else u
            factors[i] = (exprel(u), exponent)
            factors[j] = (other, others_exponent + exponent)
            factors.append((product(scale, 1 / ratio), exponent))
            changed = True
            break
    if not changed:
        return node
    return product(*(power(base, sympy.Integer(exponent)) for base, exponent in factors))


def _base_and_exponent(factor: sympy.Expr) -> tuple[sympy.Expr, int]:
    """Return a factor as a power with a whole exponent; anything else is its own base."""
    if isinstance(factor, sympy.Pow) and factor.exp.is_Integer:
        return factor.base, int(factor.exp)
    return factor, 1


def _exponential_difference(base: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, bool] | None:
    """Return c and u where an expression is c*(exp(u) - 1), else None.

    Returns: (c, u, recovered), the last whether u was found through a logarithm, and so is rounded.
    """
    if not isinstance(base, sympy.Add) or len(base.args) != 2:
        return None
    terms = [_coefficient_and_exponent(term) for term in base.args]
    # The second term is to be the one without a voltage; a plain constant is best.
    terms.sort(key=lambda term: (is_zero(term[1]), not term[1].has(V)))
    (first, exponent), (second, offset) = terms
    if exponent == 0 or offset.has(V) or (offset != 0 and not exponent.has(V)):
        return None
    quotient = -second / first
    if not quotient.is_Number or not quotient.is_positive:
        return None
    recovered = abs(float(quotient) - 1) > _ROUNDING
    shift = sympy.Float(math.log(float(quotient))) if recovered else sympy.Integer(0)
    scale = -second if offset == 0 else product(-second, exponential(offset))
    return scale, exponent - offset - shift, recovered


def _coefficient_and_exponent(term: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Return c and u of a term c*exp(u); u is 0 where it holds no exponential."""
    factors = sympy.Mul.make_args(term)
    exponents = [factor.exp for factor in factors if isinstance(factor, sympy.exp)]
    others = [factor for factor in factors if not isinstance(factor, sympy.exp)]
    return sympy.Mul(*others), sympy.Add(*exponents)


def _ratio(factor: sympy.Expr, u: sympy.Expr) -> sympy.Expr | None:
    """Return r, free of v, where a factor is r*u, else None.

    Both must be linear in one symbol and vanish at the same value of it.
    """
    shared = factor.free_symbols & u.free_symbols
    for name in sorted(shared, key=lambda s: (s != V, s.name)):
        of_factor, of_u = linear_in(factor, name), linear_in(u, name)
        if of_factor is None or of_u is None or is_zero(of_factor[0]) or is_zero(of_u[0]):
            continue
        ratio = of_factor[0] / of_u[0]
        if not ratio.has(V) and _equal(of_factor[0] * of_u[1], of_factor[1] * of_u[0]):
            return ratio
    return None


def _equal(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Return whether two expressions, multiplied out, are equal up to rounding."""
    if left == right:
        return True
    if _expanded_terms(left) > _MOST_TERMS or _expanded_terms(right) > _MOST_TERMS:
        return False
    a = sympy.expand_mul(left, deep=False).as_coefficients_dict()
    b = sympy.expand_mul(right, deep=False).as_coefficients_dict()
    return all(math.isclose(as_float(a[k]), as_float(b[k]), rel_tol=1e-12) for k in {*a, *b})


def _expanded_terms(node: sympy.Expr) -> int:
    """Return how many terms an expression would have if it were multiplied out."""
    if isinstance(node, sympy.Add):
        return sum(map(_expanded_terms, node.args))
    if isinstance(node, sympy.Mul):
        return math.prod(map(_expanded_terms, node.args))
    if isinstance(node, sympy.Pow) and node.exp.is_Integer:
        return int(_expanded_terms(node.base) ** min(abs(int(node.exp)), 100))
    return 1
