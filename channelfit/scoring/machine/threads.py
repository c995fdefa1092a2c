"""The cores that may be used, threads that share work, and BLAS kept to one of them.

On small matrices the threads of BLAS, the linear algebra library, mostly wait for each other,
longest where other programs keep the cores busy; and the rounding of its results depends on how
many threads there are.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from channelfit.reading import memory

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


#: The number of chunks into which each thread's share is cut, at most.
_CHUNKS_PER_THREAD = 8


#: The limit on threads of BLAS, how many blocks need it, and what guards both.
_limit: Any = None
_limited, _limiting = 0, Lock()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS to one thread, for the whole process, as long as the block runs.

    Blocks of several threads may overlap: the last one to end takes the limit back.
    """
    global _limit, _limited
    with _limiting:
        if not _limited:
            _limit = _pools().limit(limits=1, user_api="blas")
        _limited += 1
    try:
        yield
    finally:
        with _limiting:
            _limited -= 1
            if not _limited:
                _limit.restore_original_limits()


@cache
def _pools() -> ThreadpoolController:
    """Return the pools of threads of all libraries that are loaded when this is first called."""
    from threadpoolctl import ThreadpoolController  # searches all libraries; only this needs it

    return ThreadpoolController()


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    found = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(found, _share) if _share else found


#: The cores of this process, among those that it shares with others; 0 for all.
_share = 0


def keep_to(cores: int) -> None:
    """Leave all cores but so many to other processes; 0 takes them back."""
    global _share
    _share = cores


class Team:
    """Threads that are kept, and help the thread that has work to share.

    An interrupt may come at any moment, and in little memory a thread may not start, or end before
    it does anything. So the thread that shares work does all parts that no other has begun, and
    waits only for threads that have begun one.

    Arguments:
        n_helpers: the threads, at most; each is started when there is work for it.
    """

    def __init__(self, n_helpers: int) -> None:
        self._most, self._n_started = n_helpers, 0
        self._there: list[bool] = []  # an entry for each thread that has come to life
        self._shared: SimpleQueue[_SharedParts] = SimpleQueue()

    def share(self, do: Callable[[int, int], None], parts: Sequence[tuple[int, int]]) -> None:
        """Call do(*part) for all parts, here and in the threads. Raises the first error."""
        work = _SharedParts(do, parts)
        try:
            self._call(min(self._most, len(parts) - 1), work)
            work.finish()
        except BaseException:  # such as Ctrl-C
            work.stop()
            raise

    def _call(self, n_helpers: int, work: _SharedParts) -> None:
        n_there = len(self._there)
        for helper in range(n_helpers):
            if helper < n_there:
                self._shared.put(work)
            elif self._n_started < self._most:
                self._start(work)

    def _start(self, work: _SharedParts) -> None:
        if not memory.room_for_a_thread():
            self._most = self._n_started
            return
        try:
            # `threading` would wait until the thread lives, which in little memory is for ever
            _thread.start_new_thread(self._serve, (work,))
            self._n_started += 1
        except RuntimeError:  # there is no room for another thread
            self._most = self._n_started

    def _serve(self, work: _SharedParts | None) -> None:
        self._there.append(True)
        while work is not None:
            work.help()
            work = None  # its arrays are not kept while there is nothing to do
            work = self._shared.get()


class _SharedParts:
    """Parts of a computation that several threads take one after the other until none is left."""

    def __init__(self, do: Callable[[int, int], None], parts: Sequence[tuple[int, int]]) -> None:
        self._do, self._left = do, list(parts)
        self._helpers: list[Lock] = []  # each is locked while a thread helps
        self._errors: list[BaseException] = []

    def help(self) -> None:
        """Do parts, in a thread that helps; `finish` raises the errors."""
        try:
            busy = Lock()
        except MemoryError:  # the others do the work
            return
        with busy:
            try:
                self._helpers.append(busy)
                self._do_parts()
            except BaseException as error:
                self._errors.append(error)
                self._left.clear()

    def finish(self) -> None:
        """Do parts, in the thread that shares the work, until all are done."""
        self._do_parts()
        for busy in self._helpers:
            with busy:
                pass
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Let no further part begin, and wait for those that have: they use arrays of the caller.

        It asks again and again, since an interrupt may have come within any wait for a lock.
        """
        self._left.clear()
        while any(busy.locked() for busy in self._helpers):
            time.sleep(0.001)

    def _do_parts(self) -> None:
        while self._left:
            try:
                part = self._left.pop()
            except IndexError:  # another thread has just taken the last
                return
            self._do(*part)


def side_by_side(
    sweep: Callable[[int, int], None], n_candidates: int, lanes: int, n_threads: int
) -> None:
    """Call sweep(first block, last block) until every block of lanes is done.

    Threads share the blocks of lanes. Each block is computed whole by one thread, so the result
    does not depend on how many there are.
    """
    n_blocks = -(-n_candidates // lanes)
    # few chunks where there are few blocks: threads that ask for work wait for each other
    per_thread = min(_CHUNKS_PER_THREAD, max(1, n_blocks // (2 * n_threads)))
    n_chunks = min(n_blocks, n_threads * per_thread if n_threads > 1 else 1)
    if n_blocks:
        edges = [n_blocks * chunk // n_chunks for chunk in range(n_chunks + 1)]
        _team(n_threads - 1).share(sweep, list(pairwise(edges)))


@cache
def _team(n_helpers: int) -> Team:
    """Return threads that are kept, as a search asks for a few candidates many times a second."""
    return Team(n_helpers)


def _alone() -> None:
    """Forget the other threads, which do not follow into a forked process."""
    global _limiting
    _limiting = Lock()
    _team.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
