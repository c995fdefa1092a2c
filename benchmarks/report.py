"""Shows the results of a benchmark as a table, and writes them to a JSON file.

Results that are committed name the commit that they are of. So a script refuses to begin, and
`finish` to write into `benchmarks/results`, where the code is not that of a commit:

    --dirty        lets them; the commit is then recorded with "-dirty" behind it
    --commit NAME  names the commit of a copy that has no Git, as on another machine

`python benchmarks/readme.py --not-clean` lists the committed results that name none.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
#: What the numbers depend on; pages and results do not change them.
_CODE = ("benchmarks", "channelfit", "models", "protocols", "tests", "pyproject.toml", "setup.py")
_PACKAGES = (
    "channelfit",
    "numpy",
    "scipy",
    "numba",
    "sympy",
    "neuron",
    "cupy",
    "scikit-sundae",
    "py-pde",
)


@dataclass(frozen=True)
class Row:
    """One measured number; `ratio` is value / against, both measured in this run.

    Where the value is None it could not be measured, and the note says why.
    """

    name: str
    value: float | None
    unit: str
    against: float | None = None
    ratio: float | None = None
    note: str = ""


def compared(name: str, value: float, unit: str, against: float, note: str = "") -> Row:
    """A row with the ratio of value and against."""
    return Row(name, value, unit, against, value / against, note)


def missing(name: str, unit: str, reason: str) -> Row:
    """A row for a number that cannot be measured here, with the reason."""
    return Row(name, None, unit, note=reason)


def finish(
    benchmark: str,
    title: str,
    rows: list[Row],
    device: str = "",
    folder: Path | None = None,
    series: dict[str, object] | None = None,
    shown: bool = True,
) -> None:
    """Print the rows, if `shown`, and write NAME.json, into benchmarks/results unless a folder is
    given.

    `series` is what figures were drawn from.
    """
    table = Table(title=title)
    for heading, justify in (
        ("", "left"),
        ("value", "right"),
        ("unit", "left"),
        ("against", "right"),
        ("ratio", "right"),
        ("", "left"),
    ):
        table.add_column(heading, justify=justify)
    for row in rows:
        numbers = [_short(row.value, "-"), _short(row.against), _short(row.ratio)]
        table.add_row(row.name, numbers[0], row.unit, numbers[1], numbers[2], row.note)
    if shown:
        Console(width=150).print(table)
    folder = folder or RESULTS
    if folder.resolve() == RESULTS.resolve():
        _check_tree()
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "device": device,
        "versions": _versions(),
        "commit": tree.commit,
        "rows": [asdict(row) for row in rows],
    }
    if series is not None:
        record["series"] = series
    (folder / f"{benchmark}.json").write_text(json.dumps(record, indent=1) + "\n")


def _short(x: float | None, absent: str = "") -> str:
    if x is None:
        return absent
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


def _machine() -> dict[str, object]:
    name = platform.processor()
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith("model name")]
        name = lines[0].split(":")[1].strip()
    except (OSError, IndexError):
        name = name or platform.machine()
    return {"processor": name, "cores": os.cpu_count(), "system": platform.platform(terse=True)}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass
class Tree:
    """The code that a script runs: its commit as it began, and what the command line says of it."""

    commit: str
    dirty_is_fine: bool = False

    @property
    def is_clean(self) -> bool:
        """Return whether the code is that of a known commit."""
        return is_clean(self.commit)


def is_clean(commit: str) -> bool:
    """Return whether a recorded commit identifies the code."""
    return re.fullmatch(r"[0-9a-f]{7,40}", commit) is not None


def as_script(main: Callable[[], int | None], writes: bool = True) -> None:
    """Run a script from its command line.

    Arguments:
        writes: whether it writes results wherever no other folder is named, so that it is refused
            before it begins and not after hours.
    """
    arguments = sys.argv
    if "--dirty" in arguments:
        arguments.remove("--dirty")
        tree.dirty_is_fine = True
    if "--commit" in arguments:
        at = arguments.index("--commit")
        given = arguments[at + 1 : at + 2]
        if tree.commit != "unknown" or not given or not is_clean(given[0]):
            sys.exit("--commit takes the hash of a commit, and only where there is no Git")
        tree.commit = given[0]
        del arguments[at : at + 2]
    elsewhere = any(a.partition("=")[0] in ("--out", "--folder", "--help") for a in arguments)
    if writes and not elsewhere:
        _check_tree()
    sys.exit(main())


def _check_tree() -> None:
    """Ends the script where results would be of code that no commit holds."""
    if not (tree.is_clean or tree.dirty_is_fine):
        sys.exit(
            f"the code is that of no commit ({tree.commit}), so its results would be of nobody "
            "knows what: commit first, or give --dirty (in a copy without Git, --commit HASH)"
        )


def _git(*words: str) -> str | None:
    """Return the output of Git; None without Git."""
    if shutil.which("git") is None:
        return None
    run = subprocess.run(
        ["git", *words], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    return run.stdout.strip() if run.returncode == 0 else None


def commit_of_the_code() -> str:
    """The commit, with "-dirty" behind it where the code has changed since; "unknown" without Git.

    Results that another benchmark has written are no change of the code.
    """
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    changed = _git("status", "--porcelain", "--", *_CODE, ":!benchmarks/results")
    return f"{commit}-dirty" if changed or changed is None else commit


#: As it was when the script began: what is changed or committed meanwhile is not what runs.
tree = Tree(commit_of_the_code())
