"""The folder of the fit of a function: as that of a channel, with a picture of the costs.

Its report has what a function has: parameters, convergence, provenance and a paragraph of methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.functions.fit_file import FunctionPlan
from channelfit.reading.files import write_text
from channelfit.results.fit_folder import FitFolder
from channelfit.results.run_summary import parameter_rows, provenance, titles
from channelfit.search.loop import FitResult
from channelfit.search.saved_fit import saved_text


@dataclass(frozen=True, eq=False)
class FunctionWinner:
    """The best candidate (n_parameters,), and its cost by the reference in float64."""

    values: np.ndarray
    cost: float


class FunctionFolder(FitFolder):
    """The files of the fit of a function; `fit` is a `FunctionPlan`."""

    fit: FunctionPlan

    def begin_drawing(self, result: FitResult, winner: Any) -> None:
        """Do nothing: the picture is quickly drawn, at the end."""

    def _finish_drawing(self, result: FitResult) -> None:
        from channelfit.functions.pictures import convergence_figure  # Matplotlib loads slowly
        from channelfit.results.report.plots import save

        save(convergence_figure(self.fit.problem, result), self.path / "convergence.png")
        self.writer.finish()

    def save_fit(self, values: np.ndarray) -> None:
        write_text(self.path / "fit.yaml", saved_text(self.fit.saved(values, self.path)))


def rescore(fit: FunctionPlan, scorer: Any, values: np.ndarray) -> FunctionWinner:
    """Return the best candidate with its cost by the reference."""
    column = np.asarray(values, dtype=float)[:, None]
    return FunctionWinner(column[:, 0], float(fit.problem.cost(column)[0]))


def summarize(
    fit: FunctionPlan, result: FitResult, scorer: Any, winner: FunctionWinner
) -> dict[str, Any]:
    """Return the numbers of a run as plain data."""
    return {
        **titles(fit),
        "model": fit.problem.model.name,
        "file": str(fit.file),
        "cost": winner.cost,
        "rms_error": math.sqrt(winner.cost) if fit.problem.data is not None else None,
        "parameters": parameter_rows(fit, result),
        **provenance(fit, result, scorer),
    }
