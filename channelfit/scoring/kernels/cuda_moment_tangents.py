"""CUDA for currents of held voltages and their derivatives, by Chebyshev moments.

A lane has one column of a candidate: the current, or its derivative by one parameter. It takes the
recurrence of `cuda_moments` through all moments of a run, with that of `moment_tangents`:

    x_(k + 1) = 2X x_k - x_(k - 1),    y_(k + 1) = 2X y_k + d(2X) x_k - y_(k - 1).

Every eight lanes are columns of one candidate. A product of matrices turns their moments into rows:
those of the run's compression, which propagators (`cuda_tangents`) come to as well, so that targets
are the same. Another makes the inner products of all columns. A candidate's numbers do not depend
on its company.

Multiplications and additions of a candidate in 40 runs at 16 voltages, of which 14 lead to others,
of a chain of n states with 4 n - 3 free parameters and 58 moments (`benchmarks/chains.py` with 500
samples); products of matrices are done at twice the speed of the others:

    states   propagators   this recurrence   rows of its moments   inner products
         6         7.6e6             2.9e6                 2.9e6            0.4e6
         8          21e6             5.3e6                 3.9e6            0.8e6
        12          89e6              13e6                 5.8e6            1.8e6
        16         253e6              28e6                 7.7e6            3.3e6

Propagators are dual matrices, 2 n^2 numbers, nearly each of which comes from memory where it is
multiplied. The recurrence has 8 n - 4 numbers and n for an end: of 16 states a sixth of the ends
are in memory, of 12 and fewer next to none. For that values and derivatives take turns of 16
moments, with values in shared memory in between, and many states go by flows along edges. Of the
rows 616 kB are written and read for a candidate of 12 states: 0.4 us of an H200. Inner products by
a thread each, as those of propagators, would take as long as the recurrence: two numbers are read
for each multiplication. Counted, and not taken:

* The columns of `moment_tangents`, n and one for each rate, are fewer than the parameters and take
  half of the recurrence. To make derivatives of them is a product with the derivatives of the
  state, of which every number is read from shared memory: four times as slow as it is multiplied.
* The transpose, once for each of some 28 directions: half of its table is zeros, which lanes side
  by side do not gain from; and a run that another begins from needs n more.
"""

from __future__ import annotations

from functools import cached_property

from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.cpu_moments import MOMENT_ERROR
from channelfit.scoring.kernels.cuda_algebra import ALGEBRA
from channelfit.scoring.kernels.cuda_dual import DUAL
from channelfit.scoring.kernels.cuda_moments import MEAN, WARPS, CudaMomentSource
from channelfit.scoring.kernels.cuda_pieces import UNRESOLVED
from channelfit.scoring.kernels.cuda_tangents import SEEDED
from channelfit.scoring.kernels.moment_tangents import (
    GREATEST_RESIDUAL_ERROR,
    GREATEST_SLOPE_ERROR,
    NEXT_TO_NOTHING,
)
from channelfit.scoring.kernels.writers import CudaWriter
from channelfit.scoring.layout.moment_tables import RUNG_BITS

#: Names of the kernels: rows of all columns, and which of the candidates are in doubt.
TRACE_MOMENTS, JUDGE_MOMENTS = "traceMoments", "judgeMoments"
#: The kernel that does what `multiplyTangents` does, for many columns.
MULTIPLY_COLUMNS = "multiplyColumns"
#: Columns of one candidate side by side, rows of a tile of a table, and moments that its products
#: take at once.
COLUMNS, TILE, CHUNK = 8, 16, 8
#: Moments of a warp that are kept in shared memory.
_KEPT = 64
#: States of the recurrence of values that a warp keeps there.
_AHEAD = 16
#: States up to which values of the recurrence keep what stays, beside the rates.
_MOST_STAYING = 12
#: Warps of a block that multiplies columns.
_MOST_WARPS = 16


