"""`--json`: what a command does, as lines of JSON for scripts.

Standard output then holds one JSON object a line and nothing else; each line is written at once.
The first is a `begin`, the last an `end`, which also comes after a failure or an interrupt that a
command can answer; a process that was killed leaves none. `EVENTS` names all events with their
keys, and docs/scripts.md shows that table.

Lines are ASCII and strict JSON: what is not finite is null, and whatever a file's name or text
holds is escaped.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from channelfit import __version__
from channelfit.front import interrupts
from channelfit.reading import memory
from channelfit.reading.errors import Caution, InputError
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED, current_folder, plain
from channelfit.search.loop import Progress

#: Seconds between two lines about the progress of the same stage.
EVERY = 1.0
#: By event: its keys, and what each holds. `begin` and `end` come once, the others as often as
#: there is something to tell.
EVENTS: Mapping[str, Mapping[str, str]] = {
    "begin": {
        "version": "of channelfit",
        "process": "number of the process",
        "directory": "in which it was called; relative paths are relative to it",
        "command": "list of the words that were typed",
    },
    "progress": {
        "stage": "what is being done, in words",
        "done": "how much of it is done; null where that cannot be counted",
        "total": "how much there is to do; null where it is not known",
        "unit": "what is counted: generations, data sets, wells, units of time ..; null with them",
        "seconds_left": "estimate from the pace so far; null where there is none",
        "failed": "how many of those that are done have no result; of a search the share of the "
        "generation's candidates that have no cost",
        "kept": "how many an earlier process had done (--resume); null in a search",
        "best_cost": "of a search: the lowest so far; null before there is one, and elsewhere",
        "evaluations": "of a search: candidates scored; null elsewhere",
    },
    "warning": {
        "place": "the file and the key, or the part of the data; null where `value` says it all",
        "value": "what was found there",
        "advice": "what would be right, or what to look at; null where `value` says it all",
    },
    "failed": {
        "name": "of the piece of the work that has no result: a well, data sets, a task",
        "reason": "why, in words",
        "count": "how many things in it failed; the work goes on with the others",
    },
    "done": {
        "name": "of a piece of the work that has a result: a well, a task",
        "kept": "whether an earlier process had done it (--resume)",
        "result": "what is to be known of it, by name; null where that is nothing",
    },
    "end": {
        "state": "finished, interrupted or failed",
        "exit_code": "that the process ends with",
        "reason": "why it ended so, in words; null where it finished",
        "folder": "of the results, or of what is kept for --resume; null where there is none",
        "files": "list of the paths of the results",
        "summary": "the numbers of the results, as in their file of JSON; null where there is none",
    },
}
#: The keys of every line, before those of its event.
EVERY_LINE: Mapping[str, str] = {
    "event": "one of those below",
    "verb": "the command: optimize, uncertainty, discover, batch, curves, cell, fhn, run",
    "seconds": "since the command began",
}


def line(content: Mapping[str, Any]) -> str:
    """Return a mapping as one line of strict JSON in ASCII, whatever text it holds."""
    return json.dumps(_clean(plain(content)), allow_nan=False, default=_text) + "\n"


def _text(value: Any) -> str:
    return str(_clean(str(value)))


def _clean(value: Any) -> Any:
    """Return the value without halves of surrogate pairs, as in names that are no UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list) else value


