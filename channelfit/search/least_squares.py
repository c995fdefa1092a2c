"""Levenberg-Marquardt from many starts side by side, within the unit cube.

Every start keeps its own damping. A derivative costs as many candidates as it has columns, a trial
only one; so each iteration tries several dampings at once and takes the best, which spares
derivatives where a single damping would first have to be found (after Marquardt 1963; Madsen,
Nielsen and Tingleff 2004 for the gain ratio). Bounds are an active set: a coordinate on a face of
the cube that the gradient pushes outward stays there for the iteration, and one whose step leads
out of the cube goes to the face, while the others take the step that is best then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import side_by_side, usable_cores
from channelfit.search.objective import Local, Objective

#: Dampings tried at once, as multiples of a start's own.
TRIALS = np.array([1 / 30, 1 / 3, 3.0, 100.0])
#: The range of dampings, and the damping with which a start begins.
LEAST, MOST, FIRST = 1e-12, 1e12, 1e-2
#: Points that a thread takes at a time: their curvatures share lines of the cache.
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
        local = Local(*(a[..., which] for a in vars(self.local).values()))
        return Starts(self.unit[:, which], local, self.damping[which], self.done[which])

    def joined(self, others: Starts) -> Starts:
        """Return these points followed by others."""
        pairs = zip(vars(self.local).values(), vars(others.local).values(), strict=True)
        return Starts(
            np.concatenate([self.unit, others.unit], axis=1),
            Local(*(np.concatenate(pair, axis=-1) for pair in pairs)),
            np.concatenate([self.damping, others.damping]),
            np.concatenate([self.done, others.done]),
        )

    def put(self, which: np.ndarray, part: Starts) -> Starts:
        """Return these points with some of them replaced."""
        unit, damping, done = self.unit.copy(), self.damping.copy(), self.done.copy()
        unit[:, which], damping[which], done[which] = part.unit, part.damping, part.done
        arrays = []
        for whole, some in zip(vars(self.local).values(), vars(part.local).values(), strict=True):
            arrays.append(whole.copy())
            arrays[-1][..., which] = some
        return Starts(unit, Local(*arrays), damping, done)


def begin(objective: Objective, unit: np.ndarray) -> Starts:
    """Compute the derivatives at points from which refinement starts.

    Arguments:
        unit: (n_free, n_points), in the unit cube.

    Returns: the starts; those that cannot be scored are done.
    """
    local = _host(objective.linearize(unit))
    n = unit.shape[1]
    return Starts(unit.copy(), local, np.full(n, FIRST), ~np.isfinite(local.cost))


def improve(objective: Objective, starts: Starts, tolerance: float = 1e-10) -> Starts:
    """Do one iteration of every start that is not done.

    Arguments:
        tolerance: a start is done when its parabola promises a gain of less than this share of its
            cost.
    """
    active = np.flatnonzero(~starts.done)
    if not len(active):
        return starts
    old = starts.take(active)
    steps, promise = damped_steps(old)
    trial = np.clip(old.unit[:, None, :] + steps, 0.0, 1.0)
    n_free, n_trials, n = trial.shape
    score = objective.score(trial.reshape(n_free, -1))
    cost = np.where(np.isfinite(promise), to_host(score.cost).reshape(n_trials, n), np.inf)
    best, places = cost.argmin(axis=0), np.arange(n)
    gained = old.cost - cost[best, places]
    better = gained > 0
    promised = promise[best, places]
    damping = old.damping * np.where(better, TRIALS[best], 30.0 * TRIALS[-1])
    # a step that brought far less than promised asks for a shorter next one
    damping = np.where(better & (gained < 0.25 * promised), 4.0 * damping, damping)
    damping = np.clip(damping, LEAST, MOST)
    unit = np.where(better, trial[:, best, places], old.unit)
    most = np.where(np.isfinite(promise), promise, 0.0).max(axis=0)
    floor = tolerance * np.abs(old.cost)
    done = (most <= floor) | (~better & (old.damping >= MOST / 1e4)) | (better & (gained <= floor))
    part = Starts(unit, old.local, damping, done)
    moved = np.flatnonzero(better)
    if len(moved):
        fresh = part.take(moved)
        local = _host(objective.linearize(fresh.unit))
        # derivatives may fail, or the two ways to the cost may differ in the last digits
        failed = ~np.isfinite(local.cost)
        # where all is rounding, a gain by one way alone is none, and would be found for ever
        stalled = (local.cost <= objective.floor) & (local.cost >= old.cost[moved])
        part = part.put(moved, replace(fresh, local=local, done=fresh.done | failed | stalled))
        if failed.any():
            back = old.take(moved[failed])
            part = part.put(moved[failed], replace(back, done=np.ones(len(back), bool)))
    return starts.put(active, part)


def refine(
    objective: Objective, unit: np.ndarray, iterations: int = 100, tolerance: float = 1e-10
) -> Starts:
    """Refine points until nothing is gained.

    Arguments:
        unit: (n_free, n_points), in the unit cube.
        iterations: at most so many.
        tolerance: see `improve`.

    Returns: the points, with cost, gradient and curvature.
    """
    starts = begin(objective, unit)
    for _ in range(iterations):
        if starts.done.all():
            break
        starts = improve(objective, starts, tolerance)
    return starts


def damped_steps(starts: Starts, trials: np.ndarray = TRIALS) -> tuple[np.ndarray, np.ndarray]:
    """Compute steps (n_free, n_trials, n_points), and the gain that the parabola promises of each.

    Steps and promises are not finite where a damped system is singular. All cores share the
    points; what comes of a point depends on nothing but itself.

    Arguments:
        trials: (n_trials,) dampings, as multiples of a start's own.
    """
    from channelfit.search.damped import steps_of  # LLVM is loaded where something is refined

    (n_free, n), local = starts.unit.shape, starts.local
    steps, promise = np.empty((n_free, len(trials), n)), np.empty((len(trials), n))
    arrays = starts.unit, local.gradient, local.curvature, starts.damping, trials
    given = [np.ascontiguousarray(array, dtype=float) for array in arrays]

    def some(first: int, last: int) -> None:
        steps_of(*given, first * _BESIDE, min(last * _BESIDE, n), steps, promise)

    side_by_side(some, n, _BESIDE, usable_cores())
    return steps, promise


def _host(local: Local) -> Local:
    return Local(*(to_host(a) for a in vars(local).values()))
