"""A batch from its fit file and its recordings to its folder, and on after it was cut off.

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
    Recorded,
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
from channelfit.batch.search import SearchProgress, Settings
from channelfit.batch.table import WellTable
from channelfit.batch.template import Template
from channelfit.batch.well_tasks import Problems, WellResults, WellTasks
from channelfit.batch.where import chosen
from channelfit.reading.cautions import Caution
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_text
from channelfit.reading.units import shown
from channelfit.results.enough import too_few
from channelfit.results.identity import hash_of
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import FAILED, FINISHED, json_text
from channelfit.tasks.executor import Executor, seconds_left, task_results
from channelfit.tasks.result_store import Arrays, Key

TEMPLATE, LIST = "fit.yaml", "recordings.json"
#: The word for all parameters on which the rates depend.
KINETICS = "kinetics"
#: Recordings that are tried before a fault of the fit file is taken for one.
_TRIED = 3
#: Reasons that are told one by one.
_TOLD = 5


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
        together: the folder of an earlier run of which wells are looked at together, and none is
            fitted.
        listed: the folder of the run that is to go on, whose list of recordings is taken as it is.
        population: names of parameters that are drawn from a population, or `kinetics`.
        shared: names of parameters that all wells have in common.
        groups: into how many groups wells are sorted, or "auto"; empty for none.
        settings: of the search.
        seed: of the search, in place of that in the settings; None for the template's.
        size: wells in a piece; None for what suits the backend.
        min_ok: how many wells have to be ok for the run to count as finished; None for any that has
            not failed.
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
    settings: Settings = field(default_factory=Settings)
    seed: int | None = None
    size: int | None = None
    min_ok: int | None = None


@dataclass(frozen=True)
class Progress:
    """How far a batch is.

    Attributes:
        done, total: wells. failed: how many of those that are done.
        kept: how many of them an earlier run had done.
        seconds, seconds_left: since this run began, and to its end; NaN where nobody knows.
    """

    done: int
    total: int
    failed: int
    kept: int
    seconds: float
    seconds_left: float


class Listener:
    """Whoever is told how a batch goes on; this one keeps it to itself."""

    def begin(self, stage: str) -> None:
        """What is being done now."""

    def warn(self, cautions: Iterable[Caution]) -> None:
        """What looks wrong."""

    def failed(self, well: str, reason: str) -> None:
        """A well could not be fitted."""

    def done(self, well: str, kept: bool, result: Mapping[str, float]) -> None:
        """A well was fitted, by an earlier run or by this one: its parameters."""

    def progress(self, told: Progress) -> None:
        """How far the batch is."""

    def together(self, number: int, moved: float) -> None:
        """The wells were linearized anew for a population: how often, and how far they move."""

    def searching(self, progress: SearchProgress) -> None:
        """How far the search of a piece is, where it is done in this process."""

    def finishing(self) -> None:
        """From now on the run must not be disturbed: its results are about to be written."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch that can begin.

    Attributes:
        work: the wells that are fitted.
        recordings: all wells of the table, those that are not fitted now among them.
        earlier: the results of the run whose wells are fitted again, or looked at together; None
            for a new batch.
        asked: what the user wants.
    """

    work: WellTasks
    recordings: tuple[Recorded, ...]
    earlier: Results | None
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
    earlier: Results | None = None
    before = asked.rerun or asked.together
    if before is not None:
        template = Template.read(asked.file or before / TEMPLATE, asked.overrides)
        earlier = Results.read(before)
        recordings = read_list(before / LIST)
        names = [str(well) for well in earlier.table["well"]]
        if names != [each.well for each in recordings]:
            raise InputError(f"{LIST} and the table are not of the same wells", before)
        wells = _chosen(asked, recordings, earlier.table)
        if asked.together is not None:
            chosen_wells = {each.well for each in wells}
            earlier = earlier.select(np.array([name in chosen_wells for name in names], bool))
            recordings = wells
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
    settings = replace(asked.settings, seed=template.seed if asked.seed is None else asked.seed)
    if "rms/noise" in template.replaced:
        settings = replace(settings, misfit=0.0)
    work = WellTasks(template, tuple(wells), first, settings, asked.size, listener.searching)
    _check_names(work, recordings, asked)
    check_required(work)
    _check_together(work, asked)
    listener.warn([*work.warnings, *_misspelled(recordings)])
    if any(group.clamp is not None for group in work.plan.problem.groups):
        what, then = "clamp", "wells are then fitted one after the other, which takes much longer"
        listener.warn([Caution(str(template.file), f"has a {what}", then)])
    return Ready(work, tuple(recordings), earlier, asked)


def _chosen(asked: Asked, recordings: Sequence[Recorded], table: WellTable) -> list[Recorded]:
    """The wells that `where` and `only` choose. Raises InputError where there is none."""
    found = list(recordings)
    if asked.where:
        try:
            mask = chosen(asked.where, table)
        except InputError as error:
            if (asked.rerun or asked.together) is None and "there is no column" in error.message:
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


def _check_names(work: WellTasks, recordings: Sequence[Recorded], asked: Asked) -> None:
    """Raises InputError where a column of the user's has the name of one of the results."""
    ends = ["", "_error", "_lower", "_upper"]
    if asked.population:
        ends += [f"_shrunken{end}" for end in ("", "_lower", "_upper")]
    names = [p.name for p in work.plan.problem.parameters]
    taken = {f"{name}{end}": "a parameter of the model" for name in names for end in ends}
    if asked.groups:
        taken["group"] = "what --groups finds"
    for each in recordings:
        for name in each.told:
            if name in taken:
                raise InputError(
                    f"the table of recordings has a column {shown(name)}, which in the results is "
                    f"{taken[name]}; rename it",
                    each.folder or None,
                )


