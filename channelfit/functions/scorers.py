"""The three backends for functions, which compute costs and nothing else."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.functions import function as functions
from channelfit.functions.function import FunctionProblem
from channelfit.functions.source import FunctionSource
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.cpu import shared_kernel
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.machine.threads import usable_cores
from channelfit.scoring.scorer import Score, Scorer, chosen_backend

#: Fewer candidates than this get a warp each: a thread each would leave most of a GPU idle.
_FEW = 16_384
_BLOCK = 128


class FunctionReference(Scorer):
    """NumPy, by walking the expressions; float64 only.

    Raises: InputError for another precision.
    """

    backend = "reference"

    def __init__(self, problem: FunctionProblem, dtype: str = "float64") -> None:
        if dtype != "float64":
            raise InputError(
                f"the reference backend computes in float64 only, not {dtype}; "
                "leave --dtype out, or use --backend cpu"
            )
        self.problem, self.dtype = problem, dtype
        self.source_hash = hashlib.sha256(Path(functions.__file__).read_bytes()).hexdigest()[:16]

    def score(self, parameters: np.ndarray) -> Score:
        """Return costs and statuses; see `Scorer.score`."""
        cost = self.problem.cost(_checked(parameters, self.problem))
        status = np.where(np.isfinite(cost), OK, NOT_FINITE).astype(np.int8)
        return Score(np.where(status == OK, cost, np.inf), status)


class _GeneratedScorer(Scorer):
    """Code that is generated for one function and one precision."""

    def __init__(self, problem: FunctionProblem, dtype: str = "float64") -> None:
        self.problem, self.dtype = problem, dtype
        self.source = FunctionSource(problem, dtype, self.backend)
        self.source_text, self.source_hash = self.source.text, self.source.hash

    def rescore(self, parameters: Any) -> Score:
        """Return costs and statuses in float64; see `Scorer.rescore`."""
        return self._exact.score(parameters)

    @cached_property
    def _exact(self) -> Scorer:
        return self if self.dtype == "float64" else type(self)(self.problem)


class FunctionCpu(_GeneratedScorer):
    """Generated code, candidates side by side, all cores."""

    backend = "cpu"

    def __init__(self, problem: FunctionProblem, dtype: str = "float64") -> None:
        super().__init__(problem, dtype)
        self.n_threads = usable_cores()
        self.columns = np.ascontiguousarray(problem.columns, dtype)

    def score(self, parameters: np.ndarray) -> Score:
        """Return costs and statuses; see `Scorer.score`."""
        parameters = _checked(parameters, self.problem)
        cost = np.empty(parameters.shape[1])
        run, lanes = generated(self.source.text, "score"), self.source.lanes
        shared_kernel(run, parameters, [self.columns, cost], lanes, self.n_threads)
        status = np.where(np.isfinite(cost), OK, NOT_FINITE).astype(np.int8)
        cost[status != OK] = np.inf
        return Score(cost, status)


class FunctionCuda(_GeneratedScorer):
    """Generated CUDA: a thread for each candidate, or a warp where there are few.

    Raises: InputError when there is no GPU that can be used, and what to do.
    """

    backend = "cuda"

    def __init__(self, problem: FunctionProblem, dtype: str = "float64") -> None:
        self.xp = gpu.cupy()
        super().__init__(problem, dtype)

    def score(self, parameters: Any) -> Score:
        """Return costs and statuses; see `Scorer.score`.

        CuPy parameters are scored without waiting for the GPU and give CuPy arrays.
        """
        xp, on_device = self.xp, isinstance(parameters, self.xp.ndarray)
        parameters = _checked(parameters, self.problem, xp if on_device else np)
        n = parameters.shape[1]
        with gpu.gpu_errors():
            cost, status = xp.empty(n), xp.empty(n, dtype=np.int8)
            by_warps = n < _FEW
            kernel = self._kernels[by_warps]
            a_block = _BLOCK // 32 if by_warps else _BLOCK
            if n:
                arguments = (xp.asarray(parameters), np.int32(n), self.columns, cost, status)
                kernel((-(-n // a_block),), (_BLOCK,), arguments)
            if on_device:
                return Score(cost, status)
            return Score(cost.get(), status.get())

    @cached_property
    def columns(self) -> Any:
        """Return inputs and targets on the device; one zero where there are none."""
        columns = self.problem.columns
        columns = columns if columns.size else np.zeros((1, 1))
        return self.xp.asarray(np.ascontiguousarray(columns, self.dtype))

    @cached_property
    def _kernels(self) -> tuple[Any, Any]:
        """Return the kernel with a thread for each candidate, and that with a warp."""
        module = gpu.compile_cuda(self.source.text, (), f"{self.problem.model.name}.cu")
        return module.kernel("scoreByThreads"), module.kernel("scoreByWarps")


def _checked(parameters: Any, problem: FunctionProblem, xp: Any = np) -> Any:
    """Return parameters as contiguous float64."""
    parameters = xp.ascontiguousarray(parameters, dtype=np.float64)
    n_parameters = len(problem.model.parameters)
    if parameters.ndim != 2 or parameters.shape[0] != n_parameters:
        raise ValueError(
            f"parameters must be ({n_parameters}, n_candidates), not {parameters.shape}"
        )
    return parameters


_KINDS: dict[str, Any] = {
    "reference": FunctionReference,
    "cpu": FunctionCpu,
    "cuda": FunctionCuda,
}


def make_scorer(
    problem: FunctionProblem, backend: str = "auto", dtype: str = "float64", path: str = "auto"
) -> Scorer:
    """Make a scorer for a function; arguments and errors as in `scoring.scorer.make_scorer`."""
    backend = chosen_backend(backend, dtype)
    if path != "auto":
        raise InputError("a function has no paths; leave --path out")
    scorer: Scorer = _KINDS[backend](problem, dtype)
    return scorer
