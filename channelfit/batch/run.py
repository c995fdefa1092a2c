"""A batch: its fit file and its recordings are read, its wells fitted, its folder written.

The folder of a batch holds, besides ``state.json`` from the first second,

``wells.csv``        a row for each well (`table`); ``wells-columns.json`` and ``wells.parquet``
``plate.html``       the plate as a map, every well, distributions (`page`)
``traces.npz``       thinned recordings and fits, for pictures
``fits.npz``         fits with their information matrices, which populations need (`fits`)
``summary.json``     how many wells are good, why others are not, medians, what repeats the batch
``fit.yaml``         the template as it was used
``recordings.json``  which recordings there were, with their hashes
``pieces.bin``       until it has finished: the results so far, with ``resume.json``
"""

from __future__ import annotations

import difflib
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.groups import groups
from channelfit.batch.population import kinetic_names, population, usable
from channelfit.batch.recordings import (
    OWN,
    WellRecording,
    chosen_by_name,
    find_recordings,
    metadata,
    read_list,
)
from channelfit.batch.relinearized import linearizer
from channelfit.batch.results import (
    Results,
    check_required,
    gathered,
    replaced,
    summary_of,
    with_columns,
    write_page,
    write_summary,
)
from channelfit.batch.search import SearchProgress, SearchSettings
from channelfit.batch.table import WellTable
from channelfit.batch.template import Template
from channelfit.batch.well_tasks import Problems, WellResults, WellTasks
from channelfit.batch.where import chosen
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.files import write_text
from channelfit.results.identity import hash_of
from channelfit.results.quality import too_few
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import FAILED, FINISHED, json_text
from channelfit.tasks.executor import Executor, seconds_left, task_results
from channelfit.tasks.result_store import Arrays, Key

TEMPLATE, LIST = "fit.yaml", "recordings.json"
#: The word for all parameters on which the rates depend.
KINETICS = "kinetics"
#: Recordings that are tried before a fault of the fit file is taken for one.
_TRIED = 3
#: The most faults that a message lists.
_LISTED = 5


@dataclass(frozen=True)
class BatchRequest:
    """The request of a user for a batch.

    Attributes:
        file: the fit file; None for that of the run whose wells are fitted again.
        recordings: files, patterns, folders, or a table of them.
        overrides: entries of the fit file that are changed, ``dotted.key=value``.
        where: a condition that chooses wells; empty for all.
        only: names of wells; empty for all.
        rerun: the folder of an earlier run of which wells are fitted again.
        together: the folder of an earlier run whose wells are analyzed together; none is fitted.
        listed: the folder of an interrupted run, whose list of recordings is taken as it is.
        population: names of parameters that are drawn from a population, or `kinetics`.
        shared: names of parameters that all wells have in common.
        groups: into how many groups wells are sorted, or "auto"; empty for none.
        settings: of the search.
        seed: of the search, in place of that in the settings; None for the template's.
        size: wells in a task; None for the usual number of the backend.
        min_ok: how many wells must be ok for the run to count as finished; None if one suffices
            that has not failed.
    """

    file: Path | None = None
    recordings: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    where: str = ""
    only: tuple[str, ...] = ()
    rerun: Path | None = None
    together: Path | None = None
    listed: Path | None = None
    population: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    groups: str = ""
    settings: SearchSettings = field(default_factory=SearchSettings)
    seed: int | None = None
    size: int | None = None
    min_ok: int | None = None


@dataclass(frozen=True)
class BatchProgress:
    """The progress of a batch.

    Attributes:
        done, total: how many wells.
        failed: how many of those that are done.
        kept: how many of them an earlier run had done.
        seconds, seconds_left: since this run began, and to its end; NaN where that is not known.
    """

    done: int
    total: int
    failed: int
    kept: int
    seconds: float
    seconds_left: float


class BatchListener:
    """Receives how a batch goes on; this one ignores it."""

    def begin(self, stage: str) -> None:
        """Receive the stage of the work that begins."""

    def warn(self, cautions: Iterable[Caution]) -> None:
        """Receive cautions."""

    def failed(self, well: str, reason: str) -> None:
        """Receive that a well could not be fitted, and why."""

    def done(self, well: str, kept: bool, result: Mapping[str, float]) -> None:
        """Receive the parameters of a well that was fitted, by an earlier run or by this one."""

    def progress(self, batch: BatchProgress) -> None:
        """Receive how far the batch is."""

    def together(self, number: int, moved: float) -> None:
        """Receive how often the wells were linearized for a population, and how far they moved."""

    def searching(self, progress: SearchProgress) -> None:
        """Receive how far the search of a task is that runs in this process."""

    def finishing(self) -> None:
        """Receive that results are about to be written, and the run must not be interrupted."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch that can begin.

    Attributes:
        work: the wells that are fitted.
        recordings: all wells of the table, those that are not fitted now among them.
        earlier: the results of the run whose wells are fitted again, or analyzed together; None
            for a new batch.
        request: of the user.
    """

    work: WellTasks
    recordings: tuple[WellRecording, ...]
    earlier: Results | None
    request: BatchRequest

    @property
    def name(self) -> str:
        """The name of the fit."""
        return self.work.plan.name


