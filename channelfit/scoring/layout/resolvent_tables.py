"""The current at held voltages from moments of resolvents, however fast the rates are.

With the generator A of a voltage and s > 0, R = s (s - A)^-1 holds the occupancies after a time
that is exponentially distributed with mean 1/s. A mode of rate lambda decays in it by
s/(s + lambda), and in C = 2 R - I by (s - lambda)/(s + lambda), which is between -1 and 1 whatever
lambda is. So

    exp(A t) p0 = sum_jk w_jk(t) C_j^k R_j p0

with weights that know nothing of A: a few s_j, spread over the times of a run, and some tens of
powers of each are enough for all rates from 0 to infinity (restricted-denominator approximations:
Moret and Novati 2004, BIT 44:595; van den Eshof and Hochbruck 2006, SIAM J Sci Comput 27:1438). The
weights are those of least squares over all rates. Moments c C^k R p0 take the place of Chebyshev's
(`moment_tables`), whose number grows with the fastest rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from channelfit.scoring.layout.held_compression import compression, maker
from channelfit.scoring.layout.moment_tables import MomentTable, exponentials
from channelfit.scoring.layout.orthogonal import directions, solved
from channelfit.scoring.machine.arrays import product
from channelfit.scoring.machine.cache import program, remembered_arrays

#: Of an exponential along no direction, root mean square over samples.
_NEGLIGIBLE = 1e-11
#: s times the interval of samples, and times all of a run, at the ends of the poles.
_EDGE = 16.0
#: Poles of a run of several samples.
_POLES = 3
#: Imaginary over real parts of rates that may oscillate.
_SLOPES = (0.0, 0.35, 0.7, 1.0)
#: Rates times the interval: those fitted, to an octave of them.
_SLOWEST, _FAST, _FASTEST, _TO_AN_OCTAVE = 1e-5, 1e3, 1e9, 11
#: The weights are kept so small that a sum has this error by rounding at most.
_RIDGE = 1e-14


@dataclass(frozen=True, eq=False)
class ResolventTable(MomentTable):
    """The tables of n samples at a held voltage for any rates; rows end with the state at first.

    Attributes:
        poles: (n_poles,) s, 1/ms.
        powers: moments of each pole, a multiple of eight.
    """

    poles: np.ndarray
    powers: int


@lru_cache(maxsize=256)
def resolvent_table(n: int, span: float, oscillating: bool = False) -> ResolventTable:
    """Return the tables of n samples; arguments as in `moment_tables.moment_table`."""
    poles, powers, found = _weights(n, oscillating)
    speeds = poles * (max(n, 1) / span)
    end = np.append(found[-1], 0.0)
    if n == 0:
        none = np.zeros((0, 0))
        return ResolventTable(none, np.zeros(0, np.int64), end, none, speeds, powers)
    run = compression(n, oscillating)
    at_points = np.zeros((len(run.points), len(end)))
    at_points[0, -1] = 1.0
    at_points[1:, :-1] = found[:-1]
    fast = exponentials(run, _FAST, oscillating)
    space = directions([fast], _NEGLIGIBLE * math.sqrt(n))
    rows = product(space, product(run.matrix, at_points))
    lengths = np.full(len(rows), rows.shape[1])
    return ResolventTable(rows, lengths, end, space, speeds, powers)


@lru_cache(maxsize=256)
def _weights(n: int, oscillating: bool) -> tuple[np.ndarray, int, np.ndarray]:
    """Return poles times the interval, powers of each, and the weights of their moments.

    These are (n_times, n_poles * powers): at the points of a compression after the first, and at
    the end.
    """
    times = np.append(compression(n, oscillating).points[1:], n) if n else np.ones(1)
    poles = np.geomspace(_EDGE / n, _EDGE, _POLES) if n > 1 else np.array([_EDGE])
    powers = max(24, 8 * math.ceil((3 * math.log2(n) - 4) / 8)) if n > 1 else 32
    if oscillating:
        powers = 8 * math.ceil(0.225 * powers)

    def made() -> list[np.ndarray]:
        return [_fitted(n, oscillating, times, poles, powers)]

    made_of = ["resolvents", str(n), str(oscillating), program(__file__), maker()]
    return poles, powers, remembered_arrays(made_of, made)[0]


def _fitted(
    n: int, oscillating: bool, times: np.ndarray, poles: np.ndarray, powers: int
) -> np.ndarray:
    """Return the weights (n_times, n_poles * powers) of least squares over all rates."""
    slow = _SLOWEST / max(n, 1)
    some = np.geomspace(slow, _FAST, int(_TO_AN_OCTAVE * math.log2(_FAST / slow)))
    rates = np.concatenate([[0.0], some, np.geomspace(2 * _FAST, _FASTEST, 20)])
    z = np.outer(rates, 1 + 1j * np.array(_SLOPES if oscillating else _SLOPES[:1])).ravel()
    values = np.exp(-np.outer(z, times))
    decays = poles / (z[:, None] + poles)
    columns = decays[:, :, None] * (2 * decays - 1)[:, :, None] ** np.arange(powers)
    columns = columns.reshape(len(z), -1)
    parts = [(x.real, x.imag) if oscillating else (x.real,) for x in (columns, values)]
    left, right = (np.concatenate(x) for x in parts)
    ridge = _RIDGE * math.sqrt(len(left)) * np.eye(left.shape[1])
    found = solved(
        np.concatenate([left, ridge]), np.concatenate([right, np.zeros((len(ridge), len(times)))])
    )
    return found.T
