"""What linearizations of gates and of schemes have in common."""

from __future__ import annotations

from typing import Any

from numba import njit

from channelfit.model import RATE_CEILING, RATE_FLOOR

#: Columns of the table of runs. OUT and STRIDE say where the row of a run's first point stands in
#: the flat output, and how far the next one is; POINTS and N_POINTS a part of the array of points.
VOLTAGE, TABLE, N, SOURCE, TARGET, OUT, STRIDE, POINTS, N_POINTS = range(9)

OPTIONS: Any = {
    "error_model": "numpy", "fastmath": {"contract"}, "nogil": True, "cache": True,
}  # fmt: skip
#: Of what Python never calls: unpacking arguments takes longer to compile than many a kernel.
INNER: Any = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@njit("void(float64[:,::1], float64[:,::1], int64[:,::1], int64, int64[::1])", **OPTIONS)
def clipRates(rate, slope, partials, n, flags):  # type: ignore[no-untyped-def]
    """Rates at n voltages within their bounds; d rate becomes d log rate, 0 outside of these.

    rate (n_rates, at least n), slope (n_partials, ..); partials (n_partials, 2): rate, direction.
    flags (2,): set to 1 where a rate is NaN, where one is negative.
    """
    for k in range(partials.shape[0]):
        u = partials[k, 0]
        for v in range(n):
            r = rate[u, v]
            slope[k, v] = slope[k, v] / r if r > RATE_FLOOR and r < RATE_CEILING else 0.0
    nan, negative = 0, 0
    for u in range(rate.shape[0]):
        for v in range(n):
            r = rate[u, v]
            nan |= r != r
            negative |= r < 0.0
            r = r if r > RATE_FLOOR else RATE_FLOOR
            rate[u, v] = r if r < RATE_CEILING else RATE_CEILING
    flags[0] |= nan
    flags[1] |= negative
