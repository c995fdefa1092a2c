"""The content of the pages of `channelfit watch`: runs as data for JSON, with printable texts."""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from channelfit.front.watching.traces import (
    cost_figure,
    observed_figure,
    traces_figure,
    traces_so_far,
)
from channelfit.reading.errors import InputError, printable
from channelfit.reading.files import read_plain
from channelfit.results.report.page_content import position
from channelfit.results.report.terminal import duration, short_number
from channelfit.results.run_state import RUNNING
from channelfit.results.runs import (
    KILLED,
    UNKNOWN,
    FoundRun,
    find_run,
    history_of,
    is_run,
    jobs_of_night,
)

#: The page of a finished fit, and that of a batch.
REPORT, PLATE = "report.html", "plate.html"
#: Bytes of the largest report, and of the largest table, that are sent.
_REPORT_BYTES, _TABLE_BYTES = 2**26, 2**28
#: Generations that a page draws at most.
_POINTS = 1500
#: The pause before traces are computed again, as a multiple of the time that they took, and how
#: often it is doubled at most.
_PAUSE, _DOUBLED = 5.0, 8
#: States in the order in which a queue shows them.
_ORDER = (RUNNING, UNKNOWN, KILLED)

Row = dict[str, Any]


class Watched:
    """A run folder, or a folder of run folders, that is watched.

    Addresses name a run by an id, a keyed hash of its folder, so that no address can name a folder
    that was not found here, or reveal a path.

    Attributes:
        place: the folder.
        alone: whether it is the folder of a single run.
        only: the id of that run; not set for a folder of runs.

    Raises InputError: there is no such folder.
    """

    def __init__(self, place: Path) -> None:
        if not place.is_dir():
            what = "not a folder" if place.exists() else "no such folder"
            raise InputError(f"{what}; give the folder of a run, or a folder of such", place)
        self.place = place.absolute()
        self.alone = is_run(place)
        self._key = secrets.token_bytes(16)
        self._folders: dict[str, Path] = {}
        self._runs = _Remembered(find_run, "state.json", "summary.json", ".running")
        self._histories = _Remembered(partial(history_of, most=_POINTS), "history.csv")
        self._traces: dict[Path, _TracesSoFar] = {}
        if self.alone:
            self.only = self._id(self.place)

    def runs(self) -> list[tuple[str, FoundRun]]:
        """Return all runs with their ids: running ones first, and the newest of each kind first.

        Raises InputError: the folder is no longer there.
        """
        found = []
        for folder in self._candidates():
            try:
                if is_run(folder):
                    found.append((self._id(folder), self._find(folder)))
            except (InputError, OSError):  # gone in the meantime, or not ours to read
                continue
        # two stable sorts: by state, and by time within a state
        found.sort(key=lambda one: one[1].text("started") or one[1].text("updated"), reverse=True)
        rank = dict(zip(_ORDER, range(len(_ORDER)), strict=True))
        found.sort(key=lambda one: rank.get(one[1].state, len(_ORDER)))
        return found

    def _candidates(self) -> list[Path]:
        """Return the folders that may be those of runs."""
        if self.alone:
            return [self.place]
        try:
            return [one for one in self.place.iterdir() if one.is_dir()]
        except OSError:
            raise InputError("this folder is no longer there", self.place) from None

    def _id(self, folder: Path) -> str:
        """Return the id of a run, by which `folder` finds it again."""
        name = str(folder).encode(errors="surrogateescape")
        digest = hashlib.blake2b(name, key=self._key, digest_size=12).digest()
        run_id = base64.urlsafe_b64encode(digest).decode()
        self._folders[run_id] = folder
        return run_id

    def _find(self, folder: Path) -> FoundRun:
        """Return a run as it is now, read again only where it may have changed."""
        found: FoundRun = self._runs(folder)
        # no file tells when a process ends, so a run without an end is looked up each time
        return find_run(folder) if found.state in (RUNNING, KILLED, UNKNOWN) else found

    # --- answers ----------------------------------------------------------------------------------

    def queue(self) -> Row:
        """Return the rows of a folder of runs, and how many there are of each state."""
        try:
            found = self.runs()
        except InputError as error:
            return {"place": printable(str(self.place)), "trouble": error.message, "rows": []}
        rows = [_queue_row(run_id, run) for run_id, run in found]
        names = {run.name for _, run in found}
        rows += [
            _job_row(name, job)
            for name, job in jobs_of_night(self.place).items()
            if name not in names
        ]
        counts: dict[str, int] = {}
        for row in rows:
            counts[row["state"]] = counts.get(row["state"], 0) + 1
        return {
            "place": printable(str(self.place)),
            "counts": ", ".join(f"{n} {state}" for state, n in counts.items()),
            "rows": rows,
        }

    def folder(self, run_id: str) -> Path | None:
        """Return the folder of a run; None for an id that no run has."""
        return self._folders.get(run_id)

    def run(self, folder: Path) -> Row:
        """Return all that a page shows of one run, but its traces."""
        try:
            run = self._find(folder)
        except (InputError, OSError) as error:
            reason = error.message if isinstance(error, InputError) else str(error)
            return {"name": printable(folder.name), "trouble": reason}
        return _run_row(run) | {
            "history": _history(self._histories(folder), run),
            "report": _report_of(run).is_file(),
        }

    def traces(self, folder: Path) -> Row:
        """Return the best fit so far over its data: `experiments`, or a `trouble` in words."""
        try:
            if self._find(folder).of_wells:
                return {"trouble": "A batch shows its wells on a page of its own, once it is done."}
        except InputError as error:  # the folder is gone
            return {"trouble": error.message}
        one = self._traces.setdefault(folder, _TracesSoFar(folder / "fit.yaml"))
        return one.answer()

    def figure(self, folder: Path, of: str) -> Any:
        """Return a figure of Bokeh with the costs or data and fit of a run; None without any.

        Arguments:
            of: "cost", or "data" with the number of an experiment in `traces`, such as "data/0".
        """
        if of == "cost":
            history = self.run(folder).get("history")
            return cost_figure(history) if history else None
        experiments, number = self.traces(folder).get("experiments", ()), int(of.split("/")[1])
        if number >= len(experiments):
            return None
        one = experiments[number]
        return observed_figure(one) if "x" in one else traces_figure(one)

    def report(self, folder: Path) -> bytes | None:
        """Return the report of a run, or the page of a batch; None where there is none."""
        try:
            return read_plain(_report_of(self._find(folder)), _REPORT_BYTES)
        except (InputError, OSError):
            return None

    def table(self, folder: Path, name: str) -> bytes | None:
        """Return the table of traces in the folder that has this name; None for any other."""
        tables = {file.name: file for file in folder.glob("traces*.csv")}
        return read_plain(tables[name], _TABLE_BYTES) if name in tables else None


