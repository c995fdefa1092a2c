"""Fits of many data sets: what they have in common, backends, chunks and what comes out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.curves.doubts import (
    no_better_than_fewer_terms,
    terms_hardly_known,
    with_outliers,
)
from channelfit.curves.flags import (
    AT_BOUND,
    CONSTANT,
    DISORDERED,
    MISSING,
    NEGATIVE,
    NOT_CONVERGED,
    NOT_FINITE,
    TOO_FEW,
    UNDETERMINED,
    UNSETTLED,
)
from channelfit.curves.lane_math import LEAST_COUNT
from channelfit.curves.starts import Scan, make_scan
from channelfit.curves.weights import parts_of_cost, sigma_of
from channelfit.reading.cautions import Caution
from channelfit.reading.errors import InputError
from channelfit.tasks.records import DAMAGED

#: Flags that say that there is no result at all, and those that ask for a look.
FAILED = NOT_CONVERGED | TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE
MOST_STEPS = 200
TOLERANCE = {"float64": 1e-10, "float32": 1e-6}
#: Points that are looked at together, and data sets of which: those whose least count is below.
_AT_ONCE, _FEW_COUNTS = 1_000_000, 10
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


@dataclass(frozen=True)
class Flight:
    """How one swarm is flown for each data set.

    Attributes:
        particles: of a swarm. iterations: moves of each. seed: of all random numbers.
    """

    particles: int = 256
    iterations: int = 30
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Task:
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
    def simpler(self) -> Task | None:
        """Return the task of the curve without its last ordered term; None for other curves."""
        if self.impossible or self.curve.simpler is None:
            return None
        return Task.of(self.curve.simpler, self.data)

    @classmethod
    def of(cls, curve: Curve, data: DataSets) -> Task:
        """Return the task of a curve and its data. Raises: InputError where ranges do not suit
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
        task = cls(curve, data, lower, upper, width, below)
        _ = task.scan  # refuses what has no start here, rather than in the middle of the work
        return task

    @classmethod
    def or_impossible(cls, curve: Curve, data: DataSets) -> Task:
        """Return the same, or a task whose data sets all fail, for one of many groups of data
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
        """Return the fits of a task that is impossible: there are none."""
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

    def check_costs(self, fits: Fits, first: int, rounding: float) -> None:
        """Refuse fits whose costs are not those of their values and of the data.

        Poisson's deviance is compared where no substitute takes its place.

        Arguments:
            fits: of data sets from `first` on. rounding: see `curve_tasks._ROUNDING`.

        Raises:
            InputError: with the data set.
        """
        at = {name: values[None] for name, values in self.data.at_points.items()}
        poisson = self.curve.likelihood == "poisson"
        for a, b in edges(len(fits.flags), max(1, _AT_ONCE // self.data.values.shape[1])):
            z = np.asarray(self.data.values[first + a : first + b], float)
            seen = np.isfinite(z)
            with np.errstate(all="ignore"):
                free = np.asarray(fits.values[a:b], float).T[:, :, None]
                f = np.broadcast_to(self.curve.values(at, free), z.shape)
                sigma = sigma_of(self.data, first + a, first + b)
                parts = costs_of_points(self.curve, f, z, sigma)
                cost = parts.sum(axis=1, where=seen)
                size = (z if poisson else (z / sigma) ** 2).sum(axis=1, where=seen)
                apart = np.abs(cost - fits.cost[a:b]) > 1e3 * rounding * cost + rounding * size
                if poisson:
                    apart &= (f >= LEAST_COUNT).all(axis=1, where=seen)
            wrong = apart & (fits.flags[a:b] & FAILED == 0) | (seen.sum(1) != fits.counted[a:b])
            if wrong.any():
                k = first + a + int(wrong.argmax()) + 1
                raise InputError(f"{DAMAGED}: the cost of data set {k:,} is not that of its values")

    def misfit(self, fits: Fits) -> np.ndarray:
        """Return (n_sets,) by which fits are compared: the share of squares that is left, or
        deviance.
        """
        if self.curve.likelihood == "poisson":
            return fits.cost
        with np.errstate(all="ignore"):
            return np.asarray(fits.cost / fits.squares)

    def reasons(self, fits: Fits, first: int = 0) -> list[tuple[str, str]]:
        """Return quality ("ok", "check" or "failed") and reason in words of every data set.

        Arguments:
            fits: of data sets that follow each other. first: the place of the first of them.
        """
        n_points = self.data.values.shape[1]
        doubts = self._doubts(fits, first)
        doubtful = np.any([where for where, _ in doubts], axis=0).tolist()
        found: list[tuple[str, str]] = []
        flags = fits.flags.tolist()
        for s, flag in enumerate(flags):
            if self.impossible and not flag & TOO_FEW:
                found.append(("failed", self.impossible))
                continue
            if not flag and not doubtful[s]:
                found.append(("ok", ""))
                continue
            if flag & FAILED:
                flag &= FAILED
            words = [reason for bit, reason in _REASONS if flag & bit]
            if flag & AT_BOUND:
                words += self._bounds_met(fits.values[s])
            if not flag & FAILED:
                words += [reason for where, reason in doubts if where[s]]
            if flag & TOO_FEW:
                counted = int(fits.counted[s])
                words.append(f"{counted} points for {len(self.lower)} parameters")
            elif flag & MISSING:
                left_out = n_points - int(fits.counted[s])
                words.append(f"{left_out} of {n_points} points are not numbers and were left out")
            found.append(("failed" if flag & FAILED else "check", "; ".join(words)))
        return found

    def _doubts(self, fits: Fits, first: int) -> list[tuple[np.ndarray, str]]:
        """Return doubts beside the flags of fits: (n_sets,) where, and the reason in words."""
        n = len(self.lower)
        counts = self.curve.likelihood == "poisson"
        without = np.isnan(fits.errors).all(1) & (fits.counted <= n) & (not counts)
        more = np.zeros((2, len(fits.flags)), bool)
        if counts:
            for a, b in edges(len(fits.flags), max(1, _AT_ONCE // self.data.values.shape[1])):
                z = np.asarray(self.data.values[first + a : first + b], float)
                more[:, a:b] = self._doubts_of_counts(fits, a, z)
        else:
            with np.errstate(all="ignore"):
                gain = fits.counted * np.log(fits.squares / fits.cost)
            more[0] = gain < (n - 1) * np.log(np.maximum(fits.counted, 1))
        if len(self.curve.linear) == n:
            more[0] = False
        return [
            (without, "as many points as parameters, which leaves none for errors"),
            (more[0], "the curve follows the data no better than a constant"),
            (
                no_better_than_fewer_terms(self, fits),
                "a curve with one term less follows the data as well",
            ),
            (
                terms_hardly_known(self, fits),
                "the size of a term is known so badly that its errors may not hold",
            ),
            (
                with_outliers(self, fits, first, _AT_ONCE),
                "an outlier: one point lies farther off the curve than the others explain",
            ),
            (more[1], "the curve falls to zero counts or below, where the errors do not hold"),
        ]

    def _doubts_of_counts(self, fits: Fits, first: int, z: np.ndarray) -> np.ndarray:
        """Return (2, n) of data sets from `first` on, whose points are z (n, n_points).

        Whether a constant does as well, by the criterion of Schwarz, and whether the curve is so
        low that a substitute took the place of Poisson's likelihood (`lane_math.poissonCost`).
        """
        these = slice(first, first + len(z))
        seen = np.isfinite(z)
        low = np.zeros(len(z), bool)
        some = np.flatnonzero(z.min(axis=1, where=seen, initial=np.inf) < _FEW_COUNTS)
        with np.errstate(all="ignore"):
            mean = z.sum(axis=1, where=seen) / fits.counted[these]
            gain = fits.squares[these] / mean - fits.cost[these]
            if some.size:
                at = {name: values[None] for name, values in self.data.at_points.items()}
                f = self.curve.values(at, fits.values[these][some].T[:, :, None])
                wrong = (f < 0) | ((f < LEAST_COUNT) & (z[some] > 0))
                low[some] = (wrong & seen[some]).any(1)
            flat = gain < (len(self.lower) - 1) * np.log(np.maximum(fits.counted[these], 1))
        return np.array([flat, low])

    def _bounds_met(self, values: np.ndarray) -> list[str]:
        at_bounds = []
        ends = (("lower", self.lower), ("upper", self.upper))
        for side, bounds in ends:
            for parameter, bound, value in zip(self.curve.free, bounds, values, strict=True):
                if math.isclose(value, bound, rel_tol=1e-6):  # a GPU may round to float32
                    at_bounds.append(f"{parameter.name} at its {side} bound {bound:g}")
        return at_bounds


_REASONS = (
    (CONSTANT, "all points are equal"),
    (NEGATIVE, "a count is below zero"),
    (NOT_FINITE, "the curve is not finite where the descent would begin"),
    (NOT_CONVERGED, "the descent did not come to rest"),
    (UNSETTLED, "the search ended farther from the minimum than noise moves it"),
    (UNDETERMINED, "the data do not determine all parameters"),
    (DISORDERED, "parameters are not in their order"),
)


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


def costs_of_points(curve: Curve, f: np.ndarray, z: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return the share of each point in the cost of a curve f."""
    return _deviance(f, z) if curve.likelihood == "poisson" else parts_of_cost(curve, f, z, sigma)


def _deviance(f: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the share of each count in Poisson's deviance."""
    parts: np.ndarray = 2 * (f - z + z * np.log(np.where(z > 0, z / f, 1.0)))
    return parts


def edges(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Return pieces (first, last) of n things."""
    for first in range(0, n, step):
        yield first, min(first + step, n)
