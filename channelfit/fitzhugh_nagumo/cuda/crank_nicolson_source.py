"""The text of the Crank-Nicolson kernels for a GPU.

A block keeps a stretch of NODES nodes a thread and makes whole steps, Newton's method included, in
one pass. Each thread eliminates down its nodes; the last nodes of the threads form a tridiagonal
system, which parallel cyclic reduction solves in shared memory in as many levels as the coupling
needs to vanish (with all levels it is exact). The block votes on whether Newton's method has
converged. Stretches overlap by the reach of their ends. Where the reach is too long, `parts_*`
solve one system over memory by partition (Wang, ACM Trans. Math. Softw. 7 (1981) 170): every block
reduces its stretch to one open node, one block a cable solves for these, and a second pass
substitutes; the test for convergence stays in a flag on the device.

The kind of an end is 0 for no flux, 1 for held and 2 for periodic. Arrays are (n_cables, n_nodes).
"""

from __future__ import annotations

from channelfit.fitzhugh_nagumo.cuda.device import program_head

_CRANK_NICOLSON = """
#define PITCH (NODES + 1)
#define TILE (THREADS * NODES)
#define AT(l) ((l) + (l) / NODES)
#define MOST_ITERATIONS 30

struct Coefficients { REAL a, r, h, kw, kv, bend; };

// rows: (n_cables, 6): a, r, h, kw, kv, bend
__device__ __forceinline__ Coefficients coefficients_of(const REAL* rows, int cable) {
    const REAL* q = rows + 6 * cable;
    Coefficients k;
    k.a = q[0]; k.r = q[1]; k.h = q[2]; k.kw = q[3]; k.kv = q[4]; k.bend = q[5];
    return k;
}

// Types of nodes: 0 an inner one, 1 and 2 the left and right end without flux, 3 a held one.
__device__ __forceinline__ void neighbors(int type, REAL r, REAL& lower, REAL& upper) {
    lower = type == 0 ? r : type == 2 ? 2 * r : (REAL)0;
    upper = type == 0 ? r : type == 1 ? 2 * r : (REAL)0;
}

__device__ __forceinline__ REAL known_side(REAL v, REAL w, REAL left, REAL right, REAL push,
                                           REAL lower, REAL upper, const Coefficients& k) {
    return v * (1 - lower - upper) + lower * left + upper * right
        + k.h * (v * (v * (1 + k.a - v) - k.a) - w - k.kw * w - k.kv * v + 2 * push);
}

__device__ __forceinline__ void newton_row(REAL u, REAL known, const Coefficients& k, REAL both,
                                           REAL& diagonal, REAL& right) {
    diagonal = 1 + both + k.h * (k.kv + u * (3 * u - 2 * (1 + k.a)) + k.a);
    right = known + k.h * (u * u * (2 * u - 1 - k.a));
}

// The same divided by r, as tiles use it: off the diagonal stand 0, 1 or 2.
struct Scaled { REAL diagonal, middle, h, one_a, w, kw, kv, bend, push; };

__device__ __forceinline__ Scaled scaled(const Coefficients& k) {
    REAL r = k.r > (REAL)1e-30 ? k.r : (REAL)1e-30, inverse = 1 / r;
    Scaled s;
    s.diagonal = (1 + 2 * k.r + k.h * (k.kv + k.a)) * inverse;
    s.middle = (1 - 2 * k.r - k.h * (k.kv + k.a)) * inverse;
    s.h = k.h * inverse;
    s.one_a = 1 + k.a;
    s.w = -s.h * (1 + k.kw);
    s.kw = k.kw; s.kv = k.kv; s.bend = k.bend;
    s.push = 2 * s.h;
    return s;
}

// All steps of a tile; ENDS: whether ends of the cable may lie inside it.
template <bool ENDS> __device__ __forceinline__ bool solve(
    REAL* sv, REAL* sw, REAL* system, const REAL* __restrict__ drive, const Scaled& k,
    Index first, Index n_nodes, int outer, int types, int n_steps, int levels, REAL tolerance)
{
    int t = threadIdx.x, l0 = t * NODES;
    REAL u[NODES], known[NODES], c[NODES], y[NODES], p[NODES];
    #pragma unroll
    for (int j = 0; j < NODES; j++) u[j] = sv[t * PITCH + j];
    bool converged = true;
    for (int step = 0; step < n_steps && converged; step++) {
        REAL left = t > 0 ? sv[AT(t > 0 ? l0 - 1 : 0)] : (REAL)0, v = sv[t * PITCH];
        #pragma unroll
        for (int j = 0; j < NODES; j++) {
            int type = ENDS || j == 0 || j == NODES - 1 ? types >> (2 * j) & 3 : 0;
            REAL lower, upper, right = 0;
            neighbors(type, (REAL)1, lower, upper);
            if (j < NODES - 1) right = sv[t * PITCH + (j < NODES - 1 ? j + 1 : 0)];
            else if (t + 1 < THREADS) right = sv[AT(l0 + NODES)];
            REAL beside = lower * left + upper * right;
            REAL side = beside + k.w * sw[t * PITCH + j];
            side += v * (k.middle + k.h * v * (k.one_a - v));
#if DRIVEN
            side += k.push * drive[ENDS ? place(first + l0 + j, n_nodes, outer) : first + l0 + j];
#endif
            known[j] = type == 3 ? v : side;
            left = v;
            v = right;
        }
        converged = false;
        for (int iteration = 0; iteration < MOST_ITERATIONS && !converged; iteration++) {
            REAL Y = 0, P = 0, C = 0, z_lower = 0, z_upper = 0, z_right = 0, z_diagonal = 1;
            REAL c0 = 0, y0 = 0, p0 = 1;
            #pragma unroll
            for (int j = 0; j < NODES; j++) {
                int type = ENDS || j == 0 || j == NODES - 1 ? types >> (2 * j) & 3 : 0;
                REAL lower, upper, hu = k.h * u[j];
                neighbors(type, (REAL)1, lower, upper);
                REAL diagonal = hu * (3 * u[j] - 2 * k.one_a) + k.diagonal;
                REAL right = hu * u[j] * (2 * u[j] - k.one_a) + known[j];
                if (type == 3) { diagonal = 1; right = known[j]; }
                diagonal -= lower * c0;
                right += lower * y0;
                p0 *= lower;
                if (j < NODES - 1) {
                    REAL inverse = reciprocal(diagonal);
                    c[j] = c0 = upper * inverse;
                    y[j] = y0 = right * inverse;
                    p[j] = p0 = p0 * inverse;
                    if (j == 0) { Y = y0; P = p0; C = c0; }
                    else { Y += C * y0; P += C * p0; C *= c0; }
                } else {
                    z_lower = p0; z_upper = upper; z_diagonal = diagonal; z_right = right;
                }
            }
            REAL* now = system;
            REAL* then = system + 3 * THREADS;
            now[t] = Y; now[THREADS + t] = P; now[2 * THREADS + t] = C;
            __syncthreads();
            REAL Yn = 0, Pn = 0, Cn = 0;
            if (t + 1 < THREADS) {
                Yn = now[t + 1]; Pn = now[THREADS + t + 1]; Cn = now[2 * THREADS + t + 1];
            }
            // z = A z[t - 1] + B z[t + 1] + D
            REAL inverse = reciprocal(z_diagonal - z_upper * Pn);
            REAL A = z_lower * inverse, B = z_upper * Cn * inverse;
            REAL D = (z_right + z_upper * Yn) * inverse;
            for (int level = 0; level < levels; level++) {
                int s = 1 << level;
                then[t] = A; then[THREADS + t] = B; then[2 * THREADS + t] = D;
                __syncthreads();
                REAL A0 = 0, B0 = 0, D0 = 0, A1 = 0, B1 = 0, D1 = 0;
                if (t >= s) {
                    A0 = then[t - s]; B0 = then[THREADS + t - s]; D0 = then[2 * THREADS + t - s];
                }
                if (t + s < THREADS) {
                    A1 = then[t + s]; B1 = then[THREADS + t + s]; D1 = then[2 * THREADS + t + s];
                }
                inverse = reciprocal(1 - A * B0 - B * A1);
                D = (D + A * D0 + B * D1) * inverse;
                A = A * A0 * inverse;
                B = B * B1 * inverse;
                REAL* other = now; now = then; then = other;
            }
            then[t] = D;
            __syncthreads();
            REAL before = t > 0 ? then[t > 0 ? t - 1 : 0] : (REAL)0, next = D, moved = 0;
            #pragma unroll
            for (int j = NODES - 1; j >= 0; j--) {
                if (j < NODES - 1) next = c[j] * next + (p[j] * before + y[j]);
                REAL change = next - u[j];
                moved += change * change;
                u[j] = next;
            }
            converged = __syncthreads_and(k.bend * moved <= tolerance);
        }
        #pragma unroll
        for (int j = 0; j < NODES; j++) {
            REAL before = sv[t * PITCH + j];
            sw[t * PITCH + j] = k.kw * sw[t * PITCH + j] + k.kv * (before + u[j]);
            sv[t * PITCH + j] = u[j];
            u[j] = 2 * u[j] - before;
        }
        __syncthreads();
    }
    return converged;
}

// Shared memory: v and w of the tile, then two times three rows of THREADS.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) crank_nicolson_tiles(
    const REAL* __restrict__ v_in, const REAL* __restrict__ w_in, const REAL* __restrict__ drive,
    REAL* __restrict__ v_out, REAL* __restrict__ w_out, const REAL* __restrict__ rows,
    int* __restrict__ status, Index n_nodes, int n_tiles, int halo, int n_steps, int levels,
    int left_kind, int right_kind, int whole, REAL tolerance)
{
    extern __shared__ REAL memory[];
    REAL* sv = memory;
    REAL* sw = sv + THREADS * PITCH;
    REAL* system = sw + THREADS * PITCH;
    int t = threadIdx.x, l0 = t * NODES, cable = blockIdx.x / n_tiles;
    Index first = (Index)(blockIdx.x % n_tiles) * (TILE - 2 * halo) - (whole ? 0 : halo);
    Index base = cable * n_nodes;
    int outer = left_kind == 2 ? 2 : 0;
    bool inside = first >= 0 && first + TILE <= n_nodes;
    Scaled k = scaled(coefficients_of(rows, cable));
    if (inside) {
        REAL x[NODES], y[NODES];  // all loads at once
        #pragma unroll
        for (int j = 0; j < NODES; j++) {
            x[j] = v_in[base + first + j * THREADS + t];
            y[j] = w_in[base + first + j * THREADS + t];
        }
        #pragma unroll
        for (int j = 0; j < NODES; j++) {
            int l = j * THREADS + t;
            sv[AT(l)] = x[j];
            sw[AT(l)] = y[j];
        }
    } else {
        for (int l = t; l < TILE; l += THREADS) {
            Index g = place(first + l, n_nodes, outer);
            sv[AT(l)] = v_in[base + g];
            sw[AT(l)] = w_in[base + g];
        }
    }
    // The special nodes of this thread, by their place in it.
    int left_j, right_j, beyond = NODES;
    int left_type = left_kind == 1 ? 3 : 1, right_type = right_kind == 1 ? 3 : 2;
    Index last = n_nodes - 1 - first;
    if (whole) {
        left_j = -l0;
        right_j = last - l0 >= 0 && last - l0 < NODES ? (int)(last - l0) : -1;
        beyond = last - l0 < 0 ? 0 : last - l0 < NODES ? (int)(last - l0) + 1 : NODES;
    } else {  // ends without flux are inner nodes of the mirrored cable; held ones stay
        Index left = -first - l0, right = last - l0;
        left_j = left_kind == 1 && left >= 0 && left < NODES ? (int)left : -1;
        right_j = right_kind == 1 && right >= 0 && right < NODES ? (int)right : -1;
    }
    bool open_left = !whole && t == 0, open_right = t == THREADS - 1 && !(whole && beyond == NODES
        && right_j == NODES - 1);
    int types = 0;  // two bits a node
    #pragma unroll
    for (int j = 0; j < NODES; j++) {
        int type = j == left_j ? left_type : j == right_j ? right_type : j >= beyond ? 3 : 0;
        if ((open_left && j == 0) || (open_right && j == NODES - 1)) type = 3;
        types |= type << (2 * j);
    }
    __syncthreads();
    bool plain = !whole && first > 0 && first + TILE < n_nodes;
    bool converged = plain
        ? solve<false>(sv, sw, system, drive, k, first, n_nodes, outer, types, n_steps, levels,
                       tolerance)
        : solve<true>(sv, sw, system, drive, k, first, n_nodes, outer, types, n_steps, levels,
                      tolerance);
    if (!converged && t == 0) atomicExch(status, 1);
    for (int l = t; l < TILE; l += THREADS) {
        Index g = first + l;
        if (g >= 0 && g < n_nodes && (whole || (l >= halo && l < TILE - halo))) {
            v_out[base + g] = sv[AT(l)];
            w_out[base + g] = sw[AT(l)];
        }
    }
}

// --- one system over memory, in parts. An iteration is three kernels and takes place where
// flags[2 + iteration] is set; flags[1] tells that Newton failed.

// Off the diagonal stand -lower and -upper.
struct Row { REAL lower, upper, diagonal, right; };

__device__ __forceinline__ int type_of(Index i, Index n, int left_kind, int right_kind) {
    if (i == 0 && left_kind != 2) return left_kind == 1 ? 3 : 1;
    if (i == n - 1 && right_kind != 2) return right_kind == 1 ? 3 : 2;
    return 0;
}

__device__ __forceinline__ Index wrapped(Index g, Index n, int ring) {
    if (ring) return (g + n) % n;
    return g < 0 ? 0 : g < n ? g : n - 1;
}

// v, w and the iterate of a part, and v of the nodes beside it.
struct Part {
    REAL *v, *w, *u;
    REAL before, after;
    Index first, n;
    int left_kind, right_kind, open, open_thread;  // the part's last node, which is left open
};

__device__ Part part_of(REAL* memory, const REAL* v, const REAL* w, const REAL* u, Index n,
                        int n_parts, int left_kind, int right_kind) {
    Part p;
    Index base = (Index)(blockIdx.x / n_parts) * n;
    p.first = (Index)(blockIdx.x % n_parts) * TILE;
    p.n = n;
    p.left_kind = left_kind; p.right_kind = right_kind;
    p.v = memory; p.w = p.v + THREADS * PITCH; p.u = p.w + THREADS * PITCH;
    #pragma unroll 4
    for (int l = threadIdx.x; l < TILE; l += THREADS) {
        Index g = base + (p.first + l < n ? p.first + l : wrapped(n, n, left_kind == 2));
        p.v[AT(l)] = v[g];
        p.w[AT(l)] = w[g];
        p.u[AT(l)] = u[g];
    }
    p.before = v[base + wrapped(p.first - 1, n, left_kind == 2)];
    p.after = v[base + wrapped(p.first + TILE < n ? p.first + TILE : n, n, left_kind == 2)];
    p.open = (int)(n - p.first < TILE ? n - p.first : TILE) - 1;
    p.open_thread = p.open / NODES;
    __syncthreads();
    return p;
}

__device__ __forceinline__ Row row_of(const Part& p, int l, const REAL* drive,
                                      const Coefficients& k) {
    Row row;
    int type = type_of(p.first + l, p.n, p.left_kind, p.right_kind);
    neighbors(type, k.r, row.lower, row.upper);
    REAL left = l > 0 ? p.v[AT(l > 0 ? l - 1 : 0)] : p.before;
    REAL right = l + 1 < TILE ? p.v[AT(l + 1 < TILE ? l + 1 : 0)] : p.after, push = 0;
#if DRIVEN
    push = drive[p.first + l];
#endif
    REAL v = p.v[AT(l)];
    REAL known = known_side(v, p.w[AT(l)], left, right, push, row.lower, row.upper, k);
    newton_row(p.u[AT(l)], known, k, row.lower + row.upper, row.diagonal, row.right);
    if (type == 3) { row.diagonal = 1; row.right = v; }
    return row;
}

// A thread's nodes are eliminated downwards; what is left are the threads' last nodes z, of which
// each couples to its two neighbors, to the last node L of the part before and to the open one, Z.
// Stored are z = D + E L + F Z of every thread (ends), and of every part (7, n_parts of all
// cables) its first node in the same form and the open node's row: diagonal, lower, right, upper.
extern "C" __global__ void __launch_bounds__(THREADS) parts_reduce(
    const REAL* __restrict__ v, const REAL* __restrict__ w, const REAL* __restrict__ drive,
    const REAL* __restrict__ u, REAL* __restrict__ ends, REAL* __restrict__ parts,
    const REAL* __restrict__ rows, const int* __restrict__ flags, Index n_nodes, int n_parts,
    int left_kind, int right_kind, int iteration)
{
    extern __shared__ REAL memory[];
    if (!flags[2 + iteration]) return;
    Part part = part_of(memory, v, w, u, n_nodes, n_parts, left_kind, right_kind);
    REAL* system = part.u + THREADS * PITCH;
    Coefficients k = coefficients_of(rows, blockIdx.x / n_parts);
    int t = threadIdx.x, l0 = t * NODES;
    bool has_open = t == part.open_thread;
    int count = t < part.open_thread ? NODES : has_open ? part.open - l0 + 1 : 0;
    REAL c = 0, y = 0, p = 1, Y = 0, P = 0, C = 0, G = 0;
    Row last;
    last.lower = last.upper = last.right = 0; last.diagonal = 1;
    for (int j = 0; j < count; j++) {
        last = row_of(part, l0 + j, drive, k);
        if (j + 1 == count) break;
        REAL inverse = reciprocal(last.diagonal - last.lower * c);
        y = (last.right + last.lower * y) * inverse;
        p = last.lower * p * inverse;
        c = last.upper * inverse;
        if (j == 0) { Y = y; P = p; C = c; }
        else { Y += C * y; P += C * p; C *= c; }
    }
    if (count == 1) C = 1;
    if (has_open) { G = C; C = 0; }
    REAL* now = system;
    REAL* then = system + 5 * THREADS;
    now[t] = Y; now[THREADS + t] = P; now[2 * THREADS + t] = C; now[3 * THREADS + t] = G;
    __syncthreads();
    REAL A = 0, B = 0, D = 0, E = 0, F = has_open ? (REAL)1 : (REAL)0;
    if (t < part.open_thread) {
        REAL Yn = now[t + 1], Pn = now[THREADS + t + 1];
        REAL Cn = now[2 * THREADS + t + 1], Gn = now[3 * THREADS + t + 1];
        REAL inverse = reciprocal(last.diagonal - last.lower * c - last.upper * Pn);
        A = last.lower * p * inverse;
        B = last.upper * Cn * inverse;
        D = (last.right + last.lower * y + last.upper * Yn) * inverse;
        F = last.upper * Gn * inverse;
        if (t == 0) { E = A; A = 0; }
    }
    for (int s = 1; s < THREADS; s *= 2) {
        then[t] = A; then[THREADS + t] = B; then[2 * THREADS + t] = D;
        then[3 * THREADS + t] = E; then[4 * THREADS + t] = F;
        __syncthreads();
        REAL A0 = 0, B0 = 0, D0 = 0, E0 = 0, F0 = 0, A1 = 0, B1 = 0, D1 = 0, E1 = 0, F1 = 0;
        if (t >= s) {
            const REAL* x = then + t - s;
            A0 = x[0]; B0 = x[THREADS]; D0 = x[2 * THREADS]; E0 = x[3 * THREADS];
            F0 = x[4 * THREADS];
        }
        if (t + s < THREADS) {
            const REAL* x = then + t + s;
            A1 = x[0]; B1 = x[THREADS]; D1 = x[2 * THREADS]; E1 = x[3 * THREADS];
            F1 = x[4 * THREADS];
        }
        REAL inverse = reciprocal(1 - A * B0 - B * A1);
        D = (D + A * D0 + B * D1) * inverse;
        E = (E + A * E0 + B * E1) * inverse;
        F = (F + A * F0 + B * F1) * inverse;
        A = A * A0 * inverse;
        B = B * B1 * inverse;
        REAL* other = now; now = then; then = other;
    }
    then[t] = D; then[THREADS + t] = E; then[2 * THREADS + t] = F;
    Index all = (Index)gridDim.x * THREADS, mine = (Index)blockIdx.x * THREADS + t;
    ends[mine] = D; ends[all + mine] = E; ends[2 * all + mine] = F;
    __syncthreads();
    REAL* out = parts + blockIdx.x;
    if (t == 0) {
        out[0] = Y + C * D;
        out[gridDim.x] = P + C * E;
        out[2 * gridDim.x] = G + C * F;
    }
    if (has_open) {  // the node before the open one is y + c Z + p z of the thread before
        REAL d = 0, e = 1, f = 0;
        if (t > 0) { d = then[t - 1]; e = then[THREADS + t - 1]; f = then[2 * THREADS + t - 1]; }
        out[3 * gridDim.x] = last.diagonal - last.lower * (c + p * f);
        out[4 * gridDim.x] = last.lower * p * e;
        out[5 * gridDim.x] = last.right + last.lower * (y + p * d);
        out[6 * gridDim.x] = last.upper;
    }
}

// The open nodes of a cable, a block each: of all but the last by cyclic reduction, as multiples
// of the last, which closes the ring if it is one. work: (8, n_parts of all cables)
extern "C" __global__ void parts_join(
    const REAL* __restrict__ parts, REAL* __restrict__ work, REAL* __restrict__ open,
    const int* __restrict__ flags, int n_cables, int n_parts, int iteration)
{
    __shared__ REAL closing;
    if (!flags[2 + iteration]) return;
    Index all = (Index)n_cables * n_parts, base = (Index)blockIdx.x * n_parts;
    int t = threadIdx.x, threads = blockDim.x, m = n_parts - 1;
    REAL diagonal = 0, lower = 0, right = 0, upper = 0;
    REAL* now = work + base;
    REAL* then = now + 4 * all;
    for (int k = t; k < n_parts; k += threads) {
        const REAL* own = parts + base + k;
        const REAL* next = parts + base + (k + 1 < n_parts ? k + 1 : 0);
        REAL up = own[6 * all];
        diagonal = own[3 * all] - up * next[all];
        lower = own[4 * all];
        right = own[5 * all] + up * next[0];
        upper = up * next[2 * all];
        if (k == m) break;  // this thread closes
        REAL inverse = (REAL)1 / diagonal;
        now[k] = k > 0 ? lower * inverse : (REAL)0;
        now[all + k] = k + 1 < m ? upper * inverse : (REAL)0;
        now[2 * all + k] = right * inverse;
        now[3 * all + k] = ((k == 0 ? lower : (REAL)0) + (k + 1 == m ? upper : (REAL)0)) * inverse;
    }
    __syncthreads();
    for (int s = 1; s < m; s *= 2) {
        for (int k = t; k < m; k += threads) {
            REAL A = now[k], B = now[all + k], D = now[2 * all + k], E = now[3 * all + k];
            REAL A0 = 0, B0 = 0, D0 = 0, E0 = 0, A1 = 0, B1 = 0, D1 = 0, E1 = 0;
            if (k >= s) {
                const REAL* x = now + k - s;
                A0 = x[0]; B0 = x[all]; D0 = x[2 * all]; E0 = x[3 * all];
            }
            if (k + s < m) {
                const REAL* x = now + k + s;
                A1 = x[0]; B1 = x[all]; D1 = x[2 * all]; E1 = x[3 * all];
            }
            REAL inverse = (REAL)1 / (1 - A * B0 - B * A1);
            then[k] = A * A0 * inverse;
            then[all + k] = B * B1 * inverse;
            then[2 * all + k] = (D + A * D0 + B * D1) * inverse;
            then[3 * all + k] = (E + A * E0 + B * E1) * inverse;
        }
        __syncthreads();
        REAL* other = now; now = then; then = other;
    }
    if (t == m % threads) {
        if (m == 0) closing = right / (diagonal - lower - upper);
        else {
            REAL known = right + lower * now[2 * all + m - 1] + upper * now[2 * all];
            closing = known / (diagonal - lower * now[3 * all + m - 1] - upper * now[3 * all]);
        }
    }
    __syncthreads();
    for (int k = t; k < n_parts; k += threads)
        open[base + k] = k < m ? now[2 * all + k] + now[3 * all + k] * closing : closing;
}

extern "C" __global__ void __launch_bounds__(THREADS) parts_substitute(
    const REAL* __restrict__ v, const REAL* __restrict__ w, const REAL* __restrict__ drive,
    REAL* __restrict__ u, const REAL* __restrict__ ends, const REAL* __restrict__ open,
    const REAL* __restrict__ rows, int* flags, Index n_nodes, int n_parts, int left_kind,
    int right_kind, int iteration, REAL tolerance)
{
    extern __shared__ REAL memory[];
    if (!flags[2 + iteration]) return;
    Part part = part_of(memory, v, w, u, n_nodes, n_parts, left_kind, right_kind);
    int t = threadIdx.x, l0 = t * NODES, cable = blockIdx.x / n_parts, at = blockIdx.x % n_parts;
    Coefficients k = coefficients_of(rows, cable);
    REAL Z = open[blockIdx.x], L = open[cable * n_parts + (at > 0 ? at - 1 : n_parts - 1)];
    Index all = (Index)gridDim.x * THREADS, mine = (Index)blockIdx.x * THREADS + t;
    REAL before = L;
    if (t > 0) before = ends[mine - 1] + ends[all + mine - 1] * L + ends[2 * all + mine - 1] * Z;
    REAL next = ends[mine] + ends[all + mine] * L + ends[2 * all + mine] * Z;
    int count = t < part.open_thread ? NODES : t == part.open_thread ? part.open - l0 + 1 : 0;
    REAL c[NODES], y[NODES], c0 = 0, y0 = before, moved = 0;
    #pragma unroll
    for (int j = 0; j < NODES; j++) {
        c[j] = y[j] = 0;
        if (j + 1 < count) {
            Row row = row_of(part, l0 + j, drive, k);
            REAL inverse = reciprocal(row.diagonal - row.lower * c0);
            c[j] = c0 = row.upper * inverse;
            y[j] = y0 = (row.right + row.lower * y0) * inverse;
        }
    }
    #pragma unroll
    for (int j = NODES - 1; j >= 0; j--)
        if (j < count) {
            if (j + 1 < count) next = y[j] + c[j] * next;
            REAL change = next - part.u[t * PITCH + j];
            moved += change * change;
            part.u[t * PITCH + j] = next;
        }
    bool late = __syncthreads_or(!(k.bend * moved <= tolerance));
    if (late && t == 0) atomicExch(flags + 3 + iteration, 1);
    for (int l = t; l <= part.open; l += THREADS)
        u[(Index)cable * n_nodes + part.first + l] = part.u[AT(l)];
}

// u becomes a straight line's guess of the next step; the flags are as they were before the step.
extern "C" __global__ void parts_finish(
    REAL* __restrict__ v, REAL* __restrict__ w, REAL* __restrict__ u,
    const REAL* __restrict__ rows, int* flags, Index n_nodes, int n_cables, int iterations)
{
    Index job = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (job == 0) {
        if (flags[2 + iterations]) flags[1] = 1;
        for (int k = 1; k <= iterations; k++) flags[2 + k] = 0;
    }
    if (job >= n_nodes * n_cables) return;
    Coefficients k = coefficients_of(rows, (int)(job / n_nodes));
    REAL before = v[job], now = u[job];
    w[job] = k.kw * w[job] + k.kv * (before + now);
    v[job] = now;
    u[job] = 2 * now - before;
}
"""


def crank_nicolson_text(
    dtype: str, nodes: int = 8, threads: int = 256, blocks: int = 2, driven: bool = False
) -> str:
    """Return the text of the Crank-Nicolson kernels.

    Arguments:
        nodes: of a thread, from 2 to 16. threads: of a block.
        blocks: the number of blocks that must fit on a multiprocessor.
        driven: whether there is a stimulus.
    """
    constants = {"NODES": nodes, "THREADS": threads, "BLOCKS": blocks, "DRIVEN": int(driven)}
    return program_head(dtype, constants) + _CRANK_NICOLSON
