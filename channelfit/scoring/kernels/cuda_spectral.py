"""CUDA for scores without samples: one thread sums a candidate's cost from the modes of its runs.

The kernel walks a `visit_order.Schedule`: at each visit it computes rates and spectrum once, then
serves the visit's runs. Everything is float64: the three parts of a sum of squares cancel. Where a
candidate's modes are badly conditioned, or its cost is too small a difference, it is put on a list
and the caller scores it by stepping.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache, cached_property

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.scalars import ThreadScalars
from channelfit.scoring.kernels.spectral import GREATEST_CANCELLATION, ModalSpectrum
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS
from channelfit.scoring.kernels.spectral_runs import SpectralRuns, name_transform
from channelfit.scoring.kernels.writers import CudaWriter
from channelfit.scoring.layout.exponential_tables import DEGREE, SpectralWalk
from channelfit.scoring.machine.kernel_math import CELL_BITS

#: Names of the kernels.
SWEEP_MODES, ADD_MODES = "runSweep", "addJobs"


class CudaSpectralSource:
    """The CUDA text that scores one model from its modes.

    Attributes:
        text: CUDA C++ with the kernels `runSweep` and `addJobs`. It compiles only behind the lines
            of `specialized`.
        hash: 16 hexadecimal digits of its SHA-256.
    """

    def __init__(self, model: ChannelModel) -> None:
        self.model = model
        self.channel, self.spectrum = CudaChannel(model), ModalSpectrum(model)
        self.runs = SpectralRuns(self.spectrum)
        self.decaying, self.strainable = self.spectrum.decaying, self.spectrum.strainable
        # Up to four states the registers of 16 warps on a multiprocessor suffice; beyond, values
        # that no longer fit would cost more than the missing warps.
        self.threads = 64
        self.blocks = 8 if max(len(c.states) for c in model.chains) <= 4 else 4
        self._parts: dict[str, list[str]] = {}
        self.w = CudaWriter()
        self.c = ThreadScalars(self.w, ("cost", "cancelled"), self.strainable)
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def specialized(self, n_slots: int) -> str:
        """Return the text for a schedule of at most n_slots state slots."""
        return f"#define N_SLOTS {n_slots}\n#define MAX_THREADS {self.threads}\n{self.text}"

    # --- pieces of text

    @cached_property
    def text(self) -> str:
        w = self.w
        w(self.channel.title("scores without samples"), "")
        self.channel.write(w)
        w(
            "",
            f"constexpr int N_KEPT = {max(1, self.spectrum.n_kept)};",
            f"constexpr int N_SUMS = {max(1, len(self.spectrum.sums))};",
            f"constexpr int N_DECAYING = {max(1, len(self.decaying))};",
        )
        self._transform()
        if max(len(chain.states) for chain in self.model.chains) > 3:
            w("", *_JACOBI.splitlines())
            self._rotation()
        for k, chain in enumerate(self.model.chains):
            if len(chain.states) > 3:
                self._decompose(k)
        self._create_spectrum()
        self._kernel()
        return w.text

    def _transform(self) -> None:
        """Write the reader of `exponential_tables.transform_table`: a cell is y's leading bits."""
        w, drop = self.w, 20 - CELL_BITS
        with w.device(
            "double findCell(double y, int last, int &cell)",
            "The cell of y = 1 + l n h, and where y lies from its middle.",
        ):
            w("const int high = __double2hiint(y);")
            w(f"cell = min((high >> {drop}) - {1023 << CELL_BITS}, last);")
            middle = f"(high & {~((1 << drop) - 1)}) | {1 << (drop - 1)}"
            w(f"return y - __hiloint2double({middle}, 0);")
        half = (DEGREE + 1) // 2
        with w.device(
            "double transform(const double2 *__restrict__ table, int cell, double d)",
            "D(l) from its cell.",
        ):
            w(f"const double2 *c = table + {half}*cell;")
            w(*(f"const double2 c{i} = c[{i}];" for i in range(half)))
            name_transform(self.c, [f"c{i // 2}.{'xy'[i % 2]}" for i in range(DEGREE + 1)])
            w("return there;")

    def _decompose(self, k: int) -> None:
        """Write speeds and modes of chain k, n >= 4."""
        w, n = self.w, len(self.model.chains[k].states)

        def element(e: int, i: int) -> str:
            return f"m[{i}][{e}]"

        with w.device(
            f"void decompose{k}(const double *q, double *s, double &doubt)",
            f"Modes of {n} states in detailed balance: elimination, then one-sided Jacobi.",
        ):
            w(f"double m[{n}][{n - 1}];")
            self.spectrum.eliminate(self.c, k, element)
            self._rotate(n)
            self.spectrum.keep_limit(self.c, k)
            self.spectrum.keep_modes(self.c, k, element)

    def _rotation(self) -> None:
        w = self.w
        w("", *_ROTATE.splitlines())
        with w:
            self.spectrum.rotation(self.c, "norm[a]", "norm[b]", "shared")
            w("norm[a] -= moved;", "norm[b] += moved;", "#pragma unroll")
            with w.block("for (int i = 0; i < N; ++i)"):
                w("const double left = m[i][a], right = m[i][b];")
                w("m[i][a] = cosine*left - sine*right;", "m[i][b] = sine*left + cosine*right;")

    def _rotate(self, n: int) -> None:
        """Write rotations of pairs of columns of m until all are orthogonal.

        A round's pairs share no column and stand side by side: each alone is a long way from a
        sum to a sine, and threads are too few to hide it.
        """
        w = self.w
        w(f"double norm[{n - 1}];")
        with w.block("for (int sweep = 0; sweep < 12; ++sweep)"):
            w("bool turned = false;", "#pragma unroll")
            w(f"for (int e = 0; e < {n - 1}; ++e) norm[e] = shared(m, e, e);")
            for pairs in _rounds(n - 1):
                with w.block(""):
                    w(*(f"const double s{a} = shared(m, {a}, {b});" for a, b in pairs))
                    turns = (f"(s{a}*s{a} > 1e-29*norm[{a}]*norm[{b}])" for a, b in pairs)
                    with w.block(f"if ({' | '.join(turns)})"):
                        w("turned = true;")
                        w(*(f"rotate(m, norm, {a}, {b}, s{a});" for a, b in pairs))
            w("if (!turned) break;")

    def _strained(self, kind: str) -> list[str]:
        return [f"{kind}strained{k}" for k in self.strainable]

    def _create_spectrum(self) -> None:
        w = self.w
        parameters = ["const double *q", "const double dt", "double *s", "double &doubt"]
        with w.device(
            f"void createSpectrum({', '.join([*parameters, *self._strained('bool &')])})",
            "Speeds, limits and modes of every chain at the rates q.",
        ):
            for k, chain in enumerate(self.model.chains):
                with w.block(""):
                    if len(chain.states) == 2:
                        self.spectrum.two_states(self.c, k)
                    elif len(chain.states) == 3:
                        self.spectrum.three_states(self.c, k)
                    elif len(chain.states) > 3:
                        w(f"decompose{k}(q, s, doubt);")
                        if len(chain.states) <= MOST_PRODUCTS:
                            self.spectrum.products(self.c, k)

    def operations(self, walk: SpectralWalk) -> float:
        """Count the floating-point operations of one candidate's walk in the text.

        A multiply-add is two. The iterations of the eigenvalue problem of four states and more are
        not in it.
        """
        steps = walk.values[:-1]
        new = np.diff(steps[:, 1], prepend=-1.0) != 0
        new[walk.visits[:-1]] = True  # a duration's values are computed once while it lasts
        ends = (walk.places[:-1, 1] >= 0).sum()
        times = {"visit": len(walk.visit_v), "run": len(steps), "span": new.sum(), "end": ends}
        return float(sum(n * self._count(self._parts[part]) for part, n in times.items()))

    def _count(self, lines: list[str]) -> int:
        total = 0
        for line in lines:
            code = re.sub(r"\[[^\]]*\]", "", line.split("//")[0])
            if re.match(r"\s*(#|for|const int|int|constexpr|return;|while|if)\b", code):
                continue
            total += 2 * code.count("fma(") + len(re.findall(r"[\w)]\s*[-+*/]\s*(?=[\w(])", code))
            for name in re.findall(r"\b(\w+)\(", code):
                total += self._cost(name)
        return total

    @cache  # noqa: B019 - a source lives as long as its scorer
    def _cost(self, function: str) -> int:
        found = re.search(rf"__forceinline__ \w+ {function}\(.*?\n}}", self.text, re.DOTALL)
        return self._count(found[0].splitlines()[1:]) if found else 0

    def _kernel(self) -> None:
        w = self.w
        w("", *FINISH.splitlines(), "", *_KERNEL_HEAD.splitlines())
        with w.block(_SWEEP % self.blocks):
            w(*(_LOAD if self.channel.ohmic else _load_of_drives()).splitlines())
            with w.block("for (int visit = jobs[job]; visit < jobs[job + 1]; ++visit)"):
                self._visit()
            w(*_STORE.splitlines())
        w("", *ADD_JOBS.splitlines())

    def _visit(self) -> None:
        w, begun = self.w, len(self.w.lines)
        w("const Level v = visit_v[visit];", "double q[N_RATES], s[N_KEPT];")
        w("const double2 dts = visit_dt[visit];  // between samples, and of the shortest run")
        w("createQmat(v, p, q, status);")
        w(*(f"bool strained{k};" for k in self.strainable))
        w(f"createSpectrum({', '.join(['q', 'dts.y', 's', 'doubt', *self._strained('')])});")
        if self.channel.ohmic:
            w("const double gain = conductance*(double(v) - reversal);")
        else:
            w("double drive[N_TERMS];", "createDrives(v, p, drive, status);")
            w(f"const double gain = drive[{self.runs.opening}];")
            leaks = [f"drive[{row}]" for row in self.runs.leaks]
            w(*([f"const double leak = {' + '.join(leaks)};"] if leaks else []))
        self._denominators()
        self._parts["visit"] = w.lines[begun:]
        w("const Run *run = runs + visits[visit], *end = runs + visits[visit + 1];")
        w("Run next = *run;")
        with w.block("while (run < end)"):
            w(*_RUN_HEAD.splitlines())
            self._run()

    def _denominators(self) -> None:
        w = self.w
        w("double per[N_SUMS], g[N_SUMS], forgotten[N_X];")
        w("// 1/(1 - exp(-L dt)) for every L of the square, twice where two terms make it")
        with w.block(""):
            self.runs.denominators(self.c, "dts.x")
        w("double last_span = -1.0;", "int last_cell = -1;")
        w("double offset[N_DECAYING] = {};", "int cell[N_DECAYING] = {};")

    def _run(self) -> None:
        w, c, spectrum, runs = self.w, self.c, self.spectrum, self.runs
        half = (DEGREE + 1) // 2
        w(f"const double2 *table = tables + (long long)places.z*{half};")
        with w.block("if (span != last_span || places.w != last_cell)"):
            begun = len(w.lines)
            w("last_span = span;", "last_cell = places.w;")
            units = runs.decays(c, "u", "span")
            for mode, name in units.items():
                c.put(f"forgotten[{mode}]", name)
            runs.geometric_sums(c, "u", units)
            for i, index in enumerate(self.decaying):
                y = runs.place_in_table(c, index, "span")
                w(f"offset[{i}] = findCell({y}, last_cell, cell[{i}]);")
            self._parts["span"] = w.lines[begun:]
        begun = len(w.lines)
        for k in range(len(self.model.chains)):
            runs.amplitudes(c, k)
        # No branch, although some runs are not scored (weight 0): it would keep the loads from
        # being issued early.
        read = (f"transform(table, cell[{i}], offset[{i}])" for i in range(len(self.decaying)))
        runs.add_cost(c, list(read))
        runs.add_cancelled(c)
        self._parts["run"] = w.lines[begun:]
        self._end({m: f"forgotten[{m}]" for m in range(spectrum.n_modes)})

    def _end(self, gone: dict[int, str]) -> None:
        begun = len(self.w.lines)
        with self.w.block("if (target >= 0)"):
            self.w("double *y = slots + N_X*target;")
            for k in range(len(self.model.chains)):
                self.runs.end(self.c, k, gone)
        self._parts["end"] = self.w.lines[begun:]


