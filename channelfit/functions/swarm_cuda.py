"""Particle swarms of functions on a GPU: the moves and the cost in one kernel.

The rules are those of `swarm.Swarm`, draw for draw; what differs is who waits for whom.

`AsynchronousRing`: one kernel for any number of iterations and no barrier between particles. A
warp is a particle, its dimensions lie across the lanes. Before each move it looks at what its two
neighbours have published and goes on; so particles drift apart, and a run is not repeatable to the
bit (the draws are).

A best is a cost and a position, and the two must fit together. Every particle alone writes its own
record and brackets the writing with a version, odd while it writes, with fences between. A reader
takes a copy, and keeps it only if it found the same even version before and after. Otherwise it
waits for nothing: it goes on with the best that it knew, and looks again at its next move.

`SynchronousRing`: three kernels an iteration, for moves, costs and bests, so that all particles
wait for the last. The same bits as `swarm.Swarm` with a `Ring`, but for the order of sums.

`LocalGroups`: a block is a group, whose best leads it in every iteration; the best of all leads
once a launch. A launch makes `exchange` iterations.

Positions are kept in the parameters' own units (their logarithms, where the scale is log), not in
the unit cube: a float32 near 0 is worth more than one near 0.5.

Sources: Mussi, Nashed, Cagnoni (2011) and Li, Liu (2017), see `swarm.py`; the bracketed record is
a sequence lock, Boehm, "Can seqlocks get along with programming language memory models?", MSPC
(2012).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from channelfit.functions.scorers import FunctionCuda
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.objective import Generation, Objective, summarized
from channelfit.search.optimizer import Optimizer
from channelfit.search.philox import CUDA_TEXT
from channelfit.search.population import check_size
from channelfit.search.swarm import ATTRACTION, INERTIA

_WARP = 32
#: What a draw is for: as in `swarm.py`.
_FLIGHT = 5
_MOST_THREADS = 1024

_COMMON = """
#define PER_LANE ((N_PARAMETERS + LANES - 1)/LANES)
#define INFINITE (real(__longlong_as_double(0x7ff0000000000000ll)))

// The k-th dimension of a lane.
#define EACH_DIMENSION(k, d) \\
    _Pragma("unroll") for (int k = 0, d = lane; k < PER_LANE; k++, d += LANES) \\
        if (d < N_PARAMETERS)

__device__ __forceinline__ real finiteOrInfinite(real cost)
{
    return fabs(cost) < INFINITE ? cost : INFINITE;  // NaN and -inf too
}

// What a lane holds of a particle; range: lower, upper, and whether it is in logarithms, each for
// all dimensions.
struct Particle { real here[PER_LANE], fast[PER_LANE], own[PER_LANE], ownCost; };

__device__ __forceinline__ void load(Particle& p, const real* flight, const real* own, real ownCost,
                                     int lane)
{
    EACH_DIMENSION(k, d) {
        p.here[k] = flight[d];
        p.fast[k] = flight[N_PARAMETERS + d];
        p.own[k] = own[d];
    }
    p.ownCost = ownCost;
}

__device__ __forceinline__ void store(const Particle& p, real* flight, int lane)
{
    EACH_DIMENSION(k, d) {
        flight[d] = p.here[k];
        flight[N_PARAMETERS + d] = p.fast[k];
    }
}

// One move by the rules of swarm.Swarm; leader: of this lane's dimensions; led: whether by anyone.
__device__ __forceinline__ void fly(Particle& p, const real* leader, bool led,
                                    const real* __restrict__ range, u64 seed, u32 particle,
                                    u32 iteration, int lane)
{
    const bool proven = p.ownCost < INFINITE;
    EACH_DIMENSION(k, d) {
        const uint4 words = philox(particle, d, iteration, FLIGHT, seed);
        const real one = real(uniform(words.x, words.y)), two = real(uniform(words.z, words.w));
        const real lower = range[d], upper = range[N_PARAMETERS + d], width = upper - lower;
        const real here = p.here[k];
        real there, fast;
        if (led) {
            fast = real(INERTIA)*p.fast[k];
            if (proven) fast += real(COGNITIVE)*one*(p.own[k] - here);
            fast += real(SOCIAL)*two*(leader[k] - here);
            fast = fmin(fmax(fast, -width), width);
            there = here + fast;
        } else {
            there = lower + one*width;
            fast = (two - one)*width/real(2);
        }
        // beyond a face: the mirror image, and back
        const bool below = there < lower, above = there > upper;
        there = below ? lower + (lower - there) : above ? upper - (there - upper) : there;
        p.fast[k] = below || above ? -fast : fast;
        p.here[k] = fmin(fmax(there, lower), upper);
    }
}

