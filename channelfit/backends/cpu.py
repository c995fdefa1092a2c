"""The CPU backend: generated Numba code, candidates side by side in vector lanes, all cores."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np

from channelfit.backends import NOT_FINITE, OK, Score
from channelfit.cache import cache_folder
from channelfit.codegen.numba_source import PACKED_ARGUMENTS, NumbaSource
from channelfit.errors import InputError
from channelfit.packing import Packed
from channelfit.problem import Problem

_FIELDS = {"nodes": "nodes_mV", "v_samples": "sample_mV"}
_CHUNKS_PER_THREAD = 8


class CpuScorer:
    """Scores and simulates with compiled code; see `backends.Scorer`.

    The first use of a new model compiles (seconds); the machine code is kept in the user's cache
    folder and found again by the hash of its source.
    """

    backend = "cpu"

    def __init__(self, problem: Problem, dtype: str = "float64") -> None:
        self.problem, self.dtype = problem, dtype
        self.source = NumbaSource(problem.model, dtype)
        self.source_hash = hashlib.sha256(self.source.text.encode()).hexdigest()[:16]
        self.module = _compiled(self.source.text)
        self.n_threads = _usable_cores()

    def score(self, parameters: np.ndarray) -> Score:
        """Cost (n_candidates,) pA^2 and status of parameters (n_parameters, n_candidates)."""
        packed = self.problem.scored
        if packed.total_weight <= 0:
            raise InputError("nothing to score: no recording has a sample of weight above 0")
        parameters = _checked(parameters, len(self.problem.model.parameters))
        data = packed.data_pA.astype(self.dtype)
        cost, status = self._run(parameters, packed, data, np.empty((0, 0)))
        cost = (cost + packed.constant) / packed.total_weight
        status[(status == OK) & ~np.isfinite(cost)] = NOT_FINITE
        cost[status != OK] = np.inf
        return Score(cost, status)

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        """Currents, pA: per experiment (n_sweeps, n_times_max, n_candidates)."""
        packed = self.problem.simulated
        parameters = _checked(parameters, len(self.problem.model.parameters))
        out = np.empty((len(packed.sample_mV), parameters.shape[1]))
        _, status = self._run(parameters, packed, np.empty(0, self.dtype), out)
        out[:, status != OK] = np.nan
        return [gathered(out, places) for places in packed.outputs]

    def _run(
        self, parameters: np.ndarray, packed: Packed, data: np.ndarray, trace: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sums of squares and statuses, or traces where room for them is given.

        Threads share the blocks of lanes. Each block is computed whole by one thread, so the
        result does not depend on how many there are.
        """
        n = parameters.shape[1]
        cost, status = np.empty(n), np.empty(n, dtype=np.int8)
        arguments = [getattr(packed, _FIELDS.get(name, name)) for name in PACKED_ARGUMENTS]
        arguments += [data, cost, trace, trace.size > 0, status]
        n_blocks = -(-parameters.shape[1] // self.source.lanes)
        n_chunks = min(n_blocks, self.n_threads * _CHUNKS_PER_THREAD if self.n_threads > 1 else 1)
        edges = np.linspace(0, n_blocks, n_chunks + 1).astype(int).tolist()

        def run(first: int, last: int) -> None:
            self.module.runSweeps(parameters, first, last, *arguments)

        chunks = list(pairwise(edges))
        if chunks:
            run(*chunks.pop(0))  # compiles, once, before the threads start
        if not chunks:
            return cost, status
        with ThreadPoolExecutor(self.n_threads) as pool:
            futures = [pool.submit(run, *chunk) for chunk in chunks]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C: what has not begun need not be waited for
                pool.shutdown(cancel_futures=True)
                raise
        return cost, status


def gathered(out: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Currents (n_data, n_candidates) laid out as (n_sweeps, n_times_max, n_candidates)."""
    currents: np.ndarray = out[places]
    currents[places < 0] = np.nan
    return currents


def _checked(parameters: np.ndarray, n_parameters: int) -> np.ndarray:
    parameters = np.ascontiguousarray(parameters, dtype=float)
    if parameters.ndim != 2 or parameters.shape[0] != n_parameters:
        raise ValueError(
            f"parameters must be ({n_parameters}, n_candidates), not {parameters.shape}"
        )
    return parameters


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_lock = threading.Lock()


def _compiled(text: str) -> ModuleType:
    """The module of a generated source, imported from the cache folder."""
    import numba

    from channelfit.codegen import numba_math

    support = Path(numba_math.__file__).read_text(encoding="utf-8")
    key = "|".join((text, support, numba.__version__, sys.version, platform.machine()))
    name = f"channelfit_kernel_{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    with _lock:
        if name not in sys.modules:
            file = cache_folder() / "kernels" / name / "kernel.py"
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                partial = file.with_name(f"{os.getpid()}.partial")
                partial.write_text(text, encoding="utf-8")
                partial.replace(file)
            spec = importlib.util.spec_from_file_location(name, file)
            if spec is None or spec.loader is None:
                raise ImportError(f"{file} cannot be imported")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # Numba finds its cached code by the module's name
            spec.loader.exec_module(module)
        return sys.modules[name]
