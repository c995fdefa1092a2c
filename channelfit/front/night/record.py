"""`night.json`: the state of every job of a night, written anew whenever one begins or ends.

It is there from the first second, and says that the night is unfinished until it has ended. A night
that was interrupted or killed goes on from it: jobs that have finished are not repeated. At the end
it becomes the results: a table on the screen, `summary.json` and the page `night.html`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from channelfit import __version__
from channelfit.front.night.jobs import Night
from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError
from channelfit.reading.files import discard_partial, opened, write_text, writing
from channelfit.results.files import fault_of, make_folder
from channelfit.results.report import terminal
from channelfit.results.report.page_shell import page_text
from channelfit.results.run_state import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    moment,
    plain,
    still_runs,
    this_process,
)
from channelfit.results.runs import NIGHT
from channelfit.tasks.records import lock

#: States of a job that no run has: it has not begun, or will not since another one has failed.
WAITING, SKIPPED = "waiting", "skipped"
#: States of a job that has begun and has not ended.
BEGUN = (RUNNING, INTERRUPTED)
_STATES = (WAITING, RUNNING, FINISHED, FAILED, SKIPPED, INTERRUPTED)
#: The file that keeps a second `channelfit run` out of the folder while one works in it.
LOCK = ".night.lock"


class NightRecord:
    """The states of the jobs of a night, in the folder of its results; made by `record_of`.

    Attributes:
        folder: of the night.
        earlier: whether a night has begun there before.
        content: as `night.json` holds it; its `jobs` are rows by name.
        fault: why the last change could not be written; None where it was.
    """

    def __init__(self, folder: Path, content: dict[str, Any] | None) -> None:
        self.folder, self.earlier = folder, content is not None
        self.content: dict[str, Any] = content or {"jobs": {}}
        self.fault: InputError | None = None

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """A row a job, by name: state, reason, seconds and its arguments."""
        rows: dict[str, dict[str, Any]] = self.content["jobs"]
        return rows

    def begin(self, night: Night) -> None:
        """Write that a night begins or goes on, and its jobs. Raises InputError as `write` does."""
        self.content |= {
            "night": night.name,
            "description": night.description,
            "file": str(night.file.absolute()),
            "version": __version__,
            "state": RUNNING,
            "started": self.content.get("started") or now(),
            "process": this_process(),
        }
        for name, job in night.jobs.items():
            row = self.jobs.setdefault(name, {"state": WAITING, "reason": ""})
            row |= {"command": job.command, "after": list(job.after)}
            if row["state"] == SKIPPED:
                row |= {"state": WAITING, "reason": ""}
        self.write()

    def remove(self) -> None:
        """Remove the record of a night of which no job could be started."""
        (self.folder / NIGHT).unlink(missing_ok=True)

    def refuse_running(self) -> None:
        """Raise InputError for a job that has gone on although its night was killed."""
        for name, row in self.jobs.items():
            process = row.get("process")
            if row.get("state") == RUNNING and isinstance(process, dict) and still_runs(process):
                raise InputError(
                    f"the job {name} of an earlier call still goes on, as process "
                    f"{process.get('pid')}; wait until it has ended, or end it",
                    self.folder,
                )

    def change(self, name: str, **news: Any) -> None:
        """Change the row of a job, and write it.

        A change that cannot be written now is written with the next one: a disk that is full for a
        while does not end a night.
        """
        self.jobs[name] |= news
        self.fault = fault_of(self.write)

    def write(self) -> None:
        """Write the record. Raises InputError where it cannot be written."""
        self.content["updated"] = now()
        write_text(self.folder / NIGHT, json.dumps(plain(self.content), indent=1) + "\n")

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in each state that one is in."""
        states = [row["state"] for row in self.jobs.values()]
        return {state: states.count(state) for state in _STATES if state in states}


@contextmanager
def record_of(folder: Path, made: bool = False) -> Iterator[NightRecord]:
    """Open the record in a folder for this process alone, as long as the block lasts.

    Arguments:
        folder: of an earlier night, or new or empty.
        made: whether the folder has been made for this night, so that it goes if that is refused.

    Raises InputError: the folder holds something else, another process or a job of an earlier one
    works in it, its record is damaged, or it cannot be written to.
    """
    made = make_folder(folder) or made
    file = folder / NIGHT
    with writing(folder):
        mark = os.fdopen(opened(folder / LOCK), "r+b")
    try:
        with mark:
            lock(mark, folder)
            if not file.is_file() and {one.name for one in folder.iterdir()} != {LOCK}:
                raise InputError(
                    "this folder is not empty and holds no night to go on with; give --out a new "
                    "folder",
                    folder,
                )
            record = NightRecord(folder, _checked(file) if file.is_file() else None)
            record.refuse_running()
            discard_partial(folder)
            yield record
    finally:
        if not file.exists():
            with contextlib.suppress(OSError):  # another process has begun there just now
                (folder / LOCK).unlink(missing_ok=True)
                if made:
                    folder.rmdir()


