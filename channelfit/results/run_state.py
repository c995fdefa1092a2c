"""`state.json` of a run folder: whether its run goes on, how far it is, and how it has ended.

The file is there from the first second of a run, and is written anew about once a second and when
the run ends. A run that was killed cannot say so any more: its file says that it is running, and
`processes.still_runs` tells that its process is gone.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit import __version__
from channelfit.results.processes import this_process

if TYPE_CHECKING:
    from channelfit.search.loop import Progress
    from channelfit.search.plan import FitPlan

#: The name of the file in a run folder.
STATE = "state.json"
#: What a run says of itself.
RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"


class RunState:
    """What a run says of itself in `state.json`.

    Attributes:
        content: by key, as it stands in the file. Among the keys are `state` (one of the four words
            above), `reason` (why it ended), `stage` (what is being done), `process`
            (`this_process`), `command`, `started`, `updated`, `stop` (the rules that are on), and
            after each generation its numbers, `seconds_left` and the best `parameters` so far;
            `logarithmic` names those whose range is searched on a logarithmic scale.
    """

    def __init__(self) -> None:
        now = _now()
        self.content: dict[str, Any] = {
            "state": RUNNING,
            "stage": "reading the files",
            "started": now,
            "updated": now,
            "process": this_process(),
            "command": list(sys.argv),
            "directory": _directory(),
            "version": __version__,
        }

    @property
    def ended(self) -> bool:
        """Whether the run has said how it ended."""
        return bool(self.content["state"] != RUNNING)

    def plan(self, fit: FitPlan) -> None:
        """Takes in what is fitted, and how."""
        self.content |= {
            "stage": "preparing the search",
            "name": fit.name,
            "model": fit.problem.model.name,
            "file": str(fit.file),
            "optimizer": fit.optimizer,
            "seed": fit.seed,
            "stop": {k: v for k, v in asdict(fit.stop_rules).items() if v is not None},
            "cost_unit": "pA^2" if fit.has_currents else "",
            "logarithmic": [p.name for p in fit.problem.parameters if p.scale == "log"],
            "warnings": [str(caution) for caution in fit.cautions],
        }

    def progress(self, progress: Progress, fit: FitPlan) -> None:
        """Takes in the search after a generation."""
        self.content |= {
            "stage": progress.stage or "searching",
            "generation": progress.generation,
            "evaluations": progress.evaluations,
            "seconds": progress.seconds,
            "seconds_left": progress.seconds_left,
            "candidates_per_second": progress.candidates_per_second,
            "best_cost": progress.best_cost,
            "median_cost": progress.median_cost,
            "failed": progress.failed,
        }
        if progress.parameters is not None:
            self.content["parameters"] = _parameters(fit, progress.parameters)

    def warn(self, told: str) -> None:
        """Takes in something that looks wrong, once."""
        warnings = self.content.setdefault("warnings", [])
        if told not in warnings:
            warnings.append(told)

    def end(self, state: str, reason: str, **news: Any) -> None:
        """Takes in how the run ended."""
        self.content |= {"state": state, "reason": reason, "stage": "", "seconds_left": None}
        self.content |= news

    def text(self) -> str:
        """The content of the file: JSON in ASCII, in which what is not finite is null."""
        self.content["updated"] = _now()
        return json.dumps(plain(self.content), indent=1, allow_nan=False) + "\n"


def _parameters(fit: FitPlan, values: np.ndarray) -> dict[str, dict[str, Any]]:
    """A row a parameter: its value, unit and range, and whether it is fixed."""
    return {
        parameter.name: {
            "value": float(value),
            "unit": parameter.unit,
            "lower": parameter.lower,
            "upper": parameter.upper,
            **({"note": "fixed"} if parameter.fixed else {}),
        }
        for parameter, value in zip(fit.problem.parameters, values, strict=True)
    }


def _directory() -> str:
    """The folder that this process is in; empty where that has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def plain(value: Any) -> Any:
    """A value as JSON can hold it: what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
