"""Scorers that several threads call, and that make their calls together.

For a GPU a few candidates take as long as many. Where threads score a few each, the calls that come
while another one runs are made at once when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock, local
from typing import Any, TypeVar

import numpy as np

from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import ChannelScorer, InnerScorer

#: A Score or Linearization, with candidates last in each array; of a call made alone, anything.
_Found = TypeVar("_Found")


class Interrupted(Exception):
    """The pool was closed while a thread used it."""


@dataclass(eq=False)
class _Call:
    """A call that waits: its candidates, and its result or the error once it was made.

    Attributes:
        changed: notified when the call is done, or its thread is to make the calls that wait.
    """

    parameters: np.ndarray
    changed: Condition
    result: Any = None
    error: Exception | None = None
    done: bool = False
    leads: bool = False


class Pool:
    """Makes one call at a time, with the candidates of all threads that wait for the same.

    A call waits until half of the threads that take turns wait: while the GPU serves one half, the
    other half prepares its next calls.

    Results are those of calls made alone, to the last digit, if the function computes each
    candidate alike however many there are (`ChannelScorer.fix_jobs`).
    """

    def __init__(self) -> None:
        self._lock = Lock()  # of all below
        self._waiting: dict[Hashable, list[_Call]] = {}
        self._busy = self._closed = False
        self._n_threads = 0  # that take turns
        self._turn, self._own = Lock(), local()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let no other thread within such a block run, except while its calls are made.

        Else threads would pass Python's own lock on in the midst of every operation on arrays,
        which takes half as long again.
        """
        self._count(1)
        try:
            self._take_turn()
            yield
        finally:
            if self._own.has_turn:
                self._leave_turn()
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._n_threads += change
            self._appoint()

    def _take_turn(self) -> None:
        self._own.has_turn = False
        self._turn.acquire()
        self._own.has_turn = True

    def _leave_turn(self) -> None:
        self._own.has_turn = False
        self._turn.release()

    def close(self) -> None:
        """Make all calls from now on raise `Interrupted`, and those that wait."""
        with self._lock:
            self._closed = True
            for calls in self._waiting.values():
                for one in calls:
                    one.changed.notify()

    def call(
        self, name: Hashable, function: Callable[[np.ndarray], _Found], parameters: np.ndarray
    ) -> _Found:
        """Return what a function returns for candidates (n_parameters, n).

        Arguments:
            name: calls of the same name are made together.

        Raises what the function raises, and Interrupted.
        """
        if not getattr(self._own, "has_turn", False):
            return self._called(name, function, parameters)
        self._leave_turn()
        try:
            return self._called(name, function, parameters)
        finally:
            self._take_turn()

    def _called(
        self, name: Hashable, function: Callable[[np.ndarray], _Found], parameters: np.ndarray
    ) -> _Found:
        own, together = _Call(parameters, Condition(self._lock)), list[_Call]()
        try:
            with self._lock:
                self._waiting.setdefault(name, []).append(own)
                self._appoint()
                own.changed.wait_for(lambda: own.done or own.leads or self._closed)
                if own.leads and not self._closed:
                    together = self._waiting.pop(name)
            if together:
                _make(function, together)
        finally:  # also where an interrupt comes
            with self._lock:
                self._end(name, own, together)
        if own.result is None:  # also of a call that was interrupted in another thread
            raise own.error or Interrupted
        found: _Found = own.result
        return found

    def _appoint(self) -> None:
        """Let the first of the most calls that can be made together make them, if it is time."""
        if self._busy or 2 * sum(map(len, self._waiting.values())) < max(1, self._n_threads):
            return
        first = max(self._waiting.values(), key=len)[0]
        self._busy = first.leads = True
        first.changed.notify()

    def _end(self, name: Hashable, own: _Call, together: list[_Call]) -> None:
        """Note that a call has ended, and those that were made with it."""
        for one in together:
            one.done = True
            one.changed.notify()
        left = [one for one in self._waiting.pop(name, []) if one is not own]
        if left:
            self._waiting[name] = left
        if own.leads:
            self._busy = False
        self._appoint()


def _make(function: Callable[[np.ndarray], _Found], together: list[_Call]) -> None:
    """Make calls together; where that fails each alone, as the error may be that of one of them."""
    try:
        results = _apart(function, [one.parameters for one in together])
        for one, result in zip(together, results, strict=True):
            one.result = result
    except Exception as error:
        if len(together) == 1:
            together[0].error = error
            return
        for one in together:
            _make(function, [one])


def _apart(function: Callable[[np.ndarray], _Found], parts: list[np.ndarray]) -> list[_Found]:
    """Call a function with parts (n_parameters, n) side by side, and return the result of each."""
    if len(parts) == 1:
        return [function(parts[0])]
    whole = function(np.concatenate(parts, axis=1))
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    columns = [np.split(array, ends, axis=-1) for array in vars(whole).values()]
    return [type(whole)(*map(np.ascontiguousarray, own)) for own in zip(*columns, strict=True)]


class PooledScorer(InnerScorer):
    """A scorer that threads share.

    Arguments:
        inner: the scorer.
        pool: makes its calls.
        n_jobs: see `ChannelScorer.fix_jobs`. A scorer that cannot do that gets one call at a time.
    """

    def __init__(self, inner: ChannelScorer, pool: Pool, n_jobs: int) -> None:
        super().__init__(inner.problem, inner)
        self.xp, self.pool, self._together = np, pool, inner.fix_jobs(n_jobs)

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        return self.pool.call(object(), self.inner.simulate, to_host(parameters))

    def _passed(self, name: Hashable, function: Callable[[Any], Any], parameters: Any) -> Any:
        own = (id(self), name) if self._together else object()
        return self.pool.call(own, function, to_host(parameters))
