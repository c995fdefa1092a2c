"""From currents and their derivatives to cost, gradient and Gauss-Newton Hessian, in CUDA C++.

The kernels are the same for every model. They add in an order that does not depend on how many
candidates there are, so that a candidate's numbers do not depend on its company.
"""

#: Names of the kernels: products of matrices, compressed rows weighted by a well's own mask, inner
#: products of all columns of a candidate, and their sums.
PROJECT_TANGENTS, WEIGH_TANGENTS = "projectTangents", "weighTangents"
MULTIPLY_TANGENTS, CONCLUDE_TANGENTS = "multiplyTangents", "concludeTangents"
#: Threads of a block, and rows of currents that a block of the products goes through.
ALGEBRA_THREADS, ALGEBRA_ROWS = 128, 256
#: Rows of a product of matrices that a block computes.
PROJECTED_ROWS = 16
#: Threads of a block of the products, at most.
_MOST_THREADS = 512


def product_threads(width: int) -> int:
    """Return the threads of a block that multiplies so many columns: one for each product."""
    n_products = width * (width + 1) // 2
    if 2 * n_products <= ALGEBRA_THREADS:
        return ALGEBRA_THREADS  # which share the rows
    return min(_MOST_THREADS, -(-n_products // 32) * 32)


ALGEBRA = f"""
// --- from currents to cost, gradient and Hessian -------------------------------------------------

// Some rows of the product of a matrix (height, depth) with those (depth, n_runs, width) of each
// candidate, `from` rows of all candidates behind the first; to (height, n_runs, width), `to` rows
// behind the first.
struct Projection {{ int matrix, height, depth, n_runs, from, to, begin; }};

// Rows begin .. end - 1 of `n_rows` that a candidate has behind `before` rows of all candidates, in
// currents or projected; their targets begin at `target`.
struct Part {{ int projected, before, n_rows, begin, end, target; }};

// Every sum is taken in the order of depth, so that no number depends on how many others there
// are. Block x has candidate x, block y projection y, block z some columns.
extern "C" __global__ void {PROJECT_TANGENTS}(
    const double *__restrict__ matrices, const Projection *__restrict__ projections,
    const int width, const double *__restrict__ currents, double *__restrict__ products) {{
    constexpr int AT_ONCE = 8;  // rows, so that a number is read once for all of them
    const Projection own = projections[blockIdx.y];
    const int n_columns = own.n_runs*width, depth = own.depth;
    const int column = blockIdx.z*{ALGEBRA_THREADS} + threadIdx.x;
    if (column >= n_columns) return;
    const long long n = gridDim.x, candidate = blockIdx.x;
    currents += own.from*n*width + candidate*depth*n_columns + column;
    products += own.to*n*width + candidate*own.height*n_columns + column;
    const double *matrix = matrices + own.matrix;
    const int end = min(own.height, own.begin + {PROJECTED_ROWS});
#pragma unroll 1
    for (int first = own.begin; first < end; first += AT_ONCE) {{
        const double *rows[AT_ONCE];
        double sums[AT_ONCE] = {{}};
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r)
            rows[r] = matrix + (long long)min(first + r, end - 1)*depth;
#pragma unroll 2
        for (int k = 0; k < depth; ++k) {{
            const double number = currents[(long long)k*n_columns];
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

// The inner product of columns i and j of some rows.
INLINE double product(const double *rows, const int width, const int i, const int j,
                      const int begin, const int end, const int step) {{
    double sum = 0.0;
#pragma unroll 4
    for (int row = begin; row < end; row += step)
        sum += rows[(long long)row*width + i]*rows[(long long)row*width + j];
    return sum;
}}

// Inner products of the columns of a candidate's rows, of part blockIdx.y: entries (i, j <= i), row
// after row, to partial (parts, n, entries). Where there are targets (n_wells, n_targets), they are
// first subtracted from column 0, in place: in the loop over rows every thread would pay for that.
// A candidate is compared with the well that `wells` (n) names, or the only one where it is null.
extern "C" __global__ void {MULTIPLY_TANGENTS}(
    double *currents, double *projected, const Part *__restrict__ parts, const int width,
    const double *__restrict__ targets, const int n_targets, const int *__restrict__ wells,
    double *__restrict__ partial) {{
    __shared__ double sums[{ALGEBRA_THREADS}];
    const Part part = parts[blockIdx.y];
    const int n_entries = width*(width + 1)/2, lane = threadIdx.x/n_entries;
    const int lanes = max(1, {ALGEBRA_THREADS}/n_entries), begin = part.begin, end = part.end;
    const long long n = gridDim.x, candidate = blockIdx.x;
    double *rows = part.projected ? projected : currents;
    rows += (part.before*n + candidate*part.n_rows)*width;
    if (targets) {{
        targets += (wells ? (long long)wells[candidate]*n_targets : 0) + part.target;
        for (int row = begin + threadIdx.x; row < end; row += blockDim.x)
            rows[(long long)row*width] -= targets[row];
        __syncthreads();
    }}
    partial += (blockIdx.y*n + candidate)*n_entries;
    for (int base = 0; base < n_entries; base += blockDim.x) {{
        const int entry = base + threadIdx.x - lane*n_entries;
        const bool active = lane < lanes && entry < n_entries;
        int i = 0;
        while ((i + 1)*(i + 2)/2 <= entry) ++i;
        const int j = entry - i*(i + 1)/2;
        double sum = active ? product(rows, width, i, j, begin + lane, end, lanes) : 0.0;
        if (lanes > 1) {{
            sums[threadIdx.x] = sum;
            __syncthreads();
            for (int other = 1; active && lane == 0 && other < lanes; ++other)
                sum += sums[threadIdx.x + other*n_entries];
        }}
        if (active && lane == 0) partial[entry] = sum;
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
