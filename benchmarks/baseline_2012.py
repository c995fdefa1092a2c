"""The scoring kernel of Ben-Shalom et al. 2012, rebuilt from the paper: what we measure against.

    from baseline_2012 import Baseline2012

R. Ben-Shalom, A. Aviv, B. Razon, A. Korngreen, "Optimizing ion channel models using a parallel
genetic algorithm on graphical processors", J Neurosci Methods 206 (2012) 183-194. Written anew
after the text of sections 2 and 3 and the annotated kernel printed there.

What the paper states, and this does:

* `createQmat` is generated from the model; `createQmat`, `initStateProbs` and `dtIter` are device
  functions of one kernel, `runSweep`, launched once a sweep, one thread an individual (3.2);
* each thread's part of shared memory holds Q (n x n), the occupancies before and after a step and
  their derivatives, in single precision: 72 bytes for model B (3.3). Q is padded so that threads
  meet different banks; the printed offsets of the vectors are those of unpadded ones;
* Q is made anew where the voltage changed since the last sample, from parameters in global memory,
  individual by individual;
* command, data, use of each sample and its interval lie in constant memory (3.2);
* chi^2, the mean square of equation 2, is added up in global memory, sweep by sweep;
* the genetic algorithm runs on the host, so parameters go there and costs come back each
  generation (3.1, figure 2): sorted, two tournaments of two a pair, one-point crossover, mutation
  to a uniform draw, the best one kept (2.3).

What had to be assumed. Where the paper is silent the faster choice was taken:

* the integrator: a Q matrix, one vector of derivatives and a step at the sampling interval leave
  forward Euler. It diverges once a rate times the interval nears 1; such individuals cost inf. Of
  the ranges printed for model B, sampled at 0.1 ms, that is nearly everybody, so the paper must
  have stepped or bounded otherwise than it says; the work a step is the same;
* `initStateProbs`: the steady state at the holding voltage, by elimination in the thread's own Q;
* the current of a sample belongs to the occupancies at its time, before the step;
* rates are not clipped, and exp overflows single precision above 88: inf or NaN costs inf;
* constant memory is filled with as many whole sweeps as it holds (4000 samples), and filled anew
  when they are done; a longer sweep is launched in parts, with its occupancies kept in global
  memory in between, as the text before the optimized kernel (3.1) describes for every step;
* numbers of states and parameters are known to the compiler, so that it may unroll;
* `padding="all"` pads the vectors too, a step that the paper does not mention.

Off the grid a voltage counts from the next sample on: the design knows samples only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import sympy

from channelfit import gpu
from channelfit.backends import NOT_FINITE, OK, Score
from channelfit.codegen.printer import Dialect, ScalarPrinter, assignments
from channelfit.errors import InputError
from channelfit.model import ChannelModel
from channelfit.problem import Problem

THREADS = 112  # of a block: the fastest on the paper's GTX295 (3.3)
SHARED_BYTES = 48 * 1024  # of a block: what the paper's GTX480 had, and what needs no asking for
#: Samples in constant memory: 64 kB at 16 bytes each, and a little left for the rest.
CAPACITY = 4000
CONSTANT = ("voltages", "IsIn", "fits", "dts")  # what lies there, in the order of `_Load.values`

_SINGLE = Dialect(
    {"exp": "expf", "log": "logf", "sqrt": "sqrtf", "Abs": "fabsf", "tanh": "tanhf",
     "exprel": "exprelf"},
    lambda condition, yes, no: f"({condition} ? {yes} : {no})",
    lambda base, exponent: f"powf({base}, {exponent})",
    ("&&", "||", "!", "true", "false"),
)  # fmt: skip


class _SinglePrinter(ScalarPrinter):
    """Constants in single precision: one double would make a double of the whole expression."""

    language: ClassVar[str] = "single"

    def _print_Float(self, node: sympy.Float) -> str:
        return f"{float(node)!r}f"

    _print_Integer = _print_Rational = _print_NumberSymbol = _print_Float
    _print_Exp1 = _print_Pi = _print_Float


_TEXT = """\
#define NSTATES {n_states}
#define NPARAMS {n_parameters}
#define NOPEN {n_open}
#define QSTRIDE {q_stride}   // floats from one thread's Q to the next
#define YSTRIDE {y_stride}   // and from one thread's vector to the next
#define CAPACITY {capacity}

