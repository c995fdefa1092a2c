"""CUDA for scores of held voltages by Chebyshev moments: one thread a candidate, one warp a table.

`layout.moment_tables` has the mathematics. At each visit of a `visit_order.Schedule` a thread makes
the generator of its candidate, and for each run one recurrence with it: open probabilities of
Chebyshev's polynomials of the generator, the moments. The lanes of a warp share the bound of
all their rates, so that one table turns the moments of all into coordinates of their currents: a
product of matrices, which the matrix units for float64 do. Large populations are sorted by the
bound at the voltage that takes most moments, so that the lanes of a warp are about equally fast.

A candidate that is too stiff for the tables, or whose moments grow so that digits are lost, is put
on a list, and the caller scores it by stepping. Where that would be many, the text is one that
takes moments of resolvents (`layout.resolvent_tables`) from all candidates, however stiff: the same
but for the recurrence, and with one rung.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

from channelfit.model.channel import ChannelModel
from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.cuda_spectral import ADD_JOBS, FINISH
from channelfit.scoring.kernels.detailed_balance import keeps_detailed_balance, modes_are_real
from channelfit.scoring.kernels.resolvents import Elimination
from channelfit.scoring.kernels.scalars import ThreadScalars
from channelfit.scoring.kernels.writers import CudaWriter
from channelfit.scoring.layout.moment_tables import RUNG_BITS

#: How far elements of the recurrence may exceed those of a state: they bring as much more of the
#: rounding errors, and of what tables leave out.
_GREATEST_GROWTH = 3e5
#: The least rho, as a multiple of the fastest exit from a state: below it little is gained.
_LEAST_RHO = 1.25
#: A cost below this part of the data's own sum of squares is scored by stepping.
LEAST_COST = 1e-10
#: The same of resolvents, whose tables leave out a little more.
LEAST_COST_RESOLVENTS = 1e-6
#: The kernel of `CudaMomentSource.text` by whose results candidates are sorted.
BOUND_SPEEDS = "boundSpeeds"
#: States up to which a loop over all moments of a chunk is short enough.
_SMALL = 10
#: The shared memory that parameters of a block may take, beside that for moments.
_SHARED_BYTES = 36 * 1024
#: Moments that are summed at once; rows of a tile of a table, and tiles that are summed at once.
CHUNK, TILE, TILES = 8, 16, 2


class CudaMomentSource:
    """The CUDA text that scores one model by moments.

    Arguments:
        resolves: whether by those of resolvents.

    Attributes:
        threads, blocks: of a block, and blocks on a multiprocessor: registers hold no more.
        oscillating: whether some modes may not be real.
        text: CUDA C++ with the kernels `runSweep`, `addJobs` and `boundSpeeds`. It compiles only
            behind the lines of `specialized`.
        hash: 16 hexadecimal digits of its SHA-256.
    """

    threads = 64
    blocks = 4

    def __init__(self, model: ChannelModel, resolves: bool = False) -> None:
        self.model, self.resolves = model, resolves
        self.channel = CudaChannel(model)
        self.k, self.chain = self.channel.chains[0]
        self.entries = self.channel.entries(self.k)
        self.oscillating = not modes_are_real(model)
        self._balanced = keeps_detailed_balance(model, self.chain)
        self.opening = next(row for row, term in enumerate(model.terms) if term.chains)
        self.leaks = [row for row, term in enumerate(model.terms) if not term.chains]
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def specialized(self, n_slots: int) -> str:
        """Return the text for a schedule of at most n_slots state slots."""
        return f"#define N_SLOTS {n_slots}\n#define MAX_THREADS {self.threads}\n{self.text}"

    @cached_property
    def text(self) -> str:
        w = CudaWriter()
        w(
            self.channel.title(
                f"scores by moments of {'resolvents' if self.resolves else 'Chebyshev'}"
            )
        )
        w("")
        self.channel.write(w)
        w(
            "",
            cuda_names(),
            f"constexpr int N = {len(self.chain.states)};  // states",
            f"constexpr int CHUNK = {CHUNK};  // moments that are summed at once",
            f"constexpr int TILES = {TILES};  // of sixteen rows, in a part of a table",
            f"constexpr double GREATEST_GROWTH = {_GREATEST_GROWTH!r};",
            f"constexpr int RUNG_BITS = {RUNG_BITS};  // of a float32, within a rung",
            f"constexpr int BLOCKS = {self.blocks};  // on a multiprocessor",
            f"constexpr int UNROLLED = {2 if self.is_large else CHUNK};  // of a CHUNK",
            f"constexpr bool RESOLVES = {str(self.resolves).lower()};  // moments of resolvents",
            f"constexpr bool KEPT = {str(self._keeps_parameters).lower()};  // parameters",
        )
        w("", *MEAN.splitlines())
        self._greatest_speed(w)
        (self._resolvent if self.resolves else self._generator)(w)
        self._open(w)
        w("", *FINISH.splitlines(), "", *WARPS.splitlines())
        self._drive(w)
        w("", *_KERNEL.splitlines(), "", *ADD_JOBS.splitlines())
        return w.text

    @property
    def is_large(self) -> bool:
        """Whether loops of a chunk are too long for the cache of instructions.

        Measured on an H100: from 12 states on, short loops and parameters in shared memory make a
        score 5 to 15 % faster; with 8 states long ones are.
        """
        return len(self.chain.states) > _SMALL

    @property
    def _keeps_parameters(self) -> bool:
        """Whether the parameters of a block's candidates stay in shared memory."""
        size = 8 * self.threads * len(self.model.parameters)
        return self.is_large and size <= _SHARED_BYTES

    # --- pieces of text

    def _greatest_speed(self, w: CudaWriter) -> None:
        """Write a bound of the eigenvalues: the disks of Gershgorin.

        A scheme in detailed balance is similar to a symmetric matrix, whose disks are smaller.
        """
        with w.device("double greatestSpeed(const double *q)", "No mode is faster, 1/ms."):
            rows = {(i, j): row for i, j, row in self.entries}
            exits: dict[int, list[tuple[int, int]]] = {}
            for source, target, row in self.entries:
                exits.setdefault(source, []).append((target, row))
            w("double most = 0.0, disk = 0.0;")
            for source, out in exits.items():
                total = " + ".join(f"q[{row}]" for _, row in out)
                w("{", f"    const double out = {total};", "    most = fmax(most, out);")
                if self._balanced:
                    means = " + ".join(
                        f"meanOf(q[{row}], q[{rows[target, source]}])" for target, row in out
                    )
                    w(f"    disk = fmax(disk, out + {means});")
                w("}")
            if self._balanced:
                w(f"return fmin(2.0*most, fmax({_LEAST_RHO!r}*most, disk));")
            else:
                w("return 2.0*most;")

    def _generator(self, w: CudaWriter) -> None:
        """Write the recurrence u, before <- 2 X u - before, u with 2 X = 2 + A 4/rho."""
        n = len(self.chain.states)
        w("", "// 2 X.")
        w(f"struct Generator {{ double rate[{len(self.entries)}], stay[N]; }};")
        with w.device(
            "void scaled(const double *q, const double scale, Generator &g)",
            "The generator at the rates q, scaled by 4/rho.",
        ):
            for r, (_, _, row) in enumerate(self.entries):
                w(f"g.rate[{r}] = q[{row}]*scale;")
            for i in range(n):
                out = [f"g.rate[{r}]" for r, (a, _, _) in enumerate(self.entries) if a == i]
                w(f"g.stay[{i}] = 2.0 - ({' + '.join(out) or '0.0'});")
        head = "(const Generator &g, double (&u)[N], double (&other)[N])"
        with w.device(f"void advance{head}", "The next polynomial in u, this one in other."):
            self._product(w, [f"fma(g.stay[{i}], u[{i}], -other[{i}])" for i in range(n)])
            w("#pragma unroll")
            with w.block("for (int i = 0; i < N; ++i)"):
                w("const double now = u[i];", "u[i] = next[i];", "other[i] = now;")
        head = head.replace("double (&u)", "const double (&u)", 1)
        with w.device(f"void begin{head}", "The polynomial before the first: the one after it."):
            self._product(w, [f"g.stay[{i}]*u[{i}]" for i in range(n)])
            w("#pragma unroll", "for (int i = 0; i < N; ++i) other[i] = 0.5*next[i];")
        w("", *_CHEBYSHEV_STEPS.splitlines())

    def _resolvent(self, w: CudaWriter) -> None:
        """Write the recurrence u <- 2 R u - u with R = s (s - A)^-1."""
        n, elimination = len(self.chain.states), Elimination(len(self.chain.states), self.entries)
        c, sizes = ThreadScalars(w, (), ()), {"q": "N_RATES"} | elimination.sizes
        w("", "// s - A, eliminated, and the rates.")
        arrays = ", ".join(f"{name}[{size}]" for name, size in sizes.items() if size)
        w(f"struct Generator {{ double {arrays}; }};")
        with w.device("void scaled(const double *q, double, Generator &g)", "The rates."):
            w("#pragma unroll", "for (int k = 0; k < N_RATES; ++k) g.q[k] = q[k];")

        def given(arrays: str, const: str) -> None:
            w(*(f"{const}double *{a} = g.{a};" for a in arrays.split()))

        with w.device("void factor(Generator &g, const double speed)", "Eliminates speed - A."):
            given("q", "const ")
            given("hold onward inward", "")
            elimination.factor(c, "speed")
        for head, doc, result in (
            ("advance", "C times u.", "2.0*{0} - u[{1}]"),
            ("begin", "R times u.", "{0}"),
        ):
            with w.device(f"void {head}(const Generator &g, double (&u)[N])", doc):
                given("hold onward inward", "const ")
                found = elimination.solve(c, [f"u[{i}]" for i in range(n)])
                w(*(f"u[{i}] = {result.format(x, i)};" for i, x in enumerate(found)))
        w("", *_RESOLVENT_STEPS.splitlines())

    def _product(self, w: CudaWriter, diagonal: list[str]) -> None:
        """Write next, from parts on the diagonal and the rates times u."""
        w("const double next[N] = {")
        for i, text in enumerate(diagonal):
            for r, (source, target, _) in enumerate(self.entries):
                if target == i:
                    text = f"fma(g.rate[{r}], u[{source}], {text})"
            w(f"    {text},")
        w("};")

    def _open(self, w: CudaWriter) -> None:
        with w.device("double openOf(const double (&u)[N])", "Open probability."):
            terms = [
                f"u[{i}]" if c == 1 else f"{c!r}*u[{i}]"
                for i, c in enumerate(self.chain.conductances)
                if c
            ]
            w(f"return {' + '.join(terms) or '0'};")

    def _drive(self, w: CudaWriter, number: str = "double") -> None:
        with w.device(
            f"void driveAt(const Level v, const {number} *p, {number} &drive, {number} &leak,\n"
            "                                        int &status)",
            "The current at v mV if the channel were open, and the current beside it, pA.",
        ):
            if self.channel.ohmic:
                share = self.channel.always_open
                w(f"{number} conductance, reversal;")
                w("createGains(p, conductance, reversal, status);")
                times = f"*{share!r}" if share != 1 else ""
                w(f"drive = conductance*(double(v) - reversal){times};")
                w("leak = 0.0;")
                return
            share = self.channel.lone_share(self.opening)
            w(f"{number} drives[N_TERMS];", "createDrives(v, p, drives, status);")
            w(f"drive = drives[{self.opening}]{f'*{share!r}' if share != 1 else ''};")
            w(f"leak = {' + '.join(f'drives[{row}]' for row in self.leaks) or '0.0'};")


