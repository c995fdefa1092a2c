"""Checks, before the work begins, whether a run fits into memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from channelfit.reading.errors import InputError

#: Arrays of one number a node that a scheme on the processor needs beside the frames, at most:
#: v and w, their copies while steps are tried, earlier states of the step control.
_ARRAYS = 20
#: The share of the free memory that a run may take.
_SHARE = 0.9
#: Files of a container's memory: its limit, what it uses, and the name of the part of that which is
#: a cache and gives way.
_CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def check_host(n_frames: int, n_cables: int, n_nodes: int) -> None:
    """Refuses frames of v and w that the memory of this machine cannot hold.

    Raises:
        InputError: what is needed, what is free, and which options make it less.
    """
    needed = 8 * n_cables * n_nodes * (2 * n_frames + _ARRAYS)
    _check(needed, available(), f"{n_frames} frames of ", n_cables, n_nodes, "this machine")


def check_device(bytes_a_node: int, free: int, n_cables: int, n_nodes: int) -> None:
    """Refuses cables that the memory of a GPU cannot hold.

    Arguments:
        bytes_a_node: what a run takes of the device's memory. free: bytes that are not in use.

    Raises:
        InputError: what is needed, what is free, and which options make it less.
    """
    _check(n_cables * n_nodes * bytes_a_node, free, "", n_cables, n_nodes, "the GPU")


def _check(
    needed: int, free: int | None, frames: str, n_cables: int, n_nodes: int, where: str
) -> None:
    if free is None or needed <= _SHARE * free:
        return
    cables = "a cable" if n_cables == 1 else f"{n_cables:,} cables"
    less = "fewer --frames or --nodes" if frames else "fewer --nodes"
    less += "" if n_cables == 1 else " or fewer cables at once"
    raise InputError(
        f"{frames}{cables} of {n_nodes:,} nodes need {_size(needed)}, and {where} has "
        f"{_size(free)} free; give {less}",
        key="memory",
    )


def _size(n_bytes: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{min(n_bytes, 10**30) / size:,.1f} {unit}"
    return f"{n_bytes:,} bytes"


def available() -> int | None:
    """The bytes that a program may still take here; None where the system does not say."""
    if sys.platform == "win32":
        return _on_windows()
    free = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:")]
    except OSError:  # not Linux: the system says how much memory there is, not how much is free
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used, cache in _CGROUPS:
        free += _left_in(Path("/sys/fs/cgroup"), limit, used, cache)
    return max(min(free), 0) if free else None


def _left_in(folder: Path, limit: str, used: str, cache: str) -> list[int]:
    """The bytes that the limit of a container leaves, in a list; an empty list without a limit."""
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
        stat = (folder / limit).with_name("memory.stat").read_text().split()
    except (OSError, ValueError):  # no such file, or the word "max"
        return []
    return [left + int(stat[stat.index(cache) + 1]) if cache in stat else left]


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
    told = windows.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.free) if told else None
