"""What the kernels of all curves share on a GPU: the start, the descent and the curvature.

The same rules as in `lanes`, one data set a thread. Data lie transposed, (n_points, n_sets), so
that neighboring threads read neighboring numbers. The curvature is inverted in float64 in any case.
"""

from __future__ import annotations

from channelfit.curves.flags import (
    AT_BOUND,
    CONSTANT,
    DISORDERED,
    MISSING,
    NEGATIVE,
    NOT_CONVERGED,
    NOT_FINITE,
    TOO_FEW,
    UNDETERMINED,
    UNSETTLED,
)
from channelfit.curves.lane_math import LEAST_COUNT
from channelfit.curves.lanes import MORE_STARTS, MOST_NEAR, NEAR

#: Rows of the scan that are multiplied with the data at once.
ROWS = 16
_CONSTANTS = {
    "AT_BOUND": AT_BOUND,
    "UNDETERMINED": UNDETERMINED,
    "NOT_CONVERGED": NOT_CONVERGED,
    "TOO_FEW": TOO_FEW,
    "CONSTANT": CONSTANT,
    "NOT_FINITE": NOT_FINITE,
    "NEGATIVE": NEGATIVE,
    "MISSING": MISSING,
    "DISORDERED": DISORDERED,
    "UNSETTLED": UNSETTLED,
    "ROWS": ROWS,
    "MORE_STARTS": MORE_STARTS,
    "MOST_NEAR": MOST_NEAR,
    "NEAR": NEAR,
    "LEAST_COUNT": LEAST_COUNT,
}

SHARED = (
    "".join(f"#define {name} {value!r}\n" for name, value in _CONSTANTS.items())
    + """
#define INFINITE __longlong_as_double(0x7ff0000000000000ll)
#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000ll)
#define EACH(j, n) _Pragma("unroll") for (int j = 0; j < (n); j++)

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
"""
)

#: Text of the linear algebra, the judgement of a result, and of data in their own type.
COMMON = """
#define AT(j, i) ((j)*((j) + 1)/2 + (i))
#define SINGLE (sizeof(real) == 4)

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

// m = L D L', over itself; m: the lower triangle. Returns whether it is not singular.
template<class T> __device__ __forceinline__ bool factor(T* m, T least)
{
    bool good = true;
    EACH(j, N) {
        EACH(i, j) {
            T x = m[AT(j, i)];
            EACH(k, i) x -= m[AT(j, k)]*m[AT(i, k)]*m[AT(k, k)];
            m[AT(j, i)] = x/m[AT(i, i)];
        }
        T left = m[AT(j, j)];
        const T whole = left;
        EACH(k, j) left -= m[AT(j, k)]*m[AT(j, k)]*m[AT(k, k)];
        if (!(left > least*whole)) { good = false; left = T(1); }
        m[AT(j, j)] = left;
    }
    return good;
}

// L D L' x = d, over d.
template<class T> __device__ __forceinline__ void solve(const T* m, T* d)
{
    EACH(j, N) EACH(k, j) d[j] -= m[AT(j, k)]*d[k];
    EACH(j, N) d[j] /= m[AT(j, j)];
    EACH(back, N) {
        const int j = N - 1 - back;
        EACH(k, N) if (k > j) d[j] -= m[AT(k, j)]*d[k];
    }
}

// What a data set says by itself.
struct Facts {
    double count, squares, total, moved, around, extent, whole;
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
        if (WEIGHTED) { logs += log(own); facts.whole += own; }
        facts.squares += own*x*x;
        const double off = (double)x - facts.start;
        facts.moved += own*off;
        facts.around += own*off*off;
    }
    if (WEIGHTED) facts.usual = real(exp(-logs/fmax(facts.count, 1.0)));
    else facts.whole = facts.count;
    facts.extent = (double)high - low;
    if (CENTERED) facts.shift = facts.start;  // what the curve's linear part can follow
    const real most = fmax(high - facts.shift, facts.shift - low);
    if (!OFFSET && most > real(0) && most < INFINITE) facts.shrink = real(1)/most;
    if (low >= high && N_LINEAR < N) facts.flags |= CONSTANT;
    if (COUNTS && low < real(0)) facts.flags |= NEGATIVE;
    if (facts.count < N) facts.flags |= TOO_FEW;
    return facts;
}

// Errors and flags at p, where the sums are these; what is written is of data set s.
__device__ __forceinline__ void judge(
    const real* p, const real* found, const Facts& facts, int flags, int steps,
    const double* lower, const double* upper, const double* width, const int* below, size_t s,
    real* values, real* errors, real* covariances, real* numbers, int* told)
{
    double q[N], m[N*(N + 1)/2];
    bool held[N];
    int n_free = N;
    EACH(j, N) {
        held[j] = p[j] <= real(lower[j]) || p[j] >= real(upper[j]);
        q[j] = fmin(fmax((double)p[j], lower[j]), upper[j]);
        n_free -= held[j];
    }
    const double cost = found[0], count = fmax(facts.count, 1.0);
    EACH(j, N) EACH(i, j + 1) {
        const bool open = !held[j] && !held[i];
        m[AT(j, i)] = open ? (double)found[1 + N + AT(j, i)] : i == j ? 1.0 : 0.0;
    }
    if (n_free < N) flags |= AT_BOUND;
    if (!factor(m, SINGLE ? 1e-6 : 1e-13)) flags |= UNDETERMINED;
    flags |= facts.flags;
    const bool none = flags & (TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE);
    const double spare = facts.count - n_free;
    double scale = COUNTS ? 1.0 : spare > 0 ? cost/spare : NOT_A_NUMBER;
    if (ROBUST && spare > 0) {
        const real* pulls = found + N_SUMS - N_ROBUST;
        const double share = (double)pulls[1]/count;
        const double varied = (double)pulls[2]/count - share*share;
        scale = (1.0 + n_free/count*varied/(share*share))*(double)pulls[0]/spare/share;
    }
    if (none || flags & UNDETERMINED) scale = NOT_A_NUMBER;
    // See lanes.judge.
    const double most = facts.whole*facts.extent*facts.extent/(COUNTS ? facts.total/count : 1.0);
    double distance = 0, d[N];
    EACH(j, N) d[j] = held[j] ? 0.0 : (double)found[1 + j];
    solve(m, d);
    EACH(j, N) distance += held[j] ? 0.0 : d[j]*(double)found[1 + j];
    for (int c = 0; c < N; c++) {
        EACH(j, N) d[j] = j == c ? 1.0 : 0.0;
        solve(m, d);
        EACH(j, N) {
            const double x = held[j] || (j == c && held[c]) ? NOT_A_NUMBER : scale*d[j];
            if (covariances != nullptr) {
                bool either = held[j];
                EACH(i, N) if (i == c) either = either || held[i];
                covariances[(s*N + c)*N + j] = real(either ? NOT_A_NUMBER : x);
            }
            if (j == c) {
                const double error = sqrt(x);
                errors[s*N + j] = real(error);
                if (!none && error > width[j]) flags |= UNDETERMINED;
                const double moved = error*error*(double)found[1 + N + AT(j, j)];
                if (!none && N_LINEAR < N && width[j] == INFINITE && moved > most)
                    flags |= UNDETERMINED;
            }
        }
    }
    const double noise = n_free*scale + (SINGLE ? 1e-9 : 1e-16)*facts.squares;
    if (!none && distance > noise) flags |= UNSETTLED;
    EACH(j, N) {
        if (!none && below[j] >= 0) {
            double other = 0;
            EACH(i, N) if (i == below[j]) other = q[i];
            if (other >= q[j]) flags |= DISORDERED;
        }
        values[s*N + j] = real(none ? NOT_A_NUMBER : q[j]);
    }
    numbers[4*s] = real(none ? NOT_A_NUMBER : cost);
    numbers[4*s + 1] = real(facts.count);
    numbers[4*s + 2] = real(steps);
    const double off = facts.moved*facts.moved/(facts.whole > 0 ? facts.whole : 1.0);
    numbers[4*s + 3] = real(fmax(facts.around - off, 0.0));
    told[s] = flags;
}
"""

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

