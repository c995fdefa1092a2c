"""A kinetic model of one channel: YAML in, symbolic scheme out.

A model is a product of independent Markov *chains*. A scheme written as states and rates is one
chain; each Hodgkin-Huxley gate is a chain of two states raised to a power. The open probability is
``prod_k (conductances_k . occupancies_k) ** power_k``.
"""

from __future__ import annotations

import itertools
import keyword
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import sympy

from channelfit.model.dimensions import Unit, check_units, uses_of
from channelfit.model.expressions import (
    V,
    definition_order,
    evaluate,
    linear_in,
    moving,
    parse_expression,
    remove_singularities,
    symbol,
)
from channelfit.model.graphs import components
from channelfit.model.reversibility import Cycle, Way, balanced
from channelfit.reading.cautions import Caution
from channelfit.reading.documents import (
    Section,
    check_membrane,
    parse_yaml,
    read_membrane,
    read_text,
)
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.units import Membrane, parse_quantity, shown, unit_factor

#: 1/ms. What every backend takes a rate beyond these for: products and quotients of two rates then
#: stay numbers of float64, and a steady state stays unique where a rate underflows. No rate between
#: them is changed, `extremes` names the ones beyond, and the NEURON oracle knows no bounds at all.
RATE_CEILING = 1e100
RATE_FLOOR = 1e-100
#: 1/ms, of rates that a GPU computes in float32, with room for sums and products.
SINGLE_CEILING = 1e37
#: 1/ms, of a gate whose tau is 0: gone within any step that float64 can tell from none. That it is
#: at its limit from the first sample on is the backends' part, see `Chain.instant`.
INSTANT_RATE = 1e12
#: What a gate whose inf exceeds 1 may reach before it counts as lost.
GREATEST_OCCUPANCY = 1e6
MAX_STATES = 64
_LONGEST = 1000
_POINTS = 6

Refuse: TypeAlias = Callable[[Way, str], InputError]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_MODEL_NAME = re.compile(r"[^\W_][\w .,+()-]{0,79}")
#: A number and a unit such as mS/cm2, which no expression looks like.
_WITH_UNIT = re.compile(
    r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*(?![eE][-+]?\d)[^\W\d_][^*+()]*"
)
_ARROW = re.compile(r"\s*(\w+)\s*(<?)\s*-+\s*>\s*(\w+)\s*")
_NUMBERED_RATE = re.compile(r"k(?:(\d)(\d)|(\d+)_(\d+))")
_NAMED_RATE = re.compile(r"\s*([A-Za-z]\w*)\s*=(?!=)\s*(.+)", re.DOTALL)
_RESERVED = {
    "v",
    "t",
    "celsius",
    "balance",
    "exp",
    "log",
    "sqrt",
    "abs",
    "tanh",
    "min",
    "max",
    "exprel",
    *keyword.kwlist,
}


@dataclass(frozen=True)
class Prior:
    """What is known of a parameter beforehand: it, or its logarithm, is normally distributed.

    kind "normal": center and spread are mean and standard deviation, base units. "lognormal":
    center is the median, and spread the factor that is one standard deviation of the logarithm.
    """

    kind: str
    center: float
    spread: float

    def deviation(self, values: Any) -> Any:
        """How many standard deviations values (any array) lie from the center."""
        if self.kind == "normal":
            return (values - self.center) / self.spread
        # an array's own method would do, but CuPy answers to NumPy's functions too
        return np.log(values / self.center) / math.log(self.spread)

    def slope(self, values: Any) -> Any:
        """The derivative of `deviation` by the parameter."""
        if self.kind == "normal":
            return 1.0 / self.spread
        return 1.0 / (math.log(self.spread) * values)


@dataclass(frozen=True)
class Parameter:
    """One number of the model, in base units; `value` makes surrogate data, or is what is fixed."""

    name: str
    unit: str
    lower: float
    upper: float
    scale: str = "linear"
    value: float | None = None
    fixed: bool = False
    prior: Prior | None = None


@dataclass(frozen=True)
class Tie:
    """A parameter whose value follows from others; among the definitions under its name.

    lower, upper: what it must lie within, base units; None where it is free.
    """

    name: str
    unit: str
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Transition:
    """source -> target at ``multiplicity * rate``, 1/ms.

    signed: whether the rate may be negative, as (1 - inf)/tau is where a published inf exceeds 1.
    """

    source: str
    target: str
    rate: sympy.Expr
    multiplicity: int = 1
    signed: bool = False


