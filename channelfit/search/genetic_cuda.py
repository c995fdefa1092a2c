"""The genetic algorithm of `genetic.py` on a GPU: the same bits, and no population comes back.

Two kernels run in every generation. `next_generation` makes the candidates, in the unit cube and as
physical parameters in one pass; `learn` reduces their costs and keeps the elite. Whether a
generation is bred or drawn afresh is decided on the GPU, so the host never waits. It
reads a record of a few numbers for each generation while the GPU goes on.

Bytes that a generation moves, for n candidates of p free and q model parameters: gathering the
parents' rows n*(8p + 24) (a row of p doubles lies anywhere, so up to a sector of 32 bytes is read
in vain), writing children n*8p and physical values n*8q, scores 9n read: 260 MB for n = 2^20,
p = q = 9. Parents' costs are gathered too, but 8n bytes stay in the second-level cache. The unit
population therefore lies candidate by candidate: parameter by parameter each value gathered would
take a sector of its own, 300 MB instead of 100 MB. A block takes rows through shared memory, so
that neighboring threads read, and write, neighboring bytes. One thread makes both children of a
pair, from one gather of both parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from channelfit.problem.statuses import N_STATUSES
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.genetic import Genetic
from channelfit.search.objective import Generation
from channelfit.search.optimizer import ResidentOptimizer
from channelfit.search.philox import CUDA_TEXT
from channelfit.search.population import check_costs
from channelfit.search.space import SearchSpace

#: The median of a generation is that of so many of its costs, evenly spaced, or of all.
MEDIAN_SAMPLE = 256

#: Pairs that a block breeds; threads of a block that learns, and the most such blocks.
_PAIRS, _THREADS, _MOST_BLOCKS = 128, 256, 264
#: The most parameters of a row that are in shared memory at a time.
_MOST_IN_CHUNK = 16
#: A record has the best cost so far, the median of the finite costs of its generation, from here on
#: counts of failures, and the best physical parameters so far.
_FAILED = 2
_VALUES = _FAILED + N_STATUSES

TEXT = """
// One generation of the genetic algorithm; the definition is channelfit/search/genetic.py.
enum { INITIAL, TOURNAMENT, CROSSOVER, MUTATION, REPLACEMENT };
#define STRIDE (CHUNK | 1)  // odd: the rows of a warp then start in different banks
#define BLOCKS_OF_16 (PAIRS / 16 + 1)
#define INFINITE __longlong_as_double(0x7ff0000000000000ll)

__device__ __forceinline__ double finite_or_infinite(double cost)
{
    return fabs(cost) < INFINITE ? cost : INFINITE;  // NaN and -inf too
}

// SearchSpace.to_physical. No product may be fused into a sum: the host rounds twice as well.
// range: lower, upper, and their logarithms, N_FREE each.
__device__ __forceinline__ double to_physical(double unit, int p, bool in_logarithms,
                                              const double* __restrict__ range)
{
    const double lower = range[p], upper = range[N_FREE + p];
    unit = fmin(fmax(unit, 0.0), 1.0);
    const double rest = __dsub_rn(1.0, unit);
    double value;
    if (in_logarithms) {
        value = exp(__dadd_rn(__dmul_rn(rest, range[2 * N_FREE + p]),
                              __dmul_rn(unit, range[3 * N_FREE + p])));
        value = unit == 0.0 ? lower : (unit == 1.0 ? upper : value);
    } else {
        value = __dadd_rn(__dmul_rn(rest, lower), __dmul_rn(unit, upper));
    }
    return fmin(fmax(value, lower), upper);
}

