"""Run folders as they are found: what each says of its run, and whether that is still so.

What stands in a run folder may come from anybody. Only files with the names below are read, and of
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

from channelfit.reading.errors import InputError
from channelfit.reading.files import read_plain
from channelfit.reading.texts import printable
from channelfit.results.processes import still_runs
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED, RUNNING, STATE

#: Two states that no run can tell of itself.
KILLED, UNKNOWN = "killed", "unknown"
_CLAIM, _SUMMARY, _HISTORY, _FIT = ".running", "summary.json", "history.csv", "fit.yaml"
#: The record of a night, in a folder that holds run folders and is none itself.
NIGHT = "night.json"
#: Bytes of the largest file of each kind that is read.
_MOST = {STATE: 2**23, _SUMMARY: 2**25, _HISTORY: 2**27, NIGHT: 2**25}
#: Characters of the longest text that is shown, and entries of the longest list or table.
_LONGEST, _ENTRIES = 2000, 2000
#: Columns of `history.csv` that are shown.
_COLUMNS = ("generation", "best_cost", "median_cost")


@dataclass(frozen=True)
class FoundRun:
    """A run folder as it was when it was looked at.

    Attributes:
        folder: where it is.
        state: running, finished, interrupted, failed, killed or unknown.
        why: what is behind the state, a sentence or a few words; empty for a run that goes on.
        content: by key, what `run_state.RunState` describes; only keys with a usable value.
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
        """Whether it is a batch, whose wells are fitted each on its own."""
        return self.number("wells") is not None

    def number(self, key: str) -> float | None:
        """A finite number of the content, or None."""
        return self.content.get(key)

    def text(self, key: str) -> str:
        """A text of the content, printable; empty where there is none."""
        return str(self.content.get(key, ""))


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, be it finished or not."""
    if (folder / NIGHT).is_file():
        return False
    return any((folder / name).is_file() for name in (STATE, _SUMMARY, _CLAIM, _HISTORY))


def jobs_of_night(folder: Path) -> dict[str, dict[str, Any]]:
    """What the record of a night says of each of its jobs, by name.

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
    jobs = {
        printable(name[:_LONGEST]): {
            key: own for key, reads in read.items() if (own := reads(row.get(key))) is not None
        }
        for name, row in list(rows.items() if isinstance(rows, dict) else ())[:_ENTRIES]
        if isinstance(row, dict)
    }
    for job in jobs.values():
        if job.get("state") == RUNNING and still_runs(job.get("process", {})) is False:
            job["state"] = KILLED
    return jobs


def find_run(folder: Path) -> FoundRun:
    """What a run folder says of its run, and what its process says of that.

    Raises:
        InputError: the folder is not there, or is no run's.
    """
    if not folder.is_dir():
        raise InputError("this folder is no longer there", folder)
    told = _content(folder / STATE)
    if told is None:
        return _without_state(folder)
    if told.get("state") != RUNNING:
        return _ended(folder, told)
    runs = still_runs(told.get("process", {}))
    if runs:
        return FoundRun(folder, RUNNING, "", told)
    if runs is None:
        host = told.get("process", {}).get("host", "").split(" ")[0] or "another computer"
        why = f"It runs on {host}, so that its process cannot be seen from here."
        return FoundRun(folder, RUNNING, why, told)
    again = _content(folder / STATE) or told  # it may have ended just now
    if again.get("state") != RUNNING:
        return _ended(folder, again)
    # all was written but the state, for which no room was left; a run that was killed while it
    # wrote its results, or after an interrupt that had written some, has left its claim as well
    if (folder / _SUMMARY).is_file() and not (folder / _CLAIM).exists():
        return _without_state(folder)
    if "wells" in told:  # its fit.yaml is the file from which it began
        done, wells = again.get("wells_done", 0), told["wells"]
        kept = f"{done:.0f} of {wells:.0f} wells are done, and `--resume` goes on from there"
    elif (folder / _FIT).is_file():
        kept = "fit.yaml holds the best that it had saved"
    else:
        kept = "it had not saved any parameters yet"
    why = f"Its process is gone, and did not say that it ended; {kept}."
    return FoundRun(folder, KILLED, why, again | {"stage": "", "seconds_left": None})


