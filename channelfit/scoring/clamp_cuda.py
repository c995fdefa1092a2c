"""Scores, traces and derivatives of a clamped channel on a GPU; see `kernels.clamp_cuda`."""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.clamp import ClampScorer, Laid, Raw
from channelfit.scoring.kernels.clamp_cuda import CLAMP_SWEEPS, ClampCudaSource
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import Linearization, Score

_THREADS = 64
#: Candidates of one launch, values alone and with derivatives: bounds the memory of threads.
_CHUNK, _CHUNK_BY = 1 << 17, 1 << 14


class ClampCudaScorer(ClampScorer):
    """As on the CPU, with a thread for each candidate; in float64.

    Parameters in a CuPy array give CuPy arrays, though meshes are chosen on the host.
    """

    backend = "cuda"
    source_kind = ClampCudaSource

    def __init__(self, problem: Problem, dtype: str = "float64", path: str = "auto") -> None:
        super().__init__(problem, dtype, path)
        self.xp = gpu.cupy()
        self._modules: dict[str, gpu.CudaKernel] = {}
        self._arrays: dict[tuple[int, bool], list[Any]] = {}

    def fix_jobs(self, n: int) -> bool:
        return True  # one job each, and each candidate has its own mesh

    def score(self, parameters: Any) -> Score:
        """Return cost and status, on the GPU if the parameters are."""
        found = super().score(to_host(parameters))
        return Score(*self._as_given(parameters, found.cost, found.status))

    def linearize(self, parameters: Any) -> Linearization:
        """Return cost, status, gradient and Hessian, on the GPU if the parameters are."""
        found = super().linearize(to_host(parameters))
        arrays = found.cost, found.status, found.gradient, found.hessian
        return Linearization(*self._as_given(parameters, *arrays))

    def _as_given(self, parameters: Any, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Return arrays on the GPU if the parameters are there, else as they are."""
        on_device = self.xp is not np and isinstance(parameters, self.xp.ndarray)
        return tuple(self.xp.asarray(array) for array in arrays) if on_device else arrays

    def _launched(self, derived: bool, parameters: np.ndarray, level: int, tracing: bool) -> Raw:
        source = self._differentiated if derived else self.source
        chunk = _CHUNK_BY if derived else _CHUNK
        n = parameters.shape[1]
        parts = [
            self._chunk(source, parameters[:, a : a + chunk], level, tracing)
            for a in range(0, n, chunk)
        ]
        if len(parts) == 1:
            return parts[0]
        return Raw(*(np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)))

    def _chunk(
        self, source: ClampCudaSource, parameters: np.ndarray, level: int, tracing: bool
    ) -> Raw:
        xp, n, n_free = self.xp, parameters.shape[1], len(source.step.free)
        mesh = self.grid(level, not tracing)
        with gpu.gpu_errors():
            cost, error, status = xp.zeros(n), xp.zeros(n), xp.zeros(n, dtype=np.int8)
            trace = xp.empty((mesh.grid.times.size, n)) if tracing else gpu.NULL
            gradient = xp.zeros((n_free, n)) if n_free else gpu.NULL
            hessian = xp.zeros((n_free, n_free, n)) if n_free else gpu.NULL
            kept = xp.empty(len(mesh.grid.holding) * source.kept * n)
            self._kernel(source)(
                (-(-n // _THREADS),),
                (_THREADS,),
                (
                    xp.asarray(np.ascontiguousarray(parameters)),
                    np.int32(n),
                    *self._of_the_mesh(mesh, level, tracing),
                    cost,
                    status,
                    error,
                    trace,
                    gradient,
                    hessian,
                    kept,
                ),
            )
            return Raw(
                to_host(cost),
                to_host(status),
                to_host(error),
                to_host(trace) if tracing else np.empty((0, n)),
                to_host(gradient) if n_free else np.empty((0, n)),
                to_host(hessian) if n_free else np.empty((0, 0, n)),
            )

    def _kernel(self, source: ClampCudaSource) -> gpu.CudaKernel:
        kernel = self._modules.get(source.text)
        if kernel is None:
            kernel = gpu.compile_cuda(source.text).kernel(CLAMP_SWEEPS)
            self._modules[source.text] = kernel
        return kernel

    def _of_the_mesh(self, mesh: Laid, level: int, tracing: bool) -> list[Any]:
        """Return the kernel's arguments for the mesh; arrays go to the device once."""
        grid = mesh.grid
        if (level, tracing) not in self._arrays:
            host = [grid.holding, grid.sweeps, mesh.steps, grid.kinds, mesh.rests, mesh.modes]
            host += [grid.times, grid.data, grid.weight, *mesh.samples[:3]]
            self._arrays[level, tracing] = [self.xp.asarray(array) for array in host]
        holding, sweeps, steps, kinds, rests, *others = self._arrays[level, tracing]
        return [
            holding,
            np.int32(len(grid.holding)),
            sweeps,
            np.int32(len(grid.sweeps)),
            steps,
            np.int32(mesh.steps.shape[1]),
            kinds,
            rests,
            np.int32(mesh.rests.shape[1]),
            *others,
        ]
