"""Readers of the chains in a model file: `states` and `rates`, or `gates`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy

from channelfit.model.channel import (
    INSTANT_RATE,
    Chain,
    ChannelModel,
    Transition,
)
from channelfit.model.evaluation import evaluate
from channelfit.model.graphs import components
from channelfit.model.parameters import plain_number
from channelfit.model.printed_form import NAMED_RATE
from channelfit.model.reversibility import Cycle, Way, balanced_rates
from channelfit.model.scope import RESERVED, Scope, check_word
from channelfit.model.terms import V, symbol
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.models import MAX_STATES

_ARROW = re.compile(r"\s*(\w+)\s*(<\s*)?-+\s*>\s*(\w+)\s*")
_NUMBERED_RATE = re.compile(r"k(?:(\d)(\d)|(\d+)_(\d+))")
#: Random values and voltages at which products of rates are compared, and how near they must be.
_POINTS, _SAME = 6, 1e-8


# --- states and rates --------------------------------------------------------------------------


@dataclass(frozen=True)
class Balance:
    """Cycles that must balance by themselves for the rates that follow from balance to be unique.

    rates: those of all transitions. refuse: returns the error for a transition with a message.
    """

    cycles: tuple[Cycle, ...]
    rates: Mapping[Way, sympy.Expr]
    refuse: Callable[[Way, str], InputError]


@dataclass(frozen=True)
class _RateRow:
    """One row of `rates`.

    Attributes:
        way: source and target.
        key: its key in `rates`.
        text: its expression.
        name: the name under which other expressions may use it; None where it has none.
        named_in: the key of its name, for messages.
    """

    way: Way
    key: str
    text: object
    name: str | None = None
    named_in: str = ""

    @property
    def balances(self) -> bool:
        """True if the rate follows from microscopic reversibility."""
        return isinstance(self.text, str) and self.text.strip() == "balance"


def read_scheme(root: Section, scope: Scope, current: Section) -> tuple[Chain, Balance | None]:
    """Return the chain of a model of states, and the cycles that are still to be checked."""
    states = _states(root)
    rows = [_rate_row(root, key, text, states) for key, text in root.rows("rates", {})]
    for row in rows:
        if row.balances and row.name:
            scope.announce(row.name, root.path(f"rates.{row.key}"))
        elif row.name:
            scope.define(row.name, row.text, root.path(row.named_in))
    transitions = []
    for row in rows:
        free = not row.name and not row.balances
        named = symbol(row.name or "balance")
        rate = scope.parse(root, f"rates.{row.key}", row.text) if free else named
        transitions.append(Transition(*row.way, rate))
    _check_connected(root, states, transitions)
    balance = None
    if any(row.balances for row in rows):
        transitions, balance = _balance(root, scope, transitions, rows)
    chain = Chain("scheme", tuple(states), tuple(transitions), _open(current, states))
    return chain, balance


def _states(root: Section) -> list[str]:
    states = [str(state) for state in root.items("states", ...)]
    for state in states:
        check_word(root, state, "states")
    if len(set(states)) < len(states):
        raise root.error(f"a state is named twice in {', '.join(states)}", "states")
    if not 1 <= len(states) <= MAX_STATES:
        raise root.error(f"1 to {MAX_STATES} states are accepted, not {len(states)}", "states")
    return states


def _rate_row(root: Section, key: str, text: object, states: list[str]) -> _RateRow:
    """Read ``C -> O: a``, or ``C -> O: up = a`` and ``k12: a``, whose names others may use."""
    way = ends_of(root, key, states)
    named = NAMED_RATE.fullmatch(text) if isinstance(text, str) else None
    if named:
        return _RateRow(way, key, named[2], named[1], f"rates.{key}.{named[1]}")
    return _RateRow(way, key, text, key if _NUMBERED_RATE.fullmatch(key) else None, f"rates.{key}")


def ends_of(root: Section, key: str, states: list[str], block: str = "rates") -> Way:
    """Return source and target of ``C1 -> C2`` or of the numbered form ``k12`` (counted from 1).

    Arguments:
        block: the key under which it stands.
    """
    if arrow := _ARROW.fullmatch(key):
        if arrow[2]:
            raise root.error(
                "write two lines, A -> B and B -> A, one for each rate", f"{block}.{key}"
            )
        ends = [arrow[1], arrow[3]]
    elif match := _NUMBERED_RATE.fullmatch(key):
        numbers = [int(d) for d in match.groups() if d is not None]
        if not all(1 <= n <= len(states) for n in numbers):
            raise root.error(f"{key} points beyond the {len(states)} states", f"{block}.{key}")
        ends = [states[n - 1] for n in numbers]
    else:
        raise root.error(
            f'"{key[:40]}" is not a transition; write A -> B (or k12 for the first to the second)',
            block,
        )
    for state in ends:
        if state not in states:
            raise root.error(
                f'unknown state "{state}". Known: {", ".join(states)}', f"{block}.{key}"
            )
    if ends[0] == ends[1]:
        raise root.error("a transition must lead to another state", f"{block}.{key}")
    return ends[0], ends[1]


def _open(current: Section, states: list[str]) -> tuple[float, ...]:
    """Return the relative conductance of every state; 0 where it does not conduct."""
    if "gating" in current and not {"conductance", "permeability"} & set(current.given()):
        if "open" in current:
            raise current.error("says nothing without a conductance; remove it, or add one", "open")
        return (0.0,) * len(states)
    raw = current.take("open", ...)
    named = map(str, current.items("open"))
    listed = raw if isinstance(raw, Mapping) else dict.fromkeys(named, 1.0)
    weights = {str(s): plain_number(current, w, f"open.{s}") for s, w in listed.items()}
    for state, weight in weights.items():
        if state not in states:
            raise current.error(f'unknown state "{state}". Known: {", ".join(states)}', "open")
        if weight <= 0:
            raise current.error(
                f"a relative conductance above 0 was expected, not {weight:g}", f"open.{state}"
            )
    if not weights:
        raise current.error("at least one open state is needed", "open")
    return tuple(weights.get(state, 0.0) for state in states)


def _check_connected(root: Section, states: list[str], transitions: list[Transition]) -> None:
    """Refuse a scheme in which not every state leads to every other."""
    pairs = [(t.source, t.target) for t in transitions]
    if len(set(pairs)) < len(pairs):
        twice = next(pair for pair in pairs if pairs.count(pair) > 1)
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


# --- rates that follow from microscopic reversibility --------------------------------------------


def _balance(
    root: Section, scope: Scope, transitions: list[Transition], rows: list[_RateRow]
) -> tuple[list[Transition], Balance]:
    """Return the transitions with a definition for every rate that is to balance."""
    rates = {(t.source, t.target): t.rate for t in transitions}
    balancing = {row.way: row for row in rows if row.balances}
    for way, row in balancing.items():
        name = row.name
        if name is None:
            name = f"k_{way[0]}_{way[1]}"
            while name in scope.names or name in RESERVED:
                name += "_"
            scope.names.append(name)
        rates[way] = symbol(name)

    def refuse(way: Way, message: str) -> InputError:
        return root.error(message, f"rates.{balancing[way].key}")

    found, cycles = balanced_rates(rates, list(balancing), refuse)
    for way, expression in found.items():
        scope.definitions[rates[way].name] = expression
    balanced = [replace(t, rate=rates[t.source, t.target]) for t in transitions]
    return balanced, Balance(tuple(cycles), rates, refuse)


def check_balance(model: ChannelModel, balance: Balance) -> None:
    """Raise InputError where cycles that share transitions would ask for different rates.

    Two products of rates are taken for equal where they agree at random values and voltages.
    """
    if not balance.cycles:
        return
    values = _random_values(model)
    for cycle in balance.cycles:
        with np.errstate(all="ignore"):
            ratio = np.ones(_POINTS)
            for way in cycle.ways:
                there, back = (evaluate(balance.rates[w], values) for w in (way, way[::-1]))
                ratio = ratio * there / back
        ratio = ratio[np.isfinite(ratio)]
        if not ratio.size or np.abs(ratio - 1).max() > _SAME:
            raise balance.refuse(
                cycle.decides,
                f"several cycles pass here and would ask for different rates, because {cycle} does "
                "not balance by itself; write balance for one of its rates too",
            )


def _random_values(model: ChannelModel) -> dict[str, Any]:
    """Return voltages, parameters within their ranges, and definitions, (_POINTS,) by name."""
    draw = np.random.Generator(np.random.Philox(0))
    values: dict[str, Any] = {V.name: draw.uniform(-100, 50, _POINTS)}
    values |= {name: 10 ** draw.uniform(-6, 1, _POINTS) for name in model.ligands}
    for p in model.parameters:
        share = draw.uniform(0.2, 0.8, _POINTS)
        if p.fixed:
            values[p.name] = np.full(_POINTS, p.value)
        elif p.scale == "log":
            values[p.name] = p.lower * (p.upper / p.lower) ** share
        else:
            values[p.name] = p.lower + (p.upper - p.lower) * share
    for name, expression in model.definitions:
        values[name] = evaluate(expression, values)
    return values


# --- gates ---------------------------------------------------------------------------------------


def read_gates(root: Section, scope: Scope) -> tuple[Chain, ...]:
    """Return the chains of `gates`, one of two states for each gate."""
    chains = tuple(_gate(root, scope, name, row) for name, row in root.rows("gates"))
    if not chains:
        raise root.error("at least one gate is needed", "gates")
    if math.prod(chain.power + 1 for chain in chains) > MAX_STATES:
        raise root.error(f"the equivalent scheme has more than {MAX_STATES} states", "gates")
    return chains


def _gate(root: Section, scope: Scope, name: str, row: object) -> Chain:
    """Return a gate, given by alpha and beta (1/ms), or by inf and tau (ms)."""
    check_word(root, name, f"gates.{name}")
    gate = Section(row, root.file, root.path(f"gates.{name}"))
    gate.expect(KEYS["gate"])
    power = gate.integer("power")
    inf = tau = None
    if "alpha" in gate or "beta" in gate:
        alpha, beta = (scope.parse(gate, key, gate.take(key, ...)) for key in ("alpha", "beta"))
    else:
        inf, tau = (scope.parse(gate, key, gate.take(key, ...)) for key in ("inf", "tau"))
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
    return Chain(name, (shut, opened), steps, (0.0, 1.0), power, inf, tau)
