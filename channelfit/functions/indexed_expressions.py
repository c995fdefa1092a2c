"""Expressions of arrays: `x[i]`, and sums and products over an index.

The language of `expressions.py` and besides: an array's element, counted from 1; ``sum(term, i,
first, last)`` and ``prod(..)``, which stay loops in whatever is generated from them; sizes and
indices by name; sin, cos and pi. The voltage is not among the names.

Every index is a whole number known to lie inside its array before anything runs: it is made of
whole numbers, sizes and indices by ``+``, ``-`` and products with whole numbers, so the least and
the largest value that it takes are known.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import sympy
from sympy.printing.str import StrPrinter

from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import ExpressionError, Reader, check_name, parse_expression
from channelfit.model.terms import symbol

#: Terms that one expression may add up, nested sums multiplied.
MAX_TERMS = 10_000_000


class element(sympy.Function):  # type: ignore[misc]
    """element(array, i, j, ..) is array[i, j, ..], counted from 1."""

    is_real = True

    def _eval_evalf(self, prec: int) -> None:
        return None

    @property
    def array(self) -> str:
        """Return the array's name."""
        return str(self.args[0].name)

    @property
    def indices(self) -> tuple[sympy.Expr, ...]:
        """Return one whole number an axis, linear in the indices around it."""
        return tuple(self.args[1:])

    def evaluated(self, values: Mapping[str, Any]) -> Any:
        """Return the element of the array in `values` at the indices."""
        places = [int(evaluate(index, values)) - 1 for index in self.indices]
        return np.asarray(values[self.array], dtype=np.float64)[tuple(places)]


class _Fold(sympy.Function):  # type: ignore[misc]
    """fold(term, index, first, last)."""

    nargs = 4
    is_real = True
    start = 0.0

    def _eval_evalf(self, prec: int) -> None:
        return None

    def evaluated(self, values: Mapping[str, Any]) -> Any:
        """Return the term at every value of the index, one after the other."""
        term, index, *ends = self.args
        first, last = (int(evaluate(end, values)) for end in ends)
        result: Any = np.float64(self.start)
        for i in range(first, last + 1):
            result = self.joined(result, evaluate(term, {**values, index.name: i}))
        return result

    @staticmethod
    def joined(so_far: Any, term: Any) -> Any:
        raise NotImplementedError


class total(_Fold):
    """The sum of a term over first <= index <= last; 0 where there is none."""

    @staticmethod
    def joined(so_far: Any, term: Any) -> Any:
        return so_far + term


class product(_Fold):
    """The product of a term over first <= index <= last; 1 where there is none."""

    start = 1.0

    @staticmethod
    def joined(so_far: Any, term: Any) -> Any:
        return so_far * term


FOLDS = {"sum": total, "prod": product}


def _cos(x: sympy.Expr) -> sympy.Expr:
    return sympy.cos(x, evaluate=False)


def _sin(x: sympy.Expr) -> sympy.Expr:
    return sympy.sin(x, evaluate=False)


@dataclass(frozen=True)
class IndexedScope:
    """The names of an expression: arrays by shape (() for a plain number), and whole numbers."""

    arrays: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]


def check_indexed_name(name: str) -> None:
    """Refuse a name that cannot be used in an expression. Raises ExpressionError."""
    if name in _IndexedReader.functions or name in FOLDS or name == "pi":
        raise ExpressionError(f'name "{name}" already has a meaning in expressions; choose another')
    if name != "v":
        check_name(name)


def parse_indexed(text: str | float, scope: IndexedScope, around: Mapping[str, int]) -> sympy.Expr:
    """Return a SymPy expression from the text in a user's file.

    Arguments:
        around: the last value of each index that surrounds the text; all begin at 1.

    Raises: ExpressionError, with the column and what would be accepted.
    """
    if not isinstance(text, str):
        return parse_expression(text, ())
    return _IndexedReader(text, scope, around).read()


