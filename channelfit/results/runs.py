"""Run folders as they are found: the state of each run, compared with its process.

The files in a run folder may come from anybody. Only files with the names below are read, and of
these only plain files up to a size; texts are cut and made printable, and a value of another kind
than expected is left out.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from channelfit.reading.errors import InputError, printable
from channelfit.reading.files import read_plain
from channelfit.results.files import FIT, HISTORY, SUMMARY
from channelfit.results.run_state import (
    CLAIM,
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    STATE,
    still_runs,
)

#: Two states that no run can write itself.
KILLED, UNKNOWN = "killed", "unknown"
#: The record of a night, in a folder that holds run folders and is none itself.
NIGHT = "night.json"
#: The size of the largest file of each kind that is read, bytes.
_MOST = {STATE: 2**23, SUMMARY: 2**25, HISTORY: 2**27, NIGHT: 2**25}
#: The length of the longest text, characters, and of the longest list or table, entries.
_LONGEST, _ENTRIES = 2000, 2000
#: The columns of `history.csv` that are read.
_COLUMNS = ("generation", "best_cost", "median_cost")


@dataclass(frozen=True)
class FoundRun:
    """A run folder as it was when it was read.

    Attributes:
        folder: its path.
        state: running, finished, interrupted, failed, killed or unknown.
        why: the reason for the state, a sentence or a few words; empty for a run that goes on.
        content: by key, as described in `run_state.RunState`; only keys with a usable value.
    """

    folder: Path
    state: str
    why: str = ""
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the folder, printable."""
        return printable(self.folder.name or str(self.folder))

    @property
    def of_wells(self) -> bool:
        """Return whether the run is a batch, in which each well is fitted on its own."""
        return self.number("wells") is not None

    def number(self, key: str) -> float | None:
        """Return a finite number of the content, or None."""
        return self.content.get(key)

    def text(self, key: str) -> str:
        """Return a text of the content, printable; an empty one where there is none."""
        return str(self.content.get(key, ""))


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, finished or not."""
    if (folder / NIGHT).is_file():
        return False
    return any((folder / name).is_file() for name in (STATE, SUMMARY, CLAIM, HISTORY))


def jobs_of_night(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of a night from its record, by name.

    Returns: rows with `command`, `state` and `reason`, and `seconds` and `started` where they are
        known; empty where the folder is that of no night.
    """
    body = read_plain(folder / NIGHT, _MOST[NIGHT])
    try:
        found = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    rows = found.get("jobs") if isinstance(found, dict) else None
    read: dict[str, Any] = dict.fromkeys(("state", "command", "reason"), _text)
    read |= {"seconds": _number, "started": _moment, "process": _process}
    jobs = _table(rows, read) or {}
    for job in jobs.values():
        if job.get("state") == RUNNING and still_runs(job.get("process", {})) is False:
            job["state"] = KILLED
    return jobs


def find_run(folder: Path) -> FoundRun:
    """Return the state of the run in a folder, which its process confirms or refutes.

    Raises InputError: the folder is not there, or is not that of a run.
    """
    if not folder.is_dir():
        raise InputError("this folder is no longer there", folder)
    content = _content(folder / STATE)
    if content is None:
        return _without_state(folder)
    if content.get("state") != RUNNING:
        return _ended(folder, content)
    runs = still_runs(content.get("process", {}))
    if runs:
        return FoundRun(folder, RUNNING, "", content)
    if runs is None:
        host = content.get("process", {}).get("host", "").split(" ")[0] or "another computer"
        why = f"It runs on {host}, so that its process cannot be seen from here."
        return FoundRun(folder, RUNNING, why, content)
    again = _content(folder / STATE) or content  # it may have ended just now
    if again.get("state") != RUNNING:
        return _ended(folder, again)
    # All but the state was written, for which no room was left. A run that was killed while it
    # wrote its results, or after an interrupt that had written some, has left its claim, too.
    if (folder / SUMMARY).is_file() and not (folder / CLAIM).exists():
        return _without_state(folder)
    if "wells" in content:  # its fit.yaml is the file from which it began
        done, wells = again.get("wells_done", 0), content["wells"]
        kept = f"{done:.0f} of {wells:.0f} wells are done, and `--resume` goes on from there"
    elif (folder / FIT).is_file():
        kept = "fit.yaml holds the best that it had saved"
    else:
        kept = "it had not saved any parameters yet"
    why = f"Its process is gone, and did not say that it ended; {kept}."
    return FoundRun(folder, KILLED, why, again | {"stage": "", "seconds_left": None})


def _ended(folder: Path, content: dict[str, Any]) -> FoundRun:
    """Return a run with a state other than running."""
    state = content.get("state")
    if state not in (FINISHED, INTERRUPTED, FAILED):
        return FoundRun(folder, UNKNOWN, f"{STATE} does not say how it is.", content)
    return FoundRun(folder, str(state), str(content.get("reason", "")), content)


