"""The voltage of a cell on a GPU: parameter sets in chunks that its memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from channelfit.cells.cuda_kernel import THREADS, CellCudaSource
from channelfit.cells.membrane import Membrane
from channelfit.reading.memory import SHARE, check
from channelfit.scoring.machine import gpu


class CellOnGpu:
    """A membrane on the current GPU. Raises: InputError when there is none that can be used."""

    def __init__(self, membrane: Membrane) -> None:
        self.xp, self.membrane = gpu.cupy(), membrane
        self._kernels: dict[int, tuple[CellCudaSource, gpu.CudaModule]] = {}

    def run(
        self,
        name: str,
        parameters: np.ndarray,
        arguments: Sequence[Any],
        segments: int,
        trace: np.ndarray,
        status: np.ndarray,
    ) -> None:
        """Fill traces and statuses as the CPU's kernel of this name does.

        Arguments:
            parameters: (n_parameters, n_sets).
            arguments: of the CPU's kernel, from the stimulus to the first voltage.
            segments: of a cable; 0 for one compartment.
            trace: (n_rows, n_traces, n_times, n_sets). status: (n_sets,).

        Raises InputError: more than the GPU's memory can hold, or an error of CUDA.
        """
        xp, n_sets, n_sweeps = self.xp, parameters.shape[1], len(arguments[0])
        with gpu.gpu_errors():
            source, module = self._made(segments)
            kernel = module.kernel(name)
            stimulus, *own, start = (_for_kernel(xp, a) for a in arguments)
            kept = source.kept * n_sweeps if segments else 0
            each = 8 * (trace[..., 0].size + len(parameters) + kept)
            free = gpu.device().memory_free
            check(min(n_sets, THREADS), each, "parameter sets", key="sets", gpu_free=free)
            size = max(THREADS, int(SHARE * free / each) // THREADS * THREADS)
            for first in range(0, n_sets, size):
                some = slice(first, min(first + size, n_sets))
                shape = *trace.shape[:-1], some.stop - first
                blocks = -(-shape[-1] // THREADS)
                found, failed = xp.empty(shape), xp.empty((n_sweeps, shape[-1]), dtype=np.int8)
                memory = [xp.zeros(blocks * THREADS * kept)] if kept else []
                given = xp.asarray(np.ascontiguousarray(parameters[:, some]))
                sizes = np.int32(n_sweeps), np.int32(arguments[0].shape[1])
                words = (*map(np.int32, shape), given, stimulus, *sizes, *own, *memory, start)
                kernel((blocks, n_sweeps), (THREADS,), (*words, found, failed))
                trace[..., some] = found.get()
                status[some] = failed.get().max(axis=0)

    def _made(self, segments: int) -> tuple[CellCudaSource, gpu.CudaModule]:
        """Return text and kernels for so many segments, compiled once."""
        if segments not in self._kernels:
            source = CellCudaSource(self.membrane, segments)
            self._kernels[segments] = source, gpu.compile_cuda(source.text, (), "cell.cu")
        return self._kernels[segments]


def _for_kernel(xp: Any, value: Any) -> Any:
    """Return an array on the GPU, or a number in the type that the kernels declare."""
    if isinstance(value, np.ndarray):
        return xp.asarray(value)
    return np.int32(value) if isinstance(value, int) else np.float64(value)
