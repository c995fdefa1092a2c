"""The run folder of `channelfit curves` and `channelfit fhn`, until the results are whole.

Then the files by which a run is resumed are removed; of `channelfit curves`, the whole folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from channelfit.front.interrupts import held
from channelfit.reading.errors import InputError, TemporaryError
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.results.run_folder import RunFolder


class UnfinishedRun(RunFolder):
    """The folder of a run that is there only until the results are whole.

    Arguments:
        verb: the command, to which `--resume` must be given.
        say: tells the user how an interrupted run goes on.
    """

    def __init__(self, verb: str, say: Callable[[str], object]) -> None:
        super().__init__(held)
        self.verb, self._say = verb, say

    def report(self, **news: Any) -> InputError | None:
        """See `RunFolder.report`; the state names the command, too."""
        return super().report(verb=self.verb, **news)

    def progress(self, counted: Counted, screen: SearchScreen) -> None:
        """Report now and then how far the run is, and warn of what cannot be written."""
        fault = self.checkpoint.fault or self.report_now_and_then(
            lambda: self.report(
                stage=screen.stage,
                done=counted.done,
                total=counted.total,
                unit=counted.unit,
                seconds=counted.seconds,
                seconds_left=counted.seconds_left,
                failed_pieces=counted.failed,
            )
        )
        then = "the work goes on, but after a kill this would be computed again"
        screen.warn(self.new_cautions(fault, then))

    def stop(self, error: BaseException) -> InputError | None:
        """See `RunFolder.stop`; a run without results is discarded if the error would come again.

        A mistake in the data would, and a full disk, a GPU that fails or a signal need not.
        """
        transient = isinstance(error, KeyboardInterrupt | TemporaryError | OSError)
        is_open = self.checkpoint.results is not None
        if not (self.resumed or (is_open and (self.checkpoint.has_results or transient))):
            self.discard()
            return None
        fault = super().stop(error)
        if is_open:
            self._say(f"channelfit {self.verb} --resume {self.path} goes on with this run")
        return fault
