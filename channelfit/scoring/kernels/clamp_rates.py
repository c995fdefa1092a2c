"""Rates and drives of a clamped channel at the membrane potential, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from channelfit.model.channel import GREATEST_GAIN, RATE_CEILING, RATE_FLOOR
from channelfit.model.terms import V, exprel, exprel_slope
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE
from channelfit.scoring.kernels.clamp_current import Current
from channelfit.scoring.kernels.clamp_rows import CIRCUIT, ClampRows, circuit_of
from channelfit.scoring.kernels.derivatives import Definitions, derivatives
from channelfit.scoring.kernels.printer import assignments
from channelfit.scoring.kernels.tangent_tables import STEEPEST


class ClampRates(ClampRows):
    """The functions circuit, start and within."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._n_slopes = 0
        self._prepare()

    def _prepare(self) -> None:
        """Derive rates and drives: by the voltage, twice, and by parameters."""
        model = self.model
        drives = [term.drive for term in model.terms]
        values = [t.rate for t in self.transitions] + drives
        definitions = model.definitions
        if not self.free:  # the second derivatives that others need are there of exprel alone
            values = [_without_exprel(e) for e in values]
            definitions = tuple((key, _without_exprel(e)) for key, e in definitions)
        names = [model.parameters[k].name for k in self.free]
        grown, first = derivatives(definitions, values, [V.name])
        slopes = [row.get(0, sympy.Integer(0)) for row in first]
        if names:
            self._prepare_tangents(grown, values, slopes, names)
        self._grown1 = self._inverted_all(grown)
        self._values = [self._inverted(e) for e in values]
        self._slopes = [self._inverted(e) for e in slopes]
        self.rows.add("inverse", len(self._inverses))

    def _prepare_tangents(
        self,
        grown: Definitions,
        values: list[sympy.Expr],
        slopes: list[sympy.Expr],
        names: list[str],
    ) -> None:
        grown_by, by = derivatives(grown, values, names)
        grown2, second = derivatives(grown, slopes, [V.name, *names])
        self._grown_by, self._grown2 = self._inverted_all(grown_by), self._inverted_all(grown2)
        self._by = [{k: self._inverted(e) for k, e in row.items()} for row in by]
        self._bends = [self._inverted(row.get(0, sympy.Integer(0))) for row in second]
        self._slopes_by = [
            {k - 1: self._inverted(e) for k, e in row.items() if k} for row in second
        ]

    def _inverted_all(self, definitions: Definitions) -> Definitions:
        return tuple((key, self._inverted(e)) for key, e in definitions)

    def _circuit(self) -> None:
        """Write circuit: its constants and their derivatives, from the parameters."""
        t, expressions = self.t, circuit_of(self.clamp)
        names = [self.model.parameters[k].name for k in self.free]
        _, slopes = derivatives((), expressions, names)
        printer = self._printer((), "0.0")
        with t.function("circuit", "The constants of the circuit."):
            for row, expression in enumerate(expressions):
                t.put(self.a("c", row), printer.text(expression))
            for row, base in enumerate(self._inverses):
                t.put(self.a("inverse", row), f"1.0/({printer.text(base)})")
            for place in range(len(names)):
                for row, known in enumerate(slopes):
                    slope = printer.text(known[place]) if place in known else "0.0"
                    t.put(self._full("c", row, place), slope)
            tests = [f"{self.a('c', name)} >= 0.0" for name in CIRCUIT if name in _NOT_NEGATIVE]
            tests += [f"{self.a('c', 'fraction')} <= 1.0"]
            tests += [f"abs({self.a('c', name)}) < {GREATEST_GAIN!r}" for name in CIRCUIT]
            t.put(self.a("status"), self._all_of(tests, self.a("status"), str(float(NOT_FINITE))))

    def _inverted(self, expression: sympy.Expr) -> sympy.Expr:
        """Return an expression in which what is divided by and no voltage is in has a row."""
        constants = {p.name for p in self.model.parameters}

        def inverse(base: sympy.Expr) -> sympy.Expr | None:
            if not {s.name for s in base.free_symbols} <= constants:
                return None
            if base not in self._inverses:
                self._inverses.append(base)
            return sympy.Symbol(f"inverse {self._inverses.index(base)}", real=True)

        return _with_inverses(expression, inverse)

    def _all_of(self, tests: Sequence[str], yes: str, no: str) -> str:
        both = f" {self.t.dialect.words[0]} "
        text = both.join(f"({test})" for test in tests)
        return self.t.choose(text.replace("abs(", self._absolute()), yes, no)

    def _voltage(self, name: str, block: str, slope: str, starts: bool, first: int = 0) -> None:
        """Write the rates and drives at the membrane potential, with the derivatives needed.

        Arguments:
            first: the first row; from `n_rates` on they are the drives alone.
        """
        t, derived, rows = self.t, bool(self.free), range(first, self.n_u)
        expressions = [*self._values[first:]]
        with_slopes = starts or derived
        expressions += self._slopes[first:] if with_slopes else []
        definitions: Definitions = self._grown1
        if derived:
            expressions += [e for row in self._by[first:] for e in row.values()]
            definitions = self._grown_by
        if derived and starts:
            expressions += self._bends[first:]
            expressions += [e for row in self._slopes_by[first:] for e in row.values()]
            known = {key for key, _ in definitions}
            definitions = (*definitions, *(d for d in self._grown2 if d[0] not in known))
        steps, results = _divided_once(*assignments(definitions, expressions))
        left = iter(results)
        with t.function(name, f"Rates and drives at the membrane potential of {block}."):
            t.let("v", self.a(block, self.at_v))
            printer = self._printer(definitions, "v")
            for step, expression in steps:
                t.let(printer.names.get(step, step), printer.text(expression))
            t.let("flag", self.a("status"))
            flag = "flag"
            for row in rows:
                flag = self._bounded(row, printer.text(next(left)), flag)
            for k, chain in enumerate(self.model.chains):
                if chain.linear and not first:
                    up, down = (self.a("u", self.first_rate[k] + i) for i in (0, 1))
                    t.let(f"linear{k}", t.choose(f"{up} + {down} <= 0.0", _NEGATIVE, flag))
                    flag = f"linear{k}"
            t.put(self.a("status"), t.choose("flag == 0.0", flag, "flag"))
            if with_slopes:
                for row in rows:
                    t.put(self.a(slope, row), self._inside(row, printer.text(next(left))))
            if not derived:
                return
            for row in rows:
                for place in self._by[row]:
                    text = self._inside(row, printer.text(next(left)))
                    t.put(self._full("by", row, place), text)
            if starts:
                for row in rows:
                    t.put(self.a("bend", row), self._inside(row, printer.text(next(left))))
                for row in rows:
                    for place in self._slopes_by[row]:
                        text = self._inside(row, printer.text(next(left)))
                        t.put(self._full("slope_by", row, place), text)

    def _bounded(self, row: int, text: str, flag: str) -> str:
        """Store a rate within its bounds, or a drive; return the name of the status after it."""
        t = self.t
        t.let(f"r{row}", text)
        if row >= self.n_rates:
            t.let(
                f"flag{row}",
                t.choose(f"{self._absolute()}r{row}) < {GREATEST_GAIN!r}", flag, _UNDEFINED),
            )
            t.put(self.a("u", row), f"r{row}")
            t.let(f"times{row}", "1.0")
            return f"flag{row}"
        transition = self.transitions[row]
        least = -RATE_CEILING if transition.signed else RATE_FLOOR
        t.let(f"q{row}", t.choose(f"r{row} > {least!r}", f"r{row}", repr(least)))
        t.let(f"b{row}", t.choose(f"q{row} < {RATE_CEILING!r}", f"q{row}", repr(RATE_CEILING)))
        t.put(self.a("u", row), f"{float(transition.multiplicity)!r}*b{row}")
        t.let(
            f"times{row}",
            t.choose(f"b{row} == r{row}", repr(float(transition.multiplicity)), "0.0"),
        )
        if not transition.signed:
            t.let(f"sign{row}", t.choose(f"r{row} < 0.0", _NEGATIVE, flag))
            flag = f"sign{row}"
        t.let(f"flag{row}", t.choose(f"r{row} == r{row}", flag, _UNDEFINED))
        return f"flag{row}"

    def _inside(self, row: int, text: str) -> str:
        """Return a derivative of a rate: 0 where the rate is at a bound or the slope is NaN."""
        if row >= self.n_rates:
            return text
        self._n_slopes += 1
        self.t.let(f"slope{self._n_slopes}", text)
        tame = f"{self._absolute()}slope{self._n_slopes}) < {STEEPEST!r}"
        return self.t.choose(tame, f"slope{self._n_slopes}*times{row}", "0.0")

    def _current(self, of: Callable[[int], str]) -> Current:
        """Name the open probability of each chain at some occupancies; return the current."""
        for k, chain in enumerate(self.model.chains):
            self.t.let(f"o{k}", f"{chain.conductances[0]!r} + {self._projected(k, of)}")
        return Current(self.model, lambda j: self.a("u", self.n_rates + j))