def _misspelled(recordings: Sequence[Recorded]) -> list[Caution]:
    """Columns of metadata whose names are nearly those that a batch acts upon."""
    names = dict.fromkeys(name for each in recordings for name in each.told)
    near = {name: difflib.get_close_matches(name.lower(), OWN, 1, 0.8) for name in names}
    return [
        Caution(f"column {shown(name)}", "is taken for metadata", f"did you mean {close[0]}?")
        for name, close in near.items()
        if close
    ]


def _check_together(work: WellTasks, asked: Asked) -> None:
    """Raises InputError for names of a population that no free parameter has."""
    free = [p.name for p in work.plan.problem.parameters if not p.fixed]
    named = {"--population": population_names(work, asked.population), "--shared": asked.shared}
    for option, names in named.items():
        for name in names:
            if name not in free:
                listed = ", ".join([*free, KINETICS])
                raise InputError(f"{shown(name)} is none of {listed}", None, option)
    for name in named["--population"]:
        if name in asked.shared:
            told = f"{shown(name)} is named in --population, too; a parameter is drawn or shared"
            raise InputError(told, None, "--shared")
    if asked.groups and not (asked.groups == "auto" or re.fullmatch(r"[1-9]\d*", asked.groups)):
        told = f"a number or auto was expected, not {shown(asked.groups)}"
        raise InputError(told, None, "--groups")


# --- the run -------------------------------------------------------------------------------------


def run(
    made: Ready,
    folder: RunFolder,
    listener: Listener,
    executor: Executor | None = None,
    arguments: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
) -> tuple[WellTable, dict[str, Any]]:
    """Fits all wells and writes the folder; a run that was cut off goes on.

    Arguments:
        folder: of the run; one that is resumed goes on to the table that it would have had.
        arguments: of the command, by which it can be resumed; None for a call from Python.
        command: the words of the command line, for the summary.

    Returns: the table and the summary.

    Raises:
        InputError: the run that is to go on was another one, or results cannot be written.
    """
    began = time.perf_counter()
    _describe(folder, made)
    _begin(folder, made, arguments)
    # also of a run that goes on, since a power failure may have left the file empty
    write_text(folder.path / TEMPLATE, made.work.template.text_for(folder.path))
    if made.asked.together is None or made.earlier is None:
        results = _fitted(made, executor, folder, listener)
    else:
        results = made.earlier
    folder.report(stage="looking at all wells", seconds_left=math.nan)
    results, together = _together(made, results, listener)
    seconds = time.perf_counter() - began
    n_fitted = 0 if made.asked.together else len(made.work.recordings)
    summary = summary_of(made.work, results.table, seconds, command, n_fitted) | together
    listener.finishing()
    for missing in results.write(folder.path):
        listener.warn([Caution(str(folder.path), missing, "the table is in wells.csv")])
    write_page(folder.path, results, made.work, summary)
    write_summary(folder.path, summary)
    lacking = too_few(summary["quality"], made.asked.min_ok, "wells")
    state, reason = (FAILED, lacking) if lacking else (FINISHED, "all wells are done")
    fault = folder.end(state, reason, wells_done=len(made.work.recordings))
    listener.warn(folder.new_cautions(fault, "all results are written"))
    return results.table, summary


def _fitted(
    made: Ready, executor: Executor | None, folder: RunFolder, listener: Listener
) -> Results:
    """Return the results of all wells, some of an earlier run where others are fitted again."""
    pieces = list(_pieces(made.work, executor, folder, listener))
    listener.begin("writing the results")
    results = gathered(made.work, pieces)
    if made.earlier is None or made.asked.rerun is None:
        return results
    places = (made.asked.rerun.resolve().name, folder.path.resolve().name)
    return replaced(made.earlier, results, places)


def _begin(folder: RunFolder, made: Ready, arguments: Mapping[str, Any] | None) -> None:
    """Write the files from which a run goes on: its list of recordings, and then `resume.json`.

    Where there is no room for both there is neither, so that the folder stays free to begin in.
    """
    identity = {**made.work.identity, "rerun of": _digest(made.earlier)}
    try:
        if not folder.resumed:
            write_text(folder.path / LIST, json_text(_listed(made)))
        folder.checkpoint.begin(identity, arguments, "batch")
    except InputError:
        if not folder.resumed:
            (folder.path / LIST).unlink(missing_ok=True)
        raise


