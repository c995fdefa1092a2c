"""A parameter solved instead of searched: its best value, given all others (variable projection).

Where the current is a straight line in a parameter, as it is in a conductance, the cost is a
parabola in it. Three points of a parabola tell its lowest one: two scores besides the mean square
of the data, which is the cost of no current at all. Golub and Pereyra 1973, SIAM J Numer Anal
10:413.
A conductance that every cell has of its own is solved for each cell by itself, from the part
of the cost that is due to the experiments of the cell.

The parabola's value at its lowest point is a difference of larger numbers. Where that difference is
below `_LOST` of them, too many digits would be lost, and the lowest point is scored itself; so a
cost is never less exact than 1/_LOST times the scorer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.scoring.machine.arrays import array_module

#: A parabola's lowest value below this share of its terms is scored, not computed.
_LOST = 1e-2


@dataclass(frozen=True)
class Linear:
    """A parameter in which the current is a straight line.

    Attributes:
        place: its row among all parameters.
        lower, upper: its range.
        scale: a typical size, at which the line is probed.
        at_zero: the cost where the parameter is 0, pA^2, if the current is proportional to it; else
            None.
        cell: the name of the only cell that has it; empty where the current of all depends on it.
            Then a cost is the part that is due to the experiments of this cell.
    """

    place: int
    lower: float
    upper: float
    scale: float
    at_zero: float | None = None
    cell: str = ""


@dataclass(frozen=True, eq=False)
class BestValues:
    """The best values of a parameter (n_candidates,), with cost and status of each."""

    value: Any
    cost: Any
    status: Any


def solve(
    score: Callable[[Any], Any], physical: Any, linear: Linear, exact: bool = True
) -> BestValues:
    """Find the best value of one parameter for every candidate, within its range.

    Arguments:
        score: returns cost and status of parameters (n_parameters, n_candidates).
        physical: (n_parameters, n_candidates); the parameter's own row is not read.
        linear: the parameter.
        exact: score the lowest points where the parabola cannot tell their cost.

    Returns: values, costs and statuses; the cost of a candidate that fails is inf.
    """
    xp = array_module(physical)
    probe = physical.copy()

    def at(value: float) -> tuple[Any, Any]:
        probe[linear.place] = value
        found = score(probe)
        return found.cost.astype(np.float64), found.status

    if linear.at_zero is None:
        center, reach = 0.5 * (linear.lower + linear.upper), 0.5 * (linear.upper - linear.lower)
        middle = at(center)[0]
    else:
        center, reach = 0.0, linear.scale
        middle = linear.at_zero
    above, why = at(center + reach)
    below, why_below = at(center - reach)
    with np.errstate(all="ignore"):
        slope = 0.5 * (above - below)
        bend = 0.5 * (above + below) - middle
        # without a bend no channel opens: then any value does
        share = xp.where(bend > 0, -0.5 * slope / xp.where(bend > 0, bend, 1.0), 0.0)
        value = xp.clip(center + reach * share, linear.lower, linear.upper)
        share = (value - center) / reach
        cost = middle + share * (slope + share * bend)
        terms = xp.maximum(xp.maximum(above, below), middle) * (1 + share * share)
    status = xp.where(xp.isfinite(above), why_below, why)
    good = xp.isfinite(cost)
    value = xp.where(good, value, 0.5 * (linear.lower + linear.upper))
    cost = xp.where(good, cost, np.inf)
    lost = xp.flatnonzero(good & (cost < _LOST * terms)) if exact else ()
    if len(lost):
        fine = probe[:, lost]
        fine[linear.place] = value[lost]
        again = score(fine)
        cost[lost], status[lost] = again.cost, again.status
    return BestValues(value, cost, status)


def eliminated(
    gradient: Any, hessian: Any, solved: Sequence[tuple[int, Any]], free: list[int]
) -> tuple[Any, Any]:
    """Eliminate rows from derivatives: those of the cost with these parameters at their best.

    It is the Schur complement (Kaufman 1975, BIT 15:49): exact in the gradient, Gauss-Newton in the
    Hessian. Rows of several cells have no Hessian in common, so one after the other is
    eliminated.

    Arguments:
        gradient, hessian: (n_rows, n) and (n_rows, n_rows, n), by all rows.
        solved: the row of each solved parameter, and (n,) bool, whether it lies inside its range;
            at a bound it stays.
        free: the rows that stay.

    Returns: gradient (n_free, n) and Hessian (n_free, n_free, n).
    """
    xp = array_module(gradient)
    slope, bend = gradient[free], hessian[free][:, free]
    for row, inside in solved:
        own, mixed = hessian[row, row], hessian[free, row]
        moves = inside & (own > 0)
        share = xp.where(moves, mixed / xp.where(moves, own, 1.0), 0.0)
        bend = bend - share[:, None] * mixed[None]
        slope = slope - share * gradient[row]
    return slope, bend
