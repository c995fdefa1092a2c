"""The results of a batch: its table, fits and traces, their summary, and their files."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.fits import WellFits, blank, joined
from channelfit.batch.recordings import metadata
from channelfit.batch.saved import checked_fits
from channelfit.batch.table import CSV, Column, WellTable, kinds_of_reasons, texts
from channelfit.batch.template import MEASURES
from channelfit.batch.well_tasks import ALL_MEASURES, WellResults, WellTasks
from channelfit.batch.where import chosen, computed
from channelfit.model.channel import Parameter
from channelfit.reading.errors import InputError, printable
from channelfit.reading.files import write_bytes, write_text
from channelfit.reading.saved import read_arrays
from channelfit.results.identity import file_hashes
from channelfit.results.run_state import json_text
from channelfit.results.run_summary import titles
from channelfit.scoring.machine.computer import machine, versions
from channelfit.tasks.result_store import expect

_TRACES = ("data", "fit", "residual")
TRACES, FITS, SUMMARY, PAGE = "traces.npz", "fits.npz", "summary.json", "plate.html"
#: The first words in the meaning of a column that depends on more wells than its row's.
OF_ALL = "Of all wells together: "


@dataclass(frozen=True, eq=False)
class Results:
    """The fits of all wells, a row each.

    Attributes:
        table: the numbers and texts of all wells.
        traces: `time_ms` (n_points,), and `data`, `fit` and `residual` (n_wells, n_points): the fit
            less the data. Each is thinned for pictures, by its own extremes.
        fits: with the information matrices, which a table does not hold; None where no well has a
            fit, or where earlier ones were lost.
        ranges: (n_names, 2), within which the parameters of `fits` were searched.
    """

    table: WellTable
    traces: Mapping[str, np.ndarray]
    fits: WellFits | None
    ranges: np.ndarray

    def write(self, folder: Path) -> list[str]:
        """Write the table, the traces and the fits; return what is missing, in sentences."""
        missing = self.table.write(folder)
        write_bytes(folder / TRACES, _packed(self.traces))
        if self.fits is not None:
            write_bytes(folder / FITS, _packed({**self.fits.arrays(), "ranges": self.ranges}))
        return missing

    def select(self, rows: np.ndarray) -> Results:
        """Return some of the wells (mask), without the columns that depend on all of them."""
        table = self.table.select(rows)
        own = {k: a for k, a in table.about.items() if not a.meaning.startswith(OF_ALL)}
        return Results(
            WellTable({name: table.columns[name] for name in own if name in table.columns}, own),
            {k: v if k == "time_ms" else v[rows] for k, v in self.traces.items()},
            None if self.fits is None else self.fits.take(rows),
            self.ranges,
        )

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read the results of a finished batch. Raises InputError where there is no table."""
        table = WellTable.read(folder)
        traces = _unpacked(folder / TRACES)
        if traces:
            shape = (len(table), traces["time_ms"].size) if "time_ms" in traces else (0, 0)
            shapes = {"time_ms": ("f", shape[1:]), **dict.fromkeys(_TRACES, ("f", shape))}
            try:
                expect(traces, shapes)
            except InputError as error:
                raise error.at(folder / TRACES) from None
        found = _unpacked(folder / FITS)
        if not found:
            return cls(table, traces, None, np.empty((0, 2)))
        try:
            expect(found, {"values": ("f", (len(table), None))})
            expect(found, {"ranges": ("f", (found["values"].shape[1], 2))})
            fits = checked_fits(found, len(table))
        except InputError as error:
            raise error.at(folder / FITS) from None
        _check_same(table, fits, folder / FITS)
        return cls(table, traces, fits, found["ranges"])


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return out.getvalue()