// population and next (n_candidates, N_FREE), physical (n_parameters, n_candidates) or null;
// place: the row of each free parameter in physical, -1-row where it is scaled in logarithms;
// elite: its cost, then its N_FREE values.
extern "C" __global__ void __launch_bounds__(PAIRS) next_generation(
    const double* __restrict__ population, const double* __restrict__ cost, u32 n_scored,
    const double* __restrict__ elite, const double* __restrict__ initial, u32 n_initial,
    const double* __restrict__ range, const int* __restrict__ place,
    u64 seed, u32 generation, u64 crossover_threshold, u64 mutation_threshold,
    u32 n_candidates, double* __restrict__ next, double* __restrict__ physical)
{
    __shared__ double row[2][PAIRS][STRIDE];
    __shared__ uint4 coarse[2][CHUNK][BLOCKS_OF_16];
    __shared__ u32 parent[2][PAIRS];
    __shared__ uint4 crossover[PAIRS / 4];

    const u32 thread = threadIdx.x;
    const u32 first_pair = blockIdx.x * PAIRS;
    if (!(elite[0] < INFINITE)) {
        // Nothing to breed from: all are drawn, two slots a thread.
        for (u32 slot = 2 * first_pair + thread;
             slot < 2 * first_pair + 2 * PAIRS && slot < n_candidates; slot += PAIRS)
            for (int p = 0; p < N_FREE; p++) {
                const uint4 words = philox(slot / 2, p, generation, INITIAL, seed);
                double unit = slot % 2 ? uniform(words.z, words.w) : uniform(words.x, words.y);
                if (generation == 0 && slot < n_initial)
                    unit = initial[(size_t)p * n_initial + slot];
                next[(size_t)slot * N_FREE + p] = unit;
                if (physical) {
                    const int to = place[p];
                    physical[(size_t)(to < 0 ? -1 - to : to) * n_candidates + slot] =
                        to_physical(unit, p, to < 0, range);
                }
            }
        return;
    }

    const u32 n_pairs = n_candidates / 2;
    const u32 pair = first_pair + thread;
    // The slots of this thread's children; no pair has a second child beyond the last slot.
    const u32 slots[2] = {1 + pair, 1 + n_pairs + pair};
    const bool here[2] = {pair < n_pairs, pair < n_pairs && slots[1] < n_candidates};

    if (thread < PAIRS / 4)
        crossover[thread] = philox(first_pair / 4 + thread, 0, generation, CROSSOVER, seed);
    if (pair < n_pairs) {
        const uint4 words = philox(pair, 0, generation, TOURNAMENT, seed);
        const u32 drawn[4] = {__umulhi(words.x, n_scored), __umulhi(words.y, n_scored),
                              __umulhi(words.z, n_scored), __umulhi(words.w, n_scored)};
        double costs[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) costs[i] = finite_or_infinite(cost[drawn[i]]);
        parent[0][thread] = costs[1] < costs[0] ? drawn[1] : drawn[0];
        parent[1][thread] = costs[3] < costs[2] ? drawn[3] : drawn[2];
    } else {
        parent[0][thread] = parent[1][thread] = 0;
    }
    __syncthreads();

    u32 point = N_FREE;
    const u64 word = ((const u32*)crossover)[thread];
    if (N_FREE > 1 && word < crossover_threshold)
        point = (u32)(word * (N_FREE - 1) / crossover_threshold) + 1;

    const u32 whole = (u32)(mutation_threshold >> 32), rest = (u32)mutation_threshold;
    for (u32 first = 0; first < N_FREE; first += CHUNK) {
        #pragma unroll 6  // loads under way at once
        for (u32 i = thread; i < 2 * PAIRS * CHUNK; i += PAIRS) {
            const u32 half = i / (PAIRS * CHUNK), own = i / CHUNK % PAIRS, p = i % CHUNK;
            if (first + p < N_FREE)
                row[half][own][p] = population[(size_t)parent[half][own] * N_FREE + first + p];
        }
        if (mutation_threshold)
            for (u32 i = thread; i < 2 * CHUNK * BLOCKS_OF_16; i += PAIRS) {
                const u32 half = i / (CHUNK * BLOCKS_OF_16), p = i / BLOCKS_OF_16 % CHUNK;
                const u32 begin = 1 + first_pair + (half ? n_pairs : 0);
                coarse[half][p][i % BLOCKS_OF_16] = philox(
                    begin / 16 + i % BLOCKS_OF_16, first + p, generation, MUTATION, seed);
            }
        __syncthreads();
        for (u32 p = 0; p < CHUNK && first + p < N_FREE; p++) {
            const u32 parameter = first + p;
            double child[2] = {row[0][thread][p], row[1][thread][p]};
            if (point <= parameter) {
                const double other = child[0];
                child[0] = child[1];
                child[1] = other;
            }
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 slot = slots[half];
                if (mutation_threshold) {
                    const u32 begin = (1 + first_pair + (half ? n_pairs : 0)) / 16 * 16;
                    const u32 byte = ((const unsigned char*)coarse[half][p])[slot - begin];
                    if (byte <= whole) {
                        const uint4 words = philox(slot, parameter, generation, REPLACEMENT, seed);
                        if (byte < whole || words.x < rest) child[half] = uniform(words.y, words.z);
                    }
                }
                row[half][thread][p] = child[half];
                if (physical && here[half]) {
                    const int to = place[parameter];
                    physical[(size_t)(to < 0 ? -1 - to : to) * n_candidates + slot] =
                        to_physical(child[half], parameter, to < 0, range);
                }
            }
        }
        __syncthreads();
        for (u32 i = thread; i < 2 * PAIRS * CHUNK; i += PAIRS) {
            const u32 half = i / (PAIRS * CHUNK), own = i / CHUNK % PAIRS, p = i % CHUNK;
            const u32 slot = 1 + first_pair + own + (half ? n_pairs : 0);
            if (first + p < N_FREE && first_pair + own < n_pairs && slot < n_candidates)
                next[(size_t)slot * N_FREE + first + p] = row[half][own][p];
        }
        __syncthreads();
    }

    if (blockIdx.x == 0)
        for (u32 p = thread; p < N_FREE; p += PAIRS) {
            next[p] = elite[1 + p];
            if (physical) {
                const int to = place[p];
                physical[(size_t)(to < 0 ? -1 - to : to) * n_candidates] =
                    to_physical(elite[1 + p], p, to < 0, range);
            }
        }
}

