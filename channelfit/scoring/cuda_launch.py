"""The shape of launches on a GPU: threads of a block, and jobs that a candidate is cut into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning

_MOST_JOBS = 64


def jobs_that_fill(threads: int, n_candidates: int) -> int:
    """Return how many jobs give a population so many threads: a power of two, 64 at most."""
    return int(min(_MOST_JOBS, 1 << max(0, -(-threads // n_candidates) - 1).bit_length()))


def rounded(n_slots: int) -> int:
    """Return a number of state slots, rounded up so that few different texts are compiled."""
    return -(-n_slots // 16) * 16


def with_level(fields: Sequence[tuple[str, str]], levels: np.ndarray) -> np.dtype[Any]:
    """Return the type of records that begin with a level `v`, as `RunTree.levels` has them."""
    return np.dtype([("v", "f8", levels.shape[1:]), *fields])


@dataclass(frozen=True, eq=False)
class Program:
    """The tables of a schedule, on the host and as arrays of the GPU, and kernels by name."""

    tables: Any
    arrays: tuple[Any, ...]
    kernels: dict[str, gpu.CudaKernel]


class Launched(ABC):
    """Kernels of one problem, launched with as many threads as fill the GPU.

    Attributes:
        source: the generated text, with its `hash`.
        kernel_name: the name by which `channelfit tune` keeps a number of threads.
        thread_choices: numbers of threads in a block; the first that fills the GPU best is taken.
        waves: how many times over a population is to fill the GPU.
        n_jobs: the jobs of every launch; None for as many as fill the GPU.
    """

    source: Any
    kernel_name: str
    thread_choices: tuple[int, ...]
    waves = 1
    n_jobs: int | None = None

    @property
    @abstractmethod
    def typical_kernel(self) -> gpu.CudaKernel:
        """The kernel by which the GPU is filled."""

    @property
    def most_threads(self) -> int:
        """The most threads that a block can have, with the registers that the kernel takes."""
        return int(self.typical_kernel.max_threads_per_block)

    @cached_property
    def _threads(self) -> int:
        """The threads of a block that `channelfit tune` found, or else that fill the GPU best."""
        found = tuning.remembered(self.source.hash, gpu.device().name, self.kernel_name)
        return self._filling_threads() if found is None else found.threads

    def _filling_threads(self) -> int:
        """Return the number of threads in a block that fills the GPU best."""
        choices = [t for t in self.thread_choices if t <= self.most_threads]
        return max(choices, key=lambda t: gpu.occupancy(self.typical_kernel, t).fraction)

    def _jobs(self, n_threads: int) -> int:
        """Return the number of jobs with which so many threads each fill the GPU."""
        if self.n_jobs is not None:
            return self.n_jobs
        return jobs_that_fill(self.waves * self._resident, n_threads)

    @cached_property
    def _resident(self) -> int:
        """The number of threads that run at once."""
        blocks = gpu.occupancy(self.typical_kernel, self._threads).blocks
        return max(1, blocks) * self._threads * gpu.device().n_multiprocessors
