"""Independent tasks, and the executors that compute them.

A task has a key, which is its name, and a result, which is arrays by name. All that a task needs
besides its key is in its `TaskSet`, which is the same for all tasks of the set. So every process
that has the task set can compute any of its tasks, also a second time, with the same result. No
task needs the result of another one of its set.

Where several task sets follow each other and differ in a few arrays alone, these arrays are the
arguments of the tasks (`TaskSetWithArguments`): they are sent with each task, and the rest of the
task set is sent once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.tasks.result_store import Arrays, Key, ResultStore

_T = TypeVar("_T")


class TaskSet(Protocol):
    """A set of independent tasks.

    It is sent to other processes by pickle, so its class is defined at the top of a module, and it
    holds plain data alone.

    Attributes:
        identity: everything that the results depend on, by name, such as versions: two task sets
            that differ in their results differ in this.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def compute(self, key: Key) -> Arrays:
        """Compute one task.

        Raises: InputError for a mistake of the user.
        """
        ...


class TaskSetWithArguments(TaskSet, Protocol):
    """A set of tasks with arguments, which pickle leaves out of the task set."""

    def arguments(self, key: Key) -> Arrays:
        """Return the arguments of a task, in the process that sends it."""
        ...

    def compute(self, key: Key, arguments: Arrays | None = None) -> Arrays:
        """Compute one task. arguments: None in the process that sends the task."""
        ...


@runtime_checkable
class CheckedTaskSet(TaskSet, Protocol):
    """A task set that can check results which were read from a file."""

    def check_stored(self, key: Key, found: Arrays) -> None:
        """Refuse a stored result that this task cannot have had.

        Raises: InputError for the file.
        """
        ...


class Executor(Protocol):
    """Computes the tasks of a set, in this process (`SerialExecutor`) or on a cluster."""

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yield the key and the result of each task once, as they get ready, in any order."""
        ...


class SerialExecutor:
    """Computes one task after the other in this process; each may use all cores.

    Arguments:
        ahead: whether a thread computes a task while the result before is used, such as written to
            a file: for tasks on a GPU, which leave the processor free.
    """

    def __init__(self, ahead: bool = False) -> None:
        self.ahead = ahead

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yield each result as soon as it is computed; see `Executor`."""
        results = ((key, tasks.compute(key)) for key in keys)
        return prefetched(results) if self.ahead else results


class ThreadedExecutor:
    """Computes several tasks at a time in threads of this process, for tasks that share a GPU.

    Arguments:
        n: tasks at a time, at most.
        interrupt: called where results are no longer needed; makes tasks that run end soon.
    """

    def __init__(self, n: int, interrupt: Callable[[], object]) -> None:
        self.n, self.interrupt = n, interrupt

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yield each result as it gets ready; see `Executor`."""
        if not keys:
            return
        with ThreadPoolExecutor(min(self.n, len(keys))) as threads:
            running = {threads.submit(tasks.compute, key): key for key in keys}
            try:
                for done in as_completed(running):
                    yield running[done], done.result()
            finally:
                if not all(one.done() for one in running):
                    self.interrupt()
                    threads.shutdown(wait=False, cancel_futures=True)


def prefetched(items: Iterator[_T]) -> Iterator[_T]:
    """Yield the same items, of which a thread makes each while the one before is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def task_results(
    tasks: TaskSet,
    keys: Sequence[Key],
    executor: Executor | None = None,
    store: ResultStore | None = None,
    on_done: Callable[[Key, Arrays], object] = lambda key, found: None,
) -> Iterator[tuple[Key, Arrays]]:
    """Yield the key and the result of each task, in the order of `keys`.

    Results that an earlier run has stored are not computed again; new ones are stored before they
    are yielded.

    Arguments:
        keys: without repetitions.
        executor: computes the tasks; by default they are computed in this process.
        store: where results are stored. When one cannot be written, `store.fault` says so, and the
            computation goes on.
        on_done: called with each task that is done, in the order in which they get done; also with
            those that an earlier run has stored.

    Raises: InputError of a task, or of the executor.
    """
    if len(set(keys)) != len(keys):
        raise ValueError("two tasks have the same key")
    stored = store.keys if store is not None else frozenset()
    missing = [key for key in keys if key not in stored]
    with ExitStack() as ends:
        coming = (executor or SerialExecutor())(tasks, missing)
        if isinstance(coming, Generator):  # an interrupt here ends the tasks, too
            ends.callback(coming.close)
        yield from _in_order(tasks, keys, coming, stored, store, on_done)


def _in_order(
    tasks: TaskSet,
    keys: Sequence[Key],
    coming: Iterator[tuple[Key, Arrays]],
    stored: Collection[Key],
    store: ResultStore | None,
    on_done: Callable[[Key, Arrays], object],
) -> Iterator[tuple[Key, Arrays]]:
    """Yield results in the order of keys; arguments as in `task_results`.

    Arguments:
        coming: what is computed. stored: keys of what need not be.
    """
    waiting: dict[Key, Arrays] = {}
    for key in keys:
        if store is not None and key in stored:
            found = store.get(key)
            if isinstance(tasks, CheckedTaskSet):
                try:
                    tasks.check_stored(key, found)
                except InputError as error:
                    raise error.at(store.path) from None
            on_done(key, found)
            yield key, found
            continue
        while key not in waiting:
            done, found = next(coming, (None, {}))
            if done is None:
                raise InputError(f"task {key_text(key)} was not computed")
            if store is not None:
                store.put(done, found)
            waiting[done] = found
            on_done(done, found)
        yield key, waiting.pop(key)


def key_text(key: Key) -> str:
    """Return the key of a task as a message shows it."""
    return " ".join(map(str, key))


def seconds_left(done: int, total: int, began: float, before: int = 0) -> float:
    """Estimate how long the rest will take at the pace so far, s; NaN before there is a pace.

    Arguments:
        done, total: how much, in any unit. before: how much of it an earlier run had done.
        began: when this run began, by `time.perf_counter`.
    """
    if done <= before:
        return float(np.nan)
    return (time.perf_counter() - began) * (total - done) / (done - before)
