"""Forward Euler and Runge-Kutta on a GPU: the text of their kernels, and the launches.

A warp keeps NODES nodes a thread, v and w, in registers and makes many steps; each thread gets its
two missing neighbors by shuffles. There is no barrier, and memory is touched once a pass. In
`explicit_tiles` warps take overlapping stretches of a cable: the error at the ends of a stretch
moves by one node in each step and is thrown away with the overlap. Beyond an end without flux lies
the cable's mirror image, and beyond the end of a ring lies the ring; both follow the same equation,
so the loop has no special nodes; only tiles with a held end set its node after each step. In
`explicit_cables` a warp has a whole cable and makes any number of steps in one pass.

A step of forward Euler takes seven instructions a node with z = -dt w:
    v' = v (c1 + v (c2 - dt v)) + (r (left + right) + z)      z' = forget z - dt^2 epsilon v

Runge-Kutta uses the same tiles and cables; only `make_steps` differs. The state, the stage and the
sum of the rates stay in registers, six values a node. A step takes 42 instructions a node, which
are 76 operations: four rates of 7 instructions (12 operations), three stages with their sums of 4
(8), and the last sum of 2 (4). A step needs four neighbors on either side. A pass of k steps over
tiles that overlap by h >= 4 k moves 2 (1 + 1 / (1 - 2 h / (32 NODES))) / k values a node-step: with
8 nodes a thread and 8 steps in float64 these are 4.7 bytes, and 101 operations with the overlap's.

The kind of an end is 0 for no flux, 1 for held and 2 for periodic. Arrays are (n_cables, n_nodes).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from channelfit.fitzhugh_nagumo.cuda.device import CableDevice, DeviceScheme, Launch, program_head
from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.runge_kutta import EULER_STABLE, REACH, STABLE

_EXPLICIT = """
#define PITCH (NODES + 1)
#define TILE (32 * NODES)

struct Step { REAL linear, square, cube, r, forget, slow, dt; };

// rows: (n_cables, 6): 1 - 2r - dt a, dt (1 + a), dt, r, 1 - dt epsilon gamma, dt epsilon
__device__ __forceinline__ Step step_of(const REAL* rows, int cable) {
    const REAL* q = rows + 6 * cable;
    Step s;
    s.linear = q[0]; s.square = q[1]; s.cube = -q[2]; s.r = q[3];
    s.forget = q[4]; s.slow = -q[2] * q[5]; s.dt = q[2];
    return s;
}

// Values that lie as memory has them (node k 32 + lane) to NODES neighbors a thread, and back.
__device__ __forceinline__ void to_threads(REAL* buffer, REAL* x, int lane, REAL factor) {
    #pragma unroll
    for (int k = 0; k < NODES; k++) {
        int l = k * 32 + lane;
        buffer[l + l / NODES] = x[k];
    }
    __syncwarp();
    #pragma unroll
    for (int j = 0; j < NODES; j++) x[j] = factor * buffer[lane * PITCH + j];
    __syncwarp();
}

__device__ __forceinline__ void from_threads(REAL* buffer, REAL* x, int lane, REAL factor) {
    #pragma unroll
    for (int j = 0; j < NODES; j++) buffer[lane * PITCH + j] = factor * x[j];
    __syncwarp();
    #pragma unroll
    for (int k = 0; k < NODES; k++) {
        int l = k * 32 + lane;
        x[k] = buffer[l + l / NODES];
    }
    __syncwarp();
}
"""

# Steps. `ends` returns the neighbors of the thread's nodes, and sets the held ones. One step of
# forward Euler takes the nodes from left to right and the next one from right to left. The new
# values then move by one register in the one, and back in the other; and the neighbor that a step
# needs first is the one that has been known for longest.
_EULER = """
template <bool BACK, class Ends> __device__ __forceinline__ void make_step(
    REAL* v, REAL* z, const REAL* push, const Step& s, const Ends& ends)
{
    REAL left, right;
    ends.around(v, left, right);
    REAL before = BACK ? right : left, after = BACK ? left : right;
    #pragma unroll
    for (int i = 0; i < NODES; i++) {
        const int j = BACK ? NODES - 1 - i : i, ahead = BACK ? j - 1 : j + 1;
        REAL middle = v[j], next = i + 1 < NODES ? v[i + 1 < NODES ? ahead : j] : after;
        REAL known = s.r * (before + next) + z[j];
#if DRIVEN
        known += push[j];
#endif
        z[j] = s.slow * middle + s.forget * z[j];
        v[j] = middle * (s.linear + middle * (s.square + middle * s.cube)) + known;
        before = middle;
    }
    ends.hold(v, z);
}

