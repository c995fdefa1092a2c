"""Scorers, which compute the cost of candidates: what all of them do, and which one to use."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import array_module
from channelfit.scoring.machine.threads import single_threaded_blas

if TYPE_CHECKING:
    from channelfit.problem.experiment import Problem
    from channelfit.scoring.tangent_plan import RowBlock

_Found = TypeVar("_Found")
#: Makes numbers and their derivatives of rows; see `ChannelScorer.window_slopes`.
UseOfRows: TypeAlias = "Callable[[list[RowBlock], Any], tuple[Any, Any]]"

#: The module and class of each backend.
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
#: The one of problems with channel noise.
_NOISY = ("channelfit.scoring.channel_noise", "NoiseScorer")
#: The same for experiments that differ in more than the command.
_GROUPED = ("channelfit.scoring.grouped", "GroupedScorer")
#: The same for what is observed in currents.
_OBSERVED = ("channelfit.scoring.observed", "ObservedScorer")

NOTHING_TO_SCORE = "nothing to score: no recording has a sample of weight above 0"
#: Ways to compute a score: sample by sample; from sums over the recording, without samples; from
#: moments that serve all samples. auto: the fastest that is exact enough.
PATHS = ("auto", "stepping", "closed-form", "moments")


@dataclass(frozen=True)
class Score:
    """The costs of candidates.

    Attributes:
        cost: (n_candidates,) pA^2, the weighted mean square; inf for a failed candidate, never NaN.
        status: (n_candidates,) int8, 0 for a good candidate, else why it failed; see
            `problem.statuses`.
    """

    cost: np.ndarray
    status: np.ndarray


@dataclass(frozen=True)
class Linearization:
    """A score and how it changes with the parameters.

    cost (n_candidates,) pA^2 and status (n_candidates,) as in `Score`.
    gradient: (n_parameters, n_candidates), of the cost, by parameters in base units.
    hessian: (n_parameters, n_parameters, n_candidates), ``2 J^T W J / sum w`` with J the
        derivatives of the currents: the Gauss-Newton Hessian.
    Rows of fixed parameters are 0; so is everything of a failed candidate.
    """

    cost: np.ndarray
    status: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray

    @classmethod
    def empty(cls, n_parameters: int, n: int) -> Linearization:
        """Return room for n candidates: infinite costs, good statuses, derivatives of 0."""
        gradient, hessian = np.zeros((n_parameters, n)), np.zeros((n_parameters, n_parameters, n))
        return cls(np.full(n, np.inf), np.zeros(n, np.int8), gradient, hessian)


class Scorer(ABC):
    """Computes the cost of candidates, (n_parameters, n_candidates) in base units.

    `score` is all that a scorer must have. For the other methods this class answers with the score
    where that is right, and raises InputError where there is nothing to answer with.

    Attributes:
        backend: where it computes: ``reference``, ``cpu`` or ``cuda``; empty for none of these.
        dtype: the precision of the score, ``float64`` or ``float32``.
        path: the way to a score that it takes, one of PATHS; empty where a backend has only one.
        source_text: the generated code that scores; empty where none is generated.
        source_hash: of that code, or of the backend's own.
        xp: NumPy, or CuPy where parameters may be an array on the GPU; results are then, too.
    """

    backend: str = ""
    dtype: str = "float64"
    path: str = ""
    source_text: str = ""
    source_hash: str = ""
    xp: Any = np

    @abstractmethod
    def score(self, parameters: Any) -> Score:
        """Return cost and status of every candidate."""

    def rescore(self, parameters: Any) -> Score:
        """Return the most exact score that this backend has, for a few candidates."""
        return self.score(parameters)

    def preview(self, parameters: Any) -> Score:
        """Return costs that compare with those of `linearize` to the last digits."""
        return self.score(parameters)

    def linearize(self, parameters: Any) -> Linearization:
        """Return cost, gradient and Gauss-Newton Hessian of every candidate; exact derivatives."""
        raise InputError(f"backend {self.backend} has no derivatives of this cost")

    def score_cell(self, parameters: Any, cell: str, preview: bool = False) -> Score:
        """Return what the experiments of one cell add to the cost, and whether they fail.

        Arguments:
            preview: whether costs are computed as in `preview`.
        """
        raise InputError(f'this cost has no part of its own for the cell "{cell}"')

    def limit_launches(self, chunk: int) -> None:
        """Set how many candidates one launch on the GPU has at most."""
        raise InputError(f"--chunk is for GPUs; backend {self.backend} does without")


class ChannelScorer(Scorer):
    """Computes the cost of candidates from the currents of a channel, and these currents.

    Attributes:
        problem: the model and the experiments.
        paths: those of PATHS, without ``auto``, that this backend can take.
    """

    problem: Problem
    paths: tuple[str, ...] = ()

    @abstractmethod
    def simulate(self, parameters: Any) -> list[np.ndarray]:
        """Return currents, pA: for each experiment (n_sweeps, n_times_max, n_candidates).

        NaN after a shorter sweep's end, and everywhere for a candidate that fails.
        """

    @abstractmethod
    def linearize(self, parameters: Any) -> Linearization:
        """Return cost, gradient and Gauss-Newton Hessian of every candidate; exact derivatives."""

    def window_currents(self, parameters: Any) -> tuple[Any, Any]:
        """Return currents (n_data, n_candidates), pA, in the order of `problem.simulated`.

        They are an array of `xp`, beside the statuses (n_candidates,), for what is observed in
        them (`scoring.observed`). NaN where a candidate fails.
        """
        raise InputError(f"backend {self.backend} has no currents to observe of this problem")

    def window_slopes(self, parameters: Any, use: UseOfRows) -> tuple[Any, Any, Any]:
        """Return what a function makes of currents and their derivatives, and statuses.

        Arguments:
            use: returns numbers (n, n_numbers) and their derivatives (n, n_numbers, n_free) by free
                parameters, from the blocks of `problem.scored` (`tangent_plan.RowBlock`) and rows
                (n, n_rows, 1 + n_free), of as many candidates as there are.

        Returns: the numbers, the derivatives and statuses (n_candidates,), arrays of the module of
            the parameters; NaN where a candidate fails.
        """
        raise InputError(f"backend {self.backend} has no derivatives of what is observed")

    def fix_jobs(self, n: int) -> bool:
        """Cut each candidate into n parts for threads of a GPU, however many share a launch.

        Then no number depends, in its last digits, on how many these are.

        Returns: whether this scorer can do that.
        """
        return False

    @property
    def n_parameters(self) -> int:
        """The number of parameters of a candidate: those of the model."""
        return len(self.problem.model.parameters)

    @property
    def has_data(self) -> bool:
        """True where a recording has a sample that counts."""
        return self.problem.scored.total_weight > 0

    def _scorable(self, parameters: Any) -> Any:
        """Return checked parameters. Raises InputError where there is nothing to score."""
        if not self.has_data:
            raise InputError(NOTHING_TO_SCORE)
        return self._checked(parameters)

    def _checked(self, parameters: Any) -> Any:
        """Return parameters (n_parameters, n_candidates) as contiguous float64, where they are.

        Raises: ValueError for another shape.
        """
        parameters = array_module(parameters).ascontiguousarray(parameters, dtype=np.float64)
        n_parameters = self.n_parameters
        if parameters.ndim != 2 or parameters.shape[0] != n_parameters:
            raise ValueError(
                f"parameters must be ({n_parameters}, n_candidates), not {parameters.shape}"
            )
        return parameters


class InnerScorer(ChannelScorer):
    """Scores a problem by another scorer, to which each call goes.

    Arguments:
        problem: what is scored.
        inner: the other scorer.
    """

    def __init__(self, problem: Problem, inner: ChannelScorer) -> None:
        self.problem, self.inner, self.xp = problem, inner, inner.xp
        self.backend, self.dtype, self.path = inner.backend, inner.dtype, inner.path
        self.source_text, self.source_hash = inner.source_text, inner.source_hash

    @property
    def n_parameters(self) -> int:
        """The number of parameters of a candidate, with those of each cell."""
        return len(self.problem.parameters)

    @property
    def has_data(self) -> bool:
        """True where a recording has a sample that counts."""
        return self.inner.has_data

    def score(self, parameters: Any) -> Score:
        return self._passed("score", self.inner.score, parameters)

    def preview(self, parameters: Any) -> Score:
        return self._passed("preview", self.inner.preview, parameters)

    def rescore(self, parameters: Any) -> Score:
        return self._passed("rescore", self.inner.rescore, parameters)

    def linearize(self, parameters: Any) -> Linearization:
        return self._passed("linearize", self.inner.linearize, parameters)

    def score_cell(self, parameters: Any, cell: str, preview: bool = False) -> Score:
        def one(some: Any) -> Score:
            return self.inner.score_cell(some, cell, preview)

        return self._passed(("cell", cell, preview), one, parameters)

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        return self._passed("simulate", self.inner.simulate, parameters)

    def limit_launches(self, chunk: int) -> None:
        self.inner.limit_launches(chunk)

    def _passed(self, name: Hashable, function: Callable[[Any], _Found], parameters: Any) -> _Found:
        """Return what a function of the other scorer returns for the parameters.

        Arguments:
            name: of the call; the same for calls of the same function.
        """
        return function(parameters)


def chosen_backend(backend: str, dtype: str) -> str:
    """Return the backend that a name means here: ``auto`` is cuda where a GPU is usable, else cpu.

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
) -> ChannelScorer:
    """Make a scorer for a problem.

    Arguments:
        backend: ``reference`` (NumPy, slow, the truth), ``cpu`` (generated code), ``cuda``
            (generated CUDA), or ``auto``: cuda where there is a GPU that can be used, else cpu.
        dtype: ``float64``, or ``float32`` where speed matters more than the sixth digit.
        path: one of PATHS; a scorer's class names those that it has in `paths`.

    Raises:
        InputError: an unknown backend, dtype or path, or one that cannot run here, and what to do.
    """
    if problem.noise is not None and backend == "auto":
        backend = "cpu"
    backend = chosen_backend(backend, dtype)
    if path not in PATHS:
        raise InputError(f'path "{path}" is not one of {", ".join(PATHS)}')
    if any(e.clamp is not None for e in problem.experiments):
        problem.model.refuse_ligands(
            "a clamp that is not ideal, and a low-pass filter, serve the voltage alone"
        )
    if problem.noise is not None:
        if backend != "cpu":
            raise InputError(
                "the likelihood of channel noise is computed by the cpu backend, not by "
                f"{backend}; leave --backend out, or use --backend cpu"
            )
        filtered: ChannelScorer = _class(*_NOISY)(problem, dtype, path)
        return filtered
    kinds = [
        _class(*(CLAMPED if group.clamp is not None else BACKENDS)[backend])
        for group in problem.groups
    ]
    for kind in kinds:
        if path not in ("auto", *kind.paths):
            offered = ", ".join(kind.paths)
            raise InputError(f'backend {backend} has no path "{path}" here, only {offered}')
    with single_threaded_blas():  # sums over samples would depend on the number of its threads
        scorers: list[ChannelScorer] = [
            _class(*_OBSERVED)(group.problem, kind)
            if group.is_observed
            else kind(group.problem, dtype, path=path)
            for kind, group in zip(kinds, problem.groups, strict=True)
        ]
    if len(scorers) == 1 and not problem.groups[0].sets_temperature:
        return scorers[0]
    grouped: ChannelScorer = _class(*_GROUPED)(problem, scorers)
    return grouped


def _class(module: str, name: str) -> Any:
    """Import a class when it is needed."""
    return getattr(importlib.import_module(module), name)
