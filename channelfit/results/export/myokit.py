"""A channel in Myokit's language (.mmt), with units that Myokit's strict check accepts.

Currents are those of the whole cell, in pA. A number that stands for a voltage or a rate gets the
unit that its place asks for, such as ``18 [mV]`` in ``exp(V / 18 [mV])``; where there is no number
to bear it, a factor of 1 does.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import sympy
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import And, Not, Or

from channelfit.model.channel import (
    CELSIUS,
    FARADAY,
    GAS_CONSTANT,
    ZERO_CELSIUS,
    Chain,
    Term,
)
from channelfit.model.terms import V, exprel, sum_of
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.provenance import one_line
from channelfit.results.export.subject import Subject
from channelfit.scoring.neuron.nmodl import is_gate, opened
from channelfit.scoring.neuron.nmodl_printer import number
from channelfit.scoring.neuron.oracle import steady_state

#: Exponents of ms, mV, pA, mM and um.
_Unit = tuple[Fraction, ...]
_SYMBOLS = ("ms", "mV", "pA", "mM", "um")


def _unit(**powers: int) -> _Unit:
    return tuple(Fraction(powers.get(symbol, 0)) for symbol in _SYMBOLS)


_PURE, _TIME, _VOLTAGE, _CURRENT = _unit(), _unit(ms=1), _unit(mV=1), _unit(pA=1)
_RATE, _CONDUCTANCE = _unit(ms=-1), _unit(pA=1, mV=-1)
_OF_BASE = {
    "ms": _TIME,
    "mV": _VOLTAGE,
    "pA": _CURRENT,
    "1/ms": _RATE,
    "1/mV": _unit(mV=-1),
    "1/(ms mV)": _unit(ms=-1, mV=-1),
    "nS": _CONDUCTANCE,
    "mM": _unit(mM=1),
    "1/mM/ms": _unit(mM=-1, ms=-1),
    "um3/ms": _unit(um=3, ms=-1),
    "um2": _unit(um=2),
    "pF": _unit(pA=1, ms=1, mV=-1),
    "MOhm": _unit(mV=1, pA=-1),
}
_CONCENTRATION, _PERMEABILITY = _OF_BASE["mM"], _OF_BASE["um3/ms"]
#: Below this magnitude (exp(x) - 1)/x is written by its series, whose error there is 4e-14.
_NEAR = "1e-4"
_FUNCTIONS = {sympy.exp: "exp", sympy.log: "log"}
_RESERVED = frozenset(
    [
        *("and", "or", "not", "in", "use", "as", "bind", "label", "infinity", "nan", "if", "dot"),
        *("piecewise", "partial", "diff", "init", "sqrt", "sin", "cos", "tan", "asin", "acos"),
        *(
            "atan",
            "exp",
            "log",
            "log10",
            "floor",
            "ceil",
            "abs",
            "polynomial",
            "spline",
            "opiecewise",
        ),
        *("V", "pace", "time", "membrane", "inf"),
    ]
)
#: How tightly a text binds: a sum, a product, anything that needs no brackets.
_SUM, _PRODUCT, _POWER, _ATOM = range(4)


def myokit(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as the text of a .mmt file: a model, and a protocol of one step."""
    return _Model(subject, settings.suffix).text()


# --- expressions


@dataclass(frozen=True)
class _Text:
    """An expression as text, how tightly it binds, and its unit."""

    text: str
    binds: int
    unit: _Unit

    def within(self, level: int) -> str:
        """Return the text, in brackets where it binds less tightly than its place asks for."""
        return self.text if self.binds >= level and self.text[0] != "-" else f"({self.text})"


