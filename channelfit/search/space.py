"""The unit cube that is searched, and how it maps to physical parameters and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module

if TYPE_CHECKING:
    from channelfit.model.channel import Parameter

_POINTS_IN_CACHE = 1024


@dataclass(frozen=True)
class SearchSpace:
    """The parameters of a model, of which those that are neither fixed nor solved are searched.

    A free parameter runs over [lower, upper], evenly in its value (scale "linear") or in its
    logarithm (scale "log"). A fixed one keeps its value. A solved one follows from the others (see
    `Objective`); until then it has the middle value of its range.

    Arguments:
        parameters: of the model, in its order.
        solved: names of those that are solved.

    Raises: InputError, naming the parameter, for bounds that cannot be searched, for a log scale
    that does not start above zero, for a fixed parameter without a value, and when no parameter is
    free.
    """

    parameters: tuple[Parameter, ...]
    solved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for parameter in self.parameters:
            _check(parameter)
        if not self.free:
            raise InputError("there is no free parameter to search", key="parameters")

    @cached_property
    def free(self) -> tuple[int, ...]:
        """The indices, among all parameters, of those that are searched."""
        return tuple(
            i
            for i, parameter in enumerate(self.parameters)
            if not parameter.fixed and parameter.name not in self.solved
        )

    @property
    def n_parameters(self) -> int:
        """The number of all parameters, fixed ones too."""
        return len(self.parameters)

    @property
    def n_free(self) -> int:
        """The number of dimensions of the unit cube."""
        return len(self.free)

    def to_physical(self, unit: Any) -> Any:
        """Map points of the unit cube to physical parameters.

        Arguments:
            unit: (n_free, n_candidates); 0 is a lower bound and 1 an upper one, exactly, and no
                rounding leads outside; values beyond 0 and 1 land on the bounds.

        Returns: (n_parameters, n_candidates) float64 of the same array module, base units.
        """
        self._check_rows(unit, self.n_free)
        xp = array_module(unit)
        physical = xp.empty((self.n_parameters, unit.shape[1]), dtype=np.float64)
        for place, parameter in enumerate(self.parameters):
            if parameter.fixed:
                physical[place] = parameter.value
            elif parameter.name in self.solved:
                physical[place] = middle(parameter)
        for rows, in_logarithms in zip(self._rows_by_scale, (False, True), strict=True):
            # many points on the host stay in the cache a row at a time; else fewer calls count
            step = 1 if xp is np and unit.shape[1] > _POINTS_IN_CACHE else max(len(rows), 1)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                physical[self._places[some]] = self._of_rows(unit[some], some, in_logarithms, xp)
        return physical

    def to_unit(self, physical: Any) -> Any:
        """Map physical parameters to points of the unit cube (n_free, n_candidates).

        Arguments:
            physical: (n_parameters, n_candidates), base units; rows of fixed parameters are not
                read.

        Raises: InputError, naming the parameter, for a value that is not inside its bounds.
        """
        self._check_rows(physical, self.n_parameters)
        xp = array_module(physical)
        unit = xp.empty((self.n_free, physical.shape[1]), dtype=np.float64)
        for row, place in zip(unit, self.free, strict=True):
            parameter, values = self.parameters[place], physical[place].astype(np.float64)
            inside = (values >= parameter.lower) & (values <= parameter.upper)
            if not bool(inside.all()):
                raise InputError(
                    f"{float(values[~inside][0]):g} is not inside the range "
                    f"[{parameter.lower:g}, {parameter.upper:g}] {parameter.unit}".rstrip(),
                    key=f"parameters.{parameter.name}",
                )
            row[...] = share_of_range(values, parameter, xp)
        return unit

    def slope(self, physical: Any) -> Any:
        """Return the derivatives (n_free, n_candidates) of physical parameters by their unit
        coordinates.

        Arguments:
            physical: (n_parameters, n_candidates), as `to_physical` gives them.
        """
        xp = array_module(physical)
        slope = xp.empty((self.n_free, physical.shape[1]), dtype=np.float64)
        for row, place in zip(slope, self.free, strict=True):
            parameter = self.parameters[place]
            if parameter.scale == "linear":
                row[...] = parameter.upper - parameter.lower
            else:
                row[...] = physical[place] * math.log(parameter.upper / parameter.lower)
        return slope

    @cached_property
    def _places(self) -> np.ndarray:
        return np.array(self.free, np.int64)

    @cached_property
    def _rows_by_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the unit cube with a linear scale, and rows with a log scale."""
        in_logarithms = np.array([self.parameters[k].scale == "log" for k in self.free], bool)
        return np.flatnonzero(~in_logarithms), np.flatnonzero(in_logarithms)

    @cached_property
    def _bounds(self) -> np.ndarray:
        """Lower and upper bounds, then the same or their logarithms, by the scale: (4,
        n_free, 1).
        """
        free = [self.parameters[place] for place in self.free]
        ends = np.array([[[p.lower] for p in free], [[p.upper] for p in free]], float)
        mixed, rows = ends.copy(), self._rows_by_scale[1]
        mixed[:, rows] = np.log(ends[:, rows])
        return np.concatenate([ends, mixed])

    def _of_rows(self, unit: Any, rows: np.ndarray, in_logarithms: bool, xp: Any) -> Any:
        """Return physical values of some rows (n_rows, n_candidates) of one scale."""
        return values_in_ranges(unit, xp.asarray(self._bounds[:, rows]), in_logarithms, xp)

    @staticmethod
    def _check_rows(array: Any, n_rows: int) -> None:
        if array.ndim != 2 or array.shape[0] != n_rows:
            raise ValueError(f"expected an array ({n_rows}, n_candidates), not {array.shape}")


