"""`Fit`: values of parameters with their errors, traces, pictures and files."""

from __future__ import annotations

import csv
import html
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from channelfit.front import kinds
from channelfit.front.table import table_of
from channelfit.model.model import Model
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.files import save_text
from channelfit.results.files import HISTORY, file_beside, fit_file
from channelfit.results.fit_folder import picture_of
from channelfit.results.report.result_tables import result_lines, result_table
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import json_text
from channelfit.results.run_summary import found_with_result, summary_beside
from channelfit.scoring.scorer import Scorer
from channelfit.search.joined_files import FitFile, read_fit_file
from channelfit.search.loop import HISTORY_COLUMNS, FitResult
from channelfit.search.plan import FitPlan
from channelfit.search.saved_fit import fit_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from channelfit.results.export.subject import Subject

#: Columns of the table of parameters, after the value.
_COLUMNS = ("value", "unit", "standard_error", "interval_low", "interval_high", "lower", "upper")


class Fit:
    """A finished fit: what `channelfit.fit` returns, and `channelfit.load` reads back.

    Attributes:
        summary: all numbers as plain data, as in ``summary.json`` of a run folder.

    Example:
        >>> import channelfit as cf
        >>> small = {"name": "genetic", "population": 20, "generations": 2}
        >>> fit = cf.fit("models/model_b.yaml", optimizer=small, progress=False)
        >>> fit.values["gmax"] > 0, fit.parameters.loc["gmax", "unit"]
        (True, 'nS')
        >>> [trace.shape for trace in fit.traces] == [r.shape for r in fit.residuals]
        True
        >>> fit.save("runs/b").name
        'b'
        >>> fit.export("b.mod", ion="k", capacitance=20).name
        'b.mod'
    """

    def __init__(
        self,
        plan: FitPlan,
        scorer: Scorer,
        result: FitResult,
        winner: Any,
        summary: Mapping[str, Any],
    ) -> None:
        self._plan, self._scorer, self._result = plan, scorer, result
        self.summary: dict[str, Any] = json.loads(json_text(dict(summary)))
        self._winner = winner

    @property
    def name(self) -> str:
        """The name of the fit, in titles and folders."""
        return self._plan.name

    @property
    def cost(self) -> float:
        """The weighted mean square of fit minus data, pA^2; of a function, its own cost."""
        return float(self._winner.cost)

    @property
    def history(self) -> np.ndarray:
        """One row for each generation of the search, (n_generations,).

        Its fields are generation, evaluations, seconds, best_cost, median_cost and failed, the
        share of the candidates that could not be scored. Of a loaded fit, as far as it was saved.
        """
        return self._result.history.copy()

    @property
    def rms(self) -> float:
        """The root of the cost, pA: how far a sample lies from the fit, on average."""
        kinds.with_currents(self._plan, "so its cost is no mean square of currents")
        return float(np.sqrt(self.cost))

    @property
    def values(self) -> dict[str, float]:
        """Fitted values by parameter, in base units (ms, mV, nS, pA); fixed ones are among them."""
        return {name: float(row["value"]) for name, row in self._rows.items()}

    @property
    def errors(self) -> dict[str, float | None]:
        """Standard errors by parameter, in the units of the values.

        None for a fixed parameter, and for all where the backend has no derivatives.
        """
        return standard_errors(self._rows)

    @property
    def parameters(self) -> Any:
        """A row a parameter: value, unit, standard error, 95 % interval and range.

        A DataFrame where pandas is installed, else a `Table` that is indexed in the same way:
        ``fit.parameters.loc["gmax", "value"]``.
        """
        return parameter_table(self._rows)

    @property
    def undetermined(self) -> list[str]:
        """The parameters and combinations that are not identifiable, a sentence each."""
        return [row["text"] for row in self._uncertainty.get("undetermined", ())]

    @property
    def remarks(self) -> list[str]:
        """The assumptions behind the standard errors, in words."""
        return list(self._uncertainty.get("remarks", ()))

    @property
    def warnings(self) -> list[str]:
        """Cautions about the model and the data, before the search or with its result."""
        return [*map(str, (*self._plan.cautions, *found_with_result(self._plan, self.summary)))]

    @property
    def traces(self) -> list[np.ndarray]:
        """The fitted current of each experiment, (n_sweeps, n_times) pA.

        NaN after the end of a sweep that is shorter than others.
        """
        kinds.with_currents(self._plan, "so it has no traces")
        return [np.array(trace) for trace in self._winner.traces]

    @property
    def residuals(self) -> list[np.ndarray | None]:
        """Fit minus data of each experiment, (n_sweeps, n_times) pA, as pictures show it.

        NaN where a sample has no weight; None for an experiment that has no recording.
        """
        traces, found = self.traces, list[np.ndarray | None]()
        for experiment, trace in zip(self._plan.problem.experiments, traces, strict=True):
            recording = experiment.recording
            if recording is None:
                found.append(None)
            else:
                apart = trace - recording.current_pA
                found.append(np.where(recording.weight > 0, apart, np.nan))
        return found

    @property
    def model(self) -> Model:
        """The model with the fitted values, to be simulated, changed, saved or fitted again.

        Parameters that only a clamp uses are no part of it.
        """
        kinds.with_currents(self._plan, "so there is no model of a channel")
        document = fit_document(self._plan, self._result.values, self._plan.file.parent)
        model = self._plan.problem.model
        of_the_clamp = set(model.parameter_names) - model.used_names()
        for name in [n for n in document["parameters"] if n in of_the_clamp]:
            if not document["parameters"][name].get("fixed"):
                del document["parameters"][name]
        return Model.from_yaml(dump_yaml({k: v for k, v in document.items() if k != "fit"}))

    def plot(self) -> Figure:
        """Return command voltage, data with the fit, and residuals of every experiment.

        Returns: a figure of Matplotlib, which a notebook shows, and ``savefig`` saves.
        """
        from channelfit.front.pictures import shown_in_notebooks, traces_picture

        if not self._plan.has_currents:
            from channelfit.functions.pictures import convergence_figure  # loads Matplotlib

            return shown_in_notebooks(
                convergence_figure(self._plan.problem, self._result)  # type: ignore[arg-type]
            )
        return traces_picture(picture_of(self._plan, self._winner, self._result.evaluations))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder: ``report.html``, ``fit.yaml``, ``summary.json``, pictures, tables.

        ``fit.yaml`` can be read by `load`, simulated and fitted again, here and by the command
        line. Data and protocols that were given as arrays are written beside it.

        Arguments:
            folder: new or empty; a run never overwrites another.

        Returns: the folder.

        Raises: InputError when the folder holds something already or cannot be written.
        """
        with RunFolder() as run:
            made = kinds.fit_folder(run.claim(Path(folder)), self._plan)
            try:
                made.begin(self._scorer)
                made.begin_drawing(self._result, self._winner)
                made.finish(self._result, self.summary)
            except BaseException as error:
                made.stop(error)
                raise
            return made.path

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        ion: str | Sequence[str] = (),
        suffix: str | None = None,
        capacitance: float | None = None,
        point_process: bool = False,
        cell: str | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the fitted channel for another program, chosen by the ending of the file.

        ``.mod`` is NMODL for NEURON, ``.mmt`` a model for Myokit, ``.py`` functions that need
        nothing but Python, ``.tex`` the equations and parameters as LaTeX, ``.json`` everything.

        Arguments:
            path: the file to write.
            ion: NMODL: the ion that carries the current, such as ``na``; of several currents
                ``NAME=na`` each.
            suffix: the name of the mechanism; the model's by default.
            capacitance: NMODL: of the cell, pF, from which the density in S/cm2 follows at
                1 uF/cm2; by default what model, recording or clamp say.
            point_process: NMODL: whether to write all channels of the cell (nS), not a density.
            cell: the cell whose own values are taken.
            overwrite: whether a file of that name may be replaced.

        Returns: the file.

        Raises: InputError for what cannot be exported, or a file that exists already.
        """
        return export(
            self,
            path,
            ion=ion,
            suffix=suffix,
            capacitance=capacitance,
            point_process=point_process,
            cell=cell,
            overwrite=overwrite,
        )

    def _subject(self, cell: str | None = None) -> Subject:
        """Return the fitted channel as exports take it; cell: of which the values are taken."""
        kinds.with_currents(self._plan, "so there is no channel to export")
        from channelfit.results.export.subject import subject_of  # loads SymPy's LaTeX printer

        plan = self._plan
        document = fit_document(plan, self._result.values, plan.file.parent)
        return subject_of(document, plan.file, plan.model_file, self.summary, cell)

    def report(
        self, file: str | os.PathLike[str] = "report.html", figures: Sequence[str] = ()
    ) -> Path:
        """Write a report of the fit, one page, and the traces as CSV beside it.

        Arguments:
            file: the page; a report that is there is replaced, and no other file.
            figures: kinds of files in which to write the figures for print, "pdf", "svg" or
                "png"; they are written into the folder ``figures`` beside the page.

        Returns: the page.

        Raises: InputError when it cannot be written, or would replace a file that is no report.
        """
        from channelfit.front.reports import save_report  # loads Bokeh

        return save_report([self], [Path(file)], Path(file), figures)[0]

    @property
    def _rows(self) -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = self.summary["parameters"]
        return rows

    @property
    def _uncertainty(self) -> dict[str, Any]:
        return self.summary.get("uncertainty") or {}

    def _lines(self) -> list[str]:
        return result_lines(self.summary)

    def __repr__(self) -> str:
        return f"<Fit {self.name}: cost {self.cost:.6g}, {len(self._rows)} parameters>"

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=110, highlight=False, color_system=None)
        console.print(result_table(self._rows))
        return "\n".join([text.getvalue(), *self._lines()])

    def _repr_html_(self) -> str:
        table = self.parameters._repr_html_()
        lines = html.escape("\n".join(self._lines()))
        return f"<h4>{html.escape(self.name)}</h4>{table}<pre>{lines}</pre>"


