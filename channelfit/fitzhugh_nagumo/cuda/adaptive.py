"""The adaptive scheme on a GPU, for many cables: the text of its kernel, and the launches.

A block has one cable. `channelfit.fitzhugh_nagumo.adaptive` describes the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.adaptive import GROWTH, RADIUS, RATE, SLOPE, Adaptive, Monitor
from channelfit.fitzhugh_nagumo.cuda.device import CableDevice, DeviceScheme, program_head
from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation

_LOWER = """
// Replaces a value by x if that is smaller; both are positive, so their bits have the same order.
__device__ __forceinline__ void lower_to(REAL* address, REAL x) {
#if DOUBLE
    atomicMin((unsigned long long*)address, (unsigned long long)__double_as_longlong(x));
#else
    atomicMin((unsigned int*)address, __float_as_uint(x));
#endif
}
"""

_ADAPTIVE = """
// A block has one cable, and for it v and w of the nodes in use and of the next choice, the largest
// spacing allowed (twice), places of the nodes, and for every place the last node at or before it.
__device__ __forceinline__ REAL between(const int* at, const REAL* x, const int* rank, int n,
                                        bool cubic, int g) {
    int i = min(rank[g], n - 2);
    if (at[i] == g) return x[i];
    if (at[i + 1] == g) return x[i + 1];
    if (cubic && i > 0 && i < n - 2) {
        REAL total = 0;
        for (int p = i - 1; p < i + 3; p++) {
            REAL weight = x[p];
            for (int r = i - 1; r < i + 3; r++)
                if (r != p) weight *= (REAL)(g - at[r]) / (at[p] - at[r]);
            total += weight;
        }
        return total;
    }
    return x[i] + (REAL)(g - at[i]) / (at[i + 1] - at[i]) * (x[i + 1] - x[i]);
}

__device__ __forceinline__ REAL curvature(const int* at, const REAL* v, int i, REAL dx) {
    int left = at[i] - at[i - 1], right = at[i + 1] - at[i];
    REAL bend = 2 * ((v[i + 1] - v[i]) / right - (v[i] - v[i - 1]) / left) / (left + right);
    return bend / (dx * dx);
}

__device__ __forceinline__ bool eligible(const REAL* spacing, int begin, int gap, int size) {
    if (begin + gap >= size) return false;
    for (int k = begin; k <= begin + gap; k++)
        if (spacing[k] < gap) return false;
    return true;
}

// The finest spacing around the places where a stimulus changes.
__device__ __forceinline__ void around(const REAL* drive, int margin, int size, REAL* spacing) {
    for (int g = 1 + threadIdx.x; g < size; g += THREADS)
        if (drive[g] != drive[g - 1])
            for (int k = max(g - 1 - margin, 0); k <= min(g + margin, size - 1); k++)
                lower_to(spacing + k, 1);
}

// Nodes of the next grid, from the spacing allowed; returns their number.
__device__ int choose(const REAL* spacing, int size, int coarsest, int* at, int* rank, int* sums) {
    int t = threadIdx.x, chunk = (size + THREADS - 1) / THREADS;
    int low = min(t * chunk, size), high = min(low + chunk, size), count = 0;
    for (int g = low; g < high; g++) {
        bool present = true;
        for (int gap = 2; gap <= coarsest; gap *= 2)
            if (g % gap && eligible(spacing, g / gap * gap, gap, size)) present = false;
        rank[g] = present;
        count += present;
    }
    sums[t] = count;
    __syncthreads();
    for (int s = 1; s < THREADS; s *= 2) {
        int other = t >= s ? sums[t - s] : 0;
        __syncthreads();
        sums[t] += other;
        __syncthreads();
    }
    int place = sums[t] - count;
    for (int g = low; g < high; g++) {
        if (rank[g]) at[place++] = g;
        rank[g] = place - 1;
    }
    int all = sums[THREADS - 1];
    __syncthreads();
    return all;
}

