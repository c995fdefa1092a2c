"""A kinetic model of one channel: parameters, chains of states, and the current that they carry.

A model has independent Markov *chains*. A scheme written as states and rates is one chain; each
Hodgkin-Huxley gate is a chain of two states raised to a power. The current is a sum of *terms*,
each a drive (pA, of the voltage) times the open probability of its own chains, which is
``prod_k (conductances_k . occupancies_k) ** power_k``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy

from channelfit.model.evaluation import evaluate
from channelfit.model.terms import V, exprel, linear_in, power, product, sum_of, symbol
from channelfit.reading.errors import Caution, InputError

#: 1/ms. Every backend replaces a rate beyond these bounds by the bound, so that products and
#: quotients of two rates stay numbers of float64, and a steady state stays unique where a rate
#: underflows. Rates between them are not changed, `extremes` lists those beyond, and NEURON, with
#: which simulations are compared, has no such bounds.
RATE_CEILING = 1e100
RATE_FLOOR = 1e-100
#: 1/ms: the ceiling of rates that a GPU computes in float32, with room for sums and products.
SINGLE_CEILING = 1e37
#: 1/ms: the rate of a gate with tau 0, which reaches its limit within any step that float64 can
#: distinguish from 0. The backends set it to its limit at the first sample: `Chain.instant`.
INSTANT_RATE = 1e12
#: A gate with an inf above 1 fails where its "occupancy" is beyond this.
GREATEST_OCCUPANCY = 1e6
#: Magnitude that a conductance, nS, a reversal potential, mV, and a drive, pA, stay below.
GREATEST_GAIN = 1e300
#: Faraday's constant, C/mol, and the gas constant, J/(mol K); and 0 degC in K.
FARADAY, GAS_CONSTANT, ZERO_CELSIUS = 96485.33212, 8.31446261815324, 273.15
#: The name of the temperature, degC, in expressions.
CELSIUS = "celsius"


@dataclass(frozen=True)
class Prior:
    """Knowledge of a parameter before the fit: it, or its logarithm, is normally distributed.

    Attributes:
        kind: "normal" or "lognormal".
        center: the mean, or the median where lognormal, in the parameter's base unit.
        spread: the standard deviation in that unit; where lognormal, the factor that is one
            standard deviation of the logarithm.
    """

    kind: str
    center: float
    spread: float

    def deviation(self, values: Any) -> Any:
        """Return the distance of values, of any shape, from the center in standard deviations."""
        if self.kind == "normal":
            return (values - self.center) / self.spread
        # NumPy's function works on CuPy's arrays too.
        return np.log(values / self.center) / math.log(self.spread)

    def at(self, deviations: Any) -> Any:
        """Return the values at distances from the center in standard deviations."""
        if self.kind == "normal":
            return self.center + self.spread * deviations
        return self.center * self.spread**deviations

    def slope(self, values: Any) -> Any:
        """Return the derivative of `deviation` with respect to the parameter."""
        if self.kind == "normal":
            return 1.0 / self.spread
        return 1.0 / (math.log(self.spread) * values)


@dataclass(frozen=True)
class Parameter:
    """A number of the model that a fit searches for, or that is fixed.

    Attributes:
        name: by which expressions use it.
        unit: the base unit that all its numbers are in; empty for a pure number.
        lower, upper: the range that is searched.
        scale: "linear" or "log", the scale in which the range is searched.
        value: the value for simulations, None where none is known; of a fixed parameter its value.
        fixed: whether it keeps its value.
        prior: its prior distribution; None without one.
        per_cell: whether every cell has a value of its own.
        cells: the names of cells for which the file states other settings, each with these.
        covers: whether the settings here hold for all cells that are not in `cells`.
        input: NEURON's name of it, such as "cai" or "ek", where the cell around the channel
            sets it; empty where it belongs to the channel.
    """

    name: str
    unit: str
    lower: float
    upper: float
    scale: str = "linear"
    value: float | None = None
    fixed: bool = False
    prior: Prior | None = None
    per_cell: bool = False
    cells: tuple[tuple[str, Parameter], ...] = ()
    covers: bool = True
    input: str = ""

    def of_cell(self, cell: str) -> Parameter:
        """Return the parameter as a cell has it, under its own name and no longer per cell.

        Raises: InputError where this cell has no value.
        """
        own = dict(self.cells).get(cell)
        if own is None and not self.covers:
            known = ", ".join(name for name, _ in self.cells)
            raise InputError(
                f'nothing is given for the cell "{cell}", only for {known}; add it, or others',
                key=f"parameters.{self.name}",
            )
        return replace(own or self, per_cell=False, cells=(), covers=True)


def values_of(parameters: Iterable[Parameter]) -> np.ndarray:
    """Return the values of parameters (n_parameters,), base units.

    Raises InputError: one has no value; it names all of these.
    """
    rows = list(parameters)
    missing = [p.name for p in rows if p.value is None]
    if missing:
        by_cell = [cell for p in rows if p.value is None for cell, _ in p.cells]
        which = f" for no cell in particular (there are: {', '.join(dict.fromkeys(by_cell))})"
        raise InputError(
            f"no value is given for {', '.join(missing)}{which if by_cell else ''}; simulating "
            "needs one",
            key="parameters",
        )
    return np.array([p.value for p in rows], dtype=float)


@dataclass(frozen=True)
class Tie:
    """A parameter whose value follows from others, by the definition of the same name.

    Attributes:
        name: of the parameter and of its definition.
        unit: its base unit; empty for a pure number.
        lower, upper: the range in which it must lie, in that unit; None where it has none.
    """

    name: str
    unit: str
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Transition:
    """A transition from one state to another at ``multiplicity * rate``, 1/ms.

    Attributes:
        source, target: names of the states.
        rate: an expression of the model's names and v.
        multiplicity: the number of equal particles, any of which may make it.
        signed: whether the rate may be negative, as (1 - inf)/tau is where a published inf
            exceeds 1.
    """

    source: str
    target: str
    rate: sympy.Expr
    multiplicity: int = 1
    signed: bool = False


@dataclass(frozen=True)
class Chain:
    """An independent Markov chain: a scheme of states, or one gate.

    Attributes:
        name: "scheme", or that of the gate.
        states: their names.
        transitions: between them.
        conductances: of each state, relative to the open channel.
        power: the number of equal copies that must be open together.
        limit, tau: inf and tau (ms) of a gate that was given by these.
    """

    name: str
    states: tuple[str, ...]
    transitions: tuple[Transition, ...]
    conductances: tuple[float, ...]
    power: int = 1
    limit: sympy.Expr | None = None
    tau: sympy.Expr | None = None

    @property
    def is_gate(self) -> bool:
        """True if it was given as a gate, and not as a scheme of states."""
        return self.states == (f"{self.name}_closed", f"{self.name}_open")

    @property
    def linear(self) -> bool:
        """True if it is a gate given by inf and tau, which relaxes even to an inf above 1.

        A gate beside a scheme is not linear: like those of the scheme, its rates are not negative.
        """
        return self.limit is not None and any(t.signed for t in self.transitions)

    @property
    def instant(self) -> bool:
        """True if tau is 0, so that it is at its limit at any voltage without delay."""
        return self.tau is not None and bool(self.tau.is_zero)


@dataclass(frozen=True)
class Ion:
    """The ion that a permeability lets through.

    Attributes:
        valence: its charge, a whole number other than 0.
        inside, outside: concentrations, mM, expressions of parameters alone.
        thermal: mV, RT/F in the exponent, an expression of parameters and of the
            temperature; None for RT/F itself. Published files round the constants of nature.
    """

    valence: int
    inside: sympy.Expr
    outside: sympy.Expr
    thermal: sympy.Expr | None = None


@dataclass(frozen=True)
class Term:
    """One term of the current, outward positive: its drive times the open probability of chains.

    Attributes:
        name: "current", "leak", or the name under which `currents` has it.
        chains: the indices of the model's chains whose open probabilities are multiplied; none for
            a leak, which is always open.
        conductance, reversal: nS and mV, expressions of parameters alone; None where there is a
            permeability.
        rectification: a factor of the drive, of the voltage at that moment; None where it is 1.
        permeability: um3/ms, an expression of parameters alone; None for a conductance.
        ion: what a permeability lets through.
        channels, displacement: of a gating current how many channels there are, an expression of
            parameters alone, and the pA of each, of the voltage at that moment; else None.
    """

    name: str
    chains: tuple[int, ...]
    conductance: sympy.Expr | None = None
    reversal: sympy.Expr | None = None
    rectification: sympy.Expr | None = None
    permeability: sympy.Expr | None = None
    ion: Ion | None = None
    channels: sympy.Expr | None = None
    displacement: sympy.Expr | None = None

    @property
    def ohmic(self) -> bool:
        """True if the drive is conductance * (v - reversal) and nothing else."""
        return self.conductance is not None and self.rectification is None

    @property
    def size(self) -> sympy.Expr:
        """Conductance, nS, permeability, um3/ms, or channels: the drive is proportional to it."""
        (size,) = (x for x in (self.conductance, self.permeability, self.channels) if x is not None)
        return size

    @property
    def shape(self) -> sympy.Expr:
        """The drive per unit of `size`: an expression of the model's names."""
        if self.displacement is not None:
            return self.displacement
        if self.ion is None:
            assert self.reversal is not None
            shape = V - self.reversal
        else:
            shape = _goldman(self.ion)
        return shape if self.rectification is None else product(self.rectification, shape)

    @property
    def drive(self) -> sympy.Expr:
        """The current, pA, of fully open channels: of v, parameters, and names of definitions."""
        return product(self.size, self.shape)