template <class Ends> __device__ __forceinline__ void make_steps(
    REAL* v, REAL* z, const REAL* push, const Step& s, const Ends& ends, int n_steps)
{
    #pragma unroll 1
    for (int k = 0; k < n_steps / 2; k++) {
        make_step<false>(v, z, push, s, ends);
        make_step<true>(v, z, push, s, ends);
    }
    if (n_steps % 2) make_step<false>(v, z, push, s, ends);
}
"""

# The first and the fifth of the rows are less by one: they are of rates, not of new values.
_RUNGE_KUTTA = """
template <class Ends> __device__ __forceinline__ void make_step(
    REAL* v, REAL* z, const REAL* push, const Step& s, const Ends& ends)
{
    REAL x[NODES], y[NODES], v_sum[NODES], z_sum[NODES];
    #pragma unroll
    for (int j = 0; j < NODES; j++) {
        x[j] = v_sum[j] = v[j];
        y[j] = z_sum[j] = z[j];
    }
    #pragma unroll
    for (int stage = 0; stage < 4; stage++) {
        const REAL weight = (REAL)1 / (stage % 3 ? 3 : 6), ahead = stage < 2 ? (REAL)0.5 : (REAL)1;
        REAL left, right;
        ends.around(x, left, right);
        #pragma unroll
        for (int j = 0; j < NODES; j++) {
            REAL here = x[j], next = j + 1 < NODES ? x[j + 1 < NODES ? j + 1 : j] : right;
            REAL known = s.r * (left + next) + y[j];
#if DRIVEN
            known += push[j];
#endif
            REAL rate = here * (s.linear + here * (s.square + here * s.cube)) + known;
            REAL z_rate = s.slow * here + s.forget * y[j];
            v_sum[j] += weight * rate;
            z_sum[j] += weight * z_rate;
            x[j] = v[j] + ahead * rate;
            y[j] = z[j] + ahead * z_rate;
            left = here;
        }
        ends.hold(x, y);
    }
    #pragma unroll
    for (int j = 0; j < NODES; j++) {
        v[j] = v_sum[j];
        z[j] = z_sum[j];
    }
    ends.hold(v, z);
}