def ready(request: BatchRequest, listener: BatchListener | None = None) -> Ready:
    """Read the template and find the recordings; the first that can be read serves as an example.

    Raises InputError: the fit file cannot be used, no recording can be, or no well is chosen.
    """
    listener = listener or BatchListener()
    earlier: Results | None = None
    before = request.rerun or request.together
    if before is not None:
        template = Template.read(request.file or before / TEMPLATE, request.overrides)
        earlier = Results.read(before)
        recordings = read_list(before / LIST)
        names = [str(well) for well in earlier.table["well"]]
        if names != [each.well for each in recordings]:
            raise InputError(f"{LIST} and the table are not of the same wells", before)
        wells = _chosen(request, recordings, earlier.table)
        if request.together is not None:
            chosen_wells = {each.well for each in wells}
            earlier = earlier.select(np.array([name in chosen_wells for name in names], bool))
            recordings = wells
    else:
        if request.file is None:
            raise InputError("a fit file is needed, or --rerun with an earlier run")
        template = Template.read(request.file, request.overrides)
        if request.listed is not None:
            wells = recordings = read_list(request.listed / LIST)
        else:
            recordings = find_recordings(request.recordings, template.expected)
            wells = recordings = _chosen(request, recordings, metadata(recordings))
    listener.begin("reading the first recording")
    first = _first_readable(template, wells)
    settings = replace(
        request.settings, seed=template.seed if request.seed is None else request.seed
    )
    if "rms/noise" in template.replaced:
        settings = replace(settings, misfit=0.0)
    work = WellTasks(template, tuple(wells), first, settings, request.size, listener.searching)
    _check_names(work, recordings, request)
    check_required(work)
    _check_together(work, request)
    listener.warn([*work.warnings, *_misspelled(recordings)])
    if any(group.clamp is not None for group in work.plan.problem.groups):
        then = "wells are then fitted one after the other, which takes much longer"
        listener.warn([Caution(str(template.file), "has a clamp", then)])
    return Ready(work, tuple(recordings), earlier, request)


def _chosen(
    request: BatchRequest, recordings: Sequence[WellRecording], table: WellTable
) -> list[WellRecording]:
    """Return the wells that `where` and `only` choose. Raises InputError where there is none."""
    found = list(recordings)
    if request.where:
        try:
            mask = chosen(request.where, table)
        except InputError as error:
            if (
                request.rerun or request.together
            ) is None and "there is no column" in error.message:
                message = (
                    f"{error.message}. Before a fit only these are known; results choose with "
                    "--rerun RUN, and in --show RUN"
                )
                raise InputError(message, error.file, error.key) from None
            raise
        found = [each for each, keep in zip(recordings, mask, strict=True) if keep]
    if request.only:
        among = {each.well for each in found}
        named = chosen_by_name(recordings, request.only)
        found = [each for each in named if each.well in among]
    if not found:
        raise InputError(f"no well of {len(recordings)} is chosen", None, "--where")
    return found


def _first_readable(template: Template, wells: Sequence[WellRecording]) -> int:
    """Return the place of the first well whose plan can be made.

    Raises InputError: there is none; the message says what is wrong with the fit file, or with all.
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
    listed = "; ".join(str(error) for error in faults[:_LISTED])
    more = f"; and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
    raise InputError(f"none of {len(wells)} recordings can be used: {listed}{more}")


def _check_names(
    work: WellTasks, recordings: Sequence[WellRecording], request: BatchRequest
) -> None:
    """Raise InputError where a column of the user's table has the name of a column of results."""
    ends = ["", "_error", "_lower", "_upper"]
    if request.population:
        ends += [f"_shrunken{end}" for end in ("", "_lower", "_upper")]
    names = [p.name for p in work.plan.problem.parameters]
    taken = {f"{name}{end}": "a parameter of the model" for name in names for end in ends}
    if request.groups:
        taken["group"] = "what --groups finds"
    for each in recordings:
        for name in each.metadata:
            if name in taken:
                raise InputError(
                    f"the table of recordings has a column {shown(name)}, which in the results is "
                    f"{taken[name]}; rename it",
                    each.folder or None,
                )


