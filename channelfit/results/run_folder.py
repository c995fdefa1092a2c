"""The run folder: what a search found, how, and what repeats it beside the recordings.

``fit.yaml``      the model with the fitted values, and its fit section: can be simulated, and
                  fitted again; simulated data lie beside it (``data*.csv``)
``history.csv``   a row a generation
``report.html``   all that follows in one page, with figures to zoom: the file to send to others
``traces.png``    data, fit, residual and command voltage
``traces.csv``    the same as a table, with a number in its name where there are several experiments
``summary.json``  numbers, seed, versions, machine, stop reason
``source.py``     the generated code that scored the candidates (``source.cu`` of a GPU)
``state.json``    whether the run goes on, how far it is and how it ended (`run_state`)

Each file is written under another name and then moved into place, so that none is ever half
there. While the search runs, what it has so far is saved every few seconds, its numbers every
second, and the file `.running` keeps other runs out of the folder.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.csv_tables import csv_rows
from channelfit.reading.errors import InputError
from channelfit.reading.files import discard_partial, write_text, writing
from channelfit.results import resuming
from channelfit.results.files import make_folder, settle
from channelfit.results.report.artist import Artist
from channelfit.results.report.page_facts import facts_of
from channelfit.results.report.traces import Page, fitted
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED, STATE, RunState, plain
from channelfit.search.journal import Journal
from channelfit.search.saved_fit import fit_document, save_data, saved_text
from channelfit.tasks.result_store import ResultStore

if TYPE_CHECKING:
    from channelfit.results.run_summary import Winner
    from channelfit.scoring.scorer import Scorer
    from channelfit.search.loop import FitResult, Progress
    from channelfit.search.plan import FitPlan

#: What the report of a run is called.
REPORT = "report.html"
#: Seconds between two saves of a running search.
SAVE_EVERY = 5.0
#: Seconds between two writings of its numbers, where one takes less than `_TELLS_IN`; if it takes
#: longer, they are as much rarer, so that the search never spends more than a hundredth on them.
TELL_EVERY, _TELLS_IN = 1.0, 0.01
#: The file that tells other runs that a folder is in use.
_RUNNING = ".running"
_TAKEN = "another run is using this folder, or was killed in it; give --out a new folder"
_HISTORY = ("generation", "evaluations", "seconds", "best_cost", "median_cost", "failed")


def default_folder(name: str) -> Path:
    """Makes ``runs/NAME-YYYYmmdd-HHMMSS``, with a number behind it when that is taken.

    Making it is what reserves it: of two runs that ask in the same second each gets its own.

    Raises:
        InputError: the folder cannot be made.
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
    """A user's name as one part of a path, whatever characters it holds."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("._")[:80] or "model"


def check_folder(folder: Path) -> None:
    """Raises InputError when the folder holds something already, or is none.

    What a run has left that was killed before its work began counts as nothing.
    """
    try:
        parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        found = [p.name for p in folder.iterdir()] if folder.exists() else []
    except OSError as error:
        raise InputError(f"cannot be used: {error.strerror or error}", folder) from None
    if not os.access(parent, os.W_OK):
        raise InputError(f"cannot be written to: no permission in {parent}", folder)
    if found and resuming.cut_off_early(folder):
        return
    if resuming.RESUME in found:
        raise InputError(
            f"{resuming.how_to_go_on(folder)}; to begin anew, give a new folder", folder
        )
    if _RUNNING in found:
        raise InputError(_TAKEN, folder)
    if found:
        raise InputError(
            "this folder is not empty, and a run never overwrites another; give --out a new folder",
            folder,
        )


class Claim:
    """A folder that one run has taken for itself alone, before it begins to work.

    The file `.running` in the folder says so to every other run; it goes when the run ends, and a
    run that was killed leaves it there. `state` is what `state.json` says, and `goes_on` whether an
    earlier run is resumed.

    Arguments:
        folder: new, or there and empty; it is made, with the folders above it.

    Raises:
        InputError: the folder holds something, cannot be written to, or another run has it.
    """

    def __init__(self, folder: Path) -> None:
        dead = _mark(folder)
        check_folder(folder)
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        make_folder(folder)
        _take(folder, dead)
        for left in folder.iterdir():  # by a run that was killed before its work began
            if left.name != _RUNNING:
                left.unlink()
        self.path, self._made = folder, missing
        self.state, self.goes_on = RunState(), False
        self.tell()  # what cannot be written now is told of when the search begins

    @classmethod
    def resumed(cls, folder: Path) -> Claim:
        """Takes over the folder of a run that was interrupted, failed or was killed.

        Of several that want it at the same moment one gets it.

        Raises:
            InputError: the run has finished or still goes on, or the folder holds none.
        """
        dead = _mark(folder)
        resuming.check_stopped(folder, dead is not None)
        _take(folder, dead)
        # the mark may have been that of another process that wanted it too and had not yet said so
        resuming.check_stopped(folder, dead is not None)
        discard_partial(folder)
        claim = cls.__new__(cls)
        claim.path, claim._made, claim.state, claim.goes_on = folder, [], RunState(), True
        claim.tell()
        return claim

    @classmethod
    def by_name(cls, name: str) -> Claim:
        """Takes the default folder of a run: a new one, whichever other runs begin with this."""
        folder = default_folder(name)
        claim = cls(folder)
        claim._made = [folder]
        return claim

    def tell(self) -> InputError | None:
        """Writes `state.json`. Returns why that was not possible; None where it was."""
        try:
            write_text(self.path / STATE, self.state.text())
        except InputError as fault:
            return fault
        return None

    def release(self) -> None:
        """Ends the claim, and takes away the folders that it has made and nothing has filled.

        A run that has not said how it ended has nothing to show, and so no state.
        """
        if self.goes_on and not self.state.ended:
            self.state.end(INTERRUPTED, "it could not be resumed")
            self.tell()
        elif not self.state.ended:
            (self.path / STATE).unlink(missing_ok=True)
        (self.path / _RUNNING).unlink(missing_ok=True)
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:  # something is in it, and so in those above it
                break


def _mark(folder: Path, name: str = _RUNNING) -> tuple[int, int] | None:
    """What tells the mark of a run in a folder from any other one's; None where there is none."""
    try:
        found = (folder / name).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _take(folder: Path, dead: tuple[int, int] | None) -> None:
    """Marks a folder as in use; of several that want it at the same moment one gets it.

    Arguments:
        dead: the mark of a run that is known to have ended, as `_mark` gives it.

    Raises:
        InputError: another one was first, or nothing can be written there.
    """
    mark = folder / _RUNNING
    with writing(folder):
        try:
            if dead is not None:
                taken = mark.with_name(f"{_RUNNING}.{os.getpid()}")
                mark.rename(taken)
                if _mark(folder, taken.name) != dead:
                    taken.rename(mark)  # somebody else's, who was quicker
                    raise FileExistsError
                taken.unlink()
            mark.touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            raise InputError(_TAKEN, folder) from None


