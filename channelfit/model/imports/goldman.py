"""Recognition of a current after Goldman, Hodgkin and Katz, however a file writes it.

Published files write constant-field currents in a dozen ways: with helper functions, with limits
around 0 mV, with rounded constants of nature, per concentration. Here the expression is not taken
apart but tried out. Far from 0 mV such a current divided by v is proportional to the concentration
inside, or to that outside; between, the logarithm of how far it is from both is a straight line
in v. What does not follow this at all voltages, concentrations and temperatures is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.model.channel import FARADAY, GAS_CONSTANT, ZERO_CELSIUS
from channelfit.model.imports import nodes
from channelfit.model.imports.equations import Equations
from channelfit.model.imports.nodes import (
    Node,
    add,
    computed,
    joined,
    make,
    name,
    number,
    times,
)
from channelfit.model.imports.trial import values_of
from channelfit.model.ions import ion_variable
from channelfit.reading.errors import InputError

Array = npt.NDArray[np.float64]
#: mV: where a current is at its limits, and where its shape is looked at.
_FAR = 3000.0
_VOLTS = np.concatenate([np.linspace(-91.37, -3.71, 12), np.linspace(2.93, 83.41, 12)])
#: The tolerance of equal numbers, and the factors of a drive that are tried.
_SAME, _MOST_FACTORS = 1e-9, 8
#: The factor of a parameter in a trial, and the degrees added to the temperature.
_TIMES, _WARMER = 1.37, 7.3
#: The tolerance of RT/F in a file about that of its temperature.
_OF_NATURE = 0.06
Factors = list[tuple[Node, bool]]


@dataclass(frozen=True)
class Goldman:
    """A constant-field current.

    Attributes:
        size: what it is multiplied by, where `channel.Ion` has a permeability times z F.
        valence: of the ion.
        inside, outside: concentrations, mM.
        thermal: mV, the expression in place of RT/F; None where it is RT/F.
        rest: other factors that follow the voltage.
    """

    size: Node
    valence: int
    inside: Node
    outside: Node
    thermal: Node | None
    rest: Factors

    def constants(self) -> list[Node]:
        """Return the expressions of the ion: concentrations and, where it has its own, RT/F."""
        known = [self.inside, self.outside]
        return known if self.thermal is None else [*known, self.thermal]

    def replaced(self, by: Mapping[str, Node]) -> Goldman:
        """Return the same current with other expressions in place of some names."""
        inside, outside = nodes.replaced(self.inside, by), nodes.replaced(self.outside, by)
        thermal = None if self.thermal is None else nodes.replaced(self.thermal, by)
        return replace(self, inside=inside, outside=outside, thermal=thermal)


@dataclass(frozen=True)
class _Asymptotes:
    """A current at one set of values: its limits divided by v, and its slope, 1/mV."""

    inside: float
    outside: float
    slope: float

    @property
    def ratio(self) -> float:
        return self.outside / self.inside


def goldman(found: Equations, moving: Factors) -> Goldman | None:
    """Return the constant-field current among the factors of a drive; None where there is none.

    Arguments:
        found: the equations.
        moving: the factors that depend on v, each with whether it stands under the line.
    """
    if len(moving) > _MOST_FACTORS:
        return None
    for kept in _choices(moving):
        try:
            trial = _GoldmanTrial(found, joined(kept))
            made = trial.made()
        except InputError:  # too long when it is written out
            continue
        if made is not None:
            rest = [row for row in moving if not any(row is one for one in kept)]
            size, valence, inside, outside, thermal = made
            found.notes += [
                f"{key} is the number {trial.base[key]:.10g} in the constant-field current"
                for key in trial.frozen
            ]
            return Goldman(size, valence, inside, outside, thermal, rest)
    return None


def _choices(moving: Factors) -> Iterator[Factors]:
    """Yield all selections of factors, the largest first."""
    for n in range(len(moving), 0, -1):
        for chosen in itertools.combinations(moving, n):
            yield list(chosen)


class _GoldmanTrial:
    """One product, tried at different values of its parameters and concentrations."""

    def __init__(self, found: Equations, product: Node) -> None:
        self.found = found
        self.product = found.expanded(product, frozenset((*found.parameters, "celsius", "v")))
        self.names = sorted(self.product.names & found.parameters.keys())
        self.warm = "celsius" in self.product.names
        self.base = values_of(found, {})
        self.frozen: list[str] = []
        self.known = self.product.names <= self.base.keys() | {"v"}

    def made(self) -> tuple[Node, int, Node, Node, Node | None] | None:
        """Return size, valence, concentrations and RT/F; None where this is no such current."""
        shape = self._shape({}) if self.known else None
        if shape is None:
            return None
        self._freeze(shape)
        ends = self._ends(shape)
        thermal = self._thermal(shape)
        if ends is None or thermal is None:
            return None
        valence, number_of, node = thermal
        size = self._size(ends, number_of, node)
        if size is None:
            return None
        inside, outside = (self._concentration(end) for end in ends)
        if self._is_anion(ends):
            size, valence, inside, outside = make("neg", size), -valence, outside, inside
        return size, valence, inside, outside, self._unless_of_nature(number_of, node)

    def _freeze(self, shape: _Asymptotes) -> None:
        """Take constants of nature and charges that are PARAMETERs for the numbers that they are.

        They are recognized by their effects: the slope follows them, and the reversal potential of
        the concentrations does not.
        """
        for key in list(self.names):
            moved = self._moved(key)[1]
            if moved is not None and not _same(moved.slope, shape.slope):
                self.names.remove(key)
                self.frozen.append(key)

    def _is_anion(self, ends: tuple[str | float, str | float]) -> bool:
        """Return whether the outer concentration multiplies the current at positive voltages."""
        for end, other in zip(ends, ("outside", "inside"), strict=True):
            given = self.found.parameters.get(end) if isinstance(end, str) else None
            variable = ion_variable(given.own) if given is not None and given.kind else None
            if variable is not None and variable.kind == other:
                return True
        return False

    # --- numbers

    def _values(self, changed: dict[str, float]) -> dict[str, Any]:
        return {**self.base, **changed}

    def _shape(self, changed: dict[str, float]) -> _Asymptotes | None:
        """Return limits and slope at some values; None where the current has another shape."""
        values = self._values(changed)
        at = np.concatenate([[_FAR, -_FAR], _VOLTS])
        with np.errstate(all="ignore"):
            found = np.broadcast_to(computed(self.product, {**values, "v": at}), at.shape) / at
            (inside, outside), between = found[:2], found[2:]
            u = np.log((between - outside) / (between - inside))
            slope = float(u[-1] / _VOLTS[-1])
            straight = bool(np.allclose(u, slope * _VOLTS, rtol=0, atol=1e-8 * abs(slope) * 100))
        if not straight or not np.isfinite([inside, outside, slope]).all():
            return None
        if not (inside > 0 and outside > 0):
            return None
        return _Asymptotes(float(inside), float(outside), slope)

    def _moved(self, key: str) -> tuple[float, _Asymptotes | None]:
        """Return the value of a parameter in a trial of its own, and the current's shape."""
        value = self.base[key]
        value = value + _WARMER if key == "celsius" else (value or 1.0) * _TIMES
        return value, self._shape({key: value})

    # --- the names on which it depends

    def _ends(self, shape: _Asymptotes) -> tuple[str | float, str | float] | None:
        """Return the concentrations inside and outside: names of parameters, or numbers."""
        ends: list[str] = ["", ""]
        for key in self.names:
            value, moved = self._moved(key)
            if moved is None:
                return None
            by = moved.ratio / shape.ratio
            if not _same(by, 1.0):
                factor = value / self.base[key] if self.base[key] else 0.0
                place = 1 if _same(by, factor) else 0 if _same(by * factor, 1.0) else None
                if place is None or ends[place]:
                    return None
                ends[place] = key
        inside, outside = ends
        if inside and outside:
            own = self.base[outside] / self.base[inside]
            return (inside, outside) if _same(shape.ratio, own) else None
        if inside:
            return inside, shape.ratio * self.base[inside]
        if outside:
            return self.base[outside] / shape.ratio, outside
        return None

    def _concentration(self, end: str | float) -> Node:
        return name(end) if isinstance(end, str) else number(end)

    def _thermal(self, shape: _Asymptotes) -> tuple[int, Any, Node] | None:
        """Return the valence, and RT/F as a function of degC and as an expression."""
        for key in self.names:
            if self._moved(key)[1] is None:
                return None
        celsius = float(self.base["celsius"])
        of_nature = 1e3 * GAS_CONSTANT * (celsius + ZERO_CELSIUS) / FARADAY
        valence = round(shape.slope * of_nature)
        if not valence or abs(shape.slope * of_nature / valence - 1) > _OF_NATURE:
            return None
        own = valence / shape.slope
        if not self.warm:
            return valence, lambda _: own, number(_rounded(own))
        warmer = [self._shape({"celsius": celsius + k * _WARMER}) for k in (1, 2)]
        if None in warmer:
            return None
        first, second = (valence / row.slope for row in warmer if row is not None)
        per_degree = (first - own) / _WARMER
        if not _same(second, own + 2 * (first - own)):
            return None
        if abs(per_degree) < _SAME * own:
            return valence, lambda _: own, number(_rounded(own))
        zero = own / per_degree - celsius
        per_degree, zero = _rounded(per_degree), float(f"{zero:.10g}")
        node = times(number(per_degree), add(name("celsius"), number(zero)))
        return valence, lambda degrees: per_degree * (degrees + zero), node

    def _unless_of_nature(self, number_of: Any, node: Node) -> Node | None:
        if not self.warm:
            return node
        at = [0.0, 20.0, 40.0]
        real = [1e3 * GAS_CONSTANT * (t + ZERO_CELSIUS) / FARADAY for t in at]
        return None if all(_same(number_of(t), r) for t, r in zip(at, real, strict=True)) else node

    def _size(
        self, ends: tuple[str | float, str | float], number_of: Any, node: Node
    ) -> Node | None:
        """Return the factor of the shape: a number, RT/F and concentrations to some powers."""
        keys: list[str] = [*self.names, *(["celsius"] if self.warm else [])]
        changes = [{}, *({key: self._moved(key)[0]} for key in keys)]
        shapes = [self._shape(change) for change in changes]
        factors = [self._concentration(end) for end in ends]
        for a, b, k in itertools.product((0, -1), (0, -1), (0, 1, -1, 2)):
            constants = []
            for change, shape in zip(changes, shapes, strict=True):
                values = self._values(change)
                inside, outside = (float(computed(end, values)) for end in factors)
                thermal = float(number_of(values["celsius"]))
                if shape is None:
                    return None
                # W at +far is size * u/v * inside, where u/v is the slope
                size = shape.inside / (inside * shape.slope)
                constants.append(size / (inside**a * outside**b * thermal**k))
            if all(_same(one, constants[0]) for one in constants):
                rows: Factors = [(number(_rounded(constants[0])), False)]
                rows += [(factors[0], True)] * (a < 0) + [(factors[1], True)] * (b < 0)
                rows += [(node, k < 0)] * abs(k)
                return joined(rows)
        return None


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME * max(abs(a), abs(b))


def _rounded(value: float) -> float:
    """Return a measured number without the digits that are rounding alone."""
    return float(f"{value:.12g}")