class _Remembered:
    """A function of a folder that is called again only where files in the folder have changed.

    Arguments:
        find: the function.
        names: the files on which its result depends.
    """

    def __init__(self, find: Callable[[Path], Any], *names: str) -> None:
        self._find, self._names = find, names
        self._known: dict[Path, tuple[Any, Any]] = {}  # signatures and result

    def __call__(self, folder: Path) -> Any:
        signature = [_signature(folder / name) for name in self._names]
        known = self._known.get(folder)
        if known is None or known[0] != signature:
            known = self._known[folder] = signature, self._find(folder)
        return known[1]


class _TracesSoFar:
    """The traces of one fit, computed on request where the fit file has changed, with pauses.

    After a failure, which may be that the computer was too busy, they are tried again, the pause
    being doubled each time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._answer: Row = {}
        self._signature: tuple[int, int, int] | None = None  # of the file that was computed last
        self._failures = 0  # with this file
        self._not_before = -math.inf  # on the clock of time.monotonic
        self._lock = Lock()

    def answer(self) -> Row:
        """Return the `experiments` with their traces, or a `trouble` in words."""
        with self._lock:
            signature, now = _signature(self._file), time.monotonic()
            if signature is None:
                return {"trouble": "No fit has been saved yet."}
            new = signature != self._signature
            if (new or self._failures) and now >= self._not_before:
                self._signature = signature
                try:
                    self._answer = {"experiments": traces_so_far(self._file)}
                    self._failures = 0
                except InputError as error:
                    self._answer = {"trouble": printable(f"They cannot be computed: {error}")}
                    self._failures = 1 if new else self._failures + 1
                ended = time.monotonic()
                pause = _PAUSE * (ended - now) * 2.0 ** min(self._failures, _DOUBLED)
                self._not_before = ended + pause
            return self._answer


def _signature(file: Path) -> tuple[int, int, int] | None:
    """Return a signature that changes when a file is written anew; None where it is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