def _ended(folder: Path, told: dict[str, Any]) -> FoundRun:
    state = told.get("state")
    if state not in (FINISHED, INTERRUPTED, FAILED):
        return FoundRun(folder, UNKNOWN, f"{STATE} does not say how it is.", told)
    return FoundRun(folder, str(state), str(told.get("reason", "")), told)


def _without_state(folder: Path) -> FoundRun:
    """What a folder tells whose `state.json` is missing, as in those of earlier versions."""
    summary = _content(folder / _SUMMARY)
    if summary is not None:
        told = dict(summary)
        for own, theirs in (("best_cost", "cost"), ("generation", "generations")):
            if theirs in summary:
                told[own] = summary[theirs]
        if "finished" in summary:
            told["updated"] = summary["finished"]
        if "rms_pA" in summary:
            told["cost_unit"] = "pA^2"
        reason = str(summary.get("stop_reason", ""))
        state = INTERRUPTED if reason == INTERRUPTED else FINISHED
        return FoundRun(folder, state, reason, told)
    if (folder / STATE).exists():
        return FoundRun(folder, UNKNOWN, f"{STATE} cannot be read.")
    if (folder / _CLAIM).exists():
        return FoundRun(folder, UNKNOWN, "It runs or was killed: no file says which.")
    if (folder / _HISTORY).is_file():
        return FoundRun(folder, INTERRUPTED, "It ended before it was done.")
    raise InputError("this is not the folder of a run", folder)


def history_of(folder: Path, most: int) -> list[tuple[float, float | None, float | None]]:
    """The generation, best cost and median cost of some rows of `history.csv`.

    A cost that is missing or not finite is None. Lines that are none of its rows are left out.

    Arguments:
        most: how many rows there may be: of more, the last and others at even distances are taken.

    Returns: empty where there is no such file.
    """
    body = read_plain(folder / _HISTORY, _MOST[_HISTORY])
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
    """The usable content of `state.json` or `summary.json`; None where there is none."""
    body = read_plain(file, _MOST[file.name])
    if body is None:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {
        key: value for key, read in _KEYS.items() if (value := read(found.get(key))) is not None
    }


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
    """A date and time with its zone, ISO 8601."""
    try:
        return value if datetime.fromisoformat(value).tzinfo is not None else None
    except (TypeError, ValueError):
        return None


def _texts(value: Any) -> list[str] | None:
    """A list of texts; warnings stand in summaries as mappings of texts."""
    if not isinstance(value, list):
        return None
    rows = ("; ".join(map(str, one.values())) if isinstance(one, dict) else one for one in value)
    return [text for one in list(rows)[:_ENTRIES] if (text := _text(one)) is not None]


def _rows(value: Any) -> dict[str, dict[str, Any]] | None:
    """Parameters: by name a mapping of value, unit, range and note."""
    if not isinstance(value, dict):
        return None
    read = {"value": _number, "lower": _number, "upper": _number, "unit": _text, "note": _text}
    return {
        printable(name[:_LONGEST]): {
            key: own for key, reads in read.items() if (own := reads(row.get(key))) is not None
        }
        for name, row in list(value.items())[:_ENTRIES]
        if isinstance(row, dict)
    }


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
#: What is read of the content of a file, and how.
_KEYS: dict[str, Any] = {
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys((*_TEXTS, "cost_unit", "stop_reason"), _text),
    **dict.fromkeys(("started", "updated", "finished"), _moment),
    **dict.fromkeys(("command", "warnings", "logarithmic"), _texts),
    "parameters": _rows,
    "process": _process,
    "stop": _stop,
}
