"""The scoring kernel of Ben-Shalom et al. 2012, written lean: what we measure against.

    from baseline_2012 import Baseline2012

R. Ben-Shalom, A. Aviv, B. Razon, A. Korngreen, "Optimizing ion channel models using a parallel
genetic algorithm on graphical processors", J Neurosci Methods 206 (2012) 183-194. Written anew
after the text of sections 2 and 3 and the annotated kernel printed there.

What makes it that design, and is kept:

* `createQmat` is generated from the model; `createQmat`, `initStateProbs` and `dtIter` are device
  functions of one kernel, `runSweep`, launched once a sweep, one thread an individual (3.2);
* Q and the occupancies lie in the thread's part of shared memory, in single precision (3.3); every
  step reads them there and writes the new occupancies there;
* the step is forward Euler at the sampling interval; Q is made anew where the voltage changed;
* the recording and the command lie in constant memory (3.2);
* chi^2, the mean square of equation 2, is added up in global memory, sweep by sweep;
* the genetic algorithm runs on the host, so parameters go there and costs come back each
  generation (3.1, figure 2): sorted, two tournaments of two a pair, one-point crossover, mutation
  to a uniform draw, the best one kept (2.3).

What is leaner than the printed kernel, for a fair opponent on today's cards:

* a sweep is a loop over segments of one voltage, each with a loop over its samples, in place of
  asking at every sample whether the voltage changed;
* parameters are read once a launch into registers, side by side for neighboring threads;
* a rate that the scheme has not is neither stored nor multiplied, Q holds dt already, and the step
  is written out: 7 multiply-adds for the three states of model B, where the printed text has
  n^2 = 9, the derivatives and their step;
* a thread reads its occupancies before it writes them, so one vector serves as both of the
  printed ones and no derivatives are kept: 44 bytes for model B, where the paper has 72;
* what belongs to a thread lies together, with an odd stride: threads meet different banks;
* samples whose weight is that of their sweep carry none, and their interval is the sweep's:
  constant memory holds 16,000 samples where the printed vectors leave room for 4,000;
* threads a block, and samples written out one after another, are tuned by whoever measures
  (`ways.fastest_2012`).

``stored="registers"`` is the same text with Q and the occupancies in registers, which the design
does not do: how much of a ratio is owed to shared memory alone.

What had to be assumed. Where the paper is silent the faster choice was taken:

* the integrator: a Q matrix, one vector of derivatives and a step at the sampling interval leave
  forward Euler. It diverges once a rate times the interval nears 1; such individuals cost inf. Of
  the ranges printed for model B, sampled at 0.1 ms, that is nearly everybody, so the paper must
  have stepped or bounded otherwise than it says; the work a step is the same;
* `initStateProbs`: the steady state at the holding voltage, by elimination;
* the current of a sample belongs to the occupancies at its time, before the step;
* rates are not clipped, and exp overflows single precision above 88: inf or NaN costs inf;
* the rule for what constant memory (64 kB) does not hold: it is filled with as many whole sweeps
  as it takes, and filled anew when they are done; three sweeps of 5,000 samples. A sweep that is
  longer is launched in parts, with its occupancies kept in global memory in between, as the text
  before the optimized kernel (3.1) describes for every step.

Off the grid a voltage counts from the next sample on: the design knows samples only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import sympy

from channelfit.model.channel import ChannelModel
from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.printer import Dialect, ScalarPrinter, assignments
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import Score

THREADS = 128  # of a block, without tuning
SHARED_BYTES = 48 * 1024  # of a block: what the paper's GTX480 had, and what needs no asking for
CAPACITY = 16_000  # floats in constant memory: 64 kB, and a little left for the rest
CONSTANT = "constantData"
UNROLL = 4  # samples
STORED = ("shared", "registers")  # where Q and the occupancies may be; the design's comes first

_SINGLE = Dialect(
    {
        "exp": "expf",
        "log": "logf",
        "sqrt": "sqrtf",
        "Abs": "fabsf",
        "tanh": "tanhf",
        "exprel": "exprelf",
    },
    lambda condition, yes, no: f"({condition} ? {yes} : {no})",
    lambda base, exponent: f"powf({base}, {exponent})",
    ("&&", "||", "!", "true", "false"),
)


class _SinglePrinter(ScalarPrinter):
    """Constants in single precision: one double would make a double of the whole expression."""

    language: ClassVar[str] = "single"

    def _print_Float(self, node: sympy.Float) -> str:
        return f"{float(node)!r}f"

    _print_Integer = _print_Rational = _print_NumberSymbol = _print_Float
    _print_Exp1 = _print_Pi = _print_Float


_TEXT = """\
#define STRIDE {stride}  // floats from one thread's part of shared memory to the next

