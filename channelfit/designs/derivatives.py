"""Expressions of a model with their derivatives by the voltage, by each parameter, and by both.

Definitions are not substituted into each other: derivatives go through them by the chain rule, so
that a short text cannot grow into a huge expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import sympy

from channelfit.model.channel import CELSIUS, Chain, ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.terms import symbol

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Derived:
    """Values of an expression and their derivatives, arrays (n_members, n_voltages) each.

    Attributes:
        value: the values.
        by_v: by the voltage, per mV.
        by: by parameters, each under its place among the free ones; others are zero.
        by_both: by the voltage and such a parameter.
    """

    value: Array
    by_v: Array
    by: Mapping[int, Array] = field(default_factory=dict)
    by_both: Mapping[int, Array] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _slope(expression: sympy.Expr, name: str) -> sympy.Expr:
    return sympy.diff(expression, symbol(name))


def derived(
    expression: sympy.Expr, scope: Mapping[str, Derived], shape: tuple[int, int]
) -> Derived:
    """Return an expression with its derivatives, from those of the names in it."""
    names = sorted(s.name for s in expression.free_symbols)
    values = {name: scope[name].value for name in names}

    def at(e: sympy.Expr) -> Array:
        return np.broadcast_to(evaluate(e, values), shape)

    by_v, by, both = np.zeros(shape), dict[int, Array](), dict[int, Array]()
    for name in names:
        inner, slope = scope[name], at(_slope(expression, name))
        by_v = by_v + slope * inner.by_v
        for k, d in inner.by.items():
            by[k] = by.get(k, 0.0) + slope * d
        for k, d in inner.by_both.items():
            both[k] = both.get(k, 0.0) + slope * d
        for other in names:
            if scope[other].by and inner.by_v.any():
                curve = at(_slope(_slope(expression, name), other)) * inner.by_v
                for k, d in scope[other].by.items():
                    both[k] = both.get(k, 0.0) + curve * d
    return Derived(at(expression), by_v, by, {k: both.get(k, np.zeros(shape)) for k in by})


@dataclass(frozen=True, eq=False)
class Generators:
    """The generators of a chain at some voltages, and their derivatives.

    Attributes:
        value, by_v: (n_members, n_voltages, n_states, n_states), 1/ms: `A[j, i]` from i to j.
        by, by_both: the same by parameters, (n_here, ..), those of `parameters`.
        parameters: (n_here,) places among the free parameters.
    """

    value: Array
    by_v: Array
    by: Array
    by_both: Array
    parameters: tuple[int, ...]


class Derivatives:
    """Rates and drives of a model for an ensemble of parameter vectors.

    Arguments:
        model: with ties resolved by its definitions.
        free: the names of the parameters by which derivatives are taken.
        members: (n_parameters, n_members) values in base units.
    """

    def __init__(self, model: ChannelModel, free: Sequence[str], members: Array) -> None:
        self.model, self.free, self.members = model, list(free), members

    def scope(self, volts: Array) -> dict[str, Derived]:
        """Return all names of the model at voltages (n_voltages,) mV."""
        shape = (self.members.shape[1], len(volts))
        none, one = np.zeros(shape), np.ones(shape)
        found = {"v": Derived(np.broadcast_to(volts, shape), one)}
        if self.model.temperature_C is not None:
            found[CELSIUS] = Derived(np.full(shape, self.model.temperature_C), none)
        for p, values in zip(self.model.parameters, self.members, strict=True):
            by = {self.free.index(p.name): one} if p.name in self.free else {}
            zero = dict.fromkeys(by, none)
            found[p.name] = Derived(np.broadcast_to(values[:, None], shape), none, by, zero)
        for name, expression in self.model.definitions:
            found[name] = derived(expression, found, shape)
        return found

    def generators(self, chain: Chain, scope: Mapping[str, Derived]) -> Generators:
        """Return the generators of a chain in a scope."""
        shape = scope["v"].value.shape
        rates = [derived(t.rate, scope, shape) for t in chain.transitions]
        here = sorted({k for rate in rates for k in rate.by})
        n = len(chain.states)
        value, by_v = np.zeros((*shape, n, n)), np.zeros((*shape, n, n))
        by, both = np.zeros((len(here), *shape, n, n)), np.zeros((len(here), *shape, n, n))
        for t, rate in zip(chain.transitions, rates, strict=True):
            i, j = chain.states.index(t.source), chain.states.index(t.target)
            for row, sign in ((j, t.multiplicity), (i, -t.multiplicity)):
                value[..., row, i] += sign * rate.value
                by_v[..., row, i] += sign * rate.by_v
                for k, d in rate.by.items():
                    by[here.index(k), ..., row, i] += sign * d
                    both[here.index(k), ..., row, i] += sign * rate.by_both[k]
        return Generators(value, by_v, by, both, tuple(here))

    def drives(self, scope: Mapping[str, Derived]) -> list[Derived]:
        """Return the drive of each term of the current, pA, in a scope."""
        shape = scope["v"].value.shape
        return [derived(term.drive, scope, shape) for term in self.model.terms]
