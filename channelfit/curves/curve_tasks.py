"""Fits of many data sets as tasks, which any process can compute.

The key of a task is ("sets", group, first, last): data sets of one group of `DataSets`. Its result
holds the arrays of `Fits` and a checksum of its data, so that a result which was stored, or came
from another process, is never joined with other data than it was computed from. Each process maps
data in a file into its memory, so they may be larger than any memory; the file must then have the
same path for all processes.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.curves.batch import (
    MOST_NUMBERS,
    MOST_SETS,
    CurveSettings,
    FittedSets,
    Fitter,
    fitter,
)
from channelfit.curves.curve import Curve
from channelfit.curves.doubts import check_costs
from channelfit.curves.fitting import CurveProblem, DataSets, Fits, index_ranges
from channelfit.curves.source import cpu_text
from channelfit.curves.weights import check_weighted
from channelfit.reading.errors import InputError
from channelfit.results.identity import hardware
from channelfit.scoring.machine.computer import versions
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import Arrays, Key, ResultStore, expect

#: The largest task: its number of data sets, and of numbers in them. On a processor it depends on
#: the method, so that a kill costs a second of work, or a few; on a GPU it does not.
_TASK_ON_CPU = {"least-squares": (65_536, 8_000_000), "swarm": (4_096, 1_000_000)}
_TASK_ON_GPU = (MOST_SETS, MOST_NUMBERS)
#: Bytes of results that are stored in any case, and the further bytes for each second of work. Fits
#: that come faster can be computed again in less time than they are read.
_FREE, _PACE = 64 << 20, 48 << 20
_CHECKSUM = "checksum"
#: The difference of costs that are computed in another order, as a share of the squared data.
_ROUNDING = {"float64": 1e-9, "float32": 1e-3}


@dataclass(eq=False)
class CurveTasks:
    """The fits of a curve to data sets.

    Attributes:
        curve: the formula. groups: data sets with the same inputs each. settings: of the fits.
        identity: everything that the results depend on, by name, except the values of data in a
            mapped file, whose changes the checksums of the tasks show.
    """

    curve: Curve
    groups: Sequence[DataSets]
    settings: CurveSettings

    def __post_init__(self) -> None:
        self._fit: Fitter | None = None
        self._problems: dict[int, CurveProblem] = {}
        check_weighted(self.curve, self.groups[0], self.settings.method)
        self._refuse_impossible()

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """See `TaskSet`; computed when needed, since it takes a hash of all data."""
        return _identity(self.curve, self.groups, self.settings)

    def __getstate__(self) -> dict[str, Any]:
        groups = [_with_arrays(group, _place_of) for group in self.groups]
        state = {**self.__dict__, "groups": groups, "_fit": None, "_problems": {}}
        state.pop("identity", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {
            **state,
            "groups": [_with_arrays(group, _array_at) for group in state["groups"]],
        }

    @property
    def keys(self) -> list[Key]:
        """The keys of all tasks, group by group: ranges of data sets of a limited size."""
        if self.settings.chosen_backend() == "cpu":
            most_sets, most_numbers = _TASK_ON_CPU[self.settings.method]
        else:
            most_sets, most_numbers = _TASK_ON_GPU
        keys: list[Key] = []
        for number, group in enumerate(self.groups):
            n_sets, n_points = group.values.shape
            sets_per_task = max(1, min(most_sets, most_numbers // n_points))
            ranges = index_ranges(n_sets, sets_per_task)
            keys += [("sets", number, first, last) for first, last in ranges]
        return keys

    def compute(self, key: Key) -> Arrays:
        """Fit the data sets of a task."""
        k, first, last = _place(key)
        if self._fit is None:
            self._fit = fitter(self.settings)
        found = self._fit(self._problem(k), first, last)
        arrays = {name: array for name, array in vars(found).items() if array is not None}
        return {**arrays, _CHECKSUM: self._checksum(key)}

    def piece(self, key: Key, found: Arrays) -> FittedSets:
        """Return the result of `compute` as fits of data sets."""
        k, first, last = _place(key)
        names = [one.name for one in fields(Fits)]
        return FittedSets(
            self._problem(k), first, last, Fits(**{n: found[n] for n in names if n in found})
        )

    def check_stored(self, key: Key, found: Arrays) -> None:
        """Refuse a damaged result: the costs must be those of the values and the data."""
        k, first, last = _place(key)
        problem, n = self._problem(k), last - first
        n_free = len(problem.lower)
        shapes: dict[str, tuple[str, tuple[int | None, ...]]] = dict.fromkeys(
            ("cost", "counted", "steps", "squares"), ("fiu", (n,))
        )
        shapes |= {"values": ("f", (n, n_free)), "errors": ("f", (n, n_free)), "flags": ("i", (n,))}
        if self.settings.covariances:
            shapes["covariances"] = ("f", (n, n_free, n_free))
        if self.settings.method == "swarm":
            shapes["spread"] = ("f", (n, n_free))
        if self.curve.simpler is not None:
            shapes["simpler"] = ("f", (n,))
        if set(found) != {*shapes, _CHECKSUM}:
            raise InputError(DAMAGED)
        expect(found, shapes)
        check_costs(problem, self.piece(key, found).fits, first, _ROUNDING[self.settings.dtype])

    def check(self, key: Key, found: Arrays, file: Path) -> None:
        """Refuse a result of other data, which was stored or came from another process.

        Arguments:
            file: of the data, for the message.

        Raises:
            InputError: which data sets differ.
        """
        _, first, last = _place(key)
        if not np.array_equal(found.get(_CHECKSUM, ()), self._checksum(key)):
            raise InputError(
                "cannot go on to the same result, since what it depends on has changed: data sets "
                f"{first + 1:,} to {last:,} are others than those that were fitted. Begin again "
                "with another --out",
                file,
            )

    def _refuse_impossible(self) -> None:
        """Raise InputError if the ranges of the curve suit none of the groups."""
        for k, group in enumerate(self.groups, 1):
            try:
                self.curve.bounds(group.coordinates)
                return
            except InputError:
                if k == len(self.groups):
                    raise

    def _problem(self, k: int) -> CurveProblem:
        if k not in self._problems:
            make = CurveProblem.of if len(self.groups) == 1 else CurveProblem.or_impossible
            self._problems = {k: make(self.curve, self.groups[k])}
        return self._problems[k]

    def _checksum(self, key: Key) -> np.ndarray:
        k, first, last = _place(key)
        group, found = self.groups[k], 0
        for array in (group.values, group.sigma):
            if array is not None and len(array) == len(group.values):
                data = np.ascontiguousarray(array[first:last])
                found = zlib.crc32(data.data.cast("B"), found)
        return np.array([found], np.int64)


def fit_curve(
    curve: Curve,
    data: DataSets,
    settings: CurveSettings | None = None,
    executor: Executor | None = None,
    on_done: Callable[[int], object] = lambda n: None,
) -> Fits:
    """Fit all data sets of one group, in memory.

    Arguments:
        executor: computes the fits; None for this process.
        on_done: called with the number of data sets of each task that is done.

    Raises: InputError if ranges do not suit the inputs, or no GPU can be used.
    """
    tasks = CurveTasks(curve, [data], settings or CurveSettings())
    pieces = []
    for key, arrays in task_results(tasks, tasks.keys, executor):
        pieces.append(tasks.piece(key, arrays).fits)
        on_done(len(pieces[-1].cost))
    return Fits.joined(pieces)


class CurveFitStore(ResultStore):
    """A file of results, as long as reading them takes less time than computing them again.

    Arguments: as of `ResultStore`.

    Attributes:
        complete: whether all results were stored.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bytes, self._began = 0, time.perf_counter()
        self.complete = True

    def put(self, key: Key, arrays: Arrays) -> None:
        """Store a result, unless results come so fast that they can as well be computed again."""
        size = sum(array.nbytes for array in arrays.values())
        if self._bytes + size > _FREE + _PACE * (time.perf_counter() - self._began):
            self.complete = False
            return
        self._bytes += size
        super().put(key, arrays)


