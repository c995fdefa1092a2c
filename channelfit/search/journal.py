"""What a search was told by its scorer, written down, so that a search that was cut off goes on.

All that a search learns comes from its scorer, and all else of it follows from the seed. So the
answers of the scorer, in their order, are the state of any search, whichever optimizer it is. A
search that is resumed begins anew and asks the same questions; as long as the journal has the
answers they are read from it, which takes nearly no time, and then the scorer goes on. The result
is the same to the bit as if nothing had happened.

The file is one of `tasks.records`: a process that is killed, or a disk that is full, costs at most
the last answers.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module
from channelfit.scoring.machine.gpu import Readback
from channelfit.tasks.records import DAMAGED, Records, packed, unpacked

#: How the file begins: what it is, and in which form.
_BEGINS = b"channelfit journal 1\n"
#: An answer: seconds since the search began, the question, its checksum, and the number of arrays.
_ANSWER = struct.Struct("<dBIB")
#: The questions whose answers are kept.
_QUESTIONS = ("score", "preview", "linearize", "score_cell")
#: What else a search may want of a scorer. A single candidate is quickly scored again, and is also
#: after an interrupt, which is no part of the search.
_TOLD = (
    *("backend", "dtype", "path", "source_text", "source_hash", "xp", "chunk"),
    *("rescore", "simulate"),
)
#: Seconds between two writings to the disk.
_WRITE_EVERY = 1.0
#: Bytes that may be written freely, and the bytes a second of the search beyond them. A scorer that
#: answers faster has computed the answers again sooner than they would be read.
_FREE, _PACE = 64 << 20, 16 << 20


@dataclass(frozen=True, eq=False)
class Answer:
    """Arrays that a scorer has returned, by the names of `Score` and `Linearization`."""

    cost: Any
    status: Any
    gradient: Any = None
    curvature: Any = None

    def arrays(self) -> list[Any]:
        """The arrays that the scorer has returned, without those that are None."""
        every = (self.cost, self.status, self.gradient, self.curvature)
        return [a for a in every if a is not None]


class Journal:
    """The answers of a scorer in a file: those of an earlier run first, then new ones.

    Arguments:
        path: the file; it is made where there is none, and what is not whole at its end is cut off.

    Attributes:
        replayed: answers that were read.
        complete: whether every answer was written; a very fast scorer's, or what finds no room on
            the disk, are not, and a resumed search asks for those again.
        fault: why the journal could not be written; None while it can.

    Raises:
        InputError: the file cannot be read or written, is no journal of this form, or is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replayed = 0
        self.complete = True
        self.fault: InputError | None = None
        self._elapsed = 0.0
        self._begun = time.perf_counter()
        self._written = time.monotonic()
        self._waiting: list[bytes] = []
        records = Records(path, _BEGINS, "journal of a fit")
        self._earlier = None if records.is_new else self._answers(records)
        self._records: Records | None = records

    def clock(self) -> float:
        """How long the search has taken, s, with what earlier runs spent on their answers."""
        if self._earlier is not None:
            return self._elapsed
        return self._elapsed + time.perf_counter() - self._begun

    def next(self, question: int, check: int) -> list[np.ndarray] | None:
        """The next answer of an earlier run; None where there is none any more.

        Arguments:
            question: its place in `_QUESTIONS`.
            check: the checksum of what was asked; 0 where it is not known.

        Raises:
            InputError: the earlier run asked something else at this place.
        """
        if self._earlier is None:
            return None
        payload = next(self._earlier, None)
        if payload is None:
            self._end_of_earlier()
            return None
        elapsed, asked, known, count = _ANSWER.unpack_from(payload)
        if (asked, known) != (question, check):
            raise InputError(
                f"answer {self.replayed + 1} of the earlier run was to another question, so that "
                "this run would not be the same; fit again into a new folder",
                self.path,
            )
        self._elapsed = elapsed
        self.replayed += 1
        try:
            return unpacked(payload, _ANSWER.size, count)
        except InputError as error:
            raise error.at(self.path) from None

    def add(self, question: int, check: int, arrays: list[np.ndarray]) -> None:
        """Keeps an answer, and writes what there is about once a second."""
        if not self.complete:
            return
        head = _ANSWER.pack(self.clock(), question, check, len(arrays))
        self._waiting.append(head + packed(arrays))
        if time.monotonic() - self._written > _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        """Writes what is waiting to the disk; what cannot be written ends the journal."""
        if self._records is None or not self._waiting or self._earlier is not None:
            return
        payloads, self._waiting = self._waiting, []
        place = self._records.place + sum(map(len, payloads))
        if place > _FREE + _PACE * self.clock():
            self.complete = False
            return
        try:
            self._records.add(payloads)
        except InputError as fault:
            self.complete, self.fault = False, fault
        self._written = time.monotonic()

    def close(self, keep: bool) -> None:
        """Writes what is waiting, if it is to be kept; else the file goes."""
        if self._records is None:
            return
        if keep:
            self.write()
        self._records.close(keep)
        self._records = None

    def _end_of_earlier(self) -> None:
        self._earlier = None
        self._begun = time.perf_counter()
        self._written = time.monotonic()

    def _answers(self, records: Records) -> Iterator[bytes]:
        """Each whole answer."""
        for _, payload in records.read():
            if len(payload) < _ANSWER.size:
                raise InputError("this is no journal of a fit of this version", self.path)
            yield payload


