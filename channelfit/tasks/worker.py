"""Functions that run in a Dask worker: they accept a task set once, and compute tasks of it.

A worker accepts a task set only if it has the same code and libraries as the process that sends it:
its results could differ otherwise. It computes one task at a time, with as many cores as Dask has
given it threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import platform
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import channelfit
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import processor, versions
from channelfit.scoring.machine.threads import keep_to
from channelfit.tasks.executor import TaskSet, TaskSetWithArguments
from channelfit.tasks.result_store import Arrays

#: How many task sets a worker holds; the least recently used one is dropped.
MOST_TASK_SETS = 4
#: The default of Dask's `distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_`, and two
#: constants of malloc.h.
_TRIM_OF_DASK, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = "65536", -1, -3


@dataclass(frozen=True)
class Worker:
    """A worker process that has accepted a task set.

    Attributes:
        address: of the worker in Dask. host: the computer.
        gpu: the name and the bus of its GPU; empty if the task set does not need one.
        processor: the processor for which its kernels are compiled.
    """

    address: str
    host: str
    gpu: str
    processor: str


@dataclass(frozen=True)
class Refused:
    """A worker that has refused a task set. why: the differences, in words."""

    address: str
    host: str
    why: str


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a worker to a task: a result, an error, or `unknown`.

    Attributes:
        arrays: the result. seconds: how long it took.
        error: the exception that the task raised. place: its traceback as text.
        unknown: whether the worker does not have the task set.
    """

    address: str
    seconds: float = 0.0
    arrays: Arrays | None = None
    error: Exception | None = None
    place: str = ""
    unknown: bool = False


@cache
def own_code() -> str:
    """Return a hash of all modules of channelfit, which tells two installations apart."""
    root, found = Path(channelfit.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


@cache
def software(on_gpu: bool) -> Mapping[str, str]:
    """Return the versions of all software that a result depends on, by name.

    Raises: InputError if a GPU is needed and there is none.
    """
    found = {f"version of {name}": version for name, version in versions(on_gpu).items()}
    return MappingProxyType({**found, "channelfit's own code": own_code()})


_task_sets: dict[str, TaskSet] = {}
_one_at_a_time = threading.Lock()


def accept(name: str, tasks: bytes, expected: Mapping[str, str], on_gpu: bool) -> Worker | Refused:
    """Accept a task set, or refuse it because the software differs.

    Arguments:
        name: a hash of the task set.
        tasks: the task set, pickled by the process that sends it.
        expected: the `software` of that process.
        on_gpu: whether the tasks are computed on a GPU.
    """
    dask_worker = _dask_worker()
    address, host = dask_worker.address, platform.node()
    keep_freed_memory()
    try:
        own = software(on_gpu)
    except InputError as error:
        return Refused(address, host, str(error))
    differences = [
        f"{part} is {own.get(part, 'not there')}, and {version} is expected"
        for part, version in expected.items()
        if own.get(part) != version
    ]
    if differences:
        return Refused(address, host, "; ".join(differences))
    with _one_at_a_time:
        keep_to(dask_worker.state.nthreads)
        _task_sets.pop(name, None)
        while len(_task_sets) >= MOST_TASK_SETS:
            del _task_sets[next(iter(_task_sets))]
        _task_sets[name] = pickle.loads(tasks)
    device = _gpu() if on_gpu else ""
    return Worker(address, host, device, processor())


def keep_freed_memory() -> None:
    """Let the C library reuse freed memory, as it does without Dask.

    Dask starts workers with a setting of glibc that returns freed memory to the system at once. The
    kernel then clears every page of an array anew, which for arrays of some megabytes that are made
    and freed all the time takes longer than the computation. C libraries other than glibc do not
    know the setting, and a setting that the user has chosen is left alone.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != _TRIM_OF_DASK or sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that is accepted
        library.mallopt(_M_TRIM_THRESHOLD, 2**29)


def compute(name: str, parts: list[str | int], arguments: bytes | None = None) -> Answer:
    """Compute the task with this key, of a task set that this process has accepted.

    Arguments:
        name: a hash of the task set.
        parts: of the key.
        arguments: of the task, pickled; None for a task set without arguments.
    """
    address = _dask_worker().address
    with _one_at_a_time:
        if name not in _task_sets:
            return Answer(address, unknown=True)
        tasks = _task_sets[name] = _task_sets.pop(name)  # now the most recently used one
        began = time.perf_counter()
        try:
            key = tuple(parts)
            if arguments is None:
                arrays = tasks.compute(key)
            else:
                arrays = cast(TaskSetWithArguments, tasks).compute(key, pickle.loads(arguments))
        except Exception as error:
            place = "".join(traceback.format_exception(error))
            return Answer(address, error=_sendable(error), place=place)
        return Answer(address, time.perf_counter() - began, arrays)


def _dask_worker() -> Any:
    from distributed import get_worker  # optional, and there where this is called

    return get_worker()


def _sendable(error: Exception) -> Exception:
    """Return the error, or one with the same text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _gpu() -> str:
    """Return the name and the bus of the GPU in use; the bus tells two of one model apart."""
    runtime = gpu.cupy().cuda.runtime
    with gpu.gpu_errors():
        return f"{gpu.device().name} at {runtime.deviceGetPCIBusId(runtime.getDevice())}"