class _Expressions:
    """Writes expressions so that every sum, comparison and function gets units that agree.

    Arguments:
        names: of symbols, in the file.
        units: of these symbols.
        quotient: writes a variable that holds (exp(x) - 1)/x of a text, and returns its name.
    """

    def __init__(
        self, names: Mapping[str, str], units: Mapping[str, _Unit], quotient: Callable[[str], str]
    ) -> None:
        self.names, self.units, self.quotient = dict(names), dict(units), quotient
        self._done: dict[tuple[sympy.Basic, _Unit | None], _Text] = {}

    def text(self, node: sympy.Expr, unit: _Unit) -> str:
        """Return an expression that has a unit."""
        return self.of(node, unit).text

    def of(self, node: sympy.Expr, requested: _Unit | None = None) -> _Text:
        """Return an expression, in the requested unit; each is written once."""
        if (node, requested) not in self._done:
            self._done[node, requested] = self._written(node, requested)
        return self._done[node, requested]

    def _written(self, node: sympy.Expr, requested: _Unit | None) -> _Text:
        if isinstance(node, sympy.Mul):
            return self._product(node, requested)
        if node.is_number and not node.args:
            return _bearing(number(float(node)), requested or _PURE)
        if isinstance(node, sympy.Add):
            return self._sum(node, requested)
        if isinstance(node, (sympy.Piecewise, sympy.Min, sympy.Max)):
            return self._chosen(node, requested)
        return _converted(self._other(node), requested)

    def _other(self, node: sympy.Expr) -> _Text:
        if isinstance(node, sympy.Symbol):
            return _Text(self.names[node.name], _ATOM, self.units[node.name])
        if isinstance(node, sympy.Pow):
            return self._power(node)
        if isinstance(node, sympy.Abs):
            inner = self.of(node.args[0])
            return _Text(f"abs({inner.text})", _ATOM, inner.unit)
        x = self.text(node.args[0], _PURE)
        if isinstance(node, exprel):
            return _Text(self.quotient(x), _ATOM, _PURE)
        if isinstance(node, sympy.tanh):
            return _Text(f"1 - 2 / (exp(2 * ({x})) + 1)", _SUM, _PURE)
        return _Text(f"{_FUNCTIONS[type(node)]}({x})", _ATOM, _PURE)

    def _power(self, node: sympy.Pow) -> _Text:
        base, exponent = node.args
        if not exponent.is_number:
            below, above = (self.of(part, _PURE).within(_ATOM) for part in (base, exponent))
            return _Text(f"{below}^{above}", _POWER, _PURE)
        inner = self.of(base)
        unit = tuple(x * Fraction(float(exponent)).limit_denominator(1000) for x in inner.unit)
        if exponent == sympy.S.Half:
            return _Text(f"sqrt({inner.text})", _ATOM, unit)
        if exponent.is_negative:
            whole = inner.within(_POWER)
            if exponent != -1:
                whole = f"{inner.within(_ATOM)}^{self.of(-exponent, _PURE).within(_ATOM)}"
            return _Text(f"1 / {whole}", _PRODUCT, unit)
        return _Text(
            f"{inner.within(_ATOM)}^{self.of(exponent, _PURE).within(_ATOM)}", _POWER, unit
        )

    def _product(self, node: sympy.Mul, requested: _Unit | None) -> _Text:
        negative, over, under = False, list[sympy.Expr](), list[sympy.Expr]()
        for factor in sorted(node.args, key=lambda a: a == V):
            if isinstance(factor, sympy.Rational):
                negative ^= factor.p < 0
                over += [sympy.Integer(abs(factor.p))] if abs(factor.p) != 1 else []
                under += [sympy.Integer(factor.q)] if factor.q != 1 else []
            elif isinstance(factor, sympy.Pow) and factor.exp.is_number and factor.exp.is_negative:
                inverse = -factor.exp
                under.append(factor.base if inverse == 1 else sympy.Pow(factor.base, inverse))
            else:
                over.append(factor)
        texts = {k: [self.of(f) for f in part] for k, part in enumerate((over, under))}
        unit = _total(texts[0], texts[1])
        if requested is not None and unit != requested:
            missing = _ratio(requested, unit)
            place = next(
                (
                    (k, j)
                    for k, part in enumerate((over, under))
                    for j, f in enumerate(part)
                    if f.is_number and not f.args
                ),
                None,
            )
            if place is None:
                texts[0].insert(0, _bearing("1", missing))
            else:
                k, j = place
                share = missing if k == 0 else _ratio(_PURE, missing)
                texts[k][j] = _bearing(texts[k][j].text, share)
            unit = requested
        above = " * ".join(t.within(_PRODUCT if k == 0 else _POWER) for k, t in enumerate(texts[0]))
        text = above or "1"
        for divisor in texts[1]:
            text += f" / {divisor.within(_POWER)}"
        return _Text(f"-{text}" if negative else text, _PRODUCT, unit)

    def _sum(self, node: sympy.Add, requested: _Unit | None) -> _Text:
        unit = requested if requested is not None else self._shared(node.args)
        parts = sorted(node.args, key=lambda part: part.is_number)
        texts = [self.of(part, unit).text for part in parts]
        texts.sort(key=lambda text: text.startswith("-"))
        whole = texts[0]
        for text in texts[1:]:
            whole += f" - {text[1:]}" if text.startswith("-") else f" + {text}"
        return _Text(whole, _SUM, unit)

    def _shared(self, parts: Iterable[sympy.Expr]) -> _Unit:
        """Return the unit of a sum or a choice: that of the first part which no number could
        correct.
        """
        for part in parts:
            correctable = any(f.is_number and f != -1 for f in sympy.Mul.make_args(part))
            if not correctable and (unit := self.of(part).unit) != _PURE:
                return unit
        return _PURE

    def _chosen(self, node: sympy.Expr, requested: _Unit | None) -> _Text:
        if isinstance(node, sympy.Piecewise):
            pairs = [pair for pair in node.args if isinstance(pair, ExprCondPair)]
            unit = self._shared(p.expr for p in pairs) if requested is None else requested
            text = "nan"
            for pair in reversed(pairs):
                value = self.text(pair.expr, unit)
                text = (
                    value
                    if pair.cond == sympy.true
                    else f"if({self._test(pair.cond)}, {value}, {text})"
                )
            return _Text(text, _ATOM if text.startswith("if(") else _SUM, unit)
        unit = self._shared(node.args) if requested is None else requested
        sign = "<" if isinstance(node, sympy.Min) else ">"
        text, *others = (self.text(part, unit) for part in node.args)
        for other in others:
            text = f"if({text} {sign} {other}, {text}, {other})"
        return _Text(text, _ATOM, unit)

    def _test(self, node: sympy.Basic) -> str:
        if isinstance(node, (And, Or)):
            word = " and " if isinstance(node, And) else " or "
            return word.join(f"({self._test(part)})" for part in node.args)
        if isinstance(node, Not):
            return f"not ({self._test(node.args[0])})"
        if node in (sympy.true, sympy.false):
            return "1 == 1" if node == sympy.true else "1 == 0"
        unit = self._shared((node.lhs, node.rhs))
        left, right = (self.of(side, unit).within(_PRODUCT) for side in (node.lhs, node.rhs))
        return f"{left} {node.rel_op} {right}"


