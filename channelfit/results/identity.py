"""The identity of a run: all that its result depends on, by name, and the files it has read.

A run that is resumed compares its identity with that of the interrupted run, and goes on only
where nothing differs: otherwise its result could not be that of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError
from channelfit.results.run_state import plain
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import processor
from channelfit.tasks.worker import software

if TYPE_CHECKING:
    from channelfit.problem.experiment import Experiment
    from channelfit.problem.protocol import Protocol
    from channelfit.scoring.scorer import Scorer
    from channelfit.search.plan import FitPlan

#: Differences that a message lists, at most.
_LISTED = 5


def identity(plan: FitPlan, scorer: Scorer) -> dict[str, Any]:
    """Return all that the result of a search depends on, by name, as JSON holds it."""
    on_gpu = scorer.backend == "cuda"
    found: dict[str, Any] = {
        **_leaves("model", plan.document),
        **_leaves("fit", plan.section),
        "optimizer": plan.optimizer,
        **({"cost": plan.cost.name} if plan.cost else {}),
        "seed": plan.seed,
        **dict(_data(plan)),
        "backend": scorer.backend,
        "precision": scorer.dtype,
        "path": scorer.path,
        "generated code": scorer.source_hash,
        **software(on_gpu),
        **hardware(on_gpu),
    }
    plain_text: dict[str, Any] = json.loads(json.dumps(plain(found), default=str))
    return plain_text


def hardware(on_gpu: bool) -> dict[str, str]:
    """Return the names of the processor and of the GPU, where that is used."""
    found = {"processor": processor()}
    return {**found, "GPU": gpu.device().name} if on_gpu else found


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words how two identities differ; an empty text where they are the same.

    Each name stands with both of its values; of many differences the first are listed.
    """
    listed = []
    for name in [*earlier, *(key for key in now if key not in earlier)]:
        before, after = earlier.get(name, "not there"), now.get(name, "not there")
        if before != after:
            listed.append(f"{name} was {before} and is {after}")
    more = f"; and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return "; ".join(listed[:_LISTED]) + more


def hash_of(*parts: np.ndarray | str) -> str:
    """Return a hash of arrays and texts, 16 hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
        else:
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]


def _leaves(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of nested mappings and lists, by dotted key."""
    if isinstance(value, Mapping):
        rows = [(f"{name}.{key}", each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        rows = [(f"{name}[{k}]", each) for k, each in enumerate(value, 1)]
    else:
        return {name: value}
    found: dict[str, Any] = {}
    for key, each in rows:
        found |= _leaves(key, each)
    return found


def _data(plan: FitPlan) -> Iterator[tuple[str, Any]]:
    """Yield a hash of each recording with its weights and its command, or of a function's table.

    The cell and the temperature of an experiment stand beside them, since those of a call from
    Python are in no file.
    """
    if not plan.has_currents:
        data = getattr(plan.problem, "data", None)
        if data is not None:
            tables = (data.inputs, data.targets, data.scales)
            yield "data", hash_of(*(values for table in tables for values in table.values()))
        return
    for number, experiment in enumerate(plan.problem.experiments, 1):
        protocol, recording = experiment.protocol, experiment.recording
        yield f"command of experiment {number}", _hash_of_command(protocol)
        yield f"cell of experiment {number}", experiment.cell
        yield f"temperature of experiment {number}, degC,", experiment.temperature_C
        if recording is not None:
            yield (
                f"recording of experiment {number}",
                hash_of(recording.current_pA, recording.weight, recording.time_ms),
            )
        if experiment.observations:
            yield f"observations of experiment {number}", _hash_of_observations(experiment)


def _hash_of_observations(experiment: Experiment) -> str:
    """Return a hash of what was observed, and how."""
    arrays = [a for o in experiment.observations for a in (o.x, o.value, o.error)]
    how = [o.taken_as for o in experiment.observations]
    return hash_of(*arrays, repr(how))


def _hash_of_command(protocol: Protocol) -> str:
    """Return a hash of the command at and between all samples, and before the first."""
    before = (protocol.resting_mV, protocol.carry_over, protocol.rest_ms, protocol.holding_mV)
    return hash_of(protocol.times_ms, protocol.command(), repr(protocol.sweeps), repr(before))


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
            for name in files_in(row.get("observe")):
                yield "observations", _resolved(name, plan.file)
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
