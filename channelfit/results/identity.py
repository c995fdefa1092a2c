"""The identity of a run: all that its result depends on, by name.

A run that is resumed compares its identity with that of the interrupted run, and goes on only
where nothing differs: otherwise its result could not be that of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.results.run_state import plain
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import processor
from channelfit.tasks.worker import software

if TYPE_CHECKING:
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


def _hash_of_command(protocol: Protocol) -> str:
    """Return a hash of the command at and between all samples, and before the first."""
    before = (protocol.resting_mV, protocol.carry_over, protocol.rest_ms, protocol.holding_mV)
    return hash_of(protocol.times_ms, protocol.command(), repr(protocol.sweeps), repr(before))
