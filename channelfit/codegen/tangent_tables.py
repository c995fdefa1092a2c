"""What linearizations of gates and of schemes have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from channelfit.model import RATE_CEILING, RATE_FLOOR

#: Columns of the table of runs. OUT and STRIDE say where the row of a run's first point stands in
#: the flat output, and how far the next one is; POINTS and N_POINTS a part of the array of points.
VOLTAGE, TABLE, N, SOURCE, TARGET, OUT, STRIDE, POINTS, N_POINTS = range(9)

OPTIONS: Any = {
    "error_model": "numpy", "fastmath": {"contract"}, "nogil": True, "cache": True,
}  # fmt: skip
#: Of what Python never calls: unpacking arguments takes longer to compile than many a kernel.
INNER: Any = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
#: Of what is generated for a model: called from kernels that are compiled for all.
RATES = types.void(*(types.float64[::1],) * 2, *(types.float64[:, ::1],) * 2)
GAINS = types.void(types.float64[::1], types.float64[:, ::1])
CREATE_RATES, CREATE_GAINS = types.FunctionType(RATES), types.FunctionType(GAINS)


class Compiled(types.WrapperAddressProtocol):  # type: ignore[misc]
    """A compiled function of one signature, to be handed to a kernel; handed over itself, Numba
    would find out anew in every call what it is."""

    def __init__(self, function: Any) -> None:
        (made,) = function.overloads.values()
        self._signature = made.signature
        self._address = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)

    def __wrapper_address__(self) -> int:
        return int(self._address)

    def signature(self) -> Any:
        """As Numba has it."""
        return self._signature


@njit(
    "void(float64[::1], float64[::1], int64[:,::1], float64[::1], float64[::1], float64[:,::1],"
    " float64[:,::1])",
    **OPTIONS,
)
def project(flat, matrices, groups, target, scale, residuals, normal):  # type: ignore[no-untyped-def]
    """Residuals (n_residuals, width) of the currents in `flat`, and their products `normal`.

    groups (n_groups, 6): rank, n_points, where its matrix begins, its points, their end, its first
    residual in a flat array; rows without a matrix are there already.
    """
    shown = residuals.reshape(-1)
    for g in range(groups.shape[0]):
        rank, n_points, first = groups[g, 0], groups[g, 1], groups[g, 2]
        begin, end, place = groups[g, 3], groups[g, 4], groups[g, 5]
        n = (end - begin) // n_points
        np.dot(
            matrices[first : first + rank * n_points].reshape((rank, n_points)),
            flat[begin:end].reshape((n_points, n)),
            shown[place : place + rank * n].reshape((rank, n)),
        )
    for i in range(residuals.shape[0]):
        residuals[i, 0] -= target[i]
        for d in range(residuals.shape[1]):
            residuals[i, d] *= scale[i]
    np.dot(residuals.T, residuals, normal)


@njit(
    "void(float64[:,::1], float64[:,::1], int64[:,::1], float64[::1], int64, int64[::1])", **OPTIONS
)
def boundRates(rate, slope, partials, least, n, flags):  # type: ignore[no-untyped-def]
    """Rates at n voltages within their bounds; d rate becomes d log rate, 0 outside of these.

    rate (n_rates, at least n), slope (n_partials, ..); partials (n_partials, 2): rate, direction.
    least (n_rates,): the lower bound of each, below 0 where a rate may be negative.
    flags (2,): set to 1 where a rate is NaN, where one is negative that may not.
    """
    for k in range(partials.shape[0]):
        u = partials[k, 0]
        for v in range(n):
            r = rate[u, v]
            inside = abs(r) > RATE_FLOOR and abs(r) < RATE_CEILING
            slope[k, v] = slope[k, v] / r if inside else 0.0
    nan, negative = 0, 0
    for u in range(rate.shape[0]):
        for v in range(n):
            r = rate[u, v]
            nan |= r != r
            negative |= r < 0.0 and least[u] > 0.0
            r = r if r > least[u] else least[u]
            rate[u, v] = r if r < RATE_CEILING else RATE_CEILING
    flags[0] |= nan
    flags[1] |= negative