def _misspelled(recordings: Sequence[WellRecording]) -> list[Caution]:
    """Return cautions of columns whose names are nearly those that a batch acts upon."""
    names = dict.fromkeys(name for each in recordings for name in each.metadata)
    near = {name: difflib.get_close_matches(name.lower(), OWN, 1, 0.8) for name in names}
    return [
        Caution(f"column {shown(name)}", "is taken for metadata", f"did you mean {close[0]}?")
        for name, close in near.items()
        if close
    ]


def _check_together(work: WellTasks, request: BatchRequest) -> None:
    """Raise InputError for names of a population that no free parameter has."""
    free = [p.name for p in work.plan.problem.parameters if not p.fixed]
    named = {"--population": population_names(work, request.population), "--shared": request.shared}
    for option, names in named.items():
        for name in names:
            if name not in free:
                listed = ", ".join([*free, KINETICS])
                raise InputError(f"{shown(name)} is none of {listed}", None, option)
    for name in named["--population"]:
        if name in request.shared:
            message = f"{shown(name)} is named in --population, too; a parameter is drawn or shared"
            raise InputError(message, None, "--shared")
    if request.groups and not (
        request.groups == "auto" or re.fullmatch(r"[1-9]\d*", request.groups)
    ):
        message = f"a number or auto was expected, not {shown(request.groups)}"
        raise InputError(message, None, "--groups")


# --- the run -------------------------------------------------------------------------------------


def run(
    made: Ready,
    folder: RunFolder,
    listener: BatchListener,
    executor: Executor | None = None,
    arguments: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
) -> tuple[WellTable, dict[str, Any]]:
    """Fit all wells and write the folder; an interrupted run goes on.

    Arguments:
        folder: of the run; one that is resumed goes on to the table that it would have had.
        arguments: of the command, by which it can be resumed; None for a call from Python.
        command: the words of the command line, for the summary.

    Returns: the table and the summary.

    Raises InputError: the run that is to go on was another one, or results cannot be written.
    """
    began = time.perf_counter()
    _describe(folder, made)
    _begin(folder, made, arguments)
    # also of a run that goes on, since a power failure may have left the file empty
    write_text(folder.path / TEMPLATE, made.work.template.text_for(folder.path))
    if made.request.together is None or made.earlier is None:
        results = _fitted(made, executor, folder, listener)
    else:
        results = made.earlier
    folder.report(stage="looking at all wells", seconds_left=math.nan)
    results, together = _together(made, results, listener)
    seconds = time.perf_counter() - began
    n_fitted = 0 if made.request.together else len(made.work.recordings)
    summary = summary_of(made.work, results.table, seconds, command, n_fitted) | together
    listener.finishing()
    for missing in results.write(folder.path):
        listener.warn([Caution(str(folder.path), missing, "the table is in wells.csv")])
    write_page(folder.path, results, made.work, summary)
    write_summary(folder.path, summary)
    lacking = too_few(summary["quality"], made.request.min_ok, "wells")
    state, reason = (FAILED, lacking) if lacking else (FINISHED, "all wells are done")
    fault = folder.end(state, reason, wells_done=len(made.work.recordings))
    listener.warn(folder.new_cautions(fault, "all results are written"))
    return results.table, summary


def _fitted(
    made: Ready, executor: Executor | None, folder: RunFolder, listener: BatchListener
) -> Results:
    """Return the results of all wells, some of an earlier run where others are fitted again."""
    parts = list(_well_results(made.work, executor, folder, listener))
    listener.begin("writing the results")
    results = gathered(made.work, parts)
    if made.earlier is None or made.request.rerun is None:
        return results
    places = (made.request.rerun.resolve().name, folder.path.resolve().name)
    return replaced(made.earlier, results, places)


def _begin(folder: RunFolder, made: Ready, arguments: Mapping[str, Any] | None) -> None:
    """Write the files from which a run goes on: its list of recordings, and then `resume.json`.

    Where there is no room for both there is neither, so that the folder stays free to begin in.
    """
    earlier = "" if made.earlier is None else hash_of(made.earlier.table.csv_text())
    identity = {**made.work.identity, "rerun of": earlier}
    try:
        if not folder.resumed:
            listed = {"recordings": [each.plain() for each in made.recordings]}
            write_text(folder.path / LIST, json_text(listed))
        folder.checkpoint.begin(identity, arguments, "batch")
    except InputError:
        if not folder.resumed:
            (folder.path / LIST).unlink(missing_ok=True)
        raise


