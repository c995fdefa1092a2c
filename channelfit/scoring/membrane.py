"""The membrane's potential in a fit with a clamp: the steps of `clamp.py`, read at the membrane."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import sympy

from channelfit.problem.experiment import Problem
from channelfit.scoring.clamp import ClampScorer
from channelfit.scoring.kernels.clamp_cpu import ClampCpuSource
from channelfit.scoring.kernels.clamp_step import MembraneStep


class _MembraneSource(ClampCpuSource):
    step_kind = MembraneStep


class MembraneScorer(ClampScorer):
    """Simulates the potential of the membrane, mV, where its base simulates the current.

    It is that at the time of the command: neither late nor filtered, as the recording is.
    """

    source_kind = _MembraneSource

    def __init__(self, problem: Problem) -> None:
        undelayed = [
            replace(e, clamp=replace(e.clamp, delay=sympy.Integer(0), low_pass=None))
            for e in problem.experiments
            if e.clamp is not None
        ]
        super().__init__(replace(problem, experiments=tuple(undelayed)))


def membrane_potentials(problem: Problem, values: np.ndarray) -> list[np.ndarray | None]:
    """Return the membrane's potential in each experiment, (n_sweeps, n_times) mV.

    None where it is the command, and where the values have no current.

    Arguments:
        values: (n_parameters,) of the problem, base units.
    """
    found: list[np.ndarray | None] = [None] * len(problem.experiments)
    column = np.asarray(values, dtype=float)[:, None]
    for group in problem.groups:
        if group.clamp is None or group.clamp.holds_command:
            continue
        simulated = MembraneScorer(group.problem).simulate(group.parameters(column))
        for place, traces in zip(group.places, simulated, strict=True):
            mV = traces[:, :, 0]
            found[place] = mV if np.isfinite(mV).any() else None
    return found
