"""The results of a night: a table on the screen, `summary.json` and the page `night.html`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from channelfit.front.night.record import NightRecord
from channelfit.reading.files import write_text
from channelfit.results.report import terminal
from channelfit.results.report.page_shell import page_text
from channelfit.results.run_state import FINISHED, plain

SUMMARY, PAGE = "summary.json", "night.html"
#: Files that a reader looks for first, in this order.
_FIRST = (
    "report.html",
    "plate.html",
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
