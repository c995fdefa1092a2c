"""Models whose current is more than one conductance times a driving force; tests share them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording
from channelfit.scoring.reference import ReferenceScorer

RATES = {
    "C1 -> C2": "a*exp(za*v)",
    "C2 -> C1": "b*exp(-zb*v)",
    "C2 -> O": "c*exp(za*v)",
    "O -> C2": "d*exp(-zb*v)",
}
OF_RATES = {
    "a": {"range": [0.05, 0.5], "unit": "1/ms", "value": 0.2},
    "b": {"range": [0.01, 0.2], "unit": "1/ms", "value": 0.05},
    "c": {"range": [0.05, 0.5], "unit": "1/ms", "value": 0.15},
    "d": {"range": [0.01, 0.2], "unit": "1/ms", "value": 0.04},
    "za": {"range": [0.005, 0.04], "unit": "1/mV", "value": 0.02},
    "zb": {"range": [0.005, 0.04], "unit": "1/mV", "value": 0.02},
}
M_GATE = {"power": 3, "alpha": "am*exp(v/40)", "beta": "bm*exp(-v/40)"}
H_GATE = {"inf": "1/(1 + exp((v - vh)/7))", "tau": "2 + 6/(1 + exp((v + 45)/12))"}
OF_GATES = {
    "am": {"range": [0.2, 2], "unit": "1/ms", "value": 0.8},
    "bm": {"range": [0.05, 0.5], "unit": "1/ms", "value": 0.2},
    "vh": {"range": [-70, -30], "unit": "mV", "value": -50},
}
OF_CURRENT = {"g": {"range": [1, 20], "unit": "nS", "value": 8}}
OF_LEAK = {
    "gl": {"range": [0.1, 3], "unit": "nS", "value": 1},
    "el": {"range": [-80, 0], "unit": "mV", "value": -30},
}
OF_ION = {
    "p": {"range": [0.01, 1], "unit": "um3/ms", "value": 0.2},
    "ci": {"range": [1e-4, 1e-3], "unit": "mM", "scale": "log", "value": 5e-4},
}
OF_BEND = {
    "low": {"range": [0.1, 0.5], "value": 0.2},
    "slope": {"range": [10, 30], "unit": "mV", "value": 15},
}
BEND = {"bend": "low + 1/(1 + exp(-(v + 10)/slope))"}
CALCIUM = {"valence": 2, "inside": "ci", "outside": "2 mM"}
SCHEME = {"states": ["C1", "C2", "O"], "rates": RATES}
OHMIC = {"conductance": "g", "reversal": "-90 mV"}

DOCUMENTS: dict[str, dict[str, Any]] = {
    # the rectification of a potassium current, through a definition
    "rectified scheme": {
        **SCHEME,
        "definitions": BEND,
        "current": {"open": {"C2": 0.25, "O": 1}, **OHMIC, "rectification": "bend"},
        "parameters": OF_RATES | OF_BEND | OF_CURRENT,
    },
    "rectified gates": {
        "gates": {"m": M_GATE, "h": H_GATE},
        "definitions": BEND,
        "current": {**OHMIC, "rectification": "bend"},
        "parameters": OF_GATES | OF_BEND | OF_CURRENT,
    },
    "calcium": {
        "temperature": "34 degC",
        "gates": {"m": M_GATE, "h": H_GATE},
        "current": {"permeability": "p", "ion": CALCIUM},
        "parameters": OF_GATES | OF_ION,
    },
    "calcium scheme": {
        "temperature": "22 degC",
        **SCHEME,
        "current": {"open": ["O"], "permeability": "p", "ion": CALCIUM, "rectification": "1 - low"},
        "parameters": OF_RATES | OF_ION | {"low": OF_BEND["low"]},
    },
    "scheme and leak": {
        **SCHEME,
        "current": {"open": ["O"], **OHMIC},
        "leak": {"conductance": "gl", "reversal": "el"},
        "parameters": OF_RATES | OF_CURRENT | OF_LEAK,
    },
    "gates and leak": {
        "gates": {"m": M_GATE, "h": H_GATE},
        "current": OHMIC,
        "leak": {"conductance": "gl", "reversal": "el"},
        "parameters": OF_GATES | OF_CURRENT | OF_LEAK,
    },
    "scheme times gate": {
        **SCHEME,
        "gates": {"h": H_GATE},
        "current": {"open": ["O"], **OHMIC},
        "parameters": OF_RATES | {"vh": OF_GATES["vh"]} | OF_CURRENT,
    },
    "sum of gates": {
        "temperature": "22 degC",
        "definitions": BEND,
        "currents": {
            "kv": {"gates": {"m": M_GATE}, **OHMIC, "rectification": "bend"},
            "cav": {
                "gates": {"m": {"inf": "1/(1 + exp(-(v + 20)/8))", "tau": "1.5"}, "h": H_GATE},
                "permeability": "p",
                "ion": CALCIUM,
            },
        },
        "leak": {"conductance": "gl", "reversal": "el"},
        "parameters": OF_GATES | OF_BEND | OF_CURRENT | OF_ION | OF_LEAK,
    },
    # without any gate, and one of the currents is always open
    "sum with background": {
        "temperature": "22 degC",
        "currents": {
            "k": {**SCHEME, "open": ["O"], **OHMIC},
            "b": {"states": ["O"], "open": {"O": 0.5}, "permeability": "p", "ion": CALCIUM},
        },
        "parameters": OF_RATES | OF_CURRENT | OF_ION,
    },
    "sum of all": {
        "definitions": BEND,
        "currents": {
            "kur": {**SCHEME, "open": ["O"], **OHMIC, "rectification": "bend"},
            "to": {
                "states": ["C", "O", "I"],
                "rates": {"C -> O": "am", "O -> C": "bm", "O -> I": "0.1", "I -> O": "0.03"},
                "gates": {"h": H_GATE},
                "open": ["O"],
                "conductance": "0.5*g",
                "reversal": "-80 mV",
            },
            "k": {
                "gates": {"m": M_GATE, "r": {"inf": "1/(1 + exp((v - 20)/15))", "tau": 0}},
                "conductance": "2 nS",
                "reversal": "-85 mV",
            },
        },
        "leak": {"conductance": "gl", "reversal": "el"},
        "parameters": OF_RATES | OF_GATES | OF_BEND | OF_CURRENT | OF_LEAK,
    },
}


def document(name: str) -> dict[str, Any]:
    """A copy of one of the documents, to be changed."""
    return copy.deepcopy({"name": name, **DOCUMENTS[name]})


@cache
def model_of(name: str) -> ChannelModel:
    """The model of one of the documents."""
    return build_model(document(name), None)


@cache
def steps() -> Protocol:
    """Held voltages; the reversal potential and 0 mV are among them."""
    segments = [
        {"hold": "2 ms"},
        {"step": {"values": [-90, -40, 0, 30]}, "for": "20 ms"},
        {"step": -60, "for": "7.3 ms"},
    ]
    rows = {"holding": "-80 mV", "sampling": "0.2 ms", "segments": segments}
    return build_protocol(rows, None)


@cache
def moving() -> Protocol:
    """A step, a ramp through 0 mV and a sine."""
    sines = {"offset": -30, "terms": [{"amplitude": 40, "frequency": "60 Hz"}]}
    segments = [
        {"hold": "2 ms"},
        {"step": 20, "for": "5 ms"},
        {"ramp": [20, -100], "for": "15 ms"},
        {"sines": sines, "for": "20 ms"},
        {"step": -60, "for": "3 ms"},
    ]
    rows = {"holding": "-80 mV", "sampling": "0.2 ms", "segments": segments}
    return build_protocol(rows, None)


def candidates(model: ChannelModel, n: int, seed: int = 3) -> np.ndarray:
    """Parameters (n_parameters, n) drawn from the ranges; the first are the model's values."""
    draw = np.random.default_rng(seed).random((len(model.parameters), n))
    lower, upper = (np.array([getattr(p, k) for p in model.parameters]) for k in ("lower", "upper"))
    out = lower[:, None] + draw * (upper - lower)[:, None]
    out[:, 0] = model.values()
    return np.asarray(out)


@cache
def problem_of(name: str, *protocols: Protocol) -> Problem:
    """Experiments with data that the model itself, at other values, has made."""
    model = model_of(name)
    bare = Problem(model, tuple(Experiment(p) for p in protocols))
    truth = ReferenceScorer(bare).simulate(candidates(model, 2, seed=99)[:, 1:])
    random = np.random.default_rng(5)
    experiments = []
    for protocol, current in zip(protocols, truth, strict=True):
        noisy = current[:, :, 0] + random.normal(0, 5, current.shape[:2])
        weight = random.uniform(0.5, 1.5, noisy.shape)
        weight[:, ::7] = 0.0
        experiments.append(
            Experiment(protocol, Recording(protocol.times_ms, noisy, weight, "made"))
        )
    return Problem(model, tuple(experiments))
