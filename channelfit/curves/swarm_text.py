"""One particle swarm for each data set on a GPU: a block a swarm, a thread a particle.

The rules and the draws are those of `swarm_lanes`.
"""

from __future__ import annotations

from channelfit.curves import swarm_lanes
from channelfit.curves.cuda_text import COMMON
from channelfit.curves.swarm_lanes import LAST
from channelfit.scoring.machine.cuda_printer import Card, cuda_function
from channelfit.scoring.machine.kernel_text import source_of
from channelfit.search.philox import CUDA_TEXT


def swarm_text(particles: int) -> str:
    """Return the text of the kernels for swarms of so many particles, 1024 at most."""
    return f"#define PARTICLES {particles}\n" + _SWARM


_SWARM = (
    CUDA_TEXT
    + COMMON
    + f"#define LAST {LAST}\n"
    + "\n".join(
        cuda_function(source_of(swarm_lanes.__name__), name, Card())
        for name in ("lowest", "highest", "velocity")
    )
    + """
// A block a swarm, a thread a particle. z (N_POINTS, n_sets); first: the number of data set 0 among
// all, for draws; spread (n_sets, N); the rest as of fitSets. Dynamic shared memory: the data.
extern "C" __global__ void __launch_bounds__(PARTICLES) flySwarms(
    const real* __restrict__ z, int n_sets, u64 first, const double* __restrict__ inputs,
    const double* __restrict__ bounds, const int* __restrict__ below, int iterations, u64 seed,
    real* values, real* errors, real* covariances, real* numbers, int* flags, real* spread)
{
    extern __shared__ double room[];
    __shared__ real cost[PARTICLES], best[N], bestCost, last[LAST][N], low[N], high[N];
    __shared__ int index[PARTICLES], kept, winner;
    __shared__ Facts facts;
    real* seen = (real*)room;
    const int k = threadIdx.x, n = PARTICLES;
    const size_t s = blockIdx.x;
    for (int i = k; i < N_POINTS; i += n) seen[i] = z[(size_t)i*n_sets + s];
    __syncthreads();
    if (k == 0) {
        facts = look(seen, nullptr, 1);
        real least = real(INFINITE), greatest = real(-INFINITE);
        for (int i = 0; i < N_POINTS; i++) if (fabs(seen[i]) < INFINITE) {
            least = fmin(least, seen[i]);
            greatest = fmax(greatest, seen[i]);
        }
        for (int j = 0; j < N; j++) {
            best[j] = low[j] = lowest(real(bounds[j]), least, greatest);
            high[j] = highest(real(bounds[N + j]), least, greatest);
        }
        bestCost = real(INFINITE);
        kept = 0;
    }
    __syncthreads();
    real here[N], fast[N], own[N], ownCost = real(INFINITE);
    for (int t = 0; t <= iterations; t++) {
        EACH(j, N) {
            const uint4 word = philox((u32)k, (u32)j, (u32)t, (u32)(first + s), seed);
            const real one = real(uniform(word.x, word.y)), two = real(uniform(word.z, word.w));
            const real width = high[j] - low[j];
            if (t == 0) {
                here[j] = own[j] = low[j] + one*width;
                fast[j] = 0;
            } else {
                fast[j] = velocity(here[j], fast[j], own[j], best[j], one, two, width);
                here[j] = fmin(fmax(here[j] + fast[j], low[j]), high[j]);
            }
        }
        real found;
        value(seen, (const real*)nullptr, 1, inputs, here, &found, false);
        if (t == 0 || found < ownCost) {
            ownCost = fabs(found) < INFINITE ? found : real(INFINITE);
            EACH(j, N) own[j] = here[j];
        }
        // the least cost, of equal ones that of the first particle
        cost[k] = ownCost;
        index[k] = k;
        for (int half = 512; half > 0; half /= 2) {
            __syncthreads();
            if (k < half && k + half < n && cost[k + half] <= cost[k]
                && (cost[k + half] < cost[k] || index[k + half] < index[k])) {
                cost[k] = cost[k + half];
                index[k] = index[k + half];
            }
        }
        __syncthreads();
        if (k == 0) winner = cost[0] < bestCost ? index[0] : -1;
        __syncthreads();
        if (k == winner) {
            EACH(j, N) best[j] = last[kept%LAST][j] = own[j];
            bestCost = ownCost;
            kept++;
        }
        __syncthreads();
    }
    if (k > 0) return;
    real p[N], sums[N_SUMS];
    EACH(j, N) p[j] = best[j];
    evaluate(seen, (const real*)nullptr, 1, inputs, p, sums, false);
    real lower[N], upper[N];
    EACH(j, N) {
        lower[j] = real(bounds[j]);
        upper[j] = real(bounds[N + j]);
    }
    conclude((int)s, p, sums, facts, fabs(sums[0]) < INFINITE ? 0 : 2, iterations, lower, upper,
             bounds + 2*N, below, values, errors, covariances, numbers, flags);
    const int count = min(kept, LAST);
    for (int j = 0; j < N; j++) {
        double mean = 0, squares = 0;
        for (int i = 0; i < count; i++) mean += last[i][j]/(double)count;
        for (int i = 0; i < count; i++) squares += (last[i][j] - mean)*(last[i][j] - mean)/count;
        const bool known = values[s*N + j] == values[s*N + j];
        spread[s*N + j] = real(known ? sqrt(squares) : NOT_A_NUMBER);
    }
}
"""
)
