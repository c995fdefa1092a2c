"""Does any signal, full disk, damaged cache or lack of memory spoil a fit, or the next one?

    python tests/faults.py                       # everything; into benchmarks/results
    python tests/faults.py kill-cold full-disk --count 10 --seed 7 --out /tmp/faults
    python tests/faults.py --case kill-cold:7:12 # one case again, with all that it printed

Every case is a short fit by `channelfit optimize` in a process of its own, and a fault that strikes
it. Wanted is a result that is the same to the bit, or one message and the exit code that belongs
to it: 2, or 130 for an interrupt and 143 for SIGTERM. There must be no traceback, no half a file,
and no `.partial` file except after a kill; and the next fit with the same cache must work, with
the same bits. Anything else is a finding: it is printed with the words that repeat it, and the exit
code of this program is then 1.

A fit that does not end is asked by SIGABRT where all its threads are, and that is told. A signal
that comes before Python has begun with channelfit is Python's own to answer; such cases are counted
apart. The table is written after each kind of fault, and a later call that writes to the same place
replaces the rows of its own kinds only. Faults after which a command goes on are in
`faults_resumed.py`, and their rows in faults_resumed.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.faults_fits import (
    MODEL,
    PROGRAMS,
    ROOT,
    Early,
    Ended,
    Finding,
    Impossible,
    Known,
    Place,
    check_next,
    check_nothing_half,
    check_quiet,
    check_refused,
    check_whole,
    ended,
    mounted,
    settle,
    want,
)
from support.faults_resumed import GOING, locked, resumed, resumed_with_room

sys.path.append(str(ROOT / "benchmarks"))  # a folder that is no package

from report import RESULTS, Row, as_script, finish

AS_WANTED, TOO_EARLY, IMPOSSIBLE = "as wanted", "before the program began", "not possible here"
NOBODY = 65534


# --- the faults ----------------------------------------------------------------------------------


def struck(
    number: signal.Signals, warmth: str, case: int, draw: random.Random, here: Place, known: Known
) -> None:
    """A signal at a random moment.

    Each kill is followed by the next fit, and every fourth of the other signals.
    """
    if warmth == "warm":
        shutil.copytree(known.cache, here.cache)
    program = draw.choice(PROGRAMS)
    moment = draw.uniform(0, 1.15 * known.seconds[warmth])
    process = here.begin(program)
    time.sleep(moment)
    process.send_signal(number)
    said = ended(process, here.folder)
    code = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    early = _before_the_program(said, here)
    if not early:
        check_quiet(said)
        want(said.code in (0, code), f"exit code {said.code}: {said.err[-300:]!r}")
        settle(here)
        if number != signal.SIGKILL:
            check_nothing_half(here)
    for run in here.runs:
        check_whole(run)
    if said.code == 0:
        want(said.found == known.truth, "another result")
    elif not early and number != signal.SIGKILL:
        want(said.err.strip() == "Interrupted." or said.out, f"told: {said.err!r}")
    if number == signal.SIGKILL or case % 4 == 0:
        check_next(here, known.truth)
    if early:
        raise Early


def _before_the_program(said: Ended, here: Place) -> bool:
    """Whether Python itself was struck: nothing of channelfit can have answered."""
    alone = said.code in (-signal.SIGINT, -signal.SIGTERM) or "init_import_site" in said.err
    return alone and f"{ROOT.name}/channelfit" not in said.err and not here.runs


def at_once(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """Two to eight processes begin at once with one cold cache."""
    n = 2 + case % 7
    running = [here.begin() for _ in range(n)]
    said = [ended(process, here.folder) for process in running]
    for one in said:
        check_quiet(one)
        want(one.err == "", f"told: {one.err[-300:]!r}")
        want(one.found == known.truth, "another result")
    want(len(here.runs) == n, f"{len(here.runs)} folders of {n}")
    check_nothing_half(here)
    check_next(here, known.truth)


def _one_message(said: Ended, here: Place, known: Known) -> None:
    """Finding unless a fit found the right thing, or told in one message why it cannot."""
    check_quiet(said)
    check_nothing_half(here)
    if said.code == 0:
        want(said.found == known.truth, "another result")
    else:
        check_refused(said)


def full_disk(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """No file may be longer than a limit, with a cold or a warm cache."""
    n_bytes = int(10 ** draw.uniform(0, 5.6))
    if draw.random() < 0.5:
        shutil.copytree(known.cache, here.cache)
    here.before = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    _one_message(here.fit(), here, known)
    here.before = lambda: None
    check_next(here, known.truth)


def small_disk(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """A disk with room for a part of the files."""
    kilobytes = int(10 ** draw.uniform(0.7, 3))
    with mounted(here.folder, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs"):
        _one_message(here.fit(), here, known)
        subprocess.run(["mount", "-o", "remount,size=64m", str(here.folder)], check=True)
        check_next(here, known.truth)


def _set(**values: str | None) -> Callable[[Place], object]:
    """Sets environment variables; None takes one away."""
    return lambda here: here.environment.update(values)


def _home(value: str | None) -> Callable[[Place], object]:
    return _set(CHANNELFIT_CACHE=None, HOME=value)


def _file_within(here: Place) -> None:
    here.cache.mkdir(mode=0o700)
    (here.cache / "objects").write_text("not a folder\n")


def _of_another_user(here: Place) -> None:
    """A cache of root's, which nobody may only read."""
    if os.getuid():
        raise Impossible
    here.cache.mkdir(mode=0o755)
    here.folder.chmod(0o777)
    here.folder.parent.chmod(0o711)
    here.before = lambda: (os.setgid(NOBODY), os.setuid(NOBODY))


