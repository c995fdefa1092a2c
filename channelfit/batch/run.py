"""A batch from its fit file and its recordings to its folder, and on after it was cut off.

The folder of a batch holds, besides ``state.json`` from the first second,

``wells.csv``        a row for each well (`table`); ``wells-columns.json`` and ``wells.parquet``
``traces.npz``       thinned recordings and fits, for pictures
``summary.json``     how many wells are good, why others are not, medians, what repeats the batch
``fit.yaml``         the template as it was used
``recordings.json``  which recordings there were, with their hashes
``pieces.bin``       while it is not done: what is done so far (`pieces.kept`), with ``resume.json``
"""

from __future__ import annotations

import io
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.fits import WellFits, joined
from channelfit.batch.recordings import (
    Recorded,
    chosen_by_name,
    find_recordings,
    metadata,
    read_list,
)
from channelfit.batch.search import Progress, Settings
from channelfit.batch.table import Column, WellTable, texts, write_bytes
from channelfit.batch.template import MEASURES, Template
from channelfit.batch.where import chosen
from channelfit.batch.work import Piece, Wells
from channelfit.pieces.kept import Arrays, Kept, Key
from channelfit.pieces.work import Doer, pieces_done, seconds_left
from channelfit.reading.cautions import Caution
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable
from channelfit.reading.units import shown
from channelfit.results import resuming
from channelfit.results.file_hashes import file_hashes
from channelfit.results.files import write_text
from channelfit.results.run_folder import Claim, json_text, titles
from channelfit.results.run_state import FAILED, FINISHED, INTERRUPTED
from channelfit.scoring.machine.computer import machine, versions

TEMPLATE, LIST, TRACES, SUMMARY = "fit.yaml", "recordings.json", "traces.npz", "summary.json"
PIECES = "pieces.bin"
#: Wells that are read, fitted and kept together; on a GPU a plate.
SIZES = {"cuda": 384}
SIZE = 16
#: Recordings that are tried before a fault of the fit file is taken for one.
_TRIED = 3
#: Reasons that are told one by one.
_TOLD = 5
#: Seconds between two writings of the state.
_TELL_EVERY = 1.0


@dataclass(frozen=True)
class Asked:
    """What a user wants of a batch.

    Attributes:
        file: the fit file; None for that of the run whose wells are fitted again.
        recordings: files, patterns, folders, or a table of them.
        overrides: entries of the fit file that are changed, ``dotted.key=value``.
        where: a condition that chooses wells; empty for all.
        only: names of wells; empty for all.
        rerun: the folder of an earlier run of which wells are fitted again.
        listed: the folder of the run that is to go on, whose list of recordings is taken as it is.
        settings: of the search.
        size: wells in a piece; None for what suits the backend.
    """

    file: Path | None = None
    recordings: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    where: str = ""
    only: tuple[str, ...] = ()
    rerun: Path | None = None
    listed: Path | None = None
    settings: Settings = field(default_factory=Settings)
    size: int | None = None


class Listener:
    """Whoever is told how a batch goes on; this one keeps it to itself."""

    def begin(self, stage: str) -> None:
        """What is being done now."""

    def warn(self, cautions: Iterable[Caution]) -> None:
        """What looks wrong."""

    def failed(self, well: str, reason: str) -> None:
        """A well could not be fitted."""

    def progress(self, done: int, total: int, failed: int, left: float) -> None:
        """How many wells are done, and the seconds that are left, NaN where that is not known."""

    def searching(self, progress: Progress) -> None:
        """How far the search of a piece is, where it is done in this process."""

    def finishing(self) -> None:
        """From now on the run must not be disturbed: its results are about to be written."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch that can begin.

    Attributes:
        work: the wells that are fitted.
        recordings: all wells of the table, those that are not fitted now among them.
        earlier: the table of the run whose wells are fitted again; None for a new batch.
        asked: what the user wants.
    """

    work: Wells
    recordings: tuple[Recorded, ...]
    earlier: WellTable | None
    asked: Asked

    @property
    def name(self) -> str:
        """What the fit is called."""
        return self.work.plan.name


