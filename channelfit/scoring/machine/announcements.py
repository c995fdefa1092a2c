"""Long work, such as compiling, announces that it begins and ends.

Code that works and code that shows progress on a screen both know this file, not each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    """Receives announcements.

    Work within work is announced as well: the innermost begins last and ends first.
    """

    def begins(self, what: str) -> None:
        """Take notice that work begins; `what` is a phrase such as "compiling the kernel for this
        model".
        """

    def ends(self) -> None:
        """Take notice that the work that began last is done, or has failed."""


_listeners: list[Listener] = []


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Announce to every listener that work begins, and when the block is left, that it ended."""
    listeners = tuple(_listeners)
    for listener in listeners:
        listener.begins(what)
    try:
        yield
    finally:
        for listener in listeners:
            listener.ends()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener hear the announcements within the block, of all threads."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners[:] = [other for other in _listeners if other is not listener]
