"""The screen of `channelfit run`: lines as jobs begin and end.

On a terminal the running jobs stand below them, each with the state of its run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rich.console import RenderableType
from rich.text import Text

from channelfit.front.json_lines import EVENTS, JsonLines
from channelfit.front.night.record import SKIPPED, WAITING, NightRecord
from channelfit.reading.errors import InputError
from channelfit.results.report.terminal import SearchScreen, duration
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED, RUNNING
from channelfit.results.runs import find_run

#: Seconds between two readings of the states of runs.
_LOOK_EVERY = 1.0


class RunningJob(Protocol):
    """A running job; `began` is a moment of `time.monotonic`, in s."""

    began: float


class NightScreen(SearchScreen):
    """Shows how a night goes on.

    Arguments:
        lines: of JSON, where they were requested.
        title: the name of the night.
        folder: of its results.
        quiet: whether to show nothing but warnings.
    """

    def __init__(self, lines: JsonLines, title: str, folder: Path, quiet: bool = False) -> None:
        super().__init__(title, quiet)
        self._lines = lines
        self._folder = folder
        self._running: dict[str, float] = {}
        self._states: dict[str, str] = {}
        self._looked = 0.0
        self._fault = ""

    def begun(self, name: str, command: str, goes_on: bool, record: NightRecord) -> None:
        """Show that a job has begun, or that it resumes the run of an earlier call."""
        stage = f"{name}: {command} {'goes on' if goes_on else 'begins'}"
        self.say(f"{_clock()} {stage}")
        known = {**dict.fromkeys(EVENTS["progress"]), "stage": stage, "unit": "jobs"}
        counts = record.counts()
        ended = len(record.jobs) - counts.get(WAITING, 0) - counts.get(RUNNING, 0)
        bad = counts.get(FAILED, 0) + counts.get(SKIPPED, 0) + counts.get(INTERRUPTED, 0)
        news = {"done": ended, "total": len(record.jobs), "failed": bad}
        self._lines.write("progress", **{**known, **news})

    def kept(self, name: str, record: NightRecord) -> None:
        """Show that a job had finished before this call."""
        self._lines.done(name, kept=True, result={"command": record.jobs[name]["command"]})

    def ended(self, name: str, record: NightRecord) -> None:
        """Show that a job has ended or is skipped."""
        row, counts = record.jobs[name], record.counts()
        self._running.pop(name, None)
        left = counts.get(WAITING, 0) + counts.get(RUNNING, 0)
        line = f"{_clock()} {name}: {row['state']}"
        if row["state"] != SKIPPED and "seconds" in row:
            line += f" after {duration(row['seconds'])}"
        line += f": {row['reason']}" if row.get("reason") else ""
        line += f" (see {record.folder / name}.log)" if row["state"] == FAILED else ""
        self.say(f"{line}; {len(record.jobs) - left} of {len(record.jobs)} ended")
        if row["state"] == FINISHED:
            self._lines.done(name, result={"command": row["command"], "took": row.get("seconds")})
        else:
            reason = f"{row['state']}: {row['reason']}"
            self._lines.write("failed", name=name, reason=reason, count=1)
        fault = str(record.fault or "")
        if fault and fault != self._fault:
            self.say(f"Warning: {fault}; it will be tried again")
        self._fault = fault

    def look(self, running: Mapping[str, RunningJob]) -> None:
        """Read about once a second the states of the running jobs."""
        if not self.live or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        self._running = {name: one.began for name, one in running.items()}
        self._states = {name: _in_words(self._folder / name) for name in running}

    def picture(self) -> RenderableType:
        """Return the running jobs, a line each; before the first one, the stage of the work."""
        if not self._running:
            return super().picture()
        lines = [
            f"{name}  {duration(time.monotonic() - began)}  {self._states.get(name, '')}"
            for name, began in self._running.items()
        ]
        return Text("\n".join([*lines, "Ctrl-C stops, and --resume goes on"]), style="cyan")


def _in_words(folder: Path) -> str:
    """Return the state of a run in words: its generation, its cost and the time that is left."""
    try:
        run = find_run(folder)
    except (InputError, OSError):
        return ""
    left, done, cost = run.number("seconds_left"), run.number("generation"), run.number("best_cost")
    words = [run.text("stage")]
    words.append("" if done is None else f"generation {done:.0f}")
    words.append("" if cost is None else f"best cost {cost:.4g}")
    words.append("" if left is None else f"{duration(left)} left")
    return ", ".join(word for word in words if word)


def _clock() -> str:
    return f"{datetime.now():%H:%M:%S}"
