"""Levenberg-Marquardt from many starts side by side, within the unit cube.

Every start keeps its own damping. A derivative costs as many candidates as it has columns, a trial
only one; so each iteration tries several dampings at once and takes the best, which spares
derivatives where a single damping would first have to be found (after Marquardt 1963; Madsen,
Nielsen and Tingleff 2004 for the gain ratio). Bounds are an active set: a coordinate on a face of
the cube that the gradient pushes outward stays there for the iteration, and one whose step leads
out of the cube goes to the face, while the others take the step that is best then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.search.objective import Local, Objective

#: Dampings tried at once, as multiples of a start's own.
TRIALS = np.array([1 / 30, 1 / 3, 3.0, 100.0])
#: The range of dampings, and the damping with which a start begins.
LEAST, MOST, FIRST = 1e-12, 1e12, 1e-2
#: A coordinate leaves its face only if it is pulled by more than this share of the steepest slope:
#: less is rounding.
_INWARD = 1e-10
#: Points whose damped curvatures are held at once, and systems that a thread takes at a time.
_HELD, _LANES = 1 << 13, 128


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

    Steps are not finite where the damped system is not positive definite. All cores share the
    points; what comes of a point depends on nothing but itself.

    Arguments:
        trials: (n_trials,) dampings, as multiples of a start's own.
    """
    n_free, n = starts.unit.shape
    steps, promise = np.empty((n_free, len(trials), n)), np.empty((len(trials), n))
    with single_threaded_blas():
        for first in range(0, n, _HELD):
            some = slice(first, first + _HELD)
            damped = _Damped(starts.take(some), trials)
            damped.solve(steps[..., some], promise[:, some])
    return steps, promise


class _Damped:
    """Parabolas about points, each damped in several ways, in coordinates of their own.

    The diagonal of a damped curvature is one in these: so the solution does not suffer from the
    scales of the parameters.

    Attributes:
        held: (n, n_free) bool, coordinates that stay at their face of the cube.
        root: (n_trials, n, n_free), by which a step in the unit cube is multiplied.
        h: (n_trials, n, n_free, n_free), the damped curvature.
    """

    def __init__(self, starts: Starts, trials: np.ndarray) -> None:
        self.starts, self.trials = starts, trials
        unit, gradient = starts.unit, starts.local.gradient
        self.held = (((unit <= 0) & (gradient > 0)) | ((unit >= 1) & (gradient < 0))).T
        self.root = np.empty((len(trials), *self.held.shape))
        self.h = np.empty((*self.root.shape, len(unit)))

    def solve(self, steps: np.ndarray, promise: np.ndarray) -> None:
        """Fill in what `damped_steps` returns."""
        n_trials, n, n_free = self.root.shape
        cores = usable_cores()
        side_by_side(self._scale, n, _LANES, cores)
        unit, gradient = self.starts.unit.T, self.starts.local.gradient.T
        found = _bounded(
            self.h.reshape(-1, n_free, n_free),
            (gradient / self.root).reshape(-1, n_free),
            (-unit * self.root).reshape(-1, n_free),
            ((1 - unit) * self.root).reshape(-1, n_free),
            np.tile(self.held, (n_trials, 1)),
            cores,
        )
        self.found = found.reshape(self.root.shape)
        self.steps, self.promise = steps, promise
        side_by_side(self._promise, n, 4 * _LANES, cores)

    def _scale(self, first: int, last: int) -> None:
        """Make the damped curvatures of some points."""
        some = slice(_LANES * first, _LANES * last)
        h = np.ascontiguousarray(np.moveaxis(self.starts.local.curvature[..., some], -1, 0))
        diagonal = np.arange(h.shape[-1])
        scale = np.where(self.held[some], 0.0, h[:, diagonal, diagonal])
        # a coordinate that the data hardly see must not run away: it is damped as if it counted
        # a bit
        scale = np.maximum(scale, 1e-6 * scale.max(axis=1, keepdims=True)) + 1e-300
        for trial, damped, root in zip(self.trials, self.h, self.root, strict=True):
            whole = h[:, diagonal, diagonal] + trial * self.starts.damping[some, None] * scale
            root[some] = np.sqrt(np.maximum(whole, 1e-300))
            np.divide(h, root[some, :, None] * root[some, None, :], out=damped[some])
            damped[some, diagonal, diagonal] = whole / (root[some] * root[some])

    def _promise(self, first: int, last: int) -> None:
        """Fill in steps of some points, in the unit cube, and what the parabolas promise of them.

        Products are added up in an order that does not depend on how many points there are, which
        cannot be said of `matmul`.
        """
        some = slice(4 * _LANES * first, 4 * _LANES * last)
        unit, local = self.starts.unit[:, some].T, self.starts.local
        gradient, curvature = local.gradient[:, None, some], local.curvature[:, :, None, some]
        with np.errstate(all="ignore"):
            there = np.clip(unit + self.found[:, some] / self.root[:, some], 0.0, 1.0)
            step = np.ascontiguousarray(there - unit)
            by_row = np.ascontiguousarray(np.moveaxis(step, -1, 0))
            bent = _added(curvature[:, k] * by_row[k] for k in range(len(by_row)))
            slope = _added(gradient[k] * by_row[k] for k in range(len(by_row)))
            bend = (step * np.moveaxis(bent, 0, -1)).sum(axis=-1)
        self.steps[..., some], self.promise[:, some] = by_row, -slope - 0.5 * bend


