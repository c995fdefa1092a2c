"""The steps of a thread through its candidate's visits, in CUDA C++: structures, loops and kernels.

A thread walks the visits of one job of `visit_order.Schedule`. All of a block read the same data at
the same time: sixteen bytes a load serve a warp. This text is the same for every model;
`cuda_source` generates the functions that it calls (`createTable`, `residual`, `begin`, `step` ..).
"""

from __future__ import annotations

from channelfit.problem.statuses import cuda_names

#: Names of the kernels.
SWEEP, ADD_JOBS, LISTED = "runSweep", "addJobs", "scoreListed"

#: The structures that a thread reads, and those for its results.
PROGRAM = f"""
{cuda_names()}

// --- the visits of a thread: see visit_order.Schedule --------------------------------------------

struct Visit {{
    Level v;             // not used where it varies, nor is
    double dt;           // ms between samples
    int first, last;     // runs
    int longest, kind;   // samples of the longest run; 0 held, 1 varying
}};

struct Run {{
    double weight, dt;   // of a sample; ms a sub-step (varying)
    int n, data;         // samples, and where their data (or traces) begin
    int source, target;  // state slots; target -1 where no run needs the end
    int n_sub, nodes;    // varying: sub-steps a sample; where its voltages begin
    int sampled, unused; // 0 where it is only walked through
}};

struct alignas(16) Samples {{ real datum[16/sizeof(real)]; }};
constexpr int LOADED = 16/sizeof(real);  // samples that one load brings

// The data, or the place of the currents; and the sums over them.
struct Tally {{
    const real *data;
    real *trace;
    long long stride;
    double cost;
    int status;
}};

__device__ __forceinline__ bool tracing(const Tally &tally) {{
    return TRACED == 2 ? tally.trace != nullptr : TRACED == 1;
}}

__device__ __forceinline__ void loadParameters(const double *parameters, const long long stride,
                                               double *p) {{
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameters[k*stride];
}}

__device__ __forceinline__ void check(const bool lost, int &status) {{
    if (lost && status == OK) status = OCCUPANCY_LOST;
}}"""

#: The scores of runs at a held voltage.
HELD = """
// --- runs at a held voltage ----------------------------------------------------------------------

// Sum of squares of the next STRIDE samples.
__device__ __forceinline__ real squares(const Table &t, const real *x, const Samples *data) {
    real even = 0, odd = 0;
#pragma unroll(LARGEST <= KEPT ? STRIDE : 1)
    for (int k = 0; k < STRIDE/LOADED; ++k) {
        const Samples some = data[k];
#pragma unroll
        for (int j = 0; j < LOADED; ++j) {
            const real r = residual(t, k*LOADED + j, x, some.datum[j]);
            if (j % 2) odd += r*r; else even += r*r;
        }
    }
    return even + odd;
}

// n samples: adds to the cost, or writes the currents. Together, the lanes of a warp share them:
// all go through all strides, and each scores those of its own turn.
__device__ __forceinline__ void runHeld(const Run &run, const Table &t, const Parts &parts,
                                        const bool together, real *x, Tally &tally) {
    const int lane = threadIdx.x % 32;
    const int strides = run.n/STRIDE, left = run.n - strides*STRIDE;
    const bool sampled = run.sampled != 0, traces = tracing(tally);
    const Samples *data = (const Samples *)(tally.data + run.data);
    double sum = 0.0;
    if (together) {
#pragma unroll 1
        for (int first = 0; first < strides; first += 32) {
            real own[N_X];
#pragma unroll 1
            for (int k = first; k < strides && k < first + 32; ++k) {
#pragma unroll
                for (int i = 0; i < N_X; ++i) if (k == first + lane) own[i] = x[i];
                advance(t, x);
            }
            if (sampled && first + lane < strides)
                sum += squares(t, own, data + (first + lane)*(STRIDE/LOADED));
        }
    }
#pragma unroll 1
    for (int k = 0; k < strides && !together; ++k, data += STRIDE/LOADED) {
        if (traces && sampled) {
            real *trace = tally.trace + (run.data + k*STRIDE)*tally.stride;
#pragma unroll(LARGEST <= KEPT ? STRIDE : 1)
            for (int j = 0; j < STRIDE; ++j) trace[j*tally.stride] = residual(t, j, x, 0);
        } else if (sampled) {
            sum += squares(t, x, data);
        }
        advance(t, x);
    }
    if (sampled && left && (!together || lane == 0)) {
        const real *last = tally.data + run.data + strides*STRIDE;
        real *trace = tally.trace + (run.data + strides*STRIDE)*tally.stride;
        real rest = 0;
#pragma unroll(LARGEST <= KEPT ? STRIDE : 1)
        for (int j = 0; j < STRIDE; ++j) {
            if (j >= left) continue;
            const real r = residual(t, j, x, traces ? real(0) : last[j]);
            if (traces) trace[j*tally.stride] = r; else rest += r*r;
        }
        sum += rest;
    }
    tally.cost += run.weight*sum;
#pragma unroll 1
    for (int p = 0; p < POWERS && run.target >= 0; ++p)
        if (left >> p & 1) advancePart(parts, p, x);
    check(lost(x), tally.status);
}"""

