"""The picture of a fit, drawn by another process while this one goes on.

Loading Matplotlib and drawing a picture take as long as a whole search. So a second process is
started together with the command. It loads Matplotlib while the first one loads everything else
and searches; it is sent what to draw as soon as that is known, and draws while the first one works
out how sure the fit is. If the second process fails, the first one draws the picture itself.

Sent are a few kinds of dataclasses (`_KINDS`) as JSON, and their arrays in NumPy's own format
without objects: nothing that could be run.

NumPy is imported inside functions here: the second process is to be started before the first one
has loaded it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from channelfit.scoring.machine.threads import usable_cores

if TYPE_CHECKING:
    from channelfit.results.report.traces import Page

#: The program of the second process. It imports from where this one does and, by -P, not from the
#: folder that the user is in.
_SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from channelfit.results.report.artist import serve; serve()"
)
#: Dataclasses that may be sent, and the modules they stand in.
_KINDS = {
    "Page": "channelfit.results.report.traces",
    "Traces": "channelfit.results.report.traces",
    "Protocol": "channelfit.problem.protocol",
    "Segment": "channelfit.problem.waves",
    "Constant": "channelfit.problem.waves",
    "Ramp": "channelfit.problem.waves",
    "Sines": "channelfit.problem.waves",
    "Samples": "channelfit.problem.waves",
}


class Artist:
    """Draws one picture, in another process where that saves time.

    Where it does not, because Matplotlib is loaded already or there is a single core, the picture
    is drawn in this process.

    Arguments:
        child: the process that draws; None to draw here.
    """

    def __init__(self, child: subprocess.Popen[bytes] | None = None) -> None:
        self._child = child
        self._wanted: tuple[Page, Path] | None = None
        self._sent = False

    def begin(self, page: Page, file: Path) -> None:
        """Say what to draw and where to write it, and return at once."""
        self._wanted = page, file
        if self._child is None or self._child.stdin is None:
            return
        # a process that is gone has drawn nothing, which `finish` will see
        with contextlib.suppress(OSError):
            self._child.stdin.write(packed(page, file))
            self._sent = True
            self._child.stdin.close()

    def finish(self) -> None:
        """Wait until the picture is written. Raises what drawing it raised."""
        if self._wanted is None:
            return
        page, file = self._wanted
        if self._child is None or self._child.wait() != 0:
            draw(page, file)
        self._wanted = self._child = None

    def dismiss(self) -> None:
        """End the process.

        A picture that is being drawn is finished first, so that no half of it is left behind. A
        process that was not sent the whole page, because of an interrupt, draws nothing.
        """
        if self._child is None:
            return
        if not self._sent:
            self._child.kill()
        if self._child.stdin is not None:  # until it is closed, the process waits for more
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        self._child.wait()
        self._child = None


@contextmanager
def hired() -> Iterator[Artist]:
    """Provide an artist for as long as the block lasts."""
    artist = Artist(_started() if _pays() else None)
    try:
        yield artist
    finally:
        artist.dismiss()


def _pays() -> bool:
    """Whether a second process saves time.

    It does not without a second core, nor where Matplotlib is loaded already.
    """
    return "matplotlib.figure" not in sys.modules and usable_cores() > 1 and bool(sys.executable)


def _started() -> subprocess.Popen[bytes] | None:
    """Start the process that draws; returns None where that is not possible.

    It does not receive Ctrl-C, which is meant for the first process alone: that one then saves the
    best candidate so far and has it drawn.
    """
    apart: dict[str, Any] = {"process_group": 0}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    try:
        return subprocess.Popen(  # noqa: S603  (this very Python, and a fixed text)
            [sys.executable, "-P", "-c", _SERVE, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **apart,
        )
    except OSError:
        return None


def serve() -> None:
    """Run the process that draws: load Matplotlib and try it, wait for a page, draw it, and end."""
    received = io.BytesIO()
    # read at once, however long loading takes: who sends must not wait
    reader = Thread(target=lambda: received.write(sys.stdin.buffer.read()))
    reader.start()
    draw(_sketch(), io.BytesIO())
    reader.join()
    if received.tell():
        draw(*unpacked(received.getvalue()))


def _sketch() -> Page:
    """The smallest page there is.

    It is drawn while waiting, since the first picture takes longer than later ones.
    """
    import numpy as np  # see above

    from channelfit.problem.protocol import Protocol
    from channelfit.problem.waves import Constant, Segment
    from channelfit.results.report.traces import Page, Traces

    protocol = Protocol("a protocol", 0.0, 1.0, ((Segment(0.0, 9.0, Constant(0.0)),),))
    flat = np.zeros((1, 9))
    return Page((Traces(protocol, flat, flat, flat, "title", ("subtitle",)),), "title", "subtitle")


def draw(page: Page, file: Path | io.BytesIO) -> None:
    """Draw a page in this process and write it as PNG to a file, or into memory."""
    from channelfit.results.report.plots import save, traces_figure, write  # loads Matplotlib

    figure = traces_figure(page.panels, page.title, page.subtitle)
    if isinstance(file, Path):
        save(figure, file)
    else:
        write(figure, file)


# --- from one process to the other -------------------------------------------------------------


def packed(page: Page, file: Path) -> bytes:
    """Pack a page, and the file to draw it into, as bytes for `unpacked`."""
    import numpy as np  # see above

    arrays: dict[str, Any] = {}
    text = json.dumps([str(file.absolute()), _plain(page, arrays)])
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, text=np.frombuffer(text.encode(), np.uint8), **arrays)
    return out.getvalue()


def unpacked(sent: bytes) -> tuple[Page, Path]:
    """Return the page and the file that `packed` has packed."""
    import numpy as np  # see above

    with np.load(io.BytesIO(sent), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    file, page = json.loads(arrays.pop("text").tobytes())
    return _built(page, arrays), Path(file)


def _plain(value: Any, arrays: dict[str, Any]) -> Any:
    """Turn a value into lists, mappings and scalars; arrays are collected in `arrays` by name."""
    import numpy as np  # see above

    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if kind in _KINDS:
        return {"kind": kind} | {k: _plain(v, arrays) for k, v in vars(value).items()}
    if isinstance(value, tuple):
        return [_plain(one, arrays) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _built(value: Any, arrays: dict[str, Any]) -> Any:
    """Build the value that `_plain` has turned into lists and mappings."""
    if isinstance(value, list):
        return tuple(_built(one, arrays) for one in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    kind = value.pop("kind")
    fields = {name: _built(one, arrays) for name, one in value.items()}
    return getattr(importlib.import_module(_KINDS[kind]), kind)(**fields)