__constant__ float voltages[CAPACITY], IsIn[CAPACITY], fits[CAPACITY], dts[CAPACITY];
__constant__ int openStates[NOPEN] = {{{open_states}}};
extern __shared__ float smem[];

__device__ float exprelf(float x) {{
    return fabsf(x) < 1e-3f ? 1.0f + x*(0.5f + x/6.0f) : expm1f(x)/x;
}}

// dy/dt = Q y: Q[j][i] is the rate from state i to state j, 1/ms
__device__ void createQmat(float v, const float *p, float *qMatrix) {{
    for (int i = 0; i < NSTATES*NSTATES; ++i) qMatrix[i] = 0.0f;
{rates}
}}

// steady state by elimination of the last state, then the one before; Q is used up
__device__ void initStateProbs(float *y, float *qMatrix) {{
    for (int last = NSTATES - 1; last > 0; --last) {{
        float out = 0.0f;
        for (int j = 0; j < last; ++j) out += qMatrix[j*NSTATES + last];
        for (int i = 0; i < last; ++i) {{
            const float share = qMatrix[last*NSTATES + i]/out;
            qMatrix[last*NSTATES + i] = share;
            for (int j = 0; j < last; ++j)
                if (j != i) qMatrix[j*NSTATES + i] += share*qMatrix[j*NSTATES + last];
        }}
    }}
    y[0] = 1.0f;
    for (int last = 1; last < NSTATES; ++last) {{
        y[last] = 0.0f;
        for (int i = 0; i < last; ++i) y[last] += y[i]*qMatrix[last*NSTATES + i];
        const float total = 1.0f + y[last];
        for (int i = 0; i <= last; ++i) y[i] /= total;
    }}
}}

// one sample: its current, its part of the score, and one step of forward Euler
__device__ void dtIter(const float *yIn, const float *qMatrix, float gMax, float dataI, float v,
                       float eRev, float dt, float fit, float *yOut, float *dy, float *outI,
                       float *chiSum) {{
    float open = 0.0f;
    for (int k = 0; k < NOPEN; ++k) open += yIn[openStates[k]];
    *outI = gMax*open*(v - eRev);
    const float difference = *outI - dataI;
    *chiSum += fit*difference*difference;
    for (int j = 0; j < NSTATES; ++j) {{
        float sum = 0.0f;  // in a register: dy may be any thread's for all the compiler knows
        for (int i = 0; i < NSTATES; ++i) sum += qMatrix[j*NSTATES + i]*yIn[i];
        dy[j] = sum;
    }}
    for (int j = 0; j < NSTATES; ++j) yOut[j] = yIn[j] + dt*dy[j];
}}

