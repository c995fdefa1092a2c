"""k-means on a GPU: two kernels an iteration, points and centers there all the time.

`addPoints` gives each point to its nearest center, and writes what each block of threads adds to
the next centers; `moveCenters` adds this up and moves them. Everything is added in an order that
follows from the number of points alone, so results do not depend on the GPU or on chance. A set of
centers that no longer moves is left out by the kernels themselves: the host looks only every few
iterations, and changes nothing by looking.

An iteration reads the points once, 8 d bytes for each, and 8 bytes more where points have weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.results.uncertainty.k_means_sums import Sums, described, next_centers
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host

ADD_POINTS, MOVE_CENTERS, LABEL_POINTS = "addPoints", "moveCenters", "labelPoints"
#: What is done with a set of centers: it moves; it rests; it has made its last move, and only its
#: inertia is wanted; one of its centers has no point, which the host sees to.
MOVING, RESTING, LAST, EMPTY = range(4)
#: Iterations after which the host looks who still moves.
_LOOK = 8
#: Threads of a block of each kernel; points that a block takes at once; blocks, at most, for a set.
_ADDING, _MOVING, _LABELING, TILE, _MOST_BLOCKS = 128, 512, 256, 2048, 1024

_TEXT = """
#define N_ENTRIES (N_CENTERS*(N_COORDINATES + 1) + 1)  // a center's sums and weight; the inertia
#define SOME_CENTERS 8      // that are held in registers at once
#define SOME_COORDINATES 4
#define WARPS (ADDING_THREADS/32)

// Points are (N_COORDINATES, n), centers (N_CENTERS, N_COORDINATES). The squared distance of point
// i to its nearest center, the first of equally near ones.
__device__ __forceinline__ double nearest(
    const double *__restrict__ points, const long long n, const long long i,
    const double *__restrict__ centers, int &label) {
    double best = __longlong_as_double(0x7ff0000000000000ll);
    int found = 0;
    for (int first = 0; first < N_CENTERS; first += SOME_CENTERS) {
        double distances[SOME_CENTERS] = {};
#pragma unroll 4
        for (int j = 0; j < N_COORDINATES; ++j) {
            const double x = points[j*n + i];
#pragma unroll
            for (int c = 0; c < SOME_CENTERS; ++c)
                if (first + c < N_CENTERS) {
                    const double apart = x - centers[(first + c)*N_COORDINATES + j];
                    distances[c] += apart*apart;
                }
        }
#pragma unroll
        for (int c = 0; c < SOME_CENTERS; ++c)
            if (first + c < N_CENTERS && distances[c] < best) {
                best = distances[c];
                found = first + c;
            }
    }
    label = found;
    return best;
}

// How much point i counts: alike where weights is null, and not at all behind the last point.
__device__ __forceinline__ double weightOf(
    const double *__restrict__ weights, const long long n, const long long i) {
    return i >= n ? 0.0 : weights ? weights[i] : 1.0;
}

// The sum over the lanes of a warp, for its first lane.
__device__ __forceinline__ double warpSum(double x) {
#pragma unroll
    for (int other = 16; other; other /= 2) x += __shfl_down_sync(0xffffffffu, x, other);
    return x;
}