def _bearing(text: str, unit: _Unit) -> _Text:
    return _Text(text if unit == _PURE else f"{text} [{unit_text(unit)}]", _ATOM, unit)


def _converted(found: _Text, requested: _Unit | None) -> _Text:
    if requested is None or found.unit == requested:
        return found
    factor = _bearing("1", _ratio(requested, found.unit))
    return _Text(f"{factor.text} * {found.within(_POWER)}", _PRODUCT, requested)


def _total(over: Iterable[_Text], under: Iterable[_Text]) -> _Unit:
    unit = _PURE
    for text in over:
        unit = tuple(a + b for a, b in zip(unit, text.unit, strict=True))
    for text in under:
        unit = _ratio(unit, text.unit)
    return unit


def _ratio(a: _Unit, b: _Unit) -> _Unit:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def unit_text(unit: _Unit) -> str:
    """Return a unit as Myokit writes it, without its brackets."""
    if unit == _CONDUCTANCE:
        return "nS"
    powers = dict(zip(_SYMBOLS, unit, strict=True))
    over = [s if p == 1 else f"{s}^{_power_text(p)}" for s, p in powers.items() if p > 0]
    under = [s if p == -1 else f"{s}^{_power_text(-p)}" for s, p in powers.items() if p < 0]
    return "/".join(["*".join(over) or "1", *under])


def _power_text(power: Fraction) -> str:
    return str(power) if power.denominator == 1 else repr(float(power))


# --- the file