__constant__ float constantData[{capacity}];
extern __shared__ float smem[];

// {memory}
typedef {stored} Stored;

__device__ __forceinline__ float exprelf(float x) {{
    return fabsf(x) < 1e-3f ? 1.0f + x*(0.5f + x/6.0f) : expm1f(x)/x;
}}

// Q dt, for dy/dt = Q y: the entries that this scheme has, row by row
__device__ __forceinline__ void createQmat(float v, float dt, const float *p, Stored *q) {{
{create}
}}

// the steady state, by elimination of the last state, then the one before
__device__ __forceinline__ void initStateProbs(float v, const float *p, Stored *y) {{
{initial}
}}

// the current of a sample, for a driving force, and one step of forward Euler
__device__ __forceinline__ float dtIter(const Stored *q, Stored *y, float gain) {{
{step}
}}

// One sweep, or a part of it: nSegments pairs of (sample after the last, voltage) stand in constant
// memory from `segments` on, data from `samples` on. yGlobal carries a sweep that is cut.
extern "C" __global__ void runSweep(const float *paramsGlobal, int popSize, int segments,
                                    int nSegments, int samples, float vHold, float dt,
                                    float weight, int begins, int ends, float *chiGlobal,
                                    float *yGlobal{trace_argument}) {{
    const int individual = blockDim.x*blockIdx.x + threadIdx.x;
    if (individual >= popSize) return;
    {place}
    Stored *q = own, *y = own + {n_entries};
    float p[{n_parameters}];
#pragma unroll
    for (int i = 0; i < {n_parameters}; ++i) p[i] = paramsGlobal[(size_t)i*popSize + individual];

    if (begins) {{
        initStateProbs(vHold, p, y);
    }} else {{
#pragma unroll
        for (int i = 0; i < {n_states}; ++i) y[i] = yGlobal[(size_t)i*popSize + individual];
    }}
    float chiSum = 0.0f;
    int k = 0;
    for (int s = 0; s < nSegments; ++s) {{
        const int end = (int)constantData[segments + 2*s];
        const float v = constantData[segments + 2*s + 1];
        createQmat(v, dt, p, q);
        const float gain = ({conductance})*(v - ({reversal}));
#pragma unroll {unroll}
        for (; k < end; ++k) {{
            const float outI = dtIter(q, y, gain);
            {keep}
        }}
    }}
    if (!ends) {{
#pragma unroll
        for (int i = 0; i < {n_states}; ++i) yGlobal[(size_t)i*popSize + individual] = y[i];
    }}
    chiGlobal[individual] += weight*chiSum;
}}
"""

_MEMORY = {
    "shared": (
        "volatile float",
        "volatile: not to be kept in registers instead",
        "Stored *own = &smem[STRIDE*threadIdx.x];",
    ),
    "registers": ("float", "in registers, which the design does not do", "Stored own[STRIDE];"),
}
_KEEP = {
    "score": "const float difference = outI - constantData[samples + k];\n"
    "            chiSum += difference*difference;",
    "weighed": "const float difference = outI - constantData[samples + 2*k];\n"
    "            chiSum += constantData[samples + 2*k + 1]*(difference*difference);",
    "trace": "outIGlobal[(size_t)k*popSize + individual] = outI;",
}


def kernel_text(
    model: ChannelModel, stored: str = "shared", keep: str = "score", unroll: int = UNROLL
) -> str:
    """The CUDA text of a model: its scheme, and of gates the equivalent scheme.

    Arguments:
        stored: where Q and the occupancies are between steps, one of `STORED`.
        keep: what becomes of a current: ``score`` (weights of a sweep are equal), ``weighed``
            (a weight beside every sample) or ``trace``.
        unroll: samples written out after each other.

    Raises:
        InputError: a state with a relative conductance other than 1; the design has none.
    """
    scheme = model.expanded()
    if set(scheme.open_states.values()) - {1.0}:
        raise InputError("the 2012 design knows open and closed states only", key="current.open")
    names = {p.name: f"p[{i}]" for i, p in enumerate(model.parameters)}
    printer = _SinglePrinter(_SINGLE, names)
    kind, memory, place = _MEMORY[stored]
    rates = list(_rate_lines(scheme, printer))
    return _TEXT.format(
        stride=stride(scheme),
        capacity=CAPACITY,
        stored=kind,
        memory=memory,
        place=place,
        n_entries=len(entries(scheme)),
        n_states=len(scheme.states),
        n_parameters=len(model.parameters),
        unroll=unroll,
        keep=_KEEP[keep],
        create=_indented([*rates, *_matrix_lines(scheme)]),
        initial=_indented([*rates, *_steady_lines(scheme)]),
        step=_indented(_step_lines(scheme)),
        trace_argument=", float *outIGlobal" if keep == "trace" else "",
        conductance=printer.text(model.conductance),
        reversal=printer.text(model.reversal),
    )


def stride(scheme: ChannelModel) -> int:
    """Floats of a thread in shared memory; an odd number of them meets no bank twice."""
    return (len(entries(scheme)) + len(scheme.states)) | 1


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _flows(scheme: ChannelModel) -> dict[tuple[int, int], list[str]]:
    """(to, from) -> the names of the rates that lead there, as `_rate_lines` gives them."""
    index = {s: i for i, s in enumerate(scheme.states)}
    flows: dict[tuple[int, int], list[str]] = {}
    for k, t in enumerate(scheme.transitions):
        flows.setdefault((index[t.target], index[t.source]), []).append(f"k{k}")
    return flows


def entries(scheme: ChannelModel) -> list[tuple[int, int]]:
    """(row, column) of the entries that Q has, row by row: the order in memory."""
    flows = _flows(scheme)
    return sorted({*flows, *((source, source) for _, source in flows)})


def _rate_lines(scheme: ChannelModel, printer: ScalarPrinter) -> Iterator[str]:
    """The rates k0, k1, .. of the transitions, 1/ms."""
    steps, rates = assignments(scheme.definitions, [t.rate for t in scheme.transitions])
    outer = printer.names
    for name, expression in steps:
        yield f"const float {name}_ = {printer.text(expression)};"
        printer.names = {**printer.names, name: f"{name}_"}
    for k, (t, rate) in enumerate(zip(scheme.transitions, rates, strict=True)):
        times = f"{float(t.multiplicity)!r}f*" if t.multiplicity != 1 else ""
        yield f"const float k{k} = {times}({printer.text(rate)});"
    printer.names = outer


def _matrix_lines(scheme: ChannelModel) -> Iterator[str]:
    flows = _flows(scheme)
    for place, (row, column) in enumerate(entries(scheme)):
        if row != column:
            yield f"q[{place}] = dt*({' + '.join(flows[row, column])});"
            continue
        leaving = [name for (_, source), names in flows.items() if source == row for name in names]
        yield f"q[{place}] = -dt*({' + '.join(leaving)});"


def _steady_lines(scheme: ChannelModel) -> Iterator[str]:
    """Elimination without subtractions, of what the scheme has and what fills up on the way."""
    n = len(scheme.states)
    flows = {place: " + ".join(names) for place, names in _flows(scheme).items()}
    for (row, column), rate in flows.items():
        yield f"float a{row}_{column} = {rate};"
    have = set(flows)
    for last in range(n - 1, 0, -1):
        out = [j for j in range(last) if (j, last) in have]
        yield f"const float out{last} = {' + '.join(f'a{j}_{last}' for j in out) or '0.0f'};"
        for i in range(last):
            if (last, i) not in have:
                continue
            yield f"a{last}_{i} /= out{last};"
            for j in out:
                if j == i:
                    continue
                new = "" if (j, i) in have else "float "
                yield f"{new}a{j}_{i} {'=' if new else '+='} a{last}_{i}*a{j}_{last};"
                have.add((j, i))
    yield "const float s0 = 1.0f;"
    for last in range(1, n):
        terms = [f"s{i}*a{last}_{i}" for i in range(last) if (last, i) in have]
        yield f"const float s{last} = {' + '.join(terms) or '0.0f'};"
    yield f"const float total = {' + '.join(f's{i}' for i in range(n))};"
    for i in range(n):
        yield f"y[{i}] = s{i}/total;"


def _step_lines(scheme: ChannelModel) -> Iterator[str]:
    places, n = entries(scheme), len(scheme.states)
    for place in range(len(places)):
        yield f"const float q{place} = q[{place}];"
    for i in range(n):
        yield f"const float y{i} = y[{i}];"
    for i in range(n):
        terms = [f"q{k}*y{column}" for k, (row, column) in enumerate(places) if row == i]
        yield f"y[{i}] = {' + '.join([f'y{i}', *terms])};"
    is_open = [scheme.states.index(state) for state in scheme.open_states]
    yield f"return gain*({' + '.join(f'y{place}' for place in is_open)});"


# --- sweeps as they go into constant memory ------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A sweep, or what of it lies in constant memory at once."""

    segments: int  # place of the first (end, voltage) in constant memory
    n_segments: int
    samples: int  # place of the first sample
    n: int
    holding: float
    interval: float
    weight: float
    begins: bool
    ends: bool
    place: tuple[int, int, int]  # experiment, sweep, first sample