#: The end of a candidate's score, for kernels that list those in doubt.
FINISH = f"""\
struct Result {{ double *cost; signed char *status; int *listed, *n_listed; }};

// Cost, pA^2, and status of a candidate, from its sum of squares less a constant. One in doubt, or
// with a sum below the least that keeps its digits, is listed for stepping.
__device__ __forceinline__ void finish(double sum, int status, bool doubt, double constant,
                                       double least, double total_weight, int candidate,
                                       Result result) {{
    sum += constant;
    const bool good = status == {OK} && fabs(sum) < 1e300;
    if (status == {OK} && (doubt || !good || sum < least))
        result.listed[atomicAdd(result.n_listed, 1)] = candidate;
    result.cost[candidate] = good ? sum/total_weight : 1.0/0.0;
    result.status[candidate] = (signed char)(good || status != {OK} ? status : {NOT_FINITE});
}}"""

_KERNEL_HEAD = """\
struct Run {
    int4 places;  // source, target, first cell, last cell
    double2 extent, datum;  // samples, ms in all; weight of each, sum of the data
};

// One thread: candidate first + i through the visits of job blockIdx.y. With several jobs, partial
// and flags (jobs, n) take the sums and (status, + 16 for doubt), and addJobs finishes."""

_SWEEP = """\
extern "C" __global__ void __launch_bounds__(MAX_THREADS, %d) runSweep(
    const double *__restrict__ parameters, const long long n_candidates, const int first,
    const int n_scored, const int *__restrict__ jobs, const int *__restrict__ visits,
    const Level *__restrict__ visit_v, const double2 *__restrict__ visit_dt,
    const Run *__restrict__ runs, const Level *__restrict__ start_v, const int n_starts,
    const double2 *__restrict__ tables,
    const double squares, const double least, const double total_weight,
    double *__restrict__ partial,
    signed char *__restrict__ flags, double *__restrict__ costs,
    signed char *__restrict__ statuses, int *__restrict__ listed, int *__restrict__ n_listed)"""