def ready(asked: Asked, listener: Listener | None = None) -> Ready:
    """Reads the template and finds the recordings; one that can be read serves as example.

    Raises:
        InputError: the fit file cannot be used, no recording can be, or no well is chosen.
    """
    listener = listener or Listener()
    earlier: WellTable | None = None
    if asked.rerun is not None:
        template = Template.read(asked.file or asked.rerun / TEMPLATE, asked.overrides)
        earlier = WellTable.read(asked.rerun)
        recordings = read_list(asked.rerun / LIST)
        names = [str(well) for well in earlier["well"]]
        if names != [each.well for each in recordings]:
            raise InputError(f"{LIST} and the table are not of the same wells", asked.rerun)
        wells = _chosen(asked, recordings, earlier)
    else:
        if asked.file is None:
            raise InputError("a fit file is needed, or --rerun with an earlier run")
        template = Template.read(asked.file, asked.overrides)
        if asked.listed is not None:
            wells = recordings = read_list(asked.listed / LIST)
        else:
            recordings = find_recordings(asked.recordings, template.expected)
            wells = recordings = _chosen(asked, recordings, metadata(recordings))
    listener.begin("reading the first recording")
    first = _first_readable(template, wells)
    size = asked.size or SIZES.get(asked.settings.backend, SIZE)
    work = Wells(template, tuple(wells), first, asked.settings, size, listener.searching)
    _check_names(work, recordings)
    return Ready(work, tuple(recordings), earlier, asked)


def _chosen(asked: Asked, recordings: Sequence[Recorded], table: WellTable) -> list[Recorded]:
    """The wells that `where` and `only` choose. Raises InputError where there is none."""
    found = list(recordings)
    if asked.where:
        try:
            mask = chosen(asked.where, table)
        except InputError as error:
            if asked.rerun is None and "there is no column" in error.message:
                told = (
                    f"{error.message}. Before a fit only these are known; results choose with "
                    "--rerun RUN, and in --show RUN"
                )
                raise InputError(told, error.file, error.key) from None
            raise
        found = [each for each, keep in zip(recordings, mask, strict=True) if keep]
    if asked.only:
        among = {each.well for each in found}
        named = chosen_by_name(recordings, asked.only)
        found = [each for each in named if each.well in among]
    if not found:
        raise InputError(f"no well of {len(recordings)} is chosen", None, "--where")
    return found


def _first_readable(template: Template, wells: Sequence[Recorded]) -> int:
    """The place of the first well whose plan can be made.

    Raises: InputError where there is none: what is wrong with the fit file, or with all.
    """
    faults: list[InputError] = []
    for k, recorded in enumerate(wells):
        try:
            template.plan(recorded)
        except InputError as error:
            faults.append(error)
            same = {(e.message, e.file, e.key) for e in faults}
            ours = error.file in (str(template.file), str(template.model_file))
            if len(faults) == min(_TRIED, len(wells)) and len(same) == 1 and ours:
                raise error from None
            continue
        return k
    kinds = Counter(f"{error.key or ''} {error.message}".strip() for error in faults)
    if len(kinds) == 1:
        others = f" (the same of all {len(wells)} recordings)" if len(wells) > 1 else ""
        first = faults[0]
        raise InputError(f"{first.message}{others}", first.file, first.key)
    told = "; ".join(str(error) for error in faults[:_TOLD])
    more = f"; and {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
    raise InputError(f"none of {len(wells)} recordings can be used: {told}{more}")


def _check_names(work: Wells, recordings: Sequence[Recorded]) -> None:
    """Raises InputError where a column of the user's has the name of one of the results."""
    names = [p.name for p in work.plan.problem.parameters]
    taken = {f"{name}{end}" for name in names for end in ("", "_error", "_lower", "_upper")}
    for each in recordings:
        for name in each.told:
            if name in taken:
                raise InputError(
                    f"the table of recordings has a column {shown(name)}, which is a parameter of "
                    "the model; rename it",
                    each.folder or None,
                )


# --- the run -------------------------------------------------------------------------------------


