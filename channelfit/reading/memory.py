"""The memory that is free, checks of the memory that a computation needs, and its collector.

Work whose size a user's file or option decides is measured before it begins.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from channelfit.reading.errors import InputError

#: The share of the free memory that a run may take.
SHARE = 0.9
#: More of anything than there can be: no count in a file is above.
MOST = 2**64
#: The address space, in bytes, that the libraries of a fit are loaded and compile in: 670 MB.
_LIBRARIES = 10**9
#: Bytes that each thread takes besides: those of BLAS, which starts one on each core, and our own.
_A_THREAD = 250 * 10**6
#: Messages of the loader of libraries, the system and Python when memory has run out.
_RAN_OUT = ("failed to map segment", "Cannot allocate memory", "can't start new thread")
#: Files of a container's memory: its limit, its use, and the name of the part of that which is
#: a cache and gives way.
_CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def check(
    n: int,
    bytes_each: int,
    things: str,
    file: str | os.PathLike[str] | None = None,
    key: str | None = None,
    gpu_free: int | None = None,
) -> None:
    """Refuse work that the memory of this machine, or of its GPU, cannot hold.

    Arguments:
        n: of how many things the work consists. bytes_each: the memory for one of them.
        things: their name, in the plural.
        file, key: the place that asks for the work.
        gpu_free: the free bytes of the GPU, for work that lies there; None for work that does not.

    Raises InputError: with the memory that is needed and free, and how many would fit.
    """
    free, place = (available(), "machine") if gpu_free is None else (gpu_free, "GPU")
    if free is None or n * bytes_each <= SHARE * free:
        return
    raise InputError(
        f"{n:,} {things} need {size(n * bytes_each)} of memory, and this {place} has {size(free)} "
        f"free; {int(SHARE * free / bytes_each):,} would fit",
        file,
        key,
    )


def check_address_space() -> None:
    """Raise InputError where the address space is too small to load the libraries.

    Some of them then end the process, or try for ever. Within a limit that leaves no room for the
    threads of BLAS, the environment requests a single one, which BLAS reads when it is loaded.

    Raises InputError: with the limit and the memory that is needed.
    """
    limit = _address_space()
    if limit is not None and limit < _LIBRARIES:
        raise InputError(
            f"this process may use {size(limit)} of address space (ulimit -v), and needs "
            f"{size(_LIBRARIES)}"
        )
    if limit is not None and limit < _LIBRARIES + _A_THREAD * (os.cpu_count() or 1):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def room_for_a_thread() -> bool:
    """Return whether one more thread leaves room for libraries that are loaded later."""
    limit = _address_space()
    return limit is None or all(left > _LIBRARIES // 2 + _A_THREAD for left in _left_of(limit))


def ran_out(error: BaseException | None) -> str:
    """Return the message of an error, or of its cause, that says that memory has run out.

    A library that cannot be loaded for want of memory is an ImportError, for instance, whose reason
    may stand in the error before it. The text is empty where nothing is said of memory.
    """
    while error is not None:
        if isinstance(error, MemoryError):
            return str(error) or "nothing is left"
        for line in str(error).splitlines():
            if any(words in line for words in _RAN_OUT):
                return line
        error = error.__cause__ or error.__context__
    return ""


def _address_space() -> int | None:
    """Return the bytes of address space that this process may use; None where there is no limit."""
    if sys.platform == "win32":
        return None
    import resource  # Windows has none

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def size(n_bytes: int) -> str:
    """Return bytes in words, such as 1.2 GB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= factor:
            return f"{min(n_bytes, 10**30) / factor:,.1f} {unit}"
    return f"{n_bytes:,} bytes"


def available() -> int | None:
    """Return the bytes that a program may still take here; None where the system does not say."""
    if sys.platform == "win32":
        return _on_windows()
    free = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:")]
    except OSError:  # not Linux: the system says how much memory there is, not how much is free
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    space = _address_space()
    if space is not None:
        free += _left_of(space)
    for limit, used, cache in _CGROUPS:
        free += _left_in(Path("/sys/fs/cgroup"), limit, used, cache)
    return max(min(free), 0) if free else None


def _left_of(space: int) -> list[int]:
    """Return the unused bytes of a limited address space, in a list; empty where unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux
        return []
    return [space - pages * os.sysconf("SC_PAGE_SIZE")]


def _left_in(folder: Path, limit: str, used: str, cache: str) -> list[int]:
    """Return the bytes that a container's limit leaves, in a list; empty without a limit."""
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
        stat = (folder / limit).with_name("memory.stat").read_text().split()
    except (OSError, ValueError):  # no such file, or the word "max"
        return []
    return [left + int(stat[stat.index(cache) + 1]) if cache in stat else left]


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Switch the collector of cycles off, which would search lasting objects over and over."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _on_windows() -> int | None:
    import ctypes  # needed on Windows only

    class Status(ctypes.Structure):
        """MEMORYSTATUSEX."""

        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong)
            for name in ("total", "free", "page", "page_free", "space", "space_free", "extended")
        ]

    status = Status(length=ctypes.sizeof(Status))
    windows = getattr(ctypes, "windll")  # noqa: B009 - other platforms' stubs lack it
    succeeded = windows.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.free) if succeeded else None
