"""The currents that a model can carry over the ranges of its parameters, and the leak beside them.

The channel's current lies between 0 and that of all channels open, so that sign and size of a
recording can be checked before anything is fitted, for every form of current: several currents, a
permeability, a rectification, a leak of the model or of the clamp.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import sympy

from channelfit.model.channel import ChannelModel, Term
from channelfit.model.evaluation import evaluate
from channelfit.problem.clamp import Clamp

#: The range of an expression of more parameters than this is not computed: it has too many corners.
_MOST_PARAMETERS = 10
#: The number of evenly spaced voltages at which currents are computed.
_VOLTAGES = 241
#: The numbers of conductances, and of reversal potentials, of the leaks that are tried.
_CONDUCTANCES, _REVERSALS = 12, 7
#: The penalty of a leak that explains a current: this share of its own squares. A leak that cancels
#: several times as much as was recorded explains nothing.
_PENALTY = 0.2
#: The number of samples, about, from which the leak is estimated.
_SAMPLES = 6_000

Span = tuple[float, float]


def span(expression: sympy.Expr, model: ChannelModel) -> Span | None:
    """Return the least and the largest value within the parameters' ranges; None if there is none.

    They are searched at the corners of the ranges, since in practice a conductance or a reversal
    potential rises or falls with each parameter.
    """
    found = _at_corners(expression, model, np.zeros(1))
    return None if found is None else (float(found[0][0]), float(found[1][0]))


def _at_corners(
    expression: sympy.Expr, model: ChannelModel, v_mV: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the least and the largest value (n_voltages,) at the corners of the ranges."""
    names = model.names_behind(*(s.name for s in expression.free_symbols))
    rows = [p for p in model.parameters if p.name in names]
    if len(rows) > _MOST_PARAMETERS:
        return None
    ends = [(p.value,) if p.fixed and p.value is not None else (p.lower, p.upper) for p in rows]
    table = np.array(list(itertools.product(*ends)), dtype=float).T
    scope = {p.name: column for p, column in zip(rows, table, strict=True)}
    scope["v"] = v_mV[:, None]
    for name, definition in model.definitions:
        if name in names:
            scope[name] = evaluate(definition, scope)
    values = np.broadcast_to(evaluate(expression, scope), (len(v_mV), table.shape[-1] or 1))
    if not np.isfinite(values).any(axis=1).all():
        return None
    least = np.where(np.isfinite(values), values, np.inf).min(axis=1)
    most = np.where(np.isfinite(values), values, -np.inf).max(axis=1)
    return least, most