def _without_state(folder: Path) -> FoundRun:
    """Return the run in a folder without `state.json`, as those of earlier versions have none."""
    summary = _content(folder / SUMMARY)
    if summary is not None:
        content = dict(summary)
        for own, theirs in (("best_cost", "cost"), ("generation", "generations")):
            if theirs in summary:
                content[own] = summary[theirs]
        if "finished" in summary:
            content["updated"] = summary["finished"]
        if "rms_pA" in summary:
            content["cost_unit"] = "pA^2"
        reason = str(summary.get("stop_reason", ""))
        state = INTERRUPTED if reason == INTERRUPTED else FINISHED
        return FoundRun(folder, state, reason, content)
    if (folder / STATE).exists():
        return FoundRun(folder, UNKNOWN, f"{STATE} cannot be read.")
    if (folder / CLAIM).exists():
        return FoundRun(folder, UNKNOWN, "It runs or was killed: no file says which.")
    if (folder / HISTORY).is_file():
        return FoundRun(folder, INTERRUPTED, "It ended before it was done.")
    raise InputError("this is not the folder of a run", folder)


def history_of(folder: Path, most: int) -> list[tuple[float, float | None, float | None]]:
    """Return generation, best cost and median cost of rows of `history.csv`.

    A cost that is missing or not finite is None. Lines that are no such rows are left out.

    Arguments:
        most: the largest number of rows: of more, the last and others at even distances are taken.

    Returns: empty where there is no such file.
    """
    body = read_plain(folder / HISTORY, _MOST[HISTORY])
    header, *lines = (body or b"").decode("utf-8", "replace").splitlines() or [""]
    step = max(1, -(-len(lines) // most))
    lines = lines[(len(lines) - 1) % step :: step]
    try:
        places = [header.split(",").index(name) for name in _COLUMNS]
        cells = [
            [_finite(row[k]) if k < len(row) else None for k in places] for row in csv.reader(lines)
        ]
    except (ValueError, csv.Error):
        return []
    return [(row[0], row[1], row[2]) for row in cells if row[0] is not None]


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _content(file: Path) -> dict[str, Any] | None:
    """Return the usable content of `state.json` or `summary.json`; None where there is none."""
    body = read_plain(file, _MOST[file.name])
    if body is None:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return _usable(found, _KEYS)


# --- values that came from a file -----------------------------------------------------------------


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def _text(value: Any) -> str | None:
    return printable(value[:_LONGEST]) if isinstance(value, str) else None


def _moment(value: Any) -> str | None:
    """Return a date and time with its zone, ISO 8601; None for anything else."""
    try:
        return value if datetime.fromisoformat(value).tzinfo is not None else None
    except (TypeError, ValueError):
        return None


def _texts(value: Any) -> list[str] | None:
    """Return a list of texts; warnings in summaries are mappings of texts."""
    if not isinstance(value, list):
        return None
    rows = ("; ".join(map(str, one.values())) if isinstance(one, dict) else one for one in value)
    return [text for one in list(rows)[:_ENTRIES] if (text := _text(one)) is not None]


def _rows(value: Any) -> dict[str, dict[str, Any]] | None:
    """Return parameters: by name a mapping of value, unit, range and note."""
    read = dict.fromkeys(("value", "lower", "upper"), _number)
    return _table(value, {**read, **dict.fromkeys(("unit", "note"), _text)})


def _table(value: Any, read: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return a mapping of rows by name, each with the usable values of its keys.

    Arguments:
        read: for each key a function that returns a usable value or None.
    """
    if not isinstance(value, dict):
        return None
    return {
        printable(name[:_LONGEST]): _usable(row, read)
        for name, row in list(value.items())[:_ENTRIES]
        if isinstance(row, dict)
    }


def _usable(row: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row that are usable, by key; see `_table`."""
    return {key: own for key, reads in read.items() if (own := reads(row.get(key))) is not None}


def _process(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    kinds = {"pid": int, "started": str, "host": str}
    return {k: value[k] for k, kind in kinds.items() if isinstance(value.get(k), kind)}


def _stop(value: Any) -> dict[str, float] | None:
    if not isinstance(value, dict):
        return None
    rows = list(value.items())[:_ENTRIES]
    return {printable(k[:_LONGEST]): n for k, v in rows if (n := _number(v)) is not None}


_NUMBERS = (
    "generation",
    "generations",
    "evaluations",
    "seconds",
    "seconds_left",
    "candidates_per_second",
    "cost",
    "best_cost",
    "median_cost",
    "rms_pA",
    "failed",
    "seed",
    "wells",
    "wells_done",
    "wells_failed",
)
_TEXTS = ("state", "reason", "stage", "name", "model", "file", "directory", "version", "optimizer")
#: The keys that are read, each with a function that returns a usable value or None.
_KEYS: dict[str, Any] = {
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys((*_TEXTS, "cost_unit", "stop_reason"), _text),
    **dict.fromkeys(("started", "updated", "finished"), _moment),
    **dict.fromkeys(("command", "warnings", "logarithmic"), _texts),
    "parameters": _rows,
    "process": _process,
    "stop": _stop,
}
