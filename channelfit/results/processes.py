"""The identity of a process, and whether a process that wrote down its identity still runs.

A process number alone is not enough, since a later process may get the same one, so the identity
includes the moment of the start. A process on another computer, or within another container, cannot
be seen from here.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Of `/proc/N/stat`, counted after the name in brackets: the state, and the time of the start.
_STATE, _START = 0, 19
#: States of a process that has ended, though its parent has not asked how.
_GONE = ("Z", "X", "x")


def this_process() -> dict[str, Any]:
    """Return the identity of this process, as plain data for `still_runs`.

    Returns: `pid`, `started` (of the process, in words of the operating system that mean nothing
        but "the same" or "another") and `host`, the computer.
    """
    return process_of(os.getpid())


def process_of(pid: int) -> dict[str, Any]:
    """Return the identity of another process of this computer; see `this_process`."""
    return {"pid": pid, "started": _started(pid), "host": host()}


def still_runs(process: Mapping[str, Any]) -> bool | None:
    """Return whether a process still runs.

    Arguments:
        process: as `this_process` returned it; it comes from a file, and may have been changed.

    Returns: None where that cannot be seen from here, because the process is on another computer or
        the data describe none.
    """
    pid, started = process.get("pid"), process.get("started")
    if not isinstance(pid, int) or not 0 < pid < 2**31 or not started:
        return None
    if process.get("host") != host():
        return None
    return bool(_started(pid) == started)


def host() -> str:
    """Return the name of this computer, on Linux with the container of this process."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return platform.node()


def _started(pid: int) -> str:
    """Return when a process was started, in the system's words; empty where there is none."""
    if sys.platform == "win32":
        return _started_on_windows(pid)
    if sys.platform == "linux":
        return _started_on_linux(pid)
    command = ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(  # noqa: S603  (a fixed program, and a number)
            command, capture_output=True, text=True, env={"LC_ALL": "C"}, check=False
        )
    except OSError:
        return ""
    state, _, moment = done.stdout.strip().partition(" ")
    return "" if state.startswith(_GONE) else moment.strip()


def _started_on_linux(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    words = stat.rpartition(")")[2].split()  # the name of the program may hold brackets itself
    return "" if words[_STATE] in _GONE else f"{boot} {words[_START]}"


def _started_on_windows(pid: int) -> str:
    import ctypes  # its `windll` exists on Windows only

    kernel: Any = getattr(ctypes, "windll").kernel32  # noqa: B009  (mypy checks for Linux)
    limited_information, still_active = 0x1000, 259
    handle = kernel.OpenProcess(limited_information, False, pid)
    if not handle:
        return ""
    try:
        code = ctypes.c_ulong()
        times = [ctypes.c_ulonglong() for _ in range(4)]
        kernel.GetExitCodeProcess(handle, ctypes.byref(code))
        known = kernel.GetProcessTimes(handle, *(ctypes.byref(one) for one in times))
        return str(times[0].value) if known and code.value == still_active else ""
    finally:
        kernel.CloseHandle(handle)