// What points add to the next centers of set blockIdx.y: partial (n_sets, N_ENTRIES, blocks). A
// block goes through n_tiles tiles of points, of which each thread takes every ADDING_THREADS-th.
extern "C" __global__ void __launch_bounds__(ADDING_THREADS) addPoints(
    const double *__restrict__ points, const double *__restrict__ weights, const long long n,
    const int n_tiles, const double *__restrict__ centers, const int *__restrict__ status,
    double *__restrict__ partial) {
    __shared__ int labels[TILE];  // each is written and read by one thread
    __shared__ double sums_of_warps[WARPS][SOME_CENTERS*SOME_COORDINATES];
    const int set = blockIdx.y, lane = threadIdx.x%32, warp = threadIdx.x/32;
    if (status[set] == RESTING || status[set] == EMPTY) return;
    centers += (long long)set*N_CENTERS*N_COORDINATES;
    partial += (long long)set*N_ENTRIES*gridDim.x + blockIdx.x;
    for (int tile = 0; tile < n_tiles; ++tile) {
        const long long begin = ((long long)blockIdx.x*n_tiles + tile)*TILE;
        double inertia = 0.0;
#pragma unroll 4
        for (int turn = 0; turn < TILE/ADDING_THREADS; ++turn) {
            const int r = turn*ADDING_THREADS + threadIdx.x;
            const long long i = min(begin + r, n - 1);
            inertia += weightOf(weights, n, begin + r)*nearest(points, n, i, centers, labels[r]);
        }
        inertia = warpSum(inertia);
        if (lane == 0) sums_of_warps[warp][0] = inertia;
        __syncthreads();
        if (threadIdx.x == 0) {
            double *place = partial + (long long)(N_ENTRIES - 1)*gridDim.x;
            double sum = tile ? *place : 0.0;
            for (int w = 0; w < WARPS; ++w) sum += sums_of_warps[w][0];
            *place = sum;
        }
        __syncthreads();
        for (int first = 0; first < N_CENTERS; first += SOME_CENTERS)
            for (int begin_j = 0; begin_j <= N_COORDINATES; begin_j += SOME_COORDINATES) {
                double sums[SOME_CENTERS][SOME_COORDINATES] = {};
#pragma unroll 4
                for (int turn = 0; turn < TILE/ADDING_THREADS; ++turn) {
                    const int r = turn*ADDING_THREADS + threadIdx.x, label = labels[r] - first;
                    const long long i = min(begin + r, n - 1);
                    const double weight = weightOf(weights, n, begin + r);
                    double values[SOME_COORDINATES];
#pragma unroll
                    for (int j = 0; j < SOME_COORDINATES; ++j)
                        values[j] = begin_j + j < N_COORDINATES ? points[(begin_j + j)*n + i] : 1.0;
#pragma unroll
                    for (int c = 0; c < SOME_CENTERS; ++c)
                        if (first + c < N_CENTERS) {
                            const double own = label == c ? weight : 0.0;
#pragma unroll
                            for (int j = 0; j < SOME_COORDINATES; ++j)
                                if (begin_j + j <= N_COORDINATES) sums[c][j] += own*values[j];
                        }
                }
#pragma unroll
                for (int c = 0; c < SOME_CENTERS; ++c)
#pragma unroll
                    for (int j = 0; j < SOME_COORDINATES; ++j)
                        if (first + c < N_CENTERS && begin_j + j <= N_COORDINATES) {
                            const double sum = warpSum(sums[c][j]);
                            if (lane == 0) sums_of_warps[warp][c*SOME_COORDINATES + j] = sum;
                        }
                __syncthreads();
                const int c = first + threadIdx.x/SOME_COORDINATES;
                const int j = begin_j + threadIdx.x%SOME_COORDINATES;
                if (threadIdx.x < SOME_CENTERS*SOME_COORDINATES
                    && c < N_CENTERS && j <= N_COORDINATES) {
                    double *place = partial + (long long)(c*(N_COORDINATES + 1) + j)*gridDim.x;
                    double sum = tile ? *place : 0.0;
                    for (int w = 0; w < WARPS; ++w) sum += sums_of_warps[w][threadIdx.x];
                    *place = sum;
                }
                __syncthreads();
            }
    }
}

