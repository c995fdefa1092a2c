"""Levenberg-Marquardt from many starts side by side, within the unit cube.

Every start keeps its own damping. A derivative costs as many candidates as it has columns, a trial
only one; so each iteration tries several dampings at once and takes the best, which spares
derivatives that a search for the right damping would take (after Marquardt 1963; Madsen,
Nielsen and Tingleff 2004 for the gain ratio). Bounds are an active set: a coordinate on a face of
the cube that the gradient pushes outward stays there for the iteration, and one that a step would
move out of the cube goes to the face, while the others take the step that is best then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import side_by_side, usable_cores
from channelfit.search.objective import Local, Objective

#: Dampings tried at once, as multiples of a start's own.
TRIALS = np.array([1 / 30, 1 / 3, 3.0, 100.0])
#: The range of dampings, and the damping with which a start begins.
LEAST, MOST, FIRST = 1e-12, 1e12, 1e-2
#: Dampings of `step`, which computes derivatives with every trial: a start's own, and next to none,
#: to see whether anything is left to gain; and a damping at which a start is stuck.
_OWN_AND_NONE, _STUCK = np.array([1.0, 1e-6]), 1e8
#: Halvings of a step that leaves the bounds on rates.
_HALVINGS = 40
#: Points that a thread takes at a time: their Hessians share lines of the cache.
_BESIDE = 8


@dataclass(frozen=True, eq=False)
class Starts:
    """Points under refinement; arrays end in the point's index.

    Attributes:
        unit: (n_free, n_points), in the unit cube.
        local: cost and derivatives at the points.
        damping: (n_points,), of the next step.
        done: (n_points,) bool, whether nothing more is to be gained, or the point is stuck.
    """

    unit: np.ndarray
    local: Local
    damping: np.ndarray
    done: np.ndarray

    @property
    def cost(self) -> np.ndarray:
        """The costs (n_points,), inf where a start failed."""
        cost: np.ndarray = self.local.cost
        return cost

    def __len__(self) -> int:
        return len(self.damping)

    def take(self, which: np.ndarray | slice) -> Starts:
        """Return some of the points, by index, mask or slice."""
        return _starts([array[..., which] for array in self._arrays()])

    def joined(self, others: Starts) -> Starts:
        """Return these points followed by others."""
        pairs = zip(self._arrays(), others._arrays(), strict=True)
        return _starts([np.concatenate(pair, axis=-1) for pair in pairs])

    def put(self, which: np.ndarray, part: Starts) -> Starts:
        """Return these points with some of them replaced."""
        arrays = [array.copy() for array in self._arrays()]
        for whole, some in zip(arrays, part._arrays(), strict=True):
            whole[..., which] = some
        return _starts(arrays)

    def _arrays(self) -> list[np.ndarray]:
        return [self.unit, *vars(self.local).values(), self.damping, self.done]


def _starts(arrays: Sequence[np.ndarray]) -> Starts:
    """Return starts of arrays in the order of `Starts._arrays`."""
    unit, *local, damping, done = arrays
    return Starts(unit, Local(*local), damping, done)


def begin(objective: Objective, unit: np.ndarray, well: np.ndarray | None = None) -> Starts:
    """Compute the derivatives at points from which refinement starts.

    Arguments:
        unit: (n_free, n_points), in the unit cube.
        well: (n_points,) the number of each start's recording, see `Objective.linearize`.

    Returns: the starts; those that cannot be scored are done.
    """
    local = _host(objective.linearize(unit, *(() if well is None else (well,))))
    n = unit.shape[1]
    return Starts(unit.copy(), local, np.full(n, FIRST), ~np.isfinite(local.cost))


def improve(
    objective: Objective,
    starts: Starts,
    tolerance: float = 1e-10,
    well: np.ndarray | None = None,
) -> Starts:
    """Do one iteration of every start that is not done.

    Arguments:
        tolerance: a start is done when its parabola promises a gain of less than this share of its
            cost.
        well: as of `begin`, for an objective with derivatives `at_once`.
    """
    active = np.flatnonzero(~starts.done)
    if not len(active):
        return starts
    old = starts.take(active)
    if objective.at_once:
        own = None if well is None else well[active]
        return starts.put(active, step(objective, old, own, tolerance))
    steps, promises = damped_steps(old)
    trial = np.clip(old.unit[:, None, :] + steps, 0.0, 1.0)
    n_free, n_trials, n = trial.shape
    score = objective.score(trial.reshape(n_free, -1))
    cost = np.where(np.isfinite(promises), to_host(score.cost).reshape(n_trials, n), np.inf)
    best, places = cost.argmin(axis=0), np.arange(n)
    gained = old.cost - cost[best, places]
    better = gained > 0
    factor = np.where(better, TRIALS[best], 30.0 * TRIALS[-1])
    # a step that brought far less than promised asks for a shorter next one
    factor = np.where(better & (gained < 0.25 * promises[best, places]), 4.0 * factor, factor)
    part, still = _taken(old, trial[:, best, places], gained, factor, promises, tolerance)
    part = replace(part, done=part.done | still)
    moved = np.flatnonzero(better)
    if len(moved):
        fresh = part.take(moved)
        local = _host(objective.linearize(fresh.unit))
        # derivatives may fail, or the two ways to the cost may differ in the last digits
        failed = ~np.isfinite(local.cost)
        # below the floor a gain by one way alone is rounding, and would be found for ever
        stalled = (local.cost <= objective.floor) & (local.cost >= old.cost[moved])
        part = part.put(moved, replace(fresh, local=local, done=fresh.done | failed | stalled))
        if failed.any():
            back = old.take(moved[failed])
            part = part.put(moved[failed], replace(back, done=np.ones(len(back), bool)))
    return starts.put(active, part)


def step(objective: Objective, old: Starts, well: np.ndarray | None, tolerance: float) -> Starts:
    """Take one step of each start with its own damping, and compute the derivatives there at once.

    This suits a scorer that computes derivatives about as fast as a few scores. A step that leaves
    the bounds on rates is brought back to them.

    Arguments:
        well: as of `begin`.
        tolerance: see `improve`.
    """
    steps, promises = damped_steps(old, _OWN_AND_NONE)
    promise = promises[0]
    unit = np.clip(old.unit + np.where(np.isfinite(promise), steps[:, 0], 0.0), 0.0, 1.0)
    outside = np.flatnonzero(~objective.allowed(unit))
    if len(outside):
        unit[:, outside], promise[outside] = _brought_back(
            objective, old.take(outside), unit[:, outside]
        )
        promises[:, outside] = promise[outside]
    local = _host(objective.linearize(unit, *(() if well is None else (well,))))
    gained = old.cost - local.cost
    better = gained > 0
    with np.errstate(all="ignore"):
        ratio = gained / promise
    factor = np.where(ratio > 0.75, 0.25, np.where(ratio > 0.25, 1.0, 3.0))
    factor = np.where(better, factor, 10.0)
    part, still = _taken(old, unit, gained, factor, promises, tolerance)
    still &= promise <= 10 * (tolerance * np.abs(old.cost))
    done = part.done | still | (~better & (old.damping > _STUCK))
    worse = np.flatnonzero(~better)
    if len(worse):  # their derivatives are those of the point at which they stay
        for new, was in zip(vars(local).values(), vars(old.local).values(), strict=True):
            new[..., worse] = was[..., worse]
    return replace(part, local=local, done=done)


def _taken(
    old: Starts,
    unit: np.ndarray,
    gained: np.ndarray,
    factor: np.ndarray,
    promises: np.ndarray,
    tolerance: float,
) -> tuple[Starts, np.ndarray]:
    """Move the starts that gain, and set their next damping.

    Arguments:
        unit: (n_free, n_points), the ends of the steps. gained: (n_points,), their gains.
        factor: (n_points,), of the dampings. promises: (n_trials, n_points), of all steps.

    Returns: the starts with their old derivatives, done where no parabola promises anything; and
        which of them gained next to nothing, or cannot gain with any damping.
    """
    better, floor = gained > 0, tolerance * np.abs(old.cost)
    damping = np.clip(old.damping * factor, LEAST, MOST)
    done = np.where(np.isfinite(promises), promises, 0.0).max(axis=0) <= floor
    still = np.where(better, gained <= floor, old.damping >= MOST / 1e4)
    return Starts(np.where(better, unit, old.unit), old.local, damping, done), still


def _brought_back(
    objective: Objective, old: Starts, trial: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bring steps that leave the bounds on rates back to them, each in the way that promises most.

    A step may be cut short; or each coordinate on which the bounds depend goes as far as it can,
    one after the other; or the step is taken in full but for one of these, which gives way as far
    as it must: so a start can slide along a bound; or all of these stay, and the others take the
    step that is best then.

    Arguments:
        trial: (n_free, n), the ends of the steps.

    Returns: the points (n_free, n), and the gain that the parabola promises of each (n,).
    """
    n_free, n = trial.shape
    rows, held = objective.bounded, _held(old, objective.bounded)
    ends, aims = [old.unit, held], [trial, held]
    for order in (rows, rows[::-1]):
        one = trial.copy()
        one[rows] = old.unit[rows]
        for row in order:
            further = one.copy()
            further[row] = trial[row]
            one = _farthest(objective, one, further)
        ends.append(one)
        aims.append(one)
    for row in rows:
        for end in (0.0, 1.0):
            ends.append(trial.copy())
            ends[-1][row] = end
            aims.append(trial)
    inside, aim = np.concatenate(ends, axis=1), np.concatenate(aims, axis=1)
    usable = objective.allowed(inside)
    inside = _farthest(objective, inside, aim)
    step = (inside - np.tile(old.unit, len(ends))).reshape(n_free, len(ends), n)
    bent = np.einsum("ijn,jvn->ivn", old.local.hessian, step)
    gradient = old.local.gradient[:, None]
    promise = -(gradient * step).sum(axis=0) - 0.5 * (step * bent).sum(axis=0)
    promise = np.where(usable.reshape(len(ends), n), promise, -np.inf)
    best, places = promise.argmax(axis=0), np.arange(n)
    return inside.reshape(n_free, len(ends), n)[:, best, places], promise[best, places]


