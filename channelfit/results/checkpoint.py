"""Whether and how an interrupted run goes on: `resume.json`, a journal and results of tasks.

`resume.json` is written before the work begins. It holds the arguments of the command, and the
`identity` of the run: the fit file as it was read, the data, the generated code, the versions and
the machine. The journal (`search.journal`) holds the answers of the scorer so far, the third file
the results of the tasks that are done (`tasks.result_store`). All three are removed when the run
has finished.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError, shown
from channelfit.reading.files import PARTIAL, discard_partial, write_text
from channelfit.results.files import SUMMARY, make_folder, sync_folder
from channelfit.results.identity import differences
from channelfit.results.run_state import CLAIM, FINISHED, STATE, host, plain, still_runs
from channelfit.search.journal import Journal
from channelfit.tasks.result_store import ResultStore

#: The names of the three files.
RESUME, JOURNAL, RESULTS = "resume.json", "journal.bin", "pieces.bin"
#: The beginning of their names for a study of a fit, which may stand in the folder of the fit.
STUDY = "uncertainty-"


class Checkpoint:
    """The files in a folder from which its run goes on after an interrupt, a kill or a full disk.

    Arguments:
        folder: of the run.
        prefix: the beginning of the names of the files.

    Attributes:
        resume_file: `resume.json`.
        journal: the answers of a scorer; None until `open_journal`.
        results: of the tasks; None until `open_results`.
        begun: whether `resume.json` belongs to this run.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        files = (folder / f"{prefix}{name}" for name in (RESUME, JOURNAL, RESULTS))
        self.resume_file, self._journal_file, self._results_file = files
        self.journal: Journal | None = None
        self.results: ResultStore | None = None
        self.begun = False

    def begin(
        self,
        identity: Mapping[str, Any],
        arguments: Mapping[str, Any] | None = None,
        verb: str = "optimize",
    ) -> None:
        """Write `resume.json`, or compare the identity with that of the interrupted run.

        Arguments:
            identity: all that the results depend on, by name.
            arguments: of the command, by which it can be resumed; None for a call from Python.
            verb: the command.

        Raises InputError: something has changed since the earlier run, or nothing can be written.
        """
        if self.resume_file.exists():
            self.check(identity)
        else:
            content = {
                "verb": verb,
                "identity": identity,
                "arguments": None if arguments is None else plain(arguments),
                "directory": os.getcwd(),
            }
            text = json.dumps(content, indent=1, allow_nan=False, default=str) + "\n"
            write_text(self.resume_file, text)
        self.begun = True

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raise InputError, with each difference, where the earlier run had another identity."""
        earlier = read_resume_file(self.resume_file).get("identity")
        if not isinstance(earlier, dict):
            raise InputError("is damaged: it does not say what was fitted", self.resume_file)
        if changes := differences(earlier, identity):
            raise InputError(
                "cannot go on to the same result, since what it depends on has changed: "
                f"{changes}. Begin again in a new folder",
                self.resume_file,
            )

    def open_journal(self) -> Journal:
        """Open the journal, which holds the answers to an earlier run.

        Raises InputError: it cannot be read or written.
        """
        self.journal = Journal(self._journal_file)
        return self.journal

    @property
    def left_results(self) -> bool:
        """Return whether an earlier run has left a file of results of tasks."""
        return self._results_file.exists()

    def open_results(self, make: Callable[[Path], ResultStore] = ResultStore) -> ResultStore:
        """Open the file of results of tasks, which holds those of an earlier run.

        An earlier run may have worked without tasks. Its journal then begins anew, since it
        answers other questions.

        Arguments:
            make: returns the object that keeps the results, from the path of the file.

        Raises InputError: it cannot be read or written.
        """
        if not self.left_results:
            if self.journal is None:
                self._journal_file.unlink(missing_ok=True)
            else:
                self.journal.close(keep=False)
                self.open_journal()
        self.results = make(self._results_file)
        return self.results

    @property
    def has_results(self) -> bool:
        """Return whether the result of any task is kept."""
        return self.results is not None and bool(self.results.keys)

    @property
    def fault(self) -> InputError | None:
        """The reason why an answer or a result could not be kept; None while all are."""
        faults = [one.fault for one in (self.journal, self.results) if one is not None]
        return next((fault for fault in faults if fault is not None), None)

    def close(self, keep: bool) -> None:
        """Close the files.

        Arguments:
            keep: whether the run can go on from them; else they are removed.
        """
        for one in (self.journal, self.results):
            if one is not None:
                with suppress(OSError):  # of a full disk, which `fault` has reported
                    one.close(keep)
        if not keep:
            for file in (self._journal_file, self._results_file, self.resume_file):
                file.unlink(missing_ok=True)


class StudyCheckpoint(Checkpoint):
    """The checkpoint of a study of a fit, in the folder of its results.

    Arguments:
        folder: of the results; it is made where it is missing.
        identity: of the fit, and the options of the study.
        resume: whether to go on with an interrupted study.
        prefix: the beginning of the names of its files.

    Raises InputError: an interrupted study is there and is not resumed, or the other way round; or
    something has changed since; or the folder cannot be used.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, Any], resume: bool, prefix: str = STUDY
    ) -> None:
        super().__init__(folder, prefix)
        self._folder, self._made = folder, False
        if resume:
            self.check(identity)
        elif self.resume_file.exists():
            raise InputError(
                "was left by a study that was cut off: --resume goes on with it; to begin anew "
                f"remove this file, {self._journal_file.name} and {self._results_file.name}",
                self.resume_file,
            )
        else:
            self._made = make_folder(folder)
            self.begin(identity)
        self.open_journal()
        if resume:
            discard_partial(folder)

    def close(self, keep: bool) -> None:
        """Close the files, and remove the folder where it was made for the study and is empty.

        Raises InputError: the results are not on the disk, so that the files stay.
        """
        if not keep:
            sync_folder(self._folder)
        super().close(keep)
        if not keep and self._made and not any(self._folder.iterdir()):
            self._folder.rmdir()


