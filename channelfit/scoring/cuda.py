"""The CUDA backend: each thread has one candidate, and one launch a whole population.

Host and GPU run side by side: a score of CuPy arrays is launched and not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import DATA as FIRST_SAMPLE
from channelfit.problem.run_tree import (
    HELD,
    KIND,
    N_SAMPLES,
    N_SUB,
    SAMPLED,
    RunTree,
    by_sweep,
)
from channelfit.problem.statuses import OK
from channelfit.scoring.choose_path import choose_path
from channelfit.scoring.cuda_launch import Launched, Program, rounded, with_level
from channelfit.scoring.cuda_modes import CudaModes, HeldScorer
from channelfit.scoring.cuda_moments import CudaMoments
from channelfit.scoring.cuda_variants import Variant, Variants
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_walk import ADD_JOBS, LISTED, SWEEP
from channelfit.scoring.layout.exponential_tables import voltage_varies
from channelfit.scoring.layout.visit_order import Schedule, schedule
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import array_module, to_host
from channelfit.scoring.machine.launch_tuning import Tunable
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score, UseOfRows
from channelfit.scoring.tangent_plan import nodes_of

_THREADS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
_LARGEST_CHUNK = 1 << 22  # candidates; larger launches gain nothing
_LANES = 32  # of a warp
_LISTED_WARPS = 16  # for each multiprocessor: as many as its registers hold

#: The structures Visit, behind its level, and Run of the generated text.
VISIT = (
    *(("dt", "f8"), ("first", "i4"), ("last", "i4")),
    *(("longest", "i4"), ("kind", "i4")),
)
RUN = np.dtype(
    [
        ("weight", "f8"),
        ("dt", "f8"),
        ("n", "i4"),
        ("data", "i4"),
        ("source", "i4"),
        ("target", "i4"),
        ("n_sub", "i4"),
        ("nodes", "i4"),
        ("sampled", "i4"),
        ("unused", "i4"),
    ]
)


@dataclass(frozen=True)
class SteppingTables:
    """A schedule as the arrays that the kernel `runSweep` reads.

    Attributes:
        starts: (n_starts,) mV, the holding potentials at which runs start in the steady state; with
            ligands these and `nodes` have their concentrations, as in `RunTree.levels`.
        jobs: (n_jobs + 1,) int32, where the visits of each job begin.
        visits, runs: bytes of VISIT and RUN.
        data: (n,) pA, and nodes: (n,) mV, in the stepping precision.
        n_slots: the number of states that are kept between runs.
        varying: whether the voltage varies in any run.
    """

    starts: np.ndarray
    jobs: np.ndarray
    visits: np.ndarray
    runs: np.ndarray
    data: np.ndarray
    nodes: np.ndarray
    n_slots: int
    varying: bool

    @property
    def n_jobs(self) -> int:
        return len(self.jobs) - 1

    @property
    def arrays(self) -> Sequence[np.ndarray]:
        """The arrays in the order of the kernel's parameters."""
        return self.starts, self.jobs, self.visits, self.runs, self.data, self.nodes


def stepping_tables(
    source: CudaSource, packed: RunTree, order: Schedule, traced: bool = False
) -> SteppingTables:
    """Lay out a schedule for a source.

    Every run's data begin where sixteen bytes may be loaded and are filled up with zeros to whole
    strides. Traced, runs point to their place in the output instead.
    """
    levels = np.concatenate([packed.levels, packed.levels[:1] * 0])  # index -1: varying
    visits = np.zeros(len(order.voltage), dtype=with_level(VISIT, levels))
    visits["v"], visits["dt"] = levels[order.voltage], order.dt
    visits["first"], visits["last"] = order.visits[:-1], order.visits[1:]
    rows = packed.runs[order.run]
    visits["longest"] = [
        rows[a:b, N_SAMPLES].max() for a, b in zip(visits["first"], visits["last"], strict=True)
    ]
    visits["kind"] = order.voltage < 0
    runs = np.zeros(len(rows), dtype=RUN)
    runs["weight"] = rows[:, SAMPLED] if traced else order.weight
    runs["sampled"] = runs["weight"] > 0
    runs["dt"], runs["n_sub"] = packed.run_dt[order.run], rows[:, N_SUB]
    runs["n"], runs["data"] = rows[:, N_SAMPLES], rows[:, FIRST_SAMPLE]
    runs["source"], runs["target"] = order.source, order.target
    data = np.empty(0, source.dtype)
    if not traced:
        runs["data"], data = _aligned(runs, packed.data_pA, source)
    runs["nodes"], nodes = _levels(packed, order.run, source)
    return SteppingTables(
        packed.levels[packed.start_voltage],
        order.jobs.astype(np.int32),
        visits.view(np.uint8),
        runs.view(np.uint8),
        data,
        nodes,
        rounded(order.n_slots),
        bool(visits["kind"].any()),
    )


