"""What a run folder keeps so that a run that was cut off can go on: `resume.json` and a journal.

`resume.json` is written before the search begins. It holds the arguments of the command, and what
the result depends on: the fit's file as it was read, the data, the generated code, the versions and
the machine. A run that is resumed compares all of that with what is there now, and goes on only if
nothing differs, since its result could not be that of an uninterrupted run otherwise. The journal
(`search.journal`) holds what the search was told so far. Both go when the run has finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError
from channelfit.reading.files import PARTIAL, discard_partial, write_text
from channelfit.reading.units import shown
from channelfit.results.files import make_folder, settle
from channelfit.results.processes import host, still_runs
from channelfit.results.run_state import FINISHED, STATE, plain
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import processor
from channelfit.search.journal import Journal, differences
from channelfit.tasks.result_store import ResultStore
from channelfit.tasks.worker import software

if TYPE_CHECKING:
    from channelfit.problem.protocol import Protocol
    from channelfit.scoring.scorer import Scorer
    from channelfit.search.plan import FitPlan

#: The files of a run folder that are there until the run has finished.
RESUME, JOURNAL = "resume.json", "journal.bin"
#: The results of tasks, in the folder of a run that is computed as tasks.
TASK_RESULTS = "pieces.bin"
#: The same of a study of a fit, which may stand in the folder of the fit.
STUDY_RESUME, STUDY_JOURNAL = "uncertainty-resume.json", "uncertainty-journal.bin"
STUDY_TASK_RESULTS = "uncertainty-pieces.bin"
#: Differences that are told one by one.
_TOLD = 5


def arguments_of(folder: Path, verb: str) -> tuple[dict[str, Any], Path]:
    """The arguments of the command that began a run, and the folder in which it was called.

    Arguments:
        verb: of the command, such as optimize.

    Raises:
        InputError: the folder holds no run of this verb that can go on, or its `resume.json` is
            damaged.
    """
    content = _content(folder / RESUME)
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


def identity(plan: FitPlan, scorer: Scorer) -> dict[str, Any]:
    """All that the result of a search depends on, by name, as JSON holds it."""
    on_gpu = scorer.backend == "cuda"
    found: dict[str, Any] = {
        **_flat("model", plan.document),
        **_flat("fit", plan.section),
        "optimizer": plan.optimizer,
        "seed": plan.seed,
        **dict(_data(plan)),
        "backend": scorer.backend,
        "precision": scorer.dtype,
        "path": scorer.path,
        "generated code": scorer.source_hash,
        **software(on_gpu),
        "processor": processor(),
    }
    if on_gpu:
        found["GPU"] = gpu.device().name
    plain_text: dict[str, Any] = json.loads(json.dumps(plain(found), default=str))
    return plain_text


def text_of(
    found: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    verb: str = "optimize",
) -> str:
    """What `resume.json` holds.

    Arguments:
        found: an `identity`.
        arguments: of the command; None for a call from Python.
        verb: of the command.
    """
    content = {
        "verb": verb,
        "identity": found,
        "arguments": None if arguments is None else plain(arguments),
        "directory": os.getcwd(),
    }
    return json.dumps(content, indent=1, allow_nan=False, default=str) + "\n"


def check_same(file: Path, now: Mapping[str, Any]) -> None:
    """Refuses to go on with a run of which anything has changed.

    Arguments:
        file: the `resume.json` of the earlier run.
        now: the `identity` of this one.

    Raises:
        InputError: with each difference: what it was, and what it is.
    """
    earlier = _content(file).get("identity")
    if not isinstance(earlier, dict):
        raise InputError("is damaged: it does not say what was fitted", file)
    told = differences(earlier, now)
    if told:
        more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        raise InputError(
            "cannot go on to the same result, since what it depends on has changed: "
            f"{'; '.join(told[:_TOLD])}{more}. Begin again in a new folder",
            file,
        )


class KeptStudy:
    """The journal of a study of a fit, in the folder of its results.

    Arguments:
        folder: where the results will be.
        found: the `identity` of the fit, and what is wanted of it.
        resume: whether to go on with what an earlier study has left there.

    Raises:
        InputError: there is something to go on with and it is not wanted, or the other way round;
            or something has changed since; or the folder cannot be used.
    """

    def __init__(self, folder: Path, found: Mapping[str, Any], resume: bool) -> None:
        self._resume, journal = folder / STUDY_RESUME, folder / STUDY_JOURNAL
        self._made = False
        if resume:
            check_same(self._resume, found)
        elif self._resume.exists():
            raise InputError(
                "was left by a study that was cut off: --resume goes on with it; to begin anew "
                f"remove this file, {journal.name} and {STUDY_TASK_RESULTS}",
                self._resume,
            )
        else:
            self._made = make_folder(folder)
            write_text(self._resume, text_of(found))
        self.journal = Journal(journal)
        if resume:
            discard_partial(folder)
        self._task_results: ResultStore | None = None

    @property
    def has_task_results(self) -> bool:
        """Whether an earlier study has left results of tasks here: profiles or chains."""
        return self._resume.with_name(STUDY_TASK_RESULTS).exists()

    @property
    def has_results(self) -> bool:
        """Whether the result of a task is stored."""
        return self._task_results is not None and bool(self._task_results.keys)

    def open_task_results(self) -> ResultStore:
        """Store results of tasks from now on: profiles and chains.

        If an earlier part of the study computed these without tasks, its journal holds scores that
        are not needed again, so a new journal is begun.
        """
        if not self.has_task_results:
            self.journal.close(keep=False)
            self.journal = Journal(self.journal.path)
        self._task_results = ResultStore(self._resume.with_name(STUDY_TASK_RESULTS))
        return self._task_results

    def close(self, keep: bool) -> None:
        """Close the journal and the results of tasks, and delete them if the study has finished."""
        if not keep:
            settle(self._resume.parent)
        self.journal.close(keep)
        if self._task_results is not None:
            self._task_results.close(keep)
        if not keep:
            self._resume.unlink(missing_ok=True)
            if self._made and not any(self._resume.parent.iterdir()):
                self._resume.parent.rmdir()


def check_stopped(folder: Path, running: bool) -> None:
    """Refuses to take over a folder whose run has finished, or still goes on.

    Arguments:
        running: whether a run has marked the folder as its own.

    Raises:
        InputError: the run has finished, still runs, or may run on another computer; or there is
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
    _content(folder / RESUME)
    if not running:
        return
    process = state.get("process")
    if not isinstance(process, dict):
        raise InputError(
            f"its {STATE} is missing or damaged, so that nothing tells whether the run has ended; "
            "if it has, remove the file .running",
            folder,
        )
    runs = still_runs(process)
    if runs:
        raise InputError(f"this run still goes on, as process {process.get('pid')}", folder)
    if runs is None:
        where = process.get("host", "another computer")
        raise InputError(
            f"was begun on {shown(where)}, and this is {shown(host())}: it cannot be seen from "
            "here whether that run has ended; if it has, remove the file .running",
            folder,
        )


