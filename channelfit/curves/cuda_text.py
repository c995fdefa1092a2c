"""CUDA text that the kernels of all curves share: the start, the descent and the results.

The rules are those of `lanes`, one data set a thread; its step, linear algebra and judgement of a
result are printed from that text. Data lie transposed, (n_points, n_sets), so that neighboring
threads read neighboring numbers. The Gauss-Newton Hessian is inverted in float64 in any case.
"""

from __future__ import annotations

from channelfit.curves import flags
from channelfit.curves.lane_math import LEAST_COUNT
from channelfit.curves.lanes import MORE_STARTS, MOST_NEAR, NEAR
from channelfit.scoring.machine.cuda_printer import CUDA_HEAD, Card, cuda_function
from channelfit.scoring.machine.kernel_text import source_of

#: Rows of the scan that are multiplied with the data at once.
ROWS = 16
_CONSTANTS = {
    **{name: bit for name, bit in vars(flags).items() if name.isupper()},
    "ROWS": ROWS,
    "MORE_STARTS": MORE_STARTS,
    "MOST_NEAR": MOST_NEAR,
    "NEAR": NEAR,
    "LEAST_COUNT": LEAST_COUNT,
}
#: What the texts of `lanes` call otherwise than CUDA's.
_SPELLED = {name: name for name in _CONSTANTS} | {
    "p.shape[0]": "N",
    "sums.shape[0]": "N_SUMS",
    "covariances.shape[1] > 0": "covariances != nullptr",
    "s < n_sets": "true",
    "n_sets": "",
    "kind": "",
    "kind == COUNTS": "COUNTS",
    "kind == ROBUST": "ROBUST",
    "all_linear": "(N_LINEAR == N)",
    "facts[GREATEST, lane] - facts[LEAST, lane]": "facts.extent",
    "ROUNDING": "ROUNDING",
    "_SINGULAR": "T(SINGLE ? 1e-6 : 1e-13)",
}
_FACTOR = Card("T", {"m": "T[]", "fault": "T&"}, _SPELLED)
_SOLVE = Card("T", {"m": "T[]", "d": "T[]"}, _SPELLED)
_STEP = Card(
    "real",
    dict.fromkeys(("p", "sums", "lower", "upper", "m", "d", "held", "trial"), "real[]")
    | {"damping": "real&", "gain": "real&"},
    _SPELLED,
)
_JUDGE = Card(
    "double",
    dict.fromkeys(("sums", "p", "lower", "upper"), "real[]")
    | dict.fromkeys(("width", "m", "d", "held"), "double[]")
    | dict.fromkeys(("found", "ended", "steps"), "int&")
    | {"facts": "Facts", "scale": "double&", "most": "double&", "below": "int[]", "flags": "int[]"}
    | {"values": "real[][N]", "errors": "real[][N]", "covariances": "real[][N*N]"}
    | {"numbers": "real[][4]"},
    _SPELLED,
    records=("facts",),
    rolled=("c",),
)


def _of_lanes(**cards: Card) -> str:
    """Return functions of `lanes` as CUDA C++."""
    source = source_of("channelfit.curves.lanes")
    return "\n".join(cuda_function(source, name, card) for name, card in cards.items())


#: A damped step.
STEP = _of_lanes(step=_STEP)