def file_of(folder: Path) -> Path:
    """Return the file of the night that has begun in a folder. Raises InputError without one."""
    if not (folder / NIGHT).is_file():
        raise InputError(f"holds no night to go on with: there is no {NIGHT}", folder)
    return Path(_checked(folder / NIGHT)["file"])


def _checked(file: Path) -> dict[str, Any]:
    """Return the content of a record, of the right shape as far as it is used."""
    content = read_json(file)
    rows = content.get("jobs")
    good = isinstance(rows, dict) and all(_is_row(row) for row in rows.values())
    if not good or not isinstance(content.get("file"), str):
        raise InputError("is damaged: it does not say which jobs there are and how they are", file)
    return content


def _is_row(row: object) -> bool:
    return (
        isinstance(row, dict)
        and row.get("state") in _STATES
        and isinstance(row.get("inputs", {}), Mapping)
    )


def now() -> str:
    """Return the present date and time as a record holds it, to the second."""
    return moment("seconds")


SUMMARY, PAGE = "summary.json", "night.html"
#: Files that a reader looks for first, in this order.
_FIRST = (
    "report.html",
    "plate.html",
    "discover.html",
    "night.html",
    "fit.yaml",
    "comparison.json",
    "uncertainty.json",
)


def summary_of(record: NightRecord) -> dict[str, Any]:
    """Return the night as plain data: its state, the number of jobs in each state, and all jobs."""
    content = record.content
    rows = []
    for name, row in record.jobs.items():
        known = {key: row.get(key) for key in _KEYS}
        rows.append({"name": name, **known, **_places(record.folder, name)})
    return {
        "night": content["night"],
        "description": content["description"],
        "file": content["file"],
        "state": content["state"],
        "started": content["started"],
        "updated": content["updated"],
        "seconds": _seconds(content),
        "version": content["version"],
        "counts": record.counts(),
        "jobs": plain(rows),
    }


_KEYS = ("command", "state", "reason", "after", "started", "ended", "seconds", "exit_code")


def _seconds(content: Mapping[str, Any]) -> float:
    """Return the time from the beginning of the night to the last news, s."""
    ends = (datetime.fromisoformat(content[key]) for key in ("started", "updated"))
    begun, ended = ends
    return (ended - begun).total_seconds()


def _places(folder: Path, name: str) -> dict[str, Any]:
    """Return where the log and the results of a job are, as paths from the folder of the night."""
    log = folder / f"{name}.log"
    files = sorted(p.name for p in (folder / name).iterdir()) if (folder / name).is_dir() else []
    first = next((one for one in _FIRST if one in files), None)
    shown = first or next((one for one in files if not one.startswith(".")), None)
    return {
        "log": log.name if log.is_file() else None,
        "results": f"{name}/" if files else None,
        "see": f"{name}/{shown}" if shown else None,
    }


def write_summary(record: NightRecord, summary: Mapping[str, Any]) -> list[Path]:
    """Write both files, and return them. Raises InputError where they cannot be written."""
    rows = [{**row, "time": _duration(row["seconds"])} for row in summary["jobs"]]
    context = {
        "night": summary,
        "title": summary["night"],
        "version": summary["version"],
        "jobs": rows,
        "took": _duration(summary["seconds"]),
    }
    page = page_text(Path(__file__).parent / "night_page.html", context)
    files = [record.folder / PAGE, record.folder / SUMMARY]
    write_text(files[0], page)
    write_text(files[1], json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return files


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else terminal.duration(seconds)


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Print the table of jobs, and the reasons of failures."""
    rows = [
        [row["name"], row["command"], row["state"], _duration(row["seconds"]), _see(row)]
        for row in summary["jobs"]
    ]
    headers = ["job", "command", "state", "time", "see"]
    table = terminal.table(headers, rows, left=(0, 1, 2, 4))
    terminal.show(table, *_lines(summary), f"results    {folder}")


def _see(row: Mapping[str, Any]) -> str:
    """Return the file to look at first, as a path from the folder of the night."""
    return (row["see"] if row["state"] == FINISHED else row["log"]) or ""


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    for row in summary["jobs"]:
        if row["reason"]:
            yield f"{row['name']}: {row['state']}: {row['reason']}"
    counts = ", ".join(f"{n} {state}" for state, n in summary["counts"].items())
    yield f"jobs       {counts}, {terminal.duration(summary['seconds'])}"