@dataclass(frozen=True)
class Chain:
    """Independent Markov chain: states, transitions, relative conductance of each state, power.

    limit, tau: of a gate that was given as inf and tau, ms.
    """

    name: str
    states: tuple[str, ...]
    transitions: tuple[Transition, ...]
    conductances: tuple[float, ...]
    power: int = 1
    limit: sympy.Expr | None = None
    tau: sympy.Expr | None = None

    @property
    def linear(self) -> bool:
        """Whether it relaxes to inf whatever that is: its "occupancy" exceeds 1 where inf does."""
        return self.limit is not None

    @property
    def instant(self) -> bool:
        """Whether tau is 0: at any moment it is at inf of the voltage of that moment."""
        return self.tau is not None and bool(self.tau.is_zero)


@dataclass(frozen=True)
class ChannelModel:
    """A channel: current = conductance * open probability * (v - reversal), pA, outward positive.

    `definitions` are named intermediate expressions in dependency order. They are never
    substituted into each other, so a short text cannot grow into a huge expression.
    """

    name: str
    description: str
    source: str
    parameters: tuple[Parameter, ...]
    definitions: tuple[tuple[str, sympy.Expr], ...]
    chains: tuple[Chain, ...]
    conductance: sympy.Expr
    reversal: sympy.Expr
    temperature_C: float | None = None
    ties: tuple[Tie, ...] = ()
    cautions: tuple[Caution, ...] = ()

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names in the order of the rows of every parameter array."""
        return tuple(p.name for p in self.parameters)

    @property
    def relaxes(self) -> bool:
        """Whether every chain has two states (or one): then each relaxes toward one limit."""
        return all(len(chain.states) <= 2 for chain in self.chains)

    @property
    def _only_chain(self) -> Chain:
        if len(self.chains) != 1 or self.chains[0].power != 1:
            raise ValueError("a model of gates has no single scheme; use expanded()")
        return self.chains[0]

    @property
    def states(self) -> tuple[str, ...]:
        """States of the scheme (of a model of gates: use `expanded()` first)."""
        return self._only_chain.states

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """Transitions of the scheme."""
        return self._only_chain.transitions

    @property
    def open_states(self) -> dict[str, float]:
        """Conducting states and their relative conductances."""
        chain = self._only_chain
        return {s: c for s, c in zip(chain.states, chain.conductances, strict=True) if c}

    def values(self) -> np.ndarray:
        """The parameters' values (n_parameters,), base units. Raises InputError if one has none."""
        missing = [p.name for p in self.parameters if p.value is None]
        if missing:
            raise InputError(
                f"no value is given for {', '.join(missing)}; simulating needs one",
                key="parameters",
            )
        return np.array([p.value for p in self.parameters], dtype=float)

    def tied_values(self, values: np.ndarray) -> dict[str, float]:
        """The values of the ties, base units, for parameters (n_parameters,)."""
        scope: dict[str, Any] = dict(zip(self.parameter_names, values, strict=True))
        names = {tie.name for tie in self.ties}
        needed = self._needed(names)
        for name, expression in self.definitions:
            if name in needed:
                scope[name] = evaluate(expression, scope)
        return {tie.name: float(scope[tie.name]) for tie in self.ties}

    def with_values(self, values: np.ndarray) -> ChannelModel:
        """The same model with these values (n_parameters,)."""
        pairs = zip(self.parameters, values, strict=True)
        return replace(self, parameters=tuple(replace(p, value=float(x)) for p, x in pairs))

    def linear_parameters(self) -> dict[str, bool]:
        """Free parameters in which the current is visibly a straight line, each by itself.

        Returns: by name, whether it is proportional to the parameter, as to a plain conductance.
        """
        used = self._rate_names()
        found = {}
        for p in self.parameters:
            of_conductance, of_reversal = (
                linear_in(e, symbol(p.name)) for e in (self.conductance, self.reversal)
            )
            if p.fixed or p.name in used or of_conductance is None or of_reversal is None:
                continue
            if of_reversal[0] == 0:
                found[p.name] = bool(of_conductance[1] == 0)
            elif of_conductance[0] == 0:
                found[p.name] = False
        return found

    def _rate_names(self) -> set[str]:
        """Names on which a rate depends, directly or through definitions."""
        rates = [t.rate for chain in self.chains for t in chain.transitions]
        return self._needed({s.name for rate in rates for s in rate.free_symbols})

    def _needed(self, names: set[str]) -> set[str]:
        """These names and all that their definitions use."""
        names = set(names)
        for name, expression in reversed(self.definitions):
            if name in names:
                names |= {s.name for s in expression.free_symbols}
        return names

    def generator(self) -> sympy.Matrix:
        """A (n_states, n_states), 1/ms: A[j, i] is the rate i -> j and every column sums to zero.

        This is the transpose of the Q of Colquhoun and Hawkes, so that dp/dt = A p.
        """
        chain = self._only_chain
        index = {s: i for i, s in enumerate(chain.states)}
        matrix = sympy.zeros(len(index), len(index))
        for t in chain.transitions:
            i, j, rate = index[t.source], index[t.target], t.multiplicity * t.rate
            matrix[j, i] += rate
            matrix[i, i] -= rate
        return matrix

    def expanded(self) -> ChannelModel:
        """The equivalent single Markov scheme: a gate of power q becomes q + 1 states."""
        if len(self.chains) == 1 and self.chains[0].power == 1:
            return self
        for chain in self.chains:
            if chain.instant:
                raise InputError(
                    f"the gate {chain.name} has no time constant (tau: 0); a scheme of states "
                    "cannot say that"
                )
        ladders = [_ladder(chain) for chain in self.chains]
        tuples = list(itertools.product(*(ladder.states for ladder in ladders)))
        transitions = []
        for k, ladder in enumerate(ladders):
            for t in ladder.transitions:
                for here in tuples:
                    if here[k] == t.source:
                        there = (*here[:k], t.target, *here[k + 1 :])
                        transitions.append(
                            replace(t, source="_".join(here), target="_".join(there))
                        )
        levels = [dict(zip(ld.states, ld.conductances, strict=True)) for ld in ladders]
        conductances = tuple(
            math.prod(level[s] for level, s in zip(levels, state, strict=True)) for state in tuples
        )
        states = tuple("_".join(state) for state in tuples)
        return replace(self, chains=(Chain("scheme", states, tuple(transitions), conductances),))