@dataclass(frozen=True)
class _Load:
    """One filling of constant memory, float32, and the parts of sweeps in it."""

    values: np.ndarray
    parts: tuple[_Part, ...]


@dataclass(frozen=True)
class _Sweep:
    """A sweep sample by sample: command, data and weight (n_times,), each float32."""

    place: tuple[int, int]  # experiment, sweep
    holding: float
    interval: float
    voltages: np.ndarray
    data: np.ndarray
    weights: np.ndarray

    @property
    def evenly_weighed(self) -> bool:
        """Return whether all samples have the same weight."""
        return bool((self.weights == self.weights[0]).all())

    def packed(self, first: int, last: int, weighed: bool) -> tuple[np.ndarray, int]:
        """What a part needs in constant memory, and how many segments come first in it."""
        v = self.voltages[first:last]
        starts = np.flatnonzero(np.diff(v)) + 1
        ends = np.append(starts, last - first)
        segments = np.stack((ends, v[ends - 1]), axis=1)
        samples = self.data[first:last, None]
        if weighed:
            samples = np.hstack((samples, self.weights[first:last, None]))
        return np.concatenate((segments, samples), axis=None, dtype=np.float32), len(ends)

    def fitting(self, first: int, weighed: bool) -> int:
        """The sample after the last that fits into empty constant memory from `first` on."""
        new_segment = np.diff(self.voltages[first:], prepend=np.nan) != 0
        needed = np.cumsum(2 * new_segment + (2 if weighed else 1))
        return first + int(np.searchsorted(needed, CAPACITY, side="right"))


