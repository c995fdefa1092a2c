"""Damped least-squares steps of many points, each to the lowest point of a parabola in a box.

The text of kernels, which threads run side by side, each for points of its own. The step of a point
depends on nothing but the point.
"""

from __future__ import annotations

import numpy as np

from channelfit.scoring.machine.machine_code import kernel

Array = np.ndarray
#: Rows of the scratch of `to_the_lowest`: which coordinates do not move (1, else 0), the places of
#: those that do, a column of a factor, and where these would move.
_FIXED, _PLACES, _COLUMN, _PULL = range(4)
#: A coordinate leaves its face only for a slope above this share of the steepest one: less is
#: rounding.
_INWARD = 1e-10


@kernel
def steps_of(
    unit: Array,
    gradient: Array,
    hessian: Array,
    damping: Array,
    trials: Array,
    first: int,
    last: int,
    steps: Array,
    promise: Array,
) -> None:
    """Fill in steps and promises of the points from `first` to before `last`.

    unit, gradient: (n_free, n), hessian: (n_free, n_free, n), damping: (n,), trials: (n_trials,),
    steps: (n_free, n_trials, n), promise: (n_trials, n); see `least_squares.damped_steps`.
    """
    n_free = unit.shape[0]
    whole, h = np.empty((n_free, n_free)), np.empty((n_free, n_free))
    scale, root = np.empty(n_free), np.empty(n_free)
    g, box = np.empty(n_free), np.empty((2, n_free))
    held, step = np.zeros(n_free), np.empty(n_free)
    factor, scratch = np.empty((n_free, n_free)), np.zeros((4, n_free))
    for p in range(first, last):
        most = 0.0
        for i in range(n_free):
            for j in range(n_free):
                whole[i, j] = hessian[i, j, p]
            x, slope = unit[i, p], gradient[i, p]
            held[i] = 1.0 if (x <= 0.0 and slope > 0.0) or (x >= 1.0 and slope < 0.0) else 0.0
            scale[i] = 0.0 if held[i] > 0.0 else whole[i, i]
            most = max(most, scale[i])
        for i in range(n_free):
            # a coordinate on which the cost hardly depends must not run away: it is damped as if
            # the cost depended on it a little
            scale[i] = max(scale[i], 1e-6 * most) + 1e-300
        for t in range(trials.shape[0]):
            # unit diagonal: the solution then does not suffer from the scales of the parameters
            for i in range(n_free):
                scaled = whole[i, i] + trials[t] * damping[p] * scale[i]
                root[i] = np.sqrt(max(scaled, 1e-300))
                g[i] = gradient[i, p] / root[i]
                box[0, i] = -unit[i, p] * root[i]
                box[1, i] = (1.0 - unit[i, p]) * root[i]
                for j in range(i):
                    h[i, j] = whole[i, j] / (root[i] * root[j])
                    h[j, i] = h[i, j]
                h[i, i] = scaled / (root[i] * root[i])
            to_the_lowest(h, g, box, held, step, factor, scratch)
            promised = 0.0
            for i in range(n_free):
                x = unit[i, p] + step[i] / root[i]
                step[i] = (0.0 if x < 0.0 else (1.0 if x > 1.0 else x)) - unit[i, p]
                steps[i, t, p] = step[i]
            for i in range(n_free):
                bent = 0.0
                for j in range(n_free):
                    bent += whole[i, j] * step[j]
                promised -= step[i] * (gradient[i, p] + 0.5 * bent)
            promise[t, p] = promised


def to_the_lowest(
    h: Array, g: Array, box: Array, held: Array, step: Array, factor: Array, scratch: Array
) -> None:
    """Write the step to the minimum of a parabola, as far as a box allows.

    A coordinate that would leave the box goes to its face, and the others to the minimum that is
    left then. If the step were merely cut short there, the others would not make up for it, and a
    start in a narrow valley beside a face would stay where it is.

    h: (n_free, n_free) Hessian with a diagonal of ones, g: (n_free,) gradient. box: (2, n_free),
    the least and the largest step. held: (n_free,), 1 for coordinates that do not move, else 0.
    step: (n_free,). Overwritten: factor (n_free, n_free), scratch (4, n_free).
    """
    n_free, steepest = g.shape[0], 0.0
    lower, upper = box[0], box[1]
    fixed, places, pull = scratch[_FIXED], scratch[_PLACES], scratch[_PULL]
    for i in range(n_free):
        step[i], fixed[i] = 0.0, held[i]
        steepest = max(steepest, abs(g[i]))
    for _ in range(3 * n_free):
        n = 0
        for i in range(n_free):
            if fixed[i] == 0.0:
                places[n] = i
                n += 1
        within_faces(h, g, step, n, factor, scratch)
        leaves = False
        for k in range(n):
            i = int(places[k])
            if pull[k] < lower[i]:
                step[i], fixed[i], leaves = lower[i], 1.0, True
            elif pull[k] > upper[i]:
                step[i], fixed[i], leaves = upper[i], 1.0, True
            else:
                step[i] = pull[k]
        if leaves:
            continue
        # a coordinate went to its face for a step of another one that was then not taken: release
        # such coordinates one at a time
        worst, strongest = -1, _INWARD * steepest
        for i in range(n_free):
            if fixed[i] > held[i]:
                slope = g[i]
                for j in range(n_free):
                    slope += h[i, j] * step[j]
                inward = -slope if step[i] <= lower[i] else slope
                if inward > strongest:
                    worst, strongest = i, inward
        if worst < 0:
            break
        fixed[worst] = 0.0


def within_faces(h: Array, g: Array, step: Array, n: int, factor: Array, scratch: Array) -> None:
    """Write the steps of n coordinates to the minimum that the others leave into the scratch.

    The Hessian of these is factored as L D L', L below the diagonal. Arguments as above.
    """
    fixed, places, column, pull = (
        scratch[_FIXED],
        scratch[_PLACES],
        scratch[_COLUMN],
        scratch[_PULL],
    )
    for k in range(n):
        i = int(places[k])
        x = g[i]
        for j in range(g.shape[0]):
            x += h[i, j] * step[j] if fixed[j] > 0.0 else 0.0
        pull[k] = -x
        for j in range(k + 1):
            factor[k, j] = h[i, int(places[j])]
    for k in range(n):
        pivot = factor[k, k]
        for i in range(k + 1, n):
            column[i] = factor[i, k]
        for i in range(k + 1, n):
            share = column[i] / pivot
            for j in range(k + 1, i + 1):
                factor[i, j] -= share * column[j]
            pull[i] -= share * pull[k]
            factor[i, k] = share
    for k in range(n):
        pull[k] /= factor[k, k]
    for back in range(n):
        i = n - 1 - back
        for k in range(i):
            pull[k] -= factor[i, k] * pull[i]
