"""Schemes on smooth varying voltage, in pieces, with derivatives, in CUDA C++.

The mathematics is that of `ramp_collocation`: on a piece occupancies are polynomials that fulfil
x' = A(t) x at Radau's points, a linear system in the occupancies of all states at all points. It is
solved for every state in which a piece may begin, so that all pieces of all candidates are solved
side by side (`composePieces`); the walk then goes from piece to piece, and from the states that it
finds the currents and their derivatives follow by products (`replayPieces`).

Of few candidates the runs at held voltages are taken side by side as well: a thread has the effect
of one on any state (`composeHeld`), the walk goes from end to end of all runs, and the walk's
kernel goes through each of them once more, from the state that was left there.

A block of threads inverts the matrix K of a piece in registers (Gauss and Jordan, in place and
without pivots, as the diagonal outweighs the rest of each column): each thread has elements that
lie 16 rows and columns apart. Derivatives are dX = K^-1 (h dA X), of which only the open
probabilities at the points and the end of the piece are computed: first the few rows W of the
inverse that these need, then W (h dA X), for some directions at a time.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.writers import CudaWriter
from channelfit.scoring.layout import ramp_collocation as collocation

#: Names of the kernels.
COMPOSE_PIECES, REPLAY_PIECES = "composePieces", "replayPieces"
COMPOSE_HELD = "composeHeld"
#: Threads of a block that solves a piece.
PIECE_THREADS = 256
#: States of a scheme, at most: more would not fit the memory of any GPU's blocks.
MOST_STATES = 11
#: Directions of which a block computes the derivatives at a time.
_DIRECTIONS = 8
#: The status of a candidate that pieces of this length do not follow; other pieces, or steps,
#: decide. No other status is greater.
UNRESOLVED = 100


def takes_pieces(model: ChannelModel, tangents: int) -> bool:
    """Return whether ramps of a model, as threads step it, can be taken in pieces.

    Arguments:
        tangents: derivatives that a thread carries.
    """
    several = [chain for chain in model.chains if len(chain.states) > 1]
    if len(several) != 1 or tangents > _DIRECTIONS:
        return False
    return 2 < len(several[0].states) <= MOST_STATES and several[0].power == 1


def open_numbers(n_states: int) -> int:
    """Return the number of open probabilities at the points of a piece, for all states."""
    return n_states * collocation.DEGREE


def shared_bytes(n_states: int, n_rates: int) -> int:
    """Return the dynamic shared memory of a block that solves a piece, bytes."""
    points = collocation.DEGREE
    size, results = n_states * points, points + n_states
    numbers = size * size + size * n_states + results * size
    return 8 * (numbers + points * n_rates + (points * n_rates + 1) * _DIRECTIONS)


def needed_bytes(n_states: int, n_rates: int) -> int:
    """Return all shared memory of such a block, bytes."""
    rows = 16 * -(-n_states * collocation.DEGREE // 16)
    return shared_bytes(n_states, n_rates) + 8 * (4 * rows + 4)


def write_pieces(w: CudaWriter, channel: CudaChannel) -> None:
    """Write the kernels that solve pieces, for a model of one scheme."""
    ((index, chain),) = channel.chains
    n = len(chain.states)
    w("", f"constexpr int N = {n}, POINTS = {collocation.DEGREE};  // states; Radau's points")
    w(f"constexpr int N_FLOWS = {len(chain.transitions)}, DIRECTIONS = {_DIRECTIONS};")
    w("constexpr int SIZE = N*POINTS, RESULTS = POINTS + N;  // unknowns; results from them")
    w("constexpr int RESIDENT = N <= 5 ? 3 : N <= 7 ? 2 : 1;  // blocks of a multiprocessor")
    w(f"constexpr double TAIL = {collocation.TAIL!r};  // of polynomials that follow occupancies")
    w(f"enum {{ UNRESOLVED = {UNRESOLVED} }};")
    ends = ", ".join(f"{{{i}, {j}}}" for i, j, _ in channel.entries(index))
    w(f"__constant__ int FLOWS[N_FLOWS][2] = {{{ends}}};  // source and target")
    shares = ", ".join(repr(float(c)) for c in chain.conductances)
    w(f"__constant__ double SHARE[N] = {{{shares}}};  // of a state in the open probability")
    w(_table("SLOPES", collocation.slopes()), _table("TAILS", collocation.tails()))
    with w.device(
        "void flow(const double *rates, const double (&x)[N], double (&change)[N])",
        "The generator of rates, POINTS apart, times a state.",
    ):
        w("double flux;")
        for i, j, k in channel.entries(index):
            w(f"flux = rates[{k}*POINTS]*x[{i}];", f"change[{i}] -= flux;", f"change[{j}] += flux;")
    with w.device(
        f"Dual currentAt(const Level v, const Dual *p, const Dual &o{index}, int &status)",
        "The current at v mV, pA, from the open probability of the scheme.",
    ):
        if channel.ohmic:
            w("Dual g, e;", "createGains(p, g, e, status);")
            w(f"return g*(double(v) - e)*{channel.always_open!r}*o{index};")
        else:
            w("Dual drive[N_TERMS];", "createDrives(v, p, drive, status);")
            w(f"return {channel.sum_of_terms('drive', lone=True)};")
    w(*_TEXT.replace("@CHAIN", f"chain{index}").splitlines())


def _table(name: str, rows: np.ndarray) -> str:
    lines = ",\n    ".join("{" + ", ".join(map(repr, row)) + "}" for row in rows.tolist())
    n_rows, n_columns = rows.shape
    return f"__constant__ double {name}[{n_rows}][{n_columns}] = {{\n    {lines}}};"


_TEXT = f"""
// --- runs at smooth varying voltage, in pieces ---------------------------------------------------

