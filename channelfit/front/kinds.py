"""The two kinds of problems, channels and functions, which are distinguished here alone.

A channel has currents under protocols; a function has a cost. The same optimizers search both, and
everything else that differs between them stands in a `Kind`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.reading.errors import InputError
from channelfit.results import run_summary
from channelfit.results.fit_folder import FitFolder
from channelfit.results.report.report_writer import ReportWriter
from channelfit.results.run_folder import RunFolder
from channelfit.scoring import scorer as scoring
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.scorer import Scorer
from channelfit.search.fit_file import read_plan
from channelfit.search.joined_files import FitFile, read_fit_file
from channelfit.search.loop import FitResult
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan, with_data

if TYPE_CHECKING:
    from channelfit.functions.function import FunctionProblem


@dataclass(frozen=True)
class Kind:
    """The functions that differ between channels and functions.

    Attributes:
        read: the plan, without simulated data, from a file that was read.
        make_scorer: what scores a problem, from the problem, backend, precision and path.
        rescore: the best candidate once more, in float64, from plan, scorer and values.
        summarize: the numbers of a run as plain data, from plan, result, scorer and winner.
        folder: the files of a fit, from the folder of its run, the plan and a report writer.
        build: the model or function itself, from a document and its file.
    """

    read: Callable[[FitFile], FitPlan]
    make_scorer: Callable[..., Any]
    rescore: Callable[..., Any]
    summarize: Callable[..., dict[str, Any]]
    folder: type[FitFolder]
    build: Callable[..., Any]


_CHANNEL = Kind(
    read_plan,
    scoring.make_scorer,
    run_summary.rescore,
    run_summary.summarize,
    FitFolder,
    build_model,
)


@cache
def _function() -> Kind:
    # imported here, so that a fit of a channel does not load the modules of functions
    from channelfit.functions import fit_file, function, scorers
    from channelfit.functions import run_folder as folders

    return Kind(
        fit_file.read_function_plan,
        scorers.make_scorer,
        folders.rescore,
        folders.summarize,
        folders.FunctionFolder,
        function.build_function,
    )


def _kind(plan: FitPlan) -> Kind:
    return _CHANNEL if plan.has_currents else _function()


def load_plan(
    path: str | os.PathLike[str],
    changes: Changes | Sequence[str] = (),
    backend: str = "auto",
) -> FitPlan:
    """Read a plan from a model file with a `fit` section, or a fit file that names its model.

    Arguments:
        path: the file.
        changes: of what the file says; or overrides alone, ``dotted.key=value`` each, the value in
            YAML, e.g. ``fit.optimizer.population=1000`` or ``parameters.gmax.value=3``; they are
            applied to the model document, or under ``fit.`` to the fit section, before anything
            is checked. A list's entries count from 1: ``fit.experiments[1].weight=2``.
        backend: what simulates the data, where they are to be simulated.

    Returns: the plan, with its data.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    return plan_of(read_fit_file(Path(path), changes), backend)


@single_threaded_blas()  # the last digits of what is conditioned would depend on its threads
def plan_of(fit_file: FitFile, backend: str = "auto") -> FitPlan:
    """Return the plan, with its data, of a file that was read; as `load_plan`."""
    kind = _function() if fit_file.is_function else _CHANNEL
    plan = kind.read(fit_file)
    return with_data(plan, kind.make_scorer(plan.problem, backend)) if plan.surrogate else plan


def make_scorer(
    plan: FitPlan, backend: str = "auto", dtype: str = "float64", path: str = "auto"
) -> Scorer:
    """Return the scorer of a plan; see `scoring.scorer.make_scorer`."""
    scorer: Scorer = _kind(plan).make_scorer(plan.problem, backend, dtype, path)
    return scorer


def rescore(plan: FitPlan, scorer: Scorer, values: np.ndarray) -> Any:
    """Return the best candidate (n_parameters,) once more, in float64."""
    return _kind(plan).rescore(plan, scorer, values)


def summarize(plan: FitPlan, result: FitResult, scorer: Scorer, winner: Any) -> dict[str, Any]:
    """Return the numbers of a run as plain data, which is what stands in ``summary.json``."""
    return _kind(plan).summarize(plan, result, scorer, winner)


def fit_folder(run: RunFolder, plan: FitPlan, writer: ReportWriter | None = None) -> FitFolder:
    """Return the files of a fit in the folder that a run has claimed."""
    return _kind(plan).folder(run, plan, writer)


def channel_document(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> tuple[ChannelModel, dict[str, Any]]:
    """Read the model of a model file or a fit file, and its whole document, with the fit section.

    Raises: InputError for what cannot be used, and for a function, which has no currents.
    """
    fit_file = read_fit_file(Path(path), overrides)
    refuse_function(fit_file)
    return fit_file.build_model(), fit_file.document


def refuse_function(fit_file: FitFile) -> None:
    """Raise InputError for the file of a function, which has no currents."""
    if fit_file.is_function:
        raise InputError(
            "a function has no currents; only optimize and show serve it", fit_file.file
        )


def function_of(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> FunctionProblem | None:
    """Read the function that a file describes; None where it describes a channel."""
    fit_file = read_fit_file(Path(path), overrides)
    if not fit_file.is_function:
        return None
    problem: FunctionProblem = _function().build(fit_file.document, fit_file.model_file)
    return problem


def with_currents(plan: FitPlan, what: str = "only optimize and show serve it") -> FitPlan:
    """Return the same plan. Raises InputError for a function, which has no currents."""
    if not plan.has_currents:
        raise InputError(f"a function has no currents; {what}", plan.file)
    return plan
