"""Evaluation of expressions in float64 with NumPy or CuPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import sympy
from sympy.functions.elementary.piecewise import ExprCondPair

from channelfit.model.terms import as_float, exprel, exprel_slope

Array: TypeAlias = npt.NDArray[np.float64]


def evaluate(expression: sympy.Expr, values: Mapping[str, npt.ArrayLike], xp: Any = np) -> Array:
    """Return the value of an expression in float64, step by step with NumPy.

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
    """Return (exp(x) - 1)/x of every element, 1 at 0, within two roundings everywhere."""
    x = xp.asarray(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        value: Array = xp.where(x == 0, 1.0, xp.where(x == np.inf, np.inf, xp.expm1(x) / x))
    return value


def exprel_slope_values(x: Any, xp: Any = np) -> Array:
    """Return the derivative of exprel, by its series sum x^k/(k! (k + 2)) if |x| < 1."""
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


#: Functions by their names in an array module.
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
#: Functions of two arguments, which are applied from left to right where there are more.
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


#: Computes one result from the earlier ones, the symbols' values and the array module.
_Step: TypeAlias = Callable[[list[Any], Mapping[str, Any], Any], Any]


#: Whole powers between these are products of squares, which takes a tenth of the time of `power`.
_BY_SQUARES, _MOST_SQUARED = 9, 1 << 20


def _raised(base: Any, power: int) -> Any:
    """Return a base, a number or an array, to a whole power of 1 or more."""
    result = None
    while power:
        if power & 1:
            result = base if result is None else result * base
        power >>= 1
        base = base * base if power else base
    return result


class _Instructions:
    """An expression as a list of steps, each with a result that later ones use.

    A part that occurs twice is one step. To walk the tree for every evaluation would take several
    times as long as the arithmetic.
    """

    def __init__(self, expression: sympy.Expr) -> None:
        self.steps: list[_Step] = []
        self.places: dict[Any, int] = {}
        self.result = self.of(expression)

    def run(self, values: Mapping[str, Any], xp: Any) -> Any:
        """Return the expression's value, given those of its symbols."""
        results: list[Any] = []
        for step in self.steps:
            results.append(step(results, values, xp))
        return results[self.result]

    def of(self, node: Any) -> int:
        """Return the place in the list of the step that gives a part's value."""
        if node not in self.places:
            self.places[node] = self.added(self.step(node))
        return self.places[node]

    def added(self, step: _Step) -> int:
        """Append a step; returns its place in the list."""
        self.steps.append(step)
        return len(self.steps) - 1

    def step(self, node: Any) -> _Step:
        """Return the step that computes a part from its arguments, which become steps before it."""
        if hasattr(node, "evaluated"):  # sums of closed formulas, inside which an index varies
            return lambda _, values, xp: node.evaluated(values)
        if isinstance(node, sympy.Symbol):
            name = node.name
            return lambda _, values, xp: xp.asarray(values[name], dtype=np.float64)
        if node in (sympy.true, sympy.false):
            return _constant(bool(node))
        if node.is_number and not node.args:
            return _constant(np.float64(as_float(node)))
        if isinstance(node, sympy.Mul):
            return self.product(node)
        if isinstance(node, sympy.Pow):
            return self.power(node.base, node.exp)
        if isinstance(node, sympy.Piecewise):
            return self.piecewise(node)
        if isinstance(node, sympy.ITE):  # what SymPy makes of a conditional in a comparison
            test, yes, no = map(self.of, node.args)
            return lambda done, _, xp: xp.where(done[test], done[yes], done[no])
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
        raise TypeError(f"no value for {type(node).__name__} in {str(node)[:60]}")

    def product(self, node: sympy.Mul) -> _Step:
        """Return a product as one product over another.

        v/10 is divided by 10 in this way, and not multiplied by a rounded 0.1.
        """
        one = self.added(_constant(np.float64(1.0)))
        over, under = [one], [one]
        for factor in node.args:
            if isinstance(factor, sympy.Rational):
                over.append(self.added(_constant(np.float64(as_float(factor.p)))))
                under.append(self.added(_constant(np.float64(as_float(factor.q)))))
            elif isinstance(factor, sympy.Pow) and factor.exp.is_number and factor.exp.is_negative:
                under.append(self.added(self.power(factor.base, -factor.exp)))
            else:
                over.append(self.of(factor))
        return lambda done, _, xp: (
            math.prod([done[k] for k in over]) / math.prod([done[k] for k in under])
        )

    def power(self, base: Any, power: Any) -> _Step:
        """Return a power; a square root and a reciprocal by themselves."""
        of_base = self.of(base)
        if power == sympy.Rational(1, 2):
            return lambda done, _, xp: xp.sqrt(done[of_base])
        if power == -1:
            return lambda done, _, xp: 1 / done[of_base]
        if getattr(power, "is_Integer", False) and _BY_SQUARES <= int(power) <= _MOST_SQUARED:
            return lambda done, _, xp: _raised(done[of_base], int(power))
        of_power = self.of(power)
        return lambda done, _, xp: xp.power(done[of_base], done[of_power])

    def piecewise(self, node: sympy.Piecewise) -> _Step:
        """Return the value of the first condition that is true, NaN where none is."""
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
def _steps_of(expression: sympy.Expr) -> _Instructions:
    return _Instructions(expression)


def _constant(value: Any) -> _Step:
    return lambda _, values, xp: value