// The effect of a piece on any state, and the open probability at its points; a column for each
// state in which it may begin.
struct Composite {{ Dual whole[N][N]; }};
struct OpenAt {{ Dual open[POINTS][N]; }};

INLINE void through(const Composite &c, Dual *x) {{ advance(c.whole, x); }}

// Replaces a matrix by its inverse; its rows and columns are dealt out to 16 by 16 threads, of
// which every one calls this. Of row, column and inverse one is written while the other is read.
template <int TILE>
INLINE void invert(double (&tile)[TILE][TILE], const int tx, const int ty,
                   double (*row)[16*TILE], double (*column)[16*TILE], double *inverse) {{
#pragma unroll
    for (int block = 0; block < TILE; ++block) {{
#pragma unroll 1
        for (int k = 0; k < 16 && 16*block + k < SIZE; ++k) {{
            const int now = k & 1;
            if (ty == k) {{
#pragma unroll
                for (int c = 0; c < TILE; ++c) row[now][16*c + tx] = tile[block][c];
                if (tx == k) inverse[now] = 1.0/tile[block][block];
            }}
            if (tx == k) {{
#pragma unroll
                for (int r = 0; r < TILE; ++r) column[now][16*r + ty] = tile[r][block];
            }}
            __syncthreads();
            const double pivot = inverse[now];
            double scaled[TILE];
#pragma unroll
            for (int c = 0; c < TILE; ++c)
                scaled[c] = c == block && tx == k ? pivot : row[now][16*c + tx]*pivot;
#pragma unroll
            for (int r = 0; r < TILE; ++r) {{
                const bool own = r == block && ty == k;
                const double factor = column[now][16*r + ty];
#pragma unroll
                for (int c = 0; c < TILE; ++c) {{
                    const double old = c == block && tx == k ? 0.0 : tile[r][c];
                    tile[r][c] = own ? scaled[c] : old - factor*scaled[c];
                }}
            }}
        }}
    }}
}}

// The place of a number of a record of type T, behind `placeOf`: element k, its value (t < 0) or
// its derivative t.
INLINE long long numberOf(const int k, const int t, const long long n_threads) {{
    return (k*(1 + TANGENTS) + (t < 0 ? TANGENTS : t))*n_threads;
}}

// A result of column j of rows of the unknowns: the open probability at point i, or behind these
// the end of a state.
template <int WIDTH> INLINE double resultOf(const double *rows, const int i, const int j) {{
    if (i >= POINTS) return rows[((i - POINTS + 1)*POINTS - 1)*WIDTH + j];
    double sum = 0.0;
#pragma unroll
    for (int s = 0; s < N; ++s) sum += SHARE[s]*rows[(s*POINTS + i)*WIDTH + j];
    return sum;
}}

