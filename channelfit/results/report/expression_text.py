"""Expressions as text: as they could stand in a model file, and as math text for Matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

from channelfit.model.terms import V, exprel

#: The voltage while it is printed: a name that sorts last, so that products read z v.
_LAST = sympy.Symbol("zzzz_v", real=True)


def text(expression: sympy.Expr) -> str:
    """Return an expression as it could stand in a model file; v comes last in products."""
    printed = _PlainPrinter().doprint(_readable(expression).xreplace({V: _LAST}))
    return str(printed).replace(_LAST.name, "v").replace("**", "^")


def math_text(expression: sympy.Expr) -> str:
    """Return an expression as Matplotlib's math text, without the dollar signs."""
    names = {s: math_symbol(s.name) for s in expression.free_symbols}
    printer = _MathPrinter({"symbol_names": {**names, _LAST: "v"}, "mul_symbol": r"\,"})
    printed = printer.doprint(_readable(expression).xreplace({V: _LAST}))
    return str(printed).replace(r"\frac", r"\dfrac")


def math_symbol(name: str) -> str:
    """Return a name as math text: a12 has a subscript, as gmax has; alpha is the letter."""
    match = re.fullmatch(r"(alpha|beta|gamma|delta|tau|mu|kappa|[A-Za-z])_?(\w*)", name)
    if not match:
        return rf"\mathrm{{{name}}}".replace("_", r"\_")
    letter = match[1] if len(match[1]) == 1 else rf"\{match[1]}"
    rest = match[2].replace("_", r"\_")
    return rf"{letter}_{{\mathrm{{{rest}}}}}" if rest else letter


class _PlainPrinter(StrPrinter):  # type: ignore[misc]
    """Text in the notation of model files, numbers with six digits at most."""

    def _print_Piecewise(self, expr: sympy.Expr) -> str:
        parts = []
        for value, condition in expr.args:
            last = condition == sympy.true
            parts.append(self._print(value) + ("" if last else f" if {self._print(condition)}"))
        return f"({' else '.join(parts)})"

    def _lowercase(self, expr: sympy.Expr) -> str:
        return f"{type(expr).__name__.lower()}({', '.join(map(self._print, expr.args))})"

    _print_Max = _print_Min = _print_Abs = _lowercase

    def _print_Float(self, expr: sympy.Float) -> str:
        return f"{float(expr):.6g}"

    def _as_ordered_terms(self, expr: sympy.Expr, order: object = None) -> list[sympy.Expr]:
        return _positive_first(super()._as_ordered_terms(expr, order))


class _MathPrinter(LatexPrinter):  # type: ignore[misc]
    """LaTeX that Matplotlib can set: short exponents on one line, other fractions as fractions."""

    def _as_ordered_terms(self, expr: sympy.Expr, order: object = None) -> list[sympy.Expr]:
        return _positive_first(super()._as_ordered_terms(expr, order))

    def _print_Piecewise(self, expr: sympy.Expr) -> str:
        parts = []
        for value, condition in expr.args:
            parts.append(self._print(value))
            if condition != sympy.true:
                parts.append(rf"\ \mathrm{{if}}\ {self._print(condition)}\ \mathrm{{else}}\ ")
        return "".join(parts)

    def _print_exp(self, expr: sympy.Expr, exp: str | None = None) -> str:
        before, self._settings["fold_short_frac"] = self._settings["fold_short_frac"], True
        power = f"e^{{{self._print(expr.args[0])}}}"
        self._settings["fold_short_frac"] = before
        return power if exp is None else rf"\left({power}\right)^{{{exp}}}"


def _positive_first(terms: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """Return the terms of a sum in the order in which a person writes them: v - v0, not -v0 + v."""
    return sorted(terms, key=lambda term: bool(term.could_extract_minus_sign()))


def _readable(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression for reading: exprel as its quotient, 2 for 2.0, six digits at most.

    Where one exprel stands inside another, all stay as they are: each quotient holds its argument
    twice, so that the text would double with every level.
    """

    def quotient(u: sympy.Expr) -> sympy.Expr:
        if u.could_extract_minus_sign():
            return (1 - sympy.exp(u)) / (-u)
        return (sympy.exp(u) - 1) / u

    nested = any(inner.args[0].has(exprel) for inner in expression.atoms(exprel))
    expanded = expression if nested else expression.replace(exprel, quotient)
    swap = {}
    for number in expanded.atoms(sympy.Float):
        value = float(number)
        if not math.isfinite(value):  # exp(1e9), which SymPy knows and float64 does not
            continue
        whole = value == int(value) and abs(value) < 1e6
        swap[number] = sympy.Integer(int(value)) if whole else sympy.Float(f"{value:.6g}")
    return expanded.xreplace(swap)
