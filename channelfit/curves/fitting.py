"""Fits of many data sets: what they have in common, backends, chunks and what comes out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.curves.lanes import AT_BOUND, DISORDERED, NOT_CONVERGED, UNDETERMINED
from channelfit.curves.starts import Scan, make_scan
from channelfit.reading.errors import InputError

#: Flags that say that there is no result at all, and those that ask for a look.
FAILED = 4 | 8 | 16 | 32 | 64
MOST_STEPS = 200
TOLERANCE = {"float64": 1e-10, "float32": 1e-6}


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
    """

    axes: tuple[tuple[str, ...], ...]
    coordinates: Mapping[str, np.ndarray]
    values: np.ndarray
    shape: tuple[int, ...]
    labels: Sequence[str] | None = None
    places: np.ndarray | None = None

    @cached_property
    def lengths(self) -> np.ndarray:
        """Values along each axis, int64."""
        return np.array([len(self.coordinates[names[0]]) for names in self.axes], np.int64)

    @cached_property
    def flat(self) -> np.ndarray:
        """The values of all inputs along their axes, one input after the other."""
        return np.concatenate([self.coordinates[n] for names in self.axes for n in names])

    @cached_property
    def at_points(self) -> dict[str, np.ndarray]:
        """By input (n_points,) its value at every point of a data set."""
        found = {}
        for k, names in enumerate(self.axes):
            before = int(np.prod(self.lengths[k + 1 :], dtype=int))
            behind = int(np.prod(self.lengths[:k], dtype=int))
            for name in names:
                found[name] = np.tile(np.repeat(self.coordinates[name], behind), before)
        return found


@dataclass(eq=False)
class Fits:
    """What was found for some data sets; NaN where there is nothing.

    Attributes:
        values, errors: (n_sets, n_free) parameters and their standard errors.
        cost: (n_sets,) sum of squares, or Poisson's deviance.
        counted: (n_sets,) points that were numbers.
        steps: (n_sets,) of all descents.
        squares: (n_sets,) sum of squares of the data around their mean.
        flags: (n_sets,) int64, bits of `lanes`.
        covariances: (n_sets, n_free, n_free), or None where they were not asked for.
        spread: (n_sets, n_free) the paper's estimate of errors of a swarm, else None.
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
        scan: for starts.
    """

    curve: Curve
    data: DataSets
    lower: np.ndarray
    upper: np.ndarray
    width: np.ndarray
    below: np.ndarray
    scan: Scan

    @classmethod
    def of(cls, curve: Curve, data: DataSets) -> Task:
        """The task of a curve and its data. Raises: InputError where ranges do not suit them."""
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
        scan = make_scan(curve, data.at_points, lower, upper)
        return cls(curve, data, lower, upper, width, below, scan)

    def misfit(self, fits: Fits) -> np.ndarray:
        """(n_sets,) by which fits are compared: the share of squares that is left, or deviance."""
        if self.curve.likelihood == "poisson":
            return fits.cost
        with np.errstate(all="ignore"):
            return np.asarray(fits.cost / fits.squares)

    def reasons(self, fits: Fits) -> list[tuple[str, str]]:
        """Quality ("ok", "check" or "failed") and reason in words of every data set."""
        n_points = self.data.values.shape[1]
        found: list[tuple[str, str]] = []
        flags = fits.flags.tolist()
        for s, flag in enumerate(flags):
            if not flag:
                found.append(("ok", ""))
                continue
            if flag & FAILED:
                flag &= FAILED
            words = [told for bit, told in _REASONS if flag & bit]
            if flag & AT_BOUND:
                words += self._bounds_met(fits.values[s])
            if flag & 8:
                counted = int(fits.counted[s])
                words.append(f"{counted} points for {len(self.lower)} parameters")
            elif flag & 128:
                left_out = n_points - int(fits.counted[s])
                words.append(f"{left_out} of {n_points} points are not numbers and were left out")
            found.append(("failed" if flag & FAILED else "check", "; ".join(words)))
        return found

    def _bounds_met(self, values: np.ndarray) -> list[str]:
        told = []
        ends = (("lower", self.lower), ("upper", self.upper))
        for side, bounds in ends:
            for parameter, bound, value in zip(self.curve.free, bounds, values, strict=True):
                if math.isclose(value, bound, rel_tol=1e-6):  # a GPU may round to float32
                    told.append(f"{parameter.name} at its {side} bound {bound:g}")
        return told


_REASONS = (
    (16, "all points are equal"),
    (64, "a count is below zero"),
    (32, "the curve is not finite where the descent would begin"),
    (NOT_CONVERGED, "the descent did not come to rest"),
    (UNDETERMINED, "the data do not determine all parameters"),
    (DISORDERED, "parameters are not in their order"),
)


def edges(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Pieces (first, last) of n things."""
    for first in range(0, n, step):
        yield first, min(first + step, n)
