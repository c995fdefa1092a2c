"""The error of NEURON's six digits of a PARAMETER: it reads more, and keeps no more than these."""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import CELSIUS
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant, Segment
from channelfit.results.export.subject import Subject
from channelfit.scoring.reference import ReferenceScorer

#: ms and mV of the steps under which the currents are compared.
_STEP_MS, _SAMPLING_MS, _STEPS_MV = 40.0, 0.2, (-120.0, -60.0, -40.0, -20.0, 0.0, 20.0, 60.0)


def six_digits(value: float) -> float:
    """Return the value that NEURON keeps of a number in a PARAMETER block."""
    return float(f"{value:.6g}")


def cost_of_six_digits(subject: Subject) -> float:
    """Return how far currents with six digits of each parameter are from those with all digits.

    Returns: the largest difference over the largest current, under steps from -120 to +60 mV.
    """
    rows = subject.channel.parameters
    values = subject.channel.values()
    kept = [x if p.name == CELSIUS else six_digits(x) for p, x in zip(rows, values, strict=True)]
    if (values == np.array(kept)).all():
        return 0.0
    tail = Segment(_STEP_MS, 1.5 * _STEP_MS, Constant(subject.holding_mV))
    sweeps = tuple((Segment(0.0, _STEP_MS, Constant(v)), tail) for v in _STEPS_MV)
    protocol = Protocol("steps", subject.holding_mV, _SAMPLING_MS, sweeps)
    problem = Problem(subject.channel, (Experiment(protocol),))
    traces = ReferenceScorer(problem).simulate(np.column_stack([values, kept]))[0]
    exact, rounded = traces[:, :, 0], traces[:, :, 1]
    return float(np.nanmax(np.abs(exact - rounded)) / max(np.nanmax(np.abs(exact)), 1e-300))
