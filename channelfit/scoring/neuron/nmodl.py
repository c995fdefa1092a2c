"""Writes a channel model as an NMODL file, so that a fitted channel can be used in NEURON.

Schemes become KINETIC blocks. Hodgkin-Huxley gates become DERIVATIVE blocks that ``cnexp`` solves;
a gate whose tau is 0 becomes a variable that is computed from the voltage. No rate is bounded. Of a
current that is not one ohmic term, what each term has of the voltage becomes a variable ``drive``.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sympy

from channelfit.model.channel import CELSIUS, Chain, ChannelModel, Parameter, Transition
from channelfit.model.evaluation import evaluate
from channelfit.scoring.neuron.nmodl_printer import LIBRARY, Functions, NmodlPrinter, number

Kind = Literal["point_process", "density"]

#: How NMODL writes a base unit.
UNITS = {
    "mV": "(mV)",
    "ms": "(ms)",
    "1/ms": "(/ms)",
    "1/mV": "(/mV)",
    "1/(ms mV)": "(/ms/mV)",
    "nS": "(nS)",
    "": "(1)",
}
#: What an abbreviation of a unit stands for, in the words of NEURON's table.
SPANS = {
    "(mV)": "millivolt",
    "(nA)": "nanoamp",
    "(mA)": "milliamp",
    "(nS)": "nanosiemens",
    "(S)": "siemens",
}

# Words of NMODL, hoc, C++ and of the C++ code that NEURON generates from a file. A model may use
# them as names, which then get an underscore at the end.
_RESERVED_WORDS = """
v t dt i j y error area celsius diam secondorder e erev gbar total rates gates exprel
smaller larger exp log log10 pow sqrt fabs abs sin cos tan tanh sinh cosh asin acos atan atan2
floor ceil fmod factorial gauss invert legendre normrand poisrand poisson exprand ramp romberg
harmonic perpulse perstep pulse squarewave step stepforce boundary deflate derivs threshold
scop_random set_seed spline expfit hyperbol revhyperbol sawtooth revsawtooth sigmoid revsigmoid
schedule signal sparse cnexp derivimplicit euler runge newton simeq cvode_t cvode_v after_cvode
first_time at_time nrn_ghk nrn_pointing net_event net_move net_send state_discontinuity lag sens
solvefor if else while for from to forall forall1 forall2 return by with TITLE MODEL CONSTANT
PARAMETER INDEPENDENT ASSIGNED INITIAL TERMINAL DERIVATIVE EQUATION BREAKPOINT CONDUCTANCE SOLVE
STATE STEPPED LINEAR NONLINEAR DISCRETE FUNCTION FUNCTION_TABLE PROCEDURE INT DEFINE PARTIAL DEL
DEL2 LOCAL USING METHOD STEADYSTATE SENS STEP WITH FROM TO BY FORALL IF ELSE WHILE START DEPEND
SWEEP FIRST LAST KINETIC CONSERVE REACTION COMPARTMENT LONGITUDINAL_DIFFUSION UNITS UNITSON
UNITSOFF TABLE PUTQ GETQ IFERROR SOLVEFOR PLOT VS LAG RESET MATCH NEURON SUFFIX POINT_PROCESS
ARTIFICIAL_CELL NONSPECIFIC_CURRENT ELECTRODE_CURRENT RANGE GLOBAL POINTER BBCOREPOINTER EXTERNAL
USEION READ WRITE VALENCE CHARGE REPRESENTS THREADSAFE PROTECT MUTEXLOCK MUTEXUNLOCK VERBATIM
ENDVERBATIM COMMENT ENDCOMMENT INCLUDE PROTOCOL NET_RECEIVE FOR_NETCONS WATCH BEFORE AFTER
CONSTRUCTOR DESTRUCTOR RANDOM OPTIONS KEYWORD FILE PI alignas alignof and and_eq asm auto bitand
bitor bool break case catch char class compl const constexpr continue decltype default delete do
double dynamic_cast enum explicit export extern false float friend goto inline int long mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast short signed sizeof static static_assert static_cast struct switch template this
throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t xor
xor_eq std neuron nrn hoc size_t data get field Prop Node Datum Object Symbol Section Memb_list
NrnThread Point_process Npy_Func main stdin stdout stderr errno NULL EOF INFINITY NAN linux unix
f_flux b_flux celcius erf force printf prterr setseed scopmath sparse_thread container terminal
data_handle defined field_index fpfield getarg gind initmodel ivoc_help literal_value mech_type
mechtype modelname need_memb prop_ion register_mech register_nmodl_text_and_filename resize row_view
DoubScal DoubVec HocParmLimits HocParmUnits HocStateTolerance NMODL_TEXT NODEV NPyDirectMechFunc
SparseObj VoidFunc
"""
# Names in the C++ that nocmodl 9.0.2 writes for blocks of every kind, as the tests of exports
# finds them. Its own table of keywords, methods and functions, and units, refuse no name beyond the
# list above: each word in it and in nrnunits.lib was tried. A RANGE variable becomes a macro, so
# that one called `vector` or `delta_t` breaks code in which the word means something else.
_GENERATED_WORDS = """
Args MechanismInstance MechanismRange Member_func NRNGPU NRN_ENABLE_ARCH_INDEP_EXP_POW
NRN_VECTORIZED NewtonSpace abort_run arg args assert cache cerr create_point_process data_array
define delta_t derivimplicit_thread destroy_point_process dptr_field endif euler_thread forward
get_loc_point_process half has_loc_point include ion_reg isnan legacy loc_point_process makematrix
makevector math mechanism model_sorted_token nil non_owning_identifier_without_container
number_of_datum_variables number_of_floating_point_variables point_register_mech pval
register_data_fields set_globals_from_prop std_cerr_stream stdio stdlib undef usetable vector
zero_matrix crout_thread ghk nrn_point_prop_
"""
_RESERVED = frozenset([*_RESERVED_WORDS.split(), *_GENERATED_WORDS.split()])
#: Names of which there are too many to list: blocks and functions of this file, and what NEURON
#: calls its own functions and the columns of its tables. An underscore at the end frees a name.
_RESERVED_FORMS = re.compile(
    r"(scheme|choice|resting)\d*|(hoc|nrn|npy|nmodl|node|cvode|random)_\w*[^\W_]|\w+_columnindex"
)


@dataclass(frozen=True)
class NmodlNames:
    """The names in an NMODL file.

    mechanism: the name of the POINT_PROCESS or SUFFIX.
    parameters: the name in the file of each parameter of the model.
    states: the name in the file of each (chain, state), or None for the closed state of a gate,
        which has no variable of its own.
    """

    mechanism: str
    parameters: Mapping[str, str]
    states: Mapping[tuple[str, str], str | None]


def nmodl_text(model: ChannelModel, kind: Kind = "density", mechanism: str | None = None) -> str:
    """Write a channel as NMODL.

    Arguments:
        model: the channel; a parameter without a value gets the middle of its range.
        kind: "density" for a mechanism that is inserted in a membrane, with ``gbar`` (S/cm2) in
            place of the conductance, or ``pbar`` (cm/s) of a permeability; or "point_process" for
            the channels of a whole cell, with the conductance in nS.
        mechanism: the name of the mechanism, by default that of the model.
    """
    return NmodlWriter(model, kind, mechanism).text()


def nmodl_names(model: ChannelModel, kind: Kind = "density") -> NmodlNames:
    """Return the names that `nmodl_text` gives the parameters and states of a model."""
    return NmodlWriter(model, kind, None).names


def is_gate(chain: Chain) -> bool:
    """Return whether a chain is a gate of two states, which needs only one variable."""
    ends = [(t.source, t.target) for t in chain.transitions]
    return (
        chain.conductances == (0.0, 1.0)
        and sorted(ends) == sorted([chain.states, chain.states[::-1]])
        and chain.states == (f"{chain.name}_closed", f"{chain.name}_open")
    )


def rate_name(chain: Chain, k: int) -> str:
    """Return a name for the rate of a transition, such as alpha_m or k_C_O."""
    t = chain.transitions[k]
    if is_gate(chain):
        return f"{'alpha' if t.target == chain.states[1] else 'beta'}_{chain.name}"
    return f"k_{t.source}_{t.target}"


def opened(chain: Chain, names: Mapping[tuple[str, str], str | None], times: str = "*") -> str:
    """Return the open probability of a chain, by the names of its states in the file."""
    if is_gate(chain):
        text = str(names[chain.name, chain.states[1]])
    else:
        pairs = zip(chain.states, chain.conductances, strict=True)
        terms = [(c, str(names[chain.name, s])) for s, c in pairs if c]
        text = " + ".join(s if c == 1 else f"{number(c)}{times}{s}" for c, s in terms)
        text = f"({text})" if len(terms) > 1 else text
    return text if chain.power == 1 else f"{text}^{chain.power}"


# --- names


class Names:
    """Gives every quantity a name of its own that NEURON accepts."""

    def __init__(self, mechanism: str) -> None:
        self.taken = {mechanism}

    def take(self, name: str) -> None:
        """Keep a name, and those that NEURON derives from it, from all others."""
        self.taken.update(_shadows(name))

    def claim(self, name: str) -> str:
        """Return a name, with underscores at its end if others have it already."""
        while is_reserved(name) or any(n in self.taken for n in _shadows(name)):
            name += "_"
        self.take(name)
        return name


def _shadows(name: str) -> tuple[str, str, str]:
    """Return a name, and NEURON's for its derivative and its initial value."""
    return name, f"D{name}", f"{name}0"