class Journaled:
    """A scorer whose answers are in a journal, or come into it.

    It has the methods and the properties that the scorer has, as far as a search uses them.

    Arguments:
        scorer: what answers when the journal has no answer any more.
        journal: where the answers are.
    """

    def __init__(self, scorer: Any, journal: Journal) -> None:
        self._scorer, self._journal = scorer, journal
        self._coming: deque[tuple[int, int, list[Readback]]] = deque()
        # as attributes of their own, since `isinstance` of a protocol looks for those
        for name in _TOLD:
            if hasattr(scorer, name):
                setattr(self, name, getattr(scorer, name))
        for question, name in enumerate(_QUESTIONS):
            if hasattr(scorer, name):
                setattr(self, name, self._asked(question, getattr(scorer, name)))

    def _asked(self, question: int, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(parameters: Any, *more: Any) -> Any:
            xp = array_module(parameters)
            check = 0  # what lies on a GPU is not waited for
            if xp is np:
                check = zlib.crc32(np.ascontiguousarray(parameters).tobytes(), question)
                check = zlib.crc32(repr(more).encode(), check)
            known = self._journal.next(question, check)
            if known is not None:
                _check_answer(known, question, np.shape(parameters), self._journal.path)
                return Answer(*(array if xp is np else xp.asarray(array) for array in known))
            answer = ask(parameters, *more)
            self._keep(question, check, _named(answer))
            return answer

        return asked

    def _keep(self, question: int, check: int, arrays: list[Any]) -> None:
        """Keeps an answer; those of a GPU come when they come, in their order."""
        if not self._journal.complete:
            return
        self._coming.append((question, check, [Readback(array) for array in arrays]))
        while self._coming and all(one.arrived for one in self._coming[0][2]):
            self._take()

    def _take(self) -> None:
        question, check, arrays = self._coming.popleft()
        self._journal.add(question, check, [one.read() for one in arrays])

    def settle(self) -> None:
        """Waits for what is still on its way from a GPU."""
        while self._coming:
            self._take()


def _check_answer(
    known: list[np.ndarray], question: int, asked: tuple[int, ...], path: Path
) -> None:
    """Refuses an answer that no scorer can have given for parameters of this shape."""
    n_parameters, n = asked
    shapes: list[tuple[int, ...]] = [(n,), (n,)]
    if _QUESTIONS[question] == "linearize":
        shapes += [(n_parameters, n), (n_parameters, n_parameters, n)]
    kinds = [array.dtype.kind for array in known]
    if [array.shape for array in known] != shapes or kinds[1] not in "iu":
        raise InputError(DAMAGED, path)
    if kinds[0] != "f" or np.isnan(known[0]).any():
        raise InputError(DAMAGED, path)


def _named(answer: Any) -> list[Any]:
    names = ("cost", "status", "gradient", "curvature")
    return [getattr(answer, name) for name in names if getattr(answer, name, None) is not None]


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two runs, in words: each name with what it was and what it is."""
    told = []
    for name in [*earlier, *(k for k in now if k not in earlier)]:
        was, is_now = earlier.get(name, "not there"), now.get(name, "not there")
        if was != is_now:
            told.append(f"{name} was {was} and is {is_now}")
    return told