// samples start .. start + nTimeSteps of constant memory; yGlobal carries a sweep that is cut
extern "C" __global__ void runSweep(const float *paramsGlobal, int start, int nTimeSteps,
                                    float vHold, int begins, int ends, float totalWeight,
                                    int popSize, float *chiScoreGlobal, float *yGlobal,
                                    float *outIGlobal) {{
    const int individual = blockDim.x*blockIdx.x + threadIdx.x;
    if (individual >= popSize) return;
    float *qMatrix = &smem[QSTRIDE*threadIdx.x];
    float *vectors = &smem[QSTRIDE*blockDim.x];
    float *yIn = &vectors[YSTRIDE*threadIdx.x];
    float *yOut = &vectors[YSTRIDE*(blockDim.x + threadIdx.x)];
    float *dy = &vectors[YSTRIDE*(2*blockDim.x + threadIdx.x)];
    const float *p = &paramsGlobal[(size_t)individual*NPARAMS];
    const float gMax = {conductance};
    const float eRev = {reversal};
    float chiSum = 0.0f, outI;

    if (begins) {{
        createQmat(vHold, p, qMatrix);
        initStateProbs(yIn, qMatrix);
    }} else {{
        for (int i = 0; i < NSTATES; ++i) yIn[i] = yGlobal[(size_t)i*popSize + individual];
    }}
    for (int k = start; k < start + nTimeSteps; ++k) {{
        const float v = voltages[k];
        if (k == start || v != voltages[k - 1]) createQmat(v, p, qMatrix);
        dtIter(yIn, qMatrix, gMax, IsIn[k], v, eRev, dts[k], fits[k], yOut, dy, &outI, &chiSum);
        if (outIGlobal) outIGlobal[(size_t)(k - start)*popSize + individual] = outI;
        float *swap = yIn;
        yIn = yOut;
        yOut = swap;
    }}
    if (!ends)
        for (int i = 0; i < NSTATES; ++i) yGlobal[(size_t)i*popSize + individual] = yIn[i];
    chiScoreGlobal[individual] += chiSum/totalWeight;
}}
"""


def kernel_text(model: ChannelModel, padding: str = "matrix") -> str:
    """The CUDA text of a model: its scheme, and of gates the equivalent scheme.

    Arguments:
        padding: what gets an odd stride in shared memory: ``none``, ``matrix`` or ``all``.

    Raises:
        InputError: a state with a relative conductance other than 1; the design has none.
    """
    scheme = model.expanded()
    if set(scheme.open_states.values()) - {1.0}:
        raise InputError("the 2012 design knows open and closed states only", key="current.open")
    n = len(scheme.states)
    names = {p.name: f"p[{i}]" for i, p in enumerate(model.parameters)}
    printer = _SinglePrinter(_SINGLE, names)
    q_stride, y_stride = strides(n, padding)
    return _TEXT.format(
        n_states=n, n_parameters=len(model.parameters), n_open=len(scheme.open_states),
        q_stride=q_stride, y_stride=y_stride, capacity=CAPACITY,
        open_states=", ".join(str(scheme.states.index(s)) for s in scheme.open_states),
        rates="\n".join(f"    {line}" for line in _rate_lines(scheme, printer)),
        conductance=printer.text(model.conductance), reversal=printer.text(model.reversal),
    )  # fmt: skip


def strides(n_states: int, padding: str) -> tuple[int, int]:
    """Floats that one thread takes for Q and for a vector; odd ones meet no bank twice."""
    odd = {"none": (0, 0), "matrix": (1, 0), "all": (1, 1)}[padding]
    q = n_states * n_states
    return q | odd[0], n_states | odd[1]


def _rate_lines(scheme: ChannelModel, printer: ScalarPrinter) -> Iterator[str]:
    steps, rates = assignments(scheme.definitions, [t.rate for t in scheme.transitions])
    for name, expression in steps:
        yield f"const float {name}_ = {printer.text(expression)};"
        printer.names = {**printer.names, name: f"{name}_"}
    if rates:
        yield "float k;"
    n, index = len(scheme.states), {s: i for i, s in enumerate(scheme.states)}
    for t, rate in zip(scheme.transitions, rates, strict=True):
        i, j = index[t.source], index[t.target]
        times = f"{float(t.multiplicity)!r}f*" if t.multiplicity != 1 else ""
        yield f"k = {times}({printer.text(rate)});"
        yield f"qMatrix[{j * n + i}] += k;"
        yield f"qMatrix[{i * n + i}] -= k;"


# --- sweeps as they go into constant memory ------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Samples of one sweep that lie in constant memory together."""

    start: int  # place in constant memory
    n: int
    holding: float
    begins: bool
    ends: bool
    place: tuple[int, int, int]  # experiment, sweep, first sample


@dataclass(frozen=True)
class _Load:
    """One filling of constant memory: (4, CAPACITY) command, data, use, interval, and its parts."""

    values: np.ndarray
    parts: tuple[_Part, ...]