def is_reserved(name: str) -> bool:
    """Return whether a name has a meaning in NMODL, in NEURON or in this file."""
    return name in _RESERVED or _RESERVED_FORMS.fullmatch(name) is not None


def identifier(text: str) -> str:
    """Return the name of a mechanism, made from any text."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    name = name if re.match(r"[A-Za-z]", name) else f"channel_{name}"
    return name + "_" if is_reserved(name) else name


# --- the file


def block(head: str, lines: Iterable[str]) -> str:
    """Return a block of NMODL, with an empty line behind it."""
    return "\n".join([f"{head} {{", *lines, "}", ""])


def parameter_lines(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return the lines of a PARAMETER block: name, value, unit and comment of each, in columns."""
    widths = [max((len(row[k]) for row in rows), default=0) for k in range(3)]
    return [
        f"    {name:<{widths[0]}} = {value:<{widths[1]}} {unit:<{widths[2]}}   : {note}"
        for name, value, unit, note in rows
    ]


class NmodlWriter:
    """Writes the blocks of a file.

    Where two quantities want the same name, the one that claims it first keeps it. What a file is
    for (the oracle here, or a modeller in `results.export.nmodl`) decides on the blocks that say
    what flows; names, states, reactions and their start are the same.

    Attributes:
        first_names: names that the file needs for itself, claimed before all others.
        library: the FUNCTION blocks that expressions may need, by name.
    """

    first_names: tuple[str, ...] = ()
    library: Mapping[str, str] = LIBRARY

    def __init__(self, model: ChannelModel, kind: Kind, mechanism: str | None) -> None:
        if kind not in ("point_process", "density"):
            raise ValueError(f'kind "{kind}" is neither "point_process" nor "density"')
        self.model, self.kind = model, kind
        self.point = kind == "point_process"
        mechanism = identifier(mechanism or model.name)
        names = self.claimed = Names(mechanism)
        for name in self.first_names:
            names.take(name)
        self.instant = [c for c in model.chains if c.instant]
        moving = [c for c in model.chains if not c.instant]
        # NEURON's CVODE takes one block of equations: gates beside a scheme are schemes too
        all_gates = all(is_gate(c) for c in moving)
        self.gates = moving if all_gates else []
        self.schemes = [] if all_gates else moving
        self.state = self._named_states()
        self.parameter = {p.name: names.claim(p.name) for p in model.parameters}
        self.used = self._used()
        self.definition = {n: names.claim(n) for n, _ in model.definitions if n in self.used}
        self.rate = {
            (c.name, k): names.claim(rate_name(c, k))
            for c in model.chains
            for k in range(0 if c.instant else len(c.transitions))
        }
        terms = () if model.ohmic else model.terms
        suffix = {term: "" if len(terms) == 1 else f"_{term.name}" for term in terms}
        self.drive = {term: names.claim(f"drive{suffix[term]}") for term in terms}
        self.density = {
            term: names.claim(f"{'pbar' if term.ion else 'gbar'}{suffix[term]}") for term in terms
        }
        self.names = NmodlNames(mechanism, self.parameter, self.state)
        self.functions = Functions(self.library)
        translated = {**self.parameter, **self.definition}
        self.printer = NmodlPrinter(translated, self.definition, self.functions)

    def _named_states(self) -> dict[tuple[str, str], str | None]:
        """Return the name of each state; None for the closed state of a gate."""
        found: dict[tuple[str, str], str | None] = {}
        for chain in self.model.chains:
            for state in chain.states:
                key = (chain.name, state)
                if is_gate(chain) and state == chain.states[1]:
                    found[key] = self.claimed.claim(chain.name)
                elif is_gate(chain) and chain not in self.schemes:
                    found[key] = None
                else:
                    found[key] = self.claimed.claim(state)
        return found

    def flowing(self) -> list[sympy.Expr]:
        """Return the expressions of currents that the file computes."""
        return [term.drive if self.point else term.shape for term in self.model.terms]

    def _used(self) -> set[str]:
        """Return the names of parameters and definitions that rates and current depend on."""
        model = self.model
        pending = [t.rate for c in model.chains for t in c.transitions]
        pending += self.flowing()
        definitions = dict(model.definitions)
        used: set[str] = set()
        while pending:
            for name in {s.name for s in pending.pop().free_symbols} - used:
                used.add(name)
                if name in definitions:
                    pending.append(definitions[name])
        return used

    # Each of the methods below writes one block of the file.

    def text(self) -> str:
        body = [
            self._neuron(),
            self._assigned(),
            self._states(),
            self._breakpoint(),
            self._initial(),
            self._kinetic(),
            self._derivative(),
            self._rates(),
        ]
        body += self.functions.blocks.values()
        head = [self._title(), body[0], self._unit_block(), self._parameters()]
        return "\n".join(part for part in [*head, *body[1:]] if part)

    def _title(self) -> str:
        model = self.model
        paragraphs = [model.description, model.source and f"Source: {model.source}"]
        if model.temperature_C is not None:
            paragraphs.append(
                f"The rates hold at {model.temperature_C:g} degC, whatever celsius says."
            )
        if not self.point:
            paragraphs.append(self._densities())
        paragraphs += [*self._of_the_method(), "Written by channelfit."]
        lines = [f"TITLE {plain_ascii(model.name)}", "", "COMMENT"]
        for paragraph in filter(None, map(plain_ascii, paragraphs)):
            lines += textwrap.wrap(paragraph, 96)
        return "\n".join([*lines, "ENDCOMMENT", ""])

    def _of_the_method(self) -> list[str]:
        """Return what a reader should know of the integration."""
        if not self.schemes:
            return []
        return [
            "METHOD sparse is implicit Euler, whose error is proportional to dt; with CVODE it is "
            "as small as the tolerance."
        ]

    def _densities(self) -> str:
        values = {p.name: _value(p) for p in self.model.parameters}
        sizes = [
            f"{float(evaluate(term.size, values)):.6g} {'um3/ms' if term.ion else 'nS'}"
            for term in self.model.terms
        ]
        if len(sizes) == 1:
            what = "permeability" if self.model.terms[0].ion else "conductance"
            name = self.density.get(self.model.terms[0], "gbar")
            return (
                f"{name} is a density and belongs to the cell you build; the model's {what} is "
                f"{sizes[0]}, of a whole cell."
            )
        pairs = ", ".join(f"{n} {s}" for n, s in zip(self.density.values(), sizes, strict=True))
        return (
            "These are densities and belong to the cell you build; the model's values, of a whole "
            f"cell, are: {pairs}."
        )

    def _neuron(self) -> str:
        ranges = [
            *self._parameter_names(),
            "i",
            *self.rate.values(),
            *map(self._value_of, self.instant),
        ]
        ranges += self.drive.values()
        lines = textwrap.wrap(", ".join(ranges), 82, break_long_words=False)
        listed = (f"    {'RANGE ' if k == 0 else '      '}{line}" for k, line in enumerate(lines))
        head = [self._declaration(), "    NONSPECIFIC_CURRENT i"]
        return block("NEURON", [*head, *listed, "    THREADSAFE"])

    def _declaration(self) -> str:
        return f"    {'POINT_PROCESS' if self.point else 'SUFFIX'} {self.names.mechanism}"

    def _parameter_names(self) -> list[str]:
        names = [self.parameter[p.name] for p in self._kept_parameters()]
        if not self.model.ohmic:
            return names + ([] if self.point else list(self.density.values()))
        return names + (["erev"] if self._fixed_reversal else []) + ([] if self.point else ["gbar"])

    def _kept_parameters(self) -> list[Parameter]:
        return [p for p in self.model.parameters if self.point or p.name in self.used]

    @property
    def _fixed_reversal(self) -> bool:
        return self.model.ohmic is not None and not self.model.reversal.free_symbols

    def _unit_block(self) -> str:
        units = ["(mV)", "(nA)", "(nS)"] if self.point else ["(mV)", "(mA)", "(S)", "(nS)"]
        return block("UNITS", (f"    {u} = ({SPANS[u]})" for u in units))

    def _parameters(self) -> str:
        rows = []
        for p in self._kept_parameters():
            note = "held fixed" if p.fixed else f"searched from {p.lower:g} to {p.upper:g}"
            unit = UNITS.get(p.unit, "(1)")
            rows.append((self.parameter[p.name], number(_value(p)), unit, note))
        if self._fixed_reversal:
            rows.append(("erev", number(float(self.model.reversal)), "(mV)", "reversal potential"))
        if not self.point and self.model.ohmic:
            rows.append(("gbar", "0.001", "(S/cm2)", "set this for your cell"))
        for term, name in self.density.items() if not self.point else ():
            size, unit = ("0.0001", "(cm/s)") if term.ion else ("0.001", "(S/cm2)")
            rows.append((name, size, unit, "set this for your cell"))
        return block("PARAMETER", parameter_lines(rows)) if rows else ""

    def _assigned(self) -> str:
        rows = [("v", "(mV)"), ("i", "(nA)" if self.point else "(mA/cm2)")]
        rows += [(name, "(/ms)") for name in self.rate.values()]
        rows += [(self._value_of(gate), "(1)") for gate in self.instant]
        rows += [(name, "(1)" if term.ion else "(mV)") for term, name in self.drive.items()]
        return block("ASSIGNED", (f"    {n} {u}" for n, u in rows))

    def _states(self) -> str:
        at_once = {self._value_of(gate) for gate in self.instant}
        names = [n for n in self.state.values() if n and n not in at_once]
        if not names:
            return ""
        return block("STATE", (f"    {line}" for line in textwrap.wrap(" ".join(names), 90)))

    def _breakpoint(self) -> str:
        lines = self._solving(bool(self.instant or self.drive))
        if not self.model.ohmic:
            return block("BREAKPOINT", lines + self._sum_of_terms())
        reversal = "erev" if self._fixed_reversal else self.printer.operand(self.model.reversal)
        opening = "*".join(opened(c, self.state) for c in self.model.chains)
        if self.point:
            size = f"(0.001)*{self.printer.operand(self.model.conductance)}"  # nS mV = 0.001 nA
        else:
            size = "gbar"
        return block("BREAKPOINT", [*lines, f"    i = {size}*{opening}*(v - {reversal})"])

    def _solving(self, called: bool) -> list[str]:
        """Return the first lines of BREAKPOINT.

        Arguments:
            called: whether variables that follow the voltage at once are to be computed.
        """
        lines = ["    SOLVE scheme METHOD sparse"] if self.schemes else []
        lines += ["    SOLVE gates METHOD cnexp"] if self.gates else []
        return lines + ([f"    {self._call}"] if called else [])

    def _sum_of_terms(self) -> list[str]:
        """Return the lines of the current: nS mV, or pA, is 0.001 nA; S/cm2 mV is mA/cm2.

        A drive after Goldman, Hodgkin and Katz is as many pA for each um3/ms as mA/cm2 for each
        cm/s.
        """
        products = []
        for term in self.model.terms:
            size = self.printer.operand(term.size) if self.point else self.density[term]
            chains = [opened(self.model.chains[k], self.state) for k in term.chains]
            products.append("*".join([size, *chains, self.drive[term]]))
        if self.point:
            products = [f"(0.001)*{product}" for product in products]
        return [f"    i = {products[0]}", *(f"    i = i + {product}" for product in products[1:])]

    def _initial(self) -> str:
        lines, local = [f"    {self._call}"], list[str]()
        lines += [f"    {self._value_of(gate)} = {self._limit(gate)}" for gate in self.gates]
        own, settled = self._settled([chain for chain in self.schemes if _tree(chain) is None])
        local, lines = local + own, lines + settled
        for chain in self.schemes:
            steps = _tree(chain)
            if steps is None:
                continue
            local += ["total"] if "total" not in local else []
            states = [str(self.state[chain.name, s]) for s in chain.states]
            lines.append(
                f"    {states[0]} = 1   : the rest by detailed balance, which a tree obeys"
            )
            for near, far, out, back in steps:
                down = self._flow(chain, back)
                ratio = f"{self._flow(chain, out)}/{f'({down})' if '*' in down else down}"
                lines.append(f"    {states[far]} = {states[near]}*{ratio}")
            lines.append(f"    total = {' + '.join(states)}")
            lines += [f"    {s} = {s}/total" for s in states]
        declared = _wrapped(f"LOCAL {', '.join(local)}") if local else []
        return "\n".join(["INITIAL {", *declared, *lines, "}"]) + "\n"

    def _settled(self, cyclic: Sequence[Chain]) -> tuple[list[str], list[str]]:
        """Return local names and lines that set a steady state that is no simple product."""
        return [], ["    SOLVE scheme STEADYSTATE sparse"] if cyclic else []

    @property
    def _call(self) -> str:
        """The call that computes the rates."""
        return "rates(v)"

    def _value_of(self, gate: Chain) -> str:
        """Return the name of the variable that says how far a gate is open."""
        return str(self.state[gate.name, gate.states[1]])

    def _limit(self, gate: Chain) -> str:
        """Return the limit of a gate at a voltage that stands still."""
        a, b = self._gate_rates(gate)
        return f"{a}/({a} + {b})"

    def _approach(self, gate: Chain) -> str:
        (a, b), x = self._gate_rates(gate), self._value_of(gate)
        return f"{a}*(1 - {x}) - {b}*{x}"

    def _gate_rates(self, gate: Chain) -> tuple[str, str]:
        out = next(k for k, t in enumerate(gate.transitions) if t.target == gate.states[1])
        return self.rate[gate.name, out], self.rate[gate.name, 1 - out]

    def _flow(self, chain: Chain, k: int) -> str:
        n, name = chain.transitions[k].multiplicity, self.rate[chain.name, k]
        return name if n == 1 else f"{n}*{name}"

    def _kinetic(self) -> str:
        if not self.schemes:
            return ""
        lines = [f"    {self._call}"]
        for chain in self.schemes:
            lines += self._reactions(chain)
        for chain in self.schemes:
            every = " + ".join(str(self.state[chain.name, s]) for s in chain.states)
            lines.append(f"    CONSERVE {every} = 1")
        return block("KINETIC scheme", lines)

    def _reactions(self, chain: Chain) -> list[str]:
        lines, waiting = [], list(range(len(chain.transitions)))
        while waiting:
            k = waiting.pop(0)
            t = chain.transitions[k]
            back = next((j for j in waiting if _opposite(t, chain.transitions[j])), None)
            if back is not None:
                waiting.remove(back)
            here, there = (self.state[chain.name, s] for s in (t.source, t.target))
            returning = "0" if back is None else self._flow(chain, back)
            lines.append(f"    ~ {here} <-> {there} ({self._flow(chain, k)}, {returning})")
        return lines

    def _derivative(self) -> str:
        if not self.gates:
            return ""
        lines = [f"    {self._call}"]
        lines += [f"    {self._value_of(gate)}' = {self._approach(gate)}" for gate in self.gates]
        return "\n".join(["DERIVATIVE gates {   : exact while v stands still", *lines, "}", ""])

    def _rates(self) -> str:
        lines = []
        if self.definition:
            lines += _wrapped(f"LOCAL {', '.join(self.definition.values())}")
        for name, expression in self.model.definitions:
            if name in self.definition:
                lines.append(f"    {self.definition[name]} = {self.printer.text(expression)}")
        for chain in self.model.chains:
            lines += [f"    {line}" for line in self._rates_of(chain)]
        lines += [f"    {line}" for line in self._extra_rates()]
        head = "PROCEDURE rates(v (mV)) {"
        if self._call != "rates(v)":
            head = f"PROCEDURE rates(v (mV), {CELSIUS} (degC)) {{"
        return "\n".join(["UNITSOFF", "", head, *lines, "}", ""])

    def _extra_rates(self) -> list[str]:
        """Return the lines that set all else that follows the voltage at once."""
        return [f"{name} = {self.printer.text(term.shape)}" for term, name in self.drive.items()]

    def _rates_of(self, chain: Chain) -> list[str]:
        """Return the lines that set the rates of a chain, or its limit if it is instant."""
        if chain.instant:
            assert chain.limit is not None
            return [f"{self._value_of(chain)} = {self.printer.text(chain.limit)}"]
        return [
            f"{self.rate[chain.name, k]} = {self.printer.text(t.rate)}"
            for k, t in enumerate(chain.transitions)
        ]