_RESOLVENT_STEPS = """\
// The first moment of each pole from the state at first, and behind all poles its own.
__device__ __forceinline__ void enter(Generator &g, const int k, const double *poles,
                                      double (&u)[N], const double (&first)[N]) {
    const int n_poles = int(poles[0]), powers = int(poles[1]);
    if (k % powers) return;
#pragma unroll
    for (int i = 0; i < N; ++i) u[i] = first[i];
    if (k >= n_poles*powers) return;
    factor(g, poles[2 + k/powers]);
    begin(g, u);
}
__device__ __forceinline__ void advance(const Generator &g, double (&u)[N], double (&)[N]) {
    advance(g, u);
}
__device__ __forceinline__ void begin(const Generator &, const double (&u)[N], double (&first)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) first[i] = u[i];
}"""

#: Chebyshev's moments begin once.
_CHEBYSHEV_STEPS = """\
__device__ __forceinline__ void enter(const Generator &, int, const double *, double (&)[N],
                                      const double (&)[N]) {}"""

MEAN = """\
// The geometric mean of two rates, hardly too large: infinite ones give another bound.
__device__ __forceinline__ double meanOf(const double a, const double b) {
    return double(sqrtf(float(a))*sqrtf(float(b))*1.00001f);
}"""

#: What the lanes of a warp do together.
WARPS = """\
// c, 8 x 8, += a, 8 x 4, times b, 4 x 8. A lane has of a: row lane/4, column lane%4; of b: row
// lane%4, column lane/4; of c: row lane/4, columns lane%4*2 and the next.
__device__ __forceinline__ void multiplySmall(double &c0, double &c1, const double a,
                                              const double b) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c0), "+d"(c1) : "d"(a), "d"(b));
#else
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const double mine = __shfl_sync(~0u, a, lane/4*4 + k);
        c0 += mine*__shfl_sync(~0u, b, lane%4*8 + k);
        c1 += mine*__shfl_sync(~0u, b, lane%4*8 + 4 + k);
    }
#endif
}

// c, 16 x 8, += a, 16 x 8, times b, 8 x 8: of c rows lane/4, then lane/4 + 8; of a columns lane%4,
// then lane%4 + 4, each with both rows; of b rows lane%4 and lane%4 + 4.
__device__ __forceinline__ void multiply(double (&c)[4], const double (&a)[4],
                                         const double (&b)[2]) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
    multiplySmall(c[0], c[1], a[0], b[0]);
    multiplySmall(c[2], c[3], a[1], b[0]);
    multiplySmall(c[0], c[1], a[2], b[1]);
    multiplySmall(c[2], c[3], a[3], b[1]);
#endif
}

// Values of candidates nt*8 + lane%4*2 + h, summed over the lanes of the same lane%4; each lane
// keeps the sum of candidate lane/8*8 + lane%4*2 + lane/4%2.
__device__ __forceinline__ double halve(double (&sums)[4][2]) {
    const int lane = threadIdx.x % 32;
    const bool high = lane & 16, middle = lane & 8, low = lane & 4;
    double two[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const double keep = high ? sums[2 + i/2][i%2] : sums[i/2][i%2];
        const double give = high ? sums[i/2][i%2] : sums[2 + i/2][i%2];
        two[i/2][i%2] = keep + __shfl_xor_sync(~0u, give, 16);
    }
    double one[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const double keep = middle ? two[1][i] : two[0][i], give = middle ? two[0][i] : two[1][i];
        one[i] = keep + __shfl_xor_sync(~0u, give, 8);
    }
    return (low ? one[1] : one[0]) + __shfl_xor_sync(~0u, low ? one[0] : one[1], 4);
}

// The same number for all lanes: the greatest.
__device__ __forceinline__ int greatestOf(int x) {
#pragma unroll
    for (int d = 16; d; d /= 2) x = max(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

// The lowest rung of at least rho, by the bits of float32.
__device__ __forceinline__ int rungOf(const double rho) {
    return (__float_as_int(float(fmin(rho, 1e30))*1.000001f) + (1 << RUNG_BITS) - 1) >> RUNG_BITS;
}

// The bits that order magnitudes.
__device__ __forceinline__ int magnitude(const double x) {
    return __double2hiint(x) & 0x7fffffff;
}"""