@dataclass
class RunFolder:
    """One run's folder while the search goes on and after it; `artist` draws the picture in it."""

    claim: Claim
    fit: FitPlan
    artist: Artist = field(default_factory=Artist)
    journal: Journal | None = None
    task_results: ResultStore | None = None
    _ended: bool = False
    _has_data: bool = False
    _rows: list[Sequence[float | None]] = field(default_factory=list)
    _text: io.StringIO = field(default_factory=io.StringIO)
    _rendered: int = 0
    _saved: float = field(default_factory=time.monotonic)
    _saved_cost: float = math.inf
    _told: float = -math.inf
    _telling: float = 0.0
    _best: tuple[float, np.ndarray] | None = None

    def __post_init__(self) -> None:
        self._text.write(csv_rows([_HISTORY]))
        self.claim.state.plan(self.fit)
        self.claim.tell()

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.claim.path

    def save_source(self, scorer: Scorer) -> None:
        """The generated code, where the backend has any."""
        if scorer.source_text:
            name = "source.cu" if scorer.backend == "cuda" else "source.py"
            write_text(self.path / name, scorer.source_text)

    def open_journal(self, scorer: Scorer, arguments: Mapping[str, Any] | None) -> Journal:
        """What the search is told is kept from now on; of a resumed run it is what it was told.

        Arguments:
            arguments: of the command; None for a call from Python.

        Raises:
            InputError: the run that is to go on was another one, or nothing can be written.
        """
        self._open_resume(scorer, arguments)
        self.journal = Journal(self.path / resuming.JOURNAL)
        return self.journal

    @property
    def has_task_results(self) -> bool:
        """Whether an earlier run has left results of tasks here."""
        return (self.path / resuming.TASK_RESULTS).exists()

    def open_task_results(self, scorer: Scorer, arguments: Mapping[str, Any] | None) -> ResultStore:
        """Store results of tasks from now on; arguments and errors as of `open_journal`."""
        self._open_resume(scorer, arguments)
        # an earlier part of the run may have kept a journal, which tasks do not use
        (self.path / resuming.JOURNAL).unlink(missing_ok=True)
        self.task_results = ResultStore(self.path / resuming.TASK_RESULTS)
        return self.task_results

    def _open_resume(self, scorer: Scorer, arguments: Mapping[str, Any] | None) -> None:
        found = resuming.identity(self.fit, scorer)
        if (self.path / resuming.RESUME).exists():
            resuming.check_same(self.path / resuming.RESUME, found)
        else:
            write_text(self.path / resuming.RESUME, resuming.text_of(found, arguments))

    def _close_journal(self, keep: bool) -> None:
        """Close the journal and the results of tasks, and delete them if the run has finished."""
        if not keep:
            settle(self.path)
        for one in (self.journal, self.task_results):
            if one is not None:
                one.close(keep)
                if not keep:
                    (self.path / resuming.RESUME).unlink(missing_ok=True)

    def begin(self, stage: str) -> InputError | None:
        """Says in the state what is being done now; returns why that could not be written."""
        self.claim.state.content["stage"] = stage
        return self.claim.tell()

    def record(self, progress: Progress) -> InputError | None:
        """Takes in a generation; saves the state of the search every few seconds.

        What cannot be saved now is saved later, or refused by `finish`: a disk that is full for a
        while does not end a search.

        Returns: why the state could not be saved; None where it was, or was not due.
        """
        self._rows.append(
            (
                progress.generation,
                progress.evaluations,
                progress.seconds,
                progress.best_cost,
                progress.median_cost,
                progress.failed,
            )
        )
        if progress.parameters is not None:
            self._best = progress.best_cost, progress.parameters
        faults, now = [], time.monotonic()
        if self._best and now - self._saved >= SAVE_EVERY:
            faults.append(self._save_best())
            self._saved = time.monotonic()
        if now - self._told >= TELL_EVERY * max(1.0, self._telling / _TELLS_IN):
            begun = time.monotonic()
            self.claim.state.progress(progress, self.fit)
            faults += [self._save_rows(), self.claim.tell()]
            self._told = time.monotonic()
            self._telling = self._told - begun
        return _first(faults)

    def _save_best(self) -> InputError | None:
        """Saves the best candidate, unless it has been; returns why that was not possible."""
        if self._best is None or self._best[0] >= self._saved_cost:
            return None
        try:
            self.save_fit(self._best[1])
        except InputError as fault:
            return fault
        self._saved_cost = self._best[0]
        return None

    def _save_rows(self) -> InputError | None:
        """Saves the generations so far; returns why that was not possible."""
        if not self._rows:
            return None
        self._text.write(csv_rows(self._rows[self._rendered :]))
        self._rendered = len(self._rows)
        try:
            write_text(self.path / "history.csv", self._text.getvalue())
        except InputError as fault:
            return fault
        return None

    def begin_drawing(self, result: FitResult, winner: Any) -> None:
        """Begins with the picture, which takes long, and goes on."""
        page = page_of(self.fit, winner, result.evaluations)
        self.artist.begin(page, self.path / "traces.png")

    def finish(self, result: FitResult, summary: dict[str, Any]) -> InputError | None:
        """Writes everything, and waits for the picture that `begin_drawing` has begun and for the
        report.

        Each file is written, whichever others could not be.

        Returns: why `state.json` could not be written, without which no result is lost.

        Raises:
            InputError: another file cannot be written; the message holds the values where they are
                in no file.
        """
        steps: tuple[Callable[[], None], ...] = (
            lambda: self.save_fit(result.values),
            lambda: write_text(
                self.path / "history.csv", csv_rows([_HISTORY]) + csv_rows(result.history.tolist())
            ),
            lambda: write_text(self.path / "summary.json", json_text(summary)),
            lambda: self._finish_drawing(result),
        )
        facts = facts_of(self.fit, result, json_text(summary))
        self.artist.report(facts, self.path / REPORT)
        faults = {}
        for k, step in enumerate(steps):
            try:
                with writing(self.path):
                    step()
            except InputError as error:
                faults[k] = error
        self._ended = True
        self._close_journal(bool(faults) or result.stop_reason == INTERRUPTED)
        untold = self._end(result, summary, _first(faults.values()))
        self.claim.release()
        if 0 in faults:
            found = ", ".join(f"{name} = {value!r}" for name, value in result.parameters.items())
            told = f"{faults[0].message}; the values that were found: {found}"
            raise InputError(told, faults[0].file)
        for fault in faults.values():
            raise fault
        return untold

    def _end(
        self, result: FitResult, summary: dict[str, Any], fault: InputError | None
    ) -> InputError | None:
        """Says in the state how the search ended; returns why that could not be written."""
        state, reason = FINISHED, result.stop_reason
        if fault is not None:
            state, reason = FAILED, str(fault)
        elif reason == INTERRUPTED:
            state = INTERRUPTED
        rows = result.history.tolist()
        news = dict(zip(_HISTORY, rows[-1], strict=True)) if rows else {}
        told = ("seconds", "candidates_per_second", "parameters")
        news |= {key: summary[key] for key in told if key in summary}
        news |= {"evaluations": result.evaluations, "best_cost": summary["cost"]}
        self.claim.state.end(state, reason, **news)
        return self.claim.tell()

    def _finish_drawing(self, result: FitResult) -> None:
        self.artist.finish()

    def abandon(self, error: BaseException | None = None) -> InputError | None:
        """After a failure: what there is so far, or no folder at all when there is nothing.

        Arguments:
            error: what has ended the run.

        Returns: why what there is could not be saved; None where it was.
        """
        if self._ended:
            return None
        fault = None
        has_task_results = self.task_results is not None and bool(self.task_results.keys)
        something = bool(self._rows) or has_task_results or self.claim.goes_on
        self._close_journal(something)
        if something:
            if isinstance(error, KeyboardInterrupt):
                self.claim.state.end(INTERRUPTED, "interrupted before it was done")
            else:
                self.claim.state.end(FAILED, str(error) or type(error).__name__)
            fault = _first([self._save_best(), self._save_rows(), self.claim.tell()])
        else:
            for name in ("source.py", "source.cu"):
                (self.path / name).unlink(missing_ok=True)
        self.claim.release()
        return fault

    def save_fit(self, values: np.ndarray) -> None:
        if not self._has_data:
            save_data(self.fit, self.path)
            self._has_data = True
        write_text(self.path / "fit.yaml", saved_text(fit_document(self.fit, values, self.path)))


def _first(faults: Iterable[InputError | None]) -> InputError | None:
    """The first that is one; None where none is."""
    return next((fault for fault in faults if fault is not None), None)


def page_of(fit: FitPlan, winner: Winner, evaluations: int) -> Page:
    """What a picture of a fit shows: data, fit, residual and command voltage of each experiment."""
    experiments = fit.problem.experiments
    membranes: Sequence[np.ndarray | None] = [None] * len(experiments)
    if any(e.clamp is not None for e in experiments):
        from channelfit.scoring.membrane import membrane_potentials  # loads LLVM

        membranes = membrane_potentials(fit.problem, winner.values)
    rows = zip(experiments, winner.traces, membranes, strict=True)
    return Page(
        tuple(fitted(*row) for row in rows),
        fit.name,
        f"RMS {winner.rms_pA:.3g} pA after {evaluations:,} candidates",
    )


def titles(fit: FitPlan) -> dict[str, str]:
    """What a fit is called, and described as where it says so."""
    told = {"name": fit.name, "description": fit.description, "source": fit.source}
    return {key: text for key, text in told.items() if text}


def json_text(data: object) -> str:
    """Strict JSON: what is not finite becomes null."""
    return json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
