"""Tests of the residuals of a fitted well beyond their size: slow misfits, drifts, resistances.

A wrong model, a rundown or a series resistance bends the fitted values long before it makes the
residuals much larger than the noise. Two questions to the residuals find it:

* Are they slow? The mean of noise over some 25 ms is as large as its neighbor's is different; the
  mean of a misfit is larger. This is tested where channels are open, and where they are closed,
  since slow noise of the amplifier is there, too.
* Do they follow a known fault? For a fault that is not in the model the change of the
  current by a little of it is known at the fit: for a rundown the channel's current times the time,
  for a leak that grows the voltage times the time, for a holding current that drifts the time, for
  a series resistance what the lost millivolts do to the open channels (not to gates, so that its
  size is known within a factor of two or so). The directions of the fit's own parameters are
  projected out (a score test, in the words of statistics); then least squares of the residuals
  estimates the size of the fault and its error.

`stretches` takes the means over some 5 ms that this looks at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

#: Short stretches that make a long one; slow misfits are sought in the means of long ones.
_LONG = 5
#: Stretches that a recording has at least; fewer are not tested.
_STRETCHES = 100
#: Channels are closed where their current is below this share of its largest.
_CLOSED = 0.01
#: Long stretches at rest that are needed to tell slow noise from a slow misfit.
_AT_REST = 10
#: Directions of parameters with singular values below this share of the largest do not count.
_SAME = 1e-7
#: Stretches whose residuals may depend on each other, in the errors of faults.
_DEPENDENT = 20
#: The median of chi square of one degree of freedom; and n times the relative variance of the
#: median of n squared differences of neighbors, of which each shares a value with the next.
_MEDIAN, _OF_A_MEDIAN = 0.4549, 6.5
#: A fault so large that a straight line no longer says how large.
_LARGEST_SHARE = 0.95


@dataclass(frozen=True)
class FaultSize:
    """The size of a fault in residuals, and its standard error; NaN where it is not known."""

    value: float = math.nan
    error: float = math.nan

    @property
    def sure(self) -> float:
        """The distance of the value from 0 in errors; 0 where it is not known."""
        return abs(self.value) / self.error if self.error > 0 else 0.0


@dataclass(frozen=True)
class ResidualFaults:
    """The faults that the residuals of a well show.

    Attributes:
        slow: how many times the power of noise the means of residuals have while channels are open.
        slow_sure: how many standard errors the logarithm of that is from 0.
        rundown: the share of the conductance that is lost from the first sample to the last.
        series_MOhm: the series resistance that the model does not have.
        leak_nS, holding_pA: by how much leak and holding current change from first to last.
        peak_pA: the largest current of the channels in the fit.
        largest_pA: the largest current of the fit.
        range_mV: of the command, where it is looked at.
    """

    slow: float = math.nan
    slow_sure: float = 0.0
    rundown: FaultSize = FaultSize()
    series_MOhm: FaultSize = FaultSize()
    leak_nS: FaultSize = FaultSize()
    holding_pA: FaultSize = FaultSize()
    peak_pA: float = math.nan
    largest_pA: float = math.nan
    range_mV: float = math.nan

    def columns(self) -> list[float]:
        """Return the numbers of `RESIDUAL_MEASURES`."""
        found = (self.rundown, self.series_MOhm, self.leak_nS, self.holding_pA)
        return [self.slow, *(each.value for each in found)]


#: The unit and the meaning of each column about residuals, by its name.
RESIDUAL_MEASURES = {
    "slow_misfit": (
        "",
        "The power of means of the residuals over some 25 ms while channels are open, over that of "
        "noise.",
    ),
    "residual_rundown": (
        "",
        "The share of the conductance that the residuals show to be lost from the first sample to "
        "the last.",
    ),
    "residual_series_resistance": (
        "MOhm",
        "The series resistance that the residuals show and the fit does not have; some two times "
        "too large or small, since what it does to gates is left out.",
    ),
    "residual_leak": ("nS", "By how much the residuals show the leak to change."),
    "residual_holding": ("pA", "By how much the residuals show the holding current to change."),
}


@dataclass(frozen=True, eq=False)
class Stretches:
    """Means over short stretches of a well's recordings, each (n,) in the order of time.

    Attributes:
        residual: recording less fit, pA. fit: pA. volts: the command, mV. time: from 0 to 1.
        channel: the fit without its leaks, pA. slope: how fast the current of the open channels
            and of leaks grows with the voltage, nS; NaN where there are several drives.
        root: the root of the sum of the weights of its samples.
        block: the number of the sweep, so that neighbors are known.
        slopes: (n, n_free) how the fit changes with each free parameter.
    """

    residual: np.ndarray
    fit: np.ndarray
    volts: np.ndarray
    time: np.ndarray
    channel: np.ndarray
    slope: np.ndarray
    root: np.ndarray
    block: np.ndarray
    slopes: np.ndarray


def find_faults(of: Stretches, has_series_resistance: bool = False) -> ResidualFaults:
    """Find the faults that the residuals of a well show.

    Arguments:
        has_series_resistance: whether the model of the fit has one, so that none is tested.
    """
    n, n_free = of.slopes.shape
    finite = [np.isfinite(each).all() for each in (of.residual, of.fit, of.slopes)]
    if n < max(_STRETCHES, 4 * n_free) or not all(finite):
        return ResidualFaults()
    basis = _span(of.root[:, None] * of.slopes)
    residual = of.root * of.residual
    residual = residual - basis @ (basis.T @ residual)
    channel, peak = of.channel, float(np.abs(of.channel).max())

    def follows(direction: np.ndarray) -> FaultSize:
        return _follows(residual, of.root * direction, basis, of.block)

    resistance = FaultSize()
    if not has_series_resistance and np.isfinite(of.slope).all():
        resistance = follows(-1e-3 * of.fit * of.slope)
    return ResidualFaults(
        *_slow(of, residual),
        _share(follows(-of.time * channel), of),
        resistance,
        follows(of.time * (of.volts - of.volts.mean())),
        follows(of.time),
        peak,
        float(np.abs(of.fit).max()),
        float(np.ptp(of.volts)),
    )


def _span(slopes: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis (n, rank) of the directions of the parameters."""
    sizes = np.linalg.norm(slopes, axis=0)
    u, s, _ = np.linalg.svd(slopes[:, sizes > 0] / sizes[sizes > 0], full_matrices=False)
    return np.asarray(u[:, s > _SAME * s.max(initial=0.0)])