def _together(made: Ready, results: Results, listener: Listener) -> tuple[Results, dict[str, Any]]:
    """What all wells say together, where that is asked for: a population, and groups.

    Where the wells do not suffice for it that is told, and the results of the wells stand.
    """
    asked, told, table = made.asked, dict[str, Any](), results.table
    if not (asked.population or asked.shared or asked.groups):
        return results, told
    parameters = made.work.plan.problem.parameters
    wells = [str(well) for well in table["well"]]
    try:
        if results.fits is None:
            raise InputError(
                "no well has a fit, or those of the earlier run have other parameters or ranges"
            )
        fits = replace(results.fits, quality=table["quality"])
        if asked.population or asked.shared:
            listener.begin("looking at the wells as a population")
            drawn = population_names(made.work, asked.population)
            plan, backend = made.work.plan, made.work.scorer.backend
            problems = Problems(made.work, made.recordings)
            again = linearizer(plan, problems, fits, usable(fits), backend)
            found = population(
                fits,
                drawn,
                asked.shared,
                again,
                parameters=parameters,
                wells=wells,
                always=False,
                on_round=listener.together,
            )
            table = with_columns(table, found.columns())
            told["population"] = {**found.summary(), "text": found.text()}
        if asked.groups:
            listener.begin("sorting the wells into groups")
            count = None if asked.groups == "auto" else int(asked.groups)
            seed = made.work.settings.seed
            problem = made.work.plan.problem
            names = [n for n in kinetic_names(problem) if n in fits.names]
            kinds = groups(fits, count, parameters=parameters, names=names, wells=wells, seed=seed)
            table = with_columns(table, kinds.columns())
            told["groups"] = {**kinds.summary(), "text": kinds.text()}
    except InputError as error:
        what = "groups" if "population" in told or not asked.population else "a population"
        then = "the wells' own results stand"
        listener.warn([Caution(what, error.message, then)])
        told["not_done"] = f"{what}: {error.message}"
    return replace(results, table=table), told


def population_names(work: WellTasks, asked: Sequence[str]) -> list[str]:
    """The names of the parameters of a population; `kinetics` stands for those of the rates."""
    names: list[str] = []
    for name in asked:
        names += kinetic_names(work.plan.problem) if name == KINETICS else [name]
    return list(dict.fromkeys(names))


def _describe(folder: RunFolder, made: Ready) -> None:
    """Says in the state what is fitted."""
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


def _pieces(
    work: WellTasks, executor: Executor | None, folder: RunFolder, listener: Listener
) -> Iterable[WellResults]:
    """Yield the results of the tasks in their order; report each when it is done."""
    kept = folder.checkpoint.open_results()
    total, before, began = len(work.recordings), kept.keys, time.perf_counter()
    done = failed = earlier = 0

    def on_done(key: Key, arrays: Arrays) -> None:
        nonlocal done, failed, earlier
        piece = WellResults.of(arrays)
        n = int(key[2]) - int(key[1])
        done += n
        earlier += n if key in before else 0
        wells = work.recordings[int(key[1]) : int(key[2])]
        failures = _failures(piece)
        for k, reason in failures.items():
            failed += 1
            listener.failed(wells[k].well, reason)
        if piece.fits is not None:
            for place, values in zip(piece.places.tolist(), piece.fits.values, strict=True):
                if place not in failures:
                    found = dict(zip(piece.fits.names, values.tolist(), strict=True))
                    listener.done(wells[place].well, key in before, found)
        seconds, left = time.perf_counter() - began, seconds_left(done, total, began, earlier)
        listener.progress(Progress(done, total, failed, earlier, seconds, left))
        news = {"wells_done": done, "wells_failed": failed, "seconds_left": left}
        folder.state.content |= news | {"seconds": seconds}
        folder.report_now_and_then()
        then = "the batch goes on, but after a kill it would go on from here only"
        listener.warn(folder.new_cautions(kept.fault, then))

    listener.progress(Progress(0, total, 0, 0, 0.0, math.nan))
    for _, arrays in task_results(work, work.keys, executor, kept, on_done):
        yield WellResults.of(arrays)


def _failures(piece: WellResults) -> dict[int, str]:
    """By place the reasons of wells that could not be read or fitted."""
    found = dict(piece.failures)
    if piece.fits is not None:
        for place, quality, why in zip(
            piece.places.tolist(), piece.fits.quality, piece.fits.reason, strict=True
        ):
            if quality == "failed":
                found[place] = str(why)
    return dict(sorted(found.items()))


def _digest(earlier: Results | None) -> str:
    return "" if earlier is None else hash_of(earlier.table.csv_text())


def _listed(made: Ready) -> dict[str, Any]:
    """The recordings of all wells as JSON holds them."""
    return {"recordings": [each.plain() for each in made.recordings]}