def run(
    made: Ready,
    claim: Claim,
    listener: Listener,
    doer: Doer | None = None,
    arguments: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
    undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> WellTable:
    """Fits all wells and writes the folder; a run that was cut off goes on.

    Arguments:
        claim: of the folder; one that is resumed goes on to the table that it would have had.
        arguments: of the command, by which it can be resumed; None for a call from Python.
        command: the words of the command line, for the summary.
        undisturbed: a context in which no signal interrupts what must not be done by half.

    Raises:
        InputError: the run that is to go on was another one, or results cannot be written.
    """
    began = time.perf_counter()
    _describe(claim, made)
    found = {**made.work.identity, "rerun of": _digest(made.earlier)}
    resume = claim.path / resuming.RESUME
    if resume.exists():
        resuming.check_same(resume, found)
    else:
        write_text(resume, resuming.text_of(found, arguments, "batch"))
        write_text(claim.path / LIST, json_text(_listed(made)))
        write_text(claim.path / TEMPLATE, made.work.template.text_for(claim.path))
    kept = Kept(claim.path / PIECES)
    try:
        pieces = list(_pieces(made.work, doer, kept, claim, listener))
        listener.begin("writing the results")
        listener.finishing()
        table, traces = _results(made, pieces, claim.path)
        summary = _summary(made, table, time.perf_counter() - began, command)
        _write(claim.path, table, traces, summary, listener)
    except BaseException as error:
        with undisturbed():
            interrupted = isinstance(error, KeyboardInterrupt)
            told = "interrupted before it was done" if interrupted else str(error)
            claim.state.end(INTERRUPTED if interrupted else FAILED, told or type(error).__name__)
            claim.tell()
            kept.close(True)
        raise
    claim.state.end(FINISHED, "all wells are done", wells_done=len(made.work.recordings))
    fault = claim.tell()
    kept.close(False)
    resume.unlink(missing_ok=True)
    if fault is not None:
        listener.warn([Caution(str(fault.file), fault.message, "all results are written")])
    return table


def _describe(claim: Claim, made: Ready) -> None:
    """Says in the state what is fitted."""
    plan = made.work.plan
    claim.state.content |= {
        "stage": "fitting wells",
        "name": plan.name,
        "model": plan.problem.model.name,
        "file": str(plan.file),
        "seed": made.work.settings.seed,
        "cost_unit": "pA^2",
        "wells": len(made.work.recordings),
        "wells_done": 0,
        "warnings": [str(c) for c in plan.problem.model.cautions],
    }
    claim.tell()


def _pieces(
    work: Wells, doer: Doer | None, kept: Kept, claim: Claim, listener: Listener
) -> Iterable[Piece]:
    """The pieces in their order, each told of when it is done."""
    total, before = len(work.recordings), kept.keys
    began, told_at = time.perf_counter(), -math.inf
    done = failed = earlier = 0
    complained: set[str] = set()

    def on_done(key: Key, arrays: Arrays) -> None:
        nonlocal done, failed, earlier, told_at
        piece = Piece.of(arrays)
        n = int(key[2]) - int(key[1])
        done += n
        earlier += n if key in before else 0
        wells = work.recordings[int(key[1]) : int(key[2])]
        for k, reason in _failures(piece).items():
            failed += 1
            listener.failed(wells[k].well, reason)
        left = seconds_left(done, total, began, earlier)
        listener.progress(done, total, failed, left)
        news = {"wells_done": done, "wells_failed": failed, "seconds_left": left}
        claim.state.content |= news | {"seconds": time.perf_counter() - began}
        if time.monotonic() - told_at > _TELL_EVERY:
            claim.tell()
            told_at = time.monotonic()
        if kept.fault is not None and kept.fault.message not in complained:
            complained.add(kept.fault.message)
            then = "the batch goes on, but after a kill it would go on from here only"
            listener.warn([Caution(str(kept.fault.file), kept.fault.message, then)])

    listener.progress(0, total, 0, math.nan)
    for _, arrays in pieces_done(work, work.keys, doer, kept, on_done):
        yield Piece.of(arrays)


def _failures(piece: Piece) -> dict[int, str]:
    """By place the reasons of wells that could not be read or fitted."""
    found = dict(piece.failures)
    if piece.fits is not None:
        for place, quality, why in zip(
            piece.places.tolist(), piece.fits.quality, piece.fits.reason, strict=True
        ):
            if quality == "failed":
                found[place] = str(why)
    return dict(sorted(found.items()))


def _digest(table: WellTable | None) -> str:
    return "" if table is None else resuming.hash_of(table.csv_text())


# --- results -------------------------------------------------------------------------------------


def _results(
    made: Ready, pieces: Sequence[Piece], folder: Path
) -> tuple[WellTable, dict[str, np.ndarray]]:
    """The table of all wells, and the traces in its order."""
    table, traces = fitted_table(made.work, pieces), fitted_traces(made.work, pieces)
    if made.earlier is None:
        return table, traces
    assert made.asked.rerun is not None
    return _replaced(made, table, folder), _replaced_traces(made, table, traces)


def fitted_table(work: Wells, pieces: Sequence[Piece]) -> WellTable:
    """The table of wells: a row each, in their order."""
    n = len(work.recordings)
    known = metadata(work.recordings)
    columns, about = dict(known.columns), dict(known.about)
    parts = [piece.fits for piece in pieces if piece.fits is not None]
    if parts:
        starts = zip(_starts(work), pieces, strict=True)
        rows = np.concatenate([start + piece.places for start, piece in starts])
        for name, (values, column) in _columns_of(joined(parts)).items():
            columns[name], about[name] = np.full(n, np.nan), column
            columns[name][rows] = values
    measured = np.concatenate([piece.measured for piece in pieces])
    for k, (name, (unit, meaning)) in enumerate(MEASURES.items()):
        columns[name], about[name] = measured[:, k], Column(unit, meaning)
    quality, reason = _judged(work, pieces)
    columns["quality"], columns["reason"] = texts(quality), texts(reason)
    about["quality"] = Column("", "ok, check or failed.", True)
    about["reason"] = Column("", "Why the quality is not ok.", True)
    return WellTable(columns, about)


def _columns_of(fits: WellFits) -> dict[str, tuple[np.ndarray, Column]]:
    """The columns of numbers of fits, and what each of them holds."""
    found: dict[str, tuple[np.ndarray, Column]] = {}
    for k, (name, unit) in enumerate(zip(fits.names, fits.units, strict=True)):
        found[name] = fits.values[:, k], Column(unit, "The best value.")
        found[f"{name}_error"] = fits.errors[:, k], Column(unit, "Its standard error.")
        found[f"{name}_lower"] = fits.lower[:, k], Column(unit, "Where its 95 % interval begins.")
        found[f"{name}_upper"] = fits.upper[:, k], Column(unit, "Where its 95 % interval ends.")
    found["cost"] = fits.cost, Column("pA^2", "The weighted mean square of data less fit.")
    found["rms"] = fits.rms, Column("pA", "The root of the cost.")
    found["noise"] = fits.noise, Column("pA", "The standard deviation of a sample's noise.")
    found["starts"] = fits.starts, Column("", "How many starts were refined to their end.")
    found["agreed"] = fits.agreed, Column("", "How many of them came to the lowest cost.")
    return found


def _starts(work: Wells) -> list[int]:
    return [int(key[1]) for key in work.keys]


def _judged(work: Wells, pieces: Sequence[Piece]) -> tuple[list[str], list[str]]:
    """The quality of every well and its reasons: those of its fit and those of its recording."""
    quality, reason = ["failed"] * len(work.recordings), [""] * len(work.recordings)
    for start, piece in zip(_starts(work), pieces, strict=True):
        reasons: dict[int, list[str]] = {k: [text] for k, text in piece.failures.items()}
        if piece.fits is not None:
            for place, judged, why in zip(
                piece.places.tolist(), piece.fits.quality, piece.fits.reason, strict=True
            ):
                told = piece.cautions.get(place, [])
                quality[start + place] = "check" if judged == "ok" and told else str(judged)
                reasons[place] = [str(why)] if why else []
                reasons[place] += told
        for place, found in reasons.items():
            reason[start + place] = printable(" ".join("; ".join(found).split()))
    return quality, reason


def fitted_traces(work: Wells, pieces: Sequence[Piece]) -> dict[str, np.ndarray]:
    """The thinned traces of all wells, a row each; NaN for those without."""
    n = len(work.recordings)
    time_ms = next((p.time_ms for p in pieces if len(p.time_ms)), np.empty(0))
    found = {
        "time_ms": time_ms,
        "data": np.full((n, len(time_ms)), np.nan, "f4"),
        "fit": np.full((n, len(time_ms)), np.nan, "f4"),
    }
    for start, piece in zip(_starts(work), pieces, strict=True):
        if len(piece.time_ms) == len(time_ms) and len(piece.places):
            found["data"][start + piece.places] = piece.data
            found["fit"][start + piece.places] = piece.shown
    return found


def _replaced(made: Ready, table: WellTable, folder: Path) -> WellTable:
    """The earlier table with the rows of wells that were fitted again in their place."""
    earlier, rerun = made.earlier, made.asked.rerun
    assert earlier is not None
    assert rerun is not None
    place = {str(well): k for k, well in enumerate(earlier["well"])}
    rows = np.array([place[str(well)] for well in table["well"]])
    about = earlier.about | {n: a for n, a in table.about.items() if n not in earlier.about}
    columns = {}
    for name, known in about.items():
        empty = texts([""] * len(earlier)) if known.text else np.full(len(earlier), np.nan)
        values = earlier.columns.get(name, empty).copy()
        own = table.columns.get(name)
        if own is None:
            values[rows] = "" if known.text else np.nan
        elif (own.dtype == object) == (values.dtype == object):
            values[rows] = own
        else:  # of metadata of few rows, which may look like numbers there
            values[rows] = [earlier[name][k] for k in rows]
        columns[name] = values
    before = earlier.columns.get("run", texts([rerun.resolve().name] * len(earlier))).copy()
    before[rows] = folder.resolve().name
    columns["run"] = before
    about["run"] = Column("", "The folder of the run in which the well was fitted.", True)
    return WellTable(columns, about)


def _replaced_traces(
    made: Ready, table: WellTable, traces: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The earlier traces with those of wells that were fitted again in their place."""
    assert made.earlier is not None
    assert made.asked.rerun is not None
    place = {str(well): k for k, well in enumerate(made.earlier["well"])}
    rows = np.array([place[str(well)] for well in table["well"]])
    n = len(made.earlier)
    before = read_traces(made.asked.rerun)
    same = before is not None and np.array_equal(before["time_ms"], traces["time_ms"])
    same = same and before is not None and before["data"].shape == (n, len(traces["time_ms"]))
    found = {"time_ms": traces["time_ms"]}
    for name in ("data", "fit"):
        empty = np.full((n, len(traces["time_ms"])), np.nan, "f4")
        found[name] = before[name].copy() if same and before is not None else empty
        found[name][rows] = traces[name]
    return found


def read_traces(folder: Path) -> dict[str, np.ndarray] | None:
    """The thinned traces of a run; None where there are none that can be read."""
    try:
        with np.load(folder / TRACES, allow_pickle=False) as found:
            return {name: found[name] for name in ("time_ms", "data", "fit")}
    except (OSError, ValueError, KeyError, EOFError):
        return None


# --- files ---------------------------------------------------------------------------------------


def _listed(made: Ready) -> dict[str, Any]:
    """The recordings of all wells as JSON holds them."""
    return {"recordings": [each.plain() for each in made.recordings]}


def _summary(
    made: Ready, table: WellTable, seconds: float, command: Sequence[str]
) -> dict[str, Any]:
    """What is told of all wells together, and what repeats the batch."""
    work, plan = made.work, made.work.plan
    good = table.select(np.array([q == "ok" for q in table["quality"]], dtype=bool))
    reasons = Counter(
        reason for text in table["reason"] for reason in str(text).split("; ") if reason
    )
    backend = work.scorer.backend
    return {
        **titles(plan),
        "model": plan.problem.model.name,
        "wells": len(table),
        "quality": dict(Counter(map(str, table["quality"]))),
        "reasons": dict(reasons.most_common()),
        "fitted_now": len(work.recordings),
        "rerun_of": "" if made.asked.rerun is None else str(made.asked.rerun),
        "parameters": {
            p.name: _spread(good.columns[p.name], p.unit)
            for p in plan.problem.parameters
            if p.name in good.columns
        },
        "medians": {
            name: _median(good.columns[name])
            for name in ("rms", "noise", *MEASURES)
            if name in good.columns
        },
        "settings": asdict(work.settings),
        "seed": work.settings.seed,
        "seconds": seconds,
        "backend": backend,
        "source_hash": work.scorer.source_hash,
        "files": [row for row in file_hashes(plan) if row["what"] != "recording"],
        "recordings": LIST,
        "hashes": {k: v for k, v in work.identity.items() if k.startswith("well ")},
        "versions": versions(backend == "cuda"),
        "machine": machine(),
        "command": list(command),
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _spread(values: np.ndarray, unit: str) -> dict[str, Any]:
    """The median of a parameter and the middle 90 % of wells."""
    known = values[np.isfinite(values)]
    low, middle, high = np.quantile(known, (0.05, 0.5, 0.95)) if known.size else [math.nan] * 3
    return {"median": float(middle), "low": float(low), "high": float(high), "unit": unit}


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else math.nan


def _write(
    folder: Path,
    table: WellTable,
    traces: Mapping[str, np.ndarray],
    summary: Mapping[str, Any],
    listener: Listener,
) -> None:
    """All results; the summary last, since it says that a run is whole."""
    for missing in table.write(folder):
        listener.warn([Caution(str(folder), missing, "the table is in wells.csv")])
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **traces)
    write_bytes(folder / TRACES, packed.getvalue())
    write_text(folder / SUMMARY, json_text(summary))
