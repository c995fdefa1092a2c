"""The points that fit each of many wells best, with some parameters solved for each well.

`keep_lowest` is compiled to machine code that threads run side by side, each for wells of its own.
The result of a well depends on the points and the data of this well alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from channelfit.scoring.machine.machine_code import kernel

Array = np.ndarray
#: Sweeps over solved parameters of which some are cut off by their ranges.
_SWEEPS = 6
#: Share of the squares of the data that the sums of a comparison may be wrong by.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Lowest:
    """Points that fit each well best, from the lowest cost on.

    Attributes:
        cost: (n, n_wells), inf where there is no such point; then the others have no meaning.
        which: (n, n_wells), numbers of the points.
        solved: (n, n_open, n_wells), the open parameters: their values, or their coordinates in
            the unit cube.
    """

    cost: np.ndarray
    which: np.ndarray
    solved: np.ndarray

    @classmethod
    def none(cls, n: int, n_open: int, n_wells: int) -> Lowest:
        """Return room for n points of each well, none of which is known yet."""
        which = np.zeros((n, n_wells), np.int64)
        unknown = np.full((n, n_open, n_wells), np.nan)
        return cls(np.full((n, n_wells), np.inf), which, unknown)

    def joined(self, others: Lowest) -> Lowest:
        """Return these points and then others, whatever their costs."""
        return Lowest(
            np.concatenate([self.cost, others.cost]),
            np.concatenate([self.which, others.which]),
            np.concatenate([self.solved, others.solved]),
        )


@kernel
def keep_lowest(
    products: Array,
    with_data: Array,
    points: Array,
    at: Array,
    of_wells: Array,
    pairs: Array,
    ranges: Array,
    first: int,
    last: int,
    cost: Array,
    which: Array,
    solved: Array,
) -> None:
    """Put points where they belong among the lowest of the wells from `first` to before `last`.

    products: (n, 1 + n_open, 1 + n_open), with_data: (n, 1 + n_open, n_wells), see
    `CrossProducts`. points: (n, 2) int, the number of each point, -1 for one that failed, and the
    well for which it does not count, or -1. at: (n, n_open), the open parameters of the points.
    of_wells: (2, n_wells), the squares of the data, and the factor from a sum of squares to a cost.
    pairs: (n_open,), see `OpenParameters`. ranges: (2, n_open), lower and upper bounds. cost,
    which, solved: those of `Lowest`, with values.
    """
    n_open, n_kept = pairs.shape[0], cost.shape[0]
    factor, scale = np.empty((n_open, n_open)), np.empty(n_open)
    pull, change = np.empty(n_open), np.empty(n_open)
    direction, values = np.empty(n_open), np.empty(n_open)
    for p in range(products.shape[0]):
        if points[p, 0] < 0:
            continue
        factorize(products[p], factor, scale)
        for w in range(first, last):
            if points[p, 1] == w:
                continue
            for k in range(n_open):
                pull[k] = with_data[p, 1 + k, w] - products[p, 1 + k, 0]
            solve(factor, scale, pull, change)
            unchanged = products[p, 0, 0] - 2.0 * with_data[p, 0, w] + of_wells[0, w]
            # ranges make it no better, except by rounding
            least = unchanged + gained(products[p], pull, change) - _ROUNDING * of_wells[0, w]
            if not least * of_wells[1, w] < cost[n_kept - 1, w]:  # nor where it is not a number
                continue
            keep_within(products[p], pull, at[p], pairs, ranges, direction, change, values)
            fit = (unchanged + gained(products[p], pull, change)) * of_wells[1, w]
            if not fit < cost[n_kept - 1, w]:
                continue
            place = n_kept - 1
            while place > 0 and max(fit, 0.0) < cost[place - 1, w]:
                cost[place, w] = cost[place - 1, w]
                which[place, w] = which[place - 1, w]
                for k in range(n_open):
                    solved[place, k, w] = solved[place - 1, k, w]
                place -= 1
            cost[place, w], which[place, w] = max(fit, 0.0), points[p, 0]
            for k in range(n_open):
                solved[place, k, w] = values[k]


def factorize(products: Array, factor: Array, scale: Array) -> None:
    """Write the products of the open parameters, scaled to a diagonal of ones, as L D L'."""
    n = scale.shape[0]
    for i in range(n):
        diagonal = products[1 + i, 1 + i]
        scale[i] = 1.0 / np.sqrt(diagonal) if diagonal > 0.0 else 1.0
    for i in range(n):
        for j in range(i + 1):
            x = products[1 + i, 1 + j] * scale[i] * scale[j]
            if i == j:
                x += 1e-12 if products[1 + i, 1 + i] > 0.0 else 1.0
            for k in range(j):
                x -= factor[i, k] * factor[j, k] * factor[k, k]
            factor[i, j] = x if i == j else x / factor[j, j]