// A damped step; see lanes.step. Returns the gain that it promises, -1 where there is none.
__device__ __forceinline__ real step(
    const real* p, const real* sums, real damping, const real* lower, const real* upper,
    real* trial)
{
    real m[N*(N + 1)/2], d[N];
    bool held[N];
    EACH(j, N) {
        const real g = sums[1 + j];
        held[j] = (p[j] <= lower[j] && g < real(0)) || (p[j] >= upper[j] && g > real(0))
                  || !(sums[1 + N + AT(j, j)] > real(0));
        d[j] = held[j] ? real(0) : g;
    }
    EACH(j, N) EACH(i, j + 1) {
        const real x = sums[1 + N + AT(j, i)]*(i == j ? real(1) + damping : real(1));
        m[AT(j, i)] = held[j] || held[i] ? (i == j ? real(1) : real(0)) : x;
    }
    const bool good = factor(m, real(SINGLE ? 1e-6 : 1e-13));
    solve(m, d);
    real gain = 0;
    EACH(j, N) {
        trial[j] = fmin(fmax(p[j] + d[j], lower[j]), upper[j]);
        if (!held[j]) gain += sums[1 + j]*(trial[j] - p[j]);
    }
    return good && fabs(gain) < INFINITE ? gain : real(-1);
}

// One data set a thread. z (N_POINTS, n_sets), w the same, or null where all are 1; rows .. places:
// of the scan, see starts.Scan; bounds: lower, upper, width, N each; values, errors (n_sets, N),
// covariances (n_sets, N, N) or null, numbers (n_sets, 4), told (n_sets).
extern "C" __global__ void __launch_bounds__(128, MIN_BLOCKS) fitSets(
    const real* __restrict__ z, const real* __restrict__ w, int n_sets,
    const double* __restrict__ inputs, int every, int n_scanned, const float* __restrict__ rows,
    const float* __restrict__ norms,
    const real* __restrict__ ones, const float* __restrict__ back, const real* __restrict__ starts,
    const int* __restrict__ places, int n_scan, const double* __restrict__ bounds,
    const int* __restrict__ below, int most, double tolerance, real* values, real* errors,
    real* covariances, real* numbers, int* told)
{
    const int s = blockIdx.x*128 + threadIdx.x;
    if (s >= n_sets) return;
    z += s;
    if (WEIGHTED) w += s;
    const size_t stride = n_sets;
    const Facts facts = look(z, w, stride);
    const real noise = real(COUNTS ? facts.count : (SINGLE ? 1e-9 : 1e-16)*facts.squares);
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
        real p[N], trial[N], sums[N_SUMS], trial_sums[N_SUMS];
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
                gain = step(p, sums, damping, lower, upper, trial);
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
    const int flags = ended == 2 ? NOT_FINITE : ended == 1 ? NOT_CONVERGED : 0;
    judge(kept, kept_sums, facts, flags, steps, bounds, bounds + N, bounds + 2*N, below, s, values,
          errors, covariances, numbers, told);
}
"""
)
