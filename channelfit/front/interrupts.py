"""Ctrl-C and SIGTERM: a command ends in order, with exit code 130 or 143.

Python raises a KeyboardInterrupt wherever a program happens to be: while it starts, while it takes
away what it has written, while it ends. Here a signal is only noted, and raises a KeyboardInterrupt
while a command works and nothing is `held`. After the work it has no effect.

Programs that call the functions of channelfit keep Python's own behavior.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: The exit code of a command that Ctrl-C has ended.
INTERRUPTED = 128 + signal.SIGINT
#: Seconds after which a signal is sent again that came where no exception can be raised.
_AGAIN = 0.05


class Interrupted(KeyboardInterrupt):
    """A signal has come.

    Python ends a process by the signal itself, whatever its exit code, once a plain
    KeyboardInterrupt has passed through an `exec` of text, such as those of dataclasses.
    """


class _Interrupts:
    """The signals of this process.

    Attributes:
        seen: the signals that have come, in their order.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._acting = self._pending = False

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Handle either signal."""
        self.seen.append(number)
        self._pending = True
        if self._acting:
            self._raise()

    def act(self, acting: bool) -> bool:
        """Set whether signals raise a KeyboardInterrupt from now on; return whether they did.

        Raises:
            KeyboardInterrupt: a signal has come since they last did.
        """
        before, self._acting = self._acting, acting
        if acting and self._pending:
            self._raise()
        return before

    def _raise(self) -> None:
        self._pending = False
        raise Interrupted


_interrupts = _Interrupts()


def begin() -> None:
    """Take over both signals for as long as this process lives, unless they are ignored."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == usual:  # a job in the background ignores Ctrl-C, say
            signal.signal(number, _interrupts.note)
            atexit.register(signal.signal, number, signal.SIG_IGN)
    sys.unraisablehook = _unraisable


def _unraisable(unraisable: Any) -> None:
    """Send an interrupt again that came within a `__del__` or a callback, and show other errors.

    Python would print a traceback and go on.
    """
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    number = _interrupts.seen[-1] if _interrupts.seen else signal.SIGINT
    again = threading.Timer(_AGAIN, _send, (number,))
    again.daemon = True
    again.start()


def _send(number: int) -> None:
    """Send a signal to the main thread, which it wakes out of a call that waits."""
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        signal.raise_signal(number)
    else:
        signal.pthread_kill(main, number)


@contextmanager
def acted_upon() -> Iterator[None]:
    """Let signals raise a KeyboardInterrupt within the block, which is the work of a command."""
    try:
        _interrupts.act(True)
        yield
    finally:
        _interrupts.act(False)


@contextmanager
def held() -> Iterator[None]:
    """Let signals wait until the end of the block, which must not be interrupted."""
    before = _interrupts.act(False)
    try:
        yield
    finally:
        _interrupts.act(before)


def all_is_done() -> None:
    """Ignore signals from now on, since everything is written or about to be."""
    _interrupts.act(False)


def have_come() -> bool:
    """Return whether there has been a signal."""
    return bool(_interrupts.seen)


def seen() -> list[int]:
    """Return the signals that have come, in their order."""
    return _interrupts.seen


def exit_code() -> int:
    """Return 130 after Ctrl-C, 143 after SIGTERM; 130 if an interrupt came from elsewhere."""
    return 128 + _interrupts.seen[0] if _interrupts.seen else INTERRUPTED
