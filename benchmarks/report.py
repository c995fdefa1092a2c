"""Shows the results of a benchmark as a table, and writes them to a JSON file."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
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
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "device": device,
        "versions": _versions(),
        "commit": _commit(),
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


def _commit() -> str:
    here = Path(__file__).parent
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip() or "unknown"