class JsonLines:
    """The lines of one command: the first when the block begins, the last when it ends.

    Arguments:
        verb: the command.
        enabled: whether they are written, by ``--json``.

    Example:
        >>> from channelfit.front.json_lines import JsonLines
        >>> with JsonLines("batch", enabled=False) as lines:
        ...     lines.done("A01")
        ...     lines.result(folder="plates/one")
    """

    def __init__(self, verb: str, enabled: bool = True) -> None:
        self.verb, self.enabled = verb, enabled
        self._began = time.perf_counter()
        self._end: dict[str, Any] = {
            "state": FINISHED,
            "exit_code": 0,
            "reason": None,
            "folder": None,
            "files": [],
            "summary": None,
        }

    def __enter__(self) -> JsonLines:
        if self.enabled and sys.stdout is None:
            raise InputError("standard output is closed, so that --json has nowhere to write")
        self.write(
            "begin",
            version=__version__,
            process=os.getpid(),
            directory=current_folder(),
            command=list(sys.argv),
        )
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with interrupts.held():
            if error is not None:
                state, code = _how_it_ended(error)
                reason = str(error) or type(error).__name__
                if isinstance(error, KeyboardInterrupt):
                    reason = "interrupted"
                self._end |= {"state": state, "exit_code": code, "reason": reason}
                folder = self._end["folder"]
                if folder is not None and not Path(folder).is_dir():  # nothing was worth keeping
                    self._end["folder"] = None
            if not isinstance(error, BrokenPipeError):
                self.write("end", **self._end)

    def write(self, event: str, **keys: Any) -> None:
        """Write a line. Raises KeyError for an event or keys that `EVENTS` does not name."""
        if set(keys) != set(EVENTS[event]):
            raise KeyError(f"{event} has the keys {', '.join(EVENTS[event])}")
        if not self.enabled:
            return
        seconds = round(time.perf_counter() - self._began, 3)
        head = {"event": event, "verb": self.verb, "seconds": seconds}
        sys.stdout.write(line({**head, **{key: keys[key] for key in EVENTS[event]}}))
        sys.stdout.flush()

    def folder(self, folder: str | os.PathLike[str]) -> None:
        """Set the folder of the work, which the last line has even after an interrupt."""
        self._end["folder"] = os.fspath(folder)

    def done(self, name: str, kept: bool = False, result: Mapping[str, Any] | None = None) -> None:
        """Report that a part of the work has a result."""
        self.write("done", name=name, kept=kept, result=result)

    def result(
        self,
        folder: str | os.PathLike[str] | None = None,
        files: Sequence[str | os.PathLike[str]] = (),
        summary: Mapping[str, Any] | None = None,
        interrupted: bool = False,
        failed: tuple[int, str] | None = None,
    ) -> None:
        """Set the content of the last line.

        Arguments:
            interrupted: whether a signal cut the work short, and what there was became the result.
            failed: the exit code and the reason, where a part of the work has no result.
        """
        self._end |= {
            "folder": None if folder is None else os.fspath(folder),
            "files": [os.fspath(file) for file in files],
            "summary": summary,
        }
        if interrupted:
            code = interrupts.exit_code()
            self._end |= {"state": INTERRUPTED, "exit_code": code, "reason": "interrupted"}
        if failed is not None:
            self._end |= {"state": FAILED, "exit_code": failed[0], "reason": failed[1]}

    def screen(self, title: str, quiet: bool = False) -> SearchScreen:
        """Return the screen of the command, which also writes these lines if they are requested."""
        return JsonScreen(self, title, quiet) if self.enabled else SearchScreen(title, quiet)


class JsonScreen(SearchScreen):
    """A screen on standard error, which also writes the lines of a command.

    Arguments:
        lines: where they are written.
        title, quiet: as of `SearchScreen`.
    """

    def __init__(self, lines: JsonLines, title: str, quiet: bool = False) -> None:
        super().__init__(title, quiet)
        self.lines = lines
        self._written_at = -math.inf

    def warn(self, cautions: Iterable[Caution]) -> None:
        """Write each caution as a line, and show it on the screen."""
        for caution in cautions:
            super().warn([caution])
            self.lines.write(
                "warning",
                place=caution.place,
                value=caution.value,
                advice=caution.advice,
            )

    def warn_of(self, text: str) -> None:
        """Write a caution that is a sentence, and show it on the screen."""
        super().warn_of(text)
        self.lines.write("warning", place=None, value=text, advice=None)

    def begin(self, stage: str) -> None:
        """Write a line about a stage that has begun."""
        super().begin(stage)
        if stage:
            self._progress(stage)
        self._written_at = -math.inf

    def count(self, counted: Counted) -> None:
        """Write a line about counted work, now and then and when all is done."""
        super().count(counted)
        if counted.ended or time.monotonic() - self._written_at >= EVERY:
            self._written_at = time.monotonic()
            self._progress(
                self.stage,
                done=counted.done,
                total=counted.total,
                unit=counted.unit,
                seconds_left=0.0 if counted.ended else counted.seconds_left,
                failed=counted.failed,
                kept=counted.kept,
            )

    def fail(self, name: str, reason: str, count: int = 1) -> None:
        """Write a line about a part that failed, and show the first ones on the screen."""
        super().fail(name, reason, count)
        self.lines.write("failed", name=name, reason=reason, count=count)

    def update(self, progress: Progress) -> None:
        """Write a line about a search, now and then and after its last generation."""
        super().update(progress)
        if self._is_last(progress) or time.monotonic() - self._written_at >= EVERY:
            self._written_at = time.monotonic()
            self._progress(
                progress.stage or "searching",
                done=progress.generation,
                total=self.rules.generations,
                unit="generations",
                seconds_left=progress.seconds_left,
                failed=progress.failed,
                best_cost=progress.best_cost,
                evaluations=progress.evaluations,
            )

    def _progress(self, stage: str, **known: Any) -> None:
        self.lines.write(
            "progress", **{**dict.fromkeys(EVENTS["progress"]), "stage": stage, **known}
        )


def _how_it_ended(error: BaseException) -> tuple[str, int]:
    """Return the state and the exit code after an error, as the command line ends with it."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, interrupts.exit_code()
    if isinstance(error, InputError | OSError) or memory.ran_out(error):
        return FAILED, 2
    if interrupts.have_come():  # it came out of a library as an error of its own
        return INTERRUPTED, interrupts.exit_code()
    return FAILED, 1
