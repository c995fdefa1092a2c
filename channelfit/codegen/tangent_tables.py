"""What both sets of kernels for linearizations start from; importing it compiles nothing."""

from __future__ import annotations

from typing import Any

#: Columns of the table of runs. OUT and STRIDE say where the row of a run's first point stands in
#: the flat output, and how far the next one is; POINTS and N_POINTS a part of the array of points.
VOLTAGE, TABLE, N, SOURCE, TARGET, OUT, STRIDE, POINTS, N_POINTS = range(9)

OPTIONS: Any = {
    "error_model": "numpy", "fastmath": {"contract"}, "nogil": True, "cache": True,
}  # fmt: skip
#: Of what Python never calls: unpacking arguments takes longer to compile than many a kernel.
INNER: Any = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
