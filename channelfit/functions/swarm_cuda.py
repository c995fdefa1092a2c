"""A particle swarm of functions on a GPU: the moves and the cost in one kernel.

The rules are those of `swarm.Swarm`, draw for draw, but particles do not wait for each other.

`AsynchronousRing` runs any number of iterations in one kernel, without barriers between particles.
A warp is a particle, its dimensions lie across the lanes. Before each move it reads the bests that
its two neighbors have published, and goes on; so particles drift apart, and a run is not repeatable
to the bit (the draws are).

A best is a cost and a position, and the two must fit together. Each particle writes only its own
record, and brackets the writing with a version, odd while it writes, with fences between. A reader
takes a copy, and keeps it only if it found the same even version before and after. Otherwise it
goes on, without waiting, with the best that it knew, and reads again at its next move.

Positions are kept in the parameters' own units (their logarithms, where the scale is log), not in
the unit cube: a float32 near 0 is worth more than one near 0.5.

Sources: Mussi, Nashed, Cagnoni (2011), see `swarm.py`; the bracketed record is a sequence lock,
Boehm, "Can seqlocks get along with programming language memory models?", MSPC (2012).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from channelfit.functions.scorers import FunctionCuda
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.objective import Generation, Objective, summarized
from channelfit.search.optimizer import Search
from channelfit.search.philox import CUDA_TEXT
from channelfit.search.population import check_size
from channelfit.search.swarm import ATTRACTION, FLIGHT, INERTIA

WARP = 32

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
// Written by its particle alone, read by its neighbors.
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

// Takes a neighbor's best over as leader, if it is better and can be read whole.
__device__ void follow(real* leader, real& leaderCost, real seen, const volatile u32* version,
                       const volatile real* cost, const volatile real* best, int lane)
{
    // the word of one lane for all, or they might go different ways
    seen = __shfl_sync(0xffffffffu, seen, 0);
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


def swarm_text(
    source_text: str,
    kind: str,
    lanes: int = WARP,
    group: int = 1,
    inertia: float = INERTIA,
    cognitive: float = ATTRACTION,
    social: float = ATTRACTION,
) -> str:
    """Return the text of some kernels, behind the text of a function.

    Arguments:
        source_text: of the function; see `FunctionSource.text`.
        kind: the text of the kernels themselves.
        lanes: threads of a particle.
        group: particles of a block.
        inertia, cognitive, social: as in `swarm.Swarm`.
    """
    sizes = {
        "LANES": lanes,
        "GROUP": group,
        "FLIGHT": FLIGHT,
        "INERTIA": inertia,
        "COGNITIVE": cognitive,
        "SOCIAL": social,
    }
    defines = "".join(f"#define {name} {value!r}\n" for name, value in sizes.items())
    return source_text + defines + CUDA_TEXT + _COMMON + kind


class DeviceSwarm(ABC):
    """Particles of a function's parameters on the current GPU; a subclass defines their leaders.

    Arguments:
        scorer: its function and precision are used.
        population: particles of a swarm.
        seed: of the first swarm; the others have the seeds that follow.
        swarms: independent swarms that are flown at once.
        inertia, cognitive, social: as in `swarm.Swarm`.

    Attributes:
        iteration: the number of moves that every particle has made.
    """

    kind = ""
    lanes, group = WARP, 1

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

    @abstractmethod
    def fly(self, n_iterations: int) -> None:
        """Queue so many moves of every particle, without waiting for them."""

    @property
    def costs(self) -> np.ndarray:
        """Return every particle's own best cost (n_swarms, n_particles), inf where it has none."""
        return to_host(self._cost)

    @property
    def positions(self) -> np.ndarray:
        """Return where every particle is: parameters (n_swarms, n_particles, n_parameters)."""
        return self._physical(to_host(self._flight)[:, :, 0])

    @property
    def bests(self) -> np.ndarray:
        """Return every particle's best: parameters (n_swarms, n_particles, n_parameters)."""
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
    """Return a parameter's lower and upper coordinate, and 1 where they are logarithms, else 0.

    A fixed parameter has one value. Bounds are rounded inwards: no particle may come to lie beyond
    a bound because float32 cannot hold it.
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
    """A ring in one kernel without barriers between particles; see the module."""

    kind = _ASYNCHRONOUS

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._version = self.xp.zeros((self.swarms, self.population), dtype=np.uint32)
        self._kernel = self._module.kernel("asynchronousRing")

    def fly(self, n_iterations: int) -> None:
        """Queue so many moves of every particle in one launch, without waiting for it."""
        first, self.iteration = self.iteration, self.iteration + n_iterations
        numbers = np.uint64(self.seed), np.uint32(first), np.uint32(self.iteration)
        swarm = self._flight, self._version, self._cost, self._best
        with gpu.gpu_errors():
            arguments = (self._range, self.scorer.columns, *numbers, *swarm)
            self._kernel(self._grid, (WARP,), arguments)


class RingSearch(Search):
    """`AsynchronousRing` as an optimizer by name: a generation is one launch.

    Arguments:
        population: particles; all of them must find room on the GPU at once.
        seed: of all random numbers.
        iterations: moves of every particle in a launch.
        initial: (n_parameters, n_points) points of the unit cube that are scored first. Particles
            know nothing of them, but the search ends no higher than the best of them.
    """

    name = "asynchronous_ring"
    repeats_itself = False  # its particles do not wait for each other

    def __init__(
        self, population: int = 64, seed: int = 0, iterations: int = 100, initial: Any = None
    ) -> None:
        check_size(1, population, seed)
        self.population, self.seed, self.iterations = population, seed, iterations
        self.initial = initial

    @property
    def settings(self) -> dict[str, float]:
        """Return the settings in force, by the names that a user writes."""
        return {"population": self.population, "iterations": self.iterations}

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Launch after launch, without end; see `Search.search`.

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
                median=float(np.median(costs[finite])) if finite.any() else math.nan,
                best=float(costs.min()),
                values=ring.bests[0, int(costs.argmin())],
                stage=f"{ring.iteration} iterations",
            )