// The effect of piece blockIdx.y on any state, of candidate blockIdx.x; and of every state in which
// it may begin the tail of each occupancy, to tails (n_pieces, 2*N*N, n).
extern "C" __global__ void __launch_bounds__({PIECE_THREADS}, RESIDENT) {COMPOSE_PIECES}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Segment *__restrict__ segments,
    const Level *__restrict__ nodes, double *__restrict__ composites, double *__restrict__ open_at,
    double *__restrict__ tails, signed char *__restrict__ statuses) {{
    constexpr int TILE = (SIZE + 15)/16;
    extern __shared__ double room[];
    double *matrix = room, *states = matrix + SIZE*SIZE, *results = states + SIZE*N;
    double *rates = results + RESULTS*SIZE, *slopes = rates + POINTS*N_FLOWS;
    double *bent = matrix;  // which is done with by then; columns are fewer than SIZE
    __shared__ double row[2][16*TILE], column[2][16*TILE], inverse[2];
    __shared__ int worst;
    const int candidate = blockIdx.x, thread = threadIdx.x, tx = thread % 16, ty = thread/16;
    const long long n_threads = n*n_groups, own = (long long)candidate*n_groups;
    const Segment piece = segments[blockIdx.y];
    const Level *node = nodes + piece.nodes + 1;  // behind the start
    constexpr int APART = N_FLOWS*POINTS + 1;  // slopes of directions: in different banks
    constexpr int AT_ONCE = TANGENTS ? DIRECTIONS/TANGENTS : 1;  // groups
    if (thread == 0) worst = OK;
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < n_groups; first += AT_ONCE) {{
        // rates at the points, times ms, and their slopes
        const int some = min(AT_ONCE, n_groups - first);
#pragma unroll 1
        for (int task = thread; task < POINTS*some; task += {PIECE_THREADS}) {{
            const int point = task % POINTS, group = task/POINTS;
            Dual p[N_PARAMETERS], q[N_RATES];
            int status = OK;
            seed(parameters, n, candidate, free, n_free, (first + group)*TANGENTS, p);
            createQmat(node[point], p, q, status);
            if (status != OK) atomicMax(&worst, status == NOT_FINITE ? 127 : status);
#pragma unroll
            for (int k = 0; k < N_FLOWS; ++k) {{
                if (first == 0 && group == 0) rates[k*POINTS + point] = piece.dt*q[k].v;
                EACH_TANGENT slopes[(group*TANGENTS + t)*APART + k*POINTS + point] =
                    piece.dt*q[k].d[t];
            }}
        }}
        __syncthreads();
        if (first == 0) {{
            // the matrix: slopes of polynomials less flows; unknowns stand state by state
            for (int k = thread; k < SIZE*SIZE; k += {PIECE_THREADS}) {{
                const int i = k/SIZE, j = k % SIZE;
                matrix[k] = i/POINTS == j/POINTS ? SLOPES[i % POINTS][1 + j % POINTS] : 0.0;
            }}
            __syncthreads();
            if (thread < POINTS) {{
#pragma unroll 1
                for (int k = 0; k < N_FLOWS; ++k) {{
                    const int from = FLOWS[k][0]*POINTS + thread, to = FLOWS[k][1]*POINTS + thread;
                    matrix[from*SIZE + from] += rates[k*POINTS + thread];
                    matrix[to*SIZE + from] -= rates[k*POINTS + thread];
                }}
            }}
            __syncthreads();
            double tile[TILE][TILE];
#pragma unroll
            for (int r = 0; r < TILE; ++r) {{
#pragma unroll
                for (int c = 0; c < TILE; ++c) {{
                    const int i = 16*r + ty, j = 16*c + tx;
                    tile[r][c] = i < SIZE && j < SIZE ? matrix[i*SIZE + j] : 0.0;
                }}
            }}
            invert(tile, tx, ty, row, column, inverse);
#pragma unroll
            for (int r = 0; r < TILE; ++r) {{
#pragma unroll
                for (int c = 0; c < TILE; ++c) {{
                    const int i = 16*r + ty, j = 16*c + tx;
                    if (i < SIZE && j < SIZE) matrix[i*SIZE + j] = tile[r][c];
                }}
            }}
            __syncthreads();
            // occupancies from each state, and the rows of the inverse that results are made of
            for (int k = thread; k < SIZE*N; k += {PIECE_THREADS}) {{
                const double *line = matrix + k/N*SIZE + k % N*POINTS;
                double sum = 0.0;
#pragma unroll
                for (int i = 0; i < POINTS; ++i) sum -= line[i]*SLOPES[i][0];
                states[k] = sum;
            }}
            for (int k = thread; k < RESULTS*SIZE; k += {PIECE_THREADS}) {{
                const int i = k/SIZE, j = k % SIZE;
                results[k] = resultOf<SIZE>(matrix, i, j);
            }}
            __syncthreads();
            for (int k = thread; k < RESULTS*N; k += {PIECE_THREADS}) {{
                const int i = k/N, j = k % N;
                const double sum = resultOf<N>(states, i, j);
                double *place = i < POINTS ? open_at + placeOf<OpenAt>(blockIdx.y, n_threads, own)
                    : composites + placeOf<Composite>(blockIdx.y, n_threads, own);
                place += numberOf(i < POINTS ? k : k - POINTS*N, -1, n_threads);
                for (int group = 0; group < n_groups; ++group) place[group] = sum;
            }}
            for (int k = thread; k < 2*N*N; k += {PIECE_THREADS}) {{
                const int c = k/(N*N), s = k/N % N, j = k % N;
                double sum = s == j ? TAILS[c][0] : 0.0;
#pragma unroll
                for (int i = 0; i < POINTS; ++i)
                    sum += TAILS[c][1 + i]*states[(s*POINTS + i)*N + j];
                tails[(blockIdx.y*2LL*N*N + k)*n + candidate] = sum;
            }}
        }}
        if (TANGENTS == 0) break;
        // h dA X, a column for each state and direction
        const int n_directions = some*TANGENTS, n_columns = N*n_directions;
        for (int k = thread; k < POINTS*n_columns; k += {PIECE_THREADS}) {{
            const int point = k/n_columns, place = k % n_columns, j = place/n_directions;
            const int direction = place % n_directions;
            double x[N], change[N] = {{}};
#pragma unroll
            for (int s = 0; s < N; ++s) x[s] = states[(s*POINTS + point)*N + j];
            flow(slopes + direction*APART + point, x, change);
#pragma unroll
            for (int s = 0; s < N; ++s) bent[(s*POINTS + point)*n_columns + place] = change[s];
        }}
        __syncthreads();
        constexpr int ROWS = 4;  // so that a number is read once for all of them
        for (int k = thread; k < (RESULTS + ROWS - 1)/ROWS*n_columns; k += {PIECE_THREADS}) {{
            const int begin = k/n_columns*ROWS, place = k % n_columns;
            double sums[ROWS] = {{}};
#pragma unroll 4
            for (int u = 0; u < SIZE; ++u) {{
                const double number = bent[u*n_columns + place];
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    sums[r] += results[min(begin + r, RESULTS - 1)*SIZE + u]*number;
            }}
            const int j = place/n_directions, direction = place % n_directions;
            const int t = direction % max(1, TANGENTS);
            const long long thread_of = own + first + direction/max(1, TANGENTS);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {{
                const int i = begin + r;
                if (i < POINTS) {{
                    open_at[placeOf<OpenAt>(blockIdx.y, n_threads, thread_of)
                          + numberOf(i*N + j, t, n_threads)] = sums[r];
                }} else if (i < RESULTS) {{
                    composites[placeOf<Composite>(blockIdx.y, n_threads, thread_of)
                               + numberOf((i - POINTS)*N + j, t, n_threads)] = sums[r];
                }}
            }}
        }}
        __syncthreads();
    }}
    if (thread == 0) {{
        const int code = worst == 127 ? NOT_FINITE : worst;
        statuses[(long long)blockIdx.y*n + candidate] = (signed char)code;
    }}
}}