def _ladder(chain: Chain) -> Chain:
    """n identical copies of a two-state gate, counted by how many are open: states g0, g1 .. gq."""
    if chain.power == 1:
        return chain
    opening, closing = chain.transitions
    q, g = chain.power, chain.name
    steps = []
    for k in range(q):
        steps.append(Transition(f"{g}{k}", f"{g}{k + 1}", opening.rate, q - k))
        steps.append(Transition(f"{g}{k + 1}", f"{g}{k}", closing.rate, k + 1))
    conductances = (0.0,) * q + (1.0,)
    return Chain(g, tuple(f"{g}{k}" for k in range(q + 1)), tuple(steps), conductances)


# --- from YAML ---------------------------------------------------------------------------------


def load_model(path: str | os.PathLike[str]) -> ChannelModel:
    """The model in a YAML file, or in a file of the 2012 paper's compact form.

    Raises:
        InputError: anything that cannot be used, with file, key and what would be right.
    """
    return build_model(read_model_document(path), path)


def read_model_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The model file as plain data; the printed ``model: { ... };`` form becomes YAML first."""
    text = read_text(path)
    try:
        return parse_yaml(text, path)
    except InputError:
        if not re.match(r"\s*(//[^\n]*\s*)*model\s*[:=]\s*(//[^\n]*\s*)*\{", text):
            raise
    return parse_yaml(_from_printed_form(text), path)


def build_model(document: Mapping[str, Any], file: str | os.PathLike[str] | None) -> ChannelModel:
    """A model from plain data; `file` names its origin in errors."""
    root = Section(modern_form(document, file), file)
    root.expect(KEYS["model"])
    names = {
        "name": _model_name(root, file),
        "description": root.text("description", ""),
        "source": root.text("source", ""),
    }
    celsius = root.quantity("temperature", "temperature", None)
    current = root.section("current")
    current.expect(KEYS["current"])
    membrane = read_membrane(current)
    rows = list(root.rows("parameters", {}))
    tied = [row for row in rows if isinstance(row[1], Mapping) and row[1].get("tie") is not None]
    parameters = tuple(_parameter(root, membrane, *row) for row in rows if row not in tied)
    scope = _Scope(root, parameters, celsius)
    scope.ties = tuple(_tie(root, scope, membrane, *row) for row in tied)
    scope.define(root.rows("definitions", {}), "definitions")
    if "gates" in root:
        if "states" in root or "rates" in root:
            raise root.error("give either gates, or states and rates, not both")
        chains = _gates(root, scope)
    else:
        chains = (_scheme(root, scope),)
    return _finish(root, scope, names, parameters, chains, current, membrane, celsius)


def modern_form(
    document: Mapping[str, Any], file: str | os.PathLike[str] | None
) -> Mapping[str, Any]:
    """A model document as it is; one in the compact form of 2012 by the keys of a model file."""
    if not is_printed_form(document):
        return document
    root = Section(document, file)
    root.expect(KEYS["printed file"])
    return _from_compact(root.section("model"), Path(file).stem if file else "model")


def is_printed_form(document: Mapping[str, Any]) -> bool:
    """Whether a document is in the 2012 paper's compact form."""
    return isinstance(document.get("model"), Mapping)


def _model_name(root: Section, file: str | os.PathLike[str] | None) -> str:
    """The model's name, which ends up in titles, file names and generated code."""
    stem = re.sub(r"[^\w .,+()-]", "_", Path(file).stem).lstrip("_ .,+()-")[:80] if file else ""
    return checked_name(root, root.text("name", stem or "model"), "a model's name")


