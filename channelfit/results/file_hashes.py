"""The files that a fit has read, each with its SHA-256, by which a reader can identify them.

A recording or protocol of arrays has the hash of its samples.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError

if TYPE_CHECKING:
    from channelfit.search.plan import FitPlan


def file_hashes(plan: FitPlan) -> list[dict[str, str]]:
    """Return for each file that was read its kind, its path and its SHA-256, in hexadecimal digits.

    A file that cannot be read any more says so in place of its hash.
    """
    if plan.in_memory:
        return [
            {"what": f"recording {k}", "file": "an array", "sha256": _hash_of_array(current)}
            for k, current in enumerate(_currents(plan), 1)
        ]
    named = dict.fromkeys(_named(plan))
    return [
        {"what": what, "file": os.path.normpath(file), "sha256": _hash(file)}
        for what, file in named
    ]


def _currents(plan: FitPlan) -> Iterator[np.ndarray]:
    for experiment in plan.problem.experiments:
        if experiment.recording is not None:
            yield experiment.recording.current_pA


def _hash_of_array(values: np.ndarray) -> str:
    """Return the hash of float64 numbers, the least significant byte first, sweep by sweep."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).hexdigest()


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits. Raises OSError if it is not readable."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hash(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        return f"cannot be read any more: {error.strerror or error}"


def _named(plan: FitPlan) -> Iterator[tuple[str, Path]]:
    """Yield the files that a plan names, and those that its protocols name, with their kind."""
    if plan.file != plan.model_file:
        yield "fit file", plan.file
    yield "model", plan.model_file
    section = plan.section
    rows = section.get("experiments") or section.get("protocols") or []
    for row in rows if isinstance(rows, list) else [rows]:
        protocol = row.get("protocol") if isinstance(row, dict) else row
        if isinstance(protocol, str):
            file = _resolved(protocol, plan.file)
            yield "protocol", file
            for inner in _files_in_protocol(file):
                yield "command", inner
        if isinstance(row, dict):
            for name in files_in(row.get("recording")):
                yield "recording", _resolved(name, plan.file)
    for name in files_in(section.get("data")):  # of a function
        yield "data", _resolved(name, plan.file)


def _files_in_protocol(file: Path) -> Iterator[Path]:
    if file.suffix.lower() not in (".yaml", ".yml"):
        return
    try:
        document = read_yaml(file)
    except InputError:  # it has been read, and was taken away or changed since
        return
    for name in files_in(document):
        yield _resolved(name, file)


def files_in(data: Any) -> Iterator[str]:
    """Yield the texts under every key `file`, however deep."""
    if isinstance(data, list):
        for entry in data:
            yield from files_in(entry)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key == "file" and isinstance(value, str):
                yield value
            else:
                yield from files_in(value)


def _resolved(name: str, file: Path) -> Path:
    return Section({}, file).resolve(name, "")
