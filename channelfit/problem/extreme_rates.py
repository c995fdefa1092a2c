"""Rates that no channel has: negative, not a number, or beyond the bounds that backends keep.

A score reports only that a candidate failed. This module finds the rate or gate that causes it, its
value and the voltage, without a backend: it evaluates the expressions at the voltages of the
protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy

from channelfit.model.channel import (
    GREATEST_GAIN,
    RATE_CEILING,
    RATE_FLOOR,
    SINGLE_CEILING,
    ChannelModel,
    Term,
)
from channelfit.model.evaluation import evaluate
from channelfit.problem.protocol import Protocol

#: 1/ms, by precision: faster rates are replaced by these. In float32, on a GPU, it is lower.
CEILINGS = {"float64": RATE_CEILING, "float32": SINGLE_CEILING}
#: The largest number of voltages that are checked; of more, evenly chosen ones.
_MOST_VOLTAGES = 4096
#: mV: the voltages that are checked where there is no protocol.
_ORDINARY = np.arange(-120.0, 61.0, 1.0)


@dataclass(frozen=True)
class Extreme:
    """One rate or gate at the voltage where it is most extreme.

    Attributes:
        place: "rate C -> O", "alpha of gate m", "inf of gate h" or "the conductance".
        value, unit: at that voltage.
        voltage_mV: None where it does not depend on v.
        also: the number of other voltages at which it is extreme too.
        solution: the concentrations of ligands there, in words; empty without any.
        at: the row of that voltage among those that were asked for.
        consequence: its effect on the simulation, in words.
        fails: whether the cost of a candidate with it is infinite.
    """

    place: str
    value: float
    unit: str
    voltage_mV: float | None
    also: int
    consequence: str
    fails: bool
    solution: str = ""
    at: int | None = None

    def __str__(self) -> str:
        value = "not a number" if np.isnan(self.value) else f"{self.value:.6g} {self.unit}".rstrip()
        at = "" if self.voltage_mV is None else f" at {self.voltage_mV:.6g} mV{self.solution}"
        others = "voltage" if self.also == 1 else "voltages"
        more = f" (and at {self.also} other {others})" if self.also else ""
        return f"{self.place} is {value}{at}{more}: {self.consequence}"


def voltages_of(protocols: Iterable[Protocol], ligands: Sequence[str] = ()) -> np.ndarray:
    """Return the voltages (n,) mV in protocols; -120 to 60 mV without any.

    Arguments:
        ligands: of the model. With these (n, 1 + n_ligands) mV and mM, each voltage beside the
            concentrations at it; 1 mM where there is no protocol.
    """
    found = [_levels(p, ligands) for p in protocols]
    ordinary = np.column_stack([_ORDINARY, np.ones((len(_ORDINARY), len(ligands)))])
    v = np.unique(np.concatenate(found) if found else ordinary, axis=0)
    v = v[np.isfinite(v).all(axis=1)]
    if len(v) > _MOST_VOLTAGES:
        v = v[np.linspace(0, len(v) - 1, _MOST_VOLTAGES).round().astype(int)]
    return np.asarray(v if ligands else v[:, 0])


def _levels(protocol: Protocol, ligands: Sequence[str]) -> np.ndarray:
    """Return voltages and concentrations at all samples, and at rest, (n, 1 + n_ligands)."""
    commands = protocol.commanded(ligands)
    held = np.column_stack(
        [
            np.full(protocol.n_sweeps, protocol.holding_mV),
            *(one.holding_mM for one in commands),
        ]
    )
    resting = held.copy()
    resting[:, 0] = protocol.resting_mV
    columns = [protocol.command().ravel(), *(protocol.concentration(n).ravel() for n in ligands)]
    return np.concatenate([np.column_stack(columns), held, resting])


def extremes(
    model: ChannelModel,
    values: np.ndarray,
    voltages_mV: np.ndarray,
    ceiling: float = RATE_CEILING,
) -> list[Extreme]:
    """Return the rates and gates of a model that are extreme at given parameters.

    Arguments:
        values: (n_parameters,) base units.
        voltages_mV: (n,), such as `voltages_of` gives; with ligands (n, 1 + n_ligands) mV and mM.
        ceiling: 1/ms, the rate that replaces faster ones; see `CEILINGS`.

    Returns: Those that fail first, else in the order of the model.
    """
    scope = _scope(model, np.asarray(values, dtype=float), voltages_mV)
    found: list[Extreme] = []
    for chain in model.chains:
        if chain.linear and chain.limit is not None and chain.tau is not None:
            found += _limit(chain.name, chain.limit, scope)
            found += [] if chain.instant else _tau(chain.name, chain.tau, scope, ceiling)
            continue
        for t in chain.transitions:
            way = "alpha" if t.target == chain.states[1] else "beta"
            place = (
                f"{way} of gate {chain.name}" if chain.is_gate else f"rate {t.source} -> {t.target}"
            )
            found += _rate(place, t.rate, scope, ceiling)
    for term in model.terms:
        found += _term(term, "" if len(model.terms) == 1 else f" of {term.name}", scope)
    if model.ligands:  # without a ligand there is no binding, and nothing is strange about it
        found = [extreme for extreme in found if extreme.value != 0 or extreme.fails]
        found = [replace(e, solution=_solution(e, model, voltages_mV)) for e in found]
    return sorted(found, key=lambda extreme: not extreme.fails)


def fastest_rates(
    model: ChannelModel, candidates: np.ndarray, voltages_mV: np.ndarray
) -> np.ndarray:
    """Return the largest rate of each candidate at any of the voltages.

    Arguments:
        candidates: (n_parameters, n) base units.
        voltages_mV: (n_voltages,)

    Returns: (n,) 1/ms. Gates whose tau is 0 have no rate, and NaN is left out.
    """
    scope = _scope(model, np.asarray(candidates, dtype=float)[..., None], voltages_mV)
    fastest = np.zeros((candidates.shape[1], 1))
    for chain in model.chains:
        for t in () if chain.instant else chain.transitions:
            fastest = np.fmax(fastest, evaluate(t.rate, scope))
    return np.asarray(fastest.max(axis=1))


def failing(model: ChannelModel, values: np.ndarray, voltages_mV: np.ndarray) -> str | None:
    """Return why parameters (n_parameters,) give no current, in words; None where they give one."""
    strange = [str(e) for e in extremes(model, values, voltages_mV) if e.fails]
    return "; ".join(strange) or None


def examples(
    model: ChannelModel, candidates: np.ndarray, voltages_mV: np.ndarray, most: int = 3
) -> list[str]:
    """Return one example of each way in which candidates fail, with their values, in words.

    Arguments:
        candidates: (n_parameters, n) base units.
        most: how many examples are given.
    """
    found: dict[tuple[str, str], str] = {}
    for values in np.asarray(candidates, dtype=float).T:
        for e in extremes(model, values, voltages_mV):
            if e.fails and (e.place, e.consequence) not in found and len(found) < most:
                pairs = zip(model.parameters, values, strict=True)
                listed = ", ".join(f"{p.name} {x:.4g}" for p, x in pairs if not p.fixed)
                found[e.place, e.consequence] = f"{e}; with {listed}"
    return list(found.values())


def _scope(model: ChannelModel, values: np.ndarray, voltages_mV: np.ndarray) -> dict[str, Any]:
    """Return the values of parameters, of the voltage and of all definitions by name."""
    scope: dict[str, Any] = dict(zip(model.parameter_names, values, strict=True))
    levels = np.asarray(voltages_mV, dtype=float).reshape(len(voltages_mV), -1)
    scope |= zip(model.commanded, levels.T, strict=True)
    for name, expression in model.definitions:
        scope[name] = evaluate(expression, scope)
    return scope


def _solution(extreme: Extreme, model: ChannelModel, levels: np.ndarray) -> str:
    """Return the concentrations in words at which something is extreme."""
    if extreme.at is None:
        return ""
    pairs = zip(model.ligands, levels[extreme.at, 1:], strict=True)
    return "".join(f" and {c:.6g} mM of {name}" for name, c in pairs)


def _rate(
    place: str, expression: sympy.Expr, scope: dict[str, Any], ceiling: float
) -> list[Extreme]:
    rate = _at_all(expression, scope)
    cases: Sequence[tuple[np.ndarray, np.ndarray, str, bool]] = (
        (np.isnan(rate), rate, "no current follows", True),
        (rate < 0, rate, "a rate is 0 or more", True),
        (rate > ceiling, -rate, f"taken for {ceiling:g} /ms", False),
        ((rate >= 0) & (rate < RATE_FLOOR), rate, f"taken for {RATE_FLOOR:g} /ms", False),
    )
    found = []
    for strange, order, consequence, fails in cases:
        found += _worst(place, rate, "/ms", strange, order, consequence, fails, scope)
    return found


def _term(term: Term, of: str, scope: dict[str, Any]) -> list[Extreme]:
    """Return the extreme values in a term of the current; `of` names one of several."""
    parts = (
        ("the conductance", term.conductance, "nS"),
        ("the reversal potential", term.reversal, "mV"),
        ("the permeability", term.permeability, "um3/ms"),
    )
    found = []
    for place, expression, unit in parts:
        value = 0.0 if expression is None else float(evaluate(expression, scope))
        if not abs(value) < GREATEST_GAIN:
            why = "no current follows"
            found.append(Extreme(f"{place}{of}", value, unit, None, 0, why, True))
    if term.ohmic or found:
        return found
    drive = _at_all(term.drive, scope)
    lost = ~(np.abs(drive) < GREATEST_GAIN)
    why = "no current follows"
    return _worst(f"the drive of an open channel{of}", drive, "pA", lost, drive, why, True, scope)


def _limit(gate: str, expression: sympy.Expr, scope: dict[str, Any]) -> list[Extreme]:
    place, inf = f"inf of gate {gate}", _at_all(expression, scope)
    passes = "taken as written, since a gate given by inf and tau is linear"
    return [
        *_worst(place, inf, "", ~np.isfinite(inf), inf, "no current follows", True, scope),
        *_worst(place, inf, "", inf < 0, inf, "an occupancy is 0 or more", True, scope),
        *_worst(place, inf, "", (inf > 1 + 1e-9) & np.isfinite(inf), -inf, passes, False, scope),
    ]


def _tau(gate: str, expression: sympy.Expr, scope: dict[str, Any], most: float) -> list[Extreme]:
    place, tau = f"tau of gate {gate}", _at_all(expression, scope)
    advice = "a time above 0 is expected; write `tau: 0` for a gate without one"
    with np.errstate(divide="ignore"):
        rate = 1 / tau
    fast, slow = rate > most, (rate < RATE_FLOOR) & (tau > 0)
    ceiling, floor = (f"its rates are taken for {x:g} /ms" for x in (most, RATE_FLOOR))
    return [
        *_worst(place, tau, "ms", ~(tau > 0), tau, advice, True, scope),
        *_worst(place, tau, "ms", fast & (tau > 0), tau, ceiling, False, scope),
        *_worst(place, tau, "ms", slow, -tau, floor, False, scope),
    ]


def _at_all(expression: sympy.Expr, scope: dict[str, Any]) -> np.ndarray:
    return np.broadcast_to(evaluate(expression, scope), scope["v"].shape)


def _worst(
    place: str,
    value: np.ndarray,
    unit: str,
    strange: np.ndarray,
    order: np.ndarray,
    consequence: str,
    fails: bool,
    scope: dict[str, Any],
) -> list[Extreme]:
    """Return one extreme, at the strange voltage with the least `order`; none without any.

    Arguments:
        value, strange, order: (n_voltages,) the values, whether each is extreme, and its rank.
    """
    at = np.flatnonzero(strange)
    if not at.size:
        return []
    k = int(at[np.argmin(np.nan_to_num(order[at], nan=0.0))])
    constant = at.size == value.size and bool(np.all(value == value[k]))
    v = None if constant else float(scope["v"][k])
    also = 0 if constant else int(at.size) - 1
    return [Extreme(place, float(value[k]), unit, v, also, consequence, fails, at=k)]
