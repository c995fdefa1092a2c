"""The queue of the jobs of a night: each runs in a process of its own, several side by side.

`graphlib.TopologicalSorter` gives their order. The processes are watched from a single thread,
since they do all the work and nothing here computes; so there is no pool of threads to be
interrupted, and no server, database or broker that would have to run all night as well.

A job that crashes, runs out of memory or is killed fails alone: those that wait for it are skipped,
and all others are done.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from channelfit import __version__
from channelfit.front import interrupts
from channelfit.front.night.calls import Call
from channelfit.front.night.checks import fit_file
from channelfit.front.night.jobs import Night
from channelfit.front.night.record import BEGUN, SKIPPED, WAITING, NightRecord, now
from channelfit.front.night.screen import NightScreen
from channelfit.reading.errors import InputError, printable
from channelfit.reading.files import opened, writing
from channelfit.reading.second_process import own_group
from channelfit.results.identity import differences, sha256_of
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED, RUNNING, process_of
from channelfit.results.runs import find_run

#: The program of a job. It imports from where this process does and, by -P, not from the folder of
#: the night, in which it works.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); sys.argv[0] = 'channelfit'; "
    "from channelfit.__main__ import program; program()"
)
#: Seconds between two polls of the processes.
_LOOK_EVERY = 0.1
#: The length of the end of a log in which the reason of a failure is searched, bytes.
_TAIL = 1 << 16


@dataclass
class _Running:
    """A running job: its process, when it began (s, monotonic), and its share of the cores."""

    process: subprocess.Popen[bytes]
    began: float
    share: int


class Queue:
    """The jobs of a night and the processes in which they run.

    Arguments:
        night: with its jobs.
        calls: the command line of each job, by name.
        files: by job, the files that it reads (`checks.Checks.files`).
        record: the states of the jobs, in the folder of the night.
        screen: shows how the night goes on.
    """

    def __init__(
        self,
        night: Night,
        calls: Mapping[str, Call],
        files: Mapping[str, list[Path]],
        record: NightRecord,
        screen: NightScreen,
    ) -> None:
        self.night, self.calls, self.files = night, calls, files
        self.record, self.screen = record, screen
        self._folder = record.folder.absolute()
        self._place = partial(fit_file, calls=calls, folder=self._folder)
        self._running: dict[str, _Running] = {}

    def check_unchanged(self) -> None:
        """Refuse to go on with a night where a job has changed that has finished or begun.

        Jobs that have not begun, or have failed, may change; there may be new ones.

        Raises InputError: with the job and each difference.
        """
        for name, row in self.record.jobs.items():
            if row["state"] != FINISHED and row["state"] not in BEGUN:
                continue
            if name not in self.calls:
                raise InputError(
                    f"the job {name} is {row['state']} in {self.record.folder}, and no longer "
                    "there; put it back, or begin again in a new folder",
                    self.night.file,
                    "jobs",
                )
            if changes := differences(row.get("inputs", {}), self._inputs(name)):
                raise self.night.error(
                    self.night.jobs[name],
                    f"is {row['state']} in {self.record.folder}, and what it depends on has "
                    f"changed since: {changes}. Begin again in a new folder",
                )

    def forget(self) -> None:
        """Remove jobs from the record that had not begun and are no longer in the file."""
        for name in [name for name in self.record.jobs if name not in self.calls]:
            del self.record.jobs[name]

    def run(self) -> None:
        """Run all jobs that can be run, and return when none is left.

        Raises:
            KeyboardInterrupt: a signal has come; the jobs that were running have saved their
                progress, and go on when the night is resumed.
        """
        sorter, ready = self.night.sorter(), list[str]()
        sorter.prepare()
        order = list(self.night.jobs)
        try:
            while sorter.is_active():
                ready = sorted([*ready, *sorter.get_ready()], key=order.index)
                while ready and len(self._running) < self.night.side_by_side:
                    alone = len(ready) == 1 and not self._running
                    self._begin_or_skip(ready.pop(0), alone, sorter)
                    ready = sorted([*ready, *sorter.get_ready()], key=order.index)
                self._wait(sorter)
        except BaseException:
            with interrupts.held():
                self._stop()
            raise

    def _begin_or_skip(self, name: str, alone: bool, sorter: TopologicalSorter[str]) -> None:
        row = self.record.jobs[name]
        if row["state"] == FINISHED:
            self.screen.kept(name, self.record)
            sorter.done(name)
            return
        missing = [
            one for one in self.night.jobs[name].after if self.record.jobs[one]["state"] != FINISHED
        ]
        if missing:
            states = {one: self.record.jobs[one]["state"] for one in missing}
            others = "; ".join(f"{one}, {_in_words(state)}" for one, state in states.items())
            self.record.change(name, state=SKIPPED, reason=f"it waits for {others}")
            self.screen.ended(name, self.record)
            sorter.done(name)
            return
        with interrupts.held():  # a process that has started must be recorded
            self._begin(name, alone)
        if name not in self._running:  # it could not be begun, or had ended without our knowledge
            sorter.done(name)

    # --- one job ------------------------------------------------------------------------------

    def _begin(self, name: str, alone: bool) -> None:
        row, call = self.record.jobs[name], self.calls[name]
        out = self._folder / name
        if row["state"] == RUNNING and _has_finished(out):
            self._note(name, FINISHED, "it had finished when the night was cut off", row)
            return
        try:
            words, goes_on = self._words(name, out)
            inputs = self._inputs(name)
            if call.wants_its_folder:
                with writing(out):
                    out.mkdir(exist_ok=True)
            taken = {one.share for one in self._running.values()}
            share = next(k for k in range(self.night.side_by_side) if k not in taken)
            with self._cores(share, alone):
                process = self._started(name, words)
        except InputError as error:
            self._note(name, FAILED, f"could not be begun: {error}", {})
            return
        self._running[name] = _Running(process, time.monotonic(), share)
        self.record.change(
            name,
            state=RUNNING,
            reason="",
            started=now(),
            process=process_of(process.pid),
            inputs=inputs,
            earlier_seconds=row.get("seconds", 0.0) if goes_on else 0.0,
        )
        self.screen.begun(name, call.job.command, goes_on, self.record)

    def _words(self, name: str, out: Path) -> tuple[list[str], bool]:
        """Return the command line of a job, and whether it resumes the run of an earlier call."""
        call, row = self.calls[name], self.record.jobs[name]
        words = call.words(out, self._place)
        if not out.exists():
            return words, False
        if out.is_symlink() or not out.is_dir():
            raise InputError("is no folder that a night has made, and is left alone", out)
        same = not differences(row.get("inputs", {}), self._inputs(name))
        left = _left_in(out) if same else None
        if left is not None:
            if call.resumes == "flag":
                return [words[0], "--resume", *words[1:]], True
            if call.resumes == "run":
                # a run does not keep which workers it had
                workers = [word for word in words if word.startswith("--cluster=")]
                return [words[0], f"--resume={left}", *workers], True
        if row["state"] != WAITING:
            with writing(out):
                shutil.rmtree(out)  # part of a result, which cannot be resumed
        return words, False

    def _started(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        log = self.record.folder / f"{name}.log"
        with writing(log), os.fdopen(opened(log, os.O_APPEND), "ab") as file:
            file.write(f"$ {shlex.join(['channelfit', *words])}\n".encode(errors="replace"))
            file.flush()
            return subprocess.Popen(  # noqa: S603  (this very Python, and no shell)
                [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.night.folder,
                **own_group(),  # Ctrl-C is passed on by this process
            )

    @contextmanager
    def _cores(self, share: int, alone: bool) -> Iterator[None]:
        """Give a process that is started within the block its share of the cores, on Linux.

        A job that runs alone has all of them.
        """
        parts = self.night.side_by_side
        if sys.platform != "linux" or alone or parts == 1:
            yield
            return
        every = sorted(os.sched_getaffinity(0))
        first, last = share * len(every) // parts, (share + 1) * len(every) // parts
        os.sched_setaffinity(0, every[first:last] or [every[share % len(every)]])
        try:
            yield
        finally:
            os.sched_setaffinity(0, every)

    def _inputs(self, name: str) -> dict[str, str]:
        """Return all that the result of a job depends on, by name."""
        call = self.calls[name]
        anywhere = partial(fit_file, calls=self.calls, folder=Path())  # the folder may be moved
        found = {
            "command": shlex.join(call.words(Path(name), anywhere)),
            "version of channelfit": __version__,
        }
        for file in self.files.get(name, ()):
            found[str(file)] = _hash(file)
        for result in call.job.results():
            file = self._place(result)
            if file.is_file():
                found[f"the result of {result.job}, {file.name},"] = _hash(file)
        return found

    # --- the end of a job ---------------------------------------------------------------------

    def _wait(self, sorter: TopologicalSorter[str]) -> None:
        """Wait until one of the running jobs has ended."""
        while self._running:
            ended = [name for name, one in self._running.items() if one.process.poll() is not None]
            for name in ended:
                with interrupts.held():
                    self._take(name)
                sorter.done(name)
            if ended:
                return
            self.screen.look(self._running)
            time.sleep(_LOOK_EVERY)

    def _take(self, name: str, stopped: bool = False) -> None:
        """Record how a job has ended."""
        one = self._running.pop(name)
        code = one.process.returncode
        row = self.record.jobs[name]
        seconds = row.get("earlier_seconds", 0.0) + time.monotonic() - one.began
        if code == 0:
            self._note(name, FINISHED, "", {"seconds": seconds, "exit_code": code})
        elif code in (130, 143) or (stopped and code < 0):
            news = {"seconds": seconds, "exit_code": code}
            self._note(name, INTERRUPTED, "it goes on when the night is resumed", news)
        else:
            why = _why(code, self.record.folder / f"{name}.log")
            self._note(name, FAILED, why, {"seconds": seconds, "exit_code": code})

    def _note(self, name: str, state: str, reason: str, news: Mapping[str, Any]) -> None:
        self.record.change(
            name, **{**news, "state": state, "reason": reason, "ended": now(), "process": None}
        )
        self.screen.ended(name, self.record)

    def _stop(self) -> None:
        """End all running jobs, and wait until they have saved their progress.

        At a second signal they are killed; they then go on from what they have saved before.
        """
        number = next(iter(interrupts.seen()), signal.SIGTERM)
        for one in self._running.values():
            _send(one.process, number)
        if self._running:
            self.screen.say(f"Ending {', '.join(self._running)}; Ctrl-C once more kills them.")
        n_signals = len(interrupts.seen())
        while self._running:
            for name in [n for n, one in self._running.items() if one.process.poll() is not None]:
                self._take(name, stopped=True)
            if len(interrupts.seen()) > n_signals:
                for one in self._running.values():
                    one.process.kill()
            time.sleep(_LOOK_EVERY)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    if sys.platform == "win32":
        process.terminate()
    else:
        process.send_signal(number)


def _left_in(out: Path) -> Path | None:
    """Return the folder from which a command can be resumed; None where there is none.

    It is that of the results, or one beside results that begin with a prefix.
    """
    for pattern in ("*resume.json", "*-unfinished/resume.json"):
        for found in sorted(out.glob(pattern)):
            return found.parent
    return None


def _has_finished(out: Path) -> bool:
    """Return whether the state of a run says that it has finished."""
    try:
        return find_run(out).state == FINISHED
    except (InputError, OSError):  # it is no run, or has left nothing
        return False


def _hash(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        return f"not readable: {error.strerror or error}"


def _in_words(state: str) -> str:
    return {FAILED: "which failed", SKIPPED: "which was skipped"}.get(state, f"which is {state}")


def _why(code: int, log: Path) -> str:
    """Return why a job has failed, in one line: the last line of its log, or a signal."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        memory = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"it was killed by {name}{memory}"
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    texts = [line.strip() for line in lines if line.strip() and not line.startswith("$ ")]
    errors = [line.removeprefix("Error: ") for line in texts if line.startswith("Error: ")]
    last = (errors or texts or ["it said nothing"])[-1]
    return printable(last[:1000]) if code == 2 else f"exit code {code}: {printable(last[:1000])}"
