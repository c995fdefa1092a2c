"""Checks of every job of a night before the first one begins.

Arguments are parsed as the command line parses them, files must exist, and fits, models, protocols
and data are read as the commands read them. A job that uses the fit of another one is checked with
a stand-in: the same file as that fit will write, with values from the middle of every range.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from channelfit.batch.run import BatchListener, ready
from channelfit.curves.data_files import read_data
from channelfit.curves.weights import check_weighted
from channelfit.discovery.run import cautions_of
from channelfit.discovery.run import ready as ready_to_discover
from channelfit.front import kinds
from channelfit.front.commands import doctor
from channelfit.front.commands.batch import request_of
from channelfit.front.commands.cell import prepare as cell_and_scales
from channelfit.front.commands.inputs import changes_of, model_with_values, prepare
from channelfit.front.commands.studies import study_request
from channelfit.front.discoveries import read
from channelfit.front.fitting import conditioning_notes
from channelfit.front.night.calls import Call
from channelfit.front.night.jobs import Result
from channelfit.front.reports import figure_kinds
from channelfit.front.studies import check_request
from channelfit.front.verbs.cell import CellOptions
from channelfit.front.verbs.curves import CurvesOptions
from channelfit.front.verbs.discover import DiscoverOptions
from channelfit.front.verbs.fhn import FhnOptions
from channelfit.front.verbs.fits import OptimizeOptions, UncertaintyOptions
from channelfit.problem.protocol import load_protocol
from channelfit.reading.errors import Caution, InputError
from channelfit.reading.files import files_below, write_bytes
from channelfit.results.comparison import check_same_data
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import read_subject
from channelfit.results.identity import file_hashes
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import RunFolder
from channelfit.scoring.machine import gpu
from channelfit.search.plan import FitPlan
from channelfit.search.space import middle

#: A file of `uncertainty`, where it has refined the fit.
REFINED = "refined.yaml"
FIT = "fit.yaml"


def fit_file(result: Result, calls: Mapping[str, Call], folder: Path) -> Path:
    """Return the path of the result of a job.

    Arguments:
        calls: the command lines of all jobs, by name.
        folder: of the night, or of stand-ins.
    """
    place = folder / result.job
    if result.file:
        return place / result.file
    command = calls[result.job].job.command
    if command in ("report", "export"):
        return calls[result.job].output(place)
    return place / FIT if command == "optimize" else place


@dataclass
class Checks:
    """Checks jobs in an order in which each comes after those that it waits for.

    Arguments:
        calls: the command lines of all jobs, by name.
        stand_ins: an empty folder for stand-ins.
        screen: shows cautions.

    Attributes:
        files: by job, the files that it reads, but results of other jobs.
    """

    calls: Mapping[str, Call]
    stand_ins: Path
    screen: SearchScreen
    files: dict[str, list[Path]] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Check a job.

        Raises InputError: it cannot be run.
        """
        call = self.calls[name]
        place = partial(fit_file, calls=self.calls, folder=self.stand_ins)
        words = call.words(self.stand_ins / name, place)
        given = SimpleNamespace(**call.parsed(words))
        self.files[name] = list(_there(call))
        if getattr(given, "backend", "auto") == "cuda":
            gpu.device()
        check = _CHECKS.get(call.job.command)
        known = all(place(result).exists() for result in call.job.results())
        with contextlib.chdir(call.night.folder):
            if check is not None and known:  # else it needs a file that only another job makes
                self.files[name] += [
                    Path(f).absolute() for f in check(self, given, self.stand_ins / name)
                ]
        # stand-ins are results of other jobs
        own = (f for f in self.files[name] if not f.is_relative_to(self.stand_ins))
        self.files[name] = list(dict.fromkeys(own))

    def plan(self, file: Path, overrides: Sequence[str], backend: str) -> FitPlan:
        """Read the plan of a fit with currents as its command would; cautions are shown."""
        plan = kinds.with_currents(kinds.load_plan(file, overrides, backend))
        self.screen.warn(plan.cautions)
        return plan


def _there(call: Call) -> Iterator[Path]:
    """Yield the files among the values of a job, and those in folders."""
    for name, path in call.paths():
        if path.is_dir():
            yield from files_below(path)
        elif path.is_file():
            yield path
        else:
            raise call.night.error(call.job, f"{path}: no such file", name)
    for text in call.texts():  # such as --input NAME=FILE
        with contextlib.suppress(OSError, ValueError):  # a text need not be a path
            path = call.night.folder / text.rpartition("=")[2]
            if path.is_file():
                yield path