// Cost of where a particle is; theta: room in shared memory, of the particle's lanes alone.
__device__ __forceinline__ real score(const Particle& p, real* theta,
                                      const real* __restrict__ range,
                                      const real* __restrict__ data, int lane, unsigned mask)
{
    EACH_DIMENSION(k, d) theta[d] = range[2*N_PARAMETERS + d] != real(0) ? exp(p.here[k])
                                                                         : p.here[k];
    __syncwarp(mask);
    const real cost = costOf<LANES>(theta, (size_t)1, data, lane, mask);
    __syncwarp(mask);
    return finiteOrInfinite(cost);
}

__device__ __forceinline__ unsigned ownMask()
{
    return LANES == 32 ? 0xffffffffu : ((1u << LANES%32) - 1u) << (threadIdx.x%32/LANES*LANES);
}
"""

_ASYNCHRONOUS = """
// Written by its particle alone, read by its neighbours.
__device__ void publish(const Particle& p, volatile u32* version, volatile real* cost,
                        volatile real* best, int lane)
{
    const u32 now = *version;
    __syncwarp();
    if (lane == 0) *version = now + 1;
    __syncwarp();
    __threadfence();  // after the warp has met: it orders what other lanes did too
    EACH_DIMENSION(k, d) best[d] = p.own[k];
    if (lane == 0) *cost = p.ownCost;
    __syncwarp();
    __threadfence();
    if (lane == 0) *version = now + 2;
}

// Takes a neighbour's best over as leader, if it is better and can be read whole.
__device__ void follow(real* leader, real& leaderCost, real seen, const volatile u32* version,
                       const volatile real* cost, const volatile real* best, int lane)
{
    seen = __shfl_sync(0xffffffffu, seen, 0);  // one lane's word, lest the lanes part
    if (!(seen < leaderCost)) return;
    real copy[PER_LANE];
    const u32 before = __shfl_sync(0xffffffffu, *version, 0);
    __threadfence();
    __syncwarp();
    EACH_DIMENSION(k, d) copy[k] = best[d];
    const real copied = __shfl_sync(0xffffffffu, *cost, 0);
    __syncwarp();
    __threadfence();
    const u32 after = __shfl_sync(0xffffffffu, *version, 0);
    if (before != after || before%2u || !(copied < leaderCost)) return;
    EACH_DIMENSION(k, d) leader[k] = copy[k];
    leaderCost = copied;
}

// A block a particle, a row of blocks a swarm; arrays begin with (n_swarms, n_particles).
// flight (.., 2, N_PARAMETERS), version and cost (..), best (.., N_PARAMETERS).
extern "C" __global__ void __launch_bounds__(32) asynchronousRing(
    const real* __restrict__ range, const real* __restrict__ data, u64 seed, u32 first, u32 last,
    real* flight, u32* version, real* cost, real* best)
{
    __shared__ real theta[N_PARAMETERS];
    const int lane = threadIdx.x, n = gridDim.x;
    const u32 particle = blockIdx.x;
    const size_t row = (size_t)blockIdx.y*n, at = row + particle;
    const size_t sides[2] = {row + (particle + n - 1)%n, row + (particle + 1)%n};
    seed += blockIdx.y;

    Particle p;
    load(p, flight + at*2*N_PARAMETERS, best + at*N_PARAMETERS, cost[at], lane);
    real leader[PER_LANE], leaderCost = p.ownCost;
    EACH_DIMENSION(k, d) leader[k] = p.own[k];

    for (u32 iteration = first; iteration < last; iteration++) {
        const real seen[2] = {((const volatile real*)cost)[sides[0]],
                              ((const volatile real*)cost)[sides[1]]};
        for (int side = 0; side < 2; side++)
            follow(leader, leaderCost, seen[side], version + sides[side], cost + sides[side],
                   best + sides[side]*N_PARAMETERS, lane);
        fly(p, leader, iteration > 0 && leaderCost < INFINITE, range, seed, particle, iteration,
            lane);
        const real found = score(p, theta, range, data, lane, 0xffffffffu);
        if (found < p.ownCost) {
            p.ownCost = found;
            EACH_DIMENSION(k, d) p.own[k] = p.here[k];
            publish(p, version + at, cost + at, best + at*N_PARAMETERS, lane);
            if (found < leaderCost) {
                leaderCost = found;
                EACH_DIMENSION(k, d) leader[k] = p.here[k];
            }
        }
    }
    store(p, flight + at*2*N_PARAMETERS, lane);
}
"""

_SYNCHRONOUS = """
// As above, with a kernel a phase; turn: the iteration, counted on the device; found (..): costs.
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


