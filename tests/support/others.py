"""Pieces of a search computed by somebody else, and what must not depend on who it was."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from channelfit.search.fit_tasks import EpochTasks
from channelfit.search.loop import FitResult
from channelfit.tasks.executor import TaskSet
from channelfit.tasks.result_store import Arrays, Key


class Others:
    """Does the pieces from the last to the first, with a copy that went through a pickle.

    Attributes:
        done: the keys of the pieces. works: the different pickles of the works that came.
    """

    def __init__(self, dies_after: int = 10**9) -> None:
        self.done: list[Key] = []
        self.works: set[bytes] = set()
        self.dies_after = dies_after

    def __call__(self, work: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        sent = pickle.dumps(work)
        self.works.add(sent)
        copy: Any = pickle.loads(sent)
        for key in list(keys)[::-1]:
            if len(self.done) >= self.dies_after:
                raise KeyboardInterrupt
            self.done.append(key)
            arguments = (work.arguments(key),) if isinstance(work, EpochTasks) else ()
            yield key, copy.compute(key, *pickle.loads(pickle.dumps(arguments)))


def outcome(found: FitResult) -> tuple[Any, ...]:
    """All that was found, but for times."""
    names = [name for name in found.history.dtype.names or () if name != "seconds"]
    plain = {k: v for k, v in vars(found).items() if k not in ("seconds", "history", "values")}
    return plain, found.values.tolist(), found.history[names].tolist()