def _loads(problem: Problem) -> list[_Load]:
    """Sweeps in order, as many whole ones as fit, longer ones cut."""
    loads: list[_Load] = []
    values, parts, used = _empty(), [], 0
    for place, holding, rows in _sweep_rows(problem):
        n = rows.shape[1]
        if parts and used + min(n, CAPACITY) > CAPACITY:
            loads.append(_Load(values, tuple(parts)))
            values, parts, used = _empty(), [], 0
        for first in range(0, n, CAPACITY):
            last = min(n, first + CAPACITY)
            if used + last - first > CAPACITY:
                loads.append(_Load(values, tuple(parts)))
                values, parts, used = _empty(), [], 0
            values[:, used : used + last - first] = rows[:, first:last]
            parts.append(_Part(used, last - first, holding, first == 0, last == n, (*place, first)))
            used += last - first
    if parts:
        loads.append(_Load(values, tuple(parts)))
    return loads


def _empty() -> np.ndarray:
    return np.zeros((4, CAPACITY), dtype=np.float32)


def _sweep_rows(problem: Problem) -> Iterator[tuple[tuple[int, int], float, np.ndarray]]:
    """Of every sweep: (experiment, sweep), holding voltage, (4, n_times) float32."""
    for e, experiment in enumerate(problem.experiments):
        protocol, recording = experiment.protocol, experiment.recording
        if protocol.carry_over:
            raise InputError("the 2012 design starts every sweep from rest", file=protocol.name)
        command = protocol.command()
        for k in range(protocol.n_sweeps):
            n = protocol.n_times(k)
            rows = np.zeros((4, n))
            rows[0], rows[3] = command[k, :n], protocol.sampling_ms
            if recording is not None:
                rows[2] = experiment.weight * recording.weight[k, :n]
                rows[1] = np.where(rows[2] > 0, recording.current_pA[k, :n], 0.0)
            yield (e, k), protocol.holding_mV, rows.astype(np.float32)


# --- the scorer ----------------------------------------------------------------------------------


