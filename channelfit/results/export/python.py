"""A channel as a Python module that needs nothing but Python's own `math`.

What the module computes is exact for steps of voltage: a gate relaxes by one exponential, and a
scheme by the exponential of its matrix of rates.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable

import sympy
from sympy.functions.elementary.piecewise import ExprCondPair

from channelfit.model.channel import CELSIUS, FARADAY, GAS_CONSTANT, ZERO_CELSIUS, Chain, Term
from channelfit.model.terms import V
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.provenance import one_line
from channelfit.results.export.subject import Subject
from channelfit.scoring.neuron.nmodl import is_gate, rate_name
from channelfit.scoring.neuron.nmodl_printer import NmodlPrinter, number

#: Names that the module has for itself, and of Python that it uses.
_RESERVED = frozenset(
    [
        *keyword.kwlist,
        *("v", "p", "math", "exp", "log", "sqrt", "tanh", "nan", "abs", "min", "max", "sum", "len"),
        *("range", "zip", "list", "dict", "float", "exprel", "ghk", "rates", "steady_state"),
        *("open_probability", "currents", "simulate", "PARAMETERS", "CHAINS", "HOLDING"),
    ]
)


_COMMON = f'''\
def ghk(v, inside, outside, z, thermal):
    """The current (pA) of 1 um3/ms of permeability, after Goldman, Hodgkin and Katz.

    thermal is RT/F in mV.
    """
    u = z * v / thermal
    return 0.001 * z * {FARADAY!r} * (inside / exprel(-u) - outside / exprel(u))


def open_probability(occupancies):
    """The open probability of each chain, from the occupancies of all of them."""
    opened = {{}}
    for name, (_, sizes, power) in CHAINS.items():
        opened[name] = sum(x * s for x, s in zip(occupancies[name], sizes)) ** power
    return opened


def _settled(found, states):
    """The steady state of a chain, by leaving out one state after the other."""
    if not isinstance(found, dict):
        return [1 - found, found]
    n = len(states)
    if n == 2:
        a, b = found[states[0], states[1]], found[states[1], states[0]]
        return [b / (a + b), a / (a + b)]
    k = [[found.get((a, b), 0.0) for b in states] for a in states]
    for last in range(n - 1, 0, -1):
        out = sum(k[last][:last])
        for i in range(last):
            k[i][last] = k[i][last] / out
            for j in range(last):
                k[i][j] = k[i][j] + k[i][last] * k[last][j]
    x = [1.0]
    for j in range(1, n):
        x.append(sum(x[i] * k[i][j] for i in range(j)))
        top = max(x)
        x = [y / top for y in x]
    return [y / sum(x) for y in x]'''


def python(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as the text of a Python module."""
    return Module(subject).text()


class PythonPrinter(NmodlPrinter):
    """Prints SymPy expressions as Python, which is the language of model files too."""

    language = "Python"
    AND, OR, NOT, TRUE, FALSE, ABS = "and", "or", "not ", "True", "False", "abs"

    def _print_Pow(self, node: sympy.Pow, rational: bool = False) -> str:
        return str(super()._print_Pow(node, rational)).replace("^", "**")

    def _print_exprel(self, node: sympy.Function) -> str:
        return f"exprel({self._print(node.args[0])})"

    def _print_Min(self, node: sympy.Min) -> str:
        return f"min({', '.join(str(self._print(a)) for a in node.args)})"

    def _print_Max(self, node: sympy.Max) -> str:
        return f"max({', '.join(str(self._print(a)) for a in node.args)})"

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        text = "nan"
        for branch in reversed([b for b in node.args if isinstance(b, ExprCondPair)]):
            value = str(self._print(branch.expr))
            if branch.cond == sympy.true:
                text = value
            else:
                text = f"({value} if {self._print(branch.cond)} else {text})"
        return text