def how_to_go_on(folder: Path) -> str:
    """What is told of a folder with a run that was cut off, and of how it goes on."""
    try:
        content = read_json(folder / RESUME)
    except InputError:  # damaged, which --resume tells
        content = {}
    verb = content.get("verb")
    how = f"`channelfit {shown(verb or 'optimize').strip(chr(34))} --resume {folder}`"
    if content.get("arguments", "") is None:
        how = "the same call with resume=True"
    return f"was left by a run that was cut off, or still goes on: {how} goes on with it"


def has_finished(folder: Path) -> bool:
    """Whether the run of a folder is done: it says so, or has only results and none to go on by."""
    state = _state(folder).get("state")
    only = (folder / "summary.json").is_file() and state is None
    left = any((folder / name).exists() for name in (RESUME, ".running"))
    return state == FINISHED or (only and not left)


def _state(folder: Path) -> dict[str, Any]:
    """What a run has said of itself; nothing where its file is missing or damaged.

    A power failure may damage the file, which is written anew every second, and the run can go on
    without it.
    """
    try:
        return read_json(folder / STATE) if (folder / STATE).is_file() else {}
    except InputError:
        return {}


#: What a run has written before there is anything that could go on, beside files half written.
_EARLY = re.compile(
    rf"\.running(\.\d+)?|state\.json|recordings\.json|source\.(py|cu)|{PARTIAL.pattern}"
)


def cut_off_early(folder: Path) -> bool:
    """Whether a folder holds only what a run leaves that was killed before its work began."""
    names = [path.name for path in folder.iterdir()]
    if STATE not in names or not all(map(_EARLY.fullmatch, names)):
        return False
    process = _state(folder).get("process")
    return isinstance(process, dict) and still_runs(process) is False


def _content(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(
            f"holds nothing to go on with: there is no {file.name}, as while files are still read "
            "and when a run has finished",
            file.parent,
        )
    return read_json(file)


def _flat(name: str, value: Any) -> dict[str, Any]:
    """The leaves of nested mappings and lists, by dotted key."""
    if isinstance(value, Mapping):
        rows = [(f"{name}.{key}", each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        rows = [(f"{name}[{k}]", each) for k, each in enumerate(value, 1)]
    else:
        return {name: value}
    found: dict[str, Any] = {}
    for key, each in rows:
        found |= _flat(key, each)
    return found


def _data(plan: FitPlan) -> Iterator[tuple[str, Any]]:
    """A hash of each recording with its weights and its command, or of a function's table.

    The cell and the temperature of an experiment stand beside them, since those of a call from
    Python are in no file.
    """
    if not plan.has_currents:
        data = getattr(plan.problem, "data", None)
        if data is not None:
            tables = (data.inputs, data.targets, data.scales)
            yield "data", hash_of(*(values for table in tables for values in table.values()))
        return
    for number, experiment in enumerate(plan.problem.experiments, 1):
        protocol, recording = experiment.protocol, experiment.recording
        yield f"command of experiment {number}", _hash_of_command(protocol)
        yield f"cell of experiment {number}", experiment.cell
        yield f"temperature of experiment {number}, degC,", experiment.temperature_C
        if recording is not None:
            yield (
                f"recording of experiment {number}",
                hash_of(recording.current_pA, recording.weight, recording.time_ms),
            )


def _hash_of_command(protocol: Protocol) -> str:
    """Of what was commanded at every sample and between samples, and of what came before."""
    before = (protocol.resting_mV, protocol.carry_over, protocol.rest_ms, protocol.holding_mV)
    return hash_of(protocol.times_ms, protocol.command(), repr(protocol.sweeps), repr(before))


def hash_of(*parts: np.ndarray | str) -> str:
    """A hash of arrays and texts, 16 hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
        else:
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]
