"""A channel of two states and steps that tell it apart: what tests of the search are tried on."""

from __future__ import annotations

LITTLE = {
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
