"""Fits of curves on the processor: blocks of lanes shared among its cores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from channelfit.curves.fitting import MOST_STEPS, CurveProblem, Fits, Flight, index_ranges
from channelfit.curves.lanes import EVALUATE, LANES, ROWS, SQUARES, fit
from channelfit.curves.source import cpu_text, kind_of
from channelfit.curves.swarm_lanes import fly
from channelfit.curves.weights import rescaled, weights_of
from channelfit.scoring.machine.machine_code import Callback, generated
from channelfit.scoring.machine.threads import Team, usable_cores
from channelfit.search.philox import split_seed

#: Data sets that a thread takes at once, and numbers in them, at most.
_SETS, _NUMBERS = 2048, 1_000_000


def fit_on_cpu(
    problem: CurveProblem,
    first: int,
    last: int,
    covariances: bool = False,
    n_threads: int | None = None,
) -> Fits:
    """Fit the data sets from `first` to before `last` by least squares or maximum likelihood."""
    n_sets = last - first
    curve, data, scan = problem.curve, problem.data, problem.scan
    out = _results(n_sets, len(problem.lower), covariances)
    text = cpu_text(curve, data.axes)
    kind = kind_of(curve)
    first_of = "evaluate" if kind == SQUARES else "approach"
    kernels = [Callback(generated(text, name), EVALUATE) for name in ("evaluate", first_of)]
    shared = (
        scan.points, scan.side_by_side(ROWS), scan.norms.astype(np.float32), scan.ones,
        scan.offset, scan.centered, scan.back, scan.linear,
        scan.starts, scan.places, problem.lower, problem.upper, problem.width, problem.below,
        curve.refined, MOST_STEPS, problem.tolerance("float64"), kind,
    )  # fmt: skip

    def some(a: int, b: int) -> None:
        block = np.ascontiguousarray(data.values[first + a : first + b], np.float64)
        given = block, weights_of(curve, data, first + a, first + b), 0, -(-(b - a) // LANES)
        fit(*kernels, *given, data.flat, data.lengths, *shared, *(array[a:b] for array in out))

    cores = n_threads or usable_cores()
    step = max(LANES, min(_SETS, _NUMBERS // data.values.shape[1], -(-n_sets // cores)))
    some(0, min(n_sets, 1))  # compiles, before the threads start
    _share(some, n_sets, -(-step // LANES) * LANES, n_threads)
    return rescaled(problem, first, Fits.of_arrays([*out, np.empty((0, 0))]))


def fly_on_cpu(
    problem: CurveProblem,
    first: int,
    last: int,
    flight: Flight,
    covariances: bool = False,
    n_threads: int | None = None,
) -> Fits:
    """Fly one swarm for each of the data sets from `first` to before `last`."""
    curve, data = problem.curve, problem.data
    n_sets, n = last - first, len(problem.lower)
    out = (*_results(n_sets, n, covariances), np.empty((n_sets, n)))
    text = cpu_text(curve, data.axes)
    kernels = [Callback(generated(text, name), EVALUATE) for name in ("value", "evaluate")]
    shared = (
        data.flat, data.lengths, problem.lower, problem.upper, problem.width, problem.below,
        len(curve.linear), kind_of(curve), flight.particles,
        flight.iterations, *split_seed(flight.seed),
    )  # fmt: skip

    def some(a: int, b: int) -> None:
        block = np.ascontiguousarray(data.values[first + a : first + b], np.float64)
        results = (array[a:b] for array in out)
        weights = np.empty((0, 0))
        fly(*kernels, block, weights, 0, -(-(b - a) // LANES), first + a, *shared, *results)

    some(0, min(n_sets, 1))  # compiles, before the threads start
    _share(some, n_sets, LANES, n_threads)
    return Fits.of_arrays(out)


def _results(n_sets: int, n: int, covariances: bool) -> tuple[np.ndarray, ...]:
    """Return arrays for n parameters of each data set, in the order of `lanes.fit`."""
    squares = np.empty((n_sets, n * n)) if covariances else np.empty((0, 0))
    flags = np.empty(n_sets, np.int64)
    return np.empty((n_sets, n)), np.empty((n_sets, n)), squares, np.empty((n_sets, 4)), flags


def _share(some: Callable[[int, int], None], n_sets: int, step: int, n_threads: int | None) -> None:
    """Call some(a, b) for ranges of data sets, on all cores."""
    _team((n_threads or usable_cores()) - 1).share(some, list(index_ranges(n_sets, step)))


@cache
def _team(n_helpers: int) -> Team:
    return Team(n_helpers)