def _added(terms: Iterator[np.ndarray]) -> np.ndarray:
    """The sum of arrays, from the first to the last."""
    total = next(terms)
    for term in terms:
        total += term
    return total


def _bounded(
    h: np.ndarray,
    g: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    held: np.ndarray,
    cores: int = 1,
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
        cores: threads that share the parabolas.
    """
    boxes = _Boxes(h, g, lower, upper, held)
    for _ in range(3 * g.shape[1]):
        if not len(boxes.left):
            break
        side_by_side(boxes.advance, len(boxes.left), _LANES, cores)
        boxes.left = boxes.left[boxes.goes_on[boxes.left]]
    return boxes.step


class _Boxes:
    """Parabolas over boxes on the way to their minima; see `_bounded` for the arguments.

    Attributes:
        step: (n, n_free), so far; fixed: (n, n_free) bool, coordinates that are on a face.
        left: the numbers of those that are not at their minimum yet.
        goes_on: (n,) bool, which of these were still moving when last advanced.
    """

    def __init__(
        self, h: np.ndarray, g: np.ndarray, lower: np.ndarray, upper: np.ndarray, held: np.ndarray
    ) -> None:
        self.h, self.g, self.lower, self.upper, self.held = h, g, lower, upper, held
        self.step, self.fixed = np.zeros_like(g), held.copy()
        self.left, self.goes_on = np.arange(len(g)), np.empty(len(g), bool)

    def advance(self, first: int, last: int) -> None:
        """Go to the minimum within the faces of today, and find those of tomorrow.

        Arguments:
            first, last: blocks of `_LANES` parabolas among those that are left.
        """
        which = self.left[_LANES * first : _LANES * last]
        stays, h, g = self.fixed[which], self.h[which], self.g[which]
        lower, upper = self.lower[which], self.upper[which]
        with np.errstate(all="ignore"):
            reach = np.where(stays, self.step[which], 0.0)
            pull = g + np.matmul(h, reach[..., None])[..., 0]
            matrix = np.where(stays[:, :, None] | stays[:, None, :], np.eye(g.shape[1]), h)
            free = -np.linalg.solve(matrix, np.where(stays, 0.0, pull)[..., None])[..., 0]
            whole = np.where(stays, reach, free)
            out = ~stays & ((whole < lower) | (whole > upper))
            step = np.where(out, np.clip(whole, lower, upper), whole)
            # on a face for what another was going to do, which it then did not: let go, one at a
            # time
            slope = g + np.matmul(h, step[..., None])[..., 0]
            inward = np.where(step <= lower, -slope, slope)
            leaves = out.any(axis=1)
            inward[~stays | self.held[which] | leaves[:, None]] = 0.0
            worst = inward.argmax(axis=1)
            steepest = _INWARD * np.abs(g).max(axis=1)
            freed: np.ndarray = np.asarray(inward[np.arange(len(g)), worst] > steepest)
        fixed: np.ndarray = np.logical_or(stays, out)
        fixed[freed, worst[freed]] = False
        self.step[which], self.fixed[which] = step, fixed
        self.goes_on[which] = leaves | freed


def _host(local: Local) -> Local:
    return Local(*(to_host(a) for a in vars(local).values()))