def swarm_text(
    source_text: str,
    kind: str,
    lanes: int = _WARP,
    group: int = 1,
    inertia: float = INERTIA,
    cognitive: float = ATTRACTION,
    social: float = ATTRACTION,
) -> str:
    """The kernels that `kind` holds, behind the text of a function (`FunctionSource.text`)."""
    sizes = {
        "LANES": lanes,
        "GROUP": group,
        "FLIGHT": _FLIGHT,
        "INERTIA": inertia,
        "COGNITIVE": cognitive,
        "SOCIAL": social,
    }
    defines = "".join(f"#define {name} {value!r}\n" for name, value in sizes.items())
    return source_text + defines + CUDA_TEXT + _COMMON + kind


class DeviceSwarm:
    """What the three swarms share: particles of a function's parameters, on the current GPU.

    Arguments:
        scorer: `backends.functions.FunctionCuda`, whose function and precision are used.
        population: particles of a swarm.
        seed: of the first swarm; the others have the seeds that follow.
        swarms: independent swarms, flown at once.
        inertia, cognitive, social: as in `swarm.Swarm`.

    `iteration` is how often every particle has moved.
    """

    kind = ""
    lanes, group = _WARP, 1

    def __init__(
        self,
        scorer: FunctionCuda,
        population: int,
        seed: int,
        swarms: int = 1,
        inertia: float = INERTIA,
        cognitive: float = ATTRACTION,
        social: float = ATTRACTION,
    ) -> None:
        problem = scorer.problem
        parameters = problem.model.parameters
        n = len(parameters)
        check_size(n, population, seed)
        self.xp, self.scorer, self.seed = gpu.cupy(), scorer, seed
        self.population, self.swarms, self.iteration = population, swarms, 0
        text = swarm_text(
            scorer.source.text, self.kind, self.lanes, self.group, inertia, cognitive, social
        )
        self._module = gpu.compile_cuda(text, (), f"{problem.model.name}_swarm.cu")
        self.n_parameters, self.dtype = n, np.dtype(scorer.dtype)
        bounds = np.array([_coordinates(p, self.dtype) for p in parameters], dtype=self.dtype).T
        xp, shape = self.xp, (swarms, population)
        with gpu.gpu_errors():
            self._range = xp.asarray(np.ascontiguousarray(bounds))
            self._flight = xp.zeros((*shape, 2, n), dtype=self.dtype)
            self._best = xp.zeros((*shape, n), dtype=self.dtype)
            self._cost = xp.full(shape, np.inf, dtype=self.dtype)

    def fly(self, n_iterations: int) -> None:
        """So many moves of every particle, asked for and not waited for."""
        raise NotImplementedError

    @property
    def costs(self) -> np.ndarray:
        """Every particle's own best cost (n_swarms, n_particles), inf where it has none."""
        return to_host(self._cost)

    @property
    def positions(self) -> np.ndarray:
        """Where every particle is: physical parameters (n_swarms, n_particles, n_parameters)."""
        return self._physical(to_host(self._flight)[:, :, 0])

    @property
    def bests(self) -> np.ndarray:
        """Every particle's own best: physical parameters (n_swarms, n_particles, n_parameters)."""
        return self._physical(to_host(self._best))

    def _physical(self, coordinates: np.ndarray) -> np.ndarray:
        logarithmic = to_host(self._range)[2] != 0
        values = coordinates.astype(np.float64)
        values[..., logarithmic] = np.exp(values[..., logarithmic])
        return values

    @property
    def _grid(self) -> tuple[int, int]:
        return self.population, self.swarms