class _Model:
    """Writes the file."""

    def __init__(self, subject: Subject, name: str | None) -> None:
        self.subject, self.channel = subject, subject.channel
        self.taken: set[str] = set(_RESERVED)
        self.component = self._claim(_word(name or self.channel.name))
        names = {V.name: "V"}
        units = {V.name: _VOLTAGE}
        self.state: dict[tuple[str, str], str] = {}
        for chain in self.channel.chains:
            for state in chain.states[1:] if is_gate(chain) else chain.states:
                self.state[chain.name, state] = self._claim(chain.name if is_gate(chain) else state)
        for p in self.channel.parameters:
            names[p.name] = self._claim(p.name)
            units[p.name] = _PURE if p.name == CELSIUS else _OF_BASE.get(p.unit, _PURE)
        self.writer = _Expressions(names, units, self._quotient)
        self.lines: list[str] = []
        self.quotients = 0

    def _claim(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def text(self) -> str:
        self._parameters()
        self._definitions()
        for chain in self.channel.chains:
            self._chain(chain)
        self._currents()
        body = [f"[{self.component}]", "use membrane.V", *self.lines]
        return "\n".join([*self._head(), *body, "", *self._protocol(), ""])

    # each of these adds lines

    def _head(self) -> list[str]:
        holding = number(self.subject.holding_mV)
        lines = ["[[model]]", f"name: {_safe(self.channel.name)}", 'desc: """']
        texts = [*self.subject.paragraphs(), *self._of_the_temperature()]
        for text in (*texts, "The current is that of the whole cell, in pA."):
            lines += [f"    {line}" for line in textwrap.wrap(_safe(text), 96)]
        lines += ['    """', f"# Initial values: the steady state at {holding} mV"]
        lines += [
            f"{self.component}.{name} = {number(value)}" for name, value in self._initial.items()
        ]
        lines += [
            "",
            "[membrane]",
            "time = 0 [ms] bind time",
            "    in [ms]",
            f"pace = {holding} [mV] bind pace",
            "    in [mV]",
            "    desc: the command of an ideal clamp",
            "V = pace label membrane_potential",
            "    in [mV]",
            "",
        ]
        return lines

    def _of_the_temperature(self) -> list[str]:
        temperature = self.subject.temperature_C
        if self.subject.warm:
            follows = f"the rates follow {self.writer.names[CELSIUS]}"
            return [f"Temperature: the values hold at {temperature:g} degC; {follows}."]
        held = self.subject.rates_hold_at()
        return [f"Temperature: {held}; they do not follow it."] if held else []

    @cached_property
    def _initial(self) -> dict[str, float]:
        """The steady state at the holding potential, by the name of a state."""
        values = self.channel.values()
        found = steady_state(self.channel, values, self.subject.holding_mV)
        at_once = {chain.name for chain in self.channel.chains if chain.instant}
        return {name: found[key] for key, name in self.state.items() if key[0] not in at_once}

    def _quotient(self, text: str) -> str:
        """Add the variable (exp(x) - 1)/x, which is 1 at 0, and returns its name."""
        self.quotients += 1
        x, name = (self._claim(f"{word}{self.quotients}") for word in ("x", "exprel"))
        near = f"1 + {x} / 2 * (1 + {x} / 3)"
        self.lines += [
            f"{x} = {text}",
            f"{name} = if(abs({x}) < {_NEAR}, {near}, (exp({x}) - 1) / {x})",
        ]
        return name

    def _add(self, name: str, expression: sympy.Expr, unit: _Unit) -> None:
        text = self.writer.text(expression, unit)  # which may add lines of its own
        self.lines.append(f"{name} = {text}")
        if unit != _PURE:
            self.lines.append(f"    in [{unit_text(unit)}]")

    def _parameters(self) -> None:
        for p in self.channel.parameters:
            name, unit = self.writer.names[p.name], self.writer.units[p.name]
            self._add(name, sympy.Float(p.value, 17), unit)
            known = self.subject.known.get(p.name)
            if p.name == CELSIUS:
                self.lines.append("    desc: temperature in degC")
            elif known and known.interval:
                low, high = known.interval
                self.lines.append(f"    desc: 95 % interval {low:.5g} to {high:.5g}")

    def _definitions(self) -> None:
        used = self.channel.used_names()
        for name, expression in self.channel.definitions:
            if name not in used:
                continue
            tie = next((t for t in self.channel.ties if t.name == name), None)
            stated = _OF_BASE.get(tie.unit) if tie and tie.unit else None
            found = self.writer.of(expression, stated)
            own = self._claim(name)
            self.writer.names[name], self.writer.units[name] = own, found.unit
            self._add(own, expression, found.unit)

    def _chain(self, chain: Chain) -> None:
        if chain.instant:
            assert chain.limit is not None
            self._add(self.state[chain.name, chain.states[1]], chain.limit, _PURE)
        elif is_gate(chain) and chain.limit is not None and chain.tau is not None:
            x = self.state[chain.name, chain.states[1]]
            inf, tau = (
                self._claim(f"{chain.name}_inf"),
                self._claim(f"{chain.name}_tau"),
            )
            self._add(inf, chain.limit, _PURE)
            self._add(tau, chain.tau, _TIME)
            self.lines.append(f"dot({x}) = ({inf} - {x}) / {tau}")
        else:
            self._scheme(chain)

    def _scheme(self, chain: Chain) -> None:
        """Add rates and flows; of a gate the way in which Hodgkin and Huxley wrote them."""
        gate, flows = is_gate(chain), dict.fromkeys(chain.states, "")
        for t in chain.transitions:
            opens = t.target == chain.states[1]
            rate = f"{'alpha' if opens else 'beta'}_{chain.name}"
            name = self._claim(rate if gate else f"k_{t.source}_{t.target}")
            self._add(name, t.rate, _RATE)
            if gate:
                x = self.state[chain.name, chain.states[1]]
                flow = f"{name} * (1 - {x})" if opens else f"{name} * {x}"
            else:
                count = f"{t.multiplicity} * " if t.multiplicity > 1 else ""
                flow = f"{count}{name} * {self.state[chain.name, t.source]}"
            flows[t.source] += f" - {flow}"
            flows[t.target] += f" + {flow}"
        for state in chain.states[1:] if gate else chain.states:
            whole = _led(flows[state]) if flows[state] else "0 [1/ms]"
            self.lines.append(f"dot({self.state[chain.name, state]}) = {whole}")

    def _currents(self) -> None:
        names = []
        for term in self.channel.terms:
            ending = (
                "" if len(self.channel.terms) == 1 or term.name == "current" else f"_{term.name}"
            )
            name = self._claim(f"i{ending}")
            names.append(name)
            opened_by = [opened(self.channel.chains[k], self.state, " * ") for k in term.chains]
            size_unit = _PERMEABILITY if term.ion else _CONDUCTANCE
            size = self.writer.of(term.size, size_unit).within(_POWER)
            parts = [size, *opened_by]
            if term.rectification is not None:
                bend = self._claim(f"rectification{ending}")
                self._add(bend, term.rectification, _PURE)
                parts.append(bend)
            parts.append(self._force(term, ending))
            self.lines += [f"{name} = {' * '.join(parts)}", "    in [pA]"]
        if len(names) > 1:
            self.lines += [
                f"{self._claim('i_total')} = {' + '.join(names)}",
                "    in [pA]",
            ]

    def _force(self, term: Term, ending: str) -> str:
        """Return the driving force of open channels."""
        if term.ion is None:
            assert term.reversal is not None
            if term.reversal.is_number:
                return f"({self.writer.text(sum_of(V, -term.reversal), _VOLTAGE)})"
            return f"(V - {self.writer.of(term.reversal, _VOLTAGE).within(_POWER)})"
        z, faraday = term.ion.valence, f"{1e-3 * FARADAY!r} [C/mmol]"
        u = self._claim(f"u{ending}")
        if term.ion.thermal is None:
            kelvin = f"({self.writer.names[CELSIUS]} + {ZERO_CELSIUS!r}) * 1 [K]"
            below = f"({GAS_CONSTANT!r} [mJ/mmol/K] * {kelvin})"
            self.lines.append(f"{u} = {z} * {faraday} * V / {below}")
        else:
            thermal = self.writer.of(term.ion.thermal, _VOLTAGE).within(_POWER)
            self.lines.append(f"{u} = {z} * V / {thermal}")
        inside, outside = (
            self.writer.of(x, _CONCENTRATION).within(_POWER)
            for x in (term.ion.inside, term.ion.outside)
        )
        inward, outward = self._quotient(f"-{u}"), self._quotient(u)
        drive = self._claim(f"ghk{ending}")
        self.lines += [
            f"{drive} = {z} * {faraday} * ({inside} / {inward} - {outside} / {outward})",
            "    in [C/mmol*mM]",
        ]
        return drive

    def _protocol(self) -> list[str]:
        holding = number(self.subject.holding_mV)
        return [
            "[[protocol]]",
            "# Level  Start    Length   Period   Multiplier",
            f"{holding} 0 100 0 0",
            "0 100 500 0 0",
            f"{holding} 600 400 0 0",
        ]


def _led(flows: str) -> str:
    """Return terms with signs as a sum that does not begin with a plus."""
    return (
        flows.removeprefix(" + ")
        if flows.startswith(" + ")
        else flows.strip().replace("- ", "-", 1)
    )


def _word(text: str) -> str:
    """Return a name for a component, made from any text."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in text).strip("_")
    return word if word[:1].isalpha() else f"channel_{word}"


def _safe(text: str) -> str:
    """Return the text as one line that cannot end the text in which it stands."""
    return one_line(text).replace("\\", "/").replace('"""', "'''").rstrip('"')