def _follows(
    residual: np.ndarray, direction: np.ndarray, basis: np.ndarray, block: np.ndarray
) -> FaultSize:
    """Estimate how much of a direction is in residuals, both weighted.

    Arguments:
        residual: (n,), perpendicular to the basis.
    """
    whole = float(direction @ direction)
    own = direction - basis @ (basis.T @ direction)
    size = float(own @ own)
    if not size > _SAME * whole > 0:
        return FaultSize()  # the parameters do the same
    value = float(own @ residual) / size
    rest = residual - value * own
    independent = float(rest @ rest) / max(1, len(residual) - basis.shape[1] - 1) * size
    # neighbors may depend on each other: sums over blocks of them, of a sweep each
    edges = np.flatnonzero(np.diff(block, prepend=block[0] - 1, append=block[-1] + 1))
    parts = np.concatenate([np.arange(a, b, _DEPENDENT) for a, b in pairwise(edges)])
    dependent = float((np.add.reduceat(own * rest, parts) ** 2).sum())
    return FaultSize(value, math.sqrt(max(independent, dependent)) / size)


def _share(found: FaultSize, of: Stretches) -> FaultSize:
    """Return a slope of the conductance as the share that is lost from first to last sample."""
    power = (of.root * of.channel) ** 2
    middle = float(power @ of.time / power.sum()) if power.sum() > 0 else 0.5
    first = 1 + found.value * middle  # the fit is right in the middle
    value = found.value / first if first > 1 - _LARGEST_SHARE else math.copysign(1, found.value)
    return FaultSize(
        min(value, 1.0), found.error * abs(value / found.value) if found.value else 0.0
    )


def _slow(of: Stretches, residual: np.ndarray) -> tuple[float, float]:
    """Compare how slow residuals are while channels are open with how slow they are at rest.

    Returns: the ratio of powers, and how many standard errors its logarithm is from 0.
    """
    n = len(residual) // _LONG * _LONG
    whole = (of.block[:n].reshape(-1, _LONG) == of.block[:n:_LONG, None]).all(axis=1)
    means = residual[:n].reshape(-1, _LONG).mean(axis=1)[whole]
    size = np.abs(of.channel[:n]).reshape(-1, _LONG).mean(axis=1)[whole]
    if len(means) < 2 * _AT_REST:
        return math.nan, 0.0
    noise = float(np.median(np.diff(means) ** 2)) / (2 * _MEDIAN)
    closed = size < _CLOSED * size.max()
    n_closed, n_open = int(closed.sum()), int((~closed).sum())
    if not noise > 0 or n_open < _AT_REST:
        return math.nan, 0.0
    ratio, variance = float(np.mean(means[~closed] ** 2)) / noise, 2 / n_open
    at_rest = float(np.mean(means[closed] ** 2)) / noise if n_closed >= _AT_REST else 0.0
    if at_rest > 1:
        ratio, variance = ratio / at_rest, variance + 2 / n_closed
    else:
        variance += _OF_A_MEDIAN / len(means)
    return ratio, math.log(ratio) / math.sqrt(variance) if ratio > 0 else 0.0