def _loads(sweeps: list[_Sweep], weighed: bool) -> list[_Load]:
    """Sweeps in order, as many whole ones as fit, longer ones cut."""
    loads: list[_Load] = []
    values: list[np.ndarray] = []
    parts: list[_Part] = []
    used = 0
    for sweep in sweeps:
        n, first = len(sweep.data), 0
        while first < n:
            last = sweep.fitting(first, weighed)
            packed, n_segments = sweep.packed(first, last, weighed)
            if used + len(packed) > CAPACITY:
                loads.append(_Load(np.concatenate(values), tuple(parts)))
                values, parts, used = [], [], 0
            weight = 1.0 if weighed else float(sweep.weights[0])
            parts.append(
                _Part(
                    used,
                    n_segments,
                    used + 2 * n_segments,
                    last - first,
                    sweep.holding,
                    sweep.interval,
                    weight,
                    first == 0,
                    last == n,
                    (*sweep.place, first),
                )
            )
            values.append(packed)
            used += len(packed)
            first = last
    if parts:
        loads.append(_Load(np.concatenate(values), tuple(parts)))
    return loads


def _sweeps(problem: Problem) -> Iterator[_Sweep]:
    for e, experiment in enumerate(problem.experiments):
        protocol, recording = experiment.protocol, experiment.recording
        if protocol.carry_over:
            raise InputError("the 2012 design starts every sweep from rest", file=protocol.name)
        command = protocol.command()
        for k in range(protocol.n_sweeps):
            n = protocol.n_times(k)
            rows = np.zeros((3, n))
            rows[0] = command[k, :n]
            if recording is not None:
                rows[2] = experiment.weight * recording.weight[k, :n]
                rows[1] = np.where(rows[2] > 0, recording.current_pA[k, :n], 0.0)
            yield _Sweep(
                (e, k), protocol.holding_mV, protocol.sampling_ms, *rows.astype(np.float32)
            )


# --- the scorer ----------------------------------------------------------------------------------