#: The scores of runs at a varying voltage.
VARYING = """
// n samples while the voltage varies, n_sub (a power of two) steps of dt ms for each.
__device__ __forceinline__ void runVarying(const Run &run, const LevelOf<real> *all_nodes,
                                           const double *parameters, const long long stride,
                                           const real g, const real e, real *x, Tally &tally) {
    const LevelOf<real> *nodes = all_nodes + run.nodes;
    const real h = real(run.dt);
    const bool sampled = run.sampled != 0;
    real p[N_PARAMETERS];
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) {
        volatile real rounded = real(parameters[k*stride]);  // or it is rounded at every sample
        p[k] = rounded;
    }
    int flag = 0;
    Moving m;
#pragma unroll
    for (int i = 0; i < N_X; ++i) m.x[i] = x[i];
    begin(m, nodes, p, flag);
    nodes += BEFORE;
    double sum = 0.0;
    int sample = run.data;
    const int steps = run.n*run.n_sub;
#pragma unroll 1
    for (int first = 0; first < steps; first += 16) {
        const int last = min(first + 16, steps);
        real some = 0;
#pragma unroll(TOGETHER)
        for (int k = first; k < last; ++k, nodes += N_NODES) {
            if ((k & (run.n_sub - 1)) == 0) {
                if (sampled) {
#pragma unroll
                    for (int i = 0; i < N_X; ++i) x[i] = real(m.x[i]);
                    const real current = currentOf(x, level(m, nodes), g, e);
                    if (tracing(tally)) {
                        tally.trace[sample*tally.stride] = current;
                    } else {
                        const real r = current - tally.data[sample];
                        some += r*r;
                    }
                }
                ++sample;
            }
            step(m, nodes, h, p, flag);
        }
        sum += some;
    }
    tally.cost += run.weight*sum;
#pragma unroll
    for (int i = 0; i < N_X; ++i) x[i] = real(m.x[i]);
    tally.status = explained(tally.status, flag, lost(x), all_nodes + run.nodes,
                             BEFORE + steps*N_NODES, parameters, stride);
    check(lost(x), tally.status);
}"""