def checked_name(root: Section, name: str, what: str) -> str:
    """A name that can stand in titles, file names and generated code. Raises InputError."""
    if not _MODEL_NAME.fullmatch(name):
        raise root.error(
            f"{shown(name)} cannot be {what}; use up to 80 letters, digits, spaces "
            "and . , + - _ ( )",
            "name",
        )
    return name


class _Scope:
    """The names an expression may use, and the definitions collected so far."""

    def __init__(self, root: Section, parameters: tuple[Parameter, ...], celsius: float | None):
        self.root = root
        self.names = ["v", *(p.name for p in parameters)]
        self.definitions: dict[str, sympy.Expr] = {}
        self.texts: dict[str, tuple[str, object]] = {}
        #: Text and expression of all that was parsed, by dotted key, as the user wrote it.
        self.read: dict[str, tuple[str, sympy.Expr]] = {}
        self.ties: tuple[Tie, ...] = ()
        self.cycles: list[tuple[Cycle, dict[Way, sympy.Expr], Refuse]] = []
        if celsius is not None:
            self.names.append("celsius")
            self.definitions["celsius"] = sympy.Float(celsius, 17)

    def announce(self, name: str, key: str) -> None:
        """Make a definition's name usable by every expression; refuse bad and repeated names."""
        _check_name(self.root, name, key)
        if name in self.names:
            raise self.root.error(f'"{name}" already names something else', key)
        self.names.append(name)

    def define(self, rows: Any, key: str) -> None:
        """Announce a block of definitions; they are parsed once all names are known."""
        for name, text in rows:
            self.announce(name, f"{key}.{name}")
            self.texts[name] = (f"{key}.{name}", text)

    def parse(self, text: object, key: str, unmentioned: Collection[str] = ()) -> sympy.Expr:
        """Text to SymPy, with removable singularities made exact."""
        if not isinstance(text, (str, int, float)) or isinstance(text, bool):
            raise self.root.error(f"an expression was expected, not {shown(text)}", key)
        try:
            written = parse_expression(text, self.names, unmentioned)
            self.read[self.root.path(key)] = str(text), written
            return remove_singularities(written)
        except InputError as error:
            raise error.at(self.root.file, self.root.path(key)) from None

    def finish(self) -> tuple[tuple[str, sympy.Expr], ...]:
        """All definitions in dependency order."""
        for name, (key, text) in self.texts.items():
            self.definitions[name] = self.parse(text, key)
        try:
            order = definition_order(self.definitions)
        except InputError as error:
            raise error.at(self.root.file, self.root.path("definitions")) from None
        return tuple((name, self.definitions[name]) for name in order)


def _check_name(root: Section, name: str, key: str) -> None:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        why = "is a reserved word" if name in _RESERVED else "cannot be a name"
        raise root.error(
            f'"{name[:40]}" {why}; use a letter, then letters, digits or _, e.g. a12', key
        )


def _parameter(root: Section, membrane: Membrane, name: str, row: object) -> Parameter:
    key = f"parameters.{name}"
    _check_name(root, name, key)
    section = Section(row, root.file, root.path(key))
    section.expect(KEYS["parameter"])
    section.take("tie", None)
    factor, unit = _unit(section, membrane)
    value = section.number("value", None)
    value = None if value is None else factor * value
    fixed = section.flag("fixed", False)
    if fixed and value is None:
        raise section.error("a fixed parameter needs a value", "value")
    lower = upper = value or 0.0
    if "range" in section or not fixed:
        lower, upper = _range(section, factor)
    parameter = Parameter(
        name,
        unit,
        lower,
        upper,
        section.choice("scale", ("linear", "log"), "linear"),
        value,
        fixed,
    )
    prior = _prior(section, parameter, factor)
    section.finish()
    _check_parameter(section, parameter)
    return replace(parameter, prior=prior)


def _tie(root: Section, scope: _Scope, membrane: Membrane, name: str, row: object) -> Tie:
    key = f"parameters.{name}"
    section = Section(row, root.file, root.path(key))
    section.expect(KEYS["parameter"])
    for other in ("fixed", "prior"):
        if section.take(other, None):
            raise section.error(f"a tied parameter follows from others; leave {other} out", other)
    factor, unit = _unit(section, membrane)
    for dormant in ("value", "scale"):  # what it was when it was free
        section.take(dormant, None)
    scope.announce(name, key)
    scope.texts[name] = (f"{key}.tie", section.take("tie"))
    if "range" not in section:
        return Tie(name, unit)
    lower, upper = _range(section, factor)
    if not lower < upper:
        raise section.error(f"{lower:g} is not below {upper:g}", "range")
    return Tie(name, unit, lower, upper)


def _unit(section: Section, membrane: Membrane) -> tuple[float, str]:
    """The factor to the base unit, and its name."""
    try:
        factor, unit = unit_factor(section.text("unit", ""), membrane=membrane)
    except InputError as error:
        raise error.at(section.file, section.path("unit")) from None
    return factor, "" if unit in ("1", "dimensionless") else unit