def column_threads(width: int) -> int:
    """Return the threads of a block of `multiplyColumns`: a warp for four tiles of products."""
    return 32 * min(_MOST_WARPS, sum((i + 2) // 2 for i in range(-(-width // TILE))))


class CudaMomentTangentSource(CudaMomentSource):
    """The CUDA text that linearizes one model by moments.

    Attributes:
        text: CUDA C++ with the kernels `traceMoments`, `multiplyColumns`, `judgeMoments` and those
            of `cuda_algebra`. It compiles only behind the lines of `specialized`.
    """

    threads, blocks = 32, 8

    @cached_property
    def text(self) -> str:
        w, self.channel.first_kept = CudaWriter(), 0  # a rare first state decides small derivatives
        w(self.channel.title("currents and their derivatives by moments of Chebyshev"), "")
        w("constexpr int TANGENTS = 1;  // derivatives that a thread carries")
        self.channel.write(w, DUAL)
        w(
            *("", cuda_names(), f"enum {{ UNRESOLVED = {UNRESOLVED} }};"),
            f"constexpr int N = {len(self.chain.states)};  // states",
            f"constexpr int RUNG_BITS = {RUNG_BITS};  // of a float32, within a rung",
            f"constexpr int BLOCKS = {self.blocks};  // on a multiprocessor",
            f"constexpr int KEPT = {_KEPT};  // moments in shared memory",
            f"constexpr int AHEAD = {_AHEAD};  // states of the recurrence there",
            f"constexpr double MOMENT_ERROR = {MOMENT_ERROR!r};  // of the largest moment",
            f"constexpr double RESIDUAL_ERROR = {GREATEST_RESIDUAL_ERROR!r};",
            f"constexpr double SLOPE_ERROR = {GREATEST_SLOPE_ERROR!r};",
            f"constexpr double NEXT_TO_NOTHING = {NEXT_TO_NOTHING!r};",
        )
        w("", *MEAN.splitlines(), "", *_EXCHANGE.splitlines())
        self._greatest_speed(w)
        self._recurrences(w)
        self._open(w)
        w("", *WARPS.splitlines())
        self._drive(w, "Dual")
        w(*SEEDED.splitlines(), *ALGEBRA.splitlines(), "", *_KERNELS.splitlines())
        return w.text

    def _recurrences(self, w: CudaWriter) -> None:
        """Write what takes values and derivatives from one polynomial to the next.

        Many states go by the flows along edges, which take more operations, but keep fewer numbers.
        """
        n, n_entries = len(self.chain.states), len(self.entries)
        w("", "// 2 X, or its derivative.")
        w(f"struct Generator {{ double rate[{n_entries}], stay[N]; }};")
        with w.device(
            "void scaled(const Dual *q, const double scale, Generator &g, Generator &d)",
            "The generator at the rates q, scaled by 4/rho, and its derivative.",
        ):
            for r, (_, _, row) in enumerate(self.entries):
                w(f"g.rate[{r}] = q[{row}].v*scale;", f"d.rate[{r}] = q[{row}].d[0]*scale;")
            for i in range(n):
                out = [f"{{0}}.rate[{r}]" for r, (a, _, _) in enumerate(self.entries) if a == i]
                total = " + ".join(out) or "0.0"
                w(f"g.stay[{i}] = 2.0 - ({total.format('g')});")
                w(f"d.stay[{i}] = -({total.format('d')});")
        arrays = "double (&{0})[N], double (&other)[N])"
        with w.device(
            f"void advance(const Generator &g, {arrays.format('u')}",
            "The next polynomial in u, this one in other.",
        ):
            self._next(w, "u", [("g", "u")], n > _MOST_STAYING)
        with w.device(
            "void advance(const Generator &g, const Generator &d, const double (&x)[N],\n"
            f"                                        {arrays.format('y')}",
            "The same of derivatives y of x.",
        ):
            self._next(w, "y", [("g", "y"), ("d", "x")], self.is_large)

    def _next(self, w: CudaWriter, now: str, parts: list[tuple[str, str]], by_edges: bool) -> None:
        """Write now <- 2 X now - other, other <- now, from generators and what they multiply."""
        n = len(self.chain.states)
        if by_edges:
            w(*(f"other[{i}] = fma(2.0, {now}[{i}], -other[{i}]);" for i in range(n)))
            edges: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for r, (i, j, _) in enumerate(self.entries):
                edges.setdefault((min(i, j), max(i, j)), []).append((r, i))
            w("double flow;")
            for (a, b), rates in edges.items():
                text = ""
                for g, x in parts:
                    for r, i in rates:
                        factor = f"{'' if i == a else '-'}{g}.rate[{r}]"
                        text = f"fma({factor}, {x}[{i}], {text})" if text else f"{factor}*{x}[{i}]"
                w(f"flow = {text};", f"other[{a}] -= flow;", f"other[{b}] += flow;")
        else:
            for i in range(n):
                text = f"-other[{i}]"
                for g, x in parts:
                    text = f"fma({g}.stay[{i}], {x}[{i}], {text})"
                    for r, (source, target, _) in enumerate(self.entries):
                        if target == i:
                            text = f"fma({g}.rate[{r}], {x}[{source}], {text})"
                w(f"other[{i}] = {text};")
        w("exchange(" + now + ", other);")


_EXCHANGE = """\
INLINE void exchange(double (&u)[N], double (&other)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const double now = u[i];
        u[i] = other[i];
        other[i] = now;
    }
}"""

_KERNELS = f"""\
// A run from the state in slot source to that in target (-1: no run needs it), of n samples that
// count with root^2 each. Its rows: row k to first + k*stride of a candidate's `rows`, before which
// there are `before` rows of all candidates; n_rows is 0 where none is needed.
struct Run {{
    double root;
    int source, target, kind, n;
    int n_rows, before, rows, first, stride;
}};

// A rung of a kind of runs: moments, and where its tables begin, tile by tile; of the end too.
struct Rung {{ int degree, table, end; }};

constexpr int PAD = 36;  // columns of a moment, and room that spares conflicts of banks

// The eight columns of one candidate that are side by side: from which column on; -1: no candidate.
struct Columns {{ int candidate, first; Rung rung; }};

// Rows of a run, of some moments from `first` on in room; rows of earlier ones are added to.
INLINE void addRows(const double (&room)[KEPT][PAD], const int first, const int last,
                    const Run &run, const Columns (&own)[4], const double *__restrict__ tables,
                    const long long n, const int width, double *rows) {{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int tile = 0; tile*{TILE} < run.n_rows; ++tile) {{
        double c[4][4] = {{}}, a[4] = {{}};
#pragma unroll 1
        for (int k = first; k < last; k += {CHUNK}) {{
            int from = -1;
#pragma unroll
            for (int nt = 0; nt < 4; ++nt) {{
                const Rung &rung = own[nt].rung;
                if (k >= rung.degree) continue;
                const int at = rung.table + (tile*rung.degree + k)*{TILE};
                if (at != from) {{
                    const double2 *place = (const double2 *)(tables + at) + 2*lane;
                    const double2 left = __ldg(place), right = __ldg(place + 1);
                    a[0] = left.x;
                    a[1] = left.y;
                    a[2] = right.x;
                    a[3] = right.y;
                }}
                from = at;
                const int row = k - first + lane%4, column = nt*8 + lane/4;
                const double b[2] = {{room[row][column], room[row + 4][column]}};
                multiply(c[nt], a, b);
            }}
        }}
#pragma unroll
        for (int nt = 0; nt < 4; ++nt)
#pragma unroll
            for (int e = 0; e < 4; ++e) {{
                const int row = tile*{TILE} + lane/4 + e/2*8;
                const int column = own[nt].first + lane%4*2 + e%2;
                if (own[nt].candidate < 0 || column >= width || row >= run.n_rows) continue;
                double *place = rows + (run.before*n + (long long)run.rows*own[nt].candidate
                                        + run.first + row*run.stride)*width + column;
                *place = run.root*c[nt][e] + (first ? *place : 0.0);
            }}
    }}
}}

// The room of a warp: moments of its columns, and T_k(X) p0 of its candidates.
struct Room {{ double moments[KEPT][PAD], values[AHEAD + 1][4][N | 1]; }};

// The first of eight lanes writes what they all have; and back.
INLINE void keep(const double (&u)[N], double (&values)[4][N | 1]) {{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (lane % 8 == 0) values[lane/8][i] = u[i];
}}

INLINE void take(const double (&values)[N | 1], double (&u)[N]) {{
#pragma unroll
    for (int i = 0; i < N; ++i) u[i] = values[i];
}}

// What a lane knows of its column; `slope` is false of that of the current.
struct Column {{ bool slope; double drive, drive_slope, leak; Rung rung; }};

// Takes a lane through all moments of a run from the state x: its rows, and the state at the end.
// Returns a bound of all numbers of its column in the recurrence.
template <bool ENDS>
INLINE double followed(const Generator &g, const Generator &d, const Dual *x, const Column &mine,
                       const Run &run, const Columns (&own)[4],
                       const double *__restrict__ tables, const long long n, const int width,
                       Room &room, double *rows, Dual *target) {{
    const int lane = threadIdx.x % 32, group = lane/8;
    double y[N], other[N], end_slope[N], end[(N + 7)/8] = {{}};  // every eighth value
    {{
        double u[N], before[N] = {{}};
#pragma unroll
        for (int k = 0; k < N; ++k) {{
            u[k] = x[k].v;
            y[k] = x[k].d[0];
            other[k] = 0.0;
        }}
        // T_1 is T_(-1) as well
        advance(g, d, u, y, other);
        advance(g, u, before);
        exchange(y, other);
        exchange(u, before);
#pragma unroll
        for (int i = 0; i < N; ++i) {{
            other[i] *= 0.5;
            before[i] *= 0.5;
        }}
        __syncwarp();  // the room is read
        keep(u, room.values[AHEAD]);
        keep(before, room.values[AHEAD - 1]);
    }}
#pragma unroll
    for (int k = 0; k < N; ++k) end_slope[k] = 0.0;
    const int degree = max(max(own[0].rung.degree, own[1].rung.degree),
                           max(own[2].rung.degree, own[3].rung.degree));
    int grown = 0;
#pragma unroll 1
    for (int first = 0; first < degree; first += AHEAD) {{
        const int last = min(degree, first + AHEAD), held = first/KEPT*KEPT;
        __syncwarp();
        {{
            double u[N], before[N];
            take(room.values[AHEAD][group], u);
            take(room.values[AHEAD - 1][group], before);
            __syncwarp();
#pragma unroll 2
            for (int k = first; k < last; ++k) {{
                keep(u, room.values[k - first]);
                advance(g, u, before);
            }}
            keep(u, room.values[AHEAD]);
        }}
        __syncwarp();
#pragma unroll 2
        for (int k = first; k < last; ++k) {{
            double value[N];
            take(room.values[k - first][group], value);
            const double open = mine.slope ? openOf(y) : openOf(value);
            room.moments[k - held][lane] =
                fma(mine.drive, open, fma(mine.drive_slope, openOf(value), mine.leak));
            if (ENDS) {{
                const double share = k < mine.rung.degree ? __ldg(tables + mine.rung.end + k) : 0.0;
#pragma unroll
                for (int i = 0; i < N; ++i) end_slope[i] = fma(share, y[i], end_slope[i]);
#pragma unroll
                for (int i = 0; i < N; i += 8)
                    end[i/8] = fma(share, room.values[k - first][group][min(i + lane % 8, N - 1)],
                                   end[i/8]);
            }}
            if (k % 8 == 7 && k < mine.rung.degree) {{
#pragma unroll
                for (int i = 0; i < N; ++i)
                    grown = max(grown, magnitude(mine.slope ? y[i] : value[i]));
            }}
            advance(g, d, value, y, other);
        }}
        if (last < degree && last - held < KEPT) continue;
        __syncwarp();
        if (run.n_rows) addRows(room.moments, held, last, run, own, tables, n, width, rows);
    }}
    if (ENDS) {{
        __syncwarp();
#pragma unroll
        for (int i = 0; i < N; i += 8)
            if (i + lane % 8 < N) room.values[0][group][i + lane % 8] = end[i/8];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < N; ++k) {{
            target[k].v = room.values[0][group][k];
            target[k].d[0] = end_slope[k];
        }}
    }}
    return __hiloint2double(grown + 1, 0);
}}

// The n candidates through job blockIdx.y: thread i has column i % n_columns of candidate
// i/n_columns: the current, then its derivatives by parameters free[], then nothing. Writes rows,
// pA times the root of a weight; lost (jobs, n, 1 + n_free), squares that rounding may spoil; and
// status (jobs, n).
extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS) {TRACE_MOMENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_columns, const int *__restrict__ jobs,
    const int *__restrict__ visits, const Level *__restrict__ visit_v,
    const double *__restrict__ visit_most, const Run *__restrict__ runs,
    const Level *__restrict__ start_v, const int n_starts, const int first_rung,
    const Rung *__restrict__ rungs, const double *__restrict__ tables, double *rows,
    double *__restrict__ lost, signed char *__restrict__ statuses) {{
    __shared__ Room rooms[MAX_THREADS/32];
    const int lane = threadIdx.x % 32, job = blockIdx.y, total = int(n)*n_columns;
    const int thread = blockIdx.x*blockDim.x + threadIdx.x;
    const int i = thread < total ? thread : total - {COLUMNS} + lane % {COLUMNS};  // all have work
    const int candidate = i/n_columns, column = i % n_columns, width = 1 + n_free;
    const int seeded = column ? column - 1 : n_free;
    Columns own[4];
#pragma unroll
    for (int nt = 0; nt < 4; ++nt) {{
        own[nt].candidate = __shfl_sync(~0u, thread < total ? candidate : -1, nt*8);
        own[nt].first = __shfl_sync(~0u, column, nt*8);
    }}
    Dual slots[N*N_SLOTS];
    double errors[N_SLOTS], spoiled = 0.0;
    int status = OK;
    bool doubt = false;
#pragma unroll 1
    for (int start = 0; start < n_starts; ++start) {{
        Dual p[N_PARAMETERS], q[N_RATES];
        seed(parameters, n, candidate, free, n_free, seeded, p);
        createQmat(start_v[start], p, q, status);
        initStateProbs(q, slots + N*start);
        errors[start] = 0.0;
    }}
#pragma unroll 1
    for (int visit = jobs[job]; visit < jobs[job + 1]; ++visit) {{
        const Level v = visit_v[visit];
        Column mine = {{column > 0}};
        Generator g, d;
        int number = 0;
        {{
            Dual p[N_PARAMETERS], q[N_RATES], drive, leak;
            seed(parameters, n, candidate, free, n_free, seeded, p);
            createQmat(v, p, q, status);
            driveAt(v, p, drive, leak, status);
            mine.drive = drive.v;
            mine.drive_slope = drive.d[0];
            mine.leak = mine.slope ? leak.d[0] : leak.v;
            double rates[N_RATES];
#pragma unroll
            for (int k = 0; k < N_RATES; ++k) rates[k] = q[k].v;
            double fastest = greatestSpeed(rates);
            if (!(fastest <= visit_most[visit])) {{  // beyond the tables
                doubt = true;
                fastest = 0.0;
            }}
            number = max(rungOf(fastest) - first_rung, 0);
            const double rho = __int_as_float((first_rung + number) << RUNG_BITS);
            scaled(q, fastest > 0.0 ? 4.0/rho : 0.0, g, d);
        }}
#pragma unroll 1
        for (int r = visits[visit]; r < visits[visit + 1]; ++r) {{
            const Run run = runs[r];
            mine.rung = rungs[run.kind + number];
#pragma unroll
            for (int nt = 0; nt < 4; ++nt) {{
                own[nt].rung.degree = __shfl_sync(~0u, mine.rung.degree, nt*8);
                own[nt].rung.table = __shfl_sync(~0u, mine.rung.table, nt*8);
            }}
            const Dual *x = slots + N*run.source;
            Room &room = rooms[threadIdx.x/32];
            const bool ends = run.target >= 0;
            Dual *y = slots + N*(ends ? run.target : 0);
            const double bound =
                ends ? followed<true>(g, d, x, mine, run, own, tables, n, width, room, rows, y)
                     : followed<false>(g, d, x, mine, run, own, tables, n, width, room, rows, y);
            const double error = errors[run.source] + MOMENT_ERROR*bound;
            const double off = run.root*mine.drive*error;
            if (run.n_rows) spoiled += run.n*(off*off);
            if (ends) errors[run.target] = error;
        }}
    }}
    if (thread >= total || column >= width) return;
    lost[((long long)job*n + candidate)*width + column] = spoiled;
    if (column == 0)
        statuses[(long long)job*n + candidate] =
            (signed char)(status == OK && doubt ? UNRESOLVED : status);
}}

// What `multiplyTangents` computes, by products of matrices, of rows that are all in `currents`. A
// warp has sixteen columns i and 32 columns j.
extern "C" __global__ void {MULTIPLY_COLUMNS}(
    const double *__restrict__ currents, const double *, const Part *__restrict__ parts,
    const int width, const double *__restrict__ targets, const int n_targets,
    const int *__restrict__ wells, double *__restrict__ partial) {{
    constexpr int STAGE = 16, MOST = (N_PARAMETERS + 32)/32*32;
    __shared__ double stage[STAGE][MOST + 4];  // without conflicts of banks
    const int lane = threadIdx.x % 32, n_warps = blockDim.x/32;
    const Part part = parts[blockIdx.y];
    const long long n = gridDim.x, candidate = blockIdx.x;
    const double *rows = currents + (part.before*n + candidate*part.n_rows)*width;
    targets += (wells ? (long long)wells[candidate]*n_targets : 0) + part.target;
    partial += (blockIdx.y*n + candidate)*(width*(width + 1)/2);
    int n_fours = 0;  // of tiles
    for (int strip = 0; strip*{TILE} < width; ++strip) n_fours += (strip + 2)/2;
#pragma unroll 1
    for (int base = 0; base < n_fours; base += n_warps) {{
        int four = base + threadIdx.x/32, strip = 0;
        for (; four >= (strip + 2)/2; ++strip) four -= (strip + 2)/2;
        const bool active = strip*{TILE} < width;
        double c[4][4] = {{}};
#pragma unroll 1
        for (int row = part.begin; row < part.end; row += STAGE) {{
            __syncthreads();
#pragma unroll 4
            for (int r = threadIdx.x/32; r < STAGE; r += n_warps) {{
                const bool there = row + r < part.end;
                const double target = there && lane == 0 ? targets[row + r] : 0.0;
#pragma unroll
                for (int column = lane; column < MOST; column += 32) {{
                    const double *place = rows + (long long)(row + r)*width + column;
                    const double number = there && column < width ? *place : 0.0;
                    stage[r][column] = column ? number : number - target;
                }}
            }}
            __syncthreads();
#pragma unroll
            for (int k = lane % 4; k < STAGE && active; k += {CHUNK}) {{
                const int i = strip*{TILE} + lane/4, j = four*32 + lane/4;
                const double a[4] = {{stage[k][i], stage[k][i + 8], stage[k + 4][i],
                                     stage[k + 4][i + 8]}};
#pragma unroll
                for (int t = 0; t < 4; ++t) {{
                    const double b[2] = {{stage[k][j + t*8], stage[k + 4][j + t*8]}};
                    multiply(c[t], a, b);
                }}
            }}
        }}
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) {{
                const int i = strip*{TILE} + lane/4 + e/2*8;
                const int j = four*32 + t*8 + lane%4*2 + e%2;
                if (i < width && j <= i) partial[i*(i + 1)/2 + j] = c[t][e];
            }}
    }}
}}

// Candidates of which rounding may have spoiled the residuals or a derivative become UNRESOLVED, as
// do those whose sums are no numbers although all rates are; see `moment_tangents`. Block x has
// candidate x.
extern "C" __global__ void {JUDGE_MOMENTS}(
    const double *__restrict__ parameters, const int *__restrict__ free, const int n_free,
    const int n_parameters, const double *__restrict__ lost,
    const signed char *__restrict__ statuses, const int n_jobs,
    const double *__restrict__ total_weights, const int *__restrict__ wells,
    const double *__restrict__ cost, const double *__restrict__ hessian,
    signed char *__restrict__ status) {{
    __shared__ int largest;  // of a derivative's squares times that of its parameter: leading bits
    const long long n = gridDim.x, i = blockIdx.x;
    const int width = 1 + n_free;
    const double weight = total_weights[wells ? wells[i] : 0];
    bool failed = false, good = true;
    for (int job = threadIdx.x; job < n_jobs; job += blockDim.x)
        failed |= statuses[job*n + i] != OK;
    if (threadIdx.x == 0) largest = 0;
    if (__syncthreads_or(failed)) return;  // known already
    for (int column = 1 + threadIdx.x; column < width; column += blockDim.x) {{
        const long long p = free[column - 1];
        const double size = parameters[p*n + i];
        atomicMax(&largest, magnitude(0.5*weight*hessian[(p*n_parameters + p)*n + i]*(size*size)));
    }}
    __syncthreads();
    for (int column = threadIdx.x; column < width; column += blockDim.x) {{
        double all = 0.0, length = weight*cost[i];
#pragma unroll 8
        for (int job = 0; job < n_jobs; ++job) all += lost[(job*n + i)*width + column];
        if (column) {{
            const long long p = free[column - 1];
            const double size = fmax(fabs(parameters[p*n + i]), 1e-150);
            const double nothing = NEXT_TO_NOTHING/size;
            length = fmax(0.5*weight*hessian[(p*n_parameters + p)*n + i],
                          nothing*nothing*__hiloint2double(largest, 0));
        }}
        const double part = column ? SLOPE_ERROR : RESIDUAL_ERROR;
        good = good && all <= part*part*length;
    }}
    const bool spoiled = __syncthreads_or(!good);
    if (threadIdx.x == 0 && (spoiled || status[i] != OK)) status[i] = UNRESOLVED;
}}
"""
