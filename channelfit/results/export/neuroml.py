"""A channel in NeuroML 2: its gates or schemes, and rates of any form as LEMS ComponentTypes.

A rate that has one of NeuroML's own forms (HHExpRate, HHSigmoidRate, HHExpLinearRate, and the same
for steady states) is written so; any other becomes a ComponentType with the expression as its
Dynamics. Each current of a model is a channel of its own, whose conductance is that of the whole
cell; where the size of the cell is known, a cell of that size carries their densities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

import numpy as np
import sympy
from sympy.functions.elementary.piecewise import ExprCondPair

from channelfit.model.channel import CELSIUS, ZERO_CELSIUS, Chain, Term
from channelfit.model.evaluation import evaluate, exprel_values
from channelfit.model.terms import V, exprel, product
from channelfit.reading.errors import InputError
from channelfit.results.export.ions import ions_of
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.provenance import one_line
from channelfit.results.export.subject import SET_BY_THE_CELL, SPECIFIC_CAPACITANCE, Subject
from channelfit.scoring.neuron.nmodl import is_gate, rate_name
from channelfit.scoring.neuron.nmodl_printer import NmodlPrinter, number

_NAMESPACE = "http://www.neuroml.org/schema/neuroml2"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_SCHEMA = "https://raw.github.com/NeuroML/NeuroML2/development/Schemas/NeuroML2/NeuroML_v2.3.1.xsd"
#: Names with a meaning in LEMS, in its base types, and in each ComponentType of the file.
_WORDS = """
v t r x V MV MS KELVIN rate midpoint scale temperature exp log ln sqrt sin cos tan sinh cosh tanh
abs ceil factorial random H lt gt leq geq eq neq and or id type name e pi
"""
_RESERVED = frozenset(_WORDS.split())
#: Voltages (mV) at which one of NeuroML's forms must give the same, and how nearly.
_VOLTAGES, _SAME = np.linspace(-140.0, 100.0, 97), 1e-12
#: Below this magnitude (exp(x) - 1)/x is written by its series, whose error there is 2e-18.
_NEAR, _SERIES = "1e-3", "1 + {0}/2*(1 + {0}/3*(1 + {0}/4*(1 + {0}/5)))"
#: What a rate, a steady state and a time constant are in LEMS: base type, exposure, dimension, and
#: the factor that gives the number its dimension.
_ROLES = {
    "Rate": ("baseHHRate", "r", "per_time", "/MS"),
    "Variable": ("baseVoltageDepVariable", "x", "none", ""),
    "Time": ("baseVoltageDepTime", "t", "time", "*MS"),
}


def neuroml(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as the text of a NeuroML 2 file.

    Raises InputError: what NeuroML has no element for, by its name in the model.
    """
    return _Document(subject, settings).text()


class _LemsPrinter(NmodlPrinter):
    """Prints SymPy expressions as LEMS, which has no conditional values: they become variables.

    Arguments:
        conditional: writes a variable of cases (condition and value; no condition for the last),
            and returns its name.
    """

    language = "LEMS"
    AND, OR, ABS = ".and.", ".or.", "abs"

    def __init__(
        self,
        names: Mapping[str, str],
        conditional: Callable[[list[tuple[str | None, str]]], str],
        derived: Callable[[str], str],
    ) -> None:
        super().__init__(names)
        self.conditional, self.derived = conditional, derived

    def _print_Float(self, node: sympy.Float) -> str:
        return _number(float(node))

    def _print_NumberSymbol(self, node: sympy.Expr) -> str:
        return _number(float(node))

    _print_Exp1 = _print_Pi = _print_NumberSymbol

    def _print_log(self, node: sympy.Function) -> str:
        return f"ln({self._print(node.args[0])})"

    def _print_exprel(self, node: sympy.Function) -> str:
        x = self.derived(self._print(node.args[0]))
        cases = [(f"abs({x}) .lt. {_NEAR}", _SERIES.format(x)), (None, f"(exp({x}) - 1)/{x}")]
        return self.conditional(cases)

    def _print_Min(self, node: sympy.Min) -> str:
        return self._extreme(node, ".lt.")

    def _print_Max(self, node: sympy.Max) -> str:
        return self._extreme(node, ".gt.")

    def _extreme(self, node: sympy.Expr, sign: str) -> str:
        text, *others = (self.derived(self._print(part)) for part in node.args)
        for other in others:
            text = self.conditional([(f"{text} {sign} {other}", text), (None, other)])
        return text

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        cases = list[tuple[str | None, str]]()
        for branch in node.args:
            assert isinstance(branch, ExprCondPair)
            last = branch.cond == sympy.true
            cases.append((None if last else self._print(branch.cond), self._print(branch.expr)))
        if cases[-1][0] is not None:
            raise InputError("a rate has no value at some voltages, which LEMS cannot say")
        return self.conditional(cases)

    def _print_Relational(self, node: sympy.Basic) -> str:
        sign = _SIGNS[node.rel_op]
        return f"{self._operand(node.lhs, 0)} {sign} {self._operand(node.rhs, 0)}"

    def _print_Not(self, node: sympy.Basic) -> str:
        raise InputError(f"LEMS has no word for not, as in {one_line(str(node))}")


