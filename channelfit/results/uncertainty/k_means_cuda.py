"""k-means on a GPU: the points stay there, and an iteration brings back their sums.

Everything is added in an order that follows from the number of points alone, so results depend
neither on the GPU nor on chance. An iteration reads the points once, 8 d bytes for each, and 8
bytes more if points have weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host

#: Threads of a block, points that a block takes at once, and the most blocks for a set of centers.
_THREADS, TILE, _MOST_BLOCKS = 128, 2048, 1024

_TEXT = """
#define N_SUMS (N_COORDINATES + 2)  // of a center: its points, their weight, their distances
#define N_WARPS (THREADS/32)

// Points are (N_COORDINATES, n), centers (N_CENTERS, N_COORDINATES). Returns the center that is
// nearest to point i, the first of equally near ones, and its squared distance.
__device__ __forceinline__ int nearest(
    const double *__restrict__ points, const long long n, const long long i,
    const double *__restrict__ centers, double &distance) {
    double x[N_COORDINATES];
#pragma unroll
    for (int j = 0; j < N_COORDINATES; ++j) x[j] = points[j*n + i];
    int found = 0;
    distance = __longlong_as_double(0x7ff0000000000000ll);
    for (int c = 0; c < N_CENTERS; ++c) {
        double square = 0.0;
#pragma unroll
        for (int j = 0; j < N_COORDINATES; ++j) {
            const double apart = x[j] - centers[c*N_COORDINATES + j];
            square += apart*apart;
        }
        if (square < distance) {
            distance = square;
            found = c;
        }
    }
    return found;
}

// The sum over the lanes of a warp, for its first lane.
__device__ __forceinline__ double warpSum(double x) {
#pragma unroll
    for (int other = 16; other; other /= 2) x += __shfl_down_sync(0xffffffffu, x, other);
    return x;
}

// The sums of points for centers of set blockIdx.y: partial (n_sets, N_CENTERS*N_SUMS, blocks). A
// block goes through n_tiles tiles of points, of which each thread takes every THREADS-th.
// weights: null for equal weights.
extern "C" __global__ void __launch_bounds__(THREADS) addPoints(
    const double *__restrict__ points, const double *__restrict__ weights, const long long n,
    const int n_tiles, const double *__restrict__ centers, double *__restrict__ partial) {
    __shared__ int labels[TILE];  // each is written and read by one thread, as are the distances
    __shared__ double distances[TILE], sums_of_warps[N_WARPS][N_SUMS];
    centers += (long long)blockIdx.y*N_CENTERS*N_COORDINATES;
    partial += (long long)blockIdx.y*N_CENTERS*N_SUMS*gridDim.x + blockIdx.x;
    for (int tile = 0; tile < n_tiles; ++tile) {
        const long long begin = ((long long)blockIdx.x*n_tiles + tile)*TILE;
        for (int r = threadIdx.x; r < TILE; r += THREADS)
            labels[r] = begin + r < n ? nearest(points, n, begin + r, centers, distances[r]) : -1;
        for (int c = 0; c < N_CENTERS; ++c) {
            double sums[N_SUMS] = {};
            for (int r = threadIdx.x; r < TILE; r += THREADS)
                if (labels[r] == c) {
                    const double weight = weights ? weights[begin + r] : 1.0;
#pragma unroll
                    for (int j = 0; j < N_COORDINATES; ++j)
                        sums[j] += weight*points[j*n + begin + r];
                    sums[N_COORDINATES] += weight;
                    sums[N_COORDINATES + 1] += weight*distances[r];
                }
#pragma unroll
            for (int j = 0; j < N_SUMS; ++j) {
                const double sum = warpSum(sums[j]);
                if (threadIdx.x%32 == 0) sums_of_warps[threadIdx.x/32][j] = sum;
            }
            __syncthreads();
            for (int j = threadIdx.x; j < N_SUMS; j += THREADS) {
                double *place = partial + (long long)(c*N_SUMS + j)*gridDim.x;
                double sum = tile ? *place : 0.0;
                for (int warp = 0; warp < N_WARPS; ++warp) sum += sums_of_warps[warp][j];
                *place = sum;
            }
            __syncthreads();
        }
    }
}

// Adds the sums of the blocks, a warp for each sum: sums (n_sets, N_CENTERS*N_SUMS).
extern "C" __global__ void __launch_bounds__(32) addBlocks(
    const double *__restrict__ partial, const int n_blocks, double *__restrict__ sums) {
    const long long entry = (long long)blockIdx.y*gridDim.x + blockIdx.x;
    double sum = 0.0;
    for (int block = threadIdx.x; block < n_blocks; block += 32)
        sum += partial[entry*n_blocks + block];
    sum = warpSum(sum);
    if (threadIdx.x == 0) sums[entry] = sum;
}
"""


def cuda_text(k: int, d: int) -> str:
    """Return the kernels for k centers of d coordinates."""
    numbers = {"N_CENTERS": k, "N_COORDINATES": d, "THREADS": _THREADS, "TILE": TILE}
    return "".join(f"#define {name} {value}\n" for name, value in numbers.items()) + _TEXT


class PointsOnGpu:
    """Points on the current GPU, and their sums for sets of k centers.

    Arguments:
        points: (n, d), finite.
        weights: (n,); None for equal weights.

    Raises: InputError without a GPU, or without the memory for the points.
    """

    def __init__(self, points: np.ndarray, weights: np.ndarray | None, k: int) -> None:
        self._xp, self.k, (self.n, self.d) = gpu.cupy(), k, points.shape
        with gpu.gpu_errors():
            self._points = self._xp.ascontiguousarray(self._xp.asarray(points, np.float64).T)
            self._weights = gpu.NULL if weights is None else self._xp.asarray(weights, np.float64)
        module = gpu.compile_cuda(cuda_text(k, self.d), name="k-means")
        self._add_points, self._add_blocks = module.kernel("addPoints"), module.kernel("addBlocks")
        n_tiles = -(-self.n // TILE)
        self._tiles_of_block = -(-n_tiles // _MOST_BLOCKS)
        self._n_blocks = -(-n_tiles // self._tiles_of_block)

    def sums(self, centers: np.ndarray) -> np.ndarray:
        """Return the sums (n_sets, k, d + 2) for centers (n_sets, k, d); see `partial_sums`."""
        with gpu.gpu_errors():
            return np.asarray(to_host(self.launch(self._xp.asarray(centers, np.float64))))

    def launch(self, centers: Any) -> Any:
        """Compute the same of centers on the GPU, and leave it there."""
        xp, n_sets, n_sums = self._xp, len(centers), self.k * (self.d + 2)
        partial, sums = xp.empty((n_sets, n_sums, self._n_blocks)), xp.empty((n_sets, n_sums))
        centers = xp.ascontiguousarray(centers)
        points = self._points, self._weights, np.int64(self.n), np.int32(self._tiles_of_block)
        self._add_points((self._n_blocks, n_sets), (_THREADS,), (*points, centers, partial))
        self._add_blocks((n_sums, n_sets), (32,), (partial, np.int32(self._n_blocks), sums))
        return sums.reshape(n_sets, self.k, self.d + 2)
