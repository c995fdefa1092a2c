"""A curve and its derivatives as steps, each computed as seldom as its inputs allow.

On a grid every input has an axis of its own. What depends on no input is computed once, what
depends on one input once for each of its values, and only the rest at every point: an elliptic
Gaussian on 11 x 11 pixels takes 22 exponentials, not 121.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from channelfit.curves.curve import Curve
from channelfit.model.terms import symbol

Axes = frozenset[int]


@dataclass(eq=False)
class Staged:
    """Steps of a curve; see `staged`.

    Attributes:
        axes: names of the inputs on each axis, that of the inner loop first.
        steps: by the axes that they depend on, (name, expression) in the order to compute them.
        value, slopes: in terms of the steps.
        of: the axes that each name depends on; parameters have none.
    """

    axes: tuple[tuple[str, ...], ...]
    steps: dict[Axes, list[tuple[str, sympy.Expr]]] = field(default_factory=dict)
    value: sympy.Expr = sympy.S.Zero
    slopes: list[sympy.Expr] = field(default_factory=list)
    of: dict[str, Axes] = field(default_factory=dict)
    _known: dict[sympy.Expr, sympy.Symbol] = field(default_factory=dict)

    def axes_of(self, expression: sympy.Basic) -> Axes:
        """Return the axes on which the value of an expression changes."""
        found: Axes = frozenset()
        for name in expression.free_symbols:
            found |= self.of.get(name.name, frozenset())
        return found

    def kept(self, axes: Axes) -> list[str]:
        """Return names of the steps on these axes that are needed where more axes are known."""
        names = [name for name, _ in self.steps.get(axes, [])]
        later = [e for other, steps in self.steps.items() if other > axes for _, e in steps]
        whole = frozenset(range(len(self.axes)))
        if axes != whole:
            later += [self.value, *self.slopes]
        used = {s.name for e in later for s in e.free_symbols}
        return [name for name in names if name in used]

    # --- hoisting

    def named(self, expression: sympy.Expr) -> sympy.Expr:
        """Return a symbol for the value of an expression, computed on its own axes."""
        if expression.is_Atom:
            return expression
        if expression not in self._known:
            axes = self.axes_of(expression)
            lifted = self.lifted(expression)
            new = symbol(f".s{len(self._known)}")
            self.add(new, lifted, axes)
            self._known[expression] = new
        return self._known[expression]

    def add(self, name: sympy.Symbol, expression: sympy.Expr, axes: Axes) -> None:
        """Add a step on some axes."""
        self.steps.setdefault(axes, []).append((name.name, expression))
        self.of[name.name] = axes

    def lifted(self, node: sympy.Expr) -> sympy.Expr:
        """Return an expression in which parts of fewer axes than its own are symbols."""
        own = self.axes_of(node)
        if node.is_Atom or not own:
            return node
        if isinstance(node, sympy.exp) and len(own) > 1:
            return self._exponential(node)
        if isinstance(node, (sympy.Add, sympy.Mul)):
            groups: dict[Axes, list[sympy.Expr]] = {}
            for part in node.args:
                groups.setdefault(self.axes_of(part), []).append(part)
            parts: list[sympy.Expr] = []
            fewer = [axes for axes in groups if axes and axes != own]
            if fewer and frozenset() in groups:  # constants join what is computed seldom anyway
                groups[fewer[0]] += groups.pop(frozenset())
            for axes, members in groups.items():
                if axes == own:
                    parts += [self.lifted(member) for member in members]
                elif len(members) == 1:
                    parts.append(self.named(members[0]))
                else:
                    parts.append(self.named(node.func(*members, evaluate=False)))
            return node.func(*parts, evaluate=False)
        if not isinstance(node, (sympy.Pow, sympy.Function)) or isinstance(node, sympy.Piecewise):
            return node
        args = [self.lifted(a) if self.axes_of(a) == own else self.named(a) for a in node.args]
        return node.func(*args, evaluate=False)

    def _exponential(self, node: sympy.Expr) -> sympy.Expr:
        """Write exp(a(x) + b(y)) as a product of exponentials, each of one axis."""
        groups: dict[Axes, list[sympy.Expr]] = {}
        for term in _terms(node.args[0]):
            groups.setdefault(self.axes_of(term), []).append(term)
        constant = groups.pop(frozenset(), [])
        if len(groups) < 2:
            return sympy.exp(self.lifted(node.args[0]), evaluate=False)
        first = next(iter(groups))
        groups[first] = groups[first] + constant
        return sympy.Mul(
            *(
                self.named(sympy.exp(sympy.Add(*terms, evaluate=False), evaluate=False))
                for terms in groups.values()
            )
        )


def staged(curve: Curve, axes: tuple[tuple[str, ...], ...], slopes: bool = True) -> Staged:
    """Return the steps of a curve, and of its derivatives where `slopes` is true.

    Names of steps begin with a point, which no name in a user's file does.

    Arguments:
        axes: inputs that change together, the axis of the inner loop first. One axis for a list of
            points; one for each input on a grid.
    """
    out = Staged(axes)
    for k, together in enumerate(axes):
        out.of |= {name: frozenset({k}) for name in together}
    expressions = [curve.reduced, *(curve.slopes if slopes else ())]
    expressions = [_without_overflow(e) for e in expressions]
    names = (symbol(f".c{k}") for k in range(10**6))
    shared, results = sympy.cse(expressions, symbols=names, order="none")
    for name, expression in shared:
        out.add(name, out.lifted(expression), out.axes_of(expression))
    results = [out.lifted(e) for e in results]
    out.value, out.slopes = results[0], list(results[1:])
    return out


def _terms(expression: sympy.Expr) -> Sequence[sympy.Expr]:
    """Return the terms of a sum, or of a product of which one factor is a sum."""
    if isinstance(expression, sympy.Mul):
        sums = [a for a in expression.args if isinstance(a, sympy.Add)]
        if len(sums) == 1:
            rest = [a for a in expression.args if a is not sums[0]]
            return [sympy.Mul(*rest, term, evaluate=False) for term in sums[0].args]
    return list(sympy.Add.make_args(expression))


def _without_overflow(expression: sympy.Expr) -> sympy.Expr:
    """Write 1/(1 + exp(u)) as (1 - tanh(u/2))/2, and its derivatives likewise.

    Where exp(u) overflows, exp(u)/(1 + exp(u))**2 would be infinity by infinity.
    """

    def is_logistic(node: sympy.Basic) -> bool:
        return (
            isinstance(node, sympy.Pow)
            and node.exp.is_Integer
            and node.exp < 0
            and (_logit(node.base) is not None)
        )

    def of_products(node: sympy.Mul) -> sympy.Expr:
        """Write exp(u) * (1 + exp(u))**-2 as (1 - tanh**2)/4; one exponential for each further
        power.
        """
        factors = list(node.args)
        for power in [f for f in factors if is_logistic(f)]:
            u, n = _logit(power.base), -int(power.exp)
            raised = [f for f in factors if isinstance(f, sympy.exp) and f.args[0] == u]
            t = sympy.tanh(u / 2)
            if raised and n >= 2:
                factors.remove(raised[0])
                factors.remove(power)
                factors += [(1 - t**2) / 4, ((1 - t) / 2) ** (n - 2)]
        return sympy.Mul(*factors)

    expression = expression.replace(lambda e: isinstance(e, sympy.Mul), of_products)
    return expression.replace(
        is_logistic,
        lambda e: ((1 - sympy.tanh(_logit(e.base) / 2)) / 2) ** (-int(e.exp)),
    )


def _logit(base: sympy.Expr) -> Any:
    """Return u of 1 + exp(u); None for anything else."""
    if isinstance(base, sympy.Add) and len(base.args) == 2 and sympy.Integer(1) in base.args:
        other = next(a for a in base.args if a != 1)
        if isinstance(other, sympy.exp):
            return other.args[0]
    return None
