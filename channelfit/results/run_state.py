"""`state.json` of a run folder: whether its run goes on, how far it is, and how it has ended.

The file is there from the first second of a run, and is written anew about once a second and when
the run ends. A run that was killed leaves a file that says that it is running; that its process is
gone is seen by `still_runs`. A process number alone is not enough, since a later process may get
the same one, so the identity of a process includes the moment of its start. A process on another
computer, or within another container, cannot be seen from here.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit import __version__

if TYPE_CHECKING:
    from channelfit.model.channel import Parameter, Tie

#: The name of the file in a run folder, and that of the file by which a run claims the folder.
STATE, CLAIM = "state.json", ".running"
#: The states of a run.
RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"


class RunState:
    """The content of `state.json`.

    Attributes:
        content: by key, as it stands in the file. Among the keys are `state` (one of the four words
            above), `reason` (why it ended), `stage` (the work that is being done), `process`
            (`this_process`), `command`, `started`, `updated`, and numbers that tell how far the run
            is, such as `seconds_left`. A fit adds `stop` (its stop rules), the numbers of the last
            generation, the best `parameters` so far, and under `logarithmic` the names of the
            parameters with a logarithmic scale.
    """

    def __init__(self) -> None:
        now = moment()
        self.content: dict[str, Any] = {
            "state": RUNNING,
            "stage": "reading the files",
            "started": now,
            "updated": now,
            "process": this_process(),
            "command": list(sys.argv),
            "directory": current_folder(),
            "version": __version__,
        }

    def end(self, state: str, reason: str, **news: Any) -> None:
        """Set how the run ended, and other keys of the content."""
        self.content |= {"state": state, "reason": reason, "stage": "", "seconds_left": None}
        self.content |= news

    def text(self) -> str:
        """Return the text of the file: JSON in ASCII, in which infinities and NaN are null."""
        self.content["updated"] = moment()
        return json.dumps(plain(self.content), indent=1, allow_nan=False) + "\n"


def parameter_row(
    parameter: Parameter | Tie, value: float, true_value: float | None = None
) -> dict[str, Any]:
    """Return a parameter as it stands in the files of a run: value, unit and range.

    Arguments:
        true_value: with which the data were simulated; None where they were not.
    """
    row: dict[str, Any] = {"value": float(value), "unit": parameter.unit}
    if true_value is not None:
        row["true_value"] = true_value
    return row | {"lower": parameter.lower, "upper": parameter.upper}


def current_folder() -> str:
    """Return the current folder; an empty text where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def moment(precision: str = "milliseconds") -> str:
    """Return the present date and time with the zone of this computer, ISO 8601.

    Arguments:
        precision: as the `timespec` of `datetime.isoformat`.
    """
    return datetime.now().astimezone().isoformat(timespec=precision)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: infinities and NaN become None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value


def json_text(data: object) -> str:
    """Return the text of a file of results: strict JSON, in which infinities and NaN are null."""
    return json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
