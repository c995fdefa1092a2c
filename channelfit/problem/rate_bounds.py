"""Bounds on rates and on tied parameters, which candidates must keep besides their own ranges.

A fit may require a rate to stay within bounds at all voltages. Published bounds concern every value
of a rate, or only the largest over the voltages (Beattie et al. 2018, J Physiol 596:1813); between
the ends of the protocol, or at given voltages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import sympy

from channelfit.model.channel import CELSIUS, ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.terms import V, moving, parts_of, symbol
from channelfit.problem.experiment import Problem
from channelfit.problem.protocol import Protocol
from channelfit.reading.documents import Section
from channelfit.reading.errors import shown
from channelfit.reading.keys import KEYS

#: The number of voltages at which a rate is evaluated that may rise and fall between the ends.
_GRID = 49


@dataclass(frozen=True, eq=False)
class Bounded:
    """An expression that must stay within bounds, or the candidate is not scored.

    Attributes:
        name: of the rate or parameter, for messages.
        expression: of parameters, definitions and v.
        definitions: those that the expression needs, each after those that it uses.
        rows: by the name of a parameter that it depends on, its row in an array of parameters.
        lower, upper: the bounds, in base units.
        voltages_mV: where it is evaluated; empty where it does not depend on the voltage.
        largest: whether only the largest of its values must lie within the bounds.
    """

    name: str
    expression: sympy.Expr
    definitions: tuple[tuple[str, sympy.Expr], ...]
    rows: dict[str, int]
    lower: float
    upper: float
    voltages_mV: tuple[float, ...] = ()
    largest: bool = False

    @property
    def places(self) -> frozenset[int]:
        """The rows of the parameters on which it depends."""
        return frozenset(self.rows.values())

    @cached_property
    def _changing(self) -> set[str]:
        """The names of definitions that change with the voltage."""
        return moving(self.definitions)

    def allowed(self, physical: Any, xp: Any = np) -> Any:
        """Return whether each candidate keeps within the bounds.

        Arguments:
            physical: (n_parameters, n_candidates) base units, an array of the module xp.
            xp: NumPy or CuPy.

        Returns: (n_candidates,) bool.
        """
        scope = {name: physical[row] for name, row in self.rows.items()}
        for name, expression in self.definitions:
            if name not in self._changing:
                scope[name] = evaluate(expression, scope, xp)
        inside = xp.ones(physical.shape[1], dtype=bool)
        largest = xp.full(physical.shape[1], -np.inf)
        for v in self.voltages_mV or (0.0,):
            at_v = {**scope, V.name: v}
            for name, expression in self.definitions:
                if name in self._changing:
                    at_v[name] = evaluate(expression, at_v, xp)
            value = evaluate(self.expression, at_v, xp)
            if self.largest:
                largest = xp.maximum(largest, value)
            else:
                inside &= (value >= self.lower) & (value <= self.upper)
        if self.largest:
            inside = (largest >= self.lower) & (largest <= self.upper)
        return inside


def rate_names(model: ChannelModel) -> dict[str, sympy.Expr]:
    """Return all rates by the names that users write: ``C -> O``, or ``n.alpha``, ``n.beta``."""
    rates = {}
    for chain in model.chains:
        for k, t in enumerate(() if chain.instant else chain.transitions):
            way = (
                f"{chain.name}.{('alpha', 'beta')[k]}"
                if chain.is_gate
                else f"{t.source} -> {t.target}"
            )
            rates[way] = t.rate
    return rates


def read_rate_bounds(
    section: Section, model: ChannelModel, protocols: Iterable[Protocol]
) -> tuple[Bounded, ...]:
    """Return the bounds under ``rates_within`` in a fit section.

    Arguments:
        section: the fit section.
        model: the channel that has the rates.
        protocols: their lowest and highest voltage are the ends between which rates are bounded.

    Raises InputError: anything that is not a bound on a rate, with file and key.
    """
    key = "rates_within"
    raw = section.take(key, None)
    if raw is None:
        return ()
    if isinstance(raw, list) and any(isinstance(entry, dict) for entry in raw):
        rows = [(entry, f"{key}[{k}]") for k, entry in enumerate(raw, 1)]
    else:
        rows = [(raw if isinstance(raw, dict) else {"range": raw}, key)]
    span = _voltage_range(protocols)
    found = []
    for row, where in rows:
        found += _rate_bounds(Section(row, section.file, section.path(where)), model, span)
    return tuple(found)


def tied_bounds(model: ChannelModel) -> tuple[Bounded, ...]:
    """Return the ranges of tied parameters, as bounds on their expressions."""
    found = []
    for tie in model.ties:
        if tie.lower is not None and tie.upper is not None:
            name = symbol(tie.name)
            found.append(bounded_expression(tie.name, name, model, tie.lower, tie.upper))
    return tuple(found)


def in_fit(bounds: Iterable[Bounded], problem: Problem) -> tuple[Bounded, ...]:
    """Return bounds on expressions of a model as bounds on the parameters of a fit.

    Of one that depends on parameters per cell, or on a temperature that experiments have of their
    own, there is one for each of these.

    Arguments:
        bounds: their rows are those of the parameters of the problem's model.
    """
    found: dict[tuple[int, str], Bounded] = {}
    for k, bounded in enumerate(bounds):
        for group in problem.groups:
            label = problem.label(group, set(bounded.rows))
            places = {name: group.rows[row] for name, row in bounded.rows.items()}
            stated = (
                ((CELSIUS, sympy.Float(group.temperature_C, 17)),)
                if None in places.values()
                else ()
            )
            whole = replace(
                bounded,
                name=f"{bounded.name} ({label})" if label else bounded.name,
                rows={name: row for name, row in places.items() if row is not None},
                definitions=stated + bounded.definitions,
            )
            found.setdefault((k, label), whole)
    return tuple(found.values())


def _rate_bounds(row: Section, model: ChannelModel, span: tuple[float, float]) -> list[Bounded]:
    row.expect(KEYS["rates_within"])
    limits = row.items("range")
    if len(limits) != 2:
        raise row.error(
            f"a range is [lowest, largest], e.g. [1.0e-5 /ms, 1000 /ms], not {shown(limits)}",
            "range",
        )
    lower, upper = (row.measured("range", x) for x in limits)
    if not 0 <= lower < upper:
        raise row.error(
            f"0 or more below something larger was expected, not {lower:g} and {upper:g} 1/ms",
            "range",
        )
    largest = row.choice("of") == "largest"
    voltages = [row.measured("voltages", v) for v in row.items("voltages")]
    if "voltages" in row and not voltages:
        raise row.error("at least one voltage is needed", "voltages")
    rates = rate_names(model)
    chosen = [str(name) for name in row.items("rates", list(rates))]
    for name in chosen:
        if name not in rates:
            raise row.error(f'no rate "{name[:40]}". Known: {", ".join(rates)}', "rates")
    found: dict[sympy.Expr, Bounded] = {}
    shapes = _Dependences(model.definitions)
    for name in chosen:
        used = model.names_behind(*(s.name for s in rates[name].free_symbols))
        if dissolved := used.intersection(model.ligands):
            raise row.error(
                f"{name} depends on the concentration of {', '.join(sorted(dissolved))}, and rates "
                "are bounded over voltages alone; leave it out of `rates`",
                "rates",
            )
        at = tuple(voltages) or _voltages(shapes.of(rates[name]), span)
        bounded = bounded_expression(name, rates[name], model, lower, upper, at, largest)
        found.setdefault(rates[name], bounded)
    return list(found.values())


def bounded_expression(
    name: str,
    expression: sympy.Expr,
    model: ChannelModel,
    lower: float,
    upper: float,
    voltages_mV: tuple[float, ...] = (),
    largest: bool = False,
) -> Bounded:
    """Return an expression of the model's names with its bounds and all that evaluates it.

    Arguments:
        name: for messages.
        lower, upper, voltages_mV, largest: as in `Bounded`.
    """
    used = model.names_behind(*(s.name for s in expression.free_symbols))
    definitions = tuple(row for row in model.definitions if row[0] in used)
    rows = {n: k for k, n in enumerate(model.parameter_names) if n in used}
    voltages_mV = voltages_mV if V.name in used else ()
    return Bounded(name, expression, definitions, rows, lower, upper, voltages_mV, largest)


def _voltage_range(protocols: Iterable[Protocol]) -> tuple[float, float]:
    """Return the lowest and the highest command, mV, holding potentials included."""
    values = [v for protocol in protocols for v in _extremes(protocol)]
    return min(values), max(values)


def _extremes(protocol: Protocol) -> Iterator[float]:
    yield protocol.holding_mV
    yield protocol.resting_mV
    for sweep in protocol.sweeps:
        for segment in sweep:
            begin, end = segment.start_ms, segment.end_ms
            times = np.array([begin, end])
            if not segment.is_constant:
                n = min(max(2, round((end - begin) / protocol.sampling_ms) + 1), 100_000)
                times = np.linspace(begin, end, n)
            voltage = segment.voltage(times)
            yield float(voltage.min())
            yield float(voltage.max())


class _Dependence(NamedTuple):
    """The way in which an expression visibly depends on v.

    Attributes:
        still: it does not depend on v.
        straight: it is a + b*v with a and b free of v.
        exponential: it is a*exp(z*v) with a and z free of v.
    """

    still: bool = False
    straight: bool = False
    exponential: bool = False


_STILL = _Dependence(still=True, straight=True, exponential=True)


class _Dependences:
    """The dependences of expressions on v; each part of them is examined once.

    Arguments:
        definitions: names and expressions, each after those that it uses.
    """

    def __init__(self, definitions: Iterable[tuple[str, sympy.Expr]]) -> None:
        self.known: dict[sympy.Basic, _Dependence] = {V: _Dependence(straight=True)}
        for name, expression in definitions:
            self.known[symbol(name)] = self.of(expression)

    def of(self, expression: sympy.Expr) -> _Dependence:
        """Return how an expression of parameters, v and the definitions depends on v."""
        for part in parts_of(expression):
            if part not in self.known:
                self.known[part] = self._found(part)
        return self.known[expression]

    def _found(self, node: sympy.Basic) -> _Dependence:
        """Return how a part depends on v, where this is known of its arguments."""
        shapes = [self.known[argument] for argument in node.args]
        if all(shape.still for shape in shapes):
            return _STILL
        if isinstance(node, sympy.exp):
            return _Dependence(exponential=shapes[0].straight)
        if isinstance(node, sympy.Mul):
            changing = [shape for shape in shapes if not shape.still]
            straight = len(changing) == 1 and changing[0].straight
            return _Dependence(False, straight, all(shape.exponential for shape in shapes))
        if isinstance(node, sympy.Pow):
            base, exponent = shapes
            return _Dependence(exponential=exponent.still and base.exponential)
        if isinstance(node, sympy.Add):
            return _Dependence(straight=all(shape.straight for shape in shapes))
        return _Dependence()


def _voltages(shape: _Dependence, span: tuple[float, float]) -> tuple[float, ...]:
    """Return the voltages at which a rate of this shape is evaluated, mV.

    These are both ends where it is visibly exponential, so that it rises or falls all the way;
    otherwise a grid between them.
    """
    if span[0] == span[1]:
        return span[:1]
    if shape.exponential:
        return span
    return tuple(np.linspace(*span, _GRID).tolist())
