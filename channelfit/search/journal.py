"""A journal of the scores of a search, by which a search that was cut off goes on.

A search depends on the answers of its scorer and on its seed alone. So the scores, in their order,
are the state of any search, whichever optimizer it is. A search that is resumed
begins anew and asks for the same scores; as long as the journal has them they are read from it,
which takes nearly no time, and then the scorer goes on. The result is the same to the bit as if
nothing had happened.

The file is one of `tasks.records`: a process that is killed, or a disk that is full, costs at most
the last answers.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module
from channelfit.scoring.machine.gpu import Readback
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score, Scorer
from channelfit.tasks.records import DAMAGED, Records, packed, unpacked

#: The first bytes of the file: its kind and its version.
_BEGINS = b"channelfit journal 1\n"
#: An answer: seconds since the search began, the question, its checksum, and the number of arrays.
_ANSWER = struct.Struct("<dBIB")
#: The numbers of the kinds of questions, as they stand in the file.
_SCORE, _PREVIEW, _LINEARIZE, _SCORE_CELL = range(4)
#: Seconds between two writings to the disk.
_WRITE_EVERY = 1.0
#: Bytes that may be written freely, and the bytes a second of the search beyond them. A scorer that
#: answers faster has computed the answers again sooner than they would be read.
_FREE, _PACE = 64 << 20, 16 << 20


class Journal:
    """The answers of a scorer in a file: those of an earlier run first, then new ones.

    Arguments:
        path: the file. It is made if there is none; an incomplete record at its end is cut off.

    Attributes:
        replayed: answers that were read.
        complete: whether every answer was written. Those of a very fast scorer, and those for
            which the disk has no room, are not; a resumed search computes them again.
        fault: the error for which the journal could not be written; None if there was none.

    Raises InputError: the file cannot be read or written, is no journal of this form, or is in use.
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
        """Return how long the search has taken, s, with the time of earlier runs."""
        if self._earlier is not None:
            return self._elapsed
        return self._elapsed + time.perf_counter() - self._begun

    def next(self, question: int, check: int) -> list[np.ndarray] | None:
        """Return the next answer of an earlier run; None if there are no more.

        Arguments:
            question: its number.
            check: the checksum of the parameters; 0 if it is not known.

        Raises InputError: the earlier run had another question at this place.
        """
        if self._earlier is None:
            return None
        payload = next(self._earlier, None)
        if payload is None:
            self._end_of_earlier()
            return None
        elapsed, earlier, known, count = _ANSWER.unpack_from(payload)
        if (earlier, known) != (question, check):
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
        """Add an answer, and write those that wait about once a second."""
        if not self.complete:
            return
        head = _ANSWER.pack(self.clock(), question, check, len(arrays))
        self._waiting.append(head + packed(arrays))
        if time.monotonic() - self._written > _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        """Write the answers that wait to the disk; if that fails the journal ends."""
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
        """Write the answers that wait, if the file is to be kept; else remove it."""
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
        """Yield each whole answer."""
        for _, payload in records.read():
            if len(payload) < _ANSWER.size:
                raise InputError("this is no journal of a fit of this version", self.path)
            yield payload


class Journaled(Scorer):
    """A scorer that reads its answers from a journal, or writes them into it.

    Only populations are journaled. A few candidates are quickly scored again by `rescore`, which is
    also called after an interrupt, when it is no part of the search.

    Arguments:
        scorer: computes the answers that the journal does not have.
        journal: holds the answers.
    """

    def __init__(self, scorer: Scorer, journal: Journal) -> None:
        self._scorer, self._journal = scorer, journal
        self._coming: deque[tuple[int, int, list[Readback]]] = deque()
        self.backend, self.dtype, self.path = scorer.backend, scorer.dtype, scorer.path
        self.source_text, self.source_hash = scorer.source_text, scorer.source_hash
        self.xp = scorer.xp

    def score(self, parameters: Any) -> Score:
        """See `Scorer.score`."""
        return Score(*self._answer(_SCORE, self._scorer.score, parameters))

    def preview(self, parameters: Any) -> Score:
        """See `Scorer.preview`."""
        return Score(*self._answer(_PREVIEW, self._scorer.preview, parameters))

    def linearize(self, parameters: Any) -> Linearization:
        """See `Scorer.linearize`."""
        return Linearization(*self._answer(_LINEARIZE, self._scorer.linearize, parameters))

    def score_cell(self, parameters: Any, cell: str, preview: bool = False) -> Score:
        """See `Scorer.score_cell`."""
        ask = self._scorer.score_cell
        return Score(*self._answer(_SCORE_CELL, ask, parameters, cell, preview))

    def rescore(self, parameters: Any) -> Score:
        """See `Scorer.rescore`; not journaled."""
        return self._scorer.rescore(parameters)

    def _answer(
        self, question: int, ask: Callable[..., Any], parameters: Any, *more: Any
    ) -> Iterable[Any]:
        """Return the arrays of an answer, in the order of the fields of `Linearization`."""
        xp = array_module(parameters)
        check = 0  # arrays on a GPU are not waited for
        if xp is np:
            check = zlib.crc32(np.ascontiguousarray(parameters).tobytes(), question)
            check = zlib.crc32(repr(more).encode(), check)
        known = self._journal.next(question, check)
        if known is not None:
            _check_answer(known, question, np.shape(parameters), self._journal.path)
            return [array if xp is np else xp.asarray(array) for array in known]
        arrays = list(vars(ask(parameters, *more)).values())
        self._keep(question, check, arrays)
        return arrays

    def _keep(self, question: int, check: int, arrays: list[Any]) -> None:
        """Write an answer into the journal; those of a GPU when they arrive, in their order."""
        if not self._journal.complete:
            return
        self._coming.append((question, check, [Readback(array) for array in arrays]))
        while self._coming and all(one.arrived for one in self._coming[0][2]):
            self._take()

    def _take(self) -> None:
        question, check, arrays = self._coming.popleft()
        self._journal.add(question, check, [one.read() for one in arrays])

    def settle(self) -> None:
        """Wait for the answers that are still on their way from a GPU."""
        while self._coming:
            self._take()


class JournaledChannel(Journaled, ChannelScorer):
    """The same for a scorer of currents, which are simulated anew."""

    def __init__(self, scorer: ChannelScorer, journal: Journal) -> None:
        super().__init__(scorer, journal)
        self._channel, self.paths = scorer, scorer.paths

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        """See `ChannelScorer.simulate`."""
        return self._channel.simulate(parameters)


def _check_answer(
    known: list[np.ndarray], question: int, shape: tuple[int, ...], path: Path
) -> None:
    """Refuse an answer that no scorer can have given for parameters of this shape."""
    n_parameters, n = shape
    shapes: list[tuple[int, ...]] = [(n,), (n,)]
    if question == _LINEARIZE:
        shapes += [(n_parameters, n), (n_parameters, n_parameters, n)]
    kinds = [array.dtype.kind for array in known]
    if [array.shape for array in known] != shapes or kinds[1] not in "iu":
        raise InputError(DAMAGED, path)
    if kinds[0] != "f" or np.isnan(known[0]).any():
        raise InputError(DAMAGED, path)
