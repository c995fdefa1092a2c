"""Many small damped systems at once on a GPU: the steps of Levenberg and Marquardt.

CuPy's `linalg.solve` is batched as well, by LU; what it does not tell is which matrix was not
positive definite, and that is what the choice of a damping hangs on.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from channelfit import gpu

#: Unknowns of a system: a lane of a warp each.
MOST_UNKNOWNS = 32
_WARPS = 4  # systems a block
_SOLVE = "solveDamped"


def solve_damped(curvature: Any, gradient: Any, damping: Any, scale: Any = None) -> Any:
    """Solutions of ``(H + damping diag(scale)) step = -gradient`` by Cholesky's method.

    A coordinate whose damped diagonal is 0 does not move (set its row and column to 0 to hold it).

    Arguments:
        curvature: (k, k, n) CuPy float64, H; the lower triangles are read.
        gradient: (k, n). damping: (n,). scale: (k, n), None for the diagonals of H.

    Returns: steps (k, n), NaN where the damped matrix is not positive definite.

    Raises: ValueError for more than MOST_UNKNOWNS unknowns.
    """
    xp = gpu.cupy()
    k, n = gradient.shape
    if k > MOST_UNKNOWNS:
        raise ValueError(f"systems of at most {MOST_UNKNOWNS} unknowns, not {k}")
    curvature, gradient, damping = map(xp.ascontiguousarray, (curvature, gradient, damping))
    step = xp.empty((k, n))
    if not k or not n:
        return step
    scale = gpu.NULL if scale is None else xp.ascontiguousarray(scale)
    with gpu.gpu_errors():
        _kernel(k)(
            (-(-n // _WARPS),), (32 * _WARPS,),
            (curvature, gradient, damping, scale, np.int32(n), step),
        )  # fmt: skip
    return step


def source(k: int) -> str:
    """The text for systems of k unknowns."""
    return f"constexpr int K = {k}, WARPS = {_WARPS};\n{_TEXT}"


@cache
def _compiled(k: int, _: Any) -> Any:
    return gpu.compile_cuda(source(k), (), "solve_damped.cu").kernel(_SOLVE)


def _kernel(k: int) -> Any:
    return _compiled(k, gpu.cupy())  # a device and its compiler: tests change them


_TEXT = """
constexpr unsigned ALL = 0xffffffffu;
constexpr double NONE = 1e-15;  // a pivot of this share of its diagonal is what rounding leaves

// A warp solves a system: lane i has row i of the lower triangle, in shared memory.
extern "C" __global__ void solveDamped(
    const double *__restrict__ curvature, const double *__restrict__ gradient,
    const double *__restrict__ damping, const double *__restrict__ scale, const int n,
    double *__restrict__ step) {
    __shared__ double rows[WARPS][K][K | 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x/32;
    const int system = blockIdx.x*WARPS + warp;
    if (system >= n) return;
    double (*a)[K | 1] = rows[warp];
    const bool own = lane < K;
    double right = 0.0, diagonal = 1.0;
    if (own) {
        for (int j = 0; j <= lane; ++j)
            a[lane][j] = curvature[((long long)lane*K + j)*n + system];
        const double weight = scale ? scale[(long long)lane*n + system] : a[lane][lane];
        diagonal = a[lane][lane] + damping[system]*weight;
        a[lane][lane] = diagonal;
        right = -gradient[(long long)lane*n + system];
    }
    __syncwarp();
    bool good = true;
    for (int j = 0; j < K; ++j) {
        const double pivot = a[j][j], whole = __shfl_sync(ALL, diagonal, j);
        const bool still = whole == 0.0;
        good = good && (still || (pivot > NONE*whole && pivot < 1e300));
        const double root = sqrt(pivot), per = still || !good ? 0.0 : 1.0/root;
        __syncwarp();
        if (own && lane > j) a[lane][j] *= per;
        __syncwarp();
        if (own && lane > j) {
            for (int c = j + 1; c <= lane; ++c) a[lane][c] -= a[lane][j]*a[c][j];
        }
        if (lane == j) a[j][j] = per;
        __syncwarp();
    }
    for (int j = 0; j < K; ++j) {
        if (lane == j) right *= a[j][j];
        const double solved = __shfl_sync(ALL, right, j);
        if (own && lane > j) right -= a[lane][j]*solved;
    }
    for (int j = K - 1; j >= 0; --j) {
        if (lane == j) right *= a[j][j];
        const double solved = __shfl_sync(ALL, right, j);
        if (lane < j) right -= a[j][lane]*solved;
    }
    if (own) step[(long long)lane*n + system] = good ? right : 0.0/0.0;
}
"""