def _no_home_for_nobody(here: Place) -> None:
    _of_another_user(here)
    _home("/nonexistent")(here)


#: What is in the way of the cache, and whether it is expected that a warning says so.
HOMES: dict[str, tuple[Callable[[Place], object], bool]] = {
    "HOME is not set, and the user has a home or not": (_home(None), False),
    "HOME cannot be made": (_home("/proc/nowhere"), True),
    "HOME is empty": (_home(""), False),
    "HOME is a file": (_home(str(MODEL)), True),
    "a file for a cache": (lambda here: here.cache.write_text("not a folder\n"), True),
    "a file within the cache": (_file_within, True),
    "a link to nowhere": (lambda here: here.cache.symlink_to(here.folder / "no" / "where"), False),
    "a link to itself": (lambda here: here.cache.symlink_to(here.cache), True),
    "a pipe for a cache": (lambda here: os.mkfifo(here.cache), True),
    "a name too long": (_set(CHANNELFIT_CACHE="/tmp/" + "x" * 300), True),
    "a device": (_set(CHANNELFIT_CACHE="/dev/null"), True),
    "a relative name": (_set(CHANNELFIT_CACHE="some/where"), False),
    "another user's cache": (_of_another_user, True),
    "no home for nobody": (_no_home_for_nobody, True),
}