def parameter_table(rows: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the parameters of a summary as a table, their intervals as two columns."""

    def flat(row: Mapping[str, Any]) -> dict[str, Any]:
        low, high = row.get("interval") or (None, None)
        return {**row, "interval_low": low, "interval_high": high}

    return table_of({name: flat(row) for name, row in rows.items()}, _COLUMNS)


def standard_errors(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the standard errors in a summary, by parameter."""
    return {name: row.get("standard_error") for name, row in rows.items()}


def export(
    model: Model | Fit | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    ion: str | Sequence[str] = (),
    suffix: str | None = None,
    capacitance: float | None = None,
    point_process: bool = False,
    cell: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a channel for other programs: .mod, .mmt, .py, .tex or .json.

    Arguments:
        model: a `Model`, a `Fit` (whose fitted values are written), a model file or a run folder.
        path: the file; its suffix says for which program.
        ion: NMODL: the ion of each current, such as "k".
        suffix: NMODL: the name of the mechanism.
        capacitance: of the cell, pF, by which a conductance becomes a density.
        point_process: NMODL: whether to write all channels of the cell (nS), not a density.
        cell: the cell whose own values are taken.
        overwrite: whether a file of that name may be replaced.

    Returns: the file.

    Raises: InputError for what cannot be exported, or a file that exists already.

    Example:
        >>> import channelfit as cf
        >>> cf.export("models/na_hh.yaml", "na.mod", ion="na", capacitance=20).name
        'na.mod'
    """
    # they load SymPy's LaTeX printer
    from channelfit.results.export import kinds as languages
    from channelfit.results.export.nmodl import ExportSettings
    from channelfit.results.export.subject import read_subject, subject_of

    if isinstance(model, Fit):
        subject = model._subject(cell)
    elif isinstance(model, Model):
        subject = subject_of(model.document, None, None, {}, cell)
    else:
        subject = read_subject(Path(model), (), cell)
    ions = (ion,) if isinstance(ion, str) else tuple(ion)
    settings = ExportSettings(ions, suffix, capacitance, point_process)
    text = languages.exported(subject, languages.kind_of(Path(path)), settings)
    return save_text(path, text, overwrite)


def load(path: str | os.PathLike[str], backend: str = "auto") -> Fit:
    """Return a fit that was saved.

    Arguments:
        path: a folder that `Fit.save` or ``channelfit optimize`` wrote, or its ``fit.yaml``.
        backend: what computes its traces: auto, reference, cpu or cuda.

    Returns: the fit, with its traces computed anew. Standard errors are those that were saved, or
    are computed where there is no ``summary.json``.

    Raises:
        InputError: no such file, a model or fit file whose values no search has found, or
            something in it cannot be used.

    Example:
        >>> import channelfit as cf
        >>> small = {"name": "genetic", "population": 20, "generations": 2}
        >>> saved = cf.fit("models/model_b.yaml", optimizer=small, progress=False).save("runs/b")
        >>> cf.load(saved).values.keys() == cf.Model.load("models/model_b.yaml").values.keys()
        True
    """
    file = Path(path)
    found = read_fit_file(fit_file(file))
    section = found.document.get("fit")
    if not isinstance(section, Mapping) or section.get("start") != "values":
        raise InputError(
            "is no saved fit: no search has found its values. channelfit.fit fits it, and "
            "channelfit.Model.load reads a model file",
            file,
        )
    return _fit_of(found, backend)


def read_fit(path: str | os.PathLike[str], backend: str = "auto") -> Fit:
    """Read the values in a run folder or in any file with a fit section, as a fit; see `load`."""
    return _fit_of(read_fit_file(fit_file(Path(path))), backend)


def _fit_of(found: FitFile, backend: str) -> Fit:
    """Judge the values in a file as a fit."""
    file, plan = found.file, kinds.plan_of(found, backend)
    try:
        values = plan.problem.values()
    except InputError as error:
        raise error.at(file) from None
    scorer = kinds.make_scorer(plan, backend)
    winner = kinds.rescore(plan, scorer, values)
    saved = summary_beside(file)
    if not _is_of(saved, plan, values):  # the file was changed since
        saved = {}
    result = _result(plan, scorer, values, float(winner.cost), saved, _saved_history(file))
    summary = saved or kinds.summarize(plan, result, scorer, winner)
    return Fit(plan, scorer, result, winner, summary)


def _is_of(saved: Mapping[str, Any], plan: FitPlan, values: np.ndarray) -> bool:
    """Return whether a saved summary is that of these values, (n_parameters,)."""
    rows = saved.get("parameters", {})
    pairs = zip(plan.problem.parameters, values, strict=True)
    return all(rows.get(p.name, {}).get("value") == value for p, value in pairs)


def _saved_history(file: Path) -> np.ndarray:
    place = file_beside(file, HISTORY)
    if place is None:
        return np.empty(0, HISTORY_COLUMNS)
    try:
        with place.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines))[1:]
        table = [tuple(float(x) if x else np.nan for x in row) for row in rows]
        return np.array(table, dtype=HISTORY_COLUMNS)
    except (OSError, UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", place) from None


def _result(
    plan: FitPlan,
    scorer: Scorer,
    values: np.ndarray,
    cost: float,
    saved: Mapping[str, Any],
    history: np.ndarray,
) -> FitResult:
    """Return the search of a saved fit, as far as its summary tells."""
    parameters, rows = plan.problem.parameters, saved.get("parameters", {})
    return FitResult(
        names=tuple(p.name for p in parameters),
        values=values,
        notes=tuple(rows.get(p.name, {}).get("note", "") for p in parameters),
        cost=saved.get("search_cost", cost),
        generations=saved.get("generations", 0),
        evaluations=saved.get("evaluations", 0),
        seconds=saved.get("seconds", 0.0),
        history=history,
        stop_reason=saved.get("stop_reason", "values of a file"),
        seed=saved.get("seed", plan.seed),
        optimizer=saved.get("optimizer", plan.optimizer),
        settings=saved.get("settings", plan.settings),
        failures=saved.get("failed_candidates", {}),
        backend=saved.get("backend", scorer.backend),
        dtype=saved.get("dtype", scorer.dtype),
        source_hash=saved.get("source_hash", scorer.source_hash),
        agreement=saved.get("agreement"),
    )