def _wrapped(text: str) -> list[str]:
    """Return a long line as several, indented."""
    return textwrap.wrap(text, 90, initial_indent="    ", subsequent_indent="        ")


#: Up to so many states, products of ratios of ordinary rates do not overflow.
_MAX_TREE = 9


def _value(p: Parameter) -> float:
    if p.value is not None:
        return p.value
    middle = math.sqrt(p.lower * p.upper) if p.scale == "log" else (p.lower + p.upper) / 2
    return float(middle)


def plain_ascii(text: str) -> str:
    """Return one line of printable ASCII that cannot end the comment in which it stands."""
    printable = "".join(c if c.isprintable() or c.isspace() else "?" for c in text)
    ascii_text = printable.encode("ascii", "replace").decode()
    return re.sub("ENDCOMMENT", "end of comment", " ".join(ascii_text.split()), flags=re.IGNORECASE)


def _opposite(a: Transition, b: Transition) -> bool:
    return (a.source, a.target) == (b.target, b.source)


def _tree(chain: Chain) -> list[tuple[int, int, int, int]] | None:
    """Return the way through a scheme without cycles, from its first state.

    Returns: rows of a state that is known, the next state, and the indices of the transitions out
        and back; None if the scheme has a cycle, parallel transitions, or a transition without a
        way back.
    """
    index = {s: i for i, s in enumerate(chain.states)}
    edges = {(index[t.source], index[t.target]): k for k, t in enumerate(chain.transitions)}
    n = len(index)
    reversible = all(pair[::-1] in edges for pair in edges)
    if len(edges) != len(chain.transitions) or not reversible or len(edges) != 2 * (n - 1):
        return None
    if n > _MAX_TREE:
        return None
    rows, known = [], [0]
    for near in known:  # grows as it is walked
        for a, b in sorted(edges):
            if a == near and b not in known:
                rows.append((near, b, edges[near, b], edges[b, near]))
                known.append(b)
    return rows if len(known) == n else None
