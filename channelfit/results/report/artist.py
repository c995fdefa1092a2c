"""The picture of a fit, drawn by a process of its own.

Matplotlib takes as long to load, and a picture as long to draw, as a search takes in all. So a
process is started for it together with the command: it loads Matplotlib while this one loads the
rest and searches, is sent what to draw as soon as that is known, and draws while this one judges
the fit. Whatever becomes of it, the picture is there at the end, or its error: what it has not
drawn is drawn here.

What is sent are a few kinds of dataclasses (`_KINDS`) as JSON, and their arrays in NumPy's own
format without objects; nothing that could be run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from channelfit.results.report.traces import Page

#: What the process runs, importing from where this one does (and, by -P, not from the folder that
#: the user is in).
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
    """Draws one picture, in a process of its own where that spares waiting.

    Without one, as where Matplotlib is loaded already or there is a single core, it draws here.
    """

    def __init__(self, child: subprocess.Popen[bytes] | None = None) -> None:
        self._child = child
        self._wanted: tuple[Page, Path] | None = None

    def begin(self, page: Page, file: Path) -> None:
        """Says what to draw, and goes on."""
        self._wanted = page, file
        if self._child is None or self._child.stdin is None:
            return
        # a process that is gone has drawn nothing, which `finish` will see
        with contextlib.suppress(OSError):
            self._child.stdin.write(packed(page, file))
            self._child.stdin.close()

    def finish(self) -> None:
        """Returns when the picture is there. Raises what drawing raised."""
        if self._wanted is None:
            return
        page, file = self._wanted
        if self._child is None or self._child.wait() != 0:
            draw(page, file)
        self._wanted = self._child = None

    def dismiss(self) -> None:
        """Ends the process; a picture that it is at it ends first, so that none is half there."""
        if self._child is None:
            return
        if self._wanted is None:
            self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        self._child = None


@contextmanager
def hired() -> Iterator[Artist]:
    """An artist for as long as the block lasts."""
    artist = Artist(_started() if _pays() else None)
    try:
        yield artist
    finally:
        artist.dismiss()


def _pays() -> bool:
    """Whether another process would be done sooner: not without a second core, and not where
    Matplotlib is loaded already."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return "matplotlib.figure" not in sys.modules and (cores or 1) > 1 and bool(sys.executable)


def _started() -> subprocess.Popen[bytes] | None:
    """The process; None where there can be none.

    Ctrl-C is for this process alone: it saves the best so far and has that drawn.
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
    """What the process does: loads Matplotlib and tries it, waits, draws, and is done."""
    received = io.BytesIO()
    # read at once, however long loading takes: who sends must not wait
    reader = Thread(target=lambda: received.write(sys.stdin.buffer.read()))
    reader.start()
    draw(_sketch(), io.BytesIO())
    reader.join()
    if received.tell():
        draw(*unpacked(received.getvalue()))


def _sketch() -> Page:
    """The least there is to draw. A first picture takes longer than others, for fonts and so on."""
    import numpy as np  # see above

    from channelfit.problem.protocol import Protocol
    from channelfit.problem.waves import Constant, Segment
    from channelfit.results.report.traces import Page, Traces

    protocol = Protocol("a protocol", 0.0, 1.0, ((Segment(0.0, 9.0, Constant(0.0)),),))
    flat = np.zeros((1, 9))
    return Page((Traces(protocol, flat, flat, flat, "title", ("subtitle",)),), "title", "subtitle")


def draw(page: Page, file: Path | io.BytesIO) -> None:
    """Draws into a file, or into memory, here and now."""
    from channelfit.results.report.plots import save, traces_figure, write  # loads Matplotlib

    figure = traces_figure(page.panels, page.title, page.subtitle)
    if isinstance(file, Path):
        save(figure, file)
    else:
        write(figure, file)


# --- what is sent ------------------------------------------------------------------------------


def packed(page: Page, file: Path) -> bytes:
    """A page and where it goes, as `unpacked` reads them."""
    import numpy as np  # see above

    arrays: dict[str, Any] = {}
    text = json.dumps([str(file.absolute()), _plain(page, arrays)])
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, text=np.frombuffer(text.encode(), np.uint8), **arrays)
    return out.getvalue()


def unpacked(sent: bytes) -> tuple[Page, Path]:
    """A page and where it goes."""
    import numpy as np  # see above

    with np.load(io.BytesIO(sent), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    file, page = json.loads(arrays.pop("text").tobytes())
    return _built(page, arrays), Path(file)


def _plain(value: Any, arrays: dict[str, Any]) -> Any:
    """A value in lists, mappings and scalars; its arrays are put among the others."""
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
    """What `_plain` made plain."""
    if isinstance(value, list):
        return tuple(_built(one, arrays) for one in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    kind = value.pop("kind")
    fields = {name: _built(one, arrays) for name, one in value.items()}
    return getattr(importlib.import_module(_KINDS[kind]), kind)(**fields)