def _together(
    made: Ready, results: Results, listener: BatchListener
) -> tuple[Results, dict[str, Any]]:
    """Analyze all wells together where that was requested: a population, and groups.

    Where the wells do not suffice for it the listener is warned, and their own results stand.

    Returns: the results, with the columns of population and groups, and keys of the summary.
    """
    request, found, table = made.request, dict[str, Any](), results.table
    if not (request.population or request.shared or request.groups):
        return results, found
    parameters = made.work.plan.problem.parameters
    wells = [str(well) for well in table["well"]]
    try:
        if results.fits is None:
            raise InputError(
                "no well has a fit, or those of the earlier run have other parameters or ranges"
            )
        fits = replace(results.fits, quality=table["quality"])
        if request.population or request.shared:
            listener.begin("looking at the wells as a population")
            drawn = population_names(made.work, request.population)
            plan, backend = made.work.plan, made.work.scorer.backend
            problems = Problems(made.work, made.recordings)
            again = linearizer(plan, problems, fits, usable(fits), backend)
            analysis = population(
                fits,
                drawn,
                request.shared,
                again,
                parameters=parameters,
                wells=wells,
                always=False,
                on_round=listener.together,
            )
            table = with_columns(table, analysis.columns())
            found["population"] = {**analysis.summary(), "text": analysis.text()}
        if request.groups:
            listener.begin("sorting the wells into groups")
            count = None if request.groups == "auto" else int(request.groups)
            seed = made.work.settings.seed
            problem = made.work.plan.problem
            names = [n for n in kinetic_names(problem) if n in fits.names]
            kinds = groups(fits, count, parameters=parameters, names=names, wells=wells, seed=seed)
            table = with_columns(table, kinds.columns())
            found["groups"] = {**kinds.summary(), "text": kinds.text()}
    except InputError as error:
        failed = "groups" if "population" in found or not request.population else "a population"
        then = "the wells' own results stand"
        listener.warn([Caution(failed, error.message, then)])
        found["not_done"] = f"{failed}: {error.message}"
    return replace(results, table=table), found


def population_names(work: WellTasks, requested: Sequence[str]) -> list[str]:
    """Return the names of the parameters of a population; `kinetics` stands for all rates."""
    names: list[str] = []
    for name in requested:
        names += kinetic_names(work.plan.problem) if name == KINETICS else [name]
    return list(dict.fromkeys(names))


def _describe(folder: RunFolder, made: Ready) -> None:
    """Report which fit this is, and of how many wells."""
    plan = made.work.plan
    folder.report(
        stage="fitting wells",
        name=plan.name,
        model=plan.problem.model.name,
        file=str(plan.file),
        seed=made.work.settings.seed,
        cost_unit="pA^2",
        wells=len(made.work.recordings),
        wells_done=0,
        warnings=[str(caution) for caution in made.work.warnings],
    )


def _well_results(
    work: WellTasks, executor: Executor | None, folder: RunFolder, listener: BatchListener
) -> Iterable[WellResults]:
    """Yield the results of the tasks in their order; report each when it is done."""
    kept = folder.checkpoint.open_results()
    total, before, began = len(work.recordings), kept.keys, time.perf_counter()
    done = failed = earlier = 0

    def on_done(key: Key, arrays: Arrays) -> None:
        nonlocal done, failed, earlier
        part = WellResults.of(arrays)
        n = int(key[2]) - int(key[1])
        done += n
        earlier += n if key in before else 0
        wells = work.recordings[int(key[1]) : int(key[2])]
        failures = _failures(part)
        for k, reason in failures.items():
            failed += 1
            listener.failed(wells[k].well, reason)
        if part.fits is not None:
            for place, values in zip(part.places.tolist(), part.fits.values, strict=True):
                if place not in failures:
                    found = dict(zip(part.fits.names, values.tolist(), strict=True))
                    listener.done(wells[place].well, key in before, found)
        seconds, left = time.perf_counter() - began, seconds_left(done, total, began, earlier)
        listener.progress(BatchProgress(done, total, failed, earlier, seconds, left))
        news = {"wells_done": done, "wells_failed": failed, "seconds_left": left}
        folder.state.content |= news | {"seconds": seconds}
        folder.report_now_and_then()
        then = "the batch goes on, but after a kill it would go on from here only"
        listener.warn(folder.new_cautions(kept.fault, then))

    listener.progress(BatchProgress(0, total, 0, 0, 0.0, math.nan))
    for _, arrays in task_results(work, work.keys, executor, kept, on_done):
        yield WellResults.of(arrays)


def _failures(part: WellResults) -> dict[int, str]:
    """Return by place the reasons of wells that could not be read or fitted."""
    found = dict(part.failures)
    if part.fits is not None:
        for place, quality, why in zip(
            part.places.tolist(), part.fits.quality, part.fits.reason, strict=True
        ):
            if quality == "failed":
                found[place] = str(why)
    return dict(sorted(found.items()))