// Adds up what the blocks have found, to sums (n_sets, N_ENTRIES), and moves the centers of set
// blockIdx.x. counts (n_sets): iterations so far. A set with a center without points stays.
extern "C" __global__ void __launch_bounds__(MOVING_THREADS) moveCenters(
    const double *__restrict__ partial, const int n_blocks, const int iterations,
    double *__restrict__ sums, double *__restrict__ centers, int *__restrict__ status,
    int *__restrict__ counts, double *__restrict__ inertia) {
    __shared__ int moved, empty;
    const int set = blockIdx.x, now = status[set];
    if (now == RESTING || now == EMPTY) return;
    partial += (long long)set*N_ENTRIES*n_blocks;
    sums += (long long)set*N_ENTRIES;
    centers += (long long)set*N_CENTERS*N_COORDINATES;
    if (threadIdx.x == 0) moved = empty = 0;
    for (int entry = threadIdx.x/32; entry < N_ENTRIES; entry += MOVING_THREADS/32) {
        double sum = 0.0;
#pragma unroll 8
        for (int block = threadIdx.x%32; block < n_blocks; block += 32)
            sum += partial[(long long)entry*n_blocks + block];
        sum = warpSum(sum);
        if (threadIdx.x%32 == 0) sums[entry] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) inertia[set] = sums[N_ENTRIES - 1];
    if (now == LAST) {
        if (threadIdx.x == 0) status[set] = RESTING;
        return;
    }
    for (int c = threadIdx.x; c < N_CENTERS; c += MOVING_THREADS)
        if (sums[c*(N_COORDINATES + 1) + N_COORDINATES] == 0.0) empty = 1;
    __syncthreads();
    if (empty) {
        if (threadIdx.x == 0) status[set] = EMPTY;
        return;
    }
    for (int k = threadIdx.x; k < N_CENTERS*N_COORDINATES; k += MOVING_THREADS) {
        const double *own = sums + k/N_COORDINATES*(N_COORDINATES + 1);
        const double fresh = own[k%N_COORDINATES]/own[N_COORDINATES];
        if (fresh != centers[k]) moved = 1;
        centers[k] = fresh;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        counts[set] += 1;
        status[set] = !moved ? RESTING : counts[set] >= iterations ? LAST : MOVING;
    }
}

