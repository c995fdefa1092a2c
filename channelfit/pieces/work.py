"""Work that falls into independent pieces, and who does it.

A piece has a name, its key, and a result, arrays. What a piece needs besides its key is in the
`Work`, which is the same for all: so any process that has the work can do any piece, twice if need
be, and gets the same. What changes between works that are otherwise the same, one after the other,
is told with each piece (`Telling`), so that the rest of the work travels once. Nothing that came
out of one piece goes into another one of the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from channelfit.pieces.kept import Arrays, Kept, Key
from channelfit.reading.errors import InputError

_T = TypeVar("_T")


class Work(Protocol):
    """What is done piece by piece.

    It travels to other processes by pickle, so its class stands at the top of a module, and it
    holds plain data alone.

    Attributes:
        identity: by name, all that the results depend on, versions among it: where it differs,
            results would.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def do(self, key: Key) -> Arrays:
        """The result of one piece.

        Raises: InputError for what the user has to mend.
        """
        ...


class Telling(Work, Protocol):
    """A work whose pieces are told something, which pickle leaves out of the work."""

    def told(self, key: Key) -> Arrays:
        """What is told with a piece, by the process that gives it out."""
        ...

    def do(self, key: Key, told: Arrays | None = None) -> Arrays:
        """The result of one piece. told: None where the work itself has it."""
        ...


@runtime_checkable
class Checking(Work, Protocol):
    """A work that knows what its results look like, and what they must agree with."""

    def check_kept(self, key: Key, found: Arrays) -> None:
        """Refuses a result, read from a file, that this work cannot have had.

        Raises: InputError for the file.
        """
        ...


class Doer(Protocol):
    """Who does pieces of a work: this process (`Here`), or those of a cluster."""

    def __call__(self, work: Work, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yields each piece with its result once, as they get done, in any order."""
        ...


class Here:
    """Does one piece after the other in this process; each may use all cores.

    Arguments:
        ahead: whether a thread does a piece while the one before is used, such as written: for
            work of a GPU, which leaves the processor free.
    """

    def __init__(self, ahead: bool = False) -> None:
        self.ahead = ahead

    def __call__(self, work: Work, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yields each piece when it is done."""
        pieces = ((key, work.do(key)) for key in keys)
        return made_ahead(pieces) if self.ahead else pieces


def made_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """The same items, of which a thread makes each while the one before is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def pieces_done(
    work: Work,
    keys: Sequence[Key],
    doer: Doer | None = None,
    kept: Kept | None = None,
    on_done: Callable[[Key, Arrays], object] = lambda key, found: None,
) -> Iterator[tuple[Key, Arrays]]:
    """Yields all pieces with their results in the order of `keys`.

    What was kept by an earlier run is not done again; what is done is kept before it is yielded.

    Arguments:
        keys: without repetitions.
        doer: who does them; this process by default.
        kept: where results are kept. Where one cannot be kept, `kept.fault` says so and the work
            goes on.
        on_done: called when a piece gets done, or was done before, in the order in which they do.

    Raises: InputError of a piece, and the doer's own.
    """
    if len(set(keys)) != len(keys):
        raise ValueError("a piece is named twice")
    before = kept.keys if kept is not None else frozenset()
    missing = [key for key in keys if key not in before]
    coming = (doer or Here())(work, missing)
    waiting: dict[Key, Arrays] = {}
    for key in keys:
        if kept is not None and key in before:
            found = kept.get(key)
            if isinstance(work, Checking):
                try:
                    work.check_kept(key, found)
                except InputError as error:
                    raise error.at(kept.path) from None
            on_done(key, found)
            yield key, found
            continue
        while key not in waiting:
            done, found = next(coming, (None, {}))
            if done is None:
                raise InputError(f"piece {shown_key(key)} was not done")
            if kept is not None:
                kept.put(done, found)
            waiting[done] = found
            on_done(done, found)
        yield key, waiting.pop(key)


def shown_key(key: Key) -> str:
    """The name of a piece for a message."""
    return " ".join(map(str, key))


def seconds_left(done: int, total: int, began: float, before: int = 0) -> float:
    """How long the rest will take at the pace so far, s; NaN where there is no pace yet.

    Arguments:
        done, total: how much, in any unit. before: how much of it an earlier run had done.
        began: when this run began, by `time.perf_counter`.
    """
    if done <= before:
        return float(np.nan)
    return (time.perf_counter() - began) * (total - done) / (done - before)