@dataclass(frozen=True)
class CurrentRange:
    """The range of currents that the channels of a model can carry, at each voltage.

    Attributes:
        v_mV: (n_voltages,) in rising order.
        low_pA, high_pA: (n_voltages,) the lowest current with all channels open, 0 or below, and
            the highest, 0 or above.
        least_share: the share of these at the lower ends of the conductances' ranges.
        conductance_nS: the range of the conductance with all channels open; None unless the
            current is one conductance times a driving force.
        reversal_mV: the range of the reversal potential of that current; None for others.
    """

    v_mV: np.ndarray
    low_pA: np.ndarray
    high_pA: np.ndarray
    least_share: float
    conductance_nS: Span | None
    reversal_mV: Span | None

    def at(self, command_mV: np.ndarray, around_mV: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest current, pA, at a command, or within some mV of it."""
        low, high = self.low_pA, self.high_pA
        if around_mV > 0:
            reach = math.ceil(around_mV / (self.v_mV[1] - self.v_mV[0]))
            low, high = -_widest(-low, reach), _widest(high, reach)
        return np.interp(command_mV, self.v_mV, low), np.interp(command_mV, self.v_mV, high)


def _widest(values: np.ndarray, reach: int) -> np.ndarray:
    """Return the largest of each value and of so many on either side."""
    padded = np.pad(values, reach, constant_values=-np.inf)
    found: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    return found


def current_range(
    model: ChannelModel, command_mV: np.ndarray, margin_mV: float
) -> CurrentRange | None:
    """Return the currents that a model's channels can carry under a command; None if unknown.

    Arguments:
        margin_mV: by how much the voltages go beyond those of the command.
    """
    known = command_mV[np.isfinite(command_mV)]
    gated = [term for term in model.terms if term.chains]
    if not known.size or not gated:
        return None
    v = np.linspace(known.min() - 2 * margin_mV, known.max() + 2 * margin_mV, _VOLTAGES)
    low, high, least = np.zeros(v.size), np.zeros(v.size), 0.0
    for term in gated:
        ends, size = _at_corners(term.drive, model, v), span(term.size, model)
        if ends is None or size is None or size[1] <= 0:
            return None
        opened = _all_open(term, model)
        low += opened * np.minimum(ends[0], 0.0)
        high += opened * np.maximum(ends[1], 0.0)
        least = max(least, max(size[0], 0.0) / size[1])
    return CurrentRange(v, low, high, least, *_ohmic(gated, model))


def _all_open(term: Term, model: ChannelModel) -> float:
    """Return the largest open probability of a term."""
    return math.prod(
        max(model.chains[k].conductances) ** model.chains[k].power for k in term.chains
    )


def _ohmic(gated: Sequence[Term], model: ChannelModel) -> tuple[Span | None, Span | None]:
    """Return conductance, nS, and reversal potential, mV, of one ohmic current; else None."""
    if len(gated) > 1 or not gated[0].ohmic or gated[0].reversal is None:
        return None, None
    sizes, opened = span(gated[0].size, model), _all_open(gated[0], model)
    if sizes is None:
        return None, None
    return (opened * sizes[0], opened * sizes[1]), span(gated[0].reversal, model)


@dataclass(frozen=True)
class LeakRange:
    """A leak that a model or a clamp has: its conductance, nS, and its reversal potential, mV."""

    conductance_nS: Span
    reversal_mV: Span

    def largest_pA(self, command_mV: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest current, pA, at a command."""
        currents = [g * (command_mV - e) for g in self.conductance_nS for e in self.reversal_mV]
        return np.min(currents, axis=0), np.max(currents, axis=0)


def leaks(model: ChannelModel, clamp: Clamp | None) -> list[LeakRange] | None:
    """Return the leaks of a model and of its clamp; None where their ranges are not known."""
    pairs = [(t.conductance, t.reversal) for t in model.terms if not t.chains]
    if clamp is not None and not clamp.leak_conductance.is_zero:
        pairs.append((clamp.leak_conductance, clamp.leak_reversal))
    found = []
    for conductance, reversal in pairs:
        assert conductance is not None
        assert reversal is not None
        g, e = span(conductance, model), span(reversal, model)
        if g is None or e is None:
            return None
        found.append(LeakRange((max(g[0], 0.0), max(g[1], 0.0)), e))
    return found


def leak_pA(
    ranges: Iterable[LeakRange],
    current_pA: np.ndarray,
    command_mV: np.ndarray,
    weight: np.ndarray,
    signs: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Return the leak that leaves the least current against the driving force.

    Arguments:
        current_pA, command_mV: (n_sweeps, n_times).
        ranges: of the conductances and reversal potentials of the leaks.
        weight: (n_sweeps, n_times), 0 where a sample does not count.
        signs: (n_sweeps, n_times) of the current that the channel can carry.

    Returns:
        The leak (n_sweeps, n_times), pA, and the squares that are left against the driving force
        plus the penalty of the leak, as a share of the weighted squares of the current.
    """
    step = max(1, np.count_nonzero(weight) // _SAMPLES)
    counted = np.flatnonzero(weight)[::step]
    i, v, w, s = (x.ravel()[counted] for x in (current_pA, command_mV, weight, signs))
    energy = float(w @ i**2)
    if energy <= 0:
        return np.zeros_like(current_pA), 0.0

    def cost(slope: float, offset: float) -> float:
        line = slope * v + offset
        against = np.minimum(s * (i - line), 0.0)
        return float(w @ (against**2 + _PENALTY * line**2)) / energy

    best, slope, offset = cost(0.0, 0.0), 0.0, 0.0
    for one in ranges:
        lines = [(g, -g * e) for g in _tried(one.conductance_nS) for e in _evenly(one.reversal_mV)]
        found = min(lines, key=lambda line: cost(slope + line[0], offset + line[1]))
        slope, offset = slope + found[0], offset + found[1]
        best = cost(slope, offset)
    return slope * np.nan_to_num(command_mV) + offset, best


def _tried(conductance_nS: Span) -> np.ndarray:
    """Return conductances from the least to the largest, closer to each other toward the least."""
    low, high = conductance_nS
    return low + (high - low) * np.linspace(0.0, 1.0, _CONDUCTANCES) ** 3


def _evenly(ends: Span) -> np.ndarray:
    return np.linspace(*ends, _REVERSALS if ends[0] < ends[1] else 1)
