"""A second process, which reads foreign binary formats.

The libraries that read such formats trust what a file says of itself: one changed byte can make
them write outside their memory, take all of it, or never return. So they run in a second Python,
which is given one file at a time, a limit of time and, on Linux, a limit of memory. If it dies,
that is one message about one file.

It is sent the name of a reader and of a file as JSON. It answers with a line of JSON and the plain
bytes of the arrays: nothing that could be run. It is started with the first file, or before where
one is expected, kept for the next ones, because loading such a library takes longer than reading,
and ended when none comes.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, RLock, Timer
from typing import Any, BinaryIO

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError

#: Seconds that reading one file may take, that the process is kept without one, and that it
#: may take to end after it has closed its side.
SECONDS, _IDLE_SECONDS, _DYING_SECONDS = 120.0, 10.0, 30.0
#: The program of the second process. It imports from where this one does and, by -P, not from the
#: folder that the user is in.
_SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from channelfit.reading.second_process import serve; serve()"
)
#: The type in which numbers are sent, and the number of them that are received at once.
_BYTES, _PIECE = "<f8", 1_000_000


def read_in_process(
    reader: str, path: Path, format_name: str, seconds: float = SECONDS
) -> dict[str, np.ndarray | str]:
    """Read a file by a function that runs in the second process.

    Where the system starts no second process, the function runs in this one.

    Arguments:
        reader: "module:function" of channelfit. The function takes the path and returns arrays of
            real numbers by name, which arrive as float64; a text in place of an array says why
            what has this name cannot be used. It may raise `InputError`.
        path: the file.
        format_name: such as "a MATLAB file", for the message.
        seconds: how long the function may take.

    Raises InputError: what the function raised, or that the process died or took too long, which is
    the fault of the file.
    """
    global _idle
    with _lock:
        process = _process()
        if process is None:
            return dict(_called(reader, path))
        late = Event()

        def ring() -> None:
            late.set()
            process.kill()

        alarm = _in(seconds, ring)
        try:
            answer = _exchange(process, reader, path)
        except (OSError, EOFError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_DYING_SECONDS)
            end()
            code = process.returncode
            why = f"took more than {seconds:g} s" if late.is_set() else f"ended with {code}"
            raise InputError(
                f"not {format_name} that can be used: the process that read it {why}", path
            ) from None
        except BaseException:  # such as Ctrl-C: the answer may be half read
            end()
            raise
        finally:
            alarm.cancel()
            _idle = _in(_IDLE_SECONDS, end)
    if isinstance(answer, InputError):
        raise answer
    return answer


def load(library: str) -> None:
    """Have the second process load a library while this one does other work, for files to come."""
    global _idle
    with _lock:
        process = _process()
        if process is not None and process.stdin is not None:
            with suppress(OSError):  # if it has died, a new one reads the file
                process.stdin.write(json.dumps([library, ""]).encode() + b"\n")
                process.stdin.flush()
            _idle = _in(_IDLE_SECONDS, end)


def end() -> None:
    """End the second process, if there is one."""
    global _child
    with _lock:
        child, _child = _child, None
        if child is None or child[0] != os.getpid():  # a fork leaves its parent's alone
            return
        child[1].kill()
        child[1].wait()
        for pipe in (child[1].stdin, child[1].stdout):
            if pipe is not None:
                with suppress(OSError):  # a request that was not read
                    pipe.close()


def give_up() -> None:
    """Kill the second process, so that another thread that waits for it gets an `InputError`."""
    if _child is not None and _child[0] == os.getpid():
        _child[1].kill()


def own_group() -> dict[str, Any]:
    """Return the arguments of `Popen` for a process that Ctrl-C does not reach."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"process_group": 0}


# --- this side ------------------------------------------------------------------------------------

#: The process, and the one that has started it.
_child: tuple[int, subprocess.Popen[bytes]] | None = None
_idle: Timer | None = None
_lock = RLock()
atexit.register(end)


