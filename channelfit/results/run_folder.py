"""The life of a run in its folder: claimed, followed, interrupted and resumed, ended.

Every command that keeps results as it goes on has a `RunFolder`: `optimize`, `batch`, `curves` and
`fhn`. While the run goes on the folder holds, beside results,

``.running``      which keeps other runs out
``state.json``    whether the run goes on, how far it is and how it ended (`run_state`)
``resume.json``   and the other files of a `Checkpoint`, from which an interrupted run goes on

Each file is written under another name and then moved into place, so that none is ever half there.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from channelfit.reading.errors import Caution, InputError
from channelfit.reading.files import discard_partial, write_text, writing
from channelfit.results.checkpoint import (
    RESUME,
    Checkpoint,
    check_stopped,
    cut_off_early,
    how_to_go_on,
)
from channelfit.results.files import fault_of, make_folder, sync_folder
from channelfit.results.run_state import CLAIM, FAILED, INTERRUPTED, STATE, RunState

#: Seconds between two reports of how far a run is, where one takes less than `_REPORT_TAKES`; if it
#: takes longer, they are as much rarer, so that no run spends more than a hundredth on them.
REPORT_EVERY, _REPORT_TAKES = 1.0, 0.01
_TAKEN = "another run is using this folder, or was killed in it; give --out a new folder"


def default_folder(name: str) -> Path:
    """Make ``runs/NAME-YYYYmmdd-HHMMSS``, with a number behind it where that is taken.

    Making the folder reserves it: of two runs that begin in the same second each gets its own.

    Raises InputError: the folder cannot be made.
    """
    stem = f"{file_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"
    for k in itertools.count(1):
        folder = Path("runs") / (stem if k == 1 else f"{stem}-{k}")
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            if folder.parent.is_dir():
                continue
            raise InputError("cannot be used: it is not a folder", folder.parent) from None
        except OSError as error:
            raise InputError(f"cannot be written to: {error.strerror or error}", folder) from None
        break
    return folder


def file_name(text: str) -> str:
    """Return a user's name as one part of a path, whatever characters it holds."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("._")[:80] or "model"


def check_folder(folder: Path) -> None:
    """Raise InputError where a run cannot begin in a folder, since it is none or is not empty.

    The files of a run that was killed before its work began do not count.
    """
    try:
        parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        found = [p.name for p in folder.iterdir()] if folder.exists() else []
    except OSError as error:
        raise InputError(f"cannot be used: {error.strerror or error}", folder) from None
    if not os.access(parent, os.W_OK):
        raise InputError(f"cannot be written to: no permission in {parent}", folder)
    if found and cut_off_early(folder):
        return
    if RESUME in found:
        raise InputError(f"{how_to_go_on(folder)}; to begin anew, give a new folder", folder)
    if CLAIM in found:
        raise InputError(_TAKEN, folder)
    if found:
        raise InputError(
            "this folder is not empty, and a run never overwrites another; give --out a new folder",
            folder,
        )