def _range(section: Section, factor: float) -> tuple[float, float]:
    span = section.items("range")
    if len(span) != 2:
        raise section.error(f"a range is [lower, upper], not {shown(span)}", "range")
    lower, upper = (factor * _number(section, x, "range") for x in span)
    return lower, upper


def _prior(section: Section, p: Parameter, factor: float) -> Prior | None:
    """``{normal: [mean, sd]}`` or ``{lognormal: [median, factor]}``, in the parameter's unit."""
    if section.take("prior", None) is None:
        return None
    if p.fixed:
        raise section.error("a fixed parameter has no prior", "prior")
    row = section.section("prior")
    row.expect(KEYS["prior"])
    if ("normal" in row) == ("lognormal" in row):
        raise row.error("either normal: [mean, sd] or lognormal: [median, factor] was expected")
    kind = "normal" if "normal" in row else "lognormal"
    pair = row.items(kind)
    if len(pair) != 2:
        raise row.error(f"two numbers were expected, not {shown(pair)}", kind)
    center, spread = (_number(row, x, kind) for x in pair)
    if kind == "normal":
        if spread <= 0:
            raise row.error(f"a standard deviation above 0 was expected, not {spread:g}", kind)
        return Prior(kind, factor * center, factor * spread)
    if center <= 0 or spread <= 1:
        raise row.error(
            f"a median above 0 and a factor above 1 were expected, not {center:g} and {spread:g}",
            kind,
        )
    if p.lower <= 0:
        raise row.error("a lognormal prior needs a range that starts above 0", kind)
    return Prior(kind, factor * center, spread)


def _number(section: Section, value: object, key: str) -> float:
    try:
        return parse_quantity(value, "none")
    except InputError as error:
        raise error.at(section.file, section.path(key)) from None


def _check_parameter(section: Section, p: Parameter) -> None:
    if p.fixed:
        return
    if not p.lower < p.upper:
        raise section.error(
            f"the lower end {p.lower:g} is not below the upper end {p.upper:g}; "
            f"to hold a parameter still write `fixed: true`",
            "range",
        )
    if p.scale == "log" and p.lower <= 0:
        raise section.error(
            f"a log scale needs a lower end above 0, not {p.lower:g}; try {p.upper * 1e-6:g}",
            "range",
        )
    if p.value is not None and not p.lower <= p.value <= p.upper:
        raise section.error(
            f"the value {p.value:g} lies outside the range [{p.lower:g}, {p.upper:g}]; change "
            "either, or leave the value out where no data are simulated from it",
        )


def _scheme(root: Section, scope: _Scope) -> Chain:
    states = [str(s) for s in root.items("states")]
    for state in states:
        _check_name(root, state, "states")
    if len(set(states)) < len(states):
        raise root.error(f"a state is named twice in {', '.join(states)}", "states")
    if not 1 <= len(states) <= MAX_STATES:
        raise root.error(f"1 to {MAX_STATES} states are accepted, not {len(states)}", "states")
    pending, to_balance = [], {}
    for key, text in root.rows("rates", {}):
        source, target = _ends(root, key, states)
        named = _NAMED_RATE.fullmatch(text) if isinstance(text, str) else None
        name = named[1] if named else key if _NUMBERED_RATE.fullmatch(key) else None
        text = named[2] if named else text
        if _is_balance(text):
            to_balance[source, target] = key, name
            if name:
                scope.announce(name, f"rates.{key}")
        elif name:
            scope.define([(name, text)], f"rates.{key}" if named else "rates")
        pending.append((source, target, key, name, text))
    transitions = []
    for source, target, key, name, text in pending:
        free = not name and not _is_balance(text)
        rate = scope.parse(text, f"rates.{key}") if free else symbol(name or "balance")
        transitions.append(Transition(source, target, rate))
    _check_scheme(root, states, transitions)
    if to_balance:
        transitions = _balance(root, scope, transitions, to_balance)
    return Chain("scheme", tuple(states), tuple(transitions), (0.0,) * len(states))


def _is_balance(text: object) -> bool:
    return isinstance(text, str) and text.strip() == "balance"


def _balance(
    root: Section,
    scope: _Scope,
    transitions: list[Transition],
    to_balance: Mapping[Way, tuple[str, str | None]],
) -> list[Transition]:
    """The transitions with a definition for every rate that is to balance."""
    rates = {(t.source, t.target): t.rate for t in transitions}
    for way, (_, name) in to_balance.items():
        if name is None:
            name = f"k_{way[0]}_{way[1]}"
            while name in scope.names or name in _RESERVED:
                name += "_"
            scope.names.append(name)
        rates[way] = symbol(name)

    def refuse(way: Way, message: str) -> InputError:
        return root.error(message, f"rates.{to_balance[way][0]}")

    found, cycles = balanced(rates, list(to_balance), refuse)
    for way, expression in found.items():
        scope.definitions[rates[way].name] = expression
    scope.cycles = [(cycle, rates, refuse) for cycle in cycles]
    return [replace(t, rate=rates[t.source, t.target]) for t in transitions]


