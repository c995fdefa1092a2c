"""Ways to take the ramps of a problem on a GPU: in coarse pieces, in finer ones, from step to step.

Pieces (`cuda_pieces`) are much faster than steps, but do not follow every candidate. Each candidate
has the result of the first way that resolves it; steps serve all. A single recording is compared
with its candidates as a plate of one well.

The cost of a linearization, for the staircase of 15.4 s at 0.2 ms (77,000 samples, two of its
voltages ramps), the five states of `models/herg_markov.yaml` and its 15 free parameters:

* 42 pieces, each solved by a block of threads: 60 equations inverted (216,000 multiplications with
  an addition), and 17 rows of the inverse times 75 columns (76,000): for 3,072 candidates 7.5e10
  operations, or 2.2 ms at the 34e12 operations a second of an H200. 17 ms are measured: shared
  memory and the cache beside it are busy for 73 % of them, and a third of the waiting is for other
  threads, at the barrier of each of the 60 steps of the inversion (Nsight Compute).
* The simulation, by a thread for each candidate and parameter: 29 held voltages with a propagator
  each, 305 squarings of it and 2,582 products of it with a state: 4.5 ms for 46,080 threads, and
  1.6 ms for one candidate alone, whose steps follow one another. Of few candidates the held runs
  are therefore taken side by side: twice the work, in 0.15 ms for one candidate (H100).
* 2,527 points with 16 numbers each, 323 kB, written for each candidate and read once, and the
  results of pieces, 0.9 MB; rows and their inner products, 8 ms.
* In all 32 ms for 3,072 candidates (`benchmarks/plate.py --backend cuda`, H200). A single fit
  linearizes one candidate in 0.6 ms and 128 in 1.8 ms (H100), of which launches, allocations and
  the copy to the host are 0.3 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import KIND, VARYING
from channelfit.problem.statuses import NOT_FINITE
from channelfit.scoring.cuda_algebra import Targets
from channelfit.scoring.cuda_moment_tangents import MomentTangents, serves
from channelfit.scoring.cuda_tangent_walk import Rows
from channelfit.scoring.cuda_tangents import Results, Tangents
from channelfit.scoring.kernels.cuda_pieces import UNRESOLVED, needed_bytes
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.layout.moment_tables import Ladder
from channelfit.scoring.layout.ramp_collocation import GRADES
from channelfit.scoring.layout.visit_order import needed_runs
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import array_module, to_host
from channelfit.scoring.tangent_plan import PiecewiseRamp, in_pieces, may_oscillate

#: Candidates of one launch, at most: more make a GPU no fuller, and results of several launches
#: are put together on the host, which takes longer than the launches.
MOST = 1 << 16
#: The share of the free memory that a launch may take.
_SHARE = 0.4
#: A call on the GPU with parameters and, for wells, their numbers.
Call: TypeAlias = Callable[..., tuple[Any, ...] | Results]
#: Computes recordings as targets in some rows, arrays of the host.
TargetsOf: TypeAlias = Callable[[Rows], Targets]


def ramps_of(problem: Problem, grade: int) -> dict[int, PiecewiseRamp]:
    """Return the pieces of all varying runs that a score needs; empty where one is stepped.

    All are stepped as well where blocks of the GPU have too little memory for a piece.

    Arguments:
        grade: how fine the pieces are, a row of `ramp_collocation.GRADES`.
    """
    source = CudaTangentSource(problem.model)
    if not source.takes_pieces:
        return {}
    if needed_bytes(source.largest, source.channel.n_rates) > gpu.device().shared_per_block:
        return {}
    tree, found = problem.scored, dict[int, PiecewiseRamp]()
    for run in needed_runs(tree):
        if tree.runs[run, KIND] == VARYING:
            ramp = in_pieces(tree, run, grade)
            if ramp is None:
                return {}
            found[run] = ramp
    return found


class Variant:
    """Kernels for one way to take ramps, with derivatives and without.

    Arguments:
        ramps: the pieces in which runs at a varying voltage are taken; empty where they are stepped
            through, which serves every candidate.
        n_jobs: see `Tangents`.
        moments: the rungs of a problem that is linearized by moments.

    Attributes:
        serves_all: whether no candidate is left to another variant.
    """

    def __init__(
        self,
        problem: Problem,
        ramps: Mapping[int, PiecewiseRamp],
        targets_of: TargetsOf | None = None,
        n_jobs: int | None = None,
        moments: Ladder | None = None,
    ) -> None:
        self.ramps, self._targets_of = ramps, targets_of or _own_targets
        self.rows = Rows(problem.scored, may_oscillate(problem.model), ramps)
        given = problem, self.rows, lambda: self.targets
        self._stepped = partial(Tangents, *given, None, n_jobs)
        self.values, self.serves_all = Tangents(*given, 0, n_jobs), not (ramps or moments)
        self.tangents: Tangents | MomentTangents = (
            MomentTangents(*given, n_jobs, moments) if moments else self._stepped()
        )

    def for_all(self) -> Variant:
        """Return the same with propagators in place of moments."""
        found = copy(self)
        found.tangents, found.serves_all = self._stepped(), True
        return found

    @cached_property
    def host_targets(self) -> Targets:
        """The targets of the wells, on the host."""
        return self._targets_of(self.rows)

    @cached_property
    def targets(self) -> Targets:
        """The same on the GPU."""
        on_device, host = gpu.cupy().asarray, self.host_targets
        with gpu.gpu_errors():
            return Targets(
                on_device(host.targets),
                on_device(host.constant),
                on_device(host.total_weight),
                tuple(map(on_device, host.factors)),
            )

    @cached_property
    def data(self) -> Any:
        """(n_compressed, n_wells), the targets in the order in which products read them."""
        return gpu.cupy().ascontiguousarray(self.targets.targets.T)

    def predicted(self, parameters: Any) -> tuple[Any, Any]:
        """Return weighted currents (n, n_compressed) and status (n,)."""
        currents, status = self._predicted(self.values, parameters)
        return currents[:, :, 0], status

    def rows_with_slopes(self, parameters: Any) -> tuple[Any, Any]:
        """Return weighted currents with derivatives (n, n_compressed, 1 + n_free) and status (n,).

        Raises TypeError where derivatives come from moments, which have no rows.
        """
        if not isinstance(self.tangents, Tangents):
            raise TypeError("moments have sums of products alone")
        return self._predicted(self.tangents, parameters)

    @staticmethod
    def _predicted(kernels: Tangents, parameters: Any) -> tuple[Any, Any]:
        currents, statuses = kernels.predicted(parameters)
        infinite = (statuses == NOT_FINITE).any(axis=0)
        return currents, gpu.cupy().where(infinite, np.int8(NOT_FINITE), statuses.max(axis=0))

    def steps_alone(self, n: int) -> bool:
        """Return whether threads would step n candidates from sample to sample, one each."""
        return not self.ramps and self.values.fills(n)

    def linearize(self) -> tuple[Call, int]:
        """Return the call that linearizes, and the bytes that it takes for each candidate."""
        width = 1 + len(self.tangents.free)
        more = 8 * width**2 * (3 + len(self.rows.groups))
        return self.tangents.linearize, self.tangents.bytes_a_candidate + more

    def score(self) -> tuple[Call, int]:
        """Return the call that scores without derivatives, and bytes as `linearize`."""
        return self.values.score, self.values.bytes_a_candidate


class Variants:
    """The ways to take the ramps of a problem, from the fastest to the one for every candidate.

    Arguments:
        targets_of: of the wells; None for the problem's own recording.
        n_jobs: see `Tangents`.
        chunk: candidates in one launch. With None it is as many as memory allows.
        grades: how fine the pieces of each variant are, `ramp_collocation.GRADES`; None for steps.
        by_moments: whether problems that moments serve are linearized by them; None for those that
            are faster for it.
    """

    def __init__(
        self,
        problem: Problem,
        targets_of: TargetsOf | None = None,
        n_jobs: int | None = None,
        chunk: int | None = None,
        grades: Sequence[int | None] = (*range(len(GRADES)), None),
        by_moments: bool | None = None,
    ) -> None:
        self.chunk, self._more = chunk, (targets_of, n_jobs)
        self._grades, self._by_moments = grades, by_moments
        self.problem, self._made = problem, list[Variant]()
        self._to_make: list[Callable[[], Variant | None]] = [partial(self._make, g) for g in grades]

    def __iter__(self) -> Iterator[Variant]:
        """Yield the variants, each made when it is first needed."""
        yield from self._made
        while self._to_make:
            made = self._to_make.pop(0)()
            if made is not None:
                self._made.append(made)
                yield made

    def _make(self, grade: int | None) -> Variant | None:
        """Return a variant; None where no ramp can be taken in pieces."""
        if grade is not None:
            ramps = ramps_of(self.problem, grade)
            return Variant(self.problem, ramps, *self._more) if ramps else None
        moments = None
        if self._by_moments is not False:
            moments = serves(self.problem, always=self._by_moments or False)
        found = Variant(self.problem, {}, *self._more, moments)
        if moments:
            self._to_make.append(found.for_all)
        return found

    def cut_into(self, n_jobs: int) -> Variants:
        """Return the same ways, with each candidate cut into so many jobs."""
        targets_of, _ = self._more
        own = targets_of, n_jobs, self.chunk, self._grades, self._by_moments
        return Variants(self.problem, *own)

    @cached_property
    def first(self) -> Variant:
        """The fastest way; its kernels are compiled while other things are done."""
        first = next(iter(self))
        for kernels in (first.values, first.tangents):
            kernels.compile_ahead()
        return first

    def results(
        self,
        one: Callable[[Variant], tuple[Call, int]],
        parameters: Any,
        well: Any = None,
        axis: int = -1,
        status: int = 1,
    ) -> list[Any]:
        """Return the results of a call, each candidate's by the first variant that resolves it.

        Arguments:
            one: returns the call of a variant, and the bytes that it takes for each candidate.
            parameters: (n_parameters, n); results are arrays of the same module.
            well: (n,) int32 or None.
            axis: of the candidates in the results, the first or the last.
            status: the place of the statuses among the results.
        """
        xp, found = array_module(parameters), list[Any]()
        left = xp.arange(parameters.shape[1])
        for variant in self:
            own = None if well is None else well[left]
            some = parameters[:, left] if found else parameters
            part = self._in_chunks(*one(variant), some, own, axis)
            for whole, own_part in zip(found, part, strict=bool(found)):
                whole[left if axis == 0 else (..., left)] = own_part
            found = found or part
            if variant.serves_all:
                break
            left = xp.flatnonzero(found[status] == UNRESOLVED)
            if not len(left):
                break
        return found

    def _in_chunks(self, call: Call, size: int, parameters: Any, well: Any, axis: int) -> list[Any]:
        """Return the results of a call, made for as many candidates at once as memory allows.

        Arguments:
            size: bytes of the GPU's memory that the call takes for each candidate.
            axis: of the candidates in the results.
        """
        xp, on_device = array_module(parameters), gpu.cupy()
        wells = () if well is None else (well,)
        parts, n = [], parameters.shape[1]
        step = self.chunk or max(1, min(MOST, int(_SHARE * self._free) // size))
        with gpu.gpu_errors():
            for a in range(0, max(1, n), step):
                some = slice(a, min(a + step, n))
                arrays = (xp.ascontiguousarray(parameters[:, some]), *(w[some] for w in wells))
                results = call(*(on_device.asarray(array) for array in arrays))
                if xp is not np:
                    parts.append([*results])
                elif isinstance(results, Results):
                    parts.append([*results.on_host()])
                else:
                    parts.append([to_host(array) for array in results])
        if len(parts) == 1:
            return parts[0]
        return [xp.concatenate(arrays, axis) for arrays in zip(*parts, strict=True)]

    @cached_property
    def _free(self) -> int:
        """Free memory of the GPU, bytes; read once, as reading makes the host wait."""
        return gpu.device().memory_free


def _own_targets(rows: Rows) -> Targets:
    """Return the problem's own recording as the targets of one well."""
    tree = rows.packed
    targets, constant = rows.targets([(tree.data_pA, tree.constant)])
    return Targets(targets, constant, np.array([tree.total_weight]))
