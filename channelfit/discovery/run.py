"""A run of `channelfit discover`: from a plan and its section `discover` to the files in a folder.

The folder holds, besides ``state.json`` from the first second,

``schemes.csv``      a row for each scheme, the best by BIC first (`results`)
``schemes/``         a model file of each scheme that was fitted until starts agree, with its values
``discover.html``    the page (`page`)
``summary.json``     all numbers, and what repeats the run
``pieces.bin``       until it has finished: the fits so far, with ``resume.json``
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from channelfit.discovery.complete import CompleteScorers, is_part
from channelfit.discovery.models import SchemeModels
from channelfit.discovery.page import discovery_page
from channelfit.discovery.results import Found, found_by
from channelfit.discovery.schemes import read_space
from channelfit.discovery.search import Discovery
from channelfit.discovery.tasks import Effort, SchemeFit, SchemeTasks
from channelfit.problem.channel_noise import refuse_noise
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, each_once
from channelfit.reading.files import write_text
from channelfit.results.identity import identity
from channelfit.results.quality import SUFFIXES
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import FINISHED
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import FitPlan
from channelfit.tasks.executor import Executor
from channelfit.tasks.result_store import Key

PAGE = "discover.html"


class DiscoverListener:
    """Receives how a run goes on; this one ignores it."""

    def begin(self, stage: str, total: int = 0) -> None:
        """Receive a stage of the work that begins, and how many fits it has at most."""

    def done(self, name: str, kept: bool, result: Mapping[str, Any], failure: str) -> None:
        """Receive that a scheme was fitted, by an earlier run or this one, or why it was not."""

    def warn(self, cautions: Sequence[Caution]) -> None:
        """Receive cautions."""

    def finishing(self) -> None:
        """Receive that results are about to be written, and the run must not be interrupted."""


def ready(
    plan: FitPlan, section: Mapping[str, Any], seed: int | None = None, backend: str = "auto"
) -> SchemeTasks:
    """Return the fits of all schemes.

    Arguments:
        plan: of the fit file without its section `discover`, with its data.
        section: that section.
        seed: of the search; the plan's without it.
        backend: see `make_scorer`; "auto" is the processor.

    Raises InputError: a key that cannot be used, or no scheme of which a model can be made.
    """
    refuse_noise(plan.problem, plan.file)
    keys = Section(section, plan.file, "fit.discover")
    space, models = read_space(keys), SchemeModels.read(plan, keys)
    effort = Effort(*(keys.integer(key) for key in ("scan", "starts", "keep")))
    keys.finish()
    schemes = tuple(one for one in space.schemes if one.n_open < one.n)  # others do not gate
    if len(schemes) < 2:
        raise keys.error("leaves one scheme, so that there is nothing to compare")
    own = models.plan_of(schemes[0])
    scorer = make_scorer(plan.problem, "cpu" if backend == "auto" else backend)
    found = identity(plan, scorer) | {
        "discover": dict(section),
        "seed": plan.seed if seed is None else seed,
        "schemes": len(schemes),
    }
    together = scorer.backend == "cuda" and is_part(models, own, schemes[-1].n)
    complete = CompleteScorers(models, scorer.backend) if together else None
    return SchemeTasks(models, schemes, effort, found["seed"], scorer.backend, complete, found)


def cautions_of(plan: FitPlan) -> list[Caution]:
    """Return what looks wrong about the fit file."""
    unused = [key for key in ("optimizer", "stop", "seeds", "start") if key in plan.section]
    then = "schemes are scanned and refined by least squares"
    own = [Caution(f"{plan.file}: fit.{key}", "is not used", then) for key in unused]
    return list(each_once([*plan.cautions, *own]))


def run(
    tasks: SchemeTasks,
    folder: RunFolder | None,
    listener: DiscoverListener,
    executor: Executor | None = None,
    arguments: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
) -> tuple[Found, dict[str, Any]]:
    """Fit all schemes, and write the folder if there is one; an interrupted run goes on.

    Arguments:
        folder: of the run, claimed; None to write nothing.
        arguments: of the command, by which it can be resumed; None for a call from Python.
        command: the words of the command line, for the summary.

    Returns: what was found, and the summary.

    Raises InputError: no scheme could be fitted, the run that is to go on was another one, or
    results cannot be written.
    """
    began, plan = time.perf_counter(), tasks.models.plan
    store, before = None, frozenset[Key]()
    if folder is not None:
        folder.report(stage="scanning schemes", name=plan.name, file=str(plan.file), schemes_done=0)
        folder.checkpoint.begin(tasks.identity, arguments, "discover")
        store = folder.checkpoint.open_results()
        before = frozenset(store.keys)
    counted, name_of_rms = 0, f"rms_{SUFFIXES[plan.problem.unit]}"

    def on_done(key: Key, fit: SchemeFit) -> None:
        nonlocal counted
        counted += 1
        result = {"kind": str(key[0]), "graph": fit.scheme.text, name_of_rms: fit.best**0.5}
        listener.done(fit.scheme.name, key in before, result, fit.failure)
        if folder is not None and store is not None:
            folder.state.content |= {"schemes_done": counted}
            folder.report_now_and_then()
            listener.warn(folder.new_cautions(store.fault, "after a kill it would go on from here"))

    discovery = Discovery(tasks, executor, store, on_done)
    listener.begin("scanning schemes", discovery.n_scans)
    discovery.scan()
    listener.begin("fitting the best schemes")
    best = discovery.fit()
    listener.begin("comparing the best schemes")
    found = found_by(discovery, best)
    summary = found.summary(time.perf_counter() - began, command)
    listener.finishing()
    if folder is not None:
        listener.begin("writing the results")
        write_text(folder.path / PAGE, discovery_page(found, summary))
        found.write(folder.path, summary)
        fault = folder.end(FINISHED, "all schemes are done", schemes_done=counted)
        listener.warn(folder.new_cautions(fault, "all results are written"))
    return found, summary


def save(found: Found, summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the results of a run that had no folder; return the files.

    Raises InputError: the folder is not empty, or cannot be written.
    """
    with RunFolder() as place:
        place.claim(folder)
        write_text(folder / PAGE, discovery_page(found, summary))
        found.write(folder, summary)
        place.end(FINISHED, "all schemes are done")
    return sorted(path for path in folder.rglob("*") if path.is_file())
