"""Profile likelihood intervals of fits whose cost is no parabola, many of them side by side.

An end of the interval of a parameter is where the cost, with all others fitted again, has grown by
what the quantile of Student's t allows (Venzon and Moolgavkar 1988). Each end is a row: its data
set, the parameter that is held, and a side. All rows are fitted together, in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.curves.doubts import intervals, reach_of
from channelfit.curves.fitting import CurveProblem, Fits
from channelfit.curves.lane_math import LEAST_COUNT
from channelfit.curves.weights import costs_of_points, sigma_of
from channelfit.model.evaluation import evaluate

#: Points of all rows that are fitted together, steps of a fit, and of the search for an end.
_AT_ONCE, _STEPS, _TRIALS = 2_000_000, 40, 40
#: Share of the allowed growth of the cost by which a fit, and an end, may be off.
_NEAR, _CLOSE = 1e-5, 2e-3
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-3, 1e-9, 1e9


INTERVALS = ("t", "profile")


def chosen_intervals(
    problem: CurveProblem,
    fits: Fits,
    judged: Sequence[tuple[str, str]],
    profiles: bool,
    first: int = 0,
) -> tuple[np.ndarray, list[str]]:
    """Return 95 % intervals (n_sets, n_free, 2), and which of INTERVALS those of each data set are.

    Arguments:
        judged: quality and reason of each; with `profiles` those that are to be checked get one.
    """
    found, kinds = intervals(problem, fits), [INTERVALS[0]] * len(judged)
    which = np.flatnonzero([profiles and quality == "check" for quality, _ in judged])
    if which.size:
        found[which] = profile_intervals(problem, fits, which, first)
        for k in which:
            kinds[k] = INTERVALS[1]
    return found, kinds


def profile_intervals(
    problem: CurveProblem, fits: Fits, which: np.ndarray, first: int = 0
) -> np.ndarray:
    """Return (n_which, n_free, 2) both ends of 95 % intervals; NaN where there is none.

    An end is the bound where the cost grows too little on the way there, and infinite for a
    parameter without a bound that the data do not bound either.

    Arguments:
        which: (n_which,) data sets, by their place in `fits`. first: place of the first of `fits`.
    """
    n = len(problem.lower)
    found = np.full((len(which), n, 2), np.nan)
    step = max(1, _AT_ONCE // (2 * n * problem.data.values.shape[1]))
    for a in range(0, len(which), step):
        rows = _IntervalEnds.of(problem, fits, np.asarray(which[a : a + step]), first)
        found[a : a + step] = rows.ends().reshape(-1, n, 2)
    return found


def _pulls(
    curve: Curve, f: np.ndarray, z: np.ndarray, sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return half the negative derivative of a point's cost by f, and the weight of the point in
    the Gauss-Newton Hessian.
    """
    if curve.likelihood == "poisson":
        share = 1.0 / np.maximum(f, LEAST_COUNT)
        return z * share - 1.0, share
    weight = sigma**-2
    if curve.loss != "linear":
        weight = weight / np.sqrt(1.0 + ((z - f) / sigma / (curve.f_scale or 1.0)) ** 2)
    return weight * (z - f), weight


def _scales(problem: CurveProblem, fits: Fits, which: np.ndarray, first: int) -> np.ndarray:
    """Return (n_which,) the cost that is one unit of the square of Student's t."""
    if problem.curve.likelihood == "poisson":
        return np.ones(len(which))
    spare = fits.counted[which] - len(problem.lower)
    if problem.curve.loss == "linear":
        return np.asarray(fits.cost[which] / spare)
    u, seen = [], []
    for k in which:
        z = np.asarray(problem.data.values[first + k], float)
        f = problem.curve.values(problem.data.at_points, fits.values[k])
        u.append((z - f) / sigma_of(problem.data, first + k, first + k + 1)[0])
        seen.append(np.isfinite(z))
    q = np.asarray(u) ** 2 / (problem.curve.f_scale or 1.0) ** 2
    pulls = (np.asarray(u) ** 2 / (1.0 + q)).sum(axis=1, where=seen)
    return np.asarray(pulls / spare / np.mean((1.0 + q) ** -1.5, axis=1, where=seen))