def _goldman(ion: Ion) -> sympy.Expr:
    """Return the current, pA for each um3/ms of permeability, after Goldman, Hodgkin and Katz.

    z F u (inside - outside exp(-u))/(1 - exp(-u)) with u = z F v/(R T), written so that u = 0 needs
    no limit and no exponential can overflow: u/(1 - exp(-u)) is 1/exprel(-u).
    """
    if ion.thermal is None:
        per_mv = sympy.Float(1e-3 * ion.valence * FARADAY / GAS_CONSTANT, 17)
        below = symbol(CELSIUS) + sympy.Float(ZERO_CELSIUS, 17)
    else:
        per_mv, below = sympy.Integer(ion.valence), ion.thermal
    u = product(per_mv, V, power(below, sympy.Integer(-1)))
    inward = product(ion.inside, power(exprel(-u), sympy.Integer(-1)))
    outward = product(sympy.Integer(-1), ion.outside, power(exprel(u), sympy.Integer(-1)))
    # um3/ms mM C/mol = 1e-15 m3/s mol/m3 C/mol = 1e-3 pA
    return product(sympy.Float(1e-3 * ion.valence * FARADAY, 17), sum_of(inward, outward))


@dataclass(frozen=True)
class ChannelModel:
    """A channel: its chains of states, and its current, outward positive.

    Attributes:
        name, description, source: what it is called, what it is, and where it comes from.
        parameters: in the order of the rows of every array of parameters, in base units.
        definitions: named expressions, each after those that it uses. They are never substituted
            into each other, so that a short text cannot grow into a huge expression.
        chains: what opens and closes.
        terms: of the current, which is their sum.
        temperature_C: degC, where it is given.
        ties: parameters that follow from others.
        cautions: warnings about what looks wrong in the file and is used nevertheless.
        ligands: names of concentrations, mM, that a protocol commands beside the voltage; rates
            depend on them, and currents do not.
    """

    name: str
    description: str
    source: str
    parameters: tuple[Parameter, ...]
    definitions: tuple[tuple[str, sympy.Expr], ...]
    chains: tuple[Chain, ...]
    terms: tuple[Term, ...]
    temperature_C: float | None = None
    ties: tuple[Tie, ...] = ()
    cautions: tuple[Caution, ...] = ()
    ligands: tuple[str, ...] = ()

    @property
    def commanded(self) -> tuple[str, ...]:
        """The names in expressions of all that a protocol commands: the voltage, and ligands."""
        return (V.name, *self.ligands)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters' names, in the order of the rows of every array of parameters."""
        return tuple(p.name for p in self.parameters)

    @property
    def one_product(self) -> bool:
        """True if the current, beside leaks, is one drive times one open probability."""
        return sum(bool(term.chains) for term in self.terms) == 1

    @property
    def ohmic(self) -> Term | None:
        """The only term of the current, if its drive is conductance * (v - reversal)."""
        return self.terms[0] if len(self.terms) == 1 and self.terms[0].ohmic else None

    @property
    def conductance(self) -> sympy.Expr:
        """The conductance, nS, of a current of one ohmic term; else ValueError."""
        return self._only_ohmic.size

    @property
    def reversal(self) -> sympy.Expr:
        """The reversal potential, mV, of a current of one ohmic term; else ValueError."""
        reversal = self._only_ohmic.reversal
        assert reversal is not None
        return reversal

    @property
    def _only_ohmic(self) -> Term:
        if self.ohmic is None:
            raise ValueError("the current is not one ohmic term; see ChannelModel.terms")
        return self.ohmic

    @property
    def relaxes(self) -> bool:
        """True if no chain has more than two states, so that each relaxes toward one limit."""
        return all(len(chain.states) <= 2 for chain in self.chains)

    @property
    def _only_chain(self) -> Chain:
        if len(self.chains) != 1 or self.chains[0].power != 1:
            raise ValueError("a model of gates has no single scheme; use expanded()")
        return self.chains[0]

    @property
    def states(self) -> tuple[str, ...]:
        """The states of a scheme. Raises ValueError for a model of gates: see `expanded`."""
        return self._only_chain.states

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The transitions of a scheme. Raises ValueError for a model of gates: see `expanded`."""
        return self._only_chain.transitions

    @property
    def open_states(self) -> dict[str, float]:
        """The conducting states of a scheme and their relative conductances."""
        chain = self._only_chain
        return {s: c for s, c in zip(chain.states, chain.conductances, strict=True) if c}

    def values(self) -> np.ndarray:
        """Return the parameters' values (n_parameters,), base units.

        Raises InputError: a parameter has no value; it names all of these.
        """
        return values_of(self.parameters)

    def tied_values(self, values: np.ndarray) -> dict[str, float]:
        """Return the values of tied parameters by name, base units.

        Arguments:
            values: of the other parameters, (n_parameters,).
        """
        scope: dict[str, Any] = dict(zip(self.parameter_names, values, strict=True))
        needed = self.names_behind(*(tie.name for tie in self.ties))
        for name, expression in self.definitions:
            if name in needed:
                scope[name] = evaluate(expression, scope)
        return {tie.name: float(scope[tie.name]) for tie in self.ties}

    def in_solution(self, **mM: float) -> ChannelModel:
        """Return the model with its ligands as fixed parameters, at concentrations that are given.

        It is that of a bath that does not change: 0 where nothing is given for a ligand.
        """
        fixed = tuple(
            Parameter(name, "mM", c, c, value=c, fixed=True)
            for name, c in ((name, mM.get(name, 0.0)) for name in self.ligands)
        )
        return replace(self, parameters=self.parameters + fixed, ligands=())

    def refuse_ligands(self, why: str) -> None:
        """Raise InputError where rates depend on concentrations, for what does not serve these.

        Arguments:
            why: in words, such as "a design commands the voltage alone".
        """
        if self.ligands:
            raise InputError(
                f"{why}, and rates of {self.name} depend on the concentration of "
                f"{', '.join(self.ligands)}",
                key="ligands",
            )

    def refuse_gating(self, why: str) -> None:
        """Raise InputError for a model with a gating current, for what does not serve it."""
        if any(term.displacement is not None for term in self.terms):
            raise InputError(f"{why}; remove `gating`", key="current.gating")

    def of_cell(self, cell: str) -> ChannelModel:
        """Return the model of one cell, in which no parameter is per cell any more.

        Raises: InputError where nothing says which value or range this cell has.
        """
        return replace(self, parameters=tuple(p.of_cell(cell) for p in self.parameters))

    def with_values(self, values: np.ndarray) -> ChannelModel:
        """Return the same model with other values (n_parameters,) of its parameters."""
        pairs = zip(self.parameters, values, strict=True)
        return replace(self, parameters=tuple(replace(p, value=float(x)) for p, x in pairs))

    def linear_parameters(self) -> dict[str, bool]:
        """Return the free parameters in which the current is visibly a straight line.

        Returns:
            By name, whether the current is even proportional to the parameter, as it is to a
            conductance that multiplies everything else.
        """
        defined = {name for name, _ in self.definitions}
        drives = [term.drive for term in self.terms]
        direct = {s.name for drive in drives for s in drive.free_symbols}
        used = self._rate_names() | self.names_behind(*(direct & defined))
        found = {}
        for p in self.parameters:
            lines = [linear_in(drive, symbol(p.name)) for drive in drives]
            if not p.fixed and p.name not in used and None not in lines:
                found[p.name] = all(line is not None and line[1] == 0 for line in lines)
        return found

    def used_names(self) -> set[str]:
        """Return all names on which a rate or a term of the current depends."""
        rest = {s.name for term in self.terms for s in term.drive.free_symbols}
        return self._rate_names() | self.names_behind(*rest)

    @property
    def follows_temperature(self) -> bool:
        """True if a rate or a term of the current depends on the temperature."""
        return CELSIUS in self.used_names()

    def names_behind(self, *names: str) -> set[str]:
        """Return these names, and all names on which their definitions depend."""
        found = set(names)
        for name, expression in reversed(self.definitions):
            if name in found:
                found |= {s.name for s in expression.free_symbols}
        return found

    def _rate_names(self) -> set[str]:
        """Return the names on which a rate depends, directly or through definitions."""
        rates = [t.rate for chain in self.chains for t in chain.transitions]
        return self.names_behind(*(s.name for rate in rates for s in rate.free_symbols))

    def generator(self) -> sympy.Matrix:
        """Return the generator A (n_states, n_states) of a scheme, 1/ms, with dp/dt = A p.

        A[j, i] is the rate from state i to state j, and every column sums to zero: it is the
        transpose of the Q of Colquhoun and Hawkes.
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
        """Return the equivalent model of a single scheme.

        In it a gate of power q has q + 1 states.

        Raises InputError: a gate without a time constant (tau: 0), which no scheme can be; or
        several currents that open independently.
        """
        if len(self.chains) == 1 and self.chains[0].power == 1:
            return self
        opening = [term for term in self.terms if term.chains]
        if len(opening) > 1:
            raise InputError(
                f"the currents {', '.join(term.name for term in opening)} open independently; one "
                "scheme of states cannot say that"
            )
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
        scheme = Chain("scheme", states, tuple(transitions), conductances)
        terms = tuple(replace(t, chains=(0,)) if t.chains else t for t in self.terms)
        return replace(self, chains=(scheme,), terms=terms)

    def alone(self, term: Term) -> ChannelModel:
        """Return the model with one of its terms, and the chains of that term, alone."""
        chains = tuple(self.chains[k] for k in term.chains)
        only = replace(term, chains=tuple(range(len(chains))))
        return replace(self, chains=chains, terms=(only,))


def _ladder(chain: Chain) -> Chain:
    """Return a gate of power q as one scheme, whose states g0, g1 .. gq count open copies."""
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
