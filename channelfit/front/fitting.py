"""`fit`: from a model, a protocol and currents, or from a fit file, to a `Fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.front import kinds
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.progress import compilations_shown, nothing_collected, screen_for
from channelfit.front.result import Fit
from channelfit.model.model import Model
from channelfit.model.model_file import build_model
from channelfit.model.scope import check_cell
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording, load_recording
from channelfit.reading.cautions import Caution
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.results.fit_folder import FitFolder
from channelfit.results.identity import identity
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_summary import found_with_result
from channelfit.scoring.scorer import Scorer
from channelfit.search.fit_file import cautions_of, plan_search
from channelfit.search.fit_tasks import FitTasks, epochs_by
from channelfit.search.islands import Islands
from channelfit.search.journal import Journaled
from channelfit.search.loop import FitResult, Progress, optimize
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan
from channelfit.search.seeds import search_seeds
from channelfit.tasks.executor import Executor
from channelfit.tasks.result_store import ResultStore

#: What stands in messages for the file of a fit that has none.
_CALL = Path("fit()")


def fit(
    model: Model | str | os.PathLike[str],
    protocol: Any = None,
    current: Any = None,
    *,
    time: Any = None,
    weights: Any = None,
    cell: Any = None,
    temperature: Any = None,
    seed: int | None = None,
    optimizer: str | Mapping[str, Any] | None = None,
    stop: Mapping[str, Any] | None = None,
    rates_within: Any = None,
    noise: Any = None,
    solve: Any = None,
    start: str | None = None,
    name: str | None = None,
    backend: str = "auto",
    dtype: str = "float64",
    path: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Fit:
    """Fits the parameters of a model to recorded currents.

    Either a model with a protocol and currents, or one file that says it all:
    ``fit("fit.yaml")``. Several experiments are lists of protocols and of currents.

    Arguments:
        model: a `Model`, or a model file; alone, a fit file or a model file with a `fit` section.
        protocol: a `Protocol` or a protocol file; or a list of them.
        current: pA, in order of the protocol's samples: an array (n_sweeps, n_times), of a single
            sweep also (n_times,), a column or a frame of pandas (a column a sweep), a `Recording`,
            or a mapping as under ``recording:`` in a fit file; a list of these for a list of
            protocols.
        time: (n_times,) ms, if known: it is compared with the times of the protocol.
        weights: as `current` or (n_times,): how much each sample counts, 0 for not at all.
        cell: the name of the cell that was recorded from; for a list of protocols a list, so that
            parameters with ``per: cell`` have a value for each.
        temperature: of the experiment, degC or text such as ``"34 degC"``, where it is not the
            model's; a list for a list of protocols.
        seed: of the search; the same seed gives the same result. 0, or the file's.
        optimizer: its name, or a mapping with its `name` and settings, as in a fit file.
        stop: when to end, such as ``{"seconds": 60}``.
        rates_within, noise, solve, start, name: as the keys of a fit file.
        backend: what scores the candidates: auto, reference, cpu or cuda.
        dtype: precision of the search, ``float64`` or ``float32``.
        path: how currents are computed; auto chooses.
        folder: where to write the run as it goes on, as ``channelfit optimize`` does; new or empty.
            Without one nothing is written, until `Fit.save`.
        resume: whether to go on with the run in that folder, which was interrupted or killed, to
            the result that it would have had. All other arguments must be those of that run.
        progress: whether to show the search; None shows it in notebooks and on terminals.

    Returns: a `Fit`: values, standard errors, what the data leave open, traces, pictures.

    Warns:
        InputWarning: what can be used but looks wrong, such as a trace at the amplifier's limit.

    Raises:
        InputError: what cannot be used, with its place, value and what would be right.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model.load("models/model_b.yaml")
        >>> steps = cf.Protocol.load("protocols/activation.yaml")
        >>> recorded = cf.simulate(model, steps).current  # in place of a recording
        >>> found = cf.fit(model, steps, recorded, seed=1, progress=False)
        >>> round(found.values["gmax"], 3)
        5.0
    """
    told = {
        "optimizer": {"name": optimizer} if isinstance(optimizer, str) else optimizer,
        "stop": stop,
        "seed": seed,
        "rates_within": rates_within,
        "noise": noise,
        "solve": solve,
        "start": start,
        "name": name,
    }
    section = {key: value for key, value in told.items() if value is not None}
    if protocol is None and current is None:
        if isinstance(model, Model):
            raise InputError("a protocol and a current are needed beside a Model", _CALL)
        if any(given is not None for given in (time, weights, cell, temperature)):
            raise InputError(
                "time, weights, cell and temperature belong to a protocol and a current", _CALL
            )
        plan = kinds.load_plan(model, Changes(section=section), backend)
    elif protocol is None or current is None:
        missing = "protocol" if protocol is None else "current"
        raise InputError(f"a {missing} is needed too", _CALL)
    else:
        data = (current, time, weights, cell, temperature)
        plan = _plan(model, protocol, data, section)
    with screen_for(plan.name, progress) as screen:
        with compilations_shown(screen), nothing_collected():
            scorer = prepared(plan, backend, dtype, path, screen)
        if resume and folder is None:
            raise InputError("resume needs the folder of the run that is to go on", _CALL)
        if folder is None:
            return run(plan, scorer, None, screen)
        with RunFolder(held) as place:
            (place.resume if resume else place.claim)(Path(folder))
            return run(plan, scorer, kinds.fit_folder(place, plan), screen)


def _plan(
    model: Model | str | os.PathLike[str],
    protocol: Any,
    data: tuple[Any, ...],
    section: dict[str, Any],
) -> FitPlan:
    """The plan of a fit to arrays.

    Arguments:
        data: current, time, weights, cell and temperature, each one or a list as the protocols are.
    """
    if isinstance(model, Model):
        channel, document = model.channel, model.document
    else:
        channel, document = kinds.channel_document(model)
        document.pop("fit", None)
    several = isinstance(protocol, list | tuple)
    names = ("protocol", "current", "time", "weights", "cell", "temperature")
    lists = [_listed(*pair, protocol) for pair in zip((protocol, *data), names, strict=True)]
    experiments = tuple(
        _experiment(f" {k}" if several else "", *row)
        for k, row in enumerate(zip(*lists, strict=True), 1)
    )
    celsius = next((e.temperature_C for e in experiments if e.temperature_C is not None), None)
    if celsius is not None:
        channel = build_model(document, _CALL, celsius)
    told = Section(section, _CALL)
    told.expect(KEYS["fit"])
    plan = plan_search(
        Problem(channel, experiments),
        told,
        document=document,
        file=_CALL,
        model_file=_CALL,
        section=section,
        in_memory=True,
    )
    places = [f"experiment {k}" if several else "recording" for k in range(1, len(experiments) + 1)]
    return replace(plan, cautions=cautions_of(plan, places))


def _listed(given: Any, name: str, protocol: Any) -> Sequence[Any]:
    """What was given for each protocol."""
    if not isinstance(protocol, list | tuple):
        return [given]
    if given is None:
        return [None] * len(protocol)
    if not isinstance(given, list | tuple) or len(given) != len(protocol):
        raise InputError(f"{name} must be a list of {len(protocol)}, one for each protocol", _CALL)
    return given


def _experiment(
    number: str,
    protocol: Any,
    current: Any,
    time: Any,
    weights: Any,
    cell: Any,
    temperature: Any,
) -> Experiment:
    """A protocol and what was recorded under it, from which cell and at which temperature."""
    given = {"cell": cell, "temperature": temperature}
    row = Section({k: v for k, v in given.items() if v is not None}, f"{_CALL}{number}")
    row.expect(KEYS["experiment"])
    name = row.text("cell")
    if "cell" in row:
        check_cell(row, name, "cell")
    celsius = row.quantity("temperature")
    command, recording = _recorded(protocol, current, time, weights, number)
    return Experiment(command, recording, cell=name, temperature_C=celsius)


def _recorded(
    protocol: Any, current: Any, time: Any, weights: Any, number: str
) -> tuple[Protocol, Recording]:
    """A protocol and what was recorded under it."""
    command = protocol if isinstance(protocol, Protocol) else Protocol.load(protocol)
    if isinstance(current, Recording | Mapping) and not (time is None and weights is None):
        raise InputError("time and weights belong to arrays; a recording has its own", _CALL)
    if isinstance(current, Recording):
        same = current.current_pA.shape == (command.n_sweeps, command.n_times_max)
        if not same or not np.allclose(current.time_ms, command.times_ms, rtol=0, atol=1e-9):
            raise InputError("this Recording was made for another protocol", _CALL)
        return (command, current)
    if isinstance(current, str | os.PathLike):
        raise InputError(
            f"the columns of {os.fspath(current)} and their units are not known; give a mapping "
            'such as {"file": ..., "time": {"column": "t", "unit": "s"}, '
            '"current": {"columns": "all", "unit": "nA"}}',
            _CALL,
            "current",
        )
    if isinstance(current, Mapping):
        recording = load_recording(Section(current, None, "current"), command)
        if recording.low_pass is not None:
            raise InputError(
                "a low-pass filter has to be modelled, too, which only a fit file can say",
                _CALL,
                "current.condition",
            )
        return (command, recording)
    try:
        recording = Recording.from_arrays(
            command, current, time=time, weight=weights, source=f"arrays{number}"
        )
    except InputError as error:
        raise InputError(error.message, f"{_CALL}{number}", error.key) from None
    return (command, recording)


def prepared(plan: FitPlan, backend: str, dtype: str, path: str, screen: SearchScreen) -> Scorer:
    """A scorer of the plan whose code is compiled; what looks wrong is told before."""
    screen.warn(plan.cautions)
    if plan.has_currents:
        plan.problem.check_memory(1, plan.file)
    for place, note in conditioning_notes(plan):
        screen.say(f"{place}: {note}")
    scorer = kinds.make_scorer(plan, backend, dtype, path)
    free = plan.space.n_free
    screen.title = f"{plan.name}: {plan.optimizer}, {free} free parameters, seed {plan.seed}"
    screen.rules = plan.stop_rules
    screen.of_currents = plan.has_currents
    return scorer


def conditioning_notes(plan: FitPlan) -> list[tuple[str, str]]:
    """What was done to each recording before the fit: the experiment and each step, in words."""
    experiments = plan.problem.experiments if plan.has_currents else ()
    return [
        (f"Experiment {number}", note)
        for number, experiment in enumerate(experiments, 1)
        if experiment.recording is not None
        for note in experiment.recording.conditioning
    ]


def run(
    plan: FitPlan,
    scorer: Scorer,
    folder: FitFolder | None,
    screen: SearchScreen,
    arguments: Mapping[str, Any] | None = None,
    command: str = "",
    executor: Executor | None = None,
) -> Fit:
    """Searches, scores the winner once more, judges it, and writes the folder if there is one.

    After a failure the folder keeps what there is so far, and what the search needs to go on.

    Arguments:
        arguments: of the command, by which the run can be resumed; None for a call from Python.
        command: the command line that asked for it, for the summary; empty for a call of Python.
        executor: computes searches with several seeds, or epochs of islands; None for this process.
    """
    saving = _Saving(folder, screen)
    try:
        if folder is not None:
            folder.save_source(scorer)
        try:
            result = _searched(
                plan, scorer, folder, screen, arguments, saving.on_generation, executor
            )
        except InputError as error:
            why = "; ".join(plan.failing_examples())
            raise InputError(f"{error}; for instance {why}", plan.file) if why else error from None
        screen.begin("judging the fit")
        if folder is not None:
            fault = folder.run.report(stage="judging the fit")
            saving.warn(fault, "the results are written nevertheless")
        with compilations_shown(screen):
            winner = kinds.rescore(plan, scorer, result.values)
            if folder is not None:
                folder.begin_drawing(result, winner)
            summary = kinds.summarize(plan, result, scorer, winner)
            # what was seen before the search has been shown
            screen.warn(found_with_result(plan, summary))
            summary |= {"command": command} if command else {}
            if folder is not None:
                all_is_done()
                saving.warn(folder.finish(result, summary), "all results are written")
    except BaseException as error:
        if folder is not None:
            saving.warn(folder.stop(error), "the results are lost")
        raise
    return Fit(plan, scorer, result, winner, summary)


class _Saving:
    """Shows a search and saves how far it is; warns of what its folder could not save."""

    def __init__(self, folder: FitFolder | None, screen: SearchScreen) -> None:
        self._folder, self._screen = folder, screen

    def warn(self, fault: InputError | None, then: str) -> None:
        """Warn of a fault the first time that it comes; `then` is as of `new_cautions`."""
        if self._folder is not None:
            self._screen.warn(self._folder.run.new_cautions(fault, then))

    def on_generation(self, progress: Progress) -> None:
        """Show how far a search is, and save that."""
        self._screen.update(progress)
        if self._folder is None:
            return
        self.warn(self._folder.record(progress), "the search goes on, and saves again later")
        if (journal := self._folder.run.checkpoint.journal) is not None:
            then = "the search goes on, but after a kill it could go on from here only"
            self.warn(journal.fault, then)


def _searched(
    plan: FitPlan,
    scorer: Scorer,
    folder: FitFolder | None,
    screen: SearchScreen,
    arguments: Mapping[str, Any] | None,
    on_generation: Callable[[Progress], None],
    executor: Executor | None,
) -> FitResult:
    """Search as a plan says, and keep in the folder what is needed to resume the search.

    In this process a journal of all scores is kept. An executor computes tasks, whose results are
    stored: searches with one seed each, or epochs of one island each. A search that was begun as
    tasks is resumed as tasks.

    Arguments:
        on_generation: called after every generation in this process; the others are those of `run`.
    """
    objective, optimizer = plan.objective(scorer), plan.make_optimizer(scorer.xp)
    store, journaled, clock = None, None, None
    as_tasks = executor is not None or (folder is not None and folder.run.checkpoint.left_results)
    if as_tasks:
        _check_tasks(plan, optimizer)
    found = identity(plan, scorer) if as_tasks or folder is not None else {}
    if folder is not None and (as_tasks or optimizer.repeats_itself):
        checkpoint = folder.run.checkpoint
        checkpoint.begin(found, arguments)
        if as_tasks:
            store = checkpoint.open_results()
        else:
            journal = checkpoint.open_journal()
            objective.scorer = journaled = Journaled(scorer, journal)
            clock = journal.clock
    path = getattr(scorer, "path", "") or "auto"
    fit = FitTasks(plan, scorer.backend, scorer.dtype, path, found, objective)
    if plan.seeds > 1 and as_tasks:
        on_search = _SeedsReport(plan.seeds, folder, screen, store)
        result = search_seeds(
            fit, executor, store, on_search=on_search, on_generation=on_generation
        )
    elif plan.seeds > 1:
        screen.begin("scoring the first generation")
        result = search_seeds(fit, on_generation=on_generation, clock=clock)
    else:
        if as_tasks:
            screen.begin("computing the first epoch of the islands")
            optimizer.epoch = epochs_by(executor, fit, store)
        else:
            screen.begin("scoring the first generation")
        result = optimize(optimizer, objective, plan.stop_rules, on_generation, clock)
    if journaled is not None:
        journaled.settle()
    return result


def _check_tasks(plan: FitPlan, optimizer: Any) -> None:
    """Raise InputError for a search that cannot be computed as tasks."""
    if not plan.has_currents or not (isinstance(optimizer, Islands) or plan.seeds > 1):
        what = "a function is" if not plan.has_currents else "a single search is"
        raise InputError(
            f"{what} not spread over workers; several searches of a channel are (--seeds N), and "
            "islands (optimizer: {name: genetic, islands: N})",
            plan.file,
        )


class _SeedsReport:
    """Shows which searches of several seeds are done, and whether their results were stored."""

    def __init__(
        self, seeds: int, folder: FitFolder | None, screen: SearchScreen, store: ResultStore | None
    ) -> None:
        self._seeds, self._count = seeds, 0
        self._folder, self._screen, self._store = folder, screen, store
        screen.begin(f"{seeds} searches, each with a seed of its own")

    def __call__(self, found: FitResult) -> None:
        self._count += 1
        stage = f"{self._count} of {self._seeds} searches done"
        self._screen.say(f"seed {found.seed}: cost {found.cost:.6g}, {found.stop_reason}")
        self._screen.begin(stage)
        if self._folder is not None:
            self._folder.run.report(stage=stage)
        if self._store is not None and self._store.fault is not None:
            then = "the searches go on, but this one would have to be repeated after a kill"
            fault = self._store.fault
            self._screen.warn([Caution(str(fault.file), fault.message, then)])
