"""The autocorrelation of residuals, which shows whether they are noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Lags that are drawn: a share of the longest sweep, and that many at most.
_SHARE, _MOST = 0.25, 400
#: The autocorrelation is drawn until well behind the lag at which it has first been as small as
#: noise for this many lags.
_QUIET, _BEYOND = 3, 4
#: Residuals below this share of the largest are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Autocorrelation:
    """The correlation of residuals with those a lag later, 1 at lag 0.

    Attributes:
        lags_ms: (n_lags,) from 0.
        values: (n_lags,)
        band: within this on either side of 0 lie 95 % of the values of independent noise.
    """

    lags_ms: np.ndarray
    values: np.ndarray
    band: float

    @property
    def table_lags_ms(self) -> np.ndarray:
        """A few of the lags, (8,) or fewer, for a table."""
        n = len(self.lags_ms)
        picks = np.unique(np.geomspace(1, max(n - 1, 1), 8).round().astype(int))
        return np.asarray(self.lags_ms[picks[picks < n]])

    def at(self, lag_ms: float) -> float:
        """Return the autocorrelation at the lag that is nearest to lag_ms."""
        return float(self.values[np.argmin(np.abs(self.lags_ms - lag_ms))])


def autocorrelation(
    apart: np.ndarray, weight: np.ndarray | None, sampling_ms: float
) -> Autocorrelation | str:
    """Return the autocorrelation of the residuals of one experiment.

    Only pairs of samples that both count are compared, within a sweep; each residual is weighed by
    the root of its weight, as in the cost.

    Arguments:
        apart: (n_sweeps, n_times) pA, fit less data.
        weight: the same shape; None for 1 everywhere.

    Returns: the reason in words, where there is none.
    """
    weight = np.ones_like(apart) if weight is None else weight
    counts = (weight > 0) & np.isfinite(apart)
    if counts.sum() < 16:
        return "too few samples count"
    rows = np.where(counts, np.sqrt(weight) * np.nan_to_num(apart), 0.0)
    size = float(np.abs(rows).max())
    if size == 0:
        return "the fit and the recording are the same"
    products = lagged_products(list(rows / size))
    pairs = lagged_products(list(counts.astype(float)))
    some = pairs > 0.5
    power = products[0] / pairs[0]
    lags = np.flatnonzero(some)
    lags = lags[lags <= max(8, round(_SHARE * apart.shape[1]))]
    values = products[lags] / np.round(pairs[lags]) / power
    band = 1.96 / math.sqrt(float(pairs[0]))
    last = _last(values, max(2 * band, 0.05))
    return Autocorrelation(lags[:last] * sampling_ms, values[:last], band)


def _last(values: np.ndarray, small: float) -> int:
    """Return how many lags are drawn: until well behind the first that are all small."""
    quiet = np.abs(values) < small
    for k in range(1, len(values) - _QUIET):
        if quiet[k : k + _QUIET].all():
            return min(len(values), max(_BEYOND * k, 24), _MOST)
    return min(len(values), _MOST)


def lagged_products(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Sum products of samples that are k apart, over all rows, for k = 0, 1, ..

    Computed by the Fourier transform. Returns: (n_times of the longest row,).
    """
    from scipy import fft  # loaded only where it is needed

    longest = max(len(row) for row in rows)
    total = np.zeros(longest)
    for row in rows:
        size = fft.next_fast_len(2 * len(row), real=True)
        power = np.abs(fft.rfft(row, size)) ** 2
        total[: len(row)] += fft.irfft(power, size)[: len(row)]
    return total
