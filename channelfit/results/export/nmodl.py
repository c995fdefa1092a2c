"""NMODL of a fitted channel as a modeller keeps it: ions, densities, temperature, provenance.

The oracle's text (`scoring.neuron.nmodl`) is compared with this program's own numbers; this one
belongs into a cell. The current may be that of an ion, whose reversal potential or concentrations
the cell then decides; the conductance is a density; `celsius` is NEURON's own where the rates
depend on the temperature; and the header says what the numbers are and how sure they are.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from channelfit.model.channel import (
    CELSIUS,
    FARADAY,
    GAS_CONSTANT,
    ZERO_CELSIUS,
    Chain,
    ChannelModel,
    Parameter,
    Term,
)
from channelfit.model.evaluation import evaluate
from channelfit.model.ions import VALENCES, ion_variable, variables
from channelfit.model.nmodl_comment import Metadata, Row, metadata_lines
from channelfit.model.terms import product, symbol
from channelfit.reading.errors import InputError, shown
from channelfit.results.export.ions import (
    check_apart,
    exclusive_part,
    inputs,
    ions_of,
    keeps_reversal,
    live_factors,
)
from channelfit.results.export.subject import CellMembrane, Known, Subject, cost_of_six_digits
from channelfit.scoring.neuron.nmodl import (
    SPANS,
    UNITS,
    NmodlWriter,
    block,
    identifier,
    is_reserved,
    opened,
    parameter_lines,
    plain_ascii,
)
from channelfit.scoring.neuron.nmodl_printer import LIBRARY, number

#: Mechanisms and point processes that NEURON has built in.
_BUILT_IN_WORDS = """
hh pas extracellular capacitance morphology fastpas IClamp SEClamp VClamp AlphaSynapse ExpSyn
Exp2Syn APCount NetStim IntFire1 IntFire2 IntFire4 PatternStim NetCon OClamp LinearMechanism KSChan
SectionRef Section CVode
"""
_BUILT_IN = frozenset(_BUILT_IN_WORDS.split())
_UNITS = UNITS | {
    "pA": "(pA)",
    "mM": "(mM)",
    "1/mM/ms": "(/mM/ms)",
    "um3/ms": "(um3/ms)",
    "pF": "(pF)",
    "degC": "(degC)",
}
_SPANS = SPANS | {"(pA)": "picoamp", "(mM)": "milli/liter", "(pF)": "picofarad"}
#: The library of the oracle, with exponentials alone, as published files write it.
_LIBRARY = {
    **LIBRARY,
    "exprel": """\
FUNCTION exprel(x) {   : (exp(x) - 1)/x, which is 1 at 0
    if (fabs(x) < 1e-4) {
        exprel = 1 + x/2*(1 + x/3)
    } else {
        exprel = (exp(x) - 1)/x
    }
}
""",
}
#: A share of the largest current that need not be reported.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class ExportSettings:
    """The options of an export, most of them for NMODL alone.

    Attributes:
        ions: an ion such as ``na``, or ``CURRENT=na`` for each of several currents.
        suffix: the name of the mechanism; the model's by default.
        capacitance_pF: of the cell, from which the density follows.
        point_process: whether to write the channels of the whole cell, in nS.
    """

    ions: tuple[str, ...] = ()
    suffix: str | None = None
    capacitance_pF: float | None = None
    point_process: bool = False


def nmodl(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as NMODL.

    Raises InputError: an ion or a name that cannot be, or a cell of unknown size.
    """
    if settings.point_process and settings.capacitance_pF is not None:
        raise InputError("a point process is a whole cell's; leave --capacitance out")
    membrane = None if settings.point_process else subject.membrane(settings.capacitance_pF)
    return _Mechanism(subject, settings, membrane).text()


