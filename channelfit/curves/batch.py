"""Fits of many data sets by a backend: the settings, and fits of data sets in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from channelfit.curves.cpu import fit_on_cpu, fly_on_cpu
from channelfit.curves.cuda import Gpus
from channelfit.curves.curve import Curve
from channelfit.curves.fitting import TOLERANCE, DataSets, Fits, Flight, Task, edges
from channelfit.curves.weights import check_weighted
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu

#: Fits data sets of a task: from the first to before the last.
Fitter = Callable[[Task, int, int], Fits]
METHODS = ("least-squares", "swarm")
#: The most data sets that are fitted at once, and the most numbers in them.
MOST_SETS, MOST_NUMBERS = 262_144, 40_000_000


@dataclass(frozen=True)
class Settings:
    """How data sets are fitted.

    Attributes:
        backend: "auto", "cpu" or "cuda".
        dtype: "float64", or "float32" on a GPU.
        method: one of METHODS.
        covariances: whether to compute these beside the standard errors.
        seed: of the swarms.
        particles, iterations: of a swarm.
        n_threads: None for all cores.
    """

    backend: str = "auto"
    dtype: str = "float64"
    method: str = "least-squares"
    covariances: bool = False
    seed: int = 0
    particles: int = 256
    iterations: int = 30
    n_threads: int | None = None

    def chosen_backend(self) -> str:
        """ "cpu" or "cuda". Raises: InputError for what cannot be done."""
        if self.backend not in ("auto", "cpu", "cuda"):
            raise InputError(f'backend "{self.backend}" is not one of auto, cpu, cuda')
        if self.method not in METHODS:
            raise InputError(f'method "{self.method}" is not one of {", ".join(METHODS)}')
        backend = self.backend
        if backend == "auto":
            backend = "cuda" if gpu.is_available() else "cpu"
        if self.dtype not in TOLERANCE:
            raise InputError(f'dtype "{self.dtype}" is not one of {", ".join(TOLERANCE)}')
        if backend == "cpu" and self.dtype != "float64":
            raise InputError("curves are fitted in float64 on a processor; leave --dtype out")
        return backend


@dataclass(frozen=True, eq=False)
class Piece:
    """Fits of the data sets `first` to before `last` of a task."""

    task: Task
    first: int
    last: int
    fits: Fits


def fitter(settings: Settings) -> Fitter:
    """Return a function that fits the data sets of a task from one place to before another."""
    backend, more = settings.chosen_backend(), settings.covariances
    flight = Flight(settings.particles, settings.iterations, settings.seed)
    swarm, n_threads = settings.method == "swarm", settings.n_threads
    latest: dict[int, tuple[Task, Gpus]] = {}

    def on_cpu(task: Task, a: int, b: int, swarm: bool) -> Fits:
        if swarm:
            return fly_on_cpu(task, a, b, flight, more, n_threads)
        return fit_on_cpu(task, a, b, more, n_threads)

    def on_gpus(task: Task, a: int, b: int, swarm: bool) -> Fits:
        if id(task) not in latest:
            if len(latest) > 1:  # a task and the one of the simpler curve
                latest.clear()
            own = Gpus(task, settings.dtype, more, flight if swarm else None)
            latest[id(task)] = task, own
        return latest[id(task)][1].fit(a, b)

    def fit(task: Task, a: int, b: int) -> Fits:
        if task.impossible:
            return task.failures(a, b, more, swarm)
        one = on_cpu if backend == "cpu" else on_gpus
        found = one(task, a, b, swarm)
        if task.simpler is not None:
            found.simpler = one(task.simpler, a, b, False).cost
        return found

    return fit


def fit_curve(curve: Curve, data: DataSets, settings: Settings | None = None) -> Fits:
    """Fit all data sets of one group, in memory; for Python and for tests.

    Raises: InputError if ranges do not suit the inputs, or no GPU can be used.
    """
    settings = settings or Settings()
    fit = fitter(settings)
    check_weighted(curve, data, settings.method)
    task = Task.of(curve, data)
    n_sets, n_points = data.values.shape
    step = max(1, min(MOST_SETS, MOST_NUMBERS // n_points))
    pieces = [fit(task, first, last) for first, last in edges(n_sets, step)]

    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else np.concatenate(parts)

    return Fits(*(joined(name) for name in vars(pieces[0])))  # type: ignore[arg-type]
