"""Commands that are cut off at random moments, find no room or may not write, and go on.

Wanted is that what goes on ends as if nothing had happened: the same results to the bit, and
nothing left of what was kept for it. `faults.py` calls this and tells how to run it.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.faults_fits import (
    FIT,
    Known,
    Place,
    check_quiet,
    check_refused,
    check_whole,
    ended,
    mounted,
    numbers,
    settle,
    want,
)
from support.plate_folder import write_plate

#: A search that takes most of the time of its fit, and a cable.
_LONG = [*FIT[:-3], "400", "--generations", "1500", "--out", "runs/one"]
_CABLE = ["--end", "400", "--frames", "81", "--nodes", "801", "--tolerance", "1e-9", "--out", "run"]


@dataclass(frozen=True)
class Going:
    """A command that goes on after it was cut off.

    words: its arguments, given the folder in which it is called. again: what `--resume` takes.
    unfinished: the folder of what is kept until it has finished. found: what it has found, of the
    folder in which it was called.
    """

    verb: str
    words: Callable[[Path], list[str]]
    again: str
    unfinished: str
    found: Callable[[Path], Any]


def _peaks(folder: Path) -> list[str]:
    """Data sets that take a second or two to fit, in pieces, and how they are fitted."""
    draw, x = np.random.default_rng(3), np.arange(30.0)
    center, width = draw.uniform(10, 20, (300_000, 1)), draw.uniform(2, 4, (300_000, 1))
    z = 50 * np.exp(-(((x - center) / width) ** 2) / 2) + draw.normal(0, 1, (300_000, 30))
    np.save(folder / "peaks.npy", z.astype(np.float32))
    return ["gaussian", "peaks.npy", "--backend", "cpu", "--covariance", "--out", "fits"]


def _fits(folder: Path) -> Any:
    files = [folder / "fits.csv", folder / "fits-covariance.npy"]
    want(all(file.is_file() for file in files), "no table")
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def _frames(folder: Path) -> Any:
    want((folder / "run" / "results.npz").is_file(), "no frames")
    with np.load(folder / "run" / "results.npz") as arrays:
        found = [hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in sorted(arrays)]
    summary = json.loads((folder / "run" / "summary.json").read_text())
    summary.pop("seconds")
    return found, summary


def _plate(folder: Path) -> list[str]:
    """A plate whose wells differ, in pieces of one well, and what they say together."""
    write_plate(folder, 6, seed=4)
    together = ["--population", "kinetics", "--groups", "2"]
    begun = ["fit.yaml", "plate", "--backend", "cpu", "--chunk", "1", "--seed", "4"]
    return [*begun, *together, "--out", "run"]


def _wells(folder: Path) -> Any:
    """All that a batch repeats to the bit: all but when it ran, how long, and by which words."""
    run = folder / "run"
    want((run / "summary.json").is_file(), "no summary")
    check_whole(run)
    names = ["wells.csv", "wells-columns.json", "wells.parquet"]
    names += ["traces.npz", "fits.npz", "fit.yaml"]
    want((run / "plate.html").read_text().rstrip().endswith("</html>"), "plate.html is not whole")
    files = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in names}
    summary = json.loads((run / "summary.json").read_text())
    for name in ("seconds", "finished", "command"):
        summary.pop(name)
    for file in summary["files"]:
        file["file"] = Path(file["file"]).name
    return files, summary


GOING = {
    going.verb: going
    for going in (
        Going(
            "optimize", lambda _: _LONG, "runs/one", "runs/one", lambda at: numbers(at / "runs/one")
        ),
        Going("curves", _peaks, "fits", "fits-unfinished", _fits),
        Going("batch", _plate, "run", "run", _wells),
        Going("fhn", lambda _: _CABLE, "run", "run", _frames),
    )
}


def resumed(verb: str, case: int, draw: random.Random, here: Place, known: Known) -> None:
    """A command is killed at a random moment, every third time once more, and goes on.

    Before its work had begun there is nothing to go on with; that is told, and the same command
    begins it again.
    """
    going, whole = GOING[verb], _whole(verb, known)
    shutil.copytree(whole.cache, here.cache)
    words = going.words(here.folder)
    process, onward = here.begin(words=words, verb=verb), words
    kills = 1 + (case % 3 == 0)
    while True:
        if kills:
            time.sleep(draw.uniform(0.02, 0.98) * whole.seconds)
            process.kill()
        said = ended(process, here.folder)
        check_quiet(said)
        if said.code == 0 or not kills:
            break
        kills -= 1
        settle(here)
        for run in here.runs:
            check_whole(run)
        onward = _onward(going, here, words)
        if not onward:
            break
        process = here.begin(words=onward, verb=verb)
    want(said.code == 0 or not onward, f"exit code {said.code}: {said.err[-300:]!r}")
    _check_same(going.found(here.folder), whole.truth)
    want("Error" not in said.err, f"told: {said.err[-300:]!r}")
    if onward:  # else it was killed while it put these away
        _check_nothing_left(going, here)


def _check_same(found: Any, truth: Any, place: str = "") -> None:
    """Finding where something that was found is not the truth, with its name."""
    if isinstance(truth, dict) and isinstance(found, dict):
        for name in truth.keys() | found.keys():
            _check_same(found.get(name), truth.get(name), f"{place} {name}")
    elif isinstance(truth, list | tuple) and len(truth) == len(found):
        for number, (one, other) in enumerate(zip(found, truth, strict=True), 1):
            _check_same(one, other, f"{place} {number}")
    else:
        want(found == truth, f"another result:{place} {found!r:.200} for {truth!r:.200}")


def _check_nothing_left(going: Going, here: Place) -> None:
    """Finding where something is left of what a run keeps while it goes on."""
    names = ("resume.json", "journal.bin", "pieces.bin", ".running", "table.csv")
    left = [name for name in names if (here.folder / going.unfinished / name).exists()]
    want(not left, f"left behind: {left}")


def _onward(going: Going, here: Place, words: list[str]) -> list[str]:
    """The arguments by which a killed run goes on, or begins again where it must say so itself.

    There are none where it had finished before the kill, which it must say as well.
    """
    again = ["--resume", going.again]
    folder = here.folder / going.unfinished
    file = folder / "state.json"
    state = json.loads(file.read_text()) if file.exists() else {}
    if (folder / "resume.json").exists() and state.get("state") != "finished":
        return again
    said = ended(here.begin(words=again, verb=going.verb), here.folder)
    check_quiet(said)
    told = "nothing to go on with" in said.err or "is no folder of a run" in said.err
    finished = "has finished" in said.err
    want(said.code == (0 if finished else 2) and told, f"told: {said.err[-300:]!r}")
    return [] if finished else words


def resumed_with_room(verb: str, case: int, draw: random.Random, here: Place, known: Known) -> None:
    """A disk that is too small: one message, no result by half; with room it goes on."""
    going, whole = GOING[verb], _whole(verb, known)
    kilobytes = int(10 ** draw.uniform(0.7, 4.2))
    outside = Place(here.folder.with_name("outside"), {"CHANNELFIT_CACHE": str(whole.cache)})
    outside.folder.mkdir()
    words = going.words(outside.folder)
    here.environment |= {"CHANNELFIT_CACHE": str(whole.cache)}
    with mounted(here.folder, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs"):
        for file in outside.folder.iterdir():  # what is read takes no room on the small disk
            (here.folder / file.name).symlink_to(file)
        said = ended(here.begin(words=words, verb=verb), here.folder)
        check_quiet(said)
        if said.code:
            check_refused(said)
            half = [p.name for p in here.folder.rglob("*") if ".partial" in p.name]
            want(not half, f"left behind: {half}")
            subprocess.run(["mount", "-o", "remount,size=256m", str(here.folder)], check=True)
            said = ended(here.begin(words=_onward(going, here, words), verb=verb), here.folder)
            want(said.code == 0, f"with room: exit code {said.code}: {said.err[-300:]!r}")
        _check_same(going.found(here.folder), whole.truth)
        _check_nothing_left(going, here)


def locked(verb: str, case: int, draw: random.Random, here: Place, known: Known) -> None:
    """A folder in which nothing may be written: one message, and nothing there."""
    going, whole = GOING[verb], _whole(verb, known)
    here.environment |= {"CHANNELFIT_CACHE": str(whole.cache)}
    with mounted(here.folder, "-t", "tmpfs", "-o", "size=128m", "tmpfs"):
        words = going.words(here.folder)
        before = sorted(here.folder.rglob("*"))
        subprocess.run(["mount", "-o", "remount,ro", str(here.folder)], check=True)
        said = ended(here.begin(words=words, verb=verb), here.folder)
        check_quiet(said)
        check_refused(said)
        want(sorted(here.folder.rglob("*")) == before, "something was written")


@dataclass(frozen=True)
class Whole:
    """A command without a fault: what it finds, how long it takes, and what it has compiled."""

    truth: Any
    seconds: float
    cache: Path


_WHOLE_ONCE = threading.Lock()
_WHOLE: dict[str, Whole] = {}


def _whole(verb: str, known: Known) -> Whole:
    with _WHOLE_ONCE:
        if verb not in _WHOLE:
            here = Place(known.cache.parent / f"whole {verb}")
            here.folder.mkdir()
            shutil.copytree(known.cache, here.cache)
            for warm in (False, True):
                words, began = GOING[verb].words(here.folder), time.monotonic()
                said = ended(here.begin(words=words, verb=verb), here.folder)
                want(said.code == 0, f"exit code {said.code}: {said.err[-300:]!r}")
                seconds, truth = time.monotonic() - began, GOING[verb].found(here.folder)
                if not warm:
                    shutil.rmtree(here.folder / GOING[verb].again, ignore_errors=True)
            _WHOLE[verb] = Whole(truth, seconds, here.cache)
        return _WHOLE[verb]
