"""The settings of fits of many data sets, and the function that fits some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from channelfit.curves.cpu import fit_on_cpu, fly_on_cpu
from channelfit.curves.cuda import CudaFits, Gpus
from channelfit.curves.fitting import TOLERANCE, CurveProblem, Fits, Flight
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu

#: Fits data sets of a problem: from the first to before the last.
Fitter = Callable[[CurveProblem, int, int], Fits]
METHODS = ("least-squares", "swarm")
#: The most data sets that are fitted at once, and the most numbers in them.
MOST_SETS, MOST_NUMBERS = 262_144, 40_000_000


@dataclass(frozen=True)
class CurveSettings:
    """The settings of fits.

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
        """Return "cpu" or "cuda". Raises: InputError for settings that cannot be used."""
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
class FittedSets:
    """Fits of the data sets `first` to before `last` of a problem."""

    problem: CurveProblem
    first: int
    last: int
    fits: Fits


def fitter(settings: CurveSettings) -> Fitter:
    """Return a function that fits the data sets of a problem from one place to before another."""
    backend, more = settings.chosen_backend(), settings.covariances
    flight = Flight(settings.particles, settings.iterations, settings.seed)
    swarm, n_threads = settings.method == "swarm", settings.n_threads
    latest: dict[int, tuple[CurveProblem, Gpus]] = {}

    def on_cpu(problem: CurveProblem, a: int, b: int, swarm: bool) -> Fits:
        if swarm:
            return fly_on_cpu(problem, a, b, flight, more, n_threads)
        return fit_on_cpu(problem, a, b, more, n_threads)

    def on_gpus(problem: CurveProblem, a: int, b: int, swarm: bool) -> Fits:
        if id(problem) not in latest:
            if len(latest) > 1:  # a problem and the one of the simpler curve
                latest.clear()
            make = partial(CudaFits, problem, settings.dtype, more, flight if swarm else None)
            latest[id(problem)] = problem, Gpus(make)
        return latest[id(problem)][1].fit(a, b)

    def fit(problem: CurveProblem, a: int, b: int) -> Fits:
        if problem.impossible:
            return problem.failures(a, b, more, swarm)
        one = on_cpu if backend == "cpu" else on_gpus
        found = one(problem, a, b, swarm)
        if problem.simpler is not None:
            found.simpler = one(problem.simpler, a, b, False).cost
        return found

    return fit