def no_home(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """The cache cannot be kept where it should be: everything works in memory."""
    prepare, warned = list(HOMES.values())[case % len(HOMES)]
    prepare(here)
    try:
        said = here.fit()
    except PermissionError:
        raise Impossible from None  # nobody cannot run this Python
    if "Permission denied" in said.err and "No module named" in said.err:
        raise Impossible  # nobody cannot read this Python
    check_quiet(said)
    want(said.found == known.truth, "another result")
    check_nothing_half(here)
    n_warnings = said.err.count("RuntimeWarning")
    want(n_warnings == 1 if warned else n_warnings <= 1, f"{n_warnings} warnings: {said.err!r}")


def read_only(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """The cache, or the folder that the user is in, lies on a disk that cannot be written to."""
    whole = draw.random() < 0.5
    if draw.random() < 0.5:
        shutil.copytree(known.cache, here.cache)
    here.cache.mkdir(exist_ok=True)
    disk = here.folder if whole else here.cache
    with mounted(disk, "--bind", str(disk)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        said = here.fit()
        _one_message(said, here, known)
        want(said.code == (2 if whole else 0), f"exit code {said.code}: {said.err[-300:]!r}")
    check_next(here, known.truth)


def little_memory(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """The process may have so much address space and no more."""
    n_bytes = int(10 ** draw.uniform(8.0, 9.5))
    if draw.random() < 0.5:
        shutil.copytree(known.cache, here.cache)
    here.before = lambda: resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
    said = here.fit()
    try:
        _one_message(said, here, known)
    except Finding as finding:
        raise Finding(f"{n_bytes / 1e6:.0f} MB: {finding}") from None
    here.before = lambda: None
    check_next(here, known.truth)


def _turn_a_bit(file: Path, draw: random.Random, others: list[Path]) -> None:
    body = bytearray(file.read_bytes())
    body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    file.write_bytes(body)


def _make_folder(file: Path, draw: random.Random, others: list[Path]) -> None:
    file.unlink()
    (file / "in it").mkdir(parents=True)


def _make_pipe(file: Path, draw: random.Random, others: list[Path]) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def _make_link(file: Path, draw: random.Random, others: list[Path]) -> None:
    file.unlink()
    file.symlink_to(draw.choice([file, MODEL, Path("/dev/zero"), file.parent]))


def _give_away(file: Path, draw: random.Random, others: list[Path]) -> None:
    if os.getuid():
        raise Impossible
    os.chown(file, NOBODY, NOBODY)


DAMAGES: dict[str, Callable[[Path, random.Random, list[Path]], object]] = {
    "empty": lambda file, draw, others: file.write_bytes(b""),
    "cut": lambda file, draw, others: file.write_bytes(
        file.read_bytes()[: draw.randrange(file.stat().st_size)]
    ),
    "a bit turned": _turn_a_bit,
    "garbage": lambda file, draw, others: file.write_bytes(
        draw.randbytes(draw.choice([1, 100, file.stat().st_size]))
    ),
    "another entry": lambda file, draw, others: shutil.copyfile(draw.choice(others), file),
    "a folder": _make_folder,
    "a pipe": _make_pipe,
    "a link": _make_link,
    "another owner": _give_away,
    "mode 777": lambda file, draw, others: file.chmod(0o777),
    "mode 000": lambda file, draw, others: file.chmod(0),
    "folder of mode 777": lambda file, draw, others: file.parent.chmod(0o777),
    "missing": lambda file, draw, others: file.unlink(),
}


def damaged(case: int, draw: random.Random, here: Place, known: Known) -> None:
    """One file of the cache is damaged, or, in two of three cases, each in another way."""
    shutil.copytree(known.cache, here.cache)
    files = sorted(p for p in here.cache.rglob("*") if p.is_file())
    whole = {p: p.read_bytes() for p in files}
    kinds = list(DAMAGES.values())
    for k, file in enumerate(files if case % 3 else [draw.choice(files)]):
        others = [p for p in files if p != file and p.is_file()]
        kinds[(case // 3 if not case % 3 else case + k) % len(kinds)](file, draw, others or [MODEL])
    said = here.fit()
    check_quiet(said)
    want(said.found == known.truth, "another result")
    check_nothing_half(here)
    check_next(here, known.truth)
    for file, body in whole.items():
        want(file.is_file() and file.read_bytes() == body, f"{file.name} was not made again")


Fault = Callable[[int, random.Random, Place, Known], None]
#: By name: what is done, and how many cases a whole run has.
RESUMED: dict[str, tuple[Fault, int]] = {
    f"{name}{'' if verb == 'optimize' else '-' + verb}": (functools.partial(does, verb), count)
    for verb in GOING
    for name, does, count in (
        ("resumed", resumed, 100),
        ("small-disk-resumed", resumed_with_room, 20),
        ("locked", locked, 1),
    )
}
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "interrupt": signal.SIGINT}
FAULTS: dict[str, tuple[Fault, int]] = {
    **{
        f"{word}-{warmth}": (functools.partial(struck, number, warmth), 100)
        for word, number in SIGNALS.items()
        for warmth in ("cold", "warm")
    },
    **RESUMED,
    "at-once": (at_once, 7),
    "full-disk": (full_disk, 30),
    "small-disk": (small_disk, 20),
    "read-only": (read_only, 8),
    "no-home": (no_home, len(HOMES)),
    "little-memory": (little_memory, 30),
    "damaged-cache": (damaged, 3 * len(DAMAGES)),
}


# --- running them --------------------------------------------------------------------------------


def measured(folder: Path) -> Known:
    """What a fit finds and how long it takes, without any fault."""
    here = Place(folder)
    seconds: list[float] = []
    truths = []
    for _ in range(3):
        start = time.monotonic()
        truths.append(here.fit().found)
        seconds.append(time.monotonic() - start)
    want(truths[0] == truths[1] == truths[2], "a fit without a fault does not repeat itself")
    known = {"cold": seconds[0], "warm": max(seconds[1:])}
    return Known(here.cache, truths[0], known)


def run_case(name: str, seed: int, case: int, known: Known) -> str:
    """One case in a folder of its own; how it ended, in words."""
    draw = random.Random(f"{name}:{seed}:{case}")
    with tempfile.TemporaryDirectory() as temporary:
        here = Place(Path(temporary) / "here")
        here.folder.mkdir()
        try:
            FAULTS[name][0](case, draw, here, known)
        except Finding as finding:
            return str(finding)
        except Early:
            return TOO_EARLY
        except Impossible:
            return IMPOSSIBLE
    return AS_WANTED


def run_fault(name: str, seed: int, count: int, jobs: int, known: Known) -> Row:
    """All cases of a fault, several at a time: prints each finding, and counts the verdicts."""
    start = time.monotonic()
    verdicts: Counter[str] = Counter()
    with ThreadPoolExecutor(jobs) as pool:
        words = pool.map(lambda case: run_case(name, seed, case, known), range(count))
        for case, word in enumerate(words):
            if word in (AS_WANTED, TOO_EARLY, IMPOSSIBLE):
                verdicts[word] += 1
            else:
                verdicts["found"] += 1
                print(f"{name}:{seed}:{case}  {word}", flush=True)
    seconds = time.monotonic() - start
    told = ", ".join(f"{n} {word}" for word, n in verdicts.items())
    print(f"{name}: {count} cases, {told}; {seconds:.0f} s, seed {seed}", flush=True)
    n_cases = count - verdicts[IMPOSSIBLE]
    good = verdicts[AS_WANTED] + verdicts[TOO_EARLY]
    notes = [f"{verdicts[word]} {word}" for word in (TOO_EARLY, IMPOSSIBLE) if verdicts[word]]
    notes.insert(0, f"{verdicts['found']} findings")
    if count < FAULTS[name][1]:
        notes.append(f"a whole run has {FAULTS[name][1]} cases")
    notes.append(f"seed {seed}, {jobs} at a time on {os.cpu_count()} cores")
    note = ", ".join(notes)
    return Row(name, good, "cases as wanted", n_cases, good / max(n_cases, 1), note)


def written(rows: dict[str, Row], folder: Path, shown: bool) -> None:
    """Writes the tables as the benchmarks do; rows of other kinds that stand there already stay."""
    for table, names, title in (
        ("faults", FAULTS.keys() - RESUMED.keys(), "Faults, and how many end as wanted"),
        ("faults_resumed", RESUMED.keys(), "Commands cut off that go on, and how many as wanted"),
    ):
        own = {name: row for name, row in rows.items() if name in names}
        file = folder / f"{table}.json"
        if own and file.exists():
            before = [Row(**row) for row in json.loads(file.read_text())["rows"]]
            own = {row.name: row for row in before} | own
        if own:
            ordered = [own[name] for name in FAULTS if name in own]
            finish(table, title, ordered, "cpu", folder, shown=shown)


def main_program() -> int:
    """Runs what was asked for; prints findings and a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [*FAULTS, []]
    parser.add_argument("faults", nargs="*", choices=names, help="all by default")
    parser.add_argument("--count", type=int, help="cases of each fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--out", type=Path, help="folder of the tables, which are added to")
    parser.add_argument("--case", help="FAULT:SEED:CASE, one case again")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        known = measured(Path(temporary))
        told = ", ".join(f"{s:.2f} s {warmth}" for warmth, s in known.seconds.items())
        print(f"a fit takes {told}", flush=True)
        if wanted.case:
            name, seed, case = wanted.case.split(":")
            print(run_case(name, int(seed), int(case), known))
            return 0
        whole = not wanted.faults and wanted.count is None
        folder = wanted.out or (RESULTS if whole else None)
        rows: dict[str, Row] = {}
        for name in wanted.faults or FAULTS:
            count = wanted.count or FAULTS[name][1]
            rows[name] = run_fault(name, wanted.seed, count, wanted.jobs, known)
            if folder:
                written(rows, folder, shown=len(rows) == len(wanted.faults or FAULTS))
    return 1 if any(row.value != row.against for row in rows.values()) else 0


if __name__ == "__main__":
    as_script(main_program, writes=False)