class bernoulli(sympy.Function):  # type: ignore[misc]
    """x/(exp(x) - 1), the inverse of exprel."""

    nargs = 1
    is_real = True
    is_positive = True

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        """Return the derivative, as a function."""
        return bernoulli_slope(self.args[0])


class bernoulli_slope(sympy.Function):  # type: ignore[misc]
    """d bernoulli(x)/dx."""

    nargs = 1
    is_real = True


#: What `_with_inverses` builds anew.
_PLAIN = (
    sympy.Add,
    sympy.Mul,
    sympy.Pow,
    sympy.exp,
    exprel,
    exprel_slope,
    bernoulli,
    bernoulli_slope,
)


def _without_exprel(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression with bernoulli(x) in place of 1/exprel(x)."""

    def inverse(base: sympy.Expr) -> sympy.Expr | None:
        return bernoulli(*base.args) if isinstance(base, exprel) else None

    return _with_inverses(expression, inverse)


def _divided_once(
    steps: Sequence[tuple[str, sympy.Expr]], results: Sequence[sympy.Expr]
) -> tuple[list[tuple[str, sympy.Expr]], list[sympy.Expr]]:
    """Return shared parts and results in which nothing is divided by twice."""
    inverses: dict[sympy.Expr, sympy.Symbol] = {}
    out: list[tuple[str, sympy.Expr]] = []

    def inverse(base: sympy.Expr) -> sympy.Expr:
        if base not in inverses:
            inverses[base] = sympy.Symbol(f"per_{len(inverses)}", real=True)
            out.append((inverses[base].name, 1 / base))
        return inverses[base]

    for name, expression in steps:
        divided = _with_inverses(expression, inverse)
        out.append((name, divided))
    return out, [_with_inverses(expression, inverse) for expression in results]


def _with_inverses(
    node: sympy.Expr, inverse: Callable[[sympy.Expr], sympy.Expr | None]
) -> sympy.Expr:
    """Return sums, products and functions with inverses in place of what they divide by.

    What is computed under a condition stays as it is.
    """
    if not isinstance(node, _PLAIN):
        return node
    args = [_with_inverses(arg, inverse) for arg in node.args]
    if isinstance(node, sympy.Pow) and args[1].is_Integer and args[1] < 0 and args[0].free_symbols:
        found = inverse(args[0])
        if found is not None:
            return found ** -args[1]
    return node.func(*args) if args != list(node.args) else node


_NOT_NEGATIVE = ("resistance", "charging", "fraction", "lag", "tracking", "leak", "delay")
_NEGATIVE, _UNDEFINED = str(float(NEGATIVE_RATE)), str(float(NOT_FINITE))