def _process() -> subprocess.Popen[bytes] | None:
    """Return the second process, started where it does not run; None where that is not possible."""
    global _child
    if _idle is not None:
        _idle.cancel()
    if _child is not None and _child[0] == os.getpid() and _child[1].poll() is None:
        return _child[1]
    end()
    try:
        process = subprocess.Popen(  # noqa: S603  (this very Python, and a fixed text)
            [sys.executable, "-P", "-c", _SERVE, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **own_group(),
        )
    except OSError:
        return None
    _child = os.getpid(), process
    return process


def _in(seconds: float, do: Callable[[], None]) -> Timer:
    """Do something after some time, unless it is canceled or the program ends before."""
    timer = Timer(seconds, do)
    timer.daemon = True
    timer.start()
    return timer


def _exchange(
    process: subprocess.Popen[bytes], reader: str, path: Path
) -> dict[str, np.ndarray | str] | InputError:
    """Send a request and receive the answer. Raises EOFError where it ends too early."""
    assert process.stdin is not None  # both are pipes
    assert process.stdout is not None
    process.stdin.write(json.dumps([reader, str(path.absolute())]).encode() + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    answer = json.loads(line)
    if "message" in answer:
        return InputError(answer["message"], path, answer["key"])
    found: dict[str, np.ndarray | str] = {}
    for name, shape in answer["found"]:
        if isinstance(shape, str):
            found[name] = shape
            continue
        memory.check(math.prod(shape), np.dtype(_BYTES).itemsize, "numbers", path, name)
        array = np.empty(math.prod(shape), _BYTES)
        for start in range(0, array.size, _PIECE):
            piece = process.stdout.read(array[start : start + _PIECE].nbytes)
            if len(piece) < array[start : start + _PIECE].nbytes:
                raise EOFError
            array[start : start + _PIECE] = np.frombuffer(piece, _BYTES)
        found[name] = array.reshape(shape)
    return found


# --- the other side -------------------------------------------------------------------------------


def serve() -> None:
    """Run the second process: read the requested files until its input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # prints of libraries are no answers
    for line in sys.stdin.buffer:
        reader, path = json.loads(line)
        if not path:
            with suppress(ImportError):  # which the first file will say
                importlib.import_module(reader)
            continue
        _limit_memory()
        try:
            _send(_called(reader, Path(path)), answers)
        except InputError as error:
            _line({"message": error.message, "key": error.key}, answers)
        except MemoryError:
            _line({"message": "there is not enough memory to read it", "key": None}, answers)
        except Exception as error:  # of a library that did not expect such a file
            message = f"it cannot be used: {type(error).__name__}: {' '.join(str(error).split())}"
            _line({"message": message[:400], "key": None}, answers)
        answers.flush()


def _called(reader: str, path: Path) -> Mapping[str, np.ndarray | str]:
    module, _, function = reader.partition(":")
    found: Mapping[str, np.ndarray | str] = getattr(importlib.import_module(module), function)(path)
    return found


def _limit_memory() -> None:
    """Take no more memory than there is; elsewhere than on Linux no such limit can be relied on."""
    if not sys.platform.startswith("linux"):
        return
    import resource  # not on Windows

    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # the last file's limit is not this one's
    free = memory.available()
    if free is None:
        return
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most_bytes = taken + int(memory.SHARE * free)
    within = most_bytes if most == resource.RLIM_INFINITY else min(most_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (within, most))


def _send(found: Mapping[str, np.ndarray | str], to: BinaryIO) -> None:
    rows = [[name, x if isinstance(x, str) else x.shape] for name, x in found.items()]
    _line({"found": rows}, to)
    for value in found.values():
        if not isinstance(value, str):
            to.write(np.ascontiguousarray(value, _BYTES).data)


def _line(answer: dict[str, Any], to: BinaryIO) -> None:
    to.write(json.dumps(answer).encode() + b"\n")