def _ends(root: Section, key: str, states: list[str]) -> tuple[str, str]:
    """Source and target of ``C1 -> C2`` or of the numbered form ``k12`` (states count from 1)."""
    if arrow := _ARROW.fullmatch(key):
        if arrow[2]:
            raise root.error(
                "write two lines, A -> B and B -> A, one for each rate", f"rates.{key}"
            )
        ends = [arrow[1], arrow[3]]
    elif match := _NUMBERED_RATE.fullmatch(key):
        numbers = [int(d) for d in match.groups() if d is not None]
        if not all(1 <= n <= len(states) for n in numbers):
            raise root.error(f"{key} points beyond the {len(states)} states", f"rates.{key}")
        ends = [states[n - 1] for n in numbers]
    else:
        raise root.error(
            f'"{key[:40]}" is not a transition; write A -> B (or k12 for the first to the second)',
            "rates",
        )
    for state in ends:
        if state not in states:
            raise root.error(f'unknown state "{state}". Known: {", ".join(states)}', f"rates.{key}")
    if ends[0] == ends[1]:
        raise root.error("a transition must lead to another state", f"rates.{key}")
    return ends[0], ends[1]


def _check_scheme(root: Section, states: list[str], transitions: list[Transition]) -> None:
    """Sweeps start from the steady state, so every state must be reachable from every other."""
    pairs = [(t.source, t.target) for t in transitions]
    if len(set(pairs)) < len(pairs):
        twice = next(p for p in pairs if pairs.count(p) > 1)
        raise root.error(f"{twice[0]} -> {twice[1]} is given twice", "rates")
    n = len(states)
    leads = np.zeros((n, n), dtype=bool)
    for source, target in pairs:
        leads[states.index(source), states.index(target)] = True
    for k, state in enumerate(states if n > 1 else []):
        if not leads[:, k].any():
            raise root.error(f"state {state} cannot be reached: no transition leads to it", "rates")
        if not leads[k].any():
            raise root.error(
                f"state {state} cannot be left, so at steady state the channel is never anywhere "
                f"else; add a transition out of {state} (its rate may be tiny)",
                "rates",
            )
    label = components(leads)
    if label.any():
        groups = [
            [s for s, part in zip(states, label, strict=True) if part == k]
            for k in dict.fromkeys(label)
        ]
        raise root.error(
            "some states cannot be reached from the others; these groups are not connected both "
            f"ways: {' | '.join(', '.join(group) for group in groups)}",
            "rates",
        )


def _gates(root: Section, scope: _Scope) -> tuple[Chain, ...]:
    chains = []
    for name, row in root.rows("gates"):
        _check_name(root, name, f"gates.{name}")
        gate = Section(row, root.file, root.path(f"gates.{name}"))
        gate.expect(KEYS["gate"])
        power = gate.integer("power", 1, least=1)
        if power > 8:
            raise gate.error(f"a power from 1 to 8 is accepted, not {power}", "power")
        inf = tau = None
        if "alpha" in gate or "beta" in gate:
            alpha, beta = (
                scope.parse(gate.take(k), f"gates.{name}.{k}") for k in ("alpha", "beta")
            )
        else:
            inf, tau = (scope.parse(gate.take(k), f"gates.{name}.{k}") for k in ("inf", "tau"))
            if tau.is_number and not tau >= 0:
                raise gate.error(f"a time of 0 or more was expected, not {shown(str(tau))}", "tau")
            time = 1 / sympy.Float(INSTANT_RATE, 17) if tau.is_zero else tau
            alpha, beta = inf / time, (1 - inf) / time
        gate.finish()
        shut, opened = f"{name}_closed", f"{name}_open"
        steps = (
            Transition(shut, opened, alpha),
            Transition(opened, shut, beta, signed=inf is not None),
        )
        chains.append(Chain(name, (shut, opened), steps, (0.0, 1.0), power, inf, tau))
    if not chains:
        raise root.error("at least one gate is needed", "gates")
    if math.prod(c.power + 1 for c in chains) > MAX_STATES:
        raise root.error(f"the equivalent scheme has more than {MAX_STATES} states", "gates")
    return tuple(chains)


