"""The wells of a family compared with candidates on a GPU, all wells in the same launches.

The walk through the states knows nothing of data: `Tangents` traces the candidates of all wells
together, takes their currents into the compressed space of the runs, and subtracts there the
target of each candidate's own well. Nothing is done for one well after the other, and nothing that
a candidate gets depends on its company: neither on the candidates beside it, nor on how many of
them the memory takes at once, nor on the other wells.

One object uses one GPU, the current one. Several GPUs are used by several processes, each of which
sees one of them (CUDA_VISIBLE_DEVICES): wells are fitted independently of each other, so that
processes have nothing to tell each other meanwhile; the search between two launches is Python on
the host, for which threads of one process would have to take turns; and the same workers serve a
cluster.

Ramps of schemes are taken in pieces (`cuda_pieces`). A candidate that these do not follow is asked
again with finer ones, and one that even these do not follow is stepped from sample to sample.

What a linearization takes, for the staircase of 15.4 s at 0.2 ms (77,000 samples, two of its
voltages ramps), the five states of `models/herg_markov.yaml` and its 15 free parameters:

* 42 pieces, each solved by a block of threads: 60 equations inverted (216,000 multiplications with
  an addition), and 17 rows of the inverse times 75 columns (76,000): for 3,072 candidates 7.5e10
  operations, or 2.2 ms at the 34e12 operations a second of an H200. 17 ms are measured: shared
  memory and the cache beside it are busy for 73 % of them, and a third of the waiting is for other
  threads, at the barrier of each of the 60 steps of the inversion (Nsight Compute).
* The walk, by a thread for each candidate and parameter: 29 held voltages with a propagator each,
  305 squarings of it and 2,582 products of it with a state: 4.5 ms for 46,080 threads, and 1.6 ms
  for one candidate alone, whose steps nothing can do side by side.
* 2,527 points with 16 numbers each, 323 kB, written for each candidate and read once, and what
  pieces leave for the walk, 0.9 MB; rows and their inner products, 8 ms.
* In all 32 ms for 3,072 candidates, 3.3 ms for one (`benchmarks/plate.py --backend cuda`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from channelfit.batch.families import Family
from channelfit.batch.together import Across, Together
from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda_tangent_walk import Rows
from channelfit.scoring.cuda_tangents import ONE_JOB, Tangents, Wells, ramps_of
from channelfit.scoring.kernels.cuda_pieces import UNRESOLVED
from channelfit.scoring.layout.ramp_collocation import GRADES
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import Linearization, Score
from channelfit.scoring.tangent_plan import Ramp

#: Candidates of one launch, at most: more make a GPU no fuller.
_MOST = 1 << 14
#: The share of the free memory that a launch may take.
_SHARE = 0.4
#: Takes parameters and, where they are given, wells, on the GPU.
Call: TypeAlias = Callable[..., tuple[Any, ...]]


class _Way:
    """The kernels of one way through the runs, and what candidates are compared with in its rows.

    Arguments:
        ramps: the pieces in which runs at a varying voltage are taken; empty where they are stepped
            through, which serves every candidate.
        compared: gives what wells are compared with in some rows, on the host.
    """

    def __init__(
        self, problem: Problem, ramps: Mapping[int, Ramp], compared: Callable[[Rows], Wells]
    ) -> None:
        self.values = Tangents(problem, 0, lambda: self.wells, ramps)
        self.tangents = Tangents(problem, wells=lambda: self.wells, ramps=ramps)
        self._compared = compared

    @cached_property
    def compared(self) -> Wells:
        """What candidates are compared with, on the host."""
        return self._compared(self.values.rows)

    @cached_property
    def wells(self) -> Wells:
        """The same on the GPU."""
        on_device, host = gpu.cupy().asarray, self.compared
        with gpu.gpu_errors():
            return Wells(
                on_device(host.targets),
                on_device(host.constant),
                on_device(host.total_weight),
                tuple(map(on_device, host.factors)),
            )

    @cached_property
    def data(self) -> Any:
        """(n_compressed, n_wells), the targets as products with all wells read them."""
        return gpu.cupy().ascontiguousarray(self.wells.targets.T)

    def shown(self, parameters: Any) -> tuple[Any, Any]:
        """Weighted currents (n, n_compressed) and status (n,)."""
        shown, statuses = self.values.shown(parameters)
        infinite = (statuses == NOT_FINITE).any(axis=0)
        status = gpu.cupy().where(infinite, np.int8(NOT_FINITE), statuses.max(axis=0))
        return shown[:, :, 0], status


class CudaTogether(Together):
    """The wells of a family on the current GPU; see `together.Together`.

    Parameters and results are arrays of the host.

    Arguments:
        family: wells that one walk through the states serves (`Family.walks_alone`).
        chunk: candidates in one launch. With None it is as many as memory allows.

    Raises:
        InputError: there is no GPU that can be used, nothing to score, or a family whose wells one
            walk does not serve.
    """

    backend = "cuda"
    at_once = _MOST

    def __init__(self, family: Family, chunk: int | None = None) -> None:
        if not family.walks_alone:
            raise InputError(
                "on a GPU only wells under an ideal clamp, of one cell and one temperature each, "
                "are fitted together; --backend cpu takes others one by one"
            )
        if family.total_weight <= 0:
            raise InputError("nothing to score: no recording has a sample of weight above 0")
        self.n_wells, self._family = len(family.wells), family
        self._begin(family.problem, chunk)

    def _begin(self, problem: Problem, chunk: int | None) -> None:
        """Take the walk of a problem, and what its wells are compared with."""
        self.xp, self.chunk, self.problem = gpu.cupy(), chunk, problem
        self._walked = problem.groups[0].problem
        self._grades: list[int | None] = [*range(len(GRADES)), None]
        self._ways: list[_Way] = []
        first = self._first
        for way in (first.values, first.tangents):  # compiled while recordings are read
            way.compile_ahead(ONE_JOB)
        compared = first.compared
        self.total_weight = compared.total_weight
        self.squares = np.sum(compared.targets**2, axis=1) + compared.constant

    def _compared(self, rows: Rows) -> Wells:
        """What candidates are compared with in some rows, as arrays of the host."""
        targets, constant = rows.targets(self._family.data())
        total_weight = np.full(self.n_wells, self._family.total_weight)
        return Wells(targets, constant, total_weight)

    def _all_ways(self) -> Iterator[_Way]:
        """From the fastest to the one for every candidate; each is made when it is first needed."""
        yield from self._ways
        while self._grades:
            grade = self._grades.pop(0)
            ramps = {} if grade is None else ramps_of(self._walked, grade)
            if ramps or grade is None:
                self._ways.append(_Way(self._walked, ramps, self._compared))
                yield self._ways[-1]

    @cached_property
    def _first(self) -> _Way:
        return next(self._all_ways())

    def linearize(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Cost, gradient and curvature; see `Together.linearize`."""

        def one(way: _Way) -> tuple[Call, int]:
            width = 1 + len(way.tangents.free)
            more = 8 * width**2 * (3 + len(way.tangents.rows.groups))
            return way.tangents.linearize, way.tangents.bytes_a_candidate + more

        return Linearization(*self._by_ways(one, parameters, well))

    def score(self, parameters: np.ndarray, well: np.ndarray) -> Score:
        """Cost and status; see `Together.score`."""
        return Score(
            *self._by_ways(
                lambda way: (way.values.score, way.values.bytes_a_candidate), parameters, well
            )
        )

    def across(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> Across:
        """Every candidate against every well; see `Together.across`.

        Derivatives are differences of currents over a long step. They are exact where the current
        is a straight line in the parameter, which is the only place where `Across` is of use.
        """
        rows = tuple(rows)

        def one(way: _Way) -> tuple[Call, int]:
            shown = 8 * (4 * way.values.rows.n_compressed + 2 * self.n_wells)
            size = (1 + len(rows)) * (way.values.bytes_a_candidate + shown)
            return partial(self._across, way=way, rows=rows), size

        return Across(*self._by_ways(one, parameters, axis=0, status=0))

    def _across(self, parameters: Any, way: _Way, rows: tuple[int, ...]) -> tuple[Any, ...]:
        """The arrays of `Across`, of some candidates."""
        xp, values, n, width = self.xp, way.values, parameters.shape[1], 1 + len(rows)
        if not n:
            nothing = xp.empty((0, width, width)), xp.empty((0, width, self.n_wells))
            return xp.empty(0, dtype=np.int8), *nothing
        points = xp.repeat(parameters[:, :, None], width, axis=2)
        for k, row in enumerate(rows, 1):
            points[row, :, k] += xp.maximum(xp.abs(parameters[row]), 1.0)
        shown, statuses = way.shown(points.reshape(len(points), n * width))
        columns, failed = shown.reshape(n, width, -1), statuses.reshape(n, width)
        for k, row in enumerate(rows, 1):
            step = points[row, :, k] - parameters[row]
            columns[:, k] = (columns[:, k] - columns[:, 0]) / step[:, None]
        status = failed[:, 0]
        for k in range(1, width):
            status = xp.where(status == OK, failed[:, k], status)
        squares = values.squares(xp.ascontiguousarray(columns.transpose(0, 2, 1)))
        i, j = np.indices((width, width))
        entries = np.maximum(i, j) * (np.maximum(i, j) + 1) // 2 + np.minimum(i, j)
        products = squares[:, xp.asarray(entries.ravel())].reshape(n, width, width)
        with_data = values.times(columns.reshape(n * width, -1), way.data[None])
        with_data = with_data.reshape(n, width, self.n_wells)
        lost = (status == OK) & ~xp.isfinite(products).all(axis=(1, 2))
        status = xp.where(lost, np.int8(NOT_FINITE), status)
        good = (status == OK)[:, None, None]
        return status, xp.where(good, products, np.nan), with_data

    # --- way by way, in chunks

    def _by_ways(
        self,
        one: Callable[[_Way], tuple[Call, int]],
        parameters: np.ndarray,
        well: np.ndarray | None = None,
        axis: int = -1,
        status: int = 1,
    ) -> list[np.ndarray]:
        """The results of a call, of each candidate by the first way that follows it.

        Arguments:
            one: gives the call of a way, and the bytes that it takes for each candidate.
            well: (n,) int or None.
            axis: that of the candidates in what the call gives, the first or the last.
            status: which of the arrays tells whether a candidate was followed.
        """
        parameters = self._checked(parameters)
        well = None if well is None else self._checked_wells(well, parameters.shape[1])
        found: list[np.ndarray] = []
        wanted = np.arange(parameters.shape[1])
        for way in self._all_ways():
            own = None if well is None else well[wanted]
            part = self._in_chunks(*one(way), parameters[:, wanted], own, axis)
            for whole, some in zip(found, part, strict=bool(found)):
                whole[wanted if axis == 0 else (..., wanted)] = some
            found = found or part
            wanted = np.flatnonzero(found[status] == UNRESOLVED)
            if not len(wanted):
                break
        return found

    def _in_chunks(
        self,
        call: Call,
        size: int,
        parameters: np.ndarray,
        well: np.ndarray | None,
        axis: int,
    ) -> list[np.ndarray]:
        """The results of a call, made for as many candidates at once as memory allows.

        Arguments:
            call: takes parameters and, where they are given, wells, on the GPU.
            size: bytes of the GPU's memory that it takes for each candidate.
            well: (n,) int or None.
            axis: that of the candidates in what the call gives.
        """
        wells = () if well is None else (well,)
        parts, n = [], parameters.shape[1]
        step = self.chunk or max(1, min(_MOST, int(_SHARE * self._free) // size))
        with gpu.gpu_errors():
            for a in range(0, max(1, n), step):
                some = slice(a, min(a + step, n))
                given = (np.ascontiguousarray(parameters[:, some]), *(w[some] for w in wells))
                results = call(*(self.xp.asarray(array) for array in given))
                parts.append([to_host(array) for array in results])
        return [np.concatenate(arrays, axis) for arrays in zip(*parts, strict=True)]

    @cached_property
    def _free(self) -> int:
        """Free memory of the GPU, bytes; asked for once, as the question makes the host wait."""
        return gpu.device().memory_free

    def _checked(self, parameters: np.ndarray) -> np.ndarray:
        """The parameters as float64; a row of zeros where there is none.

        Raises:
            ValueError: parameters of another shape than (n_parameters, n).
        """
        parameters = np.asarray(parameters, dtype=np.float64)
        n_parameters = len(self.problem.parameters)
        if parameters.ndim != 2 or parameters.shape[0] != n_parameters:
            raise ValueError(f"parameters must be ({n_parameters}, n), not {parameters.shape}")
        return parameters if n_parameters else np.zeros((1, parameters.shape[1]))

    def _checked_wells(self, well: np.ndarray, n: int) -> np.ndarray:
        """The numbers of wells as int32.

        Raises:
            ValueError: another shape than (n,), or a number that no well has.
        """
        well = np.asarray(well)
        if well.shape != (n,):
            raise ValueError(f"well must be ({n},), not {well.shape}")
        if n and (well.min() < 0 or well.max() >= self.n_wells):
            raise ValueError(f"well must be in 0 .. {self.n_wells - 1}")
        return np.ascontiguousarray(well, dtype=np.int32)
