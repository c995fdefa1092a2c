"""From currents and their derivatives to cost, gradient and Gauss-Newton Hessian, in CUDA C++.

The kernels are the same for every model. They add in an order that does not depend on how many
candidates there are, so that a candidate's numbers do not depend on its company.
"""

#: Names of the kernels: products of matrices, compressed rows weighted by a well's own mask, inner
#: products of all columns of a candidate, and their sums.
PROJECT_TANGENTS, WEIGH_TANGENTS = "projectTangents", "weighTangents"
MULTIPLY_TANGENTS, CONCLUDE_TANGENTS = "multiplyTangents", "concludeTangents"
#: Threads of a block of each, and rows of currents that a block of the products goes through.
ALGEBRA_THREADS, ALGEBRA_ROWS = 128, 1024
#: Rows of a product of matrices that a block computes.
PROJECTED_ROWS = 64

ALGEBRA = f"""
// --- from currents to cost, gradient and Hessian -------------------------------------------------

// The products of a matrix (height, depth) with matrices (n, depth, n_columns), to products
// (n, height, n_columns). Every sum is taken in the order of depth, so that no number depends on
// how many others there are. Block x has matrix x, block y some columns, block z some rows.
extern "C" __global__ void {PROJECT_TANGENTS}(
    const double *__restrict__ matrix, const int height, const int depth, const int n_columns,
    const double *__restrict__ matrices, double *__restrict__ products) {{
    constexpr int AT_ONCE = 8;  // rows, so that a number is read once for all of them
    const int column = blockIdx.y*{ALGEBRA_THREADS} + threadIdx.x;
    if (column >= n_columns) return;
    matrices += (long long)blockIdx.x*depth*n_columns + column;
    products += (long long)blockIdx.x*height*n_columns + column;
    const int begin = blockIdx.z*{PROJECTED_ROWS}, end = min(height, begin + {PROJECTED_ROWS});
#pragma unroll 1
    for (int first = begin; first < end; first += AT_ONCE) {{
        const double *rows[AT_ONCE];
        double sums[AT_ONCE] = {{}};
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r)
            rows[r] = matrix + (long long)min(first + r, end - 1)*depth;
#pragma unroll 2
        for (int k = 0; k < depth; ++k) {{
            const double number = matrices[(long long)k*n_columns];
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r) sums[r] += rows[r][k]*number;
        }}
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r)
            if (first + r < end) products[(long long)(first + r)*n_columns] = sums[r];
    }}
}}

// Compressed rows (n, rank, n_runs, width) by the samples that count in the well of each candidate:
// factors (n_wells, n_runs, rank, rank) are upper triangles, so that a row is done with when it is
// overwritten.
extern "C" __global__ void {WEIGH_TANGENTS}(
    const double *__restrict__ factors, const int rank, const int n_runs, const int width,
    const int *__restrict__ wells, double *rows) {{
    const int column = blockIdx.y*{ALGEBRA_THREADS} + threadIdx.x, n_columns = n_runs*width;
    if (column >= n_columns) return;
    factors += ((long long)wells[blockIdx.x]*n_runs + column/width)*rank*rank;
    rows += (long long)blockIdx.x*rank*n_columns + column;
#pragma unroll 1
    for (int k = 0; k < rank; ++k) {{
        double sum = 0.0;
#pragma unroll 4
        for (int l = k; l < rank; ++l)
            sum += factors[(long long)k*rank + l]*rows[(long long)l*n_columns];
        rows[(long long)k*n_columns] = sum;
    }}
}}

// The inner product of columns i and j <= i of some rows. With a target it is that of a residual
// that column 0 does not hold yet: the rows hold currents, and the target the recording.
template <bool HAS_TARGET>
__device__ __forceinline__ double product(
    const double *__restrict__ rows, const double *__restrict__ target, const int width,
    const int i, const int j, const int begin, const int end, const int step) {{
    double sum = 0.0;
#pragma unroll 4
    for (int row = begin; row < end; row += step) {{
        double one = rows[(long long)row*width + i], other = rows[(long long)row*width + j];
        if (HAS_TARGET && i == 0) one -= target[row];
        if (HAS_TARGET && j == 0) other -= target[row];
        sum += one*other;
    }}
    return sum;
}}

// Inner products of the columns of rows (n, n_rows, width), in parts of {ALGEBRA_ROWS} rows:
// entries (i, j <= i), row after row, to partial (parts, n, entries), from part `first` on. Where
// there are targets (n_wells, n_targets), those of the rows begin at first_target, and a candidate
// is compared with the well that `wells` (n) names, or with the only one where wells is null.
extern "C" __global__ void {MULTIPLY_TANGENTS}(
    const double *__restrict__ rows, const int n_rows, const int width, const int first,
    const double *__restrict__ targets, const int n_targets, const int first_target,
    const int *__restrict__ wells, double *__restrict__ partial) {{
    __shared__ double sums[{ALGEBRA_THREADS}];
    const int n_entries = width*(width + 1)/2, lane = threadIdx.x/n_entries;
    const int lanes = max(1, {ALGEBRA_THREADS}/n_entries), begin = blockIdx.y*{ALGEBRA_ROWS};
    const int end = min(n_rows, begin + {ALGEBRA_ROWS});
    rows += (long long)blockIdx.x*n_rows*width;
    if (targets) targets += (wells ? (long long)wells[blockIdx.x]*n_targets : 0) + first_target;
    partial += ((long long)(first + blockIdx.y)*gridDim.x + blockIdx.x)*n_entries;
    for (int base = 0; base < n_entries; base += {ALGEBRA_THREADS}) {{
        const int entry = base + threadIdx.x - lane*n_entries;
        const bool active = lane < lanes && entry < n_entries;
        int i = 0;
        while ((i + 1)*(i + 2)/2 <= entry) ++i;
        const int j = entry - i*(i + 1)/2;
        double sum = 0.0;
        if (active && targets)
            sum = product<true>(rows, targets, width, i, j, begin + lane, end, lanes);
        else if (active)
            sum = product<false>(rows, targets, width, i, j, begin + lane, end, lanes);
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
// it is good its derivatives by parameters, into zeros: gradient (n_parameters, n), hessian
// (n_parameters, n_parameters, n). The constant and the total weight are those of the well that
// `wells` (n) names, or the only ones where wells is null.
extern "C" __global__ void {CONCLUDE_TANGENTS}(
    double *__restrict__ partial, const int n_parts, const int width,
    const signed char *__restrict__ statuses, const int n_statuses, const int *__restrict__ free,
    const int n_parameters, const double *__restrict__ constants,
    const double *__restrict__ total_weights, const int *__restrict__ wells,
    double *__restrict__ cost, signed char *__restrict__ status, double *__restrict__ gradient,
    double *__restrict__ hessian) {{
    __shared__ int worst;
    const long long n = gridDim.x, candidate = blockIdx.x;
    const int n_entries = width*(width + 1)/2, well = wells ? wells[candidate] : 0;
    const double constant = constants[well], total_weight = total_weights[well];
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
            hessian[(p*n_parameters + q)*n + candidate] = 2.0*row[j];
            hessian[(q*n_parameters + p)*n + candidate] = 2.0*row[j];
        }}
    }}
}}
"""