class Baseline2012:
    """Scores as the 2012 design does; `score` and `simulate` as every backend's.

    Arguments:
        threads: of a block; fewer where shared memory asks for it (`threads` tells how many).
        stored, unroll: see `kernel_text`.
        compiled: from CUDA text to a program with `fill`, `launch` and the array module `xp`; a
            device's where nothing else is given.

    Raises:
        InputError: what the design cannot score: carried-over sweeps, relative conductances, or
            more states than shared memory holds for a warp.
    """

    backend, dtype = "2012 design", "float32"

    def __init__(
        self,
        problem: Problem,
        threads: int = THREADS,
        stored: str = "shared",
        unroll: int = UNROLL,
        compiled: Callable[[str], Any] | None = None,
    ) -> None:
        self.problem, self.stored, self.unroll = problem, stored, unroll
        scheme = problem.model.expanded()
        self.n_states = len(scheme.states)
        self.thread_bytes = 4 * stride(scheme) if stored == "shared" else 0
        self.threads = threads
        if self.thread_bytes:
            self.threads = min(threads, SHARED_BYTES // self.thread_bytes // 32 * 32)
        if not self.threads:
            raise InputError(f"{self.n_states} states do not fit into shared memory")
        sweeps = list(_sweeps(problem))
        weighed = not all(sweep.evenly_weighed for sweep in sweeps)
        self.loads = _loads(sweeps, weighed)
        self.total_weight = sum(sweep.weights.sum(dtype=float) for sweep in sweeps) or np.nan
        self.text = kernel_text(problem.model, stored, "weighed" if weighed else "score", unroll)
        self._trace_text = kernel_text(problem.model, stored, "trace")
        self._compiled = compiled or _on_device
        self.program = self._compiled(self.text)
        self._filled = [self.program.xp.asarray(load.values) for load in self.loads]

    @property
    def block(self) -> str:
        """Return the tuned settings in words."""
        return f"{self.threads} threads a block, {self.unroll} samples unrolled"

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
        """(n_parameters, n_individuals) float32 on the device."""
        xp = self.program.xp
        return xp.ascontiguousarray(xp.asarray(parameters), dtype=np.float32)

    def run_generation(
        self, individuals: Any, keep: Callable[[_Part, np.ndarray], None] | None = None
    ) -> Any:
        """chi^2 (n_individuals,) float32: constant memory filled, one launch a sweep."""
        program = self._compiled(self._trace_text) if keep else self.program
        xp, n = program.xp, individuals.shape[1]
        chi = xp.zeros(n, dtype=np.float32)
        carried = xp.empty((self.n_states, n), dtype=np.float32)
        blocks = -(-n // self.threads)
        for load, filled in zip(self.loads, self._filled, strict=True):
            program.fill(CONSTANT, filled)
            for part in load.parts:
                arguments = [
                    individuals,
                    np.int32(n),
                    np.int32(part.segments),
                    np.int32(part.n_segments),
                    np.int32(part.samples),
                    np.float32(part.holding),
                    np.float32(part.interval),
                    np.float32(part.weight / self.total_weight),
                    np.int32(part.begins),
                    np.int32(part.ends),
                    chi,
                    carried,
                ]
                out = xp.empty((part.n, n), dtype=np.float32) if keep else None
                if keep:
                    arguments.append(out)
                program.launch(
                    "runSweep", blocks, self.threads, tuple(arguments), self.shared_bytes
                )
                if keep:
                    keep(part, to_host(out))
        return chi


class _DeviceProgram:
    """The kernel on the GPU."""

    def __init__(self, text: str) -> None:
        self.xp = gpu.cupy()
        module = gpu.compile_cuda(text, name="baseline_2012.cu")
        self._module, self._kernel = module, module.kernel("runSweep")
        # as much of a multiprocessor's memory as can be: what the blocks share, not a cache
        self._kernel.prefer_shared(100)
        self._constant = module.variable(CONSTANT)

    def fill(self, name: str, values: Any) -> None:
        """Constant memory, from values that lie on the device already."""
        assert name == CONSTANT
        assert values.nbytes <= 4 * CAPACITY
        self._constant.copy_from_device_async(values.data, values.nbytes)

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
    population: np.ndarray,
    cost: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    rng: np.random.Generator,
    crossover_rate: float = 0.1,
    mutation_rate: float = 0.01,
) -> np.ndarray:
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
    children = np.concatenate(
        (np.where(exchanged, second, first), np.where(exchanged, first, second))
    )[:n]
    mutates = rng.random(children.shape) < mutation_rate
    fresh = rng.uniform(lower, upper, children.shape)
    children[mutates] = fresh[mutates]
    children[0] = population[0]
    return children
