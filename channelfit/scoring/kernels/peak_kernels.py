# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Peaks of sampled currents and when these reach a level, one current after the other.

`observables` has the same as arithmetic of arrays, for GPUs; here a current is looked at once, and
only as far as is needed. Between samples a current is the polynomial c[0] + c[1] u + .. + c[4] u^4
through five of them, u in samples from the third.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.scoring.machine.machine_code import plain_kernel

#: Halvings, and Newton's steps after them, by which a root is found; a step beyond any current.
HALVINGS, NEWTON, FAR = 3, 4, 1e300


def fitted(y, first, table, c):
    """Store in c (5,) the polynomial through y[first] .. y[first + 4]; table (5, 5) leads there."""
    for i in range(5):
        total = 0.0
        for j in range(5):
            total += table[i, j] * y[first + j]
        c[i] = total


def polynomial(c, u):
    """Return the polynomial."""
    return c[0] + u * (c[1] + u * (c[2] + u * (c[3] + u * c[4])))


def slope(c, u):
    """Return its first derivative."""
    return c[1] + u * (2.0 * c[2] + u * (3.0 * c[3] + u * 4.0 * c[4]))


def bend(c, u):
    """Return its second derivative."""
    return 2.0 * c[2] + u * (6.0 * c[3] + u * 12.0 * c[4])


def off(c, u, level, of_slope):
    """Return the polynomial, or its slope, less a level."""
    return slope(c, u) - level if of_slope else polynomial(c, u) - level


def root(c, low, high, level, of_slope):
    """Return where the polynomial, or its slope, passes a level between two places."""
    least, most = min(low, high), max(low, high)
    above = off(c, low, level, of_slope)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if off(c, middle, level, of_slope) * above > 0.0:
            low = middle
        else:
            high = middle
    u = 0.5 * (low + high)
    for _ in range(NEWTON):
        rise = bend(c, u) if of_slope else slope(c, u)
        if rise != 0.0:
            step = off(c, u, level, of_slope) / rise
            if abs(step) < FAR:
                u = u - step
        u = min(max(u, least), most)
    return u


@plain_kernel
def findExtrema(y, n, k, smallest, table, first, polynomials, places, at_edge, values):
    """Find the extremum about sample k of each current y (n_currents, n_rows, n_samples).

    n (n_rows,): samples of each row. smallest: 1 for a value of smallest size. k, first, places,
    at_edge, values (n_currents, n_rows) and polynomials (n_currents, n_rows, 5): as the attributes
    of `observables.Extremum`.
    """
    for one in range(y.shape[0]):
        for row in range(y.shape[1]):
            own, last, best = y[one, row], n[row] - 1, k[one, row]
            start = min(max(best - 2, 0), last - 4)
            c = polynomials[one, row]
            fitted(own, start, table, c)
            up = 1.0 if (own[best] > 0.0) != (smallest == 1) else -1.0
            middle = float(best - start - 2)
            rise = up * slope(c, middle)
            edge = rise == 0.0 or best == (last if rise > 0.0 else 0)
            u = middle
            if not edge:
                u = root(c, middle, middle + (1.0 if rise > 0.0 else -1.0), 0.0, True)
            first[one, row], places[one, row] = start, u
            at_edge[one, row], values[one, row] = edge, polynomial(c, u)


@plain_kernel
def findCrossings(y, n, k, values, fraction, before, table, crosses, first, polynomials, places):
    """Find where currents y (n_currents, n_rows, n_samples) come to a fraction of their peaks.

    k, values (n_currents, n_rows): of the peaks. before: 1 for the last place before the peak, else
    the first one after it. crosses, first, places (n_currents, n_rows): whether there is one, and
    the place in the polynomial (n_currents, n_rows, 5) through samples from `first` on.
    """
    for one in range(y.shape[0]):
        for row in range(y.shape[1]):
            own, peak = y[one, row], values[one, row]
            up = 1.0 if peak > 0.0 else -1.0
            level, i = fraction * abs(peak), k[one, row]
            step, end = (-1 if before else 1), (-1 if before else n[row])
            found = up * own[i] >= level
            while found:
                i += step
                if i == end or up * own[i] < level:
                    break
            found = found and i != end
            at = 0
            if found:
                at = i if before else i - 1
            start = min(max(at - 2, 0), n[row] - 5)
            c = polynomials[one, row]
            fitted(own, start, table, c)
            low = float(at - start - 2)
            crosses[one, row], first[one, row] = found, start
            places[one, row] = root(c, low, low + 1.0, fraction * peak, False)


def found_extrema(
    y: Any, n: Any, k: Any, smallest: bool, table: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the results of `findExtrema` in new arrays, from `first` on."""
    shape = y.shape[:2]
    first, at_edge = np.empty(shape, np.int64), np.empty(shape, bool)
    polynomials, places, values = np.empty((*shape, 5)), np.empty(shape), np.empty(shape)
    results = first, polynomials, places, at_edge, values
    findExtrema(*map(np.ascontiguousarray, (y, n, k)), int(smallest), table, *results)
    return results


def found_crossings(
    y: Any, n: Any, k: Any, values: Any, fraction: float, before: bool, table: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the results of `findCrossings` in new arrays, from `crosses` on."""
    shape = y.shape[:2]
    crosses, first = np.empty(shape, bool), np.empty(shape, np.int64)
    polynomials, places = np.empty((*shape, 5)), np.empty(shape)
    y, n, k, values = map(np.ascontiguousarray, (y, n, k, values))
    results = crosses, first, polynomials, places
    findCrossings(y, n, k, values, float(fraction), int(before), table, *results)
    return results