class Baseline2012:
    """Scores as the 2012 design does; `score` and `simulate` as every backend's.

    Arguments:
        threads: of a block; fewer where shared memory asks for it (`threads` tells how many).
        padding: see `kernel_text`.
        compiled: from CUDA text to a program with `fill`, `launch` and the array module `xp`; a
            device's where nothing else is given.

    Raises:
        InputError: what the design cannot score: carried-over sweeps, relative conductances, or
            more states than shared memory holds for half a warp.
    """

    backend, dtype = "2012 design", "float32"

    def __init__(
        self, problem: Problem, threads: int = THREADS, padding: str = "matrix",
        compiled: Callable[[str], Any] | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.padding = problem, padding
        self.n_states = len(problem.model.expanded().states)
        q, y = strides(self.n_states, padding)
        self.thread_bytes = 4 * (q + 3 * y)
        self.threads = min(threads, SHARED_BYTES // self.thread_bytes // 16 * 16)
        if self.threads < 16:
            raise InputError(f"{self.n_states} states do not fit into shared memory")
        self.text = kernel_text(problem.model, padding)
        self.loads = _loads(problem)
        self.total_weight = np.float32(sum(load.values[2].sum(dtype=float) for load in self.loads))
        self.program = (compiled or _on_device)(self.text)
        self._filled = [self.program.xp.asarray(load.values) for load in self.loads]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.threads * self.thread_bytes

    def occupancy(self) -> float:
        """Share 0 .. 1 of a multiprocessor's threads that these blocks fill."""
        return float(self.program.occupancy(self.threads, self.shared_bytes).fraction)

    def score(self, parameters: Any) -> Score:
        """Cost (n_candidates,) and status of (n_parameters, n_candidates), on the device."""
        xp = self.program.xp
        chi = self.run_generation(self.individuals(parameters))
        good = xp.isfinite(chi)
        status = xp.where(good, OK, NOT_FINITE).astype(np.int8)
        return Score(xp.where(good, chi, np.inf), status)

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        """Currents, pA: per experiment (n_sweeps, n_times_max, n_candidates)."""
        individuals, n = self.individuals(parameters), parameters.shape[1]
        shapes = [(e.protocol.n_sweeps, e.protocol.n_times_max) for e in self.problem.experiments]
        currents = [np.full((*shape, n), np.nan) for shape in shapes]

        def keep(part: _Part, out: np.ndarray) -> None:
            experiment, sweep, first = part.place
            currents[experiment][sweep, first : first + part.n] = out

        self.run_generation(individuals, keep)
        return currents

    def individuals(self, parameters: Any) -> Any:
        """(n_individuals, n_parameters) float32 on the device: the layout of the design."""
        xp = self.program.xp
        return xp.ascontiguousarray(xp.asarray(parameters).T, dtype=np.float32)

    def run_generation(
        self, individuals: Any, keep: Callable[[_Part, np.ndarray], None] | None = None
    ) -> Any:
        """chi^2 (n_individuals,) float32: constant memory filled, one launch a sweep."""
        xp, n = self.program.xp, individuals.shape[0]
        chi = xp.zeros(n, dtype=np.float32)
        carried = xp.empty((self.n_states, n), dtype=np.float32)
        for load, filled in zip(self.loads, self._filled, strict=True):
            for name, row in zip(CONSTANT, filled, strict=True):
                self.program.fill(name, row)
            for part in load.parts:
                out = xp.empty((part.n, n), dtype=np.float32) if keep else gpu.NULL
                arguments = (
                    individuals, np.int32(part.start), np.int32(part.n), np.float32(part.holding),
                    np.int32(part.begins), np.int32(part.ends), self.total_weight, np.int32(n),
                    chi, carried, out,
                )  # fmt: skip
                blocks = -(-n // self.threads)
                self.program.launch("runSweep", blocks, self.threads, arguments, self.shared_bytes)
                if keep:
                    keep(part, gpu.to_host(out))
        return chi


class _DeviceProgram:
    """The kernel on the GPU."""

    def __init__(self, text: str) -> None:
        self.xp = gpu.cupy()
        module = gpu.compile_cuda(text, name="baseline_2012.cu")
        self._module, self._kernel = module, module.kernel("runSweep")
        self._constant = {name: module.raw.get_global(name) for name in CONSTANT}

    def fill(self, name: str, values: Any) -> None:
        """Constant memory, from values that lie on the device already."""
        self._constant[name].copy_from_device_async(values.data, values.nbytes)

    def launch(self, name: str, blocks: int, threads: int, args: Any, shared_bytes: int) -> None:
        """One launch."""
        self._kernel((blocks,), (threads,), args, shared_mem=shared_bytes)

    def occupancy(self, threads: int, shared_bytes: int) -> gpu.Occupancy:
        """Of a multiprocessor."""
        return gpu.occupancy(self._kernel, threads, shared_bytes)


@lru_cache(maxsize=64)
def _on_device(text: str) -> _DeviceProgram:
    """Compiled once, whatever the block."""
    return _DeviceProgram(text)


# --- the genetic algorithm on the host -----------------------------------------------------------


def next_generation(
    population: np.ndarray, cost: np.ndarray, lower: np.ndarray, upper: np.ndarray,
    rng: np.random.Generator, crossover_rate: float = 0.1, mutation_rate: float = 0.01,
) -> np.ndarray:  # fmt: skip
    """Section 2.3 in NumPy.

    Arguments:
        population: (n_individuals, n_parameters); cost: (n_individuals,), inf where it failed.
        lower, upper: (n_parameters,).

    Returns: (n_individuals, n_parameters); the best individual comes first, unchanged.
    """
    population = population[np.argsort(cost, kind="stable")]
    n, n_parameters = population.shape
    n_pairs = -(-n // 2)
    # sorted by cost, so that of two drawn places the lower one wins
    winners = rng.integers(0, n, (2, 2, n_pairs)).min(axis=0)
    first, second = population[winners[0]], population[winners[1]]
    point = rng.integers(1, max(n_parameters, 2), n_pairs)
    point[rng.random(n_pairs) >= crossover_rate] = n_parameters
    exchanged = np.arange(n_parameters) >= point[:, None]
    children = np.concatenate((np.where(exchanged, second, first),
                               np.where(exchanged, first, second)))[:n]  # fmt: skip
    mutates = rng.random(children.shape) < mutation_rate
    fresh = rng.uniform(lower, upper, children.shape)
    children[mutates] = fresh[mutates]
    children[0] = population[0]
    return children
