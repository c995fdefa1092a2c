"""Fits of curves on the processor: blocks of lanes shared among its cores."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from channelfit.curves.fitting import MOST_STEPS, TOLERANCE, Fits, Task
from channelfit.curves.lanes import EVALUATE, LANES, ROWS, fit
from channelfit.curves.source import cpu_text
from channelfit.scoring.machine.machine_code import Callback, generated
from channelfit.scoring.machine.threads import Team, usable_cores

#: Data sets that a thread takes at once, and numbers in them, at most.
_SETS, _NUMBERS = 2048, 1_000_000


def fit_on_cpu(
    task: Task, first: int, last: int, covariances: bool = False, n_threads: int | None = None
) -> Fits:
    """Fit the data sets from `first` to before `last` by least squares or maximum likelihood."""
    n_sets, n_free = last - first, len(task.lower)
    curve, data, scan = task.curve, task.data, task.scan
    values, errors = np.empty((n_sets, n_free)), np.empty((n_sets, n_free))
    numbers, flags = np.empty((n_sets, 4)), np.empty(n_sets, np.int64)
    wanted = np.empty((n_sets, n_free**2)) if covariances else np.empty((0, 0))
    evaluate = Callback(generated(cpu_text(curve, data.axes), "evaluate"), EVALUATE)
    shared = (
        scan.points, scan.side_by_side(ROWS), scan.norms, scan.offset, scan.back, scan.linear,
        scan.starts, scan.places, task.lower, task.upper, task.width, task.below, curve.starts,
        MOST_STEPS, TOLERANCE["float64"], int(curve.likelihood == "poisson"),
    )  # fmt: skip

    def some(a: int, b: int) -> None:
        block = np.ascontiguousarray(data.values[first + a : first + b], np.float64)
        out = (values[a:b], errors[a:b], wanted[a:b], numbers[a:b], flags[a:b])
        n_blocks = -(-(b - a) // LANES)
        fit(evaluate, block, 0, n_blocks, data.flat, data.lengths, *shared, *out)

    n_threads = n_threads or usable_cores()
    step = max(LANES, min(_SETS, _NUMBERS // data.values.shape[1], -(-n_sets // n_threads)))
    step = -(-step // LANES) * LANES
    some(0, min(n_sets, 1))  # compiles, before the threads start
    parts = [(a, min(a + step, n_sets)) for a in range(0, n_sets, step)]
    _team(n_threads - 1).share(some, parts)
    whole = wanted.reshape(n_sets, n_free, n_free) if covariances else None
    return Fits(
        values, errors, numbers[:, 0], numbers[:, 1], numbers[:, 2], numbers[:, 3], flags, whole
    )


@cache
def _team(n_helpers: int) -> Any:
    return Team(n_helpers)