@dataclass(frozen=True)
class _Flow:
    """One current of the file.

    Attributes:
        term: of the model, as the file writes it: sizes and reversal potentials are its names.
        model_term: of the model itself.
        ion: that carries the current; None for an unspecific one.
        current, conductance: the names of its variables.
        density: the name of its gbar or pbar; None in a point process.
        reversal: the name of a parameter for a reversal potential that is a number in the model.
        rectification: the name of the variable of a rectification; None where there is none.
    """

    term: Term
    model_term: Term
    ion: str | None
    current: str
    conductance: str
    density: str | None
    reversal: str | None
    rectification: str | None


class _Mechanism(NmodlWriter):
    """Writes the file, block by block."""

    library = _LIBRARY

    def __init__(
        self, subject: Subject, settings: ExportSettings, membrane: CellMembrane | None
    ) -> None:
        self.subject, self.membrane = subject, membrane
        channel = subject.channel
        file = subject.provenance.file
        self.ions = ions_of(channel, settings.ions, file)
        for term in channel.terms:
            if term.name in self.ions:
                check_apart(channel, term, self.ions[term.name], file)
        of_ions = (name for ion in self.ions.values() for name in variables(ion))
        self.inputs = inputs(channel)
        self.shaped = {term.name for term in channel.terms if keeps_reversal(channel, term)}
        own = [p.input for p in channel.parameters if p.name in self.inputs]
        self.first_names = ("celsius", "e", *dict.fromkeys([*of_ions, *own]))
        terms = tuple(self._written(term) for term in channel.terms)
        self.sizes = {term.name: exclusive_part(channel, term) for term in channel.terms}
        written = replace(channel, terms=terms)
        used = written.used_names() | {CELSIUS}
        written = replace(
            written, parameters=tuple(p for p in channel.parameters if p.name in used)
        )
        super().__init__(
            written,
            "point_process" if settings.point_process else "density",
            _mechanism_name(settings.suffix, channel),
        )
        self.inf_tau = {
            chain.name: (
                self.claimed.claim(f"{chain.name}inf"),
                self.claimed.claim(f"{chain.name}tau"),
            )
            for chain in self.gates
            if chain.limit is not None and not chain.instant
        }
        for name in self.inf_tau:
            for k in range(2):
                del self.rate[name, k]
        self.drive, self.density = {}, {}
        self.flows = [self._flow_of(*pair) for pair in zip(terms, channel.terms, strict=True)]
        names = dict(self.printer.names)
        if CELSIUS in self.parameter:
            self.parameter[CELSIUS] = names[CELSIUS] = "celsius"
        for p in self.model.parameters:
            if p.name in self.inputs:
                self.parameter[p.name] = names[p.name] = p.input
        for flow in self.flows:
            name = flow.model_term.name
            names[f"size of {name}"] = flow.density or ""
            names[f"reversal of {name}"] = flow.reversal or ""
            names |= {f"ion {own}": own for own in variables(flow.ion or "")}
        self.printer.names = names

    def _written(self, term: Term) -> Term:
        """Return a term in which ions and densities are symbols of the file."""
        ion = self.ions.get(term.name)
        if self.membrane is not None:
            live = live_factors(self.subject.channel, term)
            size = product(symbol(f"size of {term.name}"), *live)
            part = "permeability" if term.permeability is not None else "conductance"
            term = replace(term, **{part: size})
        if term.ion is not None:
            if ion is not None:
                inside, outside = symbol(f"ion {ion}i"), symbol(f"ion {ion}o")
                term = replace(term, ion=replace(term.ion, inside=inside, outside=outside))
            return term
        assert term.reversal is not None
        if term.name in self.shaped:
            return term
        if ion is not None:
            return replace(term, reversal=symbol(f"ion e{ion}"))
        if not term.reversal.free_symbols:
            return replace(term, reversal=symbol(f"reversal of {term.name}"))
        return term

    def _flow_of(self, term: Term, model_term: Term) -> _Flow:
        ion = self.ions.get(term.name)
        alone = len(self.model.terms) == 1
        ending = "" if alone or term.name == "current" else f"_{term.name}"
        current = f"i{ion}" if ion else (self.claimed.claim(f"i{ending}") if ending else "i")
        size = "p" if term.ion else "g"
        density = None
        if self.membrane is not None:
            density = f"{size}bar" if not ending else self.claimed.claim(f"{size}bar{ending}")
        reversal = None
        if term.reversal is not None and term.reversal == symbol(f"reversal of {term.name}"):
            reversal = "e" if not ending else self.claimed.claim(f"e{ending}")
        rectification = None
        if term.rectification is not None:
            rectification = self.claimed.claim(f"rectification{ending}")
        conductance = self.claimed.claim(f"{size}{ending}")
        return _Flow(term, model_term, ion, current, conductance, density, reversal, rectification)

    def flowing(self) -> list[sympy.Expr]:
        """Return the expressions of what flows that the file computes."""
        return [term.drive for term in self.model.terms]

    # --- the header

    def _title(self) -> str:
        subject, paragraphs = self.subject, self.subject.paragraphs()
        paragraphs += [*self._of_the_temperature(), *self._of_the_ions(), *self._of_the_size()]
        if (cost := cost_of_six_digits(subject)) > _NEGLIGIBLE:
            paragraphs.append(
                "Digits: NEURON keeps six of a PARAMETER's value. With these the current under "
                f"steps from -120 to +60 mV differs by {cost:.1g} of its peak from that of all "
                "digits, which may be set from Python or hoc."
            )
        paragraphs += self._of_the_method()
        lines = [f"TITLE {plain_ascii(self.model.name)}", "", "COMMENT"]
        for paragraph in filter(None, map(plain_ascii, paragraphs)):
            lines += [*textwrap.wrap(paragraph, 96), ""]
        own = ["", "COMMENT", *metadata_lines(self._metadata()), "ENDCOMMENT", ""]
        return "\n".join([*lines[:-1], "ENDCOMMENT", *own])

    def _metadata(self) -> Metadata:
        """Return the metadata that an import needs beside the file to give the model back."""
        found = Metadata(temperature_C=self.subject.temperature_C)
        by_name = {p.name: p for p in self.subject.channel.parameters}
        if self.membrane is not None:
            found.area_um2 = self.membrane.area_um2
            parts = [(flow, self.sizes[flow.model_term.name]) for flow in self.flows]
            for flow, part in parts:
                alone = [other for _, other in parts].count(part) == 1
                if part.is_Symbol and part.name in by_name and alone:
                    found.rows[str(flow.density)] = replace(_row(by_name[part.name]), density=True)
        for flow in self.flows:
            if flow.reversal is not None:
                found.numbers[flow.reversal] = float(evaluate(flow.model_term.reversal, {}))
            found.cell |= self._cell_of(flow)
        for p in self.model.parameters:
            if p.name in self.inputs and p.value is not None:
                found.cell[p.input] = p.value
            elif p.name != CELSIUS and p.value is not None:
                found.rows[self.parameter[p.name]] = _row(p)
        return found

    def _cell_of(self, flow: _Flow) -> dict[str, float]:
        """Return the model's own values of what the cell decides for a current."""
        if flow.ion is None or flow.term.name in self.shaped:
            return {}
        term, values = flow.model_term, self.subject.values
        _, reversal, inside, outside = variables(flow.ion)
        own = {reversal: term.reversal}
        if term.ion is not None:
            own = {inside: term.ion.inside, outside: term.ion.outside}
        return {key: float(evaluate(x, values)) for key, x in own.items()}

    def _of_the_temperature(self) -> list[str]:
        temperature = self.subject.temperature_C
        if self.subject.warm:
            return [
                "Temperature: what follows it reads celsius, which NEURON sets to 6.3 degC. The "
                f"values were found at {temperature:g} degC; for that, set celsius = "
                f"{temperature:g}."
            ]
        held = self.subject.rates_hold_at()
        return [f"Temperature: {held}, whatever celsius says."] if held else []

    def _of_the_ions(self) -> list[str]:
        found, values = [], self.subject.values
        for flow in self.flows:
            ion, term = flow.ion, flow.model_term
            if ion is None:
                continue
            if term.name in self.shaped:
                continue
            if term.ion is None:
                own = float(evaluate(term.reversal, values))
                found.append(
                    f"Reversal: e{ion} is the cell's. The model's own reversal potential was "
                    f"{own:.6g} mV; for that, set e{ion} = {own:.6g} in the section."
                )
            else:
                inside, outside = (
                    float(evaluate(x, values)) for x in (term.ion.inside, term.ion.outside)
                )
                found.append(
                    f"Concentrations: {ion}i and {ion}o are the cell's. The model's own were "
                    f"{inside:.6g} mM inside and {outside:.6g} mM outside."
                )
        own_inputs = [
            f"{p.input} = {p.value:.6g} {p.unit or ''}".strip()
            for p in self.model.parameters
            if p.name in self.inputs and p.value is not None
        ]
        if own_inputs:
            found.append(
                f"Inputs: the cell decides on them. The model's own: {', '.join(own_inputs)}."
            )
        return found

    def _of_the_size(self) -> list[str]:
        if self.membrane is None:
            return ["Size: a point process is all channels of the cell that was recorded."]
        sizes = [
            f"{self._whole(flow):.6g} {'um3/ms' if flow.term.ion else 'nS'}" for flow in self.flows
        ]
        names = [str(flow.density) for flow in self.flows]
        pairs = ", ".join(f"{n} from {s}" for n, s in zip(names, sizes, strict=True))
        return [f"Density: {pairs} of a whole cell; {self.membrane.known_from}."]

    def _whole(self, flow: _Flow) -> float:
        """Return the conductance, nS, or permeability, um3/ms, of the whole cell."""
        return float(evaluate(flow.model_term.size, self.subject.values))

    # --- the blocks

    def _neuron(self) -> str:
        lines = [self._declaration()]
        read = self._read_variables()
        for ion in dict.fromkeys([*self.ions.values(), *read]):
            flows = [flow for flow in self.flows if flow.ion == ion]
            valence = flows[0].term.ion.valence if flows and flows[0].term.ion else None
            valence = VALENCES.get(ion) if valence is None else valence
            known = "" if ion in ("na", "k", "ca") or valence is None else f" VALENCE {valence}"
            reading = f" READ {', '.join(read[ion])}" if ion in read else ""
            writing = f" WRITE i{ion}" if flows else ""
            lines.append(f"    USEION {ion}{reading}{writing}{known}")
        unspecific = [flow.current for flow in self.flows if flow.ion is None]
        if unspecific:
            lines.append(f"    NONSPECIFIC_CURRENT {', '.join(unspecific)}")
        shown_names = [row[0] for row in self._rows() if row[0] != "celsius"]
        shown_names += unspecific + [flow.conductance for flow in self.flows]
        shown_names += [flow.rectification for flow in self.flows if flow.rectification]
        shown_names += [name for pair in self.inf_tau.values() for name in pair]
        shown_names += [*self.rate.values(), *map(self._value_of, self.instant)]
        for line in textwrap.wrap(", ".join(shown_names), 82, break_long_words=False):
            lines.append(f"    RANGE {line.rstrip(',')}")
        return block("NEURON", [*lines, "    THREADSAFE"])

    def _read_variables(self) -> dict[str, list[str]]:
        """Return the variables of each ion that the file reads, as the cell has them."""
        found: dict[str, list[str]] = {}
        for flow in self.flows:
            if flow.ion is not None and flow.term.name not in self.shaped:
                _, reversal, inside, outside = variables(flow.ion)
                own = [inside, outside] if flow.term.ion else [reversal]
                found.setdefault(flow.ion, []).extend(own)
        for p in self.model.parameters:
            if p.name in self.inputs:
                found.setdefault(self.inputs[p.name].ion, []).append(p.input)
        return {ion: list(dict.fromkeys(names)) for ion, names in found.items()}

    def _unit_block(self) -> str:
        needed = ["(mV)", *(("(nA)", "(nS)") if self.point else ("(mA)", "(S)"))]
        units = " ".join(row[2] for row in self._rows())
        needed += [unit for unit in _SPANS if unit.strip("()") in re.findall(r"\w+", units)]
        if any(
            self._unit_of(name) == "(mM)"
            for names in self._read_variables().values()
            for name in names
        ):
            needed.append("(mM)")
        lines = [f"    {unit} = ({_SPANS[unit]})" for unit in dict.fromkeys(needed)]
        return block("UNITS", lines)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, value, unit and comment of each PARAMETER."""
        rows = []
        for flow in self.flows:
            if flow.density is not None:
                rows.append(self._density_row(flow))
        for flow in self.flows:
            if flow.reversal is not None:
                reversal = number(float(evaluate(flow.model_term.reversal, {})))
                rows.append((flow.reversal, reversal, "(mV)", "reversal potential"))
        for p in self.model.parameters:
            if p.name != CELSIUS and p.name not in self.inputs and p.value is not None:
                known = self.subject.known.get(p.name, Known())
                unit = _UNITS.get(p.unit, "(1)")
                fitted = self.subject.provenance.fitted
                rows.append(
                    (self.parameter[p.name], number(p.value), unit, _note(p, known, fitted))
                )
        return rows

    def _density_row(self, flow: _Flow) -> tuple[str, str, str, str]:
        assert self.membrane is not None
        assert flow.density is not None
        factor = self.membrane.density
        part = self.sizes[flow.model_term.name]
        values = self.subject.values
        value = factor * float(evaluate(part, values))
        names = sorted(s.name for s in part.free_symbols)
        note = "held fixed" if not names else f"from {', '.join(names)}"
        known = self.subject.known.get(names[0], Known()) if len(names) == 1 else Known()
        if known.interval is not None:
            ends = [
                factor * float(evaluate(part, {**values, names[0]: end})) for end in known.interval
            ]
            note += f", 95 % {min(ends):.5g} to {max(ends):.5g}"
        return flow.density, number(value), "(cm/s)" if flow.term.ion else "(S/cm2)", note

    def _parameters(self) -> str:
        lines = parameter_lines(self._rows())
        # Arbor's compiler takes neither v nor what is of an ion for ASSIGNED, and NEURON both
        given = [("v", "(mV)"), *([(CELSIUS, "(degC)")] if self._needs_celsius else [])]
        for names in self._read_variables().values():
            given += [(name, self._unit_of(name)) for name in names]
        flow_unit = "(nA)" if self.point else "(mA/cm2)"
        given += [(flow.current, flow_unit) for flow in self.flows if flow.ion]
        lines += [f"    {name} {unit}" for name, unit in dict.fromkeys(given)]
        return block("PARAMETER", lines)

    @property
    def _needs_celsius(self) -> bool:
        return CELSIUS in self.used

    def _assigned(self) -> str:
        rows = list[tuple[str, str]]()
        flow_unit, size_unit = ("(nA)", "(nS)") if self.point else ("(mA/cm2)", "(S/cm2)")
        for flow in self.flows:
            rows += [] if flow.ion else [(flow.current, flow_unit)]
            if flow.term.ion:
                rows.append((flow.conductance, "(um3/ms)" if self.point else "(cm/s)"))
            else:
                rows.append((flow.conductance, size_unit))
            rows += [(flow.rectification, "(1)")] if flow.rectification else []
        for inf, tau in self.inf_tau.values():
            rows += [(inf, "(1)"), (tau, "(ms)")]
        rows += [(name, "(/ms)") for name in self.rate.values()]
        rows += [(self._value_of(gate), "(1)") for gate in self.instant]
        return block("ASSIGNED", (f"    {n} {u}" for n, u in dict.fromkeys(rows)))

    def _unit_of(self, name: str) -> str:
        """Return the unit of what is read of an ion."""
        variable = ion_variable(name)
        return "(mV)" if variable is not None and variable.kind == "reversal" else "(mM)"

    def _breakpoint(self) -> str:
        at_once = self.instant or any(flow.rectification for flow in self.flows)
        lines = self._solving(bool(at_once))
        sums: dict[str, list[str]] = {}
        for flow in self.flows:
            size = self.printer.operand(flow.term.size)
            chains = [opened(self.model.chains[k], self.state) for k in flow.term.chains]
            lines.append(f"    {flow.conductance} = {'*'.join([size, *chains])}")
            scale = ["(0.001)"] if self.point else []
            bend = [flow.rectification] if flow.rectification else []
            whole = "*".join([*scale, flow.conductance, *bend, self._force(flow)])
            sums.setdefault(flow.current, []).append(whole)
        lines += [f"    {name} = {' + '.join(parts)}" for name, parts in sums.items()]
        # an expression of the model may leave out units that NEURON's modlunit would ask for
        written = [x for f in self.flows for x in (f.term.size, f.term.reversal) if x is not None]
        plain = all(expression.is_Symbol or expression.is_number for expression in written)
        return ("" if plain else "UNITSOFF\n\n") + block("BREAKPOINT", lines)

    def _force(self, flow: _Flow) -> str:
        """Return the driving force of open channels."""
        term = flow.term
        if term.ion is None:
            assert term.reversal is not None
            return f"(v - {self.printer.operand(term.reversal)})"
        self.functions.need("exprel")
        self.functions.blocks["ghk"] = _GHK
        inside, outside = (self.printer.text(x) for x in (term.ion.inside, term.ion.outside))
        thermal = f"({1e3 * GAS_CONSTANT / FARADAY!r})*(celsius + {ZERO_CELSIUS!r})"
        if term.ion.thermal is not None:
            thermal = self.printer.text(term.ion.thermal)
        return f"ghk(v, {inside}, {outside}, {term.ion.valence}, {thermal})"

    def _limit(self, gate: Chain) -> str:
        names = self.inf_tau.get(gate.name)
        return names[0] if names else super()._limit(gate)

    @property
    def _call(self) -> str:
        # Arbor's compiler lets no PROCEDURE look at celsius, unless it is an argument
        return f"rates(v, {CELSIUS})" if self._needs_celsius else "rates(v)"

    def _settled(self, cyclic: Sequence[Chain]) -> tuple[list[str], list[str]]:
        """Return names and lines of the steady state by state reduction, which subtracts nothing.

        NEURON's STEADYSTATE is one implicit step of 1e9 ms, which misses the steady state by a
        millionth where a rate is as slow as 1e-3/ms, and CoreNEURON takes no LINEAR block beside a
        KINETIC one. (Grassmann, Taksar and Heyman 1985, Operations Research 33:1107-1116.)
        """
        local, lines = list[str](), list[str]()
        for chain in cyclic:
            own, more = self._reduced(chain)
            local, lines = local + own, lines + more
        return (["leaving", "total", *local] if cyclic else []), lines

    def _reduced(self, chain: Chain) -> tuple[list[str], list[str]]:
        index = {state: k for k, state in enumerate(chain.states)}
        states = [str(self.state[chain.name, state]) for state in chain.states]
        flows: dict[tuple[int, int], list[str]] = {}
        for k, t in enumerate(chain.transitions):
            flows.setdefault((index[t.source], index[t.target]), []).append(self._flow(chain, k))
        rate = {way: " + ".join(own) for way, own in flows.items()}
        local, lines, shares = list[str](), list[str](), dict[int, dict[int, str]]()

        def named(way: tuple[int, int], text: str) -> None:
            name = self.claimed.claim(f"r{way[0]}_{way[1]}")
            local.append(name)
            lines.append(f"    {name} = {text}")
            rate[way] = name

        for last in range(len(states) - 1, 0, -1):
            onward = {j: rate[last, j] for j in range(last) if (last, j) in rate}
            lines.append(f"    leaving = {' + '.join(onward.values()) or '1'}")
            shares[last] = {}
            for i in [i for i in range(last) if (i, last) in rate]:
                named((i, last), f"({rate[i, last]})/leaving")
                shares[last][i] = rate[i, last]
                for j, way in onward.items():
                    if j != i:
                        passed = f"{rate[i, last]}*({way})"
                        named((i, j), f"{rate[i, j]} + {passed}" if (i, j) in rate else passed)
        lines.append(f"    {states[0]} = 1   : the rest by state reduction")
        for j in range(1, len(states)):
            parts = [f"{states[i]}*{name}" for i, name in shares[j].items()]
            lines.append(f"    {states[j]} = {' + '.join(parts) or '0'}")
        lines.append(f"    total = {' + '.join(states)}")
        return local, lines + [f"    {state} = {state}/total" for state in states]

    def _approach(self, gate: Chain) -> str:
        names = self.inf_tau.get(gate.name)
        if names is None:
            return super()._approach(gate)
        return f"({names[0]} - {self._value_of(gate)})/{names[1]}"

    def _rates_of(self, chain: Chain) -> list[str]:
        """Return the lines that set the rates of a chain, or where it is at once."""
        names = self.inf_tau.get(chain.name)
        if names is None:
            return super()._rates_of(chain)
        pairs = zip(names, (chain.limit, chain.tau), strict=True)
        return [f"{name} = {self.printer.text(expression)}" for name, expression in pairs]

    def _extra_rates(self) -> list[str]:
        """Return the lines that set what else follows the voltage at once."""
        return [
            f"{flow.rectification} = {self.printer.text(flow.term.rectification)}"
            for flow in self.flows
            if flow.rectification
        ]


_GHK = f"""\
FUNCTION ghk(v (mV), ci (mM), co (mM), z, rtf (mV)) (0.001 coul/cm3) {{
    : Goldman, Hodgkin and Katz
    LOCAL u
    u = z*v/rtf
    ghk = 0.001*z*{FARADAY!r}*(ci/exprel(-u) - co/exprel(u))
}}
"""


def _note(p: Parameter, known: Known, fitted: bool) -> str:
    """Return the comment behind a parameter."""
    if p.fixed:
        return "held fixed"
    if known.interval is not None:
        return f"95 % {known.interval[0]:.5g} to {known.interval[1]:.5g}"
    if fitted:
        return "fitted; the data give no interval"
    return f"a value of the model, not fitted; range {p.lower:g} to {p.upper:g}"


def _row(p: Parameter) -> Row:
    """Return a parameter as the comment for an import has it."""
    bounds = (p.lower, p.upper) if p.lower < p.upper else None
    assert p.value is not None
    return Row(p.name, p.value, p.unit, bounds, p.scale == "log", p.fixed)


# --- the name


def _mechanism_name(suffix: str | None, channel: ChannelModel) -> str:
    """Return the name of the mechanism. Raises InputError for one that NEURON would not take."""
    if suffix is None:
        name = identifier(channel.name)
        return f"{name}_" if name in _BUILT_IN else name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", suffix) or is_reserved(suffix):
        raise InputError(
            f"{shown(suffix)} cannot name a mechanism; use a letter, then up to 39 letters, digits "
            "or _, and no word of NMODL, such as na_fit"
        )
    if suffix in _BUILT_IN:
        raise InputError(
            f"NEURON has a mechanism of its own that is called {suffix}; choose another"
        )
    return suffix
