"""Direct solvers of one tridiagonal system on the CPU.

    lower[i] x[i-1] + diagonal[i] x[i] + upper[i] x[i+1] = right[i]

Neither solver exchanges rows. They are for diagonally dominant matrices, such as those of implicit
steps.
"""

from __future__ import annotations

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.scoring.machine.machine_code import kernel


def thomas(lower: Array, diagonal: Array, upper: Array, right: Array) -> Array:
    """Solve by elimination from the first row to the last and substitution back.

    Arguments:
        lower, diagonal, upper, right: (n,) each; lower[0] and upper[n-1] are not read.

    Returns: (n,) the solution.

    Source: L. H. Thomas (1949).
    """
    return _solved(False, lower, diagonal, upper, right)


def eliminate(
    lower: Array, diagonal: Array, upper: Array, right: Array, c: Array, x: Array
) -> None:
    """Write the solution by Thomas' algorithm to x; c (n,) is room for what
    stands above the diagonal after elimination.
    """
    n = len(diagonal)
    inverse = 1.0 / diagonal[0]
    before_c, before_x = upper[0] * inverse, right[0] * inverse
    c[0], x[0] = before_c, before_x
    for i in range(1, n):
        inverse = 1.0 / (diagonal[i] - lower[i] * before_c)
        before_c = upper[i] * inverse
        before_x = (right[i] - lower[i] * before_x) * inverse
        c[i], x[i] = before_c, before_x
    for k in range(n - 1):
        i = n - 2 - k
        before_x = x[i] - c[i] * before_x
        x[i] = before_x


def cyclic_reduction(lower: Array, diagonal: Array, upper: Array, right: Array) -> Array:
    """Solve by cyclic reduction: eliminating rows 0, 2, 4 .. leaves a system of half the size.

    The rows that remain are written one behind the other, so that every level reads neighboring
    memory. The size may be any number, not only 2^k - 1.

    Arguments:
        lower, diagonal, upper, right: (n,) each; lower[0] and upper[n-1] are not read.

    Returns: (n,) the solution.

    Source: R. W. Hockney, J. ACM 12 (1965) 95.
    """
    return _solved(True, lower, diagonal, upper, right)


def reduce(
    lower: Array, diagonal: Array, upper: Array, right: Array, room: Array, x: Array
) -> None:
    """Write the solution by cyclic reduction to x; room (8 n,) takes the systems of all levels."""
    n = len(diagonal)
    a, b, c, d = room[: 2 * n], room[2 * n : 4 * n], room[4 * n : 6 * n], room[6 * n : 8 * n]
    for i in range(n):
        a[i], b[i], c[i], d[i] = lower[i], diagonal[i], upper[i], right[i]
    a[0], c[n - 1] = 0.0, 0.0
    start, size, levels = 0, n, 0
    while size > 1:
        half, target = size // 2, start + size
        for k in range(half):
            i = start + 2 * k + 1
            down = a[i] / b[i - 1]
            low, main, known = -down * a[i - 1], b[i] - down * c[i - 1], d[i] - down * d[i - 1]
            high = 0.0
            if 2 * k + 2 < size:
                above = c[i] / b[i + 1]
                main -= above * a[i + 1]
                high = -above * c[i + 1]
                known -= above * d[i + 1]
            a[target + k], b[target + k], c[target + k], d[target + k] = low, main, high, known
        start, size, levels = target, half, levels + 1
    d[start] = d[start] / b[start]
    for _ in range(levels):
        # The level before: its size is the one whose half this is, so walk from the top again.
        above_start, above_size = 0, n
        while above_start + above_size != start:
            above_start += above_size
            above_size //= 2
        for k in range(size):
            d[above_start + 2 * k + 1] = d[start + k]
        for k in range(0, above_size, 2):
            i = above_start + k
            known = d[i]
            if k > 0:
                known -= a[i] * d[i - 1]
            if k + 1 < above_size:
                known -= c[i] * d[i + 1]
            d[i] = known / b[i]
        start, size = above_start, above_size
    x[:] = d[:n]


@kernel
def solve(
    reduction: bool,
    lower: Array,
    diagonal: Array,
    upper: Array,
    right: Array,
    room: Array,
    x: Array,
) -> None:
    """Write the solution to x by cyclic reduction or by Thomas' algorithm; room is (8 n,)."""
    if reduction:
        reduce(lower, diagonal, upper, right, room, x)
    else:
        eliminate(lower, diagonal, upper, right, room, x)


def _solved(reduction: bool, *system: Array) -> Array:
    rows = [np.ascontiguousarray(row, dtype=float) for row in system]
    x = np.empty(len(rows[0]))
    solve(reduction, *rows, np.empty(8 * len(x)), x)
    return x