@dataclass(eq=False)
class _IntervalEnds:
    """Ends that are looked for, n_rows of them.

    Attributes:
        z, sigma: (n_rows, n_points). best: (n_rows, n_free), of cost (n_rows,).
        held: (n_rows,) the parameter, and side: -1 or 1.
        allowed: (n_rows,) growth of the cost. way: (n_rows,) first distance to look at.
    """

    problem: CurveProblem
    z: np.ndarray
    sigma: np.ndarray
    best: np.ndarray
    cost: np.ndarray
    held: np.ndarray
    side: np.ndarray
    allowed: np.ndarray
    way: np.ndarray

    @classmethod
    def of(cls, problem: CurveProblem, fits: Fits, which: np.ndarray, first: int) -> _IntervalEnds:
        """Return both ends of all parameters of these data sets."""
        n = len(problem.lower)
        z = np.stack([np.asarray(problem.data.values[first + k], float) for k in which])
        sigma = np.concatenate([sigma_of(problem.data, first + k, first + k + 1) for k in which])
        reach = reach_of(problem, fits)[which]
        values = np.asarray(fits.values[which], float)
        with np.errstate(all="ignore"):
            way = reach[:, None] * np.asarray(fits.errors[which], float)
            width = np.where(
                np.isfinite(problem.upper - problem.lower), problem.upper - problem.lower, np.inf
            )
            usual = np.where(np.isfinite(width), 0.05 * width, 0.1 * np.abs(values) + 1e-12)
            way = np.where((way > 0) & (way < width), way, usual)
            allowed = _scales(problem, fits, which, first) * reach**2
        again = 2 * n
        return cls(
            problem,
            np.repeat(z, again, 0),
            np.repeat(sigma, again, 0),
            np.repeat(values, again, 0),
            np.repeat(np.asarray(fits.cost[which], float), again),
            np.tile(np.repeat(np.arange(n), 2), len(which)),
            np.tile([-1.0, 1.0], len(which) * n),
            np.repeat(allowed, again),
            np.repeat(way, 2, axis=1).ravel(),
        )

    def ends(self) -> np.ndarray:
        """Return (n_rows,) the ends, by false position between a point inside and one outside."""
        every = np.arange(len(self.z))
        start = self.best[every, self.held]
        bound = np.where(
            self.side < 0, self.problem.lower[self.held], self.problem.upper[self.held]
        )
        inside, at_inside, near = start.copy(), np.zeros(len(every)), self.best.copy()
        outside, at_outside = np.full(len(every), np.nan), np.full(len(every), np.nan)
        next_ = start + self.side * self.way
        known = np.isfinite(self.allowed) & (self.allowed > 0)
        found = np.where(known & (start == bound), bound, np.nan)
        open_ = known & (start != bound)
        for _ in range(_TRIALS):
            rows = np.flatnonzero(open_)
            if not rows.size:
                return found
            within = np.minimum(next_[rows] * self.side[rows], bound[rows] * self.side[rows])
            x = within * self.side[rows]
            cost, p = self._fitted(rows, x, near[rows])
            grown = np.sqrt(np.maximum(cost - self.cost[rows], 0.0) / self.allowed[rows])
            close = np.abs(grown - 1.0) < _CLOSE
            reached = close | ((x == bound[rows]) & (grown < 1.0))
            found[rows[reached]], open_[rows[reached]] = x[reached], False
            less = grown < 1.0
            at = rows[less]
            inside[at], at_inside[at], near[at] = x[less], grown[less], p[less]
            at = rows[~less]
            outside[at], at_outside[at] = x[~less], grown[~less]
            known = np.isfinite(outside)
            with np.errstate(all="ignore"):
                share = (1.0 - at_inside) / (at_outside - at_inside)
                share = np.where(np.isfinite(share), np.clip(share, 0.1, 0.9), 0.5)
                between = inside + share * (outside - inside)
                farther = start + (inside - start) * np.clip(1.05 / at_inside, 1.3, 5.0)
            next_ = np.where(known, between, farther)
        known = open_ & np.isfinite(outside)
        found[known] = 0.5 * (inside + outside)[known]
        far = open_ & ~known
        found[far] = self.side[far] * np.inf
        return found

    def _fitted(
        self, rows: np.ndarray, x: np.ndarray, p: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return least costs (n,) with the held parameters at x, and parameters (n, n_free), from
        p on.
        """
        p, held = p.copy(), self.held[rows]
        every, n = np.arange(len(rows)), p.shape[1]
        lower, upper = self._bounds(held, x)
        p = np.clip(p, lower, upper)
        cost, slopes, weights = self._sums(rows, p)
        damping = np.full(len(rows), _FIRST_DAMPING)
        open_ = np.isfinite(cost)
        for _ in range(_STEPS):
            size = np.sqrt(np.diagonal(weights, axis1=1, axis2=2))
            still = ((p <= lower) & (slopes < 0)) | ((p >= upper) & (slopes > 0)) | ~(size > 0)
            still[every, held] = True
            size = np.where(still, 1.0, size)
            pull = np.where(still, 0.0, slopes / size)
            both = still[:, :, None] | still[:, None, :]
            m = np.where(both, 0.0, weights / (size[:, :, None] * size[:, None, :]))
            m[:, np.arange(n), np.arange(n)] = 1.0 + damping[:, None]
            move = np.linalg.solve(m, pull[:, :, None])[:, :, 0]
            open_ &= (move * pull).sum(1) > _NEAR * self.allowed[rows]
            if not open_.any():
                break
            trial = np.clip(p + move / size, lower, upper)
            new = self._sums(rows[open_], trial[open_])
            better = np.zeros(len(rows), bool)
            better[open_] = new[0] < cost[open_]
            took = new[0] < cost[open_]
            p[better] = trial[better]
            cost[better], slopes[better], weights[better] = (a[took] for a in new)
            damping = np.where(better, 0.1 * damping, np.where(open_, 5.0 * damping, damping))
            damping = np.maximum(damping, _LEAST_DAMPING)
            open_ &= damping < _MOST_DAMPING
        return cost, p

    def _bounds(self, held: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds (n_rows, n_free): a held parameter is fixed, its neighbors keep their
        order.
        """
        lower = np.tile(self.problem.lower, (len(x), 1))
        upper = np.tile(self.problem.upper, (len(x), 1))
        for k, below in enumerate(self.problem.below):
            if below >= 0:
                lower[held == below, k] = x[held == below]
                upper[held == k, below] = x[held == k]
        every = np.arange(len(x))
        lower[every, held] = upper[every, held] = x
        return lower, upper

    def _sums(self, rows: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the cost of these rows, half its negative gradient, and the Gauss-Newton Hessian.

        rows: (n,). p: (n, n_free).
        """
        curve, z = self.problem.curve, self.z[rows]
        seen, sigma = np.isfinite(z), self.sigma[rows]
        scope = {name: values[None] for name, values in self.problem.data.at_points.items()}
        scope |= {q.name: column[:, None] for q, column in zip(curve.free, p.T, strict=True)}
        with np.errstate(all="ignore"):
            f = np.broadcast_to(evaluate(curve.reduced, scope), z.shape)
            cost = costs_of_points(curve, f, z, sigma).sum(axis=1, where=seen)
            pull, weight = _pulls(curve, f, z, sigma)
            pull, weight = np.where(seen, pull, 0.0), np.where(seen, weight, 0.0)
            g = np.stack([np.broadcast_to(evaluate(s, scope), z.shape) for s in curve.slopes])
            slopes = np.einsum("arp,rp->ra", g, pull)
            weights = np.einsum("arp,brp->rab", g * weight, g)
        good = np.isfinite(cost) & np.isfinite(slopes).all(1) & np.isfinite(weights).all((1, 2))
        return np.where(good, cost, np.inf), slopes, weights