def read_resume_file(file: Path) -> dict[str, Any]:
    """Return the content of a `resume.json`. Raises InputError where it is missing or damaged."""
    if not file.is_file():
        raise InputError(
            f"holds nothing to go on with: there is no {file.name}, as while files are still read "
            "and when a run has finished",
            file.parent,
        )
    return read_json(file)


def arguments_of(folder: Path, verb: str) -> tuple[dict[str, Any], Path]:
    """Return the arguments of the command that began a run, and the folder where it was called.

    Arguments:
        verb: the command that is to go on, such as optimize.

    Raises InputError: the folder holds no run of this command that can go on, or its `resume.json`
    is damaged.
    """
    content = read_resume_file(folder / RESUME)
    arguments, directory = content.get("arguments"), content.get("directory")
    begun = content.get("verb", "")
    if isinstance(begun, str) and begun not in ("", verb):
        raise InputError(
            f"was begun by `channelfit {shown(begun)}`, which goes on with it", folder / RESUME
        )
    if not isinstance(arguments, dict) or not isinstance(directory, str):
        raise InputError(
            f"was not begun by `channelfit {verb}`; in Python make the same call again, with "
            "resume=True",
            folder / RESUME,
        )
    return arguments, Path(directory)


#: The files that a run writes before it can be resumed, beside those that are half written.
_EARLY = re.compile(
    rf"\.running(\.\d+)?|state\.json|recordings\.json|source\.(py|cu)|{PARTIAL.pattern}"
)


def check_stopped(folder: Path, claimed: bool) -> None:
    """Refuse to resume a run that has finished, or still goes on.

    Arguments:
        claimed: whether a run has claimed the folder, and has not released it.

    Raises InputError: the run has finished, still runs, or may run on another computer; or there is
    nothing that could go on.
    """
    if not folder.is_dir():
        raise InputError("is no folder of a run", folder)
    state = _state(folder)
    if state.get("state") == FINISHED:
        raise InputError("this run has finished; there is nothing to go on with", folder)
    if not (folder / RESUME).is_file() and cut_off_early(folder):
        raise InputError(
            "holds nothing to go on with: the run was cut off before its work began; begin it "
            "again, with the same command",
            folder,
        )
    read_resume_file(folder / RESUME)
    if not claimed:
        return
    process = state.get("process")
    if not isinstance(process, dict):
        raise InputError(
            f"its {STATE} is missing or damaged, so that nothing tells whether the run has ended; "
            f"if it has, remove the file {CLAIM}",
            folder,
        )
    runs = still_runs(process)
    if runs:
        raise InputError(f"this run still goes on, as process {process.get('pid')}", folder)
    if runs is None:
        where = process.get("host", "another computer")
        raise InputError(
            f"was begun on {shown(where)}, and this is {shown(host())}: it cannot be seen from "
            f"here whether that run has ended; if it has, remove the file {CLAIM}",
            folder,
        )


def how_to_go_on(folder: Path) -> str:
    """Return a sentence on an interrupted run in a folder: with which command it goes on."""
    try:
        content = read_json(folder / RESUME)
    except InputError:  # damaged, which --resume reports
        content = {}
    verb = content.get("verb")
    how = f"`channelfit {shown(verb or 'optimize').strip(chr(34))} --resume {folder}`"
    if content.get("arguments", "") is None:
        how = "the same call with resume=True"
    return f"was left by a run that was cut off, or still goes on: {how} goes on with it"


def has_finished(folder: Path) -> bool:
    """Return whether the run of a folder has finished.

    It says so in its state, or it has results, no state, and nothing to go on with.
    """
    state = _state(folder).get("state")
    only_results = (folder / SUMMARY).is_file() and state is None
    left = any((folder / name).exists() for name in (RESUME, CLAIM))
    return state == FINISHED or (only_results and not left)


def cut_off_early(folder: Path) -> bool:
    """Return whether a folder holds only the files of a run that was killed before its work began.

    A run that may still go on, such as one on another computer, has not been killed.
    """
    names = [path.name for path in folder.iterdir()]
    if STATE not in names or not all(map(_EARLY.fullmatch, names)):
        return False
    process = _state(folder).get("process")
    return isinstance(process, dict) and still_runs(process) is False


def _state(folder: Path) -> dict[str, Any]:
    """Return the content of `state.json`; an empty one where the file is missing or damaged.

    A power failure may damage the file, which is written anew every second, and the run can go on
    without it.
    """
    try:
        return read_json(folder / STATE) if (folder / STATE).is_file() else {}
    except InputError:
        return {}