class Module:
    """Writes the module.

    Attributes:
        printer_class: writes expressions.
        library: the module from which functions are taken; of_library: those that it may need.
        reserved: names that the module has for itself.
        common: functions that need nothing of a library.
        doc, rest: the texts before and behind what is the channel's own.
    """

    printer_class: type[PythonPrinter] = PythonPrinter
    reserved = _RESERVED
    common = _COMMON
    library = "math"
    of_library: tuple[str, ...] = ("exp", "expm1", "log", "nan", "sqrt", "tanh")

    def __init__(self, subject: Subject) -> None:
        self.doc, self.rest = _DOC, _REST
        self.subject, self.channel = subject, subject.channel
        names = [p.name for p in self.channel.parameters]
        names += [name for name, _ in self.channel.definitions]
        self.taken = set(self.reserved)
        self.names = {name: self._claim(name) for name in names}
        self.printer = self.printer_class(self.names)

    def text(self) -> str:
        own = [self._parameters(), self._chains(), self._rates(), self._currents()]
        body = "\n\n\n".join([*own, self.common, self.rest])
        used = [name for name in self.of_library if re.search(rf"\b{name}\b", body)]
        return f"{self._head()}\n\nfrom {self.library} import {', '.join(used)}\n\n{body}"

    def _head(self) -> str:
        texts = [self.channel.name, *self.subject.paragraphs()]
        lines = [line for text in texts for line in textwrap.wrap(one_line(text), 96)]
        return "\n".join([*(f"# {line}" for line in lines), "", self.doc])

    def _parameters(self) -> str:
        rows = []
        for p in self.channel.parameters:
            known = self.subject.known.get(p.name)
            notes = [p.unit]
            if known and known.interval:
                notes.append(f"95 % {known.interval[0]:.5g} to {known.interval[1]:.5g}")
            notes.append("held fixed" if p.fixed and p.name != CELSIUS else "")
            note = ", ".join(filter(None, notes))
            assert p.value is not None
            rows.append(f'    "{p.name}": {number(p.value)},' + (f"  # {note}" if note else ""))
        return "\n".join(["PARAMETERS = {", *rows, "}"])

    def _chains(self) -> str:
        holding = number(self.subject.holding_mV)
        lines = [
            "# What opens and closes: the states, the relative conductance of each, and how many",
            "# of a kind must be open together.",
            "CHAINS = {",
        ]
        for chain in self.channel.chains:
            states = _tuple(f'"{s}"' for s in _states(chain))
            sizes = _tuple(number(c) for c in chain.conductances)
            lines.append(f'    "{chain.name}": ({states}, {sizes}, {chain.power}),')
        return "\n".join([*lines, "}", f"HOLDING = {holding}  # mV"])

    def _rates(self) -> str:
        lines, rows = list[str](), list[str]()
        for chain in self.channel.chains:
            own, found = self._chain(chain)
            lines += own
            rows += found
        expressions = [t.rate for c in self.channel.chains for t in c.transitions]
        head = [
            "def rates(v, p=PARAMETERS):",
            '    """The rates (1/ms) at a voltage (mV), by chain, and from and to which state.',
            "",
            "    A gate that follows the voltage at once has its open probability in their place.",
            '    """',
        ]
        body = [*head, *self._prepared(expressions), *lines, "    return {", *rows, "    }"]
        return "\n".join(body)

    def _chain(self, chain: Chain) -> tuple[list[str], list[str]]:
        """Return the lines that set the rates of a chain, and those that return them."""
        if chain.instant:
            return [], [f'        "{chain.name}": {self.printer.text(chain.limit)},']
        if is_gate(chain) and chain.limit is not None:
            inf, tau = self._claim(f"{chain.name}_inf"), self._claim(f"{chain.name}_tau")
            pairs = ((inf, chain.limit), (tau, chain.tau))
            lines = [f"    {name} = {self.printer.text(x)}" for name, x in pairs]
            texts = [f"{inf} / {tau}", f"(1 - {inf}) / {tau}"]
        else:
            names = [self._claim(rate_name(chain, k)) for k in range(len(chain.transitions))]
            pairs_of = zip(names, chain.transitions, strict=True)
            lines = [f"    {name} = {self.printer.text(t.rate)}" for name, t in pairs_of]
            counts = [t.multiplicity for t in chain.transitions]
            texts = [
                f"{n} * {name}" if n > 1 else name for n, name in zip(counts, names, strict=True)
            ]
        shown = dict(zip(chain.states, _states(chain), strict=True))
        rows = [f'        "{chain.name}": {{']
        for t, text in zip(chain.transitions, texts, strict=True):
            rows.append(f'            ("{shown[t.source]}", "{shown[t.target]}"): {text},')
        return lines, [*rows, "        },"]

    def _claim(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _prepared(self, expressions: Iterable[sympy.Expr]) -> list[str]:
        """Return the lines that set what expressions need: parameters and definitions."""
        used: set[str] = set()
        for name in {s.name for e in expressions for s in e.free_symbols}:
            used |= self.channel.names_behind(name)
        lines = [
            f'    {self.names[p.name]} = p["{p.name}"]'
            for p in self.channel.parameters
            if p.name in used
        ]
        return lines + [
            f"    {self.names[name]} = {self.printer.text(expression)}"
            for name, expression in self.channel.definitions
            if name in used
        ]

    def _currents(self) -> str:
        head = [
            "def currents(v, opened, p=PARAMETERS):",
            '    """The currents (pA) at a voltage (mV), by name; outward is positive.',
            "",
            "    opened: the open probability of each chain, as `open_probability` gives it.",
            '    """',
        ]
        expressions = [term.drive for term in self.channel.terms]
        rows = [f'        "{term.name}": {self._current(term)},' for term in self.channel.terms]
        return "\n".join([*head, *self._prepared(expressions), "    return {", *rows, "    }"])

    def _current(self, term: Term) -> str:
        parts = [self.printer.operand(term.size)]
        parts += [f'opened["{self.channel.chains[k].name}"]' for k in term.chains]
        if term.rectification is not None:
            parts.append(self.printer.operand(term.rectification))
        if term.ion is None:
            parts.append(f"({V.name} - {self.printer.operand(term.reversal)})")
        else:
            inside, outside = (self.printer.text(x) for x in (term.ion.inside, term.ion.outside))
            if term.ion.thermal is None:
                kelvin = f"{self.names[CELSIUS]} + {ZERO_CELSIUS!r}"
                thermal = f"{1e3 * GAS_CONSTANT!r} / {FARADAY!r} * ({kelvin})"
            else:
                thermal = self.printer.text(term.ion.thermal)
            parts.append(f"ghk(v, {inside}, {outside}, {term.ion.valence}, {thermal})")
        return " * ".join(parts)


def _tuple(texts: Iterable[str]) -> str:
    first, *others = texts
    return f"({', '.join([first, *others])})" if others else f"({first},)"


def _states(chain: Chain) -> tuple[str, ...]:
    return ("closed", "open") if is_gate(chain) else chain.states


_DOC = '''\
"""Rates, steady state and currents of an ion channel under steps of voltage.

Units are ms, mV, nS and pA. `simulate([(-80, 10), (20, 100), (-40, 50)])` gives the current under
three steps. Other values: `simulate(steps, p={**PARAMETERS, "NAME": VALUE})`.
"""'''
_REST = '''\
def exprel(x):
    """(exp(x) - 1)/x, which is 1 at 0."""
    return expm1(x) / x if x else 1.0


def steady_state(v, p=PARAMETERS):
    """The occupancies of each chain's states, in their order, at a voltage that stands still."""
    found = rates(v, p)
    return {name: _settled(found[name], states) for name, (states, _, _) in CHAINS.items()}


def simulate(steps, dt=0.1, holding=HOLDING, p=PARAMETERS):
    """The current under steps of voltage, from the steady state of the holding potential.

    steps: pairs of voltage (mV) and duration (ms).
    dt: ms between samples; one at a step belongs to the voltage after it.

    Returns times (ms) and currents (pA).
    """
    occupancies = steady_state(holding, p)
    times, found, start = [], [], 0.0
    for v, duration in steps:
        now, end, propagators = start, start + duration, {}
        while len(times) * dt < end - 1e-9 * dt:
            t = max(len(times) * dt, start)
            occupancies = _advanced(occupancies, v, t - now, p, propagators)
            times.append(len(times) * dt)
            found.append(sum(currents(v, open_probability(occupancies), p).values()))
            now = t
        occupancies = _advanced(occupancies, v, end - now, p, propagators)
        start = end
    return times, found


def _advanced(occupancies, v, h, p, propagators):
    """The occupancies after h ms at a voltage. `propagators` keeps what was computed, by h."""
    key = round(h, 9)
    if key not in propagators:
        found = rates(v, p)
        propagators[key] = {n: _propagator(found[n], CHAINS[n][0], h) for n in CHAINS}
    return {name: propagators[key][name](occupancies[name]) for name in CHAINS}


def _propagator(found, states, h):
    """The function from the occupancies of a chain to those h ms later."""
    if not isinstance(found, dict):
        return lambda _: [1 - found, found]
    if len(states) == 1:
        return lambda x: x
    if len(states) == 2:
        a, b = found[states[0], states[1]], found[states[1], states[0]]
        limit, left = a / (a + b), exp(-(a + b) * h)

        def relaxed(x):
            opened = limit + (x[1] - limit) * left
            return [1 - opened, opened]

        return relaxed
    matrix = _exponential(found, states, h)
    return lambda x: [sum(m * y for m, y in zip(row, x)) for row in matrix]


def _exponential(found, states, h):
    """The matrix that carries occupancies h ms on: the exponential of the rates times h.

    The series of exp(-q) exp(q (1 + A/q)) has no negative terms, so that no digits are lost.
    """
    n = len(states)
    a = [[h * found.get((source, target), 0.0) for source in states] for target in states]
    leaving = [sum(a[i][j] for i in range(n)) for j in range(n)]
    halvings = 0
    while max(leaving) > 0.5 * 2**halvings:
        halvings += 1
    q = 0.5
    step = [[a[i][j] / 2**halvings / q for j in range(n)] for i in range(n)]
    for j in range(n):
        step[j][j] += 1 - leaving[j] / 2**halvings / q
    term = [[exp(-q) * (i == j) for j in range(n)] for i in range(n)]
    total = [row[:] for row in term]
    for k in range(1, 18):
        term = [[x * q / k for x in row] for row in _product(term, step)]
        total = [[x + y for x, y in zip(*rows)] for rows in zip(total, term)]
    for _ in range(halvings):
        total = _product(total, total)
    return total


def _product(a, b):
    columns = list(zip(*b))
    return [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]
'''
