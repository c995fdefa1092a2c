"""A fit in a process of its own, what it left behind, and what `faults.py` looks at in that."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.places import ROOT

MODEL = ROOT / "models" / "model_b.yaml"
#: Seconds after which a fit is taken to hang. It takes two on a quiet machine, more on a busy one.
HANGS = 120
#: Seconds in which a fit that hangs may tell where, and how many characters of it are shown.
_TELLS, SHOWN = 20, 3000
PROGRAMS = (
    ["-m", "channelfit"],
    [
        "-c",
        "from channelfit.front import interrupts; interrupts.begin(); "
        "from channelfit.results import fit_folder, run_folder; "
        "fit_folder.SAVE_EVERY = run_folder.REPORT_EVERY = 0; "
        "from channelfit.__main__ import program; program()",
    ],
)
FIT = [str(MODEL), "--backend", "cpu", "--seed", "1", "--population", "50", "--generations", "20"]
_FILES = {"fit.yaml", "history.csv", "summary.json", "traces.png", "source.py", "report.html"}

Numbers = tuple[Any, ...]


class Finding(Exception):
    """A difference from what is expected, in words."""


class Early(Exception):
    """The signal came before the program began."""


class Impossible(Exception):
    """This machine cannot play the fault."""


def want(holds: object, otherwise: str) -> None:
    """Raises a Finding unless it holds."""
    if not holds:
        raise Finding(otherwise)


@dataclass
class Place:
    """A folder for one case, with a cache in it. environment: None takes a variable away."""

    folder: Path
    environment: dict[str, str | None] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None

    @property
    def cache(self) -> Path:
        """The folder of the cache."""
        return self.folder / "cache"

    @property
    def runs(self) -> list[Path]:
        """The folders of all fits."""
        runs = self.folder / "runs"
        return sorted(runs.iterdir()) if runs.is_dir() else []

    def begin(
        self, program: list[str] = PROGRAMS[0], words: Sequence[str] = FIT, verb: str = "optimize"
    ) -> subprocess.Popen[str]:
        """Begins a command, with these arguments; by default a fit."""
        given = {**os.environ, "CHANNELFIT_CACHE": str(self.cache), "PYTHONPATH": str(ROOT)}
        given["PYTHONFAULTHANDLER"] = "1"  # SIGABRT makes Python tell where it is
        given.pop("XDG_CACHE_HOME", None)
        for name, value in self.environment.items():
            given.pop(name, None)
            if value is not None:
                given[name] = value

        def before() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job's children ignore it
            self.before()

        return subprocess.Popen(
            [sys.executable, *program, verb, *words, "--quiet"],
            cwd=self.folder,
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )

    def fit(self) -> Ended:
        """A fit from beginning to end."""
        return ended(self.begin(), self.folder)


@dataclass(frozen=True)
class Ended:
    """The end of a fit: its exit code, its output, and the folder that it was begun in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def found(self) -> Numbers:
        """Return its results. Raises Finding unless it ended as a fit should."""
        want(self.code == 0, f"exit code {self.code}: {self.err[-300:]}")
        return numbers(self.folder / self.out.strip())


def ended(process: subprocess.Popen[str], folder: Path) -> Ended:
    """Waits for a fit that was begun in a folder. Raises Finding, with its place, if it hangs."""
    try:
        out, err = process.communicate(timeout=HANGS)
    except subprocess.TimeoutExpired:
        raise Finding(f"no end after {HANGS} s: {_place_of(process)}") from None
    return Ended(process.returncode, out, err, folder)


def _place_of(process: subprocess.Popen[str]) -> str:
    """Return the stacks of a fit's threads, by its Python; the fit ends."""
    process.send_signal(signal.SIGABRT)
    try:
        _, err = process.communicate(timeout=_TELLS)
    except subprocess.TimeoutExpired:
        process.kill()
        return "and it does not tell where it is"
    return without_modules(err)[-SHOWN:]


def without_modules(err: str) -> str:
    """Return the output without the list of extension modules at the end of a stack."""
    return re.sub(r"\n*Extension modules: .*", "", err)


def numbers(folder: Path) -> Numbers:
    """All numbers of a run folder that a fit repeats to the bit; Finding where one is not whole."""
    want(folder.is_dir(), f"no folder {folder}")
    missing = _FILES - {p.name for p in folder.iterdir()}
    want(not missing, f"{folder.name} lacks {sorted(missing)}")
    summary = check_whole(folder)
    rows = list(csv.reader((folder / "history.csv").open()))
    history = [(r[0], r[1], *r[3:]) for r in rows]
    data = [p.read_bytes() for p in sorted(folder.glob("data*.csv"))]
    return summary["cost"], summary["parameters"], summary["uncertainty"], history, data


def check_whole(folder: Path) -> Any:
    """Finding unless each file in a run folder is whole; returns the content of summary.json."""
    summary = None
    for file in folder.iterdir():
        if ".partial" in file.name:  # what a kill left, and obstructs nothing
            continue
        if file.name == "summary.json":
            summary = json.loads(file.read_text())
        elif file.suffix == ".yaml":
            want("parameters" in yaml.safe_load(file.read_text()), f"{file.name} is not whole")
        elif file.suffix == ".csv":
            lines = file.read_text().split("\n")
            widths = {line.count(",") for line in lines[:-1]}
            want(lines[-1] == "" and len(widths) == 1, f"{file.name} is not whole")
        elif file.suffix == ".png":
            want(b"IEND" in file.read_bytes()[-12:], f"{file.name} is not whole")
        elif file.suffix == ".py":
            compile(file.read_text(), str(file), "exec")
    return summary


def check_quiet(said: Ended) -> None:
    """Finding where a traceback was printed."""
    end = without_modules(said.err)[-SHOWN:]
    for word in ("Traceback", "Exception ignored", "Fatal Python", "LLVM ERROR", "Aborted"):
        want(word not in said.err, f"exit code {said.code}, printed: {end!r}")


def check_refused(said: Ended) -> None:
    """Finding unless a command told in one message why it cannot."""
    want(said.code == 2, f"exit code {said.code}: {said.err[-300:]!r}")
    errors = [line for line in said.err.splitlines() if line.startswith("Error: ")]
    want(len(errors) == 1, f"{len(errors)} messages: {said.err[-300:]!r}")


def check_nothing_half(place: Place) -> None:
    """Finding where something that was to be moved or removed is still there."""
    left = {p.name for p in place.folder.rglob("*") if ".partial" in p.name}
    left |= {p.name for run in place.runs for p in run.iterdir() if p.is_dir()}
    left |= {f"{run.name}/.running" for run in place.runs if (run / ".running").exists()}
    want(not left, f"left behind: {sorted(left)}")


def check_next(place: Place, truth: Numbers) -> None:
    """Finding unless the next fit there works and finds the same, without a warning."""
    said = place.fit()
    want(said.found == truth, "the next fit found something else")
    want(said.err == "", f"the next fit warned: {said.err[-300:]!r}")


def settle(here: Place) -> None:
    """Waits until the process that draws, which a kill leaves alone, has ended its picture."""
    for _ in range(100):
        if not list(here.folder.rglob(".*.png.*.partial")):
            return
        time.sleep(0.1)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A file system in the place of a folder; Impossible where that is not allowed."""
    try:
        done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    except FileNotFoundError:
        raise Impossible from None
    if done.returncode:
        raise Impossible
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass(frozen=True)
class Known:
    """A fit without a fault: its cache, what it finds, and its seconds, `cold` and `warm`."""

    cache: Path
    truth: Numbers
    seconds: dict[str, float]