def _coordinates(parameter: Any, dtype: np.dtype[Any]) -> tuple[Any, Any, float]:
    """Lower, upper and 1 where they are logarithms; a fixed parameter has one value.

    Rounded inwards: no particle may come to lie beyond a bound because float32 cannot hold it.
    """
    ends = np.array([parameter.lower, parameter.upper])
    if parameter.fixed:
        ends[:] = parameter.value
    logarithmic = parameter.scale == "log"
    # an exponential on a device is off by 2 units in the last place of its result, at most
    slack = 4 * np.finfo(dtype).eps if logarithmic else 0.0
    low, high = (np.log(ends) if logarithmic else ends) + [slack, -slack]
    lower, upper = dtype.type(low), dtype.type(high)
    lower = np.nextafter(lower, dtype.type(np.inf)) if lower < low else lower
    upper = np.nextafter(upper, dtype.type(-np.inf)) if upper > high else upper
    if lower > upper:  # one value, or two that dtype cannot tell apart
        lower = upper = dtype.type(low)
    return lower, upper, float(logarithmic)


class AsynchronousRing(DeviceSwarm):
    """A ring in one kernel without barriers between particles; see above."""

    kind = _ASYNCHRONOUS

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._version = self.xp.zeros((self.swarms, self.population), dtype=np.uint32)
        self._kernel = self._module.kernel("asynchronousRing")

    def fly(self, n_iterations: int) -> None:
        first, self.iteration = self.iteration, self.iteration + n_iterations
        with gpu.gpu_errors():
            self._kernel(
                self._grid,
                (_WARP,),
                (
                    self._range,
                    self.scorer.columns,
                    np.uint64(self.seed),
                    np.uint32(first),
                    np.uint32(self.iteration),
                    self._flight,
                    self._version,
                    self._cost,
                    self._best,
                ),
            )


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
        grid, block = self._grid, (_WARP,)
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
        lanes: int = _WARP,
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


class RingSearch(Optimizer):
    """`AsynchronousRing` as an optimizer by name: a generation is one launch.

    Arguments:
        population: particles; all of them must find room on the GPU at once.
        iterations: moves of every particle in a launch.
        initial: (n_parameters, n_points) points of the unit cube that are scored first. Particles
            know nothing of them; the search ends no higher than the best of them.
    """

    name = "asynchronous_ring"

    def __init__(
        self, population: int = 64, seed: int = 0, iterations: int = 100, initial: Any = None
    ) -> None:
        check_size(1, population, seed)
        self.population, self.seed, self.iterations = population, seed, iterations
        self.initial = initial

    @property
    def settings(self) -> dict[str, float]:
        """By the names a user writes."""
        return {"population": self.population, "iterations": self.iterations}

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Launch after launch, without end.

        Raises: InputError unless the objective is a function scored on a GPU.
        """
        scorer = objective.scorer
        if not isinstance(scorer, FunctionCuda):
            raise InputError(
                f"{self.name} flies functions on a GPU (--backend cuda); elsewhere ring with "
                "batch: 1 has no generations either",
                key="fit.optimizer.name",
            )
        ring = AsynchronousRing(scorer, self.population, self.seed)
        if self.initial is not None:
            score = objective.score(self.initial)
            yield summarized(objective, self.initial, score, "known values")
        while True:
            ring.fly(self.iterations)
            costs = ring.costs[0].astype(np.float64)
            finite = np.isfinite(costs)
            n_candidates = self.population * self.iterations
            objective.evaluations += n_candidates
            yield Generation(
                n_candidates=n_candidates,
                mean=float(costs[finite].mean()) if finite.any() else math.nan,
                median=float(np.median(costs[finite])) if finite.any() else math.nan,
                best=float(costs.min()),
                values=ring.bests[0, int(costs.argmin())],
                stage=f"{ring.iteration} iterations",
            )
