"""The picture and the report of a fit, made by another process while this one goes on.

Loading Matplotlib and Bokeh and drawing take as long as a whole search. So a second process is
started together with the command. It loads both while the first one loads everything else and
searches, and draws the scheme of the model. It is sent the traces as soon as they are known, and
draws the picture while the first one computes the uncertainty of the fit. Then it is sent the
numbers, and writes the tables and the report. If the second process fails, the first one does all
of it itself.

Sent are messages, each with its length before it, of a few kinds of dataclasses (`_KINDS`) as JSON,
and their arrays in NumPy's own format without objects: nothing that could be run.

NumPy is imported inside functions here: the second process is to be started before the first one
has loaded it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from channelfit.reading.files import write_text
from channelfit.scoring.machine.threads import usable_cores

if TYPE_CHECKING:
    from channelfit.results.report.page_content import Facts, ModelScheme
    from channelfit.results.report.traces import TracePicture

#: Bytes of the length before a message.
_LENGTH = 8
#: The program of the second process. It imports from where this one does and, by -P, not from the
#: folder that the user is in. When all is written it ends at once: to take its libraries down in
#: order would take a third of a second, for which the first process waits.
_SERVE = (
    "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from channelfit.results.report.report_writer import serve; serve(); os._exit(0)"
)
#: Dataclasses that may be sent, and the modules they stand in.
_KINDS = {
    "Facts": "channelfit.results.report.page_content",
    "ModelScheme": "channelfit.results.report.page_content",
    "SchemeChain": "channelfit.results.report.page_content",
    "SchemeStep": "channelfit.results.report.page_content",
    "ObservedCurve": "channelfit.results.report.observed_curves",
    "TracePicture": "channelfit.results.report.traces",
    "Traces": "channelfit.results.report.traces",
    "Protocol": "channelfit.problem.protocol",
    "Ligand": "channelfit.problem.ligands",
    "Segment": "channelfit.problem.waves",
    "Constant": "channelfit.problem.waves",
    "Ramp": "channelfit.problem.waves",
    "Sines": "channelfit.problem.waves",
    "Samples": "channelfit.problem.waves",
}


class ReportWriter:
    """A writer of the picture and the report of a fit, in another process where that saves time.

    Where it does not, because Matplotlib is loaded already or there is a single core, both are made
    in this process.

    Arguments:
        child: the process that draws; None to draw here.
    """

    def __init__(self, child: subprocess.Popen[bytes] | None = None) -> None:
        self._child = child
        self._picture: tuple[TracePicture, Path] | None = None
        self._report: tuple[Facts, Path] | None = None
        self._sent = False

    def announce(self, scheme: ModelScheme) -> None:
        """Have the other process, if there is one, draw the scheme of the report to come."""
        self._send(scheme)

    def begin(self, picture: TracePicture, file: Path) -> None:
        """Begin a picture, and return at once."""
        self._picture = picture, file
        self._sent = self._send(picture, file) or self._sent

    def report(self, facts: Facts, file: Path) -> None:
        """Begin the report of the traces that were drawn last, and return at once.

        Arguments:
            file: the report, beside which the tables of the traces are written.
        """
        self._report = facts, file
        self._sent = self._send(facts, file) or self._sent

    def _send(self, content: TracePicture | Facts | ModelScheme, file: Path | None = None) -> bool:
        """Send what is to be drawn, into a file if there is one; return whether it was sent."""
        if self._child is None or self._child.stdin is None:
            return False
        # a process that is gone has drawn nothing, which `finish` will see
        with contextlib.suppress(OSError):
            message = encoded(content, file)
            self._child.stdin.write(len(message).to_bytes(_LENGTH, "big") + message)
            self._child.stdin.flush()
            return True
        return False

    def finish(self) -> None:
        """Wait until all is written. Raises the errors of drawing and writing."""
        if self._picture is None and self._report is None:
            return
        done = False
        if self._child is not None:
            self._end_messages()
            done = self._child.wait() == 0
        if not done:
            try:
                if self._picture is not None:
                    draw(*self._picture)
            finally:  # the report is written even if the picture cannot be drawn
                if self._report is not None:
                    write_report(self._picture and self._picture[0], *self._report)
        self._picture = self._report = self._child = None

    def _end_messages(self) -> None:
        """Close the pipe of the process, which waits for more until then."""
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def close(self) -> None:
        """End the process.

        A picture that is being drawn is finished first, so that no half of it is left behind. A
        process that was not sent all traces, because of an interrupt, draws nothing, and one
        that was not sent all facts writes no report.
        """
        if self._child is None:
            return
        if not self._sent:
            self._child.kill()
        self._end_messages()
        self._child.wait()
        self._child = None


@contextmanager
def started_writer() -> Iterator[ReportWriter]:
    """Provide a writer, ready for work, for as long as the block lasts."""
    writer = ReportWriter(_started_process() if _saves_time() else None)
    try:
        yield writer
    finally:
        writer.close()


def _saves_time() -> bool:
    """Return whether a second process saves time.

    It does not without a second core, nor where Matplotlib is loaded already.
    """
    return "matplotlib.figure" not in sys.modules and usable_cores() > 1 and bool(sys.executable)


def _started_process() -> subprocess.Popen[bytes] | None:
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


def serve(reports: bool = True) -> None:
    """Run the process that draws: load the libraries, try them, then act on the messages.

    Arguments:
        reports: whether a report will be written, for which more is loaded.
    """
    messages: queue.Queue[bytes] = queue.Queue()
    # read at once, however long loading and drawing take: the sender must not wait
    reader = Thread(target=_read_messages, args=(messages,))
    reader.start()
    gc.disable()  # it would search the libraries over and over, and this process ends soon
    sketch = _sketch()
    draw(sketch, io.BytesIO())
    if reports:
        page = importlib.import_module("channelfit.results.report.page")
        page.prepare(sketch.panels[0])
    picture, copy = None, 0
    while message := messages.get():
        content, file = decoded(message)
        if hasattr(content, "panels"):
            picture = content
            copy = _drawn_by_copy(picture, file)
        elif hasattr(content, "summary_json"):
            write_report(picture, content, file)
        elif reports:
            page.scheme_svg(content, 0)  # which keeps it
    if copy and os.waitpid(copy, 0)[1] != 0:
        raise RuntimeError("the picture was not drawn")


def _drawn_by_copy(picture: TracePicture, file: Path) -> int:
    """Draw a picture in a copy of this process, beside which the report is written.

    The search is over by then, and leaves a core free.

    Returns: the number of the copy; 0 where the picture was drawn here, as it is where libraries
        may not survive being copied.
    """
    if sys.platform == "linux" and (copy := os.fork()):
        return copy
    failed = 1
    try:
        draw(picture, file)
        failed = 0
    finally:
        if sys.platform == "linux":
            os._exit(failed)
    return 0


def _read_messages(messages: queue.Queue[bytes]) -> None:
    """Pass on each message that comes whole, and an empty one at the end."""
    source = sys.stdin.buffer
    while len(head := source.read(_LENGTH)) == _LENGTH:
        size = int.from_bytes(head, "big")
        if len(message := source.read(size)) < size:  # an interrupt came while it was sent
            break
        messages.put(message)
    messages.put(b"")


def write_report(picture: TracePicture | None, facts: Facts, file: Path) -> None:
    """Write the report of one fit, and the tables of its traces beside it.

    Arguments:
        picture: its traces; None for a fit of a function, which has none.
    """
    from channelfit.results.report.observed_curves import save_curves
    from channelfit.results.report.page import report_page  # loads Bokeh
    from channelfit.results.report.page_content import reported_fit
    from channelfit.results.report.traces import save_tables

    run = reported_fit(file.absolute().parent.name, picture, facts)
    tables = [*save_tables(run.panels, file.parent), *save_curves(run.curves, file.parent)]
    write_text(file, report_page([run], [[table.name for table in tables]]))


def _sketch() -> TracePicture:
    """Return the smallest picture there is.

    It is drawn while waiting, since the first picture takes longer than later ones.
    """
    import numpy as np  # see above

    from channelfit.problem.protocol import Protocol
    from channelfit.problem.waves import Constant, Segment
    from channelfit.results.report.traces import TracePicture, Traces

    protocol = Protocol("a protocol", 0.0, 1.0, ((Segment(0.0, 9.0, Constant(0.0)),),))
    flat = np.zeros((1, 9))
    return TracePicture(
        (Traces(protocol, flat, flat, flat, "title", ("subtitle",)),), "title", "subtitle"
    )


def draw(picture: TracePicture, file: Path | io.BytesIO) -> None:
    """Draw a picture in this process and write it as PNG to a file, or into memory."""
    from channelfit.results.report.plots import save, traces_figure, write  # loads Matplotlib

    if picture.curves and isinstance(file, Path):
        from channelfit.results.report.observed_curves import PICTURE, observed_figure

        drawn = observed_figure(picture.curves, picture.title, picture.subtitle)
        save(drawn, file.with_name(PICTURE))
    if not picture.panels:
        return
    figure = traces_figure(picture.panels, picture.title, picture.subtitle)
    if isinstance(file, Path):
        save(figure, file)
    else:
        write(figure, file)


# --- from one process to the other -------------------------------------------------------------


def encoded(content: TracePicture | Facts | ModelScheme, file: Path | None) -> bytes:
    """Return what is to be drawn, and the file to write, as bytes for `decoded`."""
    import numpy as np  # see above

    arrays: dict[str, Any] = {}
    text = json.dumps([str(file.absolute()) if file else "", _as_json(content, arrays)])
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, text=np.frombuffer(text.encode(), np.uint8), **arrays)
    return out.getvalue()


def decoded(sent: bytes) -> tuple[Any, Path]:
    """Return what is to be drawn, and the file, that `encoded` has written."""
    import numpy as np  # see above

    with np.load(io.BytesIO(sent), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    file, content = json.loads(arrays.pop("text").tobytes())
    return _from_json(content, arrays), Path(file)


def _as_json(value: Any, arrays: dict[str, Any]) -> Any:
    """Turn a value into lists, mappings and scalars; arrays are collected in `arrays` by name."""
    import numpy as np  # see above

    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if kind in _KINDS:
        return {"kind": kind} | {
            one.name: _as_json(getattr(value, one.name), arrays) for one in fields(value)
        }
    if isinstance(value, tuple):
        return [_as_json(one, arrays) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any, arrays: dict[str, Any]) -> Any:
    """Build the value that `_as_json` has turned into lists and mappings."""
    if isinstance(value, list):
        return tuple(_from_json(one, arrays) for one in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    kind = value.pop("kind")
    fields = {name: _from_json(one, arrays) for name, one in value.items()}
    return getattr(importlib.import_module(_KINDS[kind]), kind)(**fields)
