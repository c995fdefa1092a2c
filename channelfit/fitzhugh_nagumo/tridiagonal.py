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


def eliminate(matrix: Array, right: Array, c: Array, x: Array) -> None:
    """Write the solution by Thomas' algorithm to x.

    Arguments:
        matrix: (3 or more, n) its first rows are lower, diagonal and upper.
        c: (n,) takes the entries above the diagonal after elimination.
    """
    lower, diagonal, upper, n = matrix[0], matrix[1], matrix[2], len(right)
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


def reduce(matrix: Array, right: Array, scratch: Array, x: Array) -> None:
    """Write the solution by cyclic reduction to x; see `eliminate`.

    Arguments:
        scratch: (8 n,) takes the systems of all levels.
    """
    n = len(right)
    a, b = scratch[: 2 * n], scratch[2 * n : 4 * n]
    c, d = scratch[4 * n : 6 * n], scratch[6 * n : 8 * n]
    for i in range(n):
        a[i], b[i], c[i], d[i] = matrix[0, i], matrix[1, i], matrix[2, i], right[i]
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
        # The level above, which has twice the size, is found from the top.
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
def solve(reduction: bool, matrix: Array, right: Array, scratch: Array, x: Array) -> None:
    """Write the solution to x by cyclic reduction or by Thomas' algorithm; scratch is (8 n,)."""
    if reduction:
        reduce(matrix, right, scratch, x)
    else:
        eliminate(matrix, right, scratch, x)


def _solved(reduction: bool, *rows: Array) -> Array:
    system = np.array(rows, dtype=float)
    x = np.empty(system.shape[1])
    solve(reduction, system, system[3], np.empty(8 * len(x)), x)
    return x
