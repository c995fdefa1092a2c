"""What the process of a Dask worker does: it takes a work once, and does pieces of it.

A worker takes a work only if it has the same code and the same libraries as whoever sends it, since
its results could differ otherwise. It does one piece at a time with as many cores as Dask has given
it threads.
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
from channelfit.pieces.kept import Arrays
from channelfit.pieces.work import Telling, Work
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import processor, versions
from channelfit.scoring.machine.threads import keep_to, usable_cores

#: How many works a worker holds; the one that was used longest ago goes.
MOST_WORKS = 4
#: Dask's `distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_`, and names of malloc.h.
_TRIM_OF_DASK, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = "65536", -1, -3


@dataclass(frozen=True)
class Worker:
    """What a process is that has taken a work.

    Attributes:
        address: by which Dask knows it; host and process: where it runs.
        cores: how many a piece may use.
        gpu: the name and the identity of the GPU that it computes on; empty where the work does
            not ask for one.
        processor: for which its kernels are compiled.
    """

    address: str
    host: str
    process: int
    cores: int
    gpu: str
    processor: str


@dataclass(frozen=True)
class Refused:
    """A worker that does not take a work. why: what differs, in words."""

    address: str
    host: str
    why: str


@dataclass(frozen=True, eq=False)
class Answer:
    """What came of a piece on a worker: one of these.

    Attributes:
        arrays: the result; seconds: how long it took.
        error: what the piece raised; place: the lines of its traceback.
        unknown: whether the worker does not have the work.
    """

    address: str
    seconds: float = 0.0
    arrays: Arrays | None = None
    error: Exception | None = None
    place: str = ""
    unknown: bool = False


@cache
def own_code() -> str:
    """A hash of all of channelfit's modules, by which two installations are the same or not."""
    root, found = Path(channelfit.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


@cache
def software(on_gpu: bool) -> Mapping[str, str]:
    """All of the software that a result depends on, by name.

    Raises: InputError where a GPU is needed and there is none.
    """
    found = {f"version of {name}": version for name, version in versions(on_gpu).items()}
    return MappingProxyType({**found, "channelfit's own code": own_code()})


_works: dict[str, Work] = {}
_one_at_a_time = threading.Lock()


def take(name: str, work: bytes, expected: Mapping[str, str], on_gpu: bool) -> Worker | Refused:
    """Takes a work, or refuses it.

    Arguments:
        name: a hash of the work.
        work: pickled by the process that sends it.
        expected: the `software` there.
        on_gpu: whether the work computes on a GPU.
    """
    dask_worker = _dask_worker()
    address, host = dask_worker.address, platform.node()
    keep_freed_memory()
    try:
        now = software(on_gpu)
    except InputError as error:
        return Refused(address, host, str(error))
    told = [
        f"{what} is {now.get(what, 'not there')}, and {wanted} is expected"
        for what, wanted in expected.items()
        if now.get(what) != wanted
    ]
    if told:
        return Refused(address, host, "; ".join(told))
    with _one_at_a_time:
        keep_to(dask_worker.state.nthreads)
        _works.pop(name, None)
        while len(_works) >= MOST_WORKS:
            del _works[next(iter(_works))]
        _works[name] = pickle.loads(work)
    device = _gpu() if on_gpu else ""
    return Worker(address, host, os.getpid(), usable_cores(), device, processor())


def keep_freed_memory() -> None:
    """Lets the C library keep what is freed, as it would without Dask.

    Dask starts workers with a setting of glibc by which freed memory goes back to the system at
    once. Arrays of some megabytes, made and freed all the time, then cost more than what is
    computed in them: each of their pages is asked for and cleared anew. Other libraries than glibc
    do not know the setting, and one that the user has chosen stays.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != _TRIM_OF_DASK or sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that is accepted
        library.mallopt(_M_TRIM_THRESHOLD, 2**29)


def do(name: str, parts: list[str | int], told: bytes | None = None) -> Answer:
    """Does the piece whose key has these parts, of a work that this process has taken.

    Arguments:
        told: pickled arrays, for a work whose pieces are told something.
    """
    address = _dask_worker().address
    with _one_at_a_time:
        if name not in _works:
            return Answer(address, unknown=True)
        work = _works[name] = _works.pop(name)  # the last one used
        began = time.perf_counter()
        try:
            key = tuple(parts)
            if told is None:
                arrays = work.do(key)
            else:
                arrays = cast(Telling, work).do(key, pickle.loads(told))
        except Exception as error:
            place = "".join(traceback.format_exception(error))
            return Answer(address, error=_sendable(error), place=place)
        return Answer(address, time.perf_counter() - began, arrays)


def _dask_worker() -> Any:
    from distributed import get_worker  # optional, and there where this is called

    return get_worker()


def _sendable(error: Exception) -> Exception:
    """The error, or its words where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _gpu() -> str:
    """The name and the bus of the GPU in use, which tells two alike in one machine apart."""
    runtime = gpu.cupy().cuda.runtime
    with gpu.gpu_errors():
        return f"{gpu.device().name} at {runtime.deviceGetPCIBusId(runtime.getDevice())}"
