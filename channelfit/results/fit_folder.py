"""The folder of a fit: the result of a search, and all that is needed to repeat it.

``fit.yaml``      the model with the fitted values, and its fit section: can be simulated, and
                  fitted again; simulated data lie beside it (``data*.csv``)
``history.csv``   a row a generation
``report.html``   all that follows in one page, with figures to zoom: the file to send to others
``traces.png``    data, fit, residual and command voltage
``traces.csv``    the same as a table, with a number in its name where there are several experiments
``curves.png``    what was observed in place of traces, with the fit; ``curves.csv`` as a table
``summary.json``  numbers, seed, versions, machine, stop reason
``source.py``     the generated code that scored the candidates (``source.cu`` of a GPU)

While the search runs, the best fit so far is saved every few seconds and the history every second;
the other files of a run are those of `run_folder`.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.reading.csv_tables import csv_rows
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_text, writing
from channelfit.results.files import FIT, HISTORY, SUMMARY, fault_of
from channelfit.results.report.observed_curves import curves_of
from channelfit.results.report.page_facts import facts_of, scheme_of
from channelfit.results.report.report_writer import ReportWriter
from channelfit.results.report.traces import TracePicture, fitted
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED, json_text, parameter_row
from channelfit.search.loop import HISTORY_COLUMNS
from channelfit.search.saved_fit import fit_document, save_data, saved_text

if TYPE_CHECKING:
    from channelfit.results.report.page_content import ModelScheme
    from channelfit.results.run_summary import Winner
    from channelfit.scoring.scorer import Scorer
    from channelfit.search.loop import FitResult, Progress
    from channelfit.search.plan import FitPlan

#: The name of the report of a run.
REPORT = "report.html"
#: Seconds between two saves of the best fit of a running search.
SAVE_EVERY = 5.0
_COLUMNS = HISTORY_COLUMNS.names or ()
#: The numbers of a search that stand in `state.json`.
_PROGRESS = (
    *("generation", "evaluations", "seconds", "seconds_left", "candidates_per_second"),
    *("best_cost", "median_cost", "failed"),
)


class FitFolder:
    """The files of a fit in the folder of its run, while the search goes on and after it.

    Arguments:
        run: the run folder, claimed.
        fit: the plan of the search.
        writer: draws the picture and the report.
    """

    def __init__(self, run: RunFolder, fit: FitPlan, writer: ReportWriter | None = None) -> None:
        self.run, self.fit, self.writer = run, fit, writer or ReportWriter()
        self._has_data = False
        self._rows: list[Sequence[float | None]] = []
        self._text, self._n_rendered = io.StringIO(), 0
        self._text.write(csv_rows([_COLUMNS]))
        self._best: tuple[float, np.ndarray] | None = None
        self._scheme: ModelScheme | None = None
        self._saved, self._saved_cost = time.monotonic(), math.inf
        run.report(**_described(fit))

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.run.path

    def begin(self, scorer: Scorer) -> None:
        """Write the generated code, where the backend has any, and begin to draw the scheme."""
        if scorer.source_text:
            name = "source.cu" if scorer.backend == "cuda" else "source.py"
            write_text(self.path / name, scorer.source_text)
        if self.fit.has_currents:
            self._scheme = scheme_of(self.fit.problem.model)
            self.writer.announce(self._scheme)

    def record(self, progress: Progress) -> InputError | None:
        """Add a generation to the history; save the state of the search every few seconds.

        A file that cannot be saved now is saved later, or `finish` fails: a disk that is full for
        a while does not end a search.

        Returns: why the state could not be saved; None where it was, or was not due.
        """
        self._rows.append(tuple(getattr(progress, name) for name in _COLUMNS))
        if progress.parameters is not None:
            self._best = progress.best_cost, progress.parameters
        fault = None
        with self.run.undisturbed():
            if self._best and time.monotonic() - self._saved >= SAVE_EVERY:
                fault = self._save_best()
                self._saved = time.monotonic()
            later = self.run.report_now_and_then(lambda: self._report(progress))
        return fault or later

    def _report(self, progress: Progress) -> InputError | None:
        """Save the history and the state; return why that was not possible."""
        faults = self._save_rows(), self.run.report(**_progressed(progress, self.fit))
        return _first(faults)

    def _save_best(self) -> InputError | None:
        """Save the best candidate, unless it has been; return why that was not possible."""
        if self._best is None or self._best[0] >= self._saved_cost:
            return None
        fault = fault_of(self.save_fit, self._best[1])
        if fault is None:
            self._saved_cost = self._best[0]
        return fault

    def _save_rows(self) -> InputError | None:
        """Save the history so far; return why that was not possible."""
        if not self._rows:
            return None
        self._text.write(csv_rows(self._rows[self._n_rendered :]))
        self._n_rendered = len(self._rows)
        return fault_of(write_text, self.path / HISTORY, self._text.getvalue())

    def begin_drawing(self, result: FitResult, winner: Any) -> None:
        """Begin with the picture, which takes long, and return at once."""
        picture = picture_of(self.fit, winner, result.evaluations)
        self.writer.begin(picture, self.path / "traces.png")

    def finish(self, result: FitResult, summary: dict[str, Any]) -> InputError | None:
        """Write all files, and wait for the picture that `begin_drawing` has begun and the report.

        Each file is written, whichever others could not be.

        Returns: why `state.json` could not be written, without which no result is lost.

        Raises InputError: another file cannot be written; the message holds the values where they
        are in no file.
        """
        steps: tuple[Callable[[], None], ...] = (
            lambda: self.save_fit(result.values),
            lambda: write_text(
                self.path / HISTORY, csv_rows([_COLUMNS]) + csv_rows(result.history.tolist())
            ),
            lambda: write_text(self.path / SUMMARY, json_text(summary)),
            lambda: self._finish_drawing(result),
        )
        facts = facts_of(self.fit, result, json_text(summary), self._scheme)
        self.writer.report(facts, self.path / REPORT)
        faults = {}
        for k, step in enumerate(steps):
            try:
                with writing(self.path):
                    step()
            except InputError as error:
                faults[k] = error
        not_reported = self._end(result, summary, _first(faults.values()))
        if 0 in faults:
            found = ", ".join(f"{name} = {value!r}" for name, value in result.parameters.items())
            message = f"{faults[0].message}; the values that were found: {found}"
            raise InputError(message, faults[0].file)
        for fault in faults.values():
            raise fault
        return not_reported

    def _end(
        self, result: FitResult, summary: dict[str, Any], fault: InputError | None
    ) -> InputError | None:
        """End the run; return why its state could not be written."""
        state, reason = FINISHED, result.stop_reason
        if fault is not None:
            state, reason = FAILED, str(fault)
        elif reason == INTERRUPTED:
            state = INTERRUPTED
        rows = result.history.tolist()
        news = dict(zip(_COLUMNS, rows[-1], strict=True)) if rows else {}
        kept = ("seconds", "candidates_per_second", "parameters")
        news |= {key: summary[key] for key in kept if key in summary}
        news |= {"evaluations": result.evaluations, "best_cost": summary["cost"]}
        return self.run.end(state, reason, keep=state != FINISHED, **news)

    def _finish_drawing(self, result: FitResult) -> None:
        self.writer.finish()

    def stop(self, error: BaseException) -> InputError | None:
        """End a run that has failed: save its results so far, or discard a run that has none.

        Returns: why they could not be saved; None where they were.
        """
        if self.run.ended:
            return None
        with self.run.undisturbed():
            if self._rows or self.run.checkpoint.has_results or self.run.resumed:
                return _first([self._save_best(), self._save_rows(), self.run.stop(error)])
            for name in ("source.py", "source.cu"):
                (self.path / name).unlink(missing_ok=True)
            self.run.discard()
            return None

    def save_fit(self, values: np.ndarray) -> None:
        """Write the model with these values (n_parameters,), base units, and simulated data."""
        if not self._has_data:
            save_data(self.fit, self.path)
            self._has_data = True
        write_text(self.path / FIT, saved_text(fit_document(self.fit, values, self.path)))


def _first(faults: Iterable[InputError | None]) -> InputError | None:
    """Return the first that is not None; None where all are."""
    return next((fault for fault in faults if fault is not None), None)


def _described(fit: FitPlan) -> dict[str, Any]:
    """Return the keys of `state.json` that describe the fit."""
    return {
        "stage": "preparing the search",
        "name": fit.name,
        "model": fit.problem.model.name,
        "file": str(fit.file),
        "optimizer": fit.optimizer,
        "seed": fit.seed,
        "stop": {k: v for k, v in asdict(fit.stop_rules).items() if v is not None},
        "cost_unit": "pA^2" if fit.has_currents and fit.problem.has_recordings else "",
        "logarithmic": [p.name for p in fit.problem.parameters if p.scale == "log"],
        "warnings": [str(caution) for caution in fit.cautions],
    }


def _progressed(progress: Progress, fit: FitPlan) -> dict[str, Any]:
    """Return the keys of `state.json` that describe the progress of a search."""
    news = {name: getattr(progress, name) for name in _PROGRESS}
    news["stage"] = progress.stage or "searching"
    if progress.parameters is not None:
        news["parameters"] = _parameters(fit, progress.parameters)
    return news


def _parameters(fit: FitPlan, values: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return a row a parameter: its value, unit and range, and whether it is fixed."""
    return {
        parameter.name: parameter_row(parameter, value)
        | ({"note": "fixed"} if parameter.fixed else {})
        for parameter, value in zip(fit.problem.parameters, values, strict=True)
    }


def picture_of(fit: FitPlan, winner: Winner, evaluations: int) -> TracePicture:
    """Return the content of a picture: recording, fit, residual and command of each experiment."""
    experiments = fit.problem.experiments
    membranes: Sequence[np.ndarray | None] = [None] * len(experiments)
    if any(e.clamp is not None for e in experiments):
        from channelfit.scoring.membrane import membrane_potentials  # loads LLVM

        membranes = membrane_potentials(fit.problem, winner.values)
    spreads = winner.spreads or [None] * len(experiments)
    rows = list(zip(experiments, winner.traces, membranes, spreads, strict=True))
    return TracePicture(
        tuple(fitted(*row) for row in rows if not row[0].observations),
        fit.name,
        f"RMS {winner.rms:.3g} {fit.problem.unit} after {evaluations:,} candidates",
        tuple(curve for e, trace, *_ in rows for curve in curves_of(e, trace)),
    )
