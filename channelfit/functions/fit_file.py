"""A function and its search: the plan that a file with a cost or with outputs leads to."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from channelfit.functions.function import FunctionProblem, build_function, fitted_document
from channelfit.functions.swarm_cuda import RingSearch
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.search.choose import OPTIMIZERS
from channelfit.search.fit_file import starts_from_values
from channelfit.search.joined_files import FitFile, read_titles, rebased_path
from channelfit.search.plan import FitPlan, checked
from channelfit.search.settings import whole

#: Functions have no derivatives yet.
DEFAULT_OPTIMIZER, NEED_DERIVATIVES = "genetic", ("hybrid",)


def _make_asynchronous_ring(
    settings: Mapping[str, Any], n_parameters: int, seed: int, xp: Any, initial: Any
) -> RingSearch:
    for name in settings:
        whole(settings[name], f"optimizer.{name}", least=1)
    return RingSearch(seed=seed, **settings, initial=initial)


@dataclass(frozen=True)
class FunctionPlan(FitPlan):
    """A `FitPlan` for a function: it has a cost, but no currents, rates or protocols."""

    has_currents: ClassVar[bool] = False
    optimizers: ClassVar[Mapping[str, Any]] = {
        **OPTIMIZERS,
        "asynchronous_ring": _make_asynchronous_ring,
    }

    problem: FunctionProblem  # type: ignore[assignment]

    def saved(self, values: np.ndarray, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Return a complete file with the fitted values (n_parameters,),
        to be saved in a folder.
        """
        document = fitted_document(self.document, self.problem.model, values)
        if self.problem.data is not None:
            document["data"]["file"] = rebased_path(
                document["data"]["file"], self.model_file, folder
            )
        document["fit"] = copy.deepcopy(self.section) | {"start": "values"}
        return document

    def failing_examples(self) -> list[str]:
        """Return no sentences: a function has no rates that could be named."""
        return []

    def _floor(self, scorer: Any) -> float:
        """Return minus infinity: the cost of a function may be below 0."""
        return -math.inf


def read_function_plan(fit_file: FitFile) -> FunctionPlan:
    """Read the plan to fit a function.

    Raises: InputError with file, key and what would be right.
    """
    file, model_file = fit_file.file, fit_file.model_file
    function = build_function(fit_file.document, model_file)
    raw = fit_file.document.get("fit") or {}
    section = Section(raw, file, "fit")
    section.expect(KEYS["function fit"])
    settings, stop = (dict(section.rows(key, {})) for key in ("optimizer", "stop"))
    optimizer = settings.pop("name", DEFAULT_OPTIMIZER)
    plan = FunctionPlan(
        function,
        optimizer,
        settings,
        stop,
        fit_file.model_document,
        file,
        seed=section.integer("seed"),
        seeds=section.integer("seeds"),
        section=copy.deepcopy(dict(raw)),
        model_file=model_file,
        **read_titles(section, function.model.name),
        inherited=fit_file.inherited,
        start=starts_from_values(section),
    )
    checked(plan)
    if optimizer in NEED_DERIVATIVES:
        raise InputError(
            f"{optimizer} needs derivatives, which functions do not have; choose an optimizer that "
            "asks for costs alone, such as genetic",
            file,
            "fit.optimizer.name",
        )
    return plan
