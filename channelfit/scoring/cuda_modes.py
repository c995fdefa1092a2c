"""Scores from modes on the GPU: the closed form that needs no samples, and the modal path.

Both score by the modes of held voltages, in one launch; candidates whose modes cannot be trusted
put themselves on a list, and the same queue scores those by stepping in float64, a warp each. The
host learns nothing of it and waits for nothing, once the kernel for that is compiled. While a
thread still compiles it, the host asks how long the list is, and goes on where nobody is on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.kernels.cuda_spectral import ADD_MODES, SWEEP_MODES, CudaSpectralSource
from channelfit.scoring.layout.exponential_tables import SpectralWalk, spectral_walk
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning

_MOST_JOBS = 64


def jobs_that_fill(threads: int, n_candidates: int) -> int:
    """Jobs, a power of two, that make so many threads of a population, if so many can be had."""
    return int(min(_MOST_JOBS, 1 << max(0, -(-threads // n_candidates) - 1).bit_length()))


def rounded(n_slots: int) -> int:
    """So many state slots, or some more, that few different texts are compiled."""
    return -(-n_slots // 16) * 16


#: struct Run of the generated text.
RUN = np.dtype([("places", "i4", 4), ("values", "f8", 4)])


class Modes:
    """The kernels of one problem, on arrays that lie on the GPU.

    Arguments:
        sampled: visit every sample (modal) instead of none (closed form).
        dtype: of what is computed at every sample.
    """

    def __init__(self, problem: Problem, dtype: str, sampled: bool, exact: Any) -> None:
        self.problem, self.dtype, self.sampled = problem, dtype, sampled
        self.source = CudaSpectralSource(problem.model, dtype, sampled)
        self.n_jobs: int | None = None  # for every score, where it is given
        self._exact = exact  # stepping in float64, for what is listed
        self._programs: dict[int, Program] = {}
        self._kernels: dict[int, dict[str, gpu.Kernel]] = {}

    def score(
        self,
        parameters: Any,
        cost: Any,
        status: Any,
        first: int = 0,
        last: int | None = None,
        threads: int | None = None,
    ) -> None:
        """Fill in cost and status of candidates first .. last - 1; see `cuda.Stepping.score`."""
        xp, packed = gpu.cupy(), self.problem.scored
        n = (last or parameters.shape[1]) - first
        if not n:
            return
        _ = self._exact.listed  # compiled beside the kernels that are launched first
        threads = threads or self._threads
        program = self.program(self._jobs(n))
        n_jobs = program.walk.n_jobs
        sums = np.float64(program.squares), np.float64(packed.total_weight)
        partial = flags = gpu.NULL
        if n_jobs > 1:
            partial, flags = xp.empty((n_jobs, n)), xp.empty((n_jobs, n), dtype=np.int8)
        listed, n_listed, n_next = self._list(n)
        self._turn_done = False
        results = cost, status, listed, n_listed
        some = np.int32(first), np.int32(n)
        program.kernels[SWEEP_MODES](
            (-(-n // threads), n_jobs),
            (threads,),
            (
                parameters,
                np.int64(parameters.shape[1]),
                *some,
                *program.arrays,
                *sums,
                partial,
                flags,
                *results,
            ),
        )
        if n_jobs > 1:
            program.kernels[ADD_MODES](
                (-(-n // 256),),
                (256,),
                (*some, np.int32(n_jobs), *sums, partial, flags, *results),
            )
        if self._listing(n_listed):
            self._exact.score_listed(parameters, cost, status, listed, n_listed, n_next)
        self._turn_done = True

    def operations(self) -> float:
        """Floating-point operations of a candidate, those of eigenvalue iterations left out."""
        return self.source.operations(spectral_walk(self.problem.scored))

    def rerouted_share(self, parameters: Any) -> float:
        """The share of candidates that were stepped, of parameters on the GPU."""
        xp, n = gpu.cupy(), parameters.shape[1]
        self.score(parameters, xp.empty(n), xp.empty(n, dtype=np.int8))
        return float(int(self._numbers[1][0]) / n)

    def program(self, n_jobs: int) -> Program:
        """Compiled for a schedule of so many jobs (or fewer, if there are fewer ends of runs)."""
        if n_jobs not in self._programs:
            xp, packed = gpu.cupy(), self.problem.scored
            walk = spectral_walk(packed, n_jobs, self.sampled)
            tables = walk.tables.astype(self.dtype) if self.sampled else walk.tables
            runs = np.empty(len(walk.places), dtype=RUN)
            runs["places"], runs["values"] = walk.places, walk.values
            walked = walk.jobs, walk.visits, walk.visit_v, walk.visit_dt, runs.view(np.uint8)
            arrays = [xp.asarray(np.ascontiguousarray(array)) for array in walked]
            starts = xp.asarray(walk.start_v), np.int32(len(walk.start_v))
            # what every sample is compared with need not be added again
            squares = packed.constant + (0.0 if self.sampled else walk.data_squares)
            kernels = self._compiled(walk.n_slots)
            self._programs[n_jobs] = Program(
                walk, (*arrays, *starts, xp.asarray(tables)), kernels, squares
            )
        return self._programs[n_jobs]

    def _compiled(self, n_slots: int) -> dict[str, gpu.Kernel]:
        """Kernels by name, for at least so many slots: as a rule one text for all numbers of jobs,
        of which a single one takes the most slots."""
        n_slots = max(rounded(n_slots), self._n_slots)
        if n_slots not in self._kernels:
            text = self.source.specialized(n_slots)
            module = gpu.compile_cuda(text, (), f"{self.problem.model.name}.cu")
            names = (SWEEP_MODES, ADD_MODES)
            self._kernels[n_slots] = {name: module.kernel(name) for name in names}
        return self._kernels[n_slots]

    @cached_property
    def _n_slots(self) -> int:
        order = schedule(self.problem.scored, single_samples_anywhere=not self.sampled)
        return rounded(order.n_slots)

    @property
    def most_threads(self) -> int:
        """Of a block."""
        return int(self.source.threads)

    def _listing(self, n_listed: Any) -> bool:
        """Whether to step what is listed, without asking whether anything is where that is cheap.

        Nothing listed leaves both numbers of `_list` zero.
        """
        if not self._lists:
            self._lists = self._exact.listed.done or int(n_listed.get()[0]) > 0
        return self._lists

    def _list(self, n: int) -> tuple[Any, Any, Any]:
        """Room for n candidates, their number, and the number of the next score.

        Two numbers take turns, and whoever steps the candidates of one sets the other to zero: a
        launch for that alone would cost as much as a hundredth of a score.
        """
        xp = gpu.cupy()
        if self._room is None or len(self._room) < n:
            self._room = xp.empty(n, dtype=np.int32)
        if not self._turn_done:  # interrupted between two launches: a number may not be zero
            self.__dict__.pop("_numbers", None)
        self._numbers.reverse()
        return self._room, self._numbers[1], self._numbers[0]

    _room: Any = None
    _turn_done = True
    _lists = False

    @cached_property
    def _numbers(self) -> list[Any]:
        return [gpu.cupy().zeros(1, dtype=np.int32) for _ in range(2)]

    @cached_property
    def _threads(self) -> int:
        found = tuning.remembered(self.source.hash, gpu.device().name, SWEEP_MODES)
        return found.threads if found is not None else self.source.threads

    @cached_property
    def _resident(self) -> int:
        """Threads that run at once."""
        blocks = gpu.occupancy(self._compiled(0)[SWEEP_MODES], self._threads).blocks
        return max(1, blocks) * self._threads * gpu.device().n_multiprocessors

    def _jobs(self, n: int) -> int:
        """So many that a population fills the GPU."""
        return self.n_jobs if self.n_jobs is not None else jobs_that_fill(self._resident, n)


@dataclass(frozen=True, eq=False)
class Program:
    """A walk on the GPU and the kernels compiled for it."""

    walk: SpectralWalk
    arrays: tuple[Any, ...]
    kernels: dict[str, Any]
    squares: float