def solve(factor: Array, scale: Array, pull: Array, change: Array) -> None:
    """Write the change of the open parameters that costs least, whatever their ranges."""
    n = scale.shape[0]
    for i in range(n):
        x = scale[i] * pull[i]
        for k in range(i):
            x -= factor[i, k] * change[k]
        change[i] = x
    for back in range(n):
        i = n - 1 - back
        x = change[i] / factor[i, i]
        for k in range(i + 1, n):
            x -= factor[k, i] * change[k]
        change[i] = x
    for i in range(n):
        change[i] = scale[i] * change[i]


def keep_within(
    products: Array,
    pull: Array,
    at: Array,
    pairs: Array,
    ranges: Array,
    direction: Array,
    change: Array,
    values: Array,
) -> None:
    """Bring values into their ranges, and set the changes of lines to match.

    Where ranges cut values off, the lines compensate for it one after the other.
    """
    n, cut = pull.shape[0], False
    for sweep in range(_SWEEPS):
        for k in range(n):
            if sweep > 0:  # with a conductance goes a reversal potential that stays
                for j in range(n):
                    direction[j] = 1.0 if j == k else 0.0
                    if pairs[j] == k:
                        direction[j] = (values[j] - at[j]) / at[k]
                left, bend = 0.0, 0.0
                for j in range(n):
                    along = bent(products, direction, j)
                    left += direction[j] * pull[j] - along * change[j]
                    bend += direction[j] * along
                gain = left / (bend if bend > 0.0 else 1.0)
                for j in range(n):
                    change[j] += direction[j] * gain
            pair = pairs[k]
            if pair < 0:
                free = at[k] + change[k]
                values[k] = clipped(free, ranges[0, k], ranges[1, k])
                change[k] = values[k] - at[k]
                for j in range(n):
                    if sweep > 0 and pairs[j] == k:
                        change[j] = values[k] * (values[j] - at[j]) / at[k]
            else:  # of g (v - E): the change of g E, in units of the reference of g
                g = values[pair]
                free = at[k] + at[pair] * change[k] / (g if g != 0.0 else 1.0)
                values[k] = clipped(free, ranges[0, k], ranges[1, k])
                change[k] = g * (values[k] - at[k]) / at[pair]
            if sweep == 0 and values[k] != free:
                cut = True
        if not cut:
            break


def gained(products: Array, pull: Array, change: Array) -> float:
    """Return the change of a sum of squares by one of the open parameters; below 0 it helps."""
    total = 0.0
    for k in range(change.shape[0]):
        total += change[k] * (bent(products, change, k) - 2.0 * pull[k])
    return total


def bent(products: Array, direction: Array, k: int) -> float:
    """Return one element of the products of the open parameters with a direction."""
    total = 0.0
    for j in range(direction.shape[0]):
        total += products[1 + k, 1 + j] * direction[j]
    return total


def clipped(x: float, lower: float, upper: float) -> float:
    """Return a number, or the end of its range beyond which it lies."""
    return lower if x < lower else (upper if x > upper else x)