def _read(plan: FitPlan) -> Iterator[str]:
    """Yield the files that a fit has read."""
    yield from (row["file"] for row in file_hashes(plan) if Path(row["file"]).is_file())


# --- one for each command -------------------------------------------------------------------------


def _optimize(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    changes = changes_of(OptimizeOptions(**vars(given)))
    quiet = SearchScreen(given.model.name, quiet=True)
    plan, scorer = prepare(given.model, changes, given.backend, given.dtype, given.path, quiet)
    for experiment, note in conditioning_notes(plan):
        checks.screen.say(f"{experiment}: {note}")
    if given.chunk is not None and scorer.backend != "cuda":
        raise InputError(f"is for GPUs; backend {scorer.backend} does without", key="--chunk")
    values = [
        middle(p) if p.value is None or not p.fixed else p.value for p in plan.problem.parameters
    ]
    with RunFolder() as run:
        kinds.fit_folder(run.claim(place), plan).save_fit(np.array(values))
    yield from _read(plan)


def _uncertainty(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    plan = checks.plan(given.fit, given.overrides, given.backend)
    check_request(plan, study_request(UncertaintyOptions(**vars(given))))
    place.mkdir()
    write_bytes(place / REFINED, given.fit.read_bytes())
    yield from _read(plan)


def _compare(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    if len(given.fits) < 2:
        raise InputError("two or more fits are needed for a comparison", key="fits")
    plans = [checks.plan(fit, (), given.backend) for fit in given.fits]
    for other in plans[1:]:
        check_same_data(plans[0], other)
    for plan in plans:
        yield from _read(plan)


def _discover(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    plan, section = read(given.model, changes_of(DiscoverOptions(**vars(given))), given.backend)
    checks.screen.warn(cautions_of(plan))
    ready_to_discover(plan, section, None, given.backend)
    yield from _read(plan)


def _report(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    figure_kinds(given.figures or "")
    for run in given.runs:
        file = run / FIT if run.is_dir() else run
        yield from _read(kinds.load_plan(file, (), given.backend))


def _export(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    subject = read_subject(given.fit, given.overrides, given.cell)
    checks.screen.warn(subject.channel.cautions)
    settings = ExportSettings(given.ions, given.suffix, given.capacitance, given.point_process)
    exported(subject, given.kind, settings)
    yield from ()


def _simulate(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    model_with_values(given.model, given.overrides, given.cell)
    load_protocol(given.protocol)
    yield from ()


def _cell(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    cell, _ = cell_and_scales(CellOptions(**vars(given)))
    checks.screen.warn(cell.cautions)
    yield from map(str, cell.files)


def _curves(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    from channelfit.front.commands.curves import formula_and_inputs  # loads Matplotlib

    formula, files = formula_and_inputs(CurvesOptions(**vars(given)))
    for data in read_data(given.data, formula, files, given.sigma):
        check_weighted(formula, data, given.method)
    yield from ()


def _fhn(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    from channelfit.front.commands.fhn import problem_of  # loads Matplotlib

    problem_of(FhnOptions(**vars(given)))
    yield from ()


def _validate(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    for what in (doctor.neuron(), doctor.compiler()):
        if not what.usable:
            raise InputError(f"NEURON or its compiler {what.state}: {what.remedy}")
    model_with_values(given.model, given.overrides)
    for protocol in given.protocols:
        load_protocol(protocol)
    yield from ()


class _Cautions(BatchListener):
    """Shows the cautions of a batch, and nothing else."""

    def __init__(self, screen: SearchScreen) -> None:
        self._screen = screen

    def warn(self, cautions: Iterable[Caution]) -> None:
        self._screen.warn(cautions)


def _batch(checks: Checks, given: SimpleNamespace, place: Path) -> Iterator[str]:
    made = ready(request_of(vars(given)), _Cautions(checks.screen))
    yield from (recorded.file for recorded in made.recordings)
    yield from _read(made.work.plan)


_CHECKS: dict[str, Callable[[Checks, Any, Path], Iterator[str]]] = {
    "optimize": _optimize,
    "batch": _batch,
    "uncertainty": _uncertainty,
    "compare": _compare,
    "discover": _discover,
    "report": _report,
    "export": _export,
    "simulate": _simulate,
    "cell": _cell,
    "curves": _curves,
    "fhn": _fhn,
    "validate": _validate,
}