def _aligned(
    runs: np.ndarray, data_pA: np.ndarray, source: CudaSource
) -> tuple[np.ndarray, np.ndarray]:
    """Return where each run's data begin, and the data with every run on a whole stride."""
    scored = runs["sampled"] > 0
    room = np.where(scored, -(-runs["n"] // source.stride) * source.stride, 0)
    begins = np.concatenate(([0], np.cumsum(room)[:-1])) if len(runs) else room
    data = np.zeros(int(room.sum()) + source.stride, source.dtype)
    for run, begin in zip(runs[scored], begins[scored], strict=True):
        n, first = run["n"], run["data"]
        data[begin : begin + n] = data_pA[first : first + n]
    return begins, data


def _levels(tree: RunTree, runs: np.ndarray, source: CudaSource) -> tuple[np.ndarray, np.ndarray]:
    """Return where levels of each varying run begin, and those that the steps read."""
    begins, parts, total = np.zeros(len(runs), dtype=np.int64), [tree.levels[:0]], 0
    for k, run in enumerate(runs):
        if tree.runs[run, KIND] == HELD:
            continue
        part = source.levels(nodes_of(tree, run))
        begins[k] = total
        parts.append(part)
        total += len(part)
    return begins, np.concatenate(parts).astype(source.dtype)


class CudaScorer(ChannelScorer, Tunable):
    """Scores and simulates on an NVIDIA GPU.

    Arguments:
        path: ``auto`` or one of `paths`.
        threads: the threads of a block. With None it is the number that `channelfit tune` has
            found, or else the one that fills the GPU best.
        chunk: candidates in one launch. With None it is as many as memory allows.

    Raises:
        InputError: there is no GPU that can be used; the message says what to do.
    """

    backend = "cuda"
    paths = ("stepping", "closed-form", "moments")

    def __init__(
        self,
        problem: Problem,
        dtype: str = "float64",
        path: str = "auto",
        threads: int | None = None,
        chunk: int | None = None,
    ) -> None:
        self.xp = gpu.cupy()
        self.problem, self.dtype = problem, dtype
        self.threads, self.chunk = threads, chunk
        by_moments = {"stepping": False, "moments": True}.get(path)
        self._variants = Variants(problem, chunk=chunk, by_moments=by_moments)
        self.path = choose_path(problem, dtype, path)
        alone = path == "auto" and self.path == "stepping"
        self.stepping = CudaStepping(problem, dtype, both=alone)
        self.scoring: CudaStepping | HeldScorer = self.stepping
        if self.path == "moments":
            self.scoring = CudaMoments(problem, self._exact)
        elif self.path != "stepping":
            self.scoring = CudaModes(problem, self._exact)
        self.source = self.scoring.source
        self.source_text, self.source_hash = self.source.text, self.source.hash

    def score(self, parameters: Any) -> Score:
        """Return cost and status; see `Scorer.score`.

        Parameters in a CuPy array are scored without waiting for the GPU and give CuPy arrays.
        """
        return self._score(parameters, self.scoring)

    def rescore(self, parameters: Any) -> Score:
        """Return a score by stepping in float64, whatever this scorer's path and precision."""
        return self._score(parameters, self._exact)

    def preview(self, parameters: Any) -> Score:
        """Return a score that a search compares with the cost of `linearize`.

        It is in float64. Where the voltage varies ramps are taken in pieces, as `linearize` takes
        them; or, of few candidates, segments of a run are stepped side by side.
        """
        if not self._varies or self._variants.first.steps_alone(parameters.shape[1]):
            return self.score(parameters)
        return Score(*self._variants.results(Variant.score, self._scorable(parameters)))

    def linearize(self, parameters: Any) -> Linearization:
        """Return cost, gradient and Hessian, in float64; see `scorer.Linearization`.

        Parameters in a CuPy array give CuPy arrays.
        """
        found = self._variants.results(Variant.linearize, self._scorable(parameters))
        return Linearization(*found)

    def limit_launches(self, chunk: int) -> None:
        self.chunk = self._variants.chunk = chunk

    def fix_jobs(self, n: int) -> bool:
        self._variants = self._variants.cut_into(n)
        for kernels in (self.stepping, self.scoring, self._exact):
            kernels.n_jobs = n
        # else the threads of a warp take their moments by the fastest of their candidates
        return not isinstance(self.scoring, CudaMoments) or self.scoring.source.resolves

    def window_currents(self, parameters: Any) -> tuple[Any, Any]:
        """See `ChannelScorer.window_currents`; the currents stay on the GPU."""
        parameters, xp = self._checked(parameters), self.xp
        n = parameters.shape[1]
        with gpu.gpu_errors():
            trace = xp.empty((len(self.problem.simulated.sample_mV), n), dtype=self.dtype)
            status = xp.empty(n, dtype=np.int8)
            self.stepping.simulate(self._on_device(parameters, 0, n), trace, status)
            return xp.where(status == OK, trace, np.nan), status

    def window_slopes(self, parameters: Any, use: UseOfRows) -> tuple[Any, Any, Any]:
        """See `ChannelScorer.window_slopes`."""

        def one(variant: Variant) -> tuple[Any, int]:
            def call(some: Any) -> tuple[Any, ...]:
                rows, status = variant.rows_with_slopes(some)
                return *use(variant.rows.blocks, rows), status

            return call, 4 * variant.tangents.bytes_a_candidate

        values, slopes, status = self._variants.results(
            one, self._checked(parameters), axis=0, status=2
        )
        return values, slopes, status

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        packed = self.problem.simulated
        parameters = self._checked(parameters)
        n, n_data = parameters.shape[1], len(packed.sample_mV)
        out = np.empty((n_data, n))
        size = self.xp.dtype(self.dtype).itemsize
        with gpu.gpu_errors():
            for a, b in self._chunks(n, size * n_data + 8 * len(parameters) + 1):
                status = self.xp.empty(b - a, dtype=np.int8)
                trace = self.xp.empty((n_data, b - a), dtype=self.dtype)
                self.stepping.simulate(self._on_device(parameters, a, b), trace, status)
                out[:, a:b] = to_host(trace)
                out[:, a:b][:, to_host(status) != OK] = np.nan
        return [by_sweep(out, places) for places in packed.outputs]

    # --- tuning: see `launch_tuning.Tunable`

    def launch_choices(self) -> list[tuple[Any, ...]]:
        """Return each kernel with the numbers of threads that its blocks can have."""
        most = self.scoring.most_threads
        return [(SWEEP, tuple(t for t in _THREADS if t <= most))]

    def timed_score(
        self, parameters: Any, threads: Mapping[str, int], jobs: Mapping[str, int] | None = None
    ) -> float:
        """Return the median time, seconds on the device, of a score with these launches."""
        before = self.threads, self.scoring.n_jobs
        self.threads, self.scoring.n_jobs = threads.get(SWEEP), (jobs or {}).get(SWEEP)
        on_device = self.xp.asarray(parameters)
        try:
            return gpu.timed(lambda: self.score(on_device))
        finally:
            self.threads, self.scoring.n_jobs = before

    def launch_occupancy(self, kernel: str, threads: int) -> gpu.Occupancy:
        """Return how full a kernel makes the GPU with blocks of so many threads."""
        return gpu.occupancy(self.scoring.program(1).kernels[kernel], threads)

    # ---

    @cached_property
    def _exact(self) -> CudaStepping:
        return self.stepping if self.dtype == "float64" else CudaStepping(self.problem, "float64")

    @cached_property
    def _varies(self) -> bool:
        """True where a scored sample comes at or after a varying voltage."""
        return voltage_varies(self.problem.scored)

    def _score(self, parameters: Any, scoring: CudaStepping | HeldScorer) -> Score:
        xp, parameters = self.xp, self._scorable(parameters)
        n = parameters.shape[1]
        with gpu.gpu_errors():
            cost, status = xp.empty(n), xp.empty(n, dtype=np.int8)
            if isinstance(parameters, xp.ndarray):
                for a, b in self._chunks(n, 9):
                    scoring.score(parameters, cost, status, a, b, threads=self.threads)
                return Score(cost, status)
            for a, b in self._chunks(n, 9 + 8 * len(parameters)):
                part = self._on_device(parameters, a, b)
                scoring.score(part, cost[a:b], status[a:b], threads=self.threads)
            return Score(to_host(cost), to_host(status))

    def _checked(self, parameters: Any) -> Any:
        """Return checked parameters; a row of zeros where a model has none, as kernels read one."""
        parameters = super()._checked(parameters)
        if len(parameters):
            return parameters
        return array_module(parameters).zeros((1, parameters.shape[1]))

    def _on_device(self, parameters: Any, a: int, b: int) -> Any:
        """Return candidates a .. b - 1 as a contiguous array of the device."""
        some = parameters[:, a:b]
        if isinstance(some, self.xp.ndarray):
            return self.xp.ascontiguousarray(some)
        return self.xp.asarray(np.ascontiguousarray(some))

    def _chunks(self, n: int, size: int) -> list[tuple[int, int]]:
        """Return ranges of candidates for one launch each, where a candidate needs `size` bytes."""
        chunk = self.chunk or max(1, min(_LARGEST_CHUNK, self._free // (2 * max(1, size))))
        return [(a, min(a + chunk, n)) for a in range(0, n, chunk)]

    @cached_property
    def _free(self) -> int:
        """Free memory of the GPU, bytes; read once, as reading makes the host wait."""
        return gpu.device().memory_free


class CudaStepping(Launched):
    """The stepping kernels of one problem in one precision, on arrays that lie on the GPU.

    Arguments:
        dtype: the precision of stepping, ``float32`` or ``float64``.
        both: whether simulations take the kernel that scores, so that a model is compiled once if
            all its scores come from stepping. Where the voltage varies, or of many states, that
            kernel is slower by 6 % at most.
    """

    kernel_name, thread_choices, waves = SWEEP, (128, 64, 96, 192, 256, 32), 2

    def __init__(self, problem: Problem, dtype: str, both: bool = False) -> None:
        self.problem, self.dtype, self.both = problem, dtype, both
        self.source = CudaSource(problem.model, dtype)
        self._programs: dict[tuple[int, bool, bool], Program] = {}
        self._kernels: dict[str, dict[str, gpu.CudaKernel]] = {}

    def score(
        self,
        parameters: Any,
        cost: Any,
        status: Any,
        first: int = 0,
        last: int | None = None,
        threads: int | None = None,
    ) -> None:
        """Fill in cost and status of candidates first .. last - 1.

        Arguments:
            parameters: (n_parameters, n_candidates) float64, contiguous.
            cost, status: (n_candidates,) float64 and int8, which are written.
            threads: the threads of a block.
        """
        xp, packed = gpu.cupy(), self.problem.scored
        n = (last or parameters.shape[1]) - first
        if not n:
            return
        threads = threads or self._threads
        program = self.program(self._jobs(n))
        n_jobs = program.tables.n_jobs
        partial = xp.empty((n_jobs, n))
        partial_status = xp.empty((n_jobs, n), dtype=np.int8)
        some = np.int32(first), np.int32(n)
        program.kernels[SWEEP](
            (-(-n // threads), n_jobs),
            (threads,),
            (
                parameters,
                np.int64(parameters.shape[1]),
                *some,
                *program.arrays,
                partial,
                partial_status,
                gpu.NULL,
            ),
        )
        program.kernels[ADD_JOBS](
            (-(-n // 256),),
            (256,),
            (
                *some,
                np.int32(n_jobs),
                np.float64(packed.constant),
                np.float64(packed.total_weight),
                partial,
                partial_status,
                cost,
                status,
            ),
        )

    def score_listed(
        self, parameters: Any, cost: Any, status: Any, listed: Any, n_listed: Any, n_next: Any
    ) -> None:
        """Fill in cost and status of candidates on a list, and set n_next to 0.

        Arguments:
            parameters: (n_parameters, n_candidates) float64, contiguous.
            cost, status: (n_candidates,) float64 and int8, which are written.
            listed: int32 indices of candidates.
            n_listed: (1,) int32, how many of them are meant, a number that the GPU alone knows.
            n_next: (1,) int32.
        """
        packed, program = self.problem.scored, self.program(_LANES, listed=True)
        starts, n_starts, jobs, *rest = program.arrays
        sums, flags, arrived = self._scratch
        n_jobs = program.tables.n_jobs
        n_few = len(sums) // n_jobs if self.n_jobs is None else 0
        program.kernels[LISTED](
            (len(sums) // 2,),
            (2 * _LANES,),
            (
                parameters,
                np.int64(parameters.shape[1]),
                listed,
                n_listed,
                starts,
                n_starts,
                jobs,
                np.int32(n_jobs),
                *rest,
                np.float64(packed.constant),
                np.float64(packed.total_weight),
                np.int32(n_few),
                cost,
                status,
                sums,
                flags,
                arrived,
                n_next,
            ),
        )

    @cached_property
    def _scratch(self) -> tuple[Any, Any, Any]:
        """Room for what the warps of listed candidates leave for the last of them to add up."""
        xp, n = gpu.cupy(), _LISTED_WARPS * gpu.device().n_multiprocessors
        return xp.empty(n), xp.empty(n, dtype=np.int32), xp.zeros(n, dtype=np.int32)

    def simulate(self, parameters: Any, trace: Any, status: Any) -> None:
        """Fill in currents (n_data, n_candidates), pA, in the order of `RunTree`, and status."""
        n = parameters.shape[1]
        program, threads = self.program(1, traced=True), 64
        program.kernels[SWEEP](
            (-(-n // threads),),
            (threads,),
            (
                parameters,
                np.int64(n),
                np.int32(0),
                np.int32(n),
                *program.arrays,
                gpu.NULL,
                status,
                trace,
            ),
        )

    def program(self, n_jobs: int, traced: bool = False, listed: bool = False) -> Program:
        """Return compiled kernels for so many jobs, or for as many as there are last runs."""
        key = n_jobs, traced, listed
        if key not in self._programs:
            packed = self.problem.simulated if traced else self.problem.scored
            laid_out = stepping_tables(
                self.source, packed, schedule(packed, n_jobs, traced=traced), traced
            )
            xp = gpu.cupy()
            starts, *others = (xp.asarray(array) for array in laid_out.arrays)
            arrays = (starts, np.int32(len(laid_out.starts)), *others)
            kernels = (
                {LISTED: self.listed.module().kernel(LISTED)}
                if listed
                else self._compiled(laid_out.n_slots, laid_out.varying, traced)
            )
            self._programs[key] = Program(laid_out, arrays, kernels)
        return self._programs[key]

    @cached_property
    def listed(self) -> gpu.Compilation:
        """The program of `score_listed`; its compilation begins when it is first needed."""
        order = schedule(self.problem.scored, _LANES)
        varying = bool((order.voltage < 0).any())
        text = self.source.specialized(rounded(order.n_slots), varying, listed=True)
        return gpu.compile_ahead(text, self.source.options, f"{self.problem.model.name}.cu")

    def _compiled(self, n_slots: int, varying: bool, traced: bool) -> dict[str, gpu.CudaKernel]:
        """Return the kernels of a text, by name; scores get one text for all numbers of jobs."""
        if not traced:
            n_slots = max(n_slots, self._n_slots)
        text = self.source.specialized(n_slots, varying, None if self.both else traced)
        if text not in self._kernels:
            name = f"{self.problem.model.name}.cu"
            module = gpu.compile_cuda(text, self.source.options, name)
            self._kernels[text] = {name: module.kernel(name) for name in (SWEEP, ADD_JOBS)}
        return self._kernels[text]

    @cached_property
    def _n_slots(self) -> int:
        return rounded(schedule(self.problem.scored).n_slots)

    @cached_property
    def typical_kernel(self) -> gpu.CudaKernel:
        """The kernel that scores."""
        varying = bool((schedule(self.problem.scored).voltage < 0).any())
        return self._compiled(self._n_slots, varying, traced=False)[SWEEP]