#: The way of one candidate through one job.
WALK = """
// --- kernels -------------------------------------------------------------------------------------

// One candidate through one job.
__device__ __forceinline__ void walk(const bool together,
                                     const double *parameters, const long long stride,
                                     const Level *starts, const int n_starts,
                                     const Visit *visits, const Visit *end, const Run *runs,
                                     const LevelOf<real> *nodes, Tally &tally) {
    real slots[N_SLOTS][N_X], x[N_X];
    real gain, reversal;
    {
        double p[N_PARAMETERS], g, e;
        loadParameters(parameters, stride, p);
        createGains(p, g, e, tally.status);
        gain = real(g);
        reversal = real(e);
#pragma unroll 1
        for (int k = 0; k < n_starts; ++k) {
            double q[N_RATES], rest[N_X] = {};
            createQmat(starts[k], p, q, tally.status);
            initStateProbs(q, rest);
#pragma unroll
            for (int i = 0; i < N_X; ++i) slots[k][i] = real(rest[i]);
        }
    }
#pragma unroll 1
    for (; visits < end; ++visits) {
        const Visit visit = *visits;
#if VARYING
        if (visit.kind) {
            Run run = runs[visit.first];
            if (together && threadIdx.x % 32) run.sampled = 0;  // all lanes walk it, one scores
#pragma unroll
            for (int i = 0; i < N_X; ++i) x[i] = slots[run.source][i];
            runVarying(run, nodes, parameters, stride, gain, reversal, x, tally);
#pragma unroll
            for (int i = 0; i < N_X; ++i) if (run.target >= 0) slots[run.target][i] = x[i];
            continue;
        }
#endif
        Table t;
        Parts parts;
        double p[N_PARAMETERS], q[N_RATES];
        loadParameters(parameters, stride, p);
        createQmat(visit.v, p, q, tally.status);
        createTable(q, visit.dt, gain*(real(visit.v) - reversal), visit.longest, t, parts);
#pragma unroll 1
        for (int r = visit.first; r < visit.last; ++r) {
            const Run run = runs[r];
#pragma unroll
            for (int i = 0; i < N_X; ++i) x[i] = slots[run.source][i];
            arrive(parts, x);
            runHeld(run, t, parts, together, x, tally);
#pragma unroll
            for (int i = 0; i < N_X; ++i) if (run.target >= 0) slots[run.target][i] = x[i];
        }
    }
}

"""

#: The kernels that score all candidates, or simulate them.
KERNELS = f"""
// Takes candidates first .. first + n - 1 through job blockIdx.y. Sums of squares go to partial,
// (jobs, n); or the currents to trace, (samples, n).
extern "C" __global__ void {SWEEP}(
    const double *__restrict__ parameters, const long long n_candidates, const int first,
    const int n, const Level *__restrict__ starts, const int n_starts,
    const int *__restrict__ jobs,
    const Visit *__restrict__ visits, const Run *__restrict__ runs,
    const real *__restrict__ data, const LevelOf<real> *__restrict__ nodes,
    double *__restrict__ partial, signed char *__restrict__ partial_status,
    real *__restrict__ trace) {{
    const int job = blockIdx.y;
    for (int i = blockIdx.x*blockDim.x + threadIdx.x; i < n; i += gridDim.x*blockDim.x) {{
        const int candidate = first + i;
        Tally tally = {{data, TRACED && trace ? trace + i : nullptr, n, 0.0, OK}};
        walk(false, parameters + candidate, n_candidates, starts, n_starts, visits + jobs[job],
             visits + jobs[job + 1], runs, nodes, tally);
        if (!tracing(tally)) partial[(long long)job*n + i] = tally.cost;
        partial_status[(long long)job*n + i] = (signed char)tally.status;
    }}
}}

// The jobs of each candidate added up in their order: cost, pA^2, and status.
extern "C" __global__ void {ADD_JOBS}(
    const int first, const int n, const int n_jobs, const double constant,
    const double total_weight, const double *__restrict__ partial,
    const signed char *__restrict__ partial_status, double *__restrict__ cost,
    signed char *__restrict__ status) {{
    for (int i = blockIdx.x*blockDim.x + threadIdx.x; i < n; i += gridDim.x*blockDim.x) {{
        const int candidate = first + i;
        double sum = constant;
        int worst = OK;
        for (int job = 0; job < n_jobs; ++job) {{
            sum += partial[(long long)job*n + i];
            const int own = partial_status[(long long)job*n + i];
            worst = worst == NOT_FINITE || own == NOT_FINITE ? NOT_FINITE : max(worst, own);
        }}
        sum /= total_weight;
        if (worst == OK && !isfinite(sum)) worst = NOT_FINITE;
        cost[candidate] = worst == OK ? sum : 1.0/0.0;
        status[candidate] = (signed char)worst;
    }}
}}

"""