def _finish(
    root: Section,
    scope: _Scope,
    names: dict[str, str],
    parameters: tuple[Parameter, ...],
    chains: tuple[Chain, ...],
    current: Section,
    membrane: Membrane,
    celsius: float | None,
) -> ChannelModel:
    if "gates" in root:
        if "open" in current:
            raise current.error("gates conduct when all are open; leave `open` out", "open")
    else:
        chains = (replace(chains[0], conductances=_open(current, chains[0].states)),)
    definitions = scope.finish()
    inner = _Scope(current, (), None)
    inner.names, changing = scope.names, moving(definitions) | {V.name}
    inner.read = scope.read
    conductance = _constant(current, inner, changing, "conductance", "conductance", membrane)
    reversal = _constant(current, inner, changing, "reversal", "voltage", membrane)
    check_membrane(current, membrane, "the conductance and the units of the parameters are")
    _check_ties(root, scope.ties, definitions)
    conductance, reversal = (
        _untied(current, key, expression, scope.ties, definitions)
        for key, expression in (("conductance", conductance), ("reversal", reversal))
    )
    model = ChannelModel(
        names["name"],
        names["description"],
        names["source"],
        parameters,
        definitions,
        chains,
        conductance,
        reversal,
        celsius,
        scope.ties,
    )
    _check_use(root, model)
    _check_cycles(model, scope)
    return replace(model, cautions=_unit_cautions(root, model, scope))


def _unit_cautions(root: Section, model: ChannelModel, scope: _Scope) -> tuple[Caution, ...]:
    """Units that look wrong. Raises InputError where they contradict each other."""
    rows = dict(root.rows("parameters", {}))
    stated: list[Parameter | Tie] = [*model.parameters, *model.ties]
    written = {p.name: str(rows[p.name].get("unit", "")).strip() for p in stated}
    units = {p.name: Unit(written[p.name], p.unit or "1") for p in stated if written[p.name]}
    units |= {"celsius": Unit("degC", "degC")} if model.temperature_C is not None else {}
    names = {name: scope.texts[name][0] for name, _ in model.definitions if name in scope.texts}
    return check_units(
        uses_of(scope.read, names, units),
        units,
        root.error,
        lambda key: f"{root.file}: {key}" if root.file else key,
    )


def _check_ties(
    root: Section, ties: tuple[Tie, ...], definitions: tuple[tuple[str, sympy.Expr], ...]
) -> None:
    changing = moving(definitions)
    for tie in ties:
        if tie.name in changing:
            raise root.error(
                "depends on v; a parameter does not change with the voltage",
                f"parameters.{tie.name}.tie",
            )


def _untied(
    current: Section,
    key: str,
    expression: sympy.Expr,
    ties: tuple[Tie, ...],
    definitions: tuple[tuple[str, sympy.Expr], ...],
) -> sympy.Expr:
    """A conductance or reversal in terms of parameters alone, without names of definitions."""
    known = dict(definitions)
    size: dict[str, int] = {}
    for name, by in definitions:
        size[name] = sum(
            size.get(node.name, 1) if node.is_Symbol else 1 for node in sympy.preorder_traversal(by)
        )
    if any(size.get(s.name, 0) > _LONGEST for s in expression.free_symbols):
        raise current.error("the definitions behind it grow too long when put together", key)
    through = sorted(
        s.name for s in expression.free_symbols if s.name in moving(definitions) - {V.name}
    )
    while used := [s for s in expression.free_symbols if s.name in known]:
        expression = expression.xreplace({s: known[s.name] for s in used})
    if V in expression.free_symbols:
        by = f" through {', '.join(through)}" if through else ""
        text = shown(current.take(key))
        raise current.error(f"{text} depends on v{by}; the {key} does not change with it", key)
    return expression


def _check_cycles(model: ChannelModel, scope: _Scope) -> None:
    """Whether all cycles that share transitions with a balanced rate ask for the same rate.

    Two products of rates are taken for equal where they agree at random values and voltages.
    """
    draw = np.random.Generator(np.random.Philox(0))
    values: dict[str, Any] = {V.name: draw.uniform(-100, 50, _POINTS)}
    for p in model.parameters:
        share = draw.uniform(0.2, 0.8, _POINTS)
        if p.fixed:
            values[p.name] = np.full(_POINTS, p.value)
        elif p.scale == "log":
            values[p.name] = p.lower * (p.upper / p.lower) ** share
        else:
            values[p.name] = p.lower + (p.upper - p.lower) * share
    for name, expression in model.definitions if scope.cycles else ():
        values[name] = evaluate(expression, values)
    for cycle, rates, refuse in scope.cycles:
        with np.errstate(all="ignore"):
            ratio = np.ones(_POINTS)
            for way in cycle.ways:
                ratio = ratio * evaluate(rates[way], values) / evaluate(rates[way[::-1]], values)
        ratio = ratio[np.isfinite(ratio)]
        if not ratio.size or np.abs(ratio - 1).max() > 1e-8:
            raise refuse(
                cycle.decides,
                f"several cycles pass here and would ask for different rates, because {cycle} does "
                "not balance by itself; write balance for one of its rates too",
            )


