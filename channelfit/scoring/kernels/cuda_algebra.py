"""From residuals and their derivatives to cost, gradient and curvature, in CUDA C++.

The kernels are the same for every model. They add in an order that does not depend on how many
candidates there are, so that a candidate's numbers do not depend on its company.
"""

#: Names of the kernels: inner products of all columns of a candidate, and what they add up to.
MULTIPLY_TANGENTS, CONCLUDE_TANGENTS = "multiplyTangents", "concludeTangents"
#: Threads of a block of both, and rows of residuals that a block goes through.
ALGEBRA_THREADS, ALGEBRA_ROWS = 128, 1024

ALGEBRA = f"""
// --- from residuals to cost, gradient and curvature ----------------------------------------------

// Inner products of the columns of rows (n, n_rows, width), in parts of {ALGEBRA_ROWS} rows:
// entries (i, j <= i), row after row, to partial (parts, n, entries), from part `first` on.
extern "C" __global__ void {MULTIPLY_TANGENTS}(
    const double *__restrict__ rows, const int n_rows, const int width, const int first,
    double *__restrict__ partial) {{
    __shared__ double sums[{ALGEBRA_THREADS}];
    const int n_entries = width*(width + 1)/2, lane = threadIdx.x/n_entries;
    const int lanes = max(1, {ALGEBRA_THREADS}/n_entries), begin = blockIdx.y*{ALGEBRA_ROWS};
    const int end = min(n_rows, begin + {ALGEBRA_ROWS});
    rows += (long long)blockIdx.x*n_rows*width;
    partial += ((long long)(first + blockIdx.y)*gridDim.x + blockIdx.x)*n_entries;
    for (int base = 0; base < n_entries; base += {ALGEBRA_THREADS}) {{
        const int entry = base + threadIdx.x - lane*n_entries;
        const bool active = lane < lanes && entry < n_entries;
        int i = 0;
        while ((i + 1)*(i + 2)/2 <= entry) ++i;
        const int j = entry - i*(i + 1)/2;
        double sum = 0.0;
        if (active) {{
#pragma unroll 4
            for (int row = begin + lane; row < end; row += lanes)
                sum += rows[(long long)row*width + i]*rows[(long long)row*width + j];
        }}
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (active && lane == 0) {{
            for (int other = 1; other < lanes; ++other) sum += sums[threadIdx.x + other*n_entries];
            partial[entry] = sum;
        }}
        __syncthreads();
    }}
}}

// The parts added up in their order, the worst of a candidate's statuses (n_statuses, n), and where
// it is good the derivatives, by parameters, of what was 0: gradient (n_parameters, n), curvature
// (n_parameters, n_parameters, n).
extern "C" __global__ void {CONCLUDE_TANGENTS}(
    double *__restrict__ partial, const int n_parts, const int width,
    const signed char *__restrict__ statuses, const int n_statuses, const int *__restrict__ free,
    const int n_parameters, const double constant, const double total_weight,
    double *__restrict__ cost, signed char *__restrict__ status, double *__restrict__ gradient,
    double *__restrict__ curvature) {{
    __shared__ int worst;
    const long long n = gridDim.x, candidate = blockIdx.x;
    const int n_entries = width*(width + 1)/2;
    double *sums = partial + candidate*n_entries;
    if (threadIdx.x == 0) worst = OK;
    __syncthreads();
    int own = OK, infinite = 0;
    for (int entry = threadIdx.x; entry < n_entries; entry += blockDim.x) {{
        double sum = 0.0;
#pragma unroll 4
        for (int part = 0; part < n_parts; ++part) sum += sums[part*n*n_entries + entry];
        sums[entry] = sum = (entry ? sum : sum + constant)/total_weight;
        infinite |= !isfinite(sum);
    }}
    for (int k = threadIdx.x; k < n_statuses; k += blockDim.x) {{
        const int other = statuses[k*n + candidate];
        own = other == NOT_FINITE ? 127 : max(own, other);  // which outdoes any other
    }}
    atomicMax(&worst, own);
    const bool lost = __syncthreads_or(infinite);
    const int code = worst == 127 || (worst == OK && lost) ? NOT_FINITE : worst;
    if (threadIdx.x == 0) {{
        cost[candidate] = code == OK ? sums[0] : 1.0/0.0;
        status[candidate] = (signed char)code;
    }}
    if (code != OK) return;
    for (int i = 1 + threadIdx.x; i < width; i += blockDim.x) {{
        const long long p = free[i - 1];
        const double *row = sums + i*(i + 1)/2;
        gradient[p*n + candidate] = 2.0*row[0];
        for (int j = 1; j <= i; ++j) {{
            const long long q = free[j - 1];
            curvature[(p*n_parameters + q)*n + candidate] = 2.0*row[j];
            curvature[(q*n_parameters + p)*n + candidate] = 2.0*row[j];
        }}
    }}
}}
"""