#: The kernel that scores the candidates of a list.
LISTED_KERNEL = f"""
__device__ __forceinline__ void conclude(double sum, bool lost, int worst, const double constant,
                                         const double total_weight, double &cost,
                                         signed char &status) {{
    sum = (sum + constant)/total_weight;
    if (lost || (worst == OK && !isfinite(sum))) worst = NOT_FINITE;
    cost = worst == OK ? sum : 1.0/0.0;
    status = (signed char)worst;
}}

// The first *n_listed candidates of a list. Up to n_few get a warp for every job, of which the
// lanes share the samples; the last job to arrive adds up. Many get a warp each, and every lane a
// job. sums, flags and arrived have room for every warp; arrived is zero. *n_next becomes zero.
extern "C" __global__ void {LISTED}(
    const double *__restrict__ parameters, const long long n_candidates,
    const int *__restrict__ listed, const int *__restrict__ n_listed,
    const Level *__restrict__ starts, const int n_starts, const int *__restrict__ jobs,
    const int n_jobs, const Visit *__restrict__ visits, const Run *__restrict__ runs,
    const real *__restrict__ data, const LevelOf<real> *__restrict__ nodes, const double constant,
    const double total_weight, const int n_few, double *__restrict__ cost,
    signed char *__restrict__ status, volatile double *sums, volatile int *flags, int *arrived,
    int *n_next) {{
    if (blockIdx.x == 0 && threadIdx.x == 0) *n_next = 0;
    const int count = *n_listed, lane = threadIdx.x % 32, n_warps = gridDim.x*(blockDim.x/32);
    const int warp = (blockIdx.x*blockDim.x + threadIdx.x)/32;
    const bool few = count <= n_few;
    for (int i = few ? warp/n_jobs : warp; i < count; i += few ? count : n_warps) {{
        const int candidate = listed[i];
        Tally tally = {{data, nullptr, 0, 0.0, OK}};
        for (int job = few ? warp % n_jobs : lane; job < n_jobs; job += few ? n_jobs : 32)
            walk(few, parameters + candidate, n_candidates, starts, n_starts, visits + jobs[job],
                 visits + jobs[job + 1], runs, nodes, tally);
        double sum = tally.cost;
        int lost = tally.status == NOT_FINITE, worst = tally.status;
        for (int offset = 16; offset; offset /= 2) {{
            sum += __shfl_down_sync(0xffffffffu, sum, offset);
            lost |= __shfl_down_sync(0xffffffffu, lost, offset);
            worst = max(worst, __shfl_down_sync(0xffffffffu, worst, offset));
        }}
        if (lane) continue;
        if (!few) {{
            conclude(sum, lost, worst, constant, total_weight, cost[candidate],
                     status[candidate]);
            continue;
        }}
        sums[warp] = sum;
        flags[warp] = lost ? NOT_FINITE : worst;
        __threadfence();
        if (atomicAdd(arrived + i, 1) < n_jobs - 1) continue;
        arrived[i] = 0;
        __threadfence();
        sum = 0.0;
        for (int job = 0; job < n_jobs; ++job) {{
            const int flag = flags[i*n_jobs + job];
            sum += sums[i*n_jobs + job];
            lost |= flag == NOT_FINITE;
            worst = max(worst, flag);
        }}
        conclude(sum, lost, worst, constant, total_weight, cost[candidate], status[candidate]);
    }}
}}
"""
