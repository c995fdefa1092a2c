"""One particle swarm for each data set, `LANES` of them side by side on a processor.

As Kneusel (2012) published it: particles begin anywhere in the domain at rest; a velocity keeps
0.9 of itself, and is drawn to the particle's own best and to the swarm's best by 2 times a random
share each; velocities are limited, and a particle stops at the faces of the domain. The number of
iterations is fixed. His estimate of errors is the standard deviation of the last bests of a swarm.

A draw depends on the seed, the data set, the particle, the parameter and the iteration alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.curves.lanes import LANES, judge, load
from channelfit.scoring.machine.kernel_math import inline, philox
from channelfit.scoring.machine.machine_code import kernel

Array = np.ndarray
INERTIA, ATTRACTION = 0.9, 2.0
#: The largest velocity, as a share of the domain.
FASTEST = 0.05
#: Bests of a swarm whose spread estimates the errors.
LAST = 10
_WORD = 4294967295
_INFINITE = float("inf")


@inline
def uniform(high: int, low: int) -> float:
    """Return a number in [0, 1) of 53 random bits."""
    return float(((high >> 5) << 26) | (low >> 6)) * 1.1102230246251565e-16


@inline
def lowest(low: float, least: float, greatest: float) -> float:
    """Return the lower end of a range; where it has none, one beyond the data by their width."""
    return low if low > -_INFINITE else least - (greatest - least)


@inline
def highest(high: float, least: float, greatest: float) -> float:
    """Return the upper end of a range; where it has none, one beyond the data by their width."""
    return high if high < _INFINITE else greatest + (greatest - least)


@inline
def velocity(
    here: float, fast: float, own: float, best: float, one: float, two: float, width: float
) -> float:
    """Return the next velocity of a particle in one dimension of the domain.

    own, best: best positions of the particle and of the swarm. one, two: random shares. width: of
    the domain.
    """
    limit = FASTEST * width
    v = INERTIA * fast
    v += ATTRACTION * one * (own - here)
    v += ATTRACTION * two * (best - here)
    return min(max(v, -limit), limit)


def follow(
    costs: Array, bests: Array, best_cost: Array, best: Array, last: Array, kept: Array
) -> None:
    """Take over the best position of any particle, and remember it among the last ones.

    costs: (n_particles, LANES), bests: (n_particles*n, LANES) of the particles. last: (LAST*n,
    LANES), kept: (LANES,) how many there have been.
    """
    n = best.shape[0]
    for lane in range(LANES):
        at = -1
        for k in range(costs.shape[0]):
            if costs[k, lane] < best_cost[lane]:
                best_cost[lane] = costs[k, lane]
                at = k
        if at >= 0:
            row = kept[lane] % LAST
            kept[lane] += 1
            for j in range(n):
                best[j, lane] = bests[at * n + j, lane]
                last[row * n + j, lane] = best[j, lane]


@kernel
def fly(
    value: Any,
    evaluate: Any,
    data: Array,
    weights: Array,
    first: int,
    last_block: int,
    first_set: int,
    inputs: Array,
    lengths: Array,
    lower: Array,
    upper: Array,
    width: Array,
    below: Array,
    n_linear: int,
    kind: int,
    n_particles: int,
    n_iterations: int,
    key0: int,
    key1: int,
    values: Array,
    errors: Array,
    covariances: Array,
    numbers: Array,
    flags: Array,
    spread: Array,
) -> None:
    """Fly the swarms of the data sets of some blocks of lanes.

    Arguments:
        value, evaluate: of `source`. first_set: the number of data set 0 among all, for draws.
        key0, key1: of the random numbers. spread: (n_sets, n) the published estimate of errors.
        The others are those of `lanes.fit`.
    """
    n_points, n = data.shape[1], lower.shape[0]
    n_sums, n_sets = 1 + n + n * (n + 1) // 2, data.shape[0]
    z, w = np.empty((n_points, LANES)), np.empty((n_points, LANES))
    facts, gain, most = np.empty((10, LANES)), np.empty(LANES), np.empty(LANES)
    low, high = np.empty((n, LANES)), np.empty((n, LANES))
    here, fast = np.empty((n_particles * n, LANES)), np.empty((n_particles * n, LANES))
    bests, costs = np.empty((n_particles * n, LANES)), np.empty((n_particles, LANES))
    best, best_cost, cost = np.empty((n, LANES)), np.empty(LANES), np.empty((1, LANES))
    last = np.empty((LAST * n, LANES))
    sums, m = np.empty((n_sums, LANES)), np.empty((n * n, LANES))
    d, held = np.empty((n, LANES)), np.empty((n, LANES))
    found, ended = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    kept, steps = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    for block in range(first, last_block):
        load(data, weights, block * LANES, z, w, facts, found)
        for lane in range(LANES):
            least, greatest = _INFINITE, -_INFINITE
            for i in range(n_points):
                if w[i, lane] > 0.0:
                    least, greatest = min(least, z[i, lane]), max(greatest, z[i, lane])
            for j in range(n):
                low[j, lane] = lowest(lower[j], least, greatest)
                high[j, lane] = highest(upper[j], least, greatest)
                best[j, lane] = low[j, lane]
            best_cost[lane] = _INFINITE
            kept[lane], steps[lane] = 0, n_iterations
        for t in range(n_iterations + 1):
            for k in range(n_particles):
                for j in range(n):
                    at = k * n + j
                    for lane in range(LANES):
                        number = (first_set + block * LANES + lane) & _WORD
                        a, b, c, e = philox(k, j, t, number, key0, key1)
                        one, two = uniform(a, b), uniform(c, e)
                        start, end = low[j, lane], high[j, lane]
                        if t == 0:
                            here[at, lane] = start + one * (end - start)
                            fast[at, lane] = 0.0
                            bests[at, lane] = here[at, lane]
                        else:
                            x, own = here[at, lane], bests[at, lane]
                            v = velocity(
                                x, fast[at, lane], own, best[j, lane], one, two, end - start
                            )
                            fast[at, lane] = v
                            here[at, lane] = min(max(x + v, start), end)
                value(z, w, inputs, lengths, here[k * n : (k + 1) * n], cost)
                for lane in range(LANES):
                    better = t == 0 or cost[0, lane] < costs[k, lane]
                    x = cost[0, lane] if abs(cost[0, lane]) < _INFINITE else _INFINITE
                    costs[k, lane] = x if better else costs[k, lane]
                    gain[lane] = 1.0 if better else 0.0
                for j in range(n):
                    for lane in range(LANES):
                        x = bests[k * n + j, lane]
                        bests[k * n + j, lane] = here[k * n + j, lane] if gain[lane] > 0.0 else x
            follow(costs, bests, best_cost, best, last, kept)
        evaluate(z, w, inputs, lengths, best, sums)
        for lane in range(LANES):
            ended[lane] = 0 if abs(sums[0, lane]) < _INFINITE else 2
        judge(
            block * LANES, n_sets, kind, n_linear == n, found, ended, steps, facts, sums, best,
            lower, upper, width, below, m, d, held, gain, most, values, errors, covariances,
            numbers, flags,
        )  # fmt: skip
        for lane in range(LANES):
            s = block * LANES + lane
            if s < n_sets:
                count = min(kept[lane], LAST)
                for j in range(n):
                    mean, squares = 0.0, 0.0
                    for k in range(count):
                        mean += last[k * n + j, lane] / max(count, 1)
                    for k in range(count):
                        x = last[k * n + j, lane] - mean
                        squares += x * x / max(count, 1)
                    known = values[s, j] == values[s, j]
                    spread[s, j] = np.sqrt(squares) if known else float("nan")
