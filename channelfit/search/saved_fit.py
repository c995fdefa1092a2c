"""A fit written as YAML: the model with its fitted values, and the fit section that made them.

The file can be read, simulated and fitted again.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.model.printed_form import is_printed_form
from channelfit.problem.experiment import Experiment, Problem
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.documents import dump_yaml
from channelfit.reading.files import write_text
from channelfit.search.joined_files import rebased_path
from channelfit.search.plan import FitPlan

#: Stands in a saved fit before the description that the model had.
OF_THE_MODEL = " Of the model before this fit: "
#: The comment above a saved fit.
_SAVED = """\
# Saved by channelfit: each value below is the best that a search found. `start: values` in the fit
# section makes the next `channelfit optimize` of this file begin there; with start: none, or
# --set fit.start=none, it begins anywhere.
"""


def save_data(plan: FitPlan, folder: Path) -> None:
    """Write data that have no file yet, simulated ones and arrays with protocols, into a folder."""
    for k, experiment in enumerate(plan.problem.experiments):
        if plan.surrogate or plan.in_memory:
            _write_table(folder / _numbered(plan, k, "data", "csv"), experiment)
        if plan.in_memory:
            experiment.protocol.save(folder / _numbered(plan, k, "protocol", "yaml"), True)


def saved_text(document: Mapping[str, Any]) -> str:
    """Return the YAML of a saved fit, below a comment that explains it."""
    return _SAVED + dump_yaml(document)


def fit_document(
    plan: FitPlan, values: np.ndarray, folder: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return a complete model file with fitted values and the fit section, for a folder.

    Paths are rewritten to start from there; ``${NAME}`` placeholders stay. Surrogate data came
    from the values before the fit, so the document refers to them as recordings, which `save_fit`
    writes, and does not simulate new ones.

    Arguments:
        values: (n_parameters,), base units.
    """
    document = copy.deepcopy(plan.document)
    if is_printed_form(document):
        for row, value in zip(document["model"]["params"], values, strict=True):
            row["val"] = float(value)
    else:
        _put_values(document, plan.problem, values)
        _describe(document, plan)
    section = copy.deepcopy(plan.section)
    if plan.in_memory:
        section |= {
            "experiments": [_written(plan, k) for k in range(len(plan.problem.experiments))]
        }
    elif plan.surrogate:
        section = _with_data(plan, section)
    rows = section["experiments"]
    section["experiments"] = rows = rows if isinstance(rows, list) else [rows]
    for row in rows if not plan.in_memory else ():
        row["protocol"] = rebased_path(row["protocol"], plan.file, folder)
        if not plan.surrogate:
            _move_files(row.get("recording"), plan, folder)
            _move_files(row.get("observe"), plan, folder)
        if plan.temperature_stated and not plan.problem.model.follows_temperature:
            row.setdefault("temperature", document.get("temperature"))
    document["fit"] = section | {"start": "values"}
    return document


def _move_files(data: Any, plan: FitPlan, folder: str | os.PathLike[str]) -> None:
    """Rewrite the paths of all files that a mapping names, so that they start from a folder."""
    if isinstance(data, list):
        for entry in data:
            _move_files(entry, plan, folder)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key == "file":
                data[key] = rebased_path(value, plan.file, folder)
            else:
                _move_files(value, plan, folder)


def _put_values(document: dict[str, Any], problem: Problem, values: np.ndarray) -> None:
    """Set values, ranges and units of the raw document, in base units."""
    model = problem.model
    given = dict(zip((p.name for p in problem.parameters), values.tolist(), strict=True))
    for name in set(model.parameter_names) & document["parameters"].keys():
        row, by_cell = document["parameters"][name], problem.of_model(name)
        parameter = next(iter(by_cell.values()))
        if "range" in row:
            row["range"] = _of_cells({c: [p.lower, p.upper] for c, p in by_cell.items()})
        row["value"] = {cell: given[p.name] for cell, p in by_cell.items()}
        if "" in by_cell:
            row["value"] = row["value"][""]
        if isinstance(row.get("fixed"), Mapping):
            row["fixed"] = _of_cells({cell: p.fixed for cell, p in by_cell.items()})
        if parameter.unit:
            row["unit"] = parameter.unit
        if parameter.prior:
            row["prior"] = {parameter.prior.kind: [parameter.prior.center, parameter.prior.spread]}
    current = document.get("current", {})
    if current.keys() & {"area", "capacitance"}:
        for term in model.terms:
            key = "conductance" if term.permeability is None else "permeability"
            unit = "nS" if term.permeability is None else "um3/ms"
            if term.size.is_Number and term.displacement is None:
                rows = {"current": current, "leak": document.get("leak")}
                row = rows.get(term.name) or document["currents"][term.name]
                row[key] = f"{float(term.size)!r} {unit}"
    for size in ("area", "capacitance"):  # by which everything has been multiplied now
        current.pop(size, None)
    if not current:
        document.pop("current", None)
    for tie in model.ties:
        row = document["parameters"][tie.name]
        if tie.lower is not None:
            row["range"] = [tie.lower, tie.upper]
        if tie.unit:
            row["unit"] = tie.unit


