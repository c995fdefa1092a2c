"""Models to export, and what they compute before it."""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace
from typing import Any

import numpy as np

from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import Subject, read_subject, subject_of
from channelfit.scoring.scorer import make_scorer

exports: Any = importlib.import_module("exports")


published: Any = importlib.import_module("published_mods")


MODELS = {file.stem: file for file in exports.MODELS}


#: The bar of an export to NEURON: the largest error over the largest current.
BAR = 1e-5
WHOLE_CELL = ExportSettings(capacitance_pF=20.0)


def subject(name: str) -> Subject:
    return read_subject(MODELS[name])


def of(data: dict[str, Any], summary: dict[str, Any] | None = None, cell: Any = None) -> Subject:
    return subject_of(copy.deepcopy(data), None, None, summary or {}, cell)


def steps() -> Protocol:
    """Every third of the nineteen steps, a sample each 0.25 ms."""
    protocol = published.steps()
    return replace(protocol, sweeps=protocol.sweeps[::3], sampling_ms=0.25)


def simulated(
    model: Any, values: np.ndarray, protocol: Protocol, backend: str = "reference"
) -> np.ndarray:
    problem = Problem(model, (Experiment(protocol),))
    return np.asarray(make_scorer(problem, backend).simulate(values[:, None])[0][:, :, 0])
