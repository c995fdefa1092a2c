"""Scores of held voltages on the GPU: the closed form that needs no samples.

All candidates are scored in one launch. Those in doubt are
put on a list, and the next launch scores those by stepping in float64, a warp for each.
Once the kernel for that is compiled, the host neither learns how many these are nor waits for it.
While a thread still compiles it, the host asks how long the list is, and goes on where it is empty.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.cuda_launch import Launched, Program, rounded
from channelfit.scoring.kernels.cuda_spectral import ADD_MODES, SWEEP_MODES, CudaSpectralSource
from channelfit.scoring.kernels.spectral import LEAST_COST
from channelfit.scoring.layout.exponential_tables import spectral_walk
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.machine import gpu

#: The structure Run of the generated text.
RUN = np.dtype([("places", "i4", 4), ("values", "f8", 4)])


class HeldScorer(Launched):
    """The kernels of one problem of held voltages, on arrays that lie on the GPU.

    Arguments:
        source: the text; its kernels `runSweep` and `addJobs` list candidates in doubt.
        exact: `cuda.CudaStepping` in float64, for the candidates on the list.
    """

    kernel_name = SWEEP_MODES
    kernel_names: tuple[str, ...] = (SWEEP_MODES, ADD_MODES)

    def __init__(self, problem: Problem, source: Any, exact: Any) -> None:
        self.problem, self.source = problem, source
        self._exact = exact
        self._programs: dict[int, Program] = {}
        self._kernels: dict[int, dict[str, gpu.CudaKernel]] = {}

    @abstractmethod
    def program(self, n_jobs: int) -> Program:
        """Return compiled kernels for so many jobs, or for as many as there are last runs."""

    @abstractmethod
    def _constants(self, program: Program) -> tuple[float, float]:
        """Return what is added to a sum of squares, and the least sum that keeps its digits."""

    def score(
        self,
        parameters: Any,
        cost: Any,
        status: Any,
        first: int = 0,
        last: int | None = None,
        threads: int | None = None,
    ) -> None:
        """Fill in cost and status of some candidates, as `cuda.CudaStepping.score` does."""
        xp = gpu.cupy()
        n = (last or parameters.shape[1]) - first
        if not n:
            return
        _ = self._exact.listed  # compiled beside the kernels that are launched first
        threads = threads or self._threads
        program = self.program(self._jobs(n))
        n_jobs = program.tables.n_jobs
        total_weight = self.problem.scored.total_weight
        sums = tuple(np.float64(x) for x in (*self._constants(program), total_weight))
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
                *self._arranged(parameters, first, n),
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

    def _arranged(self, parameters: Any, first: int, n: int) -> tuple[Any, ...]:
        """Return the first arguments of the kernel that scores: the candidates of a launch."""
        return parameters, np.int64(parameters.shape[1]), np.int32(first), np.int32(n)

    def rerouted_share(self, parameters: Any) -> float:
        """Return the share of candidates that had to be stepped, of parameters on the GPU."""
        xp, n = gpu.cupy(), parameters.shape[1]
        self.score(parameters, xp.empty(n), xp.empty(n, dtype=np.int8))
        return float(int(self._numbers[1][0]) / n)

    def _compiled(self, n_slots: int) -> dict[str, gpu.CudaKernel]:
        """Return kernels by name, for at least so many slots.

        A single job takes the most slots, so that as a rule one text serves all numbers of jobs.
        """
        n_slots = max(rounded(n_slots), self._n_slots)
        if n_slots not in self._kernels:
            text = self.source.specialized(n_slots)
            module = gpu.compile_cuda(text, (), f"{self.problem.model.name}.cu")
            self._kernels[n_slots] = {name: module.kernel(name) for name in self.kernel_names}
        return self._kernels[n_slots]

    @cached_property
    def _n_slots(self) -> int:
        order = schedule(self.problem.scored, single_samples_anywhere=True)
        return rounded(order.n_slots)

    @property
    def typical_kernel(self) -> gpu.CudaKernel:
        """The kernel that scores."""
        return self._compiled(0)[SWEEP_MODES]

    @property
    def most_threads(self) -> int:
        """The most threads that a block can have."""
        return int(self.source.threads)

    def _listing(self, n_listed: Any) -> bool:
        """Return whether to launch the kernel that steps the candidates on the list.

        Once that kernel is compiled it is launched without asking whether anything is listed, as
        that costs less. Where nothing is listed both numbers of `_list` stay zero.
        """
        if not self._lists:
            self._lists = self._exact.listed.done or int(n_listed.get()[0]) > 0
        return self._lists

    def _list(self, n: int) -> tuple[Any, Any, Any]:
        """Return room for a list of n candidates, their number, and that of the next score.

        Two numbers take turns, and the kernel that steps the candidates of one sets the other to
        zero: a launch for that alone would cost as much as a hundredth of a score.
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

    def _filling_threads(self) -> int:
        return self.most_threads


class CudaModes(HeldScorer):
    """The kernels that score by modes.

    Arguments:
        exact: as in `HeldScorer`.
    """

    def __init__(self, problem: Problem, exact: Any) -> None:
        super().__init__(problem, CudaSpectralSource(problem.model), exact)

    def operations(self) -> float:
        """Return floating-point operations of a candidate, without eigenvalue iterations."""
        return float(self.source.operations(spectral_walk(self.problem.scored)))

    def program(self, n_jobs: int) -> Program:
        """Return compiled kernels for so many jobs, or for as many as there are last runs."""
        if n_jobs not in self._programs:
            xp, walk = gpu.cupy(), spectral_walk(self.problem.scored, n_jobs)
            runs = np.empty(len(walk.places), dtype=RUN)
            runs["places"], runs["values"] = walk.places, walk.values
            walked = walk.jobs, walk.visits, walk.visit_v, walk.visit_dt, runs.view(np.uint8)
            arrays = [xp.asarray(np.ascontiguousarray(array)) for array in walked]
            starts = xp.asarray(walk.start_v), np.int32(len(walk.start_v))
            arrays += [*starts, xp.asarray(walk.tables)]
            self._programs[n_jobs] = Program(walk, tuple(arrays), self._compiled(walk.n_slots))
        return self._programs[n_jobs]

    def _constants(self, program: Program) -> tuple[float, float]:
        squares = self.problem.scored.constant + program.tables.data_squares
        return squares, LEAST_COST * squares
