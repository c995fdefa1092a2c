"""Three ways to the same score: reference, cpu and cuda, chosen by `make_scorer`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import single_threaded_blas

if TYPE_CHECKING:
    from channelfit.problem.experiment import Problem

#: name -> (module, class, what it needs)
BACKENDS = {
    "reference": ("channelfit.scoring.reference", "ReferenceScorer"),
    "cpu": ("channelfit.scoring.cpu", "CpuScorer"),
    "cuda": ("channelfit.scoring.cuda", "CudaScorer"),
}
#: The same for problems with a clamp.
CLAMPED = {
    "reference": ("channelfit.scoring.reference_clamp", "ClampReference"),
    "cpu": ("channelfit.scoring.clamp", "ClampScorer"),
    "cuda": ("channelfit.scoring.clamp_cuda", "ClampCudaScorer"),
}
#: What scores a problem whose experiments differ in more than the command, by scorers of each kind.
_GROUPED = ("channelfit.scoring.grouped", "GroupedScorer")

#: How a score is computed: sample by sample; sample by sample in the modes of a reversible
#: scheme; from sums over the recording, without samples. auto: the fastest that is exact enough.
PATHS = ("auto", "stepping", "modal", "closed-form")


@dataclass(frozen=True)
class Score:
    """cost (n_candidates,) pA^2, the weighted mean square; status (n_candidates,) int8.

    A failed candidate costs inf and its status says why; a cost is never NaN.
    """

    cost: np.ndarray
    status: np.ndarray


@dataclass(frozen=True)
class Linearization:
    """A score and how it changes with the parameters.

    cost (n_candidates,) pA^2 and status (n_candidates,) as in `Score`.
    gradient: (n_parameters, n_candidates), of the cost, by parameters in base units.
    curvature: (n_parameters, n_parameters, n_candidates), ``2 J^T W J / sum w`` with J the
        derivatives of the currents: the Gauss-Newton part of the second derivative.
    Rows of fixed parameters are 0; so is everything of a failed candidate.
    """

    cost: np.ndarray
    status: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray

    @classmethod
    def empty(cls, n_parameters: int, n: int) -> Linearization:
        """Return room for n candidates: infinite costs, good statuses, derivatives of 0."""
        gradient, curvature = np.zeros((n_parameters, n)), np.zeros((n_parameters, n_parameters, n))
        return cls(np.full(n, np.inf), np.zeros(n, np.int8), gradient, curvature)


class Scorer(Protocol):
    """What every backend offers. `parameters` is (n_parameters, n_candidates), base units.

    Attributes:
        backend, dtype: where it computes, and with numbers of which type.
        path: the way to a score that it takes, one of PATHS; empty where a backend has only one.
        source_text: the generated code that scores; empty where none is generated.
        source_hash: of that code, or of the backend's own.
        xp: NumPy, or CuPy where arrays of parameters may lie on the GPU.
    """

    backend: str
    dtype: str
    path: str
    source_text: str
    source_hash: str
    xp: Any

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        """Per experiment (n_sweeps, n_times_max, n_candidates) pA; NaN after a shorter sweep."""
        ...

    def score(self, parameters: np.ndarray) -> Score:
        """Cost and status of every candidate."""
        ...

    def linearize(self, parameters: np.ndarray) -> Linearization:
        """Cost, gradient and Gauss-Newton curvature of every candidate, exact derivatives."""
        ...

    def preview(self, parameters: np.ndarray) -> Score:
        """Costs that compare with those of `linearize` to the last digits."""
        ...

    def rescore(self, parameters: np.ndarray) -> Score:
        """The most exact score that the backend has, for a few candidates."""
        ...


@runtime_checkable
class Chunked(Protocol):
    """A scorer that takes at most `chunk` candidates at once; None for as many as memory allows."""

    chunk: int | None


def chosen_backend(backend: str, dtype: str) -> str:
    """The backend that a name means here: ``auto`` is cuda where a GPU can be used, else cpu.

    Raises: InputError for an unknown backend or precision.
    """
    if dtype not in ("float64", "float32"):
        raise InputError(f'dtype "{dtype}" is not one of float64, float32')
    if backend == "auto":
        return "cuda" if gpu.is_available() else "cpu"
    if backend not in BACKENDS:
        raise InputError(f'backend "{backend}" is not one of auto, {", ".join(BACKENDS)}')
    return backend


def make_scorer(
    problem: Problem, backend: str = "auto", dtype: str = "float64", path: str = "auto"
) -> Scorer:
    """A scorer for a problem.

    Arguments:
        backend: ``reference`` (NumPy, slow, the truth), ``cpu`` (generated code), ``cuda``
            (generated CUDA), or ``auto``: cuda where there is a GPU that can be used, else cpu.
        dtype: ``float64``, or ``float32`` where speed matters more than the sixth digit.
        path: one of PATHS; a scorer's class names those that it has in `paths`.

    Raises:
        InputError: an unknown backend, dtype or path, or one that cannot run here, and what to do.
    """
    backend = chosen_backend(backend, dtype)
    if path not in PATHS:
        raise InputError(f'path "{path}" is not one of {", ".join(PATHS)}')
    kinds = [
        _class(*(CLAMPED if group.clamp is not None else BACKENDS)[backend])
        for group in problem.groups
    ]
    for kind in kinds:
        if path not in ("auto", *kind.paths):
            offered = ", ".join(kind.paths)
            raise InputError(f'backend {backend} has no path "{path}" here, only {offered}')
    with single_threaded_blas():  # sums over samples would depend on the number of its threads
        scorers: list[Scorer] = [
            kind(group.problem, dtype, path=path)
            for kind, group in zip(kinds, problem.groups, strict=True)
        ]
    if len(scorers) == 1 and not problem.groups[0].sets_temperature:
        return scorers[0]
    grouped: Scorer = _class(*_GROUPED)(problem, scorers)
    return grouped


def _class(module: str, name: str) -> Any:
    """A class that is loaded when it is needed."""
    return getattr(importlib.import_module(module), name)
