"""Work that takes a while, told to whoever shows what goes on: that it begins, and that it ends.

A compiler announces what it does; a screen that is up shows it. Neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    """What is told; of work within work as well, innermost last to begin and first to end."""

    def begins(self, what: str) -> None:
        """Work begins: a phrase such as "compiling the kernel for this model"."""

    def ends(self) -> None:
        """The work that began last is done, or has failed."""


_listeners: list[Listener] = []


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Tells every listener that this begins, and when the block is left, that it has ended."""
    told = tuple(_listeners)
    for listener in told:
        listener.begins(what)
    try:
        yield
    finally:
        for listener in told:
            listener.ends()


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Tells a listener of what is announced within the block, on whatever thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners[:] = [other for other in _listeners if other is not listener]