class _IndexedReader(Reader):
    functions = {  # noqa: RUF012 - as in Reader, a table
        **Reader.functions,
        "sin": (1, math.sin, _sin),
        "cos": (1, math.cos, _cos),
    }
    characters = re.compile(Reader.characters.pattern[:-1] + r"\[\]]")

    def __init__(self, text: str, scope: IndexedScope, around: Mapping[str, int]) -> None:
        super().__init__(text, scope.arrays)
        self.names = frozenset(scope.arrays)
        self.scope = scope
        #: index -> the least and the largest value it takes
        self.indices = {name: (1, size) for name, size in around.items()}
        self.n_terms = 1

    def number(self, node: ast.expr) -> Any:
        """Read elements of arrays, besides what the plain language has."""
        if isinstance(node, ast.Subscript):
            return self.element(node)
        return super().number(node)

    def name(self, node: ast.Name) -> Any:
        """Return the value of a name: pi, a size, an index or a plain number."""
        if node.id == "pi":
            return math.pi
        if node.id in self.scope.sizes:
            return self.scope.sizes[node.id]
        if node.id in self.indices:
            return symbol(node.id)
        shape = self.scope.arrays.get(node.id, ())
        if shape:
            example = ", ".join("ijklmn"[k % 6] for k in range(len(shape)))
            self.refuse(f'"{node.id}" has elements', node, f"write {node.id}[{example}]")
        if node.id not in self.scope.arrays and node.id not in self.functions:
            self.refuse_unknown(node)
        return super().name(node)

    def call(self, node: ast.Call) -> Any:
        """Return the value of a call; ``sum`` and ``prod`` run over an index of their own."""
        if isinstance(node.func, ast.Name) and node.func.id in FOLDS:
            return self.fold(node, node.func.id)
        return super().call(node)

    def refuse_unknown(self, node: ast.Name) -> NoReturn:
        known = {*self.scope.arrays, *self.scope.sizes, *self.indices, "pi"}
        self.refuse_name(node.id, node, "name", known)

    def fold(self, node: ast.Call, name: str) -> sympy.Expr:
        """Read `sum(term, i, first, last)` behind its name."""
        if len(node.args) != 4 or node.keywords or not isinstance(node.args[1], ast.Name):
            self.refuse(f"cannot read this {name}", node, f"write {name}(x[i], i, 1, n)")
        term, index, first, last = node.args
        assert isinstance(index, ast.Name)
        own = index.id
        if own in self.indices or own in self.names or own in self.scope.sizes:
            self.refuse(f'"{own}" already has a meaning', index, "choose another index")
        if own in self.functions or own in FOLDS or own == "pi":
            self.refuse(f'"{own}" cannot be an index', index)
        begin, least, _ = self.whole(first)
        end, _, most = self.whole(last)
        if most < least:  # no term for any value of the indices around
            return sympy.Float(FOLDS[name].start)
        before = self.n_terms
        self.n_terms *= max(most - least + 1, 1)
        if self.n_terms > MAX_TERMS:
            self.refuse(f"more than {MAX_TERMS:,} terms in all", node)
        self.indices[own] = (least, most)
        body = self.number(term)
        del self.indices[own]
        self.n_terms = before
        body = body if isinstance(body, sympy.Expr) else parse_expression(body, ())
        return FOLDS[name](body, symbol(own), begin, end)

    def element(self, node: ast.Subscript) -> sympy.Expr:
        """Read the indices of `x[i]` or `u[i, j + 1]`."""
        if not isinstance(node.value, ast.Name):
            self.refuse("only a name has elements", node)
        name = node.value.id
        if name not in self.scope.arrays:
            self.refuse_unknown(node.value)
        shape = self.scope.arrays[name]
        listed = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(listed) != len(shape):
            has = f"{len(shape)} indices" if len(shape) != 1 else "1 index"
            self.refuse(f'"{name}" takes {has}, not {len(listed)},', node)
        places = []
        for part, size in zip(listed, shape, strict=True):
            place, least, most = self.whole(part)
            if least < 1 or most > size:
                reached = most if most > size else least
                self.refuse(
                    f'index {reached} lies outside "{name}", which goes from 1 to {size},', part
                )
            places.append(place)
        return element(symbol(name), *places)

    def whole(self, node: ast.expr) -> tuple[sympy.Expr, int, int]:
        """Return a whole number made of sizes and indices, with its least and its largest value."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return self.fixed(node.value, node)
        if isinstance(node, ast.Name) and node.id in self.scope.sizes:
            return self.fixed(self.scope.sizes[node.id], node)
        if isinstance(node, ast.Name) and node.id in self.indices:
            return (symbol(node.id), *self.indices[node.id])
        if isinstance(node, ast.Name):
            known = {*self.scope.sizes, *self.indices}
            self.refuse_name(node.id, node, "size or index", known)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value, least, most = self.whole(node.operand)
            return -value, -most, -least
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return self.combined(node)
        self.refuse("this cannot be an index", node, "write for example i, i + 1 or n - i + 1")

    def fixed(self, value: int, node: ast.expr) -> tuple[sympy.Expr, int, int]:
        if abs(value) > MAX_TERMS:
            self.refuse(f"a whole number beyond {MAX_TERMS:,} cannot be an index", node)
        return sympy.Integer(value), value, value

    def combined(self, node: ast.BinOp) -> tuple[sympy.Expr, int, int]:
        (a, *of_a), (b, *of_b) = self.whole(node.left), self.whole(node.right)
        pairs = list(itertools.product(of_a, of_b))
        if isinstance(node.op, ast.Add):
            value, reached = a + b, [x + y for x, y in pairs]
        elif isinstance(node.op, ast.Sub):
            value, reached = a - b, [x - y for x, y in pairs]
        elif a.is_Integer or b.is_Integer:
            value, reached = a * b, [x * y for x, y in pairs]
        else:
            self.refuse("an index times an index cannot be an index", node)
        if max(map(abs, reached)) > MAX_TERMS:
            self.refuse(f"this reaches beyond {MAX_TERMS:,}", node)
        return value, min(reached), max(reached)


class _Words(StrPrinter):  # type: ignore[misc]
    def _print_element(self, node: element) -> str:
        return f"{node.array}[{', '.join(map(self._print, node.indices))}]"

    def _print_total(self, node: total) -> str:
        return f"sum({', '.join(map(self._print, node.args))})"

    def _print_product(self, node: product) -> str:
        return f"prod({', '.join(map(self._print, node.args))})"


def in_words(expression: sympy.Expr) -> str:
    """Return an expression as a user would write it."""
    return str(_Words().doprint(expression))


def whole_text(index: sympy.Expr, names: Mapping[str, str]) -> str:
    """Return a whole-number index as text, for C and Python alike."""
    terms = []
    counts = index.as_coefficients_dict()
    for part in sorted(counts, key=lambda part: (bool(part.is_Integer), str(part))):
        number = int(counts[part])
        if part.is_Integer:
            terms.append(str(number * int(part)))
        else:
            terms.append(names[part.name] if number == 1 else f"{number}*{names[part.name]}")
    return " + ".join(terms).replace("+ -", "- ") or "0"