def values_in_ranges(unit: Any, bounds: Any, in_logarithms: Any, xp: Any = np) -> Any:
    """Return the values at places, 0 .. 1, of ranges.

    Arguments:
        unit: (n_rows, n).
        bounds: (4, n_rows, n or 1), lower and upper ones, then the same or their logarithms, by the
            scale.
        in_logarithms: whether places are those of logarithms: True or False for all, or an array
            (n_rows, n).
    """
    lower, upper, first, last = bounds
    unit = xp.minimum(xp.maximum(unit.astype(np.float64), 0.0), 1.0)
    # a weighted mean is exact at both ends, which lower + unit*(upper - lower) is not
    physical = (1.0 - unit) * first + unit * last
    if in_logarithms is not False:
        if in_logarithms is not True:
            other, physical = physical, xp.where(in_logarithms, physical, 0.0)
        physical = xp.exp(physical)
        physical = xp.where(unit == 0.0, lower, xp.where(unit == 1.0, upper, physical))
        if in_logarithms is not True:
            physical = xp.where(in_logarithms, physical, other)
    return xp.minimum(xp.maximum(physical, lower), upper)


def middle(parameter: Parameter) -> float:
    """Return the middle of a parameter's range, in its scale."""
    if parameter.scale == "log":
        return math.sqrt(parameter.lower) * math.sqrt(parameter.upper)
    return 0.5 * parameter.lower + 0.5 * parameter.upper


def _check(parameter: Parameter) -> None:
    key = f"parameters.{parameter.name}"
    if parameter.fixed:
        if parameter.value is None or not math.isfinite(parameter.value):
            raise InputError("a fixed parameter needs a value", key=key)
        return
    bounds = f"[{parameter.lower:g}, {parameter.upper:g}]"
    if parameter.scale not in ("linear", "log"):
        raise InputError(f'scale must be "linear" or "log", not "{parameter.scale}"', key=key)
    if not (math.isfinite(parameter.lower) and math.isfinite(parameter.upper)):
        raise InputError(f"the range {bounds} must be finite", key=key)
    if parameter.lower > parameter.upper:
        raise InputError(f"the range {bounds} ends below its start", key=key)
    if parameter.scale == "log" and not parameter.lower > 0:
        raise InputError(f"scale: log needs a range that starts above 0, not {bounds}", key=key)


def share_of_range(values: Any, parameter: Parameter, xp: Any = np) -> Any:
    """Return the place, 0 .. 1, of values of any shape within a parameter's range."""
    lower, upper = parameter.lower, parameter.upper
    if lower == upper:
        return xp.zeros_like(values)
    if parameter.scale == "linear":
        # halves: a range from -1e308 to 1e308 is wider than the largest number
        share = (values / 2 - lower / 2) / (upper / 2 - lower / 2)
    else:
        share = (xp.log(values) - math.log(lower)) / (math.log(upper) - math.log(lower))
        share[values == lower] = 0.0
        share[values == upper] = 1.0
    return xp.clip(share, 0.0, 1.0)
