"""A channel of two states and steps that tell it apart: what tests of the search are tried on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.reading.documents import parse_yaml
from channelfit.search.plan import FitPlan
from channelfit.search.saved_fit import fit_document, save_data, saved_text

LITTLE: dict[str, Any] = {
    "name": "little",
    "states": ["C", "O"],
    "rates": {"C -> O": "a*exp(z*v)", "O -> C": "b*exp(-z*v)"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [1.0e-3, 1], "unit": "1/ms", "scale": "log", "value": 0.1},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        "b": {"range": [1.0e-3, 1], "unit": "1/ms", "scale": "log", "value": 0.05},
        "g": {"range": [1, 100], "unit": "nS", "value": 10},
    },
}
THREE_STEPS = """
name: steps
holding: -80 mV
sampling: 1 ms
segments:
  - {hold: 5 ms}
  - {step: {values: [-40 mV, 0 mV, 40 mV]}, for: 30 ms}
"""


def save_fit(plan: FitPlan, values: np.ndarray, folder: str | os.PathLike[str]) -> Path:
    """Write ``fit.yaml``, and for a surrogate fit its data, into a folder; returns its path.

    `load_plan` of that file gives the same problem with the fitted values (n_parameters,).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_data(plan, folder)
    path = folder / "fit.yaml"
    path.write_text(saved_text(fit_document(plan, values, folder)), encoding="utf-8")
    return path


def protocol_of(text: str) -> Protocol:
    """The protocol that a file with this text is."""
    return build_protocol(parse_yaml(text), None)