_SIGNS = {"<": ".lt.", ">": ".gt.", "<=": ".leq.", ">=": ".geq.", "==": ".eq.", "!=": ".neq."}


class _Document:
    """Writes the file."""

    def __init__(self, subject: Subject, settings: ExportSettings) -> None:
        self.subject, self.channel = subject, subject.channel
        self.name = _identifier(settings.suffix or self.channel.name)
        self.ions = ions_of(self.channel, settings.ions, subject.provenance.file)
        self.known = bool(subject.membranes) or settings.capacitance_pF is not None
        self.capacitance_pF = settings.capacitance_pF
        self.types = list[ElementTree.Element]()
        for own, known in subject.known.items():
            if known.note == SET_BY_THE_CELL:
                raise self._refused(f"rates that follow a ligand of the cell ({own})")
        self.scope: dict[str, Any] = {**subject.values, V.name: _VOLTAGES}
        for name, expression in self.channel.definitions:
            with np.errstate(all="ignore"):  # also of those that nothing uses
                self.scope[name] = evaluate(expression, self.scope)

    def text(self) -> str:
        root = ElementTree.Element("neuroml", {"xmlns": _NAMESPACE, "xmlns:xsi": _INSTANCE})
        root.set("xsi:schemaLocation", f"{_NAMESPACE} {_SCHEMA}")
        root.set("id", f"{self.name}_document")
        terms = self.channel.terms
        names = {t.name: self.name if len(terms) == 1 else f"{self.name}_{t.name}" for t in terms}
        _child(root, "notes").text = "\n".join(self._paragraphs(names))
        channels = [self._of_term(term, names[term.name]) for term in terms]
        for kind in ("ionChannelHH", "ionChannelKS"):  # the schema wants them in this order
            root.extend(each for each in channels if each.tag == kind)
        if self.known:
            root.append(self._cell(names))
        root.extend(self.types)
        ElementTree.indent(root)
        head = '<?xml version="1.0" encoding="UTF-8"?>\n'
        return head + ElementTree.tostring(root, encoding="unicode") + "\n"

    def _paragraphs(self, names: Mapping[str, str]) -> list[str]:
        lines = [self.channel.name, *self.subject.paragraphs()]
        if self.subject.warm:
            degrees = f"{self.subject.temperature_C:g} degC"
            lines.append(f"Rates follow the temperature; the values hold at {degrees}.")
        elif held := self.subject.rates_hold_at():
            lines.append(f"Temperature: {held}; they do not follow it.")
        for term in self.channel.terms:
            size, reversal = (self._value(x) for x in (term.size, term.reversal))
            lines.append(
                f"{names[term.name]}: {size:.6g} nS of the whole cell, reversal potential "
                f"{reversal:.6g} mV."
            )
        if self.known:
            lines.append(f"The cell: {self.subject.membrane(self.capacitance_pF).known_from}.")
        return [one_line(line) for line in lines]

    def _value(self, expression: sympy.Expr | None) -> float:
        if expression is None:
            raise self._refused(
                "a current after Goldman, Hodgkin and Katz (its channelDensityGHK is calcium's "
                "alone)"
            )
        return float(evaluate(expression, self.subject.values))

    def _refused(self, what: str) -> InputError:
        return InputError(f"NeuroML cannot express {what}", self.subject.provenance.file)

    # --- a channel

    def _of_term(self, term: Term, name: str) -> ElementTree.Element:
        chains = [self.channel.chains[k] for k in term.chains]
        gates = all(is_gate(chain) for chain in chains)
        conductance = self._value(term.size)
        for chain in () if gates else chains:
            conductance *= self._level(chain) ** chain.power
        element = ElementTree.Element("ionChannelHH" if gates else "ionChannelKS", {"id": name})
        if term.name in self.ions:
            element.set("species", self.ions[term.name])
        element.set("conductance", f"{_number(conductance)}nS")
        for chain in chains:
            if gates:
                self._gate(element, chain, name)
            else:
                self._scheme(element, chain, name)
        factors = [] if term.rectification is None else [term.rectification]
        if CELSIUS in self._behind(term.size):
            factors.append(term.size / sympy.Float(self._value(term.size), 17))
        if factors:
            if not gates:
                raise self._refused(
                    f"that the current {term.name} of a scheme is rectified or follows the "
                    "temperature beyond its states"
                )
            bend = _child(element, "gate", id=f"{name}_rectification", instances="1")
            bend.set("type", "gateHHInstantaneous")
            self._role(bend, "steadyState", "Variable", product(*factors), f"{name}_rectified")
        return element

    def _level(self, chain: Chain) -> float:
        """Return the relative conductance of the states that conduct, which must be one."""
        levels = {c for c in chain.conductances if c}
        if len(levels) != 1:
            sizes = ", ".join(number(c) for c in sorted(levels))
            raise self._refused(f"open states of several conductances ({sizes} in {chain.name})")
        return levels.pop()

    def _gate(self, channel: ElementTree.Element, chain: Chain, name: str) -> None:
        gate = _child(channel, "gate", id=chain.name, instances=str(chain.power))
        name = f"{name}_{chain.name}"
        if chain.instant:
            gate.set("type", "gateHHInstantaneous")
            self._role(gate, "steadyState", "Variable", chain.limit, f"{name}_inf")
        elif chain.limit is not None:
            gate.set("type", "gateHHtauInf")
            self._relaxation(gate, chain, name)
        else:
            gate.set("type", "gateHHrates")
            for k, t in enumerate(chain.transitions):
                tag = "forwardRate" if t.target == chain.states[1] else "reverseRate"
                self._role(gate, tag, "Rate", t.rate, f"{name}_{rate_name(chain, k)}")
            gate[:] = sorted(gate, key=lambda rate: rate.tag)

    def _relaxation(self, parent: ElementTree.Element, chain: Chain, name: str) -> None:
        self._role(parent, "timeCourse", "Time", chain.tau, f"{name}_tau")
        self._role(parent, "steadyState", "Variable", chain.limit, f"{name}_inf")

    def _scheme(self, channel: ElementTree.Element, chain: Chain, name: str) -> None:
        if chain.instant:
            raise self._refused(
                f"a gate that follows the voltage at once beside a scheme ({chain.name})"
            )
        gate = _child(channel, "gateKS", id=chain.name, instances=str(chain.power))
        sizes = dict(zip(chain.states, chain.conductances, strict=True))
        if all(sizes.values()):
            raise self._refused(f"a scheme without a closed state ({chain.name})")
        for state in sorted(chain.states, key=lambda s: bool(sizes[s])):
            _child(gate, "openState" if sizes[state] else "closedState", id=state)
        name = f"{name}_{chain.name}"
        if chain.limit is not None:
            ends = {"from": chain.states[0], "to": chain.states[1]}
            self._relaxation(_child(gate, "tauInfTransition", id="t1", **ends), chain, name)
            return
        rates: dict[tuple[str, str], sympy.Expr] = {}
        for t in chain.transitions:
            rates[t.source, t.target] = product(sympy.Integer(t.multiplicity), t.rate)
        pairs = dict.fromkeys(tuple(sorted(pair, key=chain.states.index)) for pair in rates)
        for k, (a, b) in enumerate(pairs, 1):
            for tag, pair in (("forward", (a, b)), ("reverse", (b, a))):
                # a reverse transition names the same ends, and its rate leads back
                way = _child(gate, f"{tag}Transition", id=f"t{k}{tag[0]}", **{"from": a, "to": b})
                rate = rates.get(pair, sympy.Integer(0))
                self._role(way, "rate", "Rate", rate, f"{name}_{pair[0]}_{pair[1]}")

    # --- rates

    def _role(
        self, parent: ElementTree.Element, tag: str, role: str, x: sympy.Expr | None, name: str
    ) -> None:
        """Add a rate, a steady state or a time constant."""
        assert x is not None
        element = _child(parent, tag)
        unit = {"Rate": "per_ms", "Variable": "", "Time": "ms"}[role]
        if role == "Time" and not self._behind(x) & {V.name, CELSIUS}:
            element.set("type", "fixedTimeCourse")
            element.set("tau", f"{_number(self._value_at(x))}ms")
            return
        form = None if role == "Time" else self._standard(x)
        if form is not None:
            kind, rate, midpoint, scale = form
            element.set("type", f"HH{kind}{role}")
        else:
            element.set("type", self._type(role, x, _identifier(name)))
            rate, midpoint, scale = 1.0, 0.0, 1.0
        if form is not None or role == "Rate":  # LEMS asks for them of every rate of a scheme
            element.set("rate", f"{_number(rate)}{unit}")
            element.set("midpoint", f"{_number(midpoint)}mV")
            element.set("scale", f"{_number(scale)}mV")

    def _behind(self, x: sympy.Expr) -> set[str]:
        return self.channel.names_behind(*(s.name for s in x.free_symbols))

    def _value_at(self, x: sympy.Expr) -> float:
        return float(np.ravel(evaluate(x, self.scope))[0])

    def _standard(self, x: sympy.Expr) -> tuple[str, float, float, float] | None:
        """Return the form of NeuroML that a function of the voltage has: kind, rate, midpoint and
        scale; None where it has none.

        Exponents are found in the expression; that the whole has the form is checked by its values.
        """
        behind = self._behind(x)
        parts = [x, *(e for name, e in self.channel.definitions if name in behind)]
        bent = (sympy.Piecewise, sympy.Min, sympy.Max, sympy.Abs)
        if CELSIUS in behind or V.name not in behind or any(part.has(*bent) for part in parts):
            return None
        with np.errstate(all="ignore"):
            y = np.broadcast_to(evaluate(x, self.scope), _VOLTAGES.shape)
            if not (np.isfinite(y).all() and y.all()):
                return None
            for node in {n for part in parts for n in part.atoms(sympy.exp, exprel)}:
                u = np.broadcast_to(evaluate(node.args[0], self.scope), _VOLTAGES.shape)
                slope = (u[-1] - u[0]) / (_VOLTAGES[-1] - _VOLTAGES[0])
                if not slope or np.abs(np.diff(u, 2)).max() > _SAME * np.abs(u).max():
                    continue  # not a straight line in the voltage
                middle = _VOLTAGES[0] - u[0] / slope
                middle = middle if abs(middle * slope) > _SAME else 0.0
                for found in _candidates(y, middle, 1 / slope, isinstance(node, exprel)):
                    kind, rate, midpoint, scale = found
                    near = _FORMS[kind]((_VOLTAGES - midpoint) / scale) * rate
                    if np.abs(near / y - 1).max() < _SAME:
                        return found
        return None

    def _type(self, role: str, x: sympy.Expr, name: str) -> str:
        """Add a ComponentType for an expression, and return its name."""
        base, exposure, dimension, factor = _ROLES[role]
        derived, cases = list[ElementTree.Element](), list[ElementTree.Element]()
        behind = self._behind(x)
        parameters = [p for p in self.channel.parameters if p.name in behind and p.name != CELSIUS]
        names, taken = {V.name: "V", CELSIUS: "celsius_"}, {*_RESERVED, "celsius_"}

        def claimed(own: str) -> str:
            while own in taken:
                own += "_"
            taken.add(own)
            return own

        def line(own: str, value: str) -> str:
            attributes = {"name": own, "dimension": "none", "value": value}
            derived.append(ElementTree.Element("DerivedVariable", attributes))
            return own

        def chosen(pairs: list[tuple[str | None, str]]) -> str:
            own = claimed(f"choice{len(cases) + 1}")
            attributes = {"name": own, "dimension": "none"}
            cases.append(ElementTree.Element("ConditionalDerivedVariable", attributes))
            for condition, value in pairs:
                case = _child(cases[-1], "Case", value=value)
                if condition is not None:
                    case.set("condition", condition)
            return own

        names |= {p.name: claimed(p.name) for p in parameters}
        own_definitions = [(n, e) for n, e in self.channel.definitions if n in behind]
        names |= {n: claimed(n) for n, _ in own_definitions}
        printer = _LemsPrinter(names, chosen, lambda text: line(claimed("part"), text))
        line("V", "v/MV")
        if CELSIUS in behind:
            line(names[CELSIUS], f"temperature/KELVIN - {ZERO_CELSIUS!r}")
        for own, expression in own_definitions:
            line(names[own], printer.text(expression))
        line(exposure, f"({printer.text(x)}){factor}")
        derived[-1].set("dimension", dimension)
        derived[-1].set("exposure", exposure)

        element = ElementTree.Element("ComponentType", {"name": name, "extends": base})
        constants = [("MV", "voltage", "1mV"), ("MS", "time", "1ms")]
        constants += [("KELVIN", "temperature", "1K")] if CELSIUS in behind else []
        for own, kind, value in constants:
            _child(element, "Constant", name=own, dimension=kind, value=value)
        for p in parameters:
            assert p.value is not None
            row = _child(element, "Constant", name=names[p.name], dimension="none")
            row.set("value", _number(p.value))
            if note := self._of_parameter(p.name, p.unit):
                row.set("description", note)
        if CELSIUS in behind:
            _child(element, "Requirement", name="temperature", dimension="temperature")
        _child(element, "Dynamics").extend([*derived, *cases])
        self.types.append(element)
        return name

    def _of_parameter(self, name: str, unit: str) -> str:
        known = self.subject.known.get(name)
        notes = [unit]
        if known and known.interval:
            notes.append(f"95 % {known.interval[0]:.5g} to {known.interval[1]:.5g}")
        return ", ".join(filter(None, notes))

    # --- the cell

    def _cell(self, names: Mapping[str, str]) -> ElementTree.Element:
        """Return a spherical cell whose membrane carries the currents as densities."""
        membrane = self.subject.membrane(self.capacitance_pF)
        cell = ElementTree.Element("cell", {"id": f"{self.name}_cell"})
        soma = _child(_child(cell, "morphology", id="sphere"), "segment", id="0", name="soma")
        diameter = _number(math.sqrt(membrane.area_um2 / math.pi))
        for end in ("proximal", "distal"):
            _child(soma, end, x="0", y="0", z="0", diameter=diameter)
        properties = _child(cell, "biophysicalProperties", id="biophysics")
        own = _child(properties, "membraneProperties")
        for term in self.channel.terms:
            name, density = names[term.name], self._value(term.size) * membrane.density
            for k in term.chains:
                chain = self.channel.chains[k]
                if not all(is_gate(self.channel.chains[j]) for j in term.chains):
                    density *= self._level(chain) ** chain.power
            row = _child(own, "channelDensity", id=f"{name}_density", ionChannel=name)
            row.set("condDensity", f"{_number(density)}S_per_cm2")
            row.set("erev", f"{_number(self._value(term.reversal))}mV")
            row.set("ion", self.ions.get(term.name, "non_specific"))
        _child(own, "spikeThresh", value="0mV")
        _child(own, "specificCapacitance", value=f"{100 * SPECIFIC_CAPACITANCE:g}uF_per_cm2")
        _child(own, "initMembPotential", value=f"{_number(self.subject.holding_mV)}mV")
        return cell