// The lower cost of the lower index, for a tree over shared memory.
__device__ __forceinline__ void lowest(double* cost, u32* index, u32 thread)
{
    for (u32 half = THREADS / 2; half > 0; half >>= 1) {
        __syncthreads();
        if (thread < half) {
            const double other = cost[thread + half];
            const u32 at = index[thread + half];
            if (other < cost[thread] || (other == cost[thread] && at < index[thread])) {
                cost[thread] = other;
                index[thread] = at;
            }
        }
    }
    __syncthreads();
}

__device__ __forceinline__ double total(double own, double* part, u32 thread)
{
    part[thread] = own;
    for (u32 half = THREADS / 2; half > 0; half >>= 1) {
        __syncthreads();
        if (thread < half) part[thread] += part[thread + half];
    }
    __syncthreads();
    const double sum = part[0];
    __syncthreads();
    return sum;
}

// The lowest cost of the threads of a block, its index, and their failures, for each thread.
__device__ __forceinline__ void put_together(double& least, u32& at, double* failed, double* part,
                                             u32* index, u32 thread)
{
    part[thread] = least;
    index[thread] = at;
    lowest(part, index, thread);
    least = part[0];
    at = index[0];
    __syncthreads();
    for (int k = 1; k < N_STATUS; k++) failed[k] = total(failed[k], part, thread);
}