_KERNEL = """\
struct Run {
    double weight;            // of a sample
    int source, target;       // state slots; target -1 where no run needs the end
    int kind, data;           // its lowest rung; where its data begin
};

// A part of a table: moments that count for each of its tiles, and where it begins.
struct Part { int lengths[TILES], table; };

// A rung of a kind of runs: the first part of its table and where others follow; moments of the end
// and where their coefficients begin; where the data of a run for it begin.
struct Rung { Part part; int degree, ends, parts, others, data; };

constexpr int PAD = 36;  // candidates of a row, and room that spares conflicts of banks

// The moments of one run from the state in u: c gets coordinates, tile by tile; or end gets the
// state. Returns the greatest magnitude of the recurrence.
template <bool ENDS, bool SCORES>
__device__ __forceinline__ int moments(Generator &g, const double *poles, double (&u)[N],
                                       const double drive, const double leak, const Part &part,
                                       const int degree, const double *__restrict__ table,
                                       const double *__restrict__ ends,
                                       double (*shared)[CHUNK][PAD], double (&c)[TILES][4][4],
                                       double (&end)[N]) {
    const int lane = threadIdx.x % 32;
    double other[N];
    begin(g, u, other);
    int grown = 0;
    __syncwarp();  // the room of the run before is read
    const double2 *row = (const double2 *)(table + part.table) + 2*lane;
#pragma unroll 1
    for (int k = 0; k < degree; k += CHUNK, shared += k & CHUNK ? 1 : -1, row += TILES*64) {
        enter(g, k, poles, u, other);
        double a[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES && SCORES; ++t)
            if (k < part.lengths[t]) {
                const double2 left = __ldg(row + t*64), right = __ldg(row + t*64 + 1);
                a[t][0] = left.x;
                a[t][1] = left.y;
                a[t][2] = right.x;
                a[t][3] = right.y;
            }
#pragma unroll UNROLLED
        for (int j = 0; j < CHUNK; ++j) {
            if (SCORES) (*shared)[j][lane] = fma(drive, openOf(u), leak);
            if (ENDS) {
                const double share = __ldg(ends + k + j);
#pragma unroll
                for (int i = 0; i < N; ++i) end[i] = fma(share, u[i], end[i]);
            }
            advance(g, u, other);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) grown = max(grown, magnitude(u[i]));
        if (!SCORES) continue;
        __syncwarp();
#pragma unroll
        for (int nt = 0; nt < 4; ++nt) {
            const double b[2] = {(*shared)[lane%4][nt*8 + lane/4],
                                 (*shared)[lane%4 + 4][nt*8 + lane/4]};
#pragma unroll
            for (int t = 0; t < TILES; ++t)
                if (k < part.lengths[t]) multiply(c[t][nt], a[t], b);
        }
    }
    return grown;
}

// The coordinates of one part of a run, less those of its data, and the state at its end.
__device__ __forceinline__ int followed(Generator &g, const double *x,
                                        const double drive, const double leak, const Rung &rung,
                                        const Part &part, const bool scored, const bool ends,
                                        const double *data, const double *__restrict__ table,
                                        const double *__restrict__ end_table,
                                        double (*room)[CHUNK][PAD], double (&c)[TILES][4][4],
                                        double (&end)[N]) {
    const int lane = threadIdx.x % 32;
    double u[N];
    double left = 1.0;
#pragma unroll
    for (int k = 1; k < N; ++k) { left -= x[k - 1]; u[k] = x[k - 1]; }
    u[0] = left;
#pragma unroll
    for (int k = 0; k < N && ends; ++k) end[k] = 0.0;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int h = 0; h < 4; h += 2) {
            const double datum = scored ? data[t*16 + h*4 + lane/4] : 0.0;
#pragma unroll
            for (int nt = 0; nt < 4; ++nt) c[t][nt][h] = c[t][nt][h + 1] = -datum;
        }
    const int degree = ends ? rung.degree : part.lengths[0];
    const double *share = end_table + rung.ends, *poles = share + rung.degree;
    if (!scored)
        return moments<true, false>(g, poles, u, drive, leak, part, degree, table, share, room, c,
                                    end);
    if (ends)
        return moments<true, true>(g, poles, u, drive, leak, part, degree, table, share, room, c,
                                   end);
    return moments<false, true>(g, poles, u, drive, leak, part, degree, table, share, room, c, end);
}

// The bound of all modes at v mV, 1/ms, of candidates first and on; huge where there is none.
extern "C" __global__ void boundSpeeds(
    const double *__restrict__ parameters, const long long n_candidates, const int first,
    const int n_scored, const Level *__restrict__ v, float *__restrict__ speeds) {
    const int i = blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n_scored) return;
    double p[N_PARAMETERS], q[N_RATES];
    int status = OK;
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameters[k*n_candidates + first + i];
    createQmat(*v, p, q, status);
    const float speed = float(greatestSpeed(q));
    speeds[i] = speed >= 0.0f ? speed : 1e38f;
}

// One thread: candidate first + i through the visits of job blockIdx.y. Where there is an order (n)
// of candidates a thread takes a place in it, and the parameters are in that order, n of each. With
// several jobs, partial and flags (jobs, n) take the sums and (status, + 16 for doubt), and addJobs
// finishes.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS) runSweep(
    const double *__restrict__ parameters, const long long n_candidates, const int first,
    const int n_scored, const long long *__restrict__ order, const int *__restrict__ jobs,
    const int *__restrict__ visits,
    const Level *__restrict__ visit_v, const double *__restrict__ visit_most,
    const Run *__restrict__ runs, const Level *__restrict__ start_v, const int n_starts,
    const int first_rung, const Rung *__restrict__ rungs, const Part *__restrict__ parts,
    const double *__restrict__ table, const double *__restrict__ end_table,
    const double *__restrict__ coordinates,
    const double constant, const double least, const double total_weight,
    double *__restrict__ partial, signed char *__restrict__ flags, double *__restrict__ costs,
    signed char *__restrict__ statuses, int *__restrict__ listed, int *__restrict__ n_listed) {
    __shared__ double shared[MAX_THREADS/32][2][CHUNK][PAD];
    const int own = blockIdx.x*blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const int job = blockIdx.y, place = min(own, n_scored - 1);  // every lane has work
    const int i = order ? (int)order[place] : place;
    const double *parameter = parameters + (order ? place : first + place);
    __shared__ double kept[KEPT ? N_PARAMETERS : 1][MAX_THREADS];
#pragma unroll
    for (int k = 0; k < N_PARAMETERS && KEPT; ++k)
        kept[k][threadIdx.x] = parameter[k*n_candidates];
    double slots[N_X*N_SLOTS], cost = 0.0;
    int status = OK, grown = 0;
    bool doubt = false;
    for (int start = 0; start < n_starts; ++start) {
        double p[N_PARAMETERS], q[N_RATES];
#pragma unroll
        for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameter[k*n_candidates];
        createQmat(start_v[start], p, q, status);
        initStateProbs(q, slots + N_X*start);
    }
    Run next = runs[visits[jobs[job]]];
#pragma unroll 1
    for (int visit = jobs[job]; visit < jobs[job + 1]; ++visit) {
        double p[N_PARAMETERS], q[N_RATES], drive, leak;
#pragma unroll
        for (int k = 0; k < N_PARAMETERS; ++k)
            p[k] = KEPT ? kept[KEPT ? k : 0][threadIdx.x] : parameter[k*n_candidates];
        const Level v = visit_v[visit];
        createQmat(v, p, q, status);
        driveAt(v, p, drive, leak, status);
        double mine = greatestSpeed(q);
        if (!RESOLVES && !(mine <= visit_most[visit])) {  // beyond the tables: stepped
            doubt = true;
            mine = 0.0;
        }
        const float most = __int_as_float(greatestOf(__float_as_int(float(mine))));
        const int number = RESOLVES ? 0 : max(rungOf(most) - first_rung, 0);
        const double scale =
            mine > 0.0 ? 4.0/__int_as_float((first_rung + number) << RUNG_BITS) : 0.0;
        Generator g;
        scaled(q, scale, g);
#pragma unroll 1
        for (int r = visits[visit]; r < visits[visit + 1]; ++r) {
            const Run run = next;
            next = runs[r + 1];  // one is behind the last
            const Rung rung = rungs[run.kind + number];
            const bool scored = run.weight > 0.0;
            const double *x = slots + N_X*run.source, *data = coordinates + run.data + rung.data;
            double (*room)[CHUNK][PAD] = shared[threadIdx.x/32];
            double end[N], sum = 0.0;
            bool ends = run.target >= 0;
            const int n_parts = scored ? rung.parts : int(ends);
#pragma unroll 1
            for (int k = 0; k < n_parts; ++k, ends = false) {
                const Part part = k ? parts[rung.others + k] : rung.part;
                const double *datum = data + 1 + k*TILES*16;
                double c[TILES][4][4];
                grown = max(grown, followed(g, x, drive, leak, rung, part, scored, ends, datum,
                                            table, end_table, room, c, end));
                if (!scored) break;
                double sums[4][2] = {};
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int e = 0; e < 16; ++e) {
                        const double off = c[t][e/4][e%4];
                        sums[e/4][e%2] = fma(off, off, sums[e/4][e%2]);
                    }
                sum += halve(sums);
            }
            if (scored) cost = fma(run.weight, sum + data[0], cost);
            if (run.target >= 0) {
                double *y = slots + N_X*run.target;
#pragma unroll
                for (int k = 1; k < N; ++k) y[k - 1] = end[k];
            }
        }
    }
    // from the lane that summed to the one that has the candidate
    cost = __shfl_sync(~0u, cost, lane/8*8 + (lane & 1)*4 + (lane >> 1 & 3));
    doubt |= !(grown < magnitude(GREATEST_GROWTH));
    if (own >= n_scored) return;
    if (gridDim.y > 1) {
        partial[(long long)job*n_scored + i] = cost;
        flags[(long long)job*n_scored + i] = (signed char)(status | (doubt ? 16 : 0));
    } else {
        finish(cost, status, doubt, constant, least, total_weight, first + i,
               {costs, statuses, listed, n_listed});
    }
}"""