def _place(key: Key) -> tuple[int, int, int]:
    _, k, first, last = key
    return int(k), int(first), int(last)


@dataclass(frozen=True)
class _Mapped:
    """The place of the values of data sets in a mapped file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


def _place_of(array: Any) -> Any:
    file = getattr(array, "filename", None)
    if file is None or not isinstance(array, np.memmap) or not array.flags.c_contiguous:
        return array
    return _Mapped(str(Path(file).absolute()), array.dtype.str, array.shape, array.offset)


def _array_at(where: Any) -> Any:
    if not isinstance(where, _Mapped):
        return where
    try:
        return np.memmap(where.file, where.dtype, "r", where.offset, where.shape)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read by this process: {error}", where.file) from None


def _with_arrays(group: DataSets, change: Callable[[Any], Any]) -> DataSets:
    return replace(group, values=change(group.values), sigma=change(group.sigma))


def _identity(curve: Curve, groups: Sequence[DataSets], settings: CurveSettings) -> dict[str, Any]:
    on_gpu = settings.chosen_backend() == "cuda"
    found: dict[str, Any] = {
        "curve": curve.name,
        "formula": str(curve.formula),
        "likelihood": curve.likelihood,
        "loss": curve.loss,
        "f_scale": curve.f_scale,
        "starts": curve.starts,
        "ordered": ", ".join(curve.ordered),
    }
    for p in curve.parameters:
        found[f"parameter {p.name}"] = (
            f"fixed at {p.value!r}"
            if p.fixed
            else f"from {p.lower} to {p.upper}, {p.scale}, {p.scan or 'usual'} points"
        )
    swarm = settings.method == "swarm"
    found |= {
        "method": settings.method,
        "covariances": settings.covariances,
        "particles": settings.particles if swarm else 0,
        "iterations": settings.iterations if swarm else 0,
        "seed": settings.seed if swarm else 0,
        "backend": "cuda" if on_gpu else "cpu",
        "precision": settings.dtype,
    }
    for k, group in enumerate(groups, 1):
        name = "data" if len(groups) == 1 else f"data of group {k}"
        found[name] = f"{group.values.shape[0]} sets of {group.shape}, {_hash(group)}"
        found[f"generated code {k}"] = _digest(cpu_text(curve, group.axes).encode())
    found |= {f"version of {name}": version for name, version in versions(on_gpu).items()}
    return {**found, **hardware(on_gpu)}


def _hash(group: DataSets) -> str:
    """Return a hash of inputs, names and places, and of values that are in memory."""
    parts = [group.values.dtype.str.encode(), np.ascontiguousarray(group.flat).tobytes()]
    if group.labels is not None:
        parts += [repr(list(group.labels)).encode()]
    if group.places is not None:
        parts += [np.ascontiguousarray(group.places).tobytes()]
    for array in (group.values, group.sigma):
        mapped = isinstance(array, np.memmap) and len(array) == len(group.values)
        if array is not None and not mapped:
            parts += [np.ascontiguousarray(array).tobytes()]
    return _digest(*parts)


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(str(len(part)).encode() + part)
    return found.hexdigest()[:16]
