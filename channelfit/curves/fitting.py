"""Data sets with the same inputs, a curve with them, and the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.curves.flags import NOT_FINITE, TOO_FEW
from channelfit.curves.starts import Scan, make_scan
from channelfit.reading.errors import Caution, InputError

MOST_STEPS = 200
TOLERANCE = {"float64": 1e-10, "float32": 1e-6}
#: Data sets of a group that are looked at before the work.
_LOOKED_AT = 1000


@dataclass(frozen=True, eq=False)
class DataSets:
    """Data sets that have their inputs in common.

    Attributes:
        axes: inputs that change together, that of the last axis of `values` first.
        coordinates: of every input its values along its axis.
        values: (n_sets, n_points) of any type of numbers; may be a memory map.
        labels: a name for each; None for numbers counted from 1.
        shape: of one data set, such as (11, 11).
        places: where each stands among all data sets that are fitted together.
        columns: of a table, that of each input.
        sigma: (n_sets, n_points) standard errors of the values, of any type of numbers, or (1,
            n_points) for all data sets; None where all are alike. Finite and above 0 wherever there
            is a value.
    """

    axes: tuple[tuple[str, ...], ...]
    coordinates: Mapping[str, np.ndarray]
    values: np.ndarray
    shape: tuple[int, ...]
    labels: Sequence[str] | None = None
    places: np.ndarray | None = None
    columns: Sequence[str] = ()
    sigma: np.ndarray | None = None

    @cached_property
    def lengths(self) -> np.ndarray:
        """Return values along each axis, int64."""
        return np.array([len(self.coordinates[names[0]]) for names in self.axes], np.int64)

    @cached_property
    def flat(self) -> np.ndarray:
        """Return the values of all inputs along their axes, one input after the other."""
        return np.concatenate([self.coordinates[n] for names in self.axes for n in names])

    @cached_property
    def at_points(self) -> dict[str, np.ndarray]:
        """Return by input (n_points,) its value at every point of a data set."""
        found = {}
        for k, names in enumerate(self.axes):
            before = int(np.prod(self.lengths[k + 1 :], dtype=int))
            behind = int(np.prod(self.lengths[:k], dtype=int))
            for name in names:
                found[name] = np.tile(np.repeat(self.coordinates[name], behind), before)
        return found


@dataclass(eq=False)
class Fits:
    """The results of some data sets; NaN where there is nothing.

    Attributes:
        values, errors: (n_sets, n_free) parameters and their standard errors.
        cost: (n_sets,) sum of squares of residuals, by standard errors where these are given;
            twice the robust loss of SciPy's least_squares; or Poisson's deviance.
        counted: (n_sets,) points that were numbers.
        steps: (n_sets,) of all descents.
        squares: (n_sets,) the same sum for a constant, that is around the mean; also for counts.
        flags: (n_sets,) int64, see `flags`.
        covariances: (n_sets, n_free, n_free), or None where they were not requested.
        spread: (n_sets, n_free) the paper's estimate of errors of a swarm, else None.
        simpler: (n_sets,) cost of the curve without its last ordered term; None for other curves.
    """

    values: np.ndarray
    errors: np.ndarray
    cost: np.ndarray
    counted: np.ndarray
    steps: np.ndarray
    squares: np.ndarray
    flags: np.ndarray
    covariances: np.ndarray | None = None
    spread: np.ndarray | None = None
    simpler: np.ndarray | None = None

    @classmethod
    def of_arrays(cls, arrays: Sequence[np.ndarray]) -> Fits:
        """Return the fits in arrays that kernels have filled; see `lanes.fit`.

        Arguments:
            arrays: values, errors, covariances, numbers, flags and spread; empty ones were not
                requested.
        """
        values, errors, covariances, numbers, flags, spread = arrays
        n_sets, n = values.shape
        matrices = covariances.reshape(n_sets, n, n) if covariances.size else None
        spreads = spread if spread.size else None
        cost, counted, steps, squares = numbers.T
        return cls(values, errors, cost, counted, steps, squares, flags, matrices, spreads)

    @classmethod
    def joined(cls, parts: Sequence[Fits]) -> Fits:
        """Return the fits of several parts, one after the other."""
        every = zip(*(vars(part).values() for part in parts), strict=True)
        found: list[Any] = [None if own[0] is None else np.concatenate(own) for own in every]
        return cls(*found)


@dataclass(frozen=True)
class Flight:
    """The settings of particle swarms, one for each data set.

    Attributes:
        particles: of a swarm. iterations: moves of each. seed: of all random numbers.
    """

    particles: int = 256
    iterations: int = 30
    seed: int = 0


@dataclass(frozen=True, eq=False)
class CurveProblem:
    """A curve and the inputs of its data sets: all that is the same for all of these.

    Attributes:
        lower, upper: (n_free,) bounds.
        width: (n_free,) the largest standard error of a parameter that counts as determined.
        below: (n_free,) int64, another parameter that has to be smaller, -1 where none has.
        impossible: why no data set can be fitted; empty where they can.
    """

    curve: Curve
    data: DataSets
    lower: np.ndarray
    upper: np.ndarray
    width: np.ndarray
    below: np.ndarray
    impossible: str = ""

    @cached_property
    def scan(self) -> Scan:
        """Return the scan for starts."""
        return make_scan(self.curve, self.data.at_points, self.lower, self.upper)

    @cached_property
    def simpler(self) -> CurveProblem | None:
        """Return the problem of the curve without its last ordered term; None for other curves."""
        if self.impossible or self.curve.simpler is None:
            return None
        return CurveProblem.of(self.curve.simpler, self.data)

    @classmethod
    def of(cls, curve: Curve, data: DataSets) -> CurveProblem:
        """Return the problem of a curve and its data. Raises: InputError where ranges do not suit
        them.
        """
        missing = [name for name in curve.inputs if name not in data.coordinates]
        if missing:
            raise InputError(f"the data have no input {missing[0]} for the curve {curve.name}")
        lower, upper = curve.bounds(data.coordinates)
        width = upper - lower
        width[list(curve.linear)] = np.inf
        names = [p.name for p in curve.free]
        below = np.full(len(names), -1, np.int64)
        for one, other in pairwise(name for name in curve.ordered if name in names):
            below[names.index(other)] = names.index(one)
        problem = cls(curve, data, lower, upper, width, below)
        _ = problem.scan  # refuses what has no start here, rather than in the middle of the work
        return problem

    @classmethod
    def or_impossible(cls, curve: Curve, data: DataSets) -> CurveProblem:
        """Return the same, or a problem whose data sets all fail, for one of many groups of data
        sets.
        """
        try:
            return cls.of(curve, data)
        except InputError as error:
            n = len(curve.free)
            unbounded = np.full(n, np.inf)
            below = np.full(n, -1, np.int64)
            return cls(curve, data, -unbounded, unbounded, unbounded, below, str(error))

    def tolerance(self, dtype: str) -> float:
        """Return the share of the cost below which a gain ends a descent: less under a robust loss.

        It is that of all points, of which outliers can make up nearly all.
        """
        robust = self.curve.loss != "linear" and dtype == "float64"
        return TOLERANCE[dtype] * (1e-3 if robust else 1.0)

    def failures(self, first: int, last: int, covariances: bool, swarm: bool) -> Fits:
        """Return the fits of a problem that is impossible: there are none."""
        n_sets, n = last - first, len(self.lower)
        nothing = np.full((n_sets, n), np.nan)
        counted = np.isfinite(np.asarray(self.data.values[first:last], float)).sum(1)
        return Fits(
            nothing,
            nothing.copy(),
            nothing[:, 0].copy(),
            counted.astype(float),
            np.zeros(n_sets),
            nothing[:, 0].copy(),
            np.where(counted < n, TOO_FEW, NOT_FINITE),
            np.full((n_sets, n, n), np.nan) if covariances else None,
            nothing.copy() if swarm else None,
            None if self.curve.simpler is None else nothing[:, 0].copy(),
        )

    def misfit(self, fits: Fits) -> np.ndarray:
        """Return (n_sets,) by which fits are compared: the share of squares that is left, or
        deviance.
        """
        if self.curve.likelihood == "poisson":
            return fits.cost
        with np.errstate(all="ignore"):
            return np.asarray(fits.cost / fits.squares)


def cautions(curve: Curve, groups: Iterable[DataSets], place: str) -> Iterator[Caution]:
    """Describe what looks wrong in data sets: Poisson's likelihood of numbers that are no counts.

    Arguments:
        place: of the data, in words. Of each group only the first data sets are looked at.
    """
    if curve.likelihood != "poisson":
        return
    firsts = (np.asarray(group.values[:_LOOKED_AT], float) for group in groups)
    if any(np.any(first[np.isfinite(first)] % 1 != 0) for first in firsts):
        yield Caution(
            place,
            "not all values are whole numbers",
            "Poisson's likelihood is one of counts; in other units all errors are wrong",
        )


def index_ranges(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of `step` indices each that cover 0 to n - 1; the last may be
    shorter.
    """
    for first in range(0, n, step):
        yield first, min(first + step, n)
