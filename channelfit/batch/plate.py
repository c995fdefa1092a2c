"""The wells of a plate that count for a population, and the coordinates of their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from channelfit.batch.mixed import Array, Evidence, Mixed, eliminated
from channelfit.model.channel import Parameter

#: Correlations need so many wells for each drawn parameter, and so many besides.
_WELLS_A_PARAMETER, _WELLS_BESIDES = 2, 2
#: The mean of a parameter is not determined where its error is above so many ranges.
_OPEN = 1.0


@dataclass(frozen=True)
class Coordinate:
    """The coordinate in which a parameter is normally distributed.

    Attributes:
        logarithmic: whether it is the logarithm that is normal.
        begin, width: of its range, in that scale.
    """

    name: str
    unit: str
    logarithmic: bool
    begin: float
    width: float

    @classmethod
    def of(cls, p: Parameter) -> Coordinate:
        """Return the coordinate in which a parameter is searched."""
        logarithmic = p.scale == "log"
        ends = (math.log(p.lower), math.log(p.upper)) if logarithmic else (p.lower, p.upper)
        return cls(p.name, p.unit, logarithmic, ends[0], ends[1] - ends[0] or 1.0)


@dataclass
class Plate:
    """The wells that count, and the parameters that are drawn or shared.

    Attributes:
        columns: of `unit`, all of them; places: of the drawn, then of the shared ones.
        unit, information, at_bound: of the fits: (n_used, n), (n_used, n, n) and (n_used, n).
    """

    columns: list[Coordinate]
    places: list[int]
    n_drawn: int
    used: np.ndarray
    wells: tuple[str, ...]
    unit: Array
    information: Array
    at_bound: np.ndarray
    notes: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    @property
    def drawn(self) -> list[Coordinate]:
        """The coordinates of the drawn parameters."""
        return [self.columns[k] for k in self.places[: self.n_drawn]]

    @property
    def can_correlate(self) -> bool:
        """True if there are enough wells for correlations of the drawn parameters."""
        enough = _WELLS_A_PARAMETER * self.n_drawn + _WELLS_BESIDES
        return self.n_drawn > 1 and len(self.unit) >= enough

    def labels(self, which: np.ndarray | slice = slice(None)) -> list[str]:
        """Return the labels of wells that count, by index or mask among these."""
        found: list[str] = np.array(self.wells)[self.used][which].tolist()
        return found

    def of_all_wells(self, values: Array) -> Array:
        """Return rows of the wells that count among those of all wells, which are NaN."""
        found = np.full((len(self.used), *values.shape[1:]), np.nan)
        found[self.used] = values
        return found

    def mixed(self, weighted: Array, information: Array) -> Mixed:
        """Return the population of wells with this evidence about all of their parameters."""
        evidence = Evidence.of(*eliminated(weighted, information, self.places))
        nd, correlated, zeros = self.n_drawn, self.can_correlate, np.zeros(len(self.places))
        held = Mixed(evidence, nd, correlated, zeros + 1.0, zeros + 0.5)
        if self.undetermined(held):
            return held
        return Mixed(evidence, nd, correlated, zeros, zeros + 0.5)

    def undetermined(self, held: Mixed) -> list[str]:
        """Return the parameters whose mean all wells together do not determine.

        Arguments:
            held: with a belief about the mean, so that it can be computed in any case.
        """
        precision = held.at(np.diag(held.scatter)).precision - np.diag(held.ridge)
        values, vectors = np.linalg.eigh(precision)
        part = np.abs(vectors[:, values < 1 / _OPEN**2]).max(axis=1, initial=0.0)
        return [self.columns[k].name for k, p in zip(self.places, part, strict=True) if p > 0.2]


def physical(values: Array, columns: Sequence[Coordinate]) -> Array:
    """Return parameters in base units from coordinates (.., n) of the unit cube."""
    natural = np.array([c.begin for c in columns]) + values * np.array([c.width for c in columns])
    logarithmic = np.array([c.logarithmic for c in columns], bool)
    with np.errstate(over="ignore"):
        found: Array = np.where(logarithmic, np.exp(np.where(logarithmic, natural, 0.0)), natural)
    return found
