"""Two swarms on a GPU that the measurements of published swarms need, and no search uses.

`SynchronousRing`: three kernels an iteration, for moves, costs and bests, so that all particles
wait for the last. The same bits as `swarm.Swarm` with a `RingTopology`, but for the order of sums.

`LocalGroups`: a block is a group, whose best leads it in every iteration; the best of all leads
once a launch. A launch makes `exchange` iterations.

Sources: L. Mussi, Y. S. G. Nashed, S. Cagnoni, GECCO (2011) 1555-1562; J. Li, Q. Liu, HEART (2017).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.functions.swarm_cuda import WARP, DeviceSwarm
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu

_MOST_THREADS = 1024

_SYNCHRONOUS = """
// As `asynchronousRing`, with a kernel a phase; turn: the iteration, counted on the GPU; found:
// (..) costs.
extern "C" __global__ void __launch_bounds__(32) move(
    const real* __restrict__ range, u64 seed, const u32* turn, real* flight,
    const real* __restrict__ cost, const real* __restrict__ best)
{
    const int lane = threadIdx.x, n = gridDim.x;
    const u32 particle = blockIdx.x;
    const size_t row = (size_t)blockIdx.y*n, at = row + particle;
    const size_t sides[2] = {row + (particle + n - 1)%n, row + (particle + 1)%n};
    Particle p;
    load(p, flight + at*2*N_PARAMETERS, best + at*N_PARAMETERS, cost[at], lane);
    size_t from = at;
    for (int side = 0; side < 2; side++)
        if (cost[sides[side]] < cost[from]) from = sides[side];
    real leader[PER_LANE];
    EACH_DIMENSION(k, d) leader[k] = best[from*N_PARAMETERS + d];
    fly(p, leader, *turn > 0 && cost[from] < INFINITE, range, seed + blockIdx.y, particle, *turn,
        lane);
    store(p, flight + at*2*N_PARAMETERS, lane);
}

extern "C" __global__ void __launch_bounds__(32) evaluate(
    const real* __restrict__ range, const real* __restrict__ data,
    const real* __restrict__ flight, real* found)
{
    __shared__ real theta[N_PARAMETERS];
    const int lane = threadIdx.x;
    const size_t at = (size_t)blockIdx.y*gridDim.x + blockIdx.x;
    Particle p;
    EACH_DIMENSION(k, d) p.here[k] = flight[at*2*N_PARAMETERS + d];
    const real cost = score(p, theta, range, data, lane, 0xffffffffu);
    if (lane == 0) found[at] = cost;
}

extern "C" __global__ void __launch_bounds__(32) learn(
    u32* turn, const real* __restrict__ flight, const real* __restrict__ found, real* cost,
    real* best)
{
    const int lane = threadIdx.x;
    const size_t at = (size_t)blockIdx.y*gridDim.x + blockIdx.x;
    const bool better = found[at] < cost[at];
    __syncwarp();
    if (better) {
        EACH_DIMENSION(k, d) best[at*N_PARAMETERS + d] = flight[at*2*N_PARAMETERS + d];
        if (lane == 0) cost[at] = found[at];
    }
    if (at == 0 && lane == 0) *turn += 1;
}
"""

_GROUPS = """
// The lowest of GROUP costs and the first particle that has it, for all LANES threads.
__device__ __forceinline__ int lowest(const real* costs, int lane, unsigned mask)
{
    int at = lane < GROUP ? lane : 0;
    for (int i = lane; i < GROUP; i += LANES) if (costs[i] < costs[at]) at = i;
    for (int k = LANES/2; k > 0; k /= 2) {
        const int other = __shfl_xor_sync(mask, at, k, LANES);
        if (costs[other] < costs[at] || (costs[other] == costs[at] && other < at)) at = other;
    }
    return at;
}

// A block a group of GROUP particles with LANES threads each; all (n_particles, ..).
// global: (1 + N_PARAMETERS,): the cost and the position of the best of all so far.
extern "C" __global__ void __launch_bounds__(GROUP*LANES) flyInGroups(
    const real* __restrict__ range, const real* __restrict__ data, u64 seed, u32 first, u32 last,
    const real* __restrict__ global, real* flight, real* cost, real* best)
{
    extern __shared__ real room[];  // theta (GROUP, N_PARAMETERS), the group's best, costs (GROUP,)
    real* groupBest = room + GROUP*N_PARAMETERS;
    real* costs = groupBest + N_PARAMETERS;
    __shared__ real groupCost;
    const int lane = threadIdx.x%LANES, own = threadIdx.x/LANES;
    const unsigned mask = ownMask();
    const u32 particle = blockIdx.x*GROUP + own;
    real* theta = room + own*N_PARAMETERS;

    Particle p;
    load(p, flight + (size_t)particle*2*N_PARAMETERS, best + (size_t)particle*N_PARAMETERS,
         cost[particle], lane);
    if (threadIdx.x == 0) groupCost = INFINITE;
    for (u32 iteration = first; iteration < last; iteration++) {
        if (lane == 0) costs[own] = p.ownCost;
        __syncthreads();
        const int at = lowest(costs, lane, mask);
        const bool better = costs[at] < groupCost;
        __syncthreads();
        if (better && at == own) {
            EACH_DIMENSION(k, d) groupBest[d] = p.own[k];
            if (lane == 0) groupCost = p.ownCost;
        }
        __syncthreads();
        const bool ofAll = iteration == first;
        const real leaderCost = ofAll ? global[0] : groupCost;
        real leader[PER_LANE];
        EACH_DIMENSION(k, d) leader[k] = ofAll ? global[1 + d] : groupBest[d];
        fly(p, leader, iteration > 0 && leaderCost < INFINITE, range, seed, particle, iteration,
            lane);
        const real found = score(p, theta, range, data, lane, mask);
        if (found < p.ownCost) {
            p.ownCost = found;
            EACH_DIMENSION(k, d) p.own[k] = p.here[k];
        }
    }
    store(p, flight + (size_t)particle*2*N_PARAMETERS, lane);
    EACH_DIMENSION(k, d) best[(size_t)particle*N_PARAMETERS + d] = p.own[k];
    if (lane == 0) cost[particle] = p.ownCost;
}