_JACOBI = """\
// The root of a normal number above 0.
__device__ __forceinline__ double rootOf(const double x) { return x*rootReciprocal(x); }

// The inner product of two columns, in two chains: either is a long wait.
template <int N, int C>
__device__ __forceinline__ double shared(const double (&m)[N][C], const int a, const int b) {
    double even = m[0][a]*m[0][b], odd = m[1][a]*m[1][b];
#pragma unroll
    for (int i = 2; i < N; ++i) {
        if (i % 2) odd = fma(m[i][a], m[i][b], odd); else even = fma(m[i][a], m[i][b], even);
    }
    return even + odd;
}"""

_ROTATE = """\
// Columns a and b, which share so much, become orthogonal. No branch, or pairs would not stand side
// by side; columns that are orthogonal turn by nothing.
template <int N, int C>
__device__ __forceinline__ void rotate(double (&m)[N][C], double (&norm)[C], const int a,
                                       const int b, const double shared) {"""

_LOAD = f"""\
const int i = blockIdx.x*blockDim.x + threadIdx.x, job = blockIdx.y, candidate = first + i;
if (i >= n_scored) return;
double p[N_PARAMETERS], slots[N_X*N_SLOTS];
#pragma unroll
for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameters[k*n_candidates + candidate];
int status = {OK};
double doubt = 0.0, cost = 0.0, cancelled = 0.0, conductance, reversal;
createGains(p, conductance, reversal, status);
for (int start = 0; start < n_starts; ++start) {{
    double q[N_RATES];
    createQmat(start_v[start], p, q, status);
    initStateProbs(q, slots + N_X*start);
}}"""


