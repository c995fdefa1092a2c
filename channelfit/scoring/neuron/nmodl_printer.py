"""Prints SymPy expressions as NMODL.

This printer shares nothing with the printer of the other backends, so that a comparison with NEURON
can find a mistake in either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
from sympy.printing.codeprinter import CodePrinter
from sympy.printing.precedence import PRECEDENCE, precedence

from channelfit.model.terms import V

#: Functions that NMODL lacks.
LIBRARY = {
    "exprel": """\
FUNCTION exprel(x) {   : (exp(x) - 1)/x without the loss of digits near 0
    if (x == 0) {
        exprel = 1
    } else {
        exprel = exp(x/2)*sinh(x/2)/(x/2)
    }
}
""",
    "smaller": """\
FUNCTION smaller(x, y) {
    smaller = x
    if (y < x) { smaller = y }
}
""",
    "larger": """\
FUNCTION larger(x, y) {
    larger = x
    if (y > x) { larger = y }
}
""",
}


@dataclass
class Functions:
    """The FUNCTION blocks that printed expressions need, by name.

    library: all functions; blocks: those that are needed.
    """

    library: Mapping[str, str] = field(default_factory=lambda: LIBRARY)
    blocks: dict[str, str] = field(default_factory=dict)

    def need(self, name: str) -> str:
        """Add a function of the library, and return its name."""
        self.blocks[name] = self.library[name]
        return name


class NmodlPrinter(CodePrinter):  # type: ignore[misc]
    """Prints SymPy expressions as NMODL.

    A conditional expression becomes a FUNCTION block, because NMODL has no conditional value.

    Arguments:
        names: the names in the file, by those in the expressions.
        local: names that stand for LOCAL variables, which a FUNCTION block cannot see.
        functions: takes the FUNCTION blocks that are needed.
    """

    language = "NMODL"
    #: Words of the language, which one derived from it may have others for.
    AND, OR, NOT, TRUE, FALSE, ABS = "&&", "||", "!", "1", "0", "fabs"

    def __init__(
        self,
        names: Mapping[str, str],
        local: Iterable[str] = (),
        functions: Functions | None = None,
    ) -> None:
        super().__init__({"order": "none"})
        self.names, self.local = names, frozenset(local)
        self.functions = functions if functions is not None else Functions()

    def operand(self, expression: sympy.Expr) -> str:
        """Return the expression in NMODL, in parentheses where a product needs them."""
        return self._operand(expression, PRECEDENCE["Mul"])

    def text(self, expression: sympy.Expr) -> str:
        """Return the expression in NMODL."""
        return str(self._print(expression))

    def _print_Symbol(self, node: sympy.Symbol) -> str:
        return str(self.names.get(node.name, node.name))

    def _print_Float(self, node: sympy.Float) -> str:
        return number(float(node))

    def _print_Integer(self, node: sympy.Integer) -> str:
        return str(int(node))

    def _print_Rational(self, node: sympy.Rational) -> str:
        return f"{node.p}.0/{node.q}.0"

    def _print_NumberSymbol(self, node: sympy.Expr) -> str:
        return number(float(node))

    _print_Exp1 = _print_Pi = _print_NumberSymbol

    def _print_Add(self, node: sympy.Add, order: str | None = None) -> str:
        # Sums are written as people write them: v - 5, not -5 + v.
        # Each term is printed once only: printed twice, nested sums would take ages.
        printed = [(term.is_number, str(self._print(term))) for term in node.args]
        (_, text), *others = sorted(printed, key=lambda term: (term[0], term[1].startswith("-")))
        for _, part in others:
            text += f" - {part[1:]}" if part.startswith("-") else f" + {part}"
        return text

    def _print_Mul(self, node: sympy.Mul) -> str:
        sign, over, under = "", [], []
        for factor in sorted(node.args, key=lambda a: a == V):
            if isinstance(factor, sympy.Rational):
                sign = "-" if (factor.p < 0) != (sign == "-") else ""
                over += [sympy.Integer(abs(factor.p))] if abs(factor.p) != 1 else []
                under += [sympy.Integer(factor.q)] if factor.q != 1 else []
            elif isinstance(factor, sympy.Pow) and factor.exp.is_number and factor.exp.is_negative:
                under.append(
                    sympy.Pow(factor.base, -factor.exp, evaluate=False)
                    if factor.exp != -1
                    else factor.base
                )
            else:
                over.append(factor)
        level = PRECEDENCE["Mul"]
        text = sign + ("*".join(self._operand(f, level) for f in over) or "1")
        if not under:
            return text
        divisor = "*".join(self._operand(f, level) for f in under)
        single = len(under) == 1 and not isinstance(under[0], sympy.Mul)
        return f"{text}/{divisor}" if single else f"{text}/({divisor})"

    def _operand(self, node: sympy.Expr, level: int) -> str:
        text = str(self._print(node))
        bare = precedence(node) > level or (precedence(node) == level and "/" not in text)
        return text if bare and not text.startswith("-") else f"({text})"

    def _print_Pow(self, node: sympy.Pow, rational: bool = False) -> str:
        base, exponent = node.args
        if exponent == sympy.S.Half:
            return f"sqrt({self._print(base)})"
        if exponent.is_number and exponent.is_negative:
            power = sympy.Pow(base, -exponent, evaluate=False) if exponent != -1 else base
            return f"1/{self._operand(power, PRECEDENCE['Mul'] + 1)}"
        # A power of a power gets parentheses, so that the reader need not know which comes first.
        below, above = (self._operand(part, PRECEDENCE["Pow"] + 1) for part in (base, exponent))
        return f"{below}^{above}"

    def _print_ExpBase(self, node: sympy.Function) -> str:
        return f"{type(node).__name__}({self._print(node.args[0])})"

    _print_exp = _print_log = _print_tanh = _print_ExpBase

    def _print_Abs(self, node: sympy.Function) -> str:
        return f"{self.ABS}({self._print(node.args[0])})"

    def _print_exprel(self, node: sympy.Function) -> str:
        return f"{self.functions.need('exprel')}({self._print(node.args[0])})"

    def _print_Function(self, node: sympy.Function) -> str:
        raise TypeError(f"NMODL has no {type(node).__name__}")

    def _print_Min(self, node: sympy.Min) -> str:
        return self._nested("smaller", node.args)

    def _print_Max(self, node: sympy.Max) -> str:
        return self._nested("larger", node.args)

    def _nested(self, function: str, arguments: Sequence[sympy.Expr]) -> str:
        text = str(self._print(arguments[0]))
        for argument in arguments[1:]:
            text = f"{self.functions.need(function)}({text}, {self._print(argument)})"
        return text

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        # A FUNCTION sees PARAMETERs, but neither v nor the LOCALs of the procedure that calls it.
        seen = {s.name for s in node.free_symbols} & {*self.local, V.name}
        arguments = ", ".join(sorted(self.names.get(s, s) for s in seen)) or "unused"
        branches = [(self._print(b.cond), self._print(b.expr)) for b in node.args]
        name = f"choice{sum(n.startswith('choice') for n in self.functions.blocks) + 1}"
        lines, indent = [f"FUNCTION {name}({arguments}) {{"], "    "
        for condition, value in branches:
            if condition == self.TRUE:
                lines.append(f"{indent}{name} = {value}")
                break
            lines += [
                f"{indent}if ({condition}) {{",
                f"{indent}    {name} = {value}",
                f"{indent}}} else {{",
            ]
            indent += "    "
        while len(indent) > 4:
            indent = indent[:-4]
            lines.append(f"{indent}}}")
        self.functions.blocks[name] = "\n".join([*lines, "}", ""])
        return f"{name}({'0' if arguments == 'unused' else arguments})"

    def _print_Relational(self, node: sympy.Basic) -> str:
        return f"({self._print(node.lhs)}) {node.rel_op} ({self._print(node.rhs)})"

    def _print_And(self, node: sympy.Basic) -> str:
        return f" {self.AND} ".join(f"({self._print(a)})" for a in node.args)

    def _print_Or(self, node: sympy.Basic) -> str:
        return f" {self.OR} ".join(f"({self._print(a)})" for a in node.args)

    def _print_Not(self, node: sympy.Basic) -> str:
        return f"{self.NOT}({self._print(node.args[0])})"

    def _print_BooleanTrue(self, node: sympy.Basic) -> str:
        return self.TRUE

    def _print_BooleanFalse(self, node: sympy.Basic) -> str:
        return self.FALSE


def number(value: float) -> str:
    """Return the shortest text that is read as the same float64."""
    if not math.isfinite(value):
        raise ValueError(f"NMODL cannot hold {value}")
    text = repr(float(value))
    return text.removesuffix(".0")
