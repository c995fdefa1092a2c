"""Checks of the run in a folder: whether it has ended, and whether it can be resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError, shown
from channelfit.reading.files import PARTIAL
from channelfit.results.checkpoint import RESUME, read_resume_file
from channelfit.results.files import SUMMARY
from channelfit.results.run_state import CLAIM, FINISHED, STATE, host, still_runs

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