def _unpacked(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays in a file; none where there is no such file."""
    return read_arrays(file) if file.exists() else {}


def _check_same(table: WellTable, fits: WellFits, file: Path) -> None:
    """Refuse fits that are not those of the table beside them."""
    for k, name in enumerate(fits.names):
        column = table.columns.get(name)
        if column is None or column.dtype == object:
            same = not len(table) or np.isnan(fits.values[:, k]).all()
        else:
            same = np.allclose(column, fits.values[:, k], rtol=1e-9, atol=0.0, equal_nan=True)
        if not same:
            raise InputError(f"is not of the wells in {CSV}: {name} has other values", file)


# --- from tasks ----------------------------------------------------------------------------------


def gathered(work: WellTasks, tasks: Sequence[WellResults]) -> Results:
    """Join the results of all tasks, in the order of the wells."""
    fits = _fits(work, tasks)
    measured = np.concatenate([task.measured for task in tasks])
    columns, about = _columns(work, fits, measured)
    quality, reason = _judged(work, tasks)
    required = work.template.required if fits is not None else {}
    for k, sentences in unfulfilled(required, WellTable(columns, about)).items():
        if quality[k] != "failed":
            quality[k], reason[k] = "check", "; ".join(filter(None, [reason[k], *sentences]))
    columns["quality"], columns["reason"] = texts(quality), texts(reason)
    about["quality"] = Column("", "ok, check or failed.", True)
    about["reason"] = Column("", "Why the quality is not ok.", True)
    ranges = [(p.lower, p.upper) for p in work.plan.problem.parameters if not p.fixed]
    return Results(
        WellTable(columns, about), _traces(work, tasks), fits, np.array(ranges, dtype=float)
    )


def _columns(
    work: WellTasks, fits: WellFits | None, measured: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Column]]:
    """Return the columns of metadata, fits and measures, and the description of each.

    Arguments:
        measured: (n_wells, n_measures), in the order of `ALL_MEASURES`.
    """
    known = metadata(work.recordings)
    columns, about = dict(known.columns), dict(known.about)
    for name, (values, column) in ({} if fits is None else _columns_of(fits)).items():
        columns[name], about[name] = np.asarray(values, dtype=float), column
    for k, (name, (unit, meaning)) in enumerate(ALL_MEASURES.items()):
        columns[name], about[name] = measured[:, k], Column(unit, meaning)
    return columns, about


def unfulfilled(required: Mapping[str, str], table: WellTable) -> dict[int, list[str]]:
    """Return by row the requirements that a well does not fulfill, in sentences.

    Raises: InputError for a requirement that is no condition of this table.
    """
    found: dict[int, list[str]] = {}
    for name, comparison in required.items():
        subject = f"`{name}`" if name in table.columns else f"({name})"
        key = f"fit.require.{name}"
        values = computed(name, table, key)
        holds = chosen(f"{subject} {comparison}", table, key)
        for k in np.flatnonzero(~holds).tolist():
            value = "not known" if values[k] in ("", None) else values[k]
            found.setdefault(k, []).append(f"{name} is {value}, where {comparison} is required")
    return found


def check_required(work: WellTasks) -> None:
    """Refuse a requirement that is no condition of the table of results."""
    n = len(work.recordings)
    unknown = blank(work.plan, [""] * n), np.full((n, len(ALL_MEASURES)), np.nan)
    try:
        unfulfilled(work.template.required, WellTable(*_columns(work, *unknown)))
    except InputError as error:
        raise error.at(work.template.file) from None


def _fits(work: WellTasks, tasks: Sequence[WellResults]) -> WellFits | None:
    """Return the fits of all wells, None without any; wells that could not be read have failed."""
    parts = [task.fits for task in tasks if task.fits is not None]
    if not parts:
        return None
    starts = zip(_starts(work), tasks, strict=True)
    rows = np.concatenate([start + task.places for start, task in starts])
    whole = blank(work.plan, [""] * len(work.recordings)).put(rows, joined(parts))
    whole.quality[whole.quality == ""] = "failed"
    return whole


def _columns_of(fits: WellFits) -> dict[str, tuple[np.ndarray, Column]]:
    """Return the columns of numbers of fits, each with its description."""
    found: dict[str, tuple[np.ndarray, Column]] = {}
    for k, (name, unit) in enumerate(zip(fits.names, fits.units, strict=True)):
        found[name] = fits.values[:, k], Column(unit, "The best value.")
        found[f"{name}_error"] = fits.errors[:, k], Column(unit, "Its standard error.")
        found[f"{name}_lower"] = fits.lower[:, k], Column(unit, "Where its 95 % interval begins.")
        found[f"{name}_upper"] = fits.upper[:, k], Column(unit, "Where its 95 % interval ends.")
    there = np.isfinite(fits.values).any(axis=1)
    found["cost"] = fits.cost, Column("pA^2", "The weighted mean square of data less fit.")
    found["rms"] = fits.rms, Column("pA", "The root of the cost.")
    found["noise"] = fits.noise, Column("pA", "The standard deviation of a sample's noise.")
    starts = np.where(there, fits.starts, np.nan)
    found["starts"] = starts, Column("", "How many starts were refined to their end.")
    agreed = np.where(there, fits.agreed, np.nan)
    found["agreed"] = agreed, Column("", "How many of them came to the lowest cost.")
    return found


def _starts(work: WellTasks) -> list[int]:
    return [int(key[1]) for key in work.keys]


def _judged(work: WellTasks, tasks: Sequence[WellResults]) -> tuple[list[str], list[str]]:
    """Return the quality of every well and its reasons: those of its fit and of its recording."""
    quality, reason = ["failed"] * len(work.recordings), [""] * len(work.recordings)
    for start, task in zip(_starts(work), tasks, strict=True):
        reasons: dict[int, list[str]] = {k: [text] for k, text in task.failures.items()}
        if task.fits is not None:
            for place, judged, why in zip(
                task.places.tolist(), task.fits.quality, task.fits.reason, strict=True
            ):
                cautions = task.cautions.get(place, [])
                quality[start + place] = "check" if judged == "ok" and cautions else str(judged)
                reasons[place] = [str(why)] if why else []
                reasons[place] += cautions
        for place, found in reasons.items():
            reason[start + place] = printable(" ".join("; ".join(found).split()))
    return quality, reason


def _traces(work: WellTasks, tasks: Sequence[WellResults]) -> dict[str, np.ndarray]:
    """Return the thinned traces of all wells, a row each; NaN for those without."""
    n = len(work.recordings)
    time_ms = next((p.time_ms for p in tasks if len(p.time_ms)), np.empty(0))
    found: dict[str, np.ndarray] = {"time_ms": time_ms}
    found |= {name: np.full((n, len(time_ms)), np.nan, "f4") for name in _TRACES}
    for start, task in zip(_starts(work), tasks, strict=True):
        if len(task.time_ms) == len(time_ms) and len(task.places):
            own = (task.data, task.predicted, task.apart)
            for name, rows in zip(_TRACES, own, strict=True):
                found[name][start + task.places] = rows
    return found


# --- wells that were fitted again ----------------------------------------------------------------


def replaced(earlier: Results, new: Results, names: tuple[str, str]) -> Results:
    """Return earlier results with the rows of wells that were fitted again in their place.

    Columns that depend on all wells together are no longer true and are left out.

    Arguments:
        names: of the earlier run and of the new one; the column `run` says which fitted a well.
    """
    table, before = new.table, earlier.table
    place = {str(well): k for k, well in enumerate(before["well"])}
    rows = np.array([place[str(well)] for well in table["well"]])
    n = len(before)
    own_about = {k: a for k, a in before.about.items() if not a.meaning.startswith(OF_ALL)}
    about = own_about | {k: a for k, a in table.about.items() if k not in own_about}
    columns: dict[str, np.ndarray] = {}
    for name, known in about.items():
        empty = texts([""] * n) if known.text else np.full(n, np.nan)
        values = before.columns.get(name, empty).copy()
        own = table.columns.get(name)
        if own is None:
            values[rows] = "" if known.text else np.nan
        elif (own.dtype == object) == (values.dtype == object):
            values[rows] = own
        columns[name] = values  # else metadata of few wells, which look like numbers there
    run = before.columns.get("run", texts([names[0]] * n)).copy()
    run[rows] = names[1]
    columns["run"] = run
    about["run"] = Column("", "The folder of the run in which the well was fitted.", True)
    return Results(
        WellTable(columns, about),
        _replaced_traces(earlier, new, rows),
        _replaced_fits(earlier, new, rows),
        new.ranges,
    )


def _replaced_traces(earlier: Results, new: Results, rows: np.ndarray) -> dict[str, np.ndarray]:
    time_ms = new.traces["time_ms"]
    before = earlier.traces
    same = bool(before) and np.array_equal(before["time_ms"], time_ms)
    found = {"time_ms": time_ms}
    for name in _TRACES:
        empty = np.full((len(earlier.table), len(time_ms)), np.nan, "f4")
        found[name] = before[name].copy() if same else empty
        found[name][rows] = new.traces[name]
    return found


def _replaced_fits(earlier: Results, new: Results, rows: np.ndarray) -> WellFits | None:
    """Return None where the two runs have different parameters, or different ranges of them."""
    before, own = earlier.fits, new.fits
    if before is None or own is None or before.names != own.names:
        return None
    if not np.array_equal(earlier.ranges, new.ranges):
        return None
    return before.put(rows, own)


# --- all wells together --------------------------------------------------------------------------


def with_columns(table: WellTable, columns: Mapping[str, np.ndarray]) -> WellTable:
    """Return the table with columns that depend on all wells together."""
    found, about = dict(table.columns), dict(table.about)
    for name, values in columns.items():
        of = name.removesuffix("_lower").removesuffix("_upper").removesuffix("_shrunken")
        unit = about[of].unit if of in about else ""
        meaning = "the group of the well." if values.dtype == object else f"{of} given the others."
        found[name] = values
        about[name] = Column(unit, OF_ALL + meaning, values.dtype == object)
    return WellTable(found, about)


def summary_of(
    work: WellTasks, table: WellTable, seconds: float, command: Sequence[str], fitted: int
) -> dict[str, Any]:
    """Return a summary of all wells together, with what is needed to repeat the batch.

    Arguments:
        fitted: how many wells were fitted now.
    """
    plan = work.plan
    good = table.select(np.array([q == "ok" for q in table["quality"]], dtype=bool))
    reasons = Counter(kind for text in table["reason"] for kind in kinds_of_reasons(str(text)))
    backend = work.scorer.backend
    return {
        **titles(plan),
        "model": plan.problem.model.name,
        "wells": len(table),
        "quality": dict(Counter(map(str, table["quality"]))),
        "reasons": dict(reasons.most_common()),
        "fitted_now": fitted,
        "parameters": {
            p.name: _spread(good.columns[p.name], p)
            for p in plan.problem.parameters
            if p.name in good.columns
        },
        "medians": {
            name: _median(good.columns[name])
            for name in ("rms", "noise", *MEASURES)
            if name in good.columns
        },
        "settings": asdict(work.settings),
        "wells_in_a_piece": work.size,
        "seed": work.settings.seed,
        "seconds": seconds,
        "backend": backend,
        "source_hash": work.scorer.source_hash,
        "files": [row for row in file_hashes(plan) if row["what"] != "recording"],
        "hashes": {k: v for k, v in work.identity.items() if k.startswith("well ")},
        "versions": versions(backend == "cuda"),
        "machine": machine(),
        "command": list(command),
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _spread(values: np.ndarray, parameter: Parameter) -> dict[str, Any]:
    """Return the median of a parameter and the middle 90 % of the good wells."""
    known = values[np.isfinite(values)]
    low, middle, high = np.quantile(known, (0.05, 0.5, 0.95)) if known.size else [math.nan] * 3
    return {
        "median": float(middle),
        "low": float(low),
        "high": float(high),
        "unit": parameter.unit,
        "lower": parameter.lower,
        "upper": parameter.upper,
    }


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else math.nan


def facts_of(work: WellTasks, summary: Mapping[str, Any], table: WellTable) -> dict[str, Any]:
    """Return the facts on the page of a batch, besides its table."""
    plan = work.plan
    document, protocol = work.template.document, plan.problem.experiments[0].protocol
    not_done = [summary["not_done"]] if "not_done" in summary else []
    seed_and_time = {key: summary[key] for key in ("seed", "seconds", "finished", "backend")}
    return {
        "title": plan.name,
        "description": plan.description,
        "model": plan.problem.model.name,
        "model_source": str(document.get("source") or ""),
        "protocol": protocol.name,
        "protocol_source": protocol.source,
        "search": "least squares from the best points of a scan, wells exchanging solutions",
        "dtype": "float64",
        "command": " ".join(summary["command"]),
        "file": str(plan.file),
        "parameters": [n for n in table.columns if f"{n}_error" in table.columns],
        "files": summary["files"],
        "versions": summary["versions"],
        "machine": {str(k): str(v) for k, v in summary["machine"].items()},
        "warnings": [*map(str, work.warnings), *not_done],
        **seed_and_time,
        **{key: summary[key] for key in ("population", "groups") if key in summary},
    }


def write_page(folder: Path, results: Results, work: WellTasks, summary: Mapping[str, Any]) -> None:
    """Write the page of the plate. Raises InputError where it cannot be written."""
    from channelfit.batch.page import plate_page  # loads Bokeh and matplotlib

    facts = facts_of(work, summary, results.table)
    write_text(folder / PAGE, plate_page(results.table, results.traces, facts))


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary; it is written last, since it marks a run as complete."""
    write_text(folder / SUMMARY, json_text(summary))
