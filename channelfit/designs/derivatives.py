"""Expressions of a model with their derivatives by the voltage, by each parameter, and by both.

A derivative by the voltage is the imaginary part of a value at a voltage moved by an imaginary
step, exact to rounding (Martins et al. 2003, doi:10.1145/838250.838251). Definitions are not
substituted into each other: derivatives go through them by the chain rule, so that a short text
cannot grow into a huge expression.
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

#: The imaginary step; what it moves is divided by it.
STEP = 1e-40


@dataclass(frozen=True, eq=False)
class Derived:
    """Values of an expression, complex arrays (n_members, n_voltages).

    Attributes:
        value: the values, whose imaginary part is `STEP` times the derivative by the voltage.
        by: derivatives likewise by parameters, each under its place; others are zero.
    """

    value: Array
    by: Mapping[int, Array] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _slope(expression: sympy.Expr, name: str) -> sympy.Expr:
    return sympy.diff(expression, symbol(name))


def derived(
    expression: sympy.Expr, scope: Mapping[str, Derived], shape: tuple[int, int]
) -> Derived:
    """Return an expression with its derivatives, from those of the names in it."""
    names = sorted(s.name for s in expression.free_symbols)
    values = {name: scope[name].value.real for name in names}
    moved = [name for name in names if scope[name].value.imag.any()]

    def complex_value(e: sympy.Expr) -> Array:
        found = np.broadcast_to(evaluate(e, values), shape) + 0j
        for name in moved:
            found.imag += evaluate(_slope(e, name), values) * scope[name].value.imag
        return found

    by = dict[int, Array]()
    for name in names:
        if scope[name].by:
            slope = complex_value(_slope(expression, name))
            for k, d in scope[name].by.items():
                by[k] = by.get(k, 0.0) + slope * d
    return Derived(complex_value(expression), by)


def scope_of(
    model: ChannelModel, members: Array, places: Mapping[str, int], volts: Array
) -> dict[str, Derived]:
    """Return all names of a model, with ties resolved by its definitions.

    Arguments:
        members: (n_parameters, n_members) values in base units.
        places: of the parameters by which derivatives are taken.
        volts: (n_voltages,) mV.
    """
    shape = (members.shape[1], len(volts))
    one = np.ones(shape, dtype=complex)
    found = {"v": Derived((volts + 1j * STEP) * one)}
    if model.temperature_C is not None:
        found[CELSIUS] = Derived(model.temperature_C * one)
    for p, values in zip(model.parameters, members, strict=True):
        by = {places[p.name]: one} if p.name in places else {}
        found[p.name] = Derived(values[:, None] * one, by)
    for name, expression in model.definitions:
        found[name] = derived(expression, found, shape)
    return found


def generators(chain: Chain, scope: Mapping[str, Derived]) -> tuple[Array, Array, Sequence[int]]:
    """Return the generators of a chain, and their derivatives by parameters.

    Returns: (n_members, n_voltages, n_states, n_states) 1/ms, complex as `Derived`; the same by
        each parameter, (n_here, ..), and the places of these parameters.
    """
    shape = scope["v"].value.shape
    rates = [derived(t.rate, scope, shape) for t in chain.transitions]
    here = sorted({k for rate in rates for k in rate.by})
    n = len(chain.states)
    value = np.zeros((*shape, n, n), dtype=complex)
    by = np.zeros((len(here), *shape, n, n), dtype=complex)
    for t, rate in zip(chain.transitions, rates, strict=True):
        i, j = chain.states.index(t.source), chain.states.index(t.target)
        for row, sign in ((j, t.multiplicity), (i, -t.multiplicity)):
            value[..., row, i] += sign * rate.value
            for k, d in rate.by.items():
                by[here.index(k), ..., row, i] += sign * d
    return value, by, here
