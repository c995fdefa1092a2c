"""Progress of work, shown on a terminal, in a notebook, or not at all.

Whatever is compiled is announced, and an interrupt is an interrupt even where it reaches the
compiler.
"""

from __future__ import annotations

import html
import importlib
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from channelfit.reading.errors import Caution, InputError
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.scoring.machine.announcements import listening
from channelfit.search.loop import Progress

#: Seconds between two changes of what a notebook shows.
_REFRESH = 0.2


class InputWarning(UserWarning):
    """Something in the input can be used but is probably not meant; the text says where.

    Example:
        >>> import warnings
        >>> import channelfit as cf
        >>> warnings.simplefilter("error", cf.InputWarning)  # to stop at whatever looks wrong
    """


class PythonScreen(SearchScreen):
    """Shows nothing on a screen; what looks wrong becomes a Python warning."""

    def __init__(self, title: str) -> None:
        super().__init__(title, quiet=True)

    def warn(self, cautions: Iterable[Caution]) -> None:
        """Warn of each caution, as an `InputWarning`."""
        for caution in cautions:
            self.warn_of(str(caution))

    def warn_of(self, text: str) -> None:
        """Warn of what a sentence says, as an `InputWarning`."""
        warnings.warn(text, InputWarning, stacklevel=_outside())


def _outside() -> int:
    """Return how many calls above a warning the caller of channelfit is."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("channelfit."):
        frame, level = frame.f_back, level + 1
    return level


class NotebookScreen(PythonScreen):
    """The search as a few lines below a notebook's cell, which change while it goes on."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._shown: Any = None
        self._changed = 0.0

    def __enter__(self) -> NotebookScreen:
        notebook: Any = importlib.import_module("IPython.display")  # present where a notebook is
        self._html = notebook.HTML
        self._shown = notebook.display(self._html(""), display_id=True)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._show("")

    def begin(self, stage: str) -> None:
        """Name what is being done now."""
        super().begin(stage)
        self._show(stage)
        self._changed = -math.inf  # the first generation is shown at once

    def update(self, progress: Progress) -> None:
        """Show the best cost and the pace after a generation."""
        super().update(progress)
        if time.monotonic() - self._changed > _REFRESH:
            self._show(f"{self.title}\n{self.line(progress)}  {self._spark()}")

    def count(self, counted: Counted) -> None:
        """Show the progress of work that is counted."""
        super().count(counted)
        if counted.ended or time.monotonic() - self._changed > _REFRESH:
            self._show(f"{self.stage}\n{counted}")

    def _show(self, text: str) -> None:
        if self._shown is not None:
            self._shown.update(self._html(f"<pre>{html.escape(text)}</pre>" if text else ""))
            self._changed = time.monotonic()


def screen_for(title: str, progress: bool | None) -> SearchScreen:
    """Return the screen of a Python call.

    Arguments:
        progress: whether to show it; None shows it in notebooks and on terminals.
    """
    if progress is False:
        return PythonScreen(title)
    if _in_notebook():
        return NotebookScreen(title)
    if progress or sys.stderr.isatty():
        return SearchScreen(title)
    return PythonScreen(title)


def _in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this."""
    shell: Any = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


class WorkProgress:
    """Counts what is done of a work, and shows the progress on a screen.

    Arguments:
        screen: where it is shown.
        total: how much there is to do.
        unit: what is counted, in the plural, such as "data sets" or "wells".

    Example:
        >>> from channelfit.front.progress import PythonScreen, WorkProgress
        >>> progress = WorkProgress(PythonScreen("a plate"), 2, "wells")
        >>> progress.done("A01")
        >>> progress.done("A02", reason="the cell was lost")
        >>> progress.counted.failed
        1
    """

    def __init__(self, screen: SearchScreen, total: float, unit: str) -> None:
        self.screen, self.total, self.unit = screen, total, unit
        self._done: float = 0
        self._kept: float = 0
        self._failed = 0
        self._began = time.perf_counter()
        screen.count(self.counted)

    @property
    def counted(self) -> Counted:
        """The progress so far; the time that is left is at the pace of this process."""
        seconds = time.perf_counter() - self._began
        here = self._done - self._kept
        left = seconds * (self.total - self._done) / here if here else None
        return Counted(self._done, self.total, self.unit, seconds, left, self._failed, self._kept)

    def done(
        self,
        name: str = "",
        count: float = 1,
        *,
        kept: bool = False,
        failed: int | None = None,
        reason: str = "",
    ) -> None:
        """Count a part that is done.

        Arguments:
            name: of the part, for the message about a failure.
            count: how much of the total it is.
            kept: whether an earlier process had done it.
            failed: how many of its things have no result; by default one where there is a reason.
            reason: why; empty where nothing failed.
        """
        self._done += count
        self._kept += count if kept else 0
        failed = int(bool(reason)) if failed is None else failed
        self._failed += failed
        if failed and not kept:
            self.screen.fail(name, reason, failed)
        self.screen.count(self.counted)


class _Notice:
    """Shows announcements on a screen, and restores its stage after them."""

    def __init__(self, screen: SearchScreen) -> None:
        self.screen, self.depth, self.said, self.before = screen, 0, False, ""

    def begins(self, what: str) -> None:
        self.depth += 1
        if self.depth == 1:
            self.before = self.screen.stage
            self.screen.begin(what)
            if not self.said and not self.screen.live:
                self.screen.say(self.screen.stage)
            self.said = True

    def ends(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.screen.begin(self.before)


@contextmanager
def compilations_shown(screen: SearchScreen) -> Iterator[None]:
    """Show on a screen when something is compiled, which is done once for each model.

    An interrupt inside the compiler can come out of it as any error; here it is an interrupt again.
    """
    notice = _Notice(screen)
    with listening(notice), _noting_interrupts() as interrupted:
        try:
            yield
        except InputError:
            raise
        except Exception:
            if interrupted and notice.said:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _noting_interrupts() -> Iterator[list[bool]]:
    """Yield a list that is no longer empty once Ctrl-C was pressed."""
    seen: list[bool] = []

    def note(number: int, frame: Any) -> None:
        seen.append(True)
        if callable(before):
            before(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
