"""A run of pieces whose results stand elsewhere: its folder exists only until they are whole.

From its first second the folder says that the run is unfinished (`state.json`) and of whom
(`.running`). `resume.json` and the results of pieces let it go on after an interrupt, a kill or a
full disk. All of it goes when the results are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from channelfit.front.interrupts import held
from channelfit.reading.cautions import Caution
from channelfit.reading.errors import InputError, NotWritten
from channelfit.reading.files import write_text
from channelfit.results import resuming
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.results.run_folder import Claim
from channelfit.results.run_state import FAILED, INTERRUPTED, STATE
from channelfit.tasks.result_store import ResultStore

#: The file of the results of tasks.
TASK_RESULTS = "pieces.bin"
#: Seconds between two writings of the state.
_TELL_EVERY = 1.0
_K = TypeVar("_K", bound=ResultStore)


class Unfinished:
    """The folder of a run, claimed for as long as a block runs.

    Arguments:
        folder: new, or that of the run that is to go on.
        verb: the command, which `--resume` must be given to.
        resume: whether the run goes on.
        say: tells the user how a run goes on that was cut off.

    Raises:
        InputError: the folder is there and the run is not to go on, or it cannot go on, or nothing
            can be written.
    """

    def __init__(self, folder: Path, verb: str, resume: bool, say: Callable[[str], object]) -> None:
        self.folder, self.verb, self.resume, self._say = folder, verb, resume, say
        self._kept: ResultStore | None = None
        self._finished = False
        self._told_at = 0.0
        self._faults: set[str] = set()

    def __enter__(self) -> Unfinished:
        with held():
            if not self.resume and (self.folder / resuming.RESUME).is_file():
                raise InputError(
                    "was left by a run that was cut off, or still goes on: "
                    f"`channelfit {self.verb} --resume {self.folder}` goes on with it; to begin "
                    "anew, remove this folder",
                    self.folder,
                )
            self.claim = Claim.resumed(self.folder) if self.resume else Claim(self.folder)
        return self

    def tell(self, **news: Any) -> InputError | None:
        """Takes what is new into the state; returns why it could not be written."""
        self.claim.state.content |= {"verb": self.verb, **news}
        self._told_at = time.monotonic()
        return self.claim.tell()

    def open(
        self, identity: Mapping[str, Any], arguments: Mapping[str, Any], make: Callable[[Path], _K]
    ) -> _K:
        """What keeps the results of pieces.

        Arguments:
            identity: all that the results depend on. arguments: of the command, by which it can
                be resumed. make: makes what keeps the results.

        Raises:
            InputError: the run that is to go on was another one, or nothing can be written.
        """
        file = self.folder / resuming.RESUME
        if self.resume:
            resuming.check_same(file, identity)
        else:
            write_text(file, resuming.text_of(identity, arguments, self.verb))
        kept = make(self.folder / TASK_RESULTS)
        self._kept = kept
        return kept

    def progress(self, counted: Counted, screen: SearchScreen) -> None:
        """Writes now and then how far the run is, and tells of what cannot be written."""
        fault = self._kept.fault if self._kept is not None else None
        if time.monotonic() - self._told_at >= _TELL_EVERY:
            with held():
                fault = fault or self.tell(
                    stage=screen.stage,
                    done=counted.done,
                    total=counted.total,
                    unit=counted.unit,
                    seconds=counted.seconds,
                    seconds_left=counted.seconds_left,
                    failed_pieces=counted.failed,
                )
        if fault is not None and fault.message not in self._faults:
            self._faults.add(fault.message)
            then = "the work goes on, but after a kill this would be computed again"
            screen.warn([Caution(str(fault.file), fault.message, then)])

    def finish(self) -> None:
        """Nothing is to be kept any more: the results are whole, or there can be none."""
        self._finished = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with held():
            # a mistake in the data would come again, and a full disk or a signal need not
            later = isinstance(error, KeyboardInterrupt | NotWritten | OSError)
            worth = self.resume or (self._kept is not None and (bool(self._kept.keys) or later))
            keep = worth and not self._finished
            if self._kept is not None:
                self._kept.close(keep)
            if keep:
                stopped = isinstance(error, KeyboardInterrupt)
                reason = "interrupted" if stopped else str(error) or type(error).__name__
                self.claim.state.end(INTERRUPTED if stopped else FAILED, reason)
                self.claim.tell()
                if self._kept is not None:
                    self._say(
                        f"channelfit {self.verb} --resume {self.folder} goes on with this run"
                    )
            else:
                for name in (resuming.RESUME, STATE, TASK_RESULTS):
                    (self.folder / name).unlink(missing_ok=True)
                self.claim.goes_on = False
            self.claim.release()
            if not keep and self.folder.is_dir() and not any(self.folder.iterdir()):
                self.folder.rmdir()