// One block of 256: the best of all particles to where the next launch finds it.
extern "C" __global__ void __launch_bounds__(256) exchange(
    int n, const real* __restrict__ cost, const real* __restrict__ best, real* global)
{
    __shared__ real costs[256];
    __shared__ int from[256];
    int at = 0;
    real least = INFINITE;
    for (int i = threadIdx.x; i < n; i += 256)
        if (cost[i] < least) {
            least = cost[i];
            at = i;
        }
    costs[threadIdx.x] = least;
    from[threadIdx.x] = at;
    // datum i is compared with datum m - 1 - i: any number of data, and no thread apart
    for (int m = 256; m > 1; m = (m + 1)/2) {
        __syncthreads();
        const int other = m - 1 - threadIdx.x;
        if ((int)threadIdx.x < m/2 && (costs[other] < costs[threadIdx.x] ||
            (costs[other] == costs[threadIdx.x] && from[other] < from[threadIdx.x]))) {
            costs[threadIdx.x] = costs[other];
            from[threadIdx.x] = from[other];
        }
    }
    __syncthreads();
    if (costs[0] < INFINITE)
        for (int d = threadIdx.x; d < N_PARAMETERS; d += 256)
            global[1 + d] = best[(size_t)from[0]*N_PARAMETERS + d];
    if (threadIdx.x == 0) global[0] = costs[0];
}
"""


class SynchronousRing(DeviceSwarm):
    """A ring in which every phase is a launch."""

    kind = _SYNCHRONOUS

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        names = ("move", "evaluate", "learn")
        self._move, self._evaluate, self._learn = map(self._module.kernel, names)
        self._turn = self.xp.zeros(1, dtype=np.uint32)
        self._found = self.xp.zeros((self.swarms, self.population), dtype=self.dtype)

    def fly(self, n_iterations: int) -> None:
        """Three launches each; what they are is the same every time, so they can be recorded."""
        grid, block = self._grid, (WARP,)
        move = (self._range, np.uint64(self.seed), self._turn, self._flight, self._cost, self._best)
        evaluate = (self._range, self.scorer.columns, self._flight, self._found)
        learn = (self._turn, self._flight, self._found, self._cost, self._best)
        with gpu.gpu_errors():
            for _ in range(n_iterations):
                self._move(grid, block, move)
                self._evaluate(grid, block, evaluate)
                self._learn(grid, block, learn)
        self.iteration += n_iterations


class LocalGroups(DeviceSwarm):
    """Groups led by their own best, and by the best of all once a launch.

    Arguments, besides those of `DeviceSwarm`:
        group: particles of a block; the population is a multiple of it.
        exchange: iterations of a launch; with 1, nobody is led by a group.
        lanes: threads of a particle, a power of two up to 32.

    Raises: InputError for a population that is no multiple, and for too many threads a block.
    """

    kind = _GROUPS

    def __init__(
        self,
        scorer: Any,
        population: int,
        seed: int,
        group: int = 16,
        exchange: int = 10,
        lanes: int = WARP,
        **settings: Any,
    ) -> None:
        if population % group:
            raise InputError(f"population must be a multiple of group, {group}, not {population}")
        if group * lanes > _MOST_THREADS:
            raise InputError(f"a block has {_MOST_THREADS} threads, not {group} * {lanes}")
        if exchange < 1:
            raise InputError(f"exchange must be 1 or more, not {exchange}")
        self.group, self.lanes, self.exchange = group, lanes, exchange
        super().__init__(scorer, population, seed, **settings)
        self._fly = self._module.kernel("flyInGroups")
        self._exchange = self._module.kernel("exchange")
        self._global = self.xp.full(1 + self.n_parameters, np.inf, dtype=self.dtype)
        n_shared = group * self.n_parameters + self.n_parameters + group
        self._shared = n_shared * self.dtype.itemsize
        if self._shared > 48 << 10:  # more than every launch may have
            self._fly.allow_dynamic_shared(self._shared)

    def fly(self, n_iterations: int) -> None:
        """Whole launches; the last may be shorter."""
        end = self.iteration + n_iterations
        with gpu.gpu_errors():
            while self.iteration < end:
                first = self.iteration
                self.iteration = min(first + self.exchange, end)
                self._fly(
                    (self.population // self.group,),
                    (self.group * self.lanes,),
                    (
                        self._range,
                        self.scorer.columns,
                        np.uint64(self.seed),
                        np.uint32(first),
                        np.uint32(self.iteration),
                        self._global,
                        self._flight,
                        self._cost,
                        self._best,
                    ),
                    shared_mem=self._shared,
                )
                arguments = (np.int32(self.population), self._cost, self._best, self._global)
                self._exchange((1,), (256,), arguments)