SHARED = (
    "".join(f"#define {name} {value!r}\n" for name, value in _CONSTANTS.items())
    + CUDA_HEAD
    + """#define SINGLE (sizeof(real) == 4)
#define EACH(j, n) _Pragma("unroll") for (int j = 0; j < (n); j++)
#define ROUNDING (SINGLE ? 1e-9 : 1e-16)

template<class T> __device__ __forceinline__ T exprel(T x) { return x == T(0) ? T(1) : expm1(x)/x; }

template<class T> __device__ __forceinline__ T exprel_slope(T x)
{
    if (fabs(x) >= T(1)) return (T(1) - T(1)/x)*(exp(x)/x) + T(1)/x/x;
    T sum = 0, term = 1;
    for (int k = 0; k < 20; k++) {
        sum += term/T(k + 2);
        term *= x/T(k + 1);
    }
    return sum;
}

// See lane_math.poissonCost and those behind it.
#define WALL (1.0/(LEAST_COUNT*LEAST_COUNT))
__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double reciprocal(double x) { return 1.0/x; }

// The square of a residual, as counts begin with; see lanes.fit.
template<class T> __device__ __forceinline__ T squares(T z, T f, T& pull, T& weight)
{
    weight = T(1);
    pull = z - f;
    return pull*pull;
}

template<class T> __device__ __forceinline__ T poisson(T z, T f, T& pull, T& weight)
{
    const T safe = fmax(f, T(LEAST_COUNT)), share = reciprocal(safe), ratio = z*share;
    const T seen = z > T(0) ? z*log(ratio) : T(0);
    T cost = safe - z + seen;
    pull = ratio - T(1);
    weight = share;
    if (f < T(LEAST_COUNT)) {
        const T q = f - safe, below = fmin(f, T(0));
        cost += (T(1) - ratio)*q + T(0.5)*ratio*share*q*q + T(0.5*WALL)*below*below;
        pull -= ratio*share*q + T(WALL)*below;
        weight += ratio*share + (f < T(0) ? T(WALL) : T(0));
    }
    return T(2)*cost;
}

// Cost, pull and weight of a count: of least squares near the start, of the likelihood then.
__device__ __forceinline__ void counted(
    real z, real f, bool near, real& cost, real& pull, real& weight)
{
    cost = near ? squares(z, f, pull, weight) : poisson(z, f, pull, weight);
}
"""
)

#: Text of the linear algebra, the judgement of a result, and of data in their own type.
COMMON = (
    """
// (n_sets, N_POINTS) as (N_POINTS, n_sets).
template<class From> __device__ __forceinline__ void transpose(
    const From* __restrict__ raw, int n_sets, real* __restrict__ z)
{
    __shared__ real tile[32][33];
    const int point = blockIdx.x*32, set = blockIdx.y*32;
    for (int k = threadIdx.y; k < 32; k += 8)
        if (set + k < n_sets && point + threadIdx.x < N_POINTS)
            tile[k][threadIdx.x] = real(raw[(size_t)(set + k)*N_POINTS + point + threadIdx.x]);
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += 8)
        if (point + k < N_POINTS && set + threadIdx.x < n_sets)
            z[(size_t)(point + k)*n_sets + set + threadIdx.x] = tile[threadIdx.x][k];
}

extern "C" __global__ void __launch_bounds__(256) spread(
    const Raw* __restrict__ raw, int n_sets, real* __restrict__ z)
{
    transpose(raw, n_sets, z);
}

// What a data set says by itself.
struct Facts {
    double count, squared, total, extent, moved, around, weight;
    real start, shift, shrink, usual;
    int flags;
};

__device__ __forceinline__ Facts look(const real* z, const real* w, size_t stride)
{
    Facts facts = {0, 0, 0, 0, 0, 0, 0, real(0), real(0), real(1), real(1), 0};
    double logs = 0;
    real low = real(INFINITE), high = real(-INFINITE);
    for (int i = 0; i < N_POINTS; i++) {
        const real x = z[(size_t)i*stride];
        if (!(fabs(x) < INFINITE)) { facts.flags |= MISSING; continue; }
        if (facts.count == 0) facts.start = x;
        low = fmin(low, x);
        high = fmax(high, x);
        facts.count += 1;
        facts.total += x;
        const double own = WEIGHTED ? (double)w[(size_t)i*stride] : 1.0;
        if (WEIGHTED) { logs += log(own); facts.weight += own; }
        facts.squared += own*x*x;
        const double off = (double)x - facts.start;
        facts.moved += own*off;
        facts.around += own*off*off;
    }
    if (WEIGHTED) facts.usual = real(exp(-logs/fmax(facts.count, 1.0)));
    else facts.weight = facts.count;
    facts.extent = (double)high - low;
    if (CENTERED) facts.shift = facts.start;  // what the curve's linear part can follow
    const real most = fmax(high - facts.shift, facts.shift - low);
    if (!OFFSET && most > real(0) && most < INFINITE) facts.shrink = real(1)/most;
    if (low >= high && N_LINEAR < N) facts.flags |= CONSTANT;
    if (COUNTS && low < real(0)) facts.flags |= NEGATIVE;
    if (facts.count < N) facts.flags |= TOO_FEW;
    return facts;
}

"""
    + _of_lanes(factor=_FACTOR, solve=_SOLVE, judge=_JUDGE)
    + """
// Writes errors and flags at p, where the sums are these, of data set s. A function of its own, so
// that what it needs takes no registers from the descent.
__device__ __noinline__ void conclude(
    int s, const real* p, const real* sums, const Facts& facts, int ended, int steps,
    const real* lower, const real* upper, const double* width, const int* below,
    real* values, real* errors, real* covariances, real* numbers, int* flags)
{
    double m[N*N], d[N], held[N], scale, most;
    int found = facts.flags;
    judge(s, found, ended, steps, facts, sums, p, lower, upper, width, below, m, d, held, scale,
          most, values, errors, covariances, numbers, flags);
}
"""
)

