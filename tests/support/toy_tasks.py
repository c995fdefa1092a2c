"""Task sets for tests of clusters: their classes are here, where workers can import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.threads import usable_cores
from channelfit.tasks.result_store import Arrays, Key


@dataclass(frozen=True)
class Toy:
    """Draws numbers by the number of a task; each start of a task leaves a line in a folder.

    faults: by number, what happens to the process that computes it first, "killed" or "stopped",
    or each time, "refused", "broken" or "deadly".
    """

    seconds: float = 0.0
    folder: Path | None = None
    faults: Mapping[int, str] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    def compute(self, key: Key) -> Arrays:
        number = int(key[1])
        first = self._begin(number)
        fault = self.faults.get(number, "")
        if fault == "refused":
            raise InputError("is not good", "toy.yaml", "a.b")
        if fault == "broken":
            raise ZeroDivisionError("by zero")
        if fault == "deadly" or (first and fault):
            os.kill(os.getpid(), signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
            time.sleep(1)  # the signal may take a moment
        time.sleep(self.seconds)
        drawn = np.random.default_rng(number).normal(size=(3, 4))
        return {
            "drawn": drawn,
            "number": np.array([number]),
            "where": np.array([os.getpid(), usable_cores()]),
        }

    def _begin(self, number: int) -> bool:
        """Leave a line; return whether it is the first of this task."""
        if self.folder is None:
            return True
        file = self.folder / f"task{number}"
        first = not file.exists()
        with file.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        return first

    def begun(self, number: int) -> int:
        """Return the number of times that a task was begun."""
        assert self.folder is not None
        return len((self.folder / f"task{number}").read_text().split())


def keys(count: int) -> list[Key]:
    """The keys of so many tasks."""
    return [("task", number) for number in range(count)]


def table(found: Mapping[Key, Arrays]) -> bytes:
    """The results in the order of the keys, without what differs from process to process."""
    return b"".join(found[key]["drawn"].tobytes() for key in sorted(found))