def _open(current: Section, states: tuple[str, ...]) -> tuple[float, ...]:
    raw = current.take("open")
    listed = raw if isinstance(raw, Mapping) else dict.fromkeys(current.items("open"), 1.0)
    weights = {str(s): _number(current, w, f"open.{s}") for s, w in listed.items()}
    for state, weight in weights.items():
        if state not in states:
            raise current.error(f'unknown state "{state}". Known: {", ".join(states)}', "open")
        if weight <= 0:
            raise current.error(
                f"a relative conductance above 0 was expected, not {weight:g}", f"open.{state}"
            )
    if not weights:
        raise current.error("at least one open state is needed", "open")
    return tuple(weights.get(s, 0.0) for s in states)


def _constant(
    current: Section,
    scope: _Scope,
    changing: set[str],
    key: str,
    dimension: str,
    membrane: Membrane,
) -> sympy.Expr:
    """A quantity (``-100 mV``), or an expression of parameters and of definitions without v.

    changing: names that depend on the voltage, which are refused later and not offered here.
    """
    raw = current.take(key)
    try:
        return sympy.Float(parse_quantity(raw, dimension, membrane), 17)
    except InputError as error:
        if not isinstance(raw, str) or _WITH_UNIT.fullmatch(raw):
            raise error.at(current.file, current.path(key)) from None
    return scope.parse(raw, key, changing)


def _check_use(root: Section, model: ChannelModel) -> None:
    used: set[str] = set()
    rates = [t.rate for chain in model.chains for t in chain.transitions]
    pending = [model.conductance, model.reversal, *rates]
    definitions = dict(model.definitions)
    while pending:
        for name in {s.name for s in pending.pop().free_symbols} - used:
            used.add(name)
            if name in definitions:
                pending.append(definitions[name])
    for p in model.parameters:
        if p.name not in used and not p.fixed:
            raise root.error(
                "this parameter changes nothing: no rate, conductance or reversal uses it; "
                "remove it or write `fixed: true`",
                f"parameters.{p.name}",
            )


# --- the 2012 paper's form -----------------------------------------------------------------------


def _from_printed_form(text: str) -> str:
    """``name = "a12"; ( ... )`` with // comments, as printed, turned into YAML flow style."""
    parts = re.split(r'("[^"\n]*")', re.sub(r"//[^\n]*", "", text))
    swap = str.maketrans({"=": ":", ";": ",", "(": "[", ")": "]"})
    parts[::2] = [re.sub(r":(?=\S)", ": ", part.translate(swap)) for part in parts[::2]]
    # In braces, so that YAML does not ask for an indentation that the printed text lacks.
    return "{" + re.sub(r",\s*$", "", "".join(parts).rstrip()) + "}"


def _from_compact(root: Section, name: str) -> dict[str, Any]:
    """The compact form of Ben-Shalom et al. 2012: numbered states, ``k12 = ...``, gmax last."""
    root.expect(KEYS["printed model"])
    n_states = root.integer("nStates", least=1)
    if n_states > MAX_STATES:
        raise root.error(f"1 to {MAX_STATES} states are accepted, not {n_states}", "nStates")
    rows = [
        Section(row, root.file, root.path(f"params[{i}]"))
        for i, row in enumerate(root.items("params"), 1)
    ]
    for row in rows:
        row.expect(KEYS["printed parameter"])
    _check_count(root, "nParams", len(rows))
    parameters = {}
    for row in rows:
        ends = [row.number("min"), row.number("max")]
        last = row is rows[-1]
        entry = {"range": ends, "value": row.number("val"), "unit": "nS" if last else ""}
        parameters[row.text("name")] = entry
    rates = {}
    for i, line in enumerate(root.items("rates"), 1):
        named = _NAMED_RATE.fullmatch(line) if isinstance(line, str) else None
        if not named:
            raise root.error(f'{shown(line)} is not of the form "k12 = ..."', f"rates[{i}]")
        if named[1] in rates:
            raise root.error(f"{named[1]} is given twice", f"rates[{i}]")
        rates[named[1]] = named[2]
    states = [f"S{i}" for i in range(1, n_states + 1)]
    numbers = root.items("openStates")
    _check_count(root, "nOpenStates", len(numbers))
    if not all(isinstance(k, int) and 1 <= k <= n_states for k in numbers):
        raise root.error(f"{shown(numbers)} are not numbers from 1 to {n_states}", "openStates")
    reversal = root.quantity("eRev", "voltage")
    if not parameters:
        raise root.error("at least the conductance is needed", "params")
    return {
        "name": name,
        "states": states,
        "rates": rates,
        "parameters": parameters,
        "current": {
            "open": [states[k - 1] for k in numbers],
            "conductance": list(parameters)[-1],
            "reversal": reversal,
        },
    }


def _check_count(root: Section, key: str, count: int) -> None:
    said = root.integer(key, count)
    if said != count:
        raise root.error(f"{said} are announced but {count} are given", key)
