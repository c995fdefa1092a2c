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
from channelfit.search.objective import Local, Objective

#: Dampings tried at once, as multiples of a start's own.
TRIALS = np.array([1 / 30, 1 / 3, 3.0, 100.0])
#: The range of dampings, and the damping with which a start begins.
LEAST, MOST, FIRST = 1e-12, 1e12, 1e-2
#: A coordinate leaves its face only if it is pulled by more than this share of the steepest slope:
#: less is rounding.
_INWARD = 1e-10


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

    def take(self, which: np.ndarray) -> Starts:
        """Return some of the points, by index or mask."""
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

    Steps are not finite where the damped system is not positive definite.

    Arguments:
        trials: (n_trials,) dampings, as multiples of a start's own.
    """
    unit, gradient = starts.unit, starts.local.gradient
    stuck = ((unit <= 0) & (gradient > 0)) | ((unit >= 1) & (gradient < 0))
    n_free, n = unit.shape
    h = np.moveaxis(starts.local.curvature, -1, 0)
    held = stuck.T
    diagonal = np.arange(n_free)
    scale = np.where(held, 0.0, h[:, diagonal, diagonal])
    # a coordinate that the data hardly see must not run away: it is damped as if it counted a bit
    scale = np.maximum(scale, 1e-6 * scale.max(axis=1, keepdims=True)) + 1e-300
    damped = np.repeat(h[None], len(trials), axis=0)  # (n_trials, n, n_free, n_free)
    damped[..., diagonal, diagonal] += trials[:, None, None] * starts.damping[:, None] * scale
    # unit diagonal: the solution then does not suffer from the scales of the parameters
    root = np.sqrt(np.maximum(damped[..., diagonal, diagonal], 1e-300))
    damped /= root[..., :, None] * root[..., None, :]
    with np.errstate(all="ignore"):
        step = (
            _bounded(
                damped.reshape(-1, n_free, n_free),
                (gradient.T / root).reshape(-1, n_free),
                (-unit.T * root).reshape(-1, n_free),
                ((1 - unit.T) * root).reshape(-1, n_free),
                np.tile(held, (len(trials), 1)),
            ).reshape(len(trials), n, n_free)
            / root
        )
        step = np.clip(unit.T + step, 0.0, 1.0) - unit.T
        bent = np.matmul(h, step[..., None])[..., 0]
        promise = -(gradient.T * step).sum(axis=-1) - 0.5 * (step * bent).sum(axis=-1)
    return np.moveaxis(step, -1, 0), promise


def _bounded(
    h: np.ndarray, g: np.ndarray, lower: np.ndarray, upper: np.ndarray, held: np.ndarray
) -> np.ndarray:
    """Return the steps (n, n_free) to the minima of parabolas, as far as a box allows.

    A coordinate that would leave the box goes to its face, and the others to the minimum that is
    left then. If the step were merely cut short there, the others would not make up for it, and a
    start in a narrow valley beside a face would stay where it is.

    Arguments:
        h: (n, n_free, n_free) curvature with a diagonal of ones.
        g: (n, n_free) gradient.
        lower, upper: (n, n_free), of the steps.
        held: (n, n_free) bool, coordinates that do not move.
    """
    n_free = g.shape[1]
    step, fixed, left = np.zeros_like(g), held.copy(), np.arange(len(g))
    for _ in range(3 * n_free):
        stays, some = fixed[left], h[left]
        matrix = np.where(stays[:, :, None] | stays[:, None, :], np.eye(n_free), some)
        reach = np.where(stays, step[left], 0.0)
        pull = g[left] + np.matmul(some, reach[..., None])[..., 0]
        free = -np.linalg.solve(matrix, np.where(stays, 0.0, pull)[..., None])[..., 0]
        whole = np.where(stays, reach, free)
        out = ~stays & ((whole < lower[left]) | (whole > upper[left]))
        step[left] = np.where(out, np.clip(whole, lower[left], upper[left]), whole)
        # on a face for what another was going to do, which it then did not: let go, one at a time
        slope = g[left] + np.matmul(some, step[left][..., None])[..., 0]
        inward = np.where(step[left] <= lower[left], -slope, slope)
        inward[~stays | held[left] | np.any(out, axis=1, keepdims=True)] = 0.0
        worst = inward.argmax(axis=1)
        places = np.arange(len(left))
        steepest = _INWARD * np.abs(g[left]).max(axis=1)
        freed: np.ndarray = np.asarray(inward[places, worst] > steepest)
        fixed[left] = stays | out
        fixed[left[freed], worst[freed]] = False
        left = left[out.any(axis=1) | freed]
        if not len(left):
            break
    return step


def _host(local: Local) -> Local:
    return Local(*(to_host(a) for a in vars(local).values()))
