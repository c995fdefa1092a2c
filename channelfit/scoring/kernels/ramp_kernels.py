# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""A scheme on smooth varying voltage, in pieces, with derivatives; see `ramp_collocation`."""

from __future__ import annotations

import numpy as np

from channelfit.scoring.kernels.tangent_tables import showCurrent
from channelfit.scoring.machine.machine_code import plain_kernel


def _factored(a, block, reach):
    """Return factors a = L U in place, without pivots; blocks beyond `reach` are empty."""
    n = a.shape[0]
    for p in range(n):
        last = min(n, (p // block + reach + 1) * block)
        inverse, top = 1.0 / a[p, p], a[p]
        for i in range(p + 1, last):
            row = a[i]
            if row[p] != 0.0:
                f = row[p] * inverse
                row[p] = f
                for c in range(p + 1, last):
                    row[c] -= f * top[c]


def _solved(a, b, block, reach):
    """Solve L U y = b for every column of b, which y replaces."""
    n, width = b.shape
    for p in range(n):
        top = b[p]
        for i in range(p + 1, min(n, (p // block + reach + 1) * block)):
            f = a[i, p]
            if f != 0.0:
                row = b[i]
                for d in range(width):
                    row[d] -= f * top[d]
    for p in range(n - 1, -1, -1):
        row = b[p]
        for c in range(p + 1, min(n, (p // block + reach + 1) * block)):
            f = a[p, c]
            if f != 0.0:
                other = b[c]
                for d in range(width):
                    row[d] -= f * other[d]
        inverse = 1.0 / a[p, p]
        for d in range(width):
            row[d] *= inverse


@plain_kernel
def schemeRamp(
    lengths,
    slopes,
    tails,
    rate,
    slope,
    transitions,
    reach,
    conductances,
    voltage,
    gain,
    x,
    dx,
    out,
    places,
):
    """Return a ramp in pieces of these lengths, ms; x and dx go along; see `ramp_collocation`.

    rate (n_pieces * degree, n_rates), slope: at Radau's points; voltage (n_pieces, degree + 1): at
    all points. reach: how far apart in number two states with a transition are. places
    (n_pieces,): the place of the first point of a piece, -1 for none.

    Returns: the largest part of an occupancy in the tail of a piece, NaN where anything is NaN.
    """
    n, width, degree = x.shape[0], dx.shape[1], slopes.shape[0]
    size = n * degree
    a, b, db = np.empty((size, size)), np.empty((size, 1)), np.empty((size, width))
    now, dnow = np.empty(n), np.empty((n, width))
    worst = 0.0
    for piece in range(lengths.shape[0]):
        h, node = lengths[piece], piece * degree
        # unknowns: state by state, so that states without a transition have nothing in common
        for i in range(n):
            for k in range(degree):
                row = a[i * degree + k]
                row[max(0, (i - reach) * degree) : min(size, (i + reach + 1) * degree)] = 0.0
                for j in range(degree):
                    row[i * degree + j] = slopes[k, 1 + j]
                b[i * degree + k, 0] = -slopes[k, 0] * x[i]
                for d in range(width):
                    db[i * degree + k, d] = -slopes[k, 0] * dx[i, d]
        for t in range(transitions.shape[0]):
            i, j, u = transitions[t, 0], transitions[t, 1], transitions[t, 2]
            for k in range(degree):
                flow = h * transitions[t, 3] * rate[node + k, u]
                a[i * degree + k, i * degree + k] += flow
                a[j * degree + k, i * degree + k] -= flow
        _factored(a, degree, reach)
        _solved(a, b, degree, reach)
        for t in range(transitions.shape[0] if width else 0):
            i, j, u = transitions[t, 0], transitions[t, 1], transitions[t, 2]
            for k in range(degree):
                flow = h * transitions[t, 3] * rate[node + k, u] * b[i * degree + k, 0]
                left, came, bent = db[i * degree + k], db[j * degree + k], slope[node + k, u]
                for d in range(width):
                    left[d] -= flow * bent[d]
                    came[d] += flow * bent[d]
        if width:
            _solved(a, db, degree, reach)
        for i in range(n):
            for c in range(2):
                part = tails[c, 0] * x[i]
                for k in range(degree):
                    part += tails[c, 1 + k] * b[i * degree + k, 0]
                worst = worst if abs(part) <= worst else abs(part)
        if places[piece] >= 0:
            place = places[piece]
            showCurrent(conductances, x, dx, gain, voltage[piece, 0], out, place)
            for k in range(degree):
                place += gain.shape[1]
                for i in range(n):
                    now[i] = b[i * degree + k, 0]
                    for d in range(width):
                        dnow[i, d] = db[i * degree + k, d]
                showCurrent(conductances, now, dnow, gain, voltage[piece, 1 + k], out, place)
        for i in range(n):
            x[i] = b[(i + 1) * degree - 1, 0]
            for d in range(width):
                dx[i, d] = db[(i + 1) * degree - 1, d]
    return worst