// partial: (gridDim.x, 2 + N_STATUS): lowest cost, its index, failed by status;
// `done` counts blocks and is 0 again at the end. elite as above; record: see genetic_cuda.py.
extern "C" __global__ void __launch_bounds__(THREADS) learn(
    const double* __restrict__ cost, const signed char* __restrict__ status, u32 n_scored,
    const double* __restrict__ population, const double* __restrict__ physical,
    u32 n_parameters, double* partial, u32* done, double* elite, double* record)
{
    __shared__ double part[MEDIAN_SAMPLE];
    __shared__ u32 index[THREADS];
    __shared__ bool last;
    enum { WIDTH = 2 + N_STATUS };

    const u32 thread = threadIdx.x;
    double least = INFINITE, failed[N_STATUS] = {};
    u32 at = 0xffffffffu;
    for (size_t i = (size_t)blockIdx.x * THREADS + thread; i < n_scored;
         i += (size_t)gridDim.x * THREADS) {
        const double own = finite_or_infinite(cost[i]);
        if (own < least) {
            least = own;
            at = (u32)i;
        }
        if (!(own < INFINITE)) {
            const int code = status ? min(max((int)status[i], 1), N_STATUS - 1) : 1;
            #pragma unroll
            for (int k = 1; k < N_STATUS; k++) failed[k] += code == k;
        }
    }
    put_together(least, at, failed, part, index, thread);
    if (thread == 0) {
        double* own_partial = partial + (size_t)blockIdx.x * WIDTH;
        own_partial[0] = least;
        own_partial[1] = (double)at;
        for (int k = 0; k < N_STATUS; k++) own_partial[2 + k] = failed[k];
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;

    // The last block to finish puts all together; gridDim.x may exceed THREADS.
    least = INFINITE;
    at = 0xffffffffu;
    for (int k = 0; k < N_STATUS; k++) failed[k] = 0.0;
    for (u32 block = thread; block < gridDim.x; block += THREADS) {
        const double* other = partial + (size_t)block * WIDTH;
        const double lower = __ldcg(other);
        const u32 its = (u32)__ldcg(other + 1);
        if (lower < least || (lower == least && its < at)) {
            least = lower;
            at = its;
        }
        for (int k = 1; k < N_STATUS; k++) failed[k] += __ldcg(other + 2 + k);
    }
    put_together(least, at, failed, part, index, thread);

    const bool better = least < elite[0];  // the old elite wins a tie
    __syncthreads();
    if (better) {
        for (u32 p = thread; p < N_FREE; p += THREADS)
            elite[1 + p] = population[(size_t)at * N_FREE + p];
        if (physical)
            for (u32 q = thread; q < n_parameters; q += THREADS)
                record[VALUES + q] = physical[(size_t)q * n_scored + at];
    }
    if (thread == 0) {
        if (better) elite[0] = least;
        *done = 0;
    }

    // The median of a sample, by a bitonic sort; costs that are not finite go to the end.
    const u32 n_sample = n_scored < MEDIAN_SAMPLE ? n_scored : MEDIAN_SAMPLE;
    double counted = 0.0;
    __syncthreads();
    for (u32 i = thread; i < n_sample; i += THREADS)
        counted += finite_or_infinite(cost[(u64)i * n_scored / n_sample]) < INFINITE;
    const u32 n_counted = (u32)total(counted, part, thread);
    for (u32 i = thread; i < MEDIAN_SAMPLE; i += THREADS)
        part[i] = i < n_sample ? finite_or_infinite(cost[(u64)i * n_scored / n_sample]) : INFINITE;
    for (u32 size = 2; size <= MEDIAN_SAMPLE; size *= 2)
        for (u32 step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (u32 i = thread; i < MEDIAN_SAMPLE / 2; i += THREADS) {
                const u32 a = i / step * 2 * step + i % step, b = a + step;
                const double x = part[a], y = part[b];
                if ((x > y) == ((a & size) == 0)) {
                    part[a] = y;
                    part[b] = x;
                }
            }
        }
    __syncthreads();
    if (thread == 0) {
        record[0] = better ? least : elite[0];
        record[1] = n_counted ? (part[(n_counted - 1) / 2] + part[n_counted / 2]) / 2.0
                              : __longlong_as_double(0x7ff8000000000000ll);
        for (int k = 0; k < N_STATUS; k++) record[2 + k] = failed[k];
    }
}
"""


def generation_text(n_free: int) -> str:
    """Return the CUDA text of both kernels for so many free parameters."""
    n_chunks = -(-n_free // _MOST_IN_CHUNK)
    sizes = {
        "N_FREE": n_free,
        "CHUNK": -(-n_free // n_chunks),
        "PAIRS": _PAIRS,
        "THREADS": _THREADS,
        "MEDIAN_SAMPLE": MEDIAN_SAMPLE,
        "N_STATUS": N_STATUSES,
        "VALUES": _VALUES,
    }
    return "".join(f"#define {name} {size}\n" for name, size in sizes.items()) + CUDA_TEXT + TEXT


class DeviceGenetic(ResidentOptimizer, Genetic):
    """`Genetic` with everything on the current GPU; arguments and results are the same, bit for
    bit.

    Besides ask and tell it has `breed` and `learn`, for a search that does not wait for the GPU.
    The arrays of a generation are written over two generations later.

    Arguments, besides those of `Genetic`:
        xp: cupy.
        compile_cuda: turns text into an object with `kernel(name)`; tests give one that runs on the
            host.

    Raises: InputError also without a GPU.
    """

    def __init__(
        self,
        n_parameters: int,
        population: int,
        seed: int,
        crossover_rate: float | None = None,
        mutation_rate: float = 0.01,
        xp: Any = None,
        initial: Any = None,
        compile_cuda: Callable[[str], Any] = gpu.compile_cuda,
    ) -> None:
        xp = gpu.cupy() if xp is None else xp
        super().__init__(
            n_parameters, population, seed, crossover_rate, mutation_rate, xp, initial=initial
        )
        module = compile_cuda(generation_text(n_parameters))
        self._next_generation = module.kernel("next_generation")
        self._learn = module.kernel("learn")
        self._rows: Any = xp.zeros((1, n_parameters))  # the population scored last, by candidate
        self._spare: Any = None
        self._cost = xp.zeros(1)
        self._next: Any = None
        self._best: Any = xp.zeros(1 + n_parameters)
        self._best[0] = np.inf
        self._partial = xp.zeros((_MOST_BLOCKS, 2 + N_STATUSES))
        self._done = xp.zeros(1, dtype=np.uint32)
        initial = self._initial
        self._start = None if initial is None else xp.asarray(np.ascontiguousarray(initial))
        self._space: SearchSpace | None = None
        self._physical: Any = None
        self._use(None)

    @property
    def best_cost(self) -> float:
        """The lowest finite cost so far, inf before there is one; waits for the GPU."""
        return float(self._best[0])

    @property
    def best(self) -> Any:
        """The candidate (n_parameters,) of `best_cost`, or None; waits for the GPU."""
        return self._best[1:].copy() if self.best_cost < np.inf else None

    def ask(self) -> Any:
        """Return the next candidates (n_parameters, n_candidates), a view of a GPU array."""
        if self._next is None:
            self._make_next()
        return self._next.T

    def tell(self, candidates: Any, cost: Any) -> None:
        """Learn the costs of candidates, without waiting for the GPU; see `Genetic.tell`."""
        xp = self.xp
        cost = xp.asarray(cost)
        check_costs(candidates, cost, self.n_parameters)
        rows = self._next
        if rows is None or candidates.base is not rows:
            rows = xp.array(xp.asarray(candidates).T, dtype=np.float64, order="C")
        self._take_in(rows, cost, None, None)

    def breed(self, space: SearchSpace) -> Any:
        """Return the candidates of `ask` as physical parameters (n_all_parameters, n_candidates).

        It is the same array every time, written over by the next call after `learn`.
        """
        if self._space is not space:
            self._use(space)
            self._next = None
        if self._next is None:
            self._make_next()
        return self._physical

    def learn(self, score: Any) -> gpu.Readback:
        """Learn the score of the candidates of `breed`, without waiting for the GPU.

        Arguments:
            score: cost and status (n_candidates,), arrays on the GPU.

        Returns: the record of this generation, on its way to the host; see `generation_of`.
        """
        status = self.xp.ascontiguousarray(score.status, dtype=np.int8)
        self._take_in(self._next, self.xp.asarray(score.cost), status, self._physical)
        return gpu.Readback(self._record)

    def generation_of(self, record: gpu.Readback, n_candidates: int) -> Generation:
        """Wait until a record of `learn` has arrived, and return it as a summary.

        Its median is that of at most MEDIAN_SAMPLE evenly spaced candidates; its best cost and
        values are those of the search so far.
        """
        numbers = record.read()
        best, median = numbers[:_FAILED].tolist()
        failures = numbers[_FAILED:_VALUES].astype(np.int64)
        return Generation(n_candidates, median, best, numbers[_VALUES:], failures)

    def _use(self, space: SearchSpace | None) -> None:
        """Prepare physical parameters of a space, fixed ones filled in, and put its bounds on the
        GPU.
        """
        xp, n = self.xp, self.n_parameters
        self._space, self._physical = space, None
        bounds, place, n_all = np.zeros((4, n)), np.zeros(n, dtype=np.int32), 0
        if space is not None:
            n_all = space.n_parameters
            self._physical = xp.empty((n_all, self.population_size))
            for row, parameter in enumerate(space.parameters):
                if parameter.fixed:
                    self._physical[row] = parameter.value
            free = [space.parameters[row] for row in space.free]
            bounds[:2] = [[p.lower for p in free], [p.upper for p in free]]
            in_logarithms = np.array([p.scale == "log" for p in free])
            bounds[2:, in_logarithms] = np.log(bounds[:2, in_logarithms])
            rows = np.array(space.free, dtype=np.int32)
            place = np.where(in_logarithms, -1 - rows, rows).astype(np.int32)
        self._range, self._place = xp.asarray(bounds), xp.asarray(place)
        self._record = xp.full(_VALUES + n_all, np.nan)
        if space is not None and self.generation and (best := self.best) is not None:
            self._record[_VALUES:] = xp.asarray(space.to_physical(to_host(best)[:, None])[:, 0])

    def _make_next(self) -> None:
        n = self.population_size
        if self._spare is None or len(self._spare) != n:
            self._spare = self.xp.empty((n, self.n_parameters))
        start = self._range if self._start is None else self._start
        n_start = 0 if self._start is None else self._start.shape[1]
        with gpu.gpu_errors():
            self._next_generation(
                (-(-n // (2 * _PAIRS)),),
                (_PAIRS,),
                (
                    self._rows,
                    self._cost,
                    np.uint32(len(self._rows)),
                    self._best,
                    start,
                    np.uint32(n_start),
                    self._range,
                    self._place,
                    np.uint64(self.seed),
                    np.uint32(self.generation & 0xFFFFFFFF),
                    np.uint64(round(self.crossover_rate * 2**32)),
                    np.uint64(round(self.mutation_rate * 2**40)),
                    np.uint32(n),
                    self._spare,
                    _pointer(self._physical),
                ),
            )
        self._next, self._spare = self._spare, None

    def _take_in(self, rows: Any, cost: Any, status: Any, physical: Any) -> None:
        cost = self.xp.ascontiguousarray(cost, dtype=np.float64)
        blocks = min(_MOST_BLOCKS, -(-len(rows) // (4 * _THREADS)))
        with gpu.gpu_errors():
            self._learn(
                (blocks,),
                (_THREADS,),
                (
                    cost,
                    _pointer(status),
                    np.uint32(len(rows)),
                    rows,
                    _pointer(physical),
                    np.uint32(0 if physical is None else len(physical)),
                    self._partial,
                    self._done,
                    self._best,
                    self._record,
                ),
            )
        self._spare, self._rows, self._cost, self._next = self._rows, rows, cost, None
        self.generation += 1


def _pointer(array: Any) -> Any:
    return gpu.NULL if array is None else array
