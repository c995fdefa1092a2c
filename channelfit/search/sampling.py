"""Points spread evenly over the part of the unit cube that constraints allow.

Parameters that share no constraint are independent of each other, so every group that does is drawn
by itself: with eight bounds that each allow a fifth, a point takes 40 draws, not 5**8. A group in
which hardly anything is allowed is sampled by random walks from points that are allowed, in
hit-and-run steps, which keep an even distribution even (Smith 1984, Oper Res 32:1296).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.search.space import SearchSpace

#: Draws of one attempt, and the most attempts without a single allowed point.
_DRAWS, _ATTEMPTS = 1 << 15, 64
#: A group is sampled by random walks where less than this share of all draws is allowed.
_RARE = 0.01
#: Steps of a walk: a few dozen for every dimension forget where it began.
_STEPS_PER_DIMENSION = 24


class Constraint(Protocol):
    """A condition on candidates, for example bounds on a rate.

    `places` are the rows of the parameters on which it depends. `allowed` takes parameters
    (n_parameters, n_candidates), base units, and returns (n_candidates,) bool.
    """

    @property
    def name(self) -> str: ...

    @property
    def places(self) -> frozenset[int]: ...

    def allowed(self, physical: Any, xp: Any = np) -> Any: ...


def allowed(constraints: Sequence[Constraint], physical: Any, xp: Any = np) -> Any:
    """Return (n,) bool, whether candidates (n_parameters, n) keep all constraints."""
    inside = xp.ones(physical.shape[1], dtype=bool)
    for constraint in constraints:
        inside &= constraint.allowed(physical, xp)
    return inside


def sample_allowed(
    space: SearchSpace, constraints: Sequence[Constraint], n: int, random: np.random.Generator
) -> np.ndarray:
    """Draw points (n_free, n) of the unit cube, evenly over the part that all constraints allow.

    Raises: InputError when no point is found that is allowed, naming the constraints.
    """
    unit = random.random((space.n_free, n))
    for rows, shared in _groups(space, constraints):
        unit[rows] = _Group(space, rows, shared).sample(n, random)
    return unit


def _groups(
    space: SearchSpace, constraints: Sequence[Constraint]
) -> list[tuple[list[int], list[Constraint]]]:
    """Find groups of rows of the unit cube that share constraints, and those constraints."""
    row_of = {place: row for row, place in enumerate(space.free)}
    groups: list[tuple[set[int], list[Constraint]]] = []
    for constraint in constraints:
        rows, shared = {row_of[p] for p in constraint.places if p in row_of}, [constraint]
        apart = []
        for other in groups:
            if rows & other[0]:
                rows, shared = rows | other[0], other[1] + shared
            else:
                apart.append(other)
        groups = [*apart, (rows, shared)]
    return [(sorted(rows), shared) for rows, shared in groups]


class _Group:
    """Some rows of the unit cube, and the constraints that depend on no others."""

    def __init__(
        self, space: SearchSpace, rows: list[int], constraints: Sequence[Constraint]
    ) -> None:
        self.space, self.rows, self.constraints = space, rows, constraints

    def allowed(self, points: np.ndarray) -> np.ndarray:
        """Return whether points (n_rows, n) are allowed: (n,) bool."""
        unit = np.full((self.space.n_free, points.shape[1]), 0.5)
        unit[self.rows] = points
        physical = self.space.to_physical(unit)
        inside = np.ones(points.shape[1], dtype=bool)
        for constraint in self.constraints:
            inside[inside] = constraint.allowed(physical[:, inside])
        return inside

    def sample(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Draw points (n_rows, n) by rejection, or by a walk where nearly everything would be
        rejected.
        """
        found: list[np.ndarray] = []
        n_found = n_drawn = 0
        share, draws = 1.0, n
        while n_found < n:
            points = random.random((len(self.rows), min(max(draws, 64), _DRAWS)))
            points = points[:, self.allowed(points)]
            n_drawn += min(max(draws, 64), _DRAWS)
            n_found += points.shape[1]
            found.append(points)
            share = n_found / n_drawn
            if not n_found and (n_drawn >= _DRAWS * _ATTEMPTS or not self.rows):
                self._refuse(n_drawn)
            if n_found and share < _RARE and n_drawn >= _DRAWS:
                start = np.concatenate(found, axis=1)
                return self._walked(start[:, random.integers(n_found, size=n)], random)
            draws = int(1.1 * (n - n_found) / max(share, 1 / _DRAWS)) + 16
        return np.concatenate(found, axis=1)[:, :n]

    def _walked(self, points: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return the ends of walks from allowed points (n_rows, n)."""
        for _ in range(_STEPS_PER_DIMENSION * len(self.rows)):
            points = self._step(points, random)
        return points

    def _step(self, points: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Take one step along a random line through every point.

        A place on the line that is not allowed becomes an end of the line for the next draw (Neal
        2003, Ann Stat 31:705). So every point moves, and an even distribution stays even.
        """
        way = random.standard_normal(points.shape)
        with np.errstate(divide="ignore"):
            ends = np.sort(np.stack([-points / way, (1 - points) / way]), axis=0)
        low, high = ends[0].max(axis=0), ends[1].min(axis=0)
        moved, left = points.copy(), np.arange(points.shape[1])
        while left.size:
            along = low[left] + (high[left] - low[left]) * random.random(left.size)
            tried = np.clip(points[:, left] + along * way[:, left], 0.0, 1.0)
            good = self.allowed(tried) | (along == 0)
            moved[:, left[good]] = tried[:, good]
            left, along = left[~good], along[~good]
            low[left] = np.where(along < 0, along, low[left])
            high[left] = np.where(along > 0, along, high[left])
        return moved

    def _refuse(self, n_drawn: int) -> None:
        """Raise an error that names the constraints which allow nothing even alone, or else all."""
        points = np.random.default_rng(0).random((len(self.rows), _DRAWS))
        alone = [
            constraint.name
            for constraint in self.constraints
            if not _Group(self.space, self.rows, [constraint]).allowed(points).any()
        ]
        names = ", ".join(alone or [constraint.name for constraint in self.constraints])
        raise InputError(
            f"none of {n_drawn:,} candidates from the parameters' ranges keeps to the bounds of "
            f"{names}; widen one or the other"
        )