class RunFolder:
    """The folder of one run, from its claim to the end of the run.

    A run claims a new folder (`claim`, `claim_default`) or takes over that of an interrupted run
    (`resume`). It reports its progress (`report`, `report_now_and_then`), keeps in `checkpoint` the
    files from which it could go on, and records how it ended (`end`, `stop`, or `discard` where
    there is nothing to report). At the end of a `with` block a run that has failed is stopped, and
    the claim is released.

    Arguments:
        undisturbed: a context in which signals wait until the work in it is complete.

    Attributes:
        undisturbed: see above.
        path: of the folder, once it is claimed.
        state: the content of `state.json`.
        checkpoint: the files from which the run can go on, once the folder is claimed.
        resumed: whether this run goes on with an earlier one.
        ended: whether the run has ended, however that was.
    """

    path: Path
    checkpoint: Checkpoint

    def __init__(
        self, undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.undisturbed, self.state, self.resumed = undisturbed, RunState(), False
        self._made: list[Path] = []
        self._is_claimed = self.ended = False
        self._reported, self._report_took = -math.inf, 0.0
        self._faults: set[str] = set()

    # --- the beginning ----------------------------------------------------------------------------

    def claim(self, folder: Path) -> Self:
        """Claim a folder for this run alone; returns this object.

        Arguments:
            folder: new, or there and empty; it is made, with the folders above it.

        Raises InputError: the folder holds something, cannot be written to, or another run has it.
        """
        with self.undisturbed():
            dead = _mark(folder)
            check_folder(folder)
            missing = [p for p in (folder, *folder.parents) if not p.exists()]
            make_folder(folder)
            _take(folder, dead)
            self._begin(folder, missing)
            for left in folder.iterdir():  # by a run that was killed before its work began
                if left.name != CLAIM:
                    left.unlink()
            self.report()  # a fault comes again with the first report of the work
        return self

    def open(self, new: Path | None, earlier: Path | None) -> None:
        """Take over the folder of an earlier run, or claim a new one; nothing where both are None.

        Raises InputError: as of `resume` and `claim`.
        """
        if earlier is not None:
            self.resume(earlier)
        elif new is not None:
            self.claim(new)

    def claim_default(self, name: str) -> Self:
        """Claim a `default_folder`, unless this run has a folder already; returns this object."""
        if not self._is_claimed:
            with self.undisturbed():
                folder = default_folder(name)
                self.claim(folder)
                self._made = [folder]
        return self

    def resume(self, folder: Path) -> Self:
        """Take over the folder of a run that was interrupted, failed or was killed; returns this.

        Of several runs that try it at the same moment one gets it.

        Raises InputError: the run has finished or still goes on, or the folder holds none.
        """
        with self.undisturbed():
            dead = _mark(folder)
            check_stopped(folder, dead is not None)
            _take(folder, dead)
            # the claim may have been that of another process that had not yet written its state
            check_stopped(folder, dead is not None)
            discard_partial(folder)
            self.resumed = True
            self._begin(folder, [])
            self.report()
        return self

    def _begin(self, folder: Path, made: list[Path]) -> None:
        """Set the folder, and the folders that were made for it."""
        self.path, self._made, self.checkpoint = folder, made, Checkpoint(folder)
        self._is_claimed = True

    # --- the work ---------------------------------------------------------------------------------

    def report(self, **news: Any) -> InputError | None:
        """Put new values into `state.json`; return why that could not be written."""
        self.state.content |= news
        with self.undisturbed():
            return fault_of(write_text, self.path / STATE, self.state.text())

    def report_now_and_then(
        self, write: Callable[[], InputError | None] | None = None
    ) -> InputError | None:
        """Report about once a second how far the run is, and less often where that takes long.

        Arguments:
            write: reports, and returns why that was not possible; `report` by default.

        Returns: why it could not be reported; None where it was, or was not due.
        """
        begun = time.monotonic()
        if begun - self._reported < REPORT_EVERY * max(1.0, self._report_took / _REPORT_TAKES):
            return None
        with self.undisturbed():
            fault = (write or self.report)()
        self._reported = time.monotonic()
        self._report_took = self._reported - begun
        return fault

    def new_cautions(self, fault: InputError | None, then: str) -> list[Caution]:
        """Return a caution of a fault the first time that it comes, such as a disk that is full.

        Arguments:
            fault: why something could not be written; None where there is nothing to report.
            then: how the run goes on nevertheless, in words.
        """
        if fault is None or fault.message in self._faults:
            return []
        self._faults.add(fault.message)
        return [Caution(str(fault.file), fault.message, then)]

    # --- the end ----------------------------------------------------------------------------------

    def end(self, state: str, reason: str, keep: bool = False, **news: Any) -> InputError | None:
        """End the run after its results have been written.

        Arguments:
            state: how it ended, a state of `run_state`.
            reason: why it ended, in words.
            keep: whether the run can be resumed; else the files of the checkpoint are removed once
                the results are on the disk.
            news: other keys of the state.

        Returns: why `state.json` could not be written, without which no result is lost.

        Raises InputError: the disk has failed under the results; the run can then be resumed.
        """
        with self.undisturbed():
            self.ended = True
            fault = None if keep else fault_of(sync_folder, self.path)
            if fault is not None:
                self.end(FAILED, str(fault), keep=True)
                raise fault
            self.state.end(state, reason, **news)
            fault = self.report()
            self.checkpoint.close(keep)
            return fault

    def stop(self, error: BaseException) -> InputError | None:
        """End the run because of an error, such that it can be resumed; returns as `end`."""
        if isinstance(error, KeyboardInterrupt):
            return self.end(INTERRUPTED, "interrupted before it was done", keep=True)
        return self.end(FAILED, str(error) or type(error).__name__, keep=True)

    def discard(self) -> None:
        """End the run and remove its state and its checkpoint.

        Use it for a run without results, and for one with results that need no state.
        A folder that has become empty is removed with `release`, if this run or the one that it
        resumed has made it.
        """
        with self.undisturbed():
            self.ended = True
            self.checkpoint.close(keep=False)
            (self.path / STATE).unlink(missing_ok=True)
            if self.resumed:
                self._made = [self.path]

    def release(self) -> None:
        """Release the claim, and remove the folders that were made for it and are empty.

        A run that has not ended has no results, and so keeps no state. If it was to be resumed, its
        state says that it could not be.
        """
        if not self._is_claimed:
            return
        with self.undisturbed():
            if self.resumed and not self.ended:
                self.state.end(INTERRUPTED, "it could not be resumed")
                self.report()
            elif not self.ended:
                (self.path / STATE).unlink(missing_ok=True)
            (self.path / CLAIM).unlink(missing_ok=True)
            for folder in self._made:
                try:
                    folder.rmdir()
                except OSError:  # something is in it, and so in those above it
                    break
            self._is_claimed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self.undisturbed():
            if self._is_claimed and self.checkpoint.begun and not self.ended and error is not None:
                self.stop(error)
            self.release()


def _mark(folder: Path, name: str = CLAIM) -> tuple[int, int] | None:
    """Return the identity of the claim on a folder; None where there is none."""
    try:
        found = (folder / name).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _take(folder: Path, dead: tuple[int, int] | None) -> None:
    """Mark a folder as claimed; of several runs that try it at the same moment one gets it.

    Arguments:
        dead: the mark of a run that is known to have ended, as `_mark` returns it.

    Raises InputError: another one was first, or nothing can be written there.
    """
    mark = folder / CLAIM
    with writing(folder):
        try:
            if dead is not None:
                taken = mark.with_name(f"{CLAIM}.{os.getpid()}")
                mark.rename(taken)
                if _mark(folder, taken.name) != dead:
                    taken.rename(mark)  # that of another run, which was quicker
                    raise FileExistsError
                taken.unlink()
            mark.touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            raise InputError(_TAKEN, folder) from None