// The effect of n samples at a held voltage on any state, `blockIdx.y` of `held`, to composite
// `first` and on; thread i as in the walk.
struct Held {{ Level v; double dt; int n, unused; }};

extern "C" __global__ void {COMPOSE_HELD}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Held *__restrict__ held, const int first,
    double *__restrict__ composites, signed char *__restrict__ statuses) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x, n_threads = n*n_groups;
    if (i >= n_threads) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Held run = held[blockIdx.y];
    Dual p[N_PARAMETERS], q[N_RATES];
    seed(parameters, n, candidate, free, n_free, group*TANGENTS, p);
    int status = OK;
    createQmat(run.v, p, q, status);
    Propagators power;
    createPropagators(q, run.dt, power);
    Composite c;
    unit(c.whole);
#pragma unroll 1
    for (int left = run.n; left; left >>= 1) {{
        if (left & 1) {{
            Dual product[N][N];
            multiply(power.@CHAIN, c.whole, product);
#pragma unroll(N <= KEPT ? N : 1)
            for (int r = 0; r < N; ++r) {{
#pragma unroll
                for (int k = 0; k < N; ++k) c.whole[r][k] = product[r][k];
            }}
            closeColumns(c.whole);
        }}
        if (left > 1) square(power);
    }}
    store(c, composites + placeOf<Composite>(first + blockIdx.y, n_threads, i), n_threads);
    if (group == 0) statuses[(long long)blockIdx.y*n + candidate] = (signed char)status;
}}

