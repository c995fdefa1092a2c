"""The run folder of a function: as `runs.RunFolder`, with `convergence.png` in place of traces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from channelfit.functions.fit_file import FunctionFit
from channelfit.results.run_folder import (
    RunFolder,
    json_text,
    machine,
    parameter_rows,
    titles,
    versions,
    write_text,
)
from channelfit.scoring.machine import gpu
from channelfit.search.fit_file import saved_text
from channelfit.search.loop import FitResult


@dataclass(frozen=True, eq=False)
class FunctionWinner:
    """The best candidate (n_parameters,) and its cost by the reference, in float64."""

    values: np.ndarray
    cost: float


class FunctionRunFolder(RunFolder):
    """One run's folder; `fit` is a `FunctionFit`."""

    fit: FunctionFit

    def rescore(self, scorer: Any, values: np.ndarray) -> Any:
        """The best candidate once more, by the reference."""
        column = np.asarray(values, dtype=float)[:, None]
        return FunctionWinner(column[:, 0], float(self.fit.function.cost(column)[0]))

    def finish(self, result: FitResult, scorer: Any, winner: Any) -> dict[str, Any]:
        """Writes everything; returns what stands in ``summary.json``."""
        from channelfit.functions.pictures import convergence_figure
        from channelfit.results.report.plots import save

        self._save_history(result.history.tolist())
        self._save_fit(result.values)
        summary = summarize(self.fit, result, scorer, winner)
        write_text(self.path / "summary.json", json_text(summary))
        save(convergence_figure(self.fit.function, result), self.path / "convergence.png")
        return summary

    def _save_fit(self, values: np.ndarray) -> None:
        write_text(self.path / "fit.yaml", saved_text(self.fit.saved(values, self.path)))


def summarize(
    fit: FunctionFit, result: FitResult, scorer: Any, winner: FunctionWinner
) -> dict[str, Any]:
    """The numbers of a run as plain data."""
    on_gpu = scorer.backend == "cuda"
    return {
        **titles(fit),
        "model": fit.function.model.name,
        "file": str(fit.file),
        "cost": winner.cost,
        "rms_error": math.sqrt(winner.cost) if fit.function.data is not None else None,
        "parameters": parameter_rows(fit, result),
        "stop_reason": result.stop_reason,
        "generations": result.generations,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "candidates_per_second": result.evaluations / max(result.seconds, 1e-9),
        "failed_candidates": dict(result.failures),
        "optimizer": result.optimizer,
        "settings": dict(result.settings),
        "stop": dict(fit.stop),
        "seed": result.seed,
        "backend": scorer.backend,
        "dtype": scorer.dtype,
        "source_hash": result.source_hash,
        "search_cost": result.cost,
        "versions": versions(on_gpu),
        "machine": machine() | ({"gpu": gpu.device().name} if on_gpu else {}),
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
