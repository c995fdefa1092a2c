"""Wells whose cost is no parabola: linearized anew at their estimates given the population.

An iteration fits the population to the parabolas of the wells about their last points, moves each
well to its best point given that population, and linearizes it there (Lindstrom and Bates 1990,
Biometrics 46:673).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from channelfit.batch.costs import WellCosts
from channelfit.batch.fits import Subset, WellFits
from channelfit.batch.make_scorers import well_scorers
from channelfit.batch.mixed import Array, Level, pseudo_inverse
from channelfit.batch.plate import Plate
from channelfit.problem.experiment import Problem
from channelfit.search.plan import FitPlan

#: Minus the logarithm of the likelihood of wells at points (n_wells, n) of their unit cubes, with
#: its gradient and information there: (n_wells,), (n_wells, n) and (n_wells, n, n).
Relinearize = Callable[[Array], tuple[Array, Array, Array]]

#: The most iterations, the most halvings of a step, and the standard errors below which nothing
#: moves.
_ITERATIONS, _HALVINGS, _STILL = 100, 8, 5e-3
#: A well comes to rest where a step is below this share of the one before; the shortest share of a
#: step that is taken.
_CONTRACTED, _SHORTEST = 0.95, 0.2


#: Is called with the number of a round, and how far the wells still move, in standard errors.
OnRound = Callable[[int, float], None]


def ignore_round(number: int, moved: float) -> None:
    """Ignore a round."""


def relinearized(
    plate: Plate, relinearize: Relinearize, on_round: OnRound = ignore_round
) -> tuple[Level, Array, Array, Array, int]:
    """Linearize every well at its shrunken estimate and fit the population, until nothing moves.

    Arguments:
        on_round: is called with every linearization of all wells.

    Returns: the population, then points, weighted optima and information of the wells, and the
    number of iterations.
    """
    unit = plate.unit
    cost, gradient, information = relinearize(unit)
    reach, last = np.ones(len(unit)), np.full(len(unit), np.inf)
    for iteration in range(1, _ITERATIONS + 1):
        weighted = np.einsum("wij,wj->wi", information, unit) - gradient
        level = Level.of(plate.mixed(weighted, information))
        target = conditional(plate, level, weighted, information, unit)
        step = np.clip(target, 0.0, 1.0) - unit
        moved = np.sqrt(np.einsum("wi,wij,wj->w", step, information, step))
        on_round(iteration, float(moved.max()))
        if moved.max() < _STILL:
            return level, unit, weighted, information, iteration
        # a well whose steps do not shrink moves to and fro, and takes shorter steps
        slower = moved > _CONTRACTED * last
        reach, last = np.where(slower, 0.6 * reach, np.minimum(1.2 * reach, 1.0)), moved
        share = np.maximum(reach, _SHORTEST)
        for _ in range(_HALVINGS):
            trial = unit + share[:, None] * step
            fresh = relinearize(trial)
            promised = cost + np.einsum("wi,wi->w", gradient, trial - unit)
            promised += 0.5 * share**2 * moved**2
            off = np.abs(fresh[0] - promised)
            # a parabola that predicts the cost this badly was followed too far
            bad = ~(off <= np.maximum(1.0, 0.5 * np.abs(promised - cost)))
            if not bad.any():
                break
            share[bad] /= 2
        else:
            trial = np.where(bad[:, None], unit, trial)
            fresh = relinearize(trial)
        unit, (cost, gradient, information) = trial, fresh
    plate.notes.append(
        f"after {_ITERATIONS} linearizations the wells still move by {moved.max():.2g} standard "
        "errors; mean and spread are not final"
    )
    return level, unit, weighted, information, _ITERATIONS


def conditional(
    plate: Plate, level: Level, weighted: Array, information: Array, unit: Array
) -> Array:
    """Return the best coordinates (n_used, n) of each well, given the population."""
    found = unit.copy()
    values, _ = level.shrunken()
    found[:, plate.places[: plate.n_drawn]] = values
    found[:, plate.places[plate.n_drawn :]] = level.mean[plate.n_drawn :]
    own = [k for k in range(unit.shape[1]) if k not in plate.places]
    if own:
        pull = weighted[:, own] - np.einsum("wij,wj->wi", information[:, own], found)
        inner = pseudo_inverse(information[:, own][:, :, own])
        found[:, own] += np.einsum("wij,wj->wi", inner, pull)
    return found


def linearizer(
    plan: FitPlan,
    problems: Sequence[Problem],
    fits: WellFits,
    used: Array,
    backend: str = "auto",
) -> Relinearize:
    """Make the function that linearizes the wells that count, all of them in the same calls.

    Recordings are read when it is first called.

    Arguments:
        plan, problems: with which the wells were fitted, see `fit_wells`.
        used: (n_wells,) bool, see `population.usable`.

    Returns: a function of points (n_used, n) of the unit cube. The noise of a well, and the
        correlation of its samples, stay as they were in its own fit.
    """
    rows = np.flatnonzero(used)

    @cache
    def families() -> list[tuple[Array, WellCosts]]:
        some = Subset(problems, rows)
        return [(own, WellCosts(plan, scorer)) for own, scorer in well_scorers(some, backend)]

    def costs(unit: Array) -> tuple[Array, Array, Array]:
        n_wells, n = unit.shape
        found = np.empty(n_wells), np.empty((n_wells, n)), np.empty((n_wells, n, n))
        for own, wells in families():
            for first in range(0, len(own), wells.scorer.at_once):
                some = own[first : first + wells.scorer.at_once]
                local = wells.linearize(
                    np.ascontiguousarray(unit[some].T), np.arange(first, first + len(some))
                )
                found[0][some], found[1][some] = local.cost, local.gradient.T
                found[2][some] = np.moveaxis(local.hessian, -1, 0)
        return found

    @cache
    def scale() -> Array:
        """Return the factor from each well's cost, pA^2, to minus the log-likelihood."""
        hessian, information = costs(fits.unit[rows])[2], fits.information[rows]
        share: Array = (information * hessian).sum(axis=(1, 2)) / (hessian**2).sum(axis=(1, 2))
        return share

    def linearized(unit: Array) -> tuple[Array, Array, Array]:
        cost, gradient, bend = costs(unit)
        return scale() * cost, scale()[:, None] * gradient, scale()[:, None, None] * bend

    return linearized