def _of_cells(by_cell: Mapping[str, Any]) -> Any:
    """Return the value that all cells share, or a mapping by cell."""
    first, *others = by_cell.values()
    return first if all(one == first for one in others) else dict(by_cell)


def _describe(document: dict[str, Any], plan: FitPlan) -> None:
    """Write a description and a source of the fitted values into a raw document."""
    experiments = plan.problem.experiments
    sources = [
        "simulated" if plan.surrogate or e.recording is None else e.recording.source
        for e in experiments
    ]
    data = ", ".join(
        f"{e.title} ({source})"
        for e, source in zip(experiments, sources, strict=True)
        if e.weight > 0
    )
    texts = {"description": f"Values fitted to {data}.", "source": "The values are those of a fit."}
    for key, text in texts.items():
        first, mark, before = str(document.get(key) or "").strip().partition(OF_THE_MODEL)
        before = before if mark else first
        document[key] = text + (OF_THE_MODEL + before if before else "")


def _with_data(plan: FitPlan, section: dict[str, Any]) -> dict[str, Any]:
    """Return the fit section with the simulated data as recordings in place of `protocols`."""
    protocols = section.pop("protocols")
    section.pop("surrogate", None)
    names = protocols if isinstance(protocols, list) else [protocols]
    rows = [{"protocol": name, "recording": _table_row(plan, k)} for k, name in enumerate(names)]
    return {"experiments": rows, **section}


def _written(plan: FitPlan, k: int) -> dict[str, Any]:
    """Return the entry of an experiment of which `save_data` writes protocol and recording."""
    experiment = plan.problem.experiments[k]
    recording = experiment.recording
    assert recording is not None
    row: dict[str, Any] = {
        "protocol": _numbered(plan, k, "protocol", "yaml"),
        "recording": _table_row(plan, k),
    }
    if np.isnan(recording.current_pA).any():
        row["recording"]["missing"] = "mask"
    if experiment.weight != 1:
        row["weight"] = float(experiment.weight)
    if experiment.cell:
        row["cell"] = experiment.cell
    if experiment.temperature_C is not None:
        row["temperature"] = f"{experiment.temperature_C!r} degC"
    windows = _windows(experiment)
    clamps = plan.section.get("experiments")  # other keys that were given with the arrays
    return row | ({"mask": windows} if windows else {}) | (clamps[k] if clamps else {})


def _windows(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the weights of samples as masks, one for each stretch with a weight other than 1."""
    protocol, recording = experiment.protocol, experiment.recording
    assert recording is not None
    rows = []
    for sweep, weights in enumerate(recording.weight):
        weights = weights[: protocol.n_times(sweep)]
        edges = np.flatnonzero(np.diff(weights)) + 1
        for start, end in pairwise([0, *edges.tolist(), len(weights)]):
            if weights[start] != 1:
                rows.append(
                    {
                        "from": f"{_between(start, protocol.sampling_ms)!r} ms",
                        "to": f"{_between(end, protocol.sampling_ms)!r} ms",
                        "weight": float(weights[start]),
                        "sweeps": [sweep + 1],
                    }
                )
    return rows


def _between(sample: int, sampling_ms: float) -> float:
    """Return a time half a sample before a sample, ms."""
    return (sample - 0.5) * sampling_ms


def _table_row(plan: FitPlan, k: int) -> dict[str, Any]:
    """Return the entry of a recording that `save_data` writes."""
    recording = plan.problem.experiments[k].recording
    return {
        "file": _numbered(plan, k, "data", "csv"),
        "time": {"column": "time_ms", "unit": "ms"},
        "current": {"columns": "all", "unit": "pA"},
        "source": recording.source if recording else "",
    }


def _numbered(plan: FitPlan, k: int, stem: str, suffix: str) -> str:
    """Return a file name, with the number of the experiment where there are several."""
    number = "" if len(plan.problem.experiments) == 1 else f"_{k + 1}"
    return f"{stem}{number}.{suffix}"


def _write_table(path: Path, experiment: Experiment) -> None:
    """Write time_ms and a column of pA for each sweep; empty cells after a shorter sweep's end."""
    recording = experiment.recording
    assert recording is not None
    sweeps = [(f"sweep_{k}_pA", row) for k, row in enumerate(recording.current_pA, 1)]
    times = np.array([round(t, 9) for t in recording.time_ms.tolist()])
    # every bit, so the cost of a saved fit is that of the run
    write_text(path, csv_table([("time_ms", times), *sweeps]))