// Numbers of the nearest centers, and where wanted the squared distances to them.
extern "C" __global__ void __launch_bounds__(LABELING_THREADS) labelPoints(
    const double *__restrict__ points, const long long n, const double *__restrict__ centers,
    int *__restrict__ labels, double *__restrict__ distances) {
    const long long i = (long long)blockIdx.x*LABELING_THREADS + threadIdx.x;
    if (i >= n) return;
    int label;
    const double distance = nearest(points, n, i, centers, label);
    labels[i] = label;
    if (distances) distances[i] = distance;
}
"""


def cuda_text(k: int, d: int) -> str:
    """The kernels for k centers of d coordinates."""
    numbers = {
        "N_CENTERS": k,
        "N_COORDINATES": d,
        "MOVING": MOVING,
        "RESTING": RESTING,
        "LAST": LAST,
        "EMPTY": EMPTY,
        "ADDING_THREADS": _ADDING,
        "MOVING_THREADS": _MOVING,
        "LABELING_THREADS": _LABELING,
        "TILE": TILE,
    }
    return "".join(f"#define {name} {value}\n" for name, value in numbers.items()) + _TEXT


class OnGpu:
    """Points on the current GPU, and sets of k centers that follow them.

    Arguments:
        points: (n, d), finite.
        weights: (n,); None where all points count alike.

    Raises: InputError without a GPU, or without the memory for the points.
    """

    def __init__(self, points: np.ndarray, weights: np.ndarray | None, k: int) -> None:
        self._xp, self.k, (self.n, self.d) = gpu.cupy(), k, points.shape
        with gpu.gpu_errors():
            self.points = self._xp.ascontiguousarray(self._xp.asarray(points, np.float64).T)
            self.weights = None if weights is None else self._xp.asarray(weights, np.float64)
        module = gpu.compile_cuda(cuda_text(k, self.d), name="k-means")
        self._add, self._move, self._label = (
            module.kernel(name) for name in (ADD_POINTS, MOVE_CENTERS, LABEL_POINTS)
        )
        n_tiles = -(-self.n // TILE)
        self._tiles_of_block = -(-n_tiles // _MOST_BLOCKS)
        self._n_blocks = -(-n_tiles // self._tiles_of_block)

    def begin(self, starts: np.ndarray, iterations: int) -> None:
        """Let sets of centers (n_sets, k, d) move, for at most so many iterations."""
        xp, n_sets = self._xp, len(starts)
        n_entries = self.k * (self.d + 1) + 1
        with gpu.gpu_errors():
            self._centers = xp.array(starts, dtype=np.float64, order="C")
            self._partial = xp.empty((n_sets, n_entries, self._n_blocks))
            self._sums, self._inertia = xp.empty((n_sets, n_entries)), xp.empty(n_sets)
            self._status = xp.full(n_sets, MOVING if iterations > 0 else LAST, np.int32)
            self._counts = xp.zeros(n_sets, np.int32)
        self._iterations = iterations

    def iterate(self, count: int) -> None:
        """Launch so many iterations; those that need nothing more do nothing."""
        n_sets = len(self._centers)
        weights = gpu.NULL if self.weights is None else self.weights
        adding = (
            self.points, weights, np.int64(self.n), np.int32(self._tiles_of_block),
            self._centers, self._status, self._partial,
        )  # fmt: skip
        moving = (
            self._partial, np.int32(self._n_blocks), np.int32(self._iterations), self._sums,
            self._centers, self._status, self._counts, self._inertia,
        )  # fmt: skip
        with gpu.gpu_errors():
            for _ in range(count):
                self._add((self._n_blocks, n_sets), (_ADDING,), adding)
                self._move((n_sets,), (_MOVING,), moving)

    def follow(
        self, starts: np.ndarray, iterations: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Follow sets of centers (n_sets, k, d) until none moves, for at most so many iterations.

        Returns: centers (n_sets, k, d), their inertias (n_sets,) and iterations (n_sets,).
        """
        self.begin(starts, iterations)
        while True:
            self.iterate(_LOOK)
            with gpu.gpu_errors():
                status = to_host(self._status)
                for s in np.flatnonzero(status == EMPTY):
                    self._fill(int(s))
                if (status == RESTING).all():
                    found = to_host(self._centers), to_host(self._inertia), to_host(self._counts)
                    return found

    def _fill(self, s: int) -> None:
        """Move the centers of a set of which one has no point, as `next_centers` does."""
        xp, before = self._xp, to_host(self._centers[s])
        sums = to_host(self._sums[s])
        own = sums[:-1].reshape(1, self.k, self.d + 1)
        labels, distances = self._labels(self._centers[s])
        last = xp.argsort(-distances)[: self.k]
        counts = np.ones(len(last)) if self.weights is None else to_host(self.weights[last])
        far = np.full((1, self.k, self.d + 3), np.nan)
        points = to_host(self.points[:, last]).T
        far[0, : len(last)] = described(
            to_host(distances[last]), counts, to_host(labels[last]), points
        )
        after = next_centers(Sums(own[..., self.d], own[..., : self.d], sums[-1:], far))[0]
        count = int(self._counts[s]) + 1
        moving = LAST if count >= self._iterations else MOVING
        self._centers[s] = xp.asarray(after)
        self._counts[s] = count
        self._status[s] = RESTING if (after == before).all() else moving

    def labels(self, centers: np.ndarray) -> np.ndarray:
        """The numbers (n,) of the nearest of centers (k, d)."""
        with gpu.gpu_errors():
            found = self._labels(self._xp.asarray(centers), distances=False)[0]
            return np.asarray(to_host(found))

    def _labels(self, centers: Any, distances: bool = True) -> tuple[Any, Any]:
        labels = self._xp.empty(self.n, np.int32)
        squares = self._xp.empty(self.n) if distances else gpu.NULL
        blocks = -(-self.n // _LABELING)
        given = (self.points, np.int64(self.n), self._xp.ascontiguousarray(centers))
        self._label((blocks,), (_LABELING,), (*given, labels, squares))
        return labels, squares