def _load_of_drives() -> str:
    """Return the loads of a thread where the current has a drive of its own at every voltage."""
    text = _LOAD.replace("createGains(p, conductance, reversal, status);\n", "")
    return text.replace(", cancelled = 0.0, conductance, reversal;", ", cancelled = 0.0;")


_RUN_HEAD = """\
const int4 places = next.places;
const double n = next.extent.x, span = next.extent.y, weight = next.datum.x, sum_d = next.datum.y;
next = *++run;  // one is behind the last
const int target = places.y;
const double *x = slots + N_X*places.x;"""

_STORE = f"""\
if (cancelled > {GREATEST_CANCELLATION!r}*(cost + squares)) doubt = 1.0;
if (gridDim.y > 1) {{
    partial[(long long)job*n_scored + i] = cost;
    flags[(long long)job*n_scored + i] = (signed char)(status | (doubt > 0.0 ? 16 : 0));
}} else {{
    finish(cost, status, doubt > 0.0, squares, least, total_weight, candidate,
           {{costs, statuses, listed, n_listed}});
}}"""

#: The kernel that adds up jobs, behind FINISH.
ADD_JOBS = f"""\
// The jobs of each candidate added up in their order.
extern "C" __global__ void addJobs(
    const int first, const int n_scored, const int n_jobs, const double constant,
    const double least, const double total_weight, const double *__restrict__ partial,
    const signed char *__restrict__ flags, double *__restrict__ costs,
    signed char *__restrict__ statuses, int *__restrict__ listed, int *__restrict__ n_listed) {{
    const int i = blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n_scored) return;
    double sum = 0.0;
    int worst = {OK}, doubt = 0;
    for (int job = 0; job < n_jobs; ++job) {{
        sum += partial[(long long)job*n_scored + i];
        const int flag = flags[(long long)job*n_scored + i], own = flag & 15;
        doubt |= flag & 16;
        worst = worst == {NOT_FINITE} || own == {NOT_FINITE} ? {NOT_FINITE} : max(worst, own);
    }}
    finish(sum, worst, doubt != 0, constant, least, total_weight, first + i,
           {{costs, statuses, listed, n_listed}});
}}"""


def _rounds(n: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of n columns in rounds that use each column once: a tournament's circle.

    An odd one's partner is a bye. It takes fewer sweeps than going row by row, 6 for 7.
    """
    even = n + n % 2
    circle, rounds = list(range(even)), []
    for _ in range(even - 1):
        met = (sorted((circle[i], circle[-1 - i])) for i in range(even // 2))
        rounds.append([(a, b) for a, b in met if b < n])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds
