"""Problems whose uncertainty is known: what the tests of `uncertainty` and its kin share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from channelfit.front.kinds import load_plan
from channelfit.model.channel import Parameter
from channelfit.reading.documents import dump_yaml
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score, Scorer
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan
from channelfit.search.space import SearchSpace


@dataclass
class Curve(Scorer):
    """Any function of the parameters against data, with derivatives by central differences.

    function: (n_parameters, n) -> (n_samples, n).
    """

    function: object
    data: np.ndarray

    def score(self, parameters: np.ndarray) -> Score:
        apart = self.function(parameters) - self.data[:, None]
        cost = np.mean(apart**2, axis=0)
        return Score(np.where(np.isfinite(cost), cost, np.inf), np.zeros(len(cost), np.int8))

    def linearize(self, parameters: np.ndarray) -> Linearization:
        apart, slopes = _differences(self.function, self.data, parameters, 1e-6, 1e-3)
        return Linearization(
            np.mean(apart**2, axis=0),
            np.zeros(parameters.shape[1], np.int8),
            2 * np.einsum("sk,sik->ik", apart, slopes) / len(self.data),
            2 * np.einsum("sik,sjk->ijk", slopes, slopes) / len(self.data),
        )


def _differences(function, data, parameters, share, least) -> tuple[np.ndarray, np.ndarray]:
    """Return a function without its data, and its slopes by steps of a share of the parameters."""
    slopes = np.empty((len(data), *parameters.shape))
    for i, row in enumerate(parameters):
        step = share * np.maximum(np.abs(row), least)
        up, down = parameters.copy(), parameters.copy()
        up[i] += step
        down[i] -= step
        slopes[:, i] = (function(up) - function(down)) / (2 * step)
    return function(parameters) - data[:, None], slopes


def curve_objective(function, data, parameters: list[Parameter]) -> Objective:
    return Objective(SearchSpace(tuple(parameters)), Curve(function, data))


class Differences(ChannelScorer):
    """The reference backend with derivatives by central differences of its currents."""

    backend = "reference"

    def __init__(self, problem) -> None:
        self.problem, self._reference = problem, ReferenceScorer(problem)

    def score(self, parameters: np.ndarray) -> Score:
        return self._reference.score(parameters)

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        return self._reference.simulate(parameters)

    def linearize(self, parameters: np.ndarray) -> Linearization:
        weight = np.concatenate(
            [(e.weight * e.recording.weight).ravel() for e in self.problem.experiments]
        )
        data = np.concatenate([e.recording.current_pA.ravel() for e in self.problem.experiments])
        counts = weight > 0
        weight = weight[counts] / weight[counts].sum()

        def currents(p):
            flat = [c.reshape(-1, c.shape[2]) for c in self.simulate(p)]
            return np.concatenate(flat)[counts]

        apart, slopes = _differences(currents, data[counts], parameters, 1e-5, 1e-4)
        fixed = [i for i, p in enumerate(self.problem.model.parameters) if p.fixed]
        slopes[:, fixed] = 0
        score = self.score(parameters)
        return Linearization(
            score.cost,
            score.status,
            2 * np.einsum("s,sk,sik->ik", weight, apart, slopes),
            2 * np.einsum("s,sik,sjk->ijk", weight, slopes, slopes),
        )


STEPS = """
name: steps
holding: -80 mV
sampling: 0.5 ms
segments:
  - {hold: 2 ms}
  - {step: {values: [-40 mV, 0 mV, 40 mV]}, for: 30 ms}
  - {step: -60 mV, for: 10 ms}
"""
MODEL = {
    "name": "little",
    "states": ["C", "O"],
    "rates": {"C -> O": "a*exp(z*v)", "O -> C": "b*exp(-0.02*v)"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [1e-3, 10], "unit": "1/ms", "scale": "log", "value": 0.1},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.03},
        "b": {"range": [1e-3, 10], "unit": "1/ms", "scale": "log", "value": 0.05},
        "g": {"range": [0, 100], "unit": "nS", "value": 10},
    },
}


def written(
    folder: Path, noise: float = 20.0, seed: int = 1, name="little.yaml", **changes
) -> Path:
    """A model file with surrogate data of a folder; changes replace entries of the document."""
    (folder / "steps.yaml").write_text(STEPS)
    surrogate = {"noise": noise, "seed": seed}
    fit = {"protocols": ["steps.yaml"], "surrogate": surrogate}
    path = folder / name
    path.write_text(dump_yaml(MODEL | changes | {"fit": fit}))
    return path


def loaded(folder: Path, noise: float = 20.0, seed: int = 1, **changes) -> FitPlan:
    return load_plan(written(folder, noise, seed, **changes), (), "reference")
