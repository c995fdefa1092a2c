"""`fit`: from a model and experiments, or from a fit file, to a `Fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from channelfit.front import kinds
from channelfit.front.experiments import (
    CALL,
    Experiment,
    build_experiment,
    celsius,
    listed,
    raw_clamp,
)
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.progress import compilations_shown, screen_for
from channelfit.front.result import Fit
from channelfit.model.channel import ChannelModel
from channelfit.model.model import Model
from channelfit.problem.experiment import Problem
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.memory import nothing_collected
from channelfit.results.fit_folder import FitFolder
from channelfit.results.identity import identity
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_summary import found_with_result
from channelfit.scoring.scorer import Scorer
from channelfit.search.choose import DIRECTED
from channelfit.search.cost import Cost
from channelfit.search.fit_file import cautions_of, plan_search
from channelfit.search.fit_tasks import FitTasks, epochs_by
from channelfit.search.islands import Islands
from channelfit.search.joined_files import FitFile, read_fit_file
from channelfit.search.journal import Journaled
from channelfit.search.loop import FitResult, Progress, optimize
from channelfit.search.optimizer import Optimizer
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan
from channelfit.search.seeds import search_seeds
from channelfit.tasks.executor import Executor
from channelfit.tasks.result_store import ResultStore

#: The search where a cost has no derivatives and no method is named.
WITHOUT_DERIVATIVES = "differential"


def fit(
    model: Model | str | os.PathLike[str],
    experiments: Experiment | Sequence[Experiment] | None = None,
    *,
    seed: int | None = None,
    seeds: int | None = None,
    optimizer: str | Mapping[str, Any] | Callable[[int, int], Optimizer] | None = None,
    cost: Cost | None = None,
    stop: Mapping[str, Any] | None = None,
    rates_within: Any = None,
    noise: Any = None,
    solve: Any = None,
    start: str | None = None,
    name: str | None = None,
    backend: str = "auto",
    dtype: str = "float64",
    path: str = "auto",
    cluster: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Fit:
    """Fit the parameters of a model to recorded currents.

    Either a model with experiments, or one file that says it all: ``fit("fit.yaml")``.

    Arguments:
        model: a `Model`, or a model file; alone, a fit file or a model file with a `fit` section.
        experiments: an `Experiment`, or a list of them: protocols and what was recorded under each.
        seed: of the search; the same seed gives the same result. 0, or the file's.
        seeds: how many whole searches there are, with the seeds from that one on; the best is kept.
        optimizer: its name; a mapping with its `name` and settings, as in a fit file; or a class of
            your own, derived from `Optimizer`.
        cost: of your own, a `Cost`; by default the weighted mean square of the residuals.
        stop: when to end, such as ``{"seconds": 60}``.
        rates_within, noise, solve, start, name: as the keys of a fit file.
        backend: what scores the candidates: auto, reference, cpu or cuda.
        dtype: precision of the search, ``float64`` or ``float32``.
        path: how currents are computed; auto chooses.
        cluster: where several searches, or islands, are computed, as after ``--cluster``; this
            process without it.
        folder: where to write the run as it goes on, as ``channelfit optimize`` does; new or empty.
            Without one nothing is written, until `Fit.save`.
        resume: whether to go on with the run in that folder, which was interrupted or killed, to
            the result that it would have had. All other arguments must be those of that run.
        progress: whether to show the search; None shows it in notebooks and on terminals.

    Returns: a `Fit`: values, standard errors, what the data do not determine, traces, pictures.

    Warns:
        InputWarning: what can be used but looks wrong, such as a trace at the amplifier's limit.

    Raises:
        InputError: what cannot be used, with its place, value and what would be right.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model.load("models/model_b.yaml")
        >>> steps = cf.Protocol.load("protocols/activation.yaml")
        >>> recorded = cf.simulate(model, steps).current  # in place of a recording
        >>> fit = cf.fit(model, cf.Experiment(steps, recorded), seed=1, progress=False)
        >>> round(fit.values["gmax"], 3)
        5.0
    """
    is_named = optimizer is None or isinstance(optimizer, str | Mapping)
    named = {
        "optimizer": {"name": optimizer} if isinstance(optimizer, str) else optimizer,
        "stop": stop,
        "seed": seed,
        "seeds": seeds,
        "rates_within": rates_within,
        "noise": noise,
        "solve": solve,
        "start": start,
        "name": name,
    }
    section = {
        key: value
        for key, value in named.items()
        if value is not None and (is_named or key != "optimizer")
    }
    if experiments is not None:
        plan = plan_of_arrays(model, listed(experiments), section)
    elif isinstance(model, Model):
        raise InputError("experiments are needed beside a Model", CALL)
    else:
        plan = kinds.load_plan(model, Changes(section=section), backend)
    plan = with_cost(plan, cost) if cost is not None else plan
    plan = plan if is_named else with_method(plan, optimizer)
    if resume and folder is None:
        raise InputError("resume needs the folder of the run that is to go on", CALL)
    with screen_for(plan.name, progress) as screen:
        with compilations_shown(screen), nothing_collected():
            scorer = prepared(plan, backend, dtype, path, screen)
        with workers(cluster, screen) as executor:
            if folder is None:
                return run(plan, scorer, None, screen, executor=executor)
            with RunFolder(held) as place:
                (place.resume if resume else place.claim)(Path(folder))
                return run(plan, scorer, kinds.fit_folder(place, plan), screen, executor=executor)


def plan_of_arrays(
    model: Model | str | os.PathLike[str], given: Sequence[Experiment], section: dict[str, Any]
) -> FitPlan:
    """Return the plan of a fit to arrays, which are checked.

    Arguments:
        section: how to search, as a fit section says it.
    """
    clamps = [{"clamp": raw} if (raw := raw_clamp(one)) else {} for one in given]
    if any(clamps):
        section = section | {"experiments": clamps}
    channel, document = _channel(model, section, (celsius(one) for one in given))
    several = len(given) > 1
    experiments = tuple(
        build_experiment(one, channel, f" {k}" if several else "") for k, one in enumerate(given, 1)
    )
    search = Section(section, CALL)
    search.expect(KEYS["fit"])
    plan = plan_search(
        Problem(channel, experiments),
        search,
        document=document,
        file=CALL,
        model_file=CALL,
        section=section,
        in_memory=True,
    )
    places = [f"experiment {k}" if several else "recording" for k in range(1, len(experiments) + 1)]
    return replace(plan, cautions=cautions_of(plan, places))


def _channel(
    model: Model | str | os.PathLike[str],
    section: Mapping[str, Any],
    temperatures: Iterable[float | None],
) -> tuple[ChannelModel, dict[str, Any]]:
    """Return the model for experiments with these clamps and temperatures, and its document."""
    if isinstance(model, Model):
        fit_file = FitFile(model.document, CALL, CALL)
    else:
        fit_file = read_fit_file(Path(model))
        kinds.refuse_function(fit_file)
    # a clamp in the section may use parameters of its own
    own = {**(fit_file.document.get("fit") or {}), **section}
    beside = replace(fit_file, document={**fit_file.document, "fit": own})
    channel = model.channel if isinstance(model, Model) else beside.build_model()
    first = next((one for one in temperatures if one is not None), None)
    if first is not None:
        channel = FitFile(beside.document, CALL, CALL).build_model(first)
    return channel, fit_file.model_document


def with_cost(plan: FitPlan, cost: Cost) -> FitPlan:
    """Return the same plan with a cost of the user's own, and a search that needs no derivatives.

    Raises InputError: what has no meaning with such a cost.
    """
    if not isinstance(cost, Cost):
        raise InputError(f"a channelfit.Cost was expected, not {shown(cost)}", CALL, "cost")
    kinds.with_currents(plan, "so it has its own cost")
    if plan.solved or any(p.prior for p in plan.problem.parameters):
        raise InputError(
            "solve and priors are parts of the weighted mean square; leave them out with a cost of "
            "your own",
            CALL,
            "cost",
        )
    if plan.optimizer in DIRECTED:
        if plan.settings or "name" in (plan.section.get("optimizer") or {}):
            raise InputError(
                f"{plan.optimizer} needs derivatives, which a cost of your own does not have; "
                f"leave the optimizer out, or take {WITHOUT_DERIVATIVES}",
                CALL,
                "optimizer",
            )
        plan = replace(plan, optimizer=WITHOUT_DERIVATIVES)
    return replace(plan, cost=cost)


def with_method(plan: FitPlan, method: Any) -> FitPlan:
    """Return the same plan with a search method of the user's own.

    Raises InputError: it makes no `Optimizer`, or the search is to begin at values.
    """
    if plan.start:
        raise InputError(
            "an optimizer of your own begins where it decides; leave start out", CALL, "start"
        )
    other = isinstance(method, type) and not issubclass(method, Optimizer)
    made = method(plan.space.n_free, plan.seed) if callable(method) and not other else None
    if not isinstance(made, Optimizer):
        raise InputError(
            "a class derived from channelfit.Optimizer was expected, which is called with the "
            f"number of parameters and the seed, not {shown(method)}",
            CALL,
            "optimizer",
        )
    return replace(plan, method=method, optimizer=made.name, settings={})


@contextmanager
def workers(cluster: str | None, screen: SearchScreen) -> Iterator[Executor | None]:
    """Yield the executor of tasks for the block; None for this process.

    Arguments:
        cluster: as after ``--cluster``.

    Raises: InputError where it cannot be used.
    """
    if cluster is None:
        yield None
        return
    from channelfit.tasks.cluster import open_cluster  # loads Dask, which few calls need

    screen.begin("starting the cluster")
    with open_cluster(cluster, screen.say) as executor:
        yield executor


def prepared(plan: FitPlan, backend: str, dtype: str, path: str, screen: SearchScreen) -> Scorer:
    """Return a scorer of the plan with compiled code, and show cautions before."""
    screen.warn(plan.cautions)
    if plan.has_currents:
        plan.problem.check_memory(1, plan.file)
    for place, note in conditioning_notes(plan):
        screen.say(f"{place}: {note}")
    scorer = kinds.make_scorer(plan, backend, dtype, path)
    free = plan.space.n_free
    screen.title = f"{plan.name}: {plan.optimizer}, {free} free parameters, seed {plan.seed}"
    screen.rules = plan.stop_rules
    screen.of_currents = plan.has_currents and plan.problem.has_recordings
    return scorer


def conditioning_notes(plan: FitPlan) -> list[tuple[str, str]]:
    """Return how each recording was conditioned: the experiment and each step, in words."""
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
    """Search, score the winner once more, judge it, and write the folder if there is one.

    After a failure the folder keeps what there is so far, and what the search needs to go on.

    Arguments:
        arguments: of the command, by which the run can be resumed; None for a call from Python.
        command: the command line, for the summary; empty for a call of Python.
        executor: computes searches with several seeds, or epochs of islands; None for this process.
    """
    saving = _Saving(folder, screen)
    try:
        if folder is not None:
            folder.begin(scorer)
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
            objective.scorer = journaled = Journaled(objective.scorer, journal)
            clock = journal.clock
    path = scorer.path or "auto"
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