// rows: (n_cables, 6): a, gamma, epsilon, diffusion, dx, dt. State is whole cables, in and out.
extern "C" __global__ void __launch_bounds__(THREADS) adaptive_steps(
    REAL* v_full, REAL* w_full, const REAL* __restrict__ drive, const REAL* __restrict__ rows,
    REAL* work, int* places, int* counts, Index* done, int size, int n_steps, int left_kind,
    int right_kind, int monitor, int coarsest, REAL tolerance, int every, REAL steep, REAL quick,
    int radius, REAL growth)
{
    __shared__ int sums[THREADS];
    int t = threadIdx.x, cable = blockIdx.x, n = counts[cable];
    const REAL* q = rows + 6 * cable;
    REAL a = q[0], gamma = q[1], epsilon = q[2], diffusion = q[3], dx = q[4], dt = q[5];
    REAL scale = 2 * diffusion / (dx * dx);
    v_full += (Index)cable * size;
    w_full += (Index)cable * size;
    REAL* v = work + (Index)cable * 6 * size;
    REAL *v_new = v + size, *w = v + 2 * size, *spare = v + 3 * size;
    REAL *spacing = v + 4 * size, *other = v + 5 * size;
    int *at = places + (Index)cable * 4 * size, *rank = at + size;
    int *at_new = at + 2 * size, *rank_new = at + 3 * size;
    int *at_kept = at, *rank_kept = rank;
    Index total = 0;
    int margin = every / 4 + 1;
#if DRIVEN
    for (int i = t; i < n; i += THREADS) {  // the grid in use, finer where the stimulus asks for it
        int before = i > 0 ? at[i] - at[i - 1] : 1, after = i + 1 < n ? at[i + 1] - at[i] : 1;
        spacing[at[i]] = max(before, after);
        for (int k = 1; k < after; k++) spacing[at[i] + k] = after;
    }
    __syncthreads();
    around(drive, max(margin, radius), size, spacing);
    __syncthreads();
    n = choose(spacing, size, coarsest, at, rank, sums);
#endif
    for (int i = t; i < n; i += THREADS) { v[i] = v_full[at[i]]; w[i] = w_full[at[i]]; }
    __syncthreads();
    for (int step = 0; step < n_steps; step++) {
        for (int i = t; i < n; i += THREADS) {
            REAL x = v[i], bend;
            if (i == 0 || i == n - 1) {
                int inner = i == 0 ? 1 : n - 2;
                REAL gap = at[i] - at[inner];
                bend = (v[inner] - x) / (gap * gap);
            } else {
                int left = at[i] - at[i - 1], right = at[i + 1] - at[i];
                bend = ((v[i + 1] - x) / right - (x - v[i - 1]) / left) / (left + right);
            }
            REAL push = 0;
#if DRIVEN
            push = drive[at[i]];
#endif
            REAL next = x + dt * (scale * bend + x * (1 - x) * (x - a) - w[i] + push);
            if ((i == 0 && left_kind == 1) || (i == n - 1 && right_kind == 1)) next = x;
            v_new[i] = next;
            w[i] += dt * epsilon * (x - gamma * w[i]);
        }
        total += n;
        __syncthreads();
        bool last = step + 1 == n_steps;
        if ((step + 1) % every && !last) {
            REAL* turn = v; v = v_new; v_new = turn;
            continue;
        }
        for (int g = t; g < size; g += THREADS) spacing[g] = coarsest;
        __syncthreads();
        for (int i = 1 + t; i < n - 1; i += THREADS) {
            int left = at[i] - at[i - 1], low = at[i - 1], high = at[i + 1];
            REAL bend = curvature(at, v_new, i, dx), h = coarsest;
            REAL slope = fabs(v_new[i + 1] - v_new[i - 1]) / ((high - low) * dx);
            if (monitor == 0) {
                REAL before = i > 1 ? curvature(at, v_new, i - 1, dx) : (REAL)0;
                if (slope > steep) h = (REAL)coarsest / 2;
                if (fabs(v_new[i] - v[i]) > quick * dt) h = (REAL)coarsest / 4;
                if (before * bend < 0 && slope > steep) {
                    h = 1;
                    low = at[i] - radius - left;
                    high = at[i] + radius;
                }
            } else {
                h = sqrt(8 * tolerance / fmax(fabs(bend), (REAL)1e-30)) / dx;
                low -= margin;
                high += margin;
            }
            h = fmax((REAL)1, fmin(h, (REAL)coarsest));
            for (int g = max(low, 0); g <= min(high, size - 1); g++) lower_to(spacing + g, h);
        }
#if DRIVEN
        around(drive, max(margin, radius), size, spacing);
#endif
        __syncthreads();
        for (int s = 1; monitor == 1 && s * growth < coarsest; s *= 2) {
            for (int g = t; g < size; g += THREADS) {
                REAL h = spacing[g];
                if (g >= s) h = fmin(h, spacing[g - s] + s * growth);
                if (g + s < size) h = fmin(h, spacing[g + s] + s * growth);
                other[g] = h;
            }
            __syncthreads();
            REAL* turn = spacing; spacing = other; other = turn;
        }
        int m = choose(spacing, size, coarsest, at_new, rank_new, sums);
        if (last)
            for (int g = t; g < size; g += THREADS) {
                v_full[g] = between(at, v_new, rank, n, monitor == 1, g);
                w_full[g] = between(at, w, rank, n, monitor == 1, g);
            }
        for (int k = t; k < m; k += THREADS) {
            v[k] = between(at, v_new, rank, n, monitor == 1, at_new[k]);
            spare[k] = between(at, w, rank, n, monitor == 1, at_new[k]);
        }
        __syncthreads();
        REAL* turn = w; w = spare; spare = turn;
        int* turned = at; at = at_new; at_new = turned;
        turned = rank; rank = rank_new; rank_new = turned;
        n = m;
    }
    if (at != at_kept)
        for (int g = t; g < size; g += THREADS) {
            if (g < n) at_kept[g] = at[g];
            rank_kept[g] = rank[g];
        }
    if (t == 0) {
        counts[cable] = n;
        done[cable] = total;
    }
}
"""


def adaptive_text(dtype: str, threads: int = 128, driven: bool = False) -> str:
    """Return the text of the kernel.

    Arguments:
        threads: the number of threads of a block, which has one cable.
        driven: whether there is a stimulus.
    """
    constants = {"THREADS": threads, "DRIVEN": int(driven)}
    return program_head(dtype, constants) + _LOWER + _ADAPTIVE


class AdaptiveCuda(DeviceScheme):
    """The adaptive scheme on a GPU, for many cables, each of which is advanced by one block.

    Arguments:
        monitor: as `Adaptive` takes it.
        dtype: "float64" or "float32". threads: the number of threads of a block, a power of two.
        grid: coarsest, tolerance and every, as `Adaptive` takes them.
    """

    name = "adaptive"
    arrays = (11, 11, 4)

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        monitor: Monitor = "curvature",
        dtype: str = "float64",
        threads: int = 128,
        device: CableDevice | None = None,
        **grid: Any,
    ) -> None:
        super().__init__(equation, cable, dtype, device)
        self._settings = Adaptive(equation, cable, monitor, **grid)
        self.threads = threads
        self._grids: Any = None
        self._nodes_steps = self._steps = 0

    def restart(self) -> None:
        """Put all nodes in use again."""
        self._grids = None
        self._nodes_steps = self._steps = 0

    def internal_state(self) -> dict[str, np.ndarray]:
        """Return the nodes in use of all cables, and the sums for `facts`."""
        counts = np.array([self._nodes_steps, self._steps])
        if self._grids is None:
            return {"counts": counts}
        places, lengths = (self.device.host(array) for array in self._grids)
        return {"counts": counts, "places": places.copy(), "lengths": lengths.copy()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Set the internal state to an earlier one."""
        self._nodes_steps, self._steps = state["counts"].tolist()
        self._grids = None
        if "places" in state:
            names = ("places", "lengths")
            self._grids = tuple(self.device.array(state[name], "int32") for name in names)

    def facts(self) -> dict[str, float]:
        """Return the number of nodes in use, averaged over the steps and the cables."""
        return {"mean_nodes": self._nodes_steps / max(self._steps, 1)}

    def advance(
        self, v: Any, w: Any, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Any, Any]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`."""
        n_cables, n = v.shape
        device, s = self.device, self._settings
        if self._grids is None:
            places = np.broadcast_to(np.arange(n), (n_cables, 4, n))
            self._grids = device.array(places, "int32"), device.array(np.full(n_cables, n), "int32")
        table = self.equation.table(n_cables)
        rows = np.hstack([table, np.tile([self.cable.dx, dt], (n_cables, 1))])
        v, w = device.array(v, self.dtype), device.array(w, self.dtype)
        done = device.array(np.zeros(n_cables), "int64")
        launch = self._program(adaptive_text(self.dtype, self.threads, drive is not None))
        push, rows = self._drive(drive), device.array(rows, self.dtype)
        work, real = device.empty((n_cables, 6, n), self.dtype), self._real
        sizes = np.int32(n), np.int32(n_steps), *self._kinds
        monitor = np.int32(s.monitor == "curvature"), np.int32(s.coarsest), real(s.tolerance)
        limits = np.int32(s.every), real(SLOPE), real(RATE), np.int32(RADIUS), real(GROWTH)
        arguments = (v, w, push, rows, work, *self._grids, done, *sizes, *monitor, *limits)
        launch("adaptive_steps", n_cables, self.threads, arguments, 0)
        self._nodes_steps += int(device.host(done).sum())
        self._steps += n_steps * n_cables
        return v, w