// The rows of piece blockIdx.y, from the state that the walk found; thread i as in the walk. A
// candidate that its polynomials do not follow is unresolved.
extern "C" __global__ void {REPLAY_PIECES}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Segment *__restrict__ segments,
    const Level *__restrict__ nodes, const double *__restrict__ states,
    const double *__restrict__ open_at, const double *__restrict__ tails,
    const double *__restrict__ matrices, const Run *__restrict__ runs,
    double *__restrict__ currents, signed char *__restrict__ statuses) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x, n_threads = n*n_groups;
    const Segment piece = segments[blockIdx.y];
    if (i >= n_threads) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    State begin;
    load(states + placeOf<State>(blockIdx.y, n_threads, i), n_threads, begin);
    Dual x[N];
    x[0] = 1.0;
#pragma unroll
    for (int s = 1; s < N; ++s) {{
        x[s] = begin.x[s - 1];
        x[0] = x[0] - x[s];
    }}
    if (group == 0) {{
        double worst = 0.0;
#pragma unroll 1
        for (int k = 0; k < 2*N; ++k) {{
            double sum = 0.0;
#pragma unroll
            for (int j = 0; j < N; ++j)
                sum += tails[(blockIdx.y*2LL*N*N + k*N + j)*n + candidate]*x[j].v;
            worst = fabs(sum) <= worst ? worst : fabs(sum);
        }}
        signed char &status = statuses[(long long)blockIdx.y*n + candidate];
        if (!(worst <= TAIL) && status != NOT_FINITE) status = UNRESOLVED;
    }}
    if (piece.run < 0) return;
    const Trace trace = {{runs, currents, n, candidate, n_free, group*TANGENTS}};
    Dual p[N_PARAMETERS];
    seed(parameters, n, candidate, free, n_free, trace.first, p);
    int status = OK;
    const Level *levels = nodes + piece.nodes;
    const double *matrix = matrices + piece.matrix;
    const double *open = open_at + placeOf<OpenAt>(blockIdx.y, n_threads, i);
    Dual rows[1 + POINTS] = {{}};
#pragma unroll 1
    for (int point = 0; point <= POINTS; ++point) {{
        Dual sum = 0.0;
#pragma unroll
        for (int j = 0; j < N; ++j) {{
            Dual share = SHARE[j];
            if (point > 0) {{
                const int k = (point - 1)*N + j;
                share.v = open[numberOf(k, -1, n_threads)];
                EACH_TANGENT share.d[t] = open[numberOf(k, t, n_threads)];
            }}
            sum += share*x[j];
        }}
        const Dual current = currentAt(levels[point], p, sum, status);
#pragma unroll
        for (int r = 0; r <= POINTS; ++r) rows[r] += matrix[r*(1 + POINTS) + point]*current;
    }}
#pragma unroll
    for (int r = 0; r <= POINTS; ++r) if (r < piece.n) write(trace, piece.run, r, rows[r]);
}}
"""