#: Stands behind the others where points have weights of their own.
SPREAD_WEIGHTS = """
extern "C" __global__ void __launch_bounds__(256) spreadWeights(
    const real* __restrict__ raw, int n_sets, real* __restrict__ w)
{
    transpose(raw, n_sets, w);
}
"""

FIT = (
    COMMON
    + """
// The point behind `last`, as a scan takes it: see lanes.scan.
__device__ __forceinline__ float taken(
    const real* z, const real* w, size_t at, const Facts& facts, float last)
{
    const real seen = z[at];
    if (!(fabs(seen) < INFINITE)) return last;
    const float own = float((seen - facts.shift)*facts.shrink);
    const real share = WEIGHTED ? w[at]*facts.usual : real(1);
    return share >= real(1) ? own : last + float(share)*(own - last);
}

// The best point of the scan that is no neighbor of those chosen before; see lanes.scan. It is done
// in float32, since a start need not be exact; data are shrunk to 1, so that no square overflows.
__device__ __forceinline__ int scan(
    const real* z, const real* w, size_t stride, const Facts& facts, int every, int n_scanned,
    const float* __restrict__ rows, const float* __restrict__ norms,
    const int* __restrict__ places, int n_scan, const int* chosen, int n_chosen)
{
    float best = float(INFINITE), score = 0;
    int at = 0, c = 0, q = 0;
    for (int g = 0; g*ROWS < n_scan*N_ROWS; g++) {
        float dots[ROWS], last = float((facts.start - facts.shift)*facts.shrink);
        EACH(r, ROWS) dots[r] = 0;
        const float* row = rows + (size_t)g*n_scanned*ROWS;
        #pragma unroll 4
        for (int k = 0; k < n_scanned; k++) {
            last = taken(z, w, (size_t)(k*every)*stride, facts, last);
            EACH(r, ROWS) dots[r] += row[k*ROWS + r]*last;
        }
        EACH(r, ROWS) if (c < n_scan) {
            const float norm = norms[c*N_ROWS + q], d = dots[r] - norm;
            const float term = OFFSET && q == 0 ? norm - 2.0f*dots[r] : -d*d;
            score = q == 0 ? term : score + term;
            if (++q == N_ROWS) {
                bool near = false;
                for (int s = 0; s < n_chosen; s++) {
                    int far = 0;
                    EACH(k, N_NONLINEAR) {
                        const int own = places[c*N_NONLINEAR + k];
                        const int gap = own - places[chosen[s]*N_NONLINEAR + k];
                        far = max(far, gap < 0 ? -gap : gap);
                    }
                    near = near || far <= 1;
                }
                if (!near && score < best) { best = score; at = c; }
                q = 0;
                c++;
            }
        }
    }
    return at;
}

"""
    + STEP
    + """
// One data set a thread. z (N_POINTS, n_sets), w the same, or null where all are 1; rows .. places:
// of the scan, see starts.Scan; bounds: lower, upper, width, N each; values, errors (n_sets, N),
// covariances (n_sets, N, N) or null, numbers (n_sets, 4), flags (n_sets).
extern "C" __global__ void __launch_bounds__(128, MIN_BLOCKS) fitSets(
    const real* __restrict__ z, const real* __restrict__ w, int n_sets,
    const double* __restrict__ inputs, int every, int n_scanned, const float* __restrict__ rows,
    const float* __restrict__ norms,
    const real* __restrict__ ones, const float* __restrict__ back, const real* __restrict__ starts,
    const int* __restrict__ places, int n_scan, const double* __restrict__ bounds,
    const int* __restrict__ below, int most, double tolerance, real* values, real* errors,
    real* covariances, real* numbers, int* flags)
{
    const int s = blockIdx.x*128 + threadIdx.x;
    if (s >= n_sets) return;
    z += s;
    if (WEIGHTED) w += s;
    const size_t stride = n_sets;
    const Facts facts = look(z, w, stride);
    const real noise = real(COUNTS ? facts.count : ROUNDING*facts.squared);
    const real small = real(tolerance);
    real lower[N], upper[N], kept[N], kept_sums[N_SUMS];
    EACH(j, N) {
        lower[j] = real(bounds[j]);
        upper[j] = real(bounds[N + j]);
    }
    int chosen[N_STARTS + MORE_STARTS], steps = 0, ended = 2;
    for (int start = 0; start < N_STARTS + MORE_STARTS; start++) {
        if (start >= N_STARTS) {
            bool again = ended != 0;
            EACH(j, N) again = again || kept[j] <= lower[j] || kept[j] >= upper[j];
            if (!again) break;
        }
        const int c = scan(z, w, stride, facts, every, n_scanned, rows, norms, places, n_scan,
                           chosen, start);
        chosen[start] = c;
        real p[N], trial[N], sums[N_SUMS], trial_sums[N_SUMS], m[N*N], d[N], held[N];
        EACH(j, N) trial[j] = starts[c*N + j];
        EACH(q, N_LINEAR) {
            const int row = c*N_ROWS + q + OFFSET;
            float dot = -norms[row], last = float((facts.start - facts.shift)*facts.shrink);
            for (int k = 0; k < n_scanned; k++) {
                last = taken(z, w, (size_t)(k*every)*stride, facts, last);
                dot += rows[((size_t)(row/ROWS)*n_scanned + k)*ROWS + row%ROWS]*last;
            }
            const real whole = real(dot)/facts.shrink + facts.shift*ones[c*N_LINEAR + q];
            EACH(j, N) EACH(i, N_LINEAR)
                if (LINEAR[i] == j) trial[j] += real(back[(c*N_LINEAR + i)*N_LINEAR + q])*whole;
        }
        EACH(j, N) trial[j] = fmin(fmax(trial[j], lower[j]), upper[j]);

        int running = 1;
        real gain = 0;
        for (int phase = COUNTS || ROBUST ? 0 : 1; phase < 2; phase++) {
            const int last = phase ? most : MOST_NEAR;
            const real enough = phase ? small : real(NEAR);
            real damping = real(1e-3), growth = 4;
            running = 1;
            for (int k = 0; k <= last; k++) {
                evaluate(z, w, stride, inputs, trial, trial_sums, phase == 0);
                if (k == 0 && !(fabs(trial_sums[0]) < INFINITE)) { running = 2; break; }
                if (k == 0 || (gain > real(0) && trial_sums[0] < sums[0])) {
                    if (k > 0) {
                        const real ratio = (sums[0] - trial_sums[0])/gain;
                        const real bend = real(2)*fmin(ratio, real(1)) - real(1);
                        const real less = fmax(real(0.1), real(1) - bend*bend*bend);
                        damping = fmax(less*damping, real(1e-12));
                        growth = 4;
                    }
                    EACH(j, N) p[j] = trial[j];
                    EACH(j, N_SUMS) sums[j] = trial_sums[j];
                } else {
                    damping *= growth;
                    growth *= real(2);
                }
                if (k == last) break;
                step(p, sums, damping, lower, upper, m, d, held, trial, gain);
                if (gain >= real(0) && gain <= enough*(sums[0] + noise)) { running = 0; break; }
                if (damping > real(1e12)) break;
                steps++;
            }
            if (running == 2) {
                EACH(j, N) p[j] = trial[j];
                EACH(j, N_SUMS) sums[j] = trial_sums[j];
            }
            EACH(j, N) trial[j] = p[j];
        }
        const real near = real(SINGLE ? 1e2 : 1e4)*small*(sums[0] + noise);
        if (running == 1 && gain >= real(0) && gain <= near) running = 0;
        if (start == 0 || (running < 2 && (ended == 2 || sums[0] < kept_sums[0]))) {
            ended = running;
            EACH(j, N) kept[j] = p[j];
            EACH(j, N_SUMS) kept_sums[j] = sums[j];
        }
    }
    conclude(s, kept, kept_sums, facts, ended, steps, lower, upper, bounds + 2*N, below, values,
             errors, covariances, numbers, flags);
}
"""
)
