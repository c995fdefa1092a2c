"""The scheme of a model in plain words: states, and the rates between them as math text.

It is all that a drawing or a report needs of a model, and it can be sent to a process that has not
loaded SymPy, which loads slowly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import sympy
from sympy.printing.latex import LatexPrinter

from channelfit.model.channel import Chain, ChannelModel, Transition
from channelfit.model.terms import V, exprel
from channelfit.results.report.scheme_parts import ModelScheme, SchemeChain, SchemeStep
from channelfit.search.saved_fit import OF_THE_MODEL


def scheme_of(model: ChannelModel) -> ModelScheme:
    """Return the scheme of a model, or those of its gates."""
    return ModelScheme(
        model.name,
        model.source.partition(OF_THE_MODEL)[2] or model.source,
        tuple(_chain(chain) for chain in model.chains),
        tuple(f"{_symbol(name)} = {_tex(e)}" for name, e in model.definitions if name != "celsius"),
    )


def _chain(chain: Chain) -> SchemeChain:
    return SchemeChain(
        chain.name,
        chain.is_gate,
        chain.power,
        tuple(chain.states),
        tuple(bool(conductance) for conductance in chain.conductances),
        tuple(_step(transition) for transition in chain.transitions),
    )


def _step(t: Transition) -> SchemeStep:
    return SchemeStep(t.source, t.target, t.multiplicity, str(t.rate), _tex(t.rate))


class _Tex(LatexPrinter):  # type: ignore[misc]
    """LaTeX that Matplotlib can set: short exponents on one line, other fractions as fractions."""

    def _as_ordered_terms(self, expr: sympy.Expr, order: object = None) -> list[sympy.Expr]:
        return positive_first(super()._as_ordered_terms(expr, order))

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


def _tex(expression: sympy.Expr) -> str:
    """Return math text. v sorts last, so that products read z v."""
    names = {s: _symbol(s.name) for s in expression.free_symbols}
    last = sympy.Symbol("zzzz", real=True)
    shown = as_written(expression).xreplace({V: last})
    printer = _Tex({"symbol_names": {**names, last: "v"}, "mul_symbol": r"\,"})
    return str(printer.doprint(shown)).replace(r"\frac", r"\dfrac")


def positive_first(terms: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """Return the terms of a sum in the order in which a person writes them: v - v0, not -v0 + v."""
    return sorted(terms, key=lambda term: bool(term.could_extract_minus_sign()))


def _symbol(name: str) -> str:
    """Return a name as math text: a12 has a subscript, as gmax has; alpha is the letter."""
    match = re.fullmatch(r"(alpha|beta|gamma|delta|tau|mu|kappa|[A-Za-z])_?(\w*)", name)
    if not match:
        return rf"\mathrm{{{name}}}".replace("_", r"\_")
    letter = match[1] if len(match[1]) == 1 else rf"\{match[1]}"
    rest = match[2].replace("_", r"\_")
    return rf"{letter}_{{\mathrm{{{rest}}}}}" if rest else letter


def as_written(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression for reading: exprel as its quotient, 2 for 2.0, six digits at most.

    Where one exprel stands inside another, all stay as they are: each quotient holds its argument
    twice, so that the text would double with every level.
    """

    def quotient(u: sympy.Expr) -> sympy.Expr:
        if u.could_extract_minus_sign():
            return (1 - sympy.exp(u)) / (-u)
        return (sympy.exp(u) - 1) / u

    nested = any(inner.args[0].has(exprel) for inner in expression.atoms(exprel))
    shown = expression if nested else expression.replace(exprel, quotient)
    swap = {}
    for number in shown.atoms(sympy.Float):
        value = float(number)
        if not math.isfinite(value):  # exp(1e9), which SymPy knows and float64 does not
            continue
        whole = value == int(value) and abs(value) < 1e6
        swap[number] = sympy.Integer(int(value)) if whole else sympy.Float(f"{value:.6g}")
    return shown.xreplace(swap)
