"""A function and its search: what `fit.load_fit` gives for a file with a cost or outputs."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from channelfit.functions.function import FunctionProblem, build_function, fitted_document
from channelfit.problem.experiment import Problem
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.units import shown
from channelfit.search.choose import make_optimizer
from channelfit.search.fit_file import Fit, starts_from_values
from channelfit.search.joined_files import inherited_keys, moved, read_titles
from channelfit.search.loop import make_stop_rules

#: Functions have no derivatives yet.
DEFAULT_OPTIMIZER, NEED_DERIVATIVES = "genetic", ("hybrid",)


@dataclass(frozen=True)
class FunctionFit(Fit):
    """A `Fit` whose problem is a function; `function` is the same by its own type."""

    function: FunctionProblem = field(kw_only=True)

    def saved(self, values: np.ndarray, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """A complete file with the fitted values (n_parameters,), to be saved in a folder."""
        document = fitted_document(self.document, self.function.model, values)
        if self.function.data is not None:
            document["data"]["file"] = moved(document["data"]["file"], self.model_file, folder)
        document["fit"] = copy.deepcopy(self.section) | {"start": "values"}
        return document

    def _floor(self, scorer: Any) -> float:
        """None is known: a cost may be below 0."""
        return -math.inf


def load_function_fit(document: Mapping[str, Any], file: Path, model_file: Path) -> FunctionFit:
    """The fit in a document of a function.

    Arguments:
        file: of the `fit` section; model_file: of the function.

    Raises: InputError with file, key and what would be right.
    """
    function = build_function(document, model_file)
    plain = {key: value for key, value in document.items() if key != "fit"}
    section = Section(document.get("fit") or {}, file, "fit")
    section.expect(KEYS["function fit"])
    settings, stop = (dict(section.rows(key, {})) for key in ("optimizer", "stop"))
    optimizer = settings.pop("name", DEFAULT_OPTIMIZER)
    if not isinstance(optimizer, str):
        raise InputError(f"a name was expected, not {shown(optimizer)}", file, "fit.optimizer.name")
    fit = FunctionFit(
        cast(Problem, function),
        optimizer,
        settings,
        stop,
        plain,
        file,
        seed=section.integer("seed", 0),
        section=copy.deepcopy(dict(document.get("fit") or {})),
        model_file=model_file,
        function=function,
        **read_titles(section, function.model.name),
        inherited=inherited_keys(file, model_file, document.get("fit") or {}),
        start=starts_from_values(section),
    )
    try:
        n_free = fit.space.n_free
    except InputError as error:
        raise error.at(model_file) from None
    fit.starting_point()
    try:
        make_optimizer(optimizer, settings, n_free, fit.seed)
        make_stop_rules(stop, settings)
    except InputError as error:
        raise error.at(file, "fit") from None
    if optimizer in NEED_DERIVATIVES:
        raise InputError(
            f"{optimizer} needs derivatives, which functions do not have; choose an optimizer that "
            "asks for costs alone, such as genetic",
            file,
            "fit.optimizer.name",
        )
    return fit