template <class Ends> __device__ __forceinline__ void make_steps(
    REAL* v, REAL* z, const REAL* push, const Step& s, const Ends& ends, int n_steps)
{
    for (int k = 0; k < n_steps; k++) make_step(v, z, push, s, ends);
}
"""

_TILES = """
template <bool HOLD> struct Ends {
    int lane, left_lane, right_lane, right_j;  // no lane is -1
    REAL left_value, right_value;
    __device__ __forceinline__ void around(const REAL* v, REAL& left, REAL& right) const {
        left = __shfl_up_sync(0xffffffffu, v[NODES - 1], 1);
        right = __shfl_down_sync(0xffffffffu, v[0], 1);
    }
    __device__ __forceinline__ void hold(REAL* v, REAL* z) const {
        if (!HOLD) return;
        if (lane == left_lane) v[0] = left_value;
        #pragma unroll
        for (int j = 0; j < NODES; j++)
            if (lane == right_lane && j == right_j) v[j] = right_value;
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) explicit_tiles(
    const REAL* __restrict__ v_in, const REAL* __restrict__ w_in, const REAL* __restrict__ drive,
    REAL* __restrict__ v_out, REAL* __restrict__ w_out, const REAL* __restrict__ rows,
    Index n_nodes, int n_tiles, int n_cables, int halo, int n_steps, int left_kind, int right_kind)
{
    __shared__ REAL buffer[WARPS][32 * PITCH];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Index job = (Index)blockIdx.x * WARPS + warp;
    if (job >= (Index)n_tiles * n_cables) return;
    int cable = (int)(job / n_tiles);
    Index first = (job % n_tiles) * (TILE - 2 * halo) - halo, base = cable * n_nodes;
    int outer = left_kind == 2 ? 2 : 0;
    REAL* mine = buffer[warp];
    Step s = step_of(rows, cable);
    REAL v[NODES], z[NODES], push[NODES];
    bool inside = first >= 0 && first + TILE <= n_nodes;
    if (inside) {  // all loads at once
        #pragma unroll
        for (int k = 0; k < NODES; k++) {
            Index g = first + k * 32 + lane;
            v[k] = v_in[base + g];
            z[k] = w_in[base + g];
            if (DRIVEN) push[k] = drive[g];
        }
    } else {
        #pragma unroll
        for (int k = 0; k < NODES; k++) {
            Index g = place(first + k * 32 + lane, n_nodes, outer);
            v[k] = v_in[base + g];
            z[k] = w_in[base + g];
            if (DRIVEN) push[k] = drive[g];
        }
    }
    to_threads(mine, v, lane, (REAL)1);
    to_threads(mine, z, lane, -s.dt);
    if (DRIVEN) to_threads(mine, push, lane, s.dt);
    // A held left end lies at the first node of a thread, for halo is a multiple of NODES.
    int left_lane = left_kind == 1 && first < 0 ? halo / NODES : -1;
    bool holds_right = right_kind == 1 && first + TILE >= n_nodes && first < n_nodes;
    if (left_lane >= 0 || holds_right) {
        int right = (int)(n_nodes - 1 - first);
        Ends<true> ends = {lane, left_lane, holds_right ? right / NODES : -1, right % NODES, v[0],
                           v_in[base + n_nodes - 1]};
        make_steps(v, z, push, s, ends, n_steps);
    } else {
        Ends<false> ends = {};
        make_steps(v, z, push, s, ends, n_steps);
    }
    from_threads(mine, v, lane, (REAL)1);
    from_threads(mine, z, lane, -(REAL)1 / s.dt);
    #pragma unroll
    for (int k = 0; k < NODES; k++) {
        int l = k * 32 + lane;
        Index g = first + l;
        if (l >= halo && l < TILE - halo && g < n_nodes) {
            v_out[base + g] = v[k];
            w_out[base + g] = z[k];
        }
    }
}
"""

_CABLES = """
#define LAST_LANE ((WHOLE - 1) / NODES)
#define LAST_J ((WHOLE - 1) % NODES)

struct Ends {
    int lane, left_kind, right_kind;
    REAL left_value, right_value;
    // The node behind the last is written where it would be.
    __device__ __forceinline__ void around(REAL* v, REAL& left, REAL& right) const {
        left = __shfl_up_sync(0xffffffffu, v[NODES - 1], 1);
        right = __shfl_down_sync(0xffffffffu, v[0], 1);
        REAL before = LAST_J > 0 ? v[LAST_J > 0 ? LAST_J - 1 : 0] : left;
        REAL first = __shfl_sync(0xffffffffu, v[0], 0);
        REAL last = __shfl_sync(0xffffffffu, v[LAST_J], LAST_LANE);
        if (lane == 0) left = left_kind == 2 ? last : NODES > 1 ? v[NODES > 1 ? 1 : 0] : right;
        REAL ghost = right_kind == 2 ? first : before;
        if (LAST_J + 1 < NODES) {
            if (lane == LAST_LANE) v[LAST_J + 1 < NODES ? LAST_J + 1 : 0] = ghost;
        } else if (lane == LAST_LANE) right = ghost;
    }
    __device__ __forceinline__ void hold(REAL* v, REAL* z) const {
        if (left_kind == 1 && lane == 0) v[0] = left_value;
        if (right_kind == 1 && lane == LAST_LANE) v[LAST_J] = right_value;
        // Values behind the end must not grow without bound.
        #pragma unroll
        for (int j = 0; j < NODES; j++)
            if (LAST_J + 1 < NODES && j > LAST_J && lane >= LAST_LANE) { v[j] = 0; z[j] = 0; }
    }
};

// Cables of exactly WHOLE <= 32 NODES nodes, one a warp.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) explicit_cables(
    const REAL* __restrict__ v_in, const REAL* __restrict__ w_in, const REAL* __restrict__ drive,
    REAL* __restrict__ v_out, REAL* __restrict__ w_out, const REAL* __restrict__ rows,
    int n_cables, int n_steps, int left_kind, int right_kind)
{
    __shared__ REAL buffer[WARPS][32 * PITCH];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int cable = blockIdx.x * WARPS + warp;
    if (cable >= n_cables) return;
    Index base = (Index)cable * WHOLE;
    REAL* mine = buffer[warp];
    Step s = step_of(rows, cable);
    REAL v[NODES], z[NODES], push[NODES];
    #pragma unroll
    for (int k = 0; k < NODES; k++) {
        int l = k * 32 + lane;
        v[k] = l < WHOLE ? v_in[base + l] : (REAL)0;
        z[k] = l < WHOLE ? w_in[base + l] : (REAL)0;
        if (DRIVEN) push[k] = l < WHOLE ? drive[l] : (REAL)0;
    }
    to_threads(mine, v, lane, (REAL)1);
    to_threads(mine, z, lane, -s.dt);
    if (DRIVEN) to_threads(mine, push, lane, s.dt);
    Ends ends = {lane, left_kind, right_kind, v[0], v[LAST_J]};
    make_steps(v, z, push, s, ends, n_steps);
    from_threads(mine, v, lane, (REAL)1);
    from_threads(mine, z, lane, -(REAL)1 / s.dt);
    #pragma unroll
    for (int k = 0; k < NODES; k++) {
        int l = k * 32 + lane;
        if (l < WHOLE) {
            v_out[base + l] = v[k];
            w_out[base + l] = z[k];
        }
    }
}
"""

#: The text of a step, by the name of the scheme.
_STEPS = {"explicit": _EULER, "Runge-Kutta": _RUNGE_KUTTA}


def explicit_text(
    dtype: str,
    nodes: int = 16,
    warps: int = 4,
    driven: bool = False,
    whole: int = 0,
    scheme: str = "explicit",
) -> str:
    """Return the text of the kernels of the explicit schemes.

    Arguments:
        nodes: how many nodes a thread keeps. warps: how many warps a block has.
        driven: whether there is a stimulus.
        whole: how many nodes the cables have, where each fits into a warp, which is at most 32
            times `nodes`; 0 for tiles.
        scheme: "explicit" or "Runge-Kutta".
    """
    constants = {"NODES": nodes, "WARPS": warps, "DRIVEN": int(driven), "WHOLE": whole}
    constants["BLOCKS"] = 1 if scheme != "explicit" else _blocks(dtype, nodes, warps, driven)
    kernel = _CABLES if whole else _TILES
    return program_head(dtype, constants) + _EXPLICIT + _STEPS[scheme] + kernel


def _blocks(dtype: str, nodes: int, warps: int, driven: bool) -> int:
    """Return how many blocks of forward Euler a multiprocessor can hold.

    The compiler is told, since otherwise it may save registers by spilling, or take so many that
    fewer warps are resident. Those that a thread takes without spilling are from its reports; a
    quarter of a multiprocessor has 512 for each lane.
    """
    words = np.dtype(dtype).itemsize // 4
    registers = (12 if driven else 9) * nodes * words // 2 + 12 * words + 8
    return max(4 * (512 // registers) // warps, 1)


class ExplicitCuda(DeviceScheme):
    """Forward Euler on a GPU, with many steps for each pass over memory.

    Arguments:
        dtype: "float64" or "float32".
        nodes: the number of nodes of a tile that a thread keeps; by default `usual[0]`.
        warps: the number of warps of a block.
        steps: the number of steps of a pass over tiles, at most the overlap of the tiles, which is
            rounded up to a multiple of `nodes`; by default `usual[1]`.
        device: the device that runs it, by default CuPy's.
    """

    name = "explicit"
    arrays = (7, 7, 0)
    #: A step depends on so many nodes on either side.
    reach = 1
    #: The usual nodes of a thread and steps of a pass.
    usual = 16, 32
    #: The most nodes for which a thread has registers.
    most_nodes: ClassVar = {"float64": 24, "float32": 32}

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        dtype: str = "float64",
        nodes: int | None = None,
        warps: int = 4,
        steps: int | None = None,
        device: CableDevice | None = None,
    ) -> None:
        super().__init__(equation, cable, dtype, device)
        self.nodes, self.warps, self.steps = nodes or self.usual[0], warps, steps or self.usual[1]
        if 2 * self.halo >= 32 * self.nodes:
            raise ValueError(
                f"{self.steps} steps a pass leave nothing of a tile of {32 * self.nodes} nodes"
            )

    @property
    def halo(self) -> int:
        """Return the number of nodes by which tiles overlap on either side."""
        return -(-self.reach * self.steps // self.nodes) * self.nodes

    def rows(self, n_cables: int, dt: float) -> Array:
        """Return the coefficients of a step, as the kernels take them, (n_cables, 6)."""
        a, gamma, epsilon, diffusion = self.equation.table(n_cables).T
        r = diffusion * dt / self.cable.dx**2
        step = np.full(n_cables, dt)
        return np.stack(
            [1 - 2 * r - dt * a, dt * (1 + a), step, r, 1 - dt * epsilon * gamma, dt * epsilon],
            axis=1,
        )

    def advance(
        self, v: Any, w: Any, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Any, Any]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`."""
        n_cables, n = v.shape
        rows = self._cached(
            n_cables, dt, lambda: self.device.array(self.rows(n_cables, dt), self.dtype)
        )
        push, a_thread = self._drive(drive), -(-n // 32)
        whole = a_thread <= self.most_nodes[self.dtype]
        layout = (max(a_thread, 2), n) if whole else (self.nodes, 0)
        text = explicit_text(
            self.dtype, layout[0], self.warps, drive is not None, layout[1], self.name
        )
        run = self._whole if whole else self._in_tiles
        return run(self._program(text), v, w, n_steps, rows, push)

    def _whole(
        self, launch: Launch, v: Any, w: Any, n_steps: int, rows: Any, push: Any
    ) -> tuple[Any, Any]:
        """Make all steps at once, with each cable in the registers of a warp."""
        n_cables = len(v)
        v_new, w_new = (self.device.empty(v.shape, self.dtype) for _ in range(2))
        launch(
            "explicit_cables",
            -(-n_cables // self.warps),
            32 * self.warps,
            (v, w, push, v_new, w_new, rows, np.int32(n_cables), np.int32(n_steps), *self._kinds),
            0,
        )
        return v_new, w_new

    def _in_tiles(
        self, launch: Launch, v: Any, w: Any, n_steps: int, rows: Any, push: Any
    ) -> tuple[Any, Any]:
        """Make a few steps for each pass over memory, with a tile of a cable in each warp."""
        n_cables, n = v.shape
        tiles = -(-n // (32 * self.nodes - 2 * self.halo))
        blocks, threads = -(-tiles * n_cables // self.warps), 32 * self.warps
        sizes = np.int64(n), np.int32(tiles), np.int32(n_cables), np.int32(self.halo)

        def one_pass(v: Any, w: Any, v_new: Any, w_new: Any, count: int) -> None:
            arguments = (v, w, push, v_new, w_new, rows, *sizes, np.int32(count), *self._kinds)
            launch("explicit_tiles", blocks, threads, arguments, 0)

        return self._in_passes(v, w, n_steps, self.steps, one_pass)


class RungeKuttaCuda(ExplicitCuda):
    """Runge-Kutta of order four on a GPU, with many steps for each pass over memory.

    The arguments are those of `ExplicitCuda`; tiles overlap by four nodes for each step of a pass.
    """

    name = "Runge-Kutta"
    reach = REACH
    usual = 8, 8
    most_nodes: ClassVar = {"float64": 14, "float32": 32}

    def largest_step(self, v: Any) -> float:
        """Return the longest stable step; see `Scheme.largest_step`."""
        return super().largest_step(v) * STABLE / EULER_STABLE

    def rows(self, n_cables: int, dt: float) -> Array:
        """Return the coefficients of a rate, as the kernels take them, (n_cables, 6)."""
        return np.asarray(super().rows(n_cables, dt) - np.array([1, 0, 0, 0, 1, 0]), float)