#: NeuroML's forms of x = (v - midpoint)/scale, for a rate of 1.
_FORMS: dict[str, Callable[[Any], Any]] = {
    "Exp": np.exp,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "ExpLinear": lambda x: 1 / exprel_values(-x),
}


def _candidates(
    y: np.ndarray, middle: float, scale: float, linear: bool
) -> list[tuple[str, float, float, float]]:
    """Return what values may be that have an exponent (v - middle)/scale: kind, rate, midpoint and
    scale of each.

    Arguments:
        y: the values at `_VOLTAGES`.
        linear: whether the exponent is that of (exp(x) - 1)/x.
    """
    found = []
    for own in (scale, -scale):
        x = (_VOLTAGES - middle) / own
        if linear:
            found.append(("ExpLinear", y[0] / _FORMS["ExpLinear"](x[0]), middle, own))
            continue
        found.append(("Exp", y[0] / np.exp(x[0]), middle, own))
        # 1/y = a + b exp(-x), in relative terms
        rows = np.column_stack([y, y * np.exp(-x)])
        (a, b), *_ = np.linalg.lstsq(rows, np.ones(len(y)))
        if a and b / a > 0:
            found.append(("Sigmoid", 1 / a, middle + own * math.log(b / a), own))
    return [(k, *map(_tidy, numbers)) for k, *numbers in found]  # type: ignore[misc]


def _tidy(value: float) -> float:
    """Return a number without the last two digits, in which what was computed with it differs."""
    return float(f"{value:.14g}")


def _number(value: float) -> str:
    """Return a number as the schema has it, whose exponent bears no plus."""
    return number(value).replace("e+", "e")


def _child(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _identifier(text: str) -> str:
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if re.match(r"[A-Za-z_]", name) else f"channel_{name}"