# --- in words -------------------------------------------------------------------------------------


def _queue_row(run_id: str, run: FoundRun) -> Row:
    """Return a run as a row of the queue; `order` holds the numbers by which columns are sorted."""
    cost, seconds = run.number("best_cost"), run.number("seconds")
    return {
        "id": run_id,
        "page": True,
        "name": run.name,
        "fit": run.text("name"),
        "state": run.state,
        "why": "" if run.why == run.state else run.why,
        "report": run.state != RUNNING and _report_of(run).is_file(),
        "cost": _cost(run, cost),
        "generation": _generation(run),
        "time": "" if seconds is None else duration(seconds),
        "left": _time_left(run),
        "started": _local_time(run.text("started")),
        "order": {
            "cost": cost,
            "generation": run.number("wells_done" if run.of_wells else "generation"),
            "time": seconds,
            "started": run.text("started"),
        },
    }


def _job_row(name: str, job: Row) -> Row:
    """Return a job of a night that is no run folder: it waits, is skipped, or was no fit."""
    seconds, started = job.get("seconds"), job.get("started", "")
    return {
        "id": f"job {name}",
        "page": False,
        "name": name,
        "fit": job.get("command", ""),
        "state": job.get("state", UNKNOWN),
        "why": job.get("reason", ""),
        "report": False,
        **dict.fromkeys(("cost", "generation", "left"), ""),
        "time": _text(duration, seconds),
        "started": _local_time(started),
        "order": {"cost": None, "generation": None, "time": seconds, "started": started},
    }


def _run_row(run: FoundRun) -> Row:
    """Return the facts, the command and the parameters of a run for its page."""
    cost = run.number("best_cost")
    facts = [
        ("Wells", _wells(run)),
        ("Without a fit", _text(lambda n: f"{n:,.0f}", run.number("wells_failed"))),
        ("Best cost", _cost(run, cost)),
        ("RMS", _rms(run, cost)),
        ("Median cost", _cost(run, run.number("median_cost"))),
        ("Generation", "" if run.of_wells else _generation(run)),
        ("Time", _text(duration, run.number("seconds"))),
        ("Time left", _time_left(run)),
        ("Candidates", _text(lambda n: f"{n:,.0f}", run.number("evaluations"))),
        ("Candidates a second", _text(short_number, run.number("candidates_per_second"))),
        ("Failed", _text(lambda share: f"{100 * share:.3g} %", run.number("failed"))),
        ("Ends", _stop_rules(run)),
        ("Optimizer", run.text("optimizer")),
        ("Seed", _text(lambda n: f"{n:.0f}", run.number("seed"))),
        ("Started", _local_time(run.text("started"))),
        ("Last sign", _last_sign(run)),
        ("Version", run.text("version")),
    ]
    rows = run.content.get("parameters", {})
    logarithmic = set(run.content.get("logarithmic", ()))
    return {
        "name": run.name,
        "of_wells": run.of_wells,
        "fit": run.text("name"),
        "folder": printable(str(run.folder)),
        "state": run.state,
        "why": "" if run.why == run.state else run.why,
        "stage": run.text("stage") if run.state == RUNNING else "",
        "done": _share_done(run),
        "facts": [(label, text) for label, text in facts if text],
        "command": _command(run),
        "file": run.text("file"),
        "warnings": run.content.get("warnings", []),
        "unit": run.text("cost_unit"),
        "parameters": [
            _parameter_row(name, row, name in logarithmic) for name, row in rows.items()
        ],
    }


def _text(form: Callable[[float], str], value: float | None) -> str:
    """Return a value in a form; empty where there is none."""
    return "" if value is None else form(value)


def _cost(run: FoundRun, cost: float | None) -> str:
    unit = run.text("cost_unit").replace("pA^2", "pA²")
    return "" if cost is None else f"{short_number(cost)} {unit}".strip()


def _rms(run: FoundRun, cost: float | None) -> str:
    """Return the root of a cost that is a mean square; empty for a cost of another kind."""
    if cost is None or cost < 0 or run.text("cost_unit") != "pA^2":
        return ""
    return f"{short_number(math.sqrt(cost))} pA"