def _held(old: Starts, rows: Sequence[int]) -> np.ndarray:
    """Return the ends (n_free, n) of the steps that are best where some coordinates stay."""
    gradient, hessian = old.local.gradient.copy(), old.local.hessian.copy()
    gradient[rows], hessian[rows], hessian[:, rows] = 0.0, 0.0, 0.0
    hessian[rows, rows] = 1.0
    local = replace(old.local, gradient=gradient, hessian=hessian)
    steps, promises = damped_steps(replace(old, local=local), np.ones(1))
    ends = old.unit + np.where(np.isfinite(promises[0]), steps[:, 0], 0.0)
    return np.asarray(np.clip(ends, 0.0, 1.0))


def _farthest(objective: Objective, inside: np.ndarray, aim: np.ndarray) -> np.ndarray:
    """Go as far as one can from points (n_free, n) within the bounds on rates towards others."""
    reached = np.where(objective.allowed(aim), aim, inside)
    outside = aim
    for _ in range(_HALVINGS):
        between = 0.5 * (reached + outside)
        good = objective.allowed(between)
        reached = np.where(good, between, reached)
        outside = np.where(good, outside, between)
    return reached


def refine(
    objective: Objective,
    unit: np.ndarray,
    iterations: int = 100,
    tolerance: float = 1e-10,
    well: np.ndarray | None = None,
) -> Starts:
    """Refine points until nothing is gained.

    Arguments:
        unit: (n_free, n_points), in the unit cube.
        iterations: at most so many.
        tolerance, well: see `improve`.

    Returns: the points, with cost, gradient and Hessian.
    """
    starts = begin(objective, unit, well)
    for _ in range(iterations):
        if starts.done.all():
            break
        starts = improve(objective, starts, tolerance, well)
    return starts


def damped_steps(starts: Starts, trials: np.ndarray = TRIALS) -> tuple[np.ndarray, np.ndarray]:
    """Compute steps (n_free, n_trials, n_points), and the gain that the parabola promises of each.

    Steps and promises are not finite where a damped system is singular. All cores share the
    points; the step of a point depends on nothing but the point.

    Arguments:
        trials: (n_trials,) dampings, as multiples of a start's own.
    """
    from channelfit.search.damped import steps_of  # LLVM is loaded where something is refined

    (n_free, n), local = starts.unit.shape, starts.local
    steps, promise = np.empty((n_free, len(trials), n)), np.empty((len(trials), n))
    arrays = starts.unit, local.gradient, local.hessian, starts.damping, trials
    contiguous = [np.ascontiguousarray(array, dtype=float) for array in arrays]

    def some(first: int, last: int) -> None:
        steps_of(*contiguous, first * _BESIDE, min(last * _BESIDE, n), steps, promise)

    side_by_side(some, n, _BESIDE, usable_cores())
    return steps, promise


def _host(local: Local) -> Local:
    return Local(*(to_host(a) for a in vars(local).values()))
