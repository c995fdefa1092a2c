"""Checkpoints of a solution: its frames, and the internal state of the solver at each.

A file to which records are only added holds one for each frame, in order: v and w, and the internal
state of the scheme and of the control of its steps. Between two frames that are far apart,
controlled steps write records of the state as well. A solution that is resumed reads these frames,
and goes on from the last record with the same numbers, so its bits are those of an uninterrupted
one. A run that solves several times (`--scheme auto`) has the frames of each solution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.reading.errors import InputError
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import Arrays, Key, ResultStore, expect

#: Seconds between two writings, and the most bytes that are written for each second of the run.
_EVERY, _PACE = 1.0, 48 << 20


@dataclass(frozen=True, eq=False)
class Moment:
    """A solution at a moment.

    Attributes:
        t: the time.
        v, w: (n_cables, n_nodes), float64.
        internal_state: arrays of the scheme and of the control of its steps, by name.
    """

    t: float
    v: Array
    w: Array
    internal_state: Arrays

    def arrays(self) -> Arrays:
        """Return the whole moment as arrays by name, for a file."""
        kept = {f"memory_{name}": array for name, array in self.internal_state.items()}
        return {"t": np.array([self.t]), "v": self.v, "w": self.w, **kept}

    @classmethod
    def of(cls, arrays: Arrays) -> Moment:
        """Return the moment of arrays from a file."""
        memory = {
            name.removeprefix("memory_"): array
            for name, array in arrays.items()
            if name.startswith("memory_")
        }
        return cls(float(arrays["t"][0]), arrays["v"], arrays["w"], memory)


class Checkpoints:
    """The records of all solutions of a run; each solution has its own (`solution`).

    Arguments:
        kept: the file of the records; None for no file.

    Attributes:
        last: the records of the solution that was begun last.
    """

    def __init__(self, kept: ResultStore | None = None) -> None:
        self.kept = kept
        self._solutions = 0
        self.last: SolutionRecords | None = None

    def solution(self) -> SolutionRecords:
        """Return the records of the next solution, in the order in which they are computed."""
        self._solutions += 1
        self.last = SolutionRecords(self.kept, self._solutions)
        return self.last

    def write(self) -> None:
        """Write the records that wait; for a run that is interrupted."""
        if self.last is not None:
            self.last.write()


class SolutionRecords:
    """The records of one solution.

    Arguments:
        kept: the file of the records; None for no file.
        number: of the solution in its run.
    """

    def __init__(self, kept: ResultStore | None, number: int) -> None:
        self._kept, self._number = kept, number
        self._waiting: list[tuple[tuple[str | int, ...], Moment]] = []
        self._between: tuple[tuple[str | int, ...], Moment] | None = None
        self._bytes, self._steps = 0, 0
        self._began = self._written = time.monotonic()
        self._frames = 0
        if kept is not None:
            while ("run", number, "frame", self._frames) in kept.keys:
                self._frames += 1
            while self._frames and not self.frame(self._frames - 1).internal_state:
                self._frames -= 1
            while ("run", number, "between", self._frames, self._steps) in kept.keys:
                self._steps += 1

    @property
    def is_kept(self) -> bool:
        """Return True where there is a file for the records."""
        return self._kept is not None

    @property
    def n_frames(self) -> int:
        """The number of frames that an earlier run has left."""
        return self._frames

    def frame(self, k: int) -> Moment:
        """Return a frame that an earlier run has left. Raises InputError where it is damaged."""
        return self._moment(("run", self._number, "frame", k))

    def _moment(self, key: Key) -> Moment:
        assert self._kept is not None
        found = self._kept.get(key)
        try:
            expect(found, {"t": ("f", (1,)), "v": ("f", (None, None))})
            expect(found, {"w": ("f", found["v"].shape)})
        except InputError as error:
            raise error.at(self._kept.path) from None
        return Moment.of(found)

    def damaged(self) -> InputError:
        """Return the error of a record that this run cannot have left."""
        assert self._kept is not None
        return InputError(DAMAGED, self._kept.path)

    def latest(self) -> Moment | None:
        """Return the last state that an earlier run has left, at its last frame or later."""
        if self._kept is None or not self._frames:
            return None
        if self._steps:
            key = ("run", self._number, "between", self._frames, self._steps - 1)
            return self._moment(key)
        return self.frame(self._frames - 1)

    def add(self, k: int, moment: Moment) -> None:
        """Add frame k; write about once a second all frames that wait."""
        if self._kept is None:
            return
        if self._waiting:  # a run goes on from the last one alone
            key, before = self._waiting[-1]
            self._waiting[-1] = key, replace(before, internal_state={})
        self._waiting.append((("run", self._number, "frame", k), moment))
        self._frames, self._steps, self._between = k + 1, 0, None
        if self._due(sum(one.v.nbytes + one.w.nbytes for _, one in self._waiting)):
            self.write()

    def between(self, moment: Callable[[], Moment]) -> None:
        """Add a state between two frames, where the last writing is a second ago."""
        if self._kept is None or time.monotonic() - self._written < _EVERY:
            return
        now = moment()
        if self._due(sum(a.nbytes for a in now.arrays().values())):
            self._between = (
                ("run", self._number, "between", self._frames, self._steps), now
            )  # fmt: skip
            self._steps += 1
            self.write()

    def _due(self, size: int) -> bool:
        now = time.monotonic()
        allowed = _PACE * (now - self._began)
        return now - self._written >= _EVERY and self._bytes + size <= allowed

    def write(self) -> None:
        """Write the records that wait, in order: no frame is kept without those before it."""
        if self._kept is None:
            return
        waiting = [*self._waiting, *([self._between] if self._between is not None else [])]
        self._waiting, self._between = [], None
        for key, moment in waiting:
            arrays = moment.arrays()
            self._kept.put(key, arrays)
            if self._kept.fault is not None:
                self._waiting = [one for one in waiting if one[0] not in self._kept.keys]
                break
            self._bytes += sum(array.nbytes for array in arrays.values())
        self._written = time.monotonic()