def _report_of(run: FoundRun) -> Path:
    """Return where the page of a finished run is written."""
    return run.folder / (PLATE if run.of_wells else REPORT)


def _wells(run: FoundRun) -> str:
    """Return how many wells of a batch are done; empty for other runs."""
    done, wells = run.number("wells_done") or 0, run.number("wells")
    if wells is None:
        return ""
    return f"{wells:,.0f} wells" if done == wells else f"{done:,.0f} of {wells:,.0f} wells"


def _generation(run: FoundRun) -> str:
    """Return how far a run is: its generation, or the wells of a batch that are done."""
    if run.of_wells:
        return _wells(run)
    done = run.number("generation")
    most = run.content.get("stop", {}).get("generations")
    if done is None:
        return ""
    return f"{done:.0f} of {most:.0f}" if most and run.state == RUNNING else f"{done:.0f}"


def _time_left(run: FoundRun) -> str:
    return _text(duration, run.number("seconds_left")) if run.state == RUNNING else ""


def _share_done(run: FoundRun) -> float | None:
    """Return the share of the wells or of the time that is done; None if the end is not known."""
    done, wells = run.number("wells_done"), run.number("wells")
    if run.state == RUNNING and done is not None and wells:
        return min(1.0, done / wells)
    passed, left = run.number("seconds"), run.number("seconds_left")
    if run.state != RUNNING or passed is None or left is None or passed + left <= 0:
        return None
    return passed / (passed + left)


def _stop_rules(run: FoundRun) -> str:
    """Return the rules by which the search ends, in words."""
    words = {
        "generations": "after {:.0f} generations",
        "evaluations": "after {:.0f} candidates",
        "seconds": "after {:.6g} s",
        "cost": "at a cost of {:.6g}",
        "stagnation": "after {:.0f} generations without a gain",
    }
    stop = run.content.get("stop", {})
    return ", or ".join(words[rule].format(stop[rule]) for rule in words if rule in stop)


def _local_time(iso: str) -> str:
    """Return a date and time on this computer's clock."""
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else ""


def _last_sign(run: FoundRun) -> str:
    """Return the time of the last report of a run; of one that goes on, also how long ago."""
    moment = run.text("updated")
    if not moment or run.state != RUNNING:
        return _local_time(moment)
    ago = (datetime.now().astimezone() - datetime.fromisoformat(moment)).total_seconds()
    return f"{_local_time(moment)}, {duration(math.floor(max(ago, 0)))} ago"


def _command(run: FoundRun) -> str:
    """Return the command that started a run, as it can be typed into a shell."""
    words: Sequence[str] = run.content.get("command", ())
    if not words:
        return ""
    stem = Path(words[0]).name
    first = "channelfit" if stem in ("__main__.py", "channelfit", "channelfit.exe") else words[0]
    return " ".join([first, *map(shlex.quote, words[1:])])


def _parameter_row(name: str, row: Row, logarithmic: bool) -> Row:
    """Return a parameter with its range; `within` is its place in the range, 0 to 1, or None."""
    value, lower, upper = (row.get(key, math.nan) for key in ("value", "lower", "upper"))
    within, note = None, row.get("note", "")
    if lower < upper and value == value:  # not NaN
        within = position(value, lower, upper, logarithmic)
        if not note and value in (lower, upper):
            note = f"at {'lower' if value == lower else 'upper'} bound"
    span = f"{lower:.4g} to {upper:.4g}" if lower <= upper else ""
    return {
        "name": name,
        "value": f"{value:.6g}" if value == value else "",
        "unit": row.get("unit", ""),
        "range": span,
        "within": within,
        "note": note,
    }


def _history(rows: Sequence[tuple[float, float | None, float | None]], run: FoundRun) -> Row:
    """Return generations with their best and median cost.

    The last generation that the run has reported is added where `history.csv` is behind.
    """
    last = run.number("generation")
    if last is not None and (not rows or rows[-1][0] < last):
        rows = [*rows, (last, run.number("best_cost"), run.number("median_cost"))]
    generation, best, median = zip(*rows, strict=True) if rows else ((), (), ())
    costs = [cost for cost in (*best, *median) if cost is not None]
    return {
        "generation": generation,
        "best": best,
        "median": median,
        "scale": "log" if all(cost > 0 for cost in costs) else "linear",
    }
